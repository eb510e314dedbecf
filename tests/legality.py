"""The functions that are legal in each domain: `make legality` writes the page."""

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
from tandem.contracts import DOMAINS, facts_of, options_of, parts_of
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

INTRODUCTION = """# Compatible functions

An algorithm trains on one of four domains. Functions are shared between domains where they have
the same meaning.

* **tokens**: an autoregressive language model (`dynamics=autoregressive`), or a masked-diffusion
  model (`dynamics=masked`) with `algorithm/likelihood=path`. A log-probability belongs to one
  token.
* **Gaussian steps**: a flow model sampled with random steps, `dynamics=flow_sde`, `dance_sde` or
  `cps`. A log-probability belongs to one step and is the mean over its latent dimensions.
* **pictures**: finished images of a flow model, scored by the velocity at fresh noise: minus the
  mean squared error. This domain applies to `objective: denoising` with any sampler, to rows of
  data, and to algorithms with `objective: any` under `dynamics=ode`. Under `objective:
  distillation` the states are the sampled ones and a teacher supplies the true velocity; under
  `objective: matching` the predictions of several networks are compared.
* **bounds**: answers of a masked-diffusion model (`dynamics=masked`), scored at states drawn for
  training: `algorithm/likelihood=elbo`, a bound on log p split over the positions, or `one_step`,
  `coupled_tokens` and `merged_path`, values of tokens. A function that is refused for tokens is
  refused for bounds.

Most algorithms have `objective: policy_gradient`. They need log-probabilities of sampled steps,
which do not exist under `dynamics=ode` or for rows of data, and are refused there. In the tables,
a tick means that a function can be used, and a number gives the reason for refusing it, in the
words of the error message. A KL or an entropy bonus with coefficient 0 is not used, and so is
never refused. Three refusals depend on more than the domain: `algorithm/kl=timeless` with
`dynamics=cps`, `algorithm/loss=grpo_guard` with `dynamics/logp=unscaled`, and functions of the
order of steps for masked-diffusion models, whose positions have no order (the advantages among
them also for chains): IN_TIME.

`algorithm/kl=auto` is `k3_unbiased` for tokens and `gaussian` for steps. `make legality` writes
this page from the declarations of the functions, and a test compares it with the code.
"""


for package in (tandem.losses, tandem.advantages):
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)  # registers its functions


def page() -> str:
    """docs/legality.md."""
    tables = [table(f"algorithm/{group}", group, rows(group)) for group in GROUPS]
    told = INTRODUCTION.replace("IN_TIME", ", ".join(in_time()))
    return "\n".join([told, *tables, table("Beside the loss", "", [*BESIDE.items()])])


def in_time() -> list[str]:
    """The losses and advantages that depend on the order of steps."""
    found = [row for group in ("loss", "advantage") for row in rows(group)]
    return [f"`{name}`" for name, called in found if any(facts_of(f).in_time for f in called)]


def rows(group: str) -> list[tuple[str, list[Callable]]]:
    """(option, its functions) of all registered options, in source order, without those of
    plugins."""
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
