"""A whole machine, started from its disk: run commands in it, restart it, cut its power."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import disk

from localcluster import kernel, process
from localcluster.errors import CommandFailed, Misuse, NotDone

MEMORY = "1500M"
BOOT_S = 900
COMMAND_S = 1800
"""The longest that anything takes on an emulated computer: on a busy machine apt takes ten minutes."""
_MOST_LINES = 24
"""The most lines of a command's output that the log keeps; the middle is left out."""
_QEMU = "qemu-system-x86_64"


@dataclass(frozen=True)
class Said:
    """The end of a command."""

    code: int
    text: str
    """Its stdout and stderr, in the order in which they came."""


class WholeMachine:
    """A machine in a folder of its own, which may have been started by another process.

    `log`: where every command, its output and its exit code are written.
    """

    def __init__(self, folder: Path, log: TextIO | None = None) -> None:
        self.folder = folder
        self.shared = folder / "shared"
        self.log = log
        self._number = 0
        self._holder: subprocess.Popen[bytes] | None = None

    @property
    def emulated(self) -> bool:
        """Return whether it is a computer emulated by qemu, with Debian's kernel: SMP, cpusets, AppArmor."""
        return (self.folder / "vmlinuz").exists()

    def prepare(self, *, qemu: bool) -> None:
        """Give it a new disk and the packages of this checkout."""
        if qemu and not shutil.which(_QEMU):
            install_qemu()
        made = disk.made(linux=qemu)
        self.shared.mkdir(parents=True)
        for file in made.iterdir():
            process.run(["cp", "--sparse=always", str(file), str(self.folder)])
        disk.packages(self.folder / "packages.img")

    def start(self, *, apart: bool = False) -> None:
        """Switch it on and wait for the end of its start. `apart`: it outlives this process."""
        argv = self._qemu_argv() if self.emulated else self._uml_argv()
        before = self.boots()
        with (self.folder / "console").open("ab") as console:
            self._holder = subprocess.Popen(
                # a shell that stays: the machine ends with its parent
                ["/bin/sh", "-c", '"$@"; exit', "sh", *argv] if apart else argv,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        (self.folder / "pid").write_text(f"{self._holder.pid}\n")
        self._wait_for_boot(before)

    def runs(self) -> bool:
        """Return whether it is on."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            os.killpg(int((self.folder / "pid").read_text()), 0)
            return True
        return False

    def cut(self) -> None:
        """Cut the power: every process of the machine ends at once, and nothing more is written to its disk."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            os.killpg(int((self.folder / "pid").read_text()), signal.SIGKILL)
        if self._holder is not None:
            self._holder.wait()
            self._holder = None
        (self.folder / "pid").unlink(missing_ok=True)
        self._forget_commands()

    def reboot(self) -> None:
        """Reboot it as its administrator does."""
        before = self.boots()
        self.note("# systemctl reboot", indent="    ")
        self.run("{ sleep 1; systemctl reboot; } &", quiet=True)  # its answer could not come any more
        self._wait_for_boot(before)

    def boots(self) -> list[str]:
        """Return the boot id of each start so far."""
        with contextlib.suppress(FileNotFoundError):
            return (self.shared / "boots").read_text().split()
        return []

    def run(
        self,
        script: str,
        *,
        user: str = "root",
        before: str = "",
        answer: str = "",
        check: bool = True,
        timeout_s: float = COMMAND_S,
        quiet: bool = False,
    ) -> Said:
        """Run a bash script on the machine, as a user in his home.

        `before` runs first, and is not logged; with `quiet`, nothing is. `answer`: what the script reads, a line.
        Raises CommandFailed for a code other than 0, unless `check` is off, and NotDone after `timeout_s`.
        """
        self._number += 1
        file = self.shared / f"{os.getpid()}-{self._number}"
        text = f"{before}\nexec <<<{shlex.quote(answer)}\n{script}" if before or answer else script
        if user != "root":
            words = f"cd; {script}"
            text = f"runuser -u {user} -- env HOME=/home/{user} USER={user} LOGNAME={user} bash -c {shlex.quote(words)}"
        file.with_suffix(".new").write_text(f"{text}\n")
        file.with_suffix(".new").rename(file.with_suffix(".cmd"))
        ended = file.with_suffix(".rc")
        process.wait_until(
            ended.exists, f"the end of `{script}`", timeout_s, every_s=0.02, why=lambda: self._what_it_says(file)
        )
        said = Said(int(ended.read_text()), file.with_suffix(".out").read_text(errors="replace"))
        for suffix in (".run", ".out", ".rc"):
            file.with_suffix(suffix).unlink()
        if not quiet:
            self.write(script, said, user)
        if check and said.code:
            raise CommandFailed([script], said.code, said.text)
        return said

    def ask(self, script: str, *, user: str = "root") -> str:
        """Return what a script prints, without blanks at its ends; it is not logged."""
        return self.run(script, user=user, quiet=True, check=False).text.strip()

    def until(self, condition: str, what: str = "", *, seconds: float = COMMAND_S, why: str = "true") -> None:
        """Wait on the machine until a bash condition holds. Raises NotDone, with what `why` prints, after `seconds`."""
        loop = (
            f"SECONDS=0\nuntil {condition}; do ((SECONDS < {seconds:.0f})) || exit 99; sleep 0.2; done >/dev/null 2>&1"
        )
        if self.run(loop, check=False, quiet=True, timeout_s=seconds + 60).code:
            raise NotDone(what or f"`{condition}`", seconds, self.ask(why))

    def write(self, script: str, said: Said, user: str) -> None:
        """Write a command to the log, as a terminal shows it."""
        if self.log is None:
            return
        sign = "#" if user == "root" else f"{user}$"
        lines = said.text.rstrip().splitlines()
        if len(lines) > _MOST_LINES:
            half = _MOST_LINES // 2
            lines = [*lines[:half], f"[... {len(lines) - 2 * half} lines]", *lines[-half:]]
        lines = [f"{sign} {textwrap.dedent(script).strip()}", *lines]
        if said.code:
            lines.append(f"[exit code {said.code}]")
        self.note("\n".join(lines), indent="    ")

    def note(self, text: str, *, indent: str = "") -> None:
        """Write text to the log."""
        if self.log is not None:
            self.log.write("".join(f"{indent}{line}".rstrip() + "\n" for line in text.splitlines()))
            self.log.flush()

    def _wait_for_boot(self, before: list[str]) -> None:
        process.wait_until(
            lambda: len(self.boots()) > len(before), "the start of the machine", BOOT_S, why=self._console
        )
        ready = "[[ $(systemctl is-system-running) =~ ^(running|degraded)$ ]]"
        self.until(ready, "the end of systemd's start", seconds=BOOT_S, why="systemctl list-jobs")

    def _uml_argv(self) -> list[str]:
        inside = f"{kernel.MACHINE}{self.folder}"
        words = [f"mem={MEMORY}", f"ubd0={inside}/disk.img", f"ubd1={inside}/packages.img", "root=/dev/ubda", "rw"]
        words += ["rootfstype=ext4", f"shared={inside}/shared", "con0=null,fd:1", "console=tty0"]
        return kernel.start_argv(kernel.provide(), [*words, *kernel.FLAGS])

    def _qemu_argv(self) -> list[str]:
        here = self.folder
        words = [_QEMU, "-machine", "q35", "-cpu", "max", "-smp", str(disk.CPUS), "-m", MEMORY]
        words += ["-accel", "tcg,thread=multi,tb-size=512", "-nographic", "-nodefaults", "-serial", "stdio"]
        words += ["-kernel", str(here / "vmlinuz"), "-initrd", str(here / "initrd")]
        words += ["-append", "root=/dev/vda rootfstype=ext4 rw console=ttyS0 quiet mitigations=off tsc=unstable"]
        words[-1] += " systemd.default_device_timeout_sec=900"  # of the disk with the packages: it takes a minute
        for name in ("disk", "packages"):
            words += ["-drive", f"file={here}/{name}.img,if=virtio,format=raw,cache=unsafe"]
        words += ["-device", "virtio-rng-pci"]
        words += ["-virtfs", f"local,path={here}/shared,mount_tag=shared,security_model=none"]
        return process.bound_to_us(words)

    def _forget_commands(self) -> None:
        for file in self.shared.glob("*-*.*"):
            file.unlink()

    def _console(self) -> str:
        return (self.folder / "console").read_text(errors="replace")[-3000:]

    def _what_it_says(self, file: Path) -> str:
        with contextlib.suppress(FileNotFoundError):
            return f"it said: {file.with_suffix('.out').read_text(errors='replace')[-2000:]}"
        return f"it was not begun; the machine's console: {self._console()}"


def install_qemu() -> None:
    """Install qemu with apt. Raises Misuse where it cannot be had."""
    try:
        process.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "qemu-system-x86"])
    except (OSError, CommandFailed) as error:
        raise Misuse(f"there is no {_QEMU} on this machine, and it cannot be installed: {error}") from error


@contextlib.contextmanager
def started(folder: Path, *, qemu: bool, log: TextIO | None = None) -> Iterator[WholeMachine]:
    """Yield a new machine that has booted; cut its power and remove its folder afterwards."""
    machine = WholeMachine(folder, log)
    try:
        machine.prepare(qemu=qemu)
        begin = time.monotonic()
        machine.start()
        machine.note(f"The machine has started after {time.monotonic() - begin:.0f} s.")
        yield machine
    finally:
        machine.cut()
        shutil.rmtree(folder, ignore_errors=True)
