"""`slurm-share methods` on a node with GPUs, on one without, and where the driver does not answer."""

from __future__ import annotations

import json

import pytest

from slurm_share.cli import main
from slurm_share.cli import methods as command
from slurm_share.core.errors import DriverError
from slurm_share.core.settings import Configuration, Settings
from slurm_share.node.records import Driver
from slurm_share.share import node_offer
from slurm_share.testing import FakeNvml


@pytest.fixture
def node(monkeypatch, tmp_path):
    def of(driver, *, v2=True, **settings):
        root = tmp_path / "cgroup"
        root.mkdir(exist_ok=True)
        if v2:
            (root / "cgroup.controllers").write_text("cpu memory dmem\n")
        real = node_offer.read_offer
        monkeypatch.setattr(command, "load", lambda: Configuration(Settings(mode="on", **settings), {}))
        monkeypatch.setattr(node_offer, "nvml", driver)
        monkeypatch.setattr(node_offer, "read_offer", lambda values: real(values, str(root)))

    return of


@pytest.fixture
def printed(capsys):
    def run(*words):
        code = main.main(["methods", *words])
        return code, capsys.readouterr().out

    return run


def test_each_method_has_a_line_with_an_example_or_the_reason(node, printed):
    node(FakeNvml().gpu(), mps_control="/bin/true")
    code, text = printed()
    assert code == 0
    assert "driver 550.0-fake, cgroup v2" in text
    assert "MPS, sm=static" in text
    assert "needs driver 590 or newer, and this node has 550" in " ".join(text.split())
    assert "--share-gpu=4,sm=even" in text


def test_json_says_what_is_simulated(node, printed):
    node(FakeNvml().gpu(simulated=True), mps_control="/bin/true", simulated_gpus=True)
    code, text = printed("--json")
    found = json.loads(text)
    assert (code, found["schema"], found["simulated"], found["cgroup"]) == (0, 1, True, 2)
    here = {one["name"]: one["is_here"] for one in found["methods"]}
    assert here["MPS"] is True
    assert here["elastic memory"] is False
    assert "SIMULATED" in printed()[1]


def test_a_host_without_gpus_names_the_nodes_to_ask(node, printed, monkeypatch):
    node(FakeNvml("gone"))
    monkeypatch.setattr(node_offer.nvml, "read_driver", raising(node_offer.NO_DRIVER), raising=False)
    monkeypatch.setattr(command, "_nodes_with_gpus", lambda: ["gpu01", "gpu02"])
    code, text = printed()
    assert (code, "the nodes with GPUs are gpu[01-02]" in text, "srun --gres=gpu:1" in text) == (0, True, True)


@pytest.mark.parametrize(("host", "code"), [("login", 0), ("gpu01", 1)])
def test_a_driver_that_does_not_answer_is_no_error_where_slurm_has_no_gpus(node, printed, monkeypatch, host, code):
    node(FakeNvml("gone"))
    monkeypatch.setattr(node_offer.nvml, "read_driver", raising("Driver Not Loaded"), raising=False)
    monkeypatch.setattr(command, "_nodes_with_gpus", lambda: ["gpu01"])
    monkeypatch.setattr("slurm_share.slurm.node_name.read_node_name", lambda: host)
    found, text = printed()
    assert (found, "Driver Not Loaded" in text, "gpu01" in text) == (code, code == 1, True)


def test_a_driver_that_does_not_answer_is_an_error(node, printed, monkeypatch):
    node(FakeNvml("gone"))
    monkeypatch.setattr(node_offer.nvml, "read_driver", raising("Driver Not Loaded"), raising=False)
    monkeypatch.setattr(command, "_nodes_with_gpus", list)
    code, text = printed()
    assert code == 1
    assert "does not answer" in text
    assert "Driver Not Loaded" in text


def raising(reason):
    def read() -> Driver:
        raise DriverError("nvmlInit", reason)

    return read
