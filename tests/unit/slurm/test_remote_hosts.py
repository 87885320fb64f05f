"""Other hosts, asked through a site's remote command: here a shell that runs the command, ends with 255, or hangs."""

from __future__ import annotations

import hashlib
import time

from slurm_share.core.process import Deadline
from slurm_share.slurm import remote_hosts

REMOTE = ("sh", "-c", 'case $0 in gone) exit 255 ;; hung) exec sleep 600 ;; *) exec "$@" ;; esac', "NODE")


def argv_of(host):
    """Return the prefix that install uses."""
    return remote_hosts.remote_argv(REMOTE, host)


def test_the_word_for_the_host_is_replaced_wherever_it_stands():
    remote = ("ssh", "-J", "NODE", "NODE", "NODES")
    assert remote_hosts.remote_argv(remote, "n1") == ["ssh", "-J", "n1", "n1", "NODES"]


def test_who_answers_says_what_is_there_and_nobody_is_waited_for(tmp_path):
    (tmp_path / "a b").touch()
    files = [str(tmp_path / "a b"), str(tmp_path / "gone")]
    began = time.monotonic()
    found = remote_hosts.read_there(["here", "gone", "hung"], files, argv_of, Deadline.after(20.0))
    assert found == {"here": frozenset(files[:1])}
    assert remote_hosts.read_there(["here"], files[1:], argv_of, Deadline.after(300.0)) == {"here": frozenset()}
    assert time.monotonic() - began < 300.0
    assert remote_hosts.read_there(["here"], files, argv_of, Deadline.after(0.0)) == {}


def test_sums_are_those_of_the_files(tmp_path):
    (tmp_path / "slurm.conf").write_bytes(b"ClusterName=x\n")
    files = [str(tmp_path / "slurm.conf"), str(tmp_path / "gres.conf")]
    found = remote_hosts.read_sums(["here", "gone"], files, argv_of, Deadline.after(300.0))
    assert found == {"here": {files[0]: hashlib.sha256(b"ClusterName=x\n").hexdigest()}}
