"""The base class of losses that wrap another loss, and the facts it refuses there."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from tandem.contracts import Facts, Wrapper, facts_of, unwrap_partial
from tandem.metrics import Metric
from tandem.types import CoupledBatch


@dataclass(frozen=True, kw_only=True)
class LossWrapper(Wrapper):
    """A loss that replaces another one on some steps, and equals it on all others."""

    says: ClassVar[str]  # its name in refusals

    loss: Callable[[CoupledBatch], Tensor]  # the loss that is wrapped

    def __post_init__(self) -> None:
        if facts_of(self.loss).batch_statistics is not None:  # needs the whole update
            raise ValueError(
                f"{self.says} calls the loss in it with one batch, but "
                f"{unwrap_partial(self.loss)[0].__name__} looks at a whole update first; set "
                "algorithm.loss.loss to a loss that judges each row alone, such as ppo"
            )

    def own_facts(self, declared: Facts) -> Facts:
        """The facts of the inner loss; what is read and refused is merged."""
        inner = facts_of(self.loss)
        return replace(
            inner,
            option=declared.option,
            reads=inner.reads | declared.reads,
            refused={**inner.refused, **declared.refused},
            units={**inner.units, **declared.units},
            metrics=self.metrics,
        )

    def components(self) -> dict[str, Callable]:
        return {"loss": self.loss}

    @abstractmethod
    def metrics(self, batch: CoupledBatch) -> dict[str, Metric]:
        """Its metrics and those of the inner loss."""
