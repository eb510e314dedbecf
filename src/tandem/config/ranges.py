"""Numbers that no run can have, each by itself or against its neighbour."""

from __future__ import annotations

from dataclasses import asdict
from functools import reduce
from operator import getitem
from typing import Any

from tandem.config.binding import Call
from tandem.config.composed import Composed
from tandem.contracts import defaults_of, facts_of
from tandem.dynamics.kernels import cps
from tandem.losses.preference import group_preference

INF = float("inf")

POSITIVE = (
    "iterations prompts_per_step group_size num_minibatches epochs max_grad_norm threads "
    "parameters micro_batch_size max_tokens_per_microbatch checkpoints.every checkpoints.keep "
    "evaluation.every evaluation.prompts evaluation.samples evaluation.pass_at evaluation.rows"
)
# Of components. Numbers that would otherwise be found after the warm start, or never.
ABOVE_ZERO = (
    "algorithm.loss.most rollout.kernel.noise_level rollout.schedule.shift "
    "rollout.schedule.train_steps rollout.solver.shift rollout.stochastic.stride "
    "rollout.stochastic.stay.iterations algorithm.loss.advantage_clip "
    "algorithm.loss.tilt.temperature algorithm.kl.loss.advantage_clip "
    "algorithm.regression.weighting.p algorithm.regression.levels.std "
    "algorithm.regression.levels.shift"
)
AT_LEAST_ZERO = (
    "optimizer.lr optimizer.weight_decay schedule.warmup schedule.final algorithm.kl.coef "
    "algorithm.loss.clip_high algorithm.loss.coef algorithm.loss.desirable "
    "algorithm.loss.undesirable algorithm.loss.beta algorithm.anchor.coef "
    "algorithm.sampled_by_from algorithm.advantage.eps algorithm.advantage.of.eps "
    "algorithm.critic.coef algorithm.critic.lr algorithm.critic.warmup algorithm.critic.loss.clip"
)
FRACTIONS = (
    "algorithm.loss.part algorithm.advantage.gamma algorithm.advantage.lam "
    "algorithm.correction.decay model.ema.decay model.ema.start algorithm.kl.loss.least"
)
# Of the decay of a snapshot; what it keeps is a part.
KEPT = ("decay", "start")
AVERAGED_OVER = ("warmup", "length")
# Of noise levels, and of the part of the steps that they are drawn from.
ENDS = (
    ("algorithm.regression.levels", "low", "high"),
    ("algorithm.regression.levels.among", "low", "high"),
    ("algorithm.regression.levels.among", "start", "end"),
)
OF_DYNAMICS = ("kernel", "schedule", "solver", "stochastic")
IN_NATS = ("gmpo",)  # losses whose clip bounds a log ratio
FINEST = 5e-7  # some steps of float32 beside 1


def sizes_are_positive(composed: Composed) -> str | None:
    settings = asdict(composed.settings)
    for key in POSITIVE.split():
        value = reduce(getitem, key.split("."), settings)
        numbers = value if isinstance(value, tuple) else (value,)
        if any(number is not None and number <= 0 for number in numbers):
            shown = list(value) if isinstance(value, tuple) else value
            return f"{key}={shown}: must be positive"
    return None


def seed_is_not_negative(composed: Composed) -> str | None:
    seed = composed.settings.seed
    return f"seed={seed}: must not be negative" if seed < 0 else None


def numbers_are_in_their_range(composed: Composed) -> str | None:
    for key in ABOVE_ZERO.split():
        value = composed.number(key)
        if _is_number(value) and value <= 0:
            return f"{as_given(key)}={value}: must be positive"
    for keys, high in ((AT_LEAST_ZERO, INF), (FRACTIONS, 1)):
        for key in keys.split():
            value = composed.number(key)
            if _is_number(value) and not 0 <= value <= high:
                said = "not be negative" if high == INF else "lie in 0 ... 1"
                return f"{key}={value}: must {said}"
    return None


def noise_fits_into_a_state(composed: Composed) -> str | None:
    """cps keeps the noise of a state, of which no more than all can be fresh."""
    kernel, level = (composed.number(f"rollout.kernel{key}") for key in ("", ".noise_level"))
    if kernel is None or kernel.target is not cps or level is None or level <= 1:
        return None
    return f"dynamics.kernel.noise_level={level}: must lie in 0 ... 1 under dynamics=cps"


def as_given(key: str) -> str:
    """`rollout` repeats what `dynamics` says of a flow's steps."""
    group, name, *rest = key.split(".")
    repeated = group == "rollout" and name in OF_DYNAMICS
    return ".".join(["dynamics", name, *rest]) if repeated else key


def bounds_rise(composed: Composed) -> str | None:
    """Of a band of the loss, and of a clip of ratios, which cannot go below 0."""
    edges = [composed.number(f"algorithm.correction.{name}") for name in ("low", "high")]
    if None not in edges and not edges[0] < edges[1]:
        return f"algorithm.correction.low={edges[0]}: must be below high={edges[1]}"
    between, low = (composed.number(f"algorithm.loss.{name}") for name in ("between", "clip_low"))
    if between is not None and not between[0] < between[1]:
        return f"algorithm.loss.between={list(between)}: give the lower bound and then the upper"
    loss = composed.policy_loss
    in_nats = loss is not None and loss.target.__name__ in IN_NATS
    if low is not None and not 0 <= low <= (INF if in_nats else 1):
        return f"algorithm.loss.clip_low={low}: must " + (
            "not be negative" if in_nats else "lie in 0 ... 1"
        )
    return None


def preferences_of_groups_and_errors_are_weighed(composed: Composed) -> str | None:
    """A beta of 0 would train nothing, or divide by it; pairs have a rule of their own."""
    loss = composed.policy_loss
    beta = None if loss is None else loss.arguments.get("beta")
    if not _is_number(beta) or beta > 0:
        return None
    weighs = facts_of(loss.target).on_errors or loss.target is group_preference
    return f"algorithm.loss.beta={beta}: must be positive" if weighs else None


def noise_levels_lie_between_their_ends(composed: Composed) -> str | None:
    for key, *names in ENDS:
        low, high = (_given(composed, key, name) for name in names)
        if None not in (low, high) and not 0 <= low < high <= 1:
            shown = " ".join(f"{key}.{n}={x}" for n, x in zip(names, (low, high), strict=True))
            return f"{shown}: must rise within 0 ... 1"
    return None


def teachers_see_some_steps(composed: Composed) -> str | None:
    fraction = composed.number("algorithm.teachers.fraction")
    if fraction is None or 0 < fraction <= 1:
        return None
    return f"algorithm.teachers.fraction={fraction}: must be above 0, and 1 at most"


def snapshots_keep_a_part(composed: Composed) -> str | None:
    for name, snapshot in (composed.number("algorithm.snapshots") or {}).items():
        decay = snapshot.arguments.get("decay") if isinstance(snapshot, Call) else None
        for key, value in decay.arguments.items() if isinstance(decay, Call) else ():
            shown = f"algorithm.snapshots.{name}.decay.{key}={value}"
            if key in KEPT and not 0 <= value <= 1:
                return f"{shown}: must lie in 0 ... 1"
            if key in AVERAGED_OVER and value <= 0:
                return f"{shown}: must be positive"
            if key in ("flat", "slope") and value < 0:
                return f"{shown}: must not be negative"
    return None


def clips_can_be_told_from_rounding(composed: Composed) -> str | None:
    """A ratio near 1 is a float32, and where its steps are as wide as the clip it is noise."""
    loss = composed.policy_loss
    for name in ("clip_low", "clip_high"):
        clip = None if loss is None else loss.arguments.get(name)
        if clip is not None and 0 < clip < FINEST:
            return (
                f"algorithm.loss.{name}={clip:.2g}: a float32 ratio near 1 is rounded by as much; "
                f"set it to {FINEST:g} or more, or to 0"
            )
    return None


def the_cap_is_above_the_clip(composed: Composed) -> str | None:
    """Below it, a dual clip would hide steps that the clip means to push back."""
    loss = composed.policy_loss
    numbers = {} if loss is None else loss.arguments
    high, most = numbers.get("clip_high"), numbers.get("ratio_max")
    if high is None or most is None or most > 1 + high:
        return None
    return (
        f"algorithm.loss.ratio_max={most} caps ratios that clip_high={high} lets through; "
        f"set it above {1 + high:g}, or to null"
    )


def the_policy_learns_at_last(composed: Composed) -> str | None:
    warmup, iterations = composed.number("algorithm.critic.warmup"), composed.settings.iterations
    if warmup is None or warmup < iterations:
        return None
    return (
        f"algorithm.critic.warmup={warmup} of iterations={iterations} leaves none to the policy; "
        "set it lower"
    )


def _given(composed: Composed, key: str, name: str) -> float | None:
    """What was given to a call, or what it takes if nothing was; None: it takes no such number."""
    call = composed.number(key)
    if not isinstance(call, Call):
        return None
    return call.arguments.get(name, defaults_of(call.target).get(name))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


RANGE_RULES = (
    seed_is_not_negative,
    sizes_are_positive,
    numbers_are_in_their_range,
    noise_fits_into_a_state,
    bounds_rise,
    preferences_of_groups_and_errors_are_weighed,
    noise_levels_lie_between_their_ends,
    teachers_see_some_steps,
    snapshots_keep_a_part,
    clips_can_be_told_from_rounding,
    the_cap_is_above_the_clip,
    the_policy_learns_at_last,
)
