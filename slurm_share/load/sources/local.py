"""The source of this node alone: its agent, whose windows and peaks are longer, or without one a sampler of our own."""

from __future__ import annotations

from msgspec.structs import replace

from ...core.settings import Settings
from ..agent.watcher import NodeWatcher, this_node
from ..snapshot import SourceName
from .base import Answer, Asked


class LocalSource:
    """Answer for this node; report other nodes as silent. Raises UsageError where this one's name is
    none."""

    name: SourceName = "local"

    def __init__(self, settings: Settings, *, watcher: NodeWatcher | None = None) -> None:
        self._watcher = watcher or NodeWatcher(this_node(), settings)
        self.node = self._watcher.node

    def read(self, asked: Asked, timeout_s: float) -> Answer:
        """Return this node's snapshot. Raises UsageError if the caller may not see the load of the user asked for."""
        silent = {node: "another node" for node in asked.nodes if node != self.node}
        if self.node not in asked.nodes:
            return Answer(snapshots={}, silent=silent)
        seen = self._watcher.read(asked.user, timeout_s)
        problem = self._watcher.agent_problem
        notes = [f"{self.node}: sampled without the agent: {problem}"] if problem else []
        return Answer(snapshots={self.node: replace(seen, source=self.name)}, silent=silent, notes=notes)

    def get_ready(self, all_lines: bool, timeout_s: float) -> None:
        """Do nothing: it is ready."""

    def ask_again(self) -> None:
        """Do nothing: every survey is new."""

    def close(self) -> None:
        """Release the driver."""
        self._watcher.close()
