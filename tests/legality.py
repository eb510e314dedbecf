"""Which functions make sense of which domain: `make legality` writes the page."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path

from omegaconf import OmegaConf

from tandem.advantages.temporal import gae_returns
from tandem.config.composition import conf_folder
from tandem.config.legal import functions, options, refusal
from tandem.losses.critic import value_loss
from tandem.penalties import EntropyBonus

PAGE = Path(__file__).parents[1] / "docs" / "legality.md"
DYNAMICS = {"tokens": "autoregressive", "steps": "_flow", "pictures": "_flow"}
GROUPS = ("loss", "kl", "advantage", "weights", "correction", "proximal", "truncated", "collect")
BESIDE = {"entropy": [EntropyBonus], "critic": [value_loss, gae_returns]}

INTRODUCTION = """# What makes sense of what

An algorithm trains on one of three things, and functions are shared wherever they mean the same.

* **tokens**: a language model, `dynamics=autoregressive`. A log-probability is of one token.
* **Gaussian steps**: a flow that was sampled at random, `dynamics=flow_sde`, `dance_sde` or `cps`.
  A log-probability is of one step, the mean over its latent dimensions.
* **pictures**: a flow by how well it knows the velocity at fresh noise: minus the mean squared
  error. So it is under `evidence: elbo`, whatever sampled, with rows of data, and under
  `dynamics=ode` for algorithms of `evidence: any`. Under `evidence: teacher` the
  states are those that were sampled, and the truth is what a teacher says of them.

Most algorithms are of `evidence: path`. They ask how likely sampled steps are, which nobody knows
under `dynamics=ode` or of rows of data, and are refused there. Below, a tick says that a function
may be composed, and a number why it is refused, in the words of the command line. Nobody asks for
a KL or an entropy bonus of coefficient 0, so neither is refused. Two refusals depend on more than
the column: `algorithm/kl=timeless` on `dynamics=cps`, `algorithm/loss=grpo_guard` on
`dynamics/logp=unscaled`.

`make legality` writes this page from the options of `conf/algorithm`, and a test compares.
"""


def page() -> str:
    """docs/legality.md."""
    tables = [table(f"algorithm/{group}", group, rows(group)) for group in GROUPS]
    beside = [(name, dict.fromkeys(DYNAMICS, called)) for name, called in BESIDE.items()]
    return "\n".join([INTRODUCTION, *tables, table("Beside the loss", "", beside)])


def rows(group: str) -> list[tuple[str, dict[str, list[Callable]]]]:
    """(option, domain -> what it calls), in the order of the functions in their files."""
    calls: dict[str, dict[str, list[Callable]]] = {}
    for domain, dynamics in DYNAMICS.items():
        own = OmegaConf.load(conf_folder() / "dynamics" / f"{dynamics}.yaml")
        for name, call in options(group, OmegaConf.to_container(own)["kl"]).items():
            calls.setdefault(name, {})[domain] = list(functions(call))
    return sorted(calls.items(), key=lambda row: [place(f) for f in row[1]["tokens"]])


def place(function: Callable) -> tuple[str, int]:
    return function.__module__, inspect.getsourcelines(function)[1]


def table(title: str, group: str, rows: Sequence[tuple[str, dict[str, list[Callable]]]]) -> str:
    reasons: list[str] = []
    lines = []
    for name, called in rows:
        cells = [cell(group or name, called[domain], domain, reasons) for domain in DYNAMICS]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    head = ["| | tokens | Gaussian steps | pictures |", "|---|:-:|:-:|:-:|"]
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
