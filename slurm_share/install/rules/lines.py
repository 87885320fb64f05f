"""Decides which lines a site's Slurm files lack, where each goes, and what the administrator must do."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from ...core.installed import EPILOG, LUA, OBJECT, PLUGIN, PROLOG
from ...core.settings import Settings
from ...share import lua_settings, site
from ...slurm.account_limits import GpuLimit, explain
from ...slurm.conf_text import ConfLine, ConfText, Edit
from . import hosts, shards
from . import lua as rule_lua
from .choices import ALLOC, INTERACTIVE_STEP, MANAGED, PARTIAL, OpenChoice, open_choices
from .edits import UnclearLine, end_of, extended

MARK = "# slurm-share: put here by `slurm-share install --apply`, taken back by `--undo`"
_MOST_LIMITS = 6
OLDEST = (24, 11)
"""The first release that accepts several Prolog= lines; older ones silently use the last."""


class SlurmFiles(Struct, frozen=True):
    """A site's Slurm files, as read from this host."""

    slurm: ConfText
    plugstack: ConfText
    """Without lines if the file does not exist."""
    gres: ConfText
    texts: Mapping[str, str]
    """Whole text of each existing file by `str(path)`."""
    lua_file: str
    release: tuple[int, int] | None = None
    """Slurm release of this host; None: no Slurm, or unknown."""
    hook_globs: Mapping[str, tuple[str, ...]] = {}
    """Files that each value of Prolog= and Epilog= starts on this host, with link targets and files named in
    scripts."""
    settings: Settings = Settings()
    """Settings of config.toml; the time limit of our hooks is needed here."""
    unrunnable: frozenset[str] = frozenset()
    """Our wrappers that are not executable."""
    limits: tuple[GpuLimit, ...] = ()
    """Limits on gres/gpu without one on gres/shard."""


class SiteLines(Struct, frozen=True):
    """The edits that a site needs, and what the administrator has to know."""

    edits: tuple[Edit, ...]
    refusals: tuple[str, ...]
    """Sentences; nothing is written until the administrator has settled them."""
    advice: tuple[str, ...]
    """Sentences for the administrator to check; none of them blocks writing."""
    choices: tuple[OpenChoice, ...] = ()
    """Open choices that affect other users' jobs. Those that shares need are also in `edits`, so that they are
    shown."""


def site_lines(present: SlurmFiles, shards_per_gpu: int = 0, taken: Collection[str] = ()) -> SiteLines:
    """Return the missing lines; empty if the site is complete. `shards_per_gpu` 0: no shards. `taken`: values of
    `--with`."""
    refusals = list(_refusals(present, shards_per_gpu))
    edits: list[Edit] = []
    slurm = str(present.slurm.file)
    folder = slurm.rpartition("/")[0]
    if PARTIAL in taken:  # the scripts are written before the lines that name them
        edits += hosts.wrapper_edits(folder, present.texts)
        refusals += hosts.foreign_wrappers(folder, present.texts)
    if PARTIAL in taken or _names_a_wrapper(present.slurm):
        refusals += hosts.unrunnable_wrappers(present.unrunnable)
    wanted: list[Iterable[Edit]] = [
        _hooks(present, is_partial=PARTIAL in taken),
        _list_with(present, "JobSubmitPlugins", "lua", site.has_lua),
    ]
    if ALLOC in taken:
        wanted.append(_list_with(present, "PrologFlags", "Alloc", site.has_alloc))
    if INTERACTIVE_STEP in taken:
        wanted.append(_list_with(present, "LaunchParameters", "use_interactive_step", site.has_interactive_step))
    if shards_per_gpu:
        wanted += [
            _list_with(present, "GresTypes", "shard", lambda have: "shard" in have),
            shards.node_edits(present.slurm, present.gres, present.texts, shards_per_gpu),
            shards.gres_edits(present.slurm, present.gres, present.texts, shards_per_gpu),
        ]
    for each in wanted:
        try:
            edits += each
        except UnclearLine as unclear:  # report this edit and go on with the others
            refusals.append(str(unclear))
    if not any(OBJECT in line.text for line in present.plugstack.lines):
        edits.append(Edit(str(present.plugstack.file), f"optional {PLUGIN}", word=PLUGIN))
    lua = present.texts.get(present.lua_file)
    if lua is None:
        edits.append(Edit(present.lua_file, site.OWN_LUA, word=LUA))
    if twice := _replaced_twice(edits):
        refusals.append(
            f"{twice.file}, line {twice.at}, holds several values that have to change; put each on a line of its own, "
            "then run this again"
        )
    edits = [*_with_comment(edits, slurm, str(present.gres.file))]
    return SiteLines(
        tuple(edits),
        tuple(dict.fromkeys(refusals)),
        tuple(_advice(present, edits, shards_per_gpu)),
        (*open_choices(present.slurm, taken), *choices(edits, present.texts, taken)),
    )


def _replaced_twice(edits: Sequence[Edit]) -> Edit | None:
    """Return an edit that replaces a line which another edit replaces too; None: there is none."""
    seen = set()
    for edit in edits:
        if edit.instead and (edit.file, edit.at) in seen:
            return edit
        seen |= {(edit.file, edit.at)} if edit.instead else set()
    return None


def _refusals(present: SlurmFiles, shards_per_gpu: int) -> Iterator[str]:
    for path in present.slurm.missing:
        yield f"{present.slurm.file} includes {path}, which is not there: Slurm itself would not start; make it"
    if site.runs_in_job(_lower(present.slurm.listed("PrologFlags"))):
        yield (
            "PrologFlags has RunInJob: the Prolog then runs inside the job, and every MPS daemon it starts is killed "
            "at the job's end, before the Epilog, with the daemons of the user's other jobs; take RunInJob out"
        )
    if present.release is not None and present.release < OLDEST:
        shown = ".".join(f"{part:02}" for part in present.release)
        yield f"this is Slurm {shown}; slurm-share needs 24.11 or newer"
    if shards_per_gpu and not shards.has_gpus(present.slurm):
        yield (
            f"--shards: no node of {present.slurm.file} has GPUs, so there are no parts of one to write; give the "
            "nodes that have GPUs Gres=gpu:NUMBER on their NodeName line first, or omit --shards"
        )
    elif shards_per_gpu and not shards.has_nvidia(present.slurm, present.gres):
        yield (
            f"--shards: no GPU of {present.slurm.file} is NVIDIA's, as far as it and {present.gres.file} tell, and "
            "only those can be shared: omit --shards"
        )
    if site.judge(present.texts.get(present.lua_file)) == "the site's own":
        yield (
            f"{present.lua_file} is the site's own and does not call ours; put this line first in it\n"
            f"    {rule_lua.LOAD}\n"
            "and these at the top of its slurm_job_submit(job, partitions, uid), under the names it has there\n"
            + "".join(f"    {line}\n" for line in rule_lua.IN_SUBMIT)
            + "and these at the top of its slurm_job_modify(job, old, partitions, uid)\n"
            + "".join(f"    {line}\n" for line in rule_lua.IN_MODIFY)
            + "then run this again. They work without our package, too: the script then runs as before"
        )


def _hooks(present: SlurmFiles, *, is_partial: bool) -> Iterator[Edit]:
    """Yield the lines for our hooks. Our Epilog runs before the site's, whose failure would skip it; our Prolog runs
    after the site's, when the GPUs are ready. Slurm runs several lines in order, and the files of one pattern in
    reverse."""
    for key, hook in (("Prolog", PROLOG), ("Epilog", EPILOG)):
        ours = hosts.WRAPPERS[key] if is_partial else hook
        direct = [line for line in present.slurm.lines_of(key) if line.get(key) == hook]
        if is_partial and direct:
            yield extended(present.texts, direct[-1], key, ours, ours)
            continue
        if any(_starts(present, value, hook) for value in present.slurm.values(key)):
            continue
        others = present.slurm.lines_of(key)
        if not others:
            yield Edit(str(present.slurm.file), f"{key}={ours}", key, ours)
        elif key == "Prolog":
            yield _neighbour(present, others[-1], f"{key}={ours}", key, ours, after=True)
        else:
            yield _neighbour(present, others[0], f"{key}={ours}", key, ours, after=False)


def _starts(present: SlurmFiles, value: str, ours: str) -> bool:
    name = ours.rsplit("/", 1)[1]
    if value in hosts.WRAPPERS.values():
        return value == hosts.WRAPPERS["Prolog" if ours == PROLOG else "Epilog"]
    return any(path.rsplit("/", 1)[-1] == name for path in (value, *present.hook_globs.get(value, ())))


def _names_a_wrapper(slurm: ConfText) -> bool:
    named = (value for key in hosts.WRAPPERS for value in slurm.values(key))
    return any(value.rpartition("/")[2] in hosts.WRAPPERS.values() for value in named)


def _neighbour(present: SlurmFiles, line: ConfLine, add: str, key: str, marker: str, *, after: bool) -> Edit:
    file = str(line.file)
    at = moved_out(present.texts[file], line.last + 1 if after else line.number, after=after)
    return Edit(file, add, key, marker, at=0 if at > end_of(present.texts[file]) else at)


def _list_with(present: SlurmFiles, key: str, marker: str, has: Callable[[frozenset[str]], bool]) -> Iterator[Edit]:
    """Yield the edit that adds a value to a list, on the last line of that key."""
    if has(_lower(present.slurm.listed(key))):
        return
    lines = present.slurm.lines_of(key)
    if not lines:
        yield Edit(str(present.slurm.file), f"{key}={'gpu,' if marker == 'shard' else ''}{marker}", key, marker)
        return
    value = lines[-1].get(key) or ""
    nothing = value.lower() in ("", "none", "(null)")
    yield extended(present.texts, lines[-1], key, marker if nothing else f"{value},{marker}", marker)


def _with_comment(edits: Sequence[Edit], *files: str) -> Iterator[Edit]:
    """Insert a comment before the lines that are appended to a file."""
    said = set()
    for edit in edits:
        if edit.file in files and not edit.at and edit.file not in said:
            said.add(edit.file)
            yield Edit(edit.file, MARK)
        yield edit


def _advice(present: SlurmFiles, edits: Sequence[Edit], shards_per_gpu: int) -> Iterator[str]:
    slurm = present.slurm
    if "enable_configless" in _lower(slurm.listed("SlurmctldParameters")):
        yield (
            "configless: slurm.conf, gres.conf and plugstack.conf reach the nodes from the controller; the plugin and "
            "the hooks do not: install the packages on every login and compute node first"
        )
    if any("*" in value or "?" in value for key in ("Prolog", "Epilog") for value in slurm.values(key)):
        yield (
            "Prolog or Epilog is a pattern: ours has a line of its own beside it; a link to it in those folders, on "
            "any node, would run it twice"
        )
    policy = "Exclusive=USER" if present.release is None or present.release >= (26, 5) else "ExclusiveUser=YES"
    shared = [line for line in slurm.lines_of("PartitionName") if _is_open(line) and _has_gpus(slurm, line)]
    if shared:
        yield (
            f"partition {', '.join(line.pairs[0][1] for line in shared)}: with {policy} on its line Slurm itself keeps "
            "a node to one user; without, slurm-share does so for shared jobs only (see policy.md)"
        )
    if shards_per_gpu:
        yield from _others_gpus(present)
        yield (
            f"parts of a GPU need this line in /etc/slurm-share/config.toml too:  shards_per_gpu = {shards_per_gpu}  "
            f"and then, here:  {lua_settings.COMMAND}"
        )
        for said, fix in (explain(limit, shards_per_gpu) for limit in present.limits[:_MOST_LIMITS]):
            yield f"{said}:  {fix}"
        if len(present.limits) > _MOST_LIMITS:
            yield f"{len(present.limits) - _MOST_LIMITS} more limits on gres/gpu have none on gres/shard"
    if any(edit.key == "GresTypes" for edit in edits):
        yield "nodes take a new GresTypes only with their gres.conf: copy both files before the reconfigure"


def _others_gpus(present: SlurmFiles) -> Iterator[str]:
    try:
        others = shards.other_vendors(present.slurm, present.gres)
    except UnclearLine:  # reported as a refusal already
        return
    if others:
        yield f"NodeName={', NodeName='.join(others)}: these GPUs are not NVIDIA's and get no shards"


def _is_open(line: ConfLine) -> bool:
    options = {key.lower(): value for key, value in line.pairs}
    return line.pairs[0][1].upper() != "DEFAULT" and not site.keeps_one_user(options)


def _has_gpus(slurm: ConfText, partition: ConfLine) -> bool:
    """Return whether the partition names a node line with GPUs; True if the names cannot be compared."""
    nodes = (partition.get("Nodes") or "ALL").split(",")
    try:
        return any(
            nodes == ["ALL"] or any(shards.overlap(node, line.pairs[0][1]) for node in nodes)
            for line, _ in shards.gpu_lines(slurm)
        )
    except UnclearLine:
        return True


def _lower(values: Sequence[str]) -> frozenset[str]:
    return frozenset(value.lower() for value in values)


_BLOCKS = (
    ("Bright (cmd)", re.compile(r"#.*BEGIN AUTOGENERATED SECTION"), re.compile(r"#.*END AUTOGENERATED SECTION")),
    ("Ansible", re.compile(r"#.*BEGIN ANSIBLE MANAGED BLOCK"), re.compile(r"#.*END ANSIBLE MANAGED BLOCK")),
)
_BRIGHT_HEAD = re.compile(r"#.*This section of this file was automatically generated by cmd\b")
"""The line before such a block. Without a block it is the head of a whole generated file."""
_HEADS = (
    ("Ansible", re.compile(r"ansible[ -]managed|managed by ansible", re.I)),
    ("Puppet", re.compile(r"managed by puppet|puppet[ -]managed", re.I)),
    ("Chef", re.compile(r"(generated|managed) by chef|chef[ -]managed", re.I)),
    ("Salt", re.compile(r"managed by salt|salt[ -]managed", re.I)),
    ("CFEngine", re.compile(r"(managed|maintained|generated) by cfengine|cfengine[ -]managed", re.I)),
    ("another tool", re.compile(r"automatically generated|auto-?generated|do not edit", re.I)),
)
_HEAD_LINES = 20
"""Number of lines at the top of a file in which a tool's name means that it manages the whole file."""


class ManagedPart(Struct, frozen=True):
    """Lines of one file that a tool generates."""

    tool: str
    first: int = 1
    last: int = 0
    """0: to the end of the file, appended lines included."""

    def holds(self, edit: Edit) -> bool:
        """Return whether an edit changes a line of this part, or inserts one into it."""
        if not self.last:
            return not edit.at or edit.at > self.first
        return edit.at > self.first and edit.at <= self.last


def parts(text: str) -> tuple[ManagedPart, ...]:
    """Return the managed parts of a file. A block without an end extends to the end of the file."""
    found: list[ManagedPart] = []
    rows = text.split("\n")
    begun: tuple[str, int, re.Pattern[str]] | None = None
    for number, row in enumerate(rows, 1):
        if begun is not None:
            tool, first, end = begun
            if end.match(row.strip()):
                found.append(ManagedPart(tool, first, number))
                begun = None
            continue
        for tool, begin, end in _BLOCKS:
            if begin.match(row.strip()):
                begun = (tool, number, end)
    if begun is not None:
        found.append(ManagedPart(begun[0], begun[1]))
    in_blocks = {number for part in found for number in range(part.first, (part.last or len(rows)) + 1)}
    for number, row in enumerate(rows[:_HEAD_LINES], 1):
        if number in in_blocks or not row.lstrip().startswith("#"):
            continue
        if _BRIGHT_HEAD.match(row.strip()) and number + 1 in in_blocks:
            continue
        for tool, pattern in _HEADS:
            if pattern.search(row):
                return (ManagedPart(tool, 0),)
    return tuple(found)


def moved_out(text: str, at: int, *, after: bool) -> int:
    """Return the line before which to insert so that the new line is outside the block that contains line `at`: after
    the block with `after`, else before it."""
    for part in parts(text):
        if part.last and part.first < at <= part.last:
            return part.last + 1 if after else part.first
    return at


def choices(edits: Sequence[Edit], texts: Mapping[str, str], taken: Collection[str]) -> Iterator[OpenChoice]:
    """Yield a choice for each managed part that the edits would change."""
    if MANAGED in taken:
        return
    for file in dict.fromkeys(edit.file for edit in edits):
        of_file = parts(texts.get(file, ""))
        for part in of_file:
            inside = [edit for edit in edits if edit.file == file and part.holds(edit)]
            if not inside:
                continue
            where = f"lines {part.first} to {part.last} of {file}" if part.last else file
            yield OpenChoice(
                MANAGED,
                where,
                f"{part.tool} writes these lines, and its next run removes manual edits. Put the lines below into "
                "its source, and run this again; or have them written here anyway:\n"
                + "\n".join(_place(edit) for edit in inside if edit.word),
                is_needed=True,
            )


def _place(edit: Edit) -> str:
    if edit.instead:
        return f"    in the place of {edit.instead[0].strip()}:  {edit.add.strip()}"
    return f"    {f'before line {edit.at}' if edit.at else 'at the end'}:  {edit.add}"
