"""The server of `llload-tui --serve`, attacked by somebody on the same host, and the ends of its processes."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
from browser_server import PATIENCE_S, BrowserServer, descendants, is_running, wait_for
from slurm_share_tui.browser import child, server, session
from slurm_share_tui.browser.session import environment

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can be a second user")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    one = BrowserServer(tmp_path_factory.mktemp("served"))
    yield one
    one.close()


@pytest.fixture(scope="module")
def login(served):
    """A cookie, and the path of the pages."""
    return served.log_in()


def start(tmp_path, *words, **environ):
    """Start a server that must say why it does not serve; return its exit code and that."""
    one = BrowserServer(tmp_path, *words, **environ)
    try:
        return one.child.wait(PATIENCE_S), one.errors
    finally:
        one.close()


async def opened(client, one, cookie, pages, **headers):
    """Open a websocket as a browser does, and wait for the first of the screen."""
    origin = f"http://127.0.0.1:{one.port}"
    sent = {"Origin": origin, "Cookie": cookie, **headers}
    ws = await client.ws_connect(f"{origin}{pages}ws?width=100&height=30", headers=sent)
    async with asyncio.timeout(PATIENCE_S):
        while b"nodes answered" not in (await ws.receive_bytes()):
            pass
    return ws


async def closed(ws):
    """Wait for the end of a websocket; return code and reason."""
    async with asyncio.timeout(PATIENCE_S):
        while (message := await ws.receive()).type == aiohttp.WSMsgType.BINARY:
            pass
    return ws.close_code, message.extra


def test_without_a_login_there_is_nothing(served, login):
    cookie, pages = login
    name = cookie.partition("=")[0]
    bodies = set()
    for path in ("/", "/x", pages, f"{pages}js/textual.js", f"{pages}page.css", f"{pages}ws", "/login", "/download/x"):
        for headers in ({}, {"Cookie": f"{name}=x"}, {"Cookie": f"{name}="}, {"Authorization": "Bearer x"}):
            status, got, body = served.ask(path, **headers)
            assert (path, status) == (path, 401)
            assert "Set-Cookie" not in got
            bodies.add(body)
    (body,) = bodies
    assert not any(word in body for word in ("alice", "demo", "aiohttp", "Python", os.uname().nodename))
    for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "PROPFIND"):
        assert served.ask(pages, method)[0] == 401
        assert served.ask("/?token=x", method)[0] == 401


def test_a_link_works_once_and_leaves_no_secret_in_the_address(served):
    link = served.link
    parts = urlsplit(link)
    assert served.ask(f"{parts.path}?token=wrong")[0] == 401
    assert served.ask(f"{parts.path}?{parts.query}", "POST")[0] == 401
    status, headers, _ = served.ask(f"{parts.path}?{parts.query}")
    assert status == 303
    assert "token" not in headers["Location"]
    value, *flags = headers["Set-Cookie"].split("; ")
    assert flags == [f"Path={headers['Location']}", "HttpOnly", "SameSite=Strict"]
    assert served.ask(f"{parts.path}?{parts.query}")[0] == 401
    assert served.link != link
    assert value.partition("=")[2] not in served.link
    status, headers, body = served.ask(headers["Location"], Cookie=value)
    assert status == 200
    assert 'src="js/textual.js"' in body
    for name, wanted in server.HEADERS.items():
        assert headers[name] == wanted


def test_another_page_gets_nothing_even_with_the_cookie(served, login):
    cookie, pages = login
    own = f"http://127.0.0.1:{served.port}"
    websocket = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec_WebSocket_Version": "13"}
    websocket |= {"Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==", "Cookie": cookie}
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": f"http://127.0.0.1:{served.port + 1}"},
        {"Origin": "null"},
        {},
        {"Origin": own, "Sec_Fetch_Site": "same-site"},
        {"Origin": "http://evil.example", "Host": "evil.example"},
    ):
        status, _, body = served.ask(f"{pages}ws", **websocket, **headers)
        assert (headers, status) == (headers, 403)
        assert "Refused" in body
    assert served.ask(pages, Cookie=cookie, Host="evil.example")[0] == 403
    assert served.children() == []


def test_no_path_leads_to_another_file(served, login):
    cookie, pages = login
    for path in (
        f"{pages}../../../../etc/passwd", f"{pages}%2e%2e/%2e%2e/etc/passwd", f"{pages}/etc/passwd", f"{pages}js",
        f"{pages}js/", f"{pages}..%5c..%5cetc", f"{pages}page.css/../index.html", f"{pages}%00", f"{pages}index.htm",
        "/../etc/passwd", "//etc/passwd",
    ):  # fmt: skip
        assert served.ask(path, Cookie=cookie)[0] in (401, 404), path
    assert served.ask(f"{pages}page.css?../../x", Cookie=cookie)[0] == 200
    assert served.ask(pages, "POST", Cookie=cookie)[0] == 405
    assert served.ask(f"{pages}ws", Cookie=cookie, Origin=f"http://127.0.0.1:{served.port}")[0] == 400


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: a\r\n" * 20_000 + b"\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 100,
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil\r\n\r\n",
        b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5000000\r\n\r\npassword=x",
        b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
        b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    ],
)
def test_a_request_that_no_browser_sends_is_refused(served, data):
    found = served.raw(data)
    assert found[9:12] in (b"400", b"401", b"403", b"413", b""), found[:200]
    assert b"Traceback" not in found
    assert served.ask("/")[0] == 401


def test_a_thousand_slow_connections_keep_nobody_out(served, login):
    cookie, pages = login
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    held = []
    try:
        for number in range(1000):
            one = socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE_S)
            held.append(one)
            if number % 2:
                one.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-")
            if number % 200 == 0:
                assert served.ask(pages, Cookie=cookie)[0] == 200
        held[-1].sendall(b"A: b\r\n\r\n")  # its answer comes when the server has accepted all before it
        assert held[-1].recv(4096).startswith(b"HTTP/1.1 401")
        files = Path(f"/proc/{served.child.pid}/fd")
        assert len(list(files.iterdir())) < server.CONNECTIONS_MOST + 30
        assert served.ask(pages, Cookie=cookie)[0] == 200
        fresh = served.log_in()
        assert served.ask(fresh[1], Cookie=fresh[0])[0] == 200
    finally:
        for one in held:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@as_root
def test_a_second_user_cannot_read_the_link(served):
    (file,) = (served.folder / "state/slurm-share/browser").iterdir()
    served.folder.chmod(0o755)
    script = f"import os; os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY}); open({str(file)!r})"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "PermissionError" in found.stderr


def test_a_dashboard_lives_as_long_as_its_websocket(served, login):
    """A new one takes the place of the oldest, and messages that no page of ours sends end it."""
    cookie, pages = login

    async def attack():
        async with aiohttp.ClientSession() as client:
            first = await opened(client, served, cookie, pages)
            (pid,) = served.children()
            below = descendants(pid)
            assert below  # its feed process
            limits = Path(f"/proc/{pid}/limits").read_text()
            assert re.search(r"Max file size +0 +0 ", limits)  # read-only
            await first.send_str(json.dumps(["resize", {"width": 10**9, "height": "x"}]))
            await first.send_str(json.dumps(["stdin", "?"]))
            async with asyncio.timeout(PATIENCE_S):
                while b"Moving" not in await first.receive_bytes():
                    pass
            await first.send_str("[" * 100_000)
            assert (await closed(first))[0] == session.ENDED
            wait_for(lambda: not any(map(is_running, [pid, *below])), "the dashboard's end")
            one = await opened(client, served, cookie, pages)
            await one.send_str(json.dumps(["stdin", "q"]))
            assert await closed(one) == (session.ENDED, "")
            first = await opened(client, served, cookie, pages)
            end = asyncio.create_task(closed(first))  # reads, and so answers pings, as browsers do
            more = [opened(client, served, cookie, pages) for _ in range(server.SESSIONS_MOST)]
            more = await asyncio.gather(*more)
            assert await end == (session.TAKEN, "4 dashboards are open, and this was the oldest")
            assert len(served.children()) == server.SESSIONS_MOST
            for one in more:  # as when a browser is killed
                one._response.connection.transport.abort()

    asyncio.run(attack())
    wait_for(lambda: served.children() == [], "the ends of all dashboards")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_of_a_server_that_is_killed(tmp_path, number):
    one = BrowserServer(tmp_path)
    try:
        cookie, pages = one.log_in()

        async def meet():
            async with aiohttp.ClientSession() as client:
                ws = await opened(client, one, cookie, pages)
                pids = descendants(one.child.pid)
                assert len(pids) == 2
                one.child.send_signal(number)
                code, _ = await closed(ws)
                assert code in (session.GOING, 1006)
                return pids

        pids = asyncio.run(meet())
        assert one.child.wait(PATIENCE_S) in (-signal.SIGKILL, 128 + signal.SIGTERM)
        wait_for(lambda: not any(map(is_running, pids)), "the ends of its processes")
        kept = list((tmp_path / "state/slurm-share/browser").iterdir())
        assert len(kept) == (number == signal.SIGKILL)
    finally:
        one.close()


def test_a_failing_dashboard_says_why(tmp_path):
    one = BrowserServer(tmp_path, shows=("--replay", str(tmp_path / "none.jsonl")))
    try:
        cookie, pages = one.log_in()

        async def meet():
            async with aiohttp.ClientSession() as client:
                origin = f"http://127.0.0.1:{one.port}"
                ws = await client.ws_connect(f"{origin}{pages}ws", headers={"Origin": origin, "Cookie": cookie})
                return await closed(ws)

        code, why = asyncio.run(meet())
        assert code == session.ENDED
        assert "none.jsonl" in why
    finally:
        one.close()


def test_what_cannot_be_served_is_refused_with_a_sentence(tmp_path, served):
    code, why = start(tmp_path, "--port", str(served.port))
    assert (code, "is in use, perhaps by another user" in why) == (2, True)
    code, why = start(tmp_path, "--address", "no.such.host.invalid", "--clear-text")
    assert (code, "is no address of this host" in why) == (2, True)
    folder = tmp_path / "state/slurm-share/browser"
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o777)
    code, why = start(tmp_path)
    assert (code, "others can enter the folder" in why) == (2, True)
    assert "Traceback" not in why


def test_with_a_certificate_it_speaks_https_only(tmp_path):
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    argv += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(argv, check=True, capture_output=True)
    key.chmod(0o600)
    one = BrowserServer(tmp_path, "--tls-certificate", str(certificate), "--tls-key", str(key))
    try:
        assert one.link.startswith("https://127.0.0.1:")
        parts = urlsplit(one.link)
        context = ssl.create_default_context(cafile=certificate)
        connection = http.client.HTTPSConnection("127.0.0.1", one.port, timeout=PATIENCE_S, context=context)
        connection.request("GET", f"{parts.path}?{parts.query}")
        answer = connection.getresponse()
        assert answer.status == 303
        assert answer.headers["Set-Cookie"].endswith("; Secure")
        connection.close()
        assert b"HTTP/1.1" not in one.raw(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        certificate.write_text("none")
        code, why = start(tmp_path, "--tls-certificate", str(certificate), "--tls-key", str(key))
        assert (code, str(certificate) in why) == (2, True)
    finally:
        one.close()


def test_a_unix_socket_is_the_users_own(tmp_path):
    place = Path(tempfile.mkdtemp())  # all users can reach it; pytest's folders are closed
    file = place / "s"
    for _ in range(2):  # the second one finds the socket of a killed server
        one = BrowserServer(tmp_path, "--socket", str(file))
        try:
            code, why = start(tmp_path, "--socket", str(file))
            assert (code, "is in use by another server" in why) == (2, True)
            with socket.socket(socket.AF_UNIX) as own:
                own.connect(str(file))
                own.sendall(b"GET / HTTP/1.1\r\nHost: localhost:8080\r\n\r\n")
                assert own.recv(4096).startswith(b"HTTP/1.1 401")
            if os.geteuid() == 0:
                assert _as_nobody(file) == "PermissionError"
                place.chmod(0o755)
                file.chmod(0o777)  # even so
                assert _as_nobody(file) in ("b''", "ConnectionResetError", "BrokenPipeError")
                place.chmod(0o700)
        finally:
            one.close()
    shutil.rmtree(place)


def _as_nobody(file):
    script = (
        f"import os, socket; os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        "try:\n"
        f"    one = socket.socket(socket.AF_UNIX); one.connect({str(file)!r})\n"
        "    one.sendall(b'GET / HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n'); print(one.recv(99))\n"
        "except OSError as error: print(type(error).__name__)"
    )
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize(("words", "readonly", "writes"), [([], True, False), (["--allow-actions"], False, True)])
def test_a_dashboard_in_a_browser_is_read_only_unless_asked(monkeypatch, words, readonly, writes):
    """Read-only: nothing is cancelled or signalled, and nothing is written on the server, not even what was chosen."""
    made = {}

    class Stop(Exception):
        pass

    def dashboard(_feed, **given):
        made.update(given)
        raise Stop

    monkeypatch.setattr("slurm_share_tui.app.Dashboard", dashboard)
    monkeypatch.setattr(child, "Feed", lambda _origin: type("Feed", (), {"start": int, "close": int})())
    monkeypatch.setattr(child, "read_keys", lambda: None)
    monkeypatch.setattr(child, "write_no_files", lambda: made.update(limited=True))
    with pytest.raises(Stop):
        child.main(["--serve", "--demo", *words])
    assert made["readonly"] is readonly
    assert (made["memory"].file is not None, "limited" not in made) == (writes, writes)


def test_the_environment_of_a_dashboard_is_that_of_a_browser():
    found = environment(
        {"TERM": "dumb", "NO_COLOR": "1", "TEXTUAL": "devtools", "SLURM_CONF": "/x", "LINES": "3"}, 90, 40
    )
    assert found["TERM"] == "xterm-256color"
    assert (found["COLUMNS"], found["ROWS"], found["SLURM_CONF"]) == ("90", "40", "/x")
    assert not {"NO_COLOR", "TEXTUAL", "LINES"} & set(found)
