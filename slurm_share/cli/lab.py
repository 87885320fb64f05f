"""`slurm-share lab`: simulate and score policies of packing, for people who compare them."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ..core import names, terminal
from ..core.errors import UsageError

MISSING = "slurm_share.lab is not installed here; run this where the whole package is"
EPILOG = """\
TRACE is thesis60 or thesis90 (generated from the published tables of
Yousefzadeh 2025), sweep (an invented parameter sweep), the folder of a run
(LLSUB.7), a trace of Gavel's (*.trace), a submission script of CARMA's (*.sh),
a history (*.jsonl), or a published log of a cluster: Philly's cluster_job_log,
Helios' cluster_log.csv, Alibaba's pai_task_table.csv, pai_instance_table.csv
and openb_pod_list*.csv, also as .gz. Such logs contain durations and numbers of
GPUs; memory and activity are drawn, and the report lists the distributions. The
code of `llsub --pack` makes the decisions; GPUs, tasks and time are simulated.

POLICY is gain, booked, exclusive, rr, magm, lug, mug, or one that knows every
size: first-fit, best-fit, worst-fit, oracle-lug. It may be followed, after
commas, by oracle, history (the second run of the same tasks), long, short, book,
smact_max=0.75 or none, free_min=2G or none, max_per_gpu=N; with gain, also
undo=pause or off.

The SM activity of the tasks was never published. Every figure is a median with
its range over this and other assumptions; only a result that holds over the
whole range is a finding.

examples
  slurm-share lab simulate thesis60
  slurm-share lab simulate thesis90 --policy booked --policy lug --runs 10
  slurm-share lab simulate LLSUB.7 --policy booked --gpus 2 --gpu-memory 24G
  slurm-share lab simulate thesis60 --policy booked --picture booked.svg
  slurm-share lab simulate LLSUB.7 --recorded --picture run.svg
  slurm-share lab simulate philly.trace --throughputs simulation_throughputs.json
  slurm-share lab simulate Venus/cluster_log.csv --rows 500 --nodes 8 --runs 3

exit codes
  0 done, 1 the simulation or the picture failed, 2 the command line or the
  trace is wrong.
"""

SCORE = """\
Policies are compared in simulations with data that you give by path. Columns may
stand in any order and have many names; what was understood is printed, and a
field that cannot be used is refused with line and column.

--pairs CSV: speeds of tasks beside each other. A row has two kinds of tasks and a
  figure of each: speed (1 or 100 % as alone), slowdown, or rate or time with one
  alone. Columns of the two are told apart by 1 and 2, or a and b:
    kind_a,kind_b,speed_a,speed_b           bert,resnet,0.61,0.84
    model1,batch1,rate1,alone1,model2,...   all other columns name the kind
  or a row has one kind, its neighbour and its figure; a row without a neighbour
  has the figure alone; or the table is a matrix of kinds. Memory of each, or of both together, is used if there.
  Gavel's matrix of rates (*.json) is read as well: --gpu-model.
--sheet CSV: measured memory of runs: a model, numbers of its command, and the peak
  (in the unit that field or column names: MiB, GB, ...), seconds if there:
    model,batch,image,peak_mib              resnet50,32,224,5260
  Numbers are those of all columns that look so; --numbers names them. The runs
  are a user's history in random order: how often is an estimate enough?
--scripts FOLDER: submission scripts of CARMA's (*.sh with their *.rad), traces of
  Gavel's, histories; each with its arrivals, and all tasks at once.

Every other policy is also compared with exclusive (one task on each GPU) and
with random (booking, and a GPU by chance). HARMFUL: part of the time with several
tasks on a GPU in which they did less than one at a time. COVERED: part of the
estimated attempts that stayed within their size; WASTE: what was reserved beyond
the peak. What data lack (durations, arrivals, activity) is drawn by seed.

examples
  slurm-share lab score --pairs pairs.csv --runs 10
  slurm-share lab score --sheet memory.csv --numbers batch,image --json
  slurm-share lab score --scripts traces/ --policy booked --policy gain,oracle

exit codes
  0 done, 1 the simulation failed, 2 the command line or the data are wrong.
"""


def add_to(commands: Any) -> None:
    """Add the parser of `lab` with its sub-commands."""
    lab: argparse.ArgumentParser = commands.add_parser("lab", help="compare policies of packing in a simulation")
    subcommands = lab.add_subparsers(metavar="COMMAND", required=True)
    parser: argparse.ArgumentParser = subcommands.add_parser(
        "simulate", help="simulate policies on a trace or a recorded run", epilog=EPILOG
    )
    parser.add_argument("trace", metavar="TRACE", help="thesis60, thesis90, sweep, a folder of a run, or a file")
    parser.add_argument(
        "--policy",
        dest="policies",
        action="append",
        default=[],
        metavar="POLICY",
        help="may be repeated (default: exclusive, lug, worst-fit, booked, gain)",
    )
    parser.add_argument("--gpus", type=int, metavar="N", help="GPUs of each node (default: from the trace)")
    parser.add_argument("--nodes", type=int, metavar="N", help="number of nodes (default: from the trace)")
    parser.add_argument("--gpu-memory", metavar="SIZE", help="memory of a GPU, such as 40G (default: from the trace)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the first run (default: 1)")
    parser.add_argument("--runs", type=int, default=1, metavar="K", help="number of consecutive seeds (default: 1)")
    parser.add_argument(
        "--alpha",
        dest="alphas",
        type=float,
        action="append",
        default=[],
        metavar="X",
        help="factor for all SM activities; may be repeated (default: 0.8, 1, 1.3, 1.6)",
    )
    parser.add_argument(
        "--settle",
        dest="settles_s",
        type=float,
        action="append",
        default=[],
        metavar="SECONDS",
        help="time for which the published policies close a GPU after a new task shows its first memory; may be "
        "repeated (default: 30, 90)",
    )
    parser.add_argument(
        "--time-slicing",
        dest="sharing",
        action="store_const",
        const="time-slicing",
        default="mps",
        help="GPUs are shared without MPS",
    )
    parser.add_argument(
        "--format", metavar="NAME", help="gavel, carma, run, history, philly, helios or alibaba (default: by the name)"
    )
    parser.add_argument("--rows", type=int, metavar="N", help="read the first N jobs of a cluster log (default: 1000)")
    parser.add_argument("--throughputs", type=Path, metavar="FILE", help="Gavel's matrix of rates")
    parser.add_argument("--gpu-model", default="v100", metavar="NAME", help="the GPU in that matrix (default: v100)")
    parser.add_argument("--picture", type=Path, metavar="FILE.svg", help="draw the first run of the first policy")
    parser.add_argument("--recorded", action="store_true", help="draw the recorded run TRACE instead of a simulation")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=simulate)
    _add_score(subcommands)


def _add_score(subcommands: Any) -> None:
    parser: argparse.ArgumentParser = subcommands.add_parser(
        "score", help="score policies on measured pairs, measured memory or job scripts", epilog=SCORE
    )
    for option, name, what in (
        ("--pairs", "pairs", "table of measured speeds of pairs"),
        ("--sheet", "sheets", "table of measured memory"),
        ("--scripts", "scripts", "folder of published job scripts, or one of them"),
    ):
        metavar = "FOLDER" if name == "scripts" else "CSV"
        parser.add_argument(
            option, dest=name, type=Path, action="append", default=[], metavar=metavar, help=f"{what}; may be repeated"
        )
    parser.add_argument(
        "--policy",
        dest="policies",
        action="append",
        default=[],
        metavar="POLICY",
        help="as for simulate; may be repeated (default: lug, booked, gain)",
    )
    parser.add_argument("--numbers", default="", metavar="COLUMN,...", help="numbers of the command in a sheet")
    parser.add_argument("--tasks", type=int, default=100, metavar="N", help="tasks of a world (default: 100)")
    parser.add_argument("--gpus", type=int, metavar="N", help="GPUs of the node (default: 4, or as in the scripts)")
    parser.add_argument("--gpu-memory", metavar="SIZE", help="memory of a GPU (default: on which each task fits)")
    parser.add_argument("--gpu-model", default="v100", metavar="NAME", help="the GPU in Gavel's matrix (default: v100)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the first run (default: 1)")
    parser.add_argument("--runs", type=int, default=3, metavar="K", help="number of consecutive seeds (default: 3)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=score)


def simulate(arguments: argparse.Namespace) -> int:
    """Simulate and print the report. Raises UsageError, StateError, SimulationError."""
    # Import here: every command of slurm-share imports this module, including the launchers on all nodes.
    try:
        from ..lab import requests
    except ImportError as error:
        raise UsageError(MISSING) from error
    if arguments.picture is not None:
        requests.check_picture(arguments.picture)
    if arguments.recorded:
        if arguments.picture is None:
            raise UsageError("--recorded draws a recorded run; add --picture FILE.svg for the output")
        requests.write_picture(requests.draw_run(Path(arguments.trace)), arguments.picture)
        return names.EXIT_OK
    asked = _asked(arguments, requests.SimulationRequest.__struct_fields__)
    answer = requests.run_simulation(
        requests.SimulationRequest(has_picture=arguments.picture is not None, width=terminal.width(), **asked),
        _progress if sys.stderr.isatty() else None,
    )
    print(json.dumps(answer.record, indent=2) if arguments.json else answer.text)
    if arguments.picture is not None and answer.picture is not None:
        requests.write_picture(answer.picture, arguments.picture)
    return names.EXIT_OK


def score(arguments: argparse.Namespace) -> int:
    """Score and print the report. Raises UsageError, SimulationError."""
    try:
        from ..lab import score as scores
    except ImportError as error:
        raise UsageError(MISSING) from error
    asked = _asked(arguments, scores.ScoreRequest.__struct_fields__)
    asked["numbers"] = tuple(name for name in arguments.numbers.split(",") if name)
    text, record = scores.run_score(
        scores.ScoreRequest(width=terminal.width(), **asked), _progress if sys.stderr.isatty() else None
    )
    print(json.dumps(record, indent=2) if arguments.json else text)
    return names.EXIT_OK


def _asked(arguments: argparse.Namespace, fields: tuple[str, ...]) -> dict[str, Any]:
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in vars(arguments).items()
        if name in fields
    }


def _progress(done: int, every: int) -> None:
    print(f"\r{done} of {every} simulations", end="\r" if done < every else "\r\033[K", file=sys.stderr, flush=True)
