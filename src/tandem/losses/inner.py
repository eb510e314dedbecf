"""A loss inside another one, and what it must not ask for there."""

from __future__ import annotations

from collections.abc import Callable

from tandem.types import survey_of, unbound


def refuse_survey(outer: str, inner: Callable) -> None:
    """Raise if the inner loss must see a whole update: the outer one hands it single batches."""
    if survey_of(inner) is not None:
        raise ValueError(
            f"{outer} calls the loss in it with one batch, but {unbound(inner)[0].__name__} looks "
            "at a whole update first; set algorithm.loss.loss to a loss that judges each row "
            "alone, such as ppo"
        )
