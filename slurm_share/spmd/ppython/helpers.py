"""pPython's helpers that programs call directly: commands of the shell, and names of message files.

Nothing here writes message files; the names are those that pPython would use.
"""

from __future__ import annotations

import os
import subprocess
from typing import IO, Any

from ..errors import UsageError


class ExecShellCmd:
    """Run a command in the shell, and read what it prints. `transport_cmd`: a command before it, such as `ssh host`."""

    def __init__(self, transport_cmd: str = "") -> None:
        self.name = ""
        self.transport_cmd = transport_cmd
        self.procObj: subprocess.Popen[bytes] | None = None
        """The process, None before run()."""

    def run(self, cmdstr: str, stdIn: Any = None) -> None:
        """Start the command; do not wait for it. It is not a rank of the run."""
        words = f"{self.transport_cmd} {cmdstr}" if self.transport_cmd else cmdstr
        self.procObj = subprocess.Popen(
            words,
            shell=True,
            stdin=stdIn or None,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if not name.startswith("LLSUB_")},
        )

    def get_stdout(self) -> IO[bytes] | None:
        """Return the stream of its output."""
        return self._process().stdout

    def get_output(self) -> str:
        """Wait for the command and return its output."""
        return self._process().communicate()[0].decode()

    def print_output(self, hdr1: str | None = None) -> None:
        """Wait for the command and print its output after the line `hdr1`."""
        output = self.get_output()
        for text in filter(None, (hdr1, output)):
            print(text)
        self.close()

    def get_stderr(self) -> str:
        """Wait for the command and return its errors."""
        return self._process().communicate()[1].decode()

    def close(self) -> None:
        """Close the stream of its output."""
        stream = self._process().stdout
        if stream is not None:
            stream.close()

    def _process(self) -> subprocess.Popen[bytes]:
        if self.procObj is None:
            raise UsageError("ExecShellCmd has no command yet: call run() first")
        return self.procObj


def pyMPI_Buffer_file(
    source: int, dest: int, tag: Any, comm: dict[str, Any], *, local_fs: int = 0, msg_type: str = "", innode: int = 0
) -> str:
    """Return the name of the file in which pPython keeps a message. There is no such file here: messages need none."""
    return _message_file(source, dest, tag, comm, local_fs, msg_type, innode, "buffer")


def pyMPI_Lock_file(
    source: int, dest: int, tag: Any, comm: dict[str, Any], *, local_fs: int = 0, msg_type: str = "", innode: int = 0
) -> str:
    """Return the name of the file that tells that a message is whole in pPython. There is no such file here."""
    return _message_file(source, dest, tag, comm, local_fs, msg_type, innode, "lock")


def _message_file(
    source: int, dest: int, tag: Any, comm: dict[str, Any], local_fs: int, msg_type: str, innode: int, kind: str
) -> str:
    nodes = comm["machine_id"]
    for rank in (source, dest):
        if not 0 <= rank < len(nodes):
            raise UsageError(f"there is no rank {rank}: the run has ranks 0 to {len(nodes) - 1}")
    from_sender = not local_fs or (msg_type == "send" and not innode)
    folders = comm["tmpdir"] if local_fs else comm["machine_db"]["dir"]
    return f"{folders[nodes[source if from_sender else dest]]}{os.sep}p{source}_p{dest}_t{tag}_{kind}.pkl"
