"""What a Prometheus server has of the agents that it scrapes: one query for all nodes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from ...core.background import BackgroundCall
from ...core.errors import SlurmShareError, UsageError, shown
from ...core.process import Deadline
from ...core.settings import Settings
from .. import metrics
from ..rules import visible
from ..snapshot import Snapshot, SourceName
from . import tokens
from .base import Answer, Asked

if TYPE_CHECKING:
    import httpx

NAMED_NODES = 200
"""Up to so many nodes are named in the query; with more, all are fetched, and those that were not asked for dropped."""
STALE_S = 60.0
"""Figures older than that are said to be old."""
LAST_SEEN = "7d"
_LAST_SEEN_NODES = 1000
ANSWER_MAX_BYTES = 512 * 1024 * 1024
"""Most bytes of an answer: far above all details of a thousand nodes."""
NOT_SCRAPED = "not in Prometheus"


class _Data(Struct, frozen=True):
    result: list[metrics.Series]


class _Body(Struct, frozen=True):
    """The envelope of Prometheus's HTTP API."""

    status: str
    data: _Data | None = None
    error: str = ""


_decoder = msgspec.json.Decoder(_Body)


class PrometheusSource:
    """Ask Prometheus, at the site's `prometheus_url`. Raises UsageError where none is configured, or its token cannot
    be read."""

    name: SourceName = "prometheus"

    def __init__(self, settings: Settings) -> None:
        self._url = settings.prometheus_url.rstrip("/")
        if not self._url:
            raise UsageError(
                "no Prometheus is configured: set prometheus_url (such as http://metrics:9090) and let that server "
                "scrape the nodes' agents; or ask the agents themselves, with --source agents"
            )
        if not self._url.startswith(("http://", "https://")):
            raise UsageError(f"prometheus_url = {shown(self._url)} is no address, such as http://metrics:9090")
        self._port = settings.agents_port
        self._headers = {"accept-encoding": "identity"}
        self._login: tuple[str, str] | None = None
        self._opened: httpx.Client | None = None
        self._begun: BackgroundCall[Sequence[metrics.Series]] | None = None
        if settings.prometheus_token_file:
            token = tokens.read(settings.prometheus_token_file, "prometheus_token_file", 1)
            name, colon, password = token.partition(":")
            if colon:  # no bearer token has one (RFC 6750): USER:PASSWORD, which is what Prometheus itself can check
                self._login = name, password
            else:
                self._headers["authorization"] = f"Bearer {token}"

    def get_ready(self, all_lines: bool, timeout_s: float) -> None:
        """Start to ask for all nodes that the server has, if all are wanted.

        For a small cluster, whose nodes could be named, that is too much only if the server also has a large one's.
        """
        self._client()  # whose library takes a while to load as well
        if all_lines:
            self._begun = BackgroundCall(lambda: self._query(_ALL_LINES, timeout_s))

    def _client(self) -> httpx.Client:
        if self._opened is None:
            import httpx

            # No proxy of the caller's environment: it would see the token, and everybody's figures.
            self._opened = httpx.Client(
                headers=self._headers,
                auth=self._login,
                trust_env=False,
                verify=self._url.startswith("https:"),
                follow_redirects=False,
            )
        return self._opened

    def read(self, asked: Asked, timeout_s: float) -> Answer:
        """Return what the server has now. Raises SlurmShareError if it does not answer, or not as Prometheus does."""
        wanted, until = set(asked.nodes), Deadline.after(timeout_s)
        begun, self._begun = self._begun, None
        series = self._query(_query(asked), timeout_s) if begun is None else begun.answer()
        try:
            found = {node: one for node, one in metrics.snapshots(series).items() if node in wanted}
        except (ValueError, OverflowError) as error:  # a number that is none
            raise SlurmShareError(
                f"Prometheus at {self._url} has figures under our names that no agent wrote ({shown(str(error))})"
            ) from error
        now = series[0].value[0] if series else 0.0
        missing = [node for node in asked.nodes if node not in found]
        seen = self._last_seen(missing, until.left()) if 0 < len(missing) <= _LAST_SEEN_NODES else {}
        silent = {
            node: f"in Prometheus last {_ago(seen[node].value[0] - _number(seen[node]))} ago"
            if node in seen
            else NOT_SCRAPED
            for node in missing
        }
        notes = self._notes(found, asked, silent, now)
        if asked.user:
            found = {node: visible.for_user_by_jobs(snapshot, asked.user) for node, snapshot in found.items()}
        return Answer(snapshots=found, silent=silent, notes=notes)

    def ask_again(self) -> None:
        """Do nothing: every survey asks the server."""

    def close(self) -> None:
        """Close the connection."""
        if self._opened is not None:
            self._opened.close()

    def _query(self, query: str, timeout_s: float) -> Sequence[metrics.Series]:
        import httpx

        until, data = Deadline.after(timeout_s), bytearray()
        try:
            with self._client().stream(
                "POST",
                f"{self._url}/api/v1/query",
                data={"query": query, "timeout": f"{max(1, round(1000 * timeout_s))}ms"},
                timeout=timeout_s,
            ) as answer:
                for part in answer.iter_bytes():
                    data += part
                    if len(data) > ANSWER_MAX_BYTES:
                        raise SlurmShareError(
                            f"what Prometheus at {self._url} answers has no end: over {ANSWER_MAX_BYTES >> 20} MiB; "
                            f"name some of the nodes with -n; or {_INSTEAD}"
                        )
                    if until.left() <= 0:  # httpx has a limit for each part alone
                        raise httpx.ReadTimeout("the whole took too long")
        except httpx.TimeoutException as error:
            raise SlurmShareError(
                f"Prometheus at {self._url} did not answer within {timeout_s:g} s; {_INSTEAD}"
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise SlurmShareError(
                f"Prometheus at {self._url} does not answer ({shown(str(error))}): is it running? {_INSTEAD}"
            ) from error
        if answer.status_code in (401, 403):
            raise UsageError(
                f"Prometheus at {self._url} wants to know who asks (HTTP {answer.status_code}): prometheus_token_file "
                "is to name a file with its token, or with USER:PASSWORD"
            )
        try:
            body = _decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise SlurmShareError(
                f"what answers at {self._url} is no Prometheus (HTTP {answer.status_code}); see prometheus_url"
            ) from error
        if body.data is None:
            raise SlurmShareError(f"Prometheus at {self._url} does not answer the question: {shown(body.error, 300)}")
        return body.data.result

    def _last_seen(self, nodes: Sequence[str], timeout_s: float) -> Mapping[str, metrics.Series]:
        """Return when each of these nodes was last sampled, within the last week."""
        if timeout_s <= 0:
            return {}
        name = f"{metrics.PREFIX}node_sample_timestamp_seconds"
        try:
            series = self._query(f"max by (node) (last_over_time({name}{{{_node_is(nodes)}}}[{LAST_SEEN}]))", timeout_s)
        except SlurmShareError:
            return {}  # an ornament: what is there has been answered
        return {one.metric.node: one for one in series}

    def _notes(
        self, found: Mapping[str, Snapshot], asked: Asked, silent: Mapping[str, str], now: float
    ) -> tuple[str, ...]:
        notes = []
        ages = {node: now - snapshot.taken for node, snapshot in found.items()}
        old = [node for node, age in ages.items() if age > STALE_S]
        if old:
            worst = max(old, key=lambda node: ages[node])
            notes.append(
                f"in Prometheus the figures of {len(old)} node{'s' if len(old) > 1 else ''} are over {STALE_S:g} s "
                f"old, the oldest {worst}'s: {_ago(ages[worst])}"
            )
        if asked.nodes and not found and all(why == NOT_SCRAPED for why in silent.values()):
            notes.append(
                f"Prometheus at {self._url} has none of these nodes: it is to scrape "
                f"http://NODE:{self._port}/metrics with the agents' token (packaging/docs/agent.md)"
            )
        return tuple(notes)


_INSTEAD = "--source agents asks the nodes themselves"
_DETAILS = f"{metrics.PREFIX}(node|gpu|job|user)_.+"
_LINE = "|".join(metrics.NODE_LINE)
_ALL_LINES = f'{{__name__=~"{_LINE}"}}'


def _query(asked: Asked) -> str:
    names = _DETAILS if asked.details or asked.user else _LINE
    nodes = f",{_node_is(asked.nodes)}" if len(asked.nodes) <= NAMED_NODES else ""
    return f"{{__name__=~{_quoted(names)}{nodes}}}"


def _node_is(nodes: Sequence[str]) -> str:
    return f"node=~{_quoted('|'.join(map(re.escape, nodes)))}"


def _quoted(text: str) -> str:
    """Return a string literal of PromQL, which has Go's escapes: JSON's, except for pairs of surrogates."""
    return json.dumps(text, ensure_ascii=False)


def _number(series: metrics.Series) -> float:
    return float(series.value[1])


def _ago(seconds: float) -> str:
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(0.0, seconds):.0f} s"
