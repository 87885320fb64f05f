"""Write and publish the record of a job that has ended on this node: a process of root's that the Epilog starts.

It is no part of a hook: slurmd does not wait for it, its failure is a line in the log, and the kernel ends it after
LIMIT_S. Its steps are in such an order that killing it at any moment loses as little as possible:

1. the counters that the hooks noted, and the driver's accounting figures, into USAGE_RECORDS;
2. what the node's agent knows, merged into that file;
3. the short form into the job's SystemComment in slurmdbd (usage/comment.py), read back, and again where another node
   of the job wrote at the same time; with energy_tres the energy into its AllocTRES;
4. the short report at the end of the job's output, if the site wants it;
5. again 2 and 3 once the agent has taken its last sample of the job; records that earlier processes could not publish;
   records that are too old.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from ..core import nodelist, numbers
from ..core.errors import DriverError, StateError, UsageError
from ..core.paths import USAGE_RECORDS, Paths
from ..core.records import JobStart, Owner
from ..core.settings import Settings
from ..load import usage_of
from ..node.gpus import counters
from ..share import hook, slurm_commands, state
from ..slurm import accounts, node_plugin
from ..slurm.accounts import AccountedJob
from ..usage import JobUse, comment, counted, files, note
from ..usage.note import UseNote
from . import short_text
from .records import JobReport
from .rules import figures, merge, next_time

TYPE_CHECKING = False  # as mypy knows it
if TYPE_CHECKING:
    from typing import NoReturn

WHO = "record"
LIMIT_S = 90
"""Seconds after which SIGALRM ends this process, whatever it waits for."""
AGENT_S = 1.5
"""Seconds for which the agent's answer is waited for."""
COMMAND_S = 15.0
"""The most time for one command of Slurm's: slurmdbd can be slow."""
TRIES, PAUSE_S = 6, 1.0
"""Number of attempts to put a record into slurmdbd, and seconds between two: it may not know the job yet."""
SETTLE_S = (1.5, 4.0)
"""Seconds after which a record of a job of several nodes is looked for again: another node may have read the comment
before this one wrote it, and written it after."""
STAGGER_S = 0.25
"""Seconds between the first writings of two neighbouring nodes of a job."""
STALE_S = 3600.0
"""Age of a note, in seconds, from which on slurmctld is asked whether its job is still there."""
PENDING_MOST = 50
"""Most records of earlier jobs that are published again by one process."""
_PENDING = ".unpublished-"
_NO_DBD = "no accounts"


class _Row(Struct, frozen=True):
    """A job in slurmdbd."""

    id: str
    """As sacctmgr takes it: 4711, or 4711_3. An array's number alone would mean all of its elements."""
    has_ended: bool
    tres: str
    comment: str


def program(words: Sequence[str]) -> NoReturn:
    """Run for the job in `words`, and end. Whatever fails is a line in the hooks' log."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.alarm(LIMIT_S)
    hook.set_up()
    settings = hook.load_settings_or_defaults(WHO)
    job = numbers.whole(words[0] if words else "", numbers.UINT32_MOST)
    try:
        if job is not None:
            AfterEnd(settings, dict(os.environ)).work(job)
    except Exception as error:  # noqa: BLE001  (nobody else would say it)
        hook.report(WHO, f"job {job}: {hook.explain(error)}")
    os._exit(0)


class AfterEnd:
    """The work after the end of one job on this node."""

    def __init__(
        self,
        settings: Settings,
        environ: Mapping[str, str],
        paths: Paths | None = None,
        folder: Path = USAGE_RECORDS,
    ) -> None:
        self.settings = settings
        self.environ = environ
        self.paths = Paths() if paths is None else paths
        self.folder = folder
        conf = environ.get("SLURM_CONF", "")
        self.has_accounts = "slurmdbd" in node_plugin.read_value(conf, "AccountingStorageType")
        self._id = ""
        """The job as sacct and sacctmgr take it."""

    def say(self, text: str) -> None:
        """Write a line to the hooks' log."""
        hook.report(WHO, text)

    def work(self, job: int) -> None:
        """Do all steps for the job whose note the Epilog has completed. Raises StateError for a damaged note."""
        noted = note.read(note.folder_of(self.paths.root) / str(job))
        if noted is None or noted.ended is None:
            return  # another process has done it, or the job runs again
        use = counted.job_use(noted)
        self.keep(use, is_pending=True)
        self.drop(noted)
        use = counted.with_accounted(use, self.read_accounted(noted, use))
        later, is_final = self.with_agent(use)
        whole = later
        self.keep(whole, is_pending=True)
        is_published = self.publish(whole, noted)
        if self.settings.report == "all" or (self.settings.report == "share" and noted.share is not None):
            self.print_report(whole, noted)
        if not is_final:
            time.sleep(self.settings.agent_interval_s + 0.5)
            later, _ = self.with_agent(use)
            if later != whole:
                self.keep(later, is_pending=True)
                is_published = self.publish(later, noted)
        if is_published:
            self.settle(later)
            self.publish_pending()
        self.take_over()
        self.prune()
        self.drop_stale(noted.node)

    # ---- 1, 2: the node's own file ----

    def keep(self, use: JobUse, *, is_pending: bool) -> None:
        """Write the record into its file, which root and the job's user can read. `is_pending`: it is not in slurmdbd
        yet."""
        try:
            self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            if is_pending:
                self._pending(use.job, use.restarts).touch(mode=0o600)
            state.write_for_user(self.folder / files.use_name(_start(use)), files.encode(use), use.uid)
        except OSError as error:
            self.say(f"job {use.job}: {hook.explain(error)}: the record of what it used is only in slurmdbd")

    def drop(self, noted: UseNote) -> None:
        """Remove the note, unless a new start of the job has written another one."""
        try:
            now = note.read(note.folder_of(self.paths.root) / str(noted.job))
            if now is not None and now.began == noted.began:
                note.remove(noted.job, self.paths.root)
        except (OSError, StateError) as error:
            self.say(f"job {noted.job}: {hook.explain(error)}: the note about its GPUs stays")

    def read_accounted(self, noted: UseNote, use: JobUse) -> dict[str, tuple[counters.AccountedProcess, ...] | str]:
        """Return what the driver's accounting mode kept of each GPU; empty: the site does not want it."""
        if not self.settings.gpu_accounting:
            return {}
        found: dict[str, tuple[counters.AccountedProcess, ...] | str] = {}
        for gpu in use.gpus:
            try:
                found[gpu.uuid] = counters.read_accounted(gpu.uuid, noted.began)
            except DriverError as error:
                found[gpu.uuid] = error.reason
        return found

    def with_agent(self, use: JobUse) -> tuple[JobUse, bool]:
        """Return the record with what the node's agent knows, and whether the agent has taken its last sample of the
        job. The exact difference of a counter comes before the agent's sum of samples."""
        asked, _, _ = usage_of(use.job, (), self.settings, AGENT_S)
        key = (use.job, use.restarts or 0, use.node)
        mine = [one for one in asked if (one.job, one.restarts or 0, one.node) == key and one.uid == use.uid]
        if not mine:
            return use, True
        (whole,) = merge.merged([[use], mine])
        return whole, all(one.ended is not None for one in mine)

    def prune(self) -> None:
        """Remove records that are older than usage_days, and the oldest that take more than usage_mib together."""
        files.prune(self.folder, days=self.settings.usage_days, mib=self.settings.usage_mib)

    def take_over(self) -> None:
        """Keep the records of jobs whose own process was killed before it had read their note. A later process
        publishes them."""
        for file in note.folder_of(self.paths.root).glob("[0-9]*"):
            try:
                if numbers.whole(file.name) is None or time.time() - file.stat().st_mtime <= 2 * LIMIT_S:
                    continue
                noted = note.read(file)
            except (OSError, StateError):
                continue
            if noted is not None and noted.ended is not None:
                self.keep(counted.job_use(noted), is_pending=True)
                self.drop(noted)

    def drop_stale(self, node: str) -> None:
        """Remove notes of jobs that slurmctld does not have on this node any more: their Epilog was killed. Another job
        would take them for neighbours on its GPU."""
        folder, old = note.folder_of(self.paths.root), []
        try:
            for one in os.scandir(folder):
                if numbers.whole(one.name) is not None and time.time() - one.stat().st_mtime > STALE_S:
                    old.append(one.name)
        except OSError:
            return
        if not old:
            return
        done = slurm_commands.run(
            self.environ, "squeue", "-h", "-t", "all", "-o", "%A", "-w", node, timeout_s=COMMAND_S
        )
        if done is None or done.code != 0:
            return
        here = set(done.stdout.split())
        for job in old:
            if job not in here:
                note.remove(int(job), self.paths.root)

    # ---- 3: slurmdbd ----

    def publish(self, use: JobUse, noted: UseNote | None) -> bool:
        """Put the record's short form into the job's SystemComment; return whether it is there. Says why not."""
        place, nodes = _place(noted)
        if nodes > comment.MOST_NODES and place > 0:
            self.done(use)
            return False  # only the first node's: accounting.md says so
        time.sleep(STAGGER_S * place)
        why = self._put(use)
        if nodes > 1 and not why:
            for pause in SETTLE_S:
                time.sleep(pause * random.uniform(0.8, 1.2))
                why = self._put(use)
        if why == _NO_DBD:
            self.done(use)
            return False
        if why:
            self.say(f"job {use.job}: {why}: what it used is only in {self.folder} of {use.node} for now")
            return False
        if self.settings.energy_tres and place == 0:
            self.set_energy(use)
        self.done(use)
        return True

    def done(self, use: JobUse) -> None:
        """Record that nothing is left to be published."""
        self._pending(use.job, use.restarts).unlink(missing_ok=True)

    def _put(self, use: JobUse) -> str:
        """Put a record into the comment and read it back; return why that was not possible, empty if it is there."""
        if not self.has_accounts:
            return _NO_DBD
        why = ""
        for number in range(TRIES):
            if number:
                time.sleep(PAUSE_S * random.uniform(0.5, 1.5))
            row = self._row(use.job)
            if isinstance(row, str):
                why = row
                continue
            refused = comment.why_not(row.comment, [use])
            if refused:
                return f"its SystemComment is left as it is: {refused}"
            wanted = comment.put(row.comment, [use])
            if wanted == row.comment:
                return ""
            why = self._modify(row.id, f"systemcomment={wanted}") or "slurmdbd does not keep its SystemComment"
        return why

    def _row(self, job: int) -> _Row | str:
        """Return the job's last start in slurmdbd, or why it is not known."""
        if not self._id:
            # By its number all elements of an array may be found, so their comments are not asked for here.
            found = self._sacct(str(job), ("JobID", "JobIDRaw"))
            if isinstance(found, str):
                return found
            self._id = next((name for name, number in found if number == str(job)), "")
            if not self._id:
                return "slurmdbd does not know the job yet"
            if "+" in self._id:
                self._id = str(job)  # a part of a heterogeneous job
        found = self._sacct(self._id, ("JobIDRaw", "End", "AllocTRES", "SystemComment"))
        if isinstance(found, str):
            return found
        for number, end, tres, text in found:
            if number == str(job):
                return _Row(self._id, end != "Unknown", tres, text)
        return "slurmdbd does not know the job yet"

    def _sacct(self, job: str, fields: Sequence[str]) -> list[list[str]] | str:
        """Return these fields of the jobs with that number, or why they are not known. Any text can be in a field."""
        delimiter = os.urandom(8).hex()
        argv = ["-X", "-n", "-p", f"--delimiter={delimiter}", "-j", job, "-o", ",".join(fields)]
        done = slurm_commands.run(self.environ, "sacct", *argv, timeout_s=COMMAND_S)
        if done is None:
            return "sacct does not answer"
        if done.code != 0:
            return f"sacct: {_line(done.stderr)}"
        values = done.stdout.split(delimiter)
        rows = [values[at : at + len(fields)] for at in range(0, len(values) - len(fields), len(fields))]
        return [[first.removeprefix("\n"), *rest] for first, *rest in rows]

    def _modify(self, job: str, change: str) -> str:
        """Change a job in slurmdbd; return why that failed, empty if it did not."""
        argv = ["-i", "modify", "job", "where", f"jobid={job}", "set", change]
        done = slurm_commands.run(self.environ, "sacctmgr", *argv, timeout_s=COMMAND_S)
        if done is None:
            return "sacctmgr does not answer"
        return "" if done.code == 0 else f"sacctmgr: {_line(done.stderr or done.stdout)}"

    def set_energy(self, use: JobUse) -> None:
        """Write the energy of the job's GPUs, of all nodes in its comment, into its AllocTRES, if nobody else has."""
        row = self._row(use.job) if self._await_end(use.job) else ""
        if isinstance(row, str):
            self.say(f"job {use.job}: slurmdbd does not have its end: its energy is not in AllocTRES")
            return
        joules = energy_of(comment.decode(row.comment).uses)
        if joules is None or _has_energy(row.tres):
            return
        why = self._modify(row.id, f"tres=energy={joules}")
        if why:
            self.say(f"job {use.job}: its energy is not in AllocTRES: {why} (energy_tres needs Slurm 25.11)")

    def settle(self, use: JobUse) -> None:
        """Wait until slurmctld has sent the job's end, and put the record there again if it is gone: what a burst
        buffer has written into SystemComment comes with the end."""
        if self._await_end(use.job):
            self._put(use)

    def publish_pending(self) -> None:
        """Publish records that earlier processes could not, the newest first: they were killed, or had no slurmdbd."""
        now, found = time.time(), []
        for file in self.folder.glob(f"{_PENDING}*"):
            try:
                age_s = now - file.stat().st_mtime
            except OSError:
                continue
            if age_s > 2 * LIMIT_S:
                found.append((age_s, file))
        for _, file in sorted(found)[:PENDING_MOST]:
            name = file.name.removeprefix(_PENDING)
            try:
                use = files.read(self.folder / f"use-{name}.json", JobUse)
            except StateError:
                use = None
            self._id = ""
            why = "" if use is None else self._put(use)
            if why:
                break
            file.unlink(missing_ok=True)

    def _pending(self, job: int, restarts: int | None) -> Path:
        return self.folder / f"{_PENDING}{JobStart(job, restarts or 0)}"

    # ---- 4: the job's output ----

    def print_report(self, use: JobUse, noted: UseNote) -> None:
        """Print the short report at the end of the job's output, as its user: on the first node of a job with a script.

        Of other nodes it has what they have published; those that have not are counted. It makes no file, follows no
        link and waits for no reader (`slurm_commands.write_output`).
        """
        place, nodes = _place(noted)
        if not noted.is_batch or place > 0:
            return
        self._await_end(use.job)
        uses = [use]
        if nodes > 1:
            row = self._row(use.job)
            if not isinstance(row, str):
                mine = [one for one in comment.decode(row.comment).uses if one.restarts == use.restarts]
                uses = list(comment.merge(mine, [use]))
        starts = tuple(one for one in self._starts(use.job) if (one.restarts or 0) == (use.restarts or 0))
        report = JobReport(title=self._id or str(use.job), starts=starts, uses=tuple(uses), now=time.time())
        then = next_time.NextTime(requests=next_time.requests(report, figures.figures(report)))
        said = short_text.lines(report, next_time.short_lines(then))
        silent = nodes - len(uses)
        if silent > 0:
            said.insert(-1, f"  {'nodes':<11} {silent} of {nodes} have told nothing yet")
        known = slurm_commands.show(use.job, self.environ)
        if known is not None and not known.is_run:  # the launcher of a run prints it
            slurm_commands.write_output(known, Owner(noted.uid, noted.gid), "\n".join(said), may_make=False)

    def _await_end(self, job: int) -> bool:
        """Wait until slurmctld has sent the job's end to slurmdbd; return whether it has."""
        for number in range(TRIES if self.has_accounts else 0):
            row = self._row(job)
            if not isinstance(row, str) and row.has_ended:
                return True
            time.sleep(PAUSE_S * (number + 1) / 2)
        return False

    def _starts(self, job: int) -> tuple[AccountedJob, ...]:
        delimiter = os.urandom(8).hex()
        name, *argv = accounts.argv(delimiter, jobs=[self._id or str(job)])
        done = slurm_commands.run(self.environ, name, *argv, timeout_s=COMMAND_S)
        found = () if done is None or done.code != 0 else accounts.parse(done.stdout, delimiter)
        return tuple(one for one in found if one.job == job)


def energy_of(uses: Sequence[JobUse]) -> int | None:
    """Return the energy of all GPUs of a job in joules; None: that of a GPU is not known, or it has none."""
    charged = [gpu.energy for use in uses for gpu in use.gpus]
    found = [one.joules for one in charged if one is not None]
    return round(sum(found)) if found and len(found) == len(charged) else None


def _has_energy(tres: str) -> bool:
    return any(one.startswith("energy=") and one != "energy=0" for one in tres.split(","))


def _place(noted: UseNote | None) -> tuple[int, int]:
    """Return the place of this node among those of the job, and their number."""
    if noted is None or noted.nodes in (None, 1) or not noted.node_list:
        return 0, 1
    try:
        every = list(nodelist.unfold(noted.node_list))
    except UsageError:
        return 0, 1
    return (every.index(noted.node) if noted.node in every else 0), max(len(every), noted.nodes or 1)


def _start(use: JobUse) -> JobStart:
    return JobStart(use.job, use.restarts or 0)


def _line(text: str) -> str:
    return " ".join(text.split())[:200]
