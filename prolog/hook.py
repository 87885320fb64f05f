"""What both hooks do around their work: a search path, one outermost handler, an end in time, an exit code.

A non-zero exit of Prolog or Epilog drains the node (and a Prolog's requeues the job). Nothing that a user, a bad
configuration or a defect of ours can cause is worth that: a job that shares is refused with a sentence, any other goes
on, and the log says why. It means that the node is unwell; share/rules/drain.py has all causes.
"""

from __future__ import annotations

import errno
import gc
import os
import sys

from slurm_share import names

TYPE_CHECKING = False  # as mypy knows it; `typing` itself would be half of an ordinary job's Prolog
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn, ParamSpec, TypeVar

    from slurm_share.paths import Paths
    from slurm_share.records import Ledger, ProcessIdentity
    from slurm_share.settings import Settings

    Args = ParamSpec("Args")
    Answer = TypeVar("Answer")

SEARCH_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
"""slurmd starts hooks without PATH, and a shell's own default ends in the current folder."""


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""What befalls a disk, and is no defect of ours: a user can fill the state folder with what is his own in it."""


_is_program = False
"""False: called by a test, in a process that goes on."""


def run(who: str, work: Callable[[], bool]) -> int:
    """Do the hook's work and answer with its exit code; whatever goes wrong is logged."""
    try:
        if _is_program:
            from slurm_share import process_table

            process_table.keep()
        if not work():
            return names.EXIT_NODE_UNWELL
    except Exception as error:  # noqa: BLE001  (the one broad handler: see above)
        report(who, explain(error))
    return names.EXIT_OK


def explain(error: Exception) -> str:
    """Our own errors are sentences, and a full disk is one; of any other, which is a defect, the end of its traceback
    in one line."""
    from slurm_share.errors import SlurmShareError

    if isinstance(error, SlurmShareError):
        return str(error)
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        place = error.filename or names.STATE_ROOT
        return f"{place} cannot be written ({error.strerror}); make room there"
    import traceback

    frames = traceback.format_tb(error.__traceback__)[-4:]
    return " | ".join([f"{type(error).__name__}: {error}", *(" ".join(frame.split()) for frame in frames)])


def explain_to_user(error: Exception) -> str:
    """The same for a job's output: of a defect only that it is one."""
    from slurm_share.errors import SlurmShareError

    is_sentence = isinstance(error, SlurmShareError) or (isinstance(error, OSError) and error.errno in NO_ROOM)
    return explain(error) if is_sentence else f"{type(error).__name__} in the hook, whose log says more"


_is_in_driver = False
"""Whether this hook is in a call into the driver, which may not come back."""


def ask_driver(call: Callable[Args, Answer], *args: Args.args, **options: Args.kwargs) -> Answer:
    """Return what a call into the driver returns; a hook that hangs in it is told from one that hangs elsewhere."""
    global _is_in_driver
    _is_in_driver = True
    try:
        return call(*args, **options)
    finally:
        _is_in_driver = False


def watch(who: str, seconds: float, code: Callable[[bool], int]) -> Callable[[], None]:
    """End this hook when it is still here after so long; answers with what calls that off.

    All its work has one deadline; what has none is a call into the kernel, and slurmd would wait for it without end.
    code: gets whether the driver is what hangs, and returns the exit code.
    """
    import threading

    def give_up() -> None:
        in_driver = _is_in_driver
        what = "the driver does not answer" if in_driver else "something else than the driver hangs"
        report(who, f"not over after {seconds:g} s, given up: {what}")
        os._exit(code(in_driver))

    watchdog = threading.Timer(seconds, give_up)
    watchdog.daemon = True
    watchdog.start()
    return watchdog.cancel


def be_program(main: Callable[[], int]) -> NoReturn:
    """Run a hook as the program that slurmd starts. A process of a tenth of a second has no garbage worth looking for,
    and leaves at once: all that was to be written is written, and to take an interpreter apart costs, too."""
    global _is_program
    _is_program = True
    gc.disable()
    # msgspec asks it for what `typing` has as well, and its import is a tenth of a shared job's hook
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    os._exit(main())


def set_out() -> None:
    """Before anything else: what slurmd leaves open or gives along from its own start."""
    os.environ["PATH"] = SEARCH_PATH
    os.umask(0o022)  # modes of the state folder are said where it is made; slurmd's own umask must not cut them


_log_file: str | None = None
"""Where this hook logs; None: its configuration has not been read, or is wrong."""


def report(who: str, text: str) -> None:
    """A line in the site's log; in the default one where the configuration is what is wrong. Never raises: it is what
    speaks when something else has."""
    from slurm_share import log
    from slurm_share.settings import Settings

    log.line(Settings().log_file if _log_file is None else _log_file, who, text)


def load_settings() -> Settings:
    """The settings for this job's partition. Raises ConfigError where the site's file is wrong.

    To be called before any record is made: a hook that need not read the file needs no msgspec either.
    """
    global _log_file
    partition = os.environ.get("SLURM_JOB_PARTITION")
    before = None
    if _is_program:
        from . import plain_records, settings_cache

        kept = settings_cache.read(partition)
        if kept is not None and plain_records.use():
            from slurm_share.settings import Settings

            values, _log_file = kept
            return Settings(**values)
        before = settings_cache.key()
    from slurm_share import config

    configuration = config.load()
    _log_file = configuration.settings.log_file
    if _is_program:
        settings_cache.write(configuration, before)
    return configuration.of(partition)


def load_settings_or_defaults(who: str) -> Settings:
    """The same; the defaults, said in the log, where the file is wrong. For work that must be done all the same: to
    remove what is ours needs nobody's permission."""
    from slurm_share.errors import ConfigError
    from slurm_share.settings import Settings

    try:
        return load_settings()
    except ConfigError as error:
        report(who, f"{error}; going on with the defaults")
        return Settings()


LISTING = b"exclusive_user_nodes"
"""The setting that makes ordinary jobs the hooks' business."""


def site_may_list_nodes() -> bool:
    """Whether the site's file has the word at all: a look that costs an ordinary job microseconds, where to understand
    the file would cost as much as the rest of its Prolog."""
    from slurm_share.names import CONFIG_FILE

    try:
        fd = os.open(CONFIG_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return LISTING in os.read(fd, 1 << 20)
    except OSError:
        return False
    finally:
        os.close(fd)


COUNT_S = 1.0
"""For the record of refusals, which is held for less than a millisecond."""


def count_refusal(who: str, paths: Paths, job_id: int, cause: str) -> bool:
    """Note that a job was refused; False: the node is to be drained, since it was one too many. Never raises."""
    from slurm_share.actuators import refusals
    from slurm_share.errors import StateError
    from slurm_share.process import Deadline
    from slurm_share.readers import ledger_file

    try:
        too_many = refusals.count(
            str(paths.refusals), ledger_file.read_boot_id(), job_id, cause, Deadline.after(COUNT_S)
        )
    except (OSError, StateError) as error:
        report(who, f"{error}: the refusal of job {job_id} is not counted")
        return True
    if too_many is not None:
        report(who, f"NODE UNWELL: {too_many}, the last one job {job_id}")
    return too_many is None


def myself() -> ProcessIdentity:
    """This hook, so that the next one can tell whether it still lives."""
    from slurm_share import process

    identity = process.identify(os.getpid())
    assert identity is not None, "a running process is there"
    return identity


def read_ledger(paths: Paths, who: str) -> Ledger:
    """The node's ledger; where it cannot be understood, what the jobs' plans tell of it, said in the log: it is a
    memory of who is here, and no job may wait until somebody repairs it."""
    from slurm_share.decide import reconcile
    from slurm_share.errors import StateError
    from slurm_share.readers import ledger_file

    boot_id = ledger_file.read_boot_id()
    try:
        return ledger_file.read_ledger(paths, boot_id)
    except StateError as error:
        ledger = reconcile.rebuild(boot_id, ledger_file.read_plans(paths))
        jobs = ", ".join(str(entry.job_id) for entry in ledger.jobs) or "none"
        report(who, f"{error}; made anew from the plans of the jobs that are here ({jobs})")
        return ledger
