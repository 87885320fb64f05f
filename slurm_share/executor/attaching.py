"""Attach to a run that exists: read its calls and results, and submit it again if calls are left without a job."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any

from . import frames, run_folder, starting
from .dispatcher import own_place, process_start
from .errors import SubmissionFailed
from .exchange import Exchange, Future


def attach(folder: str) -> tuple[Exchange, dict[str, Future[Any]]]:
    """Return a further client of the run in a folder, and futures of its calls, by key. See `Executor.attach`."""
    parent = os.path.abspath(folder)
    path = f"{parent}/{run_folder.NAME}"
    config = read_config(parent, path)
    exchange = Exchange(path, starting.Job(path, most_workers=config.processes), config)
    exchange.restart = restart
    futures = read_calls(exchange)
    exchange.read_results()
    if exchange.futures:
        restart(exchange)
        exchange.begin_reading()
    else:
        exchange.needs_start = True
    return exchange, futures


def read_config(parent: str, path: str) -> run_folder.Config:
    """Return the configuration of an executor's run. Raises ValueError with the way out."""
    try:
        config = run_folder.read_config(path)
    except frames.NotOwnFile as error:
        raise ValueError(f"{parent} is not a run of yours: {error.strerror}") from error
    except FileNotFoundError as error:
        raise ValueError(f"{parent} is not the run of an executor: there is no {error.filename}") from error
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path}/{run_folder.CONFIG} cannot be read: {error}") from error
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if config.python != here:
        raise ValueError(
            f"the calls of {parent} were made by Python {config.python}, and this is Python {here}, which may not be "
            f"able to read them: use a Python {config.python}"
        )
    return config


def read_calls(exchange: Exchange) -> dict[str, Future[Any]]:
    """Return futures for all calls of a run, by key. Raises OSError, NotOwnFile."""
    futures: dict[str, Future[Any]] = {}
    for number in run_folder.clients(exchange.folder):
        cancelled: list[frames.Key] = []
        for kind, content, _ in frames.Reader(f"{exchange.folder}/{run_folder.CALLS}/{number}").read():
            if kind == frames.CALLS:
                for index in frames.call_indexes(content):
                    key = f"{number}.{index}"
                    if key not in futures:
                        future: Future[Any] = Future()
                        future.key, future._exchange, future._call = key, exchange, (number, index)
                        futures[key] = future
                        exchange.futures[number, index] = future
            elif kind == frames.CANCELLED:
                cancelled += frames.unpack_keys(content)
            elif kind == frames.OPENED and has_ended(json.loads(content)):
                exchange.file.append(frames.frame(frames.GONE, frames.pack_keys([(number, 0)])))
        for client, index in cancelled:
            found = exchange.futures.pop((client, index), None)
            if found is not None:
                found._exchange = None
                found.cancel()
                found.set_running_or_notify_cancel()
    return futures


def has_ended(process: dict[str, Any]) -> bool:
    """Return whether a client's process has ended, if it was one of this host."""
    return bool(process["place"] == own_place()) and process_start(int(process["pid"])) != process["start"]


def newest_job(parent: str) -> str:
    """Return the id of the newest job of a run; "": there is none."""
    try:
        with open(f"{parent}/jobs") as file:
            words = [line.split() for line in file]
    except OSError:
        return ""
    ids = [line[0] for line in words if line and run_folder.NUMBER.match(line[0])]
    return ids[-1] if ids else ""


def restart(exchange: Exchange) -> None:
    """Start workers for the calls that are left, unless there are some. Raises SubmissionFailed."""
    parent = os.path.dirname(exchange.folder)
    job = exchange.job
    if exchange.config.is_local:
        starting.start_workers(job)
        return
    job.id = newest_job(parent)
    if job.id and starting.job_ended(job.id) is None:
        return
    said = starting.run_program([starting.find_llsub(), "--resume", parent])
    found = re.search(r"^job (\d+)\b", said, re.MULTILINE)
    if found is None:
        raise SubmissionFailed(f"no further call can run in {parent} ({said}): make a new Executor")
    job.id = found[1]
