"""Suggestions for unknown names: the nearest spelling, or the name in another library."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher

from tandem.settings.renamed import was_renamed


class ConfigError(ValueError):
    """A configuration that cannot run. The message is one line and names what to change."""


class UnknownKeyError(ConfigError):
    """A key that its function does not take."""


class WrongValueError(ConfigError):
    """A value of another type or out of bounds. `reason` continues the message after the `key`."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}{reason}")
        self.key, self.reason = key, reason


# Last part of a key in other libraries -> the keys and choices here, joined by `and` if all are
# needed, by `or` if one of them is meant.
ALIASES: Mapping[str, str] = {
    "clip_ratio": "algorithm.loss.clip_low and algorithm.loss.clip_high",
    "clip_range": "algorithm.loss.clip_low and algorithm.loss.clip_high",
    "cliprange": "algorithm.loss.clip_low and algorithm.loss.clip_high",
    "clip_eps": "algorithm.loss.clip_low and algorithm.loss.clip_high",
    "clip_ratio_low": "algorithm.loss.clip_low",
    "clip_ratio_high": "algorithm.loss.clip_high",
    "epsilon": "algorithm.loss.clip_low",
    "epsilon_high": "algorithm.loss.clip_high",
    "beta": "algorithm.kl.coef",
    "kl_coef": "algorithm.kl.coef",
    "kl_penalty": "algorithm.kl.coef",
    "kl_loss_coef": "algorithm.kl.coef",
    "init_kl_coef": "algorithm.kl.coef",
    "target_kl": "algorithm.target_kl or algorithm.kl.kl_target",
    "entropy_coef": "algorithm.entropy.coef",
    "entropy_coeff": "algorithm.entropy.coef",
    "normalize_advantages": "algorithm.normalize_advantages",
    "whiten_advantages": "algorithm.normalize_advantages",
    "normalize_by_std": "algorithm.advantage.scale",
    "scale_rewards": "algorithm.advantage.scale",
    "baseline": "algorithm/advantage=leave_one_out or algorithm/advantage=moving_average",
    "baseline_decay": "algorithm/advantage=moving_average and algorithm.advantage.decay",
    "advantage_estimator": "algorithm/advantage=group_relative",
    "adv_estimator": "algorithm/advantage=group_relative",
    "dynamic_sampling": "algorithm/sampling_strategy=dynamic_sampling",
    "token_level_loss": "algorithm/weights=token_mean",
    "loss_agg_mode": "algorithm/weights=token_mean",
    "loss_type": "algorithm=dr_grpo",
    "num_generations": "group_size",
    "rollout_n": "group_size",
    "num_samples": "group_size",
    "batch_size": "prompts_per_step",
    "train_batch_size": "prompts_per_step",
    "gradient_accumulation_steps": "micro_batch_size and max_tokens_per_microbatch=null",
    "per_device_train_batch_size": "micro_batch_size and max_tokens_per_microbatch=null",
    "mini_batch_size": "num_minibatches",
    "ppo_epochs": "epochs",
    "num_ppo_epochs": "epochs",
    "num_iterations": "epochs or iterations",
    "max_steps": "iterations",
    "total_steps": "iterations",
    "num_train_epochs": "iterations",
    "max_epochs": "iterations",
    "learning_rate": "optimizer.lr",
    "lr": "optimizer.lr",
    "warmup_steps": "schedule.warmup",
    "lr_scheduler_type": "schedule=cosine",
    "weight_decay": "optimizer.weight_decay",
    "grad_clip": "max_grad_norm",
    "gradient_clip_val": "max_grad_norm",
    "max_length": "rollout.max_new_tokens",
    "max_tokens": "rollout.max_new_tokens",
    "max_completion_length": "rollout.max_new_tokens",
    "max_response_length": "rollout.max_new_tokens",
    "eval_steps": "evaluation.every",
    "save_steps": "checkpoints.every",
    "save_total_limit": "checkpoints.keep",
    "output_dir": "run_dir",
    "resume_from_checkpoint": "resume",
    "report_to": "logger=wandb",
    "ema_decay": "model/ema=constant and model.ema.decay",
    "num_inference_steps": "rollout.steps",
    "num_gpus": "trainer.devices",
    "n_gpus_per_node": "trainer.devices",
    "nnodes": "trainer.num_nodes",
    "num_processes": "trainer.devices",
    "mixed_precision": "trainer.precision",
    "bf16": "trainer.precision",
    "cfg_scale": "rollout.guidance_scale",
    "batch": "prompts_per_step",
    "num_steps": "iterations",
    "train_steps": "iterations",
    "model_name_or_path": "model=hf and model.path",
    "torch_dtype": "model.dtype",
    "load_in_4bit": "model/quantization=bnb_4bit and model.lora={r:32,alpha:64}",
    "load_in_8bit": "model/quantization=bnb_8bit and model.lora={r:32,alpha:64}",
    "dataset": "data",
    "gpus": "trainer.devices",
    "device": "trainer.accelerator",
    "fp16": "trainer.precision",
    "output": "run_dir",
    "ckpt_path": "resume or continue_from",
    "load": "resume or continue_from",
    "wandb": "logger=wandb",
    "tensorboard": "logger=tensorboard",
}

RIGHT = (
    "a right answer scores 1 by reward=exact_match (the same text), reward=regex_answer (the last "
    "match of a pattern) or reward=math_verify (mathematically equal)"
)
TRAINER = "trainer=auto takes a GPU if there is one, trainer=ddp or fsdp2 all of them"
NO_KL = "a coefficient of 0 leaves the KL out; set algorithm.kl.coef=0"
# Options that are deliberately missing -> the reason, and what to set.
NOT_OFFERED: Mapping[str, str] = {
    "trainer=gpu": TRAINER,
    "trainer=cuda": TRAINER,
    "reward=accuracy": RIGHT,
    "reward=correctness": RIGHT,
    "reward=math": RIGHT,
    "algorithm/kl=null": NO_KL,
    "algorithm/kl=none": NO_KL,
    "algorithm/kl=k1": (
        "as a term of the loss k1 has a gradient of mean 0, so it is noise; set "
        "algorithm/kl=auto, or algorithm/kl=in_reward, which takes k1 from the reward"
    ),
}


def unknown(what: str, name: str, names: Iterable[str]) -> str:
    """The message about an unknown name, with the one that was probably meant."""
    names = list(names)
    option = f"{what.removeprefix('option of ')}={name}"
    if (reason := NOT_OFFERED.get(option)) is not None:
        return f"{option}: {reason}"
    if (moved := was_renamed(name if what in ("key", "group") else option)) is not None:
        return moved
    last = re.split(r"[./]", name)[-1]
    elsewhere = None if what.startswith("option of ") else ALIASES.get(last)
    if elsewhere is not None and not _of_algorithm(last, names):
        return f"unknown {what} {name!r}: here it is {elsewhere}"
    if (meant := nearest(name, names)) is not None:
        return f"unknown {what} {name!r}: did you mean {meant!r}?"
    if beside := [one for one in names if "." in one and _parts(one)[0] == _parts(name)[0]]:
        return f"unknown {what} {name!r}: there are {', '.join(_parts(one)[1] for one in beside)}"
    listed = ", ".join(names) or "none"
    if len(names) < 20:
        return f"unknown {what} {name!r}: there are {listed}"
    if what.startswith("option of "):
        topic = what.removeprefix("option of ").replace("/", ".")
        hint = (
            f"see `python -m tandem train --help {topic}`; your own options need plugins=[MODULE]"
        )
    else:
        topic = name.partition(".")[0]
        hint = f"see `python -m tandem train --help{f' {topic}' if topic in names else ''}`"
    return f"unknown {what} {name!r}: {hint}"


def _of_algorithm(last: str, names: Sequence[str]) -> bool:
    """Whether the chosen algorithm has a key of this name, such as `beta` of a preference loss."""
    return any(n.startswith("algorithm.") and _parts(n)[1] == last for n in names)


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The most similar of `names`. The last part of a key also matches directly above or below.

    It matches anywhere only if its parent does not exist: `reward.length` has no target, and that
    of an entropy bonus is unrelated.
    """
    names = list(names)
    parent, _ = _parts(name)
    if parent in names:
        inside = [one for one in names if not f"{name}.".startswith(f"{one}.")]
        names = [one for one in inside if _in_line(parent, _parts(one)[0])]
    scored = [(_likeness(name, candidate), candidate) for candidate in names]
    likeness, found = max(scored, default=(0.0, ""), key=lambda pair: (pair[0], -len(pair[1])))
    return found if likeness >= (0.6 if _parts(found)[0] == parent else 0.75) else None


def _in_line(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    return not short or f"{long}.".startswith(f"{short}.")


def _likeness(name: str, candidate: str) -> float:
    name, candidate = name.lower(), candidate.lower()
    (parent, last), (other_parent, other_last) = _parts(name), _parts(candidate)
    same_last = SequenceMatcher(None, last, other_last).ratio()
    if parent == other_parent:
        return same_last
    return max(SequenceMatcher(None, name, candidate).ratio(), 0.95 * same_last)


def _parts(name: str) -> tuple[str, str]:
    parent, _, last = name.rpartition(".")
    return parent, last
