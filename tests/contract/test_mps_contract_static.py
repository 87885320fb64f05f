"""The contract of static partitions (nvidia-cuda-mps-control -S), as recorded from 595 and 610 and by the manual.

The same assertions hold the stand-in here, and NVIDIA's own program in tests/gpu/test_mps_contract_static_real.py,
where there is a GPU with driver 590 or newer. Texts that nobody recorded are not compared.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest
from simulated_host import without_driver
from test_mps_contract import DONE, Mps, Program, mps, stand_in  # noqa: F401  (a fixture)

pytestmark = without_driver

EVERY_STATIC_DRIVER = pytest.mark.parametrize("program", ["590", "595", "610", "615"], indirect=True)
BOTH_LAYOUTS = pytest.mark.parametrize("layout", ["5", "7"])
CREATED = re.compile(r"Partition (GPU-[0-9a-f-]{36}/[A-Za-z0-9+/=]+) created\n")
TOO_MANY = (
    "Failed to fulfill the requested SM partition of {} chunks, error CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION\n"
)
IN_USE = "Partition %s in use. Terminate all clients before removing.\n"


@pytest.fixture(params=["595"])
def program(request: pytest.FixtureRequest) -> Iterator[Program]:
    yield from stand_in(request.param)


@pytest.fixture
def static(mps: Mps) -> Mps:  # noqa: F811
    assert mps.run("-d", "-S") == DONE
    return mps


def rows_of(text: str) -> tuple[list[tuple[int, ...]], dict[str, tuple[int, int, str]]]:
    """Parse `lspart` in either layout: the GPUs' free and used chunks and SMs, and by id each partition's chunks, SMs
    and last word."""
    gpus, partitions = [], {}
    for line in text.splitlines():
        words = line.split()
        if not words or not words[0].startswith(("GPU-", "MIG-")):
            continue
        numbers = [int(word) for word in words[1:] if word.isdecimal()]
        if len(numbers) == 4:
            gpus.append(tuple(numbers))
        else:
            partitions[words[1]] = (numbers[-2], numbers[-1], words[-1])
    return gpus, partitions


def add(static: Mps, chunks: int) -> str:
    """Make a partition and return its name, `<GPU>/<id>`."""
    code, said, errors = static.say(f"sm_partition add {static.gpu()} {chunks}")
    found = CREATED.fullmatch(said)
    assert (code, errors) == (0, "")
    assert found is not None, said
    return found[1]


@EVERY_STATIC_DRIVER
@BOTH_LAYOUTS
def test_partitions_are_listed_with_their_chunks_and_sms(mps: Mps, layout: str) -> None:  # noqa: F811
    assert mps.run("-S", "-d", environ={"SIMMPS_LSPART": layout}) == DONE
    gpus, partitions = rows_of(mps.answer("lspart"))
    (chunks, used, _, used_sms) = gpus[0]
    assert (len(gpus), used, used_sms, partitions) == (1, 0, 0, {})
    assert chunks >= 3
    names = [add(mps, size) for size in (1, 2)]
    gpus, partitions = rows_of(mps.answer("lspart"))
    size = partitions[names[0].partition("/")[2]][1]
    ids = [name.partition("/")[2] for name in names]
    assert [partitions[id_][:2] for id_ in ids] == [(1, size), (2, 2 * size)]
    assert {partitions[id_][2] for id_ in ids} <= {"No", "-"}
    assert (gpus[0][0], gpus[0][1], gpus[0][3]) == (chunks - 3, 3, 3 * size)


def test_too_many_chunks_are_refused_with_exit_code_0(static: Mps) -> None:
    before = static.answer("lspart")
    assert static.say(f"sm_partition add {static.gpu()} 999") == (0, TOO_MANY.format(999), "")
    assert static.answer("lspart") == before


def test_an_unknown_gpu_and_wrong_words_change_nothing(static: Mps) -> None:
    before = static.answer("lspart")
    for words in ("add GPU-00000000 1", f"add {static.gpu()} 0", f"add {static.gpu()}", f"rm {static.gpu()} x", ""):
        code, said, _ = static.say(f"sm_partition {words}")
        assert code == 0
        assert CREATED.search(said) is None
    assert static.answer("lspart") == before


def test_a_part_of_the_uuid_names_the_gpu(static: Mps) -> None:
    part = static.gpu()[:12]
    assert CREATED.fullmatch(static.answer(f"sm_partition add {part} 1"))


@pytest.mark.parametrize("form", ["{0} {1}", "{0}/{1}"])
def test_a_partition_is_removed_in_either_form(static: Mps, form: str) -> None:
    uuid, _, id_ = add(static, 2).partition("/")
    assert id_ in rows_of(static.answer("lspart"))[1]
    assert static.say(f"sm_partition rm {form.format(uuid, id_)}")[0] == 0
    assert rows_of(static.answer("lspart"))[1] == {}


def test_a_partition_in_use_is_not_removed_and_the_text_is_not_filled_in(static: Mps) -> None:
    name = add(static, 2)
    static.start_client(CUDA_MPS_SM_PARTITION=name)
    uuid, _, id_ = name.partition("/")
    assert rows_of(static.answer("lspart"))[1][id_][2] == "Yes"
    assert static.say(f"sm_partition rm {uuid} {id_}") == (0, IN_USE, "")
    assert id_ in rows_of(static.answer("lspart"))[1]


@EVERY_STATIC_DRIVER
def test_a_client_needs_a_partition_of_the_daemon(static: Mps) -> None:
    name = add(static, 2)
    for environ in ({}, {"CUDA_MPS_SM_PARTITION": f"{static.gpu()}/DxAAAA"}, {"CUDA_MPS_SM_PARTITION": "x"}):
        done = static.run_client(**environ)
        assert done.returncode != 0
        assert "invalid resource configuration" in done.stderr.lower().replace("_", " ")
    static.start_client(CUDA_MPS_SM_PARTITION=name)
    static.start_client(CUDA_MPS_SM_PARTITION=name, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="5")


def test_commands_work_as_one_argument(static: Mps) -> None:
    assert static.run("lspart") == (0, static.answer("lspart"), "")


def test_partitions_end_with_their_daemon(static: Mps) -> None:
    name = add(static, 1)
    assert static.say("quit") == DONE
    assert static.run("-S", "-d") == DONE
    assert rows_of(static.answer("lspart"))[1] == {}
    assert static.run_client(CUDA_MPS_SM_PARTITION=name).returncode != 0


def test_a_daemon_without_the_option_makes_no_partitions(mps: Mps) -> None:  # noqa: F811
    assert mps.run("-d") == DONE
    code, said, _ = mps.say(f"sm_partition add {mps.gpu()} 1")
    assert code == 0
    assert CREATED.search(said) is None


@pytest.mark.parametrize(
    ("program", "code", "number"),
    [
        ("550", 1, ""),
        ("580", 1, ""),
        ("590", 0, "13010"),
        ("595", 0, "13020"),
        ("610", 0, "13030"),
        ("615", 0, "13040"),
    ],
    indirect=["program"],
)
def test_the_version_is_told_from_590_on(mps: Mps, code: int, number: str) -> None:  # noqa: F811
    done = mps.run("-v")
    found = re.search(r"ersion: (\d+)\n$", done[1])
    assert (done[0], found[1] if found else "") == (code, number)


@pytest.mark.parametrize("program", ["550", "580"], indirect=True)
def test_older_releases_know_neither_option_nor_commands(mps: Mps) -> None:  # noqa: F811
    assert mps.run("-d", "-S")[0] == 1
    assert mps.holder() is None if os.path.exists(mps.pipe) else True  # noqa: PTH110
    assert mps.run("-d") == DONE
    for command in ("lspart", "sm_partition", "device_query"):
        assert mps.answer(command).startswith(f'Unknown command "{command}')
