"""Log-probabilities of sampled tokens, chunk by chunk over the head."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from tandem.policies.language.inputs import TokenIndex
from tandem.policies.language.logprob import token_logp


class Waits(TorchDispatchMode):
    """Counts the reads of a number for which a GPU would be synchronised."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_no_chunk_of_the_head_waits_for_the_device(temperature):
    head, steps = nn.Linear(16, 40), torch.arange(12)
    warm = torch.full((12,), temperature)
    places = TokenIndex(row=steps, step=steps, column=steps, token=steps, temperature=warm)
    states, waits = torch.randn(12, 16, requires_grad=True), []
    for budget in (40 * 12, 40 * 3, 40):
        with Waits() as seen:
            said = token_logp(states, head, places, vocabulary=40, logit_budget=budget, also=())
            said["logp"].sum().backward()
        waits.append(seen.count)
        want = (head(states) / temperature).log_softmax(-1)[steps, steps]
        assert_close(said["logp"], want, atol=1e-6, rtol=1e-6)
    assert waits == [1, 1, 1]
