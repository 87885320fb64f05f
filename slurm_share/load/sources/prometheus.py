"""Read the agents' figures from a Prometheus server that scrapes them: one query for all nodes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import Struct

from ...core import text_files
from ...core.background import BackgroundCall
from ...core.errors import SlurmShareError, UsageError, shown
from ...core.process import Deadline
from ...core.settings import Settings
from ...core.text import counted
from .. import metrics
from ..agent.token import read_operators_token
from ..rules import visible
from ..snapshot import Snapshot, SourceName
from .base import Source, SourceAnswer, SourceRequest

if TYPE_CHECKING:
    import ssl

    import httpx

NAMED_NODES = 200
"""Most nodes that are named in the query; for more, all nodes are fetched, and unwanted ones dropped."""
STALE_S = 60.0
"""Age from which a note says that figures are old."""
LAST_SEEN = "7d"
_LAST_SEEN_NODES = 1000
ANSWER_MAX_BYTES = 512 * 1024 * 1024
"""Most bytes of an answer: far above all details of a thousand nodes."""
NOT_SCRAPED = "not in Prometheus"


class _Data(Struct, frozen=True):
    result: list[metrics.PrometheusSeries]


class _Body(Struct, frozen=True):
    """The envelope of Prometheus's HTTP API."""

    status: str
    data: _Data | None = None
    error: str = ""


class _Range(Struct, frozen=True):
    metric: metrics.MetricLabels = metrics.MetricLabels()
    values: list[tuple[float, str]] = []


class _RangeData(Struct, frozen=True):
    result: list[_Range]


class _RangeBody(Struct, frozen=True):
    """As `_Body`, of a query over time."""

    status: str
    data: _RangeData | None = None
    error: str = ""


_decoder = msgspec.json.Decoder(_Body)
_range_decoder = msgspec.json.Decoder(_RangeBody)
Body = TypeVar("Body", _Body, _RangeBody)
POINTS_MOST = 720
"""Most points of an answer over time, more than a plot has columns."""


class PrometheusRange(Struct, frozen=True):
    """One series over time."""

    labels: metrics.MetricLabels
    points: tuple[tuple[float, float | None], ...]
    """(Unix time, value), the oldest first; None: not a number."""


def range_step_s(begin: float, end: float) -> float:
    """Return the seconds between two points of a query over time."""
    return max(15.0, (end - begin) / POINTS_MOST)


class PrometheusSource(Source):
    """The Prometheus at the site's `prometheus_url`. Raises UsageError if none is configured or its token cannot be
    read."""

    name: SourceName = "prometheus"

    def __init__(self, settings: Settings) -> None:
        self._url = settings.prometheus_url.rstrip("/")
        if not self._url:
            raise UsageError(
                "no Prometheus is configured: set prometheus_url (such as http://metrics:9090) and let that server "
                "scrape the nodes' agents; or read the agents themselves, with --source agents (load_source in "
                "config.toml)"
            )
        if not self._url.startswith(("http://", "https://")):
            raise UsageError(f"prometheus_url = {shown(self._url)} is no address, such as http://metrics:9090")
        self._port = settings.agents_port
        self._scheme = "https" if settings.agents_ca else "http"
        self._verify: bool | ssl.SSLContext = self._url.startswith("https:")
        if self._verify and settings.prometheus_ca:
            from ..agent import tls

            self._verify = tls.server_context(settings.prometheus_ca, "prometheus_ca")
        self._headers = {"accept-encoding": "identity"}
        self._login: tuple[str, str] | None = None
        self._opened: httpx.Client | None = None
        self._begun: BackgroundCall[Sequence[metrics.PrometheusSeries]] | None = None
        if settings.prometheus_token_file:
            token = read_operators_token(settings.prometheus_token_file, "prometheus_token_file", 1)
            name, colon, password = token.partition(":")
            if colon:  # no bearer token contains one (RFC 6750), so it is USER:PASSWORD
                self._login = name, password
            else:
                self._headers["authorization"] = f"Bearer {token}"

    def get_ready(self, all_lines: bool, timeout_s: float) -> None:
        """Start the query for all nodes of the server, if all are wanted. It returns too much only if a small cluster,
        whose nodes could be named, shares its server with a large one."""
        self._client()  # loads the library, which takes a while
        if all_lines:
            self._begun = BackgroundCall(lambda: self._query(_ALL_LINES, timeout_s))

    def _client(self) -> httpx.Client:
        if self._opened is None:
            import httpx

            # No proxy from the caller's environment: it would see the token and all users' figures.
            self._opened = httpx.Client(
                headers=self._headers,
                auth=self._login,
                trust_env=False,
                verify=self._verify,
                follow_redirects=False,
            )
        return self._opened

    def read(self, asked: SourceRequest, timeout_s: float) -> SourceAnswer:
        """Return the server's newest snapshots. Raises SlurmShareError if it does not answer as a Prometheus does."""
        wanted, until = set(asked.nodes), Deadline.after(timeout_s)
        begun, self._begun = self._begun, None
        series = self._query(_query(asked), timeout_s) if begun is None else begun.answer()
        try:
            found = {node: one for node, one in metrics.snapshots(series).items() if node in wanted}
        except (ValueError, OverflowError) as error:  # not a number
            raise SlurmShareError(
                f"Prometheus at {self._url} has figures under our names that no agent wrote ({shown(str(error))})"
            ) from error
        now = series[0].value[0] if series else 0.0
        missing = [node for node in asked.nodes if node not in found]
        seen = self._last_seen(missing, until.left()) if 0 < len(missing) <= _LAST_SEEN_NODES else {}
        silent = {
            node: f"in Prometheus last {_ago(seen[node].value[0] - float(seen[node].value[1]))} ago"
            if node in seen
            else NOT_SCRAPED
            for node in missing
        }
        notes = self._notes(found, asked, silent, now)
        if asked.user:
            found = {node: visible.for_user_by_jobs(snapshot, asked.user) for node, snapshot in found.items()}
        return SourceAnswer(snapshots=found, silent=silent, notes=notes)

    def close(self) -> None:
        """Close the connection to the server."""
        if self._opened is not None:
            self._opened.close()

    def read_range(
        self, query: str, begin: float, end: float, timeout_s: float
    ) -> tuple[tuple[float, float | None], ...]:
        """Return the values of a query with one result over time: (Unix time, value), oldest first; at most
        POINTS_MOST. Empty: there are none. Raises the errors of `read`."""
        found = self.read_ranges(query, begin, end, timeout_s)
        return found[0].points if found else ()

    def read_ranges(self, query: str, begin: float, end: float, timeout_s: float) -> tuple[PrometheusRange, ...]:
        """As `read_range`, of a query with any number of results."""
        data = {
            "query": query,
            "start": f"{begin:.3f}",
            "end": f"{end:.3f}",
            "step": f"{range_step_s(begin, end):.3f}",
        }
        body = self._ask("query_range", data, timeout_s, _range_decoder)
        try:
            return tuple(
                PrometheusRange(
                    one.metric,
                    tuple((at, None if math.isnan(value := float(text)) else value) for at, text in one.values),
                )
                for one in (() if body.data is None else body.data.result)
            )
        except ValueError as error:
            raise SlurmShareError(f"Prometheus at {self._url} answers with no number ({shown(str(error))})") from error

    def _query(self, query: str, timeout_s: float) -> Sequence[metrics.PrometheusSeries]:
        body = self._ask("query", {"query": query}, timeout_s, _decoder)
        return () if body.data is None else body.data.result

    def _ask(
        self, path: str, data_sent: Mapping[str, str], timeout_s: float, decoder: msgspec.json.Decoder[Body]
    ) -> Body:
        """Return the body of an answer that has data. Raises UsageError and SlurmShareError with a way out."""
        import httpx

        until, data = Deadline.after(timeout_s), bytearray()
        try:
            with self._client().stream(
                "POST",
                f"{self._url}/api/v1/{path}",
                data={**data_sent, "timeout": f"{max(1, round(1000 * timeout_s))}ms"},
                timeout=timeout_s,
            ) as answer:
                for part in answer.iter_bytes():
                    data += part
                    if len(data) > ANSWER_MAX_BYTES:
                        raise SlurmShareError(
                            f"the answer of Prometheus at {self._url} is too long: over {ANSWER_MAX_BYTES >> 20} MiB; "
                            f"name some of the nodes with -n; or {PROMETHEUS_INSTEAD}"
                        )
                    if until.left() <= 0:  # httpx limits only the wait for each part
                        raise httpx.ReadTimeout("the whole answer took too long")
        except httpx.TimeoutException as error:
            raise SlurmShareError(
                f"Prometheus at {self._url} did not answer within {timeout_s:g} s; {PROMETHEUS_INSTEAD}"
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise UsageError(
                    f"the certificate of Prometheus at {self._url} is not accepted ({shown(str(error))}): set "
                    "prometheus_ca to the file of its CA, and name the server in prometheus_url as its certificate does"
                ) from error
            raise SlurmShareError(
                f"Prometheus at {self._url} does not answer ({shown(str(error))}): is it running? {PROMETHEUS_INSTEAD}"
            ) from error
        if answer.status_code in (401, 403):
            raise UsageError(
                f"Prometheus at {self._url} requires authentication (HTTP {answer.status_code}): set "
                "prometheus_token_file to a file with its token, or with USER:PASSWORD"
            )
        try:
            body = decoder.decode(data)
        except text_files.NOT_JSON as error:
            raise SlurmShareError(
                f"what answers at {self._url} is no Prometheus (HTTP {answer.status_code}); check prometheus_url"
            ) from error
        if body.data is None:
            raise SlurmShareError(f"Prometheus at {self._url} does not answer the query: {shown(body.error, 300)}")
        return body

    def _last_seen(self, nodes: Sequence[str], timeout_s: float) -> Mapping[str, metrics.PrometheusSeries]:
        """Return when each of these nodes was last sampled, within the last week."""
        if timeout_s <= 0:
            return {}
        name = f"{metrics.PREFIX}node_sample_timestamp_seconds"
        try:
            series = self._query(f"max by (node) (last_over_time({name}{{{_node_is(nodes)}}}[{LAST_SEEN}]))", timeout_s)
        except SlurmShareError:
            return {}  # optional: the snapshots have been read
        return {one.metric.node: one for one in series}

    def _notes(
        self, found: Mapping[str, Snapshot], asked: SourceRequest, silent: Mapping[str, str], now: float
    ) -> tuple[str, ...]:
        notes = []
        ages = {node: now - snapshot.taken for node, snapshot in found.items()}
        old = [node for node, age in ages.items() if age > STALE_S]
        if old:
            worst = max(old, key=lambda node: ages[node])
            notes.append(
                f"in Prometheus the figures of {counted(len(old), 'node')} are over {STALE_S:g} s old, the oldest of "
                f"{worst}: {_ago(ages[worst])}"
            )
        if asked.nodes and not found and all(why == NOT_SCRAPED for why in silent.values()):
            notes.append(
                f"Prometheus at {self._url} has none of these nodes: let it scrape "
                f"{self._scheme}://NODE:{self._port}/metrics with the agents' token (packaging/docs/agent.md)"
            )
        return tuple(notes)


PROMETHEUS_INSTEAD = "--source agents (load_source in config.toml) reads the nodes themselves"
_DETAILS = f"{metrics.PREFIX}(node|gpu|job|user)_.+"
_LINE = "|".join(metrics.NODE_LINE)
_ALL_LINES = f'{{__name__=~"{_LINE}"}}'


def _query(asked: SourceRequest) -> str:
    names = _DETAILS if asked.details or asked.user else _LINE
    nodes = f",{_node_is(asked.nodes)}" if len(asked.nodes) <= NAMED_NODES else ""
    return f"{{__name__=~{_quoted(names)}{nodes}}}"


def _node_is(nodes: Sequence[str]) -> str:
    return f"node=~{_quoted('|'.join(map(re.escape, nodes)))}"


def _quoted(text: str) -> str:
    """Return a string literal of PromQL, whose escapes are Go's: those of JSON except for surrogate pairs."""
    return json.dumps(text, ensure_ascii=False)


def _ago(seconds: float) -> str:
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(0.0, seconds):.0f} s"
