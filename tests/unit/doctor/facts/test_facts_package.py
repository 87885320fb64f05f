"""Facts that doctor collects in separate processes: our modules, and the plugin's object in Slurm's programs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_share.core.process import Finished
from slurm_share.doctor.facts import host as fact_host
from slurm_share.doctor.facts import package
from slurm_share.doctor.facts.records import UnknownFact


def test_every_module_of_this_installation_can_be_imported(monkeypatch):
    monkeypatch.setattr(package, "IMPORT_S", 600.0)
    assert package.read_broken_modules() == ()


@pytest.mark.parametrize(("without", "tried"), [((), 1), (("ptrace",), 1), (("modules",), 0)])
def test_modules_are_tried_unless_their_check_is_left_out(monkeypatch, tmp_path, without, tried):
    calls = []
    (tmp_path / "slurm.conf").write_text("ClusterName=x\n")
    environ = {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    monkeypatch.setattr(package, "read_broken_modules", lambda: calls.append("tried") or ())
    fact_host.read_facts(("login",), environ=environ, ask=lambda *words: "", without=without)
    assert len(calls) == tried


def test_modules_that_are_torn_or_end_python_are_named():
    said = "msgspec\n\tImportError: no _core\nslurm_share\nslurm_share.a\n\tSyntaxError: eof\nslurm_share.b\n"
    both = (("msgspec", "ImportError: no _core"), ("slurm_share.a", "SyntaxError: eof"))
    assert package.parse_modules(Finished(0, said, "")) == both
    assert package.parse_modules(Finished(-11, said, "")) == (*both, ("slurm_share.b", "ended by signal 11"))
    assert package.parse_modules(Finished(1, "", "x\nno memory\n")) == (("Python", "no memory"),)


@pytest.fixture
def slurm(tmp_path):
    """Return a folder with an srun that can load the plugin, and one with a slurmd that is no program."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("srun", "slurmd"):
        (folder / name).symlink_to("/bin/true")
    return folder


def build(folder: Path, text: str, *options: str) -> str:
    (folder / "x.c").write_text(text)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "x.so", folder / "x.c", *options], check=True)
    return str(folder / "x.so")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("int fine(void) { return 0; }", ""),
        ("int nowhere_to_be_found(void); int f(void) { return nowhere_to_be_found(); }", "undefined symbol: nowhere"),
        ("__attribute__((constructor)) void f(void) { __builtin_trap(); }", "it is ended by signal 4 with the object"),
    ],
    ids=["fine", "symbol", "crash"],
)
def test_an_object_is_put_into_each_program_that_loads_plugins(slurm, tmp_path, text, why):
    path = build(tmp_path, text)
    found = package.read_load_problems([path], ("compute",), [str(slurm)])
    assert [name for name, _ in found] == ([] if not why else ["srun", "slurmd"])
    assert all(its.startswith(why) for _, its in found)
    assert [name for name, _ in package.read_load_problems([path], ("login",), [str(slurm)])] == (
        ["srun"] if why else []
    )


def test_an_object_that_is_torn_or_not_there_is_named(slurm, tmp_path):
    torn = tmp_path / "torn.so"
    torn.write_bytes(b"\x7fELF")
    assert dict(package.read_load_problems([str(torn)], ("login",), [str(slurm)])) == {"srun": "file too short"}
    gone = package.read_load_problems([str(tmp_path / "gone.so")], ("login",), [str(slurm)])
    assert dict(gone) == {"srun": "cannot open shared object file"}


def test_an_object_that_needs_a_later_library_ends_the_program_and_is_named(slurm, tmp_path):
    """The loader does not ignore such an object, as it does a torn one: it ends the program with a line of its own."""
    path = Path(build(tmp_path, "int getpid(void); int f(void) { return getpid(); }"))
    path.write_bytes(re.sub(rb"GLIBC_2\.2\.5", b"GLIBC_2.9.9", path.read_bytes()))
    ((name, why),) = package.read_load_problems([str(path)], ("login",), [str(slurm)])
    assert (name, "version `GLIBC_2.9.9' not found" in why) == ("srun", True)


def test_a_program_that_also_fails_without_the_object_is_known_by_what_the_loader_says(slurm, tmp_path):
    """As slurmstepd, which slurmd alone can start."""
    (slurm / "srun").unlink()
    (slurm / "srun").symlink_to("/bin/false")
    fine = build(tmp_path, "int fine(void) { return 0; }")
    assert package.read_load_problems([fine], ("login",), [str(slurm)]) == ()
    torn = tmp_path / "torn.so"
    torn.write_bytes(b"\x7fELF")
    assert dict(package.read_load_problems([str(torn)], ("login",), [str(slurm)])) == {"srun": "file too short"}


def test_a_program_that_fails_with_the_object_for_an_unknown_reason_is_named(slurm, tmp_path):
    text = "#include <stdio.h>\n#include <unistd.h>\n__attribute__((constructor)) void f(void)"
    path = build(tmp_path, text + ' { fprintf(stderr, "refused by policy\\n"); _exit(3); }')
    found = dict(package.read_load_problems([path], ("login",), [str(slurm)]))
    assert found == {"srun": "it ends with 3 with the object: refused by policy"}


def test_an_object_that_needs_a_missing_library_is_named(slurm, tmp_path):
    (tmp_path / "gone").mkdir()
    library = Path(build(tmp_path / "gone", "int f(void) { return 0; }", "-Wl,-soname,libgone.so.1"))
    path = build(tmp_path, "int f(void); int g(void) { return f(); }", "-Wl,--no-as-needed", str(library))
    found = dict(package.read_load_problems([path], ("login",), [str(slurm)]))
    assert "libgone.so.1: cannot open shared object file" in found["srun"]


def test_of_two_objects_in_plugstack_conf_the_one_that_does_not_load_is_named(slurm, tmp_path):
    fine, torn = build(tmp_path, "int fine(void) { return 0; }"), tmp_path / "torn.so"
    torn.write_bytes(b"\x7fELF")
    found = package.read_load_problems([fine, str(torn)], ("login",), [str(slurm)])
    assert dict(found) == {f"srun ({torn})": "file too short"}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_an_object_that_only_root_can_read_is_named_for_the_programs_of_users(slurm, tmp_path):
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o055)
    path = Path(build(tmp_path, "int fine(void) { return 0; }"))
    path.chmod(0o600)
    found = package.read_load_problems([str(path)], ("compute",), [str(slurm)])
    assert found == (("srun", "as an ordinary user: cannot open shared object file"),)


def test_what_cannot_be_tried_is_not_seen(tmp_path):
    assert isinstance(package.read_load_problems(["/x.so"], ("login",), [str(tmp_path)]), UnknownFact)
    assert isinstance(package.read_load_problems(["/a b.so"], ("login",), ["/bin"]), UnknownFact)


def test_groups():
    assert (package.has_group("root"), package.has_group(""), package.has_group("no-such-group")) == (True, True, False)


CALL = "import sys; sys.argv = {argv}; from slurm_share.cli import start; sys.exit(start._run('{module}'))"


@pytest.mark.parametrize(("argv", "code", "name"), [
    (["/x/slurm-share", "doctor"], 3, "slurm-share doctor"),
    (["/x/slurm-share", "status"], 1, "slurm-share"),
    (["llsub", "doctor"], 1, "llsub"),
])  # fmt: skip
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def main(:\n", "SyntaxError"),
        ("import no_such_library\n", "No module named 'no_such_library'"),
        ("", "has no attribute 'main'"),
        ("def main():\n    import no_such_library\n", "No module named 'no_such_library'"),
        ("1 / 0\n", "ZeroDivisionError"),
    ],
    ids=["torn", "no-library", "empty", "later", "defect"],
)
def test_a_command_whose_modules_cannot_be_loaded_says_so_in_a_line(tmp_path, argv, code, name, text, said):
    (tmp_path / "torn_module.py").write_text(text)
    call = CALL.format(argv=argv, module="torn_module")
    done = subprocess.run(
        [sys.executable, "-c", call], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{name}: its Python modules cannot be loaded: ")
    assert said in line
    assert line.endswith("; install slurm-share on this host anew")


def test_a_host_without_the_dashboard_has_no_broken_module():
    """slurm-share-tui is a package of its own, for login nodes."""
    code = (
        "import sys; sys.modules['slurm_share_tui'] = None\n"
        "import importlib, pkgutil, slurm_share.cli as cli\n"
        "for one in pkgutil.iter_modules(cli.__path__): importlib.import_module(f'slurm_share.cli.{one.name}')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
