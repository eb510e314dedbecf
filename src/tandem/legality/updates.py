"""Contradictions between a loss, the weights of its steps, and the size of updates."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path

import torch
from torch import nn

from tandem.contracts import Facts, facts_of, name_of, numbers_of, options_of
from tandem.contracts.stateful import modules_in
from tandem.legality.case import Case
from tandem.losses.adapted import by_steps
from tandem.record.checkpoint import list_published
from tandem.record.finished import CHECKPOINTS, METRICS
from tandem.record.foreign import find_stranger
from tandem.record.terminal import line
from tandem.stop import command_to_resume
from tandem.training.lr_schedules import find_fault

FINEST = 5e-7  # a few float32 steps at 1


def minibatches_have_a_group_each(case: Case) -> Iterator[str]:
    """Every minibatch has at least one group."""
    cuts, prompts = case.plan.num_minibatches, case.plan.prompts_per_step
    if cuts > prompts:
        yield (
            f"num_minibatches={cuts} needs as many groups, but prompts_per_step={prompts}; "
            f"raise prompts_per_step or set num_minibatches={prompts} or less"
        )


def whole_samples_are_weighed_as_such(case: Case) -> Iterator[str]:
    """One ratio, or value, per sample needs weights per sample; for pairs see preferences.py."""
    loss = case.loss_that(lambda facts: facts.per != "step" and facts.reward is None)
    if loss is None:
        return
    ratios = facts_of(loss).per == "sample"

    def fits(weights: Facts) -> bool:
        return weights.per == "sample" and (ratios or weights.adds_to_one)

    if not fits(facts_of(case.algorithm.weights)):
        what = "one ratio per sample" if ratios else "one value for all steps of a row"
        wanted = f"set algorithm/weights={_weights_that(fits)}"
        yield f"{case.option('weights')}: {name_of(loss)} has {what}; {wanted}"


def averaging_losses_see_whole_updates(case: Case) -> Iterator[str]:
    """A loss that averages over an update needs the whole update in one pass."""
    if case.loss_facts.averages:
        for broken in _reasons_for_rows(case):
            yield by_steps(case.loss, broken)


def _reasons_for_rows(case: Case) -> Iterator[str]:
    plan, algorithm = case.plan, case.algorithm
    if algorithm.loss is not case.loss:
        yield f"{name_of(algorithm.loss)} masks its samples"
    if case.corrects:
        yield (
            f"{case.option('importance_sampling')} weighs its steps (set "
            "algorithm/importance_sampling=none)"
        )
    if not facts_of(algorithm.weights).adds_to_one:
        fitting = _weights_that(lambda facts: facts.adds_to_one)
        yield f"{case.option('weights')} need not add up to 1 over it (set {fitting})"
    if plan.trainer.ranks not in (1, None):
        yield f"trainer.devices={plan.trainer.devices} shares it out"
    rows = -(-plan.prompts_per_step // plan.num_minibatches) * plan.group_size
    if plan.micro_batch_size is not None and plan.micro_batch_size < rows:
        yield f"micro_batch_size={plan.micro_batch_size} cuts its {rows} rows"


def _weights_that(fit: Callable[[Facts], bool]) -> str:
    """The shipped step weights whose facts fit."""
    fitting = [
        name
        for name, weights in options_of("algorithm/weights").items()
        if weights.__module__ == "tandem.losses.reduction" and fit(facts_of(weights))
    ]
    return " or ".join(fitting)


def clips_can_be_told_from_rounding(case: Case) -> Iterator[str]:
    """A clip range is wider than the rounding of a float32 ratio near 1."""
    for (key, loss), name in product(case.losses.items(), ("clip_low", "clip_high")):
        clip = numbers_of(loss).get(name)
        if clip is not None and 0 < clip < FINEST:
            yield (
                f"{key}.{name}={clip:.2g}: below the rounding of a float32 ratio; "
                f"set it to {FINEST:g} or more, or to 0"
            )


def the_cap_is_above_the_clip(case: Case) -> Iterator[str]:
    """Below the clip, a dual clip would hide steps that the clip must push back."""
    for key, loss in case.losses.items():
        numbers = numbers_of(loss)
        high, most = numbers.get("clip_high"), numbers.get("ratio_max")
        if None not in (high, most) and most <= 1 + high:
            yield (
                f"{key}.ratio_max={most} caps ratios that clip_high={high} lets through; "
                f"set it above {1 + high:g}, or to null"
            )


def the_policy_learns_at_last(case: Case) -> Iterator[str]:
    """The warmup of the critic ends before the run does."""
    critic, iterations = case.algorithm.critic, case.plan.iterations
    if critic is not None and critic.warmup >= iterations:
        yield (
            f"algorithm.critic.warmup={critic.warmup} of iterations={iterations} never trains "
            "the policy; set it lower"
        )


def optimizers_take_their_numbers(case: Case) -> Iterator[str]:
    """An optimizer accepts its numbers. One is built on a small matrix to find out."""
    target, arguments = case.optimizer.target, case.optimizer.arguments
    for name in ("lr", "weight_decay"):
        value = arguments.get(name)
        if value is not None and not 0 <= value < math.inf:
            said = "not be negative" if value < 0 else "be finite"
            yield f"optimizer.{name}={value}: must {said}"
            return
    name = f"optimizer={case.plan.choices['optimizer']}"
    try:
        with without_dynamo():
            made = target([nn.Parameter(torch.zeros(2, 2))], **arguments)
    except (ValueError, RuntimeError) as error:
        yield f"{name}: {' '.join(str(error).split())}"
        return
    if not isinstance(made, torch.optim.Optimizer):
        yield f"{name} made a {type(made).__name__}; make a torch.optim.Optimizer"


@contextmanager
def without_dynamo() -> Iterator[None]:
    """A block that makes an optimizer without torch._dynamo, whose import takes a second.

    torch wraps `add_param_group` to keep it out of compiled code, of which there is none here.
    """
    wrapped = torch.optim.Optimizer.add_param_group
    torch.optim.Optimizer.add_param_group = inspect.unwrap(wrapped)
    try:
        yield
    finally:
        torch.optim.Optimizer.add_param_group = wrapped


def schedules_have_a_factor(case: Case) -> Iterator[str]:
    """A schedule returns the same factor whenever it is asked about an iteration."""
    call, last = partial(case.schedule.target, **case.schedule.arguments), case.plan.iterations
    name, of_kl = f"schedule={case.plan.choices['schedule']}", case.algorithm.kl.schedule
    yield from _find_faults(name, lambda iteration: call(iteration, last), last, "optimizer.lr")
    if of_kl is not None:
        name = f"algorithm/kl/schedule={name_of(of_kl)}"
        yield from _find_faults(name, of_kl, last, "algorithm.kl.coef")


def _find_faults(name: str, call: Callable[[int], object], last: int, key: str) -> Iterator[str]:
    for iteration in sorted({0, max(last - 1, 0)}):
        try:
            factor, again = (call(iteration) for _ in range(2))
        except (TypeError, ValueError, ArithmeticError) as error:
            yield f"{name}: {' '.join(str(error).split())}"
            return
        if (fault := find_fault(factor, key)) is not None:
            yield f"{name} returned {fault}"
            return
        if factor != again:
            yield (
                f"{name} returned {factor:g} and then {again:g} for iteration {iteration}; keep "
                "no state, and draw by tandem.rng from the iteration"
            )
            return


def notice(schedule: Callable[[int, int], float], iterations: int) -> str | None:
    """The warning about a warm-up that outlasts the run; None: the rate reaches `optimizer.lr`."""
    warmup = numbers_of(schedule).get("warmup")
    if not isinstance(warmup, int) or warmup < iterations:
        return None
    reached = schedule(iterations - 1, iterations)
    return line(
        "warm-up",
        f"schedule.warmup={warmup} of iterations={iterations}: the learning rate ends at "
        f"{reached:.0%} of optimizer.lr; set schedule.warmup below {iterations}, or raise "
        "iterations",
    )


def state_is_kept_by_advantages(case: Case) -> Iterator[str]:
    """Advantages see the rows of all ranks, and checkpoints hold their state alone. In a loss, a
    correction or weights, which see one part of the rows, it would also depend on the split; no
    optimiser trains parameters of any of them."""
    others = {name: part for name, part in case.parts.items() if name != "advantage"}
    for where, module in modules_in("algorithm", others):
        if kept := [*module.state_dict()]:
            yield (
                f"{where}.{kept[0]} is kept between calls, but no checkpoint holds it, and in a "
                "loss it would depend on how rows are split into micro-batches; keep state in an "
                "advantage (docs/howto/advantage.md), or declare batch_statistics of a loss"
            )
    for where, module in modules_in("algorithm.advantage", case.parts["advantage"]):
        if kept := [name for name, _ in module.named_parameters()]:
            yield f"{where}.{kept[0]} is a parameter, which no optimiser trains; register a buffer"


def a_run_has_a_directory_of_its_own(case: Case) -> Iterator[str]:
    """run_dir holds no other run, unless the run resumes it, and no file that it would replace.

    The record of a start that ended before its first iteration is replaced.
    """
    folder, run_dir = Path(case.plan.run_dir), f"run_dir={case.plan.run_dir}"
    if case.plan.resume is not None:
        return
    if (folder / METRICS).exists() or list_published(folder / CHECKPOINTS):
        yield (
            f"{run_dir} already holds a run; set another, or resume it: {command_to_resume(folder)}"
        )
    elif (name := find_stranger(folder)) is not None:
        yield f"{run_dir} has a {name} that no run wrote; set another, or move it away"


RULES = (
    optimizers_take_their_numbers,
    schedules_have_a_factor,
    clips_can_be_told_from_rounding,
    the_cap_is_above_the_clip,
    the_policy_learns_at_last,
    minibatches_have_a_group_each,
    whole_samples_are_weighed_as_such,
    averaging_losses_see_whole_updates,
    state_is_kept_by_advantages,
    a_run_has_a_directory_of_its_own,
)
