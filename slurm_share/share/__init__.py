"""Share a node's GPUs: option, allocation, plan, ledger, admission, release, leases."""

from __future__ import annotations

from ..core.lazy import exports

TYPE_CHECKING = False  # mypy takes it for True
if TYPE_CHECKING:
    from . import (
        admission,
        cluster_status,
        hook,
        job_note,
        ledger_file,
        lua_settings,
        memory_limits,
        mode_file,
        node_offer,
        observe,
        option,
        queue_verdicts,
        release,
        slurm_commands,
        state,
        user_folder,
    )
    from .backends import registry
    from .backends.base import Backend, BackendCheck, BackendFacts, Examination, Health, Host, Leftovers, UserGpu
    from .leases import Leases
    from .records import (
        BACKEND_MPS,
        BACKEND_TIME_SLICING,
        Assignment,
        ClusterShares,
        Ledger,
        LedgerJob,
        Limits,
        Plan,
        PreparedGpus,
        QueueSwitched,
        Refusal,
        Slot,
        UnsharedReason,
    )
    from .rules import (
        allocation,
        drain,
        driver_caps,
        drivers,
        limits,
        methods,
        queue,
        reconcile,
        site,
        switch,
        verdict,
        without_plugin,
    )
    from .rules.allocation import admit
    from .rules.granted import visible_devices, visible_gpus
    from .rules.leftovers import FIRST_ORDINARY_UID
    from .rules.queue import ChosenJob
    from .rules.reconcile import has_job
    from .rules.switch import modes_text, nodes_by_other_mode
    from .status import NodeStatus, read_status

__getattr__, __all__ = exports(
    __name__,
    modules=[
        *(
            "admission",
            "backends.registry",
            "cluster_status",
            "hook",
            "job_note",
            "ledger_file",
            "lua_settings",
            "memory_limits",
            "mode_file",
            "node_offer",
        ),
        *("observe", "option", "queue_verdicts", "release", "rules.allocation", "rules.drain"),
        "rules.driver_caps",
        *("rules.drivers", "rules.limits", "rules.methods", "rules.queue", "rules.reconcile", "rules.site"),
        "rules.switch",
        *("rules.verdict", "rules.without_plugin", "slurm_commands", "state", "user_folder"),
    ],
    names={
        "backends.base": [
            "Backend",
            "BackendCheck",
            "Examination",
            "Health",
            "Host",
            "BackendFacts",
            "Leftovers",
            "UserGpu",
        ],
        "leases": ["Leases"],
        "records": [
            *("Assignment", "BACKEND_MPS", "BACKEND_TIME_SLICING", "ClusterShares", "Ledger", "LedgerJob", "Limits"),
            *("Plan", "PreparedGpus", "QueueSwitched", "Refusal", "Slot", "UnsharedReason"),
        ],
        "rules.allocation": ["admit"],
        "rules.granted": ["visible_devices", "visible_gpus"],
        "rules.leftovers": ["FIRST_ORDINARY_UID"],
        "rules.queue": ["ChosenJob"],
        "rules.reconcile": ["has_job"],
        "rules.switch": ["modes_text", "nodes_by_other_mode"],
        "status": ["NodeStatus", "read_status"],
    },
)
