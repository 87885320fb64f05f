"""Slurm's state as known on this host: from its controller and its files. All queries have a time limit."""

from __future__ import annotations

import calendar
import os
import re
import shutil
import socket
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from ...core import names, nodelist, numbers
from ...core.errors import CommandError, ConfigError, UsageError, shown
from ...core.installed import EPILOG_NAME, LUA, PROLOG_NAME
from ...core.process import Finished, finish
from ...core.slurm_home import slurm_homes
from ...share import lua_settings
from ...slurm import controllers, job_folders
from ...slurm import nodes as slurm_nodes
from ...slurm.account_limits import read_gpu_limits
from ...slurm.backend import parse_version
from ...slurm.conf import READS_CONF, may_be_file, objection_of, read_conf, read_text, slurm_conf_path
from ...slurm.conf_text import ConfText
from . import lua, programs, scripts
from .records import Mount, Role, SharedJob, SiteNode, SitePartition, SlurmFacts, UnknownFact, Values
from .system import Ask

COMMAND_S = 10.0
"""Time limit of one query to Slurm in seconds. Callers of a dead controller wait for MessageTimeout, 10 s by default.
"""
SEVERAL = frozenset({"prolog", "epilog", "slurmctldhost", "prologslurmctld", "epilogslurmctld"})
"""Keys of which every line counts (slurm.conf(5); Prolog and Epilog since 24.11)."""
HERE = "RUNNING,SUSPENDED,COMPLETING,CONFIGURING,STOPPED,SIGNALING,STAGE_OUT"
"""States in which a job is on its nodes, or about to be (squeue(1), JOB STATE CODES)."""
_KEY = re.compile(r"^([A-Za-z_]+)(?:\[\d+\])?\s+= ?(.*)$", re.MULTILINE)
_AS_OF = re.compile(r"Configuration data as of (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")
_FIELD = re.compile(r"(?:^| )([A-Za-z][A-Za-z0-9_/:]*)=")


def asker(environ: Mapping[str, str], more: Sequence[str] = ()) -> Ask:
    """Return a function that runs a program with the variables that Slurm needs of the caller's environment, and none
    that change its output.

    more: folders in which programs are searched after those of the caller's PATH.
    """
    own = ("SLURM_", "SQUEUE_", "SINFO_", "SBATCH_", "SPANK_")
    kept = {key: value for key, value in environ.items() if not key.startswith(own)}
    kept |= {"TZ": "UTC", "LC_ALL": "C", "PATH": ":".join(search_path(environ, more))}
    if "SLURM_CONF" in environ:
        kept["SLURM_CONF"] = environ["SLURM_CONF"]
    return lambda argv: finish(argv, timeout_s=COMMAND_S, env=kept)


def search_path(environ: Mapping[str, str], more: Sequence[str] = ()) -> list[str]:
    """Return the absolute folders to search for programs, the caller's first."""
    told = [folder for folder in environ.get("PATH", "").split(":") if folder.startswith("/")]
    usual = [f"{home}/{name}" for home in slurm_homes(environ) for name in ("bin", "sbin")]
    return list(dict.fromkeys([*told, *more, *usual, "/usr/bin", "/usr/sbin"]))


def find_commands(environ: Mapping[str, str], more: Sequence[str] = ()) -> tuple[str, bool]:
    """Return the folder of scontrol ("" if not found), and whether the caller's PATH has it."""
    if found := shutil.which("scontrol", path=environ.get("PATH", "")):
        return os.path.dirname(found), True  # noqa: PTH120
    found = shutil.which("scontrol", path=":".join(search_path(environ, more)))
    return (os.path.dirname(found), False) if found else ("", False)  # noqa: PTH120


def find_conf(environ: Mapping[str, str], root: Path = Path("/")) -> str:
    """Return the path of this host's slurm.conf; "": there is none. Raises UsageError if SLURM_CONF names no file,
    because then no command of Slurm works."""
    place = str(slurm_conf_path(environ=environ, root=root))
    if may_be_file(root / place.lstrip("/")):
        return place
    if environ.get("SLURM_CONF"):
        raise UsageError(f"SLURM_CONF is {shown(place)}, and there is no such file: set it right, or unset it")
    return ""


def read_written(file: str, root: Path = Path("/")) -> ConfText | UnknownFact:
    """Return slurm.conf or a companion file, with the files that it includes."""
    if not file:
        return UnknownFact("there is no slurm.conf on this host")
    try:
        return read_conf(root / file.lstrip("/"))
    except ConfigError as error:
        return UnknownFact(str(error))


def values_of(text: ConfText | UnknownFact) -> Values | UnknownFact:
    """Return the settings in a file by lower-case key, without lines about single nodes or partitions."""
    if isinstance(text, UnknownFact):
        return text
    found: dict[str, tuple[str, ...]] = {}
    for line in text.lines:
        for key, value in () if line.is_block else line.pairs:
            name = key.lower()
            found[name] = (*found.get(name, ()), value) if name in SEVERAL else (value,)
    return found


def gres_of(text: ConfText) -> dict[str, str]:
    """Return Gres= of each node in slurm.conf."""
    return {name: gres for line, gres in text.node_lines("Gres") for name in expand(line.pairs[0][1])}


def options_of(text: ConfText) -> dict[str, dict[str, str]]:
    """Return the options of each partition in slurm.conf by lower-case key; several lines of one partition are
    merged."""
    found: dict[str, dict[str, str]] = {}
    for line in text.lines_of("PartitionName"):
        name = line.get("PartitionName") or ""
        name = name.upper() if name.upper() == "DEFAULT" else name
        known = found.get(name, found.get("DEFAULT", {}))
        found[name] = {**known, **{key.lower(): value for key, value in line.pairs}}
    return {name: options for name, options in found.items() if name != "DEFAULT"}


def parse_config(text: str) -> Values:
    """Parse `scontrol show config` by lower-case key, without (null) values."""
    found: dict[str, tuple[str, ...]] = {}
    for key, value in _KEY.findall(text):
        if value.strip() not in ("", "(null)"):
            found[key.lower()] = (*found.get(key.lower(), ()), value.strip())
    return found


def parse_as_of(text: str) -> float | None:
    """Return the controller's time of that answer as Unix time; scontrol was told to use UTC."""
    match = _AS_OF.search(text)
    return None if match is None else float(calendar.timegm(time.strptime(match[1], "%Y-%m-%dT%H:%M:%S")))


def parse_records(text: str) -> list[dict[str, str]]:
    """Parse `scontrol -o show`: lines of Key=value pairs, with values that may contain blanks."""
    found = []
    for line in text.splitlines():
        keys = list(_FIELD.finditer(line))
        ends = [*(key.start() for key in keys[1:]), len(line)]
        record = {key[1].lower(): line[key.end() : end].strip() for key, end in zip(keys, ends, strict=False)}
        if record:
            found.append({key: "" if value == "(null)" else value for key, value in record.items()})
    return found


def parse_nodes(text: str) -> tuple[SiteNode, ...]:
    """Parse `scontrol -o show node`. Raises CommandError for other text."""
    return tuple(
        SiteNode(node.name, gres, node.states, node.reason, version, node.partitions)
        for node, gres, version in slurm_nodes.parse_described(text)
    )


def parse_partitions(text: str) -> tuple[SitePartition, ...]:
    """Parse `scontrol -o show partition`."""
    return tuple(
        SitePartition(one["partitionname"], expand(one.get("nodes", "")), one)
        for one in parse_records(text)
        if "partitionname" in one
    )


def expand(nodes: str) -> tuple[str, ...]:
    """Return n1, n2, n3 for n[1-3]; empty for text that is no node list."""
    try:
        return nodelist.parse(nodes)
    except UsageError:
        return ()


# --- Together --------------------------------------------------------------------------------------------------------


def read_slurm(
    ask: Ask,
    file: str,
    text: ConfText | UnknownFact,
    node: str,
    roles: Collection[Role],
    root: Path = Path("/"),
    mounts: Sequence[Mount] = (),
    jobs: Collection[int] | None = None,
) -> SlurmFacts:
    """Return Slurm's state, as far as these roles need it: five hundred nodes may ask at once.

    node: this host's. jobs: those to ask Slurm about; None: all jobs on this node.
    """
    facts = SlurmFacts(file=file, written=values_of(text), version=_version(ask), objection=_objection(ask, file))
    if isinstance(text, ConfText):
        if (text.value("AuthType") or "auth/munge").lower() == "auth/munge":
            facts = replace(facts, munge_problem=read_munge(text.value("AuthInfo") or "", root))
        facts = replace(facts, written_gres=gres_of(text), written_partitions=options_of(text))
    return read_files(_asked(facts, ask, node, roles, jobs), text, roles, root, mounts)


def read_configured(
    file: str, text: ConfText, objection: str | UnknownFact, root: Path = Path("/"), coming: Mapping[str, str] = {}
) -> SlurmFacts:
    """Return what Slurm's files say, as `slurm-share install` would leave them. No daemon is asked.

    objection: why Slurm's programs cannot read it. coming: texts of files that are about to be written, by path.
    """
    gres, options = gres_of(text), options_of(text)
    partitions = tuple(
        SitePartition(name, _named(one.get("nodes", ""), gres, text), one) for name, one in options.items()
    )
    nodes = tuple(
        SiteNode(name, one, (), partitions=tuple(part.name for part in partitions if name in part.nodes))
        for name, one in gres.items()
    )
    facts = SlurmFacts(
        file=file,
        written=values_of(text),
        objection=objection,
        live=UnknownFact("the files are read, and no controller is asked"),
        nodes=UnknownFact("nodes register themselves") if text.value("MaxNodeCount") else nodes,
        partitions=partitions,
        written_gres=gres,
        written_partitions=options,
    )
    controller: tuple[Role, ...] = ("controller",)
    return read_files(facts, text, controller, root, coming=coming)


def _named(nodes: str, known: Collection[str], text: ConfText) -> tuple[str, ...]:
    """Return the nodes of a partition: a list, ALL, or node sets."""
    sets = {(line.get("NodeSet") or "").lower(): line.get("Nodes") or "" for line in text.lines_of("NodeSet")}
    if nodes.upper() == "ALL":
        return tuple(known)
    return tuple(dict.fromkeys(one for item in expand(nodes) for one in expand(sets.get(item.lower(), item))))


def read_files(
    facts: SlurmFacts,
    text: ConfText | UnknownFact,
    roles: Collection[Role],
    root: Path = Path("/"),
    mounts: Sequence[Mount] = (),
    coming: Mapping[str, str] = {},
) -> SlurmFacts:
    """Add the facts of the files that slurm.conf names, and of those beside it."""
    source, file = facts.written if isinstance(facts.live, UnknownFact) else facts.live, facts.file
    if isinstance(source, UnknownFact):
        return facts
    folder = os.path.dirname(file) if file else "/etc/slurm"  # noqa: PTH120
    stack = source.get("plugstackconfig", (f"{folder}/plugstack.conf",))[-1]
    stack = stack if stack.startswith("/") else f"{folder}/{stack}"
    is_controller = "controller" in roles
    facts = replace(
        facts,
        cgroup=values_of(read_written(f"{folder}/cgroup.conf", root)),
        containers=_containers(source, folder, root),
        plugstack=_plugstack(stack, root, coming, is_needed=bool(file)),
        plugstack_file=stack,
        prologs=programs.read_hooks(source.get("prolog", ()), PROLOG_NAME, folder, root, mounts, coming),
        epilogs=programs.read_hooks(source.get("epilog", ()), EPILOG_NAME, folder, root, mounts, coming),
        controller_scripts=_controller_scripts(source, folder, root) if is_controller else (),
        scripts=(),
        lua=coming.get(f"{folder}/job_submit.lua", _seen(f"{folder}/job_submit.lua", root)),
        lua_of_package=_text(LUA, root),
        lua_object=lua.find_object(source.get("plugindir", ("",))[-1], root) if is_controller else NOT_HERE,
        lua_problem=_lua_problem(f"{folder}/job_submit.lua", root, coming) if is_controller else NOT_HERE,
        lua_settings=_lua_settings(root, coming) if is_controller else NOT_HERE,
        owned=scripts.read_owned(folder, stack, text, root),
        slurm_uid=scripts.uid_of(source.get("slurmuser", ("root",))[-1]),
    )
    return replace(facts, scripts=scripts.read_scripts(facts, source, roles, folder, root, mounts))


def _controller_scripts(source: Values, folder: str, root: Path) -> tuple[tuple[str, str | UnknownFact], ...]:
    found = (value for key in ("prologslurmctld", "epilogslurmctld") for value in source.get(key, ()))
    paths = (path if path.startswith("/") else f"{folder}/{path}" for path in found)
    return tuple((path, text) for path in dict.fromkeys(paths) if (text := _seen(path, root)) is not None)


SILENT = "no answer within"
"""Beginning of the error of a command that took too long (see process.finish)."""
MOST_BYTES = 4 << 20
"""Most bytes of a script; a larger one is treated as missing."""
MUNGE = "/run/munge/munge.socket.2"
_SOCKET = re.compile(r"(?:^|,)socket=([^,]+)")


def read_munge(info: str, root: Path = Path("/")) -> str:
    """Return why munged does not answer; "": it does.

    info: AuthInfo of slurm.conf, which may name another socket.
    """
    told = _SOCKET.search(info)
    path = told[1] if told else MUNGE
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.settimeout(COMMAND_S)
            one.connect(str(root / path.lstrip("/")))
    except OSError as error:
        return f"munged does not answer at {path} ({error.strerror or error})"
    return ""


NOT_HERE = UnknownFact("this is no controller")


def _asked(facts: SlurmFacts, ask: Ask, node: str, roles: Collection[Role], jobs: Collection[int] | None) -> SlurmFacts:
    """Return what the controller tells. A controller that does not answer is asked only once.

    Cost for slurmctld (sdiag on 26.05): ping and config are a message or two without a lock; nodes and partitions are
    one message each, and return all nodes even if one is asked for.
    """
    try:
        is_up = controllers.parse_ping(ask(controllers.ping_argv()).stdout)
        down = tuple(host for host, is_it in is_up.items() if not is_it)
        if controllers.are_all_down(is_up):
            return _unasked(facts, "no controller answers", down)
        before = time.time()
        config = _answer(ask, ["scontrol", "show", "config"])
        now = (before + time.time()) / 2
        live = parse_config(config)
        as_of, compared = parse_as_of(config), live.get("hash_val", ("Match",))[-1]
        facts = replace(
            facts,
            live=live,
            down=down,
            skew_s=UnknownFact("scontrol does not say when it was answered") if as_of is None else now - as_of,
            differs=compared if compared.startswith("Different") else "",
        )
        if "controller" in roles:
            facts = replace(
                facts,
                nodes=parse_nodes(_answer(ask, ["scontrol", "-o", "show", "node"])),
                partitions=parse_partitions(_answer(ask, ["scontrol", "-o", "-a", "show", "partition"])),
            )
            facts = _with_limits(facts, live, ask)
        elif "compute" in roles:
            said = _answer(ask, ["scontrol", "-o", "show", "node", node], "not found")
            facts = replace(facts, nodes=parse_nodes(said))
        if "controller" not in roles:
            facts = _with_mode(facts, ask, node)
        return _with_jobs(facts, ask, node, jobs) if "compute" in roles else facts
    except CommandError as error:
        if error.code is None and error.stderr.startswith(SILENT):
            why = f"slurmctld has not answered `{' '.join(error.argv)}` within {COMMAND_S:g} s"
            return replace(_unasked(facts, why, ()), is_silent=True)
        return _unasked(facts, str(error), ())


def _unasked(facts: SlurmFacts, why: str, down: tuple[str, ...]) -> SlurmFacts:
    not_there = UnknownFact(why)
    return replace(
        facts, live=not_there, down=down, skew_s=not_there, nodes=not_there, partitions=not_there, jobs_here=not_there
    )


def _answer(ask: Ask, argv: Sequence[str], unknown_is_empty: str = "") -> str:
    done: Finished = ask(argv)
    if done.code and unknown_is_empty and unknown_is_empty in done.stdout + done.stderr:
        return ""  # this host is no node of Slurm, or the job does not exist
    if done.code:
        raise CommandError(tuple(argv), done.code, done.stderr)
    return done.stdout


def _with_jobs(facts: SlurmFacts, ask: Ask, node: str, jobs: Collection[int] | None) -> SlurmFacts:
    """Ask about few jobs one by one, which costs slurmctld little; for many, list all jobs of the cluster."""
    argv = ["squeue", "-h", "-a", f"--states={HERE}", "-O", COLUMNS]
    few = jobs is not None and len(jobs) <= FEW_JOBS
    try:
        if few:
            text = "".join(_answer(ask, [*argv, "-j", str(job)], GONE) for job in sorted(jobs or ()))
        else:
            text = _answer(ask, argv)
    except CommandError as error:
        return replace(facts, jobs_here=UnknownFact(str(error)))
    here = tuple(job for job, nodes, _ in parse_jobs(text) if node in expand(nodes))
    shared = tuple(shared for job, _, shared in parse_jobs(text) if shared is not None and job in here)
    return replace(facts, jobs_here=frozenset(here), shared_here=shared, are_all_jobs=not few)


def _with_limits(facts: SlurmFacts, live: Values, ask: Ask) -> SlurmFacts:
    """Ask slurmdbd, where there is one, and jobs on parts of a GPU."""

    def listed(key: str) -> list[str]:
        return ",".join(live.get(key, ())).lower().split(",")

    if "shard" not in listed("grestypes") or "accounting_storage/slurmdbd" not in listed("accountingstoragetype"):
        return replace(facts, gpu_limits=())
    try:
        limits = read_gpu_limits(ask, live.get("clustername", ("",))[-1], listed("accountingstorageenforce"))
    except CommandError as error:
        return replace(facts, gpu_limits=UnknownFact(str(error)))
    return replace(facts, gpu_limits=limits)


QUESTION_NAME = "slurm-share-doctor"
"""Job name by which job_submit.lua recognizes this query, and does not log it."""
QUESTION = ("sbatch", "--test-only", "--share-gpu=1", "--gres=gpu:0", f"--reservation={QUESTION_NAME}")
"""A job that is refused in every mode: by our job_submit.lua in mode on (a share without a GPU), else by slurmctld (no
such reservation). It is refused before slurmctld searches nodes: a third of a millisecond (sdiag).
"""
ANSWERS = {"shares nothing": "on", "only observes": "observe", "is switched off": "off"}
"""Parts of job_submit.lua's sentences that tell its mode (a test compares)."""


def _with_mode(facts: SlurmFacts, ask: Ask, node: str) -> SlurmFacts:
    """Ask the controller's job_submit.lua for its mode: other hosts cannot see the controller's files."""
    partition = ""
    if not isinstance(facts.nodes, UnknownFact) and (
        here := next((one for one in facts.nodes if one.name == node), None)
    ):
        if "gpu" not in here.gres or not here.partitions:
            return replace(facts, controller_mode=UnknownFact("no partition of this node has GPUs"))
        partition = here.partitions[0]
    where = ("-p", partition) if partition else ()
    try:
        done = ask([*QUESTION, *where, "--wrap", "true"])
    except CommandError as error:
        return replace(facts, controller_mode=UnknownFact(str(error)))
    return replace(facts, controller_mode=parse_mode(done.stderr), asked_partition=partition)


def parse_mode(said: str) -> str | UnknownFact:
    """Return the controller's mode from sbatch's output."""
    for words, mode in ANSWERS.items():
        if words in said:
            return mode
    if "option" in said and "share-gpu" in said:
        return UnknownFact("sbatch on this host does not know --share-gpu, by which the controller would be asked")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return UnknownFact(f"the controller's job_submit.lua does not tell its mode: {lines[-1] if lines else 'no answer'}")


FEW_JOBS = 4
COLUMNS = "JobID:|,Partition:|,NodeList:|,admin_comment:|"
"""Columns of squeue without any user's own text."""
GONE = "Invalid job id"
_SHARE = re.compile(r"(?:^|;)share-gpu=([^;|]*)")


def parse_jobs(text: str) -> Iterator[tuple[int, str, SharedJob | None]]:
    """Yield (job, its nodes as written by Slurm, its share or None) from `squeue -O` with COLUMNS."""
    for line in text.splitlines():
        job, partition, nodes, comment = (*line.split("|", 3), "", "", "")[:4]
        number = numbers.whole(job.strip(), numbers.UINT32_MOST)
        if number is not None:
            share = _SHARE.search(comment)
            found = None if share is None else SharedJob(number, share[1].strip(), partition.strip())
            yield number, nodes.strip(), found


def _objection(ask: Ask, file: str) -> str | UnknownFact:
    """Return why Slurm's programs cannot read slurm.conf; "": they can."""
    if not file:
        return UnknownFact("there is no slurm.conf on this host")
    try:
        return objection_of(ask(READS_CONF))
    except CommandError as error:
        return UnknownFact(str(error))


def _lua_settings(root: Path, coming: Mapping[str, str]) -> str:
    config_file = root / names.CONFIG_FILE.lstrip("/")
    return "" if str(config_file.with_name(lua_settings.NAME)) in coming else lua_settings.problem(config_file)


def _lua_problem(path: str, root: Path, coming: Mapping[str, str]) -> str | UnknownFact:
    return "" if path in coming else lua.read_problem(path, root)


def _version(ask: Ask) -> str | UnknownFact:
    try:
        version = parse_version(ask(["scontrol", "--version"]).stdout)
    except CommandError as error:
        return UnknownFact(str(error))
    return UnknownFact("scontrol does not say its version") if version is None else version


# --- Files beside slurm.conf -----------------------------------------------------------------------------------------


def _plugstack(
    path: str, root: Path, coming: Mapping[str, str] = {}, *, is_needed: bool
) -> tuple[str, ...] | UnknownFact | None:
    """Return the lines of plugstack.conf. A carriage return, which slurm.conf ignores, is part of a name here
    (plugstack.c)."""
    if is_needed and path not in coming and _seen(path, root) is None:
        return None
    try:
        found = read_conf(root / path.lstrip("/"), coming)
        written = {
            file: coming.get(str(file), "").split("\n") if str(file) in coming else read_text(file).split("\n")
            for file in found.files
        }
    except ConfigError as error:
        return UnknownFact(str(error))
    return tuple(line.text + ("\r" if written[line.file][line.last - 1].endswith("\r") else "") for line in found.lines)


def _containers(source: Values, folder: str, root: Path) -> str | UnknownFact:
    """Return the text of the file that gives jobs folders of their own; "": there is none."""
    kinds = (source.get(key.lower(), ("",))[-1] for key in job_folders.KEYS)
    name = next(filter(None, map(job_folders.file_of, kinds)), "")
    return _seen(f"{folder}/{name}", root) or "" if name else ""


def _seen(path: str, root: Path) -> str | UnknownFact | None:
    """Return the text of a file; None: it is missing."""
    file = root / path.lstrip("/")
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            return UnknownFact(f"{path} is no plain file")
        with file.open("rb") as stream:
            return stream.read(MOST_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        return UnknownFact(f"{path} cannot be read ({error.strerror})")


def _text(path: str, root: Path) -> str | None:
    found = _seen(path, root)
    return None if isinstance(found, UnknownFact) else found
