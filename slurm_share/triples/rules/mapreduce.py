"""Decide what llmapreduce runs: inputs, names of outputs, and number of processes.

Source of every rule: MIT SuperCloud documentation, "LLMapReduce". Where it is silent:

* Output names. LLSC documents `--prefix` (before the name), `--ext` (`out`; `noext`: none) and `--delimeter` (`.`), and
  nothing about the input's own extension. Here it stays, so that `a.txt` and `a.csv` do not meet: `a.txt.out`.
* A list's line with one word gets an output name, made of the word's last part: LLSC's examples call the mapper with a
  number of the list and an output file. A line with several words is the mapper's `$1 $2 $3 ...`, and nothing is added:
  its example of a parameter sweep. Words are parted as a shell does, so that one in quotes may hold blanks.
* `input_<#>` counts from 1, as LLSC's pictures count processes.
* Two inputs that would be written to one output are refused: the second one would silently replace the first.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from ...core.errors import UsageError, shown
from ...slurm.records import NodeKind
from ..records import Distribution, Triple

Item = tuple[str, ...]
"""What the mapper is called with for one input."""
AppType = Literal["siso", "mimo"]
NO_EXTENSION = "noext"


class Naming(Struct, frozen=True):
    """The naming of outputs after their inputs."""

    prefix: str = ""
    extension: str = "out"
    delimiter: str = "."

    def name(self, below: str) -> str:
        """Return the output's path below the output folder, for an input's path below the input folder."""
        folder, slash, base = below.rpartition("/")
        ending = "" if self.extension == NO_EXTENSION else self.delimiter + self.extension
        return f"{folder}{slash}{self.prefix}{base}{ending}"


def items_of_files(files: Sequence[str], input_folder: str, output_folder: str, naming: Naming) -> tuple[Item, ...]:
    """Return `input output` for each file of a folder; `files` are paths below it. Raises UsageError."""
    items = tuple((f"{input_folder}/{file}", f"{output_folder}/{naming.name(file)}") for file in files)
    _refuse_shared_outputs(items)
    return items


def items_of_list(lines: Sequence[str], file: str, output_folder: str, naming: Naming) -> tuple[Item, ...]:
    """Return the input and output of each line of a list file, without empty lines. Raises UsageError."""
    items: list[Item] = []
    named: list[tuple[str, str]] = []
    for number, line in enumerate(lines, 1):
        try:
            item = shlex.split(line)
        except ValueError as error:
            raise UsageError(
                f"line {number} of {file} is not words as a shell knows them ({error}): {shown(line)}; "
                "write quotes in pairs, and a backslash before a quote that is part of a name"
            ) from error
        if len(item) == 1:
            base = item[0].rstrip("/").rpartition("/")[2]
            named.append((item[0], f"{output_folder}/{naming.name(base)}"))
            items.append(named[-1])
        elif item:
            items.append(tuple(item))
    _refuse_shared_outputs(named)
    return tuple(items)


def _refuse_shared_outputs(items: Iterable[tuple[str, str]]) -> None:
    seen: dict[str, str] = {}
    for source, output in items:
        if output in seen:
            raise UsageError(
                f"{seen[output]} and {source} would both be written to {output}; give them names of their own, or "
                "write input and output on each line of a list"
            )
        seen[output] = source


# --- how many processes ----------------------------------------------------------------------------------------------


class Split(Struct, frozen=True):
    """The assignment of inputs to processes."""

    processes: int
    groups: tuple[tuple[int, ...], ...] | None
    """With mimo: the inputs that each start of the mapper gets; None: one start per input."""
    distribution: Distribution
    """Distribution of the tasks: of inputs, or of groups."""
    per_process: int | None = None
    triple: Triple | None = None
    notes: tuple[str, ...] = ()

    def tasks(self, inputs: int) -> int:
        """Return the number of starts of the mapper."""
        return inputs if self.groups is None else len(self.groups)


def split(
    inputs: int,
    np: int | Triple | None,
    ndata: int | None,
    distribution: Distribution,
    apptype: AppType,
    room: int | None,
    where: str,
) -> Split:
    """Assign `inputs` to processes.

    `room`: processes for which there is a place at once, in `where` (words for a note); None: not known. LLSC queues
    what is above it; here those who have a place go on with the further inputs, in the same job.

    Raises UsageError for a combination that says nothing.
    """
    if apptype == "mimo" and distribution == "dynamic" and ndata is None:
        raise UsageError(
            "--distribution=dynamic with --apptype=mimo leaves nothing to hand out, as each process starts the mapper "
            "once; write --ndata=K for several starts of K inputs each"
        )
    notes: list[str] = []
    triple = None
    if ndata is not None:
        wanted = -(-inputs // ndata)
        if np is not None:
            notes.append(f"--np={np} is not used where --ndata is given: {inputs} inputs, {ndata} a process")
    elif isinstance(np, Triple):
        triple = _fitting(np, inputs)
        wanted = triple.nodes * triple.per_node
        if triple != np:
            notes.append(f"{np} is {np.nodes * np.per_node} processes for {inputs} inputs; {triple} is enough")
        room = None
    elif np is not None:
        wanted = min(np, inputs)
        if np > inputs:
            notes.append(f"--np={np} is more than there are inputs; {_processes(inputs)} will do")
    else:
        wanted = inputs
    processes = wanted
    if room is not None and wanted > max(room, 1):
        processes = max(room, 1)
        if np is not None or ndata is not None:
            notes.append(
                f"{where} has room for {processes} of {wanted} processes at once; these go on with the further inputs"
            )
    per_process = ndata if distribution == "block" and processes == wanted else None
    if apptype == "siso":
        return Split(processes, None, distribution, per_process, triple, tuple(notes))
    starts = min(inputs, wanted if ndata is not None else processes)
    groups = deal_groups(inputs, starts, distribution, ndata)
    return Split(processes, groups, distribution, 1 if per_process else None, triple, tuple(notes))


def _fitting(triple: Triple, inputs: int) -> Triple:
    """Return the triple without processes that get no input, and without nodes that have none."""
    if triple.nodes * triple.per_node <= inputs:
        return triple
    per_node = -(-inputs // triple.nodes)
    return Triple(-(-inputs // per_node), per_node, triple.threads)


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def deal_groups(
    inputs: int, groups: int, distribution: Distribution, per_group: int | None = None
) -> tuple[tuple[int, ...], ...]:
    """Return the inputs of each group.

    cyclic: in turn. block: contiguous, with `per_group` that many each and the rest for the last group; else the first
    ones have one more.
    """
    if distribution == "cyclic":
        return tuple(tuple(range(group, inputs, groups)) for group in range(groups))
    if per_group is not None:
        return tuple(tuple(range(first, min(first + per_group, inputs))) for first in range(0, inputs, per_group))
    least, extra = divmod(inputs, groups)
    edges = [group * least + min(group, extra) for group in range(groups + 1)]
    return tuple(tuple(range(edges[group], edges[group + 1])) for group in range(groups))


def pairs_text(items: Sequence[Item], group: Sequence[int]) -> str:
    """Return an `input_<#>` file: a line per input, its words separated by a blank.

    Raises UsageError for words that such a line cannot hold.
    """
    for item in (items[index] for index in group):
        for part in item:
            if not part or any(character.isspace() for character in part):
                raise UsageError(
                    f"{shown(part)} has a blank in it, which a line of `input output` cannot hold; rename it, or use "
                    "--apptype=siso"
                )
    return "".join(f"{' '.join(items[index])}\n" for index in group)


# --- what the scheduler is asked for ---------------------------------------------------------------------------------


class Wish(Struct, frozen=True, kw_only=True):
    """Options for the scheduler, as the user gave them."""

    partition: str | None = None
    constraint: str | None = None
    """--cpuType: at LLSC the name of a kind of node; here a feature of nodes."""
    reservation: str | None = None
    gpus: str | None = None
    """--gpuNameCount: NAME:COUNT, for each process; of a triple, for each node, as its processes share them."""
    slots: int = 1
    slots_type: int = 1
    """1: slots are the map's, 2: of both, 3: of the reduce."""
    exclusive: bool = False
    share: str | None = None
    options: tuple[str, ...] = ()
    """--options, as words: last, so that they win."""

    @property
    def map_slots(self) -> int:
        """Return the cores of a map process."""
        return self.slots if self.slots_type in (1, 2) else 1

    @property
    def reduce_slots(self) -> int:
        """Return the cores of the reducer."""
        return self.slots if self.slots_type in (2, 3) else 1


def slots_type(text: str) -> int:
    """Parse --slotsPerTaskType. Raises UsageError."""
    if text not in ("1", "2", "3"):
        raise UsageError(f"--slotsPerTaskType={shown(text)}: write 1 (map), 2 (map and reduce) or 3 (reduce)")
    return int(text)


def boolean(option: str, text: str) -> bool:
    """Parse LLSC's true and false, in any case of letters. Raises UsageError."""
    if text.lower() not in ("true", "false"):
        raise UsageError(f"{option}={shown(text)}: write {option}=true or {option}=false")
    return text.lower() == "true"


def count(option: str, text: str) -> int:
    """Parse a number of at least 1. Raises UsageError."""
    if not re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) or int(text) < 1:
        raise UsageError(f"{option}={shown(text)}: write a whole number of at least 1")
    return int(text)


def gpus(text: str) -> str:
    """Return --gpuNameCount as Slurm writes it: NAME:COUNT, or COUNT. Raises UsageError."""
    if not re.fullmatch(r"([A-Za-z0-9_.-]+:)?[1-9][0-9]{0,3}", text, re.ASCII):
        raise UsageError(f"--gpuNameCount={shown(text)}: write NAME:COUNT, e.g. volta:1")
    return text


def _common(wish: Wish) -> list[str]:
    named: Mapping[str, str | None] = {
        "partition": wish.partition,
        "constraint": wish.constraint,
        "reservation": wish.reservation,
    }
    return [f"--{name}={value}" for name, value in named.items() if value is not None]


def map_options(wish: Wish, processes: int, plugin: bool) -> tuple[str, ...]:
    """Return sbatch's options for a map without a triple: a task per process, on any node. `plugin`: sbatch knows
    --share-gpu; where it does not, the launchers share as far as they can."""
    return (
        *_common(wish),
        f"--ntasks={processes}",
        f"--cpus-per-task={wish.map_slots}",
        *([f"--gpus-per-task={wish.gpus}"] if wish.gpus else []),
        *(["--exclusive"] if wish.exclusive else []),
        *([f"--share-gpu={wish.share}"] if wish.share is not None and plugin else []),
        *wish.options,
    )


def reduce_options(wish: Wish, map_job: str, whatever: bool) -> tuple[str, ...]:
    """Return sbatch's options for the reducer: one process, after the map; `whatever` its outcome.

    A map that failed takes the reducer out of the queue with it.
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
    """`reducer OUTPUT_FOLDER REDOUT [redargs...]`: $1 and $2 are those of LLSC's examples. Raises UsageError."""
    try:
        return (reducer, output_folder, redout, *shlex.split(redargs))
    except ValueError as error:
        raise UsageError(f"--redargs={shown(redargs)}: not words as a shell knows them ({error})") from error


# --- where there is room ---------------------------------------------------------------------------------------------


def room(kinds: Iterable[NodeKind], partition: str | None, wish: Wish) -> int | None:
    """Return for how many processes a partition's nodes have cores, and GPUs if needed; None: not known. Of
    several partitions, of which the job gets one, it is the largest; without a name, the default one."""
    kinds = tuple(kinds)
    asked = {kind.partition for kind in kinds if kind.is_default} if partition is None else set(partition.split(","))
    return (
        max((_room_of([kind for kind in kinds if kind.partition == name], wish) for name in asked), default=0) or None
    )


def _room_of(kinds: Sequence[NodeKind], wish: Wish) -> int:
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
    """Return whether a kind of node fits; a constraint that is more than a feature's name is left to sbatch."""
    if constraint is None or not re.fullmatch(r"[A-Za-z0-9_.-]+", constraint, re.ASCII):
        return True
    return constraint in kind.features.split(",")


def gpu_text(gpus: str) -> tuple[str, int]:
    """Return (name, count) of --gpuNameCount; the name may be empty."""
    name, _, number = gpus.rpartition(":")
    return name, int(number)


def gpus_of(gpus: str, processes: int) -> str:
    """Return all GPUs of a job whose processes have `gpus` each, as Slurm writes it."""
    name, count = gpu_text(gpus)
    return f"{name}:{count * processes}" if name else str(count * processes)


_GPU_COUNT = re.compile(r"(?<!\S)-g (?=[0-9]|COUNT)")
_GPU_OPTION = re.compile(r"(?<!\S)-g(?!\S)")


def in_own_options(sentence: str) -> str:
    """Return a sentence of llsub's with llmapreduce's option in place of llsub's -g."""
    return _GPU_OPTION.sub("--gpuNameCount", _GPU_COUNT.sub("--gpuNameCount=", sentence))


# --- the scripts -----------------------------------------------------------------------------------------------------

MAP_SCRIPT = "map.sh"
REDUCE_SCRIPT = "reduce.sh"
MAPPED = "mapped"
"""In the run's folder: every start of the mapper ended well."""
FINISHED = "finished"
"""In a folder that is kept: nothing is left to do."""
LOGS = "logs"
PAIRS = "input_"
MAP_LOG = "llmapreduce-launch.log-"
REDUCE_LOG = "llmapreduce-reduce.log-"
_OURS = (
    "run.json",
    "tasks",
    "launch.sh",
    "submit.json",
    "environment",
    "jobs",
    "queue",
    "summary.json",
    MAP_SCRIPT,
    REDUCE_SCRIPT,
)
_OURS_LAST = (LOGS, MAPPED, FINISHED)


class Folder(Struct, frozen=True):
    """The temporary folder of a run."""

    path: str
    is_ours: bool
    """False: it was there before (--tempdir), and stays."""
    keep: bool
    pairs: int = 0
    """Files input_1 to input_N in it."""

    def ours(self) -> tuple[str, ...]:
        """Return the names of all files that a run puts there."""
        return (*_OURS, *(f"{PAIRS}{number}" for number in range(1, self.pairs + 1)), *_OURS_LAST)


def taken(names: Collection[str], pairs: bool) -> tuple[str, ...]:
    """Return the files of a folder that stand where this run is to write."""
    ours = set(_OURS) | set(_OURS_LAST)
    return tuple(sorted(name for name in names if name in ours or (pairs and re.fullmatch(r"input_[0-9]+", name))))


def end_lines(folder: Folder, log: str) -> tuple[str, ...]:
    """Return the last lines of the last job's script: remove the folder, or mark it as finished.

    The job's own log (`log` and its number) is in that folder, and slurmstepd has it open until the script has ended.
    On NFS a file that is removed while it is open stays as .nfsXXXX until then, and its folder with it: the log is
    therefore removed beside the folder.
    """
    path = shlex.quote(folder.path)
    if folder.keep:
        return (f": > {path}/{FINISHED}",)
    lines = [
        "# All is well. What was made for this run goes; --keep=true keeps it.",
        "exec > /dev/null 2>&1",
        f'beside={path}.log-"$SLURM_JOB_ID"',
        f'mv -f -- {path}/{LOGS}/{log}"$SLURM_JOB_ID" "$beside" && rm -f -- "$beside"',
        f"rm -rf -- {' '.join(f'{path}/{name}' for name in (*_OURS, *_OURS_LAST))}",
    ]
    if folder.pairs:  # through a pipe: they may be more than a command line holds
        lines.append(f"printf '%s\\0' {path}/{PAIRS}{{1..{folder.pairs}}} | xargs -0 rm -f --")
    return (*lines, f"rmdir -- {path}", "true") if folder.is_ours else tuple(lines)


def map_script(folder: Folder, is_last: bool, failures: Sequence[str]) -> str:
    """Return map.sh: launch.sh, and what follows if every start of the mapper succeeded; `failures` is the command that
    otherwise names inputs and logs of those that failed."""
    path = shlex.quote(folder.path)
    lines = [
        "#!/bin/bash",
        "# llmapreduce: the map. launch.sh runs it; llsub --resume with this folder runs what is unfinished.",
        "trap : TERM INT USR1  # launch.sh is told as well, and says what is unfinished",
        f"/bin/bash {path}/launch.sh || {{ code=$?; {shlex.join(failures)}; exit $code; }}",
        f": > {path}/{MAPPED}",
        *(end_lines(folder, MAP_LOG) if is_last else ()),
    ]
    return "".join(f"{line}\n" for line in lines)


def reduce_script(command: Sequence[str], folder: Folder) -> str:
    """Return reduce.sh: the reducer, and the removal of the folder if all succeeded."""
    lines = [
        "#!/bin/bash",
        "# llmapreduce: the reducer.",
        f'{shlex.join(command)} || {{ code=$?; echo "the reducer ended with $code"; exit $code; }}',
        f"[ -e {shlex.quote(folder.path)}/{MAPPED} ] || exit 0  # the map failed: what it left stays to be looked at",
        *end_lines(folder, REDUCE_LOG),
    ]
    return "".join(f"{line}\n" for line in lines)
