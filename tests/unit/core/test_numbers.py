"""Whole numbers in text: ASCII digits only, bounded; and nothing else in the product asks whether a text has digits."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from slurm_share.core import numbers
from slurm_share.core.records import JobStart

ROOT = Path(__file__).parents[3]
ASKING = {"isdecimal", "isdigit", "isnumeric"}
KERNELS = {
    *("core/numbers.py", "node/cgroups.py", "node/descendants.py", "node/memory.py", "node/process_table.py"),
    *("node/processes.py", "node/step_trees.py", "triples/launcher/sampler.py"),
}
"""The reader itself, and modules that ask it of what the kernel writes: /proc, cgroups."""
ORDINARY = {"prolog/prolog.py", "prolog/epilog.py"}
"""Files that run for every job of a node, also for those that share nothing, and so load few modules."""
ALONE = ("spmd/", "lab/probe_hook.py")
"""Code that runs in the user's own Python, which has nothing of `core`."""


@pytest.mark.parametrize(
    ("text", "number"),
    {"0": 0, "007": 7, "4711": 4711, b"4711": 4711, "9223372036854775807": 2**63 - 1}.items(),
)
def test_digits_are_a_number(text, number):
    assert numbers.whole(text) == number


@pytest.mark.parametrize(
    "text",
    [
        *(None, "", b"", " 1", "1 ", "-1", "+1", "1_0", "1.0", "1e3", "0x1", "\u0661", "\u00b2", "1\n", "1\0"),
        *("9" * 4301, b"9" * 4301, "0" * 4301, "9223372036854775808", "\u0661".encode()),
    ],
    ids=lambda text: repr(text)[:12],
)
def test_anything_else_is_none(text):
    assert numbers.whole(text) is None


def test_a_number_above_its_limit_is_none():
    assert numbers.whole("4294967295", numbers.UINT32_MOST) == 4294967295
    assert numbers.whole("4294967296", numbers.UINT32_MOST) is None


@pytest.mark.parametrize(
    "text", ["\u0661", "9" * 4301, "4711.", "4711." + "9" * 4301, "4294967296"], ids=lambda text: text[:12]
)
def test_the_start_of_a_job_has_a_number_only_for_ascii_digits(text):
    assert JobStart.parse(text) == JobStart(None)


def test_no_other_module_asks_whether_a_text_has_digits():
    found = []
    files = [*(ROOT / "slurm_share").rglob("*.py"), *(ROOT / "prolog").rglob("*.py"), *(ROOT / "tui").rglob("*.py")]
    assert len(files) > 150
    for file in files:
        name = str(file.relative_to(ROOT)).removeprefix("slurm_share/")
        if name in KERNELS | ORDINARY or name.startswith(ALONE):
            continue
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if any(word in text for word in ASKING) else ():
            if isinstance(node, ast.Attribute) and node.attr in ASKING:
                found.append(f"{name}:{node.lineno}")
    assert found == [], "use slurm_share.core.numbers.whole"
