"""`Executor`: a `concurrent.futures.Executor` whose workers are the tasks of a run."""

from __future__ import annotations

import concurrent.futures
import functools
import itertools
import json
import os
import re
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import _base
from pathlib import Path
from typing import Any, TypeVar

from . import attaching, child, starting
from .exchange import Exchange, Future

T = TypeVar("T")


class Options:
    """The options of a call, as `with_options` takes them."""

    NAMES = ("timeout", "retries", "gpu_mem")

    @staticmethod
    def check(options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options that are set, checked. Raises TypeError and ValueError."""
        found: dict[str, Any] = {}
        for name, value in options.items():
            if name not in Options.NAMES:
                raise TypeError(f"a call has no option {name!r}; there are {', '.join(Options.NAMES)}")
            if value is None:
                continue
            if name == "timeout":
                if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
                    raise ValueError(f"timeout={value!r}: write a number of seconds above 0")
                found[name] = float(value)
            elif name == "retries":
                if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1000:
                    raise ValueError(f"retries={value!r}: write a number from 0 to 1000")
                if value:
                    found[name] = value
            else:
                found[name] = mebibytes(value)
        return found


def mebibytes(size: str | int) -> int:
    """Return a size such as "6G" or "512M" in MiB. Raises ValueError."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([MG])(?:i?B)?", str(size), re.IGNORECASE)
    if found is None or float(found[1]) <= 0:
        raise ValueError(f"gpu_mem={size!r}: write a size such as '6G' or '512M'")
    return max(1, int(float(found[1]) * (1024 if found[2] in "gG" else 1)))


class Executor(concurrent.futures.Executor):
    """Runs calls in the worker processes of one Slurm job, or of this machine."""

    def __init__(
        self,
        triple: Sequence[int] | int | None = None,
        share: str | None = None,
        pack: bool = False,
        gpu_mem: str | int | None = None,
        timeout: float | None = None,
        retries: int = 0,
        folder: str | os.PathLike[str] | None = None,
        local: bool = False,
        name: str = "executor",
        partition: str | None = None,
        time: str | None = None,
        options: str | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        max_workers: int | None = None,
    ) -> None:
        """Start the workers.

        Args:
            triple: [nodes, workers on each, threads of each], [nodes, workers], or the number of workers on one node.
            share: As after `llsub --share-gpu`, such as "mem=8G" or "sharing=time-slicing".
            pack: Each worker is a packed task with `gpu_mem`: on a GPU with room for it.
            gpu_mem: GPU memory of each call, such as "6G", unless `with_options` says otherwise.
            timeout: Time limit of each call in seconds, unless `with_options` says otherwise.
            retries: Further tries of a call that raised, took too long or lost its process, unless `with_options` says
                otherwise.
            folder: With `local`, the run's folder; None: a temporary one. A run of Slurm is LLSUB.<n> in the working
                folder.
            local: Without Slurm, on this machine.
            name: Name of the job.
            partition: Partition of the job.
            time: Time limit of the job, such as "4:00:00".
            options: Further options of the job, as for sbatch.
            initializer: What each worker process calls first.
            initargs: Arguments of the initializer.
            max_workers: Number of workers on one node, instead of `triple`.

        Raises ValueError and TypeError for wrong arguments, ImportError without cloudpickle, SubmissionFailed, OSError.
        """
        child.check_cloudpickle()
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        self._options = Options.check({"timeout": timeout, "retries": retries, "gpu_mem": gpu_mem})
        wanted = starting.Wanted(
            triple=starting.parse_triple(triple, max_workers, is_local=local),
            share=share,
            pack=pack,
            gpu_mem_mib=self._options.get("gpu_mem") if pack else None,
            folder=None if folder is None else os.fspath(folder),
            is_local=local,
            name=name,
            partition=partition,
            time=time,
            options=options,
        )
        if pack:
            self._options.pop("gpu_mem", None)  # each worker has it as its booking and cap
        pickled = None if initializer is None else child.dumps((initializer, initargs))
        job, config = starting.start(wanted, pickled, self._options)
        exchange = Exchange(job.folder, job, config)
        if job.id:
            exchange.begin_reading()  # its signs of life keep the job until the first call comes
        self._set_up(exchange)

    def _set_up(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.futures: dict[str, Future[Any]] = {}
        """With `attach`: the calls of the run when it was attached, by key."""
        self._encoded = json.dumps(self._options).encode() if self._options else b""
        self._finalizer = weakref.finalize(self, exchange.close)
        self._finalizer.atexit = False

    @classmethod
    def attach(cls, folder: str | os.PathLike[str]) -> Executor:
        """Return an executor of a run that exists, with the calls of all its clients in `futures`, by key.

        If no job of the run is in the queue and calls have no result, the run is submitted again, as with `llsub
        --resume`. Raises ValueError if that is not the folder of an executor, or of another Python; ImportError,
        SubmissionFailed, OSError.
        """
        child.check_cloudpickle()
        exchange, futures = attaching.attach(os.fspath(folder))
        executor = cls.__new__(cls)
        executor._options = dict(exchange.config.made)
        executor._set_up(exchange)
        executor.futures = futures
        return executor

    @property
    def folder(self) -> str:
        """Folder of the run, for `attach` and the commands of llsub."""
        return str(Path(self._exchange.folder).parent)

    @property
    def max_workers(self) -> int:
        """How many calls can run at once."""
        return self._exchange.job.most_workers

    @property
    def job(self) -> str:
        """The id of the Slurm job; "": there is none."""
        return self._exchange.job.id

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run `fn(*args, **kwargs)` in a worker; return its future.

        Raises RuntimeError after `shutdown`, RunEnded if the run has ended.
        """
        return self._submit(self._encoded, fn, args, kwargs)

    def _submit(self, options: bytes, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future[T]:
        self._exchange.check_open()
        future: Future[T] = Future()
        try:
            function = child.dumps(fn)
            arguments = child.dumps((args, kwargs))
        except Exception as error:  # noqa: BLE001  (as ProcessPoolExecutor: the error belongs to this call)
            future.set_exception(error)
            return future
        self._exchange.submit(function, arguments, options, future)
        return future

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[T]:
        """Return an iterator over `fn` of each item, in their order, as ProcessPoolExecutor.map does.

        Args:
            fn: Function of one item of each of the iterables.
            iterables: The items.
            timeout: Seconds from now until the last result has to be there; None: no limit.
            chunksize: Items of one call.
            buffersize: Most calls whose results have not been taken; None: no limit.

        Raises ValueError and TypeError; TimeoutError from the iterator.
        """
        return _map(self._submit, self._encoded, fn, iterables, timeout, chunksize, buffersize)

    def with_options(
        self, *, timeout: float | None = None, retries: int | None = None, gpu_mem: str | int | None = None
    ) -> Calls:
        """Return a view of this executor whose calls have other options. Raises ValueError."""
        given = {"timeout": timeout, "retries": retries, "gpu_mem": gpu_mem}
        return Calls(self, {**self._options, **Options.check(given)})

    def resize(self, workers: int) -> None:
        """Let `workers` workers of the run have calls, from now on. Raises ValueError.

        A worker above that number ends its call, frees its memory and waits.
        """
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise ValueError(f"resize({workers!r}): write a number of workers, at least 1")
        most = self._exchange.job.most_workers
        if workers > most:
            raise ValueError(f"resize({workers}): the job has {most} workers; more need a larger triple")
        self._exchange.resize(workers)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no further calls, and free the workers when all are done.

        Args:
            wait: Wait until then.
            cancel_futures: Calls that no node has begun do not run.
        """
        exchange = self._exchange
        if os.getpid() != exchange.pid:
            return
        exchange.is_closing = True
        if cancel_futures:
            exchange.cancel_all()
        exchange.close()
        if wait or exchange.thread is None:
            exchange.join()


class Calls:
    """An executor whose calls have further options; made by `Executor.with_options`."""

    def __init__(self, executor: Executor, options: Mapping[str, Any]) -> None:
        self._executor = executor
        self._options = dict(options)
        self._encoded = json.dumps(self._options).encode() if self._options else b""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run a call with these options, as `Executor.submit`."""
        return self._executor._submit(self._encoded, fn, args, kwargs)

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[T]:
        """Run calls with these options, as `Executor.map`."""
        return _map(self._executor._submit, self._encoded, fn, iterables, timeout, chunksize, buffersize)

    def with_options(self, **options: Any) -> Calls:
        """Return another view, with these options changed. Raises ValueError and TypeError."""
        return Calls(self._executor, {**self._options, **Options.check(options)})


def _process_chunk(fn: Callable[..., T], chunk: Sequence[tuple[Any, ...]]) -> list[T]:
    return [fn(*arguments) for arguments in chunk]


def _chunks(iterables: Sequence[Iterable[Any]], size: int) -> Iterator[tuple[tuple[Any, ...], ...]]:
    items = zip(*iterables, strict=False)
    while chunk := tuple(itertools.islice(items, size)):
        yield chunk


def _map(
    submit: Callable[..., Future[Any]],
    options: bytes,
    fn: Callable[..., T],
    iterables: Sequence[Iterable[Any]],
    timeout: float | None,
    chunksize: int,
    buffersize: int | None,
) -> Iterator[T]:
    if chunksize < 1:
        raise ValueError("chunksize must be >= 1.")
    if buffersize is not None and not isinstance(buffersize, int):
        raise TypeError("buffersize must be an integer or None")
    if buffersize is not None and buffersize < 1:
        raise ValueError("buffersize must be None or > 0")
    end = None if timeout is None else time.monotonic() + timeout
    if chunksize == 1:
        ready: Iterator[tuple[Callable[..., Any], tuple[Any, ...]]] = (
            (fn, args) for args in zip(*iterables, strict=False)
        )
    else:
        call = functools.partial(_process_chunk, fn)
        ready = ((call, (chunk,)) for chunk in _chunks(iterables, chunksize))
    pending = deque(submit(options, one, args, {}) for one, args in itertools.islice(ready, buffersize))

    def results() -> Iterator[Any]:
        try:
            pending.reverse()
            while pending:
                if buffersize is not None and (following := next(ready, None)) is not None:
                    pending.appendleft(submit(options, following[0], following[1], {}))
                if end is None:
                    yield _base._result_or_cancel(pending.pop())  # type: ignore[attr-defined]
                else:
                    left = end - time.monotonic()
                    yield _base._result_or_cancel(pending.pop(), left)  # type: ignore[attr-defined]
        finally:
            for exchange in {future._exchange for future in pending if future._exchange is not None}:
                exchange.cancel(pending)
            for future in pending:
                future.cancel()  # those that were never sent

    found = results()
    return found if chunksize == 1 else (value for chunk in found for value in chunk)
