"""Print the failed inputs of a map; map.sh runs `python -m slurm_share.cli.llmapreduce_failures FOLDER`.

Do not rename this module: map.sh of jobs that already wait in the queue contains its name.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ..core import names, terminal
from ..core.command import enter
from ..core.errors import UsageError
from ..triples import map_failures


def main() -> int:
    """Print the failures of the run in the folder given as argument."""

    def say() -> int:
        if len(sys.argv) != 2:
            raise UsageError("write the folder of a run, and nothing else")
        terminal.print_lines(map_failures.failures(Path(sys.argv[1])))
        return names.EXIT_OK

    return enter("llmapreduce", say)


if __name__ == "__main__":
    sys.exit(main())
