"""Rules that `install` and `doctor` share: whether the settings in Slurm's files suit shared jobs."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Literal

from msgspec import Struct

from ...core import numbers
from ...core.installed import LUA
from ...core.settings import Settings

_ALLOC = frozenset({"alloc", "contain", "x11", "nohold", "forcerequeueonfail", "runinjob"})
"""Flags that make the Prolog run when a job is allocated its nodes: each of them implies Alloc (seen on 24.11 and
26.05). DeferBatch implies it from 26.05 on only (24.11.5 tried)."""
PROLOG_SLACK_S, EPILOG_SLACK_S = 5.0, 5.0
"""The time that our Prolog and Epilog may take beyond their settings (share/admission.py and share/release.py, SLACK_S;
tests compare)."""
_COUNT = re.compile(r"[0-9]{1,18}(?![0-9])")


def has_alloc(flags: Collection[str]) -> bool:
    """Return whether PrologFlags, in lower case, run the Prolog when a job is allocated its nodes."""
    return bool(_ALLOC & set(flags))


def runs_in_job(flags: Collection[str]) -> bool:
    """Return whether the Prolog runs inside the job, so that the MPS daemons it starts are killed before the job."""
    return "runinjob" in flags


def has_lua(plugins: Collection[str]) -> bool:
    """Return whether JobSubmitPlugins, in lower case, run job_submit.lua; Slurm accepts two spellings."""
    return bool({"lua", "job_submit/lua"} & set(plugins))


def has_interactive_step(parameters: Collection[str]) -> bool:
    """Return whether LaunchParameters, in lower case, start salloc's shell on the node."""
    return "use_interactive_step" in parameters


class CutOff(Struct, frozen=True):
    """A hook that Slurm ends before it ends itself."""

    key: str
    """Prolog or Epilog."""
    most_s: float
    needs_s: float


def hook_needs_s(settings: Settings) -> tuple[float, float]:
    """Return the most seconds that our Prolog and our Epilog take."""
    return settings.hook_deadline_s + PROLOG_SLACK_S, settings.release_deadline_s + EPILOG_SLACK_S


def cut_off(limits_s: Mapping[str, float | None], settings: Settings) -> tuple[CutOff, ...]:
    """Return the hooks that Slurm would end too early. `limits_s`: PrologEpilogTimeout, PrologTimeout and EpilogTimeout
    as far as they are set; None or 0: no limit."""
    whole = limits_s.get("PrologEpilogTimeout")
    found = []
    for key, needs in zip(("Prolog", "Epilog"), hook_needs_s(settings), strict=True):
        most = limits_s.get(f"{key}Timeout") or whole
        if most and most < needs:
            found.append(CutOff(key, most, needs))
    return tuple(found)


def parse_seconds(text: str) -> float | None:
    """Return the seconds in a time of slurm.conf (`30`; `30 sec` from the controller); None: no time, or infinite."""
    match = _COUNT.match(text)
    # 65534 and 4294967294 are Slurm's NO_VAL16 and NO_VAL; 65535 and 4294967295 its INFINITE.
    return float(match[0]) if match and int(match[0]) not in (65534, 65535, 4294967294, 4294967295) else None


def keeps_one_user(options: Mapping[str, str]) -> bool:
    """Return whether a partition gives whole nodes to one job or one user. `options`: with keys in lower case."""
    over = options.get("oversubscribe", options.get("shared", ""))
    return (
        options.get("exclusive", "NO").upper() in ("NODE", "USER", "YES")
        or options.get("exclusiveuser", "NO").upper() == "YES"
        or over.upper().startswith("EXCLUSIVE")
    )


class Resource(Struct, frozen=True):
    """One generic resource in a node's Gres."""

    name: str
    kind: str
    """The type; empty: none."""
    count: int | None
    """The number; None: cannot be parsed."""


def parse_gres(text: str) -> tuple[Resource, ...]:
    """Return the resources in a node's Gres, such as gpu:a100:2(S:0-1),gpu:h100:2,shard:24."""
    return tuple(_resource(value) for value in re.sub(r"\([^)]*\)", "", text).split(",") if value.strip())


def _resource(value: str) -> Resource:
    name, *rest = value.strip().split(":")
    *kind, count = rest or ["1"]
    number = numbers.whole(count)
    if number is None:
        kind, number = [*kind, count], 1  # `gpu:h200` means one
    is_clear = len(kind) <= 1 and all(kind)
    return Resource(name.lower(), kind[0] if kind else "", number if is_clear else None)


OWN_LUA = (
    f'do local found, why = pcall(dofile, "{LUA}") if not found then slurm.log_error("%s", tostring(why)) '
    "slurm_job_submit = function() return slurm.SUCCESS end slurm_job_modify = slurm_job_submit end end"
)
"""The contents of job_submit.lua if the site has none of its own. slurmctld does not start with a script that fails or
lacks one of the two functions; so if the package is missing, this one logs that and leaves every job as it is."""
_LONG_COMMENT = re.compile(r"--\[(=*)\[.*?\]\1\]", re.DOTALL)
_COPY = re.compile(r'\bVARIABLE\s*=\s*"SHARE_GPU"')
_DEFINES = r"\bfunction\s+slurm_job_{0}\b|\bslurm_job_{0}\s*=[^=]"
_CALLS = r"[.:\]]\s*{0}\b|\[\s*[\"']{0}[\"']\s*\]"

Judgement = Literal[
    "missing",
    "ours",
    "calls ours",
    "does not submit",
    "does not modify",
    "another release's",
    "the site's own",
]
"""`does not submit`, `does not modify`: it loads ours, but its own slurm_job_submit or slurm_job_modify does not call
ours. `the site's own`: it has nothing of ours."""
LOADS_OURS = frozenset({"calls ours", "does not submit", "does not modify"})
"""The judgements of scripts that load the package's script."""


def judge(lua: str | None, of_package: str | None = None) -> Judgement:
    """Return the judgement on the text of a site's script (None: there is no script).

    `of_package`: the text of the package's script; None: unknown, and any copy counts as another release's.
    """
    if lua is None:
        return "missing"
    if lua == of_package:
        return "ours"
    code = code_of(lua)
    if "slurm-share/job_submit.lua" in code:
        if _replaces_ours(lua, "submit"):
            return "does not submit"
        return "does not modify" if _replaces_ours(lua, "modify") else "calls ours"
    return "another release's" if _COPY.search(code) else "the site's own"


def _replaces_ours(lua: str, function: Literal["submit", "modify"]) -> bool:
    code = code_of(lua.replace(OWN_LUA, ""))
    is_defined = re.search(_DEFINES.format(function), code) is not None
    return is_defined and re.search(_CALLS.format(function), code) is None


def code_of(lua: str) -> str:
    """Return a Lua script without its comments."""
    return "\n".join(line.split("--", 1)[0] for line in _LONG_COMMENT.sub("", lua).splitlines())
