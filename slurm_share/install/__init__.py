"""`slurm-share install`: edits of Slurm's files, their journal, and undo."""

from __future__ import annotations

from ..core.lazy import exports

TYPE_CHECKING = False  # mypy takes this name as true
if TYPE_CHECKING:
    from . import apply, text, undo
    from .config_file import ConfigChange, plan_config, write_config, write_lua_settings, write_switched_off
    from .present import named_hooks, named_lua
    from .report import Action, InstallReport, ReportPrinter
    from .rules import choices
    from .rules.edits import difference
    from .rules.shards import SHARDS_PER_GPU
    from .text import WantedOptions

__getattr__, __all__ = exports(
    __name__,
    modules=["apply", "rules.choices", "text", "undo"],
    names={
        "config_file": [
            "ConfigChange",
            "plan_config",
            "write_config",
            "write_lua_settings",
            "write_switched_off",
        ],
        "present": ["named_hooks", "named_lua"],
        "report": ["Action", "InstallReport", "ReportPrinter"],
        "rules.edits": ["difference"],
        "rules.shards": ["SHARDS_PER_GPU"],
        "text": ["WantedOptions"],
    },
)
