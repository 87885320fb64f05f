#!/usr/bin/env bash
# Everything the checks and tests need, installed once: Debian packages that are missing (as root) and the Python
# environment .venv of this checkout. Quiet and quick when nothing is missing. Usage: tests/setup.sh
set -euo pipefail
cd "$(dirname "$0")/.."

# command or file that shows it is there -> package
tools="
python3:python3 gcc:gcc make:make shellcheck:shellcheck cppcheck:cppcheck luac5.1:lua5.1 lua5.1:lua5.1 tmux:tmux
strace:strace debootstrap:debootstrap rpmbuild:rpm openssl:openssl
dpkg-buildpackage:dpkg-dev dh:debhelper ip:iproute2 nsenter:util-linux zstd:zstd
/usr/include/slurm/spank.h:libslurm-dev /usr/include/stdlib.h:libc6-dev
"
missing=()
for tool in $tools; do
	what=${tool%%:*} package=${tool##*:}
	case $what in
	/*) [ -e "$what" ] || missing+=("$package") ;;
	*) command -v "$what" >/dev/null 2>&1 || missing+=("$package") ;;
	esac
done
python3 -c 'import ensurepip' >/dev/null 2>&1 || missing+=(python3-venv)
if [ ${#missing[@]} -gt 0 ]; then
	if [ "$(id -u)" != 0 ]; then
		echo "tests/setup.sh: not installed here: ${missing[*]}; run this as root once, or: apt-get install ${missing[*]}" >&2
		exit 2
	fi
	echo "installing Debian packages: ${missing[*]}"
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -qq
	apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

if ! [ .venv/installed -nt pyproject.toml ]; then
	echo "installing the Python environment .venv"
	python3 -m venv .venv
	.venv/bin/pip install -qq --disable-pip-version-check --editable '.[dev]'
	touch .venv/installed
fi
