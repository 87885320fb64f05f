#!/usr/bin/env bash
# Builds the packages of slurm-share, .deb and .rpm, from this checkout: slurm-share, slurm-share-spank, slurm-share-tui.
# Fetches their other inputs (make/fetch.py), then calls dpkg-buildpackage and rpmbuild. Needs no root if the tools are
# installed.
set -euo pipefail
caller=$PWD
cd "$(dirname "$0")/.."
# "trixie: 24.11", "forky: 26.05": Debian's suites with their release of Slurm, the oldest first
mapfile -t suites < <(sed -n 's/^    "\([0-9.]*\)": "\([a-z]*\)",$/\2: \1/p' slurm_share/slurm/releases.py | sed '1!G;h;$!d')
usage="usage: packaging/build.sh [--install-tools] [--out DIR] [--version VERSION] [--only deb|rpm]
                          [--slurm-include DIR]... [--leave-out SUITE]... [--sign KEY]

Build .deb and .rpm of slurm-share from this checkout, and their checksums, SHA256SUMS.

  --install-tools       must come first: install missing tools (Debian, as root)
  --out DIR             folder of the packages (default: build/packages)
  --version VERSION     version of the packages instead of the checkout's: 1.2.3, 1.2.3~rc1
  --only deb|rpm        build one kind
  --slurm-include DIR   also build the plugin for the Slurm of these headers (the folder above slurm/spank.h); may be repeated
  --leave-out SUITE     no plugin for the Slurm of this Debian suite ($(printf '%s, ' "${suites[@]}" | sed 's/, $//')); its
                        headers are not fetched; may be repeated
  --sign KEY            sign the checksums with this key of gpg, by its id or address: SHA256SUMS.asc
  -h, --help            this text"

fail() {
	echo "packaging/build.sh: $*" >&2
	exit 2
}

install='' out=build/packages version='' only='' sign='' from=$PWD fetch=()
if [ "${1:-}" = --install-tools ]; then
	install=yes
	shift
fi
help=''
while [ $# -gt 0 ]; do
	case $1 in --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;; esac
	case $1 in
	-h | --help)
		help=yes
		shift
		continue
		;;
	--out | --version | --only | --slurm-include | --leave-out | --sign) [ $# -gt 1 ] || fail "$1 needs a value; see --help" ;;
	*) fail "there is no option $1; see --help" ;;
	esac
	case $1 in
	--out) out=$2 from=$caller ;;
	--version) version=$2 ;;
	--only) only=$2 ;;
	--sign)
		[ -n "$2" ] || fail "--sign needs a key; see --help"
		sign=$2
		;;
	--slurm-include) fetch+=("$1" "$(cd "$caller" && realpath -m "$2")") ;;
	--leave-out)
		[[ $2 != *' '* && " ${suites[*]%:*} " == *" $2 "* ]] ||
			fail "--leave-out: '$2' is neither $(printf '%s nor ' "${suites[@]%:*}" | sed 's/ nor $//')"
		fetch+=("$1" "$2")
		;;
	esac
	shift 2
done
[[ $only =~ ^(deb|rpm)?$ ]] || fail "--only: '$only' is neither deb nor rpm"
own=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
version=${version:-$own}
# a version that dpkg and rpm both accept, and order alike
[[ $version =~ ^[0-9]+(\.[0-9]+)*(~?[a-z]+[0-9]+)?$ ]] || fail "'$version' is no version; write it as 1.2.3 or 1.2.3~rc1"

# command or file of a tool -> Debian package
tools="python3:python3 gcc:gcc make:make /usr/include/stdlib.h:libc6-dev"
[ "$only" = rpm ] || tools="$tools dpkg-deb:dpkg apt-get:apt dpkg-buildpackage:dpkg-dev dh:debhelper"
[ "$only" = deb ] || tools="$tools rpmbuild:rpm"
[ -z "$sign" ] || tools="$tools gpg:gpg"
missing=()
for tool in $tools; do
	[ -e "${tool%%:*}" ] || command -v "${tool%%:*}" >/dev/null 2>&1 || missing+=("${tool##*:}")
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
if [ -n "$help" ]; then
	echo "$usage"
	exit 0
fi

if [ -n "$sign" ]; then # before minutes of work
	gpg --batch --list-secret-keys -- "$sign" >/dev/null 2>&1 || fail "--sign: gpg has no secret key '$sign' here"
fi

# Red Hat's family has no apt, which fetches Debian's headers.
if ! command -v apt-get >/dev/null; then
	for suite in "${suites[@]%:*}"; do fetch+=(--leave-out "$suite"); done
fi

# The interpreter of the checkout if there is one: it has pip. RHEL's python3 is too old.
python=''
for candidate in "$PWD/.venv/bin/python" python3 python3.14 python3.13 python3.12 python3.11; do
	python=$(command -v "$candidate") && "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' && break
	python=''
done
[ -n "$python" ] || fail "no Python 3.11 or newer found, which the build needs"
umask 022
out=$(cd "$from" && mkdir -p "$out" && cd "$out" && pwd)
work=$(mktemp -d -p "$out" .making-XXXXXX)
trap 'rm -rf "$work"' EXIT

# The time of all files: SOURCE_DATE_EPOCH, else that of the commit, else, without git, that of the newest file. The same
# sources then give the same packages, byte by byte.
parts=(pyproject.toml README.md slurm_share prolog tui plugins packaging)
if [ -z "${SOURCE_DATE_EPOCH:-}" ] && [ -e .git ]; then
	# safe.directory: the checkout may belong to another user, as under sudo
	SOURCE_DATE_EPOCH=$(git -c "safe.directory=$PWD" log -1 --format=%ct 2>/dev/null || true)
fi
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
	SOURCE_DATE_EPOCH=$(find "${parts[@]}" -type f -printf '%T@\n' | sort -n | tail -n 1 | cut -d. -f1)
fi
export SOURCE_DATE_EPOCH LC_ALL=C.UTF-8 TZ=UTC

# The source tree: this checkout, without files left by editors, Python and compilers
source=$work/slurm-share-$version
mkdir "$source"
leave_out=(__pycache__ .DS_Store '*~' '.*.sw[a-p]' '*.bak' '*.orig' '*.rej' '*.pyc' '*.o' '*.so' '#*#' '.#*' '*.egg-info'
	plugins/build prolog/build packaging/demo)
tar -c "${leave_out[@]/#/--exclude=}" "${parts[@]}" | tar -x -C "$source" --no-same-owner --no-same-permissions
chmod -R u=rwX,go=rX "$source"
sed -i "s/^version = .*/version = \"${version//\~/}\"/" "$source/pyproject.toml"
PYTHONPATH=packaging/demo "$python" -B packaging/make/fetch.py "$source/vendor" "${fetch[@]}"

put() {
	mv -t "$out" "$@"
	printf '%s\n' "${@##*/}" >>"$work/made"
}

deb() {
	cp -r "$source" "$work/deb"
	cp -r "$source/packaging/deb" "$work/deb/debian"
	# the maintainer of Debian's tools, else root of this host
	by="${DEBFULLNAME:-slurm-share} <${DEBEMAIL:-root@localhost}>"
	sed -i "s/^Maintainer: .*/Maintainer: $by/" "$work/deb/debian/control"
	printf 'slurm-share (%s-1) unstable; urgency=medium\n\n  * See CHANGELOG.md beside this file.\n\n -- %s  %s\n' \
		"$version" "$by" "$(date -R -d "@$SOURCE_DATE_EPOCH")" >"$work/deb/debian/changelog"
	# -d: the build dependencies were checked above, and the interpreter may be the checkout's
	(cd "$work/deb" && PYTHON=$python VERSION=$version dpkg-buildpackage -jauto -b -us -uc -d --no-pre-clean)
	put "$work"/*.deb
}

rpm() {
	mkdir "$work/rpm"
	tar -c --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 -C "$work" -f "$work/rpm/${source##*/}.tar" "${source##*/}"
	cp "$source/packaging/rpm/slurm-share.spec" "$work/rpm"
	# gzip: rpm of RHEL 8 and later can read it. The other macros remove time and host, so that builds are reproducible.
	local words=("share_version $version" "share_python $python" "_topdir $work/rpm" "_sourcedir $work/rpm"
		"_rpmdir $work/rpm/made" "_binary_payload w6.gzdio" "use_source_date_epoch_as_buildtime 1"
		"clamp_mtime_to_source_date_epoch 1" "_buildhost localhost")
	# Debian's rpm has no database of the installed packages
	[ -e /etc/redhat-release ] || words+=("_dbpath $work/rpm/db")
	local argv=()
	for word in "${words[@]}"; do argv+=(--define "$word"); done
	[ -e /etc/redhat-release ] || argv+=(--nodeps)
	rpmbuild -bb --quiet "${argv[@]}" "$work/rpm/slurm-share.spec"
	put "$work"/rpm/made/*/*.rpm
}

# Both in parallel; the output is shown if one fails.
began=$SECONDS
failed='' pids=()
kinds=(deb rpm)
[ -z "$only" ] || kinds=("$only")
for kind in "${kinds[@]}"; do
	("$kind") >"$work/$kind.log" 2>&1 &
	pids+=($!)
done
for at in "${!kinds[@]}"; do
	wait "${pids[$at]}" || {
		tail -n 60 "$work/${kinds[$at]}.log" >&2
		failed="$failed ${kinds[$at]}"
	}
done
if [ -n "$failed" ]; then
	echo "packaging/build.sh: not built:$failed" >&2
	exit 1
fi
echo "  packages: $((SECONDS - began)) s" >&2
rm -f "$out"/SHA256SUMS "$out"/SHA256SUMS.asc # of another build
(cd "$out" && sort "$work/made" | xargs -d '\n' sha256sum) >"$work/SHA256SUMS"
if [ -n "$sign" ]; then
	gpg --batch --yes --local-user "$sign" --armor --detach-sign --output "$work/SHA256SUMS.asc" "$work/SHA256SUMS"
	put "$work/SHA256SUMS.asc"
fi
put "$work/SHA256SUMS"
sort "$work/made" | sed "s|^|$out/|"
