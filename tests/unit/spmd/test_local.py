"""`python -m slurm_share.spmd -n N PROG` with real processes: starts, output, ends, and remaining processes."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from in_processes import run_command as run
from rendezvous_ends import PATIENCE_S, wait_for

from slurm_share.spmd import __main__ as command
from slurm_share.spmd import names
from slurm_share.spmd.errors import UsageError
from slurm_share.spmd.local import RankOutcome, _Output, run_local

COMMAND = [sys.executable, "-m", "slurm_share.spmd"]
NODE = os.uname().nodename


@pytest.fixture
def program(tmp_path):
    """Return a function that writes a program."""

    def write(text: str, name: str = "prog.py") -> str:
        path = tmp_path / "programs" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            "import os, sys, time, signal\nrank = int(os.environ.get('LLSUB_RANK', '0'))\n" + textwrap.dedent(text)
        )
        return str(path)

    return write


@pytest.fixture(autouse=True)
def nothing_left(tmp_path, monkeypatch):
    """Check after each test that no process it started remains; all have a mark in their environment."""
    mark = f"TEST_OF_LOCAL={tmp_path}"
    monkeypatch.setenv("TEST_OF_LOCAL", str(tmp_path))
    yield
    wait_for(lambda: not marked(mark), f"{marked(mark)} are left")


def marked(mark: str) -> list[str]:
    """Return the other processes with that mark in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append((folder / "cmdline").read_bytes().decode())
            except OSError:
                continue
    return found


def begin(*arguments: str, **options) -> subprocess.Popen[str]:
    """Start the command, and wait until it has printed "ready"."""
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )
    assert process.stdout is not None
    while "ready" not in (line := process.stdout.readline()):
        assert line, process.communicate()
    return process


# Starting


def test_each_rank_finds_its_numbers_its_arguments_and_its_folder(program):
    path = program("""
        print(rank, *(os.environ[name] for name in ("LLSUB_SIZE", "LLSUB_NODE", "LLSUB_NODES", "LLSUB_LOCAL_RANK",
              "LLSUB_LOCAL_SIZE")), sys.argv, __name__, __file__, sys.path[0], "LLSUB_PARENT" in os.environ)
    """)
    said = run("-n", "3", path, "a", "-n", "--help")
    assert (said.returncode, said.stderr) == (0, "")
    rest = f"{[path, 'a', '-n', '--help']} __main__ {path} {Path(path).parent} False"
    assert sorted(said.stdout.splitlines()) == [
        f"0 3 0 1 0 3 {rest}",
        f"[1] 1 3 0 1 1 3 {rest}",
        f"[2] 2 3 0 1 2 3 {rest}",
    ]


def test_a_program_sees_its_own_names_and_can_be_pickled_from(program):
    path = program("""
        import pickle
        class Thing: pass
        def double(): return [rank_of() for _ in range(2)]
        def rank_of(): return rank
        assert isinstance(pickle.loads(pickle.dumps(Thing())), Thing)
        if __name__ == "__main__":
            print(double())
    """)
    assert run("-n", "2", path).stdout.splitlines() in (["[0, 0]", "[1] [1, 1]"], ["[1] [1, 1]", "[0, 0]"])


def test_output_that_arrives_late_is_passed_on_to_its_last_line(capfd):
    """As where the machine is so busy that the ranks have ended long before their pipes are read."""
    reading, writing = os.pipe()
    output = _Output(open(reading, "rb", buffering=0), sys.stdout, "[3] ")  # noqa: SIM115
    with open(writing, "wb", buffering=0) as pipe:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 1 << 20)
        pipe.write(b"x" * 100 + b"\n" + b"a line\n" * 20_000 + b"no end")
    output.finish()
    assert capfd.readouterr().out == "[3] " + "x" * 100 + "\n" + "[3] a line\n" * 20_000 + "[3] no end\n"


def test_each_line_of_rank_0_is_written_at_once(program):
    """Each write to a pipe in packet mode is a packet of its own: lines of other ranks cannot come between."""
    path = program("print('one', 2); print('no end', end=''); sys.stdout.flush(); sys.stderr.write('half'); print()")
    ours, theirs = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)
    with subprocess.Popen([*COMMAND, "-n", "1", path], stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        packets = list(iter(lambda: os.read(ours, 4096), b""))
        os.close(ours)
        assert process.wait(PATIENCE_S) == 0
    assert packets == [b"one 2\n", b"no end", b"\n", b"half"]


def test_without_n_the_program_runs_in_this_process_alone(program):
    path = program("print(sys.argv, __name__, 'LLSUB_RANK' in os.environ); sys.exit(5)")
    said = run(path, "x")
    assert (said.returncode, said.stdout) == (5, f"{[path, 'x']} __main__ False\n")


def test_a_run_within_a_rank_is_a_run_of_its_own(program):
    inner = program("print('inner', rank, os.environ['LLSUB_SIZE'])", "inner.py")
    outer = program(f"""
        import subprocess
        if rank == 1:
            print(subprocess.run([sys.executable, "-m", "slurm_share.spmd", "-n", "1", {inner!r}],
                  stdout=subprocess.PIPE, text=True).stdout, end="")
    """)
    assert run("-n", "2", outer).stdout == "[1] inner 0 1\n"


def test_a_program_that_is_not_python_is_run_as_it_is(tmp_path):
    path = tmp_path / "prog"
    path.write_text("#!/bin/sh\necho rank $LLSUB_RANK $1\nexit $LLSUB_RANK\n")
    path.chmod(0o755)
    said = run("-n", "2", str(path), "x")
    assert (said.returncode, sorted(said.stdout.splitlines())) == (1, ["[1] rank 1 x", "rank 0 x"])
    assert run("prog", "x", cwd=tmp_path).stdout == "rank x\n"


def test_rank_0_has_the_input_and_the_others_have_none(program):
    path = program("print(rank, repr(sys.stdin.read()))")
    said = run("-n", "2", path, input="words")
    assert sorted(said.stdout.splitlines()) == ["0 'words'", "[1] 1 ''"]


def test_the_cores_are_shared_where_the_user_does_not_say_how(program, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    path = program("print(os.environ['OMP_NUM_THREADS']) if rank == 0 else None")
    assert run("-n", "2", path).stdout == f"{max(1, len(os.sched_getaffinity(0)) // 2)}\n"
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert run("-n", "2", path).stdout == "7\n"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "which program"),
        (("-n", "4"), "which program"),
        (("-n",), "-n needs a value"),
        (("-n", "four", "prog.py"), "'four'"),
        (("-n", "-1", "prog.py"), "'-1'"),
        (("-n", "0", "{}"), "1 to 256 ranks, not 0"),
        (("-n257", "{}"), "1 to 256 ranks, not 257"),
        (("-n", "9" * 5000, "{}"), "1 to 256 ranks"),
        (("-n2", "."), ". is a folder without __main__.py"),
        (("/",), "/ is a folder without __main__.py"),
        (("-x", "prog.py"), "no option -x"),
        (("-n2", "/nowhere/prog.py"), "no program /nowhere/prog.py"),
        (("/nowhere/prog.py",), "no program /nowhere/prog.py"),
    ],
)
def test_a_wrong_command_is_refused_in_one_sentence(program, arguments, why):
    path = program("print('ran')")
    said = run(*(argument.format(path) for argument in arguments))
    assert (said.returncode, said.stdout) == (2, "")
    assert why in said.stderr
    assert len(said.stderr.splitlines()) == 1


def test_a_program_that_cannot_be_read_is_refused(program, monkeypatch):
    path = program("pass")
    monkeypatch.setattr(os, "access", lambda _path, mode: mode != os.R_OK)  # root may read every file
    with pytest.raises(UsageError, match=r"prog\.py cannot be read: Permission denied"):
        run_local(path, 1)


def test_a_program_whose_name_begins_with_a_dash_runs(program):
    path = Path(program("print(rank, sys.argv)", name="-prog.py"))
    said = run("-n", "2", "--", "-prog.py", "-x", cwd=path.parent)
    assert sorted(said.stdout.splitlines()) == ["0 ['-prog.py', '-x']", "[1] 1 ['-prog.py', '-x']"]


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        (names.ENV_START_S, "soon", " is a number of seconds above 0 and below 1e9, not 'soon'"),
        (names.ENV_START_S, "nan", " is a number of seconds above 0 and below 1e9, not 'nan'"),
        (names.ENV_START_S, "1e9", " is a number of seconds above 0 and below 1e9, not '1e9'"),
        (names.ENV_SEND_LIMIT, "much", " is a number of bytes, not 'much'"),
        (names.ENV_SEND_LIMIT, "-5", " is a number of bytes, not '-5'"),
        (names.ENV_TRANSPORT, "zmq", "=zmq: write mpi (mpi4py) or own (slurm_share's), or unset it"),
    ],
)
@pytest.mark.parametrize("ranks", [("-n", "2"), ()])
def test_a_wrong_setting_is_refused_in_one_sentence(program, monkeypatch, name, value, why, ranks):
    monkeypatch.setenv(name, value)
    said = run(*ranks, program("print('ran')"))
    assert (said.returncode, said.stdout, said.stderr) == (2, "", f"slurm_share.spmd: {name}{why}\n")


def test_help_names_every_option():
    said = run("--help")
    assert said.returncode == 0
    assert all(word in said.stdout for word in ("-n N", "--logs FOLDER", "--help", "Exit code"))


def test_help_that_cannot_be_written_is_a_sentence():
    with open("/dev/full", "w") as full:
        said = subprocess.run([*COMMAND, "--help"], stdout=full, stderr=subprocess.PIPE, text=True)
    sentence = "slurm_share.spmd: cannot write to standard output (No space left on device)\n"
    assert (said.returncode, said.stderr) == (1, sentence)


# Output


def test_lines_of_two_ranks_do_not_mix(program):
    path = program("""
        for _ in range(200):
            for part in "abcdefgh":
                sys.stdout.write(part * 20)
            sys.stdout.write("\\n")
        sys.stdout.write("no end")
    """)
    lines = run("-n", "3", "--logs", str(Path(path).parent / "logs"), path).stdout.splitlines()
    assert len(lines) == 201
    said = run("-n", "3", path)
    whole = "".join(part * 20 for part in "abcdefgh")
    # Anywhere in a line: rank 0 writes there itself, also its last line without an end. A full pipe tears a few lines.
    assert said.stdout.count(f"] {whole}\n") >= 380
    assert said.stdout.count("[1] no end\n") == said.stdout.count("[2] no end\n") == 1


def test_a_folder_for_logs_that_cannot_be_made_is_a_sentence(program, tmp_path):
    (tmp_path / "file").touch()
    said = run("-n", "2", "--logs", str(tmp_path / "file"), program("print(rank)"))
    assert said.returncode == 2
    assert said.stderr == f"slurm_share.spmd: the logs of ranks cannot be written to {tmp_path}/file: File exists\n"


def test_logs_take_what_the_other_ranks_print(program, tmp_path):
    path = program("print('out', rank); print('err', rank, file=sys.stderr)")
    said = run("-n", "3", "--logs", str(tmp_path / "a" / "logs"), path)
    assert (said.stdout, said.stderr) == ("out 0\n", "err 0\n")
    written = {file.name: file.read_text() for file in (tmp_path / "a" / "logs").iterdir()}
    assert written == {"prog.1.out": "out 1\nerr 1\n", "prog.2.out": "out 2\nerr 2\n"}


def test_a_log_on_a_full_disk_loses_what_is_printed_and_no_message(program, tmp_path):
    path = program("""
        from slurm_share.spmd import COMM_WORLD as comm
        print("words", rank)
        print("more", rank, file=sys.stderr)
        comm.barrier()
    """)
    (tmp_path / "prog.1.out").symlink_to("/dev/full")
    assert run("-n", "2", "--logs", str(tmp_path), path).returncode == 0
    with open("/dev/full", "w") as full:  # what rank 0 prints there is the user's own
        said = subprocess.run([*COMMAND, "-n", "2", path], stdout=full, stderr=subprocess.PIPE, text=True)
    assert said.returncode == 1
    assert "No space left on device" in said.stderr


def test_a_caller_without_real_output_gets_what_rank_0_prints(program, capsys):
    outcome = run_local(program("print('out', rank, *sys.argv[1:])"), 2, ["x"])
    assert outcome == RankOutcome(0, "")
    assert sorted(capsys.readouterr().out.splitlines()) == ["[1] out 1 x", "out 0 x"]


# Ends


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_without_output_runs_all_ranks(program, tmp_path, closed):
    path = program(f"print(rank); print(rank, file=sys.stderr); open({str(tmp_path)!r} + f'/ran.{{rank}}', 'x')")
    said = subprocess.run(["sh", "-c", f'"$@" {closed}', "sh", *COMMAND, "-n", "3", path], timeout=PATIENCE_S)
    assert said.returncode == 0
    assert len(list(tmp_path.glob("ran.*"))) == 3


def test_output_that_is_not_read_to_its_end_is_no_error(program):
    path = program("[print('line', i) for i in range(20000)] if rank else None")
    said = subprocess.run(
        ["bash", "-c", '"$@" | head -n 1; exit ${PIPESTATUS[0]}', "bash", *COMMAND, "-n", "2", path],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (said.returncode, said.stdout, said.stderr) == (0, "[1] line 0\n", "")


def test_output_is_passed_on_as_its_bytes(program):
    path = program("os.write(1, b'\\xff \\xc3\\xbc\\n')")
    said = subprocess.run(
        [*COMMAND, "-n", "2", path],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert (said.returncode, said.stderr) == (0, b"")
    assert sorted(said.stdout.splitlines()) == [b"[1] \xff \xc3\xbc", b"\xff \xc3\xbc"]


def test_a_rank_that_fails_ends_the_run_with_a_sentence(program):
    path = program("""
        def inner():
            raise ValueError("bad input")
        if rank == 1:
            inner()
    """)
    said = run("-n", "2", path)
    assert said.returncode == 1
    lines = said.stderr.splitlines()
    assert re.fullmatch(
        rf"slurm_share\.spmd: rank 1 on {NODE} ended with code 1(; the other one was ended)?", lines[-1]
    )
    assert lines[-2] == "[1] ValueError: bad input"
    assert lines[0] == "[1] Traceback (most recent call last):"
    files = [line for line in lines if "File " in line]
    assert len(files) == 2, "the traceback has the program's frames only"
    assert all(path in line for line in files)


@pytest.mark.parametrize("call", ["comm.barrier()", "comm.recv(2)", "comm.bcast(1, root=2)"])
def test_a_rank_that_is_killed_is_named_in_one_line_by_each_rank_that_waits(program, call):
    path = program(f"""
        from slurm_share.spmd import COMM_WORLD as comm
        comm.barrier()
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        {call}
        comm.barrier()
    """)
    said = run("-n", "3", path)
    assert said.returncode == 1
    assert sorted(said.stderr.splitlines()) == [
        f"[1] rank 1 ends: rank 2 on {NODE} was killed by SIGKILL",
        f"rank 0 ends: rank 2 on {NODE} was killed by SIGKILL",
        f"slurm_share.spmd: rank 2 on {NODE} was killed by SIGKILL; the other 2 were ended",
    ]


def test_a_rank_that_ends_without_messages_ends_those_that_wait_for_it(program):
    path = program("""
        if rank == 1:
            sys.exit(0)
        from slurm_share.spmd import COMM_WORLD as comm
        comm.barrier()
    """)
    said = run("-n", "2", path)
    assert said.returncode == 1
    why = f"rank 1 on {NODE} has ended without using messages, and the others wait for it"
    assert said.stderr.splitlines() == [f"rank 0 ends: {why}", f"slurm_share.spmd: {why}; the other one was ended"]


def test_the_code_of_an_end_after_goodbye_counts(program):
    path = program("""
        from slurm_share.spmd import COMM_WORLD as comm
        import atexit
        comm.barrier()
        if rank == 1:
            atexit._run_exitfuncs()
            os._exit(6)
    """)
    said = run("-n", "2", path)
    assert said.returncode == 1
    assert f"rank 1 on {NODE} ended with code 6" in said.stderr


def test_ranks_that_take_no_notice_of_a_death_are_ended(program, monkeypatch, capsys):
    path = program("""
        if rank == 0:
            sys.exit(3)
        if rank == 1:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("computes", flush=True)
        time.sleep(600)
    """)
    began = time.monotonic()
    outcome = run_local(path, 3, end_grace_s=1.0, kill_s=1.0)
    assert outcome == RankOutcome(1, f"rank 0 on {NODE} ended with code 3; the other 2 were ended")
    assert 2.0 <= time.monotonic() - began < PATIENCE_S


@pytest.mark.parametrize(("code", "seen"), [(9, 9), (256, 1)])
def test_the_code_of_abort_is_the_code_of_the_run(program, code, seen):
    path = program(f"""
        from slurm_share.spmd import COMM_WORLD as comm
        comm.barrier()
        if rank == 1:
            comm.abort({code})
        comm.recv(1)
    """)
    said = run("-n", "3", path)
    assert said.returncode == seen, said
    assert f"rank 1 called abort({code})" in said.stderr.splitlines()[-1]
    # One of the others may learn of the end of rank 1's process before it learns of the call.
    assert said.stderr.count("ends: rank 1 ") == 2
    assert f"ends: rank 1 ended the run with code {code}\n" in said.stderr


def test_a_ring_of_receives_is_named_by_all_four_ranks(program):
    path = program("""
        from slurm_share.spmd import COMM_WORLD as comm
        began = time.monotonic()
        try:
            comm.recv((comm.rank + 1) % comm.size, "x")
        finally:
            print("after", time.monotonic() - began)
    """)
    said = run("-n", "4", path)
    assert said.returncode == 1
    times = [float(line.split()[-1]) for line in said.stdout.splitlines()]
    assert len(times) == 4
    assert max(times) < PATIENCE_S
    table = "; ".join(f"rank {rank} waits in recv for ({(rank + 1) % 4}, 'x')" for rank in range(4))
    assert said.stderr.count(f"Deadlock: all ranks wait for each other and no message is under way: {table}") == 4
    assert said.stderr.count("File ") == 4, "each traceback has the program's line only"


def test_a_rank_that_computes_while_three_wait_is_no_error(program):
    path = program("""
        from slurm_share.spmd import COMM_WORLD as comm
        comm.barrier()
        if comm.rank == 3:
            until = time.monotonic() + 5
            while time.monotonic() < until:
                sum(range(10000))
                time.sleep(0.01)
        comm.barrier()
    """)
    said = run("-n", "4", path)
    assert (said.returncode, said.stderr) == (0, "")


@pytest.mark.parametrize("last", ["if rank == 0: comm.bcast(1)", "comm.bcast(1, root=comm.rank)"])
def test_ranks_whose_last_collective_calls_differ_end_with_a_sentence(program, last):
    path = program(f"""
        from slurm_share.spmd import COMM_WORLD as comm
        comm.barrier()
        {last}
        time.sleep(0.3)  # until the other one's message has come
    """)
    said = run("-n", "2", path)
    assert said.returncode == 1
    assert "collective call 2: rank " in said.stderr


def test_ranks_that_do_not_come_in_time_are_named_on_those_that_wait(program, monkeypatch):
    monkeypatch.setenv(names.ENV_START_S, "1")
    path = program("""
        if rank == 2:
            time.sleep(600)
        from slurm_share.spmd import COMM_WORLD as comm
        comm.barrier()
    """)
    outcome = run_local(path, 3, end_grace_s=0.5)
    assert outcome.code == 1
    assert outcome.why.startswith("1 rank has not started within 1 s: 2; where programs take longer")


# Signals


SLEEP = """
    try:
        print("ready", flush=True)
        time.sleep(600)
    finally:
        print("cleaned", rank, flush=True)
"""


def test_ctrl_c_ends_all_ranks(program):
    path = program(
        """
        from slurm_share.spmd import COMM_WORLD as comm
        comm.barrier()
        if rank == 0:
            time.sleep(1)
    """
        + textwrap.indent(textwrap.dedent(SLEEP), "        ")
    )
    process = begin("-n", "3", path)
    process.stdout.readline()
    process.send_signal(signal.SIGINT)  # to the command alone, as an IDE does: it passes it on
    out, error = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert error.count("KeyboardInterrupt") >= 2
    assert "slurm_share/spmd" not in error  # tracebacks end in the program
    assert "cleaned" in out


def test_ctrl_c_at_a_terminal_reaches_a_rank_once(program):
    path = program("""
        import signal
        times = []
        signal.signal(signal.SIGINT, lambda *_: times.append(1))
        print("ready", flush=True)
        until = time.monotonic() + 60
        while not times and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(1)
        print("times", len(times), flush=True)
    """)
    ours, theirs = os.openpty()
    command = ["setsid", "--ctty", "--wait", *COMMAND, "-n", "2", path]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    said = b""
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        while said.count(b"ready") < 2:
            said += terminal.read(4096)
        os.write(ours, b"\x03")
        try:
            while data := terminal.read(4096):
                said += data
        except OSError:
            pass  # a terminal ends with an error
    assert process.wait(PATIENCE_S) == 130
    assert said.count(b"times 1") == 2, said


def test_sigterm_is_passed_on(program):
    path = program("""
        def end(*_):
            print("told", rank, flush=True)
            sys.exit(0)
        signal.signal(signal.SIGTERM, end)
        print("ready", flush=True)
        time.sleep(600)
    """)
    process = begin("-n", "2", path)
    process.stdout.readline()
    process.terminate()
    out, _error = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 143
    assert sorted(line for line in out.splitlines() if "told" in line) == ["[1] told 1", "told 0"]


def test_no_rank_is_left_when_the_command_is_killed(program):
    path = program("""
        from slurm_share.spmd import COMM_WORLD as comm
        comm.barrier()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("ready", flush=True)
        time.sleep(600)
    """)
    process = begin("-n", "3", path)
    process.kill()
    process.communicate()
    # `nothing_left` looks for the ranks


def test_what_a_rank_started_does_not_outlive_a_run_that_fails(program):
    path = program("""
        import subprocess
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        sys.exit(1)
    """)
    assert run("-n", "2", path).returncode == 1


def test_a_rank_whose_command_has_gone_does_not_begin(program, monkeypatch):
    monkeypatch.setenv(names.ENV_RENDEZVOUS, "none")
    monkeypatch.setenv(names.ENV_PARENT, "1")
    said = run(program("print('ran')"))
    assert (said.returncode, said.stdout) == (137, "")


def test_ends_are_seen_where_the_kernel_has_no_pidfd(program, monkeypatch):
    def missing(_pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", missing)
    outcome = run_local(program("sys.exit(rank)"), 2)
    assert outcome.code == 1
    assert outcome.why.startswith(f"rank 1 on {NODE} ended with code 1")


def test_a_rank_that_the_kernel_kills_for_memory_is_named_so(program, monkeypatch):
    counts = iter([3, 4, 4])
    monkeypatch.setattr("slurm_share.spmd.local._memory_kills", lambda: next(counts))
    outcome = run_local(program("os.kill(os.getpid(), signal.SIGKILL) if rank else None"), 2)
    assert outcome.why.startswith(f"rank 1 on {NODE} was killed (out of host memory)")


def test_an_error_of_the_program_is_known_to_what_runs_at_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A failing rank delivers its messages for a short time only; others wait for their receivers."""
    for name in ("argv", "path", "meta_path"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    monkeypatch.setattr(sys, "last_value", None, raising=False)
    program = tmp_path / "fails.py"
    program.write_text("raise ValueError(7)\n")
    assert command.run_program(str(program), ()) == 1
    assert isinstance(sys.last_value, ValueError)
    assert "ValueError: 7" in capfd.readouterr().err
