"""The packages: installed, upgraded, removed and purged in clean roots; .deb and .rpm compared."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from pathlib import Path

import pytest
from clean_roots import SUITES, CleanRoot, newer, newer_rpms, rpm_inside
from documents import DOCUMENTS

from localcluster import packaged, paths, process
from localcluster.errors import CommandFailed
from slurm_share.share import lua_settings

pytestmark = [pytest.mark.cluster, pytest.mark.weekly, pytest.mark.xdist_group("packages")]

PLUGIN = "dpkg -i /mnt/slurm-share-spank_*.deb"
INSTALL = "dpkg -i /mnt/slurm-share_*.deb /mnt/slurm-share-spank_*.deb /mnt/slurm-share-tui_*.deb"
PACKAGES = ("slurm-share", "slurm-share-spank", "slurm-share-tui")
COMMANDS = ("llfree", "llkill", "llload", "llload-tui", "llmapreduce", "llstat", "llsub", "slurm-share")
SPELLINGS = ("LLMapReduce", "LLfree", "LLkill", "LLload", "LLstat", "LLsub")
CONFIGURATION = ("/etc/logrotate.d/slurm-share", "/etc/enroot/mounts.d/50-slurm-share.fstab")
AGAIN = """\
tree=/root/again
mkdir -p $tree/DEBIAN
dpkg-query -s $1 | sed '/^Status:/d; /^Conffiles:/,/^[^ ]/{/^Conffiles:/d; /^ /d}' >$tree/DEBIAN/control
for script in preinst postinst prerm postrm; do
    [ ! -e /var/lib/dpkg/info/$1.$script ] || cp /var/lib/dpkg/info/$1.$script $tree/DEBIAN/$script
done
while read -r file; do
    if [ -d "$file" ] && [ ! -L "$file" ]; then mkdir -p "$tree$file"; else cp -a "$file" "$tree$file"; fi
done </var/lib/dpkg/info/$1.list
dpkg-deb --root-owner-group -Zgzip -z1 -b $tree /root/again.deb >/dev/null
rm -r $tree
dpkg -i /root/again.deb 2>&1
rm /root/again.deb
"""
"""Rebuilds Debian's installed package from its files and scripts and installs it again."""
RECORDS = re.compile(
    r".(/var/lib/dpkg(/.*)?|/var/log/(dpkg\.log|alternatives\.log|lastlog|faillog)|/var/cache/(man|ldconfig)(/.*)?"
    r"|/etc/(passwd|group|shadow|gshadow|subuid|subgid)-|/etc/\.pwd\.lock)"
)
"""Files of dpkg and of the tools that add a user."""
USER = {"~/etc/passwd", "~/etc/group", "~/etc/shadow", "~/etc/gshadow"}


@pytest.fixture(scope="module")
def packages(can_make_clusters: None) -> Path:
    """Return the folder with the packages of this checkout."""
    return packaged.built()


@pytest.fixture(params=list(SUITES))
def clean(request: pytest.FixtureRequest, can_make_clusters: None, tmp_path: Path) -> CleanRoot:
    return CleanRoot(request.param, tmp_path)


@pytest.fixture
def trixie(can_make_clusters: None, tmp_path: Path) -> CleanRoot:
    layer = tmp_path / "layer"
    layer.mkdir()
    return CleanRoot("trixie", layer)


@pytest.fixture(scope="module")
def beneath(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> CleanRoot:
    """Return Debian 13 with all packages installed, shared by tests that do not test the installation."""
    clean = CleanRoot("trixie", tmp_path_factory.mktemp("installed"))
    clean.shell(INSTALL, packages)
    return clean


@pytest.fixture
def installed(beneath: CleanRoot, tmp_path: Path) -> CleanRoot:
    """Return the same root with a layer for this test's changes."""
    layer = tmp_path / "layer"
    layer.mkdir()
    return CleanRoot("trixie", layer, over=beneath)


def left(clean: CleanRoot) -> set[str]:
    """Return the changes, without dpkg's records and those of the tools that add a user. Two empty folders may stay:
    dpkg removes /opt with the last package in it, and the roots have /etc/slurm-share for clusters without packages."""
    return {change for change in clean.changes() if not RECORDS.fullmatch(change)} - {"-/opt", "-/etc/slurm-share"}


def helps(clean: CleanRoot) -> set[str]:
    """Return the commands that answer --help in this root."""
    said = clean.shell(f"for name in {' '.join(COMMANDS)}; do COLUMNS=80 $name --help | head -n 1; done")
    return {line.split()[1] for line in said.splitlines() if line.startswith("usage: ")}


def test_installed_used_removed_and_purged(clean: CleanRoot, packages: Path) -> None:
    """Every command runs; a removal leaves the settings and the user; after a purge every file is as before."""
    clean.shell(INSTALL, packages)
    assert helps(clean) == set(COMMANDS)
    assert "mode" in clean.run("slurm-share", "config", "print")
    said = clean.run("/bin/bash", "-c", "SLURM_JOB_ID=7 /opt/slurm-share/bin/slurm-share-prolog; echo code $?")
    assert said == "code 0\n"
    assert "SIMULATED" in clean.run("llload", "-g", "--demo").upper()
    link = clean.shell("readlink -e /usr/lib/slurm-share/share_gpu.so || slurm-share-plugin 2>&1 || true").strip()
    assert link == f"/usr/lib/slurm-share/{clean.root.release}/share_gpu.so" or (
        clean.root.release == "22.05"
        and link == "slurm-share-plugin: this is Slurm 22.05, and slurm-share needs 24.11 or newer: no plugin is linked"
    )
    hooks = clean.upper / "opt/slurm-share/lib/python3/site-packages/slurm_share_hooks"
    tag = f"cpython-{clean.root.python_version.replace('.', '')}"
    assert [path.name for path in hooks.glob("__pycache__/prolog.*")] == [f"prolog.{tag}.pyc"]
    assert "slurm-share" in clean.run("getent", "passwd", "slurm-share")
    assert dead_links(clean.upper / "usr/share/doc/slurm-share") == []
    triggers = set(clean.run("cat", "/var/lib/dpkg/info/slurm-share-spank.triggers").split())
    for package in ("slurmd", "slurmctld", "slurm-client"):
        assert triggers & set(clean.run("cat", f"/var/lib/dpkg/info/{package}.list").split()), package

    clean.shell("dpkg -r slurm-share-tui slurm-share-spank slurm-share")
    settings = {f"+{file}" for file in CONFIGURATION}
    folders = {f"+{parent}" for file in CONFIGURATION for parent in Path(file).parents if len(parent.parts) > 1}
    assert settings <= left(clean) <= settings | folders | USER
    clean.shell(
        "mkdir -p /var/lib/slurm-share/archive; echo >/var/lib/slurm-share/archive/x; echo >/var/log/slurm-share.log"
    )
    clean.shell("dpkg -P slurm-share-tui slurm-share-spank slurm-share")
    assert left(clean) == set()


def test_every_program_says_its_version(installed: CleanRoot) -> None:
    script = """
    for file in $(cat /var/lib/dpkg/info/slurm-share*.list); do
        case $file in */bin/* | */sbin/*) [ "${file##*/}" = python ] || echo "${file##*/}: $($file --version)" ;; esac
    done
    """
    version = installed.run("dpkg-query", "-W", "-f", "${source:Upstream-Version}", "slurm-share")
    said = dict(line.split(": ", 1) for line in installed.shell(script).splitlines())
    assert said.keys() == {*COMMANDS, *SPELLINGS, "slurm-share-prolog", "slurm-share-epilog", "slurm-share-plugin"}
    wrong = {name: text for name, text in said.items() if text.lower() != f"{name} of slurm-share {version}".lower()}
    assert wrong == {}


def test_the_line_for_users_names_a_wheel_that_any_python_imports(installed: CleanRoot) -> None:
    """Without the libraries of the packages: messages between tasks need none of them."""
    words = installed.run("slurm-share", "pip-line").split()
    assert words[:4] == ["python3", "-m", "pip", "install"]
    wheel = words[4].strip("'").removesuffix("[spmd]")
    code = f"import sys; sys.path.insert(0, {wheel!r}); import slurm_share.spmd.wire as w; print(w.__file__)"
    assert installed.run("/usr/bin/python3", "-ISc", code).startswith(f"{wheel}/slurm_share/")


def test_an_upgrade_keeps_the_settings_and_leaves_nothing_of_the_old_release(
    trixie: CleanRoot, packages: Path, tmp_path: Path
) -> None:
    """A changed config.toml stays, unasked, and is written for job_submit.lua; byte-code is of the new files."""
    trixie.shell(INSTALL, packages)
    before = {path for path in trixie.changes() if not RECORDS.fullmatch(path)}
    trixie.shell("echo 'mode = \"on\"' >/etc/slurm-share/config.toml")
    new = newer(packages, tmp_path / "newer", "99.1")
    # Between the new files and the new release's own scripts: hooks run, by the Python that was chosen here
    trixie.shell(
        "cd /opt/slurm-share/bin; ln -sfn /usr/bin/python3.13 python; dpkg --unpack /mnt/*.deb;"
        "[ $(readlink python) = /usr/bin/python3.13 ]; [ ! -e /run/slurm-share.unpacking ];"
        "SLURM_JOB_ID=7 ./slurm-share-prolog;"
        "dpkg --configure --pending </dev/null",
        new,
    )
    after = {path for path in trixie.changes() if not RECORDS.fullmatch(path)}
    differ = {path for path in before ^ after if "slurm_share-" not in path}
    assert differ == {"+/etc/slurm-share/config.toml", "+/etc/slurm-share/job_submit_settings.lua"}
    assert lua_settings.problem(trixie.upper / "etc/slurm-share/config.toml") == ""
    assert (trixie.upper / "etc/slurm-share/config.toml").read_text() == 'mode = "on"\n'
    version = "import importlib.metadata; print(importlib.metadata.version('slurm-share'))"
    assert trixie.run("/opt/slurm-share/bin/python", "-I", "-c", version) == "99.1\n"
    stale = (
        "import slurm_share.core.names as n, importlib.util as u, pathlib as p; print(p.Path(n.__cached__).exists())"
    )
    assert trixie.run("/opt/slurm-share/bin/python", "-IB", "-c", stale) == "True\n"


SETTINGS = """\
settings() { (cd /etc/slurm-share && for file in $(ls -A); do echo "$file: $(cat $file | base64 -w0)"; done) }
is_kept() { [ "$(settings)" = "$before" ] || { echo "after $*: $(settings)"; exit 1; }; }
"""


@pytest.mark.parametrize("mount", ["", "shared", "shared,ro"])
def test_no_package_changes_or_removes_the_sites_settings(trixie: CleanRoot, packages: Path, mount: str) -> None:
    """Also where the folder is mounted or read-only."""
    script = """
    mount --bind /dev/null $(echo /usr/lib/python3.*/compileall.py)  # byte-code, which others test, takes long
    [ -z "$1" ] || mount -t tmpfs shared /etc/slurm-share
    printf 'mode = "on"\r\n\\303' >/etc/slurm-share/config.toml
    echo secret >/etc/slurm-share/agent.token
    [ "$1" != shared,ro ] || mount -o remount,ro /etc/slurm-share
    before=$(settings)
    for what in installation upgrade; do
        dpkg -i /mnt/slurm-share_*.deb </dev/null
        is_kept $what
    done
    dpkg -r slurm-share
    is_kept removal
    dpkg -P slurm-share
    is_kept purge
    """
    trixie.shell(SETTINGS + script, packages, words=(mount,))


def test_the_settings_go_where_somebody_says_so(installed: CleanRoot) -> None:
    installed.shell("echo >/etc/slurm-share/config.toml; dpkg -r slurm-share-tui; dpkg -r slurm-share")
    assert installed.shell(
        "SLURM_SHARE_PURGE_SETTINGS=1 dpkg -P slurm-share >/dev/null; ls -d /etc/slurm* || true"
    ) == ("/etc/slurm\n")


def test_a_removal_is_refused_while_slurm_conf_names_the_hooks(installed: CleanRoot) -> None:
    """By name or pattern: slurmd would drain the node. The same for job_submit.lua and the plugin's package."""
    installed.shell(
        "mkdir -p /etc/slurm/prolog.d; ln -s /opt/slurm-share/bin/slurm-share-prolog /etc/slurm/prolog.d/zz"
    )
    for line in ("Epilog=/opt/slurm-share/bin/slurm-share-epilog", "Prolog=/etc/slurm/prolog.d/*"):
        (installed.upper / "etc/slurm/slurm.conf").write_text(f"ClusterName=x\n{line}\n")
        with pytest.raises(CommandFailed, match=r"still names our hooks .*install --undo"):
            installed.shell("dpkg -r slurm-share-tui slurm-share")
        assert installed.run("slurm-share", "--help").startswith("usage: ")
    lua = installed.upper / "etc/slurm/job_submit.lua"
    lua.write_text('dofile("/usr/lib/slurm-share/job_submit.lua")\n')
    with pytest.raises(CommandFailed, match=r"local found, share = pcall.*which works without the package"):
        installed.shell("dpkg -r slurm-share-spank")
    assert installed.run("readlink", "-e", "/usr/lib/slurm-share/job_submit.lua")
    lua.unlink()
    installed.shell("dpkg -r slurm-share-tui slurm-share-spank; SLURM_SHARE_REMOVE_ANYWAY=1 dpkg -r slurm-share")
    assert installed.shell("ls -d /opt/slurm-share* /usr/lib/slurm-share* || true") == ""


def test_another_slurm_gets_an_object_of_its_own(trixie: CleanRoot, packages: Path) -> None:
    """It is built against the headers that are here, also when dpkg's trigger runs for a new Slurm."""
    trixie.shell(PLUGIN, packages)
    trixie.shell("rm -r /usr/lib/slurm-share/24.11; slurm-share-plugin")
    link = "/usr/lib/slurm-share/share_gpu.so"
    assert trixie.run("readlink", link) == "built/24.11/share_gpu.so\n"
    assert trixie.run("readlink", "-e", link) == "/usr/lib/slurm-share/built/24.11/share_gpu.so\n"
    for package in ("slurmd", "slurmctld"):
        assert "Processing triggers for slurm-share-spank" in trixie.shell(f"rm {link}; {AGAIN}", words=(package,))
        assert trixie.run("readlink", link) == "built/24.11/share_gpu.so\n"
    trixie.shell("dpkg -P slurm-share-spank")
    assert not (trixie.upper / "usr/lib/slurm-share").exists()


def test_a_login_image_gets_its_object(installed: CleanRoot) -> None:
    """There Slurm is srun alone, which reads slurm.conf before it tells its release, and there is none yet."""
    link = "/usr/lib/slurm-share/share_gpu.so"
    said = installed.shell(
        f"rm /usr/sbin/slurmd* /usr/sbin/slurmctld* {link}; ! srun -V 2>/dev/null; slurm-share-plugin 2>&1"
    )
    assert said == "slurm-share-plugin: in place for Slurm 24.11\n"
    assert installed.run("readlink", link) == "24.11/share_gpu.so\n"


def test_an_environment_of_pip_is_not_overwritten(trixie: CleanRoot, packages: Path) -> None:
    """/opt/slurm-share made by hand is refused with the way out; nothing of ours is then mixed into it."""
    trixie.shell("mkdir -p /opt/slurm-share/bin; echo home = /usr/bin >/opt/slurm-share/pyvenv.cfg")
    with pytest.raises(CommandFailed, match=r"is an environment that pip made.*mv /opt/slurm-share"):
        trixie.shell("dpkg -i /mnt/slurm-share_*.deb", packages)
    assert sorted(path.name for path in (trixie.upper / "opt/slurm-share").iterdir()) == ["bin", "pyvenv.cfg"]


def test_every_command_has_a_page_and_completion_in_three_shells(packages: Path) -> None:
    files = {
        name
        for kind in ("slurm-share_", "slurm-share-spank_", "slurm-share-tui_")
        for name in deb_files(packages, kind)
    }
    pages = {Path(file).name.removesuffix(".gz")[:-2] for file in files if file.startswith("/usr/share/man/")}
    assert pages == {*COMMANDS, *SPELLINGS, "slurm-share-prolog", "slurm-share-epilog", "slurm-share-plugin"}
    for folder, form in (
        ("/usr/share/bash-completion/completions/", "{}"),
        ("/usr/share/zsh/vendor-completions/", "_{}"),
        ("/usr/share/fish/vendor_completions.d/", "{}.fish"),
    ):
        there = {file.removeprefix(folder) for file in files if file.startswith(folder)}
        assert there == {form.format(name) for name in (*COMMANDS, *SPELLINGS)}


def test_rpm_and_deb_bring_the_same_files_and_do_the_same(packages: Path) -> None:
    for name in PACKAGES:
        [rpm] = packages.glob(f"{name}-[0-9]*.rpm")
        listed = process.run(
            ["rpm", "-qp", "--qf", "[%{FILEMODES:perms} %{FILENAMES}\n]", str(rpm)]
        ).stdout.splitlines()
        files = {line.split(" ", 1)[1] for line in listed if not line.startswith("d")}
        of_rpm_alone = {file for file in files if file.startswith(f"/usr/share/licenses/{name}")}
        of_deb_alone = {f"/usr/share/doc/{name}/{file}" for file in ("copyright", "changelog.Debian.gz")}
        assert {file.replace("/site-functions/", "/vendor-completions/") for file in files - of_rpm_alone} == (
            set(deb_files(packages, f"{name}_")) - of_deb_alone
        )
        assert len(of_rpm_alone) == 1
    [base] = packages.glob("slurm-share-[0-9]*.rpm")
    [spank] = packages.glob("slurm-share-spank-*.rpm")
    scripts = process.run(["rpm", "-qp", "--scripts", "--filetriggers", str(base)]).stdout
    steps = ("pyvenv.cfg", "slurm-share.unpacking", "systemctl daemon-reload")
    for step in (*steps, *(f"configure {word}" for word in ("install", "check", "remove", "python", "tidy"))):
        assert step in scripts
    scripts = process.run(["rpm", "-qp", "--scripts", "--filetriggers", str(spank)]).stdout
    assert re.search(r"transfiletriggerin.* /usr/bin/srun, /usr/sbin/slurmctld, /usr/sbin/slurmd", scripts)
    assert scripts.count("slurm-share-plugin") == 4
    assert "slurm-share-plugin --check || exit 1" in scripts
    assert sorted(process.run(["rpm", "-qp", "--configfiles", str(base)]).stdout.split()) == sorted(CONFIGURATION)


def test_the_dependencies_are_those_of_the_objects(packages: Path, tmp_path: Path) -> None:
    """They ask for the glibc of the newest symbol in a compiled file, and for a Python that we have modules for."""
    for name in PACKAGES:
        [deb] = packages.glob(f"{name}_*.deb")
        [rpm] = packages.glob(f"{name}-[0-9]*.rpm")
        tree = tmp_path / name
        process.run(["dpkg-deb", "-x", str(deb), str(tree)])
        # the oldest for which libc6 declares anything at all
        needs = {(2, 2, 5)} if name != "slurm-share-tui" else set()
        for file in [file for file in tree.rglob("*") if file.is_file() and not file.is_symlink()]:
            if file.read_bytes()[:4] == b"\x7fELF":
                said = process.run(["objdump", "-T", str(file)]).stdout
                needs |= {version_of(found) for found in re.findall(r"GLIBC_([\d.]+)", said)}
        fields = process.run(["dpkg-deb", "-f", str(deb), "Depends"]).stdout
        declared = [version_of(found) for found in re.findall(r"libc6 \(>= ([\d.]+)\)", fields)]
        asked = process.run(["rpm", "-qp", "--requires", str(rpm)]).stdout
        assert {version_of(found) for found in re.findall(r"libc\.so\.6\(GLIBC_([\d.]+)\)", asked)} <= needs
        if needs:
            assert declared[0] >= max(needs)[:2]
            assert f"libc.so.6(GLIBC_{'.'.join(map(str, max(needs)))})" in asked
        assert "/opt/slurm-share" not in asked
        if name == "slurm-share":
            assert "python3 (>= 3.11) | python3.11 | python3.12" in fields
            assert "(python3.12 or python3.11 or " in asked


@pytest.mark.parametrize(
    ("there", "will_do"),
    [
        ({"python3": "3.11.2-1"}, True),
        ({"python3": "3.14.0-1"}, True),
        ({"python3": "3.10.6-1", "python3.11": "3.11.0~rc1-1"}, True),
        ({"python3": "3.15.1-1", "python3.13": "3.13.5-1"}, True),
        ({"python3": "3.10.6-1"}, False),
        ({"python3": "3.15.1-1"}, False),
        ({}, False),
    ],
)
def test_a_python_that_there_are_modules_for_will_do(
    packages: Path, tmp_path: Path, there: dict[str, str], will_do: bool
) -> None:
    """The host's own, or one beside it as on Ubuntu 22.04; dpkg checks the dependencies."""
    [deb] = packages.glob("slurm-share_*.deb")
    needs = process.run(["dpkg-deb", "-f", str(deb), "Depends"]).stdout.strip()
    architecture = process.run(["dpkg", "--print-architecture"]).stdout.strip()
    (tmp_path / "status").write_text(
        "".join(
            f"Package: {name}\nStatus: install ok installed\nVersion: {version}\nArchitecture: {architecture}\n\n"
            for name, version in {"libc6": "2.36-9", "passwd": "1:4.13", **there}.items()
        )
    )
    (tmp_path / "control").write_text("Source: x\nMaintainer: x\n\nPackage: x\nArchitecture: any\nDescription: x\n")
    argv = ["dpkg-checkbuilddeps", "-I", f"--admindir={tmp_path}", "-d", needs, str(tmp_path / "control")]
    done = process.run(argv, check=False)
    assert (done.returncode == 0) == will_do, done.stderr
    assert will_do or "python3 (>= 3.11)" in done.stderr or "python3 (<< 3.15)" in done.stderr


def test_what_documents_name_in_the_packages_is_there(packages: Path) -> None:
    """Below the folders that only our packages have; a folder counts where something is in it."""
    files = {file for name in PACKAGES for file in deb_files(packages, f"{name}_")}
    there = files | {str(folder) for file in files for folder in Path(file).parents}
    named = re.compile(r"/(?:opt|usr/lib|usr/src|usr/share|usr/share/doc)/slurm-share(?:-spank|-tui)?(?:/[\w./-]*\w)?")
    texts = (*DOCUMENTS, *(paths.CHECKOUT / "packaging/systemd").iterdir())
    found = {word for file in texts for word in named.findall(file.read_text())}
    made_here = {"/opt/slurm-share/bin/python", "/usr/lib/slurm-share/share_gpu.so"}
    assert "/usr/share/slurm-share/grafana" in found
    assert sorted(found - there - made_here) == []


def version_of(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def test_an_upgrade_of_the_rpm_leaves_nothing_of_the_old_release(
    trixie: CleanRoot, packages: Path, tmp_path: Path
) -> None:
    """A changed config.toml stays, a module that is no more goes with its byte-code, and the plugin has its object. An
    erased release leaves nothing but the settings, the account and folders of the system."""
    names = [file.name for file in sorted(packages.glob("*.rpm"))]
    assert "in place for Slurm 24.11" in rpm_inside(trixie, packages, "--nodeps", "-i", *names)
    settings = {"config.toml": b'mode = "on"\n', "agent.token": b"secret\n"}
    folder = trixie.upper / "etc/slurm-share"
    for name, text in settings.items():
        (folder / name).write_bytes(text)
    site = trixie.upper / "opt/slurm-share/lib/python3/site-packages"
    assert list(site.glob("prometheus_client/bridge/__pycache__/*.pyc"))
    new = newer_rpms(packages, tmp_path / "newer", "99.1", without="prometheus_client/bridge")
    said = rpm_inside(trixie, new, "--nodeps", "-U", *(file.name for file in sorted(new.glob("*.rpm"))))
    assert "rror" not in said
    assert sorted(path.name for path in site.glob("slurm_share-*")) == ["slurm_share-99.1.dist-info"]
    assert not (site / "prometheus_client/bridge").exists()
    assert {name: (folder / name).read_bytes() for name in settings} == settings
    assert trixie.run("readlink", "/usr/lib/slurm-share/share_gpu.so") == "24.11/share_gpu.so\n"
    assert helps(trixie) == set(COMMANDS)
    assert not (trixie.upper / "run/slurm-share.unpacking").exists()
    until_boot = ("run/slurm-share/user", "run/slurm-share-agent", "sys/fs/cgroup/memory/slurm-share/hooks")
    for name in until_boot:
        (trixie.upper / name).mkdir(parents=True)
    rpm_inside(trixie, new, "--nodeps", "-e", "slurm-share-tui", "slurm-share-spank", "slurm-share")
    assert list((trixie.upper / "run").iterdir()) + list((trixie.upper / "sys/fs/cgroup/memory").iterdir()) == []
    shutil.rmtree(trixie.upper / "sys/fs")
    assert {name: (folder / name).read_bytes() for name in settings} == settings
    for name in (*settings, lua_settings.NAME):
        (folder / name).unlink(missing_ok=True)
    expected = re.compile(
        r".(/var/lib/rpm(/.*)?|/usr/lib/(sysusers\.d|tmpfiles\.d|systemd(/system)?)|/etc/logrotate\.d|/usr/share/licenses)"
    )
    assert {change for change in left(trixie) if not expected.fullmatch(change)} <= USER


def test_the_same_sources_give_the_same_packages(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte by byte, from another folder, at another hour, under another umask and for another locale."""
    if os.environ.get("SLURM_SHARE_PACKAGES"):
        pytest.skip("NOT TESTED: the packages in SLURM_SHARE_PACKAGES may be of other sources")
    [spank] = packages.glob("slurm-share-spank-*.rpm")
    built_at = process.run(["rpm", "-qp", "--qf", "%{BUILDTIME}", str(spank)]).stdout
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    for name in ("README.md", "pyproject.toml"):
        shutil.copyfile(paths.CHECKOUT / name, copy / name)
    for name in ("slurm_share", "prolog", "tui", "plugins", "packaging"):
        shutil.copytree(paths.CHECKOUT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "plugins/left.c~").touch()
    (copy / ".venv").symlink_to(paths.CHECKOUT / ".venv")
    for name, value in (("SOURCE_DATE_EPOCH", built_at), ("LANG", "tr_TR.UTF-8"), ("TZ", "Asia/Tokyo")):
        monkeypatch.setenv(name, value)
    (tmp_path / "keys").mkdir(mode=0o700)
    monkeypatch.setenv("GNUPGHOME", str(tmp_path / "keys"))
    script = """\
umask 077
gpg --batch --quiet --passphrase '' --quick-generate-key us@example.org
cd "$0"
packaging/build.sh --out "$1" --sign us@example.org
gpg --batch --quiet --verify "$1/SHA256SUMS.asc" "$1/SHA256SUMS"
gpgconf --kill all"""
    process.run(["bash", "-ec", script, str(copy), str(tmp_path / "out")])
    (tmp_path / "out/SHA256SUMS.asc").unlink()
    assert sums(tmp_path / "out") == sums(packages)


def test_the_checksums_are_those_of_all_packages(packages: Path) -> None:
    process.run(["sh", "-c", 'cd "$0" && sha256sum --quiet --strict --check SHA256SUMS', str(packages)])
    named = {line.split()[1] for line in (packages / "SHA256SUMS").read_text().splitlines()}
    assert named == {file.name for kind in ("deb", "rpm") for file in packages.glob(f"*.{kind}")}


def sums(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


def test_bash_completes_options_sub_commands_and_files(installed: CleanRoot) -> None:
    typed = {
        "llsub ./tra": "./train.sh ",
        "llsub --tasks tra": "--tasks train.sh ",
        "llsub --resu": "--resume ",
        "slurm-share doc": "doctor ",
        "slurm-share report --drafts fol": "report --drafts folder/",
    }
    for line, became in typed.items():
        assert completed(installed, line) == f"{line.split()[0]} {became}", line


TAB = """\
mkdir -p /tmp/here/folder
cd /tmp/here
touch train.sh
cat >rc <<'RC'
PS1=
for name in llsub slurm-share; do . /usr/share/bash-completion/completions/$name; done
bind 'set bell-style none' 'set enable-bracketed-paste off'
shown() { printf 'LINE<%s>' "$READLINE_LINE" >/tmp/here/line && mv /tmp/here/line /tmp/here/became; }
bind -x '"\\C-xs": shown'
RC
exec python3 - "$1" <<'PY'
import os, pty, sys, time
pid, terminal = pty.fork()
if not pid:
    os.execv("/bin/bash", ["bash", "--rcfile", "rc", "-i"])
time.sleep(0.2)
os.write(terminal, sys.argv[1].encode() + b"\\t\\x18s")
for _ in range(200):
    if os.path.exists("became"):
        break
    time.sleep(0.05)
print(open("became").read())
PY
"""


def completed(clean: CleanRoot, line: str) -> str:
    said = clean.shell(TAB, words=(line,))
    found = re.search("LINE<(.*)>", said)
    assert found is not None, said
    return found[1]


def dead_links(folder: Path) -> list[str]:
    """Return links of the installed documents that lead to no file."""
    return [
        f"{text.name}: {link}"
        for text in sorted(folder.rglob("*.md"))
        for link in re.findall(r"\]\(([^)#\s]+)", text.read_text())
        if "://" not in link and not (text.parent / link).is_file()
    ]


def deb_files(packages: Path, prefix: str) -> list[str]:
    """Return the files and links of the .deb whose name begins so."""
    [package] = packages.glob(f"{prefix}*.deb")
    said = process.run(["/bin/sh", "-c", 'dpkg-deb --fsys-tarfile "$1" | tar -t', "sh", str(package)]).stdout
    # tar writes a backslash as two; the unit's name has one
    return [line.removeprefix(".").replace("\\\\", "\\") for line in said.splitlines() if not line.endswith("/")]
