"""Every view by its name. One is imported when somebody wants to see it."""

from __future__ import annotations

from importlib import import_module

from .history import History
from .place import ViewName
from .view import View

CLASSES: dict[ViewName, str] = {
    "nodes": "NodesView",
    "users": "UsersView",
    "jobs": "JobsView",
    "gpus": "GpusView",
    "node": "NodeView",
    "gpu": "GpuView",
    "process": "ProcessView",
    "advice": "AdviceView",
}
"""Each in the module of `views` that is called as it is."""


def make(name: ViewName, history: History) -> View:
    """A new one."""
    view = getattr(import_module(f".views.{name}", __package__), CLASSES[name])(history)
    assert isinstance(view, View)
    return view
