"""Packed runs: the launcher outside Slurm, with real programs on simulated GPUs, with MPS daemons of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from packing_values import is_replayable

from slurm_share.packing import journal
from slurm_share.packing.decision_records import Start
from slurm_share.packing.records import PackRequest, PackSettings, TaskSpec
from slurm_share.triples import explain_groups, explain_task, run_folder
from slurm_share.triples.records import Ended, Run, Triple

HOME = Path(__file__).resolve().parents[4] / "packaging" / "demo" / "simgpu"
TASK = str(HOME / "simgpu-task")
PATIENCE_S = 120
QUICK = PackSettings(flat_after_s=2.0, settle_s=0.5, settle_max_s=3.0)
"""What waits for minutes on a real node, waits for seconds here."""
HARD = PackSettings(flat_after_s=2.0, settle_s=0.5, settle_max_s=3.0, guard="hard")

pytestmark = [
    pytest.mark.skipif(
        Path("/proc/driver/nvidia/version").exists(),
        reason="NOT TESTED: a real NVIDIA driver is loaded, beside which the simulated GPU refuses to work",
    ),
    pytest.mark.skipif(
        shutil.which("make") is None or shutil.which("cc") is None,
        reason="NOT TESTED: the simulated NVML is built with make and cc, and they are not here",
    ),
]

LAUNCH = """
import sys
from pathlib import Path
from slurm_share.cli import launch
from slurm_share.core.paths import Paths
from slurm_share.core.settings import Settings
launch._settings = lambda: Settings(simulated_gpus=True, mps_control=sys.argv[3])
launch.Paths = lambda: Paths(tmp=Path(sys.argv[2]))
from slurm_share.cli.main import main
if len(sys.argv) > 4:  # a clock that somebody sets back an hour every second time that it is asked
    import itertools, time
    real, turn = time.time, itertools.count()
    time.time = lambda: real() - 3600 * (next(turn) % 2)
sys.exit(main(["launch", sys.argv[1]]))
"""
CONTROL = """#!/bin/bash
export PATH={home}:$PATH SIMGPU_STATE={state}
exec {home}/nvidia-cuda-mps-control "$@"
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    subprocess.run(["make", "-s", "-C", HOME, f"BUILD={folder}"], check=True)
    return folder


class Machine:
    """Simulated GPUs with a state folder of their own, and the launchers on them. Its folder has a short name, since
    that of an MPS daemon's socket has at most 108 bytes."""

    def __init__(self, library: Path, gpus: int, memory_mib: int, *, mps: bool) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="p", dir="/tmp"))
        self.state = self.home / "state"
        self.tmp = self.home / "tmp"
        self.tmp.mkdir()
        self.control = self.home / "control"
        if mps:
            self.control.write_text(CONTROL.format(home=HOME, state=self.state))
            self.control.chmod(0o755)
        self.environ = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.home),
            "SIMGPU_STATE": str(self.state),
            "LD_LIBRARY_PATH": str(library),
            "CUDA_VISIBLE_DEVICES": ",".join(str(number) for number in range(gpus)),
        }
        words = [HOME / "simgpu-init", str(gpus), "--memory-mib", str(memory_mib)]
        subprocess.run(words, env=self.environ, check=True, stdout=subprocess.DEVNULL)
        self.started: list[subprocess.Popen[str]] = []

    def run(self, lines: list[str], **more: Any) -> Packed:
        return Packed(self, lines, **more)

    def bookings(self) -> list[str]:
        return [str(path) for path in self.tmp.glob("slurm-share-*/bookings/*/*")]

    def close(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()
        for pid in alive(str(self.home)):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.home, ignore_errors=True)


class Packed:
    """A packed run and its launcher."""

    def __init__(
        self,
        machine: Machine,
        lines: list[str],
        *,
        at_once: int = 8,
        specs: list[TaskSpec] | None = None,
        pack: PackRequest | None = None,
        settings: PackSettings = QUICK,
        **more: Any,
    ) -> None:
        self.machine = machine
        self.folder = machine.home / f"LLSUB.{len(list(machine.home.glob('LLSUB.*'))) + 1}"
        self.folder.mkdir()
        self.what = Run(
            name="mix",
            cwd=str(machine.home),
            triple=Triple(1, at_once),
            processes=at_once,
            tasks=len(lines),
            command=(),
            task_kind="command",
            distribution="dynamic",
            bind=False,
            pack=pack or PackRequest(settings=settings),
            retries=settings.retries,
            **more,
        )
        (self.folder / run_folder.RUN).write_bytes(run_folder.render_run(self.what))
        (self.folder / run_folder.TASKS).write_text("".join(f"{line}\n" for line in lines))
        if specs:
            (self.folder / run_folder.SPECS).write_bytes(run_folder.render_specs(specs))

    def start(self, *more: str, **environ: str) -> subprocess.Popen[str]:
        machine = self.machine
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, self.folder, machine.tmp, machine.control, *more],
            env={**machine.environ, **environ},
            cwd=machine.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        machine.started.append(process)
        return process

    def go(self, *more: str, **environ: str) -> tuple[int, str]:
        process = self.start(*more, **environ)
        text, _ = process.communicate(timeout=PATIENCE_S)
        return process.returncode, text

    @property
    def node(self) -> Path:
        return next(self.folder.glob("p*_*"))

    def ended(self) -> list[Ended]:
        return list(run_folder.parse_results((self.node / run_folder.RESULTS).read_bytes()))

    def attempts(self) -> dict[int, list[Ended]]:
        found: dict[int, list[Ended]] = {}
        for one in self.ended():
            found.setdefault(one.task, []).append(one)
        return found

    def outcomes(self) -> dict[int, list[str]]:
        return {task: [one.outcome for one in tried] for task, tried in sorted(self.attempts().items())}

    def log(self, task: int) -> str:
        return (self.node / f"mix.log.{task}").read_text()

    def decisions(self) -> list[journal.Entry]:
        return list(journal.read_journal((self.node / journal.DECISIONS).read_bytes()))


def alive(mark: str) -> list[int]:
    """Pids of living processes whose command line or environment holds `mark`, but ours."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                text = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
                state = (folder / "stat").read_bytes().rpartition(b")")[2].split()[0]
            except OSError:
                continue
            if mark.encode() in text and state != b"Z":
                found.append(int(folder.name))
    return found


def wait_for(what: Callable[[], object], timeout: float = PATIENCE_S) -> Any:
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        found = what()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen")


@pytest.fixture
def machine(library: Path) -> Iterator[Machine]:
    made = Machine(library, 2, 40960, mps=True)
    yield made
    made.close()


@pytest.fixture
def without_mps(library: Path) -> Iterator[Machine]:
    made = Machine(library, 2, 40960, mps=False)
    yield made
    made.close()


def task(memory: str, seconds: float = 1.0, *more: str) -> str:
    """A command that holds so much memory for so long."""
    return " ".join([TASK, "--memory", memory, "--seconds", str(seconds), *more])


def test_unlike_tasks_share_the_gpus_by_their_size_and_the_journal_replays(machine: Machine) -> None:
    sizes = [3, 20, 9, 14, 2, 30, 1, 5]
    specs = [TaskSpec(gpu_mem_mib=size * 1024 + 512) for size in sizes]
    run = machine.run([task(f"{size}G") for size in sizes], specs=specs)
    code, said = run.go()
    assert code == 0, said
    assert run.outcomes() == {number: ["done"] for number in range(8)}
    assert {one.gpu for one in run.ended()} == {0, 1}
    for one in run.ended():
        assert one.gpu_cap_mib == one.gpu_booked_mib == sizes[one.task] * 1024 + 512
        assert one.gpu_uuid is not None
        assert f"gpu {one.gpu_uuid}" in run.log(one.task)
        assert "mps server" in run.log(one.task)
    assert is_replayable(run.decisions())
    for entry in run.decisions():
        for gpu in entry.view.gpus:
            there = [one for one in entry.view.running if gpu.facts.uuid in one.gpus]
            assert sum(one.reserved_mib for one in there) <= 40960 - gpu.facts.reserve_mib
    assert machine.bookings() in ([], [path for path in machine.bookings() if path.endswith("lock")])
    assert "memory booked" in said
    assert "slurm-share pack explain LLSUB.1 TASK" in said


def test_estimate_far_too_small_kills_that_task_alone_and_it_runs_again_with_more(machine: Machine) -> None:
    lines = [task("9G", 1), *(task("5G", 2.5) for _ in range(6))]
    specs = [TaskSpec(gpu_mem_mib=4096), *(TaskSpec(gpu_mem_mib=5632) for _ in range(6))]
    run = machine.run(lines, specs=specs, settings=HARD)
    code, said = run.go()
    assert code == 0, said
    outcomes = run.outcomes()
    assert outcomes[0][0] == "gpu memory"
    assert outcomes[0][-1] == "done"
    assert all(outcomes[number] == ["done"] for number in range(1, 7))
    first, *again = run.attempts()[0]
    assert first.gpu_cap_mib == 4096
    assert "--gpu-mem=4096M is too small" in first.why
    needs = [one.gpu_needs_mib for one in run.attempts()[0][:-1]]
    assert needs == sorted(set(needs))
    assert all(later.gpu_booked_mib > 4096 for later in again)


def test_estimate_far_too_large_shrinks_when_its_memory_is_flat(machine: Machine) -> None:
    lines = [task("2G", 9), task("2G", 9.5), task("2G", 9.2), task("30G", 1)]
    run = machine.run(lines, specs=[TaskSpec(), TaskSpec(), TaskSpec(), TaskSpec(gpu_mem_mib=31 * 1024)])
    code, said = run.go()
    assert code == 0, said
    last = {}
    for entry in run.decisions():
        for one in entry.view.running:
            last[one.ask.task] = one.reserved_mib
    assert min(last[number] for number in (0, 1, 2)) < 6000
    assert run.outcomes()[3] == ["done"]
    assert run.attempts()[3][0].started < min(run.attempts()[number][0].started + 9 for number in (0, 1))


def test_memory_that_grows_late_beyond_its_cap_is_its_own_death_and_learned(machine: Machine) -> None:
    lines = [task("4G", 4, "--peak", "12G"), task("8G", 5)]
    specs = [TaskSpec(gpu_mem_mib=5120), TaskSpec(gpu_mem_mib=9216)]
    run = machine.run(lines, specs=specs, settings=HARD)
    code, said = run.go()
    assert code == 0, said
    assert run.outcomes()[1] == ["done"]
    assert run.outcomes()[0][0] == "gpu memory"
    assert run.outcomes()[0][-1] == "done"


def test_out_of_memory_for_ever_ends_after_a_few_attempts_with_a_sentence(machine: Machine) -> None:
    run = machine.run([task("60G", 1), task("2G", 1)])
    code, said = run.go()
    assert code == 1
    outcomes = run.outcomes()
    assert outcomes[1] == ["done"]
    assert set(outcomes[0]) == {"gpu memory"}
    assert len(outcomes[0]) <= 4
    assert "the largest GPU of this node gives" in run.attempts()[0][-1].why
    assert "--resume" in said
    text = "\n".join(explain_task(run.folder, 0))
    assert "starts on GPU" in text
    assert "to itself" in text
    assert text.count("out of GPU memory") == len(outcomes[0])


def test_host_memory_words_are_an_ordinary_failure(machine: Machine) -> None:
    lines = [
        "echo 'MemoryError: Unable to allocate 12.0 GiB for an array'; exit 1",
        "echo 'RuntimeError: MPS backend out of memory (MPS allocated: 5.43 GB)'; exit 1",
        "echo 'RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB'; exit 0",
        "echo 'RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB'; exit 1",
    ]
    run = machine.run(lines)
    code, _ = run.go()
    assert code == 1
    outcomes = run.outcomes()
    assert outcomes[0] == ["failed"]
    assert outcomes[1] == ["failed"]
    assert outcomes[2] == ["done"]
    assert set(outcomes[3]) == {"gpu memory"}


def test_several_processes_of_a_task_and_one_that_leaves_its_group_count_together(machine: Machine) -> None:
    line = f"{task('2G', 4)} & {task('3G', 4)} & {task('1G', 4)}; wait"
    run = machine.run([line], specs=[TaskSpec(gpu_mem_mib=8192)])
    code, said = run.go()
    assert code == 0, said
    assert run.ended()[0].peak_gpu_mib == 6 * 1024
    seen = [one for entry in run.decisions() for one in entry.view.running]
    assert not seen or max(one.clients for one in seen) <= 3


def test_memory_of_a_process_that_left_its_session_is_not_booked_again(machine: Machine) -> None:
    lines = [f"setsid {task('30G', 6)} </dev/null >/dev/null 2>&1 & sleep 3", task("25G", 1), task("25G", 1.1)]
    specs = [TaskSpec(gpu_mem_mib=31 * 1024), TaskSpec(gpu_mem_mib=26 * 1024), TaskSpec(gpu_mem_mib=26 * 1024)]
    run = machine.run(lines, specs=specs)
    code, said = run.go()
    assert code == 0, said
    assert run.outcomes() == {0: ["done"], 1: ["done"], 2: ["done"]}


def test_the_mps_daemon_dies_and_the_tasks_go_on_elsewhere_free_of_charge(machine: Machine) -> None:
    lines = [task("10G", 4) for _ in range(4)]
    run = machine.run(lines, specs=[TaskSpec(gpu_mem_mib=11 * 1024)] * 4)
    process = run.start()
    wait_for(lambda: sum("mps server" in path.read_text() for path in run.folder.glob("p*/mix.log.*")) == 4)
    pipe = run.log(0)
    uuid = pipe.partition("gpu ")[2].partition(",")[0]
    daemons = [
        pid
        for pid in alive(str(machine.tmp))
        if (b"mps-" in Path(f"/proc/{pid}/cmdline").read_bytes())
        and f"/{uuid[4:12]}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    ]
    assert daemons
    for pid in daemons:
        os.kill(pid, signal.SIGKILL)
    said, _ = process.communicate(timeout=PATIENCE_S)
    outcomes = run.outcomes()
    assert all(tried[-1] == "done" for tried in outcomes.values()), said
    gone = [one for one in run.ended() if one.outcome == "disturbed"]
    assert {one.gpu_uuid for one in gone} == {uuid}
    assert "no further task starts on GPU" in said


def test_tasks_that_a_lost_gpu_ends_are_free_even_before_the_next_sample_and_the_rest_runs_elsewhere(
    machine: Machine,
) -> None:
    short = "for i in $(seq 40); do sleep 0.1; [ -e DOWN ] && case $CUDA_VISIBLE_DEVICES in *UUID*) exit 1;; esac; done"
    down = machine.home / "down"
    uuid = next(
        text.partition("=")[2] for text in (machine.state / "gpu0").read_text().splitlines() if text.startswith("uuid=")
    )
    short = short.replace("DOWN", str(down)).replace("UUID", uuid)
    run = machine.run([short] * 24, specs=[TaskSpec(gpu_mem_mib=4096)] * 24, at_once=8)
    process = run.start()
    wait_for(lambda: sum(1 for _ in run.folder.glob("p*/mix.log.*")) >= 8)
    time.sleep(0.6)
    with (machine.state / "gpu0").open("a") as file:
        file.write("lost=1\n")
    down.touch()
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    assert all(tried[-1] == "done" for tried in run.outcomes().values())
    assert "failed" not in {outcome for tried in run.outcomes().values() for outcome in tried}


def test_a_task_that_only_prints_that_its_gpu_is_lost_fails_and_all_others_are_done(machine: Machine) -> None:
    lines = ["echo GPU is lost; exit 1", *("sleep 1.2" for _ in range(9))]
    run = machine.run(lines, specs=[TaskSpec(gpu_mem_mib=4096)] * 10, at_once=4)
    code, said = run.go()
    assert code == 1
    outcomes = run.outcomes()
    assert outcomes[0] == ["disturbed", "failed"]
    assert all(outcomes[number] == ["done"] for number in range(1, 10)), said
    assert {one.gpu for one in run.ended() if one.started > run.attempts()[0][1].started + 0.5} == {0, 1}


def test_memory_of_others_counts_from_the_first_start_on(machine: Machine) -> None:
    notebook = subprocess.Popen([*task("30G", 60).split(), "--device", "0"], env=machine.environ)
    try:
        wait_for(lambda: any((machine.state / "clients").iterdir()))
        time.sleep(0.3)
        run = machine.run([task("15G", 1) for _ in range(4)], specs=[TaskSpec(gpu_mem_mib=16000)] * 4)
        code, said = run.go()
    finally:
        notebook.kill()
        notebook.wait()
    assert code == 0, said
    assert run.outcomes() == {number: ["done"] for number in range(4)}
    assert {one.gpu for one in run.ended()} == {1}


def test_a_task_killed_by_hand_is_no_memory_failure(machine: Machine) -> None:
    run = machine.run([task("38G", 60), task("1G", 1)], specs=[TaskSpec(gpu_mem_mib=39000), TaskSpec(gpu_mem_mib=1500)])
    process = run.start()
    wait_for(
        lambda: run.folder.glob("p*/mix.log.0") and any("pid" in p.read_text() for p in run.folder.glob("p*/mix.log.0"))
    )
    time.sleep(1.5)
    os.kill(int(run.log(0).partition("pid ")[2].partition(",")[0]), signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)
    assert run.outcomes()[0] in (["signal"], ["failed"])
    assert run.outcomes()[1] == ["done"]


def test_cancelled_the_tasks_are_told_to_end_and_a_resume_runs_each_once(machine: Machine) -> None:
    run = machine.run([task("3G", 3) for _ in range(6)], at_once=3)
    process = run.start()
    wait_for(lambda: sum(1 for _ in run.folder.glob("p*/mix.log.*")) >= 2)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode != 0
    assert "unfinished" in said
    assert [path for path in machine.bookings() if not path.endswith("lock")] == []
    code, said = run.go()
    assert code == 0, said
    outcomes = run.outcomes()
    assert set(outcomes) == set(range(6))
    assert all(tried[-1] == "done" and tried.count("done") == 1 for tried in outcomes.values())


@pytest.mark.parametrize("victim", ["loop", "guard"])
def test_a_killed_launcher_leaves_no_booking_and_a_resume_runs_each_task_once(machine: Machine, victim: str) -> None:
    run = machine.run([f"echo x >>{machine.home}/ran.{n}; {task('3G', 2)}" for n in range(6)], at_once=3)
    process = run.start()
    wait_for(lambda: sum("gpu" in path.read_text() for path in run.folder.glob("p*/mix.log.*")) >= 2)
    loop = wait_for(lambda: Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())[0]
    os.kill(int(loop) if victim == "loop" else process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)
    wait_for(lambda: not [path for path in machine.bookings() if not path.endswith("lock")])
    wait_for(lambda: not alive(f"LLSUB_DIR={run.folder}"))
    for one in run.ended():
        assert one.gpu_uuid is None or f"gpu {one.gpu_uuid}" in run.log(one.task)
    code, said = run.go()
    assert code == 0, said
    outcomes = run.outcomes()
    assert set(outcomes) == set(range(6))
    assert all(tried[-1] == "done" and tried.count("done") == 1 for tried in outcomes.values())


def test_what_an_earlier_job_has_shown_is_taken_over(machine: Machine) -> None:
    none = PackSettings(flat_after_s=2.0, settle_s=0.5, settle_max_s=3.0, guard="hard", oom_retries=0)
    run = machine.run([task("9G", 1)], specs=[TaskSpec(gpu_mem_mib=4096)], settings=none)
    assert run.go()[0] == 1
    assert run.outcomes() == {0: ["gpu memory"]}
    run.go()
    first, second = run.attempts()[0]
    assert second.gpu_booked_mib >= first.gpu_needs_mib > 4096


def test_without_mps_booking_alone_places_tasks_and_that_is_said_once(without_mps: Machine) -> None:
    sizes = [12, 25, 14, 20, 3]
    run = without_mps.run(
        [task(f"{size}G", 1.5) for size in sizes], specs=[TaskSpec(gpu_mem_mib=size * 1024 + 400) for size in sizes]
    )
    code, said = run.go()
    assert code == 0, said
    assert run.outcomes() == {number: ["done"] for number in range(5)}
    assert said.count("no memory cap is enforced on GPU 0-1") == 1
    assert {one.gpu_cap_mib for one in run.ended()} == {None}


def test_neighbours_of_a_task_that_outgrows_its_booking_run_again_free_of_charge(library: Path) -> None:
    machine = Machine(library, 1, 40960, mps=False)
    try:
        none = PackSettings(flat_after_s=2.0, settle_s=0.5, settle_max_s=3.0, oom_retries=0)
        lines = [task("4G", 8, "--peak", "30G"), task("6G", 13, "--peak", "14G")]
        specs = [TaskSpec(gpu_mem_mib=5000), TaskSpec(gpu_mem_mib=15000)]
        run = machine.run(lines, specs=specs, settings=none, at_once=2)
        code, said = run.go()
        assert run.outcomes() == {0: ["done"], 1: ["disturbed", "done"]}
        assert code == 0, said
        assert "task 0 outgrew its 4.9 GiB (30.0)" in run.attempts()[1][0].why
        assert "0 own, 1 by a neighbour" in said
    finally:
        machine.close()


def test_a_task_of_two_gpus_has_both_to_itself_and_no_mps(machine: Machine) -> None:
    both = f"{task('30G', 2)} & {task('30G', 2, '--device', '1')}; wait"
    line = f"echo $CUDA_VISIBLE_DEVICES $LLSUB_NEIGHBOURS; {both}"
    run = machine.run([task("5G", 1.5), line, task("5G", 1)], specs=[TaskSpec(), TaskSpec(gpus=2), TaskSpec()])
    code, said = run.go()
    assert code == 0, said
    words = run.log(1)
    assert words.splitlines()[0].count("GPU-") == 2
    assert "mps off" in words
    two = run.attempts()[1][0]
    for number in (0, 2):
        one = run.attempts()[number][0]
        assert one.started + one.seconds <= two.started + 0.2 or one.started >= two.started + two.seconds - 0.2


def test_a_task_of_two_gpus_that_take_mps_clients_only_is_not_started(machine: Machine) -> None:
    for index in (0, 1):
        with (machine.state / f"gpu{index}").open("a") as file:
            file.write("compute_mode=3\n")
    run = machine.run([task("5G", 1), task("5G", 1)], specs=[TaskSpec(gpus=2), TaskSpec()])
    code, said = run.go()
    assert code == 1
    assert run.outcomes() == {0: ["not started"], 1: ["done"]}
    assert "GPU 0-1 of" in run.attempts()[0][0].why
    assert "compute_mode = default" in said


def test_a_task_that_may_hang_is_named_and_goes_on(machine: Machine) -> None:
    line = "kill -STOP $$ & sleep 0; sleep 6"
    run = machine.run([line], pack=PackRequest(settings=QUICK, hang_s=2.0))
    run.start()
    process = machine.started[-1]
    time.sleep(4)
    for pid in alive(f"LLSUB_DIR={run.folder}"):
        os.kill(pid, signal.SIGCONT)
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    assert said.count("task 0 may hang") == 1


def test_a_task_finds_what_is_booked_for_it_and_frameworks_follow(machine: Machine) -> None:
    line = "echo $LLSUB_GPU_MEM_MIB $LLSUB_NEIGHBOURS $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT $XLA_PYTHON_CLIENT_MEM_FRACTION"
    run = machine.run([line], specs=[TaskSpec(gpu_mem_mib=4096)])
    assert run.go()[0] == 0
    assert run.log(0).split() == ["4096", "0", "0=4096M", "0.100"]


def test_two_launchers_at_once_never_book_more_than_a_gpu_has(machine: Machine) -> None:
    runs = [
        machine.run([task("15G", 1.5) for _ in range(4)], specs=[TaskSpec(gpu_mem_mib=16000)] * 4) for _ in range(2)
    ]
    processes = [run.start() for run in runs]
    for process in processes:
        said, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, said
    at: list[tuple[float, int, int | None]] = []
    for run in runs:
        assert all(tried == ["done"] for tried in run.outcomes().values())
        for one in run.ended():
            at += [(one.started, 1, one.gpu), (one.started + one.seconds - 0.05, -1, one.gpu)]
    for gpu in (0, 1):
        count = 0
        for _, change, where in sorted(at):
            count += change if where == gpu else 0
            assert count <= 2


def test_a_hung_task_is_ended_where_that_was_asked(machine: Machine) -> None:
    pack = PackRequest(settings=QUICK, hang="kill", hang_s=2.0)
    run = machine.run(["kill -STOP $$", task("1G", 1)], pack=pack)
    assert run.go()[0] == 1
    assert run.outcomes() == {0: ["failed"], 1: ["done"]}
    assert "ended by --hang=kill" in run.attempts()[0][0].why


def test_the_history_knows_the_size_for_the_next_run(machine: Machine) -> None:
    lines = [task("7G", 3)]
    first = machine.run(lines)
    assert first.go()[0] == 0
    second = machine.run(lines)
    assert second.go()[0] == 0
    assert first.ended()[0].gpu_booked_mib > 18000
    assert 7 * 1024 <= second.ended()[0].gpu_booked_mib < 12000
    text = "".join(path.read_text() for path in (machine.home / ".local/state/slurm-share/tasks").glob("*.jsonl"))
    assert "simgpu-task" not in text
    assert json.loads(text.splitlines()[0])["peak_mib"] == 7 * 1024


def test_the_learned_model_books_a_task_of_which_nothing_is_known_by_the_layers_beside_its_script(
    machine: Machine,
) -> None:
    layers = {"convolutions": 53, "linears": 1, "norms": 53, "dropouts": 0, "depth": 126, "function": "relu"}
    model = {"parameters": 25557032, "activations": 31839720, "batch": 32, **layers}
    (machine.home / "train.model.json").write_text(json.dumps(model))
    (machine.home / "train.sh").write_text(f"exec {task('5G')}\n")
    run = machine.run(["sh train.sh"], pack=PackRequest(settings=QUICK, estimate="learned"))
    code, said = run.go()
    assert code == 0, said
    (one,) = run.ended()
    assert one.gpu_booked_mib is not None
    assert 6000 < one.gpu_booked_mib < 10_000


def test_a_clock_that_is_set_back_changes_no_decision(machine: Machine) -> None:
    run = machine.run([task("5G", 2) for _ in range(5)], specs=[TaskSpec(gpu_mem_mib=15000)] * 5)
    code, said = run.go("clock")
    assert code == 0, said
    assert all(tried == ["done"] for tried in run.outcomes().values())
    entries = run.decisions()
    times = [entry.view.now_s for entry in entries]
    assert times == sorted(times)
    assert times[-1] < 60
    assert is_replayable(entries)


def test_a_full_disk_for_journal_and_history_is_no_failure_of_the_run(machine: Machine) -> None:
    (machine.home / ".local").write_text("no folder")
    run = machine.run([task("5G", 3) for _ in range(3)])
    code, said = run.go()
    assert code == 0, said
    assert said.count("are not kept for the next run") == 1


def test_a_program_that_cannot_be_executed_is_tried_again_as_often_as_retries_say(machine: Machine) -> None:
    again = PackSettings(flat_after_s=2.0, settle_s=0.5, settle_max_s=3.0, retries=1)
    run = machine.run(["a", "b"], settings=again)
    what = run.what
    broken = json.loads(run_folder.render_run(what))
    broken |= {"task_kind": "input", "command": ["/nonexistent/program"]}
    (run.folder / run_folder.RUN).write_text(json.dumps(broken))
    assert run.go()[0] == 1
    assert run.outcomes() == {0: ["not started"] * 2, 1: ["not started"] * 2}


def test_speeds_are_measured_learned_predicted_and_explained(machine: Machine) -> None:
    kinds = [f"{TASK} --memory 3G --load {load} --work 8 --progress 0.2" for load in (70, 60)]
    sized = [TaskSpec(gpu_mem_mib=4096)]
    pack = PackRequest(settings=PackSettings(policy="gain", flat_after_s=2.0, settle_s=0.5, settle_max_s=3.0))
    code, said = machine.run(kinds, specs=sized * 2, pack=pack, rate_window_s=1.0).go()
    assert code == 0, said
    assert "STP" not in said
    history = machine.home / ".local/state/slurm-share/tasks"
    (file,) = history.glob("????-??.jsonl")
    alone = [json.loads(line) for line in file.read_text().splitlines()]
    assert all(one["rate_source"] == "progress" and one["rate_alone"] > 0 for one in alone)
    run = machine.run(kinds * 2, specs=sized * 4, pack=pack, rate_window_s=1.0)
    code, said = run.go()
    assert code == 0, said
    whys = [one.why for entry in run.decisions() for one in entry.actions if isinstance(one, Start)]
    assert sum("both keep ~" in why for why in whys) == 2
    assert "x its time alone (ANTT), GPUs did" in said
    assert f"slurm-share pack explain {run.folder.name} lists every group" in said
    groups = list(explain_groups(run.folder))
    assert groups
    assert all("of one at a time" in line for line in groups)
    pairs = [json.loads(line) for line in (history / "pairs.jsonl").read_text().splitlines()]
    assert {one["a"] for one in pairs} | {one["b"] for one in pairs} <= {one["exact"] for one in alone}
    for pair in pairs:
        assert 1.0 < pair["stp"] < 2.1
    assert is_replayable(run.decisions())
