#!/usr/bin/env bash
# Makes the pictures in packaging/docs/pictures, drawn by the dashboard from the demonstration at a fixed time. --check
# names the outdated ones (exit code 1); --png FOLDER also makes PNG files, for review. Usage: packaging/screenshots.sh [--check] [--png FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
tests/setup.sh
exec .venv/bin/python packaging/screenshots.py "$@"
