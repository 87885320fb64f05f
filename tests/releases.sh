#!/usr/bin/env bash
# Makes packaging/docs/releases.md anew from what runs on real daemons: every cluster test on every release of Slurm
# (tests/run.sh --slurm all), and every profile. As root. Usage: tests/releases.sh [--profiles]
# --profiles: only the tests of the profiles, the upgrade and pyslurm; half an hour less
set -euo pipefail
cd "$(dirname "$0")/.."
tests=(tests/cluster)
case "${1-}" in
"") ;;
--profiles) tests=(tests/cluster/test_matrix.py tests/cluster/test_rolling_upgrade.py tests/cluster/test_pyslurm.py) ;;
*) echo "usage: tests/releases.sh [--profiles]" >&2 && exit 2 ;;
esac
work=$(mktemp -d)
kept=build/kernel/$$ # what is written on the kernel with cgroup v2 only stays below build/kernel
mkdir -p "$kept"
trap 'rm -rf "$work" "$kept"' EXIT
unset PYTHONDONTWRITEBYTECODE # see tests/check.sh
export SLURM_SHARE_TEST_RELEASE=all SLURM_SHARE_MATRIX=full PATH=$PWD/.venv/bin:$PATH

run() { # run RESULTS PYTEST-ARGUMENTS...
	pytest -o cache_dir="$work/cache" -q -m cluster --timeout 600 --junitxml "$@" "${tests[@]}"
}
on_v2() { # the same for the tests that concern cgroup v2, on a kernel with nothing else
	tests/kernel.sh pytest -o cache_dir="$kept/cache" -q -m "cluster and (on_v2 or weekly_on_v2)" --timeout 600 --junitxml "$@" "${tests[@]}"
}

# What fails beside two other clusters is tried once more, alone. What fails then is a gap in the table, and no reason
# not to make it.
run "$work/1.xml" -n 3 --dist loadgroup ||
	run "$work/2.xml" -n 0 --last-failed --last-failed-no-failures none || echo "not all passed"
on_v2 "$kept/on_v2-1.xml" -n 2 --dist loadgroup ||
	on_v2 "$kept/on_v2-2.xml" -n 0 --last-failed --last-failed-no-failures none || echo "not all passed on cgroup v2"
python tests/releases.py packaging/docs/releases.md "$work"/*.xml "$kept"/*.xml
