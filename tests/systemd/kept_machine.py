"""A machine that stays, for a person to walk on: tests/systemd.sh --help says how to call it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parents[1] / "packaging/demo")]

from whole_machine import WholeMachine  # noqa: E402  (the path above comes first)

from localcluster.errors import ClusterError, Misuse  # noqa: E402
from localcluster.progress import say  # noqa: E402

FOLDER = Path(os.environ.get("SLURM_SHARE_MACHINE") or "/var/tmp/slurm-share-machine")
"""One machine at a time, unless the variable names another folder."""


def main(words: list[str]) -> int:
    """Do what the first word says; return the exit code of a command that ran on the machine, or 0."""
    what, *rest = words
    machine = WholeMachine(FOLDER)
    if what == "keep":
        _keep(machine)
        return 0
    if not machine.shared.exists():
        raise Misuse("no machine is kept; tests/systemd.sh --keep starts one")
    if what == "end":
        machine.cut()
        shutil.rmtree(FOLDER)
    elif what == "cut":
        machine.cut()
    elif what == "start":
        if machine.runs():
            raise Misuse("the machine runs already")
        machine.start(apart=True)
    elif not machine.runs():
        raise Misuse("the machine is off; tests/systemd.sh start switches it on")
    elif what == "reboot":
        machine.reboot()
    else:
        user = "root"
        if rest[:1] == ["--user"] and len(rest) > 1:
            user, rest = rest[1], rest[2:]
        if not rest:
            raise Misuse("run takes a command; tests/systemd.sh --help")
        said = machine.run(" ".join(rest), user=user, check=False, timeout_s=3600)
        sys.stdout.write(said.text)
        return said.code
    return 0


def _keep(machine: WholeMachine) -> None:
    if machine.runs():
        raise Misuse("a machine is kept already; tests/systemd.sh end removes it")
    shutil.rmtree(FOLDER, ignore_errors=True)
    machine.prepare(qemu=bool(os.environ.get("SLURM_SHARE_TEST_QEMU")))
    machine.start(apart=True)
    say("n1 is up, with Slurm and without slurm-share, whose packages are in /root/packages there:")
    say("  tests/systemd.sh run 'sinfo; ls packages'     as root, in /root; --user alice: as her, at home")
    say("  tests/systemd.sh end                          removes it")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ClusterError as error:
        print(f"tests/systemd.sh: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
