"""job_submit.lua without Slurm: its decisions about a job, and its reading of the one configuration key it knows."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from slurm_share import names, share_option
from slurm_share.errors import OptionError
from slurm_share.paths import CONFIG_FILE

HERE = Path(__file__).resolve().parent
SCRIPT = HERE.parents[1] / "plugins" / "job_submit.lua"

pytestmark = pytest.mark.skipif(shutil.which("lua5.1") is None, reason="NOT TESTED: lua5.1 is not installed")

VALUES = [
    "1", "4", "60", "61", "0", "007", "off", "OFF", "+4", "-1", " 4", "4 ", "4\n", "", ",", "4,", ",4", "4,,mem=8G",
    "4,mem=8G", "4,mem=8gib", "4,mem=8Gb", "4,mem=800", "4,mem=16T", "4,mem=17T", "4,mem=16777216", "4,mem=16777217",
    "4,mem=0", "4,mem=08G", "4,mem=8K", "4,mem=8B", "4,mem=8Gi", "4,mem=8iB", "4,mem", "4,mem=", "4,Mem=8G",
    "4,mem=8G,mem=8G", "4,mem=8G=8G", "4,mem=4294967297T", "4,sm=1", "4,sm=100%", "4,sm=101", "4,sm=0", "4,sm=05",
    "4,sm=50%%", "4,sm=%", "4,sm=even", "4,sm=free", "4,sm=Even", "4,mps=on", "4,mps=off", "4,mps=yes", "4,mps",
    "4,mem=8G,mps=off", "4,sm=50,mps=off", "4,sm=even,mps=off", "4,sm=free,mps=off", "4,mps=on,sm=50%,mem=8G",
    "4;rm -rf /", "4,gpu=1", "4,off", "off,4", "4,mem=8G" + "," * 60,
]  # fmt: skip


def lua(program: str, *arguments: str) -> str:
    """What a Lua program prints; `share` is the table that job_submit.lua returns."""
    prelude = (
        f"slurm = {{ NO_VAL = 4294967294, NO_VAL16 = 65534, SUCCESS = 0, ERROR = -1 }} share = dofile({str(SCRIPT)!r}) "
    )
    command = ["lua5.1", "-e", prelude + program, "/dev/null", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_decisions_hold():
    """The table of jobs and configuration texts in job_submit_test.lua."""
    result = subprocess.run(
        ["lua5.1", HERE / "job_submit_test.lua", SCRIPT], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_its_words_are_those_of_names():
    """It runs in slurmctld, where neither Python nor the C header is at hand."""
    printed = lua(
        "for _, key in ipairs({'CONFIG', 'VARIABLE', 'DIRECT', 'FORM', 'SHARE_MAX', 'MEM_MAX_MIB', "
        "'OPTION_MAX_BYTES'}) do print(share[key]) end"
    )
    assert printed.splitlines() == [
        str(CONFIG_FILE),
        names.JOB_CONTROL_VARIABLE,
        names.JOB_CONTROL_DIRECT,
        names.OPTION_FORM,
        str(names.SHARE_MAX),
        str(names.MEM_MAX_MIB),
        str(names.OPTION_MAX_BYTES),
    ]


@pytest.mark.parametrize("value", VALUES)
def test_a_value_is_judged_as_the_hooks_judge_it(value):
    """A value that passes here and fails in the Prolog would cost a node its time; the other way round, a job."""
    try:
        request = share_option.parse(value)
        expected = "0" if request is None else str(request.per_gpu)
    except OptionError:
        expected = "nil"
    shown = "".join(f"\\{byte:03d}" for byte in value.encode())
    assert lua(f'print(share.tasks_per_gpu("{shown}"))').strip() == expected
