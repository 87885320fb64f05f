"""The sampler: read this node repeatedly and compute its load."""

from __future__ import annotations

from ..core.installed import version
from ..node.gpus.load import NvmlSession
from ..node.readings import DriverNow, HostNow
from .collectors import NodeReader
from .rules import fold, history
from .rules.history import NodeHistory
from .snapshot import Snapshot


class NodeSampler:
    """A sampler of this node. Rates and windows are over its own samples, and those of a sampler that it continues.
    Its snapshots hold everything that the process may see; root sees all."""

    def __init__(self, node: str, *, kernel: NodeReader | None = None, driver: NvmlSession | None = None) -> None:
        """Sample this node, whose name in Slurm is `node`. Tests replace kernel and driver."""
        self._node = node
        self._kernel = kernel or NodeReader(node)
        self._driver = driver or NvmlSession()
        self._history = NodeHistory()
        self._version = version()
        self.readings: tuple[HostNow, DriverNow] | None = None
        """The readings of which the last snapshot was made; its processes are in the same order."""

    def sample(self) -> Snapshot:
        """Return a snapshot of the node. A part that is missing or does not answer is a problem in it, not an error."""
        driver = self._driver.read()
        pids = {process.pid for gpu in driver.gpus for process in gpu.processes or ()}
        host = self._kernel.read(sorted(pids), tuple(gpu.uuid for gpu in driver.gpus))
        self.readings = host, driver
        self._history, snapshot = fold.fold(self._history, host, driver, self._node, self._version)
        return snapshot

    def remember(self) -> bytes:
        """Return windows, peaks and counters as bytes, for `recall` after a restart."""
        return history.render(self._history)

    def recall(self, data: bytes) -> bool:
        """Continue from another sampler's `remember`; return False and change nothing if that is of another boot.
        Raises StateError for data that cannot be parsed."""
        found = history.recall(data, self._kernel.boot_id)
        self._history = found or self._history
        return found is not None

    def close(self) -> None:
        """Release the driver's library."""
        self._driver.close()
