"""Targets: what the folders of runs, launchers' files and the options of llsub and llmapreduce have in them."""

from __future__ import annotations

import argparse
import functools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from target import Target, each, is_line, may_refuse, text

from slurm_share import progress
from slurm_share.cli import llmapreduce_options, llsub_options
from slurm_share.core import given_variables, gpu_option, names, own_folders
from slurm_share.core.errors import SlurmShareError, UsageError
from slurm_share.core.live import LiveFolder
from slurm_share.core.records import JobStart
from slurm_share.lab import model_file, policies, probe
from slurm_share.packing import (
    NodeRates,
    TaskSpec,
    events,
    fingerprint,
    history,
)
from slurm_share.packing import bookings as bookings_files
from slurm_share.packing.rules import explain, log_messages
from slurm_share.packing.rules import fingerprint as commands
from slurm_share.share import leases
from slurm_share.triples import failed_tasks, rates_file, result_files, run_folder
from slurm_share.triples.launcher import rates
from slurm_share.triples.records import Ended, Run
from slurm_share.triples.rules import (
    checkpoint,
    failing,
    log_counts,
    mapreduce,
    pack_options,
    submission,
    task_files,
    triple,
)

UID = os.getuid()
NOW_S = 1795271400.0


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as root:
        yield Path(root)


def try_run_folder(data: bytes) -> None:
    """Read every file of a run's folder; the files are separated by form feeds, in the order of FILES."""
    with folder() as place:
        (place / "logs/p0-p1_n1").mkdir(parents=True)
        for name, part in zip(FILES, data.split(b"\f"), strict=False):
            (place / name).write_bytes(part)
            (place / name).chmod(0o600)
        for read in (
            run_folder.read_jobs,
            run_folder.read_tasks,
            run_folder.read_environment,
        ):
            with may_refuse(SlurmShareError):
                read(place)
        with may_refuse(SlurmShareError):
            run = run_folder.read_run(place)
            if run.tasks > 10_000:
                return  # each takes its byte
            _read_of(place, run)


def _read_of(place: Path, run: Run) -> None:
    """Read what depends on the run."""

    def account() -> None:
        _, found = failed_tasks.read_account(place)
        failed_tasks.lines_of(place, run, found)
        failed_tasks.bare_lines(place, run, found)

    for read in (
        lambda: run_folder.read_specs(place, run),
        lambda: run_folder.scheduler_command(place, run),
        lambda: run_folder.read_exit_code(place, run),
        lambda: events.ProgressReader(place / run.log_folder).read(),
        lambda: events.SizeReader(place / run.log_folder / "p2-p3_n2").read(0.0),
        lambda: result_files.read_done(place, run),
        lambda: result_files.read_before(place, run),
        lambda: failed_tasks.saved_text(place),
        lambda: list(failed_tasks.read_log(place, run, 0)),
        account,
    ):
        with may_refuse(SlurmShareError):
            read()


def try_events(data: bytes) -> None:
    list(explain.explain_task(list(events.read_decisions(data)), 0))
    list(events.read_groups(data))


def try_launcher_files(data: bytes) -> None:
    """Read a launcher's bookings and rates, as the agent and other launchers do."""
    with folder() as tmp:
        mine, other = LiveFolder(tmp, "1"), LiveFolder(tmp, "2")
        booked = bookings_files.Bookings(mine, "1", ["GPU-1"])
        for name in (bookings_files.BOOKINGS, rates_file.RATES):
            other.replace(name, data)
        assert set(bookings_files.read_bookings(tmp, UID, ["GPU-1"])) <= {"GPU-1"}
        for one in rates_file.read_rates(tmp, [UID]).values():
            assert len(one) == 1
        with booked.section():
            booked.others()
        booked.close()
        for one in (mine, other):
            one.close()


def try_histories(data: bytes) -> None:
    with folder() as place:
        for name in ("2026-11.jsonl", "site.jsonl"):
            (place / name).write_bytes(data)
        for sentence in history.read_history(place, now=NOW_S).notes:
            is_line(sentence)
        history.read_site(str(place))


def try_described(data: bytes) -> None:
    """Read the description of a model next to its script."""
    with folder() as place:
        (place / "train.py").write_text("")
        (place / f"train{model_file.END}").write_bytes(data)
        key = fingerprint.key_of(["python", "train.py"], place)
        is_line(model_file.read_description(["python", "train.py"], place, key).why)


def try_log(data: bytes) -> None:
    """Read the end of a task's log."""
    found = log_messages.find_messages(data)
    for sentence in msgspec.structs.astuple(found):
        assert isinstance(sentence, bool) or sentence.isprintable() or not sentence
    log_messages.asked_mib(data)
    log_messages.wanted_mib(data, 7)
    rates.parse_number(data)
    progress._number(data[:40])
    probe._read(text(data), 1.0)


def try_record(data: bytes) -> None:
    """Read the record of what slurm-share set, between variables that end with a NUL."""
    environ = dict(word.split("=", 1) for word in text(data).split("\0") if "=" in word)
    given_variables.recorded_job(environ)
    kept = given_variables.forget(environ, 4711)
    assert set(kept) <= set(environ)


def try_holding(data: bytes) -> None:
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        file.write(data)
        file.flush()
        leases._has_living_task(file.fileno())


def try_command(data: bytes) -> None:
    argv = [word for word in text(data).split("\n") if "\0" not in word] or ["x"]
    with folder() as place:
        for command in (argv, ["bash", "-c", text(data)]):
            assert commands.take_apart(command) == commands.take_apart(command)
            fingerprint.key_of(command, place, run_folder=place, kept=place / "kept")
    for read in (
        lambda: submission.split_arguments(argv),
        lambda: submission.parse_options(argv, "here"),
        lambda: submission.parse_directives(argv),
        lambda: task_files.parse_lines(data, "a file"),
        lambda: mapreduce.words("--x", text(data)),
    ):
        with may_refuse(UsageError):
            read()


FILES = (
    *(run_folder.RUN, run_folder.JOBS, run_folder.TASKS, run_folder.ENVIRONMENT),
    run_folder.SPECS,
    *(f"logs/p0-p1_n1/{name}" for name in (run_folder.RESULTS, events.EVENTS, "x.log.0")),
)
_encode = msgspec.json.encode
_RUN = Run(name="x", command=("/bin/x",), cwd="/home/alice", triple=None, processes=2, tasks=2, log_folder="logs")
_ENDED = Ended(task=0, rank=0, attempt=1, outcome="failed", node="n1", job="4711", started=NOW_S, seconds=1.5)
_PROGRESS = events.Progress(
    node="n1",
    job="4711.2",
    processes=2,
    running=1,
    done=0,
    failed=1,
    left=0,
    at=NOW_S,
    waits=(events.RankWait(rank=1, what="receive", since=NOW_S),),
)
_FOLDERS = tuple(
    b"\f".join(
        (
            run_folder.render_run(run),
            b"4711\n4712 later\n",
            b"echo a\necho b\n",
            b"HOME=/home/alice\0A=b\0",
            _encode(TaskSpec()) + b"\n" + _encode(TaskSpec(gpu_mem_mib=512)) + b"\n",
            run_folder.render_ended(_ENDED) + run_folder.render_ended(msgspec.structs.replace(_ENDED, task=1)),
            _encode(_PROGRESS) + b"\n" + _encode(events.NodeSize(peak_mib=5, age_s=1.0)) + b"\n",
            b"--- task 0\nTraceback\n",
        )
    )
    for run in (_RUN, msgspec.structs.replace(_RUN, kind="llmapreduce", task_kind="command"))
)
_EVENTS = (
    b'{"event":"decision","view":{"t":0,"v":{"usable_mib":7}},"begin":{"job":"4711","unix_s":1795271308.0}}\n'
    b'{"event":"decision","view":{"t":1.5,"gone":[0]}}\n{"event":"repeat","t":2,"ended":0,"started":1}\n'
    b'{"event":"group","gpu":0,"tasks":[0,1],"from_s":1,"seconds":2,"windows":3,"stp":1.5,"error":0.1,"delta":null,'
    b'"slowdowns":[1.0,1.1]}\n',
)
_LAUNCHERS = (
    b'{"GPU-1":{"booked_mib":512,"clients":1,"tasks":1,"held_for":7,"held_since":1795271308.0,"job":"4711.1"}}',
    _encode(NodeRates(job="4711", unix_s=NOW_S)),
)
_HISTORIES = (
    b'{"version":1,"when":1795271308.0,"kind":"done","seconds":7.5,"peak_mib":512,"family":"x","exact":"y"}\n',
    b'{"version":1,"when":1795271308.0,"a":"x","b":"y","family_a":"x","family_b":"y","gpu_model":"H100","sharing":"mps",'
    b'"slowdown_a":1.1,"slowdown_b":1.2,"stp":1.7,"stp_error":0.1,"windows":3}\n',
    b'{"version":1,"family":"x","gpu_model":"H100","runs":3,"p90_mib":512,"ratio":1.2,"peak_mib":7,"age_s":1}\n',
)
_LOGS = (
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB "
    b"of which 1.2 GiB is free. Process 1 has 3 GiB; this process has 70.25 GiB memory in use.\n",
    b"RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4294967296 bytes\n12.5\n",
    b"cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 1,073,741,824 bytes\n1048576 2\n",
)
_OPTIONS = each(
    (
        checkpoint.parse,
        checkpoint._signal_of,
        functools.partial(failing.parse_max_failures, tasks=7),
        functools.partial(log_counts.parse_pattern, option="--progress"),
        functools.partial(log_counts.parse_window, option="--window"),
        log_counts.amount_of,
        functools.partial(pack_options.parse_name, option="--name"),
        functools.partial(llmapreduce_options._count, "--np"),
        functools.partial(llmapreduce_options._boolean, "--x"),
        llmapreduce_options._slots_type,
        gpu_option.parse_gpus,
        llsub_options.positive,
        policies.parse,
        functools.partial(policies.mib, "--x"),
        functools.partial(triple.parse, may_be_auto=False),
        JobStart.parse,
        own_folders.file_name,
    ),
    UsageError,
    argparse.ArgumentTypeError,
)

_RECORD = f"{names.ENV_GIVEN}=4711 A=%41 LLSUB_X\0A=A\0".encode()

TARGETS = (
    Target("folder of a run", "everybody", _FOLDERS, try_run_folder, short=100),
    Target("events of a launcher", "everybody", _EVENTS, try_events),
    Target("bookings and rates", "slurm-share", _LAUNCHERS, try_launcher_files, short=200),
    Target("histories of tasks", "everybody", _HISTORIES, try_histories, short=200),
    Target("description of a model", "everybody", (b'{"parameters":7e6,"activations":1e6,"batch":32}',), try_described),
    Target("logs of tasks", "everybody", _LOGS, try_log),
    Target("record of variables", "everybody", (_RECORD,), try_record),
    Target("slot's file", "everybody", (b"step 0 holder 10 11 task 12 13\n",), try_holding),
    Target("commands of tasks", "everybody", (b"python\n-m\nx\n--lr=1e-3\nepochs=7", b"--gres=gpu:1\n-N2\n[2,4,1]"),
           try_command),
    Target("options of runs", "everybody", (b"USR1@120", b"7%", b"step (\\d+)", b"30.5", b"volta:2", b"0.75", b"4711.2",
           b"mine,book,smact_max=0.8", b"5G"), _OPTIONS),
)  # fmt: skip
