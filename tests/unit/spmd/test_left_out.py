"""Calls of mpi4py that ours leaves out are refused by name, with what to use instead."""

from __future__ import annotations

import os

import pytest

from slurm_share.spmd import COMM_WORLD, MPI, left_out
from slurm_share.spmd.errors import SpmdError, Unsupported, UsageError


@pytest.mark.parametrize("name", [*left_out.MODULE, "WIN_SIZE", "MODE_CREATE", "COMM_TYPE_HW_GUIDED"])
def test_a_name_of_the_module_that_is_left_out_says_what_to_use_instead(name: str) -> None:
    with pytest.raises(Unsupported, match=rf"leaves out MPI\.{name} of mpi4py; \w+") as caught:
        getattr(MPI, name)
    assert isinstance(caught.value, (UsageError, SpmdError, AttributeError))
    assert not hasattr(MPI, name)


@pytest.mark.parametrize("name", left_out.COMM)
def test_a_call_of_a_communicator_that_is_left_out_says_what_to_use_instead(name: str) -> None:
    with pytest.raises(Unsupported, match=rf"leaves out Comm\.{name} of mpi4py; \w+"):
        getattr(COMM_WORLD, name)
    assert not hasattr(MPI.Comm, name)


def test_a_name_that_mpi4py_lacks_too_is_an_ordinary_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Sent'") as caught:
        _ = MPI.Sent  # type: ignore[attr-defined]
    assert not isinstance(caught.value, SpmdError)


def test_a_call_that_is_left_out_can_be_caught_as_an_error_of_mpi() -> None:
    with pytest.raises(MPI.Exception):
        COMM_WORLD.Spawn("program")


def test_calls_about_the_process_and_the_library_answer() -> None:
    assert MPI.Get_processor_name() == os.uname().nodename
    assert MPI.Get_version() >= (3, 0)
    assert MPI.get_vendor()[0] in MPI.Get_library_version()
    assert (MPI.Is_initialized(), MPI.Is_finalized(), MPI.Is_thread_main()) == (True, False, True)
    assert MPI.Init_thread() == MPI.Query_thread() == MPI.THREAD_MULTIPLE > MPI.THREAD_SINGLE
    begin = MPI.Wtime()
    assert 0 < MPI.Wtick() < 1
    assert MPI.Wtime() >= begin


def test_an_error_has_mpi4py_s_number_and_sentence() -> None:
    with pytest.raises(MPI.Exception) as caught:
        COMM_WORLD.Spawn("program")
    assert caught.value.Get_error_class() == caught.value.error_code == MPI.ERR_ARG != MPI.SUCCESS
    assert caught.value.Get_error_string() == str(caught.value)


def test_the_null_hints_that_programs_pass_are_taken() -> None:
    assert MPI.COMM_SELF.Split_type(MPI.COMM_TYPE_SHARED, 0, MPI.INFO_NULL).size == 1
    assert MPI.COMM_SELF.Dup(MPI.INFO_NULL).size == 1


def test_the_buffer_of_buffered_sends_is_given_back() -> None:
    buffer = bytearray(100 + MPI.BSEND_OVERHEAD)
    MPI.Attach_buffer(buffer)
    assert MPI.Detach_buffer() is buffer
    assert MPI.Detach_buffer() is None
