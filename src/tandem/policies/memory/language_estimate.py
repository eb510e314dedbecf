"""The memory estimate of a language policy, computed without loading weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.policies.memory.estimate import (
    Part,
    Workload,
    of_casts,
    of_gathering,
    of_learning,
    of_older_weights,
    of_weights,
    size_of,
)
from tandem.policies.memory.language_outline import LanguageOutline, Pass

if TYPE_CHECKING:
    from tandem.policies.language.token_policy import TokenPolicy
    from tandem.policies.request import Request

DRAWS = 4  # tensors of the size of the logits: logits, log-probabilities, probabilities, noise


def footprint(policy: TokenPolicy, request: Request, work: Workload) -> list[Part]:
    """All parts of the estimate, from a configuration alone."""
    return of_outline(LanguageOutline(policy, request), work)


def of_outline(outline: LanguageOutline, work: Workload) -> list[Part]:
    """All parts of the estimate of an outline."""
    return [
        *of_weights(outline, work),
        *of_older_weights(outline),
        *of_first_weights(outline),
        *of_learning(outline, work),
        *(of_gathering(outline, work) if work.shards else ()),
        *of_sampling(outline, work),
        *of_update(outline, work),
    ]


def of_first_weights(outline: LanguageOutline) -> list[Part]:
    """The weights at the start of an iteration, which score its rows again in later epochs."""
    copies = outline.policy.passes_of(outline.request).copies
    if not copies:
        return []
    says = "the trained weights at the start of the iteration, and the live ones in their place"
    size = copies * size_of(outline.trained_parameters)
    return [Part(name="start", size=size, says=says, lower="set epochs=1", shared=True)]


def of_update(outline: LanguageOutline, work: Workload) -> list[Part]:
    """A micro-batch, forward and backward."""
    again = outline.numerics.gradient_checkpointing
    lower = "lower max_tokens_per_microbatch" if work.rows is None else "lower micro_batch_size"
    casts = of_casts(outline)
    if work.narrow:  # as under autocast, which does not support the meta device
        outline.narrow()
    forward = pass_of(outline, work)
    part = Part(
        name="activations",
        size=outline.peak_of(forward),
        says=f"forward and backward of {forward.rows} x {forward.width} tokens"
        + (", recomputed" if again else ""),
        lower=lower if again else "set model.gradient_checkpointing=true",
        phase="update",
    )
    return [part, casts] if work.narrow else [part]


def pass_of(outline: LanguageOutline, work: Workload) -> Pass:
    """The largest micro-batch: rows with the longest possible prompt and answer."""
    numerics, asked = outline.numerics, outline.policy.passes_of(outline.request)
    longest = outline.longest - asked.unread
    most = work.per_update if work.rows is None else min(work.rows, work.per_update)
    fit = most if work.max_tokens is None else max(work.max_tokens // (longest * asked.passes), 1)
    rows, width = min(most, fit), longest
    if asked.scored is not None:
        steps = rows * asked.scored
        return Pass(rows=rows * asked.passes, width=width, steps=steps, masked=False)
    packs = numerics.packing is not False
    if packs and work.max_tokens is not None and most > fit:  # shorter rows fill the rest
        width = max(work.max_tokens // rows, longest)
    new = min(outline.new_tokens, longest)
    steps = rows * width * new // (longest + 1)
    if packs and numerics.flash:
        rows, width = 1, rows * width
    return Pass(rows=rows, width=width, steps=steps, masked=packs and not numerics.flash)


def of_sampling(outline: LanguageOutline, work: Workload) -> list[Part]:
    """Cache and draws of the sampler; nothing if a server samples in its own memory."""
    sampling = outline.sampling
    if sampling.engine is not None and not sampling.engine.shares_weights:
        return []
    rows, tokens = min(sampling.max_rows, work.samples), outline.longest
    vocabulary = outline.model.get_output_embeddings().weight.shape[0]
    if not sampling.in_time:
        return of_unmasking(outline, rows, vocabulary)
    return [
        Part(
            name="cache",
            size=rows * outline.cache_of(tokens),
            says=f"keys and values of {rows} x {tokens} tokens",
            lower="lower rollout.max_rows",
            phase="sampling",
        ),
        Part(
            name="draws",
            size=rows * vocabulary * 4 * DRAWS,
            says=f"{rows} x {vocabulary} logits and the tensors computed from them",
            lower="lower rollout.max_rows",
            phase="sampling",
        ),
    ]


def of_unmasking(outline: LanguageOutline, rows: int, vocabulary: int) -> list[Part]:
    """A pass over whole answers, without a cache, and draws at all masked positions."""
    tokens, places = outline.longest, rows * outline.sampling.max_new_tokens
    logits = min(places * vocabulary, max(outline.policy.memory.logits, vocabulary))
    lower = "lower rollout.max_rows"
    return [
        Part(
            name="pass",
            size=outline.pass_of(rows, tokens),
            says=f"forward of {rows} x {tokens} tokens",
            lower=lower,
            phase="sampling",
        ),
        Part(
            name="draws",
            size=logits * 4 * DRAWS,
            says=f"{logits // vocabulary} x {vocabulary} logits and the tensors computed from them",
            lower=lower,
            phase="sampling",
        ),
    ]
