"""A share is refused where the site's TaskProlog certainly replaces its variables, and nowhere else."""

from __future__ import annotations

import os

import pytest

from slurm_share.core.paths import Paths
from slurm_share.core.process import Deadline
from slurm_share.core.records import ShareRequest
from slurm_share.core.settings import Settings
from slurm_share.share import admission
from slurm_share.share.records import Refusal
from slurm_share.slurm import hook_conf
from slurm_share.slurm.records import JobContext
from slurm_share.slurm.rules.task_prolog import replaced

GPU, PIPE, THREADS = "CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
EXPORT = f"echo export {GPU}=0"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (EXPORT, [GPU]),
        (f'echo "export {PIPE}=/tmp/mps"', [PIPE]),
        (f"M=/tmp/mps\necho export {PIPE}=$M/$SLURM_JOB_ID", [PIPE]),
        (f"printf 'export %s=%s\\n' {GPU} 0", [GPU]),
        (f"cat <<EOF\nexport A=1\nexport {THREADS}=50\nexport {GPU}=1\nEOF", [THREADS, GPU]),
        (f"main() {{\n  echo unset {GPU}\n}}\nmain", [GPU]),
        (f"[ -d /x ] || exit 1\n{EXPORT}\nexit 0", [GPU]),
        (f"{EXPORT}\n[ -d /x ] && exit 0\n", [GPU]),
        (f"date >/tmp/log 2>&1\n{EXPORT} 2>/dev/null", [GPU]),
        # of no shell, or of none that is known
        (f"#!/usr/bin/python3\nprint('export {GPU}=0')", []),
        # which shares are excluded from, or which need not run
        (f'[ -n "$SLURM_SHARE_SLOT" ] || {EXPORT}', []),
        (f"[ -n \"$SPANK_SHARE_GPU\" ] && exit 0\n{EXPORT}", []),
        (f'[ "$SLURM_JOB_PARTITION" = old ] && {EXPORT}', []),
        (f'if [ "$SLURM_JOB_PARTITION" = old ]; then\n  {EXPORT}\nfi', []),
        (f"case $SLURM_JOB_PARTITION in old) {EXPORT};; esac", []),
        (f'[ "$SLURM_JOB_PARTITION" = old ] || exit 0\n{EXPORT}', []),
        (f"leave() {{ exit 0; }}\n[ -d /x ] || leave\n{EXPORT}", []),
        (f"set_it() {{ {EXPORT}; }}\n[ -d /x ] && set_it", []),
        (f"set_it() {{ [ -d /x ] || return; {EXPORT}; }}\nset_it", []),
        (f"for g in $(ls /x); do echo export {GPU}=$g; done", []),
        (f"exec /opt/site/task-prolog\n{EXPORT}", []),
        (f"exec >/dev/null\n{EXPORT}", []),
        (f'[ -d /x ] && O="export {GPU}=0"\necho "$O"', []),
        (f"N=A\n[ -d /x ] && N={GPU}\necho export $N=0", []),
        # which leave what is there
        (f"echo export {GPU}=${GPU}", []),
        (f"G=${{{GPU}:-0}}\necho export {GPU}=$G", []),
        # which print it elsewhere, or something else
        (f"{EXPORT} >>/tmp/log", []),
        (f"{EXPORT} | logger", []),
        (f"{{ {EXPORT}; }} >/tmp/log", []),
        (f"f() {{\n{EXPORT}\n}}\nf >/tmp/log", []),
        (f"x=$({EXPORT})", []),
        (f"mail root <<EOF\nhello\nexport {GPU}=0\nEOF", []),
        (f"export {GPU}=0", []),
        (f"# {EXPORT}", []),
        (f"echo print export {GPU}=0", []),
        (f"echo export MY_{GPU}=0", []),
        ("echo export OMP_NUM_THREADS=1", []),
        ("if", []),
    ],
)  # fmt: skip
def test_only_what_is_replaced_for_every_task_is_named(text, names):
    whole = text if text.startswith("#!") else f"#!/bin/bash\n{text}\n"
    assert list(replaced(whole)) == names


def write(tmp_path, line="TaskProlog=tp", text=f"#!/bin/sh\n{EXPORT}\n"):
    (tmp_path / "slurm.conf").write_text(f"ClusterName=x\n{line}\n")
    (tmp_path / "more.conf").write_text("TaskProlog=tp\n")
    (tmp_path / "tp").write_text(text)
    return tmp_path / "slurm.conf"


@pytest.mark.parametrize("line", ["TaskProlog=tp", "taskprolog=tp", "Include more.conf"])
def test_the_script_is_the_one_that_slurm_conf_names(tmp_path, line):
    assert hook_conf.read_replaced(write(tmp_path, line)) == (str(tmp_path / "tp"), (GPU,))


@pytest.mark.parametrize(
    "line", ["", "#TaskProlog=tp", "TaskEpilog=tp", "TaskProlog=gone", "TaskProlog=.", "TaskProlog=p"]
)
def test_what_slurm_conf_does_not_name_or_cannot_be_read_replaces_nothing(tmp_path, line):
    os.mkfifo(tmp_path / "p")
    assert hook_conf.read_replaced(write(tmp_path, line))[1] == ()


def test_a_program_and_a_file_that_is_too_long_are_not_read(tmp_path):
    assert hook_conf.read_replaced(write(tmp_path, text=f"#!/bin/sh\n{EXPORT}\n\0"))[1] == ()
    assert hook_conf.read_replaced(write(tmp_path, text=f"#!/bin/sh\n{EXPORT}\n#{'x' * 70_000}"))[1] == ()
    assert hook_conf.read_replaced(tmp_path / "none") == ("", ())


def test_a_prolog_refuses_a_share_whose_variables_the_task_prolog_replaces(tmp_path):
    environ = {"SLURM_CONF": str(write(tmp_path))}
    job = JobContext(job_id=7, uid=1000, gid=1000, node="n1", granted=("0",), share=ShareRequest(per_gpu=2))
    found = admission.read_grant(job, environ, Paths(), Settings(), Deadline.after(300))
    assert isinstance(found, Refusal)
    assert f"TaskProlog in slurm.conf is {tmp_path}/tp, which sets {GPU} in every task" in found.sentence
    assert "an administrator must" in found.sentence
    assert found.cause == "job"
