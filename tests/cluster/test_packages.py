"""The packages: installed, upgraded, removed and purged in clean root file systems, and the two kinds compared."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from clean_roots import SUITES, CleanRoot, newer, rpm_inside

from localcluster import packaged, process, progress
from localcluster.errors import CommandFailed

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("packages")]

ONE = "dpkg -i /mnt/slurm-share_*.deb"
PLUGIN = "dpkg -i /mnt/slurm-share-spank_*.deb"
INSTALL = "dpkg -i /mnt/slurm-share_*.deb /mnt/slurm-share-spank_*.deb /mnt/slurm-share-tui_*.deb"
COMMANDS = ("llfree", "llkill", "llload", "llload-tui", "llmapreduce", "llstat", "llsub", "slurm-share")
SPELLINGS = ("LLMapReduce", "LLfree", "LLkill", "LLload", "LLstat", "LLsub")
CONFIGURATION = (
    "/etc/slurm-share/config.toml",
    "/etc/logrotate.d/slurm-share",
    "/etc/enroot/mounts.d/50-slurm-share.fstab",
)
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
"""Debian's own package that is installed here, put together from its files and scripts and installed once more."""
RECORDS = re.compile(
    r".(/var/lib/dpkg(/.*)?|/var/log/(dpkg\.log|alternatives\.log|lastlog|faillog)|/var/cache/(man|ldconfig)(/.*)?"
    r"|/etc/(passwd|group|shadow|gshadow|subuid|subgid)-|/etc/\.pwd\.lock)"
)
"""What dpkg, and the tools that add a user, keep for themselves."""
USER = {"~/etc/passwd", "~/etc/group", "~/etc/shadow", "~/etc/gshadow"}


@pytest.fixture(scope="module")
def packages(can_make_clusters: None) -> Path:
    """The folder with the packages of this checkout."""
    return packaged.built(progress.to_stderr)


@pytest.fixture(params=list(SUITES))
def clean(request: pytest.FixtureRequest, can_make_clusters: None, tmp_path: Path) -> CleanRoot:
    """A clean root of each Debian."""
    return CleanRoot(request.param, tmp_path)


@pytest.fixture
def trixie(can_make_clusters: None, tmp_path: Path) -> CleanRoot:
    """A clean root of Debian 13."""
    layer = tmp_path / "layer"
    layer.mkdir()
    return CleanRoot("trixie", layer)


def left(clean: CleanRoot) -> set[str]:
    """What has changed, but for the records of dpkg and of the tools that add a user.

    And two empty folders. /opt: no package owns it in Debian, so that dpkg takes it along with the last one that has
    something in it. /etc/slurm-share: ours, and the roots have it for clusters without packages.
    """
    return {change for change in clean.changes() if not RECORDS.fullmatch(change)} - {"-/opt", "-/etc/slurm-share"}


def helps(clean: CleanRoot) -> set[str]:
    """The commands that answer --help in this root."""
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
    assert clean.run("readlink", "-e", "/usr/lib/slurm-share/share_gpu.so").strip() == (
        f"/usr/lib/slurm-share/{clean.root.release}/share_gpu.so"
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


def test_an_upgrade_keeps_the_settings_and_leaves_nothing_of_the_old_release(
    trixie: CleanRoot, packages: Path, tmp_path: Path
) -> None:
    """A changed config.toml stays, without a question; the new release's byte-code is that of its files."""
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
    assert differ == set()
    assert (trixie.upper / "etc/slurm-share/config.toml").read_text() == 'mode = "on"\n'
    version = "import importlib.metadata; print(importlib.metadata.version('slurm-share'))"
    assert trixie.run("/opt/slurm-share/bin/python", "-I", "-c", version) == "99.1\n"
    stale = "import slurm_share.names as n, importlib.util as u, pathlib as p; print(p.Path(n.__cached__).exists())"
    assert trixie.run("/opt/slurm-share/bin/python", "-IB", "-c", stale) == "True\n"


def test_a_removal_is_refused_while_slurm_conf_names_the_hooks(trixie: CleanRoot, packages: Path) -> None:
    """Without them slurmd would drain the node; a pattern that leads to ours counts as well. The plugin's package has
    the controller's script: it stays while that is run."""
    trixie.shell(f"{ONE}; {PLUGIN}", packages)
    trixie.shell("mkdir -p /etc/slurm/prolog.d; ln -s /opt/slurm-share/bin/slurm-share-prolog /etc/slurm/prolog.d/zz")
    for line in ("Epilog=/opt/slurm-share/bin/slurm-share-epilog", "Prolog=/etc/slurm/prolog.d/*"):
        (trixie.upper / "etc/slurm/slurm.conf").write_text(f"ClusterName=x\n{line}\n")
        with pytest.raises(CommandFailed, match=r"still names our hooks .*install --undo"):
            trixie.shell("dpkg -r slurm-share")
        assert trixie.run("slurm-share", "--help").startswith("usage: ")
    lua = trixie.upper / "etc/slurm/job_submit.lua"
    lua.write_text('dofile("/usr/lib/slurm-share/job_submit.lua")\n')
    with pytest.raises(CommandFailed, match=r"job_submit.lua still runs the script of this package.*install --undo"):
        trixie.shell("dpkg -r slurm-share-spank")
    assert trixie.run("readlink", "-e", "/usr/lib/slurm-share/job_submit.lua")
    lua.unlink()
    trixie.shell("dpkg -r slurm-share-spank; SLURM_SHARE_REMOVE_ANYWAY=1 dpkg -r slurm-share")
    assert not (trixie.upper / "opt/slurm-share").exists()
    assert not (trixie.upper / "usr/lib/slurm-share").exists()


def test_another_slurm_gets_an_object_of_its_own(trixie: CleanRoot, packages: Path) -> None:
    """Where the package has none for the release, it is built against the headers that are here; and whenever Debian's
    package of slurmd or slurmctld comes anew, dpkg's trigger has the choice made again."""
    trixie.shell(PLUGIN, packages)
    trixie.shell("rm -r /usr/lib/slurm-share/24.11; slurm-share-plugin")
    link = "/usr/lib/slurm-share/share_gpu.so"
    assert trixie.run("readlink", link) == "built/24.11/share_gpu.so\n"
    assert trixie.run("readlink", "-e", link) == "/usr/lib/slurm-share/built/24.11/share_gpu.so\n"
    for package in ("slurmd", "slurmctld"):
        said = trixie.shell(f"rm {link}; {AGAIN}", words=(package,))
        assert "Processing triggers for slurm-share-spank" in said
        assert trixie.run("readlink", link) == "built/24.11/share_gpu.so\n"
    trixie.shell("dpkg -P slurm-share-spank")
    assert not (trixie.upper / "usr/lib/slurm-share").exists()


def test_an_environment_of_pip_is_not_overwritten(trixie: CleanRoot, packages: Path) -> None:
    """/opt/slurm-share made by hand is refused with the way out; nothing of ours is then mixed into it."""
    trixie.shell("mkdir -p /opt/slurm-share/bin; echo home = /usr/bin >/opt/slurm-share/pyvenv.cfg")
    with pytest.raises(CommandFailed, match=r"is an environment that pip made.*mv /opt/slurm-share"):
        trixie.shell("dpkg -i /mnt/slurm-share_*.deb", packages)
    assert sorted(path.name for path in (trixie.upper / "opt/slurm-share").iterdir()) == ["bin", "pyvenv.cfg"]


def test_every_command_has_a_page_and_completion_in_three_shells(packages: Path) -> None:
    """Under each of its names; the hooks and the chooser of the plugin have a page."""
    files = {
        name
        for kind in ("slurm-share_", "slurm-share-spank_", "slurm-share-tui_")
        for name in deb_files(packages, kind)
    }
    pages = {Path(file).name.rpartition(".")[0] for file in files if file.startswith("/usr/share/man/")}
    assert pages == {*COMMANDS, *SPELLINGS, "slurm-share-prolog", "slurm-share-epilog", "slurm-share-plugin"}
    for folder, form in (
        ("/usr/share/bash-completion/completions/", "{}"),
        ("/usr/share/zsh/vendor-completions/", "_{}"),
        ("/usr/share/fish/vendor_completions.d/", "{}.fish"),
    ):
        there = {file.removeprefix(folder) for file in files if file.startswith(folder)}
        assert there == {form.format(name) for name in (*COMMANDS, *SPELLINGS)}


def test_rpm_and_deb_bring_the_same_files_and_do_the_same(packages: Path) -> None:
    """File by file; and each step of dpkg's scripts is in one of rpm's."""
    for name in ("slurm-share", "slurm-share-spank", "slurm-share-tui"):
        [rpm] = packages.glob(f"{name}-[0-9]*.rpm")
        listed = process.run(
            ["rpm", "-qp", "--qf", "[%{FILEMODES:perms} %{FILENAMES}\n]", str(rpm)]
        ).stdout.splitlines()
        files = {line.split(" ", 1)[1] for line in listed if not line.startswith("d")}
        assert {file.replace("/site-functions/", "/vendor-completions/") for file in files} == set(
            deb_files(packages, f"{name}_")
        )
    [base] = packages.glob("slurm-share-[0-9]*.rpm")
    [spank] = packages.glob("slurm-share-spank-*.rpm")
    scripts = process.run(["rpm", "-qp", "--scripts", "--filetriggers", str(base)]).stdout
    for step in (
        "pyvenv.cfg",
        "slurm-share.unpacking",
        "configure install",
        "configure check",
        "configure remove",
        "configure python",
        "configure link",
    ):
        assert step in scripts
    scripts = process.run(["rpm", "-qp", "--scripts", "--filetriggers", str(spank)]).stdout
    assert re.search(r"transfiletriggerin.* /usr/bin/srun, /usr/sbin/slurmctld, /usr/sbin/slurmd", scripts)
    assert scripts.count("slurm-share-plugin") == 4
    assert "slurm-share-plugin --check || exit 1" in scripts
    settings = process.run(["rpm", "-qp", "--configfiles", str(base)]).stdout.split()
    assert sorted(settings) == sorted(CONFIGURATION)


def test_rpm_installs_and_erases(trixie: CleanRoot, packages: Path) -> None:
    """With rpm's own --root; the root's Debian knows nothing of it, hence --nodeps."""
    names = [file.name for file in sorted(packages.glob("*.rpm"))]
    said = rpm_inside(trixie, packages, "--nodeps", "-i", *names)
    assert "in place for Slurm 24.11" in said
    assert helps(trixie) == set(COMMANDS)
    rpm_inside(trixie, packages, "--nodeps", "-e", "slurm-share-tui", "slurm-share-spank", "slurm-share")
    # rpm erases settings that nobody changed, and leaves the account; folders of the system stay
    expected = re.compile(
        r".(/var/lib/rpm(/.*)?|/usr/lib/(sysusers\.d|tmpfiles\.d|systemd(/system)?)|/etc/logrotate\.d)"
    )
    assert {change for change in left(trixie) if not expected.fullmatch(change)} <= USER


def dead_links(folder: Path) -> list[str]:
    """Links of the installed documents that lead to no file."""
    return [
        f"{text.name}: {link}"
        for text in sorted(folder.rglob("*.md"))
        for link in re.findall(r"\]\(([^)#\s]+)", text.read_text())
        if "://" not in link and not (text.parent / link).is_file()
    ]


def deb_files(packages: Path, prefix: str) -> list[str]:
    """The files and links of the .deb that begins so."""
    [package] = packages.glob(f"{prefix}*.deb")
    said = process.run(["/bin/sh", "-c", 'dpkg-deb --fsys-tarfile "$1" | tar -t', "sh", str(package)]).stdout
    # tar writes a backslash as two; the unit's name has one
    return [line.removeprefix(".").replace("\\\\", "\\") for line in said.splitlines() if not line.endswith("/")]
