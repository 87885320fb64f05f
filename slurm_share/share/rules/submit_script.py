"""What a site's job_submit.lua is: ours, one that calls ours, or one that keeps jobs from being shared."""

from __future__ import annotations

import re
from typing import Literal

from ...core.installed import LUA

OWN_LUA = (
    f'do local found, why = pcall(dofile, "{LUA}") if not found then slurm.log_error("%s", tostring(why)) '
    "slurm_job_submit = function() return slurm.SUCCESS end slurm_job_modify = slurm_job_submit end end"
)
"""All of job_submit.lua where the site has none. slurmctld does not start with a script that fails, nor with one that
lacks either function: without the package this one takes every job as it is, and says so in slurmctld's log."""
_LONG_COMMENT = re.compile(r"--\[(=*)\[.*?\]\1\]", re.DOTALL)
_COPY = re.compile(r'\bVARIABLE\s*=\s*"SHARE_GPU"')
_GIVES_VERDICT = re.compile(r"\bVERDICT\s*=")
_DEFINES = r"\bfunction\s+slurm_job_{0}\b|\bslurm_job_{0}\s*=[^=]"
_CALLS = r"[.:\]]\s*{0}\b|\[\s*[\"']{0}[\"']\s*\]"

Judgement = Literal[
    "missing",
    "ours",
    "calls ours",
    "does not submit",
    "does not modify",
    "another release's",
    "tells no mode",
    "the site's own",
]
"""`does not submit`, `does not modify`: it loads ours, has a slurm_job_submit or slurm_job_modify of its own and never
calls ours from it. `tells no mode`: a copy of ours from a release that wrote no verdict; every job that asks to share
then runs unshared on nodes of this release. `the site's own`: it knows nothing of shared jobs."""
LOADS_OURS = frozenset({"calls ours", "does not submit", "does not modify"})
"""Those that need the package's own script to be there."""


def judge(lua: str | None, of_package: str | None = None) -> Judgement:
    """Return what the text of a site's script is; None: there is no script.

    `of_package`: the text of the package's own; where it is not at hand, any copy counts as another release's.
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
    if not _COPY.search(code):
        return "the site's own"
    return "another release's" if _GIVES_VERDICT.search(code) else "tells no mode"


def _replaces_ours(lua: str, function: Literal["submit", "modify"]) -> bool:
    code = code_of(lua.replace(OWN_LUA, ""))
    is_defined = re.search(_DEFINES.format(function), code) is not None
    return is_defined and re.search(_CALLS.format(function), code) is None


def code_of(lua: str) -> str:
    """Return a Lua script without its comments."""
    return "\n".join(line.split("--", 1)[0] for line in _LONG_COMMENT.sub("", lua).splitlines())
