"""Examine this host for `slurm-share doctor`: read its facts, apply fixes if asked to, run the checks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from ..core.errors import StateError, UsageError
from ..core.settings import Settings
from ..slurm.conf import slurm_conf_path
from ..slurm.conf_text import ConfText
from .checks import every
from .facts import host
from .facts.records import Facts, Finding, Role, UnknownFact

if TYPE_CHECKING:
    from .fixes import FixResult

AGENT_S = 5.0


def examine(
    roles: tuple[Role, ...], without: Collection[str], *, fix: bool
) -> tuple[Facts, Sequence[Finding], tuple[FixResult, ...]]:
    """Return the facts of this host, the findings, and the applied fixes; `without`: checks to leave out.

    Raises UsageError as `read_host` does.
    """
    facts = read_host(roles, all_jobs=fix, without=without)
    results: tuple[FixResult, ...] = ()
    if fix:
        from . import fixes

        facts, results = fixes.fix_all(facts, lambda: read_host(facts.roles, all_jobs=True, without=without))
    return facts, every.examine(facts, without), results


def examine_configuration(
    text: ConfText, objection: str | UnknownFact, coming: Mapping[str, str], without: Collection[str] = ()
) -> Sequence[Finding]:
    """Return the findings about a slurm.conf and the files that it names, as `slurm-share install` would leave them.
    The parameters are those of `host.read_configured`."""
    is_of_host = text.file.resolve() == slurm_conf_path().resolve()
    facts = host.read_configured(str(text.file), text, objection, coming=coming, is_of_host=is_of_host)
    return every.examine(facts, without, needs="configuration")


def read_host(roles: tuple[Role, ...], *, all_jobs: bool = False, without: Collection[str] = ()) -> Facts:
    """Return the facts of this host, those for the checks `without` excepted where they take time. Raises UsageError if
    it has nothing of Slurm and no role was given."""
    facts = host.read_facts(roles, ask_agent=_ask_agent, all_jobs=all_jobs, without=without)
    if not facts.roles:
        raise UsageError(
            "there is no slurm.conf on this host and no daemon of Slurm: run it on a controller, login or compute node,"
            " set SLURM_CONF, or say what this is with --role"
        )
    return facts


def _ask_agent(settings: Settings) -> tuple[str, str]:
    """Return why the agent of this node does not answer ("": it does), and the node's name in its answer."""
    from ..load import client  # hosts without an agent do not need this module, and it may be damaged

    try:
        return "", client.ask(settings.agent_socket, AGENT_S).node
    except StateError as error:
        return str(error), ""
