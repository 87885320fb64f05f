"""llload-tui in a terminal on a real cluster: its screen shows what Slurm reports, and its keys act on alice's work
only.

alice has a shared job with eight tasks on n2 and one with two tasks on n3, bob has one on n1. olga is an operator of
the agents without rights in Slurm. The tests share one scene and run in order: what they cancel is gone.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from clusters import by_release, cluster_of
from hooked import Node, start_agent, until
from terminal import Terminal, Terminals, terminals

from localcluster import Cluster, paths
from slurm_share.load.text import gigabytes, whole_gigabytes

pytestmark = [pytest.mark.cluster, pytest.mark.weekly, pytest.mark.weekly]

OLGA = 2003
SWEEP = """\
echo "the sweep begins"
srun bash -c 'simgpu-task --memory 2000M --load 20 --seconds 900; echo "task $SLURM_PROCID ended with $?"'
"""
SHORT = "srun simgpu-task --memory 3000M --load 10 --seconds 900"
OFTEN = ("--interval", "1")
STEPS = ["squeue", "-h", "-s", "-o", "%i %j"]


@dataclass
class Scene:
    """The cluster, what runs on it, and who looks."""

    cluster: Cluster
    terminals: Terminals
    sweep: int
    short: int
    bobs: int
    alice: Terminal
    """alice's dashboard, with `srun`, where she may do everything."""
    reader: Terminal
    """alice's second one, --readonly and without colours."""
    olga: Terminal
    """The dashboard of all users, from the agents."""

    def as_alice(self, *argv: str) -> str:
        return self.cluster.as_user("alice", argv, check=True).stdout

    def squeue(self) -> dict[int, list[str]]:
        """Return her jobs from squeue: user, name, state, number of nodes, nodes."""
        said = self.as_alice("squeue", "-h", "--me", "-o", "%i %u %j %t %D %R")
        return {int(words[0]): words[1:] for words in map(str.split, said.splitlines())}

    def survey(self) -> Any:
        return json.loads(self.as_alice("llload", "--json"))

    def steps(self) -> list[str]:
        """Return the steps of collectors in her jobs."""
        return [line.split()[0] for line in self.as_alice(*STEPS).splitlines() if line.endswith(" llload")]


def inside(cluster: Cluster, *words: str) -> list[str]:
    """Return the command that runs something on the cluster from any terminal."""
    return [sys.executable, str(paths.CHECKOUT / "packaging/demo/cluster"), "--name", cluster.name, *words]


def as_alice(cluster: Cluster, *argv: str) -> list[str]:
    return inside(cluster, "as", "alice", "--", *argv)


def as_olga(cluster: Cluster, *argv: str) -> list[str]:
    """Run a program as olga on the login host, where she has no home."""
    become = ["setpriv", f"--reuid={OLGA}", f"--regid={OLGA}", "--init-groups"]
    return inside(cluster, "exec", "login", "--", *become, "env", "HOME=/tmp", "USER=olga", "LOGNAME=olga", *argv)


@pytest.fixture(scope="module", params=by_release("tui-"))
def scene(
    request: pytest.FixtureRequest, can_make_clusters: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    """Start three jobs and three dashboards, and wait until all are on the screen."""
    with (
        cluster_of("tui", request.param, agents=True) as cluster,
        terminals(tmp_path_factory.mktemp("tmux")) as opened,
    ):
        for host in ("login", *cluster.compute_nodes):
            cluster.exec(host, ["useradd", "-M", "-u", str(OLGA), "-G", "gpu-operators", "olga"], check=True)
        bobs = cluster.sbatch("bob", SHORT, "--share-gpu=1", "-wn1", "-Jbobs")
        short = cluster.sbatch("alice", SHORT, "--share-gpu=1", "-wn3", "-Jshort")
        sweep = cluster.sbatch("alice", SWEEP, "--share-gpu=4", "-wn2", "-Jsweep")
        for job in (bobs, short, sweep):
            cluster.wait_running(job)
        words = ["llload-tui", *OFTEN, "--view", "jobs"]
        made = Scene(
            cluster,
            opened,
            sweep,
            short,
            bobs,
            opened.open("alice", as_alice(cluster, *words)),
            opened.open("reader", as_alice(cluster, "env", "NO_COLOR=1", *words, "--readonly")),
            opened.open("olga", as_olga(cluster, *words, "--all", "--source", "agents")),
        )
        made.alice.shows(" 8/8 ", " 2/2 ", "2 of 2 nodes answered")
        yield made
        cluster.cancel_all()


def path_line(terminal: Terminal) -> str:
    """Return the line that shows the current page, without the note on simulation and the tabs."""
    return next((line.strip() for line in terminal.lines[1:4] if not re.match(r" *(1 Nodes|SIMULATED)", line)), "")


def goes_to(terminal: Terminal, key: str, where: str) -> None:
    terminal.press(key)
    terminal.until(lambda: path_line(terminal) == where, f"{where!r}, it is at {path_line(terminal)!r}")


def yes(terminal: Terminal, done: str) -> None:
    """Say yes. One that comes before the question could be read is not heard, and neither is one right after it."""
    for _ in range(20):
        terminal.press("y")
        if terminal.comes_to(lambda: done in terminal.text, 1.5):
            return
    terminal.shows(done)


def test_the_screen_says_what_squeue_and_llload_say(scene: Scene) -> None:
    queue, survey, screen = scene.squeue(), scene.survey(), scene.alice
    assert set(queue) == {scene.sweep, scene.short}
    measured = {job["job"]: job for node in survey["nodes"] for job in node["snapshot"]["jobs"]}
    for job, (user, name, state, nodes, place) in queue.items():
        row = screen.row(str(job), user, name)
        assert (row[3], row[8]) == (state, nodes)  # TIME, START, TIME_LEFT and LIMIT between them
        tasks = measured[job]["tasks"]
        assert tasks == {scene.sweep: 8, scene.short: 2}[job]
        assert row[9:11] == [f"{tasks}/{measured[job]['slots']}", "2"]
        assert gigabytes(measured[job]["gpu_memory_mib"]) in row
        assert place in row

    goes_to(screen, "1", "Nodes")
    for node in survey["nodes"]:
        row = screen.row(node["name"], "alice")
        slurm, gpus = node["slurm"], node["snapshot"]["gpus"]
        used, total = (sum(gpu[f"memory_{what}_mib"] for gpu in gpus) for what in ("used", "total"))
        assert row[2] == f"{slurm['cpus_allocated']}/{slurm['cpus']}"
        assert f"{slurm['gpus_allocated']}/{len(gpus)}" in row
        assert f"{whole_gigabytes(used).removesuffix('GB')}/{whole_gigabytes(total)}" in row

    goes_to(screen, "2", "Users")
    assert gigabytes(sum(job["gpu_memory_mib"] for job in measured.values())) in screen.row("alice", "2", "2", "4")

    goes_to(screen, "4", "GPUs")
    for node in survey["nodes"]:
        for gpu in node["snapshot"]["gpus"]:
            row = screen.row(node["name"], str(gpu["index"]), "alice")
            tasks = [one for one in node["snapshot"]["processes"] if one["name"] == "simgpu-task"]
            here = [one for one in tasks if any(on["uuid"] == gpu["uuid"] for on in one["gpus"])]
            assert row[3:5] == [str(here[0]["job"]), str(len(here))]
            used, total = gigabytes(gpu["memory_used_mib"]), gigabytes(gpu["memory_total_mib"])
            assert f"{used.removesuffix('GB')}/{total}" in row

    assert screen.lines[0].strip() == "SIMULATED GPUs: nothing is computed on them"
    for key, where in (("1", "Nodes"), ("2", "Users"), ("4", "GPUs"), ("6", "Advice"), ("3", "Jobs")):
        goes_to(screen, key, where)
        assert not re.search(r"\bbob|\bn1\b", screen.text)


def test_an_operator_sees_everybody(scene: Scene) -> None:
    scene.olga.shows("3 of 3 nodes answered", "  agent  ")
    scene.olga.row(str(scene.bobs), "bob", "bobs", "R")
    goes_to(scene.olga, "1", "Nodes")
    for node, user in (("n1", "bob"), ("n2", "alice"), ("n3", "alice")):
        scene.olga.row(node, user)


def test_enter_goes_from_a_user_to_a_process_and_escape_comes_back(scene: Scene) -> None:
    screen = scene.alice
    goes_to(screen, "2", "Users")
    of_job = f"Users > alice > {scene.sweep} sweep"
    for keys, where, shows in (
        (["Enter"], "Users > alice", "short"),
        (["G", "Enter"], of_job, "n2"),  # the last of two
        (["Enter"], f"{of_job} > n2", "simgpu-task"),
        (["Enter"], f"{of_job} > n2 > GPU 0", "simgpu-task"),
        (["Enter"], f"{of_job} > n2 > GPU 0 > ", "simgpu-task"),
    ):
        screen.press(*keys)
        screen.until(lambda where=where: path_line(screen).startswith(where), where)  # type: ignore[misc]
        screen.shows(shows)
    pid = re.search(r"GPU 0 > .*?(\d+)$", path_line(screen))
    assert pid, path_line(screen)
    tasks = [one for node in scene.survey()["nodes"] for one in node["snapshot"]["processes"]]
    assert int(pid[1]) in {one["pid"] for one in tasks if one["job"] == scene.sweep}
    for where in (f"{of_job} > n2 > GPU 0", f"{of_job} > n2", of_job, "Users > alice", "Users"):
        goes_to(screen, "Escape", where)


def test_the_output_of_a_job_is_followed_and_a_signal_reaches_one_task(scene: Scene) -> None:
    """TERM to task 0 of eight: it ends and the others go on. What is written comes to the log as it is written."""
    screen = scene.alice
    before = {one["pid"] for one in tasks_of(scene, scene.sweep)}
    goes_to(screen, "3", "Jobs")
    screen.press("G", "Enter")
    screen.shows(f"Jobs > {scene.sweep} sweep")
    goes_to(screen, "Enter", f"Jobs > {scene.sweep} sweep > n2")
    screen.shows("simgpu-task")
    goes_to(screen, "Enter", f"Jobs > {scene.sweep} sweep > n2 > GPU 0")
    row = next(row for row in map(str.split, screen.shows("simgpu-task")) if row[:3] == ["0", "0", "alice"])
    pid = int(row[-3])
    assert pid in before
    screen.press("s")
    screen.shows(f"Signal to process {pid} on n2", f"task 0 of step 0 of job {scene.sweep}", "TERM")
    screen.press("Enter")
    screen.shows("Send SIGTERM", "end in an orderly way", f"--pid={pid}", "[no]")
    yes(screen, f"SIGTERM sent to process {pid}")
    until(lambda: {one["pid"] for one in tasks_of(scene, scene.sweep)} == before - {pid}, "the end of one task")
    screen.shows("free")
    goes_to(screen, "3", "Jobs")
    screen.press("G", "o")
    screen.shows("the sweep begins", "task 0 ended with 143")
    scene.cluster.as_user("alice", f"echo written later >>slurm-{scene.sweep}.out", check=True)
    screen.shows("written later")
    assert screen.text.count("ended with") == 1
    goes_to(screen, "Escape", "Jobs")
    assert screen.row(str(scene.sweep), "alice", "sweep")[9] == "7/8"


def tasks_of(scene: Scene, job: int) -> list[Any]:
    return [
        one
        for node in scene.survey()["nodes"]
        for one in node["snapshot"]["processes"]
        if one["job"] == job and one["name"] == "simgpu-task"
    ]


def test_readonly_and_no_color(scene: Scene) -> None:
    """x and s refuse with a sentence; there is no colour, and marks are bold or reversed."""
    screen = scene.reader
    screen.shows("2 of 2 nodes answered", str(scene.short))
    for key, verb in (("x", "cancel"), ("s", "signal")):
        screen.press(key)
        screen.shows(f"this dashboard is read-only: it does not {verb} anything")
    colours = {one for one in screen.styles if re.match(r"(3|4|9|10)\d", one) and one not in ("39", "49")}
    assert colours == set()
    assert {"1", "7"} & screen.styles
    assert set(scene.squeue()) == {scene.sweep, scene.short}
    # Somebody else's has colours, else this says nothing.
    assert {one for one in scene.alice.styles if one.startswith(("38", "48", "3", "4"))} - {"39", "49"}


def test_x_cancels_a_job_after_a_question_and_nobody_else_s(scene: Scene) -> None:
    """No is the answer of Enter; yes and it is gone. Slurm refuses alice's job to olga, who is told so."""
    screen = scene.alice
    goes_to(screen, "3", "Jobs")
    screen.press("g", "x")
    question = (f"Cancel job {scene.short}?", "your own", '"short"', f"runs: scancel -- {scene.short}", "[no]")
    screen.shows(*question)
    screen.press("Enter")
    screen.shows("nothing was done")
    assert set(scene.squeue()) == {scene.sweep, scene.short}

    goes_to(scene.olga, "3", "Jobs")
    scene.olga.press("G", "x")
    scene.olga.shows(f"Cancel job {scene.sweep}?", "OF alice")
    yes(scene.olga, f"{scene.sweep} was not cancelled; Slurm says: ")
    assert "denied" in scene.olga.text
    assert set(scene.squeue()) == {scene.sweep, scene.short}

    screen.press("x")
    screen.shows(*question)
    yes(screen, f"cancelled {scene.short}")
    until(lambda: set(scene.squeue()) == {scene.sweep}, "the end of the job")
    screen.shows("1 of 1 node answered")
    screen.hides(" short ")


def test_a_source_that_dies_is_seen_and_comes_back(scene: Scene) -> None:
    screen, n1 = scene.olga, Node(scene.cluster, "n1")
    goes_to(screen, "1", "Nodes")
    n1.run("pkill", "-u", "slurm-share")
    screen.shows("2 of 3 nodes answered", "no agent answers")
    start_agent(n1)
    screen.shows("3 of 3 nodes answered")
    screen.row("n1", "bob")

    screen = scene.alice
    goes_to(screen, "1", "Nodes")
    steps = scene.steps()
    assert steps
    scene.as_alice("scancel", *steps)
    screen.shows("0 of 1 node answered", "the job or its step was ended")
    scene.cluster.exec("login", ["pkill", "-9", "-u", "alice", "-f", "feed_process"], check=True)
    screen.shows("the feed process ended by signal 9")
    screen.shows("1 of 1 node answered")
    screen.row("n2", "alice")
    assert "ended by signal 9" not in screen.text


def test_a_terminal_of_20_by_5_and_back(scene: Scene) -> None:
    screen = scene.alice
    goes_to(screen, "1", "Nodes")
    screen.resize(20, 5)
    screen.until(lambda: len(screen.lines) <= 5 and "n2" in screen.text, "a small screen")
    assert max(map(len, screen.lines)) <= 20
    screen.press("3")
    screen.until(lambda: str(scene.sweep) in screen.text.split(), "jobs on a small screen")
    screen.resize(200, 50)
    screen.shows("Enter down", "llload-tui", "NODELIST(REASON)")
    screen.row(str(scene.sweep), "alice", "sweep", "R")


def test_a_waiting_jobs_page_says_what_squeue_says(scene: Scene) -> None:
    """By both sources. And a paste with escape sequences, as tmux gives it, runs none of its letters."""
    asks = ("-H", "-Jasks", "-N2", "-n4", "--gpus=2", "--mem=300", "-t90", f"--dependency=afterany:{scene.sweep}")
    job = scene.cluster.sbatch("alice", "true", *asks)
    said = scene.as_alice("squeue", "-h", f"-j{job}", "-o", "%r %l %Q %P %C %D %m").split()
    assert said == ["JobHeldUser", "1:30:00", "0", said[3], "4", "2", "300M"]
    wanted = [
        "its user holds it: scontrol release lets it start (JobHeldUser)",
        "2 nodes  4 CPUs  2 GPUs  300MB on each node  time limit 1:30:00",
        "0 (held)  submitted ",
        f"partition {said[3]}",
        f"afterany:{scene.sweep}",
    ]
    for screen in (scene.alice, scene.olga):
        goes_to(screen, "3", "Jobs")
        screen.press("F5")
        screen.press("/")
        screen.press("asks")
        screen.press("Enter")
        screen.row(str(job), "alice", "asks", "PD")
        screen.shows("1:30:00", *wanted)
        goes_to(screen, "Enter", f"Jobs > {job} asks")
        screen.shows(*wanted)
        screen.paste("x \x1b[1mq\x1b[0m s more than the thirty-two characters of a long sequence y")
        screen.shows("pasted text is not")
        screen.press("Escape", "Escape")
        screen.until(lambda: path_line(screen) == "Jobs", "its list")  # noqa: B023
    scene.as_alice("scancel", str(job))
    until(lambda: set(scene.squeue()) == {scene.sweep}, "the end of the job")
    scene.alice.press("F5")
    scene.alice.hides(" asks ")


def test_without_a_terminal_llload_is_run_once(scene: Scene) -> None:
    """In a pipe, on a dumb terminal, without the extra: it says why, and llload's lines follow."""
    said = scene.cluster.as_user("alice", ["llload-tui", "-n", "n2"], check=True)
    assert said.stderr.startswith("llload-tui: standard output is not a terminal; this is llload -g --nodes=n2\n")
    assert [line.split()[:2] for line in said.stdout.splitlines() if line.startswith("n2 ")] == [["n2", "8"]]
    for words, why in (
        (["env", "TERM=dumb", "llload-tui"], "TERM is dumb; this is llload -g"),
        (["/opt/slurm-share/bin/llload-tui"], "(pip install 'slurm-share[hosts,tui]'); this is llload -g"),
        (["llload-tui", "-u", "bob"], "the load of bob is for operators"),
    ):
        screen = scene.terminals.open("once", as_alice(scene.cluster, *words))
        screen.until(lambda: screen.code is not None, "its end")  # noqa: B023
        assert why in screen.said
        assert screen.code == (2 if "bob" in words else 0)
        screen.close()


def test_q_leaves_nothing_behind(scene: Scene) -> None:
    """No step in the job, no process on the login host; the terminal is a terminal again."""
    for screen in (scene.alice, scene.reader, scene.olga):
        screen.press("q")
    for screen in (scene.alice, scene.reader, scene.olga):
        screen.until(lambda: screen.code == 0, "its end")  # noqa: B023
        assert "Enter down" not in screen.text
    until(lambda: scene.steps() == [], "the end of the steps")
    assert scene.cluster.exec("login", ["pgrep", "-af", "llload|feed_process"]).stdout == ""
