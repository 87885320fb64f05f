#!/usr/bin/env bash
# The unit tests of slurm_share.spmd with other releases of Python and NumPy than those of the checkout: each pair has a
# virtual environment of its own with NumPy and pytest alone, which is removed afterwards.
# Usage: tests/numpy_versions.sh [PYTHON=NUMPY ...]     the default: python3.11=1.26 python3.11=2.0 and python3= (newest)
set -uo pipefail
cd "$(dirname "$0")/.." || exit
[ $# -gt 0 ] || set -- python3.11=1.26 python3.11=2.0 python3=
unset PYTHONDONTWRITEBYTECODE # see tests/check.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
for pair in "$@"; do
	python=${pair%%=*} numpy=${pair#*=}
	made=$work/${pair//[^a-z0-9.]/-}
	if ! "$python" -m venv "$made" ||
		! "$made/bin/pip" install -q "numpy${numpy:+==$numpy.*}" pytest pytest-timeout hypothesis; then
		echo "NOT TESTED: Python $python with NumPy ${numpy:-newest} cannot be had here"
		failed=1
		continue
	fi
	"$made/bin/python" -c 'import platform, numpy; print(f"Python {platform.python_version()}, NumPy {numpy.__version__}")'
	# test_spmd_page reads documents with tools of the checkout.
	PYTHONPATH=$PWD "$made/bin/python" -m pytest -q -p no:cacheprovider -m "not slow and not gpu and not cluster" \
		--ignore tests/unit/spmd/test_spmd_page.py tests/unit/spmd || failed=1
done
exit $failed
