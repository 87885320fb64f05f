"""The Snapshot's documents are those of the record in the code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from slurm_share.cli import llload
from slurm_share.load import snapshot as snapshots
from slurm_share.load.snapshot import (
    Advice,
    AdviceReport,
    Bound,
    GpuLoad,
    JobLoad,
    NodeLoad,
    OnGpu,
    ProcessLoad,
    Snapshot,
    Survey,
    UserLoad,
)
from slurm_share.node.gpu_figures import Activity
from slurm_share.slurm.records import QueuedJob, SlurmNode

DOCS = Path(__file__).resolve().parents[3] / "packaging" / "docs"


def shipped(name: str) -> Any:
    """The schema in the documents."""
    return json.loads((DOCS / f"{name}.schema.json").read_text(encoding="utf-8"))


def strict(schema: Any) -> Any:
    """The schema, refusing fields that it does not name."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if schema.get("type") == "object" and "properties" in schema else {}
    return {key: strict(value) for key, value in schema.items()} | closed


@pytest.mark.parametrize("name", snapshots.DOCUMENTS)
def test_the_schema_that_is_shipped_is_the_records(name: str) -> None:
    assert json.dumps(shipped(name)) == json.dumps(snapshots.schema(name))  # in this order, too


def test_descriptions_do_not_depend_on_how_python_keeps_a_docstring(monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshots.schema("survey")
    monkeypatch.setattr(GpuLoad, "__doc__", "\n      ".join((GpuLoad.__doc__ or "").split()))
    assert snapshots.schema("survey") == before


@pytest.mark.parametrize(
    ("name", "words", "kind"),
    [
        ("survey", ["--demo", "--json"], "survey"),
        ("survey", ["--demo", "--all", "--demo-nodes", "40", "--json"], "survey"),
        ("survey", ["--source", "local", "--json"], "survey"),
        ("advice", ["--demo", "--advise", "--json"], "advice"),
    ],
)
def test_what_llload_prints_is_what_its_schema_says(name: str, words: list[str], kind: str, capsys: Any) -> None:
    llload.main(words)
    printed = json.loads(capsys.readouterr().out)
    jsonschema.validate(printed, strict(shipped(name)))
    assert list(printed)[:3] == ["kind", "schema", "version"]
    assert (printed["kind"], printed["schema"]) == (kind, snapshots.SCHEMA)


@pytest.mark.parametrize(
    ("document", "records"),
    [
        ("survey.md", (Survey, NodeLoad, SlurmNode, QueuedJob, AdviceReport, Advice, Bound)),
        ("snapshot.md", (Snapshot, GpuLoad, Activity, OnGpu, ProcessLoad, JobLoad, UserLoad)),
    ],
)
def test_every_field_is_explained(document: str, records: Any) -> None:
    said = set(re.findall(r"[a-z][a-z0-9_]+", (DOCS / document).read_text(encoding="utf-8").lower()))
    missing = [
        (record.__name__, one) for record in records for one in record.__struct_encode_fields__ if one not in said
    ]
    assert missing == []


def test_the_number_in_the_document_is_the_codes() -> None:
    assert f"`schema` is {snapshots.SCHEMA}." in (DOCS / "snapshot.md").read_text(encoding="utf-8")


def test_fields_that_are_not_known_are_passed_over() -> None:
    text = b'{"node":"n1","taken":1.5,"cpus":2,"cores":2,"of_tomorrow":{"a":[1]}}'
    seen = snapshots.parse_snapshot(text, "test")
    assert (seen.node, seen.schema, seen.gpus) == ("n1", 1, ())
    assert msgspec.json.decode(snapshots.render(seen))["taken"] == 1.5
