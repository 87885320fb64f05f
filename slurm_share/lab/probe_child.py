"""Start the probed program and watch it: `python -I probe_child.py HOOK LIMIT_S BYTES FOLDER -- COMMAND...`.

This is a separate process, so that limits and session do not affect the launcher. The program gets no GPU, input or
output, an address space of BYTES, and the lowest priority. When it answers, or after LIMIT_S, its whole session is
killed. The answer is printed: the peak in bytes, and the number of steps.
"""

from __future__ import annotations

import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ANSWER_BYTES = 64


def main(argv: Sequence[str]) -> int:
    """Run a command under the hook. Return 0 and print the answer if there is one, else return 1."""
    hook, limit_s, address_bytes, folder = argv[0], float(argv[1]), int(argv[2]), argv[3]
    command = list(argv[5:])
    hooks = tempfile.mkdtemp(prefix="slurm-share-probe-")
    try:
        text = f"import runpy\nrunpy.run_path({hook!r})\n"
        Path(hooks, "sitecustomize.py").write_text(text, encoding="utf-8")
        answer = _watch(command, folder, hooks, address_bytes, time.monotonic() + limit_s)
    finally:
        shutil.rmtree(hooks, ignore_errors=True)
    sys.stdout.write(answer)
    return 0 if answer else 1


def _watch(command: Sequence[str], folder: str, hooks: str, address_bytes: int, until: float) -> str:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _become(command, folder, hooks, address_bytes, writing)
        finally:
            os._exit(127)
    os.close(writing)
    data = b""
    try:
        while b"\n" not in data and len(data) < ANSWER_BYTES:
            ready, _, _ = select.select([reading], [], [], max(0.0, until - time.monotonic()))
            part = os.read(reading, ANSWER_BYTES) if ready else b""
            if not part:  # the program has ended, or the time is over
                break
            data += part
    finally:
        # The program leads its own session, so its child processes are killed with it.
        for kill in (os.killpg, os.kill):
            try:
                kill(child, signal.SIGKILL)
            except ProcessLookupError:
                pass
        os.waitpid(child, 0)
    return data.decode("ascii", "replace") if data.endswith(b"\n") else ""


def _become(command: Sequence[str], folder: str, hooks: str, address_bytes: int, writing: int) -> None:
    os.setsid()
    os.nice(19)
    resource.setrlimit(resource.RLIMIT_AS, (address_bytes, address_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.set_inheritable(writing, True)
    os.chdir(folder)
    path = os.environ.get("PYTHONPATH")
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "LLSUB_PROBE": "1",
        "PYTHONPATH": hooks if not path else f"{hooks}{os.pathsep}{path}",
        "SLURM_SHARE_PROBE_FD": str(writing),
        "SLURM_SHARE_PROBE_FOLDER": hooks,
    }
    os.execvpe(command[0], list(command), environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
