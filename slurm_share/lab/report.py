"""Compare simulations of several policies over all assumptions, and format the results as tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from ..core.text import counted
from ..packing.rules import tuned_text
from . import policies
from .records import Assumptions, ComparedPolicy, Result, Trace
from .world import simulate

NOTE = "simulated; SM activity of tasks assumed; range over the assumptions"
PUBLISHED = Assumptions()
ALPHAS = (0.8, 1.0, 1.3, 1.6)
SETTLES_S = (30.0, 90.0)


def assumptions(
    base: Assumptions = PUBLISHED, alphas: Sequence[float] = ALPHAS, settles_s: Sequence[float] = SETTLES_S
) -> tuple[Assumptions, ...]:
    """Return every combination of SM activity and closing time; each result has every power exponent."""
    return tuple(
        msgspec.structs.replace(base, alpha=alpha, settle_s=settle) for alpha in alphas for settle in settles_s
    )


def compare(
    trace_of: Callable[[int], Trace],
    chosen: Sequence[ComparedPolicy],
    seeds: Sequence[int],
    settings: Sequence[Assumptions],
    *,
    has_bars: bool = False,
) -> Iterator[Result]:
    """Yield a result for each policy, setting and seed. `trace_of` makes the trace of a seed."""
    for seed in seeds:
        trace = trace_of(seed)
        for assumed in settings:
            for policy in chosen:
                yield simulate(trace, policies.settled(policy, assumed.settle_s), assumed, seed, has_bars=has_bars)


_FIGURES = {
    "seed": 0, "make_span_s": 3, "wait_s": 3, "jct_s": 3, "oom_own": 0, "oom_neighbour": 0, "unfinished": 0, "stp": 4,
    "antt": 4, "shared_s": 3, "harmful_s": 3, "paused_s": 3, "lower_bound_s": 3, "wasted_s": 3,
}  # fmt: skip
"""Field of a result -> its decimal places."""


def rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return a record for JSON for each result and power exponent."""
    return [
        {
            "policy": result.policy,
            "setting": {
                "alpha": result.assumptions.alpha,
                "settle_s": result.assumptions.settle_s,
                "power_exponent": exponent,
                "sharing": result.assumptions.sharing,
            },
            **{name: round(getattr(result, name), digits) for name, digits in _FIGURES.items()},
            "energy_j": round(energy_j, 1),
            "bound_share": round(_share(result), 4),
            "reservation_waste": None if result.waste is None else round(result.waste, 4),
        }
        for result in results
        for exponent, energy_j in result.energy_j
    ]


def harmful_ratio(result: Result) -> float:
    """Return the part of the time with several tasks on a GPU in which they did less than one at a time."""
    return result.harmful_s / result.shared_s if result.shared_s else 0.0


def _share(result: Result) -> float:
    return result.lower_bound_s / result.make_span_s if result.make_span_s else 1.0


Column = tuple[str, str, Callable[[Result], Sequence[float]]]
COLUMNS: tuple[Column, ...] = (
    ("MAKE-SPAN s", ".0f", lambda one: (one.make_span_s,)),
    ("WAITING s", ".0f", lambda one: (one.wait_s,)),
    ("JCT s", ".0f", lambda one: (one.jct_s,)),
    ("OOM OWN", ".0f", lambda one: (one.oom_own,)),
    ("NEIGHBOURS'", ".0f", lambda one: (one.oom_neighbour,)),
    ("STP", ".2f", lambda one: (one.stp,)),
    ("ANTT", ".2f", lambda one: (one.antt,)),
    ("HARMFUL", ".0%", lambda one: (harmful_ratio(one),)),
    ("BOUND", ".2f", lambda one: (_share(one),)),
    ("WASTE", ".2f", lambda one: () if one.waste is None else (one.waste,)),
    ("ENERGY MJ", ".2f", lambda one: [joules / 1e6 for _, joules in one.energy_j]),
)
"""Title, format, values of a result. HARMFUL: part of the time with several tasks on a GPU in which they truly did less
together than one at a time. BOUND: lower bound of the make-span, over the make-span. WASTE: what was
reserved and not used, over what was used."""


def cell(values: Sequence[float], form: str) -> str:
    """Return a median with its range: "36764 (35100-40211)", or "+3 (-2 to +5)" with signs; "-" without a figure."""
    if not values:
        return "-"
    middle, low, high = (format(value, form) for value in (statistics.median(values), min(values), max(values)))
    to = " to " if form.startswith("+") else "-"
    return middle if low == high else f"{middle} ({low}{to}{high})"


def table(results: Sequence[Result], width: int | None = None, columns: Sequence[Column] = COLUMNS) -> str:
    """Return a line for each policy with medians and ranges over settings and seeds. If the lines are longer than
    `width`, return a line for each figure of a policy."""
    names = list(dict.fromkeys(result.policy for result in results))
    lines = [["POLICY", *(title for title, _, _ in columns)]]
    for name in names:
        own = [result for result in results if result.policy == name]
        lines.append([name, *(cell([v for one in own for v in values(one)], form) for _, form, values in columns)])
    aligned = tuned_text.table(lines, left=1)
    if width is not None and len(aligned[0]) > width:
        figures = [figure for line in lines[1:] for figure in zip(lines[0], line, strict=True)]
        aligned = tuned_text.table(figures, left=2)
    return "\n".join(aligned)


def against(results: Sequence[Result], base: str = "exclusive") -> str:
    """Return the changes of each policy's make-span, waiting and JCT against `base`; empty: there is no such result.

    Results are compared at the same setting and seed.
    """
    bases = {_setting(result): result for result in results if result.policy == base}
    lines = []
    for name in dict.fromkeys(result.policy for result in results if result.policy != base):
        pairs = [(bases[_setting(one)], one) for one in results if one.policy == name and _setting(one) in bases]
        if not pairs:
            continue
        parts = []
        for title, name_of in (("make-span", "make_span_s"), ("waiting", "wait_s"), ("JCT", "jct_s")):
            figures = [(getattr(old, name_of), getattr(new, name_of)) for old, new in pairs]
            changes = [100.0 * (new - old) / old for old, new in figures if old > 0.0]
            if changes:
                parts.append(f"{title} {cell(changes, '+.0f')} %")
        lines.append(f"{name} against {base}: {', '.join(parts)}")
    return "\n".join(lines)


def _setting(result: Result) -> tuple[float, float, str, int]:
    assumed = result.assumptions
    return assumed.alpha, assumed.settle_s, assumed.sharing, result.seed


def text(trace: Trace, results: Sequence[Result], width: int | None = None) -> str:
    """Return the whole report as text. `width`: of the terminal; None: unlimited."""
    settings = {(one.assumptions.alpha, one.assumptions.settle_s) for one in results}
    seeds = sorted({one.seed for one in results})
    exponents = sorted({exponent for one in results for exponent, _ in one.energy_j})
    gpus = f"{trace.nodes} x {trace.gpus}" if trace.nodes > 1 else str(trace.gpus)
    tasks = counted(len(trace.tasks), "task")
    head = [
        NOTE,
        f"{trace.name}: {tasks} on {gpus} GPU{'s' if gpus != '1' else ''} of {trace.gpu_mib} MiB; "
        f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''} ({', '.join(map(str, seeds[:8]))}"
        f"{', ...' if len(seeds) > 8 else ''})",
        f"settings: SM activity x {_list(alpha for alpha, _ in settings)}; a GPU is closed for "
        f"{_list(settle for _, settle in settings)} s after a task's first memory; power exponent {_list(exponents)}",
        "each figure: median (lowest-highest) over settings and seeds",
        "",
    ]
    tail = ["", against(results)] if any(one.policy == "exclusive" for one in results) else []
    unfinished = [
        f"{name}: {count} tasks did not end as done"
        for name in dict.fromkeys(one.policy for one in results)
        if (count := max(one.unfinished for one in results if one.policy == name))
    ]
    notes = [f"note: {note}" for note in trace.notes]
    return "\n".join([*head, table(results, width), *tail, *unfinished, *notes])


def _list(values: Any) -> str:
    return ", ".join(f"{value:g}" for value in sorted(set(values)))
