"""What the controller makes of a shared job: GPUs, shards, whole nodes, one user at a time."""

from __future__ import annotations

from collections.abc import Sequence

from ...checkup import Facts, Unseen, Verdict
from ...installed import LIB, LUA
from .. import site_rules
from .verdicts import CONTROLLER, check, fail, named, ok, skip, values, warn, words

SPANK = "install slurm-share-spank on this host"


def gpus_of(gres: str, what: str = "gpu") -> int:
    """How many GPUs (or shards) a node's Gres says: gpu:4, gpu:a100:2,gpu:h100:2(S:0-1)."""
    return sum(one.count or 0 for one in site_rules.parse_gres(gres) if one.name == what)


def kinds_of(gres: str) -> str:
    """The GPUs of a node in words: 4 gpu:a100."""
    kinds = [one for one in site_rules.parse_gres(gres) if one.name == "gpu"]
    return " + ".join(f"{one.count or 0} gpu" + (f":{one.kind}" if one.kind else "") for one in kinds)


@check(
    "select-type",
    CONTROLLER,
    asks="SelectType is select/cons_tres",
    why="no other hands out GPUs",
    fix="slurm.conf: SelectType=select/cons_tres; restart slurmctld",
)
def select_type(facts: Facts) -> Sequence[Verdict]:
    found = values(facts, "SelectType")
    if isinstance(found, Unseen):
        return skip(found)
    said = found[-1] if found else "select/cons_tres"  # the default since 23.11
    return ok(said) if said.lower() == "select/cons_tres" else fail(f"SelectType={said}")


@check(
    "gres",
    CONTROLLER,
    asks="GresTypes has gpu, some node has GPUs, and shards where config.toml counts on them",
    why="--share-gpu means GPUs that Slurm hands out; an array of parts of GPUs is handed out as shards",
    fix="slurm.conf: GresTypes=gpu,shard and Gres= of each node; `slurm-share install --shards` shows the lines",
)
def gres(facts: Facts) -> Sequence[Verdict]:
    types, nodes = words(facts, "GresTypes"), facts.slurm.nodes
    if isinstance(types, Unseen):
        return skip(types)
    if "gpu" not in types:
        return fail(f"GresTypes is {','.join(types) or 'not set'}")
    if isinstance(nodes, Unseen):
        return skip(nodes)
    with_gpus = [node for node in nodes if gpus_of(node.gres)]
    if not with_gpus:
        return fail("no node has a GPU")
    per_gpu = 0 if isinstance(facts.config, Unseen) else facts.config.settings.shards_per_gpu
    wrong = [node.name for node in with_gpus if gpus_of(node.gres, "shard") != per_gpu * gpus_of(node.gres)]
    if per_gpu and wrong:
        return fail(f"shards_per_gpu is {per_gpu}, and {named(wrong)} has another number of shards for its GPUs")
    return ok(f"{len(with_gpus)} nodes with GPUs" + (f", {per_gpu} shards on each GPU" if per_gpu else ", no shards"))


@check(
    "job-submit",
    CONTROLLER,
    asks="JobSubmitPlugins has lua, and the site's job_submit.lua is ours, or calls ours",
    why="a shared job gets neither its GPUs nor its nodes for itself: the hooks then refuse it",
    fix=f"slurm.conf: JobSubmitPlugins=lua; /etc/slurm/job_submit.lua from {LIB}, whose head says how to call it from"
    " your own",
)
def job_submit(facts: Facts) -> Sequence[Verdict]:
    found = words(facts, "JobSubmitPlugins")
    if isinstance(found, Unseen):
        return skip(found)
    if not site_rules.has_lua(found):
        return fail(f"JobSubmitPlugins is {','.join(found) or 'not set'}")
    text, ours = facts.slurm.lua, facts.slurm.lua_of_package
    if text is None:
        return fail("there is no job_submit.lua beside slurm.conf: slurmctld refuses every job")
    what = site_rules.script_of(text, ours)
    if what == "calls ours" and ours is None:
        return fail(f"job_submit.lua calls {LUA}, which is not there: slurmctld's next start refuses every job", SPANK)
    if what == "calls ours":
        return ok("the site's own calls ours")
    if what == "ours":
        return ok("ours")
    if what == "another release's":
        if ours is None:
            return skip(f"this package has no job_submit.lua to compare with in {LIB}")
        return warn("job_submit.lua is of another release of slurm-share", f"copy {LUA} over it, or call it by dofile")
    return fail("job_submit.lua is the site's own and does not call ours")


@check(
    "exclusive",
    CONTROLLER,
    asks="while a shared job is on a node, Slurm keeps other users away from it",
    why="MPS serves one user at a time: a second user's job beside it waits, or is refused by the hooks",
    fix="slurm.conf: no OverSubscribe=FORCE in partitions that share, and job_submit.lua in force",
)
def exclusive(facts: Facts) -> Sequence[Verdict]:
    config, partitions = facts.config, facts.slurm.partitions
    if isinstance(config, Unseen):
        return skip("config.toml is not understood")
    if isinstance(partitions, Unseen):
        return skip(partitions)
    lua = words(facts, "JobSubmitPlugins")
    has_lua = not isinstance(lua, Unseen) and site_rules.has_lua(lua)
    found: list[Verdict] = []
    nodes = facts.slurm.nodes
    plain = set() if isinstance(nodes, Unseen) else {node.name for node in nodes if not gpus_of(node.gres)}
    for one in partitions:
        mode = config.of(one.name).mode
        if mode == "off" or (one.nodes and plain.issuperset(one.nodes)):
            continue
        bad = fail if mode == "on" else warn
        over = one.options.get("oversubscribe", "NO")
        if over.upper().startswith("FORCE"):
            fix = f"slurm.conf: take OverSubscribe=FORCE from partition {one.name}, or `[partition.{one.name}] mode = "
            found += bad(f"partition {one.name} has OverSubscribe={over}, which no job can undo", fix + '"off"`')
        elif not has_lua and not site_rules.keeps_one_user(one.options):
            found += bad(f"nothing keeps partition {one.name}'s nodes for one user")
    return found or ok("job_submit.lua sees to it" if has_lua else "the partitions see to it")


@check(
    "partitions",
    CONTROLLER,
    asks="every partition and node that config.toml names is one of Slurm's",
    why="a name that is misspelt means nothing, and nobody is told",
    fix="put the name right in config.toml; `sinfo -s` lists them",
)
def partitions(facts: Facts) -> Sequence[Verdict]:
    config, known = facts.config, facts.slurm.partitions
    if isinstance(config, Unseen):
        return skip("config.toml is not understood")
    if isinstance(known, Unseen):
        return skip(known)
    names = {one.name for one in known}
    missing = sorted({*config.partitions, *config.settings.exclusive_user_partitions} - names)
    if missing:
        return warn(f"config.toml names {named(missing)}, and Slurm has no such partition")
    modes = {name: config.of(name).mode for name in sorted(names)}
    return ok("; ".join(f"{name}: {mode}" for name, mode in modes.items()) or "Slurm has no partition")


@check(
    "unlike-nodes",
    CONTROLLER,
    asks="the nodes of a partition have the same GPUs",
    why="a shared job over several nodes needs as many on each, and is refused where it got unlike ones",
    fix="a partition or a feature for each kind of node; until then users ask with --constraint or --nodelist",
)
def unlike_nodes(facts: Facts) -> Sequence[Verdict]:
    known, nodes = facts.slurm.partitions, facts.slurm.nodes
    if isinstance(known, Unseen):
        return skip(known)
    if isinstance(nodes, Unseen):
        return skip(nodes)
    by_name = {node.name: node for node in nodes}
    found: list[Verdict] = []
    for partition in known:
        kinds: dict[str, list[str]] = {}
        for name in partition.nodes:
            if name in by_name and gpus_of(by_name[name].gres):
                kinds.setdefault(kinds_of(by_name[name].gres), []).append(name)
        if len(kinds) > 1:
            said = "; ".join(f"{named(names)}: {kind}" for kind, names in kinds.items())
            found += warn(f"partition {partition.name}: {said}")
    return found or ok("alike in every partition")


@check(
    "gang",
    CONTROLLER,
    asks="no preemption suspends jobs (PreemptMode SUSPEND or GANG)",
    why="a suspended job keeps its GPU memory and its place in MPS; whoever comes in between finds the GPU full",
    fix="slurm.conf: PreemptMode=REQUEUE or CANCEL in partitions that share GPUs",
)
def gang(facts: Facts) -> Sequence[Verdict]:
    whole = words(facts, "PreemptMode")
    if isinstance(whole, Unseen):
        return skip(whole)
    found: list[Verdict] = []
    if {"suspend", "gang"} & set(whole):
        found += warn(f"PreemptMode={','.join(whole)}")
    for one in () if isinstance(facts.slurm.partitions, Unseen) else facts.slurm.partitions:
        said = one.options.get("preemptmode", "")
        if {"suspend", "gang"} & set(said.lower().split(",")) and said.lower() != ",".join(whole):
            found += warn(f"partition {one.name} has PreemptMode={said}")
    return found or ok("no preemption suspends jobs")


@check(
    "interactive-step",
    CONTROLLER,
    asks="LaunchParameters has use_interactive_step",
    why="without it the shell of salloc stays on the login node, where there is no GPU and no share",
    fix="slurm.conf: LaunchParameters=use_interactive_step",
)
def interactive_step(facts: Facts) -> Sequence[Verdict]:
    found = words(facts, "LaunchParameters")
    if isinstance(found, Unseen):
        return skip(found)
    return (
        ok("use_interactive_step is set")
        if site_rules.has_interactive_step(found)
        else warn("salloc's shell stays where it was typed")
    )


CHECKS = (
    select_type, gres, job_submit, exclusive, partitions, unlike_nodes, gang, interactive_step,
)  # fmt: skip
