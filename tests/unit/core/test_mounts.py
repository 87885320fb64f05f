"""Detaching what a user mounted on his files. Each test's mounts are in a mount namespace of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from slurm_share.core import mounts

BEGIN = """set -e; cd "$1"; mkdir -p other/inner ours/leaf; mount -t tmpfs top ours/leaf; touch ours/file other/kept
mount --bind other ours/leaf; mount -t tmpfs others other/inner; mount --bind /dev/null ours/file
ln -s "$1/other/inner" ours/link
exec "$0" -c "$2" "$1/ours"
"""
"""Mounts two on `leaf`, one above the other, and one on `file`; `link` leads to a mount elsewhere."""


def here(tmp_path, script):
    """Run Python code whose sys.argv[1] is a folder with mounts; return its output."""
    argv = ["unshare", "-m", "--propagation", "private", "sh", "-c", BEGIN, sys.executable, str(tmp_path), script]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip("NOT TESTED: only root may mount, and not in every container")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_what_is_mounted_is_detached_and_its_place_removed(tmp_path):
    """Nothing inside the mount is touched."""
    script = """if True:
        import os, sys
        from slurm_share.core import mounts
        fd, notes = os.open(sys.argv[1], os.O_RDONLY), []
        mounts.unlink("file", fd, notes)
        mounts.uncover(fd, "leaf", notes)
        mounts.rmdir("leaf", fd, notes)
        mounts.uncover(fd, "missing", notes)
        print(*notes, sorted(os.listdir(fd)), sep="\\n")"""
    *notes, left = here(tmp_path, script)
    assert left == "['link']"
    assert [note.partition(" was mounted on ")[2] for note in notes] == [
        f"{tmp_path}/ours/{name} and is detached" for name in ("file", "leaf", "leaf")
    ]
    assert notes[2].startswith("tmpfs (top)")
    assert (tmp_path / "other/kept").exists()


def test_a_link_leads_to_no_mount_elsewhere(tmp_path):
    script = """if True:
        import os, sys
        from slurm_share.core import mounts
        fd, notes = os.open(sys.argv[1], os.O_RDONLY), []
        mounts.uncover(fd, "link", notes)
        try: mounts.rmdir("link", fd, notes)
        except NotADirectoryError: pass
        print(notes, os.path.ismount(sys.argv[1] + "/../other/inner"))"""
    assert here(tmp_path, script) == ["[] True"]


def test_what_may_not_be_detached_is_named_with_the_way_out(tmp_path, monkeypatch):
    script = """if True:
        import ctypes, os, sys
        from slurm_share.core import mounts
        fd, notes = os.open(sys.argv[1], os.O_RDONLY), []
        libc = ctypes.CDLL(None)
        libc.prctl(24, 21, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_SYS_ADMIN
        os.execv(sys.executable, [sys.executable, "-c", '''if True:
            import os, sys
            from slurm_share.core import mounts
            try: mounts.unlink("file", os.open(sys.argv[1], os.O_RDONLY), [])
            except OSError as error: print(error.strerror)''', sys.argv[1]])"""
    (said,) = here(tmp_path, script)
    path = f"{tmp_path}/ours/file"
    assert said.endswith(
        f" is mounted on {path} and cannot be detached (Operation not permitted); as root: umount -l {path}"
    )


def test_a_path_of_any_characters_is_found_among_many(tmp_path):
    lines = [f"{n} 1 0:1 / /run/x{n} rw - tmpfs x rw" for n in range(30_000)]
    lines.insert(7, "7 1 0:1 / /run/a\\040b/c\\134d\\012 rw,nosuid shared:1 - fuse.ssh\\040fs hers\\040too rw")
    lines += ["8 1 0:1 / /run/a\\040b rw - tmpfs  rw", "9 1 0:1 / /run/a\\040bc rw - tmpfs x rw"]
    file = tmp_path / "mountinfo"
    file.write_text("\n".join(lines) + "\n")
    assert list(mounts.read_points("/run/a b", str(file))) == [
        ("/run/a b/c\\d\n", "fuse.ssh fs (hers too)"),
        ("/run/a b", "tmpfs"),
    ]


def test_a_tree_is_removed_with_what_is_mounted_in_it(tmp_path):
    """On the folder, on a file in it, and on an inner folder; the other file system keeps its files."""
    script = """if True:
        import os, subprocess, sys
        from slurm_share.core.process import Deadline
        from slurm_share.core.records import Owner
        from slurm_share.mps import folders
        from slurm_share.mps.records import MpsPlace
        mps, kept = sys.argv[1] + "/mps", sys.argv[1] + "/../other"
        place = MpsPlace("/x", f"{mps}/1/leaf", "GPU-0", Owner(0, 0))
        for folder in (mps, mps + "/1"): os.mkdir(folder, 0o711)
        os.makedirs(f"{place.pipe}/a/b/c")
        for name in ("control_lock", "a/file"): open(f"{place.pipe}/{name}", "w")
        open(place.pipe + ".ui", "w")
        for what, on in (("/dev/null", "/control_lock"), (kept, "/a/b"), ("/dev/null", "/a/file"), (kept, ""),
                         ("/dev/null", ".ui")):
            subprocess.run(["mount", "--bind", what, place.pipe + on], check=True)
        print(len(folders.uncover(place)))
        print(len(folders.remove(place, Deadline.after(60))), os.listdir(f"{mps}/1"), os.listdir(kept))"""
    uncovered, rest = here(tmp_path, script)
    assert uncovered == "3"
    assert rest == "2 ['leaf.ui'] ['kept', 'inner']" or rest == "2 ['leaf.ui'] ['inner', 'kept']"


def test_many_mounts_take_bounded_time_and_lines(tmp_path):
    """On a clock that goes on by 10 ms whenever it is read: the rest stays for the next hook, which is told so."""
    script = """if True:
        import ctypes, errno, itertools, os, sys
        from slurm_share.core import mounts
        libc, file = ctypes.CDLL(None), sys.argv[1] + "/many"
        open(file, "w")
        for _ in range(300): assert libc.mount(b"/dev/null", file.encode(), None, 4096, None) == 0
        ticks = itertools.count(1000)
        mounts.time.monotonic = lambda: next(ticks) / 100
        fd, notes = os.open(sys.argv[1], os.O_RDONLY), []
        try: mounts.unlink("many", fd, notes)
        except OSError as error: print(error.errno == errno.EBUSY, error.strerror)
        print(len(notes), notes[-1])
        print(50 < sum(point == file for point, _ in mounts.read_points(file)) < 300)"""
    why, named, left = here(tmp_path, script)
    many = f"{tmp_path}/ours/many"
    assert why == f"True many file systems are mounted on {many}; each hook detaches a part of them"
    assert named.startswith("21 more file systems")
    assert left == "True"


def test_a_folder_is_opened_only_if_nothing_is_mounted_on_it(tmp_path):
    """Nor through a link. A file system of another user's may claim any owner, or never answer."""
    script = """if True:
        import os, sys
        from slurm_share.core import mounts
        fd = os.open(sys.argv[1], os.O_RDONLY)
        os.mkdir("plain", dir_fd=fd)
        for name in ("leaf", "link", "file", "missing", "plain"):
            try: print(name, os.readlink(f"/proc/self/fd/{mounts.open_uncovered(name, fd)}") == f"{sys.argv[1]}/{name}")
            except OSError as error: print(name, error.strerror)"""
    assert here(tmp_path, script) == [
        "leaf a file system is mounted there",
        "link Not a directory",
        "file Not a directory",
        "missing No such file or directory",
        "plain True",
    ]


def test_a_users_folder_with_a_mount_on_it_is_read_and_used_by_nobody(tmp_path):
    """A launcher makes another one; readers find that."""
    script = """if True:
        import os, subprocess, sys
        from pathlib import Path
        from slurm_share.core import own_folders
        tmp, uid = Path(sys.argv[1]), os.getuid()
        first = tmp / own_folders.user_folder(uid)
        (first / "bookings").mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700", "trap", first], check=True)
        (first / "bookings").mkdir()
        print(own_folders.open_all_of_user(tmp, "bookings", uid))
        fd, where = own_folders.open_own(tmp, ("bookings",))
        print(where.parent != first, len(own_folders.open_all_of_user(tmp, "bookings", uid)))
        print(own_folders.open_all_of_user(tmp / "none", "bookings", uid, first))"""
    assert here(tmp_path, script) == ["[]", "True 1", "[]"]
