"""A desk for tests of llsub: a folder with scripts, a Slurm that answers with recordings, an sbatch that notes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_share.cli import llsub
from slurm_share.slurm import jobs
from slurm_share.triples import run_folder
from slurm_share.triples.records import Run

DATA = Path(__file__).parents[2] / "data" / "slurm-26.05"
SBATCH = """#!/bin/sh
[ -e refuse ] && { echo "sbatch: error: no" >&2; echo "$@" >> sbatch.log; exit 1; }
[ "$1" = --test-only ] && { echo "sbatch: Job 4711 to start" >&2; [ -s "$(eval echo \\${$#})" ]; exit; }
echo "$@" >> sbatch.log
echo 4711
"""


def make_desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to a folder with scripts, with a recorded cluster and an sbatch that records its arguments."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    for name, text in (
        ("bin/sbatch", SBATCH),
        ("task.sh", "#!/bin/sh\n#SBATCH --qos=q -N7\n"),
        ("plain.sh", "#!/bin/sh\n"),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    for name in ("SBATCH_PARTITION", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    answers = {
        "sinfo": (DATA / "sinfo.json").read_text(),
        "scontrol": "PartitionName=gpu Default=YES\n",
        "sbatch": "  --share-gpu=N\n",
        "squeue": '{"meta": {"slurm": {"release": "26.05", "cluster": "demo"}}, "jobs": []}',
    }
    monkeypatch.setattr(jobs, "run", lambda argv, **_: answers[argv[0]])
    return tmp_path


def submitted(folder: Path) -> list[str]:
    """Return the arguments of sbatch."""
    log = folder / "sbatch.log"
    return log.read_text().splitlines() if log.exists() else []


def call(*words: str) -> int:
    """Run llsub with these words; return its exit code, argparse's included."""
    try:
        return llsub.main(words)
    except SystemExit as error:
        return int(error.code or 0)


def assert_refused(
    folder: Path, why: str, *words: str, capsys: pytest.CaptureFixture[str], said: list[str] | None = None
) -> None:
    """Check that llsub ends with 2 and a sentence for these words, and makes and submits nothing. `said`: gets it."""
    assert call(*words) == 2
    err = capsys.readouterr().err
    assert why in err
    assert "Traceback" not in err
    if said is not None:
        said.append(err.replace(str(folder), "FOLDER"))
    assert not list(folder.glob("LLSUB*"))
    assert submitted(folder) == []


def run_of(folder: Path) -> Run:
    """Return the run that was submitted."""
    return run_folder.read_run(folder / "LLSUB.1")
