"""The source that asks Prometheus: one query, and a sentence for whatever else it answers."""

from __future__ import annotations

import base64
import json
import ssl
import time
import urllib.parse

import agents
import msgspec
import pytest
from certificates import Authority
from prometheus_client.parser import text_string_to_metric_families

from slurm_share.core.errors import SlurmShareError, UsageError
from slurm_share.core.settings import Settings
from slurm_share.load import metrics
from slurm_share.load.snapshot import Snapshot
from slurm_share.load.sources import prometheus
from slurm_share.load.sources.base import SourceRequest
from slurm_share.load.sources.prometheus import PrometheusSource

NOW = 1795271308.0
NODE = msgspec.structs.replace(
    agents.NODE,
    taken=NOW - 7.5,
    gpus=(*agents.NODE.gpus, msgspec.structs.replace(agents.NODE.gpus[0], uuid="GPU-2", index=2, clients=0)),
)
"""Alice and Bob on a GPU each, and a free GPU."""


def series(snapshot: Snapshot) -> list[dict[str, object]]:
    """Return the answer of an instant query for this snapshot."""
    page = metrics.render(snapshot).decode()
    return [
        {
            "metric": {"__name__": one.name, "instance": "n1:594", "job": "x", **one.labels},
            "value": [NOW, repr(one.value)],
        }
        for family in text_string_to_metric_families(page)
        for one in family.samples
    ]


class Server(agents.QuietServer):
    """An HTTP server that answers with its rows and keeps the queries."""

    rows: list[dict[str, object]]
    seen: list[dict[str, object]]
    status = 200
    body: bytes | None = None
    pause_s = 0.0


class Handler(agents.QuietHandler):
    """The HTTP API, as far as we use it."""

    server: Server

    def do_POST(self) -> None:
        form = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.server.asked.append((self.path, form["query"][0], self.headers["Authorization"]))
        rows = self.server.seen if "last_over_time" in form["query"][0] else self.server.rows
        time.sleep(self.server.pause_s)
        body = self.server.body
        if body is None:
            body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": rows}}).encode()
        self.answer(self.server.status, body)


@pytest.fixture
def server():
    made = Server(("127.0.0.1", 0), Handler)
    made.rows, made.seen, made.asked = series(NODE), [], []
    with made.serving():
        yield made


@pytest.fixture
def source(server):
    made = PrometheusSource(Settings(prometheus_url=f"http://127.0.0.1:{server.server_port}/"))
    yield made
    made.close()


def test_one_query_answers_all_nodes(server, source):
    answer = source.read(SourceRequest(nodes=("n1",)), 5.0)
    seen = answer.snapshots["n1"]
    assert (seen.taken, seen.source, [job.user for job in seen.jobs]) == (NOW - 7.5, "prometheus", ["alice", "bob"])
    assert (dict(answer.silent), answer.notes) == ({}, ())
    assert len(server.asked) == 1
    assert server.asked[0][:2] == ("/api/v1/query", r'{__name__=~"slurm_share_(node|gpu|job|user)_.+",node=~"n1"}')


def test_all_lines_are_asked_for_before_the_nodes_are_known(server, source):
    source.get_ready(True, 5.0)
    assert sorted(source.read(SourceRequest(nodes=("n1",), details=False), 5.0).snapshots) == ["n1"]
    source.read(SourceRequest(nodes=("n1",), details=False), 5.0)
    ahead, named = (query for _, query, _ in server.asked)
    assert (ahead, named) == (named.replace(',node=~"n1"', ""), named)
    server.status, server.body = 200, b"hello"
    source.get_ready(True, 5.0)
    with pytest.raises(SlurmShareError, match="is no Prometheus"):
        source.read(SourceRequest(nodes=("n1",), details=False), 5.0)


def test_nothing_is_asked_ahead_where_it_may_be_too_much(server, source):
    source.get_ready(False, 5.0)
    source.close()
    assert server.asked == []


def test_a_line_per_node_asks_for_few_metrics(server, source):
    many = tuple(f"gpu-{number:05d}" for number in range(10_000))
    source.read(SourceRequest(nodes=many, details=False), 5.0)
    source.read(SourceRequest(nodes=("gpu-1", "n.2"), details=False), 5.0)
    everywhere, named = (
        json.loads(query.partition("=~")[2].partition(",")[0].rstrip("}")) for _, query, _ in server.asked[:2]
    )
    assert everywhere.split("|") == named.split("|") == list(metrics.NODE_LINE)
    assert "gpu-00001" not in server.asked[0][1]
    assert r'node=~"gpu\\-1|n\\.2"' in server.asked[1][1]


def test_nodes_that_it_has_nothing_of_are_silent(server, source):
    server.seen = [{"metric": {"node": "n2"}, "value": [NOW, str(NOW - 3 * 3600)]}]
    answer = source.read(SourceRequest(nodes=("n1", "n2", "n3")), 5.0)
    assert dict(answer.silent) == {"n2": "in Prometheus last 3 h ago", "n3": "not in Prometheus"}
    assert sorted(answer.snapshots) == ["n1"]


def test_others_nodes_are_not_answered(server, source):
    assert dict(source.read(SourceRequest(nodes=("n2",)), 5.0).snapshots) == {}


def test_old_figures_are_said_to_be_old(server, source):
    server.rows = series(msgspec.structs.replace(NODE, taken=NOW - 240))
    assert source.read(SourceRequest(nodes=("n1",)), 5.0).notes == (
        "in Prometheus the figures of 1 node are over 60 s old, the oldest of n1: 4 min",
    )


def test_a_server_without_our_metrics_is_told_what_to_scrape(server, source):
    server.rows = []
    answer = source.read(SourceRequest(nodes=("n1", "n2")), 5.0)
    assert set(answer.silent.values()) == {"not in Prometheus"}
    assert "let it scrape http://NODE:594/metrics with the agents' token" in answer.notes[0]


def test_one_users_part_is_told_by_the_jobs(server, source):
    seen = source.read(SourceRequest(nodes=("n1",), user="alice", details=False), 5.0).snapshots["n1"]
    assert (seen.view, [gpu.uuid for gpu in seen.gpus], seen.hidden_gpus) == ("alice", ["GPU-0", "GPU-2"], 1)
    assert [one.user for one in (*seen.jobs, *seen.users)] == ["alice", "alice"]
    assert "bob" not in str(seen)


@pytest.mark.parametrize(
    ("status", "body", "kind", "why"),
    [
        (401, b"Unauthorized", UsageError, "requires authentication .HTTP 401.: set prometheus_token_file to"),
        (403, b"", UsageError, "requires authentication"),
        (200, b"<html>Grafana</html>", SlurmShareError, "is no Prometheus .HTTP 200.; check prometheus_url"),
        (
            200,
            b'{"status":"success","data":{"result":[{"metric":{},"value":"x"}]}}',
            SlurmShareError,
            "is no Prometheus",
        ),
        (404, b"", SlurmShareError, "is no Prometheus"),
        (
            422,
            b'{"status":"error","error":"too many\\u001b[31m samples"}',
            SlurmShareError,
            r"too many\\x1b\[31m samples",
        ),
        (503, b'{"status":"error","error":"starting up"}', SlurmShareError, "does not answer the query: starting up"),
    ],
)
def test_whatever_else_it_answers_is_a_sentence(server, source, status, body, kind, why):
    server.status, server.body = status, body
    with pytest.raises(kind, match=why):
        source.read(SourceRequest(nodes=("n1",)), 5.0)


@pytest.mark.parametrize("value", ["abc", "NaN", "+Inf"])
def test_figures_that_are_none_are_a_sentence(server, source, value):
    server.rows = series(NODE)
    for row in server.rows:
        if row["metric"]["__name__"] == "slurm_share_node_problems":
            row["value"][1] = value
    with pytest.raises(SlurmShareError, match="has figures under our names that no agent wrote"):
        source.read(SourceRequest(nodes=("n1",)), 5.0)


def test_a_server_that_is_down_or_hangs_is_a_sentence(server, source):
    server.pause_s = 0.5
    with pytest.raises(
        SlurmShareError,
        match=r"did not answer within 0\.1 s; --source agents \(load_source in config\.toml\) reads the nodes",
    ):
        source.read(SourceRequest(nodes=("n1",)), 0.1)
    down = PrometheusSource(Settings(prometheus_url="http://127.0.0.1:1"))
    with pytest.raises(SlurmShareError, match=r"http://127.0.0.1:1 does not answer \(.*refused\): is it running"):
        down.read(SourceRequest(nodes=("n1",)), 5.0)
    down.close()


@pytest.mark.parametrize(
    ("url", "why"), [("", "no Prometheus is configured: set prometheus_url"), ("ftp://x", "is no address")]
)
def test_without_a_server_the_sentence_says_what_to_configure(url, why):
    with pytest.raises(UsageError, match=why):
        PrometheusSource(Settings(prometheus_url=url))


@pytest.mark.parametrize(
    ("token", "shown"),
    [("abcdef", "Bearer abcdef"), ("operator:word", "Basic " + base64.b64encode(b"operator:word").decode())],
)
def test_the_token_is_shown_as_the_server_wants_it(server, tmp_path, monkeypatch, token, shown):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    (tmp_path / "token").touch(0o600)
    (tmp_path / "token").write_text(token)
    url = f"http://127.0.0.1:{server.server_port}"
    made = PrometheusSource(Settings(prometheus_url=url, prometheus_token_file=str(tmp_path / "token")))
    made.read(SourceRequest(nodes=("n1",)), 5.0)
    made.close()
    assert server.asked[0][2] == shown


def test_an_answer_without_end_is_not_read_to_its_end(server, source, monkeypatch):
    monkeypatch.setattr(prometheus, "ANSWER_MAX_BYTES", 100_000)
    server.body = b"x" * 10_000_000
    with pytest.raises(SlurmShareError, match="is too long"):
        source.read(SourceRequest(nodes=("n1",)), 5.0)


def test_a_server_with_a_certificate_of_the_sites_ca_is_asked_by_tls(server, tmp_path):
    """With that CA; with another, or for another name, it gets neither question nor password."""
    site, other = Authority(tmp_path / "site"), Authority(tmp_path / "other")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*site.issue("localhost"))
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)

    def read(host, ca):
        url = f"https://{host}:{server.server_port}"
        source = PrometheusSource(Settings(prometheus_url=url, prometheus_ca=str(ca)))
        try:
            return source.read(SourceRequest(nodes=("n1",)), 60.0)
        finally:
            source.close()

    assert read("localhost", site.ca).snapshots["n1"].users
    server.asked.clear()
    for host, ca in (("localhost", other.ca), ("127.0.0.1", site.ca), ("localhost", "")):
        with pytest.raises(UsageError, match=r"is not accepted .*: set prometheus_ca to the file of its CA"):
            read(host, ca)
    assert server.asked == []
    with pytest.raises(UsageError, match=r"/gone.pem: cannot be read: .*prometheus_ca in config.toml"):
        read("localhost", "/gone.pem")


def test_values_over_time_are_read_with_few_points_and_nan_is_not_known(server, source):
    server.body = b'{"status":"success","data":{"result":[{"metric":{},"values":[[100,"1.5"],[115,"NaN"],[130,"2"]]}]}}'
    assert source.read_range("sum(a)", 100.0, 130.0, 5.0) == ((100.0, 1.5), (115.0, None), (130.0, 2.0))
    assert server.asked[0][:2] == ("/api/v1/query_range", "sum(a)")
    server.body = b'{"status":"success","data":{"result":[]}}'
    assert source.read_range("sum(a)", 100.0, 130.0, 5.0) == ()
    server.body = b'{"status":"success","data":{"result":[{"values":[[100,"x"]]}]}}'
    with pytest.raises(SlurmShareError, match="no number"):
        source.read_range("sum(a)", 100.0, 130.0, 5.0)
