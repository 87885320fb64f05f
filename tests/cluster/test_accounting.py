"""Accounts and bills of shares, with the examples of docs/accounting.md; and what else the cluster with slurmdbd has:
slurmrestd and scrontab, with those of docs/users.md.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tool_packages
from clusters import by_release, cluster_of
from hooked import Node, completed, output_of, rewritten, until

from localcluster import Cluster
from localcluster.paths import CHECKOUT
from slurm_share.share import without_plugin
from slurm_share.usage import comment

pytestmark = [pytest.mark.cluster, pytest.mark.weekly, pytest.mark.weekly]

DOCUMENT = (CHECKOUT / "packaging/docs/accounting.md").read_text()
WEIGHTS = re.findall(r'TRESBillingWeights="(.*?)"', DOCUMENT)
QUERY = re.findall(r"```sh\n(.*?)```", DOCUMENT, re.DOTALL)[0]
FLAGS = re.findall(r"^    (AccountingStoreFlags=.*)$", DOCUMENT, re.MULTILINE)[0]
JOBSTATS = "/etc/slurm/slurmctldepilog.sh"
AS_JOBSTATS = """#!/bin/bash
# As jobstats does, for the jobs with its name; it waits five seconds for slurmctld's record of the job.
[ "$SLURM_JOB_NAME" = jobstats ] || exit 0
for _ in {1..600}; do
  [ "$(sacct -Xn -o End -j "$SLURM_JOB_ID" | tr -d ' ')" != Unknown ] && break
  sleep 0.1
done
sacctmgr -i update job where jobid="$SLURM_JOB_ID" set AdminComment=JS1:H4sIAAAA
"""
TOO_SMALL = "CPU=1,GRES/gpu=8,GRES/shard=0.0000111"
"""The weight of a shard rounded down."""
REST = re.findall(
    r"```sh\n(slurmrestd .*?) &\n(curl .*?)```", (CHECKOUT / "packaging/docs/users.md").read_text(), re.DOTALL
)[0]
"""The command that starts slurmrestd, and a request to it, as in users.md."""
NODES = "Nodes=n1,n2,n3 DefMemPerCPU=500 MaxTime=1-0 State=UP"


@pytest.fixture(scope="module", params=by_release("accounting-"))
def accounted(request: pytest.FixtureRequest, can_make_clusters: None) -> Iterator[Cluster]:
    """Yield a cluster with accounting: the document's weights in `gpu` and `fine`, others in `down`."""
    partitions = (
        f'PartitionName=gpu {NODES} Default=YES TRESBillingWeights="{WEIGHTS[0]}"\n'
        f'PartitionName=fine {NODES} TRESBillingWeights="{WEIGHTS[1]}"\n'
        f'PartitionName=down {NODES} TRESBillingWeights="{TOO_SMALL}"\n'
        f"{FLAGS}\n"
        f"PartitionName=whole {NODES} OverSubscribe=EXCLUSIVE MaxMemPerNode=3000\n"
        "AccountingStorageEnforce=limits\n"
        "ScronParameters=enable\n"
    )
    with cluster_of("acct", request.param, accounting=True, slurm_conf_extra=partitions) as made:
        file = made.conf / Path(JOBSTATS).name
        file.write_text(AS_JOBSTATS)
        file.chmod(0o755)
        with (made.conf / "slurm.conf").open("a") as conf:
            conf.write(f"EpilogSlurmctld={JOBSTATS}\n")
        made.exec("ctl", ["scontrol", "reconfigure"], check=True)
        yield made


@dataclass(frozen=True)
class Record:
    """The accounts' record of an ended job."""

    state: str
    admin_comment: str
    tres: str
    """AllocTRES without the memory and without the GPU's type."""
    submit_line: str


def ended(cluster: Cluster, job: int) -> Record:
    """Wait for the end of a job and return its record. slurmctld sends it a moment after the job is completed."""
    cluster.wait(job)
    argv = ["sacct", "-X", "-n", "-P", "-j", str(job), "-o", "End,State,AdminComment,AllocTRES,SubmitLine"]
    fields: list[str] = []

    def has_end() -> bool:
        fields[:] = cluster.exec("login", argv, check=True).stdout.rstrip("\n").split("|")
        return fields[0] != "Unknown"

    until(has_end, f"an end of job {job} in the accounts")
    _, state, comment, tres, line = fields
    kept = [item for item in tres.split(",") if not re.match("mem=|gres/gpu:", item)]
    return Record(state, comment, ",".join(kept), line)


def test_a_share_asked_for_in_the_script_is_in_the_accounts(accounted: Cluster) -> None:
    """Where the SubmitLine does not have it; and on the controller before the job ends."""
    job = accounted.sbatch("alice", "#!/bin/bash\n#SBATCH --share-gpu=4\nsrun true", "-w", "n2")
    assert " AdminComment=share-gpu=4 " in accounted.job(job)
    record = ended(accounted, job)
    assert (record.state, record.admin_comment) == ("COMPLETED", "share-gpu=4")
    assert record.submit_line == "sbatch --parsable -w n2"
    said = accounted.as_user("alice", ["sacct", "-X", "-n", "-P", "-o", "AdminComment", "-j", str(job)])
    assert said.stdout == "share-gpu=4\n"


@pytest.mark.parametrize("options", [[], ["--share-gpu=off"], ["--gres=gpu:1"]])
def test_a_job_without_a_share_has_no_comment(accounted: Cluster, options: list[str]) -> None:
    assert ended(accounted, accounted.sbatch("bob", "true", *options)).admin_comment == ""


@pytest.mark.parametrize(
    ("options", "tres"),
    [
        (["--share-gpu=4"], "billing=24,cpu=8,gres/gpu=2,node=1"),
        (["--share-gpu=4", "--gres=gpu:1"], "billing=12,cpu=4,gres/gpu=1,node=1"),
        (["--share-gpu=4", "--gres=gpu:1", "-n1"], "billing=3,cpu=1,gres/shard=180180,node=1"),
        (["--share-gpu=4", "-p", "plain"], "billing=8,cpu=8,gres/gpu=2,node=1"),
    ],
    ids=["whole node", "one GPU", "a quarter of a GPU", "no weights"],
)
def test_a_share_is_billed_what_the_document_says(accounted: Cluster, options: list[str], tres: str) -> None:
    assert f"| `{tres}` |" in DOCUMENT
    record = ended(accounted, accounted.sbatch("alice", "true", "-w", "n2", *options))
    assert (record.state, record.tres) == ("COMPLETED", tres)


@pytest.mark.parametrize(
    ("partition", "shards", "billing"),
    [
        ("gpu", 180180, "billing=3,"),  # 1 + 2.00002
        ("down", 180180, "billing=2,"),  # 1 + 1.999998
        ("down", 720720, "billing=8,"),  # 1 + 7.999992
        ("fine", 240240, "billing=3666,"),  # 1000 + 2666.69
    ],
)
def test_slurm_cuts_the_fraction_of_a_bill_off(accounted: Cluster, partition: str, shards: int, billing: str) -> None:
    """The weight of a shard must be rounded up, or a share costs one less than it should."""
    job = accounted.sbatch("alice", "true", "-w", "n2", "-p", partition, "-n1", f"--gres=shard:{shards}")
    assert ended(accounted, job).tres.startswith(billing)


FORGED = "HERS|\nbob|9|billing=9|share-gpu=9\n;share-gpu=9;slurm-share=on,share-gpu=9"
"""A comment with which a user tries to be billed less, or somebody else more; it has a line's end in it."""


def overwritten(cluster: Cluster, share: str) -> int:
    """Run a job of alice with this share, whose AdminComment jobstats overwrites after its end."""
    options = [f"--{share}", "-w", "n2"] if share else ["-p", "plain", "-w", "n1"]
    job = cluster.sbatch("alice", "true", "--job-name=jobstats", f"--extra={FORGED}", *options)

    def is_overwritten() -> bool:
        argv = ["sacct", "-Xn", "-o", "AdminComment", "-j", str(job)]
        return "JS1:H4sIAAAA" in cluster.exec("ctl", argv, check=True).stdout

    cluster.wait(job)
    until(is_overwritten, f"jobstats' summary of job {job}")
    return job


def test_the_documents_query_sums_by_user_and_share(accounted: Cluster) -> None:
    """Jobs, and hours of what was billed; the sum here is another one, over the same records."""
    jobs = [accounted.sbatch("alice", "srun sleep 1", "-w", node, "--share-gpu=4") for node in ("n2", "n3")]
    jobs.append(accounted.sbatch("bob", "sleep 1", "-p", "plain", "-w", "n1"))
    for job in jobs:
        ended(accounted, job)
    jobs = [overwritten(accounted, "share-gpu=2,sm=even"), overwritten(accounted, "")]
    wanted: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    fields = ["--format=JobIDRaw,User,AdminComment,AllocTRES,ElapsedRaw", "-n", "-P"]
    for line in accounted.exec("ctl", ["sacct", "-a", "-X", *fields], check=True).stdout.splitlines():
        job, user, comment, tres, seconds = line.split("|")
        billed = dict(item.split("=") for item in tres.split(",")).get("billing", "0")
        share = comment.rpartition(";")[2]
        if comment.startswith("JS1:"):
            share = {str(jobs[0]): "share-gpu=2,sm=even"}.get(job, "")
        row = wanted[f"{user} {share or '-'}"]
        row[0] += 1
        row[1] += int(billed) * int(seconds) / 3600
    assert wanted["alice share-gpu=4"][0] >= 2
    assert wanted["alice share-gpu=2,sm=even"][0] == 1
    assert wanted["bob -"][1] > 0
    said = accounted.exec("ctl", ["bash", "-c", QUERY], check=True).stdout
    found = {" ".join(words[:2]): [int(words[2]), float(words[3])] for words in map(str.split, said.splitlines())}
    assert found == {who: pytest.approx(row, rel=1e-4) for who, row in wanted.items()}


def test_a_record_of_use_stays_beside_jobstats_summary_and_reportseff_reads_the_job(accounted: Cluster) -> None:
    """Whoever writes first. jobstats writes AdminComment, the record is in SystemComment, behind what is there."""
    job = overwritten(accounted, "share-gpu=2")
    argv = ["sacct", "-Xn", "-P", "-o", "AdminComment,SystemComment", "-j", str(job)]
    found: list[str] = []

    def is_there() -> bool:
        found[:] = accounted.exec("ctl", argv, check=True).stdout.strip().split("|")
        return found[-1].startswith("slurm-share-use:1:")

    until(is_there, f"the record of job {job}")
    assert found[0] == "JS1:H4sIAAAA"
    (use,) = comment.decode(found[1]).uses
    assert (use.job, use.share) == (job, 2)
    summary = {
        "gpus": 1,
        "total_time": 2,
        "nodes": {
            "n2": {
                "cpus": 1, "total_time": 1.0, "used_memory": 2**20, "total_memory": 2**29,
                "gpu_utilization": {"0": 85.0}, "gpu_used_memory": {"0": 2**30}, "gpu_total_memory": {"0": 80 * 2**30},
            }
        },
    }  # fmt: skip
    packed = base64.b64encode(gzip.compress(json.dumps(summary).encode())).decode()
    change = ["sacctmgr", "-i", "update", "job", "where", f"jobid={job}", "set", f"AdminComment=JS1:{packed}"]
    accounted.exec("ctl", change, check=True)
    plain = accounted.sbatch("alice", "true", "-w", "n2", "--share-gpu=2")
    ended(accounted, plain)
    line = tool_packages.give_or_skip(accounted, "alice", "reportseff")
    run = f"{line}; python3 -c 'from reportseff.console import main; main()' --no-color {job} {plain}"
    said = accounted.as_user("alice", ["bash", "-c", run], check=True).stdout
    assert re.search(rf"{job} +COMPLETED .* 85\.0%", said)
    assert re.search(rf"{plain} +COMPLETED ", said)


# ---- programs that do not read #SBATCH lines -------------------------------------------------------------------------

ASKING = "#!/bin/bash\n#SBATCH --share-gpu=4 --gres=gpu:1\nsrun ./train.sh"


def answers(cluster: Cluster, *requests: str) -> list[dict[str, Any]]:
    """Send alice's requests to a slurmrestd of her own, and return what it answers."""
    wait = "until [ -S rest.sock ]; do sleep 0.1; done"
    sent = "".join(f"{request.strip()} >answer-{number}\n" for number, request in enumerate(requests))
    script = f"{REST[0]} 2>rest.log & trap 'kill $!' EXIT\n{wait}\n{sent}"
    train = "#!/bin/bash\necho slot $SLURM_SHARE_SLOT of $SLURM_SHARE_SIZE\n"
    (cluster.home / "alice/train.sh").write_text(train)
    (cluster.home / "alice/train.sh").chmod(0o755)
    cluster.as_user("alice", ["bash", "-c", script], check=True)
    return [json.loads((cluster.home / f"alice/answer-{number}").read_text()) for number in range(len(requests))]


@pytest.mark.release
def test_slurmrestd_takes_the_documents_field_and_no_script_that_asks_without_it(accounted: Cluster) -> None:
    request, field = REST[1], ', "spank_environment": ["SHARE_GPU=4"]'
    assert field in request
    asking = request.replace(json.dumps("#!/bin/bash\nsrun ./train.sh"), json.dumps(ASKING)).replace(field, "")
    misnamed = request.replace('"SHARE_GPU=', '"SPANK_SHARE_GPU=')
    shared, *refused = answers(accounted, request, asking, misnamed)
    job = int(shared["job_id"])
    assert ended(accounted, job).admin_comment == "share-gpu=4"
    said = (accounted.home / f"alice/slurm-{job}.out").read_text().splitlines()
    assert sorted(line for line in said if line.startswith("slot ")) == [f"slot {slot} of 4" for slot in range(4)]
    for answer in refused:
        assert [one["error"] for one in answer["errors"]] == ["Invalid generic resource (gres) specification"]
    log = (accounted.root("ctl") / "var/log/slurm/slurmctld.log").read_text()
    assert "refused a job of uid 2001: an #SBATCH line of the script asks for --share-gpu=4, which the program" in log
    assert "refused a job of uid 2001: spank_environment has SPANK_SHARE_GPU, which nothing reads" in log


def test_what_passes_a_script_by_is_refused_and_what_declines_its_share_is_not(accounted: Cluster) -> None:
    (accounted.home / "alice/asking.sh").write_text(ASKING.replace("./train.sh", "true"))
    (accounted.home / "alice/cron").write_text("#SCRON --share-gpu=4\n0 0 1 1 * true\n")
    wrapped = accounted.as_user("alice", 'sbatch --wrap "$(cat asking.sh)"')
    assert wrapped.returncode == 1
    assert "give the option to sbatch: sbatch --share-gpu=4 --wrap=COMMAND" in wrapped.stderr
    table = accounted.as_user("alice", "scrontab cron")
    assert table.returncode == 1
    assert "let the entry submit that script: 0 * * * * sbatch job.sh" in table.stderr
    assert accounted.as_user("alice", "scrontab -l").returncode == 1
    job = int(accounted.as_user("alice", "sbatch --parsable --share-gpu=off asking.sh", check=True).stdout)
    assert ended(accounted, job).admin_comment == ""


def test_doctor_names_a_script_that_sets_the_admin_comment(accounted: Cluster) -> None:
    """Only where slurmdbd does not keep the share in a second field."""

    def said() -> str:
        found = accounted.exec("ctl", ["slurm-share", "doctor", "--verbose"]).stdout
        return found.partition("admin-comment: ")[2][:400]

    assert said().startswith(f"{JOBSTATS} sets it, and slurmdbd keeps the share as job_extra")
    file = accounted.conf / "slurm.conf"
    with rewritten(file, file.read_text().replace(FLAGS, "AccountingStoreFlags=job_comment")):
        accounted.exec("ctl", ["scontrol", "reconfigure"], check=True)
        wrong = said()
        assert wrong.startswith(f"{JOBSTATS} sets AdminComment, and AccountingStoreFlags has no job_extra")
        assert "slurm.conf: AccountingStoreFlags=job_comment,job_extra, and scontrol reconfigure" in wrong
    accounted.exec("ctl", ["scontrol", "reconfigure"], check=True)


# ---- limits on GPUs --------------------------------------------------------------------------------------------------


@pytest.fixture
def normal(accounted: Cluster) -> Iterator[Callable[[str], None]]:
    """Yield a function that sets a limit of the QOS `normal`, which has none afterwards."""
    argv = ["sacctmgr", "-i", "modify", "qos", "normal", "set"]
    given: list[str] = []

    def limit(text: str) -> None:
        given.append(text.partition("=")[0])
        accounted.exec("ctl", [*argv, text], check=True)

    yield limit
    for name in dict.fromkeys(given):
        accounted.exec("ctl", [*argv, f"{name}=gres/gpu=-1,gres/shard=-1"], check=True)
    accounted.cancel_all()


def remedy(cluster: Cluster) -> tuple[str, str]:
    """Return what `slurm-share doctor` says of the limits, and the command in its remedy."""
    said = cluster.exec("ctl", ["slurm-share", "doctor"]).stdout
    finding, fix = re.findall(r"WARN  gpu-limits: (.*)\n +fix: (.*)", said)[0]
    return finding, fix[fix.index("sacctmgr") :]


def wait_for_reason(cluster: Cluster, job: int, reason: str) -> None:
    argv = ["squeue", "-h", "-o", "%r", "-j", str(job)]
    until(lambda: cluster.exec("ctl", argv).stdout.strip() == reason, f"job {job} to wait for {reason}")


PART = ("--share-gpu=4", "--gres=gpu:1", "-n1")


@pytest.mark.release
def test_a_limit_on_gpus_holds_parts_once_the_command_of_doctor_has_run(
    accounted: Cluster, normal: Callable[[str], None]
) -> None:
    normal("MaxTRESPerUser=gres/gpu=1")
    jobs = [accounted.sbatch("alice", "sleep 600", "-w", "n2", *PART) for _ in range(5)]
    for job in jobs:
        accounted.wait_running(job)  # five quarters: more than the one GPU
    finding, command = remedy(accounted)
    assert finding.startswith("MaxTRESPerUser=gres/gpu=1 of qos normal lets every number of parts of a GPU pass")
    assert command == "sacctmgr -i modify qos normal set MaxTRESPerUser=gres/shard=720720"
    advice = accounted.exec("ctl", ["slurm-share", "install", "--check", "--shards"]).stdout
    assert command in advice
    accounted.exec("ctl", ["bash", "-c", command], check=True)
    wait_for_reason(accounted, accounted.sbatch("alice", "true", "-w", "n2", *PART), "QOSMaxGRESPerUser")
    assert "gpu-limits: no limit on gres/gpu" in accounted.exec("ctl", ["slurm-share", "doctor", "--verbose"]).stdout


def test_a_lowest_number_of_gpus_keeps_parts_waiting_until_the_command_of_doctor_has_run(
    accounted: Cluster, normal: Callable[[str], None]
) -> None:
    normal("MinTRESPerJob=gres/gpu=1")
    job = accounted.sbatch("alice", "true", *PART)
    wait_for_reason(accounted, job, "QOSMinGRES")
    finding, command = remedy(accounted)
    assert finding.endswith("a part of a GPU is gres/shard and no gres/gpu, so that it pends for ever (QOSMinGRES)")
    accounted.exec("ctl", ["bash", "-c", command], check=True)
    assert ended(accounted, job).state == "COMPLETED"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (PART, "where it would never start: leave -n1 away to have all GPUs of a node, with 4 tasks on each"),
        (PART[:2], "the job gets all GPUs of its node, not 1, with 4 slots on each"),
        (PART[:1], "if Slurm refuses it, write --mem=3000"),
    ],
    ids=["part", "one GPU", "whole nodes"],
)
def test_what_a_partitions_policy_makes_of_a_share_is_said(
    accounted: Cluster, options: tuple[str, ...], said: str
) -> None:
    argv = ["sbatch", "--test-only", "-p", "whole", *options, "--wrap", "true"]
    assert said in accounted.as_user("alice", argv).stderr


def test_a_node_that_cannot_load_the_plugin_says_so_in_the_job_marks_it_and_then_refuses(accounted: Cluster) -> None:
    """The object needs a later libc, as one of another system. Nothing drains the node; the mended object ends it."""
    node = Node(accounted, "n3")
    file = accounted.root("n3") / "usr/lib/slurm-share/share_gpu.so"
    part = ["-w", "n3", "--share-gpu=2,mem=4G", "--gres=gpu:1", "-n1"]
    script = "echo begun; srun bash -c 'echo slot ${SLURM_SHARE_SLOT-none}'"
    good, marked = file.read_bytes(), "share-not-loaded=n3;share-gpu=2,mem=4096M"

    def has_word(job: int) -> bool:
        told = f"slurm-share: no step of job {job} loaded the plugin of slurm-share on n3"
        return told in output_of(accounted, job) and ended(accounted, job).admin_comment == marked

    try:
        replace(file, good.replace(b"GLIBC_2.33", b"GLIBC_2.99"))
        jobs = [accounted.sbatch("alice", script, *part) for _ in range(without_plugin.MOST_JOBS)]
        for job in jobs:
            until(partial(has_word, job), "the Epilog's word", node.log)
            assert re.search("slot none(.|\n)*version `GLIBC_2.99' not found", output_of(accounted, job))
        said = node.run("slurm-share", "status").stdout
        assert "no step of the last 3 shared jobs here" in said
        refused = accounted.sbatch("alice", script, *part)
        record = ended(accounted, refused)
        assert (record.state.split()[0], record.admin_comment) == ("CANCELLED", marked)
        output = accounted.output(refused)
        assert f"job {refused} cannot have --share-gpu=2,mem=4096M on n3: Slurm does not load the plugin" in output
        assert "slot none" not in output
        assert "fine" in completed(accounted, "echo fine", "-w", "n3", "-p", "plain")
    finally:
        replace(file, good)
    assert "slot 0" in completed(accounted, script, *part)
    until(lambda: not node.ledger()["without_plugin"], "the end of the refusal", node.log)
    assert accounted.status().nodes["n3"] in ("idle", "mixed", "completing")


def replace(file: Path, data: bytes) -> None:
    """Put another file in the place of one that is mapped, as a package does."""
    new = file.with_suffix(".new")
    new.write_bytes(data)
    new.chmod(0o644)
    new.replace(file)
