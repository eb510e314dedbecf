"""Stateful components: modules that an algorithm carries between iterations and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, Self

from numpy import ndarray
from torch import Generator, Tensor, nn

from tandem.contracts.outputs import refuse_name
from tandem.contracts.parts import fields_of, place_of, unwrap_partial
from tandem.contracts.wrong_output import WrongOutput, wrong_value

OF_TORCH = vars(nn.Module()).keys()


class StatefulComponent(nn.Module):
    """A module of float64 buffers on the CPU, which may report metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.begun_with_nan: tuple[str, ...] = ()  # names of buffers

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        # An assignment to a buffer registers it again.
        if name not in self._buffers and tensor is not None and tensor.isnan().any():
            self.begun_with_nan += (name,)
        super().register_buffer(name, tensor, persistent)

    def report(self) -> dict[str, float]:
        """The metrics after the updates of each iteration; none by default."""
        return {}

    def __call__(self, *records: object) -> Any:
        """Raises WrongOutput if a plain attribute changes: no checkpoint holds it, so a resumed run
        would be another one. A buffer keeps its shape, as a resumed run loads it into a new one.
        One without NaN before the call has none after it, unless it is registered with NaN."""
        before, shapes, absent = self._plain_attributes(), self._shapes(), self._list_nan()
        value = super().__call__(*records)
        if changed := sorted({name for name, _ in shapes ^ self._shapes()}):
            raise WrongOutput(
                f"{type(self).__name__} at {place_of(type(self))} changes the shape of its buffer "
                f"{changed[0]!r} in a call, and no checkpoint of it could be loaded; register it "
                "in __init__, with a fixed shape"
            )
        if new := sorted(self._list_nan() - absent - {*self.begun_with_nan}):
            raise WrongOutput(
                f"{type(self).__name__} at {place_of(type(self))} sets its buffer {new[0]!r} to "
                "NaN in a call, and it had none before; leave out samples without a number, or "
                "register it with NaN in __init__ if NaN marks them"
            )
        changed = sorted(name for name, _ in before - self._plain_attributes())
        if changed:
            raise WrongOutput(
                f"{type(self).__name__}.{changed[0]} at {place_of(type(self))} changes in a call, "
                "and no checkpoint holds it; keep it in a buffer: "
                f"self.register_buffer({changed[0]!r}, torch.zeros((), dtype=torch.float64))"
            )
        return value

    def _shapes(self) -> set[tuple[str, tuple[int, ...]]]:
        return {(name, tuple(buffer.shape)) for name, buffer in self.named_buffers()}

    def _list_nan(self) -> set[str]:
        return {name for name, buffer in self.named_buffers() if buffer.isnan().any()}

    def _plain_attributes(self) -> set[tuple[str, str]]:
        """(name, contents) of each plain attribute. One that a call adds, such as a cache, is in no
        set taken before it, so it does not count as changed."""
        own = {name: x for name, x in vars(self).items() if name not in OF_TORCH}
        return {(name, contents_of(x)) for name, x in own.items()}

    def _apply(self, fn: Callable, recurse: bool = True) -> Self:
        # It stays in float64 on the CPU when the module around it is moved or cast.
        return self


def contents_of(x: object, above: tuple[int, ...] = ()) -> str:
    """The values in an object, in full: equal for equal contents. What has no parts to read, such
    as a function or a lock, is its repr. Tensors of any shape [...].

    above: the identities of the objects around it, so that a cycle ends.
    """
    if isinstance(x, (Tensor, ndarray)):  # a repr has four digits, and of a long one the ends alone
        return repr(x.tolist())
    if isinstance(x, Generator):
        return repr(x.get_state().tolist())
    if id(x) in above:
        return "..."
    parts = parts_inside(x)
    if parts is None:
        return repr(x)
    inside = ", ".join(contents_of(part, (*above, id(x))) for part in parts)
    return f"{type(x).__name__}({inside})"


def parts_inside(x: object) -> Collection[object] | None:
    """The parts of a container or of an object, as a copy of it is made of; None: it has none."""
    match x:
        case None | str() | bytes() | int() | float() | complex() | type():
            return None
        case Mapping():
            return x.items()
        case list() | tuple():
            return x
        case set() | frozenset():  # equal ones may have another order
            return sorted(x, key=repr)
    try:
        made = x.__reduce_ex__(4)
    except Exception:  # of any kind: it may be a method of the user's
        return None
    if isinstance(made, str):
        return None
    return [*made[1:3], *([*items] for items in made[3:5] if items is not None)]


def metrics_of_state(part: StatefulComponent, known: Collection[str] = ()) -> dict[str, float]:
    """The metrics that a component reports. Raises WrongOutput for anything else than floats by
    names such as optim/x: a log of other values could not be resumed or compared.

    known: the names of other metrics, which it may not replace."""
    found = part.report()
    if not isinstance(found, Mapping):
        raise wrong_value(part.report, found, "a dict of names to floats")
    for name, value in found.items():
        refuse_name(str(name), type(part), known)
        if type(value) not in (int, float):
            raise wrong_value(part.report, value, f"{name} as a float, such as x.item()")
    return dict(found)


def metrics_of_memory(
    memory: Mapping[str, nn.Module], known: Collection[str] = ()
) -> dict[str, float]:
    """The metrics of all parts with state, by their places. Of two that report one name, the second
    adds its place to it."""
    metrics: dict[str, float] = {}
    places = {part: place for place, part in memory.items()}  # of a part in two places: one
    for part, place in places.items():
        if isinstance(part, StatefulComponent):  # other modules have no metrics
            found = metrics_of_state(part, known)
            metrics |= {f"{x}.{place}" if x in metrics else x: value for x, value in found.items()}
    return metrics


def has_state(part: Callable) -> bool:
    """Whether a part remembers earlier calls, so that it must not be called twice."""
    return isinstance(unwrap_partial(part)[0], nn.Module)


def modules_in(name: str, part: Any) -> Iterator[tuple[str, nn.Module]]:
    """(name, module) of the modules in a component, including those inside wrappers."""
    function, numbers = unwrap_partial(part)
    if isinstance(function, nn.Module):
        yield name, function
    inside = dict(function) if isinstance(function, Mapping) else numbers
    if is_dataclass(function):
        inside = fields_of(function)
    for key, value in inside.items():
        yield from modules_in(f"{name}.{key}", value)
