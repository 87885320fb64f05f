"""All errors of slurm-share.

SlurmShareError              base of all; its text is a sentence for a person
├── UsageError               a mistake of the user: exit 2
│   ├── OptionError          a --share-gpu value that is not in the valid form
│   └── ConfigError          a configuration file with an unknown key or a wrong value
├── HookEnvError             a hook's environment that does not describe a job
├── DriverError              the NVIDIA driver did not answer, or not for every GPU
├── StateError               a ledger or plan that cannot be read or written
├── LaunchError              a node that cannot run the processes of a triple
├── MpsError                 one MPS control daemon did not do what it should; keeps its pipe directory
│   ├── MpsMissingError      there is no nvidia-cuda-mps-control here: this node has no MPS
│   ├── MpsFolderError       the path of its folder is too long, or the folder is another user's or cannot be made
│   ├── MpsGoneError         no daemon runs
│   ├── MpsSilentError       it runs and did not answer in time
│   ├── MpsRefusedError      it answered that it did not carry out the command
│   ├── MpsForeignError      another process holds its lock
│   └── MpsServerError       its server does not start, or is in state FAULT
└── CommandError             a program failed, hung or is missing; keeps command, output and code
    └── SlurmSilentError     Slurm's controller does not answer
"""

from __future__ import annotations

from . import names


class SlurmShareError(Exception):
    """Base of every error of this package; `str()` is one sentence."""


class UsageError(SlurmShareError):
    """A mistake that the user can correct; commands exit with 2."""


class OptionError(UsageError):
    """A --share-gpu value outside its valid form. The plugin says what is wrong with it; job_submit.lua as we do."""

    def __init__(self, text: str, why: str = "") -> None:
        self.text = text
        """The value as given, of any length: print it with `shown()` only."""
        self.why = why
        """The reason if each part of the value is valid but the whole is not; empty: a part is not valid."""
        super().__init__(text, why)

    def __str__(self) -> str:
        option = f"--{names.OPTION}="
        if self.why:
            form = f"write {option}{names.OPTION_FORM}, for example {option}{names.OPTION_EXAMPLE}"
            return f"{option}{shown(self.text, 64)}: {self.why}; {form}"
        form = f"is not in the valid form {names.OPTION_FORM}, for example {option}{names.OPTION_EXAMPLE}"
        return f"{option}{shown(self.text, 40)} {form}"


class ConfigError(UsageError):
    """A configuration file with a mistake in it."""

    def __init__(self, file: str, why: str, key: str | None = None) -> None:
        self.file = file
        self.key = key
        self.why = why
        super().__init__(file, why, key)

    def __str__(self) -> str:
        where = self.file if self.key is None else f"{self.file}: {shown(self.key)}"
        return f"{where}: {self.why}"


class HookEnvError(SlurmShareError):
    """A hook was started with an environment that does not describe a job."""

    def __init__(self, variable: str, value: str | None) -> None:
        self.variable = variable
        self.value = value
        super().__init__(variable, value)

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.variable} is not set; slurmd sets it for every Prolog and Epilog: was this started by hand?"
        return f"{self.variable}={shown(self.value)} is not what slurmd writes there"


class DriverError(SlurmShareError):
    """The NVIDIA driver did not answer a call of NVML."""

    def __init__(self, call: str, reason: str) -> None:
        self.call = call
        self.reason = reason
        super().__init__(call, reason)

    def __str__(self) -> str:
        return f"the NVIDIA driver does not answer ({self.call}: {self.reason}); see nvidia-smi on this node"


class StateError(SlurmShareError):
    """A file that is truncated, belongs to another user or cannot be written."""

    def __init__(self, file: str, why: str) -> None:
        self.file = file
        self.why = why
        super().__init__(file, why)

    def __str__(self) -> str:
        return f"{self.file}: {self.why}"


class LaunchError(SlurmShareError):
    """A node cannot run its processes of a run."""


class MpsError(SlurmShareError):
    """A failure of one MPS control daemon, which `pipe` (its pipe directory) identifies."""

    def __init__(self, pipe: str, why: str) -> None:
        self.pipe = pipe
        self.why = why
        super().__init__(pipe, why)

    def __str__(self) -> str:
        return f"MPS in {self.pipe}: {self.why}"


class MpsMissingError(MpsError):
    """This node has no MPS control program."""


class MpsFolderError(MpsError):
    """The path of the daemon's folder is too long, or the folder is another user's or cannot be made."""


class MpsGoneError(MpsError):
    """No daemon runs with that pipe directory."""


class MpsSilentError(MpsError):
    """The daemon runs and did not answer in time."""


class MpsRefusedError(MpsError):
    """The daemon answered that it did not carry out the command."""


class MpsForeignError(MpsError):
    """A process that is not the owner's daemon holds the daemon's lock."""


class MpsServerError(MpsError):
    """The daemon has no server that accepts clients."""


class MpsPartitionError(MpsError):
    """The daemon does not have the static partitions that are wanted, or has some and none are."""


class CommandError(SlurmShareError):
    """A program that could not be started, failed, or took too long."""

    def __init__(self, argv: tuple[str, ...], code: int | None, stderr: str) -> None:
        self.argv = argv
        self.code = code
        """Exit code; None: not started, or killed after its timeout."""
        self.stderr = stderr
        super().__init__(argv, code, stderr)

    def __str__(self) -> str:
        how = "did not run" if self.code is None else f"ended with {self.code}"
        last = self.stderr.strip().splitlines()[-1:] or ["no message"]
        return f"{self.argv[0]} {how}: {shown(last[0], 300)}"


class SlurmSilentError(CommandError):
    """Slurm's controller answered neither the command nor `scontrol ping`."""

    def __init__(self, argv: tuple[str, ...], waited_s: float) -> None:
        self.waited_s = waited_s
        super().__init__(argv, None, f"Slurm does not answer: no word from its controller within {waited_s:g} s")

    def __str__(self) -> str:
        return (
            f"{self.stderr}, neither to {self.argv[0]} nor to scontrol ping; ask again in a while, or tell the "
            "administrators"
        )


def shown(text: str, limit: int = 80) -> str:
    """Return untrusted text made safe for a line of a log or a terminal: bounded, control characters escaped."""
    printable = text[:limit].encode("unicode_escape").decode("ascii")
    return repr(text[:limit]) + "..." if len(text) > limit else (printable if printable == text else repr(text))


def quoted(value: object, limit: int = 80) -> str:
    """Return the `repr` of an untrusted value for a log or a terminal: bounded, without control characters."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}..."
