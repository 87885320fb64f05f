"""The contract of nvidia-cuda-mps-control with protocol 3, from its manual and what users of 615 recorded.

The same assertions hold the stand-in here, and NVIDIA's own program in tests/gpu/test_mps_contract_v3_real.py, where
there is a GPU with driver 615 or newer. Texts and codes that nobody recorded are not compared: a failure is any code
above 0.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from simulated_host import without_driver
from test_mps_contract import NO_DAEMON, NOBODY, Mps, Program, make_mps, root_only, stand_in

pytestmark = without_driver

CSV = "--format=csv,noheader"
CONFIG = """
schema_version = "1.0"
[servers.s]
active_thread_percentage = "10"
[servers.s.namespaces.slot_0]
pinned_memory_limit = "1G"
active_thread_percentage = "25"
[servers.s.namespaces.slot_1]
"""


@pytest.fixture(params=["615"])
def program(request: pytest.FixtureRequest) -> Iterator[Program]:
    yield from stand_in(request.param)


@pytest.fixture
def mps(program: Program) -> Iterator[Mps]:
    """Return folders as for protocol 2, and end a daemon of protocol 3 that is left in them."""
    for found in make_mps(program):
        yield found
        found.run("-q")


def start(mps: Mps, text: str = CONFIG) -> tuple[int, str, str]:
    """Start a daemon with this file; wait until its server is ready."""
    file = Path(mps.home, "config.toml")
    file.write_text(text)
    done = mps.run("-p", "3", "-d", "-a", str(file))
    if done[0] == 0:
        mps.wait(lambda: [row[3] for row in rows(mps, "server", "list")] == ["Ready"])
    return done


def rows(mps: Mps, *words: str) -> list[list[str]]:
    """Return the rows of a list, split from the left: the last field may hold commas."""
    code, said, errors = mps.run(*words, CSV)
    assert (code, errors) == (0, "")
    return [line.split(",") for line in said.splitlines()]


@pytest.fixture
def v3(mps: Mps) -> Mps:
    code, said, errors = start(mps)
    assert (code, errors) == (0, "")
    assert mps.pipe in said, "it says where clients connect"
    return mps


def in_space(mps: Mps, name: str, **environ: str) -> dict[str, str]:
    return {"CUDA_MPS_PIPE_DIRECTORY": f"{mps.pipe}/s/{name}", **environ}


def test_the_file_gives_servers_namespaces_and_their_caps(v3: Mps) -> None:
    found = {row[0]: row for row in rows(v3, "namespace", "list", "--server=s")}
    assert set(found) == {"default", "slot_0", "slot_1"}
    assert [row[1:3] for row in found.values()] == [["s", "Ready"]] * 3
    assert (found["slot_0"][3], float(found["slot_0"][4])) == ("1G", 25.0)
    assert found["slot_1"][3] == "unlimited"
    assert found["slot_0"][-1] == f"{v3.pipe}/s/slot_0"
    assert Path(v3.pipe, "s", "slot_0", "control").is_socket()
    assert rows(v3, "server", "list")[0][:2] == ["s", str(os.getuid())]


def test_get_prints_the_plain_value(v3: Mps) -> None:
    assert v3.run("namespace", "get", "slot_0", "s", "pinned-memory-limit") == (0, "1G\n", "")
    assert v3.run("server", "get", "s", "name") == (0, "s\n", "")
    paths = [v3.run("server", "get", "s", f"pipe{sign}directory") for sign in "-_"]
    assert (0, f"{v3.pipe}/s\n", "") in paths


@pytest.mark.parametrize(
    "words",
    [
        "bogus",
        "server bogus",
        "server list nobody",
        "server delete nobody",
        "server get s nonsense",
        "namespace create slot_0 --server=s",
        "namespace create slot_9 --server=nobody",
        "namespace create Slot-9 --server=s",
        "namespace delete nobody --server=s",
        "namespace set slot_0 --server=s",
        "namespace set slot_0 --server=s --nonsense=1",
        "namespace set slot_0 --server=s --active-thread-percentage=101",
        "namespace set slot_0 --server=s --pinned-memory-limit=much",
        "client terminate 1",
        "client get 1 cmd",
        "sm-partition create p --server=s --device=0 --chunks=999",
    ],
)
def test_a_failure_has_an_exit_code(v3: Mps, words: str) -> None:
    before = v3.run("namespace", "list", CSV)
    assert v3.run(*words.split())[0] != 0
    assert v3.run("namespace", "list", CSV) == before


def test_help_is_printed_at_every_level(v3: Mps) -> None:
    for words in ([], ["server"], ["server", "create"]):
        code, said, _ = v3.run(*words, "help")
        assert code == 0
        assert said != ""


def test_namespaces_come_and_go(v3: Mps) -> None:
    assert v3.run("namespace", "create", "slot_9", "--server=s")[0] == 0
    caps = ("--pinned-memory-limit=512M", "--active-thread-percentage=50", "--client-priority=1")
    assert v3.run("namespace", "set", "slot_9", "--server=s", *caps)[0] == 0
    row = next(row for row in rows(v3, "namespace", "list") if row[0] == "slot_9")
    assert (row[3], float(row[4]), row[5]) == ("512M", 50.0, "1")
    assert v3.run("namespace", "delete", "slot_9", "--server=s")[0] == 0
    assert "slot_9" not in [row[0] for row in rows(v3, "namespace", "list")]
    assert not Path(v3.pipe, "s", "slot_9").exists()


def test_servers_come_and_go(v3: Mps) -> None:
    assert v3.run("server", "create", "other")[0] == 0
    assert v3.run("server", "create", "other")[0] != 0
    v3.wait(lambda: [row[3] for row in rows(v3, "server", "list", "other")] == ["Ready"])
    assert v3.run("server", "delete", "other")[0] == 0
    assert [row[0] for row in rows(v3, "server", "list")] == ["s"]


def test_clients_are_listed_with_their_namespace_and_keep_its_caps(v3: Mps) -> None:
    client = v3.start_client(**in_space(v3, "slot_1"))
    row = rows(v3, "client", "list", "--server=s")[0]
    assert row[:2] == [str(client.pid), "s"]
    assert "slot_1" in row[3]
    assert v3.run("namespace", "set", "slot_1", "--server=s", "--active-thread-percentage=50")[0] != 0
    assert v3.run("namespace", "delete", "slot_1", "--server=s")[0] != 0
    assert v3.run("namespace", "set", "slot_0", "--server=s", "--active-thread-percentage=50")[0] == 0
    assert v3.run("client", "get", str(client.pid), "server") == (0, "s\n", "")
    assert v3.run("client", "terminate", str(client.pid))[0] == 0
    assert client.wait(timeout=120) != 0
    assert rows(v3, "client", "list", "--all") == []


def test_a_namespaces_memory_is_a_limit_that_a_client_cannot_raise(v3: Mps) -> None:
    for environ in ({}, {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4G"}):
        done = v3.run_client(**in_space(v3, "slot_0", **environ))
        assert done.returncode != 0
        assert "out of memory" in done.stderr.lower().replace("_", " ")
    lower = v3.run_client(**in_space(v3, "slot_1", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=1G"))
    assert lower.returncode != 0


def test_a_limit_for_a_gpu_that_is_not_seen_voids_all_limits(v3: Mps) -> None:
    v3.start_client(**in_space(v3, "slot_0", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=1G,7=1G"))


def test_the_main_socket_leads_to_a_server_of_the_user(v3: Mps) -> None:
    client = v3.start_client()
    row = rows(v3, "client", "list", "--all")[0]
    assert row[:2] == [str(client.pid), f"uid_{os.getuid()}"]


def test_a_table_cuts_pids_and_csv_does_not(v3: Mps) -> None:
    table, csv = v3.run("server", "list")[1], v3.run("server", "list", "--format=csv")[1]
    pid = csv.splitlines()[1].split(",")[2]
    assert table.split()[0] == "NAME"
    assert csv.splitlines()[0].startswith("name,uid,pid,status,pipe-directory,allowed-devices")
    assert f" {pid} " not in table
    assert f" {pid[:3]}... " in table


def test_a_server_on_an_absent_gpu_is_made_and_vanishes_and_its_clients_have_no_caps(v3: Mps) -> None:
    absent = "GPU-00000000-0000-0000-0000-000000000000"
    assert v3.run("server", "create", "broken", f"--allowed-devices={absent}")[0] == 0
    v3.wait(lambda: v3.run("server", "list", "broken")[0] != 0)
    v3.start_client(CUDA_MPS_PIPE_DIRECTORY=f"{v3.pipe}/broken/default", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=1G")


def test_partitions_of_a_server(v3: Mps) -> None:
    made = v3.run("sm-partition", "create", "half", "--server=s", f"--device={v3.gpu()}", "--chunks=2")
    found = re.search(
        r"SM partition 'half' created on device (\S+) \(sm-count=(\d+)\)\nCUDA_MPS_SM_PARTITION=(\S+)", made[1]
    )
    assert made[0] == 0
    assert found is not None
    assert found[3].startswith(f"{v3.gpu()}/")
    row = next(row for row in rows(v3, "sm-partition", "list", "--server=s") if row[2] == "half")
    assert (row[1], row[3:7]) == (v3.gpu(), ["2", found[2], "false", "created"])
    v3.start_client(**in_space(v3, "slot_1", CUDA_MPS_SM_PARTITION=found[3]))
    assert v3.run_client(**in_space(v3, "slot_1", CUDA_MPS_SM_PARTITION=f"{v3.gpu()}/Dx")).returncode != 0


def test_devices_and_features_are_listed(v3: Mps) -> None:
    row = rows(v3, "device", "list", "--server=s")[0]
    assert (row[1], row[3]) == ("s", v3.gpu())
    assert int(row[6]) > 0
    states = {row[0]: row[1] for row in rows(v3, "feature", "describe")}
    assert states["memacct"].startswith("enabled")
    assert v3.run("feature", "disable", "memacct")[0] == 0
    assert v3.run("feature", "describe", "memacct", CSV)[1].split(",")[1] == "disabled"
    assert v3.run("memacct", "set", "audit_log=true")[0] == 0


@root_only
def test_another_user_may_list_and_change_nothing(v3: Mps) -> None:
    code, said, _ = v3.run("namespace", "set", "slot_0", "--server=s", "--client-priority=1", uid=NOBODY)
    assert code != 0
    assert said.startswith(f"Insufficient privileges for UID {NOBODY}. 'NAMESPACE SET' requires server owner.")
    assert v3.run("server", "list", uid=NOBODY)[0] == 0
    assert v3.run("-q", uid=NOBODY)[0] != 0
    done = subprocess.run(
        v3.program.client, env=v3.environ(in_space(v3, "slot_1")), capture_output=True, text=True, check=False,
        user=NOBODY, group=NOBODY, extra_groups=[],
    )  # fmt: skip
    assert "NOT_PERMITTED" in done.stderr.upper().replace(" ", "_")


def test_the_option_q_ends_daemon_and_clients(v3: Mps) -> None:
    client = v3.start_client(**in_space(v3, "slot_1"))
    assert v3.run("-q")[0] == 0
    assert client.wait(timeout=120) != 0
    v3.wait(lambda: v3.holder() is None)
    assert v3.run("-q")[0] == 1
    assert v3.run("server", "list")[0] == 1


def test_a_running_daemon_decides_the_protocol(v3: Mps) -> None:
    for environ in ({}, {"CUDA_MPS_PROTOCOL_VERSION": "2"}):
        assert v3.run("server", "list", environ=environ)[0] == 0
        assert v3.say("get_server_list", environ=environ)[1] != f"{os.getpid()}\n"
    assert v3.run("-p", "2", "-d")[0] == 1, "only one daemon in a folder"


def test_the_environment_wins_over_the_option(mps: Mps) -> None:
    assert mps.run("-p", "3", "-d", environ={"CUDA_MPS_PROTOCOL_VERSION": "2"})[0] == 0
    assert mps.answer("get_default_active_thread_percentage") == "100.0\n"
    assert mps.run("server", "list")[1].startswith("Unknown command")


@pytest.mark.parametrize(
    "text",
    [
        CONFIG + "colour = 1\n",
        "[servers.s]\ncolour = 1\n",
        "[colour]\n",
        "[servers.s.namespaces.n]\nuid = 1\n",
        "[servers.s]\nuid = 'me'\n",
        "[servers.s\n",
    ],
)
def test_a_file_with_a_mistake_starts_nothing(mps: Mps, text: str) -> None:
    code, said, _ = start(mps, text)
    assert code == 1
    assert said != ""
    assert not Path(mps.pipe).exists() or mps.holder() is None


def test_a_file_that_is_not_there_starts_nothing(mps: Mps) -> None:
    assert mps.run("-p", "3", "-d", "-a", f"{mps.home}/none")[0] == 1


def test_a_pipe_directory_that_is_too_long(mps: Mps) -> None:
    long = f"{mps.home}/" + "p" * (117 - len(mps.home) - 1)
    code, said, _ = mps.run("-p", "3", "-d", environ={"CUDA_MPS_PIPE_DIRECTORY": long})
    assert (code, said) == (1, "Failed to initialize MPS control daemon\n")
    assert not Path(mps.home, "logs").exists()


def test_the_foreground_ends_with_its_input(mps: Mps) -> None:
    daemon = subprocess.Popen(
        [mps.program.path, "-p", "3", "-f"], env=mps.environ(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    mps.children.append(daemon)
    mps.wait(lambda: Path(mps.pipe, "control_lock").exists() and mps.holder() == daemon.pid)
    mps.wait(lambda: mps.run("server", "list")[0] == 0)
    assert daemon.stdin is not None
    daemon.stdin.close()
    daemon.stdin = None
    began = time.monotonic()
    assert daemon.wait(timeout=120) == 0
    assert time.monotonic() - began < 60
    assert mps.run("server", "list")[:1] == NO_DAEMON[:1]


@pytest.mark.parametrize("program", ["610"], indirect=True)
def test_older_releases_do_not_know_the_protocol(mps: Mps) -> None:
    assert mps.run("-p", "3", "-d")[0] == 1
    assert not Path(mps.pipe).exists() or mps.holder() is None
