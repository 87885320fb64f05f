"""The agent's HTTP by TLS: with real sockets, certificates of a CA of the test, and the agents' own callers."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
from pathlib import Path

import httpx
import pytest
from agents import NODE, TOKEN, running, until
from certificates import Authority, openssl

from slurm_share.core.errors import StateError, UsageError
from slurm_share.core.settings import Settings
from slurm_share.load.agent import http_server, tls, usage_answers, use_keeper
from slurm_share.load.agent.callers import Caller
from slurm_share.load.agent.client import Question, UsageReply
from slurm_share.load.agent.http_client import NO_TLS, WANTS_CERTIFICATE, WANTS_TLS
from slurm_share.load.rules.job_use import JobRecord
from slurm_share.load.sources.agents import AgentsSource
from slurm_share.load.sources.base import SourceRequest
from slurm_share.slurm.records import SlurmNode
from slurm_share.usage import JobUse, UseSeries

SHOWN = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Authority:
    """The site's CA, with certificates of n1 and of an operator."""
    made = Authority(tmp_path_factory.mktemp("site"))
    made.issue("n1")
    made.issue("operator")
    return made


@pytest.fixture(scope="module")
def stranger(tmp_path_factory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("stranger"))
    made.issue("n1")
    return made


def files(authority: Authority, name: str = "n1") -> dict[str, str]:
    return {f"agent_tls_{end}": str(authority.folder / f"{name}.{ext}") for end, ext in _ENDS}


_ENDS = (("certificate", "pem"), ("key", "key"))


def caller(authority: Authority, *client: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.ca)
    if client:
        context.load_cert_chain(*client)
    return context


def get(agent, context: ssl.SSLContext, path: str = "/snapshot", headers=SHOWN) -> httpx.Response:
    """Ask as a client of n1 does: the certificate has to be n1's."""
    port = agent.http_server.port
    with httpx.Client(timeout=120, trust_env=False, verify=context) as client:
        return client.get(f"https://127.0.0.1:{port}{path}", headers=headers, extensions={"sni_hostname": "n1"})


def read(agent, tmp_path: Path, **settings: object):
    """Ask as `llload --source agents` does."""
    source = AgentsSource(
        Settings(agent_token_file=str(tmp_path / "token"), agents_port=agent.http_server.port, **settings)
    )
    return source.read(SourceRequest(nodes=("n1",), addresses={"n1": "127.0.0.1"}), 60.0)


def serving(tmp_path, authority, **settings):
    return running(tmp_path, **files(authority), **settings)


def first_sample(agent, context) -> None:
    until(lambda: get(agent, context).status_code == 200)


def test_snapshot_and_metrics_travel_by_tls(site, tmp_path):
    with serving(tmp_path, site) as agent:
        first_sample(agent, caller(site))
        assert "slurm_share_job_gpu_memory_bytes" in get(agent, caller(site), "/metrics").text
        assert get(agent, caller(site), headers={}).status_code == 401
        answer = read(agent, tmp_path, agents_ca=str(site.ca))
    assert (dict(answer.silent), answer.notes) == ({}, [])
    assert answer.snapshots["n1"].processes == NODE.processes


def test_a_large_answer_is_whole(site, tmp_path, monkeypatch):
    page = b"x" * (3 * tls.SEND_BYTES + 7)

    async def answer(_self, _target):
        return 200, page, "text/plain"

    monkeypatch.setattr(http_server.HttpServer, "_page", answer)
    with serving(tmp_path, site) as agent:
        assert get(agent, caller(site)).content == page


def test_a_caller_in_clear_text_gets_nothing_and_hears_what_to_use(site, tmp_path, capfd):
    with serving(tmp_path, site) as agent:
        first_sample(agent, caller(site))
        answer = httpx.get(f"http://127.0.0.1:{agent.http_server.port}/metrics", headers=SHOWN, trust_env=False)
        assert (answer.status_code, answer.text) == (400, "this port takes TLS only: https://\n")
        said = read(agent, tmp_path)
    assert dict(said.silent) == {"n1": WANTS_TLS}
    assert said.notes == ["some agents take TLS only; set agents_ca here, to the CA of their certificates"]
    assert "no TLS with 127.0.0.1: it speaks HTTP in clear text; 1 requests were rejected" in capfd.readouterr().err


def test_a_caller_that_wants_tls_sends_no_token_without_it(site, tmp_path, monkeypatch):
    """Neither to an agent in clear text, nor to one whose certificate it does not know, nor to another node's."""
    heard = []
    is_in = http_server.Token.is_in
    monkeypatch.setattr(http_server.Token, "is_in", lambda self, given: heard.append(given) or is_in(self, given))
    with running(tmp_path) as agent:
        said = read(agent, tmp_path, agents_ca=str(site.ca))
    assert dict(said.silent) == {"n1": NO_TLS}
    assert "set agent_tls_certificate on their nodes" in said.notes[0]
    assert not any(TOKEN.encode() in given for given in heard)


def test_a_certificate_of_another_ca_or_node_or_of_yesterday_is_refused(site, stranger, tmp_path, monkeypatch):
    heard = []
    monkeypatch.setattr(http_server.Token, "is_in", lambda _self, given: heard.append(given))
    site.issue("n2")
    site.issue("n1", "expired", "-1")
    rows = (
        (stranger, "n1", "signature failure|self-signed|self signed|unable to get"),
        (site, "n2", "Hostname mismatch"),
        (site, "expired", "certificate has expired"),
    )
    for authority, name, why in rows:
        with running(tmp_path, **files(authority, name)) as agent:
            (text,) = dict(read(agent, tmp_path, agents_ca=str(site.ca)).silent).values()
        assert text.startswith("certificate refused: ")
        assert any(word in text for word in why.split("|")), text
    assert heard == []


def test_callers_need_a_certificate_of_the_client_ca_and_the_token(site, stranger, tmp_path):
    operator = [str(site.folder / f"operator.{end}") for end in ("pem", "key")]
    theirs = [str(stranger.folder / f"n1.{end}") for end in ("pem", "key")]
    with serving(tmp_path, site, agent_tls_client_ca=str(site.ca)) as agent:
        first_sample(agent, caller(site, *operator))
        assert get(agent, caller(site, *operator), headers={}).status_code == 401
        for client in ([], theirs):
            with pytest.raises((httpx.HTTPError, OSError)):
                get(agent, caller(site, *client))
        known = {"agents_ca": str(site.ca)}
        assert read(agent, tmp_path, **known, agents_certificate=operator[0], agents_key=operator[1]).snapshots
        said = read(agent, tmp_path, **known)
        refused = read(agent, tmp_path, **known, agents_certificate=theirs[0], agents_key=theirs[1])
    assert dict(said.silent) == {"n1": WANTS_CERTIFICATE}
    assert "set agents_certificate and agents_key here" in said.notes[0]
    assert "CA" in refused.silent["n1"] or "certificate" in refused.silent["n1"]


def serial(agent, authority) -> str:
    with (
        socket.create_connection(("127.0.0.1", agent.http_server.port), timeout=120) as link,
        caller(authority).wrap_socket(link, server_hostname="n1") as secure,
    ):
        return str(secure.getpeercert()["serialNumber"])


def test_a_renewed_certificate_is_in_use_from_the_next_connection_on(site, tmp_path, capfd):
    folder = tmp_path / "tls"
    shutil.copytree(site.folder, folder)
    paths = {f"agent_tls_{end}": str(folder / f"n1.{ext}") for end, ext in _ENDS}
    with running(tmp_path, **paths) as agent:
        before = serial(agent, site)
        assert serial(agent, site) == before
        again, key = (Path(file) for file in site.issue("n1", "again"))
        again.replace(folder / "n1.pem")
        assert serial(agent, site) == before  # the key is still the old one
        assert "the earlier certificate stays in use" in capfd.readouterr().err
        key.replace(folder / "n1.key")
        assert serial(agent, site) != before
        assert "was renewed and is in use" in capfd.readouterr().err
        (folder / "n1.pem").unlink()
        serial(agent, site)
        assert "cannot be read: No such file" in capfd.readouterr().err


@pytest.fixture
def bad(site, stranger, tmp_path):
    """Files that are no certificate and key of n1, by what is wrong with them."""
    good, key = (site.folder / f"n1.{end}" for end in ("pem", "key"))
    garbage, empty = tmp_path / "garbage", tmp_path / "empty"
    garbage.write_text("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n")
    empty.touch(0o600)
    opened = tmp_path / "open.key"
    shutil.copy(key, opened)
    opened.chmod(0o644)
    locked = tmp_path / "locked.key"
    openssl("pkey", "-in", key, "-aes128", "-passout", "pass:secret", "-out", locked)
    locked.chmod(0o600)
    return {
        "missing": ("/nowhere.pem", key, "", "/nowhere.pem: cannot be read: No such file"),
        "no key": (good, "/nowhere.key", "", "/nowhere.key: cannot be read: No such file"),
        "folder": (tmp_path, key, "", "is not a file"),
        "empty": (empty, key, "", "has no certificate in PEM format"),
        "swapped": (key, good, "", "has no certificate in PEM format"),
        "garbage": (garbage, key, "", "cannot be used"),
        "other key": (good, stranger.folder / "n1.key", "", "is not the key of the certificate"),
        "open key": (good, opened, "", "is open to everybody on this host (mode 0644); chmod 0640"),
        "passphrase": (good, locked, "", "is encrypted with a passphrase"),
        "empty CA": (good, key, empty, "has no certificate in PEM format"),
        "garbage CA": (good, key, garbage, "has no certificate of a CA that can be used"),
    }


def test_with_bad_files_there_is_no_http_and_a_sentence_in_the_log(bad, tmp_path, capfd):
    for what, (certificate, key, ca, why) in bad.items():
        settings = {"agent_tls_certificate": certificate, "agent_tls_key": key, "agent_tls_client_ca": ca}
        with running(tmp_path, **{name: str(value) for name, value in settings.items()}) as agent:
            assert agent.http_server is None, what
        said = capfd.readouterr().err
        assert "no HTTP on 127.0.0.1:0: " in said, what
        assert why in said, (what, said)
        assert "correct that and restart the agent" in said


def test_a_caller_with_bad_files_gets_a_sentence_with_the_settings(bad, site, tmp_path):
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    for certificate, key, ca, why in bad.values():
        given = {"agents_ca": str(ca or site.ca), "agents_certificate": str(certificate), "agents_key": str(key)}
        with pytest.raises(UsageError) as raised:
            AgentsSource(Settings(agent_token_file=str(token), **given))
        assert why in str(raised.value)
        assert "agents_ca, agents_certificate and agents_key in config.toml" in str(raised.value)


@pytest.mark.parametrize(
    ("node", "days", "why"),
    [
        ("n1", "9", None),
        ("", "9", None),
        ("n9", "9", "is not for n9; its subjectAltName must have DNS:n9"),
        ("n1", "-1", "has expired; renew it"),
    ],
)
def test_what_callers_would_say_of_a_certificate_is_known_beforehand(site, node, days, why):
    certificate, key = site.issue("n1", "examined", days)
    assert tls.problem_of(certificate, key, node) == why
    with pytest.raises(StateError, match="has no certificate in PEM format"):
        tls.problem_of(certificate, key, node, key)


def test_an_expired_certificate_is_named_in_the_log(site, tmp_path, capfd):
    site.issue("n1", "expired", "-1")
    with running(tmp_path, **files(site, "expired")):
        pass
    said = capfd.readouterr().err
    assert "callers refuse this node's certificate: " in said
    assert "has expired; renew it" in said


def test_callers_who_never_finish_the_handshake_make_room_for_others(site, tmp_path, monkeypatch):
    monkeypatch.setattr(http_server, "MOST_EACH", 3)
    monkeypatch.setattr(http_server, "REQUEST_S", 600.0)
    with serving(tmp_path, site) as agent:
        idle = [socket.create_connection(("127.0.0.1", agent.http_server.port), timeout=120) for _ in range(4)]
        assert idle[0].recv(1) == b""  # the oldest
        first_sample(agent, caller(site))
        for link in idle:
            link.close()


def test_the_key_is_not_the_callers_to_read(site, tmp_path, monkeypatch):
    real = os.open

    def refuse(path, *args, **kwargs):
        if str(path).endswith("operator.key"):
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    names = {"agents_ca": site.ca, **{f"agents_{end}": site.folder / f"operator.{ext}" for end, ext in _ENDS}}
    with pytest.raises(UsageError, match=r"operator.key: cannot be read: Permission denied"):
        tls.caller_context(Settings(**{name: str(file) for name, file in names.items()}))


def test_an_agent_asks_another_about_a_job_by_tls_only(site, stranger, tmp_path, monkeypatch):
    """Also on a port on which users may listen: a server without the site's certificate gets no token."""
    use = JobUse(job=7, uid=2001, node="n1")
    record = JobRecord(use, UseSeries(job=7, uid=2001, node="n1", every_s=5.0))
    monkeypatch.setattr(use_keeper.UseKeeper, "records", lambda _self, _job: [record])
    facts = {"cpus": 1, "cpus_allocated": 0, "memory_mib": 1, "memory_allocated_mib": 0, "gpus": 0, "gpus_allocated": 0}
    known = (SlurmNode(name="n1", address="127.0.0.1", states=("IDLE",), **facts),)
    monkeypatch.setattr(usage_answers, "read_nodes", lambda timeout_s: known)

    async def ask(port: int, authority: Authority, uid: int) -> UsageReply:
        settings = Settings(
            agents_port=port, agent_token_file=str(tmp_path / "token"), agents_ca=str(authority.ca), usage_folder=""
        )
        answers = usage_answers.UsageAnswers(lambda _job: [], lambda: "login", settings)
        try:
            return await answers.of_caller(Caller(uid, "alice", False), Question(usage=7, nodes=("n1",)))
        finally:
            answers.close()

    with serving(tmp_path, site) as agent:
        first_sample(agent, caller(site))
        port = agent.http_server.port
        assert asyncio.run(ask(port, site, 2001)).usage == (use,)
        assert asyncio.run(ask(port, site, 2002)).usage == ()
        (problem,) = asyncio.run(ask(port, stranger, 2001)).problems
        assert problem.startswith("n1: certificate refused")
