"""Classify a site's job_submit.lua: ours, one that calls ours, or one that prevents sharing."""

from __future__ import annotations

import re
from typing import Literal

from ...core.installed import LUA

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
