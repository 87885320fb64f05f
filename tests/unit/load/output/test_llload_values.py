"""llload for programs: TSV and CSV."""

from __future__ import annotations

import csv
import io

import pytest
from llload_surveys import gpu, node, process, shared_node, silent, survey
from msgspec.structs import replace

from slurm_share.load.output import values
from slurm_share.load.sources.demo import Demo


def records(looked, of):
    return [dict(zip(values.HEADINGS[of], row, strict=True)) for row in values.rows(looked, of)]


def test_a_row_for_each_node_with_raw_numbers():
    first, second = records(survey(shared_node(), silent("n2")), "nodes")
    assert (first["cpus"], first["load5"], first["memory_used_mib"]) == (40, 30.0, 48 * 1024)
    assert (first["gpu_load5"], first["gpu_load_by"], first["gpu_memory_free_mib"]) == (0.4, "util", 60 * 1024)
    assert (first["users"], first["jobs"], first["answered"], first["flags"]) == ("alice", "4711", True, "gL")
    assert (second["answered"], second["why"]) == (False, "no answer within 5 s")
    assert second["memory_used_mib"] is second["gpu_load5"] is second["taken"] is None
    assert second["cpus_used"] == 40


def test_a_row_for_each_gpu_or_process():
    looked = survey(shared_node(), silent("n2"))
    gpus, processes = records(looked, "gpus"), records(looked, "processes")
    assert [(row["gpu"], row["users"], row["load5"]) for row in gpus] == [(0, "alice", 0.2), (1, "alice", 0.2)]
    assert [(row["pid"], row["gpu"], row["cap_mib"]) for row in processes] == [(77, 0, 7800), (78, 1, 7800)]


def test_a_sum_that_lacks_a_gpu_is_empty():
    looked = survey(node("n1", gpus=(gpu(0), gpu(1, load=None, used=None))))
    row = records(looked, "nodes")[0]
    assert row["gpu_load5"] is row["gpu_memory_used_mib"] is None
    assert row["gpu_memory_mib"] == 64 * 1024


@pytest.mark.parametrize("of", ["nodes", "gpus", "processes"])
def test_every_row_has_every_field(of):
    for line in values.as_tsv(values.rows(Demo(everybody=True).read(), of)):
        assert line.count("\t") == len(values.HEADINGS[of]) - 1


def test_what_is_simulated_says_so():
    demo = Demo(everybody=True).read()
    assert {row["simulated"] for of in ("nodes", "gpus") for row in records(demo, of)} == {True}
    assert {row["simulated"] for row in records(survey(node("n1", gpus=(gpu(0, simulated=True),))), "gpus")} == {True}
    assert {row["simulated"] for row in records(survey(node("n1")), "nodes")} == {False}


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@x", " =1", "\t=1"])
def test_a_spreadsheet_calculates_no_strangers_text(name):
    one = shared_node()
    looked = survey(replace(one, snapshot=replace(one.snapshot, processes=(process(name=name),))))
    line = next(values.as_csv(values.rows(looked, "processes")))
    field = next(csv.reader(io.StringIO(line)))[4]
    assert field.startswith(("'", r"\t"))
    assert next(values.as_csv([(-1.5, -3)])) == "-1.5,-3"


def test_no_text_breaks_a_line_or_a_field():
    assert next(values.as_tsv([("a\tb\nc\x1b[1m", None, True, 0.25)])) == r"a\tb\nc\x1b[1m" + "\t\tyes\t0.25"
    line = next(values.as_csv([('a,"b"\nc', 1)]))
    assert next(csv.reader(io.StringIO(line))) == [r'a,"b"\nc', "1"]
