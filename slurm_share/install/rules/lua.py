"""How a site's job_submit.lua calls ours: the lines to add, and whether a script works without our package."""

from __future__ import annotations

import re

from msgspec import Struct

from ...core.installed import LUA
from ...share import site

LOAD = f'local found, share = pcall(dofile, "{LUA}")'
IN_SUBMIT = (
    "local code = found and share.submit(job, partitions, uid) or slurm.SUCCESS",
    "if code ~= slurm.SUCCESS then return code end",
)
IN_MODIFY = (
    "local code = found and share.modify(job, old, partitions, uid) or slurm.SUCCESS",
    "if code ~= slurm.SUCCESS then return code end",
)
"""Lines for a site's own script; they also work when our package is removed."""
_PATH = "slurm-share/job_submit.lua"
_SAFE = re.compile(r"local\s+(\w+)\s*,\s*(\w+)\s*=\s*pcall\s*\(\s*dofile\s*,\s*[\"'][^\"']*" + re.escape(_PATH))
_LOADS = re.compile(r"(\w+)\s*=\s*dofile\s*\(\s*[\"'][^\"']*" + re.escape(_PATH))
_RESULT = re.compile(r"(?:local\s+)?(\w+)\s*=[^=]")
_SUBMIT, _MODIFY = (re.compile(rf"\b{name}\b") for name in ("slurm_job_submit", "slurm_job_modify"))
_DEFINED = r"\bfunction\s+{0}\s*\(|\b{0}\s*=\s*function\b"


class ScriptCall(Struct, frozen=True):
    """One line of a script that needs our package."""

    number: int
    """Line number, starting at 1."""
    text: str


def calls(lua: str) -> tuple[ScriptCall, ...]:
    """Return the lines with which a script loads and calls ours; empty: it does not."""
    rows = [(number, line, _code(line)) for number, line in enumerate(_blanked(lua).split("\n"), 1)]
    names: set[str] = set()
    for _, _, code in (row for row in rows if row[1].strip() != site.OWN_LUA):
        names |= {value for match in _SAFE.finditer(code) for value in match.groups()}
        names |= {match[1] for match in _LOADS.finditer(code)}
    found, last = [], ""
    for number, line, code in rows:
        uses = _PATH in code or any(re.search(rf"\b{re.escape(name)}\b", code) for name in names)
        answers = bool(last) and re.search(rf"\bif\s+{re.escape(last)}\s*~=\s*slurm\.SUCCESS\b", code) is not None
        if uses or answers:
            found.append(ScriptCall(number, line.strip()))
        if uses and _PATH not in code:
            last = match[1] if (match := _RESULT.search(code)) else ""
    return tuple(found)


def survives(lua: str) -> bool:
    """Return whether slurmctld accepts the script, and each job, without our package: ours is loaded with pcall only,
    and used only if it was found."""
    text = _blanked(lua).replace(site.OWN_LUA, "")
    rows = [_code(line) for line in text.split("\n")]
    if any(_PATH in code and _SAFE.search(code) is None for code in rows):
        return False
    for found, share in (match.groups() for code in rows for match in _SAFE.finditer(code)):
        using = [code for code in rows if re.search(rf"\b{share}\s*[.:\[(]", code) and _PATH not in code]
        if any(re.search(rf"\b{found}\b", code) is None for code in using):
            return False
    return True


def stands_alone(lua: str) -> bool:
    """Return whether a script defines both functions that slurmctld needs, without ours."""
    code = site.code_of(lua)
    for name, pattern in (("slurm_job_submit", _SUBMIT), ("slurm_job_modify", _MODIFY)):
        defined = re.findall(_DEFINED.format(name), code)
        if not defined or len(pattern.findall(code)) != len(defined):
            return False
    return True


def _blanked(lua: str) -> str:
    """Return the script with long comments replaced by empty lines, so that line numbers stay the same."""
    return re.sub(r"--\[(=*)\[.*?\]\1\]", lambda match: "\n" * match[0].count("\n"), lua, flags=re.DOTALL)


def _code(line: str) -> str:
    return line.split("--", 1)[0]
