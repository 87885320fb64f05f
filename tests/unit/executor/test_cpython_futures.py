"""CPython's own tests of concurrent.futures pass with our executor, but those that tests/data/concurrent_futures.toml
excuses."""

from __future__ import annotations

import fcntl
import functools
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import test

from localcluster import paths

HERE = Path(__file__).parent
EXCUSED: dict[str, dict[str, str]] = tomllib.loads((HERE.parents[1] / "data/concurrent_futures.toml").read_text())
GROUPS = (
    "InitializerMixin", "FailingInitializerMixin", "ThreadPoolWaitTests", "AsCompletedTests", "FutureTests",
    *(
        pytest.param(name, marks=pytest.mark.weekly)
        for name in (
            "ThreadPoolShutdownTest", "ThreadPoolExecutorTest", "ProcessPoolShutdownTest", "WaitTests",
            "ProcessPoolExecutorTest", "ExecutorDeadlockTest",
        )
    ),
)  # fmt: skip
"""Classes of CPython's tests. Weekly: those of which most tests are about threads, and those that take 20 s or more."""


@functools.cache
def cpython_tests() -> str:
    """Return a folder with the whole package `test` of this Python; empty: the interpreter's own is whole.

    Debian has most of it in a package of its own. It is unpacked in the cache; nothing is installed.
    """
    if importlib.util.find_spec("test.test_concurrent_futures") is not None:
        return ""
    release = f"{sys.version_info.major}.{sys.version_info.minor}"
    home = paths.cache() / f"python-tests-{platform.python_version()}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        with open(home / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (home / "complete").exists():
                package = f"libpython{release}-testsuite"
                subprocess.run(["apt-get", "-q", "download", package], cwd=home, check=True, capture_output=True)
                subprocess.run(["dpkg", "-x", next(home.glob("*.deb")), home], check=True, capture_output=True)
                for part in (home / f"usr/lib/python{release}/test", *map(Path, test.__path__)):
                    shutil.copytree(part, home / "test", dirs_exist_ok=True)
                (home / "complete").touch()
    except (OSError, StopIteration, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()[-300:]
        pytest.skip(f"NOT TESTED with CPython's tests: Python {release} is without them here, and {error} {said}")
    return str(home)


@pytest.mark.parametrize("group", GROUPS)
def test_cpythons_tests_pass_but_those_that_cannot_apply(group: str, tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    folder = cpython_tests()
    argv = [sys.executable, str(HERE / "cpython_futures.py"), folder, group, str(answer)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, str] = json.loads(answer.read_text())
    excused = EXCUSED.get(group, {})
    failed = {name: why for name, why in told.items() if why and not why.startswith("skipped:")}
    wrong = [f"{name}: {why}" for name, why in failed.items() if name not in excused]
    assert wrong == [], f"{len(wrong)} of {len(told)}:\n" + "\n".join(wrong)
    assert [name for name in excused if name not in failed] == [], "excused without need: they pass, or are gone"
