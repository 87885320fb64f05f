"""Our own MPS driver against the stand-in with protocol 3 (driver 615), with what goes wrong on a node."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec.structs
import pytest
from simulated_host import HOME, without_driver
from test_mps_driver import ANNA, PATIENCE_S, Node, as_user, root_only, soon

from slurm_share.core import process
from slurm_share.core.errors import MpsFolderError, MpsRefusedError, MpsServerError
from slurm_share.core.process import Deadline
from slurm_share.mps import control, control_v3, front_ends
from slurm_share.mps import daemons as actuator
from slurm_share.mps.records import MpsFailed, MpsPlace, Namespace

pytestmark = without_driver

TWO = (Namespace("slot_0", 2048, 25.0), Namespace("slot_1", 2048, 25.0), Namespace("any"))


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(actuator, "UNDO_S", PATIENCE_S)
    found = Node(2)
    yield found
    found.close()


def place_of(node: Node, namespaces: tuple[Namespace, ...] = TWO, **variables: str) -> MpsPlace:
    place = node.place(SIMMPS_DRIVER="615", **variables)
    return msgspec.structs.replace(place, protocol=3 if namespaces else 2, namespaces=namespaces)


def task(node: Node, place: MpsPlace, folder: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {**control.environment(place, "3"), "CUDA_MPS_PIPE_DIRECTORY": f"{place.pipe}/{folder}", **environ}
    argv = [HOME / "simgpu-task", "--seconds", "0.1", *arguments]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=120, **as_user(ANNA))  # type: ignore[call-overload]


def running(node: Node, place: MpsPlace, folder: str) -> subprocess.Popen[str]:
    pipe = msgspec.structs.replace(place, pipe=f"{place.pipe}/{folder}")
    return node.client(pipe, CUDA_MPS_LOG_DIRECTORY=place.logs)


@pytest.fixture
def place(node: Node) -> Iterator[MpsPlace]:
    """Return the place of a daemon with three namespaces that runs."""
    found = place_of(node)
    started = actuator.start(found, soon())
    assert (started.joined, started.protocol) == (False, 3)
    yield found
    actuator.stop(found, soon())


def test_a_daemon_starts_with_a_namespace_for_each_task_and_goes_without_a_trace(node: Node) -> None:
    place = place_of(node)
    started = actuator.start(place, soon())
    assert [one.status for one in started.servers] == ["ACTIVE"]
    assert started.daemon.uid == ANNA.uid
    listed = {one.name: one for one in control_v3.read_namespaces(place, soon())}
    assert [listed[one.name] for one in TWO] == list(TWO)
    assert listed["default"].percent == 10
    file = Path(place.pipe, control_v3.START_FILE)
    assert (file.stat().st_uid, file.stat().st_mode & 0o777) == (os.geteuid(), 0o644)
    assert front_ends.examine(place, soon()).condition == "fine"
    stopped = actuator.stop(place, soon())
    assert (stopped.how, stopped.left) == ("quit", ())
    assert node.processes() == []
    assert not os.path.lexists(place.pipe)


def test_a_task_cannot_raise_the_caps_of_its_namespace(node: Node, place: MpsPlace) -> None:
    more = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=6G", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "90"}
    fits = task(node, place, "s/slot_0", "--memory", "1024", **more)
    assert fits.returncode == 0, fits.stderr
    for environ in ({}, more):
        over = task(node, place, "s/slot_0", "--memory", "3072", **environ)
        assert over.returncode != 0, over.stdout
    assert task(node, place, "s/any", "--memory", "3072", **more).returncode == 0
    assert task(node, place, "s/any", "--memory", "3072", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=2G").returncode != 0


def test_a_second_job_gets_namespaces_of_its_own_beside_running_tasks(node: Node, place: MpsPlace) -> None:
    child = running(node, place, "s/slot_0")
    second = msgspec.structs.replace(place, namespaces=(Namespace("slot_1", 1024, None), Namespace("slot_2", 512)))
    started = actuator.start(second, soon())
    assert started.joined
    assert len(started.notes) == 2, started.notes
    listed = {one.name: one for one in control_v3.read_namespaces(place, soon())}
    assert (listed["slot_0"].memory_mib, listed["slot_1"].memory_mib, listed["slot_2"].memory_mib) == (2048, 1024, 512)
    assert child.poll() is None
    assert actuator.start(second, soon()).notes == ()


def test_caps_of_a_task_that_runs_are_not_changed(node: Node, place: MpsPlace) -> None:
    running(node, place, "s/slot_0")
    other = msgspec.structs.replace(place, namespaces=(Namespace("slot_0", 512),))
    with pytest.raises(MpsRefusedError, match="namespace delete slot_0"):
        actuator.start(other, soon())
    assert control_v3.read_namespaces(place, soon())[1].memory_mib == 2048


def test_clients_are_listed_by_server_and_terminated(node: Node, place: MpsPlace) -> None:
    children = [running(node, place, "s/slot_0"), running(node, place, "s/slot_1")]
    front_end = front_ends.of(place)
    server = front_end.read_servers(place, soon())[0]
    pids = tuple(sorted(one.pid for one in children))
    assert front_end.read_clients(place, server.pid, soon()) == pids
    assert front_end.terminate_client(place, server.pid, children[0].pid, soon())
    assert children[0].wait(60) != 0
    assert not front_end.terminate_client(place, server.pid, 1, soon())
    stopped = actuator.stop(place, soon())
    assert (stopped.how, stopped.clients) == ("quit", (children[1].pid,))


def test_a_client_that_does_not_leave_takes_a_bounded_time(
    node: Node, place: MpsPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = running(node, place, "s/slot_0")
    ask_once = control_v3._front_end

    def hangs(place: MpsPlace, words: list[str], deadline: Deadline) -> process.Finished:
        if words[:2] == ["client", "terminate"]:
            time.sleep(deadline.left())
            raise control_v3.MpsSilentError(place.pipe, "its daemon does not answer")
        return ask_once(place, words, deadline)

    monkeypatch.setattr(control_v3, "_front_end", hangs)
    monkeypatch.setattr(control_v3, "TERMINATE_S", 0.2)
    began = time.monotonic()
    stopped = actuator.stop(place, soon(600))
    assert time.monotonic() - began < 200  # half of the time for stopping is 300 s
    assert stopped.left == ()
    assert child.wait(60) != 0


def test_an_idle_daemon_of_the_other_protocol_is_replaced_and_one_in_use_is_joined(node: Node) -> None:
    old, new = place_of(node, ()), place_of(node)
    assert actuator.start(old, soon()).protocol == 2
    in_use = actuator.start(new, soon())
    assert (in_use.joined, in_use.protocol) == (True, 2)
    replaced = actuator.start(new, soon(), replace=True)
    assert (replaced.joined, replaced.protocol) == (False, 3)
    with pytest.raises(MpsServerError, match="has protocol 3"):
        actuator.start(old, soon())
    assert actuator.start(old, soon(), replace=True).protocol == 2
    actuator.stop(old, soon())


def test_a_start_with_a_file_that_is_not_understood_is_undone(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_v3.rules, "render_file", lambda *_: "no_such_key = 1\n")
    (failed,) = actuator.start_many([place_of(node)], soon())
    assert isinstance(failed, MpsFailed)
    assert "no_such_key" in failed.why
    assert node.processes() == []
    assert not os.path.lexists(failed.place.pipe)


def test_a_daemon_without_the_caps_of_its_file_is_no_daemon(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading back finds what a daemon does not tell: here its file has one cap less than was wanted."""
    render = control_v3.rules.render_file
    without = tuple(msgspec.structs.replace(one, memory_mib=None) for one in TWO)
    monkeypatch.setattr(control_v3.rules, "render_file", lambda uid, gpu, _: render(uid, gpu, without))
    monkeypatch.setattr(control_v3.rules, "set_words", lambda one: [])
    (failed,) = actuator.start_many([place_of(node)], soon())
    assert isinstance(failed, MpsFailed)
    assert "does not have the caps" in failed.why


def test_a_pipe_directory_without_room_for_the_sockets_is_refused_before_anything_starts(node: Node) -> None:
    place = place_of(node)
    long = msgspec.structs.replace(place, pipe=f"/run/{'x' * 75}")
    control.check_pipe(long.pipe)
    with pytest.raises(MpsFolderError, match="socket"):
        actuator.start(long, soon())


@root_only
def test_a_daemon_that_is_killed_is_dead_and_its_place_is_used_again(node: Node, place: MpsPlace) -> None:
    health = front_ends.read_health(place, soon())
    assert health.daemon is not None
    os.kill(health.daemon.pid, 9)
    process.wait_gone([health.daemon], soon())
    assert front_ends.read_health(place, soon()).condition == "dead"
    started = actuator.start(place, soon(), replace=True)
    assert not started.joined
    assert control_v3.read_namespaces(place, soon())
