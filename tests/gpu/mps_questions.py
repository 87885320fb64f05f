"""Questions about MPS that only a GPU can answer; writes tests/gpu/results/mps_questions-<driver>.json.

    PYTHONPATH=. python3 tests/gpu/mps_questions.py [--out FOLDER] [--simulated RELEASE] [QUESTION ...]

as root, on a machine with a GPU, by a Python that has PyTorch, nvidia-ml-py and msgspec. Those about static partitions,
protocol 3 and what is newer are in newest_mps_questions.py; this command asks both.

--simulated puts them to simulated GPUs with that release of the driver, which shows that they can be asked. The file
then says that they are simulated and the answers no measurements.

Needs no pytest. Every question is a function; one that fails says so in its row and keeps nobody else from asking.
Compute mode, clocks and MIG are never touched, nothing is reset, and every process ended here was started here.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import asdict, replace

from slurm_share.core import process, user_process
from slurm_share.core.errors import SlurmShareError
from slurm_share.core.process import Deadline
from slurm_share.core.records import Owner
from slurm_share.mps import control, front_ends, processes
from slurm_share.mps import daemons as actuator
from slurm_share.mps.records import MpsPlace, MpsStarted
from slurm_share.share.rules import mps as mps_rules

RESULTS = Path(__file__).resolve().parent / "results"
OWNER = Owner(61001, 61001, (61001,))
OTHER = Owner(61002, 61002, (61002,))
MIB = 1 << 20

CLIENT = """
import json, os, sys, time
mib, seconds, kernel = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
began = time.monotonic()
try:
    import torch
    imported = time.monotonic()
    held = torch.zeros(mib << 20, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    properties = torch.cuda.get_device_properties(0)
    print(json.dumps({
        "pid": os.getpid(), "context_s": round(time.monotonic() - imported, 3), "free_mib": free >> 20,
        "total_mib": total >> 20, "multiprocessors": properties.multi_processor_count,
    }), flush=True)
    end = time.monotonic() + seconds
    if kernel:
        torch.cuda._sleep(int(kernel * 1.5e9))
        print("kernel is running", flush=True)
    while time.monotonic() < end:
        held[:1024].add_(1)
        torch.cuda.synchronize()
        time.sleep(0.05)
except BaseException as error:
    print(f"{type(error).__name__}: {str(error)[:600]}", file=sys.stderr, flush=True)
    os._exit(1)
os._exit(0)
"""

FAULT = """
import sys, torch
x = torch.zeros(16, device="cuda"); torch.cuda.synchronize(); print("ready", flush=True); sys.stdin.readline()
i = torch.full((1 << 20,), 1 << 40, dtype=torch.int64, device="cuda")
try:
    x.index_select(0, i); torch.cuda.synchronize()
except BaseException as error:
    print(str(error)[:300], file=sys.stderr); sys.exit(1)
"""

PROGRAMS = {"client": CLIENT, "fault": FAULT}
"""Kind of client -> its code. simulated_client.py does the same on a simulated GPU."""
SIMULATED_CLIENT = Path(__file__).resolve().parent / "simulated_client.py"
SIMULATOR = Path(__file__).resolve().parents[2] / "packaging" / "demo" / "simgpu"

Facts = dict[str, Any]


@dataclass
class Lab:
    """The GPU, the program, a folder with a short path, and all that was started."""

    program: str
    driver: str
    gpu: str
    gpu_name: str
    home: Path
    children: list[subprocess.Popen[str]] = field(default_factory=list)
    places: list[MpsPlace] = field(default_factory=list)
    is_simulated: bool = False
    results: Path = RESULTS

    @property
    def environ(self) -> dict[str, str]:
        """The variables that daemons and clients get beside their own."""
        return {key: os.environ[key] for key in ("LD_LIBRARY_PATH", "SIMGPU_STATE") if key in os.environ}

    def argv(self, kind: str) -> list[str]:
        """Return the start of a client's command line."""
        if self.is_simulated:
            return ["/usr/bin/python3", str(SIMULATED_CLIENT), kind]  # which every user may run
        return [sys.executable, "-c", PROGRAMS[kind]]

    @property
    def major(self) -> int:
        return int(self.driver.partition(".")[0])

    def place(self, name: str, owner: Owner = OWNER) -> MpsPlace:
        found = MpsPlace(self.program, str(self.home / name / "p"), self.gpu, owner, tuple(self.environ.items()))
        self.places.append(found)
        return found

    def client(
        self, place: MpsPlace | None, mib: int = 64, seconds: float = 30, kernel_s: float = 0, **environ: str
    ) -> subprocess.Popen[str]:
        """Start a PyTorch program as the place's owner (root without a place); it may fail before its first line."""
        own = {"CUDA_VISIBLE_DEVICES": self.gpu, "CUDA_MPS_PIPE_DIRECTORY": str(self.home / "no-mps")}
        base = own if place is None else control.environment(place)
        argv = [*self.argv("client"), str(mib), str(seconds), str(kernel_s)]
        return self.start(argv, None if place is None else place.owner, {**base, **environ})

    def start(self, argv: list[str], owner: Owner | None, environ: Mapping[str, str]) -> subprocess.Popen[str]:
        """Start a program as that user (None: root), to be ended with the lab."""
        kept = {key: os.environ[key] for key in ("PATH", "PYTHONPATH") if key in os.environ} | self.environ
        child = subprocess.Popen(
            argv, env={**kept, "HOME": "/tmp", **environ}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, cwd="/", **({} if owner is None else as_user(owner)),
        )  # fmt: skip
        self.children.append(child)
        return child

    def close(self) -> None:
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.communicate()
        for place in self.places:
            try:
                actuator.stop(place, Deadline.after(15))
            except (SlurmShareError, OSError):
                pass
        shutil.rmtree(self.home, ignore_errors=True)


def as_user(owner: Owner) -> dict[str, Any]:
    return {"user": owner.uid, "group": owner.gid, "extra_groups": []} if os.geteuid() == 0 else {}


def soon(seconds: float = 30) -> Deadline:
    return Deadline.after(seconds)


def first_line(child: subprocess.Popen[str], seconds: float = 90) -> str:
    """Return the first line of a program; empty if it ends, or prints nothing in that time."""
    timer = threading.Timer(seconds, child.kill)
    timer.start()
    try:
        assert child.stdout is not None
        return child.stdout.readline()
    finally:
        timer.cancel()


def facts_of(child: subprocess.Popen[str]) -> Facts:
    """Return the facts that a running client printed, or its error."""
    line = first_line(child)
    if line:
        return dict(json.loads(line))
    return ending(child)


def ending(child: subprocess.Popen[str], seconds: float = 60) -> Facts:
    """Return how a program ended, by itself or killed after that time."""
    began = time.monotonic()
    try:
        _, error = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        _, error = child.communicate()
        return {"did_not_end_in_s": seconds, "error": error.strip()[-600:]}
    return {"exit_code": child.returncode, "after_s": round(time.monotonic() - began, 2), "error": error.strip()[-600:]}


@contextmanager
def daemon(lab: Lab, name: str, owner: Owner = OWNER, default: str = "") -> Iterator[MpsStarted]:
    """Run a daemon through our own driver while the block runs. default: a command that sets a value of the servers
    that start later; the daemon then gets a new one."""
    place = lab.place(name, owner)
    started = actuator.start(place, soon(60))
    try:
        if default:
            before = started.servers
            control.ask(place, default, soon())
            raw(place, f"shutdown_server {before[0].pid} -f\n")
            time.sleep(1)
            started = actuator.start(place, soon(60))
            assert started.servers != before, "the server still has the value of before"
        yield started
    finally:
        actuator.stop(place, soon(20))


def raw(place: MpsPlace, text: str, seconds: float = 20, uid: int | None = None) -> Facts:
    """Run the control program once; return its result unchecked."""
    owner = place.owner if uid is None else Owner(uid, uid, (uid,))
    began = time.monotonic()
    try:
        done = process.exchange(
            [place.program], text=text, timeout_s=seconds, env=control.environment(place), owner=owner
        )
    except SlurmShareError as error:
        return {"command": text, "error": str(error)}
    took = round(time.monotonic() - began, 3)
    return {"command": text, "code": done.code, "stdout": done.stdout, "stderr": done.stderr, "s": took}


def nvml_lists(lab: Lab) -> Facts:
    """Return PIDs and memory in MiB from every process list of NVML."""
    import pynvml

    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(lab.gpu)
        lists = {
            "compute": pynvml.nvmlDeviceGetComputeRunningProcesses,
            "mps": pynvml.nvmlDeviceGetMPSComputeRunningProcesses,
            "graphics": pynvml.nvmlDeviceGetGraphicsRunningProcesses,
        }
        found: Facts = {}
        for name, question in lists.items():
            try:
                found[name] = {
                    one.pid: None if one.usedGpuMemory is None else one.usedGpuMemory // MIB for one in question(handle)
                }
            except pynvml.NVMLError as error:
                found[name] = str(error)
        found["used_mib"] = pynvml.nvmlDeviceGetMemoryInfo(handle).used // MIB
        return found
    finally:
        pynvml.nvmlShutdown()


# ---- The questions ----


def start_up_times(lab: Lab) -> Facts:
    """Measure start-up of daemon, server and first context: alone, and without a server started ahead; eight daemons at
    once on one GPU."""
    with daemon(lab, "a") as started:
        with_server = facts_of(lab.client(started.place, seconds=0.1))
    place = lab.place("b")
    actuator.start(place, soon(60))
    server = control.read_servers(place, soon())[0].pid
    raw(place, f"shutdown_server {server} -f\n")
    time.sleep(1)
    without_server = facts_of(lab.client(place, seconds=0.1))
    actuator.stop(place, soon())
    bare = facts_of(lab.client(None, seconds=0.1))
    places = [lab.place(f"c{number}") for number in range(8)]
    began = time.monotonic()
    outcomes = actuator.start_many(places, soon(60))
    eight_s = round(time.monotonic() - began, 3)
    began = time.monotonic()
    joined = actuator.start_many(places, soon(60))
    joined_s = round(time.monotonic() - began, 3)
    began = time.monotonic()
    stopped = actuator.stop_many(places, soon(60))
    return {
        "daemon_and_server_s": round(started.seconds, 3),
        "notes": started.notes,
        "client_with_server": with_server,
        "client_without_server": without_server,
        "client_without_mps": bare,
        "eight_daemons_s": eight_s,
        "eight_outcomes": [type(one).__name__ for one in outcomes],
        "eight_joined_s": joined_s,
        "joined": [getattr(one, "joined", None) for one in joined],
        "eight_stopped_s": round(time.monotonic() - began, 3),
        "how": [getattr(one, "how", None) for one in stopped],
    }


def texts_with_a_client(lab: Lab) -> Facts:
    """Return what every command says with a server and a client there."""
    with daemon(lab, "a") as started:
        place, server = started.place, started.servers[0].pid
        client = lab.client(place)
        facts = facts_of(client)
        commands = [
            "get_server_list", f"get_server_status {server}", f"get_client_list {server}", "get_device_client_list",
            f"get_device_client_list {server}", "ps", f"ps -p {server}", f"set_active_thread_percentage {server} 25",
            f"get_active_thread_percentage {server}", f"set_device_pinned_mem_limit {server} 0 512M",
            f"get_device_pinned_mem_limit {server} 0", f"set_default_device_pinned_mem_limit {lab.gpu} 512M",
            f"get_default_device_pinned_mem_limit {lab.gpu}", "get_default_client_priority",
            f"start_server -uid {place.owner.uid}", f"terminate_client {server} 1", "lspart", "device_query",
        ]  # fmt: skip
        said = [raw(place, f"{command}\n") for command in commands]
        return {"client": facts, "said": said}


def processes_of_a_daemon(lab: Lab) -> Facts:
    """Return whether a server can be found without its daemon: name, parent, environment; and the shared memory it
    leaves."""
    before = sorted(file.name for file in Path("/dev/shm").iterdir())
    with daemon(lab, "a") as started:
        client = lab.client(started.place, seconds=60)
        facts_of(client)
        server = started.servers[0].pid
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{server}/status").read_text().splitlines() if ":" in line
        )
        limits = Path(f"/proc/{server}/limits").read_text()
        during = sorted({file.name for file in Path("/dev/shm").iterdir()} - set(before))
        found = {
            "mps_processes": [str(one) for one in processes.read_processes()],
            "server_uid": status["Uid"].split(),
            "server_parent_is_daemon": int(status["PPid"]) == started.daemon.pid,
            "server_open_files": next(line for line in limits.splitlines() if line.startswith("Max open files")),
            "shared_memory": during,
            "nvml": nvml_lists(lab),
            "client_pid": client.pid,
            "server_pid": server,
        }
        client.kill()
        client.communicate()
    found["shared_memory_left"] = sorted({file.name for file in Path("/dev/shm").iterdir()} - set(before))
    return found


def memory_of_an_idle_server(lab: Lab) -> Facts:
    """Read NVML before, with a server and no client, with one small client."""
    before = nvml_lists(lab)
    with daemon(lab, "a") as started:
        idle = nvml_lists(lab)
        client = lab.client(started.place, mib=64)
        facts = facts_of(client)
        return {
            "before": before,
            "idle_server": idle,
            "with_a_client": nvml_lists(lab),
            "server": started.servers[0].pid,
            "client": facts,
        }


def memory_limits(lab: Lab) -> Facts:
    """Set limits by the daemon's default, by number and by UUID in the client's environment, and beside a GPU it does
    not see."""
    found: Facts = {}
    with daemon(lab, "a", default="set_default_device_pinned_mem_limit 0 1024M") as started:
        found["default_1024_client_2048"] = facts_of(lab.client(started.place, mib=2048, seconds=0.1))
        found["default_1024_client_256"] = facts_of(lab.client(started.place, mib=256, seconds=0.1))
    with daemon(lab, "b") as started:
        for name, limit in [
            ("number", "0=1024M"),
            ("uuid", f"{lab.gpu}=1024M"),
            ("unseen_number", "0=1024M,1=1024M"),
            ("unseen_uuid", "0=1024M,GPU-00000000-0000-0000-0000-000000000000=1024M"),
        ]:
            client = lab.client(started.place, mib=2048, seconds=0.1, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=limit)
            found[name] = facts_of(client)
    return found


def thread_percentages(lab: Lab) -> Facts:
    """Count the multiprocessors a client sees: by default, by the daemon's default, by its own environment, above the
    default."""
    found: Facts = {}
    with daemon(lab, "a") as started:
        found["none"] = facts_of(lab.client(started.place, seconds=0.1))
        found["own_25"] = facts_of(lab.client(started.place, seconds=0.1, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="25"))
    with daemon(lab, "b", default="set_default_active_thread_percentage 50") as started:
        found["default_50"] = facts_of(lab.client(started.place, seconds=0.1))
        found["default_50_own_100"] = facts_of(
            lab.client(started.place, seconds=0.1, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="100")
        )
        found["default_50_own_25"] = facts_of(
            lab.client(started.place, seconds=0.1, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="25")
        )
        server = started.servers[0].pid
        control.ask(started.place, f"set_active_thread_percentage {server} 10", soon())
        found["server_10_next_client"] = facts_of(lab.client(started.place, seconds=0.1))
    return found


def terminating_a_client(lab: Lab) -> Facts:
    """Return what terminate_client says, how long it takes, what the client and its neighbour see."""
    with daemon(lab, "a") as started:
        place, server = started.place, started.servers[0].pid
        victim, neighbour = lab.client(place, seconds=60), lab.client(place, seconds=8)
        facts_of(victim), facts_of(neighbour)
        said = raw(place, f"terminate_client {server} {victim.pid}\n", seconds=30)
        end = ending(victim)
        return {
            "said": said,
            "victim": end,
            "health": str(front_ends.examine(place, soon())),
            "other": ending(neighbour),
        }


def quitting_with_clients(lab: Lab) -> Facts:
    """Send `quit` and `quit -t 2` with an idle client that stays; exit codes, times, what the client sees."""
    found: Facts = {}
    for name, command in (("quit", "quit\n"), ("quit -t 2", "quit -t 2\n")):
        place = lab.place(name.replace(" ", ""))
        actuator.start(place, soon(60))
        client = lab.client(place, seconds=25)
        facts_of(client)
        found[name] = raw(place, command, seconds=8)
        found[f"{name}: daemon afterwards"] = str(processes.read_daemon(place))
        found[f"{name}: client"] = ending(client)
        time.sleep(1)
        found[f"{name}: daemon after its client"] = str(processes.read_daemon(place))
        actuator.stop(place, soon(20))
    place = lab.place("ours")
    actuator.start(place, soon(60))
    client = lab.client(place, seconds=60)
    facts_of(client)
    stopped = actuator.stop(place, soon(20))
    found["our stop"] = {"how": stopped.how, "s": stopped.seconds, "notes": stopped.notes, "left": str(stopped.left)}
    found["our stop: client"] = ending(client)
    return found


def a_killed_daemon(lab: Lab) -> Facts:
    """Kill the daemon under a client: does the server live on, does the client, is it found and ended."""
    place = lab.place("a")
    started = actuator.start(place, soon(60))
    client = lab.client(place, seconds=10)
    facts_of(client)
    process.end(started.daemon, signal.SIGKILL)
    time.sleep(1)
    found: Facts = {
        "health": str(front_ends.examine(place, soon())),
        "mps_processes": [str(one) for one in processes.read_processes()],
        "found_servers": [str(one) for one in processes.servers_of(processes.read_processes(), place)],
        "client": ending(client),
        "client_after_it": facts_of(lab.client(place, seconds=0.1)),
    }
    stopped = actuator.stop(place, soon(20))
    found["stop"] = {"how": stopped.how, "notes": stopped.notes, "left": str(stopped.left)}
    return found


def a_root_daemon_in_a_root_folder(lab: Lab) -> Facts:
    """Use a pipe directory 0711 of root's: can the server of another user work in it. Then a second user comes."""
    place = lab.place("a", Owner(0, 0))
    actuator.start(place, soon(60))
    Path(place.pipe).chmod(0o711)
    Path(place.logs).chmod(0o711)
    raw(place, f"shutdown_server {control.read_servers(place, soon())[0].pid} -f\n")
    time.sleep(1)
    first = lab.client(replace(place, owner=OWNER), seconds=6)
    found: Facts = {"first_user": facts_of(first), "servers": raw(place, "get_server_list\n")}
    second = lab.client(replace(place, owner=OTHER), seconds=0.1)
    began = time.monotonic()
    found["second_user"] = facts_of(second)
    found["second_user_waited_s"] = round(time.monotonic() - began, 2)
    found["servers_then"] = raw(place, "get_server_list\n")
    found["log"] = Path(place.logs, "control.log").read_text(errors="replace")[-3000:]
    actuator.stop(place, soon(20))
    return found


def one_client_too_many(lab: Lab) -> Facts:
    """Record the error of the 49th or 61st client. The clients' own libraries need host memory: as many as fit are
    started."""
    limit = mps_rules.clients(lab.driver)
    with daemon(lab, "a") as started:
        clients = [lab.client(started.place, mib=1, seconds=600) for _ in range(limit + 2)]
        facts = [facts_of(client) for client in clients]
        listed = control.read_clients(started.place, started.servers[0].pid, soon())
        for client in clients:
            client.terminate()
        errors = [one["error"] for one in facts if "error" in one]
        return {"expected": limit, "running": len(facts) - len(errors), "listed": len(listed), "errors": errors[:3]}


def private_shared_memory(lab: Lab) -> Facts:
    """Return a client with a /dev/shm of its own, as job_container/tmpfs gives it."""
    if os.geteuid() != 0:
        return {"not asked": "needs root"}
    with daemon(lab, "a", Owner(0, 0)) as started:
        environ = {**os.environ, **control.environment(started.place), "PATH": os.environ.get("PATH", "/usr/bin")}
        script = 'mount -t tmpfs none /dev/shm && exec "$@"'
        command = ["unshare", "-m", "sh", "-c", script, "sh", *lab.argv("client"), "64", "0.1", "0"]
        child = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        lab.children.append(child)
        return facts_of(child)


def newer_options(lab: Lab) -> Facts:
    """Try -v, -multiuser-server and the v3 interface, each with a daemon of its own that is ended again."""
    found: Facts = {}
    for name, options in (
        ("-v", ("-v",)),
        ("-multiuser-server", ("-d", "-multiuser-server")),
        ("v3", ("-d", "-p", "3")),
    ):
        place = lab.place(f"n{name.strip('-')[:3]}", Owner(0, 0))
        Path(place.pipe).mkdir(parents=True)
        try:
            done = process.exchange(
                [place.program, *options], timeout_s=10, env=control.environment(place), owner=place.owner
            )
            found[name] = asdict(done)
        except SlurmShareError as error:
            found[name] = str(error)
        if processes.lock_holder(place) is not None:
            found[f"{name}: get_server_list"] = raw(place, "get_server_list\n")
            found[f"{name}: server list"] = raw(place, "server list\n")
        actuator.stop(place, soon(10))
    return found


def a_fault_of_one_client(lab: Lab) -> Facts:
    """Return an illegal access by one: the neighbour, the server's states, when it takes clients again."""
    with daemon(lab, "a") as started:
        place = started.place
        neighbour = lab.client(place, seconds=20)
        facts_of(neighbour)
        bad = lab.start(lab.argv("fault"), place.owner, control.environment(place))
        if not first_line(bad):
            return {"culprit": ending(bad)}
        assert bad.stdin is not None
        bad.stdin.write("go\n")
        bad.stdin.flush()
        states = watch_states(place, 5)
        found: Facts = {"culprit": ending(bad), "neighbour": ending(neighbour, 30), "states": states}
        found["states_after_all_ended"] = watch_states(place, 5)
        found["next_client"] = facts_of(lab.client(place, seconds=0.1))
        return found


def watch_states(place: MpsPlace, seconds: float) -> list[list[Any]]:
    """Return every change of the daemon's health, with its time."""
    seen: list[list[Any]] = []
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        health = front_ends.examine(place, soon(5))
        state = [health.condition, [[one.pid, one.status] for one in health.servers]]
        if not seen or seen[-1][1:] != state:
            seen.append([round(time.monotonic() - began, 2), *state])
        time.sleep(0.1)
    return seen


def a_client_killed_in_a_kernel(lab: Lab) -> Facts:
    """Kill a client with a kernel of some seconds in flight: neighbour, server, time until a new client works. Last."""
    with daemon(lab, "z") as started:
        place = started.place
        neighbour = lab.client(place, seconds=25)
        facts_of(neighbour)
        victim = lab.client(place, seconds=30, kernel_s=5)
        facts_of(victim)
        first_line(victim)
        victim.send_signal(signal.SIGKILL)
        states = watch_states(place, 10)
        began = time.monotonic()
        after = facts_of(lab.client(place, seconds=0.1))
        return {
            "states": states,
            "next_client": after,
            "next_client_s": round(time.monotonic() - began, 2),
            "neighbour": ending(neighbour),
            "nvml": nvml_lists(lab),
        }


def a_daemon_that_cannot_be_traced(lab: Lab) -> Facts:
    """Start a daemon as root for a user, who cannot trace it (CAP_WAKE_ALARM). Do its server and its clients work, two
    at a time and one after the other; which capabilities do daemon and server have; what of them can the user see; can
    he send them a signal?"""
    with daemon(lab, "untraced") as started:
        place = started.place
        first, second = lab.client(place, seconds=4), lab.client(place, seconds=2)
        answers = [facts_of(first), facts_of(second)]
        ends = [ending(first), ending(second)]
        found = processes.read_processes()
        capabilities = {}
        for one in found:
            lines = Path(f"/proc/{one.identity.pid}/status").read_text().splitlines()
            capabilities[one.role] = [line for line in lines if line.startswith("Cap")]
        look = (
            "import os, sys\nfor pid in sys.argv[1:]:\n for name in ('exe', 'cwd', 'environ', 'mem', 'fd', 'comm'):\n"
            "  path = f'/proc/{pid}/{name}'\n  try:\n   os.listdir(path) if name == 'fd' else os.readlink(path) "
            "if name in ('exe', 'cwd') else open(path, 'rb').close()\n   print(pid, name, 'yes')\n"
            "  except OSError as error:\n   print(pid, name, error.strerror)\n os.kill(int(pid), 0)\n"
        )
        pids = [str(one.identity.pid) for one in found]
        seen = subprocess.run(
            ["/usr/bin/python3", "-c", look, *pids], capture_output=True, text=True, check=False, **as_user(place.owner)
        )
        return {
            "clients": answers, "ends": ends, "capabilities": capabilities, "seen_by_user": seen.stdout.splitlines(),
            "said": seen.stderr[-500:], "traceable": [not user_process.is_untraceable(int(pid)) for pid in pids],
        }  # fmt: skip


QUESTIONS: tuple[Callable[[Lab], Facts], ...] = (
    start_up_times, texts_with_a_client, processes_of_a_daemon, memory_of_an_idle_server, memory_limits,
    thread_percentages, terminating_a_client, quitting_with_clients, a_killed_daemon, a_root_daemon_in_a_root_folder,
    one_client_too_many, private_shared_memory, newer_options, a_fault_of_one_client,
    a_client_killed_in_a_kernel, a_daemon_that_cannot_be_traced,
)  # fmt: skip


def open_lab(simulated: str = "", results: Path = RESULTS) -> Lab | str:
    """Return the lab, or why there is none. simulated: the release of a driver whose GPUs to simulate."""
    if simulated:
        return _open_simulated(simulated, results)
    program = os.environ.get("MPS_CONTROL") or shutil.which("nvidia-cuda-mps-control")
    if not Path("/proc/driver/nvidia/version").exists() or program is None:
        return "no NVIDIA driver, or no nvidia-cuda-mps-control (MPS_CONTROL names one)"
    missing = [name for name in ("pynvml", "torch") if importlib.util.find_spec(name) is None]
    if missing or os.geteuid() != 0:
        return f"needs root and the Python modules pynvml and torch; missing: {missing or 'root'}"
    driver, uuid, name = _first_gpu()
    home = Path(tempfile.mkdtemp(prefix="q", dir="/tmp"))
    home.chmod(0o755)
    return Lab(program, driver, uuid, name, home, results=results)


def _open_simulated(release: str, results: Path) -> Lab | str:
    """Return the lab of a simulated GPU. The library stands in for NVML under LD_LIBRARY_PATH, which holds for programs
    that start with it (`main`)."""
    if os.geteuid() != 0 or "SIMGPU_STATE" not in os.environ:
        return "simulated GPUs need root, and start by --simulated"
    home = Path(tempfile.mkdtemp(prefix="q", dir="/tmp"))
    home.chmod(0o755)
    subprocess.run([SIMULATOR / "simgpu-init", "1", "--replace", "--driver", release], check=True)
    driver, uuid, name = _first_gpu()
    program = str(SIMULATOR / "nvidia-cuda-mps-control")
    return Lab(program, driver, uuid, name, home, is_simulated=True, results=results)


def _first_gpu() -> tuple[str, str, str]:
    """Return the driver's version, and UUID and name of the first GPU."""
    import pynvml

    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        version, uuid = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlDeviceGetUUID(handle)
        return version, uuid, pynvml.nvmlDeviceGetName(handle)
    finally:
        pynvml.nvmlShutdown()


def head_of(lab: Lab, name: str) -> Facts:
    """Return the first fields of a result file."""
    return {
        "bench": name,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, Linux {platform.release()}",
        "gpu": lab.gpu_name,
        "driver": lab.driver,
    } | ({"simulated": "these GPUs are simulated: the answers are no measurements"} if lab.is_simulated else {})


def ask_all(lab: Lab, questions: tuple[Callable[[Lab], Facts], ...] = QUESTIONS, name: str = "mps_questions") -> Path:
    """Answer every question, each in its own folder; write the answers to the file after each."""
    lab.results.mkdir(exist_ok=True, parents=True)
    file = lab.results / f"{name}-{lab.driver}.json"
    rows: list[Facts] = []
    head = head_of(lab, name)
    try:
        for question in questions:
            began = time.monotonic()
            row: Facts = {"question": question.__name__, "asked": (question.__doc__ or "").strip()}
            try:
                row["answer"] = question(lab)
            except Exception:  # noqa: BLE001  (the next question is asked all the same)
                row["failed"] = traceback.format_exc()[-2000:]
            row["s"] = round(time.monotonic() - began, 1)
            rows.append(row)
            file.write_text(json.dumps({**head, "rows": rows}, indent=1, default=str) + "\n")
            how = "failed" if "failed" in row else "answered"
            print(f"{question.__name__}: {how} in {row['s']} s{' (simulated)' * lab.is_simulated}", flush=True)
    finally:
        lab.close()
    if "OUT" in os.environ:
        shutil.copy(file, os.environ["OUT"])
    return file


def main(argv: list[str]) -> int:
    import newest_mps_questions

    parser = argparse.ArgumentParser(description="Ask questions about MPS that only a GPU can answer.")
    parser.add_argument(
        "--simulated", default="", metavar="RELEASE", help="ask simulated GPUs with this driver instead"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER", help="where to write the answers")
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help="names of questions; none: all")
    arguments = parser.parse_args(argv)
    everything = (*QUESTIONS, *newest_mps_questions.QUESTIONS)
    if wrong := set(arguments.questions) - {one.__name__ for one in everything}:
        parser.error(f"no such question: {', '.join(sorted(wrong))}")
    if arguments.simulated and "SIMGPU_STATE" not in os.environ:
        return _again_with_simulated_driver(argv)
    lab = open_lab(arguments.simulated, arguments.out)
    if isinstance(lab, str):
        print(f"mps_questions: {lab}", file=sys.stderr)
        return 1
    chosen = tuple(one for one in everything if not arguments.questions or one.__name__ in arguments.questions)
    print(ask_all(lab, chosen))
    return 0


def _again_with_simulated_driver(argv: list[str]) -> int:
    """Run this command again, where libnvidia-ml is the simulated one."""
    with tempfile.TemporaryDirectory(prefix="q", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        subprocess.run(["make", "-s", "-C", SIMULATOR, f"BUILD={folder}/lib"], check=True)
        environ = {**os.environ, "SIMGPU_STATE": f"{folder}/state", "LD_LIBRARY_PATH": f"{folder}/lib"}
        return subprocess.run([sys.executable, __file__, *argv], env=environ, check=False).returncode


if __name__ == "__main__":
    # As a module of its own name, so that the newest questions and this command share one.
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    import mps_questions

    sys.exit(mps_questions.main(sys.argv[1:]))
