"""llsub --pack at the desk: options, lines in scripts and in files of tasks, what is submitted, what is refused."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from llsub_desk import assert_refused, call, make_desk, run_of, submitted

from slurm_share.core.errors import CommandError, DriverError
from slurm_share.node.gpus import binding
from slurm_share.node.records import Driver, Gpu
from slurm_share.packing import HistoryWriter, PackRequest, PackSettings, TaskRun, TaskSpec, key_of
from slurm_share.slurm import jobs
from slurm_share.triples import pack_explain, planning, run_folder
from slurm_share.triples.launcher import claims
from slurm_share.triples.records import Run, Triple
from slurm_share.triples.rules import deal

DEFAULT = PackRequest(settings=PackSettings(policy="gain"))
"""The options that --pack stands for."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with scripts in it: a recorded cluster around, and no configuration of a site."""
    make_desk(tmp_path, monkeypatch)
    (tmp_path / "list").write_text("a\nb c\nd\n")
    (tmp_path / "many").write_text("sleep 1\n" * 200)
    monkeypatch.setattr(planning, "read_settings", lambda _: planning.Settings())
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def script(folder: Path, *lines: str) -> str:
    """Write a script with these lines in its head."""
    file = folder / "own.sh"
    file.write_text("\n".join(("#!/bin/sh", *lines, "true", "#LLSUB --below the first command\n")))
    file.chmod(0o755)
    return "./own.sh"


# ---- what is submitted ----


def test_pack_alone_is_the_default_policy_with_slots_on_every_gpu(here: Path) -> None:
    assert call("[1,8]", "--pack", "--tasks", "many") == 0
    run = run_of(here)
    assert run.pack == DEFAULT
    assert (run.distribution, run.tasks, run.processes, run.is_share_computed) == ("dynamic", 200, 8, False)
    assert run.share is not None
    assert run.share.per_gpu == 4
    assert "--share-gpu=4" in submitted(here)[0]
    assert not (here / "LLSUB.1/specs.jsonl").exists()


def test_pack_before_the_script_does_not_take_it_for_a_policy(here: Path) -> None:
    assert call("--pack", "./plain.sh", "[1,2]") == 0
    run = run_of(here)
    assert (run.command, run.pack) == ((f"{here}/plain.sh",), DEFAULT)


def test_a_packed_run_of_equal_tasks_needs_no_file(here: Path) -> None:
    assert call("./plain.sh", "[1,4]", "--pack=lug,smact_max=0.85", "--ntasks=9", "--retries=2") == 0
    run = run_of(here)
    assert (run.tasks, run.task_kind, run.distribution) == (9, "rank", "dynamic")
    assert run.pack == PackRequest(settings=PackSettings(policy="lug", smact_max=0.85, retries=2))


def test_every_option_is_in_the_run(here: Path) -> None:
    words = ("--gpu-mem=6G --gpus-per-task=2 --oom-retries=0 --max-per-gpu=3 --order=short --memory-guard=hard "
             "--estimate=static --hang=kill --keep-going")  # fmt: skip
    assert call("./plain.sh", "[1,4]", "--pack", *words.split()) == 0
    settings = PackSettings(policy="gain", oom_retries=0, max_per_gpu=3, order="short", guard="hard", keep_going=True)
    assert run_of(here).pack == PackRequest(
        settings=settings, spec=TaskSpec(gpu_mem_mib=6144, gpus=2), estimate="static", hang="kill"
    )


@pytest.mark.parametrize(
    ("triple", "words", "per_node", "per_gpu"),
    [
        ("[1,auto,2]", (), 4, 2),
        ("[1,auto]", (), 8, 4),
        ("[2,auto,4]", (), 2, 2),
        ("[1,auto,100]", (), 1, 1),
        ("[1,auto]", ("--max-per-gpu=2",), 4, 2),
        ("[1,auto]", ("--share-gpu=3",), 6, 3),
        ("[1,auto]", ("--pack=exclusive",), 2, 1),
        ("[1,auto]", ("-g", "1"), 4, 4),
        ("[1,auto]", ("--tasks", "list"), 3, 2),
    ],
)
def test_auto_is_what_the_smallest_node_has_cores_for(
    here: Path, capsys: pytest.CaptureFixture[str], triple: str, words: tuple[str, ...], per_node: int, per_gpu: int
) -> None:
    """n1 is larger: 16 cores and 4 GPUs. The smallest has 8 and 2."""
    assert call(triple, "--pack", "--tasks", "many", *words) == 0
    run, (out, err) = run_of(here), capsys.readouterr()
    assert (run.triple.per_node, run.triple.is_auto, run.processes) == (per_node, True, per_node * run.triple.nodes)
    assert (run.share.per_gpu, str(run.triple)) == (per_gpu, triple)
    assert f"job 4711: {run.tasks} tasks, packed, at most {per_node} at once on " in out
    assert "Underutilizing" not in err


def test_the_number_of_a_written_share_limits_the_tasks_of_a_gpu(here: Path) -> None:
    assert call("[1,4]", "--pack", "--share-gpu=3", "--tasks", "many") == 0
    run = run_of(here)
    assert run.pack == PackRequest(settings=PackSettings(policy="gain", max_per_gpu=3))
    assert "--share-gpu=3" in submitted(here)[0]


EQUAL = PackSettings(policy="booked", patience_s=1e9)
"""For runs of equal tasks: no GPU is ever kept free for one of them."""


def test_auto_without_pack_is_a_run_whose_number_is_found_by_trials(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("./plain.sh", "[1,auto]", "--tasks", "many", "--gpu-mem=2G") == 0
    run = run_of(here)
    assert run.pack == PackRequest(settings=EQUAL, is_tuned=True, spec=TaskSpec(gpu_mem_mib=2048))
    assert (run.pack.settings.policy, run.bind, run.processes, run.distribution) == ("booked", False, 8, "dynamic")
    assert "200 tasks, as many at once as are fastest on the node, at most 8; logs" in capsys.readouterr().out


def test_options_of_packing_in_a_script_count_with_auto(here: Path) -> None:
    assert call(script(here, "#LLSUB --gpu-mem=9G"), "[1,auto]", "--ntasks=20") == 0
    pack = run_of(here).pack
    assert pack == PackRequest(settings=EQUAL, is_tuned=True, spec=TaskSpec(gpu_mem_mib=9216))


@pytest.mark.parametrize(("triple", "is_tuned"), [("[1,auto]", True), ("[1,4]", False)])
def test_ways_of_sharing_are_compared_with_a_number_and_without(here: Path, triple: str, is_tuned: bool) -> None:
    assert call("./plain.sh", triple, "--ntasks=99", "--compare-sharing") == 0
    run = run_of(here)
    assert run.pack == PackRequest(settings=EQUAL, is_tuned=is_tuned, is_compared=True)
    assert not run.bind


@pytest.mark.parametrize(
    ("written", "passed", "most"), [("sm=auto", "--share-gpu=2", None), ("3,sm=auto", "--share-gpu=3", 3)]
)
def test_shares_found_by_trials_are_no_business_of_the_plugin(
    here: Path, written: str, passed: str, most: int | None
) -> None:
    assert call("[1,4]", "--pack", f"--share-gpu={written}", "--tasks", "many") == 0
    pack = run_of(here).pack
    assert pack is not None
    assert (pack.is_sm_tried, pack.settings.max_per_gpu) == (True, most)
    assert passed in submitted(here)[0].split()


def test_a_large_site_limit_is_asked_of_the_sites_settings(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "read_settings", lambda _: planning.Settings(max_share=3))
    assert call("[1,auto]", "--pack", "--tasks", "many") == 0
    assert run_of(here).processes == 6


def test_a_site_that_divides_multiprocessors_is_said_at_submission(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "read_settings", lambda _: planning.Settings(sm="even"))
    assert call("[1,8]", "--pack", "--tasks", "many") == 0
    assert "an even part of the multiprocessors: 25 % with 4 slots" in capsys.readouterr().err


def test_a_plain_triple_stays_as_it_was(here: Path) -> None:
    assert call("[1,8]", "--tasks", "list") == 0
    run = run_of(here)
    assert (run.pack, run.is_share_computed) == (None, True)
    assert b'"pack":null' in (here / "LLSUB.1/run.json").read_bytes().replace(b" ", b"")


# ---- tasks that are unlike ----


def test_lines_in_the_file_of_tasks_become_specs_and_no_tasks(here: Path) -> None:
    (here / "mix").write_text("a\n#LLSUB --gpu-mem=6G\nb\n#LLSUB --gpus-per-task=2\nc\n")
    assert call("[1,4]", "--pack", "--gpu-mem=2G", "--tasks", "mix") == 0
    folder, run = here / "LLSUB.1", run_of(here)
    assert (run.tasks, run_folder.read_tasks(folder)) == (3, ["a", "b", "c"])
    assert run_folder.read_specs(folder, run) == (
        TaskSpec(gpu_mem_mib=2048),
        TaskSpec(gpu_mem_mib=6144),
        TaskSpec(gpu_mem_mib=6144, gpus=2),
    )


def test_json_lines_become_commands_and_specs(here: Path) -> None:
    (here / "mix.jsonl").write_text(
        '{"run": "python a.py --lr 0.1", "gpu_mem": "6G", "gpus": 1, "name": "resnet"}\n{"run": "b"}\n'
    )
    assert call("[1,4]", "--pack", "--tasks", "mix.jsonl") == 0
    folder, run = here / "LLSUB.1", run_of(here)
    assert run_folder.read_tasks(folder) == ["python a.py --lr 0.1", "b"]
    assert run_folder.read_specs(folder, run) == (TaskSpec(gpu_mem_mib=6144, name="resnet"), TaskSpec())


def test_without_pack_tasks_have_the_options_that_need_none(here: Path) -> None:
    (here / "mix.jsonl").write_text('{"run": "b c"}\n')
    (here / "mix").write_text("a\n#LLSUB --task-time=90s\nb\n")
    assert call("./plain.sh", "[1,4]", "--tasks", "mix.jsonl") == 0
    assert run_folder.read_tasks(here / "LLSUB.1") == ["b c"]
    assert call("[1,4]", "--tasks", "mix", "--task-time=5m") == 0
    run = run_folder.read_run(here / "LLSUB.2")
    specs = run_folder.read_specs(here / "LLSUB.2", run)
    assert run_folder.read_tasks(here / "LLSUB.2") == ["a", "b"]
    assert run.spec == specs[0]
    assert [spec.timeout_s for spec in specs] == [300.0, 90.0]


def test_specs_of_another_number_of_tasks_are_refused(here: Path) -> None:
    (here / "mix").write_text("a\n#LLSUB --gpu-mem=6G\nb\n")
    assert call("[1,4]", "--pack", "--tasks", "mix") == 0
    folder, run = here / "LLSUB.1", run_of(here)
    file = folder / "specs.jsonl"
    whole = file.read_bytes()
    for data, why in (
        (whole + b"{}\n", "it has 3 lines, but the run has 2 tasks; submit it again"),
        (whole[:-5], "it has 1 line"),
        (b'{"gpumem": 5}\n{}\n', "the options of the tasks cannot be read"),
        (b"\xff\n{}\n", "the options of the tasks cannot be read"),
    ):
        file.write_bytes(data)
        with pytest.raises(run_folder.StateError, match=why):
            run_folder.read_specs(folder, run)


def test_somebody_elses_specs_are_not_acted_on(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "mix").write_text("a\n#LLSUB --gpu-mem=6G\nb\n")
    assert call("[1,4]", "--pack", "--tasks", "mix") == 0
    for name in ("run.json", "jobs", "tasks", "launch.sh", "environment"):
        (here / "LLSUB.1" / name).unlink()

    def of_files_only(self: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if follow_symlinks:
            raise FileNotFoundError
        return os.lstat(self)

    monkeypatch.setattr(Path, "stat", of_files_only)
    assert run_folder.read_foreign_owner(here / "LLSUB.1", os.getuid() + 1) == os.getuid()
    (here / "LLSUB.1/specs.jsonl").unlink()
    assert run_folder.read_foreign_owner(here / "LLSUB.1", os.getuid() + 1) is None


# ---- lines in the script ----


def test_lines_of_a_script_mean_the_same_and_the_command_line_wins(here: Path) -> None:
    name = script(
        here, "#LLSUB --pack --gpu-mem=9G", "# a remark", "", "#LLSUB --retries 3 --order=long  # so", "#LLSUB"
    )
    assert call(name, "[1,auto,4]", "--tasks", "list", "--order=short", "--retries=0") == 0
    run = run_of(here)
    assert run.pack == PackRequest(settings=PackSettings(policy="gain", order="short"), spec=TaskSpec(gpu_mem_mib=9216))
    assert run.retries == 0


def test_a_script_says_on_which_signal_it_saves_its_state(here: Path) -> None:
    assert call(script(here, "#LLSUB --undo=off --checkpoint-signal=SIGUSR1"), "[1,4]", "--pack", "--undo=pause") == 0
    assert run_of(here).pack == PackRequest(
        settings=PackSettings(policy="gain", undo="pause"), checkpoint_signal=signal.SIGUSR1
    )


def test_sizes_in_a_script_do_not_hinder_a_plain_triple(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(script(here, "#LLSUB --gpu-mem=9G --keep-going --retries=1"), "[1,4]") == 0
    assert "own.sh has #LLSUB lines that need --pack: --gpu-mem, --keep-going ignored" in (capsys.readouterr().err)
    run = run_of(here)
    assert (run.pack, run.retries) == (None, 1)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("--gpumem=9G", "--gpumem=9G is not an option of such a line; did you mean --gpu-mem?"),
        ("--partition=x", "--partition=x is not an option of such a line; the options are --tasks"),
        ("nonsense", "nonsense is not an option of such a line"),
        ("--order=random:x", "the orders are fifo"),
        ("--retries=-1", "it must be 0 or more, and -1 is less"),
        ("--gpu-mem", "expected one argument"),
        ("--gpu-mem='9G", "No closing quotation"),
        ("--gpu-mem=9 G", "G is not an option"),
        ("--gpu-mem=0", "--gpu-mem= is a size like 8G or 800M, at most 16T, not 0"),
        ("--checkpoint-signal=RTMIN", "the numbers of real-time signals differ between systems"),
        ("--undo=stop", "invalid choice: 'stop'"),
        ("--pack=lugg", "did you mean lug?"),
    ],
)
def test_a_wrong_line_of_a_script_is_refused_with_its_number(
    here: Path, capsys: pytest.CaptureFixture[str], line: str, why: str
) -> None:
    assert call(script(here, "# a remark", f"#LLSUB {line}"), "[1,4]", "--pack") == 2
    said = capsys.readouterr().err
    assert said.startswith(f"llsub: line 3 of own.sh, #LLSUB {line}: ")
    assert why in said
    assert submitted(here) == []


def test_lines_of_a_script_without_a_triple_are_left_aside_and_it_is_said(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(script(here, "#LLSUB --pack")) == 0
    assert "own.sh has #LLSUB lines, which need a triple: ignored" in capsys.readouterr().err
    assert len(submitted(here)) == 1


def test_a_program_that_is_no_script_has_no_lines(here: Path) -> None:
    (here / "program").write_bytes(b"\x7fELF\n#LLSUB --nonsense\n")
    (here / "program").chmod(0o755)
    assert call("./program", "[1,4]", "--pack") == 0


# ---- what is refused ----


REFUSED = (
    "./plain.sh [1,auto]",
    "./plain.sh [1,auto] --ntasks=9 --gpus-per-task=2",
    "./plain.sh [1,auto] --ntasks=9 --distribution=block",
    "./plain.sh [1,4] --compare-sharing",
    "./plain.sh [1,4] --pack --ntasks=9 --compare-sharing",
    "./plain.sh [1,4] --ntasks=9 --share-gpu=2,sm=auto",
    "./plain.sh --share-gpu=2,sm=auto",
    "-i --share-gpu=2,sm=auto",
    "./plain.sh [1,4] --pack --share-gpu=2,sm=auto,sm=50",
    "./plain.sh [1,4] --pack --share-gpu=2,sm=auto,mps=off",
    "./plain.sh [auto,1] --pack",
    "./plain.sh --pack",
    "./plain.sh --gpu-mem=6G",
    "./plain.sh [1,2] --gpu-mem=6G",
    "./plain.sh [1,2] --keep-going",
    "./plain.sh [1,2] --pack=lugg",
    "./plain.sh [1,2] --pack lug",
    "./plain.sh [1,2] --pack --gpu-mem=0",
    "./plain.sh [1,2] --pack --gpus-per-task=0",
    "./plain.sh [1,2] --pack --gpus-per-task=300",
    "./plain.sh [1,2] --pack --gpus-per-task=5",
    "./plain.sh [1,2] --pack --gpus-per-task=2 -g1",
    "./plain.sh [1,2] --pack --share-gpu=mem=8G",
    "./plain.sh [1,4] --pack --tasks=list --distribution=block",
    "[1,2] --pack --tasks=bad.jsonl",
    "[1,2] --tasks=bad.jsonl",
    "[1,2] --pack --tasks=bad",
    "[1,2] --pack --tasks=wide",
    "[9,auto] --pack --tasks=list",
    "[2,auto] --pack --tasks=list --local",
)


def test_a_mistake_is_a_sentence_and_2_and_nothing_is_made(
    here: Path, capsys: pytest.CaptureFixture[str], golden: Any
) -> None:
    (here / "bad.jsonl").write_text('{"run": "a", "gpu_mem": "6G"}\n{"run": "b", "gpumem": "6G"}\n')
    (here / "bad").write_text("a\n#LLSUB --gpu-mem=0\nb\n")
    (here / "wide").write_text("#LLSUB --gpus-per-task=9\na\n")
    said = []
    for words in REFUSED:
        assert_refused(here, "llsub: ", *words.split(), capsys=capsys, said=said)
    golden("refused.txt", "".join(f"llsub {words}\n  {one}" for words, one in zip(REFUSED, said, strict=True)))


def test_auto_where_sinfo_does_not_answer_is_refused_with_a_triple_that_works(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(argv: Any, **_: object) -> str:
        raise CommandError(tuple(argv), None, "no answer within 20 s")

    monkeypatch.setattr(jobs, "run", silent)
    assert call("[1,auto,4]", "--pack", "--tasks", "list") == 2
    said = capsys.readouterr().err
    assert "is not known: the cluster's nodes cannot be read" in said
    assert "write the number of processes, such as [1,16,4]" in said
    assert call("[1,4]", "--pack", "--tasks", "list") == 0
    assert run_of(here).pack == DEFAULT


def test_pack_in_a_partition_without_gpus_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = tuple(planning.replace(kind, gpus=()) for kind in jobs.read_node_kinds())
    monkeypatch.setattr(jobs, "read_node_kinds", lambda: kinds)
    assert call("[1,4]", "--pack", "--tasks", "list") == 2
    assert "--pack places tasks on GPUs, but no node of partition gpu has one" in capsys.readouterr().err


def test_where_some_nodes_have_no_gpu_the_job_asks_for_some(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = jobs.read_node_kinds()
    kinds = (planning.replace(first, gpus=()), *others)
    monkeypatch.setattr(jobs, "read_node_kinds", lambda: kinds)
    assert call("[1,4]", "--pack", "--tasks", "list") == 0
    assert "--gres=gpu:2" in submitted(here)[0]


# ---- on this machine ----


def gpu(number: int, memory_mib: int | None) -> Gpu:
    return Gpu(uuid=f"GPU-{number}", index=number, minor=number, name="NVIDIA A100", memory_total_mib=memory_mib)


def on_this_machine(monkeypatch: pytest.MonkeyPatch, *gpus: Gpu) -> None:
    """Have 12 cores and these GPUs, and become no launcher."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(planning.topology, "read_machine", lambda _: tuple(range(12)))
    monkeypatch.setattr(binding, "read_driver", lambda: Driver("570", gpus))
    monkeypatch.setattr(os, "execve", lambda *_: None)


@pytest.mark.parametrize(("words", "expected"), [((), 4), (("--max-per-gpu=1",), 2), (("-g1", "--max-per-gpu=3"), 3)])
def test_auto_here_is_this_machines_cores(
    here: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], expected: int
) -> None:
    on_this_machine(monkeypatch, gpu(0, 40960), gpu(1, 40960))
    call("[1,auto,3]", "--pack", "--local", "--tasks", "many", *words)
    assert (run_of(here).processes, submitted(here)) == (expected, [])


def test_a_size_above_every_gpu_here_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_this_machine(monkeypatch, gpu(0, 40960), gpu(1, 10240))
    (here / "mix").write_text("a\n#LLSUB --gpu-mem=39700M\nb\n")
    assert call("[1,4]", "--pack", "--local", "--tasks", "mix") == 2
    assert "--tasks mix: line 3: its --gpu-mem=39700M is more than the 39628 MiB" in capsys.readouterr().err
    assert call("./plain.sh", "[1,4]", "--pack", "--local", "--gpu-mem=39G") == 2
    assert not list(here.glob("LLSUB*"))
    call("./plain.sh", "[1,4]", "--pack", "--local", "--gpu-mem=38G")
    assert run_of(here).pack is not None


def test_a_size_is_not_judged_where_a_gpu_does_not_say_its_own(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_this_machine(monkeypatch, gpu(0, 40960), gpu(1, None))
    call("./plain.sh", "[1,4]", "--pack", "--local", "--gpu-mem=70G")
    assert run_of(here).pack is not None


def test_without_a_driver_the_launcher_says_what_is_wrong(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> Driver:
        raise DriverError("nvmlInit", "no driver")

    on_this_machine(monkeypatch)
    monkeypatch.setattr(binding, "read_driver", gone)
    call("./plain.sh", "[1,auto]", "--pack", "--local", "--ntasks=30", "--gpu-mem=70G")
    assert run_of(here).processes == 12


# ---- --dry-run ----


def remember(folder: Path, command: str, *peaks: int, model: str = "NVIDIA A100", total_mib: int = 40960) -> None:
    """Write finished runs of a command of a tasks' file to the user's history."""
    key = key_of(("/bin/sh", "-c", command), folder)
    runs = [
        TaskRun(
            when=time.time() - 60,
            exact=key.exact,
            family=key.family,
            series=key.series,
            numbers=key.numbers,
            gpu_model=model,
            gpu_total_mib=total_mib,
            kind="done",
            seconds=100.0,
            peak_mib=peak,
            alone_seconds=100.0,
            sm_ratio=0.41,
            dram_ratio=0.2,
        )
        for peak in peaks
    ]
    assert HistoryWriter().append(*runs) is None


MIX = """\
./plain.sh a
./plain.sh a
./plain.sh b
#LLSUB --gpu-mem=30000M
./plain.sh c
#LLSUB --gpus-per-task=2
./plain.sh d
"""


def test_a_dry_run_shows_sizes_with_their_source_and_the_first_placements(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_this_machine(monkeypatch, gpu(0, 40960), gpu(1, 40960))
    (here / "mix").write_text(MIX)
    remember(here, "./plain.sh a", 6000, 6000)
    before = sorted(here.iterdir())
    assert call("[1,auto,3]", "--pack", "--tasks", "mix", "--local", "--dry-run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "5 tasks on 1 node, 2 GPUs NVIDIA A100 (38.7 GiB usable each)"
    assert re.fullmatch(r"   TASKS  GPU MEM   FROM +SM", lines[1])
    assert re.fullmatch(r"       2  29.3 GiB  --gpu-mem +0.41 family", lines[2])
    measured = r"       2  6\.[0-9] GiB   largest of 2 runs of this command, \+[0-9]+ % +0\.41 measured"
    assert re.fullmatch(measured, lines[3])
    assert lines[4] == (
        "       1  unknown   first of a kind: half of a GPU is booked until its memory is flat  0.41 family"
    )
    assert re.fullmatch(r"first placements: GPU 0 tasks? 0( [0-9])*; GPU 1 tasks? 1( [0-9])*", lines[5])
    assert lines[6] == "not packed: task 4 wants 2 GPUs: they get whole GPUs"
    assert len(lines) == 7
    assert sorted(here.iterdir()) == before


def test_packing_options_without_effect_are_named_and_the_rest_is_done(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("./plain.sh", "[1,4]", "--pack=lug", "--order=long", "--undo=pause") == 0
    said = capsys.readouterr().err
    assert "llsub: --order=long ignored: lug starts the tasks in the order of the file; --pack has it" in said
    assert "llsub: --undo ignored: lug does not measure speed; --pack does" in said
    assert len(submitted(here)) == 1


def test_a_dry_run_for_slurm_takes_the_gpus_of_the_newest_run_for_those_of_the_node(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mix").write_text(MIX)
    assert call("[1,4]", "--pack", "--tasks", "mix", "--dry-run") == 0
    out = capsys.readouterr().out
    assert "5 tasks on 1 node\n" in out
    assert len(out.splitlines()) < 12
    assert re.search(r"^launch.sh: [0-9]+ lines, not shown \(--dry-run=script shows them\)$", out, re.MULTILINE)
    assert "first placements: not known before the run, because Slurm does not report GPU sizes" in out
    assert "process i of node" not in out
    remember(here, "./plain.sh a", 6000)
    assert call("[1,4]", "--pack", "--tasks", "mix", "--dry-run") == 0
    out = capsys.readouterr().out
    assert "GPUs NVIDIA A100 (38.7 GiB usable each), assumed as in your last run\n" in out
    assert "first placements: GPU 0 task" in out
    assert call("[1,4]", "--pack", "--estimate=none", "--tasks", "mix", "--dry-run") == 0
    assert "of this command" not in capsys.readouterr().out
    assert submitted(here) == []


def test_a_gpu_of_the_type_that_slurm_names_goes_before_a_newer_one_of_another(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = tuple(planning.replace(kind, gpus=(("a100", 2),)) for kind in jobs.read_node_kinds())
    monkeypatch.setattr(jobs, "read_node_kinds", lambda: kinds)
    remember(here, "./plain.sh a", 6000)
    remember(here, "./plain.sh a", 6000, model="NVIDIA H100", total_mib=81920)
    assert call("[1,4]", "--pack", "--tasks", "list", "--dry-run") == 0
    assert "NVIDIA A100 (38.7 GiB usable each), assumed as in your last run on such a GPU" in capsys.readouterr().out


def test_a_dry_run_where_no_gpu_can_be_read_says_so(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_this_machine(monkeypatch)
    assert call("./plain.sh", "[1,4]", "--pack", "--local", "--dry-run") == 0
    assert "not known before the run, because the GPUs cannot be read here" in capsys.readouterr().out


def test_a_dry_run_of_a_long_list_looks_at_its_beginning(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_explain, "TASKS_MOST", 50)
    assert call("[1,4]", "--pack", "--tasks", "many", "--dry-run") == 0
    out = capsys.readouterr().out
    assert "200 tasks on 1 node\nof these, the first 50:\n" in out
    assert "\n      50  unknown" in out


# ---- again ----


def test_a_resumed_run_is_packed_as_before_and_takes_other_retries(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mix").write_text("a\n#LLSUB --gpu-mem=6G\nb\n")
    assert call("[1,4]", "--pack=lug", "--tasks", "mix", "--retries=1") == 0
    before = run_of(here).pack
    specs = (here / "LLSUB.1/specs.jsonl").read_bytes()
    assert call("--resume", "LLSUB.1") == 0
    assert run_of(here).pack == before
    assert call("--resume", "LLSUB.1", "--oom-retries=5", "--retries=3", "--keep-going", "--gpu-mem=6G") == 0
    assert "--gpu-mem ignored: no effect with --resume" in capsys.readouterr().err
    run = run_of(here)
    assert run.pack is not None
    settings = run.pack.settings
    assert (settings.policy, settings.oom_retries, settings.retries, run.retries) == ("lug", 5, 3, 3)
    assert settings.keep_going
    assert (here / "LLSUB.1/specs.jsonl").read_bytes() == specs
    capsys.readouterr()
    assert call("./plain.sh", "[1,2]") == 0
    assert call("--resume", "LLSUB.2", "--oom-retries=1", "--keep-going") == 0
    said = capsys.readouterr().err
    assert "--oom-retries ignored: LLSUB.2 is not packed" in said
    assert "--keep-going ignored: LLSUB.2 is not packed" in said


# ---- who gets which task ----


def test_a_node_of_a_packed_run_claims_few_tasks_at_a_time(tmp_path: Path) -> None:
    run = Run(
        name="a", command=("/a",), cwd="/", triple=Triple(2, 8), processes=16, tasks=100_000, distribution="dynamic"
    )
    assert len(deal.chunks_of(run)[0]) == 1000
    packed = deal.chunks_of(planning.replace(run, pack=PackRequest()))
    assert max(map(len, packed)) == deal.PACKED_CHUNK_MAX
    assert sum(map(len, packed)) == 100_000
    assert len(packed[-1]) == 1
    queue = claims.Claims(tmp_path / "queue", "n1", packed)
    assert queue.take() == range(8)


def test_help_shows_what_people_use_and_help_all_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--help") == 0
    first = capsys.readouterr().out
    assert call("--help-all") == 0
    every = capsys.readouterr().out
    for word in ("--pack [POLICY]", "--gpu-mem SIZE", "--help-all"):
        assert word in first
    assert len(first.splitlines()) <= 100  # a page, in 80 columns
    for word in ("--sweep", "--task-time", "--add", "--after", "--until-done"):
        assert f"\n  {word} " in first
    for word in ("--undo {", "--memory-guard {", "smact_max", "magm", "--env {"):
        assert word not in first
        assert word in every


def test_a_policy_of_the_literature_is_refused_where_the_laboratory_is_not_installed(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("slurm_share.lab.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "slurm_share.lab", None)
    why = "--pack=lug is for comparisons, and needs slurm_share.lab"
    assert_refused(here, why, "[1,4]", "--pack=lug", "--tasks", "many", capsys=capsys)
