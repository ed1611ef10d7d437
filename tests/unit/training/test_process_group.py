"""Process groups of one process, and which device each process takes."""

import pytest
import torch
from torch import distributed

from training.process_group import own_device, process_group, summed


def test_a_run_of_one_process_is_a_group_of_one():
    with process_group(torch.device("cpu")):
        assert (distributed.get_rank(), distributed.get_world_size()) == (0, 1)
        assert summed(torch.tensor([2.5])).tolist() == [2.5]
    assert not distributed.is_initialized()


def test_the_group_ends_with_what_ends_the_run():
    with pytest.raises(KeyError), process_group(torch.device("cpu")):
        {}["missing"]
    assert not distributed.is_initialized()


@pytest.mark.parametrize(
    ("asked", "local_rank", "taken"),
    [("cuda", "3", "cuda:3"), ("cuda", None, "cuda:0"), ("cuda:1", "3", "cuda:1"), ("cpu", "3", "cpu")],
)
def test_every_process_of_a_machine_takes_the_gpu_of_its_number(monkeypatch, asked, local_rank, taken):
    if local_rank is None:
        monkeypatch.delenv("LOCAL_RANK", raising=False)
    else:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    assert own_device(torch.device(asked)) == torch.device(taken)
