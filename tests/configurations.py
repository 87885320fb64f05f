"""packaging/docs/does-it-fit.md from tests/cluster/site_configurations.toml. Usage: tests/configurations.py --write."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

TABLE = Path(__file__).with_name("cluster") / "site_configurations.toml"
PAGE = Path(__file__).resolve().parents[1] / "packaging/docs/does-it-fit.md"
HEAD = """\
# Does my slurm.conf fit

For administrators, before they install: find the lines of your Slurm here. `yes`: shared jobs are right. `no`: change
the line, or share only where it does not hold; the last column names the check of doctor that says so. `refused`: the
job gets a sentence, and nothing runs wrongly. Ordinary jobs are the same in all of them. `slurm-share doctor` looks for
the same.

Made by `tests/configurations.py` from the records that `tests/cluster/test_configurations.py` runs on one real
cluster with simulated GPUs. (1): another test shows it. (2): tried by hand, no test repeats it. (3): read in Slurm's
sources, not run.
"""


@dataclass(frozen=True)
class Configuration:
    """A way to configure Slurm, and what a shared job does there: the head of the table explains the fields."""

    name: str
    setting: str
    fits: Literal["yes", "no", "refused"]
    effect: str
    chapter: str
    doctor: tuple[str, ...] = ()
    slurm: str = ""
    without: tuple[str, ...] = ()
    gres: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    before: str = ""
    after: str = ""
    options: str = "--share-gpu=2 -w n2"
    script: str = "srun ./task.sh"
    tasks: str = "4: 2 on each of 2 GPUs"
    said: str = ""
    pending: str = ""
    ordinary: str = "COMPLETED"
    daily: bool = False
    on_v2: bool = False
    release: str = ""
    wrong: str = ""
    by: str = ""
    tried: str = ""
    runs: bool = False

    @property
    def evidence(self) -> str:
        """Return the note of how it is known; empty if the test of this table runs it."""
        return "" if self.runs else " (1)" if self.by else " (2)" if self.tried else " (3)"


RUN_BY = {"slurm", "without", "gres", "files", "before", "options"}


def read(text: str) -> tuple[Configuration, ...]:
    """Return the records. Raises TypeError for an unknown key."""
    found, chapter = [], ""
    for fields in tomllib.loads(text)["row"]:
        chapter = fields.setdefault("chapter", chapter)
        whole = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
        found.append(Configuration(**whole, runs=bool(RUN_BY & set(fields))))
    return tuple(found)


def page(rows: tuple[Configuration, ...]) -> str:
    """Return the text of the page."""
    lines, chapter = [], ""
    for row in rows:
        if row.chapter != chapter:
            chapter = row.chapter
            lines += ["", f"## {chapter}", "", "| Slurm has | fits | a shared job | doctor |", "|---|---|---|---|"]
        names = ", ".join(f"`{name}`" for name in row.doctor) or "-"
        lines.append(f"| {row.setting} | {row.fits} | {row.effect}{row.evidence} | {names} |")
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(f"{__doc__}")
    PAGE.write_text(page(read(TABLE.read_text())))
