"""Contradictions between objectives on finished pictures and their settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from tandem.algorithm.algorithm import ON_ERRORS, Algorithm
from tandem.algorithm.decoupled import ERRORS
from tandem.contracts import facts_of, name_of, numbers_of
from tandem.legality.case import PICTURES, Case, unknown
from tandem.legality.steps import TOKENS_OF_A_PICTURE
from tandem.policies.flow.snapshots import OF_REFERENCE
from tandem.record.terminal import line
from tandem.types import OF_SNAPSHOTS

OF_TEACHERS = {"std", "velocity_gain"}  # at the steps where a teacher is queried
# Settings that only objectives on finished pictures or on a teacher read.
OF_PICTURES = (
    *("timestep_sampling", "ema", "rollout_weights", "rollout_weights_start"),
    "ema_kl",
)


def losses_see_what_they_read(case: Case) -> Iterator[str]:
    """Losses read velocity errors, a teacher's predictions or log-probabilities, by objective."""
    objective, facts, name = case.algorithm.objective, case.loss_facts, name_of(case.loss)
    taught = bool(facts.reads & OF_TEACHERS)
    if facts.on_errors and objective not in ON_ERRORS:
        wanted = "distillation" if taught else "denoising"
        yield f"algorithm.objective={objective}: {name} reads velocity errors; set it to {wanted}"
    if facts.on_errors and objective == "matching":
        yield (
            f"algorithm.objective=matching: {name} reads velocity errors of the policy, not the "
            "predictions of networks; set algorithm/loss=dmd2 or tdm"
        )
    if taught and objective == "denoising":
        yield (
            f"algorithm.objective=denoising: {name} queries a teacher at sampled states; set it "
            "to distillation, as in algorithm=diffusion_opd"
        )
    if objective == "distillation" and not (facts.on_errors or facts.matches):
        yield (
            f"algorithm.objective=distillation: {name} reads log-probabilities, and a teacher "
            "predicts velocities; set algorithm/loss=distillation"
        )
    if objective == "denoising" and not facts.on_errors and facts.per == "row":
        yield (
            f"algorithm.objective=denoising has one log-probability per noise level, and {name} "
            "needs one per picture; set algorithm.objective=any, which averages over levels"
        )


def distances_are_of_fresh_noise(case: Case) -> Iterator[str]:
    """A penalty on velocity errors needs an objective that computes them."""
    objective = case.algorithm.objective
    for group, part in _penalties(case).items():
        if objective not in ON_ERRORS and facts_of(part).on_errors:
            yield (
                f"algorithm.{group}: {name_of(part)} reads velocity errors, which "
                f"algorithm.objective={objective} does not compute; set algorithm.{group}.coef=0"
            )


def velocities_are_taught_without_noise(case: Case) -> Iterator[str]:
    """A distillation target other than the mean of a step needs dynamics=ode."""
    kernel, numbers = case.plan.dynamics.kernel, numbers_of(case.loss)
    for name, target in numbers.items():
        if facts_of(target).noiseless and not facts_of(kernel).noiseless:
            yield (
                f"algorithm/loss/{name}={name_of(target)} on "
                f"dynamics={case.plan.choices['dynamics']}: a random step depends only on "
                f"its mean; set algorithm/loss/{name}=xt, or dynamics=ode"
            )


def drift_is_of_log_probabilities(case: Case) -> Iterator[str]:
    if case.algorithm.target_kl is not None and case.domain == PICTURES:
        yield (
            "algorithm.target_kl is in nats of sampled steps, and here finished pictures are "
            "trained; set it to null, and algorithm.kl.coef or algorithm.ema_kl.coef instead"
        )


def snapshots_are_kept(case: Case) -> Iterator[str]:
    """The algorithm keeps every snapshot that a loss or a penalty reads."""
    missing = sorted(_snapshots_read(case) - {*case.algorithm.ema})
    if case.algorithm.objective in ON_ERRORS and missing:
        yield f"algorithm.ema.{missing[0]} is missing, but a loss or penalty reads it; restore it"


def samples_come_from_what_is_kept(case: Case) -> Iterator[str]:
    """The weights that sample are the live ones or a kept snapshot."""
    source, kept = _source(case), case.algorithm.ema
    if source == "live":
        if case.algorithm.rollout_weights_start:
            yield ("algorithm.rollout_weights_start: the live weights always sample; set it to 0")
        return
    if source not in kept:
        yield f"algorithm.rollout_weights: {unknown('snapshot', source, ['live', *kept])}"
    if not case.samples:
        yield f"algorithm.rollout_weights={source}: nothing is sampled; set it to live"
    if case.domain != PICTURES:
        yield (
            f"algorithm.rollout_weights={source}: log-probabilities of sampled steps need "
            "samples of the live weights; set it to live"
        )


def snapshots_have_names_of_their_own(case: Case) -> Iterator[str]:
    """A name under algorithm.ema is not one that the policy uses."""
    taken = {
        "live": "the weights that are trained",
        "ema": "the average that model.ema keeps",
        "reference": "the frozen reference of a KL",
    }
    for name in case.algorithm.ema:
        if name in taken:
            yield f"algorithm.ema.{name}: {name} names {taken[name]}; choose another name"


def groups_share_their_noise(case: Case) -> Iterator[str]:
    """Losses that compare a group need shared noise: errors vary more by level than by sample."""
    regression = case.algorithm.timestep_sampling
    if case.domain != PICTURES or regression is None or regression.shared:
        return
    beside = [network.loss for network in case.algorithm.networks.values()]
    for loss in [case.loss, *beside]:
        if facts_of(loss).compares_groups:
            yield (
                f"algorithm.timestep_sampling.shared=false: {name_of(loss)} compares the samples "
                "of a prompt at the same noise; set it to true"
            )


def noise_levels_can_be_drawn(case: Case) -> Iterator[str]:
    """The noise levels of training can be drawn from the schedule."""
    dynamics, steps = case.plan.dynamics, case.painter[0].arguments.get("steps")
    made = case.algorithm.timestep_sampling
    if case.domain != PICTURES or dynamics.schedule is None or made is None:
        return
    try:
        u = torch.full((1, made.count), 0.5).double()
        made.levels(u, dynamics.schedule(steps, TOKENS_OF_A_PICTURE))
    except (ValueError, ArithmeticError) as error:
        yield f"algorithm.timestep_sampling of rollout.steps={steps}: {error}"


def notice(algorithm: Algorithm, sampling: object) -> str | None:
    """The warning about images that a loss takes for those of an old policy, but whose guidance it
    does not have; None: there are none."""
    if algorithm.objective != "denoising" or "old_error" not in algorithm.training_objective.needs:
        return None
    own, drawn = algorithm.timestep_sampling.guidance_scale, sampling.guidance_scale
    if own == drawn:
        return None
    return line(
        "guidance",
        f"images are sampled at rollout.guidance_scale={drawn:g} and trained at "
        f"algorithm.timestep_sampling.guidance_scale={own:g}: they are not those of the old policy "
        f"that {name_of(algorithm.loss)} compares with, and the guidance of evaluation comes on "
        f"top of what they taught; set rollout.guidance_scale={own:g}",
    )


def settings_of_pictures_are_read(case: Case) -> Iterator[str]:
    """A setting of these groups on the command line is read by the run."""
    for override in case.plan.overrides:
        key = override.lstrip("+~").partition("=")[0].partition("@")[2] or override.lstrip("+~")
        group, _, rest = key.partition("=")[0].replace("/", ".").partition(".")
        name, _, inner = rest.partition(".")
        if group != "algorithm" or name not in OF_PICTURES:
            continue
        if (reason := _unread(case, name, inner)) is not None:
            yield f"{override}: {reason}; leave it out"


def _unread(case: Case, name: str, inner: str) -> str | None:
    """Why the setting algorithm.NAME.INNER has no effect; None: it has one."""
    if case.domain != PICTURES:
        return (
            "only objectives on finished pictures read it, and "
            f"algorithm={case.plan.choices['algorithm']} on "
            f"dynamics={case.plan.choices['dynamics']} has none"
        )
    taught = case.algorithm.objective == "distillation"
    if name == "timestep_sampling" and taught and not inner.endswith("guidance_scale"):
        return "a teacher is queried at sampled states, not at fresh noise"
    of_query = inner.endswith("guidance_scale") or inner == "shared"
    if name == "timestep_sampling" and case.algorithm.query is not None and not of_query:
        return "algorithm.query sets the noise levels"
    read = taught or not OF_REFERENCE.isdisjoint(case.algorithm.needs)
    if name == "timestep_sampling" and inner == "ref_guidance_scale" and not read:
        return "nothing reads a reference"
    if name == "timestep_sampling" and inner.startswith("weighting"):
        return (
            f"{name_of(case.loss)} reads unweighted errors" if case.loss_facts.on_errors else None
        )
    snapshot = inner.partition(".")[0]
    if name == "ema" and snapshot and snapshot not in _snapshots_read(case) | {_source(case)}:
        return f"nothing reads algorithm.ema.{snapshot}"
    return None


def _source(case: Case) -> str:
    """The name of the weights that sample."""
    return case.painter[0].arguments.get("weights") or case.algorithm.rollout_weights


def _snapshots_read(case: Case) -> set[str]:
    """The snapshots that the losses and penalties read."""
    beside = [network.loss for network in case.algorithm.networks.values()]
    readers = [case.loss, *beside, *_penalties(case).values()]
    needs = {ERRORS.get(name, name) for part in readers for name in facts_of(part).reads}
    return {OF_SNAPSHOTS[name] for name in needs & OF_SNAPSHOTS.keys()}


def _penalties(case: Case) -> dict[str, Callable]:
    """The penalties beside the loss, by the group of the algorithm."""
    parts = {"kl": case.algorithm.kl, "ema_kl": case.algorithm.ema_kl}
    return {
        group: part.distance
        for group, part in parts.items()
        if part is not None and part.distance is not None and not part.is_off
    }


RULES = (
    losses_see_what_they_read,
    distances_are_of_fresh_noise,
    velocities_are_taught_without_noise,
    drift_is_of_log_probabilities,
    snapshots_are_kept,
    samples_come_from_what_is_kept,
    snapshots_have_names_of_their_own,
    groups_share_their_noise,
    settings_of_pictures_are_read,
    noise_levels_can_be_drawn,
)
