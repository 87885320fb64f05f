"""Table of tests/bench/spmd.py: figures by measurement, ranks and peer, and their bars."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from bench import Row
from spmd_peers import CORES

KIB, MIB = 1 << 10, 1 << 20
LATENCIES = (8, 8 * KIB, MIB, 64 * MIB)
SMALL = (8, KIB, 64 * KIB, 256 * KIB)
"""Sizes of messages through rings and segments, as buffers and as objects."""
BCASTS = AGGS = (8, 8 * KIB, 8 * MIB)
MOVES = ("columns", "bc3")
START = "start to the first barrier"
IMPORT = "import slurm_share.spmd beyond NumPy"
COPIES = "copies of 8 MiB to 32 arrays in turn, on all cores at once"
WORK = "the work of one turn on its own"
UNEQUAL = ("receive", "barrier")
IDLE = ("voluntary switches of a rank that computes for 5 s", "threads of a rank that computes",
        "of a core for a rank that waits 5 s in recv", "voluntary switches of a rank that waits for 5 s")  # fmt: skip
_SCALES = {"us": 1e6, "ms": 1e3, "s": 1.0}


def size_name(nbytes: int) -> str:
    """Return a size as text: 8 B, 8 KiB, 64 MiB."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if nbytes >= unit:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} B"


def way(nbytes: int) -> str:
    return f"one way {size_name(nbytes)}"


def as_object(nbytes: int) -> str:
    return f"one way {size_name(nbytes)} array as an object"


def as_ppython(nbytes: int) -> str:
    return f"one way {size_name(nbytes)} with SendMsg and RecvMsg"


def apart(nbytes: int) -> str:
    return f"one way {size_name(nbytes)} between two nodes on a veth pair"


def bcast(nbytes: int) -> str:
    return f"bcast {size_name(nbytes)} and a barrier"


def agg(nbytes: int) -> str:
    return f"agg {size_name(nbytes)} a rank and a barrier"


def move(to: str) -> str:
    return f"4096 x 4096 rows to {to} and a barrier"


def unequal(how: str) -> str:
    return f"half of the ranks compute, the others wait in a {how}"


@dataclass
class Figures:
    """Samples by measurement, ranks and peer, in seconds."""

    samples: dict[tuple[str, int, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    rows: list[Row] = field(default_factory=list)

    def middle(self, what: str, ranks: int, peer: str) -> float | None:
        found = self.samples.get((what, ranks, peer))
        return median(found) if found else None

    def peers(self, what: str, ranks: int) -> list[str]:
        """Return the peers that were measured, ours first."""
        found = [peer for name, size, peer in self.samples if (name, size) == (what, ranks)]
        return sorted(found, key=lambda peer: (peer != "ours", "ours" not in peer, peer == "memcpy"))

    def show(self, what: str, ranks: int, unit: str = "us", bar: float | None = None) -> None:
        """Add a row for each peer; the bar is for ours."""
        for peer in self.peers(what, ranks):
            found = self.samples[what, ranks, peer]
            low, high = (_SCALES[unit] * value for value in _spread(found))
            name = f"{what}, {ranks} ranks on {CORES} cores: {peer} (n={len(found)}, {low:.3g} to {high:.3g})"
            value = median(found) * _SCALES[unit]
            self.rows.append(Row(name, value, unit, bar if peer == "ours" else None))

    def compare(self, what: str, ranks: int, other: str, bar: float | None, better: str, times: float = 1.0) -> None:
        """Add a row with the ratio of our time to another (`lower`), or the inverse (`higher`)."""
        ours, theirs = self.middle(what, ranks, "ours"), self.middle(what, ranks, other)
        if ours is None or theirs is None:
            return
        ratio = ours / (theirs * times) if better == "lower" else theirs * times / ours
        name = f"  {what}, {ranks} ranks: " + (f"ours / {other}" if better == "lower" else f"{other} / ours")
        self.rows.append(Row(name, ratio, "x", bar, better))

    def compare_ppython(self, what: str, ranks: int, bar: float | None) -> None:
        """Add a row for each version of pPython; the bar is for the first."""
        for peer in self.peers(what, ranks):
            if peer.startswith("pPython"):
                self.compare(what, ranks, peer, bar if peer == "pPython" else None, "higher")


def _spread(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    parts = statistics.quantiles(values, n=10, method="inclusive")
    return parts[0], parts[-1]


def table(figures: Figures, sizes: Sequence[int], begun: Sequence[int], is_quick: bool) -> list[Row]:
    """Return all rows. In the quick form only ratios, shares and counts have bars: times need a quiet machine."""
    _one_way_rows(figures)
    _node_rows(figures)
    for ranks in sizes:
        _collective_rows(figures, ranks)
    _all_core_row(figures)
    _unequal_rows(figures)
    _idle_rows(figures)
    for ranks in begun:
        _start_rows(figures, ranks)
    figures.show(IMPORT, 1, "ms", 60.0)
    if not is_quick:
        return figures.rows
    return [row if row.unit not in _SCALES else replace(row, bar=None) for row in figures.rows]


def _one_way_rows(figures: Figures) -> None:
    small, large = way(LATENCIES[0]), way(LATENCIES[-1])
    in_cores = CORES >= 2
    for size in LATENCIES:
        name = way(size)
        figures.show(name, 2, "us" if size < 64 * MIB else "ms", 25.0 if name == small and in_cores else None)
        figures.compare_ppython(name, 2, {small: 50.0, large: 5.0}.get(name))
        figures.compare(name, 2, "mpi4py", 0.8 if name == large and in_cores else None, "higher")
    found = figures.samples.get((small, 2, "ours"))
    if found:
        p99 = sorted(found)[int(len(found) * 0.99)] * 1e6
        figures.rows.append(Row(f"  {small}: ours, 99 of 100", p99, "us", 100.0 if in_cores else None))
    # two copies: the sender's and the receiver's
    figures.compare(large, 2, "memcpy", 0.5, "higher", times=2.0)
    figures.show("one way, a small object", 2)
    figures.compare("one way, a small object", 2, "mpi4py", 4.0 if in_cores else None, "lower")
    for size in SMALL:
        for name in dict.fromkeys((way(size), as_object(size))):
            if size not in LATENCIES or name != way(size):
                figures.show(name, 2)
            figures.compare(name, 2, "mpi4py", 4.0 if in_cores and size <= 64 * KIB else None, "lower")
    figures.show(as_ppython(8), 2)
    figures.compare_ppython(as_ppython(8), 2, 50.0)
    figures.show(f"{large} array as an object", 2, "ms")
    figures.compare(f"{large} array as an object", 2, "mpi4py", 5.0, "higher")


def _node_rows(figures: Figures) -> None:
    """Return rows over TCP between two network namespaces; the same code measures both peers in the same round."""
    large, limit = apart(64 * MIB), "plain sendall"
    figures.show(apart(8), 2, "us", 60.0)
    figures.show(large, 2, "ms")
    figures.compare(apart(8), 2, limit, None, "lower")
    figures.compare(large, 2, limit, 0.8, "higher")


def _collective_rows(figures: Figures, ranks: int) -> None:
    fits = ranks <= CORES
    barrier_ms = next((limit for most, limit in ((8, 0.5), (64, 3.0), (192, 10.0)) if ranks <= most), None)
    large, columns = agg(8 * MIB), move("columns")
    than_mpi = {large: 1.2, columns: 2.0} | ({bcast(8 * MIB): 2.0} if fits else {"barrier": 1.0})
    than_ppython = {bcast(8): 20.0, bcast(8 * KIB): 20.0, large: 50.0}
    for name in ("barrier", *map(bcast, BCASTS), *map(agg, AGGS), *map(move, MOVES)):
        figures.show(name, ranks, "ms", barrier_ms if name == "barrier" and fits else None)
        figures.compare(name, ranks, "mpi4py", than_mpi.get(name), "lower")
        figures.compare_ppython(name, ranks, than_ppython.get(name))
    ours, theirs = figures.middle(move("bc3"), ranks, "ours"), figures.middle(columns, ranks, "mpi4py")
    if ours is not None and theirs is not None:
        name = f"  4096 x 4096, {ranks} ranks: ours rows to bc3 / mpi4py rows to columns"
        figures.rows.append(Row(name, ours / theirs, "x", 3.0))


def _all_core_row(figures: Figures) -> None:
    """Return a row that compares a broadcast to many ranks with copies by all cores at once."""
    one = figures.middle(COPIES, CORES, "memcpy")
    if one is None:
        return
    limit = CORES * 8 * MIB / one
    figures.rows.append(Row(f"{COPIES} ({CORES})", limit / 1e9, "GB/s"))
    for ranks in sorted({size for name, size, _ in figures.samples if name == bcast(8 * MIB)}):
        time_s = figures.middle(bcast(8 * MIB), ranks, "ours")
        if time_s is not None and ranks >= 8:
            # one copy into the segment and one by each other rank
            rate = ranks * 8 * MIB / time_s
            name = f"  {bcast(8 * MIB)}, {ranks} ranks: all bytes copied by ours ({rate / 1e9:.1f} GB/s) / {COPIES}"
            figures.rows.append(Row(name, rate / limit, "x", 0.5 if ranks == 192 else None, "higher"))


def _unequal_rows(figures: Figures) -> None:
    alone = figures.middle(WORK, 1, "memcpy")
    for how in UNEQUAL:
        name = unequal(how)
        for ranks in sorted({size for what, size, _ in figures.samples if what == name}):
            figures.show(name, ranks, "ms")
            ours = figures.middle(name, ranks, "ours")
            if alone is not None and ours is not None:
                least = alone * max(1.0, ranks / 2 / CORES)
                text = f"  {name}, {ranks} ranks: ours / the work alone on {CORES} cores ({least * 1e3:.1f} ms)"
                figures.rows.append(Row(text, ours / least, "x"))
            for other in ("mpi4py", "mpi4py as it comes"):
                figures.compare(name, ranks, other, None, "lower")


def _idle_rows(figures: Figures) -> None:
    for number, (name, unit, bar) in enumerate(zip(IDLE, ("", "", "%", ""), (0.0, 1.0, 0.02, None), strict=True)):
        for peer in ("ours", "mpi4py"):
            found = figures.samples.get(("idle", 2, peer))
            if found:
                figures.rows.append(Row(f"{name}: {peer}", found[number], unit, bar if peer == "ours" else None))


def _start_rows(figures: Figures, ranks: int) -> None:
    bare = figures.middle(START, ranks, "import numpy")
    figures.show(START, ranks, "s", None if bare is None else round(1.3 * bare + 0.3, 3))
    mine, theirs = (figures.middle(f"CPU: {START}", ranks, peer) for peer in ("ours", "import numpy"))
    if mine is not None and theirs is not None:
        name = f"  {START}, {ranks} ranks: processor time a rank beyond import numpy, with the command's"
        # the command imports Python and its own modules once, which one or eight ranks cannot share among them
        figures.rows.append(Row(name, (mine - theirs) * 1e3 / ranks, "ms", 30.0 if ranks >= 64 else None))
    notes = figures.samples.get((f"notes: {START}", ranks, "ours"))
    if notes:
        figures.rows.append(Row(f"  {START}, {ranks} ranks: failed connections", sum(notes), "", 0.0))
