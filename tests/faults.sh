#!/usr/bin/env bash
# Plants each fault of tests/faults.toml in a copy of this tree, one at a time, and runs the tests that must notice it.
# Ends with 0 where all are noticed. Minutes; no root but for faults of tests/cluster. Usage: tests/faults.sh [options];
# --help shows them.
set -euo pipefail
cd "$(dirname "$0")/.."
tests/setup.sh
exec .venv/bin/python tests/faults.py "$@"
