"""Packing: places unlike tasks on the GPUs of a user's allocation by booked memory, and learns their sizes."""

from __future__ import annotations

from ..core.lazy import exports

TYPE_CHECKING = False  # as mypy knows it
if TYPE_CHECKING:
    from . import history_queries
    from .attempt import Attempt
    from .bookings import Bookings, read_bookings
    from .decider import Decider
    from .decision_records import GiveUp, Hold, Move, Pause, Reserve, Resume, Start
    from .events import (
        EVENTS,
        EventLog,
        Progress,
        ProgressReader,
        RankWait,
        SizeReader,
        WorkRate,
        read_decisions,
        read_groups,
    )
    from .fingerprint import key_of
    from .history import History, HistoryWriter, read_history, read_site
    from .history_records import TaskRun
    from .lab_parts import check_parts, outside_sizes, policy_of
    from .records import (
        BOOKING,
        POLICIES,
        EndFacts,
        EndKind,
        GpuFacts,
        Guard,
        Order,
        PackRequest,
        PackSettings,
        PolicyName,
        TaskAsk,
        TaskKey,
        TaskSample,
        TaskSpec,
        Tries,
        Undo,
    )  # fmt: skip
    from .rules import tuned_text
    from .rules.board import Board
    from .rules.endings import classify, has_signal, may_be_host_memory
    from .rules.estimate.estimator import Estimator
    from .rules.explain import Preview, explain_task, preview_run
    from .rules.fingerprint import name_software
    from .rules.guarantee import most_of
    from .rules.interference import UNMEASURED, antt, slowdowns, stp
    from .rules.level_runs import Level, newest_search
    from .rules.log_messages import asked_mib, wanted_mib
    from .rules.rates import RateMeter
    from .rules.search import EVEN, FREE, Search, part_levels, percent_of
    from .rules.slots import Budget, has_room, need_mib, slot_settings
    from .rules.speed_account import group_text
    from .rules.speeds import Speeds
    from .speed_records import (
        LevelRun,
        NodeRates,
        PairRun,
        Rate,
        RateSource,
        SearchKind,
        SearchRun,
        SharingMethod,
        TaskRate,
    )  # fmt: skip

__getattr__, __all__ = exports(
    __name__,
    modules=["history_queries", "rules.tuned_text"],
    names={
        "attempt": ["Attempt"],
        "bookings": ["Bookings", "read_bookings"],
        "fingerprint": ["key_of"],
        "events": [
            "EVENTS", "EventLog", "Progress", "ProgressReader", "RankWait", "SizeReader", "WorkRate", "read_decisions",
            "read_groups",
        ],
        "lab_parts": ["check_parts", "outside_sizes", "policy_of"],
        "decider": ["Decider"],
        "records": [
            "BOOKING", "POLICIES", "EndFacts", "EndKind", "GpuFacts", "Guard", "Order",
            "PackRequest", "PackSettings", "PolicyName", "TaskAsk", "TaskKey", "TaskSample", "TaskSpec", "Tries",
            "Undo",
        ],
        "decision_records": ["GiveUp", "Hold", "Move", "Pause", "Reserve", "Resume", "Start"],
        "history": ["History", "HistoryWriter", "read_history", "read_site"],
        "history_records": ["TaskRun"],
        "speed_records": [
            "LevelRun", "NodeRates", "PairRun", "Rate", "RateSource", "SearchKind", "SearchRun", "SharingMethod",
            "TaskRate",
        ],
        "rules.board": ["Board"],
        "rules.endings": ["classify", "has_signal", "may_be_host_memory"],
        "rules.explain": ["Preview", "explain_task", "preview_run"],
        "rules.estimate.estimator": ["Estimator"],
        "rules.fingerprint": ["name_software"],
        "rules.guarantee": ["most_of"],
        "rules.log_messages": ["asked_mib", "wanted_mib"],
        "rules.rates": ["RateMeter"],
        "rules.slots": ["Budget", "has_room", "need_mib", "slot_settings"],
        "rules.speed_account": ["group_text"],
        "rules.interference": ["UNMEASURED", "antt", "slowdowns", "stp"],
        "rules.speeds": ["Speeds"],
        "rules.level_runs": ["Level", "newest_search"],
        "rules.search": ["EVEN", "FREE", "Search", "part_levels", "percent_of"],
    },
)  # fmt: skip
