"""Read all agents at once over HTTP, with the operators' token."""

from __future__ import annotations

import asyncio

from ...core.errors import StateError
from ...core.settings import Settings
from ...core.text import counted
from .. import snapshot as snapshots
from ..agent import tls
from ..agent.http_client import NO_TLS, NOT_OURS, REFUSED, WANTS_CERTIFICATE, WANTS_TLS, WRONG_TOKEN, AgentsCaller
from ..agent.token import read_operators_token
from ..rules import visible
from ..snapshot import Snapshot, SourceName
from .base import Source, SourceAnswer, SourceRequest

MANY = 5000
"""Nodes from which Prometheus is the source to use with TLS: a handshake takes 1.3 ms of CPU, a call in clear text
0.1."""


class AgentsSource(Source):
    """The agents of all nodes, read at each survey. Raises UsageError if the token cannot be read."""

    name: SourceName = "agent"

    def __init__(self, settings: Settings) -> None:
        self._port = settings.agents_port
        token = read_operators_token(settings.agent_token_file, "agent_token_file")
        context = tls.caller_context(settings)
        self._is_tls = context is not None
        self._caller = AgentsCaller(self._port, token, context)

    def read(self, asked: SourceRequest, timeout_s: float) -> SourceAnswer:
        """Return the snapshots of the nodes that answer within `timeout_s`, and why the others are silent."""
        whole = asked.details or asked.user  # a user's part is made from the whole
        target = f"/snapshot{'' if whole else '?details=no'}"
        found, silent = asyncio.run(
            self._caller.ask(
                asked.nodes, asked.addresses, target, timeout_s, lambda node, body: take(node, body, asked.user)
            )
        )
        notes = []
        wrong = sum(why == WRONG_TOKEN for why in silent.values())
        if wrong:
            notes.append(
                f"{counted(wrong, 'agent')} refused the token; agent_token_file must be the same there and here"
            )
        notes += [note for why, note in _NOTES.items() if why in silent.values()]
        if self._is_tls and len(asked.nodes) >= MANY:
            notes.append(f"{len(asked.nodes)} agents were asked by TLS; from {MANY} nodes on use --source prometheus")
        if asked.nodes and all(why == REFUSED for why in silent.values()) and not found:
            notes.append(
                f"no agent answers on port {self._port} of any node; start slurm-share-agent.service there and set "
                "agent_http in its configuration"
            )
        return SourceAnswer(snapshots=found, silent=silent, notes=notes)


_NOTES = {
    NO_TLS: "agents_ca is set here, and some agents serve in clear text; set agent_tls_certificate on their nodes",
    WANTS_TLS: "some agents take TLS only; set agents_ca here, to the CA of their certificates",
    WANTS_CERTIFICATE: "some agents want a certificate that their agent_tls_client_ca signed; set agents_certificate "
    "and agents_key here",
}


def take(node: str, body: bytes, user: str) -> Snapshot | str:
    """Return the snapshot in an agent's answer, the user's part of it if one is named, or what is wrong with it."""
    try:
        snapshot = snapshots.parse_snapshot(body, node)
    except StateError as error:
        return "newer release" if "newer" in error.why else NOT_OURS
    if snapshot.node != node:
        return f"answers as {snapshot.node[:64]!r}"
    return for_user(snapshot, user) if user else snapshot


def for_user(snapshot: Snapshot, user: str) -> Snapshot:
    """Return one user's part of an operator's snapshot; for a user without load there, only the node."""
    uids = [one.uid for one in snapshot.users if one.user == user]
    uids += [one.uid for one in snapshot.processes if one.user == user]
    return visible.for_user(snapshot, next(iter(uids), -1), user)
