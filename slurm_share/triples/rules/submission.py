"""Build a run's submission: parse the user's arguments, choose sbatch's options, write the script."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from msgspec import Struct

from ...core import names
from ...core.errors import UsageError, shown
from ...core.gpu_option import gres, parse_gpus
from ...core.text import counted as counted
from ...share import option as share_option
from ...slurm.rules import sbatch_letters
from ..records import Run, Triple
from ..run_folder import LAUNCH_LOG, LAUNCH_SCRIPT
from . import together
from . import triple as rule_triple
from .fitting import Grant

LINE_MAX_BYTES = 8192
"""Most bytes of a task's line: far below the kernel's limit of one argument (128 KiB)."""
TASKS_MAX = 10_000_000
"""Most tasks of a run: what its launchers can hold."""
LOGS_PER_TASK_MAX = 1000
"""Tasks up to which each has a log of its own; a folder with more files is slow on a parallel file system."""

# ---- What a user wrote ----


def split_arguments(argv: Sequence[str]) -> tuple[str | None, Triple | None]:
    """Return script and triple from llsub's positional arguments.

    Raises UsageError for others, and for a triple in another form.
    """
    script = argv[0] if argv and not argv[0].startswith("[") else None
    rest = list(argv[1:] if script is not None else argv)
    triple = rule_triple.parse(rest.pop(0), may_be_auto=True) if rest and rest[0].startswith("[") else None
    if rest:
        raise UsageError(
            f"{shown(rest[0]) or repr(rest[0])} is neither an option nor a triple; arguments of the script come after "
            f"--, and a triple has no blanks: {rule_triple.FORM}"
        )
    return script, triple


def parse_tasks(data: bytes, source: str) -> list[str]:
    """Return the tasks in a file, a line each. Raises UsageError, with the line's number, for lines that are none."""
    lines = split_tasks(data, source, LINE_MAX_BYTES)
    return [line.decode("utf-8", "surrogateescape") for line in lines]


def split_tasks(data: bytes, source: str, most_bytes: int) -> list[bytes]:
    """Return the lines of a file of tasks. Raises UsageError, with the line's number, for lines that are no task."""
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    if not lines:
        raise UsageError(f"{source}: there is no task in it; write one a line")
    if len(lines) > TASKS_MAX:
        raise UsageError(f"{source}: it has {len(lines)} lines, and a run at most {TASKS_MAX} tasks; make several runs")
    for number, line in enumerate(lines, 1):
        why = None
        if not line.strip():
            why = "is empty; remove it: every line is a task, and the first line is task 0"
        elif len(line) > most_bytes:
            why = f"has {len(line)} bytes, and a task has at most {LINE_MAX_BYTES}; put it into a script of its own"
        elif b"\0" in line:
            why = "has a NUL byte; this is not a text file"
        if why is not None:
            raise UsageError(f"{source}: line {number} {why}")
    return [line.removesuffix(b"\r") for line in lines]


class Directive(Struct, frozen=True):
    """One option in a script's #SBATCH lines."""

    name: str
    """Long, without dashes."""
    value: str | None

    def __str__(self) -> str:
        return f"--{self.name}" if self.value is None else f"--{self.name}={shlex.quote(self.value)}"


LEFT_OUT = frozenset(
    {"nodes", "ntasks", "ntasks-per-node", "ntasks-per-core", "ntasks-per-socket", "ntasks-per-gpu", "cpus-per-task",
     "array", "output", "error", "input", "chdir", "exclusive", "oversubscribe", "wait", "test-only", "wrap",
     "parsable", "distribution", "gpus-per-task", "quiet"}
)  # fmt: skip
"""Options that are left out of a script's #SBATCH lines: what a triple sets itself, and where logs go."""
_LOGS = "logs are in the run's folder, and llsub -o says where the launchers' own goes"
_SUBMITS = "llsub submits"
_LEFT_OUT_WHY = {
    "output": _LOGS, "error": _LOGS, "input": "tasks have no input", "chdir": "tasks begin where llsub was called",
    "wait": _SUBMITS, "test-only": _SUBMITS, "parsable": _SUBMITS, "quiet": _SUBMITS, "wrap": _SUBMITS,
}  # fmt: skip
"""Where it is something else than the triple."""
GPU_OPTIONS = frozenset({"gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"})


def parse_directives(lines: Sequence[str]) -> tuple[Directive, ...]:
    """Return the options in #SBATCH lines. Raises UsageError for a line that is not made of options."""
    found: list[Directive] = []
    for line in lines:
        where = f"the script's line #SBATCH {shown(line)}"
        try:
            argv = shlex.split(line, comments=True)
        except ValueError as error:
            raise UsageError(f"{where}: {error}") from error
        if argv[:1] == ["hetjob"]:
            raise UsageError("the script's #SBATCH hetjob: a triple is one kind of nodes; leave the triple away")
        found += parse_options(argv, where)
    return tuple(found)


def parse_options_of(line: str, where: str, whom: str) -> tuple[Directive, ...]:
    """Return the long options of `whom` in a line. Raises UsageError, which begins with `where` it stands."""
    found = []
    try:
        rest = shlex.split(line, comments=True)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error
    while rest:
        argument = rest.pop(0)
        if len(argument) < 3 or not argument.startswith("--"):
            raise UsageError(f"{where}: {shown(argument) or repr(argument)} is no option of {whom}")
        name, equals, value = argument[2:].partition("=")
        has_value = bool(equals)
        if not has_value and rest and not rest[0].startswith("-"):
            value, has_value = rest.pop(0), True
        found.append(Directive(name, value if has_value else None))
    return tuple(found)


def parse_options(argv: Sequence[str], where: str) -> tuple[Directive, ...]:
    """Return the options of sbatch in these arguments.

    Raises UsageError, which begins with `where` they stand, for others.
    """
    found: list[Directive] = []
    rest = list(argv)
    while rest:
        argument = rest.pop(0)
        letters = argument[1:] if argument[:1] == "-" and argument[1:2] != "-" else ""
        if letters and letters[0] in sbatch_letters.WITHOUT_VALUE:
            found.append(Directive(sbatch_letters.WITHOUT_VALUE[letters[0]], None))
            if letters[1:] and letters[0] not in sbatch_letters.MAYBE_VALUE:
                rest.insert(0, f"-{letters[1:]}")  # -HQ
            continue
        if len(argument) > 2 and argument.startswith("--"):
            name, equals, value = argument[2:].partition("=")
            has_value = bool(equals)
        elif letters and letters[0] in sbatch_letters.WITH_VALUE:
            name, value, has_value = sbatch_letters.WITH_VALUE[letters[0]], letters[1:], len(letters) > 1
        else:
            raise UsageError(f"{where}: {shown(argument) or repr(argument)} is no option of sbatch")
        if not has_value and rest and not rest[0].startswith("-"):
            value, has_value = rest.pop(0), True
        found.append(Directive(name, value if has_value else None))
    return tuple(found)


_TRIPLES = "the triple says how many nodes and tasks there are"
_OURS = "llsub has to get the job's number from sbatch; llsub --dry-run and llsub --wait are for looking on"
REFUSED = {
    "array": "every element of it would run all tasks; write more processes or --ntasks",
    "nodes": _TRIPLES, "ntasks": _TRIPLES, "ntasks-per-node": _TRIPLES, "ntasks-per-core": _TRIPLES,
    "ntasks-per-socket": _TRIPLES, "ntasks-per-gpu": _TRIPLES,
    "wrap": "the script is llsub's first word", "test-only": _OURS, "help": _OURS, "usage": _OURS, "version": _OURS,
    "parsable": _OURS, "wait": _OURS,
}  # fmt: skip
"""Options of sbatch that go against a triple when they stand in --options, and why."""


def check_options(options: Sequence[str]) -> None:
    """Raise UsageError for words of --options that are no options, or go against a triple. sbatch takes long options
    shortened, too: --arr."""
    for directive in parse_options(options, "--options"):
        for name, why in REFUSED.items():
            if directive.name and name.startswith(directive.name):
                raise UsageError(f"--options: --{name} does not go with a triple: {why}; leave it away")


# ---- The words for sbatch ----


class Wishes(Struct, frozen=True, kw_only=True):
    """Options of llsub that become options of sbatch."""

    partition: str | None = None
    time: str | None = None
    job_name: str | None = None
    output: str | None = None
    slots: int | None = None
    gpus: str | None = None
    share: str | None = None
    constraint: str | None = None
    qos: str | None = None
    reservation: str | None = None
    account: str | None = None
    options: tuple[str, ...] = ()
    """Raw ones."""


_OWN = {
    "partition": "-q", "time": "-T", "job_name": "-J", "output": "-o", "slots": "-s", "gpus": "-g",
    "share": "--share-gpu", "constraint": "--constraint", "qos": "--qos", "reservation": "--reservation",
    "account": "--account", "options": "--options",
}  # fmt: skip
_SBATCH = {
    "partition": "partition", "time": "time", "job_name": "job-name", "constraint": "constraint", "qos": "qos",
    "reservation": "reservation", "account": "account",
}  # fmt: skip


def said(directives: Sequence[Directive], wishes: Wishes) -> dict[str, str | None]:
    """Return the values of sbatch's options by long name: a script's lines override llsub's own, and --options both."""
    own = {name: getattr(wishes, field) for field, name in _SBATCH.items() if getattr(wishes, field) is not None}
    lines = {directive.name: directive.value for directive in directives}
    return own | lines | {one.name: one.value for one in parse_options(wishes.options, "--options")}


def plain_options(wishes: Wishes) -> list[str]:
    """Return the options that mean the same to sbatch, salloc and srun, for a job without a triple."""
    argv = [f"--{_SBATCH[field]}={getattr(wishes, field)}" for field in _SBATCH if getattr(wishes, field) is not None]
    if wishes.slots is not None:
        argv.append(f"--cpus-per-task={wishes.slots}")
    if wishes.gpus is not None:
        argv.append(f"--gres={gres(parse_gpus(wishes.gpus))}")
    if wishes.share is not None:
        argv.append(f"--{names.OPTION}={wishes.share}")
    return [*argv, *wishes.options]


def ordinary(script: str, name: str, directives: Sequence[str], wishes: Wishes) -> tuple[list[str], tuple[str, ...]]:
    """Return the command of a job without a triple, and notes.

    As at LLSC: a script with #SBATCH lines says it all itself.
    """
    if directives:
        ignored = [option for field, option in _OWN.items() if getattr(wishes, field)]
        note = f"{name} has #SBATCH lines, which count: {', '.join(ignored)} left aside"
        return ["sbatch", "--parsable", script], (note,) if ignored else ()
    output = _no_pattern(f"{name}.log-") + "%j" if wishes.output is None else wishes.output
    return ["sbatch", "--parsable", f"--output={output}", *plain_options(wishes), script], ()


_WHOLE_NODE_SHELL = r"""
gpus=$(scontrol --details show job "$SLURM_JOB_ID" | sed -n 's/^ *JOB_GRES=//p' | tr , '\n' |
    awk -F: '/^gpu:/ { count += $NF } END { if (count) print count }')
exec srun --pty --cpu-bind=none --mem=0 ${gpus:+--gres=gpu:$gpus} "$@"
"""
"""A step has the GPUs that it asks for, and no other; how many the node has is known when the job has it."""


def interactive(wishes: Wishes, shell: str, *, whole: bool) -> list[str]:
    """Return the command for a shell on one core of a node, or on the whole of it."""
    login = [shell, "-l"]
    options = ["--nodes=1", "--ntasks=1", *plain_options(wishes)]
    if whole:
        # In two steps: srun alone would give its one task one core of the node that --exclusive got.
        return ["salloc", *options, "--exclusive", "--mem=0", "/bin/sh", "-c", _WHOLE_NODE_SHELL, "sh", *login]
    return ["srun", *options, "--pty", *login]


def _no_pattern(path: str) -> str:
    return path.replace("%", "%%")


def triple_argv(
    run: Run, folder: str, wishes: Wishes, directives: Sequence[Directive], asked: Grant, *, plugin: bool
) -> list[str]:
    """Return the command that submits a triple's job, one task per node.

    What the script's #SBATCH lines say is left to them.
    """
    assert run.triple is not None
    said = {directive.name for directive in directives}
    nodes = run.triple.nodes
    argv = ["sbatch", "--parsable", f"--nodes={nodes}"]
    if asked.tasks is None:
        argv += [f"--ntasks={nodes}", "--ntasks-per-node=1", "--exclusive"]
        if not said & {"mem", "mem-per-cpu", "mem-per-gpu"}:
            argv.append("--mem=0")
    else:
        argv.append(f"--ntasks-per-node={asked.tasks}")
    if asked.gpus and not said & GPU_OPTIONS:
        argv.append(f"--gres={gres(asked.gpus)}")
    if run.share is not None and plugin and names.OPTION not in said:
        argv.append(f"--{names.OPTION}={share_option.render(run.share)}")
    values = {"job-name": wishes.job_name or run.name, "comment": f"llsub {run.triple}"} | {
        name: getattr(wishes, field) for field, name in _SBATCH.items() if getattr(wishes, field) is not None
    }
    argv += [f"--{name}={value}" for name, value in values.items() if name not in said]
    argv.append(f"--output={wishes.output or _no_pattern(folder) + '/' + LAUNCH_LOG + '%j'}")
    return [*argv, *wishes.options, f"{folder}/{LAUNCH_SCRIPT}"]


def again(argv: Sequence[str], wishes: Wishes) -> list[str]:
    """Return the scheduler command of a run's next submission, with another partition or time and further options where
    they are given."""
    fresh = [f"--{name}={value}" for name, value in (("partition", wishes.partition), ("time", wishes.time)) if value]
    names_of = tuple(argument.partition("=")[0] + "=" for argument in fresh)
    kept = [argument for argument in argv if not (names_of and argument.startswith(names_of))]
    return [*kept[:-1], *fresh, *wishes.options, *kept[-1:]]


FROM_NOW = frozenset({"DISPLAY", "XDG_RUNTIME_DIR", "KRB5CCNAME", "TMPDIR", "PWD", "OLDPWD"})
FROM_NOW_PREFIXES = ("SLURM_", "SLURMD_", "SSH_")
"""Variables of one login, one job or one folder: of no use when that is over."""


def recorded_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what is recorded of an environment, for a later submission of the same run."""
    return {name: value for name, value in environ.items() if not _is_of_now(name)}


def resumed_environment(recorded: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a run that is submitted again: as recorded, but for what is of the present login."""
    return recorded_environment(recorded) | {name: value for name, value in now.items() if _is_of_now(name)}


def _is_of_now(name: str) -> bool:
    return name in FROM_NOW or name.startswith(FROM_NOW_PREFIXES)


def output_file(argv: Sequence[str], job: int, cwd: str) -> str | None:
    """Return the file with the output of a scheduler command's job, where only the job's number had to be filled in;
    None: sbatch chooses, or other patterns are in its name."""
    said = [one.value for one in parse_options(argv[1:-1], "the command") if one.name == "output"]
    if not said or said[-1] is None:
        return None
    filled = said[-1].replace("%%", "\0").replace("%j", str(job)).replace("%A", str(job))
    if "%" in filled or "\\" in filled:  # a backslash turns the patterns off
        return None
    name = filled.replace("\0", "%")
    return name if name.startswith("/") else f"{cwd}/{name}"


def directive_notes(name: str, directives: Sequence[Directive], wishes: Wishes) -> tuple[str, ...]:
    """Return notes on options of llsub and #SBATCH lines that have no effect beside a triple."""
    said = {directive.name for directive in directives}
    beaten = [
        _OWN[field] for field, argument in _SBATCH.items() if getattr(wishes, field) is not None and argument in said
    ]
    beaten += ["-g"] * bool(wishes.gpus and said & GPU_OPTIONS)
    beaten += [f"--{names.OPTION}"] * bool(wishes.share and names.OPTION in said)
    notes = []
    if beaten:
        notes.append(f"{name} has #SBATCH lines, which count: {', '.join(beaten)} left aside")
    groups: dict[str, list[str]] = {}
    for option in sorted(said & LEFT_OUT):
        groups.setdefault(_LEFT_OUT_WHY.get(option, "the triple says it"), []).append(f"--{option}")
    notes += [f"of the #SBATCH lines of {name} these are left out, {why}: {', '.join(w)}" for why, w in groups.items()]
    if wishes.slots is not None:
        notes.append("-s has no effect beside a triple, whose third number says it")
    return tuple(notes)


# ---- The script ----


def launch_script(
    run: Run,
    folder: str,
    python: str,
    scheduler_command: Sequence[str],
    user_lines: Sequence[str] = (),
    gpus: str = "",
    gpus_of_job: str | None = None,
) -> str:
    """Return the script that the scheduler runs on the first node of a run, with comments for its user.

    `user_lines` are options of the user's own #SBATCH lines. `gpus` is what was asked of each node (`gpu:volta:2`);
    empty: whatever the job has on the node that has least. `gpus_of_job`: all that it has on all nodes together
    (`volta:5`), of a job whose processes each asked for their own: its nodes may have unlike numbers of them.
    """
    what = shlex.join(run.command) if run.command else "the commands in the file `tasks`"
    further = "" if run.task_kind == "rank" and run.tasks == run.processes else f", {counted(run.tasks, 'task')}"
    further += ", which are ranks that send messages to each other" * run.together
    triple = f"triple {run.triple}" if run.triple is not None else "processes where Slurm put the job's tasks"
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {line}" for line in user_lines),
        f"# {run.kind}: {_one_line(what)}",
        f"# {triple}: {counted(run.processes, 'process')}{further}.",
        "#",
        "# It was submitted by",
        f"#     {_one_line(shlex.join(scheduler_command))}",
        "# One job with one launcher on each node. The launcher starts the processes there, gives each its cores, its",
        "# GPU, its number of threads and its log, and records how each task ended.",
        together.COMMENT
        if run.together
        else f"# What is unfinished when the job is over is run by:  llsub --resume {_one_line(shlex.quote(folder))}",
        "",
        f"folder={shlex.quote(folder)}",
        f"python={shlex.quote(python)}",
    ]
    head = "\n".join(lines) + "\n" + _SIGNALS_FIRST
    if gpus_of_job is not None:
        # Slurm 24.11 and 26.05 refuse such a step beside --overlap: "Insufficient GRES available in allocation".
        return head + _BODY.replace(" --overlap \\\n", " \\\n").replace(
            '--gres="$gres"', f"--gpus={shlex.quote(gpus_of_job)}"
        )
    if gpus:
        return head + _STEP_GPUS_ASKED + f"gres={shlex.quote(gpus)}\n" + _BODY
    return head + _STEP_GPUS_THERE + _BODY


_SIGNALS_FIRST = """
# SIGUSR1 and SIGUSR2 are for the tasks (--signal=USR1@60). Before there is one, and after the last one, they are
# ignored, here and in what is started from here: else they would end a shell, srun or a launcher that has just begun.
trap '' USR1 USR2
"""

_STEP_GPUS_THERE = """
# A step has the GPUs that are asked for, and no other. These are all that the job has on each node: on the node with
# the fewest, where they differ.
gpus=${SLURM_GPUS_ON_NODE:-0}
if [ "${SLURM_NNODES:-1}" -gt 1 ]; then
    gpus=$(scontrol --details show job "$SLURM_JOB_ID" | awk '
        /^ *Nodes=.* CPU_IDs=/ {
            here = 0
            while (match($0, /gpu:([^:,()]+:)?[0-9]+/)) {
                count = split(substr($0, RSTART, RLENGTH), word, ":")
                here += word[count]
                $0 = substr($0, RSTART + RLENGTH)
            }
            if (least == "" || here < least) least = here
            if (here > most) most = here
        }
        END {
            if (least < most) print "The nodes have " least " to " most " GPUs: " least " used on each." > "/dev/stderr"
            print least + 0
        }')
fi
gres=none
[ "${gpus:-0}" -gt 0 ] && gres=gpu:$gpus
"""

_STEP_GPUS_ASKED = """
# A step has the GPUs that are asked for, and no other: these, on each node.
"""

_BODY = """
# What the job was asked with is no option for the launchers' step. SLURM_SHARE_SLOT=none: it takes no slot of a share;
# the processes do.
unset "${!SRUN_@}" SLURM_CPUS_PER_TASK SLURM_TRES_PER_TASK SLURM_NTASKS_PER_NODE SLURM_NTASKS_PER_CORE \\
    SLURM_NTASKS_PER_SOCKET SLURM_NTASKS_PER_GPU SLURM_GRES SLURM_TRES_PER_NODE SLURM_GPUS SLURM_GPUS_PER_NODE \\
    SLURM_GPUS_PER_TASK SLURM_GPUS_PER_SOCKET SLURM_GPU_BIND SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE \\
    SLURM_CPU_BIND SLURM_DISTRIBUTION SLURM_HINT SLURM_EXACT SLURM_EXCLUSIVE SLURM_THREADS_PER_CORE SLURM_TRES_BIND
export SLURM_SHARE_SLOT=none LLSUB_JOB_TASKS_PER_NODE=$SLURM_TASKS_PER_NODE

# Slurm sends SIGTERM when the time is over, and SIGKILL later (KillWait). With a trap, bash outlives the first: the
# launchers end their processes, and below it is still said what is unfinished.
trap 'echo "This job was told to end."' TERM INT

# --cpu-bind=none, --mem=0, and no -c: each launcher has all of the job's CPUs and memory on its node, for its
# processes. --overlap: further steps can run beside it. --kill-on-bad-exit=0, --wait=0: a node that is through, well or
# not, ends no other one.
srun --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --cpu-bind=none --mem=0 --overlap \\
    --gres="$gres" --kill-on-bad-exit=0 --wait=0 /bin/sh -c '
        trap "" USR1 USR2
        if ! [ -x "$1" ]; then
            echo "$(hostname): there is no $1 here; slurm-share has to be installed in the same place on every node," \\
                "or in a folder that all of them share" >&2
            exit 127
        fi
        exec "$@"' sh "$python" -I -m slurm_share.cli.main launch "$folder" &
step=$!
# From now on those that come here (--signal=B:USR1@60, scancel --batch --signal=USR1) are passed on.
trap 'kill -s USR1 "$step" 2>/dev/null' USR1
trap 'kill -s USR2 "$step" 2>/dev/null' USR2
# Each signal that is trapped ends a `wait` early; the last one, after srun's end, gives its exit code.
while kill -0 "$step" 2>/dev/null; do
    wait "$step"
done
wait "$step"
launched=$?
trap '' USR1 USR2

# What became of every task: on these lines, and in summary.json. It ends with 0 only if all are done.
if ! [ -x "$python" ]; then
    exit 127
fi
"$python" -I -m slurm_share.cli.main launch --summary "$folder"
ended=$?
[ "$ended" -eq 0 ] && [ "$launched" -ne 0 ] && echo "All tasks are done; srun ended with $launched."
exit "$ended"
"""


def local_script(folder: str, python: str, *, is_together: bool = False) -> str:
    """Return the script of a run on this machine. `is_together`: as in records.Run."""
    again = "all of it anew" if is_together else "what is unfinished"
    return f"""#!/bin/bash
# A run on one machine, without a scheduler. Started again, it runs {again}.
trap '' USR1 USR2  # they are for the tasks; the launcher takes them as soon as it has begun
exec {shlex.quote(python)} -I -m slurm_share.cli.main launch {shlex.quote(folder)}
"""


def _one_line(text: str) -> str:
    return text.replace("\n", "\\n").replace("\r", "\\r")
