"""A master gives out tasks, and takes results from any worker, by tags."""

from mpi4py import MPI

READY, START, DONE, EXIT = range(4)


def work(number: int) -> int:
    """Return the number of steps of Collatz' sequence."""
    steps = 0
    while number != 1:
        number = number // 2 if number % 2 == 0 else 3 * number + 1
        steps += 1
    return steps


comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
status = MPI.Status()
tasks = list(range(1, 60))

if rank == 0:
    results: dict[int, int] = {}
    done_by: dict[int, int] = dict.fromkeys(range(size), 0)
    closed, following = 0, iter(tasks)
    if size == 1:
        results = {task: work(task) for task in tasks}
    while closed < size - 1:
        data = comm.recv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status)
        source, tag = status.Get_source(), status.Get_tag()
        if tag == READY:
            task = next(following, None)
            if task is None:
                comm.send(None, dest=source, tag=EXIT)
            else:
                comm.send(task, dest=source, tag=START)
        elif tag == DONE:
            task, result = data
            results[task] = result
            done_by[source] += 1
        elif tag == EXIT:
            closed += 1
    longest = max(results, key=lambda task: (results[task], -task))
    print(f"{len(results)} tasks, {sum(results.values())} steps, longest {longest} with {results[longest]}")
    print("every task was done by a worker:", size == 1 or sum(done_by.values()) == len(tasks))
else:
    while True:
        comm.send(None, dest=0, tag=READY)
        task = comm.recv(source=0, tag=MPI.ANY_TAG, status=status)
        if status.tag == START:
            comm.send((task, work(task)), 0, DONE)
        elif status.tag == EXIT:
            break
    comm.send(None, dest=0, tag=EXIT)
