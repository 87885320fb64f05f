"""The jobs that users submit. Each writes into its own file when it starts, when each task starts, and how it ends."""

from __future__ import annotations

from dataclasses import dataclass

FOLDER = "chaos"
"""The folder of the jobs' files in every user's home."""
TASK = """\
#!/bin/bash
say() { echo "$1 ${SLURM_RESTART_COUNT:-0} $EPOCHREALTIME $SLURMD_NODENAME ${LLSUB_TASK:-$SLURM_STEP_ID.$SLURM_PROCID} \
$pid ${SLURM_SHARE_SLOT:-none}" >>~/chaos/$tag.$SLURM_JOB_ID; }
tag=$1
simgpu-task --memory 200M --seconds "$2" &
pid=$!
say task
wait $pid
code=$?
say over
exit $code
"""
"""A script of one task: it works on its GPU, and writes a line with that program's PID when it begins and one when it
is over."""
BEGIN = """\
file=~/chaos/$TAG.$SLURM_JOB_ID
say() { echo "$1 ${SLURM_RESTART_COUNT:-0} $EPOCHREALTIME ${SLURMD_NODENAME:-login} ${2:-}" >>$file; }
say start
"""
END = """\
code=$?
say end $code
exit $code
"""


@dataclass(frozen=True)
class Kind:
    """A kind of job: how it is submitted and what it runs."""

    options: tuple[str, ...]
    work: str
    """The commands between the first and the last line; TAG and SECONDS are replaced."""
    is_shared: bool = True


SRUN = "srun ~/chaos/task $TAG $SECONDS_"
KINDS = {
    "whole": Kind(("--share-gpu=2",), SRUN),
    "two_nodes": Kind(("--share-gpu=2", "-N2", "--ntasks-per-node=2"), SRUN),
    "gpus": Kind(("--share-gpu=2", "--gres=gpu:1"), SRUN),
    "part": Kind(("--share-gpu=4", "--gres=gpu:1", "-n1"), SRUN),
    "array": Kind(("--share-gpu=4", "--gres=gpu:1", "-n1", "--array=1-4"), SRUN),
    "bare": Kind(("--share-gpu=2,mps=off", "--gres=gpu:1"), SRUN),
    "escape": Kind(
        ("--share-gpu=2", "--gres=gpu:1"),
        "srun -n1 bash -c 'setsid -f simgpu-task --seconds 600 >/dev/null 2>&1 </dev/null'; " + SRUN,
    ),
    "overtime": Kind(("--share-gpu=2", "--gres=gpu:1", "-t1"), "srun ~/chaos/task $TAG 600"),
    "salloc": Kind(("--share-gpu=2", "--gres=gpu:1"), SRUN),
    "ordinary": Kind(("-pgpu", "--gres=gpu:1", "-n1"), SRUN, is_shared=False),
    "plain": Kind(("-pplain", "-n1"), "sleep $SECONDS_", is_shared=False),
}
TRIPLE = ("[1,2,1]", "--ntasks", "4")


def script(kind: Kind, tag: str, seconds: float) -> str:
    text = f"TAG={tag}\nSECONDS_={seconds}\n{BEGIN}{kind.work}\n{END}"
    return "#!/bin/bash\n" + text


def sbatch_options(kind: Kind, tag: str, *, requeue: bool) -> list[str]:
    """Return the options that all kinds share: little memory, so that many fit on a node, a name to recognise it by,
    and its own output file."""
    limit = [] if any(word.startswith("-t") for word in kind.options) else ["-t10"]
    again = "--requeue" if requeue else "--no-requeue"
    return [*kind.options, *limit, "--mem=300", f"--job-name={tag}", again, f"--output={FOLDER}/{tag}.%j.out"]


def triple_argv(tag: str, seconds: float) -> list[str]:
    """Return the same work as an llsub command."""
    words = ["llsub", f"./{FOLDER}/task", *TRIPLE, "-J", tag, "-T", "10", "-o", f"{FOLDER}/{tag}.%j.out"]
    return [*words, "--", tag, str(seconds)]
