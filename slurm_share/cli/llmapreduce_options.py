"""The options of `llmapreduce`: LLSC's, with their meanings, and ours."""

from __future__ import annotations

import argparse
import difflib
import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ..core import version
from ..core.errors import UsageError, shown
from ..triples import DISTRIBUTIONS, Request, Triple, log_counts, map_planning, mapreduce, triple


class _Parser(argparse.ArgumentParser):
    """A parser that prints errors as the other commands do."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see llmapreduce -h")


def parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    top = _Parser(
        prog="llmapreduce",
        description="Runs a mapper over every file of a folder, or every line of a list, in one job; then a reducer.",
        epilog="true and false are LLSC's way of writing switches: --keep=true.",
        allow_abbrev=False,
    )
    add = top.add_argument
    version.add_to(top)
    add("--mapper", metavar="PROGRAM", help="called with `input output`, or the words of the list's line")
    add("--input", metavar="FOLDER|LIST", help="a folder of files, or a text file with an input on each line")
    add("--output", metavar="FOLDER", help="where the outputs go; it is made if it is not there")
    add("--np", metavar="N|[NODES,PER_NODE,THREADS]", help="processes at once (default: what you may have)")
    add("--ndata", metavar="K", help="inputs a process, instead of --np")
    add("--distribution", default="block", metavar="|".join(DISTRIBUTIONS), help="of inputs to processes")
    add("--apptype", default="siso", metavar="siso|mimo", help="mimo: one start a process, with a file of pairs")
    add("--reducer", metavar="PROGRAM", help="called with OUTPUT REDOUT REDARGS when every map task is done")
    add("--redargs", default="", metavar="WORDS", help="further arguments of the reducer, in one string")
    add("--redout", default="llmapreduce.out", metavar="FILE", help="the reducer's output (default: %(default)s)")
    add("--changeDepMode", default="false", metavar="true|false", help="reduce whatever became of the map")
    add("--prefix", default="", metavar="TEXT", help="put before the outputs' names")
    add("--ext", default="out", metavar="EXT|noext", help="put after them (default: %(default)s)")
    add("--delimeter", "--delimiter", dest="delimiter", default=".", metavar="TEXT", help="before the extension")
    add("--subdir", default="false", metavar="true|false", help="search the input's sub-folders, and keep their tree")
    add("--extSearch", metavar="EXT", help="with --subdir=true: only files that end so")
    add("--keep", default="false", metavar="true|false", help="keep the temporary folder with scripts and logs")
    add("--tempdir", metavar="FOLDER", help=f"in the place of {map_planning.PREFIX}.<n>")
    add("--exclusive", default="false", metavar="true|false", help="nodes for this job alone")
    add("--cpuType", metavar="FEATURE", help="nodes with this feature (sbatch --constraint)")
    add("--partition", metavar="NAME")
    add("--gpuNameCount", metavar="NAME:COUNT", help="GPUs: of each process, or, with a triple, of each node")
    add("--slotsPerTask", default="1", metavar="N", help="cores of each process")
    add(
        "--slotsPerTaskType", default="1", metavar="1|2|3", help="slotsPerTask is of: 1 map, 2 map and reduce, 3 reduce"
    )
    add("--reservation", metavar="NAME")
    add("--options", default="", metavar="WORDS", help="further options of sbatch, in one string")
    add("--share-gpu", metavar="N[,...]", help="tasks on each GPU, as with sbatch")
    add("--retries", default="0", metavar="K", help="start a map task that failed up to K times again")
    add("--progress", metavar="REGEX", help="the number in a map task's log that says how much it has done, in a group")
    add("--window", default="30", metavar="SECONDS", help="over which the rates of tasks are measured (default: 30)")
    add("--local", action="store_true", help="run here, in the foreground, without a scheduler")
    add("--wait", action="store_true", help="return when all is done, with 0 if it went well")
    add("--dry-run", action="store_true", help="say what would be submitted, and make nothing")
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
    for name, known in (("distribution", DISTRIBUTIONS), ("apptype", ("siso", "mimo"))):
        if getattr(found, name) not in known:
            raise UsageError(f"--{name}={shown(getattr(found, name))}: write {' or '.join(known)}")
    subdir = mapreduce.boolean("--subdir", found.subdir)
    if found.extSearch is not None and not subdir:
        raise UsageError("--extSearch is for a search in sub-folders; write --subdir=true as well")
    return Request(
        mapper=_program("--mapper", found.mapper),
        input=_whole(found.input),
        output=_whole(found.output),
        reducer=None if found.reducer is None else _program("--reducer", found.reducer),
        redargs=found.redargs,
        redout=_whole(found.redout),
        np=None if found.np is None else _np(found.np),
        ndata=None if found.ndata is None else mapreduce.count("--ndata", found.ndata),
        distribution=found.distribution,
        apptype=found.apptype,
        naming=_naming(found),
        subdir=subdir,
        extension=found.extSearch,
        keep=mapreduce.boolean("--keep", found.keep),
        tempdir=None if found.tempdir is None else _whole(found.tempdir),
        whatever=mapreduce.boolean("--changeDepMode", found.changeDepMode),
        wish=mapreduce.Wish(
            partition=found.partition,
            constraint=found.cpuType,
            reservation=found.reservation,
            gpus=None if found.gpuNameCount is None else mapreduce.gpus(found.gpuNameCount),
            slots=mapreduce.count("--slotsPerTask", found.slotsPerTask),
            slots_type=mapreduce.slots_type(found.slotsPerTaskType),
            exclusive=mapreduce.boolean("--exclusive", found.exclusive),
            share=found.share_gpu,
            options=_split_option("--options", found.options),
        ),
        retries=0 if found.retries == "0" else mapreduce.count("--retries", found.retries),
        progress=_progress(found.progress),
        window_s=log_counts.parse_window(found.window, "--window"),
        local=found.local,
        dry_run=found.dry_run,
        wait=found.wait,
    )


def _progress(text: str | None) -> str:
    return "" if text is None else log_counts.parse_pattern(text, "--progress").pattern


def _unknown(argument: str, parser: argparse.ArgumentParser) -> str:
    name = argument.partition("=")[0]
    if not name.startswith("-"):
        return f"{shown(argument)} belongs to no option; write --option=VALUE"
    known = [option for action in parser._actions for option in action.option_strings]
    lowered = {option.lower(): option for option in known}
    near = difflib.get_close_matches(name.lower(), lowered, n=1)
    meant = f"did you mean {lowered[near[0]]}?" if near else "see llmapreduce -h"
    return f"there is no option {shown(name)}; {meant}"


def _program(option: str, text: str) -> str:
    """The program's whole path: a file here, as LLSC's examples name theirs, or one of the search path."""
    path = Path.cwd() / text
    found = str(path) if "/" in text or path.is_file() else shutil.which(text)
    if found is None or not Path(found).is_file():
        raise UsageError(f"{option}: there is no program {shown(text)}; see its name")
    if not os.access(found, os.X_OK):
        raise UsageError(f"{option}: {found} may not be executed; write chmod u+x {shlex.quote(found)}")
    return _whole(found)


def _whole(path: str) -> str:
    """Links stay as they are: where a link leads may have another name on the nodes."""
    return os.path.abspath(path)  # noqa: PTH100


def _np(text: str) -> int | Triple:
    if text.startswith("[") or "," in text:
        return triple.parse(text)
    return mapreduce.count("--np", text)


def _naming(found: argparse.Namespace) -> mapreduce.Naming:
    for option, text in (("prefix", found.prefix), ("ext", found.ext), ("delimeter", found.delimiter)):
        if "/" in text or "\0" in text:
            raise UsageError(f"--{option}={shown(text)}: a file's name has no slash in it")
    return mapreduce.Naming(found.prefix, found.ext, found.delimiter)


def _split_option(option: str, text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"{option}={shown(text)}: not words as a shell knows them ({error})") from error
