"""The rows of GPUs, processes, jobs and users, made of one look."""

from __future__ import annotations

import llload_surveys
import pytest
from dashboards import NOW, a_picture, picture_of
from llload_surveys import gpu, silent
from msgspec.structs import replace
from slurm_share_tui.picture import SurveyPicture

from slurm_share.load import job_request
from slurm_share.load.columns import JOBS, process_columns
from slurm_share.load.rules.gpu_rows import GpuRow, gpu_rows, process_rows, slot_rows, slots_of
from slurm_share.load.rules.job_rows import job_row, job_rows, summed, user_rows
from slurm_share.load.snapshot import JobLoad, OnGpu, ProcessLoad, Survey, UserLoad
from slurm_share.slurm.records import QueuedJob


def record(number=4711, *, user="alice", nodes="n1", states=("RUNNING",), **more):
    known = {"name": "train", "uid": 2001, "partition": "gpu", "start": int(NOW) - 90, "gpus": 2, "cpus": 40}
    return QueuedJob(job_id=number, user=user, nodes=nodes, states=states, **{**known, **more})


def load(number=4711, *, user="alice", **more):
    known = {"tasks": 2, "gpu_load": 0.5, "cpu_cores": 4.0, "gpu_memory_mib": 2048, "memory_mib": 1024}
    return JobLoad(job=number, uid=2001, user=user, **{**known, **more})


def process(slot, *, job=4711, on="GPU-0", pid=None, name="python"):
    at = OnGpu(uuid=on, memory_mib=1024, peak_mib=2048, sm_time_percent=10.0)
    return ProcessLoad(
        pid=pid or 100 + (slot or 0), name=name, uid=2001, user="alice", job=job, task=slot, slot=slot, gpus=(at,)
    )


def node(name="n1", *, gpus=2, answers=True, **more):
    """A node, and what it says."""
    return llload_surveys.node(name, gpus=[gpu(at) for at in range(gpus)], **more) if answers else silent(name)


def picture(*nodes, jobs=(), user="alice", everybody=True) -> SurveyPicture:
    survey = Survey(
        taken=NOW, cluster="c", user=user, everybody=everybody, source="agent", nodes=tuple(nodes), jobs=tuple(jobs)
    )
    return picture_of(survey)


# --- Jobs -------------------------------------------------------------------------------------------------------------


def test_own_jobs_come_first_and_the_others_in_slurms_order():
    rows = job_rows(picture(node(), jobs=[record(3, user="bob"), record(2, user="carol"), record(9)]))
    assert [(row.id, row.is_own) for row in rows] == [("9", True), ("3", False), ("2", False)]


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"limit_s": 86400, "ends": int(NOW) + 90}, ("1:30", "1-00:00:00")),
        ({"limit_s": 60, "ends": int(NOW) - 5}, ("0:00", "1:00")),
        ({"is_unlimited": True}, ("UNLIMITED", "UNLIMITED")),
        ({}, ("?", "?")),
        ({"limit_s": 60}, ("?", "1:00")),
        ({"limit_s": 7200, "nodes": "", "states": ("PENDING",)}, ("-", "2:00:00")),
    ],
)
def test_the_time_that_is_left_and_the_limit_are_squeues(fields, texts):
    (row,) = job_rows(picture(node(), jobs=[record(**fields)]))
    shown = {column.id: column for column in JOBS}
    assert (shown["left"].text(row), shown["limit"].text(row)) == texts


def test_the_first_element_to_end_is_what_is_left_of_an_array():
    jobs = [record(78 + at, array=77, element=at, limit_s=600, ends=int(NOW) + 60 * (at + 1)) for at in range(3)]
    waits = record(77, array=77, waiting="3-5", nodes="", states=("PENDING",), limit_s=600)
    (row,) = job_rows(picture(node(), jobs=[*jobs, waits]))
    assert (row.left_s, row.limit_s) == (60, 600)


def test_a_waiting_job_tells_all_that_it_asks_for_and_why_it_waits():
    job = record(
        nodes="", states=("PENDING",), reason="Resources", start=int(NOW) + 600, gpus=4, cpus=8, node_count=2,
        memory_mib=2048, limit_s=7200, submitted=int(NOW) - 3600, priority=4001, qos="high", account="lab",
        dependency="afterok:12(unfulfilled)", features="a100", share="4", comment="llsub [2,8,1] LLSUB.1",
    )  # fmt: skip
    (row,) = job_rows(picture(jobs=[job]))
    found = dict(job_request.facts(row))
    assert found["waits"] == ("the nodes, CPUs, GPUs or memory that it asks for are in use (Resources)",)
    assert found["start"][0].endswith(", in 10:00")
    assert found["asks for"] == ("2 nodes", "8 CPUs", "4 GPUs", "2.0GB on each node", "time limit 2:00:00")
    assert found["shares"] == ("--share-gpu=4", "triple [2,8,1] of llsub")
    assert found["priority"][0] == "4001"
    assert found["priority"][1].endswith(", 1:00:00 ago")
    assert found["in"] == ("partition gpu", "QOS high", "account lab")
    assert (found["depends"], found["features"]) == (("afterok:12",), ("a100",))


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        (
            {"gpus": None, "keeps_others_out": True, "memory_mib": 0},
            ("all GPUs of its nodes", "all memory of its nodes"),
        ),
        ({"gpus": None, "memory_mib": None}, ("? GPUs", "? on each node")),
        ({"gpus": 1, "memory_per_gpu_mib": 1024, "memory_mib": 512}, ("1 GPU", "1.0GB for each GPU")),
        ({"gpus": 0, "memory_mib": 500, "memory_is_per_cpu": True}, ("no GPU", "500MB for each CPU")),
        ({"has_shards": True, "memory_mib": 500}, ("a part of a GPU", "500MB on each node")),
    ],
)
def test_what_is_not_known_of_a_request_is_no_none(fields, wanted):
    (row,) = job_rows(picture(jobs=[record(nodes="", states=("PENDING",), **fields)]))
    assert dict(job_request.facts(row))["asks for"][2:4] == wanted


def test_all_elements_of_an_array_are_one_line_with_what_all_of_them_use():
    jobs = [
        record(78, array=77, element=1, nodes="n1"),
        record(79, array=77, element=2, nodes="n2"),
        record(77, array=77, waiting="3-5%2", nodes="", states=("PENDING",), start=None),
    ]
    (row,) = job_rows(picture(node("n1", jobs=[load(78)]), node("n2", jobs=[load(79)]), jobs=jobs))
    assert row.is_array
    assert (row.id, row.states) == ("77", {"R": 2, "PD": 3})
    assert (row.tasks.value, row.gpu_load.value, row.gpus, row.node_names) == (4, 1.0, 4, ("n1", "n2"))


def test_the_elements_of_an_array_are_lines_of_their_own_where_they_are_wanted():
    jobs = [record(78, array=77, element=1), record(79, array=77, element=2)]
    rows = job_rows(picture(node(jobs=[load(78), load(79)]), jobs=jobs), arrays=False)
    assert [(row.id, row.is_array) for row in rows] == [("77_1", False), ("77_2", False)]


def test_an_array_of_which_one_element_is_left_is_that_element():
    (row,) = job_rows(picture(node(jobs=[load(79)]), jobs=[record(79, array=77, element=2)]))
    assert (row.is_array, row.id) == (False, "77_2")


def test_a_list_of_elements_that_slurm_cut_off_counts_as_one():
    (row,) = job_rows(picture(node(), jobs=[record(77, array=77, waiting="1,5,9,...", nodes="", states=("PENDING",))]))
    assert row.states == {"PD": 1}


def test_a_job_of_which_a_node_is_silent_has_sums_of_the_others_and_says_so():
    jobs = [record(nodes="n[1-2]", gpus=4, cpus=80)]
    (row,) = job_rows(picture(node("n1", jobs=[load()]), node("n2", answers=False), jobs=jobs))
    assert (row.measured, len(row.node_names), row.is_whole) == (1, 2, False)
    assert (row.gpu_load.value, row.gpu_load.partial) == (0.5, True)
    assert row.gpu_percent == 25.0
    assert row.cpu_percent == 10.0


def test_a_job_and_a_user_with_a_silent_node_have_its_letter_as_well():
    nodes = [node("n1", jobs=[load()]), node("n2", answers=False), node("n3", answers=False)]
    jobs = [record(nodes="n[1-2]", gpus=4), record(5, user="bob", nodes="n3"), record(6, nodes="", states=("PENDING",))]
    found = picture(*nodes, jobs=jobs)
    assert {row.id: "n!" in row.codes for row in job_rows(found)} == {"4711": True, "5": True, "6": False}
    assert {row.user: "n!" in row.codes for row in user_rows(found)} == {"alice": True, "bob": True}
    assert "n!" in job_row(found, 5).codes


def test_a_job_nobody_says_anything_of_has_unknown_sums_and_not_zero():
    (row,) = job_rows(picture(node(answers=False), jobs=[record()]))
    assert (row.gpu_load.value, row.tasks.value, row.memory.value, row.peak_mib) == (None, None, None, None)
    assert not row.gpu_load.partial


def test_a_job_that_slurm_does_not_name_is_there_by_the_number_its_node_has():
    (row,) = job_rows(picture(node(jobs=[load(5, gpus=("GPU-0",))]), user="bob"))
    assert (row.id, row.user, row.states, row.gpus, row.job) == ("5", "alice", {}, 1, None)


def test_gpus_of_a_job_on_a_node_are_those_that_slurm_gave_it_there():
    def on(name, **more):
        (row,) = job_rows(picture(node("n1", jobs=[load(gpus=("GPU-0",))]), node("n2"), jobs=[record(**more)]))
        return row.gpus_on(name)

    told = {"nodes": "n[1-2]", "gpus": 3, "gpu_indexes": ((0, 1), (3,)), "node_count": 2}
    assert (on("n1", **told), on("n2", **told)) == (2, 1)
    assert on("n1", gpus=0) == 0
    assert on("n1", gpu_indexes=None, gpus=2, node_count=1) == 2
    for unknown in ({"nodes": "n[1-2]", "gpus": 3, "node_count": 2}, {"has_shards": True, "node_count": 1}):
        assert on("n1", gpu_indexes=None, **unknown) is None
    (row,) = job_rows(picture(node(jobs=[load(5, gpus=("GPU-0",))])))
    assert row.gpus_on("n1") == 1


def test_one_job_by_its_number_is_the_one_of_the_table():
    found = a_picture()
    for row in job_rows(found, arrays=False):
        alone = job_row(found, row.number)
        assert (alone.id, alone.gpu_load, alone.tasks, alone.advice) == (row.id, row.gpu_load, row.tasks, row.advice)
    assert job_row(found, 1) is None


def test_a_running_job_has_its_age_and_a_waiting_one_none():
    rows = job_rows(picture(node(), jobs=[record(1), record(2, nodes="", states=("PENDING",))]))
    assert [row.runs_s for row in rows] == [NOW - (int(NOW) - 90), None]


def test_a_list_of_nodes_that_is_none_is_no_reason_to_fall_over():
    (row,) = job_rows(picture(node(), jobs=[record(nodes="n[9-1]", states=("COMPLETING",))]))
    assert row.node_names == ()


# --- Users ------------------------------------------------------------------------------------------------------------


def test_the_own_line_comes_first_and_the_other_users_by_name():
    rows = user_rows(a_picture(user="carol"))
    assert [row.user for row in rows] == ["carol", "alice", "bob", "dave"]


def test_a_user_without_a_job_has_a_line_in_the_own_look():
    (row,) = user_rows(picture(node(), everybody=False))
    assert (row.user, row.running, row.gpus, row.gpu_load.value) == ("alice", 0, None, None)


def test_a_users_sums_are_those_of_all_nodes_and_say_when_one_is_missing():
    mine = UserLoad(uid=2001, user="alice", jobs=(4711,), processes=3, gpu_load=1.0, cpu_cores=8.0)
    nodes = [node("n1", users=[mine]), node("n2", users=[mine]), node("n3", answers=False)]
    (row,) = user_rows(picture(*nodes, jobs=[record(nodes="n[1-3]", gpus=6)]))
    assert (row.gpu_load.value, row.gpu_load.partial, row.processes.value) == (2.0, True, 6)
    assert row.gpu_percent == 50.0
    assert (row.measured, len(row.node_names)) == (2, 3)


def test_waiting_elements_of_an_array_are_counted_one_by_one():
    jobs = [record(1), record(77, array=77, waiting="1-12", nodes="", states=("PENDING",))]
    (row,) = user_rows(picture(node(), jobs=jobs))
    assert (row.running, row.waiting) == (1, 12)


def test_a_sum_of_nothing_is_unknown_and_a_sum_of_zeros_is_zero():
    assert (summed([]).value, summed([None]).value, summed([0, 0]).value) == (None, None, 0)
    assert summed([1.0, None]).partial
    assert not summed([1.0, 2.0]).partial


# --- GPUs and slots ---------------------------------------------------------------------------------------------------


def first_gpu(found: SurveyPicture, at: int = 0) -> GpuRow:
    """The row of a GPU of the first node."""
    return gpu_rows(found.nodes[:1])[at]


def test_every_gpu_has_a_row_and_so_has_a_node_whose_gpus_nobody_knows():
    rows = gpu_rows(picture(node("n1"), node("n2", answers=False), node("n3", gpus=0)).nodes)
    assert [(row.node.name, row.name) for row in rows] == [("n1", "0"), ("n1", "1"), ("n2", "")]


def test_only_gpus_with_a_process_of_the_user_or_the_job_are_wanted():
    found = picture(node(processes=[process(0, on="GPU-1")]))
    assert [row.name for row in gpu_rows(found.nodes, users=("alice",))] == ["1"]
    assert [row.name for row in gpu_rows(found.nodes, jobs=(4711,))] == ["1"]
    assert gpu_rows(found.nodes, users=("bob",)) == []


def test_a_gpu_that_a_job_holds_without_a_process_is_the_jobs_and_its_users():
    found = picture(node(jobs=[load()]), jobs=[record(gpu_indexes=((1,),), node_count=1)])
    assert [row.name for row in gpu_rows(found.nodes, users=("alice",))] == ["1"]
    assert [row.name for row in gpu_rows(found.nodes, jobs=(4711,))] == ["1"]
    assert [[one.job for one in row.holders] for row in gpu_rows(found.nodes)] == [[], [4711]]


NO_PROCESSES = {"processes": "not kept"}


def without_processes(*clients, unknown=NO_PROCESSES, jobs=(), **more):
    """The rows of a node with GPUs that have so many processes, one of them MPS's, from a source that keeps none."""
    gpus = [
        gpu(at, clients=count, mps_servers=None if count is None else min(1, count)) for at, count in enumerate(clients)
    ]
    one = llload_surveys.node("n1", gpus=gpus, jobs=jobs, unknown=unknown, **more)
    return gpu_rows(picture(one).nodes)


def test_tasks_of_a_source_without_processes_are_counted_from_its_clients_and_named_by_its_jobs():
    user = UserLoad(uid=2001, user="alice", processes=3, gpus=("GPU-0",))
    busy, empty, silent_one = without_processes(3, 0, None, jobs=[load(gpus=("GPU-0",))], users=(user,))
    assert [(row.task_count, row.users, row.jobs) for row in (busy, empty, silent_one)] == [
        (2, ("alice",), (4711,)),
        (0, (), ()),
        (None, None, None),
    ]
    assert [row.name for row in gpu_rows([busy.node], jobs=(4711,))] == ["0"]
    assert [row.name for row in gpu_rows([busy.node], users=("alice",))] == ["0"]


def test_a_slot_is_free_only_where_the_processes_are_known():
    job = load(share=2, slots=4, gpus=("GPU-0", "GPU-1"))
    one = load(share=2, slots=2, granted=("GPU-1",))
    assert [row.number for at in without_processes(3, 3, 0, jobs=[one]) for row in slot_rows(at)] == [0, 1]
    full, empty = without_processes(3, 0, jobs=[job])
    assert [(row.number, row.is_unknown) for row in slot_rows(full)] == [(0, True), (2, True)]
    assert [(row.number, row.is_unknown) for row in slot_rows(empty)] == [(1, False), (3, False)]


def test_a_process_whose_slot_is_not_known_leaves_no_slot_free():
    hidden = [replace(process(None, pid=pid), unknown={"slot": "not to be read"}) for pid in (7, 8)]
    found = picture(node(jobs=[load(share=2, slots=4)], processes=hidden))
    assert [(row.number, row.process.process.pid) for row in slot_rows(first_gpu(found))] == [(None, 7), (None, 8)]
    found = picture(node(jobs=[load(share=2, slots=4)], processes=hidden[:1]))
    rows = slot_rows(first_gpu(found))
    assert [(row.number, row.is_unknown, row.process is None) for row in rows] == [
        (0, True, True), (2, True, True), (None, False, False),
    ]  # fmt: skip


def test_the_free_slots_of_a_share_are_shown_on_the_gpu_that_they_are_on():
    job = load(share=4, slots=8, gpus=("GPU-0", "GPU-1"))
    found = picture(node(jobs=[job], processes=[process(2), process(5, on="GPU-1")]))
    rows = slot_rows(first_gpu(found))
    assert [(row.number, row.process is not None) for row in rows] == [(0, False), (2, True), (4, False), (6, False)]
    rows = slot_rows(first_gpu(found, 1))
    assert [(row.number, row.process is not None) for row in rows] == [(1, False), (3, False), (5, True), (7, False)]


def test_with_a_line_for_the_gpu_itself_it_stands_above_its_slots():
    found = picture(node(jobs=[load(share=1, slots=2)], processes=[process(0)]))
    assert [row.kind for row in slot_rows(first_gpu(found), with_gpu=True)] == ["gpu", "slot"]


def test_slots_follow_from_those_taken_where_the_job_has_only_some_of_the_gpus():
    job = load(share=2, slots=4)
    found = picture(node(gpus=4, jobs=[job], processes=[process(1, on="GPU-3")]))
    snapshot = found.nodes[0].node.snapshot
    assert slots_of(snapshot, job, snapshot.gpus[3]) == (1, 3)
    assert [slots_of(snapshot, job, gpu) for gpu in snapshot.gpus[:3]] == [(), (), ()]


def test_slots_dealt_in_another_way_are_not_invented():
    job = load(share=2, slots=4)
    found = picture(node(jobs=[job], processes=[process(0), process(2, on="GPU-1")]))
    assert [row.number for row in slot_rows(first_gpu(found))] == [0]


def test_slots_in_another_order_of_gpus_are_taken_as_they_are():
    job = load(share=1, slots=2)
    found = picture(node(jobs=[job], processes=[process(0, on="GPU-1")]))
    snapshot = found.nodes[0].node.snapshot
    assert slots_of(snapshot, job, snapshot.gpus[1]) == (0,)


def test_two_processes_in_one_slot_are_two_lines_and_mps_is_the_last():
    job = load(share=1, slots=2)
    server = process(None, pid=9, name="nvidia-cuda-mps-server")
    found = picture(node(jobs=[job], processes=[server, process(0, pid=70), process(0, pid=60)]))
    rows = slot_rows(first_gpu(found))
    assert [(row.number, row.process and row.process.process.pid) for row in rows] == [(0, 60), (0, 70), (None, 9)]
    assert len({row.key for row in rows}) == 3


def test_a_process_without_a_job_is_there_too():
    found = picture(node(processes=[process(None, job=None)]))
    (row,) = slot_rows(first_gpu(found))
    assert (row.kind, row.job, row.number) == ("process", None, None)


def test_a_process_has_a_row_for_each_of_its_gpus_with_its_memory_against_the_cap():
    found = picture(node(processes=[replace(process(0), cap_mib=2048), process(1, on="GPU-1")]))
    rows = process_rows(found.nodes[0])
    assert [(row.process.pid, row.of_cap) for row in rows] == [(100, 50.0), (101, 3.125)]
    assert process_rows(picture(node(answers=False)).nodes[0]) == []


def test_memory_against_a_cap_that_only_its_user_may_read_is_not_known():
    """A server of MPS has no cap."""
    closed = {"unknown": {"cap_mib": "its environment cannot be read"}}
    tasks = [replace(process(0), **closed), replace(process(None, pid=9, name="nvidia-cuda-mps-server"), **closed)]
    found = picture(node(processes=tasks))
    assert [row.of_cap for row in process_rows(found.nodes[0])] == [None, 3.125]
    assert [process_columns.memory_percent(row) for row in slot_rows(first_gpu(found))] == [None, 3.125]


def test_every_row_of_a_busy_cluster_has_a_key_of_its_own():
    found = a_picture(count=60)
    gpus = gpu_rows(found.nodes)
    slots = [slot.key for gpu in gpus for slot in slot_rows(gpu, with_gpu=True)]
    assert len({row.key for row in gpus}) == len(gpus) > 50
    assert len(set(slots)) == len(slots) > 100
