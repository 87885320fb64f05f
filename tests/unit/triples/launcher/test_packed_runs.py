"""Packed runs: the launcher outside Slurm, with real programs on simulated GPUs, with MPS daemons of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from launches import alive, children, wait_for
from msgspec.structs import replace
from packed_machine import QUICK, TASK, Machine
from packing_values import is_replayable

from slurm_share.packing import EVENTS, PackRequest, ProgressReader, Start, TaskSpec
from slurm_share.triples import explain_groups, explain_task, run_folder

HARD = replace(QUICK, guard="hard")


def task(memory: str, seconds: float = 1.0, *more: str) -> str:
    """A command that holds so much memory for so long."""
    return " ".join([TASK, "--memory", memory, "--seconds", str(seconds), *more])


def test_unlike_tasks_share_the_gpus_by_their_size_and_the_journal_replays(machine: Machine) -> None:
    sizes = [3, 20, 9, 14, 2, 30, 1, 5]
    specs = [TaskSpec(gpu_mem_mib=size * 1024 + 512) for size in sizes]
    run = machine.run([task(f"{size}G") for size in sizes], specs=specs)
    said = run.go_well()
    assert run.outcomes() == {number: ["done"] for number in range(8)}
    assert {one.gpu for one in run.ended()} == {0, 1}
    for one in run.ended():
        assert one.gpu_cap_mib == one.gpu_booked_mib == sizes[one.task] * 1024 + 512
        assert one.gpu_uuid is not None
        assert f"gpu {one.gpu_uuid}" in run.log(one.task)
        assert "mps server" in run.log(one.task)
    assert is_replayable(run.decisions())
    for entry in run.decisions():
        for gpu in entry.view.gpus:
            there = [one for one in entry.view.running if gpu.facts.uuid in one.gpus]
            assert sum(one.reserved_mib for one in there) <= 40960 - gpu.facts.reserve_mib
    assert machine.bookings() == []
    assert "memory booked" in said
    assert "slurm-share pack explain LLSUB.1 TASK" in said


def test_estimate_far_too_small_kills_that_task_alone_and_it_runs_again_with_more(machine: Machine) -> None:
    lines = [task("9G", 1), *(task("5G", 2.5) for _ in range(6))]
    specs = [TaskSpec(gpu_mem_mib=4096), *(TaskSpec(gpu_mem_mib=5632) for _ in range(6))]
    run = machine.run(lines, specs=specs, settings=HARD)
    run.go_well()
    outcomes = run.outcomes()
    assert outcomes[0][0] == "gpu memory"
    assert outcomes[0][-1] == "done"
    assert all(outcomes[number] == ["done"] for number in range(1, 7))
    first, *again = run.attempts()[0]
    assert first.gpu_cap_mib == 4096
    assert "--gpu-mem=4096M is too small" in first.why
    needs = [one.gpu_needs_mib for one in run.attempts()[0][:-1]]
    assert needs == sorted(set(needs))
    assert all(later.gpu_booked_mib > 4096 and "--gpu-mem" not in later.why for later in again)


def test_estimate_far_too_large_shrinks_when_its_memory_is_flat(machine: Machine) -> None:
    """The large task has room only then. The others run until it has started."""
    go = machine.home / "go"
    small = f"{task('2G', 3600)} & while ! test -e {go}; do sleep 0.1; done; kill $!"
    lines = [small, small, small, task("30G", 1)]
    run = machine.run(lines, specs=[TaskSpec(), TaskSpec(), TaskSpec(), TaskSpec(gpu_mem_mib=31 * 1024)])
    process = run.start()
    wait_for(lambda: run.outcomes().get(3) == ["done"])
    go.touch()
    code, said = run.end(process)
    assert code == 0, said
    running = [one for entry in run.decisions() for one in entry.view.running]
    assert min(one.reserved_mib for one in running if one.ask.task < 3) < 6000


def test_out_of_memory_for_ever_ends_after_a_few_attempts_with_a_sentence(machine: Machine) -> None:
    run = machine.run([task("60G", 1), task("2G", 1)])
    code, said = run.go()
    assert code == 1
    outcomes = run.outcomes()
    assert outcomes[1] == ["done"]
    assert set(outcomes[0]) == {"gpu memory"}
    assert len(outcomes[0]) <= 4
    assert "the largest GPU of this node gives" in run.attempts()[0][-1].why
    assert "--resume" in said
    text = "\n".join(explain_task(run.folder, 0))
    assert "starts on GPU" in text
    assert "to itself" in text
    assert text.count("out of GPU memory") == len(outcomes[0])


def test_tasks_like_three_that_fit_on_no_gpu_are_given_up_and_smaller_ones_are_done(machine: Machine) -> None:
    run = machine.run([task(size, 0.1) for size in ("60G", "61G", "62G", "2G", "60G")], at_once=1)
    code, said = run.go()
    assert code == 1
    outcomes = run.outcomes()
    assert {task: tried[-1] for task, tried in outcomes.items()} == {
        0: "gpu memory", 1: "gpu memory", 2: "gpu memory", 3: "done", 4: "given up"
    }  # fmt: skip
    assert len(outcomes[4]) == 1
    assert "given up: 4" in said
    assert "out of GPU memory: 0-2" in said
    (given_up,) = run.attempts()[4]
    assert given_up.why.startswith("task 0, the same command, ran out of GPU memory with a GPU to itself")
    progress = ProgressReader(run.folder / run.run.log_folder).read()
    assert [(one.failed, one.given_up) for one in progress] == [(3, 1)]


def test_host_memory_words_are_an_ordinary_failure(machine: Machine) -> None:
    lines = [
        "echo 'MemoryError: Unable to allocate 12.0 GiB for an array'; exit 1",
        "echo 'RuntimeError: MPS backend out of memory (MPS allocated: 5.43 GB)'; exit 1",
        "echo 'RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB'; exit 0",
        "echo 'RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB'; exit 1",
    ]
    run = machine.run(lines)
    code, _ = run.go()
    assert code == 1
    outcomes = run.outcomes()
    assert outcomes[0] == ["failed"]
    assert outcomes[1] == ["failed"]
    assert outcomes[2] == ["done"]
    assert set(outcomes[3]) == {"gpu memory"}


def test_several_processes_of_a_task_and_one_that_leaves_its_group_count_together(machine: Machine) -> None:
    line = f"{task('2G', 4)} & {task('3G', 4)} & {task('1G', 4)}; wait"
    run = machine.run([line], specs=[TaskSpec(gpu_mem_mib=8192)])
    run.go_well()
    assert run.ended()[0].peak_gpu_mib == 6 * 1024
    seen = [one for entry in run.decisions() for one in entry.view.running]
    assert not seen or max(one.clients for one in seen) <= 3


def test_memory_of_a_process_that_left_its_session_is_not_booked_again(machine: Machine) -> None:
    lines = [f"setsid {task('30G', 6)} </dev/null >/dev/null 2>&1 & sleep 3", task("25G", 1), task("25G", 1.1)]
    specs = [TaskSpec(gpu_mem_mib=31 * 1024), TaskSpec(gpu_mem_mib=26 * 1024), TaskSpec(gpu_mem_mib=26 * 1024)]
    run = machine.run(lines, specs=specs)
    run.go_well()
    assert run.outcomes() == {0: ["done"], 1: ["done"], 2: ["done"]}


def test_the_mps_daemon_dies_and_the_tasks_go_on_elsewhere_free_of_charge(machine: Machine) -> None:
    lines = [task("10G", 4) for _ in range(4)]
    run = machine.run(lines, specs=[TaskSpec(gpu_mem_mib=11 * 1024)] * 4)
    process = run.start()
    wait_for(lambda: sum("mps server" in log for log in run.logs()) == 4)
    pipe = run.log(0)
    uuid = pipe.partition("gpu ")[2].partition(",")[0]
    daemons = [
        pid
        for pid in alive(str(machine.tmp), "environ")
        if (b"mps-" in Path(f"/proc/{pid}/cmdline").read_bytes())
        and f"/{uuid[4:12]}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    ]
    assert daemons
    for pid in daemons:
        os.kill(pid, signal.SIGKILL)
    _, said = run.end(process)
    outcomes = run.outcomes()
    assert all(tried[-1] == "done" for tried in outcomes.values()), said
    gone = [one for one in run.ended() if one.outcome == "disturbed"]
    assert {one.gpu_uuid for one in gone} == {uuid}
    assert "no further task starts on GPU" in said


def test_memory_of_others_counts_from_the_first_start_on(machine: Machine) -> None:
    notebook = subprocess.Popen([*task("30G", 60).split(), "--device", "0"], env=machine.environ)
    try:
        wait_for(lambda: any((machine.state / "clients").iterdir()))
        time.sleep(0.3)
        run = machine.run([task("15G", 1) for _ in range(4)], specs=[TaskSpec(gpu_mem_mib=16000)] * 4)
        code, said = run.go()
    finally:
        notebook.kill()
        notebook.wait()
    assert code == 0, said
    assert run.outcomes() == {number: ["done"] for number in range(4)}
    assert {one.gpu for one in run.ended()} == {1}


def test_a_task_killed_by_hand_is_no_memory_failure(machine: Machine) -> None:
    run = machine.run([task("38G", 60), task("1G", 1)], specs=[TaskSpec(gpu_mem_mib=39000), TaskSpec(gpu_mem_mib=1500)])
    process = run.start()
    wait_for(lambda: "pid" in run.log(0))
    time.sleep(1.5)
    os.kill(int(run.log(0).partition("pid ")[2].partition(",")[0]), signal.SIGKILL)
    run.end(process)
    assert run.outcomes()[0] in (["signal"], ["failed"])
    assert run.outcomes()[1] == ["done"]


def test_cancelled_the_tasks_are_told_to_end_and_a_resume_runs_each_once(machine: Machine) -> None:
    run = machine.run([task("25G", 3), *(task("3G", 3) for _ in range(5))], at_once=3)
    process = run.start()
    wait_for(lambda: len(run.logs()) >= 2)
    wait_for(lambda: any(one.ask.task == 0 and one.peak_mib for entry in run.decisions() for one in entry.view.running))
    process.send_signal(signal.SIGTERM)
    _, said = run.end(process)
    assert process.returncode != 0
    assert "unfinished" in said
    assert machine.bookings() == []
    said = run.go_well()
    outcomes = run.outcomes()
    assert set(outcomes) == set(range(6))
    assert all(tried[-1] == "done" and tried.count("done") == 1 for tried in outcomes.values())
    # Nothing else is known of the size of task 0 than what it had: half of a GPU would be less.
    starts = [one for entry in run.decisions() for one in entry.actions if isinstance(one, Start) and one.task == 0]
    assert [start.reserve_mib > 25 * 1024 for start in starts] == [False, True]


@pytest.mark.parametrize("victim", [pytest.param("loop", marks=pytest.mark.weekly), "guard"])
def test_a_killed_launcher_leaves_no_booking_and_a_resume_runs_each_task_once(machine: Machine, victim: str) -> None:
    run = machine.run([f"echo x >>{machine.home}/ran.{n}; {task('3G', 2)}" for n in range(6)], at_once=3)
    process = run.start()
    wait_for(lambda: sum("gpu" in log for log in run.logs()) >= 2)
    loop = wait_for(lambda: children(process.pid))[0]
    os.kill(loop if victim == "loop" else process.pid, signal.SIGKILL)
    run.end(process)
    wait_for(lambda: not machine.bookings())
    wait_for(lambda: not alive(f"LLSUB_DIR={run.folder}", "environ"))
    for one in run.ended():
        log = run.log(one.task)  # empty: it ended before its first word
        assert one.gpu_uuid is None or not log or f"gpu {one.gpu_uuid}" in log
    run.go_well()
    outcomes = run.outcomes()
    assert set(outcomes) == set(range(6))
    assert all(tried[-1] == "done" and tried.count("done") == 1 for tried in outcomes.values())


@pytest.mark.parametrize("machine", [(2, 40960, False)], indirect=True)
def test_memory_that_a_killed_attempt_had_counts_at_resume(machine: Machine) -> None:
    """Nothing else is known of their sizes. Without it each would begin with half of a GPU."""
    lines = [task("3G", 3600), task("4G", 300, "--peak", "30G", "--peak-at", "1")]
    run = machine.run(lines, specs=[TaskSpec(), TaskSpec(name="other")])
    process = run.start()
    events = wait_for(lambda: next(run.folder.glob(f"p*_*/{EVENTS}"), None))
    for peak in (r"3\d{3},", r"3\d{4},"):
        wait_for(lambda peak=peak: re.search(f'"event":"size".*"peak_mib":{peak}', events.read_text()))
    for pid in (process.pid, *children(process.pid)):
        os.kill(pid, signal.SIGKILL)
    run.end(process)
    assert run.outcomes() == {}
    process, before = run.start(), len(run.decisions())
    starts: dict[int, Start] = {}
    wait_for(
        lambda: (
            len(starts) == 2
            or starts.update(
                (one.task, one) for entry in run.decisions()[before:] for one in entry.actions if isinstance(one, Start)
            )
        )
    )
    run.stop(process)
    assert starts[0].reserve_mib < 10 * 1024
    assert starts[1].reserve_mib >= 30 * 1024


@pytest.mark.weekly
def test_sizes_that_could_not_be_kept_are_not_called_learned(machine: Machine) -> None:
    kept = machine.home / ".local/state/slurm-share"
    for is_kept in (True, False):
        if not is_kept:
            shutil.rmtree(kept)
            kept.symlink_to("/dev/full")
        said = machine.run([task("3G", 3)]).go_well()
        assert ("learned the size of 1 command; next time" in said) == is_kept, said
        assert ("are not kept for the next run" in said) != is_kept, said


@pytest.mark.parametrize("pack", ["quick", None])
def test_a_group_can_write_the_files_of_a_run_where_its_umask_says_so(machine: Machine, pack) -> None:
    before = os.umask(0o002)
    try:
        run = machine.run([task("3G", 0.1)] * 2, pack=pack)
        run.go_well()
    finally:
        os.umask(before)
    modes = {file.name: oct(file.stat().st_mode & 0o777) for file in run.node.iterdir() if file.is_file()}
    assert len(modes) > 2
    assert set(modes.values()) == {"0o664"}, modes


def test_what_an_earlier_job_has_shown_is_taken_over(machine: Machine) -> None:
    settings = replace(HARD, oom_retries=0)
    run = machine.run([task("9G", 1)], specs=[TaskSpec(gpu_mem_mib=4096)], settings=settings)
    assert run.go()[0] == 1
    assert run.outcomes() == {0: ["gpu memory"]}
    run.go()
    first, second = run.attempts()[0]
    assert second.gpu_booked_mib >= first.gpu_needs_mib > 4096


@pytest.mark.parametrize("machine", [(2, 40960, False)], indirect=True)
def test_without_mps_booking_alone_places_tasks_and_that_is_said_once(machine: Machine) -> None:
    sizes = [12, 25, 14, 20, 3]
    run = machine.run(
        [task(f"{size}G", 1.5) for size in sizes], specs=[TaskSpec(gpu_mem_mib=size * 1024 + 400) for size in sizes]
    )
    said = run.go_well()
    assert run.outcomes() == {number: ["done"] for number in range(5)}
    assert said.count("no memory cap is enforced on GPU 0-1") == 1
    assert {one.gpu_cap_mib for one in run.ended()} == {None}


@pytest.mark.parametrize("machine", [(1, 40960, False)], indirect=True)
def test_neighbours_of_a_task_that_outgrows_its_booking_run_again_free_of_charge(machine: Machine) -> None:
    lines = [task("4G", 8, "--peak", "30G"), task("6G", 13, "--peak", "14G")]
    specs = [TaskSpec(gpu_mem_mib=5000), TaskSpec(gpu_mem_mib=15000)]
    run = machine.run(lines, specs=specs, settings=replace(QUICK, oom_retries=0), at_once=2)
    said = run.go_well()
    assert run.outcomes() == {0: ["done"], 1: ["disturbed", "done"]}
    assert "task 0 outgrew its 4.9 GiB (30.0)" in run.attempts()[1][0].why
    assert "0 own, 1 by a neighbour" in said


def test_a_task_of_two_gpus_has_both_to_itself_and_no_mps(machine: Machine) -> None:
    both = f"{task('30G', 2)} & {task('30G', 2, '--device', '1')}; wait"
    line = f"echo $CUDA_VISIBLE_DEVICES $LLSUB_NEIGHBOURS; {both}"
    run = machine.run([task("5G", 1.5), line, task("5G", 1)], specs=[TaskSpec(), TaskSpec(gpus=2), TaskSpec()])
    run.go_well()
    words = run.log(1)
    assert words.splitlines()[0].count("GPU-") == 2
    assert "mps off" in words
    two = run.attempts()[1][0]
    for number in (0, 2):
        one = run.attempts()[number][0]
        assert one.started + one.seconds <= two.started + 0.2 or one.started >= two.started + two.seconds - 0.2


def test_a_task_of_two_gpus_that_take_mps_clients_only_is_not_started(machine: Machine) -> None:
    for index in (0, 1):
        with (machine.state / f"gpu{index}").open("a") as file:
            file.write("compute_mode=3\n")
    run = machine.run([task("5G", 1), task("5G", 1)], specs=[TaskSpec(gpus=2), TaskSpec()])
    code, said = run.go()
    assert code == 1
    assert run.outcomes() == {0: ["not started"], 1: ["done"]}
    assert "GPU 0-1 of" in run.attempts()[0][0].why
    assert "compute_mode = default" in said


def test_a_task_that_may_hang_is_named_and_goes_on(machine: Machine) -> None:
    line = "kill -STOP $$; sleep 3"
    run = machine.run([line], pack=PackRequest(settings=QUICK, hang_s=2.0))
    run.start()
    process = machine.started[-1]
    assert process.stdout is not None
    before = ""
    while "may hang" not in before:
        before += process.stdout.readline()
    for pid in wait_for(lambda: alive(f"LLSUB_DIR={run.folder}", "environ")):
        os.kill(pid, signal.SIGCONT)
    said = before + run.end(process)[1]
    assert process.returncode == 0, said
    assert said.count("task 0 may hang") == 1


def test_a_task_finds_what_is_booked_for_it_and_frameworks_follow(machine: Machine) -> None:
    line = "echo $LLSUB_GPU_MEM_MIB $LLSUB_NEIGHBOURS $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT $XLA_PYTHON_CLIENT_MEM_FRACTION"
    run = machine.run([line], specs=[TaskSpec(gpu_mem_mib=4096)])
    assert run.go()[0] == 0
    assert run.log(0).split() == ["4096", "0", "0=4096M", "0.100"]


def test_two_launchers_at_once_never_book_more_than_a_gpu_has(machine: Machine) -> None:
    runs = [
        machine.run([task("15G", 1.5) for _ in range(4)], specs=[TaskSpec(gpu_mem_mib=16000)] * 4) for _ in range(2)
    ]
    processes = [run.start() for run in runs]
    for run, process in zip(runs, processes, strict=True):
        code, said = run.end(process)
        assert code == 0, said
    at: list[tuple[float, int, int | None]] = []
    for run in runs:
        assert all(tried == ["done"] for tried in run.outcomes().values())
        for one in run.ended():
            at += [(one.started, 1, one.gpu), (one.started + one.seconds - 0.05, -1, one.gpu)]
    for gpu in (0, 1):
        count = 0
        for _, change, where in sorted(at):
            count += change if where == gpu else 0
            assert count <= 2


def test_a_hung_task_is_ended_where_that_was_asked(machine: Machine) -> None:
    pack = PackRequest(settings=QUICK, hang="kill", hang_s=2.0)
    run = machine.run(["kill -STOP $$", task("1G", 1)], pack=pack)
    assert run.go()[0] == 1
    assert run.outcomes() == {0: ["failed"], 1: ["done"]}
    assert "ended by --hang=kill" in run.attempts()[0][0].why


def test_the_history_knows_the_size_for_the_next_run(machine: Machine) -> None:
    lines = [task("7G", 3)]
    first = machine.run(lines)
    assert first.go()[0] == 0
    second = machine.run(lines)
    assert second.go()[0] == 0
    assert first.ended()[0].gpu_booked_mib > 18000
    assert 7 * 1024 <= second.ended()[0].gpu_booked_mib < 12000
    runs = machine.history("task")
    assert "simgpu-task" not in str(runs)
    assert runs[0]["peak_mib"] == 7 * 1024


def test_a_clock_that_is_set_back_changes_no_decision(machine: Machine) -> None:
    run = machine.run([task("5G", 2) for _ in range(5)], specs=[TaskSpec(gpu_mem_mib=15000)] * 5)
    run.go_well("clock")
    assert all(tried == ["done"] for tried in run.outcomes().values())
    entries = run.decisions()
    times = [entry.view.now_s for entry in entries]
    assert times == sorted(times)
    assert times[-1] < 60
    assert is_replayable(entries)


def test_a_full_disk_for_journal_and_history_is_no_failure_of_the_run(machine: Machine) -> None:
    (machine.home / ".local").write_text("no folder")
    run = machine.run([task("5G", 3) for _ in range(3)])
    said = run.go_well()
    assert said.count("are not kept for the next run") == 1


def test_a_program_that_cannot_be_executed_is_tried_again_as_often_as_retries_say(machine: Machine) -> None:
    run = machine.run(["a", "b"], settings=replace(QUICK, retries=1))
    broken = json.loads(run_folder.render_run(run.run))
    broken |= {"task_kind": "input", "command": ["/nonexistent/program"]}
    (run.folder / run_folder.RUN).write_text(json.dumps(broken))
    assert run.go()[0] == 1
    assert run.outcomes() == {0: ["not started"] * 2, 1: ["not started"] * 2}


def test_speeds_are_measured_learned_and_explained(machine: Machine) -> None:
    kinds = [f"{TASK} --memory 3G --load {load} --work 8 --progress 0.2" for load in (70, 60)]
    sized = [TaskSpec(gpu_mem_mib=4096)]
    pack = PackRequest(settings=replace(QUICK, policy="gain"))
    said = machine.run(kinds, specs=sized * 2, pack=pack, rate_window_s=1.0).go_well()
    assert "STP" not in said
    alone = machine.history("task")
    assert all(one["rate_source"] == "progress" and one["rate_alone"] > 0 for one in alone)
    run = machine.run(kinds * 2, specs=sized * 4, pack=pack, rate_window_s=1.0)
    said = run.go_well()
    whys = [one.why for entry in run.decisions() for one in entry.actions if isinstance(one, Start)]
    assert sum("both keep ~" in why for why in whys) == 2
    assert "x its time alone (ANTT), GPUs did" in said
    assert f"slurm-share pack explain {run.folder.name} lists every group" in said
    groups = list(explain_groups(run.folder))
    assert groups
    assert all("of one at a time" in line for line in groups)
    pairs = machine.history("pair")
    assert {one["a"] for one in pairs} | {one["b"] for one in pairs} <= {one["exact"] for one in alone}
    for pair in pairs:
        assert 1.0 < pair["stp"] < 2.1
    assert is_replayable(run.decisions())


def test_a_range_without_limits_of_the_driver_books_its_first_number_and_caps_at_its_second(machine: Machine) -> None:
    spec = TaskSpec(gpu_mem_mib=20 * 1024, gpu_mem_least_mib=4096)
    run = machine.run(
        [task("3G"), task("3G"), task("12G"), task("21G", 0.1)],
        specs=[spec] * 4,
        settings=replace(QUICK, oom_retries=0),
    )
    said = run.go()[1]
    outcomes = run.outcomes()
    assert [outcomes[number] for number in range(4)] == [["done"]] * 3 + [["gpu memory"]]
    assert {(one.gpu_booked_mib, one.gpu_cap_mib) for one in run.ended()} == {(4096, 20 * 1024)}
    assert said.count("the driver guarantees tasks no memory on GPU") == 1
    assert is_replayable(run.decisions())
