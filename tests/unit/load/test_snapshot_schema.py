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


OF_BEFORE = """{"schema":1,"node":"n1","taken":1.5,"cpus":2,"cores":2,"gpus":[{"uuid":"GPU-a","index":0,"name":"A",
"memory_total_mib":100,"memory_used_mib":10,"utilization_percent":50.0,
"utilization":{"m1":1.0,"m5":2.0,"m15":3.0,"over_s":900.0,"m10":2.5},
"sm":{"m1":4.0,"m5":5.0,"m15":6.0,"over_s":900.0,"m10":null},
"dram":{"m1":7.0,"m5":8.0,"m15":9.0,"over_s":900.0,"m10":null},
"activity":{"sm":11.0,"occupancy":12.0,"tensor":13.0,"dram":14.0,"fp64":15.0,"fp32":16.0,"fp16":17.0},
"power_w":70.0,"users":[{"uid":2001,"utilization":null,"sm":{"m1":4.0,"m5":5.0,"m15":6.0,"over_s":60.0,"m10":null},
"dram":null}]}],
"jobs":[{"job":7,"uid":2001,"user":"alice","cpu":{"m1":1.0,"m5":2.0,"m15":3.0,"over_s":900.0,"m10":null}}],
"gpu_sums":{"count":2,"load5":1.5,"load_by":"sm","fullest":0.5}}"""
"""As the first release writes it."""


def test_a_snapshot_of_the_first_release_is_read_whole_and_written_alike() -> None:
    seen = snapshots.parse_snapshot(OF_BEFORE, "test")
    (gpu,), (its_job,), sums = seen.gpus, seen.jobs, seen.gpu_sums
    assert gpu.utilization_percent_windows.m10 == 2.5
    assert gpu.sm_percent_windows.m5 == gpu.load_percent_5min == 5.0
    assert gpu.dram_percent_windows.m15 == 9.0
    assert msgspec.structs.astuple(gpu.activity) == (11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0)
    assert gpu.users[0].sm_percent_windows.over_s == 60.0
    assert its_job.cpu_cores_windows.m5 == 2.0
    assert (sums.gpu_load, sums.gpu_load_by, sums.fullest_ratio) == (1.5, "sm", 0.5)
    assert contains(json.loads(snapshots.render(seen)), json.loads(OF_BEFORE))


def contains(whole: Any, part: Any) -> bool:
    """Whether whatever `part` says is in `whole`."""
    if isinstance(part, dict):
        return all(key in whole and contains(whole[key], value) for key, value in part.items())
    if isinstance(part, list):
        return len(whole) == len(part) and all(map(contains, whole, part))
    return bool(whole == part)
