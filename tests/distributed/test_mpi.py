"""Teams of processes of MPI, started as a user starts them."""

import pytest
from launchers import (
    FAULTS,
    check_absent,
    check_command_line,
    check_fault,
    check_fit,
    check_interrupt,
)

pytestmark = pytest.mark.usefixtures("on_numpy")


def test_fit_is_that_of_one_process(tmp_path):
    check_fit("mpi", tmp_path)


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_of_one_process_ends_all(fault, tmp_path):
    check_fault("mpi", fault, tmp_path)


def test_process_that_never_calls_the_fit_is_given_up(tmp_path):
    check_absent("mpi", tmp_path)


def test_command_line(tmp_path):
    check_command_line("mpi", tmp_path)


def test_interrupt_of_one_process_interrupts_all(tmp_path):
    check_interrupt("mpi", tmp_path)


def test_another_kind_of_communicator_is_refused():
    pytest.importorskip("mpi4py", reason="runs in the session `distributed`, which has mpi4py")
    from wtfarray.distributed import mpi

    with pytest.raises(TypeError, match="comm is a int"):
        mpi(3)
    with pytest.raises(ValueError, match="timeout is 0: expected a positive number or inf"):
        mpi(timeout=0)
