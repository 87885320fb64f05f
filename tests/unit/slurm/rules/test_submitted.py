"""How a job was submitted, and the whole line that submits it again."""

from __future__ import annotations

import shlex

import pytest
from msgspec.structs import replace
from seen_nodes import job, node

from slurm_share.core.settings import Settings
from slurm_share.load.rules.advice.advise import advise
from slurm_share.slurm.rules import submitted


def of(line, command="/home/alice/p/job.sh", folder="/home/alice/p", **more):
    found = submitted.of_sbatch(line, command, folder)
    return found and replace(found, **more)


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("sbatch job.sh", 0),
        ("sbatch ./job.sh a b", 0),
        ("/usr/bin/sbatch /home/alice/p/job.sh", 0),
        ("sbatch ../p/job.sh", 0),
        ("sbatch -N1 -n 4 --share-gpu=4 --mem 8G job.sh -x -- y", 6),
        ("sbatch --exclusive --hold -HQ -vn4 job.sh", 4),
        ("sbatch -Hn 4 job.sh", 2),
        ("sbatch --chdir=/elsewhere job.sh", 1),
    ],
)
def test_the_script_is_found_behind_the_options(line, place):
    found = of(line)
    assert found is not None
    assert found.place == place
    assert found.arguments[place].endswith("job.sh")


@pytest.mark.parametrize(
    "line",
    ["", "sbatch", "salloc -n4", "srun ./x", "sbatch --wrap sleep 200", "sbatch -o out %j.log job.sh", "sbatch  job.sh",
     "sbatch other.sh", "sbatch --job-name my job job.sh", "sbatch -J a\tb job.sh"],
)  # fmt: skip
def test_what_is_not_certain_is_not_known(line):
    assert of(line) is None


def test_a_script_in_a_folder_with_a_blank():
    found = of("sbatch -n1 job.sh", "/home/alice/my dir/job.sh", "/home/alice/my dir")
    (line, *_) = advise(job(share="2"), [node(tasks=4, load=(40, 40))], submission=found).resubmit
    assert line == "cd '/home/alice/my dir' && sbatch -n1 --share-gpu=4 job.sh"


@pytest.mark.parametrize(
    ("words", "submission", "lines"),
    [
        ({"share": "2"}, of("sbatch --share-gpu=2 job.sh a b"), ["sbatch --share-gpu=4 job.sh a b"]),
        ({"share": "2"}, of("sbatch --share-gpu 2 -t 30 job.sh"), ["sbatch -t 30 --share-gpu=4 job.sh"]),
        ({"share": "2", "tasks": 4}, of("sbatch -n4 -p gpu job.sh"), ["sbatch -p gpu --share-gpu=4 -n8 job.sh"]),
        (
            {"share": "2", "tasks": 4},
            of("sbatch job.sh", directives=frozenset({"ntasks-per-node"})),
            ["sbatch --share-gpu=4 -n8 --ntasks-per-node=8 job.sh"],
        ),
        (
            {},
            of("sbatch -p gpu --gres=gpu:2 --mem=4G job.sh 'a'", starts_steps=False, is_executable=True),
            ["llsub job.sh '[1,8,5]' '--options=-p gpu --gres=gpu:2' -- ''\"'\"'a'\"'\"''"],
        ),
        ({}, of("sbatch job.sh", starts_steps=False), []),
        ({}, of("sbatch --array=1-4 job.sh", starts_steps=False, is_executable=True), []),
        (
            {"comment": "llsub [1,4,10]"},
            submitted.of_llsub(("./t.sh", "[1,4,10]", "-T", "30", "--share-gpu=mem=4G", "--", "a b"), "/p", ""),
            ["llsub ./t.sh '[1,8,5]' -T 30 -- 'a b'"],
        ),
        (
            {"comment": "llsub [1,4,10]", "share": "2,sm=even"},
            submitted.of_llsub(("[1,4,10]", "--tasks", "-", "--share-gpu", "sm=even"), "/p", "/p/LLSUB.1/tasks"),
            ["llsub '[1,8,5]' --tasks /p/LLSUB.1/tasks --share-gpu=sm=even"],
        ),
        ({"share": "2"}, None, []),
    ],
)  # fmt: skip
def test_the_line_is_whole_or_there_is_none(words, submission, lines):
    advice = advise(job(**words), [node(tasks=4, load=(40, 40))], submission=submission)
    assert advice.next == 8
    assert [line.partition(" && ")[2] for line in advice.resubmit] == lines
    for line in advice.resubmit:
        assert shlex.split(line)[:3] == ["cd", submission.folder, "&&"]
        assert "..." not in line
    assert advice.change, "what to write otherwise is said in any case"


def test_variables_go_before_the_command_where_they_reach_the_job():
    jax = node(tasks=2, load=(10, 10), peak_gib=24.0)
    advice = advise(job(), [jax], submission=of("sbatch -t 5 job.sh"))
    variables = "XLA_PYTHON_CLIENT_PREALLOCATE=false TF_FORCE_GPU_ALLOW_GROWTH=true"
    assert advice.resubmit == (f"cd /home/alice/p && {variables} sbatch -t 5 job.sh",)
    assert advise(job(), [jax], submission=of("sbatch --export=NONE job.sh")).resubmit == ()
    threads = advise(job(), [node(tasks=8, load=(40, 40), cpu=90.0)], submission=of("sbatch job.sh"))
    assert threads.resubmit == ("cd /home/alice/p && OMP_NUM_THREADS=5 sbatch job.sh",)


def test_parts_of_a_gpu_ask_for_one_gpu_and_one_task():
    parts = [job(job_id=n, array=30, element=n, gpus=0, share="4", cpus=1, has_shards=True) for n in range(31, 35)]
    one = node(gpus=1, load=(30,), jobs=tuple((n, 1) for n in range(31, 35)), cores=20)
    line = of("sbatch --array=1-4 --share-gpu=4 --gpus=1 -n 1 job.sh")
    advice = advise(parts[0], [one], Settings(shards_per_gpu=720720), elements=parts[1:], submission=line)
    assert advice.resubmit == ("cd /home/alice/p && sbatch --array=1-4 --share-gpu=10 --gres=gpu:1 -n1 job.sh",)
