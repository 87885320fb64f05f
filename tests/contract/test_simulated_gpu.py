"""The simulated GPU against programs that know nothing of it: nvidia-ml-py, gpustat and nvitop.

Everything runs from a library built into a temporary folder and a state folder of its own; root is needed only where a
test says so.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from simulated_host import HOME, INIT, MIB, TASK, Host, MpsAnswers, StartMps, build, until, used_mib, without_driver

pytestmark = [without_driver, pytest.mark.weekly]
NOBODY = 65534

ASK_BOTH = """
import json, sys
import pynvml as nvml
from slurm_share.core.errors import DriverError
from slurm_share.node.gpus import driver

def pids(handle):
    asked = (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses)
    asked += (nvml.nvmlDeviceGetMPSComputeRunningProcesses,)
    return {str(one.pid): (one.usedGpuMemory or 0) >> 20 for ask in asked for one in ask(handle)}

try:
    ours = {
        one.gpu.uuid: [one.gpu.index, one.gpu.minor, one.gpu.name, one.gpu.memory_total_mib, one.memory_used_mib,
                       driver.read_compute_mode(one.gpu.uuid), {str(p.pid): p.memory_used_mib for p in one.processes}]
        for one in driver.read_gpu_readings()
    }
    ours["version"] = driver.read_driver().version
except DriverError as error:
    ours = [error.call, error.reason]
try:
    nvml.nvmlInit()
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    theirs = {
        nvml.nvmlDeviceGetUUID(one): [
            nvml.nvmlDeviceGetIndex(one), nvml.nvmlDeviceGetMinorNumber(one), nvml.nvmlDeviceGetName(one),
            nvml.nvmlDeviceGetMemoryInfo(one).total >> 20, nvml.nvmlDeviceGetMemoryInfo(one).used >> 20,
            nvml.nvmlDeviceGetComputeMode(one), pids(one)]
        for one in handles
    }
    theirs["version"] = nvml.nvmlSystemGetDriverVersion()
except nvml.NVMLError as error:
    theirs = ["nvmlInit", str(error)]
print(json.dumps([ours, theirs]))
"""


# ---- The library ----


def test_only_nvml_names_leave_the_library(library: Path) -> None:
    """The library exports nvml* and nothing else, and bears the name the linker looks for."""
    exported = subprocess.run(
        ["nm", "-D", "--defined-only", library / "libnvidia-ml.so.1"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert len(exported) > 100
    assert [line for line in exported if not re.search(r" T nvml[A-Z]", line)] == []
    headers = subprocess.run(
        ["objdump", "-p", library / "libnvidia-ml.so.1"], capture_output=True, text=True, check=True
    )
    assert re.search(r"SONAME\s+libnvidia-ml\.so\.1\n", headers.stdout)
    assert (library / "libnvidia-ml.so").resolve() == (library / "libnvidia-ml.so.1").resolve()


def test_install_puts_everything_under_destdir(tmp_path: Path) -> None:
    subprocess.run(
        ["make", "-s", "-C", HOME, "install", f"BUILD={tmp_path}/build", f"DESTDIR={tmp_path}/root"], check=True
    )
    prefix = tmp_path / "root" / "usr" / "local"
    assert (prefix / "lib" / "libnvidia-ml.so").readlink() == Path("libnvidia-ml.so.1")
    made = subprocess.run([prefix / "bin" / "simgpu-init", "1", "--state", tmp_path / "state"], check=False)
    assert made.returncode == 0
    helped = subprocess.run([prefix / "bin" / "simgpu-task", "--help"], check=False, stdout=subprocess.PIPE)
    assert helped.returncode == 0


def test_no_state_folder_is_no_driver(host: Host) -> None:
    """Without a state folder NVML says that no driver is loaded, and a task says what to do."""
    assert host.nvml()["init"] == "NVMLError_DriverNotLoaded"
    code, _, err = host.task("--seconds", "1")
    assert (code, "simgpu-init" in err) == (1, True)


def test_a_real_driver_is_never_stood_in_for(tmp_path: Path) -> None:
    """Where the real driver's mark exists, NVML fails to start although there is a state folder."""
    mark = tmp_path / "version"
    lib = build(tmp_path / "lib", f"CPPFLAGS=-DREAL_DRIVER_FILE='\"{mark}\"'")
    host = Host(tmp_path, lib)
    host.init("1")
    assert host.nvml()["init"] == "ok"
    mark.touch()
    assert host.nvml()["init"] == "NVMLError_LibRmVersionMismatch"


def test_simgpu_init_refuses_beside_a_real_driver(tmp_path: Path) -> None:
    mark = tmp_path / "version"
    mark.touch()
    program = (
        f"import sys; sys.path.insert(0, {str(HOME)!r}); import simgpu, runpy; simgpu.REAL_DRIVER = {str(mark)!r}; "
        f"sys.argv = ['simgpu-init', '1', '--state', {str(tmp_path / 'state')!r}]; "
        f"runpy.run_path({str(INIT)!r}, run_name='__main__')"
    )
    run = subprocess.run([sys.executable, "-B", "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "a real NVIDIA driver is loaded" in run.stderr
    assert not (tmp_path / "state").exists()


# ---- Describing GPUs ----


def test_a_fresh_host_says_simulated_everywhere(two_gpus: Host) -> None:
    """Two idle cards, with names, driver and UUIDs that cannot be taken for real ones."""
    answer = two_gpus.nvml()
    assert answer["driver"] == "550.0-simulated"
    first, second = two_gpus.gpus()
    assert first["name"] == second["name"] == "Simulated H100 80GB"
    for gpu in (first, second):
        assert re.fullmatch(r"GPU-5131[0-9a-f]{4}-[0-9a-f]{4}-4[0-9a-f]{3}-8[0-9a-f]{3}-[0-9a-f]{12}", str(gpu["uuid"]))
    assert first["uuid"] != second["uuid"]
    assert [gpu["index"] for gpu in (first, second)] == [0, 1]
    assert [gpu["by_uuid"] for gpu in (first, second)] == [gpu["by_bus"] for gpu in (first, second)] == [0, 1]
    assert first["memory"] == first["memory_v2"] == [81920 * MIB, 81920 * MIB, 0]
    assert first["rates"] == [0, 0]
    assert first["compute"] == first["mps"] == first["graphics"] == {}
    assert first["process_sm"] == "NVMLError_NotFound"
    assert first["mig"] == [0, 0]
    assert first["bus"] == ["00000000:01:00.0", 0, 1, 0]


def test_unknown_is_not_supported(host: Host) -> None:
    host.init("1", "--power", "none")
    gpu = host.gpu()
    assert {gpu[key] for key in ("temperature", "power", "power_limit", "energy")} == {"NVMLError_NotSupported"}


def test_uuids_follow_from_the_host_name(host: Host, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "again", "other")]
    for folder, name in zip(folders, ("node1", "node1", "node2"), strict=True):
        assert host.init("3", "--host", name, "--state", str(folder)).returncode == 0
    first, again, other = (
        [re.search(r"uuid=(.*)", (folder / f"gpu{index}").read_text()) for index in range(3)] for folder in folders
    )
    uuids = [[match[1] for match in row if match] for row in (first, again, other)]
    assert uuids[0] == uuids[1]
    assert len(set(uuids[0] + uuids[2])) == 6


def test_init_does_not_overwrite(two_gpus: Host, tmp_path: Path) -> None:
    """A second simgpu-init refuses; --replace makes the folder anew, but only one of its own."""
    again = two_gpus.init("4")
    assert (again.returncode, "--replace" in again.stderr) == (1, True)
    assert two_gpus.init("4", "--replace").returncode == 0
    assert len(two_gpus.gpus()) == 4
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "letter").touch()
    assert two_gpus.init("1", "--state", str(foreign), "--replace").returncode == 1
    assert (foreign / "letter").exists()


@pytest.mark.parametrize(
    "words", ["99", "x", "2 --memory-mib 0", "2 --name NVIDIA", "2 --power 300:200", "2 --power 52", ""]
)
def test_init_refuses_wrong_arguments(host: Host, words: str) -> None:
    """A wrong argument is exit 2 and a sentence; a name that hides the simulation is one."""
    run = host.init(*words.split())
    assert run.returncode == 2
    assert "simgpu-init: error:" in run.stderr
    assert not host.state.exists()


def test_minor_number_and_cpus_as_the_file_says(two_gpus: Host) -> None:
    two_gpus.say(0, "minor=7")
    two_gpus.say(0, "cpus=0-2,5,64")
    gpu = two_gpus.gpu()
    assert (gpu["index"], gpu["minor"], gpu["cpus"]) == (0, 7, [0b100111, 1])


def test_more_than_ten_gpus(host: Host) -> None:
    host.init("16")
    assert [gpu["index"] for gpu in host.gpus()] == list(range(16))


def test_a_lost_gpu(two_gpus: Host) -> None:
    """A card off the bus answers GpuIsLost, its running task dies of a CUDA error, its neighbour goes on."""
    task = two_gpus.start_and_hear("--memory", "100M", "--seconds", "60", CUDA_VISIBLE_DEVICES="1")
    two_gpus.say(1, "lost=1")
    good, lost = two_gpus.gpus()
    assert good["name"] == "Simulated H100 80GB"
    assert lost == {"handle": "NVMLError_GpuIsLost"}
    assert "CUDA_ERROR_UNKNOWN (simulated)" in task.communicate(timeout=120)[1]
    assert task.returncode == 1
    assert two_gpus.task("--seconds", "0.1", CUDA_VISIBLE_DEVICES="1")[0] == 1
    assert two_gpus.task("--seconds", "0.1", CUDA_VISIBLE_DEVICES="0")[0] == 0


def test_mig_mode_has_no_utilisation(two_gpus: Host) -> None:
    """With mig=1 the mode is reported, and utilisation is not supported as on a real card."""
    two_gpus.say(0, "mig=1")
    gpu = two_gpus.gpu()
    assert gpu["mig"] == [1, 1]
    assert gpu["rates"] == gpu["process_sm"] == "NVMLError_NotSupported"


def test_gpm_needs_hopper_and_stated_counters(host: Host) -> None:
    """GPM shows what a task states, "not supported" (3) for what it does not, and is absent before Hopper."""
    host.init("1", "--cc", "9.0")
    assert host.gpu()["gpm"] == {"1": 0, "2": 0, "3": 0, "5": 0, "10": 0, "13": 0}
    host.start_and_hear("--load", "60", "--occupancy", "25", "--tensor", "5", "--seconds", "30")
    assert host.gpu()["gpm"] == {"1": 60, "2": 60, "3": 25, "5": 5, "10": 3, "13": 3}
    host.say(0, "cc=8.0")
    assert host.gpu()["gpm"] is None


@pytest.mark.skipif(os.geteuid() != 0, reason="changing the compute mode needs root")
def test_compute_mode_is_kept_in_the_state(two_gpus: Host) -> None:
    """nvmlDeviceSetComputeMode changes the file, once and whole, and refuses the mode that is gone."""
    program = (
        "import pynvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)\n"
        "n.nvmlDeviceSetComputeMode(h, 2); n.nvmlDeviceSetComputeMode(h, 3)\n"
        "try: n.nvmlDeviceSetComputeMode(h, 1)\n"
        "except n.NVMLError_NotSupported: print('refused')"
    )
    assert two_gpus.run(sys.executable, "-c", program).stdout == "refused\n"
    assert two_gpus.gpu()["mode"] == 3
    assert (two_gpus.state / "gpu0").read_text().count("compute_mode") == 1
    assert stat.S_IMODE((two_gpus.state / "gpu0").stat().st_mode) == 0o644
    files = sorted(path.name for path in two_gpus.state.iterdir())
    assert files == [
        *("README", "accounted", "clients", "driver", "ended", "energy0", "energy1", "gpu0", "gpu1", "lock"),
        *("memory_limits", "routes"),
    ]


ACCOUNTED = """
import sys, pynvml as n
n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)
if sys.argv[1:] and sys.argv[1] != "-":
    n.nvmlDeviceSetAccountingMode(h, int(sys.argv[1]))
print(n.nvmlDeviceGetAccountingMode(h), n.nvmlDeviceGetAccountingBufferSize(h))
for pid in n.nvmlDeviceGetAccountingPids(h):
    one = n.nvmlDeviceGetAccountingStats(h, pid)
    print(pid, one.gpuUtilization, one.maxMemoryUsage >> 20, one.time > 0, one.startTime > 10**15, one.isRunning)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="turning accounting mode on needs root")
def test_accounting_mode_keeps_a_process_after_its_end_until_it_is_turned_off(two_gpus: Host) -> None:
    """By the real nvidia-ml-py, and by the hooks' own reader."""

    def ask(*words: str) -> list[str]:
        return two_gpus.run(sys.executable, "-c", ACCOUNTED, *words).stdout.splitlines()

    assert ask() == ["0 4000"]
    assert ask("1") == ["1 4000"]
    task = two_gpus.start_and_hear("--memory", "2000M", "--load", "60", "--seconds", "600")
    (_, line) = ask()
    assert line.split()[0] == str(task.pid)
    assert line.split()[2:] == ["2000", "False", "True", "1"]
    task.send_signal(signal.SIGTERM)
    task.wait()
    (_, line) = ask()
    pid, load, *rest = line.split()
    assert (pid, rest) == (str(task.pid), ["2000", "True", "True", "0"])
    assert 0 <= int(load) <= 60
    reader = (
        "from slurm_share.node.gpus import counters, driver\n"
        "(one,) = counters.read_accounted(driver.read_driver().gpus[0].uuid, 0.0)\n"
        "print(one.pid, one.memory_peak_mib, one.runs, one.seconds > 0, one.began > 1e9)"
    )
    assert two_gpus.run(sys.executable, "-c", reader).stdout == f"{task.pid} 2000 False True True\n"
    assert ask("0") == ["0 4000"]
    assert ask("1") == ["1 4000"]
    two_gpus.say(0, "accounting=none")
    assert two_gpus.run(sys.executable, "-c", ACCOUNTED).stderr.endswith("Not Supported\n")


# ---- A task ----


def test_a_task_shows_in_nvml_and_leaves_nothing(two_gpus: Host) -> None:
    task = two_gpus.start_and_hear("--memory", "2000M", "--load", "60", "--memory-load", "20", "--seconds", "600")
    first, second = two_gpus.gpus()
    pid = str(task.pid)
    assert first["memory"] == first["memory_v2"] == [81920 * MIB, 79920 * MIB, 2000 * MIB]
    assert first["rates"] == [60, 20]
    assert first["compute"] == first["compute_v2"] == {pid: 2000 * MIB}
    assert first["mps"] == {}
    assert first["process_sm"] == first["process_info"] == {pid: 60}
    assert used_mib(second) == 0
    task.terminate()
    task.wait(timeout=60)
    assert used_mib(two_gpus.gpu()) == 0
    assert two_gpus.clients() == []
    assert two_gpus.task("--memory", "2000M", "--seconds", "0.1")[0] == 0
    assert two_gpus.clients() == []


def test_the_hooks_hear_what_the_binding_hears(two_gpus: Host) -> None:
    """Through ctypes and through pynvml: GPUs, memory, processes and mode, and a driver that is not there."""
    two_gpus.say(0, "compute_mode exclusive_process")
    two_gpus.start_and_hear("--memory", "3000M", "--seconds", "60", CUDA_VISIBLE_DEVICES="1")
    ours, theirs = two_gpus.nvml(ASK_BOTH)
    assert ours == theirs
    assert [len(gpu[-1]) for uuid, gpu in ours.items() if uuid.startswith("GPU-")] == [0, 1]
    shutil.rmtree(two_gpus.state)
    ours, theirs = two_gpus.nvml(ASK_BOTH)
    assert ours == theirs == ["nvmlInit", "Driver Not Loaded"]


def test_the_first_line_says_what_and_where(two_gpus: Host) -> None:
    code, out, err = two_gpus.task("--memory", "2G", "--seconds", "0.1", CUDA_VISIBLE_DEVICES="1")
    assert (code, err) == (0, "")
    assert len(out.splitlines()) == 1
    for word in (os.uname().nodename, "pid ", str(two_gpus.gpu(1)["uuid"]), "2048 MiB", "(simulated)"):
        assert word in out


def test_twelve_greedy_tasks_on_one_card(two_gpus: Host) -> None:
    """Twelve tasks of 10000 MiB start at once on 81920 MiB: eight get in and four die of out-of-memory."""
    tasks = [two_gpus.start("--memory", "10000M", "--seconds", "60", CUDA_VISIBLE_DEVICES="0") for _ in range(12)]
    assert until(lambda: len([task for task in tasks if task.poll() is not None]) == 4)
    assert until(lambda: len(two_gpus.clients()) == 8)
    gpu = two_gpus.gpu()
    assert used_mib(gpu) == 80000
    dead = [task for task in tasks if task.poll() is not None]
    for task in dead:
        assert task.returncode == 1
        assert "CUDA_ERROR_OUT_OF_MEMORY (simulated)" in task.communicate()[1]
    assert gpu["rates"] == [100, 0]
    assert set(gpu["process_sm"].values()) == {12}


def test_kill_9_frees_the_memory(two_gpus: Host) -> None:
    """A killed task counts for nothing at once, also as a zombie, and the next task of that user removes its file."""
    task = two_gpus.start_and_hear("--memory", "50000M", "--seconds", "60")
    assert used_mib(two_gpus.gpu()) == 50000
    os.kill(task.pid, signal.SIGKILL)
    assert until(lambda: ") Z " in Path(f"/proc/{task.pid}/stat").read_text())
    assert used_mib(two_gpus.gpu()) == 0
    task.wait()
    left = two_gpus.clients()
    assert used_mib(two_gpus.gpu()) == 0
    assert two_gpus.task("--memory", "50000M", "--seconds", "0.1")[0] == 0
    assert len(left) == 1
    assert two_gpus.clients() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_a_task_cleanly(two_gpus: Host, number: signal.Signals) -> None:
    """A task ends by the signal that asked it to, without a traceback and without a leftover."""
    task = two_gpus.start_and_hear("--memory", "1G", "--seconds", "60")
    task.send_signal(number)
    assert task.communicate(timeout=120)[1] == ""
    assert task.returncode == -number
    assert two_gpus.clients() == []


def test_memory_may_grow_until_it_does_not_fit(two_gpus: Host) -> None:
    """--peak takes more half-way; where that does not fit the task dies in the middle of its work."""
    code, _, err = two_gpus.task("--memory", "1G", "--peak", "81920M", "--seconds", "0.2")
    assert (code, err) == (0, "")
    code, out, err = two_gpus.task("--memory", "1G", "--peak", "81921M", "--seconds", "0.2")
    assert code == 1
    assert "1024 MiB" in out
    assert "CUDA_ERROR_OUT_OF_MEMORY (simulated)" in err


def test_bursts_come_and_go(two_gpus: Host) -> None:
    two_gpus.start_and_hear("--load", "70", "--every", "2", "--busy", "1", "--seconds", "60")
    for rates in ([70, 0], [0, 0], [70, 0]):
        assert until(lambda: two_gpus.gpu()["rates"] == rates)  # noqa: B023  (asked at once, in this round)


@pytest.mark.parametrize("words", [
    "--memory lots", "--memory", "--load 101", "--seconds -1", "--seconds nan", "--busy 2", "--every 1 --busy 2",
    "--memory 2G --peak 1G", "--counters 1", "--lode 1", "--work 2 --seconds 3", "--work 2 --every 1", "--progress 1",
    "--load 50 --util 40", "--processes 0", "--error-style fortran", "--memory 101%", "hello",
])  # fmt: skip
def test_wrong_arguments_are_exit_2(two_gpus: Host, words: str) -> None:
    code, out, err = two_gpus.task(*words.split())
    assert (code, out) == (2, "")
    assert re.fullmatch(r"simgpu-task: .+\n", err)


# ---- CUDA's rules ----


@pytest.mark.parametrize(
    ("value", "ordinal", "expected"),
    [
        (None, 0, 0),
        (None, 2, 2),
        ("1", 0, 1),
        ("2,0", 0, 2),
        ("2,0", 1, 0),
        ("UUID1", 0, 1),
        ("PREFIX2,0", 0, 2),
        (" 1 , 0 ", 1, 0),
        ("0,9,1", 0, 0),
        ("0,9,1", 1, "CUDA_ERROR_INVALID_DEVICE"),
        ("0,-1,1", 1, "CUDA_ERROR_INVALID_DEVICE"),
        ("9,0", 0, "CUDA_ERROR_NO_DEVICE"),
        ("", 0, "CUDA_ERROR_NO_DEVICE"),
        ("-1", 0, "CUDA_ERROR_NO_DEVICE"),
        ("NoDevFiles", 0, "CUDA_ERROR_NO_DEVICE"),
        ("0,0", 0, "CUDA_ERROR_NO_DEVICE"),
        ("GPU-5131", 0, "CUDA_ERROR_NO_DEVICE"),
        ("9" * 5000, 0, "CUDA_ERROR_NO_DEVICE"),
    ],
)
def test_visible_devices(host: Host, value: str | None, ordinal: int, expected: int | str) -> None:
    """CUDA_VISIBLE_DEVICES takes indices, UUIDs and their unique beginnings, ends at the unknown, hates doubles."""
    host.init("3")
    uuids = [str(gpu["uuid"]) for gpu in host.gpus()]
    extra = {}
    if value is not None:
        extra["CUDA_VISIBLE_DEVICES"] = value.replace("UUID1", uuids[1]).replace("PREFIX2", uuids[2][:16])
    code, out, err = host.task("--seconds", "0.05", "--device", str(ordinal), **extra)
    if isinstance(expected, int):
        assert code == 0, err
        assert uuids[expected] in out
    else:
        assert code == 1
        assert f"{expected} (simulated)" in err


def test_compute_modes(two_gpus: Host) -> None:
    """PROHIBITED lets nobody in, EXCLUSIVE_PROCESS one process, and the other card is not concerned."""
    two_gpus.say(0, "compute_mode=2")
    assert "CUDA_ERROR_DEVICE_UNAVAILABLE (simulated)" in two_gpus.task("--seconds", "0.05")[2]
    two_gpus.say(0, "compute_mode=3")
    two_gpus.start_and_hear("--seconds", "60", CUDA_VISIBLE_DEVICES="0")
    assert "EXCLUSIVE_PROCESS" in two_gpus.task("--seconds", "0.05", CUDA_VISIBLE_DEVICES="0")[2]
    assert two_gpus.task("--seconds", "0.05", CUDA_VISIBLE_DEVICES="1")[0] == 0


# ---- MPS, from the client's side ----


def test_mps_share_and_memory_limit(two_gpus: Host, mps: StartMps) -> None:
    """Behind MPS a task keeps its SM share and its memory limit, and both process lists name it."""
    environ = mps(f"SIMGPU_SERVER pid={os.getpid()} percentage=50 limits=0=4G")
    share = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2G"}
    task = two_gpus.start_and_hear("--memory", "2048M", "--load", "80", "--seconds", "60", **environ, **share)
    gpu = two_gpus.gpu()
    assert gpu["rates"] == [25, 0]
    assert gpu["mps"] == gpu["compute"] == {str(task.pid): 2048 * MIB}
    code, _, err = two_gpus.task("--memory", "2049M", "--seconds", "0.1", **environ, **share)
    assert (code, "CUDA_ERROR_OUT_OF_MEMORY (simulated)" in err) == (1, True)
    code, _, err = two_gpus.task("--memory", "4097M", "--seconds", "0.1", **environ)
    assert (code, "CUDA_ERROR_OUT_OF_MEMORY (simulated)" in err) == (1, True)
    assert two_gpus.task("--memory", "4096M", "--seconds", "0.1", **environ)[0] == 0


@pytest.mark.parametrize(("word", "compute", "mps_list"), [("both", 1, 1), ("mps", 0, 1), ("compute", 1, 0)])
def test_mps_clients_in_the_lists_that_the_file_names(
    two_gpus: Host, mps: StartMps, word: str, compute: int, mps_list: int
) -> None:
    """`mps_lists` says which of NVML's lists name an MPS client, so that a reader can be tried against each."""
    two_gpus.say(0, f"mps_lists={word}")
    two_gpus.start_and_hear("--seconds", "60", **mps("SIMGPU_SERVER pid=1"))
    gpu = two_gpus.gpu()
    assert (len(gpu["compute"]), len(gpu["mps"])) == (compute, mps_list)


def test_the_servers_gpus_are_the_clients_world(two_gpus: Host, mps: StartMps) -> None:
    uuid = str(two_gpus.gpu(1)["uuid"])
    environ = mps(f"SIMGPU_SERVER pid=1 gpus={uuid}")
    assert uuid in two_gpus.task("--seconds", "0.05", **environ)[1]
    assert uuid in two_gpus.task("--seconds", "0.05", CUDA_VISIBLE_DEVICES="0", **environ)[1]
    assert two_gpus.task("--seconds", "0.05", CUDA_VISIBLE_DEVICES="1", **environ)[0] == 1


def test_an_exclusive_card_takes_clients_of_one_server(two_gpus: Host, mps: StartMps) -> None:
    """In EXCLUSIVE_PROCESS the clients of one MPS server share the card, and nobody else comes in."""
    two_gpus.say(0, "compute_mode=3")
    environ = mps("SIMGPU_SERVER pid=4711")
    two_gpus.start_and_hear("--seconds", "60", **environ)
    two_gpus.start_and_hear("--seconds", "60", **environ)
    assert two_gpus.task("--seconds", "0.05")[0] == 1
    assert two_gpus.task("--seconds", "0.05", **mps("SIMGPU_SERVER pid=4712"))[0] == 1


def test_the_end_of_the_server_ends_its_clients(two_gpus: Host, tmp_path: Path) -> None:
    daemon = MpsAnswers(tmp_path / "p", "SIMGPU_SERVER pid=1")
    task = two_gpus.start_and_hear("--seconds", "60", CUDA_MPS_PIPE_DIRECTORY=str(tmp_path / "p"))
    daemon.close()
    assert "CUDA_ERROR_MPS_RPC_FAILURE (simulated)" in task.communicate(timeout=120)[1]
    assert task.returncode == 1


def test_a_dead_daemon_is_silence(two_gpus: Host, tmp_path: Path) -> None:
    """A socket that nobody listens on means no MPS, without a word, and no limits: as CUDA does it."""
    MpsAnswers(tmp_path / "p", "").close()
    code, out, err = two_gpus.task(
        *("--memory", "3G", "--load", "80", "--seconds", "0.1"),
        CUDA_MPS_PIPE_DIRECTORY=str(tmp_path / "p"),
        CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=1G",
        CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="10",
    )
    assert (code, err) == (0, "")
    assert "mps off" in out
    assert "load 80%" in out


@pytest.mark.parametrize("answer", ["SIMGPU_ERROR CUDA_ERROR_MPS_SERVER_NOT_READY", "Unknown command", "SIMGPU_SERVER"])
def test_a_daemon_without_a_server_breaks_the_task(two_gpus: Host, mps: StartMps, answer: str) -> None:
    code, _, err = two_gpus.task("--seconds", "0.1", **mps(answer))
    assert code == 1
    assert re.search(r"CUDA_ERROR_MPS_(SERVER_NOT_READY|CONNECTION_FAILED) \(simulated\)", err)


# ---- What strangers may write ----


def start_time(pid: int | str = "self") -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def own_file(host: Host) -> Path:
    """Return the client file of this process."""
    return host.state / "clients" / f"{os.getpid()}.0.{start_time()}"


@pytest.mark.parametrize("line", [
    "", "used=1000", "sm=50\n", "used=-1\n", "used=0x10\n", "used= sm=1\n", "used=1 sm=x\n", "used=1\0 sm=1\n",
    "nonsense\n", "used=1  sm=2\n", "used=" + "9" * 5000 + "\n", "\xff\xfe\n",
])  # fmt: skip
def test_torn_or_mad_client_files_do_not_count(two_gpus: Host, line: str) -> None:
    """A file that is torn, too long or not understood is as good as none, for NVML and for tasks."""
    own_file(two_gpus).write_bytes(line.encode("latin-1"))
    gpu = two_gpus.gpu()
    assert (used_mib(gpu), gpu["compute"]) == (0, {})
    assert two_gpus.task("--memory", "81920M", "--seconds", "0.05")[0] == 0


def test_figures_are_cut_to_the_card(two_gpus: Host) -> None:
    """Huge figures of a live process count as a full card, and a task finds no room there."""
    own_file(two_gpus).write_text("used=99999999999999999999999 sm=4000000000 mem=101 new=words\n")
    gpu = two_gpus.gpu()
    assert gpu["memory"] == [81920 * MIB, 0, 81920 * MIB]
    assert gpu["rates"] == [100, 100]
    assert "CUDA_ERROR_OUT_OF_MEMORY" in two_gpus.task("--memory", "1M", "--seconds", "0.05")[2]


def test_planted_files_neither_count_nor_block(two_gpus: Host, tmp_path: Path) -> None:
    """Links, fifos, folders and names that only look right hold nobody up and count for nothing."""
    clients, start = two_gpus.state / "clients", start_time()
    (tmp_path / "letter").write_text("used=1073741824\n")
    for name in (
        f"0{os.getpid()}.0.{start}",
        f"{os.getpid()}.0.0{start}",
        f"{os.getpid()}.0",
        "x.y.z",
        "." * 200,
        "-1.0.1",
    ):
        (clients / name).write_text("used=1073741824\n")
    (clients / f"{os.getpid()}.0.{start}").symlink_to(tmp_path / "letter")
    os.mkfifo(clients / f"{os.getppid()}.0.1")
    (clients / f"{os.getppid()}.1.1").mkdir()
    os.mkfifo(clients / f"{os.getpid()}.1.{start}")
    assert [used_mib(gpu) for gpu in two_gpus.gpus()] == [0, 0]
    assert two_gpus.task("--memory", "81920M", "--seconds", "0.05")[0] == 0
    assert two_gpus.task("--memory", "81920M", "--seconds", "0.05", CUDA_VISIBLE_DEVICES="1")[0] == 0


def test_another_start_time_is_another_process(two_gpus: Host) -> None:
    name = f"{os.getpid()}.0.{int(start_time()) + 1}"
    (two_gpus.state / "clients" / name).write_text("used=1073741824\n")
    assert used_mib(two_gpus.gpu()) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="writing as somebody else needs root")
def test_nobody_speaks_for_somebody_else(two_gpus: Host) -> None:
    """A file counts if it belongs to the process's owner or to root, and not if it is a third one's."""
    own = own_file(two_gpus)
    own.write_text("used=1073741824\n")
    assert used_mib(two_gpus.gpu()) == 1024
    os.chown(own, NOBODY, NOBODY)
    assert used_mib(two_gpus.gpu()) == 0
    assert two_gpus.task("--memory", "81920M", "--seconds", "0.05")[0] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="being somebody else needs root")
def test_another_users_task_is_seen(two_gpus: Host) -> None:
    """Another user's task, under a strict umask, counts like anybody's, and does not see beyond its rights."""
    reachable = subprocess.run([TASK, "--help"], user=NOBODY, capture_output=True, check=False).returncode == 0
    if not reachable:
        pytest.skip(f"user {NOBODY} cannot reach {TASK}")
    mask = os.umask(0o077)
    try:
        task = two_gpus.start_and_hear("--memory", "1G", "--seconds", "60", user=NOBODY)
    finally:
        os.umask(mask)
    assert two_gpus.gpu()["compute"] == {str(task.pid): 1024 * MIB}
    assert "81000 MiB wanted, 80896 MiB free" in two_gpus.task("--memory", "81000M", "--seconds", "0.05")[2]


def test_very_many_clients(two_gpus: Host) -> None:
    """Three hundred live processes on a card are all listed, among thousands of dead files."""
    clients = two_gpus.state / "clients"
    for number in range(3000):
        (clients / f"{4000000 + number}.0.1").write_text("used=1073741824\n")
    sleepers = [subprocess.Popen(["sleep", "60"]) for _ in range(300)]
    try:
        for sleeper in sleepers:
            (clients / f"{sleeper.pid}.0.{start_time(sleeper.pid)}").write_text("used=1048576 sm=1\n")
        gpu = two_gpus.gpu()
        assert sorted(gpu["compute"]) == sorted(str(sleeper.pid) for sleeper in sleepers)
        assert used_mib(gpu) == 300
        assert gpu["rates"] == [100, 0]
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


# ---- Witnesses from outside ----


def tool(name: str) -> Path:
    path = Path(sys.executable).parent / name
    if not path.exists():
        pytest.skip(f"{name} is not installed beside {sys.executable}")
    return path


def test_gpustat_as_a_witness(two_gpus: Host) -> None:
    task = two_gpus.start_and_hear("--memory", "3000M", "--load", "40", "--seconds", "60", CUDA_VISIBLE_DEVICES="1")
    run = two_gpus.run(tool("gpustat"), "--json")
    assert (run.returncode, run.stderr) == (0, "")
    report = json.loads(run.stdout)
    assert report["driver_version"] == "550.0-simulated"
    idle, busy = report["gpus"]
    assert idle["name"] == busy["name"] == "Simulated H100 80GB"
    assert (idle["memory.used"], busy["memory.used"], busy["memory.total"]) == (0, 3000, 81920)
    assert (busy["utilization.gpu"], busy["temperature.gpu"], busy["power.draw"]) == (40, None, 213)
    assert [(one["pid"], one["gpu_memory_usage"]) for one in busy["processes"]] == [(task.pid, 3000)]


def test_nvitop_as_a_witness(two_gpus: Host) -> None:
    """nvitop draws its table, with the process and its load, and complains of nothing."""
    task = two_gpus.start_and_hear("--memory", "3000M", "--load", "40", "--seconds", "60")
    run = two_gpus.run(tool("nvitop"), "-1", "--ascii")
    assert (run.returncode, run.stderr) == (0, "")
    assert "550.0-simulated" in run.stdout
    assert "Simulated H100 80GB" in run.stdout
    assert re.search(r"\b214W / 275W\b", run.stdout)
    assert re.search(rf"\b{task.pid} C\b.*\b3000MiB\s+40\b", run.stdout)
