"""The memory estimate of a language policy, part by part, before any weight is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from tandem.policies.memory.fsdp import pieces_of
from tandem.policies.memory.meta_model import MetaModel, Pass

if TYPE_CHECKING:
    from tandem.policies.language.policy import LanguagePolicy
    from tandem.policies.memory.meta_flow import MetaFlow
    from tandem.policies.request import Request

Phase = Literal["always", "encoding", "sampling", "update"]
DRAWS = 4  # times the logits: those themselves, log-probabilities, probabilities, noise
FLOAT32 = 4  # bytes
ADAPTERS = "set model.lora={r: 32, alpha: 64}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What some bytes are for."""

    name: str
    size: float  # bytes
    says: str  # how they come about
    lower: str  # the flag that makes them fewer
    phase: Phase = "always"
    shared: bool = False  # a strategy that shards gives every rank a share of them
    lower_in_update: str = ""  # what makes them fewer there, and does not while sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one device is asked to do."""

    samples: int  # rows of an iteration
    per_update: int  # rows of an update
    max_tokens: int | None  # of a micro-batch; None: no limit
    rows: int | None  # of a micro-batch; None: no limit
    narrow: bool  # autocast computes in bfloat16
    state: Callable[[torch.dtype], float]  # bytes that an optimiser remembers of a weight
    shards: bool = False  # each of several ranks has a part of every weight


def footprint(policy: LanguagePolicy, request: Request, work: Workload) -> list[Part]:
    """Every part that counts. A configuration is read, and no weight."""
    outline = MetaModel(policy, request)
    return [
        *of_weights(outline),
        *of_older_weights(outline),
        *of_learning(outline, work),
        *(of_gathering(outline) if work.shards else ()),
        *of_sampling(outline, work),
        *of_update(outline, work),
    ]


def of_weights(outline: MetaModel | MetaFlow) -> list[Part]:
    """What the weights take, and adapters if there are any."""
    size, says = size_of([*outline.base, *outline.model.buffers()]), counted(outline.base)
    weights = Part(
        name="weights",
        size=size,
        says=says,
        lower=narrower(outline),
        shared=True,
        lower_in_update="or trainer=fsdp2 over more devices",
    )
    parts = [weights]
    if adapters := outline.adapters:
        own = size_of(adapters), counted(adapters), "lower model.lora.r"
        parts.append(_held("adapters", *own))
    elif outline.has_reference:
        parts.append(_held("reference", size, "a frozen copy", f"{ADAPTERS}: its base is one"))
    if outline.critic is not None:
        own = list(outline.critic.parameters())
        parts.append(_held("critic", size_of(own), counted(own), "set model.critic=head"))
    return [*parts, *of_teachers(outline)]


def of_teachers(outline: MetaModel | MetaFlow) -> list[Part]:
    """Every device has them whole. One that is the policy itself is a copy of what is trained, and
    beside a narrow one its average in float32."""
    parts, own = [], [p for network in outline.teachers for p in network.parameters()]
    lower = "set algorithm.teachers.dtype=bfloat16, or choose a smaller one"
    if own:
        parts.append(Part(name="teachers", size=size_of(own), says=counted(own), lower=lower))
    teachers, trained = outline.request.teachers, outline.trained
    if teachers is not None and teachers.teaches_itself:
        narrow = [p for p in trained if p.dtype != torch.float32]
        size = size_of(trained) + FLOAT32 * sum(p.numel() for p in narrow)
        says = "a copy of what is trained, which follows it in float32"
        parts.append(Part(name="itself", size=size, says=says, lower=ADAPTERS))
    return parts


def of_older_weights(outline: MetaModel | MetaFlow) -> list[Part]:
    """What samples of a run that lags come from."""
    sampling = outline.sampling
    own = sampling.engine is None or sampling.engine.shares_weights
    if not sampling.staleness or not own:
        return []
    size, count = size_of(outline.trained), sampling.staleness + 1
    says = f"what is trained, as each of the last {count} iterations began with it"
    return [_held("lagged", count * size, says, "lower rollout.staleness")]


def narrower(outline: MetaModel | MetaFlow) -> str:
    """Which option would make the weights smaller."""
    if outline.numerics.dtype == "bfloat16":
        return "choose a smaller one: model=..."
    return "set model.dtype=bfloat16 with model.lora, or choose a smaller one: model=..."


def of_gathering(outline: MetaModel | MetaFlow) -> list[Part]:
    """Whole weights beside a rank's part of them."""
    pieces = pieces_of(outline.networks)
    reference = size_of(outline.base) if outline.has_reference else 0
    return [
        Part(
            name="gathered",
            size=pieces.whole + reference + pieces.arriving,
            says="the whole network beside its part" + (", and the reference" if reference else ""),
            lower=narrower(outline),
            phase="sampling",
        ),
        Part(
            name="gathering",
            size=pieces.in_an_update,
            says="blocks that come and go, and what is in none, with its gradients",
            lower=narrower(outline),
            phase="update",
        ),
    ]


def of_learning(outline: MetaModel | MetaFlow, work: Workload) -> list[Part]:
    """What is there for every trained weight."""
    trained = outline.trained
    state = sum(p.numel() * work.state(p.dtype) for p in trained)
    full = outline.lora is None
    each = state / max(sum(p.numel() for p in trained), 1)
    less = f"set optimizer=adamw_8bit{', or ' + ADAPTERS if full else ''}"
    return [
        _held("optimizer", state, f"{each:.3g} bytes for each trained weight", less),
        Part(
            name="gradients",
            size=size_of(trained),
            says=counted(trained),
            lower=ADAPTERS if full else "lower model.lora.r",
            phase="update",
            shared=True,
        ),
    ]


def of_update(outline: MetaModel, work: Workload) -> list[Part]:
    """A micro-batch, forward and backward."""
    again = outline.numerics.gradient_checkpointing
    lower = "lower max_tokens_per_microbatch" if work.rows is None else "lower micro_batch_size"
    casts = of_casts(outline)
    if work.narrow:  # what autocast computes in, as it has no meta device
        outline.narrow()
    forward = pass_of(outline, work)
    part = Part(
        name="activations",
        size=outline.peak_of(forward),
        says=f"{forward.rows} x {forward.width} tokens forward and backward"
        + (", recomputed" if again else ""),
        lower=lower if again else "set model.gradient_checkpointing=true",
        phase="update",
    )
    return [part, casts] if work.narrow else [part]


def of_casts(outline: MetaModel | MetaFlow) -> Part:
    """A pass keeps what it computed with until its backward has, or has computed it again."""
    again = outline.numerics.gradient_checkpointing
    pieces = pieces_of(outline.networks, of=outline.is_cast)
    return Part(
        name="casts",
        size=(pieces.block + pieces.outside if again else pieces.whole) / 2,
        says="bfloat16 copies of the float32 weights of a pass" + (", recomputed" if again else ""),
        lower="set model.dtype=bfloat16 with model.lora"
        if again
        else "set model.gradient_checkpointing=true",
        phase="update",
    )


def pass_of(outline: MetaModel, work: Workload) -> Pass:
    """The largest micro-batch: rows of the longest prompt and answer there can be."""
    numerics, asked = outline.numerics, outline.policy.passes_of(outline.request)
    longest = outline.longest - asked.unread
    most = work.per_update if work.rows is None else min(work.rows, work.per_update)
    fit = most if work.max_tokens is None else max(work.max_tokens // (longest * asked.passes), 1)
    rows, width = min(most, fit), longest
    if asked.scored is not None:
        steps = rows * asked.scored
        return Pass(rows=rows * asked.passes, width=width, steps=steps, masked=False)
    packs = numerics.packing is not False
    if packs and work.max_tokens is not None and most > fit:  # shorter rows fill what is left
        width = max(work.max_tokens // rows, longest)
    steps = rows * width * outline.sampling.max_new_tokens // (longest + 1)
    if packs and numerics.flash:
        rows, width = 1, rows * width
    return Pass(rows=rows, width=width, steps=steps, masked=packs and not numerics.flash)


def of_sampling(outline: MetaModel, work: Workload) -> list[Part]:
    """Nothing where a server samples, in a memory of its own."""
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
            says=f"{rows} x {vocabulary} logits, and what is made of them",
            lower="lower rollout.max_rows",
            phase="sampling",
        ),
    ]


def of_unmasking(outline: MetaModel, rows: int, vocabulary: int) -> list[Part]:
    """A pass over whole answers, which remembers nothing, and draws at all hidden positions."""
    tokens, places = outline.longest, rows * outline.sampling.max_new_tokens
    logits = min(places * vocabulary, max(outline.policy.memory.logits, vocabulary))
    lower = "lower rollout.max_rows"
    return [
        Part(
            name="pass",
            size=outline.pass_of(rows, tokens),
            says=f"{rows} x {tokens} tokens forward",
            lower=lower,
            phase="sampling",
        ),
        Part(
            name="draws",
            size=logits * 4 * DRAWS,
            says=f"{logits // vocabulary} x {vocabulary} logits, and what is made of them",
            lower=lower,
            phase="sampling",
        ),
    ]


def size_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of tensors. Of any shape [...]."""
    return sum(x.numel() * x.element_size() for x in tensors)


def counted(tensors: list[Tensor]) -> str:
    """How many numbers of which dtypes. Of any shape [...]."""
    numbers = {str(x.dtype).removeprefix("torch."): 0 for x in tensors}
    for x in tensors:
        numbers[str(x.dtype).removeprefix("torch.")] += x.numel()
    return " and ".join(f"{count:,} in {dtype}" for dtype, count in numbers.items())


def _held(name: str, size: float, says: str, lower: str) -> Part:
    return Part(name=name, size=size, says=says, lower=lower, shared=True)
