"""The plugin's readers of plans, share options and slots' files, asked through small programs: Python's readers must
say the same of every text."""

from __future__ import annotations

import subprocess
from pathlib import Path

from target import Target, text
from targets import PLANS

from slurm_share.core.errors import OptionError, StateError
from slurm_share.share import leases, option
from slurm_share.share import plan as plan_text

JOB, UID = 4711, 2001
PROGRAMS = ("plan_verdict", "option_verdict", "lease_verdict")


class Readers:
    """The programs, running; `close` ends them."""

    def __init__(self, build: Path) -> None:
        """Start the programs in a folder where `make` has built them."""
        arguments = {"plan_verdict": ("-", str(JOB), str(UID)), "option_verdict": (), "lease_verdict": ("-",)}
        self._programs = {
            name: subprocess.Popen([build / name, *given], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for name, given in arguments.items()
        }

    def _ask(self, name: str, data: bytes, *, last: bytes = b"") -> bytes:
        """Return the answer: one line, or all before the line `last`. Raises RuntimeError if the program has ended."""
        program = self._programs[name]
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdin.write(data)
        program.stdin.flush()
        found = b""
        while (line := program.stdout.readline()) and line != last:
            found += line
            if not last:
                break
        if not line:
            raise RuntimeError(f"{name} has ended")
        return found

    def try_plan(self, data: bytes) -> None:
        in_c = self._ask("plan_verdict", b"%d\n%b" % (len(data), data), last=b".\n")
        plan, why = None, ""
        try:
            plan = plan_text.parse(data.decode("ascii"))
        except (UnicodeDecodeError, StateError) as error:
            why = str(error)
        if plan is None:
            assert in_c.startswith(b"bad: "), (why, in_c)
            return
        if (plan.job_id, plan.uid) != (JOB, UID):
            assert b"this is the plan of" in in_c, in_c
            return
        assert in_c.startswith(b"job %d uid %d node " % (JOB, UID)), in_c
        assert in_c.decode("ascii").split("\n")[0].endswith(f" node {plan.node}")

    def try_option(self, data: bytes) -> None:
        said = data.partition(b"\0")[0][:400]
        in_c = self._ask("option_verdict", (said.hex() or "-").encode() + b"\n").decode("ascii").rstrip("\n")
        try:
            wanted = f"ok {option.render(option.parse(text(said)))}"
        except OptionError:
            wanted = "no"
        assert in_c.split(" ")[0] == wanted.split(" ")[0], (in_c, wanted)
        assert wanted == "no" or in_c == wanted, (in_c, wanted)

    def try_slot(self, data: bytes) -> None:
        said = data[:200]
        in_c = self._ask("lease_verdict", (said.hex() or "-").encode() + b"\n").decode("ascii").rstrip("\n")
        found = leases.task_in(said[: leases.TEXT_MAX])
        assert in_c == ("no" if found is None else f"task {found[0]} {found[1]}"), (in_c, found)

    def targets(self) -> tuple[Target, ...]:
        slot = b"step 0 holder 10 11 task 12 13\n"
        return (
            Target("plan, as C has it", "root", PLANS, self.try_plan),
            Target(
                "share option, as C has it",
                "root",
                (b"4", b"4,mem=8G,sm=50%,mps=on", b"4,mem=8G:20G,sharing=mps", b"off"),
                self.try_option,
            ),
            Target("slot's file, as C has it", "everybody", (slot,), self.try_slot),
        )

    def close(self) -> None:
        for program in self._programs.values():
            with program:
                assert program.stdin is not None
                program.stdin.close()


def build(folder: Path) -> None:
    """Build the programs, with sanitizers."""
    make = ["make", "-s", "-C", Path(__file__).parents[2] / "plugins", f"BUILD={folder}"]
    subprocess.run([*make, *(folder / name for name in PROGRAMS)], check=True)
