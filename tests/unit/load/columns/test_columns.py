"""The columns of llload and of the dashboard: which outputs have each, in which order, and what it says there."""

from __future__ import annotations

import pytest
from llload_surveys import gpu, node
from msgspec.structs import replace

from slurm_share.core.metric import measured
from slurm_share.load import columns
from slurm_share.load.columns import REST, Column, shown_in
from slurm_share.load.output import values
from slurm_share.load.rules.gpu_rows import GpuRow
from slurm_share.load.rules.node_rows import row_of
from slurm_share.load.snapshot import GpuLoad
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
    """A column of numbers."""
    return Column(id, id.upper(), "a number", text=str, value=lambda row: row, **more)


def test_an_output_has_its_order_and_a_column_that_it_does_not_name_where_the_others_stand():
    """The rest has a place of its own, or the last one."""
    found = [a_column("a"), a_column("new"), a_column("b"), a_column("hidden", outputs=frozenset({"values"}))]
    assert [one.id for one in shown_in("table", found, ("b", REST, "a"))] == ["b", "new", "a"]
    assert [one.id for one in shown_in("table", found)] == ["a", "new", "b"]
    assert [one.id for one in shown_in("values", found, ("b", "a", REST))] == ["b", "a", "new", "hidden"]


def test_an_order_that_names_what_is_not_there_is_a_mistake():
    """It is found when the module is loaded."""
    with pytest.raises(KeyError):
        shown_in("table", [a_column("a")], ("a", "gone"))


def test_without_more_words_a_column_says_the_same_everywhere():
    """Its text, its value; for a screen reader with its heading."""
    one = a_column("fan")
    assert (one.table_of(7), one.raw_of(7), one.plain_of(7), one.plain_of(7, ": ")) == ("7", 7, "fan 7", "fan: 7")
    assert Column("fan", "FAN", "", text=lambda row: "?", value=lambda row: None).plain_of(7) == "fan unknown"


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("name", TABLES)
def test_ids_and_names_are_one_column_each(name, output):
    """Of every output; TSV's names too."""
    found = shown_in(output, TABLES[name])
    assert len({column.id for column in found}) == len([one for one in TABLES[name] if output in one.outputs])
    assert len({column.field_name for column in found}) == len(found)


def test_every_figure_of_a_gpu_is_in_tsv_under_its_own_name_with_its_own_value():
    """What was measured, not rounded; windows are the three loads."""
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
    """The dashboard and llload's tables know by its text and its value that it has nothing to say."""
    row = GpuRow(row_of(node("n1", gpus=(gpu(0),))), gpu(0))
    for table in TABLES.values():
        for column in table:
            if column.unless_empty:
                assert (column.text(row), column.value(row), column.says(row)) == ("", None, False), column.id


def test_what_packed_runs_have_booked_is_beside_the_memory():
    """In GiB, and without rounding in TSV; 0 is a booking too."""
    booked = next(column for column in columns.GPUS if column.id == "booked")
    for mib, text, value in ((6656, "6.5GB", 6.5), (0, "0MB", 0.0)):
        one = replace(gpu(0), booked_mib=mib)
        row = GpuRow(row_of(node("n1", gpus=(one,))), one)
        assert (booked.text(row), booked.value(row), booked.raw_of(row), booked.says(row)) == (text, value, mib, True)
    assert booked.field_name == "booked_mib"
