"""Energy of 100 random runs on simulated GPUs: python tests/bench/energy.py [RUNS] (root; 6 minutes on two cores).

Each run is the real launcher with real programs, nvidia-ml-py and the simulated NVML, packed or not, with tasks that
come and go, fail, wait, or are too short for a sample, and in part with a program that is no task's. A process beside
it reads the counters. The parts that the launcher gives (results, short tasks, nobody's) are added up and compared
with the difference of the counters over the launcher's life; none may be negative.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import msgspec

TESTS = Path(__file__).parents[1]
RESULTS = Path(__file__).with_name("results") / "energy.json"
BAR = 0.01
"""Most relative difference between the parts and the counters."""
RUNS = 100
AT_ONCE = 4
"""They wait more than they compute."""


def main(runs: int = RUNS) -> int:
    """Run the mixes, print and write the result; return 1 if one misses the bar."""
    sys.path.insert(0, str(TESTS / "unit" / "triples" / "launcher"))
    from energy_mixes import MixResult, run_mix
    from packed_machine import HOME, Machine

    rows = []
    with tempfile.TemporaryDirectory() as library:
        subprocess.run(["make", "-s", "-C", HOME, f"BUILD={library}"], check=True)

        def run(seed: int) -> MixResult:
            machine = Machine(Path(library), 2, 40960, mps=True)
            try:
                return run_mix(machine, seed)
            finally:
                machine.close()

        with ThreadPoolExecutor(AT_ONCE) as pool:
            for found in pool.map(run, range(1, runs + 1)):
                rows.append({**msgspec.to_builtins(found), "error": round(found.error, 5)})
                print(f"{found.seed:4} {found.observed_j:8.0f} J  {100 * found.error:.3f} %", flush=True)
    errors = sorted(row["error"] for row in rows)
    missed = [row["seed"] for row in rows if row["error"] > BAR or row["least_j"] < 0]
    summary = {
        "runs": runs, "bar": BAR, "median_error": median(errors), "largest_error": errors[-1],
        "least_part_j": min(row["least_j"] for row in rows), "missed": missed,
    }  # fmt: skip
    RESULTS.write_text(json.dumps({**summary, "rows": rows}, indent=1) + "\n")
    print(json.dumps(summary))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
