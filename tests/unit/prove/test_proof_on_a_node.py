"""A proof on a node whose GPU and jobs are fakes."""

from __future__ import annotations

import contextlib

import pytest

from slurm_share.core.errors import UsageError
from slurm_share.core.settings import Settings
from slurm_share.node.records import Gpu, LiveJob
from slurm_share.prove import proof
from slurm_share.share import methods


@pytest.fixture
def probed(monkeypatch):
    """Let every probe find nothing; return the names of those that ran, and the jobs of the node."""
    ran, jobs = [], []
    gpu = Gpu("GPU-1", 0, 0, "NVIDIA H100", 80000, compute_capability=(9, 0))
    offer = methods.NodeOffer(driver="580.1", gpus=(gpu,), mps_program="/mps", has_mps_program=True)
    monkeypatch.setattr(proof.node_offer, "read_offer", lambda _settings: offer)
    monkeypatch.setattr(proof.stages, "alone", lambda _program: contextlib.nullcontext())
    monkeypatch.setattr(proof, "_cap", lambda _gpu: (4096, 80000))
    monkeypatch.setattr(proof, "_check_idle", lambda _node, _gpu: None)
    monkeypatch.setattr(proof.processes, "read_live_jobs", lambda: tuple(jobs))
    monkeypatch.setattr(proof.stages.Stage, "reset", lambda _stage: None)
    monkeypatch.setattr(proof.Probes, "run", lambda _probes, name: ran.append(name) or {"ended": True, "neighbour": ""})
    return ran, jobs


def prove(say=lambda _verdict: None):
    return proof.prove(Settings(), None, "nobody", lambda _proof: None, say, ("fault-alone", "kill-alone"))


def test_a_proof_runs_the_wanted_probes(probed):
    assert [one.outcome for one in prove().verdicts] == ["holds", "holds"]
    assert probed[0] == ["fault_without_mps", "killed_in_kernel"]


def test_a_job_that_begins_meanwhile_ends_the_proof_before_the_next_probe(probed):
    ran, jobs = probed
    with pytest.raises(UsageError, match="job 7 runs here now, so the proof has ended early; drain the node first"):
        prove(lambda _verdict: jobs.append(LiveJob(7, 1000)))
    assert ran == ["fault_without_mps"]
