"""The report as one HTML file: no script, no network, every text escaped. Values in, text out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from html import escape

from ..core.text import rate_text, span_text
from ..usage import TaskUse, UseSeries
from . import svg, tables, text
from .records import JobFigures, JobReport
from .rules import figures as adding
from .rules import spread, wording
from .rules.next_time import NextTime

Whole = tuple[JobReport, JobFigures, NextTime]
LINES_MOST = svg.COLOURS
"""GPUs that have a line each in a plot; of more, the least, the mean and the most are drawn."""
LANES_MOST = 128
"""Lanes of the timeline: 16 GPUs with eight tasks each."""
STYLE = """
:root{color-scheme:light dark;--fg:#1c2024;--soft:#60646c;--bg:#fff;--card:#f6f7f9;--rule:#d9dce1;--accent:#0b63b5;
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#cc79a7;--c4:#8a6d00;--c5:#3a9bd1;--c6:#7a4ea3;--c7:#555;
--shade:#0006;--ok:#0a7d4f;--bad:#c22b1f;--saved:#8a6d00}
@media (prefers-color-scheme:dark){:root{--fg:#e6e8eb;--soft:#a0a6ae;--bg:#14171a;--card:#1d2125;--rule:#363b42;
--accent:#6db3f2;--c0:#5ab4e8;--c1:#ff9a52;--c2:#4bcfa5;--c3:#f0a5cb;--c4:#e3c34f;--c5:#9bd4f5;--c6:#bb98dd;--c7:#bbb;
--shade:#fff6;--ok:#3fbf8a;--bad:#ff7b6e;--saved:#e3c34f}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:880px;margin:0 auto;padding:24px 16px 48px}
h1{font-size:1.5rem;line-height:1.25;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:1.05rem;margin:32px 0 8px}
p{margin:4px 0}.soft{color:var(--soft)}
article+article{border-top:1px solid var(--rule);margin-top:48px;padding-top:32px}
.warn{border-left:4px solid var(--saved);padding:6px 12px;background:var(--card);margin:12px 0}
.bars{display:grid;gap:10px;margin:20px 0;padding:0;list-style:none}
.bars li{display:grid;grid-template-columns:7.5rem 10rem 1fr;gap:4px 14px;align-items:center}
.bar{height:12px;border-radius:6px;background:var(--rule);overflow:hidden;position:relative}
.bar i{display:block;height:100%;background:var(--accent);border-radius:6px}
.bars b{font-variant-numeric:tabular-nums}
dl{display:grid;grid-template-columns:7.5rem 1fr;gap:4px 14px;margin:12px 0}dt{color:var(--soft)}
dd{margin:0;overflow-wrap:anywhere}
.scroll{overflow-x:auto;-webkit-overflow-scrolling:touch;border:1px solid var(--rule);border-radius:6px;
background:linear-gradient(90deg,var(--bg) 30%,transparent) left/40px 100% no-repeat local,
linear-gradient(270deg,var(--bg) 30%,transparent) right/40px 100% no-repeat local,
linear-gradient(90deg,var(--shade),transparent) left/14px 100% no-repeat scroll,
linear-gradient(270deg,var(--shade),transparent) right/14px 100% no-repeat scroll}
tbody tr:last-child td{border-bottom:0}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem;min-width:100%}
th,td{text-align:right;padding:4px 8px;border-bottom:1px solid var(--rule);white-space:nowrap}
th{color:var(--soft);font-weight:600}th:first-child,td:first-child,.left{text-align:left}
pre{background:var(--card);padding:10px 12px;border-radius:6px;overflow-x:auto;margin:8px 0;
font:13px/1.45 ui-monospace,SFMono-Regular,Menlo,monospace}
figure{margin:16px 0}figcaption{font-weight:600;margin-bottom:2px}
svg{width:100%;height:auto;display:block;overflow:visible}
.grid{stroke:var(--rule);stroke-width:1}.tick{fill:var(--soft);font:11px system-ui,sans-serif}
.end{text-anchor:end}.middle{text-anchor:middle}.limit{stroke:var(--bad);stroke-width:1;stroke-dasharray:5 4}
.grid,.limit,.line{vector-effect:non-scaling-stroke}
.line{fill:none;stroke-width:1.6;stroke-linejoin:round}.key{display:flex;flex-wrap:wrap;gap:2px 14px;font-size:.85rem}
.key i{display:inline-block;width:14px;height:3px;vertical-align:middle;margin-right:5px;border-radius:2px}
""" + "".join(
    f".line.c{n}{{stroke:var(--c{n})}}.dot.c{n}{{fill:var(--c{n})}}.key i.c{n}{{background:var(--c{n})}}"
    for n in range(svg.COLOURS)
) + """
.task{fill:var(--ok)}.task.bad{fill:var(--bad)}.task.saved{fill:var(--saved)}
.key i.done{background:var(--ok);height:9px}.key i.bad{background:var(--bad);height:9px}
.key i.saved{background:var(--saved);height:9px}
footer{color:var(--soft);font-size:.85rem;margin-top:40px}
@media (max-width:600px){.tick{font-size:20px}.lanes .tick{font-size:16px}
.bars li{grid-template-columns:6.5rem 1fr}.bars li>:last-child{grid-column:1/-1}
dl{grid-template-columns:1fr}dt{margin-top:6px}main{padding:16px 12px}}
@media print{:root{color-scheme:light}body{font-size:11px}main{max-width:none;padding:0}
figure,tr,li{break-inside:avoid}.scroll{overflow:visible;background:none}pre{white-space:pre-wrap}}
"""  # fmt: skip
BAD = {"saved": "saved", "unfinished": "saved"}
"""Outcome of a task -> its class in the timeline; done: done, others: bad."""


def page(found: Sequence[Whole], now: float) -> str:
    """Return the page of these reports."""
    title = ", ".join(report.title for report, _, _ in found)
    made = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>Report of {escape(title)}</title><style>{STYLE}</style></head><body><main>"
        + "".join(_article(*one) for one in found)
        + f"<footer>slurm-share report, {escape(made)}</footer></main></body></html>\n"
    )


def _article(report: JobReport, found: JobFigures, then: NextTime) -> str:
    job = report.job
    name = report.run if report.title == report.run else job.name if job is not None else ""
    head = f"Run {report.title}" if report.title == report.run else f"Job {report.title}"
    simulated = '<p class="warn">The GPUs are simulated: nothing was computed on them.</p>' if found.simulated else ""
    parts = [
        f"<h1>{escape(head)}{f' <span class=soft>{escape(name)}</span>' if name and name != report.title else ''}</h1>",
        f"<p>{escape(text.when(report, found))}</p>",
        f'<p class="soft">{escape(text.user_and_nodes(report, found))}</p>',
        simulated,
        _list([("asked for", text.asked(report)), ("had", text.had(report, found))]),
        _bars(text.bars(report, found)),
        _list(text.further(report, found)),
        _plots(report, found),
        _table("GPUs", *tables.gpu_rows(found)),
        _tasks(report),
        _table(text.starts_title(report), *tables.start_rows(report)),
        _next(then, report),
        _sources(report, found),
    ]
    return f"<article>{''.join(parts)}</article>"


def _list(rows: Iterable[tuple[str, str]]) -> str:
    items = "".join(f"<dt>{escape(label)}</dt><dd>{escape(value)}</dd>" for label, value in rows if value)
    return f"<dl>{items}</dl>" if items else ""


def _bars(rows: Iterable[tuple[str, float | None, str]]) -> str:
    items = []
    for label, percent, said in rows:
        if percent is None:
            items.append(f"<li><span>{escape(label)}</span><span></span><span>{escape(said)}</span></li>")
            continue
        width = min(100.0, max(0.0, percent))
        drawn = f'<div class="bar" role="img" aria-label="{percent:.0f} %"><i style="width:{width:.1f}%"></i></div>'
        items.append(f"<li><span>{escape(label)}</span>{drawn}<span><b>{percent:.0f} %</b> {escape(said)}</span></li>")
    return f'<ul class="bars">{"".join(items)}</ul>'


def _table(title: str, rows: tables.Rows, note: str = "") -> str:
    """Return a table whose first row has the headings; empty without rows."""
    if len(rows) < 2:
        return ""
    kept, _ = tables.without_empty(rows)
    head = "".join(f"<th>{escape(cell)}</th>" for cell in kept[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in kept[1:])
    shown = f"<h2>{escape(title)}</h2>" if title else ""
    noted = f'<p class="soft">{escape(note)}</p>' if note else ""
    return f'{shown}<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{noted}'


def _tasks(report: JobReport) -> str:
    tasks = adding.all_tasks(report)
    title = text.tasks_title(report)
    if len(tasks) <= tables.TASKS_MOST:
        return _table(title, tables.task_rows(tasks))
    whole = _table(title, tables.spread_rows(tasks), text.SPREAD_KEY)
    of_worst = spread.worst(tasks)
    if not of_worst:
        return whole
    return f"{whole}<p>{escape(text.worst_title(of_worst))}</p>{_table('', tables.task_rows(of_worst))}"


def _next(then: NextTime, report: JobReport) -> str:
    said = text.next_lines(then, report, 10_000)
    if not said:
        return ""
    parts = []
    for line in said:
        body, _, remark = line.strip().partition(text.REMARK)
        is_command = body.startswith(("sbatch ", "llsub ", "cd "))
        parts.append(f"<pre>{escape(body)}</pre>" if is_command else f"<p>{escape(body)}</p>" if body else "")
        parts.append(f'<p class="soft">{escape(remark)}</p>' if remark else "")
    return f"<h2>Next time</h2>{''.join(parts)}"


def _sources(report: JobReport, found: JobFigures) -> str:
    said = "".join(f"<p>{escape(line.strip())}</p>" for line in text.source_lines(report, found, 10_000))
    return f'<h2>Known from</h2><div class="soft">{said}</div>' if said else ""


# ---- Plots ----


def _plots(report: JobReport, found: JobFigures) -> str:
    origin = _origin(report)
    until = _until(report, origin)
    if origin is None or until <= 0:
        return ""
    drawn = [
        _timeline(report, found, origin, until),
        _plot("GPU load", _gpu_lines(report, found, origin, "load_percent"), until, _percent, top=100.0),
        _memory_plot(
            "GPU memory of its processes",
            _gpu_lines(report, found, origin, "memory_mib"),
            until,
            (found.gpu_memory_mib, "size of a GPU"),
        ),
        _plot("Power of the GPUs", _gpu_lines(report, found, origin, "power_w"), until, _watt),
        _plot("Rate of the tasks", _lines(report, origin, lambda one: one.rate_per_s), until, rate_text),
        _plot(
            "Busy CPUs",
            _lines(report, origin, lambda one: one.cpu_cores),
            until,
            _cores,
            limit=None if not found.cpus or len(found.nodes) > 1 else (float(found.cpus), "CPUs of the job"),
        ),
        _memory_plot(
            "Host memory",
            _lines(report, origin, lambda one: one.memory_mib),
            until,
            (found.memory_limit_mib, "limit on a node"),
        ),
    ]
    shown = "".join(drawn)
    return f"<h2>Over its time</h2>{shown}" if shown else ""


def _origin(report: JobReport) -> float | None:
    moments = [one.start for one in report.starts if one.start is not None]
    moments += [use.began for use in report.uses if use.began is not None]
    moments += [task.began for task in report.tasks[:1] if task.began is not None]
    return min(moments, default=None)


def _until(report: JobReport, origin: float | None) -> float:
    if origin is None:
        return 0.0
    ends = [report.now if one.end is None else one.end for one in report.starts if one.start is not None]
    ends += [report.now if use.ended is None else use.ended for use in report.uses]
    ends += [task.began + (task.seconds or 0.0) for task in report.tasks if task.began is not None]
    return max(ends, default=origin) - origin


def _plot(
    title: str,
    lines: Sequence[svg.Line],
    until: float,
    write: Callable[[float], str],
    *,
    limit: tuple[float, str] | None = None,
    top: float | None = None,
) -> str:
    if not any(value is not None for line in lines for _, value in line.points):
        return ""
    drawn = svg.plot(lines, until=until, write=write, limit=limit, top=top, name=title)
    key = ""
    if len(lines) > 1:
        key = '<div class="key">' + "".join(
            f'<span><i class="c{number % svg.COLOURS}"></i>{escape(line.label)}</span>'
            for number, line in enumerate(lines)
        ) + "</div>"  # fmt: skip
    return f"<figure><figcaption>{escape(title)}</figcaption>{key}{drawn}</figure>"


def _percent(value: float) -> str:
    return f"{value:.0f} %"


def _memory_plot(title: str, lines: Sequence[svg.Line], until: float, limit: tuple[int | None, str]) -> str:
    """Return a plot of lines of MiB, in MiB below 1 GiB, else in GiB: an axis then has round and short numbers."""
    most = max((mib for line in lines for _, mib in line.points if mib is not None), default=0.0)
    divisor, unit = (1024, "GiB") if most >= 1024 else (1, "MiB")
    scaled = [
        svg.Line(line.label, tuple((at, None if mib is None else mib / divisor) for at, mib in line.points))
        for line in lines
    ]
    size, name = limit
    drawn = (size / divisor, name) if size else None
    return _plot(title, scaled, until, lambda value: f"{value:g} {unit}", limit=drawn)


def _watt(value: float) -> str:
    return f"{value:.0f} W"


def _cores(value: float) -> str:
    return f"{value:g}"


def _lines(report: JobReport, origin: float, of: Callable[[UseSeries], Sequence[float | int | None]]) -> list[svg.Line]:
    """Return a line for each node, over all its starts."""
    found: dict[str, list[tuple[float, float | None]]] = {}
    for one in report.series:
        points = found.setdefault(one.node, [])
        points += [(points[-1][0], None)] if points else []
        points += [(at - origin, value) for at, value in zip(one.at, of(one), strict=False)]
    return _folded([svg.Line(node, tuple(points)) for node, points in found.items()])


def _gpu_lines(report: JobReport, found: JobFigures, origin: float, field: str) -> list[svg.Line]:
    names = {(one.node, one.use.uuid): one for one in found.gpus}
    is_one = len(found.nodes) <= 1
    lines: dict[tuple[str, str], list[tuple[float, float | None]]] = {}
    for one in report.series:
        for gpu in one.gpus:
            points = lines.setdefault((one.node, gpu.uuid), [])
            points += [(points[-1][0], None)] if points else []
            points += [(at - origin, value) for at, value in zip(one.at, getattr(gpu, field), strict=False)]

    def label(key: tuple[str, str]) -> str:
        use = names[key].use if key in names else None
        index = key[1][:12] if use is None or use.index is None else f"GPU {use.index}"
        return index if is_one else f"{key[0]} {index}"

    return _folded([svg.Line(label(key), tuple(points)) for key, points in sorted(lines.items(), key=_by_label(label))])


def _by_label(label: Callable[[tuple[str, str]], str]) -> Callable[[tuple[tuple[str, str], object]], str]:
    return lambda item: label(item[0])


def _folded(lines: Sequence[svg.Line]) -> list[svg.Line]:
    """Return the lines; of too many, the most, the mean and the least of them at each moment."""
    if len(lines) <= LINES_MOST:
        return list(lines)
    at: dict[int, list[float]] = {}
    for line in lines:
        for moment, value in line.points:
            if value is not None:
                at.setdefault(round(moment), []).append(value)
    moments = sorted(at.items())
    of = f"of {len(lines)}"
    return [
        svg.Line(f"most {of}", tuple((float(moment), max(values)) for moment, values in moments)),
        svg.Line(f"mean {of}", tuple((float(moment), sum(values) / len(values)) for moment, values in moments)),
        svg.Line(f"least {of}", tuple((float(moment), min(values)) for moment, values in moments)),
    ]


# ---- The timeline ----


def _timeline(report: JobReport, found: JobFigures, origin: float, until: float) -> str:
    tasks = [task for task in adding.all_tasks(report) if task.began is not None and task.seconds]
    if not tasks:
        return ""
    names = {one.use.uuid: one for one in found.gpus}
    is_one = len(found.nodes) <= 1
    rows: dict[str, list[TaskUse]] = {}
    for task in tasks:
        gpu = task.gpus[0] if task.gpus else None
        index = "" if gpu is None or gpu.index is None else f"GPU {gpu.index}"
        node = "" if is_one or gpu is None or gpu.uuid not in names else f"{names[gpu.uuid].node} "
        rows.setdefault(f"{node}{index}" or "CPU", []).append(task)
    lanes = [svg.Lanes(label, _lanes(several, origin)) for label, several in sorted(rows.items())]
    shown, left = [], LANES_MOST
    for row in lanes:
        if len(row.lanes) <= left:
            shown.append(row)
            left -= len(row.lanes)
    note = "" if len(shown) == len(lanes) else f'<p class="soft">{len(shown)} of {len(lanes)} GPUs</p>'
    drawn = svg.timeline(shown, until=until, name="tasks on GPUs over time")
    kinds = dict.fromkeys(block.kind for row in shown for lane in row.lanes for block in lane)
    words = {"done": "done", "bad": "failed", "saved": "saved or unfinished"}
    key = "".join(f'<span><i class="{kind}"></i>{words[kind]}</span>' for kind in kinds)
    return f'<figure><figcaption>Tasks on GPUs</figcaption><div class="key">{key}</div>{drawn}{note}</figure>'


def _lanes(tasks: Sequence[TaskUse], origin: float) -> tuple[tuple[svg.Block, ...], ...]:
    """Return the tasks of a GPU in as few lanes as possible, so that none covers another."""
    lanes: list[list[svg.Block]] = []
    for task in sorted(tasks, key=lambda one: one.began or 0.0):
        begin = (task.began or 0.0) - origin
        block = svg.Block(begin, begin + (task.seconds or 0.0), _kind(task.outcome), _title(task))
        lane = next((lane for lane in lanes if lane[-1].end <= begin + 1e-6), None)
        if lane is None:
            lanes.append([block])
        else:
            lane.append(block)
    return tuple(tuple(lane) for lane in lanes)


def _kind(outcome: str) -> str:
    return "done" if outcome in ("done", "") else BAD.get(outcome, "bad")


def _title(task: TaskUse) -> str:
    parts = [f"task {task.task}" + (f", attempt {task.attempt}" if task.attempt > 1 else ""), task.outcome or "ran"]
    parts += [] if task.seconds is None else [span_text(task.seconds)]
    memory = spread.FIGURES["gpu memory"](task)
    parts += [] if memory is None else [f"{wording.size(memory)} of GPU memory"]
    return ", ".join(parts)
