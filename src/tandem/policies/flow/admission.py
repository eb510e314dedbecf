"""Admission of prompts and demonstrations: checks that a flow model can use them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from tandem.contracts import name_of, unwrap_partial
from tandem.dynamics.regression import Regression
from tandem.dynamics.schedules import find_fault
from tandem.policies.flow.adapter import (
    SAME_LEVELS,
    Adapter,
    Autoencoding,
    Decoding,
    Distilled,
    Scheduled,
)
from tandem.policies.flow.embeddings import PromptEmbeddingCache
from tandem.policies.flow.records import FlowSampling
from tandem.policies.flow.snapshots import OF_REFERENCE as FIELDS_OF_REFERENCE
from tandem.policies.flow.teachers import LoadedVelocityTeachers
from tandem.policies.request import Request
from tandem.types import Prompt

OF_REFERENCE = "algorithm.timestep_sampling.ref_guidance_scale"


def guidance_read(request: Request) -> Regression:
    """The guidance of regression as it is read: 1 for a reference where nothing reads one."""
    read = request.teachers is not None or not FIELDS_OF_REFERENCE.isdisjoint(request.needs)
    return request.timesteps if read else replace(request.timesteps, ref_guidance_scale=1.0)


def guidance_setting(
    own: FlowSampling, others: Sequence[FlowSampling], regression: Regression
) -> str | None:
    """The setting that turns on guidance, which needs a negative prompt; None: it is off."""
    scales = {
        "rollout.guidance_scale": own.guidance_scale,
        "algorithm.timestep_sampling.guidance_scale": regression.guidance_scale,
        OF_REFERENCE: regression.ref_guidance_scale,
        "evaluation.guidance_scale": max((x.guidance_scale for x in others), default=1.0),
    }
    return next((setting for setting, scale in scales.items() if scale > 1), None)


def check_guidance(
    adapter: Adapter,
    own: FlowSampling,
    others: Sequence[FlowSampling],
    regression: Regression,
    *,
    path: str | None,
    teachers: LoadedVelocityTeachers | None,
) -> None:
    """Raises ValueError if a guided model was distilled to work without guidance.

    Teachers are the reference, so `ref_guidance_scale` is theirs."""
    fields = {} if teachers is None else teachers.fields
    for source, field in fields.items() if regression.ref_guidance_scale > 1 else ():
        key = f"algorithm.teachers.folders.{source}"
        refuse_distilled(field.adapter, OF_REFERENCE, named=key)
    if fields:
        regression = replace(regression, ref_guidance_scale=1.0)
    setting = guidance_setting(own, others, regression)
    refuse_distilled(adapter, setting, named=f"model.path={path}")


def refuse_distilled(adapter: Adapter, setting: str | None, *, named: str) -> None:
    """`setting`: the one that guides this model, if any; `named`: the model, for the message."""
    if setting is not None and isinstance(adapter, Distilled) and adapter.distilled:
        raise ValueError(
            f"{setting} is above 1, but {named} was distilled to sample without "
            f"guidance (is_distilled); set {setting}=1"
        )


def refuse(prompt: Prompt, library: PromptEmbeddingCache, *, guided_by: str | None) -> str | None:
    """The reason to refuse a prompt; None: accepted."""
    if prompt.text is None:
        return "is a chat, but this model needs a text"
    beside = refuse_unwritten(prompt, library, guided_by=guided_by)
    return beside or library.adapter.refuse(prompt.plain_text)


def refuse_unwritten(
    prompt: Prompt, library: PromptEmbeddingCache, *, guided_by: str | None
) -> str | None:
    """The reason to refuse a prompt whatever its text, which a chain writes later; None: accepted.
    Guidance needs a negative prompt."""
    shows, looks = len(prompt.images), library.adapter.images
    if shows != looks:
        return f"has {shows} input images, but the model takes {looks}; list them as `images`"
    if (reason := refuse_unguided(prompt, library, guided_by=guided_by)) is not None:
        return reason
    if guided_by is not None:
        negative = library.negative_of(prompt)
        if (reason := library.adapter.refuse(negative.text)) is not None:
            return reason
    return refuse_size(prompt, library.adapter)


def refuse_unguided(
    prompt: Prompt, library: PromptEmbeddingCache, *, guided_by: str | None
) -> str | None:
    """The reason to refuse a prompt that guidance cannot use, known before weights are loaded."""
    if guided_by is None or library.negative_of(prompt) is not None:
        return None
    return (
        f"has no negative_prompt, which {guided_by} above 1 needs; set "
        f"model.negative_prompt (it may be empty), or {guided_by}=1"
    )


def refuse_all_unguided(
    prompts: Sequence[Prompt], library: PromptEmbeddingCache, *, guided_by: str | None
) -> str | None:
    """The reason of `refuse_unguided` if it refuses every prompt; None: it accepts some."""
    reasons = [refuse_unguided(prompt, library, guided_by=guided_by) for prompt in prompts]
    return reasons[0] if reasons and all(reasons) else None


def refuse_picture(prompt: Prompt, adapter: Adapter) -> str | None:
    """The reason to refuse a demonstration; None: accepted."""
    if prompt.media is None:
        return "has no picture; set data.pictures=true if rows name files"
    if prompt.size is None:
        wanted, whose = adapter.image_shape, "the model makes"
    else:
        wanted, whose = (*adapter.image_shape[:-3], *prompt.size, 3), "its row asks for"
    if prompt.media.shape == wanted:
        return None
    if len(prompt.media.shape) != len(wanted):
        one, many = ("picture", "videos") if len(wanted) == 4 else ("video", "pictures")
        return (
            f"has a {one}, but the model makes {many}; choose an algorithm that trains on its own "
            "samples, such as algorithm=flow_grpo"
        )
    has, wants = ("x".join(map(str, shape)) for shape in (prompt.media.shape, wanted))
    said = f"has a picture of {has}, but {whose} {wants}"
    if prompt.size is not None:
        return said
    height, width = adapter.image_shape[-3:-1]
    cut = height if height == width else f"[[{height},{width}]]"
    return f"{said}; set data.resize={cut}"


def refuse_size(prompt: Prompt, adapter: Adapter) -> str | None:
    """The reason to refuse the size of a row; None: the model supports it."""
    if prompt.size is None:
        named = [x for x in ("height", "width") if prompt.fields.get(x) is not None]
        return f"has only a {named[0]}, or one that is not a number" if named else None
    try:
        adapter.canvas(prompt.size)
    except ValueError as problem:
        return f"asks for a picture of {prompt.size[0]} x {prompt.size[1]}: {problem}"
    return None


def load_picture(prompt: Prompt, adapter: Adapter) -> Tensor:
    """The picture of a demonstration, uint8 [H, W, 3].

    Raises ValueError if the picture cannot be used, or its file has changed.
    """
    reason = refuse_picture(prompt, adapter)
    if reason is None:
        pixels = prompt.media.load()
        if pixels.shape == prompt.media.shape:
            return pixels
        reason = "has a picture whose file has changed since the start"
    raise ValueError(f"demonstration {prompt.id} of {prompt.source} {reason}")


def check_decoding(adapter: Adapter, decoding: Decoding) -> None:
    """Raise ValueError if a decoding is chosen for a model without a VAE."""
    if decoding != "batched" and not isinstance(adapter, Autoencoding):
        raise ValueError(
            f"model.decoding={decoding}: {type(adapter).__name__} has no VAE; leave it batched"
        )


def check_size(adapter: Adapter, wanted: int | None, *, path: str | None) -> None:
    """`wanted`: the dimensions of a latent according to the configuration.

    Raises ValueError if the model has another number.
    """
    size = math.prod(adapter.latent_shape)
    if wanted not in (None, size):
        raise ValueError(
            f"model.latent_size={wanted}, but a latent of model.path={path} has {size} dimensions; "
            f"set model.latent_size={size}"
        )


def check_schedule(adapter: Adapter, sampling: FlowSampling) -> None:
    """Raise ValueError unless the noise levels are one more than the steps, from 1 to 0, and for an
    unsupported size."""
    tokens = adapter.canvas(sampling.resolution, sampling.frames).tokens
    levels = sampling.schedule(sampling.steps, tokens)
    if (fault := find_fault(levels, sampling.steps)) is not None:
        name, steps = name_of(sampling.schedule), sampling.steps
        raise ValueError(f"dynamics/schedule={name} of {steps} steps returned {fault}")


def warn_of_schedule(
    adapter: Adapter, sampling: FlowSampling, *, path: str | None, by: str = "dynamics"
) -> None:
    """Warn if the folder's own scheduler has other noise levels, at which a distilled model samples
    badly. `by`: the key that chose the solver."""
    if path is None or not isinstance(adapter, Scheduled):
        return
    steps, tokens = sampling.steps, adapter.canvas(sampling.resolution).tokens
    if (own := adapter.own_levels(steps, tokens)) is None:
        return
    levels, flags = own
    chosen, accepted = sampling.levels(tokens), [levels]
    if sampling.solver is not None:
        accepted.append(adapter.even_levels(steps, tokens))
    if min((one - chosen).abs().max() for one in accepted) <= SAME_LEVELS:
        return
    where = "dynamics.schedule" if sampling.solver is None else f"{by}.solver"
    theirs, ours = (" ".join(f"{x:.3g}" for x in row[:4].tolist()) for row in (levels, chosen))
    warnings.warn(
        f"model.path={path}: its scheduler takes {steps} steps at noise levels {theirs} ..., "
        f"but {where} at {ours} ...; {advice(flags, sampling, by)}",
        stacklevel=2,
    )


def warn_of_evaluation(
    adapter: Adapter, own: FlowSampling, others: Sequence[FlowSampling], *, path: str | None
) -> None:
    """Call `warn_of_schedule` for the solvers of evaluation, which have their own levels."""
    for sampling in others:
        chosen = unwrap_partial(sampling.solver)
        if sampling.solver is not None and chosen != unwrap_partial(own.solver):
            warn_of_schedule(adapter, sampling, path=path, by="evaluation")


def advice(flags: str | None, sampling: FlowSampling, by: str) -> str:
    """The flags that reproduce a pipeline's schedule; `flags` None: no schedule does."""
    if flags is None:
        return "no dynamics/schedule reproduces the scheduler's levels"
    follow = "" if sampling.solver is None else f" {by}.solver.shift=null"
    return f"to sample like its pipeline, set {flags}{follow}"
