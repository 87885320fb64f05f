"""The words of packaging/build.sh."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from localcluster import modes, paths, process
from localcluster.errors import ClusterError
from localcluster.progress import stage, to_stderr

from . import base, deb, pages, rpm, screen, spank, wheels
from .recipe import CHECKOUT, PACKAGES, Build, checkout_version, is_version


@modes.usual_umask()
def main() -> int:
    """Build; 0 done, 1 failed, 2 the caller's mistake, each failure with a sentence on stderr."""
    words = argparse.ArgumentParser(
        prog="packaging/build.sh", description="Build .deb and .rpm of slurm-share from this checkout."
    )
    words.add_argument("--out", type=Path, default=CHECKOUT / "build/packages", help="folder (default: %(default)s)")
    words.add_argument("--version", default=checkout_version(), help="another version than the checkout's")
    words.add_argument("--only", choices=("deb", "rpm"), help="one kind")
    words.add_argument(
        "--slurm-include",
        metavar="DIR",
        type=Path,
        action="append",
        default=[],
        help="the plugin for the Slurm of these headers as well (the folder above slurm/spank.h); may be repeated",
    )
    words.add_argument(
        "--leave-out",
        metavar="SUITE",
        choices=spank.SUITES,
        action="append",
        default=[],
        help=f"no plugin for the Slurm of this Debian suite ({', '.join(spank.SUITES)}), whose headers nobody asks for "
        "then; may be repeated",
    )
    given = words.parse_args()
    if not is_version(given.version):
        words.error(f"{given.version!r} is no version; write it as 1.2.3 or 1.2.3~rc1")
    try:
        caller = Path(os.environ.get("SLURM_SHARE_CALLER", "."))  # build.sh goes to the checkout first
        headers = [(caller / folder).resolve() for folder in given.slurm_include]
        suites = tuple(suite for suite in spank.SUITES if suite not in given.leave_out)
        made = build((caller / given.out).resolve(), given.version, given.only, headers, suites)
    except ClusterError as error:
        to_stderr(f"packaging/build.sh: {error}")
        return error.exit_code
    except OSError as error:
        to_stderr(f"packaging/build.sh: {error}")
        return 1
    sys.stdout.write("".join(f"{path}\n" for path in made))
    return 0


def build(out: Path, version: str, only: str | None, slurm_include: list[Path], suites: tuple[str, ...]) -> list[Path]:
    """Make the packages in `out`, replacing those of the same names; returns the files. Raises ClusterError."""
    out.mkdir(parents=True, exist_ok=True)
    os.environ["SOURCE_DATE_EPOCH"] = str(source_time())  # dpkg-deb, rpmbuild and the manual pages take it from there
    with tempfile.TemporaryDirectory(prefix=".making-", dir=out) as work:
        plan = Build(version, Path(work), _cache(), out, suites)
        _fetch(plan)
        base.make(plan, to_stderr)
        screen.make(plan, to_stderr)
        with stage(to_stderr, "manual pages and completion"):
            pages.write(plan, to_stderr)
        spank.make(plan, slurm_include, to_stderr)
        made = []
        for package in PACKAGES:
            _same_time(plan.tree(package), source_time())
        if only != "rpm":
            with stage(to_stderr, ".deb"):
                made += [deb.wrap(plan, package) for package in PACKAGES]
        if only != "deb":
            with stage(to_stderr, ".rpm"):
                made += rpm.wrap(plan)
        return made


def _fetch(plan: Build) -> None:
    """Everything that comes over the network, all at once; the steps below find it in the cache."""
    run, show = base.dependencies()
    with ThreadPoolExecutor() as pool:
        waited: list[Future[Any]] = [
            pool.submit(wheels.fetched, run, plan.cache, to_stderr),
            pool.submit(wheels.fetched, [*run, *show], plan.cache, to_stderr),
            pool.submit(wheels.tools, plan.cache, to_stderr),
            pool.submit(spank.debian_headers, plan, to_stderr),
        ]
        for one in waited:
            one.result()


def source_time() -> int:
    """What the files' times say: SOURCE_DATE_EPOCH, else the commit's time, else, in sources without git, the newest
    file's: the same sources then give the same packages, byte by byte. Seconds since 1970."""
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not given and (CHECKOUT / ".git").exists():
        # a checkout of somebody else's, as under sudo, is as good to read a time from
        git = ["git", "-c", f"safe.directory={CHECKOUT}", "-C", str(CHECKOUT), "log", "-1", "--format=%ct"]
        given = process.run(git, check=False).stdout.strip()
    if given.isascii() and given.isdecimal():
        return int(given)
    return int(max((CHECKOUT / path).stat().st_mtime for path in base.sources()))


def _same_time(tree: Path, seconds: int) -> None:
    for path in [*tree.rglob("*"), tree]:
        os.utime(path, (seconds, seconds), follow_symlinks=False)


def _cache() -> Path:
    """Downloads are kept beside the local clusters' where that can be written, else in the checkout."""
    place = paths.cache()
    folder = place if os.access(place if place.exists() else place.parent, os.W_OK) else CHECKOUT / "build/cache"
    folder = folder / "packages"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


if __name__ == "__main__":
    sys.exit(main())
