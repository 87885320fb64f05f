"""Manual pages and shell completion of every command, into the trees of the packages."""

from __future__ import annotations

import gzip
import os
import shutil
import sys
from pathlib import Path

from localcluster import process
from localcluster.progress import Say

from . import base, wheels
from .recipe import BASE, HOME, PACKAGES, PACKAGING, SCREEN, SCREEN_HOME, SITE_PACKAGES, SPANK, Build

PARSERS = {"llmapreduce": "slurm_share.cli.llmapreduce_words", "slurm_share": "slurm_share.cli.main"}
"""The module of a command's parser, by its function in `slurm_share.cli.start`, where it is not of the same name."""
SCREEN_PARSER = "slurm_share_tui.words:parser"


def write(build: Build, say: Say) -> None:
    """Write them; the trees have the packaged code by now, and that is what is asked."""
    tools = wheels.tools(build.cache, say)
    site = build.tree(BASE) / HOME / SITE_PACKAGES
    screen_site = build.tree(SCREEN) / SCREEN_HOME / SITE_PACKAGES
    targets = {name: target for name, target in base.commands(build).items() if name not in base.HOOKS}
    functions = {name: target.partition(":")[2] for name, target in targets.items()}
    commands = [
        f"{name}={PARSERS.get(function, f'slurm_share.cli.{function}')}:parser" for name, function in functions.items()
    ]
    _generate(build, tools, [site], commands, build.tree(BASE))
    _generate(build, tools, [site, screen_site], [f"llload-tui={SCREEN_PARSER}"], build.tree(SCREEN))
    manual = build.tree(BASE) / "usr/share/man/man8"
    base.put(PACKAGING / "man/slurm-share-prolog.8", manual / "slurm-share-prolog.8")
    (manual / "slurm-share-epilog.8").write_text(".so man8/slurm-share-prolog.8\n")
    base.put(PACKAGING / "man/slurm-share-plugin.8", build.tree(SPANK) / "usr/share/man/man8/slurm-share-plugin.8")
    for package in PACKAGES:
        for page in (build.tree(package) / "usr/share/man").glob("*/*"):
            # without a name or an hour in it, so that the same page is the same file
            page.with_name(f"{page.name}.gz").write_bytes(gzip.compress(page.read_bytes(), mtime=0))
            page.unlink()


def _generate(build: Build, tools: Path, sites: list[Path], commands: list[str], tree: Path) -> None:
    target = build.work / "pages"
    program = Path(__file__).with_name("parsers.py")
    argv = [sys.executable, "-IB", str(program), str(tools), str(target), build.version, *map(str, sites), "--"]
    # a page does not depend on the terminal it was made on
    env = {"PATH": process.OUTSIDE_PATH, "LC_ALL": "C.UTF-8", "COLUMNS": "80", "NO_COLOR": "1"}
    process.run([*argv, *commands], env={**env, "SOURCE_DATE_EPOCH": os.environ["SOURCE_DATE_EPOCH"]})
    shutil.copytree(target, tree / "usr/share", dirs_exist_ok=True)
    shutil.rmtree(target)
