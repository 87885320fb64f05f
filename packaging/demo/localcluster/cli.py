"""Command line of local clusters: parse arguments, print text, return exit codes."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType

from . import cluster as clusters
from . import modes, paths, process, tools
from .cluster import Cluster
from .errors import ClusterError
from .pyslurm import FITS
from .records import CURRENT, PARTS, RELEASES, STABLE, USERS

_EPILOG = f"""\
examples
  cluster up                                  Slurm {CURRENT}, hosts ctl login n1 n2 n3: 1 s (1 min the first time)
  cluster as alice -- sinfo                   as a user, on the login host
  cluster as alice -- sbatch --share-gpu=4 job.sh      an example job is in every home
  cluster as alice -- salloc --share-gpu=4    a terminal stays a terminal
  cluster as alice -- llload-tui              the dashboard of alice's nodes
  cluster exec n1 -- tail /var/log/slurm/slurmd.log
  cluster kill n2; cluster reboot n2          a power cut, and power again
  cluster --name billed up --accounting       sacct and sacctmgr work too: 1 s more (5 s the first time)
  cluster --name old --slurm {STABLE} up         a second cluster beside the first
  cluster --name seen up --prometheus         agents on the nodes, Prometheus on ctl (4 s more the first time)
  cluster --name up --slurm {STABLE} --upgrade-to {CURRENT} up; cluster --name up upgrade ctl      under running jobs
  cluster down                                nothing is left

exit codes
  exec and as: that of the program. Otherwise 0 done, 1 failed, 2 impossible request, 130 interrupted.
"""


@modes.usual_umask()
def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; print each expected error as a sentence."""
    process.open_missing_streams()
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, _stop)
    args = _parser().parse_args(argv)
    try:
        # checked for every command, so that a typing mistake shows before `down` takes a cluster away
        clusters.check_request(args.name, args.slurm, args.nodes, args.without)
        return int(args.run(args))
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("cluster: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 141  # the exit code of a program that SIGPIPE ended
    except OSError as error:
        print(f"cluster: the system refused: {error}", file=sys.stderr)
        return 1


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cluster",
        description="A real Slurm cluster on this machine, in namespaces, with simulated GPUs. Needs root.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--name", default=clusters.DEFAULT_NAME, help="which cluster (default: %(default)s)")
    _up_options(parser, top=True)
    verbs = parser.add_subparsers(metavar="COMMAND", required=True)

    up = verbs.add_parser("up", help="bring a cluster up")
    up.add_argument("--name", default=argparse.SUPPRESS, help="which cluster")
    _up_options(up, top=False)
    up.set_defaults(run=_up)

    for verb, function, text in (
        ("down", _down, "take a cluster down, whole or broken; nothing is left"),
        ("status", _status, "hosts, and the state Slurm gives the nodes"),
    ):
        command = verbs.add_parser(verb, help=text)
        command.add_argument("--name", default=argparse.SUPPRESS, help="which cluster")
        command.set_defaults(run=function)
    verbs.add_parser("list", help="all clusters of this machine").set_defaults(run=_list)

    run = verbs.add_parser(
        "exec", help="run a program as root on a host", usage="cluster [--name NAME] exec NODE -- CMD"
    )
    run.add_argument("node", metavar="NODE")
    run.add_argument("command", metavar="CMD", nargs=argparse.REMAINDER, help="default: a shell")
    run.set_defaults(run=_exec)

    usage = "cluster [--name NAME] as [--on NODE] USER -- CMD"
    as_user = verbs.add_parser("as", help="run a program as a user (alice, bob)", usage=usage)
    as_user.add_argument("--on", metavar="NODE", default="login", help="the host (default: %(default)s)")
    as_user.add_argument("user", metavar="USER", help=", ".join(user.name for user in USERS))
    as_user.add_argument("command", metavar="CMD", nargs=argparse.REMAINDER, help="default: a shell")
    as_user.set_defaults(run=_as)

    for verb, function, text in (
        ("kill", _kill, "cut a host's power; it stays down"),
        ("reboot", _reboot, "cut a host's power and boot it again, with its daemons"),
        ("upgrade", _upgrade, "bring a host to the release of --upgrade-to; its jobs run on"),
    ):
        command = verbs.add_parser(verb, help=text)
        command.add_argument("node", metavar="NODE")
        command.set_defaults(run=function)
    return parser


def _up_options(parser: argparse.ArgumentParser, *, top: bool) -> None:
    """Add the options of `up`, accepted before and after the command."""

    def default(value: object) -> object:
        return value if top else argparse.SUPPRESS

    group = parser.add_argument_group("for up")
    choices = " or ".join(RELEASES)
    group.add_argument("--slurm", metavar="RELEASE", default=default(CURRENT), help=f"{choices} (default: {CURRENT})")
    group.add_argument(
        "--cgroup", action="store_true", default=default(False), help="confine memory and devices (needs cgroup v1)"
    )
    group.add_argument(
        "--cgroup-v2",
        action="store_true",
        default=default(False),
        help="confine devices in cgroup v2 (on a kernel that has v1 too)",
    )
    group.add_argument(
        "--accounting",
        action="store_true",
        default=default(False),
        help="accounting of jobs: slurmdbd and MariaDB on ctl, account lab with both users",
    )
    group.add_argument(
        "--agents", action="store_true", default=default(False), help="slurm-share agent on every compute node"
    )
    group.add_argument(
        "--prometheus",
        action="store_true",
        default=default(False),
        help="agents, and Prometheus on ctl that scrapes them",
    )
    group.add_argument(
        "--auth",
        metavar="HOW",
        choices=("munge", "slurm"),
        default=default("munge"),
        help="authentication: munge (default), or Slurm's own key (auth/slurm)",
    )
    group.add_argument(
        "--uuids", action="store_true", default=default(False), help="slurmd finds the GPUs itself: AutoDetect=nvidia"
    )
    group.add_argument(
        "--pyslurm",
        action="store_true",
        default=default(False),
        help=f"with a pyslurm for our commands ({', '.join(FITS)})",
    )
    group.add_argument(
        "--upgrade-to",
        metavar="RELEASE",
        default=default(""),
        help="a newer release that the command `upgrade` brings a host to",
    )
    group.add_argument(
        "--packages",
        action="store_true",
        default=default(False),
        help="library and plugin from our .deb files (built if necessary), as a site installs them",
    )
    group.add_argument("--nodes", type=int, metavar="N", default=default(3), help="compute nodes (default: 3)")
    group.add_argument(
        "--without",
        action="append",
        metavar="PART",
        default=default([]),
        help=f"omit a part of our software ({', '.join(PARTS)}); may be repeated",
    )


def _up(args: argparse.Namespace) -> int:
    start = time.monotonic()
    # argparse shares the default list of the top parser: do not modify it here
    made = Cluster.up(
        args.name,
        args.slurm,
        cgroup=args.cgroup,
        cgroup_v2=args.cgroup_v2,
        accounting=args.accounting,
        agents=args.agents,
        prometheus=args.prometheus,
        auth=args.auth,
        uuids=args.uuids,
        pyslurm=args.pyslurm,
        upgrade_to=args.upgrade_to,
        packages=args.packages,
        nodes=args.nodes,
        without=tuple(args.without),
    )
    for late in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(late, signal.SIG_IGN)  # the cluster is up: finish the report and ignore late signals
    named = "" if made.name == clusters.DEFAULT_NAME else f"--name {made.name} "
    hosts = " ".join(made.hosts)
    print(f"cluster {made.name} is up in {time.monotonic() - start:.1f} s: Slurm {made.slurm_version}, hosts {hosts}")
    if "simgpu" not in args.without:
        print("its GPUs are simulated")
    print(f"try: {sys.argv[0]} {named}as alice -- sinfo")
    return 0


def _down(args: argparse.Namespace) -> int:
    there = clusters.take_down(args.name)
    print(f"cluster {args.name} is down" if there else f"cluster {args.name} was not up")
    return 0


def _status(args: argparse.Namespace) -> int:
    cluster = Cluster.attach(args.name)
    status = cluster.status()
    kinds = (", cgroup v1" if status.cgroup else "") + (", accounting" if status.accounting else "")
    kinds += ", cgroup v2" if cluster.cgroup_v2 else ""
    kinds += ", agents" if cluster.agents else ""
    kinds += ", Prometheus" if cluster.prometheus else ""
    print(f"cluster {status.name}: Slurm {status.slurm_version}{kinds}")
    for host, up in status.hosts_up.items():
        print(f"  {host:8} {'up' if up else 'down':6} {status.nodes.get(host, '')}".rstrip())
    if not status.nodes:
        print("  the controller does not answer; start it with: cluster reboot ctl")
    return 0


def _list(_: argparse.Namespace) -> int:
    tools.require_root()
    for name in clusters.running():
        try:
            print(f"{name:20} Slurm {Cluster.attach(name).slurm_version}")
        except ClusterError:
            busy = "being brought up, or " if paths.lock_file(name).exists() else ""
            print(f"{name:20} {busy}broken; clear it with: cluster --name {name} down")
    return 0


def _exec(args: argparse.Namespace) -> int:
    Cluster.attach(args.name).become(args.node, _command(args.command))


def _as(args: argparse.Namespace) -> int:
    Cluster.attach(args.name).become(args.on, _command(args.command), user=args.user)


def _kill(args: argparse.Namespace) -> int:
    Cluster.attach(args.name).kill(args.node)
    return 0


def _reboot(args: argparse.Namespace) -> int:
    Cluster.attach(args.name).reboot(args.node)
    return 0


def _upgrade(args: argparse.Namespace) -> int:
    Cluster.attach(args.name).upgrade(args.node)
    return 0


def _command(words: Sequence[str]) -> Sequence[str]:
    rest = words[1:] if words and words[0] == "--" else words
    return rest or ["/bin/bash", "-l"]
