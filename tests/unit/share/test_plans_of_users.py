"""Plans that their users can write: they count for the user's own job only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from plans import plain_plan

from slurm_share.core.errors import StateError
from slurm_share.core.paths import Paths
from slurm_share.share import ledger_file
from slurm_share.share import plan as plan_text
from slurm_share.share.records import Plan


def written(root: Path, folder: int, plan: Plan) -> Paths:
    paths = Paths(root=root)
    paths.job(folder).mkdir(parents=True)
    paths.plan(folder).write_text(plan_text.render(plan))
    return paths


def test_a_plan_of_another_job_than_its_folder_is_none(tmp_path: Path) -> None:
    paths = written(tmp_path, 7, plain_plan(8, os.getuid()))
    with pytest.raises(StateError, match="job 8"):
        ledger_file.read_plan(paths, 7)
    assert ledger_file.read_plans(paths) == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: a file of somebody else's takes root")
def test_a_plan_of_another_user_than_its_owner_is_none(tmp_path: Path) -> None:
    paths = written(tmp_path, 7, plain_plan(7, 2002))
    os.chown(paths.plan(7), 2001, 2001)
    with pytest.raises(StateError, match="uid 2002"):
        ledger_file.read_plan(paths, 7)
    os.chown(paths.plan(7), 2002, 2002)
    assert ledger_file.read_plan(paths, 7) is not None


def test_a_link_in_its_place_is_none(tmp_path: Path) -> None:
    paths = written(tmp_path, 7, plain_plan(7, os.getuid()))
    paths.plan(7).rename(tmp_path / "elsewhere")
    paths.plan(7).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateError, match="symbolic"):
        ledger_file.read_plan(paths, 7)
    assert ledger_file.read_plans(paths) == ()
