"""Lists of nodes: Slurm's are expanded in order, a person's are checked."""

from __future__ import annotations

import pytest
from ClusterShell.NodeSet import NodeSet
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.core import nodelist
from slurm_share.core.errors import UsageError


@pytest.mark.parametrize(
    ("folded", "names"),
    {
        "": (),
        "n1": ("n1",),
        "n[1-3,7]": ("n1", "n2", "n3", "n7"),
        "gpu[08-11]": ("gpu08", "gpu09", "gpu10", "gpu11"),
        "b2,a[1-2]": ("b2", "a1", "a2"),
        "r[1-2]n[3-4]": ("r1n3", "r1n4", "r2n3", "r2n4"),
        "a[1,3],b": ("a1", "a3", "b"),
        "n[01-03,7],x-[1-2]": ("n01", "n02", "n03", "n7", "x-1", "x-2"),
        "n[7,1-3]": ("n7", "n1", "n2", "n3"),
        "n[1-3],m[2,1]": ("n1", "n2", "n3", "m2", "m1"),
        "a[1,3],b,a2": ("a1", "a3", "b", "a2"),
        "n[01,1,001]": ("n01", "n1", "n001"),
        "n[9-011]": ("n9", "n10", "n11"),
        "n[1,1]": ("n1", "n1"),
        "n[99-101]x": ("n99x", "n100x", "n101x"),
        "n[1-2]-ib,n1-[1-2]": ("n1-ib", "n2-ib", "n1-1", "n1-2"),
        "a[2,1]b[3-4],z": ("a2b3", "a2b4", "a1b3", "a1b4", "z"),
        "a[1-2][3-4]": ("a13", "a14", "a23", "a24"),
    }.items(),
)
def test_slurm_s_lists_keep_their_order(folded, names):
    """As `scontrol show hostnames` of Slurm 26.05 printed them."""
    assert nodelist.unfold(folded) == names


def test_of_three_and_more_brackets_the_last_changes_fastest_and_then_the_first():
    """As `scontrol show hostnames` of Slurm 26.05 printed them."""
    three = "r1n3c0 r1n3c1 r2n3c0 r2n3c1 r1n4c0 r1n4c1 r2n4c0 r2n4c1"
    assert nodelist.unfold("r[1-2]n[3-4]c[0-1]") == tuple(three.split())
    four = [f"{name}d{number}" for c in (0, 1) for name in three.split() if name[-1] == str(c) for number in (5, 6)]
    assert nodelist.unfold("r[1-2]n[3-4]c[0-1]d[5-6]") == tuple(four)


@pytest.mark.parametrize(
    "text", ["n[3-1]", "n[1-2,]", "x[a-b]", "n[", "n[1-2", "n]1[", "n[]", "n[1-2] m[1-2]", "n[1-999999]"]
)
def test_what_slurm_does_not_write_is_refused(text):
    with pytest.raises(UsageError, match="no list of nodes"):
        nodelist.unfold(text) if "[" in text else nodelist.parse(text)


@given(st.sets(st.integers(0, 12_000), min_size=1, max_size=30), st.integers(1, 6))
def test_as_clustershell_has_them(numbers, width):
    folded = str(NodeSet.fromlist([f"n{number:0{width}d}" for number in numbers]))
    assert set(nodelist.unfold(folded)) == set(NodeSet(folded))
    assert nodelist.parse(nodelist.fold(nodelist.unfold(folded))) == tuple(NodeSet(folded))


@pytest.mark.parametrize("text", ["", "n[", "a b", "@all", "n1;reboot", "n[1-999999999]", "n[5-", "\x1b[2J", "$(id)"])
def test_what_is_no_list_is_said(text):
    with pytest.raises(UsageError, match="no list of nodes"):
        nodelist.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "n[1-3000]m[1-3000]",
        "n[1-400]m[1-400]o[1-4]",
        "a,n[1-99999]m[1,2]",
        "[-3]999999999",
        "[9999999999-999999999-7]",
        "n[" + "9" * 4301 + "]",
        "n[1-00000000000999999999]",
        "[1-1-4967295]",
    ],
)
def test_brackets_that_multiply_or_join_digits_are_counted_as_such(text):
    with pytest.raises(UsageError, match="no list of nodes"):
        nodelist.parse(text)


def test_paths_are_read_by_the_same_rules():
    assert nodelist.parse_paths("/dev/nvidia[0-1]") == ("/dev/nvidia0", "/dev/nvidia1")
    with pytest.raises(UsageError, match="no list of nodes"):
        nodelist.parse_paths("/dev/nvidia[9999999999-999999999-7]")
