#!/usr/bin/env bash
# Makes the pictures in packaging/docs/pictures anew, drawn by the dashboard itself: the demonstration, at a time that
# stands still. --check says which are no longer what it draws (exit 1); --png FOLDER makes them as PNG as well, to look
# at. Usage: packaging/screenshots.sh [--check] [--png FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
tests/setup.sh
exec .venv/bin/python packaging/screenshots.py "$@"
