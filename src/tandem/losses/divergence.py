"""Divergences of a student from its teacher at one state: log-probabilities [N, K] twice -> [N].

Only the student gets a gradient. Value and gradient are exactly 0 where both agree: gradients are
written out, without the part that vanishes for probabilities that add up to 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from tandem.contracts import between, facts_of, register_divergence

Divergence = Callable[[Tensor, Tensor], Tensor]
Side = Literal["student", "teacher"]


# KL(teacher | student): the student covers all of the teacher's modes
@register_divergence(support="teacher")
def forward_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """sum t (log t - log s), whose gradient in the student's logits is s - t.

    [N, K] log-probabilities each -> [N] nats. Source: GKD, arXiv:2306.13649, beta 0.
    """
    s, t = student.detach().exp(), teacher.exp()
    return with_gradient(student, (t * (teacher - student.detach())).sum(-1), slope=s - t)


# KL(student | teacher): the student concentrates on the teacher's main modes
@register_divergence
def reverse_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """sum s (log s - log t).

    [N, K] log-probabilities each -> [N] nats. Source: GKD, arXiv:2306.13649, beta 1; MiniLLM,
    arXiv:2306.08543.
    """
    known = student.detach()
    slope = known.exp() * (known - teacher)
    return with_gradient(student, slope.sum(-1), slope=slope)


# Between the other two: beta KL(teacher | m) + (1 - beta) KL(student | m), m their mixture (GKD)
@register_divergence
def jsd(
    student: Tensor,
    teacher: Tensor,
    *,
    # Weight of KL(teacher || mixture), and the teacher's share of the mixture.
    beta: Annotated[float, between(0, 1, open_low=True, open_high=True)] = 0.5,
) -> Tensor:
    """beta KL(t | m) + (1 - beta) KL(s | m), m = beta t + (1 - beta) s.

    It tends to 0 with beta and with 1 - beta, not to the KLs: at beta 0.01 it is about a hundred
    times weaker than `forward_kl`, so a learning rate does not carry over. [N, K] log-probabilities
    each -> [N] nats. Source: GKD, arXiv:2306.13649.
    """
    known = student.detach()
    apart = teacher - known
    # log m - log s, in the equivalent form that does not overflow; exactly 0 at 0.
    below = (beta * apart.clamp(max=0).expm1()).log1p()
    above = apart + ((1 - beta) * (-apart).clamp(max=0).expm1()).log1p()
    up = torch.where(apart > 0, above, below)
    slope = -(1 - beta) * known.exp() * up
    value = slope - beta * teacher.exp() * (up - apart)
    return with_gradient(student, value.sum(-1), slope=slope)


def with_gradient(student: Tensor, value: Tensor, *, slope: Tensor) -> Tensor:
    """The value [N], with a gradient of `slope` [N, K] in the log-probabilities [N, K]."""
    return value + (slope * (student - student.detach())).sum(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDivergence:
    """A divergence over all tokens, or over the most likely ones of one side."""

    of: Divergence
    top_k: int | None = None  # tokens; None: all of them
    tail: bool = True  # all other tokens are one more entry; else the top k are renormalised
    support: Side | None = None  # whose top k; None: the side that the divergence weights most

    @property
    def leading(self) -> Side:
        """The side whose most likely tokens are compared."""
        return self.support or facts_of(self.of).support

    def __call__(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Log-probabilities [N, V] each -> [N] nats."""
        return self.compare(*self.narrow(student, teacher))

    def narrow(self, student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
        """The compared part of [N, V] log-probabilities: [N, K], each side adding up to 1."""
        if self.top_k is None or self.top_k >= student.shape[-1]:
            return student, teacher
        ids = {"student": student.detach(), "teacher": teacher}[self.leading]
        ids = ids.topk(self.top_k).indices
        return self._normalize(student.gather(-1, ids)), self._normalize(teacher.gather(-1, ids))

    def among(self, student: Tensor, ids: Tensor, teacher: Tensor) -> Tensor:
        """The divergence [N] nats if only the teacher's top tokens are known: `ids` [N, K] and
        their log-probabilities [N, K]. student: all tokens, [N, V]."""
        return self.compare(self._normalize(student.gather(-1, ids)), self._normalize(teacher))

    def compare(self, student: Tensor, teacher: Tensor) -> Tensor:
        """[N, K] each -> [N] nats, in the dtype of both also within a pass in mixed precision."""
        with torch.autocast(student.device.type, enabled=False):
            return self.of(student, teacher)

    def _normalize(self, logp: Tensor) -> Tensor:
        return with_tail(logp) if self.tail else logp.log_softmax(-1)


def with_tail(logp: Tensor) -> Tensor:
    """The log-probability of all other tokens behind those of some: [N, K] -> [N, K + 1]."""
    least = torch.finfo(logp.dtype).eps
    mass = logp.exp().sum(-1, keepdim=True).clamp(max=1 - least)
    return torch.cat([logp, (-mass).log1p()], -1)
