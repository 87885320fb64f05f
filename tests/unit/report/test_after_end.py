"""The process after a job's end: its file, slurmdbd, the job's output."""

from __future__ import annotations

import os
import re

import pytest
from msgspec.structs import replace

from slurm_share.core.paths import Paths
from slurm_share.core.process import Finished
from slurm_share.core.settings import Settings
from slurm_share.report import after_end
from slurm_share.share import slurm_commands
from slurm_share.slurm import node_plugin
from slurm_share.usage import JobUse, comment, files, note

NOTE = note.UseNote(
    job=7,
    uid=os.getuid(),
    gid=os.getgid(),
    node="n1",
    began=1000.0,
    ended=1010.0,
    is_batch=True,
    share=2,
    gpus=(note.NotedGpu(uuid="GPU-a", begin_mj=1000, end_mj=3500),),
)


class Site:
    """A node after a job's end, and a slurmdbd with the comments and TRES of jobs; `asked` has its changes."""

    def __init__(self, root, monkeypatch):
        self.paths, self.folder = Paths(root / "state"), root / "records"
        self.settings = Settings(agent_socket=str(root / "none"))
        self.names = {"7": "7"}
        self.comments, self.tres, self.asked, self.said, self.printed = {}, {}, [], [], []
        self.is_down, self.queue = False, ""
        self.paths.root.mkdir()
        monkeypatch.setattr(after_end.hook, "report", lambda _who, text: self.said.append(text))
        monkeypatch.setattr(after_end.time, "sleep", lambda _s: None)
        monkeypatch.setattr(node_plugin, "read_value", lambda *_: "accounting_storage/slurmdbd")
        monkeypatch.setattr(slurm_commands, "run", self._run)
        monkeypatch.setattr(slurm_commands, "show", lambda *_: slurm_commands.ShownJob(7, standard_output="/o"))
        monkeypatch.setattr(slurm_commands, "write_output", self._print)

    def _print(self, known, owner, text, *, may_make):
        self.printed.append((known.standard_output, owner.uid, text, may_make))
        return True

    def _run(self, _environ, name, *words, timeout_s=0):
        if self.is_down:
            return None
        if name == "squeue":
            return Finished(0, self.queue, "")
        if name == "sacctmgr":
            job, change = words[4].removeprefix("jobid="), words[6]
            field, _, value = change.partition("=")
            self.asked.append((job, field))
            (self.comments if field == "systemcomment" else self.tres)[job] = value
            return Finished(0, "", "")
        delimiter = next(one for one in words if one.startswith("--delimiter=")).partition("=")[2]
        if "-o" not in words:
            return Finished(0, "", "")  # all that the report asks for
        job, fields = words[words.index("-j") + 1], words[words.index("-o") + 1].split(",")
        rows = [one for one in self.names if job in (one, self.names[one]) or self.names[one].startswith(f"{job}_")]
        text = ""
        for raw in rows:
            name = self.names[raw]
            known = {"JobID": name, "JobIDRaw": raw, "End": "1010", "AllocTRES": self.tres.get(name, "cpu=1")}
            known["SystemComment"] = self.comments.get(name, "")
            text += "".join(f"{known[one]}{delimiter}" for one in fields) + "\n"
        return Finished(0, text, "")

    def work(self, made=NOTE):
        note.folder_of(self.paths.root).mkdir(exist_ok=True)
        (note.folder_of(self.paths.root) / str(made.job)).write_bytes(note._ENCODER.encode(made))
        after_end.AfterEnd(self.settings, {}, self.paths, self.folder).work(made.job)

    def published(self, job="7"):
        return comment.decode(self.comments.get(job, "")).uses


@pytest.fixture
def site(tmp_path, monkeypatch):
    return Site(tmp_path, monkeypatch)


def test_a_record_is_kept_on_the_node_published_and_its_note_removed(site):
    site.comments["7"] = "of a burst buffer"
    site.work()
    (use,) = site.published()
    assert (use.job, use.node, use.gpus[0].energy.joules) == (7, "n1", 2.5)
    assert site.comments["7"].startswith("of a burst buffer;slurm-share-use:1:")
    assert files.read(site.folder / "use-7.json", JobUse).gpus[0].device_j == 2.5
    assert [one.name for one in site.folder.iterdir()] == ["use-7.json"]
    assert list(note.folder_of(site.paths.root).iterdir()) == []
    assert (site.said, site.printed) == ([], [])


def test_an_element_of_an_array_is_changed_alone(site):
    """The last element has the number of the whole array, which means all of them for sacctmgr."""
    site.names = {"7": "7_3", "8": "7_1"}
    site.work()
    assert site.asked == [("7_3", "systemcomment")]
    assert (len(site.published("7_3")), len(site.published("7_1"))) == (1, 0)


def test_two_nodes_of_a_job_are_both_there(site):
    for node in ("n1", "n2"):
        site.work(replace(NOTE, node=node, nodes=2, node_list="n[1-2]"))
    assert [one.node for one in site.published()] == ["n1", "n2"]


def test_of_a_large_job_only_the_first_node_is_published(site):
    large = replace(NOTE, nodes=17, node_list="n[1-17]")
    site.work(replace(large, node="n2"))
    assert site.asked == []
    site.work(large)
    assert [one.node for one in site.published()] == ["n1"]
    assert not [one for one in site.folder.iterdir() if one.name.startswith(".")]


def test_what_cannot_be_published_is_published_by_a_later_job(site):
    site.is_down = True
    site.work()
    assert "sacct does not answer: what it used is only in" in site.said[0]
    mark = site.folder / ".unpublished-7"
    os.utime(mark, (1.0, 1.0))
    site.is_down = False
    site.names["8"] = "8"
    site.work(replace(NOTE, job=8))
    assert len(site.published("7")) == len(site.published("8")) == 1
    assert not mark.exists()


def test_text_that_sacctmgr_would_change_is_left_and_said(site):
    site.comments["7"] = "it's"
    site.work()
    assert site.comments["7"] == "it's"
    assert "its SystemComment is left as it is" in site.said[0]


@pytest.mark.parametrize(
    ("before", "after"), [("cpu=1", "energy=2"), ("cpu=1,energy=0", "energy=2"), ("energy=9",) * 2]
)
def test_energy_is_written_where_slurm_has_measured_none(site, before, after):
    site.settings = replace(site.settings, energy_tres=True)
    site.tres["7"] = before
    site.work()
    assert site.tres["7"] == after


@pytest.mark.parametrize(
    ("wanted", "share", "prints"), [("off", 2, 0), ("share", 2, 1), ("share", None, 0), ("all", None, 1)]
)
def test_the_report_is_printed_into_the_output_where_the_site_wants_it(site, wanted, share, prints):
    site.settings = replace(site.settings, report=wanted)
    site.work(replace(NOTE, share=share))
    assert len(site.printed) == prints
    for output, uid, text, may_make in site.printed:
        assert (output, uid, may_make) == ("/o", os.getuid(), False)
        assert re.search("energy .* J", text)


def test_a_job_without_a_script_has_no_output(site):
    site.settings = replace(site.settings, report="all")
    site.work(replace(NOTE, is_batch=False))
    assert site.printed == []


def test_a_new_start_of_the_job_keeps_its_note(site):
    folder = note.folder_of(site.paths.root)
    site.work(replace(NOTE, ended=None))
    assert (folder / "7").exists()
    assert not site.folder.exists()


def test_the_note_of_a_job_whose_epilog_was_killed_goes_once_slurm_has_no_such_job(site):
    folder = note.folder_of(site.paths.root)
    folder.mkdir()
    for job in ("90", "91"):
        (folder / job).write_bytes(b"{}")
        os.utime(folder / job, (1.0, 1.0))
    site.queue = "91\n"
    site.work()
    assert [one.name for one in folder.iterdir()] == ["91"]


def test_the_note_of_a_killed_process_is_taken_over(site):
    folder = note.folder_of(site.paths.root)
    folder.mkdir()
    (folder / "6").write_bytes(note._ENCODER.encode(replace(NOTE, job=6)))
    os.utime(folder / "6", (1.0, 1.0))
    site.names["6"] = "6"
    site.work()
    assert list(folder.iterdir()) == []
    assert files.read(site.folder / "use-6.json", JobUse).gpus[0].device_j == 2.5
    os.utime(site.folder / ".unpublished-6", (1.0, 1.0))
    site.work(replace(NOTE, job=7))
    assert len(site.published("6")) == 1


def test_old_and_too_many_records_go(site):
    site.settings = replace(site.settings, usage_days=1, usage_mib=1)
    site.folder.mkdir()
    old, many = site.folder / "use-1.json", [site.folder / f"use-{number}.json" for number in range(100, 400)]
    for place, file in enumerate([old, *many]):
        file.write_text("{}")
        os.utime(file, (1.0, 1.0) if file == old else (4e9 + place, 4e9 + place))
    site.work()
    kept = {one.name for one in site.folder.iterdir()}
    assert "use-1.json" not in kept
    assert len(kept) == 256
    assert "use-399.json" in kept


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root may give files to others")
def test_a_record_is_readable_by_its_user_only(site):
    site.work(replace(NOTE, uid=65534))
    file = site.folder / "use-7.json"
    found = file.stat()
    acl = b"system.posix_acl_access" in [one.encode() for one in os.listxattr(file)]
    assert found.st_mode & 0o007 == 0
    assert (found.st_uid, acl) == (0, True) or (found.st_uid, found.st_mode & 0o777) == (65534, 0o400)
