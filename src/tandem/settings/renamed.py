"""Former names of keys, groups, options and parts of a configuration, beside their present ones.

A command line or a file with a former name is refused, and the message gives the present one. The
recorded configuration of a run is read with present names, so spellings do not count as changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

# Former -> present. The name of a key also names its group, written with slashes. Keys below a name
# move with it.
RENAMED: Mapping[str, str] = {
    "algorithm.evidence": "algorithm.objective",
    "algorithm.objective=path": "algorithm.objective=policy_gradient",
    "algorithm.objective=elbo": "algorithm.objective=denoising",
    "algorithm.objective=teacher": "algorithm.objective=distillation",
    "algorithm.proximal": "algorithm.old_logprobs",
    "algorithm.old_logprobs=recomputed": "algorithm.old_logprobs=recompute",
    "algorithm.old_logprobs=bypass": "algorithm.old_logprobs=rollout",
    "algorithm.old_logprobs=log_linear": "algorithm.old_logprobs=interpolate",
    "algorithm.correction": "algorithm.importance_sampling",
    "algorithm.truncated": "algorithm.truncation_handling",
    "algorithm.collect": "algorithm.sampling_strategy",
    "algorithm.sampling_strategy=branched": "algorithm.sampling_strategy=tree",
    "algorithm.sampling_strategy=greedy_baseline": "algorithm.sampling_strategy=remax",
    "algorithm.sampling_strategy=mismatched_pairs": "algorithm.sampling_strategy=kto_kl",
    "algorithm.regression": "algorithm.timestep_sampling",
    "algorithm.snapshots": "algorithm.ema",
    "algorithm.sampled_by": "algorithm.rollout_weights",
    "algorithm.sampled_by_from": "algorithm.rollout_weights_start",
    "algorithm.anchor": "algorithm.ema_kl",
    "algorithm.fake": "algorithm.networks.fake",
    "algorithm.surrogate": "algorithm.networks.surrogate",
    "dynamics.name": "dynamics.kind",  # equal for texts; the kind of pictures is not read
    "dynamics.clip_unit": "dynamics.clip_scale",
    "dynamics.sequence_unit": "dynamics.sequence_scale",
    "dynamics.preference_unit": "dynamics.preference_scale",
    "dynamics.entropy_unit": "dynamics.entropy_scale",
    # Set by the file of an algorithm, and now keys of the run: see OF_THE_RUN.
    "algorithm.group_size": "group_size",
    "algorithm.num_minibatches": "num_minibatches",
    "algorithm.epochs": "epochs",
    "trainer.strategy=ddp_fork": "trainer.strategy=ddp",
    # The run has one seed.
    "model.seed": "seed",
    "model.text.seed": "seed",
    "model.picture.seed": "seed",
    "${most:}": "${max:}",
    "model.sampling": "rollout",
    "model.trained": "algorithm",
    # Paths in a `_target_`.
    "tandem.algorithm.Algorithm": "tandem.algorithm.algorithm.Algorithm",
    "tandem.algorithm.algorithm.Critic": "tandem.algorithm.critic.Critic",
    "tandem.algorithm.regularizers.Anchor": "tandem.algorithm.regularizers.EmaKL",
    "tandem.collect": "tandem.training.collect",
    "tandem.corrections": "tandem.losses.importance",
    "tandem.dynamics.regression.by_sigma": "tandem.dynamics.weighting.by_sigma",
    "tandem.dynamics.regression.by_sigma_squared": "tandem.dynamics.weighting.by_sigma_squared",
    "tandem.dynamics.regression.ghuber": "tandem.dynamics.weighting.ghuber",
    "tandem.dynamics.regression.huber": "tandem.dynamics.weighting.huber",
    "tandem.dynamics.regression.plain": "tandem.dynamics.weighting.plain",
    "tandem.dynamics.decays.Following": "tandem.dynamics.decays.EmaSchedule",
    "tandem.kl": "tandem.losses.kl",
    "tandem.losses.importance.bypass": "tandem.losses.importance.rollout",
    "tandem.losses.importance.log_linear": "tandem.losses.importance.interpolate",
    "tandem.losses.importance.recomputed": "tandem.losses.importance.recompute",
    "tandem.losses.kl.to_fast": "tandem.losses.kl.to_ema",
    "tandem.losses.preference.group_preference": "tandem.losses.group_preference.group_preference",
    "tandem.passes": "tandem.evaluation.settings",
    "tandem.penalties": "tandem.algorithm.regularizers",
    "tandem.policies.flow.teachers.TeacherConfig": "tandem.policies.flow.teachers.VelocityTeachers",
    "tandem.policies.flow.families.tiny_unet_flow": "tandem.policies.flow.families.tiny_flow",
    "tandem.policies.flow.tiny_flow": "tandem.policies.flow.families.tiny_flow",
    "tandem.policies.language.LanguagePolicy": "tandem.policies.language.policy.LanguagePolicy",
    "tandem.policies.language.Sampling": "tandem.policies.language.policy.Sampling",
    "tandem.policies.tiny_lm": "tandem.policies.language.tiny_lm",
    "tandem.rewards.nearest_rendering.nearest_rendering": "tandem.rewards.images.nearest_rendering",
    "tandem.schedules": "tandem.training.lr_schedules",
    "tandem.training.collect.best_and_worst": "tandem.training.strategies.best_and_worst",
    "tandem.training.collect.branched": "tandem.training.strategies.tree",
    "tandem.training.collect.dynamic_sampling": "tandem.training.strategies.dynamic_sampling",
    "tandem.training.collect.greedy_baseline": "tandem.training.strategies.remax",
    "tandem.training.collect.kto_kl": "tandem.training.strategies.kto_kl",
    "tandem.training.collect.mismatched_pairs": "tandem.training.strategies.kto_kl",
    "tandem.training.collect.offline": "tandem.training.strategies.offline",
    "tandem.training.collect.preference_pairs": "tandem.training.strategies.preference_pairs",
    "tandem.training.collect.remax": "tandem.training.strategies.remax",
    "tandem.training.collect.tree": "tandem.training.strategies.tree",
    "tandem.weights": "tandem.losses.reduction",
}

# Numbers that the file of an algorithm sets and that are keys of the run.
OF_THE_RUN = ("group_size", "num_minibatches", "epochs")
SEEDS = {
    former for former, present in RENAMED.items() if present == "seed"
}  # their value was always ${seed}
# A recorded configuration has both keys, and the run read its own.
MOVED = {f"algorithm.{name}" for name in OF_THE_RUN} | SEEDS


@cache
def present_name(name: str) -> str:
    """The present name of a key, a group, an option (`group=name`) or a `_target_`."""
    key, equals, value = name.partition("=")
    parts = re.split(r"(?=[.=])", key.replace("/", ".") + equals + value)
    for end in range(len(parts), 0, -1):
        if (new := RENAMED.get("".join(parts[:end]))) is not None:
            new, equals, value = present_name(new + "".join(parts[end:])).partition("=")
            return (new.replace(".", "/") if "/" in key else new) + equals + value
    return name


def present_override(word: str) -> str:
    """The present spelling of an override, `algorithm/ema@algorithm.ema.old=ramp` among them."""
    sign, key, rest = re.fullmatch(r"([+~]*)([^@=]*)(.*)", word, re.S).groups()
    place, equals, value = rest.partition("=")
    if not value:
        return f"{sign}{present_name(key)}{place and '@' + present_name(place[1:])}{equals}"
    named, _, value = present_name(f"{key}={value}").partition("=")
    return f"{sign}{named}{place and '@' + present_name(place[1:])}={value}"


def present_overrides(words: Iterable[str]) -> list[str]:
    """The present spellings of a recorded command line."""
    return [present_override(word) if isinstance(word, str) else word for word in words]


def was_renamed(name: str) -> str | None:
    """The message about a former name of a key, group, option or `_target_`; None for others."""
    return None if (new := present_name(name)) == name else f"{name} was renamed to {new}"


def present_config(config: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """A recorded configuration with present names. Parts that moved to another parent stay."""
    found = {}
    for name, value in config.items():
        if f"{where}{name}" in MOVED:
            continue
        parent, _, last = present_name(f"{where}{name}").rpartition(".")
        name = last if f"{parent}." == (where or ".") else name
        found[name] = _present_value(f"{where}{name}", value)
    return found


def present_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """`present_config` for a flat configuration: dotted key -> value."""
    named = ((present_name(key), value) for key, value in facts.items() if key not in MOVED)
    return {key: _present_value(key, value) for key, value in named}


def _present_value(key: str, value: Any) -> Any:
    match value:
        case Mapping():
            return present_config(value, f"{key}.")
        case list() if key.partition(".")[0] in ("overrides", "inherited", "replaced"):
            return present_overrides(value)
        case str() if key.endswith("_target_"):
            return present_name(value)
        case str():
            return present_name(f"{key}={value}").partition("=")[2]
    return value
