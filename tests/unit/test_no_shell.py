"""No shell reads what a user wrote: nothing that we ship starts one by itself."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHIPPED = ("slurm_share", "prolog", "tui")
FORBIDDEN = {
    *("os.system", "os.popen", "os.spawnlp", "os.spawnvp", "os.execlp", "os.execvp", "subprocess.getoutput"),
    *("subprocess.getstatusoutput", "pty.spawn", "eval", "exec", "pickle.load", "pickle.loads", "marshal.loads"),
}
SHELLS = re.compile(r"(?:/usr)?(?:/bin/)?(?:ba|da|z|k)?sh")
IN_C = re.compile(r"\b(?:system|popen|execlp|execvp|execvpe|wordexp)\s*\(")
IN_LUA = re.compile(r"\b(?:os\.execute|io\.popen|loadstring|load)\s*\(")
SETTINGS_IN_LUA = ("setfenv(assert(loadstring(text)), {})", 'load(text, text, "t", {})')
"""How job_submit.lua reads its settings, a file of root's: as Lua in text form, with no function within reach."""
FROM_PEERS = {
    "slurm_share/spmd/codec.py",
    "slurm_share/spmd/collectives.py",
    "slurm_share/executor/child.py",
    "slurm_share/executor/outcome.py",
}
"""Modules that unpickle objects, sent by the same user's processes of the same run: both ends have proved that, or the
file that has them belongs to that user."""
A_USERS_OWN = {
    "slurm_share/integrations/snakemake.py",
    "slurm_share/load/rules/steps.py",
    "slurm_share/triples/launcher",
    "slurm_share/cli/llsub.py",
    "slurm_share/cli/llmapreduce.py",
    "slurm_share/cli/llmapreduce_options.py",
    "slurm_share/triples/rules/mapreduce.py",
    "slurm_share/triples/rules/submission.py",
    "slurm_share/triples/rules/deal.py",
    "slurm_share/triples/submitting.py",
    "slurm_share/triples/map_submitting.py",
}
"""Modules that start a user's own script or command line, as that user."""
COMMANDS_OF_A_USERS_CALL = {"slurm_share/spmd/ppython/helpers.py"}
"""Modules of a user's own Python whose function is to run its caller's command line in a shell."""


@cache
def nodes() -> list[tuple[str, ast.AST]]:
    """Return the calls and word lists of every Python file, each with the file's path."""
    files = [file for folder in SHIPPED for file in (ROOT / folder).rglob("*.py")]
    assert len(files) > 150
    return [
        (str(file.relative_to(ROOT)), node)
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call | ast.List | ast.Tuple)
    ]


def test_nothing_in_python_starts_a_shell() -> None:
    """No `shell=True`, no function that starts a shell, and no text is run as code."""
    found = []
    last = {name.rpartition(".")[2] for name in FORBIDDEN}
    for where, call in nodes():
        if not isinstance(call, ast.Call):
            continue
        is_known = getattr(call.func, "attr", getattr(call.func, "id", "")) in last
        name = ast.unparse(call.func) if is_known else ""
        is_shell = any(key.arg == "shell" for key in call.keywords)
        is_shell = is_shell and where not in COMMANDS_OF_A_USERS_CALL
        if (name in FORBIDDEN and not (name in ("pickle.load", "pickle.loads") and where in FROM_PEERS)) or is_shell:
            found.append(f"{where}:{call.lineno}: {name}")
    assert found == []


def test_no_word_list_begins_with_a_shell() -> None:
    """A list such as ["bash", "-c", ...] is one as well; only a user's own command line is ever given to his."""
    found = []
    for where, node in nodes():
        first = node.elts[0] if isinstance(node, ast.List | ast.Tuple) and node.elts else None
        is_word = isinstance(first, ast.Constant) and isinstance(first.value, str)
        if is_word and SHELLS.fullmatch(first.value) and not where.startswith(tuple(A_USERS_OWN)):
            found.append(f"{where}:{node.lineno}: {first.value}")
    assert found == []


@pytest.mark.parametrize(("pattern", "form"), [("*.c", IN_C), ("*.lua", IN_LUA)])
def test_nothing_in_the_plugin_starts_a_shell(pattern: str, form: re.Pattern[str]) -> None:
    files = [file for folder in ("plugins", "prolog") for file in (ROOT / folder).glob(pattern)]
    assert files
    comments = (
        re.compile(r"/\*.*?\*/|--[^\n]*", re.DOTALL) if pattern == "*.lua" else re.compile(r"/\*.*?\*/", re.DOTALL)
    )
    texts = {file.name: comments.sub("", file.read_text(encoding="utf-8")) for file in files}
    for way in SETTINGS_IN_LUA if pattern == "*.lua" else ():
        assert texts["job_submit.lua"].count(way) == 1
        texts["job_submit.lua"] = texts["job_submit.lua"].replace(way, "")
    assert [name for name, text in texts.items() if form.search(text)] == []
