"""The local cluster itself: a real Slurm whose hosts are separate and which leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from clusters import CONFINED, WITHOUT, name_for
from hooked import until

import localcluster.cluster as cluster_module
import localcluster.locks as cluster_locks
import localcluster.paths as cluster_paths
from localcluster import (
    Cluster,
    ClusterError,
    CommandFailed,
    Misuse,
    NotDone,
    conf,
    layers,
    namespaces,
    process,
    rootfs,
    take_down,
    tools,
)
from localcluster.records import RELEASES, Root

PROGRAM = Path(cluster_paths.HERE).parent / "cluster"
BARE = ("python", "plugin", "simgpu")


def traces(name: str) -> dict[str, object]:
    """Return what a cluster could leave on the machine. Processes and mounts keep a namespace alive."""
    return {
        "processes": sorted(namespaces.processes(name)),
        "mounts": Path("/proc/self/mounts").read_text(),
        "cgroups": sorted(map(str, namespaces.cgroups(name))),
        "links": subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout,
        "run": sorted(str(path) for path in cluster_paths.RUN_ROOT.glob(f"{name}*")),
        "half-made": sorted(str(path) for path in cluster_paths.cache().glob(f".making-*-{os.getpid()}")),
    }


def namespaces_of(pids: Iterable[int]) -> set[str]:
    """Return the namespaces of these processes that are not our own."""
    spaces = set()
    for pid in pids:
        for kind in ("mnt", "net", "pid", "uts", "ipc", "cgroup"):
            try:
                spaces.add(str(Path(f"/proc/{pid}/ns/{kind}").readlink()))
            except OSError:
                continue  # ended meanwhile
    return spaces - (
        {str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("mnt", "net", "pid", "uts", "ipc", "cgroup")}
    )


def processes_started_before(moment_s: float) -> list[int]:
    """Return PIDs of processes started before that many ticks after boot (/proc/PID/stat)."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            started = int((path / "stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        except (OSError, IndexError):
            continue  # ended meanwhile
        if started < moment_s:
            found.append(int(path.name))
    return found


def assert_gone(name: str, before: dict[str, object]) -> None:
    """Check that nothing of the cluster is left on the machine."""
    assert before["processes"] == before["cgroups"] == before["run"] == []
    assert traces(name) == before


def run_cli(*words: str, timeout_s: float = 120.0, umask: int = -1) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), *words],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
        umask=umask,
        check=False,
    )


# ---- values only: no root, no cluster -------------------------------------------------------------------------------


def test_accounting_is_a_layer_over_the_root_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only for whoever asks; and where apt cannot install it, what it said and the way out, and no half layer."""
    made: list[str] = []

    def inside(root: Path, argv: Sequence[str], *, layer: Path, **_: object) -> str:
        made.append(layer.name)
        (layer / "upper").mkdir()
        if len(made) == 1:
            raise CommandFailed(argv, 100, "E: Version '24.11.5-4' for 'slurmdbd' was not found")
        return ""

    monkeypatch.setenv("SLURM_SHARE_CACHE", str(tmp_path))
    monkeypatch.setattr(rootfs, "inside", inside)
    monkeypatch.setattr(tools, "debian_mirror", lambda: "http://mirror.example.org/debian/")
    root = Root("24.11", "24.11.5", "3.13", "/the/root")
    assert layers.stack(root, ()) == "/the/root"
    with pytest.raises(ClusterError, match=r"(?s)'slurmdbd' was not found.*delete .*/\*-24\.11-\* and try again"):
        layers.stack(root, (), accounting=True)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
    first, second = (layers.stack(root, (), accounting=True) for _ in range(2))
    assert first == second
    assert first.split(":") == [str(path / "upper") for path in tmp_path.glob("layer-*")] + ["/the/root"]
    assert len(made) == 2


def test_agents_need_our_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "require_root", lambda: None)
    with pytest.raises(Misuse, match="omit --without python"):
        Cluster.up("none", prometheus=True, without=("python",))


@pytest.mark.parametrize(
    ("release", "version", "accepted"),
    [
        ("26.05", "26.05.5", True),
        ("26.05", "27.05.0", True),
        ("26.05", "25.11.9", False),
        ("24.11", "24.11.5", True),
        ("24.11", "25.05.1", False),
    ],
)
def test_a_release_accepts_the_versions_it_stands_for(release: str, version: str, accepted: bool) -> None:
    assert rootfs.accepts(RELEASES[release], version) is accepted


def test_a_version_is_read_from_what_slurmctld_says() -> None:
    assert rootfs.parse_version("slurm-wlm 26.05.5\n") == "26.05.5"
    with pytest.raises(ClusterError, match="names no version"):
        rootfs.parse_version("slurmctld: command not found")


def test_the_mirror_is_the_one_apt_uses_for_debian_itself() -> None:
    """apt-get indextargets also lists third parties and the security archive, which has no whole suite."""
    text = (
        "Google|Google|https://packages.example.org/apt/\n"
        "Debian|Debian-Security|http://mirror.example.org/debian-security/\n"
        "Debian|Debian|http://mirror.example.org/debian/\n"
    )
    assert tools.parse_mirror(text) == "http://mirror.example.org/debian/"
    assert tools.parse_mirror("") is None


def test_a_changed_source_file_gives_another_layer(tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "dispatch.c").write_text("int a;")
    first = layers.fingerprint(tmp_path, layers.sources(tmp_path, ["plugin"]))
    (tmp_path / "plugins" / "dispatch.o").write_text("machine code")
    assert layers.fingerprint(tmp_path, layers.sources(tmp_path, ["plugin"])) == first
    (tmp_path / "plugins" / "dispatch.c").write_text("int b;")
    assert layers.fingerprint(tmp_path, layers.sources(tmp_path, ["plugin"])) != first


def test_the_callers_umask_comes_back(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with contextlib.suppress(KeyError), process.usual_umask(), process.usual_umask():
            (tmp_path / "inside").write_text("")
            raise KeyError
        assert os.umask(0o077) == 0o077
        inner, outer = process.usual_umask(), process.usual_umask()
        inner.__enter__()
        outer.__enter__()
        inner.__exit__(None, None, None)
        (tmp_path / "still").write_text("")
        outer.__exit__(None, None, None)
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("inside", "still")] == [0o644, 0o644]


def test_a_bare_machine_gets_the_demos_tools_too(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[str] = []
    monkeypatch.setattr(shutil, "which", lambda program, path: None if program == "column" else f"/usr/bin/{program}")
    monkeypatch.setattr(tools, "_install", lambda packages: installed.extend(packages))
    tools.need_run_tools()
    assert installed == ["bsdextrautils"]


@pytest.mark.parametrize("through", ["its own first line", "an interpreter"])
def test_the_callers_python_settings_do_not_matter(tmp_path: Path, can_make_clusters: None, through: str) -> None:
    """Its safe path does not matter; nor, where the program itself is run, its home and its modules of our names."""
    env = {**os.environ, "PYTHONSAFEPATH": "1"}
    argv = [sys.executable, str(PROGRAM), "list"]
    if through == "its own first line":
        (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
        (tmp_path / "localcluster.py").write_text("raise SystemExit('the wrong localcluster')")
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        env |= {"PYTHONHOME": "/nonsense", "PYTHONPATH": str(tmp_path), "PYTHONWARNINGS": "error", "PATH": path}
        argv = argv[1:]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_root_list_says_so_and_calls_no_cluster_broken() -> None:
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); from localcluster import cli;"
        "os.geteuid() or os.setuid(65534); sys.exit(cli.main(['list']))"
    )
    argv = [sys.executable, "-c", code, str(PROGRAM.parent)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "hence root; run this with sudo" in done.stderr


def test_a_missing_part_of_the_checkout_is_named_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_paths, "CHECKOUT", tmp_path)
    with pytest.raises(Misuse, match=r"no plugins/Makefile and no plugins/job_submit\.lua.*--without plugin"):
        layers.require(["plugin"])


def test_the_stable_release_runs_where_the_current_one_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def made(release: object) -> object:
        if release is RELEASES["26.05"]:
            raise ClusterError("the mirror is away")
        return release

    monkeypatch.setattr(rootfs, "root_of", made)
    assert str(rootfs.root_for("26.05")) == str(RELEASES["24.11"])
    (said,) = capsys.readouterr().err.splitlines()
    assert "THIS CLUSTER RUNS SLURM 24.11 INSTEAD" in said
    assert "the mirror is away" in said


@pytest.mark.parametrize("version", ["24.11.5", "25.05.1"])
def test_a_root_appears_whole_under_its_name_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """Nothing else appears in the cache, whatever the outcome; debootstrap and apt are replaced."""

    def inside(root: Path, argv: Sequence[str], **_: object) -> str:
        return {"slurmctld": f"slurm-wlm {version}", "python3": "3.13\n"}.get(argv[0], "")

    monkeypatch.setenv("SLURM_SHARE_CACHE", str(tmp_path))
    monkeypatch.setattr(rootfs, "inside", inside)
    monkeypatch.setattr(rootfs, "_prepare_apt", lambda root: None)
    monkeypatch.setattr(tools, "need_build_tools", lambda: None)
    monkeypatch.setattr(tools, "debian_mirror", lambda: "http://mirror.example.org/debian/")
    monkeypatch.setattr(process, "run", lambda argv: None)
    if version == "24.11.5":
        root = rootfs.root_for("24.11")
        assert (root.slurm_version, root.python_version) == ("24.11.5", "3.13")
        assert Path(root.path).parent.parent == tmp_path
    else:
        with pytest.raises(ClusterError, match=r"trixie carries Slurm 25\.05\.1 today, not 24\.11"):
            rootfs.root_for("24.11")
    made = [path.name for path in tmp_path.iterdir() if path.is_dir()]
    assert len(made) == (version == "24.11.5")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--name", "Not A Name", "status"], "cannot name a cluster"),
        (["--name", "nobody-made-this", "status"], "is not up"),
        (["--slurm", "22.05", "up"], "not one of 26.05, 24.11"),
        (["--without", "everything", "up"], "its parts are python, plugin, simgpu"),
        (["--nodes", "0", "up"], "1 to 200 compute nodes"),
        (["up", "--nodes", "many"], "invalid int value"),
        (["fly"], "invalid choice"),
    ],
)
def test_a_mistake_is_answered_with_a_sentence_and_code_2(
    words: list[str], sentence: str, can_make_clusters: None
) -> None:
    done = run_cli(*words)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


# ---- a shared cluster of each release -------------------------------------------------------------------------------


@pytest.mark.cluster
@pytest.mark.weekly
def test_slurm_is_real_and_the_release_asked_for(cluster: Cluster) -> None:
    said = cluster.exec("login", ["sinfo", "--version"], check=True).stdout
    assert rootfs.parse_version(said) == cluster.slurm_version
    assert cluster.slurm_version.startswith("24.11" if cluster.slurm_release == "24.11" else "2")


@pytest.mark.cluster
@pytest.mark.weekly
def test_hosts_have_their_own_names_processes_and_folders(cluster: Cluster) -> None:
    boots, pids = set(), set()
    for node in cluster.hosts:
        assert cluster.exec(node, ["hostname"]).stdout.strip() == node
        boots.add(cluster.exec(node, ["cat", "/proc/sys/kernel/random/boot_id"]).stdout)
        pids.add(cluster.exec(node, ["sh", "-c", "ls -d /proc/[0-9]* | wc -l"]).stdout.strip())
        assert cluster.exec(node, ["sh", "-c", f"[ ! -e /tmp/here ] && echo {node} > /tmp/here"]).returncode == 0
    assert len(boots) == len(cluster.hosts)
    assert all(int(count) < 30 for count in pids)


@pytest.mark.cluster
@pytest.mark.weekly
def test_a_refused_submission_raises_with_slurms_own_words(cluster: Cluster) -> None:
    with pytest.raises(CommandFailed, match="Invalid generic resource") as error:
        cluster.sbatch("alice", "true", "--gres=tpu:1", "-p", "plain")
    assert error.value.returncode == 1


@pytest.mark.cluster
@pytest.mark.weekly
def test_an_array_has_the_state_of_its_first_failure(cluster: Cluster) -> None:
    job = cluster.sbatch(
        "alice", "echo task $SLURM_ARRAY_TASK_ID; exit $SLURM_ARRAY_TASK_ID", "--array=0-2", "-p", "plain"
    )
    assert cluster.wait(job) == "FAILED"
    assert cluster.output(job) == "task 0\ntask 1\ntask 2\n"


@pytest.mark.cluster
@pytest.mark.weekly
def test_a_program_past_its_time_is_ended_on_the_host_too(cluster: Cluster) -> None:
    with pytest.raises(NotDone):
        cluster.exec("login", ["sleep", "4711"], timeout=0.2)
    end = time.monotonic() + 120
    while cluster.exec("login", ["pgrep", "-f", "sleep 4711"]).returncode == 0:
        assert time.monotonic() < end, "it still runs"


@pytest.mark.cluster
@pytest.mark.weekly
def test_a_program_that_signals_its_group_does_not_end_its_caller(cluster: Cluster) -> None:
    """A process group reaches across pid namespaces, and so would `kill 0` of root's on a host."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from localcluster import Cluster; "
        "print(Cluster.attach(sys.argv[2]).exec('n1', ['/bin/bash', '-c', 'kill -9 0']).returncode)"
    )
    argv = [sys.executable, "-c", code, str(PROGRAM.parent), cluster.name]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, start_new_session=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "-9\n", "")


@pytest.mark.cluster
@pytest.mark.weekly
def test_codes_input_and_streams_pass_through_the_command_line(cluster: Cluster) -> None:
    name = ["--name", cluster.name]
    assert run_cli(*name, "as", "alice", "--", "sh", "-c", "exit 7").returncode == 7
    assert run_cli(*name, "exec", "n1", "--", "no-such-program").returncode == 127
    done = run_cli(*name, "as", "--on", "n2", "bob", "--", "sh", "-c", "hostname; echo $HOME; echo err >&2")
    assert (done.stdout, done.stderr, done.returncode) == ("n2\n/home/bob\n", "err\n", 0)
    assert run_cli(*name, "exec", "n77", "--", "true").returncode == 2
    assert run_cli(*name, "as", "carol", "--", "true").returncode == 2
    assert run_cli(*name, "exec", "n1", "--", "sh", "-c", "umask", umask=0o077).stdout == "0022\n"
    again = run_cli(*name, "up")
    assert again.returncode == 2
    assert "is up already" in again.stderr


@pytest.mark.cluster
@pytest.mark.weekly
@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&- 2>&-"])
def test_closed_streams_are_empty_ones(cluster: Cluster, closed: str) -> None:
    """A daemon or a cron job may have closed streams; the program inside finds one open at each number."""
    look = "for n in 0 1 2; do [ -e /proc/self/fd/$n ] || exit 9; done; exit 7"
    shell = ["bash", "-c", f'"$@" {closed}', "bash", sys.executable, str(PROGRAM), "--name", cluster.name]
    for words, code in ((["exec", "n1", "--", "sh", "-c", look], 7), (["list"], 0), (["as", "carol"], 2)):
        done = subprocess.run([*shell, *words], capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.cluster
@pytest.mark.weekly
@pytest.mark.parametrize(
    "words", [["--slurm", "1"], ["--nodes", "0"], ["--without", "everything"]], ids=["slurm", "nodes", "without"]
)
def test_a_slip_is_answered_before_the_old_cluster_is_gone(cluster: Cluster, words: list[str]) -> None:
    for verb in ("down", "up"):
        done = run_cli("--name", cluster.name, *words, verb)
        assert done.returncode == 2
        assert "up already" not in done.stderr
    assert cluster.status().nodes


@pytest.mark.cluster
@pytest.mark.weekly
@pytest.mark.skipif(bool(WITHOUT), reason="NOT TESTED: a part of our software was left out on request")
def test_the_example_job_in_every_home_runs(cluster: Cluster) -> None:
    assert cluster.as_user("bob", ["stat", "-c", "%U %G", "job.sh"]).stdout == "bob bob\n"
    done = cluster.as_user("alice", ["sbatch", "--parsable", "--share-gpu=4", "-w", "n2", "job.sh"], check=True)
    job = int(done.stdout)
    assert cluster.wait(job) == "COMPLETED", cluster.output(job)
    said = cluster.output(job).splitlines()
    assert len([line for line in said if " of 8 on n2: slot " in line and ", GPU GPU-" in line]) == 8, said
    assert len([line for line in said if line.startswith("simgpu-task: host n2")]) == 8, said


@pytest.mark.cluster
@pytest.mark.weekly
def test_a_reboot_gives_a_new_boot_and_keeps_the_disk(cluster: Cluster) -> None:
    boot_id = ["cat", "/proc/sys/kernel/random/boot_id"]
    before = cluster.exec("n2", boot_id).stdout
    marks = ["/run/mark", "/run/slurm-share/mark", "/tmp/mark", "/var/mark"]
    cluster.exec("n2", ["touch", *marks], check=True)
    cluster.reboot("n2")
    assert cluster.exec("n2", boot_id).stdout != before
    assert cluster.exec("n2", ["ls", *marks]).stdout == "/var/mark\n"
    done = cluster.as_user("alice", ["srun", "-p", "plain", "-w", "n2", "hostname"])
    assert done.stdout == "n2\n", done.stderr


# ---- clusters of their own ------------------------------------------------------------------------------------------


@pytest.fixture
def own_name(can_make_clusters: None) -> Iterator[str]:
    """Yield a name for a cluster that this test makes; take it down afterwards."""
    name = name_for("own")
    yield name
    take_down(name)


@pytest.mark.cluster
@pytest.mark.weekly
@pytest.mark.parametrize("release", list(RELEASES))
def test_down_leaves_nothing_behind(own_name: str, release: str) -> None:
    before = traces(own_name)
    try:
        up = Cluster.up(own_name, release, without=BARE, **CONFINED)
    except Misuse:  # cgroups are not to be had on this machine
        up = Cluster.up(own_name, release, without=BARE)
    with up as made:
        made.reboot("n2")
        made.wait_running(made.sbatch("alice", "setsid sleep 300 & sleep 300", "-N2"))
        made.exec("n1", ["sh", "-c", "setsid sleep 300 >/dev/null 2>&1 &"])
        inhabitants = namespaces.processes(own_name)
        spaces = namespaces_of(inhabitants)
        assert len(inhabitants) > 15
        assert len(spaces) > 20
        end_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert_gone(own_name, before)
    # A number may be given again to a namespace that somebody makes after the end; what is ours is older than that.
    assert not spaces & namespaces_of(processes_started_before(end_s))
    assert take_down(own_name) is False


@pytest.mark.cluster
@pytest.mark.weekly
@pytest.mark.parametrize("victim", ["first process", "n1", "every process"])
def test_down_clears_a_cluster_somebody_shot_at(own_name: str, victim: str) -> None:
    before = traces(own_name)
    made = Cluster.up(own_name, "24.11", without=BARE)
    run = cluster_paths.run_dir(own_name)
    if victim == "every process":
        targets = namespaces.processes(own_name)
    else:
        path = run / "first-process" if victim == "first process" else run / "hosts" / victim / "pid"
        targets = [int(path.read_text().split()[0])]
    for pid, ticks in [(pid, namespaces.start_ticks(pid)) for pid in targets]:
        if ticks is not None and ticks == namespaces.start_ticks(pid):  # else it fell with one before it
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    made.down()
    assert_gone(own_name, before)


@pytest.mark.cluster
@pytest.mark.weekly
@pytest.mark.parametrize(
    ("how", "after_s"),
    [
        (signal.SIGINT, 0.1),
        (signal.SIGINT, 0.55),
        (signal.SIGTERM, 0.3),
        (signal.SIGKILL, 0.3),
        (signal.SIGKILL, 0.55),
    ],
)
def test_an_interrupted_up_can_be_cleared(own_name: str, how: signal.Signals, after_s: float) -> None:
    before = traces(own_name)
    words = ["--name", own_name, "--slurm", "24.11", *(word for part in BARE for word in ("--without", part)), "up"]
    program = subprocess.Popen([sys.executable, str(PROGRAM), *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    time.sleep(after_s)
    program.send_signal(how)
    said = program.communicate(timeout=300)[0].decode()
    if how is signal.SIGKILL or program.returncode == 0:
        take_down(own_name)
    else:
        # -how, and Python's own words: before main() was reached
        assert program.returncode in (130, -how) or "init_import_site" in said, said
    assert_gone(own_name, before)


@pytest.mark.cluster
@pytest.mark.weekly
@pytest.mark.parametrize("release", list(RELEASES))
def test_accounts_are_kept_over_a_power_cut(own_name: str, release: str) -> None:
    """`up --accounting`, a job, `reboot ctl`: sacct still knows it, and keeps the next one; `down` leaves nothing."""
    before = traces(own_name)
    words = ["--name", own_name, "--slurm", release, *(word for part in BARE for word in ("--without", part))]
    done = run_cli(*words, "up", "--accounting", "--nodes", "1")
    assert done.returncode == 0, done.stderr
    with Cluster.attach(own_name) as made:
        if made.slurm_release != release:
            pytest.skip(f"NOT TESTED on Slurm {release}: only {made.slurm_version} can be made on this machine today")
        assert run_cli("--name", own_name, "status").stdout.startswith(
            f"cluster {own_name}: Slurm {made.slurm_version}, accounting\n"
        )
        assert made.exec("ctl", ["stat", "-c", "%U %a", "/etc/slurm/slurmdbd.conf"]).stdout == "slurm 600\n"
        assert made.exec("ctl", ["sh", "-c", "ss -ltn | grep -c :3306"]).stdout == "0\n"
        listed = made.as_user("bob", ["sacctmgr", "-nP", "list", "assoc", "account=lab", "format=cluster,user"])
        assert sorted(listed.stdout.split()) == ["demo|", "demo|alice", "demo|bob"]
        jobs = []
        for _ in range(2):
            jobs.append(made.sbatch("alice", "true", f"--comment=number{len(jobs)}"))
            made.wait(jobs[-1])
            kept = [f"{job}|lab|COMPLETED|sbatch --parsable --comment=number{n}" for n, job in enumerate(jobs)]
            look = ["sacct", "-X", "-n", "-P", "-o", "JobID,Account,State,SubmitLine"]
            said = made.as_user("alice", look).stdout.splitlines()
            end = time.monotonic() + 120
            while said != kept:  # slurmctld sends a job's end a moment after it calls the job completed
                assert time.monotonic() < end, said
                said = made.as_user("alice", look).stdout.splitlines()
            made.reboot("ctl")
            assert made.as_user("alice", look).stdout.splitlines() == kept
        daemons = made.exec("ctl", ["ps", "-C", "mariadbd,slurmdbd,slurmctld", "-o", "user=,comm="]).stdout.split()
        assert sorted(daemons) == ["mariadbd", "slurm", "slurm", "slurm", "slurmctld", "slurmdbd"]
    assert_gone(own_name, before)


@pytest.mark.cluster
@pytest.mark.weekly
@pytest.mark.parametrize(
    ("right", "wrong", "why"),
    [
        ("storage/mysql", "storage/nonsense", "accounting_storage/nonsense"),
        ("select/cons_tres", "select/nonsense", "select/nonsense"),
        ("setsid mariadbd", "setsid mariadbd --nonsense", "unknown option '--nonsense'"),
    ],
    ids=["slurmdbd", "slurmctld", "MariaDB"],
)
def test_a_daemon_that_does_not_start_says_why_and_nothing_is_left(
    own_name: str, monkeypatch: pytest.MonkeyPatch, right: str, wrong: str, why: str
) -> None:
    before = traces(own_name)
    for module, name in ((conf, "SLURMDBD_CONF"), (conf, "_BASE"), (cluster_module, "_START_SLURMDBD")):
        monkeypatch.setattr(module, name, getattr(module, name).replace(right, wrong))
    with pytest.raises(ClusterError, match=rf"(?s)daemons of ctl did not start: .*{why}"):
        Cluster.up(own_name, "24.11", without=BARE, nodes=1, accounting=True)
    assert_gone(own_name, before)


@pytest.mark.cluster
@pytest.mark.weekly
def test_the_second_of_two_simultaneous_ups_is_refused(own_name: str) -> None:
    words = ["--name", own_name, "--slurm", "24.11", *(word for part in BARE for word in ("--without", part)), "up"]
    both = [
        subprocess.Popen([sys.executable, str(PROGRAM), *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    said = [program.communicate(timeout=300)[1].decode() for program in both]
    assert sorted(program.returncode for program in both) == [0, 2], said
    assert "another process" in "".join(said) or "is up already" in "".join(said)
    assert Cluster.attach(own_name).as_user("alice", ["srun", "hostname"]).returncode == 0


@pytest.mark.cluster
@pytest.mark.weekly
def test_a_private_umask_and_a_private_clone_make_a_usual_cluster(
    own_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.umask(0o077)
    try:
        source = tmp_path / "packaging/demo/simgpu"
        source.mkdir(parents=True)
        (source / "probe").write_text(f"#!/bin/sh\necho {own_name}\n")
        (source / "probe").chmod(0o700)
        (source / "Makefile").write_text(
            "install:\n\tmkdir /opt/new; cp probe Makefile /opt/new; echo made >/opt/new/made\n"
        )
        monkeypatch.setattr(cluster_paths, "CHECKOUT", tmp_path)
        with Cluster.up(own_name, "24.11", without=("python", "plugin"), nodes=1) as made:
            layer = Path(made.layer_stack.split(":")[0]).parent
            assert os.umask(0o077) == 0o077
            look = "cat /opt/new/Makefile /opt/new/made /etc/hosts /etc/slurm/slurm.conf >/dev/null && /opt/new/probe"
            for _ in range(2):
                done = made.as_user("alice", ["srun", "sh", "-c", look])
                assert done.stdout == f"{own_name}\n", done.stderr
                assert made.as_user("alice", "umask").stdout == "0022\n"
                made.reboot("n1")
        shutil.rmtree(layer)
    finally:
        os.umask(before)


@pytest.mark.cluster
@pytest.mark.weekly
def test_up_without_its_sources_clears_nothing(own_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of an earlier cluster stays for inspection until a new one can be made."""
    left = cluster_paths.run_dir(own_name) / "log"
    left.mkdir(parents=True)
    monkeypatch.setattr(cluster_paths, "CHECKOUT", tmp_path)
    with pytest.raises(Misuse, match="use a complete checkout"):
        Cluster.up(own_name, "24.11", without=("python", "simgpu"))
    assert left.exists()


@pytest.mark.cluster
@pytest.mark.weekly
def test_a_broken_build_leaves_no_half_layer(own_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("plugins", "packaging/demo"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "plugins" / "job_submit.lua").write_text("")
    (tmp_path / "plugins" / "Makefile").write_text("install:\n\t@echo this compiler is unhappy; exit 1\n")
    monkeypatch.setattr(cluster_paths, "CHECKOUT", tmp_path)
    before = traces(own_name)
    for _ in range(2):
        with pytest.raises(Misuse, match=r"(?s)this compiler is unhappy.*--without plugin"):
            Cluster.up(own_name, "24.11", without=("python", "simgpu"))
    assert_gone(own_name, before)


@pytest.mark.cluster
@pytest.mark.weekly
def test_a_killed_build_leaves_no_process_and_is_cleared_by_the_next(own_name: str, tmp_path: Path) -> None:
    compiler = f"sleep 4712.{os.getpid()}"  # nobody else's, and holding the lock of all who install this release
    for name in ("plugins", "packaging/demo"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "plugins" / "job_submit.lua").write_text("")
    (tmp_path / "plugins" / "Makefile").write_text(f"install:\n\t{compiler}\n")
    code = (
        "import pathlib, sys; sys.path.insert(0, sys.argv[1]); from localcluster import Cluster, paths;"
        "paths.CHECKOUT = pathlib.Path(sys.argv[2]); Cluster.up(sys.argv[3], '24.11', without=('python', 'simgpu'))"
    )
    argv = [sys.executable, "-c", code, str(PROGRAM.parent), str(tmp_path), own_name]
    program = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    try:
        until(lambda: _running(compiler) or program.poll() is not None, "the build")
        assert program.poll() is None
        # its own folder only: the other folders of that kind belong to tests that run at this moment
        (left,) = cluster_paths.cache().glob(f".making-layer-24.11-site-*-{program.pid}")
    finally:
        program.kill()
        program.wait()
        try:
            until(lambda: not _running(compiler), "the end of the build")
        finally:
            subprocess.run(["pkill", "-9", "-fx", compiler], check=False)
    another = tmp_path / "plugins" / "Makefile"
    another.write_text("install:\n\t@echo this compiler is unhappy; exit 1\n")
    assert subprocess.run(argv, stderr=subprocess.DEVNULL, check=False, timeout=120).returncode != 0
    assert not left.exists()


def _running(command: str) -> bool:
    return subprocess.run(["pgrep", "-fx", command], stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_a_lock_that_is_never_let_go_names_its_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the process that holds the lock."""
    monkeypatch.setattr(cluster_locks, "_LONGEST_S", 0.1)
    with cluster_locks.waiting(tmp_path / "one.lock"):
        holder = rf"is held for more than 0 s by process {os.getpid()};"
        with pytest.raises(ClusterError, match=holder), cluster_locks.waiting(tmp_path / "one.lock"):
            pass
    assert capsys.readouterr().err == "  waiting for another process that is making the same (one)\n"


def test_a_folder_is_made_anew_after_a_killed_builder_and_others_stay(tmp_path: Path) -> None:
    for name in (".making-one-ab-1", ".making-oneself-1"):
        (tmp_path / name / "half").mkdir(parents=True)

    def fill(making: Path) -> None:
        assert re.fullmatch(rf"\.making-one-[ac][bd]-{os.getpid()}", making.name)
        assert not (tmp_path / ".making-one-ab-1").exists()
        (making / "whole").touch()

    for name in ("one-ab", "one-cd"):
        home = cluster_locks.made_once(tmp_path / name, fill, kind="one-")
        assert [path.name for path in home.iterdir()] == ["whole"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".making-oneself-1", "one-ab", "one-cd"]
