"""Random posts, sends, probes, cancels and waits, of which each rank prints what it got. Same seed, same output.

The calls of all ranks are made from one list. Sends never wait for a receive that is not posted yet, and which message
a receive gets does not depend on time: no two ranks send to the same receive.
"""

import os
import random

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
seed = int(os.environ.get("REQUESTS_SEED", "1"))
lines = []


def told(status):
    return status.Get_source(), status.Get_tag()


def post(upper, source, wanted, rooms):
    """Post all receives of a turn."""
    if upper:
        return [comm.Irecv(room, source, tag) for room, tag in zip(rooms, wanted, strict=True)]
    return [comm.irecv(source=source, tag=tag) for tag in wanted]


for turn in range(30):
    rng = random.Random(f"{seed} {turn}")
    source, dest = rng.sample(range(size), 2) if size > 1 else (0, 0)
    count = rng.randint(1, 6)
    tags = [rng.choice([1, 2]) for _ in range(count)]
    wanted = [rng.choice([1, 2, MPI.ANY_TAG]) for _ in range(count)]
    early, upper, how = rng.random() < 0.5, rng.random() < 0.5, rng.choice(["all", "any", "some", "each", "test"])
    begin = rng.choice(["isend", "issend"])
    # The receives that get a message, by MPI's rule: the first in the order of posting that fits each message.
    given = {}
    for number, tag in enumerate(tags):
        for place, one in enumerate(wanted):
            if place not in given and one in (tag, MPI.ANY_TAG):
                given[place] = number
                break
    left = [number for number in range(count) if number not in given.values()]
    requests, rooms, sends = [], [np.full(3, -1.0) for _ in range(count)], []

    if rank == dest and early:
        requests = post(upper, source, wanted, rooms)
    comm.barrier()
    if rank == source:
        for number, tag in enumerate(tags):
            if upper:
                call = comm.Isend if begin == "isend" else comm.Issend
                sends.append(call(np.full(2, float(number)), dest, tag))
            else:
                sends.append(getattr(comm, begin)(("turn", turn, number), dest, tag))
    if size > 1:
        comm.barrier()
    if rank == dest:
        if not early:
            requests = post(upper, source, wanted, rooms)
        live = sorted(given)
        for place in range(count):
            if place not in given:
                status = MPI.Status()
                requests[place].Cancel()
                requests[place].Wait(status)
                lines.append((turn, place, "cancelled", status.Is_cancelled()))
        got = {}
        mine = [requests[place] for place in live]
        if how == "all":
            statuses = [MPI.Status() for _ in mine]
            values = MPI.Request.waitall(mine, statuses)
            got = dict(zip(live, zip(values, map(told, statuses), strict=False), strict=False))
        elif how == "any":
            while len(got) < len(live):
                status = MPI.Status()
                place, value = MPI.Request.waitany(mine, status)
                got[live[place]] = value, told(status)
            assert MPI.Request.waitany(mine) == (MPI.UNDEFINED, None)
        elif how == "some":
            while len(got) < len(live):
                statuses = [MPI.Status() for _ in mine]
                places, values = MPI.Request.waitsome(mine, statuses)
                for at, place in enumerate(places):
                    got[live[place]] = values[at], told(statuses[at])
        else:
            for place, request in zip(live, mine, strict=True):
                status = MPI.Status()
                if how == "each":
                    value = request.wait(status)
                else:
                    done = False
                    while not done:
                        done, value = request.test(status)
                got[place] = value, told(status)
        assert all(request == MPI.REQUEST_NULL for request in mine)
        for place in live:
            number = given[place]
            if upper:
                assert rooms[place].tolist() == [number, number, -1], (seed, turn, place, rooms[place])
            else:
                assert got[place][0] == ("turn", turn, number), (seed, turn, place, got[place])
            assert got[place][1] == (source, tags[number])
            lines.append((turn, place, got[place], rooms[place].tolist()))
        for number in left:
            status = MPI.Status()
            if number % 2:
                message = comm.mprobe(source, tags[number], status)
                value = message.recv() if not upper else message.Recv(rooms[0])
            else:
                assert comm.probe(source, tags[number], status)
                value = (
                    comm.recv(None, source, tags[number]) if not upper else comm.Recv(rooms[0], source, tags[number])
                )
            lines.append((turn, "left", number, value, told(status), status.Get_count() > 0, rooms[0].tolist()))
    MPI.Request.waitall(sends)
    comm.barrier()
assert not comm.iprobe()
comm.barrier()  # a message of what the ranks run next is not one of this program
for line in comm.gather(lines) or []:
    for one in line:
        print(*one)
