"""The report as an HTML page: one file, every text escaped, plots that fit."""

from __future__ import annotations

import html.parser
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import report_cases as cases
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.report import page, svg
from slurm_share.report.records import JobReport
from slurm_share.report.rules import figures, next_time
from slurm_share.usage import GpuSeries, UseSeries

if TYPE_CHECKING:
    from chromium import Chromium

EVIL = '<script>alert("1")</script>&\'"'
VOID = {"meta"}


class Balance(html.parser.HTMLParser):
    """Check that each element is closed (those of SVG close themselves), and collect their names."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)


def written(*reports: JobReport) -> str:
    return page.page([(one, figures.figures(one), next_time.NextTime()) for one in reports], cases.BEGAN)


def series(**changed: object) -> UseSeries:
    at = [cases.BEGAN + 5 * n for n in range(120)]
    gpu = GpuSeries(
        uuid="GPU-00000000", load_percent=[50.0] * 120, memory_mib=[4096] * 60 + [None] * 60, power_w=[300.0] * 120
    )
    values = {
        "job": 4711, "restarts": 0, "uid": 2001, "node": "n1", "every_s": 5.0, "at": at, "cpu_cores": [3.2] * 120,
        "memory_mib": [8000] * 120, "gpus": [gpu],
    }  # fmt: skip
    return UseSeries(**values | changed)  # type: ignore[arg-type]


def test_every_text_of_users_is_escaped() -> None:
    job = cases.accounted(name=EVIL, partition=EVIL, submit_line=EVIL, user=EVIL)
    tasks = (cases.task(0, outcome=EVIL), cases.task(1))
    gpus = (cases.gpu(0, name=EVIL), cases.gpu(1))
    found = written(
        cases.report(title=EVIL, run=EVIL, starts=(job,), tasks=tasks, uses=(cases.use(gpus=gpus),), problems=(EVIL,)),
        cases.report(starts=(job,)),
    )
    parsed = Balance()
    parsed.feed(found)
    assert parsed.open == []
    assert "script" not in parsed.seen
    assert "<script" not in found


def test_it_needs_no_network_and_runs_no_script() -> None:
    found = written(cases.report(series=(series(),)))
    assert "default-src 'none'" in found
    assert not re.search(r"(src|href)=|url\(|@import|https?://", found)


def test_plots_are_of_what_is_known() -> None:
    found = written(cases.report(series=(series(),)))
    titles = re.findall(r"<figcaption>(.*?)</figcaption>", found)
    assert titles == ["GPU load", "GPU memory of its processes", "Power of the GPUs", "Busy CPUs", "Host memory"]
    assert "<figure>" not in written(cases.report())


def test_the_axis_of_little_memory_has_short_numbers() -> None:
    """0.008 GiB is wider than the margin, and was cut to 008 GiB."""
    points = series()
    found = written(cases.report(series=(series(memory_mib=[8] * len(points.at)),)))
    plot = found[found.index("<figcaption>Host memory") :]
    assert re.findall(r'tick end"[^>]*>([^<]* MiB)<', plot) == ["0 MiB", "2 MiB", "4 MiB", "6 MiB", "8 MiB"]


def test_tasks_have_a_timeline() -> None:
    found = written(cases.report(run="LLSUB.1", tasks=tuple(cases.task(n) for n in range(40))))
    assert "<figcaption>Tasks on GPUs</figcaption>" in found
    assert found.count('<rect class="task done"') == 40
    assert "task 7, done, 60 s, 2.0 GiB of GPU memory" in found


def test_on_a_phone_pictures_and_bars_fit_and_wide_tables_scroll_in_a_box(chromium: Chromium, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    report = cases.report(run="LLSUB.1", tasks=tuple(cases.task(n) for n in range(40)), series=(series(),))
    file.write_text(written(report))
    with chromium.page(file.as_uri(), width=390, height=844, phone=True) as shown:
        assert shown.run("document.documentElement.scrollWidth") <= 390
        rights = shown.run("[...document.querySelectorAll('svg')].map(one => one.getBoundingClientRect().right)")
        assert len(rights) == 6
        assert max(rights) <= 390
        assert min(shown.run("[...document.querySelectorAll('.bar')].map(one => one.offsetWidth)")) > 200
        wide = "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth)"
        borders = shown.run(f"{wide}.map(one => getComputedStyle(one).borderRightWidth)")
        assert borders
        assert set(borders) == {"1px"}


def test_simulated_gpus_are_said_to_be() -> None:
    found = written(cases.report(uses=(cases.use(gpus=(cases.gpu(0, simulated=True),)),)))
    assert "The GPUs are simulated" in found


def test_a_month_and_thousands_of_tasks_stay_below_a_megabyte() -> None:
    tasks = tuple(cases.task(n, began=cases.BEGAN + 50.0 * (n // 8), seconds=49.0, slot=n % 8) for n in range(20_000))
    gpus = tuple(cases.gpu(n) for n in range(16))
    courses = [
        GpuSeries(uuid=one.uuid, load_percent=[1.234] * 720, memory_mib=[n] * 720, power_w=[2.5] * 720)
        for n, one in enumerate(gpus)
    ]
    at = [cases.BEGAN + 3600.0 * n for n in range(720)]
    report = cases.report(
        run="LLSUB.1", tasks=tasks, uses=(cases.use(gpus=gpus),),
        series=(series(at=at, cpu_cores=[1.0] * 720, memory_mib=[5] * 720, gpus=courses),),
    )  # fmt: skip
    assert len(written(report)) < 1_000_000


@given(st.floats(0, 1e15))
def test_an_axis_reaches_the_largest_value_with_few_ticks(most: float) -> None:
    ticks = svg.axis(most)
    assert ticks[0] == 0
    assert ticks[-1] >= most * 0.998
    assert 2 <= len(ticks) <= 7


@given(st.floats(0.01, 1e8))
def test_an_axis_of_time_has_few_ticks(until: float) -> None:
    assert 1 <= len(svg.time_ticks(until)) <= 7


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "0"), (45, "45 s"), (600, "10 min"), (5400, "1:30 h"), (7200, "2 h"), (172800, "2 d")]
)
def test_moments_of_the_axis(seconds: float, said: str) -> None:
    assert svg.span(seconds) == said


def test_a_gap_in_the_figures_is_a_gap_in_the_line() -> None:
    line = svg.Line("x", ((0.0, 1.0), (1.0, 2.0), (2.0, None), (3.0, 4.0)))
    drawn = svg.plot([line], until=3.0, write=str, name="x")
    assert (drawn.count("<polyline"), drawn.count("<circle")) == (1, 1)
