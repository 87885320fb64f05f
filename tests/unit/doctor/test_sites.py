"""Files of healthy sites: the checks of the configuration find nothing on any of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from doctor_hosts import write_process

from slurm_share.core import names
from slurm_share.doctor.checks import every
from slurm_share.doctor.facts import host
from slurm_share.doctor.facts.programs import read_hooks
from slurm_share.slurm.conf import read_conf

BASE = """\
ClusterName=site
SlurmctldHost=ctl
SlurmUser=root
GresTypes=gpu
SelectType=select/cons_tres
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup,task/affinity
PrologFlags=Alloc
JobSubmitPlugins=lua
Prolog=/opt/slurm-share/bin/slurm-share-prolog
Epilog=/opt/slurm-share/bin/slurm-share-epilog
"""
NODES = "NodeName=n[1-4] Gres=gpu:a100:4\nPartitionName=gpu Nodes=ALL Default=YES\n"
PROLOG = """\
#!/bin/bash
# pkill -f nvidia-cuda-mps was here
[ -d /scratch ] || {
    logger "there is no /scratch"
    exit 1
}
mkdir -p /scratch/$SLURM_JOB_ID
"""
EPILOG = """\
#!/bin/bash
left=$(squeue -h -u "$SLURM_JOB_USER" -w "$SLURMD_NODENAME" | wc -l)
if [ "$left" -eq 0 ]; then
    pkill -KILL -u "$SLURM_JOB_UID"
fi
rm -rf "/scratch/$SLURM_JOB_ID"
nvidia-smi -q -d ECC | grep -q Pending && logger "ECC errors on $(hostname)"
exit 0
"""
FOLDERS = BASE.replace("Prolog=/opt", "Prolog=/etc/slurm/prolog.d/*\n#").replace(
    "Epilog=/opt", "Epilog=/etc/slurm/epilog.d/*\n#"
)
OURS = '#!/bin/sh\n[ ! -x {0} ] || exec {0} "$@"\n'
SITES = {
    "plain": {"slurm.conf": BASE + NODES},
    "scripts of its own in folders": {
        "slurm.conf": FOLDERS + NODES, "prolog.d/10-site": PROLOG, "epilog.d/10-site": EPILOG,
        "prolog.d/zz-share": OURS.format("/opt/slurm-share/bin/slurm-share-prolog"),
        "epilog.d/zz-share": OURS.format("/opt/slurm-share/bin/slurm-share-epilog"),
    },
    "a TaskProlog and a TaskEpilog": {
        "slurm.conf": BASE + NODES + "TaskProlog=/etc/slurm/tp\nTaskEpilog=/etc/slurm/te\n",
        "tp": "#!/bin/sh\necho export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\necho print welcome\n",
        "te": "#!/bin/bash\ndate >> /tmp/log\n",
    },
    "scripts on the controller": {
        "slurm.conf": BASE + NODES + "PrologSlurmctld=/etc/slurm/ps\nEpilogSlurmctld=/etc/slurm/es\n",
        "ps": "#!/bin/sh\nlogger start\n", "es": '#!/usr/bin/python3\nprint("jobstats")\n',
    },
    "a namespace with /tmp alone": {
        "slurm.conf": BASE.replace("Flags=Alloc", "Flags=Contain") + NODES + "NamespaceType=namespace/linux\n",
        "namespace.yaml": 'defaults:\n  base_path: "/var/tmp/jobs"\n  dirs: "/tmp,/var/tmp"\n',
    },
    "job_container with /tmp alone": {
        "slurm.conf": BASE + NODES + "JobContainerType=job_container/tmpfs\nPrologFlags=Contain\n",
        "job_container.conf": "AutoBasePath=true\nBasePath=/local\nDirs=/tmp,/var/tmp\n",
    },
    "partitions of many kinds": {
        "slurm.conf": BASE + "NodeName=g[1-2] Gres=gpu:4\nNodeName=c[1-9]\nPartitionName=DEFAULT MaxTime=1-0\n"
        "PartitionName=gpu Nodes=g[1-2] Exclusive=USER\nPartitionName=cpu Nodes=c[1-9] OverSubscribe=FORCE:4\n"
        "PartitionName=night Nodes=g[1-2] PreemptMode=REQUEUE OverSubscribe=EXCLUSIVE\n"
        "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n",
    },
    "includes and node sets": {
        "slurm.conf": BASE + "Include nodes.conf\nNodeSet=big Nodes=n[1-4]\nPartitionName=gpu Nodes=big\n",
        "nodes.conf": "NodeName=DEFAULT Gres=gpu:h100:8\nNodeName=n[1-4]\n",
    },
    "configless": {
        "slurm.conf": BASE + NODES + "SlurmctldParameters=enable_configless,enable_stepmgr\n"
        "LaunchParameters=use_interactive_step\n",
    },
    "submit plugins of the site": {
        "slurm.conf": BASE.replace("Plugins=lua", "Plugins=all_partitions,lua,require_timelimit") + NODES,
        "job_submit.lua": 'local share = dofile("/usr/lib/slurm-share/job_submit.lua")\n'
        "function slurm_job_submit(job, partitions, uid)\n  return share.submit(job, partitions, uid)\nend\n"
        "function slurm_job_modify(job, old, partitions, uid)\n  return share.modify(job, old, partitions, uid)\nend\n",
    },
    "dynamic nodes": {"slurm.conf": BASE + "MaxNodeCount=64\nNodeSet=dyn Feature=dyn\nPartitionName=gpu Nodes=ALL\n"},
    "long times and shards": {
        "slurm.conf": BASE.replace("GresTypes=gpu", "GresTypes=gpu,shard")
        + "PrologEpilogTimeout=300\nBatchStartTimeout=60\nMessageTimeout=60\nUnkillableStepTimeout=180\n"
        "NodeName=n1 Gres=gpu:2,shard:48\nPartitionName=gpu Nodes=n1\n",
        "config": "shards_per_gpu = 24\n",
    },
    "scripts that know shares": {
        "slurm.conf": BASE + NODES + "Prolog=/etc/slurm/p\nEpilog=/etc/slurm/e\nTaskProlog=/etc/slurm/t\n",
        "p": '#!/bin/bash\n[ -n "$SPANK_SHARE_GPU" ] && exit 0\nnvidia-smi -c EXCLUSIVE_PROCESS\n',
        "e": '#!/bin/bash\n[ -n "$SPANK_SHARE_GPU" ] || nvidia-smi -c DEFAULT\n',
        "t": '#!/bin/sh\n[ -n "$SLURM_SHARE_SLOT" ] || echo export CUDA_VISIBLE_DEVICES=0\n',
    },
}  # fmt: skip


def site(root, files):
    """Write a site's files below a root, complete it with what every installation has, and return its findings."""
    ours = "-- ours\n"
    made = {
        "/proc/sys/kernel/hostname": "ctl\n",
        "/etc/slurm/cgroup.conf": "ConstrainDevices=yes\n",
        "/etc/slurm/plugstack.conf": "optional /usr/lib/slurm-share/share_gpu.so\n",
        "/etc/slurm/job_submit.lua": ours,
        "/usr/lib/slurm-share/job_submit.lua": ours,
        **{f"/etc/slurm/{name}": text for name, text in files.items() if name != "config"},
        **{f"/bin/{name}": "" for name in ("sh", "bash")},
        "/usr/bin/python3": "",
        "/opt/slurm-share/bin/slurm-share-prolog": "",
        "/opt/slurm-share/bin/slurm-share-epilog": "",
        names.CONFIG_FILE: f'mode = "on"\n{files.get("config", "")}',
    }
    for name, text in made.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    write_process(root, 1, "init")
    for folder in root.rglob("*"):
        folder.chmod(0o755)
    root.chmod(0o755)
    coming = {str(root / names.CONFIG_FILE.lstrip("/").replace("config.toml", "job_submit_settings.lua")): ""}
    text = read_conf(root / "etc/slurm/slurm.conf")
    facts = host.read_configured("/etc/slurm/slurm.conf", text, "", coming=coming, is_of_host=True, root=root)
    return [one for one in every.examine(facts, needs="configuration") if one.outcome in ("WARN", "FAIL")]


@pytest.mark.parametrize("name", list(SITES))
def test_nothing_is_found_on_a_healthy_site(tmp_path, name):
    assert site(tmp_path, SITES[name]) == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"prolog.d/10-site": "#!/bin/bash\nexit 1\n"}, "script-fails"),
        ({"epilog.d/10-site": "#!/bin/bash\npkill -f nvidia-cuda-mps\n"}, "script-gpus"),
        ({"epilog.d/20-site": "#!/bin/bash\nnvidia-smi -i 0 -r\n"}, "script-gpus"),
        ({"epilog.d/30-site": "date\n"}, "script-fails"),
    ],
)
def test_a_script_in_a_folder_is_found_by_its_pattern(tmp_path, change, found):
    files = {**SITES["scripts of its own in folders"], **change}
    assert [one.check for one in site(tmp_path, files)] == [found]


def test_a_link_to_no_file_that_a_pattern_matches_is_found(tmp_path: Path) -> None:
    """slurmd tries to run it, and drains the node."""
    (tmp_path / "gone").symlink_to("/opt/site/removed")
    (tmp_path / "folder").mkdir()
    found = read_hooks((f"{tmp_path}/*",), "slurm-share-prolog", "/etc/slurm")
    assert [(file.path.rpartition("/")[2], file.is_file, file.is_executable) for file in found[0].files] == [
        ("gone", False, False), ("folder", False, False)
    ]  # fmt: skip
    assert found[0].files[0].chain[-1].mode == 0o755  # a link's own mode means nothing to hook-owner
