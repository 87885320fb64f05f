"""The verdict on chaos: it must see what it is there to see."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from chaos_runs import causes, evidence, plan, records, verdict
from chaos_runs import papers as papers_of_a_run
from chaos_runs.causes import Done
from chaos_runs.evidence import Evidence, Said
from chaos_runs.plan import Event
from chaos_runs.records import Drain, Line, Record, Submission
from chaos_runs.verdict import judge

from slurm_share.share.rules import drain as drain_rules

NODES = ("n1", "n2")
RESULTS = Path(__file__).parents[1] / "bench/results"
JOB = Submission("a1", "alice", "whole", 100.0, is_taken=True)


def record(state: str = "COMPLETED", **changed: object) -> Record:
    """JOB as Slurm has it, from 101 to 110 on n1."""
    values: dict[str, object] = {"job_id": 7, "tag": "a1", "state": state, "restarts": 0, "start": 101.0, "end": 110.0}
    return Record(**{**values, "nodes": "n1", "reason": "None", "code": "0:0", **changed})  # type: ignore[arg-type]


def line(word: str, at: float, what: str = "", restart: int = 0, node: str = "n1") -> Line:
    """A line of JOB's."""
    return Line(word, restart, at, node, what)


WELL = (
    line("start", 101.0),
    Line("task", 0, 102.0, "n1", "0.0", 500),
    Line("task", 0, 102.0, "n1", "0.1", 501),
    line("end", 110.0, "0"),
)
BROKE = "CUDA_ERROR_MPS_RPC_FAILURE: the MPS server is gone"
AWAY = "srun: error: Unable to contact slurm controller"
UNSHARED = (
    "node n1 has no plan for it: its Prolog could not make one, and its log there says why; submit the job again, or "
    "say what this srun takes"
)
NO_GPU = "slurm-share: job 7 cannot have --share-gpu=2 on n1: Slurm granted the job no GPU here"


def done(action: str, actor: str = "n1", began: float = 105.0, said: str = "killed it 1 of alice") -> Done:
    """A deed."""
    return Done(Event(0.0, actor, action), began, began + 1, said)


def told(output: str = "", *log: tuple[float, str]) -> Evidence:
    """What JOB said, and slurmctld."""
    return Evidence(tuple(Said(at, text) for at, text in log), {("a1", 7): output})


def one(
    rec: Record, lines: tuple[Line, ...] = WELL, actions: tuple[Done, ...] = (), said: Evidence | str = ""
) -> verdict.Judgement:
    """The verdict on JOB alone."""
    said = told(said) if isinstance(said, str) else said
    return judge([JOB], actions, [rec], {("a1", 7): lines}, [], said)


def test_a_job_that_did_its_work_once_is_well() -> None:
    assert one(record()).wrong == []


@pytest.mark.parametrize(
    ("rec", "lines"),
    [
        (record(), WELL[:-1]),
        (record(), ()),
        (record("PENDING"), ()),
        (record("FAILED"), WELL),
        (record("CANCELLED"), WELL),
        (record("TIMEOUT"), WELL),
        (record(restarts=1), WELL),
    ],
)
def test_a_job_without_its_end_is_lost(rec: Record, lines: tuple[Line, ...]) -> None:
    assert one(rec, lines).lost == 1


STARTED = "slurmctld version 26.05.5 started on cluster demo(2005)"


def test_a_job_that_slurm_does_not_know_is_lost_unless_slurmctld_forgot_it() -> None:
    job = replace(JOB, job=7)
    taken, start = (100.1, "_slurm_rpc_submit_batch_job: JobId=7 SLUID=s7 InitPrio=1"), (104.0, STARTED)
    other, this = (104.1, "Recovered JobId=6 Assoc=0"), (104.1, "Recovered JobId=7 Assoc=0")
    assert judge([job], [], [], {}, [], told("", taken, start, other)).lost == 0
    assert judge([job], [], [], {}, [], told("", taken, start, this)).lost == 1
    assert judge([job], [], [], {}, [], told("", taken, other)).lost == 1
    assert judge([job], [], [], {}, [], told("", start, other)).lost == 1
    assert judge([job], [], [], {}, [], Evidence()).lost == 1
    assert judge([replace(job, is_taken=False)], [], [], {}, [], Evidence()).lost == 0


def failed(state: str = "FAILED", code: str = "1:0", **changed: object) -> Record:
    """JOB, which did not complete."""
    return record(state, code=code, **changed)


def test_a_task_that_was_killed_explains_the_failure_of_its_own_job() -> None:
    """Not of another job on the node, not on another node, not before it came, not after it went."""
    killed, its = failed(code="137:0"), "killed simgpu-task 501 of alice, job 7"
    assert one(killed, WELL, (done("kill_task", said=its),)).lost == 0
    assert one(killed, WELL, (done("kill_task", said="killed simgpu-task 600 of alice, job 8"),)).lost == 1
    assert one(killed, WELL, (done("kill_task", "n2", said=its),)).lost == 1
    assert one(killed, WELL, (done("kill_task", said="there was none"),)).lost == 1
    assert one(killed, WELL, (done("kill_task", began=90.0, said=its),)).lost == 1
    assert one(killed, WELL, (done("kill_task", began=120.0, said=its),)).lost == 1


def test_a_hook_that_was_killed_explains_the_end_of_its_own_job() -> None:
    gone = failed("NODE_FAIL", "0:1")
    assert one(gone, WELL, (done("kill_hook", said="killed slurm-share-pro 9 of root, job 7"),)).lost == 0
    assert one(gone, WELL, (done("kill_hook", said="killed slurm-share-pro 9 of root, job 77"),)).lost == 1
    assert (
        one(failed(code="69:0"), WELL, (done("kill_hook", said="killed slurm-share-pro 9 of root, job 7"),)).lost == 1
    )


def test_a_job_that_slurm_may_not_requeue_is_cancelled_when_its_prolog_was_killed_or_never_asked_for() -> None:
    """By root, as slurmctld's log has it; and where slurmd had been cut off from it, by what slurmd said."""
    gone = failed("CANCELLED", "0:54")
    kill = done("kill_hook", said="killed slurm-share-pro 9 of root, job 7")
    assert one(gone, WELL, (kill,), told("", (106.0, "error: Prolog launch failure, JobId=7"))).lost == 0
    assert (
        one(gone, WELL, (kill,), told("", (106.0, "error: job_epilog_complete: JobId=7 epilog error on n1,"))).lost == 1
    )
    never = (109.0, "n1: error: Waiting for JobId=7 REQUEST_LAUNCH_PROLOG notification failed, giving up after 20 sec")
    assert one(gone, WELL, (done("cut_network"),), told("", never)).lost == 0
    assert one(gone, WELL, (), told("", never)).lost == 1


def test_a_run_that_a_new_slurmctld_did_not_know_of_is_begun_again_by_it() -> None:
    start, read = (104.0, STARTED), (104.1, "Recovered JobId=7 Assoc=0")
    again = (*WELL, line("start", 106.0))
    assert one(record(), again, (), told("", start, read)).twice == 0
    assert one(record(), again, (), told("", start, (104.1, "Recovered JobId=7 StepId=batch"), read)).twice == 1
    assert one(record(), again, (), told("", read)).twice == 1


def test_what_a_node_says_tells_of_a_drain() -> None:
    """slurmd, that nobody asked it for the Prolog. What a job left, for whatever reason, drains no node."""
    slurmd = "[2026-01-02T03:04:05.250] error: Waiting for JobId=5 REQUEST_LAUNCH_PROLOG notification failed, giving up"
    ours = (
        "2026-01-02T03:04:05+0000 prolog: /run/x cannot be written (No space left on device); make room there\n"
        "2026-01-02T03:04:10+0000 epilog: job 6 of uid 2001: its share is removed\n"
    )
    begin = 1767323045.0
    log = evidence.parse_node("n1", slurmd, ours)
    assert len(log) == 2
    never, late = Drain(begin + 1, "n1", "Prolog error"), Drain(begin + 5, "n1", "Epilog error")
    assert judge([], [], [], {}, [never], Evidence(log[:1])).drained == 0
    assert judge([], [], [], {}, [never, never], Evidence(log[:1])).drained == 1
    assert judge([], [], [], {}, [replace(never, node="n2")], Evidence(log[:1])).drained == 1
    assert judge([], [], [], {}, [late], Evidence(log[1:])).drained == 1


@pytest.mark.parametrize(
    ("actions", "left"),
    [
        ((), 1),
        ((done("kill_hook", said="killed slurm-share-epi 9 of root, job 7"),), 0),
        ((done("kill_hook", "n2", said="killed slurm-share-epi 9 of root, job 7"),), 1),
        ((done("kill_hook", said="there was none"),), 1),
        ((done("kill_daemon"), done("kill_slurmd"), done("fill_state")), 1),
    ],
    ids=["nothing befell it", "its hook was killed", "another node's hook was", "no hook was there", "other deeds"],
)
def test_what_is_left_is_wrong_where_no_hook_was_killed(actions: tuple[Done, ...], left: int) -> None:
    """An Epilog that leaves daemons running is seen, though the next job's Prolog ends them."""
    found = verdict.Judgement()
    verdict.judge_left({"n1": ["daemon 5 of alice"], "n2": []}, actions, found)
    assert (found.left, len(found.wrong)) == (left, left)


EVERYTHING = f"{BROKE} {AWAY} {NO_GPU} No space left on device"


@pytest.mark.parametrize(
    ("action", "rec"),
    [
        ("fill_log", failed()),
        ("fill_log", failed(code="69:0")),
        ("kill_task", failed()),
        ("kill_hook", failed()),
        ("kill_slurmd", failed(code="69:0")),
        ("cut_power", failed(code="69:0")),
        ("reboot", failed(code="69:0")),
        ("fill_spool", failed(code="69:0")),
        ("fill_state", failed("NODE_FAIL", "0:1")),
        ("kill_server", failed("CANCELLED", "0:15")),
        ("cut_network", failed("TIMEOUT", "0:0")),
        ("reboot", failed("CANCELLED", "0:0")),
        ("kill_slurmctld", failed("CANCELLED", "0:15")),
        ("requeue", failed()),
        ("cancel", failed("CANCELLED", "0:15")),
        ("whole", failed()),
    ],
)
def test_a_deed_that_cannot_end_a_job_so_explains_nothing(action: str, rec: Record) -> None:
    """On the job's own node, in the middle of its run, whatever is said: lost all the same."""
    found = one(rec, WELL, (done(action), done(action, "ctl")), EVERYTHING)
    assert found.lost == 1
    assert "for no reason that is known" in found.wrong[0]


@pytest.mark.parametrize(
    ("action", "actor", "rec", "said"),
    [
        ("kill_daemon", "n1", failed(code="69:0"), "the MPS daemon of GPU-0 is gone"),
        ("kill_server", "n1", failed(), BROKE),
        ("kill_slurmd", "n1", failed(), "srun: error: Task launch for StepId=7.0 failed on node n1"),
        ("kill_slurmctld", "ctl", failed(), AWAY),
        ("kill_slurmctld", "ctl", failed("CANCELLED", "0:0"), "_job_complete: JobId=7 cancelled by interactive user"),
        ("kill_slurmctld", "ctl", failed(code="69:0"), NO_GPU),
        ("cut_network", "n1", failed("NODE_FAIL", "0:1"), "requeue job JobId=7 due to failure of node n1"),
        (
            "cut_network",
            "n1",
            failed("NODE_FAIL", "0:1"),
            "error: _notify_slurmctld_nodes: Revoking job JobId=7 SLUID=sC due to nodes not responding",
        ),
        ("cut_power", "n1", failed("NODE_FAIL", "0:1"), "Killing JobId=7 on failed node n1"),
        ("cut_power", "n1", failed("NODE_FAIL", "0:1"), "requeue job JobId=7 due to failure of node n1"),
        ("reboot", "n1", failed(), "Batch JobId=7 missing from batch node n1"),
        ("fill_state", "n1", failed(code="69:0"), "/run/slurm-share cannot be written (No space left on device)"),
        ("fill_state", "n1", failed(code="69:0"), f"slurm-share: job 7 is to share its GPUs, but {UNSHARED}"),
        ("fill_spool", "n1", failed(), "No space left on device"),
        (
            "fill_spool",
            "n1",
            failed("CANCELLED", "0:0"),
            "_slurm_rpc_requeue: Requeue of JobId=7 returned an error: Requested operation is presently disabled",
        ),
    ],
)
def test_each_deed_explains_what_it_can_do_where_that_is_said(action: str, actor: str, rec: Record, said: str) -> None:
    """Once, under its own name; and nothing where the job, or slurmctld, says nothing of the kind."""
    found = one(rec, WELL, (done(action, actor),), said)
    assert (found.lost, found.counts[f"{rec.state}, explained by {action}"]) == (0, 1)
    assert one(rec, WELL, (done(action, actor),), "simgpu-task: I am well").lost == 1
    assert one(rec, WELL, (done(action, "n2"),), said).lost == 1


def test_whose_daemon_was_killed_is_known() -> None:
    assert one(failed(), WELL, (done("kill_server", said="killed nvidia-cuda-mps 5 of bob"),), BROKE).lost == 1


def test_a_deed_lasts_until_its_node_has_registered_again() -> None:
    cut = Done(Event(0.0, "n1", "cut_network"), 105.0, 120.0, "no network for 15.0 s")
    late, said = failed("NODE_FAIL", "0:1", start=150.0, end=160.0), (151.0, "JobId=7 due to failure of node n1")
    for back, lost in ((149.5, 0), (140.0, 1)):
        log = told("", (back, "_slurm_rpc_node_registration complete for n1 usec=9"), said)
        assert one(late, WELL, (cut,), log).lost == lost
    log = told("", (130.0, "_slurm_rpc_node_registration complete for n2 usec=9"), said)
    assert one(late, WELL, (cut,), log).lost == 0
    kill = done("kill_slurmctld", "ctl", 100.0)
    for back, lost in ((102.5, 0), (101.5, 1)):
        log = told(NO_GPU, (back, "_slurm_rpc_node_registration complete for n1 usec=9"))
        assert one(failed(code="69:0", start=103.0), WELL, (kill,), log).lost == lost


def test_a_refusal_for_a_job_that_slurm_gave_up_is_no_loss() -> None:
    """The sentence names the job that is still there: slurmctld must have given that up on account of the deed."""
    cut = done("cut_network", began=90.0)
    refused = failed(code="69:0")
    said = "job 5 of bob is still on it"
    gone = (100.0, "requeue job JobId=5 due to failure of node n1")
    assert one(refused, WELL, (cut,), told(said, gone)).lost == 0
    assert one(refused, WELL, (), told(said, gone)).lost == 1
    assert one(refused, WELL, (cut,), told(said)).lost == 1
    assert one(refused, WELL, (cut,), told(said, (80.0, gone[1]))).lost == 1
    assert one(refused, WELL, (cut,), told("job 50 of bob is still on it", gone)).lost == 1


def test_a_slurmctld_that_goes_on_from_an_older_state_says_so() -> None:
    """A job that was cancelled before the kill, and ran on after it: whatever becomes of it, but no refusal of ours."""
    kill = done("kill_slurmctld", "ctl", 102.0)
    text = "_job_complete: JobId=7 cancelled by interactive user"
    back = (105.0, "_slurm_rpc_node_registration complete for n1 usec=9")
    stale = told("", (104.0, text), back)
    late = {"start": 150.0, "end": 160.0}
    assert one(failed(**late), WELL, (kill,), stale).lost == 0
    assert one(failed("CANCELLED", "0:0", **late), WELL, (kill,), stale).lost == 0
    assert one(failed(code="69:0", **late), WELL, (kill,), stale).lost == 1
    assert one(failed(**late), WELL, (kill,), told("", (101.0, text), back)).lost == 1
    assert one(failed(**late), WELL, (done("kill_slurmctld", "ctl", 98.0),), stale).lost == 1


def test_a_user_who_cancels_an_array_cancels_each_of_its_elements() -> None:
    """By the number of the array, which is one element's own as well; and by what slurmctld heard, even where the
    command was told nothing."""
    asked = told("", (105.5, "_slurm_rpc_kill_job: REQUEST_KILL_JOB JobId=7 uid 2001"))
    gone, his = failed("CANCELLED", "0:15"), done("cancel", "alice", said="did not work: ... timed out")
    assert one(gone, WELL, (his,), asked).counts["CANCELLED, explained by cancel"] == 1
    assert one(gone, WELL, (his,)).lost == 1
    assert one(gone, WELL, (done("cancel", "bob"),), asked).lost == 1
    assert one(gone, WELL, (done("cancel", "alice", 90.0),), asked).lost == 1
    assert one(failed("CANCELLED", "0:15", job_id=8, array=7), WELL, (his,), asked).lost == 0
    assert one(failed("CANCELLED", "0:15", job_id=8), WELL, (his,), asked).lost == 1


def test_of_two_deeds_the_nearer_one_is_counted() -> None:
    found = one(failed(), WELL, (done("cut_network", began=90.0), done("kill_server", began=108.0)), f"{AWAY} {BROKE}")
    assert found.counts["FAILED, explained by kill_server"] == 1
    assert found.counts["FAILED, explained by cut_network"] == 0


def test_a_loss_among_many_jobs_and_deeds_is_found() -> None:
    """Twenty minutes of trouble as planned, a job every ten seconds on each node: of those refused for no reason, and
    whatever they say, most are found on the nodes that nothing befalls, and many on the others."""
    nodes = [f"n{number}" for number in range(1, 7)]
    told = [
        Done(event, event.at_s, event.at_s + event.lasts_s, "killed it 1") for event in plan.make(4, 1200, nodes)
        if event.actor not in plan.USERS
    ]  # fmt: skip
    # A node registers within three seconds of the end of what befell it.
    log = Evidence([
        Said(one.ended + 3.0, f"_slurm_rpc_node_registration complete for {node} usec=9") for one in told
        for node in (nodes if one.event.actor == "ctl" else [one.event.actor])
    ])  # fmt: skip
    found: dict[str, list[bool]] = {}
    for node in nodes:
        for start in range(0, 1200, 10):
            lost = failed(code="69:0", nodes=node, start=float(start), end=float(start + 8))
            found.setdefault(node, []).append(verdict.cause(JOB, lost, (), told, log, is_told=False) is None)
    shares = {node: sum(some) / len(some) for node, some in found.items()}
    quiet = [node for node in nodes if node not in plan.hit_nodes(nodes)]
    assert len(quiet) == 2
    assert min(shares[node] for node in quiet) > 0.5
    assert sum(shares[node] for node in plan.hit_nodes(nodes)) / 4 > 0.3
    rest = [one for one in told if one.event.actor != "ctl"]
    assert verdict.cause(JOB, failed(nodes=quiet[0]), (), rest, log, is_told=False) is None


def test_how_sharp_the_verdict_is_is_counted() -> None:
    sharp = one(record()).counts
    blunt = one(record(), WELL, (done("kill_server"),)).counts
    for what in ("exit code 69", "exit code 1"):
        name = f"COMPLETED, where {what} would be a loss"
        assert (sharp[name], blunt[name]) == (1, 0)


def test_the_figures_that_are_kept_are_those_of_this_verdict() -> None:
    papers = json.loads((RESULTS / "chaos_events.json").read_text(encoding="utf-8"))
    rows = {
        row["what"]: row["value"] for row in json.loads((RESULTS / "chaos.json").read_text(encoding="utf-8"))["rows"]
    }
    found = papers_of_a_run.judge_again(papers)
    assert found.wrong == []
    assert rows["jobs and array elements"] == found.counts.pop("jobs") > 0
    assert {what: rows[what] for what in found.counts} == dict(found.counts)
    assert rows["jobs lost for no reason that is known"] == found.lost
    lost = {**papers, "events": [told for told in papers["events"] if told["deed"] != "cancel"]}
    # One or another of them has a second reason: a slurmctld that forgot of it, say.
    assert papers_of_a_run.judge_again(lost).lost > 0.8 * rows["CANCELLED, explained by cancel"] > 0
    mute = papers_of_a_run.judge_again({**papers, "outputs": {}, "log": []})
    assert mute.lost > rows["jobs lost for no reason that is known"]


def test_every_deed_has_its_effects_and_its_words() -> None:
    assert set(causes.EFFECTS) == {*plan.FAULTS, *plan.CONTROLLER_FAULTS}


def test_nothing_befalls_the_last_third() -> None:
    assert list(plan.hit_nodes(["n1", "n2", "n3", "n4", "n5", "n6"])) == ["n1", "n2", "n3", "n4"]
    assert list(plan.hit_nodes(["n1", "n2"])) == ["n1"]
    hit = {event.actor for event in plan.make(5, 1200, ["n1", "n2", "n3"])}
    assert hit == {"n1", "n2", "ctl", *plan.USERS}


def test_a_second_start_of_one_run_is_seen_and_a_requeue_is_none() -> None:
    """The same task twice, too; unless slurmctld gave it nodes a second time, since it had forgotten the run."""
    lost_runs = told("", (104.0, "sched: Allocate JobId=7 NodeList=n1"))
    assert one(record(), (*WELL, line("start", 106.0)), (), lost_runs).twice == 0
    assert one(record(), (*WELL, line("start", 103.0)), (), lost_runs).twice == 1
    assert one(record(), (*WELL, line("start", 103.0))).twice == 1
    assert one(record(), (*WELL, line("task", 103.0, "0.1"))).twice == 1
    again = tuple(Line(had.word, 1, had.at + 20, had.node, had.what) for had in WELL)
    assert one(record(restarts=1), (*WELL, *again)).wrong == []


def test_a_triple_that_was_requeued_has_begun_each_task_once_in_all() -> None:
    job = Submission("a1", "alice", "triple", 100.0, is_taken=True)
    tasks = tuple(line("task", 102.0, str(number)) for number in range(4))
    assert judge([job], [], [record(restarts=1)], {("a1", 7): tasks}, [], Evidence()).wrong == []
    assert judge([job], [], [record(restarts=1)], {("a1", 7): tasks[1:]}, [], Evidence()).lost == 1


def test_a_refusal_of_unlike_nodes_is_no_loss() -> None:
    said = "job 7 has unlike nodes (n1: 4 GPUs, n2: 2)"
    assert one(record("FAILED", nodes="n[1-2]", code="69:0"), said=said).lost == 0
    assert one(record("FAILED", nodes="n[2-3]", code="69:0"), said=said).lost == 1
    assert one(record("FAILED", nodes="n[1-2]", code="1:0"), said=said).lost == 1
    assert one(record("FAILED", nodes="n[1-2]", code="69:0"), said="job 7 is refused").lost == 1


def test_another_users_task_beside_a_shared_one_is_seen() -> None:
    bobs = Submission("b1", "bob", "plain", 100.0, is_taken=True)
    for at, mixed in ((105.0, 1), (111.0, 0)):
        files = {("a1", 7): WELL, ("b1", 8): (line("start", at), line("end", at + 1, "0"))}
        both = [record(), record(job_id=8, tag="b1")]
        assert judge([JOB, bobs], [], both, files, [], Evidence()).mixed == mixed
    # A run that slurmctld forgot, and the same job once more on another node: between them n1 is free.
    again = (*WELL, line("start", 120.0, node="n2"), line("end", 130.0, "0", node="n2"))
    files = {("a1", 7): again, ("b1", 8): (line("start", 125.0), line("end", 126.0, "0"))}
    assert judge([JOB, bobs], [], both, files, [], Evidence()).mixed == 0


def test_a_drain_for_a_hook_is_ours_unless_the_hook_was_killed() -> None:
    drains = [
        Drain(106.0, "n1", "Prolog error"),
        Drain(107.0, "n1", "Epilog error"),
        Drain(1.0, "n2", "Kill task failed"),
    ]
    kill = done("kill_hook", said="killed slurm-share-pro 9 of root, job 7")
    log = told("", (105.5, "error: Prolog launch failure, JobId=7"))
    assert judge([], [kill], [], {}, drains, Evidence()).drained == 2
    assert judge([], [], [], {}, drains, log).drained == 2
    found = judge([], [kill], [], {}, drains, log)
    assert (found.drained, found.counts["drained by Slurm: Kill task failed"]) == (1, 1)
    late = replace(drains[0], at=500.0)
    assert judge([], [kill], [], {}, [late], log).drained == 0
    assert judge([], [kill], [], {}, [replace(late, node="n2")], log).drained == 1


def test_a_prolog_that_is_killed_at_a_first_step_drains_the_node_that_slurmctld_names() -> None:
    """Lines of 26.05, as they are read and kept: the node's has no job, and the job's no node."""
    drained = "[{}] error: validate_node_specs: Prolog or job env setup failure on node n1, draining the node"
    given_up = "[{}] Requeuing JobId=7"
    first, second, late = (f"1970-01-01T00:01:{second}" for second in ("45.400", "45.500", "49.500"))
    drain = Drain(106.0, "n1", "Prolog error")
    kill = done("kill_hook", said="killed slurm-share-pro 9 of root, job 7")

    def judged(*lines: str, actions: Sequence[Done] = (kill,)) -> int:
        said = evidence.what_matters(Evidence(evidence.parse_log("\n".join(lines))), [7, 77])
        return judge([], actions, [], {}, [drain], said).drained

    known = (drained.format(first), given_up.format(second))
    assert judged(*known) == 0
    assert judged(*known, actions=()) == 1
    assert judged(known[0]) == 1
    assert judged(known[1]) == 1
    assert judged(known[0].replace("n1", "n11"), known[1]) == 1
    assert judged(known[0], given_up.format(late)) == 1
    assert judged(known[0], known[1].replace("=7", "=77")) == 1


def test_a_drain_for_state_that_was_full_is_as_it_should_be() -> None:
    refused = [(job, 1.0, drain_rules.STATE_UNWRITABLE) for job in (5, 6, 7)]
    ours = f"1970-01-01T00:01:45+0000 prolog: NODE UNWELL: {drain_rules.sentence(refused)}, the last one job 7\n"
    said = Evidence(evidence.parse_node("n1", "", ours))
    full, drain = done("fill_state"), Drain(106.0, "n1", "Prolog error")
    assert judge([], [full], [], {}, [drain], said).drained == 0
    assert judge([], [full], [], {}, [drain, drain], said).drained == 1
    assert judge([], [full], [], {}, [replace(drain, node="n2")], said).drained == 1
    assert judge([], [full], [], {}, [drain], Evidence()).drained == 1
    assert judge([], [done("fill_state", began=90.0)], [], {}, [drain], said).drained == 1
    assert judge([], [done("fill_state", "n2")], [], {}, [drain], said).drained == 1


def test_a_log_is_read_and_what_matters_is_kept() -> None:
    text = (
        "[2026-01-02T03:04:05.250] error: Orphan JobId=5 SLUID=sE3NM StepId=5.batch reported on node n1\n"
        "[2026-01-02T03:04:05.500] _job_complete: JobId=14_2(16) WEXITSTATUS 0\n"
        "[2026-01-02T03:04:06.500] debug2: _slurm_rpc_job_ready: JobId=16 result 7 in usec=5\n"
        "[2026-01-02T03:04:07.500] debug2: _slurm_rpc_node_registration complete for n1 usec=117\n"
        "[2026-01-02T03:0"
    )
    log = evidence.parse_log(text)
    told = [(one.at, evidence.numbers(one.text)) for one in log]
    assert told == [(1767323045.25, [5, 5]), (1767323045.5, [16]), (1767323047.5, [])]
    assert Evidence(log).registered("n1", 1767323045.0) == 1767323047.5
    kept = evidence.what_matters(Evidence(log, {("a1", 16): "x" * 5000, ("a2", 5): "y"}), [16])
    assert [one.text for one in kept.log] == [log[1].text, log[2].text]
    assert {name: len(text) for name, text in kept.outputs.items()} == {("a1", 16): evidence.OUTPUT_MOST}


def test_a_seed_decides_everything() -> None:
    events = plan.make(1, 1200, NODES)
    assert events == plan.make(1, 1200, NODES)
    assert events != plan.make(2, 1200, NODES)
    decks = {**plan.SUBMITTED, **plan.USER_ACTIONS, **plan.FAULTS, **plan.CONTROLLER_FAULTS}
    assert {event.action for event in events} == set(decks)


def test_slurms_words_are_read() -> None:
    text = (
        "JobId=12 ArrayJobId=11 ArrayTaskId=2 JobName=a0003 UserId=alice(2001) JobState=NODE_FAIL Reason=NodeDown "
        "Restarts=2 ExitCode=0:1 StartTime=2026-01-02T03:04:05 EndTime=Unknown NodeList=n[1-2,4] BatchHost=n1\n"
    )
    (found,) = records.parse_records(text)
    assert (found.job_id, found.tag, found.state, found.restarts, found.code) == (12, "a0003", "NODE_FAIL", 2, "0:1")
    assert found.array == 11
    assert (found.start, found.end) == (1767323045.0, 0.0)
    assert records.expand(found.nodes) == {"n1", "n2", "n4"}
