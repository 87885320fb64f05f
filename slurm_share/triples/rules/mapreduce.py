"""Decide what llmapreduce runs: inputs, names of outputs, and number of processes.

The rules are those of the MIT SuperCloud documentation, "LLMapReduce". It leaves open:

* Output names. `--prefix`, `--ext` (`out`; `noext`: none) and `--delimeter` (`.`) are documented; the extension of the
  input is not. Here it is kept (`a.txt.out`), so that `a.txt` and `a.csv` have different outputs.
* Lists. A line with one argument gets an output named after the last part of its path, as in LLSC's examples. A line
  with several arguments becomes the mapper's `$1 $2 $3 ...` unchanged, as in LLSC's parameter sweep. Lines are split as
  by a shell, so an argument in quotes may contain blanks.
* `input_<#>` counts from 1, as in LLSC's figures.
* Two inputs with the same output are refused (overwriting.py), because the second would replace the first.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from msgspec import Struct

from ...core.errors import UsageError, shown
from ...core.text import counted
from ...slurm.records import NodeKind
from ..records import Distribution, Triple
from ..run_folder import JOBS, MAP_SCRIPT, QUEUE, REDUCE_SCRIPT, RUN, SPECS, SUMMARY, WRITTEN
from . import deal, moved
from .submission import SbatchOptions

Item = tuple[str, ...]
"""The arguments of the mapper for one input."""
AppType = Literal["siso", "mimo"]
NO_EXTENSION = "noext"


class OutputNames(Struct, frozen=True):
    """The naming of outputs after their inputs."""

    prefix: str = ""
    extension: str = "out"
    delimiter: str = "."

    def name(self, below: str) -> str:
        """Return the output's path below the output folder, for an input's path below the input folder."""
        folder, slash, base = below.rpartition("/")
        ending = "" if self.extension == NO_EXTENSION else self.delimiter + self.extension
        return f"{folder}{slash}{self.prefix}{base}{ending}"


def items_of_files(
    files: Sequence[str], input_folder: str, output_folder: str, naming: OutputNames
) -> tuple[Item, ...]:
    """Return (input, output) for each file of a folder; `files` are paths below it."""
    return tuple((f"{input_folder}/{file}", f"{output_folder}/{naming.name(file)}") for file in files)


def items_of_list(lines: Sequence[str], file: str, output_folder: str, naming: OutputNames) -> tuple[Item, ...]:
    """Return the arguments of each line of a list file, without empty lines. Raises UsageError."""
    items: list[Item] = []
    for number, line in enumerate(lines, 1):
        try:
            item = shlex.split(line)
        except ValueError as error:
            raise UsageError(
                f"line {number} of {file} cannot be split as by a shell ({error}): {shown(line)}; write quotes in "
                "pairs, and a backslash before a quote that is part of a name"
            ) from error
        if len(item) == 1:
            base = item[0].rstrip("/").rpartition("/")[2]
            items.append((item[0], f"{output_folder}/{naming.name(base)}"))
        elif item:
            items.append(tuple(item))
    return tuple(items)


# --- how many processes ----------------------------------------------------------------------------------------------


class InputSplit(Struct, frozen=True):
    """The assignment of inputs to processes."""

    processes: int
    groups: tuple[tuple[int, ...], ...] | None
    """With mimo: the inputs of each start of the mapper; None: one start per input."""
    distribution: Distribution
    """Distribution of the tasks (inputs, or groups) to processes."""
    per_process: int | None = None
    triple: Triple | None = None
    notes: tuple[str, ...] = ()

    def tasks(self, inputs: int) -> int:
        return inputs if self.groups is None else len(self.groups)


def split(
    inputs: int,
    np: int | Triple | None,
    ndata: int | None,
    distribution: Distribution,
    apptype: AppType,
    room: int | None,
    where: str,
) -> InputSplit:
    """Assign `inputs` to processes.

    `room`: most processes at once in `where` (text for a note); None: not known. LLSC queues further processes; here
    the processes that run go on with further inputs in the same job.
    """
    notes: list[str] = []
    if apptype == "mimo" and distribution == "dynamic" and ndata is None:
        distribution = "block"
        notes.append(
            "--distribution=dynamic ignored, because with --apptype=mimo each process starts the mapper once; write "
            "--ndata=K for several starts of K inputs each"
        )
    triple = None
    if ndata is not None:
        wanted = -(-inputs // ndata)
        if np is not None:
            notes.append(f"--np={np} is ignored because of --ndata: {inputs} inputs, {ndata} per process")
    elif isinstance(np, Triple):
        triple = _fitting(np, inputs)
        wanted = triple.nodes * triple.per_node
        if triple != np:
            notes.append(f"{np} is {np.nodes * np.per_node} processes for {inputs} inputs; {triple} is enough")
        room = None
    elif np is not None:
        wanted = min(np, inputs)
        if np > inputs:
            notes.append(f"--np={np} is more than the number of inputs; {counted(inputs, 'process')} will run")
    else:
        wanted = inputs
    processes = wanted
    if room is not None and wanted > max(room, 1):
        processes = max(room, 1)
        if np is not None or ndata is not None:
            notes.append(f"{where} has room for {processes} of {wanted} processes at once; these process all inputs")
    per_process = ndata if distribution == "block" and processes == wanted else None
    if apptype == "siso":
        return InputSplit(processes, None, distribution, per_process, triple, tuple(notes))
    starts = min(inputs, wanted if ndata is not None else processes)
    groups = tuple(tuple(deal.part(inputs, starts, number, distribution, ndata)) for number in range(starts))
    return InputSplit(processes, groups, distribution, 1 if per_process else None, triple, tuple(notes))


def _fitting(triple: Triple, inputs: int) -> Triple:
    """Return the triple without processes, and nodes, that would get no input."""
    if triple.nodes * triple.per_node <= inputs:
        return triple
    per_node = -(-inputs // triple.nodes)
    return Triple(-(-inputs // per_node), per_node, triple.threads)


def pairs_text(items: Sequence[Item], group: Sequence[int]) -> str:
    """Return an `input_<#>` file: a line per input. Raises UsageError for an empty argument and for a blank in one."""
    for item in (items[index] for index in group):
        for part in item:
            if not part or any(character.isspace() for character in part):
                raise UsageError(
                    f"{shown(part)} is empty or contains a blank, which a line `input output` does not allow; rename "
                    "it, or use --apptype=siso"
                )
    return "".join(f"{' '.join(items[index])}\n" for index in group)


# --- options of sbatch -----------------------------------------------------------------------------------------------


class MapSbatchOptions(SbatchOptions, frozen=True, kw_only=True):
    """The user's options for the scheduler.

    `constraint`: --cpuType. `gpus`: --gpuNameCount, NAME:COUNT for each process, or for each node of a triple.
    """

    slots: int = 1
    slots_type: int = 1
    """--slotsPerTaskType: 1: `slots` is for map processes, 2: for both, 3: for the reducer."""
    exclusive: bool = False

    @property
    def map_slots(self) -> int:
        return self.slots if self.slots_type in (1, 2) else 1

    @property
    def reduce_slots(self) -> int:
        return self.slots if self.slots_type in (2, 3) else 1


class Request(Struct, frozen=True, kw_only=True):
    """The parsed command line of llmapreduce."""

    mapper: str
    input: str
    output: str
    reducer: str | None
    redargs: str
    redout: str
    np: int | Triple | None
    ndata: int | None
    distribution: str
    apptype: str
    naming: OutputNames
    subdir: bool
    extension: str | None
    keep: bool
    tempdir: str | None
    whatever: bool
    wish: MapSbatchOptions
    retries: int
    progress: str = ""
    window_s: float = 30.0
    checkpoint_signal: int | None = None
    """All three as in records.Run."""
    local: bool
    dry_run: bool
    wait: bool
    parsable: bool = False
    """Print only the id of the last job on standard output."""
    notes: tuple[str, ...] = ()
    """Sentences about options without effect."""


def words(option: str, text: str) -> tuple[str, ...]:
    """Split a value as a shell does. Raises UsageError."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"{option}={shown(text)} cannot be split as by a shell ({error})") from error


def _common(wish: MapSbatchOptions) -> list[str]:
    names = ("partition", "constraint", "reservation")
    return [f"--{name}={value}" for name in names if (value := getattr(wish, name)) is not None]


def map_options(wish: MapSbatchOptions, processes: int, plugin: bool) -> tuple[str, ...]:
    """Return sbatch's options for a map without a triple: a Slurm task per process, on any node.

    `plugin`: sbatch has --share-gpu; without it, the launchers share GPUs by themselves.
    """
    return (
        *_common(wish),
        f"--ntasks={processes}",
        f"--cpus-per-task={wish.map_slots}",
        *([f"--gpus-per-task={wish.gpus}"] if wish.gpus else []),
        *(["--exclusive"] if wish.exclusive else []),
        *([f"--share-gpu={wish.share}"] if wish.share is not None and plugin else []),
        *([f"--signal={wish.signal}"] if wish.signal is not None else []),
        *wish.options,
    )


def reduce_options(wish: MapSbatchOptions, map_job: str, whatever: bool) -> tuple[str, ...]:
    """Return sbatch's options for the reducer: one process after the map. `whatever`: also after a map that failed.

    Otherwise a failed map removes the reducer from the queue (--kill-on-invalid-dep).
    """
    dependency = f"{'afterany' if whatever else 'afterok'}:{map_job}"
    return (
        *_common(wish),
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={wish.reduce_slots}",
        *wish.options,
        f"--dependency={dependency}",
        "--kill-on-invalid-dep=yes",
    )


def reducer_command(reducer: str, output_folder: str, redout: str, redargs: str) -> tuple[str, ...]:
    """Return `reducer OUTPUT_FOLDER REDOUT [redargs...]`, as in LLSC's examples. Raises UsageError."""
    return (reducer, output_folder, redout, *words("--redargs", redargs))


# --- room ------------------------------------------------------------------------------------------------------------


def room(kinds: Iterable[NodeKind], partition: str | None, wish: MapSbatchOptions) -> int | None:
    """Return the number of processes for which a partition's nodes have cores, and GPUs if requested; None: not known.

    Several partitions: the largest number, because the job gets one of them. None: the default partition.
    """
    kinds = tuple(kinds)
    asked = {kind.partition for kind in kinds if kind.is_default} if partition is None else set(partition.split(","))
    return (
        max((_room_of([kind for kind in kinds if kind.partition == name], wish) for name in asked), default=0) or None
    )


def _room_of(kinds: Sequence[NodeKind], wish: MapSbatchOptions) -> int:
    places: list[int] = []
    most: int | None = None
    for kind in kinds:
        if not kind.usable or not _has(kind, wish.constraint):
            continue
        most = kind.max_nodes_per_job
        each = kind.cpus // wish.map_slots
        if wish.gpus is not None:
            name, count = gpu_text(wish.gpus)
            each = min(each, sum(have for type_, have in kind.gpus if name in ("", type_)) // count)
        places += [each] * len(kind.nodes)
    return sum(sorted(places, reverse=True)[:most])


def _has(kind: NodeKind, constraint: str | None) -> bool:
    """Return whether a kind of node has a feature; True for a constraint that is more than one name."""
    if constraint is None or not re.fullmatch(r"[A-Za-z0-9_.-]+", constraint, re.ASCII):
        return True
    return constraint in kind.features.split(",")


def gpu_text(gpus: str) -> tuple[str, int]:
    """Return (name, count) of --gpuNameCount; the name may be empty."""
    name, _, number = gpus.rpartition(":")
    return name, int(number)


def gpus_of(gpus: str, processes: int) -> str:
    """Return all GPUs of a job with `gpus` for each process, in Slurm's form."""
    name, count = gpu_text(gpus)
    return f"{name}:{count * processes}" if name else str(count * processes)


_GPU_COUNT = re.compile(r"(?<!\S)-g (?=[0-9]|COUNT)")
_GPU_OPTION = re.compile(r"(?<!\S)-g(?!\S)")


def in_own_options(sentence: str) -> str:
    """Return a sentence of llsub with --gpuNameCount in place of -g."""
    return _GPU_OPTION.sub("--gpuNameCount", _GPU_COUNT.sub("--gpuNameCount=", sentence))


# --- the scripts -----------------------------------------------------------------------------------------------------

MAPPED = "mapped"
"""Empty file in the run's folder: every start of the mapper succeeded."""
FINISHED = "finished"
"""Empty file in a folder that is kept: map and reducer succeeded."""
LOGS = "logs"
PAIRS = "input_"
MAP_LOG = "llmapreduce-launch.log-"
REDUCE_LOG = "llmapreduce-reduce.log-"
_OURS = (*(name for name in WRITTEN if name != SPECS), JOBS, QUEUE, SUMMARY, MAP_SCRIPT, REDUCE_SCRIPT)
"""Without SPECS, which a map never writes: a file of this name in the folder of --tempdir is the user's."""
_OURS_LAST = (LOGS, MAPPED, FINISHED)


class Folder(Struct, frozen=True):
    """The temporary folder of a run."""

    path: str
    is_ours: bool
    """False: it existed before (--tempdir) and is not removed."""
    keep: bool
    pairs: int = 0
    """Number of files input_1 to input_N in it."""

    def ours(self) -> tuple[str, ...]:
        """Return the names of all files that a run creates in the folder."""
        return (*_OURS, *(f"{PAIRS}{number}" for number in range(1, self.pairs + 1)), *_OURS_LAST)


def taken(names: Collection[str], pairs: bool) -> tuple[str, ...]:
    """Return the existing files of a folder that the run would overwrite."""
    ours = set(_OURS) | set(_OURS_LAST)
    return tuple(sorted(name for name in names if name in ours or (pairs and re.fullmatch(r"input_[0-9]+", name))))


def end_lines(folder: Folder, log: str) -> tuple[str, ...]:
    """Return the last lines of the last job's script, which remove the folder or mark it as finished.

    slurmstepd keeps the job's log (`log` and the job id) in that folder open until the script ends. On NFS, an open
    file that is removed stays as .nfsXXXX, and so does its folder. So the log is moved out of the folder and removed
    there.
    """
    path = '"$folder"'
    if folder.keep:
        return ("mine", f": > {path}/{FINISHED}")
    lines = [
        "# All tasks are done: remove the files of this run (--keep=true keeps them).",
        "mine",
        "exec > /dev/null 2>&1",
        'moved="$folder.log-$SLURM_JOB_ID"',
        f'mv -f -- {path}/{LOGS}/{log}"$SLURM_JOB_ID" "$moved" && rm -f -- "$moved"',
        f"rm -rf -- {' '.join(f'{path}/{name}' for name in (*_OURS, *_OURS_LAST))}",
    ]
    if folder.pairs:  # through a pipe, because there may be more than fit on a command line
        lines.append(f"printf '%s\\0' {path}/{PAIRS}{{1..{folder.pairs}}} | xargs -0 rm -f --")
    return (*lines, f"rmdir -- {path}", "true") if folder.is_ours else tuple(lines)


def _head(folder: Folder, run_id: str) -> tuple[str, ...]:
    """Return the lines that set the folder, and check that it is still that of this run."""
    return (
        f"folder={shlex.quote(folder.path)}",
        "# The folder may have been renamed or moved, and another run may have its name: nothing is written or removed"
        " there then.",
        "mine() {",
        f"""    grep -qsF '"id": "{run_id}"' "$folder"/{RUN} && return""",
        f"""    echo "$folder: {moved.GONE}" >&2""",
        "    exit 1",
        "}",
        "mine",
    )


def map_script(folder: Folder, is_last: bool, failures: Sequence[str], run_id: str) -> str:
    """Return map.sh: it runs launch.sh, then `failures` if that failed, or the last lines if this is the last job.

    `failures`: the command that prints inputs and logs of failed tasks; the folder follows it.
    """
    lines = [
        "#!/bin/bash",
        "# llmapreduce: the map. launch.sh runs it; llsub --resume with this folder runs what is unfinished.",
        *_head(folder, run_id),
        "trap : TERM INT USR1  # launch.sh gets these signals too, and prints what is unfinished",
        f'/bin/bash "$folder"/launch.sh || {{ code=$?; mine; {shlex.join(failures)} "$folder"; exit $code; }}',
        "mine",
        f': > "$folder"/{MAPPED}',
        *(end_lines(folder, MAP_LOG) if is_last else ()),
    ]
    return "".join(f"{line}\n" for line in lines)


def reduce_script(command: Sequence[str], folder: Folder, has_saved: Sequence[str], run_id: str) -> str:
    """Return reduce.sh: it runs the reducer, and removes the folder if map and reducer succeeded.

    `has_saved`: the command that fails with a sentence if inputs were saved and not finished. Their outputs are not
    complete, and a reducer after a failed map (--changeDepMode) must not read them. The folder follows it.
    """
    lines = [
        "#!/bin/bash",
        "# llmapreduce: the reducer.",
        *_head(folder, run_id),
        f'[ -e "$folder"/{MAPPED} ] || {shlex.join(has_saved)} "$folder" || exit',
        f'{shlex.join(command)} || {{ code=$?; echo "the reducer ended with $code"; exit $code; }}',
        f'[ -e "$folder"/{MAPPED} ] || exit 0  # the map failed: keep its files',
        *end_lines(folder, REDUCE_LOG),
    ]
    return "".join(f"{line}\n" for line in lines)
