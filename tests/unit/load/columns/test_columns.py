"""The columns of llload and of the dashboard: their outputs, their order and their texts."""

from __future__ import annotations

import pytest
from llload_surveys import gpu, node
from msgspec.structs import replace

from slurm_share.core.metric import measured
from slurm_share.core.text import rate_text
from slurm_share.load import columns
from slurm_share.load.columns import REST, Column, shown_in
from slurm_share.load.output import values
from slurm_share.load.rules.gpu_rows import GpuRow, ProcessRow, SlotRow
from slurm_share.load.rules.job_rows import JobRow
from slurm_share.load.rules.node_rows import row_of
from slurm_share.load.snapshot import GpuLoad, JobLoad, JobProgress, OnGpu, ProcessLoad, TaskProgress
from slurm_share.load.text import letter_of, of_text, time_text, worst
from slurm_share.node.gpu_figures import Activity

OUTPUTS = ("table", "plain", "values", "dashboard")
TABLES = {
    "nodes": columns.NODES,
    "users": columns.USERS,
    "jobs": columns.JOBS,
    "gpus": columns.GPUS,
    "processes": columns.PROCESSES,
    "advice": columns.ADVICE,
}


def a_column(id, **more):
    return Column(id, id.upper(), "a number", text=str, value=lambda row: row, **more)


def test_an_output_has_its_order_and_a_column_that_it_does_not_name_where_the_others_stand():
    found = [a_column("a"), a_column("new"), a_column("b"), a_column("hidden", outputs=frozenset({"values"}))]
    assert [one.id for one in shown_in("table", found, ("b", REST, "a"))] == ["b", "new", "a"]
    assert [one.id for one in shown_in("table", found)] == ["a", "new", "b"]
    assert [one.id for one in shown_in("values", found, ("b", "a", REST))] == ["b", "a", "new", "hidden"]
    with pytest.raises(KeyError):
        shown_in("table", [a_column("a")], ("a", "gone"))


def test_without_more_words_a_column_says_the_same_everywhere():
    one = a_column("fan")
    assert (one.table_of(7), one.raw_of(7), one.plain_of(7), one.plain_of(7, ": ")) == ("7", 7, "fan 7", "fan: 7")
    assert Column("fan", "FAN", "", text=lambda row: "?", value=lambda row: None).plain_of(7) == "fan unknown"


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("name", TABLES)
def test_ids_and_names_are_one_column_each(name, output):
    found = shown_in(output, TABLES[name])
    assert len({column.id for column in found}) == len([one for one in TABLES[name] if output in one.outputs])
    assert len({column.field_name for column in found}) == len(found)


def test_every_figure_of_a_gpu_is_in_tsv_under_its_own_name_with_its_own_value():
    names = [one.name for record in (GpuLoad, Activity) for one in measured(record) if not one.is_windows]
    names = [name for name in names if name not in ("memory_total_mib", "unused_s")]
    told = {name: 10.25 + at for at, name in enumerate(names)}
    of_activity = {name: value for name, value in told.items() if name in Activity.__struct_fields__}
    known = {name: value for name, value in told.items() if name not in of_activity}
    one = replace(gpu(0), activity=Activity(**of_activity), **known)
    row = GpuRow(row_of(node("n1", gpus=(one,))), one)
    found = {column.field_name: column.raw_of(row) for column in shown_in("values", columns.GPUS)}
    assert {name: found[name] for name in names} == told
    assert set(found) < set(values.HEADINGS["gpus"])


def test_a_column_that_is_left_out_where_it_is_empty_has_no_text_then():
    on_node = row_of(node("n1", gpus=(gpu(0),)))
    row_of_gpu = GpuRow(on_node, gpu(0))
    rows: dict[str, object] = {"nodes": on_node, "gpus": row_of_gpu, "processes": SlotRow(row_of_gpu, "gpu")}
    rows["jobs"] = JobRow(records=(), loads=((on_node, JobLoad(job=1, uid=1, user="u")),), number=1)
    for name, table in TABLES.items():
        for column in table:
            if column.unless_empty:
                row = rows[name]
                assert (column.text(row), column.value(row), column.says(row)) == ("", None, False), column.id


@pytest.mark.parametrize(
    ("per_s", "text"),
    [
        (51.2, "51/s"), (1.0, "1.0/s"), (9.96, "10/s"), (0.04, "2.4/min"), (0.8 / 3600, "0.8/h"), (0.5, "30/min"),
        (0.0, "0/s"), (123456.0, "123k/s"), (2.5e7, "25M/s"), (0.001 / 3600, "0.001/h"), (None, ""),
    ],
)  # fmt: skip
def test_a_rate_is_written_in_a_unit_in_which_it_is_readable(per_s, text):
    assert rate_text(per_s) == text
    assert rate_text(per_s, "log") == (f"{text} log" if text else "")


def a_task(pid, per_s, *, uuids=("GPU-0",), paused=False, family="f", source="log", **more):
    of_task = TaskProgress(task=pid, run="r", family=family, rate_per_s=per_s, rate_source=source, is_paused=paused)
    fields = {"pid": pid, "name": "python", "uid": 1, "user": "u", "job": 7, **more}
    return ProcessLoad(gpus=tuple(OnGpu(uuid=uuid) for uuid in uuids), progress=replace(of_task, units=3.0), **fields)


def seen_rates(*processes, others_mib=0):
    """(text, value) of the rate of the GPU that these processes are on, as a line of its own and in the table of
    processes."""
    one = replace(gpu(0), uuid="GPU-0", others_mib=others_mib)
    alone = node("n1", gpus=(one,))
    row = GpuRow(row_of(replace(alone, snapshot=replace(alone.snapshot, processes=processes))), one)
    found = [next(column for column in table if column.id == "rate") for table in (columns.GPUS, columns.PROCESSES)]
    rows = zip(found, (row, SlotRow(row, "gpu")), strict=True)
    shown = {(column.text(each), column.value(each)) for column, each in rows}
    assert len(shown) == 1
    return shown.pop()


def test_a_gpu_has_a_rate_where_all_its_tasks_count_the_same():
    two = (a_task(1, 25.0), a_task(2, 26.0))
    assert seen_rates(*two) == ("51/s", 51.0)
    assert seen_rates(*two, replace(two[0], pid=9)) == ("51/s", 51.0)
    assert seen_rates(*two, a_task(3, 26.0, paused=True)) == ("51/s", 51.0)
    nothing = ("", None)
    assert seen_rates(*two, others_mib=5) == nothing
    assert seen_rates(*two, a_task(3, 1.0, family="other")) == nothing
    assert seen_rates(*two, a_task(3, 1.0, source="output")) == nothing
    assert seen_rates(*two, a_task(3, None)) == nothing
    assert seen_rates(*two, replace(a_task(3, 1.0), progress=None)) == nothing
    assert seen_rates(*two, a_task(3, 1.0, uuids=("GPU-0", "GPU-1"))) == nothing
    assert seen_rates() == nothing


def test_a_process_says_how_fast_its_task_is():
    """In units of work, as a part of its speed alone, or that it is paused; TSV has the plain figures."""
    one = a_task(12, 0.04)
    one = replace(one, progress=replace(one.progress, speed_ratio=0.834))
    on_node = row_of(node("n1", gpus=(gpu(0),)))

    def told(process, column_id, how="text"):
        row = SlotRow(GpuRow(on_node, gpu(0)), "process", process=ProcessRow(on_node, process))
        column = next(each for each in columns.PROCESSES if each.id == column_id)
        return getattr(column, how)(row)

    assert (told(one, "rate"), told(one, "rate", "value"), told(one, "speed")) == ("2.4/min", 0.04, "0.83")
    assert (told(one, "rate", "table_of"), told(one, "rate", "plain_of")) == ("2.4/min log", "rate 2.4/min log")
    paused = replace(one, progress=replace(one.progress, is_paused=True))
    assert (told(paused, "rate"), told(paused, "rate", "value")) == ("paused", 0.0)
    names = ("rate", "rate_source", "speed", "units", "is_paused", "run_task")
    assert [told(one, name, "raw_of") for name in names] == [0.04, "log", 0.834, 3.0, False, 12]
    none = replace(one, progress=None)
    assert [told(none, name, "raw_of") for name in names] == [None] * 6
    assert values.HEADINGS["processes"][-9:-3] == (
        "rate_per_s", "speed_ratio", "rate_source", "units", "is_paused", "run_task",
    )  # fmt: skip


def test_a_job_and_a_node_have_a_rate_where_all_of_it_is_one():
    one = JobProgress(source="log", family="f", tasks=4, rated=4, rate_per_s=10.0)
    loads = [JobLoad(job=at, uid=1, user="u", progress=one) for at in (1, 2)]
    of_node = next(column for column in columns.NODES if column.id == "rate")
    of_job = next(column for column in columns.JOBS if column.id == "rate")

    def on_node(*jobs):
        alone = node("n1", gpus=(gpu(0),))
        return row_of(replace(alone, snapshot=replace(alone.snapshot, jobs=jobs)))

    assert of_node.text(on_node(*loads)) == "20/s"
    other = replace(loads[0], progress=replace(one, family="other"))
    assert of_node.text(on_node(loads[0], other)) == ""
    assert of_node.text(on_node(loads[0], replace(other, progress=None))) == ""
    row = JobRow(records=(), loads=tuple((on_node(load), load) for load in loads), number=1)
    assert (of_job.text(row), of_job.value(row), of_job.table_of(row)) == ("20/s", 20.0, "10/s log")


# ---- Texts of single values ----


@pytest.mark.parametrize(
    ("triple", "said"),
    [
        (("96", "12", "84"), "12/96"),
        (("384GB", "48GB", "336GB"), "48/384GB"),
        (("32GB", "0.3GB", "32GB"), "0.3/32GB"),
        (("64GB", "12GB?", "52GB?"), "12?/64GB"),
        (("384GB", "?", "?"), "?/384GB"),
        (("-", "-", "-"), "-"),
        (("?", "?", "?"), "?/?"),
    ],
)
def test_used_of_total_is_written_shorter_and_says_the_same(triple, said):
    assert of_text(triple) == said


@pytest.mark.parametrize(
    ("seconds", "said"), [(None, "-"), (5, "0:05"), (65.9, "1:05"), (3723, "1:02:03"), (93784, "1-02:03:04")]
)
def test_time_is_written_as_squeue_writes_it(seconds, said):
    assert time_text(seconds) == said


def test_letters_of_a_line_mark_the_cell_that_they_are_about():
    assert [letter_of(("cL", "gH", "m!"), of) for of in "cgmv"] == ["L", "L", "!", ""]
    assert letter_of(("v!", "n!"), "v") == "H"
    assert [worst(codes) for codes in (("cL", "n!"), ("cL", "iL"), ("cH",), ())] == ["!", "H", "L", ""]
