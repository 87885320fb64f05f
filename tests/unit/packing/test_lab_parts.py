"""What a live run takes from the laboratory, and what it says where that is not installed."""

import subprocess
import sys

import pytest

from slurm_share.core.errors import UsageError
from slurm_share.lab import thesis_policies
from slurm_share.packing import lab_parts
from slurm_share.packing.records import PackRequest, PackSettings
from slurm_share.packing.rules import place


@pytest.fixture
def without_lab(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("slurm_share.lab.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "slurm_share.lab", None)


def test_a_policy_of_the_literature_decides_by_the_laboratory():
    assert lab_parts.policy_of(PackSettings(policy="lug")) is thesis_policies.decide
    assert lab_parts.policy_of(PackSettings(policy="booked")) is place.decide


@pytest.mark.parametrize(
    ("request_", "option"),
    [
        (PackRequest(settings=PackSettings(policy="lug")), "--pack=lug"),
        (PackRequest(estimate="static"), "--estimate=static"),
    ],
)
def test_without_the_laboratory_its_parts_are_refused_with_what_to_write(without_lab, request_, option):
    with pytest.raises(UsageError, match=option) as caught:
        lab_parts.check_parts(request_)
    assert "not installed here; write " in str(caught.value)


def test_without_the_laboratory_other_runs_are_accepted(without_lab):
    lab_parts.check_parts(PackRequest())
    assert lab_parts.policy_of(PackSettings()) is place.decide
    assert lab_parts.outside_sizes("history", {}) is None


EVERY_OTHER = """
import importlib, pkgutil, sys
sys.modules["slurm_share.lab"] = None
import slurm_share
for module in pkgutil.walk_packages(slurm_share.__path__, "slurm_share.", onerror=lambda name: None):
    if not module.name.startswith(("slurm_share.lab", "slurm_share.spmd", "slurm_share.integrations.")):
        importlib.import_module(module.name)
"""


def test_every_other_module_is_imported_without_the_laboratory():
    subprocess.run([sys.executable, "-I", "-c", EVERY_OTHER], check=True)
