"""Nodes without the package, and backup controllers: when nothing is written, and what is said."""

from __future__ import annotations

import pytest

from slurm_share.install.rules.choices import PARTIAL
from slurm_share.install.rules.hosts import (
    WRAPPERS,
    ControllersSeen,
    NodesSeen,
    controller_notes,
    controller_refusals,
    foreign_wrappers,
    is_wrapper,
    node_notes,
    node_refusals,
    starts_ours,
    wrapper,
    wrapper_edits,
)

ALL = NodesSeen(("n1", "n2"))
SOME = NodesSeen(("n1", "n2"), {"n3": ("/p",), "n4": ("/p", "/q")}, ("n5",))


@pytest.mark.parametrize(
    ("seen", "taken", "feature", "featured", "says"),
    [
        (ALL, (), "", (), None),
        (NodesSeen((), {}, ("n1",)), (), "", (), None),
        (SOME, (), "", (), "n[3-4] lack /p, /q: anybody's next job there would drain the node"),
        (SOME, (), "here", ("n1", "n2"), "--with partial"),
        (SOME, (PARTIAL,), "", (), 'node_feature = "share"'),
        (SOME, (PARTIAL,), "here", (), "no node has the feature here"),
        (SOME, (PARTIAL,), "here", ("n1", "n3"), "n3 have the feature here and lack the package"),
        (SOME, (PARTIAL,), "here", ("n1", "n5"), None),
    ],
)
def test_what_keeps_an_apply_from_writing(seen, taken, feature, featured, says):
    """A node that lacks the package, unless told; then a feature that its nodes alone have. None: nothing does."""
    refusals = list(node_refusals(seen, taken, feature, list(featured)))
    assert len(refusals) == (says is not None), refusals
    assert says is None or says in refusals[0]


def test_who_was_not_asked_and_who_is_left_out_is_said():
    assert list(node_notes(ALL, (), "", [])) == []
    (said,) = node_notes(SOME, (), "", [])
    assert said == ("not checked, since they did not answer: n5. The next job on a node without the package drains it")
    said = list(node_notes(SOME, (PARTIAL,), "here", ["n1"]))
    assert said[0] == "not checked, since they did not answer: n5"
    assert "before the reconfigure, with mode 0755" in said[1]
    assert said[2] == "without the package, and left alone: n[3-4]"
    assert said[3] == "n2 have the package and not the feature here: no shared job comes there"


def test_a_wrapper_is_known_by_its_name_and_its_line():
    """One that is there is left, whatever else it says; another file in its place is not taken for one."""
    files = {f"/e/{name}": wrapper(key) for key, name in WRAPPERS.items()}
    assert [edit.add for edit in wrapper_edits("/e", {})] == list(files.values())
    assert [edit.file for edit in wrapper_edits("/e", {})] == list(files)
    assert list(wrapper_edits("/e", files)) == []
    assert all(is_wrapper(name, text) for name, text in files.items())
    assert list(foreign_wrappers("/e", files)) == []
    (said,) = foreign_wrappers("/e", {"/e/slurm-share-prolog.sh": "#!/bin/sh\n"})
    assert "/e/slurm-share-prolog.sh is not the wrapper" in said
    assert not is_wrapper("/e/other.sh", wrapper("Prolog"))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("/opt/slurm-share/bin/slurm-share-prolog", True),
        ("/opt/slurm-share/bin/slurm-share-epilog", True),
        ("slurm-share-prolog.sh", True),
        ("/etc/slurm/slurm-share-epilog.sh", True),
        ("/site/epilog", False),
        ("(null)", False),
    ],
)
def test_a_wrapper_in_force_starts_our_hook_as_well(value, expected):
    assert starts_ours(["/site/prolog", value]) is expected


def test_one_controller_needs_no_word():
    assert list(controller_notes(ControllersSeen(), ["/etc/slurm/slurm.conf"])) == []
    assert list(controller_refusals(ControllersSeen())) == []


def test_what_another_one_lacks_is_said():
    seen = ControllersSeen(("ctl2", "ctl3"), False, ("ctl2",), {"ctl2": ("/e/gres.conf",)}, ("ctl3",))
    (refusal,) = controller_refusals(seen)
    assert refusal.startswith("ctl2: a controller that lacks /usr/lib/slurm-share/job_submit.lua")
    said = list(controller_notes(seen, ["/e/slurm.conf"]))
    expected = ("not in SlurmctldHost", "the same /e/slurm.conf", "on ctl2 /e/gres.conf differs from", "checked: ctl3")
    for words, sentence in zip(expected, said, strict=True):
        assert words in sentence
