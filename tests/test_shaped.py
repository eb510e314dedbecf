"""Records: every tensor is checked when the record is built, and the first wrong one is named."""

import re

import pytest
import torch
from records import rollout, scores

from tandem.experience import Experience
from tandem.types import DecoupledBatch, Scores, take

MASK = torch.ones(3, 4, dtype=torch.bool)
ROWS = rollout(MASK, torch.zeros(3, dtype=torch.int64))
SCORES = scores(torch.zeros(3))


def ready(**fields):
    return Experience(rollout=ROWS, scores=SCORES, **{"advantages": torch.zeros(3, 4), **fields})


def errors(**fields):
    plain = {"sigma": torch.zeros(3, 4), "advantages": torch.zeros(3, 4), "mask": MASK}
    group = torch.zeros(3, dtype=torch.int64)
    return DecoupledBatch(**plain, group=group, **{"error": torch.zeros(3, 4, 5), **fields})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: rollout(MASK, torch.zeros(2)), "Rollout.group is (2,), but it should be (3,)"),
        (
            lambda: rollout(MASK, torch.zeros(3), entropy=torch.zeros(3, 5)),
            "Rollout.entropy is (3, 5), but it should be (3, 4)",
        ),
        (
            lambda: Scores(total=torch.zeros(3), parts={"own": torch.zeros(2)}, scored=MASK[:, 0]),
            "Scores.parts.own is (2,), but it should be (3,)",
        ),
        (
            lambda: ready(advantages=torch.zeros(3)),
            "Experience.advantages is (3,), but it should be (3, 4)",
        ),
        (
            lambda: ready(weights={"policy": torch.zeros(3, 1)}),
            "Experience.weights.policy is (3, 1), but it should be (3, 4)",
        ),
        (
            lambda: ready(statistics={"policy": torch.zeros(4, 3, 2)}),
            "Experience.statistics.policy is (4, 3), but it should be (3, 4)",
        ),
        (
            lambda: errors(ref_error=torch.zeros(3, 4, 6)),
            "DecoupledBatch.ref_error is (3, 4, 6), but it should be (3, 4, 5)",
        ),
    ],
)
def test_a_tensor_of_another_shape_is_named(make, said):
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        make()


def test_statistics_may_have_further_axes_and_steps_none():
    assert (
        ready(statistics={"policy": torch.zeros(3, 4, 2)}, gates={"kl": MASK[:, 0]}).returns is None
    )
    assert errors().ref_error is None


def test_indices_of_rows_are_read_and_moved_once_for_all_fields(monkeypatch):
    crossed = []
    for name in ("to", "tolist"):
        of_torch = getattr(torch.Tensor, name)

        def counted(rows, *where, name=name, of_torch=of_torch):
            crossed.append(name)
            return of_torch(rows, *where)

        monkeypatch.setattr(torch.Tensor, name, counted)
    chosen = take(ROWS, torch.tensor([2, 0]))
    assert sorted(crossed) == ["to", "tolist"]
    assert len(chosen.prompts) == len(chosen.outputs) == len(chosen.mask) == 2
