"""Rows and metrics of all ranks: tensors travel, and access to texts is refused."""

from dataclasses import replace

import pytest
import torch
from records import rollout
from two_ranks import RANKS, on_two_ranks

from tandem import distributed
from tandem.distributed import with_all_rows
from tandem.metrics import EffectiveSize, Max, Min, Sum, reduce_metrics
from tandem.stop import Stop
from tandem.types import Scores


def shares_of_texts():
    """Refusals of functions that count prompts or read texts, and the result of another one."""
    rows = replace(
        rollout(torch.tensor([[1, 1], [1, 0]]).bool(), torch.tensor([0, 1])), outputs=("a", "b")
    )
    said = []
    for look in (lambda x: x.outputs[0], lambda x: len(x.prompts), lambda x: list(x.outputs)):
        with pytest.raises(Stop, match="outputs and prompts stay on their rank") as told:
            with_all_rows(lambda x, look=look: look(x), rows)
        assert f"read by {Scores.reward.__qualname__})" in str(told.value)
        said.append(str(told.value))
    return said, with_all_rows(lambda x: x.mask.sum(1, keepdim=True), rows)


def advantages_of_ranks():
    """The refusal of an advantage that depends on the rank, and the result of another one."""
    ones = torch.ones(3, 2)
    with pytest.raises(Stop) as told:
        with_all_rows(lambda x: x * (1 + 0.01 * distributed.rank()), ones)
    return str(told.value), with_all_rows(lambda x: x - x.mean(), ones)


def metrics_of_ranks():
    """Metrics with the same names in another order, or that only one rank has, over all ranks."""
    one = torch.tensor(1.0, dtype=torch.float64)
    own = {
        "a": Sum(one, one),
        "high": Max(one),
        "low": Min(one),
        "size": EffectiveSize(one, one, one),
    }
    if distributed.rank() == 1:
        own = {name: own[name] for name in reversed(own)}
        own |= {"a": Sum(3 * one, one), "b": Sum(7 * one, one), "high": Max(5 * one)}
        del own["size"]
    with pytest.raises(Stop, match="metric a: Sum on one rank, Max on another"):
        reduce_metrics({"a": (Sum(one, one), Max(one))[distributed.rank()]})
    return reduce_metrics(own)


@pytest.fixture(scope="module")
def of_ranks():
    """The results of one of the jobs above, by rank, from one pair of processes for all."""
    jobs = {job.__name__: job for job in (shares_of_texts, advantages_of_ranks, metrics_of_ranks)}
    found = on_two_ranks(jobs)
    return lambda job: [found[rank, job.__name__] for rank in range(RANKS)]


@pytest.mark.system
def test_texts_of_all_ranks_are_refused_and_no_row_of_them_is_silently_absent(of_ranks):
    for said, counted in of_ranks(shares_of_texts):
        assert "train on one rank: trainer.devices=1" in said[0]
        assert torch.equal(counted, torch.tensor([[2], [1]]))


@pytest.mark.system
def test_what_depends_on_the_rank_is_refused_on_all_of_them(of_ranks):
    for said, centred in of_ranks(advantages_of_ranks):
        assert said.startswith("a function of the rows of all ranks (an advantage, ")
        assert torch.equal(centred, torch.zeros(3, 2))


@pytest.mark.system
def test_metrics_are_joined_by_name_whichever_rank_has_them(of_ranks):
    for found in of_ranks(metrics_of_ranks):
        assert found == {"a": 2.0, "b": 7.0, "high": 5.0, "low": 1.0, "size": 1.0}
