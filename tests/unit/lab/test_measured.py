"""Tables of measured pairs and memory, and folders of job scripts, as people publish them."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slurm_share.core.errors import SlurmShareError
from slurm_share.lab import measured
from slurm_share.lab.log_text import TraceError
from slurm_share.lab.worlds import SheetRow


@pytest.fixture
def write(tmp_path):
    def written(text, name="table.csv"):
        file = tmp_path / name
        file.write_text(text)
        return file

    return written


SPEEDS = {("a", "b"): 0.5, ("b", "a"): 0.8}
PAIRS = {
    "speeds of both": "kind_a,kind_b,speed_a,speed_b\na,b,0.5,0.8\n",
    "another order, names and separator": "Speed 2;Job 2;Job 1;Speed 1\n0,8;b;a;0,5\n",
    "percents": "kind_a,kind_b,normalized speed a,normalized speed b\na,b,50,80\n",
    "percent signs": "a,b,speed_a,speed_b\na,b,50%,80 %\n",
    "slowdowns": "model1,model2,slowdown1,slowdown2\na,b,2.0,1.25\n",
    "rates with columns alone": "job_a,job_b,rate_a,rate_b,rate_alone_a,rate_alone_b\na,b,50,8,100,10\n",
    "rates with rows alone": "job_a,job_b,rate_a,rate_b\na,,100,\nb,,10,\na,b,50,8\n",
    "times": "kind a,kind b,seconds a,seconds b,alone seconds a,alone seconds b\na,b,20,50,10,40\n",
    "one task beside another": "model,neighbour,speed\na,b,0.5\nb,a,0.8\n",
    "one task beside another, with rates": "model,beside,throughput,alone\na,b,50,100\nb,a,8,10\n",
    "comments before it": "# measured on a V100\nkind_a,kind_b,speed_a,speed_b\na,b,0.5,0.8\n",
    "a matrix of speeds": "speed,a,b\na,,0.5\nb,0.8,\n",
    "a matrix of slowdowns": ",a,b\na,1.1,2\nb,1.25,1.3\n",
    "a matrix of rates": ",alone,a,b\na,100,,50\nb,10,8,\n",
    "tasks of two GPUs beside": "model1,speed1,gpus1,model2,speed2,gpus2,gpu_util\na,.5,1,b,.8,1,9\na,1,2,b,1,1,3\n",
}  # fmt: skip


@pytest.mark.parametrize("form", PAIRS)
def test_pairs_are_read_in_many_forms(write, form):
    found = measured.read_pairs(write(PAIRS[form]))
    assert {pair: pytest.approx(speed) for pair, speed in SPEEDS.items()}.items() <= dict(found.speeds).items()
    assert set(found.kinds) == {"a", "b"}


def test_a_table_of_a_spreadsheet_is_read(tmp_path):
    file = tmp_path / "table.csv"
    file.write_bytes("kind_a\tkind_b\tspeed_a\tspeed_b\na\tb\t0.5\t0.8\n".encode("utf-16"))
    assert measured.read_pairs(file).speeds["a", "b"] == 0.5


def test_a_kind_is_named_by_all_columns_that_tell_it(write):
    found = measured.read_pairs(write("model1,batch1,speed1,model2,batch2,speed2\nbert,8,0.5,bert,16,0.8\n"))
    assert found.speeds["bert 8", "bert 16"] == 0.5


def test_pairs_that_were_not_measured_get_the_mean_of_the_kind_and_are_counted(write):
    found = measured.read_pairs(write("a,b,speed_a,speed_b\nx,y,0.5,0.8\nx,z,0.7,0.9\n"))
    assert found.speeds["x", "x"] == pytest.approx(0.6)
    assert any("5 speeds were not measured" in note for note in found.notes)


def test_memory_of_kinds_follows_from_that_of_pairs(write):
    text = "model1,speed1,model2,speed2,mem (GiB)\na,1,b,1,3\na,1,c,1,5\nb,1,c,1,6\n"
    assert measured.read_pairs(write(text)).memory_mib == {"a": 1024, "b": 2048, "c": 4096}


def test_memory_of_each_kind_is_taken_as_it_is(write):
    found = measured.read_pairs(write("job_a,job_b,speed_a,speed_b,mem_a,mem_b\na,b,0.5,0.8,3 GiB,4000\n"))
    assert found.memory_mib == {"a": 3072, "b": 4000}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has to name columns"),
        ("kind_a,kind_b,speed_a,speed_b\n", "no row below the names"),
        ("1,2,3\n4,5,6\n", "numbers only; it has to name the columns"),
        ("kind_a,kind_b,speed_a,speed_b\na,b,fast,0.8\n", "line 2: column 'speed_a': 'fast' is not a number"),
        ("kind_a,kind_b,speed_a,speed_b\na,b,-1,0.8\n", "line 2: column 'speed_a': '-1' is not a number of at least 0"),
        ("kind_a,kind_b,speed_a,speed_b\na,b,0.5\n", "line 2: it has 3 fields, and the first line has 4"),
        ("kind_a,kind_b,rate_a,rate_b\na,b,500,80\n", "no column or row has the figure alone; add one called alone"),
        ("model,speed\na,0.5\n", "no column is the neighbour; it may be called neighbour"),
        ("model,neighbour,colour\na,b,red\n", "no column is the speed"),
        ("kind_a,kind_b,speed_a,speed_b\n,,0.5,0.8\n", "no row has two kinds and a speed"),
        (
            "kind_a,kind_b,speed_a,speed_b,mem_a,mem_b\na,b,1,1,40 parsecs,1\n",
            "column 'mem_a': '40 parsecs' has no unit",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_with_line_column_and_reason(write, text, why):
    with pytest.raises(TraceError) as caught:
        measured.read_pairs(write(text))
    assert why in str(caught.value)


SHEETS = {
    "plain": "model,batch,peak_mib\nm,8,2048\n",
    "units in the name": "Batch Size,Network,Max GPU memory (GiB)\n8,m,2\n",
    "units in the field": "batch;network;peak memory\n8;m;2,0 GiB\n",
    "estimates beside it": "model,batch,FakeTensor estimate [MB],Max memory.used [MB],GPU util\nm,8,99,2048,12\n",
}  # fmt: skip


@pytest.mark.parametrize("form", SHEETS)
def test_sheets_are_read_in_many_forms(write, form):
    rows, _ = measured.read_sheet(write(SHEETS[form]))
    assert [(row.model, [value for _, value in row.numbers], row.peak_mib) for row in rows] == [("m", [8.0], 2048)]


def test_numbers_are_found_in_names_and_commands(write):
    rows, _ = measured.read_sheet(write("file name,memory MiB\ninput:12_arch:wide_batch:8.out,900\n"))
    assert rows == [SheetRow("input:N_arch:wide_batch:N.out", (("--input", 12.0), ("--batch", 8.0)), 900)]
    rows, _ = measured.read_sheet(write("model,memory MiB,run\nm,900,2025-01-01_m.py_--batch_size_32_--epochs_1\n"))
    assert rows == [SheetRow("m", (("--batch_size", 32.0), ("--epochs", 1.0)), 900)]


def test_the_columns_with_numbers_can_be_named(write):
    file = write("model,batch,lucky,peak\nm,8,7,2048\n")
    assert measured.read_sheet(file)[0][0].numbers == (("--batch", 8.0), ("--lucky", 7.0))
    assert measured.read_sheet(file, ["Batch"])[0][0].numbers == (("--batch", 8.0),)
    with pytest.raises(TraceError, match="--numbers bacth: there is no such column; it has model, batch"):
        measured.read_sheet(file, ["bacth"])


def test_a_folder_has_a_trace_for_each_script_and_says_what_is_none(tmp_path):
    (tmp_path / "x.rad").write_text("python resnet50.py\nm\nd\n32\np\n1\n5260\n0\n")
    (tmp_path / "b.sh").write_text("python submit.py --task x.rad\nsleep 10\npython submit.py --task x.rad\n")
    (tmp_path / "clean.sh").write_text("rm -f out\n")
    traces, notes = measured.read_scripts(tmp_path)
    assert [[task.submitted_s for task in trace.tasks] for trace in traces] == [[0.0, 10.0]]
    assert "1 of 2 files are no traces" in notes[0]
    assert "clean.sh" in notes[0]


def test_a_folder_without_a_trace_is_refused(tmp_path):
    with pytest.raises(TraceError, match=r"no file in it is a trace: it has no \*\.sh"):
        measured.read_scripts(tmp_path)


CELLS = some.sampled_from(["", "a", "b", "0.5", "50%", "1e300", "-3", "nan", "3 GiB", '"', "\x00", ",", "é", "9" * 400])
HEADS = some.sampled_from(
    ["kind_a", "kind_b", "speed_a", "speed_b", "mem_a", "mem_b", "model", "neighbour", "peak", ""]
)


@given(some.lists(HEADS, max_size=7), some.lists(some.lists(CELLS, max_size=7), max_size=5))
def test_any_table_is_read_or_refused_in_a_sentence(tmp_path_factory, header, rows):
    file = tmp_path_factory.mktemp("table") / "t.csv"
    file.write_text("\n".join(",".join(row) for row in (header, *rows)))
    for read in (measured.read_pairs, measured.read_sheet):
        with suppress(SlurmShareError):  # it names file, line and reason, as the other tests say
            read(file)
