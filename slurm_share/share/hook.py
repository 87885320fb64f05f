"""The parts that Prolog and Epilog share: search path, outermost exception handler, watchdog, log, settings, ledger.

A non-zero exit code of Prolog or Epilog drains the node; that of a Prolog also requeues the job. So it is used only if
the node is unwell; share/rules/drain.py lists the causes. A user's action, a wrong configuration or a defect of ours
does not drain the node: a shared job is refused with a sentence, any other job runs, and the log has the reason.
"""

from __future__ import annotations

import errno
import gc
import os

from slurm_share.core import names

TYPE_CHECKING = False  # mypy takes it for True; importing `typing` would take half the time of an ordinary job's Prolog
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn, ParamSpec, TypeVar

    from slurm_share.core.paths import Paths
    from slurm_share.core.records import ProcessIdentity
    from slurm_share.core.settings import Settings
    from slurm_share.share.records import Ledger
    from slurm_share.share.rules.verdict import InForce, JobVerdict, Mode

    Args = ParamSpec("Args")
    Answer = TypeVar("Answer")

SEARCH_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
"""The hooks' PATH: slurmd sets none, and the default of some shells includes the current folder."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""The errors of a full or read-only disk, which are no defects: users can fill the file system."""
_is_program = False
"""Whether slurmd started this process as a hook. False in tests, which call hooks in their own process."""


def run(who: str, work: Callable[[], bool]) -> int:
    """Run `work` and return the hook's exit code; log every exception. `work` returns False if the node is unwell."""
    try:
        if _is_program:
            from slurm_share.node import process_table

            process_table.keep()
        if not work():
            return names.EXIT_NODE_UNWELL
    except Exception as error:  # noqa: BLE001  (the one broad handler: see above)
        report(who, explain(error))
    return names.EXIT_OK


def explain(error: Exception) -> str:
    """Return an exception as one line for the log: a sentence for our own errors and a full disk; for any other, which
    is a defect, the end of its traceback."""
    from slurm_share.core.errors import SlurmShareError

    if isinstance(error, SlurmShareError):
        return str(error)
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        place = error.filename or names.STATE_ROOT
        return f"{place} cannot be written ({error.strerror}); make room there"
    import traceback

    frames = traceback.format_tb(error.__traceback__)[-4:]
    return " | ".join([f"{type(error).__name__}: {error}", *(" ".join(frame.split()) for frame in frames)])


def explain_to_user(error: Exception) -> str:
    """Return an exception as one line for a job's output: as `explain` does, but without the traceback of a defect."""
    from slurm_share.core.errors import SlurmShareError

    is_sentence = isinstance(error, SlurmShareError) or (isinstance(error, OSError) and error.errno in NO_ROOM)
    return explain(error) if is_sentence else f"{type(error).__name__} in the hook; its log says more"


_is_in_driver = False
"""Whether this hook is in a call into the driver, which can hang."""


def ask_driver(call: Callable[Args, Answer], *args: Args.args, **options: Args.kwargs) -> Answer:
    """Call into the driver and return the result; let the watchdog know whether a hook that hangs is in the driver."""
    global _is_in_driver
    _is_in_driver = True
    try:
        return call(*args, **options)
    finally:
        _is_in_driver = False


def watch(who: str, seconds: float, code: Callable[[bool], int]) -> Callable[[], None]:
    """Start a watchdog that ends this process after `seconds`; return a function that stops the watchdog.

    All work of a hook has one deadline, but a call into the kernel can hang beyond it, and slurmd would wait for ever.
    `code` returns the exit code; its argument is whether the driver hangs.
    """
    import threading

    def give_up() -> None:
        in_driver = _is_in_driver
        what = (
            "the driver does not answer"
            if in_driver
            else "a call other than into the driver hangs, or the node is busy"
        )
        report(who, f"did not end in {seconds:g} s and is given up: {what}")
        leave(code(in_driver))

    watchdog = threading.Timer(seconds, give_up)
    watchdog.daemon = True
    watchdog.start()
    return watchdog.cancel


HELPER_ARGUMENT = "--helper"
"""The argument with which the program of a hook runs as the helper."""
AFTER_ARGUMENT = "--after-job"
"""The argument with which the program of a hook runs after a job (`start_after`); the job's number follows."""
_answer: Callable[[int], None] | None = None
"""A function that sends the exit code to the front, in a process that the helper forked."""


def begin(answer: Callable[[int], None] | None = None) -> None:
    """Record that this process is a hook. `answer`, in a process that the helper forked, sends the exit code to the
    front."""
    global _is_program, _answer
    _is_program, _answer = True, answer
    gc.disable()


def leave(code: int) -> NoReturn:
    """End this process at once, with the hook's exit code."""
    if _answer is not None:
        _answer(code)
    os._exit(code)


def wants_helper() -> bool:
    """Return whether to start a helper for the hooks that follow: this one had work, and the site and slurmd allow a
    helper."""
    if _settings is None or not _settings.hook_helper or _settings.mode == "off" or os.geteuid() != 0:
        return False
    from slurm_share.node import processes

    return not processes.read_runs_in_job()


def start_after(who: str, job_id: int) -> None:
    """Start the process that writes and publishes the record of an ended job (report/after_end.py). It is nobody's
    child, has its own session and no file of this hook, and ends itself: nothing waits for it. Never raises."""
    if not _is_program:
        return
    import sys

    flags = ["-ISB" if sys.flags.no_site else "-IB"]
    null = [(os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_RDWR, 0) for fd in range(3)]
    argv = [sys.executable, *flags, sys.argv[0], AFTER_ARGUMENT, str(job_id)]
    known = {name: os.environ[name] for name in ("SLURM_CONF", "SLURM_JOB_PARTITION") if name in os.environ}
    env = {"PATH": SEARCH_PATH, "LC_ALL": "C.UTF-8", **known}
    try:
        os.posix_spawn(sys.executable, argv, env, file_actions=null, setsid=True, setsigmask=())
    except (OSError, NotImplementedError) as error:
        report(who, f"job {job_id}: {error}: the record of what it used is not written")


def set_up() -> None:
    """Set the search path, which slurmd leaves unset, and the umask, which is inherited from slurmd. Call it first."""
    os.environ["PATH"] = SEARCH_PATH
    os.umask(0o022)  # slurmd's umask must not restrict the modes of the state folder


_log_file: str | None = None
"""The file that this hook logs to; None: the configuration has not been read, or is wrong."""
_settings: Settings | None = None
"""The settings for this hook's job; None as above."""


def report(who: str, text: str) -> None:
    """Write a line to the site's log, or to the default log file while the configuration is unknown or wrong. Never
    raises: exception handlers call it."""
    from slurm_share.core import log
    from slurm_share.core.settings import Settings

    log.line(Settings().log_file if _log_file is None else _log_file, who, text)


why_not_on = ""
"""The reason why this job does not share although the node's own mode is `on`; empty: there is none."""


def load_settings(*, decides: bool = True) -> Settings:
    """Return the settings for this job's partition, with the mode in force for this job (share/rules/verdict.py), or
    with the node's own mode if the hook `decides` nothing. Raises ConfigError if the site's file is wrong."""
    global _log_file, _settings, why_not_on
    from msgspec.structs import replace

    from slurm_share.core import config, log

    configuration = config.load()
    _log_file = configuration.settings.log_file
    log.use_journal(configuration.settings.log == "journal")
    settings = configuration.of(os.environ.get("SLURM_JOB_PARTITION"))
    _settings, why_not_on = settings, ""
    if decides:
        in_force = _in_force(settings)
        if in_force.mode != settings.mode:
            _settings = replace(settings, mode=in_force.mode)
            why_not_on = in_force.why if settings.mode == "on" else ""
    return _settings


def site_settings() -> Settings:
    """Return the node's own settings for this job's partition. Raises ConfigError if the site's file is wrong."""
    from slurm_share.core import config

    return config.load().of(os.environ.get("SLURM_JOB_PARTITION"))


def read_verdict() -> JobVerdict | None:
    """Return the controller's verdict on this hook's job; None: there is none."""
    from slurm_share.share.rules import verdict

    return verdict.read(os.environ.get(names.VERDICT_EXTRA), os.environ.get(names.VERDICT_COMMENT))


def _in_force(settings: Settings) -> InForce:
    from slurm_share.core import numbers
    from slurm_share.share.rules import verdict

    restarts = os.environ.get("SLURM_JOB_RESTART_COUNT", "")
    found = read_verdict()
    shares = names.HOOK_VARIABLE in os.environ
    # If sharing is off already, the mode file cannot change that: do not wait for the file server.
    asks = settings.mode_file and settings.mode != "off" and (not shares or found is None or found.mode != "off")
    return verdict.in_force(
        settings.mode,
        found,
        _everywhere(settings.mode_file) if asks else None,
        restart_count=numbers.whole(restarts, numbers.UINT32_MOST),
        shares=shares,
        uses_job_submit=settings.job_submit,
    )


def _everywhere(path: str) -> Mode | None:
    """Return the mode in the site's mode file; None: there is none for this job. A mode that was written after the
    job's start does not apply to it, since the job may share on its other nodes already."""
    from slurm_share.core import numbers
    from slurm_share.share import mode_file
    from slurm_share.share.rules import verdict

    found = mode_file.read(path)
    if found.problem is not None:
        report("hooks", f"{path} cannot be read ({found.problem}): only this node's settings and the verdict count")
    start = numbers.whole(os.environ.get("SLURM_JOB_START_TIME"))
    if found.text is None or (start is not None and found.changed_s >= start + 1):
        return None
    return verdict.mode_of_file(found.text)


def load_settings_or_defaults(who: str) -> Settings:
    """Return the settings for this job's partition; if the site's file is wrong, log that and return the defaults. For
    work that must be done in any case, such as a clean-up."""
    from slurm_share.core.errors import ConfigError
    from slurm_share.core.settings import Settings

    try:
        return load_settings(decides=False)
    except ConfigError as error:
        report(who, f"{error}; the defaults are used")
        return Settings()


def site_may_list_nodes() -> bool:
    """Return whether the site's file contains the name of that setting. This takes microseconds; parsing the file would
    take as long as the rest of an ordinary job's Prolog."""
    return _site_mentions(names.LISTING_SETTING)


def site_may_record_gpus() -> bool:
    """Return whether this hook's job has GPUs, and the site's file contains the name of a setting for recording their
    use, or for telling exporters who has them."""
    settings = (names.USAGE_SETTING, names.JOB_MAPPING_SETTING, names.GPUSTAT_SETTING)
    return "SLURM_JOB_GPUS" in os.environ and _site_mentions(*settings)


def site_may_tell_exporters() -> bool:
    """Return whether the site's file contains the name of a setting for telling exporters who has a GPU."""
    return _site_mentions(names.JOB_MAPPING_SETTING, names.GPUSTAT_SETTING)


def _site_mentions(*settings: str) -> bool:
    from slurm_share.core.names import CONFIG_FILE

    try:
        fd = os.open(CONFIG_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        text = os.read(fd, 1 << 20)
        return any(setting.encode() in text for setting in settings)
    except OSError:
        return False
    finally:
        os.close(fd)


COUNT_S = 1.0
"""How long to wait for the lock of the record of refusals, which is held for less than a millisecond."""


def count_refusal(who: str, paths: Paths, job_id: int, cause: str) -> bool:
    """Record that a job was refused; return False if that was one too many and the node is to be drained. Never
    raises."""
    from slurm_share.core import log
    from slurm_share.core.errors import StateError
    from slurm_share.core.process import Deadline
    from slurm_share.share import ledger_file, refusals

    try:
        too_many = refusals.count(
            str(paths.refusals), ledger_file.read_boot_id(), job_id, cause, Deadline.after(COUNT_S)
        )
    except (OSError, StateError) as error:
        report(who, f"{error}: the refusal of job {job_id} is not counted")
        return True
    if too_many is not None:
        report(who, f"{log.UNWELL}: {too_many}, the last one job {job_id}")
    return too_many is None


def myself() -> ProcessIdentity:
    """Return the identity of this process, by which other hooks can check whether it is alive."""
    from slurm_share.core import process

    identity = process.identify(os.getpid())
    assert identity is not None, "a running process is there"
    return identity


def read_ledger(paths: Paths, who: str) -> Ledger:
    """Return the node's ledger. If its file is damaged, rebuild it from the plans on the node, and log that: no job has
    to wait until an administrator repairs the file."""
    from slurm_share.core.errors import StateError
    from slurm_share.share import ledger_file
    from slurm_share.share.rules import reconcile

    boot_id = ledger_file.read_boot_id()
    try:
        return ledger_file.read_ledger(paths, boot_id)
    except StateError as error:
        ledger = reconcile.rebuild(boot_id, ledger_file.read_plans(paths))
        jobs = ", ".join(str(entry.job_id) for entry in ledger.jobs) or "none"
        report(who, f"{error}; rebuilt from the plans of the jobs on the node ({jobs})")
        return ledger
