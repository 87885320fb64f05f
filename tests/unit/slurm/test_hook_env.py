"""A hook's environment is a letter from a stranger."""

from __future__ import annotations

import pytest

from slurm_share.core.errors import HookEnvError
from slurm_share.core.records import ShareRequest
from slurm_share.share import option
from slurm_share.slurm import hook_env

GOOD = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_UID": "2001",
    "SLURM_JOB_GID": "2001",
    "SLURMD_NODENAME": "n2",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "SLURM_JOB_GPUS": "0,1",
    "SPANK_SHARE_GPU": "4,mem=8192M",
}


def read(environ):
    return hook_env.read(environ, option.parse)


def test_a_shared_job_is_read():
    job = read(GOOD)
    assert (job.job_id, job.uid, job.gid, job.node) == (4711, 2001, 2001, "n2")
    assert job.granted == ("0", "1")
    assert job.share == ShareRequest(4, mem_mib=8192)
    assert (job.user, job.partition, job.restart_count) == (None, None, None)


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("", ()),
        ("NoDevFiles", ()),
        ("11", ("11",)),
        (",".join(map(str, range(16))), tuple(map(str, range(16)))),
        ("GPU-51310000-0000-4000-8000-000000000001", ("GPU-51310000-0000-4000-8000-000000000001",)),
        ("MIG-GPU-5131/7/0", ("MIG-GPU-5131/7/0",)),
    ],
)
def test_gpus_come_as_numbers_or_uuids_and_more_than_ten(text, devices):
    """Indices until 25.05, UUIDs with AutoDetect since 25.11."""
    assert read({**GOOD, "CUDA_VISIBLE_DEVICES": text}).granted == devices


def test_the_slurm_list_stands_in_where_cuda_has_none():
    """A site may keep Slurm from setting CUDA_VISIBLE_DEVICES."""
    environ = {key: value for key, value in GOOD.items() if key != "CUDA_VISIBLE_DEVICES"}
    assert read({**environ, "SLURM_JOB_GPUS": "1"}).granted == ("1",)


@pytest.mark.parametrize(
    "value", ["4;rm -rf /", "4\nSLURM_JOB_ID=1", "0", "-1", "4" * 10_240, "$(id)", "../../etc", "4,mem=1e9G", "\x1b[2J"]
)
def test_a_hostile_share_is_no_share_and_is_described_in_one_safe_line(value):
    job = read({**GOOD, "SPANK_SHARE_GPU": value})
    assert job.share is None
    assert job.share_problem is not None
    assert job.share_problem.isprintable()
    assert len(job.share_problem) < 300


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SLURM_JOB_ID", "../1"),
        ("SLURM_JOB_ID", "99999999999"),
        ("SLURM_JOB_ID", None),
        ("SLURM_JOB_UID", "-1"),
        ("SLURMD_NODENAME", "n2/../.."),
        ("CUDA_VISIBLE_DEVICES", "0,1;x"),
        ("CUDA_VISIBLE_DEVICES", "0,,1"),
    ],
)
def test_what_slurmd_would_not_have_written_is_an_error(variable, value):
    """Slurm's own variables cannot be set by a user; where they are odd, this is not slurmd calling."""
    environ = {key: text for key, text in {**GOOD, variable: value}.items() if text is not None}
    with pytest.raises(HookEnvError, match=variable):
        read(environ)


def test_words_for_people_are_dropped_when_they_are_odd():
    job = read({**GOOD, "SLURM_JOB_USER": "alice", "SLURM_JOB_PARTITION": "x\ny"})
    assert job.user == "alice"
    assert job.partition is None


@pytest.mark.parametrize(
    ("variable", "field", "values"),
    [
        ("SLURM_JOB_NTASKS", "tasks", {"1": 1, "0": 0, "64": 64, "4294967294": 4294967294}),
        ("SLURM_JOB_NUM_NODES", "nodes", {"1": 1, "2": 2, "0001": 1}),
    ],
)
def test_how_many_tasks_and_nodes_is_a_number_or_not_told(variable, field, values):
    assert getattr(read(GOOD), field) is None
    for text, number in values.items():
        assert getattr(read({**GOOD, variable: text}), field) == number


@pytest.mark.parametrize("variable", ["SLURM_JOB_NTASKS", "SLURM_JOB_NUM_NODES"])
@pytest.mark.parametrize(
    "value", ["", " 1", "1\n", "-1", "+1", "1.0", "0x1", "1e3", "one", "\u0661", "4294967296", "9" * 5000, "1;id"]
)
def test_a_number_that_slurmd_would_not_have_written_is_an_error(variable, value):
    with pytest.raises(HookEnvError, match=variable):
        read({**GOOD, variable: value})


@pytest.mark.parametrize(
    ("value", "direct"),
    [("1", True), *((value, False) for value in (None, "0", "", "yes", "1\n", "11", " 1"))],
)
def test_srun_alone_says_so_with_one_word(value, direct):
    environ = GOOD if value is None else {**GOOD, "SPANK_SHARE_GPU_SRUN": value}
    assert read(environ).direct is direct


@pytest.mark.parametrize(("value", "is_batch"), [("/dev/null", True), ("", True), (None, False)])
def test_only_a_batch_job_has_an_input_file(value, is_batch):
    assert read(GOOD if value is None else {**GOOD, "SLURM_JOB_STDIN": value}).is_batch is is_batch


@pytest.mark.parametrize(
    ("variables", "exclusive"),
    [
        ({}, None),
        ({"SLURM_JOB_EXCLUSIVE": "NODE"}, "node"),
        ({"SLURM_JOB_EXCLUSIVE": "USER"}, "user"),
        ({"SLURM_JOB_EXCLUSIVE": "NO", "SLURM_JOB_OVERSUBSCRIBE": "USER"}, None),
        ({"SLURM_JOB_OVERSUBSCRIBE": "USER"}, "user"),
        ({"SLURM_JOB_OVERSUBSCRIBE": "NO"}, None),
        ({"SLURM_JOB_OVERSUBSCRIBE": "NODE"}, None),
        ({"SLURM_JOB_OVERSUBSCRIBE": "user"}, None),
    ],
)
def test_whose_nodes_they_are_is_told_in_two_ways(variables, exclusive):
    """By its own variable where Slurm has it; before that USER, while NO proves nothing."""
    assert read({**GOOD, **variables}).exclusive == exclusive
