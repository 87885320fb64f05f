"""Write the training data of the learned estimator: random networks with their memory by fake tensors.

    python tests/bench/learned/generate.py                 needs PyTorch; some minutes

The file is tests/data/learned/fake_memory.csv. Its sizes are estimates by fake tensors, not measurements.
"""

from __future__ import annotations

import argparse
import csv
import sys
from multiprocessing import Pool
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

FILE = HERE.parents[1] / "data/learned/fake_memory.csv"
COLUMNS = (
    "family", "seed", "activation", "convolutions", "linears", "norms", "dropouts", "depth", "batch", "parameters",
    "activations", "fake_mib",
)  # fmt: skip
MOST_MIB = 70_000
"""Larger ones do not fit on a GPU with 80 GB, and are left out."""
LEAST_MIB = 20


def row(drawn: tuple[str, int]) -> dict[str, object] | None:
    """Return a line of the file; None: the network is too large, too small, or cannot run with that size."""
    import architectures
    import fake_memory
    import torch

    torch.set_num_threads(1)
    family, seed = drawn
    activation = ""

    def make():
        nonlocal activation
        *made, activation = architectures.drawn(family, seed)
        return made

    global _training
    if _training is None:
        _training = fake_memory.FakeTraining()
    try:
        found = _training.run(make)
    except (RuntimeError, ValueError) as error:
        print(f"{family} {seed}: {str(error)[:100]}", file=sys.stderr)
        return None
    if not LEAST_MIB <= found["fake_mib"] <= MOST_MIB:
        return None
    return {"family": family, "seed": seed, "activation": activation, **found}


_training = None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=139, help="networks of each family (139)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    arguments = parser.parse_args()
    import architectures

    drawn = [(family, seed) for seed in range(arguments.each) for family in architectures.FAMILIES]
    FILE.parent.mkdir(exist_ok=True)
    with open(FILE, "w", encoding="utf-8", newline="") as file, Pool(arguments.jobs) as pool:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        for made in pool.imap(row, drawn, chunksize=4):
            if made is not None:
                table.writerow(made)
                file.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
