"""Teams of processes of torch.distributed, started as a user starts them."""

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
    check_fit("torch", tmp_path)


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_of_one_process_ends_all(fault, tmp_path):
    check_fault("torch", fault, tmp_path)


def test_process_that_never_calls_the_fit_is_given_up(tmp_path):
    check_absent("torch", tmp_path)


def test_command_line(tmp_path):
    check_command_line("torch", tmp_path)


def test_interrupt_of_one_process_interrupts_all(tmp_path):
    check_interrupt("torch", tmp_path)


def test_torch_distributed_has_to_be_initialised():
    pytest.importorskip("torch", reason="needs torch")
    from wtfarray.distributed import torch_distributed

    with pytest.raises(RuntimeError, match="init_process_group"):
        torch_distributed()
