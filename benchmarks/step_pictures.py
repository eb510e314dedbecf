"""Tandem's side of the comparison with Flow-Factory: the loop of `python train.py`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from lightning.pytorch import Trainer
from network_rows import count_rows
from step_tandem import TakingTurns, run_loop

from tandem.training.module import PostTraining


def steps(connection: Connection, folder: Path, overrides: Sequence[str]) -> None:
    run_loop(folder, overrides, share_numbers, CountingTurns(connection, folder))


class CountingTurns(TakingTurns):
    def on_train_start(self, trainer: Trainer, module: PostTraining) -> None:
        adapter, encode = module.policy.adapter, module.policy.adapter.encode
        self.rows = count_rows(transformer=module.policy.model.network, vae=adapter.vae)

        def counting(inputs: Sequence[object], *given: object) -> object:
            self.rows["encoded"] += len(inputs)
            return encode(inputs, *given)

        adapter.encode = counting
        super().on_train_start(trainer, module)

    def finish(self, module: PostTraining, sampling: float) -> None:
        self.turns.finish(sampling=sampling, rows=dict(self.rows))
        self.rows.clear()


def share_numbers(module: PostTraining, folder: Path) -> None:
    """Write the numbers that Flow-Factory must train with."""
    plan, sampling = module.plan, module.policy.sampling
    loss = module.algorithm.loss.keywords
    (group,) = module.configure_optimizers().param_groups
    numbers = {
        "iterations": plan.iterations,
        "prompts": plan.prompts_per_step,
        "group_size": plan.group_size,
        "updates": plan.num_minibatches,
        "max_grad_norm": plan.max_grad_norm,
        "steps": sampling.steps,
        "random_steps": len(sampling.random_steps(0, 0)),
        "noise_level": sampling.kernel.keywords["noise_level"],
        "guidance_scale": sampling.guidance_scale,
        "resolution": module.policy.adapter.resolution,
        "clip": [-loss["clip_low"], loss["clip_high"]],
        "lr": group["lr"],
        "betas": group["betas"],
        "eps": group["eps"],
        "weight_decay": group["weight_decay"],
    }
    (folder / "start.json").write_text(json.dumps(numbers))
