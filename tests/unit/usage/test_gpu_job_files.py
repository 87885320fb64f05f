"""The names and lines of the files that dcgm-exporter and the exporter of jobstats read."""

from __future__ import annotations

import pytest

from slurm_share.node.records import Gpu
from slurm_share.usage.rules import gpu_jobs
from slurm_share.usage.rules.gpu_jobs import FileLine, GpuJob

GPU = Gpu("GPU-3aa2-11", 2, 5, "H100", 80000)
INSTANCE = Gpu("MIG-77aa-22", 1, None, "H100 MIG 1g.10gb", 9728)


def names(gpu, instances=None, mapping="/m", gpustat="/g"):
    found = gpu_jobs.lines_of(7, 1000, [gpu], instances or {}, mapping, gpustat)
    return [(line.folder + "/" + line.name, line.text) for line in found]


def test_a_gpu_is_named_by_nvmls_index_and_for_jobstats_by_its_uuid_as_well():
    assert names(GPU) == [("/m/2", "7"), ("/g/GPU-3aa2-11", "7 1000"), ("/g/2", "7 1000")]


def test_a_mig_instance_is_named_by_the_index_of_its_gpu_and_the_drivers_instance_id():
    assert names(INSTANCE, {"MIG-77aa-22": 11}) == [
        ("/m/1.11", "7"),
        ("/g/MIG-77aa-22", "7 1000"),
        ("/g/1.11", "7 1000"),
    ]


def test_a_mig_instance_whose_id_the_driver_does_not_tell_never_stands_for_its_gpu():
    assert names(INSTANCE) == [("/g/MIG-77aa-22", "7 1000")]


def test_a_gpu_that_does_not_answer_is_named_by_its_index_only():
    silent = Gpu("GPU-unknown-3", 3, None, "unknown", None, problem="GPU is lost")
    assert names(silent) == [("/m/3", "7"), ("/g/3", "7 1000")]


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("0", True), ("12", True), ("3.10", True), ("GPU-3aa2-11", True), ("MIG-GPU-3aa2_1_0", True),
     ("1e5", False), ("+3", False), (".5", False), ("5.", False), ("1.2.3", False), ("README", False), ("²", False)],
)  # fmt: skip
def test_only_names_that_mean_a_gpu_are_the_hooks_to_remove(name, is_one):
    assert gpu_jobs.is_of_gpu(name) is is_one


def test_a_job_that_has_a_live_step_or_another_gpu_is_not_over():
    def job(number, *uuids, boot="b"):
        return GpuJob(number, 1000, boot, 1.0, uuids)

    known = [job(1, "a"), job(2, "a"), job(3, "b"), job(4, "b", boot="earlier"), job(9, "a")]
    assert gpu_jobs.ended(known, job(9, "a"), [2]) == (1, 4)


def test_a_job_has_one_line_in_a_file():
    lines = (FileLine("/m", "0", "7"), FileLine("/m", "0", "7"))
    assert gpu_jobs.contents([GpuJob(7, 1000, "b", 1.0, (), lines)]) == {("/m", "0"): ("7",)}
