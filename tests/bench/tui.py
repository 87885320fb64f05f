"""Measure what the dashboard costs: python tests/bench/tui.py [SECONDS] (eight minutes; no cluster, GPU or root).

Drawing alone, in a terminal of 160 x 50: pictures of 100 to 10,000 nodes, a new one every two seconds and twice a
second, sorted by a figure. The time until the first row is visible. The whole command with 10,000 simulated nodes. "No
frame over 100 ms" is a limit on CPU time for pictures that are ready (other programs on the machine do not count), and
on the clock where the real feed decodes at the same time: that is what a key waits for.

Both llload-tui and nvitop are measured on a node with 8 simulated GPUs and 60 programs on them, every two seconds, with
all of their processes: nvitop reads the driver and draws in one process, llload-tui in two.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from bench import Row, report
from sampler_cost import simulated_node
from terminals import Program, measured_by, started

HERE = Path(__file__).parent
PROGRAMS = Path(sys.executable).parent
TUI = PROGRAMS / "llload-tui"
COUNTS = (100, 1_000, 5_000, 10_000)
RATES = (0.5, 2.0)
ROUNDS = 7
GPUS, CLIENTS = 8, 60


def drawing(count: int, rate: float, seconds: float, environ: Mapping[str, str]) -> list[Row]:
    """Measure drawing of pictures that are ready."""
    argv = [sys.executable, HERE / "tui_drawing.py", str(count), str(rate), str(seconds)]
    found = measured_by(argv, 2 * seconds + 120, environ)
    assert found["looks"] >= 0.9 * rate * seconds, found
    held = (count, rate) == (COUNTS[-1], RATES[-1])
    return [
        Row(f"drawing {count} nodes, {rate:g} surveys/s: of one core", found["share"], "%", 5 if held else None),
        Row("  slowest frame, CPU time", found["frame_ms"], "ms", 100),
        Row("  slowest frame, by the clock", found["clock_ms"], "ms"),
        Row("  adding one survey to the history, in a thread: CPU time", found["history_ms"], "ms"),
        Row("  with 5 keys/s as well: of one core", found["keys_share"], "%"),
        Row("  with keys: slowest frame, CPU time", found["keys_frame_ms"], "ms", 100),
    ]


def start(environ: Mapping[str, str]) -> list[Row]:
    """Measure the time from the start of the command to the first character and the first row."""
    letters, rows = [], []
    for _ in range(ROUNDS):
        program = started([TUI, "--demo", "--all", "--view", "nodes"], environ)
        letters.append(program.wait(30.0, lambda program=program: bool(bytes(program.text).strip())))  # type: ignore[misc]
        rows.append(program.wait_for("h-1"))
        program.close()
    return [
        Row("llload-tui --demo: first letter on the screen", median(letters), "s", 0.7),
        Row("  first row of the table", median(rows), "s", 0.7),
    ]


def cost(program: Program, seconds: float) -> tuple[float, float, float]:
    """Return CPU time in percent of one core, of the program and of the processes it started; and KB written per
    second."""
    before, written = program.spent(), program.written
    program.wait(seconds)
    after = program.spent()
    own, below = (100 * (end - begin) / seconds for begin, end in zip(before, after, strict=True))
    return own, below, (program.written - written) / seconds / 1000


def whole(count: int, seconds: float, environ: Mapping[str, str]) -> list[Row]:
    """Measure the whole command: the feed process simulates the figures."""
    words = ["--demo", "--all", "--demo-nodes", str(count), "--view", "nodes"]
    program = started([TUI, *words], environ)
    try:
        program.wait_for("c-1")
        program.wait(10.0)
        own, below, written = cost(program, seconds)
    finally:
        program.close()
    found = measured_by([sys.executable, HERE / "tui_feed.py", str(count), str(seconds)], seconds + 120, environ)
    assert found["looks"] > 0, found
    return [
        Row(f"llload-tui --demo, {count} nodes: the screen, of one core", own, "%"),
        Row("  the feed process (which simulates the figures)", below, "%"),
        Row("  written to the terminal", written, "KB/s"),
        Row("  slowest frame, by the clock, while the real feed decodes", found["clock_ms"], "ms", 100),
        Row("  slowest frame of the same, CPU time", found["frame_ms"], "ms", 100),
    ]


def with_nvitop(seconds: float, environ: Mapping[str, str]) -> list[Row]:
    """Measure one simulated node in the view with its GPUs and processes."""
    rows: list[Row] = []
    with simulated_node(GPUS, CLIENTS) as simulated:
        told = {**environ, **simulated}
        theirs = _with_other(
            [PROGRAMS / "nvitop", "--monitor", "full", "--interval", "2"], "", "Simulated", seconds, told
        )
        ours = _with_other([TUI, "--source", "local", "--interval", "2"], "5", "Simulated", seconds, told)
    for what, (own, below, written), bar in (
        ("llload-tui, 8 GPUs and 60 programs, every 2 s: of one core", ours, theirs[0] + theirs[1]),
        ("nvitop, the same", theirs, None),
    ):
        rows += [Row(what, own + below, "%", bar), Row("  written to the terminal", written, "KB/s")]
        if below:
            rows.append(Row("  of it the feed process", below, "%"))
    return rows


def _with_other(
    argv: Sequence[str | Path], keys: str, words: str, seconds: float, environ: Mapping[str, str]
) -> tuple[float, float, float]:
    program = started(argv, environ)
    try:
        program.wait(5.0)
        program.press(keys)
        program.wait_for(words)
        program.wait(5.0)
        return cost(program, seconds)
    finally:
        program.close()


def main(seconds: float) -> int:
    with tempfile.TemporaryDirectory() as home:
        environ = {"PATH": os.environ["PATH"], "HOME": home, "XDG_STATE_HOME": home, "XDG_CONFIG_HOME": home}
        rows = start(environ)
        for count in COUNTS:
            for rate in RATES:
                rows += drawing(count, rate, seconds, environ)
        rows += whole(COUNTS[-1], 2 * seconds, environ)
        rows += with_nvitop(2 * seconds, environ)
    return 0 if report("tui", None, rows) else 1


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 15.0))
