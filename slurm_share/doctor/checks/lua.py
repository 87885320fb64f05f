"""Checks of job_submit.lua: whether slurmctld can run it, and whether it runs ours."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.installed import LIB, LUA
from ...share import lua_settings, site, submit_script
from ..facts.records import Facts, Unseen, Verdict
from .base import CONTROLLER, Skip, check, configuration, fail, listed_values, ok, seen, skip, warn

SPANK = "install slurm-share-spank on this host"


def _need_lua(facts: Facts) -> None:
    """Raise Skip if Slurm uses no Lua."""
    if not site.has_lua(seen(listed_values(facts, "JobSubmitPlugins"))):
        raise Skip("JobSubmitPlugins has no lua")


@check(
    "job-submit",
    CONTROLLER,
    needs="configuration",
    asks="JobSubmitPlugins has lua, and the site's job_submit.lua is ours or calls ours",
    why="a shared job is allocated neither its GPUs nor whole nodes, and the hooks refuse it",
    fix=f"slurm.conf: JobSubmitPlugins=lua; /etc/slurm/job_submit.lua from {LIB}, whose head says how to call it from"
    " your own",
)
def job_submit(facts: Facts) -> Sequence[Verdict]:
    if not isinstance(facts.config, Unseen) and not facts.config.settings.job_submit:
        return ok("config.toml has job_submit = false: the site does without it")
    found = seen(listed_values(facts, "JobSubmitPlugins"))
    if not site.has_lua(found):
        return fail(f"JobSubmitPlugins is {','.join(found) or 'not set'}")
    text, ours = seen(facts.slurm.lua), facts.slurm.lua_of_package
    what = submit_script.judge(text, ours)
    if what == "missing":
        return fail("there is no job_submit.lua beside slurm.conf: slurmctld refuses every job")
    if what in submit_script.LOADS_OURS and ours is None:
        return fail(f"job_submit.lua calls {LUA}, which is not there: slurmctld's next start refuses every job", SPANK)
    if what == "does not submit":
        return fail(
            "job_submit.lua loads ours, has a slurm_job_submit of its own, and never calls ours from it",
            "job_submit.lua: `local code = share.submit(job, partitions, uid)` first in your slurm_job_submit; the head"
            f" of {LUA} has all of it",
        )
    if what == "does not modify":
        return warn(
            "job_submit.lua has a slurm_job_modify of its own that never calls ours: users can change whether their"
            " jobs share, also where sharing is switched off",
            "job_submit.lua: `local code = share.modify(job, old, partitions, uid)` first in your slurm_job_modify; the"
            f" head of {LUA} has all of it",
        )
    if what == "calls ours":
        return ok("the site's own calls ours")
    if what == "ours":
        return ok("ours")
    if what == "the site's own":
        return fail("job_submit.lua is the site's own and does not call ours")
    if ours is None:
        return skip(f"this package has no job_submit.lua to compare with in {LIB}")
    return warn("job_submit.lua is of another release of slurm-share", f"copy {LUA} over it, or call it by dofile")


@check(
    "lua-plugin",
    CONTROLLER,
    needs="configuration",
    asks="Slurm's job_submit_lua.so is here if JobSubmitPlugins has lua",
    why="slurmctld does not start any more when it is restarted",
    fix="install a Slurm that was built with Lua, before slurmctld is restarted; or take lua out of JobSubmitPlugins",
)
def lua_plugin(facts: Facts) -> Sequence[Verdict]:
    _need_lua(facts)
    found = seen(facts.slurm.lua_object)
    return ok(found) if found else fail("Slurm's plugins are on this host without job_submit_lua.so")


@check(
    "lua-syntax",
    CONTROLLER,
    needs="configuration",
    asks="Lua can compile the site's job_submit.lua",
    why="slurmctld keeps using the previous script and reports the error only in its log; its next start fails",
    fix="correct the line (`luac -p FILE` repeats the error); slurmctld reads the file anew with the next job",
)
def lua_syntax(facts: Facts) -> Sequence[Verdict]:
    _need_lua(facts)
    if seen(facts.slurm.lua) is None:
        return skip("there is no job_submit.lua")
    found = seen(facts.slurm.lua_problem)
    return fail(found) if found else ok("Lua takes it")


@check(
    "lua-settings",
    CONTROLLER,
    needs="configuration",
    asks=f"{lua_settings.NAME}, which job_submit.lua reads, was written from the present config.toml",
    why="a config.toml that has changed since counts as off: no job is shared until the command has run",
    fix=f"{lua_settings.COMMAND} (on each controller, where there are several)",
)
def settings_of_lua(facts: Facts) -> Sequence[Verdict]:
    _need_lua(facts)
    if not configuration(facts).settings.job_submit:
        return ok("config.toml has job_submit = false: the site does without it")
    found = seen(facts.slurm.lua_settings)
    return fail(found) if found else ok("they say the same")


CHECKS = (job_submit, lua_plugin, lua_syntax, settings_of_lua)
