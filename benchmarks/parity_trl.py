"""TRL's side of parity: its trainers' own advantages, losses and reference, on the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from parity_tandem import Given, Tensors, copy_tensors
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

Inputs = dict[str, Any]  # what a trainer's `_compute_loss` reads
PLAIN = {  # everything that would change the computation is off
    "learning_rate": 0.0,  # the optimiser is built here, the same for both
    "gradient_checkpointing": False,
    "bf16": False,
    "use_cpu": True,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "max_steps": 1,
    "logging_strategy": "no",
}


class Sampled:
    """GRPO and RLOO. Only the sampling of tokens is replaced, by given rows."""

    def __init__(self, trainer: GRPOTrainer | RLOOTrainer, given: Sequence[Given]) -> None:
        self.trainer, self.model, self.given = trainer, trainer.model, given
        self.model.train()
        trainer.current_gradient_accumulation_steps = 1  # `train` would set it

    def inputs(self, update: int) -> Inputs:
        """Rewards, advantages and old log-probabilities under the current weights."""
        rows = self.given[update]
        self.trainer._generate_single_turn = self.handing_out(rows.answers)
        return self.trainer._generate_and_score_completions([{"prompt": p} for p in rows.prompts])

    def handing_out(self, answers: list[list[int]]) -> Callable[..., object]:
        with_logp = isinstance(self.trainer, GRPOTrainer)
        return lambda *_: (answers, None) if with_logp else answers

    def loss(self, inputs: Inputs) -> torch.Tensor:
        return self.trainer._compute_loss(self.model, inputs)


class Paired:
    """DPO. The trainer encodes the pairs and evaluates its own frozen copy."""

    def __init__(self, trainer: DPOTrainer, given: Sequence[Given]) -> None:
        self.trainer, self.model, self.size = trainer, trainer.model, len(given[0].pairs)
        self.model.train()

    def inputs(self, update: int) -> Inputs:
        rows = range(update * self.size, (update + 1) * self.size)
        return self.trainer.data_collator([self.trainer.train_dataset[i] for i in rows])

    def loss(self, inputs: Inputs) -> torch.Tensor:
        return self.trainer._compute_loss(self.model, inputs, return_outputs=False)


Side = Sampled | Paired
Optimizer = Callable[..., torch.optim.Optimizer]


def grpo(model: Path, given: Sequence[Given], numbers: Mapping[str, Any]) -> Sampled:
    # Two iterations: with one, TRL's old log-probabilities are those of the update itself.
    config = GRPOConfig(**{"num_iterations": 2, "beta": 0.0, **PLAIN, **numbers})
    return Sampled(GRPOTrainer(args=config, **of_rewards(model, given)), given)


def rloo(model: Path, given: Sequence[Given], numbers: Mapping[str, Any]) -> Sampled:
    config = RLOOConfig(**PLAIN, **numbers)
    return Sampled(RLOOTrainer(args=config, **of_rewards(model, given)), given)


def target_length(completions: list[str], **_: Any) -> list[float]:
    return [max(0.0, 1 - abs(len(given) - 60) / 60) for given in completions]


def of_rewards(model: Path, given: Sequence[Given]) -> dict[str, Any]:
    return {
        "model": load_model(model),
        "processing_class": AutoTokenizer.from_pretrained(model),
        "reward_funcs": target_length,
        "train_dataset": Dataset.from_list([{"prompt": x} for g in given for x in g.prompts]),
    }


def dpo(model: Path, given: Sequence[Given], numbers: Mapping[str, Any]) -> Paired:
    rows = [
        {"prompt": prompt, "chosen": chosen, "rejected": rejected}
        for update in given
        for prompt, (chosen, rejected) in zip(update.prompts, update.pairs, strict=True)
    ]
    trainer = DPOTrainer(
        model=load_model(model),
        args=DPOConfig(**PLAIN, **numbers),
        processing_class=AutoTokenizer.from_pretrained(model),
        train_dataset=Dataset.from_list(rows),
    )
    return Paired(trainer, given)


def load_model(model: Path) -> nn.Module:
    return AutoModelForCausalLM.from_pretrained(model, dtype="auto")


def gradients(side: Side, weights: Sequence[Tensors], *, lag: int) -> Iterator[Tensors]:
    """TRL's gradient of each update, at the weights that Tandem had before it."""
    for update, here in enumerate(weights[:-1]):
        put(side.model, weights[max(update - lag, 0)])
        inputs = side.inputs(update)
        put(side.model, here)
        backward(side, inputs)
        yield copy_tensors({name: p.grad for name, p in side.model.named_parameters()})


def train(side: Side, start: Tensors, optimizer: Optimizer, *, updates: int, lag: int) -> Tensors:
    """The weights after all updates by TRL alone."""
    put(side.model, start)
    steps = optimizer(side.model.parameters())
    ready: list[Inputs] = []
    for update in range(updates):
        for drawn in range(len(ready), min(update + lag + 1, updates)):
            ready.append(side.inputs(drawn))
        backward(side, ready[update])
        steps.step()
    return copy_tensors(dict(side.model.named_parameters()))


def backward(side: Side, inputs: Inputs) -> None:
    side.model.zero_grad()
    side.loss(inputs).backward()


@torch.no_grad()
def put(model: nn.Module, weights: Tensors) -> None:
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])
