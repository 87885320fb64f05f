"""Prepare a node: workers with slots of a plan or GPUs assigned by the launcher; everything is released afterwards."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace
from plans import decided

from slurm_share.core import names, own_folders
from slurm_share.core.errors import LaunchError, StateError
from slurm_share.core.paths import Paths
from slurm_share.core.records import ProcessIdentity, ShareRequest
from slurm_share.core.settings import Settings
from slurm_share.mps import control
from slurm_share.mps import daemons as mp_daemons
from slurm_share.mps.records import MpsFailed, MpsStarted, MpsStopped
from slurm_share.node import topology
from slurm_share.node.records import Core, Gpu
from slurm_share.packing import PackRequest
from slurm_share.share import plan as plan_text
from slurm_share.share.backends import registry
from slurm_share.share.backends.base import UNDO_S
from slurm_share.share.leases import Leases
from slurm_share.share.records import Plan, Refusal, Slot
from slurm_share.slurm.records import JobContext
from slurm_share.testing import FakeNvml
from slurm_share.triples.launcher import node, slot_assignment
from slurm_share.triples.records import ENV_JOB_TASKS, Run, Triple

SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_NODEID": "0",
    "SLURM_NNODES": "1",
    "SLURMD_NODENAME": "n1",
    "SLURM_STEP_ID": "3",
}
CORES = tuple(Core((cpu,)) for cpu in range(40))
NO_MPS = Settings(mps_control="")
PACK = PackRequest()


def uuid(index):
    return f"GPU-{index:08d}-0000-4000-8000-000000000000"


def triple_run(nodes, per_node, threads=None, **settings):
    size = nodes * per_node
    triple = Triple(nodes, per_node, threads)
    return Run(name="x", command=("/x",), cwd="/", triple=triple, processes=size, tasks=size, **settings)


@pytest.fixture
def machine(monkeypatch):
    """40 cores and two GPUs, whatever the machine below has."""
    fake = FakeNvml().gpu().gpu()
    monkeypatch.setattr(node, "binding", fake)
    monkeypatch.setattr(topology, "read_machine", lambda allowed: CORES)
    return fake


@pytest.fixture
def paths(tmp_path):
    (tmp_path / "tmp").mkdir()
    return Paths(tmp_path / "state", tmp=tmp_path / "tmp")


@pytest.fixture
def prepare(machine, paths):
    made = []

    def call(run, environ, settings=NO_MPS):
        made.append(node.prepare(run, Path("/runs/LLSUB.1"), environ, paths, settings))
        return made[-1]

    yield call
    for one in made:
        node.release(one)


@pytest.fixture
def daemons(monkeypatch):
    """MPS whose daemons start, unless they are told not to; what was started and what was stopped."""

    class Daemons:
        program = "/bin/true"
        broken: tuple[str, ...] = ()
        started: tuple[str, ...] = ()
        stopped: tuple[str, ...] = ()
        had_s = 0.0
        """Seconds that the last ones had to stop."""

        def start_many(self, places, deadline, *, replace):
            self.started = tuple(place.pipe for place in places)
            identity = ProcessIdentity(1, 1)
            return tuple(
                MpsFailed(one, "MpsServerError", "its server ended")
                if one.gpu in self.broken
                else MpsStarted(one, identity, (), False, 0.1)
                for one in places
            )

        def stop_many(self, places, deadline):
            self.had_s = deadline.left()
            self.stopped += tuple(place.pipe for place in places)
            return tuple(MpsStopped(one, "quit", (), (), 0.1) for one in places)

    found = Daemons()
    monkeypatch.setattr(mp_daemons, "start_many", found.start_many)
    monkeypatch.setattr(mp_daemons, "stop_many", found.stop_many)
    return found


def values(worker):
    return {one.name: one.value for one in worker.environment}


# ---- Whose ranks ----


def test_a_triple_has_its_ranks_node_by_node(prepare):
    made = prepare(triple_run(3, 8), {**SLURM, "SLURM_NODEID": "1", "SLURM_NNODES": "3"})
    assert (made.index, made.count, made.first_rank, made.last_rank) == (1, 3, 8, 15)
    assert [worker.rank for worker in made.workers] == list(range(8, 16))
    assert made.folder == Path("/runs/LLSUB.1/p8-p15_n1")
    assert made.job == "4711"


def test_a_requeued_job_is_another_one(prepare):
    assert prepare(triple_run(1, 1), {**SLURM, "SLURM_RESTART_COUNT": "2"}).job == "4711.2"


def test_without_a_triple_slurm_says_where_processes_are(prepare):
    run = Run(name="x", command=("/x",), cwd="/", triple=None, processes=7, tasks=7)
    here = {**SLURM, "SLURM_NODEID": "3", "SLURM_NNODES": "4", "SLURM_TASKS_PER_NODE": "1(x4)"}
    here[ENV_JOB_TASKS] = "2(x3),1"
    made = prepare(run, here)
    assert (made.first_rank, made.last_rank) == (6, 6)
    del here[ENV_JOB_TASKS]
    assert prepare(run, here).first_rank == 3
    with pytest.raises(LaunchError, match="Slurm does not say how many tasks"):
        prepare(run, {**here, "SLURM_TASKS_PER_NODE": ""})


def test_outside_slurm_all_processes_are_here(prepare):
    made = prepare(triple_run(1, 3), {})
    assert made.job.startswith(f"local-{os.getpid()}-")
    assert (made.first_rank, made.last_rank) == (0, 2)
    assert made.name == os.uname().nodename.split(".")[0]
    assert [worker.gpu.index for worker in made.workers] == [0, 1, 0]
    assert [worker.gpu.index for worker in prepare(triple_run(1, 2), {"CUDA_VISIBLE_DEVICES": "1"}).workers] == [1, 1]


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, r"\S+ cannot .*: the triple \[2,8,5\] is for 2 nodes, and outside .* machine alone; write \[1,8,5\]"),
        ({**SLURM, "SLURM_NNODES": "3"}, r"n1 cannot .* and the job has 3; write \[3,8,5\]"),
    ],
)
def test_a_triple_of_another_number_of_nodes_is_refused(prepare, environ, said):
    with pytest.raises(LaunchError, match=said):
        prepare(triple_run(2, 8, 5), environ)


# ---- Cores ----


def test_cores_and_threads_of_each_process(prepare):
    made = prepare(triple_run(1, 4, 10), SLURM)
    assert [worker.place.cpus for worker in made.workers] == [tuple(range(n, n + 10)) for n in (0, 10, 20, 30)]
    assert {worker.place.threads for worker in made.workers} == {10}
    assert made.notes == ()
    said = "Underutilizing the node: 4 processes x 2 threads = 8 of 40 cores; [1,4,10] would use 40"
    assert prepare(triple_run(1, 4, 2), SLURM).notes == (said,)
    # The second node does not say it again.
    assert prepare(triple_run(2, 4, 2), {**SLURM, "SLURM_NNODES": "2", "SLURM_NODEID": "1"}).notes == ()


def test_processes_that_are_not_bound_have_all_cores(prepare):
    made = prepare(triple_run(1, 4, bind=False), SLURM)
    assert {worker.place.cpus for worker in made.workers} == {tuple(range(40))}
    assert {worker.place.threads for worker in made.workers} == {10}


def test_cores_near_the_gpu(prepare, machine, monkeypatch):
    for index, bus_id in enumerate(("00000000:3B:00.0", "00000000:AF:00.0")):
        machine.bus_ids[uuid(index)] = bus_id
    monkeypatch.setattr(
        topology, "read_machine", lambda allowed: tuple(Core((c,), c // 20, c // 20) for c in range(40))
    )
    monkeypatch.setattr(topology, "read_pci_numa", lambda bus_id: int(bus_id == "00000000:3B:00.0"))
    made = prepare(triple_run(1, 2), {**SLURM, "CUDA_VISIBLE_DEVICES": "0,1"})
    assert [worker.place.cpus[0] for worker in made.workers] == [20, 0]


def test_the_real_machine_has_a_seat():
    made = node.prepare(triple_run(1, 1), Path("/x"), {"CUDA_VISIBLE_DEVICES": ""}, Paths(Path("/nowhere")), NO_MPS)
    assert set(made.workers[0].place.cpus) == os.sched_getaffinity(0)
    assert node.release(made) == ()


# ---- GPUs without a plan ----


def test_without_gpus_nothing_is_said_of_them(prepare):
    made = prepare(triple_run(1, 2), SLURM)
    assert [(worker.gpu, worker.place.gpu, worker.environment) for worker in made.workers] == [(None, None, ())] * 2


def test_the_jobs_gpus_in_turn(prepare):
    made = prepare(triple_run(1, 5, 8), {**SLURM, "CUDA_VISIBLE_DEVICES": "0,1"})
    assert [worker.place.gpu for worker in made.workers] == [0, 1, 0, 1, 0]
    assert [values(worker)["CUDA_VISIBLE_DEVICES"] for worker in made.workers] == [uuid(n) for n in (0, 1, 0, 1, 0)]
    assert values(made.workers[2]) == {
        "CUDA_VISIBLE_DEVICES": uuid(0),
        "SLURM_SHARE_SLOT": "2",
        "SLURM_SHARE_SLOTS": "5",
        "SLURM_SHARE_PER_GPU": "3",
        "CUDA_MPS_PIPE_DIRECTORY": "/run/slurm-share/no-mps",
        "SLURM_SHARE_GPU_UUID": uuid(0),
        "SLURM_SHARE_GPU_INDEX": "0",
        "SLURM_SHARE_MPS": "off",
        "SLURM_SHARE_SHARING": "time-slicing",
        "SLURM_SHARE_MEM_LIMIT": "none",
    }
    assert {worker.slot for worker in made.workers} == {None}
    assert made.notes == (
        "the GPUs are shared without MPS: this site has switched MPS off (mps_control); the tasks of a GPU take turns "
        "on it, and no cap is enforced",
    )
    assert prepare(triple_run(1, 2), {**SLURM, "CUDA_VISIBLE_DEVICES": "0,1"}).notes == ()  # one process on a GPU


def test_a_driver_that_does_not_answer_leaves_slurms_words(prepare, machine):
    machine.broken = "Driver Not Loaded"
    made = prepare(triple_run(1, 3), {**SLURM, "CUDA_VISIBLE_DEVICES": "2,3"})
    assert [values(worker)["CUDA_VISIBLE_DEVICES"] for worker in made.workers] == ["2", "3", "2"]
    assert [worker.gpu for worker in made.workers] == [None] * 3
    assert [worker.place.gpu for worker in made.workers] == [0, 1, 0]
    assert "Driver Not Loaded" in made.notes[0]
    assert prepare(triple_run(1, 3), {}).workers[0].environment == ()


def test_simulated_gpus(prepare, machine):
    machine.readings.clear()
    machine.gpu(simulated=True)
    here = {**SLURM, "CUDA_VISIBLE_DEVICES": "0"}
    with pytest.raises(LaunchError, match="simulated_gpus is not set"):
        prepare(triple_run(1, 1), here)
    made = prepare(triple_run(1, 1), here, Settings(simulated_gpus=True))
    assert values(made.workers[0])["SLURM_SHARE_SIMULATED"] == "1"
    assert made.notes == ("the GPUs of this node are simulated: nothing is computed on them",)


# ---- MPS of our own ----

MPS = Settings(mps_control="/bin/true")
TWO = {**SLURM, "CUDA_VISIBLE_DEVICES": "0,1"}


def test_daemons_of_our_own(prepare, daemons, paths):
    made = prepare(triple_run(1, 4), TWO, MPS)
    [above] = paths.tmp.glob(f"slurm-share-{os.getuid()}-4711.*")
    assert daemons.started == tuple(f"{above}/0000000{n}-000000" for n in (0, 1))
    assert above.stat().st_mode & 0o777 == 0o700
    assert [values(worker)["CUDA_MPS_PIPE_DIRECTORY"] for worker in made.workers] == [*daemons.started] * 2
    assert {values(worker)["SLURM_SHARE_MPS"] for worker in made.workers} == {"on"}
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in values(made.workers[0])
    assert made.notes == ()
    assert node.release(made) == ()
    assert daemons.stopped == daemons.started
    assert not above.exists()
    assert node.release(made) == ()


@pytest.mark.parametrize("is_told_to_end", [False, True])
def test_daemons_of_a_job_that_is_to_end_stop_before_slurm_kills_the_launcher(prepare, daemons, is_told_to_end):
    made = prepare(triple_run(1, 4), TWO, MPS)
    assert node.release(made, is_told_to_end=is_told_to_end) == ()
    assert (daemons.had_s <= slot_assignment.LAST_STOP_S) is is_told_to_end


def test_a_share_that_was_written_caps(prepare, daemons):
    made = prepare(triple_run(1, 4, share=ShareRequest(4)), TWO, MPS)
    assert values(made.workers[0])["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=39884M"
    made = prepare(triple_run(1, 4, share=ShareRequest(4, mem_mib=100, sm=10)), TWO, MPS)
    assert values(made.workers[3])["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=100M"
    assert values(made.workers[3])["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "10"


def test_the_path_of_a_socket_fits(monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 2**32 - 2)
    monkeypatch.setattr(os, "getpid", lambda: 2**22)
    here = slot_assignment.LauncherJob(node="n1", index=0, count=1, job="4294967293.99999", job_id=4294967293)
    folder = slot_assignment.own_host(Paths(), Settings(), here).own_folder
    assert str(folder).startswith("/tmp/slurm-share-4294967294-4294967293.99999.")
    control.check_pipe(f"{folder}/{Paths().mps_pipe(0, uuid(0)).name}")


def test_mps_off_starts_nothing_and_says_nothing(prepare, daemons):
    made = prepare(triple_run(1, 4, share=ShareRequest(2, sharing="time-slicing")), TWO, MPS)
    assert (daemons.started, made.notes) == ((), ())


def test_a_daemon_that_does_not_start_is_done_without(prepare, daemons):
    daemons.broken = (uuid(1),)
    made = prepare(triple_run(1, 4), TWO, MPS)
    assert [values(worker)["SLURM_SHARE_MPS"] for worker in made.workers] == ["on", "off", "on", "off"]
    said = "GPU 1 is shared without MPS: its server ended; its tasks take turns, and no cap is enforced"
    assert made.notes == (said,)
    assert len(made.own.gpus) == 1


def test_mps_on_or_nothing(prepare, daemons, paths):
    daemons.broken = (uuid(1),)
    run = triple_run(1, 4, share=ShareRequest(2, sharing="mps"))
    with pytest.raises(
        LaunchError, match=r"it asked for sharing=mps, and MPS did not start on GPU-.*: its server ended"
    ):
        prepare(run, TWO, MPS)
    assert daemons.stopped == daemons.started[:1]
    assert list(paths.tmp.iterdir()) == []
    with pytest.raises(LaunchError, match="it asked for sharing=mps, and this site has switched MPS off"):
        prepare(run, TWO, NO_MPS)


def test_a_strangers_link_in_the_folders_place_is_not_followed(prepare, paths, tmp_path, monkeypatch):
    (tmp_path / "trap").mkdir()
    monkeypatch.setattr(own_folders, "random_suffix", lambda: ".guessed")
    (paths.tmp / f"slurm-share-{os.getuid()}-4711.guessed").symlink_to(tmp_path / "trap")
    made = prepare(triple_run(1, 4), TWO, MPS)
    assert made.own is None
    assert "shared without MPS" in made.notes[0]
    assert list((tmp_path / "trap").iterdir()) == []


def test_what_outlives_its_end_is_said(prepare, daemons, monkeypatch):
    made = prepare(triple_run(1, 4), TWO, MPS)
    monkeypatch.setattr(
        mp_daemons,
        "stop_many",
        lambda places, deadline: (
            MpsStopped(places[0], "still there", (), (ProcessIdentity(99, 1),), 1.0),
            MpsFailed(places[1], "MpsSilentError", "it hangs"),
        ),
    )
    said = node.release(made)
    assert "outlives every signal (process 99)" in said[0]
    assert said[1].endswith("could not be ended: it hangs")
    monkeypatch.setattr(mp_daemons, "stop_many", daemons.stop_many)


# ---- GPUs of a plan ----

GPUS = tuple(Gpu(uuid(n), n + 2, n + 2, "Fake GPU", 81920) for n in range(2))
PLAN = Plan(
    4711,
    os.getuid(),
    "n1",
    share=ShareRequest(4),
    gpus=GPUS,
    cores=((0,),),
    notes=("the GPUs of this node are simulated: nothing is computed on them",),
    slots=tuple(Slot(number, GPUS[number % 2], 0, memory_ratio="0.2") for number in range(8)),
)


@pytest.fixture
def planned(paths):
    """Writes a plan with its slots as the Prolog does."""

    def write(plan=PLAN, job=4711):
        paths.slots(job).mkdir(parents=True)
        for name in (*map(str, range(8)), names.SLOTS_LOCK):
            (paths.slots(job) / name).touch(0o600)
        paths.plan(job).write_text(plan_text.render(plan))

    return write


def computed_plan(per_gpu=4, gpus=2):
    listed = tuple(replace(reading.gpu, index=reading.gpu.index + 2) for reading in FakeNvml().gpu().gpu().readings)
    job = JobContext(4711, os.getuid(), os.getgid(), "n1", (uuid(0), uuid(1))[:gpus], ShareRequest(per_gpu, sm="even"))
    return decided(job, listed[:gpus], directories={uuid(0): "/p0", uuid(1): "/p1"})


def variables(plan, number):
    """A slot's variables, as the plan's writer has them."""
    return registry.slot_environment(plan, plan.slots[number])


@pytest.mark.parametrize("processes", [1, 3])
def test_a_packed_run_books_whole_gpus_whatever_the_number_of_its_processes(prepare, planned, processes):
    planned(computed_plan())
    made = prepare(triple_run(1, processes, pack=PACK), SLURM, replace(NO_MPS, max_share=5))
    assert [len(made.workers), len(made.leases.slots)] == [processes, 8]
    assert [slot.mps_directory for slot in made.gpu_slots] == ["/p0", "/p1"]
    assert [(facts.uuid, facts.reserve_mib) for facts in made.gpu_facts] == [(uuid(0), 2151), (uuid(1), 2151)]
    assert {(facts.is_mps, facts.clients_max) for facts in made.gpu_facts} == {(True, 5)}  # the site's limit
    assert {budget.is_whole for budget in made.budgets.values()} == {True}
    assert not [note for note in made.notes if "left over" in note]


def test_a_packed_run_has_its_part_of_a_gpu_of_which_another_step_has_slots(prepare, planned, machine, paths):
    planned(computed_plan())
    other = Leases(paths.slots(4711), [uuid(0), uuid(1)] * 4)
    try:
        other.take(1)
        made = prepare(triple_run(1, 3, pack=PACK), SLURM)
    finally:
        other.close()
    usable = 81920 - 2151
    assert [facts.total_mib - facts.reserve_mib for facts in made.gpu_facts] == [3 * (usable // 4), usable]
    assert len(made.leases.slots) == 7


def test_a_packed_run_books_whole_gpus_where_a_node_has_more_of_them_than_its_share_was_computed_for(prepare, planned):
    plan = computed_plan()
    planned(plan)
    made = prepare(triple_run(1, 3, share=ShareRequest(4, sm="even"), is_share_computed=True, pack=PACK), SLURM)
    assert len(made.leases.slots) == 8
    assert [facts.total_mib - facts.reserve_mib for facts in made.gpu_facts] == [81920 - 2151] * 2
    assert {budget.is_whole for budget in made.budgets.values()} == {True}
    assert made.plan.slots == plan.slots
    assert not [note for note in made.notes if "was computed for" in note]


def test_caps_follow_the_processes_that_a_gpu_really_has(prepare, planned):
    planned(computed_plan())
    made = prepare(triple_run(1, 4, share=ShareRequest(4, sm="even"), is_share_computed=True), SLURM)
    assert [worker.slot for worker in made.workers] == [0, 1, 2, 3]
    for worker in made.workers:
        found = values(worker)
        assert found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=39884M"
        assert found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
        assert (found["SLURM_SHARE_PER_GPU"], found["SLURM_SHARE_SLOTS"]) == ("2", "4")
    said = "n1 has 2 GPUs, more than --share-gpu=4 was computed for: 2 processes on a GPU, with caps for as many"
    assert said in made.notes
    assert not [note for note in made.notes if "left over" in note]


@pytest.mark.parametrize("reason", ["written", "another step", "unknown size", "as many"])
def test_caps_of_the_plan_hold(prepare, planned, paths, machine, reason):
    plan = computed_plan(per_gpu=2 if reason == "as many" else 4)
    if reason == "unknown size":
        machine.broken = "Driver Not Loaded"
        sizeless = {gpu: replace(gpu, memory_total_mib=None) for gpu in plan.gpus}
        slots = tuple(replace(slot, gpu=sizeless[slot.gpu]) for slot in plan.slots)
        plan = replace(plan, gpus=tuple(sizeless.values()), slots=slots)
    planned(plan)
    run = triple_run(1, 4, share=ShareRequest(4, sm="even"), is_share_computed=reason != "written")
    if reason == "another step":
        others = Leases(paths.slots(4711), [uuid(number % 2) for number in range(8)], 2)
        assert others.take(1) == (0,)
    made = prepare(run, SLURM)
    assert all(worker.environment == variables(plan, worker.slot) for worker in made.workers)
    if reason == "another step":
        others.close()


def test_a_plans_slots_are_leased_in_turn(prepare, planned, paths):
    planned()
    made = prepare(triple_run(1, 5), {**SLURM, "CUDA_VISIBLE_DEVICES": "0,1"})
    assert [worker.slot for worker in made.workers] == [0, 1, 2, 3, 4]
    assert [worker.environment for worker in made.workers] == [variables(PLAN, number) for number in range(5)]
    assert [worker.place.gpu for worker in made.workers] == [0, 1, 0, 1, 0]
    assert [worker.gpu for worker in made.workers[:2]] == list(GPUS)
    assert made.notes == ("3 of the 8 slots of n1 are not used: a triple with 8 processes per node would use all",)
    assert (paths.slots(4711) / "0").read_text().startswith("step 3 holder ")
    other = Leases(paths.slots(4711), [uuid(n % 2) for n in range(8)])
    assert other.take(8) == ()  # their memory is for tasks that run again after out of memory
    other.close()
    node.release(made)
    assert Leases(paths.slots(4711), [uuid(n % 2) for n in range(8)]).take(8) == tuple(range(8))


def test_beside_another_step_gpus_are_as_that_one_left_them(prepare, planned, paths):
    planned()
    for slot in (0, 2, 4):
        started = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19]
        (paths.slots(4711) / str(slot)).write_text(f"step 0 holder 0 0 task {os.getpid()} {started}\n")
    made = prepare(triple_run(1, 4), SLURM)
    assert [worker.slot for worker in made.workers] == [1, 3, 5, 6]
    assert [worker.place.gpu for worker in made.workers] == [1, 1, 1, 0]
    with pytest.raises(LaunchError, match="2 processes need a slot each, but other steps of the job have 8 of its 8"):
        prepare(triple_run(1, 2), SLURM)
    node.release(made)
    assert prepare(triple_run(1, 1), SLURM).workers[0].slot == 1


def test_more_processes_than_slots(prepare, planned):
    planned()
    with pytest.raises(LaunchError, match=r"9 processes are more than 2 GPUs x 4 = 8 slots; write --share-gpu=5, or"):
        prepare(triple_run(1, 9), SLURM)


def test_more_processes_than_a_part_of_a_gpu(prepare, planned):
    planned(replace(PLAN, gpus=GPUS[:1], slots=PLAN.slots[:1]))
    with pytest.raises(LaunchError, match="the job has one of 4 parts of a GPU, for one process; ask for 2 tasks"):
        prepare(triple_run(1, 2), SLURM)
    assert prepare(triple_run(1, 1), SLURM).workers[0].slot == 0


def test_the_prologs_refusal_is_said_as_it_stands(prepare, planned):
    planned(Refusal(4711, os.getuid(), "n1", "job 4711 cannot have --share-gpu=4 on n1: no GPU"))
    with pytest.raises(LaunchError) as caught:
        prepare(triple_run(1, 1), SLURM)
    assert str(caught.value) == "job 4711 cannot have --share-gpu=4 on n1: no GPU"


def test_anothers_plan_and_a_torn_one_are_errors(prepare, planned, paths):
    planned(replace(PLAN, uid=os.getuid() + 1))
    with pytest.raises(LaunchError, match="its plan belongs to job 4711 of uid"):
        prepare(triple_run(1, 1), SLURM)
    paths.plan(4711).write_text("slurm-share-plan 3\n")
    with pytest.raises(StateError, match="torn"):
        prepare(triple_run(1, 1), SLURM)


def test_other_nodes_say_the_plans_notes_themselves(prepare, planned):
    planned()
    assert prepare(triple_run(1, 8), SLURM).notes == ()
    second = {**SLURM, "SLURM_NODEID": "1", "SLURM_NNODES": "2", "SLURM_JOB_ID": "4712"}
    planned(replace(PLAN, job_id=4712), 4712)
    assert prepare(triple_run(2, 8), second).notes == PLAN.notes


def test_a_plan_needs_no_driver_here(prepare, planned, machine):
    planned()
    machine.broken = "Driver Not Loaded"
    made = prepare(triple_run(1, 2), SLURM)
    assert [worker.gpu for worker in made.workers] == list(GPUS)


def test_the_time_for_ending_mps_is_less_than_slurm_gives():
    assert slot_assignment.STOP_S + UNDO_S < 30
    assert mp_daemons.UNDO_S <= UNDO_S


# ---- Packed ----


@pytest.mark.parametrize("processes", [1, 2])
def test_packed_processes_not_more_than_gpus_still_have_mps_on_each(prepare, daemons, processes):
    made = prepare(triple_run(1, processes, pack=PACK), TWO, MPS)
    assert len(daemons.started) == 2
    assert [slot.gpu.uuid for slot in made.gpu_slots] == [uuid(0), uuid(1)]
    assert [
        (facts.index, facts.uuid, facts.is_mps, facts.total_mib, facts.reserve_mib) for facts in made.gpu_facts
    ] == [(index, uuid(index), True, 81920, 2151) for index in (0, 1)]
    assert made.bookings is not None


def test_more_packed_processes_than_mps_has_clients_still_have_mps(prepare, daemons):
    """MPS allows 48 clients of a GPU; the packer counts clients."""
    made = prepare(triple_run(1, 40, pack=PACK), TWO, MPS)
    assert len(made.workers) == 40
    made = prepare(triple_run(1, 200, pack=PACK, bind=False), TWO, MPS)
    assert len(made.workers) == 200
    assert {values(worker)["SLURM_SHARE_MPS"] for worker in made.workers} == {"on"}
    assert {facts.clients_max for facts in made.gpu_facts} == {48}


def test_packed_tasks_without_mps_are_placed_by_bookings_and_that_is_said(prepare):
    made = prepare(triple_run(1, 4, pack=PACK), TWO)
    assert [facts.is_mps for facts in made.gpu_facts] == [False, False]
    assert [note for note in made.notes if note.startswith("no memory cap is enforced on GPU 0-1 of n1")]


def test_a_packed_run_without_a_gpu_is_refused_and_holds_nothing(prepare, paths):
    with pytest.raises(LaunchError, match="ask for some"):
        prepare(triple_run(1, 2, pack=PACK), SLURM)
    with pytest.raises(LaunchError, match=r"--pack and \[N,auto\] .* use a machine with GPUs"):
        prepare(triple_run(1, 2, pack=PACK), {"CUDA_VISIBLE_DEVICES": ""})
    assert not list(paths.tmp.glob("slurm-share-*/live/*"))


def test_a_folder_of_bookings_that_cannot_be_used_is_said_and_the_run_goes_on(prepare, daemons, paths):
    (paths.tmp / f"slurm-share-{os.getuid()}").mkdir(mode=0o700)
    (paths.tmp / f"slurm-share-{os.getuid()}/live").write_text("")
    made = prepare(triple_run(1, 2, pack=PACK), TWO, MPS)
    assert made.bookings is None
    assert [note for note in made.notes if "your other launchers" in note]
