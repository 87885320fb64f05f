#!/usr/bin/env bash
# Everything: set-up, all checks, and all tests, those on real Slurm clusters included. As root on Debian 12 or later;
# nothing has to be installed before. Usage: tests/run.sh
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$(id -u)" != 0 ]; then
	echo "tests/run.sh: the cluster tests need root (namespaces); tests/check.sh runs everything else without" >&2
	exit 2
fi
tests/check.sh
# Three at a time: a cluster test waits more than it works.
PATH=$PWD/.venv/bin:$PATH tests/twice.sh -q -m cluster -n 3 --dist loadgroup --maxfail 25 --timeout 600 --durations 15 tests/cluster
