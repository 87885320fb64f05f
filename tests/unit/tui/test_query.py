"""Filters: the language, and the messages for invalid ones."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as any_
from slurm_share_tui.query import DEEPEST, LONGEST, completed_name, parse
from slurm_share_tui.query_terms import QueryError, figure_of
from slurm_share_tui.widgets.grid_rows import RowSet

from slurm_share.load.columns.base import Column, Value


@dataclass(frozen=True)
class Job:
    """A row of the table."""

    name: str
    user: str
    gpu: float | None
    memory_gb: float | None = 8.0
    age_s: float | None = 60.0
    note: str | None = None


JOBS = (
    Job("sweep-2", "alice", 10.0, 4.0, 30.0),
    Job("sweep-10", "Bob", 90.4, 100.0, 7200.0, "gL m!"),
    Job("[red]x", "张伟", None, None, None),
    Job("a b", "alice,bob", 50.0, 1.0, 90.0, "gL"),
)


def text(value: Value) -> str:
    """Return the text of a cell."""
    return "?" if value is None else f"{value:.0f}" if isinstance(value, float) else str(value)


COLUMNS: tuple[Column[Job], ...] = (
    Column("name", "NAME", "", lambda job: job.name, lambda job: job.name),
    Column("user", "USER", "", lambda job: job.user, lambda job: job.user, alias=("who",)),
    Column(
        "gpu", "GPU LOAD", "", lambda job: f"{text(job.gpu)}%", lambda job: job.gpu, right=True, unit="%", twin="mem"
    ),
    Column("mem", "MEM", "", lambda job: text(job.memory_gb), lambda job: job.memory_gb, right=True, unit="GB"),
    Column("age", "AGE", "", lambda job: text(job.age_s), lambda job: job.age_s, right=True, unit="s"),
    Column("note", "NOTE", "", lambda job: job.note or "-", lambda job: job.note),
)


def found(query: str) -> list[str]:
    """Return the names of the matching jobs."""
    understood = parse(query, COLUMNS)
    return [JOBS[number].name for number in understood.fitting(RowSet(JOBS, COLUMNS, lambda job: job.name), len(JOBS))]


SWEEP2, SWEEP10, RED, AB = (job.name for job in JOBS)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("ALICE", [SWEEP2, AB]),
        ("sweep bob", [SWEEP10]),
        ("sweep !bob", [SWEEP2]),
        ('"a b"', [AB]),
        ("[red]", [RED]),
        ("张", [RED]),
        ("90", []),
        ("gpu<50", [SWEEP2]),
        ("gpu < 50", [SWEEP2]),
        ("gpu<=50%", [SWEEP2, AB]),
        ("GPU>=50", [SWEEP10, AB]),
        ("gpu=90", [SWEEP10]),
        ("gpu=90.4", [SWEEP10]),
        ("gpu=90.2", []),
        ("gpu<90", [SWEEP2, AB]),
        ("gpu>90", []),
        ("gpu>=90", [SWEEP10]),
        ("gpu>90.2", [SWEEP10]),
        ("gpu=90%", [SWEEP10]),
        ("gpu=50", [AB]),
        ("gpu!=50", [SWEEP2, SWEEP10]),
        ("mem>=100G", [SWEEP10]),
        ("mem<2048M", [AB]),
        ("mem<2048mb", [AB]),
        ("mem>.05T", [SWEEP10]),
        ("age>1m", [SWEEP10, AB]),
        ("age<2h", [SWEEP2, AB]),
        ("age=2h", [SWEEP10]),
        ("age>1:00", [SWEEP10, AB]),
        ("age<=1:00", [SWEEP2]),
        ("age<2:00:00", [SWEEP2, AB]),
        ("age=2:00:00", [SWEEP10]),
        ("age<0-02:00", [SWEEP2, AB]),
        ("age>1-00:00:00", []),
        ("user=alice", [SWEEP2, AB]),
        ("who=BOB", [SWEEP10, AB]),
        ("user==bob", [SWEEP10, AB]),
        ("user!=alice", [SWEEP10, RED]),
        ("user=张伟", [RED]),
        ("name=sweep*", [SWEEP2, SWEEP10]),
        ('name="a b"', [AB]),
        ("name<sweep-10", [SWEEP2, RED, AB]),
        ("name~WEEP", [SWEEP2, SWEEP10]),
        ("name~sweep-?", [SWEEP2]),
        ("name~*-*", [SWEEP2, SWEEP10]),
        ("name~weep*", []),
        ("name~[red]", [RED]),
        ('name~"a b"', [AB]),
        ("user~bo*", [SWEEP10, AB]),
        ("name!~sweep", [RED, AB]),
        ("name!~*-2", [SWEEP10, RED, AB]),
        ("gpu=?", [RED]),
        ("gpu!=?", [SWEEP2, SWEEP10, AB]),
        ("!gpu=?", [SWEEP2, SWEEP10, AB]),
        ("note=?", []),
        ("note=-", [SWEEP2, RED]),
        ("note=gL", [AB]),
        ("user=alice & mem>2", [SWEEP2]),
        ("gpu<20 | gpu>80", [SWEEP2, SWEEP10]),
        ("user=alice & (gpu<20 | gpu>80)", [SWEEP2]),
        ("gpu<20 | gpu>80 & user=nobody", [SWEEP2]),
        ("!(gpu<20 | gpu>80)", [AB]),
        ("!!sweep", [SWEEP2, SWEEP10]),
    ],
)
def test_a_filter_finds(query: str, names: list[str]) -> None:
    assert found(query) == names


def test_what_is_unknown_fits_neither_a_comparison_nor_its_opposite() -> None:
    assert RED not in found("gpu<50")
    assert RED not in found("!gpu<50")
    assert RED not in found("gpu!=3")
    assert RED in found("gpu<50 | 张")


def test_nothing_written_is_no_filter() -> None:
    assert parse("", COLUMNS) is None
    assert parse("  \t", COLUMNS) is None


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("gpi<50", "there is no column gpi: did you mean gpu? There are name, user, gpu, mem, age, note"),
        ("xyzzy<50", "there is no column xyzzy; there are name, user, gpu, mem, age, note"),
        ("gpu<", "gpu< what? For example gpu<50%"),
        ("gpu~", "gpu~ what? For example gpu~train"),
        ("name~(", 'name~ what? A value with ( in it is written in "quotes": name~"a(b"'),
        ("gpu>40G", "gpu is a percentage; the gigabytes are in mem: mem>40G"),
        ("gpu=40G", "gpu is a percentage; the gigabytes are in mem: mem=40G"),
        ("mem>80%", "mem is in gigabytes, 80% is not; for example mem>40G"),
        ("age<5G", "age is a time, 5G is not; for example age<2h"),
        ("gpu<1:00", "gpu is a percentage, 1:00 is not; for example gpu<50%"),
        ("gpu<fast", "gpu is a figure, fast is not; for example gpu<50%"),
        ("gpu<5x", "gpu is a figure, 5x is not; for example gpu<50%"),
        ("(gpu<5", "a ) is missing"),
        ("gpu<5)", "there is one ) too many"),
        ("alice &", "something is missing at the end"),
        ("!", "something is missing at the end"),
        ("| bob", "a word or a column is missing before | bob"),
        ("<5", "a word or a column is missing before <5"),
        ('"a b', 'a closing " is missing'),
        ('name="a b', 'a closing " is missing'),
        ("(" * (DEEPEST + 1), f"more than {DEEPEST} nested parentheses and !"),
        ("a" * (LONGEST + 1), f"the filter has {LONGEST + 1} characters, more than {LONGEST}"),
    ],
)
def test_a_mistake_is_answered_with_a_sentence(query: str, sentence: str) -> None:
    with pytest.raises(QueryError) as raised:
        found(query)
    assert str(raised.value).startswith(sentence)


@given(any_.text(alphabet='ab gpu name=<>~!&|()"*?50%-[\n张', max_size=40) | any_.text(max_size=30))
def test_whatever_is_written_is_a_filter_or_a_mistake(query: str) -> None:
    with contextlib.suppress(QueryError):
        understood = parse(query, COLUMNS)
        if understood is not None:
            numbers = understood.fitting(RowSet(JOBS, COLUMNS, lambda job: job.name), len(JOBS))
            assert numbers == sorted(set(numbers))


@pytest.mark.parametrize(
    ("written", "figure"),
    [("5", 5.0), ("-1.5", -1.5), (".5", 0.5), ("80%", 80.0), ("1K", 1 / 1024**2), ("512M", 0.5), ("2g", 2.0),
     ("1.5TB", 1536.0), ("90s", 90.0), ("3m", 180.0), ("3min", 180.0), ("1h", 3600.0), ("2d", 172800.0), ("x", None),
     ("5 x", None), ("", None), ("1e5", None), ("9" * 400, None)],
)  # fmt: skip
def test_figures_have_the_units_that_people_write(written: str, figure: float | None) -> None:
    assert figure_of(written) == figure


def test_the_begun_name_of_a_column_is_known() -> None:
    assert completed_name("us", COLUMNS) == "user"
    assert completed_name("alice & !(g", COLUMNS) == "gpu"
    assert completed_name("wh", COLUMNS) == "who"
    assert completed_name("gpu<5", COLUMNS) == ""
    assert completed_name("alice ", COLUMNS) == ""


@pytest.mark.parametrize(
    "pattern", ["(n|n)*x", "(a|aa)*$", r"(\w+-?)*!", "*n*n*n*n*n*n*n*n*n*n*n*n*n*n*n*n*n*n*n*n*n*x", "?" * 200]
)
@pytest.mark.parametrize("sign", ["~", "="])
def test_no_filter_takes_longer_than_a_key_may_wait(pattern: str, sign: str) -> None:
    """Names are long and the pattern is evaluated at every key: a backtracking expression would take years."""
    rows = (Job("n" * 5000, "nobody", 1.0),)
    understood = parse(f'name{sign}"{pattern}"', COLUMNS)
    assert understood.fitting(RowSet(rows, COLUMNS, lambda job: job.name), 1) == []


def test_what_stands_in_a_heading_that_is_seen_is_what_its_name_means() -> None:
    seen: Column[Job] = Column("used", "SIZE", "", lambda job: "1", lambda job: 1.0, right=True)
    hidden: Column[Job] = Column("size", "ALLSIZE", "", lambda job: "9", lambda job: 9.0, right=True)
    for columns in ((seen, hidden), (hidden, seen)):
        for text, fits in (("size=1", True), ("size=9", False), ("used=1", True), ("allsize=9", True)):
            query = parse(text, columns, ("used",))
            assert bool(query.fitting(RowSet(JOBS[:1], columns, lambda job: job.name), 1)) is fits, text


def test_a_filter_tells_which_columns_it_asks() -> None:
    for text, columns in (("gpu<5 | who=bob", {"gpu", "user"}), ("bob", {"name", "user", "note"})):
        query = parse(text, COLUMNS)
        assert query.columns == columns


@pytest.mark.parametrize("query", ["name=Resources", "name=resources", 'name="(Resources)"'])
def test_a_reason_in_brackets_is_found_without_them(query: str) -> None:
    rows = (Job("(Resources)", "alice", None), Job("(ReqNodeNotAvail)", "alice", None), Job("n1", "alice", None))
    understood = parse(query, COLUMNS)
    assert list(understood.fitting(RowSet(rows, COLUMNS, lambda job: job.name), len(rows))) == [0]
