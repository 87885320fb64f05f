"""Features of the simulated protocol 3 beyond the contract: caps, routes by cgroup, several front ends, choices."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from simulated_host import without_driver
from test_mps_contract import HOME, Mps, Program, root_only, stand_in
from test_mps_contract_v3 import CONFIG, CSV, in_space, mps, rows, start, v3  # noqa: F401  (fixtures)

pytestmark = without_driver


@pytest.fixture(params=["615"])
def program(request: pytest.FixtureRequest) -> Iterator[Program]:
    yield from stand_in(request.param)


def state_of(mps: Mps) -> Path:  # noqa: F811
    return Path(mps.program.environ["SIMGPU_STATE"])


def choose(mps: Mps, *lines: str) -> None:  # noqa: F811
    (state_of(mps) / "mps_choices").write_text("".join(f"{line}\n" for line in lines))


def line_of_task(mps: Mps, *arguments: str, **environ: str) -> str:  # noqa: F811
    """Return what a short task prints, or its error."""
    argv = [HOME / "simgpu-task", "--seconds", "0.05", *arguments]
    done = subprocess.run(argv, env=mps.environ(environ), capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("own", "percent", "sms"), [("", 25, 32), ("50", 25, 32), ("100", 25, 32), ("10", 10, 12), ("nonsense", 25, 32)]
)
def test_the_smaller_percentage_holds_in_whole_pairs_of_sms(v3: Mps, own: str, percent: int, sms: int) -> None:  # noqa: F811
    environ = in_space(v3, "slot_0", **({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": own} if own else {}))
    said = line_of_task(v3, **environ)
    assert f"load {percent}%" in said
    assert f"{percent}% of the SMs ({sms})" in said


def test_a_percentage_of_0_is_no_cap_and_a_servers_cap_holds_in_default_only(v3: Mps) -> None:  # noqa: F811
    assert "10% of the SMs" in line_of_task(v3, **in_space(v3, "default"))
    assert "10% of the SMs" in line_of_task(v3, CUDA_MPS_PIPE_DIRECTORY=f"{v3.pipe}/s")
    assert "100% of the SMs" in line_of_task(v3, **in_space(v3, "slot_1"))
    assert v3.run("namespace", "set", "slot_0", "--server=s", "--active-thread-percentage=0")[0] == 0
    assert "100% of the SMs" in line_of_task(v3, **in_space(v3, "slot_0"))


def test_a_client_of_a_vanished_server_runs_without_mps_and_without_a_word(v3: Mps) -> None:  # noqa: F811
    v3.run("server", "create", "broken", "--allowed-devices=GPU-000")
    said = line_of_task(v3, CUDA_MPS_PIPE_DIRECTORY=f"{v3.pipe}/broken/default")
    assert "mps off" in said


def test_a_client_that_waits_for_a_server_without_a_gpu_runs_without_mps(mps: Mps) -> None:  # noqa: F811
    (state_of(mps) / "mps_slow").write_text("1")
    assert mps.run("-p", "3", "-d")[0] == 0
    assert mps.run("server", "create", "broken", "--allowed-devices=GPU-000")[0] == 0
    assert "mps off" in line_of_task(mps, CUDA_MPS_PIPE_DIRECTORY=f"{mps.pipe}/broken/default")


def test_a_client_whose_server_vanishes_between_its_connection_and_its_message_runs_without_mps(mps: Mps) -> None:  # noqa: F811
    """On a busy machine the server can end in between. The client is told at once and does not wait for an answer."""
    (state_of(mps) / "mps_slow").write_text("1")
    assert mps.run("-p", "3", "-d")[0] == 0
    assert mps.run("server", "create", "broken", "--allowed-devices=GPU-000")[0] == 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.settimeout(100)
        line.connect(f"{mps.pipe}/broken/default/control")
        mps.wait(lambda: not Path(mps.pipe, "broken").exists())
        line.send(b"SIMGPU_CLIENT 1\n")
        assert line.recv(100) == b"SIMGPU_NONE\n"


def test_a_killed_server_is_started_again_for_its_next_client(v3: Mps) -> None:  # noqa: F811
    server = int(rows(v3, "server", "list")[0][2])
    client = v3.start_client(**in_space(v3, "slot_1"))
    os.kill(server, signal.SIGKILL)
    assert "CUDA_ERROR_MPS_RPC_FAILURE" in client.communicate(timeout=120)[1]
    v3.wait(lambda: rows(v3, "server", "list")[0][2:4] == ["-", "Stopped"])
    assert "25% of the SMs" in line_of_task(v3, **in_space(v3, "slot_0"))
    assert int(rows(v3, "server", "list")[0][2]) != server


def test_front_ends_are_served_in_parallel_or_one_at_a_time(v3: Mps) -> None:  # noqa: F811
    (state_of(v3) / "mps_hang").write_text("feature")
    hanging = subprocess.Popen([v3.program.path, "feature", "describe"], env=v3.environ(), stdout=subprocess.DEVNULL)
    try:
        v3.wait(lambda: "Cmd:feature" in Path(v3.home, "logs", "control.log").read_text())
        assert v3.run("server", "list")[0] == 0
        choose(v3, "SIMMPS_V3_SERIAL=1")
        assert v3.run("server", "list")[0] == 1
    finally:
        hanging.kill()
        hanging.wait()
    v3.wait(lambda: v3.run("server", "list")[0] == 0)


def test_a_lost_answer_is_a_failure(v3: Mps) -> None:  # noqa: F811
    (state_of(v3) / "mps_lose").write_text("2")
    codes = [v3.run("server", "list")[0] for _ in range(4)]
    assert sorted(codes) == [0, 0, 1, 1]


def test_choices_change_what_is_not_known(v3: Mps) -> None:  # noqa: F811
    assert v3.run("server", "get", "s", "pipe_directory")[0] == 1
    choose(v3, "SIMMPS_FIELD=_", "SIMMPS_V3_FAILURE=3", "SIMMPS_CLIENTS=manual")
    assert v3.run("server", "get", "s", "pipe_directory") == (0, f"{v3.pipe}/s\n", "")
    assert v3.run("server", "get", "s", "pipe-directory")[0] == 3
    client = v3.start_client(**in_space(v3, "slot_1"))
    assert rows(v3, "client", "list", "--all")[0][:4] == [str(client.pid), "s", "0", "slot_1"]


def test_a_clients_command_is_the_last_field_and_may_hold_commas(v3: Mps) -> None:  # noqa: F811
    argv = ["bash", "-c", 'exec -a "a,b" python3 "$@"', "x", HOME / "simgpu-task", "--seconds", "60"]
    child = subprocess.Popen(argv, env=v3.environ(in_space(v3, "slot_1")), stdout=subprocess.PIPE, text=True)
    v3.children.append(child)
    assert child.stdout is not None
    assert child.stdout.readline()
    row = rows(v3, "client", "list", "--all")[0]
    assert row[3] == "s/slot_1 (2)"
    assert ",".join(row[4:]).startswith("a,b ")


@pytest.mark.parametrize("choice", ["strings", "any"])
def test_limits_in_the_file_may_have_to_be_strings(mps: Mps, choice: str) -> None:  # noqa: F811
    choose(mps, f"SIMMPS_TOML_LIMITS={choice}")
    code = start(mps, "[servers.s]\nactive_thread_percentage = 10\n")[0]
    assert code == (1 if choice == "strings" else 0)


@pytest.mark.parametrize(("program", "code"), [("615", 1), ("620", 0)], indirect=["program"])
def test_newer_keys_are_unknown_to_an_older_release(mps: Mps, code: int) -> None:  # noqa: F811
    text = f"""
[compute_policy]
timeslice = "long"
[servers.s]
timeslice_pct = "50"
[servers.s.namespaces.slot_0]
cgroup = "/sys/fs/cgroup/nowhere"
cgroup_depth = 1
[[servers.s.namespaces.slot_0.devices]]
uuid = "{mps.gpu()}"
sm_partition = "large"
[[servers.s.devices]]
uuid = "{mps.gpu()}"
[[servers.s.devices.sm_partitions]]
name = "large"
chunks = 3
shareable = true
max_chunks = 6
[features.memacct]
force_polling = false
"""
    done = start(mps, text)
    assert done[0] == code, done
    if code == 0:
        assert "static partition of 24 SMs" in line_of_task(mps, **in_space(mps, "slot_0"))
        assert "915" in line_of_task(mps, **in_space(mps, "default"))
        choose(mps, "SIMMPS_V3_PARTITIONS=optional")
        assert "100% of the SMs" in line_of_task(mps, **in_space(mps, "default"))


def test_partitions_of_the_file_are_made_when_the_server_is_ready(mps: Mps) -> None:  # noqa: F811
    (state_of(mps) / "mps_slow").write_text("0.5")
    text = f"[servers.s]\n[[servers.s.devices]]\nuuid = '{mps.gpu()}'\n[[servers.s.devices.sm_partitions]]\n"
    file = Path(mps.home, "config.toml")
    file.write_text(f"{text}name = 'half'\nchunks = 7\ninclude_remainder = true\n")
    assert mps.run("-p", "3", "-d", "-a", str(file))[0] == 0
    assert [row[6] for row in rows(mps, "sm-partition", "list")][:1] == ["configured"]
    mps.wait(lambda: [row[6] for row in rows(mps, "sm-partition", "list")] == ["created", "unallocated"])
    made, free = rows(mps, "sm-partition", "list")
    assert (made[3:6], free[3:5]) == (["7", "68", "true"], ["8", "64"])
    assert mps.run("sm-partition", "delete", "half", "--server=s", f"--device={mps.gpu()}")[0] == 0
    assert rows(mps, "sm-partition", "list") == []


def test_partitions_are_refused_where_clients_are_and_in_use_they_stay(v3: Mps) -> None:  # noqa: F811
    words = ("sm-partition", "create", "--server=s", "--device=0", "--chunks=2")
    made = v3.run(*words, "half")
    name = re.search(r"CUDA_MPS_SM_PARTITION=(\S+)", made[1])
    assert name is not None
    v3.start_client(**in_space(v3, "slot_1", CUDA_MPS_SM_PARTITION=name[1]))
    assert v3.run(*words, "other")[0] == 1
    assert v3.run("sm-partition", "delete", "half", "--server=s", "--device=0")[0] == 1


def test_a_name_that_makes_a_path_too_long_is_refused(v3: Mps) -> None:  # noqa: F811
    assert v3.run("namespace", "create", "a" * 64, "--server=s")[0] == (len(v3.pipe) + 87 > 107)
    assert v3.run("server", "create", "a" * 64)[0] == 1
    assert [row[0] for row in rows(v3, "server", "list")] == ["s"]


def test_a_file_whose_paths_are_too_long_starts_nothing(mps: Mps) -> None:  # noqa: F811
    code, said, _ = start(mps, f"[servers.{'a' * 64}.namespaces.{'b' * 10}]\n")
    assert (code, said) == (1, "Failed to initialize MPS control daemon\n")
    assert not Path(mps.home, "logs").exists()


@root_only
def test_a_daemon_for_all_users_serves_all_as_root_and_only_root_changes_it(mps: Mps) -> None:  # noqa: F811
    nobody = {"user": 65534, "group": 65534, "extra_groups": []}
    assert mps.run("-p", "3", "-d", "-m")[0] == 0
    assert mps.run("server", "create", "shared")[0] == 0
    assert mps.run("server", "create", "other", "--uid=65534")[0] == 1
    environ = mps.environ({"CUDA_MPS_PIPE_DIRECTORY": f"{mps.pipe}/shared"})
    done = subprocess.run(
        [HOME / "simgpu-task", "--seconds", "0.05"], env=environ, capture_output=True, text=True, check=False,
        **nobody,  # type: ignore[call-overload]
    )  # fmt: skip
    assert "mps server" in done.stdout, done.stderr
    assert rows(mps, "server", "list")[0][1] == "0"
    assert mps.run("namespace", "create", "mine", "--server=shared", uid=65534)[0] == 1
    assert mps.run("client", "list", "--all", uid=65534)[0] == 0


# ---- Routing by cgroup ----

TREE = Path("/sys/fs/cgroup/pids")


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """Return a cgroup with one below it. The stand-in looks at v1, too, so that this runs on any machine."""
    folder = TREE / f"simmps-{os.getpid()}"
    try:
        (folder / "below").mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"NOT TESTED: no cgroup can be made in {TREE} ({error})")
    yield folder
    for one in (folder / "below", folder):
        one.rmdir()


def task_in(cgroup: Path, mps: Mps, **environ: str) -> str:  # noqa: F811
    """Return what a task in a cgroup prints; an empty value leaves a variable out."""
    given = {name: value for name, value in mps.environ(environ).items() if value}
    script = f'echo $$ >{cgroup}/cgroup.procs && exec "$0" --seconds 0.05'
    done = subprocess.run(
        ["sh", "-c", script, HOME / "simgpu-task"], env=given, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def routed(mps: Mps, cgroup: Path, depth: int = 0) -> None:  # noqa: F811
    more = f"cgroup = '{cgroup}'\ncgroup_depth = {depth}\nactive_thread_percentage = '40'\n"
    assert start(mps, f"{CONFIG}{more}")[0] == 0


@root_only
@pytest.mark.parametrize("program", ["620"], indirect=True)
def test_the_main_socket_leads_to_the_namespace_of_the_cgroup(mps: Mps, cgroup: Path) -> None:  # noqa: F811
    routed(mps, cgroup)
    assert "40% of the SMs" in task_in(cgroup, mps)
    assert "100% of the SMs" in task_in(cgroup / "below", mps), "deeper than cgroup_depth"
    assert "100% of the SMs" in line_of_task(mps)
    assert "25% of the SMs" in task_in(cgroup, mps, **in_space(mps, "slot_0")), "a namespace's socket wins"
    assert "mps off" in task_in(cgroup, mps, CUDA_MPS_PIPE_DIRECTORY=f"{mps.home}/nowhere")


@root_only
@pytest.mark.parametrize("program", ["620"], indirect=True)
def test_cgroups_below_belong_to_the_namespace_down_to_its_depth(mps: Mps, cgroup: Path) -> None:  # noqa: F811
    routed(mps, cgroup, 1)
    assert "40% of the SMs" in task_in(cgroup / "below", mps)


@root_only
@pytest.mark.parametrize("program", ["620"], indirect=True)
def test_a_driver_that_knows_the_routes_leads_every_client_of_the_cgroup(mps: Mps, cgroup: Path) -> None:  # noqa: F811
    choose(mps, "SIMMPS_ROUTING=everywhere")
    routed(mps, cgroup)
    for pipe in ("", f"{mps.home}/nowhere", f"{mps.pipe}/s/slot_0", mps.pipe):
        assert "40% of the SMs" in task_in(cgroup, mps, CUDA_MPS_PIPE_DIRECTORY=pipe), pipe
    assert "mps off" in line_of_task(mps, CUDA_MPS_PIPE_DIRECTORY=f"{mps.home}/nowhere"), "not in the cgroup"
    assert mps.run("-q")[0] == 0
    assert "mps off" in task_in(cgroup, mps, CUDA_MPS_PIPE_DIRECTORY=f"{mps.home}/nowhere"), "no daemon any more"
    assert list((state_of(mps) / "routes").iterdir()) == []


@pytest.mark.parametrize("program", ["615"], indirect=True)
def test_an_older_release_does_not_know_the_key(mps: Mps) -> None:  # noqa: F811
    assert start(mps, f"{CONFIG}cgroup = '/sys/fs/cgroup/x'\n")[0] == 1
    assert mps.run("server", "list", CSV)[0] == 1
