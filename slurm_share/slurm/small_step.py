"""Build the srun command of a step that overlaps the job's own steps and takes no resources."""

from __future__ import annotations


def step_argv(*, job: int, component: int | None, nodes: str, count: int, gres: str, name: str) -> list[str]:
    """Return srun and its options, for one task on each of `count` nodes (`nodes`: a folded list).

    `job`: the number for --jobid. Of a heterogeneous job that is its first component's, and `component` is the index.
    """
    return [
        "srun",
        f"--jobid={job}",
        *([f"--het-group={component}"] if component is not None else []),
        f"--nodelist={nodes}",
        f"--nodes={count}",
        f"--ntasks={count}",
        "--ntasks-per-node=1",
        f"--gres={gres}",
        # On any core of the job, within its memory.
        "--overlap",
        "--mem=0",
        "--cpu-bind=none",
        "--kill-on-bad-exit=0",
        # The caller's folder may not exist on the node.
        "--chdir=/",
        "--mpi=none",
        "--export=ALL",
        f"--job-name={name}",
    ]
