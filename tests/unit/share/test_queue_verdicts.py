"""Reading and changing the controller's verdicts in the queue."""

from __future__ import annotations

import json

from slurm_share.share import queue_verdicts
from slurm_share.share.rules import switch


def test_a_queue_is_read_as_scontrol_names_its_jobs():
    """Pending elements of an array are one entry. The last element has the number of the array, which for scontrol
    would mean the whole array, so running elements are named by array and index."""
    none = {"set": False, "infinite": False, "number": 0}
    common = {
        "partition": "gpu,debug",
        "admin_comment": "ours;share-gpu=4",
        "extra": "",
        "comment": "",
        "restart_cnt": 1,
    }

    def one(job_id, state, array=0, element=none, elements=""):
        many = {"set": True, "infinite": False, "number": array}
        return {"job_id": job_id, "array_job_id": many, "array_task_id": element, "array_task_string": elements,
                "job_state": state, **common}  # fmt: skip

    element = {"set": True, "infinite": False, "number": 3}
    jobs = [
        one(7, ["PENDING"]),
        one(9, ["PENDING"], 9, none, "4-8%2"),
        one(10, ["RUNNING"], 9, element),
        one(9, ["RUNNING"], 9, {**element, "number": 9}),
        one(11, ["COMPLETED"]),
        one(12, ["PENDING", "REQUEUED"]),
    ]
    found = queue_verdicts.parse(json.dumps({"jobs": jobs}))
    assert [(each.which, each.is_pending) for each in found] == [
        ("7", True), ("9_[4-8]", True), ("9_3", False), ("9_9", False), ("12", True)
    ]  # fmt: skip
    assert found[0].partitions == ("gpu", "debug")
    assert all(each.was_shaped and each.restarts == 1 for each in found)


def test_what_a_user_wrote_in_no_utf8_stays_as_it_is(tmp_path, monkeypatch):
    bytes_of_hers = b"caf\xe9 \xff " + "é→".encode()
    common = {
        "job_id": 7, "array_job_id": {}, "array_task_id": {}, "array_task_string": "", "job_state": ["PENDING"],
        "partition": "gpu", "admin_comment": "share-gpu=4", "extra": "HERS\n;slurm-share=on", "comment": "",
        "restart_cnt": 0,
    }  # fmt: skip
    answer = json.dumps({"jobs": [common]}).encode().replace(b"HERS", bytes_of_hers)
    (tmp_path / "answer").write_bytes(answer)
    (tmp_path / "squeue").write_text(f"#!/bin/sh\ncat {tmp_path}/answer\n")
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\nprintf %s "$3" >{tmp_path}/said\n')
    for name in ("squeue", "scontrol"):
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (update,) = switch.updates(queue_verdicts.read(), lambda partitions: "on", off=True)
    assert queue_verdicts.change(update) is None
    assert (tmp_path / "said").read_bytes() == b"extra=" + bytes_of_hers + b"\n;slurm-share=off"
