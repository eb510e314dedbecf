"""Tandem's side: the loop of `python train.py`, stopped after every training step."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from lightning.pytorch import Callback, Trainer
from turns import Turns

from tandem import rng
from tandem.config import build, check, configuration
from tandem.experience import split_groups
from tandem.launch.initial_weights import starting_weights
from tandem.launch.run import assemble, run, trainer_for
from tandem.record.run_record import RunRecord
from tandem.training.callbacks import standard
from tandem.training.module import PostTraining
from tandem.types import Rollout

WARM = partial(run, job="warm_start")


def prepare(connection: Connection, folder: Path, overrides: Sequence[str]) -> None:
    """Train or find the warm start in a separate process, so that its memory is not counted."""
    starting_weights(configuration(overrides), WARM)
    connection.send(0)


def steps(connection: Connection, folder: Path, overrides: Sequence[str]) -> None:
    module = run_loop(folder, overrides, share_start, TakingTurns(connection, folder))
    torch.save(module.policy.weights(), folder / "end.pt")


def run_loop(
    folder: Path,
    overrides: Sequence[str],
    share: Callable[[PostTraining, Path], None],
    turns: Callback,
) -> PostTraining:
    """`share`: writes the inputs of the other programs before the first step."""
    torch.set_num_threads(1)
    cfg = configuration(overrides)
    settings = check(cfg)
    weights = starting_weights(cfg, WARM)
    module, data = assemble(cfg, settings, build(cfg.data), folder / "run", weights)
    share(module, folder)
    record = RunRecord(folder / "run", mirrors=[])
    record.begin("", seed=settings.seed, command=overrides)
    callbacks = standard(
        record=record,
        evaluation=settings.evaluation,
        held_out=data.eval,
        checkpoint_every=settings.checkpoints.every,
        keep=settings.checkpoints.keep,
        resume=False,
    )
    trainer_for(settings.trainer, [*callbacks, turns]).fit(module)
    return module


class TakingTurns(Callback):
    """A turn lasts from the end of one step to the next: prompts, the step, the record."""

    def __init__(self, connection: Connection, folder: Path) -> None:
        self.connection, self.folder = connection, folder

    def on_train_start(self, trainer: Trainer, module: PostTraining) -> None:
        self.sampling, sample = 0.0, module.policy.sample

        def time_sample(*given: object, **named: object) -> Rollout:
            began = time.process_time()
            rollout = sample(*given, **named)
            self.sampling += time.process_time() - began
            return rollout

        module.policy.sample = time_sample
        self.turns = Turns(self.connection)
        self.turns.wait()
        self.turns.start()

    def on_train_batch_end(self, trainer: Trainer, module: PostTraining, *_: object) -> None:
        self.turns.stop()
        sampling, self.sampling = self.sampling, 0.0
        self.finish(module, sampling)
        if module.iteration < module.plan.iterations:
            self.turns.wait()
            self.turns.start()

    def finish(self, module: PostTraining, sampling: float) -> None:
        torch.save(work_of(module), self.folder / "step.pt")
        self.turns.finish(tokens=int(module.rollout.length.sum()), sampling=sampling)


def share_start(module: PostTraining, folder: Path) -> None:
    """Write the inputs of the baselines: weights, tokenizer, prompts of each step, numbers."""
    module.policy.save(folder / "start")
    plan, sampling = module.plan, module.policy.sampling
    prompts = [module.stream.draw(i, plan.prompts_per_step) for i in range(plan.iterations)]
    rows = [{"prompt": p.text, "answer": p.answer} for step in prompts for p in step]
    loss = module.algorithm.loss.keywords
    (group,) = module.configure_optimizers().param_groups
    numbers = {
        "steps": plan.iterations,
        "prompts_per_step": plan.prompts_per_step,
        "group_size": plan.group_size,
        "num_minibatches": plan.num_minibatches,
        "max_grad_norm": plan.max_grad_norm,
        "max_new_tokens": sampling.max_new_tokens,
        "clip_low": loss["clip_low"],
        "clip_high": loss["clip_high"],
        "lr": group["lr"],
        "betas": group["betas"],
        "weight_decay": group["weight_decay"],
    }
    (folder / "start.json").write_text(json.dumps({"numbers": numbers, "rows": rows}))


def work_of(module: PostTraining) -> dict[str, object]:
    """The work of the last step: tokens, lengths, advantages, the rows of each update."""
    rollout, plan = module.rollout, module.plan
    key = rng.key(plan.seed, "minibatches", module.iteration - 1, 0)
    experience = module.algorithm.experience(module.scores, rollout)
    updates = split_groups(experience, plan.num_minibatches, key)
    return {
        "tokens": rollout.sample.tokens,
        "prompt_length": rollout.sample.prompt_length,
        "length": rollout.length,
        "old_logp": rollout.behaviour_logp,
        "advantage": experience.advantages[:, 0],
        "updates": [torch.isin(rollout.group, x.rollout.group).nonzero()[:, 0] for x in updates],
        "lr": module.optimizers().param_groups[0]["lr"],
    }
