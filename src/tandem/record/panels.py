"""Panels of plots, and the names that their metrics are recorded by."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

Lines = Sequence[Mapping]


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot of the grid, and the names under which its metrics may be recorded."""

    title: str
    names: Mapping[str, str]  # of the metric -> of its curve
    share: bool = False  # between 0 and 1
    floor: float | None = None  # lower limit of the y-axis; None: the lowest value
    painted: bool | None = None  # True: only for pictures; False: only for texts; None: for both


PART = re.compile(r"reward/([^/]+)/mean")
PAINTED = "eval/diversity"  # a metric that only pictures have
PANELS = (
    Panel("training reward", {"reward/mean": ""}),
    Panel(
        "held-out accuracy",
        {"eval/accuracy_sampled": "as trained", "eval/accuracy": "ODE"},
        share=True,
        painted=True,
    ),
    Panel(
        "held-out reward",
        {"eval/reward_sampled": "as trained", "eval/reward": "ODE"},
        painted=True,
    ),
    Panel(
        "std over samples of a prompt",
        {
            "response/diversity": "training",
            "eval/diversity_sampled": "held out, as trained",
            "eval/diversity": "held out, ODE",
        },
        floor=0.0,
    ),
    # Drift of pictures under the ODE: what a rising reward may cost.
    Panel(
        "RMS distance to the first pictures",
        {"eval/distance_to_start": ""},
        floor=0.0,
        painted=True,
    ),
    Panel("share of dark pixels", {"eval/dark": ""}, share=True, painted=True),
    Panel("entropy of colours, nats", {"eval/colour_entropy": ""}, floor=0.0, painted=True),
    Panel("share of pixels at an edge", {"eval/edge_density": ""}, floor=0.0, painted=True),
    Panel(
        "held-out accuracy",
        {
            "eval/greedy_accuracy": "greedy",
            "eval/accuracy_t0.3": "T = 0.3",
            "eval/accuracy": "T = 1",
        },
        share=True,
        painted=False,
    ),
    Panel("entropy, nats per step", {"actor/entropy": ""}),
    Panel(
        "KL, nats per step",
        {"actor/ref_kl": "to the reference", "actor/approx_kl_k3": "to the sampler"},
    ),
    Panel("share of steps clipped", {"actor/clip_frac": ""}),
    Panel(
        "steps per answer",
        {"response/length_mean": "training", "eval/length": "held out"},
        painted=False,
    ),
    Panel(
        "distance to the first answers",
        {"eval/distance_to_start": ""},
        share=True,
        painted=False,
    ),
    Panel("share of repeated 4-grams", {"eval/repetition": ""}, share=True),
    Panel("share of letters in another script", {"eval/other_script": ""}, share=True),
    Panel("share of template markers", {"eval/format_share": ""}, share=True),
    Panel("share of groups that tie", {"reward/frac_zero_std": ""}, share=True),
    Panel("gradient norm before clipping", {"optim/grad_norm": ""}),
)


def panels_of(lines: Lines) -> list[Panel]:
    """The panels with data, for the kind of samples in the lines."""
    known = {name for line in lines for name, value in line.items() if value is not None}
    kinds = (None, PAINTED in known)
    panels = [*PANELS[:1], *panels_of_parts(known), *PANELS[1:]]
    return [panel for panel in panels if known & {*panel.names} and panel.painted in kinds]


def panels_of_parts(known: Collection[str]) -> list[Panel]:
    """A panel for each of several rewards, also of weight 0; none for a single reward."""
    parts = sorted(found[1] for name in known if (found := PART.fullmatch(name)))
    names = ("reward/{}/mean", "eval/reward_{}_sampled", "eval/reward_{}")
    labels = ("training", "held out, as trained", "held out")
    if len(parts) < 2:
        return []
    curves = {part: [name.format(part) for name in names] for part in parts}
    return [
        Panel(f"reward {part}", dict(zip(own, labels, strict=True))) for part, own in curves.items()
    ]
