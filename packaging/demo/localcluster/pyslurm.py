"""Builds pyslurm for a root's Slurm: the published sources, and the changes that a newer release needs.

pyslurm is written for one release of Slurm. 25.11.2 is the newest published; it builds for 26.05 with its check of the
release removed, the old names of 26.05 enabled (SLURM_BACKWARD_COMPAT), and one field added that 26.05 has in a
structure which pyslurm declares again. No published version builds for 24.11.
"""

from __future__ import annotations

from pathlib import Path

from . import process

VERSION = "25.11.2"
FITS = ("26.05",)
"""Releases for which it builds."""
TO_BUILD = ("setuptools>=77", "wheel", "Cython>=3.1", "packaging")
INSTALL = r"""
set -e
[ ! -e /mnt/resolv.conf ] || cp /mnt/resolv.conf /etc/
apt-get update -qq
apt-get install -y -qq --no-install-recommends python3-dev
"$1/bin/pip" install -q --no-index --find-links /mnt --target /tmp/tools -r /mnt/pyslurm.txt
tar -xzf /mnt/pyslurm-*.tar.gz -C /tmp
cd /tmp/pyslurm-*
# its answer to another release than its own is to stop
sed -i 's/if Version(self.version) != Version(SLURM_VERSION):/if False:/' setup.py
# struct job_resources has one field more since 26.05
sed -i 's/^    bitstr_t \*node_bitmap$/    bitstr_t *node_bitmap\n    uint32_t *node_ranks/' pyslurm/slurm/extra.pxi
grep -q node_ranks pyslurm/slurm/extra.pxi
export SLURM_LIB_DIR=$(dirname /usr/lib/*/libslurm.so) PYSLURM_BUILD_JOBS=$(nproc) PYTHONPATH=/tmp/tools
export CFLAGS="-O1 -g0 -w -DSLURM_BACKWARD_COMPAT -Dslurm_free_ctl_conf=slurm_free_conf \
-DESLURM_ERROR_ON_DESC_TO_RECORD_COPY=2048"
"$1/bin/pip" install -q --no-index --no-deps --no-build-isolation .
"""


def download(python: str, target: Path) -> None:
    """Fetch the sources. pip reads their metadata on the way, for which they need the Slurm that they are for."""
    header = target / "include/slurm/slurm_version.h"
    header.parent.mkdir(parents=True)
    major, minor, micro = (int(word) for word in VERSION.split("."))
    header.write_text(f"#define SLURM_VERSION_NUMBER 0x{major:02x}{minor:02x}{micro:02x}\n")
    (target / "libslurm.so").touch()
    seen = ["env", f"SLURM_INCLUDE_DIR={target / 'include'}", f"SLURM_LIB_DIR={target}"]
    fetch = [python, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "pyslurm", "--dest", str(target)]
    process.run([*seen, *fetch, f"pyslurm=={VERSION}"])
