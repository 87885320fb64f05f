"""The expressions of the Grafana dashboard and of the alert rules that are shipped, as Grafana sends them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parents[2] / "packaging/grafana"
DASHBOARD = FOLDER / "slurm-share.json"
ALERTS = FOLDER / "slurm-share-alerts.yaml"
ALL = {"cluster": ".*", "node": ".*", "user": ".*"}
"""Grafana's substitute for a variable set to All: its allValue."""
ZERO = " or vector(0)"
"""The end of an expression that gives 0 where there is nothing to count."""


def dashboard() -> dict[str, Any]:
    """Return the dashboard."""
    return json.loads(DASHBOARD.read_text())  # type: ignore[no-any-return]


def panels() -> list[dict[str, Any]]:
    """Return the panels that show something, without headings of rows."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[tuple[str, str]]:
    """Return each expression by panel and letter of the query."""
    for panel in panels():
        for one in panel["targets"]:
            yield f"{panel['title']} ({panel['id']}{one['refId']})", one["expr"]


def alerts() -> list[dict[str, Any]]:
    """Return the alert rules."""
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def resolved(expression: str, values: Mapping[str, str]) -> str:
    """Return the expression as Grafana sends it. `$__rate_interval` is four scrape intervals, 15 s by default."""
    known = {**values, "__rate_interval": "1m"}
    return re.sub(r"\$(\w+)", lambda found: known[found[1]], expression)


def chosen(*words: str) -> str:
    """Return what Grafana substitutes for a variable with several values: a regular expression of all of them."""
    escaped = [re.sub(r"[\\^$.*+?()[\]{}|]", r"\\\\\g<0>", word) for word in words]
    return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"
