"""What users see of an error in a call."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
from slurm_share.executor import Executor
def fails():
    return 1 / 0  # this line
with Executor(triple=1, local=True) as executor:
    error = executor.submit(fails).exception()
print(type(error).__name__, error.__cause__)
"""


def test_the_traceback_of_a_function_of_the_program_itself_shows_its_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "prog.py").write_text(PROGRAM)
    done = subprocess.run([sys.executable, "prog.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "ZeroDivisionError" in done.stdout
    assert f'File "{tmp_path}/prog.py", line 4, in fails\n    return 1 / 0  # this line\n' in done.stdout


CANCELS = """
import time
from slurm_share.executor import Executor
with Executor(triple=[1, 2], local=True) as executor:
    list(executor.map(abs, range(200)))  # short calls: workers are given many ahead
    futures = [executor.submit(time.sleep, 0.5) for _ in range(40)]
    while not futures[0].running(): time.sleep(0.01)
    executor.shutdown(cancel_futures=True)
print(sum(future.cancelled() for future in futures))
"""


def test_long_calls_after_short_ones_can_be_cancelled_while_they_wait(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", CANCELS], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 20


KILLS = """
import os, signal
from slurm_share.executor import Executor
def kills():
    os.kill(os.getpid(), signal.SIGKILL)
with Executor(triple=1, local=True) as executor:
    said = [str(executor.submit(kills).exception()) for _ in range(30)]
print(sum("SIGKILL" in one for one in said))
"""


def test_the_signal_that_ended_the_process_of_a_call_is_named_each_time(tmp_path: Path) -> None:
    """Its end and the end of its connection are seen in either order."""
    done = subprocess.run([sys.executable, "-c", KILLS], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "30\n")
