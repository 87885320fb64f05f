"""Run Slurm's commands as root on a node, and write into a job's output as its user.

For the few cases in which a process of ours on a node must ask or tell Slurm (plugin_use.py, and report/after_end.py
after the end of a job). Each command has a time limit, and no answer is an answer.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from ..core import text_files
from ..core.errors import CommandError
from ..core.process import Finished, exchange
from ..core.records import Owner
from ..slurm import job_gpus, node_plugin
from . import hook

LAUNCH_SCRIPT = "launch.sh"
"""Name of the script of a run of llsub (triples/run_folder.py, which hooks do not load)."""
COMMAND_S = 3.0
"""The most time for a command of Slurm's, and for writing into a job's output, which can be on a dead file server."""


class _Number(Struct, frozen=True):
    """A number that may be none, as scontrol writes it."""

    set: bool = False
    number: int = 0


class ShownJob(Struct):
    """A job in the answer of scontrol."""

    job_id: int
    array_job_id: _Number = _Number()
    array_task_id: _Number = _Number()
    admin_comment: str | None = None
    standard_output: str | None = None
    standard_error: str | None = None
    command: str | None = None
    """Path of its script."""

    @property
    def id(self) -> str:
        """Return the job as sacctmgr takes it. An array's own number is that of its last element, too, and would mean
        all of them."""
        is_element = self.array_task_id.set and self.array_job_id.number > 0
        return f"{self.array_job_id.number}_{self.array_task_id.number}" if is_element else str(self.job_id)

    @property
    def is_run(self) -> bool:
        """Return whether the script is one that llsub writes: the launcher reports about its tasks itself."""
        return (self.command or "").endswith(f"/{LAUNCH_SCRIPT}")


class _ShownJobs(Struct):
    jobs: list[ShownJob]


def show(job_id: int, environ: Mapping[str, str]) -> ShownJob | None:
    """Return a job as slurmctld knows it; None: it does not answer.

    As JSON: in text a user's comment or job name may have lines that look like Slurm's.
    """
    done = run(environ, "scontrol", f"--json={job_gpus.JSON}", "show", "job", str(job_id))
    if done is None or done.code != 0:
        return None
    try:
        jobs = msgspec.json.decode(done.stdout, type=_ShownJobs).jobs
    except text_files.NOT_JSON:
        return None
    return next((one for one in jobs if one.job_id == job_id), None)  # of an array's number all elements are shown


def run(environ: Mapping[str, str], name: str, *words: str, timeout_s: float = COMMAND_S) -> Finished | None:
    """Run a command of Slurm's, found beside the slurmd that runs here; None: it is not there or does not answer."""
    folder = node_plugin.find_folder()
    places = [] if folder is None else [f"{folder.rpartition('/')[0]}/bin", folder]
    program = next((path for one in (*places, "/usr/bin") if node_plugin.is_of_root(path := f"{one}/{name}")), None)
    if program is None:
        return None
    env = {
        "PATH": hook.SEARCH_PATH,
        "LC_ALL": "C",
        "SLURM_CONF": environ.get("SLURM_CONF", ""),
        "SLURM_TIME_FORMAT": "%s",
    }
    try:
        return exchange([program, *words], timeout_s=timeout_s, env=env)
    except CommandError:
        return None


def write_output(known: ShownJob | None, owner: Owner, text: str, *, may_make: bool) -> bool:
    """Append lines to a job's output, as its user; return whether that was possible.

    The user chose the path and can put anything there: dd(1) has no more rights than the user, follows no link in the
    last place, and does not wait for the reader of a pipe. Only a job with a script has such a file.
    """
    outputs = () if known is None else (known.standard_error, known.standard_output)
    file = next((path for path in outputs if path and path.startswith("/")), "")
    if not file:
        return False
    conv = "notrunc" if may_make else "notrunc,nocreat"
    words = ["/usr/bin/dd", f"of={file}", f"conv={conv}", "oflag=append,nofollow,nonblock", "status=none"]
    try:
        env = {"PATH": hook.SEARCH_PATH}
        done = exchange(words, timeout_s=COMMAND_S, env=env, text=f"{text}\n", owner=owner, umask=0o022)
    except CommandError:
        return False
    return done.code == 0
