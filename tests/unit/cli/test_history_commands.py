"""slurm-share archive and slurm-share report, as they are typed."""

from __future__ import annotations

import json
import os

import pytest
from msgspec.structs import replace

from slurm_share.cli import main, report
from slurm_share.core import config, terminal
from slurm_share.core.config import Configuration
from slurm_share.core.settings import Settings
from slurm_share.history import records, report_text
from slurm_share.history.records import Sample
from slurm_share.history.rules.report import AdviceHours, Hours, Period, UsageReport, Use
from slurm_share.load.snapshot import NodeLoad, Survey
from slurm_share.load.sources import survey_reader
from slurm_share.slurm.records import QueuedJob

MONDAY = 1794787200
"""The week 2026-W47."""
URL = "https://hpc.example.org/sharing"


@pytest.fixture
def site(monkeypatch, tmp_path):
    """Return a site that keeps its archive in the test's folder and has a page on sharing."""
    settings = Settings(archive_folder=str(tmp_path / "archive"), documentation_url=URL, load_source="agents")
    monkeypatch.setattr(config, "load", lambda: Configuration(settings, {}))
    monkeypatch.setattr(terminal, "width", lambda: 200)
    monkeypatch.setattr(report.time, "time", lambda: MONDAY + 14 * 86400.0)
    return tmp_path


def week(folder):
    """Return a week of three users: carol leaves GPUs idle, bob overloads CPUs, alice does well; a day is missing."""
    (folder / "archive").mkdir()
    for quarter in range(96 * 6):
        time = MONDAY + 900 * quarter
        lines = [Sample(time=time, node="*", user="*", jobs=3)]
        gpu = Sample(
            time=time, node="n1", user="alice", jobs=1, cpus=40, cpu_load=4.0, gpus=2, gpu_load=1.6, load_by="sm",
            nppn=8, advised=8, decided_by="GPU load",
        )  # fmt: skip
        lines.append(gpu)
        if quarter < 100:
            lines.append(replace(gpu, node=f"n{2 + quarter % 2}", user="carol", gpu_load=0.35, nppn=1, advised=4))
        if quarter < 40:
            lines.append(Sample(time=time, node="n9", user="bob", jobs=2, cpus=16, cpu_load=30.0, gpus=0))
        if quarter == 50:
            lines.append(Sample(time=time, node="n9", user="bob", jobs=2, cpus=16, gpus=0))
        file = folder / "archive" / records.file_name(time)
        text = "" if file.exists() else records.HEAD
        with open(file, "a") as opened:
            opened.write(text + "".join(map(records.render, lines)))


GOLDEN = """\
Use of nodes, 2026-W47 (UTC): samples of 144.0 of 168.0 hours (86 %)
1 broken line skipped

USER   NODE_H  BAD_H  GPU_LOW  GPU_GOOD  GPU_HIGH  GPU_?  GPU%  CPU_LOW  CPU_GOOD  CPU_HIGH  CPU_?  CPU%
carol    25.0   25.0     25.0       0.0       0.0    0.0    18     25.0       0.0       0.0    0.0    10
bob      10.2   10.0      0.0       0.0       0.0    0.0     -      0.0       0.0      10.0    0.2   188
alice   144.0    0.0      0.0     144.0       0.0    0.0    80    144.0       0.0       0.0    0.0    10
(all)   179.2   35.0     25.0     144.0       0.0    0.0    71    169.0       0.0      10.0    0.2    14

Node-hours by load: good is 50 to 100 % of the GPUs that a user had, 50 to 150 % of the CPUs.
?: not known. BAD_H: low and high, by GPU load on nodes with GPUs, by CPU load on others.
"""

DRAFT = """\
Subject: Your jobs, 2026-W47: 25.0 node-hours of low or high load

Dear carol,

in 2026-W47 (UTC) your jobs had 25.0 node-hours on 2 nodes. The load was sampled
every few minutes (samples of 144.0 of 168.0 hours (86 %)):

  GPU load   low (below 50 %) 25.0 h, good 0.0 h, high (above 100 %) 0.0 h; 18 % on average
  CPU load   low (below 50 %) 25.0 h, good 0.0 h, high (above 150 %) 0.0 h; 10 % on average

For 25.0 node-hours a node ran 1 task of a job, and by what was measured 4 would have been right
(decided by GPU load).
llload --advise says how many for a job that runs, why, and the line to submit it with.

More on sharing GPUs: https://hpc.example.org/sharing

Questions are welcome.
"""


def test_a_week_is_told_the_worst_first(site, capsys):
    week(site)
    with open(site / "archive" / "2026-11-18.tsv", "a") as file:
        file.write("2026-11-18T23:45:00Z\tn1\tali")
    for _ in range(2):
        assert main.main(["report", "--all", "--week", "2026-W47"]) == 0
        assert capsys.readouterr().out == GOLDEN


def test_a_message_is_drafted_for_those_who_lose_an_hour(site, capsys):
    week(site)
    folder = site / "messages"
    for _ in range(2):
        assert main.main(["report", "--all", "--week", "2026-W47", "--drafts", str(folder)]) == 0
    assert sorted(file.name for file in folder.iterdir()) == ["bob-2026-W47.txt", "carol-2026-W47.txt"]
    assert (folder / "carol-2026-W47.txt").read_text() == DRAFT
    assert "CPUs with a high load" in (folder / "bob-2026-W47.txt").read_text()
    assert "GPU load" not in (folder / "bob-2026-W47.txt").read_text()
    assert "2 drafts in" in capsys.readouterr().err


def test_a_rule_for_all_is_told_only_where_nothing_was_advised(site):
    """Two on each GPU would be fewer for a job that was told to run 24, and more for one that was told 4."""
    found = UsageReport(period=Period("2026-W47", 0, 1), covered_h=1, elapsed_h=1, total=Use(user=""), users=())
    low = Use(user="dan", hours=9, gpu_hours=9, gpu=Hours(low=9), cpu=Hours(high=9))
    assert "--share-gpu=2 puts two" in report_text.draft(low, found, "")
    for now, nppn in ((12, 24), (8, 4)):
        told = report_text.draft(replace(low, advised=AdviceHours(now, nppn, "GPU memory", 9)), found, "")
        assert f"ran {now} tasks of a job, and by what was measured {nppn} would" in told
        assert "room for more" not in told
        assert "puts two" not in told
        assert "fewer of them" not in told


def test_the_report_for_programs(site, capsys):
    week(site)
    assert main.main(["report", "--all", "--from", "2026-11-16", "--to", "2026-11-16", "--user", "bob", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["skipped_lines"], found["covered_h"]) == (1, 0, 24.0)
    (bob,) = found["users"]
    assert (bob["user"], bob["bad"], bob["cpu"]["high"], bob["gpu_percent"]) == ("bob", 10.0, 10.0, None)


def test_a_time_of_which_nothing_is_kept_says_what_there_is(site, capsys):
    week(site)
    assert main.main(["report", "--all", "--week", "2026-W30"]) == 0
    told = capsys.readouterr()
    assert "nothing was recorded in this time" in told.out
    assert "the archive has 2026-11-16 to 2026-11-21" in told.err


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (["--week", "soon"], 2, "2026-W47"),
        (["--week", "9999-W52"], 2, "2026-W47"),
        (["--week", "--from", "2026-11-16"], 2, "leave out --from and --to"),
        (["--from", "2026-11-18", "--to", "2026-11-16"], 2, "is after"),
        ([], 1, "slurm-share archive makes it"),
    ],
)
def test_what_cannot_be_reported_is_said(site, capsys, words, code, why):
    assert main.main(["report", "--all", *words]) == code
    assert why in capsys.readouterr().err


def test_a_plain_user_is_told_whose_it_is(site, capsys):
    if os.geteuid() == 0:
        pytest.skip("NOT TESTED: root may look anywhere")
    (site / "archive").mkdir(mode=0)
    assert main.main(["report", "--all"]) == 1
    assert "root and the operators' group" in capsys.readouterr().err


class _SurveyReader:
    """A survey reader with one survey for everybody."""

    survey: Survey

    def __init__(self, source, **asked):
        assert (source, asked["everybody"]) == ("agents", True)

    def read(self, timeout_s):
        return self.survey

    def close(self):
        pass


@pytest.fixture
def looked(monkeypatch):
    def see(survey):
        monkeypatch.setattr(survey_reader, "open_source", lambda name, settings, **_: name)
        monkeypatch.setattr(_SurveyReader, "survey", survey, raising=False)
        monkeypatch.setattr(survey_reader, "SurveyReader", _SurveyReader)

    return see


def test_a_look_is_appended_once(site, looked, capsys):
    job = QueuedJob(
        job_id=1, name="x", user="alice", uid=1, partition="p", states=("RUNNING",), cpus=4, node_count=1, nodes="n1",
        gpus=0,
    )  # fmt: skip
    survey = Survey(
        taken=MONDAY + 100.0, user="root", everybody=True, source="agent", jobs=(job,), jobs_taken=1.0,
        nodes=(NodeLoad(name="n1", why="no agent"), NodeLoad(name="n2", why="down")),
    )  # fmt: skip
    looked(survey)
    assert main.main(["archive"]) == 1  # nobody answered, and what Slurm said is kept
    told = capsys.readouterr()
    assert "2026-11-16.tsv: 2 lines added; 0 of 2 nodes answered" in told.out
    assert "no node answered (n1: no agent)" in told.err
    looked(replace(survey, taken=MONDAY + 800.0))
    main.main(["archive"])
    assert "0 lines added, 2 there already" in capsys.readouterr().out
    assert len((site / "archive" / "2026-11-16.tsv").read_text().splitlines()) == 4


@pytest.mark.parametrize(("words", "why"), [(["--source", "srun"], "everybody's load"), (["--source", "x"], "write")])
def test_a_source_that_shows_only_ones_own_is_refused(site, capsys, words, why):
    assert main.main(["archive", *words]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ({}, "/x/config.toml: load_source: is not set, and its default srun does not show"),
        ({"load_source": "/x/config.toml"}, "/x/config.toml: load_source: is srun, which does not show"),
    ],
)
def test_a_timer_without_a_source_is_told_the_line_of_the_configuration(monkeypatch, capsys, sources, said):
    monkeypatch.setattr(config, "load", lambda: Configuration(Settings(), sources, file="/x/config.toml"))
    assert main.main(["archive"]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert 'write load_source = "agents" there' in err
    assert "--source" not in err


def test_a_site_without_an_archive_says_so(monkeypatch, capsys):
    monkeypatch.setattr(config, "load", lambda: Configuration(Settings(archive_folder=""), {}))
    assert main.main(["archive", "--source", "local"]) == 2
    assert "keeps no archive" in capsys.readouterr().err
