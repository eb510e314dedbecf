"""The engine that needs no server: our own loop over the very weights that are trained."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from tandem.policies.language.decoding import Answers, Endings, answer
from tandem.policies.language.sampling import Sampling
from tandem.policies.precision import Precision


class Local:
    """Nothing is handed over, no second copy can be older, and no memory is given back."""

    def __init__(self, model: nn.Module, precision: Precision) -> None:
        self.model, self.precision = model, precision

    def answer(
        self, prompts: Sequence[list[int]], keys: Tensor, *, sampling: Sampling, endings: Endings
    ) -> Answers:
        with self.precision.on(keys.device):
            return answer(self.model, prompts, keys, sampling=sampling, endings=endings)
