"""The plugin and llsub remove the same variables of another job from an environment."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from slurm_share.core import given_variables, names

VALUES = {
    "OMP_NUM_THREADS": "4",
    "FRACTION": "0.486",
    "ODD": " a=b%41\n'\"$\t",
    "BYTES": os.fsdecode(b"\xff\xc3\xa4"),
    "EMPTY": "",
    "SLURM_SHARE_SLOT": "3",
    "LLSUB_DIR": "/home/a b/LLSUB.1",
}
RECORD = given_variables.render(7, {**VALUES, "SLURM_SHARE_SLOT": None, "LLSUB_DIR": None})
RECORDS = [
    RECORD, RECORD.replace("7 ", "0 ", 1), RECORD.replace("7 ", "99999999999 ", 1), RECORD.replace("7 ", "x ", 1),
    "", " ", "7", "8", "8 =", "8 FRACTION=%", "8 FRACTION=%3", "8 FRACTION=%30.486", "8 FRACTION=%300.486",
    "8 EMPTY=", "8 EMPTY", "8  FRACTION", "8\tFRACTION", "4294967295 EMPTY", "4294967296 EMPTY", "8 HOME=/h=", "8 HOME",
    "8 SLURM_SHARE_SLOT", "8 LLSUB_DIR LLMR",
]  # fmt: skip
CHANGES: list[dict[str, str]] = [{}, {"FRACTION": ".9"}, {"OMP_NUM_THREADS": "4 "}, {"EMPTY": "x", "LLSUB_DIR": "/x"}]


@pytest.fixture(scope="module")
def in_c(c_program: Callable[[str], Path]) -> Callable[[Mapping[str, str], int], dict[str, str]]:
    program = c_program("given_verdict")

    def ask(environ: Mapping[str, str], job: int) -> dict[str, str]:
        done = subprocess.run([program, str(job)], env=environ, capture_output=True, check=True)
        found = (os.fsdecode(one).partition("=") for one in done.stdout.split(b"\0")[:-1])
        return {name: value for name, _, value in found}

    return ask


@pytest.mark.parametrize("record", RECORDS)
def test_c_and_python_leave_the_same(record: str, in_c: Callable[[Mapping[str, str], int], dict[str, str]]) -> None:
    for changed, job in [*((one, 0) for one in CHANGES), ({}, 7), ({}, 4294967295)]:
        environ = {"HOME": "/h", **VALUES, **changed, names.ENV_GIVEN: record}
        assert in_c(environ, job) == given_variables.forget(environ, job or None), (changed, job)


def test_what_python_records_c_removes_and_keeps_what_the_user_changed(
    in_c: Callable[[Mapping[str, str], int], dict[str, str]],
) -> None:
    environ = {"HOME": "/h", **VALUES, names.ENV_GIVEN: RECORD}
    assert in_c(environ, 0) == {"HOME": "/h"}
    assert in_c({**environ, "FRACTION": ".9", "LLSUB_DIR": "/x"}, 8) == {"HOME": "/h", "FRACTION": ".9"}
