"""Rows of replies: one answer each, and all of them as the answers of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from tandem.policies.engines.protocol import number_of
from tandem.policies.language.records import Answers


class Span(NamedTuple):
    """A span of tokens sampled by one version of the weights."""

    version: str
    start: int
    end: int  # exclusive


class Row(NamedTuple):
    """An answer."""

    tokens: list[int]  # with its end token
    logp: list[float]  # nats of each
    truncated: bool  # the limit came before an end
    spans: Sequence[Span] = ()  # over all its tokens; empty: the server reported none

    @property
    def versions(self) -> list[int]:
        """The handover number of each token; empty if the server did not report it."""
        return [number_of(span.version) for span in self.spans for _ in range(span.start, span.end)]


def stack_rows(rows: Sequence[Row], device: torch.device) -> Answers:
    """Answers in row order; fields that replies lack are None."""
    width = max(len(row.tokens) for row in rows)

    def pad(values: Sequence[float]) -> list[float]:
        return [*values, *[0] * (width - len(values))]

    told = all(row.spans for row in rows)
    versions = [pad(row.versions) for row in rows] if told else None
    return Answers(
        tokens=torch.tensor([pad(row.tokens) for row in rows], device=device),
        logp=torch.tensor([pad(row.logp) for row in rows], device=device, dtype=torch.float32),
        entropy=None,
        length=torch.tensor([len(row.tokens) for row in rows], device=device),
        truncated=torch.tensor([row.truncated for row in rows], device=device),
        version=torch.tensor(versions, device=device) if told else None,
    )
