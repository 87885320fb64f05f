#!/usr/bin/env bash
# Usage: tests/kernel.sh CMD...
# Run a command on a kernel with cgroup v2 only: a user-mode Linux kernel over the
# files of this machine. Output, exit code and signals are the command's. What it
# writes is lost with the kernel, except below build/kernel. It needs root. Do not
# edit the tree meanwhile: a file that changes outside is seen there in part.
# For instance:
#   tests/kernel.sh pytest tests/cluster/test_matrix.py -k cgroup2
#   tests/kernel.sh bash
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
[ $# -gt 0 ] || { sed -n '2,/^set /s/^# \{0,1\}//p' "$0" && exit 2; }
"$root/tests/setup.sh"
unset PYTHONDONTWRITEBYTECODE # see tests/check.sh
export PATH=$root/.venv/bin:$PATH
exec "$root/packaging/demo/cluster" --kernel v2 run -- "$@"
