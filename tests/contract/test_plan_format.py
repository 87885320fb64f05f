"""A plan that Python writes is the plan that C reads; a damaged or foreign one is refused and named."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_share.core import names
from slurm_share.core.records import ShareRequest
from slurm_share.node.records import Gpu
from slurm_share.share import option
from slurm_share.share import plan as plan_text
from slurm_share.share.backends import registry
from slurm_share.share.records import Assignment, Plan, Refusal, Slot, UnsharedReason

READ, ABSENT, BAD = 0, 1, 2
UID = os.getuid()

GPUS = (Gpu("GPU-0", 1, 5, "NVIDIA H100 80GB", 81920), Gpu("GPU-1", 0, None, "", None, simulated=True))
OWN = (Assignment("BACKEND", "x=y"), Assignment("FRACTION", "0.4", True))
PLAN = Plan(
    job_id=4711,
    uid=UID,
    node="n2",
    share=ShareRequest(2, mem_mib=8192, sm=50),
    gpus=GPUS,
    cores=((0, 8), (1, 9), (2, 10), (3, 11)),
    notes=("shared without MPS: no nvidia-cuda-mps-control on n2", "second"),
    lost=("3", "GPU-7"),
    slots=(
        Slot(0, GPUS[0], 0, 8192, "0.100", 12.5, "/run/p0", "mps", on_gpu=3),
        Slot(1, GPUS[1], 2, 8192, None, 12.5, None, "other", variables=OWN),
        Slot(2, GPUS[0], 1, None, None, None, "/run/p0", "mps"),
        Slot(3, GPUS[1], 3, 20480, backend="third", variables=OWN[1:], memory_least_mib=8192, is_cap_of_driver=True),
    ),
)
UNSHARED = UnsharedReason(4711, UID, "n2", "the controller has sharing switched off")
REFUSED = Refusal(4711, UID, "n2", "job 4711 cannot share: node n2 belongs to another user; wait")


@pytest.fixture(scope="module")
def program(c_program):
    return c_program("plan_verdict")


def read(program: Path, file: Path, job: int = 4711, uid: int = UID, node: str = "n2") -> tuple[int, str]:
    """Return the reader's exit code and what it printed."""
    result = subprocess.run([program, file, str(job), str(uid), node], capture_output=True, text=True, timeout=120)
    assert result.stderr == ""
    return result.returncode, result.stdout


def written(folder: Path, plan: plan_text.Contents | str | bytes) -> Path:
    """Write a plan file as the Prolog does, or other bytes in its place."""
    text = plan if isinstance(plan, str | bytes) else plan_text.render(plan)
    file = folder / "plan"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    file.chmod(0o400)
    return file


def as_c_prints(plan: plan_text.Contents) -> str:
    """Return what plan_verdict prints for a plan that it has read correctly."""
    lines = [f"job {plan.job_id} uid {plan.uid} node {plan.node}"]
    if isinstance(plan, Refusal):
        return "\n".join([*lines, f"refused {plan.sentence}", ""])
    if isinstance(plan, UnsharedReason):
        return "\n".join([*lines, f"unshared {plan.why}", ""])
    lines.append(f"share {option.render(plan.share)} gpus {len(plan.gpus)} slots {len(plan.slots)}")
    lines += [f"core {k} cpu {cpu}" for k, core in enumerate(plan.cores) for cpu in core]
    lines += [f"lost {len(plan.lost)} {','.join(plan.lost)}"] if plan.lost else []
    lines += [f"note {note}" for note in plan.notes]
    for slot in plan.slots:
        minor = slot.gpu.index if slot.gpu.minor is None else slot.gpu.minor
        if minor > 255 or (slot.gpu.minor is None and slot.gpu.uuid.startswith("MIG-")):
            minor = -1
        where = f"on {slot.gpu.uuid} minor {minor} MPS {slot.mps_directory or 'none'}"
        lines.append(f"slot {slot.number} part {slot.part} of {len(plan.slots)} {where}")
        if slot.memory_cap_mib or slot.memory_least_mib:
            by = " by the driver" if slot.is_cap_of_driver else ""
            lines.append(f"memory {slot.memory_cap_mib} least {slot.memory_least_mib or 0}{by}")
        variables = registry.slot_environment(plan, slot)
        lines += [f"{'default' if a.unless_set else 'set'} {a.name}={a.value}" for a in variables]
    return "\n".join([*lines, ""])


@pytest.mark.parametrize("plan", [PLAN, REFUSED, UNSHARED], ids=["carried out", "refused", "unshared"])
def test_c_reads_what_python_writes(program, tmp_path, plan):
    assert read(program, written(tmp_path, plan)) == (READ, as_c_prints(plan))


_words = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=30)
_sentences = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=80)
_names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)
_assignments = st.lists(st.builds(Assignment, _names, _words, st.booleans()), max_size=6).map(tuple)


_gpus = st.builds(
    Gpu,
    _words.filter(bool),
    st.integers(0, 300),
    st.none() | st.integers(0, 300),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40).map(lambda name: " ".join(name.split())),
    st.none() | st.integers(0, 10**6),
    simulated=st.booleans(),
    is_host_memory=st.booleans(),
)


@st.composite
def plans(draw):
    gpus = tuple(draw(st.lists(_gpus, min_size=1, max_size=4, unique_by=lambda gpu: gpu.uuid)))
    per_gpu = draw(st.integers(1, 6))
    count = len(gpus) * per_gpu
    parts = draw(st.permutations(range(count)))
    caps = [draw(st.none() | st.integers(1, 10**6)) for _ in range(count)]
    core = st.lists(st.integers(0, 8191), min_size=1, max_size=4).map(tuple)
    slots = tuple(
        Slot(
            number=number,
            gpu=gpus[number % len(gpus)],
            part=parts[number],
            memory_cap_mib=caps[number],
            memory_ratio=draw(st.none() | st.integers(0, 1000).map(lambda thousandths: f"{thousandths / 1000:.3f}")),
            sm_percent=draw(st.none() | st.integers(1, 1000).map(lambda tenths: tenths / 10)),
            mps_directory=draw(st.none() | _words.map(lambda word: f"/{word}")),
            backend=draw(_words.filter(bool)),
            on_gpu=draw(st.none() | st.integers(0, 59)),
            variables=draw(_assignments),
            memory_least_mib=None if caps[number] is None else draw(st.none() | st.integers(0, caps[number])),
            partition=draw(st.none() | _words.filter(bool)),
            sm_count=draw(st.none() | st.integers(0, 200)),
            is_cap_of_driver=caps[number] is not None and draw(st.booleans()),
        )
        for number in range(count)
    )
    return replace(
        PLAN,
        share=ShareRequest(per_gpu),
        gpus=gpus,
        cores=tuple(draw(st.lists(core, min_size=1, max_size=20))),
        notes=tuple(draw(st.lists(_sentences, max_size=3))),
        slots=slots,
    )


@given(plan=plans())
def test_both_readers_read_any_plan(program, tmp_path_factory, plan):
    """Values with every printable character, equals signs and question marks included."""
    assert plan_text.parse(plan_text.render(plan)) == plan
    assert read(program, written(tmp_path_factory.mktemp("any"), plan)) == (READ, as_c_prints(plan))


def test_the_largest_plan_is_read(program, tmp_path):
    gpus = tuple(replace(GPUS[0], uuid=f"GPU-{k}") for k in range(16))
    own = (Assignment("A", "x" * 200), Assignment("B", "y" * 200))
    slots = tuple(
        Slot(n, gpus[n % 16], n, 8192, "0.100", 1.6, "/run/" + "x" * 80, "mps", variables=own) for n in range(960)
    )
    plan = replace(PLAN, share=ShareRequest(60), gpus=gpus, slots=slots, cores=tuple((k, k + 384) for k in range(384)))
    assert read(program, written(tmp_path, plan)) == (READ, as_c_prints(plan))


TEXT = plan_text.render(PLAN)
DAMAGE = [
    ("NUL", TEXT.replace("second", "sec\0nd").encode(), "line 11: a byte"),
    ("a long file", b"\n" * (names.PLAN_MAX_BYTES + 1), "longer than"),
    ("another version", TEXT.replace(names.PLAN_MAGIC, "slurm-share-plan 4").encode(), "line 1: not a plan"),
]


@pytest.mark.parametrize(("damage", "says"), [row[1:] for row in DAMAGE], ids=[row[0] for row in DAMAGE])
def test_a_damaged_plan_is_refused(program, tmp_path, damage, says):
    code, output = read(program, written(tmp_path, damage))
    assert code == BAD
    assert says in output


@pytest.mark.parametrize(
    ("whose", "says"),
    [
        ({"job": 4712}, "line 2: this is the plan of job 4711, not of job 4712"),
        ({"uid": UID + 1}, f"line 3: this is the plan of user id {UID}, not of {UID + 1}"),
        ({"node": "n3"}, "line 4: this is a plan of node n2, not of n3"),
    ],
)
def test_the_plan_of_another_is_refused(program, tmp_path, whose, says):
    if UID != 0 and "uid" in whose:
        says = f"belongs to user id {UID}"  # the file's owner is looked at first
    code, output = read(program, written(tmp_path, PLAN), **whose)
    assert code == BAD
    assert says in output


def test_no_file_is_no_plan(program, tmp_path):
    assert read(program, tmp_path / "plan") == (ABSENT, "absent\n")
    assert read(program, tmp_path / "no" / "folder" / "plan") == (ABSENT, "absent\n")


def test_only_a_plain_file_of_root_or_the_user_is_read(program, tmp_path):
    """Links, folders, pipes, files that others can write, and files of others are not."""
    file = written(tmp_path, PLAN)
    link = tmp_path / "link"
    link.symlink_to(file)
    assert read(program, link) == (BAD, "bad: a symbolic link\n")
    assert read(program, tmp_path) == (BAD, "bad: not a regular file\n")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert read(program, pipe) == (BAD, "bad: not a regular file\n")
    file.chmod(0o620)
    assert read(program, file) == (BAD, "bad: others can write to it\n")


@pytest.mark.skipif(UID != 0, reason="NOT TESTED: giving a file away needs root")
def test_a_plan_that_a_stranger_wrote_is_refused(program, tmp_path):
    plan = replace(PLAN, uid=2001)
    file = written(tmp_path, plan)
    os.chown(file, 2002, -1)
    code, output = read(program, file, uid=2001)
    assert (code, output) == (BAD, "bad: belongs to user id 2002, neither to root nor to the job's user\n")
    os.chown(file, 2001, -1)
    assert read(program, file, uid=2001)[0] == READ
