"""The source of this node only: its agent, whose windows and peaks are longer, or a sampler in this process."""

from __future__ import annotations

from msgspec.structs import replace

from ...core.settings import Settings
from ..agent.watcher import NodeWatcher, this_node
from ..snapshot import SourceName
from .base import Source, SourceAnswer, SourceRequest


class LocalSource(Source):
    """This node. Other nodes are silent. Raises UsageError if this node's name is invalid."""

    name: SourceName = "local"

    def __init__(self, settings: Settings, *, watcher: NodeWatcher | None = None) -> None:
        self._watcher = watcher or NodeWatcher(this_node(), settings)
        self.node = self._watcher.node

    def read(self, asked: SourceRequest, timeout_s: float) -> SourceAnswer:
        """Return this node's snapshot. Raises UsageError if the caller may not see that user's load."""
        silent = {node: "another node" for node in asked.nodes if node != self.node}
        if self.node not in asked.nodes:
            return SourceAnswer(snapshots={}, silent=silent)
        seen = self._watcher.read(asked.user, timeout_s)
        problem = self._watcher.agent_problem
        notes = [f"{self.node}: sampled without the agent: {problem}"] if problem else []
        return SourceAnswer(snapshots={self.node: replace(seen, source=self.name)}, silent=silent, notes=notes)

    def close(self) -> None:
        """Release the driver's library."""
        self._watcher.close()
