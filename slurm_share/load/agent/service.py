"""The agent: one thread samples, the event loop answers, and a file has the metrics for Prometheus's node_exporter.

A driver that hangs blocks only the sampling thread. Callers still get the last snapshot, with the time of its sample
and a problem that says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import signal
import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ...core import files, log, numbers
from ...core.errors import SlurmShareError, StateError
from ...core.paths import Paths
from ...core.settings import Settings
from ...node import host
from .. import metrics
from ..metrics import Cost
from ..rules import own_figures
from ..snapshot import Snapshot
from . import held
from .held import HeldGpus
from .http_server import HttpServer
from .newest import NewestSnapshot
from .socket_server import SocketServer
from .tls import AgentTls
from .token import Token
from .usage_answers import UsageAnswers
from .use_keeper import UseKeeper

if TYPE_CHECKING:  # loads the driver's library
    from ..sampler import NodeSampler

REMEMBER_S = 60.0
"""Seconds between two writes of peaks and windows, which are also written at the end. A SIGKILL loses no more."""
_RECREATE_AFTER = 5
"""Failed samples in a row after which a new sampler is made, as a restart of the agent would do."""
_CHECK_S = 1.0
_LATE_ROUNDS = 3
_STUCK_S = 120.0
"""A sample that takes longer hangs in the driver; then systemd's watchdog restarts the agent."""
_COST_LOG_S = 900.0
_END_S = 3.0
"""The longest wait for the sampling thread when the agent ends."""
STATE_FILE = "state"
"""The file of windows and peaks over a restart, in the runtime folder, which a reboot empties."""
_STATE_MAGIC = b"slurm-share-agent 1"
_STATE_MAX_BYTES = 64 * 1024 * 1024
LOCK_FILE = "lock"


def say(text: str) -> None:
    """Write a line to the agent's log: standard error, which systemd keeps."""
    log.line("", "agent", text)


class Sampling:
    """The thread that samples. It calls `put` with every snapshot."""

    def __init__(
        self,
        make: Callable[[], NodeSampler],
        interval_s: float,
        file: Path,
        meter: Meter,
        put: Callable[[Snapshot], None],
        held_gpus: HeldGpus,
        use: UseKeeper,
    ) -> None:
        self._make = make
        self._interval_s = interval_s
        self._file = file
        self._meter = meter
        self._put = put
        self._stop = threading.Event()
        self._in_round_since: float | None = None
        self._remembered = float("-inf")
        self._said = ""
        self._held = held_gpus
        self._use = use
        # A daemon thread: one that hangs in the driver must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name="sampler", daemon=True)

    def start(self) -> None:
        """Start the sampling thread."""
        self._thread.start()

    def end(self) -> bool:
        """Finish the current sample and save the history; return False if the thread hangs."""
        self._stop.set()
        self._thread.join(_END_S)
        return not self._thread.is_alive()

    @property
    def hangs_s(self) -> float:
        """Return the seconds that the current sample has taken so far."""
        since = self._in_round_since
        return 0.0 if since is None else time.monotonic() - since

    def _work(self) -> None:
        sampler: NodeSampler | None = None
        failed, rounds, due = 0, 0, time.monotonic()
        while not self._stop.is_set():
            self._in_round_since = begin = time.monotonic()
            try:
                if sampler is None:
                    sampler = self._make_sampler()
                ledger = held.read_ledger_jobs(Paths())
                seen = self._held.filled(held.with_shares(sampler.sample(), ledger), ledger)
                seen = self._use.add(sampler, seen, ledger)
                self._put(own_figures.closed(seen, os.geteuid()))
                failed, rounds = 0, rounds + 1
                self._said = ""
            except Exception as error:  # noqa: BLE001 - whatever a driver raises, the next sample is taken
                failed += 1
                self._complain(error)
                if failed % _RECREATE_AFTER == 0:
                    self._close(sampler)
                    sampler = None
            self._meter.round(time.monotonic() - begin, failed=failed > 0)
            # Not after the first sample, which has no rates: the file of an earlier agent is better.
            if sampler is not None and rounds > 1 and time.monotonic() - self._remembered >= REMEMBER_S:
                self._remember(sampler)
            self._in_round_since = None
            # One late sample does not delay all others; a sample right after a late one would have no rates.
            due = max(due + self._interval_s, time.monotonic() + self._interval_s / 2)
            self._stop.wait(due - time.monotonic())
        if sampler is not None:
            self._remember(sampler)
            self._close(sampler)
        self._use.close(_END_S / 2)

    def _make_sampler(self) -> NodeSampler:
        sampler = self._make()
        try:
            data = read_state(self._file)
            if data is not None and not sampler.recall(data):
                say("windows and peaks start empty: those in the file are of another boot")
        except (SlurmShareError, ValueError) as error:
            say(f"windows and peaks start empty: {error}")
        return sampler

    def _remember(self, sampler: NodeSampler) -> None:
        self._remembered = time.monotonic()
        try:
            write_state(self._file, sampler.remember())
        except (OSError, SlurmShareError, ValueError) as error:
            say(f"cannot save windows and peaks: {error}")

    def _close(self, sampler: NodeSampler | None) -> None:
        try:
            if sampler is not None:
                sampler.close()
        except Exception as error:  # noqa: BLE001 - the sampler is dropped in any case
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        """Log each new problem once: a driver that is down reports the same every few seconds."""
        text = f"no sample: {error or type(error).__name__}"
        if not isinstance(error, (SlurmShareError, OSError)):
            last = traceback.extract_tb(error.__traceback__)[-1:]
            text = f"no sample: {error!r}" + "".join(f" ({Path(at.filename).name}:{at.lineno})" for at in last)
        if text != self._said:
            self._said = text
            say(text)


# ---- The state over a restart ----


def write_state(file: Path, data: bytes) -> None:
    """Replace the file atomically, mode 0600 because it has all users' peaks. Raises OSError."""
    # One temporary name, of which a killed agent leaves at most one file: there is one agent at a time.
    whole = _STATE_MAGIC + b" " + _digest(data) + b"\n" + data
    files.write(file, whole, new=file.with_name(f".{file.name}.new"))


def read_state(file: Path) -> bytes | None:
    """Return the data that was written last; None without a file. Raises StateError for a file that is damaged, belongs
    to another user, or cannot be read."""
    whole = files.read(file, _STATE_MAX_BYTES)
    if whole is None:
        return None
    head, newline, data = whole.partition(b"\n")
    if not newline or head != _STATE_MAGIC + b" " + _digest(data):
        raise StateError(str(file), "is damaged, or of another release")
    return data


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode("ascii")


# ---- systemd, by datagrams as sd_notify(3) sends ----


def notify(text: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Send a state such as READY=1; return False if systemd does not listen."""
    place = environ.get("NOTIFY_SOCKET", "")
    if not place.startswith(("/", "@")):
        return False
    address = "\0" + place[1:] if place.startswith("@") else place
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as link:
            link.sendto(text.encode(), address)
    except OSError:
        return False
    return True


def watchdog_s(environ: Mapping[str, str] = os.environ) -> float | None:
    """Return systemd's watchdog interval in seconds (WATCHDOG_USEC); None without a watchdog."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    usec = numbers.whole(environ.get("WATCHDOG_USEC"))
    return usec / 1e6 if usec else None


# ---- The service ----


async def serve(
    settings: Settings,
    make: Callable[[], NodeSampler],
    *,
    stop: asyncio.Event,
    ready: Callable[[SocketServer, HttpServer | None], None] = lambda _socket, _http: None,
) -> None:
    """Sample and answer until `stop` is set. Raises StateError if the runtime folder cannot be used or another agent
    runs there, UsageError for an invalid agent_http."""
    place = Path(settings.agent_socket)
    lock = _lock(place.parent)
    try:
        loop = asyncio.get_running_loop()
        newest, meter = NewestSnapshot(), Meter()

        def put(snapshot: Snapshot) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and the agent ends
                loop.call_soon_threadsafe(newest.put, snapshot)

        held_gpus = HeldGpus(settings.agent_interval_s)
        use = UseKeeper(settings, held_gpus)
        sampling = Sampling(make, settings.agent_interval_s, place.parent / STATE_FILE, meter, put, held_gpus, use)
        answers = UsageAnswers(use.records, lambda: newest.node, settings)
        socket_server = SocketServer(place, newest, answers, settings.operators_group)
        http_server = await _http(settings, newest, meter, answers)
        await socket_server.open()
        sampling.start()
        ready(socket_server, http_server)
        notify("READY=1")
        kind = " (TLS)" if settings.agent_tls_certificate else ""
        say(f"answers on {place}" + ("" if http_server is None else f" and on {settings.agent_http}{kind}"))
        textfile = Textfile(settings.agent_textfile) if settings.agent_textfile else None
        try:
            await _attend(settings, newest, meter, sampling, textfile, stop)
        finally:
            if textfile is not None:
                textfile.remove()
            notify("STOPPING=1")
            await socket_server.close()
            if http_server is not None:
                await http_server.close()
            answers.close()
            if not await loop.run_in_executor(None, sampling.end):
                say("the last sample hangs in the driver; the peaks of the last minute are lost")
    finally:
        os.close(lock)


async def _attend(
    settings: Settings,
    newest: NewestSnapshot,
    meter: Meter,
    sampling: Sampling,
    textfile: Textfile | None,
    stop: asyncio.Event,
) -> None:
    """Log a sampler that hangs, notify systemd's watchdog, log the agent's cost, and write the textfile."""
    pause = min(_CHECK_S, (watchdog_s() or _CHECK_S) / 3)
    late_s = max(_LATE_ROUNDS * settings.agent_interval_s, 2 * _CHECK_S)
    # The first line after a minute, further ones every _COST_LOG_S.
    next_cost = time.monotonic() + 60.0
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await stop.wait()
        if newest.age_s > late_s:
            newest.add_problem("the agent has taken no sample since `taken`; see its log")
        if textfile is not None:
            textfile.update(newest.age_s, lambda: _page(newest, meter))
        if sampling.hangs_s < _STUCK_S:
            notify("WATCHDOG=1")
        if time.monotonic() >= next_cost:
            next_cost = time.monotonic() + _COST_LOG_S
            say(as_text(meter.read()))


def _page(newest: NewestSnapshot, meter: Meter) -> bytes | None:
    """Return the metrics; None before the first sample."""
    body = newest.derived("metrics", metrics.render)
    return None if body is None else body + metrics.render_cost(meter.read(), newest.node)


async def _http(settings: Settings, newest: NewestSnapshot, meter: Meter, answers: UsageAnswers) -> HttpServer | None:
    """Start the HTTP server; return None if it is not configured or cannot start, which is logged."""
    if not settings.agent_http:
        return None

    def page() -> tuple[bytes, str] | None:
        body = _page(newest, meter)
        return None if body is None else (body, metrics.CONTENT_TYPE)

    tls = AgentTls(settings) if settings.agent_tls_certificate else None
    server = HttpServer(settings.agent_http, Token(settings.agent_token_file), newest, page, answers.of_all_users, tls)
    try:
        await server.open()
    except (StateError, OSError) as error:
        say(f"no HTTP on {settings.agent_http}: {error}; correct that and restart the agent")
        return None
    return server


def _lock(folder: Path) -> int:
    """Lock the runtime folder and return its descriptor. Raises StateError."""
    try:
        folder.mkdir(mode=0o755, exist_ok=True)
        fd = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StateError(
            str(folder),
            f"cannot be used: {error.strerror}; make it the agent's user's own (RuntimeDirectory= of its unit)",
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise StateError(str(folder), "another agent runs on this node and holds its lock") from error
    return fd


def run(settings: Settings, make: Callable[[], NodeSampler]) -> None:
    """Run `serve` until SIGTERM or SIGINT."""

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await serve(settings, make, stop=stop)

    asyncio.run(main())


WINDOW_S = 60.0


class Meter:
    """A meter of this process. Only the sampling thread calls `round`; any thread may call `read`."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, float]] = deque([(time.monotonic(), time.process_time())])
        self._round_s: float | None = None
        self._rounds = self._failed = 0

    def round(self, took_s: float, *, failed: bool) -> None:
        """Record that a sample ended: how long it took, and whether it failed."""
        self._round_s = took_s
        self._rounds += 1
        self._failed += failed
        now = time.monotonic()
        self._marks.append((now, time.process_time()))
        while len(self._marks) > 2 and now - self._marks[1][0] >= WINDOW_S:
            self._marks.popleft()

    def read(self) -> Cost:
        """Return the cost over the last WINDOW_S."""
        (since, cpu_then), (now, cpu_now) = self._marks[0], self._marks[-1]
        ratio = (cpu_now - cpu_then) / (now - since) if now > since else None
        return Cost(
            cpu_ratio=ratio,
            resident_bytes=host.read_resident_bytes(),
            round_s=self._round_s,
            rounds=self._rounds,
            failed=self._failed,
        )


def as_text(cost: Cost) -> str:
    """Return the cost as a line for the log."""
    cpu = "?" if cost.cpu_ratio is None else f"{100 * cost.cpu_ratio:.2f} %"
    memory = "?" if cost.resident_bytes is None else f"{cost.resident_bytes / 2**20:.0f} MiB"
    last = "?" if cost.round_s is None else f"{1000 * cost.round_s:.1f} ms"
    return f"own cost: {cpu} of one core, {memory}, last sample {last}; {cost.rounds} samples, {cost.failed} failed"


WRITE_S = 15.0
"""Seconds between two writes: a usual interval of scrapes."""
STALE_S = 60.0
"""Age of the last sample from which the file is removed: node_exporter would show it as new for ever."""
MODE = 0o640
"""The load of all users is for node_exporter's group, which the folder gives to its files (setgid)."""


class Textfile:
    """The file that `agent_textfile` names. A file that cannot be written is logged once, and tried again."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = Path(path)
        self._clock = clock
        self._next = float("-inf")
        self._said = ""
        # node_exporter reads all files that end in .prom, so the new one has another end until it is whole
        self._new = self._path.with_name(f".{self._path.name}.new")
        if self._path.suffix != ".prom":
            self._say(f"node_exporter reads only files that end in .prom; rename agent_textfile = {path}")

    def update(self, age_s: float, page: Callable[[], bytes | None]) -> None:
        """Write the page if it is time, or remove the file if the last sample is `age_s` old and stale."""
        if age_s > STALE_S:
            self._next = float("-inf")
            self.remove()
            return
        if self._clock() < self._next:
            return
        data = page()
        if data is None:
            return
        self._next = self._clock() + WRITE_S
        try:
            files.write(self._path, data, mode=MODE, new=self._new, finish=_open_to_group)
            self._said = ""
        except OSError as error:
            self._say(
                f"cannot write {self._path}: {error.strerror}; give the agent a folder of its own, and "
                "name it in ReadWritePaths= of the agent's unit"
            )

    def remove(self) -> None:
        """Remove the file, so that node_exporter does not show old figures."""
        try:
            self._path.unlink(missing_ok=True)
            self._new.unlink(missing_ok=True)
        except OSError as error:
            self._say(f"cannot remove {self._path}, which has old figures: {error.strerror}")

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            log.line("", "agent", text)


def _open_to_group(fd: int) -> None:
    """Give the file its mode whatever the umask is: the unit's is 0077."""
    os.fchmod(fd, MODE)
