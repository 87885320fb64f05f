"""A site with backup controllers."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_share.install.rules.controllers import (
    ControllersSeen,
    controller_notes,
    controller_refusals,
    controllers,
    is_same_host,
)
from slurm_share.slurm.conf_text import ConfText, parse


def test_every_line_is_a_controller():
    """The primary first, without its address."""
    text = "SlurmctldHost=ctl1(10.0.0.1)\nslurmctldhost = ctl2.site\nSlurmctldHost=ctl1\n"
    assert controllers(ConfText(Path("f"), parse(text, Path("f")))) == ("ctl1", "ctl2.site")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [("a", "a", True), ("a", "a.b", True), ("a.b", "a", True), ("a.b", "a.c", False), ("a", "b", False)],
)
def test_a_name_may_have_its_domain(one, other, same):
    """Of two with domains both count."""
    assert is_same_host(one, other) is same


def test_one_controller_needs_no_word():
    """Most sites."""
    assert list(controller_notes(ControllersSeen(), ["/etc/slurm/slurm.conf"])) == []
    assert list(controller_refusals(ControllersSeen())) == []


def test_what_another_one_lacks_is_said():
    """And who was not asked."""
    seen = ControllersSeen(("ctl2", "ctl3"), False, ("ctl2",), {"ctl2": ("/e/gres.conf",)}, ("ctl3",))
    (refusal,) = controller_refusals(seen)
    assert refusal.startswith("ctl2: a controller, and without /usr/lib/slurm-share/job_submit.lua")
    said = list(controller_notes(seen, ["/e/slurm.conf"]))
    assert len(said) == 4
    for words in (
        "none of SlurmctldHost's",
        "the same /e/slurm.conf",
        "on ctl2 /e/gres.conf is another",
        "checked: ctl3",
    ):
        assert words in " ".join(said)
