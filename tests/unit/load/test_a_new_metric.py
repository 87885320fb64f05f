"""The example of extending.md: a figure of a GPU that has three lines in three files is in every output."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import worked_changes

pytestmark = pytest.mark.weekly

SECTION = "A metric"
HEADING, FIELD, SERIES = "MEMBUSY", "memory_busy_percent", "slurm_share_gpu_memory_busy_ratio"
SIMGPU = Path("packaging/demo/simgpu")

OUTPUTS = """
import contextlib, io, json
from slurm_share.cli import llload, main
from slurm_share.load import metrics
from slurm_share.load.output import detail
from slurm_share.load.rules import visible
from slurm_share.load.rules.node_rows import rows_of
from slurm_share.load.sources.demo import Demo
from slurm_share.node.gpus.load import NvmlSession
from slurm_share.testing import FakeBinding, FakeGpu

def printed(main, *words):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(words) == 0
    return out.getvalue()

said = {word: printed(llload.main, "--demo", "--detail", *word.split()) for word in ("", "--plain", "--tsv", "--csv")}
said["--json"] = printed(llload.main, "--demo", "--json")
said |= {f"{name} schema": printed(main.main, "sample", "--schema", name) for name in ("snapshot", "survey")}
rows = rows_of(Demo().read())
said["narrow"] = next(left_out for width in range(300, 0, -1) if (left_out := detail.gpu_table(rows, width)[1]))
snapshots = [node.snapshot for node in Demo(everybody=True).read().nodes if node.snapshot is not None]
said["prometheus"] = "".join(metrics.render(one).decode() for one in snapshots)
said["seen"] = [gpu.memory_busy_percent for one in snapshots for gpu in visible.for_user(one, 2001, "alice").gpus]
driver = FakeBinding(FakeGpu("GPU-a", utilization=30, memory_busy=12), FakeGpu("GPU-b", utilization=None))
first, second = NvmlSession(driver).read().gpus
said["read"] = first.memory_busy_percent, first.utilization_percent, driver.asked["nvmlDeviceGetUtilizationRates"]
said["not read"] = second.memory_busy_percent, second.unknown["memory_busy_percent"]
print(json.dumps(said))
"""
DASHBOARD = """
import asyncio, json, sys
sys.path[:0] = ["tests/unit/tui"]
from dashboards import running, screen_text, until
from shell import FakeFeed, a_dashboard, arrived_picture
from slurm_share_tui.location import Location
from slurm_share_tui.screens.columns import ColumnsScreen
from slurm_share_tui.screens.help import Help

feed, said = FakeFeed(), {}
app = a_dashboard(feed, location=Location(view="gpus"))

async def play():
    async with running(app, size=(260, 60)) as pilot:
        feed.bring(arrived_picture())
        await until(pilot, lambda: "Simulated" in screen_text(app))
        said["table"] = screen_text(app)
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, Help))
        said["help"] = str(app.screen.query_one("#help-text").render())
        await pilot.press("escape")
        await pilot.press("c")
        await until(pilot, lambda: isinstance(app.screen, ColumnsScreen))
        await until(pilot, lambda: "HOSTNAME" in screen_text(app))
        said["choice"] = screen_text(app)
        await pilot.press("escape")
        await pilot.press("enter")
        await until(pilot, lambda: "SM activity" in screen_text(app) or "occupancy" in screen_text(app))
        said["page"] = screen_text(app)
        await pilot.press("escape")
        await until(pilot, lambda: "HOSTNAME" in screen_text(app))
        await pilot.press("slash", *"membusy>1000", "enter")
        await until(pilot, lambda: "Simulated" not in screen_text(app))

asyncio.run(play())
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """A copy of this checkout with the change of the page."""
    change = worked_changes.change_of(SECTION)
    assert len(change.product_files) <= worked_changes.MOST_PRODUCT_FILES
    return worked_changes.changed_tree(change, tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def said(changed):
    """Return what the copy prints for the demonstration, and what it reads from a driver."""
    return json.loads(worked_changes.python(changed, OUTPUTS))


def test_it_is_in_llload_s_table_of_gpus_and_the_first_to_go(said):
    lines = said[""].splitlines()
    at, head = next((at, line) for at, line in enumerate(lines) if line.startswith("HOSTNAME"))
    end = head.index(HEADING) + len(HEADING)
    cells = [line[end - len(HEADING) : end].strip() for line in lines[at + 1 : lines.index("", at)]]
    known = [cell for cell in cells if cell not in ("-", "?")]
    assert known
    assert all(cell.endswith("%") for cell in known)
    assert said["narrow"] == [HEADING]


def test_it_is_in_the_lines_for_a_screen_reader(said):
    lines = [line for line in said["--plain"].splitlines() if line.startswith("GPU ")]
    gpus = [line for line in lines if "used, " in line and "load " in line and line[4].isdigit()]
    assert gpus
    assert all(", membusy " in line for line in gpus)


@pytest.mark.parametrize(("form", "between"), [("--tsv", "\t"), ("--csv", ",")])
def test_it_is_in_tsv_and_csv(said, form, between):
    rows = list(csv.DictReader(io.StringIO(said[form]), delimiter=between))
    assert rows
    assert all(0 <= float(row[FIELD]) <= 100 for row in rows)


def test_it_is_in_json(said):
    nodes = json.loads(said["--json"])["nodes"]
    gpus = [gpu for node in nodes if node["snapshot"] for gpu in node["snapshot"]["gpus"]]
    assert gpus
    assert all(0 <= gpu[FIELD] <= 100 for gpu in gpus)


def test_it_is_in_prometheus_and_a_user_sees_it_of_own_gpus(said):
    assert f"# HELP {SERIES} " in said["prometheus"]
    assert f"\n{SERIES}{{" in said["prometheus"]
    assert said["seen"]
    assert None not in said["seen"]


def test_it_is_read_from_the_driver_with_the_call_that_has_it(said):
    assert said["read"] == [12.0, 30.0, 2]
    assert said["not read"] == [None, "this GPU or its driver does not have it"]


def test_the_dashboard_has_it_in_table_help_choice_and_filters(changed):
    said = json.loads(worked_changes.python(changed, DASHBOARD))
    lines = said["table"].splitlines()
    at = next(at for at, line in enumerate(lines) if "HOSTNAME" in line)
    end = lines[at].index(HEADING) + len(HEADING)
    rows = list(itertools.takewhile(lambda line: "Simulated" in line, lines[at + 1 :]))
    assert len(rows) > 10
    assert all(line[:end].endswith("%") for line in rows)
    assert "time in which memory was read or written, percent (memory_busy)" in said["help"]
    assert "[x] MEMBUSY" in said["choice"]
    assert re.search(r"  membusy \d+%", said["page"])


def test_everything_else_follows_it(changed, said):
    """The tests of columns, of what users see, of Prometheus and of the driver; the schemas, once they are written."""
    for name in ("snapshot", "survey"):
        (changed / f"packaging/docs/{name}.schema.json").write_text(said[f"{name} schema"])
    of_load = ("columns/test_columns.py", "rules/test_visible.py", "test_metrics.py", "test_snapshot_schema.py")
    tests = [f"tests/unit/load/{one}" for one in of_load]
    # Without two slow tests of visible.py: they are of the fields of now.
    leave_out = "not nothing_of_another_user and not seen_twice"
    worked_changes.pytest(changed, *tests, "tests/unit/node/gpus/test_nvml_load.py", "-k", leave_out)


@pytest.mark.skipif(
    Path("/proc/driver/nvidia/version").exists(),
    reason="NOT TESTED: a real NVIDIA driver is loaded, beside which the simulated GPU refuses to work",
)
@pytest.mark.skipif(
    shutil.which("make") is None or shutil.which("cc") is None,
    reason="NOT TESTED: the simulated NVML is built with make and cc, and they are not here",
)
def test_it_comes_from_the_simulated_nvml_to_the_screen(changed, tmp_path):
    library = tmp_path / "library"
    library.mkdir()
    subprocess.run(["make", "-s", "-C", changed / SIMGPU, f"BUILD={library}"], check=True)
    environ = {
        "SIMGPU_STATE": str(tmp_path / "state"),
        "LD_LIBRARY_PATH": str(library),
        "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "no-mps"),
    }
    whole = {**os.environ, **environ}
    subprocess.run([changed / SIMGPU / "simgpu-init", "1"], env=whole, check=True, stdout=subprocess.DEVNULL)
    words = [changed / SIMGPU / "simgpu-task", "--seconds", "600", "--load", "50", "--memory-load", "35"]
    with subprocess.Popen(words, env=whole, stdout=subprocess.PIPE, text=True) as task:
        try:
            assert "(simulated)" in task.stdout.readline()
            argv = [changed / ".venv/bin/python", "-m", "slurm_share.cli.llload", "--source", "local"]
            said = subprocess.check_output([*argv, "--detail", "--tsv"], cwd=changed, env=whole, text=True)
        finally:
            task.kill()
    (row,) = csv.DictReader(io.StringIO(said), delimiter="\t")
    assert float(row[FIELD]) == 35.0
