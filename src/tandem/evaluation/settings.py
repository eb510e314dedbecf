"""Evaluation settings: sampling modes and their metrics."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from tandem.contracts import at_least, between, positive
from tandem.evaluation.image_collapse import MEASURES, Collapse
from tandem.evaluation.text_drift import TEXT_MEASURES, Drift

if TYPE_CHECKING:
    from torch import Tensor

    from tandem.policies.chain.records import ChainSampling
    from tandem.policies.flow.records import Choose, FlowSampling
    from tandem.policies.flow.solvers import Solver
    from tandem.policies.language.records import Sampling
    from tandem.policies.masked.records import MaskedSampling

GREEDY = 0.0
Size = Annotated[int, positive]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalMode:
    """One way of sampling all prompts."""

    sampling: Sampling | FlowSampling
    samples: int  # of each prompt
    name: str = "{}"  # of its metrics
    measures: Sequence[str] = ("accuracy",)
    by_source: Sequence[str] = ()  # metrics also reported per source
    tries: Sequence[int] = ()  # k of pass@k
    kind: str | None = None  # kind of its rows in the sample table; None: not shown
    shown: int = 1  # samples per prompt in that table


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation(ABC):
    """The metrics on held-out prompts, and how often they are measured."""

    every: Size | None  # iterations between two evaluations; null: never
    prompts: Size | None  # held-out prompts; null: all
    samples: Size  # samples of each prompt
    pass_at: Annotated[tuple[int, ...], positive]  # k of pass@k, before and after the run
    metric: str | None = None  # name of the reward that defines correctness; null: the first one
    threshold: float | None = 1.0  # lowest reward of a right answer, unweighted; null: no accuracy
    rows: Size = 16  # prompts in the sample table
    split: Literal["eval", "test"] = "eval"  # held-out prompts: eval, or test for evaluate=true

    @abstractmethod
    def passes(self, own: Sampling | FlowSampling, *, full: bool) -> list[EvalMode]:
        """The sampling modes. `own`: the sampling of training. `full` measures pass@k too."""

    @property
    def of_average(self) -> bool:
        """Whether the moving average of the weights is evaluated."""
        return False

    def warning(self, first: Mapping[str, float], now: Mapping[str, float]) -> str | None:
        """A warning if samples degrade while the reward rises; None by default.

        Both are metrics by name, of the first evaluation of a run and of a later one.
        """
        return None

    def right(self, part: Tensor) -> Tensor:
        """Whether each sample is correct, [B] -> [B]; a missing score (NaN) is not."""
        return part >= (math.inf if self.threshold is None else self.threshold)

    def most(self, *, full: bool) -> int:
        """The number of samples per prompt that pass@k needs."""
        return max([self.samples, *(self.pass_at if full else ())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers(Evaluation):
    """Texts: greedily, then at each temperature."""

    # Temperatures of samples; the first is used for pass@k, lengths, tables.
    temperatures: tuple[float, ...]
    # Mass of the most likely tokens that sampled answers choose from; 1: all.
    top_p: Annotated[float, between(0, 1, open_low=True)] = 1.0
    top_k: Annotated[int, at_least(0)] = 0  # tokens that sampled answers choose from; 0: all
    drift: Drift = field(default_factory=Drift)  # changes of the texts that give a warning

    def __post_init__(self) -> None:
        if not all(GREEDY < t < math.inf for t in self.temperatures or [GREEDY]):
            raise ValueError(
                f"evaluation.temperatures={list(self.temperatures)}: give finite numbers above 0; "
                "greedy answers are always measured"
            )
        if self.threshold is None:
            raise ValueError("evaluation.threshold=null: accuracy of text needs a number")

    def warning(self, first: Mapping[str, float], now: Mapping[str, float]) -> str | None:
        return self.drift.warning(first, now)

    def passes(self, own: Sampling, *, full: bool) -> list[EvalMode]:
        first, *others = self.temperatures
        at = partial(replace, own, top_p=self.top_p, top_k=self.top_k)
        greedy = replace(own, temperature=GREEDY, top_p=1.0, top_k=0)
        return [
            EvalMode(sampling=greedy, samples=1, name="greedy_{}", kind="greedy"),
            EvalMode(
                sampling=at(temperature=first),
                samples=self.most(full=full),
                measures=("accuracy", "reward", "length", "truncated", "missing", *TEXT_MEASURES),
                by_source=("accuracy",),
                tries=self.pass_at if full else (),
                kind="eval",
            ),
            *(
                EvalMode(sampling=at(temperature=t), samples=self.samples, name=f"{{}}_t{t:g}")
                for t in others
            ),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmaskedAnswers(Answers):
    """Masked texts: like other texts, and greedily with other numbers of steps."""

    steps: Annotated[tuple[int, ...], positive] = ()  # numbers of steps of further greedy answers

    def passes(self, own: MaskedSampling, *, full: bool) -> list[EvalMode]:
        modes = Answers.passes(self, own, full=full)
        greedy = modes[0].sampling
        for number in self.steps:
            fewer = replace(greedy, steps=number, entropy_bound=None)  # the bound sets the number
            modes.append(EvalMode(sampling=fewer, samples=1, name=f"greedy_{{}}_in_{number}"))
        return modes


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures(Evaluation):
    """Pictures: by the ODE, as a model is normally used, and by the sampling of training."""

    steps: Annotated[int, at_least(1)]  # denoising steps of the ODE
    guidance_scale: float  # guidance scale of the ODE; 1: no guidance
    # Pixels along a side under the ODE; null: as in training.
    resolution: Annotated[int, at_least(1)] | None = None
    # Frames of a video under the ODE; null: as in training.
    frames: Annotated[int, at_least(1)] | None = None
    solver: Callable[[Tensor], Solver] | None = None  # solver of the ODE; null: Euler
    weights: Literal["live", "ema"] = "live"  # ema: the average that model.ema keeps
    columns: Annotated[int, at_least(1)] = 8  # pictures of each prompt in the grid
    collapse: Collapse = field(default_factory=Collapse)  # changes of images that warn

    def __post_init__(self) -> None:
        if self.guidance_scale < 1:
            raise ValueError(f"evaluation.guidance_scale={self.guidance_scale}: must be at least 1")
        if self.threshold is None and self.pass_at:
            raise ValueError(
                f"evaluation.pass_at={list(self.pass_at)} needs to know which pictures are "
                "correct; set evaluation.threshold, or evaluation.pass_at=[]"
            )

    @property
    def of_average(self) -> bool:
        return self.weights != "live"

    def warning(self, first: Mapping[str, float], now: Mapping[str, float]) -> str | None:
        return self.collapse.warning(first, now)

    def passes(self, own: FlowSampling, *, full: bool) -> list[EvalMode]:
        several = self.most(full=full) > 1
        worth = ("reward",) if self.threshold is None else ("accuracy", "reward")
        measures = (*worth, "missing", *(("diversity",) if several else ()))
        # The same number at every evaluation, so that tables differ only by training.
        shape = {"shown": min(self.columns, self.samples), "by_source": worth}
        clean = EvalMode(
            sampling=self.noiseless(own),
            samples=self.most(full=full),
            tries=self.pass_at if full else (),
            kind="eval",
            measures=(*measures, *MEASURES),
            **shape,
        )
        if own.deterministic:
            return [clean]
        # Random steps that depend on the iteration would add noise to the comparison.
        choose = partial(_as_at_first, own.stochastic)
        steady = replace(own, weights=self.weights, stochastic=choose)
        trained = EvalMode(
            sampling=steady,
            samples=self.samples,
            name="{}_sampled",
            kind="sampled",
            measures=measures,
            **shape,
        )
        return [clean, trained]

    def as_used(self, own: FlowSampling) -> FlowSampling:
        """Sampling by the live weights, as a finished model is used."""
        return replace(self.noiseless(own), weights="live")

    def noiseless(self, own: FlowSampling) -> FlowSampling:
        """The ODE, with its own starting noise per sample and at full precision."""
        from tandem.dynamics.kernels import ode  # imports torch; settings are read without it

        return replace(
            own,
            kernel=ode,
            steps=self.steps,
            guidance_scale=self.guidance_scale,
            resolution=self.resolution,
            frames=self.frames,
            solver=self.solver,
            shared_noise=False,
            storage="float32",
            weights=self.weights,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPictures(Pictures):
    """Pictures of a chain, each with its own text."""

    temperature: Annotated[float, at_least(0)] = 1.0  # temperature of the texts; 0: greedy

    def passes(self, own: ChainSampling, *, full: bool) -> list[EvalMode]:
        modes = Pictures.passes(self, own.picture, full=full)
        texts, own = (self._text(own), own.text), replace(own, pictures_per_text=1)
        return [
            replace(mode, sampling=replace(own, text=text, picture=mode.sampling))
            for mode, text in zip(modes, texts, strict=False)
        ]

    def as_used(self, own: ChainSampling) -> ChainSampling:
        picture = Pictures.as_used(self, own.picture)
        return replace(own, text=self._text(own), picture=picture, pictures_per_text=1)

    def _text(self, own: ChainSampling) -> Sampling:
        return replace(own.text, temperature=self.temperature)


def _as_at_first(choose: Choose, steps: int, iteration: int, seed: int) -> Sequence[int]:
    return choose(steps, 0, seed)
