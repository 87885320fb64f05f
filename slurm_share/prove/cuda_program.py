"""A program that does to a GPU, step by step, what a task might: `slurm-share prove` runs it as a user.

It needs Python's standard library and NVIDIA's libcuda.so.1, no compiler and no framework. It is passed to Python as
text (`-c`), so that the user needs no access to this file. On simulated GPUs `simgpu-task --steps` takes its place.

The arguments are steps, done in their order; each prints one line of JSON on standard output:

    fork                    a second process from here on; the lines of both have `process`, 0 or 1
    context                 cuInit and cuCtxCreate: total_mib, free_mib, sms
    second                  one more context
    info                    cuMemGetInfo: total_mib, free_mib
    most:KIND:MIB           allocate blocks until an error or MIB are held: got_mib, error. KIND: device (cuMemAlloc),
                            async (cuMemAllocAsync), vmm (cuMemCreate), managed (cuMemAllocManaged, and written),
                            host (cuMemAllocHost)
    fault                   write to an address that is not the process's, in a kernel
    spin                    start a kernel that does not end
    hold                    wait for the end of standard input, and report an error of the context as soon as it is seen

A step with an error ends the program with 1. It also ends when its standard input does: so nothing is left of it after
a kill -9 of its parent.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time

BLOCK_MIB = 32
HOLD_S = 0.05
PTX = b"""
.version 6.4
.target sm_70
.address_size 64
.visible .entry fault() {
  .reg .u64 %a; .reg .u32 %v;
  mov.u64 %a, 4096; mov.u32 %v, 1;
  st.global.u32 [%a], %v;
  ret;
}
.visible .entry spin(.param .u64 flag) {
  .reg .u64 %a; .reg .u32 %v; .reg .pred %p;
  ld.param.u64 %a, [flag];
again:
  ld.volatile.global.u32 %v, [%a];
  setp.eq.u32 %p, %v, 0;
  @%p bra again;
  ret;
}
\0"""
MULTIPROCESSORS, POOLS = 16, 115
"""CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT and CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED of cuda.h."""
ATTACH_GLOBAL = 1


class StepFailed(Exception):
    """A call into CUDA returned an error; the argument is its name."""


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class Cuda:
    """The calls of libcuda that the steps need."""

    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise StepFailed(f"libcuda.so.1: {error}") from error
        self.device = ctypes.c_int()
        self.kept: list[object] = []

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self.library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(code, ctypes.byref(text))
            raise StepFailed((text.value or b"").decode() or f"CUDA error {code}")

    def begin(self) -> dict[str, object]:
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(self.device), 0)
        self.context()
        count = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(count), MULTIPROCESSORS, self.device)
        return {**self.info(), "sms": count.value}

    def context(self) -> None:
        made = ctypes.c_void_p()
        self.call("cuCtxCreate_v2", ctypes.byref(made), 0, self.device)
        self.kept.append(made)

    def info(self) -> dict[str, object]:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return {"total_mib": total.value >> 20, "free_mib": free.value >> 20}

    def allocate(self, kind: str, size: int) -> None:
        place, bytes_ = ctypes.c_uint64(), ctypes.c_size_t(size)
        if kind == "device":
            self.call("cuMemAlloc_v2", ctypes.byref(place), bytes_)
        elif kind == "async":
            self.call("cuMemAllocAsync", ctypes.byref(place), bytes_, None)
            self.call("cuCtxSynchronize")
        elif kind == "managed":
            self.call("cuMemAllocManaged", ctypes.byref(place), bytes_, ATTACH_GLOBAL)
            self.call("cuMemsetD8_v2", place, ctypes.c_ubyte(1), bytes_)
            self.call("cuCtxSynchronize")
        elif kind == "host":
            host = ctypes.c_void_p()
            self.call("cuMemAllocHost_v2", ctypes.byref(host), bytes_)
        else:
            self._create(size)

    def _create(self, size: int) -> None:
        properties = Properties(type=1, location=Location(1, self.device.value))
        step = ctypes.c_size_t()
        self.call("cuMemGetAllocationGranularity", ctypes.byref(step), ctypes.byref(properties), 0)
        rounded = ctypes.c_size_t(-(-size // step.value) * step.value)
        handle = ctypes.c_uint64()
        self.call("cuMemCreate", ctypes.byref(handle), rounded, ctypes.byref(properties), ctypes.c_uint64(0))

    def start(self, kernel: bytes) -> None:
        module, function, flag = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
        self.call("cuModuleLoadData", ctypes.byref(module), PTX)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, kernel)
        self.call("cuMemAlloc_v2", ctypes.byref(flag), ctypes.c_size_t(4))
        self.call("cuMemsetD32_v2", flag, 0, ctypes.c_size_t(1))
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(flag))
        self.kept += [flag, arguments]
        one = (1, 1, 1, 1, 1, 1)
        self.call("cuLaunchKernel", function, *one, 0, None, arguments if kernel == b"spin" else None, None)

    def synchronize(self) -> None:
        self.call("cuCtxSynchronize")

    def hold(self, ended: threading.Event) -> None:
        place = ctypes.c_uint64()
        while not ended.wait(HOLD_S):
            self.call("cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(4096))
            self.call("cuMemsetD8_v2", place, ctypes.c_ubyte(1), ctypes.c_size_t(4096))
            self.call("cuCtxSynchronize")
            self.call("cuMemFree_v2", place)


def most(cuda: Cuda, kind: str, limit_mib: int) -> dict[str, object]:
    """Allocate blocks until CUDA refuses one; that is no failure of the step."""
    got = 0
    try:
        while got < limit_mib:
            cuda.allocate(kind, min(BLOCK_MIB, limit_mib - got) << 20)
            got += min(BLOCK_MIB, limit_mib - got)
    except StepFailed as refused:
        return {"kind": kind, "got_mib": got, "refused": str(refused)}
    return {"kind": kind, "got_mib": got, "refused": ""}


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def main(steps: list[str]) -> int:
    ended = threading.Event()

    def wait_for_parent() -> None:
        while os.read(0, 4096):
            pass
        ended.set()
        time.sleep(1)  # a step that hangs in the driver does not end by itself
        os._exit(1)

    process, cuda, step = 0, None, ""
    own: dict[str, object] = {}
    try:
        if "fork" in steps:
            process = 1 if os.fork() == 0 else 0  # before the thread, and before CUDA, which does not survive a fork
            own = {"process": process}
        threading.Thread(target=wait_for_parent, daemon=True).start()
        cuda = Cuda()
        for step in steps:
            name, _, words = step.partition(":")
            found: dict[str, object] = {}
            if name == "context":
                found = cuda.begin()
            elif name == "second":
                cuda.context()
            elif name == "info":
                found = cuda.info()
            elif name == "most":
                kind, _, limit = words.partition(":")
                found = most(cuda, kind, int(limit))
            elif name == "fault":
                cuda.start(b"fault")
                cuda.synchronize()
            elif name == "spin":
                cuda.start(b"spin")
            elif name == "hold":
                say(json.dumps({"step": "holds", **own}))
                cuda.hold(ended)
            say(json.dumps({"step": name, "error": "", **found, **own}))
    except StepFailed as error:
        say(json.dumps({"step": step.partition(":")[0], "error": str(error), **own}))
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
