"""What a node's processes get of its GPUs where no plan says so: a triple without the administrators' half, or outside
Slurm. The same slots as `place.py` makes, on the GPUs that the process was shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from .. import names
from ..errors import LaunchError, shown
from ..records import Gpu, MpsOffer, ShareRequest, Slot
from ..settings import Settings
from . import limits
from .triples import tasks_per_gpu

NO_GPUS = ("", "NoDevFiles")
"""NoDevFiles: what Slurm writes where a gres was granted without device files (gres_common.c)."""
_NO_MORE = "-1"
"""CUDA ends its list at the first number that is no GPU's; people write this one."""


class Visible(Struct, frozen=True):
    """One GPU that this process was shown."""

    word: str
    """In CUDA_VISIBLE_DEVICES; a UUID where that is not set."""
    gpu: Gpu | None
    """None: there is no driver to ask."""


def visible(words: str | None, gpus: Sequence[Gpu] | None, node: str) -> tuple[Visible, ...]:
    """The GPUs behind the words of CUDA_VISIBLE_DEVICES, in their order; `gpus` is the driver's list as this process
    sees it, None where it has none. Without the variable, all that work runs on.

    A number is a place in that list: under ConstrainDevices the driver lists only the job's GPUs, and counts them anew.

    Raises LaunchError for a word that names none of them.
    """
    if words is None:
        return tuple(Visible(gpu.uuid, gpu) for gpu in gpus or () if not gpu.mig_parent)
    found: list[Visible] = []
    for word in [] if words.strip() in NO_GPUS else words.replace(" ", "").split(","):
        if word == _NO_MORE:
            break
        gpu = None if gpus is None else _named(word, gpus)
        if gpus is not None and gpu is None:
            listed = ", ".join(f"{one.index} ({one.uuid})" for one in gpus) or "none"
            raise refusal(node, f"CUDA_VISIBLE_DEVICES names GPU {shown(word)}, and the driver shows the job {listed}")
        if gpu is not None and gpu.mig_parent:
            raise refusal(node, f"GPU {gpu.index} is in MIG mode: work runs on its instances; ask for those")
        found.append(Visible(word, gpu))
    return tuple(found)


def _named(word: str, gpus: Sequence[Gpu]) -> Gpu | None:
    if word.isascii() and word.isdecimal():
        whole = [gpu for gpu in gpus if not gpu.uuid.startswith("MIG-")]
        return whole[int(word)] if len(word) < 4 and int(word) < len(whole) else None
    # CUDA takes the beginning of a UUID, too, where it is the only one with it.
    found = [gpu for gpu in gpus if gpu.uuid.startswith(word)]
    return found[0] if len(found) == 1 and word.startswith(("GPU-", "MIG-")) else None


def slots(processes: int, shown_gpus: Sequence[Visible], share: ShareRequest | None, settings: Settings) -> list[Slot]:
    """A slot for each process whose GPU is known, slot i on GPU i mod G; of one that is not known there is none.

    What a task may take is limited only where the user wrote a share; else it is as at LLSC, where each takes what it
    finds. An even part is that of the processes there are, not of those that were allowed.
    """
    per_gpu = tasks_per_gpu(processes, len(shown_gpus)) if shown_gpus else 0
    real = None if share is None else replace(share, per_gpu=per_gpu)
    found = []
    for number in range(processes if shown_gpus else 0):
        gpu = shown_gpus[number % len(shown_gpus)].gpu
        if gpu is not None:
            cap_mib = None if real is None else limits.memory_cap_mib(gpu, real, settings)
            fraction = limits.memory_fraction(gpu, cap_mib)
            percent = None if real is None else limits.thread_percent(real, settings)
            found.append(Slot(number, gpu, 0, cap_mib, fraction, percent))
    return found


def check(
    processes: int, shown_gpus: Sequence[Visible], share: ShareRequest | None, settings: Settings, node: str
) -> None:
    """Raises LaunchError where these processes cannot have these GPUs."""
    if any(one.gpu is not None and one.gpu.simulated for one in shown_gpus) and not settings.simulated_gpus:
        raise refusal(node, "its GPUs are simulated, and simulated_gpus is not set in the configuration")
    if share is None:
        return
    if not shown_gpus:
        raise refusal(node, "a share of its GPUs was asked, and it has none for this run; ask for some (-g 1)")
    if processes > share.per_gpu * len(shown_gpus):
        raise refusal(node, too_many(processes, share.per_gpu, len(shown_gpus)))


def refusal(node: str, why: str) -> LaunchError:
    """The error of a node that is not for these processes."""
    return LaunchError(f"{node} cannot run its processes: {why}")


def too_many(processes: int, per_gpu: int, gpus: int) -> str:
    """Why so many processes do not fit on GPUs of which each takes `per_gpu`, and what to write."""
    fits, slots = tasks_per_gpu(processes, gpus), gpus * per_gpu
    larger = f"--share-gpu={fits}, or " if fits <= names.SHARE_MAX else ""
    return (
        f"{processes} processes are more than {gpus} GPU{'' if gpus == 1 else 's'} x {per_gpu} = {slots} slot"
        f"{'' if slots == 1 else 's'}; write {larger}a triple with at most {slots} on a node"
    )


def needs_mps(shown_gpus: Sequence[Visible], per_gpu: int, share: ShareRequest | None, settings: Settings) -> bool:
    """One task alone on a GPU without a cap gains nothing from a server between them."""
    if share is None:
        return bool(shown_gpus) and per_gpu > 1
    is_capped = (
        share.mem_mib is not None or limits.thread_percent(replace(share, per_gpu=per_gpu), settings) is not None
    )
    return bool(shown_gpus) and (per_gpu > 1 or share.mps is True or is_capped)


def why_no_mps(shown_gpus: Sequence[Visible], per_gpu: int, share: ShareRequest | None, offer: MpsOffer) -> str | None:
    """Why these GPUs are shared without MPS; None: with."""
    if share is not None and share.mps is False:
        return "mps=off was asked"
    if offer.why_not is not None:
        return offer.why_not
    if any(one.gpu is not None and one.gpu.uuid.startswith("MIG-") for one in shown_gpus):
        return "a MIG instance is a GPU of its own and takes no MPS here"
    if per_gpu > offer.client_limit:
        return f"{per_gpu} tasks on a GPU are more than the {offer.client_limit} clients that MPS takes with its driver"
    return None


def settle(
    slots: Sequence[Slot], pipes: Mapping[str, str], failures: Mapping[str, str]
) -> tuple[tuple[Slot, ...], tuple[str, ...]]:
    """The slots with the daemons that came up (`pipes`: GPU UUID -> pipe directory), and what to say of those that did
    not (`failures`: UUID -> why)."""
    index = {slot.gpu.uuid: slot.gpu.index for slot in slots}
    notes = tuple(
        f"GPU {index[uuid]} is shared without MPS: {why}; its tasks take turns, and no cap is enforced"
        for uuid, why in failures.items()
    )
    return tuple(replace(slot, pipe=pipes.get(slot.gpu.uuid)) for slot in slots), notes


def without_mps(why: str) -> str:
    """What to say where GPUs are shared and no MPS is between the tasks."""
    return f"the GPUs are shared without MPS: {why}; the tasks of a GPU take turns on it, and no cap is enforced"
