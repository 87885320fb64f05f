"""The verdict on a chaos run finds lost jobs, second starts, mixed users, drains and leftovers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from chaos_runs import causes, plan, replay, verdict
from chaos_runs.causes import Done
from chaos_runs.evidence import Evidence, LogLine
from chaos_runs.plan import Event
from chaos_runs.records import Drain, Line, Record, Submission
from chaos_runs.verdict import judge

NODES = ("n1", "n2")
RESULTS = Path(__file__).parents[1] / "bench/results"
JOB = Submission("a1", "alice", "whole", 100.0, is_taken=True)


def record(state: str = "COMPLETED", **changed: object) -> Record:
    """Return JOB in slurmctld's records: it ran from 101 to 110 on n1."""
    values: dict[str, object] = {"job_id": 7, "tag": "a1", "state": state, "restarts": 0, "start": 101.0, "end": 110.0}
    return Record(**{**values, "nodes": "n1", "reason": "None", "code": "0:0", **changed})  # type: ignore[arg-type]


def line(word: str, at: float, what: str = "", restart: int = 0, node: str = "n1") -> Line:
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
    "node n1 has no plan for it: its Prolog made none (its log there says why, unless it was not told that the job "
    "shares), or the job cannot see it, as with a /run of its own; submit the job again, or say what this srun takes"
)
UNSHARED_SECOND_NODE = (
    "node n1 has no plan for it: its tasks here have no slot; leave the node out (srun --exclude=n1), and tell your "
    "administrators"
)
NO_GPU = "slurm-share: job 7 cannot have --share-gpu=2 on n1: Slurm granted the job no GPU here"


def done(action: str, actor: str = "n1", began: float = 105.0, said: str = "killed it 1 of alice") -> Done:
    return Done(Event(0.0, actor, action), began, began + 1, said)


def evidence_of(output: str = "", *log: tuple[float, str]) -> Evidence:
    """Return the output of JOB and lines of slurmctld's log."""
    return Evidence(tuple(LogLine(at, text) for at, text in log), {("a1", 7): output})


def one(
    rec: Record, lines: tuple[Line, ...] = WELL, actions: tuple[Done, ...] = (), said: Evidence | str = ""
) -> verdict.Judgement:
    said = evidence_of(said) if isinstance(said, str) else said
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
    assert judge([job], [], [], {}, [], evidence_of("", taken, start, other)).lost == 0
    assert judge([job], [], [], {}, [], evidence_of("", taken, start, this)).lost == 1
    assert judge([job], [], [], {}, [], evidence_of("", taken, other)).lost == 1
    assert judge([job], [], [], {}, [], evidence_of("", start, other)).lost == 1
    assert judge([job], [], [], {}, [], Evidence()).lost == 1
    assert judge([replace(job, is_taken=False)], [], [], {}, [], Evidence()).lost == 0


def failed(state: str = "FAILED", code: str = "1:0", **changed: object) -> Record:
    """Return JOB with another end than COMPLETED."""
    return record(state, code=code, **changed)


def test_a_task_that_was_killed_explains_the_failure_of_its_own_job() -> None:
    killed, its = failed(code="137:0"), "killed simgpu-task 501 of alice, job 7"
    assert one(killed, WELL, (done("kill_task", said=its),)).lost == 0
    assert one(killed, WELL, (done("kill_task", said="killed simgpu-task 600 of alice, job 8"),)).lost == 1
    assert one(killed, WELL, (done("kill_task", "n2", said=its),)).lost == 1
    assert one(killed, WELL, (done("kill_task", said="there was none"),)).lost == 1
    assert one(killed, WELL, (done("kill_task", began=90.0, said=its),)).lost == 1
    assert one(killed, WELL, (done("kill_task", began=120.0, said=its),)).lost == 1


@pytest.mark.parametrize(
    ("actions", "left"),
    [
        ((), 1),
        ((done("kill_hook", said="killed slurm-share-epi 9 of root, job 7"),), 0),
        ((done("kill_hook", "n2", said="killed slurm-share-epi 9 of root, job 7"),), 1),
        ((done("kill_hook", said="there was none"),), 1),
        ((done("kill_daemon"), done("kill_slurmd"), done("fill_state")), 1),
    ],
    ids=["nothing befell it", "its hook was killed", "another node's hook was", "no hook was there", "other actions"],
)
def test_what_is_left_is_wrong_where_no_hook_was_killed(actions: tuple[Done, ...], left: int) -> None:
    found = verdict.Judgement()
    verdict.judge_left({"n1": ["daemon 5 of alice"], "n2": []}, actions, {("a1", 7): WELL}, found)
    assert (found.left, len(found.wrong)) == (left, left)
    later = verdict.Judgement()
    files = {("a1", 7): WELL, ("a2", 8): (Line("task", 0, 170.0, "n1", "0.0", 600, "0"),)}
    verdict.judge_left({"n1": ["daemon 5 of alice"], "n2": []}, actions, files, later)
    assert later.left == 1


def test_what_is_left_of_the_cheaters_has_until_the_next_shared_job() -> None:
    cheats = (done("hold_locks", plan.CHEATER, said="job 7"),)
    hers = ["./user/mps/2003", "./user/mps/2003/5131-0b.ui", "./jobs/7", "./user/jobs/7/slots"]
    hers.append("ledger: leaving [{'job': {'job_id': 7, 'uid': 2003}}]")
    both = "ledger: jobs [{'job_id': 7, 'uid': 2003}, {'job_id': 8, 'uid': 2001}]"
    for left, count in (
        (hers, 0),
        ([*hers, both], 1),
        ([*hers, "./user/mps/2001/5131-0b.ui"], 1),
        ([*hers, "./jobs/77"], 1),
    ):
        found = verdict.Judgement()
        verdict.judge_left({"n1": left}, cheats, {}, found)
        assert (found.left, len(found.wrong)) == (count, count)
        assert found.counts["nodes with something left of the cheater's before their next shared job"] == 1


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
def test_an_action_that_cannot_end_a_job_so_explains_nothing(action: str, rec: Record) -> None:
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
        ("fill_state", "n1", failed(code="69:0"), f"slurm-share: job 7 shares its GPUs, but {UNSHARED_SECOND_NODE}"),
        ("fill_spool", "n1", failed(), "No space left on device"),
        (
            "fill_spool",
            "n1",
            failed("CANCELLED", "0:0"),
            "_slurm_rpc_requeue: Requeue of JobId=7 returned an error: Requested operation is presently disabled",
        ),
    ],
)
def test_each_action_explains_what_it_can_do_where_that_is_said(
    action: str, actor: str, rec: Record, said: str
) -> None:
    found = one(rec, WELL, (done(action, actor),), said)
    assert (found.lost, found.counts[f"{rec.state}, explained by {action}"]) == (0, 1)
    assert one(rec, WELL, (done(action, actor),), "simgpu-task: I am well").lost == 1
    assert one(rec, WELL, (done(action, "n2"),), said).lost == 1
    asked = evidence_of(said, (106.0, "_slurm_rpc_kill_job: REQUEST_KILL_JOB JobId=7 uid 0"))
    is_asked = rec.state == "CANCELLED" and "Requeue" not in said
    assert one(rec, WELL, (done(action, actor),), asked).lost == is_asked


def test_what_is_logged_long_after_a_jobs_end_is_of_another_job_with_its_number() -> None:
    away = "requeue job JobId=7 due to failure of node n1"
    for at, lost in ((130.0, 0), (500.0, 1)):
        assert one(failed("NODE_FAIL", "0:1"), WELL, (done("cut_power"),), evidence_of("", (at, away))).lost == lost


def test_a_message_of_ours_is_not_slurms() -> None:
    said = "slurm-share: job 7 has no slot: Connection refused"
    assert one(failed(), WELL, (done("kill_slurmd"),), said).lost == 1
    assert one(failed(), WELL, (done("kill_slurmd"),), f"{said}\nsrun: error: Connection refused").lost == 0


def test_a_neighbour_that_slurmctld_learns_of_after_the_refusal_was_forgotten() -> None:
    refused, told = failed(code="69:0"), "cannot run on n1: and job 8 of carol is still on it"
    learned = "error: Registered PENDING JobId=8 StepId=8.0 on node n1"
    said = evidence_of(told, (115.0, learned))
    assert one(refused, (), (done("kill_slurmctld", "ctl", 100.5),), said).lost == 0
    assert one(refused, (), (done("kill_slurmctld", "ctl", 20.5),), evidence_of(told, (99.0, learned))).lost == 0
    assert one(refused, (), (done("kill_slurmctld", "ctl", 20.5),), evidence_of(told, (21.0, learned))).lost == 1
    for other in (learned.replace("n1", "n2"), "_job_complete: JobId=8 cancelled by interactive user"):
        assert one(refused, (), (done("kill_slurmctld", "ctl", 100.5),), evidence_of(told, (115.0, other))).lost == 1
    assert one(refused, (), (done("kill_slurmctld", "ctl", 100.5),), told).lost == 1
    assert one(refused, (), (done("kill_slurmctld", "ctl", 103.0),), said).lost == 1
    assert one(refused, (), (done("kill_slurmd", "n1", 100.5),), said).lost == 1


def test_a_neighbour_that_slurmctld_gave_up_was_there_until_it_got_the_node_again() -> None:
    refused, cut = failed(code="69:0"), done("cut_network", "n1", 20.0)
    told = "cannot run on n1: and job 8 of carol is still on it"
    away, again = "requeue job JobId=8 due to failure of node n1", "sched: Allocate JobId=8 NodeList=n[1-2] #CPUs=2"
    assert one(refused, (), (cut,), evidence_of(told, (95.0, away))).lost == 0
    assert one(refused, (), (cut,), evidence_of(told, (95.0, away), (96.0, again.replace("1-2", "2-3")))).lost == 0
    assert one(refused, (), (cut,), evidence_of(told, (95.0, away), (96.0, again))).lost == 1
    assert one(refused, (), (cut,), evidence_of(told, (30.0, away))).lost == 1


def test_the_figures_that_are_kept_are_those_of_this_verdict() -> None:
    recorded = json.loads((RESULTS / "chaos_events.json").read_text(encoding="utf-8"))
    rows = {
        row["what"]: row["value"] for row in json.loads((RESULTS / "chaos.json").read_text(encoding="utf-8"))["rows"]
    }
    found = replay.judge_again(recorded)
    assert found.wrong == []
    assert rows["jobs and array elements"] == found.counts.pop("jobs") > 0
    assert {what: rows[what] for what in found.counts} == dict(found.counts)
    assert rows["jobs lost for no reason that is known"] == found.lost
    lost = {**recorded, "events": [told for told in recorded["events"] if told["action"] != "cancel"]}
    # Some of them have a second reason, such as a slurmctld that forgot the job.
    assert replay.judge_again(lost).lost > 0.8 * rows["CANCELLED, explained by cancel"] > 0
    mute = replay.judge_again({**recorded, "outputs": {}, "log": []})
    assert mute.lost > rows["jobs lost for no reason that is known"]


def test_a_cancel_that_a_killed_slurmctld_forgot_explains_a_failed_job() -> None:
    asked, start = (105.5, "_slurm_rpc_kill_job: REQUEST_KILL_JOB JobId=7 uid 2001"), (107.0, STARTED)
    cancel = done("cancel", "alice", said="cancelled 7")
    assert one(failed(), WELL, (cancel,), evidence_of("", asked, start)).lost == 0
    assert one(failed(), WELL, (cancel,), evidence_of("", asked)).lost == 1
    assert one(failed(), WELL, (cancel,), evidence_of("", start)).lost == 1
    assert one(failed(code="69:0"), WELL, (cancel,), evidence_of("", asked, start)).lost == 1


def test_every_action_has_its_effects() -> None:
    assert set(causes.EFFECTS) == {*plan.FAULTS, *plan.CONTROLLER_FAULTS}


def test_nothing_befalls_the_last_third() -> None:
    assert list(plan.hit_nodes(["n1", "n2", "n3", "n4", "n5", "n6"])) == ["n1", "n2", "n3", "n4"]
    assert list(plan.hit_nodes(["n1", "n2"])) == ["n1"]
    hit = {event.actor for event in plan.make(5, 1200, ["n1", "n2", "n3"])}
    assert hit == {"n1", "n2", "ctl", *plan.USERS, plan.CHEATER}


def test_a_second_start_of_one_run_is_seen_and_a_requeue_is_none() -> None:
    lost_runs = evidence_of("", (104.0, "sched: Allocate JobId=7 NodeList=n1"))
    assert one(record(), (*WELL, line("start", 106.0)), (), lost_runs).twice == 0
    assert one(record(), (*WELL, line("start", 103.0)), (), lost_runs).twice == 1
    assert one(record(), (*WELL, line("start", 103.0))).twice == 1
    assert one(record(), (*WELL, line("task", 103.0, "0.1"))).twice == 1
    again = tuple(Line(had.word, 1, had.at + 20, had.node, had.what) for had in WELL)
    assert one(record(restarts=1), (*WELL, *again)).wrong == []


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


def test_a_task_that_starts_when_the_others_have_ended_is_beside_none() -> None:
    """The node's Prolog knows that before the srun that slurmctld does not answer; the tasks have to agree."""
    bobs = Submission("b1", "bob", "plain", 100.0, is_taken=True)
    over = tuple(replace(had, word="over", at=103.5) for had in WELL[1:3])
    alices = (line("start", 101.0, node="login"), *WELL[1:3], *over, line("end", 110.0, "0", node="login"))
    files = {("a1", 7): alices, ("b1", 8): (line("start", 105.0), line("end", 106.0, "0"))}
    both = [record(), record(job_id=8, tag="b1")]
    text = "prolog: job 7 has a slurmstepd here, 102 s old, that has no task any more and does not end: it is ignored"
    for at, said, mixed in ((104.0, f"n1: {text}", 0), (105.5, f"n1: {text}", 1), (104.0, f"n2: {text}", 1)):
        assert judge([JOB, bobs], [], both, files, [], evidence_of("", (at, said))).mixed == mixed
    assert judge([JOB, bobs], [], both, files, [], evidence_of("", (104.0, f"n1: {text}".replace("7", "9")))).mixed == 1
    told = evidence_of("", (104.0, f"n1: {text}"))
    late = tuple(replace(had, at=106.0) if had.word == "over" else had for had in alices)
    for there in ((*WELL, *over), (*WELL[:3], *over[:1], WELL[3]), late):
        assert judge([JOB, bobs], [], both, {**files, ("a1", 7): there}, [], told).mixed == 1


@pytest.mark.parametrize(
    "said",
    [
        "Prolog launch failure, JobId=7",
        "Requeue of JobId=7 returned an error: Requested operation is presently disabled",
        "Requeue of JobId=7 returned an error: Only batch jobs are accepted or processed",
    ],
)
def test_a_job_whose_prolog_was_killed_and_that_must_not_be_requeued_is_cancelled(said: str) -> None:
    kill = done("kill_hook", said="killed slurm-share-pro 9 of root, job 7")
    assert one(failed("CANCELLED", "0:0"), WELL, (kill,), evidence_of("", (105.5, said))).lost == 0
    assert one(failed("CANCELLED", "0:0"), WELL, (kill,)).lost == 1
    assert one(failed("CANCELLED", "0:0"), WELL, (kill,), evidence_of("", (300.0, said))).lost == 1
    epilog = replace(kill, said=kill.said.replace("-pro", "-epi"))
    assert one(failed("CANCELLED", "0:0"), WELL, (epilog,), evidence_of("", (105.5, said))).lost == 1


def test_a_drain_for_a_hook_is_ours_unless_the_hook_was_killed() -> None:
    drains = [
        Drain(106.0, "n1", "Prolog error"),
        Drain(107.0, "n1", "Epilog error"),
        Drain(1.0, "n2", "Kill task failed"),
    ]
    kill = done("kill_hook", said="killed slurm-share-pro 9 of root, job 7")
    log = evidence_of("", (105.5, "error: Prolog launch failure, JobId=7"))
    assert judge([], [kill], [], {}, drains, Evidence()).drained == 2
    assert judge([], [], [], {}, drains, log).drained == 2
    found = judge([], [kill], [], {}, drains, log)
    assert (found.drained, found.counts["drained by Slurm: Kill task failed"]) == (1, 1)
    late = replace(drains[0], at=200.0)
    assert judge([], [kill], [], {}, [late], log).drained == 0
    for other in (replace(late, node="n2"), replace(late, at=500.0), drains[1]):
        assert judge([], [kill], [], {}, [other], log).drained == 1
    assert judge([], [kill], [], {}, [late], evidence_of("", (190.0, log.log[0].text))).drained == 1
    slurmds = "n1: error: JobId=7 SLUID=s7 prolog failed status=0:9"
    for said, drained in ((slurmds, 0), (slurmds.replace("n1", "n2"), 1), (slurmds.replace("0:9", "1:0"), 1)):
        assert judge([], [kill], [], {}, drains[:1], evidence_of("", (105.5, said))).drained == drained
    never = "n1: error: REQUEST_LAUNCH_PROLOG notification failed"
    for at, drained in ((105.0, 0), (-20.0, 1)):
        assert judge([], [], [], {}, [drains[0]], evidence_of("", (at, never))).drained == drained


def test_the_cheater_does_everything_and_changes_nothing_else_that_a_seed_decides() -> None:
    events = plan.make(5, 1200, ["n1", "n2", "n3"])
    assert {one.action for one in events if one.actor == plan.CHEATER} == set(plan.CHEATS)
    honest = [one for one in events if one.actor != plan.CHEATER]
    assert len(honest) > 400
    assert {one.action for one in honest}.isdisjoint(plan.CHEATS)


def test_a_task_of_a_share_without_a_slot_is_seen() -> None:
    assert one(record(), tuple(replace(had, slot="0") for had in WELL)).unshared == 0
    found = one(record(), tuple(replace(had, slot="none") for had in WELL))
    assert (found.unshared, len(found.wrong)) == (2, 2)
    ordinary = replace(JOB, kind="ordinary")
    lines = {("a1", 7): tuple(replace(had, slot="none") for had in WELL)}
    assert judge([ordinary], [], [record()], lines, [], Evidence()).wrong == []


CONTINUED = "2026-11-29T00:00:00+0000 prolog: job 9 of uid 2003: its clean-up is not finished: continuing it\n"
UNDONE = "2026-11-29T00:00:00+0000 epilog: job 9 of uid 2003: a file system was mounted there: detached\n"
FULL = (
    "2026-11-29T00:00:00+0000 prolog: job 9: MPS on GPU-5131 failed: MPS in /run/slurm-share/user/mps/2001/5131: its "
    "daemon does not start: the file system of /run/slurm-share/user/mps/2001/5131 is full\n"
)
MOUNTED = done("mount", plan.CHEATER, said="job 9: 2 mounts on n1")


@pytest.mark.parametrize(
    ("actions", "log", "output", "wrong"),
    [
        ((), "", "", 0),
        ((), CONTINUED * verdict.MOST_SAME, "", 0),
        ((), CONTINUED * (verdict.MOST_SAME + 1), "", 1),
        ((), CONTINUED.replace("2003", "2001") * 50, "", 0),
        ((MOUNTED,), "", "", 1),
        ((MOUNTED,), UNDONE, "", 0),
        ((MOUNTED,), UNDONE.replace("2003", "2001"), "", 1),
        ((replace(MOUNTED, said="job 9: 0 mounts on n1"),), "", "", 0),
        ((replace(MOUNTED, said="job 9: it does not run"),), "", "", 0),
        ((), FULL, "", 1),
        ((replace(MOUNTED, said="job 9: 0 mounts on n1"),), FULL, "", 0),
        ((), "", "remove /tmp/slurm-share-2001 first", 1),
    ],
)
def test_the_log_names_the_cheater_once_and_sends_nobody_to_her_folders(
    actions: tuple[Done, ...], log: str, output: str, wrong: int
) -> None:
    found = verdict.Judgement()
    verdict.judge_cheats(actions, {"n1": log, "n2": ""}, {("a1", 7): output}, found)
    assert len(found.wrong) == wrong
