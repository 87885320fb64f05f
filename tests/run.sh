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

# Beside all others, from the beginning: it uses one core, and waits for jobs as the other cluster tests do.
on_v2=$(mktemp)
current=${releases%%|*}
[ "$slurm" = usual ] || current=$slurm
SLURM_SHARE_TEST_RELEASE=$current tests/kernel.sh pytest -q -m "cluster and on_v2 and not weekly" -n 2 --dist loadgroup \
	--maxfail 25 --timeout 1200 --durations 15 tests/cluster </dev/null >"$on_v2" 2>&1 &
kernel=$!
trap 'kill $kernel 2>/dev/null || true; wait $kernel || true; rm -f "$on_v2"' EXIT # a failure here would be the exit code
for signal in HUP INT TERM; do
	trap 'exit 130' $signal
done

tests/check.sh
unset PYTHONDONTWRITEBYTECODE # see tests/check.sh
# More than there are cores: a cluster test waits more than it works.
code=0
.venv/bin/pytest -q -m "cluster and not weekly" -n 6 --dist loadgroup --maxfail 25 \
	--timeout 1200 --durations 15 tests/cluster || code=$?

printf '\nTests on a kernel with cgroup v2 only (tests/kernel.sh):\n'
on_v2_code=0
wait $kernel || on_v2_code=$?
cat "$on_v2"
if [ $on_v2_code = 2 ] && ! grep -q "with cgroup v2 only: booted" "$on_v2"; then
	echo "NOT TESTED on a kernel with cgroup v2 only: there is none on this machine" >&2
elif [ $on_v2_code != 0 ] && [ $code = 0 ]; then
	code=$on_v2_code
fi
exit $code
