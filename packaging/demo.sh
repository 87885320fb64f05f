#!/usr/bin/env bash
# Demonstration of slurm-share on a real Slurm cluster: five hosts in namespaces of this machine, simulated GPUs.
# Usage (as root, Debian 12 or later, nothing installed before): packaging/demo.sh [--slurm RELEASE]
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
releases=$(sed -n 's/^    "\([0-9.]*\)": "[a-z]*",$/\1/p' "$here/../slurm_share/slurm/releases.py" | paste -sd'|')
usage() {
	sed -n "2,3{s/^# //;s/RELEASE/$releases/;p}" "$here/demo.sh" >&2
	exit 2
}
release=${releases%%|*}
case $#,${1-} in
0,) ;;
2,--slurm) release=$2 ;;
*) usage ;;
esac
if [ "$(id -u)" != 0 ]; then
	echo "packaging/demo.sh: needs root to make hosts out of namespaces; run: sudo packaging/demo.sh" >&2
	exit 2
fi

if ! command -v python3 >/dev/null; then
	echo "installing Debian packages: python3"
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3 >/dev/null
fi
name=shown # not `demo`, the default name of a developer's cluster
cluster() { "$here/demo/cluster" --name "$name" "$@"; }
title() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
fail() {
	echo "packaging/demo.sh: $*; the cluster is kept for inspection: packaging/demo/cluster --name $name exec n2 -- bash" >&2
	exit 1
}
trap 'echo "packaging/demo.sh: interrupted; take its cluster down with: packaging/demo/cluster --name $name down" >&2
	exit 130' INT TERM

title "A Slurm $release cluster: controller, login host, n1 with 4 simulated GPUs, n2 and n3 with 2 each"
if "$here/demo/cluster" list | grep -qw "$name"; then
	echo "packaging/demo.sh: its cluster is up already, from an earlier or a running demonstration;" \
		"use it, or take it down with: packaging/demo/cluster --name $name down" >&2
	exit 2
fi
cluster --slurm "$release" up
cluster as alice -- sinfo -N -o '%10N %10P %10T %6c %8m %G'

title "alice's job script: four tasks on every GPU of two nodes"
cluster as alice -- tee job.sh <<'JOB'
#!/bin/bash
#SBATCH --nodes=2 --nodelist=n2,n3
#SBATCH --share-gpu=4
#SBATCH --output=job.out
echo "the batch shell has all GPUs of its node: CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES"
srun bash -c '
  echo "task $SLURM_SHARE_RANK $SLURMD_NODENAME $SLURM_SHARE_SLOT $CUDA_VISIBLE_DEVICES $SLURM_SHARE_CORES $OMP_NUM_THREADS"
  simgpu-task --memory 2000M --load 20 --seconds 600 >/dev/null &
  until [ -e seen ]; do sleep 0.2; done
  kill $!'
JOB

title "sbatch job.sh"
job=$(cluster as alice -- sbatch --parsable job.sh)
echo "job $job"
for _ in $(seq 100); do
	[ "$(cluster as alice -- bash -c 'grep -c ^task job.out 2>/dev/null || true')" = 16 ] && break
	sleep 0.2
done
cluster as alice -- squeue -o '%8i %10u %8T %6D %R'

title "Its 16 tasks: rank, node, slot, GPU, cores, threads"
lines=$(cluster as alice -- grep ^task job.out | sort -k3,3 -k4,4n)
{
	echo "TASK NODE SLOT GPU CORES THREADS"
	echo "${lines//task /}"
} | column -t
[ "$(wc -l <<<"$lines")" = 16 ] || fail "16 tasks were expected"

for node in n2 n3; do
	title "slurm-share status on $node"
	cluster exec "$node" -- slurm-share status
	title "gpustat on $node, which is independent of slurm-share"
	witness=$(cluster exec "$node" -- gpustat --json)
	python3 - "$node" "$lines" <<'PY' "$witness" || fail "gpustat and the tasks do not agree on $node"
import json, sys

node, lines, witness = sys.argv[1:]
said = [line.split()[4] for line in lines.splitlines() if line.split()[2] == node]
for gpu in json.loads(witness)["gpus"]:
    servers = sum("nvidia-cuda-mps-server" in " ".join(one["full_command"]) for one in gpu["processes"])
    tasks = len(gpu["processes"]) - servers
    print(f"{gpu['uuid']}  {gpu['name']}  {gpu['memory.used']} MiB used by {tasks} tasks and {servers} MPS server")
    if not tasks == said.count(gpu["uuid"]) == 4:
        sys.exit(1)
PY
done

title "llload -g, which alice types on the login host: what her job does with its GPUs"
load=$(cluster as alice -- llload -g)
echo "$load"
[ "$(grep -cE '^ *n[23] ' <<<"$load")" -ge 2 ] || fail "llload was expected to show n2 and n3"

title "touch seen, which ends her tasks; the job's own output"
cluster as alice -- touch seen
for _ in $(seq 100); do
	[ -z "$(cluster as alice -- squeue -h -j "$job")" ] && break
	sleep 0.2
done
cluster as alice -- grep -v ^task job.out

title "The nodes afterwards"
for node in n2 n3; do
	cluster exec "$node" -- slurm-share status
	left=$(cluster exec "$node" -- ls /run/slurm-share/jobs)
	[ -z "$left" ] || fail "$node still has files of job $left"
done

title "Try it yourself"
cat <<NEXT
packaging/demo/cluster --name $name as alice -- salloc --share-gpu=4          a shell in a shared node; try: srun env | grep SHARE
packaging/demo/cluster --name $name as alice -- sbatch --share-gpu=x job.sh   the answer to a mistake
packaging/demo/cluster --name $name exec n1 -- slurm-share config print       the site's settings
packaging/demo/cluster --name $name down                                      stop it; nothing is left on this machine
NEXT
