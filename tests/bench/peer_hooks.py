"""Our Prolog and Epilog beside public shell scripts: python tests/bench/peer_hooks.py (root; makes a local cluster).

Two public pairs are known to sites that start MPS from hooks: Slurm's own etc/prolog.example, and DeepOps' prolog for
MPS per GPU with its epilog-mps. Here they are *re-enacted*: short scripts with the behaviour that is described of them,
step by step and written anew, not the scripts themselves, whose programs (lspci, sudo, nvidia-smi) are not on this
machine. What each does stands above it. Everything runs against the simulated MPS, whose control program takes longer
to start than NVIDIA's: the same for all. The `sleep`s are the scripts' own.

What is compared is the same work. Slurm's example has no Epilog: its Prolog ends what the last job began, where that
was on another GPU, and on the same GPU goes on with the last job's daemon, whoever's it was. So our Epilog and the
Prolog after it stand beside its Prolog on another GPU; that on the same GPU is shown and held to nothing, for a daemon
that stays is what ours are there to avoid. What else the machine does makes us slower, and a `sleep` not: our Epilog
was once set against none at all, on a busy machine, and came to 1.37 times. CPU seconds are shown for that reason.

None of the peers does what our pair does besides: caps, a ledger of who is here, leftovers, a proof that the daemon
lives, the granted GPUs only, an Epilog that ends nothing of a sibling's.
"""

from __future__ import annotations

import json
import sys
from statistics import median

from bench import Row, report

from localcluster import Cluster

ROUNDS = 5
GPUS = 4
CONTROL = "/usr/local/bin/nvidia-cuda-mps-control"

# Slurm's etc/prolog.example: one GPU, as root; what runs there from before is ended first (a file says which device it
# was), then a daemon of the device, a second's wait, and a server for the user. There is no Epilog: the next job's
# Prolog ends what the last one began.
SLURM_PROLOG = f"""#!/bin/bash
PATH=/usr/sbin:/usr/bin:/sbin:/bin
state=/run/peer-device
device=${{CUDA_VISIBLE_DEVICES%%,*}}
if [ -e $state ] && [ "$(cat $state)" != "$device" ]; then
    export CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps_$(cat $state)
    echo quit | {CONTROL} >/dev/null 2>&1
    sleep 1
    ps aux | grep nvidia-cuda-mps | grep -v grep >/dev/null
    rm -f $state
fi
export CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps_$device CUDA_MPS_LOG_DIRECTORY=/tmp/nvidia-log_$device
mkdir -p $CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_LOG_DIRECTORY
ps aux | grep nvidia-cuda-mps | grep -v grep >/dev/null
if [ ! -e $state ]; then
    setsid {CONTROL} -d >/dev/null 2>&1 </dev/null
    sleep 1
    echo "start_server -uid $SLURM_JOB_UID" | {CONTROL} >/dev/null 2>&1
    echo $device >$state
fi
exit 0
"""

# DeepOps' Prolog per GPU: the job's comment from the controller; for each GPU that the machine has, granted or not,
# a daemon as the user with a folder of its own, three waits of a second for each.
DEEPOPS_PROLOG = f"""#!/bin/bash
PATH=/usr/sbin:/usr/bin:/sbin:/bin
scontrol show job $SLURM_JOB_ID 2>/dev/null | grep -o 'Comment=[^ ]*' >/dev/null
for device in $(seq 0 $(({GPUS} - 1))); do
    folder=/tmp/peer-mps-$device logs=/tmp/peer-log-$device
    rm -rf $folder $logs
    sleep 1
    install -d -o $SLURM_JOB_UID $folder $logs
    sleep 1
    setpriv --reuid $SLURM_JOB_UID --regid $SLURM_JOB_GID --clear-groups env CUDA_VISIBLE_DEVICES=$device \\
        CUDA_MPS_PIPE_DIRECTORY=$folder CUDA_MPS_LOG_DIRECTORY=$logs setsid {CONTROL} -d >/dev/null 2>&1 </dev/null
    sleep 1
done
exit 0
"""

# DeepOps' epilog-mps: `quit` to the folder that MPS has by default, which is none of those above, then all programs of
# that name, whosever they are.
DEEPOPS_EPILOG = f"""#!/bin/bash
PATH=/usr/sbin:/usr/bin:/sbin:/bin
scontrol show job $SLURM_JOB_ID 2>/dev/null | grep -o 'Comment=[^ ]*' >/dev/null
echo quit | {CONTROL} >/dev/null 2>&1
sleep 1
for name in nvidia-cuda-mps-control nvidia-cuda-mps-server nvidia-cuda-mps; do pkill -x "${{name:0:15}}"; done
exit 0
"""
NOTHING = "#!/bin/bash\nexit 0\n"

# Runs inside the node: (wall, CPU) milliseconds of each hook, and what there is of MPS after each. CPU: of the hook, of
# our hooks' helper, and of all that they waited for; a busy machine makes the walls longer and leaves it as it is.
TIMER = r"""
import json, os, subprocess, sys, time
rounds, gpus = int(sys.argv[1]), int(sys.argv[2])
pairs = json.loads(sys.argv[3])
def daemons():
    return int(subprocess.run(["pgrep", "-c", "-x", "nvidia-cuda-mps"], capture_output=True, text=True).stdout)
def helper_s():
    spent = 0
    for pid in subprocess.run(["pgrep", "-x", "slurm-share-hoo"], capture_output=True, text=True).stdout.split():
        fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
        spent += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return spent
def run(program, job, devices):
    env = {"SLURM_JOB_ID": str(job), "SLURM_JOB_UID": "2001", "SLURM_JOB_GID": "2001", "SLURMD_NODENAME": "n1",
           "SLURM_JOB_USER": "alice", "SPANK_SHARE_GPU": "4", "SLURM_JOB_EXTRA": "slurm-share=on",
           "CUDA_VISIBLE_DEVICES": devices}
    helped = helper_s()
    begin, before = time.perf_counter(), os.times()
    code = subprocess.run([program], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
    assert code == 0, program
    wall, after = time.perf_counter() - begin, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    time.sleep(0.05)  # the helper counts a hook's process once it has waited for it
    return 1000 * wall, 1000 * (cpu + max(0, helper_s() - helped))
every = ",".join(map(str, range(gpus)))
out = {}
for name, (prolog, epilog, devices) in pairs.items():
    devices = devices or every
    found = {"prolog": [], "epilog": [], "daemons": [], "left": [], "other": [], "same": []}
    for number in range(rounds):
        found["prolog"].append(run(prolog, 9000 + number, devices))
        found["daemons"].append(daemons())
        found["epilog"].append(run(epilog, 9000 + number, devices))
        found["left"].append(daemons())
        if devices == "0":  # the next jobs: on another GPU, on that one again
            for which in ("other", "same"):
                found[which].append(run(prolog, 9500 + number, "1"))
                run(epilog, 9500 + number, "1")
        # what a peer leaves would help its next round; each begins with nothing
        subprocess.run(["pkill", "-9", "-x", "nvidia-cuda-mps"])
        while daemons(): time.sleep(0.02)
        subprocess.run("rm -rf /run/peer-device /tmp/nvidia-* /tmp/peer-*", shell=True)
    out[name] = found
print(json.dumps(out))
"""


def wall(one: dict[str, list], which: str) -> float:
    """Median of a hook, milliseconds."""
    return median([pair[0] for pair in one[which]])


def cpu(one: dict[str, list], which: str) -> float:
    """The same of its CPU."""
    return median([pair[1] for pair in one[which]])


def main() -> int:
    ours = ("/opt/slurm-share/bin/slurm-share-prolog", "/opt/slurm-share/bin/slurm-share-epilog")
    with Cluster.up("sbench-peers", "26.05", nodes=1) as cluster:
        cluster.exec("n1", ["simgpu-init", str(GPUS), "--replace"], check=True)
        scripts = {"slurm-prolog": SLURM_PROLOG, "nothing": NOTHING}
        scripts |= {"deepops-prolog": DEEPOPS_PROLOG, "deepops-epilog": DEEPOPS_EPILOG}
        for name, text in scripts.items():
            (cluster.conf / name).write_text(text)
            (cluster.conf / name).chmod(0o755)
        pairs = {
            "ours, 1 GPU": (*ours, "0"),
            f"ours, {GPUS} GPUs": (*ours, ""),
            "prolog.example of Slurm, 1 GPU": ("/etc/slurm/slurm-prolog", "/etc/slurm/nothing", "0"),
            f"DeepOps per GPU, {GPUS} GPUs": ("/etc/slurm/deepops-prolog", "/etc/slurm/deepops-epilog", ""),
        }
        argv = ["python3", "-c", TIMER, str(ROUNDS), str(GPUS), json.dumps(pairs)]
        found = json.loads(cluster.exec("n1", argv, check=True, timeout=1200).stdout)
        version = cluster.slurm_version
    rows = []
    both = {name: wall(one, "prolog") + wall(one, "epilog") for name, one in found.items()}
    for name, one in found.items():
        again = "" if name.startswith("ours") else " (re-enacted)"
        rows += [
            Row(f"{name}{again}: Prolog", wall(one, "prolog"), "ms"),
            Row("  Epilog", wall(one, "epilog"), "ms"),
            Row("  CPU of both", cpu(one, "prolog") + cpu(one, "epilog"), "ms"),
            Row("  daemons and servers after the Prolog", median(one["daemons"]), "processes"),
            Row("  of them left after the Epilog", max(one["left"]), "processes", 0 if not again else None),
        ]
    starts = {name: wall(one, "prolog") for name, one in found.items()}
    ours, example, deepops = "ours, 1 GPU", "prolog.example of Slurm, 1 GPU", f"DeepOps per GPU, {GPUS} GPUs"
    end_and_start = wall(found[ours], "epilog") + wall(found[ours], "other")
    rows += [
        # a site that changes over to us must not find its jobs start later
        Row("ours to prolog.example, 1 GPU: Prolog", starts[ours] / starts[example], "x", 1.0),
        Row(f"ours to DeepOps, {GPUS} GPUs: Prolog", starts[f"ours, {GPUS} GPUs"] / starts[deepops], "x", 1.0),
        # nor that they take longer in all
        Row("ours: a daemon ends and the next job's begins, Epilog and Prolog", end_and_start, "ms"),
        Row("prolog.example: the same, in the next job's Prolog", wall(found[example], "other"), "ms"),
        Row("  ours to it", end_and_start / wall(found[example], "other"), "x", 1.0),
        Row(
            "prolog.example: the next job on the same GPU, with the last one's daemon",
            wall(found[example], "same"),
            "ms",
        ),
        Row(f"ours to DeepOps, {GPUS} GPUs: Prolog and Epilog", both[f"ours, {GPUS} GPUs"] / both[deepops], "x", 1.0),
    ]
    return 0 if report("peer_hooks", version, rows) else 1


if __name__ == "__main__":
    sys.exit(main())
