#!/usr/bin/env bash
# A command on a kernel with cgroup v2 only: a user-mode Linux kernel over this machine's own files. What is written there
# stays in its memory, except below build/kernel. Its output, exit code and signals are the command's. As root. Leave the
# tree alone meanwhile: a file that changes outside is seen there in part.
# Usage: tests/kernel.sh CMD..., for instance
#   tests/kernel.sh pytest tests/cluster/test_matrix.py -k cgroup2
#   tests/kernel.sh bash
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
[ $# -gt 0 ] || { sed -n '2,/^set /s/^# \{0,1\}//p' "$0" && exit 2; }
"$root/tests/setup.sh"
unset PYTHONDONTWRITEBYTECODE # see tests/check.sh
export PATH=$root/.venv/bin:$PATH
exec "$root/packaging/demo/cluster" --kernel v2 run -- "$@"
