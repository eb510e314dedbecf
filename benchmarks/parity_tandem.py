"""Tandem's side of parity: a whole run, as by `python train.py`, on rows that TRL gets too.

Only `policy.sample` is replaced, by one that returns answers of a fixed generator; pairs come from
the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from lightning.pytorch import Callback, Trainer
from omegaconf import DictConfig
from torch import Tensor

from tandem.config import build, check
from tandem.launch.assembly import assemble
from tandem.launch.run import trainer_for
from tandem.policies.language.records import Answers, Sampling
from tandem.policies.language.sampling import as_rollout, right_padded
from tandem.training.module import PostTraining
from tandem.types import Prompt, Rollout

Tensors = dict[str, Tensor]  # parameter -> its value, or its gradient
OLD = frozenset({"old_logp"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The inputs of both sides for one update."""

    prompts: list[str]  # the text of every row, or of every pair
    answers: list[list[int]]  # token ids of every row; empty where there are pairs
    pairs: list[tuple[str, str]]  # the chosen and the rejected answer to every prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Trail:
    """The record of Tandem's updates."""

    given: list[Given]  # of each update
    weights: list[Tensors]  # before each update, and after the last
    gradients: list[Tensors]  # of each update
    clipped: list[float]  # of each update: fraction of steps whose gradient a clip removed


def trail(cfg: DictConfig, folder: Path, *, lag: int, seed: int) -> Trail:
    """`lag`: updates between the drawing of answers and their own, which makes them old."""
    torch.set_num_threads(1)
    settings = check(cfg)
    module, _ = assemble(cfg, settings, build(cfg.data), folder / "run", None)
    script = Script(module, lag=lag, seed=seed)
    module.policy.sample = script.sample
    steps = Recording()
    trainer_for(settings.trainer, [steps]).fit(module)
    steps.weights.append(copy_tensors(module.policy.weights()))
    return Trail(
        given=script.given, weights=steps.weights, gradients=steps.gradients, clipped=steps.clipped
    )


class Script:
    """The inputs of every update, and a `sample` that returns them."""

    def __init__(self, module: PostTraining, *, lag: int, seed: int) -> None:
        self.module, self.lag, plan = module, lag, module.plan
        chance = torch.Generator().manual_seed(seed)
        draw = module.stream.draw
        self.prompts = [draw(i, plan.prompts_per_step) for i in range(plan.iterations)]
        if "pairs" in module.algorithm.needs:
            self.given = [pairs_of(prompts) for prompts in self.prompts]
        else:
            self.given = [answers_to(prompts, module, chance) for prompts in self.prompts]
        self.ready: dict[int, Rollout] = {}

    def sample(
        self,
        prompts: Sequence[Prompt],
        group_size: int,
        *,
        key: int,
        slots: Sequence[int],
        sampling: Sampling | None = None,
    ) -> Rollout:
        now, last = self.module.iteration, self.module.plan.iterations - 1
        assert list(prompts) == self.prompts[now]
        if self.lag == 0:
            return self.rollout(now)  # the update evaluates them under the current weights
        for update in range(now, min(now + self.lag, last) + 1):
            if update not in self.ready:  # under the current weights
                self.ready[update] = self.module.policy.complete(self.rollout(update), OLD)
        return self.ready.pop(now)

    def rollout(self, update: int) -> Rollout:
        policy, prompts, given = (
            self.module.policy,
            self.prompts[update],
            self.given[update].answers,
        )
        tokens = right_padded(given, policy.device)
        length = torch.tensor([len(ids) for ids in given])
        answers = Answers(
            tokens=tokens,
            logp=torch.zeros(tokens.shape),
            entropy=torch.zeros(tokens.shape),
            length=length,
            truncated=length == policy.sampling.max_new_tokens,
        )
        asked = policy.ask(
            prompts,
            range(len(prompts)),
            group_size=len(given) // len(prompts),
            key=0,  # nothing is drawn
            sampling=policy.sampling,
        )
        rows = as_rollout(asked, answers, policy.chat)
        return replace(rows, behaviour_logp=None, entropy=None)  # they were not sampled


def pairs_of(prompts: Sequence[Prompt]) -> Given:
    return Given(
        prompts=[prompt.text for prompt in prompts],
        answers=[],
        pairs=[(prompt.chosen, prompt.rejected) for prompt in prompts],
    )


def answers_to(prompts: Sequence[Prompt], module: PostTraining, chance: torch.Generator) -> Given:
    """A group per prompt: 1 to `rollout.max_new_tokens` tokens; the longest are truncated."""
    tokenizer, limit = module.policy.chat.tokenizer, module.policy.sampling.max_new_tokens
    texts = [prompt.text for prompt in prompts for _ in range(module.plan.group_size)]
    plain = torch.tensor([i for i in range(len(tokenizer)) if i not in tokenizer.all_special_ids])
    answers = []
    for _ in texts:
        length = int(torch.randint(1, limit + 1, (), generator=chance))
        ids = plain[torch.randint(len(plain), (length,), generator=chance)].tolist()
        answers.append(ids if length == limit else [*ids[:-1], tokenizer.eos_token_id])
    return Given(prompts=texts, answers=answers, pairs=[])


class Recording(Callback):
    """Records the weights before every update, and its gradient."""

    def __init__(self) -> None:
        self.weights: list[Tensors] = []
        self.gradients: list[Tensors] = []
        self.clipped: list[float] = []

    def on_before_optimizer_step(
        self, trainer: Trainer, module: PostTraining, optimizer: torch.optim.Optimizer
    ) -> None:
        parameters = module.policy.trainable()
        self.weights.append(copy_tensors(parameters))
        self.gradients.append(copy_tensors({name: p.grad for name, p in parameters.items()}))

    def on_train_batch_end(self, trainer: Trainer, module: PostTraining, *_: object) -> None:
        self.clipped.append(float(module.report.get("actor/clip_frac", 0.0)))


def copy_tensors(tensors: Tensors) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
