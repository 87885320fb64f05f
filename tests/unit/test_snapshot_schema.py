"""The Snapshot's documents are those of the record in the code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec

from slurm_share import snapshot as snapshots
from slurm_share.snapshot import Activity, GpuLoad, JobLoad, OnGpu, ProcessLoad, Snapshot, UserLoad

DOCS = Path(__file__).resolve().parents[2] / "packaging" / "docs"


def test_the_schema_that_is_shipped_is_the_records() -> None:
    """To bring it up to date: slurm-share sample --schema >packaging/docs/snapshot.schema.json"""
    shipped = json.loads((DOCS / "snapshot.schema.json").read_text(encoding="utf-8"))
    assert shipped == json.loads(json.dumps(snapshots.schema()))


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
