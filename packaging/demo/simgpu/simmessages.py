"""Messages of programs whose SIMULATED CUDA call fails, in the forms of several frameworks, to test readers of logs.
Every line says that it is simulated.
"""

from __future__ import annotations

from simgpu import CudaError, OutOfMemory

SAID = "(simulated)"
GIB = 1 << 30

DESCRIPTIONS = {
    "CUDA_ERROR_OUT_OF_MEMORY": "out of memory",
    "CUDA_ERROR_ILLEGAL_ADDRESS": "an illegal memory access was encountered",
    "CUDA_ERROR_LAUNCH_FAILED": "unspecified launch failure",
    "CUDA_ERROR_UNKNOWN": "unknown error",
    "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION": "invalid resource configuration",
    "CUDA_ERROR_MPS_RPC_FAILURE": "MPS server was lost",
}
"""CUDA's texts of its errors (cudaGetErrorString)."""


def _describe(error: CudaError) -> str:
    return DESCRIPTIONS.get(error.name, error.name)


def pytorch(error: CudaError) -> str:
    if not isinstance(error, OutOfMemory):
        return f"RuntimeError: CUDA error: {_describe(error)} {SAID}"
    others = "".join(f"Process {pid} has {size / GIB:.2f} GiB memory in use. " for pid, size in error.others.items())
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {error.asked / GIB:.2f} GiB. GPU 0 has a total "
        f"capacity of {error.total / GIB:.2f} GiB of which {error.free / GIB:.2f} GiB is free. {others}"
        f"Including non-PyTorch memory, this process has {error.used / GIB:.2f} GiB memory in use. {SAID}"
    )


def jax(error: CudaError) -> str:
    name = "jaxlib.xla_extension.XlaRuntimeError"
    if not isinstance(error, OutOfMemory):
        return f"{name}: INTERNAL: {error.name}: {_describe(error)} {SAID}"
    return f"{name}: RESOURCE_EXHAUSTED: Out of memory while trying to allocate {error.asked} bytes. {SAID}"


def tensorflow(error: CudaError) -> str:
    if not isinstance(error, OutOfMemory):
        return f"tensorflow.python.framework.errors_impl.InternalError: {error.name}: {_describe(error)} {SAID}"
    return (
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with "
        f"shape[{error.asked >> 2}] and type float {SAID}"
    )


def cupy(error: CudaError) -> str:
    if not isinstance(error, OutOfMemory):
        return f"cupy_backends.cuda.api.runtime.CUDARuntimeError: {error.name}: {_describe(error)} {SAID}"
    return (
        f"cupy.cuda.memory.OutOfMemoryError: Out of memory allocating {error.asked:,} bytes "
        f"(allocated so far: {error.used:,} bytes). {SAID}"
    )


def runtime(error: CudaError) -> str:
    name = "cudaErrorMemoryAllocation" if isinstance(error, OutOfMemory) else error.name
    return f"terminate called after throwing an instance of 'CudaError': {name}: {_describe(error)} {SAID}"


def silent(error: CudaError) -> str:
    return f"simgpu-task: ended {SAID}"


STYLES = {"pytorch": pytorch, "jax": jax, "tensorflow": tensorflow, "cupy": cupy, "runtime": runtime, "silent": silent}
"""`runtime`: a C++ program without a handler, which also ends by SIGABRT. `silent`: prints nothing."""
