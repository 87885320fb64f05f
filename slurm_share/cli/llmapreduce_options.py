"""The options of `llmapreduce`: those of LLSC, and our own."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ..core.errors import UsageError, shown
from ..core.parser import Parser
from ..share import option as share_option
from ..triples import DISTRIBUTIONS, Request, Triple, checkpoint, log_counts, map_planning, mapreduce, triple

REDOUT = "llmapreduce.out"


class _MapReduceParser(Parser):
    """A parser that raises UsageError for errors."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see llmapreduce -h")


def parser() -> Parser:
    top = _MapReduceParser(
        prog="llmapreduce",
        description="Run a mapper over every file of a folder, or every line of a list, in one job; then a reducer.",
        epilog="Write switches with true or false, as in --keep=true.",
        formatter_class=argparse.HelpFormatter,
        allow_abbrev=False,
    )
    add = top.add_argument
    top.add_version()
    add("--mapper", metavar="PROGRAM", help="program called with `input output`, or the arguments in the list's line")
    add("--input", metavar="FOLDER|LIST", help="a folder of files, or a text file with an input on each line")
    add("--output", metavar="FOLDER", help="folder for the outputs; it is created if it does not exist")
    add("--np", metavar="N|[NODES,PER_NODE,THREADS]", help="processes at once (default: as many as you may have)")
    add("--ndata", metavar="K", help="inputs per process, instead of --np")
    add("--distribution", default="block", metavar="|".join(DISTRIBUTIONS), help="how inputs are assigned to processes")
    add(
        "--apptype",
        default="siso",
        metavar="siso|mimo",
        help="siso: start the mapper for each input; mimo: once per process, with a file of pairs",
    )
    add("--reducer", metavar="PROGRAM", help="called with OUTPUT REDOUT REDARGS when every map task is done")
    add("--redargs", metavar="ARGUMENTS", help="further arguments of the reducer, in one string")
    add("--redout", metavar="FILE", help=f"output of the reducer (default: {REDOUT})")
    add("--changeDepMode", default="false", metavar="true|false", help="run the reducer even if map tasks fail")
    add("--prefix", default="", metavar="TEXT", help="prefix of the names of outputs")
    add("--ext", default="out", metavar="EXT|noext", help="extension of the names of outputs (default: %(default)s)")
    add("--delimeter", "--delimiter", dest="delimiter", default=".", metavar="TEXT", help="text before the extension")
    add("--subdir", default="false", metavar="true|false", help="also map files in sub-folders, and keep their tree")
    add("--extSearch", metavar="EXT", help="with --subdir=true: only files with this extension")
    add("--keep", default="false", metavar="true|false", help="keep the temporary folder with scripts and logs")
    add("--tempdir", metavar="FOLDER", help=f"temporary folder (default: {map_planning.PREFIX}.<n>)")
    add("--exclusive", default="false", metavar="true|false", help="use whole nodes, without other jobs")
    add("--cpuType", metavar="FEATURE", help="nodes with this feature (sbatch --constraint)")
    add("--partition", metavar="NAME", help="partition of the jobs")
    add("--gpuNameCount", metavar="NAME:COUNT", help="GPUs of each process or, with a triple, of each node")
    add("--slotsPerTask", default="1", metavar="N", help="cores of each process")
    add(
        "--slotsPerTaskType",
        default="1",
        metavar="1|2|3",
        help="what --slotsPerTask applies to: 1 map, 2 map and reduce, 3 reduce",
    )
    add("--reservation", metavar="NAME", help="reservation of the jobs")
    add("--options", default="", metavar="OPTIONS", help="further options of sbatch, in one string")
    add("--share-gpu", metavar="N[,...]", help="tasks on each GPU, as for sbatch")
    add("--sharing", choices=share_option.SHARING_WORDS, help="how the tasks of a GPU share it, as for llsub")
    add("--retries", default="0", metavar="K", help="run a failed map task again, up to K times")
    add(
        "--checkpoint-signal",
        metavar="SIGNAL[@SECONDS]",
        help="signal, such as USR1, on which map tasks save their state and end (exit code 75); Slurm sends it "
        "SECONDS before the time limit, and llsub --resume goes on",
    )
    add(
        "--progress",
        metavar="REGEX",
        help="regular expression for progress in a map task's log, with one group for the number",
    )
    add(
        "--window",
        default="30",
        metavar="SECONDS",
        help="length of the windows in which rates are measured (default: 30)",
    )
    add("--local", action="store_true", help="run on this machine, in the foreground, without a scheduler")
    add("--wait", action="store_true", help="wait until all jobs have ended; exit 0 if all tasks are done")
    add("--parsable", action="store_true", help="print only the id of the last job on standard output")
    add("--dry-run", action="store_true", help="print the commands, but create and submit nothing")
    return top


def read(argv: Sequence[str]) -> Request:
    """Parse the command line into a Request. Raises UsageError for invalid options."""
    options = parser()
    found, unknown = options.parse_known_args(argv)
    if unknown:
        raise UsageError(_unknown(unknown[0], options))
    for name in ("mapper", "input", "output"):
        if not getattr(found, name):
            raise UsageError(f"--{name} is missing; write llmapreduce --mapper=PROGRAM --input=FOLDER --output=FOLDER")
    for name in ("redout", "tempdir", "partition"):
        if getattr(found, name) == "":
            raise UsageError(f"--{name} has an empty value; write one, or leave it out (is a shell variable not set?)")
    for name, known in (("distribution", DISTRIBUTIONS), ("apptype", ("siso", "mimo"))):
        if getattr(found, name) not in known:
            raise UsageError(f"--{name}={shown(getattr(found, name))}: write {' or '.join(known)}")
    subdir = _boolean("--subdir", found.subdir)
    if found.extSearch is not None and not subdir:
        raise UsageError("--extSearch needs --subdir=true; write that too")
    saved_on = None if found.checkpoint_signal is None else checkpoint.parse(found.checkpoint_signal)
    checkpoint.check(saved_on, is_moving=False)
    return Request(
        mapper=_program("--mapper", found.mapper),
        input=_absolute(found.input),
        output=_absolute(found.output),
        reducer=None if found.reducer is None else _program("--reducer", found.reducer),
        redargs=found.redargs or "",
        redout=_absolute(found.redout or REDOUT),
        np=None if found.np is None else _np(found.np),
        ndata=None if found.ndata is None else _count("--ndata", found.ndata),
        distribution=found.distribution,
        apptype=found.apptype,
        naming=_naming(found),
        subdir=subdir,
        extension=found.extSearch,
        keep=_boolean("--keep", found.keep),
        tempdir=None if found.tempdir is None else _absolute(found.tempdir),
        whatever=_boolean("--changeDepMode", found.changeDepMode),
        wish=mapreduce.MapSbatchOptions(
            partition=found.partition,
            constraint=found.cpuType,
            reservation=found.reservation,
            gpus=None if found.gpuNameCount is None else _gpus(found.gpuNameCount),
            slots=_count("--slotsPerTask", found.slotsPerTask),
            slots_type=_slots_type(found.slotsPerTaskType),
            exclusive=_boolean("--exclusive", found.exclusive),
            share=share_option.with_sharing(found.share_gpu, found.sharing),
            signal=None if saved_on is None else saved_on.sbatch_value,
            options=mapreduce.words("--options", found.options),
        ),
        retries=_count("--retries", found.retries, least=0),
        progress=log_counts.parse_pattern(found.progress, "--progress").pattern if found.progress is not None else "",
        window_s=log_counts.parse_window(found.window, "--window"),
        checkpoint_signal=None if saved_on is None else int(saved_on.signal),
        local=found.local,
        dry_run=found.dry_run,
        wait=found.wait,
        parsable=found.parsable,
        notes=_without_effect(found, options),
    )


_OF_THE_REDUCER = ("redargs", "redout", "changeDepMode")
_OF_A_FOLDER = ("subdir", "extSearch")
_OF_SLURM = ("exclusive", "cpuType", "partition", "reservation", "options")
_OF_THE_JOB = ("wait", "parsable")


def _without_effect(found: argparse.Namespace, options: argparse.ArgumentParser) -> tuple[str, ...]:
    """Return sentences about options that were written and have no effect."""

    def written(names: Sequence[str]) -> list[str]:
        return [f"--{name}" for name in names if getattr(found, name) != options.get_default(name)]

    notes = []
    if found.reducer is None:
        notes.append((written(_OF_THE_REDUCER), "there is no --reducer"))
        if found.slotsPerTaskType == "3":
            notes.append((written(["slotsPerTask"]), "--slotsPerTaskType=3 is for the reducer, and there is none"))
    if Path(found.input).is_file():
        notes.append((written(_OF_A_FOLDER), "--input is a list"))
    if found.ext == mapreduce.NO_EXTENSION:
        notes.append((written(["delimiter"]), "the outputs have no extension"))
    if found.local:
        notes.append((written(_OF_SLURM), "--local runs here, without Slurm"))
        notes.append((written(_OF_THE_JOB), "--local runs in the foreground"))
    elif map_planning.is_inside_a_task():
        notes.append((written(_OF_SLURM), "a map that a task starts runs on the cores and the GPU of that task"))
        notes.append((written(_OF_THE_JOB), "a map that a task starts runs in the foreground"))
    elif found.dry_run:
        notes.append((written(_OF_THE_JOB), "--dry-run submits nothing"))
    return tuple(f"{' and '.join(names)} ignored: {why}" for names, why in notes if names)


def _unknown(argument: str, parser: argparse.ArgumentParser) -> str:
    name = argument.partition("=")[0]
    if not name.startswith("-"):
        return f"{shown(argument)} is not part of an option; write --option=VALUE"
    known = [option for action in parser._actions for option in action.option_strings]
    lowered = {option.lower(): option for option in known}
    near = difflib.get_close_matches(name.lower(), lowered, n=1)
    meant = f"did you mean {lowered[near[0]]}?" if near else "see llmapreduce -h"
    return f"there is no option {shown(name)}; {meant}"


def _program(option: str, text: str) -> str:
    """Return the absolute path of a program: a file in the working folder, as in LLSC's examples, or in PATH."""
    path = Path.cwd() / text
    found = str(path) if "/" in text or path.is_file() else shutil.which(text)
    if found is None or not Path(found).is_file():
        if path.is_dir():
            raise UsageError(f"{option}: {shown(text)} is a folder; write a program")
        words = text.split()
        is_call = len(words) > 1 and (Path(words[0]).is_file() or shutil.which(words[0]) is not None)
        hint = "write the program without arguments, and put these into a script" if is_call else "check its name"
        raise UsageError(f"{option}: there is no program {shown(text)}; {hint}")
    if not os.access(found, os.X_OK):
        raise UsageError(f"{option}: {found} is not executable; run chmod u+x {shlex.quote(found)}")
    return _absolute(found)


def _absolute(path: str) -> str:
    """Return the absolute path without resolving links, because their targets may have other paths on the nodes."""
    return os.path.abspath(path)  # noqa: PTH100


def _slots_type(text: str) -> int:
    """Parse --slotsPerTaskType. Raises UsageError."""
    if text not in ("1", "2", "3"):
        raise UsageError(f"--slotsPerTaskType={shown(text)}: write 1 (map), 2 (map and reduce) or 3 (reduce)")
    return int(text)


def _boolean(option: str, text: str) -> bool:
    """Parse true or false, in any case of letters. Raises UsageError."""
    if text.lower() not in ("true", "false"):
        raise UsageError(f"{option}={shown(text)}: write {option}=true or {option}=false")
    return text.lower() == "true"


def _count(option: str, text: str, least: int = 1) -> int:
    """Parse a whole number of at least `least`. Raises UsageError."""
    if not re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) or int(text) < least:
        raise UsageError(f"{option}={shown(text)}: write a whole number from {least} to 999999999")
    return int(text)


def _gpus(text: str) -> str:
    """Return --gpuNameCount as Slurm writes it: NAME:COUNT, or COUNT. Raises UsageError."""
    if not re.fullmatch(r"([A-Za-z0-9_.-]+:)?[1-9][0-9]{0,3}", text, re.ASCII):
        raise UsageError(f"--gpuNameCount={shown(text)}: write NAME:COUNT, e.g. volta:1")
    return text


def _np(text: str) -> int | Triple:
    if text.startswith("[") or "," in text:
        return triple.parse(text)
    return _count("--np", text)


def _naming(found: argparse.Namespace) -> mapreduce.OutputNames:
    for option, text in (("prefix", found.prefix), ("ext", found.ext), ("delimeter", found.delimiter)):
        if "/" in text or "\0" in text:
            raise UsageError(f"--{option}={shown(text)}: this becomes part of file names; remove the slash")
    return mapreduce.OutputNames(found.prefix, found.ext, found.delimiter)
