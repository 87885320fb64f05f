"""`configure check` keeps a package from being removed while slurm.conf names its hooks."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from slurm_share.install.rules import hosts

PROGRAM = Path(__file__).resolve().parents[3] / "packaging/share/libexec/configure"
OURS = "/opt/slurm-share/bin/slurm-share-epilog"


def check(conf: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the check of that slurm.conf on a host without other files of Slurm's, unless SLURM_SHARE_ROOT is set."""
    nowhere = str(conf.parent / "nowhere")
    environ = {"PATH": os.environ["PATH"], "SLURM_CONF": str(conf), "SLURM_SHARE_ROOT": nowhere, **environ}
    return subprocess.run(["/bin/sh", PROGRAM, "check"], env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "text",
    [
        f"Epilog={OURS}\n",
        f"ClusterName=x   EPILOG = {OURS} # ours\n",
        f'Epilog="{OURS}"\n',
        f"ClusterName=x \\\nEpilog={OURS}\n",
        "Prolog=hooks.d/*\n",
        "Prolog=/bin/true\nProlog={folder}/hooks.d/*\n",
        "Include more.conf\n",
        "include {folder}/more.d/*.conf\n",
    ],
)
def test_a_hook_of_ours_is_found_however_it_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "hooks.d").mkdir()
    (tmp_path / "hooks.d/zz").symlink_to(OURS)
    (tmp_path / "more.d").mkdir()
    for more in ("more.conf", "more.d/a.conf"):
        (tmp_path / more).write_text(f"Epilog={OURS}\n")
    conf = tmp_path / "slurm.conf"
    conf.write_text(text.replace("{folder}", str(tmp_path)))
    done = check(conf)
    assert done.returncode == 1, done.stderr
    assert f"{conf} still names our hooks" in done.stderr
    assert "install --undo" in done.stderr
    assert check(conf, SLURM_SHARE_REMOVE_ANYWAY="1").returncode == 0


@pytest.mark.parametrize(
    "text", [f"#Epilog={OURS}\n", "Prolog=/bin/true\n", "", "include slurm.conf\n", "include no\n"]
)
def test_other_lines_hold_nothing_up(tmp_path: Path, text: str) -> None:
    (tmp_path / "slurm.conf").write_text(text)
    done = check(tmp_path / "slurm.conf")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "script",
    [
        f"#!/bin/sh\nset -e\n{OURS} || exit 0\n",
        f"#!/usr/bin/python3\nimport os\nos.execv('{OURS}', ['epilog'])\n",
        '#!/bin/bash\nfor one in {folder}/hooks.d/*; do "$one"; done\n',
        "#!/bin/sh\nrun-parts {folder}/hooks.d\n",
    ],
)
def test_a_script_of_the_site_that_calls_ours_is_found(tmp_path: Path, script: str) -> None:
    (tmp_path / "hooks.d").mkdir()
    (tmp_path / "hooks.d/zz").symlink_to(OURS)
    wrapper, conf = tmp_path / "epilog.sh", tmp_path / "slurm.conf"
    wrapper.write_text(script.replace("{folder}", str(tmp_path)))
    conf.write_text(f"Epilog={wrapper}\n")
    done = check(conf)
    assert done.returncode == 1, done.stderr
    assert f"{conf} still runs {wrapper}, which calls our hooks" in done.stderr
    assert "Take the call out of it" in done.stderr
    (tmp_path / "hooks.d/zz").unlink()
    wrapper.write_text(f"#!/bin/sh\nPATH=/usr/bin\n# {OURS}\n/bin/true\n")
    assert check(conf).returncode == 0


def test_our_wrapper_holds_nothing_up(tmp_path: Path) -> None:
    """It ends with 0 where the package is not. Without the line that says so it is a script like any other."""
    wrapper, conf = tmp_path / hosts.WRAPPERS["Epilog"], tmp_path / "slurm.conf"
    conf.write_text(f"Epilog={wrapper.name}\n")
    wrapper.write_text(f"{hosts.wrapper('Epilog')}\n")
    assert check(conf).returncode == 0
    wrapper.write_text(wrapper.read_text().replace(hosts.MARK, ""))
    assert "which calls our hooks" in check(conf).stderr


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("etc/systemd/system/slurmd.service.d/site.conf", "[Service]\nExecStart=/usr/sbin/slurmd -D -f {conf} -s\n"),
        ("usr/lib/systemd/system/slurmd.service", '[Service]\nEnvironment="SLURM_CONF={conf}"\n'),
        ("etc/default/slurmd", "SLURMD_OPTIONS='-f{conf}'\n"),
        ("etc/sysconfig/slurmctld", "# SLURM_CONF=/nowhere\nexport SLURM_CONF={conf}\n"),
        ("etc/systemd/system/slurmd.service", "[Service]\nEnvironmentFile=-/etc/cluster/settings\n"),
    ],
)
def test_a_slurm_conf_that_a_unit_names_is_looked_at(tmp_path: Path, file: str, text: str) -> None:
    conf = tmp_path / "sites/a/slurm.conf"
    for place in (conf, tmp_path / file, tmp_path / "etc/cluster/settings"):
        place.parent.mkdir(parents=True, exist_ok=True)
    conf.write_text(f"Epilog={OURS}\n")
    (tmp_path / "etc/cluster/settings").write_text(f"SLURM_CONF={conf}\n" if "EnvironmentFile" in text else "")
    (tmp_path / file).write_text(text.replace("{conf}", str(conf)))
    done = check(tmp_path / "none", SLURM_SHARE_ROOT=str(tmp_path))
    assert done.returncode == 1, done.stderr
    assert f"{conf} still names our hooks" in done.stderr
    (tmp_path / file).unlink()
    assert check(tmp_path / "none", SLURM_SHARE_ROOT=str(tmp_path)).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: a daemon of Slurm's is root's")
def test_the_slurm_conf_of_a_daemon_that_runs_is_looked_at(tmp_path: Path) -> None:
    """Started by hand with -f, or with SLURM_CONF; another program's words are nothing to us."""
    conf = tmp_path / "by-hand.conf"
    conf.write_text(f"Epilog={OURS}\n")
    process = tmp_path / "proc/42"
    process.mkdir(parents=True)
    for words, environ in ((f"slurmd\0-f\0{conf}\0", "A=b\0"), ("slurmd\0-D\0", f"A=b\0SLURM_CONF={conf}\0")):
        (process / "cmdline").write_text(words)
        (process / "environ").write_text(environ)
        for name, code in (("slurmd\n", 1), ("slurmd-wlm\n", 1), ("vim\n", 0)):
            (process / "comm").write_text(name)
            assert check(tmp_path / "none", SLURM_SHARE_ROOT=str(tmp_path)).returncode == code, (words, name)


def test_a_shared_job_on_this_host_holds_a_removal_up(tmp_path: Path) -> None:
    job = tmp_path / "run/slurm-share/jobs/42"
    job.mkdir(parents=True)
    done = check(tmp_path / "none", SLURM_SHARE_ROOT=str(tmp_path))
    assert done.returncode == 1
    assert "job 42 shares GPUs of this node" in done.stderr
    job.rmdir()
    assert check(tmp_path / "none", SLURM_SHARE_ROOT=str(tmp_path)).returncode == 0
