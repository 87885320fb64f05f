"""Packed runs in which tasks are paused, go on and move, and in which somebody is killed meanwhile.

The launcher, its guard and its watchdog are real, and so are the tasks. What is to be undone, the test says: a file
with a line such as `pause 1` takes the place of measured rates.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

import packed_machine
import pytest
from launches import alive, children, is_alive, read_proc, wait_for
from msgspec.structs import replace
from packed_machine import QUICK, Machine, Packed
from test_packed_runs import task

from slurm_share.packing import PackRequest, PackSettings, TaskSpec

MACHINE = (1, 40960, True)
TOLD = """
import os, sys
from slurm_share.packing.decision_records import Move, Pause, Resume
from slurm_share.packing.rules import undo
plan, measured = sys.argv[2] + "/plan", undo.actions
def told(view):
    try:
        os.rename(plan, plan + ".taken")
    except OSError:
        return measured(view)
    kinds = {"pause": Pause, "resume": Resume, "move": Move}
    found = []
    for line in open(plan + ".taken"):
        word, number = line.split()
        its = next(one for one in view.running if one.ask.task == int(number))
        found.append(kinds[word](task=int(number), gpu=its.gpus[0], why=f"{word} {number}, as told"))
    return found
undo.actions = told
"""
SETTINGS = replace(QUICK, policy="gain", undo="pause")


class Told(Packed):
    """A run that pauses what it is told to."""

    def __init__(self, machine: Machine, lines: list[str], settings: PackSettings = SETTINGS, **more: Any) -> None:
        pack = PackRequest(settings=settings, **more)
        super().__init__(machine, lines, settings=settings, pack=pack, specs=[TaskSpec(gpu_mem_mib=4096)] * len(lines))

    def begin(self) -> subprocess.Popen[str]:
        self.process = self.start()
        wait_for(lambda: all("on" in self.log(number) for number in range(self.run.tasks)))
        return self.process

    def tell(self, *lines: str) -> None:
        new = self.machine.tmp / "new"
        new.write_text("".join(f"{line}\n" for line in lines))
        new.rename(self.machine.tmp / "plan")
        wait_for(lambda: not (self.machine.tmp / "plan").exists())

    def pids(self, number: int | None = None) -> list[int]:
        """The living processes of a task, or of all."""
        pids = alive(f"LLSUB_DIR={self.folder}", "environ")
        return [pid for pid in pids if number is None or f"LLSUB_TASK={number}\0".encode() in read_proc(pid, "environ")]

    def states(self, number: int) -> list[str]:
        """The states of a task's processes as the kernel has them."""
        stats = [read_proc(pid, "stat") for pid in self.pids(number)]
        return [stat.rpartition(b")")[2].split()[0].decode() for stat in stats if stat]

    def is_stopped(self, number: int) -> bool:
        states = self.states(number)
        return bool(states) and set(states) == {"T"}

    def pause(self, number: int) -> None:
        self.tell(f"pause {number}")
        wait_for(lambda: self.is_stopped(number))

    def let_end(self, *numbers: int) -> None:
        for number in numbers:
            (self.machine.home / f"go.{number}").touch()

    def finish(self) -> tuple[int, str]:
        """Wait; exit code and all it said. Nothing of the run lives then, and nothing is stopped."""
        code, said = self.end(self.process)
        wait_for(lambda: not self.pids())
        wait_for(lambda: not alive(str(self.folder)))
        return code, said

    def finish_well(self) -> str:
        code, said = self.finish()
        assert code == 0, said
        return said


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_machine, "LAUNCH", TOLD + packed_machine.LAUNCH)


WAIT = "while ! test -e go.$LLSUB_TASK; do sleep 0.1; done"
"""A task's wait until `Told.let_end`. No test depends on how long something takes."""
TREE = f"echo on; ({WAIT}) & setsid bash -c '{WAIT}' & bash -mc '{WAIT}' & wait"
"""A shell that waits for children in its group, in a session of their own, and in a group of their own."""
COUNTS = f"echo on; {task('1G', 3600)} & {WAIT}; kill $!"
"""A task with a program on the GPU."""


def test_a_paused_task_stands_still_with_all_its_children_and_goes_on(machine: Machine) -> None:
    run = Told(machine, [COUNTS, TREE])
    run.begin()
    wait_for(lambda: len(run.states(1)) >= 5)
    run.pause(1)
    assert len(run.states(1)) >= 4  # its `sleep`s come and go
    run.let_end(1)
    time.sleep(1)  # ten times as long as it takes to see that it may end
    assert run.is_stopped(1)
    assert "T" not in run.states(0)
    run.tell("resume 1")
    wait_for(lambda: not run.states(1))
    run.let_end(0)
    said = run.finish_well()
    assert run.outcomes() == {0: ["done"], 1: ["done"]}
    assert ", as told" in said
    assert said.index("pause 1, as told") < said.index("resume 1, as told")


def test_two_take_turns_and_both_are_done(machine: Machine) -> None:
    run = Told(machine, [COUNTS] * 2, replace(SETTINGS, pause_max_s=2.0))
    process = run.begin()
    run.pause(1)
    wait_for(lambda: run.is_stopped(0) and not run.is_stopped(1))
    wait_for(lambda: run.is_stopped(1) and not run.is_stopped(0))
    process.send_signal(signal.SIGTERM)
    _, said = run.finish()
    assert "task 1 goes on after 2 s; task 0 is paused instead" in said
    assert "task 0 goes on after 2 s; task 1 is paused instead" in said


def test_a_paused_task_does_not_hang(machine: Machine) -> None:
    """--hang=kill ends tasks after 3 s without work; the task is paused for 5 s. Both use no GPU."""
    line = "echo on; while ! test -e go.$LLSUB_TASK; do echo more; sleep 0.1; done"
    run = Told(machine, [line, line], hang="kill", hang_s=3.0)
    run.begin()
    run.pause(1)
    time.sleep(5)
    run.tell("resume 1")
    run.let_end(0, 1)
    said = run.finish_well()
    assert "hang" not in said


PARENT = """
import signal, subprocess, sys
child = subprocess.Popen(
    ["bash", "-c", "trap 'echo told >>{notes}; exit 3' TERM; while :; do sleep 0.1; done"], process_group=0
)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: child.terminate())
print("on", flush=True)
sys.exit(child.wait())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda one: one.name)
def test_told_to_end_paused_tasks_are_told_too_and_take_it(machine: Machine, number: signal.Signals) -> None:
    """A child of the task, in its own group, records the signal."""
    notes, script = machine.home / "noted", machine.home / "parent.py"
    script.write_text(PARENT.format(notes=notes))
    run = Told(machine, ["trap '' TERM INT; echo on; while :; do sleep 0.1; done", f"exec {sys.executable} {script}"])
    process = run.begin()
    run.pause(1)
    process.send_signal(number)
    wait_for(notes.exists)
    for pid in run.pids(0):
        os.kill(pid, signal.SIGKILL)
    code, said = run.finish()
    assert code != 0
    assert notes.read_text() == "told\n"
    assert run.outcomes() == {0: ["unfinished"], 1: ["unfinished"]}, said


def processes(run: Told) -> tuple[int, int]:
    """Guard and loop."""
    return run.process.pid, wait_for(lambda: children(run.process.pid))[0]


def watchdogs(run: Told) -> list[int]:
    """The watchdog: a session leader with the launcher's command line that is neither guard nor loop."""
    pids = alive(f"LLSUB.1\0{run.machine.tmp}")
    return [pid for pid in pids if os.getsid(pid) == pid != run.process.pid]


@pytest.mark.parametrize("victims", ["loop", "guard", "loop and guard", "guard and loop"])
def test_whoever_is_killed_no_task_stays_stopped(machine: Machine, victims: str) -> None:
    line = "trap 'exit 3' TERM; echo on; while :; do sleep 0.1; done"
    run = Told(machine, [line, line])
    run.begin()
    run.pause(1)
    guard, loop = processes(run)
    wait_for(lambda: len(watchdogs(run)) == 1)
    pids = {"guard": guard, "loop": loop}
    if victims == "loop and guard":
        os.kill(guard, signal.SIGSTOP)  # it is not to see the loop's end
    for name in victims.split(" and "):
        os.kill(pids[name], signal.SIGKILL)
    wait_for(lambda: not run.states(1))
    wait_for(lambda: not watchdogs(run))
    for pid in run.pids():
        if victims in ("loop", "guard"):
            wait_for(lambda pid=pid: not is_alive(pid))
        else:  # nobody is left to end what was not paused
            with suppress(ProcessLookupError):  # the `sleep` of a task that has ended meanwhile
                os.kill(pid, signal.SIGKILL)
    run.finish()


def test_without_its_watchdog_a_run_pauses_no_more(machine: Machine) -> None:
    run = Told(machine, [COUNTS, COUNTS])
    run.begin()
    run.pause(1)
    (watchdog,) = wait_for(lambda: watchdogs(run))
    os.kill(watchdog, signal.SIGKILL)
    wait_for(lambda: not run.is_stopped(1))
    run.let_end(0, 1)
    said = run.finish_well()
    assert said.count("no further task is paused on") == 1


def test_a_killed_task_that_was_paused_leaves_nothing_stopped(machine: Machine) -> None:
    run = Told(machine, [COUNTS, TREE])
    run.begin()
    run.pause(1)
    (leader,) = [
        pid for pid in run.pids(1) if os.getsid(pid) == pid and b"echo on; (while" in read_proc(pid, "cmdline")
    ]
    os.kill(leader, signal.SIGKILL)
    run.let_end(0)
    run.finish()
    assert run.outcomes() == {0: ["done"], 1: ["signal"]}


def test_what_scontrol_resume_lets_go_on_is_stopped_again(machine: Machine) -> None:
    run = Told(machine, [COUNTS, COUNTS])
    process = run.begin()
    run.pause(1)
    guard, loop = processes(run)
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in [*run.pids(), guard, loop]:
            with suppress(ProcessLookupError):  # a task waits with one short sleep after the other
                os.kill(pid, number)
        time.sleep(0.2)
    wait_for(lambda: run.is_stopped(1) and not run.is_stopped(0))
    process.send_signal(signal.SIGTERM)
    run.finish()


SAVES = """echo on
state={home}/state.$LLSUB_TASK
trap 'echo $done >$state; exit {code}' USR1
done=$(cat $state 2>/dev/null || echo 0)
echo "begins at $done on $LLSUB_NEIGHBOURS"
while ! test -e go.1; do sleep 0.1; done=$((done + 1)); done
"""


@pytest.mark.parametrize("code", [0, 7])
def test_a_task_that_is_moved_goes_on_from_what_it_saved_and_no_try_is_counted(machine: Machine, code: int) -> None:
    script = machine.home / "saves.sh"
    script.write_text(SAVES.format(home=machine.home, code=code))
    run = Told(machine, [COUNTS, f"exec bash {script}"], checkpoint_signal=int(signal.SIGUSR1))
    run.begin()
    wait_for(lambda: "begins at" in run.log(1))
    time.sleep(0.5)  # a few of its steps
    run.tell("move 1")
    wait_for(lambda: (machine.home / "state.1").exists())
    wait_for(lambda: not run.states(1))
    run.let_end(0, 1)
    said = run.finish_well()
    assert run.outcomes() == {0: ["done"], 1: ["unfinished", "done"]}
    assert "task 1 moved away from GPU 0; it runs again" in said
    assert "begins at 0 on" in run.log(1)
    assert run.log(1).count("begins at") == 2
    assert run.log(1).count("begins at 0 ") == 1
    second = run.attempts()[1][1]
    neighbour = run.attempts()[0][0]
    ended = neighbour.started + neighbour.seconds - 0.002  # both are rounded to milliseconds
    assert second.started >= ended  # not beside it again


def test_a_task_that_does_not_end_when_it_is_moved_is_ended(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = "from slurm_share.triples.launcher import pack_signals\npack_signals.SAVE_S = pack_signals.GRACE_S = 1.0\n"
    monkeypatch.setattr(packed_machine, "LAUNCH", quick + packed_machine.LAUNCH)
    deaf = "trap '' TERM USR1; echo on; test $LLSUB_ATTEMPT = 2 || sleep 3600"
    run = Told(machine, [COUNTS, deaf], checkpoint_signal=int(signal.SIGUSR1))
    run.begin()
    run.tell("move 1")
    wait_for(lambda: not run.states(1))
    run.let_end(0)
    run.finish_well()
    assert run.outcomes()[1] == ["unfinished", "done"]
