"""What the Slurm on this host says of a configuration, without taking it."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from ..conf_text import ConfText
from ..errors import CommandError
from ..process import finish, run

_TIMEOUT_S = 30.0


def parse_version(text: str) -> str | None:
    """26.05.5 of what `scontrol --version` says: `slurm 26.05.5`, or with Debian's name for it; None: it says none."""
    match = re.search(r"\bslurm\S*\s+(\d+\.\d+\S*)", text)
    return match[1] if match else None


def read_release() -> tuple[int, int] | None:
    """(24, 11) and the like; None: there is no scontrol here, or it did not say."""
    try:
        version = parse_version(run(["scontrol", "--version"], timeout_s=_TIMEOUT_S))
    except CommandError:
        return None
    numbers = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(numbers[1]), int(numbers[2])) if numbers else None


def read_objection(conf: ConfText) -> str | None:
    """What Slurm has against a slurm.conf; None: nothing. Raises CommandError where there is no scontrol.

    Every command of Slurm reads the file that SLURM_CONF names with the daemons' own parser before it does anything,
    and ends there if a line is wrong; `scontrol show hostnames` then asks nobody. Includes are put in place first.
    """
    flat = "".join(f"{_escaped(line.text)}\n" for line in conf.lines)
    with tempfile.TemporaryDirectory(prefix="slurm-share-") as folder:
        file = Path(folder) / "slurm.conf"
        file.write_bytes(flat.encode("utf-8", "surrogateescape"))
        done = finish(
            ["scontrol", "show", "hostnames", "localhost"],
            timeout_s=_TIMEOUT_S,
            env={"PATH": os.environ.get("PATH", os.defpath), "SLURM_CONF": str(file)},
        )
    if done.code == 0:
        return None
    lines = [re.sub(r"^scontrol: (error|fatal): ", "", line) for line in done.stderr.splitlines() if line.strip()]
    return "; ".join(lines) or f"scontrol ended with {done.code}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("#", "\\#")
