"""The requests of a packed run."""

from __future__ import annotations

import pytest

from slurm_share.core.errors import UsageError
from slurm_share.core.records import ShareRequest
from slurm_share.core.settings import Settings
from slurm_share.packing import PackRequest, PackSettings, TaskSpec
from slurm_share.slurm.records import NodeKind
from slurm_share.triples.records import Triple
from slurm_share.triples.rules import packed
from slurm_share.triples.rules import triple as rule_triple
from slurm_share.triples.rules.packed import PackRoom
from slurm_share.triples.rules.task_files import Tasks

PACK = PackRequest()


def kind(cores: int, gpus: int, *nodes: str) -> NodeKind:
    return NodeKind(
        partition="gpu", nodes=nodes or ("n1",), states=("IDLE",), cpus=cores, cores=cores, memory_mib=1000,
        gpus=(("a100", gpus),) if gpus else (),
    )  # fmt: skip


# ---- [N,auto,T] ----


@pytest.mark.parametrize(
    ("text", "triple"),
    [
        ("[1,auto,4]", Triple(1, 1, 4, is_auto=True)),
        ("[2,auto]", Triple(2, 1, None, is_auto=True)),
    ],
)
def test_auto_stands_in_place_of_the_processes(text: str, triple: Triple) -> None:
    assert rule_triple.parse(text, may_be_auto=True) == triple
    assert str(triple) == text


@pytest.mark.parametrize("text", ["[auto,1]", "[1,1,auto]", "[1,AUTO]", "[1,auto,0]", "[1,auto,1,1]", "[1, auto]"])
def test_auto_elsewhere_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="the triple"):
        rule_triple.parse(text, may_be_auto=True)


def test_auto_is_refused_where_nothing_packs() -> None:
    with pytest.raises(UsageError, match="auto is not a number of processes on a node"):
        rule_triple.parse("[1,auto]")


@pytest.mark.parametrize(
    ("threads", "rooms", "tasks", "per_gpu", "expected"),
    [
        (4, [(32, 4)], 100, 48, 8),
        (None, [(32, 4)], 100, 48, 32),
        (5, [(32, 4), (16, 2)], 100, 48, 3),
        (1, [(128, 1)], 500, 48, 48),
        (1, [(128, 2)], 500, 3, 6),
        (1, [(128, None)], 500, 3, 128),
        (1, [(32, 4)], 12, 48, 12),
        (1, [(32, 4)], 1, 48, 1),
        (64, [(32, 4)], 100, 48, 1),
    ],
)
def test_auto_is_what_the_smallest_node_has_room_for(
    threads: int | None, rooms: list[PackRoom], tasks: int, per_gpu: int, expected: int
) -> None:
    triple = Triple(1, 1, threads, is_auto=True)
    assert packed.sized(triple, rooms, tasks, per_gpu, "").per_node == expected


def test_a_written_number_of_processes_stays() -> None:
    assert packed.sized(Triple(1, 99, 4), [(32, 4)], 5, 1, "") == Triple(1, 99, 4)


def test_auto_on_unknown_nodes_is_refused_with_a_triple_that_works() -> None:
    with pytest.raises(UsageError, match=r"is not known: because; write the number of processes, such as \[2,16,4\]"):
        packed.sized(Triple(2, 1, 4, is_auto=True), [], 5, 48, "because")


def test_a_part_of_a_node_gives_its_part_of_the_cores() -> None:
    kinds = [kind(32, 4), kind(16, 2)]
    assert packed.rooms(kinds, 1, is_shared=True) == ((8, 1), (8, 1))
    assert packed.rooms(kinds, 1, is_shared=False) == ((32, 1), (16, 1))
    assert packed.rooms(kinds, None, is_shared=True) == ((32, 4), (16, 2))


@pytest.mark.parametrize(
    ("settings", "written", "site", "expected"),
    [
        (PackSettings(), None, 60, 48),
        (PackSettings(), "4,mps=off", 60, 4),
        (PackSettings(), "mps=off", 60, 48),
        *((PackSettings(max_per_gpu=3), written, 60, 3) for written in ("4", None, "off", "sm=50", "", "0", "9999")),
        (PackSettings(max_per_gpu=3), "2", 60, 2),
        (PackSettings(), None, 8, 8),
        (PackSettings(policy="exclusive"), None, 60, 1),
    ],
)
def test_the_most_tasks_of_a_gpu_is_the_least_of_all_limits(
    settings: PackSettings, written: str | None, site: int, expected: int
) -> None:
    assert packed.most_per_gpu(packed.with_limit(PackRequest(settings=settings), written), site) == expected


# ---- nodes ----


def test_nodes_without_a_gpu_are_not_for_packing() -> None:
    assert packed.with_gpus([kind(8, 0), kind(8, 2)]) == (kind(8, 2),)
    assert packed.with_gpus([]) == ()
    with pytest.raises(UsageError, match="no node of partition gpu has one; write another partition with -q"):
        packed.with_gpus([kind(8, 0)])


# ---- the share ----


@pytest.mark.parametrize(
    ("per_node", "gpus", "written", "expected"),
    [
        (16, 4, None, ShareRequest(4)),
        (4, 4, None, ShareRequest(2)),  # else no GPU would have MPS, and two tasks may meet on one
        (2, 4, None, ShareRequest(2)),
        (1, 1, None, ShareRequest(1)),
        (9, 4, None, ShareRequest(3)),
        (8, 4, "sm=50", ShareRequest(2, sm=50)),
        (8, 4, "4", ShareRequest(4)),
        (8, 4, "off", None),
        (8, 4, "mps=off", ShareRequest(2, sharing="time-slicing")),
    ],
)
def test_every_gpu_has_slots_for_all_workers_that_may_meet_there(
    per_node: int, gpus: int, written: str | None, expected: ShareRequest | None
) -> None:
    found = packed.sharing(Triple(1, per_node), PACK, written, gpus, plugin=True)
    assert found.request == expected
    assert not found.is_computed  # the launcher must not divide the GPUs anew


def test_exclusive_needs_no_second_slot() -> None:
    pack = PackRequest(settings=PackSettings(policy="exclusive"))
    assert packed.sharing(Triple(1, 4), pack, None, 4, plugin=True).request == ShareRequest(1)


@pytest.mark.parametrize(
    ("written", "gpus", "why"),
    [
        ("mem=8G", 4, "write --gpu-mem=8192M instead"),
        ("mem=8G", None, "write --gpu-mem=8192M instead"),
        ("4,mem=8G", 4, "write --gpu-mem=8192M instead"),
        ("sm=even", 4, "write a percentage, such as sm=50"),
        ("sm=even", None, "write a percentage, such as sm=50"),
        ("1", 4, r"has room for 4 processes, but \[1,8\] has 8"),
        ("nonsense", 4, "not in the valid form"),
    ],
)
def test_a_share_without_meaning_beside_pack_is_refused(written: str, gpus: int | None, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        packed.sharing(Triple(1, 8), PACK, written, gpus, plugin=True)


def test_more_workers_than_slots_can_be_is_refused_with_a_triple_that_works() -> None:
    with pytest.raises(UsageError, match=r"needs 128 slots on each of 1 GPU, .* at most 60; write \[1,60\]"):
        packed.sharing(Triple(1, 128), PACK, None, 1, plugin=True)


def test_a_site_that_divides_multiprocessors_by_slots_is_named() -> None:
    (note,) = packed.sm_notes(Settings(sm="even"), ShareRequest(8))
    assert note.startswith("this site gives a task an even part of the multiprocessors: 12 % with 8 slots on a GPU")
    even, turns = Settings(sm="even"), Settings(sm="even", sharing="time-slicing")
    for site, request in (
        (Settings(), ShareRequest(8)),
        (even, None),
        (even, ShareRequest(8, sharing="time-slicing")),
        (turns, ShareRequest(8)),
    ):
        assert packed.sm_notes(site, request) == ()
    assert packed.sm_notes(turns, ShareRequest(8, sharing="mps"))


# ---- what the tasks ask for ----


def test_more_gpus_than_any_node_has_is_refused() -> None:
    specs = Tasks(("a", "b"), (TaskSpec(), TaskSpec(gpus=5)), (1, 4), "f")
    with pytest.raises(UsageError, match="f: line 4: it requests 5 GPUs, but a node of this job has 4 GPUs"):
        packed.check_gpus(TaskSpec(), specs, 4)
    with pytest.raises(UsageError, match="--gpus-per-task=2: a node of this job has 1 GPU; write at most 1"):
        packed.check_gpus(TaskSpec(gpus=2), Tasks(("a",)), 1)
    packed.check_gpus(TaskSpec(gpus=9), Tasks(("a",)), None)
    packed.check_gpus(TaskSpec(), specs, 5)


def test_more_memory_than_any_gpu_has_is_refused() -> None:
    specs = Tasks(("a", "b"), (TaskSpec(), TaskSpec(gpu_mem_mib=50_000)), (1, 4), "f")
    with pytest.raises(
        UsageError,
        match="f: line 4: its --gpu-mem=50000M is more than the 40000 MiB that tasks can have on the largest",
    ):
        packed.check_sizes(TaskSpec(), specs, 40_000)
    with pytest.raises(UsageError, match=r"--gpu-mem=50000M is more .* write at most --gpu-mem=40000M"):
        packed.check_sizes(TaskSpec(gpu_mem_mib=50_000), Tasks(("a",)), 40_000)
    packed.check_sizes(TaskSpec(gpu_mem_mib=50_000), Tasks(("a",)), None)
    packed.check_sizes(TaskSpec(gpu_mem_mib=40_000), Tasks(("a",)), 40_000)
