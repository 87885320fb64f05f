#!/usr/bin/env bash
# Everything: set-up, all checks, and all tests, those on real Slurm clusters included. As root on Debian 12 or later;
# nothing has to be installed before.
set -euo pipefail
cd "$(dirname "$0")/.."
releases=$(sed -n 's/^    "\([0-9.]*\)": "[a-z]*",$/\1/p' slurm_share/slurm/releases.py | paste -sd'|')
usage="Usage: tests/run.sh [--slurm usual|all|$releases]

  --slurm usual    cluster tests on the current release of Slurm, and on the older
                   one those that depend on the release (the default)
  --slurm all      every cluster test on every release
  --slurm RELEASE  cluster tests on this release only
  --help           this text"
slurm=usual
while [ $# -gt 0 ]; do
	case $1 in
	--slurm) slurm=${2-} && shift $(($# > 1 ? 2 : 1)) ;;
	--slurm=*) slurm=${1#*=} && shift ;;
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
tests/check.sh
unset PYTHONDONTWRITEBYTECODE # see tests/check.sh
# More than there are cores: a cluster test waits more than it works.
SLURM_SHARE_TEST_RELEASE=$slurm PATH=$PWD/.venv/bin:$PATH tests/twice.sh -q -m cluster -n 6 --dist loadgroup --maxfail 25 \
	--timeout 1200 --durations 15 tests/cluster
