"""Compute the peak memory of a training step with the probe's fake tensors, and the features of the network.

Nothing is allocated and no GPU is needed. The results are sums of tensors, not measurements on a GPU.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).parents[3]
CONV, NORM = nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase
NORMS = (NORM, nn.LayerNorm, nn.GroupNorm)


def _hook() -> Any:
    spec = importlib.util.spec_from_file_location("probe_hook", ROOT / "slurm_share/lab/probe_hook.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Counted:
    """Counts layers and elements of outputs while a network runs."""

    def __init__(self, network: nn.Module) -> None:
        self.layers: Counter[str] = Counter()
        self.elements = 0
        self.hooks = []
        for part in network.modules():
            if next(part.children(), None) is None:
                self.layers[kind(part)] += 1
                self.hooks.append(part.register_forward_hook(self._saw))

    def _saw(self, _part: nn.Module, _given: object, made: object) -> None:
        if isinstance(made, torch.Tensor):
            self.elements += made.numel()

    def stop(self) -> None:
        for hook in self.hooks:
            hook.remove()


def kind(part: nn.Module) -> str:
    """Return the name under which a layer is counted; "other": it is not."""
    if isinstance(part, CONV):
        return "convolutions"
    if isinstance(part, nn.Linear):
        return "linears"
    if isinstance(part, NORMS):
        return "norms"
    if isinstance(part, nn.modules.dropout._DropoutNd):
        return "dropouts"
    return "other"


class FakeTraining:
    """Runs trainings on fake tensors, one after the other."""

    def __init__(self) -> None:
        self.probe = _hook().Probe(torch, -1)
        self.probe.enter()

    def run(self, make: Any) -> dict[str, float]:
        """Return features and the peak in MiB of two steps with Adam. `make` returns network, shape, batch."""
        probe = self.probe
        probe.live.clear()
        probe.total = probe.peak = 0
        with probe.mode:
            network, shape, batch = make()
            is_words = any(isinstance(part, nn.Embedding) for part in network.modules())
            given = torch.randint(0, 100, (batch, *shape)) if is_words else torch.randn(batch, *shape)
        optimiser = torch.optim.Adam(network.parameters())
        counted = Counted(network)
        for step in range(2):
            optimiser.zero_grad()
            with probe.mode:
                said = network(given)
                said = said if isinstance(said, torch.Tensor) else said[0]
                target = torch.zeros(said.shape[:-1], dtype=torch.long).reshape(-1)
                nn.functional.cross_entropy(said.reshape(-1, said.shape[-1]), target).backward()
            if step == 0:
                counted.stop()
            optimiser.step()  # outside the mode, because the optimiser reads its own step counter
        layers = counted.layers
        parameters = sum(one.numel() for one in network.parameters())
        return {
            **{name: layers[name] for name in ("convolutions", "linears", "norms", "dropouts")},
            "depth": sum(layers.values()),
            "batch": batch,
            "parameters": parameters,
            "activations": counted.elements // batch,
            "fake_mib": round(probe.peak / (1 << 20), 1),
        }
