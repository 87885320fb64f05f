"""The site's job_submit.lua: whether Slurm can run Lua here, and whether Lua compiles the script."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable
from pathlib import Path

from ...core.slurm_home import named_homes
from . import system
from .records import UnknownFact

OBJECT = "job_submit_lua.so"
_PLUGIN_FOLDERS = ("/usr/lib/*/slurm-wlm", "/usr/lib/*/slurm", "/usr/lib64/slurm", "/usr/lib/slurm",
                  "/usr/local/lib/slurm", "/usr/local/lib64/slurm", "/opt/slurm/lib/slurm", "/opt/slurm/lib64/slurm",
                  "/cm/shared/apps/slurm/current/lib64/slurm", "/cm/shared/apps/slurm/current/lib/slurm")  # fmt: skip
"""Plugin folders of Debian's, SchedMD's and hand-built Slurm."""
_LIBRARY = re.compile(r"liblua[-0-9.]*\.so[.0-9]*")
_LIBRARIES = ("/usr/lib/*/liblua5.[1-4].so*", "/usr/lib64/liblua*.so*", "/usr/lib/liblua*.so*")


def find_object(told: str, root: Path = Path("/")) -> str | UnknownFact:
    """Return the path of Slurm's plugin for Lua; "": the other plugins are here, but not this one. told: PluginDir."""
    homes = [f"{home}/{lib}" for home in named_homes(None, root) for lib in ("lib/slurm", "lib64/slurm")]
    patterns = told.split(":") if told else (*homes, *_PLUGIN_FOLDERS)
    folders = [folder for pattern in patterns for folder in sorted(root.glob(pattern.lstrip("/")))]
    if not any(True for folder in folders for _ in folder.glob("job_submit_*.so")):
        return UnknownFact("Slurm's plugins were not found on this host")
    found = (folder / OBJECT for folder in folders)
    return next((f"/{one.relative_to(root)}" for one in found if one.is_file()), "")


def read_problem(path: str, root: Path = Path("/")) -> str | UnknownFact:
    """Return Lua's error about a script; "": none. The script is compiled but not run.

    Uses the library that slurmctld has loaded, if the caller may see that, else any Lua of this host.
    """
    script = root / path.lstrip("/")
    if not script.is_file():
        return UnknownFact(f"there is no {path}")
    why = "there is no Lua library on this host"
    for library in (*_loaded(root), *_installed(root)):
        try:
            return _compiled(library, script)
        except (OSError, AttributeError) as error:
            why = f"{library}: {error}"
    return UnknownFact(f"Lua was not asked: {why}")


def _loaded(root: Path) -> Iterable[str]:
    """Return the Lua libraries in slurmctld.

    Not from psutil: memory_maps reads smaps, for which the kernel walks all pages while slurmctld cannot map memory.
    With 1 GiB that takes 22 ms instead of 0.2 ms (timeit -s 'import psutil; b = b"x" * 2**30'
    'psutil.Process().memory_maps()').
    """
    pid = system.find_daemon("slurmctld", root)
    if pid is None:
        return ()
    try:
        maps = (root / f"proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    paths = (line.split(None, 5)[-1] for line in maps.splitlines())
    return dict.fromkeys(path for path in paths if _LIBRARY.fullmatch(path.rpartition("/")[2]))


def _installed(root: Path) -> Iterable[str]:
    return [str(one) for pattern in _LIBRARIES for one in sorted(root.glob(pattern.lstrip("/")))]


def _compiled(library: str, script: Path) -> str:
    """Compile a script. Raises OSError or AttributeError for a library that is not Lua."""
    lua = ctypes.CDLL(library)
    lua.luaL_newstate.restype = ctypes.c_void_p
    lua.lua_tolstring.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    lua.lua_tolstring.restype = ctypes.c_char_p
    lua.lua_close.argtypes = (ctypes.c_void_p,)
    name = os.fsencode(script)
    state = lua.luaL_newstate()
    if not state:
        raise OSError("it has no memory")
    try:
        if hasattr(lua, "luaL_loadfilex"):  # since 5.2; luaL_loadfile is then a macro
            lua.luaL_loadfilex.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
            code = lua.luaL_loadfilex(state, name, b"t")
        else:
            lua.luaL_loadfile.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
            code = lua.luaL_loadfile(state, name)
        if code == 0:
            return ""
        said = lua.lua_tolstring(state, -1, None)
        return bytes(said or b"it says nothing").decode("utf-8", "replace")
    finally:
        lua.lua_close(state)
