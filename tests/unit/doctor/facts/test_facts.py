"""Facts of `slurm-share doctor` about a host: a file system below a folder, and Slurm's answers."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

import pytest
from certificates import Authority
from doctor_hosts import write_process

import slurm_share
from slurm_share.core import names
from slurm_share.core.errors import CommandError, UsageError
from slurm_share.core.process import Finished
from slurm_share.core.settings import Settings
from slurm_share.doctor.checks import every
from slurm_share.doctor.facts import host as fact_host
from slurm_share.doctor.facts import programs, system
from slurm_share.doctor.facts import slurm as fact_slurm
from slurm_share.doctor.facts import state as fact_state
from slurm_share.doctor.facts.records import ArchiveFacts, HostGpus, Mount, SharedJob, UnknownFact
from slurm_share.slurm.conf import slurm_conf_path

CONFIG = """\
Configuration data as of 2026-11-22T00:53:48
BatchStartTimeout       = 10 sec
Epilog[0]               = /opt/slurm-share/bin/slurm-share-epilog
HASH_VAL                = Different Ours=0xaab5ac15 Slurmctld=0x113b865b
JobContainerType        = (null)
PriorityFlags           = 
Prolog[0]               = /a
Prolog[1]               = /b
SLURM_VERSION           = 26.05.5

Cgroup Support Configuration:
ConstrainDevices        = yes

Slurmctld(primary) at ctl is UP
"""  # noqa: W291
NODE = (
    "NodeName=n1 Arch=x86_64 CoresPerSocket=8 CPUAlloc=0 CPUTot=16 CPULoad=0.10 Gres=gpu:a100:4(S:0-1),shard:48 "
    "NodeAddr=n1 NodeHostName=n1 Version=26.05.5 RealMemory=2048 AllocMem=0 FreeMem=1024 "
    "OS=Linux 6.18 #1 SMP @0 State=IDLE+DRAIN ThreadsPerCore=1 Partitions=gpu,plain "
    "Reason=Prolog error [root@2026-11-22T00:53:48]\n"
    "NodeName=n2 CPUAlloc=0 CPUTot=16 CPULoad=N/A Gres=(null) NodeAddr=n2 RealMemory=2048 AllocMem=0 FreeMem=N/A "
    "State=DOWN* ThreadsPerCore=1 Comment=moved\n"
    "NodeName=x9 CPUTot=3 State=IDLE Reason=no [a@b]\n"
)
PARTITION = "PartitionName=gpu AllowGroups=ALL Nodes=n[1-3] OverSubscribe=FORCE:2 PreemptMode=OFF JobDefaults=(null)\n"


class Slurm:
    """Slurm's commands, answered from a table; records the queries."""

    def __init__(self, **answers):
        self.asked = []
        self.answers = {
            "scontrol --version": "slurm-wlm 26.05.5\n",
            "scontrol ping": "Slurmctld(primary) at ctl is UP\n",
            "scontrol show config": CONFIG,
            "scontrol -o show node": NODE,
            "scontrol -o -a show partition": PARTITION,
            "squeue": "4711|gpu|n[1-2]|site;share-gpu=2,mem=1G|\n",
            **answers,
        }

    def __call__(self, argv):
        command = " ".join(argv)
        self.asked.append(command)
        for beginning, answer in self.answers.items():
            if command.startswith(beginning):
                if isinstance(answer, Exception):
                    raise answer
                return answer if isinstance(answer, Finished) else Finished(0, answer, "")
        raise CommandError(tuple(argv), None, "no such file")


@pytest.fixture
def root(tmp_path):
    """Return a compute node's file system: n1, with slurm.conf, hooks, mounts and a slurmd."""
    files = {
        "proc/sys/kernel/hostname": "n1.cluster.example\n",
        "proc/sys/kernel/random/boot_id": "boot-1\n",
        "proc/self/mounts": "/dev/sda / ext4 rw 0 0\n"
        "s /run/slurm-share tmpfs rw,nosuid,size=64m 0 0\n"
        "server:/ /mnt/with\\040blank nfs4 rw 0 0\n"
        "proc /proc proc rw,hidepid=2 0 0\n",
        "proc/57/limits": "Limit  Soft  Hard  Units\nMax open files            20000                20000      files\n",
        "etc/slurm/slurm.conf": "ClusterName=x\nSlurmctldHost=ctl(10.0.0.1)\n"
        "Prolog=/etc/slurm/prolog.d/*\nProlog=own.sh\nEpilog=/gone\nTaskProlog=task.sh\n"
        "NodeName=n[1-2] Gres=gpu:4\nPartitionName=gpu Nodes=ALL\n",
        "etc/slurm/plugstack.conf": "# ours\ninclude plugstack.conf.d/*.conf\n",
        "etc/slurm/plugstack.conf.d/share.conf": "optional /usr/lib/slurm-share/share_gpu.so\n",
        "etc/slurm/cgroup.conf": "ConstrainDevices=yes\n",
        "etc/slurm/job_container.conf": "Dirs=/tmp\n",
        "etc/slurm/task.sh": "echo\n",
        "etc/slurm/own.sh": "#!/bin/sh\nexec /opt/slurm-share/bin/slurm-share-prolog\n",
        "etc/slurm/prolog.d/10-a": "#!/gone/python3 -I\n",
        "etc/slurm/prolog.d/.hidden": "",
        "etc/pam.d/sshd": "account required pam_slurm_adopt.so\n",
        "etc/pam.d/su": "# account required pam_slurm_adopt.so\n",
        "opt/slurm-share/bin/slurm-share-prolog": "#!/opt/slurm-share/bin/python3\n",
        "opt/slurm-share/bin/python3": "",
        "bin/sh": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    write_process(tmp_path, 57, "slurmd-wlm")
    write_process(tmp_path, 58, "slurmctld", uid=2001)
    (tmp_path / "etc/slurm/prolog.d/zz-slurm-share").symlink_to("/opt/slurm-share/bin/slurm-share-prolog")
    (tmp_path / "run/slurm-share/jobs/4711").mkdir(parents=True)
    (tmp_path / "run/slurm-share/jobs/not-a-job").mkdir()
    return tmp_path


def read(root, slurm=None, roles=(), **more):
    return fact_host.read_facts(
        roles, root=root, environ={}, ask=slurm or Slurm(), read_driver_state=lambda: HostGpus("550"), **more
    )


# --- units of systemd -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timer", "service", "found"),
    [
        ("UnitFileState=disabled\nActiveState=inactive\n", "ActiveState=inactive\n", ArchiveFacts()),
        ("UnitFileState=enabled\nActiveState=inactive\n", "ActiveState=inactive\n", ArchiveFacts(True)),
        ("UnitFileState=\nActiveState=active\n", "ActiveState=active\nResult=success\n", ArchiveFacts(True)),
        (
            "UnitFileState=enabled\nActiveState=active\n",
            "ActiveState=failed\nResult=exit-code\nExecMainStatus=2\n",
            ArchiveFacts(True, "exit-code 2"),
        ),
        ("", "ActiveState=failed\nResult=timeout\nExecMainStatus=15\n", ArchiveFacts(failure="timeout")),
    ],
)
def test_the_archives_units_are_read_from_systemd(root, timer, service, found):
    def ask(argv):
        text = timer if argv[-1].endswith(".timer") else service
        return Finished(0, text, "")

    assert isinstance(fact_host.read_archive(ask, root), UnknownFact)
    (root / "run/systemd/system").mkdir(parents=True)
    assert fact_host.read_archive(ask, root) == found


# --- a host as a whole -----------------------------------------------------------------------------------------------


def test_a_compute_node_is_read_from_its_files_and_from_the_controller(root):
    facts = read(root)
    assert (facts.host, facts.roles) == ("n1", ("compute",))
    assert facts.slurm.file == "/etc/slurm/slurm.conf"
    assert facts.slurm.version == "26.05.5"
    assert facts.slurm.differs.startswith("Different")
    assert (facts.slurm.jobs_here, facts.slurm.are_all_jobs) == ({4711}, False)
    assert facts.slurm.shared_here == (SharedJob(4711, "2,mem=1G", "gpu"),)
    assert facts.slurm.plugstack == ("optional /usr/lib/slurm-share/share_gpu.so",)
    assert facts.slurm.cgroup == {"constraindevices": ("yes",)}
    assert facts.slurm.containers == ""  # slurm.conf names no plugin that reads the file
    assert facts.plugin.file is None
    assert [(path, file is None) for path, file in facts.hooks.items()] == [
        ("/opt/slurm-share/bin/slurm-share-prolog", False), ("/opt/slurm-share/bin/slurm-share-epilog", True),
    ]  # fmt: skip
    assert facts.host_facts.daemons == {"slurmd"}  # the other one is a user's
    assert facts.host_facts.open_files == 20000
    assert facts.host_facts.adopt_files == ("/etc/pam.d/sshd",)
    assert isinstance(facts.host_facts.ptrace_scope, UnknownFact)
    assert facts.host_facts.selinux is None
    assert (facts.state.is_mount, [job for job, _ in facts.state.folders]) == (True, [4711])
    assert facts.gpus.driver == "550"
    assert Path(slurm_share.__file__).parent == fact_host.PACKAGE
    assert facts.agent.wanted == ""


def test_a_plugstack_that_is_not_there_and_one_with_carriage_returns(root):
    """Slurm reports neither, and --share-gpu is an unknown option. A host without slurm.conf needs none."""
    (root / "etc/slurm/plugstack.conf.d/share.conf").write_bytes(b"# ours\r\noptional \\\r\n /x/share_gpu.so\r\n")
    assert read(root).slurm.plugstack == ("optional  /x/share_gpu.so\r",)
    (root / "etc/slurm/plugstack.conf").unlink()
    assert read(root).slurm.plugstack is None
    (root / "etc/slurm/slurm.conf").unlink()
    assert isinstance(read(root, roles=("login",)).slurm.plugstack, UnknownFact)


def test_a_controller_that_is_dead_is_asked_once(root):
    slurm = Slurm(**{"scontrol ping": "Slurmctld(primary) at ctl is DOWN\n"})
    facts = read(root, slurm)
    assert facts.slurm.down == ("ctl",)
    assert slurm.asked == ["scontrol --version", "scontrol show hostnames localhost", "scontrol ping"]
    assert facts.slurm.live == facts.slurm.jobs_here == facts.slurm.nodes == UnknownFact("no controller answers")
    written = facts.slurm.written
    assert not isinstance(written, UnknownFact)
    assert written["prolog"] == ("/etc/slurm/prolog.d/*", "own.sh")
    hooks = facts.slurm.prologs
    assert not isinstance(hooks, UnknownFact)
    assert [file.path for file in hooks[0].files] == ["/etc/slurm/prolog.d/zz-slurm-share", "/etc/slurm/prolog.d/10-a"]
    assert [(file.is_ours, file.interpreter_is_there) for one in hooks for file in one.files] == [
        (True, True), (False, False), (True, True),
    ]  # fmt: skip
    epilogs = facts.slurm.epilogs
    assert not isinstance(epilogs, UnknownFact)
    assert epilogs[0].files == ()
    scripts = facts.slurm.scripts
    assert not isinstance(scripts, UnknownFact)
    assert [(one.key, one.path, one.is_shell) for one in scripts] == [
        ("Prolog", "/etc/slurm/prolog.d/zz-slurm-share", False), ("Prolog", "/etc/slurm/prolog.d/10-a", False),
        ("Prolog", "/etc/slurm/own.sh", True), ("TaskProlog", "/etc/slurm/task.sh", False),
    ]  # fmt: skip
    assert scripts[-1].text == "echo\n"


@pytest.mark.parametrize(
    "answer", [CommandError(("scontrol",), None, "no answer within 10 s"), Finished(1, "", "auth")]
)
def test_a_controller_that_hangs_or_refuses_is_a_fact(root, answer):
    facts = read(root, Slurm(**{"scontrol show config": answer}))
    assert isinstance(facts.slurm.live, UnknownFact)
    assert isinstance(facts.slurm.jobs_here, UnknownFact)


def test_a_backup_that_is_down_does_not_hide_the_rest(root):
    said = "Slurmctld(primary) at ctl is UP\nSlurmctld(backup) at spare is DOWN\n"
    facts = read(root, Slurm(**{"scontrol ping": said}))
    assert facts.slurm.down == ("spare",)
    assert not isinstance(facts.slurm.live, UnknownFact)


def test_slurm_that_is_not_installed_is_a_fact(root):
    def nothing(argv):
        raise CommandError(tuple(argv), None, "No such file or directory")

    facts = read(root, nothing)
    assert isinstance(facts.slurm.version, UnknownFact)
    assert isinstance(facts.slurm.live, UnknownFact)


def test_a_configuration_that_is_wrong_is_a_fact(root):
    assert read(root).config.settings == Settings()
    file = root / names.CONFIG_FILE.lstrip("/")
    file.parent.mkdir()
    file.write_text("mode = 3\n")
    facts = read(root)
    assert isinstance(facts.config, UnknownFact)
    assert "mode" in facts.config.why
    file.write_text('agent_http = ":594"\n')
    facts = read(root, ask_agent=lambda settings: ("no agent is there", ""))
    assert (facts.agent.wanted, facts.agent.problem) == ("config.toml has agent_http", "no agent is there")


@pytest.mark.parametrize(
    ("host", "daemon", "roles"),
    [
        ("ctl", None, ("controller",)),
        ("n2", None, ("compute",)),
        ("ctl", "slurmd", ("controller", "compute")),
        ("login", None, ("login",)),
        ("login", "slurmctld", ("controller",)),
    ],
)
def test_what_a_host_is(root, host, daemon, roles):
    """By slurm.conf, also with its daemon dead; by the daemon, also with another name."""
    write_process(root, 57, daemon or "sh")
    (root / "proc/sys/kernel/hostname").write_text(host)
    assert read(root).roles == roles
    assert read(root, roles=("login",)).roles == ("login",)


def test_a_slurm_conf_that_is_named_and_not_there_is_the_callers_mistake(root):
    with pytest.raises(UsageError, match="SLURM_CONF is /nonexistent"):
        fact_host.read_facts((), root=root, environ={"SLURM_CONF": "/nonexistent"}, ask=Slurm())


def test_a_host_that_cannot_be_read_says_why(root, monkeypatch):
    def hang(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(system, "read_host", hang)
    facts = read(root)
    assert facts.host_facts.missed == "[Errno 5] Input/output error"
    assert facts.host_facts.open_files == UnknownFact(facts.host_facts.missed)
    said = {one.check: one.outcome for one in every.examine(facts)}
    assert {said[name] for name in ("daemons", "shared-memory", "open-files", "selinux")} == {"SKIP"}


@pytest.mark.parametrize("place", ["", "/config.toml"])
def test_a_configuration_that_is_a_link_to_nowhere_is_wrong(root, place):
    link = root / (names.CONFIG_FILE.rpartition("/")[0].lstrip("/") + place)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to("/srv/gone")
    config = read(root).config
    assert isinstance(config, UnknownFact)
    assert config.why == f"/{link.relative_to(root)} is a link to /srv/gone, and nothing is there"


def test_a_script_that_cannot_be_read_is_not_taken_for_none(root):
    conf = root / "etc/slurm/slurm.conf"
    conf.write_text(f"{conf.read_text()}\nTaskProlog=task.sh\n")
    for name in ("job_submit.lua", "task.sh"):
        (root / "etc/slurm" / name).unlink(missing_ok=True)
        (root / "etc/slurm" / name).mkdir()
    slurm = read(root, Slurm(**{"scontrol show config": Finished(1, "", "no controller")})).slurm
    assert slurm.lua == UnknownFact("/etc/slurm/job_submit.lua is no plain file")
    assert not isinstance(slurm.scripts, UnknownFact)
    assert not slurm.scripts[-1].file.is_executable  # a folder


def test_the_scripts_of_the_controller_are_read_there(root):
    conf = root / "etc/slurm/slurm.conf"
    conf.write_text(f"{conf.read_text()}\nEpilogSlurmctld=stats.sh\nEpilogSlurmctld=/srv/gone\nPrologSlurmctld=dir\n")
    (root / "etc/slurm/stats.sh").write_text("sacctmgr\n")
    (root / "etc/slurm/dir").mkdir()
    silent = Slurm(**{"scontrol show config": Finished(1, "", "no controller")})
    assert read(root, silent, roles=("controller",)).slurm.controller_scripts == (
        ("/etc/slurm/dir", UnknownFact("/etc/slurm/dir is no plain file")),
        ("/etc/slurm/stats.sh", "sacctmgr\n"),
    )
    assert read(root, silent, roles=("compute",)).slurm.controller_scripts == ()


def test_what_callers_would_say_of_the_agents_certificate_is_a_fact(root, tmp_path_factory):
    authority = Authority(tmp_path_factory.mktemp("tls"))
    file = root / names.CONFIG_FILE.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)

    def problem(certificate, key):
        file.write_text(f'agent_http = ":594"\nagent_tls_certificate = "{certificate}"\nagent_tls_key = "{key}"\n')
        return read(root, roles=("compute",)).agent.tls_problem

    assert problem(*authority.issue("n1")) == ""
    other, key = authority.issue("n7")
    assert problem(other, key) == f"{other}: is not for n1; its subjectAltName must have DNS:n1"
    assert "cannot be read" in problem("/gone.pem", key)


def test_a_host_without_slurm_is_nothing(root):
    (root / "etc/slurm/slurm.conf").unlink()
    write_process(root, 57, "sh")
    assert read(root).roles == ()


def test_what_hangs_is_given_up():
    import threading

    never = threading.Event()
    assert fact_host._within(never.wait, lambda why: why, 0.05) == "no answer within 0.05 s: something hangs"
    never.set()

    def refuse():
        raise PermissionError(13, "Permission denied")

    assert fact_host._within(refuse, lambda why: why) == "[Errno 13] Permission denied"


def test_hooks_are_where_slurmd_is_told_that_they_are(root):
    elsewhere = root / "srv/share/bin/slurm-share-prolog"
    elsewhere.parent.mkdir(parents=True)
    elsewhere.write_text("")
    (root / "etc/slurm/prolog.d/zz-slurm-share").unlink()
    (root / "etc/slurm/prolog.d/zz-slurm-share").symlink_to("/srv/share/bin/slurm-share-prolog")
    facts = read(root, Slurm(**{"scontrol ping": "Slurmctld(primary) at ctl is DOWN\n"}))
    assert list(facts.hooks) == ["/srv/share/bin/slurm-share-prolog", "/opt/slurm-share/bin/slurm-share-epilog"]


def test_behind_a_hook_that_is_no_script_there_is_one_in_python(root):
    (root / "opt/slurm-share/bin/slurm-share-epilog").write_bytes(b"\x7fELF")
    facts = read(root, Slurm(**{"scontrol ping": "Slurmctld(primary) at ctl is DOWN\n"}))
    hooks = [f"/opt/slurm-share/{name}" for name in ("bin/slurm-share-prolog", "bin/slurm-share-epilog")]
    assert list(facts.hooks) == [*hooks, "/opt/slurm-share/libexec/slurm-share-epilog"]
    assert facts.hooks["/opt/slurm-share/libexec/slurm-share-epilog"] is None


# --- what doctor costs the controller --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("roles", "asked"),
    [
        (("login",), ["QUESTION --wrap true"]),
        (
            ("compute",),
            [
                "scontrol -o show node n1",
                "QUESTION -p gpu --wrap true",
                "squeue -h -a --states=HERE -O COLUMNS -j 4711",
            ],
        ),
        (("controller",), ["scontrol -o show node", "scontrol -o -a show partition"]),
    ],
)
def test_a_controller_is_asked_what_the_role_wants_and_no_more(root, roles, asked):
    """Five hundred nodes ask at once: each of these is a message or more to slurmctld."""
    slurm = Slurm()
    read(root, slurm, roles)
    always = ["scontrol --version", "scontrol show hostnames localhost", "scontrol ping", "scontrol show config"]
    question = " ".join(fact_slurm.QUESTION)
    said = [one.replace(question, "QUESTION") for one in slurm.asked]
    said = [one.replace(fact_slurm.HERE, "HERE").replace(fact_slurm.COLUMNS, "COLUMNS") for one in said]
    assert said == always + asked


def test_a_node_without_a_job_asks_for_none_and_one_with_many_for_all_at_once(root):
    """Beyond a few jobs, one query for all jobs of the cluster is cheaper than one for each."""
    (root / "run/slurm-share/jobs/4711").rmdir()
    slurm = Slurm()
    assert read(root, slurm).slurm.jobs_here == frozenset()
    assert not [one for one in slurm.asked if one.startswith("squeue")]
    for number in range(fact_slurm.FEW_JOBS + 1):
        (root / f"run/slurm-share/jobs/{number + 1}").mkdir()
    everyone = "7|gpu|n[1-2]||\n8|gpu|n2|share-gpu=2|\nsqueue: warning\n"
    slurm = Slurm(squeue=everyone)
    facts = read(root, slurm)
    assert (facts.slurm.jobs_here, facts.slurm.shared_here, facts.slurm.are_all_jobs) == ({7}, (), True)
    assert len([one for one in slurm.asked if one.startswith("squeue")]) == 1


def test_before_anything_is_mended_slurm_is_asked_for_every_job(root):
    slurm = Slurm(squeue="7|gpu|n1||\n")
    facts = read(root, slurm, all_jobs=True)
    assert (facts.slurm.jobs_here, facts.slurm.are_all_jobs) == ({7}, True)


def test_a_job_that_slurm_has_forgotten_is_not_here(root):
    gone = Finished(1, "", "slurm_load_jobs error: Invalid job id specified\n")
    assert read(root, Slurm(squeue=gone)).slurm.jobs_here == frozenset()
    assert isinstance(read(root, Slurm(squeue=Finished(1, "", "no munge"))).slurm.jobs_here, UnknownFact)


# --- Slurm's answers -------------------------------------------------------------------------------------------------


def test_scontrol_show_config():
    """Several values under one key, what is (null) is not there, and the cgroup section belongs to it."""
    found = fact_slurm.parse_config(CONFIG)
    assert found["prolog"] == ("/a", "/b")
    assert found["constraindevices"] == ("yes",)
    assert found["batchstarttimeout"] == ("10 sec",)
    assert not {"jobcontainertype", "priorityflags"} & set(found)
    assert fact_slurm.parse_as_of(CONFIG) == 1795308828.0
    assert fact_slurm.parse_as_of("") is None


def test_scontrol_show_node_and_partition():
    """Blanks within a value, no Gres at all, and a comment of several lines, one of which looks like a node."""
    first, second = fact_slurm.parse_nodes(NODE)
    assert (first.states, first.gres) == (("IDLE", "DRAIN"), "gpu:a100:4(S:0-1),shard:48")
    assert first.reason == "Prolog error"
    assert (second.gres, second.states, second.version) == ("", ("DOWN", "NOT_RESPONDING"), "")
    (partition,) = fact_slurm.parse_partitions(PARTITION)
    assert (partition.name, partition.nodes) == ("gpu", ("n1", "n2", "n3"))
    assert partition.options["oversubscribe"] == "FORCE:2"


def test_nothing_of_the_callers_environment_changes_an_answer():
    ask = fact_slurm.asker(
        {"PATH": os.environ["PATH"], "SLURM_TIME_FORMAT": "%s", "SQUEUE_FORMAT": "x", "SLURM_CONF": "/c"}
    )
    said = ask(["env"]).stdout
    assert "SLURM_TIME_FORMAT" not in said
    assert "SQUEUE_FORMAT" not in said
    assert {"SLURM_CONF=/c", "TZ=UTC"} <= set(said.split())


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_file_is_known_by_every_folder_that_has_a_say_in_it(root):
    """Also those that a link leads away from: whoever writes there changes where it leads."""
    (root / "etc/slurm/prolog.d").chmod(0o777)
    fact = programs.read_file_fact("/etc/slurm/prolog.d/zz-slurm-share", root)
    assert fact is not None
    assert [step.path for step in fact.chain] == [
        "/", "/etc", "/etc/slurm", "/etc/slurm/prolog.d", "/opt", "/opt/slurm-share", "/opt/slurm-share/bin",
        "/opt/slurm-share/bin/slurm-share-prolog",
    ]  # fmt: skip
    assert fact.chain[3].mode == 0o777
    (root / "loop").symlink_to("loop")
    (root / "away").symlink_to("../../etc/./slurm/../pam.d/su")
    assert programs.read_file_fact("/loop", root) is None
    assert programs.read_file_fact("/nothing", root) is None
    assert programs.read_file_fact("/away", root).chain[-1].path == "/etc/pam.d/su"


def test_a_file_is_on_the_innermost_mount(root):
    mounts = (Mount("/", "ext4"), Mount("/etc", "nfs4"), Mount("/opt/slurm", "lustre"), Mount("/etc", "tmpfs"))
    kinds = [programs.read_file_fact(path, root, mounts).file_system for path in ("/etc/pam.d/su", "/bin/sh")]
    assert kinds == ["nfs4", "ext4"] or kinds == ["tmpfs", "ext4"]
    assert programs.read_file_fact("/opt/slurm-share/bin/python3", root, mounts).file_system == "ext4"


def elf(number, name=b"plugin_version", order="<", kind=11):
    """Return a shared object with one symbol, as the linker lays it out."""
    names_ = b"\0" + name + b"\0"
    text, data, symbols = 0x40, 0x100, 0x140
    sections = 0x200
    out = bytearray(0x200 + 4 * 64)
    out[:6] = b"\x7fELF\x02" + (b"\x01" if order == "<" else b"\x02")
    struct.pack_into(order + "Q", out, 0x28, sections)
    struct.pack_into(order + "HH", out, 0x3A, 64, 4)
    out[text : text + len(names_)] = names_
    struct.pack_into(order + "I", out, data + 4, number)
    struct.pack_into(order + "IBBHQQ", out, symbols + 24, 1, 0x11, 0, 3, 0x10000 + 4, 4)
    rows = [
        (0, 0, 0, 0, 0, 0),
        (3, 0, text, len(names_), 0, 0),
        (kind, 0, symbols, 48, 1, 24),
        (1, 0x10000, data, 8, 0, 0),
    ]
    for place, (what, address, offset, size, link, entry) in enumerate(rows):
        struct.pack_into(
            order + "IIQQQQIIQQ", out, sections + 64 * place, 0, what, 0, address, offset, size, link, 0, 0, entry
        )
    return bytes(out)


@pytest.mark.parametrize(
    ("data", "release"),
    [
        (elf(0x1A0505), "26.05"),
        (elf(0x180B07), "24.11"),
        (elf(0x1A0505, order=">"), "26.05"),
        (elf(0x1A0505, b"other"), None),
        (elf(0x1A0505, kind=2), None),
        (b"", None),
        (b"\x7fELF\x02\x01", None),
        (b"\x7fELF\x01\x01" + b"\0" * 100, None),
        (elf(0x1A0505)[:0x210], None),
        (b"#!/bin/sh\n", None),
    ],
)
def test_the_slurm_that_an_object_is_for(tmp_path, data, release):
    """Read from the object, in either byte order; whatever is no plugin is said to be none."""
    file = tmp_path / "share_gpu.so"
    file.write_bytes(data)
    found = programs.read_release(file)
    assert found == release if release else isinstance(found, UnknownFact)


def test_objects_for_other_releases_lie_beside_it(tmp_path):
    home = tmp_path / "usr/lib/slurm-share"
    for release, number in (("24.11", 0x180B05), ("26.05", 0x1A0501), ("25.05", 0x1A0501)):
        (home / release).mkdir(parents=True)
        (home / release / "share_gpu.so").write_bytes(elf(number))
    (home / "share_gpu.so").symlink_to("24.11/share_gpu.so")
    found = programs.read_plugin(root=tmp_path)
    assert (found.link, found.release, found.releases) == ("24.11/share_gpu.so", "24.11", ("24.11", "26.05"))
    (home / "share_gpu.so").unlink()
    (home / "share_gpu.so").symlink_to("23.02/share_gpu.so")
    gone = programs.read_plugin(root=tmp_path)
    assert (gone.link, gone.file) == ("23.02/share_gpu.so", None)


# --- the system and what is ours -------------------------------------------------------------------------------------


def test_mounts(root):
    mounts = system.read_host(Slurm(), "/run/slurm-share", root).mounts
    assert [(one.point, one.kind) for one in mounts][1:3] == [
        ("/run/slurm-share", "tmpfs"),
        ("/mnt/with blank", "nfs4"),
    ]
    assert "hidepid=2" in mounts[3].options


@pytest.mark.parametrize(("said", "removes"), [("b true\n", True), ("b false\n", False), ("", None)])
def test_logind_is_asked(root, said, removes):
    write_process(root, 58, "systemd-logind")
    found = system.read_host(Slurm(busctl=said), "/run/slurm-share", root).removes_ipc
    assert found is removes if removes is not None else isinstance(found, UnknownFact)
    assert isinstance(system.read_host(Slurm(), "/run/slurm-share", root).removes_ipc, UnknownFact)


@pytest.mark.parametrize("text", ["{", '{"version": 99, "ledger": {}}'])
def test_a_ledger_that_is_torn_is_a_fact(root, text):
    (root / "run/slurm-share/ledger").write_text(text)
    state = fact_state.read_state(Settings(), "/run/slurm-share", root)
    assert isinstance(state.ledger, UnknownFact)
    assert state.broken


def test_whether_hooks_can_log(root):
    def able(path):
        state = fact_state.read_state(Settings(log_file=path), "/run/slurm-share", root)
        return state.log_is_writable

    (root / "var/log").mkdir(parents=True)
    assert able("/var/log/share.log")
    assert able("")
    (root / "var/log/share.log").symlink_to("/etc/pam.d/su")
    assert not able("/var/log/share.log")
    assert not able("/no/such/share.log")


def test_a_defect_is_called_one_and_not_a_hang(root):
    def look():
        raise KeyError("mine")

    facts = fact_host.read_facts(("compute",), root=root, environ={}, ask=Slurm(), read_driver_state=look)
    assert isinstance(facts.gpus.driver, UnknownFact)
    assert facts.gpus.driver.why.endswith("KeyError: 'mine'")
    assert "hangs" not in facts.gpus.driver.why


@pytest.mark.parametrize("place", ["etc/slurm-llnl", "run/slurm/conf", "usr/local/etc", "opt/slurm/etc"])
def test_slurm_conf_is_found_where_any_slurm_has_it(tmp_path, place):
    """One search for install, doctor and the packages; SLURM_CONF before all of them."""
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "slurm.conf").touch()
    assert slurm_conf_path(environ={}, root=tmp_path) == Path("/", place, "slurm.conf")
    assert fact_slurm.find_conf({}, tmp_path) == f"/{place}/slurm.conf"
    assert slurm_conf_path(environ={"SLURM_CONF": "/x"}, root=tmp_path) == Path("/x")
    with pytest.raises(UsageError, match="SLURM_CONF is /x, and there is no such file"):
        fact_slurm.find_conf({"SLURM_CONF": "/x"}, tmp_path)


def test_a_program_that_a_script_names_in_a_comment_alone_is_not_run(tmp_path):
    script = tmp_path / "p.sh"
    for text, ours in (("# slurm-share-prolog\n", False), ("# x\nexec slurm-share-prolog\n", True)):
        script.write_text(f"#!/bin/sh\n{text}")
        fact = programs.read_file_fact("/p.sh", tmp_path, names=("slurm-share-prolog",))
        assert fact is not None
        assert fact.is_ours is ours


def test_objects_that_were_built_here_are_seen(tmp_path):
    """In the folder of slurm-share-plugin, by their own release; and whether that program is here."""
    home = tmp_path / "usr/lib/slurm-share"
    (home / "built/26.05").mkdir(parents=True)
    (home / "built/26.05/share_gpu.so").write_bytes(elf(0x1A0505))
    found = programs.read_plugin(root=tmp_path)
    assert (found.releases, found.has_chooser) == (("built/26.05",), False)
    (tmp_path / "usr/sbin").mkdir()
    (tmp_path / "usr/sbin/slurm-share-plugin").touch()
    assert programs.read_plugin(root=tmp_path).has_chooser


@pytest.mark.parametrize("told", ["-N\0gpu7", "-Ngpu7"])
def test_a_slurmd_that_was_told_its_node_is_that_node(root, told):
    (root / "proc/57/cmdline").write_text(f"/usr/sbin/slurmd\0-D\0{told}\0")
    assert read(root).host == "gpu7"


# --- the controller's mode, and what slurm.conf says of nodes and partitions -----------------------------------------


LUA = Path(__file__).resolve().parents[4] / "plugins/job_submit.lua"


@pytest.mark.parametrize(
    ("said", "mode"),
    [
        ("sbatch: error: slurm-share: --share-gpu=1 with no GPU shares nothing; ask", "on"),
        ("sbatch: error: x has no effect yet: partition gpu only observes; the\nallocation failure: no", "observe"),
        ("sbatch: error: x has no effect: sharing is switched off in partition gpu; the", "off"),
    ],
)
def test_the_controllers_mode_is_heard_from_its_script(said, mode):
    assert fact_slurm.parse_mode(said) == mode
    assert [words for words in fact_slurm.ANSWERS if words not in LUA.read_text()] == []


def test_an_answer_without_a_mode_is_not_taken_for_one():
    assert fact_slurm.parse_mode("x\nallocation failure: no account\n") == UnknownFact(
        "the controller's job_submit.lua does not tell its mode: allocation failure: no account"
    )
    assert "no answer" in fact_slurm.parse_mode("").why
    assert "does not know" in fact_slurm.parse_mode("sbatch: unrecognized option '--share-gpu=1'").why


def test_a_node_without_gpus_asks_for_no_mode(root):
    slurm = Slurm(**{"scontrol -o show node": NODE.replace("gpu:a100:4(S:0-1),shard:48", "(null)")})
    facts = read(root, slurm, ("compute",))
    assert "has GPUs" in facts.slurm.controller_mode.why
    assert not [one for one in slurm.asked if one.startswith("sbatch")]


def test_lines_of_nodes_and_partitions(root):
    """Defaults count for the lines after them; several lines of one partition are put together."""
    (root / "etc/slurm/slurm.conf").write_text(
        "ClusterName=x\nNodeName=a Gres=gpu:1\nNodeName=DEFAULT Gres=gpu:4\nNodeName=n[1-2]\nNodeName=c Gres=gpu:2\n"
        "PartitionName=p Nodes=a\nPartitionName=default Exclusive=USER\nPartitionName=q Nodes=c\n"
        "PartitionName=q State=UP\n"
    )
    facts = read(root)
    assert facts.slurm.written_gres == {"a": "gpu:1", "n1": "gpu:4", "n2": "gpu:4", "c": "gpu:2"}
    assert facts.slurm.written_partitions["p"].get("exclusive") is None
    assert facts.slurm.written_partitions["q"]["exclusive"] == "USER"
    assert (facts.slurm.written_partitions["q"]["nodes"], set(facts.slurm.written_partitions)) == ("c", {"p", "q"})


def test_munge_is_asked_where_slurm_uses_it(root, monkeypatch):
    assert "munged does not answer at /run/munge/munge.socket.2" in read(root).slurm.munge_problem
    (root / "run/m").mkdir(parents=True)
    conf = root / "etc/slurm/slurm.conf"
    conf.write_text(conf.read_text() + "AuthInfo=ttl=60,socket=/run/m/s\n")
    assert "munged does not answer at /run/m/s" in read(root).slurm.munge_problem
    with socket.socket(socket.AF_UNIX) as munged:
        monkeypatch.chdir(root / "run/m")  # the path of a socket is short
        munged.bind("s")
        munged.listen()
        assert fact_slurm.read_munge("socket=/s", Path()) == ""
    conf.write_text(conf.read_text() + "AuthType=auth/slurm\n")
    assert read(root).slurm.munge_problem == ""


def test_slurms_commands_are_found_beside_the_path(tmp_path):
    for name in ("here", "there/bin"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "scontrol").write_text("#!/bin/sh\necho $0\n")
        (tmp_path / name / "scontrol").chmod(0o755)
    here, there = str(tmp_path / "here"), str(tmp_path / "there/bin")
    named = {"SLURM_SHARE_SLURM": str(tmp_path / "there")}
    assert fact_slurm.find_commands({"PATH": f"{here}:/x", **named}) == (here, True)
    assert fact_slurm.find_commands({"PATH": "/x", **named}) == (there, False)
    assert fact_slurm.find_commands(named, [here]) == (here, False)
    assert fact_slurm.find_commands({"PATH": "/x:", "SLURM_SHARE_SLURM": "/nowhere"})[1] is False
    assert fact_slurm.search_path({"PATH": f"bin:{here}::"}, ["/y"])[:2] == [here, "/y"]
    assert fact_slurm.asker({"PATH": "/x"}, [there])(["scontrol"]).stdout == f"{there}/scontrol\n"


def test_daemons_of_slurm_tell_where_its_commands_are(root):
    (root / "proc/57/exe").symlink_to("/opt/slurm-26/sbin/slurmd")
    assert system.read_daemon_folders(root) == ["/opt/slurm-26/sbin", "/opt/slurm-26/bin"]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda file: os.mkfifo(file), "is no plain file"),
        (lambda file: file.mkdir(), "is no plain file"),
        (lambda file: os.truncate(os.open(file, os.O_CREAT | os.O_RDWR), 1 << 32), "is larger than"),
    ],
    ids=["fifo", "folder", "huge"],
)
def test_a_configuration_that_is_no_file_is_not_waited_for(root, make, why):
    file = root / names.CONFIG_FILE.lstrip("/")
    file.parent.mkdir(parents=True)
    make(file)
    assert why in read(root).config.why


def test_a_line_without_a_field_is_no_record():
    """As `scontrol -o show nodes` answers where there are none."""
    assert fact_slurm.parse_records("No nodes in the system\n\nNodeName=n1 Gres=(null)\n") == [
        {"nodename": "n1", "gres": ""}
    ]


@pytest.mark.parametrize("text", ["\u0661", "9" * 4301, "-1", "4294967296"], ids=lambda text: text[:12])
def test_what_is_no_number_of_a_job_is_no_job(text):
    assert list(fact_slurm.parse_jobs(f"{text}|gpu|n1|share-gpu=4\n")) == []
