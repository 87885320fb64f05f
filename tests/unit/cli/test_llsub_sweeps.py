"""`llsub --sweep` and tables of tasks: what each task gets, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from llsub_desk import assert_refused, call, make_desk, run_of

from slurm_share.triples import run_folder
from slurm_share.triples.rules import deal


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_desk(tmp_path, monkeypatch)


def tasks_of(folder: Path) -> list[tuple[list[str], dict[str, str]]]:
    """Return the arguments and the parameters of each task of the submitted run."""
    run = run_of(folder)
    lines = run_folder.read_tasks(folder / "LLSUB.1")
    specs = run_folder.read_specs(folder / "LLSUB.1", run)
    first = 1 if run.command else 2
    return [
        (list(deal.argv_of(run, lines, task)[first:]), spec.params) for task, spec in enumerate(specs)
    ]  # without the script, or the shell and -c


# ---- Parameters of the command line ----


def test_every_combination_is_a_task_with_arguments_and_names(here: Path) -> None:
    assert call("task.sh", "[1,2]", "--sweep", "lr=1e-3,1e-4", "--sweep", "seed=0..1", "--", "-v") == 0
    assert tasks_of(here) == [
        (["-v", "--lr=1e-3", "--seed=0"], {"lr": "1e-3", "seed": "0"}),
        (["-v", "--lr=1e-3", "--seed=1"], {"lr": "1e-3", "seed": "1"}),
        (["-v", "--lr=1e-4", "--seed=0"], {"lr": "1e-4", "seed": "0"}),
        (["-v", "--lr=1e-4", "--seed=1"], {"lr": "1e-4", "seed": "1"}),
    ]
    assert run_of(here).tasks == 4


def test_a_name_in_braces_stands_for_the_value_and_what_is_not_there_is_said(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--sweep", "lr=1e-3", "--sweep", "seed=7", "--", "--rate={lr}", "out/{lr}.{{lr}}")
    assert call("task.sh", "[1,2]", *words) == 0
    assert tasks_of(here) == [(["--rate=1e-3", "out/1e-3.{lr}"], {"lr": "1e-3", "seed": "7"})]
    assert "the command has no {seed}: its tasks find it in LLSUB_PARAM_SEED only" in capsys.readouterr().err


def test_zip_values_of_a_file_and_repetitions(here: Path) -> None:
    (here / "names.txt").write_bytes(b"\xef\xbb\xbfa b\r\nc\r\n")
    words = ("--sweep", "name=@names.txt", "--sweep", "n=1,2", "--zip", "--ntasks", "2")
    assert call("task.sh", "[1,2]", *words) == 0
    assert tasks_of(here) == [
        (["--name=a b", "--n=1"], {"name": "a b", "n": "1", "repeat": "0"}),
        (["--name=a b", "--n=1"], {"name": "a b", "n": "1", "repeat": "1"}),
        (["--name=c", "--n=2"], {"name": "c", "n": "2", "repeat": "0"}),
        (["--name=c", "--n=2"], {"name": "c", "n": "2", "repeat": "1"}),
    ]


def test_a_command_after_the_dashes_needs_no_script(here: Path) -> None:
    assert call("[1,2]", "--sweep", "x=a b", "--", "python3", "t.py", "two words", "--x={x}") == 0
    assert tasks_of(here) == [(["python3 t.py 'two words' '--x=a b'"], {"x": "a b"})]
    assert run_of(here).name == "python3"


def test_a_command_of_one_word_is_a_line_for_the_shell(here: Path) -> None:
    assert call("[1,2]", "--sweep", "x=1", "--", "echo {x} >out.{x}") == 0
    assert tasks_of(here) == [(["echo 1 >out.1"], {"x": "1"})]


def test_a_command_without_names_gets_arguments(here: Path) -> None:
    assert call("[1,2]", "--sweep", "x=a b", "--", "python3", "t.py") == 0
    assert tasks_of(here) == [(["python3 t.py '--x=a b'"], {"x": "a b"})]


def test_lines_of_a_file_are_combined_with_the_values(here: Path) -> None:
    (here / "in.txt").write_text("a.dat\nb.dat\n")
    assert call("task.sh", "[1,2]", "--tasks", "in.txt", "--sweep", "n=1,2") == 0
    assert [words for words, _ in tasks_of(here)] == [
        ["a.dat", "--n=1"], ["a.dat", "--n=2"], ["b.dat", "--n=1"], ["b.dat", "--n=2"],
    ]  # fmt: skip
    assert tasks_of(here)[0][1] == {"input": "a.dat", "n": "1"}


def test_commands_of_a_file_have_the_values_where_they_say_so(here: Path) -> None:
    (here / "cmds.txt").write_text("a --n {n} {print}\nb $LLSUB_PARAM_N\n".replace(" {print}", " {{print}}"))
    assert call("[1,2]", "--tasks", "cmds.txt", "--sweep", "n=1,2") == 0
    assert [words[0] for words, _ in tasks_of(here)] == [
        "a --n 1 {print}", "a --n 2 {print}", "b $LLSUB_PARAM_N", "b $LLSUB_PARAM_N",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ("--zip is for --sweep", ("task.sh", "[1,2]", "--zip")),
        ("lr has 2 values, seed has 1 value", ("task.sh", "[1,2]", "--sweep=lr=1,2", "--sweep=seed=1", "--zip")),
        ("the name lr is there twice", ("task.sh", "[1,2]", "--sweep=lr=1", "--sweep=lr=2")),
        ("no program to run: write a script", ("[1,2]", "--sweep=lr=1")),
        ("--sweep needs a triple", ("task.sh", "--sweep=lr=1")),
        ("there is no parameter {l}", ("task.sh", "[1,2]", "--sweep=lr=1", "--", "{l}")),
        ("x=@no: cannot read it (No such file", ("task.sh", "[1,2]", "--sweep=x=@no")),
        ("x=@.: it is a folder", ("task.sh", "[1,2]", "--sweep=x=@.")),
        ("x=@bad: line 2 is empty; remove it", ("task.sh", "[1,2]", "--sweep=x=@bad")),
        ("x=@latin: line 1 is not UTF-8", ("task.sh", "[1,2]", "--sweep=x=@latin")),
        ("1001 x 1001 = 1002001 tasks", ("task.sh", "[1,2]", "--sweep=a=1..1001", "--sweep=b=1..1001")),
        ("the name repeat is there twice", ("task.sh", "[1,2]", "--sweep=repeat=1", "--ntasks=2")),
        ("line 1: the command has none of the parameters", ("[1,2]", "--tasks=cmds", "--sweep=lr=1")),
        ("conflicts with --spmd", ("task.sh", "[1,2]", "--spmd", "--sweep=lr=1")),
        ("has 9008 bytes, but a task has at most 8192", ("task.sh", "[1,2]", "--sweep=x=" + "y" * 9000)),
    ],
)
def test_what_cannot_be_a_sweep_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], why: str, words: tuple[str, ...]
) -> None:
    (here / "bad").write_text("a\n\nb\n")
    (here / "latin").write_bytes(b"\xe9\n")
    (here / "cmds").write_text("python a.py\n")
    assert_refused(here, why, *words, capsys=capsys)


# ---- Tables ----


def table(here: Path, text: str, *words: str, name: str = "t.csv", script: str = "task.sh") -> int:
    (here / name).write_text(text)
    return call(*([script] if script else []), "[1,2]", "--tasks", name, *words)


def test_columns_are_parameters_and_an_empty_cell_is_none(here: Path) -> None:
    assert table(here, '\ufefflr, act ,note\r\n1e-3,relu," a ""b"", c"\r\n1e-4, ,\r\n') == 0
    assert tasks_of(here) == [
        (["--lr=1e-3", "--act=relu", '--note=a "b", c'], {"lr": "1e-3", "act": "relu", "note": 'a "b", c'}),
        (["--lr=1e-4"], {"lr": "1e-4"}),
    ]


def test_columns_with_the_names_of_options_are_options_of_the_task(here: Path) -> None:
    assert table(here, "lr,timeout,priority\n1,10m,\n2,,3\n") == 0
    specs = run_folder.read_specs(here / "LLSUB.1", run_of(here))
    assert [(spec.params, spec.timeout_s, spec.priority) for spec in specs] == [
        ({"lr": "1"}, 600.0, 0),
        ({"lr": "2"}, None, 3),
    ]


def test_options_of_a_packed_run_are_columns_too(here: Path) -> None:
    text = "run\tgpu_mem\tlr\npython a.py --lr {lr}\t6G\t1\npython b.py\t\t2\n"
    assert table(here, text, "--pack", "--gpu-mem=1G", name="t.TSV", script="") == 0
    specs = run_folder.read_specs(here / "LLSUB.1", run_of(here))
    assert [spec.gpu_mem_mib for spec in specs] == [6144, 1024]
    assert [words for words, _ in tasks_of(here)] == [["python a.py --lr 1"], ["python b.py"]]


def test_rows_are_combined_with_values_and_repetitions(here: Path) -> None:
    assert table(here, "lr,run\n1,in.dat\n2,\n", "--sweep", "seed=0,1") == 0
    assert [words for words, _ in tasks_of(here)] == [
        ["in.dat", "--lr=1", "--seed=0"], ["in.dat", "--lr=1", "--seed=1"], ["--lr=2", "--seed=0"],
        ["--lr=2", "--seed=1"],
    ]  # fmt: skip
    assert table(here, "lr\n1\n", "--ntasks", "3") == 0
    run = json.loads((here / "LLSUB.2" / "run.json").read_text())
    assert run["tasks"] == 3


def test_a_row_without_values_runs_the_script_without_arguments(here: Path) -> None:
    assert table(here, "lr,timeout\n,10m\n1,\n") == 0
    assert [words for words, _ in tasks_of(here)] == [[], ["--lr=1"]]


@pytest.mark.parametrize(
    ("why", "text"),
    [
        ("the file is empty", ""),
        ("has only the names of its columns", "lr,seed\n"),
        ("line 1 must name the columns, and 1e-3 is no name; write a first line such as lr,seed", "1e-3,4\n1e-4,5\n"),
        ("line 1: column 2 has no name", "lr,\n1,2\n"),
        ("line 1: the name lr is there twice", "lr,lr\n1,2\n"),
        ("differ in case only", "lr,LR\n1,2\n"),
        ("line 1 has semicolons", "lr;seed\n1;2\n"),
        ("learning rate cannot be the name of a parameter", "learning rate\n1\n"),
        ("line 3 has 1 cell, but the first line names 2 columns; a cell with a comma", "lr,seed\n1,2\n3\n"),
        ("line 2 has 3 cells", "lr,seed\n1,2,3\n"),
        ("line 3 is empty; remove it", "lr\n1\n\n"),
        ("line 2 has only empty cells", "lr,seed\n,\n"),
        ("line 2: its quotes are wrong", 'lr,seed\n"a,b\nc",2\n'),
        ("line 2: its quotes are wrong", 'lr\n"a"b\n'),
        ('line 2: "gpu_mem" needs --pack', "lr,gpu_mem\n1,6G\n"),
        ('line 2: "timeout" is a time such as', "lr,timeout\n1,soon\n"),
    ],
)
def test_what_is_no_table_is_refused_with_its_line(
    here: Path, capsys: pytest.CaptureFixture[str], why: str, text: str
) -> None:
    (here / "t.csv").write_text(text)
    assert_refused(here, why, "task.sh", "[1,2]", "--tasks", "t.csv", capsys=capsys)


def test_a_table_without_a_script_needs_commands(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "t.csv").write_text("lr\n1\n")
    assert_refused(here, "line 1 names no column run", "[1,2]", "--tasks", "t.csv", capsys=capsys)
    (here / "t.csv").write_bytes(b"lr,run\n1,a\xe9\n")
    assert_refused(here, "line 2 is not UTF-8", "[1,2]", "--tasks", "t.csv", capsys=capsys)


# ---- Other ways to write and to continue such a run ----


def test_a_script_may_have_its_sweep_in_itself(here: Path) -> None:
    (here / "own.sh").write_text("#!/bin/sh\n#LLSUB --sweep lr=1,2 --sweep 'opt=\"a,b\"'\n")
    (here / "own.sh").chmod(0o755)
    assert call("./own.sh", "[1,2]") == 0
    assert [words for words, _ in tasks_of(here)] == [["--lr=1", "--opt=a,b"], ["--lr=2", "--opt=a,b"]]


def test_settings_are_added_to_a_run_as_it_passes_them(here: Path) -> None:
    assert call("task.sh", "[1,2]", "--sweep", "lr=1,2", "--", "-v", "{lr}") == 0
    assert call("--add", "LLSUB.1", "--sweep", "lr=3", "--ntasks", "2") == 0
    (here / "t.csv").write_text("lr,timeout\n4,10m\n")
    assert call("--add", "LLSUB.1", "--tasks", "t.csv") == 0
    run = run_of(here)
    lines = run_folder.read_lines(here / "LLSUB.1", run)
    assert [deal.argv_of(run, lines, task)[1:] for task in range(run.tasks)] == [("-v", one) for one in "12334"]
    specs = run_folder.read_specs(here / "LLSUB.1", run)
    assert [spec.params["lr"] for spec in specs] == list("12334")
    assert specs[4].timeout_s == 600.0


def test_an_added_table_waits_for_names_of_the_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "t.csv").write_text("name,lr\nprep,1\n")
    (here / "u.csv").write_text("after,lr\nprep,2\n")
    assert call("task.sh", "[1,2]", "--tasks", "t.csv") == 0
    assert call("--add", "LLSUB.1", "--tasks", "u.csv") == 0, capsys.readouterr().err
    assert run_folder.read_specs(here / "LLSUB.1", run_of(here))[1].after == ("prep",)


def test_commands_are_added_to_a_run_of_a_command(here: Path) -> None:
    assert call("[1,2]", "--sweep", "x=1", "--", "python3", "t.py") == 0
    assert call("--add", "LLSUB.1", "--sweep", "x=2,3") == 0
    run = run_of(here)
    assert run_folder.read_lines(here / "LLSUB.1", run) == [
        "python3 t.py --x=1",
        "python3 t.py --x=2",
        "python3 t.py --x=3",
    ]


@pytest.mark.parametrize(
    ("first", "words", "why"),
    [
        (("--sweep", "lr=1"), ("--tasks", "list"), "the tasks of LLSUB.1 have parameters: write --sweep NAME=VALUES"),
        (("--sweep", "lr=1"), ("--ntasks", "2"), "the tasks of LLSUB.1 have parameters: write --sweep NAME=VALUES"),
        (("--sweep", "lr=1"), ("--sweep", "lr=1,2", "--sweep", "s=1", "--zip"), "--zip takes the first value of each"),
        (("--sweep", "lr=1"), ("--zip",), "--zip is for --sweep"),
        (("--sweep", "lr=1"), (), "needs the tasks: write --sweep NAME=VALUES, or --tasks FILE.csv"),
        (("--sweep", "lr=1", "--", "{lr}"), ("--sweep", "s=1"), "there is no parameter {lr}"),
        (("--tasks", "list"), ("--sweep", "lr=1"), "the tasks of LLSUB.1 have no parameters"),
        ((), ("--sweep", "lr=1"), "the tasks of LLSUB.1 have no parameters"),
    ],
)
def test_tasks_of_another_kind_are_not_added(
    here: Path, capsys: pytest.CaptureFixture[str], first: tuple[str, ...], words: tuple[str, ...], why: str
) -> None:
    (here / "list").write_text("a\n")
    assert call("task.sh", "[1,2]", *first) == 0
    capsys.readouterr()
    assert call("--add", "LLSUB.1", *words) == 2
    assert why in capsys.readouterr().err
    assert run_folder.read_run(here / "LLSUB.1").added == 0


def test_a_request_that_is_too_large_is_said_where_it_is_written(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--pack", "--gpus-per-task=9", "--sweep", "lr=1")
    assert_refused(here, "llsub: --gpus-per-task=9: a node of this job has", "task.sh", "[1,2]", *words, capsys=capsys)
    (here / "t.csv").write_text("lr,gpus\n1,9\n")
    words = ("--pack", "--tasks", "t.csv", "--sweep", "s=1,2")
    assert_refused(here, "--tasks t.csv: line 2: it requests 9 GPUs", "task.sh", "[1,2]", *words, capsys=capsys)


def test_a_line_has_its_number_below_lines_with_options(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "cmds").write_text("#LLSUB --task-time=10m\na {n}\nb\n")
    assert_refused(here, "line 3: the command has none", "[1,2]", "--tasks=cmds", "--sweep=n=1", capsys=capsys)
    (here / "cmds").write_text("#LLSUB --task-time=none\nb\n")
    assert_refused(here, "line 2: the command has none", "[1,2]", "--tasks=cmds", "--sweep=n=1", capsys=capsys)


@pytest.mark.parametrize("command", ["echo '{x}'", 'echo "a {x}"', "echo it\\'s '{{x}} {x}'"])
def test_a_value_that_a_shell_might_run_inside_quotes_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    words = ("[1,2]", "--sweep", "x=1,$(reboot)", "--", command)
    assert_refused(here, "is inside quotes, and its value $(reboot) gets quotes", *words, capsys=capsys)
    assert call("[1,2]", "--sweep", "x=1,2", "--", command) == 0
    assert call("[1,2]", "--sweep", "x=$(reboot)", "--", f"{command.replace('{x}', '')} \\' {{x}}") == 0
