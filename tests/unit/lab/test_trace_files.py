from __future__ import annotations

import json
import os
import re

import msgspec
import pytest

from slurm_share.cli import main
from slurm_share.lab import trace_files
from slurm_share.lab.trace_files import TraceError
from slurm_share.packing.history_records import TaskRun

RATES = {
    "v100": {
        "('A3C', 1)": {"null": 8.0, "('A3C', 1)": [4.0, 4.0], "('LM (batch size 5)', 1)": [6.0, 50.0]},
        "('LM (batch size 5)', 1)": {"null": 100.0, "('A3C', 1)": [50.0, 6.0], "('LM (batch size 5)', 1)": [0.0, 0.0]},
        "('LM (batch size 5)', 2)": {"null": 180.0},
    }
}


@pytest.fixture
def gavel(tmp_path):
    (tmp_path / "simulation_throughputs.json").write_text(json.dumps(RATES))
    folder = tmp_path / "traces"
    folder.mkdir()
    file = folder / "small.trace"
    file.write_text(
        "A3C\tpython3 main.py\t--steps\t1\t800\t5.0\t1\n"
        "LM (batch size 5)\tpython3 main.py -b 5\t.\t--steps\t1\t1000\t1\t1\t-1.0\t9.0\n"
    )
    return file


def test_gavel_lines_of_both_kinds_are_read(gavel):
    trace = trace_files.read(gavel)
    assert [(task.name, task.submitted_s, task.work_s) for task in trace.tasks] == [
        ("A3C", 0.0, 100.0),
        ("LM (batch size 5)", 4.0, 10.0),
    ]
    assert trace.speeds[("A3C", "LM (batch size 5)")] == 0.75
    assert trace.speeds[("LM (batch size 5)", "A3C")] == 0.5
    assert ("LM (batch size 5)", "LM (batch size 5)") not in trace.speeds
    assert any("assumed" in note for note in trace.notes)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("A3C\tpython3", "line 2: it has 2 fields"),
        ("B4D\tx\t-s\t1\t800\t5.0\t1", "line 2: simulation_throughputs.json has no rate of 'B4D'"),
        ("A3C\tx\t-s\t1\tmany\t5.0\t1", "line 2: the number of steps is 'many'"),
        ("A3C\tx\t-s\t1\t800\tnan\t1", "line 2: the arrival is 'nan'"),
        ("A3C\tx\t-s\t1\t800\t1e308\t1", r"line 2: the arrival is '1e308', and more than 1e[+]12"),
        ("A3C\tx\t-s\t1\t800\t5.0\t0", "line 2: the number of GPUs is '0'"),
    ],
)
def test_a_gavel_line_that_cannot_be_used_is_named(gavel, line, why):
    gavel.write_text(gavel.read_text().splitlines()[0] + "\n" + line + "\n")
    with pytest.raises(TraceError, match=why):
        trace_files.read(gavel)


def test_a_gavel_trace_without_a_matrix_says_what_to_give(tmp_path):
    file = tmp_path / "x.trace"
    file.write_text("A3C\tx\t-s\t1\t800\t5.0\t1\n")
    with pytest.raises(TraceError, match="--throughputs FILE"):
        trace_files.read(file)


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("[1]", "not a matrix"),
        ('{"k80": {}}', "no GPU 'v100'; it has k80"),
        ('{"v100": {"A3C": {}}}', "'A3C' is not a job type"),
        ('{"v100": {"(\'A3C\', 1)": {"null": -1}}}', "is -1, and not a number"),
        ('{"v100": {"(\'A3C\', 1)": {"(\'A3C\', 1)": [1]}}}', "and not two rates"),
    ],
)
def test_a_matrix_that_is_none_is_refused(tmp_path, table, why):
    file = tmp_path / "m.json"
    file.write_text(table)
    with pytest.raises(TraceError, match=why):
        trace_files.read_rates(file, "v100")


RAD = """\
# a comment
conda activate tf
python /somewhere/resnet50.py --batch_size 64
resnet50_64.model
/data/imagenet
64
exclusive
1
7106
"""


@pytest.fixture
def carma(tmp_path):
    (tmp_path / "workloads").mkdir()
    (tmp_path / "workloads" / "resnet2.rad").write_text(RAD)
    (tmp_path / "workloads" / "own.rad").write_text(RAD.replace("resnet50.py --batch_size 64", "own.py"))
    script = tmp_path / "trace.sh"
    script.write_text(
        "python src/submit.py --task workloads/resnet2.rad\nsleep 20\npython src/submit.py --task workloads/own.rad\n"
    )
    return script


def test_a_carma_script_is_read_with_its_files(carma):
    trace = trace_files.read(carma)
    first, second = trace.tasks
    assert (first.submitted_s, first.memory_mib, first.gpus) == (0.0, 7106, 1)
    assert first.work_s == pytest.approx(35.50 * 60)
    assert (second.submitted_s, second.work_s) == (20.0, 1800.0)
    assert any("own is not in the table" in note for note in trace.notes)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("rm -rf x", "line 4: 'rm -rf x' is neither"),
        ("sleep soon", "line 4: the pause is 'soon'"),
        ("python src/submit.py --task workloads/none.rad", "line 4: workloads/none.rad is not there"),
    ],
)
def test_a_carma_line_that_cannot_be_used_is_named(carma, line, why):
    carma.write_text(carma.read_text() + line + "\n")
    with pytest.raises(TraceError, match=why):
        trace_files.read(carma)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("conda activate tf\n", "no line has a command"),
        (RAD.replace("7106\n", ""), "here are 5 lines"),
        (RAD.replace("7106", "much"), r"resnet2.rad, line 9: the memory is 'much'"),
        (RAD.replace("\n1\n", "\nall\n"), r"resnet2.rad, line 8: the number of GPUs is 'all'"),
    ],
)
def test_a_rad_file_that_cannot_be_used_is_named(carma, text, why):
    (carma.parent / "workloads" / "resnet2.rad").write_text(text)
    with pytest.raises(TraceError, match=why):
        trace_files.read(carma)


def ended(task, outcome="done", **changes):
    line = {"task": task, "rank": 0, "attempt": 1, "outcome": outcome, "node": "n1", "job": "7", "started": 100.0,
            "seconds": 30.0, "gpu_uuid": "GPU-1", "peak_gpu_mib": 2000}  # fmt: skip
    return json.dumps(line | changes) + "\n"


def test_a_run_is_read_from_its_results(tmp_path):
    for node, lines in (("n1", ended(0) + ended(1, "failed")), ("n2", ended(2, gpu_uuid="GPU-2", peak_gpu_mib=None))):
        (tmp_path / f"p0-p1_{node}").mkdir()
        (tmp_path / f"p0-p1_{node}" / "results.jsonl").write_text(lines)
    trace = trace_files.read(tmp_path)
    assert [(task.name, task.work_s, task.memory_mib) for task in trace.tasks] == [
        ("task 0", 30.0, 2000),
        ("task 2", 30.0, 300),
    ]
    assert trace.gpus == 2
    assert any("the memory of 1 tasks was not seen" in note for note in trace.notes)


def test_lines_that_are_no_results_are_left_out_and_counted(tmp_path):
    """A launcher that was killed leaves half a line; the next one goes on in a line of its own."""
    nonsense = ended(3, seconds=-1.0) + ended(4, seconds=1e300) + ended(5, peak_gpu_mib=-7) + ended(6, started=1e300)
    (tmp_path / "results.jsonl").write_text(ended(0) + '{"task": 1, "atte\n' + ended(2) + nonsense + '{"task"')
    trace = trace_files.read(tmp_path)
    assert [task.name for task in trace.tasks] == ["task 0", "task 2"]
    assert "6 lines of results.jsonl cannot be read and are left out" in trace.notes


@pytest.mark.parametrize(
    ("lines", "why"), [(None, "not the folder of a run"), (ended(0, "failed"), "no finished task to simulate")]
)
def test_a_folder_without_finished_tasks_is_refused(tmp_path, lines, why):
    if lines is not None:
        (tmp_path / "results.jsonl").write_text(lines)
    with pytest.raises(TraceError, match=why):
        trace_files.read(tmp_path)


def test_a_history_is_a_trace_of_its_finished_tasks(tmp_path):
    file = tmp_path / "2026-11.jsonl"
    runs = [
        TaskRun(when=1000.0, seconds=100.0, kind="done", exact="aa", peak_mib=3000, sm_ratio=0.3),
        TaskRun(when=1100.0, seconds=100.0, kind="failed", exact="bb"),
        TaskRun(when=1200.0, seconds=50.0, kind="done", exact="cc"),
    ]
    file.write_bytes(b"".join(msgspec.json.encode(run) + b"\n" for run in runs))
    assert [(one.submitted_s, one.work_s, one.memory_mib, one.sm_ratio) for one in trace_files.read(file).tasks] == [
        (0.0, 100.0, 3000, 0.3),
        (250.0, 50.0, 300, 0.5),
    ]
    file.write_bytes(file.read_bytes() + b"{}\n")
    with pytest.raises(TraceError, match="line 4: this is no line of a history"):
        trace_files.read(file)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"version": 7}, "it has version 7; only 1 is known"),
        ({"seconds": -5.0}, "after -5 s"),
        ({"seconds": 1e308}, "after 1e[+]308 s"),
        ({"when": 1e300}, "at 1e[+]300 s"),
        ({"peak_mib": -5}, "a peak of -5 MiB"),
        ({"peak_mib": 10**15}, "a peak of 1000000000000000 MiB"),
        ({"sm_ratio": -5.0}, "a part of -5"),
        ({"util_ratio": 1e300}, "a part of 1e[+]300"),
        ({"family": "x\u001b[2J"}, "hashes and short names"),
    ],
)
def test_a_line_of_a_history_that_cannot_be_true_is_named(tmp_path, capsys, changes, why):
    file = tmp_path / "2026-11.jsonl"
    line = {"record": "task", "when": 1000.0, "seconds": 100.0, "kind": "done", "peak_mib": 3000}
    file.write_text(json.dumps(line) + "\n" + json.dumps(line | changes) + "\n")
    assert main.main(["lab", "simulate", str(file), "--alpha", "1"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"slurm-share: {file}, line 2: this is no line of a history (")
    assert re.search(why, error)


@pytest.mark.parametrize("name", ["x.trace", "x.jsonl", "x.sh"])
@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_what_never_ends_is_not_read(tmp_path, capsys, name, kind):
    """A fifo without a writer, and a device, as a trace and as the matrix of rates."""
    file = tmp_path / name
    if kind == "fifo":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")
    (tmp_path / "simulation_throughputs.json").write_text(json.dumps(RATES))
    assert main.main(["lab", "simulate", str(file)]) == 2
    assert capsys.readouterr().err == f"slurm-share: {file}: it is not a file\n"
    trace = tmp_path / "y.trace"
    trace.write_text("A3C\tx\t-s\t1\t800\t5.0\t1\n")
    assert main.main(["lab", "simulate", str(trace), "--throughputs", str(file)]) == 2
    assert "it is not a file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["a" * 5000], "there is no such file or folder"),
        (["thesis6O"], "did you mean thesis60?"),
        (["thesis60", "--throughputs", "x"], "goes with a trace of Gavel's"),
        (["thesis60", "--gpu-memory", "\u0663G"], "not a size"),
    ],
)
def test_a_name_that_is_none_gets_a_short_sentence(capsys, given, why):
    assert main.main(["lab", "simulate", *given]) == 2
    error = capsys.readouterr().err
    assert why in error
    assert len(error) < 800
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "why"), [("gone.trace", "cannot be read"), ("gone", "no such file"), ("x.txt", "--format")]
)
def test_a_path_that_tells_nothing_is_answered_with_the_formats(tmp_path, name, why):
    (tmp_path / "x.txt").write_text("x")
    (tmp_path / "simulation_throughputs.json").write_text(json.dumps(RATES))
    with pytest.raises(TraceError, match=why):
        trace_files.read(tmp_path / name, throughputs=None)
