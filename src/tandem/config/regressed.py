"""Contradictions between what whole pictures are trained on, and the settings that say how."""

from __future__ import annotations

from collections.abc import Callable

from tandem.algorithm import ON_ERRORS
from tandem.config.binding import Call
from tandem.config.composed import Composed
from tandem.config.legal import PICTURES, domain
from tandem.config.names import unknown
from tandem.contracts import facts_of
from tandem.losses import distillation
from tandem.losses.pairs import reward_of
from tandem.losses.preference import group_preference
from tandem.objectives.decoupled import ERRORS
from tandem.types import OF_SNAPSHOTS

OF_TEACHERS = {"std", "velocity_gain"}  # of the steps at which a teacher is asked
BY_VELOCITY = (distillation.velocity, distillation.x0)
# Settings that only those read who train on whole pictures, or on what a teacher says.
OF_PICTURES = ("regression", "snapshots", "sampled_by", "sampled_by_from", "teachers", "anchor")


def losses_see_what_they_read(composed: Composed) -> str | None:
    """Errors under elbo, log-probabilities elsewhere; a teacher's errors under teacher alone."""
    loss, evidence = composed.policy_loss, _evidence(composed)
    if loss is None:
        return None
    name, on_errors = loss.target.__name__, facts_of(loss.target).on_errors
    taught = bool(facts_of(loss.target).reads & OF_TEACHERS)
    if on_errors and evidence not in ON_ERRORS:
        wanted = "teacher" if taught else "elbo"
        return f"algorithm.evidence={evidence}: {name} reads velocity errors; set it to {wanted}"
    if taught and evidence == "elbo":
        return (
            f"algorithm.evidence=elbo: {name} asks a teacher on the policy's own path; set it to "
            "teacher, as algorithm=diffusion_opd does"
        )
    if evidence == "teacher" and not on_errors:
        return (
            f"algorithm.evidence=teacher: {name} reads log-probabilities, and a teacher tells "
            "velocities; set algorithm/loss=distillation"
        )
    if evidence == "elbo" and not on_errors and _judges_whole_rows(loss):
        return (
            f"algorithm.evidence=elbo has a log-probability for each noise level, and {name} "
            "judges pictures as a whole; set algorithm.evidence=any, whose is the mean over levels"
        )
    return None


def _judges_whole_rows(loss: Call) -> bool:
    return reward_of(loss.target) is not None or loss.target is group_preference


def drift_is_of_log_probabilities(composed: Composed) -> str | None:
    if composed.number("algorithm.target_kl") is None or domain(composed) != PICTURES:
        return None
    return (
        "algorithm.target_kl is nats of sampled steps, and here whole pictures are trained; set it "
        "to null, and algorithm.kl.coef or algorithm.anchor.coef instead"
    )


def distances_are_of_fresh_noise(composed: Composed) -> str | None:
    """A distance between velocity errors, beside a loss that is given none."""
    if _evidence(composed) in ON_ERRORS:
        return None
    for group, part in _penalties(composed).items():
        if facts_of(part).on_errors:
            return (
                f"algorithm.{group}: {part.__name__} reads velocity errors, and under "
                f"algorithm.evidence={_evidence(composed)} there are none; set algorithm.{group}."
                "coef=0"
            )
    return None


def teachers_are_asked(composed: Composed) -> str | None:
    evidence, teachers = _evidence(composed), composed.within("algorithm", "teachers")
    if evidence == "teacher" and teachers is None:
        return "algorithm.evidence=teacher: nobody teaches; take algorithm=diffusion_opd"
    if evidence != "teacher" and teachers is not None:
        return f"algorithm.teachers are not asked under algorithm.evidence={evidence}; set teacher"
    if evidence == "teacher" and composed.is_offline:
        return "algorithm.evidence=teacher judges states that are sampled, and here rows are given"
    if evidence == "teacher" and composed.settings.dynamics.solver is not None:
        return (
            "algorithm.evidence=teacher: a solver keeps no states to ask a teacher about; set "
            "dynamics/solver=euler"
        )
    return None


def velocities_are_taught_without_noise(composed: Composed) -> str | None:
    loss, name = composed.policy_loss, composed.settings.dynamics.name
    target = None if loss is None else loss.arguments.get("target")
    if name == "ode" or target is None or getattr(target, "target", None) not in BY_VELOCITY:
        return None
    return (
        f"algorithm/loss/target={target.target.__name__} on dynamics={name}: where a step has "
        "noise, its mean is what it depends on; set algorithm/loss/target=xt, or dynamics=ode"
    )


def snapshots_are_kept(composed: Composed) -> str | None:
    """Those that a loss compares with."""
    missing = sorted(_compared(composed) - {*_snapshots(composed)})
    if _evidence(composed) not in ON_ERRORS or not missing:
        return None
    return f"algorithm.snapshots.{missing[0]} is missing, but something reads it; leave it"


def samples_come_from_what_is_kept(composed: Composed) -> str | None:
    """`rollout.weights` is `algorithm.sampled_by`, unless somebody says otherwise."""
    source, kept = _source(composed), _snapshots(composed)
    if source == "live":
        if composed.number("algorithm.sampled_by_from"):
            return "algorithm.sampled_by_from: the live weights sample all along; leave it at 0"
        return None
    if source not in kept:
        return f"algorithm.sampled_by: {unknown('snapshot', source, ['live', *kept])}"
    if composed.is_offline:
        return f"algorithm.sampled_by={source}: nothing is sampled; set it to live"
    if domain(composed) != PICTURES:
        return (
            f"algorithm.sampled_by={source}: the log-probabilities of sampled steps are those of "
            "the live weights; set it to live"
        )
    return None


def snapshots_have_names_of_their_own(composed: Composed) -> str | None:
    taken = {"live": "the weights that are trained", "ema": "the average that model.ema keeps"}
    for name in _snapshots(composed):
        if name in taken:
            return f"algorithm.snapshots.{name}: {name} names {taken[name]}; take another name"
    return None


def groups_share_their_noise(composed: Composed) -> str | None:
    """Errors differ more between noise levels than between samples."""
    loss, regression = composed.policy_loss, composed.within("algorithm", "regression")
    if loss is None or regression is None or domain(composed) != PICTURES:
        return None
    compares = facts_of(loss.target).whole_groups or facts_of(loss.target).survey is not None
    if not compares or regression.arguments.get("shared", True):
        return None
    return (
        f"algorithm.regression.shared=false: {loss.target.__name__} compares the samples of a "
        "prompt, which must get the same noise; set it to true"
    )


def settings_of_pictures_are_read(composed: Composed) -> str | None:
    """A setting of these groups that is given on the command line, and that nobody reads."""
    for override in composed.settings.overrides:
        key = override.lstrip("+~").partition("=")[0].partition("@")[2] or override.lstrip("+~")
        group, _, rest = key.partition("=")[0].replace("/", ".").partition(".")
        name, _, inner = rest.partition(".")
        if group != "algorithm" or name not in OF_PICTURES:
            continue
        if (reason := _unread(composed, name, inner)) is not None:
            return f"{override}: {reason}; leave it out"
    return None


def _unread(composed: Composed, name: str, inner: str) -> str | None:
    """Why nobody reads a setting algorithm.NAME.INNER; None: somebody does."""
    evidence, loss = _evidence(composed), composed.policy_loss
    if domain(composed) != PICTURES:
        return (
            f"only who trains on whole pictures reads it, and "
            f"algorithm={composed.settings.choices['algorithm']} on "
            f"dynamics={composed.settings.dynamics.name} does not"
        )
    if name == "regression" and evidence == "teacher" and not inner.endswith("guidance_scale"):
        return "a teacher is asked where the policy came to, not at fresh noise"
    if name == "regression" and inner.startswith("weighting") and loss is not None:
        on_errors = facts_of(loss.target).on_errors
        return f"{loss.target.__name__} reads errors as they are" if on_errors else None
    snapshot = inner.partition(".")[0]
    read = _compared(composed) | {_source(composed)}
    if name == "snapshots" and snapshot and snapshot not in read:
        return f"nothing reads algorithm.snapshots.{snapshot}"
    return None


def _source(composed: Composed) -> str:
    """Whose samples are drawn."""
    return composed.number("rollout.weights") or composed.number("algorithm.sampled_by")


def _compared(composed: Composed) -> set[str]:
    """The snapshots that a loss compares with."""
    needs = {ERRORS.get(name, name) for part in _readers(composed) for name in facts_of(part).reads}
    return {OF_SNAPSHOTS[name] for name in needs & OF_SNAPSHOTS.keys()}


def _evidence(composed: Composed) -> str:
    return composed.number("algorithm.evidence")


def _snapshots(composed: Composed) -> list[str]:
    return list(composed.number("algorithm.snapshots") or {})


def _readers(composed: Composed) -> list[Callable]:
    loss = composed.policy_loss
    return [*([] if loss is None else [loss.target]), *_penalties(composed).values()]


def _penalties(composed: Composed) -> dict[str, Callable]:
    """What is called beside the loss, by the group of the algorithm."""
    found = {}
    for group in ("kl", "anchor"):
        part = composed.within("algorithm", group)
        inner = None if part is None else part.arguments.get("loss")
        if isinstance(inner, Call) and part.arguments.get("coef"):
            found[group] = inner.target
    return found


REGRESSED_RULES = (
    losses_see_what_they_read,
    distances_are_of_fresh_noise,
    teachers_are_asked,
    velocities_are_taught_without_noise,
    drift_is_of_log_probabilities,
    snapshots_are_kept,
    samples_come_from_what_is_kept,
    snapshots_have_names_of_their_own,
    groups_share_their_noise,
    settings_of_pictures_are_read,
)
