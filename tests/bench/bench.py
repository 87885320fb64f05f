"""Print the table of a bench and write its file: shared by all benches."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

sys.path.insert(0, str(Path(__file__).parents[2] / "packaging/demo"))

if TYPE_CHECKING:
    from localcluster import Cluster

RESULTS = Path(__file__).parent / "results"
Found = TypeVar("Found")


@dataclass(frozen=True)
class Row:
    """One figure and the bar it is held to; a bar of None is a figure that is only shown."""

    what: str
    value: float
    unit: str
    bar: float | None = None
    better: str = "lower"

    @property
    def holds(self) -> bool | None:
        """Whether the figure is on the right side of its bar."""
        if self.bar is None:
            return None
        return self.value <= self.bar if self.better == "lower" else self.value >= self.bar


def machine() -> str:
    """The machine in words: processor, cores, memory, kernel."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "?")
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} x {cpu}, {memory_gib:.0f} GiB, Linux {platform.release()}"


def show(name: str, slurm: str | None, rows: Sequence[Row]) -> bool:
    """Print the table, and answer whether every bar holds."""
    width = max(len(row.what) for row in rows)
    print(f"{name}: {machine()}" + (f", Slurm {slurm}" if slurm else ""))
    for row in rows:
        bar = "" if row.bar is None else f"  bar {row.bar:g} {row.unit}: {'holds' if row.holds else 'DOES NOT HOLD'}"
        print(f"  {row.what:<{width}}  {row.value:10.2f} {row.unit}{bar}")
    return all(row.holds is not False for row in rows)


def report(name: str, slurm: str | None, rows: Sequence[Row], **more: Any) -> bool:
    """Print the table, write results/<name>.json with these and `more` fields, and answer whether every bar holds."""
    holds = show(name, slurm, rows)
    figures = [{**asdict(row), "value": round(row.value, 3), "holds": row.holds} for row in rows]
    write(name, slurm=slurm, rows=figures, **more)
    return holds


def write(name: str, **fields: Any) -> None:
    """Write results/<name>.json: name, date, machine and these fields."""
    answer = {"bench": name, "date": time.strftime("%Y-%m-%d"), "machine": machine(), **fields}
    (RESULTS / f"{name}.json").write_text(in_lines(answer))


def in_lines(fields: Mapping[str, Any]) -> str:
    """Return a JSON object with a line for each field, and for each entry of a list."""

    def shown(value: Any) -> str:
        if not isinstance(value, list) or not value:
            return json.dumps(value)
        return "[\n" + ",\n".join(f"    {json.dumps(one)}" for one in value) + "\n  ]"

    return "{\n" + ",\n".join(f"  {json.dumps(name)}: {shown(value)}" for name, value in fields.items()) + "\n}\n"


def over_seeds(play: Callable[[int], Found], seeds: Sequence[int], what: str, processes: int | None) -> list[Found]:
    """Return the result of each seed, played on several cores (None: all)."""
    found = []
    with multiprocessing.Pool(processes) as pool:
        for number, one in enumerate(pool.imap(play, seeds), 1):
            found.append(one)
            print(f"\r{what}: {number} of {len(seeds)} seeds", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def cpu_of(cluster: Cluster, host: str, name: str) -> float:
    """Return the CPU seconds of the daemon of that name so far, without its ended children."""
    script = f"for pid in $(pgrep -x {name}); do cat /proc/$pid/stat; done"
    lines = cluster.exec(host, ["bash", "-c", script]).stdout.splitlines()
    fields = [line.rpartition(")")[2].split() for line in lines]
    return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")


def rpcs_of(cluster: Cluster) -> dict[str, tuple[int, int]]:
    """Return slurmctld's RPCs by type: how many, and microseconds in all."""
    said = cluster.exec("ctl", ["sdiag"], check=True).stdout.partition("by message type")[2].partition("by user")[0]
    rows = re.findall(r"^\s*(\w+)\s*\(\s*\d+\)\s+count:(\d+)\s+ave_time:\d+\s+total_time:(\d+)", said, re.MULTILINE)
    return {name: (int(count), int(total)) for name, count, total in rows}
