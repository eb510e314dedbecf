"""Contradictions between teachers of distillation, and the parts that ask them."""

from __future__ import annotations

from collections.abc import Iterator

from tandem.contracts import facts_of, name_of
from tandem.legality.case import Case

OF_TOKENS = {"teacher_logp"}  # what a teacher of tokens tells


def teachers_are_named(case: Case) -> Iterator[str]:
    """Who asks a teacher has one."""
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
            f"{asking} asks a teacher, and there is none; set algorithm/teachers=tokens "
            '"algorithm.teachers.folders={others: RUN}"'
        )


def teachers_are_asked(case: Case) -> Iterator[str]:
    """Nobody is loaded for nothing, nor for models of the other kind."""
    objective, teachers = case.algorithm.objective, case.algorithm.teachers
    if teachers is None:
        return
    if teachers.of_texts != case.is_of_texts:
        made, wanted = ("tokens", "tokens") if case.is_of_texts else ("pictures", "velocities")
        yield (
            f"{type(teachers).__name__} of algorithm.teachers cannot judge {made}; set "
            f"algorithm/teachers={wanted}"
        )
    elif case.is_of_texts and not _asking(case):
        yield (
            f"algorithm.teachers: nothing of algorithm={case.plan.choices['algorithm']} asks them; "
            "set algorithm/advantage=task_and_teacher, or leave algorithm/teachers out"
        )
    elif not case.is_of_texts and objective != "distillation":
        yield (
            f"algorithm.teachers are not asked under algorithm.objective={objective}; set "
            "distillation"
        )


def teachers_judge_samples(case: Case) -> Iterator[str]:
    """What is taught is what the student itself came to."""
    if case.is_offline and case.algorithm.objective == "distillation":
        yield (
            "algorithm.objective=distillation judges states that are sampled, and here rows are "
            "given"
        )
    estimators = [e for e in case.estimators.values() if facts_of(e).taught]
    if case.is_offline and estimators:
        yield (
            f"{name_of(estimators[0])} estimates a KL from the policy's own samples, and here rows "
            "are given; set algorithm/sampling_strategy=on_policy"
        )
    if case.algorithm.objective == "distillation" and case.plan.dynamics.solver is not None:
        yield (
            "algorithm.objective=distillation: a solver keeps no states to ask a teacher about; "
            "set dynamics/solver=euler"
        )


def _asking(case: Case) -> str | None:
    """The first part that reads what a teacher of tokens tells."""
    parts = [case.loss, *case.estimators.values()]
    return next((name_of(part) for part in parts if facts_of(part).reads & OF_TOKENS), None)


RULES = (
    teachers_are_named,
    teachers_are_asked,
    teachers_judge_samples,
)
