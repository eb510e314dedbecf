"""Smoke tests of parts from outside the package, on a few numbers before weights are loaded.

A part returns numbers that the loop reads without a further check, so each group says here what
they must be. Parts of the package are tested.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from numbers import Real
from operator import index
from types import MappingProxyType

import torch
from torch import Tensor

from tandem.contracts import REGISTERED, bound_parts_of, is_foreign, name_of, place, unwrap_partial
from tandem.contracts.inner_parts import ask_inner, ask_unwritten, report_errors
from tandem.contracts.outputs import forget_comparison
from tandem.contracts.parts import kind_of, place_of
from tandem.contracts.wrong_output import WrongOutput
from tandem.legality.case import Case
from tandem.legality.masked_states import try_states
from tandem.policies.flow.solvers import solve

COUNTS = (0, 1, 10, 1000)  # updates before one whose decay is asked for
SOME = 10  # steps of a sampler that has no number of its own


def own_parts_return_what_is_read(case: Case) -> Iterator[str]:
    """Parts from outside the package return what their group says. Each is tried."""
    groups = {place(component): group for (group, _), component in REGISTERED.items()}
    steps = case.painter[0].arguments.get("steps") or SOME
    average = case.model.arguments.get("ema")
    decay = None if average is None else partial(average.target, **average.arguments)
    holders = case.algorithm, case.plan.dynamics, decay
    tests = SMOKE_TESTS | {STAY: partial(_try_pace, case.plan.dynamics.stochastic)}
    for part in chain.from_iterable(map(bound_parts_of, holders)):
        group = groups.get(place(kind_of(part)))
        if group not in tests or not is_foreign(part):
            continue
        try:
            with report_errors(part):
                fault = tests[group](part, torch.linspace(1, 0, steps + 1))
        except WrongOutput as error:
            yield f"{group}={error}"
            return
        finally:
            forget_comparison(part)
        if fault is not None:
            yield f"{group}={name_of(part)} at {place_of(part)} {fault}"
            return


def _try_pace(choose: Callable, pace: Callable, levels: Tensor) -> str | None:
    """choose: the random steps of each iteration, which ask the pace for the starts that occur."""
    asked: list[tuple[int, int]] = []

    def note(start: int, steps: int) -> int:
        asked.append((start, steps))
        return 1

    held = {name: note for name, part in unwrap_partial(choose)[1].items() if part is pace}
    try:
        choose(len(levels) - 1, 0, 0, **held)
    except ValueError:  # it does not fit the steps, whatever the pace is: a later rule's message
        return None
    total = 0
    for start, steps in asked:
        stays = ask_unwritten(pace, start, steps)
        if (count := _read_count(stays)) is None or count < 0:
            return f"returned {_show(stays)} for start={start}; return iterations, an int from 0"
        total += count
    if asked and not total:
        return "returned 0 for every start; return iterations, above 0 for at least one"
    return None


def _read_count(value: object) -> int | None:
    """A whole number of any library, such as np.int64(2) or 2.0; None: it is none."""
    try:
        return index(int(value) if isinstance(value, Real) and value % 1 == 0 else value)
    except TypeError:
        return None


def _try_decay(decay: Callable, levels: Tensor) -> str | None:
    for count in COUNTS:
        kept = ask_unwritten(decay, count)
        if not isinstance(kept, Real) or isinstance(kept, bool) or not 0 <= kept <= 1:
            return f"returned {_show(kept)} for count={count}; return a float from 0 to 1"
    return None


def _try_query(query: Callable, levels: Tensor) -> str | None:
    sigma, after = levels[:-1], levels[1:]
    u = torch.linspace(0.05, 0.95, len(sigma))
    found = ask_unwritten(query, u, sigma, after)
    want = f"return two float tensors [N], here {[*u.shape]}: the level of the query, and the level"
    match found:
        case (Tensor() as asked, Tensor() as left) if asked.shape == left.shape == u.shape:
            right = (asked > 0) & (asked <= 1) & (left >= 0) & (left <= asked) & (left < 1)
            if right.all():
                return None
            place = int((~right).nonzero()[0, 0])
            return (
                f"returned the level {asked[place]:g} and {left[place]:g} for noise that goes on; "
                "the level lies above 0, up to 1, and noise goes on from 0 up to that level"
            )
    return f"returned {_show(found)}; {want} whose noise goes on"


def _try_candidates(among: Callable, levels: Tensor) -> str | None:
    found = ask_unwritten(among, levels)
    want = f"return an int64 tensor [n] of steps from 0 to {len(levels) - 2}, at least one"
    if not isinstance(found, Tensor) or found.dtype != torch.int64 or found.ndim != 1:
        return f"returned {_show(found)}; {want}"
    if not len(found) or found.min() < 0 or found.max() > len(levels) - 2:
        return f"returned the steps {found.tolist()}; {want}"
    return None


def _try_solver(build: Callable, levels: Tensor) -> str | None:
    made = ask_unwritten(build, levels)
    if lacking := sorted({"sigmas", "timesteps", "step"} - {*dir(made)}):
        return f"returned {_show(made)} without {', '.join(lacking)}; return a diffusers scheduler"
    taken = made.sigmas.float().unique_consecutive()
    if len(taken) != len(levels) or not taken.isfinite().all():
        return f"has the noise levels {taken.tolist()}; return as many as given, {len(levels)}"
    start = torch.ones(2, 4)
    end = solve(lambda x, sigma: x, start, build, levels)
    if end.shape != start.shape or not end.isfinite().all():
        return f"leads from [2, 4] to {_show(end)}, or not to finite numbers; correct its step()"
    return None


@torch.enable_grad()  # a caller may load a policy without gradients
def _try_weighting(weighting: Callable, levels: Tensor) -> str | None:
    sigma = levels[:-1].expand(2, -1).clone()
    energy = 0.5 * torch.ones_like(sigma).requires_grad_()
    found = ask_inner(weighting, sigma, energy, shape=sigma.shape, axes="[B, T]")
    if not found.requires_grad:
        return "has no gradient in the energy; leave out .detach() and .item()"
    return None if found.isfinite().all() else "returned values that are not finite"


def _show(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} {[*value.shape]}"
    known = isinstance(value, Real) and math.isfinite(value)
    return f"{value}" if known else f"a {type(value).__name__}"


STAY = "dynamics/stochastic/stay"  # its parts are tried by what holds them
# Group -> what tries a part of it, given noise levels [steps + 1]: its fault in words, or None.
SMOKE_TESTS: Mapping[str, Callable[[Callable, Tensor], str | None]] = MappingProxyType(
    {
        "dynamics/solver": _try_solver,
        "model/ema": _try_decay,
        "algorithm/likelihood": try_states,
        "algorithm/query": _try_query,
        "algorithm/timestep_sampling/among": _try_candidates,
        "algorithm/timestep_sampling/weighting": _try_weighting,
    }
)
RULES = (own_parts_return_what_is_read,)
