"""`llsub` (LLSC's LLsub): submits a script, as one process or in triples mode, and follows runs."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, TextIO

from msgspec.structs import replace

from ..core import names, terminal, text_files
from ..core.command import EXIT_INTERRUPTED, enter, forget_output
from ..core.errors import UsageError, shown
from ..core.parser import Parser
from ..core.text import counted
from ..node.records import Core
from ..packing import POLICIES
from ..share import option as share_option
from ..slurm import script as script_reader
from ..slurm import submit
from ..slurm.script import OWN_MAGIC
from ..triples import (
    ENV_TASK,
    DryRun,
    PackOptions,
    Run,
    Tasks,
    Triple,
    chains,
    checkpoint,
    failed_tasks,
    follow,
    pack_explain,
    pack_options,
    planning,
    run_folder,
    submission,
    submitting,
    task_names,
)
from ..triples import triple as rule_triple
from . import llsub_add, llsub_dry_run, llsub_options, llsub_spmd
from .progress_line import ProgressLine

PROGRAM = "llsub"
ROWS = 32
"""Most processes of a node that --dry-run lists."""
EPILOG = f"""\
the triple
  [NODES,PROCESSES_PER_NODE,THREADS_PER_PROCESS] or [NODES,PROCESSES_PER_NODE],
  without blanks. The job gets whole nodes; each process has its own cores, GPU
  and log. In zsh, quote the brackets: '[1,8,5]'.

examples
  llsub ./train.sh [1,8,5]          8 processes on one node, 5 threads each
  llsub ./train.sh [2,24] --share-gpu=mem=4G
                                    24 processes on each of 2 nodes, each with
                                    at most 4 GiB of GPU memory
  llsub ./train.sh [1,8] --tasks files.txt
                                    train.sh LINE for every line, 8 at a time
  llsub [1,16] --tasks cmds.txt     the command in each line, 16 at a time
  llsub ./train.py [1,8] --sweep lr=1e-3,1e-4 --sweep seed=0..9
                                    20 tasks: train.py --lr=1e-3 --seed=0, ...;
                                    or ... -- --rate={{lr}} {{seed}}; then
                                    slurm-share results LLSUB.3 --min loss
  llsub ./train.py [1,8] --tasks table.csv
                                    a task for each row; the first names the
                                    parameters
  llsub ./sim.sh [4,48,1] --ntasks 100000 -- -v
                                    sim.sh -v, 100000 times
                                    ({ENV_TASK}=0 to 99999)
  llsub [1,auto,4] --pack --tasks mix.txt
                                    commands of different sizes, each on a GPU
                                    with room for it, as many at once as fit
  llsub ./train.sh [1,auto] --tasks files.txt
                                    the number of processes is found by trials
  llsub --spmd prog.py [2,8]        16 ranks of a Python program, which send
                                    messages to each other
  llsub --resume LLSUB.3            the unfinished tasks of LLSUB.3; valid with
                                    -q, -T, --retries, --oom-retries,
                                    --keep-going, --max-failures, --env,
                                    --until-done, --options
  llsub --add LLSUB.3 --tasks more.txt
                                    further tasks for LLSUB.3, also while it
                                    runs; valid with the options of --resume
  llsub --failed LLSUB.3 --lines    the lines that failed, for another --tasks;
                                    without --lines: with logs and last lines
  llsub --log LLSUB.3 776           the log of task 776, or lr=1e-3,seed=4
  llsub ./job.sh -s 4 -g volta:1    without a triple: an ordinary job with
                                    4 cores and a GPU
  llsub -i                          a shell on a core; -i full: on a whole node
  llsub ./train.sh [1,2] --local    on this machine, without Slurm

  #SBATCH lines of a script override the options of llsub, and these override
  its #LLSUB lines (#LLSUB --pack --gpu-mem=6G). The triple always sets the
  numbers of nodes and tasks. The logs are in the run's folder:
  LLSUB.<n>/p<first>-p<last>_<node>/<script>.log.<number>

exit codes
  0 submitted (--wait, --local: every task is done), 1 not every task is done,
  75 the same, but none failed and some have saved their state, 2 invalid
  request, 130 interrupted
"""


FIRST_EPILOG = f"""\
the triple
  [NODES,PROCESSES_PER_NODE,THREADS_PER_PROCESS] or [NODES,PROCESSES_PER_NODE],
  without blanks; in zsh in quotes: '[1,8,5]'. Each process has its own cores,
  GPU and log; the job gets whole nodes.

examples
  llsub ./train.sh [1,8,5]          8 processes on one node, 5 threads each
  llsub ./train.sh [1,8] --tasks files.txt
                                    train.sh LINE for every line, 8 at a time
  llsub ./train.py [1,8] --sweep lr=1e-3,1e-4 --sweep seed=0..9
                                    train.py --lr=1e-3 --seed=0, and so on;
                                    slurm-share results shows which is best
  llsub ./sim.sh [4,48,1] --ntasks 100000
                                    sim.sh 100000 times ({ENV_TASK}=0 to 99999)
  llsub [1,auto,4] --pack --tasks mix.txt
                                    commands of different sizes, each on a GPU
                                    with room for it, as many at once as fit
  llsub ./job.sh -s 4 -g volta:1    without a triple: an ordinary job

  Every option, more examples, exit codes: llsub --help-all
"""


class _LlsubParser(Parser):
    shows_all = False
    """Show every option, in full; else what people use (`llsub_options.FIRST_PAGE`)."""

    def format_help(self) -> str:
        written, epilog = [(action, action.help) for action in self._actions], self.epilog
        try:
            self.epilog = epilog if self.shows_all else FIRST_EPILOG
            for action, text in written if not self.shows_all else ():
                action.help = llsub_options.FIRST_PAGE.get((action.option_strings or [""])[-1], text)
            return super().format_help()
        finally:
            self.epilog = epilog
            for action, text in written:
                action.help = text

    def error(self, message: str) -> NoReturn:
        if "--options" in message and "expected one argument" in message:
            message = "--options: write a value that begins with a dash after a =, as in --options='--nice=5'"
        super().error(message)


class _ShowAll(argparse.Action):
    """Print the help with every option, and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        assert isinstance(parser, _LlsubParser)
        parser.shows_all = True
        parser.print_help()
        parser.exit()


def parser() -> Parser:
    top = _LlsubParser(
        prog=PROGRAM,
        usage="llsub SCRIPT [[N,P,T]] [options] [-- arguments of the script]\n       llsub --resume LLSUB.n | "
        "--watch [LLSUB.n] | -i [full]\n       llsub --add LLSUB.n --tasks FILE\n"
        "       llsub --failed LLSUB.n [--lines] | --log LLSUB.n TASK",
        description="Submit a script to Slurm: one process, or N nodes with P processes of T\nthreads each.",
        epilog=EPILOG,
        allow_abbrev=False,
    )
    top.add_version()
    top.add_argument(
        "--help-all", action=_ShowAll, nargs=0, default=argparse.SUPPRESS, help="show every option and exit"
    )
    top.add_argument("positional", nargs="*", metavar="SCRIPT [N,P,T]", help="script or program, and a triple")
    add = top.add_argument_group("the job").add_argument
    add("-s", "--slots", type=llsub_options.positive, metavar="K", help="number of cores (only without a triple)")
    add("-g", "--gpus", metavar="TYPE:COUNT", help="GPUs on each node, such as volta:2 or 2")
    add("-q", "-p", "--partition", metavar="NAME", help="partition, or several separated by commas")
    add("-T", "--time", metavar="TIME", help="time limit in a form of sbatch: 30, 2:00:00, 1-12")
    add("-J", "--job-name", metavar="NAME", help="name of the job (default: name of the script)")
    add("-o", "--output", metavar="FILE", help="file for the job's output (with a triple: the launchers')")
    add("--constraint", metavar="FEATURES", help="features that nodes must have")
    add("--qos", metavar="NAME", help="quality of service")
    add("--reservation", metavar="NAME", help="reservation to use")
    add("--account", metavar="NAME", help="account to charge")
    add("--options", metavar="OPTIONS", default="", help="further options of sbatch, quoted as one argument")
    add(
        "--share-gpu",
        metavar="SETTINGS",
        help=f"{names.OPTION_FORM}; with a triple, settings alone are enough (mem=8G): N is then the number of "
        "processes per GPU",
    )
    add(
        "--sharing",
        choices=share_option.SHARING_WORDS,
        help="how the processes of a GPU share it, as sharing= of --share-gpu: through MPS, in turns, or one process "
        "alone on each GPU; auto: MPS where the node has it",
    )
    llsub_options.add_work(top)
    llsub_options.add_packing(top)
    llsub_spmd.add_option(top)
    add = top.add_argument_group("how to run").add_argument
    add(
        "-i",
        "--interactive",
        nargs="?",
        const="core",
        choices=("core", "full"),
        help="start a shell on one core; full: on a whole node",
    )
    add(
        "--dry-run",
        nargs="?",
        choices=llsub_options.DRY_RUNS,
        const=llsub_options.DRY_RUNS[0],
        default=False,
        metavar="script",
        help="show the submission, but create and submit nothing; --dry-run=script: also the script of the job",
    )
    add("--local", action="store_true", help="run now on this machine, without Slurm")
    add("--parsable", action="store_true", help="print only the job id on standard output")
    add("--wait", action="store_true", help="submit, then watch until the end; exit 0 if all tasks are done")
    add(
        "--after",
        action="append",
        metavar="LLSUB.n",
        help="start when all tasks of that run are done, also by later jobs of it; may be given several times",
    )
    add("--resume", metavar="LLSUB.n", help="submit the unfinished tasks of a run again")
    add(
        "--open",
        action="store_true",
        help="with --tasks -: the lines of a pipe become tasks as they come; the run ends after the end of the pipe",
    )
    add(
        "--add",
        metavar="LLSUB.n",
        help="add the tasks of --tasks FILE, or --ntasks K, to a run, also while it runs; submit it again if its job "
        "has ended",
    )
    add(
        "--env",
        choices=("recorded", "current"),
        help="with --resume: use the environment of the submission (default) or of this shell",
    )
    add(
        "--script",
        choices=("kept", "current"),
        help="run the script as it was at submission (default), or as it is now",
    )
    add("--watch", nargs="?", const="", metavar="LLSUB.n", help="watch a run (default: the newest in this folder)")
    add("--failed", metavar="LLSUB.n", help="print the failed tasks of a run, with their lines, logs and last lines")
    add(
        "--lines",
        action="store_true",
        help="with --failed: print the bare lines, for another --tasks",
    )
    add(
        "--log",
        nargs=2,
        metavar=("LLSUB.n", "TASK"),
        help="print the log of a task, by its number from 0, or by its parameters: lr=1e-3,seed=4",
    )
    return top


def main(argv: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if argv is None else argv)
    return enter(PROGRAM, lambda: _begin(given))


def _begin(argv: Sequence[str]) -> int:
    cut = argv.index("--") if "--" in argv else len(argv)
    arguments = parser().parse_intermixed_args(llsub_options.with_value(argv[:cut]))
    _check_text(argv)
    arguments.called = tuple(argv)
    arguments.shows_script = arguments.dry_run == "script"
    arguments.dry_run = bool(arguments.dry_run)
    return _run(arguments, tuple(argv[cut + 1 :]))


def _check_text(argv: Sequence[str]) -> None:
    """Raise UsageError for arguments that are not UTF-8, which run.json requires, and for a missing working folder."""
    try:
        cwd = str(Path.cwd())
    except OSError as error:
        raise UsageError(f"the working folder no longer exists ({error.strerror}); change to another one") from error
    for argument in (*argv, cwd):
        why = text_files.why_not_utf8(argument)
        if why is not None:
            where = "the folder's name" if argument == cwd else "the argument"
            raise UsageError(f"{where} {shown(os.fsencode(argument).decode('utf-8', 'surrogateescape'))} {why}")


def _run(arguments: argparse.Namespace, script_arguments: tuple[str, ...]) -> int:
    wishes = _wishes(arguments)
    if arguments.watch is not None and arguments.resume is not None:
        raise UsageError("--watch and --resume are two requests; llsub --resume FOLDER --wait resumes, then watches")
    if arguments.watch is not None:
        _alone(arguments, script_arguments, "--watch", ())
        return _watch(submitting.find_newest() if arguments.watch == "" else submitting.find_folder(arguments.watch))
    if arguments.resume is not None:
        _alone(arguments, script_arguments, "--resume", RESUME_TAKES)
        return _resume(submitting.find_own_folder(arguments.resume), wishes, arguments)
    if arguments.add is not None:
        _alone(arguments, script_arguments, "--add", (*AGAIN_TAKES, *llsub_add.TAKES))
        return _add(wishes, arguments)
    if arguments.failed is not None:
        _alone(arguments, script_arguments, "--failed", ("lines",))
        return _failed(submitting.find_folder(arguments.failed), is_bare=arguments.lines)
    if arguments.log is not None:
        _alone(arguments, script_arguments, "--log", ())
        return _log(*arguments.log)
    if arguments.open and arguments.tasks is None:
        _note("--open ignored: it is for --tasks -")
    if arguments.lines and arguments.interactive is None:
        _note("--lines ignored: it is for llsub --failed LLSUB.n")
    if arguments.env is not None:
        _note("--env ignored: a new run uses the environment of this shell")
    if arguments.interactive is not None:
        _alone(arguments, script_arguments, "-i", INTERACTIVE_TAKES)
        pack_options.refuse_sm_tried(wishes.share, "and a shell is not a task; remove it")
        _check_has_number(wishes, arguments)
        return _interactive(wishes, whole=arguments.interactive == "full", dry_run=arguments.dry_run)
    if arguments.pack is not None:
        policy = next((one for one in arguments.positional if one.partition(",")[0] in POLICIES), None)
        if policy is not None and not Path(policy).exists():
            raise UsageError(f"{shown(policy)} must follow --pack with an equals sign: --pack={shown(policy)}")
    argument, triple = submission.split_arguments(arguments.positional)
    if triple is None:
        pack_options.refuse_sm_tried(wishes.share, "which needs a triple and --pack; write both")
        _check_has_number(wishes, arguments)
        return _ordinary(argument, wishes, arguments, script_arguments)
    return _triple(argument, triple, wishes, arguments, script_arguments)


def _wishes(arguments: argparse.Namespace) -> submission.SbatchOptions:
    for option, value in (("-q", arguments.partition), ("-o", arguments.output), ("--tasks", arguments.tasks)):
        if value == "":
            raise UsageError(f"{option} has an empty value; write one, or leave it out (is a shell variable not set?)")
    try:
        options = tuple(shlex.split(arguments.options))
    except ValueError as error:
        raise UsageError(f"--options={shown(arguments.options)}: {error}") from error
    others = set(submission.SbatchOptions.__struct_fields__) - {"share", "signal", "options"}
    return submission.SbatchOptions(
        share=share_option.with_sharing(arguments.share_gpu, arguments.sharing),
        options=options,
        **{name: getattr(arguments, name) for name in others},
    )


def _check_has_number(wishes: submission.SbatchOptions, arguments: argparse.Namespace) -> None:
    """Raise UsageError for --sharing without a number of tasks, which only a triple supplies."""
    if arguments.sharing is not None and wishes.share is not None and wishes.share[:1].isalpha():
        raise UsageError(
            f"--sharing={arguments.sharing} needs the number of tasks on a GPU where there is no triple: "
            f"--share-gpu=4 --sharing={arguments.sharing}"
        )


AGAIN_TAKES = ("partition", "time", "options", "retries", "oom_retries", "keep_going", "max_failures", "env",
               "until_done", "script", "dry_run", "wait", "parsable", "local")  # fmt: skip
"""The options that --resume and --add take, since both may submit the run again."""
RESUME_TAKES = (*AGAIN_TAKES, "task_time")
NOT_LOCAL = ("until_done", "slots", "partition", "time", "job_name", "output", "constraint", "qos", "reservation",
             "account", "options", "wait", "parsable")  # fmt: skip
INTERACTIVE_TAKES = ("partition", "time", "options", "slots", "gpus", "share_gpu", "sharing", "job_name", "constraint",
                     "qos", "reservation", "account", "dry_run")  # fmt: skip


def _alone(arguments: argparse.Namespace, extra: tuple[str, ...], option: str, taken: Sequence[str]) -> None:
    """Name the options, except `taken`, that have no effect with `option`. Raises UsageError for a script or triple."""
    if arguments.positional or extra:
        argument = shown((*arguments.positional, *extra)[0]) or repr("")
        raise UsageError(f"{option} takes no script, no triple and no arguments; remove {argument}")
    actions = [action for action in parser()._actions if option not in action.option_strings]
    known = ("help", "help_all", "version", "positional", *taken)
    _note_ignored(arguments, f"no effect with {option}", [one.dest for one in actions if one.dest not in known])


def _note_ignored(arguments: argparse.Namespace, why: str, fields: Sequence[str]) -> None:
    """Name the options among `fields` that were written, and say that they are ignored."""
    idle = [
        action.option_strings[-1]
        for action in parser()._actions
        if action.dest in fields and getattr(arguments, action.dest) != action.default
    ]
    if idle:
        _note(f"{', '.join(idle)} ignored: {why}")


def _watch(folder: Path, job: int | None = None, stream: TextIO | None = None) -> int:
    """Show the progress of a run's job (None: its last one) until its end; return the exit code. Raises UsageError."""
    run = run_folder.read_run(folder)
    job = follow.find_job(folder) if job is None else job
    line = ProgressLine(stream)
    try:
        job = follow.follow_all(folder, run, job, line.show)
    except KeyboardInterrupt:
        line.end()
        name = run_folder.typed(folder)
        print(f"job {job} continues: llsub --watch {name} shows it again, llkill {job} ends it", file=sys.stderr)
        return EXIT_INTERRUPTED
    line.end()
    code, sentence, failed = follow.read_outcome(folder, run, job)
    print(sentence, file=stream)
    terminal.print_lines(failed, stream)
    return code


# ---- Failed tasks and logs ----


def _failed(folder: Path, *, is_bare: bool) -> int:
    """Print the failed tasks of a run; `is_bare`: only their lines, for another --tasks file."""
    run, found = failed_tasks.read_account(folder)
    if not found.failed:
        _note(f"no task of {folder.name} has failed")
    elif is_bare:
        lines = failed_tasks.bare_lines(folder, run, found)
        sys.stdout.buffer.write("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
        ending = failed_tasks.bare_ending(folder, run, found)
        if ending:
            _note(f"the lines are those of a file *{ending}: --tasks reads them as such only by its name")
    else:
        terminal.print_lines(failed_tasks.lines_of(folder, run, found, None))
    return names.EXIT_OK


def _log(argument: str, task: str) -> int:
    """Print the log of a task."""
    folder = submitting.find_folder(argument)
    run = run_folder.read_run(folder)
    for piece in failed_tasks.read_log(folder, run, task_names.find(folder, run, task)):
        sys.stdout.buffer.write(piece)
    return names.EXIT_OK


# ---- Without a triple ----


def _ordinary(
    argument: str | None, wishes: submission.SbatchOptions, arguments: argparse.Namespace, extra: tuple[str, ...]
) -> int:
    if argument is None:
        raise UsageError("there is no script: write one, and a triple for many processes; see llsub --help")
    if (Path(argument) / run_folder.RUN).is_file():
        name = shown(argument, 200)
        raise UsageError(
            f"{name} is the folder of a run: llsub --watch {name} follows it, llsub --resume {name} runs what is left"
        )
    triples_only = ("tasks", "ntasks", "distribution", "logs", "no_bind", "local", "retries", "max_failures", "wait",
                    "progress", "window", "checkpoint_signal", "until_done", "slot", "spmd", "after",
                    "task_time", "task_cpus", "task_mem", "sweep", "zip",
                    *PackOptions.__struct_fields__)  # fmt: skip
    for name in triples_only:
        if pack_options.is_written(getattr(arguments, name)):
            raise UsageError(
                f"--{name.replace('_', '-')} needs a triple: llsub {shown(argument)} {rule_triple.FORM} ..."
            )
    script = script_reader.read_script(argument, to_execute=False)
    planning.check_job_files(script, submission.effective(script.directives, wishes), extra)
    argv, notes = submission.ordinary(script.path, script.name, script.directives, wishes)
    argv += extra
    _note(*notes)
    if script.own_lines:
        _note(f"{script.name} has {OWN_MAGIC} lines, which need a triple: ignored")
    if arguments.script is not None:
        _note("--script ignored: without a triple, sbatch keeps the script as it is now")
    output = _output(arguments)
    output.command(argv)
    if arguments.dry_run:
        _note(*submit.ask(argv, launchers=False))
        return names.EXIT_OK
    job = submit.submit(argv, launchers=False, say=output.sbatch)
    print(job if arguments.parsable else f"job {job}")
    return names.EXIT_OK


def _interactive(wishes: submission.SbatchOptions, *, whole: bool, dry_run: bool) -> int:
    argv = submission.interactive(wishes, os.environ.get("SHELL") or "/bin/bash", whole=whole)
    _show_command(argv)
    return names.EXIT_OK if dry_run else submit.become(argv)


# ---- With a triple ----


def _triple(
    argument: str | None,
    triple: Triple,
    wishes: submission.SbatchOptions,
    arguments: argparse.Namespace,
    extra: tuple[str, ...],
) -> int:
    script = None if argument is None else llsub_spmd.read_script(argument, is_spmd=arguments.spmd)
    own_notes = () if script is None else llsub_options.take_own_lines(script, arguments, is_auto=triple.is_auto)
    saved_on = None if arguments.checkpoint_signal is None else checkpoint.parse(arguments.checkpoint_signal)
    pipe = llsub_add.Pipe(arguments) if arguments.open else None
    asked = planning.TaskOptions(
        tasks=arguments.tasks,
        data=None if pipe is None else pipe.data,
        ntasks=arguments.ntasks,
        arguments=extra,
        distribution=arguments.distribution,
        retries=arguments.retries or 0,
        max_failures=arguments.max_failures,
        bind=not arguments.no_bind,
        logs=arguments.logs,
        called=arguments.called,
        progress=arguments.progress,
        window_s=arguments.window,
        checkpoint=saved_on,
        spec=llsub_options.task_spec(arguments),
        sweeps=tuple(arguments.sweep or ()),
        is_zip=arguments.zip,
        until_done=arguments.until_done,
        slot_s=arguments.slot,
        report=arguments.report,
        pack=PackOptions(**{name: getattr(arguments, name) for name in PackOptions.__struct_fields__}),
    )
    if arguments.spmd:
        asked = llsub_spmd.with_ranks(asked, script, triple, arguments, note=_note)
    run, tasks = planning.run_of(script, triple, asked)
    if arguments.after is not None:
        run = replace(run, after=chains.find(arguments.after, submitting.find_folder))
    if not asked.has_tasks:
        why = "each process has one task; --tasks FILE, --sweep or --ntasks M gives it more"
        _note_ignored(arguments, why, ["distribution"])
    if asked.pack.order == "random":
        _note(f"--order={run.order} gives this order again")
    _note(*own_notes, *tasks.notes, *pack_options.ignored_notes(asked.pack, is_auto=triple.is_auto))
    if arguments.local:
        _note(*checkpoint.local_notes(saved_on))
        run = replace(run, until_done=None)
        _note_ignored(arguments, "--local runs here and now, without Slurm", NOT_LOCAL)
        return _local(run, triple, tasks, wishes, arguments, pipe)
    planning.check_job_files(script, wishes, extra, tasks=None if asked.tasks == "-" else asked.tasks)
    wishes = replace(wishes, signal=None if saved_on is None else saved_on.sbatch_value)
    plan = planning.plan_run(run, triple, tasks, script, wishes, saved_on, is_open=pipe is not None)
    if arguments.dry_run:
        _output(arguments)
        _dry_run(plan, wishes, shows_script=arguments.shows_script)
        return names.EXIT_OK
    output, is_kept = _output(arguments), arguments.script != "current"
    prepare = _prepare_nothing if pipe is None else pipe.open
    folder, job = submitting.submit_new(plan, wishes, output, is_kept=is_kept, prepare=prepare)
    if arguments.parsable:
        print(job, flush=True)
        code = _feed(pipe, folder, plan.run)
        return _watch(folder, job, sys.stderr) if arguments.wait and code == names.EXIT_OK else code
    where = folder / plan.run.log_folder / "p*_*" / f"{plan.run.name}.log.*"
    print(f"job {job}: {_how_many(plan.run)}; logs will be in {where}")
    table = f", slurm-share results {folder.name} lists its tasks" if task_names.Labels(tasks.specs) else ""
    print(f"llsub --watch {folder.name} shows its progress, llkill {job} ends it{table}", flush=True)
    code = _feed(pipe, folder, plan.run)
    return _watch(folder, job) if arguments.wait and code == names.EXIT_OK else code


def _prepare_nothing(folder: Path) -> None:
    """Do nothing before a run without --open is submitted."""


def _feed(pipe: llsub_add.Pipe | None, folder: Path, run: Run) -> int:
    """Add the lines of --open to a run until their end; return the exit code."""
    return names.EXIT_OK if pipe is None else pipe.feed(folder, llsub_add.is_taken(folder), _note, run.tasks)


def _how_many(run: Run) -> str:
    if run.pack is not None and run.triple is not None:
        if run.pack.is_tuned:
            where = "the node" if run.triple.nodes == 1 else "each node"
            return (
                f"{counted(run.tasks, 'task')}, as many at once as are fastest on {where}, at most "
                f"{run.triple.per_node}"
            )
        return (
            f"{counted(run.tasks, 'task')}, packed, at most {run.triple.per_node} at once on "
            f"{'the node' if run.triple.nodes == 1 else 'a node'}"
        )
    if run.together:
        return f"{counted(run.processes, 'rank')} that start together"
    return f"{counted(run.processes, 'process')}, {counted(run.tasks, 'task')}"


def _show_command(argv: Sequence[str]) -> None:
    """Print a command. Raises UsageError if that fails, because the user would not see the job id either."""
    try:
        print(shlex.join(argv), flush=True)
    except OSError as error:
        forget_output()
        raise UsageError(f"cannot write to standard output ({error.strerror}); nothing was submitted") from error


def _note(*sentences: str) -> None:
    for sentence in sentences:
        print(f"{PROGRAM}: {sentence}", file=sys.stderr)


OUTPUT = submitting.Output(command=_show_command, note=_note)
QUIET = submitting.Output(command=lambda _: None, note=_note)
"""For --parsable: only the job id goes to standard output."""


def _output(arguments: argparse.Namespace) -> submitting.Output:
    """Return where a submission prints. A dry run has no job id, so that --parsable does not hide its command."""
    if arguments.dry_run:
        _note_ignored(arguments, "--dry-run submits nothing", ["wait", "parsable"])
    return QUIET if arguments.parsable and not arguments.dry_run else OUTPUT


# ---- --dry-run ----


def _dry_run(plan: planning.RunPlan, wishes: submission.SbatchOptions, *, shows_script: bool) -> None:
    folder = f"{plan.run.cwd}/LLSUB.<n>"
    argv = planning.scheduler_command(plan, folder, wishes)
    script = planning.launch_script(plan, folder, argv)
    argv = submission.with_dependency(argv, chains.jobs_before(plan.run))
    _show_command(argv)
    _note(*plan.notes)
    _note(*submit.ask(argv, script=script, may_lack_nodes=planning.waits_for_nodes(plan)))
    _show_script(script, shows_script=shows_script)
    _show_parameters(plan.run, plan.tasks)
    if plan.run.pack is not None:
        _show_packing(plan.run, pack_explain.preview_plan(plan))
        return
    _show_ranks(plan.run)
    for line in _layout(plan):
        print(line)


def _show_script(script: str, *, shows_script: bool) -> None:
    lines = len(script.splitlines())
    print(f"\n{script}" if shows_script else f"launch.sh: {lines} lines, not shown (--dry-run=script shows them)")


def _show_parameters(run: Run, tasks: Tasks) -> None:
    terminal.print_lines(llsub_dry_run.parameter_lines(run, tasks))


def _show_ranks(run: Run) -> None:
    if run.together:
        print(f"{_how_many(run)}, each: {shlex.join(run.command)}")


def _show_packing(run: Run, preview: DryRun, notes: Sequence[str] = ()) -> None:
    """Print the expected sizes of a packed run's tasks, and its first placements."""
    _note(*notes, *preview.notes)
    for line in llsub_dry_run.lines_of(run, preview):
        print(line)


def _layout(plan: planning.RunPlan) -> list[str]:
    """Return lines with the GPU, cores and threads of each process, on a node of the first candidate kind."""
    triple = plan.run.triple
    assert triple is not None
    first = f"process i of node k (from 0) is rank k x {triple.per_node} + i"
    if not plan.kinds:
        return [first]
    kind = plan.kinds[0]
    gpus = planning.gpus_of_a_node(plan)
    cores = kind.cores if plan.grant.tasks is None else max(1, plan.grant.tasks // kind.threads_per_core)
    machine = [Core((number,)) for number in range(cores)]
    places = rule_triple.lay_out(triple.per_node, triple.threads, machine, [None] * gpus)
    lines = [f"on a node such as {kind.nodes[0]} ({cores} cores, {gpus} GPUs); {first}:"]
    for place in places[:ROWS]:
        gpu = "no GPU" if place.gpu is None else f"GPU {place.gpu}"
        span = f"{place.cpus[0]}-{place.cpus[-1]}" if len(place.cpus) > 1 else f"{place.cpus[0]}"
        lines.append(f"  {place.local:4}  {gpu}, cores {span}, {place.threads} threads")
    return [*lines, f"  ... {triple.per_node} in all"] if triple.per_node > ROWS else lines


# ---- --local ----


def _local(
    run: Run,
    triple: Triple,
    tasks: Tasks,
    wishes: submission.SbatchOptions,
    arguments: argparse.Namespace,
    pipe: llsub_add.Pipe | None,
) -> int:
    chains.check_here(run)
    here = planning.plan_here(run, triple, tasks, wishes, is_open=pipe is not None)
    if arguments.dry_run:
        _show_parameters(here.run, tasks)
        if here.run.pack is not None:
            _show_packing(here.run, pack_explain.preview_here(here, tasks), here.notes)
            return names.EXIT_OK
        script = submission.local_script(sys.executable, is_together=run.together)
        _show_script(script, shows_script=arguments.shows_script)
        _note(*here.notes)
        _show_ranks(here.run)
        return names.EXIT_OK
    folder = submitting.make_here(here.run, tasks, is_kept=arguments.script != "current")
    print(f"{_how_many(here.run)}; logs are in {folder}")
    _note(*here.notes)
    if pipe is not None:
        sys.stdout.flush()
        pipe.open(folder)
        llsub_add.feed_beside(pipe, folder, here.run, _note)
    return submitting.become_launcher(folder, here.gpu_limit, os.environ)


# ---- --resume ----


def _asked(arguments: argparse.Namespace, *, after_sealed: bool = False) -> submitting.ResumeOptions:
    """Return the options of --resume, also for --add."""
    if arguments.local and not arguments.dry_run:
        _note_ignored(arguments, "--local runs here and now, without Slurm", ["wait", "parsable"])
    fields = set(submitting.ResumeOptions.__struct_fields__) - {"after_sealed", "more"}
    fields -= {"task_time"} if after_sealed else set()
    written = {name: getattr(arguments, name) for name in fields}
    return submitting.ResumeOptions(**written, after_sealed=after_sealed)


def _resume(folder: Path, wishes: submission.SbatchOptions, arguments: argparse.Namespace) -> int:
    asked, output = _asked(arguments), _output(arguments)
    found = submitting.resume(folder, wishes, asked, output)
    if arguments.parsable and not (arguments.dry_run or arguments.local):
        _note(found.sentence)
        if found.job is not None:
            print(found.job, flush=True)
    else:
        print(found.sentence if found.job is None else f"job {found.job}: {found.sentence}")
    if found.launcher_environ is not None and not arguments.dry_run:
        return submitting.become_launcher(folder, None, found.launcher_environ)
    stream = sys.stderr if arguments.parsable else None
    return _watch(folder, found.job, stream) if found.job is not None and arguments.wait else names.EXIT_OK


# ---- --add ----


def _add(wishes: submission.SbatchOptions, arguments: argparse.Namespace) -> int:
    instead = "submit the tasks as a run of your own"
    folder, output = submitting.find_own_folder(arguments.add, "add tasks to a run", instead), _output(arguments)
    if arguments.open:
        asked = _asked(arguments, after_sealed=True)
        code = llsub_add.add_open(folder, arguments, wishes, asked, output)
        stream = sys.stderr if arguments.parsable else None
        return _watch(folder, None, stream) if arguments.wait and code == names.EXIT_OK else code
    added = llsub_add.add(folder, arguments, wishes, _asked(arguments, after_sealed=True), output)
    if added.launcher_environ is not None and not arguments.dry_run:
        return submitting.become_launcher(folder, None, added.launcher_environ)
    if not arguments.wait or arguments.dry_run or arguments.local:
        return names.EXIT_OK
    return _watch(folder, added.job, sys.stderr if arguments.parsable else None)
