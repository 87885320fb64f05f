#!/usr/bin/env bash
# What takes too long for every change: run it every week and before a release. As root, on a machine with nothing else
# to do; some hours. Ends with 0 where every part passes. The output of each part is in build/weekly/.
set -euo pipefail
cd "$(dirname "$0")/.."
parts="tests examples kernel systemd faults fuzz chaos escapes releases numpy mpi4py tools"
usage="Usage: tests/weekly.sh [PART...]

  tests     tests marked weekly
  examples  tests of properties with other and more examples than in every change
  kernel    tests of limits, kills, leftovers and attacks with cgroup v2 only
  systemd   a whole machine with systemd, from installation to removal
  faults    each fault of tests/faults.toml is noticed
  fuzz      every parser of what users write, 30 minutes
  chaos     faults of all kinds on a cluster, 20 minutes
  escapes   a thousand tasks that try to escape their cap, with and without the driver's limits
  releases  every cluster test on every release of Slurm
  numpy     arrays between ranks on older releases of NumPy
  mpi4py    mpi4py's own tests against the messages between ranks, on 1 and 2 ranks
  tools     Hydra, Snakemake, Parsl and others in their newest releases
  --help    this text

Without a PART: all, one after the other."
case "${1-}" in
-h | --help) echo "$usage" && exit 0 ;;
esac
for part in "$@"; do
	[[ " $parts " == *" $part "* ]] || { echo "tests/weekly.sh: there is no part $part"$'\n'"$usage" >&2 && exit 2; }
done
if [ $# = 0 ]; then
	read -ra wanted <<<"$parts"
	set -- "${wanted[@]}"
fi
if [ "$(id -u)" != 0 ]; then
	echo "tests/weekly.sh: clusters and machines need root (namespaces)" >&2
	exit 2
fi
tests/setup.sh
unset PYTHONDONTWRITEBYTECODE # see tests/check.sh
export PATH=$PWD/.venv/bin:$PATH
suite=(-q --dist loadgroup --timeout 1200 --durations 15)

run() { # run PART
	case $1 in
	tests) pytest -m "weekly and not gpu" -n 4 "${suite[@]}" tests ;;
	examples) pytest -m "hypothesis and not gpu" --random-examples --examples 300 -n 4 "${suite[@]}" tests ;;
	kernel)
		SLURM_SHARE_TEST_RELEASE=$(python -c 'from slurm_share.slurm.releases import TESTED; print(TESTED[-1])') \
			tests/kernel.sh pytest -m "cluster and (on_v2 or weekly_on_v2)" -n 2 "${suite[@]}" tests/cluster
		;;
	systemd) tests/systemd.sh ;;
	faults) tests/faults.sh ;;
	fuzz) tests/fuzz.sh --minutes 30 ;;
	chaos) python tests/chaos.py --minutes 20 --show-only ;;
	escapes)
		python tests/bench/prove_escapes.py 1000 580 && tests/kernel.sh python tests/bench/prove_escapes.py 1000 620
		;;
	releases) tests/run.sh --slurm all ;;
	numpy) tests/numpy_versions.sh ;;
	mpi4py) python tests/mpi4py_testsuite.py --sizes 1,2 ;;
	tools) SLURM_SHARE_TOOLS=newest pytest -m cluster "${suite[@]}" tests/cluster/test_tools.py ;;
	esac
}

mkdir -p build/weekly
failed=()
for part in "$@"; do
	echo "== $part, $(date +%H:%M)"
	if ! run "$part" </dev/null 2>&1 | tee "build/weekly/$part.log"; then
		failed+=("$part")
	fi
done
if [ ${#failed[@]} != 0 ]; then
	echo "FAILED: ${failed[*]}"
	exit 1
fi
echo "all passed"
