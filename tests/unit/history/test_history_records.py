"""Samples as lines of a file, and back; what is no sample is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slurm_share.history import records
from slurm_share.history.records import Sample

SAMPLE = Sample(
    time=1795195800, node="n1", user="alice", jobs=1, cpus=40, cpu_load=0.02, memory_mib=1024, gpus=2, gpu_load=0.35,
    gpu_memory_mib=2406, load_by="util", nppn=1, advised=4, decided_by="GPU load", work="under-used",
)  # fmt: skip
LINE = "2026-11-20T17:30:00Z\tn1\talice\t1\t40\t0.020\t1024\t2\t0.350\t2406\tutil\t1\t4\tGPU load\tunder-used\t900\n"
FIELDS = LINE[:-1].split("\t")


def test_a_sample_is_a_line():
    assert records.render(SAMPLE) == LINE
    assert records.parse(LINE[:-1]) == SAMPLE
    silent = Sample(time=1795195800, node="n1", user="alice", jobs=1)
    assert records.render(silent) == "2026-11-20T17:30:00Z\tn1\talice\t1" + "\t" * 12 + "900\n"
    assert records.parse(records.render(silent)[:-1]) == silent
    assert records.HEAD.splitlines()[1].split("\t") == list(records.COLUMNS)


@pytest.mark.parametrize(
    "line",
    [
        "",
        LINE[:-5],
        LINE[:30],
        LINE[:-1] + "\t",
        LINE[:-1].replace("0.020", "nan"),
        LINE[:-1].replace("0.020", "-1"),
        LINE[:-1].replace("0.020", "inf"),
        LINE[:-1].replace("0.020", "1e308"),
        LINE[:-1].replace("900", "0" * 4000 + "900"),
        "\t".join("9" * 4000 if name == "cpus" else text for name, text in zip(records.COLUMNS, FIELDS, strict=True)),
        LINE[:-1].replace("900", "0"),
        LINE[:-1].replace("900", "9000000"),
        LINE[:-1].replace("900", ""),
        LINE[:-1].replace("alice", ""),
        LINE[:-1].replace("alice", "al\x1b[31mice"),
        LINE[:-1].replace("alice", "al\\xice"),
        LINE[:-1].replace("2026", "x026"),
        LINE[:-1].replace("17:30", "\0\0\0\0\0"),
        records.HEAD.splitlines()[1],
    ],
)
def test_a_broken_line_is_no_sample(line):
    with pytest.raises(ValueError):
        records.parse(line)


@given(some.text(min_size=1, max_size=20), some.integers(0, 4 * 10**9))
def test_whatever_a_user_is_called_one_sample_is_one_line(user, time):
    line = records.render(Sample(time=time, node="n1", user=user, jobs=1))
    assert line.count("\n") == 1
    assert line.count("\t") == len(records.COLUMNS) - 1
    if user.isprintable():
        assert records.parse(line[:-1]).user == user


def test_a_quarter_of_an_hour_has_one_beginning():
    assert {records.slot(moment, 900) for moment in (1795195800, 1795195801.5, 1795196699.9)} == {1795195800}
    assert records.slot(1795196700, 900) == 1795196700
    assert records.file_name(1795219199) == "2026-11-20.tsv"
    assert records.file_name(1795219200) == "2026-11-21.tsv"
