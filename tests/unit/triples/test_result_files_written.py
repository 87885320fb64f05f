"""Writing results.jsonl: survives crashes, incomplete lines and a full disk."""

import errno
import os

from slurm_share.triples import run_folder
from slurm_share.triples.records import Ended
from slurm_share.triples.result_files import Results


def ended(task, outcome="done"):
    return Ended(task=task, rank=0, attempt=1, outcome=outcome, node="n1", job="7", started=float(task), seconds=0.5)


def read(folder):
    return [one.task for one in run_folder.parse_results((folder / run_folder.RESULTS).read_bytes())]


def test_results_are_there_at_once(tmp_path):
    results = Results(tmp_path)
    results.write(ended(1))
    results.write(ended(2), ended(3))
    assert read(tmp_path) == [1, 2, 3]


def test_half_a_line_of_an_earlier_crash_costs_only_itself(tmp_path):
    (tmp_path / run_folder.RESULTS).write_bytes(run_folder.render_ended(ended(1)) + b'{"task": 2, "ra')
    results = Results(tmp_path)
    results.write(ended(3))
    results.close()
    assert read(tmp_path) == [1, 3]


def test_a_full_disk_is_tried_again_and_what_found_no_room_is_known(tmp_path, monkeypatch):
    results = Results(tmp_path)
    write, room = os.write, [30, 0, 0]

    def narrow(fd, data):
        if not room:
            return write(fd, data)
        now = room.pop(0)
        if now == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[:now])

    monkeypatch.setattr(os, "write", narrow)
    results.write(ended(1))
    results.write(ended(2))
    results.settle()
    assert results.write_error is not None
    assert results.lost
    results.settle()
    assert results.lost == b""
    assert read(tmp_path) == [1, 2]
    results.close()
