"""The site's own scripts: what works against shares is named, and nothing else is."""

from __future__ import annotations

import shutil

import pytest
from doctor_hosts import HEALTHY, changed, file, script

from slurm_share.doctor.checks import every
from slurm_share.doctor.facts import scripts
from slurm_share.doctor.facts.records import SiteScript, UnknownFact
from slurm_share.slurm.rules import shell

CHECKS = ("script-fails", "script-gpus", "task-prolog")


def said(text, *keys):
    """Return the findings about one script of a shell, which these keys of slurm.conf name."""
    facts = changed(
        HEALTHY, "slurm.scripts", tuple(script(f"#!/bin/bash\n{text}\n", key) for key in keys or ["Epilog"])
    )
    return [one for one in every.examine(facts) if one.check in CHECKS and one.outcome != "PASS"]


@pytest.mark.parametrize(
    ("text", "check", "words"),
    [
        ("exit 1", "script-fails", "always ends with `exit 1`"),
        ("date >/tmp/x\nif [ -d /x ]; then date; fi\nexit 3  # for now", "script-fails", "`exit 3`"),
        ("[ -d /x ] && exit 2\nexit 1", "script-fails", "`exit 1`"),
        ("date\nfalse", "script-fails", "`false`"),
        ("[ -d /x ] || {\n  exit 2\n}\n{\n  date\n  exit 4\n} || true", "script-fails", "`exit 4`"),
        ("[[ $a =~ ^(b|c)$ && $d < e ]] && date\nexit 5", "script-fails", "`exit 5`"),
        ("# not where SPANK_SHARE_GPU is set\npkill -f nvidia-cuda-mps", "script-gpus", "ends every MPS"),
        ("pkill -f nvidia-cuda-mps", "script-gpus", "ends every MPS daemon"),
        ("/usr/bin/pkill -9 nvidia-cuda-mps || true", "script-gpus", "ends every MPS daemon"),
        ("pkill -KILL -f 'nvidia-cuda-mps-(control|server)' >/dev/null 2>&1", "script-gpus", "ends every MPS"),
        ("sudo pkill -x nvidia-cuda-mps", "script-gpus", "ends every MPS"),
        ("killall -q nvidia-cuda-mps-control", "script-gpus", "ends every MPS"),
        ('P=nvidia-cuda-mps\npkill -f "$P"', "script-gpus", "ends every MPS"),
        ("for p in a nvidia-cuda-mps-server; do pkill -f $p; done", "script-gpus", "ends every MPS"),
        ("clean() { pkill -f mps-control; }\nif true; then clean; fi", "script-gpus", "ends every MPS"),
        ("clean() { pkill -f mps-control; }\ntrap clean EXIT", "script-gpus", "ends every MPS"),
        ("kill -9 $(pgrep -f nvidia-cuda-mps)", "script-gpus", "ends every MPS"),
        ("kill `pidof nvidia-cuda-mps-control`", "script-gpus", "ends every MPS"),
        ("pgrep -f nvidia-cuda-mps | xargs -r kill -9", "script-gpus", "ends every MPS"),
        ("ps ax | grep nvidia-cuda-mps | awk '{print $1}' | xargs kill", "script-gpus", "ends every MPS"),
        ("bash -c 'pkill -f nvidia-cuda-mps'", "script-gpus", "ends every MPS"),
        ("timeout 10 pkill -f nvidia-cuda-mps &", "script-gpus", "ends every MPS"),
        ("case $1 in a|b) ;; *) pkill -f nvidia-cuda-mps;; esac", "script-gpus", "ends every MPS"),
        ("fuser -k /dev/nvidia0", "script-gpus", "every program on the GPUs"),
        ("fuser -vk -9 /dev/nvidia*", "script-gpus", "every program on the GPUs"),
        ("echo quit | nvidia-cuda-mps-control", "script-gpus", "`quit` to nvidia-cuda-mps-control"),
        ("nvidia-cuda-mps-control <<< quit", "script-gpus", "`quit` to"),
        ("nvidia-cuda-mps-control <<EOF\nquit -t 5\nEOF", "script-gpus", "`quit` to"),
        ("printf 'quit\\n' | /usr/bin/nvidia-cuda-mps-control", "script-gpus", "`quit` to"),
        ("nvidia-cuda-mps-control -d", "script-gpus", "starts an MPS daemon"),
        ("nvidia-smi -c 3", "script-gpus", "mode EXCLUSIVE_PROCESS"),
        ("/usr/bin/nvidia-smi -i $GPU -c EXCLUSIVE_PROCESS", "script-gpus", "mode EXCLUSIVE_PROCESS"),
        ("nvidia-smi --compute-mode=EXCLUSIVE_PROCESS", "script-gpus", "mode EXCLUSIVE_PROCESS"),
        ("MODE=${MODE:-2}\nnvidia-smi -c ${WANTED:-2}", "script-gpus", "mode PROHIBITED"),
        ("for g in 0 1; do nvidia-smi -i $g --gpu-reset; done", "script-gpus", "resets GPUs"),
        ("nvidia-smi -r -i 0", "script-gpus", "resets GPUs"),
    ],
)
def test_what_works_against_shares_is_named(text, check, words):
    found = said(text)
    assert {one.check for one in found} == {check}, found
    assert words in found[0].what


@pytest.mark.parametrize(
    "text",
    [
        "exit 0",
        "",
        "[ -d /x ] && exit 0\nexit 1",
        "ok() { exit 0; }\n[ -d /x ] && ok\nexit 1",
        "run() { date; return 1; }\nrun || exit 1",
        "trap 'exit 0' EXIT\nexit 1",
        "if ! mount | grep -q scratch; then\n  exit 1\nfi",
        "exec /opt/site/prolog \"$@\"\nexit 127",
        "(exit 1)\ntrue",
        "[ -d /x ] || {\n  logger no\n  exit 1\n}\ndate",
        "test -f /x && {\n  b || {\n    logger no\n    exit 1\n  }\n}",
        "(( $1 > 3 )) && { logger no\nexit 1\n}",
        "date | grep -q x || { logger no\nexit 1; }",
        "{ sleep 1; exit 1; } &\ndate",
        "cat /x | { read -r a; exit 1; }\ndate",
        "{ date; exit 1; } | logger\ndate",
        "date | exit 1\ndate",
        "a=$(hostname; exit 1)\nb=\"`date; exit 2`\"",
        "a=$(case $1 in a) echo 1;; *) exit 1;; esac)\ndate",
        "a=$(date # don't\n)\nb=$(echo \"c)d\"; exit 1)\ndate",
        "sh -c 'date; exit 2'\ndate",
        "f() {\n  [[ $1 =~ ^(a|b)$ ]] && return 0\n  exit 1\n}\n[ -z \"$1\" ] || f\ndate",
        "f() {\n  [[ ( -n $1 && -n $2 ) ]] && return 0\n  exit 1\n}\n[ -z \"$1\" ] || f\ndate",
        "f() {\n  rm -f !(a|b)\n  exit 1\n}\n[ -z \"$1\" ] || f\ndate",
        ". /opt/site/functions.sh\nrun_and_exit\nexit 1",
        "date\n! false",
        "date || exit 1",
        "date ||\n  exit 1",
        "code=$?\nexit $code",
        "case $1 in x) exit 1;; esac",
        "# pkill -f nvidia-cuda-mps",
        "unused() { pkill -f nvidia-cuda-mps; nvidia-smi -c 3; }",
        "function unused { echo quit | nvidia-cuda-mps-control; }\ndate",
        "echo 'do not pkill -f nvidia-cuda-mps here'",
        'logger "pkill -f nvidia-cuda-mps is not wanted"',
        "P='nvidia-cuda-mps'\necho \"$P\"",
        "cat <<'EOF' >/etc/motd\npkill -f nvidia-cuda-mps\nnvidia-smi -c 3\nEOF",
        "pgrep -f nvidia-cuda-mps >/dev/null && logger mps",
        "pkill -u $SLURM_JOB_UID -f jupyter",
        "pkill -KILL -U \"$SLURM_JOB_UID\"",
        "kill $(cat /run/site.pid)",
        "nvidia-smi -c 0",
        "nvidia-smi -c DEFAULT -i 0",
        "nvidia-smi -pm 1",
        "nvidia-smi -q -d ECC,ROW_REMAPPER | grep -q Pending && exit 1",
        "nvidia-smi --query-gpu=compute_mode --format=csv",
        "nvidia-smi -c \"$(cat /run/mode)\"",
        "fuser -v /dev/nvidia0",
        "fuser -k /scratch/$SLURM_JOB_ID",
        "export CUDA_MPS_PIPE_DIRECTORY=/tmp/site-mps\necho quit | nvidia-cuda-mps-control",
        "echo quit | CUDA_MPS_PIPE_DIRECTORY=/tmp/site nvidia-cuda-mps-control",
        "echo get_server_list | nvidia-cuda-mps-control",
        "[ -n \"$SPANK_SHARE_GPU\" ] && exit 0\npkill -f nvidia-cuda-mps",
        "[ -n \"${SPANK_SHARE_GPU:-}\" ] && exit 0\npkill -f nvidia-cuda-mps",
        "case ${SPANK_SHARE_GPU-} in '') nvidia-smi -c 3;; esac",
        "[ -e /run/slurm-share/jobs ] || nvidia-smi -c 3",
        "[ ! -x /opt/slurm-share/bin/slurm-share-epilog ] || exec /opt/slurm-share/bin/slurm-share-epilog",
        "a=$(( 1 << 2 ))\n[[ $a -gt 1 ]] && date\narr=(pkill -f nvidia)\n",
        "while read -r x; do echo $x; done < <(ls)\nx=${y#*)}\n",
        "cat > f <<-EOF\n\tpkill\n\tEOF\nfor ((i=0;i<3;i++)); do date; done",
    ],
)  # fmt: skip
def test_what_leaves_shares_alone_is_not(text):
    assert said(text, "Prolog", "Epilog", "TaskEpilog") == []


def test_what_runs_on_the_controller_reaches_no_gpu():
    assert said("pkill -f nvidia-cuda-mps", "EpilogSlurmctld") == []
    assert [one.check for one in said("exit 1", "PrologSlurmctld")] == ["script-fails"]
    assert [one.outcome for one in said("exit 1", "EpilogSlurmctld")] == ["WARN"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("echo export CUDA_VISIBLE_DEVICES=0", "CUDA_VISIBLE_DEVICES"),
        ('echo "export CUDA_MPS_PIPE_DIRECTORY=/tmp/mps"', "CUDA_MPS_PIPE_DIRECTORY"),
        ("printf 'export %s=%s\\n' CUDA_VISIBLE_DEVICES 0", "CUDA_VISIBLE_DEVICES"),
        ("cat <<EOF\nexport A=1\nexport CUDA_MPS_LOG_DIRECTORY=/x\nEOF", "CUDA_MPS_LOG_DIRECTORY"),
        ("set_it() { echo unset CUDA_VISIBLE_DEVICES; }\n[ -n \"$X\" ] && set_it", "CUDA_VISIBLE_DEVICES"),
        ("V=CUDA_VISIBLE_DEVICES\necho export $V=0", "CUDA_VISIBLE_DEVICES"),
        ("echo export OMP_NUM_THREADS=1", ""),
        ("export CUDA_VISIBLE_DEVICES=0", ""),
        ("echo export CUDA_VISIBLE_DEVICES=0 >>/tmp/log", ""),
        ("echo export CUDA_VISIBLE_DEVICES=0 >&2", ""),
        ("echo print export CUDA_VISIBLE_DEVICES=0", ""),
        ("x=$(echo export CUDA_VISIBLE_DEVICES=0)", ""),
        ("# echo export CUDA_VISIBLE_DEVICES=0", ""),
        ("[ -n \"$SLURM_SHARE_SLOT\" ] || echo export CUDA_VISIBLE_DEVICES=0", ""),
    ],
)  # fmt: skip
def test_gpu_variables_of_a_task_prolog(text, names):
    found = said(text, "TaskProlog")
    assert [one.what.partition(" sets ")[2] for one in found] == [names] * bool(names)


@pytest.mark.parametrize("text", [
    "if", "a(", "case x in", "'", '"', "$(", "`", "<<EOF", "${", "x() {", ")", ";;", "}", "fi", "\\", "for", "function",
    "<", "a <", "$((", "a)b(c", "x=(",
])  # fmt: skip
def test_text_that_is_no_script_is_read_to_its_end(text):
    shell.commands(text)


def test_the_syntax_is_tried_by_the_scripts_own_shell(tmp_path):
    path = tmp_path / "x.sh"
    for text, found in (("if true\n", True), ("touch run\n", False), ("[[ a ]] && b() { c; }\n", False)):
        path.write_text(f"#!/bin/bash\n{text}")
        fact = file(str(path), interpreter="/bin/bash")
        said = scripts._syntax(fact)
        assert not isinstance(said, UnknownFact)
        assert bool(said) == found
        assert "syntax error" in said or not found
    path.write_text("#!/bin/bash\nshopt -s extglob\ncase $A in +([0-9])) date;; esac\nrm !(a|b)\n")
    assert scripts._syntax(file(str(path), interpreter="/bin/bash"), has_extglob=True) == ""
    assert shutil.which("run", path=str(tmp_path)) is None
    assert not (tmp_path / "run").exists()


def test_a_program_in_machine_code_and_other_languages_are_not_read_as_a_shells():
    binary = SiteScript("Prolog", "/p", file("/p"))
    python = script("#!/usr/bin/python3\nimport os\nos.system('date')\nraise SystemExit(1)\n")
    facts = changed(HEALTHY, "slurm.scripts", (binary, python))
    assert [one.outcome for one in every.examine(facts) if one.check in CHECKS] == ["PASS"] * 3
