"""Read all facts of a host for `slurm-share doctor`. Changes nothing, and every reading has a time limit."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from ...core import config, names
from ...core.errors import ConfigError, SlurmShareError, StateError, UsageError
from ...core.installed import HOME, PLUGIN
from ...core.settings import Configuration, Settings
from ...share import Health, Host, mode_file
from ...slurm import controllers, node_plugin
from ...slurm.conf_text import ConfText
from ...slurm.rules.node_name import node_of_host
from . import package as fact_package
from . import programs
from . import slurm as fact_slurm
from . import state as fact_state
from . import system as fact_system
from .records import (
    ROLES,
    AgentFacts,
    ArchiveFacts,
    Facts,
    FileFact,
    HostFacts,
    HostGpus,
    LostPath,
    PluginFacts,
    Role,
    SlurmFacts,
    StateFacts,
    UnknownFact,
)
from .system import Ask

PACKAGE = Path(__file__).parents[2]
"""The folder slurm_share/ of this process."""
READ_S = 40.0
"""Time limit of one reading in seconds: several queries to Slurm, or a driver that wakes its GPUs."""
FILE_S = 10.0
"""Time limit of reading a file in seconds: a file on a hanging file server counts as unreadable."""
MOST_BYTES = 1 << 20
"""Most bytes read of config.toml; the plugin reads no more (site_mode.c)."""
AGENT_UNIT = "slurm-share-agent.service"
ARCHIVE_UNIT = "slurm-share-archive"
MODULES = "modules"
"""Name of the check that imports every Python module of ours."""
Seen = TypeVar("Seen")


def read_facts(
    roles: tuple[Role, ...] = (),
    *,
    root: Path = Path("/"),
    environ: Mapping[str, str] = os.environ,
    ask: Ask | None = None,
    read_driver_state: Callable[[], HostGpus] | None = None,
    ask_agent: Callable[[Settings], tuple[str, str]] = lambda settings: ("", ""),
    all_jobs: bool = False,
    without: Collection[str] = (),
) -> Facts:
    """Return the facts of this host, in the given roles, or in those that it is found to have.

    root: file system to read. ask: runs a program. read_driver_state: reads the driver. ask_agent: returns why the
    agent does not answer, and the node's name in its answer. all_jobs: ask Slurm for all jobs of this node, which fixes
    need, and not only for those that the node knows. without: names of checks that will not be made; `modules` takes
    most of doctor's CPU time. Raises UsageError if SLURM_CONF names no file.
    """
    is_here = root == Path("/")
    are_tried = is_here and MODULES not in without
    modules = _begin(fact_package.read_broken_modules, UnknownFact) if are_tried else None
    daemon_folders = fact_system.read_daemon_folders(root)
    ask = ask or fact_slurm.asker(environ, daemon_folders)
    host = (root / "proc/sys/kernel/hostname").read_text(encoding="ascii", errors="replace").strip()
    system = _within(lambda: fact_system.read_host(ask, names.STATE_ROOT, root), fact_system.missed)
    file, text = _within(lambda: _read_conf(environ, root), lambda why: ("", UnknownFact(why)), FILE_S)
    node = system.node or _node_of_host(text, host) or controllers.short_name(host)
    roles = roles or find_roles(host, text, system, file)
    jobs: frozenset[int] | None = None
    if "compute" in roles and not all_jobs:
        jobs = _within(lambda: fact_state.read_job_ids(names.STATE_ROOT, root), lambda why: None)
    slurm = _within(
        lambda: fact_slurm.read_slurm(ask, file, text, node, roles, root, system.mounts, jobs),
        lambda why: SlurmFacts(live=UnknownFact(why), version=UnknownFact(why)),
    )
    if is_here:
        commands, are_in_path = fact_slurm.find_commands(environ, daemon_folders)
        slurm = replace(slurm, commands=commands, are_in_path=are_in_path)
    configuration = _within(lambda: read_configuration(root), UnknownFact)
    settings = Settings() if isinstance(configuration, UnknownFact) else configuration.settings

    def file_fact(path: str) -> FileFact | None:
        return _within(lambda: programs.read_file_fact(path, root, system.mounts), lambda why: None, FILE_S)

    plugin = _within(
        lambda: programs.read_plugin(plugin_path(slurm), root, system.mounts),
        lambda why: PluginFacts(plugin_path(slurm), None, UnknownFact(why)),
        FILE_S,
    )
    if is_here and plugin.file is not None:
        folders = fact_slurm.search_path(environ, daemon_folders)
        paths = plugin_paths(slurm)
        problems = _within(lambda: fact_package.read_load_problems(paths, roles, folders), UnknownFact)
        plugin = replace(plugin, load_problems=problems)
    facts = Facts(
        host=node,
        roles=roles,
        is_root=os.geteuid() == 0,
        slurm=slurm,
        config=configuration,
        config_file=file_fact(names.CONFIG_FILE),
        plugin=plugin,
        hooks=read_hook_programs(hook_paths(slurm), file_fact),
        package=file_fact(str(PACKAGE)),
        host_facts=system,
        mode_file=_within(lambda: _read_mode_file(settings.mode_file, root), UnknownFact, FILE_S),
        has_operators_group=_within(lambda: fact_package.has_group(settings.operators_group), UnknownFact, FILE_S),
        archive=_within(lambda: read_archive(ask, root), UnknownFact, FILE_S),
    )
    if "compute" in roles:
        facts = _with_node(facts, settings, root, read_driver_state, ask_agent, file_fact)
    return facts if modules is None else replace(facts, broken_modules=modules())


def read_configured(
    file: str,
    text: ConfText,
    objection: str | UnknownFact,
    *,
    coming: Mapping[str, str],
    is_of_host: bool,
    root: Path = Path("/"),
) -> Facts:
    """Return the facts of the configuration alone, as `slurm-share install` would leave it. No daemon is asked.

    objection: why Slurm's programs cannot read slurm.conf. coming: texts of files that are about to be written, by
    path. is_of_host: whether this host uses that slurm.conf; it then is checked as a node, too, if it is one.
    """
    host = (root / "proc/sys/kernel/hostname").read_text(encoding="ascii", errors="replace").strip()
    found = find_roles(host, text, HostFacts(), file) if is_of_host else ()
    roles: tuple[Role, ...] = ("controller", "compute") if "compute" in found else ("controller",)
    configuration = read_configuration(root)
    settings = Settings() if isinstance(configuration, UnknownFact) else configuration.settings
    return Facts(
        host=_node_of_host(text, host) or controllers.short_name(host),
        roles=roles,
        is_root=os.geteuid() == 0,
        slurm=fact_slurm.read_configured(file, text, objection, root, coming),
        config=configuration,
        config_file=programs.read_file_fact(names.CONFIG_FILE, root),
        mode_file=_within(lambda: _read_mode_file(settings.mode_file, root), UnknownFact, FILE_S),
        has_operators_group=_within(lambda: fact_package.has_group(settings.operators_group), UnknownFact, FILE_S),
    )


def _with_node(
    facts: Facts,
    settings: Settings,
    root: Path,
    read_driver_state: Callable[[], HostGpus] | None,
    ask_agent: Callable[[Settings], tuple[str, str]],
    file_fact: Callable[[str], FileFact | None],
) -> Facts:
    """Add the facts that only a compute node has."""
    mounts, state_root = facts.host_facts.mounts, names.STATE_ROOT

    def driver() -> HostGpus:
        from . import gpus as fact_gpus  # only compute nodes need NVML

        return fact_gpus.read_gpus(root)

    wanted = _agent_wanted(settings, root)
    state = _within(
        lambda: fact_state.read_state(settings, state_root, root, mounts),
        lambda why: StateFacts(state_root, ledger=UnknownFact(why)),
    )
    gpus = _within(read_driver_state or driver, lambda why: HostGpus(UnknownFact(why)))
    here = Host(paths=fact_state.paths_of(state_root, root), settings=settings, root=root)

    def read_backends() -> tuple[Mapping[str, Health] | UnknownFact, tuple[LostPath, ...]]:
        return fact_state.read_backends(
            here, mounts, driver=gpus.driver, ledger=state.ledger, asks_daemons=facts.is_root
        )

    backends, lost = _within(read_backends, lambda why: (UnknownFact(why), ()))
    return replace(
        facts,
        state=replace(state, lost=(*state.lost, *lost)),
        gpus=gpus,
        backends=backends,
        agent=replace(
            _agent(wanted, ask_agent(settings) if wanted else ("", ""), file_fact(settings.agent_token_file)),
            tls_problem=_tls_problem(settings, facts.host),
        ),
    )


def _tls_problem(settings: Settings, node: str) -> str | UnknownFact:
    """Return why callers of the agent would refuse its certificate; "": they would not, or it needs none."""
    certificate = settings.agent_tls_certificate
    if not (settings.agent_http and certificate):
        return ""
    from ...load import tls  # only where an agent uses it

    try:
        problem = tls.problem_of(certificate, settings.agent_tls_key or certificate, node, settings.agent_tls_client_ca)
    except StateError as error:
        is_secret = isinstance(error.__cause__, PermissionError) and os.geteuid() != 0
        return UnknownFact("whether the key can be used is for root to see") if is_secret else str(error)
    return f"{certificate}: {problem}" if problem else ""


def _read_conf(environ: Mapping[str, str], root: Path) -> tuple[str, ConfText | UnknownFact]:
    """Read slurm.conf, with a time limit: it may be on a hanging file server."""
    file = fact_slurm.find_conf(environ, root)
    return file, fact_slurm.read_written(file, root)


def read_configuration(root: Path = Path("/")) -> Configuration | UnknownFact:
    """Return the configuration of this host, or the defaults if there is no config.toml."""
    file = root / names.CONFIG_FILE.lstrip("/")
    for place in (file.parent, file):
        if place.is_symlink() and not place.exists():
            return UnknownFact(f"/{place.relative_to(root)} is a link to {place.readlink()}, and nothing is there")
    try:
        seen = file.stat()
        if not stat.S_ISREG(seen.st_mode):
            return UnknownFact(f"{names.CONFIG_FILE} is no plain file")
        if seen.st_size > MOST_BYTES:
            return UnknownFact(f"{names.CONFIG_FILE} is larger than {MOST_BYTES} bytes; that is no configuration file")
    except FileNotFoundError:
        return config.parse("", names.CONFIG_FILE)
    except OSError as error:
        return UnknownFact(f"{names.CONFIG_FILE} cannot be read ({error.strerror})")
    try:
        return config.load(file)
    except ConfigError as error:
        return UnknownFact(str(error))


def _read_mode_file(path: str, root: Path) -> str | UnknownFact:
    """Return the text of the mode file; "": there is none. The caller gives up on a hanging file server."""
    found = mode_file.read_here(str(root / path.lstrip("/"))) if path else mode_file.ModeFile(None)
    if found.problem is None:
        return found.text or ""
    what = "is no plain file" if found.problem == mode_file.NO_FILE else f"cannot be read ({found.problem})"
    return UnknownFact(f"{path} {what}")


def plugin_path(slurm: SlurmFacts) -> str:
    """Return the path of our plugin in plugstack.conf, or its usual path if it is not there."""
    return plugin_paths(slurm)[0]


def plugin_paths(slurm: SlurmFacts) -> tuple[str, ...]:
    """Return all paths of our plugin in plugstack.conf, or its usual path if it is not there.

    Slurm looks for a name that is no absolute path in the folders of PluginDir (spank.c).
    """
    values = slurm.written if isinstance(slurm.live, UnknownFact) else slurm.live
    folders = "" if isinstance(values, UnknownFact) else ":".join(values.get("plugindir", ()))
    lines = () if isinstance(slurm.plugstack, UnknownFact) else slurm.plugstack or ()
    return node_plugin.named_paths(lines, [one for one in folders.split(":") if one]) or (PLUGIN,)


def hook_paths(slurm: SlurmFacts) -> tuple[str, ...]:
    """Return the paths of our Prolog and Epilog in slurm.conf, or the packages' paths."""
    found = []
    for hooks, default in zip((slurm.prologs, slurm.epilogs), programs.HOOKS, strict=True):
        name = default.rpartition("/")[2]
        files = () if isinstance(hooks, UnknownFact) else (file for hook in hooks for file in hook.files)
        real = (file.chain[-1].path for file in files if file.is_ours)
        found.append(next((path for path in real if path.rpartition("/")[2] == name), default))
    return tuple(found)


def read_hook_programs(paths: Iterable[str], file_fact: Callable[[str], FileFact | None]) -> dict[str, FileFact | None]:
    """Return the programs that slurmd starts, and the Python hooks behind them; a hook installed by pip is its own
    program."""
    found = {path: file_fact(path) for path in paths}
    fronts = [path for path, file in found.items() if file is not None and file.interpreter is None]
    behind = [path.replace("/bin/", "/libexec/") for path in fronts if path.startswith(f"{HOME}/bin/")]
    return {**found, **{path: file_fact(path) for path in behind}}


def find_roles(host: str, text: ConfText | UnknownFact, system: HostFacts, file: str) -> tuple[Role, ...]:
    """Return the host's roles in Slurm, by its running daemons and by slurm.conf, which also lists hosts whose daemon
    is down. A host that is neither and has Slurm's configuration is a login node. Empty: it has nothing of Slurm."""
    found: set[Role] = set()
    hosts = () if isinstance(text, UnknownFact) else controllers.named_in(text)
    if "slurmctld" in system.daemons or controllers.short_name(host) in map(controllers.short_name, hosts):
        found.add("controller")
    if "slurmd" in system.daemons or _node_of_host(text, host) is not None:
        found.add("compute")
    if not found and (file or "sackd" in system.daemons):
        found.add("login")
    return tuple(role for role in ROLES if role in found)


def _node_of_host(text: ConfText | UnknownFact, host: str) -> str | None:
    return None if isinstance(text, UnknownFact) else node_of_host(text, host)


def _agent(wanted: str, answer: tuple[str, str], token: FileFact | None) -> AgentFacts:
    problem, node = answer
    return AgentFacts(wanted, problem, token, node)


def read_archive(ask: Ask, root: Path = Path("/")) -> ArchiveFacts | UnknownFact:
    """Return the state of the archive's timer and of its last run. Raises CommandError if systemctl does not answer."""
    if not (root / "run/systemd/system").is_dir():
        return UnknownFact("no systemd runs here")
    properties = "--property=UnitFileState,ActiveState,Result,ExecMainStatus"
    timer, service = (
        dict(
            line.split("=", 1)
            for line in ask(["systemctl", "show", properties, unit]).stdout.splitlines()
            if "=" in line
        )
        for unit in (f"{ARCHIVE_UNIT}.timer", f"{ARCHIVE_UNIT}.service")
    )
    is_on = timer.get("ActiveState") == "active" or timer.get("UnitFileState", "").startswith("enabled")
    if service.get("ActiveState") != "failed":
        return ArchiveFacts(is_on)
    result, code = service.get("Result", ""), service.get("ExecMainStatus", "0")
    return ArchiveFacts(is_on, f"{result} {code}" if result == "exit-code" else result)


def _agent_wanted(settings: Settings, root: Path) -> str:
    if settings.agent_http:
        return "config.toml has agent_http"
    if settings.agent_textfile:
        return "config.toml has agent_textfile"
    if settings.load_source == "agents":
        return "config.toml has load_source = agents"
    units = root / "etc/systemd/system"
    enabled = sorted(units.glob(f"*.wants/{AGENT_UNIT}")) if units.is_dir() else ()
    if enabled:
        return f"{AGENT_UNIT} is enabled"
    return "its socket is there" if (root / settings.agent_socket.lstrip("/")).exists() else ""


def _within(read: Callable[[], Seen], late: Callable[[str], Seen], seconds: float = READ_S) -> Seen:
    """Return what `read` returns; what `late` makes of the reason if `read` fails or takes too long. A thread that
    hangs in a driver or file server cannot be stopped; it ends with this program."""
    return _begin(read, late, seconds)()


def _begin(read: Callable[[], Seen], late: Callable[[str], Seen], seconds: float = READ_S) -> Callable[[], Seen]:
    """Start `read` in the background; the returned function waits for its result, as `_within` does."""
    seen: list[Seen] = []
    mistake: list[UsageError] = []
    why = [f"no answer within {seconds:g} s: something hangs"]

    def work() -> None:
        try:
            seen.append(read())
        except UsageError as error:
            mistake.append(error)
        except (SlurmShareError, OSError) as error:
            why[0] = str(error)
        except Exception as error:  # noqa: BLE001  (outermost of its thread: a defect is called one, and not a hang)
            why[0] = f"a defect of slurm-share kept it from being read: {type(error).__name__}: {error}"

    def result() -> Seen:
        thread.join(seconds)
        if mistake:
            raise mistake[0]
        return seen[0] if seen else late(why[0])

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return result
