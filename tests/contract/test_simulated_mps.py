"""Features of the simulated MPS beyond the recorded behaviour: servers, clients, users, limits, NVML."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from simulated_host import without_driver
from test_mps_contract import HOME, NOBODY, Mps, Program, mps, root_only, running  # noqa: F401  (fixtures)

pytestmark = [without_driver, pytest.mark.weekly]


@pytest.fixture(params=["550"])
def program(request: pytest.FixtureRequest) -> Iterator[Program]:
    """Return the program with two GPUs of 8 GiB. Other users may read the state folder."""
    folder = Path(tempfile.mkdtemp(prefix="mps", dir="/tmp"))
    folder.chmod(0o755)
    state = folder / "state"
    subprocess.run([HOME / "simgpu-init", "2", "--state", state, "--memory-mib", "8192"], check=True)
    yield Program(
        path=str(HOME / "nvidia-cuda-mps-control"),
        driver=int(request.param),
        environ={"SIMGPU_STATE": str(state), "SIMMPS_DRIVER": request.param},
        client=[str(HOME / "simgpu-task"), "--memory", "100M", "--seconds", "60"],
    )
    shutil.rmtree(folder)


def state_of(mps: Mps) -> Path:  # noqa: F811
    return Path(mps.program.environ["SIMGPU_STATE"])


def test_it_says_that_it_is_simulated(running: Mps) -> None:  # noqa: F811
    running.start_server()
    assert "SIMULATED" in running.run("-h")[1]
    for name in ("control.log", "server.log"):
        assert "SIMULATED" in Path(running.home, "logs", name).read_text()


def test_it_refuses_beside_a_real_driver(tmp_path: Path) -> None:
    copy = tmp_path / "nvidia-cuda-mps-control"
    here = tmp_path / "version"
    here.touch()
    copy.write_text((HOME / copy.name).read_text().replace("/proc/driver/nvidia/version", str(here)))
    copy.chmod(0o755)
    done = subprocess.run([copy, "-d"], env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "a real NVIDIA driver is loaded" in done.stderr


def test_a_client_starts_its_server_and_counts_gpus_from_the_daemons_own(mps: Mps) -> None:  # noqa: F811
    """Numbers are counted anew: behind a daemon on GPU 1, GPU 0 is that one. UUIDs fit on both sides."""
    uuid = (state_of(mps) / "gpu1").read_text().split()[0].removeprefix("uuid=")
    mps.program.gpu = uuid
    assert mps.run("-d")[0] == 0
    client = mps.start_client(CUDA_VISIBLE_DEVICES="0")
    assert len(mps.answer("get_client_list " + mps.answer("get_server_list").strip()).split()) == 1
    names = [file.name for file in (state_of(mps) / "clients").iterdir()]
    assert any(name.startswith(f"{client.pid}.1.") for name in names)
    second = mps.start_client(CUDA_VISIBLE_DEVICES=uuid)
    assert second.poll() is None


def test_server_and_clients_are_registered_on_the_gpu(running: Mps) -> None:  # noqa: F811
    server = running.start_server()
    client = running.start_client()
    files = [file for file in (state_of(running) / "clients").iterdir() if not file.name.startswith(".")]
    lines = {file.name.split(".")[0]: file.read_text() for file in files}
    assert f"mps={server}" in lines[str(client.pid)]
    assert "used=33554432" in lines[server]
    assert "mps=" not in lines[server]


@pytest.mark.parametrize(("program", "limit"), [("550", 48), ("590", 60)], indirect=["program"])
def test_one_client_too_many(running: Mps, limit: int) -> None:  # noqa: F811
    server = running.start_server()
    children = [
        subprocess.Popen(running.program.client, env=running.environ(), stdout=subprocess.PIPE, text=True)
        for _ in range(limit)
    ]
    running.children += children
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline()
    one_more = running.run_client()
    assert "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED (simulated)" in one_more.stderr
    assert len(running.answer(f"get_client_list {server}").split()) == limit


@root_only
def test_another_users_client_waits_for_an_empty_server(running: Mps) -> None:  # noqa: F811
    server = running.start_server()
    mine = running.start_client()
    theirs = subprocess.Popen(
        running.program.client,
        env=running.environ(),
        stdout=subprocess.PIPE,
        text=True,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
    )
    running.children.append(theirs)
    time.sleep(0.5)
    assert running.answer("get_server_list").strip() == server
    mine.terminate()
    assert theirs.stdout is not None
    assert "mps server" in theirs.stdout.readline()
    other = running.answer("get_server_list").strip()
    assert other != server
    assert os.stat(f"/proc/{other}").st_uid == NOBODY  # noqa: PTH116


@root_only
def test_a_users_daemon_serves_nobody_else(mps: Mps) -> None:  # noqa: F811
    os.chown(mps.home, NOBODY, NOBODY)
    assert mps.run("-d", uid=NOBODY)[0] == 0
    done = mps.run_client()
    assert "CUDA_ERROR_MPS_CONNECTION_FAILED (simulated)" in done.stderr
    assert "Operation not permitted" in Path(mps.home, "logs", "control.log").read_text()


def test_a_server_without_a_gpu_ends_as_recorded(running: Mps) -> None:  # noqa: F811
    (state_of(running) / "mps_fail").touch()
    assert running.say(f"start_server -uid {os.getuid()}") == (0, "", "")
    running.wait(lambda: running.answer("get_server_list") == "")
    assert "exited with status 1" in Path(running.home, "logs", "control.log").read_text()
    assert "no CUDA-capable device is detected" in Path(running.home, "logs", "server.log").read_text()
    done = running.run_client()
    assert "CUDA_ERROR_MPS_CONNECTION_FAILED (simulated)" in done.stderr


def test_a_fault_takes_all_clients_and_passes(running: Mps) -> None:  # noqa: F811
    server = running.start_server()
    clients = [running.start_client(), running.start_client()]
    fault = state_of(running) / "mps_fault"
    fault.touch()
    for client in clients:
        assert "CUDA_ERROR_LAUNCH_FAILED (simulated)" in client.communicate(timeout=120)[1]
    assert running.answer(f"get_server_status {server}") == "FAULT\n"
    done = running.run_client()
    assert "CUDA_ERROR_MPS_SERVER_NOT_READY (simulated)" in done.stderr
    fault.unlink()
    assert running.answer(f"get_server_status {server}") == "ACTIVE\n"
    running.start_client()


def test_quit_with_a_time_limit_does_not_wait_for_ever(running: Mps) -> None:  # noqa: F811
    running.start_server()
    client = running.start_client()
    assert running.say("quit -t 1")[0] == 0
    assert "CUDA_ERROR_MPS_RPC_FAILURE (simulated)" in client.communicate(timeout=120)[1]


def test_a_front_end_starts_fast(running: Mps) -> None:  # noqa: F811
    """Ten in a row, so that a hook on a simulated node is not judged by our stand-in. By the CPU that they take, which
    a busy machine leaves nearly as it is."""

    def cpu_s() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = cpu_s()
    for _ in range(10):
        running.say("get_server_list")
    assert (cpu_s() - before) / 10 < 0.3


def test_a_clients_own_fault_ends_its_neighbours_after_it(running: Mps) -> None:  # noqa: F811
    """The one that committed it says so; the others say that their launch failed. FAULT lasts until all have gone."""
    server = running.start_server()
    neighbours = [running.start_client(), running.start_client()]
    neighbours[1].send_signal(signal.SIGSTOP)  # it will go late
    culprit = subprocess.Popen(
        [*running.program.client, "--fault", "0.2"], env=running.environ(), stderr=subprocess.PIPE, text=True
    )
    running.children.append(culprit)
    assert "CUDA_ERROR_ILLEGAL_ADDRESS (simulated)" in culprit.communicate(timeout=120)[1]
    assert "CUDA_ERROR_LAUNCH_FAILED (simulated)" in neighbours[0].communicate(timeout=120)[1]
    assert (culprit.returncode, neighbours[0].returncode) == (1, 1)
    assert running.answer(f"get_server_status {server}") == "FAULT\n"
    done = running.run_client()
    assert "CUDA_ERROR_MPS_SERVER_NOT_READY (simulated)" in done.stderr
    neighbours[1].send_signal(signal.SIGCONT)
    assert "CUDA_ERROR_LAUNCH_FAILED (simulated)" in neighbours[1].communicate(timeout=120)[1]
    running.wait(lambda: running.answer(f"get_server_status {server}") == "ACTIVE\n")
    running.start_client()
    assert f"Fatal exception in client {culprit.pid}" in Path(running.home, "logs", "server.log").read_text()
