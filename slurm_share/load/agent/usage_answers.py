"""Answer what a job has used: on this node to its user, and about other nodes for users by this agent's token.

A user names nodes, and the operators' token is sent there. So only nodes of Slurm are asked, at the address that Slurm
has, by TLS or at a port on which no user can listen; and of their answers the caller gets what is the caller's.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec

from ...core.errors import SlurmShareError, StateError
from ...core.settings import Settings
from ...slurm.nodes import read_nodes
from ..rules.job_use import JobRecord
from . import tls
from .callers import Caller
from .client import Question, UsageReply, parse_usage
from .http_client import FREE_PORTS, NO_SAMPLE, NOT_OURS, REFUSED, TARGET, WRONG_TOKEN, AgentsCaller
from .token import Token

OTHERS_S = 8.0
"""The longest time for other nodes; less than USAGE_S of the client."""
MOST_AT_ONCE, MOST_EACH = 16, 4
"""Most questions about jobs at the same time, of all users and of one."""
MOST_CALLS = 4
"""Most questions for which other nodes are asked at the same time, each with some threads; further ones wait."""
NODES_KEPT_S = 300.0
"""Seconds for which Slurm's list of nodes is used."""
NODES_AGAIN_S = 30.0
"""Least seconds between two readings of that list, which an unknown node causes."""
SLURM_S = 5.0
_WHYS = {
    REFUSED: "no agent answers there",
    WRONG_TOKEN: "its agent refused this host's token (agent_token_file has to be the same on all hosts)",
    f"{NOT_OURS} (HTTP 404)": "its agent is of an older release, which keeps no records of jobs",
    NO_SAMPLE: "its agent is starting; ask again in a few seconds",
}


class UsageAnswers:
    """The answers about jobs, in the event loop; files and Slurm are read in threads."""

    def __init__(self, records: Callable[[int], list[JobRecord]], node: Callable[[], str], settings: Settings) -> None:
        """`records`: of all starts of a job here; any thread may call it. `node`: this node's name, empty before the
        first sample."""
        self._records = records
        self._node = node
        self._settings = settings
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="usage")
        self._busy: Counter[int] = Counter()
        self._nodes: Mapping[str, str] = {}
        """Slurm's nodes and their addresses."""
        self._nodes_at = float("-inf")
        self._nodes_lock = asyncio.Lock()
        self._calls = asyncio.Semaphore(MOST_CALLS)

    def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def of_all_users(self, job: int) -> bytes:
        """Return the JSON of the job's records on this node, whoever's they are."""
        return msgspec.json.encode(await self._own(job))

    async def of_caller(self, caller: Caller, question: Question) -> UsageReply:
        """Return the records of a job that the caller may see, of this node or the named ones."""
        job = question.usage
        assert job is not None
        if self._busy[caller.uid] >= MOST_EACH or self._busy.total() >= MOST_AT_ONCE:
            return UsageReply(why="too many questions about jobs at the same time; ask again in a few seconds")
        self._busy[caller.uid] += 1
        try:
            here = self._node()
            nodes = tuple(dict.fromkeys(question.nodes)) or (here,)
            others = tuple(node for node in nodes if node != here)
            found = [await self._own(job)] if len(others) < len(nodes) else []
            if others:
                found += await self._of_others(job, others)
        finally:
            self._busy[caller.uid] -= 1
            self._busy += Counter()  # without users that ask nothing now

        def may_see(uid: int) -> bool:
            return caller.everything or uid == caller.uid

        usage = tuple(one for reply in found for one in reply.usage if one.job == job and may_see(one.uid))
        problems = [problem for reply in found for problem in reply.problems]
        silent = {problem.partition(":")[0] for problem in problems}
        missing = [node for node in nodes if node not in silent and all(one.node != node for one in usage)]
        problems += [f"{node}: its agent has no record of job {job} for {caller.user}" for node in missing]
        return UsageReply(
            usage=usage,
            series=tuple(one for reply in found for one in reply.series if one.job == job and may_see(one.uid)),
            problems=tuple(problems),
        )

    async def _own(self, job: int) -> UsageReply:
        here = self._node()
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._threads, self._records, job)
        except StateError as error:
            return UsageReply(problems=(f"{here}: {error}",))
        return UsageReply(usage=tuple(one.use for one in found), series=tuple(one.series for one in found))

    # ---- other nodes ----

    async def _of_others(self, job: int, nodes: Sequence[str]) -> list[UsageReply]:
        try:
            caller = self._caller()
            known = await self._addresses(nodes)
        except SlurmShareError as error:
            return [UsageReply(problems=tuple(f"{node}: this host's agent cannot ask it: {error}" for node in nodes))]
        asked = [node for node in nodes if node in known]
        problems = [f"{node}: Slurm has no such node" for node in nodes if node not in known]
        async with self._calls:
            found, silent = await caller.ask(asked, known, f"{TARGET}{job}", OTHERS_S, partial(_take, job))
        problems += [f"{node}: {_WHYS.get(why, why)}" for node, why in silent.items()]
        return [*found.values(), UsageReply(problems=tuple(problems))]

    def _caller(self) -> AgentsCaller:
        """Return the caller of other agents. Raises StateError if this host may not call them, UsageError for
        certificates that cannot be used."""
        settings = self._settings
        context = tls.caller_context(settings)
        if context is None and settings.agents_port >= FREE_PORTS:
            raise StateError(
                "agents_port",
                f"any user may listen on port {settings.agents_port} and would receive the token; choose one below "
                f"{FREE_PORTS}, or set agents_ca",
            )
        return AgentsCaller(settings.agents_port, Token(settings.agent_token_file).read().decode("ascii"), context)

    async def _addresses(self, nodes: Sequence[str]) -> Mapping[str, str]:
        """Return the addresses of Slurm's nodes. Raises CommandError if Slurm does not answer."""
        async with self._nodes_lock:
            age_s = time.monotonic() - self._nodes_at
            if age_s > NODES_KEPT_S or (age_s > NODES_AGAIN_S and not all(node in self._nodes for node in nodes)):
                loop = asyncio.get_running_loop()
                read = await loop.run_in_executor(self._threads, partial(read_nodes, timeout_s=SLURM_S))
                self._nodes = {node.name: node.address or node.name for node in read}
                self._nodes_at = time.monotonic()
            return self._nodes


def _take(job: int, node: str, body: bytes) -> UsageReply | str:
    """Return the answer of a node's agent, or what is wrong with it."""
    try:
        reply = parse_usage(body, node)
    except StateError as error:
        return error.why
    named = {(one.node, one.job) for one in reply.usage} | {(one.node, one.job) for one in reply.series}
    if not named <= {(node, job)}:
        return "its agent answers for another node or job"
    return reply
