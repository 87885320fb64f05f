"""A site with backup controllers."""

from __future__ import annotations

from slurm_share.install.rules.controllers import ControllersSeen, controller_notes, controller_refusals


def test_one_controller_needs_no_word():
    assert list(controller_notes(ControllersSeen(), ["/etc/slurm/slurm.conf"])) == []
    assert list(controller_refusals(ControllersSeen())) == []


def test_what_another_one_lacks_is_said():
    seen = ControllersSeen(("ctl2", "ctl3"), False, ("ctl2",), {"ctl2": ("/e/gres.conf",)}, ("ctl3",))
    (refusal,) = controller_refusals(seen)
    assert refusal.startswith("ctl2: a controller that lacks /usr/lib/slurm-share/job_submit.lua")
    said = list(controller_notes(seen, ["/e/slurm.conf"]))
    assert len(said) == 4
    for words in (
        "not in SlurmctldHost",
        "the same /e/slurm.conf",
        "on ctl2 /e/gres.conf differs from",
        "checked: ctl3",
    ):
        assert words in " ".join(said)
