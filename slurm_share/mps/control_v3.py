"""Ask an MPS control daemon with protocol 3 (driver 615 or newer), with the functions of control.py.

A command is in the arguments of the control program, which ends with another exit code than 0 if the daemon refuses it
(docs.nvidia.com/deploy/mps, release 615; kai-gpu-fractioning). Whether a daemon serves front ends in parallel is not
known, so each call holds the lock of control.py, and is repeated while the daemon is busy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ..core import process
from ..core.errors import CommandError, MpsFolderError, MpsGoneError, MpsRefusedError, MpsSilentError, shown
from ..core.process import Deadline
from . import control
from .records import MpsPlace, MpsServer, Namespace
from .rules import namespaces as rules

PROTOCOL = "3"
TERMINATE_S = 2.0
"""How long `client terminate` may wait for a client to leave the GPU: it never returns for one that hangs."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    _Listed = TypeVar("_Listed")


START_FILE = "servers.toml"
"""The file, in its pipe directory, with which a daemon starts. Root's, and read once."""


def check_sockets(place: MpsPlace) -> None:
    """Raise MpsFolderError if a socket of a namespace would have too long a path: the daemon writes no log of that."""
    size = rules.socket_size(place.pipe, place.namespaces)
    if size > rules.SOCKET_MAX_BYTES:
        why = f"would have a socket with a path of {size} bytes, of {rules.SOCKET_MAX_BYTES} possible"
        raise MpsFolderError(place.pipe, f"{why}: choose a shorter root")


def start_files(place: MpsPlace) -> dict[str, str]:
    """Return the files with which the daemon starts, by name."""
    return {START_FILE: rules.render_file(place.owner.uid, place.gpu, place.namespaces)}


def start_options(place: MpsPlace) -> list[str]:
    return ["-p", "3", "-d", "-a", f"{place.pipe}/{START_FILE}"]


def ask(place: MpsPlace, words: Sequence[str], deadline: Deadline) -> str:
    """Return the daemon's answer to one command.

    Raises MpsGoneError, MpsSilentError, MpsMissingError; MpsRefusedError if the command fails.
    """
    with control.held(control.ui_lock(place), place, deadline):
        while True:
            finished = _front_end(place, words, deadline)
            said = f"{finished.stdout}\n{finished.stderr}"
            if finished.code == 0:
                return finished.stdout.strip()
            if control.GONE in said:
                raise MpsGoneError(place.pipe, "there is no daemon")
            if control.BUSY not in said:
                raise MpsRefusedError(place.pipe, f"{' '.join(words)}: {shown(said.strip(), 200)}")
            if deadline.left() <= control.RETRY_S:
                raise MpsSilentError(place.pipe, "its daemon is busy with another front end, or hangs")
            time.sleep(control.RETRY_S)


def _front_end(place: MpsPlace, words: Sequence[str], deadline: Deadline) -> process.Finished:
    left_s = deadline.left()
    try:
        return process.exchange(
            [place.program, *words],
            timeout_s=max(left_s, control.LEAST_S),
            env=control.environment(place, PROTOCOL),
            owner=place.owner,
            group=place.group,
        )
    except CommandError as error:
        raise control.no_answer(place, left_s, error) from error


def _list(place: MpsPlace, module: str, parse: Callable[[str], _Listed | None], deadline: Deadline) -> _Listed:
    words = rules.list_words(module)
    text = ask(place, words, deadline)
    found = parse(text)
    if found is None:
        raise MpsRefusedError(place.pipe, f"{' '.join(words)}: its answer is not understood: {shown(text, 200)}")
    return found


def read_servers(place: MpsPlace, deadline: Deadline) -> tuple[MpsServer, ...]:
    return _list(place, "server", rules.parse_servers, deadline)


def read_clients(place: MpsPlace, server_pid: int, deadline: Deadline) -> tuple[int, ...]:
    """Return the pids of the clients of our server, in all its namespaces."""
    return _list(place, "client", rules.parse_clients, deadline)


def start_server(place: MpsPlace, deadline: Deadline) -> None:
    """Do nothing: the daemon starts the server of its file."""


def terminate_client(place: MpsPlace, server_pid: int, client_pid: int, deadline: Deadline) -> bool:
    """End one client's work on the GPU; return False if there is no such client, or if it does not leave in time."""
    try:
        ask(place, ["client", "terminate", str(client_pid)], deadline.at_most(TERMINATE_S))
    except (MpsRefusedError, MpsSilentError):
        return False
    return True


def tell_quit(place: MpsPlace, deadline: Deadline) -> None:
    """End the daemon and its servers. Only its lock tells whether it has ended. Raises as `ask` does."""
    ask(place, ["-q"], deadline)


def ensure(place: MpsPlace, deadline: Deadline) -> tuple[str, ...]:
    """Give the daemon the namespaces of `place`, with their caps; return a sentence for each that was made or changed.

    A namespace that has a client cannot be changed: its task's caps stay as they are to its end.
    Raises MpsRefusedError, also if the daemon lists other caps afterwards; and as `ask` does.
    """
    missing = rules.different(place.namespaces, read_namespaces(place, deadline))
    if not missing:
        return ()
    there = {one.name for one in read_namespaces(place, deadline)}
    for one in missing:
        if one.name in there:
            ask(place, rules.delete_words(one.name), deadline)
        ask(place, rules.create_words(one.name), deadline)
        if words := rules.set_words(one):
            ask(place, words, deadline)
    wrong = rules.different(place.namespaces, read_namespaces(place, deadline))
    if wrong:
        raise MpsRefusedError(place.pipe, f"its namespace {wrong[0].name} does not have the caps that it was given")
    return tuple(f"namespace {one.name} was made" for one in missing)


def read_namespaces(place: MpsPlace, deadline: Deadline) -> tuple[Namespace, ...]:
    return _list(place, "namespace", rules.parse_namespaces, deadline)
