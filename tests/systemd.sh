#!/usr/bin/env bash
# A whole machine with systemd, from the installation of the packages to their removal: run it every week and before a
# release. About ten minutes, as root; what it needs is fetched at the first time. --help says more.
set -euo pipefail
cd "$(dirname "$0")/.."
usage="Usage: tests/systemd.sh [--qemu] [PYTEST ARGUMENT...]
           run the tests on a new machine
       tests/systemd.sh [--qemu] --keep
           start a machine without slurm-share, and leave it running
       tests/systemd.sh run [--user NAME] COMMAND
           run a command on that machine, as root or as alice or bob
       tests/systemd.sh reboot | cut | start | end
           reboot it, cut its power, start it again, remove it

  --qemu   an emulated computer (slow) with Debian's own kernel, which has
           cpusets, several CPUs and AppArmor, instead of user-mode Linux
  --help   this text

The machine is Debian with Slurm: controller, login and compute node in one, n1,
with two simulated GPUs. The packages of this checkout are on it in
/root/packages. Set-up: tests/setup.sh."
qemu=
[ "${1-}" != --qemu ] || { qemu=1 && shift; }
case ${1-} in
-h | --help) echo "$usage" && exit 0 ;;
esac
if [ "$(id -u)" != 0 ]; then
	echo "tests/systemd.sh: a machine needs root (namespaces and mounts)" >&2
	exit 2
fi
case ${1-} in
--keep | run | reboot | cut | start | end)
	exec env SLURM_SHARE_TEST_QEMU=$qemu .venv/bin/python tests/systemd/kept_machine.py "${1#--}" "${@:2}"
	;;
esac
unset PYTHONDONTWRITEBYTECODE # see tests/check.sh
log=$PWD/build/systemd.log
mkdir -p build
trap 'echo "The log of the whole run: $log"' EXIT
SLURM_SHARE_TEST_QEMU=$qemu SLURM_SHARE_TEST_LOG=$log .venv/bin/python -m pytest -q -m cluster --durations 5 \
	--timeout 3600 tests/systemd "$@"
