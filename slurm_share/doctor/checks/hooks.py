"""Checks of Prolog and Epilog: whether slurmd runs ours, in time and in order, and whether one drains the node."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.installed import EPILOG, HOME, PROLOG
from ...share import site
from ..facts.records import CheckVerdict, ConfiguredHook, Facts, UnknownFact
from . import scripts
from .base import (
    COMPUTE,
    CONTROLLER,
    check,
    configuration,
    fail,
    failures,
    listed_values,
    named,
    ok,
    seconds,
    seen,
    seen_or,
    skip,
    unsafe,
    values,
    warn,
)


@check(
    "run-in-job",
    CONTROLLER,
    needs="configuration",
    asks="PrologFlags has no RunInJob",
    why="the Prolog runs inside the job's own step: the job's end kills the MPS daemons of all of the user's jobs on"
    " these GPUs, before the Epilog can stop them",
    fix="slurm.conf: take RunInJob out of PrologFlags, then `scontrol reconfigure`",
)
def run_in_job(facts: Facts) -> Sequence[CheckVerdict]:
    found = seen(listed_values(facts, "PrologFlags"))
    return fail("PrologFlags has RunInJob") if site.runs_in_job(found) else ok("the Prolog runs under slurmd")


@check(
    "prolog-flags",
    CONTROLLER,
    needs="configuration",
    asks="PrologFlags has Alloc, or a flag that includes it, such as Contain",
    why="slurmd passes the SPANK environment of a job's first step on a node to the Prolog: a user who writes a plugin"
    " for his srun can make it so large that the Prolog cannot start, and Slurm drains the node. With Alloc the Prolog"
    " has the job's environment, whose size job_submit.lua limits",
    fix="slurm.conf: add Alloc to PrologFlags (`slurm-share install --apply --with alloc`), then `scontrol reconfigure`"
    "; srun and salloc then wait for the Prolog (install.md, step 2); a site that does without: slurm-share doctor"
    " --except prolog-flags",
)
def prolog_flags(facts: Facts) -> Sequence[CheckVerdict]:
    found = seen(listed_values(facts, "PrologFlags"))
    if site.has_alloc(found):
        return ok("the Prolog runs when a job is allocated its nodes")
    return warn(f"PrologFlags is {','.join(found) or 'not set'}: a user's srun can make the Prolog fail to start")


def _configured(facts: Facts, key: str) -> Sequence[CheckVerdict]:
    """Check the configured lines. A controller sees only the text; the files of a pattern are seen on a node."""
    program = f"slurm-share-{key.lower()}"
    found = seen(values(facts, key))
    hooks = facts.slurm.prologs if key == "Prolog" else facts.slurm.epilogs
    ours = [one.path for hook in seen_or(hooks, ()) for one in hook.files if one.is_ours]
    if ours:
        return ok(f"slurmd runs {named(ours)}")
    if "compute" in facts.roles and not isinstance(hooks, UnknownFact):
        return fail(f"{key} is {named(found) or 'not set'}, and none of it is {program}")
    if any(program in one for one in found):
        return ok(f"{key}={named(found)}")
    if any(not hook.files for hook in seen_or(hooks, ())):
        return skip(f"{key}={named(found)}: what is in it is seen on a compute node")
    if any(set(one) & set("*?[") for one in found):
        return skip(f"{key}={named(found)} is a pattern: what it finds is seen on a compute node")
    return fail(f"{key} is {named(found) or 'not set'}")


@check(
    "prolog",
    (*CONTROLLER, *COMPUTE),
    needs="configuration",
    asks="slurm.conf has our Prolog, alone or in a folder of several",
    why="no share is set up, and tasks are refused because there is no plan",
    fix=f"slurm.conf: Prolog={PROLOG}, or a link to it in prolog.d; `slurm-share install` shows it",
)
def prolog(facts: Facts) -> Sequence[CheckVerdict]:
    return _configured(facts, "Prolog")


@check(
    "epilog",
    (*CONTROLLER, *COMPUTE),
    needs="configuration",
    asks="slurm.conf has our Epilog, alone or in a folder of several",
    why="MPS daemons, leftover processes and files of ended jobs stay until the next shared job",
    fix=f"slurm.conf: Epilog={EPILOG}, or a link to it in epilog.d; `slurm-share install` shows it",
)
def epilog(facts: Facts) -> Sequence[CheckVerdict]:
    return _configured(facts, "Epilog")


def _both(facts: Facts) -> list[tuple[str, ConfiguredHook]]:
    """Return all hooks with their keys. Raises Skip if one kind is unknown."""
    prologs, epilogs = seen(facts.slurm.prologs), seen(facts.slurm.epilogs)
    return [*(("Prolog", hook) for hook in prologs), *(("Epilog", hook) for hook in epilogs)]


@check(
    "hook-files",
    COMPUTE,
    needs="configuration",
    asks="every Prolog and Epilog line matches at least one file, and each file can be executed",
    why="slurmd treats a pattern without a match, and a file that it cannot execute, as a failure: the next job drains"
    " the node",
    fix="put the file there and `chmod 755` it, or take the line out of slurm.conf",
)
def hook_files(facts: Facts) -> Sequence[CheckVerdict]:
    both = _both(facts)
    found: list[CheckVerdict] = []
    for key, hook in both:
        if not hook.files:
            fix = f"put a file there, such as a link to {HOME}/bin/slurm-share-{key.lower()}, or take the line out"
            found += fail(f"{key}={hook.written} finds no file: the next job drains this node", fix)
        for file in hook.files:
            if not file.is_file:
                fix = f"move {file.path} elsewhere, or put a file in its place"
                found += fail(f"{key} {file.path} is no file, or a link to none, and not executable", fix)
            elif not file.is_executable:
                found += fail(f"{key} {file.path} is not executable", f"chmod 755 {file.path}")
            elif not file.interpreter_is_there:
                fix = f"install {file.interpreter}, or put the first line of {file.path} right"
                found += fail(f"{key} {file.path} wants {file.interpreter}, which is not there", fix)
    return found or ok(f"{sum(len(hook.files) for _, hook in both)} files, all can be run")


@check(
    "hooks-once",
    COMPUTE,
    needs="configuration",
    asks="each of our hooks runs once for a job",
    why="the second run takes time from every job and adds lines to the log",
    fix="leave one of the lines of slurm.conf, links or scripts that are named",
)
def hooks_once(facts: Facts) -> Sequence[CheckVerdict]:
    both = _both(facts)
    found: list[CheckVerdict] = []
    for key in ("Prolog", "Epilog"):
        ours = [file.path for of, hook in both for file in hook.files if of == key and file.is_ours]
        if len(ours) > 1:
            fix = f"leave one of them: take the {key} line out of slurm.conf, or remove the link or script"
            found += warn(f"{len(ours)} files run our {key}: {named(ours)}", fix)
    return found or ok("none runs twice")


@check(
    "hook-owner",
    COMPUTE,
    needs="configuration",
    asks="only root can change a hook or a folder above it",
    why="Prolog and Epilog run as root: a user who can write there is root on this node",
    fix="chown root and chmod go-w what is named",
)
def hook_owner(facts: Facts) -> Sequence[CheckVerdict]:
    both = _both(facts)
    files = [file for _, hook in both for file in hook.files]
    # A file from a configless controller is next to slurm.conf, whose owner sets the hooks anyway.
    conf, theirs = facts.slurm.file.rpartition("/")[0], (0, facts.slurm.slurm_uid)
    whys = (unsafe(file, theirs if file.path.rpartition("/")[0] == conf else (0,)) for file in files)
    return failures(filter(None, whys)) or ok("hooks are root's alone")


@check(
    "hook-order",
    COMPUTE,
    needs="configuration",
    asks="our Epilog runs before all others",
    why="slurmd runs the files of a folder in reverse order (z to a, then 9 to 0) and stops at the first that fails:"
    " then ours does not clean up. The order of Prologs does not matter: if one fails, the job does not run",
    fix="name the link zz-slurm-share, or give it an Epilog= line before the others",
)
def hook_order(facts: Facts) -> Sequence[CheckVerdict]:
    files = [file for hook in seen(facts.slurm.epilogs) for file in hook.files]
    ours = next((place for place, file in enumerate(files) if file.is_ours), 0)
    if ours:
        return warn(f"{named(file.path for file in files[:ours])} before {files[ours].path}")
    return ok("ours runs first")


@check(
    "hook-time",
    CONTROLLER,
    needs="configuration",
    asks="Slurm's time limits for hooks are not shorter than those in config.toml",
    why="a Prolog or Epilog that Slurm ends drains the node; after a Prolog the job is requeued",
    fix="raise what is named in slurm.conf, or lower hook_deadline_s or release_deadline_s in config.toml",
)
def hook_time(facts: Facts) -> Sequence[CheckVerdict]:
    settings = configuration(facts).settings
    if isinstance(values(facts, "BatchStartTimeout"), UnknownFact):
        return skip("slurm.conf is not to be seen")
    found: list[CheckVerdict] = []
    limits = {key: seconds(facts, key) for key in ("PrologEpilogTimeout", "PrologTimeout", "EpilogTimeout")}
    for one in site.cut_off(limits, settings):
        who = "a Prolog" if one.key == "Prolog" else "an Epilog"
        found += fail(f"{who} is cut off after {one.most_s:g} s, ours may take {one.needs_s:g} s")
    for key, default in (("BatchStartTimeout", 10.0), ("MessageTimeout", 10.0)):
        most = seconds(facts, key) or default
        if most < settings.hook_deadline_s:
            found += warn(f"{key} is {most:g} s, and hook_deadline_s {settings.hook_deadline_s:g} s")
    unkillable = seconds(facts, "UnkillableStepTimeout") or 60.0
    if unkillable < settings.release_deadline_s:
        found += warn(
            f"UnkillableStepTimeout is {unkillable:g} s, and release_deadline_s {settings.release_deadline_s:g} s"
        )
    prolog_s, epilog_s = site.hook_needs_s(settings)
    return found or ok(f"Prolog {prolog_s:g} s and Epilog {epilog_s:g} s fit in")


CHECKS = (
    run_in_job,
    prolog_flags,
    prolog,
    epilog,
    hook_files,
    hooks_once,
    hook_owner,
    hook_order,
    hook_time,
    *scripts.CHECKS,
)
