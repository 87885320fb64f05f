from __future__ import annotations

import csv
import gzip
import io
import json
import os
import tarfile

import msgspec
import pytest

from slurm_share.cli import main
from slurm_share.lab import assumed_sizes, cluster_logs, log_text
from slurm_share.lab.log_text import TraceError


def machine(*gpus):
    return {"ip": "m1", "gpus": list(gpus)}


def attempt(start, end, *machines):
    return {"start_time": start, "end_time": end, "detail": list(machines)}


def job(name, attempts, **changes):
    return {
        "status": "Pass", "vc": "v", "jobid": name, "attempts": attempts, "submitted_time": "2017-10-07 01:00:00",
        "user": "u", **changes,
    }  # fmt: skip


PHILLY = [
    job("a", [attempt("2017-10-07 01:00:10", "2017-10-07 01:01:10", machine("gpu0"))]),
    job(
        "b",
        [
            attempt("2017-10-07 02:00:00", "2017-10-07 02:00:30", machine("gpu0", "gpu1")),
            attempt("2017-10-07 03:00:00", "2017-10-07 03:01:00", machine("gpu0", "gpu1"), machine("gpu3")),
        ],
        status="Failed",
        submitted_time="2017-10-07 01:30:00",
    ),
    job("none", []),
    job("running", [attempt("2017-10-07 02:00:00", None, machine("gpu0"))], status="Killed"),
    job("unlogged", [attempt("None", "2017-10-07 02:00:00", machine("gpu0"))]),
]


def philly(tmp_path, jobs=PHILLY, indent=1, name="cluster_job_log"):
    file = tmp_path / name
    file.write_text(json.dumps(jobs, indent=indent))
    return file


def test_philly_counts_gpus_of_all_machines_and_time_of_all_attempts(tmp_path):
    """A job of two attempts worked as long as both; jobs without an attempt or an end are left out and counted."""
    log = cluster_logs.read(philly(tmp_path), "philly")
    assert [(one.name, one.seconds, one.gpus) for one in log.jobs] == [("a", 60.0, 1), ("b", 90.0, 3)]
    assert log.jobs[1].submitted_s - log.jobs[0].submitted_s == 1800.0
    notes = "\n".join(log.notes)
    assert "1 Pass, 1 Failed" in notes
    assert "1 jobs without an attempt on a GPU, 2 jobs whose start or end is not known" in notes


@pytest.mark.parametrize("indent", [None, 1])
def test_philly_is_read_the_same_in_pieces_of_any_length(tmp_path, monkeypatch, indent):
    file = philly(tmp_path, indent=indent)
    whole = cluster_logs.read(file, "philly")
    for size in (1, 7, 64):
        monkeypatch.setattr(log_text, "_PIECE_BYTES", size)
        assert cluster_logs.read(file, "philly") == whole


def test_zones_are_heeded_and_their_absence_is_said(tmp_path):
    """02:00 in Los Angeles in summer is an hour before 02:00 in winter."""
    jobs = [
        job("a", [attempt("2017-11-05 00:30:00 PDT", "2017-11-05 01:30:00 PST", machine("gpu0"))]),
        job("b", [attempt("2017-11-05T00:30:00+00:00", "2017-11-05 00:31:00", machine("gpu0"))]),
    ]
    log = cluster_logs.read(philly(tmp_path, jobs), "philly")
    assert [one.seconds for one in log.jobs] == [7200.0, 60.0]
    assert cluster_logs.NO_ZONE in log.notes


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"attempts": {}}, "line 3: attempts is not a list"),
        ({"attempts": [[]]}, "line 3: an attempt is not an object"),
        ({"attempts": [{"detail": [{"ip": "m"}]}]}, "line 3: a machine in `detail` has no list `gpus`"),
        ({"attempts": [attempt("noon", None, machine("gpu0"))]}, "line 3: start_time is 'noon', and not a time"),
        ({"attempts": [attempt(17, None, machine("gpu0"))]}, "line 3: start_time is 17, and not a time"),
        ({"submitted_time": "2017-13-07 01:00:00 PST"}, "line 3: submitted_time is"),
        (
            {"attempts": [attempt("1917-10-07 01:00:10", "2017-10-07 01:01:10", machine("gpu0"))]},
            "line 3: the job ran for .* more than ten years",
        ),
    ],
)
def test_a_job_of_phillys_that_cannot_be_is_refused_with_its_line(tmp_path, change, why):
    file = tmp_path / "cluster_job_log"
    file.write_text(f"[\n{json.dumps(PHILLY[0])},\n{json.dumps({**PHILLY[0], **change})}\n]")
    with pytest.raises(TraceError, match=why):
        cluster_logs.read(file, "philly")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[\n{"jobid": "a"}]', "line 2: the job has no status, submitted_time, attempts"),
        ('[\n{"jobid": "a", ', "line 2: the entry that begins here is not JSON"),
        ("[\n12]", "line 2: 12 is not an object"),
        ("[]", "no job with a GPU"),
        ("", "no job with a GPU"),
        pytest.param('[{"a":' * 100_000, "nested too deeply", id="nested"),
        pytest.param('{"a": ' + "9" * 5000 + "}", "not JSON", id="a number of 5000 digits"),
    ],
)
def test_text_that_is_no_log_of_phillys_is_refused(tmp_path, text, why):
    file = tmp_path / "cluster_job_log"
    file.write_text(text)
    with pytest.raises(TraceError, match=why):
        cluster_logs.read(file, "philly")


def test_an_entry_without_an_end_is_not_read_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(log_text, "ENTRY_MOST_CHARS", 1000)
    monkeypatch.setattr(log_text, "_PIECE_BYTES", 100)
    monkeypatch.setattr(log_text, "TEXT_MOST_BYTES", 10_000)
    file = tmp_path / "cluster_job_log"
    file.write_text('[{"jobid": "' + "x" * 100_000)
    with pytest.raises(TraceError, match="line 1: the entry that begins here is not JSON"):
        cluster_logs.read(file, "philly")
    file.write_text(" " * 100_000)
    with pytest.raises(TraceError, match="it has more than"):
        cluster_logs.read(file, "philly")


HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1,u1,vc1,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-09 18:51:01,600,0
2,u2,vc1,16,64,2,FAILED,2020-06-09 18:41:11,2020-06-09 18:41:11,2020-06-09 18:41:11,0,0
3,u3,vc1,0,64,2,COMPLETED,2020-06-09 18:41:11,2020-06-09 18:41:11,2020-06-09 18:41:12,1,0
4,u3,vc1,4,64,2,CANCELLED,2020-06-09 18:41:11,None,2020-06-09 18:41:12,1,0
5,u3,vc1,4,64,2,CANCELLED,2020-06-09 18:41:11,2020-06-09 18:41:11,2020-06-09 18:41:10,1,0
"""


def written(tmp_path, text, name="cluster_log.csv"):
    file = tmp_path / name
    file.write_text(text)
    return file


def test_helios_keeps_failed_jobs_and_leaves_out_those_without_gpu_or_start(tmp_path):
    """A job of no time takes a second; one that ended before it began is counted."""
    log = cluster_logs.read(written(tmp_path, HELIOS), "helios")
    assert [(one.name, one.submitted_s - log.jobs[0].submitted_s, one.seconds, one.gpus) for one in log.jobs] == [
        ("1", 0.0, 600.0, 1),
        ("2", 10.0, 1.0, 16),
    ]
    assert any("1 jobs without a GPU, 1 jobs whose start or end is not known, 1 jobs that ended before" in one
               for one in log.notes)  # fmt: skip


PODS = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
p0,88000,327680,8,1000,,Burstable,Succeeded,100,1100,100
p1,4000,15258,1,220,,BE,Running,150,400,160
p2,4000,15258,0,0,,BE,Running,150,400,160
p3,4000,15258,1,1000,V100M16|V100M32,LS,Pending,150,400,
"""


def test_a_pod_of_alibabas_asks_for_a_part_of_a_gpu(tmp_path):
    """gpu_milli counts for pods with one GPU; a pod that was never scheduled did not run."""
    log = cluster_logs.read(written(tmp_path, PODS, "openb_pod_list_default.csv"), "alibaba")
    assert [(one.name, one.submitted_s, one.seconds, one.gpus, one.share_ratio) for one in log.jobs] == [
        ("p0", 100.0, 1000.0, 8, 1.0),
        ("p1", 150.0, 240.0, 1, 0.22),
    ]
    assert any("1 pods without a GPU, 1 pods that never started" in one for one in log.notes)


TASKS = """\
j1,tensorflow,1.0,Terminated,100.0,160.0,600.0,29.29,50.0,MISC
j2,worker,3.0,Failed,200.0,300.0,600.0,29.29,25.0,T4
j3,ps,1.0,Terminated,200.0,300.0,600.0,29.29,,CPU
j4,worker,1.0,Running,200.0,,600.0,29.29,100.0,V100
j5,worker,1.0,Terminated,210.0,220.0,600.0,29.29,200.0,V100
"""
INSTANCES = """\
j2,worker,i0,w0,x,Terminated,200.0,290.0,m1
j3,ps,i0,w1,x,Terminated,200.0,290.0,m1
j2,worker,i1,w2,x,Terminated,205.0,300.0,m1
"""
SENSORS = """\
j1,tensorflow,w,x,m,/dev/nvidia0,140.1,16.0,1.4,2.3,1.2,2.5,1.0,1.0,1.0,1.0
j1,tensorflow,v,x,m,/dev/nvidia0,140.1,30.0,1.4,2.3,1.2,2.0,1.0,1.0,1.0,1.0
j9,tensorflow,v,x,m,/dev/nvidia0,140.1,99.0,1.4,2.3,1.2,9.0,1.0,1.0,1.0,1.0
"""


def test_a_task_of_alibabas_is_as_many_jobs_as_it_has_instances(tmp_path):
    """plan_gpu is of each instance, in percent of one GPU."""
    log = cluster_logs.read(written(tmp_path, TASKS, "pai_task_table.csv"), "alibaba")
    assert [(one.name, one.submitted_s, one.seconds, one.gpus, one.share_ratio) for one in log.jobs] == [
        ("j1 0", 100.0, 60.0, 1, 0.5),
        ("j2 1", 200.0, 100.0, 1, 0.25),
        ("j2 2", 200.0, 100.0, 1, 0.25),
        ("j2 3", 200.0, 100.0, 1, 0.25),
        ("j5 4", 210.0, 10.0, 2, 1.0),
    ]
    assert any("1 tasks without a GPU, 1 rows whose start or end is not known" in one for one in log.notes)


def test_instances_of_alibabas_have_times_of_their_own_and_the_request_of_their_task(tmp_path):
    file = written(tmp_path, INSTANCES, "pai_instance_table.csv")
    with pytest.raises(TraceError, match=r"pai_task_table\.csv; put it into the same folder"):
        cluster_logs.read(file, "alibaba")
    (tmp_path / "pai_task_table.csv.gz").write_bytes(gzip.compress(TASKS.encode()))
    log = cluster_logs.read(file, "alibaba")
    assert [(one.submitted_s, one.seconds, one.share_ratio) for one in log.jobs] == [
        (200.0, 90.0, 0.25),
        (205.0, 95.0, 0.25),
    ]


def test_what_alibabas_sensors_measured_is_not_drawn(tmp_path):
    file = written(tmp_path, TASKS, "pai_task_table.csv")
    before = assumed_sizes.trace_of(cluster_logs.read(file, "alibaba"), 1)
    written(tmp_path, SENSORS, "pai_sensor_table.csv")
    log = cluster_logs.read(file, "alibaba")
    assert (log.jobs[0].memory_mib, log.jobs[0].sm_ratio) == (2560.0, 0.3)
    after = assumed_sizes.trace_of(log, 1)
    assert (after.tasks[0].memory_mib, after.tasks[0].sm_ratio) == (2560, 0.3)
    assert after.tasks[1:] == before.tasks[1:]
    assert any("memory of 4 of 5 jobs" in note for note in after.notes)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("cluster_log.csv", HELIOS.replace("gpu_num", "gpus"), "line 1: it has no column gpu_num; a table of Helios"),
        ("cluster_log.csv", HELIOS + "6,u3\n", "line 7: it has 2 fields, and the first line has 12"),
        ("cluster_log.csv", HELIOS.replace(",16,", ",-16,"), "line 3: gpu_num is '-16', and not a number from 0"),
        ("cluster_log.csv", HELIOS.replace(",16,", ",inf,"), "line 3: gpu_num is 'inf'"),
        ("cluster_log.csv", HELIOS.splitlines()[0], "it has no job with a GPU and known times"),
        ("cluster_log.csv", "", "line 1: it has no column job_id"),
        ("cluster_log.csv", HELIOS + '"' + "x" * 70_000, "line 7: the line is longer than 64 KiB"),
        ("cluster_log.csv", HELIOS + '"' + "x\n" * 140_000, "this is not a row of a CSV file"),
        ("openb_pod_list_x.csv", PODS.replace("scheduled_time", "when"), "line 1: it has no column scheduled_time"),
        ("openb_pod_list_x.csv", PODS.replace(",220,", ",many,"), "line 3: gpu_milli is 'many'"),
        ("pai_task_table.csv", "a,b,c\n", "line 1: it has 3 fields: neither a list of pods"),
        ("pai_task_table.csv", TASKS + "j6,w\n", "line 6: it has 2 fields; a line of this table has 10"),
        ("pai_task_table.csv", TASKS.replace("50.0", "1e300"), "line 1: plan_gpu is '1e300'"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused_with_file_line_and_reason(tmp_path, capsys, name, text, why):
    file = written(tmp_path, text, name)
    assert main.main(["lab", "simulate", str(file)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"slurm-share: {file}")
    assert why in error
    assert error.count("\n") == 1


def test_packed_files_are_unpacked_and_archives_refused(tmp_path):
    packed = tmp_path / "cluster_log.csv.gz"
    packed.write_bytes(gzip.compress(HELIOS.encode()))
    assert len(cluster_logs.read(packed, "helios").jobs) == 2
    packed.write_bytes(gzip.compress(HELIOS.encode())[:-20])
    with pytest.raises(TraceError, match="it cannot be read"):
        cluster_logs.read(packed, "helios")
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("x"))
    packed.write_bytes(inner.getvalue())
    with pytest.raises(TraceError, match="unpack it first"):
        cluster_logs.read(packed, "helios")


@pytest.mark.parametrize("form", cluster_logs.FORMATS)
@pytest.mark.parametrize("kind", ["fifo", "device", "gone"])
def test_what_is_no_file_is_not_read(tmp_path, form, kind):
    file = tmp_path / "x"
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    with pytest.raises(TraceError, match="it is not a file" if kind != "gone" else "cannot be read"):
        cluster_logs.read(file, form)


@pytest.mark.parametrize("row", ["3,u3,vc1,0,64,2,COMPLETED,2020-06-09 18:41:11,2020-06-09 18:41:11,junk,1,0", "3,u3"])
def test_no_more_rows_are_read_than_asked_for(tmp_path, row):
    file = written(tmp_path, HELIOS.replace(HELIOS.splitlines()[3], row))
    with pytest.raises(TraceError, match="line 4"):
        cluster_logs.read(file, "helios")
    log = cluster_logs.read(file, "helios", 2)
    assert len(log.jobs) == 2
    assert any("only the first 2 jobs" in note for note in log.notes)


def test_sizes_are_drawn_by_seed_within_what_a_gpu_has_and_said_to_be_assumed(tmp_path):
    log = cluster_logs.read(written(tmp_path, PODS, "openb_pod_list_default.csv"), "alibaba")
    log = msgspec.structs.replace(log, jobs=log.jobs * 200)
    one = assumed_sizes.trace_of(log, 1)
    assert one == assumed_sizes.trace_of(log, 1)
    assert one.tasks != assumed_sizes.trace_of(log, 2).tasks
    assert all(assumed_sizes.LEAST_MIB <= task.memory_mib <= log.gpu_mib for task in one.tasks)
    assert all(task.memory_mib <= 0.22 * log.gpu_mib for task in one.tasks if task.name == "p1")
    assert all(0.0 < task.sm_ratio <= 1.0 for task in one.tasks)
    assert "sizes are assumed" in one.notes[0]


def test_a_log_is_simulated_with_a_new_draw_for_each_seed_and_its_report_says_what_is_assumed(tmp_path, capsys):
    file = written(tmp_path, HELIOS)
    assert main.main(["lab", "simulate", str(file), "--policy", "exclusive", "--alpha", "1", "--settle", "30",
                      "--json", "--runs", "2"]) == 0  # fmt: skip
    record = json.loads(capsys.readouterr().out)
    assert record["tasks"] == 1
    assert record["results"][0]["make_span_s"] == pytest.approx(600.0, rel=0.2)
    assert {one["seed"] for one in record["results"]} == {1, 2}
    assert any("sizes are assumed" in note for note in record["notes"])
    assert any("1 tasks want more GPUs" in note for note in record["notes"])
    assert main.main(["lab", "simulate", str(file), "--policy", "exclusive", "--alpha", "1", "--settle", "30"]) == 0
    assert "note: sizes are assumed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["thesis60", "--rows", "5"], "--rows 5: it goes with the log of a cluster"),
        (["{file}", "--rows", "0"], "--rows 0: a number from 1 to 200000"),
        (["{file}", "--throughputs", "x"], "goes with a trace of Gavel's"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path, capsys, given, why):
    file = written(tmp_path, HELIOS)
    assert main.main(["lab", "simulate", *(word.format(file=file) for word in given)]) == 2
    assert why in capsys.readouterr().err


def test_published_names_tell_the_format():
    known = {
        "cluster_job_log": "philly", "cluster_log.csv.gz": "helios", "openb_pod_list_gpushare40.csv": "alibaba",
        "pai_task_table.csv.gz": "alibaba", "jobs.csv": None,
    }  # fmt: skip
    assert {name: cluster_logs.form_of(name) for name in known} == known


def test_a_header_that_somebody_put_in_front_of_a_table_is_passed_over(tmp_path):
    text = io.StringIO()
    csv.writer(text).writerow(cluster_logs.TASKS)
    file = written(tmp_path, text.getvalue() + TASKS, "pai_task_table.csv")
    assert len(cluster_logs.read(file, "alibaba").jobs) == 5
