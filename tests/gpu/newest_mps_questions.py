"""Questions about static partitions (driver 590), protocol 3 (615) and what is newer. See mps_questions.py, which asks
them.

A question that the driver cannot answer says so under "not asked". Texts and exit codes are kept as they are, so that
the control program of packaging/demo/simgpu can be compared with them.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import mps_questions
from mps_questions import OWNER, Facts, Lab, ending, facts_of, first_line, soon

from slurm_share.core import process
from slurm_share.core.errors import SlurmShareError
from slurm_share.core.process import Deadline
from slurm_share.core.records import Owner
from slurm_share.mps import control, processes
from slurm_share.mps import daemons as actuator
from slurm_share.mps.records import MpsPlace

PRODUCT = """
import json, torch
torch.manual_seed(0)
a, b = torch.randn(512, 1024), torch.randn(1024, 1024)
wanted = a @ b
got = (a.bfloat16().cuda() @ b.bfloat16().cuda()).float().cpu()
print(json.dumps({
    "multiprocessors": torch.cuda.get_device_properties(0).multi_processor_count,
    "relative_error": float((got - wanted).norm() / wanted.norm()),
    "torch": torch.__version__, "cuda": torch.version.cuda,
}), flush=True)
"""

LOAD = """
import json, sys, time, torch
kind, seconds = sys.argv[1], float(sys.argv[2])
if kind == "memory":
    x = torch.zeros(1 << 28, device="cuda")
    work = lambda: x.add_(1)
else:
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    work = lambda: a @ a
for _ in range(10):
    work()
torch.cuda.synchronize()
print("ready", flush=True)
sys.stdin.readline()
began, count = time.monotonic(), 0
while time.monotonic() - began < seconds:
    for _ in range(5):
        work()
    torch.cuda.synchronize()
    count += 5
print(json.dumps({
    "per_s": round(count / (time.monotonic() - began), 2),
    "multiprocessors": torch.cuda.get_device_properties(0).multi_processor_count,
}), flush=True)
"""

FAULT = """
import sys, torch
kind = sys.argv[1] if len(sys.argv) > 1 else "assert"
x = torch.zeros(16, device="cuda"); torch.cuda.synchronize()
if kind == "address":
    source = 'extern "C" __global__ void bad(float *p) { *(volatile float *)0x10 = *p; }'
    kernel = torch.cuda._compile_kernel(source, "bad")
elif kind == "trap":
    kernel = torch.cuda._compile_kernel('extern "C" __global__ void bad(float *p) { asm("trap;"); }', "bad")
print("ready", flush=True); sys.stdin.readline()
try:
    if kind == "assert":
        x.index_select(0, torch.full((1 << 20,), 1 << 40, dtype=torch.int64, device="cuda"))
    else:
        kernel((1, 1, 1), (1, 1, 1), (x,))
    torch.cuda.synchronize()
except BaseException as error:
    print(str(error)[:300], file=sys.stderr); sys.exit(1)
"""

mps_questions.PROGRAMS.update(product=PRODUCT, load=LOAD, fault=FAULT)

SINCE_STATIC, SINCE_V3, SINCE_ROUTES = 590, 615, 620


class Bare:
    """A daemon started by hand with some options, and the front ends that ask it."""

    def __init__(self, lab: Lab, name: str, owner: Owner = OWNER, protocol: str = "2") -> None:
        self.lab = lab
        self.place: MpsPlace = lab.place(f"{name}{len(lab.places)}", owner)
        self.protocol = protocol
        folder = Path(self.place.pipe)
        folder.mkdir(parents=True)
        for one in (folder, folder.parent):
            os.chown(one, owner.uid, owner.gid)

    def environ(self, **more: str) -> dict[str, str]:
        return {**control.environment(self.place), "CUDA_MPS_PROTOCOL_VERSION": self.protocol, **more}

    def run(self, *argv: str, text: str = "", seconds: float = 30, uid: int | None = None, **more: str) -> Facts:
        """Run the control program; return all of its result."""
        owner = self.place.owner if uid is None else Owner(uid, uid, (uid,))
        began = time.monotonic()
        try:
            done = process.exchange(
                [self.place.program, *argv], text=text, timeout_s=seconds, env=self.environ(**more), owner=owner
            )
        except SlurmShareError as error:
            return {"argv": argv, "text": text, "error": str(error)}
        took = round(time.monotonic() - began, 3)
        return {"argv": argv, "text": text, "code": done.code, "stdout": done.stdout, "stderr": done.stderr, "s": took}

    def say(self, command: str) -> Facts:
        return self.run(text=f"{command}\n")

    def client(self, mib: int = 64, seconds: float = 30, **more: str) -> subprocess.Popen[str]:
        return self.lab.client(self.place, mib, seconds, **more)

    def other(self, kind: str, *arguments: str, **more: str) -> subprocess.Popen[str]:
        """Start another kind of client (mps_questions.PROGRAMS)."""
        argv = [*self.lab.argv(kind), *arguments]
        return self.lab.start(argv, self.place.owner, {**control.environment(self.place), **more})

    def add(self, chunks: int) -> str | None:
        """Make a static partition; return its name, the value of CUDA_MPS_SM_PARTITION."""
        words = str(self.say(f"sm_partition add {self.place.gpu} {chunks}").get("stdout", "")).split()
        return next((word for word in words if word.startswith(f"{self.place.gpu}/")), None)

    def pid(self) -> int | None:
        holder = processes.lock_holder(self.place)
        return None if holder is None else holder.pid

    def end(self) -> None:
        """End daemon and servers, in whatever way works."""
        if self.pid() is None:
            return
        if self.protocol == "3":
            self.run("-q", seconds=20)
        else:
            self.run(text="quit -t 1\n", seconds=20)
        with suppress(SlurmShareError, OSError):
            actuator.stop(self.place, soon(20))


@contextmanager
def bare(lab: Lab, name: str, *options: str, owner: Owner = OWNER, protocol: str = "2") -> Iterator[Bare]:
    """Run a daemon with these options while the block runs."""
    found = Bare(lab, name, owner, protocol)
    try:
        yield_ = found.run(*options)
        if found.pid() is None:
            raise RuntimeError(f"no daemon by {options}: {yield_}")
        yield found
    finally:
        found.end()


def needs(lab: Lab, release: int) -> Facts | None:
    """Return the answer of a question that this driver cannot be asked."""
    return None if lab.major >= release else {"not asked": f"needs driver {release} or newer, and this is {lab.driver}"}


def chunks_of(daemon: Bare) -> int:
    """Return how many chunks the GPU has, by `lspart`: the first number of its row."""
    for line in str(daemon.say("lspart").get("stdout", "")).splitlines():
        numbers = [word for word in line.split()[1:] if word.isdecimal()]
        if line.startswith(("GPU-", "MIG-")) and len(numbers) == 4:
            return int(numbers[0])
    return 0


# ---- 1: versions ----


def versions_and_options(lab: Lab) -> Facts:
    """Ask -v, -h and -q of protocol 2, without a daemon and with one."""
    alone = Bare(lab, "v")
    found: Facts = {"driver": lab.driver}
    for option in ("-v", "--version", "-h", "--help", "-q", "--nonsense"):
        found[f"{option}, no daemon"] = alone.run(option)
    with bare(lab, "w", "-d") as daemon:
        for option in ("-v", "-q"):
            found[f"{option}, with a daemon"] = daemon.run(option)
            found[f"the daemon after {option}"] = daemon.pid() is not None
    with suppress(OSError):
        found["control.log"] = Path(daemon.place.logs, "control.log").read_text(errors="replace")[:2000]
    with suppress(RuntimeError), bare(lab, "x", "-d", "-S", "-q") as daemon:
        found["-d -S -q: lspart"] = daemon.say("lspart")
    return found


# ---- 2 to 7: static partitions ----


def words_of_static_partitions(lab: Lab) -> Facts:
    """Start a -S daemon as an ordinary user: times, and what every command about partitions says, as standard input and
    as one argument; then the same words to a daemon without -S."""
    if refusal := needs(lab, SINCE_STATIC):
        return refusal
    found: Facts = {}
    with bare(lab, "s", "-S", "-d") as daemon:
        gpu = daemon.place.gpu
        found["empty"] = [daemon.say(one) for one in ("lspart", "device_query", "device_query --csv")]
        began = time.monotonic()
        found["first add"] = daemon.say(f"sm_partition add {gpu} 1")
        found["first_add_s"] = round(time.monotonic() - began, 3)
        name = daemon.add(2)
        total = chunks_of(daemon)
        client = daemon.client(seconds=60, CUDA_MPS_SM_PARTITION=name or "")
        found["client"] = facts_of(client)
        uuid, _, id_ = (name or "/").partition("/")
        commands = [
            f"sm_partition add {gpu[:12]} 1", f"sm_partition add {gpu} {total + 1}", f"sm_partition add {gpu} 0",
            "sm_partition add GPU-00000000 1", "sm_partition", f"sm_partition rm {uuid} {id_}",
            f"sm_partition rm {uuid} nonsense", "lspart", "device_query", "ps",
        ]  # fmt: skip
        found["with a client"] = [daemon.say(one) for one in commands]
        found["as one argument"] = [daemon.run(one) for one in ("lspart", f"sm_partition add {gpu} 1")]
        found["as several arguments"] = daemon.run("sm_partition", "add", gpu, "1")
        client.kill()
        client.communicate()
        time.sleep(1)
        found["rm, without a client"] = daemon.say(f"sm_partition rm {uuid} {id_}")
        found["rm, with a slash"] = daemon.say(f"sm_partition rm {daemon.add(1)}")
        found["a foreign user's add"] = daemon.run(text=f"sm_partition add {gpu} 1\n", uid=mps_questions.OTHER.uid)
        found["quit"] = daemon.say("quit")
    with bare(lab, "t", "-d") as daemon:
        words = [f"sm_partition add {daemon.place.gpu} 1", "lspart", "device_query"]
        found["without -S"] = [daemon.say(one) for one in words]
    return found


def last_word_with_static_partitions(lab: Lab) -> Facts:
    """Send a command and an unknown one over one connection, as our own driver does, to a -S daemon."""
    if refusal := needs(lab, SINCE_STATIC):
        return refusal
    with bare(lab, "s", "-S", "-d") as daemon:
        words = ("lspart", f"sm_partition add {daemon.place.gpu} 1", "get_server_list")
        return {one: control.ask(daemon.place, one, soon()) for one in words}


def partitions_and_visible_devices(lab: Lab) -> Facts:
    """Name the GPU by number, by UUID and not at all beside a partition; name a partition to a daemon without -S."""
    if refusal := needs(lab, SINCE_STATIC):
        return refusal
    found: Facts = {}
    with bare(lab, "s", "-S", "-d") as daemon:
        name = daemon.add(2) or ""
        for devices in (daemon.place.gpu, "0"):
            client = daemon.client(seconds=0.1, CUDA_MPS_SM_PARTITION=name, CUDA_VISIBLE_DEVICES=devices)
            found[f"CUDA_VISIBLE_DEVICES={devices[:4]}"] = facts_of(client)
        found["no partition"] = facts_of(daemon.client(seconds=0.1))
        wrong = f"{daemon.place.gpu}/DxAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
        found["unknown partition"] = facts_of(daemon.client(seconds=0.1, CUDA_MPS_SM_PARTITION=wrong))
    with bare(lab, "t", "-d") as daemon:
        found["a daemon without -S"] = facts_of(daemon.client(seconds=0.1, CUDA_MPS_SM_PARTITION=name))
    return found


def limits_with_static_partitions(lab: Lab) -> Facts:
    """Set memory limits and percentages beside a partition."""
    if refusal := needs(lab, SINCE_STATIC):
        return refusal
    found: Facts = {}
    with bare(lab, "s", "-S", "-d") as daemon:
        mine = {"CUDA_MPS_SM_PARTITION": daemon.add(2) or ""}
        for name, mib, more in (
            ("2048 MiB, limit 1024M", 2048, {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1024M"}),
            ("256 MiB, limit 1024M", 256, {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1024M"}),
            ("10 percent", 64, {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "10"}),
        ):
            found[name] = facts_of(daemon.client(mib, 0.1, **mine, **more))
        found["set_default_active_thread_percentage"] = daemon.say("set_default_active_thread_percentage 10")
        found["10 percent by the daemon"] = facts_of(daemon.client(64, 0.1, **mine))
    return found


def faults_with_static_partitions(lab: Lab) -> Facts:
    """Kill a client, and let one commit a fault, in one of two partitions: who ends, what partitions and ids
    are left; then the same after the server was restarted."""
    if refusal := needs(lab, SINCE_STATIC):
        return refusal
    found: Facts = {}
    for kind in ("kill", "assert", "trap", "address"):
        with bare(lab, kind[:2], "-S", "-d") as daemon:
            here, there = daemon.add(2) or "", daemon.add(2) or ""
            before = daemon.say("lspart")["stdout"]
            seconds = 5 if lab.is_simulated else 25
            beside, elsewhere = (daemon.client(64, seconds, CUDA_MPS_SM_PARTITION=one) for one in (here, there))
            row: Facts = {"started": [facts_of(beside), facts_of(elsewhere)]}
            bad = daemon.other("fault", "assert" if kind == "kill" else kind, CUDA_MPS_SM_PARTITION=here)
            if not first_line(bad):
                found[kind] = {"not asked": ending(bad)}
                continue
            if kind == "kill":
                bad.kill()
            else:
                assert bad.stdin is not None
                bad.stdin.write("go\n")
                bad.stdin.flush()
            row["culprit"] = ending(bad)
            row["same partition"], row["other partition"] = ending(beside, 40), ending(elsewhere, 40)
            server = str(daemon.say("get_server_list").get("stdout", "")).strip()
            row["server"] = daemon.say(f"get_server_status {server}")
            row["partitions_are_the_same"] = daemon.say("lspart")["stdout"] == before
            row["next client"] = facts_of(daemon.client(seconds=0.1, CUDA_MPS_SM_PARTITION=here))
            daemon.say(f"shutdown_server {server} -f")
            time.sleep(2)
            row["after the server's end"] = daemon.say("lspart")
            row["client after it"] = facts_of(daemon.client(seconds=0.1, CUDA_MPS_SM_PARTITION=here))
            found[kind] = row
    return found


def ids_of_partitions(lab: Lab) -> Facts:
    """Make the same layout in two daemons, and another one: are the ids the same?"""
    if refusal := needs(lab, SINCE_STATIC):
        return refusal
    found: Facts = {}
    for name, sizes in (("a", (2, 3, 1)), ("b", (2, 3, 1)), ("c", (1, 2, 3))):
        with bare(lab, name, "-S", "-d") as daemon:
            found[name] = [(daemon.add(size) or "/").partition("/")[2] for size in sizes]
    found["same_layout_same_ids"] = found["a"] == found["b"]
    return found


# ---- 8, 9: numbers ----


def products_at_every_size(lab: Lab) -> Facts:
    """Compare a BF16 product with FP32 on the CPU, at every number of chunks and at some percentages."""
    found: Facts = {}
    if lab.major >= SINCE_STATIC:
        with bare(lab, "s", "-S", "-d") as daemon:
            for size in range(1, chunks_of(daemon) + 1):
                name = daemon.add(size) or ""
                child = daemon.other("product", CUDA_MPS_SM_PARTITION=name)
                found[f"{size} chunks"] = facts_of(child)
                child.communicate()
                daemon.say(f"sm_partition rm {name}")
    with bare(lab, "p", "-d") as daemon:
        for percent in (10, 25, 33, 43, 50, 75, 100):
            child = daemon.other("product", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=str(percent))
            found[f"{percent} percent"] = facts_of(child)
            child.communicate()
    wrong = {name: one.get("relative_error") for name, one in found.items() if (one.get("relative_error") or 0) > 0.01}
    return {"wrong": wrong, "all": found}


def neighbours_by_method(lab: Lab, seconds: float = 5) -> Facts:
    """Run a compute-bound and a memory-bound program beside each other: free, even, static; and each alone."""
    seconds = 0.2 if lab.is_simulated else seconds
    found: Facts = {}

    def pair(
        daemon: Bare, environs: list[dict[str, str]], kinds: tuple[str, ...] = ("compute", "memory")
    ) -> list[Facts]:
        children = [
            daemon.other("load", kind, str(seconds), **environ) for kind, environ in zip(kinds, environs, strict=True)
        ]
        ready = [first_line(child) for child in children]
        for child, line in zip(children, ready, strict=True):
            if line and child.stdin is not None:
                child.stdin.write("go\n")
                child.stdin.flush()
        said = [first_line(child, seconds + 60) for child in children]
        return [json.loads(line) if line else ending(child) for line, child in zip(said, children, strict=True)]

    with bare(lab, "f", "-d") as daemon:
        for kind in ("compute", "memory"):
            found[f"{kind} alone"] = pair(daemon, [{}], (kind,))
        found["free"] = [pair(daemon, [{}, {}]) for _ in range(3)]
        half = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}
        found["even"] = [pair(daemon, [half, half]) for _ in range(3)]
    if lab.major >= SINCE_STATIC:
        with bare(lab, "s", "-S", "-d") as daemon:
            size = chunks_of(daemon) // 2
            halves = [{"CUDA_MPS_SM_PARTITION": daemon.add(size) or ""} for _ in range(2)]
            found["static"] = [pair(daemon, halves) for _ in range(3)]
    return found


def clients_by_connections(lab: Lab) -> Facts:
    """Start clients with CUDA_DEVICE_MAX_CONNECTIONS=8 until one is refused."""
    found: Facts = {}
    with mps_questions.daemon(lab, "c") as started:
        clients, error = 0, None
        for _ in range(64):
            child = lab.client(started.place, mib=1, seconds=120, CUDA_DEVICE_MAX_CONNECTIONS="8")
            facts = facts_of(child)
            if "error" in facts:
                error = facts
                break
            clients += 1
        found = {"running": clients, "refused": error}
        for child in lab.children:
            if child.poll() is None:
                child.terminate()
    return found


# ---- 10, 11: protocol 3 ----

FILE = """schema_version = "1.0"
[servers.s]
active_thread_percentage = "10"
[servers.s.namespaces.slot_0]
pinned_memory_limit = "1G"
active_thread_percentage = "25"
[servers.s.namespaces.slot_1]
"""


@contextmanager
def with_file(lab: Lab, name: str, text: str = FILE) -> Iterator[Bare]:
    """Run a daemon of protocol 3 with this file, and wait for its server."""
    file = lab.home / f"{name}.toml"
    file.write_text(text)
    with bare(lab, name, "-p", "3", "-d", "-a", str(file), protocol="3") as daemon:
        end = Deadline.after(60)
        while end.left() > 0 and ",Ready," not in str(daemon.run("server", "list", "--format=csv,noheader")):
            time.sleep(0.05)
        yield daemon


def words_of_protocol_3(lab: Lab) -> Facts:
    """Ask every module for its lists in both forms and its help, and collect the exit code and text of each failure."""
    if refusal := needs(lab, SINCE_V3):
        return refusal
    found: Facts = {}
    with with_file(lab, "w") as daemon:
        client = daemon.client(seconds=60, CUDA_MPS_PIPE_DIRECTORY=f"{daemon.place.pipe}/s/slot_1")
        found["client"] = facts_of(client)
        modules = ("server", "namespace", "client", "device", "sm-partition", "feature", "memacct", "context-share")
        found["help"] = [daemon.run(*words, "help") for words in ((), *((module,) for module in modules))]
        lists = [(module, "list") for module in modules[:5]] + [("feature", "describe"), ("memacct", "describe")]
        found["lists"] = [daemon.run(*words, form) for words in lists for form in ("--format=table", "--format=csv")]
        found["client list --all"] = daemon.run("client", "list", "--all", "--format=csv,noheader")
        pid = str(client.pid)
        found["fields"] = [
            daemon.run(*words.split())
            for words in (
                "server get s pipe-directory", "server get s pipe_directory", "server get s status",
                "namespace get slot_0 s pinned-memory-limit", "namespace get slot_0 s active-thread-percentage",
                "namespace get slot_1 s pinned-memory-limit", *(f"client get {pid} {name}" for name in CLIENT_FIELDS),
            )
        ]  # fmt: skip
        found["failures"] = [daemon.run(*words.split()) for words in FAILURES]
        found["a foreign user"] = daemon.run(
            "namespace", "set", "slot_0", "--server=s", "--client-priority=1", uid=mps_questions.OTHER.uid
        )
        found["terminate"] = daemon.run("client", "terminate", pid)
        found["terminated"] = ending(client)
        found["as one argument"] = daemon.run("server list")
        found["a v2 command"] = daemon.say("get_server_list")
        found["partition"] = daemon.run("sm-partition", "create", "p", "--server=s", "--device=0", "--chunks=2")
        found["partitions"] = daemon.run("sm-partition", "list", "--server=s", "--all", "--format=csv")
        found["files"] = sorted(str(one.relative_to(daemon.place.pipe)) for one in Path(daemon.place.pipe).rglob("*"))
        found["absent GPU"] = daemon.run(
            "server", "create", "x", "--allowed-devices=GPU-00000000-0000-0000-0000-000000000000"
        )
        time.sleep(2)
        found["absent GPU: list"] = daemon.run("server", "list", "x")
        found["-q"] = daemon.run("-q")
        found["-q again"] = daemon.run("-q")
    return found


CLIENT_FIELDS = ("pid", "server", "device", "pci-id", "linux-ns", "maws-ns", "cmd")
FAILURES = (
    "bogus", "server bogus", "server list nobody", "server create s", "server create Upper-Case",
    "server delete nobody",
    "server get s nonsense", "namespace create slot_0 --server=s", "namespace create a --server=nobody",
    "namespace set slot_0 --server=s", "namespace set slot_0 --server=s --active-thread-percentage=101",
    "namespace set slot_0 --server=s --pinned-memory-limit=much", "namespace delete nobody --server=s",
    "namespace delete default --server=s", "namespace delete slot_1 --server=s", "server delete s",
    "namespace set slot_1 --server=s --active-thread-percentage=50", "client terminate 1", "client get 1 cmd",
    "sm-partition create p --server=s --device=0 --chunks=999", "feature enable nonsense", "memacct set nonsense=1",
)  # fmt: skip


def starts_of_protocol_3(lab: Lab) -> Facts:
    """Time starts with 1 and 16 namespaces; ask several front ends at once; find the longest pipe directory; try values
    as strings and as numbers, wrong keys, and -f with an input that ends."""
    if refusal := needs(lab, SINCE_V3):
        return refusal
    found: Facts = {}
    for count in (1, 16):
        text = "[servers.s]\n" + "".join(f"[servers.s.namespaces.slot_{one}]\n" for one in range(count))
        began = time.monotonic()
        with with_file(lab, f"n{count}", text) as daemon:
            found[f"{count} namespaces: ready_s"] = round(time.monotonic() - began, 3)
            env = daemon.environ()
            argv = [daemon.place.program, "server", "list", "--format=csv,noheader"]
            children = [lab.start(argv, daemon.place.owner, env) for _ in range(16)]
            ends = [child.communicate(timeout=60) for child in children]
            codes = [child.returncode for child in children]
            found[f"{count} namespaces: 16 front ends at once"] = {"codes": codes, "said": [one[0] for one in ends][:2]}
    for name, text in FILES.items():
        one = Bare(lab, name, protocol="3")
        file = lab.home / f"{name}.toml"
        file.write_text(text)
        found[f"file: {name}"] = one.run("-p", "3", "-d", "-a", str(file))
        found[f"file: {name}: daemon"] = one.pid() is not None
        one.end()
    found["longest pipe directory"] = longest_pipe(lab)
    one = Bare(lab, "fg", protocol="3")
    found["-f with an empty input"] = one.run("-p", "3", "-f", seconds=20)
    one.end()
    return found


FILES = {
    "strings": FILE,
    "numbers": "[servers.s]\nactive_thread_percentage = 10\nclient_priority = 0\n",
    "unknown key": "[servers.s]\ncolour = 1\n",
    "no syntax": "[servers.s\n",
    "no version": "[servers.s]\n",
    "uid of another": "[servers.s]\nuid = 1\n",
}


def longest_pipe(lab: Lab) -> Facts:
    """Return exit codes of starts by the length of the pipe directory, around the lengths that may be the last."""
    found: Facts = {}
    for size in (86, 87, 88, 89, 98, 99, 100, 116, 117):
        one = Bare(lab, f"l{size}", protocol="3")
        base = one.place.pipe.rpartition("/")[0]
        pipe = f"{base}/{'p' * (size - len(base) - 1)}"
        done = one.run("-p", "3", "-d", CUDA_MPS_PIPE_DIRECTORY=pipe)
        found[str(size)] = {"code": done.get("code"), "stdout": done.get("stdout")}
        if done.get("code") == 0:
            found[str(size)]["namespace"] = one.run(
                "namespace", "create", "slot_15", "--server=s", CUDA_MPS_PIPE_DIRECTORY=pipe
            ) | {"before": one.run("server", "create", "s", CUDA_MPS_PIPE_DIRECTORY=pipe)}
            one.run("-q", CUDA_MPS_PIPE_DIRECTORY=pipe)
    return found


def caps_of_namespaces(lab: Lab) -> Facts:
    """Count multiprocessors and allocate memory in namespaces with caps, against the client's own variables; set a cap
    with a client attached; use `default` at 10 percent, the server's own socket and the daemon's."""
    if refusal := needs(lab, SINCE_V3):
        return refusal
    found: Facts = {}
    with with_file(lab, "c") as daemon:
        pipe = daemon.place.pipe

        def ask(name: str, space: str, mib: int = 64, **more: str) -> None:
            found[name] = facts_of(daemon.client(mib, 0.1, CUDA_MPS_PIPE_DIRECTORY=f"{pipe}{space}", **more))

        for percent in ("10", "50", "100"):
            ask(f"25 percent, own {percent}", "/s/slot_0", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=percent)
        ask("25 percent", "/s/slot_0")
        ask("no cap", "/s/slot_1")
        ask("default, 10 percent", "/s/default")
        ask("the server's socket", "/s")
        ask("the daemon's socket", "")
        ask("a namespace that is not there", "/s/slot_9")
        for limit in ("", "0=512M", "0=4G", "0=1G,7=1G"):
            more = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": limit} if limit else {}
            ask(f"1G, own '{limit}', 2048 MiB", "/s/slot_0", 2048, **more)
            ask(f"1G, own '{limit}', 700 MiB", "/s/slot_0", 700, **more)
        client = daemon.client(seconds=60, CUDA_MPS_PIPE_DIRECTORY=f"{pipe}/s/slot_1")
        found["attached"] = facts_of(client)
        found["set with a client"] = daemon.run(
            "namespace", "set", "slot_1", "--server=s", "--active-thread-percentage=50"
        )
        found["delete with a client"] = daemon.run("namespace", "delete", "slot_1", "--server=s")
        found["server"] = daemon.run("server", "list", "--format=csv,noheader")
        found["clients"] = daemon.run("client", "list", "--all", "--format=csv,noheader")
        daemon.run("namespace", "set", "slot_0", "--server=s", "--active-thread-percentage=0")
        ask("0 percent", "/s/slot_0")
    return found


# ---- 13: CUDA 13.5 ----


def newer_than_protocol_3(lab: Lab) -> Facts:
    """Ask release 620 for the words of lending, weights and routes by cgroup, and let clients be routed by cgroup: of
    the daemon's socket, of no socket, of another namespace's."""
    if refusal := needs(lab, SINCE_ROUTES):
        return refusal
    found: Facts = {}
    folder = cgroup_for_routes()
    text = f"{FILE}active_thread_percentage = '40'\ncgroup = '{folder}'\ncgroup_depth = 1\n"
    with with_file(lab, "r", text) as daemon:
        words = ("server create", "server set", "namespace create", "namespace set", "sm-partition create", "feature")
        found["help"] = [daemon.run(*one.split(), "help") for one in words]
        for name, pipe in (
            ("the daemon's socket", daemon.place.pipe), ("no folder", f"{lab.home}/nowhere"),
            ("another namespace", f"{daemon.place.pipe}/s/slot_0"), ("unset", ""),
        ):  # fmt: skip
            found[name] = routed_client(daemon, folder, pipe)
            found[f"{name}, one level below"] = routed_client(daemon, f"{folder}/below", pipe)
    for one in (f"{folder}/below", folder):
        with suppress(OSError):
            Path(one).rmdir()
    return found


def cgroup_for_routes() -> str:
    """Make a cgroup with one below it, of v2 where that is mounted, and return its folder."""
    root = "/sys/fs/cgroup" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "/sys/fs/cgroup/pids"
    folder = f"{root}/mps-questions-{os.getpid()}"
    Path(folder, "below").mkdir(parents=True)
    return folder


def routed_client(daemon: Bare, cgroup: str, pipe: str) -> Facts:
    """Run a client in a cgroup, with this pipe directory; empty: unset."""
    environ = {**control.environment(daemon.place), "CUDA_MPS_PIPE_DIRECTORY": pipe}
    if not pipe:
        del environ["CUDA_MPS_PIPE_DIRECTORY"]
    become = 'uid=$1; shift; exec setpriv --reuid "$uid" --regid "$uid" --clear-groups -- "$@"'
    script = f'echo $$ >"$0/cgroup.procs" || exit; {become}'
    argv = ["sh", "-c", script, cgroup, str(daemon.place.owner.uid), *daemon.lab.argv("client"), "64", "0.1", "0"]
    return facts_of(daemon.lab.start(argv, None, environ))


QUESTIONS: tuple[Callable[[Lab], Facts], ...] = (
    versions_and_options, words_of_static_partitions, last_word_with_static_partitions, partitions_and_visible_devices,
    limits_with_static_partitions, faults_with_static_partitions, ids_of_partitions, products_at_every_size,
    neighbours_by_method, clients_by_connections, words_of_protocol_3, starts_of_protocol_3, caps_of_namespaces,
    newer_than_protocol_3,
)  # fmt: skip
