"""Which jobs of a recording are advised on. The choice of nodes is tested with llload's options."""

from __future__ import annotations

import pytest
from llload_surveys import queued, shared_node, survey

from slurm_share.core.errors import UsageError
from slurm_share.load.rules.choice import of_jobs


def test_of_a_recording_only_the_named_jobs_stay():
    look = survey(shared_node(), jobs=(queued(),))
    assert of_jobs(look, (), must_be=True) is look
    assert of_jobs(look, ("4711",), must_be=True).jobs == look.jobs
    assert of_jobs(look, ("5",), must_be=False).jobs == ()
    with pytest.raises(UsageError, match="job 5 is not in the recording at that time; there are 4711"):
        of_jobs(look, ("5",), must_be=True)
