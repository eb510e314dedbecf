"""Which functions make sense of which domain: `make legality` writes the page."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Sequence
from pathlib import Path

import tandem.advantages
import tandem.losses
import tandem.losses.importance
import tandem.training.collect
import tandem.training.reprompts
import tandem.training.strategies
from tandem.advantages.temporal import gae_returns
from tandem.algorithm.regularizers import EntropyBonus
from tandem.contracts import DOMAINS, options_of, parts_of
from tandem.legality.domains import refusal
from tandem.losses.critic import value_loss

PAGE = Path(__file__).parents[1] / "docs" / "legality.md"
GROUPS = (
    "loss",
    "kl",
    "advantage",
    "weights",
    "importance_sampling",
    "old_logprobs",
    "truncation_handling",
    "sampling_strategy",
)
BESIDE = {"entropy": [EntropyBonus], "critic": [value_loss, gae_returns]}

INTRODUCTION = """# Which function trains what

An algorithm trains on one of four things, and functions are shared wherever they mean the same.

* **tokens**: a language model, `dynamics=autoregressive`, or one that unmasks its answers,
  `dynamics=masked`, under `algorithm/likelihood=path`. A log-probability is of one token.
* **Gaussian steps**: a flow that was sampled at random, `dynamics=flow_sde`, `dance_sde` or `cps`.
  A log-probability is of one step, the mean over its latent dimensions.
* **pictures**: a flow by how well it knows the velocity at fresh noise: minus the mean squared
  error. So it is under `objective: denoising`, whatever sampled, with rows of data, and under
  `dynamics=ode` for algorithms of `objective: any`. Under `objective: distillation` the
  states are those that were sampled, and the truth is what a teacher says of them; under
  `objective: matching` pictures are compared that several networks expect.
* **bounds**: answers of a model that unmasks them, `dynamics=masked`, by what it says of their
  tokens at states of its own: `algorithm/likelihood=elbo`, a bound on log p split over the
  positions, or `one_step`, `coupled_tokens` and `merged_path`, values of tokens. What makes no
  sense of tokens makes none of bounds.

Most algorithms are of `objective: policy_gradient`. They ask how likely sampled steps are, which
nobody knows under `dynamics=ode` or of rows of data, and are refused there. Below, a tick says that
a function may be composed, and a number why it is refused, in the words of the command line.
Nobody asks for a KL or an entropy bonus of coefficient 0, so neither is refused. Two refusals
depend on more than the column: `algorithm/kl=timeless` on `dynamics=cps`,
`algorithm/loss=grpo_guard` on `dynamics/logp=unscaled`.

`algorithm/kl=auto` is `k3_unbiased` of tokens and `gaussian` of steps. `make legality` writes this
page from what functions declare, and a test compares.
"""


for package in (tandem.losses, tandem.advantages):
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)  # what registers its functions


def page() -> str:
    """docs/legality.md."""
    tables = [table(f"algorithm/{group}", group, rows(group)) for group in GROUPS]
    return "\n".join([INTRODUCTION, *tables, table("Beside the loss", "", [*BESIDE.items()])])


def rows(group: str) -> list[tuple[str, list[Callable]]]:
    """(option, what it calls) of all that is registered, in the order of the functions in their
    files. The same code lists what a plugin registered, once it is imported; not on this page."""
    found = options_of(f"algorithm/{group}").items()
    own = [item for item in found if item[1].__module__.startswith("tandem.")]
    calls = [(name, list(parts_of(component))) for name, component in own]
    return sorted(calls, key=lambda row: place(row[1][0]))


def place(function: Callable) -> tuple[str, int]:
    return function.__module__, inspect.getsourcelines(function)[1]


def table(title: str, group: str, rows: Sequence[tuple[str, list[Callable]]]) -> str:
    reasons: list[str] = []
    lines = []
    for name, called in rows:
        cells = [cell(group or name, called, domain, reasons) for domain in DOMAINS]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    head = ["| | tokens | Gaussian steps | pictures | bounds |", "|---|:-:|:-:|:-:|:-:|"]
    notes = [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    return "\n".join([f"## {title}", "", *head, *lines, "", *notes, *([""] if notes else [])])


def cell(group: str, called: Sequence[Callable], domain: str, reasons: list[str]) -> str:
    """A tick, or the number of the reason."""
    reason = next(filter(None, (refusal(f, domain, group) for f in called)), None)
    if reason is None:
        return "✓"
    if reason not in reasons:
        reasons.append(reason)
    return str(reasons.index(reason) + 1)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
