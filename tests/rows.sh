#!/usr/bin/env bash
# Makes packaging/docs/rows.md anew from what real daemons do. As root. Usage: tests/rows.sh
set -euo pipefail
cd "$(dirname "$0")/.."
SLURM_SHARE_WRITE_ROWS=1 .venv/bin/pytest -q tests/cluster/test_rows.py -k 26.05
