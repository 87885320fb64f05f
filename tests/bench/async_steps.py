"""Steps of `srun --async` through the slots of a node: python tests/bench/async_steps.py [STEPS] (root; makes its own
local cluster).

The job shares two GPUs by four: eight slots. The tasks wait for a file, which the script makes when all steps are
submitted, so that all but eight steps wait at once. JobAcctGatherFrequency=0: the local cluster's plugin for
accounting reads all of /proc for each step, which has nothing to do with a wait for slots.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))

from bench import Row, report

from localcluster import Cluster, process

CONF = "SlurmctldParameters=enable_stepmgr\nPrologFlags=Contain\nJobAcctGatherFrequency=0\n"
SLOTS = 8
SCRIPT = """\
cat >x.sh <<'END'
#!/bin/bash
mkdir slot.$SLURM_SHARE_SLOT || echo clash >>ran
echo $SLURM_STEP_ID >>ran
until [ -e go ]; do sleep .2; done
rmdir slot.$SLURM_SHARE_SLOT
END
chmod +x x.sh; rm -rf slot.* go ran all; touch ran
for i in $(seq STEPS); do
    t=$EPOCHREALTIME; srun --async -Q -n1 --exact -o /dev/null ./x.sh || echo failed; echo srun $t $EPOCHREALTIME
done
touch all; until [ -e go ]; do sleep .2; done
swait; echo end $EPOCHREALTIME
"""
PSS = "for p in $(pgrep -f '^slurmstepd: .[0-9]*.[0-9]*]'); do sed -n 's/^Pss: *//p' /proc/$p/smaps_rollup; done"
PATIENCE_S = 3600.0


def main(steps: int) -> int:
    with Cluster.up("sbench-async", "26.05", nodes=2, slurm_conf_extra=CONF) as cluster:
        home = cluster.home / "alice"
        job = cluster.sbatch(
            "alice", SCRIPT.replace("STEPS", str(steps)), "-wn2", "--stepmgr", "--share-gpu=4", "--output=job.out"
        )
        process.wait_until((home / "all").exists, "the submission", PATIENCE_S, every_s=0.5)
        waiting = re.findall(r"OFDLCK +ADVISORY +WRITE \S+ (\S+) (?!0 )\d{4,10} ", Path("/proc/locks").read_text())
        memory = [int(line.split()[0]) for line in cluster.exec("n2", ["bash", "-c", PSS]).stdout.splitlines()]
        began = len((home / "ran").read_text().split())
        (home / "go").touch()
        state = cluster.wait(job, int(PATIENCE_S))
        times = [
            (float(a), float(b)) for a, b in re.findall(r"^srun (\S+) (\S+)$", (home / "job.out").read_text(), re.M)
        ]
        end = float(re.findall(r"^end (\S+)$", (home / "job.out").read_text(), re.M)[0])
        failed = (home / "job.out").read_text().count("failed")
        ran = (home / "ran").read_text().split()
        version = cluster.slurm_version
    most = max(Counter(waiting).values(), default=0)
    at = {step: number for number, step in enumerate(ran)}
    later = [abs(at.get(str(step), 0) - step) for step in range(steps)]
    rows = [
        Row("steps submitted", len(times), "steps", steps, "higher"),
        Row("  srun failed", failed, "steps", 0),
        Row("  srun, median", 1000 * median(b - a for a, b in times), "ms"),
        Row("  all of them", times[-1][1] - times[0][0], "s"),
        Row("slots that are held then", began, "slots", SLOTS),
        Row("steps that wait then", most, "steps", steps - SLOTS, "higher"),
        Row("  memory of one (Pss of slurmstepd and task)", sum(memory) / 1024 / max(1, steps), "MiB", 4),
        Row("all have run after", end - times[-1][1], "s"),
        Row("steps that ran", len(set(ran) - {"clash"}), "steps", steps, "higher"),
        Row("  more than once", len(ran) - len(set(ran)), "steps", 0),
        Row("  in a slot that another task had", ran.count("clash"), "steps", 0),
        Row("  places between submission and start, most", max(later), "places"),
        Row("the job is not COMPLETED", state != "COMPLETED", "", 0),
    ]
    return 0 if report("async_steps", version, rows) else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
