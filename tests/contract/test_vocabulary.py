"""names.py and plugins/names.h define the same names."""

from __future__ import annotations

import re
from pathlib import Path

from slurm_share.core import names

HEADER = Path(__file__).resolve().parents[2] / "plugins" / "names.h"
_DEFINE = re.compile(r'^#define SS_(\w+) (?:"([^"]*)"|(\d+))$', re.MULTILINE)


def in_c() -> dict[str, str | int]:
    text = HEADER.read_text(encoding="ascii")
    found = {name: int(number) if number else word for name, word, number in _DEFINE.findall(text)}
    assert len(found) == text.count("#define SS_"), "a #define SS_ that is neither one string nor one number"
    return found


def in_python() -> dict[str, str | int]:
    return {name: value for name, value in vars(names).items() if name.isupper() and isinstance(value, str | int)}


def test_c_and_python_have_the_same_words():
    """Both directions: a word that is missing on either side, or means something else there."""
    assert in_c() == in_python()
