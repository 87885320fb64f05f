"""The short form of what a job used, in its SystemComment."""

from __future__ import annotations

import base64
import string
import zlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_share.usage import comment
from slurm_share.usage.records import EnergyUse, GpuEnergy, GpuUse, JobUse, TaskUse

LEVELS = st.none() | st.floats(0, 1e9)
AMOUNTS = st.none() | st.integers(0, 10**9)
REASONS = st.dictionaries(st.sampled_from(["idle_s", "io_wait_s"]), st.sampled_from(["why", "x" * 300, "\" ' ö"]))
SOURCES = st.dictionaries(st.sampled_from(["cpu_s", "energy", "held_s"]), st.sampled_from(["agent", "hooks", "driver"]))
GPUS = st.builds(
    GpuUse,
    uuid=st.uuids().map(lambda one: f"GPU-{one}"),
    name=st.sampled_from(["", "NVIDIA H200", "Tesla \" ' \\ ö"]),
    held_s=LEVELS,
    sm_percent=LEVELS,
    memory_peak_mib=AMOUNTS,
    was_shared=st.none() | st.booleans(),
    energy=st.none() | st.builds(EnergyUse, joules=st.floats(0, 1e9), rule=st.sampled_from(["counter", "power"])),
    by=SOURCES,
    unknown=REASONS,
)
USES = st.builds(
    JobUse,
    job=st.integers(1, 2**32 - 1),
    restarts=st.none() | st.integers(0, 5),
    uid=st.integers(0, 2**32 - 1),
    node=st.from_regex("[A-Za-z0-9._-]{1,40}", fullmatch=True),
    began=st.none() | st.floats(0, 1e10),
    cpu_s=LEVELS,
    memory_peak_mib=AMOUNTS,
    gpus=st.lists(GPUS, max_size=3, unique_by=lambda one: one.uuid).map(tuple),
    tasks=st.just(()) | st.just((TaskUse(task=0),)),
    others=st.lists(st.sampled_from(["GPU-1", "GPU-2", "x" * 3000]), unique=True, max_size=2).map(
        lambda uuids: tuple(GpuEnergy(uuid=uuid, unattributed_j=1.5, total_j=9.25) for uuid in uuids)
    ),
    by=SOURCES,
    unknown=REASONS,
)
OTHERS = st.text(string.ascii_letters + string.digits + " ;:=,.-_!#", max_size=40).map(str.strip)
FULL = msgspec.convert(
    {
        "job": 4711,
        "uid": 2001,
        "node": "gpu-node-017.cluster.example",
        "began": 1764435600.123,
        "ended": 1764439200.456,
        "share": 4,
        "slots": 32,
        "cpus": 128,
        "cpu_s": 123456.789,
        "cpu_wait_s": 12.3456,
        "io_wait_s": 3.21,
        "memory_limit_mib": 1031234,
        "memory_peak_mib": 512345,
        "memory_kills": 1,
        "by": {"cpu_s": "cgroup", "memory_peak_mib": "agent", "cpu_wait_s": "cgroup"},
        "gpus": [
            {
                "uuid": f"GPU-{zlib.crc32(bytes([number])):08x}-1234-5678-9abc-{zlib.crc32(bytes([number, 1])):012x}",
                "index": number,
                "name": "NVIDIA H200",
                "held_s": 3600.333 + number,
                "measured_s": 3595.1 + number,
                "utilization_percent": 71.234 + number,
                "sm_percent": 55.555 + number,
                "dram_percent": 31.31 + number,
                "own_sm_percent": 50.05 + number,
                "memory_total_mib": 143771,
                "memory_peak_mib": 91234 + number,
                "memory_cap_mib": 35000,
                "idle_s": 120.5 + number,
                "idle_longest_s": 60.25 + number,
                "was_shared": False,
                "energy": {"joules": 1234567.8 + 977 * number, "idle_j": 271234.5, "rule": "counter"},
                "device_j": 1234567.8 + 977 * number,
                "by": {"energy": "hooks", "sm_percent": "agent", "memory_peak_mib": "driver"},
            }
            for number in range(8)
        ],
    },
    JobUse,
)


@settings(max_examples=40)
@given(st.lists(USES, min_size=1, max_size=4))
def test_what_was_put_is_found_up_to_its_rounding(uses: list[JobUse]) -> None:
    uses = list(comment.merge((), uses))
    found = comment.decode(comment.encode(uses))
    assert found.problem is None
    assert [(one.job, one.uid, one.node) for one in found.uses] == [(one.job, one.uid, one.node) for one in uses]
    for one, whole in zip(found.uses, uses, strict=True):
        assert one.tasks == ()
        assert (one.cpu_s is None) == (whole.cpu_s is None)
        assert one.cpu_s is None or one.cpu_s == pytest.approx(whole.cpu_s, abs=0.06)
        if one.gpus:
            assert [gpu.uuid for gpu in one.gpus] == [gpu.uuid for gpu in whole.gpus]
            assert [gpu.was_shared for gpu in one.gpus] == [gpu.was_shared for gpu in whole.gpus]
        else:
            assert not whole.gpus or "too many" in one.unknown["gpus"]


@settings(max_examples=40)
@given(OTHERS, st.lists(st.lists(USES, min_size=1, max_size=2), min_size=1, max_size=3))
def test_the_text_of_others_survives_every_change(others: str, changes: list[list[JobUse]]) -> None:
    text = others
    for uses in changes:
        text = comment.put(text, uses)
    ours = comment.encode(comment.decode(text).uses)
    assert text == (f"{others};{ours}" if others else ours)
    every = {(one.restarts or 0, one.node) for uses in changes for one in uses}
    assert {(one.restarts or 0, one.node) for one in comment.decode(text).uses} == every


@settings(max_examples=40)
@given(st.text(max_size=400) | st.text("A-Za0_-1:;", max_size=99).map(lambda text: f"slurm-share-use:1:{text}"))
def test_no_text_raises_an_exception(text: str) -> None:
    found = comment.decode(text)
    assert found.uses == () or found.problem is None
    comment.put(text, [FULL])
    comment.why_not(text, [FULL])


@settings(max_examples=40)
@given(st.lists(USES, min_size=1, max_size=3))
def test_a_comment_never_has_more_than_its_bound(uses: list[JobUse]) -> None:
    assert len(comment.encode(uses)) <= comment.NODE_BYTES * len(uses)


@settings(max_examples=40)
@given(USES, USES)
def test_two_nodes_commute_and_the_second_writing_of_one_changes_nothing(one: JobUse, two: JobUse) -> None:
    two = msgspec.structs.replace(two, node=f"x{two.node}"[:200], restarts=one.restarts)
    one = msgspec.structs.replace(one, node="n1")
    both = comment.put(comment.put("", [one]), [two])
    assert comment.put(comment.put("", [two]), [one]) == both
    assert comment.put(both, [one]) == both


def test_eight_gpus_with_all_figures_fit_into_a_comment_with_nothing_left_out() -> None:
    found = comment.decode(comment.encode([FULL])).uses[0]
    assert found == comment.short_form(FULL)
    assert found.gpus[3].sm_percent == 58.6
    assert len(comment.encode([FULL])) < comment.NODE_BYTES


def test_sixteen_nodes_fit_into_the_column_of_slurmdbd() -> None:
    uses = [msgspec.structs.replace(FULL, node=f"n{number}") for number in range(comment.MOST_NODES)]
    assert len(comment.put("stage in: done", uses)) < 65_535 / 2


def test_a_newer_figure_replaces_the_old_one_and_an_unknown_one_does_not() -> None:
    old = JobUse(job=1, uid=2, node="n1", cpu_s=5.0, memory_peak_mib=7, by={"cpu_s": "agent"})
    new = JobUse(job=1, uid=2, node="n1", cpu_s=6.0, by={"cpu_s": "cgroup"}, unknown={"memory_peak_mib": "no cgroup"})
    (found,) = comment.merge([old], [new])
    assert (found.cpu_s, found.memory_peak_mib, found.by, found.unknown) == (6.0, 7, {"cpu_s": "cgroup"}, {})


def packed(data: bytes) -> str:
    packing = zlib.compressobj(9, zlib.DEFLATED, -15)
    text = packing.compress(data) + packing.flush()
    return "slurm-share-use:1:" + base64.urlsafe_b64encode(text).rstrip(b"=").decode()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("slurm-share-use:2:AAAA", "is of version 2; this slurm-share reads up to 1"),
        (comment.encode([FULL])[:-20], "it is not complete"),
        ("slurm-share-use:1:", "it is not complete"),
        ("slurm-share-use:1:A", "it is not complete"),
        (packed(b'[{"job": -1}]'), "Expected `int` >= 0"),
        (packed(b"[" * 100_000), "cannot be read"),
        (packed(b" " * 30_000_000), "it is too long"),
        (packed(b'[{"job":1,"uid":1,"node":"n1","version":9}]'), "a part of it is of a newer version"),
    ],
    ids=["newer", "cut off", "empty", "one letter", "other type", "nested", "bomb", "newer part"],
)
def test_a_record_that_cannot_be_read_gives_a_sentence(text: str, why: str) -> None:
    found = comment.decode(f"burst buffer;{text}")
    assert found.uses == ()
    assert why in (found.problem or "")


def test_a_damaged_record_is_replaced_and_a_newer_one_is_left() -> None:
    assert comment.put("x;slurm-share-use:1:AAAA", [FULL]) == f"x;{comment.encode([FULL])}"
    newer = "x;slurm-share-use:2:AAAA"
    assert comment.put(newer, [FULL]) == newer
    assert comment.why_not(newer, [FULL]) == "it has a record of a newer slurm-share"


@pytest.mark.parametrize("text", ["it's", 'a "b"', "back\\slash", "line\nend", " blank", "ö"])
def test_text_that_sacctmgr_would_change_is_left_alone(text: str) -> None:
    assert comment.put(text, [FULL]) == text
    assert "sacctmgr cannot write back unchanged" in (comment.why_not(text, [FULL]) or "")


def test_a_field_that_is_full_is_left_alone() -> None:
    full = "x" * 59_999
    assert comment.put(full, [FULL]) == full
    assert "too little room" in (comment.why_not(full, [FULL]) or "")
