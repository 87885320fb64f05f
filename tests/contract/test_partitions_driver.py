"""Our own driver of static partitions against the stand-in: what is created, verified, joined, replaced and refused."""

from __future__ import annotations

import os
import re
import subprocess
import threading

import msgspec.structs
import pytest
from simulated_host import HOME, without_driver
from test_mps_driver import ANNA, Node, as_user, at_once, node, soon  # noqa: F401  (a fixture)

from slurm_share.core import process
from slurm_share.core.errors import MpsPartitionError, MpsSilentError
from slurm_share.core.process import Deadline
from slurm_share.mps import control, partitions
from slurm_share.mps import daemons as actuator
from slurm_share.mps import processes as mp_processes
from slurm_share.mps.records import EqualPartitions, MpsFailed, MpsPlace, MpsStarted

pytestmark = without_driver

BOTH_LAYOUTS = pytest.mark.parametrize("layout", ["5", "7"])


def place_of(node: Node, count: int, driver: int = 595, **variables: str) -> MpsPlace:  # noqa: F811
    found = node.place(SIMMPS_DRIVER=str(driver), **variables)
    return msgspec.structs.replace(found, partitions=count)


def start(place: MpsPlace, *, replace: bool = False) -> EqualPartitions:
    found = actuator.start(place, soon(), replace=replace).partitions
    assert found is not None
    return found


def run_task(place: MpsPlace, **environ: str) -> subprocess.CompletedProcess[str]:
    argv = [HOME / "simgpu-task", "--seconds", "0.1"]
    env = {**control.environment(place), **environ}
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False, **as_user(place.owner))


def listed(place: MpsPlace) -> set[str]:
    return set(re.findall(r"^GPU-\S+ +(D\S+)", control.ask(place, "lspart", soon()), re.MULTILINE))


@BOTH_LAYOUTS
@pytest.mark.parametrize(
    ("count", "sm_count"),
    [(2, 56), *(pytest.param(*one, marks=pytest.mark.weekly) for one in ((3, 40), (4, 24))), (15, 8)],
)
def test_a_daemon_starts_with_equal_partitions(node: Node, layout: str, count: int, sm_count: int) -> None:  # noqa: F811
    place = place_of(node, count, SIMMPS_LSPART=layout)
    started = actuator.start(place, soon())
    assert not started.joined
    found = started.partitions
    assert found is not None
    assert (len(set(found.names)), found.sm_count) == (count, sm_count)
    assert {name.partition("/")[0] for name in found.names} == {place.gpu}
    assert {name.partition("/")[2] for name in found.names} == listed(place)
    assert any("/" in name.partition("/")[2] for name in found.names)
    assert (found.of.total_chunks, found.of.chunk_sms) == (15, 8)
    if layout == "5":
        assert found.of.total_sms == 132
    assert mp_processes.is_static(started.daemon.pid)
    for name in found.names[:3]:
        done = run_task(place, CUDA_MPS_SM_PARTITION=name)
        assert done.returncode == 0, done.stderr
    assert "915" in run_task(place).stderr
    assert actuator.stop(place, soon()).how == "quit"


@BOTH_LAYOUTS
def test_a_second_job_finds_the_same_partitions_in_the_same_order(node: Node, layout: str) -> None:  # noqa: F811
    place = place_of(node, 4, SIMMPS_LSPART=layout)
    first = start(place)
    node.client(place, CUDA_MPS_SM_PARTITION=first.names[1])
    again = actuator.start(place, soon())
    assert again.joined
    assert again.partitions == first
    assert listed(place) == {name.partition("/")[2] for name in first.names}


def test_jobs_that_start_at_once_share_one_set_of_partitions(node: Node) -> None:  # noqa: F811
    place, found = place_of(node, 4), []
    lock = threading.Lock()

    def job(_: int) -> None:
        one = start(place)
        with lock:
            found.append(one)

    at_once(job, 4)
    assert len(found) == 4
    assert len(set(found)) == 1
    assert len(listed(place)) == 4


def test_more_partitions_than_chunks_are_refused_with_the_largest_number_and_leave_no_daemon(node: Node) -> None:  # noqa: F811
    with pytest.raises(MpsPartitionError) as caught:
        actuator.start(place_of(node, 16), soon())
    assert caught.value.why == "it can have 15 at most (--share-gpu=15 or less)"
    assert node.processes() == []


def test_a_gpu_before_ampere_is_refused_in_the_programs_words(node: Node) -> None:  # noqa: F811
    subprocess.run([HOME / "simgpu-init", "2", "--state", node.state, "--cc", "7.0", "--replace"], check=True)
    node.state.chmod(0o755)
    with pytest.raises(MpsPartitionError) as caught:
        actuator.start(place_of(node, 2), soon())
    assert "at most" in caught.value.why or "CUDA_ERROR" in caught.value.why
    assert node.processes() == []


@pytest.mark.parametrize(("has", "wants"), [(4, 0), (0, 4), (4, 2)])
def test_a_daemon_of_another_kind_is_replaced_where_no_job_uses_it(node: Node, has: int, wants: int) -> None:  # noqa: F811
    first = actuator.start(place_of(node, has), soon())
    second = actuator.start(place_of(node, wants), soon(), replace=True)
    assert not second.joined
    assert second.daemon != first.daemon
    assert (0 if second.partitions is None else len(second.partitions.names)) == wants


@pytest.mark.parametrize(
    ("has", "wants", "why"),
    [
        (4, 0, "serves only tasks with a static partition (sm=static)"),
        (0, 4, "was started without static partitions"),
        (4, 2, "it is divided into other partitions already (of 3, 3, 3, 3 chunks)"),
    ],
)
def test_a_daemon_of_another_kind_that_jobs_use_stays_and_is_named(node: Node, has: int, wants: int, why: str) -> None:  # noqa: F811
    first = actuator.start(place_of(node, has), soon())
    with pytest.raises(MpsPartitionError, match=re.escape(why)):
        actuator.start(place_of(node, wants), soon())
    assert mp_processes.read_daemon(place_of(node, has)) == first.daemon
    (failed,) = actuator.start_many([place_of(node, wants)], soon())
    assert isinstance(failed, MpsFailed)
    assert failed.kind == "MpsPartitionError"


def test_partitions_that_a_restarted_server_lost_are_created_again(node: Node) -> None:  # noqa: F811
    place = place_of(node, 4)
    start(place)
    node.fault("mps_forget")
    assert listed(place) == set()
    again = actuator.start(place, soon())
    assert again.joined
    assert again.partitions is not None
    assert {name.partition("/")[2] for name in again.partitions.names} == listed(place)
    assert run_task(place, CUDA_MPS_SM_PARTITION=again.partitions.names[0]).returncode == 0


def test_a_daemon_that_was_killed_gets_new_partitions(node: Node) -> None:  # noqa: F811
    place = place_of(node, 4)
    first = actuator.start(place, soon())
    os.kill(first.daemon.pid, 9)
    again = actuator.start(place, soon())
    assert not again.joined
    assert again.partitions is not None
    assert len(listed(place)) == 4


def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which the input of each call of the control program is added."""
    real, seen = control._front_end, list[str]()

    def front_end(place: MpsPlace, text: str, deadline: Deadline) -> process.Finished:
        seen.append(text)
        return real(place, text, deadline)

    monkeypatch.setattr(control, "_front_end", front_end)
    return seen


@BOTH_LAYOUTS
def test_a_gpu_whose_chunks_are_known_is_divided_and_listed_in_one_call(
    node: Node,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    layout: str,
) -> None:
    place = place_of(node, 4, SIMMPS_LSPART=layout)
    unknown = start(place)
    actuator.stop(place, soon())
    seen = calls(monkeypatch)
    known = start(msgspec.structs.replace(place, chunks=15))
    assert (known.sm_count, known.of, len(set(known.names))) == (24, unknown.of, 4)
    assert sum("sm_partition" in text or "lspart" in text for text in seen) == 1
    assert {name.partition("/")[2] for name in known.names} == listed(place)


@pytest.mark.parametrize("before", [22, 8, 3])
def test_a_gpu_that_another_driver_divided_into_other_chunks_is_divided_anew(node: Node, before: int) -> None:  # noqa: F811
    place = msgspec.structs.replace(place_of(node, 4), chunks=before)
    found = start(place)
    assert (found.of.total_chunks, found.sm_count) == (15, 24)
    assert {name.partition("/")[2] for name in found.names} == listed(place)


def test_a_user_who_changed_the_partitions_gets_none_of_them(node: Node) -> None:  # noqa: F811
    place = place_of(node, 4)
    first = start(place)
    control.ask(place, f"sm_partition rm {first.names[0]}", soon())
    control.ask(place, f"sm_partition add {place.gpu} 1", soon())
    with pytest.raises(MpsPartitionError, match="divided into other partitions"):
        actuator.start(place, soon())


def test_lost_answers_create_no_partition_twice(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """The commands are carried out, and the front end ends with 0 and no answer."""
    real, lost = control._front_end, []

    def front_end(place: MpsPlace, text: str, deadline: Deadline) -> process.Finished:
        finished = real(place, text, deadline)
        if "sm_partition add" in text and not lost:
            lost.append(text)
            return msgspec.structs.replace(finished, stdout="")
        return finished

    monkeypatch.setattr(control, "_front_end", front_end)
    found = start(place_of(node, 4))
    assert lost
    assert len(found.names) == 4
    assert len(listed(place_of(node, 4))) == 4


def test_commands_that_get_lost_are_sent_again(node: Node) -> None:  # noqa: F811
    node.fault("mps_lose", "5")
    assert len(start(place_of(node, 4)).names) == 4


def test_a_daemon_that_does_not_answer_about_partitions_ends_the_start_in_time(node: Node) -> None:  # noqa: F811
    node.fault("mps_hang", "lspart")
    with pytest.raises(MpsSilentError):
        actuator.start(place_of(node, 4), soon(3))
    assert node.processes() == []


def test_a_failure_with_exit_code_0_is_no_success(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """The program refuses in a text and exits with 0."""
    place = place_of(node, 4)
    real = control.ask_for_all
    monkeypatch.setattr(control, "ask_for_all", lambda place, commands, until: real(place, ["sm_partition add"], until))
    with pytest.raises(MpsPartitionError, match=r"its daemon created 0 of 4 partitions: Usage"):
        actuator.start(place, soon())
    assert node.processes() == []


def test_a_gpu_that_is_listed_only_with_a_partition_is_measured_with_one(
    node: Node,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = place_of(node, 4)
    real = partitions._read

    def only_with_partitions(place: MpsPlace, until: object) -> object:
        table = real(place, until)  # type: ignore[arg-type]
        return table if table is not None and table.partitions else None

    monkeypatch.setattr(partitions, "_read", only_with_partitions)
    started = actuator.start(place, soon())
    assert isinstance(started, MpsStarted)
    assert started.partitions is not None
    assert (len(started.partitions.names), started.partitions.sm_count) == (4, 24)
