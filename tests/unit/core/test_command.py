"""Output of a command when it ends."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SAYS = """
import sys
from slurm_share.core.command import enter
from slurm_share.core.errors import UsageError

def run():
    print("what is missing")
    raise UsageError("see above")

sys.exit(enter("it", run))
"""


def printed(script):
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    argv = ["bash", "-c", script, "bash", sys.executable, "-c", SAYS]
    done = subprocess.run(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.stdout


def test_the_sentence_of_an_error_comes_after_what_was_said_before():
    assert printed('"$@"; echo $?') == "what is missing\nit: see above\n2\n"


@pytest.mark.parametrize("script", ['"$@" >/dev/full; echo $?', 'exec 3>&1; ("$@" 2>&3; echo $? >&3) | true; wait'])
def test_an_output_that_takes_nothing_changes_neither_sentence_nor_code(script):
    """A full disk, a reader who has gone; nor is there a word of Python's own at its end."""
    assert printed(script) == "it: see above\n2\n"
