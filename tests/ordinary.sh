#!/usr/bin/env bash
# Whether ordinary jobs can tell that slurm-share is there. As root. Usage: tests/ordinary.sh [--quick] [--only WORD] [PATH]
# Three real clusters, alike but for slurm-share: without it (no plugin, no hooks, no job_submit.lua), observing, and on.
# Every case of tests/ordinary.cases runs on all three; exit codes, output, environments and files are compared byte
# by byte, after the parts that differ from run to run are named (NORMALISED in tests/ordinary.py). What differs is
# repeated three times before it counts. With PATH, Slurm's own testsuite from there instead, and its verdicts compared.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONDONTWRITEBYTECODE # see tests/check.sh
exec .venv/bin/python tests/ordinary.py "$@"
