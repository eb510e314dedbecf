"""The memory estimate of a flow policy, computed without loading weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tandem.policies.flow.components import readers_of
from tandem.policies.flow.families.autoencoders import samples_at_once
from tandem.policies.flow.records import EMA, REFERENCE
from tandem.policies.flow.sampling import SamplingPlan, queried_steps
from tandem.policies.flow.velocity_model import cost_of_points
from tandem.policies.memory.estimate import (
    FLOAT32,
    Part,
    Workload,
    count_by_dtype,
    of_casts,
    of_gathering,
    of_learning,
    of_older_weights,
    of_weights,
    size_of,
)
from tandem.policies.memory.flow_outline import FlowOutline
from tandem.types import OF_SNAPSHOTS

if TYPE_CHECKING:
    from torch import Tensor

    from tandem.policies.flow.policy import FlowPolicy
    from tandem.policies.request import Request


def footprint(policy: FlowPolicy, request: Request, work: Workload) -> list[Part]:
    """All parts of the estimate, from configurations alone."""
    return of_outline(FlowOutline(policy, request), work)


def of_outline(outline: FlowOutline, work: Workload) -> list[Part]:
    """All parts of the estimate of an outline."""
    return [
        *of_weights(outline, work),
        *of_learners(outline),
        *of_other_networks(outline),
        *of_snapshots(outline),
        *of_older_weights(outline),
        *of_learning(outline, work),
        *(of_gathering(outline, work) if work.shards else ()),
        of_pictures(outline, work),
        *of_sampling(outline, work),
        *of_update(outline, work),
    ]


def of_learners(outline: FlowOutline) -> list[Part]:
    """Copies of the transformer that are trained beside it, whole ones even with LoRA."""
    parts = []
    for name, network in outline.learners.items():
        own = list(network.parameters())
        lower, says = "set model.dtype=bfloat16 with model.lora", count_by_dtype(own)
        parts.append(
            Part(name=name, size=outline.size_of(own), says=says, lower=lower, shared=True)
        )
    return parts


def of_other_networks(outline: FlowOutline) -> list[Part]:
    """The VAE, which stays loaded, and frozen text encoders, which are loaded to encode prompts, or
    stay beside a trained one."""
    vae, encoders = outline.other_networks("VAE"), outline.other_networks("encoders")
    sizes = [size_of(own.parameters()) for own in encoders] or [0]
    apart, away = (name in outline.request.offload for name in ("encoders", "vae"))
    narrow = "leave model.adapter.encoder_dtype=bfloat16"
    return [
        Part(
            name="VAE",
            size=sum(size_of(own.parameters()) for own in vae),
            says=count_by_dtype([x for own in vae for x in own.parameters()]),
            lower="no flag reduces it" if away else "set trainer.offload=[vae]",
            phase="sampling" if away else "always",
        ),
        Part(
            name="encoders",
            size=max(sizes) if apart else sum(sizes),
            says=count_by_dtype([x for own in encoders for x in own.parameters()])
            + (", one at a time" if apart else ""),
            lower=narrow if apart else f"{narrow}, or set trainer.offload=[encoders]",
            phase="always" if readers_of(outline.model) else "encoding",
        ),
    ]


def of_snapshots(outline: FlowOutline) -> list[Part]:
    """float32 copies of the trained weights, with several of a delayed snapshot, and the trained
    weights while one of them samples."""
    followed, late = [*outline.kept.following], outline.kept.delays
    for name, kept in outline.kept.beside.items():
        followed += [f"{snapshot} of {name}" for snapshot in kept]
    copies = sum(1 + (1 + late[name] if name in late else 0) for name in followed)
    numbers = sum(p.numel() for p in replaced_weights(outline))
    says = f"{copies} float32 copies of the trained weights: {', '.join(followed)}"
    lower = "choose an algorithm without algorithm.ema, or set model.lora={r: 32, alpha: 64}"
    size = copies * numbers * FLOAT32
    parts = [Part(name="snapshots", size=size, says=says, lower=lower, shared=True)]
    if sampling := {outline.sampling.weights, EMA} & outline.kept.following.keys():
        parts.append(
            Part(
                name="aside",
                size=size_of(replaced_weights(outline)),
                says=f"a copy of the trained weights while {' or '.join(sorted(sampling))} samples",
                lower=lower,
                phase="sampling",
                shared=True,
            )
        )
    return parts


def replaced_weights(outline: FlowOutline) -> list[Tensor]:
    """The trained weights that a snapshot takes the place of; of any shape [...]."""
    learners = {id(p) for own in outline.learners.values() for p in own.parameters()}
    return [p for p in outline.trained_parameters if id(p) not in learners]


def of_pictures(outline: FlowOutline, work: Workload) -> Part:
    """Latents and states of an iteration's samples until training; pixels are in host memory."""
    sampling, plan = outline.sampling, first_plan(outline)
    steps = len(plan.kept)
    states = 0 if not steps else min(2 * steps, sampling.steps + 1)
    means = steps if plan.keep_mean else 0
    pixels = work.samples * math.prod(outline.adapter.image_shape)
    each = outline.latent * (FLOAT32 + states * sampling.dtype.itemsize + means * FLOAT32)
    return Part(
        name="pictures",
        size=work.samples * each,
        says=f"{work.samples} latents of {outline.latent:,} numbers with {states} states "
        + (f"and {means} float32 means each; " if means else "each; ")
        + f"their pixels take {pixels / 2**30:.3f} GiB of host memory",
        lower="set rollout.storage=bfloat16, or lower prompts_per_step",
    )


def first_plan(outline: FlowOutline) -> SamplingPlan:
    """The denoising steps of the first iteration."""
    request, tokens = outline.request, outline.adapter.tokens[0]
    return SamplingPlan.of(request.sampling, request, tokens=tokens, iteration=0)


def of_sampling(outline: FlowOutline, work: Workload) -> list[Part]:
    """A step of the sampler or the decoding, whichever needs more."""
    sampling = outline.sampling
    rows = min(sampling.max_rows, work.samples)
    pixels = math.prod(outline.adapter.image_shape[:-1])
    painted = min(rows, samples_at_once(pixels, outline.policy.decoding))
    peaks = {
        f"a step of {rows} pictures": outline.peak_of_denoising(
            rows, scale=sampling.guidance_scale
        ),
        f"{painted} pictures per pass of the VAE": outline.peak_of_decoding(painted),
    }
    says = max(peaks, key=peaks.__getitem__)
    decoded = says.endswith("VAE") and outline.policy.decoding != "tiled"
    lower = "set model.decoding=tiled" if decoded else "lower rollout.max_rows"
    return [Part(name="denoising", size=peaks[says], says=says, lower=lower, phase="sampling")]


def of_update(outline: FlowOutline, work: Workload) -> list[Part]:
    """One forward and backward pass; further ones of a micro-batch follow one by one."""
    again = outline.numerics.gradient_checkpointing
    scale, points = points_of(outline, work)
    casts, aside = of_casts(outline), size_of(replaced_weights(outline)) / work.ranks
    if work.narrow:
        outline.narrow()
    size = outline.peak_of_training(points, scale=scale)
    says = f"forward and backward of {points} points" + (", recomputed" if again else "")
    if compared_snapshots(outline):  # in passes before this one
        before = aside + outline.peak_of_denoising(points, scale=scale)
        if before > size:
            size, says = before, f"{points} points of a snapshot beside a copy of trained weights"
    part = Part(
        name="activations",
        size=size,
        says=says,
        lower="lower model.row_budget" if again else "set model.gradient_checkpointing=true",
        phase="update",
    )
    return [part, casts] if work.narrow else [part]


def compared_snapshots(outline: FlowOutline) -> set[str]:
    """The snapshots that are evaluated at the points of an update."""
    needs = outline.request.needs
    read = {OF_SNAPSHOTS[name] for name in needs & OF_SNAPSHOTS.keys()}
    return (read | {REFERENCE}) & outline.kept.following.keys()


def points_of(outline: FlowOutline, work: Workload) -> tuple[float, int]:
    """The guidance scale of a training pass, and its number of points."""
    policy, request = outline.policy, outline.request
    of_path = len(first_plan(outline).kept)
    if request.query is not None and not request.every_state:
        of_path = 1
    of_row = of_path or request.timesteps.count
    judged = not of_path or queried_steps(request, request.sampling.steps)
    scale = (request.timesteps if judged else request.sampling).guidance_scale
    cost = cost_of_points(request, sum(outline.adapter.tokens), int(scale > 1), of_row)
    most = work.per_update if work.rows is None else min(work.rows, work.per_update)
    fit = most if work.max_tokens is None else max(work.max_tokens // cost, 1)
    points = (rows * of_row for rows in range(1, min(most, fit) + 1))
    # As `split_evenly` cuts them: fewer rows may make a larger pass.
    return scale, max(math.ceil(n / math.ceil(n / policy.row_budget)) for n in points)
