"""The verdict on chaos: it must see what it is there to see."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from chaos import causes, plan, verdict
from chaos import papers as papers_of_a_run
from chaos.causes import Done
from chaos.plan import Event
from chaos.verdict import Drain, Line, Record, Submission, judge

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


WELL = (line("start", 101.0), line("task", 102.0, "0.0"), line("task", 102.0, "0.1"), line("end", 110.0, "0"))


def done(deed: str, actor: str = "n1", began: float = 105.0, said: str = "killed it 1") -> Done:
    """A deed."""
    return Done(Event(0.0, actor, deed), began, began + 1, said)


def one(rec: Record, lines: tuple[Line, ...] = WELL, deeds: tuple[Done, ...] = ()) -> verdict.Judgement:
    """The verdict on JOB alone."""
    return judge([JOB], deeds, [rec], {("a1", 7): lines}, [])


def test_a_job_that_did_its_work_once_is_well() -> None:
    """Nothing to say."""
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
    """COMPLETED and not at its end, never ended, failed for no reason."""
    assert one(rec, lines).lost == 1


def test_a_job_that_slurm_does_not_know_is_lost_unless_slurmctld_was_killed() -> None:
    """A little after it was taken."""
    assert judge([JOB], [], [], {}, []).lost == 1
    assert judge([JOB], [done("kill_slurmctld", "ctl", 103.0)], [], {}, []).lost == 0


def failed(state: str = "FAILED", code: str = "1:0", **changed: object) -> Record:
    """JOB, which did not complete."""
    return record(state, code=code, **changed)


def test_what_befell_its_node_explains_a_failure_and_nothing_else_does() -> None:
    """Not on another node, not before it came, not after it went."""
    killed = failed(code="137:0")
    assert one(killed, WELL, (done("kill_task"),)).lost == 0
    assert one(killed, WELL, (done("kill_task", "n2"),)).lost == 1
    assert one(killed, WELL, (done("kill_task", said="there was none"),)).lost == 1
    assert one(killed, WELL, (done("kill_task", began=90.0),)).lost == 1
    assert one(killed, WELL, (done("kill_task", began=120.0),)).lost == 1


@pytest.mark.parametrize(
    ("deed", "rec"),
    [
        ("fill_log", failed()),
        ("fill_log", failed(code="69:0")),
        ("kill_task", failed(code="69:0")),
        ("kill_task", failed("CANCELLED", "0:15")),
        ("kill_task", failed("NODE_FAIL", "0:1")),
        ("kill_hook", failed(code="69:0")),
        ("kill_slurmd", failed(code="69:0")),
        ("cut_power", failed(code="69:0")),
        ("reboot", failed(code="69:0")),
        ("fill_spool", failed(code="69:0")),
        ("fill_state", failed("NODE_FAIL", "0:1")),
        ("kill_server", failed("CANCELLED", "0:15")),
        ("cut_network", failed("TIMEOUT", "0:0")),
        ("reboot", failed("CANCELLED", "0:0")),
        ("requeue", failed()),
        ("cancel", failed("CANCELLED", "0:15")),
        ("whole", failed()),
    ],
)
def test_a_deed_that_cannot_end_a_job_so_explains_nothing(deed: str, rec: Record) -> None:
    """On the job's own node, in the middle of its run: lost all the same."""
    found = one(rec, WELL, (done(deed),))
    assert found.lost == 1
    assert "for no reason that is known" in found.wrong[0]


@pytest.mark.parametrize(
    ("deed", "rec"),
    [
        ("kill_task", failed()),
        ("kill_daemon", failed(code="69:0")),
        ("kill_server", failed()),
        ("kill_hook", failed("NODE_FAIL", "0:1")),
        ("kill_slurmd", failed()),
        ("cut_network", failed("NODE_FAIL", "0:1")),
        ("cut_power", failed("NODE_FAIL", "0:1")),
        ("reboot", failed()),
        ("fill_state", failed(code="69:0")),
        ("fill_spool", failed()),
    ],
)
def test_each_deed_explains_what_it_can_do_and_is_counted(deed: str, rec: Record) -> None:
    """Once, under its own name."""
    found = one(rec, WELL, (done(deed),))
    assert (found.lost, found.counts[f"{rec.state}, explained by {deed}"]) == (0, 1)


def test_a_deed_explains_within_its_own_time() -> None:
    """A task's kill: at once. A cut network: until the node is back; a refusal, until what was given up there ended."""
    cut = Done(Event(0.0, "n1", "cut_network"), 105.0, 120.0, "no network for 15.0 s")
    late = {"start": 150.0, "end": 160.0}
    assert one(failed(**late), WELL, (cut,)).lost == 1
    assert one(failed(code="69:0", **late), WELL, (cut,)).lost == 0
    short = replace(cut, ended=110.0)  # nothing was given up
    assert one(failed(code="69:0", **late), WELL, (short,)).lost == 1
    assert one(failed(code="69:0", start=170.0, end=180.0), WELL, (cut,)).lost == 1
    assert one(failed(code="69:0"), WELL, (cut,)).lost == 1  # it was let in before the cut


def test_the_controllers_kill_explains_only_who_began_about_then() -> None:
    """It may have forgotten that; what has run for long goes on without it."""
    kill = (done("kill_slurmctld", "ctl", 105.0),)
    assert one(failed(), WELL, kill).lost == 0
    assert one(failed(start=50.0), WELL, kill).lost == 1


def test_a_user_who_cancels_an_array_cancels_each_of_its_elements() -> None:
    """By the number of the array, which is one element's own as well."""
    assert one(failed("CANCELLED", "0:15"), WELL, (done("cancel", "alice", said="cancelled 7"),)).lost == 0
    assert one(failed("CANCELLED", "0:15"), WELL, (done("cancel", "alice", said="cancelled 77"),)).lost == 1
    assert one(failed("CANCELLED", "0:15", array=77), WELL, (done("cancel", "alice", said="cancelled 77"),)).lost == 0


def test_of_two_deeds_the_nearer_one_is_counted() -> None:
    """A job is explained once."""
    found = one(failed(), WELL, (done("cut_network", began=90.0), done("kill_server", began=108.0)))
    assert found.counts["FAILED, explained by kill_server"] == 1
    assert found.counts["FAILED, explained by cut_network"] == 0


def test_a_loss_among_many_jobs_and_deeds_is_found() -> None:
    """Twenty minutes of trouble as planned, a job every ten seconds on each node: of those refused for no reason
    most are found on the nodes that nothing befalls, and many on the others."""
    nodes = [f"n{number}" for number in range(1, 7)]
    told = [
        Done(event, event.at_s, event.at_s + event.lasts_s, "killed it 1") for event in plan.make(4, 1200, nodes)
        if event.actor not in plan.USERS
    ]  # fmt: skip
    found: dict[str, list[bool]] = {}
    for node in nodes:
        for start in range(0, 1200, 10):
            lost = failed(code="69:0", nodes=node, start=float(start), end=float(start + 8))
            found.setdefault(node, []).append(verdict.cause(JOB, lost, told) is None)
    shares = {node: sum(some) / len(some) for node, some in found.items()}
    quiet = [node for node in nodes if node not in plan.befallen(nodes)]
    assert len(quiet) == 2
    assert min(shares[node] for node in quiet) > 0.5
    assert sum(shares[node] for node in plan.befallen(nodes)) / 4 > 0.3
    assert verdict.cause(JOB, failed(nodes=quiet[0]), [one for one in told if one.event.actor != "ctl"]) is None


def test_how_sharp_the_verdict_is_is_counted() -> None:
    """A job that is COMPLETED is judged once more as if it had not been."""
    sharp = one(record()).counts
    blunt = one(record(), WELL, (done("kill_server"),)).counts
    for what in ("exit code 69", "exit code 1"):
        name = f"COMPLETED, where {what} would be a loss"
        assert (sharp[name], blunt[name]) == (1, 0)


def test_the_figures_that_are_kept_are_those_of_this_verdict() -> None:
    """Given once more on what is kept beside them."""
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
    assert papers_of_a_run.judge_again(lost).lost == rows["CANCELLED, explained by cancel"] > 0


def test_every_deed_has_its_effects_and_its_words() -> None:
    """None is judged by what another can do."""
    assert set(causes.EFFECTS) == {*plan.FAULTS, *plan.CONTROLLER_FAULTS}


def test_nothing_befalls_the_last_third() -> None:
    """One node at least."""
    assert list(plan.befallen(["n1", "n2", "n3", "n4", "n5", "n6"])) == ["n1", "n2", "n3", "n4"]
    assert list(plan.befallen(["n1", "n2"])) == ["n1"]
    hit = {event.actor for event in plan.make(5, 1200, ["n1", "n2", "n3"])}
    assert hit == {"n1", "n2", "ctl", *plan.USERS}


def test_a_second_start_of_one_run_is_seen_and_a_requeue_is_none() -> None:
    """The same task twice, too."""
    assert one(record(), (*WELL, line("start", 103.0))).twice == 1
    assert one(record(), (*WELL, line("task", 103.0, "0.1"))).twice == 1
    again = tuple(Line(had.word, 1, had.at + 20, had.node, had.what) for had in WELL)
    assert one(record(restarts=1), (*WELL, *again)).wrong == []


def test_a_triple_that_was_requeued_has_begun_each_task_once_in_all() -> None:
    """Its last run may have nothing left to do."""
    job = Submission("a1", "alice", "triple", 100.0, is_taken=True)
    tasks = tuple(line("task", 102.0, str(number)) for number in range(4))
    assert judge([job], [], [record(restarts=1)], {("a1", 7): tasks}, []).wrong == []
    assert judge([job], [], [record(restarts=1)], {("a1", 7): tasks[1:]}, []).lost == 1


def test_a_refusal_of_unlike_nodes_is_no_loss() -> None:
    """n1 has other GPUs than the rest; two nodes that are alike are no reason."""
    assert one(record("FAILED", nodes="n[1-2]", code="69:0")).lost == 0
    assert one(record("FAILED", nodes="n[2-3]", code="69:0")).lost == 1
    assert one(record("FAILED", nodes="n[1-2]", code="1:0")).lost == 1


def test_another_users_task_beside_a_shared_one_is_seen() -> None:
    """Within the time of the shared job on that node; not after it."""
    bobs = Submission("b1", "bob", "plain", 100.0, is_taken=True)
    for at, mixed in ((105.0, 1), (111.0, 0)):
        files = {("a1", 7): WELL, ("b1", 8): (line("start", at), line("end", at + 1, "0"))}
        assert judge([JOB, bobs], [], [record(), record(job_id=8, tag="b1")], files, []).mixed == mixed


def test_a_drain_for_a_hook_is_ours_unless_the_hook_was_killed() -> None:
    """One kill explains one drain."""
    drains = [
        Drain(106.0, "n1", "Prolog error"),
        Drain(107.0, "n1", "Epilog error"),
        Drain(1.0, "n2", "Kill task failed"),
    ]
    assert judge([], [], [], {}, drains).drained == 2
    found = judge([], [done("kill_hook")], [], {}, drains)
    assert (found.drained, found.counts["drained by Slurm: Kill task failed"]) == (1, 1)


def test_a_seed_decides_everything() -> None:
    """The same twice, another for another seed; every deed comes in twenty minutes."""
    events = plan.make(1, 1200, NODES)
    assert events == plan.make(1, 1200, NODES)
    assert events != plan.make(2, 1200, NODES)
    decks = {**plan.SUBMITTED, **plan.ANNOYANCES, **plan.FAULTS, **plan.CONTROLLER_FAULTS}
    assert {event.deed for event in events} == set(decks)


def test_slurms_words_are_read() -> None:
    """As `scontrol -o show jobs` writes them."""
    text = (
        "JobId=12 ArrayJobId=11 ArrayTaskId=2 JobName=a0003 UserId=alice(2001) JobState=NODE_FAIL Reason=NodeDown "
        "Restarts=2 ExitCode=0:1 StartTime=2026-01-02T03:04:05 EndTime=Unknown NodeList=n[1-2,4] BatchHost=n1\n"
    )
    (found,) = verdict.parse_records(text)
    assert (found.job_id, found.tag, found.state, found.restarts, found.code) == (12, "a0003", "NODE_FAIL", 2, "0:1")
    assert found.array == 11
    assert (found.start, found.end) == (1767323045.0, 0.0)
    assert verdict.expand(found.nodes) == {"n1", "n2", "n4"}
