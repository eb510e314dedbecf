"""Flow-Factory's side: its GRPO trainer on the same pipeline, prompts, sizes and numbers.

It runs under the interpreter with Flow-Factory's dependencies and imports nothing of Tandem:
`flow_pipeline.py` starts it.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from flow_factory.hparams import Arguments
from flow_factory.rewards import PointwiseRewardModel, RewardModelOutput
from flow_factory.trainers import BaseTrainer, load_trainer
from network_rows import count_rows
from torch import Tensor
from turns import Turns

ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3")


def main() -> None:
    torch.set_num_threads(1)
    folder, handle = Path(sys.argv[1]), int(sys.argv[2])
    numbers = json.loads((folder / "start.json").read_text())
    trainer = load_trainer(Arguments.from_dict(settings(numbers, folder)))
    trainer.autocast = nullcontext  # its own uses bfloat16 even with the precision "no"
    TakingTurns(Connection(handle), trainer)
    trainer.start()


def settings(numbers: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Tandem's numbers in float32; options that only cost time or memory are off."""
    pictures = numbers["prompts"] * numbers["group_size"]
    return {
        "mixed_precision": "no",
        "num_processes": 1,
        "data": {
            "dataset_dir": str(folder / "prompts"),
            "cache_dir": str(folder / "encoded"),
            "dataloader_num_workers": 0,
        },
        "model": {
            "model_type": "sd3-5",
            "model_name_or_path": str(folder / "pipeline"),
            "finetune_type": "full",
            "target_modules": "all",
            "master_weight_dtype": "float32",
        },
        "log": {
            "run_name": "flow_factory",
            "save_dir": str(folder / "saved"),
            "save_freq": 0,
            "logging_backend": "none",
            "verbose": False,
        },
        "scheduler": {
            "dynamics_type": "Flow-SDE",
            "noise_level": numbers["noise_level"],
            "num_sde_steps": numbers["random_steps"],
            "sde_steps": None,  # drawn from all but the last
        },
        "train": {
            "trainer_type": "grpo",
            "max_epochs": numbers["iterations"],
            "unique_sample_num_per_epoch": numbers["prompts"],
            "group_size": numbers["group_size"],
            # Also the batch size of sampling; a larger one would mean fewer updates per iteration.
            "per_device_batch_size": pictures // numbers["updates"],
            "gradient_step_per_epoch": numbers["updates"],
            "resolution": numbers["resolution"],
            "num_inference_steps": numbers["steps"],
            "guidance_scale": numbers["guidance_scale"],
            "clip_range": numbers["clip"],
            "kl_beta": 0.0,
            "global_std": True,
            "advantage_aggregation": "sum",
            "learning_rate": numbers["lr"],
            "adam_betas": numbers["betas"],
            "adam_epsilon": numbers["eps"],
            "adam_weight_decay": numbers["weight_decay"],
            "max_grad_norm": numbers["max_grad_norm"],
            "latent_storage_dtype": "fp32",
            "ema_decay": 0,
        },
        "eval": {"resolution": numbers["resolution"], "eval_freq": 0},
        "rewards": [
            {
                "name": "brightness",
                "reward_model": "step_flow_factory.Brightness",
                "device": "cpu",
                "dtype": "float32",
                "batch_size": pictures,
            }
        ],
    }


class Brightness(PointwiseRewardModel):
    """Brightness of an image [3, H, W] in [0, 1]."""

    required_fields = ("image",)
    use_tensor_inputs = True

    def __call__(self, image: list[Tensor], **_: Any) -> RewardModelOutput:
        return RewardModelOutput(rewards=[float(one.double().mean()) for one in image])


class TakingTurns:
    """A turn lasts from one call of `should_continue_training` to the next."""

    def __init__(self, connection: Connection, trainer: BaseTrainer) -> None:
        self.sampling, self.began, self.sample = 0.0, False, trainer.sample
        self.goes_on = trainer.should_continue_training
        pipeline = trainer.adapter.pipeline
        self.rows = count_rows(transformer=pipeline.transformer, vae=pipeline.vae)
        for name in ENCODERS:
            getattr(pipeline, name).register_forward_pre_hook(self.encodes)
        trainer.sample, trainer.should_continue_training = self.timed_sample, self.next_turn
        self.turns = Turns(connection)

    def encodes(self, *_: Any) -> None:
        self.rows["encoded"] += 1

    def timed_sample(self) -> list[Any]:
        began = time.process_time()
        samples = self.sample()
        self.sampling = time.process_time() - began
        return samples

    def next_turn(self) -> bool:
        if self.began:
            self.turns.stop()
            self.turns.finish(sampling=self.sampling, rows=dict(self.rows))
        if not self.goes_on():
            return False
        self.turns.wait()
        self.began = True
        self.rows.clear()
        self.turns.start()
        return True


if __name__ == "__main__":
    main()
