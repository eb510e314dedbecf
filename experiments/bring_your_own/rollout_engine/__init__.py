"""A rollout engine with its own copy of the weights: `rollout=copying`."""

from pathlib import Path
from tempfile import TemporaryDirectory

from transformers import AutoModelForCausalLM

from tandem import register_rollout_engine
from tandem.policies.engines.protocol import RolloutEngine, Weights
from tandem.policies.language.decoding import Local
from tandem.policies.language.records import Answers


@register_rollout_engine("copying")
class Copying(RolloutEngine):
    """Samples with its own model, which it loads from disk whenever the weights have changed."""

    def __init__(self, *, every: int = 1) -> None:
        self.every, self.given = every, 0  # takes every n-th handover

    def sync(self, weights: Weights, version: str) -> None:
        if self.given % self.every == 0:
            with TemporaryDirectory() as folder:
                weights.save(Path(folder))
                self.model = AutoModelForCausalLM.from_pretrained(folder).eval()
        self.given += 1

    def answer(self, prompts, keys, *, sampling, endings) -> Answers:
        return Local(self.model).answer(prompts, keys, sampling=sampling, endings=endings)
