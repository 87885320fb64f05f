#!/usr/bin/env bash
# Builds the packages of slurm-share, .deb and .rpm, from this checkout: slurm-share, slurm-share-spank, slurm-share-tui.
# Needs no root where the tools are there. Usage: packaging/build.sh [--out DIR] (default: build/packages), --help for all;
# --install-tools as the first word installs what it needs and does not find (Debian, as root).
set -euo pipefail
export SLURM_SHARE_CALLER=$PWD
cd "$(dirname "$0")/.."

# command -> Debian package
tools="python3:python3 gcc:gcc make:make dpkg-deb:dpkg apt-get:apt"
case " $* " in *" --only deb "* | *" --only=deb "*) ;; *) tools="$tools rpmbuild:rpm" ;; esac
install=''
if [ "${1:-}" = --install-tools ]; then
	install=yes
	shift
fi
missing=()
for tool in $tools; do
	command -v "${tool%%:*}" >/dev/null 2>&1 || missing+=("${tool##*:}")
done
if [ ${#missing[@]} -gt 0 ]; then
	if [ -z "$install" ]; then
		echo "packaging/build.sh: not installed here: ${missing[*]}; as root: apt-get install ${missing[*]}" >&2
		exit 2
	fi
	echo "installing Debian packages: ${missing[*]}" >&2
	export DEBIAN_FRONTEND=noninteractive
	apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null 2>&1 || {
		apt-get update -qq
		apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
	}
fi

# The interpreter of the checkout where there is one: it has pip.
python=python3
if [ -x .venv/bin/python ]; then python=$PWD/.venv/bin/python; fi
PYTHONPATH=$PWD/packaging:$PWD/packaging/demo exec "$python" -B -m make_packages "$@"
