"""The file, commands and answers of an MPS daemon with protocol 3."""

from __future__ import annotations

import tomllib

import pytest

from slurm_share.mps.records import MpsServer, Namespace
from slurm_share.mps.rules import namespaces as rules

GPU = "GPU-5131194a-aaaa-bbbb-cccc-0123459e2f6f"
TWO = (Namespace("slot_0", 8192, 25.0), Namespace("any"))


def test_the_file_has_a_server_with_a_namespace_for_each_task_and_strays_get_little() -> None:
    text = tomllib.loads(rules.render_file(2001, GPU, TWO))
    assert text == {
        "schema_version": "1.0",
        "servers": {
            "s": {
                "uid": 2001,
                "allowed_devices": GPU,
                "active_thread_percentage": "10",
                "namespaces": {
                    "slot_0": {"pinned_memory_limit": "8192M", "active_thread_percentage": "25"},
                    "any": {},
                },
            }
        },
    }


@pytest.mark.parametrize("gpu", ['GPU-1"\nx = 1', "", "0"])
def test_no_text_but_a_uuid_gets_into_the_file(gpu: str) -> None:
    with pytest.raises(ValueError, match="not the names"):
        rules.render_file(2001, gpu, TWO)
    with pytest.raises(ValueError, match="not the names"):
        rules.render_file(2001, GPU, (Namespace("slot]0"),))


def test_the_longest_socket_counts() -> None:
    pipe = "/run/slurm-share/user/mps/4294967295/5131194a-9e2f6f"
    found = rules.socket_size(pipe, (Namespace("any"), Namespace("slot_59")))
    assert found == len(f"{pipe}/s/slot_59/control_privileged") <= rules.SOCKET_MAX_BYTES


SERVERS = "name,uid,pid,status,pipe-directory,allowed-devices,context-ids"
CLIENTS = "pid,server,device,namespace path,command"
SPACES = "NAME,SERVER,SERVER STATUS,PINNED MEMORY LIMIT,ACTIVE THREAD PERCENTAGE,CLIENT PRIORITY,PIPE DIRECTORY"


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ("s,2001,48201,Ready,/run/p/s,GPU-1,-", (MpsServer(48201, "ACTIVE"),)),
        ("s,2001,48201,Fault,/run/p/s,GPU-1,-", (MpsServer(48201, "FAULT"),)),
        ("s,2001,48201,Initializing,/run/p/s,GPU-1,1,2", (MpsServer(48201, "INITIALIZING"),)),
        ("uid_2001,2001,7,Ready,/run/p/uid_2001,GPU-1,-", ()),
        ("s,2001,-,Stopped,/run/p/s,GPU-1,-", ()),
        ("", ()),
        ("s,2001", None),
    ],
)
def test_servers(rows: str, found: object) -> None:
    assert rules.parse_servers(f"{SERVERS}\n{rows}\n") == found


def test_a_client_with_commas_in_its_command_is_one() -> None:
    rows = "3167082,s,GPU-1,s/slot_0 (1),python train.py --lr 1,2\n7,uid_2001,GPU-1,uid_2001/default (0),x\n"
    assert rules.parse_clients(f"{CLIENTS}\n{rows}") == (3167082,)
    assert rules.parse_clients(f"{CLIENTS}\n") == ()


@pytest.mark.parametrize("text", ["", "no such module", f"{CLIENTS}\n316...,s,GPU-1,s/slot_0,x", "1,s,0,default,x"])
def test_an_answer_that_is_no_list_is_none_and_not_an_empty_one(text: str) -> None:
    assert rules.parse_clients(text) is None


def test_namespaces_in_the_words_of_a_real_list() -> None:
    rows = "slot_0,s,Ready,8G,25.00,0,/run/p/s/slot_0\nany,s,Ready,unlimited,100.00,0,-\nother,t,Ready,1G,1,0,-\n"
    assert rules.parse_namespaces(f"{SPACES}\n{rows}") == TWO


@pytest.mark.parametrize(("memory", "percent"), [("8 apples", "25"), ("8G", "much"), ("8G", "1e3")])
def test_a_cap_in_an_unknown_form_is_no_cap_that_holds(memory: str, percent: str) -> None:
    assert rules.parse_namespaces(f"{SPACES}\nslot_0,s,Ready,{memory},{percent},0,-") is None


@pytest.mark.parametrize(
    ("text", "mib"), [("8G", 8192), ("512M", 512), ("1024K", 1), ("8192MB", 8192), ("2GiB", 2048), ("8", None)]
)
def test_sizes(text: str, mib: int | None) -> None:
    assert rules.parse_mib(text) == mib


@pytest.mark.parametrize(
    ("found", "differs"),
    [
        (Namespace("slot_0", 8192, 25.0), False),
        (Namespace("slot_0", 8192, 25.04), False),
        (Namespace("slot_0", 4096, 25.0), True),
        (Namespace("slot_0", None, 25.0), True),
        (Namespace("slot_0", 8192, None), True),
        (Namespace("slot_1", 8192, 25.0), True),
    ],
)
def test_a_namespace_with_other_caps_is_made_anew(found: Namespace, differs: bool) -> None:
    assert bool(rules.different(TWO[:1], (found,))) is differs


def test_a_namespace_without_caps_is_not_set() -> None:
    assert rules.set_words(Namespace("any")) == []
    assert rules.set_words(TWO[0]) == [
        *("namespace", "set", "slot_0", "--server=s", "--pinned-memory-limit=8192M", "--active-thread-percentage=25"),
    ]
