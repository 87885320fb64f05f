"""Checks of slurm-share's state on a node: folder, ledger, daemons, log and agent."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.installed import HOME
from ...core.names import CONFIG_FILE, STATE_ROOT, USER_FOLDER
from ...core.settings import SOURCES_OF_ALL
from ...share import LedgerJob, user_folder
from ..facts.records import CheckVerdict, Facts, FileFact, UnknownFact
from .base import (
    COMPUTE,
    EVERYWHERE,
    check,
    configuration,
    fail,
    ledger_of,
    named,
    ok,
    seen,
    seen_or,
    skip,
    unsafe,
    warn,
)

JUST_BEGUN_S = 120.0
"""A job whose Prolog has just run has no step yet, and Slurm may have been asked before the job came. Longer than one
examination takes.
"""
FREE_PERCENT = 10
USERS = f"{STATE_ROOT}/{USER_FOLDER}"
LOG_PERCENT = 5
"""Percent of free space below which the log's file system is full; ext4 reserves as much for root by default."""
MOUNT_UNIT = "run-slurm\\x2dshare.mount"
USER_MOUNT_UNIT = "run-slurm\\x2dshare-user.mount"
"""Name of the systemd unit, which escapes the dash; in a shell, quote it because of the backslash."""


@check(
    "state-folder",
    COMPUTE,
    asks="the state folder is a tmpfs of its own, owned by root, with free space",
    why="on disk, old state survives a reboot; as a part of /run, users who fill it fill /run",
    fix=f"with no shared job here, and {USERS} unmounted: rm -rf {STATE_ROOT}; systemctl start '{MOUNT_UNIT}'"
    f" '{USER_MOUNT_UNIT}' (each is skipped while anything is in its folder); without systemd the lines for /etc/fstab"
    f" in install.md, then: mount {STATE_ROOT}",
)
def state_folder(facts: Facts) -> Sequence[CheckVerdict]:
    state = facts.state
    if state.folder is None:
        return warn(f"there is no {state.root}: the first Prolog makes it, on whatever file system that is")
    return _own_tmpfs(
        state.folder,
        state.root,
        is_mount=state.is_mount,
        free_percent=state.free_percent,
        well="a tmpfs of its own",
        unsafe_fix="slurm-share doctor --fix",
        shared=f"{state.root} is part of {state.folder.file_system or 'another file system'}",
        full_fix=f"du -a {state.root} | sort -n | tail; no user's files are on it but on {USERS}",
    )


@check(
    "users-folder",
    COMPUTE,
    asks="the part of the state folder that users can write to is a second tmpfs, with free space",
    why="a user can fill the file system of the ledger, and all shared jobs here are refused",
    fix=f"with no shared job here: rm -rf {USERS}; systemctl start '{USER_MOUNT_UNIT}'; without systemd the second line"
    f" for /etc/fstab in install.md, then: mount {USERS}; a container may not mount, so its host mounts a tmpfs there"
    " for it, or gives it CAP_SYS_ADMIN",
)
def users_folder(facts: Facts) -> Sequence[CheckVerdict]:
    state = facts.state
    if state.user_folder is None:
        if state.folder is None:
            return skip("no state folder")
        return ok("not made yet: the Prolog of the first shared job mounts it")
    if state.folder is not None and unsafe(state.folder):
        return skip("see state-folder")
    full: list[CheckVerdict] = []
    for uid, used in state.own_used_percent:
        own = f"{USERS}/mps/{uid}"
        if used > user_folder.FULL_PERCENT:
            full += warn(
                f"{own} is {used} % full: uid {uid} alone fills it, and only shares of uid {uid} are refused",
                f"none is needed; fuser -vm {own} names the processes that hold it after the user's last job",
            )
    return full or _own_tmpfs(
        state.user_folder,
        USERS,
        is_mount=state.user_is_mount,
        free_percent=state.user_free_percent,
        well="a second tmpfs",
        unsafe_fix=f"chown root and chmod go-w {USERS}",
        shared=f"{USERS} has no file system of its own: users can fill that of the ledger",
        full_fix=f"du -a --inodes {USERS} | sort -n | tail, or du -a: the end of that user's jobs frees it",
    )


def _own_tmpfs(
    folder: FileFact,
    path: str,
    *,
    is_mount: bool,
    free_percent: int | None,
    well: str,
    unsafe_fix: str,
    shared: str,
    full_fix: str,
) -> Sequence[CheckVerdict]:
    """Return whether the folder is root's, the root of a tmpfs, and has free space. shared: the problem if it is part
    of another file system."""
    if why := unsafe(folder):
        return fail(why, unsafe_fix)
    if not is_mount:
        return warn(shared)
    if folder.file_system != "tmpfs":
        return warn(f"{path} is on {folder.file_system}")
    if free_percent is not None and free_percent < FREE_PERCENT:
        return fail(f"{path} has {free_percent} % left", full_fix)
    return ok(well)


LEAVE_IT = "none by hand: leave the file there, the next Prolog or Epilog of a shared job repairs it"


def over(facts: Facts) -> tuple[LedgerJob, ...] | UnknownFact:
    """Return jobs in the ledger that are proved to be over: no step of them runs, Slurm does not have them on this
    node, and their Prolog did not run just now. UnknownFact: unknown, so nothing may be done about them."""
    ledger, jobs = facts.state.ledger, facts.slurm.jobs_here
    if isinstance(ledger, UnknownFact):
        return ledger
    if not ledger.jobs:
        return ()  # no need to ask Slurm
    if isinstance(jobs, UnknownFact):
        return jobs
    return tuple(
        job
        for job in ledger.jobs
        if job.job_id not in facts.state.live_jobs
        and job.job_id not in jobs
        and not _has_just_begun(job.since, facts.state.uptime_s)
    )


def orphans(facts: Facts) -> tuple[int, ...] | UnknownFact:
    """Return jobs that have a folder here but are unknown to ledger, Slurm and kernel."""
    ledger, jobs = facts.state.ledger, facts.slurm.jobs_here
    if isinstance(ledger, UnknownFact):
        return ledger
    if not facts.state.folders:
        return ()
    if isinstance(jobs, UnknownFact):
        return jobs
    known = {job.job_id for job in ledger.jobs} | {one.job.job_id for one in ledger.leaving}
    known |= jobs | facts.state.live_jobs
    return tuple(
        job for job, at in facts.state.folders if job not in known and not _has_just_begun(at, facts.state.now)
    )


def _has_just_begun(at: float, now: float) -> bool:
    return 0 <= now - at < JUST_BEGUN_S


@check(
    "ledger",
    COMPUTE,
    asks="the ledger can be read, and every job in it is on this node",
    why="MPS daemons and compute modes of a job without an Epilog stay until the next shared job",
    fix="slurm-share doctor --fix: does what the job's Epilog would have done",
)
def ledger(facts: Facts) -> Sequence[CheckVerdict]:
    if facts.state.broken:
        return warn(f"{facts.state.broken}; the next hook makes it anew from the jobs' plans", LEAVE_IT)
    found: list[CheckVerdict] = []
    for job in seen(over(facts)):
        found += warn(f"job {job.job_id} of uid {job.uid} is in the ledger, and over")
    whys = {one.job: one.why for one in ledger_of(facts).leaving}
    for job in facts.state.abandoned:
        why = whys.get(job) or "no time, or its hook was killed"
        found += warn(f"job {job.job_id} of uid {job.uid} was not all cleared up after: {why}")
    if left := seen_or(orphans(facts), ()):
        found += warn(f"folders of jobs that are over: {named(left)}")
    return found or ok(f"{len(ledger_of(facts).jobs)} jobs, all here")


@check(
    "ledger-lock",
    COMPUTE,
    asks="no process holds the ledger's lock for long",
    why="every Prolog and Epilog of a shared job waits for it and gives up in the end: jobs are refused, and nothing is"
    " cleaned up",
    fix="see what it waits for (cat /proc/PID/stack); kill -CONT one that is stopped, kill -9 one that hangs: the next"
    " hook takes up its work",
)
def ledger_lock(facts: Facts) -> Sequence[CheckVerdict]:
    holder = facts.state.lock_holder
    return fail(f"{holder} has held it all the time") if holder else ok("it is free")


@check(
    "job-folders",
    COMPUTE,
    asks="the files that hooks made for running jobs exist, and their folders are owned by root",
    why="tasks that start later find no plan, slot or MPS daemon, and are refused",
    fix="requeue the job; find out what removes files below the state folder (tmpfiles.d, a cleaner, a user's script)",
)
def job_folders(facts: Facts) -> Sequence[CheckVerdict]:
    elsewhere = {
        job.job_id for job in seen(facts.state.ledger).jobs if _has_just_begun(job.since, facts.state.uptime_s)
    }
    elsewhere |= {job.job_id for job in seen_or(over(facts), ())}  # over, or its Prolog still runs
    found: list[CheckVerdict] = []
    for one in facts.state.lost:
        if one.job_id not in elsewhere:
            fix = f"scontrol requeue {one.job_id}; find out what removes files below {facts.state.root}"
            found += fail(f"{one.path} of job {one.job_id} of uid {one.uid} is gone while the job is here", fix)
    for file in facts.state.folders_of_root:
        if why := unsafe(file):
            found += fail(why, f"chown root and chmod go-w {file.chain[-1].path}")
    return found or ok("all there")


@check(
    "log",
    COMPUTE,
    asks="the hooks can write their log, and nobody else can",
    why="only the log says why a share was refused; slurmd keeps a hook's output only if it fails",
    fix="make room, or put log_file in config.toml where root can write",
)
def log(facts: Facts) -> Sequence[CheckVerdict]:
    path = configuration(facts).settings.log_file
    if configuration(facts).settings.log == "journal":
        if facts.state.has_journal:
            return ok("systemd's journal")
        way = f"start systemd-journald, or take log out of {CONFIG_FILE}"
        return warn(f"no journald listens on this host, so the hooks write to {path or 'no log'}", way)
    if not path:
        return ok("config.toml wants none")
    if not facts.is_root and not facts.state.log_is_writable:
        return skip("whether root can write it is for root to see")
    if not facts.state.log_is_writable:
        return fail(f"{path}: {facts.state.log_problem}")
    if facts.state.log is not None and (why := unsafe(facts.state.log)):
        return warn(why, "slurm-share doctor --fix")
    free = facts.state.log_free_percent
    if free is not None and free < LOG_PERCENT:
        return warn(f"the file system of {path} has {free} % left")
    return ok(path)


@check(
    "hook-helper",
    COMPUTE,
    asks="the helper that runs the hooks of shared jobs, if there is one, works",
    why="without a helper the hooks take four times as long; nothing else depends on it",
    fix=f"{HOME}/libexec/slurm-share-prolog --helper in a terminal says what is wrong; hook_helper = false in"
    " config.toml: do without",
)
def hook_helper(facts: Facts) -> Sequence[CheckVerdict]:
    state, settings = facts.state, configuration(facts).settings
    if state.helper_folder is not None and (why := unsafe(state.helper_folder)):
        return warn(why, f"rm -r {state.helper_folder.path}")
    if not facts.is_root:
        return skip("whether one runs is for root to see")
    if ", stopped" in state.helper:
        return warn(f"{state.helper} does not answer", "kill -9 it: the next shared job's hook starts another one")
    if state.helper:
        return ok(state.helper)
    if not settings.hook_helper:
        return ok("config.toml wants none")
    if state.helper_did_not_start:
        return warn("the helper that a hook started did not become ready")
    return ok("none runs; the next shared job's hook starts one")


@check(
    "proof",
    COMPUTE,
    asks="no killed `slurm-share prove` has left programs, an MPS daemon or cgroups",
    why="an MPS daemon of the user of the proof stays on a GPU, and a cgroup may keep GPU memory reserved",
    fix="slurm-share prove --only cap-under-mps --yes: it first removes what is left",
)
def proof(facts: Facts) -> Sequence[CheckVerdict]:
    if not facts.is_root:
        return skip("whether one was killed is for root to see")
    if facts.state.has_left_proof:
        return warn("a `slurm-share prove` was killed here, and what it started is not removed")
    return ok("nothing is left; `slurm-share prove` on an idle node shows which promises about GPUs its driver keeps")


@check(
    "agent",
    COMPUTE,
    asks="the agent answers, if the site uses it",
    why="operators and Prometheus get no answer from this node",
    fix="systemctl restart slurm-share-agent; journalctl -u slurm-share-agent",
)
def agent(facts: Facts) -> Sequence[CheckVerdict]:
    if not facts.agent.wanted:
        return skip("nothing here asks for an agent")
    if facts.agent.problem:
        return warn(f"{facts.agent.problem} ({facts.agent.wanted})")
    if facts.agent.node not in ("", facts.host):
        return warn(
            f"it answers as {facts.agent.node}, and Slurm's name of this node is {facts.host}",
            "systemctl restart slurm-share-agent; if that does not help: systemctl edit slurm-share-agent, [Service],"
            f" Environment=SLURMD_NODENAME={facts.host}, and restart it",
        )
    return ok("it answers")


@check(
    "agent-token",
    COMPUTE,
    asks="only the agent and the operators can read the agents' token",
    why="a user who can read it can see all users' load on every node",
    fix="chown root:slurm-share and chmod 640 the file",
)
def agent_token(facts: Facts) -> Sequence[CheckVerdict]:
    if isinstance(facts.config, UnknownFact) or not facts.config.settings.agent_http:
        return skip("no agent serves HTTP here")
    if facts.agent.token is None:
        return warn(f"there is no {facts.config.settings.agent_token_file}: the agent serves nobody over HTTP")
    last = facts.agent.token.chain[-1]
    if last.mode & 0o007:
        return fail(f"{last.path} is readable by everybody (mode {last.mode & 0o7777:04o})", f"chmod o= {last.path}")
    why = unsafe(facts.agent.token, (0, last.uid))
    return fail(why) if why else ok(last.path)


@check(
    "agent-tls",
    COMPUTE,
    asks="the agent's certificate is for this node and has not expired, and it fits to its key",
    why="operators and Prometheus refuse it and have no figures of this node, or the agent opens no port",
    fix="renew certificate and key together; the agent reads them again by itself",
)
def agent_tls(facts: Facts) -> Sequence[CheckVerdict]:
    settings = configuration(facts).settings
    if not (settings.agent_http and settings.agent_tls_certificate):
        return skip("no agent serves TLS here")
    problem = seen(facts.agent.tls_problem)
    return warn(problem) if problem else ok(settings.agent_tls_certificate)


@check(
    "agent-usage",
    EVERYWHERE,
    asks="the agent of a login node may ask those of other nodes what a user's job has used",
    why="`slurm-share report` on a login node lacks the agents' figures of a job",
    fix="set agent_http and agents_port to a port below 1024, or use TLS (agents_ca)",
)
def agent_usage(facts: Facts) -> Sequence[CheckVerdict]:
    settings = configuration(facts).settings
    if not settings.agent_http:
        return skip("no agent serves HTTP here")
    if settings.agents_port >= 1024 and not settings.agents_ca:
        return warn(f"any user may listen on port {settings.agents_port}, so no agent sends the token there for a user")
    return ok(f"by port {settings.agents_port}" + (" with TLS" if settings.agents_ca else ""))


@check(
    "archive",
    EVERYWHERE,
    asks="if the timer of `slurm-share archive` is on, its source shows everybody's load and its last run did not fail",
    why="nothing is added to the history that `slurm-share report --all` reads",
    fix="journalctl -u slurm-share-archive.service -n 20 says why; then systemctl start slurm-share-archive.service",
)
def archive(facts: Facts) -> Sequence[CheckVerdict]:
    found = seen(facts.archive)
    if not found.is_on and not found.failure:
        return skip("slurm-share-archive.timer is not enabled here")
    source = configuration(facts).settings.load_source
    if source not in SOURCES_OF_ALL:
        return warn(
            f"slurm-share-archive has load_source {source}, which does not show everybody's load: every run fails",
            f'write load_source = "agents" into {CONFIG_FILE}, with agents on the compute nodes ("prometheus" with'
            ' prometheus_url, "local" on a cluster of one node), or: systemctl disable --now slurm-share-archive.timer',
        )
    if found.failure:
        return warn(f"the last run of slurm-share-archive.service failed ({found.failure})")
    return ok(f"its source is {source}")


CHECKS = (
    state_folder,
    users_folder,
    ledger,
    ledger_lock,
    job_folders,
    log,
    hook_helper,
    proof,
    agent,
    agent_token,
    agent_tls,
    agent_usage,
    archive,
)
