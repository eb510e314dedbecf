"""Output checks of components: shape, dtype, gradient, finite values and writes, for plugins too.

A scalar for a whole micro-batch would broadcast over its steps, and the result would depend on how
an update is split for memory. A tensor that a part writes on is read by others: a write in place
raises the version of the tensor; one through `.numpy()` or `.data` does not, so the first call of a
part from outside the package also compares contents. Parts of the package are tested.

All checks but `finite` and that first call are free: two walks over the records.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from numbers import Real
from typing import TypeVar
from weakref import WeakSet

import torch
from torch import Tensor

from tandem.contracts import callable_name, facts_of
from tandem.contracts.parts import fields_of, is_foreign, iterate_innermost, kind_of, place_of
from tandem.contracts.wrong_output import WrongOutput, refuse_absent_field, refuse_undeclared

Number = TypeVar("Number")  # or a record of tandem.metrics
WIDE = (torch.float32, torch.float64)
OF_RUN = "environment|eval|loss|perf|response|reward|staleness|time"  # metrics of the run itself
METRIC_NAME = re.compile(rf"(?!({OF_RUN})/)[^\s/]+/\S+")  # of a component: in another group
COMPARED: WeakSet = WeakSet()  # kinds of parts that were called
CLOSE = 1e-4  # of the largest value of a part, below which two of them are rounded alike
AGAIN = (
    "called again; keep no state (an advantage may, in buffers), and draw from the keys of rows "
    "(tandem.rng.uniform(rows.key)), not from a global generator"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The return value of a kind of component: [B, T], float32 or wider."""

    kind: str
    of_samples: bool = False  # or [B, 1], the same number for all steps of a sample
    learns: bool = False  # has a gradient if one is available; else none
    finite: bool = False
    non_negative: bool = False
    record: str = "batch"  # the name of the record whose mask it has
    instead: str = ""  # advice for a statistic over the rows of a micro-batch

    def ask(
        self, part: Callable, *records: object, mask: Tensor | None = None, learns: bool = False
    ) -> Tensor:
        """The valid result of a part for these records: [B, T], also of a number per sample.

        mask: [B, T], None: the first record. `learns`: a gradient is available.
        Raises WrongOutput for an invalid result.
        """
        given = Given(part, records)
        try:
            value = part(*records)
        except (TypeError, AttributeError) as error:
            refuse_undeclared(self.kind, part, records, error)
            raise
        except KeyError as error:
            refuse_absent_field(self.kind, part, records, error)
            raise
        mask = records[0] if mask is None else mask
        fault = given.fault()
        if fault is None and (not isinstance(value, Tensor) or value.shape != mask.shape):
            fault = self._of_shape(part, value, mask)
        if fault := fault or self._of_values(value, mask, learns):
            raise WrongOutput(f"{self.kind} {callable_name(part)} {fault}")
        return value if value.shape == mask.shape else value.expand(mask.shape)

    def ask_twice(self, part: Callable, *records: object) -> Tensor:
        """`ask`. Raises WrongOutput for a part from outside the package that gives another result
        for the same records: [B, T]."""
        value = self.ask(part, *records)
        if is_foreign(part):
            self.refuse_unlike(part, value, self.ask(part, *records))
        return value

    def refuse_unlike(self, part: Callable, first: Tensor, again: Tensor) -> None:
        """Raise WrongOutput for a part with two different results for the same records. [B, T]"""
        if (again - first).abs().max() > CLOSE * first.abs().max():
            raise self.unlike(part)

    def unlike(self, part: Callable, when: str = AGAIN) -> WrongOutput:
        """The error of a part that gives equal rows different values, with its place."""
        place = f"{callable_name(part)} at {place_of(part)}"
        return WrongOutput(f"{self.kind} {place} gives rows other values when {when}")

    def _of_shape(self, part: Callable, value: Tensor, mask: Tensor) -> str | None:
        wanted = f"[B, T], here {[*mask.shape]}"
        if not isinstance(value, Tensor):
            return f"returned {type(value).__name__}; return a tensor {wanted}"
        shape, want = tuple(value.shape), tuple(mask.shape)
        of_samples = self.of_samples or facts_of(part).per != "step"
        if shape == want or (shape == (want[0], 1) and of_samples):
            return None
        if value.ndim == 0:
            return (
                "returned one number, which depends on how an update is cut for memory; leave out "
                f".mean() or .sum() at the end and return {wanted}: algorithm.weights add it up"
            )
        if shape == (want[0],):
            return (
                f"returned [B], here {[*shape]}; return x[:, None] * {self.record}.mask, {wanted}"
            )
        if shape == (want[0], 1):
            return (
                f"returned [B, 1], one number for each sample; declare per='sample', or return "
                f"{wanted}"
            )
        return f"returned {[*shape]}; return {wanted}"

    def _of_values(self, value: Tensor, mask: Tensor, learns: bool) -> str | None:
        if value.dtype not in WIDE:
            return f"returned {value.dtype}; return float32 or float64"
        if value.device != mask.device:
            return f"returned a tensor on {value.device}; return one on {mask.device}"
        if value.layout is not torch.strided:
            return f"returned a tensor of {value.layout}; add .to_dense()"
        # A leaf, such as a new parameter, carries no gradient to the policy; a constant 0 has none.
        constant = value.is_leaf or not value.requires_grad
        if self.learns and learns and constant and value.any():
            return "has no gradient; leave out .detach(), .item() and torch.no_grad() on batch.logp"
        if not self.learns and value.requires_grad:
            return "has a gradient, which it must not have; add .detach()"
        if not self.finite:
            return None
        right = value.isfinite() & (value >= 0) if self.non_negative else value.isfinite()
        if not (wrong := int((mask & ~right).sum())):  # one wait for a GPU
            return None
        if broken := int((mask & ~value.isfinite()).sum()):
            return f"returned {broken} values that are not finite"
        return (
            f"returned {wrong} values below 0; return 0 for what does not count, and put a minus "
            "sign into the advantage or the loss"
        )


class Given:
    """The tensors of records before a part is called with them. Of any shape [...]."""

    def __init__(self, part: Callable, records: Sequence[object]) -> None:
        parts = [one for _, one in iterate_innermost(part, "") if kind_of(one) not in COMPARED]
        self.records, self.by_content = records, any(map(is_foreign, parts))
        COMPARED.update(map(kind_of, parts))
        self.before = read_states(records, self.by_content)

    def fault(self) -> str | None:
        """What is wrong with a call that wrote on them; None: it did not."""
        written = self.before.items() - read_states(self.records, self.by_content).items()
        if not written:
            return None
        names = sorted({place.partition(".")[2] or "an argument" for place, _ in written})
        return f"writes on {', '.join(names)}, which others read; compute a tensor of its own"


def forget_comparison(part: Callable) -> None:
    """Compare contents at the next call of a part again: the last one was a trial."""
    COMPARED.difference_update([kind_of(one) for _, one in iterate_innermost(part, "")])


def read_states(records: Sequence[object], by_content: bool) -> dict[str, tuple[int, int]]:
    """The place of each tensor, "NUMBER_OF_RECORD.NAME" -> how often it was written on, and a hash
    of its bytes if asked for; one on the meta device has none.

    Records and mappings in a record are walked, as by `map_fields`. Tensors of any shape [...].
    """
    found: dict[str, tuple[int, int]] = {}
    held: list[tuple[object, object]] = list(enumerate(records))
    while held:
        place, x = held.pop()
        if isinstance(x, Tensor):
            content = 0
            if by_content and not x.is_meta:
                flat = x.detach().cpu().contiguous().view(-1)
                content = hash(flat.view(torch.uint8).numpy().tobytes())
            version = 0 if x.is_inference() else x._version  # inference tensors have none
            found[str(place)] = version, content
            continue
        if is_dataclass(x):
            x = fields_of(x)
        if isinstance(x, Mapping):
            held += [(f"{place}.{name}", part) for name, part in x.items()]
    return found


def find_wider(metric: Iterable[object]) -> str | None:
    """The first value in a record of `tandem.metrics` that is no scalar, in words; None: none."""
    for x in metric:
        if not isinstance(x, Real) and not (isinstance(x, Tensor) and x.ndim == 0):
            shown = f"{x.dtype} {[*x.shape]}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
            return f"a {type(metric).__name__} of {shown}"
    return None


def refuse_name(name: str, part: Callable, known: Collection[str]) -> None:
    """Raise WrongOutput for a name that is no METRIC_NAME, or that a `known` metric has."""
    fault = "which is another metric's name; choose one of its own" if name in known else None
    if not METRIC_NAME.fullmatch(name):
        fault = "which is no name of a component's; name it as actor/x, in none of the groups "
        fault += "that the run fills itself, such as loss, reward and eval, and without spaces"
    if fault is not None:
        raise WrongOutput(f"{callable_name(part)} at {place_of(part)} measures {name!r}, {fault}")


def join_metrics(*groups: Mapping[str, Number]) -> dict[str, Number]:
    """The metrics of components and of the run. Raises WrongOutput for a name of two of them."""
    joined: dict[str, Number] = {}
    for group in groups:
        if twice := sorted(joined.keys() & group.keys()):
            raise WrongOutput(
                f"metric {twice[0]!r} is measured twice, by a component and by the run itself or "
                "another component; give that of your component another name"
            )
        joined |= group
    return joined


LOSS = Output(
    kind="loss",
    learns=True,
    instead="take it in a function that is declared as batch_statistics=, which sees all rows of "
    "an update, or declare whole_groups=True if it is one of a group",
)
CORRECTION = Output(
    kind="correction",
    of_samples=True,
    finite=True,
    non_negative=True,
    instead="leave it out: a correction judges each row by itself",
)
OLD_POLICY = Output(kind="old policy")
ADVANTAGE = Output(kind="advantage", finite=True, record="rollout")
RETURNS = Output(kind="returns", finite=True)
WEIGHTS = Output(kind="weights", finite=True, non_negative=True)
