"""The third backend of packaging/docs/extending.md serves a share, in a copy of the tree."""

from __future__ import annotations

import json
from pathlib import Path

from worked_changes import MOST_PRODUCT_FILES, change_of, changed_tree, python

SHARE = r"""
import json, os, sys, tempfile, time
from pathlib import Path

from slurm_share.core.paths import Paths
from slurm_share.core.settings import Settings
from slurm_share.node import processes
from slurm_share.share import admission, hook, ledger_file, release
from slurm_share.share.backends import registry
from slurm_share.testing import FakeNvml

said = []
for room in (admission, release):
    room.nvml = FakeNvml().gpu().gpu()
processes.read_live_jobs = lambda: ()
hook.report = lambda who, text: said.append(text)
folder = Path(sys.argv[1])
paths = Paths(folder / "state", shm=folder / "shm", tmp=folder / "tmp", cgroup=folder / "cgroup")
settings = Settings(mode="on", log_file="", mps_control="/bin/false")


def environ(job):
    return {
        "SLURM_JOB_ID": str(job), "SLURM_JOB_UID": str(os.getuid()), "SLURM_JOB_GID": str(os.getgid()),
        "SLURMD_NODENAME": "n2", "CUDA_VISIBLE_DEVICES": "0,1", "SPANK_SHARE_GPU": sys.argv[2],
    }


def folders():
    return sorted(str(one) for one in (paths.user / "cooperative").glob("*"))


admission.admit_job(environ(7), paths, settings, 1000.0)
plan = ledger_file.read_plan(paths, 7)
lines = paths.plan(7).read_text().splitlines()
found = {
    "variables": [{one.name: one.value for one in registry.slot_environment(plan, slot)} for slot in plan.slots],
    "written": [dict(word.replace("?", "").split("=", 1) for word in line.split(" ")[1:]) for line in lines
                if line.startswith("environment ")],
    "backends": sorted({slot.backend for slot in plan.slots}),
    "notes": plan.notes,
    "before": folders(),
}
well = release.release_job(environ(7), paths, settings, time.time())
mps = [name for name in sys.modules if name.startswith("slurm_share.mps.") and name != "slurm_share.mps.records"]
found |= {"after": folders(), "well": well, "said": said, "mps": mps, "names": list(registry.BACKENDS)}
print(json.dumps(found))
"""


def share(tree: Path, folder: Path, option: str) -> dict:
    """Run Prolog and Epilog of a job with that share in the tree; return its tasks' variables, and what is left."""
    folder.mkdir()
    return json.loads(python(tree, SHARE, str(folder), option))


def test_a_backend_in_one_file_serves_a_share(tmp_path):
    """Prolog, plan, the variables of every slot, Epilog: with one new file and its name in the registry."""
    change = change_of("A sharing method")
    assert len(change.product_files) == 2 <= MOST_PRODUCT_FILES
    tree = changed_tree(change, tmp_path / "tree")
    found = share(tree, tmp_path / "shared", "2")
    assert found["names"] == ["cooperative", "mps", "time-slicing"]
    folders = {variables["SLURM_SHARE_FOLDER"] for variables in found["variables"]}
    assert len(found["variables"]) == 4
    assert sorted(folders) == found["before"]
    assert len(folders) == 2
    assert {variables["SLURM_SHARE_MPS"] for variables in found["variables"]} == {"off"}
    assert found["notes"] == []
    assert (found["well"], found["after"]) == (True, [])
    assert any("4 slots, 4 under a common folder, on GPU-" in line for line in found["said"])
    # The plugin sets what the plan's lines say, without knowing what it means.
    assert found["written"] == found["variables"]
    assert found["backends"] == ["cooperative"]
    assert found["mps"] == []
    # Users go on writing what names the other two.
    without = share(tree, tmp_path / "without", "2,mps=off")
    assert all("SLURM_SHARE_FOLDER" not in variables for variables in without["variables"])
    assert any("4 slots, 0 under MPS, on GPU-" in line for line in without["said"])
    assert without["mps"] == []
