"""Turn an answer into options for the next submission, and into a complete command if the last submission is known."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ....core import names, nodelist
from ....core.errors import OptionError
from ....core.records import ShareRequest
from ....core.settings import Settings
from ....node.records import Gpu
from ....share import limits, option, queue, registry
from ....slurm.records import QueuedJob, Submission
from ....slurm.rules import submitted
from ....triples import Triple
from .bounds import gib, usable_mib
from .causes import AdviceDraft
from .evidence import Evidence


class SubmissionChange(Struct, frozen=True):
    """A change of the next submission."""

    program: str = ""
    """sbatch or llsub; empty: the one that was used."""
    options: tuple[str, ...] = ()
    """Options of sbatch, or of llsub in addition to the triple."""
    triple: str = ""
    variables: tuple[str, ...] = ()
    """Variables to set for the program, NAME=value."""

    def __str__(self) -> str:
        llsub = ("llsub",) if self.program == "llsub" else ()
        return " ".join((*self.variables, *llsub, *((self.triple,) if self.triple else ()), *self.options))


NO_MEMORY_IN_ADVANCE = ("XLA_PYTHON_CLIENT_PREALLOCATE=false", f"{names.ENV_TF_GROWTH}=true")
"""Source: JAX's "GPU memory allocation", TensorFlow's "Limiting GPU memory growth"."""
PART = ("--gres=gpu:1", "-n1")
"""With --share-gpu: one task, with a part of one GPU."""


def changes(
    answer: AdviceDraft,
    jobs: Sequence[QueuedJob],
    nodes: Sequence[Evidence],
    settings: Settings,
    submission: Submission | None = None,
) -> tuple[SubmissionChange, ...]:
    """Return the ways to carry an answer out, the one that suits the present kind of job first. `jobs`: the job or the
    elements of an array; empty if Slurm does not answer. The result is empty if no option can carry the answer out."""
    job = jobs[0] if jobs else None
    if answer.verdict == "change":
        return tuple(_of_remedy(answer, job))
    if answer.nppn is None or answer.verdict not in ("more", "fewer"):
        return ()
    request = _request(job, nodes, answer.nppn, settings)
    by_triple = _by_triple(jobs, nodes, answer.nppn, request)
    is_part = job is not None and job.has_shards
    if request is None:
        # A share counts tasks per GPU: without GPUs, or if NPPN is no multiple of them, there is only the triple.
        return () if is_part else (by_triple,)
    share = f"--{names.OPTION}={option.render(request)}"
    as_part = SubmissionChange("sbatch", (share, *PART))
    if is_part:
        return (as_part,)
    if _are_single(jobs, nodes):
        # Each element stays one task; as a part of a GPU, several of them are on one.
        return (as_part, by_triple) if settings.shards_per_gpu else (by_triple,)
    by_share = SubmissionChange("sbatch", (share, *_next_to_share(jobs, nodes, request)))
    of_llsub = job is not None and queue.triple_of(job) is not None
    of_llsub = of_llsub or (submission is not None and not submission.starts_steps)
    return (by_triple, by_share) if of_llsub else (by_share, by_triple)


def cautions(
    answer: AdviceDraft, jobs: Sequence[QueuedJob], nodes: Sequence[Evidence], settings: Settings
) -> tuple[str, ...]:
    """Return what an answer loses or risks, a sentence each: the user's memory cap, and the last free GPU memory."""
    if answer.nppn is None or answer.verdict not in ("more", "fewer") or not _fewest(nodes):
        return ()
    found = []
    written = share_of(jobs[0] if jobs else None)
    request = _request(jobs[0] if jobs else None, nodes, answer.nppn, settings)
    each = max(1, answer.nppn // _fewest(nodes))
    if written is not None and written.mem_mib is not None and request is not None:
        if request.mem_mib is None:
            found.append(f"your mem={written.mem_mib}M is left out, since {each} of it do not fit a GPU{_least(nodes)}")
        elif request.mem_mib != written.mem_mib:
            found.append(f"your mem={written.mem_mib}M becomes mem={request.mem_mib}M, so that {each} fit a GPU")
    left = _left_percent(nodes, each)
    if answer.verdict == "more" and left is not None and left < 2 * settings.memory_reserve_percent:
        found.append(f"it fills a GPU's memory to the last {max(left, 0):.0f} % in one step: a task that grows fails")
    return tuple(found)


def _least(nodes: Sequence[Evidence]) -> str:
    sizes = [node.size_mib for node in nodes if node.size_mib]
    return f" (a task was seen with {gib(max(sizes))})" if sizes else ""


def _left_percent(nodes: Sequence[Evidence], each: int) -> float | None:
    """Return the part of a GPU's memory that is left with `each` tasks of the largest size, on the fullest GPU."""
    return min(
        (
            100 * (1 - (room.outside + each * node.size_mib) / room.total)
            for node in nodes
            if node.size_mib
            for room in node.rooms
        ),
        default=None,
    )


def _of_remedy(answer: AdviceDraft, job: QueuedJob | None) -> Iterable[SubmissionChange]:
    if answer.remedy == "memory in advance":
        yield SubmissionChange(variables=NO_MEMORY_IN_ADVANCE)
    elif answer.remedy == "threads":
        triple = None if job is None else queue.triple_of(job)
        if job is None or triple is None:
            yield SubmissionChange(variables=(f"{names.ENV_THREADS}={answer.threads}",))
        else:
            yield SubmissionChange("llsub", (), str(Triple(job.node_count or 1, answer.nppn or 1, answer.threads)))


def lines(found: Sequence[SubmissionChange], submission: Submission | None) -> tuple[str, ...]:
    """Return the changes as shell commands, each a complete submission. Leaves out changes that cannot be one."""
    if submission is None:
        return ()
    commands = filter(None, (_arguments(change, submission) for change in found))
    cd = ("cd", shlex.quote(submission.folder), "&&")
    return tuple(" ".join([*cd, *variables, shlex.join(argv)]) for variables, argv in commands)


def _arguments(change: SubmissionChange, submission: Submission) -> tuple[tuple[str, ...], list[str]] | None:
    """Return the variables and the arguments of the command; None if no command is certain."""
    if change.variables and submitted.says(submission, "export"):
        return None  # variables of the shell might not reach the job
    if change.program == "llsub" and submission.program == "sbatch":
        return _arguments_of_llsub(change, submission)
    if change.program not in ("", submission.program):
        return None
    own, script = list(submission.arguments[: submission.place]), list(submission.arguments[submission.place :])
    if not change.program:
        return change.variables, [submission.program, *own, *script]
    if change.triple:
        settings = [argument for argument in change.options if argument.startswith("--")]
        before = submitted.without_long(own, names.OPTION)
        after, dashes, arguments = submitted.parted(script[1:])
        return (), [submission.program, *before, change.triple, *submitted.without_long(after, names.OPTION), *settings,
                    *dashes, *arguments]  # fmt: skip
    if not submission.starts_steps and change.options[1:] != PART:
        return None
    replaced = {names.OPTION}
    fresh = [argument for argument in change.options if not argument.startswith("--gres") or change.options[1:] == PART]
    if any(argument.startswith("-n") for argument in fresh):
        replaced |= {"ntasks", "ntasks-per-node"}
    if change.options[1:] == PART:
        replaced |= {"gres", "gpus", "gpus-per-node", "gpus-per-task"}
    kept = submitted.without(own, replaced)
    if kept is None:
        return None
    tasks = next((argument[2:] for argument in fresh if argument.startswith("-n")), None)
    if tasks is not None and "ntasks-per-node" in submission.directives:
        fresh.append(f"--ntasks-per-node={-(-int(tasks) // max(1, submission.nodes))}")
    return (), [submission.program, *kept, *fresh, *script]


_TRIPLES_OWN = frozenset(
    {"nodes", "ntasks", "ntasks-per-node", "ntasks-per-core", "ntasks-per-socket", "cpus-per-task", "output", "error",
     "input", "chdir", "exclusive", "oversubscribe", "parsable", "wait", "quiet", "mem", "mem-per-cpu", "mem-per-gpu",
     "distribution", names.OPTION}
)  # fmt: skip
"""Options of sbatch that a triple, which has whole nodes, sets itself."""
_NO_TRIPLE = ("array", "wrap", "gpus", "gpus-per-node", "gpus-per-task", "ntasks-per-gpu", "test-only")


def _arguments_of_llsub(change: SubmissionChange, submission: Submission) -> tuple[tuple[str, ...], list[str]] | None:
    """Return the arguments that submit a job of sbatch as a triple, which runs its script once for each process."""
    if (
        submission.starts_steps
        or not submission.is_executable
        or any(submitted.says(submission, one) for one in _NO_TRIPLE)
    ):
        return None
    kept = submitted.without(submission.arguments[: submission.place], _TRIPLES_OWN)
    if kept is None:
        return None
    script, *arguments = submission.arguments[submission.place :]
    further = [f"--options={shlex.join(kept)}"] if kept else []
    settings = [argument for argument in change.options if argument.startswith("--")]
    return (), ["llsub", script, change.triple, *settings, *further, *(["--", *arguments] if arguments else [])]


def _by_triple(
    jobs: Sequence[QueuedJob], nodes: Sequence[Evidence], nppn: int, request: ShareRequest | None
) -> SubmissionChange:
    if len(jobs) > 1:
        count = len({name for job in jobs for name in nodelist.unfold(job.nodes)})  # all elements in one job
    else:
        count = (jobs[0].node_count if jobs else None) or 1
    triple = Triple(count, nppn, max(1, min(one.cores for one in nodes) // nppn))
    settings_alone = "" if request is None else option.render(request).partition(",")[2]
    options = (f"-g {_fewest(nodes)}",) if _has_some(nodes) else ()
    return SubmissionChange(
        "llsub", (*options, *((f"--{names.OPTION}={settings_alone}",) if settings_alone else ())), str(triple)
    )


def _next_to_share(jobs: Sequence[QueuedJob], nodes: Sequence[Evidence], request: ShareRequest) -> list[str]:
    """Return the options in addition to --share-gpu: the GPUs if the job does not have all of a node, and the tasks if
    the job was given their number, which would else stay."""
    job = jobs[0] if jobs else None
    gpus = _fewest(nodes)
    of_all = gpus if job is None else job.gpus or gpus * (job.node_count or 1)
    if job is not None and job.array is not None and job.gpus:
        gpus = min(gpus, -(-job.gpus // (job.node_count or 1)))
    argv = [f"--gres=gpu:{gpus}"] if _has_some(nodes) or gpus < _fewest(nodes) else []
    is_told = job is not None and job.tasks is not None and job.tasks > (job.node_count or 1)
    written = share_of(job)
    if written is not None and max(node.now or 0 for node in nodes) < written.per_gpu * _fewest(nodes):
        is_told = (
            True  # a plain srun fills the slots, so it was given a smaller number (-n1, which Slurm does not tell)
        )
    return [*argv, f"-n{request.per_gpu * of_all}"] if is_told and queue.triple_of(jobs[0]) is None else argv


def _are_single(jobs: Sequence[QueuedJob], nodes: Sequence[Evidence]) -> bool:
    """Return whether these are elements of an array, each one task on one whole GPU."""
    if not jobs or jobs[0].array is None or share_of(jobs[0]) is not None:
        return False
    return all(job.gpus == 1 and job.tasks in (None, 1) for job in jobs) and sum(
        node.now or 0 for node in nodes
    ) <= len(jobs)


def _fewest(nodes: Sequence[Evidence]) -> int:
    return min(node.gpus for node in nodes)


def _has_some(nodes: Sequence[Evidence]) -> bool:
    """Return whether the job has some of a node's GPUs but not all."""
    return _fewest(nodes) > 0 and any(node.gpus < node.gpus_of_node for node in nodes)


def _request(job: QueuedJob | None, nodes: Sequence[Evidence], nppn: int, settings: Settings) -> ShareRequest | None:
    """Return the share with NPPN tasks. The user's other settings stay; a memory cap stays only if N of it, or of its
    guaranteed part, fit."""
    gpus = _fewest(nodes)
    if not gpus or nppn % gpus or not 1 <= nppn // gpus <= names.SHARE_MAX:
        return None
    each = nppn // gpus
    written = share_of(job)
    request = ShareRequest(each) if written is None else replace(written, per_gpu=each)
    rooms = [room for node in nodes for room in node.rooms]
    peak = max((node.size_mib or 0 for node in nodes), default=0)
    limits_of = registry.wanted(request, settings)[0].limits(nodes[0].driver if nodes else None)
    is_capped = limits_of.enforces_caps and (limits_of.serves_mig or not any(node.is_mig for node in nodes))
    if not rooms or not is_capped:
        return request
    part = min(usable_mib(room, settings) for room in rooms) // each
    booked = request.mem_least_mib or request.mem_mib
    if request.mem_mib is not None and booked is not None and not (peak <= request.mem_mib and booked <= part):
        request = replace(request, mem_mib=None, mem_least_mib=None)
    smallest = min(room.total for room in rooms)
    cap = limits.memory_cap_mib(Gpu("", 0, 0, "", smallest), request, settings)
    if cap is not None and cap < peak <= part:
        # An even part would also reserve mps_server_memory_mib, and cap the task just below what it needs.
        request = replace(request, mem_mib=part)
    return request


def share_of(job: QueuedJob | None) -> ShareRequest | None:
    """Return the value of --share-gpu; None: an ordinary job, or a value that cannot be read."""
    if job is None or job.share is None:
        return None
    try:
        return option.parse(job.share)
    except OptionError:
        return None
