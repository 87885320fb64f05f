"""Read what a shared job did, from what its tasks print and from `scontrol show job -d`."""

from __future__ import annotations

import re
from collections import Counter

TASK = """\
echo "task $SLURM_PROCID $SLURMD_NODENAME ${SLURM_SHARE_GPU_INDEX-${CUDA_VISIBLE_DEVICES-none}} \
${SLURM_SHARE_SLOT-none}/${SLURM_SHARE_SLOTS-none} ${CUDA_MPS_PINNED_DEVICE_MEM_LIMIT-none} \
${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE-none} ${SLURM_SHARE_MPS-none}"
"""


def allocated(output: str) -> str:
    """Return the nodes' owner and the CPUs, memory and GPUs on each, from `scontrol show job -d`."""
    records = re.findall(r"^JobId=.*$", output, re.MULTILINE)
    cells = []
    for record in records:
        whole = "Exclusive=NODE" in record or ("Exclusive=" not in record and "OverSubscribe=NO " in record)
        nodes = []
        for name, cpus, memory, gres in re.findall(r"Nodes=(\S+) CPU_IDs=(\S+) Mem=(\d+) GRES=(\S*)", record):
            words = [_number(_count(cpus), "CPU"), f"{memory} MB", *_gres(gres)]
            nodes.append(", ".join(words) + (" each" if "[" in name else ""))
        cells.append(("node: " if whole else "user's node: ") + "; ".join(nodes))
    return _joined(cells) or "-"


def _gres(gres: str) -> list[str]:
    """Return the GPUs of `gpu:simulated:2(IDX:0-1),shard:simulated:0(0/720720,...)`: 2."""
    words = []
    for kind, count in re.findall(r"(gpu|shard):\w+:(\d+)", gres):
        if int(count):
            words.append(_number(int(count), "GPU" if kind == "gpu" else "shard"))
    return words


def _number(count: int, of: str) -> str:
    return f"{count} {of}" + ("" if count == 1 else "s")


def _count(ids: str) -> int:
    ranges = [word.partition("-") for word in ids.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ranges)


def tasks(output: str) -> str:
    """Return how many tasks ran, and how many on each GPU of each node."""
    found = re.findall(r"^task \d+ (\S+) (\S+) (\S+) ", output, re.MULTILINE)
    if not found:
        return "0"
    shared = [one for one in found if "none" not in one[2]]
    if not shared:
        return f"{len(found)} unshared, GPU {_joined(sorted({gpu for _, gpu, _ in found}))}"
    nodes = len({node for node, _, _ in found})
    per_gpu = Counter((node, gpu) for node, gpu, _ in found)
    counts = sorted(set(per_gpu.values()))
    each = "-".join(str(count) for count in ([counts[0], counts[-1]] if len(counts) > 1 else counts))
    text = f"{len(found)}: {each} on each of {len(per_gpu)} GPUs" if len(per_gpu) > 1 else f"{len(found)} on 1 GPU"
    return text + (f" of {nodes} nodes" if nodes > 1 else "")


def caps(output: str) -> str:
    found = set(re.findall(r"^task \d+ \S+ \S+ \S+ (\S+) (\S+) (\S+)$", output, re.MULTILINE))
    cells = []
    for memory, percent, mps in sorted(found):
        if mps == "none":
            continue
        words = [
            f"{memory.partition('=')[2].replace('M', ' MiB')}" if memory != "none" else "",
            f"{percent} % SM" if percent != "none" else "",
        ]
        cells.append(", ".join([word for word in words if word] or ["none"]) + ("" if mps == "on" else " (no MPS)"))
    return _joined(cells) or "-"


def sentences(text: str) -> str:
    """Return our sentences and those of a program that failed, without the line that every simulated GPU prints."""
    lines = [line for line in text.splitlines() if re.search(r"slurm-share: |error:|not share", line)]
    lines = [line for line in lines if not re.search("TIOCGWINSZ|pseudo-terminal", line)]  # there is no terminal here
    # Slurm says it beside the exit code where the step has not quite ended, so not each time
    lines = [line for line in lines if "non-zero exit code or other failure mode" not in line]
    kept = [re.sub(r"^(sbatch|salloc|srun|slurmstepd\S*): (error: )?(?=slurm-share)", "", line) for line in lines]
    kept = [line for line in kept if "are simulated" not in line and "Batch job submission failed" not in line]
    kept = [re.sub(r"\bjob \d+(_\d+)?", "job N", line).replace("|", "/") for line in kept]
    kept = [
        re.sub(r"error: n\d: tasks? [\d,-]+: Exited with exit code 69", "error: Exited with exit code 69", line)
        for line in kept
    ]
    kept = [re.sub(r"task \d+ of", "task T of", line) for line in kept]
    # srun hears what a task says and that it has ended on two ways: either may come first
    kept.sort(key=lambda line: ("Exited with exit code" in line) + 2 * ("the job ends with exit code" in line))
    return "<br>".join(dict.fromkeys(kept)) or "-"


def _joined(cells: list[str]) -> str:
    return "; ".join(cell if count == 1 else f"{count} x {cell}" for cell, count in Counter(cells).items())
