"""Which files say which jobs have a GPU, for dcgm-exporter and for the exporter of jobstats.

dcgm-exporter (`--hpc-job-mapping-dir`, internal/pkg/transformation/hpc.go) reads a file for each GPU, named by its
index, or INDEX.INSTANCE for a MIG instance, with a job's number in each line. The exporter of jobstats
(plazonic/nvidia_gpu_prometheus_exporter, main.go) reads the file named by the UUID, else the one named by the index,
with "JOB UID" in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from ...core import numbers
from ...node.gpus.driver import is_uuid
from ...node.records import Gpu

Lines = Mapping[tuple[str, str], tuple[str, ...]]
"""By folder and file name: the lines of the file."""


class FileLine(Struct, frozen=True):
    """One job's line in a file about one GPU."""

    folder: str
    name: str
    text: str


class GpuJob(Struct, frozen=True):
    """One job on this node, with its lines."""

    job: int
    uid: int
    boot_id: str
    since: float
    """Seconds since boot at which its Prolog wrote this."""
    uuids: tuple[str, ...] = ()
    lines: tuple[FileLine, ...] = ()


def lines_of(
    job: int,
    uid: int,
    gpus: Sequence[Gpu],
    instances: Mapping[str, int],
    job_mapping_folder: str,
    gpustat_folder: str,
) -> tuple[FileLine, ...]:
    """Return the lines of a job with these GPUs. `instances`: the driver's GPU instance id of each MIG instance; one
    that is missing there has no file but that of its UUID. An empty folder is switched off."""
    found: list[FileLine] = []
    for gpu in gpus:
        number: str | None = str(gpu.index)
        if gpu.uuid.startswith("MIG-"):
            number = f"{gpu.index}.{instances[gpu.uuid]}" if gpu.uuid in instances else None
        if job_mapping_folder and number is not None:
            found.append(FileLine(job_mapping_folder, number, str(job)))
        if gpustat_folder:
            names = [gpu.uuid.replace("/", "_")] if gpu.problem is None else []
            found += (FileLine(gpustat_folder, name, f"{job} {uid}") for name in (*names, number) if name is not None)
    return tuple(found)


def ended(known: Iterable[GpuJob], arriving: GpuJob, alive: Iterable[int]) -> tuple[int, ...]:
    """Return the jobs that are over although no Epilog has removed them: they were written before the last boot, or
    hold a GPU of the job that arrives, and have no step on the node."""
    living = {*alive, arriving.job}
    uuids = set(arriving.uuids)
    return tuple(
        one.job
        for one in known
        if one.job not in living and (one.boot_id != arriving.boot_id or not uuids.isdisjoint(one.uuids))
    )


def contents(known: Iterable[GpuJob]) -> Lines:
    """Return what the files are to say: the jobs of a GPU in the order in which they came."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for one in sorted(known, key=lambda job: (job.since, job.job)):
        for line in one.lines:
            place = (line.folder, line.name)
            found[place] = (*(text for text in found.get(place, ()) if text != line.text), line.text)
    return found


def is_of_gpu(name: str) -> bool:
    """Return whether a file of that name is about a GPU: it is removed if no job has that GPU. Others stay."""
    index, dot, instance = name.partition(".")
    is_number = numbers.whole(index) is not None and (not dot or numbers.whole(instance) is not None)
    return is_number or is_uuid(name.replace("_", "/"))
