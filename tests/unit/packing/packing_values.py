"""Records of packing in one line each, and an estimator with fixed answers."""

import msgspec

from slurm_share.node.gpu_figures import GpuLoad, Means
from slurm_share.packing.records import (
    EndFacts,
    Estimate,
    GpuFacts,
    GpuView,
    PackSettings,
    PackView,
    RunningView,
    TaskAsk,
    TaskKey,
    Tries,
    WaitingView,
)
from slurm_share.packing.rules import place
from slurm_share.packing.rules.board import Board

A100 = "A100"
TOTAL = 40960
RESERVE = 819


def facts(index=0, total=TOTAL, *, reserve=RESERVE, model=A100, **fields):
    return GpuFacts(uuid=f"GPU-{index}", index=index, model=model, total_mib=total, reserve_mib=reserve, **fields)


def gpu(index=0, total=TOTAL, *, reserve=RESERVE, is_mps=True, is_single=False, clients_max=48, model=A100, **fields):
    return GpuView(
        facts=facts(
            index, total, reserve=reserve, is_mps=is_mps, is_single=is_single, clients_max=clients_max, model=model
        ),
        **fields,
    )


def estimate(mib=None, source=None, **fields):
    return Estimate(point_mib=mib, safe_mib=mib, source=source or ("unknown" if mib is None else "exact"), **fields)


def running(task, on, reserved, *, gpus=None, memory=None, peak=None, size=None, started=0.0, **fields):
    return RunningView(
        ask=TaskAsk(task=task),
        gpus=gpus or (f"GPU-{on}",),
        started_s=started,
        attempt=1,
        tries=Tries(),
        estimate=size or estimate(reserved),
        reserved_mib=reserved,
        memory_mib=memory,
        peak_mib=peak if peak is not None else memory,
        **fields,
    )


def waiting(task, mib=None, *, gpus=1, word=None, seconds=None, processes=1, key=None, size=None, model=A100, **fields):
    known = size or estimate(
        word if word is not None else mib, "user" if word is not None else None, seconds=seconds, processes=processes
    )
    return WaitingView(
        ask=TaskAsk(task=task, gpus=gpus, gpu_mem_mib=word, key=key), estimates=((model, known),), **fields
    )


def view(gpus, waits=(), runs=(), *, now=100.0, workers=64, last_gpu=-1, median_s=None, **settings):
    return PackView(
        now_s=now,
        gpus=tuple(gpus),
        running=tuple(sorted(runs, key=lambda one: one.ask.task)),
        waiting=tuple(waits),
        free_workers=workers,
        settings=PackSettings(**settings),
        last_gpu=last_gpu,
        median_s=median_s,
    )


class Known:
    """An estimator that knows the sizes it is given, by the exact hash; siblings are sized by their family."""

    def __init__(self, sizes=None, *, seconds=None, growth=1.1):
        self.sizes = dict(sizes or {})
        self.seconds = dict(seconds or {})
        self.growth_factor = growth
        self.siblings = {}
        self.asked = 0

    def estimate(self, ask, gpu_model, gpu_total_mib):
        self.asked += 1
        if ask.gpu_mem_mib is not None:
            return estimate(ask.gpu_mem_mib, "user")
        exact = ask.key.exact if ask.key else ""
        seconds = self.seconds.get(exact)
        if exact in self.sizes:
            return estimate(self.sizes[exact], "exact", seconds=seconds)
        if ask.key and ask.key.family in self.siblings:
            return estimate(self.siblings[ask.key.family], "sibling", seconds=seconds)
        return estimate(None, seconds=seconds)

    def learn(self, run):
        pass

    def sibling(self, key, gpu_model, peak_mib, age_s):
        self.siblings.setdefault(key.family, int(peak_mib * self.growth_factor))

    def growth(self, key, gpu_model, age_s):
        return self.growth_factor


def key(exact, family="family"):
    return TaskKey(exact=exact, family=family)


def board(gpus=1, *, workers=64, estimator=None, total=TOTAL, **settings):
    found = [facts(index, total, is_mps=True) for index in range(gpus)]
    return Board(found, workers, PackSettings(**settings), estimator or Known())


def fill(one, *tasks):
    """Add tasks 0, 1, ... to a board at second 0, and return it. A number is a --gpu-mem, a key names a command."""
    for task, what in enumerate(tasks):
        given = {"gpu_mem_mib": what} if isinstance(what, int) else {"key": what}
        one.add(TaskAsk(task=task, **given), 0.0)
    return one


def queued(*tasks, gpus=1, **settings):
    """Return a board with waiting tasks, see `fill`."""
    return fill(board(gpus, **settings), *tasks)


def started(*tasks, gpus=1, **settings):
    """Return a board that has decided once about its tasks, see `fill`."""
    one = queued(*tasks, gpus=gpus, **settings)
    one.decide(0.0)
    return one


def oom(task, now, text=b"torch.OutOfMemoryError: CUDA out of memory.\n", **fields):
    return EndFacts(task=task, now_s=now, code=1, log_tail=text, **fields)


def starts(decision):
    """Return which task starts on which GPUs: [(task, "GPU-0")]."""
    return [(one.task, *one.gpus) for one in decision.actions if type(one).__name__ == "Start"]


def is_replayable(entries):
    """Return whether every decision of a journal has the same actions, byte for byte, when it is decided again."""
    encode = msgspec.json.encode
    decisions = [entry for entry in entries if entry.repeats is None]
    return all(encode(place.decide(entry.view).actions) == encode(entry.actions) for entry in decisions)


def gpu_load(used_mib=0, sm_ratio=None, dram_ratio=None, uuid="GPU-0", **more):
    """The figures of a GPU with means over a minute, without current ones."""

    def means(ratio):
        return None if ratio is None else Means(100 * ratio, 100 * ratio, 100 * ratio, 60.0)

    return GpuLoad(
        uuid=uuid, index=0, name="A100", memory_used_mib=used_mib, sm_percent_windows=means(sm_ratio),
        dram_percent_windows=means(dram_ratio), **more,
    )  # fmt: skip
