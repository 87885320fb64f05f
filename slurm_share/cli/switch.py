"""`slurm-share off` and `slurm-share on`: switch sharing off and on again without a restart."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core import config, names
from ..core.errors import CommandError, ConfigError, StateError, UsageError
from ..core.paths import CONFIG_FILE
from ..core.settings import Configuration
from ..install import write_lua_settings, write_switched_off
from ..share import QueueSwitched, lua_settings, mode_file, queue_verdicts, switch
from ..slurm.controllers import read_controllers, short_name

EXIT_INCOMPLETE = 1


def add_to(commands: Any) -> None:
    """Add the sub-commands `off` and `on`."""
    for command, what in (("off", "switch sharing off on this host"), ("on", "undo `slurm-share off` on this host")):
        parser: argparse.ArgumentParser = commands.add_parser(
            command, help=f"{what}, or with --cluster on all hosts; running jobs keep their shares"
        )
        parser.add_argument(
            "--cluster", action="store_true", help="on the controller: for the whole cluster, including pending jobs"
        )
        parser.set_defaults(run=run, off=command == "off")


def run(arguments: argparse.Namespace) -> int:
    """Switch sharing off or on again. Return 1 if not done everywhere, or after `on` if the site's settings say off or
    observe."""
    off, cluster = arguments.off, arguments.cluster
    controllers = _controllers() if cluster else {}
    before = _load(off=off, cluster=cluster)
    after = write_switched_off(before, off=off)
    _say_modes(before, after, off=off)
    unwritten = _write_lua(after, off=off, is_controller=cluster)
    if not cluster:
        _say_problems(unwritten)
        if off:
            print("jobs that run here keep what they have; jobs that come run unshared")
        return EXIT_INCOMPLETE if unwritten else _code(after, off=off)
    others = [name for name in controllers if short_name(name) != _here()]
    if others:
        print(
            f"other controllers: {', '.join(others)}. One whose config.toml is not this file has its old mode when it "
            f"takes over: run `slurm-share {_mode(off)}` there as well"
        )
    problems = [
        *unwritten,
        *_other_serves(controllers, off=off),
        *_untold_nodes(after, off=off),
        *_write_mode_file(after, off=off),
    ]
    _say_problems(problems)  # first, because squeue may not answer
    left = _change_jobs(after, off=off)
    _say_problems(left)
    return EXIT_INCOMPLETE if problems or left else _code(after, off=off)


def _load(*, off: bool, cluster: bool) -> Configuration:
    """Return the configuration. Raises ConfigError with a remedy for a file with mistakes, which is never edited."""
    try:
        return config.load()
    except ConfigError as error:
        again = f"`slurm-share {_mode(off)}{' --cluster' if cluster else ''}`"
        emergency = '; or keep a copy, and make `mode = "off"` its only line' if off else ""
        raise ConfigError(
            error.file,
            f"{error.why}. Nothing is changed; job_submit.lua treats a config.toml that has changed as off. Mend the "
            f"file (`slurm-share config print` says what is wrong) and run {again}{emergency}",
            error.key,
        ) from error


def _write_lua(after: Configuration, *, off: bool, is_controller: bool) -> list[str]:
    """Write the settings for job_submit.lua, where it reads them; return what went wrong. Without them it treats
    sharing as switched off."""
    file = Path(after.file or CONFIG_FILE)
    if not is_controller and not file.with_name(lua_settings.NAME).exists():
        return []
    try:
        write_lua_settings(file)
    except StateError as error:
        what = "sharing is switched off all the same" if off else "sharing stays switched off"
        return [f"{error}. {what}; run `{lua_settings.COMMAND}` when that is settled"]
    return []


def _mode(off: bool) -> str:
    return "off" if off else "on"


def _say_problems(problems: Sequence[str]) -> None:
    for problem in problems:
        print(f"slurm-share: {problem}", file=sys.stderr)


def _code(after: Configuration, *, off: bool) -> int:
    return names.EXIT_OK if off or "on" in after.modes().values() else EXIT_INCOMPLETE


def _here() -> str:
    return short_name(os.uname().nodename)


def _controllers() -> dict[str, bool]:
    """Return the controllers' hosts, and whether each answers. Raises UsageError on any other host: job_submit.lua
    does not read its config.toml."""
    found = read_controllers(queue_verdicts.environment())
    if found and _here() not in map(short_name, found):
        raise UsageError(
            f"--cluster is for the host where slurmctld runs ({', '.join(found)}), and this is {_here()}; run it "
            "there, or leave --cluster away to switch this host alone"
        )
    return found


def _other_serves(controllers: Mapping[str, bool], *, off: bool) -> list[str]:
    """Return a problem if another host gives new jobs their verdict: the first controller that answers serves."""
    acting = switch.acting(controllers)
    if acting is None or short_name(acting) == _here():
        return []
    return [
        f"{acting} serves, and not {_here()}: jobs to come have the mode of its config.toml; run "
        f"`slurm-share {_mode(off)} --cluster` there"
    ]


def _untold_nodes(after: Configuration, *, off: bool) -> list[str]:
    """Return a problem for nodes that nothing written on the controller reaches."""
    if switch.reaches_nodes(after.settings):
        return []
    return [
        "the nodes are not told: config.toml has job_submit = false, so that no job has a verdict, and no mode_file; "
        f"run `slurm-share {_mode(off)}` on each node"
    ]


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


def _write_mode_file(after: Configuration, *, off: bool) -> list[str]:
    """Write the mode into the site's mode file, if it has one; return the problems."""
    path, mode = after.settings.mode_file, _mode(off)
    if not path:
        return []
    why = mode_file.write(path, mode)
    if why is None:
        print(f"{path}: {mode}, for every node that sees it")
        return []
    return [f"{path} cannot be written ({why}): nodes that see it have its old word until you write {mode} there"]


def _change_jobs(after: Configuration, *, off: bool) -> list[str]:
    """Give the pending jobs their new verdict; return the problems."""
    again = f"run `slurm-share {_mode(off)} --cluster` again"
    try:
        done = queue_verdicts.switch_all(after, off=off)
    except CommandError as error:
        return [
            f"the queue is not done: {error}. Jobs that wait still have the verdict of before, and start with it: "
            f"{again} when slurmctld answers"
        ]
    _say_jobs(done, off=off)
    if not done.left:
        return []
    return [*done.refused, f"the queue is not done: {_number(done.left, 'job was', 'jobs were')} not changed; {again}"]


def _say_jobs(done: QueueSwitched, *, off: bool) -> None:
    waiting = _number(done.waiting, "pending job", "pending jobs")
    if off:
        running = _number(done.running, "job runs", "jobs run")
        print(f"{running} shared, to the end: a requeued one is not shared any more")
        print(f"{waiting} will run unshared")
    else:
        print(f"{waiting} will share again")


def _number(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
