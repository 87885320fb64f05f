"""`llload-tui`: run the dashboard; if it cannot run, run llload once with the same options."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the dashboard and return its exit code. Raises ImportError if the dashboard is not installed."""
    from slurm_share_tui import main as dashboard

    code: int = dashboard.main(argv, _print_once)
    return code


def _print_once(argv: Sequence[str]) -> int:
    from . import llload

    return llload.main(argv)


if __name__ == "__main__":
    sys.exit(main())
