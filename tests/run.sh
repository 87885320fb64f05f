#!/usr/bin/env bash
# Everything for a change: set-up, all checks, and the tests, those on real Slurm clusters included, but those that
# tests/weekly.sh runs. As root on Debian 12 or later; nothing has to be installed before.
set -euo pipefail
cd "$(dirname "$0")/.."
releases=$(sed -n 's/^    "\([0-9.]*\)": "[a-z]*",$/\1/p' slurm_share/slurm/releases.py | paste -sd'|')
usage="Usage: tests/run.sh [--slurm usual|all|$releases] [--changed[=REV]]

  --slurm usual    cluster tests on the current release of Slurm (the default)
  --slurm all      every cluster test on every release
  --slurm RELEASE  cluster tests on this release only
  --changed[=REV]  the checks, and the tests that concern what has changed since
                   REV (default: since this branch left main); tests on a cluster
                   and weekly ones only where they have changed themselves
  --help           this text"
slurm=usual
changed=
while [ $# -gt 0 ]; do
	case $1 in
	--slurm) slurm=${2-} && shift $(($# > 1 ? 2 : 1)) ;;
	--slurm=*) slurm=${1#*=} && shift ;;
	--changed | --changed=*) changed=$1 && shift ;;
	-h | --help) echo "$usage" && exit 0 ;;
	*) echo "tests/run.sh: there is no option $1"$'\n'"$usage" >&2 && exit 2 ;;
	esac
done
if [[ $slurm == *"|"* || "|usual|all|$releases|" != *"|$slurm|"* ]]; then
	echo "tests/run.sh: --slurm takes usual|all|$releases, not '$slurm'" >&2
	exit 2
fi
if [ "$(id -u)" != 0 ]; then
	echo "tests/run.sh: the cluster tests need root (namespaces); tests/check.sh runs everything else without" >&2
	exit 2
fi
tests/setup.sh
export SLURM_SHARE_TEST_RELEASE=$slurm
if [ -n "$changed" ]; then
	listed=$(.venv/bin/python tests/changed.py "${changed#--changed}")
	here=() clusters=() code=0
	for file in $listed; do
		case $file in
		tests/cluster/*) clusters+=("$file") ;;
		*) here+=("$file") ;;
		esac
	done
	echo "test files that concern what has changed: ${#here[@]}, and on a cluster: ${#clusters[@]}"
	tests/check.sh "${here[@]:-tests/unit/test_imports.py}" || code=$?
	if [ ${#clusters[@]} -gt 0 ] && { [ $code = 0 ] || [ $code = 5 ]; }; then # 5: all are of another kind
		code=0
		.venv/bin/pytest -q -m "cluster and not weekly" -n 2 --dist loadgroup --timeout 1200 "${clusters[@]}" || code=$?
	fi
	[ $code = 5 ] || exit $code
	exit 0
fi

# All parts side by side: tests on clusters wait more than they work, and the kernel uses one core. Every part runs to its
# end, so that the failure of one does not hide another's result.
outputs=$(mktemp -d)
suite=(--dist loadgroup --maxfail 25 --timeout 1200 --durations 15 tests/cluster)
current=${releases%%|*}
[ "$slurm" = usual ] || current=$slurm
SLURM_SHARE_TEST_RELEASE=$current tests/kernel.sh pytest -q -m "cluster and on_v2 and not weekly" -n 2 "${suite[@]}" \
	</dev/null >"$outputs/kernel" 2>&1 &
on_kernel=$!
# More workers than there are cores. Without PYTHONDONTWRITEBYTECODE: see tests/check.sh.
env -u PYTHONDONTWRITEBYTECODE .venv/bin/pytest -q -m "cluster and not weekly" -n 6 "${suite[@]}" \
	</dev/null >"$outputs/clusters" 2>&1 &
on_clusters=$!
# SIGINT, so that pytest takes its clusters down. A failure here would be the exit code.
trap 'kill $on_kernel 2>/dev/null || true; kill -INT $on_clusters 2>/dev/null || true; wait || true; rm -rf "$outputs"' EXIT
for signal in HUP INT TERM; do
	trap 'exit 130' $signal
done

code=0
tests/check.sh || code=$?
echo "tests/check.sh has ended after $((SECONDS / 60)) minutes with $code; tests on clusters go on"

clusters_code=0
wait $on_clusters || clusters_code=$?
printf '\nTests on clusters:\n'
cat "$outputs/clusters"

kernel_code=0
wait $on_kernel || kernel_code=$?
printf '\nTests on a kernel with cgroup v2 only (tests/kernel.sh):\n'
cat "$outputs/kernel"
if [ $kernel_code = 2 ] && ! grep -q "with cgroup v2 only: booted" "$outputs/kernel"; then
	echo "NOT TESTED on a kernel with cgroup v2 only: there is none on this machine" >&2
	kernel_code=0
fi

echo "After $((SECONDS / 60)) minutes: tests/check.sh $code, clusters $clusters_code, kernel $kernel_code (0: passed)"
for one in $clusters_code $kernel_code; do
	[ "$code" != 0 ] || code=$one
done
exit "$code"
