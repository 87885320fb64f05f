"""What makes a line of Slurm's files right or wrong for shared jobs: one rule each, for `install` and for `doctor`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Literal

from msgspec import Struct

from ...core.installed import LUA
from ...core.settings import Settings

OWN_LUA = (
    f'do local found, why = pcall(dofile, "{LUA}") if not found then slurm.log_error("%s", tostring(why)) '
    "slurm_job_submit = function() return slurm.SUCCESS end slurm_job_modify = slurm_job_submit end end"
)
"""All of job_submit.lua where the site has none. slurmctld does not start with a script that fails, nor with one that
lacks either function: without the package this one takes every job as it is, and says so in slurmctld's log."""
_ALLOC = frozenset({"alloc", "contain", "x11", "nohold", "forcerequeueonfail", "runinjob"})
"""Flags that make a Prolog run on every node when the job is given it: slurmctld shows Alloc beside each of the others
(seen on 24.11 and 26.05). DeferBatch does so from 26.05 on only (24.11.5 tried)."""
PROLOG_SLACK_S, EPILOG_SLACK_S = 5.0, 5.0
"""What our Prolog and Epilog may take beyond their settings before they end themselves (share/admission.py and
share/release.py, SLACK_S; tests compare)."""
_LONG_COMMENT = re.compile(r"--\[(=*)\[.*?\]\1\]", re.DOTALL)
_GIVES_VERDICT = re.compile(r"\bVERDICT\s*=")
_DEFINES = r"\bfunction\s+slurm_job_{0}\b|\bslurm_job_{0}\s*=[^=]"
_CALLS = r"[.:\]]\s*{0}\b|\[\s*[\"']{0}[\"']\s*\]"
_COUNT = re.compile(r"\d+")

Script = Literal["ours", "calls ours", "another release's", "the site's own"]


def has_alloc(flags: Collection[str]) -> bool:
    """Whether PrologFlags, in lower case, run the Prolog when a job is given its nodes."""
    return bool(_ALLOC & set(flags))


def runs_in_job(flags: Collection[str]) -> bool:
    """Whether the Prolog runs inside the job, whose end then kills every MPS daemon that it has started."""
    return "runinjob" in flags


def has_lua(plugins: Collection[str]) -> bool:
    """Whether JobSubmitPlugins, in lower case, have job_submit.lua run; Slurm takes either spelling."""
    return bool({"lua", "job_submit/lua"} & set(plugins))


def has_interactive_step(parameters: Collection[str]) -> bool:
    """Whether LaunchParameters, in lower case, put salloc's shell on the node."""
    return "use_interactive_step" in parameters


def script_of(lua: str, of_package: str | None = None) -> Script:
    """What a site's job_submit.lua is: ours, one that names ours outside of comments, a copy of another release's, or
    one that knows nothing of shared jobs. Where the package's own is not at hand, any copy counts as another's."""
    if of_package is not None and lua == of_package:
        return "ours"
    code = code_of(lua)
    if "slurm-share/job_submit.lua" in code:
        return "calls ours"
    return "another release's" if re.search(r'\bVARIABLE\s*=\s*"SHARE_GPU"', code) else "the site's own"


def tells_no_mode(lua: str) -> bool:
    """Whether a script is a copy of ours from a release that wrote no verdict: every job that asks to share then runs
    unshared on nodes of this release."""
    return script_of(lua) == "another release's" and not _GIVES_VERDICT.search(code_of(lua))


def code_of(lua: str) -> str:
    """A Lua script without its comments."""
    return "\n".join(line.split("--", 1)[0] for line in _LONG_COMMENT.sub("", lua).splitlines())


def replaces_ours(lua: str, function: Literal["submit", "modify"]) -> bool:
    """Whether a script that loads ours puts a slurm_job_submit, or slurm_job_modify, of its own in the place of ours
    and never calls ours."""
    code = code_of(lua.replace(OWN_LUA, ""))
    is_defined = re.search(_DEFINES.format(function), code) is not None
    return is_defined and re.search(_CALLS.format(function), code) is None


class CutOff(Struct, frozen=True):
    """A hook that Slurm ends before it ends itself."""

    key: str
    """Prolog or Epilog."""
    most_s: float
    needs_s: float


def hook_needs_s(settings: Settings) -> tuple[float, float]:
    """How long our Prolog and our Epilog may take at most, seconds."""
    return settings.hook_deadline_s + PROLOG_SLACK_S, settings.release_deadline_s + EPILOG_SLACK_S


def cut_off(limits_s: Mapping[str, float | None], settings: Settings) -> tuple[CutOff, ...]:
    """The hooks to which Slurm's limits leave too little time. `limits_s`: PrologEpilogTimeout, PrologTimeout and
    EpilogTimeout, as far as they are set; None or 0: no limit."""
    whole = limits_s.get("PrologEpilogTimeout")
    found = []
    for key, needs in zip(("Prolog", "Epilog"), hook_needs_s(settings), strict=True):
        most = limits_s.get(f"{key}Timeout") or whole
        if most and most < needs:
            found.append(CutOff(key, most, needs))
    return tuple(found)


def parse_seconds(text: str) -> float | None:
    """A time of slurm.conf (`30`, or `30 sec` from the controller); None: it is none, or without end."""
    match = _COUNT.match(text)
    # 65534 and 4294967294 are Slurm's NO_VAL16 and NO_VAL; 65535 and 4294967295 its INFINITE.
    return float(match[0]) if match and int(match[0]) not in (65534, 65535, 4294967294, 4294967295) else None


def keeps_one_user(options: Mapping[str, str]) -> bool:
    """Whether a partition gives whole nodes to one job or one user, by its options in lower-case keys."""
    over = options.get("oversubscribe", options.get("shared", ""))
    return (
        options.get("exclusive", "NO").upper() in ("NODE", "USER", "YES")
        or options.get("exclusiveuser", "NO").upper() == "YES"
        or over.upper().startswith("EXCLUSIVE")
    )


class Resource(Struct, frozen=True):
    """One word of a node's Gres."""

    name: str
    kind: str
    """Its type; empty: it has none."""
    count: int | None
    """None: not to be read."""


def parse_gres(text: str) -> tuple[Resource, ...]:
    """gpu:a100:2(S:0-1),gpu:h100:2,shard:24 word by word."""
    return tuple(_resource(word) for word in re.sub(r"\([^)]*\)", "", text).split(",") if word.strip())


def _resource(word: str) -> Resource:
    name, *rest = word.strip().split(":")
    *kind, count = rest or ["1"]
    if not count.isdecimal():
        kind, count = [*kind, count], "1"  # `gpu:h200` is one of them
    is_clear = len(kind) <= 1 and all(kind)
    return Resource(name.lower(), kind[0] if kind else "", int(count) if is_clear else None)
