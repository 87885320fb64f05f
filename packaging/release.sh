#!/usr/bin/env bash
# Makes a release from the newest commit: version and CHANGELOG, wheel, sdist, .deb, .rpm, the plugin's objects and the
# text of the tag, all below build/release/. It works in a tree of its own, pushes nothing and sets no tag.
set -euo pipefail
caller=$PWD
cd "$(dirname "$0")/.."
usage="usage: packaging/release.sh [--dry-run] [--out DIR] [--sign KEY] VERSION

  VERSION     1.2.3 or 1.2.3~rc1
  --dry-run   only check tree, version and CHANGELOG, and print the text of the tag; seconds
  --out DIR   folder of what is made (default: build/release)
  --sign KEY  sign the checksums with this key of gpg, as packaging/build.sh does
  -h, --help  this text"

fail() {
	echo "packaging/release.sh: $*" >&2
	exit 2
}

dry='' out=build/release sign='' version=''
while [ $# -gt 0 ]; do
	case $1 in --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;; esac
	case $1 in
	-h | --help) echo "$usage" && exit 0 ;;
	--dry-run) dry=yes ;;
	--out | --sign)
		[ -n "${2:-}" ] || fail "$1 needs a value; see --help"
		if [ "$1" = --out ]; then out=$(cd "$caller" && realpath -m -- "$2"); else sign=$2; fi
		shift
		;;
	-*) fail "there is no option $1; see --help" ;;
	*)
		[ -z "$version" ] || fail "one version, not '$version' and '$1'; see --help"
		version=$1
		;;
	esac
	shift
done
[ -n "$version" ] || fail "which version? see --help"
[[ $version =~ ^[0-9]+(\.[0-9]+)*(~?[a-z]+[0-9]+)?$ ]] || fail "'$version' is no version; write it as 1.2.3 or 1.2.3~rc1"
python_version=${version//\~/} tag=v${version//\~/-}
last=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

# All problems at once, before minutes of work
problems=()
commit=$(git rev-parse --verify --quiet HEAD 2>/dev/null) || fail "$PWD is no git checkout"
changed=$(git status --porcelain)
[ -z "$changed" ] || problems+=("the tree has changes; commit or remove them: $(head -n 3 <<<"$changed" | cut -c4- | paste -sd' ')")
if git rev-parse --verify --quiet "refs/tags/$tag" >/dev/null; then
	problems+=("the tag $tag exists; a release is made once: choose the next version")
fi
# 1.2rc1, before which sort -V wants a ~, is below 1.2
newest=$(printf '%s\n' "$last" "$python_version" | sed 's/\([0-9]\)\([a-z]\)/\1~\2/' | sort -V | tail -n 1)
[ "${newest//\~/}" = "$python_version" ] || problems+=("$version is below $last, the version in pyproject.toml")
# The first section: "## VERSION (not released)", or the one with the version alone
heading=$(grep -m 1 '^## ' packaging/CHANGELOG.md || true)
case $heading in
"## $version (not released)" | "## $version ("????-??-??")") ;;
*) problems+=("packaging/CHANGELOG.md begins with '$heading'; its first section has to be '## $version (not released)'") ;;
esac
changes=$(awk '/^## /{n++; next} n==1' packaging/CHANGELOG.md)
[ -n "${changes//[[:space:]]/}" ] || problems+=("packaging/CHANGELOG.md says nothing about $version")
[ ! -e "$out" ] || [ -d "$out" ] || problems+=("$out is not a folder")
[ ! -d "$out" ] || [ -z "$(ls -A "$out")" ] ||
	problems+=("$out is not empty: remove what another release has left there, or name another folder with --out")
if [ -n "$sign" ]; then
	gpg --batch --list-secret-keys -- "$sign" >/dev/null 2>&1 || problems+=("gpg has no secret key '$sign' here")
fi
if [ ${#problems[@]} -gt 0 ]; then
	printf 'packaging/release.sh: %s\n' "${problems[@]}" >&2
	exit 1
fi

tag_text() {
	printf 'slurm-share %s\n\n' "$version"
	# Markdown's marks of code mean nothing in a tag.
	tr -d '`' <<<"$changes" | sed -e '/./,$!d'
}

if [ -n "$dry" ]; then
	echo "to be made from $(git log -1 --format='%h %s'): slurm-share $version (now $last)"
	tag_text
	exit 0
fi

python=$PWD/.venv/bin/python
"$python" -c 'import build, setuptools' 2>/dev/null || tests/setup.sh
umask 022
mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
tree=$work/tree
trap 'git worktree remove --force "$tree" 2>/dev/null || true; rm -rf "$work"; git worktree prune' EXIT
step() { echo "== $*" >&2; }

step "version and CHANGELOG, in a commit of their own"
git worktree add --quiet --detach "$tree" "$commit"
sed -i "s/^version = .*/version = \"$python_version\"/" "$tree/pyproject.toml"
sed -i "0,/^## /s/^## .*/## $version ($(date -u +%F))/" "$tree/packaging/CHANGELOG.md"
if [ -n "$(git -C "$tree" status --porcelain)" ]; then
	git -C "$tree" commit --quiet --all --message "Release $version"
fi
ln -s "$PWD/.venv" "$tree/.venv" # its Python has the tools of the build
commit=$(git -C "$tree" rev-parse HEAD)
SOURCE_DATE_EPOCH=$(git -C "$tree" log -1 --format=%ct)
export SOURCE_DATE_EPOCH

step "sdist, and the wheel from it"
"$python" -m build --no-isolation --outdir "$out" "$tree" >"$work/build.log" 2>&1 || {
	tail -n 40 "$work/build.log" >&2
	exit 1
}

step "the wheel in an empty environment"
"$python" -m venv "$work/venv"
wheel=$(echo "$out"/*.whl)
"$work/venv/bin/pip" install --quiet --disable-pip-version-check "${wheel}[hosts,tui,executor]"
(
	cd "$work"
	sed -n '/^\[project.scripts\]/,/^\[tool/s/^\([a-zA-Z-]*\) = .*/\1/p' "$tree/pyproject.toml" | while read -r program; do
		case $program in slurm-share-prolog | slurm-share-epilog) continue ;; esac
		said=$("venv/bin/$program" --version)
		[[ $said == *"$python_version"* ]] || fail "$program --version says '$said'"
	done
	venv/bin/python -I - <<-'END'
		from slurm_share import Executor

		if __name__ == "__main__":
		    with Executor(local=True, max_workers=1) as executor:
		        assert executor.submit(pow, 2, 5).result(60) == 32
	END
)

step ".deb and .rpm"
"$tree/packaging/build.sh" --out "$out" --version "$version" >/dev/null

step "the plugin's objects"
dpkg-deb --fsys-tarfile "$out"/slurm-share-spank_*.deb | tar -x -C "$work" ./usr/lib/slurm-share
(cd "$work/usr/lib/slurm-share" && for object in */share_gpu.so; do
	cp "$object" "$out/share_gpu-$version-slurm-${object%/*}-$(uname -m).so"
done)

tag_text >"$work/tag"
mv "$work/tag" "$out/TAG"
cp "$tree/packaging/CHANGELOG.md" "$out/"
rm -f "$out/SHA256SUMS" # of the packages alone
(cd "$out" && find . -type f ! -name TAG -printf '%P\n' | sort | xargs -d '\n' sha256sum) >"$work/SHA256SUMS"
mv "$work/SHA256SUMS" "$out/"
[ -z "$sign" ] || gpg --batch --yes --local-user "$sign" --armor --detach-sign --output "$out/SHA256SUMS.asc" "$out/SHA256SUMS"
git update-ref "refs/releases/$tag" "$commit" # keeps the commit until it is merged
(cd "$out" && ls -1)
cat <<END

Made from $(git log -1 --format='%h %s' "$commit"). Nothing was pushed, and no tag is set. To publish it:

  git merge --ff-only $commit
  git tag --annotate --file $out/TAG $tag $commit
  git push origin HEAD $tag
END
