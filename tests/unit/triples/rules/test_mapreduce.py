"""Inputs, names, processes and scripts of llmapreduce."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_share.core.errors import UsageError
from slurm_share.slurm.records import NodeKind
from slurm_share.triples.records import Run, Triple
from slurm_share.triples.rules import deal, mapreduce, submission
from slurm_share.triples.rules.mapreduce import Folder, InputSplit, MapSbatchOptions, OutputNames, split


def sizes(made: InputSplit, inputs: int) -> list[int]:
    """Inputs of each process, or of each start where one gets a file of pairs."""
    if made.groups is not None:
        return [len(group) for group in made.groups]
    run = Run(
        kind="llmapreduce", name="m", command=("/m",), cwd="/", triple=made.triple, processes=made.processes,
        tasks=made.tasks(inputs), distribution=made.distribution, per_process=made.per_process,
    )  # fmt: skip
    return [len(deal.tasks_of(run, rank)) for rank in range(made.processes)]


# ---- How many ----


@pytest.mark.parametrize("apptype", ["siso", "mimo"])
@pytest.mark.parametrize(
    ("np", "ndata", "expected"),
    [
        (3, None, [6, 5, 5]),
        (None, 3, [3, 3, 3, 3, 3, 1]),
        (3, 3, [3, 3, 3, 3, 3, 1]),
        (None, None, [1] * 16),
        (4, None, [4] * 4),
        (Triple(1, 3, 1), None, [6, 5, 5]),
        (16, None, [1] * 16),
    ],
)
def test_remainders_are_those_of_llscs_pictures(
    np: int | Triple | None, ndata: int | None, expected: list[int], apptype: mapreduce.AppType
) -> None:
    assert sizes(split(16, np, ndata, "block", apptype, None, "here"), 16) == expected


def test_np_is_not_used_beside_ndata_and_that_is_said() -> None:
    made = split(16, 3, 3, "block", "siso", None, "here")
    assert made.notes == ("--np=3 is ignored because of --ndata: 16 inputs, 3 per process",)
    assert split(16, Triple(2, 8), 3, "block", "siso", None, "here").triple is None


def test_more_processes_than_inputs_are_said_and_not_started() -> None:
    made = split(3, 5, None, "block", "siso", None, "here")
    assert (made.processes, made.notes) == (3, ("--np=5 is more than the number of inputs; 3 processes will run",))
    assert "1 process will run" in split(1, 5, None, "block", "siso", None, "here").notes[0]


@pytest.mark.parametrize(
    ("triple", "inputs", "expected"),
    [
        (Triple(2, 24, 1), 10, Triple(2, 5, 1)),
        (Triple(2, 24, 1), 11, Triple(2, 6, 1)),
        (Triple(4, 2), 3, Triple(3, 1)),
        (Triple(3, 8, 1), 4, Triple(2, 2, 1)),
        (Triple(2, 4, 5), 8, Triple(2, 4, 5)),
        (Triple(2, 4, 5), 800, Triple(2, 4, 5)),
    ],
)
def test_a_triple_has_no_more_processes_than_get_an_input(triple: Triple, inputs: int, expected: Triple) -> None:
    made = split(inputs, triple, None, "block", "siso", 1, "here")
    assert made.triple == expected
    assert made.processes == expected.nodes * expected.per_node
    assert bool(made.notes) == (triple != expected)


def test_where_there_is_room_for_fewer_these_go_on_with_the_rest() -> None:
    made = split(16, 8, None, "block", "siso", 4, "the partition p")
    assert sizes(made, 16) == [4] * 4
    assert made.notes == ("the partition p has room for 4 of 8 processes at once; these process all inputs",)
    made = split(16, None, 3, "block", "mimo", 4, "the partition p")
    assert (made.processes, sizes(made, 16)) == (4, [3, 3, 3, 3, 3, 1])
    made = split(16, None, 3, "block", "siso", 4, "the partition p")
    assert (made.per_process, sizes(made, 16)) == (None, [4] * 4)


def test_who_names_no_number_gets_what_there_is_room_for_without_a_word() -> None:
    made = split(16, None, None, "block", "siso", 4, "the partition p")
    assert (made.processes, made.notes) == (4, ())


def test_a_queue_has_nothing_to_hand_out_where_each_process_starts_once() -> None:
    found = split(16, 4, None, "dynamic", "mimo", None, "here")
    assert (found.distribution, found.tasks(16)) == ("block", 4)
    assert found.notes[0].startswith("--distribution=dynamic ignored, because with --apptype=mimo")
    assert split(16, None, 4, "dynamic", "mimo", None, "here").tasks(16) == 4


@given(
    inputs=st.integers(1, 300),
    np=st.none() | st.integers(1, 400) | st.builds(Triple, st.integers(1, 5), st.integers(1, 50)),
    ndata=st.none() | st.integers(1, 400),
    distribution=st.sampled_from(["block", "cyclic"]),
    apptype=st.sampled_from(["siso", "mimo"]),
    room=st.none() | st.integers(1, 50),
)
def test_every_input_is_somebodys_exactly_once_and_nobody_is_idle(
    inputs: int, np: int | Triple | None, ndata: int | None, distribution: str, apptype: str, room: int | None
) -> None:
    made = split(inputs, np, ndata, distribution, apptype, room, "here")  # type: ignore[arg-type]
    assert sum(sizes(made, inputs)) == inputs
    if made.triple is None:
        assert 1 <= made.processes <= made.tasks(inputs) <= inputs
        assert min(sizes(made, inputs)) >= 1
    if made.groups is not None:
        assert sorted(index for group in made.groups for index in group) == list(range(inputs))


# ---- Names and words ----


@pytest.mark.parametrize(
    ("naming", "below", "expected"),
    [
        (OutputNames(), "a.txt", "a.txt.out"),
        (OutputNames(extension="csv", delimiter="-"), "a.txt", "a.txt-csv"),
        (OutputNames(prefix="new_"), "x/y/a.txt", "x/y/new_a.txt.out"),
        (OutputNames(extension="noext"), "a.txt", "a.txt"),
        (OutputNames(prefix="p", extension="noext", delimiter="-"), "a", "pa"),
    ],
)
def test_an_output_is_named_after_its_input(naming: OutputNames, below: str, expected: str) -> None:
    assert naming.name(below) == expected


def test_files_are_given_with_their_whole_paths() -> None:
    items = mapreduce.items_of_files(["a b", "x/c"], "/in", "/out", OutputNames())
    assert items == (("/in/a b", "/out/a b.out"), ("/in/x/c", "/out/x/c.out"))


def test_a_lists_lines_are_words_and_a_single_one_gets_an_output() -> None:
    lines = ["3", "", "--batch=64  --rate='a b'", "data/x.txt", "  ", "in out"]
    assert mapreduce.items_of_list(lines, "list", "/out", OutputNames()) == (
        ("3", "/out/3.out"),
        ("--batch=64", "--rate=a b"),
        ("data/x.txt", "/out/x.txt.out"),
        ("in", "out"),
    )


def test_a_line_with_half_a_quote_is_refused_with_its_number() -> None:
    with pytest.raises(UsageError, match=r"line 2 of list .*No closing quotation"):
        mapreduce.items_of_list(["a", "it's"], "list", "/out", OutputNames())


def test_a_file_of_pairs_cannot_hold_blanks() -> None:
    assert mapreduce.pairs_text([("/a", "/b"), ("/c", "/d")], [1, 0]) == "/c /d\n/a /b\n"
    with pytest.raises(UsageError, match="use --apptype=siso"):
        mapreduce.pairs_text([("/a b", "/c")], [0])


def test_gpus_have_a_name_and_a_count() -> None:
    assert mapreduce.gpu_text("volta:2") == ("volta", 2)
    assert mapreduce.gpus_of("volta:2", 3) == "volta:6"
    assert mapreduce.gpus_of("1", 3) == "3"


def test_the_reducer_is_called_as_at_llsc() -> None:
    assert mapreduce.reducer_command("/r", "/out", "/x.out", "") == ("/r", "/out", "/x.out")
    assert mapreduce.reducer_command("/r", "/out", "/x.out", "-a 'b c'")[3:] == ("-a", "b c")
    with pytest.raises(UsageError, match="--redargs"):
        mapreduce.reducer_command("/r", "/out", "/x.out", "'")


# ---- The scheduler ----


def kind(nodes: int, cpus: int, *, partition: str = "p", gpus: int = 0, **more: object) -> NodeKind:
    names = tuple(f"{partition}{cpus}n{number}" for number in range(nodes))
    return NodeKind(
        partition=partition, is_default=partition == "p", nodes=names, states=("IDLE",), cpus=cpus, cores=cpus,
        memory_mib=1, gpus=(("volta", gpus),) if gpus else (), **more,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("partition", "wish", "expected"),
    [
        (None, MapSbatchOptions(), 32),
        (None, MapSbatchOptions(slots=3), 9),
        (None, MapSbatchOptions(slots=3, slots_type=3), 32),
        (None, MapSbatchOptions(gpus="volta:1"), 8),
        (None, MapSbatchOptions(gpus="1", slots=5), 5),
        (None, MapSbatchOptions(gpus="h100:1"), None),
        ("small", MapSbatchOptions(), 4),
        ("small,p", MapSbatchOptions(), 32),
        (None, MapSbatchOptions(constraint="big"), 16),
        (None, MapSbatchOptions(constraint="big&x"), 32),
        ("unknown", MapSbatchOptions(), None),
    ],
)
def test_room_is_counted_node_by_node(partition: str | None, wish: MapSbatchOptions, expected: int | None) -> None:
    kinds = [
        kind(1, 16, gpus=4, features="big,x"),
        kind(2, 8, gpus=2),
        kind(9, 2, partition="small", max_nodes_per_job=2),
        replace(kind(5, 8), states=("DOWN",)),
    ]
    assert mapreduce.room(kinds, partition, wish) == expected


def test_options_of_the_two_jobs() -> None:
    wish = MapSbatchOptions(
        partition="p", constraint="g6", reservation="r", gpus="volta:1", slots=4, slots_type=2, exclusive=True,
        share="2", options=("--time=5",),
    )  # fmt: skip
    assert " ".join(mapreduce.map_options(wish, 3, True)) == (
        "--partition=p --constraint=g6 --reservation=r --ntasks=3 --cpus-per-task=4 --gpus-per-task=volta:1 "
        "--exclusive --share-gpu=2 --time=5"
    )
    assert "--share-gpu=2" not in mapreduce.map_options(wish, 3, False)
    found = mapreduce.reduce_options(wish, "7", False)
    assert found[-2:] == ("--dependency=afterok:7", "--kill-on-invalid-dep=yes")
    assert "--cpus-per-task=4" in found
    assert "--time=5" in found
    assert "--dependency=afterany:7" in mapreduce.reduce_options(wish, "7", True)


@pytest.mark.parametrize(("kind", "of_map", "of_reduce"), [(1, 6, 1), (2, 6, 6), (3, 1, 6)])
def test_slots_are_the_maps_or_the_reducers(kind: int, of_map: int, of_reduce: int) -> None:
    wish = MapSbatchOptions(slots=6, slots_type=kind)
    assert (wish.map_slots, wish.reduce_slots) == (of_map, of_reduce)


# ---- The scripts, as a shell runs them ----


def bash(script: str) -> int:
    return subprocess.run(["/bin/bash", "-c", script], check=False, capture_output=True).returncode


@pytest.mark.parametrize(
    ("is_ours", "left"),
    [(True, None), (True, ["results.csv", "specs.jsonl"]), (False, ["input_2x", "input_list", "paper"])],
)
def test_the_end_takes_what_is_ours_and_nothing_else(tmp_path: Path, is_ours: bool, left: list[str] | None) -> None:
    path = tmp_path / "a b;c"
    path.mkdir()
    folder = Folder(str(path), is_ours, False, 2)
    for name in folder.ours():
        (path / name).touch()
    (path / "run.json").write_text(RUN_JSON)
    (path / "logs").unlink()
    (path / "logs").mkdir()
    (path / "logs" / "llmapreduce-reduce.log-5").touch()
    for name in left or ():
        (path / name).touch()
    assert bash("SLURM_JOB_ID=5\n" + mapreduce.reduce_script(("/bin/true",), folder, NONE_SAVED, "1f")) == 0
    assert (sorted(one.name for one in path.iterdir()) if path.exists() else None) == left
    assert [one.name for one in tmp_path.iterdir()] == ([path.name] if left else [])


NONE_SAVED = ("/bin/true",)
RUN_JSON = '{\n  "id": "1f",\n  "x": 1\n}\n'
SAY = ("/bin/true",)
"""The command that names what failed."""


def test_a_map_that_failed_has_its_failures_said_and_its_own_exit_code(tmp_path: Path) -> None:
    say = ("/usr/bin/touch", f"{tmp_path}/said")
    folder = Folder(str(tmp_path), True, True)
    (tmp_path / "launch.sh").write_text("exit 0\n")
    (tmp_path / "run.json").write_text(RUN_JSON)
    assert bash(mapreduce.map_script(folder, False, say, "1f")) == 0
    assert not (tmp_path / "said").exists()
    (tmp_path / "launch.sh").write_text("exit 3\n")
    assert bash(mapreduce.map_script(folder, False, say, "1f")) == 3
    assert (tmp_path / "said").exists()
    assert bash(mapreduce.map_script(folder, False, ("/nowhere/python", "it's"), "1f")) == 3


@pytest.mark.parametrize(
    ("said", "own"),
    [
        ("this job has 2 on each; -g 4 is for nodes with more", "2 on each; --gpuNameCount=4 is for nodes with more"),
        ("there are nodes with gpu:2; write -g with such a number", "; write --gpuNameCount with such a number"),
        ("for example --share-gpu=4,mem=1G, or -g COUNT", "--share-gpu=4,mem=1G, or --gpuNameCount=COUNT"),
        ("write cpu-g 4", "write cpu-g 4"),
    ],
)
def test_llsubs_sentences_in_this_commands_words(said: str, own: str) -> None:
    assert own in mapreduce.in_own_options(said)


def test_nothing_goes_after_a_failure(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path), True, False)
    (tmp_path / "run.json").write_text(RUN_JSON)
    assert bash(mapreduce.reduce_script(("/bin/true",), folder, NONE_SAVED, "1f")) == 0
    has_saved = ("/bin/sh", "-c", "exit 75")
    assert bash(mapreduce.reduce_script(("/bin/sh", "-c", "exit 9"), folder, has_saved, "1f")) == 75
    (tmp_path / "mapped").touch()
    assert bash(mapreduce.reduce_script(("/bin/sh", "-c", "exit 9"), folder, has_saved, "1f")) == 9
    assert (tmp_path / "run.json").exists()
    (tmp_path / "launch.sh").write_text("exit 3\n")
    assert bash(mapreduce.map_script(folder, True, SAY, "1f")) == 3
    assert (tmp_path / "run.json").exists()


@pytest.mark.parametrize(("is_last", "marks"), [(True, {"mapped", "finished"}), (False, {"mapped"})])
def test_a_map_leaves_the_end_to_its_reducer_or_marks_a_folder_that_is_kept(
    tmp_path: Path, is_last: bool, marks: set[str]
) -> None:
    (tmp_path / "launch.sh").write_text("exit 0\n")
    (tmp_path / "run.json").write_text(RUN_JSON)
    assert bash(mapreduce.map_script(Folder(str(tmp_path), True, is_last), is_last, SAY, "1f")) == 0
    assert {one.name for one in tmp_path.iterdir()} == {"launch.sh", "run.json", *marks}


def test_the_scripts_leave_the_folder_of_another_run_alone(tmp_path: Path) -> None:
    """A folder that was renamed, whose name another run has, before the job started and while it ran."""
    folder = Folder(str(tmp_path), True, False)
    for script in (
        mapreduce.map_script(folder, True, SAY, "2e"),
        mapreduce.reduce_script(SAY, folder, NONE_SAVED, "2e"),
    ):
        for name in ("launch.sh", "mapped", "jobs"):
            (tmp_path / name).write_text("touch ran\n")
        (tmp_path / "run.json").write_text(RUN_JSON)
        assert bash(f"cd {tmp_path}; {script}") == 1
        assert sorted(one.name for one in tmp_path.iterdir()) == ["jobs", "launch.sh", "mapped", "run.json"]
    (tmp_path / "mapped").unlink()
    (tmp_path / "launch.sh").write_text(f"sed -i s/1f/2e/ {tmp_path}/run.json\n")
    assert bash(mapreduce.map_script(folder, True, SAY, "1f")) == 1
    assert sorted(one.name for one in tmp_path.iterdir()) == ["jobs", "launch.sh", "run.json"]


def test_names_of_another_run_are_seen() -> None:
    assert mapreduce.taken(["paper", "run.json", "specs.jsonl", "input_3"], True) == ("input_3", "run.json")
    assert mapreduce.taken(["paper", "input_3", "input_x"], False) == ()


def test_a_job_whose_processes_have_gpus_of_their_own_asks_for_them_together() -> None:
    """Slurm 24.11 and 26.05 refuse such a step with --overlap."""
    run = Run(name="m", command=("/m",), cwd="/", triple=None, processes=5, tasks=5)
    script = submission.launch_script(run, "/f", "/python", ["sbatch"], gpus_of_job="volta:5")
    start = script[script.index("\nsrun ") :].partition("/bin/sh")[0]
    assert "--gpus=volta:5" in start
    assert "--overlap" not in start
    assert "--gres" not in start
    assert subprocess.run(["/bin/bash", "-n"], input=script, text=True, check=False).returncode == 0
