"""Per-prompt counts and the evaluation metrics computed from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tandem.data.records import groups_to_report
from tandem.evaluation.image_collapse import MEASURES
from tandem.evaluation.settings import EvalMode, Evaluation
from tandem.evaluation.text_drift import TEXT_MEASURES
from tandem.rewards.images import shown_pixels, spread
from tandem.types import Prompt, Rollout, Scores

# Summed over the samples of a prompt; "known" counts those whose reward part is not missing.
COUNTED = ("correct", "known", "length", "truncated", "reward", "scored")


def pass_at(tries: int, correct: int, k: int) -> float:
    """Probability that k of the `tries` samples, drawn without replacement, hold a correct one.

    The unbiased estimate 1 - C(n-c, k) / C(n, k) of arXiv:2107.03374; NaN for fewer than k tries.
    """
    return 1 - math.comb(tries - correct, k) / math.comb(tries, k) if tries >= k else math.nan


@dataclass(frozen=True, slots=True)
class PromptMetrics:
    """Counts of each prompt that add up over ranks."""

    parts: tuple[str, ...]  # names of the rewards

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in their order."""
        of_parts = (f"{what} {part}" for part in self.parts for what in ("known", "total"))
        return (*COUNTED, *of_parts, *MEASURES, *TEXT_MEASURES, "spread")

    def by_name(self, counts: Tensor) -> dict[str, Tensor]:
        """[prompts, len(names)] -> [prompts] of each"""
        return dict(zip(self.names, counts.unbind(-1), strict=True))

    def count(
        self, rollout: Rollout, scores: Scores, settings: Evaluation, one: EvalMode
    ) -> Tensor:
        """Sums over the samples of each prompt: [prompts, len(names)]."""
        decisive = scores.part(settings.metric, rollout.prompts).cpu()
        scored = scores.scored.cpu()
        each = {
            "correct": settings.right(decisive),
            "known": decisive.isfinite(),
            "length": rollout.own_length.cpu(),
            "truncated": rollout.truncated.cpu(),
            "reward": torch.where(scored, scores.total.cpu(), 0),
            "scored": scored,
        }
        for name, said in scores.all_parts.items():
            known = said.cpu().isfinite()
            each |= {f"known {name}": known, f"total {name}": torch.where(known, said.cpu(), 0)}
        each |= _measure_looks(rollout, one) | _measure_texts(rollout, settings, one)
        rows = torch.stack([each[name].double() for name in self.names[:-1]], dim=-1)
        sums = rows.view(-1, one.samples, len(each)).sum(1)
        return torch.cat([sums, _measure_spreads(rollout, one)[:, None]], 1)


def _measure_looks(rollout: Rollout, one: EvalMode) -> dict[str, Tensor]:
    """Measures of each picture, if requested: [B] of each; for a film the mean over its frames."""
    asked = [name for name in MEASURES if name in one.measures]
    looks = dict.fromkeys(MEASURES, torch.zeros(len(rollout.outputs), dtype=torch.float64))
    if asked:
        shown = map(shown_pixels, rollout.outputs)  # one by one: films are large
        found = [[MEASURES[name](picture).mean() for name in asked] for picture in shown]
        looks |= dict(zip(asked, torch.tensor(found, dtype=torch.float64).unbind(1), strict=True))
    return looks


def _measure_texts(rollout: Rollout, settings: Evaluation, one: EvalMode) -> dict[str, Tensor]:
    """Measures of each answer, if requested: [B] of each."""
    found = [dict.fromkeys(TEXT_MEASURES, 0.0)] * len(rollout.outputs)
    if any(name in one.measures for name in TEXT_MEASURES):
        pairs = zip(rollout.outputs, rollout.prompts, strict=True)
        found = [settings.drift.measure(output, prompt_text(prompt)) for output, prompt in pairs]
    return {
        name: torch.tensor([row[name] for row in found], dtype=torch.float64)
        for name in TEXT_MEASURES
    }


def prompt_text(prompt: Prompt) -> str:
    """The text of a prompt, or all messages of a chat."""
    turns = prompt.messages or ()
    return "\n".join(turn["content"] for turn in turns) if prompt.text is None else prompt.text


def _measure_spreads(rollout: Rollout, one: EvalMode) -> Tensor:
    """The diversity of the samples of each prompt, if requested: [prompts]."""
    starts = range(0, len(rollout.outputs), one.samples)
    if "diversity" not in one.measures:
        return torch.zeros(len(starts), dtype=torch.float64)
    return torch.stack([spread(rollout.outputs[i : i + one.samples]) for i in starts])


def compute_metrics(
    sums: Mapping[str, Tensor], parts: Sequence[str], prompts: Sequence[Prompt], one: EvalMode
) -> dict[str, float]:
    """Metrics eval/..., named by the pass, from sums: [prompts] of each."""
    answers = one.samples * len(prompts)
    of_prompts = _average(sums)
    whole = {
        "accuracy": _average_known(of_prompts["accuracy"]),
        "reward": (sums["reward"].sum() / sums["scored"].sum()).item(),
        "length": sums["length"].sum().item() / answers,
        "truncated": sums["truncated"].sum().item() / answers,
        "missing": answers - sums["known"].sum().item(),
        "diversity": _average_known(sums["spread"]),
        **{name: sums[name].sum().item() / answers for name in (*MEASURES, *TEXT_MEASURES)},
    }
    metrics = {_name(one, measure): whole[measure] for measure in one.measures}
    for part in parts_told(parts, one):
        mean = sums[f"total {part}"].sum() / sums[f"known {part}"].sum()
        metrics[_name(one, f"reward_{part}")] = mean.item()
    for measure in one.by_source:
        metrics |= _average_by_source(_name(one, measure), of_prompts[measure], prompts)
    for k in one.tries:
        chance = _pass_at(sums["known"], sums["correct"], k)
        metrics[f"eval/pass@{k}"] = _average_known(chance)
        if k == max(one.tries):
            metrics |= _average_by_source(f"eval/pass@{k}", chance, prompts)
    return metrics


def measure_prompts(
    sums: Mapping[str, Tensor], parts: Sequence[str], one: EvalMode
) -> dict[str, list[float]]:
    """The measures of single prompts, by the name of their metric.

    `sums`: [prompts] of each name.
    """
    means = {name: mean for name, mean in _average(sums).items() if name in one.measures}
    for part in parts_told(parts, one):
        means[f"reward_{part}"] = sums[f"total {part}"] / sums[f"known {part}"]
    return {_name(one, name): mean.tolist() for name, mean in means.items()}


def parts_told(parts: Sequence[str], one: EvalMode) -> Sequence[str]:
    """The rewards that a mode reports separately; none if there is only one."""
    return parts if "reward" in one.measures and len(parts) > 1 else ()


def _average(sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """[prompts] of each, over its samples; NaN for a prompt that has no score."""
    return {
        "accuracy": sums["correct"] / sums["known"],
        "reward": sums["reward"] / sums["scored"],
    }


def _name(one: EvalMode, measure: str) -> str:
    return f"eval/{one.name.format(measure)}"


def _pass_at(known: Tensor, correct: Tensor, k: int) -> Tensor:
    """[prompts] -> [prompts]"""
    pairs = zip(known.int().tolist(), correct.int().tolist(), strict=True)
    return torch.tensor([pass_at(n, c, k) for n, c in pairs], dtype=torch.float64)


def _average_by_source(name: str, values: Tensor, prompts: Sequence[Prompt]) -> dict[str, float]:
    """Means per source, and of the groups of sources that the data report together."""
    places: dict[str, dict[int, None]] = {}  # each once: a prompt may name its own source
    for i, prompt in enumerate(prompts):
        places.setdefault(prompt.source, {})[i] = None
    for i, prompt in enumerate(prompts):
        for several in groups_to_report(prompt):
            places.setdefault(several, {})[i] = None
    return {
        f"{name}/{source}": _average_known(values[[*chosen]]) for source, chosen in places.items()
    }


def _average_known(values: Tensor) -> float:
    """The mean over prompts with a value; NaN if there is none."""
    return values[values.isfinite()].mean().item()
