"""Read this node's load as the calling user may see it: from the agent, whose windows and peaks are longer, or from a
sampler in this process if the agent does not answer."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ...core import numbers
from ...core.errors import SlurmShareError, StateError, UsageError, shown
from ...core.settings import Settings
from ...node import processes
from ...slurm.node_name import read_node_name
from ..collectors import NodeReader
from ..rules import own_figures
from ..rules.visible import for_user
from ..snapshot import Snapshot
from . import callers, client

if TYPE_CHECKING:  # loads the driver's library
    from ..sampler import NodeSampler

BETWEEN_S = 0.15
"""Seconds between the first two samples: the second one has rates, and GPM needs 0.1 s."""
ASK_S = 2.0
"""The longest wait for the agent before this node is sampled without it."""
ASK_AGAIN_S = 30.0
"""Seconds before an agent that did not answer is asked again."""
OLD_INTERVALS = 3
"""Intervals after which the agent's newest sample is too old, and the node is sampled without it."""
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def this_node(option: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """Return Slurm's name of this node: the option, else the name that Slurm's files and daemons give it. Raises
    UsageError for an invalid name."""
    node = option or read_node_name(environ)
    if not _NODE.fullmatch(node):
        raise UsageError(
            f"{node[:80]!r} is no node's name; give Slurm's name of this node with --node, or a systemd unit with "
            "Environment=SLURMD_NODENAME=NAME"
        )
    return node


class NodeWatcher:
    """Read this node repeatedly, with the rights of the calling user."""

    def __init__(
        self,
        node: str,
        settings: Settings,
        *,
        new_sampler: Callable[[str], NodeSampler] | None = None,
        kernel: NodeReader | None = None,
        hides_processes: Callable[[], bool] = processes.are_hidden,
    ) -> None:
        """Watch this node, whose name in Slurm is `node`. Tests pass the others."""
        self.node = node
        self.caller = processes.read_user_name(os.geteuid())
        self.agent_problem = ""
        """Why the last read did not use the agent; empty: it did, or there is no agent."""
        self._settings = settings
        self._new_sampler = new_sampler or _sampler
        self._sampler: NodeSampler | None = None
        self._kernel = kernel
        self._hides_processes = hides_processes
        self._ask_from = float("-inf")

    def read(self, user: str, timeout_s: float = ASK_S) -> Snapshot:
        """Return the named user's part of the load; an empty name means all users, for root and operators. Raises
        UsageError if the caller may not see that, SlurmShareError if there is no such user."""
        own = user == self.caller
        may_sample = own or self.sees_all
        if not may_sample and not self._agent_is_there:
            whose = f"{shown(user, 64)}'s" if user else "everybody's"
            raise UsageError(f"{whose} load on this node is for {self._operators}; leave that option out for yours")
        uid = os.geteuid() if own or not user else processes.read_user_id(user)
        if uid is None:
            raise SlurmShareError(f"there is no user {shown(user, 64)} on this node")
        seen = self._of_agent(own, may_sample, timeout_s)
        if seen is not None and own:
            return self._with_own(for_user(seen, uid, user))
        seen = seen or self._of_sampler()
        if not own:
            seen = own_figures.closed(seen, os.geteuid())
        return for_user(seen, uid, user) if user else seen

    @property
    def sees_all(self) -> bool:
        """Return whether the caller may see all users' load without an agent."""
        return os.geteuid() == 0 or callers.is_operator(os.geteuid(), self._settings.operators_group)

    def close(self) -> None:
        """Release the driver's library."""
        if self._sampler is not None:
            self._sampler.close()
            self._sampler = None

    @property
    def _operators(self) -> str:
        group = self._settings.operators_group
        return f"root and the members of {group}" if group else "root (no operators_group is configured)"

    # ---- the agent --------------------------------------------------------------------------------------------------

    @property
    def _agent_is_there(self) -> bool:
        return bool(self._settings.agent_socket) and os.path.exists(self._settings.agent_socket)  # noqa: PTH110

    def _of_agent(self, own: bool, may_sample: bool, timeout_s: float) -> Snapshot | None:
        """Return the agent's snapshot; None if there is none that can be used. Raises UsageError if the caller may not
        sample either."""
        if not self._agent_is_there:
            self.agent_problem = ""
            return None
        if time.monotonic() >= self._ask_from:
            try:
                seen = client.ask(self._settings.agent_socket, min(ASK_S, timeout_s), not own)
            except StateError as error:
                self._ask_from = time.monotonic() + ASK_AGAIN_S
                self.agent_problem = error.why
            else:
                self.agent_problem = self._why_not(seen) or (self._why_blind(seen) if own else "")
                if not self.agent_problem:
                    return seen
        if not may_sample:
            raise UsageError(self.agent_problem)
        return None

    def _why_not(self, seen: Snapshot) -> str:
        if seen.node != self.node:
            return f"it answers for node {shown(seen.node, 64)}, and this is {self.node}"
        late = time.time() - seen.taken
        # After the clock was set back, the agent's newest sample is in the future.
        if abs(late) > OLD_INTERVALS * max(seen.interval_s or 0.0, self._settings.agent_interval_s):
            return f"its newest sample is {late:.0f} s old"
        return ""

    def _why_blind(self, seen: Snapshot) -> str:
        """Return why the agent lacks the job in which the caller looks; empty: it has it, or will have it."""
        job = numbers.whole(os.environ.get("SLURM_JOB_ID"), numbers.UINT32_MOST)
        if job is not None and job not in {one.job for one in seen.jobs} and self._hides_processes():
            return f"it does not see job {job} (hidepid on /proc; slurm-share doctor says how it can)"
        return ""

    def _with_own(self, seen: Snapshot) -> Snapshot:
        """Add everything that the caller may read and the agent may not: environments, rates and bookings."""
        if self._kernel is None:
            self._kernel = NodeReader(self.node)
        read = self._kernel.read([one.pid for one in seen.processes], tuple(gpu.uuid for gpu in seen.gpus))
        return own_figures.with_own(seen, read)

    # ---- a sampler of this process ----------------------------------------------------------------------------------

    def _of_sampler(self) -> Snapshot:
        if self._sampler is None:
            self._sampler = self._new_sampler(self.node)
            self._sampler.sample()
            time.sleep(BETWEEN_S)
        return self._sampler.sample()


def _sampler(node: str) -> NodeSampler:
    from ..sampler import NodeSampler  # loads the driver's library, which a caller with an agent does not need

    return NodeSampler(node)
