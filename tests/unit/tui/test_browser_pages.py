"""The dashboard in Chromium: at a desk, on a phone, behind a portal's proxy, and opened by another page."""

from __future__ import annotations

import http.server
import shutil
import socket
import struct
import threading
from pathlib import Path

import pytest
from browser_server import BrowserServer, descendants, is_running, wait_for
from chromium import PHONE
from portal_proxy import portal

THEIR_SCRIPTS = (
    (
        """new Promise(done => {
            const ws = new WebSocket('ADDRESS'.replace('http', 'ws') + 'ws?width=80&height=24')
            ws.onopen = () => done('open')
            ws.onerror = () => done('refused')
        })""",
        "refused",
    ),
    ("fetch('ADDRESS', {credentials: 'include'}).then(r => r.text(), e => 'refused')", "refused"),
    (
        """new Promise(done => {
            const one = document.createElement('script')
            one.src = 'ADDRESSpage.js'
            one.onload = () => done('loaded')
            one.onerror = () => done('refused')
            document.head.append(one)
        })""",
        "refused",
    ),
    (
        """new Promise(done => {
            const one = document.createElement('iframe')
            one.src = 'ADDRESS'
            one.onload = () => done(String(one.contentDocument))
            document.body.append(one)
        })""",
        "null",
    ),
)
"""Scripts of another page, with their results."""
PASSWORD = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def served(tmp_path_factory, chromium):
    one = BrowserServer(tmp_path_factory.mktemp("pages"))
    yield one
    one.close()


def colours(page):
    """Return how many different colours the first canvas has: a screen that is drawn has several."""
    return page.run(
        "(() => { const c = document.querySelector('canvas');"
        " const d = new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer);"
        " return new Set(d).size })()"
    )


def picture(page, before=b""):
    """Return the screen as a picture, once it is another one than before."""
    found = b""

    def has_changed():
        nonlocal found
        page.browser.listen(0.1)
        found = page.save(Path(page.folder) / "screen.png").read_bytes()
        return found != before and colours(page) > 4

    wait_for(has_changed, "another screen")
    return found


def drawn(page, folder):
    """Wait until the dashboard is drawn."""
    page.folder = folder
    page.wait("document.body.classList.contains('begun')")
    return picture(page)


@pytest.mark.parametrize(("width", "height", "phone"), [(1280, 800, False), (*PHONE, True)])
def test_a_link_opens_the_dashboard_and_keys_change_it(served, chromium, tmp_path, width, height, phone):
    with chromium.page(served.link, width=width, height=height, phone=phone) as page:
        first = drawn(page, tmp_path)
        assert "token" not in page.run("location.href + document.referrer")
        assert page.run("document.cookie") == ""
        if phone:
            page.click(150, 22)  # "2 Users"
        else:
            page.press("3")
        second = picture(page, first)
        assert struct.unpack(">II", second[16:24]) == (width, height)
        assert page.run("document.documentElement.scrollWidth <= innerWidth")
        assert page.errors == []
        assert {answer["status"] for answer in page.answers} == {200}
        (pid,) = served.children()
        page.click(150, 100)  # the focus, which a phone does not have before
        page.press("q")
        page.wait("!document.getElementById('over').hidden")
        assert page.run("document.getElementById('why').textContent") == "The dashboard has ended."
        wait_for(lambda: not is_running(pid))
        page.run("document.getElementById('again').click()")
        page.wait("document.body.classList.contains('begun')")
    wait_for(lambda: served.children() == [], "the end of the dashboard of a closed page")


@pytest.mark.weekly
def test_a_reload_needs_no_link_and_another_browser_does(served, chromium, tmp_path):
    with chromium.page(served.link) as page:
        drawn(page, tmp_path)
        address = page.run("location.href")
        page.go(address)
        page.wait("document.body.classList.contains('begun')")
        with chromium.page(address) as other:
            assert "needs a login" in other.run("document.body.textContent")
            assert not other.run("document.body.textContent.includes('llload')")
    wait_for(lambda: served.children() == [])


class _Page(http.server.BaseHTTPRequestHandler):
    """Another user's page on this host."""

    body = b""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_):
        pass


@pytest.mark.weekly
def test_another_users_page_on_this_host_gets_nothing(served, chromium, tmp_path):
    """Its requests come from the same site (127.0.0.1, another port), so that browsers send SameSite cookies."""
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page) as theirs,
        chromium.page(served.link) as page,
    ):
        threading.Thread(target=theirs.serve_forever, daemon=True).start()
        drawn(page, tmp_path)
        address = page.run("location.href")
        before = served.children()
        with chromium.page(f"http://127.0.0.1:{theirs.server_port}/", context=page.context) as evil:
            for script, found in THEIR_SCRIPTS:
                assert evil.run(script.replace("ADDRESS", address)) == found
        assert served.children() == before
        theirs.shutdown()


@pytest.mark.weekly
def test_a_link_on_another_page_logs_in(served, chromium, tmp_path):
    """As in a terminal or a mail in the browser: the first request after the link comes without the Strict cookie."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page) as theirs:
        threading.Thread(target=theirs.serve_forever, daemon=True).start()
        _Page.body = f'<a id=link href="{served.link}">open</a>'.encode()
        with chromium.page(f"http://localhost:{theirs.server_port}/") as page:
            page.run("document.getElementById('link').click()")
            page.wait("location.port == " + repr(str(served.port)))
            drawn(page, tmp_path)
        theirs.shutdown()
    wait_for(lambda: served.children() == [])


@pytest.mark.weekly
def test_a_killed_browser_leaves_no_dashboard(served, tmp_path):
    from chromium import Chromium

    browser = Chromium()
    try:
        with browser.page(served.link) as page:
            drawn(page, tmp_path)
            (pid,) = served.children()
            pids = [pid, *descendants(pid)]
            browser.kill()
    finally:
        browser.close()
    wait_for(lambda: not any(map(is_running, pids)), "the ends of all")


@pytest.mark.parametrize("kind", ["node", pytest.param("rnode", marks=pytest.mark.weekly)])
def test_behind_a_portal(chromium, tmp_path, kind):
    """With the words of the app in packaging/ood; the port is chosen before, as there."""
    (tmp_path / "token").write_text(PASSWORD + "\n")
    (tmp_path / "token").chmod(0o600)
    with portal() as port, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        chosen = free.getsockname()[1]
        free.close()
        base = f"/{kind}/n1.cluster/{chosen}/"
        words = ["--port", str(chosen), "--address", "0.0.0.0", "--clear-text"]
        words += ["--token-file", str(tmp_path / "token"), "--public-url", f"http://127.0.0.1:{port}"]
        one = BrowserServer(tmp_path, *words, *(["--base-path", base] if kind == "node" else []))
        try:
            with chromium.page(f"http://127.0.0.1:{port}{base}") as page:
                assert "needs a login" in page.run("document.body.textContent")
            form = f'<form action="{base}login" method=post><input name=password value="{PASSWORD}"></form>'
            for _ in range(1 if kind == "node" else 2):  # the button of a session can be used again
                with chromium.page(f"http://127.0.0.1:{port}{base}") as page:
                    page.call("Page.setBypassCSP", enabled=True)
                    page.go(page.run("location.href"))
                    page.run(f"document.body.innerHTML = {form!r}; document.forms[0].submit()")
                    page.wait("document.body !== null && document.body.classList.contains('begun')")
                    first = drawn(page, tmp_path)
                    assert page.run("location.pathname").startswith(base)
                    page.press("3")
                    picture(page, first)
            assert one.ask("/x", Host="n1.cluster")[0] == 401
        finally:
            one.close()
    shutil.rmtree(tmp_path / "state", ignore_errors=True)
