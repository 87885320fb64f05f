"""Files of tasks: lines, `#LLSUB` lines between them, JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_share.core.errors import UsageError
from slurm_share.packing import TaskSpec
from slurm_share.triples.rules import task_files
from slurm_share.triples.rules.task_files import Tasks

BASE = TaskSpec(gpu_mem_mib=1024)


def text(data: bytes, base: TaskSpec | None = BASE) -> Tasks:
    return task_files.parse(data, "f", base or TaskSpec(), is_json=False, is_packed=base is not None)


def jsonl(data: bytes, base: TaskSpec | None = BASE) -> Tasks:
    return task_files.parse(data, "f", base or TaskSpec(), is_json=True, is_packed=base is not None)


# ---- Lines ----


def test_each_line_is_a_task_with_or_without_a_last_newline() -> None:
    assert task_files.parse_lines(b"a b\nc\n", "f") == ["a b", "c"]
    assert task_files.parse_lines(b"a b\r\n\xff\n", "f") == ["a b", "\udcff"]
    assert task_files.parse_lines(b"x" * 8192, "f") == ["x" * 8192]
    assert task_files.parse_lines(b"a\r\r\nb\r", "f") == ["a", "b"]


@pytest.mark.parametrize("mark", ["\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
def test_a_line_ends_only_at_a_newline(mark: str) -> None:
    assert task_files.parse_lines(f"a{mark}b\nc\n".encode(), "f") == [f"a{mark}b", "c"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the file is empty"),
        (b"a\n\nb\n", "line 2 is empty"),
        (b"a\n \t\n", "line 2 is empty"),
        (b"a\n\n", "line 2 is empty"),
        (b"a\nb\n" + b"x" * 8193 + b"\n", "line 3 has 8193 bytes"),
        (b"a\0b\n", "line 1 contains a NUL byte"),
        (b"a\nb\rc\nd\n", "line 2 contains a carriage return .CR.; remove it"),
        (b"a\rb\rc\r", r"line 1 contains a carriage return .*: tr '.r' '.n' < FILE > NEW"),
        ("a\nb\n".encode("utf-16"), "the file is UTF-16, as PowerShell writes it; convert it: iconv -f UTF-16"),
    ],
)
def test_a_line_that_cannot_be_a_task_is_refused_with_its_number(data: bytes, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        task_files.parse_lines(data, "f")


def test_there_is_a_most_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_files, "TASKS_MAX", 2)
    assert task_files.parse_lines(b"a\nb\n", "f") == ["a", "b"]
    with pytest.raises(UsageError, match="f: the file has 3 lines, but a run has at most 2 tasks"):
        task_files.parse_lines(b"a\nb\nc\n", "f")


# ---- #LLSUB lines ----


def test_tasks_that_ask_for_the_same_have_no_specs() -> None:
    assert text(b"a\nb\n") == Tasks(("a", "b"), source="f")
    assert text(b"#LLSUB --gpu-mem=1G\na\n").specs == ()


def test_a_byte_order_mark_at_the_beginning_is_no_part_of_the_first_line() -> None:
    mark = b"\xef\xbb\xbf"
    assert text(mark + b"#LLSUB --gpu-mem=3G\na\n") == text(b"#LLSUB --gpu-mem=3G\na\n")
    assert jsonl(mark + b'{"run": "a"}\r\n').lines == ("a",)
    assert text(mark + b"a\n", None).lines == ("a",)


def test_a_line_sets_defaults_for_the_lines_below_it() -> None:
    found = text(
        b"a\n#LLSUB --gpu-mem=6G\nb\n#LLSUB --gpus-per-task 2 --name='a b'  # so\nc\n#LLSUB --gpu-mem=learned\nd\n"
    )
    assert found.lines == ("a", "b", "c", "d")
    assert found.specs == (
        TaskSpec(gpu_mem_mib=1024),
        TaskSpec(gpu_mem_mib=6144),
        TaskSpec(gpu_mem_mib=6144, gpus=2, name="a b"),
        TaskSpec(gpus=2, name="a b"),
    )
    assert found.numbers == (1, 3, 5, 7)


def test_without_pack_such_a_line_sets_the_options_that_need_none() -> None:
    found = text(b"#LLSUB --task-time=10m --name=x\na\n#LLSUB --task-time=none\nb\n", None)
    assert found.specs == (TaskSpec(timeout_s=600.0, name="x"), TaskSpec(name="x"))
    with pytest.raises(UsageError, match="f: line 1: --gpu-mem needs --pack; write --pack too, or remove --gpu-mem"):
        text(b"#LLSUB --gpu-mem=6G\nb\n", None)


def test_other_comments_stay_tasks() -> None:
    assert text(b"# LLSUB --gpu-mem=6G\n #LLSUB\n").lines == ("# LLSUB --gpu-mem=6G", " #LLSUB")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("--gpu-mem=0", "--gpu-mem= is a size like 8G"),
        ("--gpu-mem", "options are --gpu-mem=, --gpus-per-task=, --name="),
        ("--retries=2", "--retries is not an option of a tasks file: the options are --gpu-mem="),
        ("--pack", "--pack is not an option of a tasks file"),
        ("6G", "6G is not an option of a tasks file"),
        ("-g 2", "-g is not an option"),
        ("--gpus-per-task=0", "--gpus-per-task is a whole number from 1 to 256, or 0.5 for half a GPU, not 0"),
        ("--gpus-per-task=-1", "not -1"),
        ("--gpus-per-task=two", "not two"),
        ("--gpus-per-task=1.5", "not 1.5; other parts of a GPU are sizes: --gpu-mem=25%"),
        ("--gpu-mem=0%", "--gpu-mem= is a size such as 6G, two sizes such as 6G:20G, or a part of the .*25%, not 0%"),
        ("--gpu-mem=20G:8G", "--gpu-mem=20G:8G: the first size is what a task is sure of, .*--gpu-mem=8G:20G"),
        ("--gpu-mem=8G:8G", "--gpu-mem=8G:8G names one size twice: --gpu-mem=8G"),
        ("--gpu-mem=0:8G", "--gpu-mem= is a size like 8G or 800M, at most 16T, not 0:8G"),
        ("--gpu-mem=8:20G", "--gpu-mem=8 would be 8 MiB, and a size below 512 needs its unit"),
        ("--gpu-mem=8G:99999T", "--gpu-mem= is a size like 8G or 800M, at most 16T, not 8G:99999T"),
        ("--gpu-mem=10%:20%", "not 10%:20%"),
        ("--gpu-mem=101%", "not 101%"),
        ("--task-time=10x", "--task-time is a time such as 90s, .* not 10x"),
        ("--task-time=0", "not 0"),
        ("--priority=high", "--priority is a whole number from -1000000 to 1000000, higher ones first, not high"),
        ("--priority=99999999999", "not 99999999999"),
        ("--task-cpus=0", "--task-cpus is a whole number of cores"),
        ("--task-mem=8", "--task-mem is a size with its unit, such as 8G or 800M, .* not 8"),
        ("--gpu-mem='6G", "No closing quotation"),
        (f"--name={'x' * 201}", "--name .* must have at most 200 printable characters"),
        ("x --gpu-mem=6G", "x is not an option"),
    ],
)
def test_a_line_that_is_no_option_is_refused_with_its_number(line: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        text(f"a\n#LLSUB {line}\nb\n".encode())
    assert str(caught.value).startswith("f: line 2")


def test_a_file_of_such_lines_only_has_no_task() -> None:
    with pytest.raises(UsageError, match="the file has only #LLSUB lines"):
        text(b"#LLSUB --gpu-mem=6G\n")


# ---- JSON ----


def test_an_object_says_what_one_task_asks_for() -> None:
    found = jsonl(
        b'{"run": "python a.py --lr 0.1", "gpu_mem": "6G", "gpus": 2, "name": "resnet"}\n'
        b'{"run": "b"}\n{"run": "c", "gpu_mem": null}\r\n'
    )
    assert found.lines == ("python a.py --lr 0.1", "b", "c")
    assert found.specs == (TaskSpec(gpu_mem_mib=6144, gpus=2, name="resnet"), BASE, TaskSpec())
    assert found.numbers == (1, 2, 3)


def test_half_a_gpu_and_a_part_of_its_memory() -> None:
    found = jsonl(
        b'{"run": "a", "gpus": 0.5}\n{"run": "b", "gpus": 0.5, "gpu_mem": "25%"}\n{"run": "c", "gpu_mem": "12.5%"}\n'
    )
    assert found.specs == (
        TaskSpec(gpu_mem_mib=1024, is_half=True),
        TaskSpec(gpu_mem_percent=25, is_half=True),
        TaskSpec(gpu_mem_percent=12.5),
    )
    assert text(b"#LLSUB --gpus-per-task=0.5 --gpu-mem=learned\na\n").specs == (TaskSpec(is_half=True),)


def test_without_pack_the_options_that_need_none_are_taken() -> None:
    assert jsonl(b'{"run": "a"}\n', None) == Tasks(("a",), source="f")
    line = b'{"run": "a", "name": "n", "timeout": "90s", "priority": -3, "cpus": 4, "mem": "8G"}\n{"run": "b"}\n'
    own = TaskSpec(name="n", timeout_s=90.0, priority=-3, cpus=4, mem_mib=8192)
    assert jsonl(line, None).specs == (own, TaskSpec())
    none = b'{"run": "a", "timeout": null, "cpus": null, "mem": null}\n'
    assert task_files.parse(none, "f", replace(own, priority=0), is_json=True, is_packed=False).specs == (
        TaskSpec(name="n"),
    )
    with pytest.raises(UsageError, match='line 2: "gpus" needs --pack; write --pack too, or remove the key'):
        jsonl(b'{"run": "a"}\n{"run": "b", "gpus": 1}\n', None)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (
            '{"run": "a", "gpumem": "6G"}',
            "has the key gpumem, but the keys of a task are run, gpu_mem, gpus, name, .*; did you mean gpu_mem",
        ),
        ('{"run": "a", "": 1}', "has the key '', but"),
        (
            '{"run": "a", "zzz": 1}',
            "has the key zzz, but the keys of a task are run, gpu_mem, gpus, name, timeout, priority, .*, after$",
        ),
        ("{}", 'has no "run"'),
        ('{"gpus": 1}', 'has no "run"'),
        ('{"run": 5}', 'has "run": 5, but it must be text'),
        ('{"run": ["a"]}', 'has "run": \\["a"\\], but it must be text'),
        ('{"run": "a", "gpu_mem": 6}', 'has "gpu_mem": 6, but it must be text such as "6G" or "25%"'),
        ('{"run": "a", "gpu_mem": "6"}', "gpu_mem=6 would be 6 MiB, .* gpu_mem=6G"),
        ('{"run": "a", "gpu_mem": "0"}', "gpu_mem= is a size like 8G or 800M, at most 16T, not 0"),
        ('{"run": "a", "gpu_mem": "-6G"}', "not -6G"),
        ('{"run": "a", "gpu_mem": "NaN"}', "not NaN"),
        ('{"run": "a", "gpus": 0}', '"gpus" is a whole number from 1 to 256, or 0.5 for half a GPU, not 0'),
        ('{"run": "a", "gpus": -2}', "not -2"),
        ('{"run": "a", "gpus": 1.5}', '"gpus" is a whole number from 1 to 256, or 0.5 for half a GPU, not 1.5'),
        ('{"run": "a", "gpus": true}', 'has "gpus": true, but it must be a number'),
        ('{"run": "a", "timeout": 600}', 'has "timeout": 600, but it must be text such as "10m", or null'),
        ('{"run": "a", "timeout": "10 m"}', '"timeout" is a time such as'),
        ('{"run": "a", "priority": 1.5}', 'has "priority": 1.5, but it must be a whole number'),
        ('{"run": "a", "priority": "1"}', 'has "priority": "1", but it must be a whole number'),
        ('{"run": "a", "cpus": -1}', '"cpus" is a whole number of cores from 1 to 65536, or none, not -1'),
        ('{"run": "a", "mem": "8X"}', '"mem" is a size with its unit'),
        ('{"run": "a", "gpus": 99999999999999999999}', "from 1 to 256"),
        ('{"run": "a", "name": 3}', 'has "name": 3, but it must be text'),
        ('{"run": "a", "name": "x\\ny"}', '"name" .* at most 200 printable characters'),
        ('{"run": ""}', '"run" is empty'),
        ('{"run": " "}', '"run" is empty'),
        ('{"run": "a\\nb"}', '"run" contains a line end or a NUL'),
        ('{"run": "a\\u0000"}', '"run" contains a line end or a NUL'),
        ('["a"]', "is not a JSON object; write one such as"),
        ('"a"', "is not a JSON object"),
        ("python a.py", "line 2 is not JSON .* for commands, use another file extension"),
        ('{"run": "a"} x', "is not JSON"),
        ('{"run": "a\\ud800"}', "is not JSON"),
        ("#LLSUB --gpu-mem=6G", "is not JSON"),
        (json.dumps({"run": "x" * 8193}), "is longer than 8192 bytes"),
        ("", "line 2 is empty"),
    ],
)
def test_a_line_that_is_no_task_is_refused_with_its_number(line: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        jsonl(f'{{"run": "a"}}\n{line}\n{{"run": "b"}}\n'.encode())
    assert str(caught.value).startswith("f: line 2")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("data", [b"[" * 5000, b'{"run": "\xff"}\n'], ids=["brackets without end", "not UTF-8"])
def test_bytes_that_are_not_json_are_refused(data: bytes) -> None:
    with pytest.raises(UsageError, match="f: line 1 is not JSON"):
        jsonl(data)


@given(st.lists(st.text(min_size=1).filter(lambda run: run.strip() and not {"\n", "\0"} & set(run)), min_size=1))
def test_any_command_comes_back_from_json(runs: list[str]) -> None:
    data = "".join(json.dumps({"run": run}, ensure_ascii=False) + "\n" for run in runs).encode()
    assert jsonl(data).lines == tuple(runs)


@given(st.binary(max_size=60), st.booleans(), st.booleans())
def test_any_bytes_are_tasks_or_a_sentence(data: bytes, is_json: bool, is_packed: bool) -> None:
    try:
        task_files.parse(data, "f", BASE, is_json=is_json, is_packed=is_packed)
    except UsageError as error:
        said = str(error)
    else:
        return
    assert "f: " in said
