"""`slurm-share lab`: simulate policies on a trace or a recorded run, for people who compare them."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ..core import names, terminal
from ..core.errors import UsageError

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
undo=ban, pause or off, and min_gain=0.1.

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


def simulate(arguments: argparse.Namespace) -> int:
    """Simulate and print the report. Raises UsageError, StateError, SimulationError."""
    # Import here: every command of slurm-share imports this module, including the launchers on all nodes.
    try:
        from ..lab import requests
    except ModuleNotFoundError as error:
        raise UsageError("slurm_share.lab is not installed here; run this where the whole package is") from error

    if arguments.picture is not None:
        requests.check_picture(arguments.picture)
    if arguments.recorded:
        if arguments.picture is None:
            raise UsageError("--recorded draws a recorded run; add --picture FILE.svg for the output")
        requests.write_picture(requests.draw_run(Path(arguments.trace)), arguments.picture)
        return names.EXIT_OK
    asked: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in vars(arguments).items()
        if name in requests.SimulationRequest.__struct_fields__
    }
    answer = requests.run_simulation(
        requests.SimulationRequest(has_picture=arguments.picture is not None, width=terminal.width(), **asked),
        _progress if sys.stderr.isatty() else None,
    )
    print(json.dumps(answer.record, indent=2) if arguments.json else answer.text)
    if arguments.picture is not None and answer.picture is not None:
        requests.write_picture(answer.picture, arguments.picture)
    return names.EXIT_OK


def _progress(done: int, every: int) -> None:
    print(f"\r{done} of {every} simulations", end="\r" if done < every else "\r\033[K", file=sys.stderr, flush=True)
