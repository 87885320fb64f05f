"""Faults of all kinds for minutes, then the verdict: python tests/chaos.py [--minutes 20] [--seed N] [--slurm 26.05]
(root).

On its own cluster two users submit, cancel, requeue and overrun shared and ordinary jobs, while tasks, MPS daemons,
hooks, slurmd, slurmctld and nodes are killed, networks cut and disks filled. A third user, carol, cheats: on nodes that
she is on she does what a user can to hurt others (tests/chaos_runs/cheater.py). A seed alone decides the events; it is
printed. The last third of the nodes has no faults. Ends with 0 if slurm-share lost no job of the two, started none
twice and none unshared, drained no node, said nothing of carol again and again, and if nothing is left: on a node where
no hook was killed at once, on the others after the next shared job.

A job that did not complete is lost unless an action can have ended it so, at that place and time, and slurmctld's log
or the job's output reports it (tests/chaos_runs/causes.py). The figures say how many jobs each action explains.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "cluster"), str(HERE / "bench"), str(HERE.parent / "packaging/demo")]

from bench import RESULTS, Row, report  # noqa: E402  (the paths above come first)
from chaos_runs import plan  # noqa: E402
from chaos_runs.run import Chaos, run  # noqa: E402
from chaos_runs.verdict import Judgement  # noqa: E402

LABELS = {
    "kill_task": "tasks killed", "kill_daemon": "MPS daemons killed", "kill_server": "MPS servers killed",
    "kill_hook": "Prologs and Epilogs killed", "kill_helper": "helpers of hooks killed",
    "kill_slurmd": "slurmd killed", "kill_slurmctld": "slurmctld killed", "cut_network": "networks cut",
    "fill_state": "state folders filled", "fill_log": "log disks filled", "fill_spool": "spool disks filled",
    "cut_power": "nodes without power", "reboot": "nodes booted anew",
}  # fmt: skip
CHEATS = {
    "mount": "file systems on her own files", "hold_space": "space held by files that are gone",
    "many_files": "the most files", "squat": "others' folders in /tmp taken", "replace": "her own files for ours",
    "take_away": "no permission on her folders", "hold_locks": "locks and sockets held",
    "kill_own": "her own MPS killed", "outlive": "a process on a GPU that outlives its job",
    "fat": "an environment of 60 kB for the hooks",
}  # fmt: skip
"""Words for the actions of carol, the user who cheats; see tests/chaos_runs/cheater.py."""


def rows(chaos: Chaos, found: Judgement, minutes: float) -> list[Row]:
    hit = [one for one in chaos.done if one.event.actor not in plan.USERS and one.said != "there was none"]
    cheats = [one for one in hit if one.event.actor == plan.CHEATER and one.said.startswith("job ")]
    counts = found.counts
    hit_nodes = plan.hit_nodes(chaos.cluster.compute_nodes)
    shown = [
        Row("duration of the faults", minutes, "min"),
        Row("nodes", len(chaos.cluster.compute_nodes), ""),
        Row("nodes that nothing befell", len(chaos.cluster.compute_nodes) - len(hit_nodes), ""),
        Row("jobs and array elements", counts.pop("jobs"), ""),
        *(Row(words, sum(one.event.action == action for one in hit), "times") for action, words in LABELS.items()),
        *(Row(f"cheating: {words}", sum(one.event.action == action for one in cheats), "jobs")
          for action, words in CHEATS.items()),
        *(Row(what, count, "") for what, count in sorted(counts.items())),
    ]  # fmt: skip
    held = [
        Row("jobs lost for no reason that is known", found.lost, "jobs", 0),
        Row("jobs run twice by slurm-share", found.twice, "jobs", 0),
        Row("tasks begun beside another user's shared job", found.mixed, "tasks", 0),
        Row("tasks of a share begun without a slot", found.unshared, "tasks", 0),
        Row("nodes drained by slurm-share", found.drained, "nodes", 0),
        Row("jobs that found the users' part full", found.full, "jobs", 0),
        Row("sentences about the cheater that the log repeats", found.grown, "", 0),
        Row("nodes with something left, where no hook was killed", found.left, "nodes", 0),
        Row(
            "nodes with something left after their next shared job",
            sum(bool(one) for one in chaos.remains.values()),
            "",
            0,
        ),
    ]
    return [*shown, *held]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--slurm", default="26.05")
    parser.add_argument("--nodes", type=int, default=6)
    parser.add_argument("--name", default="chaos", help="of the cluster")
    parser.add_argument("--show-only", action="store_true", help="print the figures, and keep none")
    args = parser.parse_args()
    lock = threading.Lock()

    def say(text: str) -> None:
        with lock:
            print(text, flush=True)

    if os.geteuid() != 0:
        parser.error("a local cluster needs root")
    say(f"seed {args.seed}")
    chaos, found = run(args.name, args.seed, 60 * args.minutes, args.nodes, args.slurm, say)
    for line in found.wrong:
        say(f"WRONG: {line}")
    if args.show_only:
        for row in rows(chaos, found, args.minutes):
            say(f"  {row.what:60} {row.value:g}")
        return 1 if found.wrong else 0
    holds = report(
        "chaos", chaos.cluster.slurm_version, [Row("seed", args.seed, ""), *rows(chaos, found, args.minutes)]
    )
    (RESULTS / "chaos_events.json").write_text(json.dumps({"seed": args.seed, **chaos.recorded()}) + "\n")
    return 0 if holds and not found.wrong else 1


if __name__ == "__main__":
    sys.exit(main())
