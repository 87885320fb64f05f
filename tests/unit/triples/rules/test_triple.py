"""Parsing triples, and placing the processes of a node."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.core.errors import UsageError
from slurm_share.node.records import Core
from slurm_share.share.rules import limits
from slurm_share.triples.records import Triple
from slurm_share.triples.rules import triple as rule_triple


def machine(cores, *, sockets=1, threads=1):
    """A machine whose CPUs are numbered as Linux does: first threads of all cores, then second ones."""
    each = cores // sockets
    return tuple(
        Core(tuple(core + cores * thread for thread in range(threads)), core // each, core // each)
        for core in range(cores)
    )


V100_NODE = machine(40)
"""LLSC's: 40 cores and two GPUs."""


# ---- The words ----


@pytest.mark.parametrize(
    ("text", "triple"),
    [
        ("[1,8,5]", Triple(1, 8, 5)),
        ("[2,24]", Triple(2, 24)),
        ("2,24,1", Triple(2, 24, 1)),
        ("2,24", Triple(2, 24)),
        ("[65536,4096,4096]", Triple(65536, 4096, 4096)),
    ],
)
def test_a_triple_is_understood(text, triple):
    assert rule_triple.parse(text) == triple


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[0,8]", "the number of nodes is 1 to 65536, not 0"),
        ("[1,0,1]", "the number of processes on a node is 1 to 4096, not 0"),
        ("[1,8,0]", "the number of threads of a process is 1 to 4096, not 0"),
        ("[1,x]", "x is not a number of processes on a node"),
        ("[1,8,5,2]", "it has 4 numbers, not two or three"),
        ("[8]", "it has 1 number, not two or three"),
        ("[]", "it is empty"),
        ("", "it is empty"),
        ("8", "the shell has replaced it"),
        ("[1, 8]", "it contains a blank"),
        ("[1,8]\n", "it contains a blank"),
        ("[1,8,]", "it has no number of threads of a process"),
        ("[,8]", "it has no number of nodes"),
        ("[-1,8]", "-1 is not a number of nodes"),
        ("[+1,8]", "+1 is not a number of nodes"),
        ("[1_0,8]", "1_0 is not a number of nodes"),
        ("[1,8.5]", "8.5 is not a number of processes on a node"),
        ("[1,\u0668]", "is not a number of processes on a node"),
        ("[1,\u00b2]", "is not a number of processes on a node"),
        ("[1,8", "the ] is missing"),
        ("[1,", "perhaps because of a blank"),
        ("[1,99999999]", "the number of processes on a node is 1 to 4096, not 99999999"),
        ("[1," + "9" * 5000 + "]", "it is too long"),
    ],
)
def test_what_is_no_triple_gets_a_sentence_with_a_valid_form(text, why):
    with pytest.raises(UsageError) as caught:
        rule_triple.parse(text)
    said = str(caught.value)
    assert why in said
    assert "such as [2,8,5]" in said
    assert said.isprintable()
    assert len(said) < 300


@given(st.integers(1, 65536), st.integers(1, 4096), st.none() | st.integers(1, 4096))
def test_a_triple_that_was_written_is_read_again(nodes, per_node, threads):
    triple = Triple(nodes, per_node, threads)
    assert rule_triple.parse(str(triple)) == triple


@given(st.text(max_size=60))
def test_no_text_makes_it_fail_otherwise(text):
    try:
        assert rule_triple.parse(text).nodes >= 1
    except UsageError:
        pass


# ---- The places ----


def test_processes_take_the_gpus_in_turn():
    places = rule_triple.lay_out(5, 8, V100_NODE, (None, None))
    assert [place.gpu for place in places] == [0, 1, 0, 1, 0]
    assert [place.local for place in places] == [0, 1, 2, 3, 4]
    assert [place.cpus for place in places] == [tuple(range(first, first + 8)) for first in range(0, 40, 8)]


def test_boundaries_are_llscs():
    """int(linspace(0, 40, 7)): 6, 7, 7, 6, 7, 7 cores."""
    places = rule_triple.lay_out(6, None, V100_NODE, (0, 0))
    assert [len(place.cpus) for place in places] == [6, 7, 7, 6, 7, 7]


def test_on_two_sockets_each_process_is_on_its_gpus():
    cores = machine(40, sockets=2, threads=2)
    places = rule_triple.lay_out(5, None, cores, (0, 1))
    socket = {cpu: core.socket for core in cores for cpu in core.cpus}
    assert [{socket[cpu] for cpu in place.cpus} for place in places] == [{0}, {1}, {0}, {1}, {0}]
    assert [len(place.cpus) for place in places] == [12, 20, 14, 20, 14]
    assert {place.threads for place in places} == {8}


TWO_SOCKETS = machine(8, sockets=2)
FOUR_NUMA_NODES = tuple(Core((cpu,), cpu // 4, cpu // 2) for cpu in range(8))


@pytest.mark.parametrize(
    ("cores", "gpu_numa", "cpus"),
    [
        (machine(4), (), [(0, 1), (2, 3)]),
        # More processes than cores begin again at the first, and stay at their GPU.
        (machine(2, threads=2), (), [(0, 2), (1, 3), (0, 2), (1, 3), (0, 2)]),
        (machine(4, sockets=2), (0, 1), [(0,), (2,), (1,), (3,), (0,), (2,), (1,), (3,)]),
        # The order of GPUs is not that of the sockets.
        (machine(4, sockets=2), (1, 0), [(2, 3), (0, 1)]),
        # Both GPUs are at one socket: no core is idle.
        (TWO_SOCKETS, (1, 1), [(4, 5), (6, 7), (0, 1), (2, 3)]),
        # Both are on NUMA node 3, which shares its socket with node 2.
        (FOUR_NUMA_NODES, (3, 3), [(6, 7), (4, 5), (0, 1), (2, 3)]),
        # The place of one GPU is known, of none, or it is no NUMA node of the cores.
        (TWO_SOCKETS, (1, None), [(4, 5), (0, 1), (6, 7), (2, 3)]),
        *((TWO_SOCKETS, numa, [(0, 1), (2, 3), (4, 5), (6, 7)]) for numa in ((None, None), (None,), (7, 7))),
    ],
)
def test_processes_are_near_their_gpus_and_no_core_is_idle(cores, gpu_numa, cpus):
    places = rule_triple.lay_out(len(cpus), None, cores, gpu_numa)
    assert [place.cpus for place in places] == cpus


@st.composite
def nodes(draw):
    """Cores on sockets with NUMA nodes, some of them not ours, and GPUs somewhere."""
    sockets, per_socket, numas, per_numa, threads = (draw(st.integers(1, top)) for top in (2, 2, 2, 9, 2))
    count = sockets * per_socket * numas * per_numa
    all_cores = [
        Core(tuple(core + count * thread for thread in range(threads)), core // (count // sockets), core // per_numa)
        for core in range(count)
    ]
    kept = draw(st.sets(st.integers(0, count - 1), min_size=1))
    gpu_numa = draw(st.lists(st.none() | st.integers(0, 9), max_size=8))
    return tuple(all_cores[core] for core in sorted(kept)), tuple(gpu_numa)


@given(nodes(), st.integers(1, 100), st.none() | st.integers(1, 9))
def test_whatever_the_machine(node, per_node, threads):
    """All cores are used, evenly; hardware threads of a core stay together; GPUs have equally many processes, +-1."""
    cores, gpu_numa = node
    places = rule_triple.lay_out(per_node, threads, cores, gpu_numa)
    assert len(places) == per_node
    core_of = {cpu: number for number, core in enumerate(cores) for cpu in core.cpus}
    uses = Counter(core_of[cpu] for place in places for cpu in set(place.cpus))
    for place in places:
        assert place.cpus
        mine = {core_of[cpu] for cpu in place.cpus}
        assert sorted(cpu for number in mine for cpu in cores[number].cpus) == list(place.cpus)
        assert place.threads == (threads or max(1, len(cores) // per_node))
    per_core = {uses[number] // len(core.cpus) for number, core in enumerate(cores)}
    if per_node <= len(cores):
        assert per_core == {1}
    else:
        assert max(per_core) == math.ceil(per_node / len(cores))
    on_gpu = Counter(place.gpu for place in places)
    if gpu_numa:
        counts = [on_gpu[gpu] for gpu in range(len(gpu_numa))]
        assert max(counts) - min(counts) <= 1
        assert max(counts) == limits.tasks_per_gpu(per_node, len(gpu_numa))
    else:
        assert set(on_gpu) == {None}


# ---- What is said ----


@pytest.mark.parametrize(
    ("triple", "cores", "said"),
    [
        ((1, 8, 5), 40, ""),
        ((1, 3, None), 40, ""),
        ((1, 24, None), 40, ""),
        ((1, 8, 2), 40, "Underutilizing the node: 8 processes x 2 threads = 16 of 40 cores; [1,8,5] would use 40"),
        ((2, 3, 13), 40, "Underutilizing the node: 3 processes x 13 threads = 39 of 40 cores; [2,4,10] would use 40"),
        ((1, 1, 1), 2, "Underutilizing the node: 1 process x 1 thread = 1 of 2 cores; [1,1,2] would use 2"),
        ((2, 24, 2), 40, "Oversubscribing the node: 24 processes x 2 threads = 48 on 40 cores; [2,24,1] would fit"),
        ((1, 60, None), 40, "Oversubscribing the node: 60 processes x 1 thread = 60 on 40 cores; [1,40,1] would fit"),
        ((1, 2, 1), 1, "Oversubscribing the node: 2 processes x 1 thread = 2 on 1 core; [1,1,1] would fit"),
    ],
)
def test_the_two_warnings(triple, cores, said):
    assert rule_triple.notes(*triple, cores) == ((said,) if said else ())


@given(st.integers(1, 9), st.integers(1, 300), st.integers(1, 300), st.integers(1, 300))
def test_the_triple_that_is_recommended_fits(nodes, per_node, threads, cores):
    for note in rule_triple.notes(nodes, per_node, threads, cores):
        better = rule_triple.parse(note.split("; ")[1].split()[0])
        assert better.nodes == nodes
        assert better.per_node * better.threads <= cores
        if note.startswith("Under"):
            assert per_node * threads < better.per_node * better.threads
        else:
            assert per_node * threads > cores


# ---- Slurm's words ----


@pytest.mark.parametrize(
    ("text", "index", "ranks"),
    [
        ("2(x3),1", 0, (0, 2)),
        ("2(x3),1", 2, (4, 2)),
        ("2(x3),1", 3, (6, 1)),
        ("4", 0, (0, 4)),
        ("1,3,2(x2)", 3, (6, 2)),
        ("1(x999999999)", 123456789, (123456789, 1)),
    ],
)
def test_the_ranks_of_a_node_without_a_triple(text, index, ranks):
    assert rule_triple.ranks_of(text, index) == ranks


@pytest.mark.parametrize("text", ["", "2(x3", "x", "2,", "-1", "2(3)", "\u0662", "2(x3),1"])
def test_words_that_say_nothing_of_the_node(text):
    with pytest.raises(ValueError, match="node"):
        rule_triple.ranks_of(text, 4)
