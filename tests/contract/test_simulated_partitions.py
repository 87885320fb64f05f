"""Features of the simulated static partitions beyond the contract: load, faults, other GPUs, daemons that forget."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from simulated_host import without_driver
from test_mps_contract import HOME, NOBODY, Mps, Program, mps, root_only, stand_in  # noqa: F401  (a fixture)
from test_mps_contract_static import TOO_MANY, add, rows_of, static  # noqa: F401  (a fixture)

pytestmark = without_driver


@pytest.fixture(params=["610"])
def program(request: pytest.FixtureRequest) -> Iterator[Program]:
    release, *options = request.param.split()
    yield from stand_in(release, *options)


def state_of(mps: Mps) -> Path:  # noqa: F811
    return Path(mps.program.environ["SIMGPU_STATE"])


def test_a_client_sees_its_partitions_sms_and_loads_no_more(static: Mps) -> None:  # noqa: F811
    name = add(static, 3)
    environ = static.environ({"CUDA_MPS_SM_PARTITION": name, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "5"})
    done = subprocess.run(
        [HOME / "simgpu-task", "--seconds", "0.1"], env=environ, capture_output=True, text=True, check=True
    )
    assert "load 18%" in done.stdout
    assert "static partition of 24 SMs" in done.stdout


def test_ids_hold_slashes_and_plus_signs(static: Mps) -> None:  # noqa: F811
    ids = [add(static, 1).partition("/")[2] for _ in range(6)]
    assert [("/" in id_, "+" in id_) for id_ in ids[:3]] == [(True, False), (False, True), (False, False)]
    assert len(set(ids)) == 6
    assert set(rows_of(static.answer("lspart"))[1]) == set(ids)


def culprit_of(mps: Mps, name: str) -> subprocess.Popen[str]:  # noqa: F811
    child = subprocess.Popen(
        [*mps.program.client, "--fault", "0.2"],
        env=mps.environ({"CUDA_MPS_SM_PARTITION": name}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    mps.children.append(child)
    return child


@pytest.mark.parametrize(("program", "all_end"), [("595", True), ("610", False)], indirect=["program"])
def test_from_610_on_a_fault_ends_its_own_partition_only(static: Mps, all_end: bool) -> None:  # noqa: F811
    here, there = add(static, 2), add(static, 2)
    beside = static.start_client(CUDA_MPS_SM_PARTITION=here, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="100")
    elsewhere = static.start_client(CUDA_MPS_SM_PARTITION=there)
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in culprit_of(static, here).communicate(timeout=120)[1]
    assert "CUDA_ERROR_LAUNCH_FAILED" in beside.communicate(timeout=120)[1]
    if all_end:
        assert "CUDA_ERROR_LAUNCH_FAILED" in elsewhere.communicate(timeout=120)[1]
    server = static.answer("get_server_list").strip()
    static.wait(lambda: static.answer(f"get_server_status {server}") == "ACTIVE\n")
    assert (elsewhere.poll() is None) != all_end
    static.start_client(CUDA_MPS_SM_PARTITION=here)


@pytest.mark.parametrize(("program", "all_end"), [("595", True), ("610", False)], indirect=["program"])
def test_the_fault_file_names_a_partition(static: Mps, all_end: bool) -> None:  # noqa: F811
    here, there = add(static, 2), add(static, 2)
    one, other = static.start_client(CUDA_MPS_SM_PARTITION=here), static.start_client(CUDA_MPS_SM_PARTITION=there)
    (state_of(static) / "mps_fault").write_text(f"{here}\n")
    assert "CUDA_ERROR_LAUNCH_FAILED" in one.communicate(timeout=120)[1]
    assert "CUDA_ERROR_" in static.run_client(CUDA_MPS_SM_PARTITION=here).stderr
    if all_end:
        assert "CUDA_ERROR_LAUNCH_FAILED" in other.communicate(timeout=120)[1]
    else:
        static.start_client(CUDA_MPS_SM_PARTITION=there)
        assert other.poll() is None


def test_a_fault_of_the_gpu_ends_all_partitions(static: Mps) -> None:  # noqa: F811
    clients = [static.start_client(CUDA_MPS_SM_PARTITION=add(static, 1)) for _ in range(2)]
    (state_of(static) / "mps_fault").touch()
    for client in clients:
        assert "CUDA_ERROR_LAUNCH_FAILED" in client.communicate(timeout=120)[1]


def test_a_daemon_can_forget_its_partitions(static: Mps) -> None:  # noqa: F811
    old = add(static, 2)
    (state_of(static) / "mps_forget").touch()
    assert rows_of(static.answer("lspart"))[1] == {}
    assert static.run_client(CUDA_MPS_SM_PARTITION=old).returncode == 1
    new = add(static, 2)
    assert new != old
    assert set(rows_of(static.answer("lspart"))[1]) == {new.partition("/")[2]}


@pytest.mark.parametrize(
    ("program", "chunks", "sms"),
    [("595 --cc 9.0", 15, 8), ("595 --cc 8.0", 27, 4), ("595 --cc 12.0", 22, 8), ("595 --cc 7.0", 0, 0)],
    indirect=["program"],
)
def test_chunks_follow_the_compute_capability(static: Mps, chunks: int, sms: int) -> None:  # noqa: F811
    assert rows_of(static.answer("lspart"))[0][0][0] == chunks
    if chunks:
        add(static, chunks)
        assert rows_of(static.answer("lspart"))[0][0][3] == chunks * sms
    else:
        assert static.answer(f"sm_partition add {static.gpu()} 1").startswith("Failed to fulfill")


def test_a_mig_instance_is_not_divided(mps: Mps) -> None:  # noqa: F811
    with (state_of(mps) / "gpu0").open("a") as file:
        file.write("mig=1\nmig0=1 0 1024 1g.10gb MIG-5131aaaa-0000-4000-8000-000000000000\n")
    assert mps.run("-d", "-S")[0] == 0
    answer = mps.answer("sm_partition add MIG-5131aaaa 1")
    assert answer.startswith("Failed to fulfill")
    assert rows_of(mps.answer("lspart"))[1] == {}


@root_only
def test_another_user_changes_no_partitions(static: Mps) -> None:  # noqa: F811
    code, said, _ = static.say(f"sm_partition add {static.gpu()} 1", uid=NOBODY)
    assert code == 0
    assert said.startswith(f"Insufficient privileges for UID {NOBODY}")
    assert rows_of(static.answer("lspart"))[1] == {}


@pytest.mark.parametrize(("choice", "code"), [("ignore", 0), ("error", 1)])
def test_a_partition_without_the_option_is_ignored_or_an_error(mps: Mps, choice: str, code: int) -> None:  # noqa: F811
    (state_of(mps) / "mps_choices").write_text(f"SIMMPS_STRAY_PARTITION={choice}\n")
    assert mps.run("-d")[0] == 0
    mps.program.client = [*mps.program.client[:-1], "0.1"]
    assert mps.run_client(CUDA_MPS_SM_PARTITION=f"{mps.gpu()}/DxAAAA").returncode == code
