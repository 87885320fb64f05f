"""Hooks of jobs of which no step loaded the plugin: found by the Epilog, told to the job, refused after the third."""

from __future__ import annotations

import os

import pytest
from hooked_nodes import ALICE, HookedNode, as_root

from slurm_share.core.process import Finished
from slurm_share.core.records import Owner
from slurm_share.share import plugin_use, slurm_commands, state
from slurm_share.slurm import node_plugin

TOO_SHORT = "file too short"


class Node(HookedNode):
    """A node whose plugin cannot be loaded for the reason `problem`; `asked` has the commands to Slurm."""

    def __init__(self, root, monkeypatch):
        super().__init__(root, monkeypatch)
        self.problem, self.tried, self.asked, self.written = TOO_SHORT, 0, [], []
        monkeypatch.setattr(node_plugin, "read_problem", self._try)
        monkeypatch.setattr(slurm_commands, "run", self._ask)
        monkeypatch.setattr(slurm_commands, "write_output", self._write)
        monkeypatch.setattr(plugin_use, "CANCELLED_S", 0.0)

    def _try(self, _conf):
        self.tried += 1
        return self.problem

    def _ask(self, _environ, *words):
        self.asked.append(" ".join(words))
        number = words[-1] if words[-1].isdecimal() else "1"
        job = f'"job_id": {number}, "admin_comment": "share-gpu=2", "standard_output": "/home/alice/slurm-1.out"'
        return Finished(0, f'{{"jobs": [{{"job_id": 1}}, {{{job}}}]}}', "")

    def _write(self, known, owner, text, *, may_make):
        self.written.append((known.standard_output, owner.uid, text.removeprefix("slurm-share: "), may_make))
        return True

    def job(self, job_id, *, loads):
        self.admit(self.environ(job_id, share="2"))
        if loads:
            self.paths.loaded(job_id).write_text("1")
        self.release(self.environ(job_id))


@pytest.fixture
def node(tmp_path, monkeypatch):
    return Node(tmp_path, monkeypatch)


def test_a_job_whose_steps_loaded_the_plugin_costs_no_test_and_no_word(node):
    node.job(5, loads=True)
    assert (node.tried, node.asked, node.written, node.said("plugin")) == (0, [], [], 0)


def test_a_job_that_had_no_step_on_a_node_that_is_well_leaves_no_word(node):
    """It was cancelled before its first step, or salloc started none."""
    node.problem = ""
    node.job(5, loads=False)
    assert (node.asked, node.said("plugin"), node.ledger().without_plugin) == ([], 0, ())


def test_a_job_of_an_earlier_releases_prolog_is_not_judged(node):
    node.admit(node.environ(5, share="2"))
    node.paths.loaded(5).unlink()
    node.release(node.environ(5))
    assert (node.tried, node.ledger().without_plugin) == (0, ())


def test_a_second_run_of_a_job_does_not_count_the_steps_of_the_first(node):
    node.admit(node.environ(5, share="2"))
    node.paths.loaded(5).write_text("1")
    node.admit(node.environ(5, share="2", SLURM_JOB_RESTART_COUNT="1"))
    assert state.was_plugin_loaded(node.paths, 5) is False


def test_the_fourth_job_is_refused_and_cancelled_until_the_plugin_can_be_loaded(node):
    for job in (5, 6, 7):
        node.job(job, loads=False)
        assert node.said(f"no step of job {job} loaded the plugin of slurm-share on n2", TOO_SHORT) == 1
    assert [(file, uid, may_make) for file, uid, _, may_make in node.written] == [
        ("/home/alice/slurm-1.out", ALICE, False)
    ] * 3
    assert node.ledger().without_plugin == (5, 6, 7)
    node.asked.clear()
    assert node.admit(node.environ(8, share="2"))  # the node is not drained
    assert f"without it the job would run unshared: {TOO_SHORT}; submit" in node.refused(8)
    assert node.asked[-1] == "scancel 8"
    assert "AdminComment=share-not-loaded=n2;share-gpu=2" in node.asked[-2]
    assert node.written[-1][3]
    node.release(node.environ(8))
    node.asked.clear()
    node.admit(node.environ(9))  # an ordinary job
    node.problem = ""
    node.job(10, loads=True)
    assert (node.asked, node.refused(9) if node.plan(9) else None) == ([], None)
    assert node.ledger().without_plugin == ()


@pytest.fixture
def home(tmp_path_factory):
    """Return a folder of alice's that she can reach."""
    folder = tmp_path_factory.mktemp("home")
    for one in (folder, *folder.parents):
        if not one.stat().st_mode & 0o001:
            one.chmod(one.stat().st_mode | 0o055)
    os.chown(folder, ALICE, ALICE)
    return folder


def write(path, *, may_make=False):
    known = slurm_commands.ShownJob(1, standard_output=str(path))
    return slurm_commands.write_output(known, Owner(ALICE, ALICE), "slurm-share: a sentence", may_make=may_make)


@as_root
def test_a_job_s_output_is_written_as_its_user_and_made_only_before_the_job(home):
    out = home / "slurm-1.out"
    assert not write(out)
    assert not out.exists()
    assert write(out, may_make=True)
    assert write(out)
    assert (out.read_text(), out.stat().st_uid) == ("slurm-share: a sentence\n" * 2, ALICE)


@as_root
def test_the_path_that_a_user_chose_leads_root_to_no_file_of_another_and_into_no_wait(home, tmp_path):
    roots = tmp_path / "roots"
    roots.write_text("")
    (home / "link").symlink_to(home / "mine")
    (home / "mine").write_text("")
    os.chown(home / "mine", ALICE, ALICE)
    os.mkfifo(home / "fifo", 0o666)
    assert [write(one) for one in (roots, home / "link", home / "fifo")] == [False] * 3
    assert (roots.read_text(), (home / "mine").read_text()) == ("", "")


def test_a_users_program_with_the_name_of_slurmd_is_not_started(tmp_path):
    program = tmp_path / "slurmd"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o777)
    assert not node_plugin.is_of_root(str(program))
    assert not node_plugin.is_of_root(str(tmp_path / "gone"))
    assert node_plugin.is_of_root("/bin/true")
