"""The hook's own mount of the users' part of the state folder, in a mount namespace, and the same in units and page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_share.share import user_folder

CHECKOUT = Path(__file__).resolve().parents[3]
FLAGS = {"nosuid", "nodev", "noexec"}
MOUNT = """\
import sys
from pathlib import Path
from slurm_share.core.paths import Paths
from slurm_share.share import user_folder
paths = Paths(Path(sys.argv[1]))
paths.user.mkdir(parents=True)
assert user_folder.lacks_mount(paths)
user_folder.mount(paths)
assert not user_folder.lacks_mount(paths)
print(*(line for line in open("/proc/self/mounts") if f" {paths.user} " in line), end="")
"""


OWN = f"""{MOUNT}
import os
def own():
    return [line.split()[3] for line in open("/proc/self/mounts") if f" {{paths.user_of(2001)}} " in line]
paths.mps.mkdir()
(paths.user_of(2002) / "5131194a-2a6279").mkdir(parents=True)  # of a job that runs during an upgrade
for uid in (2001, 2001, 2002):
    user_folder.mount_own(paths, uid)
[options] = own()
print(options)
held = open(paths.user_of(2001) / "held", "w")
os.unlink(held.name)
(paths.user_of(2001) / "jobs").mkdir()
assert [user_folder.release_own(paths, uid) for uid in (2001, 2002, 2003)] == [False, False, True]
assert len(own()) == 1  # it is held
user_folder.mount_own(paths, 2001)
assert len(own()) == 1
assert user_folder.read_own(paths).keys() == {{2001}}
held.close()
assert user_folder.release_own(paths, 2001)
assert own() == [] and not paths.user_of(2001).exists()
paths.user_of(2004).symlink_to("/tmp")
user_folder.mount_own(paths, 2004)
assert user_folder.release_own(paths, 2004)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root may mount")
def test_a_users_own_mount_hides_nothing_and_stays_only_while_it_is_held(tmp_path: Path) -> None:
    argv = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", sys.executable, "-c", OWN, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    options = done.stdout.splitlines()[1]
    assert {*FLAGS, "mode=711", "size=65536k", "nr_inodes=65536"} <= set(options.split(","))


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root may mount")
def test_nothing_in_the_mount_is_a_device_or_runs_and_it_has_limits(tmp_path: Path) -> None:
    argv = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", sys.executable, "-c", MOUNT, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    _, _, kind, options, *_ = line.split()
    assert kind == "tmpfs"
    assert {*FLAGS, "mode=711", "size=65536k", "nr_inodes=65536"} <= set(options.split(","))


def test_the_units_and_the_page_have_the_same_options() -> None:
    users = f"{user_folder.OPTIONS},nosuid,nodev,noexec"
    roots = users.replace("0711", "0755")
    for name, wanted in (("run-slurm\\x2dshare.mount", roots), ("run-slurm\\x2dshare-user.mount", users)):
        unit = (CHECKOUT / "packaging/systemd" / name).read_text()
        assert re.findall(r"^Options=(.*)$", unit, re.MULTILINE) == [wanted]
    page = (CHECKOUT / "packaging/docs/install.md").read_text()
    assert re.findall(r"^tmpfs /run/slurm-share\S* tmpfs (\S+) 0 0$", page, re.MULTILINE) == [roots, users]
