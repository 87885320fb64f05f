#!/usr/bin/env bash
# Makes packaging/docs/request-forms.md anew from what real daemons do. As root. Usage: tests/request_forms.sh
set -euo pipefail
cd "$(dirname "$0")/.."
SLURM_SHARE_WRITE_REQUEST_FORMS=1 .venv/bin/pytest -q tests/cluster/test_request_forms.py -k 26.05
