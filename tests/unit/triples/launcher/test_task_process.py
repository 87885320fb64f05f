"""The environment of successive tasks holds the value of each variable that was set last."""

from __future__ import annotations

from slurm_share.core import given_variables
from slurm_share.triples.launcher import environment as environments
from slurm_share.triples.launcher.task_process import SPARE_BYTES, Environment


def lines(environment: Environment) -> list[bytes | None]:
    return list(environment.array)


def test_the_value_set_last_stands_in_the_array_however_long_it_is() -> None:
    environment = Environment({b"A": b"1", b"TASK": b"0"})
    for value in (b"0", b"1", b"22", b"333", b"4", b"x" * SPARE_BYTES, b"5", b""):
        environment[b"TASK"] = value
        assert lines(environment) == [b"A=1", b"TASK=" + value, None]


def test_a_new_variable_keeps_the_values_of_the_others() -> None:
    environment = Environment({b"A": b"1"})
    environment[b"A"] = b"2"
    environment[b"B"] = b"3"
    environment.update({b"A": b"44", b"B": b"3"})
    assert lines(environment) == [b"A=44", b"B=3", None]


def test_the_variables_of_one_task_are_gone_for_the_next() -> None:
    environment = Environment({b"A": b"1"})
    environment.set_own({b"P": b"1", b"Q": b"2"})
    assert lines(environment) == [b"A=1", b"P=1", b"Q=2", None]
    environment.set_own({b"Q": b"33"})
    assert lines(environment) == [b"A=1", b"Q=33", None]
    environment.set_own({})
    assert lines(environment) == [b"A=1", None]


def test_a_job_that_a_task_submits_does_not_have_the_parameters_of_the_task() -> None:
    record = b"7 CUDA_VISIBLE_DEVICES=0 LLSUB_TASK"
    with_lr = environments.with_own(record, environments.of_params({"lr": "1 2"}))
    inherited = {"_SLURM_SHARE_GIVEN": with_lr.decode(), "LLSUB_PARAM_LR": "1 2", "LLSUB_TASK": "3", "HOME": "/"}
    assert given_variables.forget(inherited) == {"HOME": "/"}
    assert environments.with_own(with_lr, []) == record
