"""A rollout engine with its own copy of the weights, loaded from disk: `rollout=copying`."""

from pathlib import Path
from tempfile import TemporaryDirectory

from transformers import AutoModelForCausalLM

from tandem import register_rollout_engine
from tandem.policies.engines.protocol import RolloutEngine, Weights
from tandem.policies.language.decoding import Local
from tandem.policies.language.records import Answers
from tandem.types import map_fields


@register_rollout_engine("copying")
class Copying(RolloutEngine):
    def __init__(self, *, every: int = 1) -> None:
        self.every, self.given = every, 0  # takes every n-th handover

    def sync(self, weights: Weights, version: str) -> None:
        if self.given % self.every == 0:
            with TemporaryDirectory() as folder:
                weights.save(Path(folder))
                self.model = AutoModelForCausalLM.from_pretrained(folder).to(weights.device).eval()
        self.given += 1

    def answer(self, prompts, keys, *, sampling, endings) -> Answers:
        own = keys.to(self.model.device)  # ahead of training, keys are on the CPU
        answers = Local(self.model).answer(prompts, own, sampling=sampling, endings=endings)
        return map_fields(answers, lambda field: field.to(keys.device))
