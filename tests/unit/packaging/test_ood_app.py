"""The app for Open OnDemand: its files rendered by Ruby, and its scripts run as the portal's own job script runs them.

Not tested here: a real portal. Its job script is rewritten below after ood_core's template `basic`, shortened.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.parse
from pathlib import Path

import pytest
import yaml
from chromium import NotHere, unpacked

APP = Path(__file__).resolve().parents[3] / "packaging/ood"
RENDER = """
require 'erb'; require 'json'; require 'ostruct'
context = OpenStruct.new(JSON.parse(ARGV[1]))
text = ERB.new(File.read(ARGV[0]), trim_mode: '-')
print ARGV[0].end_with?('view.html.erb') ? context.instance_eval { text.result(binding) } : text.result(binding)
"""
"""As the portal does: `context` has the form; view.html.erb sees what is in connection.yml instead."""
JOB = """
find_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'; }
create_passwd() { tr -cd a-zA-Z0-9 </dev/urandom | head -c"$1"; }
wait_until_port_used() {
    for _ in $(seq 600); do (: <"/dev/tcp/${1%:*}/${1#*:}") 2>/dev/null && return; sleep 0.1; done; return 1
}
clean_up() { kill %1 2>/dev/null; exit "${1:-0}"; }
host=localhost
export host port
source before.sh
./script.sh &
source after.sh
(umask 077; printf 'host: %s\\nport: %s\\npassword: %s\\nproxy: %s\\n' $host $port $password $proxy >connection.yml)
wait %1
"""


@pytest.fixture(scope="session")
def ruby():
    """Return how Ruby is started."""
    if shutil.which("ruby"):
        return ["ruby"], {}
    try:
        root = unpacked("ruby", ["ruby"])
    except NotHere as error:
        pytest.skip(f"NOT TESTED with Ruby: {error}")
    machine = f"{platform.machine()}-linux-gnu"
    (version,) = (root / f"usr/lib/{machine}/ruby").glob("[0-9]*.[0-9]*.0")
    pure = root / "usr/lib/ruby" / version.name
    environ = {"RUBYLIB": f"{pure}:{version}", "LD_LIBRARY_PATH": str(root / f"usr/lib/{machine}")}
    return [str(next((root / "usr/bin").glob("ruby[0-9]*"))), "--disable-gems"], environ


def rendered(ruby, name, context):
    argv, environ = ruby
    run = [*argv, "-e", RENDER, str(APP / name), json.dumps(context)]
    done = subprocess.run(run, capture_output=True, text=True, env={**os.environ, **environ})
    assert done.stderr == ""
    return done.stdout


def form_of(ruby):
    """Return the form, and the values that it starts with."""
    form = yaml.safe_load(rendered(ruby, "form.yml.erb", {}))
    given = {name: form["attributes"].get(name, "") for name in form["form"]}
    return form, {name: one["value"] if isinstance(one, dict) else one for name, one in given.items()}


def test_its_files_are_those_that_the_portal_looks_for(ruby):
    form, _ = form_of(ruby)
    assert isinstance(form["cluster"], str)
    assert set(form["attributes"]) <= set(form["form"])
    assert yaml.safe_load((APP / "manifest.yml").read_text())["role"] == "batch_connect"
    submit = yaml.safe_load(rendered(ruby, "submit.yml.erb", {}))
    assert submit["batch_connect"] == {"template": "basic", "conn_params": ["proxy"]}
    assert all(word.startswith("--") for word in submit["script"]["native"])
    assert os.access(APP / "template/script.sh.erb", os.X_OK)


@pytest.mark.parametrize("proxy", ["node", pytest.param("rnode", marks=pytest.mark.weekly)])
def test_its_job_serves_the_dashboard_to_its_button(ruby, tmp_path, proxy):
    _, given = form_of(ruby)
    context = {**given, "proxy": proxy}
    for name in ("before.sh", "script.sh", "after.sh"):
        (tmp_path / name).write_text(rendered(ruby, f"template/{name}.erb", context))
        subprocess.run(["bash", "-n", tmp_path / name], check=True)
    (tmp_path / "script.sh").chmod(0o755)
    assert "--allow-actions" in rendered(ruby, "template/script.sh.erb", {**context, "allow_actions": "1"})
    assert "--allow-actions" not in (tmp_path / "script.sh").read_text()
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    job = subprocess.Popen(["bash", "-c", JOB], cwd=tmp_path, env=environ, start_new_session=True)
    try:
        connection, end = tmp_path / "connection.yml", time.monotonic() + 120
        while not connection.exists() or "proxy" not in connection.read_text():
            assert job.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
        assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
        view = rendered(ruby, "view.html.erb", yaml.safe_load(connection.read_text()))
        (action,) = re.findall(r'action="([^"]+)"', view)
        ((name, password),) = re.findall(r'name="([^"]+)" value="([^"]+)"', view)
        assert len(password) == 32
        assert password not in Path(f"/proc/{job.pid}/cmdline").read_text()
        check_button(action, {name: password}, proxy)
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def check_button(action, form, proxy):
    """Send the form as the portal passes it on, and open what the answer names."""
    import http.client

    kind, host, port, login = action.strip("/").split("/")
    assert (kind, host, login) == (proxy, "localhost", "login")
    headers = {"Host": "ondemand.example.edu", "Origin": "https://ondemand.example.edu"}
    headers |= {"Content-Type": "application/x-www-form-urlencoded"}
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
    path = action if proxy == "node" else "/login"
    for body, status in (({"password": "x" * 32}, 401), (form, 303)):
        connection.request("POST", path, urllib.parse.urlencode(body), headers)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == status
    cookie, *flags = answer.headers["Set-Cookie"].split("; ")
    assert "Secure" in flags
    connection.request("GET", answer.headers["Location"], headers={**headers, "Cookie": cookie})
    page = connection.getresponse()
    assert (page.status, b"textual.js" in page.read()) == (200, True)
    connection.close()
