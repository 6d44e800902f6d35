"""The table of boards: found by name, complete, and one with the instance table."""

import pytest

from smp_advisor.cluster import gpu, gpus, instances
from smp_advisor.errors import ClusterError


@pytest.mark.parametrize(
    ("name", "board"),
    [
        ("A100-80GB", "A100-80GB"),
        ("NVIDIA A100 SXM4 80GB", "A100-80GB"),
        ("rtx 4090", "RTX4090-24GB"),
        ("NVIDIA GeForce RTX 4090 24GB", "RTX4090-24GB"),
        ("H100-96GB", "H100-96GB"),
        ("l4", "L4-24GB"),
    ],
)
def test_a_board_is_found_by_its_name(name, board):
    assert gpu(name).name == board


@pytest.mark.parametrize(
    ("name", "hint"), [("A100", "A100-80GB"), ("H100-81GB", "H100-80GB"), ("abacus", "supported are")]
)
def test_a_name_that_no_board_or_more_than_one_has_is_refused(name, hint):
    with pytest.raises(ClusterError, match=hint):
        gpu(name)


def test_every_board_of_an_instance_has_the_figures_of_the_instance():
    boards = {board.gpu: board for board in gpus()}
    for machine in instances():
        board = boards[machine.gpu]
        shared = ("usable_gpu_memory_gib", "peak_tflops", "fp8_tflops", "hbm_gb_per_s", "board_watts", "bf16")
        assert {name: getattr(board, name) for name in shared} == {name: getattr(machine, name) for name in shared}
        if machine.gpus > 1:
            assert machine.intra_node_gb_per_s == (board.nvlink_gb_per_s or board.pcie_gb_per_s)


@pytest.mark.parametrize("board", gpus(), ids=lambda board: board.name)
def test_figures_are_plausible(board):
    assert 0.9 * board.gpu_memory_gib < board.usable_gpu_memory_gib < board.gpu_memory_gib
    assert board.fp8_tflops == 0 or 1.9 < board.fp8_tflops / board.peak_tflops < 2.1
    assert 60 < board.peak_tflops < 3000
    assert 250 < board.hbm_gb_per_s < 10_000
    assert 50 < board.board_watts < 1500
