"""Measure one executor from its client: executor_calls.py TOOL CALLS MANY, in the Python that has the tool.

Prints a JSON object. `first_s`: from the call that makes the executor to its first result; `one_s`: median of a call
alone; `rate`: CALLS calls a second, submitted at once; `client_s`: CPU time of the client for each of them, and
`submit_s`: how long submit() takes; `many_rate` and `map_rate`: MANY calls, and the same by map(chunksize=100). MANY=0:
without the last two. The calls are `abs(-n)`; their results are compared.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from statistics import median
from typing import Any

WORKERS = 2
ALONE = 200
"""Calls of which the median is shown; fewer of a tool that starts a process for each call."""


def process_pool() -> Any:
    return ProcessPoolExecutor(WORKERS)


def ours() -> Any:
    from slurm_share.executor import Executor

    return Executor(triple=[1, WORKERS, 1], local=True, folder=tempfile.mkdtemp() + "/run")


def ours_on_two_nodes() -> Any:
    from slurm_share.executor import Executor

    return Executor(triple=[2, WORKERS, 1], options="--gres=gpu:1 --mem=500")


def executorlib() -> Any:
    from executorlib import SingleNodeExecutor

    return SingleNodeExecutor(max_workers=WORKERS, block_allocation=True)


def executorlib_by_call() -> Any:
    from executorlib import SingleNodeExecutor

    return SingleNodeExecutor(max_workers=WORKERS)


class Submitit:
    """submitit's local executor: a process for each call. It has no shutdown, and waits by asking."""

    def __init__(self) -> None:
        import submitit

        self.executor = submitit.LocalExecutor(folder=tempfile.mkdtemp())
        self.executor.update_parameters(timeout_min=10)
        self.submit = self.executor.submit

    def __enter__(self) -> Submitit:
        return self

    def __exit__(self, *_: object) -> None:
        pass


TOOLS = {
    "ProcessPoolExecutor": process_pool,
    "slurm_share": ours,
    "slurm_share on two nodes": ours_on_two_nodes,
    "executorlib": executorlib,
    "executorlib, a process for each call": executorlib_by_call,
    "submitit": Submitit,
}


def main(tool: str, calls: int, many: int) -> dict[str, float]:
    """Return the figures of a tool."""
    begin = time.monotonic()
    with TOOLS[tool]() as executor:
        assert executor.submit(abs, -1).result() == 1
        found = {"first_s": time.monotonic() - begin}
        alone = []
        for number in range(min(ALONE, calls)):
            begin = time.monotonic()
            assert executor.submit(abs, -number).result() == number
            alone.append(time.monotonic() - begin)
        found["one_s"] = median(alone)

        begin, used = time.monotonic(), time.process_time()
        futures = [executor.submit(abs, -number) for number in range(calls)]
        found["submit_s"] = (time.monotonic() - begin) / calls
        assert [one.result() for one in futures] == list(range(calls))
        found["rate"] = calls / (time.monotonic() - begin)
        found["client_s"] = (time.process_time() - used) / calls
        if many:
            begin = time.monotonic()
            futures = [executor.submit(abs, -number) for number in range(many)]
            assert [one.result() for one in futures] == list(range(many))
            found["many_rate"] = many / (time.monotonic() - begin)
            begin = time.monotonic()
            assert list(executor.map(abs, range(0, -many, -1), chunksize=100)) == list(range(many))
            found["map_rate"] = many / (time.monotonic() - begin)
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
