"""Runs of Tandem at the measured sizes, built as by `python train.py`."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from gpu_meter import Meter
from gpu_models import QWEN3, qwen3_config, word
from gpu_sizes import Answers, Section
from omegaconf import DictConfig, OmegaConf

from tandem.config import build, check, configuration
from tandem.launch.assembly import assemble
from tandem.launch.devices import set_float32_precision
from tandem.launch.memory_estimate import footprint, work_of
from tandem.launch.trainer import trainer_for
from tandem.settings.settings import Settings
from tandem.training.module import PostTraining

NUM_PROMPTS = 256
SILENT = (
    "evaluation.every=null",
    "guards.no_signal=1000",  # random weights learn nothing
    "guards.max_mismatch=1",  # it is measured, and must not end the run
    "guards.first_update_ratio=1",
    "plugins=[gpu_models]",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    device: torch.device
    folder: Path  # empty, for what is written
    matrix: int  # side of a product that fills the device
    # Keeps what is measured so far, in case the section is stopped.
    note: Callable[[dict[str, object]], None] = lambda report: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    cfg: DictConfig
    settings: Settings
    module: PostTraining


def start(section: Section, place: Place) -> Run:
    cfg = configuration(overrides(section, place))
    made = {"shape": section.size.shape, "device": place.device.type}
    if isinstance(section.size, Answers):
        made |= {"_target_": "gpu_models.qwen3", "_partial_": True, "dtype": cfg.model.dtype}
        cfg.model.build = made
    else:
        made |= {"_target_": "gpu_models.RandomSD3"}
        cfg.model.adapter = OmegaConf.to_container(cfg.model.adapter) | made
    settings = check(cfg)
    set_float32_precision(settings.trainer)
    module, _ = assemble(cfg, settings, build(cfg.data), place.folder / "run", None)
    return Run(cfg=cfg, settings=settings, module=module)


def fit(run: Run, meter: Meter) -> None:
    trainer_for(run.settings.trainer, [meter]).fit(run.module)


def overrides(section: Section, place: Place) -> list[str]:
    of_size = of_answers if isinstance(section.size, Answers) else of_paintings
    return [
        *of_size(section, place),
        f"iterations={section.iterations}",
        f"trainer.accelerator={'gpu' if place.device.type == 'cuda' else 'cpu'}",
        f"run_dir={place.folder}/run",
        f"cache_dir={place.folder}/cache",
        *SILENT,
        *section.overrides,
    ]


def of_answers(section: Section, place: Place) -> list[str]:
    """All rows are sampled at once; two updates, so that log-probabilities are compared."""
    size, file = section.size, place.folder / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in questions(size)))
    return [
        "model=hf",
        "algorithm=grpo",
        "reward=target_length",
        f"reward.target_length.function.target={6 * size.new}",
        "model.path=null",
        f"data.path={file}",
        f"prompts_per_step={size.prompts}",
        f"group_size={size.group}",
        "num_minibatches=2",
        f"max_tokens_per_microbatch={size.budget}",
        f"rollout.max_new_tokens={size.new}",
        f"rollout.max_prompt_tokens={size.longest}",
        f"rollout.max_rows={size.prompts * size.group}",
    ]


def questions(size: Answers) -> list[str]:
    """Prompts of random words and lengths."""
    chance, vocabulary = random.Random(0), QWEN3[size.shape]["vocab_size"]
    lengths = [chance.randint(size.shortest, size.longest) for _ in range(NUM_PROMPTS)]
    return [" ".join(word(chance.randrange(3, vocabulary)) for _ in range(n)) for n in lengths]


def of_paintings(section: Section, place: Place) -> list[str]:
    size, file = section.size, place.folder / "prompts.txt"
    count = 8 * size.prompts  # all are encoded, and written to disk, before the first iteration
    file.write_text("".join(f"picture {i}\n" for i in range(count)))
    return [
        "model=sd3_5_medium",
        "model.path=null",
        f"model.adapter.resolution={size.resolution}",
        f"model.adapter.max_sequence_length={size.text_tokens}",
        f"model.row_budget={size.rows}",
        f"data.path={file}",
        f"prompts_per_step={size.prompts}",
        f"group_size={size.group}",
        f"rollout.steps={size.steps}",
    ]


def memory(run: Run, meter: Meter, place: Place) -> dict[str, int]:
    """Bytes: the peak of tensor memory in each phase, and the result of `estimate=true`."""
    cfg = run.cfg.copy()
    if "build" in cfg.model:  # an estimate of tokens reads a folder
        folder = place.folder / "configuration"
        qwen3_config(cfg.model.build.shape).save_pretrained(folder)
        cfg.model.build, cfg.model.path = None, str(folder)
    request = build(cfg.algorithm).request(build(cfg.rollout))
    parts = footprint(build(cfg.model), request, work_of(cfg, run.settings, 1))
    always, sampled, updated = (
        sum(part.size for part in parts if part.phase == phase)
        for phase in ("always", "sampling", "update")
    )
    return {
        "sampling": meter.most("sample"),
        "sampling_estimate": int(always + sampled),
        "update": meter.most("complete", "train"),
        "update_estimate": int(always + updated),
    }
