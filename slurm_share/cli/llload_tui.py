"""`llload-tui`: run the dashboard; if it cannot run, run llload once with the same options."""

from __future__ import annotations

import sys
from collections.abc import Sequence

# Here and not in a function: a command's own import ends at once with Ctrl-C (cli/start.py).
from slurm_share_tui import main as dashboard  # ImportError: the dashboard is not installed


def main(argv: Sequence[str] | None = None) -> int:
    """Run the dashboard and return its exit code."""
    code: int = dashboard.main(argv, _print_once)
    return code


def _print_once(argv: Sequence[str]) -> int:
    from . import llload

    return llload.main(argv)


if __name__ == "__main__":
    sys.exit(main())
