"""Contradictions between what is trained on whole pictures, and what is kept for it."""

from __future__ import annotations

from collections.abc import Callable

from tandem.config.binding import Call
from tandem.config.composed import Composed
from tandem.config.legal import PICTURES, domain
from tandem.config.names import unknown
from tandem.declarations import compares_rows, needs_of, reads_errors, survey_of
from tandem.losses import distillation

OF_TEACHERS = {"std", "velocity_gain"}  # of the steps at which a teacher is asked
OF_SNAPSHOTS = {"old_error": "old", "fast_error": "fast", "old_logp": "old"}
BY_VELOCITY = (distillation.velocity, distillation.x0)
# Settings that only those read who train on whole pictures, or on what a teacher says.
OF_PICTURES = ("regression", "snapshots", "sampled_by", "sampled_by_from", "teachers", "anchor")


def losses_see_what_they_read(composed: Composed) -> str | None:
    """Errors under elbo, log-probabilities elsewhere; a teacher's errors under teacher alone."""
    loss, evidence = composed.policy_loss, _evidence(composed)
    if loss is None:
        return None
    name, on_errors = loss.target.__name__, reads_errors(loss.target)
    taught = bool(needs_of(loss.target) & OF_TEACHERS)
    if on_errors and evidence not in ("elbo", "teacher"):
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
    return None


def distances_are_of_fresh_noise(composed: Composed) -> str | None:
    """A distance between velocity errors, beside a loss that is given none."""
    if _evidence(composed) in ("elbo", "teacher"):
        return None
    for group, part in _penalties(composed).items():
        if reads_errors(part):
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
    """Those that a loss reads, and the one that is sampled from."""
    kept, evidence = _snapshots(composed), _evidence(composed)
    if evidence in ("elbo", "teacher"):
        read = {name for part in _readers(composed) for name in needs_of(part)}
        for snapshot in sorted({OF_SNAPSHOTS[name] for name in read & OF_SNAPSHOTS.keys()}):
            if snapshot not in kept:
                return (
                    f"algorithm.snapshots.{snapshot} is missing, but something reads it; leave it"
                )
    source = composed.number("algorithm.sampled_by")
    if source in (None, "live"):
        return None
    if source not in kept:
        return f"algorithm.sampled_by: {unknown('snapshot', source, ['live', *kept])}"
    if domain(composed) != PICTURES or composed.is_offline:
        return (
            f"algorithm.sampled_by={source}: the log-probabilities of sampled steps are those of "
            "the live weights; set it to live"
        )
    return None


def groups_share_their_noise(composed: Composed) -> str | None:
    """Errors differ more between noise levels than between samples."""
    loss, regression = composed.policy_loss, composed.within("algorithm", "regression")
    if loss is None or regression is None or domain(composed) != PICTURES:
        return None
    compares = compares_rows(loss.target) or survey_of(loss.target) is not None
    if not compares or regression.arguments.get("shared", True):
        return None
    return (
        f"algorithm.regression.shared=false: {loss.target.__name__} compares the samples of a "
        "prompt, which must get the same noise; set it to true"
    )


def settings_of_pictures_are_read(composed: Composed) -> str | None:
    """A setting that is given and changes nothing is an error."""
    if domain(composed) == PICTURES:
        return None
    for override in composed.settings.overrides:
        key = override.lstrip("+~").partition("=")[0].partition("@")[0].replace("/", ".")
        group, _, rest = key.partition(".")
        if group == "algorithm" and rest.partition(".")[0] in OF_PICTURES:
            return (
                f"{override}: only who trains on whole pictures reads it, and "
                f"algorithm={composed.settings.choices['algorithm']} on "
                f"dynamics={composed.settings.dynamics.name} does not; leave it out"
            )
    return None


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
    snapshots_are_kept,
    groups_share_their_noise,
    settings_of_pictures_are_read,
)
