"""MPS daemons: parsing their answers, building their commands, reading them from the kernel."""

from __future__ import annotations

import os
import subprocess
import time

import msgspec.structs
import pytest

from slurm_share.core import process
from slurm_share.core.errors import CommandError, MpsFolderError, MpsRefusedError
from slurm_share.core.paths import Paths
from slurm_share.core.process import Deadline
from slurm_share.core.records import Owner, ProcessIdentity
from slurm_share.mps import control, processes
from slurm_share.mps.records import MpsPlace, MpsProcess

PLACE = MpsPlace("/opt/nvidia/bin/nvidia-cuda-mps-control", "/run/x/mps/0", "GPU-1", Owner(61001, 61001))


def test_a_place_on_a_node_fits_the_limit_for_any_uid():
    place = control.node_place(Paths(), "/x", Owner(2**32 - 2, 1), "GPU-5131194a-af6f-47c0-8619-4e91f42a6279")
    assert place.pipe == "/run/slurm-share/user/mps/4294967294/5131194a-2a6279"
    assert len(place.logs) <= control.PIPE_MAX_BYTES
    control.check_pipe(place.pipe)


def test_the_daemons_environment_is_small_and_finds_the_server():
    place = msgspec.structs.replace(PLACE, environment=(("LD_LIBRARY_PATH", "/lib"), ("CUDA_MPS_PIPE_DIRECTORY", "")))
    place = msgspec.structs.replace(place, environment=(*place.environment, ("CUDA_MPS_PROTOCOL_VERSION", "3")))
    assert control.environment(place) == {
        "PATH": "/opt/nvidia/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LD_LIBRARY_PATH": "/lib",
        "CUDA_MPS_PROTOCOL_VERSION": "2",
        "CUDA_MPS_PIPE_DIRECTORY": "/run/x/mps/0",
        "CUDA_MPS_LOG_DIRECTORY": "/run/x/mps/0/logs",
        "CUDA_VISIBLE_DEVICES": "GPU-1",
    }


@pytest.mark.parametrize(
    ("text", "pids"), [("", ()), ("1234\n", (1234,)), ("1\n22\n333\n", (1, 22, 333)), ("Server 5 not found\n", ())]
)
def test_pids_are_read(text, pids):
    assert control.parse_pids(PLACE, text) == pids


@pytest.mark.parametrize("text", ["pid 5", "-5", "1 two", "\x1b[2J", "99999999999"])
def test_a_strange_list_is_refused_and_shown_safely(text):
    with pytest.raises(MpsRefusedError) as caught:
        control.parse_pids(PLACE, text)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("ACTIVE\n", "ACTIVE"),
        ("FAULT", "FAULT"),
        ("Server 5 not found\n", "GONE"),
        ('Unknown command "get_server_status 5"\n', None),
        ("", None),
    ],
)
def test_a_servers_status_is_read(text, status):
    assert control.parse_status(text) == status


END = 'Unknown command "slurm_share_end"\n'


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (END, ""),
        (f"1234\n5678\n{END}", "1234\n5678"),
        (f"25.0\n{END}", "25.0"),
        (f'Unknown command "lspart"\n{END}', 'Unknown command "lspart"'),
        ("", None),
        ("1234\n", None),
        ("25.0\n", None),
        ('1234\nUnknown command "slurm_sh', None),
    ],
)
def test_an_answer_counts_when_the_last_word_was_heard(text, answer):
    assert control._answers_before_the_last(text) == answer


@pytest.mark.parametrize(
    ("words", "role"),
    [
        (["nvidia-cuda-mps-control", "-d"], "daemon"),
        (["/usr/bin/nvidia-cuda-mps-control", "-f"], "daemon"),
        (["nvidia-cuda-mps-control", "-S", "-d"], "daemon"),
        (["nvidia-cuda-mps-control", "-p", "3", "--daemon"], "daemon"),
        (["nvidia-cuda-mps-control", "-dS"], "daemon"),
        (["nvidia-cuda-mps-control"], "front end"),
        (["nvidia-cuda-mps-control", "-v"], "front end"),
        (["nvidia-cuda-mps-control", "server", "list", "--format=csv,noheader"], "front end"),
        (["/usr/sbin/nvidia-cuda-mps-server"], "server"),
        (["/usr/bin/python3", "-ISB", "/usr/local/bin/nvidia-cuda-mps-control", "-d"], "daemon"),
        (["/usr/bin/python3", "-ISB", "/usr/local/bin/nvidia-cuda-mps-control"], "front end"),
        (["nvidia-cuda-mps-wrapper"], None),
        ([], None),
    ],
)
def test_what_a_process_of_mps_is(words, role):
    assert processes.parse_role(words) == role


@pytest.mark.parametrize(
    ("words", "variable", "protocol"),
    [
        (["-d"], None, 2),
        (["-p", "3", "-d"], None, 3),
        (["-d", "-p3"], None, 3),
        (["--protocol=3", "-d"], None, 3),
        (["--protocol", "3", "-d"], b"2", 2),
        (["-d"], b"3", 3),
        (["-d"], b"x", 2),
        (["-d", "-p"], None, 2),
    ],
)
def test_the_variable_says_the_protocol_before_the_words(words, variable, protocol):
    assert processes.parse_protocol(["nvidia-cuda-mps-control", *words], variable) == protocol


@pytest.mark.parametrize(
    ("uids", "program", "expected"),
    [
        ((0, 0, 0, 0), "/usr/bin/nvidia-cuda-mps-control", True),
        ((994, 994, 994, 994), "/opt/nvidia/bin/nvidia-cuda-mps-control", True),
        ((0, 0, 0, 0), "/usr/bin/python3.13", True),
        ((2001, 0, 0, 0), "/usr/bin/su", False),
        ((2001, 0, 0, 0), "/usr/bin/nvidia-cuda-mps-control", False),
        ((0, 0, 2001, 0), "/usr/bin/nvidia-cuda-mps-control", False),
        ((0, 0, 0, 0), "/usr/bin/su", False),
        ((0, 0, 0, 0), None, False),
        ((), "/usr/bin/nvidia-cuda-mps-control", False),
        ((2001, 2001, 2001, 2001), "/usr/bin/nvidia-cuda-mps-control", False),
    ],
)
def test_a_system_users_daemon_has_four_uids_and_the_program(uids, program, expected):
    one = MpsProcess(ProcessIdentity(9, 1, 0, "nvidia-cuda-mps"), "daemon", "/tmp/nvidia-mps", uids, program)
    files = frozenset(("/usr/bin/nvidia-cuda-mps-control", "/usr/bin/python3.13"))
    assert processes.is_systems(one, files, 1000) is expected


def test_the_interpreter_of_a_script_is_one_of_the_programs_files(tmp_path):
    """The kernel says that a script's process executes its interpreter. A program that is missing has only its name."""
    script = tmp_path / "mps"
    script.write_bytes(b"#!/bin/sh -e\n")
    assert processes.read_program_files(str(script)) == {str(script), os.path.realpath("/bin/sh")}
    script.write_bytes(b"\x7fELF\n#!/bin/sh\n")
    assert processes.read_program_files(str(script)) == {str(script)}
    assert processes.read_program_files("/nonexistent/x") == {"/nonexistent/x"}


def test_only_daemons_outside_our_folder_are_foreign():
    def daemon(pid, role, pipe):
        return MpsProcess(ProcessIdentity(pid, 1, 0, "nvidia-cuda-mps"), role, pipe)

    ours = daemon(1, "daemon", "/run/slurm-share/mps/1/a")
    near = daemon(2, "daemon", "/run/slurm-share/mps-of-mine")
    server = daemon(3, "server", "/tmp/nvidia-mps")
    hidden = daemon(4, "daemon", None)
    found = processes.foreign_daemons((ours, near, server, hidden), "/run/slurm-share/mps")
    assert [one.identity.pid for one in found] == [2, 4]


def test_a_lock_holder_is_named_and_a_missing_folder_is_nobody(tmp_path):
    place = msgspec.structs.replace(PLACE, pipe=str(tmp_path))
    assert processes.lock_holder(place) is None
    (tmp_path / "control_lock").touch()
    assert processes.lock_holder(place) is None
    code = "import fcntl, sys; f = open(sys.argv[1]); fcntl.lockf(f, fcntl.LOCK_SH); print(flush=True); input()"
    with subprocess.Popen(
        ["/usr/bin/python3", "-I", "-c", code, tmp_path / "control_lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        holder.stdout.readline()
        found = processes.lock_holder(place)
        assert found == process.identify(holder.pid)
        # With hidepid the number is all there is; it is no daemon of ours then.
        hidden = processes.lock_holder(place, proc=str(tmp_path))
        assert hidden == ProcessIdentity(holder.pid)
        assert not processes.is_daemon(hidden, place)
        assert str(holder.pid) in processes.describe_foreign(hidden)
        holder.stdin.close()


def test_a_folder_that_is_not_for_our_eyes_says_so(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("NOT TESTED: root may look anywhere")
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(MpsFolderError, match="somebody else"):
        processes.lock_holder(msgspec.structs.replace(PLACE, pipe=str(tmp_path / "closed" / "x")))


# ---- process.py ----


def test_a_program_is_given_text_and_heard_whatever_its_code():
    done = process.exchange(
        ["/bin/sh", "-c", "read a; echo $a $X; echo no >&2; exit 3"], text="word\n", timeout_s=5, env={"X": "1"}
    )
    assert (done.code, done.stdout, done.stderr) == (3, "word 1\n", "no\n")


def test_a_child_left_behind_keeps_nobody_waiting():
    """The child has our output files open, but they are memory and not pipes."""
    began = time.monotonic()
    done = process.exchange(["/bin/sh", "-c", "sleep 400 & echo gone"], timeout_s=500, env={"PATH": "/bin:/usr/bin"})
    assert done.stdout == "gone\n"
    assert time.monotonic() - began < 300


def test_a_program_that_hangs_is_ended_with_its_children_and_one_that_is_not_there_is_said():
    began = time.monotonic()
    with pytest.raises(CommandError, match="no answer within"):
        process.exchange(["/bin/sh", "-c", "sleep 600; true"], timeout_s=0.2, env={"PATH": "/bin:/usr/bin"})
    assert time.monotonic() - began < 300
    with pytest.raises(CommandError) as caught:
        process.exchange(["/nonexistent/program"], timeout_s=1, env={})
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_output_without_end_is_cut(monkeypatch):
    monkeypatch.setattr(process, "OUTPUT_LIMIT_BYTES", 10)
    done = process.exchange(["/bin/sh", "-c", "echo 12345678901234567890"], timeout_s=5, env={})
    assert done.stdout == "1234567890"


def test_a_process_is_known_by_number_start_and_user(tmp_path):
    folder = tmp_path / "77"
    folder.mkdir()
    tail = " ".join(str(number) for number in range(3, 52))
    (folder / "stat").write_text(f"77 (a) b (c) S {tail}\n")
    (folder / "status").write_text("Name:\tx\nUid:\t5\t6\t6\t6\n")
    known = process.identify(77, str(tmp_path))
    assert known == ProcessIdentity(77, 21, 6, "a) b (c")
    assert process.is_same(known, str(tmp_path))
    assert not process.is_same(msgspec.structs.replace(known, start_ticks=22), str(tmp_path))
    assert not process.is_same(msgspec.structs.replace(known, uid=7), str(tmp_path))
    (folder / "stat").write_text(f"77 (a) Z {tail}\n")  # its main thread has ended; 19 threads
    assert process.identify(77, str(tmp_path)) == ProcessIdentity(77, 21, 6, "a")
    (folder / "stat").write_text(f"77 (a) Z {tail.replace(' 19 ', ' 1 ')}\n")
    assert process.identify(77, str(tmp_path)) is None
    assert process.identify(78, str(tmp_path)) is None


def test_a_signal_goes_to_the_very_process_or_to_none():
    with subprocess.Popen(["/bin/sleep", "30"]) as child:
        known = process.identify(child.pid)
        assert not process.end(msgspec.structs.replace(known, start_ticks=known.start_ticks + 1), 9)
        assert not process.end(msgspec.structs.replace(known, start_ticks=None), 9)
        assert not process.end(ProcessIdentity(1, 0, 0), 9)
        assert process.wait_gone([known], Deadline.after(0.05)) == (known,)
        assert process.end(known, 15)
        assert process.wait_gone([known], Deadline.after(5)) == ()
        assert not process.end(known, 15) or child.poll() is not None


@pytest.mark.parametrize(
    "uuid", ["GPU-5ad1aa5b-0001", "MIG-GPU-5ad1aa5b-0001/1/0", "MIG-/", "GPU-////", "MIG-5ad1aa5b/../x"]
)
def test_the_folder_of_a_gpu_is_one_name_in_the_users_folder(uuid: str) -> None:
    assert Paths().mps_pipe(2001, uuid).parent == Paths().mps / "2001"


@pytest.mark.parametrize(
    ("argv", "is_static"),
    [
        (["/usr/bin/nvidia-cuda-mps-control", "-d"], False),
        (["/usr/bin/nvidia-cuda-mps-control", "-d", "-S"], True),
        (["nvidia-cuda-mps-control", "-Sd"], True),
        (["nvidia-cuda-mps-control", "-f", "--static-partitioning"], True),
        (["/usr/bin/python3", "-IS", "/x/nvidia-cuda-mps-control", "-d"], False),
        (["/usr/bin/python3", "-IS", "/x/nvidia-cuda-mps-control", "-S", "-d"], True),
        (["nvidia-cuda-mps-control", "--Server"], False),
        ([], False),
    ],
)
def test_the_command_line_of_a_daemon_tells_whether_it_has_static_partitions(argv, is_static):
    assert processes.parse_static([one.encode() for one in argv]) is is_static
