"""Read the hosts of slurmctld: those that slurm.conf names, and whether each answers."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..core.process import finish
from .conf_text import ConfText

_PING_S = 30.0
_PING = re.compile(r"^Slurmctld\([^)]*\) at (\S+) is (UP|DOWN)", re.MULTILINE)


def named_in(slurm: ConfText) -> tuple[str, ...]:
    """Return the hosts of the SlurmctldHost lines, the primary first, without addresses: `ctl2(10.0.0.2)` is ctl2."""
    return tuple(dict.fromkeys(value.partition("(")[0].strip() for value in slurm.values("SlurmctldHost")))


def short_name(host: str) -> str:
    """Return a host's name without its domain."""
    return host.partition(".")[0]


def is_same_host(one: str, other: str) -> bool:
    """Return whether two names are of one host, with its domain or without."""
    return one == other or (short_name(one) == short_name(other) and ("." in one) != ("." in other))


def ping_argv() -> list[str]:
    """Return the smallest request to Slurm. Its answer is like `Slurmctld(primary) at ctl is UP`."""
    return ["scontrol", "ping"]


def parse_ping(text: str) -> dict[str, bool]:
    """Return the controllers' hosts in the answer to `ping_argv`, the primary first, and whether each is up."""
    return {host: value == "UP" for host, value in _PING.findall(text)}


def are_all_down(found: Mapping[str, bool]) -> bool:
    """Return whether every controller is down; False where there is none."""
    return bool(found) and not any(found.values())


def read_controllers(environ: Mapping[str, str]) -> dict[str, bool]:
    """Return the controllers of the cluster that `environ` leads to, as `parse_ping`. Raises CommandError without
    scontrol."""
    return parse_ping(finish(ping_argv(), timeout_s=_PING_S, env=environ).stdout)
