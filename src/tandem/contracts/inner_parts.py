"""The shape of what a part inside a loss returns: another would broadcast over rows or steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from tandem.contracts.outputs import wrong_value


def of_shape(
    part: Callable, value: object, shape: Sequence[int], *, axes: str, lead: int = 0
) -> Tensor:
    """The value that a part returned, a tensor of this shape behind its first `lead` axes.

    axes: the names of all its axes, such as "[B, T]". Raises WrongOutput for anything else.
    """
    if isinstance(value, Tensor) and value.shape[lead:] == tuple(shape):
        return value
    raise wrong_value(part, value, f"a tensor {axes}, whose last axes are here {[*shape]}")
