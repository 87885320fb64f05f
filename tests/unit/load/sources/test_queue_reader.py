"""Reading the queue of the whole cluster."""

from __future__ import annotations

import pytest

from slurm_share.core.errors import SlurmShareError
from slurm_share.load.sources import queue_reader


@pytest.mark.parametrize(
    "why", ["Slurm does not answer: no word from its controller within 10 s", "squeue: error: Access denied"]
)
def test_a_failure_is_told_once_and_not_as_another_one(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise SlurmShareError(why)

    for module, name in ((queue_reader.jobs, "read_node_kinds"), (queue_reader.nodes, "read_nodes")):
        monkeypatch.setattr(module, name, lambda **_: ())
    monkeypatch.setattr(queue_reader, "read_jobs", fail)
    assert queue_reader.read_queue_state().problem == f"the queue is not known: {why}"
