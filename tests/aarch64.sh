#!/usr/bin/env bash
# Messages and arrays between ranks on aarch64, which qemu-user emulates (Debian; apt-get install qemu-user). Every body
# has a checksum that its receiver compares (LLSUB_CHECK=1). The command that starts the ranks runs on this machine's own
# processor. Python and NumPy for aarch64 are fetched into a folder that is removed afterwards.
# Usage: tests/aarch64.sh
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v qemu-aarch64 >/dev/null; then
	echo "NOT TESTED: there is no qemu-aarch64 here"
	exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{state/lists/partial,cache/archives/partial,root,site}
touch "$work/status"
cat >"$work/apt.conf" <<-END
	Dir::State "$work/state";
	Dir::Cache "$work/cache";
	Dir::State::status "$work/status";
	APT::Architecture "arm64";
	APT::Architectures { "arm64"; };
	APT::Sandbox::User "root";
END
export APT_CONFIG=$work/apt.conf
apt-get -qq update
apt-get -qq -y --download-only --no-install-recommends install python3 libstdc++6 >/dev/null
unset APT_CONFIG
for package in "$work"/cache/archives/*.deb; do
	dpkg -x "$package" "$work/root"
done
python=$(find "$work/root/usr/bin" -name 'python3.*[0-9]' | head -1)
.venv/bin/python -m pip download -q --only-binary=:all: --platform manylinux_2_28_aarch64 --platform manylinux2014_aarch64 \
	--python-version "${python##*python}" --dest "$work/wheels" numpy hypothesis
for wheel in "$work"/wheels/*.whl; do
	.venv/bin/python -m zipfile -e "$wheel" "$work/site"
done
cat >"$work/python" <<-END
	#!/bin/sh
	exec qemu-aarch64 -L $work/root $python "\$@"
END
chmod +x "$work/python"
PYTHONPATH=tests/unit/spmd:tests/bench .venv/bin/python - "$work" <<-'END'
	import sys
	from pathlib import Path

	from spmd_endurance import ALL_FIRST
	from test_collectives_in_processes import RESULTS

	from slurm_share.spmd.local import run_local

	work, here = Path(sys.argv[1]), Path.cwd()
	environ = {"LLSUB_CHECK": "1", "PYTHONPATH": f"{work}/site:{here}:{here}/tests/unit/spmd"}
	cases = (here / "tests/unit/spmd/array_cases.py").read_text()
	about = "import platform, numpy; print(platform.machine(), platform.python_version(), 'NumPy', numpy.__version__)"
	for name, text, size, words in (
	    ("about", about, 1, ()),
	    ("collective calls", RESULTS, 4, ()),
	    ("sends before any receive", ALL_FIRST, 4, ("10", str(1 << 20))),
	    ("random cases of arrays", cases, 3, ("9000", "27")),
	):
	    (work / "program.py").write_text(text)
	    print(f"{name}:", flush=True)
	    outcome = run_local(work / "program.py", size, words, env=environ, python=str(work / "python"))
	    if outcome.code:
	        sys.exit(outcome.why)
END
