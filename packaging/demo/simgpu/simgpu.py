"""SIMULATED GPUs, the workload half: what a CUDA process does to a GPU, without computing anything.

A `Context` registers its process on one simulated GPU and holds memory there, under CUDA's rules: visible devices,
compute modes, out of memory, the limits of MPS. The simulated NVML reports what is registered. The comment at the top
of state.c describes the files and their format.

Uses only the standard library, and little of it, because a task must start fast: plain classes instead of dataclasses,
and os.path instead of pathlib, since either import costs more than all the rest.
"""

# ruff: noqa: PTH104, PTH108, PTH110, PTH112, PTH116, PTH208

from __future__ import annotations

import fcntl
import os
import select
import stat
import time

import simdriver

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import NoReturn

    import simlimits

STATE_VARIABLE = "SIMGPU_STATE"
DEFAULT_STATE = "/run/simgpu"
DEFAULT_PIPE_DIRECTORY = "/tmp/nvidia-mps"
"""Where CUDA looks for the MPS daemon if CUDA_MPS_PIPE_DIRECTORY is not set."""

ROOTS_PIPE_DIRECTORY = "/run/nvidia-mps"
"""The same for a daemon of root's with protocol 3."""

NO_MPS = "/dev/null/no-mps"
"""The same for an MPS server, which is no client of any daemon."""

REAL_DRIVER = "/proc/driver/nvidia/version"
"""Exists while NVIDIA's kernel driver is loaded; /dev/nvidia* is no proof, since libcuda makes it without a driver."""

MAX_GPUS = 64
MAX_MIG_DEVICES = 7
MULTIPROCESSORS_OF_SLICE = 16
"""Multiprocessors of a seventh of a card under MIG."""
CLIENT_LINE_SIZE = 512
GPU_FILE_SIZE = 16384

INVALID_RESOURCE = "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"
"""CUDA's error 915."""

COMPUTE_MODE_PROHIBITED = 2
COMPUTE_MODE_EXCLUSIVE_PROCESS = 3

MPS_ANSWER_TIMEOUT_S = 120.0
"""Seconds to wait for the first server of a daemon, which a loaded machine starts slowly. Then a client fails."""
LOST_CHECK_INTERVAL_S = 1.0
"""Interval at which a task checks whether its GPU is lost, and confirms its load for the energy counter (state.c)."""

ENDED_CHECK_INTERVAL_S = 0.2
"""The same for an MPS client whose memory the driver may give to another process."""

DEFAULT_IDLE_W = 52
DEFAULT_MAX_W = 275
DEFAULT_POWER_EXPONENT_PERCENT = 35
"""Power = idle + (max - idle) x (SM load) ^ exponent. The three together give the energy of 60 trainings, one at a time
on four A100, within 5 % of the measurement (Yousefzadeh 2025, Table 6.6).
"""

DRAM_OF_MEMORY_LOAD = 0.9
"""DRAM activity if only the memory controller's load is given, which is an upper bound of it."""

DEFAULT_MULTIPROCESSORS = {8: 108, 9: 132, 10: 148, 12: 188}
"""By the major compute capability: A100, H100, B200, RTX PRO 6000. 80, as a V100 has, for the others."""

ENERGY_LINE_SIZE = 128
ENERGY_LOCK_TRIES = 50
ENERGY_LOCK_PAUSE_S = 0.001

COUNTERS = ("occupancy", "tensor", "dram", "fp64", "fp32", "fp16")
"""GPM counters that a workload may state; the others are unknown."""

WANTS = ("want_sm", "want_dram", "want_util")
"""Counters of what a process would use alone, in percent, if its neighbours slow it down (simwork.py)."""

CLASH = "clash"
"""Number of the kind of work that processes do badly next to each other (simwork.py); 0: none."""

CGROUPS = "cg"
"""Inode numbers of a client's cgroup and of those above it (simlimits.py)."""

NUMBER_KEYS = ("used", "sm", "util", "mem", "mps", "mig", CLASH, *COUNTERS, *WANTS)
"""Known keys of a client file."""


KINDS = ("device", "async", "vmm", "managed", "host")
"""How memory is allocated: cudaMalloc, cudaMallocAsync, cuMemCreate, cudaMallocManaged, cudaMallocHost."""
NOT_COUNTED = ("managed", "host")
"""Kinds that no limit concerns: pages of managed memory move to the host when the card is full."""
MPS_LIMIT_COUNTS = "device,async"
"""Kinds that count against the limit of MPS. Not known from a real driver (word mps_limit_counts of the state folder's
file `driver`). Known is that the limit leaves out some (docs.nvidia.com/deploy/mps, memory partitioning)."""


class SimulationError(Exception):
    """The simulation is missing or unusable; the message is a complete sentence."""


class CudaError(SimulationError):
    """An error that CUDA would return: `name` is CUDA's name of it, `reason` our explanation."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.name} (simulated): {self.reason}"


class OutOfMemory(CudaError):
    """CUDA_ERROR_OUT_OF_MEMORY with the figures in bytes that frameworks put into their messages."""

    def __init__(self, reason: str, asked: int, used: int, free: int, total: int, others: Mapping[int, int]) -> None:
        super().__init__("CUDA_ERROR_OUT_OF_MEMORY", reason)
        self.asked = asked
        self.used = used
        """Memory held by this process."""
        self.free = free
        self.total = total
        self.others = others
        """PID -> memory held by that process."""


class Gpu:
    """One simulated GPU, as its file describes it, or with `instance` one of its MIG instances."""

    __slots__ = (
        "accounting",
        *("bus", "capability", "chunks", "instance", "instances", "mig_ids", "multiprocessors"),
        *("compute_mode", "idle_mw", "index", "lost", "max_mw", "memory_bytes", "name", "power_exponent", "uuid"),
    )

    def __init__(self, index: int, values: Mapping[str, str]) -> None:
        self.index = index
        self.uuid = values["uuid"]
        self.name = values.get("name", "Simulated GPU")
        self.memory_bytes = int(values.get("memory_mib", "1024")) << 20
        self.compute_mode = int(values.get("compute_mode", "0"))
        self.lost = values.get("lost", "0") != "0"
        self.accounting = values.get("accounting", "0") == "1"
        """Whether accounting mode is on."""
        self.instance: int | None = None
        """Number of the MIG instance; None: the card."""
        self.mig_ids: tuple[str, ...] = ()
        """Return the names of the instance: of today's drivers, and of those before 470."""
        numbers = range(MAX_MIG_DEVICES) if values.get("mig", "0") == "1" else ()
        self.instances = {number: text.split() for number in numbers if (text := values.get(f"mig{number}"))}
        """Its MIG instances by number: GPU instance, compute instance, memory in MiB, profile, UUID (state.c)."""
        self.bus = values.get("bus", f"00000000:{index + 1:02X}:00.0")
        major, _, minor = values.get("cc", "9.0").partition(".")
        self.capability = int(major), int(minor or "0")
        known = _whole(values.get("sms"))
        self.multiprocessors = DEFAULT_MULTIPROCESSORS.get(self.capability[0], 80) if known is None else known
        self.chunks = _whole(values.get("chunks"))
        """Chunks for static partitions of MPS; None: by the number of multiprocessors (simmps_partitions.py)."""
        power = _whole(values.get("idle_w")), _whole(values.get("max_w"))
        self.idle_mw = None if None in power else 1000 * (power[0] or 0)
        """None: the power is unknown."""
        self.max_mw = 1000 * (power[1] or 0)
        exponent = _whole(values.get("power_exponent_percent"))
        self.power_exponent = (DEFAULT_POWER_EXPONENT_PERCENT if exponent is None else exponent) / 100

    def take_instance(self, number: int) -> Gpu:
        """Return the record of one of its MIG instances. Raises ValueError if the file describes it wrongly."""
        gpu_instance, compute_instance, mib, profile, uuid = self.instances[number]
        made: Gpu = object.__new__(Gpu)
        for name in Gpu.__slots__:
            setattr(made, name, getattr(self, name))
        made.instance = number
        made.mig_ids = uuid, f"MIG-{self.uuid}/{gpu_instance}/{compute_instance}"
        made.uuid = uuid
        made.name = f"{self.name} MIG {profile}"
        made.memory_bytes = int(mib) << 20
        made.multiprocessors = MULTIPROCESSORS_OF_SLICE * int(profile.partition("g")[0])
        made.instances = {}
        return made

    def power_mw(self, sm_percent: int) -> float:
        """Return the power at an SM load, computed as in the simulated NVML (state.c)."""
        idle = self.idle_mw or 0
        return idle + (max(0, self.max_mw - idle) * (sm_percent / 100) ** self.power_exponent if sm_percent else 0)


class Client:
    """One live process on one GPU, as its client file describes it."""

    __slots__ = (
        *("cgroups", "clash", "instance", "mps_server", "name", "pid", "sm", "used_bytes"),
        *("want_dram", "want_sm", "want_util"),
    )

    def __init__(
        self, pid: int, numbers: Mapping[str, int], stopped: bool, name: str = "", cgroups: tuple[int, ...] = ()
    ) -> None:
        self.pid = pid
        self.name = name
        """Name of its client file."""
        self.cgroups = cgroups
        """Its cgroup and those above it; empty: unknown."""
        self.used_bytes = numbers["used"]
        self.instance = numbers.get("mig")
        """Number of its MIG instance; None: it runs on the card."""
        self.mps_server = numbers.get("mps", 0)
        """PID of its MPS server; 0: none."""
        # A stopped process keeps its memory and computes nothing.
        sm, util, mem, dram = (0 if stopped else numbers.get(key) for key in ("sm", "util", "mem", "dram"))
        self.sm = sm or 0
        """Present SM load in percent."""
        busy = self.sm if util is None else util
        dram = int((mem or 0) * DRAM_OF_MEMORY_LOAD) if dram is None else dram
        wants = (0 if stopped else numbers.get(key) for key in WANTS)
        self.want_sm, self.want_dram, self.want_util = (
            is_now if want is None else want for want, is_now in zip(wants, (self.sm, dram, busy), strict=True)
        )
        """Its use alone, in percent: of the SMs, of the DRAM's time, of its own time on the GPU."""
        self.clash = 0 if stopped else numbers.get(CLASH, 0)


class MpsConnection:
    """A client's connection to its MPS server, open as long as the client runs."""

    def __init__(
        self, line: socket.socket, server_pid: int, percentage: float, gpu_uuids: tuple[str, ...], memory_limits: str,
        partition: str = "", partition_sms: int = 0,
    ) -> None:  # fmt: skip
        self._line = line
        self.server_pid = server_pid
        self.percentage = percentage
        """The server's default active thread percentage, above 0 up to 100."""
        self.gpu_uuids = gpu_uuids
        """GPUs that the server gives its clients, in its order; empty: all of the host."""
        self.memory_limits = memory_limits
        """The server's default pinned memory limits, in the format of CUDA_MPS_PINNED_DEVICE_MEM_LIMIT."""
        self.partition = partition
        """The client's static partition, `<GPU's UUID>/<id>`; empty: the daemon has none."""
        self.partition_sms = partition_sms

    def fileno(self) -> int:
        return self._line.fileno()

    def report_fault(self) -> None:
        """Report a fault of this client to the server, which then ends all of its clients."""
        try:
            self._line.send(b"SIMGPU_FAULT\n")
        except OSError:
            pass  # no server, hence no other client to end

    def close(self) -> None:
        self._line.close()


# ---- The state folder ----


def state_folder(environ: Mapping[str, str]) -> str:
    return environ.get(STATE_VARIABLE) or DEFAULT_STATE


def refuse_real_driver() -> None:
    """Raise SimulationError if a real NVIDIA driver is loaded: the two must not be mixed."""
    if os.path.exists(REAL_DRIVER):
        raise SimulationError(
            f"a real NVIDIA driver is loaded ({REAL_DRIVER} exists); simulated GPUs refuse to stand in"
        )


def read_gpu(state: str, index: int) -> Gpu | None:
    """Return one GPU; None: there is no such index. The last line of a key wins."""
    try:
        with open(f"{state}/gpu{index}", "rb") as file:
            text = file.read(GPU_FILE_SIZE).decode(errors="replace")
    except FileNotFoundError:
        return None
    lines = (line for line in text.splitlines() if "=" in line and not line.startswith("#"))
    try:
        return Gpu(index, dict(line.split("=", 1) for line in lines))
    except (KeyError, ValueError) as error:
        raise SimulationError(f"{state}/gpu{index} does not describe a GPU: {error}") from error


def read_gpus(state: str) -> tuple[Gpu, ...]:
    """Return all GPUs of the host: gpu0, gpu1, ... up to the first missing one. Raises SimulationError without a state
    folder."""
    refuse_real_driver()
    if not os.path.isdir(state):
        raise SimulationError(f"no simulated GPUs on this host: {state} does not exist; simgpu-init makes it")
    found = []
    for index in range(MAX_GPUS):
        gpu = read_gpu(state, index)
        if gpu is None:
            break
        found.append(gpu)
    return tuple(found)


def process_identity(pid: int) -> tuple[int, int, bool] | None:
    """Return a process's start time (clock ticks after boot), its owner, and whether it is stopped; None: gone, or a
    zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            owner = os.fstat(file.fileno()).st_uid
            # the process chooses field 2, which may have blanks and brackets: continue after the last bracket
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    if fields[0] in (b"Z", b"X"):
        return None
    return int(fields[19]), owner, fields[0] == b"T"


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else None


def _parse_name(name: str) -> tuple[int, int, int] | None:
    """Parse PID, GPU index and start time from a client file's name; None: another name."""
    parts = name.split(".")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
        return None
    if name != ".".join(str(int(part)) for part in parts):
        return None
    pid, index, start = (int(part) for part in parts)
    return pid, index, start


def _read_client_line(path: str) -> tuple[dict[str, str], int] | None:
    """Return the keys of a client file and the file's owner; None: the file cannot be trusted (see state.c)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return None
    try:
        info = os.fstat(fd)
        line = os.read(fd, CLIENT_LINE_SIZE) if stat.S_ISREG(info.st_mode) else b""
    except OSError:
        return None
    finally:
        os.close(fd)
    if len(line) == CLIENT_LINE_SIZE or not line.endswith(b"\n"):
        return None
    words = [word.partition("=") for word in line[:-1].decode(errors="replace").split(" ")]
    if not all(middle for _, middle, _ in words):
        return None
    return {key: value for key, _, value in words}, info.st_uid


def live_clients(state: str, gpu: Gpu) -> list[Client]:
    """Return the live processes on a GPU, by the rules of state.c, and remove the files of dead ones if allowed."""
    clients = []
    folder = f"{state}/clients"
    for name in os.listdir(folder):
        # A half-written file is `.<name>.<number>~`; its writer may have died before the rename.
        aside = name.startswith(".") and name.endswith("~")
        identity = _parse_name(name[1:].rpartition(".")[0] if aside else name)
        if identity is None:
            continue
        pid, index, start = identity
        process = process_identity(pid)
        if process is None or process[0] != start:
            _remove_quietly(f"{folder}/{name}")
            if not aside:
                _remove_quietly(f"{state}/ended/{name}")
            continue
        if aside or index != gpu.index:
            continue
        read = _read_client_line(f"{folder}/{name}")
        if read is None:
            continue
        words, owner = read
        if owner not in (process[1], 0) or "used" not in words or has_been_ended(state, name, process[1]):
            continue
        known = {key: words[key] for key in NUMBER_KEYS if key in words}
        if not all(number.isascii() and number.isdigit() for number in known.values()):
            continue
        most = {"used": gpu.memory_bytes, "mps": 1 << 32, CLASH: 1 << 32}
        numbers = {key: min(int(number), most.get(key, 100)) for key, number in known.items()}
        cgroups = tuple(int(word) for word in words.get(CGROUPS, "").split(",") if _whole(word) is not None)
        clients.append(Client(pid, numbers, process[2], name, cgroups))
    return clients


def used_in(cgroup: int, clients: Iterable[Client], *, nests: bool) -> int:
    """Return the memory that clients hold in a cgroup; with `nests` also below it."""
    return sum(one.used_bytes for one in clients if (cgroup in one.cgroups if nests else one.cgroups[:1] == (cgroup,)))


def has_been_ended(state: str, name: str, owner: int) -> bool:
    """Return whether the driver has ended a client, whose process belongs to `owner` (simlimits.py)."""
    try:
        return os.lstat(f"{state}/ended/{name}").st_uid in (owner, 0)
    except OSError:
        return False


def _remove_quietly(path: str) -> None:
    """Remove a file; ignore those of other users, which they or root remove."""
    try:
        os.unlink(path)
    except OSError:
        pass


# ---- Energy ----


class EnergyFile:
    """The energy counter of one GPU, held locked (state.c); left unchanged if the lock is not free soon.

    A process that was stopped while it held the lock must not block the others.
    """

    def __init__(self, state: str, gpu: Gpu) -> None:
        self._gpu = gpu
        self._path = f"{state}/energy{gpu.index}"
        self._fd: int | None = None

    def __enter__(self) -> EnergyFile:
        if self._gpu.idle_mw is None:
            return self
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            return self
        for _ in range(ENERGY_LOCK_TRIES):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(ENERGY_LOCK_PAUSE_S)
            else:
                self._fd = fd
                return self
        os.close(fd)
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def advance(self, sm_before: int, sm_after: int) -> None:
        """Add the energy used so far, with the live load `sm_before` [%] where none was confirmed; the load is
        `sm_after` from now on."""
        if self._fd is None:
            return
        read = parse_energy(os.pread(self._fd, ENERGY_LINE_SIZE, 0))
        if read is None:
            return
        at, uj, sm = read
        now = time.monotonic_ns()
        passed_us = max(0, now - at) // 1000
        confirmed_us = min(passed_us, int(LOST_CHECK_INTERVAL_S * 1_000_000))
        drawn = self._gpu.power_mw(sm) * confirmed_us
        drawn += self._gpu.power_mw(min(100, sm_before)) * (passed_us - confirmed_us)
        line = f"at={now:020} uj={uj + int(drawn / 1000):020} sm={min(100, sm_after):03}\n"
        os.pwrite(self._fd, line.encode(), 0)


def parse_energy(line: bytes) -> tuple[int, int, int] | None:
    """Parse nanoseconds of CLOCK_MONOTONIC, microjoules and SM load in percent; None: another line."""
    words = line.partition(b"\n")[0].split(b" ")
    numbers = [word[3:] for word in words if word[:3] in (b"at=", b"uj=", b"sm=") and word[3:].isdigit()]
    if len(words) != 3 or len(numbers) != 3 or int(numbers[2]) > 100:
        return None
    return int(numbers[0]), int(numbers[1]), int(numbers[2])


# ---- CUDA's rules, as plain functions ----


def _mig_instances(gpus: Iterable[Gpu]) -> list[Gpu]:
    """Return all MIG instances, each card's in order of their numbers."""
    return [gpu.take_instance(number) for gpu in gpus for number in gpu.instances]


def visible_gpus(gpus: tuple[Gpu, ...], variable: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that a process sees, in its order, for a value of CUDA_VISIBLE_DEVICES (None: not set, all).

    Entries are indices, UUIDs or unique prefixes of UUIDs. The list ends at the first entry that names no GPU; a
    repeated entry makes all GPUs invisible. An index counts the places in `gpus`.

    A MIG instance is named by its id; a card with instances stands for the first of them. A process sees one instance
    only, the first one, and nothing else (NVIDIA's MIG guide, "CUDA Device Enumeration").
    """
    if variable is None:
        return _as_cuda_sees(gpus)
    seen: list[Gpu] = []
    for entry in variable.split(","):
        word = entry.strip()
        named: list[Gpu] = []
        if word.isascii() and word.isdigit() and len(word) < 10:
            named = list(gpus[int(word) : int(word) + 1])
        elif word.startswith("GPU-"):
            named = [gpu for gpu in gpus if gpu.uuid.startswith(word)]
        elif word.startswith("MIG-"):
            named = [one for one in (*gpus, *_mig_instances(gpus)) if word in one.mig_ids]
        if len(named) != 1:
            break
        if named[0] in seen:
            return ()
        seen.append(named[0])
    return _as_cuda_sees(seen)


def _as_cuda_sees(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Return whole cards, or one MIG instance alone if that comes first."""
    seen = [_mig_instances([gpu])[0] if gpu.instances else gpu for gpu in gpus]
    if seen and seen[0].instance is not None:
        return tuple(seen[:1])
    return tuple(gpu for gpu in seen if gpu.instance is None)


_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_size(text: str) -> int:
    """Parse "2000M", "2G", "512" (MiB, as Slurm's --mem reads it) into bytes. Raises ValueError with a sentence."""
    number, unit = text, "M"
    if text and text[-1].upper() in _UNITS:
        number, unit = text[:-1], text[-1].upper()
    if not (number.isascii() and number.isdigit() and len(number) < 16):
        raise ValueError(f"'{text}' is not a size; write a whole number with K, M, G or T, as in 2000M")
    return int(number) * _UNITS[unit]


def memory_limit(limits: str, ordinal: int) -> int | None:
    """Return the bytes allowed on device `ordinal` by a CUDA_MPS_PINNED_DEVICE_MEM_LIMIT ("0=2G,1=512M"); None: no
    limit."""
    for entry in limits.split(","):
        device, _, size = entry.strip().partition("=")
        if device.isascii() and device.isdigit() and int(device) == ordinal and size:
            try:
                return parse_size(size.upper().removesuffix("B"))
            except ValueError:
                return None
    return None


def names_unseen_gpu(limits: str, uuids: tuple[str, ...]) -> bool:
    """Return whether a CUDA_MPS_PINNED_DEVICE_MEM_LIMIT names a GPU that the process does not see, by number or UUID:
    then no limit of MPS holds, its server's included."""
    for entry in limits.split(","):
        device = entry.partition("=")[0].strip()
        number = _whole(device)
        if device and not (device in uuids if number is None else number < len(uuids)):
            return True
    return False


def thread_percentage(variable: str | None, default: float) -> float:
    """Return a client's SM percentage: the requested value, at most the server's default; a value out of range is
    ignored."""
    try:
        asked = float(variable) if variable is not None else default
    except ValueError:
        return default
    return min(asked, default) if 0 < asked <= 100 else default


# ---- MPS ----


def mps_connection(environ: Mapping[str, str]) -> MpsConnection | None:
    """Connect to the MPS server of this environment, as cuInit does.

    Returns None if no daemon can be reached: no pipe directory, no access, no listener on the socket. Like CUDA, the
    simulation then silently runs without MPS. Raises CudaError if the daemon gives no server.

    Messages on the daemon's socket `control` (SOCK_SEQPACKET):
        SIMGPU_CLIENT <pid> [partition=<CUDA_MPS_SM_PARTITION>]
        SIMGPU_SERVER pid=<pid> percentage=<number> gpus=<uuid>,<uuid> limits=0=<size>,1=<size>
            [partition=<uuid>/<id> sms=<multiprocessors of it>]
        SIMGPU_ERROR <CUDA_ERROR_...>
        SIMGPU_NONE
        SIMGPU_FAULT
    A client sends the last one after an illegal access. `gpus` and `limits` may be missing. The connection ends with
    the server. A later SIMGPU_ERROR ends this client: it was terminated, or another client's fault ended all clients
    of the server.
    """
    path = _pipe_directory(environ) + "/control"
    if not os.path.exists(path):
        return None
    import socket  # only tasks under MPS pay for this import

    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        line.connect(path)
    except OSError:
        line.close()
        return None
    try:
        line.settimeout(MPS_ANSWER_TIMEOUT_S)
        asked = "".join(environ.get("CUDA_MPS_SM_PARTITION", "").split())
        line.send(f"SIMGPU_CLIENT {os.getpid()}{' partition=' * bool(asked)}{asked[:256]}\n".encode())
        return _parse_mps_answer(line, line.recv(65536).decode(errors="replace"))
    except OSError as error:
        line.close()
        raise CudaError(
            "CUDA_ERROR_MPS_CONNECTION_FAILED", f"the MPS daemon at {path} did not answer: {error}"
        ) from error
    except CudaError:
        line.close()
        raise


def _pipe_directory(environ: Mapping[str, str]) -> str:
    """Return where a client looks for its daemon. A daemon of root's with protocol 3 is in another place, and with
    driver 620 routes by cgroup may be known (simroutes.py)."""
    state, chosen = state_folder(environ), environ.get("CUDA_MPS_PIPE_DIRECTORY")
    try:
        has_routes = chosen != NO_MPS and bool(os.listdir(f"{state}/routes"))
    except OSError:
        has_routes = False
    if has_routes:
        import simroutes

        found = simroutes.route_of_this_process(state)
        if found is not None:
            return found
    if not chosen and os.path.exists(f"{ROOTS_PIPE_DIRECTORY}/control"):
        return ROOTS_PIPE_DIRECTORY
    return chosen or DEFAULT_PIPE_DIRECTORY


def _parse_mps_answer(line: socket.socket, answer: str) -> MpsConnection | None:
    words = answer.split()
    if words == ["SIMGPU_NONE"]:  # a server of protocol 3 without a GPU: nobody says a word
        line.close()
        return None
    if words == ["SIMGPU_ERROR", INVALID_RESOURCE]:
        raise _wrong_partition("this MPS daemon has static partitions, and CUDA_MPS_SM_PARTITION names none of them")
    if len(words) == 2 and words[0] == "SIMGPU_ERROR":
        raise CudaError(words[1], "the MPS daemon gave no server")
    values = dict(word.split("=", 1) for word in words[1:] if "=" in word)
    try:
        if words[:1] != ["SIMGPU_SERVER"]:
            raise ValueError("not an answer to a client")
        return MpsConnection(
            line,
            server_pid=int(values["pid"]),
            percentage=float(values.get("percentage", "100")),
            gpu_uuids=tuple(uuid for uuid in values.get("gpus", "").split(",") if uuid),
            memory_limits=values.get("limits", ""),
            partition=values.get("partition", ""),
            partition_sms=int(values.get("sms", "0")),
        )
    except (KeyError, ValueError) as error:
        raise CudaError("CUDA_ERROR_MPS_CONNECTION_FAILED", f"the MPS daemon answered {answer[:60]!r}") from error


def _wrong_partition(reason: str) -> CudaError:
    return CudaError(INVALID_RESOURCE, f"error 915: {reason}")


def _gpus_of_server(gpus: tuple[Gpu, ...], mps: MpsConnection | None) -> tuple[Gpu, ...]:
    """Return the GPUs that a process may see: behind MPS only those of the server, numbered in its order."""
    if mps is None or not mps.gpu_uuids:
        return gpus
    by_uuid = {gpu.uuid: gpu for gpu in (*gpus, *_mig_instances(gpus))}
    return tuple(by_uuid[uuid] for uuid in mps.gpu_uuids if uuid in by_uuid)


# ---- A process on a GPU ----


class Context:
    """This process on one simulated GPU: registers it, holds memory, states load. One per process and GPU.

    `ordinal` counts the devices that this process sees. Raises CudaError as CUDA does, SimulationError if there are no
    simulated GPUs. Close it, or leave its `with` block, to free everything; a killed process is freed by its end.
    """

    def __init__(self, environ: Mapping[str, str], ordinal: int = 0) -> None:
        self._state = state_folder(environ)
        gpus = read_gpus(self._state)
        self._driver = simdriver.read_values(self._state)
        self.mps = mps_connection(environ)
        self._words: dict[str, int] = {"used": 0}
        self._held: dict[tuple[int, str], int] = {}
        """Bytes by number of the context and kind of the allocation."""
        self._driver_limits: simlimits.MemoryLimits | None = None
        """The driver's limits of this process's cgroup; None: it has no such limits."""
        self._registered = False
        self._checked_s = time.monotonic()
        self._accounted: _Accounted | None = None
        self.watch: Callable[[], None] | None = None
        """Called once a second while this process waits."""
        try:
            visible = visible_gpus(_gpus_of_server(gpus, self.mps), environ.get("CUDA_VISIBLE_DEVICES"))
            if not visible:
                raise CudaError("CUDA_ERROR_NO_DEVICE", "no GPU is visible to this process")
            if not 0 <= ordinal < len(visible):
                raise CudaError("CUDA_ERROR_INVALID_DEVICE", f"device {ordinal} of {len(visible)} visible")
            self.visible_count = len(visible)
            """Number of devices that this process sees."""
            self._index, self._instance = visible[ordinal].index, visible[ordinal].instance
            if self._instance is not None:
                self._words["mig"] = self._instance
            self._seen_uuids = tuple(gpu.uuid for gpu in visible)
            self._limits = self._memory_limits(environ, ordinal)
            back_end = self._driver.get("memory_limits", simdriver.OFF)
            if back_end != simdriver.OFF and self._instance is None:  # there are none under MIG
                import simlimits  # only tasks under such a driver pay for this import

                self._driver_limits = simlimits.MemoryLimits(self._state, self._index, back_end)
            self.percentage = 100.0
            """SM share in percent; 100 without MPS."""
            if self.mps is not None:
                self.percentage = self._share_of(visible[ordinal], self.mps, environ)
                self._words["mps"] = self.mps.server_pid
            identity = process_identity(os.getpid())
            assert identity is not None, "a running process has a start time"
            self._name = f"{os.getpid()}.{self._index}.{identity[0]}"
            self.gpu = self._read_gpu()
            self._register()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def used_bytes(self) -> int:
        return self._words["used"]

    def held_bytes(self, kind: str) -> int:
        """Return the memory that was allocated in one of the ways of KINDS."""
        return sum(size for (_, one), size in self._held.items() if one == kind)

    def allocate(self, size_bytes: int, kind: str = "device", number: int = 0) -> None:
        """Allocate memory on the GPU, in one of the ways of KINDS, in this process's context of that number.

        Raises CudaError CUDA_ERROR_OUT_OF_MEMORY if the GPU, the limit of MPS or one of the driver has no room,
        CUDA_ERROR_MPS_CLIENT_TERMINATED if the driver has ended this process.
        """
        if kind in NOT_COUNTED:
            self._hold(size_bytes, number, kind)
            return
        with _Lock(self._state):
            self.gpu = self._read_gpu()
            self._hear_driver()
            others = self.neighbours()
            self._keep_mps_limit(size_bytes, kind, number)
            self._keep_driver_limits(size_bytes, others)
            held = sum(client.used_bytes for client in others)
            total = self.gpu.memory_bytes
            if held + self.used_bytes + size_bytes > total and not self._make_room(size_bytes, others):
                free = max(0, total - held - self.used_bytes)
                why = f"{_mib(size_bytes)} wanted, {_mib(free)} free of {_mib(total)}"
                raise OutOfMemory(why, size_bytes, self.used_bytes, free, total, self._by_pid(others))
            self._hold(size_bytes, number, kind)
            self._words["used"] = self.used_bytes + size_bytes
            self._write()

    @staticmethod
    def _share_of(gpu: Gpu, mps: MpsConnection, environ: Mapping[str, str]) -> float:
        """Return the SM share in percent: of a static partition, where the percentages of MPS mean nothing, or of the
        server and the client's own variable."""
        if not mps.partition:
            return thread_percentage(environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), mps.percentage)
        if not mps.partition.startswith(f"{gpu.uuid}/"):
            raise _wrong_partition(f"CUDA_MPS_SM_PARTITION names a partition of another GPU than {gpu.uuid}")
        return 100 * mps.partition_sms / max(1, gpu.multiprocessors)

    @property
    def multiprocessors(self) -> int:
        """Multiprocessors that this process sees: of its static partition, or its share in whole pairs."""
        if self.mps is not None and self.mps.partition:
            return self.mps.partition_sms
        return max(2, int(self.gpu.multiprocessors * self.percentage / 100) // 2 * 2)

    def _hold(self, size_bytes: int, number: int, kind: str) -> None:
        self._held[number, kind] = self._held.get((number, kind), 0) + size_bytes

    def _keep_mps_limit(self, size_bytes: int, kind: str, number: int) -> None:
        """Raise OutOfMemory if the MPS limit has no room. It holds for all contexts of the process together, or for
        each: that is not known from a real driver (word mps_limit_per)."""
        counted = self._driver.get("mps_limit_counts", MPS_LIMIT_COUNTS).split(",")
        if kind not in counted:
            return
        each = self._driver.get("mps_limit_per") == "context"
        held = (size for (of, one), size in self._held.items() if one in counted and (of == number or not each))
        wanted = sum(held) + size_bytes
        for limit in self._limits:
            if wanted > limit:
                why = f"{_mib(wanted)} is above the MPS limit of {_mib(limit)}"
                left = max(0, limit + size_bytes - wanted)
                raise OutOfMemory(why, size_bytes, self.used_bytes, left, self.gpu.memory_bytes, {})

    def _keep_driver_limits(self, size_bytes: int, others: Sequence[Client]) -> None:
        """Raise OutOfMemory if a hard limit of this process's cgroup, or of one above that counts, has no room."""
        limits = self._driver_limits
        if limits is None:
            return
        limits.refresh()
        for limit in limits.hard():
            used = used_in(limit.cgroup, others, nests=limits.nests) + self.used_bytes
            if used + size_bytes > limit.hard:
                why = f"{_mib(used + size_bytes)} is above the driver's limit of {_mib(limit.hard)} for its cgroup"
                total = limits.total(self.gpu.memory_bytes)
                raise OutOfMemory(why, size_bytes, self.used_bytes, max(0, limit.hard - used), total, {})

    def _make_room(self, size_bytes: int, others: Sequence[Client]) -> bool:
        """Let the driver end MPS clients that are above their guaranteed part; return whether there is room then."""
        if self._driver_limits is None:
            return False
        room = self.gpu.memory_bytes - sum(client.used_bytes for client in others) - self.used_bytes
        ended = self._driver_limits.to_end(size_bytes, self.used_bytes, others, room)
        for client in ended:
            with open(f"{self._state}/ended/{client.name}", "w"):
                pass
        return bool(ended)

    def _hear_driver(self) -> None:
        """Raise CudaError if the driver has ended this process. Like CUDA, it says so at the next call."""
        if self._driver_limits is not None and has_been_ended(self._state, self._name, os.geteuid()):
            raise CudaError("CUDA_ERROR_MPS_CLIENT_TERMINATED", "another process needed its guaranteed memory")

    @staticmethod
    def _by_pid(clients: Iterable[Client]) -> dict[int, int]:
        return {client.pid: client.used_bytes for client in clients}

    def total_bytes(self) -> int:
        """Return the total memory that this process sees: the GPU's, or the driver's limit of its own cgroup. The limit
        of MPS does not show there."""
        if self._driver_limits is None:
            return self.gpu.memory_bytes
        return self._driver_limits.total(self.gpu.memory_bytes)

    def available_bytes(self) -> int:
        """Return the memory that this process can still allocate now."""
        others = self.neighbours()
        free = [self.gpu.memory_bytes - sum(client.used_bytes for client in others), *self._limits]
        if (limits := self._driver_limits) is not None:
            free += [limit.hard - used_in(limit.cgroup, others, nests=limits.nests) for limit in limits.hard()]
        return max(0, min(free) - self.used_bytes)

    def free(self, size_bytes: int) -> None:
        """Free memory, at most what is held."""
        self._words["used"] = max(0, self.used_bytes - size_bytes)
        self._held[0, "device"] = max(0, self._held.get((0, "device"), 0) - size_bytes)
        self._write()

    def set_load(self, sm: int, memory: int = 0, counters: Iterable[tuple[str, int]] = ()) -> int:
        """State the load, each in percent; return the SM load that the MPS share leaves of it."""
        return self.state_load({"sm": self.allowed_load(sm), "mem": memory, **dict(counters)})

    def allowed_load(self, sm: int) -> int:
        """Return what the MPS share leaves of an SM load, in percent."""
        return min(sm, max(1, int(self.percentage))) if sm else 0

    def state_load(self, words: Mapping[str, int]) -> int:
        """Write keys of the client file (state.c), in percent, and update the energy counter; return the SM load."""
        before = self._words.get("sm", 0)
        self._words.update({name: value for name, value in words.items() if name in NUMBER_KEYS})
        sm = self._words.get("sm", 0)
        if sm == before:
            self._write()
            return sm
        with EnergyFile(self._state, self.gpu) as energy:
            others = sum(client.sm for client in self._on_card())
            energy.advance(others + before, others + sm)
            self._write()
        return sm

    def wait(self, seconds: float) -> None:
        """Sleep. Raises CudaError as soon as the GPU is lost, the MPS server is gone, or it ends this client."""
        end = time.monotonic() + seconds
        watched = [] if self.mps is None else [self.mps.fileno()]
        while (left := end - (now := time.monotonic())) > 0:
            check = max(0.0, self._checked_s + self._check_interval_s - now)
            if select.select(watched, [], [], min(left, check))[0]:
                self._hear_server()
            if time.monotonic() - self._checked_s >= self._check_interval_s:
                self._check()

    @property
    def _check_interval_s(self) -> float:
        can_be_ended = self.mps is not None and self._driver_limits is not None
        return ENDED_CHECK_INTERVAL_S if can_be_ended else LOST_CHECK_INTERVAL_S

    def _check(self) -> None:
        """Check, once a second, whether the GPU is lost, and confirm this process's load for the energy counter."""
        self._checked_s = time.monotonic()
        self.gpu = self._read_gpu()
        self._hear_driver()
        if self.watch is not None:
            self.watch()
        if self._accounted is not None:
            self._accounted.note(self._words)
        if not self._words.get("sm") or self._energy_is_young():
            return
        with EnergyFile(self._state, self.gpu) as energy:
            load = sum(client.sm for client in live_clients(self._state, self.gpu))
            energy.advance(load, load)

    def _energy_is_young(self) -> bool:
        """Return whether a neighbour has just confirmed the load, so that only one of many does so."""
        if self.gpu.idle_mw is None:
            return True
        try:
            with open(f"{self._state}/energy{self._index}", "rb") as file:
                read = parse_energy(file.read(ENERGY_LINE_SIZE))
        except OSError:
            return True
        return read is None or time.monotonic_ns() - read[0] < LOST_CHECK_INTERVAL_S * 500_000_000

    def clients_changed_ns(self) -> int:
        """Return when a client file was last added, changed or removed; a killed process leaves its file."""
        return os.stat(f"{self._state}/clients").st_mtime_ns

    def commit_fault(self) -> NoReturn:
        """Commit an illegal access: raise CudaError. Under MPS it also ends all other clients of the server, as in
        CUDA."""
        if self.mps is not None:
            self.mps.report_fault()
        raise CudaError("CUDA_ERROR_ILLEGAL_ADDRESS", "this process committed the fault it was told to")

    def close(self) -> None:
        """Free everything; can be called twice."""
        if self._registered:
            self._leave()
            self._registered = False
        if self.mps is not None:
            self.mps.close()
            self.mps = None

    def _leave(self) -> None:
        """Remove the client file, and its load from the energy counter."""
        load = self._words.get("sm", 0)
        if self._accounted is not None:
            self._accounted.note(self._words, ended=True)
        with EnergyFile(self._state, self.gpu) as energy:
            if load:
                try:
                    others = sum(client.sm for client in self._on_card())
                    energy.advance(others + load, others)
                except OSError:
                    pass  # the folder is gone, and the counter with it
            _remove_quietly(f"{self._state}/clients/{self._name}")
            if self._driver_limits is not None:
                _remove_quietly(f"{self._state}/ended/{self._name}")

    def _hear_server(self) -> None:
        """Read the server's message, which always ends this client: after `terminate_client`, or after another client's
        fault."""
        assert self.mps is not None
        try:
            words = os.read(self.mps.fileno(), 4096).decode(errors="replace").split()
        except OSError:
            words = []
        if words[:1] == ["SIMGPU_ERROR"] and len(words) == 2:
            raise CudaError(words[1], "the MPS server ended this client")
        if not words:
            raise CudaError("CUDA_ERROR_MPS_RPC_FAILURE", "the MPS server is gone")

    def _memory_limits(self, environ: Mapping[str, str], ordinal: int) -> tuple[int, ...]:
        """Return the server's limit and the client's own; both apply. Without MPS CUDA ignores both."""
        if self.mps is None:
            return ()
        asked = environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "")
        if names_unseen_gpu(asked, self._seen_uuids):
            return ()
        texts = (self.mps.memory_limits, asked)
        limits = (memory_limit(text, ordinal) for text in texts)
        return tuple(limit for limit in limits if limit is not None)

    def _read_gpu(self) -> Gpu:
        gpu = read_gpu(self._state, self._index)
        if gpu is None or gpu.lost or (self._instance is not None and self._instance not in gpu.instances):
            raise CudaError("CUDA_ERROR_UNKNOWN", f"GPU {self._index} is lost")
        return gpu if self._instance is None else gpu.take_instance(self._instance)

    def neighbours(self) -> list[Client]:
        """Return the other live processes on this GPU, or on this MIG instance."""
        return [client for client in self._on_card() if client.instance == self._instance]

    def _on_card(self) -> list[Client]:
        """Return the other live processes on this card."""
        return [client for client in live_clients(self._state, self.gpu) if client.pid != os.getpid()]

    def _register(self) -> None:
        if self.gpu.compute_mode == COMPUTE_MODE_PROHIBITED:
            raise CudaError("CUDA_ERROR_DEVICE_UNAVAILABLE", f"GPU {self._index} is in compute mode PROHIBITED")
        with _Lock(self._state):
            if self.gpu.compute_mode == COMPUTE_MODE_EXCLUSIVE_PROCESS:
                for other in self.neighbours():
                    if not self._shares_server_with(other):
                        raise CudaError(
                            "CUDA_ERROR_DEVICE_UNAVAILABLE",
                            f"GPU {self._index} is in compute mode EXCLUSIVE_PROCESS and process {other.pid} has it",
                        )
            self._registered = True
            if self.gpu.accounting:
                self._accounted = _Accounted(f"{self._state}/accounted/{self._name}")
            self._write()

    def _shares_server_with(self, other: Client) -> bool:
        """Return whether both use the same MPS server: only its clients share a GPU in exclusive mode."""
        return self.mps is not None and self.mps.server_pid in (other.pid, other.mps_server)

    def _write(self) -> None:
        """Write the client file atomically: under an unpredictable name, then renamed."""
        folder = f"{self._state}/clients"
        line = " ".join(f"{key}={value}" for key, value in self._words.items())
        if self._driver_limits is not None and self._driver_limits.cgroups:
            line += f" {CGROUPS}={','.join(map(str, self._driver_limits.cgroups))}"
        aside = f"{folder}/.{self._name}.{time.monotonic_ns()}~"
        try:
            fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
            try:
                os.fchmod(fd, 0o644)  # whatever the umask: every user's nvidia-smi shows every process
                os.write(fd, f"{line}\n".encode())
            finally:
                os.close(fd)
            os.rename(aside, f"{folder}/{self._name}")
        except BaseException as error:  # also for the exception of a signal handler
            _remove_quietly(aside)
            if isinstance(error, OSError):
                raise SimulationError(f"cannot register in {folder}: {error.strerror}") from error
            raise
        if self._accounted is not None:
            self._accounted.note(self._words)


class _Accounted:
    """The figures of the driver's accounting mode about this process: its file stays after its end (state.c)."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._began_us = time.time_ns() // 1000
        self._at = time.monotonic()
        self._busy_s, self._peak_bytes, self._util_percent = 0.0, 0, 0

    def note(self, words: Mapping[str, int], *, ended: bool = False) -> None:
        """Add the time since the last note at the load of then. A folder that is full or gone is no error of CUDA's."""
        now = time.monotonic()
        self._busy_s += (now - self._at) * self._util_percent / 100
        self._at, self._util_percent = now, words.get("util", words.get("sm", 0))
        self._peak_bytes = max(self._peak_bytes, words.get("used", 0))
        now_us = time.time_ns() // 1000
        line = (
            f"began_us={self._began_us} seen_us={now_us} ended={int(ended)} "
            f"busy_us={int(1e6 * self._busy_s)} peak={self._peak_bytes}"
        )
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except OSError:
            return
        try:
            os.pwrite(fd, f"{line:<127}\n".encode(), 0)  # a fixed length, so that no rest of a longer line remains
        except OSError:
            pass
        finally:
            os.close(fd)


class _Lock:
    """Holds the folder's lock; the kernel frees it when the holder dies."""

    def __init__(self, state: str) -> None:
        self._path = f"{state}/lock"

    def __enter__(self) -> None:
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError as error:
            raise SimulationError(f"cannot open {self._path}: {error.strerror}; simgpu-init makes it") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        except BaseException:
            os.close(self._fd)
            raise

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _mib(size_bytes: int) -> str:
    return f"{size_bytes >> 20} MiB"
