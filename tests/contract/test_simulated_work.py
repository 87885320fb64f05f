"""The simulated GPU's work beside other tasks, its energy counter, and the failures that packing must handle."""

from __future__ import annotations

import fcntl
import importlib
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from simulated_host import HOME, Host, StartMps, until, used_mib, without_driver

pytestmark = [without_driver, pytest.mark.weekly]
IDLE_W, MAX_W = 52.0, 275.0


@pytest.fixture
def simwork(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield the module of the simulated work, as simgpu-task finds it."""
    monkeypatch.syspath_prepend(str(HOME))
    yield importlib.import_module("simwork")
    for name in ("simwork", "simgpu", "simmessages"):
        sys.modules.pop(name, None)


# ---- The capacity model ----


@pytest.mark.parametrize(("count", "measured"), [(2, 1.132), (3, 1.453), (4, 1.811), (7, 2.830)])
def test_the_model_is_near_what_was_measured_of_equal_tasks(simwork: Any, count: int, measured: float) -> None:
    """N copies of ResNet-18 on a V100 under MPS, of which each uses 40.26 % of the SMs (Pan 2021, Table 4)."""
    one = simwork.Demand(0.4026, 0.0, 1.0, 4711)
    assert simwork.slowdown(one, [one] * (count - 1)) == pytest.approx(measured, rel=0.06)


def test_the_model_is_near_what_was_measured_of_unlike_tasks(simwork: Any) -> None:
    """A recommender (5 % of the GPU) beside ResNet152 (82 %) under MPS: 1.04 and 1.05 (Yousefzadeh 2025, Table 4.2)."""
    small, large = (simwork.Demand(busy, 0.0, busy, 4711) for busy in (0.05, 0.82))
    assert simwork.slowdown(small, [large]) == pytest.approx(1.04, abs=0.05)
    assert simwork.slowdown(large, [small]) == pytest.approx(1.05, abs=0.05)


def test_alone_nothing_is_slow(simwork: Any) -> None:
    for server in (0, 4711):
        assert simwork.slowdown(simwork.Demand(1.0, 0.9, 1.0, server), []) == 1.0


def test_without_mps_tasks_take_turns(simwork: Any) -> None:
    """Two that are always on the GPU take twice as long; two that are rarely on it take as long as alone."""
    always, rarely = simwork.Demand(0.5, 0.0, 1.0, 0), simwork.Demand(0.3, 0.0, 0.4, 0)
    assert simwork.slowdown(always, [always]) == pytest.approx(2.0)
    assert simwork.slowdown(rarely, [rarely]) == pytest.approx(1.0)


def test_clients_of_one_server_take_turns_with_all_others_together(simwork: Any) -> None:
    """Two clients of a server and a process beside it: the server's turn is one, however many clients it has."""
    inside, outside = simwork.Demand(0.2, 0.0, 1.0, 4711), simwork.Demand(0.2, 0.0, 1.0, 0)
    together = simwork.slowdown(inside, [inside])
    assert simwork.slowdown(inside, [inside, outside]) == pytest.approx(2 * together)
    assert simwork.slowdown(outside, [inside, inside]) == pytest.approx(2.0)


def test_the_scarcer_resource_decides(simwork: Any) -> None:
    dram, sm = simwork.Demand(0.1, 0.8, 1.0, 1), simwork.Demand(0.1, 0.0, 1.0, 1)
    assert simwork.slowdown(dram, [dram]) > simwork.slowdown(dram, [sm]) > 1.0


def test_an_mps_share_below_the_demand_slows_the_task_itself(simwork: Any) -> None:
    """Half of the multiprocessors that it wants: its time on the GPU is twice as long."""
    assert simwork.slowdown(simwork.Demand(0.4, 0.0, 1.0, 1), [], 0.5) == pytest.approx(2.0)
    assert simwork.slowdown(simwork.Demand(0.4, 0.0, 0.0, 1), [], 0.5) == pytest.approx(1.0)


def test_a_clash_counts_once_beside_its_own_kind_only(simwork: Any) -> None:
    clash, other = simwork.Clash("cache", 2.5), simwork.Clash("disk", 2.0)
    assert clash.slower([]) == clash.slower([0, other.number]) == 1.0
    assert clash.slower([other.number, clash.number, clash.number]) == 2.5


# ---- Progress, against a clock of its own ----


class Card:
    """A card on which neighbours come and go at given times; takes a Context's place."""

    mps = None
    percentage = 100.0

    def __init__(self, simwork: Any, monkeypatch: pytest.MonkeyPatch, spans: list[tuple[float, float, int]]) -> None:
        self.now, self.spans, self.simwork = 100.0, spans, simwork
        self.stated: list[dict[str, int]] = []
        monkeypatch.setattr(simwork, "time", SimpleNamespace(monotonic=lambda: self.now))

    def allowed_load(self, sm: int) -> int:
        return sm

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def _here(self) -> list[tuple[float, float, int]]:
        return [span for span in self.spans if span[0] <= self.now - 100 < span[1]]

    def clients_changed_ns(self) -> int:
        return len([span for span in self.spans if span[0] <= self.now - 100])  # an end leaves no trace

    def neighbours(self) -> list[Any]:
        return [self.simwork.Client(1, {"used": 0, "sm": sm}, False) for _, _, sm in self._here()]

    def state_load(self, words: dict[str, int]) -> int:
        self.stated.append(words)
        return words["sm"]


@pytest.mark.parametrize(
    ("spans", "takes_s"),
    [
        ([], 60.0),
        ([(0.0, 1000.0, 100)], 120.0),  # turns all the time
        ([(10.0, 30.0, 100)], 70.0),  # ten of the twenty seconds are lost
        ([(0.0, 15.0, 100), (15.0, 45.0, 100), (30.0, 75.0, 100)], 100.0),  # one, one, two, one, none
    ],
)
def test_work_takes_as_long_as_its_neighbours_make_it(
    simwork: Any, monkeypatch: pytest.MonkeyPatch, spans: list[tuple[float, float, int]], takes_s: float
) -> None:
    """Sixty seconds of work, with neighbours that come and go, some of them without leaving a trace."""
    card = Card(simwork, monkeypatch, spans)
    simwork.Work(card, 100, 100, {}, 0).until(60.0)
    assert card.now - 100 == pytest.approx(takes_s, abs=1.0)


def test_stopped_time_is_not_worked_in(simwork: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(simwork, monkeypatch, [])
    work = simwork.Work(card, 100, 100, {}, 0)
    work.until(5.0)
    waits = []

    def wait(seconds: float) -> None:
        card.now += seconds
        waits.append(seconds)
        if len(waits) == 3:
            card.now += 3600.0
            work.note_stop()

    card.wait = wait  # type: ignore[method-assign]
    work.until(10.0)
    assert card.now - 100 == pytest.approx(3600.0 + 10.0 + 0.1, abs=0.05)


def test_the_load_that_is_seen_falls_with_the_speed(simwork: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slowed task takes less of the card than it wants; its neighbours compute with what it wants."""
    card = Card(simwork, monkeypatch, [(0.0, 1000.0, 100)])
    simwork.Work(card, 80, 100, {"dram": 40}, 0).until(1.0)
    wanted = {"want_sm": 80, "want_dram": 40, "want_util": 100}
    assert card.stated == [{"sm": 40, "mem": 0, "util": 100, "dram": 20, **wanted}]


# ---- Real tasks ----


def progress(out: Path) -> list[tuple[float, float]]:
    """Return progress and speed of each line of progress."""
    found = re.findall(r"^work ([0-9.]+) of [0-9.]+ s, speed ([0-9.]+) \(simulated\)$", out.read_text(), re.MULTILINE)
    return [(float(done), float(speed)) for done, speed in found]


def start_work(host: Host, out: Path, *words: str, **environ: str) -> subprocess.Popen[str]:
    """Start a task whose output goes to a file; return once it has printed its progress."""
    with out.open("w") as file:
        task = subprocess.Popen(
            [HOME / "simgpu-task", "--progress", "0.05", *words], env=host.environ(environ), stdout=file, text=True
        )
    host.running.append(task)
    assert until(lambda: bool(progress(out)))
    return task


def test_two_tasks_slow_each_other_down_until_one_is_killed(two_gpus: Host, tmp_path: Path) -> None:
    """Without MPS both run at half their speed, and who is left is as fast as alone again; the other GPU is not
    concerned."""
    one, other, third = (tmp_path / name for name in ("one", "other", "third"))
    start_work(two_gpus, one, "--work", "600", "--load", "100")
    neighbour = start_work(two_gpus, other, "--work", "600", "--load", "100")
    start_work(two_gpus, third, "--work", "600", CUDA_VISIBLE_DEVICES="1")
    assert until(lambda: progress(one)[-1][1] == progress(other)[-1][1] == 0.5)
    gpu = two_gpus.gpu()
    assert gpu["rates"] == [100, 0]
    assert gpu["gpm"]["2"] == 100
    neighbour.kill()
    assert until(lambda: progress(one)[-1][1] == 1.0)
    assert {speed for _, speed in progress(third)} == {1.0}


def test_tasks_that_clash_are_slower_than_their_load_tells_and_a_stopped_one_slows_nobody(
    two_gpus: Host,
    tmp_path: Path,
) -> None:
    """Loads that hardly hurt: without --clash, and beside another tag, all keep their speed."""
    words = ("--work", "600", "--load", "5", "--util", "10")
    out = {name: tmp_path / name for name in ("one", "other", "third")}
    start_work(two_gpus, out["one"], *words, "--clash", "cache:4")
    other = start_work(two_gpus, out["other"], *words, "--clash", "cache:2")
    start_work(two_gpus, out["third"], *words, "--clash", "disk:9")
    assert until(lambda: progress(out["one"])[-1][1] == 0.25)
    assert progress(out["other"])[-1][1] == 0.5
    assert progress(out["third"])[-1][1] == 1.0
    other.send_signal(signal.SIGSTOP)
    assert until(lambda: progress(out["one"])[-1][1] == 1.0)
    other.send_signal(signal.SIGCONT)
    assert until(lambda: progress(out["one"])[-1][1] == 0.25)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--work", "1", "--clash", "2"), "'2' is not TAG:FACTOR"),
        (("--work", "1", "--clash", "a:0.5"), "'a:0.5' is not TAG:FACTOR"),
        (("--work", "1", "--clash", "a:x"), "'a:x' is not TAG:FACTOR"),
        (("--clash", "a:2"), "--clash needs --work"),
    ],
)
def test_a_clash_that_makes_no_sense_is_refused(two_gpus: Host, words: tuple[str, ...], why: str) -> None:
    code, _, err = two_gpus.task(*words)
    assert code == 2
    assert why in err


def test_clients_of_one_mps_server_slow_each_other_down_less(
    two_gpus: Host,
    mps: StartMps,
    tmp_path: Path,
) -> None:
    """Twice 55 % of the multiprocessors: soft(1.1) / soft(0.55) instead of taking turns."""
    environ = mps(f"SIMGPU_SERVER pid={os.getpid()}")
    outs = tmp_path / "one", tmp_path / "other"
    for out in outs:
        start_work(two_gpus, out, "--work", "600", "--load", "55", "--util", "100", **environ)
    expected = round((1 + 0.55**2.5) ** 0.4 / (1 + 1.1**2.5) ** 0.4, 2)
    assert until(lambda: [progress(out)[-1][1] for out in outs] == [expected, expected])
    shown = round(55 * (1 + 0.55**2.5) ** 0.4 / (1 + 1.1**2.5) ** 0.4)
    assert two_gpus.gpu()["gpm"]["2"] == 2 * shown
    assert two_gpus.gpu()["gpm"]["1"] == 100


def test_work_alone_ends_and_says_how_long_it_took(two_gpus: Host) -> None:
    code, out, err = two_gpus.task("--work", "0.3", "--memory", "1G")
    assert (code, err) == (0, "")
    assert re.fullmatch(r"simgpu-task: 0.3 s of work took [0-9.]+ s \(simulated\)", out.splitlines()[-1])
    assert float(out.splitlines()[-1].split()[6]) >= 0.3


def test_a_stopped_task_keeps_its_memory_and_has_no_load(two_gpus: Host, tmp_path: Path) -> None:
    """Its neighbour is as fast as alone meanwhile, and it does not work in the time that it was stopped."""
    paused, other, number = tmp_path / "paused", tmp_path / "other", tmp_path / "number"
    began = time.monotonic()
    task = start_work(two_gpus, paused, "--work", "600", "--memory", "1G", LLSUB_PROGRESS=str(number))
    start_work(two_gpus, other, "--work", "600", "--memory", "1G")
    assert until(lambda: progress(other)[-1][1] == 0.5)
    task.send_signal(signal.SIGSTOP)
    stopped = time.monotonic()
    assert until(lambda: progress(other)[-1][1] == 1.0)
    assert used_mib(two_gpus.gpu()) == 2048
    stopped_s = time.monotonic() - stopped
    before = len(progress(paused))
    task.send_signal(signal.SIGCONT)
    assert until(lambda: len(progress(paused)) > before + 1)
    assert progress(paused)[-1][0] <= time.monotonic() - began - stopped_s
    assert until(lambda: progress(paused)[-1][1] == 0.5)
    assert until(lambda: number.read_text().endswith("\n"))
    assert 0 < float(number.read_text()) <= progress(paused)[-1][0] + 600


def test_memory_grows_at_the_stated_part_of_the_work(two_gpus: Host) -> None:
    words = ("--memory", "1G", "--peak", "90G", "--peak-at", "80", "--progress", "0.05")
    code, out, err = two_gpus.task(*words, "--work", "1")
    assert code == 1
    assert "CUDA_ERROR_OUT_OF_MEMORY (simulated)" in err
    done = [float(found) for found in re.findall(r"^work ([0-9.]+) of", out, re.MULTILINE)]
    assert max(done) <= 0.8


# ---- Elastic programs, several processes ----


def test_an_elastic_program_takes_what_it_is_given_and_its_part_of_the_whole_gpu(two_gpus: Host, mps: StartMps) -> None:
    """The limit of MPS shows as free memory and not as the total."""
    environ = mps(f"SIMGPU_SERVER pid={os.getpid()}") | {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=10G"}
    for word, held, extra in (
        ("cap", 10240, {}),
        ("5%", 4096, {}),
        ("xla", 8192, {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.1"}),
    ):
        assert f"memory {held} MiB" in two_gpus.task("--memory", word, "--seconds", "0.05", **environ, **extra)[1]
    assert "CUDA_ERROR_OUT_OF_MEMORY" in two_gpus.task("--memory", "xla", **environ)[2]
    said = two_gpus.task("--memory", "1G", "--mem-info", "after", "--seconds", "0.05", **environ)[1]
    assert "cudaMemGetInfo: free 9216 MiB, total 81920 MiB (simulated)" in said
    assert "memory 61440 MiB" in two_gpus.task("--memory", "xla", "--seconds", "0.05")[1]
    two_gpus.start_and_hear("--memory", "20G", "--seconds", "60")
    assert f"memory {81920 - 20480} MiB" in two_gpus.task("--memory", "cap", "--seconds", "0.05")[1]
    assert f"memory {81920 - 20480} MiB" in two_gpus.task("--peak", "cap", "--memory", "cap", "--seconds", "0.05")[1]


def test_several_processes_hold_several_times_the_memory(two_gpus: Host) -> None:
    task = two_gpus.start_and_hear("--processes", "3", "--memory", "2G", "--load", "10", "--seconds", "60")
    assert until(lambda: len(two_gpus.clients()) == 3 and used_mib(two_gpus.gpu()) == 3 * 2048)
    assert str(task.pid) not in two_gpus.gpu()["compute"]
    task.terminate()
    assert task.wait(timeout=60) == -signal.SIGTERM
    assert until(lambda: two_gpus.clients() == [])


def test_a_killed_parent_takes_its_processes_with_it(two_gpus: Host) -> None:
    task = two_gpus.start_and_hear("--processes", "2", "--memory", "2G", "--seconds", "60")
    assert until(lambda: len(two_gpus.clients()) == 2)
    task.kill()
    task.wait()
    assert until(lambda: used_mib(two_gpus.gpu()) == 0)


def test_one_of_several_processes_that_fails_ends_all(two_gpus: Host) -> None:
    code, _, err = two_gpus.task("--processes", "3", "--memory", "30G", "--seconds", "60")
    assert code == 1
    assert "CUDA_ERROR_OUT_OF_MEMORY (simulated)" in err
    assert two_gpus.clients() == []


# ---- Failures ----


@pytest.mark.parametrize(
    ("style", "text", "code"),
    [
        ("pytorch", r"torch\.OutOfMemoryError: CUDA out of memory\. Tried to allocate 90\.00 GiB\. .*", 1),
        ("pytorch", r".* Including non-PyTorch memory, this process has 1\.00 GiB memory in use\. .*", 1),
        ("jax", r".*RESOURCE_EXHAUSTED: Out of memory while trying to allocate 96636764160 bytes\. .*", 1),
        ("tensorflow", r".*ResourceExhaustedError: OOM when allocating tensor with shape.*", 1),
        ("cupy", r"cupy\.cuda\.memory\.OutOfMemoryError: Out of memory allocating 96,636,764,160 bytes .*", 1),
        ("runtime", r"terminate called .*cudaErrorMemoryAllocation: out of memory.*", -signal.SIGABRT),
        ("silent", r"simgpu-task: ended \(simulated\)", 1),
    ],
)
def test_out_of_memory_in_a_frameworks_form(two_gpus: Host, style: str, text: str, code: int) -> None:
    words = ("--memory", "1G", "--peak", "91G", "--seconds", "0.05", "--error-style", style)
    ended, _, err = two_gpus.task(*words)
    assert ended == code
    assert re.fullmatch(text, err.strip())
    assert err.strip().endswith("(simulated)")


def test_a_fault_without_mps_ends_its_task_alone(two_gpus: Host) -> None:
    other = two_gpus.start_and_hear("--seconds", "60")
    code, _, err = two_gpus.task("--seconds", "60", "--fault", "0.05", "--error-style", "pytorch")
    assert (code, err) == (1, "RuntimeError: CUDA error: an illegal memory access was encountered (simulated)\n")
    assert other.poll() is None


def test_a_driver_that_hangs_answers_when_it_is_over(two_gpus: Host) -> None:
    two_gpus.say(0, "hang=1")
    ask = "import pynvml as n; n.nvmlInit(); n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex({}))"
    start = [subprocess.Popen([sys.executable, "-c", ask.format(index)], env=two_gpus.environ()) for index in (0, 1)]
    two_gpus.running += start
    assert start[1].wait(timeout=60) == 0
    with pytest.raises(subprocess.TimeoutExpired):
        start[0].wait(timeout=1)
    two_gpus.say(0, "hang=0")
    assert start[0].wait(timeout=60) == 0


# ---- Power and energy ----


def power_w(sm_percent: float) -> float:
    return IDLE_W + (MAX_W - IDLE_W) * math.pow(sm_percent / 100, 0.35)


def energy_j(host: Host, index: int = 0) -> float:
    return float(host.gpu(index)["energy"]) / 1000


def set_back(host: Host, seconds: float, sm: int) -> None:
    """Set the last reading so many seconds back, with that load."""
    at = time.monotonic_ns() - int(seconds * 1e9)
    (host.state / "energy0").write_text(f"at={at:020} uj={0:020} sm={sm:03}\n")


def between(host: Host, fixed_j: float, w: float, since: float) -> bool:
    """Return whether the energy is `fixed_j` plus that power since then, and no more than has passed by now."""
    low = time.monotonic()
    energy = energy_j(host)
    return fixed_j + w * (low - since) - 0.01 <= energy + w * (time.monotonic() - low) and (
        energy <= fixed_j + w * (time.monotonic() - since) + 0.01
    )


def test_power_follows_the_load(two_gpus: Host) -> None:
    assert two_gpus.gpu()["power"] == IDLE_W * 1000
    two_gpus.start_and_hear("--load", "50", "--seconds", "60")
    two_gpus.start_and_hear("--load", "20", "--seconds", "60")
    assert two_gpus.gpu()["power"] == int(power_w(70) * 1000)
    assert two_gpus.gpu(1)["power"] == IDLE_W * 1000
    two_gpus.start_and_hear("--load", "90", "--seconds", "60")
    assert two_gpus.gpu()["power"] == two_gpus.gpu()["power_limit"] == MAX_W * 1000


def test_an_idle_gpu_draws_its_idle_power(two_gpus: Host) -> None:
    since = time.monotonic()
    set_back(two_gpus, 1000, 0)
    assert between(two_gpus, 1000 * IDLE_W, IDLE_W, since)


def test_a_load_counts_for_as_long_as_it_lasts(two_gpus: Host) -> None:
    """A live load that nobody has looked at counts for the whole time; one of a killed task for a second."""
    task = two_gpus.start_and_hear("--load", "100", "--seconds", "60")
    task.send_signal(signal.SIGSTOP)  # it would look itself
    set_back(two_gpus, 100, 100)
    since = time.monotonic()
    assert between(two_gpus, MAX_W + 99 * IDLE_W, IDLE_W, since)  # stopped: no load
    task.send_signal(signal.SIGCONT)
    task.kill()
    task.wait()
    set_back(two_gpus, 100, 100)
    assert between(two_gpus, MAX_W + 99 * IDLE_W, IDLE_W, time.monotonic())


def test_energy_is_the_integral_of_the_power(two_gpus: Host) -> None:
    """Loads come and go while somebody else looks now and then: the counter is what the power was, times the time."""
    start = time.monotonic()
    before = energy_j(two_gpus)
    at_least = at_most = 0.0
    for load in (30, 100, 0, 60):
        asked = time.monotonic()
        task = two_gpus.start_and_hear("--load", str(load), "--seconds", "60")
        loaded = time.monotonic()
        until(lambda: time.monotonic() - loaded > 0.7)  # noqa: B023
        energy_j(two_gpus)
        ends = time.monotonic()
        task.terminate()
        task.wait()
        at_least += (power_w(load) - IDLE_W) * (ends - loaded) if load else 0.0
        at_most += (power_w(load) - IDLE_W) * (time.monotonic() - asked) if load else 0.0
    low = time.monotonic()
    drawn = energy_j(two_gpus) - before
    assert at_least + IDLE_W * (low - start) - IDLE_W * (time.monotonic() - low) - 25 <= drawn
    assert drawn <= at_most + IDLE_W * (time.monotonic() - start) + 1


def test_the_counter_never_falls(two_gpus: Host) -> None:
    script = (
        "import pynvml as n, sys; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)\n"
        "while True: print(n.nvmlDeviceGetTotalEnergyConsumption(h), flush=True)"
    )
    readers = [
        subprocess.Popen([sys.executable, "-c", script], env=two_gpus.environ(), stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    two_gpus.running += readers
    seen: list[list[int]] = [[], []]

    def listen(number: int) -> None:
        stdout = readers[number].stdout
        assert stdout is not None
        seen[number] += [int(line) for line in stdout]

    threads = [threading.Thread(target=listen, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for number in range(8):
        task = two_gpus.start_and_hear("--load", "80", "--seconds", "60")
        (task.kill if number % 2 else task.terminate)()
        task.wait()
    for reader in readers:
        reader.kill()
    for thread in threads:
        thread.join(timeout=60)
    for values in seen:
        assert len(values) > 100
        assert values == sorted(values)
        assert values[-1] > values[0]


def test_a_stated_power_and_energy_win(two_gpus: Host) -> None:
    for line in ("power_w=300", "energy_j=5"):
        two_gpus.say(0, line)
    two_gpus.start_and_hear("--load", "50", "--seconds", "60")
    assert (two_gpus.gpu()["power"], two_gpus.gpu()["energy"]) == (300000, 5000)


@pytest.mark.parametrize("text", ["", "at=1 uj=2", "at=x uj=2 sm=3\n", "at=1 uj=2 sm=101\n", "\xff" * 500])
def test_a_torn_energy_file_is_no_energy(two_gpus: Host, text: str) -> None:
    (two_gpus.state / "energy0").write_text(text)
    assert two_gpus.task("--seconds", "0.05", "--load", "50")[0] == 0
    assert (two_gpus.gpu()["energy"], two_gpus.gpu()["power"]) == ("NVMLError_NotSupported", IDLE_W * 1000)


def test_without_an_energy_file_tasks_run(two_gpus: Host) -> None:
    (two_gpus.state / "energy0").unlink()
    assert two_gpus.task("--work", "0.05", "--load", "50")[0] == 0
    assert two_gpus.gpu()["energy"] == "NVMLError_NotSupported"


def test_a_lock_that_is_held_for_long_holds_nobody_up(two_gpus: Host) -> None:
    """A task that was stopped while it had the lock: others run, and the driver answers."""
    with (two_gpus.state / "energy0").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert two_gpus.task("--seconds", "0.05", "--load", "50")[0] == 0
        assert energy_j(two_gpus) >= 0
