"""A launcher on a node whose driver is to enforce memory caps: with a keeper, without one, and the variable of its
tasks."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace
from plans import plain_plan

from slurm_share.core import names
from slurm_share.core.errors import LaunchError
from slurm_share.core.paths import Paths
from slurm_share.core.records import ShareRequest
from slurm_share.node.records import Gpu
from slurm_share.share import memory_limits
from slurm_share.share.records import Slot
from slurm_share.triples.launcher import slot_assignment
from slurm_share.triples.launcher.slot_assignment import LauncherJob

HERE = LauncherJob(node="n1", index=0, count=1, job="4711", job_id=4711)
GPU = Gpu("GPU-0", 0, 0, "H100", 81920)
CAPPED = Slot(0, GPU, 0, 8192, "0.100", None, "/run/p0", "mps", is_cap_of_driver=True)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    found = Paths(root=tmp_path / "s")
    found.job(4711).mkdir(parents=True)
    return found


def answering(paths: Paths, answer: bytes) -> str:
    """Answer one request as the keeper; return its socket's path."""
    path = str(paths.job(4711) / names.LIMITS_SOCKET)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen()

    def serve() -> None:
        one, _ = listener.accept()
        one.recv(2048)
        one.send(answer)
        one.close()
        listener.close()

    threading.Thread(target=serve, daemon=True).start()
    return path


def test_with_a_keeper_the_plan_stays_and_its_socket_is_known(paths):
    plan, path = plain_plan(slots=(CAPPED,)), answering(paths, b"ok")
    assert slot_assignment._with_limits(plan, HERE, paths) == (plan, path, [])


@pytest.mark.parametrize(("directory", "said"), [("/run/p0", "MPS alone enforces"), (None, "no cap is enforced")])
def test_without_a_keeper_the_driver_enforces_nothing_and_a_note_says_who_does(paths, directory, said):
    plan = plain_plan(slots=(replace(CAPPED, mps_directory=directory),))
    found, path, notes = slot_assignment._with_limits(plan, HERE, paths)
    assert (path, [slot.is_cap_of_driver for slot in found.slots]) == ("", [False])
    assert len(notes) == 1
    assert said in notes[0]
    assert "the keeper of memory limits does not run" in notes[0]


def test_a_run_in_turns_with_a_size_does_not_start_without_the_driver(paths):
    plan = plain_plan(slots=(replace(CAPPED, mps_directory=None),), share=ShareRequest(1, mem_mib=8192))
    answering(paths, b"no the driver says: Unknown Error")
    with pytest.raises(LaunchError, match=r"does not limit their memory to 8192 MiB \(the driver says: Unknown Error"):
        slot_assignment._with_limits(plan, HERE, paths)


def test_a_run_with_a_guaranteed_part_books_it_as_with_an_older_driver(paths):
    plan = plain_plan(slots=(replace(CAPPED, memory_least_mib=4096),), share=ShareRequest(1, mem_mib=8192))
    found, path, notes = slot_assignment._with_limits(plan, HERE, paths)
    assert (path, found.slots[0].is_cap_of_driver, found.slots[0].memory_least_mib, len(notes)) == ("", False, 4096, 1)


def test_a_plan_without_such_caps_needs_no_keeper(paths):
    plan = plain_plan(slots=(replace(CAPPED, is_cap_of_driver=False),))
    assert slot_assignment._with_limits(plan, HERE, paths) == (plan, "", [])


def test_a_keeper_that_ends_before_it_answers_is_a_reason(paths):
    assert memory_limits.ask(answering(paths, b""), "check") == "the keeper of memory limits has ended"
