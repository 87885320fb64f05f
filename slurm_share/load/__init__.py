"""The load of nodes: snapshots, collectors, statistics, columns, advice, sources, the agent."""

from __future__ import annotations

from ..core.lazy import exports

TYPE_CHECKING = False  # as mypy knows it
if TYPE_CHECKING:
    from . import columns, metrics, options, recording, snapshot, text
    from .agent import callers, client, service, tls
    from .agent.client import usage_of
    from .agent.connections import Connection, Connections
    from .agent.token import read_token
    from .agent.watcher import NodeWatcher, this_node
    from .columns import (
        advice_columns,
        gpu_columns,
        job_columns,
        job_request,
        node_columns,
        process_columns,
        queue_columns,
    )
    from .columns.base import BARS_GO, Column, Row, Unit, Value
    from .output import notes, plain, table, values
    from .output.notes import View, is_color_wanted
    from .rules import choice, figures, flags, idle, queue_rows, rates, sums, thresholds, windows
    from .rules.advice import evidence
    from .rules.advice.advise import advise_all, advise_nodes
    from .rules.figures import percent
    from .rules.gpu_rows import GpuRow, ProcessRow, SlotRow, gpu_rows, process_rows, slot_rows
    from .rules.job_rows import JobRow, Sum, UsageRow, UserRow, elements_of, job_row, job_rows, nodes_of, user_rows
    from .rules.node_rows import NodeRow, SeverityOrder, names_of, rows_of
    from .rules.queue_rows import QueueState, WaitingRow
    from .sampler import NodeSampler
    from .snapshot import Advice, AdviceReport, GpuLoad, JobLoad, NodeLoad, ProcessLoad, Snapshot, Survey, UserLoad
    from .sources import frames, origin, queue_reader, srun
    from .sources.demo import Demo
    from .sources.origin import Advisor, Origin, SurveySource
    from .sources.prometheus import PROMETHEUS_INSTEAD, PrometheusRange, PrometheusSource, range_step_s
    from .sources.replay import Replay
    from .sources.srun_command import srun_environment
    from .sources.survey_reader import SurveyReader
    from .text import Letter

__getattr__, __all__ = exports(
    __name__,
    modules=[
        *("agent.callers", "agent.client", "agent.service", "agent.tls", "columns", "columns.advice_columns"),
        "metrics",
        "columns.gpu_columns",
        *("columns.job_columns", "columns.job_request", "columns.node_columns", "columns.process_columns", "options"),
        *("columns.queue_columns", "rules.queue_rows", "sources.queue_reader"),
        *("output.notes", "output.plain", "output.table", "output.values", "recording", "rules.advice.evidence"),
        *("rules.sums", "rules.windows"),
        *("rules.choice", "rules.figures", "rules.flags", "rules.idle", "rules.rates", "rules.thresholds", "snapshot"),
        *("sources.frames", "sources.origin", "sources.srun", "text"),
    ],
    names={
        "agent.client": ["usage_of"],
        "agent.connections": ["Connection", "Connections"],
        "agent.token": ["read_token"],
        "agent.watcher": ["NodeWatcher", "this_node"],
        "columns.base": ["BARS_GO", "Column", "Row", "Unit", "Value"],
        "output.notes": ["View", "is_color_wanted"],
        "rules.advice.advise": ["advise_all", "advise_nodes"],
        "rules.figures": ["percent"],
        "rules.gpu_rows": ["GpuRow", "ProcessRow", "SlotRow", "gpu_rows", "process_rows", "slot_rows"],
        "rules.job_rows": [
            *("JobRow", "Sum", "UsageRow", "UserRow", "elements_of", "job_row", "job_rows", "nodes_of", "user_rows"),
        ],
        "rules.node_rows": ["NodeRow", "SeverityOrder", "names_of", "rows_of"],
        "rules.queue_rows": ["QueueState", "WaitingRow"],
        "sampler": ["NodeSampler"],
        "snapshot": [
            *("Advice", "AdviceReport", "GpuLoad", "JobLoad", "NodeLoad", "ProcessLoad", "Snapshot", "Survey"),
            "UserLoad",
        ],
        "sources.demo": ["Demo"],
        "sources.origin": ["Advisor", "Origin", "SurveySource"],
        "sources.prometheus": ["PROMETHEUS_INSTEAD", "PrometheusRange", "PrometheusSource", "range_step_s"],
        "sources.replay": ["Replay"],
        "sources.srun_command": ["srun_environment"],
        "sources.survey_reader": ["SurveyReader"],
        "text": ["Letter"],
    },
)
