"""Checks of Slurm itself: whether its daemons answer, their releases, and whether all hosts use the same slurm.conf."""

from __future__ import annotations

from collections.abc import Sequence

from ...share import site
from ...slurm.releases import TESTED
from ..facts.records import CheckVerdict, Facts, UnknownFact
from .base import (
    COMPUTE,
    CONTROLLER,
    EVERYWHERE,
    check,
    fail,
    failures,
    host_facts,
    named,
    ok,
    release_of,
    seen,
    seen_or,
    skip,
    unsafe,
    warn,
)

SKEW_WARN_S, SKEW_FAIL_S = 5.0, 240.0
"""munge refuses credentials that are older than their lifetime, 300 s by default (munge(1), --ttl), or from the future.
The controller tells its time in whole seconds, so differences of a few seconds mean nothing.
"""
OURS = (
    "prologflags", "prolog", "epilog", "plugstackconfig", "jobsubmitplugins", "grestypes", "selecttype",
    "launchparameters", "taskplugin", "proctracktype", "preemptmode", "jobcontainertype", "namespacetype", "taskprolog",
)  # fmt: skip
"""Keys of slurm.conf that slurm-share depends on."""


@check(
    "slurm-commands",
    EVERYWHERE,
    asks="Slurm's commands are in PATH, in a usual place, or in the one that /etc/default/slurm-share names",
    why="llsub, llload and doctor cannot query Slurm",
    fix='SLURM_SHARE_SLURM="/the/folder/above/bin" in /etc/default/slurm-share, or install Slurm\'s client programs',
)
def slurm_commands(facts: Facts) -> Sequence[CheckVerdict]:
    folder = facts.slurm.commands
    if not folder:
        return fail("there is no scontrol in PATH, nor where Slurm is usually installed")
    if facts.slurm.are_in_path:
        return ok(folder)
    fix = (
        f'a line SLURM_SHARE_SLURM="{folder.removesuffix("/bin")}" in /etc/default/slurm-share, or PATH={folder}:$PATH'
    )
    return warn(f"scontrol is not in PATH; the one beside a daemon, in {folder}, was asked", fix)


@check(
    "munge",
    EVERYWHERE,
    asks="munged answers on this host, where Slurm's AuthType is munge",
    why="Slurm's daemons and commands on this host cannot communicate with other hosts",
    fix="systemctl enable --now munge; /var/log/munge/munged.log says why it does not start (often the owner or mode of"
    " /etc/munge/munge.key)",
)
def munge(facts: Facts) -> Sequence[CheckVerdict]:
    if "munged" in facts.host_facts.stopped:
        pid = facts.host_facts.stopped["munged"]
        return fail(f"munged, process {pid}, is stopped (SIGSTOP)", f"kill -CONT {pid}")
    if not facts.slurm.munge_problem:
        return ok("it answers, or Slurm does without it")
    if isinstance(facts.slurm.live, UnknownFact):
        return fail(facts.slurm.munge_problem)
    return ok("Slurm has found it")  # munge may be built with another path for its socket


@check(
    "slurm-conf",
    EVERYWHERE,
    needs="configuration",
    asks="Slurm's programs can read this host's slurm.conf",
    why="no command of Slurm works here, and a daemon that is restarted does not start",
    fix="correct the line; `scontrol show hostnames localhost` repeats the error, and asks no daemon",
)
def slurm_conf(facts: Facts) -> Sequence[CheckVerdict]:
    found = seen(facts.slurm.objection)
    return fail(found) if found else ok("they can")


@check(
    "controller",
    EVERYWHERE,
    asks="every slurmctld answers",
    why="no job starts, and what only the controller knows cannot be checked",
    fix="on the host that is named: `systemctl status slurmctld munge`; then munge.key, which is the same on all hosts,"
    " and the network between it and this host",
)
def controller(facts: Facts) -> Sequence[CheckVerdict]:
    live = facts.slurm.live
    if not facts.slurm.commands:
        return skip("see slurm-commands")
    if isinstance(live, UnknownFact):
        if seen_or(facts.slurm.objection, ""):
            return skip("see slurm-conf")
        if facts.slurm.munge_problem or "munged" in facts.host_facts.stopped:
            return skip("see munge")
        if facts.slurm.down:
            return fail(f"slurmctld on {named(facts.slurm.down)} does not answer")
        if facts.slurm.is_silent:
            return fail(live.why, "on the controller: `systemctl status slurmctld`; kill -CONT one that is stopped")
        return fail(live.why, "`scontrol ping` here says it again: this host's slurm.conf, its munge, or the network")
    if facts.slurm.down:
        return warn(f"slurmctld on {named(facts.slurm.down)} does not answer; another one does")
    return ok("it answers")


@check(
    "daemons",
    (*CONTROLLER, *COMPUTE),
    asks="slurmctld runs on a controller, slurmd on a compute node",
    why="the node accepts no jobs; ended jobs are cleaned up when the daemon runs again",
    fix="`systemctl start` what is named, and look into its log",
)
def daemons(facts: Facts) -> Sequence[CheckVerdict]:
    host, wanted = host_facts(facts), {"controller": "slurmctld", "compute": "slurmd"}
    missing = [wanted[role] for role in facts.roles if role in wanted and wanted[role] not in host.daemons]
    found = fail(f"{named(missing)} does not run here") if missing else []
    for name, pid in host.stopped.items():
        if name in wanted.values():
            found += fail(f"{name}, process {pid}, is stopped (SIGSTOP)", f"kill -CONT {pid}")
    return found or ok("they run")


@check(
    "slurm-release",
    EVERYWHERE,
    asks=f"Slurm is of a release that slurm-share is tested on: {', '.join(TESTED)}",
    why="Slurm's plugin interface and the environment of hooks differ between releases",
    fix="try it in mode observe first, or use a release that is tested",
)
def slurm_release(facts: Facts) -> Sequence[CheckVerdict]:
    version = seen(facts.slurm.version)
    return ok(version) if release_of(version) in TESTED else warn(f"this is {version}")


@check(
    "slurmd-restarted",
    COMPUTE,
    asks="the slurmd that runs is the one that is installed",
    why="after an upgrade the old slurmd starts the new slurmstepd; the plugin fits only one of them",
    fix="systemctl restart slurmd",
)
def slurmd_restarted(facts: Facts) -> Sequence[CheckVerdict]:
    nodes, version = seen(facts.slurm.nodes), seen(facts.slurm.version)
    runs = next((node.version for node in nodes if node.name == facts.host), "")
    if not runs:
        return skip(f"slurmd has not registered as {facts.host}")
    return ok(runs) if runs == version else warn(f"slurmd {runs} runs, {version} is installed")


@check(
    "node-state",
    COMPUTE,
    asks="this node takes jobs",
    why="the GPUs of a drained or lost node are idle; the usual reason is a Prolog or Epilog that failed",
    fix="look into the hooks' log (log_file); when it is put right, `scontrol update nodename=NODE state=resume`",
)
def node_state(facts: Facts) -> Sequence[CheckVerdict]:
    node = next((one for one in seen(facts.slurm.nodes) if one.name == facts.host), None)
    if node is None:
        return fail(f"Slurm knows no node {facts.host}", "slurm.conf: a NodeName line for it, or its NodeHostname")
    said = "+".join(node.states)
    if not {"DOWN", "DRAIN", "FAIL", "NOT_RESPONDING", "INVALID_REG", "ERROR"}.intersection(node.states):
        return ok(said)
    log = ("" if isinstance(facts.config, UnknownFact) else facts.config.settings.log_file) or "slurmd's log"
    fix = f"look into {log}; then scontrol update nodename={node.name} state=resume"
    return warn(": ".join(filter(None, (said, node.reason))), fix)


@check(
    "same-conf",
    EVERYWHERE,
    asks="this host's slurm.conf is the one that the controller runs with",
    why="hooks, plugin and limits differ between nodes, without a message",
    fix="copy the controller's slurm.conf here (or `scontrol reconfigure` where the new one is here already)",
)
def same_conf(facts: Facts) -> Sequence[CheckVerdict]:
    live, written = seen(facts.slurm.live), seen(facts.slurm.written)
    if not facts.slurm.differs:
        return ok("slurm.conf is the controller's")
    file = facts.slurm.file
    lost = [key for key in OURS if _ours(live.get(key, ())) - _plain(written.get(key, ()))]
    others = [key for key in OURS if key not in lost and not _is_same(key, written.get(key, ()), live.get(key, ()))]
    found = [*lost, *others, *_lines(facts)]
    said = f"{file} differs from what the controller runs with, in {named(found, 6)}" if found else ""
    if lost:
        return fail(
            f"{said}: shared jobs end with its next restart or `scontrol reconfigure`",
            "slurm-share install shows the lines that are missing, --apply writes them; on another host than the"
            " controller: copy the controller's slurm.conf here",
        )
    return warn(said or f"{file} differs from what the controller runs with, in nothing that slurm-share depends on")


_OURS = ("slurm-share", "lua", "gpu")
"""Words in lines of slurm.conf that concern us: our hooks, job_submit.lua, the resources."""


def _ours(said: tuple[str, ...]) -> set[str]:
    return {item for item in _plain(said) if any(one in item for one in _OURS)}


_DEFAULTS = {
    "selecttype": {"select/cons_tres"},
    "proctracktype": {"proctrack/cgroup"},
    "taskplugin": {"task/affinity", "task/cgroup"},
    "preemptmode": {"off"},
}
"""Values that the controller reports for unset keys (slurm.conf(5)); other unset keys have none, or a path of its own.
"""


def _is_same(key: str, here: tuple[str, ...], there: tuple[str, ...]) -> bool:
    """Return whether two values agree. The controller adds implied flags, so more flags there are no difference, unless
    the key is not set here."""
    if here:
        return _plain(here) <= _plain(there)
    if key == "plugstackconfig":
        return all(one.endswith("/plugstack.conf") for one in there)
    return _plain(there) <= _DEFAULTS.get(key, set())


def _lines(facts: Facts) -> list[str]:
    """Return the NodeName and PartitionName lines that differ from the controller's in GPUs or exclusive use."""
    gres, options = facts.slurm.written_gres, facts.slurm.written_partitions
    found = [
        f"Gres of {node.name}"
        for node in seen_or(facts.slurm.nodes, ())
        if node.name in gres and _resources(gres[node.name]) != _resources(node.gres)
    ]
    found += [
        f"partition {one.name}"
        for one in seen_or(facts.slurm.partitions, ())
        if one.name in options and site.keeps_one_user(options[one.name]) != site.keeps_one_user(one.options)
    ]
    return found


def _resources(gres: str) -> dict[str, int]:
    """Return the counts of GPUs and shards; 0 if one cannot be read."""
    counts: dict[str, int] = {}
    for one in site.parse_gres(gres):
        if one.name in ("gpu", "shard"):
            counts[one.name] = counts.get(one.name, 0) + (one.count or 0)
    return counts


def _plain(said: tuple[str, ...]) -> set[str]:
    """Return the items of a value, without "none", which the controller leaves out."""
    items = ",".join(said).lower().replace(" ", "").split(",")
    return {item.removeprefix("job_submit/") for item in items if item and not item.endswith("none")}


@check(
    "conf-owner",
    EVERYWHERE,
    needs="configuration",
    asks="nobody but root and SlurmUser can change slurm.conf, what it includes, or a file beside it",
    why="these files name the programs and plugins that slurmd and slurmctld run, slurmd as root: a user who can write"
    " there is root on every node",
    fix="chown root and chmod go-w what is named",
)
def conf_owner(facts: Facts) -> Sequence[CheckVerdict]:
    files = facts.slurm.owned
    if not files:
        return skip("there are no files of Slurm's here")
    whys = (unsafe(file, (0, facts.slurm.slurm_uid)) for file in files)
    return failures(filter(None, whys)) or ok(f"{len(files)} files, all root's or SlurmUser's")


@check(
    "clock",
    (*COMPUTE, "login"),
    asks="this host's clock agrees with the controller's",
    why="munge rejects messages that are minutes old, so no job starts; smaller differences make times in the history"
    " wrong",
    fix="systemctl restart chronyd (or your time service), then `chronyc tracking`",
)
def clock(facts: Facts) -> Sequence[CheckVerdict]:
    skew = seen(facts.slurm.skew_s)
    said = f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the controller's"
    if abs(skew) >= SKEW_FAIL_S:
        return fail(said)
    return warn(said) if abs(skew) >= SKEW_WARN_S else ok("to within a few seconds")


CHECKS = (
    slurm_commands, slurm_conf, munge, controller, daemons, slurm_release, slurmd_restarted, node_state, same_conf,
    conf_owner, clock,
)  # fmt: skip
