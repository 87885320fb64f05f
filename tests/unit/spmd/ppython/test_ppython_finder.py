"""A process that installed the finder imports pPython's modules, and only what nobody else offers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ppython_ranks import ROOT, environment, run_program

from slurm_share.spmd.ppython.flat_names import FLAT, GATHERED, LEFT_OUT, NO_COUNTERPART


def run_python(code: str, *paths: Path, installed: bool = True, **more: str) -> Any:
    """Return what a new process prints as JSON, after it installed the finder."""
    environ = environment(PYTHONPATH=os.pathsep.join(map(str, [*paths, ROOT])), **more)
    lines = ("import json, sys", "from slurm_share.spmd import ppython", "ppython.install()" if installed else "", code)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(lines)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_flat_module_brings_its_names_and_no_others() -> None:
    found = run_python(
        "import importlib\n"
        "from slurm_share.spmd.ppython.flat_names import FLAT, GATHERED\n"
        "found = {}\n"
        "for module in [*FLAT, *('pPython.' + part for part in GATHERED)]:\n"
        "    scope = {}\n"
        "    exec(f'from {module} import *', scope)\n"
        "    found[module] = sorted(name for name in scope if name != '__builtins__')\n"
        "print(json.dumps(found))"
    )
    expected = {**FLAT, **{f"pPython.{part}": names for part, names in GATHERED.items()}}
    assert found == {module: sorted(names) for module, names in expected.items()}


def test_names_of_one_module_are_the_same_objects_in_another_and_callable() -> None:
    found = run_python(
        "import zeros, pPython.map, pPython.dmat, ll_dmat, agg\n"
        "from local import *\n"
        "same = [zeros.zeros is pPython.map.zeros, agg.local is local, ll_dmat.agg is agg.agg, zeros.np.__name__]\n"
        "print(json.dumps([*same, 'zeros' in globals() and globals()['zeros'].__class__.__name__]))"
    )
    assert found == [True, True, True, "numpy", "NamesModule"]


def test_a_users_own_module_wins_except_pPython_and_pRUN(tmp_path: Path) -> None:
    for name in ("zeros", "pPython", "pRUN"):
        (tmp_path / f"{name}.py").write_text("mine = True\n")
    found = run_python(
        "import zeros, pPython, pRUN, ones\n"
        "print(json.dumps([hasattr(module, 'mine') for module in (zeros, pPython, pRUN, ones)]))",
        tmp_path,
    )
    assert found == [True, False, False, False]


def test_nothing_is_found_without_the_finder() -> None:
    found = run_python(
        "import importlib.util as u\n"
        "print(json.dumps([u.find_spec(name) is None for name in ('pPython', 'zeros', 'SendMsg')]))",
        installed=False,
    )
    assert found == [True, True, True]


def test_modules_of_pPythons_own_machinery_say_why_they_are_missing() -> None:
    found = run_python(
        "try:\n    import grid_run\n"
        "except ModuleNotFoundError as error:\n    print(json.dumps([str(error), error.name]))"
    )
    assert found[1] == "grid_run"
    assert "belongs to its message files or its schedulers" in found[0]


def test_an_unknown_submodule_or_name_is_refused_as_usual() -> None:
    found = run_python(
        "said = []\n"
        "for line in ('import pPython.other', 'from zeros import other', 'import pPython; pPython.other'):\n"
        "    try:\n        exec(line)\n    except (ImportError, AttributeError) as error:\n"
        "        said.append(type(error).__name__)\n"
        "print(json.dumps(said))"
    )
    assert found == ["ModuleNotFoundError", "ImportError", "AttributeError"]


@pytest.mark.parametrize("visible", ["", "0", "GPU-8f1c2b7e-0000-0000-0000-000000000000"])
def test_import_needs_numpy_only_and_no_cupy_where_a_gpu_is_visible(visible: str) -> None:
    found = run_python(
        "import numpy\nbefore = set(sys.modules)\n"
        "import pPython as GPC\n"
        "from pPython.map import *\nfrom pPython.dmat import *\nfrom pPython.utils import *\n"
        "unwanted = {'scipy', 'sympy', 'cupy', 'mpi4py', 'subprocess', 'multiprocessing', 'asyncio'}\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(json.dumps([GPC.use_gpu, GPC.gpu_device, GPC.leader, GPC.tag_num, GPC.tag, sorted(new & unwanted)]))",
        CUDA_VISIBLE_DEVICES=visible,
    )
    assert found == [False, None, 0, 0, "tag-0", []]


def test_a_process_outside_a_run_is_a_single_rank_and_opens_no_socket() -> None:
    found = run_python(
        "import socket\n"
        "def refuse(*arguments, **options):\n    raise AssertionError('a socket')\n"
        "socket.socket.__init__ = refuse\n"
        "import pPython as GPC\n"
        "from SendMsg import *\nfrom RecvMsg import *\nfrom pPython.map import Dmap, zeros\n"
        "from agg import agg\nfrom BcastMsg import BcastMsg\n"
        "SendMsg(0, 7, 'itself')\n"
        "X = zeros(3, 4, map=Dmap([GPC.Np, 1], {}, range(GPC.Np)))\n"
        "print(json.dumps([GPC.Np, GPC.Pid, RecvMsg(0, 7), agg(X + 1).sum(), BcastMsg(0, 1, 'b'), GPC.comm['size']]))"
    )
    assert found == [1, 0, ["itself"], 12.0, ["b"], 1]


def test_the_table_of_names_is_whole() -> None:
    assert not LEFT_OUT & {name for names in FLAT.values() for name in names}
    assert not NO_COUNTERPART & set(FLAT)
    assert all(names for names in FLAT.values())
    assert len(FLAT) > 70


def test_a_program_for_pPython_sees_names_that_it_does_not_import(tmp_path: Path) -> None:
    (tmp_path / "for_it.py").write_text(
        "from MPI_Send import *\nprint(os.sep, np.pi, GPC.Np, callable(MPI_Finalize))\n"
    )
    (tmp_path / "other.py").write_text("import os.path\nprint('np' in globals())\n")
    said = [run_program(tmp_path, name).stdout for name in ("for_it.py", "other.py")]
    assert said == ["/ 3.141592653589793 1 True\n", "False\n"]


def test_import_of_pPython_alone_loads_nothing_that_it_does_not_need() -> None:
    found = run_python(
        "import pPython as GPC\n"
        "print(json.dumps([name for name in ('numpy', 'slurm_share.spmd.comm', 'socket') if name in sys.modules]))"
    )
    assert found == []


def test_the_page_names_functions_that_exist() -> None:
    page = (ROOT / "packaging/docs/ppython.md").read_text()
    table = page.partition("| | pPython | here |")[2].partition("\n\n")[0]
    subjects = re.findall(r"^\| (.+?) \| .+ \| .+ \|$", table, re.M)
    known = {name for names in (*FLAT.values(), *GATHERED.values()) for name in names}
    known |= {"copy", "dtype", "gagg", "gpu_device", "import", "nbytes", "pPython", "program", "use_gpu", "MPI_Run"}
    assert "put_local" in " ".join(subjects)
    assert {word for names in subjects for word in names.split() if word.isidentifier()} <= known


def test_commands_of_the_shell_run_outside_the_run_and_message_files_have_their_names(tmp_path: Path) -> None:
    (tmp_path / "qa.py").write_text(
        "from exec_shell_cmd import *\nfrom pyMPI_Buffer_file import *\nfrom pyMPI_Lock_file import *\n"
        "import pPython as GPC\n"
        "command = ExecShellCmd('env')\n"
        "command.run('printenv LLSUB_CHECK || cat', Popen(['echo', 'in'], stdout=PIPE).stdout)\n"
        "command.print_output('it said:')\n"
        "second = ExecShellCmd()\nsecond.run('echo bad >&2')\nprint(repr(second.get_stderr()))\n"
        "print(pyMPI_Buffer_file(0, 0, 7, GPC.comm))\n"
        "print(pyMPI_Lock_file(0, 0, 'a', GPC.comm, local_fs=1, msg_type='recv'))\n"
        "try:\n    pyMPI_Buffer_file(0, 3, 7, GPC.comm)\nexcept Exception as error:\n    print(error)\n"
        "try:\n    ExecShellCmd().get_output()\nexcept Exception as error:\n    print(error)\n"
    )
    said = run_program(tmp_path, "qa.py", TMPDIR="/var/tmp", LLSUB_CHECK="1")
    assert said.stdout.splitlines() == [
        "it said:",
        "in",
        "",
        "'bad\\n'",
        "./p0_p0_t7_buffer.pkl",
        "/var/tmp/p0_p0_ta_lock.pkl",
        "there is no rank 3: the run has ranks 0 to 0",
        "ExecShellCmd has no command yet: call run() first",
    ], said.stderr
