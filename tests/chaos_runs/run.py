"""A whole chaos run: the cluster, the events, the end of all jobs, the verdict."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from hooked import Node

from localcluster import Cluster, ClusterError, CommandFailed, NotDone

from . import cheater, evidence, hosts, jobs, plan, records, verdict
from .causes import Done
from .operator import Operator
from .records import Submission
from .verdict import Judgement

CONF = f"""\
SlurmdSpoolDir={hosts.SPOOL}
SlurmdTimeout=20
SlurmctldDebug=debug2
MinJobAge=36000
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,default_queue_depth=10000,bf_interval=2,\
requeue_delay=3,nohold_on_prolog_fail
"""
"""Keep all jobs in memory, start requeued jobs soon, and return drained nodes to service soon."""
LOG, SLURMD_LOG, OUR_LOG = "var/log/slurm/slurmctld.log", "var/log/slurm/slurmd.log", "var/log/slurm-share.log"
CALM_S = 600.0
"""How long to wait for queued jobs after the events."""
_JOB_S = 400.0

Say = Callable[[str], None]


class Chaos:
    """A chaos run: its cluster, events, jobs and records."""

    def __init__(self, cluster: Cluster, seed: int, seconds: float, say: Say) -> None:
        self.cluster = cluster
        self.events = plan.make(seed, seconds, cluster.compute_nodes)
        self.done: list[Done] = []
        self.submissions: list[Submission] = []
        self.operator = Operator(cluster)
        self.left: dict[str, list[str]] = {}
        """Leftovers on the nodes after all jobs, before another job came."""
        self.remains: dict[str, list[str]] = {}
        """Leftovers after one further shared job on each node."""
        self.records: tuple[records.Record, ...] = ()
        """Slurm's records of the jobs at the end."""
        self.files: dict[tuple[str, int], tuple[records.Line, ...]] = {}
        """The jobs' own files, by tag and number."""
        self.outputs: dict[tuple[str, int], str] = {}
        """The jobs' output, by tag and number."""
        self.evidence = evidence.Evidence()
        """slurmctld's log and the jobs' output."""
        self._say = say
        self._allocations: list[threading.Thread] = []
        self._begin = 0.0

    # ---- events ----

    def run_events(self) -> None:
        """Run the events of every actor, each at its time."""
        for user in plan.USERS:
            folder = f"mkdir -p {jobs.FOLDER} && cat >{jobs.FOLDER}/task && chmod +x {jobs.FOLDER}/task"
            self.cluster.as_user(user, folder, input=jobs.TASK, check=True)
        cheater.make_user(self.cluster)
        self._begin = time.time()
        actors = dict.fromkeys(event.actor for event in self.events)
        with ThreadPoolExecutor(len(actors)) as pool:
            for _ in pool.map(self._act, actors):
                pass

    def _act(self, actor: str) -> None:
        for number, event in enumerate(self.events):
            if event.actor != actor:
                continue
            time.sleep(max(0.0, self._begin + event.at_s - time.time()))
            began = time.time()
            try:
                said = self._do(event, f"{actor[0]}{number:04d}")
            except ClusterError as error:
                said = f"did not work: ... {' '.join(str(error).split())[-200:]}"
            self.done.append(Done(event, began, time.time(), said))
            self._say(f"{began - self._begin:7.1f} s  {actor:5} {event.action}: {said}")

    def _do(self, event: plan.Event, tag: str) -> str:
        if event.actor == plan.CHEATER:
            return cheater.cheat(self.cluster, event)
        if event.actor not in plan.USERS:
            return hosts.ACTIONS[event.action](self.cluster, event.actor, event.lasts_s)
        if event.action in plan.USER_ACTIONS:
            return self._act_on_job(event)
        return self._submit(event, tag)

    def _submit(self, event: plan.Event, tag: str) -> str:
        user, at = event.actor, time.time()
        if event.action == "salloc":
            thread = threading.Thread(target=self._allocate, args=(event, tag))
            self._allocations.append(thread)
            thread.start()
            return f"salloc {tag}"
        try:
            if event.action == "triple":
                said = self.cluster.as_user(user, jobs.triple_argv(tag, event.lasts_s), timeout=60, check=True)
                number = _job_number(said.stdout)
            else:
                kind = jobs.KINDS[event.action]
                options = jobs.sbatch_options(kind, tag, requeue=event.which < 0.8)
                number = self.cluster.sbatch(user, jobs.script(kind, tag, event.lasts_s), *options)
        except (CommandFailed, NotDone):
            self.submissions.append(Submission(tag, user, event.action, at, is_taken=False))
            raise
        self.submissions.append(Submission(tag, user, event.action, at, is_taken=True, job=number))
        return f"{tag} is {number}"

    def _allocate(self, event: plan.Event, tag: str) -> None:
        kind = jobs.KINDS["salloc"]
        argv = ["salloc", "-J", tag, "-t10", "--mem=300", *kind.options]
        self.submissions.append(Submission(tag, event.actor, "salloc", time.time(), is_taken=False))
        script = jobs.script(kind, tag, event.lasts_s)
        try:
            said = self.cluster.as_user(event.actor, [*argv, "bash", "-c", script], timeout=_JOB_S)
            self.outputs[tag, _job_number(said.stderr)] = said.stdout + said.stderr
        except NotDone:
            self._say(f"{time.time() - self._begin:7.1f} s  {event.actor:5} salloc {tag} did not come back")

    def _act_on_job(self, event: plan.Event) -> str:
        """Cancel or requeue a running job of one's own."""
        said = self.cluster.as_user(event.actor, ["squeue", "--me", "-h", "-tR", "-o%A"], timeout=30).stdout
        running = sorted(said.split(), key=int)
        if not running:
            return "no job is running"
        job = running[int(event.which * len(running))]
        argv = ["scancel", job] if event.action == "cancel" else ["scontrol", "requeue", job]
        self.cluster.as_user(event.actor, argv, timeout=30, check=True)
        return f"cancelled {job}" if event.action == "cancel" else f"requeued {job}"

    # ---- calm ----

    def calm(self) -> None:
        """Undo the faults, wait for the jobs, and record what is left on the nodes."""
        hosts.make_calm(self.cluster, [*self.cluster.compute_nodes, "ctl"])
        for thread in self._allocations:
            thread.join()
        _until(self._is_empty, CALM_S)
        _until(self._is_idle, CALM_S / 2)
        self.left = self._read_nodes()
        cheater.end_processes(self.cluster)
        if any(self.left.values()):
            # Slurm ran no Epilog there, or it was killed: what it skipped is the next shared job's Prolog's to do.
            for node in self.cluster.compute_nodes:
                job = self.cluster.sbatch("bob", "true", "--share-gpu=1", f"-w{node}", "--mem=100")
                self.cluster.wait(job, CALM_S)
            self.cluster.settle()
        self.remains = self._read_nodes()

    def _is_empty(self) -> bool:
        try:
            return not self.cluster.jobs()
        except (CommandFailed, NotDone):
            return False

    def _is_idle(self) -> bool:
        states = self.cluster.status().nodes
        return len(states) == len(self.cluster.compute_nodes) and set(states.values()) <= {"idle", "planned"}

    def _read_nodes(self) -> dict[str, list[str]]:
        nodes = self.cluster.compute_nodes
        return {name: Node(self.cluster, name).remains() + cheater.read_remains(self.cluster, name) for name in nodes}

    def _read(self, host: str, path: str) -> str:
        file = self.cluster.root(host) / path
        return file.read_text(errors="replace") if file.exists() else ""

    # ---- verdict ----

    def judge(self) -> Judgement:
        jobs_shown = self.cluster.exec("ctl", ["scontrol", "-o", "show", "jobs"], check=True).stdout
        for user in plan.USERS:
            for file in (self.cluster.home / user / jobs.FOLDER).iterdir():
                tag, _, job = file.name.partition(".")
                if job.isdecimal():
                    self.files[tag, int(job)] = records.parse_lines(file.read_text())
                elif job.removesuffix(".out").isdecimal():
                    self.outputs[tag, int(job.removesuffix(".out"))] = file.read_text(errors="replace")
        log = self._read("ctl", LOG)
        self.records = records.parse_records(jobs_shown)
        said = [*evidence.parse_log(log)]
        for name in self.cluster.compute_nodes:
            said += evidence.parse_node(name, self._read(name, SLURMD_LOG), self._read(name, OUR_LOG))
        self.evidence = evidence.Evidence(tuple(sorted(said, key=lambda line: line.at)), self.outputs)
        found = verdict.judge(
            self.submissions, self.done, self.records, self.files, self.operator.drains, self.evidence
        )
        verdict.judge_left(self.left, self.done, self.files, found)
        ours = {name: self._read(name, OUR_LOG) for name in self.cluster.compute_nodes}
        verdict.judge_cheats(self.done, ours, self.outputs, found)
        found.wrong += [f"left on {name}: {one}" for name, some in self.remains.items() for one in some]
        states = self.cluster.status().nodes
        found.wrong += [f"{name} is {state} in the end" for name, state in states.items() if state != "idle"]
        found.counts["held jobs released"] = self.operator.released
        return found

    def recorded(self) -> dict[str, object]:
        """Return everything that the verdict was based on, as JSON values. Times count from the start of the run."""

        def relative(one: object, times: tuple[str, ...]) -> dict[str, object]:
            values = asdict(one)  # type: ignore[call-overload]
            return {**values, **{name: round(values[name] - self._begin, 2) for name in times if values[name]}}

        asked = verdict.jobs_in_question(self.submissions, self.done, self.records, self.files, self.evidence)
        kept = evidence.what_matters(self.evidence, asked)
        return {
            "events": self.event_rows(),
            "submissions": [relative(one, ("at",)) for one in self.submissions],
            "records": [relative(one, ("start", "end")) for one in self.records],
            "drains": [relative(one, ("at",)) for one in self.operator.drains],
            "lines": {
                f"{tag}.{job}": [
                    [one.word, one.restart, round(one.at - self._begin, 2), one.node, one.what, one.pid, one.slot]
                    for one in some
                ]
                for (tag, job), some in sorted(self.files.items())
            },
            "log": [[round(line.at - self._begin, 3), line.text] for line in kept.log],
            "outputs": {f"{tag}.{job}": text for (tag, job), text in sorted(kept.outputs.items())},
        }

    def event_rows(self) -> list[dict[str, object]]:
        """Return the events in order of time, as JSON values."""
        told = sorted(self.done, key=lambda one: one.began)
        return [
            {**asdict(one.event), "began_s": round(one.began - self._begin, 2),
             "took_s": round(one.ended - one.began, 2), "said": one.said}
            for one in told
        ]  # fmt: skip


def run(
    name: str, seed: int, seconds: float, nodes: int, slurm: str = "26.05", say: Say = print
) -> tuple[Chaos, Judgement]:
    """Run chaos on a new cluster and return it with the verdict."""
    with Cluster.up(name, slurm, nodes=nodes, slurm_conf_extra=CONF) as cluster:
        chaos = Chaos(cluster, seed, seconds, say)
        with chaos.operator.watching():
            chaos.run_events()
            say("calm")
            chaos.calm()
        found = chaos.judge()
        if found.wrong:
            explain(chaos, found, say)
    return chaos, found


def explain(chaos: Chaos, found: Judgement, say: Say) -> None:
    """Print what is known of the jobs that are wrong, and our logs of every node."""
    for job, tag in dict.fromkeys(re.findall(r"\bjob (\d+) \((\w+)\)", "\n".join(found.wrong))):
        say(f"--- job {job}:\n{chaos.evidence.of(tag, int(job), 0.0)[-8000:]}")
    for name in chaos.cluster.compute_nodes:
        node = Node(chaos.cluster, name)
        say(f"--- {name}: our log\n{node.log()[-20_000:]}")


def _job_number(said: str) -> int:
    """Return the job number that llsub or salloc printed; 0: none."""
    found = re.search(r"\bjob (?:allocation )?(\d+)", said)
    return int(found[1]) if found else 0


def _until(true: Callable[[], object], seconds: float) -> None:
    """Wait until it is so, or not so for too long: the verdict says what that means."""
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.5)
