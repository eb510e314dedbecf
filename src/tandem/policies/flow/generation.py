"""Prompts into pictures, a few rows at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from tandem.policies.flow.embeddings import PromptEmbeddingCache
from tandem.policies.flow.model import FlowModel
from tandem.policies.flow.sampling import (
    SamplerOutput,
    SamplingPlan,
    denoise,
    even_parts,
    start_noise,
)
from tandem.policies.flow.solvers import solve
from tandem.types import Prompt, concat


@torch.no_grad()
def paint(
    model: FlowModel,
    library: PromptEmbeddingCache,
    asked: Sequence[Prompt],
    keys: Tensor,
    starts: Tensor,
    course: SamplingPlan,
) -> tuple[SamplerOutput, Tensor]:
    """Latents and how they came to be, and uint8 [B, H, W, 3]. keys, starts: [B], of the noise of
    the steps, and of what they start from."""
    finished, pictures = [], []
    sampling, adapter = course.sampling, model.adapter
    shape = adapter.canvas(sampling.resolution).latent_shape
    for part in even_parts(len(asked), sampling.max_rows):
        some = [asked[i] for i in part.tolist()]
        conditioning = library.rows(some, keys.device, guided=sampling.guidance_scale > 1)
        start = start_noise(starts[part.to(keys.device)], shape)
        if sampling.solver is None:
            one = denoise(model.field, start, keys[part.to(keys.device)], conditioning, course)
        else:
            velocity = partial(
                model.field, conditioning=conditioning, scale=sampling.guidance_scale
            )
            x0 = solve(velocity, start, sampling.solver, sampling.steps)
            one = SamplerOutput(x0=x0, trajectory=None, logp=None)
        finished.append(one)
        pictures.append(adapter.decode(one.x0))
    return concat(finished), torch.cat(pictures)
