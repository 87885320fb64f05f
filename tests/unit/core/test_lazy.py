"""A package's __init__.py offers at run time the names that it shows to mypy."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[3]
LAZY = sorted(
    ".".join(file.parent.relative_to(CHECKOUT).parts)
    for file in (CHECKOUT / "slurm_share").rglob("__init__.py")
    if "lazy import exports" in file.read_text()
)


def for_mypy(package):
    tree = ast.parse((CHECKOUT / package.replace(".", "/") / "__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    return sorted(alias.asname or alias.name for node in block.body for alias in node.names)


@pytest.mark.parametrize("package", LAZY)
def test_every_name_that_mypy_sees_is_offered_and_is_there(package):
    module = importlib.import_module(package)
    assert module.__all__ == for_mypy(package)
    for name in module.__all__:
        assert getattr(module, name) is not None


@pytest.mark.parametrize("package", LAZY)
def test_another_name_is_an_error_of_the_usual_kind(package):
    with pytest.raises(AttributeError, match="has no attribute 'nothing_of_the_kind'"):
        _ = importlib.import_module(package).nothing_of_the_kind


def test_an_interrupt_waits_until_a_module_is_imported(tmp_path):
    package = tmp_path / "interrupted"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from slurm_share.core import lazy\n"
        "__getattr__, __all__ = lazy.exports('interrupted', names={'part': ['value']})\n"
    )
    (package / "part.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nvalue = 1\n")
    (tmp_path / "program.py").write_text(
        "import signal, sys, interrupted\n"
        "try:\n    interrupted.value\nexcept KeyboardInterrupt:\n"
        "    held_back = signal.pthread_sigmask(signal.SIG_BLOCK, ())\n"
        "    print(sys.modules['interrupted.part'].value, interrupted.value, held_back)\n"
    )
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"], capture_output=True, text=True, env={"PYTHONPATH": str(CHECKOUT)}
    )
    assert (done.stdout, done.stderr) == ("1 1 set()\n", "")
