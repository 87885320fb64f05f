"""What both hooks do around their work: a search path, one outermost handler, an exit code.

A non-zero exit of Prolog or Epilog drains the node and requeues the job. Nothing that a user, a bad configuration or
a defect of ours can cause is worth that: the job runs unshared, or its tasks are refused with a sentence, and the log
says why.
"""

from __future__ import annotations

import os

from slurm_share import names

TYPE_CHECKING = False  # as mypy knows it; `typing` itself would be half of an ordinary job's Prolog
if TYPE_CHECKING:
    from collections.abc import Callable

    from slurm_share.paths import Paths
    from slurm_share.records import Ledger

SEARCH_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
"""slurmd starts hooks without PATH, and a shell's own default ends in the current folder."""


def run(who: str, work: Callable[[], None]) -> int:
    """Do the hook's work and answer with its exit code; whatever goes wrong is logged."""
    try:
        work()
    except Exception:  # noqa: BLE001  (the one broad handler: see above)
        import traceback

        report(who, traceback.format_exc().replace("\n", " | "))
    return names.EXIT_OK


def set_search_path() -> None:
    """Before anything else can start a program."""
    os.environ["PATH"] = SEARCH_PATH


def report(who: str, text: str) -> None:
    """A line in the site's log; in the default one where the configuration is what is wrong."""
    from slurm_share import config, log
    from slurm_share.errors import ConfigError
    from slurm_share.settings import Settings

    try:
        file = config.load().settings.log_file
    except ConfigError:
        file = Settings().log_file
    log.line(file, who, text)


def read_ledger(paths: Paths, who: str) -> Ledger:
    """The node's ledger; an empty one, said in the log, where it cannot be understood: it is a memory of who is here,
    and no job may wait until somebody repairs it."""
    from slurm_share.errors import StateError
    from slurm_share.readers import ledger_file
    from slurm_share.records import Ledger

    boot_id = ledger_file.read_boot_id()
    try:
        return ledger_file.read_ledger(paths, boot_id)
    except StateError as error:
        report(who, f"{error}; starting an empty ledger")
        return Ledger(boot_id)
