"""`slurm-share sample`: print this node's load as JSON, for scripts and for `llload`, which starts it on nodes."""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..core import config, names
from ..core.errors import UsageError
from ..load import NodeWatcher, Snapshot, frames, this_node
from ..load import snapshot as snapshots

MIN_INTERVAL_S, MAX_INTERVAL_S = 0.2, 3600.0
LEAST_SILENCE_S = 1.0
GRACE_S = 10.0
"""Seconds between the end of the input and a forced exit, for a write or a call of the driver to finish."""


def add_to(commands: Any) -> None:
    """Add the command `sample` to the parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "sample",
        help="print this node's load as JSON",
        description="Print this node's load as one line of JSON (packaging/docs/snapshot.md). The figures come from "
        "the node's agent, which averages over longer times. Without an agent the command samples the node itself.",
    )
    add = parser.add_argument
    add("--stream", action="store_true", help="print a snapshot every interval until standard input ends")
    add("--interval", type=float, metavar="S", help="seconds between two snapshots of a stream")
    add(
        "--silence",
        type=float,
        metavar="S",
        help="also end the stream when nothing arrives on standard input for S seconds",
    )
    add(
        "--frames",
        action="store_true",
        help="split the output into short lines, which srun passes on whole (for llload)",
    )
    add("--all", action="store_true", help="print the load of all users (root and operators)")
    add(
        "--node",
        help="Slurm's name of this node (default: $SLURMD_NODENAME, slurmd's -N, or this host's node in slurm.conf)",
    )
    add(
        "--schema",
        nargs="?",
        const="snapshot",
        choices=sorted(snapshots.DOCUMENTS),
        help="print only a JSON schema: snapshot (default), survey (llload --json) or advice (llload --advise --json)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print snapshots. The exit code is 0 even if the driver does not answer: the snapshot says so."""
    if arguments.schema:
        print(json.dumps(snapshots.schema(arguments.schema), indent=2))
        return names.EXIT_OK
    interval_s = _stream_seconds(arguments, "interval", MIN_INTERVAL_S)
    silence_s = _stream_seconds(arguments, "silence", LEAST_SILENCE_S)
    node = this_node(arguments.node)
    settings = config.load().settings
    watcher = NodeWatcher(node, settings)
    user = "" if arguments.all else watcher.caller

    def show() -> None:
        _write(watcher.read(user), node, arguments.frames)

    try:
        if not arguments.stream:
            show()
        else:
            _stream(show, interval_s or settings.agent_interval_s, silence_s)
    finally:
        watcher.close()
    return names.EXIT_OK


def _stream_seconds(arguments: argparse.Namespace, option: str, least_s: float) -> float | None:
    seconds: float | None = getattr(arguments, option)
    if seconds is None:
        return None
    if not arguments.stream:
        raise UsageError(f"--{option} needs --stream; add --stream, or leave out --{option}")
    if not least_s <= seconds <= MAX_INTERVAL_S:
        raise UsageError(f"--{option} {seconds:g}: write between {least_s:g} and {MAX_INTERVAL_S:g} seconds")
    return seconds


def _write(seen: Snapshot, node: str, framed: bool) -> None:
    """Write a snapshot as whole lines and flush: the reader waits for them."""
    data = snapshots.render(seen)
    if framed:
        data = "\n".join(frames.split(data, node)).encode()
    sys.stdout.buffer.write(data + b"\n")
    sys.stdout.buffer.flush()


def _stream(show: Callable[[], None], interval_s: float, silence_s: float | None) -> None:
    """Print snapshots until standard input ends or is silent too long, SIGTERM arrives, or the reader has closed."""
    with _ends(silence_s) as over:
        due = time.monotonic()
        while True:
            show()
            now = time.monotonic()
            # Missed samples are not made up for: a sample right after a late one would have no rates.
            due = max(due + interval_s, now + interval_s / 2)
            if over(due - now):
                return


@contextmanager
def _ends(silence_s: float | None) -> Iterator[Callable[[float], bool]]:
    """Yield a function that waits at most the given seconds and returns whether to end."""
    inside, outside = os.pipe()  # never closed: the thread may still write to it at the end
    os.set_blocking(outside, False)
    poll = select.poll()
    stdout = sys.stdout.fileno()
    poll.register(inside, select.POLLIN)
    poll.register(stdout, 0)  # reports only that the reader has closed
    before = signal.signal(signal.SIGTERM, lambda _number, _frame: os.write(outside, b"."))
    threading.Thread(target=_listen, args=(outside, silence_s), name="stdin", daemon=True).start()

    def over(seconds: float) -> bool:
        found = dict(poll.poll(max(0.0, seconds) * 1000))
        return inside in found or bool(found.get(stdout, 0) & (select.POLLERR | select.POLLNVAL))

    try:
        yield over
    finally:
        signal.signal(signal.SIGTERM, before)


def _listen(tell: int, silence_s: float | None) -> None:
    """Read standard input to its end, in its own thread: when srun is gone, slurmstepd may stop reading our output and
    block the main thread. Writes a byte to the descriptor `tell` at the end."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    wait_ms = None if silence_s is None else 1000 * silence_s
    # The second poll is for a process that was stopped with its job for longer: input may have arrived meanwhile.
    while heard := (poll.poll(wait_ms) or poll.poll(0)):
        try:
            if not os.read(0, 4096):
                break
        except OSError:
            break
    os.write(tell, b".")
    if not heard:
        time.sleep(GRACE_S)
        os._exit(names.EXIT_OK)
