"""The command lines of README.md and packaging/docs, and how each of them is run.

In a block marked `console`, `$ ` is a user on a login node and `# ` is root on the controller (`console on n1`: there).
In every other block, and in the text, a command line is what begins with one of PROGRAMS; ours stand in the text with
words behind them. What stands behind two blanks is a remark.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
DOCUMENTS = (CHECKOUT / "README.md", *sorted((CHECKOUT / "packaging/docs").glob("*.md")))
_OURS = r"slurm-share(?:-\w+)?|llsub|llmapreduce|llstat|llkill|llfree|llload(?:-tui)?|LL[a-zA-Z]+"
_OTHERS = (
    r"sbatch|srun|salloc|scontrol|squeue|scancel|sinfo|sacct\w*|sreport|systemctl|journalctl|make|pip3?|python3?|apt\S*"
    r"|dpkg|dnf|rpm|install|packaging/\S+|tests/\S+|\S*/bin/\S+"
)
_IN_BLOCK = re.compile(rf"(?:\w+=\S+ )*(?:{_OURS}|{_OTHERS})(?: .*)?")
_IN_TEXT = re.compile(rf"(?:{_OURS}) \S.*|(?:sbatch|srun|salloc) .*--share-gpu.*")
_REMARK = re.compile(r"\s{2,}.*")


@dataclass(frozen=True)
class Line:
    """A command line of a document."""

    document: str
    number: int
    text: str
    root: bool = False
    host: str = ""
    """The user; empty: the document does not say."""
    in_order: bool = False
    """For a line of a console block: the lines before it count."""

    def __str__(self) -> str:
        return f"{self.document}:{self.number}: {self.text}"


def lines_of(file: Path) -> list[Line]:
    """Return every command line of a document, in its order."""
    found: list[Line] = []
    fence: str | None = None
    for number, raw in enumerate(file.read_text().splitlines(), 1):
        text = raw.strip()
        if text.startswith("```"):
            fence = None if fence is not None else text[3:].strip()
        elif fence is not None and fence.startswith("console"):
            host = fence.partition(" on ")[2]
            if text.startswith("$ "):
                found.append(Line(file.name, number, _REMARK.sub("", text[2:]), host=host, in_order=True))
            elif text.startswith("# "):
                found.append(Line(file.name, number, _REMARK.sub("", text[2:]), root=True, host=host, in_order=True))
        elif fence is not None or raw.startswith("    "):
            bare = _REMARK.sub("", text)
            if _IN_BLOCK.fullmatch(bare) and not bare.startswith("#!"):
                found.append(Line(file.name, number, bare))
        else:
            spans = re.findall(r"`([^`]+)`", raw)
            found += [Line(file.name, number, span) for span in spans if _IN_TEXT.fullmatch(span)]
    return found
