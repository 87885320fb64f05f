"""Slurm as this host knows it: what its controller says, what its files say. Every question has a time limit."""

from __future__ import annotations

import calendar
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException
from msgspec.structs import replace

from ..checkup import Mount, SiteNode, SitePartition, SlurmFacts, Unseen, Values
from ..conf_text import ConfText
from ..errors import CommandError, ConfigError
from ..installed import EPILOG_NAME, LUA, PROLOG_NAME
from ..process import Finished, finish
from . import site_programs, slurm_nodes
from .site_host import Ask
from .slurm_files import read_conf, slurm_conf_path
from .slurm_parse import parse_version

COMMAND_S = 10.0
"""For one answer of Slurm's. A controller that is dead costs its caller MessageTimeout, 10 s by default."""
SEVERAL = frozenset({"prolog", "epilog", "slurmctldhost"})
"""Keys that count each time they are written (slurm.conf(5); Prolog and Epilog since 24.11)."""
HERE = "RUNNING,SUSPENDED,COMPLETING,CONFIGURING,STOPPED,SIGNALING,STAGE_OUT"
"""States in which a job is on its nodes, or about to be (squeue(1), JOB STATE CODES)."""
_KEY = re.compile(r"^([A-Za-z_]+)(?:\[\d+\])?\s+= ?(.*)$", re.MULTILINE)
_AS_OF = re.compile(r"Configuration data as of (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")
_FIELD = re.compile(r"(?:^| )([A-Za-z][A-Za-z0-9_/:]*)=")
_PING = re.compile(r"^Slurmctld\([^)]*\) at (\S+) is (UP|DOWN)", re.MULTILINE)


def asker(environ: Mapping[str, str]) -> Ask:
    """Runs a program with what Slurm needs of the caller's environment, and nothing that changes its answers."""
    kept = {key: value for key, value in environ.items() if not key.startswith(("SLURM_", "SQUEUE_", "SINFO_"))}
    kept |= {"TZ": "UTC", "LC_ALL": "C"}
    if "SLURM_CONF" in environ:
        kept["SLURM_CONF"] = environ["SLURM_CONF"]
    return lambda argv: finish(argv, timeout_s=COMMAND_S, env=kept)


def find_conf(environ: Mapping[str, str], root: Path = Path("/")) -> str:
    """Path of this host's slurm.conf; empty where there is none."""
    place = str(slurm_conf_path(environ=environ, root=root))
    return place if (root / place.lstrip("/")).is_file() else ""


def read_written(file: str, root: Path = Path("/")) -> ConfText | Unseen:
    """slurm.conf or a file beside it, with what it includes."""
    if not file:
        return Unseen("there is no slurm.conf on this host")
    try:
        return read_conf(root / file.lstrip("/"))
    except ConfigError as error:
        return Unseen(str(error))


def values_of(text: ConfText) -> Values:
    """What stands in a file by lower-case key; of lines about one node or partition nothing."""
    found: dict[str, tuple[str, ...]] = {}
    for line in text.lines:
        for key, value in () if line.is_block else line.pairs:
            name = key.lower()
            found[name] = (*found.get(name, ()), value) if name in SEVERAL else (value,)
    return found


def parse_config(text: str) -> Values:
    """What `scontrol show config` says by lower-case key; what it calls (null) is not there."""
    found: dict[str, tuple[str, ...]] = {}
    for key, value in _KEY.findall(text):
        if value.strip() not in ("", "(null)"):
            found[key.lower()] = (*found.get(key.lower(), ()), value.strip())
    return found


def parse_as_of(text: str) -> float | None:
    """When the controller wrote that answer, by its own clock, as Unix time; scontrol was told to speak UTC."""
    match = _AS_OF.search(text)
    return None if match is None else float(calendar.timegm(time.strptime(match[1], "%Y-%m-%dT%H:%M:%S")))


def parse_records(text: str) -> list[dict[str, str]]:
    """Lines of `scontrol -o show`: Key=value pairs, where a value may have blanks in it."""
    found = []
    for line in text.splitlines():
        keys = list(_FIELD.finditer(line))
        ends = [*(key.start() for key in keys[1:]), len(line)]
        record = {key[1].lower(): line[key.end() : end].strip() for key, end in zip(keys, ends, strict=True)}
        if record:
            found.append({key: "" if value == "(null)" else value for key, value in record.items()})
    return found


def parse_nodes(text: str) -> tuple[SiteNode, ...]:
    """Of `scontrol -o show node`. Raises CommandError for an answer that is not scontrol's."""
    return tuple(
        SiteNode(node.name, gres, node.states, node.reason, version)
        for node, gres, version in slurm_nodes.parse_described(text)
    )


def parse_partitions(text: str) -> tuple[SitePartition, ...]:
    """Of `scontrol -o show partition`."""
    return tuple(
        SitePartition(one["partitionname"], expand(one.get("nodes", "")), one)
        for one in parse_records(text)
        if "partitionname" in one
    )


def expand(nodes: str) -> tuple[str, ...]:
    """n[1-3] as n1, n2, n3; nothing for what is no list of nodes."""
    try:
        return tuple(NodeSet(nodes, resolver=RESOLVER_NOGROUP))
    except NodeSetException:
        return ()


def node_of_host(text: ConfText | Unseen, host: str) -> str | None:
    """The node that slurm.conf has for this host: of its name, or with that NodeHostname. None: it has none."""
    for line in () if isinstance(text, Unseen) else text.lines_of("NodeName"):
        names, hosts = expand(line.get("NodeName") or ""), expand(line.get("NodeHostname") or "")
        for name, its_host in zip(names, hosts or names, strict=len(hosts) in (0, len(names))):
            if its_host.split(".")[0] == host:
                return name
    return None


# --- Together --------------------------------------------------------------------------------------------------------


def read_slurm(
    ask: Ask,
    file: str,
    text: ConfText | Unseen,
    node: str,
    every_node: bool,
    root: Path = Path("/"),
    mounts: Sequence[Mount] = (),
) -> SlurmFacts:
    """All of it. `node`: this host's; `every_node`: ask for all of them, as a controller's checks want."""
    written: Values | Unseen = text if isinstance(text, Unseen) else values_of(text)
    facts = _asked(SlurmFacts(file=file, written=written, version=_version(ask)), ask, node, every_node)
    source = facts.live if not isinstance(facts.live, Unseen) else written
    if isinstance(source, Unseen):
        return facts
    folder = os.path.dirname(file) if file else "/etc/slurm"  # noqa: PTH120
    stack = source.get("plugstackconfig", (f"{folder}/plugstack.conf",))[-1]
    stack = stack if stack.startswith("/") else f"{folder}/{stack}"
    task = source.get("taskprolog", ("",))[-1]
    return replace(
        facts,
        cgroup=_values_beside(f"{folder}/cgroup.conf", root),
        containers=_containers(folder, root),
        plugstack=_lines(stack, root),
        plugstack_file=stack,
        prologs=site_programs.read_hooks(source.get("prolog", ()), PROLOG_NAME, folder, root, mounts),
        epilogs=site_programs.read_hooks(source.get("epilog", ()), EPILOG_NAME, folder, root, mounts),
        task_prolog=_text(task if task.startswith("/") else f"{folder}/{task}", root) if task else "",
        lua=_text(f"{folder}/job_submit.lua", root),
        lua_of_package=_text(LUA, root),
    )


def _asked(facts: SlurmFacts, ask: Ask, node: str, every_node: bool) -> SlurmFacts:
    """What the controller says. One that does not answer is asked once, and not again for every thing."""
    try:
        pinged = _PING.findall(ask(["scontrol", "ping"]).stdout)
        down = tuple(host for host, state in pinged if state == "DOWN")
        if pinged and len(down) == len(pinged):
            return _unasked(facts, "no controller answers", down)
        before = time.time()
        config = _answer(ask, ["scontrol", "show", "config"])
        now = (before + time.time()) / 2
        live = parse_config(config)
        as_of, compared = parse_as_of(config), live.get("hash_val", ("Match",))[-1]
        return replace(
            facts,
            live=live,
            down=down,
            skew_s=Unseen("scontrol does not say when it was answered") if as_of is None else now - as_of,
            differs=compared if compared.startswith("Different") else "",
            nodes=parse_nodes(_answer(ask, ["scontrol", "-o", "show", "node", *(() if every_node else (node,))], node)),
            partitions=parse_partitions(_answer(ask, ["scontrol", "-o", "-a", "show", "partition"])),
            jobs_here=_jobs(ask, node),
        )
    except CommandError as error:
        return _unasked(facts, str(error), ())


def _unasked(facts: SlurmFacts, why: str, down: tuple[str, ...]) -> SlurmFacts:
    not_there = Unseen(why)
    return replace(
        facts, live=not_there, down=down, skew_s=not_there, nodes=not_there, partitions=not_there, jobs_here=not_there
    )


def _answer(ask: Ask, argv: Sequence[str], unknown_is_empty: str = "") -> str:
    done: Finished = ask(argv)
    if done.code and unknown_is_empty and "not found" in done.stdout + done.stderr:
        return ""  # this host is no node of Slurm's
    if done.code:
        raise CommandError(tuple(argv), done.code, done.stderr)
    return done.stdout


def _jobs(ask: Ask, node: str) -> frozenset[int] | Unseen:
    argv = ["squeue", "-h", "-a", "-w", node, f"--states={HERE}", "-o", "%A"]
    try:
        return frozenset(int(word) for word in _answer(ask, argv, node).split() if word.isdecimal())
    except CommandError as error:
        return Unseen(str(error))


def _version(ask: Ask) -> str | Unseen:
    try:
        version = parse_version(ask(["scontrol", "--version"]).stdout)
    except CommandError as error:
        return Unseen(str(error))
    return Unseen("scontrol does not say its version") if version is None else version


# --- Files beside slurm.conf -----------------------------------------------------------------------------------------


def _values_beside(path: str, root: Path) -> Values | Unseen:
    found = read_written(path, root)
    return found if isinstance(found, Unseen) else values_of(found)


def _lines(path: str, root: Path) -> tuple[str, ...] | Unseen:
    found = read_written(path, root)
    return found if isinstance(found, Unseen) else tuple(line.text for line in found.lines)


def _containers(folder: str, root: Path) -> str | Unseen:
    found = [_text(f"{folder}/{name}", root) for name in ("job_container.conf", "namespace.yaml")]
    return "\n".join(text for text in found if text)


def _text(path: str, root: Path) -> str | None:
    try:
        return (root / path.lstrip("/")).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
