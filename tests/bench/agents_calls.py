"""Measure the calls of 10,000 agents without a cluster: python tests/bench/agents_calls.py [SNAPSHOT] (root, a minute).

In a network namespace of its own, many_agents.py plays the agents, and `llload`'s source reads a line of each. The CPU
time of the caller is the figure that counts: on two cores the played agents take as much as the caller. load.py
measures the whole command, with Slurm.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bench import Row, report

COUNT, ROUNDS = 10_000, 5
TOKEN = "0123456789abcdef0123456789abcdef"
ASK = f"""
import json, sys, time
from slurm_share.core.settings import Settings
from slurm_share.load.sources.agents import AgentsSource
from slurm_share.load.sources.base import SourceRequest
source = AgentsSource(Settings(agent_token_file=sys.argv[1], agents_port=594))
nodes = tuple(f"node{{n:05d}}" for n in range(1, {COUNT} + 1))
asked = SourceRequest(nodes=nodes, addresses=dict.fromkeys(nodes, "127.0.0.1"), details=False)
found = []
for _ in range({ROUNDS}):
    begin, spent = time.perf_counter(), time.process_time()
    answer = source.read(asked, 120.0)
    assert len(answer.snapshots) == {COUNT}, dict(list(answer.silent.items())[:3])
    found.append((time.perf_counter() - begin, time.process_time() - spent))
print(json.dumps(found))
"""
INSIDE = """
ip link set lo up
"$1" "$2" "$3" "$4" "$5" >"$6" 2>&1 &
player=$!
trap 'kill $player' EXIT
until grep -qx serving "$6"; do kill -0 $player || exit 1; sleep 0.1; done
"$1" -c "$7" "$5"
"""


def snapshot() -> bytes:
    """A snapshot of a node with 8 GPUs, of the sampler's own making."""
    from slurm_share.load import snapshot as snapshots
    from slurm_share.load.snapshot import GpuLoad, Snapshot

    gpus = tuple(GpuLoad(uuid=f"GPU-{n}", index=n, name="GPU", memory_total_mib=81920) for n in range(8))
    return snapshots.render(Snapshot(node="n1", taken=time.time(), cpus=96, cores=48, gpus=gpus))


def main() -> bool:
    """Measure, and write the file."""
    recorded = Path(sys.argv[1]).read_bytes() if len(sys.argv) > 1 else snapshot()
    with tempfile.TemporaryDirectory() as folder:
        file, token = Path(folder, "snapshot.json"), Path(folder, "token")
        file.write_bytes(recorded)
        token.touch(0o600)
        token.write_text(TOKEN)
        player = Path(__file__).with_name("many_agents.py")
        words = [sys.executable, player, str(COUNT), file, token, Path(folder, "out"), ASK]
        done = subprocess.run(
            ["unshare", "--net", "bash", "-c", INSIDE, "-", *words], check=True, stdout=subprocess.PIPE, text=True
        )
    seconds, spent = zip(*json.loads(done.stdout), strict=True)
    rows = [
        Row(f"a line of {COUNT} agents: CPU time of the caller", median(spent), "s", 2.0),
        Row("  wall time", median(seconds), "s"),
        Row("  load average meanwhile, without which the wall time says nothing", os.getloadavg()[0], ""),
    ]
    return report("agents_calls", None, rows)


if __name__ == "__main__":
    sys.exit(not main())
