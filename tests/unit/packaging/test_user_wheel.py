"""The wheel in a user's environment: with NumPy, and nothing else of what the hosts need."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from make import unpack

from slurm_share.cli import main, pip_line, start
from slurm_share.core import installed

CHECKOUT = Path(__file__).parents[3]
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
HOOKS = ("slurm-share-prolog", "slurm-share-epilog")
COMMANDS = {name: function for name, function in PROJECT["scripts"].items() if name not in HOOKS}
WITHOUT_NUMPY = ("names", "errors", "transport", "wire", "handshake", "rendezvous", "local", "rules.ends")
"""Modules of slurm_share.spmd that the launcher imports, and those that they import."""
RUN = "import sys; sys.path[:0] = sys.argv.pop(1).split(':')\n"
LOADED = (
    "print(*sorted({name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names) - {'__main__'}))\n"
)


OURS = "print(*sorted(name for name in sys.modules if name.startswith('slurm_share')))\n"
EVERY_NAME = """
import os
import numpy
has = lambda: [len(os.listdir(f"/proc/self/{what}")) for what in ("fd", "task")]
before = has()
import slurm_share.spmd
for name in slurm_share.spmd.__all__:
    getattr(slurm_share.spmd, name)
assert has() == before, has()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of this checkout, made as packaging/Makefile makes it."""
    tree = tmp_path_factory.mktemp("wheel")
    source = tree / "source"
    unwanted = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    for name in ("slurm_share", "prolog", "tui"):
        shutil.copytree(CHECKOUT / name, source / name, ignore=unwanted)
    for name in ("pyproject.toml", "README.md", "packaging/LICENSE"):
        (source / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(CHECKOUT / name, source / name)
    make = "from setuptools import build_meta; build_meta.build_wheel('..')"
    subprocess.run([sys.executable, "-c", make], cwd=source, check=True, capture_output=True, timeout=120)
    (made,) = tree.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    unpack.unpack([wheel], folder)
    return folder


@pytest.fixture(scope="module")
def numpy_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("numpy")
    spec = importlib.util.find_spec("numpy")
    assert spec is not None
    assert spec.origin is not None
    for part in Path(spec.origin).parents[1].glob("numpy*"):
        (folder / part.name).symlink_to(part)
    return folder


def python(code: str, *places: Path, words: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run `code` where nothing but the standard library and these folders can be imported."""
    argv = [sys.executable, "-ISB", "-c", RUN + code, ":".join(map(str, places)), *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)


def printed(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the words that the program printed; check that it succeeded and printed nothing else."""
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_the_wheel_needs_nothing_and_fits_every_python(wheel: Path, site: Path) -> None:
    assert wheel.name == f"slurm_share-{PROJECT['version']}-py3-none-any.whl"
    (distribution,) = importlib.metadata.distributions(path=[str(site)])
    needed = dict.fromkeys(distribution.requires or [], "")
    for line in needed:
        found = re.search(r"extra == ['\"](\w+)['\"]", line)
        needed[line] = found[1] if found else ""
    assert {"hosts", "spmd", "tui"} <= set(needed.values())
    assert "" not in needed.values()
    assert [line.partition(";")[0].strip() for line, extra in needed.items() if extra == "spmd"] == ["numpy>=1.26"]


def test_messages_and_arrays_need_numpy_alone(site: Path, numpy_alone: Path) -> None:
    """Every public name; of slurm_share nothing but this package is loaded with them, and no file or socket opened."""
    loaded, modules = python(EVERY_NAME + LOADED + OURS, site, numpy_alone).stdout.splitlines()
    assert loaded.split() == ["numpy", "slurm_share"]
    names = set(modules.split())
    assert {name for name in names if not name.startswith("slurm_share.spmd")} == {"slurm_share"}
    # what only ranks of a run need, and what only programs for pPython do
    assert names & {f"slurm_share.spmd.{name}" for name in ("wire", "sockets", "rendezvous", "ppython")} == set()


def test_the_package_alone_loads_nothing(site: Path) -> None:
    assert printed(python("import slurm_share.spmd\n" + LOADED, site)) == ["slurm_share"]


@pytest.mark.parametrize("name", WITHOUT_NUMPY)
def test_what_the_launcher_imports_is_there_without_numpy(site: Path, name: str) -> None:
    assert printed(python(f"import slurm_share.spmd.{name}\n" + LOADED, site)) == ["slurm_share"]


def test_a_task_shows_its_progress_there(site: Path, tmp_path: Path) -> None:
    code = f"""import os
os.environ["LLSUB_PROGRESS"] = {str(tmp_path / "progress")!r}
from slurm_share import progress
progress.tick(3)
"""
    assert printed(python(code + LOADED, site)) == ["slurm_share"]
    assert float((tmp_path / "progress").read_text()) == 3


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_names_the_extra_that_it_lacks(site: Path, name: str) -> None:
    module, _, function = COMMANDS[name].partition(":")
    code = f"sys.argv[0] = {name!r}\nfrom {module} import {function}\nsys.exit({function}())"
    done = python(code, site, words=("--help",))
    assert (done.returncode, done.stdout) == (start.EXIT_USAGE, "")
    assert re.fullmatch(
        rf"{name}: \w+ is not installed in \S+: commands need the extra `hosts` "
        rf"\(pip install 'slurm-share\[hosts\]'\)(; this host's own is /usr/bin/{name})?\n",
        done.stderr,
    )


def test_the_doctor_has_its_own_code_for_that(site: Path) -> None:
    code = "sys.argv[0] = 'slurm-share'\nfrom slurm_share.cli.start import slurm_share\nsys.exit(slurm_share())"
    done = python(code, site, words=("doctor",))
    assert done.returncode == start.EXIT_NOT_DONE
    assert "slurm-share doctor: msgspec is not installed" in done.stderr


def test_a_host_that_has_a_command_of_its_own_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An active environment hides the packages' command. The packages' own environment, which has it all, is torn."""
    (tmp_path / "llsub").touch(0o755)
    monkeypatch.setattr(start, "SYSTEM_COMMANDS", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["/home/her/bin/llsub"])
    error = ModuleNotFoundError("No module named 'rich'", name="rich.table")
    assert start._broken(error) == start.EXIT_USAGE
    assert capsys.readouterr().err.endswith(f"; this host's own is {tmp_path}/llsub\n")
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "llsub")])
    start._broken(error)
    assert "this host's own" not in capsys.readouterr().err
    monkeypatch.setattr(start, "__file__", f"{start.PACKAGED}slurm_share/cli/start.py")
    assert start._broken(error) == start.EXIT_FAILED
    assert "install slurm-share on this host anew" in capsys.readouterr().err


def test_the_names_of_the_hosts_half_are_those_of_its_extra() -> None:
    owners = importlib.metadata.packages_distributions()
    wanted = {re.split(r"[<>=]", line)[0].lower() for line in PROJECT["optional-dependencies"]["hosts"]}
    assert {owner.lower().replace("_", "-") for name in start.HOSTS for owner in owners[name]} == wanted
    assert len(start.HOSTS) == len(wanted)


def test_the_line_is_of_the_checkout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["pip-line"]) == 0
    assert capsys.readouterr().out == f"python3 -m pip install '{CHECKOUT}[spmd]'\n"
    assert main.main(["pip-line", "executor"]) == 0
    assert capsys.readouterr().out == f"python3 -m pip install '{CHECKOUT}[executor]'\n"


def test_the_line_is_of_the_wheel_where_the_packages_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pip_line, "PACKAGE", tmp_path / "site-packages/slurm_share")
    monkeypatch.setattr(installed, "WHEELS", str(tmp_path))
    monkeypatch.setattr(installed, "version", lambda: "1.2.3rc1")
    (tmp_path / "slurm_share-1.2.2-py3-none-any.whl").touch()
    assert main.main(["pip-line"]) == 1
    done = capsys.readouterr()
    assert done.out == ""
    assert f"slurm-share: {tmp_path}/slurm_share-1.2.3rc1-py3-none-any.whl is not there" in done.err
    (tmp_path / "slurm_share-1.2.3rc1-py3-none-any.whl").touch()
    assert main.main(["pip-line"]) == 0
    assert capsys.readouterr().out == (
        f"python3 -m pip install '{tmp_path}/slurm_share-1.2.3rc1-py3-none-any.whl[spmd]'\n"
    )


def test_hydra_and_snakemake_find_their_plugins_and_nobody_else_loads_them(site: Path) -> None:
    """Hydra looks into a namespace package, which others fill too, Snakemake for names of packages."""
    assert (site / "hydra_plugins/slurm_share_launcher/__init__.py").exists()
    assert not (site / "hydra_plugins/__init__.py").exists()
    # Before Python 3.14, Hydra could not execute it with annotations in texts, and no program with Hydra would start.
    text = (site / "hydra_plugins/slurm_share_launcher/__init__.py").read_text()
    assert "\nfrom __future__" not in text
    assert (site / "snakemake_executor_plugin_slurm_share/__init__.py").exists()
    assert printed(python("import slurm_share.integrations, slurm_share.executor\n" + LOADED, site)) == ["slurm_share"]
    loaded = python("import snakemake_executor_plugin_slurm_share", site)
    assert "No module named 'snakemake_interface_common'" in loaded.stderr
