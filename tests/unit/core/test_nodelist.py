"""Lists of nodes: Slurm's are expanded in order, a person's are checked."""

from __future__ import annotations

import pytest
from ClusterShell.NodeSet import NodeSet
from hypothesis import given, settings
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
    }.items(),
)
def test_slurm_s_lists_keep_their_order(folded, names):
    assert nodelist.unfold(folded) == names


@settings(deadline=None)
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
    "text", ["n[1-3000]m[1-3000]", "n[1-400]m[1-400]o[1-4]", "a,n[1-99999]m[1,2]", "[-3]999999999"]
)
def test_brackets_that_multiply_or_join_digits_are_counted_as_such(text):
    with pytest.raises(UsageError, match="no list of nodes"):
        nodelist.parse(text)
