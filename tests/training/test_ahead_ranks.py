"""Process groups of threads that sample ahead of training."""

import torch
from two_ranks import LIMIT, on_both

from tandem import distributed


def limit():
    group = distributed.group_of_threads()
    return group._get_backend(torch.device("cpu")).options._timeout


def test_threads_wait_for_other_ranks_as_long_as_the_trainer():
    assert on_both(limit) == [LIMIT, LIMIT]
