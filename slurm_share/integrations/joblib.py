"""joblib: `Parallel`, and so scikit-learn, in the slots of one Slurm job.

    from slurm_share.integrations.joblib import register
    register()
    with joblib.parallel_config(backend="slurm_share", triple=[1, 8], share="mem=8G"):
        ...

The arguments are those of `slurm_share.Executor`, or `executor=` one that exists.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from joblib import register_parallel_backend
from joblib.parallel import AutoBatchingMixin, ParallelBackendBase

from slurm_share.executor import Executor, Future


def register() -> None:
    """Make the backend known to joblib as `slurm_share`."""
    register_parallel_backend("slurm_share", SlurmShareBackend)


class SlurmShareBackend(AutoBatchingMixin, ParallelBackendBase):
    """Runs batches of calls in an executor, which serves every `Parallel` inside one `parallel_config`.

    Calls of `Parallel` inside a call use threads of that worker, as with joblib's own backends.
    """

    supports_retrieve_callback = True
    default_n_jobs = -1

    def __init__(self, executor: Executor | None = None, nesting_level: int | None = None, **arguments: Any) -> None:
        """Raises TypeError for arguments beside an executor."""
        super().__init__(nesting_level=nesting_level)
        if executor is not None and arguments:
            raise TypeError(f"write executor or {', '.join(sorted(arguments))}, not both")
        self._arguments = arguments
        self._executor = executor
        self._futures: weakref.WeakSet[Future[Any]] = weakref.WeakSet()

    @property
    def executor(self) -> Executor:
        """The executor, started at the first use. Raises ValueError, ExecutorError, OSError."""
        if self._executor is None:
            self._executor = Executor(**self._arguments)
        return self._executor

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return how many batches run at once; negative: as many as there are workers. Raises ValueError."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is not None and n_jobs > 0:
            return n_jobs
        # With 1, joblib would run everything in the client, which may have no GPU.
        return max(2, self.executor.max_workers + 1 + (n_jobs or -1))

    def configure(self, n_jobs: int = 1, parallel: Any = None, **_: Any) -> int:
        """Begin a `Parallel`; return how many batches run at once."""
        # Not a cycle: the executor ends when nobody uses the backend any more.
        self.parallel = None if parallel is None else weakref.proxy(parallel)
        return self.effective_n_jobs(n_jobs)

    def submit(self, func: Callable[[], Any], callback: Callable[[Any], None] | None = None) -> Future[Any]:
        """Run a batch."""
        future = self.executor.submit(func)
        self._futures.add(future)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        """Return the results of a batch, or raise its exception."""
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Cancel what has not begun. The rest runs on, and its results are not used."""
        for future in list(self._futures):
            future.cancel()
        self.reset_batch_stats()

    def terminate(self) -> None:
        """End a `Parallel`. The workers stay for the next one."""
        self.reset_batch_stats()
