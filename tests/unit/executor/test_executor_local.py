"""The executor with worker processes on this machine, without Slurm."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("cloudpickle", reason="NOT TESTED: there is no cloudpickle; tests/setup.sh installs it")

from slurm_share import Executor
from slurm_share.executor import RemoteTraceback, TimeLimit, WorkerLost, child


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with Executor(2, local=True) as made:
        yield made


def double(value: int) -> int:
    return 2 * value


def fail(text: str) -> None:
    raise LookupError(text)


def test_a_call_gives_its_result(executor: Executor) -> None:
    assert executor.submit(double, 21).result() == 42


def test_map_keeps_the_order_with_and_without_chunks(executor: Executor) -> None:
    assert list(executor.map(double, range(20))) == list(executor.map(double, range(20), chunksize=7))


def test_an_exception_comes_with_the_remote_traceback(executor: Executor) -> None:
    error = executor.submit(fail, "why").exception()
    assert isinstance(error, LookupError)
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "in fail" in str(error.__cause__)


def test_only_the_call_of_a_process_that_ends_is_lost(executor: Executor) -> None:
    lost, others = executor.submit(os._exit, 3), executor.map(double, range(8))
    with pytest.raises(WorkerLost, match="exit code 3"):
        lost.result()
    assert list(others) == list(range(0, 16, 2))


def test_only_a_call_above_its_time_limit_is_ended(executor: Executor) -> None:
    late = executor.with_options(timeout=0.2).submit(time.sleep, 600)
    assert executor.submit(double, 4).result() == 8
    with pytest.raises(TimeLimit, match=r"0\.2 s"):
        late.result()


def test_an_argument_that_cannot_be_pickled_fails_its_call_only(executor: Executor) -> None:
    future = executor.submit(double, (value for value in (1,)))  # type: ignore[arg-type]
    assert isinstance(future.exception(), TypeError)
    assert executor.submit(double, 1).result() == 2


def test_results_of_a_megabyte_come_back_whole(executor: Executor) -> None:
    data = os.urandom(1 << 20)
    assert executor.submit(bytes.__add__, data, b"x").result() == data + b"x"


def test_without_cloudpickle_nothing_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    child._pickler.cache_clear()
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(ImportError, match="pip install cloudpickle"):
        Executor(1, local=True, folder=tmp_path)
    with pytest.raises(ImportError, match="pip install cloudpickle"):
        Executor.attach(tmp_path)
    assert not list(tmp_path.iterdir())


def test_nothing_is_submitted_after_shutdown() -> None:
    executor = Executor(1, local=True)
    executor.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(double, 1)
