"""The srun command of a small step inside a job: it overlaps the job's own steps and takes no resources."""

from __future__ import annotations


def step_argv(*, job: int, component: int | None, nodes: str, count: int, gres: str, name: str) -> list[str]:
    """Return srun and its options, for one task on each of `count` nodes (`nodes`: as Slurm writes them).

    `job`: as srun's --jobid takes it, of a heterogeneous job its first component's, and `component` which one.
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
        # Beside the job's own steps, on any of its cores, within its memory.
        "--overlap",
        "--mem=0",
        "--cpu-bind=none",
        "--kill-on-bad-exit=0",
        # From / because the caller's folder may not be there, without a library of MPI, and with all of the environment
        # that it is given.
        "--chdir=/",
        "--mpi=none",
        "--export=ALL",
        f"--job-name={name}",
    ]
