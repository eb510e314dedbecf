"""Answers of the model of a finished run to a question: texts, or pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from tandem import rng
from tandem.config import ConfigError, build, check, resume_config
from tandem.config.refusals import refusing
from tandem.data.images import add_marks, show_file
from tandem.data.records import AS_CHAT, Wording
from tandem.evaluation.settings import Evaluation, Pictures
from tandem.hub import quiet_libraries
from tandem.launch.devices import set_float32_precision
from tandem.launch.finished_runs import has_model
from tandem.legality.steps import read_levels
from tandem.policies.base import Policy
from tandem.policies.chain.records import ChainSampling
from tandem.policies.flow.records import EMA, FlowSampling
from tandem.policies.language.records import Sampling
from tandem.policies.request import Request
from tandem.record.pictures import count_enlargement, enlarge, lay_out_grid, save
from tandem.record.room import check_place
from tandem.rewards.films import lay_out_frames
from tandem.stop import command_to_resume, defer_signals
from tandem.types import SEGMENTS, WRITTEN, Picture, Prompt, is_film

Part = TypeVar("Part", Sampling, FlowSampling)
# Parts of a model that a finished one does not need, also kernels of the machine that trained it.
OF_TRAINING = {
    "lora": None, "ema": None, "quantization": None, "attn_implementation": None, "liger": False,
}  # fmt: skip
OF_TEXTS, OF_PICTURES = ("temperature", "max_new_tokens"), ("steps", "guidance_scale", "resolution")


def answer(
    run_dir: Path, overrides: Sequence[str], text: str, given: Mapping[str, Any]
) -> tuple[Sequence[str | Tensor], Sequence[Prompt]]:
    """The answers to a text, or its pictures, and the prompt of each. `given`: the flags.

    Raises ConfigError, before the model is loaded, if the pictures could not be written.
    """
    cfg = configuration(run_dir, overrides)
    prompt = make_prompt(text, cfg, chat=given["chat"], images=given["image"])
    evaluation = check(cfg).evaluation
    if isinstance(evaluation, Pictures):
        with refusing():
            check_place((given["out"] or Path()).parent, key="--out")
    policy = load_policy(run_dir, cfg)
    sampling = sampling_of(policy, evaluation, given)
    return ask(policy, prompt, n=given["n"], sampling=sampling, seed=given["seed"])


def show(outputs: Sequence[str | Tensor], prompts: Sequence[Prompt], file: Path) -> list[str]:
    """The lines to print: the texts themselves, or what pictures were drawn from and their file."""
    if isinstance(outputs[0], str):
        return [*outputs]
    shown = [lay_out_frames(one) if is_film(one) else one for one in outputs]
    grid = lay_out_grid(shown, columns=min(8, len(shown)))
    texts = [asked.fields[WRITTEN] for asked in prompts if WRITTEN in asked.fields]
    file.parent.mkdir(parents=True, exist_ok=True)
    with defer_signals():
        saved = save(enlarge(grid, count_enlargement(shown[0].shape)), file)
    return [*texts, str(saved)]


def configuration(run_dir: Path, overrides: Sequence[str] = ()) -> DictConfig:
    other = "give the directory of a finished run"
    if not (run_dir / "config.yaml").is_file():
        raise ConfigError(f"{run_dir} has no config.yaml; {other}")
    if not has_model(run_dir):
        finish = f"finish it first: {command_to_resume(run_dir)}"
        raise ConfigError(f"{run_dir} has no model; {other}, or {finish}")
    cfg = resume_config(run_dir, overrides)
    if cfg.rollout.get("engine") is not None:  # the weights are loaded here
        alone = {"engine": None, "order": "exact", "handover": None}
        cfg.rollout.update({name: value for name, value in alone.items() if name in cfg.rollout})
    return cfg


def make_prompt(text: str, cfg: DictConfig, *, chat: bool, images: Sequence[Path] = ()) -> Prompt:
    """The question in the format of the run's data, with its pictures; `chat` always makes it a
    user message."""
    shown = tuple(map(load_image, images))
    prompt = Prompt(id=0, source="you", text=text, images=shown)
    wording = Wording(**cfg.data.wording) if "wording" in cfg.data else None
    if chat:
        wording = replace(wording or AS_CHAT, chat=True)
    prompt = prompt if wording is None else wording.put(prompt)
    try:
        return add_marks(prompt) if shown else prompt
    except ValueError as error:
        raise ConfigError(f"--image: {error}") from None


def load_image(file: Path) -> Picture:
    """The picture in a file. Raises ConfigError if it is none."""
    try:
        return show_file(file)
    except ValueError as error:
        raise ConfigError(f"--image {file} {error}") from None


def load_policy(run_dir: Path, cfg: DictConfig) -> Policy:
    """The policy with the final weights, or their average if that was evaluated; adapters are
    already merged."""
    averaged = cfg.evaluation.get("weights") == EMA
    folder = run_dir / "model" / EMA if averaged else run_dir / "model"
    unused = {name: off for name, off in OF_TRAINING.items() if name in cfg.model}
    for part in SEGMENTS:
        if part in cfg.model:
            own = {name: off for name, off in OF_TRAINING.items() if name in cfg.model[part]}
            unused[part] = own
    quiet_libraries()
    set_float32_precision(check(cfg).trainer)
    policy = build(OmegaConf.merge(cfg.model, {"path": str(folder), **unused}))
    with refusing():
        policy.load(Request(sampling=build(cfg.rollout), seed=cfg.seed))
    return policy.to("cuda" if torch.cuda.is_available() else "cpu")


def sampling_of(
    policy: Policy, evaluation: Evaluation, given: Mapping[str, Any]
) -> Sampling | FlowSampling:
    """The sampling: greedy for texts, as evaluated for pictures, updated by the given flags."""
    pictures = isinstance(evaluation, Pictures)
    own = policy.sampling
    if pictures:  # use the loaded weights, whichever weights sampled in training
        own = evaluation.as_used(own)
    elif given.get("n", 1) == 1:  # several greedy answers would be equal
        own = replace(own, temperature=0.0)
    flags = {name: given[name] for name in OF_TEXTS + OF_PICTURES if given.get(name) is not None}
    if isinstance(own, ChainSampling):
        return _of_both(own, flags)
    known = {one.name for one in fields(own)}
    for name in flags:
        if name not in known:
            kinds = ("texts", "pictures") if pictures else ("pictures", "texts")
            flag = name.replace("_", "-")
            raise ConfigError(
                f"--{flag} is for models of {kinds[0]}, but this model makes {kinds[1]}"
            )
    return _update_steps(own, flags) if pictures else _update(own, flags)


def _of_both(own: ChainSampling, flags: Mapping[str, Any]) -> ChainSampling:
    """The sampling of a chain: text flags for its text, picture flags for its picture."""
    text = {name: flags[name] for name in OF_TEXTS if name in flags}
    picture = {name: flags[name] for name in OF_PICTURES if name in flags}
    return replace(own, text=_update(own.text, text), picture=_update_steps(own.picture, picture))


def _update_steps(own: FlowSampling, flags: Mapping[str, Any]) -> FlowSampling:
    """The sampling of pictures. Raises ConfigError for a number of steps for which the schedule has
    no noise levels."""
    updated = _update(own, flags)
    with refusing():
        if "steps" in flags:
            read_levels(updated.schedule, "--steps", updated.steps)
    return updated


def _update(own: Part, flags: Mapping[str, Any]) -> Part:
    with refusing():
        return replace(own, **flags)


def ask(
    policy: Policy, prompt: Prompt, *, n: int, sampling: Sampling | FlowSampling, seed: int
) -> tuple[Sequence[str | Tensor], Sequence[Prompt]]:
    """`n` answers and the prompt of each; equal for equal seeds."""
    with refusing():
        if prompt.images and not policy.sees:
            raise ValueError("--image needs a vision-language model, and this one reads only text")
        for _, reason in policy.admit([prompt])[1]:
            raise ValueError(f"the prompt {reason}")
        key = rng.key(seed, "sample")
        rollout = policy.sample([prompt], n, key=key, slots=[0], sampling=sampling)
        return rollout.outputs, rollout.prompts
