"""The bare transformer: the calls of a training step and nothing around them."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from flow_workloads import Work, adamw
from torch import Tensor, nn

from tandem.policies.flow.adapter import Adapter
from tandem.policies.flow.records import PromptInput
from tandem.training.collect import Clock


class CpuClock(Clock):
    """A clock of the CPU-seconds of all threads, beside wall seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.cpu: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.process_time()
        with super().phase(name):
            yield
        self.cpu[name] = self.cpu.get(name, 0.0) + time.process_time() - start

    def forget(self) -> None:
        self.seconds.clear()
        self.cpu.clear()


class Bare:
    """A copy of the weights, AdamW, and prepared inputs."""

    def __init__(self, network: nn.Module, adapter: Adapter, work: Work) -> None:
        self.network, self.adapter, self.work = copy.deepcopy(network), adapter, work
        self.optimizer = adamw(self.network.parameters())
        self.clock = CpuClock()
        generator = torch.Generator().manual_seed(0)
        text = next(iter(adapter.encode([PromptInput(text="red circle")], torch.device("cpu"))))
        self.inputs = {}
        for rows in {work.pictures, work.rows} - {0}:
            x = torch.randn(rows, *adapter.latent_shape, generator=generator)
            sigma = torch.rand(rows, generator=generator)
            condition = {name: t.expand(rows, *t.shape).clone() for name, t in text.items()}
            self.inputs[rows] = (x, sigma, condition)

    def step(self) -> None:
        """Samples by Euler steps, then updates."""
        with self.clock.phase("sample"):
            self.sample()
        with self.clock.phase("train"):
            for _ in range(self.work.updates):
                self.update()

    @torch.no_grad()
    def sample(self) -> None:
        if self.work.imitates:
            return
        x, sigma, condition = self.inputs[self.work.pictures]
        for _ in range(self.work.steps):
            x = x - self.velocity(x, sigma, condition) / self.work.steps

    def update(self) -> None:
        """One number of loss per row; the pass of the reference has no gradient."""
        inputs, wanted = self.inputs[self.work.rows], 0.0
        if self.work.referred:
            with torch.no_grad():
                wanted = self.velocity(*inputs)
        (self.velocity(*inputs) - wanted).square().mean().backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def velocity(self, x: Tensor, sigma: Tensor, condition: dict[str, Tensor]) -> Tensor:
        return self.adapter.velocity(self.network, x, sigma, condition)
