"""Run CPython's own tests of concurrent.futures with our executor: cpython_futures.py FOLDER GROUP ANSWER.

FOLDER has the whole package `test` of this Python; empty: the interpreter's own is whole. GROUP is the name of a class
of CPython's tests. ANSWER becomes a JSON object: the name of each test -> "" (passed), "skipped: WHY" or a traceback.
"""

from __future__ import annotations

import concurrent.futures
import faulthandler
import importlib
import json
import multiprocessing
import pkgutil
import signal
import sys
import time
import traceback
import unittest
from pathlib import Path
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any

from slurm_share.executor import Executor, Future, NotReadable, RemoteTraceback, WorkerLost

PREFIX = "test.test_concurrent_futures"
PATIENCE_S = 90
"""Seconds after which a test counts as failed because it hangs."""


class SlurmShareExecutor(Executor):
    """Our executor with the arguments of ProcessPoolExecutor, on this machine.

    `mp_context` and `max_tasks_per_child` say how multiprocessing starts processes; we do not use it.
    """

    def __init__(
        self, max_workers: int = 5, mp_context: object = None, initializer: Any = None, initargs: tuple = ()
    ) -> None:
        if max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        self._made: list[Future] = []
        super().__init__(triple=[1, max_workers, 1], local=True, initializer=initializer, initargs=initargs)

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future:
        future = super().submit(fn, *args, **kwargs)
        if fn is time.sleep or getattr(fn, "__name__", "") == "sleep_and_print":
            self._made.append(future)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel when a call has begun, which tests of `cancel_futures` take for granted."""
        while cancel_futures and self._made and not any(one.running() or one.done() for one in self._made):
            time.sleep(0.01)
        super().shutdown(wait, cancel_futures=cancel_futures)

    @property
    def _broken(self) -> bool:
        return self._exchange.broken is not None


class NamedPool(SlurmShareExecutor):
    """Ours where a test asks for a pool of concurrent.futures by name. Another class, because a test is skipped for the
    class ProcessPoolExecutor."""


def load(folder: str) -> list[ModuleType]:
    """Import CPython's modules: one until 3.11, a package since. Raises ImportError where they are not installed."""
    sys.path[:0] = filter(None, [folder])  # in workers it is by PYTHONPATH
    support = importlib.import_module("test.support")
    support.SHORT_TIMEOUT = support.LONG_TIMEOUT = float(PATIENCE_S)  # a busy machine is no failure
    first = importlib.import_module(PREFIX)
    names = [one.name for one in pkgutil.iter_modules(getattr(first, "__path__", []))]
    return [first, *(importlib.import_module(f"{PREFIX}.{name}") for name in names)]


def in_child(code: str, folder: str) -> str:
    """Return the program of a test with our executor among the names of concurrent.futures."""
    return (
        f"import sys; sys.path[:0] = {[path for path in (folder, str(Path(__file__).parent)) if path]!r}\n"
        "import cpython_futures\n"
        "import concurrent.futures, multiprocessing\n"
        "for name in ('SlurmShareExecutor', 'ThreadPoolExecutor'):\n"
        "    setattr(concurrent.futures, name, cpython_futures.SlurmShareExecutor)\n"
    ) + code


def substitute(modules: list[ModuleType], folder: str) -> type:
    """Put our executor, future and errors in the place of the names that the tests use; return the mixin of ours."""
    for module in modules:
        if hasattr(module, "assert_python_ok"):
            ran = module.assert_python_ok
            module.assert_python_ok = lambda flag, code, ran=ran: ran(flag, in_child(code, folder))  # type: ignore[attr-defined]
        if hasattr(module, "BrokenProcessPool"):  # here these are of one call, and the executor goes on
            module.BrokenProcessPool = (concurrent.futures.BrokenExecutor, WorkerLost, NotReadable)  # type: ignore[attr-defined]
        if hasattr(module, "futures"):
            names = {**vars(module.futures), "ThreadPoolExecutor": NamedPool, "ProcessPoolExecutor": NamedPool}
            names["process"] = SimpleNamespace(_RemoteTraceback=RemoteTraceback)
            module.futures = SimpleNamespace(**names)  # type: ignore[attr-defined]
    (base,) = {getattr(module, "ExecutorMixin", None) for module in modules} - {None}

    class SlurmShareMixin(base):  # type: ignore[misc, valid-type]
        executor_type = SlurmShareExecutor

        def setUp(self) -> None:
            super().setUp()
            if not self.executor_kwargs:  # as a pool, which has no job to wait for, is ready when it is made
                list(self.executor.map(abs, range(self.worker_count)))

        def get_context(self) -> object:
            """Return what tests make queues and managers with."""
            return multiprocessing.get_context("fork")

    return SlurmShareMixin


def case_of(name: str, modules: list[ModuleType], mixin: type) -> type[unittest.TestCase]:
    """Return a class of CPython's tests with our mixin in the place of its own."""
    (group,) = {getattr(module, name, None) for module in modules} - {None}
    if name == "FutureTests":
        return group
    if issubclass(group, unittest.TestCase):
        return type(name, (mixin, group), {})
    base = next(module.BaseTestCase for module in modules if hasattr(module, "BaseTestCase"))
    return type(name, (group, mixin, base), {})


class Told(unittest.TestResult):
    """The outcome of each test."""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[str, str] = {}

    def _tell(self, test: unittest.TestCase, text: str) -> None:
        name = test.id().rpartition(".")[2]
        self.told[name] = self.told.get(name) or text

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._tell(test, "")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._tell(test, f"skipped: {reason}")

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self._tell(test, "".join(traceback.format_exception(*err)))

    addFailure = addError


def hangs(_number: int, _frame: FrameType | None) -> None:
    raise AssertionError(f"hangs: the test is not through after {PATIENCE_S} s")


def main(folder: str, name: str, answer: Path) -> int:
    modules = load(folder)
    mixin = substitute(modules, folder)
    case = case_of(name, modules, mixin)
    names = unittest.TestLoader().getTestCaseNames(case)
    if name.startswith("ThreadPool"):  # the group of processes has the inherited ones, too
        names = [one for one in names if one in vars(case.__mro__[2])]
    result = Told()
    signal.signal(signal.SIGALRM, hangs)
    for test in names:
        print(test, file=sys.stderr, flush=True)
        signal.alarm(PATIENCE_S)
        faulthandler.dump_traceback_later(PATIENCE_S + 30, exit=True)  # where the end of the test hangs as well
        case(test).run(result)
        signal.alarm(0)
    answer.write_text(json.dumps(result.told))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
