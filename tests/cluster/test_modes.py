"""The mode is the lesser of the controller's and the node's, whichever is switched first."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Iterator

import pytest
from hooked import WITHOUT_OURS, Node, completed, configured, end, output_of, rewritten, until

from localcluster import Cluster

pytestmark = pytest.mark.cluster

SLOTS = "srun bash -c 'echo slot ${SLURM_SHARE_SLOT-none}'"
ONE_GPU = ("-wn2", "--share-gpu=2", "--gres=gpu:1")
WHOLE = ("-wn2", "--share-gpu=2")
ORDER = ("off", "observe", "on")
EVERY_CHANGE = (("on", "on"), ("on", "off"), ("off", "on"), ("on", "observe"), ("observe", "on"))
"""Modes of the controller and of a node that are tried in every change; the others are weekly."""


@pytest.fixture
def n2(cluster: Cluster) -> Node:
    return Node(cluster, "n2")


@contextlib.contextmanager
def own_configuration(node: Node, *lines: str) -> Iterator[None]:
    """Give this node a config.toml that differs from that of other hosts in these lines."""
    folder = node.cluster.root(node.name) / "var/own"
    folder.mkdir(exist_ok=True)
    keys = tuple(line.split(" =")[0] for line in lines)
    before = (node.cluster.site / "config.toml").read_text().splitlines()
    (folder / "config.toml").write_text(
        "\n".join([*lines, *(old for old in before if not old.startswith(keys))]) + "\n"
    )
    node.run("mount", "--bind", "/var/own", "/etc/slurm-share")
    try:
        yield
    finally:
        node.run("umount", "/etc/slurm-share")


def slots(output: str) -> list[str]:
    return sorted(re.findall("^slot .*", output, re.MULTILINE))


def extra(cluster: Cluster, job: int) -> str:
    found = re.search(r"\bExtra=(\S*)", cluster.job(job))
    return found[1] if found else ""


def test_status_names_the_partition_that_shares_and_blames_no_driver_where_none_is_needed(
    cluster: Cluster, n2: Node
) -> None:
    with own_configuration(n2, 'mode = "observe"', 'partition.gpu.mode = "on"'):
        said = n2.run("slurm-share", "status").stdout
        assert "observes only and shares nothing, except in partition gpu, where sharing is on" in said
    login = cluster.as_user("alice", ["slurm-share", "status"])
    assert (login.returncode, login.stderr) == (0, "")
    assert login.stdout == "login is no compute node of Slurm; run `slurm-share status` on one, or in a job\n"
    without = "sed 's/ Gres=[^ ]*//' /etc/slurm/slurm.conf >/tmp/cpus.conf; mount --bind /dev/null /usr/local/lib/lib"
    without += "nvidia-ml.so.1"
    said = n2.run(
        "unshare", "-m", "sh", "-c", f"{without}; slurm-share status; SLURM_CONF=/tmp/cpus.conf slurm-share status"
    )
    assert said.stdout.splitlines() == ["n2: no shared job", "n2 has no GPUs to share: slurm.conf gives it none"]
    assert said.stderr.count("NVML Shared Library Not Found") == 1


@pytest.mark.release
@pytest.mark.parametrize(
    ("controllers", "own"),
    [
        pytest.param(*both, marks=() if both in EVERY_CHANGE else pytest.mark.weekly)
        for both in itertools.product(ORDER, repeat=2)
    ],
)
def test_a_job_shares_where_controller_and_node_both_do_and_fails_nowhere(
    cluster: Cluster, n2: Node, controllers: str, own: str
) -> None:
    n2.forget_log()
    with configured(cluster, f'mode = "{controllers}"'), own_configuration(n2, f'mode = "{own}"'):
        job = cluster.sbatch("alice", SLOTS, *ONE_GPU, "--extra=hers")
        assert cluster.wait(job) == "COMPLETED", output_of(cluster, job)
        assert extra(cluster, job).startswith(f"hers;slurm-share={controllers}")
    if controllers == own == "on":
        assert slots(output_of(cluster, job)) == ["slot 0", "slot 1"]
    else:
        assert set(slots(output_of(cluster, job))) == {"slot none"}
        assert "node n2 does not share its GPUs: this runs unshared" in output_of(cluster, job)
    assert own != "off" or n2.log() == ""
    assert n2.run("find", "/run/slurm-share/jobs", "/run/slurm-share/unshared", "-mindepth", "1").stdout == ""


@pytest.mark.release
@pytest.mark.parametrize("who", ["controller", "node"])
def test_an_srun_in_sallocs_shell_runs_unshared_where_either_is_off(cluster: Cluster, n2: Node, who: str) -> None:
    """The shell is on the login host, which knows the controller's verdict and no node's: nothing ends with 69."""
    lines = ['mode = "off"'] if who == "controller" else []
    own = 'mode = "on"' if who == "controller" else 'mode = "off"'
    with configured(cluster, *lines), own_configuration(n2, own):
        done = cluster.as_user("alice", ["salloc", *ONE_GPU, "bash", "-c", SLOTS])
    assert (done.returncode, set(done.stdout.split("\n"))) == (0, {"slot none", ""}), done.stderr
    assert "node n2 does not share its GPUs: this runs unshared" in done.stderr


@pytest.mark.release
def test_a_job_that_came_past_our_script_shares_only_where_the_site_says_it_has_none(
    cluster: Cluster, n2: Node
) -> None:
    """No verdict is off; with job_submit = false the node's own mode counts, whatever a user wrote himself."""
    rows = {(): "slot none", ("job_submit = false",): "slot 0", ("job_submit = false", 'mode = "off"'): "slot none"}
    with rewritten(cluster.conf / "job_submit.lua", WITHOUT_OURS):
        for lines, expected in rows.items():
            with configured(cluster, *lines):
                assert slots(completed(cluster, SLOTS, *ONE_GPU))[0] == expected, lines


@pytest.mark.release
def test_the_verdict_is_the_administrators_to_change(cluster: Cluster) -> None:
    """A user's own is taken out and cannot be put in; his other text, and every other field, is his to change."""

    def update(user: str | None, *words: str) -> str:
        argv = ["scontrol", "update", f"jobid={job}", *words]
        done = cluster.as_user(user, argv) if user else cluster.exec("ctl", argv)
        return done.stderr if done.returncode else ""

    job = cluster.sbatch("alice", SLOTS, *ONE_GPU, "--hold", "--extra=slurm-share=off;hers")
    try:
        assert extra(cluster, job) == "hers;slurm-share=on,share-gpu=2"
        assert "only administrators may set" in update("alice", "extra=slurm-share=off")
        assert update("alice", "extra=new") == ""
        assert extra(cluster, job) == "new;slurm-share=on,share-gpu=2"
        assert update("alice", "timelimit=3", "comment=mine") == ""
        assert "only administrators may set" in update("alice", "comment=slurm-share=off")
        as_slurm = ["setpriv", "--reuid=slurm", "--regid=slurm", "--clear-groups"]
        cluster.exec("ctl", [*as_slurm, "scontrol", "update", f"jobid={job}", "extra=new;slurm-share=off"], check=True)
        assert update(None, "extra=new;slurm-share=on") == ""
        cluster.exec("ctl", ["scontrol", "release", str(job)], check=True)
        assert cluster.wait(job) == "COMPLETED"
        assert slots(output_of(cluster, job)) == ["slot 0", "slot 1"]
    finally:
        end(cluster, job)


SEQUENCES = [
    ("ctl off", "n2 off"), ("n2 off", "ctl off"), ("ctl off", "n2 off", "ctl on"), ("n2 off", "ctl off", "n2 on"),
    ("ctl off", "n2 off", "n2 on", "ctl on"), ("n2 off", "ctl off", "ctl on", "n2 on"),
]  # fmt: skip
"""Orders in which the mode is switched on the hosts."""


def switch(cluster: Cluster, host: str, word: str, *options: str, code: int = 0) -> str:
    """Run `slurm-share off` or `on` there and return its output."""
    done = cluster.exec(host, ["slurm-share", word, *options])
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def held(cluster: Cluster) -> int:
    """Start alice's shared job on all of n2; its tasks run once there is a file `go`."""
    cluster.as_user("alice", "rm -f go", check=True)
    job = cluster.sbatch("alice", f"echo up; until [ -e go ]; do sleep .1; done; {SLOTS}", *WHOLE)
    until(lambda: "up\n" in output_of(cluster, job), "a job that runs")
    return job


def waits(cluster: Cluster, job: int) -> bool:
    return "JobState=PENDING " in cluster.exec("ctl", ["scontrol", "-o", "show", "job", str(job)]).stdout


@pytest.mark.parametrize(
    "sequence",
    [*SEQUENCES[::3], *(pytest.param(one, marks=pytest.mark.weekly) for one in SEQUENCES if one not in SEQUENCES[::3])],
    ids=", ".join,
)
def test_running_jobs_keep_and_pending_ones_get_what_was_switched_in_any_order(
    cluster: Cluster, n2: Node, sequence: tuple[str, ...]
) -> None:
    """The running job has its slots to the end, the pending one those that both then give it; none fails."""
    with configured(cluster), own_configuration(n2):
        running = held(cluster)
        pending = cluster.sbatch("alice", SLOTS, *WHOLE, "--extra=hers")
        state = {"ctl": "on", "n2": "on"}
        for step in sequence:
            host, word = step.split()
            switch(cluster, host, word, *(["--cluster"] if host == "ctl" else []))
            state[host] = word
        assert extra(cluster, pending) == f"hers;slurm-share={state['ctl']},share-gpu=2"
        cluster.as_user("alice", "touch go", check=True)
        assert [cluster.wait(job) for job in (running, pending)] == ["COMPLETED", "COMPLETED"]
    assert slots(output_of(cluster, running)) == [f"slot {slot}" for slot in range(4)]
    is_shared = state == {"ctl": "on", "n2": "on"}
    assert slots(output_of(cluster, pending)) == ([f"slot {slot}" for slot in range(4)] if is_shared else ["slot none"])
    assert n2.run("find", "/run/slurm-share/jobs", "/run/slurm-share/unshared", "-mindepth", "1").stdout == ""


@pytest.mark.release
def test_off_and_on_leave_every_line_of_the_file_as_it_was(cluster: Cluster) -> None:
    with configured(cluster, 'mode = "observe"  # for now', '[partition.gpu]\nmode = "on"   # ours'):
        before = (cluster.site / "config.toml").read_text()
        words = switch(cluster, "ctl", "off", "--cluster")
        assert "switched_off = true; before: mode observe, mode on in partition gpu" in words
        assert slots(completed(cluster, SLOTS, *ONE_GPU, "-pgpu")) == ["slot none"]
        assert "nothing is changed" in switch(cluster, "ctl", "off", "--cluster")
        assert "now again: mode observe, mode on in partition gpu" in switch(cluster, "ctl", "on", "--cluster")
        assert (cluster.site / "config.toml").read_text() == before
        assert "nothing is changed" in switch(cluster, "ctl", "on", "--cluster")
        assert slots(completed(cluster, SLOTS, *ONE_GPU, "-pgpu")) == ["slot 0", "slot 1"]


@pytest.mark.release
def test_arrays_and_requeued_jobs_are_switched_as_well(cluster: Cluster, n2: Node) -> None:
    """Pending elements are switched, running ones are not; a job that is requeued does not share again."""
    with configured(cluster):
        running = held(cluster)
        array = cluster.sbatch("alice", SLOTS, *ONE_GPU, "--array=1-6:2,9%2", "-oarray-%a.out")
        words = switch(cluster, "ctl", "off", "--cluster")
        assert "1 job runs shared" in words
        assert "4 pending jobs will run unshared" in words
        assert extra(cluster, running) == "slurm-share=on,runs=1,share-gpu=2"
        assert extra(cluster, array) == "slurm-share=off,share-gpu=2"
        done = cluster.exec("ctl", ["scontrol", "update", f"jobid={running}", "extra=slurm-share=off"])
        assert "the job runs and keeps what it was given" in done.stdout + done.stderr
        cluster.as_user("alice", "touch go", check=True)
        cluster.exec("ctl", ["scontrol", "requeue", str(running)], check=True)
        assert cluster.wait(array) == "COMPLETED"
        # Slurm lets it wait for two minutes; its new credential has to be younger than the end of the old one
        until(lambda: waits(cluster, running), "a requeued job that waits")
        cluster.exec("ctl", ["scontrol", "update", f"jobid={running}", "StartTime=now+2"], check=True)
        assert cluster.wait(running) == "COMPLETED"
        assert slots(output_of(cluster, running)) == ["slot none"]
        assert set(slots(cluster.as_user("alice", "cat array-*.out").stdout)) == {"slot none"}


@pytest.mark.release
def test_switching_says_where_and_by_whom_it_can_be_done(cluster: Cluster) -> None:
    assert "where slurmctld runs (ctl), and this is n1" in switch(cluster, "n1", "off", "--cluster", code=2)
    done = cluster.as_user("alice", ["slurm-share", "off"])
    assert done.returncode == 1
    assert "run this as root" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.release
def test_a_mode_file_switches_nodes_off_and_hurts_no_job_where_it_cannot_be_read(cluster: Cluster, n2: Node) -> None:
    """Missing, no file, hanging and unreadable it says nothing; what it says counts, and what is no word is off."""
    file = "/home/site-mode"
    rows = {
        "rm -rf $f": "slot 0",
        "echo on > $f": "slot 0",
        "echo off > $f": "slot none",
        "echo observe > $f": "slot none",
        "echo of > $f": "slot none",
        "rm $f; mkdir $f": "slot 0",
        "rmdir $f; mkfifo $f": "slot 0",
    }
    with configured(cluster, f'mode_file = "{file}"'):
        try:
            for change, expected in rows.items():
                cluster.exec(
                    "ctl", ["bash", "-c", f"f={file}; {change}; touch -d '1 minute ago' $f 2>&-; true"], check=True
                )
                if change.startswith("rm -rf"):
                    cluster.exec("ctl", ["rm", file])
                assert slots(completed(cluster, SLOTS, *ONE_GPU))[0] == expected, change
            cluster.exec("ctl", ["rm", "-rf", file])
            assert f"{file}: off" in switch(cluster, "ctl", "off", "--cluster")
            assert cluster.exec("n2", ["cat", file]).stdout == "off\n"
            switch(cluster, "ctl", "on", "--cluster")
            assert cluster.exec("n2", ["cat", file]).stdout == "on\n"
        finally:
            cluster.exec("ctl", ["rm", "-rf", file])


REMOTE = """\
import socket, subprocess
server = socket.create_server(("", 7999))
while True:
    caller, _ = server.accept()
    words = caller.recv(65536).decode().split("\\0")
    done = subprocess.run(words, capture_output=True)
    caller.sendall(bytes([done.returncode]) + done.stdout)
    caller.close()
"""
CALL = """\
import socket, sys
with socket.create_connection((sys.argv[1], 7999), 300) as node:
    node.sendall("\\0".join(sys.argv[2:]).encode())
    data = b"".join(iter(lambda: node.recv(65536), b""))
sys.stdout.write(data[1:].decode())
sys.exit(data[0])
"""
"""A substitute for ssh: runs a command on a node and returns output and exit code."""


@pytest.fixture
def remote(cluster: Cluster) -> Iterator[dict[str, int]]:
    """Yield a way to run a command on each node of this cluster, and who answers there."""
    (cluster.root("ctl") / "var/call.py").write_text(CALL)
    servers = {}
    for name in ("n1", "n2", "n3"):
        (cluster.root(name) / "var/serve.py").write_text(REMOTE)
        servers[name] = Node(cluster, name).background(["python3", "/var/serve.py"])
    yield servers
    for name, pid in servers.items():
        cluster.exec(name, ["kill", "-9", str(pid)])


@pytest.mark.release
def test_status_of_the_cluster_has_a_line_for_each_node_and_names_modes_that_differ(
    cluster: Cluster, n2: Node, remote: dict[str, int]
) -> None:
    """Mode, shares, daemons; a node that does not answer has a reason, and the exit code says so."""
    call = 'remote_command = ["python3", "/var/call.py", "NODE"]'
    with configured(cluster, call), own_configuration(n2, 'mode = "observe"'):
        job = cluster.sbatch("alice", "echo up; sleep 600", "-wn3", *ONE_GPU[1:])
        until(lambda: "up\n" in output_of(cluster, job), "a job that runs")
        done = cluster.exec("ctl", ["slurm-share", "status", "--cluster"], check=True)
        lines = [line.split() for line in done.stdout.splitlines()]
        assert lines[0] == ["ctl:", "mode", "on"]
        assert [line[:1] + line[2:] for line in lines[2:5]] == [
            ["n1", "on", "0", "0", "0"],
            ["n2", "observe", "0", "0", "0"],
            ["n3", "on", "1", "2", "1"],
        ]
        assert "mode observe on n2, unlike ctl; the more restrictive of the two counts there" in done.stdout
        done = cluster.exec("ctl", ["slurm-share", "doctor", "--cluster", "--also", "n[2-3]", "--except", "modules"])
        assert done.returncode in (1, 2), done.stderr
        for line in ("FAIL n2 controller-mode: ", "WARN ctl process-tracking: ", "SKIP n[1-3] agent: "):
            assert f"\n{line}" in f"\n{done.stdout}"
        assert done.stdout.splitlines()[-1].startswith("4 hosts: ")
        cluster.exec("n1", ["kill", "-9", str(remote["n1"])])
        done = cluster.exec("ctl", ["slurm-share", "doctor", "--cluster", "--json", "--except", "modules"])
        assert list(json.loads(done.stdout)["not_examined"]) == ["n1"]
        assert done.returncode in (2, 3)
        done = cluster.exec("ctl", ["slurm-share", "status", "--cluster", "--json"])
        assert done.returncode == 1
        answer = json.loads(done.stdout)
        assert (answer["mode"], answer["differ"]) == ("on", ["n2"])
        n1, _, n3 = answer["nodes"]
        assert n1["mode"] is None
        assert "refused" in n1["problem"].lower()
        assert (n3["jobs"], n3["slots"], n3["daemons"], n3["problem"]) == ([job], 2, 1, None)
        end(cluster, job)


SUBMISSIONS = [
    ("--share-gpu=4",),
    ("--share-gpu=4", "-n3"),
    ("--share-gpu=2,mem=8G",),
    ("--share-gpu=4", "--gres=gpu:1"),
    ("--share-gpu=4", "--gres=gpu:2"),
    ("--share-gpu=4", "--gres=gpu:1", "-n1"),
    ("--share-gpu=1", "--gres=gpu:1", "-n1"),
    ("--share-gpu=2", "--gpus=1"),
    ("--share-gpu=2", "--gpus=2"),
    ("--share-gpu=2", "--gpus-per-task=1", "-n2"),
    ("--share-gpu=2,mps=off", "--gres=gpu:1"),
    ("--share-gpu=8", "--gres=gpu:1"),  # more than max_share
    ("--share-gpu=2", "--gres=shard:1"),
    ("--share-gpu=2", "--gres=gpu:0"),
]
PREDICTED = {
    r"observe: would be shared: job \d+ of uid \d+: (\d+ slots, \d+ under MPS), on ([^;]*);": "shared",
    r"observe: would be refused: (job \d+ cannot have .*)()": "refused",
    r"observe: job \d+ of uid \d+: would be refused at submission()()": "at submission",
}
DONE = {
    r"prolog: job \d+ of uid \d+: (\d+ slots, \d+ under MPS), on (.*)": "shared",
    r"prolog: refused: (job \d+ cannot have .*)()": "refused",
}


def outcome(log: str, forms: dict[str, str]) -> tuple[str, str, int]:
    """Return what a log says of one job: the decision, its words, how many GPUs."""
    for form, word in forms.items():
        found = re.search(form, log)
        if found:
            return word, re.sub(r"job \d+", "job", found[1]), found[2].count("GPU-")
    return "nothing", log, 0


@pytest.mark.release
def test_what_observing_predicts_is_what_on_does(cluster: Cluster, n2: Node) -> None:
    """The same submissions, observed and then shared: the same decision, slots, daemons and number of GPUs."""
    found: dict[str, list[tuple[str, str, int]]] = {"observe": [], "on": []}
    for mode, forms in (("observe", PREDICTED), ("on", DONE)):
        with configured(cluster, f'mode = "{mode}"', "max_share = 6"):
            for options in SUBMISSIONS:
                n2.forget_log()
                n2.forget_refusals()
                argv = ["sbatch", "--parsable", "-wn2", "-pgpu", *options, "--wrap=true"]
                done = cluster.as_user("alice", argv)
                if done.returncode == 0:
                    cluster.wait(int(done.stdout))
                    found[mode].append(outcome(n2.log(), forms))
                else:
                    found[mode].append(("at submission", "", 0))
    told = dict(zip(SUBMISSIONS, found["observe"], strict=True))
    assert told == dict(zip(SUBMISSIONS, found["on"], strict=True))
    assert [word for word, _, _ in told.values()] == ["shared"] * 11 + ["refused", "at submission", "at submission"]


def test_the_headline_command_is_not_said_to_be_refused_beside_another_users_job(cluster: Cluster, n2: Node) -> None:
    with configured(cluster, 'mode = "observe"'):
        other = cluster.sbatch("bob", "echo up; sleep 600", "-pplain", "-wn2")
        until(lambda: "up\n" in output_of(cluster, other, "bob"), "bob's job")
        n2.forget_log()
        cluster.wait(cluster.sbatch("alice", "true", "-pplain", "-wn2", "--share-gpu=4"))
        line = next(line for line in n2.log().splitlines() if "would be" in line)
        end(cluster, other)
    assert "would be shared: " in line
    assert ": 8 slots, 8 under MPS, on " in line
    assert line.endswith(f"with MPS, when other users' jobs have left the node ({other})")


@pytest.mark.release
def test_the_verdict_may_travel_in_the_comment(cluster: Cluster) -> None:
    with configured(cluster, 'verdict_field = "comment"'):
        job = cluster.sbatch("alice", SLOTS, *ONE_GPU, "--comment=hers", "--extra=other")
        assert cluster.wait(job) == "COMPLETED"
        assert extra(cluster, job) == "other"
        assert "Comment=hers;slurm-share=on,share-gpu=2" in cluster.job(job)
    assert slots(output_of(cluster, job)) == ["slot 0", "slot 1"]


JOURNAL = "/run/systemd/journal/socket"
JOURNALD = f"""
import os, socket
os.makedirs(os.path.dirname("{JOURNAL}"), exist_ok=True)
link = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
link.bind("{JOURNAL}")
while True:
    entry = link.recv(65536)
    with open("/run/entries", "ab") as file:
        file.write(entry + b"\\n")
"""
"""Takes entries as journald does."""


def test_the_hooks_log_to_the_journal_and_to_the_file_where_none_is(cluster: Cluster, n2: Node) -> None:
    journald = n2.background(["/opt/slurm-share/bin/python", "-c", JOURNALD])
    until(lambda: n2.run("test", "-S", JOURNAL).returncode == 0, "the journal's socket")
    n2.forget_log()
    with configured(cluster, 'log = "journal"'):
        job = cluster.sbatch("alice", SLOTS, *ONE_GPU)
        assert cluster.wait(job) == "COMPLETED"

        def programs() -> set[str]:
            entries = n2.run("cat", "/run/entries").stdout.split("\n\n")
            own = [entry for entry in entries if f"\nSLURM_JOB_ID={job}\n" in f"{entry}\n"]
            assert all("\nSYSLOG_IDENTIFIER=slurm-share\n" in entry for entry in own)
            return {word for word in ("prolog", "epilog") for entry in own if f"MESSAGE={word}: " in entry}

        until(lambda: programs() == {"prolog", "epilog"}, "both hooks in the journal")
        assert n2.log() == ""
        n2.run("kill", "-9", str(journald))  # its socket stays, as after a crash
        again = cluster.sbatch("alice", SLOTS, *ONE_GPU)
        assert cluster.wait(again) == "COMPLETED"
        assert f"job {again} " in n2.log()
    n2.run("rm", "-r", "/run/systemd/journal", "/run/entries")


def test_an_ordinary_job_is_let_in_where_the_controller_is_off_and_its_node_is_not(cluster: Cluster, n2: Node) -> None:
    listed = 'exclusive_user_nodes = ["n2"]'
    with own_configuration(n2, 'mode = "on"', listed):
        first = cluster.sbatch("alice", "echo up; sleep 600", "-pplain", "-wn2")
        until(lambda: "up\n" in output_of(cluster, first), "alice's job")
        with configured(cluster, listed, "exclusive_user_partitions = []"):
            assert cluster.wait(cluster.sbatch("bob", "echo ran", "-pplain", "-wn2")) == "FAILED"
            n2.forget_refusals()
        with configured(cluster, 'mode = "off"', listed):
            forged = "--extra=slurm-share=on"
            assert cluster.wait(cluster.sbatch("bob", "echo ran", "-pplain", "-wn2", forged)) == "COMPLETED"
        end(cluster, first)


def test_a_program_does_not_run_half_with_slots_and_half_without(cluster: Cluster) -> None:
    """One of two nodes is off: its tasks end with a sentence, so that nobody takes half a result for the whole."""
    with own_configuration(Node(cluster, "n3"), 'mode = "off"'):
        job = cluster.sbatch("alice", SLOTS, "-N2", "-wn2,n3", "--share-gpu=1", "--gres=gpu:1", "--ntasks-per-node=1")
        assert cluster.wait(job) == "FAILED"
    assert slots(output_of(cluster, job)) == ["slot 0"]
    assert "but node n3 has no plan for it: its tasks here have no slot" in output_of(cluster, job)
