"""The submission of llsub as tables: options, arithmetic, refusals, and the script."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_share.core import given_variables, gpu_option, names
from slurm_share.core.errors import UsageError
from slurm_share.core.records import ShareRequest
from slurm_share.slurm.records import NodeKind
from slurm_share.triples.records import Run, Triple
from slurm_share.triples.rules import fitting, submission
from slurm_share.triples.rules.fitting import NodeRequest, Sharing
from slurm_share.triples.rules.submission import Directive, SbatchOptions


def kind(
    *nodes: str, gpus: tuple[tuple[str, int], ...] = (("volta", 2),), cpus: int = 40, state: str = "IDLE",
    partition: str = "gpu", limit: int | None = None,
) -> NodeKind:  # fmt: skip
    """Nodes of a partition that is the default where it is called gpu."""
    return NodeKind(
        partition=partition, is_default=partition == "gpu", nodes=nodes, states=(state,), cpus=cpus, cores=cpus,
        memory_mib=1000, gpus=gpus, max_nodes_per_job=limit,
    )  # fmt: skip


V2 = kind("v1", "v2")
A4 = kind("a1", "a2", "a3", gpus=(("a100", 4),), cpus=64)
BARE = kind("c1", gpus=(), partition="cpu")
TRIPLE = Triple(2, 8, 1)


def run(**changes: object) -> Run:
    values: dict[str, object] = {
        "name": "task.sh", "command": ("/home/x/task.sh",), "cwd": "/home/x", "triple": TRIPLE, "processes": 16,
        "tasks": 16,
    }  # fmt: skip
    return Run(**(values | changes))  # type: ignore[arg-type]


# ---- words ----


@pytest.mark.parametrize(
    ("words", "script", "triple"),
    [
        (["a.sh", "[1,8,5]"], "a.sh", Triple(1, 8, 5)),
        (["a.sh", "[2,8]"], "a.sh", Triple(2, 8)),
        (["[1,8]"], None, Triple(1, 8)),
        (["a.sh"], "a.sh", None),
        ([], None, None),
    ],
)
def test_the_triple_is_the_word_in_brackets_after_the_script(
    words: list[str], script: str | None, triple: Triple | None
) -> None:
    assert submission.split_arguments(words) == (script, triple)


@pytest.mark.parametrize("words", [["a.sh", "b"], ["a.sh", "[1,2]", "b"], ["a.sh", "[0,8]"], ["a.sh", "[1,", "8]"]])
def test_other_words_are_refused(words: list[str]) -> None:
    with pytest.raises(UsageError):
        submission.split_arguments(words)


@pytest.mark.parametrize(
    ("text", "gpus", "slurm"),
    [
        ("2", (("", 2),), "gpu:2"),
        ("volta:1", (("volta", 1),), "gpu:volta:1"),
        ("gpu:volta:1", (("volta", 1),), "gpu:volta:1"),
        ("gpu:2", (("", 2),), "gpu:2"),
        ("volta:1,a100:2", (("volta", 1), ("a100", 2)), "gpu:volta:1,gpu:a100:2"),
        ("1g.10gb:2,3g.40gb:1", (("1g.10gb", 2), ("3g.40gb", 1)), "gpu:1g.10gb:2,gpu:3g.40gb:1"),
        ("gpu:1g.10gb+me:1", (("1g.10gb+me", 1),), "gpu:1g.10gb+me:1"),
    ],
)
def test_gpus_are_written_as_type_and_count(text: str, gpus: tuple[tuple[str, int], ...], slurm: str) -> None:
    assert gpu_option.parse_gpus(text) == gpus
    assert gpu_option.gres(gpus) == slurm


@pytest.mark.parametrize("text", ["", "volta", "volta:x", "-1", "1,", "gpu:", "a b:1", "12345"])
def test_other_gpus_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="TYPE:COUNT"):
        gpu_option.parse_gpus(text)


@pytest.mark.parametrize("text", ["0", "volta:0", "gpu:volta:00", "volta:1,0"])
def test_no_gpu_is_asked_for_by_leaving_the_option_away(text: str) -> None:
    with pytest.raises(UsageError, match="write 1 GPU or more, or leave -g away"):
        gpu_option.parse_gpus(text)


# ---- #SBATCH lines ----


def test_options_in_sbatch_lines_are_read_as_sbatch_does() -> None:
    lines = ("-N 4 -t10", "--partition=gpu --array 1-3 # why", '--comment="two words" --requeue', "-s -p big")
    read = submission.parse_directives(lines)
    assert " ".join(map(str, read)) == (
        "--nodes=4 --time=10 --partition=gpu --array=1-3 --comment='two words' --requeue --oversubscribe "
        "--partition=big"
    )
    assert read[4:6] == (Directive("comment", "two words"), Directive("requeue", None))


@pytest.mark.parametrize("line", ['--comment="open', "gpu", "hetjob", "-Z"])
def test_a_line_that_is_not_made_of_options_is_refused(line: str) -> None:
    with pytest.raises(UsageError, match="#SBATCH"):
        submission.parse_directives((line,))


def test_what_does_not_count_is_said_by_name() -> None:
    directives = submission.parse_directives(("-p gpu -N4 --gres=gpu:1",))
    notes = submission.directive_notes("a.sh", directives, SbatchOptions(partition="x", gpus="2", qos="y", slots=3))
    assert notes == (
        "a.sh has #SBATCH lines, which take precedence: -q, -g ignored",
        "#SBATCH lines of a.sh ignored, the triple sets it: --nodes",
        "-s ignored: the third number of the triple sets the threads",
    )


def test_why_a_line_is_left_out_is_true_of_it() -> None:
    directives = submission.parse_directives(("-D /tmp -o x.log -e x.err -N4 --exclusive -W",))
    logs = "logs are in the run's folder, and llsub -o sets the launchers' log"
    assert [
        note.partition("ignored, ")[2] for note in submission.directive_notes("a.sh", directives, SbatchOptions())
    ] == [
        "tasks start where llsub was called: --chdir",
        f"{logs}: --error, --output",
        "the triple sets it: --exclusive, --nodes",
        "llsub submits the job: --wait",
    ]


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("--array=1-4", "array"), ("-a1-4", "array"), ("-Qa 1-4", "array"), ("--arr=1-4", "array"), ("-N 3", "nodes"),
        ("--nodes=3", "nodes"), ("-n3", "ntasks"), ("--ntasks-per-node=2", "ntasks-per-node"), ("--wrap=ls", "wrap"),
        ("--test-only", "test-only"), ("--help", "help"), ("-h", "help"), ("-V", "version"), ("--parsable", "parsable"),
        ("-W", "wait"), ("-I60 -n 3", "ntasks"),
    ],
)  # fmt: skip
def test_an_option_that_goes_against_the_triple_is_refused_by_name(option: str, name: str) -> None:
    with pytest.raises(UsageError, match=f"--options: --{name} conflicts with a triple: "):
        submission.check_options(["--nice=5", *option.split()])


def test_other_options_are_left_to_sbatch() -> None:
    submission.check_options(
        ["--nice=5", "-w", "n1,n2", "--nodelist=n1", "--mem=4G", "-H", "--no-requeue", "--wait-all-nodes=1", "-I60"]
    )
    for word in ("nonsense", ":", "--", ""):
        with pytest.raises(UsageError, match="is not an option of sbatch"):
            submission.check_options([word])


@pytest.mark.parametrize(
    ("output", "file"),
    [
        (["--output=/x/50%%j/log-%j"], "/x/50%j/log-7"),
        (["--output=/x/log-%j", "-o", "mine"], "/home/x/mine"),
        (["-omine.%A"], "/home/x/mine.7"),
        (["--output=%x.log"], None),
        ([], None),
    ],
)
def test_where_the_output_of_a_job_is(output: list[str], file: str | None) -> None:
    assert submission.output_file(["sbatch", "--parsable", *output, "/x/launch.sh"], 7, "/home/x") == file


# ---- the cluster ----


def test_nodes_are_those_of_the_partition_or_of_the_default_one() -> None:
    kinds = (V2, BARE)
    assert fitting.of_partition(kinds, None) == (V2,)
    assert fitting.of_partition(kinds, "cpu") == (BARE,)
    assert fitting.of_partition(kinds, "cpu,gpu") == kinds
    assert fitting.of_partition((BARE,), None) == ()
    with pytest.raises(UsageError, match="the partitions are cpu, gpu; did you mean gpu"):
        fitting.of_partition(kinds, "gpus")


@pytest.mark.parametrize(
    ("kinds", "triple", "gpus", "words"),
    [
        ((V2,), Triple(3, 8), (), r"3 nodes, and partition gpu has 2; write \[2,8\]"),
        ((V2, kind("v3", state="DOWN")), Triple(4, 8), (), r"4 nodes, and partition gpu has 3; write \[3,8\]"),
        ((V2, A4), Triple(1, 8), (("", 8),), r"no node of partition gpu has gpu:8: .*gpu:a100:4 \(a1,a2,a3\)"),
        ((V2, A4), Triple(1, 8), (("h100", 1),), "no node of partition gpu has gpu:h100:1"),
        ((V2, A4), Triple(4, 8), (("", 4),), "4 nodes with gpu:4, and partition gpu has 3"),
        ((BARE,), Triple(1, 8), (("", 1),), r"there are nodes with no GPU \(c1\)"),
        ((kind("v1", "v2", "v3", limit=2),), Triple(3, 8), (), r"gives a job at most 2; write \[2,8\]"),
    ],
)
def test_more_than_the_cluster_has_is_refused_with_what_it_has(
    kinds: tuple[NodeKind, ...], triple: Triple, gpus: tuple[tuple[str, int], ...], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        fitting.candidates(kinds, triple, gpus)


def test_what_fits_is_returned_and_an_unknown_cluster_refuses_nothing() -> None:
    assert fitting.candidates((V2, A4), Triple(2, 8), (("", 4),)) == (A4,)
    assert fitting.candidates((V2, A4), Triple(5, 8), ()) == (V2, A4)
    assert fitting.candidates((), Triple(500, 8), (("", 400),)) == ()
    same_node_twice = (V2, kind("v1", "v2", partition="other"))
    with pytest.raises(UsageError, match="gpu,other has 2"):
        fitting.candidates(same_node_twice, Triple(3, 1), ())


def test_a_job_waits_for_nodes_that_are_down() -> None:
    down = kind("v3", state="DOWN")
    assert fitting.candidates((V2, down), Triple(2, 8), ()) == (V2,)
    assert fitting.waiting_notes(Triple(2, 8), (V2,)) == ()
    assert fitting.candidates((V2, down), Triple(3, 8), ()) == (V2, down)
    (note,) = fitting.waiting_notes(Triple(3, 8), (V2, down))
    assert note.startswith("1 of 3 nodes is down or drained: this job waits for it")
    assert fitting.candidates((down,), Triple(1, 8), ()) == (down,)
    assert fitting.waiting_notes(Triple(1, 8), (down,))[0].startswith("1 of 1 node is")
    assert fitting.waiting_notes(Triple(9, 8), ()) == ()


def test_llscs_warnings_are_given_for_the_smallest_and_the_largest_node() -> None:
    notes = fitting.core_notes(Triple(1, 50, 1), (V2, A4))
    assert any("Oversubscribing" in note and "40 cores" in note for note in notes)
    assert any("Underutilizing" in note and "64 cores" in note for note in notes)
    assert fitting.core_notes(Triple(1, 8, 5), (V2,)) == ()


# ---- the share ----


@pytest.mark.parametrize(
    ("per_node", "written", "gpus", "plugin", "expected"),
    [
        (8, None, 2, True, ShareRequest(4)),
        (5, None, 2, True, ShareRequest(3)),
        (1, None, 4, True, ShareRequest(1)),
        (120, None, 2, True, ShareRequest(60)),
        (121, None, 2, True, None),
        (8, None, 0, True, None),
        (8, None, None, True, None),
        (8, None, 2, False, None),
        (8, "off", 2, True, None),
        (8, "4,mem=8G", 2, True, ShareRequest(4, 8192)),
        (8, "6", 2, True, ShareRequest(6)),
        (8, "mem=8G", 2, True, ShareRequest(4, 8192)),
        (8, "mem=8G,sm=even", 2, False, ShareRequest(4, 8192, "even")),
        (8, "4,mem=8G", None, False, ShareRequest(4, 8192)),
        (8, "1", 0, True, ShareRequest(1)),
    ],
)
def test_the_number_of_a_share_is_the_processes_of_the_fullest_gpu(
    per_node: int, written: str | None, gpus: int | None, plugin: bool, expected: ShareRequest | None
) -> None:
    assert fitting.sharing(Triple(1, per_node), written, gpus, plugin=plugin).request == expected


def test_why_there_is_no_share_is_said() -> None:
    too_many = fitting.sharing(Triple(1, 121), None, 2, plugin=True)
    assert "61 processes on a GPU, but a share has at most 60" in too_many.notes[0]
    assert fitting.sharing(Triple(1, 8), None, None, plugin=True).notes
    assert fitting.sharing(Triple(1, 8), None, 0, plugin=True) == Sharing()


@pytest.mark.parametrize(
    ("written", "gpus", "words"),
    [
        ("2", 2, r"has room for 4 processes, but \[1,8\] has 8 on each node; write --share-gpu=4"),
        ("1", 1, r"on 1 GPU has room for 1"),
        ("mem=8G", None, "write the number too"),
        ("mem=8G", 0, "write the number too"),
        ("[1,8,1]", 2, "--share-gpu"),
        ("0", 2, "--share-gpu"),
        ("mem=0", 2, "mem="),
        ("mem=0", None, "mem="),
        ("mem=8", 2, "--share-gpu=mem=8 is not in the valid form"),
        ("4,mem=8", 2, "--share-gpu=4,mem=8 is not in the valid form"),
        ("nonsense", 2, "nonsense"),
        ("4,mps=maybe", 2, "not in the valid form N"),
    ],
)
def test_a_share_without_room_or_form_is_refused(written: str, gpus: int | None, words: str) -> None:
    with pytest.raises(UsageError, match=words.replace("[1,8,1]", r"\[1,8,1\]")):
        fitting.sharing(Triple(1, 8), written, gpus, plugin=True)


@pytest.mark.parametrize(
    ("triple", "gpus", "kinds", "expected"),
    [
        (Triple(1, 8), (), (V2,), NodeRequest()),
        (Triple(1, 8), (), (V2, A4), NodeRequest()),  # one node: whatever it has
        (Triple(1, 8), (("", 2),), (V2,), NodeRequest((("", 2),))),  # all it has
        (Triple(1, 8), (("", 1),), (V2,), NodeRequest((("", 1),), 20)),
        (Triple(1, 8), (("a100", 3),), (A4,), NodeRequest((("a100", 3),), 48)),
        (Triple(1, 8), (("", 2),), (V2, A4), NodeRequest((("", 2),), 32)),  # the fewest CPUs that go with two GPUs
        (
            Triple(1, 8),
            (("", 1),),
            (kind("s", cpus=2),),
            NodeRequest((("", 1),)),
        ),  # one task and one GPU is a part of it
        (Triple(1, 8), (("", 1),), (), NodeRequest((("", 1),))),
    ],
)
def test_a_share_on_some_gpus_gets_cpus_in_proportion(
    triple: Triple, gpus: tuple[tuple[str, int], ...], kinds: tuple[NodeKind, ...], expected: NodeRequest
) -> None:
    assert fitting.grant(triple, gpus, kinds, ShareRequest(4)) == expected
    assert fitting.grant(triple, gpus, kinds, None) == NodeRequest(gpus)  # without a share, nodes are whole


def test_several_unlike_nodes_have_as_many_gpus_as_the_one_with_fewest() -> None:
    """One srun requests the same number of GPUs on every node."""
    found = fitting.grant(TRIPLE, (), (V2, A4), ShareRequest(4))
    assert (found.gpus, found.tasks) == ((("", 2),), 32)
    assert found.notes == ("nodes have 2 to 4 GPUs: this job uses 2 on each; -g 4 is for nodes with more",)
    two_of_one_kind = fitting.grant(TRIPLE, (), (V2, kind("a1", gpus=(("a100", 4),))), ShareRequest(4))
    assert two_of_one_kind.notes == ("nodes have 2 to 4 GPUs: this job uses 2 on each",)


# ---- Nodes that are chosen by name ----


@pytest.mark.parametrize(
    ("nodes", "options", "left"),
    [
        (1, {}, (V2, A4)),
        (1, {"nodelist": "a1"}, (replace(A4, nodes=("a1",)),)),
        (2, {"nodelist": "a[1-2]"}, (replace(A4, nodes=("a1", "a2")),)),
        (2, {"nodelist": "a1"}, (V2, A4)),  # and which is the other
        (1, {"nodelist": "a1,v1"}, (replace(V2, nodes=("v1",)), replace(A4, nodes=("a1",)))),
        (1, {"exclude": "v[1-2]"}, (A4,)),
        (1, {"exclude": "v[1-2],a2"}, (replace(A4, nodes=("a1", "a3")),)),
        (1, {"exclude": "v[1-2],a[1-3]"}, (V2, A4)),  # sbatch says so
        (1, {"nodelist": "z9"}, (V2, A4)),
        (1, {"nodelist": "./hosts"}, (V2, A4)),
        (1, {"nodelist": "a["}, (V2, A4)),
        (1, {"nodelist": None}, (V2, A4)),
        (1, {"constraint": "big"}, (A4,)),
        (1, {"constraint": "big&v100"}, (V2, A4)),
        (1, {"constraint": "other"}, (V2, A4)),
    ],
)
def test_nodes_that_options_choose(nodes: int, options: dict[str, str | None], left: tuple[NodeKind, ...]) -> None:
    kinds = (replace(V2, features="v100"), replace(A4, features="a100,big"))
    found = fitting.chosen(kinds, Triple(nodes, 8), options)
    assert tuple(replace(kind, features="") for kind in found) == left


def test_options_of_the_last_word_count() -> None:
    lines = submission.parse_directives(["-w n1", "-C old", "-x n7"])
    wishes = SbatchOptions(constraint="own", qos="low", options=("-wn2", "--constraint=new"))
    assert submission.said(lines, wishes) == {"nodelist": "n2", "constraint": "new", "exclude": "n7", "qos": "low"}


def test_a_number_of_the_users_is_not_computed() -> None:
    triple = Triple(1, 8)
    assert fitting.sharing(triple, None, 2, plugin=True).is_computed
    assert not fitting.sharing(triple, "4", 2, plugin=True).is_computed
    assert fitting.sharing(triple, "mem=8G", 2, plugin=True).is_computed


# ---- sbatch ----


def words(
    wishes: SbatchOptions, grant: NodeRequest, *lines: str, plugin: bool = True, share: ShareRequest | None = None
) -> str:
    directives = submission.parse_directives(lines)
    argv = submission.triple_argv(run(share=share), "/home/x/LLSUB.1", wishes, directives, grant, plugin=plugin)
    return " ".join(argv)


ENDS = " --output=/home/x/LLSUB.1/llsub-triple-mode-launch.log-%j /home/x/LLSUB.1/launch.sh"


def test_a_triple_is_one_task_on_each_of_its_whole_nodes() -> None:
    assert words(SbatchOptions(), NodeRequest()) == (
        "sbatch --parsable --nodes=2 --ntasks=2 --ntasks-per-node=1 --exclusive --mem=0 --job-name=task.sh "
        "--comment=llsub [2,8,1]" + ENDS
    )
    assert "--share-gpu" not in words(SbatchOptions(), NodeRequest(), plugin=False, share=ShareRequest(4))
    argv = submission.triple_argv(run(), "/x/50%j/LLSUB.1", SbatchOptions(), (), NodeRequest(), plugin=False)
    assert "--output=/x/50%%j/LLSUB.1/llsub-triple-mode-launch.log-%j" in argv


def test_a_share_on_some_gpus_is_not_exclusive() -> None:
    found = words(SbatchOptions(partition="p", time="5"), NodeRequest((("volta", 1),), 20), share=ShareRequest(8, 1024))
    assert found == (
        "sbatch --parsable --nodes=2 --ntasks-per-node=20 --gres=gpu:volta:1 --share-gpu=8,mem=1024M "
        "--job-name=task.sh --comment=llsub [2,8,1] --partition=p --time=5" + ENDS
    )


def test_the_scripts_lines_win_over_llsubs_options_but_not_over_the_triple() -> None:
    wishes = SbatchOptions(partition="p", time="5", job_name="j", options=("--nice=5",))
    lines = ("-p other -t 7 -J own --mem=4G -N9 -n99 --gres=gpu:1 --share-gpu=8",)
    found = words(wishes, NodeRequest((("", 1),)), *lines, share=ShareRequest(8))
    assert "--nodes=2 --ntasks=2" in found
    assert "--nice=5" in found
    for word in ("--partition", "--time", "--job-name", "--mem", "--gres", "--share-gpu"):
        assert word not in found


def test_a_resumed_run_has_its_command_again_with_what_is_new() -> None:
    first = ["sbatch", "--partition=a", "--nodes=2", "x/launch.sh"]
    assert submission.again(first, SbatchOptions(), "/a") == first
    fresh = submission.again(first, SbatchOptions(partition="b", time="9", options=("-x", "n1")), "/a")
    assert fresh == ["sbatch", "--nodes=2", "--partition=b", "--time=9", "-x", "n1", "x/launch.sh"]


def test_a_run_is_recorded_without_what_its_task_was_given_and_resumed_here_with_it() -> None:
    given = {"CUDA_VISIBLE_DEVICES": "GPU-1", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}
    record = {names.ENV_GIVEN: given_variables.render(7, given)}
    task = {**given, **record, "HOME": "/h", "SLURM_JOB_ID": "7"}
    recorded = submission.recorded_environment(task)
    assert recorded == {"HOME": "/h"}
    other = {"CUDA_VISIBLE_DEVICES": "GPU-2", "TMPDIR": "/t", "SLURM_GRES": "gpu:2", "OWN": "1"}
    now = {
        **other,
        names.ENV_GIVEN: given_variables.render(9, {"CUDA_VISIBLE_DEVICES": "GPU-2", "SLURM_GRES": "gpu:2"}),
    }
    assert submission.resumed_environment(recorded, now, here=False) == {"HOME": "/h", "TMPDIR": "/t"}
    here = submission.resumed_environment(recorded, now, here=True)
    assert set(here) == {"HOME", "TMPDIR", "SLURM_GRES", "CUDA_VISIBLE_DEVICES", names.ENV_GIVEN}
    assert here["CUDA_VISIBLE_DEVICES"] == "GPU-2"


def test_a_relative_output_file_of_a_resumed_run_is_where_it_was() -> None:
    """Slurm takes it from the folder of the shell that submits."""
    first = ["sbatch", "--output=mine.log", "x/launch.sh"]
    assert submission.again(first, SbatchOptions(), "/a") == [*first[:-1], "--chdir=/a", first[-1]]
    for chosen in (("-D", "/b"), ("--output=/b/log",)):
        assert "--chdir=/a" not in submission.again(first, SbatchOptions(options=chosen), "/a")


def test_an_ordinary_job_is_submitted_as_llsc_does() -> None:
    wishes = SbatchOptions(slots=4, gpus="volta:1", partition="p", time="5", job_name="j")
    argv, notes = submission.ordinary("/x/a.sh", "a.sh", (), wishes)
    assert " ".join(argv) == (
        "sbatch --parsable --output=a.sh.log-%j --partition=p --time=5 --job-name=j --cpus-per-task=4 "
        "--gres=gpu:volta:1 /x/a.sh"
    )
    assert notes == ()
    argv, notes = submission.ordinary("/x/a.sh", "a.sh", ("-n 4",), wishes)
    assert argv == ["sbatch", "--parsable", "/x/a.sh"]
    assert notes == ("a.sh has #SBATCH lines, which take precedence: -q, -T, -J, -s, -g ignored",)
    assert submission.ordinary("/x/a.sh", "a.sh", ("-n 4",), SbatchOptions())[1] == ()


# ---- the script ----


@pytest.mark.parametrize("gpus", ["", "gpu:volta:1"])
def test_the_script_is_bash_whatever_the_names_are(gpus: str) -> None:
    odd = run(command=("/x/it's\n$(touch y)", "a b"), name="it's")
    text = submission.launch_script(odd, "/x/a b'c/LLSUB.1", "/opt/py thon", ["sbatch", "x\ny"], ["--time=5"], gpus)
    checked = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert text.startswith("#!/bin/bash\n#SBATCH --time=5\n# llsub: ")
    assert all(line.startswith("#") for line in text.split("\n\n")[0].splitlines())
    assert ("gres=gpu:volta:1" in text) == bool(gpus)
    alone = run(triple=Triple(1, 1), processes=1, tasks=2)
    assert "# triple [1,1]: 1 process, 2 tasks.\n" in submission.launch_script(alone, "/x", "/p", ["sbatch"])


NODES = """\
JobId=1 JobName=x
   JOB_GRES=gpu:volta:6,shard:4
     Nodes=n1 CPU_IDs=0-15 Mem=16000 GRES=gpu:volta:3(IDX:0,2-3),gpu:a100:1(IDX:4),shard:volta:9(1/2)
     Nodes=n[2-3] CPU_IDs=0-7 Mem=8000 GRES={last}
"""


@pytest.mark.parametrize(
    ("last", "gpus", "said"),
    [
        ("gpu:volta:2(IDX:0-1)", "gpu:2", "The nodes have 2 to 4 GPUs: 2 used on each.\n"),
        ("gpu:4(IDX:0-3)", "gpu:4", ""),
        ("", "none", "The nodes have 0 to 4 GPUs: 0 used on each.\n"),
    ],
)
def test_the_step_gets_all_gpus_of_the_node_that_has_fewest(
    last: str, gpus: str, said: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("bin")
    (folder / "answer").write_text(NODES.format(last=last))
    for name, line in (("scontrol", f"cat {folder}/answer"), ("srun", 'echo "$@"; exit 3'), ("python", "exit 7")):
        (folder / name).write_text(f"#!/bin/bash\n{line}\n")
        (folder / name).chmod(0o755)
    text = submission.launch_script(run(), "/x/LLSUB.1", f"{folder}/python", ["sbatch"])
    env = {
        "PATH": f"{folder}:/usr/bin:/bin", "SLURM_NNODES": "3", "SLURM_GPUS_ON_NODE": "4", "SLURM_JOB_ID": "1",
        "SRUN_CPUS_PER_TASK": "2",
    }  # fmt: skip
    done = subprocess.run(["bash", "-c", text], env=env, text=True, capture_output=True, check=False)
    assert done.returncode == 7  # the summary's
    assert f"--gres={gpus} " in done.stdout
    assert "--nodes=3 --ntasks=3 --ntasks-per-node=1" in done.stdout
    assert done.stderr == said


SRUN = """#!/usr/bin/python3 -S
import os, signal, sys, time
def say(number, frame):
    os.write(1, f"srun got {signal.Signals(number).name.removeprefix('SIG')}\\n".encode())
for number in (signal.SIGUSR1, signal.SIGUSR2):
    if signal.getsignal(number) is not signal.SIG_IGN:
        sys.exit("it would end here of a signal that comes early")
    signal.signal(number, say)
open("up", "w").close()
while not os.path.exists("over"):
    time.sleep(0.05)
sys.exit(5)
"""
"""Takes signals that it has inherited as ignored, as srun does; a shell would not. The handler does not print(): a
second signal can interrupt it, and Python's buffers refuse to be entered twice."""


def sleeps(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGUSR1, "srun got USR1\n"),
        (signal.SIGUSR2, "srun got USR2\n"),
        (signal.SIGTERM, "This job was told to end.\n"),
    ],
)
def test_the_script_outlives_its_signals_and_passes_on_those_of_the_tasks(
    tmp_path: Path, number: signal.Signals, said: str
) -> None:
    for name, text in (("srun", SRUN), ("python", "#!/bin/bash\nexit 0\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    text = submission.launch_script(run(), "/x/LLSUB.1", f"{tmp_path}/python", ["sbatch"])
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_NNODES": "1"}
    with subprocess.Popen(["bash", "-c", text], env=env, stdout=subprocess.PIPE, cwd=tmp_path) as script:
        heard = ""

        def hear(words: str) -> None:
            nonlocal heard
            assert script.stdout is not None
            while len(heard) < len(words) and select.select([script.stdout], [], [], 120)[0]:
                if not (data := os.read(script.stdout.fileno(), 4096)):
                    break
                heard += data.decode()
            assert heard == words

        try:
            until = time.monotonic() + 120
            # Up, and bash waits for it: before that it does not know to whom it passes something on.
            while not ((tmp_path / "up").exists() and sleeps(script.pid)) and time.monotonic() < until:
                time.sleep(0.02)
            for count in (1, 2):
                script.send_signal(number)
                hear(said * count)
        finally:
            (tmp_path / "over").touch()
        hear(said * 2 + "All tasks are done; srun ended with 5.\n")
        assert script.wait(120) == 0
