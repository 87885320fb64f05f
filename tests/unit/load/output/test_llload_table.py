"""The output of llload, line for line."""

from __future__ import annotations

import time

import pytest
from llload_surveys import GB, TAKEN, gpu, node, process, queued, shared_node, silent, survey
from msgspec.structs import replace
from rich.cells import cell_len

from slurm_share.load.output import notes
from slurm_share.load.output.notes import View
from slurm_share.load.output.plain import as_plain
from slurm_share.load.output.table import as_lines, fitted
from slurm_share.load.snapshot import Advice, GpuBooking, NodeLoad
from slurm_share.load.sources.demo import Demo
from slurm_share.node.gpu_figures import Activity

GPUS = View(gpus=True)
DETAIL = View(gpus=True, detail=True)
EVERYTHING = View(gpus=True, detail=True, jobs=True, processes=True)
HOSTILE = "\x1b[31mred[bold]\n\tx"
HEADINGS = "CORES -  USED =  FREE    LOAD MEMORY -   USED =   FREE  GPUS -  USED = FREE LOAD GPUMEM -  USED =  FREE"
CHINESE = "王小明"


def fields(line):
    return line.split()


def shown(*nodes, view=GPUS, width=200, **more):
    """Return llload's lines of a survey of these nodes."""
    return as_lines(survey(*nodes, **more), view, width)


def table(lines):
    """Return the headings and the nodes' lines, without what stands around them."""
    start = next(at for at, line in enumerate(lines) if line.startswith("HOSTNAME"))
    return lines[start:]


def test_the_lines_of_lloads_documentation_character_for_character():
    """MIT SuperCloud, "Monitoring System and Job Status": `LLload -g` with two nodes, and `LLload` with one."""
    first = node("d-10-10-1", load=2.71, memory_used=48, gpus=(gpu(0), gpu(1)))
    second = node("d-13-12-1", load=0.22, memory_used=49, gpus=(gpu(0), gpu(1)))
    lines = table(shown(first, second))
    assert [line.removesuffix(" NOTE").removesuffix(" cL gL") for line in lines[:3]] == [
        f"HOSTNAME  {HEADINGS}",
        "d-10-10-1    40 -    40 =     0    2.71  384GB -   48GB =  336GB"
        "     2 -     2 =    0 0.40   64GB -   4GB =  60GB",
        "d-13-12-1    40 -    40 =     0    0.22  384GB -   49GB =  335GB"
        "     2 -     2 =    0 0.40   64GB -   4GB =  60GB",
    ]
    third = node("d-4-13-1", cpus=48, used=48, load=27.09, memory=192, memory_used=82)
    lines = table(shown(third, view=View(), width=80))
    assert lines[:2] == [
        "HOSTNAME CORES -  USED =  FREE    LOAD MEMORY -   USED =   FREE",
        "d-4-13-1    48 -    48 =     0   27.09  192GB -   82GB =  110GB",
    ]


def test_the_header_names_cluster_user_nodes_and_time():
    """For an operator, also how many nodes are in use."""
    first, second, *_ = shown(node("n1"), node("n2"), view=View(), width=80)
    assert first == "LLGrid: txe1 (running slurm 26.05.5)"
    assert second.startswith("Username: studentx, Nodes used: 2, Time: 20")
    lines = shown(node("n1"), node("n2", used=0), everybody=True, view=View(), width=80)
    assert "Username: all users, Nodes used: 1 of 2" in lines[1]


def test_quiet_is_the_lines_alone():
    lines = shown(node("n1"), silent("n2"), view=View(quiet=True, gpus=True))
    assert [line.split()[0] for line in lines] == ["n1", "n2"]


@pytest.mark.parametrize(
    ("width", "headings"),
    [
        (200, f"HOSTNAME {HEADINGS} NOTE"),
        (117, f"HOSTNAME {HEADINGS} NOTE"),
        (
            110,
            "HOSTNAME CORES - USED = FREE  LOAD MEMORY - USED =  FREE "
            "GPUS - USED = FREE LOAD GPUMEM - USED = FREE NOTE",
        ),
        (80, "HOSTNAME CORES - USED  LOAD MEMORY - USED GPUS - USED LOAD GPUMEM - USED NOTE"),
        (60, "HOSTNAME GPUS - USED LOAD GPUMEM - USED NOTE"),
        (32, "HOSTNAME LOAD GPUMEM - USED NOTE"),
    ],
)
def test_a_narrow_terminal_leaves_columns_out_and_names_them(width, headings):
    one = node("n1", load=30.0, gpus=(gpu(0, load=10.0), gpu(1, load=10.0)))
    lines = shown(one, width=width)
    assert table(lines)[0] == headings
    assert max(map(cell_len, lines)) <= width
    named = " ".join(lines)
    gone = [word for word in ("FREE", "MEMORY", "CORES", "GPUS") if word not in headings]
    assert all(f"{word}" in named[named.rindex("(") :] for word in gone) or not gone


@pytest.mark.parametrize("width", [20, 40, 80, 120, 200])
@pytest.mark.parametrize("view", [View(), GPUS, EVERYTHING])
def test_no_line_is_longer_than_the_terminal(width, view):
    nodes = Demo(everybody=True, clock=lambda: TAKEN).read().nodes
    wide = survey(*nodes, node("x" * 60), silent("n9", "y" * 500), everybody=True)
    lines = as_lines(wide, view, width)
    assert max(map(cell_len, lines)) <= width
    assert any("…" in line for line in lines)


def test_a_line_in_a_pipe_is_not_folded():
    lines = shown(node("n1"), silent("n2", "y" * 500), view=View(), width=10_000)
    assert sum("y" * 500 in line for line in lines) == 2


def test_a_silent_node_is_a_line_with_its_reason():
    lines = shown(node("n1"), silent("n2"), silent("n3"))
    line = next(line for line in lines if line.startswith("n2"))
    assert fields(line) == fields("n2 40 - 40 = 0 7.00 384GB - ? = ? 2 - 2 = 0 ? ? - ? = ? n! no answer within 5 s")
    assert "1 of 3 nodes answered; n[2-3]: no answer within 5 s" in lines


def test_of_a_node_that_is_down_nothing_is_free():
    lines = shown(silent("n2", "down", states=("DOWN", "NOT_RESPONDING"), reason="Not responding"))
    assert "40 -    40 =     -       ?" in table(lines)[1]
    assert "0 of 1 nodes answered; n2: down (Not responding)" in lines


def test_a_node_that_nobody_knows_is_all_question_marks():
    line = table(shown(NodeLoad(name="n5", why="no such host")))[1]
    assert fields(line) == fields("n5 ? - ? = ? ? ? - ? = ? ? - ? = ? ? ? - ? = ? n! no such host")


def test_without_slurm_what_is_given_away_is_not_known():
    alone = replace(node("pc", gpus=(gpu(0),)), slurm=None)
    lines = shown(alone, cluster="", slurm_version="", jobs_taken=None, source="local")
    assert lines[0] == "LLGrid: this machine"
    assert fields(table(lines)[1])[:17] == fields("pc 40 - ? = ? 30.00 384GB - 48GB = 336GB 1 - ? = ?")
    assert any("without Slurm" in line for line in lines)


def test_a_node_without_gpus_has_none_and_one_whose_driver_is_silent_has_unknown_ones():
    silent_driver = node("n2", gpus=(gpu(0), gpu(1)), problems=("the NVIDIA driver does not answer",))
    silent_driver = replace(silent_driver, snapshot=replace(silent_driver.snapshot, gpus=()))
    lines = shown(node("n1"), silent_driver)
    first, second = table(lines)[1:3]
    assert fields(first)[12:23] == fields("0 - 0 = 0 - - - - = -")
    assert fields(second)[12:23] == fields("2 - 2 = 0 ? ? - ? = ?")
    assert "n2: the NVIDIA driver does not answer" in lines


def test_a_gpu_that_does_not_say_leaves_a_sign_on_the_sum():
    one = node("n1", gpus=(gpu(0, load=100.0), gpu(1, load=None, used=None, problem="GPU is lost")))
    lines = shown(one)
    assert fields(table(lines)[1])[17:23] == fields("1.00? 64GB - 2GB? = 62GB?")
    assert "n1: GPU 1: GPU is lost" in lines


def test_little_memory_is_not_none():
    one = node("n1", memory_used=1, gpus=(gpu(0, used=300), gpu(1, used=0)))
    assert "64GB - 0.3GB =  64GB" in table(shown(one))[1]
    empty = node("n1", gpus=(gpu(0, used=0),))
    assert "32GB -   0GB =  32GB" in table(shown(empty))[1]


def test_utilisation_is_called_so():
    util, sm = node("n1", gpus=(gpu(0),)), node("n2", gpus=(gpu(0, sm=True),))
    assert any("GPU LOAD: utilisation (an upper bound" in line for line in shown(util))
    lines = shown(util, sm)
    assert [line.endswith("util") for line in table(lines)[1:3]] == [True, False]
    assert any("GPU LOAD: SM activity" in line and "util: utilisation" in line for line in lines)


def test_letters_say_what_colours_say_and_only_what_is_wrong_now_is_red():
    hint, full, dead = node("n1", load=80.0), node("n2", gpus=(gpu(0, used=32 * 1024),)), silent("n3")
    nodes = (hint, full, dead, node("n4"))
    plain = table(shown(*nodes, view=View()))
    assert plain[1].endswith(" cH")
    assert plain[2].endswith(" v! gL")
    assert not any("\x1b" in line for line in plain)
    colored = table(shown(*nodes, view=View(color=True)))
    assert ["\x1b[31m" in line for line in colored[1:5]] == [False, False, True, False]
    assert ["\x1b[33m" in line for line in colored[1:5]] == [False, True, False, False]


def test_strangers_texts_stay_texts():
    """Escape sequences, markup, newlines; a name of three wide characters keeps the columns in line."""
    one = shared_node()
    strange = replace(
        one.snapshot, processes=(process(user=CHINESE, name=HOSTILE), process(78, user="bob", on="GPU-1"))
    )
    looked = survey(replace(one, snapshot=strange), user=HOSTILE, jobs=(queued("z" * 1000),), notes=(HOSTILE,))
    lines = as_lines(looked, EVERYTHING, 120)
    text = "\n".join(lines)
    assert "\x1b" not in text
    assert r"\x1b[31mred[bold]\n\tx" in text
    assert CHINESE in text
    assert max(map(cell_len, lines)) <= 120
    assert "z…" in text
    rows = [line for line in lines if CHINESE in line or " bob " in line]
    starts = {cell_len(line[: line.index("4711")]) for line in rows if "4711" in line}
    assert len(starts) <= 2  # one in the table of GPUs, one in that of processes


def test_a_line_for_each_gpu():
    sm = gpu(
        0,
        sm=True,
        load=76.0,
        activity=Activity(sm_percent=75.0, occupancy_percent=34.0, dram_percent=38.0),
        power_w=235.0,
        temperature_c=64,
    )
    one = node("n1", gpus=(sm, gpu(1, others_mib=2048), gpu(2, mig_parent=True)), processes=(process(),))
    lines = table(shown(one, view=DETAIL))
    assert fields(lines[1])[:10] == fields("n1 0 0.76 sm 75% 0.76 0.76 32.0GB - 2.0GB")
    assert "34%" in lines[1]
    assert "?" in lines[1]  # tensor: this driver has GPM and did not say
    assert "4711" in lines[1]
    assert fields(lines[2])[:5] == fields("n1 1 0.20 util 20%")
    assert lines[2].endswith("others have 2.0GB")
    assert lines[3].endswith("MIG: its instances follow")


def packed(index, **booking):
    """A GPU on which a packed run has booked memory."""
    one = GpuBooking(uid=2001, job=4711, booked_mib=6 * GB, tasks=2, clients=2, **booking)
    return gpu(index, booked_mib=one.booked_mib, bookings=(one,))


def test_what_is_booked_and_what_is_held_is_said_where_there_is_some(monkeypatch):
    """A column of its own only then; a GPU without a booking has a sign there, and so has a node without GPUs."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    plain = table(shown(node("n1", gpus=(gpu(0),)), view=DETAIL))
    assert "BOOKED" not in plain[0]
    held = packed(1, held_for=17, held_since=TAKEN - 600)
    nodes = node("n1", gpus=(packed(0), held, gpu(2))), node("n2")
    lines = table(shown(*nodes, view=DETAIL))
    at = lines[0].index("BOOKED")
    assert [line[at : at + 6].strip() for line in lines[1:5]] == ["6.0GB", "6.0GB", "-", "-"]
    assert lines[2].endswith("held for task 17 since 07:50")
    assert not lines[1].endswith("held")
    spoken = as_plain(survey(*nodes), DETAIL)
    assert "GPU 0: load 0.20, memory 2.0GB of 32.0GB used, booked 6.0GB, Tesla V100" in spoken
    assert any(line.startswith("GPU 1: ") and line.endswith(", held for task 17 since 07:50") for line in spoken)
    assert "GPU 2: load 0.20, memory 2.0GB of 32.0GB used, Tesla V100" in spoken


def test_jobs_and_processes_below():
    looked = survey(shared_node(), jobs=(queued(),))
    lines = as_lines(looked, View(jobs=True, processes=True), 200)
    job = next(line for line in lines if line.startswith("4711")).split()
    assert job[:10] == ["4711", "alice", "n1", "4", "8", "2", "2", "-", "0.35", "4.5GB"]
    assert job[-1] == "train"
    rows = [line.split() for line in lines if line.startswith("n1") and "python" in line]
    assert [row[1] for row in rows] == ["77", "78"]
    assert rows[0][8:12] == ["9%", "2.2GB", "2.2GB", "7.6GB"]
    assert "no process is on these GPUs" in shown(node("n1"), view=View(processes=True), width=80)


def test_simulated_gpus_and_the_demonstration_are_said_first():
    fake = survey(node("n1", gpus=(gpu(0, simulated=True),)))
    assert as_lines(fake, GPUS, 80)[0] == notes.SIMULATED
    assert as_plain(fake, GPUS)[0] == notes.SIMULATED
    assert shown(node("n1"), width=80)[0].startswith("LLGrid")
    assert as_lines(Demo(clock=lambda: TAKEN).read(), View(), 80)[0] == notes.DEMO


def test_hidden_gpus_are_said():
    one = node("n1", gpus=(gpu(0),), hidden_gpus=3)
    assert "3 GPUs on n1 are used by others only and not shown" in shown(one, width=80)


def test_age_and_source_are_said():
    def source(**more):
        return next(line for line in shown(node("n1"), view=View(), width=80, **more) if line.startswith("source"))

    assert source() == "source: srun; figures up to 3 s old; Slurm asked 20 s ago"
    assert source(taken=TAKEN + 400, jobs_taken=TAKEN) == (
        "source: srun; figures up to 7 min old (OLD); Slurm asked 7 min ago (OLD)"
    )
    assert source(jobs_taken=None) == "source: srun; figures up to 3 s old; without Slurm"
    assert "a node's clock is 3 min ahead" in source(taken=TAKEN - 200)


def test_nobody_there_is_a_sentence():
    lines = shown(view=View(if_empty=("you have no job running",)), width=80)
    assert "Nodes used: 0" in lines[1]
    assert lines[2:] == ["you have no job running"]


@pytest.mark.parametrize("height", [5, 10, 24])
def test_a_terminal_that_is_not_tall_enough_shows_the_first_nodes(height):
    many = survey(*(node(f"n{number}") for number in range(300)))
    lines = fitted(many, GPUS, 80, height)
    assert len(lines) <= height
    if height > 5:
        assert any("more nodes: a taller terminal" in line for line in lines)
        assert lines[3].startswith("n0 ")
    assert len(fitted(survey(node("n1")), GPUS, 80, 24)) < 24


def test_advice_is_one_line_a_job_and_those_first_that_should_change():
    def advice(job, verdict):
        return Advice(
            job=job, user="alice", nodes=("n1",), verdict=verdict, work="idle", now=1, next=1, sentence=verdict
        )

    found = tuple(advice(*one) for one in ((1, "unknown"), (2, "stay"), (3, "more"), (4, "fewer")))
    lines = shown(node("n1"), view=View(gpus=True, advice=found))
    assert lines[-4:] == [
        "advice for job 4: fewer",
        "advice for job 3: more",
        "advice for job 2: stay",
        "advice for 1 more job: llload --advise",
    ]
    # Where the terminal is not tall enough, nodes come before advice.
    many = survey(*(node(f"n{number}") for number in range(5)))
    lines = fitted(many, View(gpus=True, advice=found), 200, 12)
    assert [line for line in lines if line.startswith("advice")] == [
        "advice for job 4: fewer",
        "advice for 3 more jobs: llload --advise",
    ]
    assert sum(line.startswith("n") for line in lines) == 5


def test_a_screen_reader_gets_one_fact_a_line():
    lines = as_plain(survey(shared_node(), silent("n2")), View(gpus=True, detail=True, processes=True))
    assert "node: n1" in lines
    assert "cores: 40 of 40 used, 0 free" in lines
    assert "GPU load: 0.40 (utilisation)" in lines
    assert "GPU 1: load 0.20, memory 2.0GB of 32.0GB used, Tesla V100" in lines
    assert "process 77: alice, job 4711, GPU memory 2.2GB, python" in lines
    assert "no answer: no answer within 5 s" in lines
    assert "memory: unknown of 384GB used, unknown free" in lines


@pytest.mark.parametrize(
    ("environment", "terminal", "never", "wanted"),
    [
        ({"TERM": "xterm"}, True, False, True),
        ({"TERM": "xterm"}, False, False, False),
        ({"TERM": "xterm"}, True, True, False),
        ({"TERM": "dumb"}, True, False, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, False, True),
    ],
)
def test_colour_is_for_terminals_that_want_it(monkeypatch, environment, terminal, never, wanted):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert notes.is_color_wanted(never=never, terminal=terminal) is wanted


def test_what_matters_stays_in_a_narrow_terminal():
    lines = shown(shared_node(), jobs=(queued(),), view=EVERYTHING, width=40)
    headings = [line.split() for line in lines if "HOSTNAME" in line and not line.startswith("(")]
    assert [line[:3] for line in headings] == [
        ["HOSTNAME", "GPU", "LOAD"],
        ["JOB", "HOSTNAME", "TASKS"],
        ["HOSTNAME", "PID", "JOB"],
    ]
    named = " ".join(lines)
    assert all(word in named[named.rindex("(") :] for word in ("TASKPEAK", "USERS", "CAP"))


@pytest.mark.parametrize("view", [View(), GPUS, EVERYTHING, View(quiet=True)])
def test_a_strange_name_of_a_node_stays_a_text(view):
    strange = "n\x1bc2\x07"
    one = node(strange, gpus=(gpu(0, problem="lost"),), hidden_gpus=1, problems=("x",))
    looked = survey(one, silent(strange), silent("n[1-99999999]"), node("n" + "9" * 5000))
    for lines in (as_lines(looked, view, 100), as_plain(looked, view), notes.silence(looked)):
        assert not any(mark in "\n".join(lines) for mark in "\x1b\x07")


def test_of_mig_instances_only_the_full_one_is_marked():
    parts = [
        replace(gpu(0, total=10 * GB, used=used, mig_of="GPU-0"), uuid=f"MIG-{at}")
        for at, used in enumerate((1 * GB, 10 * GB, 1 * GB))
    ]
    lines = table(shown(node("n1", gpus=(gpu(0, mig_parent=True), *parts)), view=DETAIL))
    assert [line.endswith("v!") for line in lines[1:5]] == [False, False, True, False]


def test_no_process_is_said_of_the_whole_survey_and_not_of_what_there_is_room_for():
    many = survey(node("n0"), *(shared_node(f"n{number}") for number in range(1, 60)))
    lines = fitted(many, View(processes=True), 80, 8)
    assert any("more nodes" in line for line in lines)
    assert "no process is on these GPUs" not in lines


def test_rates_are_there_where_a_run_measures_them():
    now = 1_795_271_308.0
    cluster = Demo(everybody=True, clock=lambda: now).read()
    one = replace(cluster, nodes=tuple(each for each in cluster.nodes if each.name == "h-2"))
    lines = as_lines(one, EVERYTHING, 300)
    heads = [line for line in lines if " RATE" in line]
    assert len(heads) == 3
    assert " RATE  SPEED " in heads[2]
    rates = [line for line in lines if "/s log" in line]
    assert len(rates) == 4 + 1 + 8
    said = as_plain(one, EVERYTHING)
    assert any(line.startswith("process ") and "rate 2." in line and "/s log, speed 0." in line for line in said)
    other = replace(cluster, nodes=tuple(each for each in cluster.nodes if each.name == "v-1"))
    assert not any("RATE" in line or "SPEED" in line for line in as_lines(other, EVERYTHING, 300))
    assert not any("rate" in line.split() or "speed" in line.split() for line in as_plain(other, EVERYTHING))
