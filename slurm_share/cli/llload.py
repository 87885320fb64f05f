"""`llload` (LLSC's LLload): show the load of the caller's nodes, and advise how many processes to run on them."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import gc
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
from msgspec.structs import replace as changed

from ..core import config, names, terminal
from ..core.command import EXIT_FAILED, enter
from ..core.errors import CommandError, SlurmShareError, UsageError, shown
from ..core.installed import version
from ..core.parser import Parser
from ..load import (
    Advice,
    AdviceReport,
    Advisor,
    Origin,
    Survey,
    SurveySource,
    View,
    choice,
    idle,
    is_color_wanted,
    notes,
    options,
    origin,
    recording,
    snapshot,
    table,
)
from ..load import figures as numbers
from ..load import text as load_text
from . import llload_watch

PROGRAM = "llload"
TIMEOUT_S = 15.0
"""The longest that one survey may take. A step on another node starts in a second; a dead node never answers."""
WATCH_S = 5.0
"""Default interval of --watch: that of an agent's samples."""
REPLAY_S = 1.0
EXAMPLES = """\
columns
  CORES - USED = FREE    used: Slurm gave the CPU to a job
  LOAD                   load average of 5 minutes
  MEMORY - USED = FREE   measured, without page cache; GB is 2^30 bytes
  GPUS - USED = FREE     used: Slurm gave the GPU, or a part of it, to a job
  LOAD                   sum over the GPUs; 2.0: two GPUs are fully busy. It is
                         the SM activity if the driver reports it, else the
                         utilisation: the mean of 5 minutes, or of the shorter
                         time that the last lines name
  GPUMEM - USED = FREE   memory of all GPUs of the node
  NOTE                   cL, cH: low, high CPU load of the used cores (below 50,
                         above 150 %); gL, gH: low, high load of the used GPUs
                         (below 50, above 100 %); iL: a GPU that a job holds is
                         idle (below 5 % for 10 minutes, as measured by agent,
                         Prometheus or --watch); m!: host memory is full;
                         mH: processes were killed for lack of it; v!: the
                         memory of a GPU is full; n!: a problem, or no answer
  ?: not known (1.20?: the sum without GPUs of unknown load). -: none. On a
  narrow terminal some columns are left out, and the last line names them.

examples
  llload -g                      my nodes, with their GPUs
  llload -g --watch              repeated every 5 seconds, until q
  llload --advise                how many processes to run, and why
  llload -g --all -t 10          the ten fullest nodes (operators)
  llload --all --flagged         nodes with a flag, jobs with idle GPUs
  llload -g --sort gpus_idle:desc  most idle GPUs first
  llload -g --demo               a simulated cluster, without Slurm
  llload --record day.jsonl.gz --watch 60 > /dev/null &
  llload -g --replay day.jsonl.gz --at 14:30

exit codes
  0 done, 1 Slurm or all nodes did not answer, or the recording failed,
  2 invalid request.
"""


def parser() -> Parser:
    """Return the parser of the command's options."""
    parser = Parser(
        prog=PROGRAM,
        description="Show the load of the nodes that your jobs run on, one line for each node.",
        epilog=EXAMPLES,
        allow_abbrev=False,
    )
    parser.word_advice = (
        f"write {PROGRAM} -n {{}} for a node, {PROGRAM} -j {{}} for a job, {PROGRAM} -u {{}} for a user"
    )
    parser.add_version()
    add = parser.add_argument_group("contents").add_argument
    add("-g", "--gpu", action="store_true", help="add the GPUs of each node")
    add("--detail", action="store_true", help="add a line for each GPU, and the jobs")
    add("--processes", action="store_true", help="add the processes on the GPUs")
    add(
        "--advise",
        nargs="?",
        const="",
        metavar="JOB",
        help="print how many processes a node should run, and why: for this job (default: all my jobs)",
    )
    add = options.add_which(parser, nodes="these nodes with all their jobs, such as n[1-3,7]").add_argument
    add("-t", "--top", metavar="N", help="the N nodes with the highest CPU load per CPU, or the first N by --sort")
    add("--flagged", action="store_true", help="nodes with low or high load, or with a problem")
    add(
        "--sort",
        metavar="COLUMN",
        help="sort by hostname, cores_used, load, gpu_load, gpumem_free ...; COLUMN:desc: highest first",
    )
    form = parser.add_argument_group("format")
    add = form.add_mutually_exclusive_group().add_argument
    add("-q", "--quiet", action="store_true", help="print only the lines of the nodes, for a log")
    add(
        "--json",
        action="store_true",
        help="print JSON with all fields; unknown values are null (--watch: a line per survey)",
    )
    add(
        "--tsv",
        action="store_true",
        help="print raw numbers, tab-separated: a row per node, GPU (--detail) or process (--processes)",
    )
    add("--csv", action="store_true", help="the same as --tsv with commas, for a spreadsheet")
    add("--plain", action="store_true", help="print `label: value`, for a screen reader")
    add = form.add_argument
    add("--watch", nargs="?", const="", metavar="S", help="repeat every S seconds (default: 5) until q or Ctrl-C")
    add("--no-color", action="store_true", help="print no colours, as with NO_COLOR or TERM=dumb")
    replay = "show the last survey of a recording, or all of them (--watch)"
    add = options.add_origin(parser, replay=replay).add_argument
    add("--record", metavar="FILE", type=Path, help="append every survey to a file (.gz: compressed)")
    add("--demo-nodes", metavar="N", help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run `llload` and return its exit code."""
    arguments = parser().parse_args(argv)
    if argv is None and arguments.watch is None:
        # The process ends after one survey: half a million records for 10,000 nodes, without reference cycles.
        gc.disable()
    return enter(PROGRAM, lambda: print_load(arguments))


def print_load(arguments: argparse.Namespace) -> int:
    """Read a survey and print it; return 1 if no node answered. Raises UsageError, SlurmShareError."""
    wanted = checked(arguments)
    if arguments.advise is not None:
        idle_options = [f"--{one}" for one in ("gpu", "detail", "processes", "flagged", "sort", "top")
                        if getattr(arguments, one)]  # fmt: skip
        if idle_options:
            print(f"{PROGRAM}: {', '.join(idle_options)} ignored: --advise is for jobs, not for nodes", file=sys.stderr)
    settings = config.load().settings
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(contextlib.closing(origin.open_survey_source(wanted.origin, settings)))
        recorder = recording.Recorder(arguments.record)
        stack.callback(recorder.close)
        read = SurveyReading(source, recorder)
        try:
            code = _watched(read, wanted) if wanted.origin.interval_s is not None else _once(read, wanted)
        except CommandError as error:
            if error.code is not None:
                raise
            # The command did not start: there is no Slurm on this machine.
            here = f"{PROGRAM} --source local shows this machine, {PROGRAM} --demo a simulated cluster"
            raise SlurmShareError(f"{error}; without Slurm {here}") from error
        return code or (EXIT_FAILED if recorder.failure else names.EXIT_OK)


class LlloadArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The parsed command line."""

    arguments: argparse.Namespace
    origin: Origin
    chosen: choice.SurveyChoice
    """Which nodes are shown, and in which order."""


# --- Options ----------------------------------------------------------------------------------------------------------


def checked(arguments: argparse.Namespace) -> LlloadArguments:
    """Return the checked options. Raises UsageError for an invalid value, or options that exclude one another."""
    if arguments.at is not None and arguments.replay is None:
        raise UsageError("--at is the time of a recording; name one with --replay FILE")
    if arguments.at is not None:
        origin.moment(arguments.at, 0.0)
    if arguments.record is not None and arguments.replay is not None:
        raise UsageError("--record and --replay exclude one another: a recording is copied with cp")
    if arguments.replay is not None and (arguments.user or arguments.job or arguments.all):
        raise UsageError("-u, -j and --all select what is recorded and cannot be used with --replay; -n and --sort can")
    if arguments.demo_nodes is not None and not arguments.demo:
        raise UsageError("--demo-nodes is the size of the demonstration; write --demo as well")
    details = [f"--{option}" for option in ("detail", "processes") if getattr(arguments, option)]
    if arguments.quiet and details:
        raise UsageError(f"-q prints one line per node and nothing else; leave out -q, or {details[0]}")
    if (arguments.tsv or arguments.csv) and len(details) > 1:
        raise UsageError("a row is a GPU (--detail) or a process (--processes); write one of them")
    job = arguments.job
    if arguments.advise is not None:
        for option in ("quiet", "tsv", "csv", "plain"):
            if getattr(arguments, option):
                raise UsageError(f"--advise is for jobs; --{option} shows nodes")
        if arguments.advise and job:
            raise UsageError("name the job once: --advise JOB, or -j JOB --advise")
        job = arguments.advise or job
    # Only for a line per node of the whole cluster the rest is left out, which is most of the cost of a survey.
    more = ("detail", "processes", "flagged", "json", "tsv", "csv", "nodes", "job", "record")
    read = Origin(
        user=options.user(arguments.user, demo=arguments.demo),
        everybody=arguments.all,
        nodes=options.nodes(arguments.nodes),
        jobs=options.jobs(job),
        details=not arguments.all or arguments.advise is not None or any(getattr(arguments, one) for one in more),
        source=arguments.source or "",
        demo=arguments.demo,
        demo_nodes=options.count("--demo-nodes", arguments.demo_nodes) or origin.DEMO_NODES,
        replay=None if arguments.replay is None else str(arguments.replay),
        at=arguments.at,
        waiting=arguments.record is not None,
        interval_s=None if arguments.watch is None else _seconds(arguments),
    )
    chosen = choice.SurveyChoice(
        nodes=() if arguments.replay is None else read.nodes,  # a cluster's source reads only these
        flagged=arguments.flagged,
        sort=None if arguments.sort is None else _sort(arguments.sort),
        top=options.count("-t", arguments.top),
    )
    return LlloadArguments(arguments=arguments, origin=read, chosen=chosen)


def _seconds(arguments: argparse.Namespace) -> float:
    if not arguments.watch:
        return REPLAY_S if arguments.replay is not None else WATCH_S
    return options.seconds("--watch", arguments.watch)


def _sort(text: str) -> tuple[str, bool]:
    column, _, way = text.lower().replace("-", "_").partition(":")
    known = [numbers.HOSTNAME, *numbers.COLUMNS]
    if column not in known:
        near = difflib.get_close_matches(column, known, 1)
        mean = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"--sort {shown(text) or repr(text)}: {mean}Columns are {', '.join(known)}")
    if way not in ("", "asc", "desc"):
        raise UsageError(f"--sort {shown(text)}: write asc or desc after the colon")
    return column, way == "desc"


# --- Source -----------------------------------------------------------------------------------------------------------


class SurveyReading:
    """A source of surveys that also records them and judges which GPUs are idle."""

    def __init__(self, source: SurveySource, recorder: recording.Recorder) -> None:
        self.source = source
        self.recorder = recorder
        self._said = False

    @property
    def is_over(self) -> bool:
        """Return whether the source has ended; only a recording ends."""
        return bool(getattr(self.source, "is_over", False))

    def __call__(self, timeout_s: float) -> Survey:
        survey = self.source.read(timeout_s)
        self.recorder.keep(survey)
        if self.recorder.failure:
            if not self._said:
                print(f"{PROGRAM}: {self.recorder.failure}", file=sys.stderr)
                self._said = True
            survey = changed(survey, notes=(*survey.notes, self.recorder.failure))
        return idle.judged(survey)


# --- Showing ----------------------------------------------------------------------------------------------------------


def _once(read: SurveyReading, wanted: LlloadArguments) -> int:
    survey = read(TIMEOUT_S)
    terminal.print_lines(lines_of(survey, wanted, terminal.width(), advisor=Advisor()))
    return EXIT_FAILED if survey.nodes and not survey.answered else names.EXIT_OK


def _watched(read: SurveyReading, wanted: LlloadArguments) -> int:
    assert wanted.origin.interval_s is not None
    arguments = wanted.arguments
    for_programs = arguments.json or arguments.tsv or arguments.csv or arguments.quiet
    advisor = CachedAdvisor(Advisor())

    def draw(survey: Survey, width: int, height: int | None, first: bool) -> Iterable[str]:
        if arguments.quiet:  # for a log: every line begins with the time
            when = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(survey.taken))
            room = max(1, width - len(when) - 1)
            found = lines_of(survey, wanted, room, advisor=advisor, height=height, first=first)
            return [f"{when} {line}" for line in found]
        return lines_of(survey, wanted, width, advisor=advisor, height=height, first=first)

    every_s = wanted.origin.interval_s
    return llload_watch.watch(read, draw, every_s=every_s, timeout_s=TIMEOUT_S, for_people=not for_programs)


def _as_json(document: Survey | AdviceReport, wanted: LlloadArguments) -> list[str]:
    """Return a record as JSON: on one line with --watch, else indented."""
    data = snapshot.render(document)
    return [(data if wanted.origin.interval_s is not None else msgspec.json.format(data, indent=2)).decode()]


Advise = Callable[[Survey], tuple[Advice, ...]]


class CachedAdvisor:
    """An advisor that is asked once per survey, although a resized terminal draws the survey again."""

    def __init__(self, advisor: Advise) -> None:
        self._advisor = advisor
        self._taken: float | None = None
        self._found: tuple[Advice, ...] = ()

    def __call__(self, survey: Survey) -> tuple[Advice, ...]:
        if survey.taken != self._taken:
            self._taken, self._found = survey.taken, self._advisor(survey)
        return self._found


def lines_of(
    survey: Survey,
    wanted: LlloadArguments,
    width: int,
    *,
    advisor: Advise,
    height: int | None = None,
    first: bool = True,
) -> Iterator[str]:
    """Yield the survey as lines in the wanted form. `first`: with the headings of TSV and CSV, which appear once in a
    file."""
    arguments = wanted.arguments
    if arguments.advise is not None:
        yield from _advice(survey, wanted, width, advisor, first=first)
        return
    chosen, why = choice.choose(survey, wanted.chosen)
    if arguments.json:
        yield from _as_json(changed(chosen, version=version()), wanted)
        return
    if arguments.tsv or arguments.csv:
        from ..load import values  # the table of nodes does not need it

        form = values.as_tsv if arguments.tsv else values.as_csv
        row_of: values.Of = "processes" if arguments.processes else "gpus" if arguments.detail else "nodes"
        if row_of == "processes":
            _check_processes(chosen)
        yield from form([values.HEADINGS[row_of]] if first else [])
        yield from form(values.rows(chosen, row_of))
        return
    view = View(
        gpus=arguments.gpu or arguments.detail,
        detail=arguments.detail,
        jobs=arguments.detail or arguments.nodes is not None,
        processes=arguments.processes,
        quiet=arguments.quiet,
        color=is_color_wanted(never=arguments.no_color, terminal=sys.stdout.isatty()),
        chosen=why,
        whole=survey,
        if_empty=_if_empty(survey, wanted),
    )
    if view.gpus and not survey.everybody and not arguments.quiet:
        view = replace(view, advice=advisor(survey))
    if arguments.plain:
        from ..load import plain

        yield from plain.as_plain(chosen, view)
    else:
        yield from table.fitted(chosen, view, width, height)


def _check_processes(survey: Survey) -> None:
    """Raise UsageError if no node's source keeps processes: no row would say that none runs."""
    whys = {node.snapshot.unknown.get("processes") for node in survey.nodes if node.snapshot is not None}
    if whys and None not in whys:
        raise UsageError(f"--processes has no rows: the processes are not known ({whys.pop()})")


def _if_empty(survey: Survey, wanted: LlloadArguments) -> tuple[str, ...]:
    """Return why no node is shown, and what to do about it."""
    if survey.nodes:
        return ("no node is flagged: all that answered are within the bands of good load",)
    if survey.everybody:
        return ("no node has a GPU or a job",)
    who = "you have" if wanted.arguments.user is None else f"{terminal.safe(wanted.origin.user)} has"
    where = f" on {load_text.fold(wanted.origin.nodes)}" if wanted.origin.nodes else ""
    return (
        f"{who} no job running{where}; llsub ./task.sh [1,4] or sbatch starts one, llstat shows waiting jobs, llfree "
        "free nodes, and llload -g --demo an example of this output",
        *(terminal.safe(note) for note in survey.notes),
    )


def _advice(survey: Survey, wanted: LlloadArguments, width: int, advisor: Advise, *, first: bool) -> list[str]:
    if wanted.arguments.replay is not None:
        survey = choice.of_jobs(choice.choose(survey, wanted.chosen)[0], wanted.origin.jobs, must_be=first)
    found = tuple(notes.in_order(advisor(survey)))
    if wanted.arguments.json:
        report = AdviceReport(
            version=version(),
            taken=survey.taken,
            cluster=survey.cluster,
            user=survey.user,
            source=survey.source,
            advice=found,
            notes=survey.notes,
        )
        return _as_json(report, wanted)
    lines = notes.header(survey, View(), width)
    if not found:
        said = ["no running job to advise on"] if survey.nodes else _if_empty(survey, wanted)
        return [*lines, *load_text.wrapped(said, width)]
    return [*lines, *notes.advice_lines(found, width)]


if __name__ == "__main__":
    sys.exit(main())
