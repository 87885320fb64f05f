"""What an executor does when a process, a file or a disk fails. Workers are processes of this machine."""

from __future__ import annotations

import concurrent.futures
import errno
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

pytest.importorskip("cloudpickle", reason="NOT TESTED: there is no cloudpickle; tests/setup.sh installs it")

from slurm_share import Executor
from slurm_share.executor import (
    InitializerFailed,
    NotReadable,
    NotStored,
    RunEnded,
    SubmissionFailed,
    WorkerLost,
    exchange,
    frames,
    run_folder,
    starting,
    worker,
)

ROOT = Path(__file__).parents[3]


def mark(folder: str, number: int, seconds: float = 0.0) -> int:
    """Leave one byte for each time that this call runs."""
    with open(f"{folder}/{number}", "ab") as file:
        file.write(b"x")
    time.sleep(seconds)
    return number


def runs(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in folder.iterdir()}


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    (tmp_path / "marks").mkdir()
    return tmp_path / "marks"


def test_calls_run_once_when_workers_and_dispatchers_are_killed(marks: Path) -> None:
    """Only calls that a killed worker had passed to its process are lost, begun there or not; nothing runs twice."""
    with Executor(3, local=True) as executor:
        futures = [executor.submit(mark, str(marks), number, 0.002) for number in range(300)]
        for worker in range(3):
            futures[60 * (worker + 1)].exception()
            executor._exchange.job.workers[worker].kill()
        ends = [future.exception() for future in futures]
    lost = [error for error in ends if error is not None]
    assert len(lost) <= 6  # of each: the call that ran, and one whose result was not written yet
    assert all(isinstance(error, WorkerLost) for error in lost)
    assert set(runs(marks).values()) == {1}
    assert len(runs(marks)) >= 300 - len(lost)
    assert {str(number) for number, error in enumerate(ends) if error is None} <= runs(marks).keys()


def client(code: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start another client with a run in `folder`."""
    head = f"""
        import os, signal, sys, time
        sys.path[:0] = [{str(ROOT)!r}, {str(Path(__file__).parent)!r}]
        from slurm_share import Executor
        from {Path(__file__).stem} import mark
        folder = {str(folder)!r}
    """
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(head) + textwrap.dedent(code)])


KILLED = """
    executor = Executor(2, local=True, folder=folder)
    futures = [executor.submit(mark, os.environ["MARKS"], number, 0.01) for number in range(60)]
    futures[5].result()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def killed_client(tmp_path: Path, marks: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the folder of a run whose client was killed while its calls ran."""
    monkeypatch.setenv("MARKS", str(marks))
    assert client(KILLED, tmp_path / "run").wait(60) == -signal.SIGKILL
    return tmp_path / "run"


def test_calls_of_a_killed_client_run_and_are_given_back_by_key(killed_client: Path, marks: Path) -> None:
    with Executor.attach(killed_client) as executor:
        values = {key: future.result(timeout=60) for key, future in executor.futures.items()}
        assert executor.submit(pow, 2, 5).result(timeout=60) == 32
    assert len(values) > 5
    assert values == {f"0.{number}": number for number in range(len(values))}
    assert runs(marks) == dict.fromkeys(map(str, range(len(values))), 1)


def test_the_next_client_tells_that_the_killed_one_has_ended(killed_client: Path) -> None:
    """Workers on other hosts cannot see that, and would wait for its further calls."""
    with Executor.attach(killed_client) as executor:
        own = frames.Reader(executor._exchange.file.path)
        gone = [frames.unpack_keys(content) for kind, content, _ in own.read() if kind == frames.GONE]
    assert gone == [[(0, 0)]]


def test_a_frame_that_a_killed_client_did_not_finish_harms_nobody(killed_client: Path) -> None:
    with open(killed_client / "executor/calls/0", "ab") as file:
        file.write(frames.frame(frames.CALLS, b"x" * 100)[:50])
    with Executor.attach(killed_client) as executor:
        assert all(future.exception(timeout=60) is None for future in executor.futures.values())
        assert executor.submit(pow, 2, 5).result(timeout=60) == 32


def test_two_clients_have_their_own_calls_in_one_run(tmp_path: Path) -> None:
    with Executor(2, local=True, folder=tmp_path / "run") as one, Executor.attach(tmp_path / "run") as other:
        first = [one.submit(pow, number, 2) for number in range(50)]
        second = [other.submit(pow, number, 3) for number in range(50)]
        assert [future.result() for future in first] == [number**2 for number in range(50)]
        assert [future.result() for future in second] == [number**3 for number in range(50)]
        assert not {future.key for future in first} & {future.key for future in second}


def test_a_node_whose_workers_are_resized_away_ends_with_the_run(tmp_path: Path) -> None:
    """It claims nothing, and still learns that all calls are claimed."""
    with Executor(1, local=True, folder=tmp_path / "run") as executor:
        executor.submit(pow, 2, 2).result()
        executor.resize(1)
        executor.submit(pow, 2, 3).result()
        (tmp_path / "node").mkdir()
        environment = {
            **os.environ,
            worker.ENV_NODE: str(tmp_path / "node"),
            worker.ENV_RANK: "1",
            worker.ENV_START: executor._exchange.job.start,
            "SLURMD_NODENAME": "other",
        }
        other = subprocess.Popen([sys.executable, starting.WORKER, f"{executor.folder}/executor"], env=environment)
        while not list(Path(executor.folder, "executor/results").glob("other.*")):
            time.sleep(0.01)
    assert other.wait(60) == 0


def test_attach_refuses_another_python(tmp_path: Path) -> None:
    folder = tmp_path / "run/executor"
    run_folder.make(str(folder), run_folder.Config(processes=1, python="3.2"), None)
    with pytest.raises(ValueError, match=r"made by Python 3\.2"):
        Executor.attach(tmp_path / "run")


def test_attach_says_that_a_folder_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not the run of an executor"):
        Executor.attach(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can give a file to somebody else")
@pytest.mark.parametrize("name", ["calls/0", "results/n1.1.0.1-aaaa", "initializer"])
def test_a_file_of_somebody_else_is_not_unpickled(name: str, tmp_path: Path) -> None:
    foreign = tmp_path / name.replace("/", "-")
    foreign.write_bytes(frames.frame(frames.RESULTS, pickle.dumps("mine")))
    os.chown(foreign, 12345, 12345)
    with pytest.raises(frames.NotOwnFile, match="not a plain file of this user"):
        frames.read_own(str(foreign))
    with pytest.raises(frames.NotOwnFile, match="not a plain file of this user"):
        list(frames.Reader(str(foreign)).read())


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can give a file to somebody else")
def test_a_result_of_somebody_else_is_not_unpickled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Executor(1, local=True, folder=tmp_path / "run") as executor:
        result = frames.Result(0, 0, frames.VALUE, 0.0, pickle.dumps("theirs"))
        foreign = tmp_path / "foreign"
        foreign.write_bytes(frames.frame(frames.RESULTS, frames.pack_result(result)))
        os.chown(foreign, 12345, 12345)
        foreign.rename(tmp_path / "run/executor/results/a")
        assert executor.submit(str, "ours").result() == "ours"
    assert "results/a is not read" in capsys.readouterr().err


def test_a_worker_that_becomes_the_dispatcher_keeps_the_call_that_it_runs(marks: Path) -> None:
    with Executor(2, local=True) as executor:
        futures = [executor.submit(mark, str(marks), number, 1.0) for number in range(2)]
        while len(runs(marks)) < 2:
            time.sleep(0.01)
        results = next((Path(executor.folder) / "executor/results").iterdir())
        dispatcher = int(results.name.rpartition(".")[2].partition("-")[0])
        os.kill(dispatcher, signal.SIGKILL)
        ends = [future.exception() for future in futures]
    assert sorted(isinstance(error, WorkerLost) for error in ends) == [False, True]
    assert runs(marks) == {"0": 1, "1": 1}


def test_a_link_in_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "own").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "own")
    with pytest.raises(frames.NotOwnFile, match="symbolic link"):
        frames.read_own(str(tmp_path / "link"))


def test_files_of_a_run_are_the_users_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with Executor(1, local=True, folder=tmp_path / "run") as executor:
            executor.submit(bytes, 1 << 20).result()
    finally:
        os.umask(before)
    modes = {file.name: file.stat().st_mode & 0o077 for file in (tmp_path / "run/executor").rglob("*")}
    assert set(modes.values()) == {0}


def test_a_full_disk_fails_the_calls_that_it_hits(monkeypatch: pytest.MonkeyPatch) -> None:
    with Executor(1, local=True) as executor:
        assert executor.submit(pow, 2, 2).result() == 4
        with monkeypatch.context() as full:

            def fail(*_: object) -> int:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            full.setattr(frames.os, "pwrite", fail)
            error = executor.submit(pow, 2, 3).exception()
        assert isinstance(error, NotStored)
        assert "No space left on device" in str(error)
        assert executor.submit(pow, 2, 4).result() == 16


def test_a_removed_folder_ends_the_calls_with_a_sentence(tmp_path: Path) -> None:
    executor = Executor(1, local=True, folder=tmp_path / "run")
    executor.submit(pow, 2, 2).result()
    future = executor.submit(time.sleep, 600)
    (tmp_path / "run").rename(tmp_path / "gone")
    with pytest.raises(RunEnded, match="was removed"):
        future.result(timeout=60)
    with pytest.raises(RunEnded):
        executor.submit(pow, 2, 2)
    for process in executor._exchange.job.workers.values():
        process.terminate()
    executor.shutdown()


def broken() -> None:
    raise ZeroDivisionError("no licence")


@pytest.mark.parametrize(
    ("initializer", "initargs", "why"), [(broken, (), "no licence"), (os._exit, (4,), "exit code 4")]
)
def test_an_initializer_that_fails_breaks_the_executor(initializer: object, initargs: tuple[int], why: str) -> None:
    with Executor(1, local=True, initializer=initializer, initargs=initargs) as executor:  # type: ignore[arg-type]
        future = executor.submit(pow, 2, 2)
        with pytest.raises(InitializerFailed, match=why):
            future.result()
        with pytest.raises(concurrent.futures.BrokenExecutor, match=why):
            executor.submit(pow, 2, 2)


def test_a_client_shows_that_it_lives_before_its_first_call(llsub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers on other hosts end the job of a client that gives no sign of life."""
    llsub.write_text("#!/bin/sh\nmkdir run\necho 'job 5 is in the queue'\necho 'llsub --watch run shows it'\n")
    llsub.chmod(0o755)
    monkeypatch.setattr(exchange, "BEAT_S", 0.01)
    executor = Executor([1, 2])
    calls = Path("run/executor/calls/0")
    before = calls.stat().st_mtime_ns
    while calls.stat().st_mtime_ns == before:
        time.sleep(0.01)
    executor.shutdown()


class TwoArguments(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(one)


class Unreadable:
    def __reduce__(self) -> tuple[object, ...]:
        return int, ("not a number",)


def raise_two() -> None:
    raise TwoArguments(1, 2)


def test_exceptions_and_results_that_cannot_be_unpickled_fail_their_call_only() -> None:
    with Executor(1, local=True) as executor:
        with pytest.raises(NotReadable, match="TwoArguments: 1"):
            executor.submit(raise_two).result()
        with pytest.raises(NotReadable, match="cannot be unpickled here: ValueError"):
            executor.submit(Unreadable).result()
        assert executor.submit(pow, 2, 2).result() == 4


def fails_until(folder: str, times: int) -> int:
    mark(folder, 0)
    if (found := os.path.getsize(f"{folder}/0")) < times:  # noqa: PTH202
        os._exit(1)
    return found


@pytest.mark.parametrize("retries", [1, 2])
def test_a_lost_call_runs_again_as_often_as_it_may(retries: int, marks: Path) -> None:
    with Executor(1, local=True) as executor:
        future = executor.with_options(retries=retries).submit(fails_until, str(marks), 3)
        if retries == 2:
            assert future.result() == 3
        else:
            with pytest.raises(WorkerLost, match="attempt 2"):
                future.result()
    assert runs(marks) == {"0": retries + 1}


@pytest.fixture
def llsub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "llsub"
    monkeypatch.setenv(starting.ENV_LLSUB, str(program))
    monkeypatch.chdir(tmp_path)
    return program


def test_a_refused_job_is_told_with_what_llsub_said(llsub: Path) -> None:
    llsub.write_text("#!/bin/sh\necho 'llsub: sbatch refused the job: invalid partition' >&2\nexit 1\n")
    llsub.chmod(0o755)
    with pytest.raises(SubmissionFailed, match="invalid partition"):
        Executor([1, 2])


def test_a_host_without_llsub_is_told_the_way_out(llsub: Path) -> None:
    with pytest.raises(SubmissionFailed, match="local=True"):
        Executor([1, 2])


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({}, "triple"),
        ({"triple": [1]}, "nodes"),
        ({"triple": [1, 0]}, "nodes"),
        ({"triple": [2, 2], "local": True}, "one node"),
        ({"triple": 2, "max_workers": 2}, "not both"),
        ({"triple": 2, "gpu_mem": "many"}, "6G"),
        ({"triple": 2, "timeout": 0}, "seconds"),
        ({"triple": 2, "retries": -1}, "0 to 1000"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_starts(arguments: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Executor(**arguments)  # type: ignore[arg-type]
