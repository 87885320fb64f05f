"""A plan that Python writes is the plan that C reads; a damaged or foreign one is refused and named."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_share.core import names
from slurm_share.core.records import ShareRequest
from slurm_share.share import option
from slurm_share.share import plan as share_plan
from slurm_share.share.records import Assignment, PlanFile, PlanSlot

READ, ABSENT, BAD = 0, 1, 2
UID = os.getuid()

PLAN = PlanFile(
    job_id=4711,
    uid=UID,
    node="n2",
    share=ShareRequest(2, mem_mib=8192, sm=50),
    gpus=2,
    cores=((0, 8), (1, 9), (2, 10), (3, 11)),
    notes=("shared without MPS: no nvidia-cuda-mps-control on n2", "second"),
    slots=tuple(
        PlanSlot(n, part, (Assignment("CUDA_VISIBLE_DEVICES", f"GPU-{n % 2}"), Assignment("FRACTION", "0.4", True)))
        for n, part in enumerate((0, 2, 1, 3))
    ),
)
UNSHARED = PlanFile(4711, UID, "n2", unshared="the controller has sharing switched off")
REFUSED = PlanFile(4711, UID, "n2", refused="job 4711 cannot share: node n2 belongs to another user; wait")


@pytest.fixture(scope="module")
def program(c_program):
    """The C reader as a small program."""
    return c_program("plan_verdict")


def read(program: Path, file: Path, job: int = 4711, uid: int = UID, node: str = "n2") -> tuple[int, str]:
    """The reader's exit code and what it printed."""
    result = subprocess.run([program, file, str(job), str(uid), node], capture_output=True, text=True, timeout=120)
    assert result.stderr == ""
    return result.returncode, result.stdout


def written(folder: Path, plan: PlanFile | str | bytes) -> Path:
    """A plan file as the Prolog leaves it, or any other bytes in its place."""
    text = share_plan.render(plan) if isinstance(plan, PlanFile) else plan
    file = folder / "plan"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    file.chmod(0o400)
    return file


def as_c_prints(plan: PlanFile) -> str:
    """What plan_verdict prints for a plan that it read right."""
    lines = [f"job {plan.job_id} uid {plan.uid} node {plan.node}"]
    if plan.refused is not None:
        return "\n".join([*lines, f"refused {plan.refused}", ""])
    if plan.unshared is not None:
        return "\n".join([*lines, f"unshared {plan.unshared}", ""])
    lines.append(f"share {option.render(plan.share)} gpus {plan.gpus} slots {len(plan.slots)}")
    lines += [f"core {k} cpu {cpu}" for k, core in enumerate(plan.cores) for cpu in core]
    lines += [f"note {note}" for note in plan.notes]
    for slot in plan.slots:
        lines.append(f"slot {slot.number} part {slot.part} of {len(plan.slots)}")
        lines += [f"{'default' if a.unless_set else 'set'} {a.name}={a.value}" for a in slot.environment]
    return "\n".join([*lines, ""])


@pytest.mark.parametrize("plan", [PLAN, REFUSED, UNSHARED], ids=["carried out", "refused", "unshared"])
def test_c_reads_what_python_writes(program, tmp_path, plan):
    """Every field of every kind of plan."""
    assert read(program, written(tmp_path, plan)) == (READ, as_c_prints(plan))


_words = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=30)
_sentences = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=80)
_names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)
_assignments = st.lists(st.builds(Assignment, _names, _words, st.booleans()), max_size=6).map(tuple)


@st.composite
def plans(draw):
    """Any plan that the Prolog could write."""
    gpus, per_gpu = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    count = gpus * per_gpu
    parts = draw(st.permutations(range(count)))
    core = st.lists(st.integers(0, 8191), min_size=1, max_size=4).map(tuple)
    return replace(
        PLAN,
        share=ShareRequest(per_gpu),
        gpus=gpus,
        cores=tuple(draw(st.lists(core, min_size=1, max_size=20))),
        notes=tuple(draw(st.lists(_sentences, max_size=3))),
        slots=tuple(PlanSlot(n, parts[n], draw(_assignments)) for n in range(count)),
    )


@settings(max_examples=60, deadline=None)
@given(plan=plans())
def test_c_reads_any_plan(program, tmp_path_factory, plan):
    """Values with every printable character, equals signs and question marks included."""
    assert read(program, written(tmp_path_factory.mktemp("any"), plan)) == (READ, as_c_prints(plan))


def test_the_largest_plan_is_read(program, tmp_path):
    """Sixteen GPUs, sixty tasks on each, 384 cores with two threads."""
    slots = tuple(PlanSlot(n, n, (Assignment("A", "x" * 200), Assignment("B", "y" * 200))) for n in range(960))
    plan = replace(PLAN, share=ShareRequest(60), gpus=16, slots=slots, cores=tuple((k, k + 384) for k in range(384)))
    assert read(program, written(tmp_path, plan)) == (READ, as_c_prints(plan))


TEXT = share_plan.render(PLAN)
DAMAGE = [
    ("empty", b"", "torn"),
    ("truncated in a line", TEXT.encode()[:-40], "torn"),
    ("truncated at a line", TEXT[: TEXT.rindex("slot 3")].encode(), "torn"),
    ("no end", TEXT.removesuffix("end\n").encode(), "torn"),
    ("no last newline", TEXT.encode()[:-1], "torn"),
    ("something behind the end", (TEXT + "x\n").encode(), "torn"),
    ("twice", (TEXT + TEXT).encode(), "line"),
    ("a slot too few", TEXT.replace(TEXT[TEXT.index("slot 3") : -4], "").encode(), "line 14: 'slot ...'"),
    ("NUL", TEXT.replace("second", "sec\0nd").encode(), "line 10: a byte"),
    ("control character", TEXT.replace("second", "sec\x1bnd").encode(), "line 10: a byte"),
    ("not ASCII", TEXT.replace("second", "zweit\u00e4").encode(), "line 10: a byte"),
    ("a long line", TEXT.replace("second", "x" * names.PLAN_MAX_LINE).encode(), "line 10: longer than"),
    ("a long file", b"\n" * (names.PLAN_MAX_BYTES + 1), "longer than"),
    ("another version", TEXT.replace(names.PLAN_MAGIC, "slurm-share-plan 2").encode(), "line 1: not a plan"),
    ("a variable without a value", TEXT.replace("FRACTION?=0.4", "FRACTION").encode(), "is not NAME=value"),
    ("too many slots", TEXT.replace("slots 4", "slots 4096").encode(), "line 7: 'slots'"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "says"), [row[1:] for row in DAMAGE], ids=[row[0] for row in DAMAGE])
def test_a_damaged_plan_is_refused(program, tmp_path, damage, says):
    """The reason names the line."""
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
    """A plan is compared with what slurmd says about the step."""
    if UID != 0 and "uid" in whose:
        says = f"belongs to user id {UID}"  # the file's owner is looked at first
    code, output = read(program, written(tmp_path, PLAN), **whose)
    assert code == BAD
    assert says in output


def test_no_file_is_no_plan(program, tmp_path):
    """An ordinary job has none."""
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
    """A file of a third user is neither root's nor the job's user's."""
    plan = replace(PLAN, uid=2001)
    file = written(tmp_path, plan)
    os.chown(file, 2002, -1)
    code, output = read(program, file, uid=2001)
    assert (code, output) == (BAD, "bad: belongs to user id 2002, neither to root nor to the job's user\n")
    os.chown(file, 2001, -1)
    assert read(program, file, uid=2001)[0] == READ
