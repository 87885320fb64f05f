"""Nodes that need somebody come first, and rows keep their places while somebody reads them."""

from __future__ import annotations

import llload_surveys
from llload_surveys import gpu
from msgspec.structs import replace

from slurm_share.load.rules.node_rows import CALM_S, SeverityOrder, row_of
from slurm_share.load.snapshot import HeldGpu, NodeLoad


def healthy(name):
    return llload_surveys.node(name, load=20.0, memory=100, memory_used=10, gpus=[gpu(0, load=80.0)], gpus_used=1)


def dead(name):
    return NodeLoad(name=name, why="no answer")


def full(name):
    return llload_surveys.node(name, load=20.0, memory=100, memory_used=97, gpus=[gpu(0, load=80.0)], gpus_used=1)


def waste(name):
    held = (HeldGpu(uuid=gpu(0).uuid, index=0, job=7, user="alice", idle=True),)
    return replace(healthy(name), held_gpus=held)


def hint(name):
    return llload_surveys.node(name, load=1.0, memory=100, memory_used=10, gpus=[gpu(0, load=80.0)], gpus_used=1)


def names(order, nodes, now=1000.0, **words):
    return [row.name for row in order.sorted([row_of(node) for node in nodes], now, **words)]


def test_dead_comes_before_full_before_waste_before_hints_then_by_name():
    nodes = [healthy("n1"), hint("n2"), waste("n3"), full("n4"), dead("n5"), waste("n6"), healthy("n7")]
    assert [row_of(node).severity for node in nodes] == ["", "hint", "waste", "full", "dead", "waste", ""]
    assert names(SeverityOrder(), nodes) == ["n5", "n4", "n3", "n6", "n2", "n1", "n7"]


def test_a_node_rises_at_once_and_falls_only_after_a_minute():
    order, before, after = SeverityOrder(), [healthy("n1"), hint("n2")], [healthy("n1"), healthy("n2")]
    assert names(order, [healthy("n1"), healthy("n2")], 0.0) == ["n1", "n2"]
    assert names(order, before, 5.0) == ["n2", "n1"]
    assert names(order, after, 10.0) == ["n2", "n1"]
    assert names(order, before, 15.0) == ["n2", "n1"]
    assert names(order, after, 15.0 + CALM_S) == ["n1", "n2"]


def test_an_order_that_is_held_does_not_change_and_takes_new_nodes_at_its_end():
    order = SeverityOrder()
    assert names(order, [healthy("n1"), hint("n2"), healthy("n3")]) == ["n2", "n1", "n3"]
    later = [dead("n0"), healthy("n1"), healthy("n2"), dead("n3")]
    assert names(order, later, 2000.0, is_held=True) == ["n2", "n1", "n3", "n0"]
    assert names(order, later, 2005.0) == ["n0", "n3", "n1", "n2"]
