"""Reads a site's Slurm files on this host and finds our lines in them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ..core import config, names
from ..core.errors import CommandError, ConfigError
from ..core.installed import EPILOG, PROLOG
from ..core.process import finish
from ..doctor import OBJECT, find_object, read_hooks
from ..share import site
from ..slurm.account_limits import GpuLimit, read_gpu_limits
from ..slurm.backend import read_release
from ..slurm.conf import read_conf, read_text
from ..slurm.conf_text import ConfText
from ..slurm.jobs import read_queue
from ..slurm.records import QueuedJob
from .rules.hosts import WRAPPERS, is_wrapper
from .rules.lines import SlurmFiles

QUEUE_S = 20.0
ACCOUNTS_S = 10.0


def read_present(conf: Path, *, with_limits: bool = False) -> SlurmFiles:
    """Read everything that `site_lines` needs. Raises ConfigError for a file that cannot be read.

    with_limits: also ask slurmdbd for limits on GPUs.
    """
    slurm = read_conf(conf)
    plug = conf.parent / (slurm.value("PlugStackConfig") or "plugstack.conf")
    gres = conf.with_name("gres.conf")
    lua = conf.with_name("job_submit.lua")
    plugstack, gres_text = (read_conf(file) if file.exists() else ConfText(file, ()) for file in (plug, gres))
    files = {*slurm.files, *plugstack.files, *gres_text.files, lua, *_wrappers(conf)}
    texts = {str(file): read_text(file) for file in files if file.exists()}
    return SlurmFiles(
        slurm,
        plugstack,
        gres_text,
        texts,
        str(lua),
        read_release(),
        _started(slurm),
        _configuration().settings,
        frozenset(str(file) for file in _wrappers(conf) if _is_unrunnable(file, texts.get(str(file)))),
        _limits(slurm) if with_limits else (),
    )


def read_shares() -> tuple[QueuedJob, ...] | None:
    """Return the running shared jobs that Slurm shows to the caller; None: Slurm did not answer."""
    try:
        _, jobs = read_queue(states=("RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING"), timeout_s=QUEUE_S)
    except CommandError:
        return None
    return tuple(job for job in jobs if job.share is not None)


def _limits(slurm: ConfText) -> tuple[GpuLimit, ...]:
    """Return the limits on gres/gpu without one on gres/shard; none if slurmdbd does not answer, as doctor says."""
    if (slurm.value("AccountingStorageType") or "").lower() != "accounting_storage/slurmdbd":
        return ()
    enforced = [item.lower() for item in slurm.listed("AccountingStorageEnforce")]
    try:
        return read_gpu_limits(partial(finish, timeout_s=ACCOUNTS_S), slurm.value("ClusterName") or "", enforced)
    except CommandError:
        return ()


def _wrappers(conf: Path) -> list[Path]:
    return [conf.with_name(name) for name in WRAPPERS.values()]


def _is_unrunnable(file: Path, text: str | None) -> bool:
    """Return whether a file is a wrapper of ours that is not executable."""
    return text is not None and is_wrapper(str(file), text) and not file.stat().st_mode & 0o111


def known_files(conf: Path) -> frozenset[str]:
    """Return every file that an --apply here may write: slurm.conf, the files beside it, and their includes."""
    files = {conf, conf.with_name("plugstack.conf"), conf.with_name("gres.conf"), conf.with_name("job_submit.lua")}
    files |= set(_wrappers(conf))
    try:
        slurm = read_conf(conf)
        files |= {*slurm.files, conf.parent / (slurm.value("PlugStackConfig") or "plugstack.conf")}
        for file in [one for one in files if one != conf and one.exists() and one.suffix not in (".lua", ".sh")]:
            files |= set(read_conf(file).files)
    except ConfigError:
        pass  # the caller that needs this file reports the error
    return frozenset(map(str, files))


def _configuration() -> config.Configuration:
    """Return the configuration, or all defaults if config.toml is invalid, which doctor reports."""
    try:
        return config.load()
    except ConfigError:
        return config.parse("", names.CONFIG_FILE)


def _started(slurm: ConfText) -> dict[str, tuple[str, ...]]:
    """Return the files that each value of Prolog= and Epilog= starts on this host: each file, the targets of its links,
    and our hook if a script of the site calls it."""
    found: dict[str, tuple[str, ...]] = {}
    for key, ours in (("Prolog", PROLOG), ("Epilog", EPILOG)):
        for hook in read_hooks(slurm.values(key), ours.rpartition("/")[2], str(slurm.file.parent)):
            here = [
                path
                for file in hook.files
                for path in (file.path, file.chain[-1].path, *((ours,) if file.is_ours else ()))
            ]
            found[hook.written] = tuple(dict.fromkeys([*found.get(hook.written, ()), *here]))
    return found


def named_hooks(conf: Path) -> list[str]:
    """Return the lines of slurm.conf that start our hooks here and fail without them."""
    slurm = read_conf(conf)
    started = _started(slurm)
    without = [file.name for file in _wrappers(conf) if file.exists() and is_wrapper(str(file), read_text(file))]
    return [
        f"{key}={value}"
        for key, ours in (("Prolog", PROLOG), ("Epilog", EPILOG))
        for value in slurm.values(key)
        if value not in without
        if ours in started[value] or value.rpartition("/")[2] == ours.rpartition("/")[2]
    ]


def named_lua(conf: Path) -> list[str]:
    """Return the site's job_submit.lua if it loads ours from the package's folder; a copy needs no package."""
    lua = conf.with_name("job_submit.lua")
    return [str(lua)] if lua.exists() and site.judge(read_text(lua)) in site.LOADS_OURS else []


def without_lua(slurm: ConfText, root: Path = Path("/")) -> list[str]:
    """Return why JobSubmitPlugins=lua must not be written here: without the plugin slurmctld does not start, and no
    Slurm command tests that. Can be told only where other submit plugins are installed, as on controllers."""
    if find_object(slurm.value("PluginDir") or "", root) != "":
        return []
    return [
        f"Slurm on this host has no {OBJECT} among its plugins: slurmctld would not start again with "
        "JobSubmitPlugins=lua; install a Slurm that was built with Lua"
    ]
