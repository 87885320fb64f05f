"""Prelude that tests/bench/ppython_answers.py runs before a program: seed NumPy by rank, and record arrays.

Works with pPython and with our package. Appends (function, array) to FOLDER/RANK.pickle whenever the program calls
`local`, `agg` or `agg_all`; FOLDER is PPYTHON_ANSWERS. Calls by the library itself are not kept.
"""

from __future__ import annotations

import functools
import importlib
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pPython

NAMES = ("local", "agg", "agg_all")
_PROGRAM = os.environ["PPYTHON_ANSWERS_PROGRAM"]
_FILE = Path(os.environ["PPYTHON_ANSWERS"]) / f"{int(pPython.Pid)}.pickle"


def kept(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function wrapped so that it also records its results."""

    @functools.wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        answer = function(*args, **options)
        caller = sys._getframe(1).f_code.co_filename
        if caller == "<string>" or caller.endswith(_PROGRAM):  # pPython runs a program's text, and knows no file
            value = answer.toarray() if hasattr(answer, "toarray") else answer
            with _FILE.open("ab") as stream:
                pickle.dump((name, np.array(value, copy=True)), stream)
        return answer

    return wrapper


def replace_all() -> None:
    """Put the wrapped functions into all modules from which a program may import them."""
    originals = {name: getattr(importlib.import_module(name), name) for name in NAMES}
    wrapped = {name: kept(name, function) for name, function in originals.items()}
    for place in ("pPython.dmat", "pPython.map"):
        importlib.import_module(place)
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None) or ""
        # Ours have no file: they look names up at their first use.
        found = getattr(module, "__all__", ()) if not file else () if "slurm_share" in file else vars(module)
        for name, function in wrapped.items():
            if name in found and vars(module).get(name, originals[name]) is originals[name]:
                setattr(module, name, function)
    ours = sys.modules.get("slurm_share.spmd.ppython.module")
    if ours is not None:  # names that a program uses without an import
        find = ours.find_name  # type: ignore[attr-defined]
        ours.find_name = lambda name: wrapped.get(name) or find(name)  # type: ignore[attr-defined]


replace_all()
_FILE.touch()
np.random.seed(1000 + int(pPython.Pid))
