"""Print the failed inputs of a map; map.sh runs `python -m slurm_share.cli.llmapreduce_failures FOLDER`.

With --saved, print why the reducer must not run yet, and exit with 75 then: reduce.sh does that.

Do not rename this module: the scripts of jobs that already wait in the queue contain its name.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ..core import names, terminal
from ..core.command import enter
from ..core.errors import UsageError
from ..triples import failed_tasks


def main() -> int:
    """Print the failures of the run in the folder given as argument."""

    def say() -> int:
        if len(sys.argv) == 3 and sys.argv[1] == "--saved":
            why = failed_tasks.saved_text(Path(sys.argv[2]))
            terminal.print_lines([why] if why else [])
            return names.EXIT_SAVED if why else names.EXIT_OK
        if len(sys.argv) != 2:
            raise UsageError("write the folder of a run, and nothing else")
        terminal.print_lines(failed_tasks.failures(Path(sys.argv[1])))
        return names.EXIT_OK

    return enter("llmapreduce", say)


if __name__ == "__main__":
    sys.exit(main())
