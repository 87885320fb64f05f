"""Every parser of text that a user may have written, those run by root first: good examples, the call, the errors it
may raise.

A target gets bytes. It fails by any other error, or if its result is wrong: what was read can be written and read
again, a sentence is one printable line, a path stays in its folder.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import load_targets
import run_targets
from target import Target, is_line, may_refuse, quiet, recorded, text

from slurm_share.core import config, log, names, nodelist, process
from slurm_share.core.errors import (
    CommandError,
    ConfigError,
    DriverError,
    HookEnvError,
    MpsRefusedError,
    OptionError,
    SlurmShareError,
    StateError,
    UsageError,
)
from slurm_share.core.paths import Paths
from slurm_share.core.records import Owner, ShareRequest
from slurm_share.core.settings import Settings, parse_sm
from slurm_share.history import records
from slurm_share.load import snapshot
from slurm_share.mps import control, processes
from slurm_share.mps.records import MpsPlace
from slurm_share.node import cgroups, step_trees
from slurm_share.node import processes as node_processes
from slurm_share.node.gpus import binding
from slurm_share.node.records import Gpu
from slurm_share.packing import TaskSpec
from slurm_share.share import ledger_file, option
from slurm_share.share import plan as plan_text
from slurm_share.share.backends import registry
from slurm_share.share.records import (
    Assignment,
    Grant,
    Ledger,
    LedgerJob,
    Plan,
    PreparedGpus,
    Refusal,
    Slot,
    UnsharedReason,
)
from slurm_share.share.rules import allocation, queue, reconcile
from slurm_share.slurm import account_limits, hook_conf, hook_env, jobs, nodes, script
from slurm_share.slurm.records import JobContext
from slurm_share.slurm.rules import resources
from slurm_share.testing import offers_of
from slurm_share.triples import job_output, run_folder
from slurm_share.triples.records import Ended
from slurm_share.triples.rules import pack_options, task_files, triple

PLACE = MpsPlace("/usr/bin/nvidia-cuda-mps-control", "/run/slurm-share/mps/2001/x-y", "GPU-1", Owner(2001, 2001))
BOOT = "0c0ffee0-0000-4000-8000-000000000000"


# ---- root: hooks ----------------------------------------------------------------------------------------------------


def try_option(data: bytes) -> None:
    request = option.parse(text(data))
    assert option.parse(option.render(request)) == request
    assert len(option.render(request)) <= names.OPTION_MAX_BYTES


def try_sm(data: bytes) -> None:
    assert parse_sm(text(data)) in ("even", "free", "static", *range(1, 101))


def try_environment(data: bytes) -> None:
    """Parse variables that end with a NUL, as in a process."""
    pairs = (word.split("=", 1) for word in text(data).split("\0") if "=" in word)
    job = hook_env.read(dict(pairs), option.parse)
    assert 0 <= job.job_id <= 2**32 - 1
    assert 0 <= job.uid <= 2**32 - 1
    assert "/" not in job.node
    assert Paths().plan(job.job_id).parent.parent == Paths().jobs
    if job.share_problem is not None:
        is_line(job.share_problem)


def try_plan(data: bytes) -> None:
    try:
        plan = plan_text.parse(data.decode("ascii"))
    except UnicodeDecodeError:
        return  # as ledger_file.read_plan has it
    if isinstance(plan, Plan):
        for slot in plan.slots:
            registry.slot_environment(plan, slot)
        reconcile.rebuild(BOOT, (plan,))
    longest = max(map(len, data.splitlines()))
    # sentences and names are made plain, and cut, when they are written
    has_sentence = not isinstance(plan, Plan) or plan.notes or any(gpu.name != "H100" for gpu in plan.gpus)
    if not has_sentence and longest < names.PLAN_MAX_LINE / 4:
        assert plan_text.parse(plan_text.render(plan)) == plan


def try_ledger(data: bytes) -> None:
    read = ledger_file.parse_ledger(data)
    assert ledger_file.parse_ledger(ledger_file.render_ledger(read)) == read


def try_gpu(data: bytes) -> None:
    """Pass a GPU's UUID and name, separated by a newline, through a plan, a path and a sentence."""
    first, _, second = data.partition(b"\n")
    uuid, name = binding.uuid_of(first), binding.text_of(second)
    gpus = (Gpu(uuid, 0, 0, name, 81920), Gpu("GPU-other", 1, 1, name, None))
    job = JobContext(7, 2001, 2001, "n1", ("0", "1"), ShareRequest(2))
    grant = allocation.admit(job, gpus, offers_of(job.share, why_not=f"no MPS on {name}"), Settings())
    assert grant is not None
    if isinstance(grant, Grant):
        decision = allocation.decide(grant, PreparedGpus(), Settings(), cores=((0,), (1,)))
        plan_text.parse(plan_text.render(decision))
    pipe = Paths().mps_pipe(2001, uuid)
    assert str(pipe.parent) == f"{names.STATE_ROOT}/{names.USER_FOLDER}/{names.MPS_FOLDER}/2001"
    assert pipe.name not in (".", "..")
    control.check_pipe(str(pipe))


def try_process(data: bytes) -> None:
    """Parse what a process controls: command line, environment, name and cgroup, separated by form feeds. The kernel
    writes the rest, and cuts and escapes the name."""
    parts = (data.split(b"\f", 3) + [b""] * 3)[:4]
    title, environ, cgroup = parts[0], parts[1], parts[3]
    name = parts[2].replace(b"\0", b"")[:15]
    shown = name.replace(b"\\", b"\\\\").replace(b"\n", b"\\n")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as root:
        folder = Path(root) / "4242"
        (folder / "task/4242").mkdir(parents=True)
        (folder / "stat").write_bytes(b"4242 (%b) S 1 4242 4242 0 -1 4194304 %b\n" % (name, b"7 " * 44))
        (folder / "status").write_bytes(b"Name:\t%b\nState:\tS\nUid:\t2001\t2001\t2001\t2001\n" % shown)
        (folder / "cmdline").write_bytes(title)
        (folder / "environ").write_bytes(environ)
        (folder / "comm").write_bytes(name + b"\n")
        (folder / "cgroup").write_bytes(cgroup)
        (folder / "task/4242/children").write_bytes(b"")
        found = process.identify(4242, root)
        assert found is not None
        assert (found.uid, found.start_ticks) == (2001, 7)
        seen = node_processes.read_process(4242, Path(root))
        assert seen is not None
        assert node_processes.read_live_jobs(Path(root)) == ()  # a title proves nothing: it is no process of root's
        assert [one.identity.pid for one in node_processes.read_processes_of(2001, Path(root))] == [4242]
        assert cgroups.read_stepd(folder) is None
        processes.read_process(4242, root)
        step_trees.read_stat(str(folder))
    cgroups.parse(cgroup)


def try_mps(data: bytes) -> None:
    """Parse the answers of a daemon, which is a program of its user's and may be any."""
    answer = text(data)
    control._answers_before_the_last(answer)
    control.parse_status(answer)
    with may_refuse(MpsRefusedError):
        control.parse_pids(PLACE, answer)
    control.refuse(PLACE, "ps", answer)


def try_config(data: bytes) -> None:
    config.parse(data.decode("utf-8", "replace"), "config.toml")


def try_log(data: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file, quiet():
        log.line(file.name, "prolog", text(data))
        written = Path(file.name).read_text(encoding="ascii", errors="strict" if data.isascii() else "replace")
    assert written.count("\n") == 1
    assert len(written) <= 8 * log.LINE_LIMIT
    assert all(one.isprintable() for one in written.splitlines())


def try_slurm_conf(data: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        Path(file.name).write_bytes(data.replace(b"\0", b""))
        assert hook_conf.read_hides_jobs(Path(file.name)) in (True, False)


# ---- everybody: what Slurm and others say ---------------------------------------------------------------------------


def try_slurm_json(data: bytes) -> None:
    answer = data.decode("utf-8", "replace")  # as process.finish has it
    files = functools.partial(job_output.parse_files, job_id=4711)
    limit = functools.partial(account_limits.parse_cpu_limit, partition="gpu")
    for read in (jobs.parse_queue, jobs.parse_node_kinds, jobs.parse_numbers, jobs.parse_cluster, files, limit):
        with may_refuse(CommandError):
            read(answer)


def try_slurm_text(data: bytes) -> None:
    answer = data.decode("utf-8", "replace")
    jobs.parse_default_partition(answer)
    resources.parse_gpus(answer)
    resources.count_gpus_in_parts(answer)
    resources.parse_gpu_indexes((answer, answer), 2)
    with may_refuse(CommandError):
        nodes.parse_nodes(answer)


def try_targets(data: bytes) -> None:
    for target in queue.parse_targets(text(data)):
        target.names(7)


def try_nodes(data: bytes) -> None:
    nodelist.parse(text(data))


def try_triple(data: bytes) -> None:
    triple.parse(text(data), may_be_auto=True)


def try_pack_options(data: bytes) -> None:
    for read in (pack_options.parse_policy, lambda word: pack_options.parse_gpu_mem(word, "--gpu-mem=")):
        with may_refuse(UsageError):
            read(text(data))


def try_task_file(data: bytes) -> None:
    for is_packed in (False, True):
        for is_json in (False, True):
            with may_refuse(UsageError):
                task_files.parse(data, "a file", TaskSpec(), is_json=is_json, is_packed=is_packed)
        for has_script in (False, True):
            with may_refuse(UsageError):
                task_files.parse_table(data, "a file", TaskSpec(), ",", has_script=has_script, is_packed=is_packed)


def try_script(data: bytes) -> None:
    script.parse_directives(data)


def try_snapshot(data: bytes) -> None:
    for read in (snapshot.parse_snapshot, snapshot.parse_survey):
        with may_refuse(SlurmShareError):
            read(data, "a peer")


def try_history(data: bytes) -> None:
    records.parse(text(data))


def try_results(data: bytes) -> None:
    for ended in run_folder.parse_results(data):
        run_folder.render_ended(ended)
    with may_refuse(StateError):
        run_folder.parse_run(data, "run.json")


# ---- good examples --------------------------------------------------------------------------------------------------

_ENVIRON = (
    b"SLURM_JOB_ID=4711\0SLURM_JOB_UID=2001\0SLURM_JOB_GID=2001\0SLURMD_NODENAME=n2\0CUDA_VISIBLE_DEVICES=0,1\0"
    b"SPANK_SHARE_GPU=4,mem=8192M\0SLURM_JOB_PARTITION=gpu\0SLURM_JOB_USER=alice\0SLURM_JOB_NTASKS=1\0",
    b"SLURM_JOB_ID=1\0SLURM_JOB_UID=1\0SLURM_JOB_GID=1\0SLURMD_NODENAME=n2\0SLURM_JOB_GPUS=GPU-51310000-0000,MIG-2\0"
    b"SPANK_SHARE_GPU=2\0SLURM_JOB_EXCLUSIVE=USER\0SLURM_JOB_RESTART_COUNT=2\0SLURM_JOB_SLUID=s0123456789ABC\0",
)
_GPU = Gpu("GPU-1", 0, 3, "H100", 81920, simulated=True)
PLANS = (
    *(
        plan_text.render(plan).encode()
        for plan in (
            Refusal(4711, 2001, "n2", "job 4711 has no GPU here"),
            UnsharedReason(4711, 2001, "n2", "the controller has sharing switched off"),
            Plan(
                job_id=4711,
                uid=2001,
                node="n2",
                share=ShareRequest(2, mem_mib=8192),
                gpus=(_GPU,),
                cores=((0, 8), (1, 9)),
                slots=(
                    Slot(0, _GPU, 0, 8192, "0.100", 12.5, "/run/p0", "mps", sm_count=24, partition="GPU-1/D/7+="),
                    Slot(
                        number=1,
                        gpu=_GPU,
                        part=1,
                        memory_cap_mib=20480,
                        backend="other",
                        on_gpu=1,
                        variables=(Assignment("X", "0.4", True),),
                        memory_least_mib=8192,
                        is_cap_of_driver=True,
                    ),
                ),
            ),
        )
    ),
)
_LEDGER = ledger_file.render_ledger(
    Ledger(BOOT, jobs=(LedgerJob(4711, 2001, "4,mem=8192M", ("GPU-1",), 4, 1795271308.0),))
)
_PROCESSES = (
    b"slurmstepd: [4711.0]\fSLURM_JOB_ID=4711\0CUDA_MPS_PIPE_DIRECTORY=/run/x\0\fslurmstepd\f0::/system.slice/"
    b"slurmstepd.scope/job_4711/step_0/user/task_0\n",
    b"/usr/bin/nvidia-cuda-mps-control\0-d\0\fCUDA_VISIBLE_DEVICES=GPU-1\0\fnvidia-cuda-mps\f"
    b"9:memory:/slurm/uid_2001/job_4711/step_batch/task_0\n4:cpu:/\n",
    b"python\0train.py\0\fA=b\0\ftrain) R 7 (x\f0::/user.slice/user-2001.slice/session-1.scope\n",
)
_ANSWERS = (
    b"4242\n4243\n",
    b"Server 4242 status: ACTIVE\n",
    b"33.3\n",
    b"4G\n",
    b"Server 4242 not found",
    b'PID ID SERVER DEVICE NAMESPACE COMMAND\n4242 1 4200 GPU-1 4026531836 python\nUnknown command "slurm_share_end"\n',
    b"Insufficient privileges\n",
)
_CONFIGS = (
    b'mode = "on"\nshards_per_gpu = 8\nexclusive_user_nodes = ["n[1-3]"]\nclean_up = ["shm"]\n[partition.gpu]\n'
    b'mode = "observe"\nmax_share = 4\n',
    b'memory_reserve_percent = 2.0\nmps_control = "/usr/bin/x"\nhook_deadline_s = 8\n',
)


_RESULTS = tuple(
    run_folder.render_ended(
        Ended(task=task, rank=0, attempt=1, outcome="done", node="n1", job="4711", started=1795271308.0, seconds=1.5)
    )
    for task in (0, 7)
)
_SAMPLE = b"\t".join(b"2026-01-31T14:30:00Z" if name == "time" else b"1" for name in records.COLUMNS)


TARGETS = (
    *run_targets.TARGETS,
    *load_targets.TARGETS,
    Target("share option", "root", (b"4", b"4,mem=8G:20G,sm=50%,sharing=mps", b"off"), try_option, (OptionError,)),
    Target("sm share", "root", (b"50%", b"even", b"free", b"100"), try_sm, (ValueError,)),
    Target("hook environment", "root", _ENVIRON, try_environment, (HookEnvError,)),
    Target("plan", "root", PLANS, try_plan, (StateError,)),
    Target("ledger", "root", (_LEDGER,), try_ledger, (StateError,)),
    Target("GPU name and UUID", "root", (b"GPU-51310000-0000-4000-8000-000000000001\nNVIDIA H200", b"MIG-GPU-5/7/0\nx"),
           try_gpu, (DriverError,)),
    Target("/proc of a user's process", "root", _PROCESSES, try_process, short=100),
    Target("MPS answers", "root", _ANSWERS, try_mps, (MpsRefusedError,)),
    Target("config.toml", "root", _CONFIGS, try_config, (ConfigError,)),
    Target("hooks' log", "root", (b"job 4711 of uid 2001: 8 slots", b"refused: \xff\n\x1b[31m"), try_log),
    Target("slurm.conf", "root", (b"PrivateData=jobs,usage\n", b"ClusterName=x\nInclude /dev/null\n"), try_slurm_conf),
    Target("Slurm JSON", "everybody", recorded("*/*.json"), try_slurm_json),
    Target("Slurm text", "everybody", (*recorded("*/*.txt"), b"gpu:a100:4(IDX:0-1,3),shard:a100:4(4/8,0/8)"),
           try_slurm_text, (CommandError,)),
    Target("job numbers", "everybody", (b"4711", b"4711_[1-3]", b"4711+1", b"4711_2"), try_targets, (SlurmShareError,)),
    Target("node lists", "everybody", (b"n[1-3,7]", b"n1,n2", b"rack[1-2]n[01-16]"), try_nodes, (SlurmShareError,)),
    Target("triples", "everybody", (b"[2,24,1]", b"[4, 48, 2]", b"[1,auto,4]"), try_triple, (SlurmShareError,)),
    Target("packing", "everybody", (b"lug,smact_max=0.75,free_min=2G", b"magm,book", b"6G"), try_pack_options),
    Target(
        "tasks of a packed run",
        "everybody",
        (b"a\n#LLSUB --gpu-mem=6G\nb\n", b'{"run": "a", "gpu_mem": "6G", "gpus": 1, "name": "x"}\n'),
        try_task_file,
    ),
    Target("batch scripts", "everybody", (b"#!/bin/bash\n#SBATCH --share-gpu=4 -N2\nsrun x\n",), try_script),
    Target("snapshots", "everybody", (b'{"version":1,"node":"n1","jobs":[],"gpus":[],"processes":[]}',), try_snapshot),
    Target("history", "everybody", (_SAMPLE,), try_history, (SlurmShareError, ValueError)),
    Target("results of a run", "everybody", _RESULTS, try_results, (SlurmShareError,)),
)  # fmt: skip
