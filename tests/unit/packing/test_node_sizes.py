from __future__ import annotations

import pytest

from slurm_share.packing.node_sizes import EVERY_S, FILE, NodeSizes
from slurm_share.packing.records import TaskAsk, TaskKey
from slurm_share.packing.rules.estimate.estimator import Estimator

KEY = TaskKey("exact", "family", (("--batch", 32.0),), "series", "script")


@pytest.fixture
def nodes(tmp_path):
    folders = [tmp_path / "p0-p3_n1", tmp_path / "p4-p7_n2"]
    for folder in folders:
        folder.mkdir()
    return folders


def test_a_node_reads_what_another_has_told_once(nodes):
    one, other = NodeSizes(nodes[0]), NodeSizes(nodes[1])
    assert one.append(KEY, "A100", 5000, 61.0) is None
    (found,) = other.read_others(0)
    assert (found.key.exact, found.key.family, found.gpu_model, found.peak_mib) == ("exact", "family", "A100", 5000)
    assert other.read_others(1) == []
    assert one.read_others(0) == []


def test_a_size_told_by_another_node_is_used_here(nodes):
    """The names of the numbers are hashes on the way, and count as the same."""
    for batch, peak in ((32.0, 4000), (64.0, 5000)):
        told = TaskKey(f"exact {batch}", "family", (("--batch", batch),), "series")
        NodeSizes(nodes[0]).append(told, "A100", peak, 900.0)
    estimator = Estimator()
    for size in NodeSizes(nodes[1]).read_others(0):
        estimator.sibling(size.key, size.gpu_model, size.peak_mib, size.age_s)
    ask = TaskAsk(task=1, key=TaskKey("new", "family", (("--batch", 128.0),), "series"))
    found = estimator.estimate(ask, "A100", 40_960)
    assert (found.source, found.point_mib) == ("line", round(7000 * 1.05))
    assert b"--batch" not in (nodes[0] / FILE).read_bytes()


def test_others_are_read_every_half_minute(nodes):
    sizes = NodeSizes(nodes[0])
    assert sizes.is_due(5)
    sizes.read_others(5)
    assert not sizes.is_due(5 + EVERY_S - 1)
    assert sizes.is_due(5 + EVERY_S)
    assert not NodeSizes(nodes[0], is_alone=True).is_due(5)


def test_a_node_that_begins_later_is_read_too(tmp_path):
    (tmp_path / "p0-p3_n1").mkdir()
    reader = NodeSizes(tmp_path / "p0-p3_n1")
    assert reader.read_others(0) == []
    (tmp_path / "p4-p7_n2").mkdir()
    NodeSizes(tmp_path / "p4-p7_n2").append(KEY, "A100", 5000, 61.0)
    assert len(reader.read_others(30)) == 1


def test_equal_tasks_are_told_once(nodes):
    sizes = NodeSizes(nodes[0])
    for peak in (5000, 5000, 4900, 6000):
        sizes.append(KEY, "A100", peak, 60.0)
    assert len((nodes[0] / FILE).read_bytes().splitlines()) == 2


def test_half_a_line_is_read_when_it_is_whole(nodes):
    reader = NodeSizes(nodes[1])
    NodeSizes(nodes[0]).append(KEY, "A100", 5000, 61.0)
    file = nodes[0] / FILE
    line = file.read_bytes()
    file.write_bytes(line[:20])
    assert reader.read_others(0) == []
    file.write_bytes(line)
    assert len(reader.read_others(0)) == 1


@pytest.mark.parametrize("bad", [b"nonsense", b'{"version":2,"peak_mib":5}', b'{"peak_mib":-1}', b"\xff", b"[" * 9999])
def test_a_line_that_is_none_is_passed_over(nodes, bad):
    (nodes[0] / FILE).write_bytes(bad + b"\n")
    NodeSizes(nodes[0]).append(KEY, "A100", 5000, 61.0)
    assert len(NodeSizes(nodes[1]).read_others(0)) == 1


def test_a_file_without_a_line_s_end_does_not_hold_up_the_reader(nodes):
    (nodes[0] / FILE).write_bytes(bytes(1 << 20))
    reader = NodeSizes(nodes[1])
    for now in range(5):
        assert reader.read_others(now) == []
    NodeSizes(nodes[0]).append(KEY, "A100", 6000, 61.0)
    assert [size.peak_mib for size in reader.read_others(9)] == [6000]


def test_a_link_is_not_followed(nodes, tmp_path):
    (tmp_path / "x").write_bytes(b"")
    (nodes[0] / FILE).symlink_to(tmp_path / "x")
    assert NodeSizes(nodes[1]).read_others(0) == []
    sizes = NodeSizes(nodes[0])
    assert sizes.append(KEY, "A100", 5000, 61.0) is not None
    assert sizes.append(KEY, "A100", 9000, 61.0) is None
    assert (tmp_path / "x").stat().st_size == 0
