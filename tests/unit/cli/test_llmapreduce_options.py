"""Values of llmapreduce's options that are refused."""

from __future__ import annotations

import signal

import pytest

from slurm_share.cli import llmapreduce_options
from slurm_share.core.errors import UsageError
from slurm_share.triples import mapreduce


@pytest.mark.parametrize("text", ["yes", "1", ""])
def test_switches_are_true_or_false(text: str) -> None:
    assert (llmapreduce_options._boolean("--keep", "True"), llmapreduce_options._boolean("--keep", "false")) == (
        True,
        False,
    )
    with pytest.raises(UsageError, match="write --keep=true or --keep=false"):
        llmapreduce_options._boolean("--keep", text)


@pytest.mark.parametrize("text", ["0", "-1", "x", "1.5", "", "9999999999", "١"])
def test_numbers_are_whole_and_at_least_one(text: str) -> None:
    with pytest.raises(UsageError, match="from 1 to"):
        llmapreduce_options._count("--np", text)
    assert llmapreduce_options._count("--np", "12") == 12


@pytest.mark.parametrize("text", ["volta", "volta:", "volta:0", "a:b:1", ""])
def test_gpus_without_a_count_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write NAME:COUNT"):
        llmapreduce_options._gpus(text)


def test_the_kind_of_slots_is_one_of_three() -> None:
    assert llmapreduce_options._slots_type("2") == 2
    with pytest.raises(UsageError, match="--slotsPerTaskType"):
        llmapreduce_options._slots_type("4")


def test_the_checkpoint_signal_is_one_of_the_map_job() -> None:
    words = ["--mapper=/bin/true", "--input=/in", "--output=/out"]
    found = llmapreduce_options.read([*words, "--checkpoint-signal=USR1@60"])
    assert (found.wish.signal, found.checkpoint_signal) == ("USR1@60", int(signal.SIGUSR1))
    assert "--signal=USR1@60" in mapreduce.map_options(found.wish, 1, plugin=False)
    with pytest.raises(UsageError, match="a launcher passes on USR1 and USR2 only"):
        llmapreduce_options.read([*words, "--checkpoint-signal=TERM"])
