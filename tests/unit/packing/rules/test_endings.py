"""Classify logs in the formats of the programs that print them."""

import signal
import tomllib
from pathlib import Path

import pytest

from slurm_share.packing.decision_records import Start
from slurm_share.packing.records import EndFacts, GpuFacts, PackSettings, TaskAsk
from slurm_share.packing.rules import log_messages
from slurm_share.packing.rules.board import Board
from slurm_share.packing.rules.endings import classify, has_signal, is_fault, may_be_host_memory
from slurm_share.packing.rules.slots import Budget, slot_settings
from slurm_share.triples.rules.outcomes import OUTCOMES

ROOT = Path(__file__).parents[4]
TAILS = tomllib.loads((ROOT / "tests/data/packing/log_tails.toml").read_text())["tail"]
OOM_TEXTS = tomllib.loads((ROOT / "tests/data/packing/oom_texts.toml").read_text())["text"]


def facts(tail):
    text = tail["text"] + tail.get("repeat", "") * tail.get("times", 0)
    code = tail.get("code")
    return EndFacts(
        task=1,
        now_s=100.0,
        code=code,
        signal=tail.get("signal"),
        is_stopped_by_us=tail.get("stopped", False),
        is_host_memory=tail.get("host", False),
        was_started=tail.get("started", True),
        log_tail=text.encode(),
        room_ratio=tail.get("room"),
        sample_age_s=1.0,
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"code": 0}, "done"),
        ({"code": 3}, "failed"),
        ({"signal": signal.SIGSEGV}, "signal"),
        ({"signal": signal.SIGKILL, "is_host_memory": True}, "host memory"),
        ({"code": 137, "is_host_memory": True}, "host memory"),  # what a shell returns for its child's SIGKILL
        ({"signal": signal.SIGKILL}, "signal"),
        ({"code": 1, "log_tail": b"CUDA error: uncorrectable ECC error encountered"}, "device"),
        ({"code": 1, "log_tail": b"Unable to determine the device handle: GPU is lost"}, "device"),
        ({"code": 1, "log_tail": b"CUDA error: MPS client has been terminated"}, "neighbour's fault"),
        ({"code": 1, "is_daemon_lost": True}, "neighbour's fault"),
        ({"code": 1, "log_tail": b"numpy.core._exceptions._ArrayMemoryError: Unable to allocate"}, "failed"),
    ],
)
def test_an_end_has_one_kind(fields, expected):
    assert classify(EndFacts(task=1, now_s=0.0, **{"code": None, **fields}))[0] == expected


@pytest.mark.parametrize(
    "text",
    [
        b"CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION (simulated): error 915: it names no static partition",
        b"RuntimeError: CUDA error: invalid resource configuration\n",
        b"cudaErrorInvalidResourceConfiguration",
    ],
)
def test_a_task_without_a_static_partition_fails_with_the_probable_cause(text):
    facts = EndFacts(task=1, now_s=0.0, code=1, log_tail=text, room_ratio=0.0, sample_age_s=0.0)
    kind, why = classify(facts)
    assert kind == "failed"
    assert "started without CUDA_MPS_SM_PARTITION: was its environment cleared, by sudo, ssh or a container?" in why
    assert "cuDevSmResourceSplit can return the same error" in why


def test_the_reason_names_the_signal_or_the_code():
    def why(**how):
        return classify(EndFacts(task=1, now_s=0.0, **how))[1]

    assert "SIGSEGV" in why(code=None, signal=signal.SIGSEGV)
    assert "exit code 7" in why(code=7)
    assert "signal 63" in why(code=None, signal=63)


def test_the_kernels_count_is_read_only_after_what_it_may_have_done():
    assert may_be_host_memory(None, signal.SIGKILL)
    assert may_be_host_memory(137, None)
    assert not may_be_host_memory(None, signal.SIGTERM)
    assert not may_be_host_memory(0, None)


def test_a_signal_ends_a_task_or_the_program_of_its_shell():
    assert has_signal(None, signal.SIGUSR1, signal.SIGUSR1)
    assert has_signal(138, None, signal.SIGUSR1)
    assert not has_signal(1, None, signal.SIGUSR1)
    assert not has_signal(138, None, None)


@pytest.mark.parametrize("tail", TAILS, ids=lambda tail: tail["name"])
def test_each_end_is_what_it_was(tail):
    assert classify(facts(tail), tail.get("cap"))[0] == tail["kind"]


@pytest.mark.parametrize("text", OOM_TEXTS, ids=lambda text: f"{text['want']}: {text['name']}")
def test_the_texts_of_many_programs_are_out_of_memory_or_not(text):
    tail = text["tail"].encode()
    kinds = [
        classify(EndFacts(task=1, now_s=0.0, code=4, log_tail=tail, room_ratio=room, sample_age_s=1.0))[0]
        for room in (0.5, 0.01)
    ]
    found = log_messages.find_messages(tail)
    if text["want"] == "certain":
        assert kinds == ["gpu memory", "gpu memory"]
    elif text["want"] == "likely":
        assert kinds == ["failed", "gpu memory likely"]
    else:
        assert (kinds[0], found.likely, found.certain and found.is_last) in [("failed", "", ""), ("failed", "", False)]


def test_at_least_sixty_texts_must_not_match():
    assert sum(text["want"] == "no" for text in OOM_TEXTS) >= 60


def test_every_message_of_the_list_is_found_by_itself():
    for message in log_messages.GPU_MEMORY_MESSAGES:
        found = log_messages.find_messages(b"x " + message + b" y\n")
        assert (found.certain, found.is_last) == (message.decode(), True)


def test_words_about_memory_in_the_middle_of_a_log_need_a_full_gpu():
    text = b"CUDA out of memory; batch is halved\n" + b"step\n" * 60
    full = EndFacts(task=1, now_s=0.0, code=3, log_tail=text, room_ratio=0.01)
    assert classify(full)[0] == "gpu memory likely"
    assert classify(EndFacts(task=1, now_s=0.0, code=3, log_tail=text, room_ratio=0.2))[0] == "failed"
    assert classify(EndFacts(task=1, now_s=0.0, code=3, log_tail=text, room_ratio=None))[0] == "failed"
    assert classify(EndFacts(task=1, now_s=0.0, code=3, log_tail=text, room_ratio=None), 0.96)[0] == "gpu memory likely"


@pytest.mark.parametrize(
    ("fields", "cap_ratio", "expected"),
    [
        ({"code": 1, "room_ratio": 0.01, "sample_age_s": 4.0}, None, "gpu memory suspected"),
        ({"code": 1, "room_ratio": 0.01, "sample_age_s": 9.0}, None, "failed"),
        ({"code": 1, "room_ratio": 0.01}, None, "failed"),  # no sample
        ({"code": 1, "room_ratio": 0.025, "sample_age_s": 1.0}, None, "failed"),
        ({"code": 1, "room_ratio": 0.5, "sample_age_s": 1.0}, 0.985, "gpu memory suspected"),
        ({"code": 139, "room_ratio": 0.01, "sample_age_s": 1.0}, None, "gpu memory suspected"),
        ({"code": 4, "room_ratio": 0.01, "sample_age_s": 1.0}, None, "failed"),
        ({"code": None, "signal": 11, "room_ratio": 0.01, "sample_age_s": 1.0}, None, "gpu memory suspected"),
        ({"code": None, "signal": 9, "room_ratio": 0.01, "sample_age_s": 1.0}, None, "signal"),
    ],
)
def test_failure_without_a_message_is_suspected_only_on_a_full_gpu(fields, cap_ratio, expected):
    assert classify(EndFacts(task=1, now_s=0.0, **fields), cap_ratio)[0] == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"code": 75}, "saved"),
        ({"code": 75, "is_stopped_by_us": True}, "saved"),
        ({"code": 0, "is_stopped_by_us": True}, "unfinished"),  # it may have saved its state
        ({"code": 143, "is_stopped_by_us": True}, "unfinished"),
        ({"code": 0, "is_told_to_save": True}, "saved"),
        ({"code": 0, "is_told_to_save": True, "is_stopped_by_us": True}, "unfinished"),
        ({"code": 1, "is_told_to_save": True}, "unfinished"),
        ({"code": None, "signal": signal.SIGUSR1, "is_told_to_save": True}, "unfinished"),
        ({"code": 1, "is_told_to_save": True, "log_tail": b"CUDA out of memory"}, "gpu memory"),
    ],
)
def test_an_end_with_a_saved_state_may_be_resumed(fields, expected):
    assert classify(EndFacts(task=1, now_s=0.0, **fields))[0] == expected


def test_cuda_faults_are_told_from_other_failures():
    assert is_fault(EndFacts(task=1, now_s=0.0, code=1, log_tail=b"CUDA error: unspecified launch failure\n"))
    assert not is_fault(EndFacts(task=1, now_s=0.0, code=1, log_tail=b"CUDA out of memory\n"))


def test_what_a_program_wanted_is_what_it_had_and_what_it_asked_for():
    by_text = {tail["name"]: tail["text"].encode() for tail in TAILS}
    assert log_messages.wanted_mib(by_text["PyTorch 2.5: training step"], 5) == 2560 + 10445
    assert log_messages.wanted_mib(by_text["CuPy"], 3000) == 1024 + 3000
    assert log_messages.wanted_mib(by_text["CuPy 4: older form"], None) == 239
    assert log_messages.wanted_mib(b"CUDA out of memory", 3000) is None


def test_a_size_that_no_memory_has_is_none():
    tail = b"Tried to allocate 2.00 GiB. this process has " + b"9" * 400 + b" GiB memory in use"
    assert log_messages.wanted_mib(tail, 7) == 2048 + 7


@pytest.mark.parametrize(
    ("log", "mib"),
    [
        (b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total", 2048),
        (b"Tried to allocate 20.50 MiB", 21),
        (b"RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4294967296 bytes.", 4096),
        (b"Failed to allocate request for 2.0GiB (2147483648B) on device ordinal 0", 2048),
        (b"cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 1,073,741,824 bytes (allocated so far", 1024),
        (b"Tried to allocate 1.00 GiB\nTried to allocate 3.00 GiB", 3072),
        (b"CUDA out of memory", None),
        (b"Tried to allocate 0 bytes", None),
    ],
)
def test_what_a_program_asked_for_in_vain(log, mib):
    assert log_messages.asked_mib(log) == mib


def judged(tail, policy):
    """Return the outcome of an end for a task beside another one, in a run with this policy."""
    its = [GpuFacts(uuid=f"G{place}", index=place, model="A", total_mib=80_000, is_mps=True) for place in range(2)]
    if policy == "slots":
        made = Board(its, 4, slot_settings(0), None, budgets={one.uuid: Budget(20_000, 80_000, 4, True) for one in its})
        for task in range(4):
            made.start_new(TaskAsk(task=task), (f"G{task % 2}",), 0.0)
    else:
        made = Board(its, 4, PackSettings(policy=policy), None)
        for task in range(4):
            made.add(TaskAsk(task=task), 0.0)
            start = Start(task=task, gpus=(f"G{task % 2}",), reserve_mib=20_000, cap_mib=20_000, why="")
            made.apply((start,), 0.0)
    run = made.running[1]
    made.sample_task(1, {run.gpus[0]: int(tail.get("cap", 0.5) * run.cap_mib)}, 1, 99.0)
    return OUTCOMES[made.ended(facts(tail)).kind]


@pytest.mark.parametrize("tail", TAILS, ids=lambda tail: tail["name"])
def test_runs_with_and_without_pack_judge_an_end_alike(tail):
    """As the table in packaging/docs/task-endings.md says: only a CUDA fault is another's in a packed run alone."""
    plain, packed = judged(tail, "slots"), judged(tail, "booked")
    if tail["name"] in ("illegal address", "device-side assertion"):
        assert (plain, packed) == ("failed", "disturbed")
    else:
        assert plain == packed
