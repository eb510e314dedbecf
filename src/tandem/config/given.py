"""Contradictions between rows that are given or sampled, and what is made of them."""

from __future__ import annotations

from tandem.config.binding import Call
from tandem.config.composed import Composed
from tandem.config.stale import correction, proximal
from tandem.contracts import facts_of
from tandem.data.rows import text
from tandem.settings import Settings

SHAPING = ("penalise", "overlong")
ON_FRESH_SAMPLES = ("reinforce",)  # losses that are the policy gradient there and nowhere else


def shapes(composed: Composed) -> str | None:
    """What is taken from a score before it is compared, as the option that does it."""
    truncated, kl = (composed.within("algorithm", name) for name in ("truncated", "kl"))
    if truncated is not None and truncated.target.__name__ in SHAPING:
        return f"algorithm/truncated={truncated.target.__name__}"
    if kl is not None and kl.target.__name__ == "KLInReward" and kl.arguments.get("coef"):
        return "algorithm/kl=in_reward"
    return None


def pairs_keep_their_order(composed: Composed) -> str | None:
    """Which answer is the better one must not depend on what the policy thinks of it."""
    collect, shaping = composed.within("algorithm", "collect"), shapes(composed)
    if collect is None or shaping is None or "pairs" not in facts_of(collect.target).gives:
        return None
    return (
        f"{shaping} takes from the scores of pairs after {collect.target.__name__} has said which "
        "answer is the better one; set algorithm/truncated=train and algorithm/kl=auto"
    )


def given_rows_are_not_normalised(composed: Composed) -> str | None:
    if not composed.is_offline or not composed.number("algorithm.normalize_advantages"):
        return None
    return (
        "algorithm.normalize_advantages=true leaves nothing of rows that are all worth 1; set it "
        "to false"
    )


def given_rows_have_no_samples(composed: Composed) -> str | None:
    """A KL estimated from rows of somebody else is none, nor has anybody seen their entropy. A
    distance between velocities is one at any pictures."""
    if not composed.is_offline:
        return None
    kl = composed.number("algorithm.kl.loss")
    of_velocities = isinstance(kl, Call) and facts_of(kl.target).on_errors
    if composed.number("algorithm.kl.coef") and not of_velocities:
        return (
            "algorithm.kl.coef: a KL is estimated from the policy's own samples, and here rows are "
            "given; set it to 0"
        )
    if composed.number("algorithm.entropy.target") is not None:
        return "algorithm.entropy.target is compared with samples, and here rows are given"
    return None


def drift_can_be_seen(composed: Composed) -> str | None:
    target, settings = composed.number("algorithm.target_kl"), composed.settings
    if target is None:
        return None
    if target <= 0:
        return f"algorithm.target_kl={target}: must be positive"
    if composed.is_offline or proximal(composed) == "current":
        return "algorithm.target_kl: there is no old policy to drift from; set it to null"
    if updates(settings) == 1:
        return (
            "algorithm.target_kl ends the updates of an iteration, and there is only one; set it "
            "to null, or num_minibatches or epochs above 1"
        )
    return None


def updates(settings: Settings) -> int:
    return settings.num_minibatches * settings.epochs


def old_samples_have_a_ratio(composed: Composed) -> str | None:
    """From the second update on a rollout is one of other weights."""
    loss, settings = composed.policy_loss, composed.settings
    if loss is None or loss.target.__name__ not in ON_FRESH_SAMPLES or updates(settings) == 1:
        return None
    if proximal(composed) == "current" and correction(composed) != "none":
        return None
    return (
        f"num_minibatches={settings.num_minibatches} epochs={settings.epochs}: "
        f"{loss.target.__name__} has no ratio for samples that an update has left behind; set both "
        "to 1, or algorithm/proximal=current, whose correction weighs them"
    )


def there_is_somebody_to_imitate(composed: Composed) -> str | None:
    """A plain text file has prompts alone; of other data only their rows can tell."""
    data, settings = composed.components["data"], composed.settings
    if data.target is not text:
        return None
    if composed.is_offline:
        return (
            f"algorithm={settings.choices['algorithm']} learns from rows of data, and data=text "
            "has prompts alone; take other data, or another algorithm"
        )
    start = settings.warm_start or []
    if settings.continue_from is not None or "algorithm=sft" not in start:
        return None
    return (
        f"the warm start [{', '.join(start)}] needs demonstrations, which data=text has none of; "
        "set warm_start=null, or continue_from=RUN"
    )


GIVEN_RULES = (
    there_is_somebody_to_imitate,
    pairs_keep_their_order,
    given_rows_are_not_normalised,
    given_rows_have_no_samples,
    drift_can_be_seen,
    old_samples_have_a_ratio,
)
