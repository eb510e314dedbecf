"""The reference of the KL: the weights that a run started from, wherever it is resumed."""

from small_language import NOTHING, questions, small
from torch.testing import assert_close

NEEDS = frozenset({"ref_logp"})


def test_a_checkpoint_moves_the_policy_and_not_its_reference(learned):
    policy = small(NEEDS)
    rollout = policy.sample(questions(), 4, key=5, slots=range(8))
    first = policy.complete(rollout, NEEDS).ref_logp
    policy.load_weights(learned)
    assert (policy.evidence(rollout, NOTHING).logp - first).abs().max() > 0.1
    assert_close(policy.complete(rollout, NEEDS).ref_logp, first, atol=0, rtol=0)
