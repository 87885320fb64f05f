"""Runs of ranks outside Slurm, as processes: rendezvous, ends, and processes left behind."""

from __future__ import annotations

import contextlib
import functools
import re
import signal
import stat
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from launches import alive, read_proc, wait_for
from ranks import FOLLOW, RANK, Ranks, kill

from slurm_share.core.settings import Messages
from slurm_share.packing import RankWait
from slurm_share.spmd import joining, names
from slurm_share.spmd.errors import TransportError
from slurm_share.triples import run_files, run_folder
from slurm_share.triples.launcher import rendezvous
from slurm_share.triples.launcher.rank_group import RankGroup
from slurm_share.triples.launcher.report import summarize
from slurm_share.triples.rules import together as rules

MEET = RANK + "time.sleep(0.2)\nsay(wire.Bye(0))\n"
STAY = RANK + "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\nwhile True: time.sleep(0.1)\n"
"""A rank that computes for ever, and hears nothing."""


def check_nothing_is_left(made: Ranks) -> None:
    """No process of the run, no socket of its ranks."""
    wait_for(lambda: not alive(str(made.folder.parent)))
    assert made.sockets()
    wait_for(lambda: not made.open_sockets())


def test_ranks_meet_and_find_who_they_are(tmp_path: Path) -> None:
    text = MEET + "print(json.dumps(dict(os.environ)))\n"
    made = Ranks(tmp_path, text, 4)
    codes, said = made.go(LLSUB_START_S="60", LLSUB_SEND_LIMIT="1000", PMI_RANK="3", LLSUB_OTHER="x")
    assert codes == [0], said
    assert list(made.result_outcomes().values()) == ["done"] * 4
    for rank in range(4):
        log = made.log(rank)
        assert "size=4" in log
        found = dict(re.findall(r'"([A-Z_]+)": "([^"]*)"', log))
        assert found["LLSUB_RENDEZVOUS"].startswith("slurm-share/")
        assert (found["LLSUB_RANK"], found["LLSUB_SIZE"], found["LLSUB_TASK"]) == (str(rank), "4", str(rank))
        assert (found["LLSUB_LOCAL_RANK"], found["LLSUB_LOCAL_SIZE"]) == (str(rank), "4")
        assert (found["LLSUB_NODE"], found["LLSUB_NODES"]) == ("0", "1")
        assert (found["LLSUB_START_S"], found["LLSUB_SEND_LIMIT"]) == ("60", "1000")
        assert not {"PMI_RANK", "LLSUB_OTHER", "LLSUB_ADDRESS"} & set(found)
    assert "4 of 4 ranks done" in said
    check_nothing_is_left(made)


def test_a_killed_rank_ends_the_others_with_a_sentence(tmp_path: Path) -> None:
    made = Ranks(tmp_path, FOLLOW, 4).start_ready()
    assert made.open_sockets()
    kill(made.pid(2))
    codes, said = made.end()
    assert codes == [1]
    assert list(made.result_outcomes().values()) == ["unfinished", "unfinished", "signal", "unfinished"]
    for rank in (0, 1, 3):
        assert re.search(
            r"heard RankEnded\(rank=2, node='.+', code=None, signal=9, why='was killed by SIGKILL'\)", made.log(rank)
        )
        assert re.fullmatch(r"exit code 3; rank 2 on .+ was killed by SIGKILL", made.results()[rank].why)
    sentence = "^slurm-share launch: rank 2 on .+ was killed by SIGKILL; the other 3 were ended$"
    assert len(re.findall(sentence, said, re.M)) == 1
    assert "ended by a signal: 2" in said
    assert "LLSUB.1 starts all ranks again" in said
    check_nothing_is_left(made)


@pytest.mark.parametrize(
    ("last", "code", "sentence"),
    [
        ("say(wire.RunAborted(0, 9, 'no data'))\n    sys.exit(9)", 9, "called abort(9): no data"),
        (
            "say(wire.CallMismatch(3, (1, 'no such call any more'), (0, 'bcast')))\n    say(wire.Bye(0))",
            1,
            "collective call 3",
        ),
    ],
    ids=["abort", "mismatch"],
)
def test_the_run_ends_with_the_code_of_its_reason(tmp_path: Path, last: str, code: int, sentence: str) -> None:
    """Also where every rank ended with 0. The next start begins without it."""
    text = RANK + f"if rank == 1 and not os.path.exists({str(tmp_path / 'again')!r}):\n    {last}\n"
    made = Ranks(tmp_path, text, 2)
    codes, said = made.go()
    assert codes == [code], said
    assert sentence in said
    assert run_folder.read_exit_code(made.folder, made.run) == code
    (tmp_path / "again").touch()
    assert made.go()[0] == [0]


def test_ranks_that_do_not_hear_are_ended_after_a_while(tmp_path: Path) -> None:
    made = Ranks(tmp_path, STAY, 3, grace_s=3.0).start_ready()
    began = time.monotonic()
    kill(made.pid(0))
    codes, said = made.end()
    assert time.monotonic() - began >= 3.0
    assert codes == [1]
    assert list(made.result_outcomes().values()) == ["signal", "unfinished", "unfinished"]
    assert made.results()[1].code == 5
    assert "LLSUB.1 starts all ranks again" in said


SAVE = RANK + (
    "def save(*_): print('told', flush=True); open(f'saved.{rank}', 'w').close(); sys.exit(75)\n"
    "if os.path.exists(f'saved.{rank}'): sys.exit(0)\n"
    "signal.signal(signal.SIGUSR1, save)\n"
    "print('waits', flush=True)\n"
    "while True: time.sleep(0.1)\n"
)
"""A rank that saves its state when it is told to, and goes on from there in the next job."""


def are_waiting(made: Ranks) -> bool:
    return all("waits" in made.log(rank) for rank in range(made.run.processes))


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_ranks_that_are_told_to_save_are_saved_and_all_start_again(tmp_path: Path, number: signal.Signals) -> None:
    made = Ranks(tmp_path, SAVE, 3, checkpoint_signal=signal.SIGUSR1).start()
    wait_for(lambda: are_waiting(made))
    kill(made.launchers[0].pid, number)
    codes, said = made.end()
    assert codes == [75], said
    assert list(made.result_outcomes().values()) == ["saved"] * 3
    assert "saved, not finished: 0-2" in said
    assert "LLSUB.1 starts all ranks again" in said
    assert made.go()[0] == [0]
    assert list(made.result_outcomes().values()) == ["done"] * 3
    check_nothing_is_left(made)


def test_a_rank_that_saved_beside_ranks_that_are_done_makes_the_run_start_again(tmp_path: Path) -> None:
    made = Ranks(tmp_path, RANK + "sys.exit(75 * (rank == 1))\n", 3)
    codes, said = made.go()
    assert codes == [75], said
    assert list(made.result_outcomes().values()) == ["done", "saved", "done"]
    assert "1 rank saved and 2 ended with exit code 0: the run is not done, and all ranks start again" in said


def test_ranks_are_not_told_to_save_when_one_has_failed(tmp_path: Path) -> None:
    """A collective call would wait for the rank that has failed."""
    made = Ranks(tmp_path, SAVE, 3, grace_s=0.5, checkpoint_signal=signal.SIGUSR1).start()
    wait_for(lambda: are_waiting(made))
    kill(made.pid(0))
    codes, said = made.end()
    assert codes == [1], said
    assert list(made.result_outcomes().values()) == ["signal", "unfinished", "unfinished"]
    assert "told" not in made.log(1)


def test_a_later_job_of_ranks_on_two_nodes_has_a_key_of_its_own(tmp_path: Path) -> None:
    made = Ranks(tmp_path, SAVE, 1, 2, checkpoint_signal=signal.SIGUSR1)
    run_files.note_job(made.folder, 4711)
    made.start()
    wait_for(lambda: are_waiting(made))
    for launcher in made.launchers:
        kill(launcher.pid, signal.SIGUSR1)
    assert made.end()[0] == [1, 1]
    assert list(made.result_outcomes().values()) == ["saved"] * 2
    assert not list(made.folder.glob("rendezvous*"))
    run_files.note_job(made.folder, 4712)
    codes, said = made.go(SLURM_JOB_ID="4712")
    assert codes == [0, 0], said
    assert list(made.result_outcomes().values()) == ["done"] * 2
    assert not list(made.folder.glob("rendezvous*"))


def test_with_keep_going_the_others_go_on(tmp_path: Path) -> None:
    text = RANK + "if rank == 1: sys.exit(7)\nprint('heard', hear())\n"
    made = Ranks(tmp_path, text, 3, keep_going=True)
    codes, said = made.go()
    assert codes == [1]
    assert list(made.result_outcomes().values()) == ["done", "failed", "done"]
    assert "why='ended with code 7'" in made.log(0)
    assert "failed: 1" in said


def test_the_loss_of_the_rendezvous_process_alone_is_no_error(tmp_path: Path) -> None:
    text = RANK + f"while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.05)\n"
    made = Ranks(tmp_path, text, 3).start_ready()
    kill(made.rendezvous_pid())
    (tmp_path / "go").touch()
    codes, said = made.end()
    assert codes == [0], said
    assert list(made.result_outcomes().values()) == ["done"] * 3


def test_without_a_rendezvous_process_the_launcher_ends_the_run(tmp_path: Path) -> None:
    made = Ranks(tmp_path, STAY, 3, grace_s=1.0).start_ready()
    kill(made.rendezvous_pid())
    time.sleep(0.5)
    kill(made.pid(1))
    codes, said = made.end()
    assert codes == [1]
    assert list(made.result_outcomes().values()) == ["unfinished", "signal", "unfinished"]
    assert "the rendezvous process on" in said
    assert "rank 1 on" in said


@pytest.mark.parametrize("who", ["loop", "guard", "both"])
def test_nothing_is_left_of_a_launcher_that_is_killed(tmp_path: Path, who: str) -> None:
    made = Ranks(tmp_path, STAY, 3, grace_s=1.0).start_ready()
    its, loop, guard = made.rendezvous_pid(), made.loop_pid(), made.launchers[0].pid
    for pid in {"loop": [loop], "guard": [guard], "both": [guard, loop]}[who]:
        kill(pid)
    made.end()
    wait_for(lambda: not made.processes() and b"rendezvous" not in read_proc(its, "cmdline"))
    check_nothing_is_left(made)


def test_a_program_that_is_not_there_ends_the_run_at_once(tmp_path: Path) -> None:
    made = Ranks(tmp_path, MEET, 3, command=("/no/program",))
    began = time.monotonic()
    codes, said = made.go()
    assert codes == [1]
    assert list(made.result_outcomes().values()) == ["not started"] * 3
    assert "No such file" in said
    assert time.monotonic() - began < 250  # the limit of the start is 300 s


class FakeRendezvous:
    """Knows the ranks that it was told of, and never ends the run."""

    is_alive, ending = True, None

    def __init__(self) -> None:
        self.told: dict[int, str] = {}

    def read(self) -> None: ...

    def was_told(self, rank: int) -> bool:
        return rank in self.told

    def tell_ended(self, rank: int, code: int | None, number: int | None, why: str) -> None:
        self.told[rank] = why


def test_a_rank_that_could_never_start_is_reported_when_nothing_starts_any_more() -> None:
    workers = [SimpleNamespace(rank=rank) for rank in range(2)]
    shared: Any = SimpleNamespace(
        run=SimpleNamespace(keep_going=False),
        node=SimpleNamespace(workers=workers, index=0, count=1, name="n"),
        feeder=SimpleNamespace(closed=False),
        say=print,
        running={},
        starting={},
    )
    fake: Any = FakeRendezvous()
    ranks = RankGroup(shared, fake)
    ranks.begun(0)
    ranks.begun(1)
    ranks.put_back(1)
    ranks.tick()
    assert fake.told == {}
    ranks.ended(0, "done", 0, None)
    shared.feeder.closed = True
    ranks.tick()
    assert fake.told[1] == "was not started"


def test_a_python_without_the_package_is_said_with_the_line_that_installs_it(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$0: No module named slurm_share.spmd" >&2\nexit 1\n')
    python.chmod(0o755)
    made = Ranks(tmp_path, MEET, 1, command=rules.command_of(str(python), "prog.py"))
    codes, said = made.go()
    assert codes == [1]
    assert f"{python} has no slurm_share.spmd" in made.results()[0].why
    assert "slurm-share pip-line" in " ".join(said.split())


def test_a_word_to_end_reaches_all_ranks(tmp_path: Path) -> None:
    made = Ranks(tmp_path, STAY, 3, grace_s=1.0).start_ready()
    kill(made.launchers[0].pid, signal.SIGTERM)
    codes, _ = made.end()
    assert codes == [1]
    assert list(made.result_outcomes().values()) == ["unfinished"] * 3


def test_only_the_last_start_of_a_run_counts(tmp_path: Path) -> None:
    text = RANK + f"sys.exit(os.path.exists({str(tmp_path / 'again')!r}) and rank == 1)\n"
    made = Ranks(tmp_path, text, 2)
    assert made.go()[0] == [0]
    (tmp_path / "again").touch()
    codes, _ = made.go()
    assert codes == [1]
    found = summarize(made.folder, made.run)
    assert 1 in found.account.failed
    assert found.account.tries[1] == 1


def test_who_waits_for_what_can_be_watched(tmp_path: Path) -> None:
    text = (
        RANK + f"if rank == 1:\n"
        f"    say(wire.RankWaiting('recv', 0, 3, 'x', 2.5, 0, 0))\n"
        f"    while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.05)\n"
        f"    say(wire.RankWorking())\n"
        f"while not os.path.exists({str(tmp_path / 'end')!r}): time.sleep(0.05)\n"
    )
    made = Ranks(tmp_path, text, 2).start()
    found = wait_for(made.waits)
    assert [(one.rank, one.what) for one in found] == [(1, "in recv for (3, 'x')")]
    assert rules.waits_text(found, time.time()).startswith("rank 1 waits in recv for (3, 'x') since ")
    (tmp_path / "go").touch()
    wait_for(lambda: made.waits() == [])
    (tmp_path / "end").touch()
    assert made.end()[0] == [0]


@pytest.mark.parametrize(
    ("tail", "is_missing"),
    [
        (b"/usr/bin/python3: No module named slurm_share.spmd\n", True),
        (b"ModuleNotFoundError: No module named 'slurm_share'\n", True),
        (b"ModuleNotFoundError: No module named 'slurm_share.spmd'\n", True),
        (b"    import torch, slurm_share.spmd\nModuleNotFoundError: No module named 'torch'\n", False),
    ],
)
def test_only_our_own_package_is_said_to_be_missing(tail: bytes, is_missing: bool) -> None:
    assert rules.is_module_missing(tail) is is_missing


def test_the_longest_wait_comes_first() -> None:
    waits = [RankWait(7, "in recv for (3, 'x')", 60.0), RankWait(2, "in barrier", 90.0)]
    assert rules.waits_text(waits, 100.0) == "rank 7 waits in recv for (3, 'x') since 40 s and 1 rank more"
    assert rules.waits_text([], 100.0) == ""


# ---- Several nodes -------------------------------------------------------------------------------------------------


def test_ranks_of_two_nodes_meet_and_the_key_goes(tmp_path: Path) -> None:
    text = MEET + "print(json.dumps(dict(os.environ)))\n"
    made = Ranks(tmp_path, text, 2, 2)
    key = (made.folder / "rendezvous" / "key").read_bytes()
    codes, said = made.go()
    assert codes == [0, 0], said
    assert list(made.result_outcomes().values()) == ["done"] * 4
    for rank in range(4):
        log = made.log(rank)
        assert "127.0.0.1" in log
        assert "127.0.0.2" in log
        found = dict(re.findall(r'"([A-Z_]+)": "([^"]*)"', log))
        assert (found["LLSUB_NODE"], found["LLSUB_NODES"]) == (str(rank // 2), "2")
        assert found["LLSUB_LOCAL_RANK"] == str(rank % 2)
        assert found["LLSUB_ADDRESS"] == f"127.0.0.{rank // 2 + 1}"
        assert not any(key.hex() in value for value in found.values())
    assert not (made.folder / "rendezvous").exists()
    check_nothing_is_left(made)


def test_an_end_on_one_node_ends_the_others(tmp_path: Path) -> None:
    made = Ranks(tmp_path, FOLLOW, 2, 2).start_ready()
    kill(made.pid(3))
    codes, said = made.end()
    assert codes == [1, 1]
    assert list(made.result_outcomes().values()) == ["unfinished", "unfinished", "unfinished", "signal"]
    sentence = "slurm-share launch: rank 3 on 127.0.0.2 was killed by SIGKILL; the other 3 were ended\n"
    assert said.count(sentence) == 1
    assert "srun would wait" not in said


def test_the_end_of_a_launcher_ends_the_other_nodes(tmp_path: Path) -> None:
    made = Ranks(tmp_path, FOLLOW, 2, 2).start_ready()
    gone = [made.launchers[1].pid, made.loop_pid(1), made.pid(2), made.pid(3)]
    for pid in gone:
        kill(pid, signal.SIGSTOP)  # none of them acts on the end of another one
    for pid in gone:
        with contextlib.suppress(ProcessLookupError):  # the end of its launcher has ended it
            kill(pid)
    codes, said = made.end()
    assert codes[0] == 1
    assert "127.0.0.2" in said
    assert list(made.result_outcomes().values())[:2] != ["done", "done"]
    assert "heard" in made.log(0)


def test_the_step_of_a_run_that_has_lost_a_node_is_ended(tmp_path: Path) -> None:
    """Else srun, and so the job, waits for the lost node until Slurm gives it up."""
    asked = tmp_path / "asked"
    (tmp_path / "bin").mkdir()
    scancel = tmp_path / "bin" / "scancel"
    scancel.write_text(f'#!/bin/sh\necho "$@" >> {asked}\n')
    scancel.chmod(0o755)
    made = Ranks(tmp_path, FOLLOW, 2, 2)
    made.start(PATH=f"{tmp_path}/bin:/usr/bin:/bin", SLURM_STEP_ID="3")
    wait_for(lambda: all("ready" in made.log(rank) for rank in range(4)))
    gone = [made.launchers[1].pid, made.loop_pid(1), made.pid(2), made.pid(3)]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in gone:
            with contextlib.suppress(ProcessLookupError):
                kill(pid, number)
    codes, said = made.end()
    assert codes[0] == 1
    assert "the job's step is ended, because srun would wait for the lost node" in said
    assert asked.read_text() == "-- 4711.3\n"


@pytest.mark.parametrize("failed", [0, 1])
def test_a_node_whose_launcher_fails_before_its_ranks_ends_the_others(tmp_path: Path, failed: int) -> None:
    """At once, and not after START_S; here because its list of nodes is not that of the step."""
    made = Ranks(tmp_path, FOLLOW, 2, 2, grace_s=1.0)
    patient = {names.ENV_START_S: "900"}
    began = time.monotonic()
    made.start(only=(1 - failed,), **patient)
    wait_for(lambda: made.log(2 * (1 - failed)) or list(made.folder.glob("p*/prog.py.log.*")))
    codes, said = made.start(only=(failed,), SLURM_STEP_NODELIST="127.0.0.9,127.0.0.8", **patient).end()
    assert codes == [1, 1]
    assert time.monotonic() - began < 300
    assert f"127.0.0.{failed + 1} is node {failed} of 2, but Slurm's list of the step's nodes differs" in said
    assert ("127.0.0.1 is lost: its launcher has ended", "rank 2 on 127.0.0.2 could not be started")[failed] in said
    assert list(made.result_outcomes().values()) == ["unfinished"] * 2
    assert not (made.folder / "rendezvous").exists()


def test_a_wrong_time_for_the_start_of_ranks_is_refused_by_the_launcher(tmp_path: Path) -> None:
    made = Ranks(tmp_path, MEET, 1)
    codes, said = made.go(LLSUB_START_S="soon")
    assert (codes, made.log(0)) == ([1], "")
    assert "cannot start its ranks: LLSUB_START_S is a number of seconds above 0 and below 1e9, not 'soon'" in said


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_requeued_run_makes_a_key_of_its_own(tmp_path: Path, is_lost: bool) -> None:
    """`is_lost`: node 0 was lost with its launcher, so the first key was not removed; it is not used."""
    made = Ranks(tmp_path, MEET, 1, 2)
    if is_lost:
        (made.folder / "rendezvous" / "key").chmod(0o644)
    else:
        assert made.go()[0] == [0, 0]
    codes, said = made.start(restart=1).end()
    assert codes == [0, 0], said
    assert not list(made.folder.glob("rendezvous*"))


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    made = Ranks(tmp_path, MEET, 1, 2)
    (made.folder / "rendezvous" / "key").chmod(0o644)
    (made.folder / "rendezvous").chmod(0o755)
    codes, said = made.go()
    assert codes == [1, 1]
    assert "rendezvous" in said
    assert not made.results()


def test_the_folder_of_the_key_is_the_users_alone(tmp_path: Path) -> None:
    run_folder.make_key(tmp_path)
    folder = run_folder.key_folder_of(tmp_path)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    with pytest.raises(Exception, match="File exists"):
        run_folder.make_key(tmp_path)
    assert (folder / "key").exists()
    run_folder.remove_key(folder)
    assert not folder.exists()


# ---- Words ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "number", "outcome", "text"),
    [
        (None, 9, "signal", "was killed by SIGKILL"),
        (None, 9, "host memory", "was killed (out of host memory)"),
        (137, None, "host memory", "was killed (out of host memory)"),
        (1, None, "gpu memory", "ended with code 1 (out of GPU memory)"),
        (3, None, "failed", "ended with code 3"),
        (None, None, "not started", "could not be started"),
    ],
)
def test_an_end_is_told_with_its_reason(code: int | None, number: int | None, outcome: str, text: str) -> None:
    assert rendezvous.clause(code, number, outcome) == text


def test_ports_are_read_as_slurm_writes_them() -> None:
    none = Messages()
    assert rendezvous.ports_of(none, {"SLURM_STEP_RESV_PORTS": "60000-60010"}) == (60000, 60010)
    assert rendezvous.ports_of(none, {"SLURM_STEP_RESV_PORTS": "12000"}) == (12000, 12000)
    assert rendezvous.ports_of(none, {}) is None
    assert rendezvous.ports_of(Messages(ports="50000-50001"), {"SLURM_STEP_RESV_PORTS": "12000"}) == (50000, 50001)
    assert rendezvous._address_of("lo") == "127.0.0.1"


def test_ranks_listen_on_the_ports_that_they_are_given(tmp_path: Path) -> None:
    made = Ranks(tmp_path, MEET + "print('ports', os.environ['LLSUB_PORTS'])\n", 1, 2)
    codes, said = made.go(SLURM_STEP_RESV_PORTS="23456-23470")
    assert codes == [0, 0], said
    assert "ports 23456-23470" in made.log(0) + made.log(1)
    with joining._listen_between_nodes("127.0.0.1", "") as any_port:
        assert any_port.getsockname()[1] > 0
    listen = functools.partial(joining._listen_between_nodes, "127.0.0.1", "23480-23481")
    with listen() as first, listen() as second:
        assert {first.getsockname()[1], second.getsockname()[1]} == {23480, 23481}
        with pytest.raises(TransportError, match="ports 23480 to 23481: Address already in use"):
            listen()
