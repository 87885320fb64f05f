"""A running local cluster: real slurmctld and slurmd on hosts made of namespaces."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import NoReturn

from . import conf, layers, locks, namespaces, packaged, paths, process, progress, rootfs, start, tools, upgrade
from .errors import ClusterError, CommandFailed, Misuse, NotDone
from .records import CURRENT, DRIVERS, MEMORY_LIMITS, PARTS, RELEASES, USERS, Host, Root, make_hosts

DEFAULT_NAME = "demo"
_POLL_S = 0.1
_UNFINISHED = {
    *("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "REQUEUED", "RESIZING"),
    *("SIGNALING", "STAGE_OUT", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD", "POWER_UP_NODE"),
}
"""Job states, as scontrol writes them, that another state follows."""
_MAX_COMPUTE_NODES = 200
_START = """\
exec </dev/null >/var/log/daemons.start 2>&1
runs() {  # asks twice: pgrep can miss a daemon that forks while it reads /proc
    pgrep -x "$1" >/dev/null || { sleep 0.2; pgrep -x "$1" >/dev/null; }
}
"""
_START_MUNGED = """\
[ -e /run/munge/munged.pid ] || setpriv --reuid munge --regid munge --init-groups /usr/sbin/munged
"""
_START_SLURMDBD = """\
install -d -o slurm /run/mysqld
setsid mariadbd >>/var/log/mariadbd.log 2>&1 &
# slurmdbd would make its database itself, but with Connector/C 3.4.10 a first connection that fails spoils the next:
# "Number of columns in result (=1) set execeeds maxmimum allowed number of columns (=0)"
until mariadb -e "create database if not exists slurm_acct_db" 2>/dev/null; do
    kill -0 $! 2>/dev/null
    sleep 0.01
done
chown slurm: /etc/slurm/slurmdbd.conf  # slurmdbd reads nobody else's
slurmdbd
until (exec 3<>/dev/tcp/ctl/6819) 2>/dev/null; do
    runs slurmdbd
    sleep 0.01
done
# slurmctld writes this file minutes after its first start, and after a power cut before that refuses to start without
[ -e /var/lib/slurm/slurmctld/assoc_usage ] || set -- -i
"""
_START_SLURMCTLD = """\
slurmctld "$@"
until scontrol ping 2>/dev/null | grep -q "is UP"; do
    runs slurmctld  # it opens its port before it has read everything, and may end then
    sleep 0.01
done
"""
_START_SLURMD = "slurmd\n"
_ADD_AGENTS_USER = f"""\
getent group {conf.OPERATORS} >/dev/null || groupadd -r -g {conf.OPERATORS_GID} {conf.OPERATORS}
getent passwd slurm-share >/dev/null ||
    useradd -r -u {conf.AGENT_UID} -U -M -d /nonexistent -s /usr/sbin/nologin -G {conf.OPERATORS} slurm-share
"""
_START_AGENT = """\
install -d -o slurm-share -g slurm-share -m 755 /run/slurm-share-agent
install -d -o slurm-share -g slurm-share -m 750 /var/lib/slurm-share-agent
setsid -f env -i PATH=/usr/bin setpriv --reuid slurm-share --regid slurm-share --init-groups \\
    --inh-caps +net_bind_service --ambient-caps +net_bind_service \\
    /usr/local/bin/slurm-share agent >>/var/log/slurm-share-agent.log 2>&1
until [ -S /run/slurm-share-agent/socket ]; do sleep 0.01; done
"""
_START_PROMETHEUS = """\
install -d -o prometheus /var/lib/prometheus/data
setsid -f setpriv --reuid prometheus --regid prometheus --groups "$(id -g prometheus),$1" prometheus \\
    --config.file=/etc/slurm-share/prometheus.yml --web.config.file=/etc/slurm-share/prometheus-web.yml \\
    --web.listen-address=:9090 --storage.tsdb.path=/var/lib/prometheus/data --log.level=warn \\
    >>/var/log/prometheus.log 2>&1
"""
_ADD_ACCOUNTS = """\
# an account is added to the clusters that are known, and slurmctld makes its own known
until sacctmgr -nP list cluster format=controlhost | grep -q .; do sleep 0.01; done
sacctmgr -i add account "$1" description="everybody here"
sacctmgr -i add user "$2" account="$1"
"""
_LOGS = ("daemons.start", "mariadbd.log", "slurm/slurmdbd.log", "slurm/slurmctld.log", "slurm-share-agent.log")
_DAEMONS_S = 180.0
_PATIENCE_S = 300.0
"""Default timeout of a program on a host, for example of an srun that no node will ever accept."""
_KINDS = ("cgroup", "cgroup_v2", "accounting", "agents", "prometheus", "auth", "uuids", "pyslurm")


@dataclass(frozen=True)
class ClusterState:
    """State of a cluster at one moment."""

    hosts_up: Mapping[str, bool]
    nodes: Mapping[str, str]
    """Slurm's state of each compute node; empty: the controller did not answer."""


@dataclass(eq=False)
class Cluster:
    """A cluster that is up, from `Cluster.up` or `Cluster.attach`; as a context manager it is taken down at the end."""

    name: str
    root_facts: Root
    hosts: Mapping[str, Host]
    layer_stack: str
    cgroup: bool = False
    cgroup_v2: bool = False
    accounting: bool = False
    agents: bool = False
    prometheus: bool = False
    auth: str = "munge"
    uuids: bool = False
    pyslurm: bool = False
    ahead: upgrade.Ahead | None = None

    # ---- making and finding -------------------------------------------------------------------------------------

    @classmethod
    @process.usual_umask()
    def up(
        cls,
        name: str = DEFAULT_NAME,
        slurm: str = CURRENT,
        *,
        cgroup: bool = False,
        cgroup_v2: bool = False,
        accounting: bool = False,
        agents: bool = False,
        prometheus: bool = False,
        auth: str = "munge",
        uuids: bool = False,
        pyslurm: bool = False,
        upgrade_to: str = "",
        packages: bool = False,
        nodes: int = 3,
        alike: bool = False,
        driver: int = 0,
        memory_limits: str = "",
        slurm_conf_extra: str = "",
        shards_per_gpu: int = conf.SHARDS_PER_GPU,
        without: Collection[str] = (),
    ) -> Cluster:
        """Bring up a cluster of ctl, login and `nodes` compute nodes; return it when Slurm reports every node idle.

        `cgroup` confines the memory and devices of jobs in cgroup v1, `cgroup_v2` in v2. `accounting` adds slurmdbd and
        MariaDB on ctl, and slurmrestd; both users are in the account `lab`. `agents` runs `slurm-share agent` on every
        compute node and on login; `prometheus` does so too and adds Prometheus on ctl. The group `gpu-operators`, which
        has no members, may query both. `auth="slurm"` uses Slurm's own key instead of munge. `uuids` makes slurmd find
        the GPUs (AutoDetect=nvidia), which since 25.11 are named by UUID in Prolog and Epilog. `pyslurm` installs a
        pyslurm built for the release. `upgrade_to` is the release to which `upgrade` brings a host; both plugin objects
        are then on every host. `alike` gives every compute node the four GPUs of n1; otherwise the others have two.
        `packages` installs library and plugin from our .deb files, which are built if necessary. `driver` is the
        release of the simulated driver, `memory_limits` how that limits the memory of a cgroup (simgpu-init).

        `slurm_conf_extra` is appended to slurm.conf; a line in it replaces ours with the same keyword (and node or
        partition name). `without` names parts of our software to omit. `slurm_release` is the release that really runs.
        Raises Misuse for an impossible request, ClusterError if the cluster does not come up; nothing is left then.
        """
        tools.require_root()
        check_request(name, slurm, nodes, without)
        _check_kinds(auth, accounting, uuids, upgrade_to, slurm, without)
        _check_driver(driver, memory_limits)
        agents = agents or prometheus
        if packages and (agents or upgrade_to or {"python", "plugin"} & set(without)):
            raise Misuse("--packages installs library and plugin only; omit the other options")
        if agents and "python" in without:
            raise Misuse("agents need the part `python` of our software; omit --without python")
        parts = [part for part in PARTS if part not in without]
        layers.require(parts)
        if cgroup and cgroup_v2:
            raise Misuse("--cgroup and --cgroup-v2 exclude each other; choose one")
        for kind in [namespaces.V1] * cgroup + [namespaces.V2] * cgroup_v2:
            namespaces.require_cgroup(kind)
        busy = f"cluster {name} is being brought up or down by another process; wait for it, or choose another --name"
        with locks.exclusively(paths.lock_file(name), busy):
            _clear_remains(name)
            tools.need_run_tools()
            root, stack = layers_of(
                slurm,
                parts,
                accounting=accounting,
                prometheus=prometheus,
                auth=auth,
                pyslurm=pyslurm,
                packages=packages,
            )
            ahead = None
            if upgrade_to:
                newer = rootfs.root_for(upgrade_to)
                ahead = upgrade.prepare(name, (root, stack), (newer, layers.stack(newer, parts)))
                stack = ahead.now
            made = make_hosts(nodes, alike=alike, driver=driver, memory_limits=memory_limits)
            hosts = {host.name: host for host in made}
            kinds = (cgroup, cgroup_v2, accounting, agents, prometheus, auth, uuids, pyslurm)
            cluster = cls(name, root, hosts, stack, *kinds, ahead=ahead)
            try:
                cluster._start(parts, slurm_conf_extra, shards_per_gpu)
            except BaseException:
                namespaces.end_cluster(name)
                raise
            return cluster

    @classmethod
    def attach(cls, name: str = DEFAULT_NAME) -> Cluster:
        """Return the running cluster of that name. Raises Misuse if it is not up."""
        _check_name(name)
        tools.require_root()
        state = _read_state(name)
        if state is None or not state["ready"] or not namespaces.alive(name):
            others = f" (up: {', '.join(running())})" if running() else ""
            raise Misuse(f"cluster {name} is not up{others}; bring it up with: cluster --name {name} up")
        hosts = {fields["name"]: Host(**fields) for fields in state["hosts"]}
        # a key that is missing: an older checkout brought the cluster up
        kinds = {kind: state[kind] for kind in _KINDS if kind in state}
        ahead = upgrade.Ahead.of_state(state.get("ahead"))
        return cls(name, Root(**state["root"]), hosts, state["layers"], **kinds, ahead=ahead)

    def down(self) -> None:
        """Take the cluster down and remove everything; can be repeated."""
        take_down(self.name)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    # ---- what it is ---------------------------------------------------------------------------------------------

    @property
    def slurm_release(self) -> str:
        """The release that runs, 26.05 or 24.11, whichever was requested."""
        return self.root_facts.release

    @property
    def slurm_version(self) -> str:
        """The full version that runs, for example 26.05.5."""
        return self.root_facts.slurm_version

    @property
    def compute_nodes(self) -> tuple[str, ...]:
        """Names of the nodes with a slurmd."""
        return tuple(host.name for host in self.hosts.values() if host.is_compute)

    @property
    def conf(self) -> Path:
        """Folder that every host sees as /etc/slurm, as seen from outside."""
        return self._tree / "conf"

    @property
    def site(self) -> Path:
        """Folder that every host sees as /etc/slurm-share, as seen from outside."""
        return self._tree / "site"

    @property
    def home(self) -> Path:
        """Folder that every host sees as /home, as seen from outside."""
        return self._tree / "home"

    def root(self, node: str) -> Path:
        """Return a host's root folder as seen from outside; its absolute symbolic links lead to the machine's own
        files."""
        return Path(f"/proc/{self._pid(node)}/root")

    def is_up(self, node: str) -> bool:
        """Return whether a host is running."""
        return namespaces.alive(self.name, self._host(node).name) is not None

    def status(self) -> ClusterState:
        """Return the state of hosts and nodes; without nodes if the controller does not answer within 5 s.

        A node that Slurm calls planned is shown as idle: Slurm uses that state for a moment after a job has waited.
        """
        nodes: dict[str, str] = {}
        if self.is_up("ctl"):
            try:
                said = self.exec("ctl", ["sinfo", "-h", "-N", "-o", "%N %T"], timeout=5.0).stdout
                nodes = dict(line.replace(" planned", " idle").split() for line in said.splitlines())
            except NotDone:
                pass  # leave the nodes empty
        return ClusterState({name: self.is_up(name) for name in self.hosts}, nodes)

    # ---- running things -----------------------------------------------------------------------------------------

    def exec(
        self,
        node: str,
        argv: Sequence[str],
        *,
        input: str | None = None,
        timeout: float | None = _PATIENCE_S,
        check: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> CompletedProcess[str]:
        """Run a program on a host as root, in /root, and return its exit code and output.

        Raises NotDone after `timeout` seconds, when the program is killed, Misuse if the host is down, and with `check`
        CommandFailed for a code other than 0.
        """
        command, whole = self._enter(node, argv), {**_env_of("root"), **(env or {})}
        return process.run(command, input=input, timeout_s=timeout, check=check, env=whole, apart=True)

    def as_user(
        self,
        user: str,
        command: Sequence[str] | str,
        *,
        node: str = "login",
        input: str | None = None,
        timeout: float | None = _PATIENCE_S,
        check: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> CompletedProcess[str]:
        """Run a program, or a piece of bash, as a user in the home folder; otherwise like `exec`."""
        argv = ["/bin/bash", "-c", command] if isinstance(command, str) else command
        entered, whole = self._enter(node, argv, user), {**_env_of(user), **(env or {})}
        return process.run(entered, input=input, timeout_s=timeout, check=check, env=whole, apart=True)

    def become(self, node: str, argv: Sequence[str], *, user: str = "root") -> NoReturn:
        """Replace this process with a program on a host: the same exit code and streams, and a terminal if there is
        one."""
        # the file descriptors, since Python's sys.stdin may be replaced or None
        terminal = os.isatty(0) and os.isatty(1)
        if terminal:
            # Our terminal is not in the host's /dev/pts: script(1) makes one there and passes exit codes on (-e).
            argv = ["/usr/bin/script", "-qefc", shlex.join(argv), "/dev/null"]
        keep = {"TERM": os.environ["TERM"]} if "TERM" in os.environ else {}
        process.become(self._enter(node, argv, user), {**_env_of(user), **keep})

    # ---- jobs ---------------------------------------------------------------------------------------------------

    def sbatch(self, user: str, script: str, *options: str, node: str = "login") -> int:
        """Submit a batch script (its text; `#!/bin/bash` is added if missing) and return the job id.

        Raises CommandFailed, with sbatch's message, if Slurm refuses it.
        """
        text = script if script.startswith("#!") else "#!/bin/bash\n" + script
        done = self.as_user(user, ["sbatch", "--parsable", *options], node=node, input=text, check=True)
        return int(done.stdout.strip().split(";")[0])

    def job(self, job_id: int) -> str:
        """Return the output of `scontrol show job`, one line per record. Raises CommandFailed for an unknown job."""
        return self.exec("ctl", ["scontrol", "-o", "show", "job", str(job_id)], check=True).stdout

    def wait(self, job_id: int, timeout: float = _PATIENCE_S) -> str:
        """Wait until a job (or every task of an array) has ended and its Epilog is done; return its state.

        For an array, the first state that is not COMPLETED. Raises NotDone after `timeout` seconds.
        """
        states = self._wait_for_states(job_id, f"the end of job {job_id}", timeout, ends_with="")
        return next((state for state in states if state != "COMPLETED"), "COMPLETED")

    def wait_running(self, job_id: int, timeout: float = _PATIENCE_S) -> None:
        """Wait until a job (or a task of an array) runs. Raises NotDone after `timeout` seconds, or if it ended
        before."""
        what = f"the start of job {job_id}"
        states = self._wait_for_states(job_id, what, timeout, ends_with="RUNNING")
        if "RUNNING" not in states and "COMPLETED" not in states:
            raise NotDone(what, timeout, ", ".join(states))

    def _wait_for_states(self, job_id: int, what: str, timeout: float, *, ends_with: str) -> list[str]:
        """Wait until a task of the job is in the state `ends_with`, or all have ended; return the states."""
        states: list[str] = []

        def is_over() -> bool:
            states[:] = parse_states(self.job(job_id))
            return ends_with in states or not _UNFINISHED.intersection(states)

        process.wait_until(is_over, what, timeout, every_s=_POLL_S, why=lambda: ", ".join(states))
        return states

    def output(self, job_id: int) -> str:
        """Return a batch job's stdout (for an array: that of all tasks, in the order of their files)."""
        files = sorted(set(re.findall(r"\bStdOut=(\S+)", self.job(job_id))))
        return "".join((self.root("login") / path.lstrip("/")).read_text(errors="replace") for path in files)

    def jobs(self) -> list[str]:
        """Return the ids of the jobs that are pending, running or completing."""
        return self.exec("ctl", ["squeue", "-h", "-o", "%i"], check=True).stdout.split()

    def settle(self, timeout: float = _PATIENCE_S) -> list[str]:
        """Wait until no job is completing (in its Epilog); return the ids of those pending or running."""
        rows: list[list[str]] = []

        def settled() -> bool:
            said = self.exec("ctl", ["squeue", "-h", "-o", "%i %T"], check=True).stdout
            rows[:] = [line.split() for line in said.splitlines()]
            return all(state != "COMPLETING" for _, state in rows)

        process.wait_until(settled, "the end of all epilogs", timeout, every_s=_POLL_S, why=lambda: str(rows))
        return [job for job, _ in rows]

    def cancel_all(self, timeout: float = _PATIENCE_S) -> None:
        """Cancel every job and wait until none is left. Raises NotDone after `timeout` seconds."""
        if self.jobs():
            script = "; ".join(f"scancel -f -u {user}" for user in (*(user.name for user in USERS), "root"))
            self.exec("ctl", ["/bin/sh", "-c", script])
            process.wait_until(lambda: not self.jobs(), "an empty queue", timeout, every_s=_POLL_S)

    # ---- power --------------------------------------------------------------------------------------------------

    def kill(self, node: str) -> None:
        """Cut a host's power: all its processes end at once and it stays down; its disk keeps its content."""
        self._pid(node)
        namespaces.power_off(self.name, node)

    @process.usual_umask()
    def reboot(self, node: str) -> None:
        """Cut a host's power if it runs, boot it and start its daemons; /run and /tmp are empty then."""
        host = self._host(node)
        namespaces.power_off(self.name, node)
        namespaces.boot(self.name, [host], self.layer_stack, cgroup=self._cgroups, ahead=self._ahead_layers)
        self._start_and_wait(host)

    # ---- upgrade ------------------------------------------------------------------------------------------------

    def upgrade(self, node: str) -> None:
        """Install the newer release on a host as a package manager does: Slurm's daemons restart with the same state,
        and everything else runs on, jobs and their slurmstepd included.

        Can be repeated. Raises Misuse if the cluster was brought up without `upgrade_to`.
        """
        host = self._host(node)
        if self.ahead is None:
            raise Misuse(f"cluster {self.name} has one release only; bring it up with --upgrade-to")
        if node in self.ahead.done:
            return
        self.exec(node, ["/bin/bash", "-ec", start.STOP], timeout=_DAEMONS_S, check=True)
        self.ahead = self.ahead.with_done(node)
        self._write_state(ready=True)
        self._start_and_wait(host)

    # ---- inside -------------------------------------------------------------------------------------------------

    def _start(self, parts: Collection[str], extra: str, shards_per_gpu: int) -> None:
        run = paths.run_dir(self.name)
        run.mkdir(parents=True, exist_ok=True, mode=0o755)  # an upgrade has put the plugin objects there already
        self._write_state(ready=False)
        hosts = list(self.hosts.values())
        namespaces.start_cluster(self.name, hosts)
        self._configure(parts, extra, shards_per_gpu)
        namespaces.boot(self.name, hosts, self.layer_stack, cgroup=self._cgroups, ahead=self._ahead_layers)
        self.write_lua_settings()
        self._start_daemons(hosts)
        if self.accounting:
            users = ",".join(user.name for user in USERS)
            add = ["/bin/bash", "-ec", _ADD_ACCOUNTS, "bash", conf.ACCOUNT, users]
            self.exec("ctl", add, timeout=_DAEMONS_S, check=True)
        self._wait_for_nodes()
        self._write_state(ready=True)

    def _configure(self, parts: Collection[str], extra: str, shards_per_gpu: int) -> None:
        hosts = list(self.hosts.values())
        texts = {
            "slurm.conf": conf.slurm_conf(
                hosts,
                cgroup=self._cgroups,
                parts=parts,
                shards_per_gpu=shards_per_gpu,
                accounting=self.accounting,
                auth=self.auth,
                extra=extra,
            ),
            "gres.conf": conf.gres_conf(hosts, shards_per_gpu, uuids=self.uuids),
            "cgroup.conf": conf.cgroup_conf(self._cgroups),
            "plugstack.conf": conf.plugstack_conf(parts),
        }
        for name, text in texts.items():
            (self.conf / name).write_text(text)
        if self.auth == "slurm":
            start.make_key(self.conf / "slurm.key", Path(self.root_facts.path))
        if self.accounting:
            (self.conf / "slurmdbd.conf").touch(0o600)
            (self.conf / "slurmdbd.conf").write_text(conf.SLURMDBD_CONF)
        if "plugin" in parts:
            shutil.copyfile(paths.CHECKOUT / "plugins/job_submit.lua", self.conf / "job_submit.lua")
        config = conf.SITE_CONFIG.format(shards_per_gpu=shards_per_gpu) + (conf.SITE_AGENTS if self.agents else "")
        (self.site / "config.toml").write_text(config)
        if self.agents:
            self._give_operators("agent.token", conf.AGENT_TOKEN)
        if self.prometheus:
            targets = ", ".join(f"{node}:594" for node in self.compute_nodes)
            self._give_operators("prometheus.yml", conf.PROMETHEUS.format(targets=targets))
            self._give_operators("prometheus-web.yml", conf.PROMETHEUS_WEB)
            self._give_operators("prometheus.token", conf.PROMETHEUS_LOGIN)
        for user in USERS:
            folder = self.home / user.name
            folder.mkdir(mode=0o755)
            os.chown(folder, user.uid, user.uid)
            if {"plugin", "simgpu"} <= set(parts):
                job = folder / "job.sh"
                job.write_text(conf.EXAMPLE_JOB)
                job.chmod(0o755)
                os.chown(job, user.uid, user.uid)

    def write_config(self, text: str) -> None:
        """Write this config.toml for every host, and its settings for the controller's job_submit.lua."""
        (self.site / "config.toml").write_text(text)
        self.write_lua_settings()

    def write_lua_settings(self) -> None:
        """Write the settings that job_submit.lua reads, on hosts with our library."""
        program = f"{conf.HOOKS}/slurm-share"
        # A config.toml with mistakes is refused, and job_submit.lua keeps the earlier settings: some tests need that.
        self.exec("ctl", ["/bin/sh", "-c", f"[ ! -e {program} ] || {program} config write-lua"])

    def _give_operators(self, name: str, text: str) -> None:
        """Write a file next to config.toml that only operators can read."""
        file = self.site / name
        file.touch(0o600)
        file.write_text(text + "\n")
        os.chown(file, 0, conf.OPERATORS_GID)
        file.chmod(0o640)

    def _start_daemons(self, hosts: Sequence[Host]) -> None:
        with ThreadPoolExecutor(max_workers=8) as pool:
            for is_compute in (False, True):
                list(pool.map(self._start_daemons_on, [host for host in hosts if host.is_compute == is_compute]))

    def _start_daemons_on(self, host: Host) -> None:
        slurm = _START_SLURMD if host.is_compute else ""
        if host.name == "ctl":
            slurm = _START_SLURMDBD + _START_SLURMCTLD if self.accounting else _START_SLURMCTLD
            slurm += _START_PROMETHEUS.replace("$1", str(conf.OPERATORS_GID)) if self.prometheus else ""
        slurm = (start.own_auth(host) if self.auth == "slurm" else _START_MUNGED) + slurm
        if self.uuids and host.gpus:
            slurm = start.DESCRIBE_GPUS + slurm
        if self.ahead is not None and host.name in self.ahead.done:
            slurm = upgrade.EXCHANGE + slurm
        if self.agents:
            slurm = _ADD_AGENTS_USER + slurm + (_START_AGENT if host.is_compute or host.name == "login" else "")
        try:
            self.exec(host.name, ["/bin/bash", "-ec", _START + slurm], timeout=_DAEMONS_S, check=True)
        except (CommandFailed, NotDone) as error:
            logs = [self.root(host.name) / "var/log" / log for log in _LOGS]
            said = [line for log in logs if log.exists() for line in log.read_text().splitlines()[-5:]]
            raise ClusterError(f"the daemons of {host.name} did not start: {' | '.join(said) or error}") from error

    def _start_and_wait(self, host: Host) -> None:
        """Start a host's daemons and wait until the controller hears from it."""

        def answers() -> bool:
            state = self.status().nodes.get(host.name, "down*")
            return not state.endswith("*") and not state.startswith("down")

        self._start_daemons_on(host)
        if host.is_compute and self.is_up("ctl"):
            process.wait_until(answers, f"{host.name}'s answer to the controller", _DAEMONS_S, every_s=0.02)

    def _wait_for_nodes(self) -> None:
        states: dict[str, str] = {}

        def idle() -> bool:
            states.update(self.status().nodes)
            return bool(states) and all(states.get(node) == "idle" for node in self.compute_nodes)

        process.wait_until(idle, "every node idle", _DAEMONS_S, every_s=0.02, why=lambda: str(states))

    def _write_state(self, *, ready: bool) -> None:
        run = paths.run_dir(self.name)
        state = {
            "ready": ready,
            "root": asdict(self.root_facts),
            "layers": self.layer_stack,
            "ahead": None if self.ahead is None else asdict(self.ahead),
            **{kind: getattr(self, kind) for kind in _KINDS},
            "hosts": [asdict(host) for host in self.hosts.values()],
        }
        (run / "state.new").write_text(json.dumps(state, indent=1))
        (run / "state.new").replace(run / "state.json")

    def _enter(self, node: str, argv: Sequence[str], user: str = "root") -> list[str]:
        uid = None if user == "root" else _uid_of(user)
        return namespaces.enter_argv(self._pid(node), argv, cwd=_home_of(user), uid=uid, cgroup=self._cgroups)

    def _pid(self, node: str) -> int:
        identity = namespaces.alive(self.name, self._host(node).name)
        if identity is None:
            raise Misuse(
                f"{node} of cluster {self.name} is down; start it with: cluster --name {self.name} reboot {node}"
            )
        return identity.pid

    def _host(self, node: str) -> Host:
        if node not in self.hosts:
            raise Misuse(f"cluster {self.name} has no host {node!r}; its hosts are {', '.join(self.hosts)}")
        return self.hosts[node]

    @property
    def _cgroups(self) -> str:
        return namespaces.V1 if self.cgroup else namespaces.V2 if self.cgroup_v2 else ""

    @property
    def _ahead_layers(self) -> str:
        return "" if self.ahead is None else self.ahead.layers

    @property
    def _tree(self) -> Path:
        identity = namespaces.alive(self.name)
        if identity is None:
            raise Misuse(f"cluster {self.name} is not up; bring it up with: cluster --name {self.name} up")
        return Path(f"/proc/{identity.pid}/root{paths.run_dir(self.name)}/tree")


def layers_of(
    slurm: str,
    parts: Collection[str],
    *,
    accounting: bool = False,
    prometheus: bool = False,
    auth: str = "munge",
    pyslurm: bool = False,
    packages: bool = False,
) -> tuple[Root, str]:
    """Return the root of a release and the lower layers of its hosts, from the cache or made now; see Cluster.up."""
    root = rootfs.root_for(slurm)
    stack = layers.stack(
        root,
        parts,
        accounting=accounting,
        prometheus=prometheus,
        sackd=auth == "slurm",
        with_pyslurm=pyslurm,
        packages=packaged.built() if packages else None,
    )
    return root, stack


@process.usual_umask()
def take_down(name: str) -> bool:
    """Take a cluster down, whole or broken; return whether there was one. Raises Misuse while another process uses
    it."""
    _check_name(name)
    tools.require_root()
    busy = f"cluster {name} is being brought up or down by another process; end that one first"
    with locks.exclusively(paths.lock_file(name), busy):
        there = _there(name)
        namespaces.end_cluster(name)
    return there


def running() -> list[str]:
    """Return the names of all clusters with a run directory, whole or broken."""
    # a name with a dot is that of a kernel's folder: see running_kernel.py
    return sorted(path.name for path in paths.RUN_ROOT.glob("*/") if path.is_dir() and "." not in path.name)


def parse_states(records: str) -> list[str]:
    """Return the JobState of every record that `scontrol -o show job` printed, in order."""
    return re.findall(r"\bJobState=(\w+)", records)


def _there(name: str) -> bool:
    return paths.run_dir(name).exists() or bool(namespaces.processes(name)) or bool(namespaces.cgroups(name))


def _clear_remains(name: str) -> None:
    state = _read_state(name)
    if state is not None and state["ready"] and namespaces.alive(name):
        version = state["root"]["slurm_version"]
        raise Misuse(
            f"cluster {name} is up already (Slurm {version}); use it, or take it down with: cluster --name {name} down"
        )
    if _there(name):
        progress.say(f"  clearing what an earlier cluster {name} left behind")
        namespaces.end_cluster(name)


def _read_state(name: str) -> dict | None:  # type: ignore[type-arg]
    try:
        return json.loads((paths.run_dir(name) / "state.json").read_text())  # type: ignore[no-any-return]
    except (OSError, ValueError):
        return None


def check_request(name: str, slurm: str, nodes: int, without: Collection[str]) -> None:
    """Raise Misuse for invalid arguments of `up`, without looking at the machine."""
    _check_name(name)
    if slurm not in RELEASES:
        raise Misuse(f"Slurm {slurm} is not one of {', '.join(RELEASES)}; choose one with --slurm")
    if not 1 <= nodes <= _MAX_COMPUTE_NODES:
        raise Misuse(f"a local cluster has 1 to {_MAX_COMPUTE_NODES} compute nodes, not {nodes}")
    unknown = sorted(set(without) - set(PARTS))
    if unknown:
        raise Misuse(f"our software has no part {', '.join(unknown)}; its parts are {', '.join(PARTS)}")


def _check_kinds(
    auth: str, accounting: bool, uuids: bool, upgrade_to: str, slurm: str, without: Collection[str]
) -> None:
    if auth not in ("munge", "slurm"):
        raise Misuse(f"--auth is munge or slurm, not {auth!r}")
    if auth == "slurm" and accounting:
        raise Misuse("--accounting works with munge only; omit --auth")
    if uuids and "simgpu" in without:
        raise Misuse("--uuids needs the simulated GPUs; omit --without simgpu")
    if upgrade_to and upgrade_to not in RELEASES:
        raise Misuse(f"Slurm {upgrade_to} is not one of {', '.join(RELEASES)}; choose one with --upgrade-to")
    if upgrade_to and tuple(map(int, upgrade_to.split("."))) <= tuple(map(int, slurm.split("."))):
        raise Misuse(f"Slurm {upgrade_to} is not newer than {slurm}, and an older release cannot read its state")
    if upgrade_to and (accounting or auth != "munge"):
        raise Misuse("--upgrade-to needs munge and no accounting; omit the other option")


def _check_driver(driver: int, memory_limits: str) -> None:
    if driver and driver not in DRIVERS:
        raise Misuse(f"the simulated driver is {', '.join(map(str, DRIVERS))}, not {driver}; choose one with --driver")
    if memory_limits and memory_limits not in MEMORY_LIMITS:
        raise Misuse(f"--memory-limits is {', '.join(MEMORY_LIMITS)}, not {memory_limits!r}")


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,39}", name):
        raise Misuse(f"{name!r} cannot name a cluster; use up to 40 small letters, digits and dashes")


def _uid_of(name: str) -> int:
    for user in USERS:
        if user.name == name:
            return user.uid
    raise Misuse(f"the cluster has no user {name!r}; its users are {', '.join(user.name for user in USERS)}")


def _home_of(user: str) -> str:
    return "/root" if user == "root" else f"/home/{user}"


def _env_of(user: str) -> dict[str, str]:
    home = _home_of(user)
    return {**namespaces.INSIDE_ENV, "HOME": home, "USER": user, "LOGNAME": user, "SHELL": "/bin/bash", "PWD": home}
