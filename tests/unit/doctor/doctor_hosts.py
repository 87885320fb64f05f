"""A healthy host, and what it is made of, for the tests of `slurm-share doctor`."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from slurm_share.core import config
from slurm_share.core.records import ProcessIdentity
from slurm_share.doctor.facts.records import (
    AgentFacts,
    ArchiveFacts,
    ConfiguredHook,
    Facts,
    FileFact,
    HostFacts,
    HostGpus,
    Mount,
    PathOwner,
    PluginFacts,
    SeenGpu,
    SiteNode,
    SitePartition,
    SiteScript,
    SlurmFacts,
    StateFacts,
    UnknownFact,
)
from slurm_share.node.records import Gpu, NodeProcess
from slurm_share.share.backends.mps_health import MpsOnNode
from slurm_share.share.records import Ledger, LedgerJob

UUID = "GPU-5131194a-af6f-47c0-8619-4e91f42a6279"
PIPE = "/run/slurm-share/user/mps/2001/5131194a-2a6279"
UNSEEN = UnknownFact("nobody says")
OLD = 1000.0


def write_process(root, pid, name, uid=0, state="S"):
    """Write the files of a process below a root as the kernel has them, with an empty command line."""
    folder = root / f"proc/{pid}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cmdline").touch()
    (folder / "stat").write_text(
        f"{pid} ({name}) {state} 1 {pid} {pid} {' '.join(['0'] * 15)} 100 {' '.join(['0'] * 30)}\n"
    )
    (folder / "status").write_text(f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")


def file(path="/opt/x", mode=0o755, uid=0, above=0o755, **more):
    """Return a file with one folder above it."""
    return FileFact(path, (PathOwner("/", 0, above), PathOwner(path, uid, mode)), **more)


def script(text, key="Prolog", path="/etc/slurm/site.sh", syntax=""):
    """Return a script of the site that can be run."""
    first = text.partition("\n")[0]
    interpreter = first[2:].split()[0] if first.startswith("#!") else None
    return SiteScript(key, path, file(path, interpreter=interpreter), text, syntax)


def hook(*files, written="/etc/slurm/prolog.d/*"):
    return ConfiguredHook(written, files)


def site(text=""):
    return config.parse('mode = "on"\n' + text, "/etc/slurm-share/config.toml")


def partition(name="gpu", nodes=("n1",), **options):
    return SitePartition(name, nodes, options)


def job(number=4711, uid=2001, since=OLD, gpus=(UUID,)):
    return LedgerJob(number, uid, "2", gpus, 2, since)


def process(pid=4000, uid=2002, name="python", job_id=None):
    return NodeProcess(ProcessIdentity(pid, 1, uid, name), job_id)


def gpu(*, simulated=False, **more):
    """Return a GPU that is well, but for what is said."""
    told = {"compute_mode": 0, "persistence": True, **more}
    return SeenGpu(Gpu(UUID, 0, 0, "H200", 143771, simulated=simulated), **told)


OURS_PROLOG = file("/opt/slurm-share/bin/slurm-share-prolog", is_ours=True)
OURS_EPILOG = file("/opt/slurm-share/bin/slurm-share-epilog", is_ours=True)
LIVE = {
    "prologflags": ("Alloc",),
    "prolog": ("/opt/slurm-share/bin/slurm-share-prolog",),
    "epilog": ("/opt/slurm-share/bin/slurm-share-epilog",),
    "batchstarttimeout": ("10 sec",),
    "messagetimeout": ("10 sec",),
    "unkillablesteptimeout": ("60 sec",),
    "prologepilogtimeout": ("65534",),
    "selecttype": ("select/cons_tres",),
    "grestypes": ("gpu",),
    "jobsubmitplugins": ("lua",),
    "launchparameters": ("use_interactive_step",),
    "preemptmode": ("OFF",),
    "proctracktype": ("proctrack/cgroup",),
    "taskplugin": ("task/cgroup,task/affinity",),
}
SCRIPT = 'M.VARIABLE = "SHARE_GPU"'
HEALTHY = Facts(
    host="n1",
    roles=("controller", "compute"),
    slurm=SlurmFacts(
        file="/etc/slurm/slurm.conf",
        objection="",
        written=LIVE,
        live=LIVE,
        version="26.05.5",
        nodes=(SiteNode("n1", "gpu:1", ("IDLE",), version="26.05.5"),),
        partitions=(partition(),),
        skew_s=0.4,
        jobs_here=frozenset(),
        cgroup={"constraindevices": ("yes",)},
        containers="",
        plugstack=("optional /usr/lib/slurm-share/share_gpu.so",),
        plugstack_file="/etc/slurm/plugstack.conf",
        prologs=(hook(OURS_PROLOG),),
        epilogs=(hook(OURS_EPILOG),),
        scripts=(),
        lua=SCRIPT,
        lua_of_package=SCRIPT,
        lua_object="/usr/lib/slurm/job_submit_lua.so",
        lua_problem="",
        lua_settings="",
        owned=(file("/etc/slurm/slurm.conf", 0o644),),
        slurm_uid=64030,
    ),
    config=site(),
    config_file=file("/etc/slurm-share/config.toml", 0o644),
    plugin=PluginFacts(
        "/usr/lib/slurm-share/share_gpu.so", file("/usr/lib/slurm-share/share_gpu.so"), "26.05", load_problems=()
    ),
    hooks={one.path: one for one in (OURS_PROLOG, OURS_EPILOG)},
    package=file(file_system="ext4"),
    host_facts=HostFacts(
        daemons=frozenset({"slurmctld", "slurmd"}),
        mounts=(Mount("/proc", "proc"), Mount("/dev/shm", "tmpfs")),
        open_files=131072,
        ptrace_scope=1,
        unheld=(),
        removes_ipc=False,
        shm_mode=0o1777,
        shm_free_percent=99,
    ),
    state=StateFacts(
        "/run/slurm-share",
        folder=file("/run/slurm-share", file_system="tmpfs", is_file=False),
        is_mount=True,
        free_percent=99,
        user_folder=file("/run/slurm-share/user", file_system="tmpfs", is_file=False),
        user_is_mount=True,
        user_free_percent=99,
        ledger=Ledger("boot"),
        now=OLD + 3600,
        uptime_s=OLD + 3600,
        log=file("/var/log/slurm-share.log", 0o640),
        log_free_percent=50,
    ),
    gpus=HostGpus("550.163", (gpu(),), cuda=(12, 4)),
    backends={
        "mps": MpsOnNode(
            control=file("/usr/bin/nvidia-cuda-mps-control"),
            server=file("/usr/bin/nvidia-cuda-mps-server"),
            control_cuda=(12, 4),
        )
    },
    agent=AgentFacts("its unit is enabled"),
    archive=ArchiveFacts(),
)


def changed(facts: Struct, path: str, value: object) -> Facts:
    """Return the facts with another value at `slurm.live.prologflags`; a mapping may lose a key (None)."""
    head, _, rest = path.partition(".")
    if isinstance(facts, dict):
        inner = changed(facts[head], rest, value) if rest else value
        return {**{key: one for key, one in facts.items() if key != head}, **({} if inner is None else {head: inner})}
    inner = getattr(facts, head)
    return replace(facts, **{head: changed(inner, rest, value) if rest else value})
