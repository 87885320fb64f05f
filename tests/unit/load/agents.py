"""An agent of a test: real sockets, a sampler that says what it is told, and callers of any user id."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from slurm_share.core.settings import Settings
from slurm_share.load.agent import callers, service
from slurm_share.load.agent.http_server import HttpServer
from slurm_share.load.agent.socket_server import SocketServer
from slurm_share.load.snapshot import GpuLoad, JobLoad, OnGpu, ProcessLoad, Snapshot, UserLoad
from slurm_share.node.readings import DriverNow, HostNow

TOKEN = "0123456789abcdef0123456789abcdef"


def until(true: Callable[[], Any]) -> Any:
    """Wait until this is true, two minutes at most, and return its value."""
    for _ in range(12_000):
        if value := true():
            return value
        time.sleep(0.01)
    raise AssertionError("it did not come to that")


def process(pid: int, uid: int, user: str, job: int, gpu: str) -> ProcessLoad:
    """A process with 100 MiB on a GPU."""
    on = OnGpu(uuid=gpu, memory_mib=100, peak_mib=200)
    return ProcessLoad(pid=pid, name=f"{user}-train", uid=uid, user=user, job=job, step="0", gpus=(on,))


ALICE, BOB = 2001, 2002
NODE = Snapshot(
    node="n1",
    taken=1795271308.5,
    measured_s=600.0,
    cpus=16,
    cores=8,
    driver="550.0-fake",
    load=(1.0, 2.0, 3.0),
    memory_total_mib=16000,
    memory_used_mib=4000,
    gpus=tuple(
        GpuLoad(
            uuid=f"GPU-{index}", index=index, name="Fake", memory_total_mib=8000, memory_used_mib=100, clients=1,
            utilization_percent=25.0,
        )
        for index in range(2)
    ),
    processes=(process(101, ALICE, "alice", 7, "GPU-0"), process(202, BOB, "bob", 8, "GPU-1")),
    jobs=(
        JobLoad(job=7, uid=ALICE, user="alice", gpus=("GPU-0",), gpu_memory_mib=100),
        JobLoad(job=8, uid=BOB, user="bob", gpus=("GPU-1",), gpu_memory_mib=100),
    ),
    users=(
        UserLoad(uid=ALICE, user="alice", jobs=(7,), processes=1, gpus=("GPU-0",)),
        UserLoad(uid=BOB, user="bob", jobs=(8,), processes=1, gpus=("GPU-1",)),
    ),
)  # fmt: skip
"""Alice on one GPU, Bob on the other."""


class FakeSampler:
    """Answers NODE, counts, and does what the test has it do."""

    def __init__(self) -> None:
        self.samples = 0
        self.fail: Callable[[], None] = lambda: None
        self.recalled: list[bytes] = []
        self.closed = 0
        self.answer = NODE
        self.readings: tuple[HostNow, DriverNow] | None = None

    def sample(self) -> Snapshot:
        self.samples += 1
        self.fail()
        return replace(self.answer, measured_s=float(self.samples))

    def remember(self) -> bytes:
        return b"peaks of sample %d" % self.samples

    def recall(self, data: bytes) -> bool:
        self.recalled.append(data)
        return True

    def close(self) -> None:
        self.closed += 1


class RunningAgent:
    """An agent in a thread of its own, with the whole of `service.serve`."""

    def __init__(self, settings: Settings, sampler: FakeSampler) -> None:
        self.settings, self.sampler = settings, sampler
        self.socket_server: SocketServer
        self.http_server: HttpServer | None = None
        self.uid = os.geteuid()
        """The user id of the callers, in the place of SO_PEERCRED."""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_server.port}"

    async def _main(self) -> None:
        self._stop, self._loop = asyncio.Event(), asyncio.get_running_loop()

        def ready(socket_server: SocketServer, http_server: HttpServer | None) -> None:
            self.socket_server, self.http_server = socket_server, http_server
            socket_server._peer_uid = lambda _link: self.uid
            self._ready.set()

        try:
            await service.serve(self.settings, lambda: self.sampler, stop=self._stop, ready=ready)
        finally:
            self._ready.set()

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(300)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(300)
        assert not self._thread.is_alive()


@contextlib.contextmanager
def running(
    folder: Path, *, http: bool = True, sampler: FakeSampler | None = None, **settings: object
) -> Iterator[RunningAgent]:
    """An agent whose files are in `folder`."""
    token = folder / "token"
    if not token.exists():
        token.write_text(TOKEN + "\n")
        token.chmod(0o640)
    given = {
        "agent_socket": str(folder / "run/socket"),
        "agent_token_file": str(token),
        "agent_http": "127.0.0.1:0" if http else "",
        "agent_interval_s": 0.05,
        "usage_folder": str(folder / "usage"),
        **settings,
    }
    agent = RunningAgent(Settings(**given), sampler or FakeSampler())
    agent.start()
    try:
        yield agent
    finally:
        agent.stop()


class QuietHandler(BaseHTTPRequestHandler):
    """A handler without a log, whose `answer` sends a whole answer."""

    def log_message(self, *_args: object) -> None:
        pass

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class QuietServer(ThreadingHTTPServer):
    """An HTTP server of a test, which prints nothing about clients that left early."""

    def handle_error(self, *_args: object) -> None:
        pass

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        thread.start()
        yield
        self.shutdown()
        thread.join()
        self.server_close()


def users(monkeypatch) -> None:
    """The user database of the test: alice, bob, and olga, an operator by a supplementary group."""
    names = {ALICE: "alice", BOB: "bob", 2003: "olga"}

    def getpwuid(uid: int) -> object:
        return callers.pwd.struct_passwd((names[uid], "x", uid, uid, "", "/", "/bin/sh"))

    monkeypatch.setattr(callers.pwd, "getpwuid", getpwuid)
    monkeypatch.setattr(
        callers.grp, "getgrnam", {"gpu-ops": callers.grp.struct_group(("gpu-ops", "x", 990, []))}.__getitem__
    )
    monkeypatch.setattr(callers.os, "getgrouplist", lambda name, gid: [gid, 990] if name == "olga" else [gid])
