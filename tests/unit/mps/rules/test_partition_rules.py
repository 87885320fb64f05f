"""Static partitions: the tables and answers of the control program, in both layouts, and equal division."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.mps.records import Partition, PartitionTable
from slurm_share.mps.rules import partitions

GPU = "GPU-5131194a-af6f-47c0-8619-4e91f42a6279"
SLASHED = "D/79e/DgwYMDAAAAAAAAAAAAAAAAAAAAAAAAA"

MANUAL = """GPU           ID      Free    Used    Free  Used  Clients
                      Chunks  Chunks  SM    SM
GPU-5131194a  -       3       7       24    56    -
GPU-5131194a  Dx4AAA  -       7       -     56    -
"""
PROGRAM = f"""GPU       Partition                              Chunks    SMs      Has
                                                 free used free used clients
GPU-51 5 10 52 80
GPU-51 {SLASHED} 10 80 Yes
"""


def test_the_table_of_the_manual_with_seven_columns_is_read():
    assert partitions.parse_table(MANUAL, GPU) == PartitionTable(3, 24, (Partition("Dx4AAA", 7, 56),))


def test_the_table_of_the_program_with_five_columns_is_read():
    found = partitions.parse_table(PROGRAM, GPU)
    assert found == PartitionTable(5, 52, (Partition(SLASHED, 10, 80, True),))
    assert (found.total_chunks, found.total_sms) == (15, 132)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Unknown command 'lspart'",
        "GPU-51",
        "GPU-99 15 0 132 0",
        "GPU-51 5 10",
        "GPU-51 two words are no row",
        "GPU-51 id x y z",
        "GPU-51 a;b 1 8 No",
        "GPU-51 \x1b[2J 1 8 No",
    ],
)
def test_an_answer_without_a_row_of_the_gpu_is_no_table(text):
    assert partitions.parse_table(text, GPU) is None


def test_rows_of_other_gpus_are_left_out():
    text = f"GPU-99 1 2 8 16\nGPU-99 abc 2 16 No\nGPU-5 4 0 32 0\n{GPU}x 1 1 8 8\n"
    assert partitions.parse_table(text, GPU) == PartitionTable(4, 32)


IDS = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", min_size=30, max_size=40)
ROWS = st.lists(st.tuples(IDS, st.integers(1, 30), st.booleans()), max_size=20, unique_by=lambda row: row[0])


@given(ROWS, st.integers(0, 30), st.sampled_from([2, 4, 8]), st.integers(4, len(GPU)), st.booleans())
def test_both_layouts_of_a_table_mean_the_same(rows, free, chunk_sms, cut, is_manual):
    used = sum(chunks for _, chunks, _ in rows)
    uuid = GPU[:cut]
    if is_manual:
        lines = [f"{uuid} - {free} {used} {free * chunk_sms} {used * chunk_sms} -"]
        lines += [f"{uuid}  {name} - {chunks} - {chunks * chunk_sms} -" for name, chunks, _ in rows]
    else:
        lines = [f"{uuid} {free} {used} {free * chunk_sms} {used * chunk_sms}"]
        lines += [f"{uuid} {name} {chunks} {chunks * chunk_sms} {'Yes' if has else 'No'}" for name, chunks, has in rows]
    found = partitions.parse_table("GPU ID\n  Chunks SM\n" + "\n".join(lines), GPU)
    wanted = [Partition(name, chunks, chunks * chunk_sms, None if is_manual else has) for name, chunks, has in rows]
    assert found == PartitionTable(free, free * chunk_sms, tuple(sorted(wanted, key=lambda one: one.id)))


@given(st.text())
def test_any_text_of_a_users_daemon_is_read_without_an_error(text):
    partitions.parse_table(text, GPU)
    partitions.parse_table(f"GPU-51 {text}\n{GPU} {text}", GPU)
    partitions.parse_added(text, GPU)


@given(IDS, st.booleans())
def test_an_added_partition_is_read_in_the_forms_of_program_and_manual(name, is_manual):
    line = f"{GPU}/{name}" if is_manual else f"Partition {GPU}/{name} created"
    assert partitions.parse_added(f"{line}\nUnknown command x\n", GPU) == (name,)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Failed to fulfill the requested SM partition of 9 chunks, error CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION",
        f"Partition {GPU} created",
        "Partition GPU-other/abc created",
        f"Partition {GPU}/a b created",
        f"Partition {GPU}/a;id created",
    ],
)
def test_an_answer_that_names_no_partition_of_the_gpu_adds_none(text):
    assert partitions.parse_added(text, GPU) == ()


def test_ids_that_the_table_cuts_are_completed_and_keep_one_order():
    table = PartitionTable(0, 0, (Partition("a", 1, 8), Partition("b/", 1, 8), Partition("c", 1, 8)))
    found = partitions.with_whole_ids(table, ("b/2", "a1", "c1", "c2"))
    assert [one.id for one in found.partitions] == ["a1", "b/2", "c"]


@pytest.mark.parametrize(
    ("parts", "sms", "in_use"),
    [(2, 56, 112), (3, 40, 120), (4, 24, 96), (5, 24, 120), (7, 16, 112), (8, 8, 64), (15, 8, 120)],
)
def test_an_h200_is_divided_into_whole_chunks(parts, sms, in_use):
    assert partitions.chunks_each(15, parts) * 8 == sms
    assert partitions.idle_sms(132, 15, 8, parts) == 132 - in_use


def test_more_partitions_than_chunks_get_none():
    assert partitions.chunks_each(15, 16) == 0


@pytest.mark.parametrize(
    ("parts", "better"),
    [(2, (3,)), (3, ()), (4, (3, 5)), (5, ()), (6, (5, 15)), (8, (5, 15)), (14, (5, 15)), (15, ()), (16, ())],
)
def test_counts_that_leave_few_sm_idle_are_named_where_many_are(parts, better):
    assert partitions.better_counts(132, 15, 8, parts) == better


def test_a_gpu_on_which_much_fills_no_chunk_has_no_better_count_than_its_best():
    assert partitions.better_counts(20, 2, 8, 2) == ()
    assert partitions.better_counts(20, 1, 8, 1) == ()


def test_the_counts_that_use_every_chunk_are_the_full_ones():
    assert partitions.full_counts(132, 15, 8) == (1, 3, 5, 15)
    assert partitions.full_counts(72, 18, 4) == (1, 2, 3, 6, 9, 18)
    assert partitions.full_counts(0, 0, 8) == ()


@given(st.integers(1, 40), st.sampled_from([2, 4, 8]), st.integers(0, 30), st.integers(1, 60))
def test_better_counts_never_leave_more_idle(chunks, chunk_sms, rest, parts):
    total = chunks * chunk_sms + rest
    for count in partitions.better_counts(total, chunks, chunk_sms, parts):
        idle = partitions.idle_sms(total, chunks, chunk_sms, count)
        assert idle < partitions.idle_sms(total, chunks, chunk_sms, parts)
