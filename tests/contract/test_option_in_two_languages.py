"""The plugin's parser and the hooks' parser give one verdict on every --share-gpu value, and one canonical text."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.core import names
from slurm_share.core.errors import OptionError
from slurm_share.share import option

TABLE = [
    "4,mem=511", "4,mem=512", "4,mem=1M", "4,mem=63M", "4,mem=64M", "4,mem=63MiB", "4,mem=64mb", "4,mem=63,mps=off",
    "", "off", "OFF", "Off", "off,", "off,4", "4,off", "0", "1", "4", "60", "61", "007", "00", "+4", "-4", " 4", "4 ",
    "4.0", "1e1", "0x4", "\u0664", "4\n", "4\t", "4\r", "99999999999999999999", "4", "4", "4,", ",", ",4", "4,,",
    "4,mem", "4,mem=", "4,mem=0", "4,mem=1", "4,mem=01", "4,mem=8G", "4,mem=8g", "4,mem=8GB", "4,mem=8gIb",
    "4,mem=8Gi", "4,mem=8iB", "4,mem=8B", "4,mem=8K", "4,mem=8P", "4,mem=8GBs", "4,mem=16T", "4,mem=17T",
    "4,mem=16384G", "4,mem=16385G", "4,mem=16777216", "4,mem=16777217", "4,mem=999999999", "4,mem=9999999999",
    "4,mem=4294967296", "4,mem=-8G", "4,mem=8 G", "4,mem=8G,mem=8G", "4,mem=8G,", "4,MEM=8G", "4,mem=8G=",
    "4,mem==8G", "4,sm", "4,sm=", "4,sm=%", "4,sm=0", "4,sm=1", "4,sm=50", "4,sm=50%", "4,sm=50%%", "4,sm=100",
    "4,sm=101", "4,sm=1000", "4,sm=050", "4,sm=even", "4,sm=free", "4,sm=EVEN", "4,sm=even%", "4,sm=50,sm=50",
    "4,sm=auto", "4,sm=auto,mem=8G",
    "4,sm=even,sm=free", "4,mps", "4,mps=", "4,mps=on", "4,mps=off", "4,mps=ON", "4,mps=1", "4,mps=on,mps=off",
    "4,mps=off,mem=8G", "4,mem=8G,mps=off", "4,sm=50,mps=off", "4,sm=even,mps=off", "4,sm=free,mps=off",
    "4,mem=8G:20G", "4,mem=20G:8G", "4,mem=8G:8G", "4,mem=8G:8192M", "4,mem=8G:", "4,mem=:8G", "4,mem=8G:9G:10G",
    "4,mem=8:20G", "4,mem=512:1024", "4,mem=1M:8G", "4,mem=8G:17T", "4,mem=8G:20G,mem=8G", "4,sm=static",
    "4,sm=static%",
    "4,sharing=auto", "4,sharing=mps", "4,sharing=time-slicing", "4,sharing=time_slicing", "1,sharing=exclusive",
    "4,sharing=exclusive", "1,sharing=exclusive,mem=8G", "1,sharing=exclusive,sm=static", "1,sharing=exclusive,sm=free",
    "4,sharing", "4,sharing=", "4,sharing=MPS", "4,sharing=mig", "4,sharing=mps,sharing=mps", "4,sharing=mps,mps=on",
    "4,mps=off,sharing=time-slicing", "4,mps=on,sharing=time-slicing", "4,sharing=auto,mps=on",
    "1,sharing=exclusive,mps=off",
    "4,sharing=time-slicing,mem=8G", "4,sharing=time-slicing,mem=8G:20G", "4,sharing=time-slicing,sm=static",
    "4,sharing=time-slicing,sm=even", "4,sharing=time-slicing,sm=free", "4,sharing=mps,sm=static,mem=8G:20G",
    "60,mem=8388608MiB:16777216MiB,sm=100%,sharing=time-slicing",
    "60,mem=8388608MiB:16777216MiB,sm=free,sharing=time-slicing",
    "4,mps=on,sm=even,mem=8G", "4,gpu=1", "4;rm -rf /", "4=4", "4,mem=8G,sm=50,mps=on,x",
]  # fmt: skip


class InC:
    """The C parser, asked through a small program."""

    def __init__(self, program: Path) -> None:
        self.process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="ascii"
        )

    def verdict(self, text: str) -> tuple[str, str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write((text.encode().hex() or "-") + "\n")
        self.process.stdin.flush()
        word, _, rest = self.process.stdout.readline().rstrip("\n").partition(" ")
        return word, rest

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        assert self.process.wait(300) == 0, "a sanitizer spoke, or the program ended on its own"


@pytest.fixture(scope="module")
def in_c(c_program):
    """Yield the running C program of this module's tests."""
    program = InC(c_program("option_verdict"))
    yield program
    program.close()


def in_python(text: str) -> tuple[str, str]:
    """Return the hooks' verdict in the same form; sentences differ."""
    try:
        return "ok", option.render(option.parse(text))
    except OptionError:
        return "no", ""


def why_in_python(text: str) -> str:
    """Return the sentence about a value whose parts are valid and do not go together; empty: there is none."""
    try:
        option.parse(text)
    except OptionError as error:
        return str(error) if error.why else ""
    return ""


def assert_agreement(in_c: InC, text: str) -> None:
    word, rest = in_c.verdict(text)
    expected = in_python(text)
    assert (word, rest if word == "ok" else "") == expected
    if word == "no":
        assert names.OPTION_FORM in rest


@pytest.mark.parametrize("text", TABLE)
def test_the_table(in_c, text):
    assert_agreement(in_c, text)
    why = why_in_python(text)
    assert not why or in_c.verdict(text)[1] == why, "settings that do not go together, in one wording"


PIECES = [
    *"0123456789,=%+- :", "mem=", "sm=", "mps=", "off", "on", "even", "free", "static", "G", "M", "T", "iB", "B", "4,",
    "1,", ",mem=8G", ",mem=8G:20G", ",sharing=", "auto", "mps", "time-slicing", "exclusive", ",sharing=exclusive",
]  # fmt: skip
_piece = st.sampled_from(PIECES)
_near = st.lists(_piece, max_size=14).map("".join)
_any = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=70)


@given(_near | _any | st.tuples(st.just("4,"), _near).map("".join))
def test_any_other_text(in_c, text):
    assert_agreement(in_c, text)
