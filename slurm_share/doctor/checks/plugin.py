"""Checks of the SPANK plugin and the package: present, of the right release, owned by root, and on a local disk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...core.errors import quoted
from ...core.installed import HOME, LIB, OBJECT, PLUGIN
from ...core.names import CONFIG_FILE
from ...share import without_plugin
from ..facts.records import AS_USER, CheckVerdict, Facts, UnknownFact
from .base import (
    COMPUTE,
    EVERYWHERE,
    check,
    closed,
    configuration,
    fail,
    failures,
    listed_values,
    named,
    ok,
    release_of,
    seen,
    seen_or,
    skip,
    unsafe,
    warn,
)

NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "smb3", "ceph", "afs", "9p", "wekafs", "panfs", "pvfs2",
     "glusterfs", "fuse.glusterfs", "fuse.sshfs", "fuse.ceph", "fuse.cvmfs2", "cvmfs2"}
)  # fmt: skip
"""File systems of other hosts, as the kernel names them in /proc/PID/mountinfo."""


@check(
    "plugstack",
    EVERYWHERE,
    needs="configuration",
    asks=f"plugstack.conf names {OBJECT}, as optional",
    why="without it --share-gpu is an unknown option; a required plugin that does not load stops slurmd and every srun",
    fix=f"plugstack.conf: optional {PLUGIN}",
)
def plugstack(facts: Facts) -> Sequence[CheckVerdict]:
    lines = seen(facts.slurm.plugstack)
    file = facts.slurm.plugstack_file or "plugstack.conf"
    if lines is None:
        is_configless = "enable_configless" in seen_or(listed_values(facts, "SlurmctldParameters"), ())
        if facts.roles == ("controller",) and not is_configless:
            return skip(f"there is no {file}, and a controller that sends none needs none")
        folder = facts.slurm.file.rpartition("/")[0]
        if is_configless and folder not in ("", file.rpartition("/")[0]):
            fix = "slurm.conf: take PlugStackConfig out: nodes then take the plugstack.conf that the controller sends"
            return fail(
                f"there is no {file}, which PlugStackConfig names; what the controller sends is in {folder}", fix
            )
        return fail(f"there is no {file}")
    ours = [line for line in lines if OBJECT in line]
    if not ours:
        return fail(f"{file} does not name it")
    found: list[CheckVerdict] = []
    if any(line.endswith(f"{OBJECT}\r") for line in ours):
        found += fail(
            f"{file}: a carriage return ends the line, and Slurm takes it for a part of the name",
            f"sed -i 's/\\r$//' {file} (or in the file it includes)",
        )
    optional = [line for line in ours if line.split()[0].lower() == "optional"]
    for line in (line for line in ours if line not in optional):
        fix = f"take that line out of {file} (or of the file it includes)"
        found += warn(f"it says `{line.rstrip()}`", fix if optional else f"plugstack.conf: optional {line.split()[1]}")
    if len(optional) > 1:
        said = f"it is loaded {len(optional)} times: `{named((one.rstrip() for one in optional), 2)}`"
        found += warn(said, f"leave one of these lines in {file} and the files it includes")
    return found or ok(ours[0])


def _opened(why: str) -> str:
    """Return the fix that lets users read the folder. All our files were written with the same restrictive umask;
    nothing outside the folder is opened."""
    path = why.split()[0]
    home = next((one for one in (HOME, LIB) if path == one or path.startswith(f"{one}/")), "")
    return f"chmod -R a+rX {home}" if home else f"chmod a+rX {path}"


@check(
    "plugin",
    EVERYWHERE,
    asks="the plugin's object is on this host, only root can change it, and everybody can read it",
    why="--share-gpu is an unknown option here, or a job's tasks get no slot; a configless controller sends"
    " plugstack.conf, but not the object",
    fix="install slurm-share-spank on this host",
)
def plugin(facts: Facts) -> Sequence[CheckVerdict]:
    file = facts.plugin.file
    if file is None:
        link = f" (a link to {facts.plugin.link})" if facts.plugin.link else ""
        configless = "enable_configless" in seen_or(listed_values(facts, "SlurmctldParameters"), ())
        note = "; configless Slurm ships plugstack.conf and not the object" if configless else ""
        return fail(f"there is no {facts.plugin.path}{link}{note}")
    if why := unsafe(file):
        return fail(why, f"chown root and chmod go-w {file.path}")
    if why := closed(file):
        return fail(f"{why}: srun and sbatch of users cannot load it", _opened(why))
    return ok(file.path)


@check(
    "plugin-release",
    EVERYWHERE,
    asks="the plugin's object was built for the Slurm that is installed here",
    why="Slurm loads only plugins of its own major.minor release, and reports an optional one only in its log: every"
    " share is refused or unknown",
    fix="slurm-share-plugin (it chooses the object of this release, or builds one); slurm-share doctor --fix runs it",
)
def plugin_release(facts: Facts) -> Sequence[CheckVerdict]:
    release = facts.plugin.release
    if facts.plugin.file is None:
        return skip("there is no object")
    if isinstance(release, UnknownFact):
        return fail(f"{facts.plugin.path}: {release.why}", "install slurm-share-spank anew")
    version = seen(facts.slurm.version)
    wanted = release_of(version)
    if release == wanted:
        return ok(f"for Slurm {release}")
    if facts.plugin.has_chooser:
        fix = "slurm-share-plugin, or slurm-share doctor --fix, which runs it"
    elif facts.plugin.link and any(one.rpartition("/")[2] == wanted for one in facts.plugin.releases):
        fix = f"slurm-share doctor --fix (an object for {wanted} is there)"
    else:
        fix = f"install slurm-share-spank, which chooses or builds the one for Slurm {wanted}"
    return fail(f"{facts.plugin.path} is for Slurm {release}, {version} is installed here", fix)


@check(
    "plugin-loads",
    EVERYWHERE,
    asks="all of Slurm's programs on this host can load the plugin's object, as root and as a user",
    why="Slurm leaves out an object that is damaged or of another system, or that needs a missing library or symbol:"
    " --share-gpu is unknown on a login host, and on a node a share's tasks have the whole GPU; since 25.11 Slurm"
    " logs that only with SlurmdDebug=verbose",
    fix="install slurm-share-spank anew; one that was built on this host: slurm-share-plugin --again",
)
def plugin_loads(facts: Facts) -> Sequence[CheckVerdict]:
    if facts.plugin.file is None:
        return skip("there is no object")
    problems, release = seen(facts.plugin.load_problems), facts.plugin.release
    version = seen_or(facts.slurm.version, None)
    if isinstance(release, UnknownFact) or (version is not None and release != release_of(version)):
        return skip("see plugin-release")
    if closed(facts.plugin.file):  # what users cannot read they cannot load
        problems = tuple((program, why) for program, why in problems if not why.startswith(AS_USER))
        return _by_reason(problems) or skip("root can; for users see plugin")
    return _by_reason(problems) or ok("they can")


@check(
    "plugin-used",
    COMPUTE,
    asks="the steps of the last shared job here loaded the plugin",
    why=f"such a job ran unshared, as its output and the hooks' log say; after {without_plugin.MOST_JOBS} of them in a"
    " row the node refuses shares while the plugin cannot be loaded, and cancels their jobs; ordinary jobs run",
    fix="correct what plugin-loads, plugin and plugstack name; if they say nothing: slurmd's log with"
    " SlurmdDebug=verbose, and SELinux's (ausearch -m avc); the next shared job here ends this",
)
def plugin_used(facts: Facts) -> Sequence[CheckVerdict]:
    told = without_plugin.node_sentence(seen(facts.state.ledger))
    return warn(told) if told else ok("they did, or there was none")


def _by_reason(problems: Iterable[tuple[str, str]]) -> list[CheckVerdict]:
    """Return a FAIL for each reason, with the names that have it."""
    names: dict[str, list[str]] = {}
    for name, why in problems:
        names.setdefault(why, []).append(name)
    return failures(f"{named(those)}: {why}" for why, those in names.items())


@check(
    "hook-programs",
    COMPUTE,
    asks="our Prolog and Epilog are installed here, with the Python that they run on",
    why="slurmd cannot start them, and the next job drains the node",
    fix="install slurm-share on this host (after an upgrade of Python: install it anew)",
)
def hook_programs(facts: Facts) -> Sequence[CheckVerdict]:
    found: list[CheckVerdict] = []
    for path, file in facts.hooks.items():
        if file is None:
            found += fail(f"there is no {path}")
        elif not file.is_executable:
            found += fail(f"{path} is not executable", f"chmod 755 {path}")
        elif not file.interpreter_is_there:
            found += fail(f"{path} wants {file.interpreter}, which is not there")
        elif why := unsafe(file):
            found += fail(f"{path}: {why}", "chown root and chmod go-w what is named")
    return found or ok(named(facts.hooks))


@check(
    "modules",
    EVERYWHERE,
    asks="every Python module of slurm-share, and of the libraries that come with it, can be imported, by users too",
    why="the command or hook that needs the module fails; if the Prolog fails, the next job drains the node",
    fix="install slurm-share on this host anew",
)
def modules(facts: Facts) -> Sequence[CheckVerdict]:
    found = _by_reason(seen(facts.broken_modules))
    if facts.package is not None and (why := closed(facts.package)):
        found += fail(f"{why}: users' commands, and their tasks' launcher, cannot be started", _opened(why))
    return found or ok("all of them can")


@check(
    "install-path",
    EVERYWHERE,
    asks="programs and plugin are on this host's own disk",
    why="when the file server is slow, every job's Prolog and every user's srun wait for it",
    fix=f"install the packages on each host; do not share {HOME} or {LIB}",
)
def install_path(facts: Facts) -> Sequence[CheckVerdict]:
    files = [facts.plugin.file, facts.package, *facts.hooks.values()]
    remote = [file for file in files if file is not None and file.file_system in NETWORK_FILE_SYSTEMS]
    if remote:
        return warn(named(f"{file.path} is on {file.file_system}" for file in remote))
    return ok("on this host's own disk")


@check(
    "config",
    EVERYWHERE,
    needs="configuration",
    asks="/etc/slurm-share/config.toml is valid, everybody can read it, and only root can change it",
    why="no job is shared; the hooks' log has a line for each",
    fix="`slurm-share config print` names the line",
)
def config(facts: Facts) -> Sequence[CheckVerdict]:
    if isinstance(facts.config, UnknownFact):
        why = facts.config.why
        fix = "mount what the link points to, or put the file in its place" if "is a link to" in why else ""
        fix = fix or (f"chmod a+r {CONFIG_FILE}, and a+x the folders above it" if "cannot be read" in why else "")
        return fail(why, fix)
    if facts.config_file is None:
        return ok("there is none: all defaults, which only observe")
    if why := unsafe(facts.config_file):
        return fail(why, f"chown root and chmod go-w {facts.config_file.path}")
    if why := closed(facts.config_file):
        said = f"{why}: neither job_submit.lua, which SlurmUser runs, nor users' commands can read the settings"
        return fail(said, f"chmod a+rX {why.split()[0]}")
    return ok(facts.config_file.path)


@check(
    "operators-group",
    EVERYWHERE,
    needs="configuration",
    asks="this host knows the group that operators_group names",
    why="operators do not see other users' jobs in `slurm-share status`, without a message",
    fix="groupadd it, or put operators_group in config.toml right; `getent group` lists what this host knows",
)
def operators_group(facts: Facts) -> Sequence[CheckVerdict]:
    group = configuration(facts).settings.operators_group
    if not group:
        return ok("config.toml names none")
    known = seen(facts.has_operators_group)
    fix = f"groupadd {group}, or put operators_group in config.toml right"
    return ok(group) if known else warn(f"operators_group is {quoted(group)}, and this host knows no such group", fix)


CHECKS = (
    plugstack, plugin, plugin_release, plugin_loads, plugin_used, hook_programs, modules, install_path, config,
    operators_group,
)  # fmt: skip
