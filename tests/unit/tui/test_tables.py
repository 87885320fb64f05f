"""The columns of the tables: llload's figures and words, and their values for sorting and filtering."""

from __future__ import annotations

import dataclasses

import pytest
from dashboards import NOW, a_picture, a_survey, picture_of
from msgspec.structs import replace
from slurm_share_tui import tables
from slurm_share_tui.history import FigureHistory
from slurm_share_tui.query import columns_by_name, parse
from slurm_share_tui.query_terms import QueryError
from slurm_share_tui.widgets.grid_rows import RowSet

from slurm_share.load import text
from slurm_share.load.columns import GPUS, PROCESSES, gpu_columns, job_columns, node_columns, shown_in
from slurm_share.load.output import table
from slurm_share.load.output.detail import gpu_table, job_table, process_table
from slurm_share.load.output.notes import View
from slurm_share.load.rules import figures, idle
from slurm_share.load.rules.gpu_rows import SlotRow, gpu_rows, process_rows, slot_rows
from slurm_share.load.rules.job_rows import JobRow, UserRow, job_rows, user_rows
from slurm_share.load.rules.node_rows import row_of, rows_of
from slurm_share.load.snapshot import Advice, GpuSums, NodeLoad
from slurm_share.slurm.records import SlurmNode

TABLES = {
    "nodes": tables.nodes(FigureHistory()),
    "users": tables.users(FigureHistory()),
    "jobs": tables.JOBS,
    "gpus": tables.gpus(FigureHistory()),
    "processes": tables.PROCESSES,
    "advice": tables.ADVICE,
}
WIDE = 10_000
GPU_TEXTS = ["load", "by", "now", "load1", "load15", "tasks", "occ", "tensor", "dram", "watt", "temp", "job", "user"]
PROCESS_TEXTS = [
    "user",
    "job",
    "step",
    "task",
    "slot",
    "sm_time",
    "memory_used",
    "peak",
    "cap",
    "cpu",
    "memory",
    "name",
]
MOMENTS = (NOW, NOW + 200.0, NOW + 900.0)


def by_id(name):
    """Return a table's columns by id."""
    return {column.id: column for column in TABLES[name]}


def llload_lines(survey):
    """Return llload's line for each node as words, without its note."""
    lines = table.as_lines(survey, View(gpus=True), WIDE)
    start = next(at for at, line in enumerate(lines) if line.startswith("HOSTNAME"))
    return [line.split() for line in lines[start + 1 : start + 1 + len(survey.nodes)]]


# --- The same as llload -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("now", MOMENTS)
def test_the_table_of_nodes_says_what_the_line_of_llload_says(now):
    """CORES - USED = FREE  LOAD  MEMORY - USED = FREE  GPUS - USED = FREE  LOAD  GPUMEM - USED = FREE, cell by cell."""
    survey = a_survey(now=now)
    column = by_id("nodes")
    compared = 0
    for row, words in zip(picture_of(survey).nodes, llload_lines(survey), strict=True):
        if not row.figures.gpus or not row.figures.is_open:
            continue  # what there is none of is a dash, which cannot be told from the signs of the equation
        shown = {id: one.text(row) for id, one in column.items()}
        used = {id: shown[id].split("/")[0] for id in ("cores_used", "memory_used", "gpus_used", "gpumem_used")}
        told = [
            *(shown["hostname"], shown["all_cores"], used["cores_used"], shown["cores_free"], shown["load"]),
            *(shown["all_memory"], used["memory_used"], shown["memory_free"]),
            *(shown["all_gpus"], used["gpus_used"], shown["gpus_free"], shown["gpu_load"]),
            *(shown["all_gpumem"], used["gpumem_used"], shown["gpumem_free"]),
        ]
        words = [word for word in words if word not in ("-", "=")][:15]
        for at in (6, 13):  # used, which stands before its total here and without the unit
            words[at] = words[at].replace("GB", "")
        assert told == words
        compared += 1
    assert compared >= 9


@pytest.mark.parametrize("now", MOMENTS)
def test_the_note_is_that_of_llload(now):
    survey = idle.judged(a_survey(now=now))
    lines = table.as_lines(survey, View(), WIDE)
    start = next(at for at, line in enumerate(lines) if line.startswith("HOSTNAME"))
    at = lines[start].index("NOTE")
    for row, line in zip(picture_of(survey).nodes, lines[start + 1 :], strict=False):
        assert node_columns.note(row) == line[at:]


def test_the_table_of_gpus_says_what_llload_detail_says():
    survey = a_survey()
    lines, _ = gpu_table(rows_of(survey), WIDE)
    start = lines[0].index("GPU ")
    column = by_id("gpus")
    told = {(line.split()[0], line[start:].split()[0]): line for line in lines[1:]}
    rows = [row for row in gpu_rows(picture_of(survey).nodes) if row.gpu is not None]
    assert len(rows) == 22
    for row in rows:
        line = told[row.node.name, row.name]
        words = line.split()
        for id in GPU_TEXTS:
            assert column[id].text(row) in words, id
        used, total = column["memory_used"].text(row).split("/")
        assert total in words
        assert used in words or f"{used}GB" in words


def test_the_table_of_jobs_says_what_llload_has_of_a_job_on_one_node():
    survey = a_survey()
    lines, _ = job_table([row_of(node) for node in survey.nodes], survey, WIDE)
    told = {line.split()[0]: line.split() for line in lines[1:]}
    column = by_id("jobs")
    alone = [row for row in job_rows(picture_of(survey)) if len(row.node_names) == 1 and row.slots is not None]
    assert len(alone) >= 4
    for row in alone:
        words = told[row.id]
        for id in ("user", "gpu_load", "gmem", "peak", "cores", "mem", "killed", "share", "triple", "name"):
            assert column[id].text(row) in words, id


def test_the_tables_of_jobs_say_how_tasks_share_their_gpus_if_it_is_known():
    column = by_id("jobs")["sharing"]
    (row, *_) = [row for row in job_rows(picture_of(a_survey())) if len(row.node_names) == 1]
    (node, load), *_ = row.loads
    assert (column.text(row), column.value(row), column.table(row)) == ("", None, "-")
    known = dataclasses.replace(row, loads=((node, replace(load, sharing="mps")),))
    assert (column.text(known), column.value(known), column.table(known)) == ("mps", "mps", "mps")
    both = dataclasses.replace(row, loads=((node, replace(load, sharing="mps")), (node, replace(load, sharing="mig"))))
    assert column.text(both) == "mps+mig"


def test_the_table_of_processes_says_what_llload_processes_says():
    survey = a_survey()
    lines, _ = process_table([row_of(node) for node in survey.nodes], survey, WIDE)
    told = {tuple(line.split()[:2]): line.split() for line in lines[1:]}
    column = by_id("processes")
    rows = [slot for gpu in gpu_rows(picture_of(survey).nodes) for slot in slot_rows(gpu) if slot.process is not None]
    assert len(rows) == len(lines) - 1 > 20
    for row in rows:
        words = told[row.on.node.name, str(row.process.process.pid)]
        for id in PROCESS_TEXTS:
            assert column[id].text(row) in words, id
        assert row.on.name == words[7]


# --- Every table ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_every_column_has_a_heading_and_a_line_of_help_and_a_name_of_its_own(name):
    columns = TABLES[name]
    called = [one for column in columns for one in (column.id, *column.alias)]

    assert len(set(called)) == len(called)
    assert len({column.heading for column in columns}) == len(columns)
    assert all(column.doc and column.heading and not column.doc.endswith(".") for column in columns)
    assert columns[0].goes == 0


@pytest.mark.parametrize("name", TABLES)
def test_a_figure_is_a_number_wherever_it_is_known_and_unknown_is_a_question_mark(name):
    picture = a_picture()
    rows = {
        "nodes": picture.nodes,
        "users": user_rows(picture),
        "jobs": job_rows(picture),
        "gpus": gpu_rows(picture.nodes),
        "processes": [slot for gpu in gpu_rows(picture.nodes) for slot in slot_rows(gpu, with_gpu=True)],
        "advice": picture.advice,
    }[name]
    assert rows
    for column in TABLES[name]:
        for row in rows:
            text, value = column.text(row), column.value(row)
            assert isinstance(text, str)
            assert value is None or isinstance(value, (int, float, str))
            if text == "?" and column.id not in ("by", "advice", "slots"):
                assert value is None, column.id
            share = None if column.bar is None else column.bar(row)
            assert share is None or share >= 0.0


def test_the_names_that_llload_has_for_columns_are_known_to_filters():
    """`llload --sort gpus_free` and a filter `gpus_free>0` mean the same; but where a heading here says another thing
    (MEMORY: in use / all of it), the heading is what one reads."""
    names = columns_by_name(TABLES["nodes"])

    assert {*figures.COLUMNS, figures.HOSTNAME} <= {*names}
    assert [names[one].id for one in ("memory", "gpumem", "cores", "gpus")] == [
        "memory_used", "gpumem_used", "cores_used", "gpus_used",
    ]  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_no_name_of_a_filter_means_two_columns(name):
    columns = TABLES[name]
    for column in columns:
        for one in {column.heading.casefold(), column.id.casefold(), *map(str.casefold, column.alias)}:
            assert columns_by_name(columns)[one] is column, one
            assert columns_by_name(columns, [column.id])[one] is column, one
            assert columns_by_name(columns, [other.id for other in columns if other is not column])[one] is column, one


@pytest.mark.parametrize("name", TABLES)
def test_a_column_that_has_the_same_in_another_unit_is_there_and_has_another_unit(name):
    columns = by_id(name)
    for column in columns.values():
        if column.twin:
            assert columns[column.twin].unit not in ("", column.unit)


def test_memory_and_gigabytes_of_a_node_are_compared_with_what_is_in_use():
    rows, columns = a_picture().nodes, TABLES["nodes"]
    seen = [column.id for column in columns if column.shown]

    def found(text):
        query = parse(text, columns, seen)
        return [rows[number].name for number in query.fitting(RowSet(rows, columns, lambda row: row.name), len(rows))]

    assert found("memory>40G") == [row.name for row in rows if (row.figures.memory_used_mib or 0) > 40.5 * 1024]
    assert "v-4" not in found("memory>40G")
    assert found("cores=0") == [row.name for row in rows if row.figures.cpus_used == 0]
    assert found("gpu=88") == found("gpu=88%") == ["h-1"]
    assert found("!gpu>88 & gpu>=88") == ["h-1"]
    with pytest.raises(QueryError, match="mem is a percentage; the gigabytes are in memory: memory>40G"):
        found("mem>40G")
    with pytest.raises(QueryError, match="load is a figure without a unit; the percentages are in cpu: cpu>50%"):
        found("load>50%")


# --- Names that would be taken for unknown or none --------------------------------------------------------------------


def test_a_name_that_is_empty_is_unknown_and_one_that_looks_so_is_in_quotes():
    assert [text.named(name) for name in ("alice", "", "?", "-")] == ["alice", "?", '"?"', '"-"']
    columns = TABLES["users"]
    rows = [UserRow(user=name) for name in ("", "?", "-", "alice")]
    assert [columns[0].text(row) for row in rows] == ["?", '"?"', '"-"', "alice"]
    for said, name in (("user=?", ""), ('user="?"', "?"), ('user="-"', "-")):
        query = parse(said, columns)
        assert [rows[at].user for at in query.fitting(RowSet(rows, columns, lambda row: row.user), 4)] == [name], said


def test_whose_a_silent_node_is_the_queue_says():
    picture = a_picture()
    job = next(job for job in picture.survey.jobs if job.node_count == 3)
    row = picture.by_name["v-4"]
    assert row.node.snapshot is None
    assert (node_columns.users(row), node_columns.jobs(row)) == (job.user, job.id)
    assert TABLES["nodes"][1].value(row) == job.user
    alone = picture_of(replace(picture.survey, jobs=())).by_name["v-4"]
    assert (node_columns.users(alone), node_columns.jobs(alone)) == ("?", "?")


@pytest.mark.parametrize(("allocated", "sign"), [(0, "-"), (40, "?"), (None, "?")])
def test_nobody_is_on_a_silent_node_of_which_slurm_has_given_no_cpu_away(allocated, sign):
    slurm = None
    if allocated is not None:
        slurm = SlurmNode(name="n9", states=("DOWN",), cpus=40, cpus_allocated=allocated, memory_mib=1, gpus=2)
    survey = replace(a_picture().survey, nodes=(NodeLoad(name="n9", slurm=slurm, why="down"),), jobs=())
    (row,) = picture_of(survey).nodes
    assert (node_columns.users(row), node_columns.jobs(row)) == (sign, sign)
    for gpu in gpu_rows((row,)):
        assert (gpu_columns.users(gpu), gpu_columns.jobs(gpu)) == (sign, sign)


def test_percent_of_a_job_with_silent_nodes_has_the_sign_of_what_is_not_whole():
    column = by_id("jobs")
    rows = {row.user: row for row in job_rows(a_picture()) if not row.is_whole and row.measured}
    assert rows
    for row in rows.values():
        assert column["cpu"].text(row).endswith("%?")
    whole = next(row for row in job_rows(a_picture()) if row.is_whole and row.cpu_percent is not None)
    assert column["cpu"].text(whole).endswith("%")


def test_a_column_has_one_quantity_for_a_gpu_and_its_processes():
    """SM time above SM time; SM activity, which is less, is in another column with another name."""
    column = by_id("processes")["sm_time"]
    for gpu in gpu_rows(a_picture().nodes):
        if gpu.gpu is not None:
            assert column.value(slot_rows(gpu, with_gpu=True)[0]) == gpu.gpu.utilization_percent
    assert column.heading != by_id("gpus")["now"].heading
    of_gpus, of_processes = ({one.field_name for one in shown_in("values", some)} for some in (GPUS, PROCESSES))
    assert ({"sm_percent", "utilization_percent"} & of_processes, "sm_time_percent" in of_gpus) == (set(), False)


def test_the_columns_of_the_filter_examples_exist():
    for name in ("nodes", "users", "jobs"):
        assert {"gpu", "user", "mem"} <= {*by_id(name)}
    assert {"user", "mem", "load"} <= {*by_id("gpus")}


def test_the_sparklines_are_the_historys():
    history = FigureHistory()
    for step in range(4):
        history.take(a_picture(now=NOW + 20 * step))
    column = {one.id: one for one in tables.nodes(history)}["gpu_trend"]
    picture = a_picture(now=NOW + 60)
    row = picture.by_name["h-1"]
    values = column.spark(row)

    assert len(values) == 4
    assert values[-1] == pytest.approx(node_columns.gpu_percent(row), abs=0.01)


def test_a_node_that_slurm_has_given_away_and_of_whose_users_nothing_is_known_says_so():
    row = a_picture().by_name["h-1"]
    assert row.node.snapshot is not None
    bare = replace(row.node.snapshot, users=(), jobs=(), processes=())
    row = replace(row, node=replace(row.node, snapshot=bare))

    assert (node_columns.users(row), node_columns.jobs(row)) == ("?", "?")
    row = replace(row, figures=replace(row.figures, cpus_used=0))
    assert (node_columns.users(row), node_columns.jobs(row)) == ("-", "-")


def test_the_slots_of_a_gpu_are_signs_that_say_how_full_each_is():
    picture = a_picture()
    found = next(row for row in gpu_rows(picture.nodes) if row.node.name == "h-2")
    assert tables.slots(found) == "▃▃"
    snapshot = found.node.node.snapshot
    at_cap = [replace(one, cap_mib=one.gpus[0].memory_mib) for one in snapshot.processes if one.slot == 0]
    changed = replace(snapshot, processes=tuple(at_cap))
    node = replace(found.node, node=replace(found.node.node, snapshot=changed))
    assert tables.slots(gpu_rows([node])[0]) == "!·"


def test_a_source_without_single_gpus_says_that_it_has_none():
    node = a_picture().by_name["h-1"]
    assert node.node.snapshot is not None
    sums = GpuSums(count=4, memory_total_mib=1, memory_used_mib=1, gpu_load=2.0, gpu_load_by="sm")
    node = replace(node, node=replace(node.node, snapshot=replace(node.node.snapshot, gpus=(), gpu_sums=sums)))
    (row,) = gpu_rows([node])

    assert gpu_columns.note(row) == "4 GPUs; this source has only their sums"
    assert (gpu_columns.load(row), tables.slots(row), gpu_columns.memory(row)) == ("?", "?", "?")


def test_others_on_a_gpu_are_told_and_not_named():
    node = a_picture(everybody=False).by_name["h-1"]
    first, *rest = node.node.snapshot.gpus
    snapshot = replace(node.node.snapshot, gpus=(replace(first, others_mib=2048), *rest))
    row = gpu_rows([replace(node, node=replace(node.node, snapshot=snapshot))])[0]

    assert gpu_columns.users(row) == "alice+others"
    assert gpu_columns.note(row) == "others have 2.0GB"


def test_a_job_without_gpus_has_none_and_one_that_is_silent_is_unknown():
    rows = {row.name: row for row in job_rows(a_picture()) if row.gpus == 0}
    column = by_id("jobs")
    for id in ("tasks", "gpu", "gpu_load", "gmem"):
        assert column[id].text(rows["cpu-pipeline"]) == "-"
    assert column["gpu_load"].text(JobRow(number=1)) == "?"
    assert (column["state"].text(JobRow(number=1)), column["name"].text(JobRow(number=1))) == ("?", "?")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"now": 4, "next": 8, "verdict": "more"}, "4 -> 8"),
        ({"now": 8, "next": 8, "verdict": "stay"}, "8 stay"),
        ({"now": 8, "next": 4, "verdict": "fewer"}, "8 -> 4"),
        ({"now": None, "next": None, "verdict": "unknown"}, "?"),
        ({"now": 4, "next": None, "verdict": "unknown"}, "4"),
        ({"now": 8, "next": None, "verdict": "look"}, "8 look"),
        ({"now": 8, "next": 8, "verdict": "change"}, "8 change"),
    ],
)
def test_tasks_on_a_node_now_and_as_advised_are_one_cell(words, said):
    assert job_columns.nppn(Advice(job=1, user="alice", nodes=("n1",), work="idle", **words)) == said
    assert job_columns.nppn(None) == "-"


def test_a_free_slot_says_free_and_a_gpu_how_many_tasks_it_has():
    picture = a_picture()
    gpu = next(row for row in gpu_rows(picture.nodes) if row.node.name == "h-2")
    column = by_id("processes")
    whole, taken, *_ = slot_rows(gpu, with_gpu=True)
    free = SlotRow(gpu, "slot", 8, taken.job)

    assert [column["slot"].text(row) for row in (whole, taken, free)] == ["all", "0", "8"]
    assert [column["task"].text(row) for row in (whole, taken, free)] == ["2 tasks", "0", "-"]
    assert [column["name"].text(row) for row in (whole, taken, free)] == ["Simulated H100-80GB", "python", "free"]
    assert [column["sm_time"].text(free), column["mem"].text(free), column["cap"].text(free)] == ["-", "-", "-"]
    assert len(process_rows(gpu.node)) == 8
