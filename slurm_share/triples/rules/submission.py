"""Build the submission of a run: parse the user's arguments, choose the options of sbatch, render the script."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from msgspec import Struct

from ...core import given_variables, names
from ...core.errors import UsageError, shown
from ...core.gpu_option import gres, parse_gpus
from ...core.text import counted
from ...share import option as share_option
from ...slurm.rules import sbatch_letters
from ..records import Run, Triple
from ..run_folder import LAUNCH_LOG, LAUNCH_SCRIPT
from . import moved, together
from . import triple as rule_triple
from .fitting import NodeRequest

LOGS_PER_TASK_MAX = 1000
"""Most tasks of a run with a log for each task: folders with more files are slow on parallel file systems."""

# ---- Arguments, #SBATCH lines ----


def split_arguments(argv: Sequence[str]) -> tuple[str | None, Triple | None]:
    """Return script and triple from llsub's positional arguments. Raises UsageError for anything else."""
    script = argv[0] if argv and not argv[0].startswith("[") else None
    rest = list(argv[1:] if script is not None else argv)
    triple = rule_triple.parse(rest.pop(0), may_be_auto=True) if rest and rest[0].startswith("[") else None
    if rest and script is None and triple is not None:
        raise UsageError(
            f"{shown(rest[0]) or repr(rest[0])} comes after the triple; write the script before it: llsub SCRIPT "
            f"{shown(argv[0])}"
        )
    if rest:
        raise UsageError(
            f"{shown(rest[0]) or repr(rest[0])} is neither an option nor a triple; write arguments of the script after "
            f"--, and a triple without blanks: {rule_triple.FORM}"
        )
    return script, triple


class Directive(Struct, frozen=True):
    """One option in a script's #SBATCH lines."""

    name: str
    """Long name, without dashes."""
    value: str | None

    def __str__(self) -> str:
        return f"--{self.name}" if self.value is None else f"--{self.name}={shlex.quote(self.value)}"


LEFT_OUT = frozenset(
    {"nodes", "ntasks", "ntasks-per-node", "ntasks-per-core", "ntasks-per-socket", "ntasks-per-gpu", "cpus-per-task",
     "array", "output", "error", "input", "chdir", "exclusive", "oversubscribe", "wait", "test-only", "wrap",
     "parsable", "distribution", "gpus-per-task", "quiet"}
)  # fmt: skip
"""Options in a script's #SBATCH lines that are ignored, because the triple or llsub sets them."""
_LOGS = "logs are in the run's folder, and llsub -o sets the launchers' log"
_SUBMITS = "llsub submits the job"
_LEFT_OUT_WHY = {
    "output": _LOGS, "error": _LOGS, "input": "tasks have no input", "chdir": "tasks start where llsub was called",
    "wait": _SUBMITS, "test-only": _SUBMITS, "parsable": _SUBMITS, "quiet": _SUBMITS, "wrap": _SUBMITS,
}  # fmt: skip
"""Reasons other than the triple."""
GPU_OPTIONS = frozenset({"gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"})


def parse_directives(lines: Sequence[str]) -> tuple[Directive, ...]:
    """Return the options in #SBATCH lines. Raises UsageError for a line with anything else."""
    found: list[Directive] = []
    for line in lines:
        where = f"the script's line #SBATCH {shown(line)}"
        argv = split_words(line, where)
        if argv[:1] == ["hetjob"]:
            raise UsageError("the script's #SBATCH hetjob: a triple cannot be a heterogeneous job; remove the triple")
        found += parse_options(argv, where)
    return tuple(found)


def split_words(line: str, where: str) -> list[str]:
    """Split a line as a shell does, without comments. Raises UsageError with the prefix `where`."""
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error


def parse_options(argv: Sequence[str], where: str, whom: str = "sbatch") -> tuple[Directive, ...]:
    """Return the options of `whom` in a list of arguments, for sbatch also short ones.

    Raises UsageError with the prefix `where` for anything else.
    """
    found: list[Directive] = []
    rest = list(argv)
    while rest:
        argument = rest.pop(0)
        is_short = whom == "sbatch" and argument[:1] == "-" and argument[1:2] != "-"
        letters = argument[1:] if is_short else ""
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
            raise UsageError(f"{where}: {shown(argument) or repr(argument)} is not an option of {whom}")
        if not has_value and rest and not rest[0].startswith("-"):
            value, has_value = rest.pop(0), True
        found.append(Directive(name, value if has_value else None))
    return tuple(found)


_TRIPLES = "the triple sets the numbers of nodes and tasks"
_HELP = "this shows a text of sbatch and submits nothing; run sbatch itself for it"
REFUSED = {
    "array": "every array element would run all tasks; write more processes or --ntasks",
    "nodes": _TRIPLES, "ntasks": _TRIPLES, "ntasks-per-node": _TRIPLES, "ntasks-per-core": _TRIPLES,
    "ntasks-per-socket": _TRIPLES, "ntasks-per-gpu": _TRIPLES,
    "wrap": "the script is llsub's first argument", "help": _HELP, "usage": _HELP, "version": _HELP,
    "test-only": "llsub --dry-run asks sbatch whether it takes the job",
    "parsable": "llsub has an option --parsable of its own", "wait": "llsub has an option --wait of its own",
}  # fmt: skip
"""Options of sbatch in --options that conflict with a triple, and why."""


def check_options(options: Sequence[str]) -> None:
    """Raise UsageError if --options contains anything but options, or an option that conflicts with a triple.

    sbatch accepts shortened long options (--arr), so prefixes are checked.
    """
    for directive in parse_options(options, "--options"):
        for name, why in REFUSED.items():
            if directive.name and name.startswith(directive.name):
                raise UsageError(f"--options: --{name} conflicts with a triple: {why}; remove it from --options")


# ---- Options of sbatch ----


class SbatchOptions(Struct, frozen=True, kw_only=True):
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
    signal: str | None = None
    """The value of sbatch's --signal, from --checkpoint-signal."""
    options: tuple[str, ...] = ()
    """--options: raw options of sbatch."""


_OWN = {
    "partition": "-q", "time": "-T", "job_name": "-J", "output": "-o", "slots": "-s", "gpus": "-g",
    "share": "--share-gpu", "constraint": "--constraint", "qos": "--qos", "reservation": "--reservation",
    "account": "--account", "signal": "--checkpoint-signal", "options": "--options",
}  # fmt: skip
_SBATCH = {
    "partition": "partition", "time": "time", "job_name": "job-name", "constraint": "constraint", "qos": "qos",
    "reservation": "reservation", "account": "account", "signal": "signal",
}  # fmt: skip


def said(directives: Sequence[Directive], wishes: SbatchOptions) -> dict[str, str | None]:
    """Return sbatch's options by long name. #SBATCH lines override options of llsub, and --options overrides both."""
    own = {name: getattr(wishes, field) for field, name in _SBATCH.items() if getattr(wishes, field) is not None}
    lines = {directive.name: directive.value for directive in directives}
    return own | lines | {one.name: one.value for one in parse_options(wishes.options, "--options")}


def plain_options(wishes: SbatchOptions) -> list[str]:
    """Return the options of a job without a triple, which sbatch, salloc and srun share."""
    argv = [f"--{_SBATCH[field]}={getattr(wishes, field)}" for field in _SBATCH if getattr(wishes, field) is not None]
    if wishes.slots is not None:
        argv.append(f"--cpus-per-task={wishes.slots}")
    if wishes.gpus is not None:
        argv.append(f"--gres={gres(parse_gpus(wishes.gpus))}")
    if wishes.share is not None:
        argv.append(f"--{names.OPTION}={wishes.share}")
    return [*argv, *wishes.options]


def effective(directives: Sequence[str], wishes: SbatchOptions) -> SbatchOptions:
    """Return the options of a job without a triple: a script's #SBATCH lines replace llsub's options, as at LLSC."""
    if not directives:
        return wishes
    try:
        return SbatchOptions(options=tuple(word for line in directives for word in split_words(line, "#SBATCH")))
    except UsageError:
        return SbatchOptions()  # sbatch names the mistake


def ordinary(
    script: str, name: str, directives: Sequence[str], wishes: SbatchOptions
) -> tuple[list[str], tuple[str, ...]]:
    """Return the command of a job without a triple, and notes. As at LLSC, #SBATCH lines replace llsub's options."""
    if directives:
        ignored = [option for field, option in _OWN.items() if getattr(wishes, field)]
        note = f"{name} has #SBATCH lines, which take precedence: {', '.join(ignored)} ignored"
        return ["sbatch", "--parsable", script], (note,) if ignored else ()
    output = moved.no_pattern(f"{name}.log-") + "%j" if wishes.output is None else wishes.output
    return ["sbatch", "--parsable", f"--output={output}", *plain_options(wishes), script], ()


_WHOLE_NODE_SHELL = r"""
gpus=$(scontrol --details show job "$SLURM_JOB_ID" | sed -n 's/^ *JOB_GRES=//p' | tr , '\n' |
    awk -F: '/^gpu:/ { count += $NF } END { if (count) print count }')
exec srun --pty --cpu-bind=none --mem=0 ${gpus:+--gres=gpu:$gpus} "$@"
"""
"""Starts a step with all GPUs of the job. A step only gets GPUs that it requests, and their number is known only
now."""


def interactive(wishes: SbatchOptions, shell: str, *, whole: bool) -> list[str]:
    """Return the command for a shell on one core of a node, or on a whole node."""
    login = [shell, "-l"]
    options = ["--nodes=1", "--ntasks=1", *plain_options(wishes)]
    if whole:
        # salloc, then srun: srun alone would give its task one core of the exclusive node.
        return ["salloc", *options, "--exclusive", "--mem=0", "/bin/sh", "-c", _WHOLE_NODE_SHELL, "sh", *login]
    return ["srun", *options, "--pty", *login]


def triple_argv(
    run: Run, folder: str, wishes: SbatchOptions, directives: Sequence[Directive], asked: NodeRequest, *, plugin: bool
) -> list[str]:
    """Return the command that submits a triple's job, one task per node, without options that #SBATCH lines have."""
    assert run.triple is not None
    said = {directive.name for directive in (*directives, *parse_options(wishes.options, "--options"))}
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
    argv.append(f"--output={wishes.output or moved.no_pattern(folder) + '/' + LAUNCH_LOG + '%j'}")
    return [*argv, *wishes.options, f"{folder}/{LAUNCH_SCRIPT}"]


def again(argv: Sequence[str], wishes: SbatchOptions, cwd: str) -> list[str]:
    """Return the scheduler command for another submission, with changed partition or time and further options.

    `cwd`: the folder of the first submission. A relative output file is below it, wherever this shell is.
    """
    fresh = [f"--{name}={value}" for name, value in (("partition", wishes.partition), ("time", wishes.time)) if value]
    names_of = tuple(argument.partition("=")[0] + "=" for argument in fresh)
    kept = [argument for argument in argv if not (names_of and argument.startswith(names_of))]
    said = {one.name: one.value or "" for one in parse_options([*kept[1:-1], *wishes.options], "the command")}
    if not said.get("output", "/").startswith("/") and "chdir" not in said:
        fresh.append(f"--chdir={cwd}")
    return [*kept[:-1], *fresh, *wishes.options, *kept[-1:]]


def with_dependency(argv: Sequence[str], jobs: Sequence[int]) -> list[str]:
    """Return an sbatch command whose job starts after these jobs have ended, in addition to what it waits for already.

    Raises UsageError if it waits for one of several jobs, which cannot be combined with others.
    """
    if not jobs:
        return list(argv)
    needed, said = "afterany:" + ":".join(map(str, jobs)), dependency_of(argv)
    if said and "?" in said:
        raise UsageError(
            f"--dependency={said} waits for one of several jobs, which Slurm cannot combine with {needed}; remove it"
        )
    return [*argv[:-1], f"--dependency={said},{needed}" if said else f"--dependency={needed}", argv[-1]]


def dependency_of(argv: Sequence[str]) -> str | None:
    """Return the value of --dependency in an sbatch command; None: it has none."""
    said = [one.value for one in parse_options(argv[1:-1], "the command") if one.name == "dependency"]
    return said[-1] if said else None


FROM_NOW = frozenset({"DISPLAY", "XDG_RUNTIME_DIR", "KRB5CCNAME", "TMPDIR", "PWD", "OLDPWD"})
FROM_NOW_PREFIXES = ("SLURM_", "SLURMD_", "SSH_")
"""Variables of one login, job or folder, which are not valid later."""


def recorded_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are recorded for a later submission of the same run: without those of one login, job or
    folder, and without those that slurm-share set for the task from which it is submitted."""
    return {name: value for name, value in given_variables.forget(environ).items() if not _is_current(name)}


def resumed_environment(recorded: Mapping[str, str], now: Mapping[str, str], *, here: bool) -> dict[str, str]:
    """Return the recorded environment with the variables of the present login.

    `here`: the run goes on on this machine, with the GPU and the caps of the task from which it is resumed, if any.
    """
    own = now if here else given_variables.forget(now)
    given = (
        {**given_variables.read(now), names.ENV_GIVEN: now[names.ENV_GIVEN]} if here and names.ENV_GIVEN in now else {}
    )
    return recorded_environment(recorded) | {name: value for name, value in own.items() if _is_current(name)} | given


def _is_current(name: str) -> bool:
    return name in FROM_NOW or name.startswith(FROM_NOW_PREFIXES)


def job_files(options: Sequence[str], output: str | None = None) -> tuple[tuple[str, str], ...]:
    """Return (option, path) of the files that Slurm writes for a job with `output` (-o) or these options of sbatch.

    Without names with patterns, which Slurm fills in, and options that cannot be parsed, which sbatch refuses.
    """
    try:
        found = parse_options(options, "--options")
    except UsageError:
        found = ()
    files = [("-o", output)] if output else []
    files += [(f"--{one.name}", one.value) for one in found if one.value and one.name in ("output", "error")]
    return tuple((option, path) for option, path in files if not set(path) & set("%\\"))


def output_file(argv: Sequence[str], job: int, cwd: str) -> str | None:
    """Return the output file of a job; None: sbatch chooses it, or its name has other patterns than the job id."""
    said = [one.value for one in parse_options(argv[1:-1], "the command") if one.name == "output"]
    if not said or said[-1] is None:
        return None
    filled = said[-1].replace("%%", "\0").replace("%j", str(job)).replace("%A", str(job))
    if "%" in filled or "\\" in filled:  # a backslash disables patterns
        return None
    name = filled.replace("\0", "%")
    return name if name.startswith("/") else f"{cwd}/{name}"


def directive_notes(name: str, directives: Sequence[Directive], wishes: SbatchOptions) -> tuple[str, ...]:
    """Return notes on options of llsub, and #SBATCH lines, that are ignored in a run with a triple."""
    said = {directive.name for directive in directives}
    beaten = [
        _OWN[field] for field, argument in _SBATCH.items() if getattr(wishes, field) is not None and argument in said
    ]
    beaten += ["-g"] * bool(wishes.gpus and said & GPU_OPTIONS)
    beaten += [f"--{names.OPTION}"] * bool(wishes.share and names.OPTION in said)
    notes = []
    if beaten:
        notes.append(f"{name} has #SBATCH lines, which take precedence: {', '.join(beaten)} ignored")
    groups: dict[str, list[str]] = {}
    for option in sorted(said & LEFT_OUT):
        groups.setdefault(_LEFT_OUT_WHY.get(option, "the triple sets it"), []).append(f"--{option}")
    notes += [f"#SBATCH lines of {name} ignored, {why}: {', '.join(found)}" for why, found in groups.items()]
    if wishes.slots is not None:
        notes.append("-s ignored: the third number of the triple sets the threads")
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
    """Return launch.sh, which the scheduler runs on the first node, with comments for the user.

    `user_lines`: options of the user's #SBATCH lines. `gpus`: the GPUs requested on each node (`gpu:volta:2`); empty:
    as many as the job has on the node with the fewest. `gpus_of_job`: all GPUs of the job (`volta:5`), if each process
    requested its own and nodes may have different numbers.
    """
    what = shlex.join(run.command) if run.command else "the commands in the file `tasks`"
    further = "" if run.task_kind == "rank" and run.tasks == run.processes else f", {counted(run.tasks, 'task')}"
    further += ", which are ranks that send messages to each other" * run.together
    triple = f"triple {run.triple}" if run.triple is not None else "processes on the nodes of the job's Slurm tasks"
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {line}" for line in user_lines),
        f"# {run.kind}: {moved.one_line(what)}",
        f"# {triple}: {counted(run.processes, 'process')}{further}.",
        "#",
        "# Submitted by",
        f"#     {moved.one_line(shlex.join(scheduler_command))}",
        "# One job with one launcher on each node. The launcher starts the processes there, gives each process cores,",
        "# a GPU, a number of threads and a log, and records how each task ended.",
        together.COMMENT
        if run.together
        else f"# To run unfinished tasks after the end of the job:  {moved.resume_text(folder)}",
        "",
        f"folder={shlex.quote(folder)}",
        f"python={shlex.quote(python)}",
        f"run={shlex.quote(run.id)}",
    ]
    head = "\n".join(lines) + "\n" + _SIGNALS_FIRST + _BEGIN * (run.until_done is not None) + _AWAITED * bool(run.after)
    if gpus_of_job is not None:
        # Slurm 24.11 and 26.05 refuse such a step with --overlap: "Insufficient GRES available in allocation".
        return head + _BODY.replace(" --overlap \\\n", " \\\n").replace(
            '--gres="$gres"', f"--gpus={shlex.quote(gpus_of_job)}"
        )
    if gpus:
        return head + _STEP_GPUS_ASKED + f"gres={shlex.quote(gpus)}\n" + _BODY
    return head + _STEP_GPUS_THERE + _BODY


_SIGNALS_FIRST = """
# SIGUSR1 and SIGUSR2 are for the tasks (--signal=USR1@60). Before the first task and after the last one they are
# ignored, here and in all processes started here: otherwise they would end this shell, srun, or a launcher that has
# just started.
trap '' USR1 USR2
"""

_AWAITED = """
# This run starts after others are done (--after). If they are not, this says so and ends.
"$python" -I -X utf8 -m slurm_share.cli.main launch --awaited --run "$run" "$folder" || exit 1
"""

_BEGIN = """
# This run submits its next job itself (--until-done). Such a job ends here if nothing is left for it to do.
begun=0
"$python" -I -X utf8 -m slurm_share.cli.main launch --begin --run "$run" "$folder" || begun=$?
[ "$begun" -eq 100 ] && exit 0
[ "$begun" -ne 0 ] && exit "$begun"
"""

_STEP_GPUS_THERE = """
# A step only has the GPUs that it requests. Request all GPUs that the job has on each node; if their numbers differ, as
# many as on the node with the fewest.
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
# A step only has the GPUs that it requests: these, on each node.
"""

_BODY = """
# The options of the job must not become options of the launchers' step. SLURM_SHARE_SLOT=none: the step takes no slot
# of a share; the processes do.
unset "${!SRUN_@}" SLURM_CPUS_PER_TASK SLURM_TRES_PER_TASK SLURM_NTASKS_PER_NODE SLURM_NTASKS_PER_CORE \\
    SLURM_NTASKS_PER_SOCKET SLURM_NTASKS_PER_GPU SLURM_GRES SLURM_TRES_PER_NODE SLURM_GPUS SLURM_GPUS_PER_NODE \\
    SLURM_GPUS_PER_TASK SLURM_GPUS_PER_SOCKET SLURM_GPU_BIND SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE \\
    SLURM_CPU_BIND SLURM_DISTRIBUTION SLURM_HINT SLURM_EXACT SLURM_EXCLUSIVE SLURM_THREADS_PER_CORE SLURM_TRES_BIND
export SLURM_SHARE_SLOT=none LLSUB_JOB_TASKS_PER_NODE=$SLURM_TASKS_PER_NODE

# Slurm sends SIGTERM at the time limit, and SIGKILL later (KillWait). With a trap, bash survives SIGTERM: the launchers
# end their processes, and the summary below still prints what is unfinished.
trap 'echo "This job was told to end."' TERM INT

# --cpu-bind=none, --mem=0, no -c: each launcher has all CPUs and memory of the job on its node, for its processes.
# --overlap: further steps can run at the same time. --kill-on-bad-exit=0, --wait=0: the end of one node, successful or
# not, does not end the others. -X utf8: names and tasks are the bytes that were submitted, whatever the locale is.
srun --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --cpu-bind=none --mem=0 --overlap \\
    --gres="$gres" --kill-on-bad-exit=0 --wait=0 /bin/sh -c '
        trap "" USR1 USR2
        if ! [ -x "$1" ]; then
            echo "$(hostname): $1 does not exist; install slurm-share in the same place on every node," \\
                "or in a folder that all nodes share" >&2
            exit 127
        fi
        exec "$@"' sh "$python" -I -X utf8 -m slurm_share.cli.main launch --run "$run" "$folder" &
step=$!
# From now on, forward signals to this shell (--signal=B:USR1@60, scancel --batch --signal=USR1) to the step.
trap 'kill -s USR1 "$step" 2>/dev/null' USR1
trap 'kill -s USR2 "$step" 2>/dev/null' USR2
# Each trapped signal ends a `wait` early; the last `wait`, after the end of srun, returns the exit code.
while kill -0 "$step" 2>/dev/null; do
    wait "$step"
done
wait "$step"
launched=$?
trap '' USR1 USR2

# Print the outcome of all tasks, and write summary.json. The exit code is 0 only if all are done.
if ! [ -x "$python" ]; then
    exit 127
fi
"$python" -I -X utf8 -m slurm_share.cli.main launch --summary --run "$run" "$folder"
ended=$?
[ "$ended" -eq 0 ] && [ "$launched" -ne 0 ] && echo "All tasks are done; srun ended with $launched."
exit "$ended"
"""


def asking_to_begin(script: str) -> str:
    """Return launch.sh with the lines of --until-done, which a run may get when it is resumed."""
    if _BEGIN in script:
        return script
    if _SIGNALS_FIRST not in script:
        raise UsageError(
            "launch.sh was written by another release of slurm-share; submit the run again for --until-done"
        )
    return script.replace(_SIGNALS_FIRST, _SIGNALS_FIRST + _BEGIN, 1)


def local_script(python: str, *, is_together: bool = False) -> str:
    """Return the script of a run on this machine, which finds the folder by its own path.

    `is_together`: as in records.Run.
    """
    again = "all ranks again" if is_together else "unfinished tasks"
    return f"""#!/bin/bash
# A run on one machine, without a scheduler. When started again, it runs {again}.
trap '' USR1 USR2  # for the tasks; the launcher handles them as soon as it has started
# -X utf8: names and tasks are the bytes that were submitted, whatever the locale is.
exec {shlex.quote(python)} -I -X utf8 -m slurm_share.cli.main launch "$(dirname -- "$0")"
"""
