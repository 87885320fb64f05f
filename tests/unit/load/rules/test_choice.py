"""Which nodes and jobs of a survey are shown, and in which order."""

from __future__ import annotations

import pytest
from llload_surveys import node, queued, shared_node, silent, survey

from slurm_share.core.errors import UsageError
from slurm_share.load.rules.choice import Choice, choose, of_jobs

LOOK = survey(node("n1", load=30.0), node("n2", load=40.0), silent("n9"), node("n3", cpus=10, used=10, load=20.0))


def names(choice):
    """The chosen nodes, and why not all of them."""
    found, why = choose(LOOK, choice)
    return [one.name for one in found.nodes], why


def test_without_a_choice_all_nodes_stay_as_they_are():
    assert names(Choice()) == (["n1", "n2", "n9", "n3"], "")


def test_nodes_are_chosen_by_name_flag_and_number():
    assert names(Choice(nodes=("n3", "n1"))) == (["n1", "n3"], "")
    assert names(Choice(flagged=True)) == (["n9", "n3"], "flagged")
    assert names(Choice(top=2)) == (["n3", "n2"], "the highest CPU load per CPU")
    assert names(Choice(sort=("load", True), top=1)) == (["n2"], "first by load")
    assert names(Choice(flagged=True, sort=("hostname", False), top=1)) == (["n3"], "flagged, first by hostname")


def test_a_node_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match=r"there is no node n7 in the recording; there are n\[1-3,9\]"):
        choose(LOOK, Choice(nodes=("n1", "n7")))


def test_of_a_recording_only_the_named_jobs_stay():
    look = survey(shared_node(), jobs=(queued(),))
    assert of_jobs(look, (), must_be=True) is look
    assert of_jobs(look, ("4711",), must_be=True).jobs == look.jobs
    assert of_jobs(look, ("5",), must_be=False).jobs == ()
    with pytest.raises(UsageError, match="job 5 is not in the recording at that time; there are 4711"):
        of_jobs(look, ("5",), must_be=True)
