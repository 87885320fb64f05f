#!/usr/bin/env bash
# Fuzzes every parser that reads what users write, for as long as is wanted; the short form is in tests/check.sh.
# Usage: tests/fuzz.sh [--minutes N] [--seed TEXT]
set -euo pipefail
cd "$(dirname "$0")/.."
tests/setup.sh
.venv/bin/python tests/fuzz/long.py "$@"
