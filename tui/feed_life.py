"""Reads the course of one job over its whole life in the feed process: from the agents' records, else Prometheus."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from slurm_share.core.errors import SlurmShareError
from slurm_share.core.process import Deadline
from slurm_share.core.settings import Settings
from slurm_share.load import client
from slurm_share.slurm import jobs

from . import life
from .wire import JobEnd, JobLife, Point, ReadEnd, ReadLife

PROMETHEUS_S = 15.0
"""Longest time for the questions to Prometheus, seconds."""
MIB = 1 << 20

Read = Callable[[ReadLife], JobLife]


class LifeReader:
    """Reads in a thread of its own, so that a silent agent delays no survey. A new question replaces one that has not
    begun to be read."""

    def __init__(self, say: Callable[[JobLife], None], read: Read) -> None:
        self._say, self._read = say, read
        self._changed = threading.Condition()
        self._asked: ReadLife | None = None
        self._is_over = False
        threading.Thread(target=self._run, name="life of a job", daemon=True).start()

    def ask(self, command: ReadLife) -> None:
        with self._changed:
            self._asked = command
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._asked is not None or self._is_over)
                asked, self._asked = self._asked, None
            if self._is_over or asked is None:
                return
            try:
                self._say(self._read(asked))
            except OSError:  # the dashboard has ended
                return


def read_life(asked: ReadLife, settings: Settings) -> JobLife:
    """Return what is known of a job's course. Never raises: `problem` says why nothing is."""
    problem = ""
    try:
        usage, series, problems = client.usage_of(asked.job, asked.nodes, settings)
        if points := life.points_of(usage, series):
            return JobLife(job=asked.job, points=points, by="the agents' records")
        problem = next(iter(problems), "the agents have no record of it")
        if settings.prometheus_url and asked.began is not None:
            if points := read_prometheus(asked, settings):
                return JobLife(job=asked.job, points=points, by="Prometheus")
            problem += "; Prometheus has none"
    except SlurmShareError as error:
        problem = f"{problem}; {error}" if problem else str(error)
    return JobLife(job=asked.job, problem=problem)


def read_prometheus(asked: ReadLife, settings: Settings) -> tuple[Point, ...]:
    """Return a job's course as the site's Prometheus has it. Raises SlurmShareError."""
    from slurm_share.load import PrometheusSource

    source, until = PrometheusSource(settings), Deadline.after(PROMETHEUS_S)
    begin, end = asked.began or 0.0, time.time()
    wholes = (
        ("cpu_used_cores", asked.cpus),
        ("gpu_load", asked.gpus),
        ("memory_bytes", None if asked.memory_mib is None else asked.memory_mib * MIB),
    )

    def percent(name: str, whole: int | None) -> dict[float, float | None]:
        query = f'100 * sum(slurm_share_job_{name}{{jobid="{asked.job}"}}) / {whole}'
        return dict(source.read_range(query, begin, end, until.left())) if whole else {}

    try:
        cpu, gpu, memory = (percent(name, whole) for name, whole in wholes)
    finally:
        source.close()
    times = sorted({*cpu, *gpu, *memory})
    return tuple(Point(at, cpu.get(at), gpu.get(at), None, memory.get(at)) for at in times)


def read_end(asked: ReadEnd, say: Callable[[JobEnd], None]) -> None:
    """Ask Slurm in a thread how a job has ended, and say it."""

    def run() -> None:
        try:
            record = jobs.read_shown(asked.job, has_ended=True)
        except SlurmShareError:
            record = None
        with contextlib.suppress(OSError):  # the dashboard has ended
            say(JobEnd(asked.job, record))

    threading.Thread(target=run, name="end of a job", daemon=True).start()
