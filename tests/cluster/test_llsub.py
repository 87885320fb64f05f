"""`llsub` on real clusters: refusals, submissions and results."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from subprocess import CompletedProcess

import pytest
from clusters import cluster_of, name_for
from hooked import configured, until

from localcluster import Cluster
from slurm_share.core import nodelist

pytestmark = pytest.mark.cluster

HOME = "/home/alice/llsub"
TASK = """#!/bin/bash
rank="rank $LLSUB_RANK of $LLSUB_SIZE on $(hostname)"
echo "$rank slot $SLURM_SHARE_SLOT gpu $CUDA_VISIBLE_DEVICES threads $OMP_NUM_THREADS"
echo "ntasks $SLURM_NTASKS procid $SLURM_PROCID cpus $(grep Cpus_allowed_list /proc/self/status | cut -f2) args $*"
"""
SLOW = """#!/bin/bash
[ $((LLSUB_TASK % 2)) = 0 ] || [ -e go ] || exec sleep 900
echo ran >> ran.$LLSUB_TASK
"""
"""exec: Slurm ends each process of a step, one by one, and a shell whose sleep ended first would go on."""


@pytest.fixture(autouse=True)
def clean_folder(cluster: Cluster) -> Iterator[None]:
    """Yield an empty folder of alice's with the scripts; check afterwards that no process of hers is left on a node."""
    cluster.as_user("alice", f"rm -rf {HOME}; mkdir {HOME}", check=True)
    for name, text in (("task.sh", TASK), ("slow.sh", SLOW)):
        cluster.as_user("alice", f"cat > {HOME}/{name}; chmod +x {HOME}/{name}", input=text, check=True)
    yield
    for node in cluster.compute_nodes:
        assert cluster.exec(node, ["pgrep", "-u", "alice", "-x", "sleep"]).stdout == ""


def llsub(cluster: Cluster, *words: str, before: str = "") -> CompletedProcess[str]:
    return cluster.as_user("alice", f"cd {HOME}; {before} llsub {shlex.join(words)}")


def submitted(cluster: Cluster, *words: str) -> int:
    """Return the job that llsub submits."""
    found = llsub(cluster, *words)
    (job,) = re.findall(r"^job (\d+):", found.stdout, re.MULTILINE)
    return int(job)


def launch_log(cluster: Cluster, job: int) -> str:
    return cluster.as_user("alice", f"cat {HOME}/LLSUB.1/llsub-triple-mode-launch.log-{job}").stdout


def recorded_job(cluster: Cluster) -> int:
    """Return the job of the run in the folder."""
    return int(cluster.as_user("alice", f"cut -d' ' -f1 {HOME}/LLSUB.1/jobs", check=True).stdout)


def done(cluster: Cluster, *words: str) -> str:
    """Submit, wait for the end, and return all that the logs of the run say; every task has to be done."""
    found = llsub(cluster, "--wait", *words)
    assert found.returncode == 0, found.stdout + found.stderr
    return cluster.as_user("alice", f"cat {HOME}/LLSUB.1/p*_*/*.log.*", check=True).stdout


def ranks(output: str) -> dict[int, tuple[str, str, str, str]]:
    lines = re.findall(r"^rank (\d+) of \d+ on (\S+) slot (\S*) gpu (\S*) threads (\S*)$", output, re.MULTILINE)
    return {int(rank): (node, slot, gpu, threads) for rank, node, slot, gpu, threads in lines}


def wait_for_tasks(cluster: Cluster, job: int, count: int) -> None:
    """Return when so many tasks of slow.sh have ended."""
    cluster.wait_running(job)
    until(
        lambda: len(cluster.as_user("alice", f"ls {HOME}/ran.* 2>/dev/null").stdout.split()) == count,
        f"{count} tasks that have ended",
    )


def folder_files(cluster: Cluster, pattern: str) -> list[str]:
    return cluster.as_user("alice", f"cd {HOME}/LLSUB.1; ls -d {pattern}").stdout.split()


@pytest.mark.parametrize(
    ("words", "gpus", "cpus", "slots"),
    [
        (("[1,8]", "--options=-w n1"), 4, 16, True),
        (("[2,4]", "-g", "simulated:1", "--options=-w n2,n3"), 1, 8, True),
        (("[1,2]", "-g", "1", "--share-gpu=off", "--options=-w n2"), 1, 8, False),
        (("[2,4]", "--share-gpu=off", "--options=-w n1,n2"), 2, 24, False),
        (("[2,4]", "--options=-w n1,n2"), 2, 16, True),
    ],
)
def test_what_was_written_is_what_was_given(
    cluster: Cluster, words: tuple[str, ...], gpus: int, cpus: int, slots: bool
) -> None:
    """GPUs that the ranks of a node have, CPUs of the whole job, and whether ranks have slots of a share."""
    found = ranks(done(cluster, "./task.sh", *words))
    for node in {node for node, *_ in found.values()}:
        assert len({gpu for where, _, gpu, _ in found.values() if where == node}) == gpus
    assert all(slot.isdecimal() for _, slot, *_ in found.values())
    record = cluster.job(recorded_job(cluster))
    assert f"cpu={cpus}," in record
    assert f"Comment=llsub {words[0]}" in record
    assert ("--share-gpu=" in cluster.as_user("alice", f"cat {HOME}/LLSUB.1/launch.sh", check=True).stdout) is slots


@pytest.mark.parametrize("mode", ["observe", "off"])
def test_where_the_site_does_not_share_the_job_has_the_same_cpus_and_gpus(cluster: Cluster, mode: str) -> None:
    with configured(cluster, f'mode = "{mode}"'):
        found = ranks(done(cluster, "./task.sh", "[2,8]", "-g", "1", "--options=-w n2,n3"))
    assert len(found) == 16
    assert len({gpu for _, _, gpu, _ in found.values()}) == 2
    assert "cpu=8," in cluster.job(recorded_job(cluster))


def test_the_scripts_own_lines_win_but_not_over_the_triple(cluster: Cluster) -> None:
    script = TASK.replace("\n", "\n#SBATCH -p plain --job-name=mine -N3 --array=1-9\n#SBATCH -c2\n", 1)
    cluster.as_user("alice", f"cat > {HOME}/task.sh", input=script, check=True)
    found = llsub(cluster, "./task.sh", "[1,2]", "-q", "gpu", "-J", "no", "--wait")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "-q, -J ignored" in found.stderr
    assert "--array, --cpus-per-task, --nodes" in found.stderr
    record = cluster.job(recorded_job(cluster))
    assert "Partition=plain" in record
    assert "JobName=mine" in record
    assert "NumNodes=1" in record


REFUSED = [
    (("./task.sh", "[4,8]"), "[4,8] asks for 4 nodes, and partition gpu has 3; write [3,8]"),
    (("./task.sh", "[3,8]", "-g", "3"), "[3,8] asks for 3 nodes with gpu:3, and partition gpu has 1"),
    (("./task.sh", "[1,8]", "-g", "5"), "no node of partition gpu has gpu:5"),
    (("./task.sh", "[1,8]", "-q", "plane"), "did you mean plain?"),
    (("./task.sh", "[1,8]", "-T", "lots"), "Invalid --time specification"),
    (("./task.sh", "[1,8]", "--reservation=none"), "the scheduler did not take this job"),
    (("./task.sh", "[1,8]", "--share-gpu=1"), "has room for 2 processes"),
    (("./task.sh", "[0,8]"), "the number of nodes is 1 to"),
    (("./gone.sh", "[1,8]"), "No such file"),
    (("./task.sh", "[1,8]", "--options=--array=1-4"), "--array conflicts with a triple"),
    (("./task.sh", "[1,8]", "--", "\udcff"), "is not UTF-8"),
    (("./task.sh", "[1,8]", "-o", "task.sh"), "-o task.sh would overwrite the script"),
    (("./task.sh", "-o", "/tmp"), "-o /tmp is a folder"),
]


def test_what_cannot_be_is_refused_at_once(cluster: Cluster) -> None:
    for words, why in REFUSED:
        found = llsub(cluster, *words)
        assert (found.returncode, why in found.stderr) == (2, True), found.stderr
        assert cluster.as_user("alice", f"ls {HOME}").stdout.split() == ["slow.sh", "task.sh"], words
    assert cluster.jobs() == []


@pytest.mark.weekly
def test_a_job_waits_for_a_node_that_is_drained(cluster: Cluster) -> None:
    cluster.exec("ctl", ["scontrol", "update", "nodename=n3", "state=drain", "reason=test"], check=True)
    try:
        found = llsub(cluster, "./task.sh", "[3,2]")
        waiting = cluster.as_user("alice", "squeue --me --noheader --format=%T").stdout
    finally:
        cluster.exec("ctl", ["scontrol", "update", "nodename=n3", "state=resume"], check=True)
    assert found.returncode == 0, found.stderr
    assert "1 of 3 nodes is down or drained: this job waits for it" in found.stderr
    assert waiting == "PENDING\n"
    assert llsub(cluster, "--watch").returncode == 0


def test_a_job_that_starts_while_it_is_watched_is_not_called_requeued(cluster: Cluster) -> None:
    command = "llsub ./task.sh [1,2] --options=--begin=now+5 --wait"
    said = cluster.as_user("alice", f"cd {HOME} && TERM=xterm script -qec {shlex.quote(command)} /dev/null", check=True)
    assert "pending" in said.stdout
    assert "all 2 tasks are done" in said.stdout
    assert "requeued" not in said.stdout


def test_the_rest_of_a_submitted_run_is_done_here(cluster: Cluster) -> None:
    """By the login host, which has no GPU; --parsable prints the job id alone, and --dry-run asks sbatch."""
    cluster.as_user("alice", f"cd {HOME} && printf '#!/bin/sh\\n[ -e ok ]\\n' > task.sh", check=True)
    words = ("--account=none", "--reservation=none", "--parsable", "--pack=lug", "--undo=pause")
    asked = llsub(cluster, "./task.sh", "[1,2]", "--dry-run", *words)
    assert asked.returncode == 2
    assert asked.stdout.startswith("sbatch --parsable ")
    assert "--undo ignored: lug does not measure speed; --pack does" in asked.stderr
    assert "--parsable ignored: --dry-run submits nothing" in asked.stderr
    planned = llsub(cluster, "./task.sh", "[1,2]", "--dry-run")
    assert "lines, not shown (--dry-run=script shows them)" in planned.stdout
    assert len(planned.stdout.splitlines()) == 5, planned.stdout
    for command, way_out in (("llstat LLSUB.3", "llstat -j LLSUB.3"), ("llfree gpu", "llfree -p gpu")):
        unknown = cluster.as_user("alice", command)
        assert (unknown.returncode, way_out in unknown.stderr) == (2, True), unknown.stderr
    folder = llsub(cluster, "./task.sh", "[1,2]", "--tasks", "/tmp")
    assert (folder.returncode, "it is a folder" in folder.stderr) == (2, True), folder.stderr
    assert "the scheduler would not take this job" in asked.stderr
    tried = llsub(cluster, "./task.sh", "[1,2]", "--parsable", "--wait")
    assert (tried.returncode, tried.stdout.strip().isdecimal()) == (1, True), tried
    cluster.as_user("alice", f"cd {HOME} && touch ok && mv LLSUB.1 renamed", check=True)
    again = llsub(cluster, "--resume", "renamed", "--local", "-T", "5")
    assert again.returncode == 0, again.stderr
    assert "-q, -T and --options ignored" in again.stderr
    assert "2 of 2 ranks done" in again.stdout


SAYS_USR1 = """#!/bin/bash
trap 'echo "got USR1"; exit 0' USR1
touch up.$LLSUB_RANK
for _ in {1..6000}; do sleep 0.1; done
exit 1
"""


def test_a_warning_to_the_batch_script_reaches_the_tasks_and_does_not_end_them(cluster: Cluster) -> None:
    cluster.as_user("alice", f"cat > {HOME}/task.sh", input=SAYS_USR1, check=True)
    job = submitted(cluster, "./task.sh", "[2,2]", "--options=-w n2,n3")
    cluster.wait_running(job)
    until(lambda: len(cluster.as_user("alice", f"ls {HOME}/up.* 2>/dev/null").stdout.split()) == 4, "4 tasks")
    cluster.as_user("alice", f"scancel --batch --signal=USR1 {job}", check=True)
    assert cluster.wait(job) == "COMPLETED"
    # With proctrack/linuxproc, Slurm signals the tasks as well: each gets it once or twice.
    assert cluster.as_user("alice", f"grep -l 'got USR1' {HOME}/LLSUB.1/p*_*/*.log.*").stdout.count("\n") == 4
    log = launch_log(cluster, job)
    assert "4 of 4 ranks done" in log
    assert "told to end" not in log


def test_another_users_run_is_not_resumed_and_not_killed(cluster: Cluster) -> None:
    """Its folder names commands and jobs, to be run and ended in alice's name. Root does not resume it either."""
    job = submitted(cluster, "./slow.sh", "[1,2]", "--options=-w n2")
    copy = (
        f"cp -r {HOME}/LLSUB.1 /tmp/LLSUB.9; cd /tmp/LLSUB.9; echo {job} 1 > jobs; "
        """sed -i 's|"sbatch"|"sbatch", "--wrap=echo > /tmp/owned"|' run.json"""
    )
    try:
        cluster.as_user("bob", copy, check=True)
        for words in ("llsub --resume", "llkill"):
            found = cluster.as_user("alice", f"cd /tmp; {words} LLSUB.9")
            assert (found.returncode, "belongs to bob" in found.stderr) == (2, True), found.stderr
        roots = cluster.exec("login", ["sh", "-c", "cd /tmp; llsub --resume LLSUB.9"])
        assert (roots.returncode, "belongs to bob" in roots.stderr) == (2, True), roots.stderr
        assert str(job) in cluster.as_user("alice", "squeue --me --noheader --format=%i").stdout
    finally:
        owned = cluster.as_user("bob", "rm -r /tmp/LLSUB.9; ls /tmp/owned").returncode
        cluster.as_user("alice", f"scancel {job}")
        cluster.wait(job)
    assert owned != 0


def test_a_job_that_nobody_noted_is_not_submitted_again(cluster: Cluster) -> None:
    job = submitted(cluster, "./slow.sh", "[1,2]", "--options=-w n2 --begin=now+1hour")
    cluster.as_user("alice", f"rm {HOME}/LLSUB.1/jobs", check=True)
    again = llsub(cluster, "--resume", "LLSUB.1")
    assert (again.returncode, f"job {job} of LLSUB.1 is still in the queue" in again.stderr) == (2, True), again.stderr
    cluster.as_user("alice", f"cd {HOME}; llkill LLSUB.1", check=True)
    assert cluster.wait(job) == "CANCELLED"


@pytest.mark.parametrize("folder", ["/usr", "/home/bob"])
def test_a_folder_without_write_permission_is_a_sentence(cluster: Cluster, folder: str) -> None:
    found = cluster.as_user("alice", f"cd /; cd {folder} 2>/dev/null; llsub {HOME}/task.sh '[1,2]'")
    assert found.returncode == 2
    assert "Traceback" not in found.stderr
    assert "Permission denied" in found.stderr


def test_a_full_disk_leaves_no_folder_and_no_job(cluster: Cluster) -> None:
    small = f"{HOME}/small"
    cluster.as_user("alice", f"mkdir {small}", check=True)
    cluster.exec("login", ["mount", "-t", "tmpfs", "-o", "size=16k,mode=777", "none", small], check=True)
    try:
        cluster.as_user("alice", f"seq 20000 > {HOME}/list", check=True)
        found = cluster.as_user("alice", f"cd {small}; llsub ../task.sh '[1,2]' --tasks ../list; ls -A")
    finally:
        cluster.exec("login", ["umount", small], check=True)
    assert "No space left on device" in found.stderr
    assert found.stdout == ""
    assert cluster.jobs() == []


def test_an_ordinary_job_and_one_from_inside_a_job(cluster: Cluster) -> None:
    """Without a triple it is LLSC's; and a step of a shared job can submit as the login node does."""
    found = llsub(cluster, "./task.sh", "-s", "2", "-J", "plain")
    assert found.returncode == 0, found.stderr
    job = int(found.stdout.split()[-1])
    assert cluster.wait(job) == "COMPLETED"
    assert "NumCPUs=2" in cluster.job(job)
    assert folder_exists(cluster, f"task.sh.log-{job}")
    inner = f"cd {HOME}; srun -n1 llsub ./task.sh '[1,2]' --options='-w n3'"
    outer = cluster.sbatch("alice", inner, "--share-gpu=2", "-w", "n2")
    assert cluster.wait(outer) == "COMPLETED", cluster.output(outer)
    job = recorded_job(cluster)
    assert cluster.wait(job) == "COMPLETED"
    assert len(folder_files(cluster, "p0-p1_n3/task.sh.log.*")) == 2


SUBMIT = """#!/bin/bash
env >outer.env
llsub ./show.sh '[1,2]' -q plain --options=-wn3
llsub ./show.sh '[1,2]' --local
"""
SHOW = """#!/bin/bash
env >$LLSUB_DIR/env.$LLSUB_RANK
[ -e go ]
"""


def test_a_run_from_a_task_of_a_share_has_its_own_variables(cluster: Cluster) -> None:
    """As a job, and when it is resumed after the end of the outer one. With --local it has the task's GPU and caps."""
    for name, text in (("submit.sh", SUBMIT), ("show.sh", SHOW)):
        cluster.as_user("alice", f"cat > {HOME}/{name}; chmod +x {HOME}/{name}", input=text, check=True)
    assert llsub(cluster, "./submit.sh", "[1,1]", "--share-gpu=4,sm=even", "--options=-wn2", "--wait").returncode == 1
    inner = int(cluster.as_user("alice", f"cut -d' ' -f1 {HOME}/LLSUB.2/jobs", check=True).stdout)
    cluster.wait(inner)

    def environment(file: str) -> dict[str, str]:
        text = cluster.as_user("alice", f"cat {HOME}/{file}", check=True).stdout
        return dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))

    outer, local = environment("outer.env"), environment("LLSUB.3/env.1")
    percent, fraction = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "XLA_PYTHON_CLIENT_MEM_FRACTION"
    assert (outer[percent], outer[fraction], outer["OMP_NUM_THREADS"]) == ("25", "0.243", "2")
    assert (local[percent], local[fraction], local["OMP_NUM_THREADS"]) == ("25", "0.243", "1")
    assert local["CUDA_VISIBLE_DEVICES"] == outer["CUDA_VISIBLE_DEVICES"]
    first = environment("LLSUB.2/env.1")
    again = llsub(cluster, "--resume", "LLSUB.2", before="touch go; ")
    (job,) = re.findall(r"^job (\d+):", again.stdout, re.MULTILINE)
    assert cluster.wait(int(job)) == "COMPLETED"
    for found in (first, environment("LLSUB.2/env.1")):
        assert not {percent, fraction} & set(found)
        assert found["OMP_NUM_THREADS"] == "1"
    here = llsub(cluster, "--resume", "LLSUB.3")
    assert here.returncode == 0, here.stderr
    assert not {percent, fraction} & set(environment("LLSUB.3/env.1"))


LISTS = [
    "n[01-03,7],x-[1-2]", "n[7,1-3]", "n[1-3],m[2,1]", "a[1,3],b,a2", "n[01,1,001]", "n[9-011]", "n[1,1]", "n[99-101]x",
    "n[1-2]-ib,n1-[1-2]", "a[2,1]b[3-4],z", "a[1-2][3-4]", "r[1-2]n[3-4]c[0-1]d[5-6]", "b,a,b", "n1",
]  # fmt: skip


@pytest.mark.release
@pytest.mark.weekly
def test_lists_of_nodes_are_read_as_slurm_reads_them(cluster: Cluster) -> None:
    command = "".join(f"scontrol show hostnames '{text}'; echo --; " for text in LISTS)
    parts = cluster.as_user("alice", command, check=True).stdout.split("--\n")
    assert [tuple(part.split()) for part in parts[:-1]] == [nodelist.unfold(text) for text in LISTS]


def folder_exists(cluster: Cluster, name: str) -> bool:
    return cluster.as_user("alice", f"test -e {HOME}/{name}").returncode == 0


def test_a_list_of_any_editor_has_a_task_for_each_line(cluster: Cluster) -> None:
    """Byte order mark, CRLF, CR and other marks inside a line; a line with a CR is refused with its number."""
    lists = {
        "mix.txt": "echo one\necho two\recho three\necho four\n",
        "windows.txt": "\ufeffecho one\r\necho two\u2028\x85\r\n",
        "marks.jsonl": '{"run": "printf one\\r1"}\r\n{"run": "printf two\\r"}\n{"run": "echo th{re,}e"}\n',
    }
    for name, text in lists.items():
        cluster.as_user("alice", f"printf %s {shlex.quote(text)} > {HOME}/{name}", check=True)
    refused = llsub(cluster, "[1,2]", "--tasks", "mix.txt", "--local")
    assert (refused.returncode, "line 2 contains a carriage return" in refused.stderr) == (2, True)
    for number, (name, said) in enumerate(
        (("windows.txt", "one|two\u2028\x85"), ("marks.jsonl", "one|two|three the")), 1
    ):
        ran = llsub(cluster, "[1,2]", "--tasks", name, "--local")
        assert ran.returncode == 0, ran.stdout + ran.stderr
        logs = cluster.as_user("alice", f"cd {HOME}; for log in LLSUB.{number}/p*/*.log.*; do cat $log; echo '|'; done")
        assert re.sub(r"[\r\n]1?", "", logs.stdout) == f"{said}|"


LATIN_1 = """
{ printf '<code_set_name> ISO-8859-1\\n<comment_char> %%\\n<escape_char> /\\nCHARMAP\\n'
  for i in $(seq 0 255); do printf '<U%04X> /x%02x c\\n' $i $i; done; echo END CHARMAP; } >charmap
printf 'LC_CTYPE\\nupper <U0041>\\nlower <U0061>\\nEND LC_CTYPE\\n' >source
localedef -c -i ./source -f ./charmap ./latin1 2>/dev/null
export LOCPATH=$PWD LC_CTYPE=latin1
unset LC_ALL
[ "$(python3 -I -c 'import sys; print(sys.getfilesystemencoding())')" = iso8859-1 ] || exit 77
printf 'printf %%s "\\303\\251\\342\\202\\254\\351" | od -An -tx1 >bytes\\n' >list
llsub [1,1] --tasks list --local >&2 && cat bytes && sh LLSUB.1/launch.sh >&2
"""
"""A locale in which Python does not read and write names as UTF-8."""


def test_tasks_are_the_bytes_that_were_submitted_in_every_locale(cluster: Cluster) -> None:
    ran = cluster.as_user("alice", f"cd {HOME}; {LATIN_1}")
    if ran.returncode == 77:
        pytest.skip("localedef cannot make a locale with ISO-8859-1 on this machine")
    assert (ran.returncode, ran.stdout.split()) == (0, ["c3", "a9", "e2", "82", "ac", "e9"]), ran.stderr


def test_a_script_that_is_edited_later_is_resumed_as_it_was_submitted(cluster: Cluster) -> None:
    """With --script=current, as it is now."""

    def write(text: str) -> None:
        cluster.as_user("alice", f"cat > {HOME}/v.sh; chmod +x {HOME}/v.sh", input=f"#!/bin/bash\n{text}\n", check=True)

    def ran(*words: str) -> tuple[int, str, str]:
        found = llsub(cluster, *words, "--wait")
        said = cluster.as_user("alice", f"cd {HOME}; cat ran; rm ran", check=True).stdout
        return found.returncode, said, found.stderr

    write("echo one >> ran; exit 3")
    assert ran("./v.sh", "[1,1]", "--options=-w n1")[:2] == (1, "one\n")
    write("echo two >> ran")
    code, said, noted = ran("--resume", "LLSUB.1")
    assert (code, said) == (1, "one\n")
    assert "v.sh is not as it was at submission; the run has it as submitted (--script=current: as it is now" in noted
    assert ran("--resume", "LLSUB.1", "--script=current")[:2] == (0, "two\n")


A_AND_B = """cd ~/llsub; for name in a b; do
printf '#!/bin/bash\\n[ "$LLSUB_TASK" = 0 ] && touch up.%s && until [ -e go ]; do sleep 0.1; done
echo %s $LLSUB_TASK >> ran; [ -e good ]\\n' $name $name > $name.sh; chmod +x $name.sh; done
"""


def test_a_renamed_run_is_its_own_and_not_the_one_that_has_its_name(cluster: Cluster) -> None:
    """Renamed while it ran, after it ended, and moved with the folder of its tasks; with a job and without Slurm."""

    def sh(script: str, code: int = 0) -> str:
        found = cluster.as_user("alice", f"cd {HOME}; {script}")
        assert found.returncode == code, found.stdout + found.stderr
        return str(found.stdout + found.stderr)

    sh(A_AND_B)
    job = submitted(cluster, "./a.sh", "[1,1]", "--ntasks=2", "--options=-w n1")
    until(lambda: sh("ls").count("up.a") == 1, "the first task")
    copied = sh("cp -r LLSUB.1 copy; llsub --resume copy", 2)
    assert f"copy is a copy of {HOME}/LLSUB.1, whose job {job} is still in the queue" in copied
    sh("rm -r copy; mv LLSUB.1 expA")
    busy = sh("llsub --resume expA", 2)
    assert f"job {job} of expA is still in the queue" in busy
    ids = "llstat -h -j %s | awk 'NR > 1 { print $1 }'"
    assert sh(ids % "expA").split() == [str(job)]
    other = submitted(cluster, "./b.sh", "[1,1]", "--options=-w n2")  # has the free number: LLSUB.1
    assert sh(ids % "LLSUB.1").split() == [str(other)]
    sh("touch go")
    assert (cluster.wait(job), cluster.wait(other)) == ("FAILED", "FAILED")
    assert sorted(sh("cat ran").split("\n")) == ["", "a 0", "b 0"]
    log = sh(f"cat expA/llsub-triple-mode-launch.log-{job}")
    assert "was renamed, moved or removed while it ran: no further task starts on n1" in log
    assert "LLSUB.1: this is another run: the run of this job was renamed or moved" in log
    assert "0 of 2 tasks are done; see" in sh("llsub --watch expA", 1)

    sh("rm ran; touch good; cp -r expA copy")
    sh("llsub --resume expA --wait")
    assert sh("cat ran") == "a 0\na 1\n"
    sh("cd ..; rm llsub/ran; rm -rf moved; mv llsub moved; mkdir llsub; cd moved; llsub --resume copy --wait")
    assert sh("cat ../moved/ran; ls") == "a 0\na 1\n"
    sh("mv ../moved/* .; rmdir ../moved; rm -r ran expA good LLSUB.1")

    sh("llsub ./a.sh [1,2] --local", 1)
    sh("mv LLSUB.1 expL; llsub ./b.sh [1,2] --local", 1)
    sh("rm ran; touch good; llsub --resume expL")
    assert sorted(sh("cat ran").split("\n")) == ["", "a 0", "a 1"]
    sh("rm -r expL/p* ran; expL/launch.sh")
    assert sorted(sh("cat ran").split("\n")) == ["", "a 0", "a 1"]


def test_a_killed_run_says_what_is_left_and_is_resumed_once(cluster: Cluster) -> None:
    """scancel in mid-run; two resumptions at the same moment are one; no task that was done runs again."""
    job = submitted(cluster, "./slow.sh", "[2,4]", "--options=-w n2,n3")
    wait_for_tasks(cluster, job, 4)
    busy = llsub(cluster, "--resume", "LLSUB.1")
    assert (busy.returncode, f"job {job} of LLSUB.1 is still in the queue" in busy.stderr) == (2, True)
    cluster.as_user("alice", f"scancel {job}; touch {HOME}/go", check=True)
    cluster.wait(job)
    log = launch_log(cluster, job)
    assert "4 of 8 ranks done" in log
    assert "runs these 4 again" in log
    both = cluster.as_user("alice", f"cd {HOME}; llsub --resume LLSUB.1 & llsub --resume LLSUB.1; wait")
    assert len(re.findall(r"^job \d+: 4 of 8 tasks of LLSUB.1 are left; its env", both.stdout, re.MULTILINE)) == 1
    assert llsub(cluster, "--watch").returncode == 0
    ran = cluster.as_user("alice", f"cd {HOME}; cat ran.*; ls ran.* | wc -l", check=True).stdout.split()
    assert ran == ["ran"] * 8 + ["8"]
    again = llsub(cluster, "--resume", "LLSUB.1")
    assert (again.returncode, "LLSUB.1: all 8 tasks are done" in again.stdout) == (0, True)


@pytest.mark.weekly
def test_without_our_half_on_the_nodes_the_launchers_deal_the_gpus(cluster: Cluster) -> None:
    with Cluster.up(name_for("noplugin"), cluster.slurm_release, without=("plugin",)) as bare:
        bare.as_user("alice", f"mkdir {HOME}; cat > {HOME}/task.sh; chmod +x {HOME}/task.sh", input=TASK, check=True)
        found = ranks(done(bare, "./task.sh", "[2,8]", "--options=-w n2,n3"))
        some = llsub(bare, "./task.sh", "[1,2]", "-g", "1", "--share-gpu=mem=1G", "--wait")
        assert some.returncode == 0, some.stdout + some.stderr
        assert "this site has no --share-gpu" in some.stderr
        text = bare.as_user("alice", f"cat {HOME}/LLSUB.2/p*_*/*.log.*", check=True).stdout
    assert len(found) == 16
    assert set(Counter(gpu for _, _, gpu, _ in found.values()).values()) == {4}
    assert len({gpu for _, _, gpu, _ in ranks(text).values()}) == 1


@pytest.mark.weekly
def test_where_devices_and_memory_are_confined_each_rank_has_its_gpu(cluster: Cluster) -> None:
    """ConstrainDevices: a step can use the GPUs that it asked for and no other."""
    with cluster_of("confined", cluster.slurm_release, cgroup=True) as confined:
        confined.as_user(
            "alice", f"mkdir {HOME}; cat > {HOME}/task.sh; chmod +x {HOME}/task.sh", input=TASK, check=True
        )
        found = ranks(done(confined, "./task.sh", "[2,8]", "--options=-w n2,n3"))
    assert set(Counter(gpu for _, _, gpu, _ in found.values()).values()) == {4}


@pytest.mark.parametrize(("words", "expected"), [("-i", "gpus= cpus=1"), ("-i -g 1 -q gpu", "gpus=0 cpus=1")])
@pytest.mark.weekly
def test_a_shell_on_a_core(cluster: Cluster, words: str, expected: str) -> None:
    assert expected in shell(cluster, words)


@pytest.mark.weekly
def test_a_shell_on_a_whole_node_has_all_of_it(cluster: Cluster) -> None:
    assert "gpus=0,1 cpus=8" in shell(cluster, "-i full --options='-w n2'")


def shell(cluster: Cluster, words: str) -> str:
    """Return what a login shell of llsub prints on a terminal about its GPUs and CPUs."""
    ask = "echo gpus=$CUDA_VISIBLE_DEVICES cpus=$SLURM_CPUS_ON_NODE\nexit\n"
    line = f'script -qec "llsub {words}" /dev/null'
    return cluster.as_user("alice", line, input=ask).stdout
