"""Calls from rank to rank have mpi4py's names, order of arguments, kinds and defaults."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from slurm_share.spmd import MPI as OURS

THEIRS = pytest.importorskip("mpi4py.MPI", reason="there is no mpi4py for this machine")
COMM = [
    *("send", "ssend", "bsend", "Send", "Ssend", "Bsend", "Rsend", "isend", "issend", "ibsend", "Isend", "Issend"),
    *("Ibsend", "Irsend", "recv", "Recv", "irecv", "Irecv", "sendrecv", "Sendrecv", "Sendrecv_replace"),
    *("Isendrecv", "Isendrecv_replace", "probe", "iprobe", "Probe", "Iprobe", "mprobe", "improbe", "Mprobe"),
    *("Improbe", "Send_init", "Recv_init", "Ssend_init", "Bsend_init", "Rsend_init"),
]
HANDLES = {"f2py", "py2f", "toint", "fromint", "fromhandle", "handle", "tomemory"}
"""There is no MPI library below whose handles could be given away."""
LEFT_OUT = {
    "Request": set(),
    "Prequest": {"Parrived", "Pready", "Pready_list", "Pready_range"},
    "Message": {"free"},
    "Status": set(),
    "Comm": set(),
}
"""Calls of MPI 4 that no program has been seen to use."""


def names() -> list[tuple[str, str]]:
    found = [("Comm", name) for name in COMM]
    for kind in ("Request", "Prequest", "Message", "Status"):
        found += [(kind, name) for name in dir(getattr(THEIRS, kind)) if not name.startswith("_")]
    return [(kind, name) for kind, name in found if name not in HANDLES | LEFT_OUT[kind]]


def value(default: Any) -> Any:
    """Return a default so that constants of both modules can be compared: by their names."""
    if isinstance(default, int) and not isinstance(default, bool):
        for module in (OURS, THEIRS):
            for name in ("ANY_SOURCE", "ANY_TAG"):
                if default == getattr(module, name) and default < 0:
                    return "ANY"
    return None if isinstance(default, THEIRS.Datatype) else default


@pytest.mark.parametrize(("kind", "name"), names())
def test_a_call_has_mpi4pys_arguments(kind: str, name: str) -> None:
    ours, theirs = (getattr(getattr(module, kind), name, None) for module in (OURS, THEIRS))
    if not callable(theirs):
        assert hasattr(getattr(OURS, kind)(), name)
        return
    assert ours is not None
    parameters = []
    for call in (ours, theirs):
        listed = [one for one in inspect.signature(call).parameters.values() if one.kind is not one.KEYWORD_ONLY]
        parameters.append([(one.name, one.kind, value(one.default)) for one in listed])
    assert parameters[0] == parameters[1]
