"""A report as text: the table, and drafts of messages to users."""

from __future__ import annotations

from ..core import terminal
from ..load import thresholds
from .rules.report import Hours, UsageReport, Use

COLUMNS = (
    terminal.TerminalColumn("USER", shrinks_to=8),
    terminal.TerminalColumn("NODE_H", right=True),
    terminal.TerminalColumn("BAD_H", right=True),
    terminal.TerminalColumn("GPU_LOW", right=True),
    terminal.TerminalColumn("GPU_GOOD", right=True),
    terminal.TerminalColumn("GPU_HIGH", right=True, goes=3),
    terminal.TerminalColumn("GPU_?", right=True, goes=2),
    terminal.TerminalColumn("GPU%", right=True),
    terminal.TerminalColumn("CPU_LOW", right=True),
    terminal.TerminalColumn("CPU_GOOD", right=True),
    terminal.TerminalColumn("CPU_HIGH", right=True),
    terminal.TerminalColumn("CPU_?", right=True, goes=1),
    terminal.TerminalColumn("CPU%", right=True),
)
GPU_LOW, GPU_HIGH = thresholds.GPU_BAND
CPU_LOW, CPU_HIGH = thresholds.CPU_BAND


def as_lines(found: UsageReport, skipped: int, width: int) -> list[str]:
    """Return the table of node-hours by load, the worst first."""
    head = [f"Use of nodes, {found.period.name} (UTC): {coverage(found)}"]
    if skipped:
        head.append(f"{skipped} broken line{'s' * (skipped != 1)} skipped")
    if not found.users:
        return [*head, "no jobs in this time" if found.covered_h else "nothing was recorded in this time"]
    rows = [_row(use, terminal.safe(use.user)) for use in found.users] + [_row(found.total, "(all)")]
    lines, left_out = terminal.lay_out(COLUMNS, rows, width)
    note = [f"({', '.join(left_out)}: in a wider terminal, in a pipe, or with --json)"] if left_out else []
    return [*head, "", *lines, *note, "", *KEY]


KEY = (
    f"Node-hours by load: good is {GPU_LOW:g} to {GPU_HIGH:g} % of the GPUs that a user had, "
    f"{CPU_LOW:g} to {CPU_HIGH:g} % of the CPUs.",
    "?: not known. BAD_H: low and high, by GPU load on nodes with GPUs, by CPU load on others.",
)


def coverage(found: UsageReport) -> str:
    """Return how much of the period has samples, as text."""
    percent = 100 * found.covered_h / found.elapsed_h if found.elapsed_h else 0.0
    return f"samples of {found.covered_h:.1f} of {found.elapsed_h:.1f} hours ({percent:.0f} %)"


def _row(use: Use, name: str) -> tuple[str, ...]:
    gpu, cpu = use.gpu, use.cpu
    return (
        name, _h(use.hours), _h(use.bad), _h(gpu.low), _h(gpu.good), _h(gpu.high), _h(gpu.unknown),
        _percent(use.gpu_percent), _h(cpu.low), _h(cpu.good), _h(cpu.high), _h(cpu.unknown), _percent(use.cpu_percent),
    )  # fmt: skip


def _h(hours: float) -> str:
    return f"{hours:.1f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


# ---- The message ----


def draft(use: Use, found: UsageReport, url: str) -> str:
    """Return a message that an operator may send to a user: figures, advice given, where to read on."""
    parts = [
        [f"Subject: Your jobs, {found.period.name}: {_h(use.bad)} node-hours of low or high load"],
        [f"Dear {use.user},"],
        _numbers(use, found),
        _what_to_do(use),
        [f"More on sharing GPUs: {url}"] if url else [],
        ["Questions are welcome."],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _numbers(use: Use, found: UsageReport) -> list[str]:
    nodes = f"{use.nodes} node{'s' * (use.nodes != 1)}"
    lines = [
        f"in {found.period.name} (UTC) your jobs had {_h(use.hours)} node-hours on {nodes}. The load was sampled",
        f"every few minutes ({coverage(found)}):",
        "",
    ]
    if use.gpu_hours:
        mean = "" if use.gpu_percent is None else f"; {use.gpu_percent:.0f} % on average"
        lines.append(f"  GPU load   {_bands(use.gpu, GPU_LOW, GPU_HIGH)}{mean}")
    mean = "" if use.cpu_percent is None else f"; {use.cpu_percent:.0f} % on average"
    lines.append(f"  CPU load   {_bands(use.cpu, CPU_LOW, CPU_HIGH)}{mean}")
    return lines


def _bands(hours: Hours, low: float, high: float) -> str:
    parts = [
        f"low (below {low:g} %) {_h(hours.low)} h",
        f"good {_h(hours.good)} h",
        f"high (above {high:g} %) {_h(hours.high)} h",
    ]
    return ", ".join(parts + ([f"not known {_h(hours.unknown)} h"] if hours.unknown else []))


def _what_to_do(use: Use) -> list[str]:
    if use.advised is not None:
        # An advice rests on what was measured of the job, and may contradict the general rules.
        now, nppn = use.advised.now, use.advised.next
        lines = [
            f"For {_h(use.advised.hours)} node-hours a node ran {now} task{'s' * (now != 1)} of a job, and by what was "
            f"measured {nppn} would have been right",
            f"(decided by {use.advised.decided_by}).",
        ]
    else:
        lines = _rules(use)
    return [*lines, "llload --advise says how many for a job that runs, why, and the line to submit it with."]


def _rules(use: Use) -> list[str]:
    lines = []
    if use.gpu.low > use.gpu.high:
        lines += [
            "GPUs with a low load have room for more tasks at a time: sbatch --share-gpu=2 puts two on each GPU, and",
            "llsub does the same for a script without srun.",
        ]
    if use.cpu.high >= max(thresholds.SHORT_S / 3600, use.cpu.low):
        lines += [
            "CPUs with a high load have too many processes or threads at a time, and fewer of them are as fast, or",
            "processes that wait for storage: llload --advise tells them apart while the job runs.",
        ]
    elif not use.gpu_hours and use.cpu.low:
        lines += ["CPUs with a low load have room for more processes or threads on a node: see llsub, and its triple."]
    return lines
