"""What the Slurm on this host says of files that it has not got: its programs read copies in a folder of their own."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from ..core.process import Finished, finish
from ..slurm.conf_text import ConfText

_TIMEOUT_S = 30.0
_MOST_DEVICES = 1024
_STAND_IN = "is not a valid character or block device"
"""What slurmd says of a file that stands in for a device."""
_SAID = re.compile(r"^(?:\[[^]]*\] )?(?:[\w.-]+: )?(?:(?:error|fatal|warning)|plugin_load_from_file): ")
"""What is said of an object for another release is no error to it: srun goes on without the plugin."""
_FILE = re.compile(r'(?i)(\bFile\s*=\s*"?)([^\s"]+)')


def read_objection(conf: ConfText) -> str | None:
    """What Slurm has against a slurm.conf; None: nothing. Raises CommandError where there is no scontrol.

    Every command of Slurm reads the file that SLURM_CONF names with the daemons' own parser before it does anything,
    and ends there if a line is wrong; `scontrol show hostnames` then asks nobody. Includes are put in place first.
    """
    done = _try(["scontrol", "show", "hostnames", "localhost"], {"slurm.conf": _flat(conf)})
    if done.code == 0:
        return None
    return "; ".join(_complaints(done)) or f"scontrol ended with {done.code}"


def read_plugstack_objection(slurm: ConfText, before: ConfText, after: ConfText) -> str | None:
    """What `srun --help`, which loads every plugin of plugstack.conf, says of the new one and did not say of the old;
    None: nothing. Raises CommandError where there is no srun."""
    return _news(*(_help(slurm, stack) for stack in (before, after)))


def read_gres_objection(before: tuple[ConfText, ConfText], after: tuple[ConfText, ConfText], node: str) -> str | None:
    """What `slurmd -G`, which puts a node's slurm.conf and gres.conf together and ends, says of the new pair and did
    not say of the old; None: nothing, or the old pair cannot be tried here. Raises CommandError where there is no
    slurmd. Devices are those of the node: here files stand in for them."""
    return _news(*(_gres(slurm, gres, node) for slurm, gres in (before, after)))


def read_gres_fault(slurm: ConfText, gres: ConfText, node: str) -> str | None:
    """Why `slurmd -G` does not take a pair at all; None: it does. Raises CommandError where there is no slurmd."""
    done = _gres(slurm, gres, node)
    return None if done.code == 0 else "; ".join(_complaints(done)) or f"it ended with {done.code}"


def can_try_gres(gres: ConfText) -> bool:
    """Not where slurmd itself is to find the GPUs: they are on the nodes."""
    found = [line.get("AutoDetect") for line in gres.lines]
    return all(value is None or value.lower() == "off" for value in found)


def _help(slurm: ConfText, stack: ConfText) -> Finished:
    kept = [line.text for line in slurm.lines if line.get("PlugStackConfig") is None]
    files = {"slurm.conf": _text([*kept, "PlugStackConfig={folder}/plugstack.conf"]), "plugstack.conf": _flat(stack)}
    return _try(["srun", "--help"], files)


def _gres(slurm: ConfText, gres: ConfText, node: str) -> Finished:
    kept = [line.text for line in slurm.lines if line.get("SlurmdLogFile") is None]
    files = {
        "slurm.conf": _text([*kept, "SlurmdLogFile={folder}/log"]),
        "gres.conf": _text(_FILE.sub(r"\1{folder}/files\2", line.text) for line in gres.lines),
        "cgroup.conf": "CgroupPlugin=disabled\n",
    }
    devices = [name for line in gres.lines if (name := line.get("File"))]
    return _try(["slurmd", "-G", "-N", node], files, _paths(devices))


def _paths(names: Iterable[str]) -> list[str]:
    """The files in lists such as /dev/nvidia[0-3]; what is no list, and slurmd says so, has none."""
    found: list[str] = []
    for name in names:
        with suppress(NodeSetException):
            found += list(NodeSet(name, resolver=RESOLVER_NOGROUP))[:_MOST_DEVICES]
    return [path for path in found if path.startswith("/") and ".." not in path.split("/")]


def _try(argv: Sequence[str], files: Mapping[str, str], devices: Sequence[str] = ()) -> Finished:
    with tempfile.TemporaryDirectory(prefix="slurm-share-") as folder:
        for path in devices:
            stand_in = Path(f"{folder}/files{path}")
            stand_in.parent.mkdir(parents=True, exist_ok=True)
            stand_in.touch()
        for name, text in files.items():
            whole = text.replace("{folder}", folder)
            Path(folder, name).write_bytes(whole.encode("utf-8", "surrogateescape"))
        env = {"PATH": os.environ.get("PATH", os.defpath), "SLURM_CONF": f"{folder}/slurm.conf"}
        done = finish(argv, timeout_s=_TIMEOUT_S, env=env)
        # The same words for both files of a comparison: each has a folder of its own.
        return Finished(done.code, done.stdout, done.stderr.replace(folder, ""))


def _news(before: Finished, after: Finished) -> str | None:
    """What is said of the one and not of the other. Where the first is refused already there is nothing to compare."""
    if before.code != 0:
        return None
    known = set(_complaints(before))
    new = [line for line in _complaints(after) if line not in known]
    if after.code == 0:
        return "; ".join(new) or None
    return "; ".join(new or _complaints(after)) or f"it ended with {after.code}"


def _complaints(done: Finished) -> list[str]:
    """Without the time, the program's name and the word error."""
    lines = [line.strip() for line in done.stderr.splitlines() if _SAID.match(line) and _STAND_IN not in line]
    if not lines and done.code != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return [_SAID.sub("", line) for line in lines]


def _flat(conf: ConfText) -> str:
    return _text(line.text for line in conf.lines)


def _text(lines: Iterable[str]) -> str:
    """Lines as Slurm reads them, written so that it reads the same."""
    return "".join(f"{line}\n".replace("\\", "\\\\").replace("#", "\\#") for line in lines)
