"""Coefficients that change during training, as modules stored in checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from tandem.contracts.stateful import StatefulComponent

MOST_ERROR = 0.2  # relative error of a KL: limits the effect of one outlier batch


class Coefficient(StatefulComponent):
    """A stateful number, read by `float(coefficient)`."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.register_buffer("value", torch.tensor(start, dtype=torch.float64))

    def __float__(self) -> float:
        return self.value.item()


class KLController(Coefficient):
    """beta <- beta (1 + clip(KL / kl_target - 1, -0.2, 0.2) samples / horizon) (arXiv:1909.08593).

    `horizon` counts samples; `kl_target` has the unit of the KL that is observed.
    """

    def __init__(self, *, start: float, kl_target: float, horizon: int = 10_000) -> None:
        if start < 0 or kl_target <= 0 or horizon <= 0:
            raise ValueError(
                "a KL controller needs a start of 0 or more, kl_target > 0 and horizon > 0, not "
                f"start={start}, kl_target={kl_target}, horizon={horizon}"
            )
        super().__init__(start)
        self.kl_target, self.horizon = kl_target, horizon

    def report(self) -> dict[str, float]:
        return {"optim/kl_coef": float(self)}

    def observe(self, kl: float, samples: int) -> None:
        """Update with the KL of an iteration over all ranks, and its number of samples.

        More samples than the horizon count as the horizon, or the coefficient could turn negative.
        """
        if not math.isfinite(kl):
            return
        error = min(max(kl / self.kl_target - 1, -MOST_ERROR), MOST_ERROR)
        self.value.mul_(1 + error * min(samples / self.horizon, 1))


class ScheduledCoefficient(Coefficient):
    """start * schedule(i), where i counts the iterations that train the policy, from 0."""

    def __init__(self, *, start: float, schedule: Callable[[int], float]) -> None:
        super().__init__(start * schedule(0))
        self.start, self.schedule = start, schedule
        self.register_buffer("iteration", torch.tensor(0.0, dtype=torch.float64))

    def report(self) -> dict[str, float]:
        return {"optim/kl_coef": float(self)}

    def observe(self, kl: float, samples: int) -> None:
        """Move on to the next iteration, whatever its KL and its number of samples were."""
        self.iteration.add_(1)
        self.value.fill_(self.start * self.schedule(int(self.iteration.item())))


class ReferenceRenewal(StatefulComponent):
    """Resets the reference to the current policy once the KL to it exceeds `kl_above`, or after
    `every` iterations: the KL to the older reference is no longer penalised.

    `kl_above` has the unit of actor/ref_kl. Source: GARDO, arXiv:2512.24138.
    """

    def __init__(self, *, kl_above: float | None = None, every: int | None = None) -> None:
        super().__init__()
        self.kl_above, self.every = kl_above, every
        self.register_buffer("age", torch.tensor(0.0, dtype=torch.float64))

    def report(self) -> dict[str, float]:
        return {"optim/reference_age": self.age.item()}

    def is_due(self, kl: float) -> bool:
        """Whether the reference is renewed after an iteration with this KL over all ranks."""
        self.age.add_(1)
        far = self.kl_above is not None and kl > self.kl_above
        due = far or (self.every is not None and self.age.item() >= self.every)
        if due:
            self.age.zero_()
        return due


class EntropyController(Coefficient):
    """An entropy bonus that grows by `step` while the entropy is at most `target`, else shrinks.

    It stays in [0, most], and applies only while the last observed entropy is at most `target`, so
    not before the first observation. Source: Skywork-OR1, arXiv:2505.22312.
    """

    def __init__(
        self, *, start: float, target: float, step: float = 0.005, most: float = 1.0
    ) -> None:
        if not 0 <= start <= most or step <= 0:
            raise ValueError(
                f"algorithm.entropy.coef={start} algorithm.entropy.step={step} "
                f"algorithm.entropy.most={most}: a coefficient with a target starts at coef and "
                "changes by step up to most, so 0 <= coef <= most and step > 0; set them so, or "
                "algorithm.entropy.target=null"
            )
        super().__init__(start)
        self.target, self.step, self.most = target, step, most
        self.register_buffer("entropy", torch.tensor(torch.inf, dtype=torch.float64))

    def __float__(self) -> float:
        return super().__float__() if self._low else 0.0

    def report(self) -> dict[str, float]:
        return {"optim/entropy_coef": float(self)}

    @property
    def _low(self) -> bool:
        return self.entropy.item() <= self.target

    def observe(self, entropy: float) -> None:
        """Update with the mean entropy over all ranks, nats per step; applies from the next on."""
        self.entropy.fill_(entropy)
        self.value.add_(self.step if self._low else -self.step).clamp_(0, self.most)
