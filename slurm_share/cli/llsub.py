"""`llsub` (LLSC's LLsub): submits a script, as one process or in triples mode, and follows what it submitted."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ..core import names, version
from ..core.command import EXIT_FAILED, EXIT_INTERRUPTED, enter, forget_output
from ..core.errors import UsageError, shown
from ..node.records import Core
from ..packing import POLICIES
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
    follow,
    pack_options,
    packed_dry_run,
    planning,
    run_folder,
    submission,
    submitting,
)
from ..triples import triple as rule_triple
from . import llsub_dry_run, llsub_options, llsub_spmd
from .progress_line import Line

PROGRAM = "llsub"
ROWS = 32
"""Processes of a node that --dry-run lists."""
EPILOG = f"""\
the triple
  [NODES,PROCESSES_PER_NODE,THREADS_PER_PROCESS] or [NODES,PROCESSES_PER_NODE],
  without blanks. Whole nodes; each process has cores, a GPU and a log of its
  own. zsh takes brackets for itself: quote them there, '[1,8,5]'.

examples
  llsub ./train.sh [1,8,5]          8 processes on one node, 5 threads each
  llsub ./train.sh [2,24] --share-gpu=mem=4G
                                    24 on each of 2 nodes, each with at most
                                    4 GiB of GPU memory
  llsub ./train.sh [1,8] --tasks files.txt
                                    train.sh LINE for every line, 8 at a time
  llsub [1,16] --tasks cmds.txt     a command a line, 16 at a time
  llsub ./sim.sh [4,48,1] --ntasks 100000 -- -v
                                    sim.sh -v, 100000 times
                                    ({ENV_TASK}=0 to 99999)
  llsub [1,auto,4] --pack --tasks mix.txt
                                    unlike commands, each on the GPU that has
                                    room for it, as many at once as fit
  llsub ./train.sh [1,auto] --tasks files.txt
                                    the number of processes is found by trials
  llsub --spmd prog.py [2,8]        16 ranks of a Python program, which send
                                    messages to each other
  llsub --resume LLSUB.3            what LLSUB.3 has not finished; takes -q, -T,
                                    --retries, --oom-retries, --max-failures,
                                    --env, --options
  llsub ./job.sh -s 4 -g volta:1    no triple: an ordinary job, 4 cores, a GPU
  llsub -i                          a shell on a node; -i full: on a whole one
  llsub ./train.sh [1,2] --local    here and now, without Slurm

  A script's #SBATCH lines count more than llsub's options, its #LLSUB lines
  (#LLSUB --pack --gpu-mem=6G) less; nodes and tasks are the triple's.
  The run's folder LLSUB.<n> has all logs:
  LLSUB.<n>/p<first>-p<last>_<node>/<script>.log.<number>

exit codes
  0 submitted (--wait, --local: every task is done), 1 not everything is done,
  2 it cannot be as asked, 130 interrupted
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        if "--options" in message and "expected one argument" in message:
            message = "--options: what begins with a dash is written behind a =, as in --options='--nice=5'"
        super().error(message)


def parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    top = _Parser(
        prog=PROGRAM,
        usage="llsub SCRIPT [[N,P,T]] [options] [-- arguments of the script]\n       llsub --resume LLSUB.n | --watch "
        "[LLSUB.n] | -i [full]",
        description="Submit a script to Slurm: one process, or N nodes with P processes of T\nthreads each.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    version.add_to(top)
    top.add_argument("words", nargs="*", metavar="SCRIPT [N,P,T]", help="script or program, and a triple")
    job = top.add_argument_group("the job")
    job.add_argument(
        "-s", "--slots", type=llsub_options.positive, metavar="K", help="cores (of a job without a triple)"
    )
    job.add_argument("-g", "--gpus", metavar="TYPE:COUNT", help="GPUs of each node: volta:2, 2")
    job.add_argument("-q", "-p", "--partition", metavar="NAME", help="partition")
    job.add_argument("-T", "--time", metavar="TIME", help="time limit, as sbatch takes it: 30, 2:00:00, 1-12")
    job.add_argument("-J", "--job-name", metavar="NAME", help="name (default: the script's)")
    job.add_argument("-o", "--output", metavar="FILE", help="file of the job's output; with a triple, the launchers'")
    job.add_argument("--constraint", metavar="FEATURES", help="kind of nodes")
    job.add_argument("--qos", metavar="NAME")
    job.add_argument("--reservation", metavar="NAME")
    job.add_argument("--account", metavar="NAME")
    job.add_argument("--options", metavar="WORDS", default="", help="further options of sbatch, as one word")
    job.add_argument(
        "--share-gpu",
        metavar="SETTINGS",
        help=f"{names.OPTION_FORM}; with a triple settings alone will do (mem=8G), N is then the processes of a GPU",
    )
    llsub_options.add_work(top)
    llsub_options.add_packing(top)
    llsub_spmd.add_option(top)
    how = top.add_argument_group("how")
    how.add_argument(
        "-i",
        "--interactive",
        nargs="?",
        const="core",
        choices=("core", "full"),
        help="a shell on a core; full: on a node",
    )
    how.add_argument("--dry-run", action="store_true", help="show what would be submitted; make and submit nothing")
    how.add_argument("--local", action="store_true", help="run it on this machine, now, without Slurm")
    how.add_argument("--wait", action="store_true", help="submit, then watch to the end; the exit code is the run's")
    how.add_argument("--resume", metavar="LLSUB.n", help="submit again what this run has not finished")
    how.add_argument(
        "--env",
        choices=("recorded", "current"),
        help="with --resume: the environment of the submission (default), or this shell's",
    )
    how.add_argument("--watch", nargs="?", const="", metavar="LLSUB.n", help="watch a run (default: the newest here)")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 done, 1 failed, 2 the caller's mistake, each failure with a sentence on stderr."""
    given = list(sys.argv[1:] if argv is None else argv)
    return enter(PROGRAM, lambda: _begin(given))


def _begin(argv: Sequence[str]) -> int:
    cut = argv.index("--") if "--" in argv else len(argv)
    arguments = parser().parse_intermixed_args(llsub_options.with_value(argv[:cut]))
    _check_text(argv)
    arguments.called = tuple(argv)
    return _run(arguments, tuple(argv[cut + 1 :]))


def _check_text(argv: Sequence[str]) -> None:
    """Raises UsageError for names that run.json and Slurm's records cannot hold, and for a folder that is gone."""
    try:
        cwd = str(Path.cwd())
    except OSError as error:
        raise UsageError(f"this folder is not there any more ({error.strerror}); go to another one") from error
    for argument in (*argv, cwd):
        if not argument.isascii() and argument != argument.encode("utf-8", "replace").decode():
            where = "the folder's name" if argument == cwd else "the word"
            raise UsageError(f"{where} {shown(argument)} is not UTF-8, and the run's files and Slurm's are; rename it")


def _run(arguments: argparse.Namespace, script_arguments: tuple[str, ...]) -> int:
    wishes = _wishes(arguments)
    if arguments.watch is not None:
        _alone(arguments, script_arguments, "--watch", ())
        return _watch(submitting.find_newest() if arguments.watch == "" else submitting.find_folder(arguments.watch))
    if arguments.resume is not None:
        _alone(arguments, script_arguments, "--resume", RESUME_TAKES)
        return _resume(submitting.find_own_folder(arguments.resume), wishes, arguments)
    if arguments.env is not None:
        raise UsageError("--env goes with --resume: a new run takes this shell's environment; leave it away")
    if arguments.interactive is not None:
        _alone(arguments, script_arguments, "-i", INTERACTIVE_TAKES)
        pack_options.refuse_sm_tried(wishes.share, "and a shell is no task; leave it away")
        return _interactive(wishes, whole=arguments.interactive == "full", dry_run=arguments.dry_run)
    if arguments.pack is not None:
        word = next((word for word in arguments.words if word.partition(",")[0] in POLICIES), None)
        if word is not None and not Path(word).exists():
            raise UsageError(f"{shown(word)} stands apart from --pack; write --pack={shown(word)}, with an equals sign")
    argument, triple = submission.split_arguments(arguments.words)
    if triple is None:
        pack_options.refuse_sm_tried(wishes.share, "on the tasks of a triple; write a triple and --pack too")
        return _ordinary(argument, wishes, arguments, script_arguments)
    return _triple(argument, triple, wishes, arguments, script_arguments)


def _wishes(arguments: argparse.Namespace) -> submission.Wishes:
    try:
        options = tuple(shlex.split(arguments.options))
    except ValueError as error:
        raise UsageError(f"--options={shown(arguments.options)}: {error}") from error
    return submission.Wishes(
        partition=arguments.partition,
        time=arguments.time,
        job_name=arguments.job_name,
        output=arguments.output,
        slots=arguments.slots,
        gpus=arguments.gpus,
        share=arguments.share_gpu,
        constraint=arguments.constraint,
        qos=arguments.qos,
        reservation=arguments.reservation,
        account=arguments.account,
        options=options,
    )


RESUME_TAKES = ("partition", "time", "options", "retries", "oom_retries", "max_failures", "env", "dry_run", "wait")
INTERACTIVE_TAKES = ("partition", "time", "options", "slots", "gpus", "share_gpu", "job_name", "constraint", "qos",
                     "reservation", "account", "dry_run")  # fmt: skip


def _alone(arguments: argparse.Namespace, extra: tuple[str, ...], option: str, taken: Sequence[str]) -> None:
    """Raise UsageError for arguments that would have no effect beside this option."""
    if arguments.words or extra:
        argument = shown((*arguments.words, *extra)[0])
        raise UsageError(f"{option} takes no script, no triple and no arguments; leave {argument} away")
    top = parser()
    for action in top._actions:
        if action.dest in ("help", "version", "words", *taken) or option in action.option_strings:
            continue
        if getattr(arguments, action.dest) != action.default:
            raise UsageError(f"{action.option_strings[0]} has no effect beside {option}; leave it away")


def _watch(folder: Path, job: int | None = None) -> int:
    """Show the progress of the run's last job until it ends; return 0 if every task is done, else 1, or the code that a
    rank gave to abort().

    Raises UsageError for a run that has no job.
    """
    run = run_folder.read_run(folder)
    job = follow.find_job(folder) if job is None else job
    line = Line()
    try:
        follow.follow(folder, run, job, line.show)
    except KeyboardInterrupt:
        line.end()
        print(f"job {job} runs on: llsub --watch {folder.name} shows it again, llkill {job} ends it", file=sys.stderr)
        return EXIT_INTERRUPTED
    line.end()
    is_done, sentence = follow.read_outcome(folder, run, job)
    print(sentence)
    return run_folder.read_exit_code(folder) or (names.EXIT_OK if is_done else EXIT_FAILED)


# ---- Without a triple ----


def _ordinary(
    argument: str | None, wishes: submission.Wishes, arguments: argparse.Namespace, extra: tuple[str, ...]
) -> int:
    if argument is None:
        raise UsageError("there is nothing to run: write a script, and a triple for many processes; see llsub --help")
    triples_only = ("tasks", "ntasks", "distribution", "logs", "no_bind", "local", "retries", "max_failures", "wait",
                    "progress", "window", "spmd", *PackOptions.__struct_fields__)  # fmt: skip
    for name in triples_only:
        if pack_options.is_written(getattr(arguments, name)):
            raise UsageError(
                f"--{name.replace('_', '-')} goes with a triple: llsub {shown(argument)} {rule_triple.FORM} ..."
            )
    script = script_reader.read_script(argument, to_execute=False)
    argv, notes = submission.ordinary(script.path, script.name, script.directives, wishes)
    argv += extra
    _say_notes(notes)
    if script.own_lines:
        _note(f"{script.name} has {OWN_MAGIC} lines, which count with a triple only: left aside")
    _show_command(argv)
    if not arguments.dry_run:
        print(f"job {submit.submit(argv, launchers=False, say=_pass_on)}")
    return names.EXIT_OK


def _interactive(wishes: submission.Wishes, *, whole: bool, dry_run: bool) -> int:
    argv = submission.interactive(wishes, os.environ.get("SHELL") or "/bin/bash", whole=whole)
    _show_command(argv)
    return names.EXIT_OK if dry_run else submit.become(argv)


# ---- With a triple ----


def _triple(
    argument: str | None,
    triple: Triple,
    wishes: submission.Wishes,
    arguments: argparse.Namespace,
    extra: tuple[str, ...],
) -> int:
    script = None if argument is None else llsub_spmd.read_script(argument, is_spmd=arguments.spmd)
    own_notes = () if script is None else llsub_options.take_own_lines(script, arguments, is_auto=triple.is_auto)
    asked = planning.Work(
        tasks=arguments.tasks,
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
        pack=PackOptions(**{name: getattr(arguments, name) for name in PackOptions.__struct_fields__}),
    )
    if arguments.spmd:
        asked = llsub_spmd.with_ranks(asked, script, triple, arguments, note=_note)
    run, tasks = planning.run_of(script, triple, asked)
    _say_notes(own_notes)
    if arguments.local:
        return _local(run, triple, tasks, wishes, dry_run=arguments.dry_run)
    plan = planning.plan_run(run, triple, tasks, script, wishes)
    if arguments.dry_run:
        _dry_run(plan, wishes)
        return names.EXIT_OK
    folder, job = submitting.submit_new(plan, wishes, OUTPUT)
    where = folder / plan.run.log_folder / "p*_*" / f"{plan.run.name}.log.*"
    print(f"job {job}: {_how_many(plan.run)}; logs will be in {where}")
    print(f"llsub --watch {folder.name} shows how far it is, llkill {job} ends it")
    return _watch(folder, job) if arguments.wait else names.EXIT_OK


def _how_many(run: Run) -> str:
    if run.pack is not None and run.triple is not None:
        if run.pack.is_tuned:
            where = "the node" if run.triple.nodes == 1 else "each node"
            return (
                f"{submission.counted(run.tasks, 'task')}, as many at once as {where} does most with, at most "
                f"{run.triple.per_node}"
            )
        return (
            f"{submission.counted(run.tasks, 'task')}, packed, at most {run.triple.per_node} at once on "
            f"{'the node' if run.triple.nodes == 1 else 'a node'}"
        )
    if run.together:
        return f"{submission.counted(run.processes, 'rank')} that start together"
    return f"{submission.counted(run.processes, 'process')}, {submission.counted(run.tasks, 'task')}"


def _show_command(argv: Sequence[str]) -> None:
    """Raises UsageError where nobody can read it: who does not see the job's number loses the job."""
    try:
        print(shlex.join(argv), flush=True)
    except OSError as error:
        forget_output()
        raise UsageError(f"cannot write to standard output ({error.strerror}); nothing was submitted") from error


def _note(sentence: str) -> None:
    print(f"{PROGRAM}: {sentence}", file=sys.stderr)


def _say_notes(notes: Sequence[str]) -> None:
    for note in notes:
        _note(note)


def _pass_on(text: str) -> None:
    """Print what sbatch and its plugins say, unchanged."""
    sys.stderr.write(text)
    sys.stderr.flush()


OUTPUT = submitting.Output(command=_show_command, note=_note, sbatch=_pass_on)


# ---- --dry-run ----


def _dry_run(plan: planning.Plan, wishes: submission.Wishes) -> None:
    folder = f"{plan.run.cwd}/LLSUB.<n>"
    argv = planning.scheduler_command(plan, folder, wishes)
    _show_command(argv)
    _say_notes(plan.notes)
    print(f"\n{planning.launch_script(plan, folder, argv)}")
    if plan.run.pack is not None:
        _show_packing(plan.run, packed_dry_run.preview_plan(plan))
        return
    _show_ranks(plan.run)
    for line in _layout(plan):
        print(line)


def _show_ranks(run: Run) -> None:
    """Print what each rank of a run is, where its ranks send messages to each other."""
    if run.together:
        print(f"{_how_many(run)}, each: {shlex.join(run.command)}")


def _show_packing(run: Run, preview: DryRun, notes: Sequence[str] = ()) -> None:
    """Print what is known of the tasks of a packed run, and its first placements."""
    _say_notes((*notes, *preview.notes))
    for line in llsub_dry_run.lines_of(run, preview):
        print(line)


def _layout(plan: planning.Plan) -> list[str]:
    """Return rank, cores and GPU of each process of a node, for the nodes of the first kind."""
    triple = plan.run.triple
    assert triple is not None
    first = f"process i of node k (from 0) is rank k x {triple.per_node} + i"
    if not plan.kinds:
        return [first]
    kind = plan.kinds[0]
    gpus = planning.gpus_of_a_node(plan)
    cores = kind.cores if plan.grant.tasks is None else max(1, plan.grant.tasks // kind.threads_per_core)
    machine = [Core((number,)) for number in range(cores)]
    layout = rule_triple.lay_out(triple.per_node, triple.threads, machine, [None] * gpus)
    lines = [f"on a node such as {kind.nodes[0]} ({cores} cores, {gpus} GPUs); {first}:"]
    for place in layout.places[:ROWS]:
        gpu = "no GPU" if place.gpu is None else f"GPU {place.gpu}"
        span = f"{place.cpus[0]}-{place.cpus[-1]}" if len(place.cpus) > 1 else f"{place.cpus[0]}"
        lines.append(f"  {place.local:4}  {gpu}, cores {span}, {place.threads} threads")
    return [*lines, f"  ... {triple.per_node} in all"] if triple.per_node > ROWS else lines


# ---- --local ----


def _local(run: Run, triple: Triple, tasks: Tasks, wishes: submission.Wishes, *, dry_run: bool) -> int:
    here = planning.plan_here(run, triple, tasks, wishes)
    if dry_run:
        print(submission.local_script(f"{run.cwd}/LLSUB.<n>", sys.executable, is_together=run.together))
        _show_ranks(here.run)
        if here.run.pack is not None:
            _show_packing(here.run, packed_dry_run.preview_here(here, tasks), here.notes)
        return names.EXIT_OK
    folder = submitting.make_here(here.run, tasks)
    print(f"{_how_many(here.run)}; logs are in {folder}")
    _say_notes(here.notes)
    return submitting.become_launcher(folder, here.gpu_limit, os.environ)


# ---- --resume ----


def _resume(folder: Path, wishes: submission.Wishes, arguments: argparse.Namespace) -> int:
    asked = submitting.Resume(
        retries=arguments.retries,
        oom_retries=arguments.oom_retries,
        max_failures=arguments.max_failures,
        env=arguments.env,
        dry_run=arguments.dry_run,
    )
    found = submitting.resume(folder, wishes, asked, OUTPUT)
    print(found.sentence if found.job is None else f"job {found.job}: {found.sentence}")
    if found.launcher_environ is not None and not arguments.dry_run:
        return submitting.become_launcher(folder, None, found.launcher_environ)
    return _watch(folder, found.job) if found.job is not None and arguments.wait else names.EXIT_OK
