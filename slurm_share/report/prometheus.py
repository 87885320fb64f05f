"""Ask the site's Prometheus about jobs: two queries each, for what the agents reported over the job's life."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence

from ..core.errors import SlurmShareError
from ..core.process import Deadline
from ..core.settings import Settings
from ..slurm.accounts import AccountedJob
from ..usage import JobUse, UseSeries

TIME_S = 15.0
"""Longest time for all questions, seconds. As the dashboard's."""
ASKED_MOST = 32
"""Most starts of which Prometheus is asked, the last ones. As for the agents."""


def read(
    starts: Sequence[AccountedJob], series: Sequence[UseSeries], settings: Settings, problems: list[str]
) -> tuple[list[JobUse], list[UseSeries]]:
    """Return what Prometheus has of starts without a series, for callers who can read its token. Adds to `problems` why
    it does not answer."""
    seen = {(one.job, one.node) for one in series}
    wanted = [
        one
        for one in starts[-ASKED_MOST:]
        if one.start is not None and any((one.job, node) not in seen for node in one.nodes)
    ]
    token = settings.prometheus_token_file
    if not wanted or not settings.prometheus_url or (token and not os.access(token, os.R_OK)):
        return [], []
    # Imported here: a report that does not ask loads no HTTP client.
    from ..load import PROMETHEUS_INSTEAD, PrometheusSource, range_step_s
    from .rules import from_prometheus

    uses: list[JobUse] = []
    courses: list[UseSeries] = []
    until = Deadline.after(TIME_S)
    try:
        with contextlib.closing(PrometheusSource(settings)) as source:
            for one in wanted:
                begin, end = one.start or 0.0, one.end or time.time()
                of_job = source.read_ranges(from_prometheus.job_query(one), begin, end, max(0.1, until.left()))
                query = from_prometheus.gpu_query(of_job)
                of_gpus = source.read_ranges(query, begin, end, max(0.1, until.left())) if query else ()
                found, over_time = from_prometheus.records(one, end, range_step_s(begin, end), of_job, of_gpus)
                uses += found
                courses += over_time
    except SlurmShareError as error:
        # The way out of llload is none for a job that may have ended.
        problems.append(str(error).removesuffix(PROMETHEUS_INSTEAD).rstrip("; "))
    return uses, courses
