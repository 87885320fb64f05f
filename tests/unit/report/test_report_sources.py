"""Sources of a report: whose job it is, what is believed, and what is said where a source is silent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import report_cases as cases
from msgspec import json
from msgspec.structs import replace

from slurm_share.cli import main
from slurm_share.core.errors import CommandError, StateError, UsageError
from slurm_share.core.settings import Settings
from slurm_share.report import sources
from slurm_share.share import slurm_commands
from slurm_share.slurm import accounts
from slurm_share.slurm.accounts import AccountedJob
from slurm_share.slurm.records import QueuedJob
from slurm_share.triples import run_folder
from slurm_share.triples.records import Ended, Run
from slurm_share.usage import JobUse, UseSeries, comment, files

ALICE = sources.Viewer(2001, "alice", is_operator=False)
OPERATOR = sources.Viewer(0, "root", is_operator=True)
SILENT = "/run/x/socket: no agent is there; start slurm-share-agent on this node, or sample without it"


class Site:
    """A site whose accounts and agents are values."""

    def __init__(self) -> None:
        self.jobs: list[AccountedJob] = []
        self.agents: list[JobUse] = []
        self.said = [SILENT]
        self.error: CommandError | None = None
        self.asked: list[int] = []

    def read(self, **_: object) -> tuple[AccountedJob, ...]:
        if self.error is not None:
            raise self.error
        return tuple(self.jobs)

    def usage_of(self, job: int, *_: object) -> tuple[list[JobUse], list[UseSeries], list[str]]:
        self.asked.append(job)
        return [use for use in self.agents if use.job == job], [], self.said


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Site:
    found = Site()
    monkeypatch.setattr(sources.jobs, "read_all_shown", lambda number, **_: ())
    found.jobs = [cases.accounted()]
    monkeypatch.setattr(accounts, "read", found.read)
    monkeypatch.setattr(sources, "usage_of", found.usage_of)
    monkeypatch.setattr(sources, "USAGE_RECORDS", tmp_path / "hooks")
    return found


def read(text: str, who: sources.Viewer = ALICE) -> sources.JobReport:
    return sources.read(text, who, Settings())


def test_elements_that_started_together_are_in_the_order_of_their_numbers(site: Site) -> None:
    """The last element to start has the job id of the array, the lowest."""
    site.jobs = [cases.accounted(job=job, id=f"4711_{n}") for job, n in ((4711, 10), (4713, 2), (4712, 1))]
    assert [one.id for one in read("4711").starts] == ["4711_1", "4711_2", "4711_10"]
    assert [one.title for one in sources.of_accounts(site.jobs, cases.BEGAN)] == ["4711_1", "4711_2", "4711_10"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "an argument is empty"),
        ("abc", "neither a job"),
        ("4711.0", "neither a job"),
        ("-1", "neither a job"),
        ("99999999999", "neither a job"),
        ("4294967296", "there is no job 4294967296: Slurm's numbers end at 4294967295"),
        ("4711_9999999999", "there is no job"),
        ("LLSUB.77", "there is no folder LLSUB.77"),
        ("/etc/passwd", "is a file, not the folder of a run"),
        ("/tmp", "is not the folder of a run"),
    ],
)
def test_what_names_nothing_is_refused(site: Site, text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        read(text)


def test_an_unknown_job_is_refused(site: Site) -> None:
    site.jobs = []
    with pytest.raises(UsageError, match="there is no job 4711 in Slurm's accounts"):
        read("4711")


def test_another_users_job_is_refused_and_no_agent_is_asked(site: Site) -> None:
    site.jobs = [cases.accounted(uid=2002, user="bob")]
    with pytest.raises(UsageError, match="job 4711 is a job of bob; a report is for its user"):
        read("4711")
    assert site.asked == []
    assert read("4711", OPERATOR).title == "4711"


def test_one_element_of_another_user_refuses_the_whole(site: Site) -> None:
    """No such array exists; a damaged or forged answer is refused all the same."""
    site.jobs = [cases.accounted(id="9_1"), cases.accounted(id="9_2", uid=2002)]
    with pytest.raises(UsageError, match="a report is for its user"):
        read("9")


def test_without_an_agent_the_report_says_what_would_help(site: Site) -> None:
    found = read("4711")
    assert found.uses == ()
    assert found.problems == (
        "/run/x/socket: no agent is there; with slurm-share-agent on this host, an administrator lets it ask those of "
        "the nodes",
    )


def test_agents_that_know_the_job_leave_nothing_to_say(site: Site) -> None:
    site.agents = [cases.use()]
    found = read("4711")
    assert (len(found.uses), found.problems) == (1, ())


def test_the_comment_of_the_hooks_is_read_from_the_accounts(site: Site) -> None:
    site.jobs = [cases.accounted(system_comment=comment.encode([cases.use(by={})]))]
    found = read("4711")
    assert [gpu.memory_peak_mib for gpu in found.uses[0].gpus] == [8192, 8192]


def test_a_comment_about_another_job_or_user_is_not_believed(site: Site) -> None:
    for forged in (cases.use(job=9), cases.use(uid=0)):
        site.jobs = [cases.accounted(system_comment=comment.encode([forged]))]
        assert read("4711").uses == ()


def test_a_damaged_comment_is_a_sentence(site: Site) -> None:
    site.jobs = [cases.accounted(system_comment="slurm-share-use:1:AAAA")]
    assert any("cannot be read" in one for one in read("4711").problems)


def test_records_of_the_hooks_on_this_node_are_read(site: Site, tmp_path: Path) -> None:
    (tmp_path / "hooks").mkdir()
    files.write(tmp_path / "hooks", cases.use())
    assert len(read("4711").uses) == 1


def test_a_large_array_asks_the_agents_about_its_last_jobs_only(site: Site) -> None:
    site.jobs = [cases.accounted(job=100 + n, id=f"9_{n}") for n in range(50)]
    site.said = []
    found = read("9")
    assert site.asked == list(range(118, 150))
    assert "the agents were asked about the last 32 of 50 jobs only" in found.problems


def test_a_host_without_an_agent_is_asked_once(site: Site) -> None:
    site.jobs = [cases.accounted(job=100 + n, id=f"9_{n}") for n in range(20)]
    read("9")
    assert site.asked == [100]


def test_without_accounts_the_queue_tells_the_job(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.error = CommandError(("sacct",), 1, "Slurm accounting storage is disabled\n")
    monkeypatch.setattr(sources.jobs, "read_all_shown", lambda number, **_: ())
    with pytest.raises(UsageError, match="slurmctld has no job 4711 any more, and Slurm's accounts cannot be read"):
        read("4711")


def test_without_accounts_an_element_is_not_taken_for_another(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last element has the number of the array as its own."""
    site.error = CommandError(("sacct",), 1, "Slurm accounting storage is disabled\n")
    elements = tuple(
        QueuedJob(job_id=number, array=4711, element=n, name="a", user="alice", uid=2001, partition="gpu",
                  states=("RUNNING",), start=int(cases.BEGAN))
        for number, n in ((4711, 2), (4712, 1))
    )  # fmt: skip
    monkeypatch.setattr(sources.jobs, "read_all_shown", lambda number, **_: elements)
    assert [one.job for one in read("4711_1").starts] == [4712]
    assert [one.id for one in read("4711").starts] == ["4711_1", "4711_2"]
    with pytest.raises(UsageError, match="slurmctld has no job 4711_9"):
        read("4711_9")


def test_a_job_that_slurmctld_has_not_sent_to_the_accounts_yet_is_asked_there(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart of slurmdbd that takes a while; the job was said not to exist."""
    site.jobs = []
    job = QueuedJob(job_id=4711, name="a", user="alice", uid=2001, partition="gpu", states=("COMPLETED",),
                    start=int(cases.BEGAN))  # fmt: skip
    monkeypatch.setattr(sources.jobs, "read_all_shown", lambda number, **_: (job,))
    found = read("4711")
    assert found.starts[0].id == "4711"
    assert any("do not have this job yet" in one for one in found.problems)
    with pytest.raises(UsageError, match="there is no job 4711_7 in Slurm's accounts"):
        read("4711_7")
    with pytest.raises(UsageError, match="is a job of alice"):
        read("4711", sources.Viewer(2002, "bob", is_operator=False))


# ---- Runs ----


def run_in(folder: Path) -> Path:
    """Make the folder of a run with a node's results and use."""
    home = folder / "LLSUB.3"
    node = home / "p0-p3_n1"
    node.mkdir(parents=True)
    run = Run(name="train.sh", command=("/bin/true",), cwd=str(folder), triple=None, processes=4, tasks=3)
    (home / "run.json").write_bytes(json.encode(run))
    (home / "jobs").write_text("4711\n")
    lines = [
        Ended(
            task=n, rank=0, attempt=1, outcome="done", node="n1", job="4711", started=cases.BEGAN, seconds=5.0,
            gpu=0, gpu_uuid="GPU-00000000", peak_gpu_mib=100 + n,
        )
        for n in range(2)
    ]  # fmt: skip
    (node / "results.jsonl").write_bytes(b"".join(json.encode(line) + b"\n" for line in lines))
    files.write(node, cases.use())
    return home


def test_a_run_has_its_tasks_and_the_records_of_its_launcher(site: Site, tmp_path: Path) -> None:
    home = run_in(tmp_path)
    found = sources.read_run(home, OPERATOR, Settings())
    assert (found.title, found.run, found.run_tasks, len(found.uses)) == ("LLSUB.3", "LLSUB.3", 3, 1)
    assert [(task.task, task.gpus[0].memory_peak_mib) for task in found.tasks] == [(0, 100), (1, 101)]


def test_a_run_is_reported_without_accounts(site: Site, tmp_path: Path) -> None:
    site.error = CommandError(("sacct",), 1, "no slurmdbd")
    found = sources.read_run(run_in(tmp_path), OPERATOR, Settings())
    assert (len(found.uses), len(found.tasks)) == (1, 2)
    assert found.problems[0].startswith("Slurm's accounts cannot be read (no slurmdbd)")


def test_the_run_of_a_job_is_found_by_its_submit_line(site: Site, tmp_path: Path) -> None:
    home = run_in(tmp_path / "with blanks")
    site.jobs = [cases.accounted(submit_line=f"/usr/bin/sbatch --parsable --comment=llsub [1,4,2] {home}/launch.sh")]
    found = read("4711", OPERATOR)
    assert (found.run, found.triple, len(found.tasks)) == ("LLSUB.3", "[1,4,2]", 2)


def test_a_folder_that_another_run_has_taken_is_not_the_jobs(site: Site, tmp_path: Path) -> None:
    home = run_in(tmp_path)
    (home / "jobs").write_text("9\n")
    site.jobs = [cases.accounted(submit_line=f"sbatch {home}/launch.sh")]
    assert read("4711", OPERATOR).run == ""


def test_damaged_files_of_a_run_are_sentences(site: Site, tmp_path: Path) -> None:
    home = run_in(tmp_path)
    (home / "p0-p3_n1/use-4711.json").write_text("{")
    with (home / "p0-p3_n1/results.jsonl").open("a") as file:
        file.write('{"task": 7\n\x00\n')
    found = sources.read_run(home, OPERATOR, Settings())
    assert any("is damaged" in one for one in found.problems)
    assert len(found.tasks) == 2


def test_a_newer_record_is_refused_in_a_sentence(site: Site, tmp_path: Path) -> None:
    home = run_in(tmp_path)
    (home / "p0-p3_n1/use-4711.json").write_bytes(json.encode(replace(cases.use(), version=99)))
    assert any("a newer slurm-share wrote this" in one for one in sources.read_run(home, OPERATOR, Settings()).problems)


def test_the_run_of_another_user_is_refused(site: Site, tmp_path: Path) -> None:
    home = run_in(tmp_path)
    if os.geteuid():
        pytest.skip("NOT TESTED: only root can give a folder away")
    os.chown(home / "run.json", 2002, 2002)
    with pytest.raises(UsageError, match="a report is for its user"):
        sources.read_run(home, sources.Viewer(0, "root", is_operator=False), Settings())


def test_the_report_at_the_end_of_a_job_needs_its_folder_only(site: Site, tmp_path: Path) -> None:
    site.error = CommandError(("sacct",), 1, "not asked")
    environ = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "train", "SLURM_JOB_START_TIME": "1795971600"}
    found = sources.read_folder(run_in(tmp_path), environ, OPERATOR)
    assert (found.problems, len(found.uses), len(found.tasks)) == ((), 1, 2)
    assert found.job is not None
    assert found.job.nodes == ("n1",)
    with pytest.raises(StateError):
        sources.read_folder(tmp_path, environ, OPERATOR)


# ---- The command ----


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--all", "4711"], "--all is for the site's report"),
        (["--drafts", "x", "--csv"], "--drafts is for the site's report"),
        (["--week", "2026-W47", "--html", "x"], "--week is a report of all your jobs"),
        (["--week", "soon"], "a week is written 2026-W47"),
        (["4711", "nonsense"], "neither a job"),
        (["4711", "--html", "/nowhere/at/all.html"], "cannot be written"),
    ],
)
def test_wrong_use_is_a_sentence_and_exit_code_2(
    site: Site, words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["report", *words]) == 2
    assert why in capsys.readouterr().err


def test_without_arguments_the_last_job_that_began_is_reported(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    waiting = cases.accounted(job=4712, id="4712", state="PENDING", start=None, end=None, gpus=None, nodes=())
    site.jobs = [cases.accounted(), waiting]
    assert main.main(["report"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("JOB ")
    assert "\nJob 4711  train.sh" in out
    site.jobs = []
    assert main.main(["report"]) == 2
    assert "no job of yours has run in the last day" in capsys.readouterr().err


def test_a_page_is_written_whole(site: Site, tmp_path: Path) -> None:
    assert main.main(["report", "4711", "--html", str(tmp_path / "r.html")]) == 0
    assert (tmp_path / "r.html").read_text().endswith("</html>\n")


def test_hooks_know_the_script_of_a_run_by_its_name() -> None:
    """They leave its report to the launcher."""
    assert slurm_commands.LAUNCH_SCRIPT == run_folder.LAUNCH_SCRIPT
    assert slurm_commands.ShownJob(job_id=1, command="/home/alice/LLSUB.3/launch.sh").is_run
    assert not slurm_commands.ShownJob(job_id=1, command="/home/alice/train.sh").is_run
    assert not slurm_commands.ShownJob(job_id=1).is_run


@pytest.mark.parametrize(("text", "cpus"), [("8(x2),4", 20), ("16", 16), ("", None), ("evil(x2", None)])
def test_the_cpus_of_the_own_job_are_read_from_its_environment(text: str, cpus: int | None) -> None:
    assert sources._own_cpus({"SLURM_JOB_CPUS_PER_NODE": text}) == cpus
