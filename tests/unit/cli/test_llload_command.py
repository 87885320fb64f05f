"""llload's words: what each shows, and what cannot be asked."""

from __future__ import annotations

import csv
import datetime
import errno
import json
import os
import random
from itertools import pairwise

import pytest
from llload_surveys import TAKEN, node, shared_node, silent, steady, survey
from msgspec.structs import replace

from slurm_share.cli import llload, llload_watch
from slurm_share.core.append_file import AppendFile
from slurm_share.core.config import Configuration
from slurm_share.core.errors import CommandError, UsageError
from slurm_share.core.settings import Settings
from slurm_share.load import recording, snapshot
from slurm_share.load.rules import idle
from slurm_share.load.sources import origin
from slurm_share.node import processes
from slurm_share.triples import result_files


class Cluster:
    """A substitute for the survey reader: records its arguments, answers with `surveys` in turn and then the last
    one."""

    def __init__(self, *surveys):
        self.surveys, self.asked, self.closed, self.looks = list(surveys), None, False, 0

    def open(self, origin, settings):
        self.asked = origin
        return self

    def read(self, timeout_s):
        self.looks += 1
        found = self.surveys[min(self.looks, len(self.surveys)) - 1]
        if isinstance(found, Exception):
            raise found
        return found

    @property
    def is_over(self):
        return self.looks >= len(self.surveys)

    def close(self):
        self.closed = True


@pytest.fixture
def cluster(monkeypatch):
    """Return a cluster of one shared node and one that is silent."""
    made = Cluster(survey(shared_node(), silent("n2")))
    real = llload.origin.open_survey_source

    def opened(origin, settings):
        return real(origin, settings) if origin.demo or origin.replay else made.open(origin, settings)

    monkeypatch.setattr(llload.origin, "open_survey_source", opened)
    monkeypatch.setattr(llload.config, "load", lambda: Configuration(Settings(), {}))
    return made


def run(*words):
    return llload.main(list(words))


@pytest.fixture
def printed(capsys):
    """Return a function that runs llload and returns what it writes."""

    def run_it(*words):
        assert run(*words) == 0
        return capsys.readouterr().out

    return run_it


def names_in(out):
    return [line.split()[0] for line in out.splitlines() if line[:1] in "nvhc" and line[1:2] in "0123456789-"]


def test_one_look(cluster, printed):
    out = printed()
    assert "HOSTNAME CORES -  USED =  FREE    LOAD MEMORY -   USED =   FREE NOTE" in out
    assert "GPUMEM" not in out
    assert names_in(out) == ["n1", "n2"]
    assert cluster.closed


NAME = "a\u202eb\x1b[2J\x85c"


FORMS = (
    "--json",
    "--json --watch",
    "--advise --json",
    "--advise",
    "--detail",
    "--tsv",
    "--csv --processes",
    "-g",
    "--quiet",
)


@pytest.mark.parametrize("words", FORMS)
def test_no_output_has_a_character_that_reorders_or_hides_text(cluster, capsys, words):
    """A user chooses the names of jobs and programs."""
    seen = shared_node()
    assert seen.snapshot is not None
    processes_ = tuple(replace(one, name=NAME) for one in seen.snapshot.processes)
    seen = replace(seen, snapshot=replace(seen.snapshot, processes=processes_))
    one = replace(job(), name=NAME, comment=NAME, script=f"/{NAME}", features=NAME, dependency=NAME)
    cluster.surveys = [survey(seen, jobs=(one,), user="alice")]
    run(*words.split())
    out, err = capsys.readouterr()
    assert out
    assert all(one.isprintable() or one == "\n" or (one == "\t" and "--tsv" in words) for one in out + err)
    if "--json" in words and "--advise" not in words:
        found = json.loads(out.splitlines()[0] if "--watch" in words else out)
        assert found["jobs"][0]["name"] == NAME


def test_with_gpus_there_is_a_line_of_advice(cluster, printed, capsys):
    assert "GPUMEM" in printed("-g")
    cluster.surveys = [survey(shared_node(), jobs=(job(),), user="alice")]
    assert "advice for job 4711: " in printed("-g")
    assert "job 4711 of alice on n1" in printed("--advise")
    assert run("--advise", "-g", "--top", "3") == 0
    assert "llload: --gpu, --top ignored: --advise is for jobs, not for nodes" in capsys.readouterr().err
    assert json.loads(printed("--advise", "4711", "--json"))["advice"][0]["job"] == 4711
    assert cluster.asked.jobs == ("4711",)


def test_advice_is_by_the_sites_settings_and_the_runs_results(cluster, capsys, monkeypatch):
    """The partition's, and of a live look the deaths of one's own jobs; a recording is of others."""
    seen = survey(shared_node(), jobs=(job(),), user="alice")
    own = replace(Settings(), max_share=1)
    monkeypatch.setattr(llload.config, "load", lambda: Configuration(Settings(), {}, {job().partition: own}))
    asked = []

    def failures(jobs, uid):
        asked.append((jobs, uid))
        return {4711: 3}

    monkeypatch.setattr(result_files, "read_memory_failures", failures)
    (advice,) = llload.Advisor()(seen)
    assert next(one.nppn for one in advice.bounds if one.resource == "MPS clients") == advice.gpus
    assert any(line.startswith("3 tasks of it ran out") for line in advice.evidence)
    assert asked == [((job(),), os.geteuid())]
    llload.Advisor()(replace(seen, source="replay"))
    assert len(asked) == 1


def job():
    from llload_surveys import queued

    return queued()


def test_nodes_jobs_and_users_reach_the_source(cluster):
    assert run("-n", "n[1-3,7]", "-j", "4711,12") == 0
    assert cluster.asked.nodes == ("n1", "n2", "n3", "n7")
    assert cluster.asked.jobs == ("4711", "12")
    assert run("-j", "077_3,5+1") == 0
    assert cluster.asked.jobs == ("77_3", "5+1")
    assert run("-u", str(os.getuid())) == 0
    assert cluster.asked.user == processes.read_user_name(os.getuid())


def test_json_is_the_survey(cluster, printed):
    out = printed("--json")
    assert replace(snapshot.parse_survey(out, "stdout"), version="") == idle.judged(cluster.surveys[0])
    assert json.loads(out)["nodes"][1]["snapshot"] is None


def test_tsv_and_csv_have_headings_once(cluster, printed):
    cluster.surveys *= 2
    lines = printed("--tsv", "--watch", "0.5").splitlines()
    assert [line.split("\t")[2] for line in lines] == ["node", "n1", "n2", "n1", "n2"]
    rows = list(csv.reader(printed("--csv", "--detail").splitlines()))
    assert [row[3] for row in rows] == ["gpu", "0", "1"]
    assert [row[3] for row in csv.reader(printed("--csv", "--processes").splitlines())] == ["pid", "77", "78"]


def test_flagged_sorted_and_the_first_of_them(cluster, printed):
    cluster.surveys = [survey(node("n1", load=30.0), node("n2", load=100.0), node("n3", load=1.0), silent("n4"))]
    out = printed("--flagged")
    assert names_in(out) == ["n2", "n3", "n4"]
    assert "3 of 4 nodes shown: flagged" in out
    assert names_in(printed("--sort", "load:desc")) == ["n2", "n1", "n4", "n3"]
    out = printed("-t", "1")
    assert names_in(out) == ["n2"]
    assert "1 of 4 nodes shown: the highest CPU load per CPU" in out
    out = printed("-t", "2", "--flagged", "--sort", "load")
    assert names_in(out) == ["n3", "n4"]
    assert "2 of 4 nodes shown: flagged, first by load" in out
    assert [one["name"] for one in json.loads(printed("--flagged", "--json"))["nodes"]] == ["n2", "n3", "n4"]


def test_nothing_flagged_is_a_sentence(cluster, printed):
    cluster.surveys = [survey(node("n1"))]
    assert "no node is flagged" in printed("--flagged")


def test_without_a_job_a_friendly_sentence(cluster, printed):
    cluster.surveys = [survey()]
    out = printed("-g")
    assert "Nodes used: 0" in out
    assert "you have no job running; llsub ./task.sh" in out


def test_where_no_node_answers_it_has_failed(cluster, capsys):
    cluster.surveys = [survey(silent("n1"), silent("n2"))]
    assert run() == 1
    assert "0 of 2 nodes answered; n[1-2]: no answer" in capsys.readouterr().out


def test_without_slurm_there_are_two_ways_on(cluster, capsys):
    cluster.surveys = [CommandError(("squeue",), None, "No such file")]
    assert run() == 1
    assert "--source local shows this machine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-t", "0"], "-t 0: write a number of nodes"),
        (["-t", "-1"], "-t -1"),
        (["-t", "x"], "-t x"),
        (["--watch", "0"], "--watch 0: write seconds, 0.5 to 86400"),
        (["--watch", "nan"], "--watch nan"),
        (["--watch", "1e9"], "--watch 1e9"),
        (["--sort", "gpuload"], "did you mean gpu_load?"),
        (["--sort", "load:up"], "write asc or desc after the colon"),
        (["-n", "n[1-"], "is no list of nodes"),
        (["-n", "n[1-999999999]"], "is no list of nodes"),
        (["-n", ""], "is no list of nodes"),
        (["-j", "x7"], "x7 is no number of a job"),
        (["-j", "0"], "0 is no number of a job"),
        (["-j", "77_"], "77_ is no number of a job"),
        (["-j", "77_[1-3]"], "is no number of a job"),
        (["-u", "nobody-of-that-name"], "there is no user nobody-of-that-name"),
        (["--at", "14:30"], "name one with --replay FILE"),
        (["--replay", "x", "--at", "nan"], "--at nan: write 2026"),
        (["--replay", "x", "--at", "inf"], "--at inf: write 2026"),
        (["--replay", "x", "--at=-1e300"], "--at -1e300: write 2026"),
        (["-q", "--detail"], "-q prints one line per node and nothing else; leave out -q, or --detail"),
        (["-q", "--processes"], "leave out -q, or --processes"),
        (["--tsv", "--detail", "--processes"], "write one of them"),
        (["--csv", "--detail", "--processes"], "write one of them"),
        (["--demo-nodes", "5"], "write --demo as well"),
        (["--advise", "--tsv"], "--advise is for jobs; --tsv shows nodes"),
        (["--advise", "4711", "-j", "12"], "name the job once"),
        (["--replay", "x", "--record", "y"], "a recording is copied with cp"),
        (["--replay", "x", "--all"], "cannot be used with --replay"),
        (["--demo", "-u", "eve"], "there are alice, bob, carol, dave"),
        (["--demo", "-n", "v-99"], "the demonstration has no node v-99; there are v-1"),
    ],
)
def test_what_cannot_be_is_a_sentence(cluster, capsys, words, said):
    assert run(*words) == 2
    err = capsys.readouterr().err
    assert err.startswith("llload: ")
    assert said in err


@pytest.mark.parametrize(
    "words", [["--json", "--tsv"], ["--demo", "--source", "srun"], ["--all", "-u", "x"], ["--nod"]]
)
def test_what_excludes_one_another_is_refused(words):
    with pytest.raises(SystemExit) as refused:
        run(*words)
    assert refused.value.code == 2


def test_a_mistake_that_the_source_finds_is_one(cluster, capsys):
    cluster.surveys = [UsageError("Slurm has no node n77")]
    assert run("-n", "n77", "--watch", "1") == 2
    assert "no node n77" in capsys.readouterr().err


def test_a_recording_of_looks_is_replayed(cluster, capsys, printed, tmp_path):
    """The last one by itself, an earlier one by its time, all of them with --watch: what was printed then."""
    file = tmp_path / "day.jsonl.gz"
    cluster.surveys = [
        replace(survey(node("n1", load=load)), taken=TAKEN + 60 * at) for at, load in enumerate((21.0, 22.0, 23.0))
    ]
    first = printed("--record", str(file), "--watch", "0.5", "-q")
    assert [line.split()[7] for line in first.splitlines()] == ["21.00", "22.00", "23.00"]
    times = [datetime.datetime.fromisoformat(line.split()[0]).timestamp() for line in first.splitlines()]
    assert times == [TAKEN, TAKEN + 60, TAKEN + 120]
    assert printed("--replay", str(file), "--watch", "0.5", "-q") == first
    out = printed("--replay", str(file))
    assert "23.00" in out
    assert "recorded from srun: survey 3 of 3" in out
    assert "22.00" in printed("--replay", str(file), "--at", str(TAKEN + 61), "-q")
    assert names_in(printed("--replay", str(file), "-n", "n1", "-q")) == ["n1"]
    assert run("--replay", str(file), "-n", "n8") == 2
    assert "there is no node n8 in the recording; there are n1" in capsys.readouterr().err
    assert run("--replay", str(file), "--at", "noon") == 2
    begin, end = (datetime.datetime.fromtimestamp(TAKEN + at).isoformat() for at in (0, 120))
    for at in (TAKEN - 1, TAKEN + 121):
        capsys.readouterr()
        assert run("--replay", str(file), "--at", str(at)) == 2
        assert f"the recording is from {begin} to {end}; write a time between these" in capsys.readouterr().err
    assert run("--replay", str(tmp_path / "none")) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1800000000", 1_800_000_000.0), ("2026-01-31T14:30", None), ("14:30", None), ("14:30:05", None)],
)
def test_times_of_a_replay(text, expected):
    last = datetime.datetime(2026, 1, 31, 23, 0).timestamp()
    if expected is None:
        second = 5 if text.endswith("05") else 0
        expected = datetime.datetime(2026, 1, 31, 14, 30, second).timestamp()
    assert origin.moment(text, last) == expected


def test_a_full_disk_ends_the_recording_and_not_the_looking(cluster, capsys, tmp_path, monkeypatch):
    def no_room(file, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(AppendFile, "append", no_room)
    cluster.surveys *= 3
    assert run("--record", str(tmp_path / "x"), "--watch", "0.5", "-q") == 1
    got = capsys.readouterr()
    assert got.err.count("/x: cannot be written: No space left on device; nothing more is recorded") == 1
    assert [line.split()[1] for line in got.out.splitlines()] == ["n1", "n2"] * 3


def test_a_recording_that_cannot_begin_is_said_at_once(cluster, capsys, tmp_path):
    assert run("--record", str(tmp_path / "none" / "x")) == 1
    assert "cannot be written: No such file or directory" in capsys.readouterr().err
    assert cluster.looks == 0


def test_recordings_add_up(cluster, tmp_path):
    file = tmp_path / "x.jsonl"
    assert run("--record", str(file)) == 0
    cluster.looks = 0
    assert run("--record", str(file), "--flagged", "-q") == 0
    # The whole survey is kept, whatever was shown of it.
    kept = recording.Recording(file)
    assert [len(kept.at(place).nodes) for place in kept.places()] == [2, 2]
    kept.close()


def test_a_job_that_leaves_its_gpus_idle_is_said_in_every_form(cluster, printed):
    idler = ("--demo", "-n", "v-2")
    out = printed(*idler, "--flagged", "--detail")
    row = next(line.split() for line in out.splitlines() if line.endswith("interactive"))
    job = row[0]
    assert row[6:8] == ["2", "2"]  # a process is on one of the two GPUs that it holds
    assert f"job {job} of alice: 2 of 2 GPUs idle (v-2: 0,1)" in out
    assert "iL: a job's GPU idle: below 5 % for 10 min" in out
    assert sum("iL" in line.split() for line in out.splitlines()) == 2  # the second also says which job holds it
    for words, of, expected in (([], "gpus_idle", ["2"]), (["--detail"], "idle", ["yes"] * 2)):
        heads, *rows = (line.split("\t") for line in printed(*idler, "--tsv", *words).splitlines())
        assert [row[heads.index(of)] for row in rows] == expected
    held = json.loads(printed(*idler, "--json"))["nodes"][0]["held_gpus"]
    assert [(one["job"], one["index"], one["idle"]) for one in held] == [(int(job), at, True) for at in range(2)]
    assert "v-2" in names_in(printed("--demo", "--all", "--flagged", "--sort", "gpus_idle:desc"))[:3]


def test_the_demonstration_says_what_it_is_in_every_form(cluster, printed):
    for words in ([], ["-g"], ["-g", "--detail"], ["--plain"], ["--processes"], ["--advise"]):
        assert printed("--demo", *words).startswith("SIMULATED CLUSTER")
    assert json.loads(printed("--demo", "--json"))["source"] == "demo"
    assert {line.split("\t")[-1] for line in printed("--demo", "--tsv").splitlines()} == {"simulated", "yes"}
    assert len(printed("--demo", "--all", "--demo-nodes", "300", "--tsv").splitlines()) == 301


@pytest.mark.parametrize("words", [("-q",), ("-q", "-g"), ("-q", "--flagged")])
def test_quiet_about_no_node_is_nothing(cluster, printed, words):
    cluster.surveys = [survey()] if "--flagged" not in words else [survey(node("n1"))]
    assert printed(*words) == ""


@pytest.fixture
def two_jobs(tmp_path):
    """Return a recording of two nodes, each with a job; the second is an array's element."""
    two = shared_node("n2")
    element = replace(job(), job_id=78, array=77, element=3, nodes="n2", comment="", name="second")
    two = replace(two, snapshot=replace(two.snapshot, jobs=(replace(two.snapshot.jobs[0], job=78),)))
    file = tmp_path / "two.jsonl"
    writer = recording.RecordingWriter(file)
    writer.write(survey(shared_node("n1"), two, jobs=(job(), element), user="alice"))
    writer.close()
    return str(file)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), {"job 4711 of alice on n1", "job 77 of alice on n2"}),
        (("4711",), {"job 4711 of alice on n1"}),
        (("77_3",), {"job 77 of alice on n2"}),
        (("77",), {"job 77 of alice on n2"}),
        (("78,4711",), {"job 4711 of alice on n1", "job 77 of alice on n2"}),
    ],
)
def test_advice_on_one_job_of_a_recording(printed, two_jobs, words, said):
    out = printed("--replay", two_jobs, "--advise", *words)
    assert {line.partition(":")[0] for line in out.splitlines() if line.startswith("job ")} == said


def test_advice_on_a_job_that_is_not_in_the_recording(capsys, two_jobs):
    assert run("--replay", two_jobs, "--advise", "12") == 2
    assert "job 12 is not in the recording at that time; there are 77_3, 4711" in capsys.readouterr().err


def test_advice_that_is_watched_does_not_follow_the_noise_of_a_steady_load(cluster, printed, monkeypatch):
    rng, seen = random.Random(5), shared_node()
    gpus = [
        tuple(
            replace(gpu, utilization_percent_windows=steady(20.0 * rng.uniform(0.9, 1.1))) for gpu in seen.snapshot.gpus
        )
        for _ in range(60)
    ]
    cluster.surveys = [
        replace(
            survey(replace(seen, snapshot=replace(seen.snapshot, gpus=cards)), jobs=(job(),), user="alice"),
            taken=TAKEN + 5 * place,
        )
        for place, cards in enumerate(gpus)
    ]
    monkeypatch.setattr(llload_watch.select, "select", lambda *_: ([], [], []))
    found = [json.loads(line)["advice"][0] for line in printed("--advise", "--json", "--watch", "0.5").splitlines()]
    said = [(one["verdict"], one["next"]) for one in found]
    assert len(said) == 60
    assert sum(one != last for last, one in pairwise(said)) <= 1


def test_advice_watched_as_json_is_a_line_a_look(cluster, capsys):
    cluster.surveys = [survey(shared_node(), jobs=(job(),), user="alice")] * 2
    assert run("--advise", "--json", "--watch", "0.5") == 0
    assert [json.loads(line)["advice"][0]["job"] for line in capsys.readouterr().out.splitlines()] == [4711, 4711]


def test_a_word_without_an_option_gets_the_one_that_it_needs(capsys):
    with pytest.raises(SystemExit) as ended:
        llload.main(["n1"])
    assert ended.value.code == 2
    assert "n1 belongs to no option; write llload -n n1 for a node, llload -j n1 for a job" in capsys.readouterr().err
