"""`slurm-share off` and `slurm-share on`: sharing switched off and on again, with one command and no restart."""

from __future__ import annotations

import argparse
import os
import stat
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core import config, names, process
from ..core.config import Configuration
from ..core.errors import CommandError, ConfigError, SlurmSilentError, UsageError
from ..core.paths import CONFIG_FILE
from ..install import files
from ..share import queue_verdicts, verdict_updates
from ..share.records import Switchable, VerdictUpdate
from ..share.rules import switch
from ..share.rules.verdict import MODES, Mode
from ..slurm import jobs as slurm_jobs

EXIT_NOT_ALL = 1
ROUNDS = 20
"""How often the queue is listed until no job of the earlier mode is left in it."""
SETTLE_S = 1.0
"""After this time a submission that was under way when config.toml was written is in the queue."""
MODE_FILE_S = 20.0


def add_to(commands: Any) -> None:
    """Add `off` and `on`."""
    for word, what in (("off", "switch sharing off on this host"), ("on", "take `slurm-share off` back on this host")):
        parser: argparse.ArgumentParser = commands.add_parser(
            word, help=f"{what}, or with --cluster everywhere; running jobs keep what they have"
        )
        parser.add_argument(
            "--cluster",
            action="store_true",
            help="on the controller: for the whole cluster, jobs that wait in the queue included",
        )
        parser.set_defaults(run=run_off if word == "off" else run_on)


def run_off(arguments: argparse.Namespace) -> int:
    """Switch sharing off. 1: done here, and not everywhere."""
    return _switch(off=True, cluster=arguments.cluster)


def run_on(arguments: argparse.Namespace) -> int:
    """Take that back. 1: done here, and not everywhere, or the site's own settings say off or observe."""
    return _switch(off=False, cluster=arguments.cluster)


def _switch(*, off: bool, cluster: bool) -> int:
    controllers = _controllers() if cluster else {}
    before = _load(off=off, cluster=cluster)
    after = _write(before, off=off)
    _say_modes(before, after, off=off)
    if not cluster:
        if off:
            print("jobs that run here keep what they have; jobs that come run unshared")
        return _code(after, off=off)
    others = [name for name in controllers if _short(name) != _here()]
    if others:
        print(
            f"other controllers: {', '.join(others)}. One whose config.toml is not this file has its old mode when it "
            f"takes over: run `slurm-share {_word(off)}` there as well"
        )
    problems = [*_other_serves(controllers, off=off), *_untold_nodes(after, off=off), *_write_mode_file(after, off=off)]
    _say_problems(problems)  # before squeue, which may not answer
    left = _change_jobs(after, off=off)
    _say_problems(left)
    return EXIT_NOT_ALL if problems or left else _code(after, off=off)


def _load(*, off: bool, cluster: bool) -> Configuration:
    """Raises ConfigError, with the way out, for a file that is not understood: no line is written into one."""
    try:
        return config.load()
    except ConfigError as error:
        again = f"`slurm-share {_word(off)}{' --cluster' if cluster else ''}`"
        emergency = '; or keep a copy, and make `mode = "off"` its only line' if off else ""
        raise ConfigError(
            error.file,
            f"{error.why}. Nothing is changed, and slurmctld goes on with what it last understood: mend the file "
            f"(`slurm-share config print` says what is wrong) and run {again}{emergency}",
            error.key,
        ) from error


def _word(off: bool) -> str:
    return "off" if off else "on"


def _say_problems(problems: Sequence[str]) -> None:
    for problem in problems:
        print(f"slurm-share: {problem}", file=sys.stderr)


def _code(after: Configuration, *, off: bool) -> int:
    return names.EXIT_OK if off or "on" in after.modes().values() else EXIT_NOT_ALL


def _short(host: str) -> str:
    return host.split(".")[0]


def _here() -> str:
    return _short(os.uname().nodename)


def _controllers() -> dict[str, bool]:
    """Return the controllers' hosts, and whether each answers. Raises UsageError on a host that is none, whose
    config.toml job_submit.lua does not read."""
    found = queue_verdicts.read_controllers()
    if found and _here() not in map(_short, found):
        raise UsageError(
            f"--cluster is for the host where slurmctld runs ({', '.join(found)}), and this is {_here()}; run it "
            "there, or leave --cluster away to switch this host alone"
        )
    return found


def _other_serves(controllers: Mapping[str, bool], *, off: bool) -> list[str]:
    """Say so where jobs to come get their verdict on another host: of several controllers the first that answers
    serves."""
    acting = next((name for name, is_up in controllers.items() if is_up), None)
    if acting is None or _short(acting) == _here():
        return []
    return [
        f"{acting} serves, and not {_here()}: jobs to come have the mode of its config.toml; run "
        f"`slurm-share {_word(off)} --cluster` there"
    ]


def _untold_nodes(after: Configuration, *, off: bool) -> list[str]:
    """Say so where nothing that is written on the controller reaches a node."""
    if after.settings.job_submit or after.settings.mode_file:
        return []
    return [
        "the nodes are not told: config.toml has job_submit = false, so that no job has a verdict, and no mode_file; "
        f"run `slurm-share {_word(off)}` on each node"
    ]


# ---- config.toml ----------------------------------------------------------------------------------------------------


def _write(before: Configuration, *, off: bool) -> Configuration:
    """Write the line, or take it out, and return what the file says then. Raises StateError where it cannot be written,
    UsageError where the line cannot be found."""
    file = Path(before.file or CONFIG_FILE)
    if before.settings.switched_off == off:
        return before
    try:
        old: bytes | None = file.read_bytes()
    except FileNotFoundError:
        old = None
    text = (old or b"").decode("utf-8")
    new = switch.switched_off(text) if off else switch.switched_on(text)
    if not _differs_in_that_alone(text, new, off=off):
        raise UsageError(
            f"{file}: write `switched_off = {str(off).lower()}` there by hand: it stands in no usual place"
        )
    files.replace(str(file), old, new.encode())
    return config.load()


def _differs_in_that_alone(old: str, new: str, *, off: bool) -> bool:
    before = tomllib.loads(old)
    try:
        after = tomllib.loads(new)
    except tomllib.TOMLDecodeError:
        return False  # the key is there in another form, such as in quotes
    return bool(after.get("switched_off")) == off and _others(before) == _others(after)


def _others(table: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key != "switched_off"}


def _say_modes(before: Configuration, after: Configuration, *, off: bool) -> None:
    file = before.file or CONFIG_FILE
    if before.settings.switched_off == off:
        print(f"{file}: nothing is changed, sharing {'is' if off else 'was not'} switched off by `slurm-share off`")
    elif off:
        print(f"{file}: switched_off = true; before: {_modes(before)}")
    else:
        print(f"{file}: switched_off is taken out; now again: {_modes(after)}")
    if not off and "on" not in after.modes().values():
        print(f'slurm-share: nothing is shared: {file} says so; write mode = "on" there', file=sys.stderr)


def _modes(configuration: Configuration) -> str:
    return ", ".join(
        f"mode {mode}" + (f" in partition {name}" if name else "") for name, mode in configuration.modes().items()
    )


# ---- The mode file --------------------------------------------------------------------------------------------------


def _write_mode_file(after: Configuration, *, off: bool) -> list[str]:
    """Write the site's word for all nodes where it has a file for that; return what went wrong."""
    path = after.settings.mode_file
    if not path:
        return []
    word = _word(off)
    answer = process.in_time(lambda: _put_word(path, word), MODE_FILE_S)
    if answer == b"":
        print(f"{path}: {word}, for every node that sees it")
        return []
    why = "no answer" if answer is None else answer.decode("utf-8", "replace")
    return [f"{path} cannot be written ({why}): nodes that see it have its old word until you write {word} there"]


def _put_word(path: str, word: str) -> bytes:
    """Write whole, beside and renamed: a hook may read at any moment. A link stays one. Return what went wrong."""
    path = os.path.realpath(path)
    part = f"{path}.slurm-share-{os.getpid()}"
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "w") as file:
            os.fchmod(file.fileno(), stat.S_IRUSR | stat.S_IWUSR | stat.S_IRGRP | stat.S_IROTH)
            file.write(f"{word}\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)  # noqa: PTH105
    except OSError as error:
        Path(part).unlink(missing_ok=True)
        return (error.strerror or "error").encode()
    return b""


# ---- The queue ------------------------------------------------------------------------------------------------------


def _change_jobs(after: Configuration, *, off: bool) -> list[str]:
    """Give the jobs of the queue their new verdict, list after list, until there is none of the old; return what went
    wrong. A job that was being submitted meanwhile is in a later list: there is one more after the first that is
    done."""
    again = f"run `slurm-share {_word(off)} --cluster` again"
    mode_of = _mode_of(after)

    def listed() -> tuple[tuple[Switchable, ...], tuple[VerdictUpdate, ...]]:
        found = queue_verdicts.read()
        return found, switch.updates(found, mode_of, off=off, field=after.settings.verdict_field)

    switched: set[str] = set()
    refused: list[str] = []
    try:
        jobs, changes = listed()
        for _ in range(ROUNDS):
            if not changes:
                time.sleep(SETTLE_S)
                jobs, changes = listed()
                if not changes:
                    break
            shared = {job.which for job in jobs if job.is_pending and (switch.shares(job) or not off)}
            is_slow, refused = False, []
            for change in changes:
                said, in_time = _change(change)
                is_slow = is_slow or not in_time
                if said is None:
                    switched |= shared.intersection(change.jobs)
                else:
                    refused.append(f"{', '.join(change.jobs)[:200]}: {said[:300]}")
            jobs, changes = listed()
            if is_slow and changes:
                break  # a minute for each: not all of them twenty times
    except CommandError as error:
        return [
            f"the queue is not done: {error}. Jobs that wait still have the verdict of before, and start with it: "
            f"{again} when slurmctld answers"
        ]
    _say_jobs(jobs, switched, off=off)
    if not changes:
        return []
    left = sum(_count(which) for change in changes for which in change.jobs)
    return [*refused, f"the queue is not done: {_number(left, 'job was', 'jobs were')} not changed; {again}"]


def _change(change: VerdictUpdate) -> tuple[str | None, bool]:
    """Return what scontrol said where it did not change all of these jobs, and whether it answered in time. Raises
    CommandError where no controller answers, or there is no scontrol."""
    try:
        check = slurm_jobs.patience(verdict_updates.argv(change))
        return verdict_updates.change(change, queue_verdicts.environment(), check), True
    except CommandError as error:
        if isinstance(error, SlurmSilentError) or isinstance(error.__cause__, OSError):
            raise
        return str(error), False


def _say_jobs(jobs: Sequence[Switchable], switched: set[str], *, off: bool) -> None:
    running = sum(not job.is_pending and switch.shares(job) for job in jobs)
    waiting = sum(_count(which) for which in switched)
    if off:
        print(f"{_number(running, 'job runs', 'jobs run')} shared, to the end: a requeued one is not shared any more")
        print(f"{_number(waiting, 'pending job', 'pending jobs')} will run unshared")
    else:
        print(f"{_number(waiting, 'pending job', 'pending jobs')} will share again")


def _count(which: str) -> int:
    """How many jobs an array's 7_[1-3,9,20-30:5] are."""
    found = 0
    for part in which.partition("[")[2].rstrip("]").split(","):
        first, _, rest = part.partition("-")
        last, _, step = rest.partition(":")
        if last.isdecimal() and first.isdecimal():
            found += len(range(int(first), int(last) + 1, int(step or 1)))
        else:
            found += 1
    return found


def _number(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _mode_of(configuration: Configuration) -> Callable[[Sequence[str]], Mode]:
    """As job_submit.lua: of several partitions the mode that does more."""

    def mode_of(partitions: Sequence[str]) -> Mode:
        return max((configuration.of(name).mode for name in partitions), key=MODES.index)

    return mode_of
