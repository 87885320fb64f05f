"""The record of variables that slurm-share set."""

from __future__ import annotations

import os

from slurm_share.core import given_variables, names


def with_record(job: int, values: dict[str, str], **more: str) -> dict[str, str]:
    return {**values, **more, names.ENV_GIVEN: given_variables.render(job, values)}


def test_another_job_does_not_inherit_and_the_same_one_does() -> None:
    environ = with_record(7, {"OMP_NUM_THREADS": "1"}, HOME="/h")
    assert given_variables.forget(environ) == given_variables.forget(environ, 8) == {"HOME": "/h"}
    assert given_variables.forget(environ, 7) == environ
    assert given_variables.forget({"OMP_NUM_THREADS": "1"}) == {"OMP_NUM_THREADS": "1"}


def test_what_the_user_changed_is_the_users() -> None:
    environ = with_record(7, {"OMP_NUM_THREADS": "1"}) | {"OMP_NUM_THREADS": "8"}
    assert given_variables.forget(environ) == {"OMP_NUM_THREADS": "8"}
    assert given_variables.read(environ) == {}


def test_values_with_odd_characters_are_recognised() -> None:
    for value in ("", " ", "a b=c%41", "\n", "\u00e4", os.fsdecode(b"\xff"), "%"):
        environ = with_record(7, {"VALUE": value, "NEXT": "1"})
        assert given_variables.read(environ) == {"VALUE": value, "NEXT": "1"}
        assert " " not in environ[names.ENV_GIVEN].partition("VALUE=")[2].partition(" NEXT=")[0]


def test_a_name_without_a_value_goes_whatever_its_value_is() -> None:
    environ = {"LLSUB_RANK": "5", names.ENV_GIVEN: given_variables.render(7, {"LLSUB_RANK": None})}
    assert given_variables.forget(environ) == {}


def test_a_record_that_was_cut_off_or_forged_removes_no_variable_of_the_users() -> None:
    environ = {"HOME": "/h", "LD_LIBRARY_PATH": "/l", names.ENV_GIVEN: "7 HOME LD_LIBRARY_PATH"}
    assert given_variables.forget(environ) == {"HOME": "/h", "LD_LIBRARY_PATH": "/l"}
    environ[names.ENV_GIVEN] = "7 HOME=/other LD_LIBRARY_PATH=%2"
    assert given_variables.forget(environ) == {"HOME": "/h", "LD_LIBRARY_PATH": "/l"}


def test_slurms_own_variables_of_the_new_job_stay_in_its_step() -> None:
    environ = with_record(7, {"SLURM_NTASKS": "1", "SLURM_SHARE_SLOT": "0", "CUDA_VISIBLE_DEVICES": "0", "TF": "1"})
    kept = given_variables.forget(environ, 8, slurms_stay=True)
    assert kept == {"SLURM_NTASKS": "1", "CUDA_VISIBLE_DEVICES": "0"}


def test_what_does_not_fit_is_not_recorded() -> None:
    text = given_variables.render(7, {"LARGE": " " * names.GIVEN_MAX_BYTES, "SMALL": "1"})
    assert text == "7 SMALL=1"


def test_a_damaged_record_is_another_jobs() -> None:
    for record, job in (("", 0), ("x OMP=1", 0), ("-1", 0), ("4294967296", 0), ("7", 7)):
        assert given_variables.recorded_job({names.ENV_GIVEN: record}) == job
    assert given_variables.recorded_job({}) is None
