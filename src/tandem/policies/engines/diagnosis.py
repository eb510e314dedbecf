"""Causes of a train-inference mismatch: each leaves its own pattern in the log-probabilities.

With another temperature or a truncated tail, the trainer's logits reproduce the engine's numbers.
Shifted numbers are those of a neighbouring token, and stale ones those of known older weights.
Differences from rounding are small and on both sides of 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

EXPLAINED = 0.1  # share of the difference that an explanation may leave
EXACT = 1e-5  # nats: less is rounding, whatever the difference was
SMALL = 0.1  # nats: rounding of weights and activations causes less, on average
ONE_SIDED = 0.35  # of the mean |difference|: rounding leaves a smaller |mean difference|
COLDEST, WARMEST = 0.05, 20.0
TRIES = 24  # temperatures of the coarse search
STEPS = 30  # of the golden-section search that follows
GOLDEN = (5**0.5 - 1) / 2
MASSES = 400  # values of top_p that are tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Log-probabilities of the same N tokens by engine and trainer, in R rows of T steps."""

    engine: Tensor  # [R, T] nats
    mask: Tensor  # [R, T] bool, N of them True
    logits: Tensor  # [N, V] of the trainer, before any temperature, row by row
    token: Tensor  # [N] int64, the sampled ones
    temperature: float  # the requested one
    others: Mapping[str, Tensor]  # description of other weights -> log-probabilities: [R, T] nats

    @property
    def logp(self) -> Tensor:
        """The trainer's distributions, [N, V] nats."""
        return (self.logits / self.temperature).log_softmax(-1)

    @property
    def trainer(self) -> Tensor:
        """[N] nats"""
        return logp_of_tokens(self.logp, self.token)

    @property
    def reported_logp(self) -> Tensor:
        """[N] nats, the engine's."""
        return self.engine[self.mask]


class Fit(NamedTuple):
    """A candidate explanation of the difference."""

    left: float  # nats per token that it leaves unexplained, on average
    cause: str


OLD_HEAD = "the previous head with the current layers"
NOT_REACHED = (
    "the newest weights did not reach the server; see its log, and check that "
    "rollout.engine.folder is the same directory for both"
)
REMEDIES = {
    OLD_HEAD: "the server reloaded all but the head, as vLLM does on a CPU if the head is tied to "
    "the embedding; serve it on a GPU, or a model with tie_word_embeddings=false"
}
Hypothesis = Callable[[Seen], Iterator[Fit]]


def diagnose(seen: Seen) -> str:
    """The cause that leaves the smallest residual, and its remedy."""
    gap = _mean(seen.reported_logp - seen.trainer)
    fits = [fit for explain in HYPOTHESES for fit in explain(seen)]
    best = min(fits, key=lambda fit: fit.left)
    if best.left <= max(EXPLAINED * gap, EXACT):
        return best.cause
    return explain_remainder(seen)


def fit_temperature(seen: Seen) -> Iterator[Fit]:
    """The temperature that fits the difference best, and its residual."""

    def left(log_temperature: float) -> float:
        logp = (seen.logits / torch.tensor(log_temperature).exp()).log_softmax(-1)
        return _mean(logp_of_tokens(logp, seen.token) - seen.reported_logp)

    coarse = torch.linspace(*torch.tensor([COLDEST, WARMEST]).log(), TRIES).tolist()
    nearest = min(range(TRIES), key=lambda i: left(coarse[i]))
    low, high = coarse[max(nearest - 1, 0)], coarse[min(nearest + 1, TRIES - 1)]
    found = golden_section(left, low, high)
    temperature = float(torch.tensor(found).exp())
    raw = abs(temperature - 1) < 0.01
    advice = (
        "the server ignores the temperature or reports raw log-probabilities: start it with "
        "--logprobs-mode processed_logprobs"
        if raw
        else f"set rollout.temperature={temperature:.3g}, or find what changes it on the way"
    )
    yield Fit(
        left(found),
        f"the engine's log-probabilities fit temperature {temperature:.3g}, and the trainer uses "
        f"{seen.temperature:.3g}; {advice}",
    )


def fit_truncation(seen: Seen) -> Iterator[Fit]:
    """Truncation raises each remaining token's log-probability by the log of the kept mass."""
    above = (seen.reported_logp - seen.trainer)[:, None]
    mass = seen.logp.sort(dim=-1, descending=True).values.exp().cumsum(-1)  # [N, V]
    by_count = (above + mass.clamp(max=1).log()).abs().mean(0)
    best = int(by_count[:-1].argmin())
    yield Fit(float(by_count[best]), _cut(f"top_k={best + 1}"))
    masses = torch.arange(1, MASSES, device=mass.device) / MASSES
    kept = torch.searchsorted(mass, masses.repeat(len(mass), 1)).clamp(max=mass.shape[1] - 1)
    by_mass = (above + mass.gather(1, kept).clamp(max=1).log()).abs().mean(0)
    best = int(by_mass.argmin())
    yield Fit(float(by_mass[best]), _cut(f"top_p={float(masses[best]):g}"))


def _cut(setting: str) -> str:
    return (
        f"the engine's log-probabilities are higher by the mass of a truncated tail, and "
        f"fit {setting}: it samples from another distribution than the trained one; start "
        "it with --generation-config vllm and without its own sampling defaults"
    )


def fit_order(seen: Seen) -> Iterator[Fit]:
    """Log-probabilities shifted by one token, in either direction."""
    trainer = torch.zeros_like(seen.engine)
    trainer[seen.mask] = seen.trainer
    for shift, place in ((1, "before"), (-1, "behind")):
        both = seen.mask & seen.mask.roll(shift, 1)
        both[:, 0 if shift == 1 else -1] = False
        if both.any():
            left = _mean((seen.engine - trainer.roll(shift, 1))[both])
            yield Fit(
                left,
                f"the engine's log-probabilities are shifted by one token: they fit the token "
                f"{place}; check the slice of the log-probabilities for an off-by-one",
            )


def fit_weights(seen: Seen) -> Iterator[Fit]:
    for weights, logp in seen.others.items():
        yield Fit(
            _mean((seen.engine - logp)[seen.mask]),
            f"the engine's log-probabilities fit {weights}: {REMEDIES.get(weights, NOT_REACHED)}",
        )


HYPOTHESES: tuple[Hypothesis, ...] = (fit_temperature, fit_truncation, fit_order, fit_weights)


def explain_remainder(seen: Seen) -> str:
    """The advice for an unexplained difference: rounding, another truncation, or other weights."""
    above = seen.reported_logp - seen.trainer
    gap, mean = _mean(above), float(above.mean())
    if gap <= SMALL and abs(mean) <= ONE_SIDED * gap:
        return (
            f"the differences are small and on both sides of 0 ({gap:.2g} nats a token): a lower "
            "dtype on one side, such as bfloat16; algorithm/importance_sampling=token_tis "
            "corrects for them, or set model.dtype and the server's --dtype to the same value"
        )
    if float(above.min()) >= -EXPLAINED * gap:
        return (
            "the engine's log-probabilities are higher throughout, as with a truncated tail: "
            "look for min_p or another filter among the server's sampling defaults"
        )
    if {*seen.others} <= {OLD_HEAD}:  # no older layers are known
        return (
            "neither a temperature, a truncated tail nor a shift by one token explains them: the "
            f"engine has other weights; maybe {NOT_REACHED}; or serve the model that the run "
            "starts from"
        )
    return (
        "neither a temperature, a truncated tail, a shift by one token nor older weights "
        "explains them: the engine has other weights; serve the model that the run starts from"
    )


def golden_section(value: Callable[[float], float], low: float, high: float) -> float:
    """The minimum of a unimodal function between two points."""
    for _ in range(STEPS):
        span = GOLDEN * (high - low)
        if value(high - span) < value(low + span):
            high = low + span
        else:
            low = high - span
    return (low + high) / 2


def logp_of_tokens(logp: Tensor, token: Tensor) -> Tensor:
    """[N, V] -> [N]"""
    return logp.gather(-1, token[:, None])[:, 0]


def _mean(difference: Tensor) -> float:
    return float(difference.abs().mean())
