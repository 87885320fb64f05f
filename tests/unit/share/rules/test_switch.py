"""`slurm-share off` and `on`: the changes of config.toml and of the queue."""

from __future__ import annotations

import pytest

from slurm_share.core import config
from slurm_share.core.settings import Settings
from slurm_share.share import queue_verdicts
from slurm_share.share.records import SwitchableJob, VerdictUpdate
from slurm_share.share.rules import switch

TEXTS = [
    "",
    "# ours\nmode = 'on'\n",
    "mode = 'on'\n\n[partition.gpu]\nmode = 'on'\n",
    "switched_off = false # by hand\nmode = 'on'\n",
    "mode = 'on'\r\n",
    'log_file = """\n/var/log/x"""\n[partition.gpu]\n',
    "mode = 'on'",
]


@pytest.mark.parametrize("text", TEXTS)
def test_off_and_on_again_is_the_same_file(text):
    off = switch.switched_off(text)
    assert config.parse(off, "x").settings.switched_off
    assert set(config.parse(off, "x").modes().values()) == {"off"}
    assert switch.switched_off(off) == off
    assert switch.switched_on(off) == text


def test_a_line_of_the_sites_own_is_not_taken_away():
    assert switch.switched_on("switched_off = true\nmode = 'on'\n") == "switched_off = false\nmode = 'on'\n"


@pytest.mark.parametrize("off", [True, False])
@pytest.mark.parametrize("text", TEXTS)
def test_nothing_else_of_the_file_is_changed(text, off):
    found = switch.switched(text, off=off)
    assert found is not None
    assert config.parse(found, "x").settings.switched_off == off


def test_a_key_in_another_form_is_not_changed():
    assert switch.switched('"switched_off" = false\n', off=True) is None
    assert switch.switched('"switched_off" = true\n', off=False) is None


def test_the_first_controller_that_is_up_acts():
    assert switch.acting({"a": False, "b": True, "c": True}) == "b"
    assert switch.acting({"a": False}) is None
    assert switch.acting({}) is None


@pytest.mark.parametrize(
    ("settings", "reaches"),
    [
        (Settings(), True),
        (Settings(job_submit=False), False),
        (Settings(job_submit=False, mode_file="/mode"), True),
    ],
)
def test_nodes_hear_of_a_mode_by_verdicts_or_by_the_mode_file(settings, reaches):
    assert switch.reaches_nodes(settings) is reaches


def test_of_several_partitions_the_mode_that_does_more_counts():
    site = config.parse("mode = 'off'\n[partition.a]\nmode = 'on'\n[partition.b]\nmode = 'observe'\n", "x")
    assert [switch.mode_of(site, names) for names in (("a", "b"), ("b", "c"), ("c",))] == ["on", "observe", "off"]


def job(which="7", *, extra="slurm-share=on", comment="", pending=True, shaped=True, restarts=0):
    return SwitchableJob(which, ("gpu",), pending, shaped, restarts, extra, comment)


@pytest.mark.parametrize(
    ("one", "off", "text"),
    [
        (job(), True, "slurm-share=off"),
        (job(extra="hers;slurm-share=on"), True, "hers;slurm-share=off"),
        (job(extra="slurm-share=observe,whole"), True, "slurm-share=off"),
        (job(extra="slurm-share=off"), True, None),
        (job(extra="hers"), True, None),
        (job(pending=False), True, "slurm-share=on,runs=1"),
        (job(pending=False, restarts=2), True, "slurm-share=on,runs=3"),
        (job(pending=False, extra="slurm-share=on,runs=1"), True, None),
        (job(pending=False, extra="slurm-share=off"), True, None),
        (job(extra="slurm-share=on,runs=1", restarts=1), True, "slurm-share=off"),
        (job(extra="hers;slurm-share=off"), False, "hers;slurm-share=on"),
        (job(extra="slurm-share=off", shaped=False), False, None),
        (job(extra="slurm-share=off", pending=False), False, None),
        (job(extra="slurm-share=on,runs=1", pending=False), False, "slurm-share=on"),
        (job(extra="slurm-share=on,runs=1", restarts=1), False, "slurm-share=on"),
        # the share in it, which sacct shows, stays as the last field
        (job(extra="slurm-share=on,share-gpu=4,mem=8192M"), True, "slurm-share=off,share-gpu=4,mem=8192M"),
        (job(extra="slurm-share=on,share-gpu=4", pending=False), True, "slurm-share=on,runs=1,share-gpu=4"),
        (job(extra="slurm-share=off,share-gpu=4"), False, "slurm-share=on,share-gpu=4"),
        (job(extra="slurm-share=on,runs=1,share-gpu=4", pending=False), False, "slurm-share=on,share-gpu=4"),
        (job(), False, None),
        (job(extra="slurm-share=observe"), False, None),
        (job(extra="hers"), False, None),
    ],
)
def test_a_job_gets_the_word_that_its_state_allows(one, off, text):
    found = switch.updates([one], lambda partitions: "on", off=off)
    assert found == (() if text is None else (VerdictUpdate(("7",), "extra", text),))


def test_a_job_gets_back_no_more_than_its_partition_has():
    one = job(extra="slurm-share=off")
    assert switch.updates([one], lambda partitions: "off", off=False) == ()
    (update,) = switch.updates([one], lambda partitions: "observe", off=False)
    assert update.text == "slurm-share=observe"


def test_jobs_with_the_same_text_go_together_and_lists_of_elements_alone():
    """scontrol accepts a list of jobs, but a list with brackets has commas of its own."""
    jobs = [job(str(number)) for number in range(1, 251)] + [
        job("300_[1,3-9]"),
        job("300_2"),
        job("301", comment="slurm-share=on", extra=""),
    ]
    found = switch.updates(jobs, lambda partitions: "on", off=True)
    assert [(len(one.jobs), one.field) for one in found] == [
        (100, "extra"), (100, "extra"), (51, "extra"), (1, "extra"), (1, "comment")
    ]  # fmt: skip
    assert queue_verdicts.update_argv(found[3]) == ["scontrol", "update", "jobid=300_[1,3-9]", "extra=slurm-share=off"]


@pytest.mark.parametrize(("which", "count"), [("7", 1), ("7_[3]", 1), ("7_[1-5:2,9]", 4), ("7_[1-3,20-29]", 13)])
def test_elements_of_an_array_are_counted(which, count):
    assert switch.count(which) == count


@pytest.mark.parametrize(
    ("modes", "said"),
    [
        ({"": "on"}, []),
        ({"": "observe"}, ["slurm-share observes only and shares nothing"]),
        (
            {"": "observe", "gpu": "on", "cpu": "off"},
            [
                "slurm-share observes only and shares nothing, except in partition gpu, where sharing is on",
                "sharing is switched off in partition cpu",
            ],
        ),
        (
            {"": "off", "b": "on", "a": "on", "c": "off"},
            ["sharing is switched off, except in partitions a, b, where sharing is on"],
        ),
        ({"": "on", "a": "observe"}, ["slurm-share observes only and shares nothing in partition a"]),
    ],
)
def test_the_general_mode_names_the_partitions_that_differ(modes, said):
    assert switch.mode_sentences(modes) == said
