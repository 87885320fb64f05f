from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.packing import fingerprint
from slurm_share.packing.rules.fingerprint import (
    name_arguments,
    name_script,
    name_software,
    read_numbers,
    tag,
    take_apart,
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "other.py").write_text("print(2)\n")
    (tmp_path / "run.sh").write_text("#!/bin/sh\nexec python train.py\n")
    (tmp_path / "c.yaml").write_text("batch: 32\n")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "mod.py").write_text("print(3)\n")
    return tmp_path


def key(folder, text, **other):
    return fingerprint.key_of(shlex.split(text), folder, **other)


@pytest.mark.parametrize(
    ("one", "same"),
    [
        ("python train.py --seed 1", "python train.py --seed 2"),
        ("python train.py --seed=1 --lr 0.1", "python train.py --seed=77 --lr 0.1"),
        ("python train.py --out /a/b --lr 1", "python train.py --out /c --lr 1"),
        ("python train.py --output-dir a", "python train.py --output-dir b"),
        ("python train.py --save_path a", "python train.py --save_path b"),
        ("python train.py --log-dir a", "python train.py --log-dir b"),
        ("python train.py --run-name a", "python train.py --run-name b"),
        ("python train.py --port 5000 --id 7", "python train.py --port 5001 --id 8"),
        ("python train.py --tag x-2026-11-23", "python train.py --tag x-2026-11-24T10:11:12"),
        ("python train.py --tag 20261123_101112", "python train.py --tag 20261124_101112"),
        ("LLSUB_TASK=3 python train.py", "LLSUB_TASK=4 python train.py"),
        ("python train.py --lr 0.1", "sh -c 'python train.py --lr 0.1'"),
        ("python train.py --lr 0.1", "bash -lc 'exec python train.py --lr 0.1  # a note'"),
        ("python train.py", "nice -n 5 python train.py"),
        ("python train.py", "timeout -k 5 1h numactl -N 0 python train.py"),
        ("python pkg/../train.py --lr 0.1", "sh -c 'cd pkg && python ../train.py --lr 0.1'"),
        ("python train.py --lr 0.1", "bash -c 'cd pkg; cd ..; python train.py --lr 0.1 >a.log 2>&1'"),
        ("sh -c 'python train.py | tee x'", "sh -c 'python train.py 2>&1 | tee y.log'"),
        ("A=1 python train.py", "sh -c 'A=1 python train.py # with \"a note\"'"),
        ("sh -c 'source env.sh && python train.py > a'", "sh -c 'source env.sh && python train.py > b'"),
        ("python train.py", "python ./train.py"),
        ("python train.py", "python -u train.py"),
        ("python -W ignore train.py", "python train.py"),
        ("python train.py --dir /run/LLSUB.7/x", "python train.py --dir /x"),
    ],
)
def test_what_cannot_matter_for_memory_is_left_out(folder, one, same):
    assert key(folder, one, run_folder="/run/LLSUB.7") == key(folder, same, run_folder="/run/LLSUB.7")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("python train.py --batch 32", "python train.py --batch 64"),
        ("python train.py 32", "python train.py 64"),
        ("python train.py --model a", "python train.py --model b"),
        ("python train.py --out-channels 32", "python train.py --out-channels 64"),
        ("python train.py data/a.npy", "python train.py data/b.npy"),
        ("python train.py", "python other.py"),
        ("python train.py", "python -m pkg.mod"),
        ("python train.py", "python train.py --amp"),
        ("BATCH=32 python train.py", "BATCH=64 python train.py"),
        ("sh -c 'python train.py | head'", "sh -c 'python train.py | tail'"),
        ("sh -c 'source a.sh && python train.py'", "sh -c 'source b.sh && python train.py'"),
        ("sh -c '(cd pkg; ls); python train.py'", "sh -c 'python train.py'"),
        ("python -c 'print(1)'", "python -c 'print(2)'"),
        ("python train.py a b", "python train.py 'a b'"),
    ],
)
def test_what_can_matter_makes_another_task(folder, one, other):
    exact = {key(folder, one).exact, key(folder, other).exact}
    assert len(exact) == 2
    assert "" not in exact


def test_commands_that_differ_in_numbers_only_are_one_series_and_one_family(folder):
    small = key(folder, "python train.py --model a --batch 32")
    large = key(folder, "python train.py --model a --batch 64")
    other = key(folder, "python train.py --model b --batch 64")
    assert small.exact != large.exact
    assert small.series == large.series != other.series
    assert small.family == large.family == other.family
    assert small.numbers == (("--batch", 32.0),)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("python train.py 7 --lr 1e-3 x 8", {"1": 7.0, "--lr": 0.001, "2": None, "3": 8.0}),
        ("python train.py --batch=32 lr=.5 --flag", {"--batch": 32.0, "lr": 0.5}),
        ("python train.py -b -5", {"-b": -5.0}),
        ("python train.py --x nan --y inf --z 1e999 --v 0x10 --w 1_000", {}),
        ("python train.py --seed 5 --n 2", {"--n": 2.0}),
        ("python train.py --n 2 --n 3", {"--n": 2.0, "--n 2": 3.0}),
        ("BATCH=32 python train.py", {"BATCH": 32.0}),
        ("sh -c 'cd pkg && python ../train.py --batch 32 >log 2>&1'", {"--batch": 32.0}),
        ("./run.sh 32", {"1": 32.0}),
        (
            "./run.sh 500M --model 7B --steps 1.5k --x 5MiB 3x",
            {"1": 5e8, "--model": 7e9, "--steps": 1500.0, "--x": 5e6},
        ),
        ("python -m pkg.mod 32", {"1": 32.0}),
        ("torchrun --nproc_per_node 4 train.py --b 2", {"--nproc_per_node": 4.0, "--b": 2.0}),
    ],
)
def test_numbers_are_named_by_flag_or_position(folder, text, numbers):
    assert dict(key(folder, text).numbers) == {name: x for name, x in numbers.items() if x is not None}


def test_many_numbers_are_cut_off():
    assert len(read_numbers(name_arguments([str(n) for n in range(100)]))) == 16


@pytest.mark.parametrize(
    ("argv", "script", "text"),
    [
        (["python3.11", "-X", "dev", "a.py", "x"], "a.py", ""),
        (["python", "-m", "pkg.mod"], "pkg.mod", ""),
        (["bash", "-c", "a.out 3"], "a.out", ""),
        (["bash", "-c", "a.out 3 && b.out"], "b.out", ""),
        (["bash", "-c", "module load cuda; source ~/env/bin/activate && A=1 srun -n1 python a.py"], "a.py", ""),
        (["bash", "-c", "mkdir -p $D && apptainer exec --nv x.sif python a.py"], "a.py", ""),
        (["bash", "-c", "python a.py || b.out"], "", "python a.py || b.out"),
        (["bash", "-c", "python a.py & b.out"], "", "python a.py & b.out"),
        (["bash", "-c", "python a.py < x"], "", "python a.py < x"),
        (["bash", "-c", "if true; then b.out; fi"], "", "if true; then b.out; fi"),
        (["bash", "-c", "a.out $X"], "", "a.out $X"),
        (["bash", "-c", "a.out *.npy"], "", "a.out *.npy"),
        (["bash", "-c", "a.out 'unfinished"], "", "a.out 'unfinished"),
        (["bash", "-c", "a.out '$X && y'"], "a.out", ""),
        (["bash", "-c", "for x in 1; do a; done"], "", "for x in 1; do a; done"),
        (["bash", "train.sh", "3"], "train.sh", ""),
        (["/opt/bin/solver", "x"], "/opt/bin/solver", ""),
        (["env", "A=1", "python", "a.py"], "a.py", ""),
        (["torchrun", "--standalone", "-m", "x", "a.py"], "a.py", ""),
        (["bash", "-c"], "bash", ""),
        ([], "", ""),
        (["A=1"], "", ""),
    ],
)
def test_a_command_is_taken_apart(argv, script, text):
    found = take_apart(argv)
    assert (found.script, found.text) == (script, text)


def test_a_script_counts_by_its_content(folder):
    before = key(folder, "python train.py --lr 1")
    (folder / "train.py").write_text("print(10)\n")
    after = key(folder, "python train.py --lr 1")
    assert before.exact != after.exact
    assert (before.family, before.script) == (after.family, after.script)
    assert after.script == name_script(str(folder / "train.py"))


def test_the_kept_copy_of_an_edited_script_counts_instead_of_it(folder, tmp_path):
    script = folder / "v.sh"
    script.write_text("echo 1\n")
    first = fingerprint.key_of([str(script), "8"], folder)
    kept = tmp_path / "pkg" / "v.sh"
    kept.write_bytes(script.read_bytes())
    script.write_text("echo other\n")
    assert fingerprint.key_of([str(script), "8"], folder) != first
    assert fingerprint.key_of([str(script), "8"], folder, kept=kept) == first


def test_a_configuration_counts_by_its_content(folder):
    (folder / "copy.yaml").write_text("batch: 32\n")
    before = key(folder, "python train.py --config c.yaml")
    assert before == key(folder, "python train.py --config copy.yaml")
    (folder / "c.yaml").write_text("batch: 64\n")
    after = key(folder, "python train.py --config c.yaml")
    assert before.exact != after.exact
    assert before.family == after.family


@pytest.mark.parametrize("content", [b"x" * (64 * 1024 + 1), b"a\0b", None], ids=["too long", "no text", "missing"])
def test_any_other_input_counts_by_its_name(folder, content):
    for name in ("a.json", "b.json"):
        if content is not None:
            (folder / name).write_bytes(content)
    one, other = (key(folder, f"python train.py --config {name}.json") for name in "ab")
    assert one.exact != other.exact


def test_a_script_that_cannot_be_read_has_a_family_only(folder):
    found = key(folder, "python gone.py --lr 1")
    assert (found.exact, found.series) == ("", "")
    assert found.family
    assert key(folder, "").exact == ""


def test_a_name_is_the_family(folder):
    one, other = key(folder, "python train.py --lr 1", name="resnet"), key(folder, "python other.py", name="resnet")
    assert one.family == other.family != key(folder, "python train.py --lr 1").family
    assert one.exact == key(folder, "python train.py --lr 1").exact


def test_a_link_to_a_script_is_the_script(folder):
    (folder / "link.py").symlink_to("train.py")
    assert key(folder, "python link.py") == key(folder, "python train.py")


def test_a_program_of_the_path_is_found(folder, tmp_path, monkeypatch):
    program = tmp_path / "bin" / "solver"
    program.parent.mkdir()
    program.write_bytes(b"\x7fELF" + bytes(3 << 20))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    before = key(folder, "solver 3")
    assert before.exact
    program.write_bytes(b"\x7fELF" + bytes(3 << 20) + b"x")
    assert key(folder, "solver 3").exact != before.exact


def test_no_word_of_a_command_is_in_its_hashes(folder):
    found = key(folder, "python train.py --secret-project 3", name="classified")
    stored = f"{found.exact} {found.series} {found.family} {found.script} {tag('--secret-project')}"
    assert not any(word in stored for word in ("secret", "train", "classified"))
    assert tag(tag("--secret-project")) == tag("--secret-project")


def test_software_is_the_container_before_the_environment():
    conda = {"CONDA_PREFIX": "/opt/conda/a"}
    assert name_software({}) == name_software({"CONDA_PREFIX": ""}) == ""
    assert name_software(conda) == name_software({**conda, "VIRTUAL_ENV": "/x"}) != name_software({"VIRTUAL_ENV": "/x"})
    assert name_software({**conda, "APPTAINER_CONTAINER": "/x.sif"}) != name_software(conda)


def test_a_file_is_hashed_once(folder, monkeypatch):
    opened = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda *args, **kwargs: opened.append(args[0]) or real(*args, **kwargs))
    for n in range(5):
        key(folder, f"python train.py --config c.yaml --n {n}")
    assert len(opened) == 2


@given(st.lists(st.text(max_size=20), max_size=8))
def test_any_command_has_a_key(argv):
    fingerprint.key_of(argv, Path("/"))


@given(st.text(max_size=60))
def test_any_shell_text_has_a_key(text):
    fingerprint.key_of(["sh", "-c", text], Path("/"))
