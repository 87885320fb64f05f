"""Checks of the controller's policy for shared jobs: GPUs, shards, whole nodes, one user at a time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ...core import nodelist
from ...core.errors import UsageError
from ...core.installed import LIB, LUA
from ...core.settings import DEFAULT, Configuration
from ...share import lua_settings, site, verdict
from ...slurm import account_limits
from ..facts.records import CheckVerdict, Facts, UnknownFact
from .base import (
    COMPUTE,
    CONTROLLER,
    Skip,
    check,
    configuration,
    fail,
    ledger_of,
    listed_values,
    named,
    ok,
    seen,
    seen_or,
    skip,
    values,
    warn,
)

MOST = 6
"""Limits that are named one by one: associations may be thousands."""
TRACKED = "gres/shard"
SPANK = "install slurm-share-spank on this host"


def gpus_of(gres: str, what: str = "gpu") -> int:
    """Return the number of GPUs (or shards) in a node's Gres: gpu:4, gpu:a100:2,gpu:h100:2(S:0-1)."""
    return sum(one.count or 0 for one in site.parse_gres(gres) if one.name == what)


def kinds_of(gres: str) -> str:
    """Return the GPUs of a node as text: 4 gpu:a100."""
    kinds = [one for one in site.parse_gres(gres) if one.name == "gpu"]
    return " + ".join(f"{one.count or 0} gpu" + (f":{one.kind}" if one.kind else "") for one in kinds)


@check(
    "select-type",
    CONTROLLER,
    needs="configuration",
    asks="SelectType is select/cons_tres",
    why="no other plugin allocates GPUs",
    fix="slurm.conf: SelectType=select/cons_tres; restart slurmctld",
)
def select_type(facts: Facts) -> Sequence[CheckVerdict]:
    said = (seen(values(facts, "SelectType")) or ("select/cons_tres",))[-1]  # the default since 23.11
    return ok(said) if said.lower() == "select/cons_tres" else fail(f"SelectType={said}")


@check(
    "gres",
    CONTROLLER,
    needs="configuration",
    asks="GresTypes has gpu, nodes have GPUs, and shards if config.toml has shards_per_gpu",
    why="--share-gpu needs GPUs that Slurm allocates; parts of a GPU are allocated as shards",
    fix="slurm.conf: GresTypes=gpu,shard and Gres= of each node; `slurm-share install --shards` shows the lines",
)
def gres(facts: Facts) -> Sequence[CheckVerdict]:
    types = seen(listed_values(facts, "GresTypes"))
    if "gpu" not in types:
        return fail(f"GresTypes is {','.join(types) or 'not set'}")
    with_gpus = [node for node in seen(facts.slurm.nodes) if gpus_of(node.gres)]
    if not with_gpus:
        return fail("no node has a GPU")
    per_gpu = 0 if isinstance(facts.config, UnknownFact) else facts.config.settings.shards_per_gpu
    wrong = [node.name for node in with_gpus if gpus_of(node.gres, "shard") != per_gpu * gpus_of(node.gres)]
    if per_gpu and wrong:
        return fail(f"shards_per_gpu is {per_gpu}, and {named(wrong)} has another number of shards for its GPUs")
    return ok(f"{len(with_gpus)} nodes with GPUs" + (f", {per_gpu} shards on each GPU" if per_gpu else ", no shards"))


@check(
    "exclusive",
    CONTROLLER,
    needs="configuration",
    asks="while a shared job is on a node, Slurm keeps other users away from it",
    why="MPS serves one user at a time: the hooks refuse a second user's job, or it waits",
    fix="slurm.conf: no OverSubscribe=FORCE in partitions that share, and job_submit.lua in force",
)
def exclusive(facts: Facts) -> Sequence[CheckVerdict]:
    config = configuration(facts)
    has_lua = site.has_lua(seen_or(listed_values(facts, "JobSubmitPlugins"), ()))
    found: list[CheckVerdict] = []
    plain = {node.name for node in seen_or(facts.slurm.nodes, ()) if not gpus_of(node.gres)}
    for one in seen(facts.slurm.partitions):
        mode = config.of(one.name).mode
        if mode == "off" or (one.nodes and plain.issuperset(one.nodes)):
            continue
        bad = fail if mode == "on" else warn
        over = one.options.get("oversubscribe", one.options.get("shared", "NO"))
        if over.upper().startswith("FORCE"):
            fix = f"slurm.conf: take OverSubscribe=FORCE from partition {one.name}, or `[partition.{one.name}] mode = "
            found += bad(f"partition {one.name} has OverSubscribe={over}, which no job can undo", fix + '"off"`')
        elif not has_lua and not site.keeps_one_user(one.options):
            found += bad(f"nothing keeps partition {one.name}'s nodes for one user")
    return found or ok("job_submit.lua sees to it" if has_lua else "the partitions see to it")


@check(
    "partitions",
    CONTROLLER,
    needs="configuration",
    asks="every partition and node that config.toml names exists in Slurm",
    why="a misspelt name has no effect, without a message",
    fix="put the name right in config.toml; `sinfo -s` lists them",
)
def partitions(facts: Facts) -> Sequence[CheckVerdict]:
    config, names = configuration(facts), {one.name for one in seen(facts.slurm.partitions)}
    nodes = seen_or(facts.slurm.nodes, None)
    found: list[CheckVerdict] = []
    for text in config.settings.exclusive_user_nodes:
        try:
            wanted = set(nodelist.parse(text))
        except UsageError as error:
            found += warn(f"exclusive_user_nodes of config.toml: {error}", "write it as `sinfo -N` lists nodes")
            continue
        if nodes is not None and (gone := wanted - {node.name for node in nodes}):
            said = f"exclusive_user_nodes of config.toml names {named(sorted(gone))}, and Slurm has no such node"
            found += warn(said, "put the name right in config.toml; `sinfo -N` lists them")
    missing = sorted({*config.partitions, *config.settings.exclusive_user_partitions} - names)
    if missing:
        found += warn(f"config.toml names {named(missing)}, and Slurm has no such partition")
    return found or ok(_modes(config, names) or "Slurm has no partition")


def _modes(config: Configuration, names: Iterable[str]) -> str:
    return "; ".join(f"{name}: {config.of(name).mode}" for name in sorted(set(names)))


@check(
    "modes",
    (*CONTROLLER, *COMPUTE),
    needs="configuration",
    asks="if sharing is on, it is on in every partition with GPUs, unless config.toml sets another mode",
    why="a shared job starts on a node that only observes, or does nothing, and its tasks are refused",
    fix='if that is meant, config.toml: a line `mode = "observe"` above the tables, or a [partition.NAME] table for it',
)
def modes(facts: Facts) -> Sequence[CheckVerdict]:
    config = configuration(facts)
    known = _partitions_of(facts)
    found: list[CheckVerdict] = []
    is_said = config.sources["mode"] != DEFAULT
    if "on" in config.modes().values() and not is_said:
        for name in dict.fromkeys(known):
            if (mode := config.of(name).mode) != "on" and name not in config.partitions:
                found += warn(f"partition {name} is {mode}, which config.toml does not say, while others are on")
    ours = {job.job_id for job in ledger_of(facts).jobs}
    for job in () if config.settings.switched_off else facts.slurm.shared_here:
        mode = config.of(job.partition).mode
        if mode != "on" and job.job_id not in ours:
            said = (
                f"job {job.job_id} came here as --share-gpu={job.share}, and partition {job.partition} is {mode} here"
            )
            found += fail(f"{said}: the controller has another config.toml", "copy the controller's config.toml here")
    return found or ok(_modes(config, known) or "no partition has GPUs")


@check(
    "controller-mode",
    (*COMPUTE, "login"),
    asks="the controller's mode is that of config.toml on this host",
    why="a job is shared only if both are on; otherwise it is refused or runs unshared, and its user cannot see why",
    fix="the same config.toml on the controller and on every other host",
)
def controller_mode(facts: Facts) -> Sequence[CheckVerdict]:
    config, name = configuration(facts), facts.slurm.asked_partition
    if "controller" in facts.roles:
        return ok("this host is a controller itself")
    if not config.settings.job_submit:
        return ok("config.toml has job_submit = false: each node's own mode counts")
    there, all_here = seen(facts.slurm.controller_mode), set(config.modes().values())
    if not name and len(all_here) > 1:  # the default partition has no name here
        if there in all_here:
            return ok(f"{there} on the controller; config.toml here has it, too")
        here = " and ".join(sorted(all_here))
    else:
        here = config.of(name).mode
    if here == there:
        return ok(f"{here} here and on the controller")
    where = f"partition {name}" if name else "the default partition"
    said = f"{where} is {there} on the controller, and {here} by config.toml here"
    if there == "on":
        return fail(said, "copy the controller's config.toml here")
    return warn(
        f"{said}: no job is shared", "the same config.toml on the controller and here: the controller's decides"
    )


@check(
    "mode-file",
    (*CONTROLLER, *COMPUTE),
    needs="configuration",
    asks="the file that mode_file names can be read here, and contains off, observe or on",
    why="any other word counts as off; a node that cannot read the file ignores `slurm-share off --cluster`",
    fix="slurm-share off --cluster, or on, writes it anew; mount what it is on",
)
def mode_file(facts: Facts) -> Sequence[CheckVerdict]:
    path, text = configuration(facts).settings.mode_file, facts.mode_file
    if not path:
        return ok("config.toml names none")
    if isinstance(text, UnknownFact):
        return warn(text.why)
    if not text:
        return ok(f"there is no {path}: the other settings count alone")
    mode = text.strip()
    if mode not in verdict.MODES:
        return warn(f"{path} says {mode[:40]!r}, which hooks take for off: no job is shared")
    return ok(f"{path}: {mode}")


@check(
    "verdict-field",
    CONTROLLER,
    needs="configuration",
    asks="Slurm does not itself interpret the field of a job that has the controller's verdict",
    why="with extra_constraints Slurm reads `extra` as a condition that no node meets: shared jobs stay pending",
    fix='config.toml: verdict_field = "comment"',
)
def verdict_field(facts: Facts) -> Sequence[CheckVerdict]:
    settings, parameters = configuration(facts).settings, seen(listed_values(facts, "SchedulerParameters"))
    field = settings.verdict_field
    if settings.job_submit and field == "extra" and "extra_constraints" in parameters:
        return fail("SchedulerParameters has extra_constraints, and verdict_field is extra")
    return ok(field)


def _partitions_of(facts: Facts) -> list[str]:
    """Return the partitions that have GPUs: all of them on a controller, elsewhere those of this node."""
    with_gpus = [node for node in seen(facts.slurm.nodes) if gpus_of(node.gres)]
    if "controller" not in facts.roles:
        return [name for node in with_gpus for name in node.partitions]
    names = {node.name for node in with_gpus}
    return [one.name for one in seen(facts.slurm.partitions) if names.intersection(one.nodes)]


@check(
    "unlike-nodes",
    CONTROLLER,
    needs="configuration",
    asks="the nodes of a partition have the same GPUs",
    why="a shared job on several nodes needs the same number of GPUs on each, and is refused otherwise",
    fix="a partition or a feature for each kind of node; until then users ask with --constraint or --nodelist",
)
def unlike_nodes(facts: Facts) -> Sequence[CheckVerdict]:
    known = seen(facts.slurm.partitions)
    kind_of = {node.name: kinds_of(node.gres) for node in seen(facts.slurm.nodes) if gpus_of(node.gres)}
    found: list[CheckVerdict] = []
    for partition in known:
        kinds: dict[str, list[str]] = {}
        for name in partition.nodes:
            if name in kind_of:
                kinds.setdefault(kind_of[name], []).append(name)
        if len(kinds) > 1:
            said = "; ".join(f"{named(names)}: {kind}" for kind, names in kinds.items())
            found += warn(f"partition {partition.name}: {said}")
    return found or ok("alike in every partition")


@check(
    "gang",
    CONTROLLER,
    needs="configuration",
    asks="no preemption suspends jobs (PreemptMode SUSPEND or GANG)",
    why="a suspended job keeps its GPU memory and its MPS clients, so the next job finds the GPU full",
    fix="slurm.conf: PreemptMode=REQUEUE or CANCEL in partitions that share GPUs",
)
def gang(facts: Facts) -> Sequence[CheckVerdict]:
    whole = seen(listed_values(facts, "PreemptMode"))
    found: list[CheckVerdict] = []
    if {"suspend", "gang"} & set(whole):
        found += warn(f"PreemptMode={','.join(whole)}")
    for one in seen_or(facts.slurm.partitions, ()):
        said = one.options.get("preemptmode", "")
        if {"suspend", "gang"} & set(said.lower().split(",")) and said.lower() != ",".join(whole):
            found += warn(f"partition {one.name} has PreemptMode={said}")
    return found or ok("no preemption suspends jobs")


_SETS_COMMENT = re.compile(r"^(?!\s*#).*\b(?:admincomment|admin_comment|jobstats)\b", re.IGNORECASE | re.MULTILINE)


@check(
    "admin-comment",
    CONTROLLER,
    needs="configuration",
    asks="where a PrologSlurmctld or EpilogSlurmctld sets AdminComment, as that of jobstats does, slurmdbd has the"
    " share of a job in a second field, too",
    why="the script overwrites the share, and sacct and bills take shared jobs for ordinary ones",
    fix="slurm.conf: AccountingStoreFlags=job_extra, and scontrol reconfigure",
)
def admin_comment(facts: Facts) -> Sequence[CheckVerdict]:
    if "slurmdbd" not in ",".join(seen(listed_values(facts, "AccountingStorageType"))):
        return skip("Slurm keeps no accounts here (AccountingStorageType)")
    scripts = [path for path, text in facts.slurm.controller_scripts if _SETS_COMMENT.search(seen_or(text, ""))]
    if not scripts:
        return ok("no such script sets it")
    settings = None if isinstance(facts.config, UnknownFact) else facts.config.settings
    flag = f"job_{settings.verdict_field if settings else 'extra'}"
    kept = seen(listed_values(facts, "AccountingStoreFlags"))
    if flag in kept:
        return ok(f"{named(scripts)} sets it, and slurmdbd keeps the share as {flag}")
    line = ",".join(one for one in (*kept, flag) if one != "none")
    return warn(
        f"{named(scripts)} sets AdminComment, and AccountingStoreFlags has no {flag}",
        f"slurm.conf: AccountingStoreFlags={line}, and scontrol reconfigure; accounting.md says how to read it",
    )


@check(
    "usage-record",
    CONTROLLER,
    needs="configuration",
    asks="what jobs used is kept in slurmdbd (SystemComment), where usage_record wants it recorded",
    why="without slurmdbd a job's record is only on its nodes, and reports of weeks do not have it",
    fix='slurm.conf: AccountingStorageType=accounting_storage/slurmdbd, or usage_record = "off" in config.toml',
)
def usage_record(facts: Facts) -> Sequence[CheckVerdict]:
    wanted = configuration(facts).settings.usage_record
    if wanted == "off":
        return ok("not recorded (usage_record)")
    if "slurmdbd" not in ",".join(seen(listed_values(facts, "AccountingStorageType"))):
        said = "Slurm keeps no accounts here (AccountingStorageType): the records are on their nodes only"
        return ok(said) if wanted == "share" else warn(said)  # "share" is the default
    scripts = [path for path, text in facts.slurm.controller_scripts if _SETS_COMMENT.search(seen_or(text, ""))]
    if scripts:
        return ok(f"in SystemComment, beside the AdminComment of {named(scripts)}: both stay")
    return ok("in SystemComment")


@check(
    "gpu-limits",
    CONTROLLER,
    asks="each limit on gres/gpu of a QOS or an association has one on gres/shard beside it",
    why="a part of a GPU (--share-gpu with -n1) is gres/shard: a highest number of GPUs lets any number of parts pass, "
    "and with a lowest one they pend for ever",
    fix="sacctmgr modify: the same limit with gres/shard = GPUs x shards_per_gpu",
)
def limits(facts: Facts) -> Sequence[CheckVerdict]:
    per_gpu = configuration(facts).settings.shards_per_gpu
    if not per_gpu:
        return ok("no jobs on parts of a GPU here")
    found: list[CheckVerdict] = []
    without = seen(facts.slurm.gpu_limits)
    is_tracked = TRACKED in seen_or(listed_values(facts, "AccountingStorageTRES"), (TRACKED,))
    first = "" if is_tracked else f"slurm.conf: add {TRACKED} to AccountingStorageTRES and restart slurmctld; then "
    for limit in without[:MOST]:
        said, fix = account_limits.explain(limit, per_gpu)
        found += warn(said, first + fix)
    if len(without) > MOST:
        found += warn(f"{len(without) - MOST} more limits on gres/gpu have none on {TRACKED}")
    return found or ok(f"no limit on gres/gpu without one on {TRACKED}")


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
def job_submit(facts: Facts) -> Sequence[CheckVerdict]:
    if not isinstance(facts.config, UnknownFact) and not facts.config.settings.job_submit:
        return ok("config.toml has job_submit = false: the site does without it")
    found = seen(listed_values(facts, "JobSubmitPlugins"))
    if not site.has_lua(found):
        return fail(f"JobSubmitPlugins is {','.join(found) or 'not set'}")
    text, ours = seen(facts.slurm.lua), facts.slurm.lua_of_package
    what = site.judge(text, ours)
    if what == "missing":
        return fail("there is no job_submit.lua beside slurm.conf: slurmctld refuses every job")
    if what in site.LOADS_OURS and ours is None:
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
def lua_plugin(facts: Facts) -> Sequence[CheckVerdict]:
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
def lua_syntax(facts: Facts) -> Sequence[CheckVerdict]:
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
def settings_of_lua(facts: Facts) -> Sequence[CheckVerdict]:
    _need_lua(facts)
    if not configuration(facts).settings.job_submit:
        return ok("config.toml has job_submit = false: the site does without it")
    found = seen(facts.slurm.lua_settings)
    return fail(found) if found else ok("they say the same")


CHECKS = (
    select_type, gres, job_submit, lua_plugin, lua_syntax, settings_of_lua, exclusive, partitions, modes,
    controller_mode, mode_file, verdict_field, unlike_nodes, gang, admin_comment, usage_record, limits,
)  # fmt: skip
