"""The training loop without a trainer, and one over the table policy."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch
from at_once import AtOnce
from records import GRPO
from table_policy import TablePolicy
from torch import distributed as dist

from tandem.algorithm.regularizers import EntropyBonus, KLInLoss
from tandem.experience import Budget
from tandem.losses.kl import k3_unbiased
from tandem.settings.guards import Guards
from tandem.training.batches import BatchPlan
from tandem.training.module import PostTraining
from tandem.types import Prompt, Scores

PLAN = BatchPlan(
    seed=0, iterations=3, prompts_per_step=6, group_size=4, num_minibatches=2, epochs=2,
    budget=Budget(), max_grad_norm=1.0,
)  # fmt: skip
WITH_PENALTIES = replace(
    GRPO, kl=KLInLoss(coef=0.1, loss=k3_unbiased), entropy=EntropyBonus(coef=0.05)
)


class ShareOfThrees(AtOnce):
    """The share of token 3 in the output; a chosen output can be left without a score."""

    def __init__(self, value=None) -> None:
        self.value, self.missing = value, 0

    def __call__(self, outputs, prompts) -> Scores:
        share = self.value
        if not isinstance(share, list):
            share = [o.count("3") / max(len(o), 1) if share is None else share for o in outputs]
        total = torch.tensor(share, dtype=torch.float64)
        self.missing += int((~total.isfinite()).sum())
        return Scores(
            total=torch.where(total.isfinite(), total, 0), parts={"accuracy": total},
            scored=total.isfinite(),
        )  # fmt: skip

    def pop_faults(self, *, judges: bool = False) -> dict[str, int]:
        missing, self.missing = self.missing, 0
        return {"not finite": missing} if missing else {}


class EndsInTwo(ShareOfThrees):
    """1 for few outputs, so many groups tie."""

    def __call__(self, outputs, prompts) -> Scores:
        return ShareOfThrees([float(o.endswith("20")) for o in outputs])(outputs, prompts)


class Stream(torch.nn.Module):
    """Prompts by number."""

    def draw(self, iteration: int, count: int, *, round: int = 0) -> list[Prompt]:
        first = 100 * iteration + 10 * round
        return [
            Prompt(id=i, source="table", text="?", answer="320")
            for i in range(first, first + count)
        ]

    def observe(self, sources, success) -> None:
        self.seen = (tuple(sources), success)


class Alone(PostTraining):
    """The module without a trainer: one optimiser, a constant rate, plain backward, all reports."""

    def __init__(self, **options) -> None:
        super().__init__(schedule=lambda iteration, iterations: 1.0, **options)
        self.only = self.configure_optimizers()
        self.reports: list[dict[str, float]] = []

    def optimizers(self, use_pl_optimizer=True):
        return self.only

    def no_sync(self):
        return nullcontext()

    def manual_backward(self, loss, *args, **kwargs):
        loss.backward()
        if self.micro_steps_left or not dist.is_initialized():
            return
        for parameter in self.parameters():  # as DDP does after the last micro-batch
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()

    def go(self, iterations: int = 1):
        for _ in range(iterations):
            self.training_step(self.stream.draw(self.iteration, self.plan.prompts_per_step), 0)
            self.reports.append(self.report)
            self.on_train_batch_end()
        return self


class Loop(Alone):
    """A table policy that records its gradients."""

    def __init__(self, *, algorithm=GRPO, plan=PLAN, folder, rewards=None, guards=None) -> None:
        super().__init__(
            policy=TablePolicy(critic=algorithm.critic is not None), algorithm=algorithm,
            rewards=rewards or ShareOfThrees(), stream=Stream(),
            optimizer=partial(torch.optim.SGD, lr=1.0),
            plan=plan, guards=guards or Guards(), folder=folder,
        )  # fmt: skip
        self.gradients: list[torch.Tensor] = []

    def update(self, minibatch) -> None:
        self.gradients.append(self.policy.table.grad.clone())
        super().update(minibatch)
