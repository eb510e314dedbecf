"""Contradictions between teachers of distillation, and the parts that ask them."""

from __future__ import annotations

from collections.abc import Iterator, Set

from tandem.contracts import facts_of, name_of
from tandem.legality.case import Case

OF_TOKENS = {"teacher_logp", "divergence"}  # what a teacher of tokens tells


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
        made, other = ("tokens", "pictures") if case.is_of_texts else ("pictures", "tokens")
        wanted = "tokens" if case.is_of_texts else "velocities"
        yield (
            f"algorithm.teachers are of {other} and cannot judge {made}; set "
            f"algorithm/teachers={wanted}"
        )
    elif case.is_of_texts and not _asking(case):
        yield (
            f"algorithm.teachers: nothing of algorithm={case.plan.choices['algorithm']} asks them; "
            "set algorithm/advantage=task_and_teacher, or leave algorithm/teachers out"
        )
    elif not case.is_of_texts and objective not in ("distillation", "matching"):
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
    said = [(e, facts_of(e)) for e in case.estimators.values()]
    estimators = [e for e, own in said if own.taught and not own.neutral]
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


def divergences_are_chosen(case: Case) -> Iterator[str]:
    """Who reads a divergence has one, and none is chosen for nobody."""
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
            f"algorithm/teachers/divergence={name_of(teachers.divergence)} is read by nobody; "
            "leave it out, or set algorithm/loss=divergence"
        )


def something_is_learnt(case: Case) -> Iterator[str]:
    """From an advantage that says nothing only a loss learns that reads none."""
    estimators = case.estimators.values()
    if all(facts_of(e).neutral for e in estimators) and not facts_of(case.algorithm.loss).taught:
        yield (
            f"{case.option('advantage')}: {name_of(case.loss)} learns from advantages; set "
            "algorithm/advantage=group_relative, or algorithm/loss=divergence"
        )


def who_is_told_more_is_asked(case: Case) -> Iterator[str]:
    """Re-prompts are what a teacher reads."""
    if "reprompts" in case.strategy.gives and not _asking(case):
        yield (
            f"{case.option('sampling_strategy')} writes prompts for a teacher, and nobody asks "
            "one; set algorithm/sampling_strategy=on_policy, or algorithm=sdpo"
        )


def servers_read_texts(case: Case) -> Iterator[str]:
    """A teacher on a server is sent token ids, and no picture."""
    teachers = case.algorithm.teachers
    if teachers is None or not (teachers.of_texts and case.model.target.sees):
        return
    if teachers.asks_servers:
        yield (
            "algorithm.teachers.folders: a server is asked about token ids alone, and "
            f"model={case.plan.choices['model']} reads pictures; name a folder"
        )


def a_teacher_of_itself_is_whole(case: Case) -> Iterator[str]:
    """It follows weights that lie whole on every rank."""
    teachers = case.algorithm.teachers
    if case.plan.trainer.strategy != "fsdp2" or teachers is None or not teachers.of_texts:
        return
    if teachers.teaches_itself:
        yield (
            "algorithm.teachers: the policy teaches itself by a copy of its weights, which "
            "trainer.strategy=fsdp2 cuts over ranks; set trainer=ddp, or name a folder in "
            "algorithm.teachers.folders"
        )


def _asking(case: Case, fields: Set[str] = frozenset(OF_TOKENS)) -> str | None:
    """The first part that reads what a teacher of tokens tells."""
    parts = [case.algorithm.loss, *case.estimators.values()]
    return next((name_of(part) for part in parts if facts_of(part).reads & fields), None)


RULES = (
    teachers_are_named,
    teachers_are_asked,
    teachers_judge_samples,
    divergences_are_chosen,
    something_is_learnt,
    who_is_told_more_is_asked,
    a_teacher_of_itself_is_whole,
    servers_read_texts,
)
