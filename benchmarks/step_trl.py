"""TRL's side: its GRPOTrainer on the same weights, prompts, group size and lengths."""

from __future__ import annotations

import json
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from turns import Turns
from workloads import score


def exact_match(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    pairs = zip(completions, answer, strict=True)
    return [float(given.strip() == wanted.strip()) for given, wanted in pairs]


def by_text(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    return [score(given, wanted) for given, wanted in zip(completions, answer, strict=True)]


REWARDS: dict[str, Callable[..., list[float]]] = {
    "exact_match": exact_match,
    "by_text": by_text,
}


def steps(connection: Connection, folder: Path, reward: str) -> None:
    torch.set_num_threads(1)
    start = json.loads((folder / "start.json").read_text())
    trainer = GRPOTrainer(
        model=str(folder / "start"),
        reward_funcs=REWARDS[reward],
        args=settings(start["numbers"], folder / "trl"),
        train_dataset=Dataset.from_list(start["rows"]),
    )
    trainer.add_callback(TakingTurns(connection, start["numbers"]))
    trainer.train()


def settings(numbers: dict[str, Any], folder: Path) -> GRPOConfig:
    """Tandem's numbers; options that only cost time or memory are off."""
    rows = numbers["prompts_per_step"] * numbers["group_size"]
    return GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=rows // numbers["num_minibatches"],
        steps_per_generation=numbers["num_minibatches"],
        max_steps=numbers["steps"] * numbers["num_minibatches"],
        num_generations=numbers["group_size"],
        max_completion_length=numbers["max_new_tokens"],
        shuffle_dataset=False,
        learning_rate=numbers["lr"],
        adam_beta1=numbers["betas"][0],
        adam_beta2=numbers["betas"][1],
        weight_decay=numbers["weight_decay"],
        max_grad_norm=numbers["max_grad_norm"],
        lr_scheduler_type="constant",
        epsilon=numbers["clip_low"],
        epsilon_high=numbers["clip_high"],
        beta=0.0,
        loss_type="grpo",
        logging_steps=numbers["num_minibatches"],
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


class TakingTurns(TrainerCallback):
    """A turn is one generation, its rewards, its updates and its line in the log."""

    def __init__(self, connection: Connection, numbers: dict[str, Any]) -> None:
        self.connection, self.num_updates = connection, numbers["num_minibatches"]
        self.rows = numbers["prompts_per_step"] * numbers["group_size"]

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.turns = Turns(self.connection)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self.num_updates == 0:
            self.turns.wait()
            self.turns.start()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if "completions/mean_length" in logs:  # the closing line has none
            self.turns.stop()
            self.turns.finish(tokens=round(logs["completions/mean_length"] * self.rows))
