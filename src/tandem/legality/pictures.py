"""Contradictions between what whole pictures are trained on, and the settings that say how."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from tandem.algorithm.algorithm import ON_ERRORS
from tandem.algorithm.decoupled import ERRORS
from tandem.contracts import facts_of, name_of, numbers_of
from tandem.legality.case import PICTURES, Case, unknown
from tandem.legality.steps import TOKENS_OF_A_PICTURE
from tandem.types import OF_SNAPSHOTS

OF_TEACHERS = {"std", "velocity_gain"}  # of the steps at which a teacher is asked
# Settings that only those read who train on whole pictures, or on what a teacher says.
OF_PICTURES = ("regression", "snapshots", "sampled_by", "sampled_by_from", "teachers", "anchor")


def losses_see_what_they_read(case: Case) -> Iterator[str]:
    """Errors under elbo, log-probabilities elsewhere; a teacher's errors under teacher alone."""
    evidence, facts, name = case.algorithm.evidence, case.loss_facts, name_of(case.loss)
    taught = bool(facts.reads & OF_TEACHERS)
    if facts.on_errors and evidence not in ON_ERRORS:
        wanted = "teacher" if taught else "elbo"
        yield f"algorithm.evidence={evidence}: {name} reads velocity errors; set it to {wanted}"
    if taught and evidence == "elbo":
        yield (
            f"algorithm.evidence=elbo: {name} asks a teacher on the policy's own path; set it to "
            "teacher, as algorithm=diffusion_opd does"
        )
    if evidence == "teacher" and not facts.on_errors:
        yield (
            f"algorithm.evidence=teacher: {name} reads log-probabilities, and a teacher tells "
            "velocities; set algorithm/loss=distillation"
        )
    if evidence == "elbo" and not facts.on_errors and facts.per == "row":
        yield (
            f"algorithm.evidence=elbo has a log-probability for each noise level, and {name} "
            "judges pictures as a whole; set algorithm.evidence=any, whose is the mean over levels"
        )


def distances_are_of_fresh_noise(case: Case) -> Iterator[str]:
    """A distance between velocity errors, beside a loss that is given none."""
    evidence = case.algorithm.evidence
    for group, part in _penalties(case).items():
        if evidence not in ON_ERRORS and facts_of(part).on_errors:
            yield (
                f"algorithm.{group}: {name_of(part)} reads velocity errors, and under "
                f"algorithm.evidence={evidence} there are none; set algorithm.{group}.coef=0"
            )


def teachers_are_asked(case: Case) -> Iterator[str]:
    evidence, teachers = case.algorithm.evidence, case.algorithm.teachers
    if evidence != "teacher":
        if teachers is not None:
            yield (
                f"algorithm.teachers are not asked under algorithm.evidence={evidence}; set teacher"
            )
        return
    if teachers is None:
        yield (
            "algorithm.evidence=teacher needs algorithm.teachers.folders; see "
            "algorithm=diffusion_opd"
        )
    if case.is_offline:
        yield "algorithm.evidence=teacher judges states that are sampled, and here rows are given"
    if case.plan.dynamics.solver is not None:
        yield (
            "algorithm.evidence=teacher: a solver keeps no states to ask a teacher about; set "
            "dynamics/solver=euler"
        )


def velocities_are_taught_without_noise(case: Case) -> Iterator[str]:
    kernel, numbers = case.plan.dynamics.kernel, numbers_of(case.loss)
    for name, target in numbers.items():
        if facts_of(target).noiseless and not facts_of(kernel).noiseless:
            yield (
                f"algorithm/loss/{name}={name_of(target)} on dynamics={case.plan.dynamics.name}: "
                "where a step has noise, its mean is what it depends on; set "
                f"algorithm/loss/{name}=xt, or dynamics=ode"
            )


def drift_is_of_log_probabilities(case: Case) -> Iterator[str]:
    if case.algorithm.target_kl is not None and case.domain == PICTURES:
        yield (
            "algorithm.target_kl is nats of sampled steps, and here whole pictures are trained; "
            "set it to null, and algorithm.kl.coef or algorithm.anchor.coef instead"
        )


def snapshots_are_kept(case: Case) -> Iterator[str]:
    """Those that a loss compares with."""
    missing = sorted(_compared(case) - {*case.algorithm.snapshots})
    if case.algorithm.evidence in ON_ERRORS and missing:
        yield f"algorithm.snapshots.{missing[0]} is missing, but something reads it; leave it"


def samples_come_from_what_is_kept(case: Case) -> Iterator[str]:
    """`rollout.weights` is `algorithm.sampled_by`, unless somebody says otherwise."""
    source, kept = _source(case), case.algorithm.snapshots
    if source == "live":
        if case.algorithm.sampled_by_from:
            yield "algorithm.sampled_by_from: the live weights sample all along; leave it at 0"
        return
    if source not in kept:
        yield f"algorithm.sampled_by: {unknown('snapshot', source, ['live', *kept])}"
    if case.is_offline:
        yield f"algorithm.sampled_by={source}: nothing is sampled; set it to live"
    if case.domain != PICTURES:
        yield (
            f"algorithm.sampled_by={source}: the log-probabilities of sampled steps are those of "
            "the live weights; set it to live"
        )


def snapshots_have_names_of_their_own(case: Case) -> Iterator[str]:
    taken = {"live": "the weights that are trained", "ema": "the average that model.ema keeps"}
    for name in case.algorithm.snapshots:
        if name in taken:
            yield f"algorithm.snapshots.{name}: {name} names {taken[name]}; take another name"


def groups_share_their_noise(case: Case) -> Iterator[str]:
    """Errors differ more between noise levels than between samples."""
    facts, regression = case.loss_facts, case.algorithm.regression
    compares = facts.whole_groups or facts.survey is not None
    if compares and case.domain == PICTURES and regression is not None and not regression.shared:
        yield (
            f"algorithm.regression.shared=false: {name_of(case.loss)} compares the samples of a "
            "prompt, which must get the same noise; set it to true"
        )


def noise_levels_can_be_drawn(case: Case) -> Iterator[str]:
    """Where whole pictures are asked about, which may be steps of the sampler."""
    dynamics, steps = case.plan.dynamics, case.rollout.arguments.get("steps")
    made = case.algorithm.regression
    if case.domain != PICTURES or dynamics.schedule is None or made is None:
        return
    try:
        u = torch.full((1, made.count), 0.5).double()
        made.levels(u, dynamics.schedule(steps, TOKENS_OF_A_PICTURE))
    except (ValueError, ArithmeticError) as error:
        yield f"algorithm.regression of rollout.steps={steps}: {error}"


def settings_of_pictures_are_read(case: Case) -> Iterator[str]:
    """A setting of these groups that is given on the command line, and that nobody reads."""
    for override in case.plan.overrides:
        key = override.lstrip("+~").partition("=")[0].partition("@")[2] or override.lstrip("+~")
        group, _, rest = key.partition("=")[0].replace("/", ".").partition(".")
        name, _, inner = rest.partition(".")
        if group != "algorithm" or name not in OF_PICTURES:
            continue
        if (reason := _unread(case, name, inner)) is not None:
            yield f"{override}: {reason}; leave it out"


def _unread(case: Case, name: str, inner: str) -> str | None:
    """Why nobody reads a setting algorithm.NAME.INNER; None: somebody does."""
    if case.domain != PICTURES:
        return (
            "only who trains on whole pictures reads it, and "
            f"algorithm={case.plan.choices['algorithm']} on dynamics={case.plan.dynamics.name} "
            "does not"
        )
    taught = case.algorithm.evidence == "teacher"
    if name == "regression" and taught and not inner.endswith("guidance_scale"):
        return "a teacher is asked where the policy came to, not at fresh noise"
    if name == "regression" and inner.startswith("weighting"):
        return f"{name_of(case.loss)} reads errors as they are" if _only_errors(case) else None
    snapshot = inner.partition(".")[0]
    if name == "snapshots" and snapshot and snapshot not in _compared(case) | {_source(case)}:
        return f"nothing reads algorithm.snapshots.{snapshot}"
    return None


def _only_errors(case: Case) -> bool:
    return case.loss_facts.on_errors


def _source(case: Case) -> str:
    """Whose samples are drawn."""
    return case.rollout.arguments.get("weights") or case.algorithm.sampled_by


def _compared(case: Case) -> set[str]:
    """The snapshots that a loss compares with."""
    readers = [case.loss, *_penalties(case).values()]
    needs = {ERRORS.get(name, name) for part in readers for name in facts_of(part).reads}
    return {OF_SNAPSHOTS[name] for name in needs & OF_SNAPSHOTS.keys()}


def _penalties(case: Case) -> dict[str, Callable]:
    """What is called beside the loss, by the group of the algorithm."""
    parts = {"kl": case.algorithm.kl, "anchor": case.algorithm.anchor}
    return {
        group: part.distance
        for group, part in parts.items()
        if part is not None and part.distance is not None and not part.is_off
    }


RULES = (
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
    noise_levels_can_be_drawn,
)
