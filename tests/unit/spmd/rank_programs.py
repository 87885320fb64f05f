"""Programs for the ranks of transport tests; each function gets the transport."""

from __future__ import annotations

import contextlib
import os
import random
import runpy
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from at_each_step import Interrupted

from slurm_share.spmd import COMM_WORLD, codec, world
from slurm_share.spmd.envelope import RAW
from slurm_share.spmd.errors import PeerEnded, SpmdError, UsageError
from slurm_share.spmd.transport import USER


def send(transport: Any, dest: int, tag: Any, value: Any) -> None:
    transport.send(dest, USER, tag, *codec.encode(value))


def recv(transport: Any, source: int | None, tag: Any, timeout_s: float | None = None) -> Any:
    message = transport.receive(source, USER, tag, "recv", timeout_s)
    return codec.decode(message.envelope.form, message.envelope.meta, message.take())


def several(transport: Any, programs: list[str]) -> dict[str, Any]:
    """Run several programs one after the other; return what each returned."""
    return {name: globals()[name](transport) for name in programs}


def run_file(transport: Any, path: str, *args: str) -> None:
    """Run a program that uses COMM_WORLD; its arguments are in `sys.argv`."""
    sys.argv = [path, *args]
    runpy.run_path(path, run_name="__main__")


def all_first(transport: Any, count: int, size: int) -> int:
    """Send messages to every other before the first receive; return how many came right."""
    rng = np.random.default_rng(transport.rank)
    body = rng.integers(0, 255, size, dtype=np.uint8)
    others = [rank for rank in range(transport.size) if rank != transport.rank]
    for number in range(count):
        body[:8] = np.frombuffer(number.to_bytes(8, "little"), np.uint8)
        for other in others:
            transport.send(other, USER, 5, RAW, b"", [body.data])
    right = 0
    for other in others:
        expected = np.random.default_rng(other).integers(0, 255, size, dtype=np.uint8)
        for number in range(count):
            body = np.frombuffer(transport.receive(other, USER, 5, "recv").take(), np.uint8)
            expected[:8] = np.frombuffer(number.to_bytes(8, "little"), np.uint8)
            right += bool(np.array_equal(body, expected))
    return right


def array_cases(transport: Any, first: int, count: int) -> None:
    """Compare random distributed arrays with NumPy."""
    from array_cases import run_cases

    from slurm_share.spmd.comm import Comm

    run_cases(Comm(transport), first, count)


def order(transport: Any) -> list[Any]:
    """Mixed sizes under one tag come in the order in which they were sent, over and past the backlog."""
    sizes = [10, 5_000_000, 20, 100_000, 70_000_000, 0, 3_000_000, 17_000, 1, 5_000_000, 5_000_000, 8] * 2
    if transport.rank == 0:
        for number, size in enumerate(sizes):
            transport.send(1, USER, "t", RAW, str(number).encode(), [memoryview(bytes([number]) * size)])
        recv(transport, 1, "done")
        return []
    found = []
    for number, size in enumerate(sizes):
        message = transport.receive(0, USER, "t", "recv")
        body = np.frombuffer(message.take(), np.uint8)
        found.append((int(message.envelope.meta), body.nbytes == size, bool(np.all(body == number))))
    send(transport, 0, "done", None)
    return found


def tags(transport: Any) -> Any:
    """Rank 0 sends under several tags; rank 1 takes them in another order, probes, and puts one back."""
    if transport.rank == 0:
        for tag, value in ((1, "one"), ("1", "string one"), (-5, "minus"), ("", "empty"), ("é" * 100, "long")):
            send(transport, 1, tag, value)
        send(transport, 1, 9, "last")
        return recv(transport, 1, 0)
    last = recv(transport, 0, 9)
    waiting = [(one.source, one.tag) for one in transport.waiting()]
    missing = transport.probe(0, USER, 2)
    found = transport.probe(None, USER, "1")
    message = transport.receive(0, USER, "1", "recv")
    transport.put_back(message)
    values = [recv(transport, 0, tag) for tag in ("é" * 100, "1", 1)]
    rest = [recv(transport, None, None), recv(transport, None, None)]
    send(transport, 0, 0, "done")
    return last, waiting, missing, found.tag, values, rest


def any_source(transport: Any) -> Any:
    """All send to rank 0, which takes whatever comes."""
    count = 300
    if transport.rank:
        for number in range(count):
            send(transport, 0, transport.rank, (transport.rank, number))
        return None
    found = [recv(transport, None, None) for _ in range(count * (transport.size - 1))]
    by_rank = {rank: [n for r, n in found if r == rank] for rank in range(1, transport.size)}
    return all(numbers == list(range(count)) for numbers in by_rank.values())


def window(transport: Any) -> Any:
    """Every rank writes its block into rank 0's window; used three times over."""
    found = []
    for turn in range(3):
        if transport.rank == 0:
            made = transport.window(transport.size * 8)
            made.memory[: transport.size * 8] = bytes(transport.size * 8)
            for rank in range(1, transport.size):
                transport.send(rank, USER, "window", RAW, b"", [], made)
            for rank in range(1, transport.size):
                recv(transport, rank, "written")
            found.append(list(np.frombuffer(made.memory[: transport.size * 8], np.int64)))
            made.release()
        else:
            memory = transport.receive(0, USER, "window", "recv").window
            np.frombuffer(memory, np.int64)[transport.rank] = transport.rank * 10 + turn
            send(transport, 0, "written", None)
    return found


def many_times(transport: Any, size: int, count: int) -> Any:
    """Rank 0 sends one message many times; return what both have open and how much of it is shared memory."""
    body = np.ones(size, np.uint8)
    for number in range(count):
        if transport.rank == 0:
            transport.send(1, USER, 0, RAW, b"", [body.data])
            if number % 4 == 3:
                recv(transport, 1, "taken")
        else:
            transport.receive(0, USER, 0, "recv").take()
            if number % 4 == 3:
                send(transport, 0, "taken", None)
    return len(list(Path("/proc/self/fd").iterdir())), shared_bytes()


def shared_bytes() -> int:
    """Return how many bytes of memfd segments this process has mapped."""
    total = 0
    with open("/proc/self/maps") as stream:
        for line in stream:
            if "memfd:slurm-share" in line:
                begin, end = line.split()[0].split("-")
                total += int(end, 16) - int(begin, 16)
    return total


def receive_from_flag_on(transport: Any, size: int, count: int, flag: str, sent: str) -> Any:
    """Rank 0 makes the file `sent` after its sends; rank 1 receives when `flag` exists, and returns its bytes."""
    if transport.rank == 0:
        for _ in range(count):
            transport.send(1, USER, 0, RAW, b"", [memoryview(bytes(size))])
        Path(sent).touch()
        return None
    while not Path(flag).exists():
        time.sleep(0.01)
    return sum(transport.receive(0, USER, 0, "recv").take().nbytes for _ in range(count))


def send_and_leave(transport: Any, count: int, size: int) -> Any:
    """Rank 0 sends and ends at once; rank 1 takes all of it late, and then waits for more."""
    if transport.rank == 0:
        for number in range(count):
            transport.send(1, USER, number, RAW, b"", [memoryview(bytes([number % 256]) * size)])
        return None
    time.sleep(1.0)
    right = 0
    for number in range(count):
        body = transport.receive(0, USER, number, "recv").take()
        right += bytes(body) == bytes([number % 256]) * size
    try:
        transport.receive(0, USER, None, "recv")
    except SpmdError as error:
        return right, str(error)
    return right, None


def wait_for(transport: Any, source: int | None, context: int, sleeper: int) -> Any:
    """Rank `sleeper` sleeps; the others wait for a message that never comes, and return the error and when it came."""
    if transport.rank == sleeper:
        time.sleep(3600)
    try:
        if source == transport.rank:
            source = None
        transport.receive(source, context, "x", "recv")
    except SpmdError as error:
        return error, time.time()
    return None


def send_until_error(transport: Any, size: int) -> Any:
    """Rank 1 sleeps; rank 0 sends without an end."""
    if transport.rank == 1:
        time.sleep(3600)
    body = memoryview(bytes(size))
    try:
        while True:
            transport.send(1, USER, 0, RAW, b"", [body])
            time.sleep(0.001)
    except SpmdError as error:
        return error, time.time()


def leave_one_by_one(transport: Any) -> Any:
    """The others send one message and end; rank 0 takes them from any source until nobody is left."""
    if transport.rank:
        time.sleep(0.2 * transport.rank)
        send(transport, 0, 0, transport.rank)
        return None
    found = []
    try:
        while True:
            found.append(recv(transport, None, None))
    except SpmdError as error:
        return sorted(found), str(error)


def forks(transport: Any) -> Any:
    """The child's call raises; the parent's messages go on."""
    other = 1 - transport.rank
    send(transport, other, 0, "before")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            world.transport()
            said = "no error"
        except UsageError as error:
            said = str(error)
        try:
            transport.send(other, USER, 0, RAW, b"", [])
            said = "the child could send"
        except UsageError:
            pass
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    said = os.read(reading, 4096).decode()
    os.waitpid(child, 0)
    send(transport, other, 1, "after")
    return said, recv(transport, other, 0), recv(transport, other, 1)


def threads(transport: Any) -> Any:
    """Eight threads send and receive at once, each under a tag of its own, started in another order on each rank."""
    count = 40
    other = 1 - transport.rank
    found: dict[int, bool] = {}

    def work(number: int) -> None:
        right = True
        for turn in range(count):
            send(transport, other, number, (number, turn, np.full(number * 4000, turn)))
            got = recv(transport, other, number)
            right = right and got[:2] == (number, turn) and bool(np.all(got[2] == turn))
        found[number] = right

    numbers = range(8) if transport.rank == 0 else range(7, -1, -1)
    workers = [threading.Thread(target=work, args=(number,)) for number in numbers]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sorted(found.items())


def thread_feeds_itself(transport: Any) -> Any:
    """A thread waits for what the main thread of the same rank sends later."""
    found: list[Any] = []
    waiter = threading.Thread(target=lambda: found.append(recv(transport, transport.rank, "late")))
    waiter.start()
    time.sleep(0.2)
    send(transport, transport.rank, "late", "came")
    waiter.join(10)
    return found


def interrupted(transport: Any, count: int) -> Any:
    """Rank 0 gets SIGINT again and again while it receives; return how many messages came right, and how often."""
    if transport.rank == 1:
        for number in range(count):
            send(transport, 0, 0, (number, np.full(number % 50_000, number)))
        return None
    armed, finished = threading.Event(), False
    interrupts = 0
    kept: list[Any] = []

    def interrupt() -> None:
        while not finished:
            armed.wait(0.1)
            time.sleep(0.002)
            if armed.is_set():
                armed.clear()  # one interrupt each time
                os.kill(os.getpid(), signal.SIGINT)

    worker = threading.Thread(target=interrupt)
    worker.start()
    while not finished:
        try:
            armed.set()
            while len(kept) < count:
                # One step of the interpreter, so that no interrupt comes between a message and its place in the list.
                kept.extend(map(transport.receive, (1,), (USER,), (0,), ("recv",)))
            armed.clear()
            time.sleep(0.1)
            finished = True
        except KeyboardInterrupt:
            interrupts += 1
    worker.join()
    right = 0
    for number, message in enumerate(kept):
        got = codec.decode(message.envelope.form, message.envelope.meta, message.take())
        right += got[0] == number and got[1].size == number % 50_000
    return right, interrupts


def interrupted_at_random(_transport: Any, interrupts: int, threads: int) -> Any:
    """Rank 0 receives until a timer has interrupted so many of its receives; return what was wrong, and how much came.

    Bodies of all sizes go through rings, sockets and segments. `threads`: other threads of rank 0 that receive too.
    """
    comm = COMM_WORLD
    sizes = (0, 10, 3_000, 70_000, 1_500_000)
    if comm.rank == 1:
        number = 0
        while not comm.iprobe(0, "enough"):
            comm.send((number, np.full(sizes[number % 5], number % 251, np.uint8)), 0, "numbered")
            number += 1
            if number % 16 == 0:
                comm.recv(None, 0, "more")
        comm.send((None, None), 0, "numbered")
        return None

    class Interruption(Exception):
        pass

    receive, times, rng = type(comm).recv, 0, random.Random(1)
    code = receive.__code__

    def handler(_number: int, frame: Any) -> None:
        nonlocal times
        while frame is not None:
            if frame.f_code is code:
                times += 1
                raise Interruption
            frame = frame.f_back
        signal.setitimer(signal.ITIMER_REAL, 0.0003)  # not in a receive: the program's own steps are not at stake

    def other(name: str) -> None:
        with contextlib.suppress(SpmdError):
            while comm.recv(None, 0, name) is not None:
                pass

    workers = [threading.Thread(target=other, args=(f"thread {number}",)) for number in range(threads)]
    for worker in workers:
        worker.start()
    signal.signal(signal.SIGALRM, handler)
    expected, wrong, is_told = 0, [], False
    while True:
        if times >= interrupts and not is_told:
            comm.send(None, 1, "enough")
            is_told = True
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0001, 0.003))
        try:
            got = comm.recv(None, 1, "numbered", timeout_s=20 if expected % 2 else None)
        except Interruption:
            continue
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        number, body = got
        if number is None:
            break
        if number != expected or body.size != sizes[number % 5] or not (body == number % 251).all():
            wrong.append((expected, number))
        expected += 1
        if expected % 16 == 0:
            for worker in range(threads):
                comm.send(expected, 0, f"thread {worker}")
            comm.send(None, 1, "more")
    for worker in range(threads):
        comm.send(None, 0, f"thread {worker}")
    for thread in workers:
        thread.join()
    return wrong, times, expected


def interrupted_at_each_step(transport: Any, call: str, how: str, size: int) -> Any:
    """Rank 0 is interrupted at the 1st, 2nd, ... step of a call, until the call ends before; return what went wrong.

    `call`: "receive" or "send". After each interrupt the message must arrive once, whole and in order: rank 0 calls
    again if it did not. `how`: "signal", whose handler raises, or "exception", as another thread raises it.
    """
    body = np.zeros(size, np.uint8)
    number, wrong = 0, []
    while transport.rank == 1:
        try:
            if call == "receive":
                if not recv(transport, 0, "more"):
                    return None
                time.sleep(0.002 * (number % 2))
                send(transport, 0, "numbered", (number, body))
            else:
                message = transport.receive(0, USER, None, "recv")
                if message.envelope.tag == "count":
                    send(transport, 0, "counted", number)
                    continue
                got = codec.decode(message.envelope.form, message.envelope.meta, message.take())
                if got is None:
                    return None
                assert got[0] == number
                assert got[1].size == size
            number += 1
        except PeerEnded:
            return None  # rank 0 tells what was wrong

    class Interruption(Exception):
        pass

    def handler(*_arguments: object) -> None:
        raise Interruption

    signal.signal(signal.SIGUSR1, handler)
    act = partial(signal.raise_signal, signal.SIGUSR1) if how == "signal" else handler
    where = "the begin"
    while where and not wrong:
        if call == "receive":
            send(transport, 1, "more", True)
        message, interrupted = None, Interrupted(number + 1, act)
        try:
            with interrupted:
                if call == "receive":
                    message = transport.receive(1, USER, "numbered", "recv")
                else:
                    transport.send(1, USER, "numbered", *codec.encode((number, body)))
                    message = True
        except Interruption:
            pass
        where = interrupted.where
        if not transport._lock.lock.acquire(timeout=2.0):
            return [(where, "the lock is held")], number
        transport._lock.lock.release()
        try:
            if call == "receive":
                message = message or transport.receive(1, USER, "numbered", "recv", 5.0)
                got = codec.decode(message.envelope.form, message.envelope.meta, message.take())
                right = got[0] == number and got[1].size == size
            else:
                send(transport, 1, "count", None)  # it comes after the message, if that was sent
                arrived = recv(transport, 1, "counted", 10.0)
                right = arrived == number + 1 or (not message and arrived == number)
                if arrived == number:
                    send(transport, 1, "numbered", (number, body))
            if not right:
                wrong.append((where, "another message"))
        except SpmdError as error:
            wrong.append((where, str(error)))
        number += 1
    send(transport, 1, "more", False) if call == "receive" else send(transport, 1, "numbered", None)
    return wrong, number


def idle(transport: Any, wait_s: float) -> Any:
    """Rank 1 waits for rank 0, which sleeps; return the CPU time of the wait and the threads of rank 1."""
    if transport.rank == 0:
        time.sleep(wait_s)
        send(transport, 1, 0, None)
        return None
    before = time.process_time()
    recv(transport, 0, 0)
    return time.process_time() - before, threading.active_count()


def serve(transport: Any, count: int, patience_s: float) -> Any:
    """The ranks send each other small and large messages for a while; return how many came right."""
    other = 1 - transport.rank
    right = 0
    for number in range(count):
        send(transport, other, 0, (number, np.full(number * 1000, number)))
        got = recv(transport, other, 0, 30)
        right += got[0] == number and got[1].size == number * 1000
        time.sleep(patience_s / count)
    return right


def stop_in_a_ring_frame(transport: Any) -> Any:
    """Rank 1 stops when it has written the frame after 20 messages and not yet shown it; rank 0 receives."""
    from slurm_share.spmd import rings

    if transport.rank == 0:
        values = []
        while True:
            try:
                values.append(recv(transport, 1, None))
                send(transport, 1, "go on", 0)
            except SpmdError as error:
                return values, error
    put = rings.RingWriter.put

    def stop(self: Any, *arguments: Any) -> int:
        head = put(self, *arguments)
        if head:
            os.kill(os.getpid(), signal.SIGSTOP)
        return head

    for number in range(20):
        send(transport, 0, 0, number)
        recv(transport, 0, "go on")
    rings.RingWriter.put = stop  # type: ignore[method-assign]
    while True:  # until the receiver is awake, so that the frame goes into the ring
        send(transport, 0, 0, bytes(3000))
        recv(transport, 0, "go on")


def fork_beside_a_ring(transport: Any) -> Any:
    from slurm_share.spmd.rings import HEAD, RING_MESSAGES

    if transport.rank == 1:
        return [recv(transport, 0, None) for _ in range(RING_MESSAGES + 3)]
    for number in range(RING_MESSAGES + 2):
        send(transport, 1, 0, number)
    words = transport._peers.ringed[1].ring.words
    before = words[HEAD]
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            send(transport, 1, 0, "from the child")
        except UsageError as error:
            os.write(writing, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    said = os.read(reading, 10_000).decode()
    heads = before, words[HEAD]
    send(transport, 1, 0, RING_MESSAGES + 2)
    return UsageError(said) if said else None, heads


def nested_communicators(transport: Any, seed: int, steps: int) -> int:
    """Make random communicators and calls on them; return their number."""
    from communicator_cases import run_nested

    from slurm_share.spmd.comm import Comm

    return run_nested(Comm(transport), seed, steps)


def alone_in_a_part(transport: Any, how: str) -> Any:
    """Rank 1 leaves the part of ranks 1, 3 and 4, in the way `how`; the others go on. Return the errors."""
    from slurm_share.spmd.comm import Comm

    comm = Comm(transport)
    part = comm.Split(comm.rank in (1, 3, 4), -comm.rank)
    if comm.rank in (1, 4):
        if how == "exit" and comm.rank == 1:
            os._exit(3)
        return None
    if comm.rank == 3:
        try:
            part.recv() if how == "any" else part.recv(source=2)
        except SpmdError as error:
            comm.send("done", 0)
            comm.send("done", 2)
            return str(error)
    return comm.recv(source=3)


def many_communicators(transport: Any, count: int) -> Any:
    """Make and drop communicators that use shared windows; return the shared memory and the open files."""
    import gc

    from slurm_share.spmd.comm import Comm

    comm = Comm(transport)
    for number in range(count):
        twin = comm.Dup()
        body = np.full(1 << 19, float(number + comm.rank))
        total = np.empty_like(body)
        twin.Allreduce(body, total)
        assert total[0] == 2 * number + 1
        twin.Bcast(body, 1)
        assert body[-1] == number + 1
        del twin
        gc.collect()
    return len(list(Path("/proc/self/fd").iterdir())), shared_bytes()
