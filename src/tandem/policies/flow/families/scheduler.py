"""The noise levels of a folder's own scheduler, and the flags that select them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from tandem.dynamics import schedules
from tandem.policies.flow.adapter import SAME_LEVELS
from tandem.policies.flow.families.folders import one_line, read_index

SCHEDULER = "scheduler"
BY_SIZE = {
    "exponential": schedules.exponential_dynamic_shift,
    "linear": schedules.linear_dynamic_shift,
}
DYNAMIC = {"base_tokens": "base_image_seq_len", "max_tokens": "max_image_seq_len"}
DYNAMIC |= {name: name for name in ("base_shift", "max_shift")}


def pipeline_levels(folder: Path, steps: int, *, even: bool, mu: float) -> Tensor | None:
    """The noise levels of the folder's pipeline, from noise to 0: [steps + 1].

    `even`: the pipeline passes evenly spaced levels to its scheduler, which shifts them once.
    `mu`: of a dynamic shift. None: the scheduler makes several calls per step.
    """
    import diffusers

    named = read_index(folder)[SCHEDULER][1]
    with one_line(folder, SCHEDULER):
        scheduler = getattr(diffusers, named).from_pretrained(folder, subfolder=SCHEDULER)
        config = scheduler.config
        given = {"sigmas": torch.linspace(1, 1 / steps, steps).tolist()} if even else {}
        if config.get("use_dynamic_shifting"):
            given["mu"] = mu
        scheduler.set_timesteps(**({} if even else {"num_inference_steps": steps}), **given)
    levels = torch.as_tensor(scheduler.sigmas).float()
    return levels if len(levels) == steps + 1 else None


def schedule_of(config: Mapping, *, even: bool) -> partial:
    """The closest available schedule to that of a `scheduler_config.json`."""
    if not config.get("use_dynamic_shifting"):
        spaced = even or "flow_shift" in config
        function = schedules.linear_shift if spaced else schedules.diffusers_default
        return partial(function, shift=config.get("flow_shift", config.get("shift", 1.0)))
    kind = config.get("time_shift_type", "exponential")
    numbers = {own: config[theirs] for own, theirs in DYNAMIC.items() if theirs in config}
    if kind == "exponential" and config.get("shift_terminal"):
        numbers["terminal"] = config["shift_terminal"]
    return partial(BY_SIZE[kind], **numbers)


def flags_of(schedule: partial, levels: Tensor, tokens: int) -> str | None:
    """The flags that select a schedule; None: it does not reproduce `levels`, [steps + 1], from
    noise to 0."""
    given = schedule(len(levels) - 1, tokens)
    if (given - levels).abs().max() > SAME_LEVELS:
        return None
    words = [f"dynamics.schedule.{key}={number:g}" for key, number in schedule.keywords.items()]
    return " ".join([f"dynamics/schedule={schedule.func.__name__}", *words])


def read_config(folder: Path) -> Mapping | None:
    """The `scheduler_config.json` of a folder; None: it has none."""
    file = folder / SCHEDULER / "scheduler_config.json"
    return json.loads(file.read_bytes()) if file.is_file() else None


def interpolated_shift(config: Mapping, tokens: int) -> float:
    """The mu of a dynamic shift, interpolated between the smallest and the largest image."""
    small, large = config.get("base_image_seq_len", 256), config.get("max_image_seq_len", 4096)
    low, high = config.get("base_shift", 0.5), config.get("max_shift", 1.15)
    return low + (high - low) / (large - small) * (tokens - small)


class FolderSchedule:
    """The noise levels of a folder's pipeline."""

    folder: Path
    even = True  # whether the pipeline passes evenly spaced levels to its scheduler

    def own_levels(self, steps: int, tokens: int) -> tuple[Tensor, str | None] | None:
        """The noise levels of the folder's scheduler, [steps + 1], and the flags that select them,
        if any; None: the folder has no scheduler."""
        config = read_config(self.folder)
        if config is None:
            return None
        mu = self.shift(config, steps=steps, tokens=tokens)
        levels = pipeline_levels(self.folder, steps, even=self.even, mu=mu)
        if levels is None:
            return None
        return levels, flags_of(self.schedule_of(config, even=self.even), levels, tokens)

    def even_levels(self, steps: int, tokens: int) -> Tensor | None:
        """Evenly spaced levels, shifted as by the folder's scheduler, [steps + 1]; None: the folder
        has no scheduler."""
        config = read_config(self.folder)
        return None if config is None else self.schedule_of(config, even=True)(steps, tokens)

    def shift(self, config: Mapping, *, steps: int, tokens: int) -> float:
        """The mu of a scheduler with a dynamic shift; `config`: its scheduler_config.json."""
        return interpolated_shift(config, tokens)

    def schedule_of(self, config: Mapping, *, even: bool) -> partial:
        return schedule_of(config, even=even)
