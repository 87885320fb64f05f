"""Command line of local clusters: parse arguments, print text, return exit codes."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType

from . import cluster as clusters
from . import kernel_cluster, paths, process, running_kernel, tools
from .cluster import Cluster
from .errors import ClusterError, Misuse
from .pyslurm import FITS
from .records import CURRENT, DRIVERS, MEMORY_LIMITS, PARTS, RELEASES, STABLE, USERS

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
  cluster --kernel v2 --name v2 up            on a real kernel with cgroup v2 only
  cluster --kernel v2 run -- CMD              a program there, with this machine's files
  cluster --name up --slurm {STABLE} --upgrade-to {CURRENT} up; cluster --name up upgrade ctl      under running jobs
  cluster down                                nothing is left

exit codes
  exec and as: that of the program. Otherwise 0 done, 1 failed, 2 impossible request, 130 interrupted.
"""


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@process.usual_umask()
def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; print each expected error as a sentence."""
    process.open_missing_streams()
    for ending in _ENDING:
        signal.signal(ending, _stop)
    args = _parser().parse_args(argv)
    try:
        # checked for every command, so that a typing mistake shows before `down` takes a cluster away
        clusters.check_request(args.name, args.slurm, args.nodes, args.without)
        words = sys.argv[1:] if argv is None else list(argv)
        return int(_in_kernel(args, words) if _concerns_kernel(args) else args.run(args))
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


def _concerns_kernel(args: argparse.Namespace) -> bool:
    """Return whether the command is for a kernel of the cluster's own, and we are not in it."""
    if os.environ.get(running_kernel.ON_V2) or args.run is _list:
        return False
    return (args.run in (_up, _run) and bool(args.kernel)) or kernel_cluster.is_up(args.name)


def _in_kernel(args: argparse.Namespace, words: Sequence[str]) -> int:
    tools.require_root()
    if args.run is _run:
        return running_kernel.run_once(_command(args))
    if args.run is _up and args.kernel:
        if args.cgroup:
            raise Misuse("the kernel has cgroup v2 only; omit --cgroup")
        parts = [part for part in PARTS if part not in args.without]
        kinds = {kind: getattr(args, kind) for kind in ("accounting", "auth", "pyslurm", "packages")}
        prometheus = args.prometheus
        _, layers = clusters.layers_of(args.slurm, parts, prometheus=prometheus, **kinds)
        if args.upgrade_to:
            layers += ":" + clusters.layers_of(args.upgrade_to, parts)[1]
        return kernel_cluster.up(args.name, layers, [*words, "--cgroup-v2"])
    if args.run is _down:
        kernel_cluster.down(args.name)
        print(f"cluster {args.name} is down")
        return 0
    return kernel_cluster.forward(args.name, words)


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


_FLAGS = {
    "cgroup": "confine memory and devices (needs cgroup v1)",
    "cgroup-v2": "confine memory and devices (needs a kernel with cgroup v2 only)",
    "accounting": "accounting of jobs: slurmdbd and MariaDB on ctl, account lab with both users; and slurmrestd",
    "agents": "slurm-share agent on every compute node and on login",
    "prometheus": "agents, and Prometheus on ctl that scrapes them",
    "uuids": "slurmd finds the GPUs itself: AutoDetect=nvidia",
    "pyslurm": f"with a pyslurm for our commands ({', '.join(FITS)})",
    "packages": "library and plugin from our .deb files (built if necessary), as a site installs them",
}
"""Options of `up` without a value."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cluster",
        description="A real Slurm cluster on this machine, in namespaces, with simulated GPUs. Needs root.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--name", default=clusters.DEFAULT_NAME, help="which cluster (default: %(default)s)")
    kernel = "v2: in a user-mode Linux kernel of its own with cgroup v2 only (for up and run; known by the name then)"
    parser.add_argument("--kernel", metavar="KIND", choices=("v2",), default="", help=kernel)
    _up_options(parser, top=True)
    verbs = parser.add_subparsers(metavar="COMMAND", required=True)
    for verb, function, text in (
        ("up", _up, "bring a cluster up"),
        ("down", _down, "take a cluster down, whole or broken; nothing is left"),
        ("status", _status, "hosts, and the state Slurm gives the nodes"),
    ):
        command = verbs.add_parser(verb, help=text)
        command.add_argument("--name", default=argparse.SUPPRESS, help="which cluster")
        command.set_defaults(run=function)
        if verb == "up":
            _up_options(command, top=False)
    verbs.add_parser("list", help="all clusters of this machine").set_defaults(run=_list)

    usage = "cluster --kernel v2 run -- CMD"
    inside = verbs.add_parser(
        "run", help="run a program as root in a kernel of its own, over this machine's files", usage=usage
    )
    inside.set_defaults(run=_run)

    usage = "cluster [--name NAME] exec NODE -- CMD"
    as_root = verbs.add_parser("exec", help="run a program as root on a host", usage=usage)
    as_root.add_argument("on", metavar="NODE")
    as_root.set_defaults(run=_become, user="root")

    usage = "cluster [--name NAME] as [--on NODE] USER -- CMD"
    as_user = verbs.add_parser("as", help="run a program as a user (alice, bob)", usage=usage)
    as_user.add_argument("--on", metavar="NODE", default="login", help="the host (default: %(default)s)")
    as_user.add_argument("user", metavar="USER", help=", ".join(user.name for user in USERS))
    as_user.set_defaults(run=_become)
    for command in (inside, as_root, as_user):
        command.add_argument("command", metavar="CMD", nargs=argparse.REMAINDER, help="default: a shell")

    for verb, action, text in (
        ("kill", Cluster.kill, "cut a host's power; it stays down"),
        ("reboot", Cluster.reboot, "cut a host's power and boot it again, with its daemons"),
        ("upgrade", Cluster.upgrade, "bring a host to the release of --upgrade-to; its jobs run on"),
    ):
        command = verbs.add_parser(verb, help=text)
        command.add_argument("node", metavar="NODE")
        command.set_defaults(run=_on_host, action=action)
    return parser


def _up_options(parser: argparse.ArgumentParser, *, top: bool) -> None:
    """Add the options of `up`, accepted before and after the command."""

    def default(value: object) -> object:
        return value if top else argparse.SUPPRESS

    group = parser.add_argument_group("for up")
    choices = " or ".join(RELEASES)
    group.add_argument("--slurm", metavar="RELEASE", default=default(CURRENT), help=f"{choices} (default: {CURRENT})")
    for flag, text in _FLAGS.items():
        group.add_argument(f"--{flag}", action="store_true", default=default(False), help=text)
    how = "authentication: munge (default), or Slurm's own key (auth/slurm)"
    group.add_argument("--auth", metavar="HOW", choices=("munge", "slurm"), default=default("munge"), help=how)
    releases = f"release of the simulated NVIDIA driver: {', '.join(map(str, DRIVERS))}"
    group.add_argument("--driver", type=int, metavar="RELEASE", choices=DRIVERS, default=default(0), help=releases)
    limits = f"how it limits the memory of a cgroup, from 615 on: {', '.join(MEMORY_LIMITS)} (default: by the kernel)"
    group.add_argument("--memory-limits", metavar="HOW", choices=MEMORY_LIMITS, default=default(""), help=limits)
    newer = "a newer release that the command `upgrade` brings a host to"
    group.add_argument("--upgrade-to", metavar="RELEASE", default=default(""), help=newer)
    group.add_argument("--nodes", type=int, metavar="N", default=default(3), help="compute nodes (default: 3)")
    parts = f"omit a part of our software ({', '.join(PARTS)}); may be repeated"
    group.add_argument("--without", action="append", metavar="PART", default=default([]), help=parts)


def _up(args: argparse.Namespace) -> int:
    start = time.monotonic()
    flags = {name: getattr(args, name) for name in (flag.replace("-", "_") for flag in _FLAGS)}
    # argparse shares the default list of the top parser: do not modify it here
    without = tuple(args.without)
    made = Cluster.up(
        args.name,
        args.slurm,
        auth=args.auth,
        upgrade_to=args.upgrade_to,
        nodes=args.nodes,
        driver=args.driver,
        memory_limits=args.memory_limits,
        without=without,
        **flags,
    )
    for late in _ENDING:
        signal.signal(late, signal.SIG_IGN)  # the cluster is up: finish the report and ignore late signals
    named = "" if made.name == clusters.DEFAULT_NAME else f"--name {made.name} "
    hosts = " ".join(made.hosts)
    print(f"cluster {made.name} is up in {time.monotonic() - start:.1f} s: Slurm {made.slurm_version}, hosts {hosts}")
    if "simgpu" not in without:
        print("its GPUs are simulated" + (f", and driver {args.driver} too" if args.driver else ""))
    print(f"try: {sys.argv[0]} {named}as alice -- sinfo")
    return 0


def _down(args: argparse.Namespace) -> int:
    there = clusters.take_down(args.name)
    print(f"cluster {args.name} is down" if there else f"cluster {args.name} was not up")
    return 0


def _status(args: argparse.Namespace) -> int:
    cluster = Cluster.attach(args.name)
    status = cluster.status()
    shown = {
        "cgroup v1": cluster.cgroup,
        "accounting": cluster.accounting,
        "cgroup v2": cluster.cgroup_v2,
        "agents": cluster.agents,
        "Prometheus": cluster.prometheus,
    }
    kinds = "".join(f", {kind}" for kind, is_on in shown.items() if is_on)
    print(f"cluster {cluster.name}: Slurm {cluster.slurm_version}{kinds}")
    for host, up in status.hosts_up.items():
        print(f"  {host:8} {'up' if up else 'down':6} {status.nodes.get(host, '')}".rstrip())
    if not status.nodes:
        print("  the controller does not answer; start it with: cluster reboot ctl")
    return 0


def _list(_: argparse.Namespace) -> int:
    tools.require_root()
    for name in clusters.running():
        if kernel_cluster.is_up(name):
            print(f"{name:20} in a kernel of its own")
            continue
        try:
            print(f"{name:20} Slurm {Cluster.attach(name).slurm_version}")
        except ClusterError:
            busy = "being brought up, or " if paths.lock_file(name).exists() else ""
            print(f"{name:20} {busy}broken; clear it with: cluster --name {name} down")
    return 0


def _become(args: argparse.Namespace) -> int:
    Cluster.attach(args.name).become(args.on, _command(args), user=args.user)


def _run(args: argparse.Namespace) -> int:
    raise Misuse("run is for a kernel of its own; use: cluster --kernel v2 run -- CMD")


def _command(args: argparse.Namespace) -> list[str]:
    rest = args.command[1:] if args.command[:1] == ["--"] else args.command
    return rest or ["/bin/bash", "-l"]


def _on_host(args: argparse.Namespace) -> int:
    args.action(Cluster.attach(args.name), args.node)
    return 0
