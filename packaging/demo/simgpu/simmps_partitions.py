"""SIMULATED MPS, static partitions of a GPU's multiprocessors: which there are, and what the program says of them.

`nvidia-cuda-mps-control -S`, from driver 590 on. NVIDIA's manual and what users of 595 and 610 recorded differ; this
prints what was recorded. No record exists of these, whose texts are ours: `sm_partition` without -S, with wrong words,
for an unknown GPU or partition, and `rm` when it is done.
simmps_common.py has the choice of its layout, and the fault that makes a daemon forget its partitions.
"""

# ruff: noqa: PTH116  (see nvidia-cuda-mps-control)
from __future__ import annotations

import base64
import hashlib
import os

from simgpu import Gpu, read_gpus, visible_gpus
from simmps_common import choice, state_folder

LEAST_CAPABILITY = (8, 0)
HOPPER = (9, 0)
ID_BYTES = 27
"""As in the recorded id `D/79e/DgwYMDAAAAAAAAAAAAAAAAAAAAAAAA`: 36 characters of base64."""
SHORTEST_UUID = 6
"""Characters of a UUID in the rows of `lspart`, at least: `GPU-f6` was recorded."""

CREATED = "Partition {name} created\n"
REMOVED = "Partition {name} removed\n"
TOO_MANY = (
    "Failed to fulfill the requested SM partition of {chunks} chunks, error CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION\n"
)
NOT_SUPPORTED = (
    "Failed to fulfill the requested SM partition of {chunks} chunks, error CUDA_ERROR_NOT_SUPPORTED\n"
)  # fmt: skip
IN_USE = "Partition %s in use. Terminate all clients before removing.\n"
"""The real program prints `%s`, too: its format is never filled in."""
NOT_STATIC = "Static partitioning mode is disabled\n"
NOT_FOUND = "Partition {name} not found\n"
NO_GPU = "Device {name} not found\n"
USAGE = "Usage: sm_partition add <GPU-UUID> <chunks> | sm_partition rm <GPU-UUID> <partition>\n"


def chunk_size(gpu: Gpu, protocol: int = 2) -> int:
    """Return the multiprocessors of one chunk: 8 from Hopper on, 4 before it, 2 with protocol 3."""
    if gpu.capability >= HOPPER:
        return 8
    return 4 if protocol == 2 else 2


def total_chunks(gpu: Gpu, protocol: int = 2) -> int:
    """Return how many chunks a GPU has; 0: it is too old to be divided, or a MIG instance.

    An H200 has 15 of 8 and not 16, an RTX PRO 6000 22 and not 23: from Hopper on some multiprocessors fill no chunk.
    """
    if gpu.capability < LEAST_CAPABILITY or gpu.instance is not None:
        return 0
    if gpu.chunks is not None:
        return gpu.chunks
    usable = gpu.multiprocessors - (12 if gpu.capability >= HOPPER else 0)
    return max(0, usable) // chunk_size(gpu, protocol)


class Partition:
    """One partition of one GPU."""

    __slots__ = ("chunks", "gpu", "id", "sms")

    def __init__(self, gpu: Gpu, id_: str, chunks: int, sms: int) -> None:
        self.gpu = gpu
        self.id = id_
        self.chunks = chunks
        self.sms = sms

    @property
    def name(self) -> str:
        """The value of CUDA_MPS_SM_PARTITION."""
        return f"{self.gpu.uuid}/{self.id}"


def make_id(uuid: str, number: int, protocol: int) -> str:
    """Return the id of a GPU's partition number `number`: the same for the same numbers, every third with `/`, every
    third with `+`. Ids of the two protocols differ."""
    digest = hashlib.sha256(f"{uuid} {number} {protocol}".encode()).digest()[:9]
    text = base64.b64encode(digest + bytes(ID_BYTES - len(digest))).decode()
    special = {0: "/", 1: "+"}.get(number % 3, "x")
    rest = text[2:].replace("/", "A").replace("+", "B")
    return f"{'D' if protocol == 2 else 'K'}{special}{rest}"


class Partitions:
    """All partitions of one daemon, which end with it."""

    def __init__(self, is_on: bool, protocol: int = 2) -> None:
        self.is_on = is_on
        self.gpus: tuple[Gpu, ...] = ()
        self.protocol = protocol
        self._all: dict[str, Partition] = {}
        """By name."""
        self._made = 0
        self._forgot_ns = _forgotten_ns()

    def read_gpus(self) -> None:
        """Read the GPUs that the daemon sees; the first command about partitions does this."""
        if not self.gpus:
            self.gpus = visible_gpus(read_gpus(state_folder()), os.environ.get("CUDA_VISIBLE_DEVICES"))

    def get(self, name: str) -> Partition | None:
        self._forget()
        return self._all.get(name)

    def of(self, gpu: Gpu) -> list[Partition]:
        self._forget()
        return [one for one in self._all.values() if one.gpu.uuid == gpu.uuid]

    def used(self, gpu: Gpu) -> int:
        """Return the chunks in partitions."""
        return sum(one.chunks for one in self.of(gpu))

    def make(self, gpu: Gpu, chunks: int, more_sms: int = 0) -> Partition | None:
        """Make a partition, with multiprocessors that fill no chunk; None: not so many chunks are free."""
        if chunks > total_chunks(gpu, self.protocol) - self.used(gpu):
            return None
        sms = chunks * chunk_size(gpu, self.protocol) + more_sms
        made = Partition(gpu, make_id(gpu.uuid, self._made, self.protocol), chunks, sms)
        self._made += 1
        self._all[made.name] = made
        return made

    def remove(self, name: str) -> None:
        self._all.pop(name, None)

    def find_gpus(self, word: str) -> list[Gpu]:
        """Return the GPUs whose UUID has this part in it, or all of it."""
        self.read_gpus()
        exact = [gpu for gpu in self.gpus if gpu.uuid == word]
        return exact or [gpu for gpu in self.gpus if word and word in gpu.uuid]

    def _forget(self) -> None:
        """Drop all partitions if the fault file is newer than the last time."""
        written_ns = _forgotten_ns()
        if written_ns > self._forgot_ns:
            self._forgot_ns = written_ns
            self._all.clear()

    # ---- Commands ----

    def command(self, words: list[str], in_use: set[str]) -> str:
        """Carry out `sm_partition`. in_use: names of partitions with clients."""
        if not self.is_on:
            return NOT_STATIC
        action, rest = words[:1], words[1:]
        if action == ["rm"] and len(rest) == 1:
            rest = rest[0].split("/", 1)
        if action not in (["add"], ["rm"]) or len(rest) != 2:
            return USAGE
        found = self.find_gpus(rest[0])
        if len(found) != 1:
            return NO_GPU.format(name=rest[0])
        return self._add(found[0], rest[1]) if action == ["add"] else self._remove(found[0], rest[1], in_use)

    def _add(self, gpu: Gpu, text: str) -> str:
        if not (text.isascii() and text.isdigit() and int(text[:9]) > 0):
            return USAGE
        if not total_chunks(gpu, self.protocol):
            return NOT_SUPPORTED.format(chunks=text)
        made = self.make(gpu, int(text[:9]))
        return TOO_MANY.format(chunks=text) if made is None else CREATED.format(name=made.name)

    def _remove(self, gpu: Gpu, id_: str, in_use: set[str]) -> str:
        name = f"{gpu.uuid}/{id_}"
        if self.get(name) is None:
            return NOT_FOUND.format(name=name)
        if name in in_use:
            return IN_USE
        self.remove(name)
        return REMOVED.format(name=name)

    def lspart(self, in_use: set[str]) -> str:
        """Return the answer to `lspart`; the manual has seven columns, the records of 595 and 610 have five."""
        if not self.is_on:
            return NOT_STATIC
        self.read_gpus()
        wide = choice("SIMMPS_LSPART", "5") == "7"
        rows = []
        for gpu in self.gpus:
            short, used, size = self._short(gpu), self.used(gpu), chunk_size(gpu, self.protocol)
            free = total_chunks(gpu, self.protocol) - used
            free_sms = size * free if wide else gpu.multiprocessors - size * used
            numbers = [str(number) for number in (free, used, free_sms, size * used)]
            rows.append([short, "-", *numbers, "-"] if wide else [short, *numbers])
            for one in self.of(gpu):
                numbers = ["-", str(one.chunks), "-", str(one.sms)] if wide else [str(one.chunks), str(one.sms)]
                busy = "Yes" if one.name in in_use else "-" if wide else "No"
                rows.append([short, one.id, *numbers, busy])
        head = [
            ["GPU", "Partition", "free", "used", "free", "used", "clients"],
            ["", "", "chunks", "chunks", "SM", "SM", ""],
        ]
        wide_as = (14, 38, 8, 8, 6, 6, 8)
        lines = ("".join(f"{cell:<{size}}" for cell, size in zip(row, wide_as, strict=False)) for row in [*head, *rows])
        return "".join(f"{line.rstrip()}\n" for line in lines)

    def _short(self, gpu: Gpu) -> str:
        """Return the shortest start of a UUID that no other GPU of the daemon has."""
        others = [other.uuid for other in self.gpus if other.uuid != gpu.uuid]
        for size in range(SHORTEST_UUID, len(gpu.uuid)):
            if not any(other.startswith(gpu.uuid[:size]) for other in others):
                return gpu.uuid[:size]
        return gpu.uuid

    def device_query(self, words: list[str]) -> str:
        """Return the answer to `device_query [PID] [--csv]`: one line for each device."""
        self.read_gpus()
        head = ["Ordinal", "PCI ID", "Device UUID", "Name", "Total SMs", "Total Chunks", "Attributes"]
        rows = [
            [str(number), gpu.bus, gpu.uuid, gpu.name, str(gpu.multiprocessors), str(total_chunks(gpu)), "-"]
            for number, gpu in enumerate(self.gpus)
        ]
        if "--csv" in words:
            return "".join(",".join(row) + "\n" for row in [head, *rows])
        wide_as = [max(len(row[column]) for row in [head, *rows]) + 2 for column in range(len(head))]
        lines = ("".join(f"{cell:<{size}}" for cell, size in zip(row, wide_as, strict=True)) for row in [head, *rows])
        return "".join(f"{line.rstrip()}\n" for line in lines)


def _forgotten_ns() -> int:
    """Return when the fault file was written; 0: there is none."""
    try:
        return os.stat(f"{state_folder()}/mps_forget").st_mtime_ns
    except OSError:
        return 0
