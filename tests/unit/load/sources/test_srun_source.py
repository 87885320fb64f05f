"""The source of ordinary users, with an srun that acts: frames, noise, silence, refusals, exit codes."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from agents import until
from msgspec.structs import replace

from slurm_share.core.errors import UsageError
from slurm_share.core.process import stream
from slurm_share.load.rules.steps import SurveyStep
from slurm_share.load.snapshot import GpuLoad, Snapshot, render
from slurm_share.load.sources import frames, srun
from slurm_share.load.sources.base import SourceRequest
from slurm_share.load.sources.srun import SrunSource
from slurm_share.load.sources.srun_command import SILENCE_S, srun_argv, srun_environment, why_ended
from slurm_share.slurm.records import QueuedJob

SRUN = """\
#!/bin/sh
# A stand-in for srun: notes how it was called, says what job-N.out has (of a node: job-N-NODE.out), then does what
# job-N.do says; without one it goes on until its input ends, and notes that too.
for word in "$@"; do
    case $word in --jobid=*) job=${word#*=} ;; --nodelist=*) nodes=${word#*=} ;; esac
done
cd FOLDER || exit 1
echo "$*" >> calls
env > "env-$job"
cat "job-$job-$nodes.out" 2>/dev/null || cat "job-$job.out" 2>/dev/null
if [ -e "job-$job.do" ]; then . "./job-$job.do"; fi
cat > /dev/null
echo "$job" >> ended
"""
WAIT_S = 120.0
"""For what comes at once."""


def a_job(job_id, nodes, where=(), **other):
    values = {"states": ("RUNNING",), "start": 1, "uid": os.getuid(), **other}
    return QueuedJob(job_id=job_id, name="x", user="me", partition="gpu", nodes=nodes, gpu_indexes=where, **values)


def a_snapshot(node, minor=0, taken=1.0):
    gpu = GpuLoad(uuid=f"GPU-{minor}", index=0, minor=minor, name="A")
    return Snapshot(node=node, taken=taken, view="me", cpus=1, cores=1, gpus=(gpu,))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the stand-in finds its part, and leaves its notes."""
    program = tmp_path / "bin" / "srun"
    program.parent.mkdir()
    program.write_text(SRUN.replace("FOLDER", str(tmp_path)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return tmp_path


@pytest.fixture
def source(folder):
    made = SrunSource(interval_s=600)
    yield made
    made.close()


@pytest.fixture
def source_at(folder):
    """Return a function that makes (a source, its clock, which stands still)."""
    made = []

    def make(interval_s, **other):
        now = [0.0]
        made.append(SrunSource(interval_s=interval_s, clock=lambda: now[0], **other))
        return made[-1], now

    yield make
    for one in made:
        one.close()


def tell(folder: Path, job, *looks, before="", after="", do=None, node=None):
    """Let srun print these snapshots in a step of this job, and then do `do`."""
    lines = [line for look in looks for line in frames.split(render(look), look.node)]
    name = f"job-{job}.out" if node is None else f"job-{job}-{node}.out"
    (folder / name).write_text(before + "".join(f"{line}\n" for line in lines) + after)
    if do is not None:
        (folder / f"job-{job}.do").write_text(do)


def asked(*jobs, nodes, user="me"):
    return SourceRequest(nodes=nodes, jobs=jobs, user=user)


def on_n1(*jobs):
    """Ask for n1, where job 1 runs if no others do."""
    return asked(*(jobs or (a_job(1, "n1"),)), nodes=("n1",))


def calls(folder):
    file = folder / "calls"
    return file.read_text().splitlines() if file.exists() else []


def test_one_step_for_a_node_and_its_snapshot(folder, source):
    tell(folder, 1, a_snapshot("n1"))
    answer = source.read(asked(a_job(1, "n1", ((0,),)), a_job(2, "n1"), nodes=("n1",)), WAIT_S)
    assert answer.snapshots == {"n1": replace(a_snapshot("n1"), source="srun")}
    assert answer.silent == {}
    assert len(calls(folder)) == 1


def test_looking_again_starts_nothing(folder, source):
    tell(folder, 1, a_snapshot("n1"), a_snapshot("n2"))
    question = asked(a_job(1, "n[1-2]", ((0,), (0,))), nodes=("n1", "n2"))
    for _ in range(3):
        assert set(source.read(question, WAIT_S).snapshots) == {"n1", "n2"}
    assert len(calls(folder)) == 1


def test_the_newest_snapshot_counts(folder, source):
    (folder / "more").write_text(
        "".join(f"{line}\n" for line in frames.split(render(a_snapshot("n1", taken=2.0)), "n1"))
    )
    tell(folder, 1, a_snapshot("n1"), do="while [ ! -e go ]; do sleep 0.02; done; cat more\n")
    assert source.read(on_n1(), WAIT_S).snapshots["n1"].taken == 1.0
    (folder / "go").touch()
    until(lambda: source.read(on_n1(), WAIT_S).snapshots["n1"].taken == 2.0)


def test_noise_is_passed_over_and_torn_messages_are_told(folder, source):
    torn = next(iter(frames.split(os.urandom(3000), "n1")))
    before = f"Welcome to n1!\n\x1b[31mprompt$ {torn[:300]}\nmodule loaded; "
    tell(folder, 1, a_snapshot("n1"), before=before, after="\nbye\n")
    answer = source.read(on_n1(), WAIT_S)
    assert set(answer.snapshots) == {"n1"}
    assert answer.notes == ["job 1: dropped 1 message that arrived damaged"]


def test_gpus_of_two_jobs_on_a_node_are_one_snapshot(folder, source):
    tell(folder, 1, a_snapshot("n1", 0))
    tell(folder, 2, a_snapshot("n1", 1))
    answer = source.read(asked(a_job(1, "n1", ((0,),)), a_job(2, "n1", ((1,),)), nodes=("n1",)), WAIT_S)
    assert [gpu.index for gpu in answer.snapshots["n1"].gpus] == [0, 1]


def test_gpus_that_no_step_shows_are_named(folder, source):
    looks = [replace(a_snapshot("n1", 0), driver="590.1")]
    tell(folder, 1, *looks)
    tell(folder, 2, do=REFUSED.replace("job 1", "job 2").replace("completing or completed", "unwell"))
    question = asked(a_job(1, "n1", ((0,),)), a_job(2, "n1", ((1,),)), nodes=("n1",))
    answer = source.read(question, WAIT_S)
    assert set(answer.snapshots) == {"n1"}
    assert answer.notes == ["n1: GPU 1 of job 2 is not in these figures: no step in the job: Job/step already unwell"]


def test_a_sampler_ends_before_the_work_does_where_the_job_s_memory_is_full():
    argv = srun_argv(SurveyStep(1, None, 0, ("n1",), "none"), ("/bin/cat",), 1)
    shell = argv[argv.index("/bin/sh") :]
    shell = [*shell[: shell.index("/bin/cat")], "/bin/cat", "/proc/self/oom_score_adj"]
    assert subprocess.run(shell, capture_output=True, text=True, check=True).stdout == "1000\n"
    shell[2] = shell[2].replace("/proc/self/oom_score_adj", "/proc/version")
    assert subprocess.run(shell, capture_output=True, text=True, check=True).stderr == ""


def test_a_full_memory_is_named_and_another_job_is_tried(folder, source):
    words = [
        "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed.",
        "srun: error: n1: task 0: Out Of Memory",
    ]
    tell(folder, 1, do="".join(f"echo '{line}' >&2\n" for line in words) + "exit 137\n")
    tell(folder, 2, a_snapshot("n1"))
    question = on_n1(a_job(1, "n1"), a_job(2, "n1"))
    assert source.read(question, WAIT_S).silent == {"n1": "the job's memory is full, or the node's"}
    until(lambda: set(source.read(question, WAIT_S).snapshots) == {"n1"})


def test_a_sampler_hears_of_us_however_seldom_one_looks(folder, source_at):
    source, _ = source_at(3600, silence_s=1)
    tell(folder, 1, a_snapshot("n1"), do="head -c 5 > heard\n")
    source.read(on_n1(), WAIT_S)
    until(lambda: (folder / "heard").exists() and (folder / "heard").stat().st_size == 5)


def test_a_sampler_that_heard_nothing_because_we_were_stopped_is_begun_anew(folder, source_at):
    source, now = source_at(600)
    tell(folder, 1, a_snapshot("n1"), do="while [ ! -e go ]; do sleep 0.02; done; exit 0\n")
    source.read(on_n1(), WAIT_S)
    (folder / "go").touch()
    now[0] = SILENCE_S
    until(lambda: source.read(on_n1(), WAIT_S) and len(calls(folder)) == 2)
    until(lambda: source.read(on_n1(), WAIT_S).silent == {"n1": "the sampler ended"})
    assert len(calls(folder)) == 2


def test_last_words_count_that_were_not_read_yet(source):
    child = stream(["/bin/sh", "-c", "echo 'n1: slurm-share: the driver is gone' >&2; exit 1"])
    assert child.wait(WAIT_S) == 1
    step = SurveyStep(1, None, 0, ("n1",), "none")
    source._running[step] = srun._Running(step, child, 0.0)
    source._sweep(1.0)
    assert source._failed[step].why == "slurm-share: the driver is gone"


def test_another_node_s_name_is_not_believed(folder, source):
    tell(folder, 1, a_snapshot("n7"), do="exit 0\n")
    answer = source.read(asked(a_job(1, "n1"), nodes=("n1", "n7")), WAIT_S)
    assert answer.snapshots == {}
    assert set(answer.silent) == {"n1", "n7"}


def test_a_node_that_does_not_answer_holds_up_nobody_for_longer_than_was_allowed(folder, source):
    tell(folder, 1, a_snapshot("n1"))
    question = asked(a_job(1, "n[1-2]"), nodes=("n1", "n2"))
    answer = until(lambda: (found := source.read(question, 0.3)).snapshots and found)
    assert set(answer.snapshots) == {"n1"}
    assert answer.silent == {"n2": "no answer within 0.3 s"}


def test_waiting_steps_say_what_they_wait_for(folder, source):
    words = "srun: Job 1 step creation temporarily disabled, retrying (Requested nodes are busy)"
    tell(folder, 1, do=f"echo '{words}' >&2\n")
    until(lambda: source.read(on_n1(), 0.1).silent == {"n1": "srun waits: Requested nodes are busy"})


REFUSED = "echo 'srun: error: Unable to create step for job 1: Job/step already completing or completed' >&2; exit 1\n"


def test_a_refused_step_is_left_alone_for_a_while(folder, source_at):
    source, now = source_at(600)
    tell(folder, 1, do=REFUSED)
    for _ in range(4):
        assert source.read(on_n1(), WAIT_S).silent == {"n1": "the job has ended"}
    assert len(calls(folder)) == 1
    now[0] += srun.TRY_AGAIN_S
    tell(folder, 1, a_snapshot("n1"), do="")
    assert set(source.read(on_n1(), WAIT_S).snapshots) == {"n1"}


def test_where_one_job_gives_no_step_another_one_does(folder, source):
    tell(folder, 1, do=REFUSED)
    tell(folder, 2, a_snapshot("n1"))
    question = on_n1(a_job(1, "n1"), a_job(2, "n1"))
    assert source.read(question, WAIT_S).snapshots == {}
    assert set(source.read(question, WAIT_S).snapshots) == {"n1"}


def test_a_hundred_jobs_that_refuse_are_not_all_tried(folder, source):
    jobs = [a_job(number, "n1") for number in range(1, 20)]
    for number in range(1, 20):
        tell(folder, number, do=REFUSED)
    for _ in range(10):
        source.read(asked(*jobs, nodes=("n1",)), WAIT_S)
    assert len(calls(folder)) == srun.OTHER_JOBS_TRIED


def test_a_sampler_that_is_not_installed_is_said_with_the_way_out(folder, source):
    words = ["n1: there is no /opt/python", "srun: error: n1: task 0: Exited with exit code 127"]
    tell(folder, 1, do="".join(f"echo '{line}' >&2\n" for line in words) + "exit 127\n")
    question = on_n1(a_job(1, "n1"), a_job(2, "n1"))
    for _ in range(3):
        answer = source.read(question, WAIT_S)
    assert answer.silent == {"n1": "there is no /opt/python"}
    assert "install slurm-share on the nodes" in answer.notes[0]
    assert len(calls(folder)) == 1


def test_one_node_s_sampler_that_ends_takes_no_other_one_with_it(folder, source):
    tell(folder, 1, a_snapshot("n1"), do="echo 'srun: error: n2: task 1: Exited with exit code 1' >&2\n")
    answer = source.read(asked(a_job(1, "n[1-2]"), nodes=("n1", "n2")), WAIT_S)
    assert set(answer.snapshots) == {"n1"}
    assert answer.silent == {"n2": "the sampler exited with exit code 1"}


def test_old_snapshots_are_not_shown_as_now(folder, source_at):
    source, now = source_at(1)
    tell(folder, 1, a_snapshot("n1"))
    assert set(source.read(on_n1(), WAIT_S).snapshots) == {"n1"}
    now[0] = 60.0
    assert source.read(on_n1(), 0.1).silent == {"n1": "nothing for 60 s"}


def to_print_later(folder, job, *looks):
    """The step says this as soon as the file `go` is there, and goes on."""
    lines = [f"{line}\n" for look in looks for line in frames.split(render(look), look.node)]
    (folder / "more").write_text("".join(lines))
    (folder / f"job-{job}.do").write_text(
        'if [ "$nodes" != n2 ]; then while [ ! -e go ]; do sleep 0.02; done; cat more; fi\n'
    )


def test_a_node_that_falls_silent_gets_a_step_of_its_own_and_the_others_figures_go_on(folder, source_at):
    source, now = source_at(1)
    tell(folder, 1, a_snapshot("n1"), a_snapshot("n2"))
    to_print_later(folder, 1, a_snapshot("n1", taken=2.0))
    question = asked(a_job(1, "n[1-2]"), nodes=("n1", "n2"))
    assert set(source.read(question, WAIT_S).snapshots) == {"n1", "n2"}
    now[0] = 5.0
    (folder / "go").touch()
    until(lambda: source.read(question, 0.1).snapshots["n1"].taken == 2.0)
    now[0] = 10.0
    tell(folder, 1, a_snapshot("n2", taken=3.0), node="n2")
    until(lambda: {look.taken for look in source.read(question, 0.1).snapshots.values()} == {2.0, 3.0})
    first, second = calls(folder)
    assert "--nodelist=n[1-2] " in first
    assert "--nodelist=n2 " in second
    assert not (folder / "ended").exists()
    (running,) = (one for step, one in source._running.items() if step.nodes == ("n1",))
    assert running.has_lost


def test_a_silent_node_is_tried_again_with_longer_and_longer_pauses(folder, source_at):
    source, now = source_at(1)
    refused = "echo 'srun: error: Task launch for StepId=1.1 failed on node n1: Communication connection failure' >&2\n"
    tell(folder, 1, a_snapshot("n1"), do=f"if ! [ -e begun ]; then touch begun; cat > /dev/null; fi\n{refused}exit 1\n")
    assert set(source.read(on_n1(), WAIT_S).snapshots) == {"n1"}
    until((folder / "begun").exists)
    (folder / "job-1.out").write_text("")
    times, found = [], []
    while now[0] < 200:
        now[0] += 1
        found += source.read(on_n1(), WAIT_S).silent.values()
        begun = [one for one in source._running.values() if one.started == now[0]]
        times += [now[0] for _ in begun]
        until(lambda begun=begun: all(one.over for one in begun))
    assert [b - a for a, b in itertools.pairwise(times)] == [7, 13, 25, 49, 61]
    assert times[0] == 7
    assert found[-1] == "nothing for 200 s: its slurmd does not answer"
    before = len(calls(folder))
    now[0] += 2
    source.ask_again()
    source.read(on_n1(), WAIT_S)
    until(lambda: len(calls(folder)) == before + 1)


def test_steps_go_with_their_jobs_and_come_with_new_ones(folder, source):
    tell(folder, 1, a_snapshot("n1"))
    tell(folder, 2, a_snapshot("n2"))
    assert set(source.read(on_n1(), WAIT_S).snapshots) == {"n1"}
    assert set(source.read(asked(a_job(2, "n2"), nodes=("n2",)), WAIT_S).snapshots) == {"n2"}
    until(lambda: (folder / "ended").exists() and (folder / "ended").read_text() == "1\n")


@pytest.mark.parametrize(
    ("states", "why"),
    [
        (("SUSPENDED",), "the job is suspended"),
        (("RUNNING", "CONFIGURING"), "the job is starting"),
        (("RUNNING", "COMPLETING"), "the job is ending"),
    ],
)
def test_jobs_that_take_no_step(folder, source, states, why):
    assert source.read(asked(a_job(1, "n1", states=states), nodes=("n1",)), WAIT_S).silent == {"n1": why}
    assert calls(folder) == []


def test_a_suspended_job_keeps_its_step(folder, source):
    tell(folder, 1, a_snapshot("n1"))
    running = on_n1()
    source.read(running, WAIT_S)
    paused = asked(a_job(1, "n1", states=("SUSPENDED",)), nodes=("n1",))
    assert source.read(paused, WAIT_S).silent == {"n1": "the job is suspended"}
    assert set(source.read(running, WAIT_S).snapshots) == {"n1"}
    assert len(calls(folder)) == 1


def test_no_step_is_started_in_anybody_else_s_job(folder, source):
    answer = source.read(asked(a_job(1, "n1", uid=os.getuid() + 1), nodes=("n1",)), WAIT_S)
    assert answer.silent == {"n1": "no job of yours"}
    assert calls(folder) == []


def test_everybody_is_refused_with_what_would_be_needed(source):
    with pytest.raises(UsageError, match="slurm-share-agent"):
        source.read(asked(nodes=("n1",), user=""), WAIT_S)


def test_a_host_without_srun_is_said(source, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="no srun"):
        source.read(on_n1(), 1)


def test_more_steps_than_are_allowed_are_said(folder, source, monkeypatch):
    monkeypatch.setattr(srun, "STEPS_MAX", 2)
    for number in (1, 2, 3):
        tell(folder, number, a_snapshot(f"n{number}"))
    jobs = [a_job(number, f"n{number}") for number in (1, 2, 3)]
    answer = source.read(asked(*jobs, nodes=("n1", "n2", "n3")), WAIT_S)
    assert len(answer.snapshots) == 2
    assert list(answer.silent.values()) == ["left out"]
    assert "at most 2" in answer.notes[0]


def test_closing_ends_every_step_and_may_be_done_twice(folder):
    source = SrunSource(interval_s=600)
    tell(folder, 1, a_snapshot("n1"))
    tell(folder, 2, a_snapshot("n2"))
    source.read(asked(a_job(1, "n1"), a_job(2, "n2"), nodes=("n1", "n2")), WAIT_S)
    source.close()
    source.close()
    assert sorted((folder / "ended").read_text().split()) == ["1", "2"]


# ---- The command -----------------------------------------------------------------------------------------------------


def test_the_step_takes_nothing_from_the_job():
    argv = srun_argv(SurveyStep(7, 1, 0, ("n1", "n2", "n3"), "gpu:2"), ("/opt/python", "-I"), 2.5)
    words = set(argv)
    assert {"--jobid=7", "--het-group=1", "--nodelist=n[1-3]", "--nodes=3", "--ntasks=3", "--gres=gpu:2"} <= words
    assert {"--overlap", "--mem=0", "--cpu-bind=none"} <= words
    assert argv[-8:] == [
        *("sh", "/opt/python", "-I"),
        *("sample", "--stream", "--interval=2.5", "--silence=60", "--frames"),
    ]


def test_no_wish_of_the_caller_and_nothing_of_his_job_reaches_the_step(folder, source, monkeypatch):
    for name in ("SLURM_JOB_ID", "SLURM_GRES", "SLURM_CPU_BIND", "SRUN_CPUS_PER_TASK", "SLURM_SPANK_SHARE_GPU"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("SLURM_SHARE_SLOT", "3")
    monkeypatch.setenv("SLURM_CONF", "/somewhere/slurm.conf")
    monkeypatch.setenv("KRB5CCNAME", "kept")
    tell(folder, 1, a_snapshot("n1"))
    source.read(on_n1(), WAIT_S)
    found = dict(line.partition("=")[::2] for line in (folder / "env-1").read_text().splitlines())
    assert {name for name in found if name.startswith(("SLURM_", "SRUN_"))} == {"SLURM_SHARE_SLOT", "SLURM_CONF"}
    assert found["SLURM_SHARE_SLOT"] == "none"
    assert found["KRB5CCNAME"] == "kept"
    assert srun_environment({})["SLURM_SHARE_SLOT"] == "none"


@pytest.mark.parametrize(
    ("said", "code", "why"),
    [
        ("", 0, ""),
        ("", 1, "srun ended with 1"),
        ("", -9, "srun was ended by signal 9"),
        ("srun: error: Unable to confirm allocation for job 99: Invalid job id specified\nsrun: Check SLURM_JOB_ID "
         "environment variable. Expired or invalid job 99", 1, "the job has ended"),
        ("srun: error: Slurm job 1 has expired", 1, "the job has ended"),
        ("srun: error: Unable to create step for job 10: Access/permission denied", 1, "not your job"),
        ("srun: error: Unable to create step for job 7: Invalid generic resource (gres) specification", 1,
         "no step in the job: Invalid generic resource (gres) specification"),
        ("slurmstepd: error: *** STEP 1.2 ON n1 CANCELLED AT 2026-11-21T17:40:31 ***\nsrun: error: n1: task 0: Killed",
         137, "the job or its step was ended"),
        ("n1: slurm-share: NVML \x1b[2Jis gone", 1, "'slurm-share: NVML \\x1b[2Jis gone'"),
        ("srun: error: something new", 1, "srun ended with 1: something new"),
    ],
)  # fmt: skip
def test_why_it_ended_is_a_few_words(said, code, why):
    assert why_ended(said, code) == why


def test_the_program_is_the_one_that_looks():
    argv = srun_argv(SurveyStep(1, None, 0, ("n1",), "none"), srun.PROGRAM, 1)
    assert argv[-9:-5] == [sys.executable, "-I", "-m", "slurm_share.cli.main"]
