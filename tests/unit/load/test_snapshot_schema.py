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
from slurm_share.node.records import Activity
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
    """To bring it up to date: slurm-share sample --schema NAME >packaging/docs/NAME.schema.json"""
    assert shipped(name) == json.loads(json.dumps(snapshots.schema(name)))


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
    """Nothing else is in it, and which record and version it is stands first."""
    llload.main(words)
    printed = json.loads(capsys.readouterr().out)
    jsonschema.validate(printed, strict(shipped(name)))
    assert list(printed)[:3] == ["kind", "schema", "version"]
    assert (printed["kind"], printed["schema"]) == (kind, snapshots.SCHEMA)


def test_a_schema_refuses_what_is_none() -> None:
    """The advice as a bare list, a node without a name, a verdict that there is not."""
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate([], shipped("advice"))
    survey: dict[str, Any] = {"taken": 1.0, "user": "alice", "source": "srun", "nodes": [{"name": "n1"}]}
    jsonschema.validate(survey, shipped("survey"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(survey | {"nodes": [{"why": "down"}]}, shipped("survey"))


def test_every_field_of_a_survey_and_of_advice_is_explained() -> None:
    """In their document, by its name."""
    said = set(re.findall(r"[a-z][a-z0-9_]+", (DOCS / "survey.md").read_text(encoding="utf-8").lower()))
    for record in (Survey, NodeLoad, SlurmNode, QueuedJob, AdviceReport, Advice, Bound):
        for field in record.__struct_fields__:
            assert field in said, f"{record.__name__}.{field}"


def test_every_field_is_explained() -> None:
    """In the document, by its name."""
    said = set(re.findall(r"[a-z][a-z0-9_]+", (DOCS / "snapshot.md").read_text(encoding="utf-8").lower()))
    for record in (Snapshot, GpuLoad, Activity, OnGpu, ProcessLoad, JobLoad, UserLoad):
        for field in record.__struct_fields__:
            assert field in said, f"{record.__name__}.{field}"


def test_the_number_in_the_document_is_the_codes() -> None:
    """It counts up with a meaning."""
    assert f"`schema` is {snapshots.SCHEMA}." in (DOCS / "snapshot.md").read_text(encoding="utf-8")


def test_fields_that_are_not_known_are_passed_over() -> None:
    """A newer sampler may add some; a field that is missing has its default."""
    text = b'{"node":"n1","taken":1.5,"cpus":2,"cores":2,"of_tomorrow":{"a":[1]}}'
    seen = snapshots.parse_snapshot(text, "test")
    assert (seen.node, seen.schema, seen.gpus) == ("n1", 1, ())
    assert msgspec.json.decode(snapshots.render(seen))["taken"] == 1.5
