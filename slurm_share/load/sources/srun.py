"""The source for ordinary users: samplers as steps of their own jobs, started by srun. The nodes need only this
package, users see only their own load, and Slurm is asked once: a step runs until it is closed.

A step overlaps with the job's other steps and takes nothing from them: no slot of a share (SLURM_SHARE_SLOT=none), no
CPU, no memory but the job's. It requests the job's GPUs, because under ConstrainDevices it would see none otherwise. If
the job's memory is full, the kernel ends the sampler first. The sampler ends when its standard input ends. If srun or
this host dies, slurmstepd keeps that open, and the sampler ends after SILENCE_S without input.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ...core import nodelist
from ...core.errors import CommandError, StateError, UsageError, shown
from ...core.process import Deadline, Stream, stream
from ...core.text import counted
from ...slurm.records import QueuedJob
from .. import snapshot
from ..rules import steps
from ..rules.merge import merge
from ..rules.steps import SurveyStep
from ..snapshot import Snapshot, SourceName
from . import srun_command
from .base import Source, SourceAnswer, SourceRequest
from .frames import Joiner
from .srun_command import CANCELLED, MEMORY_FULL, SILENCE_S, WAITS, srun_argv, srun_environment, why_ended

STEPS_MAX = 64
"""Most steps at the same time: each is an srun on this host and a step in slurmctld. A user with more jobs can name
nodes, or use one of the sources for operators."""
TRY_AGAIN_S = 60.0
"""Seconds before a failed step is tried again, so that slurmctld is not asked at every survey."""
START_S = 30.0
"""Seconds of silence after which a node of a new step counts as lost."""
OTHER_JOBS_TRIED = 3
"""Number of jobs on a node in which no step could be started, after which the node is not tried for TRY_AGAIN_S."""
STOP_S = 3.0
"""Seconds for the steps to end by themselves and by SIGTERM. A sampler ends some 50 ms after its input; one whose srun
was killed ends after SILENCE_S."""
LOST_STOP_S = 1.0
"""STOP_S for a step that has lost a node. Less than the time that the dashboard gives its process to end."""
_BEATS = 6
"""Number of times that we write to a sampler's input in SILENCE_S."""
PROGRAM = (sys.executable, "-I", "-m", "slurm_share.cli.main")


class _Failed(Struct, frozen=True):
    """A step that ended or could not be started."""

    at: float
    """Time of the failure on our monotonic clock."""
    why: str
    ran: bool
    """True: the sampler itself ended, for a reason that is not the job's, so that another job's would end as well."""
    again_s: float = TRY_AGAIN_S
    """Seconds until it is tried again."""


class _Lost(Struct, frozen=True):
    """A node that stopped sending snapshots, because it lost power or was rebooted. srun does not report that, and the
    step continues on its other nodes."""

    heard: float
    """Time of the last snapshot on our monotonic clock."""
    count: int = 1
    """Number of steps in a row without a snapshot from it."""


_LostKey = tuple[int, int | None, str]
"""Job, component and node."""


class _Running:
    """A running step and the snapshots received from it."""

    def __init__(self, step: SurveyStep, child: Stream, started: float) -> None:
        self.step = step
        """The step without the nodes that were given up."""
        self.nodes = step.nodes
        """All nodes on which the step was started."""
        self.child = child
        self.started = started
        self.awake = started
        """Time from which snapshots are expected: not while the job is suspended."""
        self.was_awaited = False
        """Whether a whole survey has waited for it."""
        self.joiner = Joiner(step.nodes)
        self.newest: dict[str, tuple[float, Snapshot]] = {}
        """Node -> (arrival time on our monotonic clock, snapshot)."""
        self.told = 0
        """Number of the joiner's lost messages that have been reported."""
        self.torn = ""

    def take(self, now: float) -> None:
        """Read the lines that have arrived, and keep the newest snapshot of each node."""
        for line in self.child.lines():
            message = self.joiner.feed(line)
            if message is None:
                continue
            try:
                seen = snapshot.parse_snapshot(message[1], message[0])
            except StateError as error:
                self.torn = shown(error.why, 100)
                continue
            if message[0] in self.step.nodes:  # another step reports a node that was given up
                self.newest[message[0]] = (now, seen)

    @property
    def has_lost(self) -> bool:
        """Return whether a node was given up."""
        return self.nodes != self.step.nodes

    def heard(self, node: str) -> float | None:
        """Return the arrival time of a node's newest snapshot; None: there was none."""
        return self.newest[node][0] if node in self.newest else None

    @property
    def over(self) -> bool:
        """Return whether the step has ended."""
        return not self.child.files or self.child.code is not None

    def ended_nodes(self) -> dict[str, str]:
        """Return the nodes on which the sampler has ended, and why."""
        return srun_command.ended_nodes(self.child.said)


class SrunSource(Source):
    """Steps in the jobs that are needed to see all nodes. Use it from one thread; another thread reads the steps."""

    name: SourceName = "srun"

    def __init__(
        self,
        *,
        interval_s: float = 5.0,
        silence_s: float = SILENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._interval_s = interval_s
        self._silence_s = silence_s
        self._clock = clock
        self._running: dict[SurveyStep, _Running] = {}
        self._failed: dict[SurveyStep, _Failed] = {}
        self._lost: dict[_LostKey, _Lost] = {}
        self._came = threading.Condition()
        self._closing = False
        self._reader: threading.Thread | None = None
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def read(self, asked: SourceRequest, timeout_s: float) -> SourceAnswer:
        """Return the newest snapshots. Waits only for nodes from which none has arrived yet. Raises UsageError if all
        users' load is wanted: this source has only the caller's."""
        until = Deadline.after(timeout_s)
        if not asked.user:
            raise UsageError(
                "srun shows you your own jobs; everybody's load needs slurm-share-agent on the nodes and --source "
                "agents, or --source prometheus"
            )
        uid = os.getuid()
        own = tuple(job for job in asked.jobs if job.uid == uid)
        notes: list[str] = []
        now = self._clock()
        # The step of a suspended job is suspended too: it gets no signals, and continues with the job.
        paused = {(job.het[0] if job.het else job.job_id, job.start) for job in own if "SUSPENDED" in job.states}
        self._sweep(now)
        self._give_up(asked.nodes, paused, now)
        failed = {step: one.why for step, one in self._failed.items()}
        left_alone = self._left_alone()
        nodes = [node for node in asked.nodes if node not in left_alone]
        started = list(steps.choose(own, nodes, self._running, failed))
        if len(started) > STEPS_MAX:
            started.sort(key=lambda step: (step not in self._running, -len(step.nodes)))
            notes.append(
                f"{len(started)} steps would be needed, and at most {STEPS_MAX} are started; name some of the nodes "
                "with -n, or ask an administrator for slurm-share-agent on them"
            )
            for step in started[STEPS_MAX:]:
                failed[step] = "left out"
            del started[STEPS_MAX:]
        kept = {*started, *(step for step in self._running if (step.job, step.start) in paused)}
        self._stop([one for step, one in self._running.items() if step not in kept])
        for step in started:
            if step not in self._running and (why := self._start(step)):
                failed[step] = why
        self._wait([step for step in started if step not in failed], until)
        return self._answer(asked, own, started, failed, notes, timeout_s)

    def ask_again(self) -> None:
        """Try failed steps again at the next survey, except those that failed within the last interval."""
        now = self._clock()
        self._failed = {step: one for step, one in self._failed.items() if now - one.at < self._interval_s}

    def close(self) -> None:
        """End the steps. May be called twice."""
        if self._closing:
            return
        self._closing = True
        os.eventfd_write(self._wake, 1)
        if self._reader is not None:
            self._reader.join()
        self._stop(list(self._running.values()))
        os.close(self._wake)

    # ---- steps ------------------------------------------------------------------------------------------------------

    def _sweep(self, now: float) -> None:
        """Move steps that have ended to the failed ones, and drop failures after which to try again."""
        self._failed = {step: one for step, one in self._failed.items() if now - one.at < one.again_s}
        with self._came:
            over = [running for running in self._running.values() if running.over]
        for running in over:
            why, code = self._why_over(running)
            if code == 0 and now - running.started >= self._silence_s:
                continue  # this process was stopped, and the sampler ended without input: start it again
            ran = why not in (CANCELLED, MEMORY_FULL) and bool(running.ended_nodes())
            again_s = TRY_AGAIN_S
            if all(_lost_key(running.step, node) in self._lost for node in running.step.nodes):
                again_s = max(self._count_lost(running, node, now) for node in running.step.nodes)
            self._failed[running.step] = _Failed(now, why, ran, again_s)
        self._stop(over)

    def _give_up(self, nodes: Collection[str], paused: Collection[tuple[int, int | None]], now: float) -> None:
        """Remove nodes that have ended or are silent from their steps, which continue for the other nodes.
        `steps.choose` then chooses a new step for them, or a step of another job."""
        empty = []
        for step, running in list(self._running.items()):
            if (step.job, step.start) in paused:
                running.awake = now
                continue
            with self._came:
                ended = self._ended_of_several(running)
                silent = [node for node in step.nodes if node in nodes and self._is_silent(running, node, ended, now)]
                lost = [*silent, *(node for node in step.nodes if node in ended)]
                if not lost:
                    continue
                del self._running[step]
                running.step = replace(step, nodes=tuple(node for node in step.nodes if node not in lost))
                if running.step.nodes:
                    self._running[running.step] = running
                else:
                    empty.append(running)
            for node in lost:
                of_node = replace(step, nodes=(node,))
                if node in ended:
                    self._failed[of_node] = _Failed(now, ended[node], ended[node] != MEMORY_FULL)
                elif again_s := self._count_lost(running, node, now):
                    self._failed[of_node] = _Failed(now, "", False, again_s)
        self._stop(empty)

    @staticmethod
    def _ended_of_several(running: _Running) -> dict[str, str]:
        """Return the nodes on which the sampler has ended while it runs on others, and why; `_sweep` handles a step
        that has ended as a whole."""
        ended = running.ended_nodes()
        is_whole = ended.keys() >= set(running.nodes) or why_ended(running.child.said, None) == CANCELLED
        return {} if is_whole else ended

    def _is_silent(self, running: _Running, node: str, ended: Collection[str], now: float) -> bool:
        """Return whether a node has sent nothing for too long, and has neither ended nor a reason to wait."""

        def is_late() -> bool:
            heard = running.heard(node)
            patience_s = self._stale_s if heard is not None else max(self._stale_s, START_S)
            return now - max(running.awake, heard or running.started) > patience_s

        if node in ended or not is_late():
            return False
        running.take(now)  # this process may have been stopped, with output unread
        return is_late() and (
            running.heard(node) is not None or not why_ended(running.child.said, None).startswith(WAITS)
        )

    def _count_lost(self, running: _Running, node: str, now: float) -> float:
        """Count a step without a snapshot from this node, and return the seconds until the node is tried again: 0 at
        first, then twice as long each time."""
        key = _lost_key(running.step, node)
        before = self._lost.get(key)
        heard = running.heard(node)
        if before is None or (heard is not None and heard > before.heard):
            self._lost[key] = _Lost(running.started if heard is None else heard)
            return 0.0
        self._lost[key] = _Lost(before.heard, before.count + 1)
        return min(TRY_AGAIN_S, self._stale_s * (1 << min(before.count - 1, 10)))

    def _left_alone(self) -> set[str]:
        """Return the nodes that are not tried now: the sampler itself ended there, or Slurm gave no step in
        OTHER_JOBS_TRIED jobs."""
        failures = Counter(node for step in self._failed for node in step.nodes)
        ran = {node for step, one in self._failed.items() if one.ran for node in step.nodes}
        return ran | {node for node, count in failures.items() if count >= OTHER_JOBS_TRIED}

    def _start(self, step: SurveyStep) -> str:
        """Start a step; return why that failed, or an empty text."""
        try:
            argv = srun_argv(step, PROGRAM, self._interval_s, self._silence_s)
            child = stream(argv, env=srun_environment(os.environ))
        except CommandError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise UsageError(
                    "there is no srun on this host; run this where you submit jobs, or on a node with --source local"
                ) from error
            why = f"srun did not start: {shown(error.stderr, 100)}"
            self._failed[step] = _Failed(self._clock(), why, False)
            return why
        with self._came:
            self._running[step] = _Running(step, child, self._clock())
        if self._reader is None:
            self._reader = threading.Thread(target=self._read, name="srun reader", daemon=True)
            self._reader.start()
        os.eventfd_write(self._wake, 1)
        return ""

    def _stop(self, stopped: Sequence[_Running]) -> None:
        if not stopped:
            return
        with self._came:
            for running in stopped:
                self._running.pop(running.step, None)
        for running in stopped:
            running.child.hang_up()  # all at once, so that they end at the same time
        if self._closing:
            _end(stopped)
        else:
            # In a thread, so that a node that hangs does not delay surveys.
            threading.Thread(target=_end, args=(stopped,), name="srun end", daemon=True).start()

    def _read(self) -> None:
        """Run the reader's thread: read output as it arrives, so that no pipe fills, and write to the samplers' inputs,
        however seldom a survey is wanted."""
        every_s = self._silence_s / _BEATS
        beat = Deadline.after(every_s)
        while not self._closing:
            with self._came:
                if beat.left() <= 0:
                    beat = Deadline.after(every_s)
                    for running in self._running.values():
                        running.child.beat()
                files = [(file, running) for running in self._running.values() for file in running.child.files]
            poll = select.poll()
            poll.register(self._wake, select.POLLIN)
            for file, _ in files:
                poll.register(file, select.POLLIN)
            ready = {file for file, _ in poll.poll(1000 * beat.left() + 1)}
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            with self._came:
                for running in {id(one): one for file, one in files if file in ready}.values():
                    # Meanwhile it may have been ended, and another one started for the same step.
                    if self._running.get(running.step) is running:
                        running.take(self._clock())
                self._came.notify_all()

    # ---- answers ----------------------------------------------------------------------------------------------------

    def _wait(self, steps: Iterable[SurveyStep], until: Deadline) -> None:
        """Wait until each node of new steps has answered or will not, or the time is over. A step is waited for at one
        survey only, and lost nodes never, so that they do not delay the others' figures."""
        wanted = [
            running for step in steps if (running := self._running.get(step)) is not None and not running.was_awaited
        ]

        def complete() -> bool:
            for running in wanted:
                if running.over:
                    running.take(self._clock())  # its last output
                    continue
                step = running.step
                awaited = {node for node in step.nodes if _lost_key(step, node) not in self._lost}
                if not awaited - running.newest.keys() <= running.ended_nodes().keys():
                    return False
            return True

        with self._came:
            self._came.wait_for(complete, until.left())
        for running in wanted:
            running.was_awaited = True

    def _answer(
        self,
        asked: SourceRequest,
        own: Sequence[QueuedJob],
        started: Sequence[SurveyStep],
        failed: Mapping[SurveyStep, str],
        notes: list[str],
        timeout_s: float,
    ) -> SourceAnswer:
        now = self._clock()
        seen: dict[str, list[Snapshot]] = {}
        silent: dict[str, str] = {}
        for step, why in failed.items():
            for node in step.nodes:
                silent[node] = self._with_silence(step, node, why, now)
        with self._came:
            for step in started:
                running = self._running.get(step)
                if running is None:
                    continue
                ended = running.ended_nodes()
                for node in step.nodes:
                    came, newest = running.newest.get(node, (None, None))
                    if newest is not None and came is not None and now - came <= self._stale_s:
                        seen.setdefault(node, []).append(newest)
                        self._lost.pop(_lost_key(step, node), None)
                    elif node in ended:
                        silent[node] = ended[node]
                    elif running.over:
                        silent[node] = self._why_over(running)[0]
                    elif came is not None:
                        silent[node] = f"nothing for {now - came:.0f} s"
                    else:
                        waiting = why_ended(running.child.said, None)
                        why = self._with_silence(step, node, waiting or running.torn, now)
                        silent[node] = why or f"no answer within {timeout_s:.3g} s"
                if running.joiner.lost > running.told:
                    lost, running.told = running.joiner.lost - running.told, running.joiner.lost
                    notes.append(f"job {step.job}: dropped {counted(lost, 'message')} that arrived damaged")
        if any("there is no" in why for why in silent.values()):
            notes.append(
                f"install slurm-share on the nodes in the same place as here ({PROGRAM[0]}), or in a shared folder"
            )
        held = {  # by jobs that take no step now
            node: why
            for job in own
            for state, why in steps.NO_STEPS.items()
            if state in job.states
            for node in nodelist.unfold(job.nodes)
        }
        snapshots = {
            node: replace(merge(several), source=self.name) for node, several in seen.items() if node in asked.nodes
        }
        notes += _unseen(own, snapshots, silent)
        why_silent = {
            node: silent.get(node) or held.get(node) or "no job of yours"
            for node in asked.nodes
            if node not in snapshots
        }
        return SourceAnswer(snapshots=snapshots, silent=why_silent, notes=notes)

    def _with_silence(self, step: SurveyStep, node: str, why: str, now: float) -> str:
        """Return why a node is silent; for a lost node, with how long it has been silent first."""
        lost = self._lost.get(_lost_key(step, node))
        if lost is None:
            return why
        return f"nothing for {now - lost.heard:.0f} s" + (f": {why}" if why else "")

    @property
    def _stale_s(self) -> float:
        return max(3 * self._interval_s, self._interval_s + 5)

    def _why_over(self, running: _Running) -> tuple[str, int | None]:
        """Return (why a step ended, srun's exit code)."""
        code = running.child.wait(0.2)
        with self._came:
            running.take(self._clock())  # its last output may not have been read yet
        return why_ended(running.child.said, code) or "the sampler ended", code


def _lost_key(step: SurveyStep, node: str) -> _LostKey:
    return step.job, step.component, node


def _unseen(own: Sequence[QueuedJob], snapshots: Mapping[str, Snapshot], silent: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each node whose snapshot lacks GPUs of a job, because the step that sees them is silent."""
    for job in own:
        if not steps.is_ready(job) or not job.gpu_indexes:
            continue
        for node, indexes in zip(nodelist.unfold(job.nodes), job.gpu_indexes, strict=False):
            seen = snapshots.get(node)
            if seen is None or seen.driver is None or any(gpu.minor is None for gpu in seen.gpus):
                continue
            if missing := set(indexes) - {gpu.minor for gpu in seen.gpus}:
                which = ", ".join(map(str, sorted(missing)))
                why = silent.get(node, "its sampler does not see it")
                yield f"{node}: GPU {which} of job {job.id} is not in these figures: {why}"


def _end(stopped: Sequence[_Running]) -> None:
    """Stop the steps, those that have lost a node first and with less time, because their srun waits for ever."""
    deadline, short = Deadline.after(STOP_S), Deadline.after(LOST_STOP_S)
    for running in sorted(stopped, key=lambda one: not one.has_lost):
        running.child.stop(short if running.has_lost else deadline)
