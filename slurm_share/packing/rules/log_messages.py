"""Recognise in a program's output that it ran out of GPU memory, or that a neighbour or the device ended it.

Each message stands with the program that prints it. Exit codes are judged in `endings`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from msgspec import Struct

GPU_MEMORY_MESSAGES: tuple[bytes, ...] = (
    b"CUDA out of memory",  # PyTorch: torch.OutOfMemoryError
    b"CUDA error: out of memory",  # PyTorch: the context or a library, without an OutOfMemoryError; ggml
    b"CUDA driver error: out of memory",  # PyTorch: expandable segments
    b"cuda runtime error (2) : out of memory",  # PyTorch before 1.5
    b"CUDA_ERROR_OUT_OF_MEMORY",  # the driver's name of error 2: XLA, TensorFlow, numba, cuda-python, OpenMM
    b"cudaErrorMemoryAllocation",  # the runtime's name of the same: CuPy, cuML, Thrust, GROMACS
    b"RESOURCE_EXHAUSTED: Out of memory",  # JAX: XlaRuntimeError
    b"RESOURCE_EXHAUSTED: Failed to allocate",  # the same, XLA's BFC allocator
    b"Out of memory while trying to allocate",  # the same, older, with another status
    b"OOM when allocating tensor",  # TensorFlow: ResourceExhaustedError
    b"CUBLAS_STATUS_ALLOC_FAILED",  # cuBLAS found no room for its handle
    b"CUDNN_STATUS_ALLOC_FAILED",
    b"CUFFT_ALLOC_FAILED",
    b"CUSOLVER_STATUS_ALLOC_FAILED",
    b"CUSPARSE_STATUS_ALLOC_FAILED",
    b"cudaMalloc failed: out of memory",  # ggml, MXNet
    b"cuMemAlloc failed: out of memory",  # PyCUDA
    b"CustomAllocator out of memory",  # RELION: CudaCustomAllocator, HipCustomAllocator
    b"You ran out of memory on the GPU",  # RELION
    b"Check failed: error == cudaSuccess (2 vs. 0)",  # Caffe
    b"[CUDA] out of memory",  # LightGBM on CUDA
    b"LightGBMError: Memory Object Allocation Failure",  # LightGBM on OpenCL
    b"System is out of GPU",  # Blender's Cycles: "... memory", "... and shared host memory"
    b"OPTIX_ERROR_DEVICE_OUT_OF_MEMORY",  # renderers on OptiX
    b"CUDA failed with error out of memory",  # CTranslate2, faster-whisper
    b"CUDA: out of memory",  # MXNet, DGL, TVM
    b"CUDA failure 2: out of memory",  # ONNX Runtime
    b"Cuda failure: out of memory",  # TensorRT's samples
    b"Cuda Runtime (out of memory)",  # TensorRT
    b"Failed to allocate device memory of size",  # QUDA
    b"HIP out of memory",  # PyTorch on AMD's GPUs
    b"HIP error: out of memory",
    b"hipErrorOutOfMemory",
    b"out_of_memory: CUDA error",  # RAPIDS memory manager
    b"out_of_memory: RMM failure",  # the same, its pool
    b"RMM_ERROR_OUT_OF_MEMORY",  # the same, before 0.14
    b"cupy.cuda.memory.OutOfMemoryError",
    b"Triton Error [CUDA]: out of memory",
    b"No available memory for the cache blocks",  # vLLM
    b"is less than desired GPU memory utilization",  # vLLM: another program has too much of the GPU
    b"Out of GPU memory",  # CUDA.jl
    b"Out of memory error on GPU",  # PaddlePaddle
    b"Out of memory on device",  # MATLAB
    b"Requested amount of GPU memory",  # TensorRT
    b"Insufficient memory on accelerator",  # LAMMPS
    b"error code out of memory",  # CUDA's samples, and programs that began as one
    b"GPUassert: out of memory",  # a macro for checking errors that many CUDA programs have
)
"""Messages about a failed allocation on the GPU, in any case of letters. None of them is about host memory."""

_PATTERNS: tuple[bytes, ...] = (
    rb"\bCUDA (?:runtime |driver )?(?:API )?[Ee]rror\b[^\n]{0,200}\bout of memory\b",  # AMReX, NAMD, Warp
    rb"\bcudaMalloc(?!Host)\w*\b[^\n]{0,120}\bout of memory\b",  # Amber
    rb"\bCuda failure (?:\d+ )?'out of memory'",  # NCCL
    rb"\bERROR: out of memory in [^\n]{1,300} at line \d+ \(error-code 2\)",  # RELION
    rb"\bcall to cuMem(?!HostAlloc|AllocHost)\w+ returned error 2\b",  # OpenACC
    rb"\bOut of memory allocating \d+ bytes of device memory\b",
    rb"\bwhat\(\): +Memory Object Allocation Failure\b",  # Boost.Compute: LightGBM on OpenCL
    rb"\bALLOCATE: \d+ bytes requested; status = 2\b",  # CUDA Fortran: a device array
    rb"\bmallocMC/[^\n]{0,300}\s{0,40}error: out of memory",  # PIConGPU
    rb"\bOut of memory in cu(?!MemHostAlloc|MemAllocHost)[a-z]\w*\(",  # Blender's Cycles
    rb"\bcuMem(?!HostAlloc|AllocHost)\w*\(\): out of memory",  # hashcat
    rb"\bcuda_lib/[^\n]{0,200}\bout of memory\b",  # CatBoost
    rb"Not enough memory to handle \d+ prefill tokens",  # Text Generation Inference
    # Kokkos names the memory space: "Host" is the host's, and other errors than too little memory look the same.
    rb"Kokkos failed to allocate memory[^\n]*named \"Cuda[^\n]*(?:insufficient memory|cudaErrorMemoryAllocation)",
    rb"Kokkos ERROR: Cuda(?:UVM)? memory space failed to allocate",
)
"""The same, for messages with variable parts."""


def _in_lower_case(messages: tuple[bytes, ...], patterns: tuple[bytes, ...]) -> re.Pattern[bytes]:
    """Return a pattern for text in lower case. re.IGNORECASE takes four times as long."""
    return re.compile(b"|".join((*map(re.escape, messages), *patterns)).lower())


_MEMORY = _in_lower_case(GPU_MEMORY_MESSAGES, _PATTERNS)

_HOST_LINE = re.compile(
    rb"device:CPU|allocator cpu\b|DefaultCPUAllocator|MPS backend|CUDAPinned|cudaHostAlloc|cudaMallocHost"
    rb"|cudaHostRegister|cuMemHostAlloc|cuMemAllocHost|\bpinned memory\b"
)
"""Text that shows that the message in the same line is about host memory. TensorFlow prints OOM for both devices."""

_MILD_LINE = re.compile(
    rb"(?i)\bwarn(?:ing)?\b|\bskip(?:s|ped|ping)?\b|\bignor(?:e|ed|ing)\b"
    rb"|\bretry|\btrying again\b|\bfall(?:s|ing)? back\b|\breducing\b"
)
"""Text that shows that the program continues after the message in the same line. Text of the message itself does not
count: MXNet's is "cudaMalloc retry failed: out of memory"."""

_ADVICE = re.compile(
    rb"(?i)(?:^|[\s(\"'\[])(?:(?:if|in case|unless|avoids?|avoiding|prevents?|preventing)\s"
    rb"|(?:hint|tip|note|usage|example)s?\s?:"
    rb"|when(?:ever)? (?:you|it|there)\s"
    rb"|(?:can|could|may|might|will) (?:also |still |then )?(?:cause|lead|result|trigger|run|go|get|give|be|end)\s)"
)
"""Text before a message that shows that the line is advice. After a message it is advice about that message: PyTorch's
contains "to avoid fragmentation"."""

LIKELY_MESSAGES: tuple[bytes, ...] = (
    b"CUBLAS_STATUS_NOT_INITIALIZED",  # often no room for the library's handle, sometimes another fault
    b"CUDNN_STATUS_NOT_INITIALIZED",
    b"ran out of memory trying to allocate",  # TensorFlow: also a warning, after which it goes on
    b"Failed to allocate memory for requested buffer",  # ONNX Runtime: on the GPU or on the host
    b"NVML_SUCCESS == r INTERNAL ASSERT FAILED",  # PyTorch: it failed while it reported a failed allocation
    b"Dst tensor is not initialized",  # TensorFlow: no room for a copy to the GPU, sometimes another fault
    b"Unable to find a valid cuDNN algorithm",  # PyTorch: no room for a workspace, or a layer that cuDNN cannot do
    b"was unable to find an engine to execute this computation",  # the same, from 2.0: GET, FIND
    b"DNN library initialization failed",  # JAX: often no room for the handle, else a wrong cuDNN
    b"failed to create cublas handle",  # TensorFlow
    b"could not create cudnn handle",
    b"Failed to create cuSolverDN instance",
    b"CUSOLVER_STATUS_NOT_INITIALIZED",
    b"CURAND_STATUS_ALLOCATION_FAILED",  # on the GPU or on the host
    b"CL_MEM_OBJECT_ALLOCATION_FAILURE",  # OpenCL: also a driver that does not suit
)
"""Messages, in any case of letters, that mean out of GPU memory only if the GPU was full."""

_LIKELY_PATTERNS: tuple[bytes, ...] = (
    rb"\bCU(?:BLAS|SOLVER|SPARSE)_STATUS_\w+`?,? when calling `cu(?:blas|solverDn|sparse)Create\(",  # PyTorch
    rb"\bcusolver error: \d+, when calling `cusolverDnCreate\(",  # the same, older
    rb"\b(?:cu|gpu)solverDnCreate\([^\n)]{0,40}\) failed",  # JAX
)
_LIKELY = _in_lower_case(LIKELY_MESSAGES, _LIKELY_PATTERNS)

HOST_MESSAGES: tuple[bytes, ...] = (
    b"DefaultCPUAllocator: can't allocate memory",
    b"DefaultCPUAllocator: not enough memory",
    b"MemoryError",
    b"std::bad_alloc",
    b"MPS backend out of memory",  # Apple's GPUs
    b"Cannot allocate memory",  # ENOMEM
)
"""Messages about memory other than the GPU's. With one of them, a failure is not suspected to be out of GPU memory."""

FAULT_MESSAGES: tuple[bytes, ...] = (
    b"an illegal memory access was encountered",  # 700
    b"CUDA_ERROR_ILLEGAL_ADDRESS",
    b"cudaErrorIllegalAddress",
    b"device-side assert triggered",  # 710
    b"cudaErrorAssert",
    b"misaligned address",  # 716
    b"CUDA_ERROR_MISALIGNED_ADDRESS",
    b"invalid program counter",  # 718
    b"unspecified launch failure",  # 719
    b"CUDA_ERROR_LAUNCH_FAILED",
    b"cudaErrorLaunchFailure",
)
"""CUDA faults. Under MPS one client's fault ends all clients of its GPU (NVIDIA's MPS manual, "Error Containment")."""

TERMINATED_MESSAGES: tuple[bytes, ...] = (
    b"MPS client has been terminated",  # 810
    b"CUDA_ERROR_MPS_CLIENT_TERMINATED",
    b"cudaErrorMpsClientTerminated",
)
"""The MPS server ended this client: for another client's fault, or for memory above its guaranteed part."""

SERVER_MESSAGES: tuple[bytes, ...] = (
    b"MPS client failed to connect to the MPS control daemon",  # 805
    b"CUDA_ERROR_MPS_CONNECTION_FAILED",
    b"cudaErrorMpsConnectionFailed",
    b"the remote procedural call between the MPS server and the MPS client failed",  # 806
    b"CUDA_ERROR_MPS_RPC_FAILURE",
    b"cudaErrorMpsRpcFailure",
    b"MPS server is not ready",  # 807
    b"CUDA_ERROR_MPS_SERVER_NOT_READY",
    b"cudaErrorMpsServerNotReady",
    *TERMINATED_MESSAGES,
)
"""The MPS server ended, or ended this client: the fault was another client's, or the server's."""

PARTITION_MESSAGES: tuple[bytes, ...] = (
    b"CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION",  # 915
    b"cudaErrorInvalidResourceConfiguration",
    b"invalid resource configuration",
)
"""A client of an MPS daemon with static partitions named none of them. cuDevSmResourceSplit returns the same error."""

DEVICE_MESSAGES: tuple[bytes, ...] = (
    b"GPU has fallen off the bus",  # Xid 79
    b"GPU is lost",  # NVML
    b"uncorrectable ECC error encountered",  # 214
    b"CUDA_ERROR_ECC_UNCORRECTABLE",
    b"cudaErrorECCUncorrectable",
)
"""The GPU itself failed."""

LAST_LINES = 40
"""A message in this many last lines, or in the last exception, is the reason of the end."""

_MISTAKE = re.compile(
    rb"(?m)^(?:\[rank\d+\]: )?(?:(?:Name|Key|Type|Index|Attribute|Import|ModuleNotFound|FileNotFound|Syntax|Indentation"
    rb"|Permission|Assertion|ZeroDivision)Error(?::|[ \t\r]*$)|KeyboardInterrupt)"
)
"""Python exceptions for a mistake in a program or its input. With one of them, a failure is not suspected either."""

_REASON_LINE = re.compile(
    rb"(?m)^(?:\[[^\]\n]{1,40}\]:? ?|\([^)\n]{1,60}\) ?)?"  # "[rank0]: ", "(EngineCore pid=7) "
    rb"(?:(?:ERROR|CRITICAL)\b[^\]\n]{0,60}\] ?)?"  # "ERROR 09-28 15:47:24 [core.py:718] "
    rb"(?:"
    rb"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)(?::|[ \t\r]*$)"  # Python, Julia
    rb"|[ \t]+what\(\):"  # C++
    rb"|(?:\S+: )?(?:line \d+: )?[^\s:]+: (?:command not found|No such file or directory|Permission denied)[ \t\r]*$"
    rb"|usage: |\S+: error: (?:unrecognized arguments|the following arguments|argument )"  # argparse
    rb")"
)
"""Lines that state why a program ended."""

_WRAPPERS = re.compile(
    rb"ChildFailedError|ProcessRaisedException|CalledProcessError|DistBackendError|SystemExit"
    rb"|Engine core initialization failed|EngineDeadError|Failed to load model|Could not load Llama model"
    rb"|Failed to create llama_context|DataLoader worker .*exited unexpectedly"
)
"""Exceptions that only report an earlier failure of another process or step."""

_CAUSED = b"The above exception was the direct cause of the following exception"

_ASKED = re.compile(
    rb"(?:[Tt]ried to allocate|trying to allocate|allocate request for|Out of memory allocating"
    rb"|out of memory to allocate|failed to allocate)"
    rb" ([0-9][0-9,]{0,17}(?:\.[0-9]{1,6})?) ?(bytes|B|KiB|MiB|GiB)\b"
)
"""The requested size in a memory message of PyTorch, XLA (two forms) or CuPy (two forms)."""
_IN_USE = re.compile(rb"this process has ([0-9]{1,18}(?:\.[0-9]{1,6})?) ?(KiB|MiB|GiB) memory in use")
"""The size in use in PyTorch's message."""
_UNIT_BYTES = {b"bytes": 1, b"B": 1, b"KiB": 2**10, b"MiB": 2**20, b"GiB": 2**30}


class LogMessages(Struct, frozen=True):
    """The messages in a log's tail, by kind; empty: none was found."""

    certain: str = ""
    """A failed allocation on the GPU."""
    is_last: bool = False
    """No other reason follows `certain`."""
    likely: str = ""
    excuse: str = ""
    fault: str = ""
    server: str = ""
    device: str = ""
    is_terminated: bool = False
    """The MPS server ended this client, and not all of them."""
    partition: str = ""


def find_messages(tail: bytes) -> LogMessages:
    """Return the messages in a log's tail."""
    certain: re.Match[bytes] | None = None
    mild = ""
    lower = tail.lower()
    for seen in _happened(_MEMORY, tail, lower):
        if any(_MILD_LINE.search(text) for text in _around(tail, seen)):
            mild = _shown(tail, seen)
        else:
            certain = seen
    likely = [_shown(tail, seen) for seen in _happened(_LIKELY, tail, lower)]
    server = _last_of(lower, SERVER_MESSAGES)
    return LogMessages(
        certain="" if certain is None else _shown(tail, certain),
        is_last=certain is not None and _is_last(tail, certain),
        likely=likely[-1] if likely else mild,
        excuse=_last_of(lower, HOST_MESSAGES) or _mistake(tail),
        fault=_last_of(lower, FAULT_MESSAGES),
        server=server,
        device=_last_of(lower, DEVICE_MESSAGES),
        is_terminated=server.encode() in TERMINATED_MESSAGES,
        partition=_last_of(lower, PARTITION_MESSAGES),
    )


def asked_mib(log_tail: bytes) -> int | None:
    """Return the size of a program's last failed allocation in MiB, rounded up; None: its log does not contain it.

    PyTorch: "Tried to allocate 2.00 GiB". XLA: "trying to allocate 4294967296 bytes", "Failed to allocate request for
    2.00GiB". CuPy: "Out of memory allocating 1,073,741,824 bytes".
    """
    found = _ASKED.findall(log_tail)
    return _mib(*found[-1]) or None if found else None


def wanted_mib(log_tail: bytes, peak_mib: int | None) -> int | None:
    """Return the memory in use plus the failed allocation in MiB; None: the log does not contain the allocation.

    PyTorch prints both. For other programs, `peak_mib` stands for the memory in use.
    """
    asked = asked_mib(log_tail)
    if asked is None:
        return None
    in_use = _IN_USE.findall(log_tail)
    return asked + (_mib(*in_use[-1]) if in_use else peak_mib or 0)


def _mib(number: bytes, unit: bytes) -> int:
    return math.ceil(float(number.replace(b",", b"")) * _UNIT_BYTES[unit] / 2**20)


def _is_last(tail: bytes, message: re.Match[bytes]) -> bool:
    """Return whether a message is in the last exception, or in the last lines with no other reason after it."""
    for later in _REASON_LINE.finditer(tail, message.end()):
        line = _line(tail, later)
        if _MEMORY.search(line.lower()) or _WRAPPERS.search(line):
            continue
        if _CAUSED in tail[message.end() : later.start()]:
            continue  # the failed allocation again, in another exception
        return False
    return tail.count(b"\n", message.end()) <= LAST_LINES or _REASON_LINE.match(_line(tail, message)) is not None


def _happened(messages: re.Pattern[bytes], tail: bytes, lower: bytes) -> Iterator[re.Match[bytes]]:
    """Yield the messages in a log's tail that are neither about host memory nor part of advice.

    `lower`: the tail in lower case, which the matches refer to.
    """
    for seen in messages.finditer(lower):
        before, after = _around(tail, seen)
        if not (_HOST_LINE.search(before + tail[seen.start() : seen.end()] + after) or _ADVICE.search(before)):
            yield seen


def _around(tail: bytes, seen: re.Match[bytes]) -> tuple[bytes, bytes]:
    """Return the text before and after a message in its lines."""
    begin, end = tail.rfind(b"\n", 0, seen.start()) + 1, tail.find(b"\n", seen.end())
    return tail[begin : seen.start()], tail[seen.end() : end if end >= 0 else len(tail)]


def _line(tail: bytes, seen: re.Match[bytes]) -> bytes:
    end = tail.find(b"\n", seen.start())
    return tail[tail.rfind(b"\n", 0, seen.start()) + 1 : end if end >= 0 else len(tail)]


def _shown(tail: bytes, seen: re.Match[bytes]) -> str:
    return " ".join(tail[seen.start() : seen.end()].decode(errors="replace").split())


def _mistake(tail: bytes) -> str:
    found = _MISTAKE.findall(tail)
    return found[-1].decode(errors="replace") if found else ""


def _last_of(lower: bytes, listed: tuple[bytes, ...]) -> str:
    """Return the message of a list that comes last in a log in lower case; empty: none occurs."""
    where, message = max((lower.rfind(message.lower()), message) for message in listed)
    return message.decode() if where >= 0 else ""
