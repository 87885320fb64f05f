"""Clients of mps_questions.py on a SIMULATED GPU: they print what those with PyTorch print, and compute nothing."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packaging" / "demo" / "simgpu"))

from simgpu import Context, CudaError, SimulationError

WRONG_AT_SMS = 56
"""Where BF16 products were seen to be wrong on an H200 (error 0.92 instead of 0.003)."""


def client(context: Context, mib: str, seconds: str, kernel: str) -> None:
    began = time.monotonic()
    context.allocate(int(mib) << 20)
    facts = {
        "pid": os.getpid(),
        "context_s": round(time.monotonic() - began, 3),
        "free_mib": (context.available_bytes()) >> 20,
        "total_mib": context.gpu.memory_bytes >> 20,
        "multiprocessors": context.multiprocessors,
        "simulated": True,
    }
    print(json.dumps(facts), flush=True)
    if float(kernel):
        context.set_load(100)
        print("kernel is running", flush=True)
    context.wait(float(seconds))


def fault(context: Context, kind: str = "assert") -> None:
    print("ready", flush=True)
    sys.stdin.readline()
    context.commit_fault()


def product(context: Context) -> None:
    error = 0.92 if context.multiprocessors == WRONG_AT_SMS else 0.003
    print(json.dumps({"multiprocessors": context.multiprocessors, "relative_error": error, "simulated": True}))


def load(context: Context, kind: str, seconds: str) -> None:
    context.set_load(100, 100 if kind == "memory" else 0)
    print("ready", flush=True)
    sys.stdin.readline()
    context.wait(float(seconds))
    print(json.dumps({"per_s": context.percentage, "multiprocessors": context.multiprocessors, "simulated": True}))


PROGRAMS = {"client": client, "fault": fault, "product": product, "load": load}


def main(kind: str, *arguments: str) -> int:
    try:
        with Context(os.environ) as context:
            PROGRAMS[kind](context, *arguments)  # type: ignore[operator]
    except (CudaError, SimulationError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
