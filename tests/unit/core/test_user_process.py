"""A program that root starts as another user cannot be traced by that user."""

from __future__ import annotations

import os

import pytest

from slurm_share.core import process, user_process
from slurm_share.core.records import DaemonGroup, Owner

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can become somebody else")

ANNA = Owner(61001, 61002, (61003,))


def run(*argv: str, **words: object) -> process.Finished:
    return process.exchange(argv, timeout_s=30, env={}, owner=ANNA, **words)  # type: ignore[arg-type]


def test_it_has_one_capability_and_hands_it_on() -> None:
    """CAP_WAKE_ALARM, permitted and ambient, also in the program that it becomes; and nothing else of root's."""
    done = run("/usr/bin/env", "/bin/cat", "/proc/self/status")
    status = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert status["CapPrm:"] == status["CapEff:"] == status["CapAmb:"] == ["0000000800000000"]
    assert status["Uid:"] == ["61001"] * 4
    assert status["Gid:"] == ["61002"] * 4
    assert status["Groups:"] == ["61003"]


def test_a_group_that_is_not_there_keeps_no_program_from_starting(tmp_path) -> None:
    (tmp_path / "cgroup.controllers").write_text("")
    assert run("/bin/echo", "7", group=DaemonGroup(str(tmp_path), 61001, "none")).stdout == "7\n"


def test_the_capability_is_seen_from_outside() -> None:
    """This process is root's and has all of them; its answer of a process that is gone is none."""
    assert user_process.is_untraceable(os.getpid()) is True
    assert user_process.is_untraceable(2**22 + 1) is None
