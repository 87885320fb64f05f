"""The releases of Slurm that slurm-share is tested on, and that its packages bring a plugin for: the one list of them.

The local cluster, the build of the packages and the shell scripts read it too, some without importing it: plain values.
"""

from __future__ import annotations

SUITES = {
    "26.05": "forky",
    "24.11": "trixie",
}
"""Release -> the Debian suite that carries it; the newest release first."""
TESTED = tuple(reversed(SUITES))
"""The same releases, the oldest first."""
