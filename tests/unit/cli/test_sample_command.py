"""`slurm-share sample` as a person and as srun meets it. The machine that runs the tests is the node."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_share.cli import main, sample
from slurm_share.core import config
from slurm_share.core.settings import Settings
from slurm_share.load.agent import callers, client, watcher
from slurm_share.load.snapshot import GpuLoad, OnGpu, ProcessLoad, Snapshot
from slurm_share.load.sources.frames import Joiner

ME = os.geteuid()
PATIENCE_S = 120
"""Time limit for what takes a second on an idle machine."""


def snapshot(**fields: Any) -> Snapshot:
    mine, his = (
        ProcessLoad(pid=pid, name="x", uid=uid, user=user, gpus=(OnGpu(uuid=f"GPU-{pid}"),))
        for pid, uid, user in ((1, ME, "me"), (2, ME + 1, "him"))
    )
    gpus = tuple(GpuLoad(uuid=f"GPU-{pid}", index=pid, name="x", clients=1) for pid in (1, 2))
    values = {"node": "n1", "taken": time.time(), "cpus": 2, "cores": 2, "gpus": gpus, "processes": (mine, his)}
    return Snapshot(**{**values, **fields})


class FakeSampler:
    """A sampler that gives the same answer and counts."""

    looks = 0
    closed = 0

    def __init__(self, node: str) -> None:
        self.node = node

    def sample(self) -> Snapshot:
        type(self).looks += 1
        return snapshot(node=self.node, measured_s=float(type(self).looks))

    def close(self) -> None:
        type(self).closed += 1


@pytest.fixture(autouse=True)
def a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a node without an agent, with a sampler that reads nothing."""
    socket = tmp_path / "socket"
    settings = config.Configuration(Settings(agent_socket=str(socket)), {})
    monkeypatch.setattr(config, "load", lambda: settings)
    monkeypatch.setattr("slurm_share.load.sampler.NodeSampler", FakeSampler)
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    FakeSampler.looks = FakeSampler.closed = 0
    return socket


def run(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main.main(["sample", *words])
    said = capfd.readouterr()
    return code, said.out, said.err


def test_it_prints_one_snapshot_of_what_is_ours(capfd: pytest.CaptureFixture[str]) -> None:
    """On one line; the second of two looks, so that it has rates; the driver is left again."""
    code, out, err = run(capfd)
    assert (code, err, out.count("\n")) == (0, "", 1)
    seen = json.loads(out)
    assert (seen["node"], seen["measured_s"], seen["view"]) == ("n1", 2.0, callers.identify(ME, "").user)
    assert [one["pid"] for one in seen["processes"]] == [1]
    assert seen["hidden_gpus"] == 1
    assert FakeSampler.closed == 1


def test_the_nodes_name_is_what_was_said(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert json.loads(run(capfd, "--node", "gpu-7")[1])["node"] == "gpu-7"
    monkeypatch.delenv("SLURMD_NODENAME")
    assert json.loads(run(capfd)[1])["node"] == os.uname().nodename.split(".")[0]
    code, out, err = run(capfd, "--node", "a b\x1b[2J")
    assert (code, out) == (2, "")
    assert "\x1b" not in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--interval", "5"], "--interval needs --stream"),
        (["--stream", "--interval", "0.01"], "between 0.2 and 3600"),
        (["--stream", "--interval", "nan"], "between 0.2 and 3600"),
        (["--silence", "60"], "--silence needs --stream"),
        (["--stream", "--silence", "0"], "between 1 and 3600"),
    ],
)
def test_mistakes_get_a_sentence(capfd: pytest.CaptureFixture[str], words: list[str], sentence: str) -> None:
    code, out, err = run(capfd, *words)
    assert (code, out, FakeSampler.looks) == (2, "", 0)
    assert sentence in err


def test_all_is_for_root_and_operators(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    code, out, err = run(capfd, "--all")
    assert (code, out) == (2, "")
    assert "everybody's load on this node is for root" in err
    monkeypatch.setattr(callers, "is_operator", lambda uid, group: uid == 4242)
    assert len(json.loads(run(capfd, "--all")[1])["processes"]) == 2
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert json.loads(run(capfd, "--all")[1])["view"] == ""


def test_frames_are_short_lines_that_hold_the_same(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capfd, "--frames")
    assert code == 0
    joiner = Joiner()
    (found,) = [one for one in map(joiner.feed, out.splitlines(keepends=True)) if one is not None]
    assert found[0] == "n1"
    assert json.loads(found[1])["processes"][0]["pid"] == 1
    assert all(len(line) < 900 for line in out.splitlines())


def test_an_agent_with_a_fresh_snapshot_is_preferred(
    a_node: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    a_node.touch()
    monkeypatch.setattr(client, "ask", lambda place, timeout_s, everybody: snapshot(source="agent", measured_s=999.0))
    seen = json.loads(run(capfd)[1])
    assert (seen["source"], seen["measured_s"], len(seen["processes"])) == ("agent", 999.0, 1)
    assert FakeSampler.looks == 0


# ---- Streams: programs of their own ----

PROGRAM = (
    "import sys; from slurm_share.core import config; from slurm_share.core.settings import Settings; "
    "config.load = lambda: config.Configuration(Settings(agent_socket=''), {}); "
    "from slurm_share.cli.main import main; sys.exit(main(['sample', '--stream', '--interval', '0.2', *sys.argv[1:]]))"
)


@pytest.fixture
def begin() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Return a function that starts a stream with further options."""
    begun = []

    def begin(*words: str) -> subprocess.Popen[bytes]:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        begun.append(subprocess.Popen([sys.executable, "-c", PROGRAM, *words], **pipes))
        return begun[-1]

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


@pytest.fixture
def stream(begin: Callable[..., subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    return begin()


SILENCE_S = 5
"""On a loaded machine a second may pass between two lines of a test."""


@pytest.fixture
def quiet_stream(begin: Callable[..., subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Return a stream that ends after SILENCE_S without input."""
    return begin("--silence", str(SILENCE_S))


def read_lines(process: subprocess.Popen[bytes], count: int) -> list[dict[str, Any]]:
    return [json.loads(process.stdout.readline()) for _ in range(count)]


def test_a_stream_goes_on_until_its_input_ends(stream: subprocess.Popen[bytes]) -> None:
    first, second, third = read_lines(stream, 3)
    stream.stdin.write(b"hello\n")
    stream.stdin.flush()
    read_lines(stream, 1)
    stream.stdin.close()
    stream.stdin = None
    _, errors = stream.communicate(timeout=PATIENCE_S)
    assert (stream.returncode, errors) == (0, b"")
    assert first["measured_s"] < second["measured_s"] < third["measured_s"]
    assert first["cpu_cores"] is not None


def test_after_a_late_look_the_next_one_is_not_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would have no rates: two looks at the same moment have none. What was missed is not made up for."""
    now, waits, takes = [100.0], [], [0.35, 0.0, 0.17, 0.05, 0.05]

    @contextmanager
    def ends(_silence_s: float | None) -> Iterator[Callable[[float], bool]]:
        def over(seconds: float) -> bool:
            waits.append(round(seconds, 6))
            now[0] += seconds
            return not takes

        yield over

    def look() -> None:
        now[0] += takes.pop(0)

    monkeypatch.setattr(sample, "_ends", ends)
    monkeypatch.setattr(sample, "time", SimpleNamespace(monotonic=lambda: now[0]))
    sample._stream(look, 0.2, None)
    assert waits == [0.1, 0.2, 0.1, 0.15, 0.15]


def test_a_stream_goes_on_as_long_as_it_hears_of_somebody(quiet_stream: subprocess.Popen[bytes]) -> None:
    begun = time.monotonic()
    while time.monotonic() < begun + SILENCE_S + 1:
        read_lines(quiet_stream, 1)
        quiet_stream.stdin.write(b"\n")
        quiet_stream.stdin.flush()
    while quiet_stream.stdout.readline():
        pass
    assert quiet_stream.wait(PATIENCE_S) == 0


def test_a_stream_that_nobody_reads_ends_in_the_middle_of_a_line(quiet_stream: subprocess.Popen[bytes]) -> None:
    """A slurmstepd that has lost its srun keeps the input open and may not read the output."""
    assert quiet_stream.stdout is not None
    fcntl.fcntl(quiet_stream.stdout, fcntl.F_SETPIPE_SZ, 4096)  # full after a few snapshots
    assert quiet_stream.wait(PATIENCE_S) == 0


def test_a_stream_ends_on_sigterm(stream: subprocess.Popen[bytes]) -> None:
    read_lines(stream, 1)
    stream.send_signal(signal.SIGTERM)
    _, errors = stream.communicate(timeout=PATIENCE_S)
    assert (stream.returncode, errors) == (0, b"")


def test_a_stream_ends_when_nobody_reads_any_more(stream: subprocess.Popen[bytes]) -> None:
    read_lines(stream, 1)
    stream.stdout.close()
    assert select.select([stream.stderr], [], [], PATIENCE_S)[0]
    assert (stream.stderr.read(), stream.wait(PATIENCE_S)) == (b"", 0)


def test_a_stream_without_input_still_says_something() -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert (run.returncode, run.stdout.count(b"\n"), run.stderr) == (0, 1, b"")


def test_the_schema_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capfd, "--schema")
    assert (code, FakeSampler.looks) == (0, 0)
    assert json.loads(out)["$defs"]["Snapshot"]["properties"]["node"]


def test_the_shortest_pause_suits_gpm() -> None:
    from slurm_share.node.gpus.gpm import GPM_PAUSE_S

    assert GPM_PAUSE_S < watcher.BETWEEN_S <= sample.MIN_INTERVAL_S
