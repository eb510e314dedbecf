"""Numerical check of the steps of a flow: one dry run of all of them, without weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from tandem.contracts import facts_of, name_of, numbers_of
from tandem.contracts.inner_parts import ask_inner, report_errors
from tandem.contracts.outputs import CLOSE, forget_comparison
from tandem.contracts.parts import place_of
from tandem.contracts.wrong_output import WrongOutput
from tandem.dynamics.kernels import Kernel, Step, next_state
from tandem.dynamics.schedules import find_fault
from tandem.evaluation.settings import Pictures
from tandem.legality.case import Case
from tandem.settings.settings import Dynamics
from tandem.types import take

TOKENS_OF_A_PICTURE = 256  # an arbitrary latent size: only dynamic shifts read it
ITERATIONS = range(8)  # whose random steps are chosen twice
ANEW = "when called again; keep no state, and draw with tandem.rng from the arguments alone"


def steps_can_be_taken(case: Case) -> Iterator[str]:
    """The steps of a rollout fit its schedule and its random steps."""
    dynamics, steps = case.plan.dynamics, case.painter[0].arguments.get("steps")
    if dynamics.schedule is None or dynamics.kernel is None or steps is None:
        return
    sampling = case.sampling.picture if case.is_chain else case.sampling
    *_, rollout = case.samplers  # the sampler of pictures is the last one of a chain
    try:
        levels = read_levels(dynamics.schedule, f"{rollout}.steps", steps)
        if (evaluated := _evaluation_steps(case)) not in (None, steps):
            read_levels(dynamics.schedule, "evaluation.steps", evaluated)
    except ValueError as error:
        yield str(error)
        return
    if sampling.deterministic:
        yield from _wrong_steps(case, levels, range(steps))
        return
    try:
        chosen, again = (
            [sampling.random_steps(iteration, case.plan.seed) for iteration in ITERATIONS]
            for _ in range(2)
        )
    except (ValueError, ArithmeticError) as error:
        yield f"{rollout}.steps={steps}{_length(dynamics)}: {error}"
        return
    if chosen != again:
        name = name_of(dynamics.stochastic)
        yield f"dynamics/stochastic={name} chose other steps {ANEW}"
        return
    yield from _wrong_steps(case, levels, chosen[0])


def _length(dynamics: Dynamics) -> str:
    length = numbers_of(dynamics.stochastic).get("length")
    return "" if length is None else f" dynamics.stochastic.length={length}"


def _evaluation_steps(case: Case) -> int | None:
    """The denoising steps of evaluation; None: there is none, or not by the ODE."""
    evaluation = case.plan.evaluation
    return evaluation.steps if case.evaluates and isinstance(evaluation, Pictures) else None


def read_levels(schedule: Callable[..., Tensor], key: str, steps: int) -> Tensor:
    """The noise levels for a key's number of steps, [steps + 1]. Raises ValueError if there are
    none."""
    try:
        levels, again = (schedule(steps, TOKENS_OF_A_PICTURE) for _ in range(2))
    except (ValueError, ArithmeticError) as error:
        raise ValueError(f"dynamics.schedule of {key}={steps}: {error}") from error
    except (LookupError, TypeError, AttributeError, RuntimeError) as error:  # such as a table
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"dynamics.schedule of {key}={steps}: {reason}") from error
    if (fault := _find_fault_of_levels(levels, again, steps)) is not None:
        of = f"dynamics/schedule={name_of(schedule)}"
        raise ValueError(f"{of} for {key}={steps} returned {fault}")
    return levels


def _find_fault_of_levels(levels: object, again: object, steps: int) -> str | None:
    """levels, again: two results of a schedule for the same arguments, [steps + 1]."""
    want = f"return a float tensor [steps + 1], here [{steps + 1}], that falls from 1 to exactly 0"
    if not isinstance(levels, Tensor):
        return f"a {type(levels).__name__}; {want}"
    if levels.ndim != 1 or not levels.is_floating_point():
        return f"{levels.dtype} {[*levels.shape]}; {want}"
    if not levels.allclose(again, rtol=0, atol=0, equal_nan=True):
        return f"other noise levels {ANEW}"
    return find_fault(levels, steps)


@torch.enable_grad()  # a caller may load a policy without gradients
def _wrong_steps(case: Case, levels: Tensor, chosen: Sequence[int]) -> Iterator[str]:
    """The fault of the steps by the kernel between these levels, [steps + 1]."""
    kernel, name = case.plan.dynamics.kernel, case.plan.choices["dynamics"]
    sigma, after = levels[list(chosen)], levels[[step + 1 for step in chosen]]
    size = (2, 2, 2, 2) if case.makes_films else (2, 2, 2)  # [C, F, H, W], or [C, H, W]
    leaf = torch.ones(len(chosen), *size, requires_grad=True)
    x, velocity = torch.ones_like(leaf), leaf.clone()
    try:
        with report_errors(kernel):
            taken = kernel(x, velocity, sigma, after)
    except WrongOutput as error:
        yield f"dynamics={error}"
        return
    if x._version or velocity._version:
        fault = "writes on x or velocity, which others read; compute a tensor of its own"
    else:
        fault = _find_wrong_form(taken, x)
    if fault is not None:
        yield f"dynamics={name} at {place_of(kernel)} {fault}"
        return
    finite = taken.mean.isfinite().flatten(1).all(1) & taken.std.isfinite()
    for place in (~finite).nonzero()[:1, 0].tolist():
        yield (
            f"dynamics={name}: the step from the noise level {sigma[place]:g} to "
            f"{after[place]:g} is not finite; set another dynamics/schedule or dynamics.kernel"
        )
        return
    fault = next(
        _wrong_numbers(f"dynamics={name} at {place_of(kernel)}", kernel, taken, leaf), None
    )
    if fault is not None:
        yield fault
    elif not facts_of(kernel).noiseless:
        yield from _wrong_logp(case.plan.dynamics.logp, taken)


def _find_wrong_form(taken: object, x: Tensor) -> str | None:
    """The fault of what a kernel returned for latents x, [B, ...]."""
    if not isinstance(taken, Step):
        return f"returned a {type(taken).__name__}; return a Step(mean=, std=, velocity_gain=)"
    for name, want in (("mean", x.shape), ("std", x.shape[:1]), ("velocity_gain", x.shape[:1])):
        shape = getattr(taken, name).shape
        if shape != want:
            return f"returned a {name} {[*shape]} for x {[*x.shape]}; return {[*want]}"
    if taken.mean.dtype != x.dtype:
        return f"returned a mean of {taken.mean.dtype} for x of {x.dtype}; return {x.dtype}"
    if not taken.mean.requires_grad:
        return "returned a mean without the gradient of velocity; leave out .detach()"
    return None


def _wrong_numbers(place: str, kernel: Kernel, taken: Step, velocity: Tensor) -> Iterator[str]:
    """place: of the kernel; velocity: [B, ...], the leaf that the means were computed from."""
    noiseless = facts_of(kernel).noiseless
    (gain,) = torch.autograd.grad(taken.mean.sum(), velocity)
    said, is_ = taken.velocity_gain.detach(), gain.flatten(1)[:, 0]
    if not noiseless and (taken.std <= 0).any():
        yield (
            f"{place} returned a std of {taken.std.min():g} for a random step, which then has no "
            "log-probability; return one above 0"
        )
    elif noiseless and taken.std.any():
        yield f"{place} returned a std of {taken.std.max():g}, and declares noiseless=True"
    elif (said - is_).abs().max() > CLOSE * is_.abs().max():
        row = int((said - is_).abs().argmax())
        yield (
            f"{place} returned velocity_gain={said[row]:g}, and d mean / d velocity is "
            f"{is_[row]:g}; a KL divides by it"
        )


def _wrong_logp(logp: Callable, taken: Step) -> Iterator[str]:
    """taken: random steps [B, ...], each of which has a value of its own."""
    step = replace(taken, mean=taken.mean.detach().requires_grad_())
    noise = torch.linspace(-1, 1, step.mean.numel()).view_as(step.mean)
    next_x, rows = next_state(step, noise), range(len(noise))
    ask = partial(ask_inner, logp, axes="[B]")
    try:
        with report_errors(logp):
            found = ask(next_x, step, shape=step.std.shape)
            alone = [ask(next_x[[i]], take(step, torch.tensor([i])), shape=[1]) for i in rows]
    except WrongOutput as error:
        yield f"dynamics/logp={error}"
        return
    finally:
        forget_comparison(logp)
    fault = None
    if not found.requires_grad:
        fault = "has no gradient in the mean of the step; leave out .detach() and .item()"
    elif not found.isfinite().all():
        fault = "returned values that are not finite"
    elif (found - torch.cat(alone)).abs().max() > CLOSE * found.abs().max():
        fault = "gives a step another value beside other steps; compute each row by itself"
    if fault is not None:
        yield f"dynamics/logp={name_of(logp)} at {place_of(logp)} {fault}"


RULES = (steps_can_be_taken,)
