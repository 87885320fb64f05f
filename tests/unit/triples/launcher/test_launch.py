"""The launcher outside Slurm, as a process: starts, results, and processes left behind."""

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launches import PATIENCE_S, QUIET, Launched, alive, children, read_proc, wait_for
from msgspec.structs import replace

from slurm_share.core import given_variables
from slurm_share.triples import kept_script, run_folder
from slurm_share.triples.launcher.loop import ONCE_S
from slurm_share.triples.records import Run, Triple
from slurm_share.triples.rules import submission

LAUNCH = [sys.executable, "-m", "slurm_share.cli.main", "launch"]
PATIENT = """
import sys
from slurm_share.triples.launcher import loop
loop.GRACE_S = 3600.0
from slurm_share.cli.main import main
sys.exit(main(["launch", *sys.argv[1:]]))
"""
"""A launcher that gives tasks an hour to end."""
HOST = os.uname().nodename.split(".")[0]


class Launch(Launched):
    """A run's folder and the launcher in it."""

    def __init__(self, folder, text, processes, lines=(), **more):
        script = folder / "task.sh"
        script.write_text(text)
        script.chmod(0o755)
        run = {"tasks": processes, "command": (str(script),), **more}
        run = Run(name="task.sh", cwd=str(folder), triple=Triple(1, processes), processes=processes, **run)
        super().__init__(folder / "LLSUB.1", run, lines)

    def start(self, *, before=(), stdout=subprocess.PIPE, **environ):
        """Begin; `before` are the words of a program that starts it."""
        self.process = self.launch([*before, *LAUNCH, str(self.folder)], {**QUIET, **environ}, stdout)
        return self

    def end(self):
        text, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, text

    def go(self, **environ):
        return self.start(**environ).end()

    def start_ready(self, **options):
        """Begin, and wait until each process has printed that it is ready."""
        self.start(**options)
        wait_for(lambda: len(self.logs()) == self.run.processes and all("ready" in log for log in self.logs()))
        return self

    def start_ready_one(self):
        """Begin, and wait until a process has printed that it is ready."""
        self.start()
        wait_for(lambda: any("ready" in log for log in self.logs()))
        return self

    def loop_pid(self):
        return wait_for(lambda: children(self.process.pid))[0]


@contextlib.contextmanager
def small_disk(folder, options):
    """A file system of its own at `folder`, gone afterwards."""
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: a small file system needs root")
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_every_process_has_its_number_its_cores_its_log(tmp_path):
    made = Launch(
        tmp_path, '#!/bin/bash\necho "$LLSUB_RANK/$LLSUB_SIZE $OMP_NUM_THREADS $(taskset -pc $$)"\necho err >&2\n', 4
    )
    code, text = made.go()
    assert code == 0, text
    for rank in range(4):
        first, second = made.log(rank).splitlines()
        assert first.startswith(f"{rank}/4 ")
        assert first.split()[-1] == made.results()[rank].cpus
        assert second == "err"
    assert "4 of 4 ranks done" in text
    summary = json.loads((made.folder / "summary.json").read_text())
    assert summary["done"] == 4
    assert [one["rank"] for one in summary["results"]] == [0, 1, 2, 3]


def test_a_failure_is_the_launchers_failure_and_says_which(tmp_path):
    text = "#!/bin/bash\ncase $LLSUB_RANK in 1) exit 7;; 2) kill -SEGV $$;; esac\n"
    made = Launch(tmp_path, text, 4)
    code, said = made.go()
    assert code == 1
    assert made.result_outcomes() == {0: "done", 1: "failed", 2: "signal", 3: "done"}
    assert "exit code 7" in said
    assert "SIGSEGV" in said
    assert "--resume" in said


def test_retries_count_and_stop_at_success(tmp_path):
    text = '#!/bin/bash\necho "attempt $LLSUB_ATTEMPT"\n[ $LLSUB_ATTEMPT = 3 ]\n'
    made = Launch(tmp_path, text, 2, retries=3)
    code, _ = made.go()
    assert code == 0
    assert made.outcomes() == {0: ["failed", "failed", "done"], 1: ["failed", "failed", "done"]}
    assert made.log(0).splitlines() == [
        "attempt 1", "--- task 0, attempt 2", "attempt 2", "--- task 0, attempt 3", "attempt 3",
    ]  # fmt: skip


RANK_AND_TASK = """#!/bin/bash
cd {folder}
echo >>starts.$LLSUB_TASK
echo "log of $LLSUB_RANK"
if [ $(wc -l <starts.$LLSUB_TASK) -le $(sed -n $((LLSUB_TASK + 1))p failures) ]; then
    [ $((LLSUB_TASK % 2)) = 0 ] && exit 3
    kill -KILL $$
fi
echo "$LLSUB_TASK $SLURM_SHARE_RANK $LLMR_RANK" >>out.$LLSUB_RANK
"""
"""Fails as often as the line of the file `failures` with its task's number says, then writes where its rank belongs."""


def test_a_retry_has_its_own_rank_on_another_ranks_seat(tmp_path):
    text = f"""#!/bin/bash
    until [ $LLSUB_RANK = 0 ] || [ -s {tmp_path}/out.$((LLSUB_RANK - 1)) ]; do sleep 0.05; done
    [ $LLSUB_TASK = 3 ] && [ $LLSUB_ATTEMPT = 1 ] && exit 1
    echo x >>{tmp_path}/out.$LLSUB_RANK
    """
    made = Launch(tmp_path, text, 4, retries=1)
    assert made.go()[0] == 0
    assert [(tmp_path / f"out.{rank}").read_text() for rank in range(4)] == ["x\n"] * 4
    assert [made.results()[task].rank for task in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("failures", "retries", "more"),
    [
        ([0, 3, 1], 1, {"logs": "rank"}),
        ([2, 0, 4], 2, {"kind": "llmapreduce", "distribution": "cyclic"}),
        ([1, 0], 0, {"distribution": "dynamic"}),
    ],
)
def test_each_ranks_output_is_written_by_that_rank_once(tmp_path, failures, retries, more):
    """The run is resumed until it ends well."""
    (tmp_path / "failures").write_text("".join(f"{times}\n" for times in failures))
    made = Launch(tmp_path, RANK_AND_TASK.format(folder=tmp_path), len(failures), retries=retries, **more)
    for _ in range(1 + max(failures)):
        code, _ = made.go()
        if code == 0:
            break
    assert code == 0
    for rank in range(len(failures)):
        third = f" {rank}" if more.get("kind") else " "
        assert (tmp_path / f"out.{rank}").read_text() == f"{rank} {rank}{third}\n"
        assert set(re.findall("log of .*", made.log(rank))) == {f"log of {rank}"}
    tried = made.attempts()
    assert {task: {one.rank for one in of_task} for task, of_task in tried.items()} == {
        task: {task} for task in range(len(failures))
    }
    assert {task: len(of_task) for task, of_task in tried.items()} == {n: 1 + times for n, times in enumerate(failures)}


@pytest.mark.parametrize(
    ("distribution", "logs"),
    [
        ("block", "rank"),
        ("dynamic", "task"),
        *(
            pytest.param(*one, marks=pytest.mark.weekly)
            for one in (("block", "task"), ("cyclic", "task"), ("cyclic", "rank"), ("dynamic", "rank"))
        ),
    ],
)
def test_more_tasks_than_processes_each_once(tmp_path, distribution, logs):
    made = Launch(
        tmp_path, f"#!/bin/bash\necho $LLSUB_TASK $LLSUB_RANK >>{tmp_path}/effects\necho out $LLSUB_TASK\n", 3,
        tasks=40, distribution=distribution, logs=logs,
    )  # fmt: skip
    code, text = made.go()
    assert code == 0, text
    assert {one.rank for one in made.results().values()} <= {0, 1, 2}
    effects = [line.split() for line in (tmp_path / "effects").read_text().splitlines()]
    assert sorted(int(task) for task, _ in effects) == list(range(40))
    assert {int(task): int(rank) for task, rank in effects} == {n: one.rank for n, one in made.results().items()}
    if logs == "task":
        assert all(made.log(task) == f"out {task}\n" for task in range(40))
    else:
        assert sum(made.log(rank).count("out ") for rank in range(3)) == 40
        assert "--- task 5\nout 5\n" in "".join(made.log(rank) for rank in range(3))


def test_the_lines_of_a_tasks_file_are_what_they_are_said_to_be(tmp_path):
    lines = ["[[ a == a* ]] && echo a; echo $LLSUB_TASK", "cat <(echo 'b  c')"]
    made = Launch(tmp_path, "", 1, tasks=2, task_kind="command", command=(), lines=lines)
    assert made.go()[0] == 0
    assert (made.log(0), made.log(1)) == ("a\n0\n", "b  c\n")
    script = "#!/bin/bash\nprintf '<%s>' \"$@\"\n"
    for kind, line, expected in (("input", "x  y", "<x  y>"), ("arguments", '["p q","r"]', "<p q><r>")):
        folder = tmp_path / kind
        folder.mkdir()
        made = Launch(folder, script, 1, task_kind=kind, lines=[line])
        assert made.go()[0] == 0
        assert made.log(0) == expected


def test_a_tasks_file_is_read_line_by_line_and_has_a_line_for_each_task(tmp_path):
    lines = ["printf 'a\rb'", "printf 'c\u2028d\x85'", "echo e"]
    made = Launch(tmp_path, "", 1, tasks=3, task_kind="command", command=())
    file = made.folder / "tasks"
    for data, why in ((b"echo a\n" * 2, "it has 2 lines, but the run has 3 tasks"), (b"echo a\n" * 4, "4 lines")):
        file.write_bytes(data)
        code, said = made.go()
        assert (code, why in said) == (1, True)
    file.write_bytes("".join(f"{line}\n" for line in lines).encode())
    assert made.go()[0] == 0
    logs = [file.read_bytes().decode() for file in sorted(made.node.glob("task.sh.log.*"))]
    assert logs == ["a\rb", "c\u2028d\x85", "e\n"]


def test_a_ranks_log_that_is_removed_is_there_again_for_its_next_task(tmp_path):
    text = "#!/bin/bash\necho out $LLSUB_TASK\n[ $LLSUB_TASK != 0 ] || rm LLSUB.1/p*/task.sh.log.0\n"
    made = Launch(tmp_path, text, 1, tasks=3, logs="rank")
    assert made.go()[0] == 0
    assert made.log(0) == "--- task 1\nout 1\n--- task 2\nout 2\n"


def test_a_line_that_no_program_can_be_given_is_its_tasks_failure_alone(tmp_path):
    made = Launch(tmp_path, "#!/bin/bash\necho $1\n", 1, tasks=2, task_kind="input", lines=["cut\0here", "whole"])
    code, said = made.go()
    assert code == 1
    assert made.result_outcomes() == {0: "not started", 1: "done"}
    assert "its line in the tasks file cannot be used" in said
    assert made.log(1) == "whole\n"


def test_a_task_finds_the_variables_of_its_job_and_its_own_number(tmp_path):
    text = "#!/bin/bash\nexec env -0\n"
    made = Launch(tmp_path, text, 1, tasks=2)
    asked = {**{f"X_{number:03}": f"{number} =" for number in range(200)}, "X_EMPTY": "", "X_ODD": "\udcff"}
    assert made.go(**asked)[0] == 0
    for task in range(2):
        words = (made.node / f"task.sh.log.{task}").read_bytes().decode(errors="surrogateescape").split("\0")[:-1]
        found = dict(word.split("=", 1) for word in words)
        assert {name: value for name, value in found.items() if name.startswith("X_")} == asked
        assert (found["LLSUB_TASK"], found["LLSUB_ATTEMPT"]) == (str(task), "1")


def test_what_slurm_share_set_for_its_own_task_is_not_the_users_and_is_recorded(tmp_path):
    """As with --local in a task: the launcher's numbers count, the user's stay, and the record knows which is which."""
    names = ("OMP_NUM_THREADS", "TF_FORCE_GPU_ALLOW_GROWTH", "OMP_PLACES", "LLSUB_DIR", "_SLURM_SHARE_GIVEN")
    made = Launch(tmp_path, "#!/bin/bash\n" + "".join(f'echo "${name}"\n' for name in names), 1)
    given = {"OMP_NUM_THREADS": "777", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    code, text = made.go(**given, OMP_PLACES="cores", _SLURM_SHARE_GIVEN=given_variables.render(7, given))
    assert code == 0, text
    threads, growth, places, folder, record = made.log(0).splitlines()
    assert threads != "777"
    assert (growth, places, folder) == ("true", "cores", str(made.folder))
    assert record.startswith("7 ")
    assert {f"OMP_NUM_THREADS={threads}", "TF_FORCE_GPU_ALLOW_GROWTH=true", "LLSUB_DIR"} <= set(record.split(" "))
    assert "OMP_PLACES" not in record


def test_what_is_done_is_not_done_again(tmp_path):
    text = f"#!/bin/bash\necho $LLSUB_TASK >>{tmp_path}/effects\n[ -e {tmp_path}/now ] || [ $((LLSUB_TASK % 2)) = 0 ]\n"
    made = Launch(tmp_path, text, 4, tasks=20, distribution="dynamic")
    assert made.go()[0] == 1
    (tmp_path / "now").touch()
    assert made.go()[0] == 0
    ran = list(map(int, (tmp_path / "effects").read_text().split()))
    assert sorted(ran) == sorted([*range(20), *range(1, 20, 2)])


def test_children_of_a_task_end_with_it(tmp_path):
    text = f"#!/bin/bash\nsleep 98{os.getpid()} &\nsetsid sleep 97{os.getpid()} &\nsleep 0.1\n"
    made = Launch(tmp_path, text, 2)
    code, _ = made.go()
    assert code == 0
    assert alive(f"98{os.getpid()}") == []
    assert alive(f"97{os.getpid()}") == []


THREAD = """#!/usr/bin/env python3
import ctypes, os, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
open("thread", "w").write(str(os.getpid()))
ctypes.CDLL(None).syscall(60, 0)
"""
"""Its main thread ends (exit(2) of x86-64, which ends one thread), and another one goes on."""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="NOT TESTED: the number of exit(2) is another one")
def test_a_process_whose_main_thread_has_ended_is_ended_with_the_run(tmp_path):
    """The kernel shows such a process as a zombie."""
    (tmp_path / "thread.py").write_text(THREAD)
    (tmp_path / "thread.py").chmod(0o755)
    made = Launch(tmp_path, "#!/bin/bash\nsetsid ./thread.py &\nuntil [ -s thread ]; do sleep 0.05; done\n", 1)
    code, said = made.go()
    assert code == 0, said
    assert not Path("/proc", (tmp_path / "thread").read_text()).exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_end_it_passes_it_on_and_says_what_is_unfinished(tmp_path, number):
    text = f"""#!/bin/bash
    case $LLSUB_RANK in
        0) trap 'echo saved; exit 0' TERM INT; echo ready; while :; do sleep 0.05; done;;
        1) trap - INT; echo ready; exec sleep 96{os.getpid()};;
    esac"""
    made = Launch(tmp_path, text, 2).start_ready()
    made.process.send_signal(number)
    code, said = made.end()
    assert code == (130 if number == signal.SIGINT else 1)
    assert "saved" in made.log(0)
    assert made.result_outcomes() == {0: "unfinished", 1: "unfinished"}
    assert "unfinished: 0-1" in said
    assert alive(f"96{os.getpid()}") == []


def test_usr1_reaches_the_tasks_and_ends_nothing(tmp_path):
    text = "#!/bin/bash\ntrap 'echo checkpoint; exit 0' USR1\necho ready\nwhile :; do sleep 0.05; done\n"
    made = Launch(tmp_path, text, 2).start_ready()
    made.process.send_signal(signal.SIGUSR1)
    code, _ = made.end()
    assert code == 0
    assert [made.log(n).splitlines()[-1] for n in (0, 1)] == ["checkpoint"] * 2


SAVES = """#!/bin/bash
[ -e {home}/saved.$LLSUB_TASK ] && exit 0
trap 'touch {home}/saved.$LLSUB_TASK; exit $((LLSUB_TASK == 0 ? 0 : 75))' USR1
echo ready
while :; do sleep 0.05; done
"""


def test_a_task_that_has_saved_its_state_goes_on_in_the_next_run(tmp_path):
    """Exit code 0 after the checkpoint signal too. No retry is used, no failure counted; what never began stays."""
    made = Launch(
        tmp_path, SAVES.format(home=tmp_path), 2, tasks=3, distribution="cyclic", retries=3,
        checkpoint_signal=int(signal.SIGUSR1), max_failures=1,
    ).start_ready()  # fmt: skip
    made.process.send_signal(signal.SIGUSR1)
    code, said = made.end()
    assert code == 75, said
    assert made.outcomes() == {0: ["saved"], 1: ["saved"]}
    assert "no further task starts" in said
    assert "told to save their state and end: 0-1" in said
    assert "saved, not finished: 0-1" in said
    assert "unfinished: 2" in said
    assert "stopped by --max-failures" not in said
    summary = json.loads((made.folder / "summary.json").read_text())
    assert (summary["failed"], summary["saved"], summary["unfinished"]) == ([], [0, 1], [2])
    (tmp_path / "saved.2").touch()
    code, said = made.go()
    assert code == 0, said
    assert made.result_outcomes() == {0: "done", 1: "done", 2: "done"}


TURNS = """#!/bin/bash
echo $LLSUB_TASK >>starts
n=$(cat state.$LLSUB_TASK 2>/dev/null || echo 0)
trap told=1 USR1
while :; do
    n=$((n + 1)); echo $n >>counted.$LLSUB_TASK
    sleep 0.05
    [ "$told" ] && echo $n >state.$LLSUB_TASK && exit 75
    both=$(sort starts | uniq -c | awk '$1 >= 2' | wc -l)
    [ "$told" ] || [ "${both:-0}" -lt 6 ] || exit 0
done
"""
"""Counts until each of six tasks has had two turns."""


def test_six_tasks_in_two_processes_take_turns(tmp_path):
    """Each has its next turn after all others, counts on without a gap, and no retry pays."""
    made = Launch(
        tmp_path, TURNS, 2, tasks=6, distribution="dynamic", checkpoint_signal=int(signal.SIGUSR1), slot_s=1.0
    )
    code, said = made.go()
    assert code == 0, said
    starts = [int(line) for line in (tmp_path / "starts").read_text().split()]
    # Two tasks may end at once; so a task's next turn comes after those of at least four of the five others.
    for place, task in enumerate(starts[:6]):
        later = starts[place + 1 :]
        assert len(set(later[: later.index(task)])) >= 4, starts
    for task in range(6):
        counted = [int(line) for line in (tmp_path / f"counted.{task}").read_text().split()]
        assert counted == list(range(1, len(counted) + 1))
        assert {*made.outcomes()[task][:-1]} == {"saved"}
    turns = json.loads((made.folder / "summary.json").read_text())["turns"]
    assert turns["turns"] == len(starts) - 6
    assert "turns (--slot): tasks gave way" in said
    assert "share of the running time by task: 0: " in said


def test_a_task_that_does_not_save_at_the_end_of_its_turn_keeps_its_next_one(tmp_path):
    """It runs again, since its signal ended it, and is not told again: it would never come to its end."""
    text = "#!/bin/bash\nif ((LLSUB_TASK)) || [ -e told ]; then sleep 0.6; exit 0; fi\ntouch told\nsleep 600\n"
    made = Launch(tmp_path, text, 1, tasks=2, distribution="dynamic", checkpoint_signal=int(signal.SIGUSR1), slot_s=0.2)
    code, said = made.go()
    assert code == 0, said
    assert made.outcomes()[0] == ["unfinished", "done"]
    assert "told to save their state and to go to the end of the queue (--slot): 0" in said


HASTY = PATIENT.replace("GRACE_S = 3600.0", "GRACE_S = loop.TERM_S + 1.0")
"""A launcher that tells tasks to end a second after it told them to save their state."""


def test_told_to_end_tasks_first_get_the_checkpoint_signal(tmp_path):
    """SIGTERM is the only notice of a preemption. What does not end then is told to end, as without the option."""
    text = """#!/bin/bash
    case $LLSUB_TASK in
        0) trap 'exit 0' USR1; trap 'exit 9' TERM;;
        1) trap '' USR1; trap 'echo told to end; exit 0' TERM;;
    esac
    echo ready
    while :; do sleep 0.05; done
    """
    made = Launch(tmp_path, text, 2, checkpoint_signal=int(signal.SIGUSR1))
    made.process = made.launch([sys.executable, "-c", HASTY, str(made.folder)], QUIET, subprocess.PIPE)
    wait_for(lambda: len(made.logs()) == 2 and all("ready" in log for log in made.logs()))
    made.process.send_signal(signal.SIGTERM)
    code, said = made.end()
    assert made.result_outcomes() == {0: "saved", 1: "unfinished"}, said
    assert "told to end" in made.log(1)
    assert "SIGTERM: no further task starts" in said
    assert code == 75


def test_a_preempted_task_has_its_grace_also_where_slurm_answers_after_it_was_told_to_end(tmp_path):
    told, go = tmp_path / "told", tmp_path / "go"
    answer = json.loads((Path(__file__).parents[3] / "data" / "slurm-26.05" / "squeue.json").read_text())
    job = answer["jobs"][0]
    now = int(time.time())
    for name, value in (("end_time", now + 3600), ("preempt_time", now)):
        job[name] = {"set": True, "infinite": False, "number": value}
    (tmp_path / "answer").write_text(json.dumps(answer))
    squeue = tmp_path / "bin" / "squeue"
    squeue.parent.mkdir()
    squeue.write_text(f"#!/bin/bash\nuntil [ -e {told} ]; do sleep 0.05; done\ncat {tmp_path}/answer\n")
    squeue.chmod(0o755)
    text = f"""#!/bin/bash
    trap : USR1
    trap 'touch {told}' TERM
    echo ready
    until [ -e {go} ]; do sleep 0.05; done
    exit 75
    """
    made = Launch(tmp_path, text, 1, checkpoint_signal=int(signal.SIGUSR1))
    environ = {**QUIET, "PATH": f"{squeue.parent}:{os.environ['PATH']}", "SLURM_JOB_ID": str(job["job_id"])}
    with (tmp_path / "said").open("w") as said:
        made.process = made.launch([sys.executable, "-c", HASTY, str(made.folder)], environ, said)
    wait_for(lambda: len(made.logs()) == 1 and "ready" in made.log(0))
    made.process.send_signal(signal.SIGTERM)
    wait_for(lambda: "the job is preempted by another one" in (tmp_path / "said").read_text())
    time.sleep(7)  # HASTY kills after 6 s what has no grace
    go.touch()
    made.end()
    assert made.result_outcomes() == {0: "saved"}, (tmp_path / "said").read_text()


def test_exit_code_75_is_saved_whenever_it_comes_and_a_failure_counts_more(tmp_path):
    made = Launch(tmp_path, "#!/bin/bash\nexit $((LLSUB_TASK == 0 ? 75 : 3))\n", 2, retries=1)
    code, said = made.go()
    assert code == 1, said
    assert made.outcomes() == {0: ["saved"], 1: ["failed", "failed"]}
    assert "saved, not finished: exit code 75" in said
    assert "saved, not finished: 0" in said


def test_a_task_that_does_not_know_the_checkpoint_signal_is_unfinished(tmp_path):
    text = "#!/bin/bash\necho ready\nsleep 600\n"
    made = Launch(tmp_path, text, 1, checkpoint_signal=int(signal.SIGUSR1)).start_ready()
    made.process.send_signal(signal.SIGUSR1)
    code, said = made.end()
    assert (code, made.outcomes()) == (1, {0: ["unfinished"]})
    assert "told to save its state and end, ended by SIGUSR1" in said


def test_a_task_that_gets_the_checkpoint_signal_before_its_launcher_has_not_failed(tmp_path):
    """slurmstepd signals every process of a step, children first; 138: a shell's code for its program's SIGUSR1."""
    text = "#!/bin/bash\n((LLSUB_TASK)) && exit 138\nkill -USR1 $$\n"
    made = Launch(tmp_path, text, 2, retries=1, checkpoint_signal=int(signal.SIGUSR1))
    code, said = made.go()
    assert (code, made.outcomes()) == (1, {0: ["unfinished"], 1: ["unfinished"]}), said
    assert "failed" not in said


def test_a_loop_that_is_killed_leaves_nothing_running_and_no_result_unknown(tmp_path):
    """Kill the loop amid 400 short tasks and resume: every task runs at least once, recorded ones exactly once."""
    text = f"#!/bin/bash\necho $LLSUB_TASK >>{tmp_path}/effects\n"
    made = Launch(tmp_path, text, 4, tasks=400, distribution="dynamic").start()
    loop = made.loop_pid()
    wait_for(lambda: (tmp_path / "effects").exists() and len((tmp_path / "effects").read_text().split()) > 50)
    os.kill(loop, signal.SIGKILL)
    code, said = made.end()
    assert code == 1
    assert "SIGKILL" in said
    assert alive(str(tmp_path / "task.sh")) == []
    ran = (tmp_path / "effects").read_text().split()
    done = {task for task, one in made.results().items() if one.outcome == "done"}
    ended_early = {task for task, one in made.results().items() if one.outcome != "done"}
    assert len(done) < 400
    assert {int(task) for task in ran} <= done | ended_early
    assert made.go()[0] == 0
    counts = {task: (tmp_path / "effects").read_text().split().count(str(task)) for task in range(400)}
    assert all(counts[task] == 1 for task in done)
    assert all(counts[task] >= 1 for task in range(400))


def test_a_task_that_ended_before_its_killed_loop_had_its_pid_is_not_run_again(tmp_path):
    """A lease delays the execution of the script until the loop is stopped. The task then ends under another name."""
    made = Launch(tmp_path, f"#!/usr/bin/env bash\necho >>{tmp_path}/effects\n", 1)
    script, before = os.open(tmp_path / "task.sh", os.O_RDONLY), signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        fcntl.fcntl(script, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        made.start()
        loop = made.loop_pid()
        starting = wait_for(lambda: children(loop))[0]
        os.kill(loop, signal.SIGSTOP)
        wait_for(lambda: b") T " in read_proc(loop, "stat"))
        fcntl.fcntl(script, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        wait_for(lambda: b") Z " in read_proc(starting, "stat"))
        os.kill(loop, signal.SIGKILL)
    finally:
        os.close(script)
        signal.signal(signal.SIGIO, before)
    code, said = made.end()
    assert (code, "SIGKILL" in said) == (1, True)
    assert made.outcomes() == {0: ["done"]}
    assert made.go()[0] == 0
    assert (tmp_path / "effects").read_text() == "\n"


def test_a_guard_that_is_killed_takes_all_with_it(tmp_path):
    made = Launch(tmp_path, f"#!/bin/bash\necho ready\nexec sleep 95{os.getpid()}\n", 2).start()
    loop = made.loop_pid()
    wait_for(lambda: len(alive(f"95{os.getpid()}")) == 2)
    os.kill(made.process.pid, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{loop}").exists())
    made.process.communicate()
    assert alive(f"95{os.getpid()}") == []
    assert {one.outcome for one in made.results().values()} == {"unfinished"}


def test_a_child_that_is_killed_is_the_only_one_that_suffers(tmp_path):
    text = f"#!/bin/bash\n[ $LLSUB_RANK = 1 ] && [ $LLSUB_ATTEMPT = 1 ] && exec sleep 94{os.getpid()}\nexit 0\n"
    made = Launch(tmp_path, text, 3, retries=1).start()
    os.kill(wait_for(lambda: alive(f"94{os.getpid()}"))[0], signal.SIGKILL)
    code, _ = made.end()
    assert code == 0
    assert made.outcomes() == {0: ["done"], 1: ["signal", "done"], 2: ["done"]}


def test_a_stop_and_a_continue_change_nothing(tmp_path):
    made = Launch(tmp_path, "#!/bin/bash\nsleep 1.2\n", 2, tasks=4, distribution="dynamic").start()
    loop = made.loop_pid()
    for _ in range(4):
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in (made.process.pid, loop):
                os.kill(pid, number)
            time.sleep(0.25)
    code, said = made.end()
    assert code == 0, said


def test_short_tasks_do_not_drown_a_request_to_end(tmp_path):
    made = Launch(tmp_path, "", 8, command=("/bin/true",), tasks=20_000, distribution="dynamic", logs="rank").start()
    wait_for(lambda: list(made.folder.glob("p*/results.jsonl")) and len(made.results()) > 100)
    made.process.send_signal(signal.SIGINT)
    code, _ = made.end()
    assert code == 130
    assert len(made.results()) < 15_000


def test_a_second_interrupt_ends_what_tasks_have_left_at_once(tmp_path, monkeypatch):
    """Background jobs of a shell ignore SIGINT."""
    monkeypatch.setitem(globals(), "LAUNCH", [sys.executable, "-c", PATIENT])
    mark = f"94{os.getpid()}"
    made = Launch(tmp_path, f"#!/bin/bash\nsleep {mark} &\necho ready\nwait\n", 1).start_ready()
    wait_for(lambda: alive(mark))  # the shell's child ignores SIGINT from here on
    made.process.send_signal(signal.SIGINT)
    wait_for(made.results)
    time.sleep(ONCE_S)
    made.process.send_signal(signal.SIGINT)
    wait_for(lambda: not alive(mark))
    code, _ = made.end()
    assert code == 130


@pytest.mark.parametrize("broken", ["closed pipe", "/dev/full"])
def test_a_log_that_takes_nothing_more_costs_no_task(tmp_path, broken):
    """The job's log is a pipe without a reader when SIGTERM comes."""
    if broken == "closed pipe":
        reader, out = os.pipe()
        os.close(reader)
    else:
        out = os.open(broken, os.O_WRONLY)
    made = Launch(tmp_path, f"#!/bin/bash\necho ready\nexec sleep 93{os.getpid()}\n", 2).start_ready(stdout=out)
    os.close(out)
    made.process.send_signal(signal.SIGTERM)
    assert made.process.wait(timeout=PATIENCE_S) == 1
    assert alive(f"93{os.getpid()}") == []
    assert {one.outcome for one in made.results().values()} == {"unfinished"}


def test_two_launchers_of_one_run_are_one_too_many(tmp_path):
    text = f"#!/bin/bash\necho $LLSUB_TASK >>{tmp_path}/effects\nuntil [ -e {tmp_path}/go ]; do sleep 0.05; done\n"
    made = Launch(tmp_path, text, 2, tasks=10).start()
    wait_for(lambda: (tmp_path / "effects").exists())
    second = subprocess.run([*LAUNCH, made.folder], capture_output=True, text=True, check=False, env=QUIET)
    assert second.returncode == 1
    assert "another launcher of this run is active" in second.stderr
    (tmp_path / "go").touch()
    assert made.end()[0] == 0
    assert sorted(map(int, (tmp_path / "effects").read_text().split())) == list(range(10))


def test_the_folder_of_another_run_is_refused(tmp_path):
    """A job has the path of its run's folder, which may have been renamed since."""
    made = Launch(tmp_path, "#!/bin/bash\n", 1, id="1f")
    for words in ([], ["--summary"]):
        for folder, why in ((made.folder, "this is another run"), (tmp_path / "gone", "renamed, moved or removed")):
            argv = [*LAUNCH, *words, "--run", "2e", folder]
            found = subprocess.run(argv, capture_output=True, text=True, check=False, env=QUIET)
            assert (found.returncode, why in found.stderr, "Traceback" in found.stderr) == (1, True, False)
    assert sorted(one.name for one in made.folder.iterdir()) == ["run.json", "tasks"]
    assert subprocess.run([*LAUNCH, "--run", "1f", made.folder], check=False, env=QUIET).returncode == 0


def test_a_run_that_is_renamed_while_it_runs_writes_nothing_into_the_one_that_has_its_name(tmp_path):
    text = "#!/bin/bash\necho ready\nuntil [ -e go ]; do sleep 0.02; done\necho $LLSUB_TASK >>ran\n"
    made = Launch(tmp_path, text, 1, tasks=3, id="1f").start_ready_one()
    made.folder.rename(tmp_path / "expA")
    node = made.folder / next((tmp_path / "expA").glob("p0-*")).name
    node.mkdir(parents=True)
    (made.folder / "run.json").write_bytes(run_folder.render_run(replace(made.run, id="2e")))
    (tmp_path / "go").touch()
    code, said = made.end()
    assert (code, "was renamed, moved or removed while it ran: no further task starts" in said) == (1, True)
    assert (list(node.iterdir()), (tmp_path / "ran").read_text()) == ([], "0\n")
    made.folder = tmp_path / "expA"
    assert made.result_outcomes() == {0: "done"}
    assert made.go()[0] == 0
    assert (tmp_path / "ran").read_text() == "0\n1\n2\n"


def keep(made):
    """Keep the script of a run as at submission."""
    run, data = kept_script.read(made.run)
    (made.folder / "kept").mkdir()
    (made.folder / "kept" / "task.sh").write_bytes(data)
    (made.folder / "kept" / "task.sh").chmod(0o755)
    made.write(run)
    return made


def test_a_script_that_is_edited_while_its_tasks_run_is_run_as_it_was_submitted(tmp_path):
    text = "#!/bin/bash\n[ $LLSUB_TASK != 1 ] || printf '#!/bin/bash\\necho new\\n' >task.sh\necho old $0\n"
    made = keep(Launch(tmp_path, text, 1, tasks=3, logs="rank"))
    code, said = made.go()
    assert code == 0
    own, kept = f"old {tmp_path}/task.sh\n", f"old {made.folder}/kept/task.sh\n"
    assert made.log(0) == f"--- task 0\n{own}--- task 1\n{own}--- task 2\n{kept}"
    assert said.count(f"{tmp_path}/task.sh is not as it was at submission") == 1
    shutil.rmtree(made.node)
    (tmp_path / "task.sh").unlink()
    assert made.go()[0] == 0
    assert made.log(0).count(kept) == 3
    (made.folder / "kept" / "task.sh").write_text("#!/bin/bash\n")
    code, said = made.go()
    assert (code, f"llsub --resume {made.folder} --script=current runs the present one" in said) == (1, True)


def test_a_python_script_that_is_kept_imports_the_modules_beside_its_original(tmp_path):
    made = keep(Launch(tmp_path, f"#!{sys.executable}\nimport beside\nprint('old', beside.A)\n", 1))
    (tmp_path / "beside.py").write_text("A = 7\n")
    (tmp_path / "task.sh").write_text("#!/bin/sh\n")
    assert made.go()[0] == 0
    assert made.log(0) == "old 7\n"


def test_programs_and_large_files_are_not_kept(tmp_path):
    made = Launch(tmp_path, "#!/bin/bash\n", 1)
    assert kept_script.read(made.run)[1] == b"#!/bin/bash\n"
    for data in (b"\x7fELF\0", b"#!/bin/sh\n" + b"x" * kept_script.MOST_BYTES):
        (tmp_path / "task.sh").write_bytes(data)
        assert kept_script.read(made.run) == (replace(made.run, script_hash=""), None)


def test_a_run_whose_folder_is_removed_leaves_no_process(tmp_path):
    made = Launch(tmp_path, f"#!/bin/bash\necho ready\nexec sleep 92{os.getpid()}\n", 2).start_ready()
    loop = made.loop_pid()
    shutil.rmtree(made.folder)
    os.kill(loop, signal.SIGKILL)
    code, _ = made.end()
    assert code == 1
    assert alive(f"92{os.getpid()}") == []


def test_a_chain_of_processes_that_run_away_is_overtaken(tmp_path):
    """Each process starts the next in a new session and ends, so no list of processes ever shows two of them."""
    chain = tmp_path / f"chain{os.getpid()}"
    chain.write_text(f"#!/bin/bash\n[ $1 -gt 0 ] && setsid {chain} $(($1 - 1)) &\nsleep 0.02\n")
    chain.chmod(0o755)
    made = Launch(tmp_path, f"#!/bin/bash\nsetsid {chain} 2000 &\nsleep 0.3\n", 1)
    assert made.go()[0] == 0
    time.sleep(0.3)
    assert alive(str(chain)) == []


def test_the_last_line_of_a_log_that_goes_through_tee_is_there(tmp_path):
    text = "#!/bin/bash\nexec > >(sleep 0.2; cat)\necho the last line\n"
    made = Launch(tmp_path, text, 4)
    assert made.go()[0] == 0
    assert [made.log(rank) for rank in range(4)] == ["the last line\n"] * 4


def test_what_may_pass_is_waited_for(tmp_path):
    with small_disk(tmp_path / "small", "nr_inodes=64") as small:
        made = Launch(small, "#!/bin/bash\nsleep 0.3\n", 1, tasks=6).start()
        wait_for(lambda: list(made.folder.glob("p*/task.sh.log.0")))
        fillers = []
        with contextlib.suppress(OSError):
            while True:
                fillers.append(small / f"filler{len(fillers)}")
                fillers[-1].touch()
        time.sleep(2)
        assert len(list(made.folder.glob("p*/task.sh.log.*"))) < 6
        for filler in fillers:
            filler.unlink(missing_ok=True)
        code, said = made.end()
        assert code == 0, said
        assert "cannot start a task now (No space left on device)" in said
        assert set(map(tuple, made.outcomes().values())) == {("done",)}


def test_sigusr1_in_the_first_and_last_moments_ends_no_launcher(tmp_path):
    """Some tasks die of SIGUSR1 before they can ignore it; these run again."""
    made = Launch(tmp_path, "#!/bin/bash\ntrap '' USR1\nsleep 0.7\n", 2, retries=100)
    script = made.folder / "launch.sh"
    script.write_text(submission.local_script(sys.executable))
    with subprocess.Popen(["/bin/bash", script], stdout=subprocess.PIPE, text=True, env=QUIET) as launcher:
        status = Path(f"/proc/{launcher.pid}/status")

        def ignores():
            words = dict(line.split(":", 1) for line in status.read_text().splitlines() if line.startswith("Sig"))
            return int(words["SigIgn"], 16) >> (signal.SIGUSR1 - 1) & 1

        wait_for(ignores)
        sent = 0
        while launcher.poll() is None:
            launcher.send_signal(signal.SIGUSR1)
            sent += 1
            time.sleep(0.001)
        said = launcher.stdout.read()
    assert launcher.returncode == 0, said
    assert sent > 100
    assert "2 of 2 ranks done" in said


def test_a_task_ignores_and_blocks_no_signal(tmp_path):
    """Signals 32 and 33 belong to libc."""
    made = Launch(tmp_path, "", 1, command=("/bin/cat", "/proc/self/status"))
    assert made.start(before=["nohup", "env", "--ignore-signal=USR1,USR2"]).end()[0] == 0
    words = dict(line.split(":\t", 1) for line in made.log(0).splitlines() if line.startswith("Sig") and "\t" in line)
    assert int(words["SigBlk"], 16) == 0
    assert int(words["SigIgn"], 16) & ~(0b11 << 31) == 0


def test_a_word_said_twice_at_once_is_passed_on_once(tmp_path):
    text = "#!/bin/bash\nn=0\ntrap 'n=$((n + 1)); echo $n' USR1\necho ready\nfor i in $(seq 30); do sleep 0.05; done\n"
    made = Launch(tmp_path, text, 1).start_ready()
    loop = made.loop_pid()
    os.kill(made.process.pid, signal.SIGUSR1)
    os.kill(loop, signal.SIGUSR1)
    assert made.end()[0] == 0
    assert [line for line in made.log(0).splitlines() if line.isdigit()] == ["1"]


def test_a_fifo_in_a_logs_place_holds_up_nobody(tmp_path):
    made = Launch(tmp_path, "#!/bin/bash\n", 2)
    folder = made.folder / f"p0-p1_{HOST}"
    folder.mkdir()
    os.mkfifo(folder / "task.sh.log.0")
    code, _ = made.go()
    assert code == 1
    assert made.result_outcomes() == {0: "not started", 1: "done"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("#!/no/such/shell -e\n", "its first line names /no/such/shell, which does not exist"),
        ("#!/bin/sh\r\ntrue\r\n", "its lines have Windows line ends"),
        ("#!/bin/sh\n", "Text file busy (a process has it open for writing)"),
        ("", "Permission denied"),
        ("gone", "No such file or directory"),
    ],
)
def test_a_program_that_the_kernel_refuses_is_blamed_and_not_its_log(tmp_path, text, why):
    made = Launch(tmp_path, text, 1)
    script = tmp_path / "task.sh"
    with script.open("a") if "busy" in why else contextlib.nullcontext():
        if not text.startswith("#"):
            script.unlink()
        if not text:
            script.mkdir()
        code, said = made.go()
    assert (code, "Traceback" in said) == (1, False)
    assert (made.results()[0].outcome, made.results()[0].code) == ("not started", None)
    assert made.results()[0].why.startswith(f"{script}: ")
    assert why in made.results()[0].why


def test_a_node_that_can_start_nothing_does_not_empty_the_queue(tmp_path):
    """It gives up after 100 failed starts in a row."""
    made = Launch(tmp_path, "#!/bin/bash\n", 2, tasks=1000, distribution="dynamic")
    (tmp_path / "task.sh").unlink()
    code, said = made.go()
    assert code == 1
    assert len(made.results()) in (100, 101)
    assert "100 tasks in a row could not be started" in said


@contextlib.contextmanager
def cgroup(controller, files):
    """A cgroup with these values in its files: its folder, and the words before a program that is to be in it."""
    parents = (Path("/sys/fs/cgroup", controller), Path("/sys/fs/cgroup"))
    group = next((one for one in parents if one.is_dir()), Path("/no")) / f"test-launch-{os.getpid()}"
    try:
        group.mkdir()
        for name, value in files.items():
            (group / name).write_text(value)
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"NOT TESTED: no cgroup of {controller} can be made ({error})")
    try:
        yield group, ["/bin/sh", "-c", f'echo $$ >{group}/cgroup.procs; exec "$@"', "sh"]
        wait_for(lambda: (group / "cgroup.procs").read_text() == "")
    finally:
        group.rmdir()


@pytest.mark.parametrize(
    ("most", "why"), [(1, "start the launcher"), (2, "make the launcher's threads"), (3, "threads")]
)
def test_a_launcher_without_room_for_its_own_processes_says_so(tmp_path, most, why):
    made = Launch(tmp_path, "", 2, command=("/bin/true",))
    with cgroup("pids", {"pids.max": str(most)}) as (_, before):
        code, said = made.start(before=before).end()
    assert code == 1
    assert f"{why}: you have reached the limit of processes there" in said
    assert "Traceback" not in said
    assert "defect" not in said
    assert made.go()[0] == 0


def test_with_room_for_one_task_at_a_time_all_are_done(tmp_path):
    """The limit allows guard, loop, sampler, one starter thread and one task."""
    made = Launch(tmp_path, "", 2, tasks=3, command=("/bin/sleep", "0.1"), bind=False)
    with cgroup("pids", {"pids.max": "5"}) as (_, before):
        code, said = made.start(before=before).end()
    assert code == 0, said
    assert made.outcomes() == {task: ["done"] for task in range(3)}
    assert said.count("cannot start a task now (Resource temporarily unavailable)") == 1


def test_cores_that_the_job_loses_cost_no_task_and_are_not_recorded(tmp_path):
    first, last = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
    if first == last:
        pytest.skip("NOT TESTED: it takes two cores")
    text = "#!/bin/sh\ntaskset -pc $$\nuntil [ -e lost ]; do sleep 0.05; done\n"
    made = Launch(tmp_path, text, 2, tasks=4, distribution="cyclic")
    with cgroup("cpuset", {"cpuset.mems": "0", "cpuset.cpus": f"{first},{last}"}) as (group, before):
        made.start(before=before)
        wait_for(lambda: [log for log in made.folder.glob("p*/*.log.*") if log.read_text()][1:])
        (group / "cpuset.cpus").write_text(str(first))
        (tmp_path / "lost").touch()
        code, said = made.end()
    assert code == 0, said
    assert said.count(f"the job has lost the cores {last} of") == 1
    assert [made.results()[task].cpus for task in range(4)] == [str(first), str(last), str(first), ""]
    assert made.log(3).split()[-1] == str(first)


def test_a_script_without_its_first_line_is_run_by_the_shell(tmp_path):
    made = Launch(tmp_path, "echo plain $LLSUB_RANK\n", 1)
    assert made.go()[0] == 0
    assert made.log(0) == "plain 0\n"


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path):
    made = Launch(tmp_path, "#!/bin/bash\n", 1)
    (made.folder / f"p0-p0_{HOST}").write_text("in the way")
    code, said = made.go()
    assert code != 0
    assert "cannot be written" in said
    assert "Traceback" not in said


def test_a_full_disk_is_said(tmp_path):
    with small_disk(tmp_path / "small", "size=64k") as small:
        made = Launch(small, "#!/bin/bash\nhead -c 100000 /dev/zero\nsleep 1.5\nexit 0\n", 2)
        code, said = made.go()
        assert "may be incomplete" in said
        assert "could not be written" in said or {one.outcome for one in made.results().values()} == {"done"}
        assert code in (0, 1)
        assert "Traceback" not in said


def test_a_folder_without_a_run_is_a_sentence(tmp_path):
    done = subprocess.run([*LAUNCH, tmp_path], capture_output=True, text=True, check=False, env=QUIET)
    assert done.returncode == 1
    assert "not the folder of a run" in done.stderr


# ---- Runs that only fail -------------------------------------------------------------------------------------------


def test_so_many_failures_stop_a_run_and_the_rest_can_be_resumed(tmp_path):
    text = "#!/bin/sh\n[ $LLSUB_TASK = 1 ] && exec sleep 1\n[ -e fixed ] || exit 3\n"
    made = Launch(tmp_path, text, 2, tasks=50, distribution="dynamic", max_failures=3, max_failures_written="3")
    code, said = made.go()
    assert code == 1
    assert "3 tasks have failed, and --max-failures 3 stops the run: no further task starts on" in said
    assert "failed: 0,2-3\n" in said
    assert "unfinished: 4-49\n" in said
    assert "stopped by --max-failures 3\n" in said
    assert made.outcomes() == {0: ["failed"], 1: ["done"], 2: ["failed"], 3: ["failed"]}
    (tmp_path / "fixed").touch()
    code, said = made.go()
    assert (code, "50 of 50 tasks done" in said, "stopped" in said) == (0, True, False)


def test_failures_of_an_instant_slow_a_run_down(tmp_path):
    made = Launch(tmp_path, "#!/bin/sh\nexit 3\n", 2, tasks=5000, distribution="dynamic").start()
    wait_for(lambda: len(made.results()) > 24)
    made.process.terminate()
    code, said = made.end()
    assert code == 1
    assert len(made.results()) < 100
    assert said.count("22 tasks in a row failed in less than 1 s") == 1


def test_a_summary_without_room_costs_neither_sentence_nor_exit_code(tmp_path):
    with small_disk(tmp_path / "disk", "size=300k") as disk:
        made = Launch(disk, "#!/bin/sh\n[ $LLSUB_TASK != 7 ]\n", 2, tasks=600, distribution="dynamic", logs="rank")
        code, said = made.go()
        assert code == 1
        assert "599 of 600 tasks done" in said
        assert "failed: 7\n" in said
        assert f"{made.folder}/summary.json cannot be written (No space left on device); the outcome of every" in said
        assert "Traceback" not in said
        assert list(made.folder.glob("summary*")) == []
