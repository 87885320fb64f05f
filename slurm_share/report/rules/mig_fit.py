"""Say which MIG instance a job would have fitted: the smallest profile of its GPUs' model with room for what it used.

Source of the profiles: NVIDIA's MIG User Guide, "Supported MIG Profiles" (A30, A100, H100, H200, B200). A profile is
named by its slices of compute, of 7 (4 of an A30), and its memory, which is slices of 8 (4 of an A30).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ...usage import GpuUse

USABLE = 0.95
"""Part of a profile's slices of memory that its tasks can use: 1g.10gb of an 80 GB GPU has 9.5 to 9.75 GiB of 10."""
MEASURED_LEAST_S = 60.0
"""The shortest measurement of a GPU that is used, in seconds. Our choice: before that, many programs do not compute."""


class Profile(Struct, frozen=True):
    """A size of MIG instances, in slices of compute and memory."""

    name: str
    compute: int
    memory: int


class Model(Struct, frozen=True):
    """The profiles of a model, the smallest first, of which at least two fit on a GPU: less would free nothing."""

    word: str
    """In NVML's name of the GPU."""
    total_gib: tuple[int, int]
    """The least and the most memory of a GPU to which they belong."""
    slices: tuple[int, int]
    """Slices of compute and of memory of the whole GPU."""
    profiles: tuple[Profile, ...]


def _of_eight(*gib: int) -> tuple[Profile, ...]:
    """Return the profiles of a GPU with 7 slices of compute and 8 of memory; gib: memory of 1, 2 and 4 slices."""
    one, two, four = gib
    return Profile(f"1g.{one}gb", 1, 1), Profile(f"2g.{two}gb", 2, 2), Profile(f"3g.{four}gb", 3, 4)


_EIGHT = (7, 8)
MODELS = (
    Model("A30", (22, 26), (4, 4), (Profile("1g.6gb", 1, 1), Profile("2g.12gb", 2, 2))),
    Model("A100", (38, 42), _EIGHT, _of_eight(5, 10, 20)),
    Model("A100", (76, 82), _EIGHT, _of_eight(10, 20, 40)),
    Model("H100", (76, 82), _EIGHT, _of_eight(10, 20, 40)),
    Model("H100", (90, 98), _EIGHT, _of_eight(12, 24, 47)),
    Model("GH200", (90, 98), _EIGHT, _of_eight(12, 24, 48)),
    Model("H200", (136, 145), _EIGHT, _of_eight(18, 35, 71)),
    Model("B200", (176, 192), _EIGHT, _of_eight(23, 45, 90)),
)


def sentence(uses: Sequence[GpuUse]) -> str:
    """Return the smallest instance that each of a job's GPUs would have fitted, and why; empty: none, or not known.

    Memory is the most that the job's processes had at once, SM activity the mean of the whole GPU.
    """
    found = [_fit(use) for use in uses]
    fits = [one for one in found if one is not None]
    if not fits or len(fits) < len(found):
        return ""
    profile, use, model = max(fits, key=lambda one: (one[0].memory, one[0].compute))
    if len({one[2] for one in fits}) > 1:
        return ""
    gib = (use.memory_total_mib or 0) * profile.memory / model.slices[1] * USABLE / 1024
    return (
        f"would have fitted {profile.name}: at most {(use.memory_peak_mib or 0) / 1024:.1f} of {gib:.1f} GiB, and "
        f"{use.sm_percent or 0:.0f} % of the SM, of which it has {100 * profile.compute / model.slices[0]:.0f} %"
    )


def _fit(use: GpuUse) -> tuple[Profile, GpuUse, Model] | None:
    """Return the smallest profile with room for a job's use of one GPU; None: none has, or it is not known."""
    total, peak, sm = use.memory_total_mib, use.memory_peak_mib, use.sm_percent
    is_measured = (use.measured_s or 0.0) >= MEASURED_LEAST_S
    if total is None or peak is None or sm is None or not is_measured or use.uuid.startswith("MIG-"):
        return None
    if use.was_shared:  # the SM activity is of others, too
        return None
    words = use.name.replace("-", " ").split()
    model = next((one for one in MODELS if one.word in words and _is_of(total, one)), None)
    if model is None:
        return None
    compute, memory = model.slices
    for profile in model.profiles:
        if peak <= total * profile.memory / memory * USABLE and sm <= 100 * profile.compute / compute:
            return profile, use, model
    return None


def _is_of(total_mib: float, model: Model) -> bool:
    least, most = model.total_gib
    return least <= total_mib / 1024 <= most
