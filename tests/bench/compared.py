"""Writes the figures of results/launch.json into packaging/docs/compare.md: python tests/bench/compared.py."""

from __future__ import annotations

import json
import re
from pathlib import Path

RESULT = Path(__file__).parent / "results/launch.json"
PAGE = Path(__file__).parents[2] / "packaging/docs/compare.md"
COST = re.compile(r"^(\| .*\(`([^`]+)`\) \|) \S+ \| \S+ s \| \S+ \|$", re.MULTILINE)
"""A row with tasks a second, CPU time and RPCs."""
RATE = re.compile(r"^(\| .*\(`([^`]+)`\) \|) \S+ (\| [a-z].*)$", re.MULTILINE)
"""A row with tasks a second and words."""


def filled(page: str, result: str) -> str:
    """Return the page with the figures of the result. Raises StopIteration for a row that the result lacks."""
    rows = json.loads(result)["rows"]

    def figures(what: str) -> tuple[str, str]:
        place = next(number for number, row in enumerate(rows) if row["what"] == what)
        follow = {row["what"].strip(): row["value"] for row in rows[place + 1 : place + 4]}
        rate = rows[place]["value"]
        cost = f"{follow['CPU time of slurmctld']:.2f} s | {follow['RPCs to slurmctld']:.0f}"
        return (f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"), cost

    page = COST.sub(lambda row: f"{row[1]} {' | '.join(figures(row[2]))} |", page)
    return RATE.sub(lambda row: f"{row[1]} {figures(row[2])[0]} {row[3]}", page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(), RESULT.read_text()))
