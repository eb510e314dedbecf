"""Every preset under every law: `make laws` writes docs/laws.md, and a test checks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from laws import gradients, invariance
from laws.bench import names, preset

from tandem.algorithm.algorithm import Algorithm

PAGE = Path(__file__).parents[2] / "docs" / "laws.md"
TICK = "✓"


@dataclass(frozen=True, kw_only=True)
class Law:
    """A law of algorithms."""

    says: str
    check: Callable[[Algorithm], None]  # raises if the law is broken
    reason: Callable[[Algorithm], str | None] = invariance.always  # why it fails, or None
    otherwise: Callable[[Algorithm], None] | None = None  # raises if the law holds anyway


LAWS = {
    "cut": Law(
        says="any cut of an update into micro-batches, uneven ones too, gives the same gradients "
        "and metrics, to 1e-9",
        check=invariance.cut,
    ),
    "statistics": Law(
        says="statistics of a loss over all rows of an update do not depend on that cut",
        check=invariance.find_alike,
        reason=invariance.finds_nothing,
    ),
    "ranks": Law(
        says="two ranks with unequal numbers of groups give the gradients and metrics of one, "
        "to 1e-9",
        check=invariance.one_rank,  # the two ranks run all presets at once
    ),
    "rows": Law(
        says="the order of the rows of an iteration changes nothing",
        check=invariance.permutation,
    ),
    "padding": Law(
        says="NaN outside the mask, and wider records, change nothing",
        check=invariance.padding,
        reason=invariance.no_padding,
    ),
    "prefix": Law(
        says="untrained steps before the trained ones change nothing",
        check=invariance.prefix,
        reason=invariance.no_padding,
    ),
    "shift": Law(
        says="a bonus for all samples of a group changes nothing",
        check=invariance.shift,
        reason=invariance.no_group,
        otherwise=invariance.shift_matters,
    ),
    "coefficient": Law(
        says="a penalty with coefficient 0 needs no field and adds nothing, whichever it is",
        check=invariance.coefficient,
    ),
    "float32": Law(
        says="single precision gives the gradients of double precision, to 1e-4",
        check=invariance.float32,
    ),
    "first step": Law(
        says="on fresh samples the gradient is that of -A log p, times the step weight of the loss "
        "if it has one; every ratio is 1 and no clip has an effect",
        check=gradients.first_step,
        reason=gradients.no_policy_gradient,
    ),
    "temperature": Law(
        says="sampler and trainer divide the logits of a language model by the same temperature, "
        "and a different one on one side stops the run",
        check=gradients.temperature,
        reason=gradients.no_temperature,
    ),
    "KL": Law(
        says="over all samples of a small vocabulary the KL has its exact gradient; for Gaussian "
        "steps that of the squared distance of their means, for velocities that of theirs",
        check=gradients.kl_gradient,
        reason=gradients.no_kl,
    ),
    "antisymmetry": Law(
        says="with chosen and rejected exchanged, margins change sign, and at the reference so "
        "does the gradient",
        check=gradients.antisymmetry,
        reason=gradients.no_preference,
    ),
}


def reasons() -> dict[tuple[str, str], str | None]:
    """The reason why a law does not hold for a preset, or None. Nothing is run to find it."""
    presets = {name: preset(name) for name in names()}
    return {
        (name, law): LAWS[law].reason(algorithm)
        for name, algorithm in presets.items()
        for law in LAWS
    }


def ticked_laws() -> dict[tuple[str, str], bool]:
    """Whether a law holds for a preset according to docs/laws.md, without building the preset."""
    cells = [line.strip("| ").split(" | ") for line in PAGE.read_text(encoding="utf-8").split("\n")]
    rows = [row for row in cells if len(row) == len(LAWS) + 1][1:]  # the first one is the header
    return {
        (name, law): cell == TICK
        for name, *held in rows
        for law, cell in zip(LAWS, held, strict=True)
    }


def page() -> str:
    """docs/laws.md."""
    found = reasons()
    notes = {text: f"{i + 1}" for i, text in enumerate(dict.fromkeys(filter(None, found.values())))}
    rows = [
        f"| {name} | {' | '.join(notes.get(found[name, law], TICK) for law in LAWS)} |"
        for name in names()
    ]
    return "\n".join(
        [
            "# Invariance tests",
            "",
            "A tick is a test of `tests/test_law_matrix.py`; a number gives the reason why a law "
            "does not apply.",
            "`make laws` writes this page. Each preset has its published numbers.",
            "",
            *(f"* **{name}**: {law.says}." for name, law in LAWS.items()),
            "",
            f"| algorithm | {' | '.join(LAWS)} |",
            f"|---|{':-:|' * len(LAWS)}",
            *rows,
            "",
            *(f"{number}. {text}" for text, number in notes.items()),
            "",
        ]
    )
