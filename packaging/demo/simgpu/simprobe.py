"""SIMULATED CUDA for `slurm-share prove`: `simgpu-task --steps STEP...` does what prove/cuda_program.py does
on a real GPU, with the same steps and the same lines of JSON, each of which also says `"simulated": true`."""

from __future__ import annotations

import json
import os
import threading

from simgpu import Context, CudaError, SimulationError

BLOCK_MIB = 32
HOLD_S = 0.05

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


class Program:
    """One process and the steps it does."""

    def __init__(self) -> None:
        self.context: Context | None = None
        self.own: dict[str, object] = {"simulated": True}
        self.ended = threading.Event()
        self.contexts = 0

    def say(self, step: str, **found: object) -> None:
        os.write(1, (json.dumps({"step": step, **found, **self.own}) + "\n").encode())

    def wait_for_parent(self) -> NoReturn:
        while os.read(0, 4096):
            pass
        self.ended.set()
        self.ended.wait()
        threading.Event().wait(1)
        os._exit(1)

    def info(self) -> dict[str, object]:
        assert self.context is not None
        return {"total_mib": self.context.total_bytes() >> 20, "free_mib": self.context.available_bytes() >> 20}

    def most(self, kind: str, limit_mib: int) -> dict[str, object]:
        assert self.context is not None
        got, refused = 0, ""
        try:
            while got < limit_mib:
                size = min(BLOCK_MIB, limit_mib - got)
                self.context.allocate(size << 20, kind, self.contexts - 1)
                got += size
        except CudaError as error:
            refused = error.name
        return {"kind": kind, "got_mib": got, "refused": refused}

    def hold(self) -> None:
        assert self.context is not None
        self.say("holds", error="")
        while not self.ended.is_set():
            self.context.wait(HOLD_S)

    def do(self, step: str) -> dict[str, object]:
        name, _, words = step.partition(":")
        if name == "context":
            self.context = Context(os.environ)
            self.contexts = 1
            return {**self.info(), "sms": self.context.multiprocessors}
        if name == "second":
            self.contexts += 1
        elif name == "info":
            return self.info()
        elif name == "most":
            kind, _, limit = words.partition(":")
            return self.most(kind, int(limit))
        elif name == "fault":
            assert self.context is not None
            self.context.commit_fault()
        elif name == "spin":
            assert self.context is not None
            self.context.set_load(100)
        elif name == "hold":
            self.hold()
        return {}


def main(steps: list[str]) -> int:
    program = Program()
    if "fork" in steps:
        program.own["process"] = 1 if os.fork() == 0 else 0
    threading.Thread(target=program.wait_for_parent, daemon=True).start()
    code = 0
    for step in steps:
        name = step.partition(":")[0]
        try:
            program.say(name, error="", **program.do(step))
        except CudaError as error:
            program.say(name, error=error.name, why=error.reason)
            code = 1
        except SimulationError as error:
            program.say(name, error=str(error))
            code = 1
        if code:
            break
    if program.context is not None:
        program.context.close()
    os._exit(code)
