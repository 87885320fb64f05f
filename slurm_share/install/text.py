"""Output of `slurm-share install`: the lines as a diff, their consequences for other users, and the next steps."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from ..core.installed import PLUGIN
from ..core.terminal import safe
from ..slurm.records import QueuedJob
from .rules.edits import difference
from .rules.lines import SiteLines, SlurmFiles, site_lines

_CHECK_FIRST = """\
  0. a node that was not checked and has no Prolog of ours is drained by its next job:
     clush -a test -x /opt/slurm-share/bin/slurm-share-prolog
"""
_DONE = """\
  1. where Slurm's files are neither on a shared file system nor sent by the controller: copy them to every host
  2. on the controller:  scontrol reconfigure       (slurmctld and every slurmd; jobs run on, no restart is needed)
     where it answers with an error the old configuration stays in force, slurmctld's log says why, and
     `slurm-share install --undo` takes these lines back
  3. on controller, login and compute nodes:  slurm-share doctor"""
UNDONE = """\
next:
  1. where every host has its own files: copy these
  2. let shared jobs end, if that can wait (slurm-share off --cluster: no more begin): from the reconfigure on
     their tasks run on as they are, but a later srun of theirs has no share, its tasks see all GPUs of the job, and no
     Epilog ends their MPS daemons
  3. on the controller:  scontrol reconfigure
  4. on every node where a shared job ran then, when it has ended, and 2 minutes after it began at the earliest:
     slurm-share doctor --fix"""
_SHARES_NAMED = 10


def done(*, does_without: bool) -> str:
    """Return the next steps after --apply. `does_without`: the hook wrappers end with 0 on a node without the
    package."""
    return "next:\n" + ("" if does_without else _CHECK_FIRST) + _DONE


class WantedOptions(Struct, frozen=True):
    """Options of the caller beyond the lines that every site needs."""

    shards: int
    """Shards for each GPU; 0: write no shards."""
    taken: frozenset[str]
    """Values of `--with`."""
    conf: Path | None = None
    """Value of `--conf`."""
    without: tuple[str, ...] = ()
    """Checks of doctor to leave out."""

    def lines(self, present: SlurmFiles) -> SiteLines:
        """Return the lines that a site lacks."""
        return site_lines(present, self.shards, self.taken)

    def command(self, lines: SiteLines) -> str:
        """Return the command that writes these lines."""
        taken = sorted({*self.taken, *(choice.word for choice in lines.choices if choice.is_needed)})
        options = [*(f"--with {value}" for value in taken), *([f"--shards {self.shards}"] if self.shards else [])]
        named = [f"--conf {shlex.quote(str(self.conf))}"] if self.conf is not None else []
        return " ".join(["slurm-share install --apply", *options, *named])


def printable(text: str) -> str:
    """Return text with newlines and tabs kept and every other control character escaped."""
    return "\n".join("\t".join(map(safe, line.split("\t"))) for line in text.split("\n"))


def as_list(heading: str, sentences: Sequence[str]) -> str:
    """Return sentences as the text of an error."""
    return "\n".join([heading, *(f"- {sentence}" for sentence in sentences)])


def missing(present: SlurmFiles, lines: SiteLines, after: Mapping[str, str]) -> Iterator[str]:
    """Yield the diff of every file and each open choice."""
    for name, text in after.items():
        yield difference(name, present.texts.get(name, ""), text).removesuffix("\n")
    for choice in lines.choices:
        yield (
            f"\nfor you to choose:  --with {choice.word}  "
            f"({'needed' if choice.is_needed else 'not needed, and not written without this option'})\n"
            f"  {choice.line}: {choice.consequence}"
        )


def notes_for(lines: SiteLines) -> list[str]:
    """Return what the administrator should check; none of it blocks writing."""
    here = Path(PLUGIN).exists()
    missing = f"{PLUGIN} is not on this host; login and compute nodes need it (package slurm-share-spank)"
    return [*lines.advice, *([] if here else [missing])]


def running_shares(jobs: Sequence[QueuedJob] | None) -> str:
    """Return a sentence about the shared jobs that would lose their Epilog after --undo. None: Slurm did not answer."""
    if jobs is None:
        return "note: Slurm does not answer, so it is unknown whether shared jobs run"
    if not jobs:
        return "no shared job runs"
    which = ", ".join(f"{job.job_id} of {job.user}" for job in jobs[:_SHARES_NAMED])
    more = f" and {len(jobs) - _SHARES_NAMED} more" if len(jobs) > _SHARES_NAMED else ""
    return f"shared jobs that run now: {len(jobs)} ({which}{more})"
