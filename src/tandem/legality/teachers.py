"""Contradictions between teachers of distillation and the parts that query them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set

import torch
from torch import Tensor

from tandem import rng
from tandem.contracts import facts_of, name_of, numbers_of
from tandem.contracts.outputs import WIDE
from tandem.contracts.parts import place_of
from tandem.legality.case import Case
from tandem.policies.language.teachers import SELF

OF_TOKENS = {"teacher_logp", "divergence"}  # what a teacher of tokens returns


def teachers_are_named(case: Case) -> Iterator[str]:
    """A part that queries a teacher needs one."""
    objective, teachers = case.algorithm.objective, case.algorithm.teachers
    if teachers is not None:
        return
    if objective == "distillation":
        yield (
            "algorithm.objective=distillation needs algorithm.teachers.folders; see "
            "algorithm=diffusion_opd"
        )
    elif asking := _asking(case):
        yield (
            f"{asking} needs a teacher, and there is none; set algorithm/teachers=tokens "
            '"algorithm.teachers.folders={others: RUN}"'
        )


def teachers_are_asked(case: Case) -> Iterator[str]:
    """Every teacher is queried, and is of the same kind as the model."""
    objective, teachers = case.algorithm.objective, case.algorithm.teachers
    if teachers is None:
        return
    if teachers.of_texts != case.is_of_texts:
        made, other = ("tokens", "pictures") if case.is_of_texts else ("pictures", "tokens")
        wanted = "tokens" if case.is_of_texts else "velocities"
        yield (
            f"algorithm.teachers are for {other} and cannot score {made}; set "
            f"algorithm/teachers={wanted}"
        )
    elif case.is_of_texts and not _asking(case):
        yield (
            f"algorithm.teachers: algorithm={case.plan.choices['algorithm']} reads no teacher; "
            "set algorithm/advantage=task_and_teacher, or leave algorithm/teachers out"
        )
    elif not case.is_of_texts and objective not in ("distillation", "matching"):
        yield (
            f"algorithm.teachers are not read under algorithm.objective={objective}; set it to "
            "distillation"
        )


def teachers_judge_samples(case: Case) -> Iterator[str]:
    """A teacher scores samples of the student, with their states."""
    if case.is_offline and case.algorithm.objective == "distillation":
        yield (
            "algorithm.objective=distillation needs sampled states, and here rows come from data; "
            "set algorithm/sampling_strategy=on_policy"
        )
    said = [(e, facts_of(e)) for e in case.estimators.values()]
    estimators = [e for e, own in said if own.taught and not own.neutral]
    if case.is_offline and estimators:
        yield (
            f"{name_of(estimators[0])} estimates a KL from the policy's own samples, and here rows "
            "come from data; set algorithm/sampling_strategy=on_policy"
        )
    if case.algorithm.objective == "distillation" and case.plan.dynamics.solver is not None:
        yield (
            "algorithm.objective=distillation: a solver keeps no states for a teacher; "
            "set dynamics/solver=euler"
        )


def divergences_are_chosen(case: Case) -> Iterator[str]:
    """A divergence is set if and only if a part reads it."""
    teachers, asking = case.algorithm.teachers, _asking(case, {"divergence"})
    if teachers is None or not (teachers.of_texts and case.is_of_texts):
        return
    if asking and teachers.divergence is None:
        yield (
            f"algorithm.teachers.divergence=null: {asking} reads the divergence of each state; set "
            "algorithm/teachers/divergence=jsd, forward_kl or reverse_kl"
        )
    elif not asking and teachers.divergence is not None:
        yield (
            f"algorithm/teachers/divergence={name_of(teachers.divergence)} is not read; "
            "leave it out, or set algorithm/loss=divergence"
        )


def something_is_learnt(case: Case) -> Iterator[str]:
    """A neutral advantage needs a loss that reads no advantages."""
    estimators = case.estimators.values()
    if all(facts_of(e).neutral for e in estimators) and not facts_of(case.algorithm.loss).taught:
        yield (
            f"{case.option('advantage')}: {name_of(case.loss)} learns from advantages; set "
            "algorithm/advantage=group_relative, or algorithm/loss=divergence"
        )


def who_is_told_more_is_asked(case: Case) -> Iterator[str]:
    """Re-prompts need a teacher."""
    if "reprompts" in case.strategy.gives and not _asking(case):
        yield (
            f"{case.option('sampling_strategy')} writes prompts for a teacher, and no part reads "
            "one; set algorithm/sampling_strategy=on_policy, or algorithm=sdpo"
        )


def who_is_told_more_reads_the_opening(case: Case) -> Iterator[str]:
    """A re-prompt stands in place of the prompt alone, not of the opening of an environment."""
    if "reprompts" in case.strategy.gives and case.environment is not None:
        yield (
            f"{case.option('sampling_strategy')}: a teacher would not read the opening of "
            f"environment={case.plan.choices['environment']}; set "
            "algorithm/sampling_strategy=on_policy, or environment=none"
        )


def a_teacher_of_itself_is_told_more(case: Case) -> Iterator[str]:
    """The policy has nothing to learn from its own weights at its own prompt."""
    teachers = case.algorithm.teachers
    if teachers is None or not teachers.of_texts or case.algorithm.learns_from_scores:
        return
    if {*teachers.folders.values()} == {SELF} and "reprompts" not in case.strategy.gives:
        own = ", ".join(f"{source}: {SELF}" for source in teachers.folders)
        yield (
            f"algorithm.teachers.folders={{{own}}}: a teacher with the policy's own weights reads "
            "the same prompt and has nothing to teach; set "
            "algorithm/sampling_strategy=reprompted, or give another teacher"
        )


def a_teacher_of_itself_is_whole(case: Case) -> Iterator[str]:
    """A policy that teaches itself needs unsharded weights."""
    teachers = case.algorithm.teachers
    if case.plan.trainer.strategy != "fsdp2" or teachers is None or not teachers.of_texts:
        return
    if teachers.teaches_itself:
        yield (
            "algorithm.teachers: the policy teaches itself by a copy of its weights, which "
            "trainer.strategy=fsdp2 shards; set trainer=ddp, or give a folder in "
            "algorithm.teachers.folders"
        )


def _asking(case: Case, fields: Set[str] = frozenset(OF_TOKENS)) -> str | None:
    """The first part that reads these results of a teacher of tokens."""
    parts = [case.algorithm.loss, *case.estimators.values()]
    return next((name_of(part) for part in parts if facts_of(part).reads & fields), None)


def divergences_are_of_each_state(case: Case) -> Iterator[str]:
    """A divergence gives each state a number of its own, with a gradient. It is tried on a few."""
    divergence = numbers_of(case.algorithm.teachers).get("divergence")
    if divergence is not None and (fault := _find_fault(divergence)) is not None:
        place = f"{name_of(divergence)} at {place_of(divergence)}"
        yield f"algorithm/teachers/divergence={place} {fault}"


def _find_fault(divergence: Callable[[Tensor, Tensor], Tensor]) -> str | None:
    sides = (rng.uniform(rng.key(0, side), (6, 5)).log_softmax(-1) for side in ("own", "other"))
    student, teacher = sides
    student.requires_grad_()
    own = student.clone()
    try:
        value = divergence(own, teacher)
        cuts = zip(student.clone().split(3), teacher.clone().split(3), strict=True)
        parts = [divergence(*cut) for cut in cuts]
    except (TypeError, ValueError, RuntimeError) as error:
        return f"raises {type(error).__name__}: {' '.join(str(error).split())}"
    if own._version or teacher._version:
        return "writes on its arguments, which others read; compute a tensor of its own"
    if not isinstance(value, Tensor) or value.shape != (6,) or value.dtype not in WIDE:
        shown = [*value.shape] if isinstance(value, Tensor) else type(value).__name__
        return f"returned {shown} for log-probabilities [6, 5]; return float32 [6], of each state"
    if not value.requires_grad:
        return "has no gradient in the student; leave out .detach() and torch.no_grad()"
    if not value.isfinite().all():
        return "returned values that are not finite"
    if not torch.cat(parts).allclose(value, rtol=1e-4, atol=1e-6):
        return "gives a state another value beside other states; leave out what is taken over them"
    return None


RULES = (
    teachers_are_named,
    teachers_are_asked,
    teachers_judge_samples,
    divergences_are_chosen,
    divergences_are_of_each_state,
    something_is_learnt,
    who_is_told_more_is_asked,
    who_is_told_more_reads_the_opening,
    a_teacher_of_itself_is_told_more,
    a_teacher_of_itself_is_whole,
)
