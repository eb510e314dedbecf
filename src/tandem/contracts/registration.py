"""Decorators that make a function or class an option of a group and declare its facts.

    @register_policy_loss(reads={"old_logp"}, units={"width": "clip"}, zero_at_zero_advantage=True)
    def mine(batch, *, width: Annotated[float, above(0)] = 0.2): ...

Then `algorithm/loss=mine` chooses it and `algorithm.loss.width=0.3` sets its keyword. Tandem's own
components are registered by the same decorators. `@register_policy_loss` alone declares nothing,
and `@register_policy_loss("name", ...)` gives the option another name than the function's.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Any

from tandem.contracts.parts import declare, facts_of, is_foreign, module_of, source_of
from tandem.contracts.spellings import (
    ADVANTAGES,
    LOSSES,
    REWARDS,
    Foreign,
    Spelling,
    adapt,
    adapt_to_group,
    method_of,
    refuse_unbound,
    refuse_uncallable,
)

OPTION = re.compile(r"[A-Za-z0-9][\w.-]*")

# (group, option) -> the registered component, in order.
REGISTERED: dict[tuple[str, str], Callable] = {}
# A function in another form -> group -> what its decorator made of it.
ADAPTED: dict[Callable, dict[str, Callable]] = {}


@dataclass(frozen=True, slots=True)
class Registrar:
    """The decorator of one group. Its keywords are fields of `Facts`."""

    group: str
    spellings: Sequence[Spelling] = ()  # of functions; none: any
    foreign: Sequence[Foreign] = ()  # forms of other libraries, beside its own
    takes: Sequence[str] = ()  # positional arguments of a part; none: by name
    handed: Sequence[str] = ()  # positional arguments that follow if a part reads them
    # For classes: method -> its positional arguments; none: `__call__`, like a function.
    methods: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __call__(self, named: Callable | str | None = None, /, **facts: Any) -> Callable:
        if callable(named):
            return self._register(named, None, facts)
        return lambda component: self._register(component, named, facts)

    def _register(self, component: Callable, named: str | None, facts: dict[str, Any]) -> Callable:
        _restore_name(component)
        _refuse_nameless(component)
        name = named or component.__name__
        if OPTION.fullmatch(name) is None:
            raise ValueError(
                f"{self.group}={name}: an option is named by letters, digits and . - _, and "
                "begins with a letter or digit"
            )
        if missing := sorted(getattr(component, "__abstractmethods__", ())):
            raise ValueError(f"{self.group}={name}: its class has no {' and no '.join(missing)}")
        written = component
        if self.spellings and not inspect.isclass(component):
            component = adapt_to_group(component, self.spellings)
        if self.foreign and not inspect.isclass(component):
            component = adapt(component, self.foreign)
        for other, known in options_of(self.group).items():
            if other == name or place(known) != place(component):
                continue
            if known in (component, ADAPTED.get(written, {}).get(self.group)):
                raise ValueError(
                    f"{place(component)} is {self.group}={other} already; write a function of its "
                    f"own for {name}, which may call it"
                )
            if component.__module__ == "__main__":  # a notebook cell ran again, under a new name
                del REGISTERED[self.group, other]
        before = REGISTERED.get((self.group, name), component)
        if place(before) != place(component):  # the same place: a notebook cell ran again
            raise ValueError(
                f"{self.group}={name} is {place(before)} already, not {place(component)}"
            )
        REGISTERED[self.group, name] = declare(option=name, **facts)(component)
        if component is not written:
            ADAPTED.setdefault(written, {})[self.group] = component
        return component

    def refuse_uncallable(self, component: Callable) -> None:
        """Raise ValueError for a function, or a method of a class, that cannot be called with the
        arguments of the group."""
        own = facts_of(component)
        read = [name for name in self.handed if name in own.reads]
        read += ["statistics"] if own.batch_statistics else []
        takes = own.takes or (*self.takes, *read)
        if takes and inspect.isclass(component):
            for name, given in (self.methods or {"__call__": takes}).items():
                method, listed = method_of(component, name), ("self", *given)
                if method is None:
                    raise ValueError(
                        f"{place(component)}: its class has no {name}({', '.join(listed)})"
                    )
                if isinstance(method, staticmethod):
                    listed = given
                function = inspect.unwrap(method, stop=inspect.isfunction)
                refuse_uncallable(function, listed, numbers=False)
        elif takes:
            refuse_uncallable(component, takes)
        _refuse_unbound(component, takes)


def options_of(group: str) -> dict[str, Callable]:
    """name -> component of all options registered in a group so far."""
    return {name: found for (where, name), found in REGISTERED.items() if where == group}


def place(component: Callable) -> str:
    """The path of a component in a `_target_`."""
    return f"{component.__module__}.{component.__qualname__}"


def _refuse_unbound(component: Callable, takes: Sequence[str]) -> None:
    """Raise ValueError for a function that a part declares and that cannot be called with rows."""
    own = facts_of(component)
    rows = ("batch", "statistics") if own.batch_statistics else ("batch",)
    declared = {
        "metrics": rows,
        "batch_statistics": rows[:1],
        "summary": rows[:1],
        "reward": rows[:1],
    }
    has_numbers = is_dataclass(component) or not inspect.isclass(component)
    numbers = inspect.signature(component).parameters.keys() - {*takes} if has_numbers else ()
    for fact, given in declared.items():
        if (function := getattr(own, fact)) is not None:
            refuse_unbound(function, fact, given, numbers)


def _restore_name(component: Callable) -> None:
    """Name a function of a plugin by its own code where it bears the name of a built-in one, which
    `functools.wraps` copied: a `_target_` would call that one."""
    source = source_of(component)
    if is_foreign(component) and f"{source.__module__}.".startswith("tandem."):
        code = source.__code__
        component.__module__ = module_of(component)
        component.__name__, component.__qualname__ = code.co_name, code.co_qualname


def _refuse_nameless(component: Callable) -> None:
    if not (inspect.isfunction(component) or inspect.isclass(component)):
        raise ValueError(
            f"a {type(component).__name__} is not a plain function or class; define one with def"
        )
    if not component.__qualname__.isidentifier():
        raise ValueError(f"{place(component)}: only a function at the top of a module has a name")


# `(batch, *, numbers) -> loss of each step [B, T]`, or as other libraries have it: `(old_logp,
# logp, advantages, mask, *, numbers) -> (loss, metrics)`, which averages itself, so that its update
# must stay whole: one micro-batch, one rank, and weights that add up to 1. `mine.__wrapped__` is
# then what was written.
register_policy_loss = Registrar("algorithm/loss", LOSSES, takes=LOSSES[0].takes)
# `(scores, rollout, *, numbers) -> advantages [B, T]`, or `(rewards, mask, *, numbers) ->
# (advantages, returns)`: rewards [B, T] hold each sample's total on its last trained step, unless
# its score is spread over its steps. Of the returns only the shape is looked at.
register_adv_estimator = Registrar("algorithm/advantage", ADVANTAGES, takes=ADVANTAGES[0].takes)
# `(output, prompt, *, numbers) -> number or None`, or as verl and TRL have it: `(data_source,
# solution_str, ground_truth, extra_info) -> number`, `(completions, **columns) -> [number]`.
register_reward = Registrar("reward", foreign=REWARDS, takes=("output", "prompt"))
# of an update -> weight [B, T]; with reads={"turn"}: (mask, turn [B, T] of each move)
register_weights = Registrar("algorithm/weights", takes=("mask",), handed=("turn",))
# -> weight [B, T]
register_correction = Registrar("algorithm/importance_sampling", takes=("batch",))
# -> States, of masked texts
register_answer_likelihood = Registrar("algorithm/likelihood", takes=("rows",))
# -> old_logp [B, T]
register_old_logprobs = Registrar("algorithm/old_logprobs", takes=("batch",))
register_kl = Registrar("algorithm/kl", takes=("batch",))  # -> distance of each step [B, T]
# -> rows that it holds [B]
register_kl_gate = Registrar("algorithm/kl/gate", takes=("scores", "rollout"))
# -> (rollout, scores)
register_sampling_strategy = Registrar("algorithm/sampling_strategy", takes=("source", "prompts"))
# of a group -> a prompt for each output that its teacher reads, or None
register_reprompt = Registrar(
    "algorithm/sampling_strategy/reprompt", takes=("prompt", "outputs", "scores")
)
# -> (scores, rollout)
register_truncation = Registrar("algorithm/truncation_handling", takes=("scores", "rollout"))
register_dynamics = Registrar("dynamics", takes=("x", "velocity", "sigma", "next_sigma"))  # -> Step
# -> sigma [steps + 1]
register_noise_schedule = Registrar("dynamics/schedule", takes=("steps", "tokens"))
# -> indices
register_stochastic_steps = Registrar("dynamics/stochastic", takes=("steps", "iteration", "seed"))
# -> iterations
register_window_pace = Registrar("dynamics/stochastic/stay", takes=("start", "steps"))
register_solver = Registrar("dynamics/solver", takes=("levels",))
register_likelihood = Registrar("dynamics/logp", takes=("next_x", "step"))  # -> [B]
register_step_weight = Registrar("algorithm/loss/weight", takes=("transition",))  # -> [B, T]
register_step_distance = Registrar("algorithm/loss/distance", takes=("transition",))  # -> [B, T]
# log-probabilities [N, K] of both -> [N], with a gradient in the student's
register_divergence = Registrar("algorithm/teachers/divergence", takes=("student", "teacher"))
register_distillation_target = Registrar("algorithm/loss/target", takes=("batch",))
register_centre = Registrar("algorithm/loss/centre", takes=("rows",))
register_tilt = Registrar("algorithm/loss/tilt", takes=("rewards",))
register_fit = Registrar("algorithm/loss/fit", takes=("implied", "given"))
register_error_weighting = Registrar(
    "algorithm/timestep_sampling/weighting", takes=("sigma", "energy")
)
# -> sigma of a query, and the level whose noise goes on, [N] each
register_query = Registrar("algorithm/query", takes=("u", "sigma", "next_sigma"))
register_level_candidates = Registrar("algorithm/timestep_sampling/among", takes=("schedule",))
register_ema_decay = Registrar("model/ema", takes=("count",))  # -> share kept, in [0, 1]
register_dataset = Registrar("data")
register_model = Registrar("model")
register_quantization = Registrar("model/quantization")  # a Quantization: packs weights, unpacks
register_rollout_engine = Registrar("rollout")
register_flow_family = Registrar("model/family")
# A class with `describe` and `begin`, see tandem.environments; or a function -> Said, where all
# state is the moves so far.
register_environment = Registrar(
    "environment",
    takes=("prompt", "moves"),
    methods={"describe": (), "begin": ("prompt", "key")},
)
