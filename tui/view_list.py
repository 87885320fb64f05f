"""The views by name. A view's module is imported when the view is first shown."""

from __future__ import annotations

from importlib import import_module

from .history import History
from .location import ViewName
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
"""Class of each view, in the module of `views` with the view's name."""


def make(name: ViewName, history: History) -> View:
    view = getattr(import_module(f".views.{name}", __package__), CLASSES[name])(history)
    assert isinstance(view, View)
    return view
