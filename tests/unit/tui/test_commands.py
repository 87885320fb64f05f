"""Actions: who may act, what the question says, and what is done after a yes."""

from __future__ import annotations

import pytest
from dashboards import a_survey
from slurm_share_tui import action_rules
from slurm_share_tui import actions as room
from slurm_share_tui.action_rules import DashboardUser
from slurm_share_tui.actions import JobActions
from slurm_share_tui.location import JobPlace, Process

from slurm_share.core.errors import CommandError, SlurmShareError, UsageError
from slurm_share.core.records import ProcessIdentity
from slurm_share.load.snapshot import NodeLoad, ProcessLoad, Snapshot, Survey
from slurm_share.node import processes
from slurm_share.slurm import jobs as slurm_jobs
from slurm_share.slurm import signals
from slurm_share.slurm.records import QueuedJob
from slurm_share.triples import job_output
from slurm_share.triples.job_output import JobFiles

ALICE, BOB = DashboardUser("alice", 2001), DashboardUser("bob", 2002)
HOSTILE = 'y"  77  your own\n\x1b[31m[red]' + "長" * 1000


def a_job(number: int, **more) -> QueuedJob:
    """Return a job of alice on n1."""
    known = {"job_id": number, "name": "sweep", "user": "alice", "uid": ALICE.uid, "partition": "gpu", "start": 100}
    return QueuedJob(**{**known, "states": ("RUNNING",), "nodes": "n1", **more})


BOBS = {"user": "bob", "uid": BOB.uid}
QUEUE = (
    a_job(4711),
    a_job(4712, **BOBS),
    a_job(78, array=77, element=1),
    a_job(79, array=77, element=2),
    a_job(77, array=77, waiting="3-5%2", states=("PENDING",), nodes="", start=None),
    a_job(80, het=(80, 0)),
    a_job(81, het=(80, 1), nodes="n2"),
)


def survey_of_n1(**more) -> Survey:
    """Return alice's survey of n1 through srun, with her process 900."""
    process = ProcessLoad(pid=900, start_ticks=5, name="python", uid=ALICE.uid, user="alice", job=4711, slot=3)
    snapshot = Snapshot(node="n1", taken=1.0, cpus=8, cores=8, processes=(process,))
    nodes = (NodeLoad(name="n1", snapshot=snapshot), NodeLoad(name="n2"))
    return Survey(**{"taken": 1.0, "user": "alice", "source": "srun", "nodes": nodes, "jobs": QUEUE, **more})


def job(word: str = "4711", number: int | None = 4711, owner: str = "alice") -> JobPlace:
    return JobPlace(owner=owner, job=word, job_id=number)


def process(**more) -> JobPlace:
    """Return alice's process 900, task 3 of step 0 of job 4711."""
    known = {"owner": "alice", "job": "4711", "job_id": 4711, "node": "n1", "process": Process(900, 5)}
    return JobPlace(**{**known, "process_name": "python", "step": "0", "task": 3, **more})


@pytest.fixture
def world(monkeypatch):
    """A Slurm with QUEUE in it, which keeps the commands it gets; nothing else is reachable."""

    class World:
        def __init__(self) -> None:
            self.queue = QUEUE
            self.done: list = []
            self.refuses: dict[str, str] = {}

        def read_queue(self, *, jobs=(), **_):
            found = [one for one in self.queue if {one.job_id, one.array, one.het and one.het[0]} & set(jobs)]
            return None, tuple(found)

        def cancel(self, ids):
            self.done.append(("cancel", *ids))
            return {one: why for one, why in self.refuses.items() if one in ids}

    it = World()
    monkeypatch.setattr(slurm_jobs, "read_queue", it.read_queue)
    monkeypatch.setattr(signals, "cancel", it.cancel)
    monkeypatch.setattr(signals, "through_srun", lambda argv, env: it.done.append(tuple(argv)))
    monkeypatch.setattr(signals, "through_scancel", lambda argv: it.done.append(tuple(argv)))
    monkeypatch.setattr(signals, "send", lambda known, name: it.done.append((known, name)))
    return it


# ---- Who may ----


def test_the_owner_may_and_an_operator_may_and_nobody_else(world) -> None:
    for action in ("cancel", "signal", "output"):
        assert JobActions(me=ALICE).why_not(action, [job()], survey_of_n1()) == ""
        assert "belongs to alice: you may" in JobActions(me=BOB).why_not(action, [job()], survey_of_n1(user="bob"))
        assert JobActions(me=BOB).why_not(action, [job()], survey_of_n1(user="bob", everybody=True)) == ""
        assert JobActions(me=BOB).why_not(action, [job()], survey_of_n1(user="alice")) == ""


def test_one_foreign_row_among_the_marked_is_enough(world) -> None:
    assert "4712 belongs to bob" in JobActions(me=ALICE).why_not(
        "cancel", [job(), job("4712", 4712, "bob")], survey_of_n1()
    )


@pytest.mark.parametrize(
    ("survey", "said"),
    [
        (None, "wait for the first one"),
        (a_survey(), "in a demonstration"),
        (survey_of_n1(source="demo"), "in a demonstration"),
        (survey_of_n1(source="replay"), "in a recording"),
    ],
    ids=["nothing yet", "demo", "demo of alice", "replay"],
)
def test_nothing_is_touched_that_is_not_there(world, survey, said) -> None:
    for action in ("cancel", "signal", "output"):
        assert said in JobActions(me=ALICE).why_not(action, [job()], survey)
    if survey is not None:
        with pytest.raises(UsageError, match=said):
            JobActions(me=ALICE).ask_cancel([job()], survey)


def test_a_read_only_dashboard_touches_nothing_and_shows_output(world) -> None:
    hand = JobActions(readonly=True, me=ALICE)
    assert "read-only" in hand.why_not("cancel", [job()], survey_of_n1())
    assert "read-only" in hand.why_not("signal", [process()], survey_of_n1())
    assert hand.why_not("output", [job()], survey_of_n1()) == ""
    planned = JobActions(me=ALICE).ask_cancel([job()], survey_of_n1())
    with pytest.raises(UsageError, match="read-only"):
        hand.carry_out(planned)
    assert world.done == []


def test_what_there_is_nothing_to_do_for_is_said(world) -> None:
    hand = JobActions(me=ALICE)
    assert "put the cursor on a job" in hand.why_not("cancel", [], survey_of_n1())
    assert "one at a time: 2 rows" in hand.why_not("signal", [job(), process()], survey_of_n1())
    assert "in no job" in hand.why_not("cancel", [process(job="", job_id=None)], survey_of_n1())
    assert "cannot be reached" in hand.why_not("signal", [process(job="", job_id=None)], survey_of_n1())
    unknown = process(job="", job_id=None, process=Process(900, None))
    assert "is unknown: its PID may soon belong" in hand.why_not("signal", [unknown], survey_of_n1(source="local"))


# ---- Cancel ----


def test_the_question_names_each_job_and_the_command(world) -> None:
    planned = JobActions(me=BOB).ask_cancel([job(), job("4712", 4712, "bob")], survey_of_n1(user="bob", everybody=True))
    assert planned.title == "Cancel 2 jobs?"
    assert planned.lines == (
        '4711  OF alice  running, on n1  "sweep"',
        '4712  your own  running, on n1  "sweep"',
    )
    assert planned.command == "scancel -- 4711 4712"
    assert world.done == []


def test_an_array_in_one_line_is_every_element_one_by_one(world) -> None:
    planned = JobActions(me=ALICE).ask_cancel([job("77", 78)], survey_of_n1())
    assert [line.split()[0] for line in planned.lines] == ["77_1", "77_2", "77_[3-5]"]
    assert JobActions(me=ALICE).ask_cancel([job("77_2", 79)], survey_of_n1()).command == "scancel -- 77_2"
    waiting = JobActions(me=ALICE).ask_cancel([job("77_[3-5%2]", 77)], survey_of_n1())
    assert waiting.command == "scancel -- '77_[3-5]'"


def test_a_component_is_ended_with_the_whole_job(world) -> None:
    assert JobActions(me=ALICE).ask_cancel([job("80+1", 81)], survey_of_n1()).command == "scancel -- 80"


def test_a_hostile_name_stays_between_quotation_marks_on_its_line(world) -> None:
    world.queue = (a_job(4711, name=HOSTILE),)
    (line,) = JobActions(me=ALICE).ask_cancel([job()], survey_of_n1()).lines
    assert line.startswith('4711  your own  running, on n1  "y"  77  your own\\n\\x1b[31m[red]長')
    assert line.isprintable()
    assert len(line) < 100


def test_a_job_that_has_ended_is_not_asked_about(world) -> None:
    world.queue = ()
    with pytest.raises(SlurmShareError, match="no job 4711: it has ended"):
        JobActions(me=ALICE).ask_cancel([job()], survey_of_n1())


def test_a_number_that_is_another_users_by_now_is_refused(world) -> None:
    world.queue = (a_job(4711, **BOBS),)
    with pytest.raises(SlurmShareError, match="belongs to bob, not to alice: nothing is done"):
        JobActions(me=ALICE).ask_cancel([job()], survey_of_n1())
    with pytest.raises(SlurmShareError, match="belongs to bob, not to alice: nothing is done"):
        JobActions(me=DashboardUser("root", 0)).ask_cancel([job()], survey_of_n1(user="root", everybody=True))


def test_between_question_and_answer_the_queue_is_read_again(world) -> None:
    hand = JobActions(me=ALICE)
    planned = hand.ask_cancel([job(), job("77", 78), job("80+0", 80)], survey_of_n1())
    world.queue = (
        a_job(4711, **BOBS),
        a_job(79, array=77, element=2),
        a_job(82, array=77, element=3),
        a_job(77, array=77, waiting="4-5%2", states=("PENDING",), nodes="", start=None),
    )
    assert hand.carry_out(planned) == ("cancelled 77_2, 77_3, 77_[4-5]", "4711, 77_1, 80 had ended")
    assert world.done == [("cancel", "77_2", "77_3", "77_[4-5]")]


def test_a_job_that_was_put_back_meanwhile_is_not_cancelled(world) -> None:
    hand = JobActions(me=ALICE)
    planned = hand.ask_cancel([job()], survey_of_n1())
    for anew in (a_job(4711, start=200), a_job(4711, states=("PENDING",), nodes="", start=None)):
        world.queue = (anew,)
        assert hand.carry_out(planned) == ("4711 had ended",)
    assert world.done == []
    planned = hand.ask_cancel([job()], survey_of_n1())
    world.queue = (a_job(4711, start=300),)
    assert hand.carry_out(planned) == ("cancelled 4711",)


def test_what_slurm_refuses_is_said_in_its_words(world) -> None:
    hand = JobActions(me=BOB)
    planned = hand.ask_cancel([job(), job("4712", 4712, "bob")], survey_of_n1(user="bob", everybody=True))
    world.refuses = {"4711": "Access/permission denied\x1b[2J"}
    assert hand.carry_out(planned) == (
        "cancelled 4712",
        "4711 was not cancelled; Slurm says: Access/permission denied\\x1b[2J",
    )
    world.refuses["4712"] = "no"
    with pytest.raises(SlurmShareError, match="4711 was not cancelled"):
        hand.carry_out(planned)


def test_a_slurm_that_does_not_answer_the_second_time_cancels_nothing(world, monkeypatch) -> None:
    hand = JobActions(me=ALICE)
    planned = hand.ask_cancel([job()], survey_of_n1())

    def silent(**_):
        raise CommandError(("squeue",), None, "no answer within 30 s")

    monkeypatch.setattr(slurm_jobs, "read_queue", silent)
    with pytest.raises(CommandError):
        hand.carry_out(planned)
    assert world.done == []


# ---- Signals ----


def of(target: JobPlace, survey: Survey, me: DashboardUser = ALICE) -> list[str]:
    return [scope.of for scope in JobActions(me=me).scopes(target, survey)]


def test_the_least_comes_first_and_only_what_can_be_reached(world) -> None:
    assert of(process(), survey_of_n1()) == ["process", "step", "job", "script"]
    assert of(job(), survey_of_n1()) == ["job", "script"]
    assert of(process(), survey_of_n1(user="bob", everybody=True), BOB) == ["step", "job", "script"]
    assert of(process(), survey_of_n1(user="bob", everybody=True, source="local"), BOB)[0] == "process"
    assert of(process(job="", job_id=None, step=""), survey_of_n1(source="local")) == ["process"]
    assert of(process(step="extern"), survey_of_n1()) == ["process", "job", "script"]
    assert of(process(process=Process(900, None)), survey_of_n1()) == ["step", "job", "script"]
    assert of(process(node="n9"), survey_of_n1()) == ["step", "job", "script"]
    assert of(process(node="n1;reboot"), survey_of_n1()) == ["step", "job", "script"]


def test_mps_is_nobodys_to_signal(world) -> None:
    daemon = process(job="", job_id=None, step="", process_name="nvidia-cuda-mps")
    assert "serves every task on its GPU" in JobActions(me=ALICE).why_not(
        "signal", [daemon], survey_of_n1(source="local")
    )
    server = process(process_name="nvidia-cuda-mps-server")
    assert of(server, survey_of_n1()) == ["step", "job", "script"]


def ask(target: JobPlace, which: str, name: str, survey: Survey | None = None, me: DashboardUser = ALICE):
    hand, survey = JobActions(me=me), survey or survey_of_n1()
    scope = next(scope for scope in hand.scopes(target, survey) if scope.of == which)
    return hand, hand.ask_signal(target, scope, name, survey)


def test_ones_own_process_is_signalled_by_a_step_on_its_node(world) -> None:
    hand, planned = ask(process(), "process", "TERM")
    assert planned.title == "Send SIGTERM?"
    assert planned.lines == (
        'process 900 on n1, your own, task 3 of step 0 of job 4711  "python"',
        "SIGTERM: end in an orderly way",
    )
    assert "--nodelist=n1" in planned.command
    assert planned.command.endswith("signal --pid=900 --start=5 --job=4711 TERM")
    assert world.done == []
    assert hand.carry_out(planned) == ("SIGTERM sent to process 900",)
    ((*argv,),) = world.done
    assert argv[:2] == ["srun", "--jobid=4711"]


def test_a_step_and_a_job_are_signalled_by_scancel(world) -> None:
    for which, target, argv in (
        ("step", process(), ("scancel", "--signal=USR1", "--", "4711.0")),
        ("step", process(step="batch"), ("scancel", "--signal=USR1", "--batch", "--", "4711")),
        ("job", job("77_2", 79), ("scancel", "--signal=USR1", "--", "79")),
        ("script", job("77_2", 79), ("scancel", "--signal=USR1", "--full", "--", "79")),
        ("job", job("80+1", 81), ("scancel", "--signal=USR1", "--", "81")),
    ):
        hand, planned = ask(target, which, "USR1")
        assert planned.command == " ".join(argv)
        hand.carry_out(planned)
        assert world.done.pop() == argv


def test_an_operator_signals_the_whole_step_and_the_question_says_so(world) -> None:
    _, planned = ask(process(), "step", "INT", survey_of_n1(user="bob", everybody=True), BOB)
    assert planned.lines[:2] == (
        "every task of step 0 of job 4711, on all of its nodes",
        '4711  OF alice  running, on n1  "sweep"',
    )


def test_on_this_node_the_process_itself_is_signalled(world, monkeypatch) -> None:
    hand, planned = ask(process(job="", job_id=None), "process", "STOP", survey_of_n1(source="local"))
    assert planned.command == "kill -STOP 900"
    hand.carry_out(planned)
    assert world.done.pop() == (ProcessIdentity(900, 5, ALICE.uid), "STOP")
    monkeypatch.setattr(processes, "read_user_id", {"alice": 2001}.get)
    look = survey_of_n1(user="bob", everybody=True, source="local")
    hand, planned = ask(process(), "process", "STOP", look, BOB)
    hand.carry_out(planned)
    assert world.done.pop() == (ProcessIdentity(900, 5, 2001), "STOP")
    assert planned.lines[0] == 'process 900 on n1, OF alice, task 3 of step 0 of job 4711  "python"'
    with pytest.raises(SlurmShareError, match="does not know the user"):
        ask(process(owner="nobody-here"), "process", "STOP", look, BOB)


def test_a_job_that_is_another_one_by_now_gets_no_signal(world) -> None:
    hand, planned = ask(process(), "process", "KILL")
    for queue in ((), (a_job(4711, start=200),), (a_job(4711, **BOBS),)):
        world.queue = queue
        with pytest.raises(SlurmShareError, match="has ended meanwhile; nothing is sent"):
            hand.carry_out(planned)
    world.queue = (a_job(4711, **BOBS),)
    with pytest.raises(SlurmShareError, match="belongs to bob, not to alice"):
        ask(process(), "process", "KILL")
    world.queue = ()
    with pytest.raises(SlurmShareError, match="has ended; nothing is sent"):
        ask(process(), "process", "KILL")
    world.queue = (a_job(4711, states=("PENDING",), nodes=""),)
    with pytest.raises(SlurmShareError, match="is not running"):
        ask(process(), "process", "KILL")
    assert world.done == []


def test_an_array_in_one_line_gets_no_signal(world) -> None:
    with pytest.raises(UsageError, match="77 has 3 parts in the queue: choose one of them"):
        ask(job("77", 78), "job", "TERM")


def test_a_whole_job_is_not_killed_by_signal(world) -> None:
    scopes = JobActions(me=ALICE).scopes(process(), survey_of_n1())
    assert ["KILL" in scope.signals for scope in scopes] == [True, True, False, False]
    with pytest.raises(UsageError, match="KILL cannot be sent here"):
        ask(job(), "job", "KILL")


def test_a_scope_of_an_older_look_is_refused(world) -> None:
    hand = JobActions(me=ALICE)
    scope = hand.scopes(process(), survey_of_n1())[0]
    with pytest.raises(UsageError, match="can no longer be signalled from here"):
        hand.ask_signal(process(), scope, "TERM", survey_of_n1(nodes=()))


def test_every_signal_has_a_meaning() -> None:
    assert set(action_rules.MEANINGS) == set(signals.NAMES)


def test_an_srun_that_does_not_answer_is_said_as_what_it_is(world, monkeypatch) -> None:
    hand, planned = ask(process(), "process", "TERM")

    def slow(argv, env):
        raise CommandError(tuple(argv), None, "no answer within 60 s")

    monkeypatch.setattr(signals, "through_srun", slow)
    with pytest.raises(SlurmShareError, match="it is unknown whether the signal was sent"):
        hand.carry_out(planned)


# ---- Output ----


@pytest.fixture
def wrote(world, monkeypatch):
    """Set the output files of job 4711."""
    said = JobFiles(user="alice", uid=ALICE.uid, stdout="/o", stderr="", script="", folder="/")
    asked = []

    def read_files(number):
        asked.append(number)
        return said

    monkeypatch.setattr(job_output, "read_files", read_files)
    return asked


def test_the_output_of_a_job_is_offered(wrote) -> None:
    hand = JobActions(me=ALICE)
    assert [file.path for file in hand.ask_output(job(), survey_of_n1())] == ["/o"]
    assert [file.path for file in hand.ask_output(job("4999", 4999), survey_of_n1())] == ["/o"]
    assert wrote == [4711, 4999]


def test_the_process_of_a_run_is_found_by_its_slot(wrote, monkeypatch) -> None:
    chosen = []
    monkeypatch.setattr(job_output, "choose", lambda files, **where: chosen.append(where) or ("x",))
    monkeypatch.setattr(room.os, "geteuid", lambda: ALICE.uid)
    JobActions(me=ALICE).ask_output(process(), survey_of_n1())
    JobActions(me=ALICE).ask_output(process(process=Process(900, 6)), survey_of_n1())
    assert chosen == [{"node": "n1", "local": 3, "owner": None}, {"node": "n1", "local": None, "owner": None}]
    monkeypatch.setattr(room.os, "geteuid", lambda: 0)
    JobActions(me=DashboardUser("root", 0)).ask_output(process(), survey_of_n1(user="root", everybody=True))
    assert chosen[-1] == {"node": "n1", "local": 3, "owner": ALICE.uid}


def test_the_output_of_a_job_of_somebody_else_is_not_shown(world, monkeypatch) -> None:
    foreign = JobFiles(user="bob", uid=BOB.uid, stdout="/o", stderr="", script="", folder="/")
    monkeypatch.setattr(job_output, "read_files", lambda number: foreign)
    with pytest.raises(SlurmShareError, match="belongs to bob, not to alice"):
        JobActions(me=ALICE).ask_output(job(), survey_of_n1())


def test_as_root_a_file_has_to_be_the_jobs_users(monkeypatch) -> None:
    opened = []
    monkeypatch.setattr(room, "Tail", lambda path, owner: opened.append((path, owner)))
    monkeypatch.setattr(processes, "read_user_id", {"alice": 2001}.get)
    file = job_output.LogFile("output", "/o")
    for euid in (2001, 0):
        monkeypatch.setattr(room.os, "geteuid", lambda euid=euid: euid)
        JobActions(me=DashboardUser("root", 0)).open_output(file, job())
    assert opened == [("/o", None), ("/o", 2001)]
    with pytest.raises(SlurmShareError, match="knows no user"):
        JobActions(me=DashboardUser("root", 0)).open_output(file, job(owner="gone"))


def test_a_dashboard_knows_who_sits_there() -> None:
    assert JobActions().me == DashboardUser(processes.read_user_name(room.os.getuid()), room.os.getuid())
