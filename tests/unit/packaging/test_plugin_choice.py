"""slurm-share-plugin chooses the object for the installed Slurm, builds one, or explains why it cannot."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from slurm_share.install.rules.lines import OLDEST
from slurm_share.install.rules.lua import IN_MODIFY, IN_SUBMIT, LOAD, survives
from slurm_share.share.rules.site import OWN_LUA

CHECKOUT = Path(__file__).resolve().parents[3]
PROGRAM = CHECKOUT / "packaging/share/libexec/slurm-share-plugin"
CONFS = CHECKOUT / "packaging/share/libexec/slurm-confs"
HEADERS = Path("/usr/include/slurm")


class Host:
    """A root folder with a Slurm whose programs print only their release, and the package's objects."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "usr/lib/slurm-share"
        self.home.mkdir(parents=True)
        (self.home / "slurm-confs").symlink_to(CONFS)

    def slurm(self, version: str, program: str = "usr/sbin/slurmd") -> None:
        self.program(program, f'[ "$*" = -V ] && echo "slurm-wlm {version}"')

    def program(self, name: str, does: str) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\n{does}\n")
        file.chmod(0o755)

    def brings(self, *releases: str) -> None:
        for release in releases:
            (self.home / release).mkdir()
            (self.home / release / "share_gpu.so").write_text(release)

    def can_build(self, headers: Path) -> None:
        """Put the headers of a release without an object in the package there, and the sources of the plugin."""
        headers_of_2505(headers)
        (self.root / "usr/src").mkdir(parents=True)
        (self.root / "usr/src/slurm-share-spank").symlink_to(CHECKOUT / "plugins")
        self.slurm("25.05.9")

    def choose(self, *words: str, path: str = os.environ["PATH"], **more: str) -> subprocess.CompletedProcess[str]:
        quick = {"CFLAGS": "-O0", "MAKEFLAGS": "-j4"}
        environ = {"PATH": path, "SLURM_SHARE_ROOT": str(self.root), "TMPDIR": str(self.root), **quick, **more}
        return subprocess.run(["/bin/sh", PROGRAM, *words], env=environ, capture_output=True, text=True, check=False)

    @property
    def link(self) -> str | None:
        link = self.home / "share_gpu.so"
        return str(link.readlink()) if link.is_symlink() else None


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_the_object_of_the_installed_release(host: Host) -> None:
    host.brings("24.11", "26.05")
    host.slurm("26.05.5")
    done = host.choose()
    assert (done.returncode, host.link) == (0, "26.05/share_gpu.so")
    assert "in place for Slurm 26.05" in done.stderr
    again = host.choose()
    assert (again.returncode, again.stderr) == (0, "")
    host.slurm("24.11.5")
    host.choose()
    assert host.link == "24.11/share_gpu.so"


def test_a_slurm_on_brights_shared_file_system_is_found(host: Host) -> None:
    host.brings("24.11", "26.05")
    host.slurm("24.11.5", "cm/shared/apps/slurm/current/sbin/slurmd")
    host.choose()
    assert host.link == "24.11/share_gpu.so"
    host.slurm("26.05.1", "sw/slurm/sbin/slurmd")
    said = host.choose(SLURM_SHARE_SLURM="/sw/slurm").stderr
    assert host.link == "26.05/share_gpu.so"
    assert "echo 'SLURM_SHARE_SLURM=\"/sw/slurm\"' >>/etc/default/slurm-share" in said
    host.choose()
    assert host.link == "24.11/share_gpu.so"
    (host.root / "etc/default").mkdir(parents=True)
    (host.root / "etc/default/slurm-share").write_text("SLURM_SHARE_SLURM=/sw/slurm\n")
    assert "/etc/default" not in host.choose().stderr
    assert host.link == "26.05/share_gpu.so"


def test_no_slurm_is_no_error(host: Host) -> None:
    host.brings("26.05")
    done = host.choose()
    assert (done.returncode, host.link) == (0, None)
    assert "no Slurm on this host yet" in done.stderr


def test_a_slurm_in_opt_counts(host: Host) -> None:
    host.brings("26.05")
    host.slurm("26.05.1", "opt/slurm/bin/srun")
    host.choose()
    assert host.link == "26.05/share_gpu.so"


def test_two_releases_on_one_host_are_named(host: Host) -> None:
    host.brings("24.11", "26.05")
    host.slurm("24.11.5")
    host.slurm("26.05.5", "usr/local/bin/srun")
    done = host.choose()
    assert host.link == "24.11/share_gpu.so"
    assert "/usr/sbin/slurmd is Slurm 24.11, but /usr/local/bin/srun is 26.05" in done.stderr


def test_a_program_that_reads_slurm_conf_first_is_given_one(host: Host) -> None:
    """srun does, and a login image has none while it is made; Slurm's own variable does not count."""
    host.brings("26.05")
    host.program(
        "usr/bin/srun",
        'grep -q ^ClusterName= "$SLURM_CONF" && echo slurm 26.05.5 && exit; echo fatal: no slurm.conf >&2; exit 1',
    )
    done = host.choose(SLURM_CONF="/nowhere/slurm.conf")
    assert (done.returncode, host.link) == (0, "26.05/share_gpu.so"), done.stderr
    assert [path.name for path in host.root.iterdir()] == ["usr"]


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("echo srun: fatal: no 25.11.2 >&2; exit 1", "-V ended with 1: srun: fatal: no 25.11.2"),
        ("exec sleep 60", "-V gave no answer in 1 s"),
    ],
)
def test_a_slurm_that_does_not_tell_its_release_is_no_missing_slurm(host: Host, does: str, why: str) -> None:
    """Why, in its own words; code 1; the link stays; and nobody waits for a program that hangs."""
    host.brings("26.05")
    host.slurm("26.05.5")
    host.choose()
    (host.root / "usr/sbin/slurmd").unlink()
    host.program("usr/bin/srun", does)
    done = host.choose(SLURM_SHARE_PATIENCE_S="1")
    assert (done.returncode, host.link) == (1, "26.05/share_gpu.so")
    assert f"/usr/bin/srun does not say its release ({why})" in done.stderr
    assert "no Slurm" not in done.stderr
    assert why in host.choose("--show", SLURM_SHARE_PATIENCE_S="1").stderr


def test_the_package_of_a_program_that_cannot_run_tells_its_release(host: Host, tmp_path: Path) -> None:
    host.brings("24.11")
    host.program("usr/bin/srun", "exit 1")
    host.program(
        "tools/dpkg-query",
        'case $1$2$4 in -S"$WANTED") echo "slurm-client: $2" ;; -W*slurm-client) echo 24.11.5 ;; *) exit 1 ;; esac',
    )
    path = f"{host.root}/tools:{os.environ['PATH']}"
    done = host.choose(path=path, WANTED=str(host.root / "usr/bin/srun"))
    assert (done.returncode, host.link) == (0, "24.11/share_gpu.so"), done.stderr


def test_what_is_missing_is_named_and_the_stale_link_goes(host: Host, tmp_path: Path) -> None:
    """Without object, headers and compiler: what to install; code 1. Every srun would complain about the old object."""
    host.brings("26.05")
    host.slurm("26.05.5")
    host.choose()
    host.slurm("27.05.1")
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("sed", "head", "readlink", "timeout", "mktemp", "rm", "cat", "tail"):
        (tools / tool).symlink_to(f"/usr/bin/{tool}")
    done = host.choose(path=str(tools))
    assert done.returncode == 1
    for missing in ("no object for Slurm 27.05", "headers of release 27.05", "a C compiler", "make"):
        assert missing in done.stderr
    assert host.link is None
    assert "pointed to 26.05/share_gpu.so, and this host has Slurm 27.05" in done.stderr


def test_what_was_built_here_stays_where_it_cannot_be_built_anew(host: Host) -> None:
    host.slurm("27.05.1")
    (host.home / "built/27.05").mkdir(parents=True)
    (host.home / "built/27.05/share_gpu.so").write_text("27.05")
    assert (host.choose().returncode, host.link) == (0, "built/27.05/share_gpu.so")
    done = host.choose("--again")
    assert (done.returncode, host.link) == (1, "built/27.05/share_gpu.so")
    assert "no object for Slurm 27.05" in done.stderr


def headers_of_2505(folder: Path) -> None:
    """Write this machine's headers as those of a release without an object in the package: with its number, and with
    the member that Debian 12's headers lack."""
    shutil.copytree(HEADERS, folder / "slurm", dirs_exist_ok=True)
    file = folder / "slurm/slurm_version.h"
    file.write_text(re.sub(r"(SLURM_VERSION_NUMBER) 0x\w+", r"\1 0x190500", file.read_text()))
    file = folder / "slurm/slurm.h"
    text = file.read_text()
    job = text[text.index("typedef struct job_info {") :].partition("}")[0]
    if "*extra;" not in job:
        file.write_text(text.replace(job, job.replace("{", "{\n\tchar *extra;", 1)))


def test_an_object_is_built_against_the_headers_that_are_here(host: Host) -> None:
    host.brings("1.01")
    host.can_build(host.root / "usr/include")
    done = host.choose()
    assert (done.returncode, host.link) == (0, "built/25.05/share_gpu.so"), done.stderr
    assert (host.home / "built/25.05/share_gpu.so").read_bytes().startswith(b"\x7fELF")
    assert "its object: built/25.05/share_gpu.so" in host.choose("--show").stdout
    host.choose("--remove")
    assert sorted(path.name for path in host.home.iterdir()) == ["1.01", "slurm-confs"]


def test_one_command_builds_it_against_headers_from_anywhere(host: Host, tmp_path: Path) -> None:
    host.brings("24.11", "26.05")
    host.can_build(tmp_path / "elsewhere")
    wrong = host.choose("--build", str(tmp_path))
    assert (wrong.returncode, host.link) == (2, None)
    assert "has no Slurm headers: name the folder above slurm/spank.h" in wrong.stderr
    done = host.choose("--build", str(tmp_path / "elsewhere"))
    assert (done.returncode, host.link) == (0, "built/25.05/share_gpu.so"), done.stderr
    host.slurm("26.05.1")
    assert (host.choose("--build").returncode, host.link) == (0, "26.05/share_gpu.so")


@pytest.mark.parametrize("version", ["22.05.8", "24.05.4", "9.11"])
def test_a_release_that_install_refuses_gets_no_plugin(host: Host, version: str) -> None:
    release = ".".join(version.split(".")[:2])
    host.brings("26.05", release)
    (host.home / "share_gpu.so").symlink_to("26.05/share_gpu.so")
    host.slurm(version)
    done = host.choose()
    assert (done.returncode, host.link) == (1, None)
    assert f"this is Slurm {release}, and slurm-share needs 24.11 or newer" in done.stderr


def test_the_oldest_release_is_that_of_install() -> None:
    assert f"oldest={'.'.join(map(str, OLDEST))} " in PROGRAM.read_text()


def test_a_wrong_word_is_a_mistake(host: Host) -> None:
    done = host.choose("--relaese")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: slurm-share-plugin")


def test_a_build_that_cannot_be_put_in_place_leaves_nothing_behind(host: Host) -> None:
    host.can_build(host.root / "usr/include")
    (host.home / "built").write_text("")
    assert (host.choose().returncode, host.link) == (1, None)
    assert [path.name for path in host.root.iterdir()] == ["usr"]


@pytest.mark.parametrize(
    ("file", "environ"),
    [
        ("etc/slurm/job_submit.lua", {}),
        ("etc/slurm-llnl/job_submit.lua", {}),
        ("srv/job_submit.lua", {"SLURM_CONF": "/srv/slurm.conf"}),
        ("sites/a/job_submit.lua", {}),
    ],
)
def test_no_removal_while_the_controllers_script_calls_ours(host: Host, file: str, environ: dict[str, str]) -> None:
    """Every sbatch would be refused otherwise. A comment does not count, and the removal can be forced."""
    unit = host.root / "etc/systemd/system/slurmctld.service.d/site.conf"
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\nExecStart=\nExecStart=/usr/sbin/slurmctld --systemd -f /sites/a/slurm.conf\n")
    lua = host.root / file
    lua.parent.mkdir(parents=True)
    lua.write_text('local share = dofile("/usr/lib/slurm-share/job_submit.lua")\n')
    done = host.choose("--check", **environ)
    assert done.returncode == 1
    assert f"{lua} still runs the script of this package" in done.stderr
    assert "install --undo" in done.stderr
    assert '1:local share = dofile("/usr/lib/slurm-share/job_submit.lua")\nor make them' in done.stderr
    assert host.choose("--check", **environ, SLURM_SHARE_REMOVE_ANYWAY="1").returncode == 0
    for safe in (LOAD, OWN_LUA, '-- dofile("/usr/lib/slurm-share/job_submit.lua")'):
        lua.write_text(f"{safe}\n")
        assert host.choose("--check", **environ).returncode == 0
    lua.unlink()
    assert host.choose("--check", **environ).returncode == 0


_PATH = "/usr/lib/slurm-share/job_submit.lua"
_USES = "local code = share.submit(job, partitions, uid)"


@pytest.mark.parametrize(
    ("lines", "is_safe"),
    [
        ((LOAD, *IN_SUBMIT, *IN_MODIFY), True),
        ((OWN_LUA,), True),
        (("-- " + _USES,), True),
        ((f'local share = dofile("{_PATH}")', _USES), False),
        ((f'found, share = pcall(dofile, "{_PATH}")', "return found and share.submit(job)"), False),
        ((LOAD, _USES), False),
        ((LOAD, *IN_SUBMIT, "return share.modify(job, old, partitions, uid)"), False),
        ((LOAD, "if found then return share.submit(job, partitions, uid) end"), True),
        ((LOAD, 'return share["submit"](job, partitions, uid) -- found'), False),
        ((LOAD, "sharing.of(job)", "ashare.of(job)"), True),
        ((f"local ok,ours=pcall( dofile , '{_PATH}')", "return ok and ours.submit(job)"), True),
        ((f"local ok,ours=pcall( dofile , '{_PATH}')", "local found = ours.submit(job)"), False),
    ],
)
def test_the_packages_script_and_install_agree_on_what_survives(
    host: Host, lines: tuple[str, ...], is_safe: bool
) -> None:
    """Ours is used only where it was found: else every job is refused once the package is gone."""
    lua = host.root / "etc/slurm/job_submit.lua"
    lua.parent.mkdir(parents=True)
    lua.write_text("\n".join(lines) + "\n")
    assert survives(lua.read_text()) is is_safe
    done = host.choose("--check")
    assert (done.returncode, done.stderr == "") == (0 if is_safe else 1, is_safe), done.stderr
    assert is_safe or f"\n{len(lines)}:{lines[-1].split(' --')[0]}" in done.stderr or f"\n1:{lines[0]}" in done.stderr


def test_an_upgrade_says_what_the_controller_needs(host: Host) -> None:
    assert "scontrol reconfigure" not in host.choose("--again").stderr
    lua = host.root / "etc/slurm/job_submit.lua"
    lua.parent.mkdir(parents=True)
    for text, expected in ((LOAD, 1), (OWN_LUA, 1), (f"-- {LOAD}", 0), ("return 0", 0)):
        lua.write_text(f"{text}\n")
        assert host.choose("--again").stderr.count(f"{lua} runs the script of this package") == expected
    lua.write_text(LOAD)
    assert "scontrol reconfigure" not in host.choose().stderr
