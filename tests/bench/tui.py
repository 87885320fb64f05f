"""What the dashboard costs: python tests/bench/tui.py [SECONDS] (eight minutes; needs no cluster, no GPU, no root).

Drawing alone, in a terminal of 160 x 50: pictures of 100 to 10,000 nodes, a new one every two seconds and twice a
second, sorted by a figure. The time until the first row is to be read. The whole command with 10,000 simulated nodes.
"No frame over 100 ms" is a bar on CPU time where pictures are ready (another program on the machine is no fault of a
frame), and on the clock where the real feed decodes beside the drawing: that is what a key waits for.
And beside nvitop, on a node with 8 simulated GPUs and 60 programs on them, both every two seconds, for what each of
them is: nvitop asks the driver and draws in one process, llload-tui in two.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench import Row, median, report
from sampler_cost import simulated_node
from terminals import Program, started

HERE = Path(__file__).parent
PROGRAMS = Path(sys.executable).parent
TUI = PROGRAMS / "llload-tui"
COUNTS = (100, 1_000, 5_000, 10_000)
RATES = (0.5, 2.0)
ROUNDS = 7
GPUS, CLIENTS = 8, 60


def drawing(count: int, rate: float, seconds: float, environ: Mapping[str, str]) -> list[Row]:
    """Pictures that are there already."""
    found = _found("tui_drawing.py", [str(count), str(rate), str(seconds)], 2 * seconds + 120, environ)
    assert found["looks"] >= 0.9 * rate * seconds, found
    held = (count, rate) == (COUNTS[-1], RATES[-1])
    return [
        Row(f"drawing {count} nodes, {rate:g} looks/s: of one core", found["share"], "%", 5 if held else None),
        Row("  slowest frame, CPU time", found["frame_ms"], "ms", 100),
        Row("  slowest frame, by the clock", found["clock_ms"], "ms"),
        Row("  the history of one look, in a thread of its own: CPU time", found["history_ms"], "ms"),
        Row("  with 5 keys/s as well: of one core", found["keys_share"], "%"),
        Row("  with keys: slowest frame, CPU time", found["keys_frame_ms"], "ms", 100),
    ]


def _found(script: str, words: Sequence[str], most_s: float, environ: Mapping[str, str]) -> dict[str, float]:
    """What a helper in a terminal of its own has measured."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        program = started([sys.executable, HERE / script, *words, file], environ)
        try:
            program.wait(most_s, lambda: file.exists() and file.stat().st_size > 0)
            found: dict[str, float] = json.loads(file.read_text())
        finally:
            program.close()
    return found


def start(environ: Mapping[str, str]) -> list[Row]:
    """From the command to the first letter, and to the first row."""
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
    """Of one core, in percent: (the program, what it started); KB that it wrote in a second."""
    before, written = program.spent(), program.written
    program.wait(seconds)
    after = program.spent()
    own, below = (100 * (end - begin) / seconds for begin, end in zip(before, after, strict=True))
    return own, below, (program.written - written) / seconds / 1000


def whole(count: int, seconds: float, environ: Mapping[str, str]) -> list[Row]:
    """As somebody has it open: the process that looks makes the figures up and hands them over."""
    words = ["--demo", "--all", "--demo-nodes", str(count), "--view", "nodes"]
    program = started([TUI, *words], environ)
    try:
        program.wait_for("c-1")
        program.wait(10.0)
        own, below, written = cost(program, seconds)
    finally:
        program.close()
    found = _found("tui_feed.py", [str(count), str(seconds)], seconds + 120, environ)
    assert found["looks"] > 0, found
    return [
        Row(f"llload-tui --demo, {count} nodes: the screen, of one core", own, "%"),
        Row("  the process that looks (and makes the figures up)", below, "%"),
        Row("  written to the terminal", written, "KB/s"),
        Row("  slowest frame, by the clock, the real feed decoding beside it", found["clock_ms"], "ms", 100),
        Row("  slowest frame of the same, CPU time", found["frame_ms"], "ms", 100),
    ]


def with_nvitop(seconds: float, environ: Mapping[str, str]) -> list[Row]:
    """One simulated node, the view of it with its GPUs and processes."""
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
            rows.append(Row("  of it the process that looks", below, "%"))
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
    """Measure, print, write; 1 where a bar does not hold."""
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
