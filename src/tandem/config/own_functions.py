"""What a user's own loss or reward asks of the rest of a configuration."""

from __future__ import annotations

from tandem.config.composed import Composed
from tandem.contracts import facts_of
from tandem.losses.adapted import by_steps

ADD_UP_TO_ONE = ("token_mean", "sequence_mean")


def averaging_losses_see_whole_updates(composed: Composed) -> str | None:
    """What can be known of it before a row is sampled; the rest is seen by the weights of rows."""
    loss = composed.policy_loss
    if loss is None or not facts_of(loss.target).averages:
        return None
    broken = (
        _wrapped(composed) or _weighed(composed) or _over_ranks(composed) or _in_parts(composed)
    )
    return None if broken is None else by_steps(loss.target, broken)


def _wrapped(composed: Composed) -> str | None:
    outer, correction = (composed.within("algorithm", name) for name in ("loss", "correction"))
    if outer is not composed.policy_loss:
        return f"{outer.target.__name__} masks its samples"
    if correction is not None and correction.target.__name__ != "none":
        name = correction.target.__name__
        return f"algorithm/correction={name} weighs its steps (set algorithm/correction=none)"
    return None


def _weighed(composed: Composed) -> str | None:
    weights = composed.within("algorithm", "weights")
    if weights is None or weights.target.__name__ in ADD_UP_TO_ONE:
        return None
    return (
        f"algorithm/weights={weights.target.__name__} need not add up to 1 over it (set "
        f"{' or '.join(ADD_UP_TO_ONE)})"
    )


def _over_ranks(composed: Composed) -> str | None:
    trainer = composed.settings.trainer
    alone = trainer.ranks in (1, None)
    return None if alone else f"trainer.devices={trainer.devices} shares it out"


def _in_parts(composed: Composed) -> str | None:
    settings = composed.settings
    prompts = -(-settings.prompts_per_step // settings.num_minibatches)
    rows, most = prompts * settings.group_size, settings.micro_batch_size
    if most is None or most >= rows:
        return None
    return f"micro_batch_size={most} cuts its {rows} rows"


def ranges_rise(composed: Composed) -> str | None:
    for name, reward in composed.components["reward"].items():
        bounds = reward.arguments.get("range")
        if bounds is not None and not bounds[0] < bounds[1]:
            return (
                f"reward.{name}.range={list(bounds)}: give the lowest number and then the highest"
            )
    return None
