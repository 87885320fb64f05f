"""llstat, from what both Slurm releases really answered."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import pytest

from slurm_share.cli import llstat
from slurm_share.core import terminal
from slurm_share.core.errors import CommandError
from slurm_share.slurm import jobs as slurm_jobs
from slurm_share.testing import make_run_folder

DATA = Path(__file__).parents[2] / "data"
RELEASES = ("26.05", "24.11")
LLSC_COLUMNS = "JOBID ARRAY_J NAME USER START_TIME PARTITION CPUS FEATURES MIN_MEMORY ST NODELIST(REASON)"
LLSC = LLSC_COLUMNS.split()


@pytest.fixture(autouse=True)
def utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(params=RELEASES)
def answer(request):
    """Return (squeue's JSON, the same queue as text) of one release."""
    folder = DATA / f"slurm-{request.param}"
    return (folder / "squeue.json").read_text().replace("hold.sh", "launch.sh"), (folder / "squeue.txt").read_text()


@pytest.fixture
def asked(answer, monkeypatch):
    """Answer llstat's queries with the recorded queue."""
    questions = []

    def run(argv, **_):
        questions.append(argv)
        return answer[0]

    monkeypatch.setattr(slurm_jobs, "run", run)
    return questions


def rows(text):
    """Return {column: word} of each job from what llstat wrote into a pipe."""
    headings, *lines = text.splitlines()[1:]
    starts = [(name, headings.index(name)) for name in headings.split()]
    found = {}
    for line in lines:
        # Numbers stand right-aligned under their heading: a column reaches from the end of the one before it.
        words = line.split()
        found[words[0]] = dict(zip([name for name, _ in starts], words, strict=True))
    return found


def test_what_it_shows_is_what_squeue_says(asked, answer, capsys):
    assert llstat.main(["-a"]) == 0
    shown = rows(capsys.readouterr().out)
    columns, *lines = (line.split("|") for line in answer[1].splitlines() if "|" in line)
    assert columns[:3] == ["JOBID", "ARRAY_JOB_ID", "USER"]
    assert len(lines) == len(shown) == 13
    for job, array, user, start, partition, cpus, features, memory, state, place, _ in lines:
        mine = shown[job]
        assert mine["ARRAY_J"] == array
        assert mine["USER"] == user
        assert mine["START_TIME"] == start
        assert (mine["PARTITION"], mine["CPUS"], mine["ST"]) == (partition, cpus, state)
        assert mine["FEATURES"] == features.replace("(null)", "-")
        assert mine["MIN_MEMORY"] == memory
        assert mine["NODELIST(REASON)"] == place


def test_the_columns_of_llsc_come_first(asked, capsys):
    """A script finds its fields where LLSC's LLstat has them; the first line names cluster and release."""
    llstat.main(["-a"])
    first, headings = capsys.readouterr().out.splitlines()[:2]
    assert first in [f"LLGrid: demo (running slurm {version})" for version in ("26.05.5", "24.11.5")]
    assert headings.split() == [*LLSC, "GPUS", "SHARE", "SLOTS", "TRIPLE"]


@pytest.mark.parametrize(
    ("job", "gpus", "share", "slots", "triple"),
    [
        ("19", "2", "4,mem=2048M", "8", "-"),  # whole nodes, two GPUs
        ("20", "1/4", "4", "1", "-"),  # a quarter of a GPU
        ("22", "1", "-", "-", "[1,8,2]"),  # llsub's comment
        ("25", "?", "2", "?", "-"),  # waits for a whole node: nobody knows how many GPUs that will have
        ("26", "-", "-", "-", "-"),
        ("28", "2", "-", "-", "-"),  # a GPU for each of two tasks
    ],
)
def test_gpus_share_slots_and_triple(asked, capsys, job, gpus, share, slots, triple):
    llstat.main(["-a"])
    shown = rows(capsys.readouterr().out)[job]
    assert [shown[name] for name in ("GPUS", "SHARE", "SLOTS", "TRIPLE")] == [gpus, share, slots, triple]


def test_a_name_cannot_move_the_cursor_or_break_the_line(asked, capsys):
    llstat.main(["-a"])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\t" not in out
    assert rows(out)["30"]["NAME"] == r"e\x1b[31mvil[red]\n\tx"


def test_json_has_everything_and_null_for_unknown(asked, capsys):
    assert llstat.main(["-a", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    jobs = {job["id"]: job for job in answer["jobs"]}
    assert answer["schema"] == llstat.SCHEMA
    assert jobs["30"]["name"] == "e\x1b[31mvil[red]\n\tx"
    assert jobs["25"]["gpus"] is None
    assert jobs["26"]["gpus"] == 0
    assert jobs["21_[3-6%2]"]["array_waiting"] == "3-6%2"
    assert jobs["20"]["part_of_a_gpu"] is True


def test_hide_header_leaves_the_first_line_and_the_jobs(asked, capsys):
    """LLSC's tools read cluster and release from the first line, also under --hide-header."""
    llstat.main(["-a", "-h"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("LLGrid: demo")
    assert len(lines) == 14
    assert "JOBID" not in "".join(lines)


def test_whose_jobs_are_asked_for(asked, capsys):
    llstat.main([])
    llstat.main(["-u", "root"])
    llstat.main(["--all"])
    users = [[word for word in argv if word.startswith("--user")] for argv in asked]
    assert users == [[f"--user={os.geteuid()}"], ["--user=0"], []]


def test_single_jobs_and_elements(asked, capsys):
    assert llstat.main(["-j", "22,21_1,21_5"]) == 0
    assert list(rows(capsys.readouterr().out)) == ["21_1", "21_[3-6%2]", "22"]
    assert llstat.main(["-j", "22,4711"]) == 1
    out, err = capsys.readouterr()
    assert list(rows(out)) == ["22"]
    assert "4711 is not in the queue" in err
    assert [word for word in asked[-1] if word.startswith("--jobs")] == ["--jobs=22,4711"]


def test_a_runs_folder_shows_its_jobs(asked, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_run_folder(tmp_path / "LLSUB.3", [4, 22])
    make_run_folder(tmp_path / "26", [22])
    for word in ("LLSUB.3", str(tmp_path / "LLSUB.3"), "LLSUB.3/", "26"):
        assert llstat.main(["-j", word]) == 0
        out, err = capsys.readouterr()
        assert (list(rows(out)), err) == (["22"], "")
    (tmp_path / "22").mkdir()  # nobody's run: this is the job
    assert llstat.main(["-j", "22"]) == 0


def test_a_folder_without_a_job_in_the_queue_says_so(asked, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_run_folder(tmp_path / "LLSUB.1", [4])
    make_run_folder(tmp_path / "LLSUB.2", [])
    (tmp_path / "other").mkdir()
    for word, code, said in (
        ("LLSUB.1", 1, "no job of LLSUB.1 is in the queue"),
        ("LLSUB.2", 1, "no job was submitted from LLSUB.2"),
        ("other", 2, "not the folder of a run"),
        ("LLSUB.9", 2, "neither a job"),
    ):
        assert llstat.main(["-j", word]) == code
        assert said in capsys.readouterr().err


def test_a_job_that_slurm_does_not_know_is_no_failure_of_slurm(monkeypatch, capsys):
    """squeue ends with 1 and "Invalid job id specified" where a single unknown number is asked for."""

    def run(argv, **_):
        if argv[0] == "squeue":
            raise CommandError(tuple(argv), 1, "slurm_load_jobs error: Invalid job id specified")
        return (DATA / "slurm-26.05/scontrol-ping.json").read_text()

    monkeypatch.setattr(slurm_jobs, "run", run)
    assert llstat.main(["-j", "4711"]) == 1
    out, err = capsys.readouterr()
    assert out == "LLGrid: demo (running slurm 26.05.5)\nno jobs\n"
    assert err == "llstat: job 4711 is not in the queue\n"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["-u", "nobody-of-that-name"], "no user nobody-of-that-name"),
        (["-u", ""], "no user ''"),
        (["-j", "abc"], "abc is neither a job"),
        (["-j", "12,"], "neither a job"),
        (["-j", "77_[4-1]"], "not a list of array elements"),
    ],
)
def test_bad_words_get_a_sentence_and_2(asked, capsys, words, why):
    assert llstat.main(words) == 2
    assert why in capsys.readouterr().err
    assert asked == []


@pytest.mark.parametrize("text", ["", "{}", '{"jobs": [{}]}', "slurm_load_jobs error"])
def test_an_answer_that_is_not_squeues_is_an_error(monkeypatch, capsys, text):
    monkeypatch.setattr(slurm_jobs, "run", lambda *_, **__: text)
    assert llstat.main([]) == 1
    assert "not its JSON" in capsys.readouterr().err


def test_what_the_user_set_for_squeue_hides_no_job(monkeypatch):
    kept = slurm_jobs.queue_environment(
        {"SQUEUE_STATES": "PD", "SQUEUE_USERS": "bob", "PATH": "/bin", "SLURM_CONF": "/x"}
    )
    assert kept == {"PATH": "/bin", "SLURM_CONF": "/x", "SLURM_BITSTR_LEN": "0"}


@pytest.mark.parametrize("width", [60, 80, 100, 120, 150])
def test_every_width_gets_whole_lines(answer, width):
    """A line a job; what is cut ends with a sign, and columns that were left out are named."""
    cluster, jobs = slurm_jobs.parse_queue(answer[0])
    lines = llstat.as_lines(cluster, jobs, hide_header=False, width=width)
    table = lines[1 : 2 + len(jobs)]
    if width >= 80:
        assert max(map(len, table)) <= width
    named = lines[-1].split(":")[0].strip("(").split(", ") if len(lines) > len(table) + 1 else []
    assert set(table[0].split()) | set(named) == {*LLSC, "GPUS", "SHARE", "SLOTS", "TRIPLE"}
    name = next(line for line in table if line.startswith("30"))
    assert r"e\x1b[31mvil[red]\n\tx" in name or "…" in name


def test_columns_of_wide_characters_stay_in_line():
    columns = (terminal.TerminalColumn("NAME", shrinks_to=6), terminal.TerminalColumn("N", right=True))
    lines, left_out = terminal.lay_out(columns, [("漢字漢字漢字", "1"), ("ab", "22")], 12)
    assert lines == ["NAME       N", "漢字漢 …   1", "ab        22"]
    assert left_out == []


def test_a_share_that_nobody_can_read_is_shown_as_it_is(answer):
    cluster, jobs = slurm_jobs.parse_queue(answer[0].replace("share-gpu=4,mem=2048M", "share-gpu=many"))
    job = next(job for job in llstat.as_json(cluster, jobs)["jobs"] if job["id"] == "19")
    assert (job["share"], job["slots"]) == ("many", None)


def test_a_share_behind_the_sites_own_admin_comment(answer):
    _, jobs = slurm_jobs.parse_queue(answer[0].replace('"share-gpu=4,mem=2048M"', '"no-share-gpu=9;share-gpu=3"'))
    assert next(job.share for job in jobs if job.job_id == 19) == "3"


@pytest.mark.parametrize("field", ["extra", "comment"])
@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("hers\n;slurm-share=on,runs=2,share-gpu=3,mem=2048M", "3,mem=2048M"),
        ("share-gpu=9;slurm-share=on", None),
        ("hers slurm-share=on,share-gpu=9", None),
    ],
)
def test_a_share_is_found_in_the_verdict_where_another_tool_overwrote_the_admin_comment(answer, field, text, share):
    data = json.loads(answer[0])
    one = next(job for job in data["jobs"] if job["job_id"] == 19)
    one |= {"admin_comment": "JS1:H4sIAAAA", field: text}
    _, jobs = slurm_jobs.parse_queue(json.dumps(data))
    assert next(job.share for job in jobs if job.job_id == 19) == share


def test_what_waiting_jobs_ask_for_is_counted(answer):
    data = json.loads(answer[0])
    job = next(job for job in data["jobs"] if job["name"] == "later")
    job["node_count"]["number"], job["tasks"]["number"] = 3, 5

    def gpus(**asked):
        for field in ("tres_per_job", "tres_per_node", "tres_per_task", "tres_per_socket"):
            job[field] = asked.get(field, "")
        _, jobs = slurm_jobs.parse_queue(json.dumps(data))
        return next(one.gpus for one in jobs if one.name == "later")

    assert gpus(tres_per_node="gres/gpu:2") == 6
    assert gpus(tres_per_node="gres/gpu:a100:2,gres/gpu:h100:1") == 9
    assert gpus(tres_per_task="cpu=2,gres/gpu=1") == 5
    assert gpus(tres_per_job="gres/gpu:a100=4") == 4
    assert gpus(tres_per_node="gres/gpufs:2") == 0
    assert gpus(tres_per_socket="gres/gpu:1") is None


def test_parser_has_no_surprises():
    assert llstat.parser().parse_args(["-h"]) == argparse.Namespace(
        user=None, all=False, job=None, hide_header=True, json=False
    )
    with pytest.raises(SystemExit):
        llstat.parser().parse_args(["-a", "-u", "root"])


def test_a_word_without_an_option_gets_the_one_that_it_needs(capsys):
    with pytest.raises(SystemExit) as ended:
        llstat.main(["LLSUB.3"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "LLSUB.3 belongs to no option; write llstat -j LLSUB.3 for a job or a run, llstat -u LLSUB.3 for a u" in said


def test_headings_are_not_hidden_from_json_without_a_word(asked, capsys):
    assert llstat.main(["--all", "--json", "-h"]) == 0
    assert "llstat: --hide-header ignored: JSON has no headings" in capsys.readouterr().err
