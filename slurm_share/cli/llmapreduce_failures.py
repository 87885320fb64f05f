"""Print which inputs of a map failed; map.sh runs `python -m slurm_share.cli.llmapreduce_failures FOLDER`.

The map.sh of a job that waits names this module. A release must not rename it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ..core import names, terminal
from ..core.command import enter
from ..core.errors import UsageError
from ..triples import map_failures


def main() -> int:
    """Print the failures of the run in the folder that is named."""

    def say() -> int:
        if len(sys.argv) != 2:
            raise UsageError("write the folder of a run, and nothing else")
        terminal.print_lines(map_failures.failures(Path(sys.argv[1])))
        return names.EXIT_OK

    return enter("llmapreduce", say)


if __name__ == "__main__":
    sys.exit(main())
