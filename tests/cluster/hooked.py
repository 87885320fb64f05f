"""One node of a local cluster as its hooks see it: run hooks, list MPS processes, find leftovers."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

from localcluster import Cluster, process
from localcluster.records import driver_file
from slurm_share.core.errors import ConfigError
from slurm_share.share import lua_settings

ALICE, BOB = 2001, 2002
USERS = {ALICE: "alice", BOB: "bob"}
BIN = "/opt/slurm-share/bin/slurm-share-"
STATE = "/run/slurm-share"
USER = f"{STATE}/user"
"""Folders that users can write to."""
LOG = "/var/log/slurm-share.log"
PART = {"SLURM_JOB_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_EXCLUSIVE": "USER"}
"""Variables that slurmd sets for a job with a share of one GPU, besides what it sets for every job."""
MPS = """\
for pid in $(pgrep -x nvidia-cuda-mps); do
    p=/proc/$pid
    [ "$(awk '{print $3}' $p/stat 2>/dev/null)" != Z ] || continue
    command=$(tr '\\0' ' ' 2>/dev/null <$p/cmdline)
    case "$command" in *nvidia-cuda-mps-control*-d*|*nvidia-cuda-mps-server*) ;; *) continue ;; esac
    echo "$pid $(stat -c %U $p 2>/dev/null)" \
         "$(echo "$command" | grep -o 'nvidia-cuda-mps-[a-z]*' | head -n1)" \
         "$(tr '\\0' '\\n' 2>/dev/null <$p/environ | sed -n 's/^CUDA_MPS_PIPE_DIRECTORY=//p')" \
         "$(tr '\\0' '\\n' 2>/dev/null <$p/environ | sed -n 's/^CUDA_VISIBLE_DEVICES=//p')"
done
"""
"""Prints the daemons and servers of MPS, one a line. A control client has the daemon's name."""
GROUPS = "find /sys/fs/cgroup -type d -path '*/slurm-share/uid_*/*'"
"""Prints the cgroups of MPS daemons, one for each controller."""
WITHOUT_OURS = "function slurm_job_submit() return 0 end\nfunction slurm_job_modify() return 0 end\n"
"""A job_submit.lua that does not call ours."""
PATIENCE_S = 300.0
"""Time limit for what takes a second on an idle machine."""


def until(true: Callable[[], object], what: str, why: Callable[[], str] = str) -> None:
    """Wait until `true()` holds; otherwise fail with `what` and `why()`."""
    process.wait_until(true, what, PATIENCE_S, every_s=0.1, why=why)


def output_of(cluster: Cluster, job: int, user: str = "alice") -> str:
    """Return what a batch job has printed so far."""
    return _text(cluster.home / f"{user}/slurm-{job}.out")


def completed(cluster: Cluster, script: str, *options: str, user: str = "alice") -> str:
    """Run a batch job, which must complete, and return its output."""
    job = cluster.sbatch(user, script, *options)
    state, output = cluster.wait(job), cluster.output(job)
    assert state == "COMPLETED", output
    return output


def requeue(cluster: Cluster, job: int) -> None:
    """Requeue a job and let it start in three seconds: Slurm would wait for two minutes.

    Not at once: slurmd takes a launch in the second of the job's end for one of the run that ended.
    """
    cluster.exec("ctl", ["scontrol", "requeue", str(job)])  # fails where Slurm has done it by itself
    until(lambda: "JobState=PENDING" in cluster.job(job), "the job's way back to the queue", lambda: cluster.job(job))
    cluster.exec("ctl", ["scontrol", "update", f"jobid={job}", "starttime=now+3"], check=True)


def end(cluster: Cluster, job: int) -> None:
    """Cancel a job and wait until its Epilog is done."""
    cluster.exec("ctl", ["scancel", str(job)])
    cluster.wait(job)


def resume(cluster: Cluster, name: str) -> None:
    """Put a node back in service, drained or not."""
    cluster.exec("ctl", ["scontrol", "update", f"nodename={name}", "state=resume"])
    until(lambda: cluster.status().nodes[name] in ("idle", "mixed", "allocated"), f"{name} in service")


def check_empty(cluster: Cluster, *names: str) -> None:
    """Check that nothing of a share is left on these nodes; boot those with leftovers, for the next test."""
    remains = {name: Node(cluster, name).remains() for name in names}
    for name in filter(remains.get, names):
        cluster.reboot(name)
    assert not any(remains.values()), remains


@contextlib.contextmanager
def rewritten(file: Path, text: str) -> Iterator[str]:
    """Replace the text of a file while the block runs; yield what it was."""
    before = file.read_text()
    file.write_text(text)
    try:
        yield before
    finally:
        file.write_text(before)


def why_not_idle(cluster: Cluster) -> str:
    """Return Slurm's reason for each node that takes no job."""
    return cluster.exec("ctl", ["sinfo", "-R", "-o", "%N %T %E"]).stdout


def write_config(cluster: Cluster, text: str) -> None:
    """Write config.toml and the settings for job_submit.lua, here: Python on a host takes as long as a short job."""
    file = cluster.site / "config.toml"
    file.write_text(text)
    with contextlib.suppress(ConfigError):  # job_submit.lua keeps the earlier settings, as after the command
        new = file.with_name("new")
        new.write_text(lua_settings.expected(file))
        new.replace(file.with_name(lua_settings.NAME))


@contextlib.contextmanager
def configured(cluster: Cluster, *lines: str) -> Iterator[None]:
    """Change lines of the site's configuration while the block runs; each replaces the line with its key."""
    before = (cluster.site / "config.toml").read_text()
    keys = tuple(line.split(" =")[0] for line in lines)
    kept = [line for line in before.splitlines() if not line.startswith(keys)]
    write_config(cluster, "\n".join([*kept, *lines]) + "\n")
    try:
        yield
    finally:
        write_config(cluster, before)


@contextlib.contextmanager
def slurm_conf(cluster: Cluster, *lines: str) -> Iterator[None]:
    """Add lines to slurm.conf while the block runs."""
    file = cluster.conf / "slurm.conf"
    reconfigure = ["scontrol", "reconfigure"]
    try:
        with rewritten(file, "\n".join([file.read_text(), *lines, ""])):
            cluster.exec("ctl", reconfigure, check=True)
            yield
    finally:
        cluster.exec("ctl", reconfigure, check=True)


@dataclass(frozen=True)
class Mps:
    """A process of MPS on a node."""

    pid: int
    user: str
    role: str
    pipe: str
    gpu: str


class Node:
    """A compute node."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name

    # ---- hooks ----

    def hook_argv(
        self, which: str, job: int, *, uid: int = ALICE, gpus: str = "0", share: str | None = "2", **more: str
    ) -> list[str]:
        """Return the command that starts the hook with the environment that slurmd sets."""
        environ = {"SLURM_JOB_ID": str(job), "SLURM_JOB_UID": str(uid), "SLURM_JOB_GID": str(uid)}
        environ |= {"SLURM_JOB_EXTRA": "slurm-share=on"}
        environ |= {"SLURMD_NODENAME": self.name, "SLURM_JOB_USER": USERS[uid], "CUDA_VISIBLE_DEVICES": gpus}
        environ |= {} if share is None else {"SPANK_SHARE_GPU": share}
        environ |= more
        return ["env", "-i", *(f"{key}={value}" for key, value in environ.items()), BIN + which]

    def hook(self, which: str, job: int, **options: str | int | None) -> CompletedProcess[str]:
        """Run a hook to its end; its output is read to the end of file, as slurmd does."""
        return self.run(*self.hook_argv(which, job, **options))  # type: ignore[arg-type]

    def prolog(self, job: int, **options: str | int | None) -> None:
        """Run a Prolog that must end with 0."""
        done = self.hook("prolog", job, **options)
        assert done.returncode == 0, done.stderr

    def epilog(self, job: int, **options: str | int | None) -> None:
        """Run an Epilog that must end with 0."""
        done = self.hook("epilog", job, **options)
        assert done.returncode == 0, done.stderr

    @contextlib.contextmanager
    def job(self, job: int, **options: str | int | None) -> Iterator[None]:
        """Run a job's Prolog and, after the block, its Epilog; both must end with 0."""
        self.prolog(job, **options)
        yield
        self.epilog(job, **options)

    def background(self, argv: list[str], user: str | None = None) -> int:
        """Start a program that outlives this call, in a session of its own; its pid there."""
        text = f"setsid -f bash -c 'echo $$ > /tmp/pid; exec \"$@\"' - {shlex.join(argv)} >/tmp/out 2>&1 </dev/null"
        self.run("rm", "-f", "/tmp/pid", "/tmp/out")
        if user is None:
            self.run("bash", "-c", text)
        else:
            self.cluster.as_user(user, text, node=self.name, check=True)
        pid_file = self.cluster.root(self.name) / "tmp/pid"
        until(lambda: pid_file.exists() and pid_file.read_text().strip(), "the start of a program")
        return int(pid_file.read_text())

    def task(self, job: int, slot: int = 0, user: str = "alice", memory: str = "100M", **environ: str) -> int:
        """Start a program on the GPU of that slot in the job's plan; return its PID once it is on the GPU."""
        return self.on_gpu(user, {**self.slot(job, slot), **environ}, memory)

    def on_gpu(self, user: str | None, environ: dict[str, str], memory: str = "100M") -> int:
        """Start a program on a GPU that runs until it is killed; return its PID once it is on the GPU."""
        words = [f"{key}={value}" for key, value in environ.items()]
        pid = self.background(["env", *words, "simgpu-task", "--memory", memory, "--seconds", "600"], user)
        until(lambda: "simgpu-task: host" in self.run("cat", "/tmp/out").stdout, "a task on the GPU")
        return pid

    # ---- looking ----

    def run(self, *argv: str) -> CompletedProcess[str]:
        """Run a program as root."""
        return self.cluster.exec(self.name, argv, timeout=PATIENCE_S)

    def log(self) -> str:
        """Return what the hooks have logged since `forget_log`."""
        return _text(self._file(LOG))

    def forget_refusals(self) -> None:
        """Remove the counted refusals: three in ten minutes drain the node, also from other tests."""
        self._file(f"{STATE}.refusals").unlink(missing_ok=True)

    def forget_log(self) -> None:
        """Begin a new log."""
        with self._file(LOG).open("a") as file:
            file.truncate(0)

    def plan(self, job: int) -> str:
        """Return the job's plan as it stands in its file; empty where there is none."""
        return _text(self._file(f"{STATE}/jobs/{job}/plan"))

    def slot(self, job: int, number: int) -> dict[str, str]:
        """Return the environment of one slot."""
        line = re.search(rf"^slot {number} .*\nenvironment (.*)$", self.plan(job), re.MULTILINE)
        assert line, self.plan(job)
        pairs = (word.split("=", 1) for word in line[1].split())
        return {name: value for name, value in pairs if not name.endswith("?")}

    def ledger(self) -> dict[str, list[dict[str, object]]]:
        """Return the ledger; an empty one if the file is missing."""
        return _ledger(_text(self._file(f"{STATE}/ledger")))

    def jobs(self) -> list[int]:
        """Return the jobs in the ledger."""
        return [int(str(entry["job_id"])) for entry in self.ledger()["jobs"]]

    def mps(self, role: str = "daemon") -> list[Mps]:
        """Return the MPS processes on the node, as the kernel lists them."""
        return [one for one in self._all_mps(self.run("bash", "-c", MPS).stdout) if one.role == role]

    @staticmethod
    def _all_mps(said: str) -> list[Mps]:
        """Return what the script MPS printed."""
        roles = {"nvidia-cuda-mps-control": "daemon", "nvidia-cuda-mps-server": "server"}
        rows = [line.split() for line in said.splitlines()]
        rows = [row for row in rows if len(row) > 2 and row[2] in roles]  # others ended while they were looked at
        found = [Mps(int(row[0]), row[1], roles[row[2]], *[*row[3:], "", ""][:2]) for row in rows]
        return sorted(found, key=lambda one: one.pid)

    def daemon_groups(self) -> list[str]:
        """Return the cgroups of MPS daemons, without mount and controller, each once."""
        return _named(self.run("bash", "-c", GROUPS).stdout)

    def alive(self, pid: int) -> bool:
        """Return whether a process exists and is no zombie."""
        return self.run("bash", "-c", f"grep -q '^State:.[^ZX]' /proc/{pid}/status 2>/dev/null").returncode == 0

    def uuid(self, gpu: int) -> str:
        """Return the UUID of a GPU."""
        return self.gpu_value(gpu, "uuid")

    def compute_mode(self, gpu: int = 0) -> str:
        """Return the compute mode of a GPU, NVML's number."""
        return self.gpu_value(gpu, "compute_mode")

    def gpu_value(self, gpu: int, key: str) -> str:
        """Return the last value in the state file of a simulated GPU."""
        return str(re.findall(rf"^{key}=(.*)$", (self._simgpu / f"gpu{gpu}").read_text(), re.MULTILINE)[-1])

    def remains(self) -> list[str]:
        """Return what is left of shares on the node; nothing once all jobs have left.

        Without the notes of what ended jobs have used: a process that no hook waits for removes them
        (report/after_end.py; test_report.py).
        """
        known = (
            "ledger",
            "ledger.lock",
            "jobs",
            "unshared",
            "user",
            "user/jobs",
            "user/mps",
            "no-mps",
            "usage",
            "usage/*",
            "gpu-jobs",
            "gpu-jobs/.lock",
            "gpu-chunks",
        )
        others = " ".join(f"! -path ./{path}" for path in known)
        script = f"""{MPS}
            echo ----; cd {STATE} 2>/dev/null && find . -mindepth 1 {others}; find /dev/shm -mindepth 1
            echo ----; {GROUPS}
            echo ----; cat {STATE}/ledger
            echo ----; ps -eo user:12,pid,args --no-headers"""
        mps, files, groups, ledger_text, processes = self.run("bash", "-c", script).stdout.split("----\n")
        found = [f"{one.role} {one.pid} of {one.user}" for one in self._all_mps(mps)]
        found += files.split()
        found += _named(groups)
        ledger = _ledger(ledger_text)
        found += [f"ledger: {key} {ledger[key]}" for key in ("jobs", "modes", "leaving") if ledger.get(key)]
        gpus = [int(file.name[3:]) for file in self._simgpu.glob("gpu[0-9]*")]
        found += [f"GPU {gpu} in mode {self.compute_mode(gpu)}" for gpu in gpus if self.compute_mode(gpu) != "0"]
        return found + [line for line in processes.splitlines() if line.split()[0] in USERS.values()]

    # ---- faults ----

    @contextlib.contextmanager
    def fault(self, name: str, text: str = "") -> Iterator[None]:
        """Plant a fault of the simulated MPS while the block runs (packaging/demo/simgpu/simmps_common.py has them)."""
        file = self._simgpu / name
        file.write_text(text)
        try:
            yield
        finally:
            file.unlink()

    @contextlib.contextmanager
    def driver(self, release: int) -> Iterator[None]:
        """Give the simulated GPUs the driver of a release while the block runs."""
        with rewritten(self._simgpu / "driver", driver_file(release)):
            yield

    @contextlib.contextmanager
    def gpu_file(self, gpu: int, line: str | None) -> Iterator[None]:
        """Add a line to a simulated GPU's file, or remove the GPU (None), while the block runs."""
        file = self._simgpu / f"gpu{gpu}"
        before = file.read_text()
        if line is None:
            file.unlink()
        else:
            file.write_text(f"{before}{line}\n")
        try:
            yield
        finally:
            file.write_text(before)

    @property
    def _simgpu(self) -> Path:
        return self._file("/run/simgpu")

    def _file(self, path: str) -> Path:
        """Return a file of the node as seen from outside, where no program has to be started to read it."""
        return self.cluster.root(self.name) / path.lstrip("/")


def _text(file: Path) -> str:
    """Return a file's text; empty where there is none."""
    try:
        return file.read_text(errors="replace")
    except FileNotFoundError:
        return ""


def _ledger(text: str) -> dict[str, list[dict[str, object]]]:
    return json.loads(text)["ledger"] if text else {"jobs": [], "modes": [], "leaving": []}  # type: ignore[no-any-return]


def _named(folders: str) -> list[str]:
    return sorted({folder[folder.index("/slurm-share/") :] for folder in folders.split()})


def of_release(plugin: bytes, built: str, wanted: str) -> bytes:
    """Return the plugin's object with another version of Slurm in it than the one it was built for."""

    def number(version: str) -> bytes:
        major, minor, micro = map(int, re.findall(r"\d+", version)[:3])
        return (major << 16 | minor << 8 | micro).to_bytes(4, "little")

    assert number(built) in plugin
    return plugin.replace(number(built), number(wanted))


@contextlib.contextmanager
def bobs_daemon(node: Node) -> Iterator[int]:
    """Start an MPS daemon of bob's in the default pipe directory; yield its PID."""
    logs = "/tmp/nvidia-mps/logs"
    line = f"mkdir -p {logs}; CUDA_MPS_LOG_DIRECTORY={logs} nvidia-cuda-mps-control -d"
    node.cluster.as_user("bob", line, node=node.name, check=True)
    (daemon,) = [one for one in node.mps() if one.user == "bob"]
    try:
        yield daemon.pid
    finally:
        node.run("kill", "-9", str(daemon.pid))
        node.run("rm", "-rf", "/tmp/nvidia-mps")


FORGER = r"""
#include <slurm/spank.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
SPANK_PLUGIN(forger, 1);
int slurm_spank_init_post_opt(spank_t sp, int ac, char **av)
{
	(void) ac; (void) av;
	if (spank_context() != S_CTX_ALLOCATOR && spank_context() != S_CTX_LOCAL)
		return 0;
	const char *name = getenv("FORGED_NAME"), *value = getenv("FORGED_VALUE");
	if (name && value)
		spank_job_control_setenv(sp, name, value, 1);
	const char *count = getenv("FORGED_COUNT"), *bytes = getenv("FORGED_BYTES");
	if (!count || !bytes)
		return 0;
	char *text = calloc(1, atol(bytes) + 1), number[32];
	memset(text, 'x', atol(bytes));
	for (long i = 0; i < atol(count); i++) {
		snprintf(number, sizeof number, "E%ld", i);
		spank_job_control_setenv(sp, number, text, 1);
	}
	return 0;
}
"""


def forging_conf(cluster: Cluster) -> str:
    """Return bob's own slurm.conf. Its plugin puts the variable FORGED_NAME into a job or step as SPANK_ variable, and
    FORGED_COUNT variables of FORGED_BYTES."""
    home = "/home/bob"
    (cluster.home / "bob/forger.c").write_text(FORGER)
    build = f"""gcc -shared -fPIC -o {home}/forger.so {home}/forger.c && cp /etc/slurm/slurm.conf {home}/slurm.conf
        echo 'PlugStackConfig={home}/plugstack.conf' >> {home}/slurm.conf
        echo 'optional {home}/forger.so' > {home}/plugstack.conf"""
    cluster.as_user("bob", build, check=True)
    return f"{home}/slurm.conf"


def start_agent(node: Node) -> None:
    """Start the agent again as the cluster starts it."""
    node.run(
        "bash",
        "-c",
        "setsid -f env -i PATH=/usr/bin setpriv --reuid slurm-share --regid slurm-share --init-groups "
        "--inh-caps +net_bind_service --ambient-caps +net_bind_service "
        "/usr/local/bin/slurm-share agent >>/var/log/slurm-share-agent.log 2>&1",
    )
