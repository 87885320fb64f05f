"""Measure what reading load costs: python tests/bench/load.py (root; makes local clusters of its own, five minutes).

The agent as it is, on a node with 8 simulated GPUs and 60 programs on them, for a minute. `llload --all -g` for 100,
1,000 and 10,000 nodes, whole command, interpreter start included: Slurm really knows these nodes (26.05's external
ones, which need no slurmd); their agents are one process that answers for all of them with the snapshot of that node;
and a real Prometheus scraped the same. `llload` through srun beside gpustat and nvitop on the node with the 60
programs.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import median

from bench import Row, report

from localcluster import Cluster, conf
from slurm_share.slurm.nodes import nodes_argv

PYTHON = "/opt/slurm-share/bin/python"
GPUS, CLIENTS = 8, 60
SECONDS = 60
COUNTS = (100, 1_000, 10_000)
ROUNDS = 5
TOKEN = "/etc/slurm-share/agent.token"

WORK = f"""for i in $(seq 0 {CLIENTS - 1}); do
    CUDA_VISIBLE_DEVICES=$((i % {GPUS})) simgpu-task --memory 500M --load 10 --seconds 900 &
done
wait"""

# Runs on the node: CPU time of all threads of the agent, in ns, by the scheduler's own count.
SPENT = "cat /proc/$1/task/*/schedstat | awk '{ sum += $1 } END { print sum }'; grep VmHWM /proc/$1/status"

ASK = """
from slurm_share.load import snapshot
from slurm_share.load.agent.client import ask
print(snapshot.render(ask("/run/slurm-share-agent/socket", 5.0, True)).decode())
"""

SCRAPE = f"""
import httpx
token = open('{TOKEN}').read().strip()
print(len(httpx.get('http://n1:594/metrics', headers={{'authorization': 'Bearer ' + token}}).content))
"""

# Runs a command some times: wall seconds, and the most memory it had, in MiB; what it printed last.
TIMER = r"""
import json, os, sys, time
rounds, argv = int(sys.argv[1]), sys.argv[2:]
found = []
for _ in range(rounds):
    read, write = os.pipe()
    begin = time.perf_counter()
    pid = os.posix_spawnp(argv[0], argv, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, write, 1)])
    os.close(write)
    with os.fdopen(read) as out:
        text = out.read()
    _, status, used = os.wait4(pid, 0)
    spent = used.ru_utime + used.ru_stime
    found.append((time.perf_counter() - begin, used.ru_maxrss / 1024, os.waitstatus_to_exitcode(status), text, spent))
print(json.dumps(found))
"""


spent: list[float] = []
"""CPU seconds of each command that was timed, the median of its rounds."""


def timed(
    cluster: Cluster, host: str, *argv: str, rounds: int = ROUNDS, user: str | None = None
) -> tuple[float, float, str]:
    """Median seconds, most MiB, and the last output of a command that must succeed."""
    words = [PYTHON, "-c", TIMER, str(rounds), *argv]
    done = (
        cluster.exec(host, words, timeout=600) if user is None else cluster.as_user(user, words, node=host, timeout=600)
    )
    if done.returncode:
        raise SystemExit(f"{argv}: {done.stderr}")
    found = json.loads(done.stdout)
    if any(code for _, _, code, *_ in found):
        raise SystemExit(f"{argv} ended with {found[-1][2]}: {done.stderr}\n{found[-1][3][-500:]}")
    spent.append(median([one[4] for one in found]))
    return median([seconds for seconds, *_ in found]), max(one[1] for one in found), found[-1][3]


def wait_for(cluster: Cluster, host: str, script: str, what: str) -> str:
    """Wait until a piece of shell succeeds; what it said."""
    for _ in range(600):
        done = cluster.exec(host, ["bash", "-c", script])
        if done.returncode == 0:
            return done.stdout
        time.sleep(0.2)
    raise SystemExit(f"it did not come to {what}: {done.stderr}")


# --- The agent --------------------------------------------------------------------------------------------------------


def agent(rows: list[Row]) -> str:
    """Its cost, and llload through srun on its node; the snapshot of it."""
    with Cluster.up("bench-load", agents=True, nodes=1) as cluster:
        cluster.exec("n1", ["simgpu-init", str(GPUS), "--replace"], check=True)
        text = (cluster.site / "config.toml").read_text()
        cluster.write_config(text.replace("agent_interval_s = 1.0", "agent_interval_s = 5.0"))
        cluster.exec("n1", ["pkill", "-u", "slurm-share"], check=True)
        wait_for(cluster, "n1", "! pgrep -u slurm-share", "the end of the first agent")
        cluster.exec("n1", ["bash", "-ec", _agent_script()], check=True)
        job = cluster.sbatch("alice", WORK, "-p", "plain", "-w", "n1", "-n1")
        wait_for(
            cluster,
            "n1",
            f"{PYTHON} -c '{ASK}' | grep -o simgpu-task | wc -l | grep -x {CLIENTS}",
            "60 programs on the GPUs",
        )
        pid = cluster.exec("n1", ["pgrep", "-u", "slurm-share", "-f", "slurm-share agent"], check=True).stdout.split()[
            0
        ]
        time.sleep(10)
        before, _ = _spent(cluster, pid)
        time.sleep(SECONDS)
        after, peak = _spent(cluster, pid)
        rows += [
            Row(
                f"agent, {GPUS} GPUs and {CLIENTS} programs, every 5 s: of one core",
                (after - before) / SECONDS / 1e7,
                "%",
                0.5,
            ),
            Row("  the most memory it had", peak * 1.048576, "MB", 60),
        ]
        # As Prometheus does it, four times a minute.
        before, _ = _spent(cluster, pid)
        for _ in range(10):
            size = int(cluster.exec("n1", [PYTHON, "-c", SCRAPE], check=True).stdout)
        after, peak = _spent(cluster, pid)
        rows += [
            Row("  a scrape of its metrics, samples of that time included", (after - before) / 10 / 1e6, "ms"),
            Row("  their size", size / 1024, "KiB"),
        ]
        rows += through_srun(cluster, job)
        return cluster.exec("n1", [PYTHON, "-c", ASK], check=True).stdout


def _agent_script() -> str:
    from localcluster import cluster as clusters

    return clusters._START_AGENT


def _spent(cluster: Cluster, pid: str) -> tuple[float, float]:
    """(ns of CPU time, the most MiB so far)."""
    said = cluster.exec("n1", ["bash", "-c", SPENT, "-", pid], check=True).stdout.split()
    return float(said[0]), float(said[2]) / 1024


def through_srun(cluster: Cluster, job: int) -> list[Row]:
    """llload as the user who has the job, beside what else one can run there."""
    overlap = ("srun", f"--jobid={job}", "--overlap", "-n1")
    rows = []
    for what, argv, bar in (
        ("llload -g through srun, from the login node", ("llload", "-g", "--source", "srun"), 1.0),
        ("  gpustat in a step there", (*overlap, "gpustat", "--no-header"), None),
        ("  nvitop -1 in a step there", (*overlap, "nvitop", "-1"), None),
        ("  true in a step there", (*overlap, "true"), None),
    ):
        seconds, _, text = timed(cluster, "login", *argv, user="alice")
        assert what.startswith("  true") or "imulated" in text or "n1" in text, text
        rows.append(Row(what, seconds, "s", bar))
    for what, argv in (
        ("on the node itself: llload -g --source local", ("llload", "-g", "--source", "local")),
        ("  gpustat", ("gpustat", "--no-header")),
        ("  nvitop -1", ("nvitop", "-1")),
    ):
        seconds, _, _ = timed(cluster, "n1", *argv, user="alice")
        rows.append(Row(what, seconds, "s"))
    return rows


ONE_PAGE = """\
  - job_name: many
    metrics_path: /metrics/all
    honor_labels: true
    scrape_interval: 10s
    scrape_timeout: 10s
    static_configs: [{targets: ["login:9432"]}]
"""

# --- Many nodes -------------------------------------------------------------------------------------------------------


def play_agents(cluster: Cluster, count: int, recorded: str) -> None:
    """Play the agents of that many nodes on the login host, with a recorded snapshot."""
    here = Path(__file__).with_name("many_agents.py").read_text()
    for name, text in (("many_agents.py", here), ("recorded.json", recorded)):
        cluster.exec("login", ["bash", "-c", f"cat >/tmp/{name}"], input=text, check=True)
    cluster.exec("login", ["bash", "-c", "echo nameserver 127.0.0.1 >/etc/resolv.conf"], check=True)
    cluster.exec("login", ["pkill", "-u", "slurm-share"])  # the agent there, which has the port
    wait_for(cluster, "login", "! pgrep -u slurm-share", "the end of the agent on login")
    play = f"setsid -f {PYTHON} /tmp/many_agents.py {count} /tmp/recorded.json {TOKEN} >/tmp/out 2>&1"
    cluster.exec("login", ["bash", "-c", play], check=True)
    wait_for(cluster, "login", "grep -x serving /tmp/out", "the many agents")


def many(count: int, recorded: str, rows: list[Row]) -> str:
    """Everybody's nodes, through agents and through Prometheus; Slurm's version."""
    nodes = f"NodeName=node[00001-{count:05d}] CPUs=96 RealMemory=1000000 Gres=gpu:{GPUS} State=EXTERNAL"
    with Cluster.up("bench-many", prometheus=True, nodes=1, slurm_conf_extra=nodes) as cluster:
        play_agents(cluster, count, recorded)
        config = cluster.site / "prometheus.yml"
        config.write_text(conf.PROMETHEUS.format(targets="n1:594") + ONE_PAGE)
        cluster.exec("ctl", ["pkill", "-HUP", "-x", "prometheus"], check=True)
        wait_for(cluster, "login", _scraped(count), f"{count} nodes in Prometheus")
        for source in ("agents", "prometheus"):
            argv = ("llload", "--all", "-g", "--source", source)
            seconds, mib, text = timed(cluster, "login", *argv)
            assert text.count("node0") + text.count("node1") >= count, text[:2000]
            rows += [
                Row(
                    f"llload --all -g, {count} nodes, {source}",
                    seconds,
                    "s",
                    2.0 if count > 5_000 and source == "agents" else 1.0,
                )
            ]
            rows += [Row("  memory", mib, "MiB"), Row("  CPU time of the command", spent[-1], "s")]
            rows.append(Row("  of it the answers of all nodes, as snapshots", seconds_in(cluster, source, count), "s"))
        for what, argv in (("as llload asks", nodes_argv()), ("as JSON", ["scontrol", "--json", "show", "nodes"])):
            seconds, _, _ = timed(cluster, "login", *argv)
            rows.append(Row(f"  scontrol show nodes, {count} nodes, {what}", seconds, "s"))
        return cluster.slurm_version


READ = """
import sys, time
from slurm_share.core import config
from slurm_share.load.sources.base import SourceRequest
from slurm_share.load.sources.survey_reader import open_source
source = open_source(sys.argv[1], config.load().settings)
asked = SourceRequest(nodes=tuple(f"node{n:05d}" for n in range(1, int(sys.argv[2]) + 1)), details=False)
begin = time.perf_counter()
answer = source.read(asked, 60.0)
print(time.perf_counter() - begin, len(answer.snapshots), dict(list(answer.silent.items())[:3]))
"""


def seconds_in(cluster: Cluster, source: str, count: int) -> float:
    """The source alone, in a process that has loaded it."""
    found = []
    for _ in range(ROUNDS):
        said = cluster.exec("login", [PYTHON, "-c", READ, source, str(count)], check=True).stdout.split(maxsplit=2)
        assert int(said[1]) == count, said
        found.append(float(said[0]))
    return median(found)


def _scraped(count: int) -> str:
    """Succeeds once Prometheus has all of them."""
    return f"{PYTHON} -c '{READ}' prometheus {count} | grep -q ' {count} '"


def main() -> int:
    rows: list[Row] = []
    recorded = agent(rows)
    version = ""
    for count in COUNTS:
        version = many(count, recorded, rows)
    return 0 if report("load", version, rows) else 1


if __name__ == "__main__":
    sys.exit(main())
