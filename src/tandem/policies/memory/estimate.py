"""The parts of a memory estimate that all policies share, computed without loading weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from tandem.policies.memory.fsdp import pieces_of
from tandem.policies.memory.outline import Outline

Phase = Literal["always", "encoding", "sampling", "reference", "update", "step"]
FLOAT32 = 4  # bytes
ADAPTERS = "set model.lora={r: 32, alpha: 64}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One entry of a memory estimate."""

    name: str
    size: float  # bytes
    says: str  # an explanation of the size
    lower: str  # the flag that reduces it
    phase: Phase = "always"
    shared: bool = False  # whether sharding splits it over ranks
    lower_in_update: str = ""  # a flag that reduces it in an update but not while sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The work of one device."""

    samples: int  # rows of an iteration
    per_update: int  # rows of an update
    max_tokens: int | None  # of a micro-batch; None: no limit
    rows: int | None  # of a micro-batch; None: no limit
    narrow: bool  # autocast computes in bfloat16
    state: Callable[[torch.dtype], float]  # bytes of optimiser state per weight
    prompts: int = 1  # of an iteration
    ranks: int = 1  # that weights are sharded over

    @property
    def shards(self) -> bool:
        """Whether weights are sharded over several ranks."""
        return self.ranks > 1


def of_weights(outline: Outline, work: Workload) -> list[Part]:
    """Weights, LoRA adapters, reference, critic and teachers."""
    size = outline.size_of([*outline.base, *outline.model.buffers()])
    says = count_by_dtype(outline.base)
    if outline.packed_bytes:
        kept = sum(outline.packed_bytes.get(p, 0) for p in outline.base)
        says += f", quantised to {kept / 2**30:.3f} GiB except for weights outside the blocks"
    weights = Part(
        name="weights",
        size=size,
        says=says,
        lower=narrower(outline, work),
        shared=True,
        lower_in_update="or trainer=fsdp2 over more devices",
    )
    parts = [weights]
    if adapters := outline.adapters:
        own = size_of(adapters), count_by_dtype(adapters), "lower model.lora.r"
        parts.append(_shared_part("adapters", *own))
    elif outline.has_reference:
        parts.append(
            of_reference(outline, outline.size_of(outline.reference_weights(shards=work.shards)))
        )
    if outline.critic is not None:
        own = list(outline.critic.parameters())
        parts.append(
            _shared_part("critic", size_of(own), count_by_dtype(own), "set model.critic=head")
        )
    return [*parts, *of_unpacking(outline, work), *of_teachers(outline)]


def of_reference(outline: Outline, size: int) -> Part:
    """A frozen copy, which can be kept in host memory between uses."""
    lower = f"{ADAPTERS}, whose base serves as the reference"
    kept = _shared_part("reference", size, "a frozen copy", lower)
    if "reference" in outline.request.offload:
        return replace(kept, phase=outline.asks_reference, shared=False)
    return replace(kept, lower=f"{lower}; or trainer.offload=[reference]")


def of_unpacking(outline: Outline, work: Workload) -> list[Part]:
    """The dequantised weight of one layer; a pass uses one layer at a time."""
    if not outline.packed_bytes:
        return []
    size = max(p.nbytes for p in outline.packed_bytes)
    says = "the largest quantised weight, dequantised for its multiplication"
    return [Part(name="unpacked", size=size, says=says, lower=narrower(outline, work))]


def of_teachers(outline: Outline) -> list[Part]:
    """Teachers, whole on every device. For `self`, a copy of the trained weights, plus a float32
    average of those in lower precision."""
    parts, own = [], [p for network in outline.teachers for p in network.parameters()]
    lower = "set algorithm.teachers.dtype=bfloat16, or choose a smaller one"
    if own:
        parts.append(
            Part(name="teachers", size=size_of(own), says=count_by_dtype(own), lower=lower)
        )
    teachers, trained = outline.request.teachers, outline.trained_parameters
    if teachers is not None and teachers.teaches_itself:
        narrow = [p for p in trained if p.dtype != torch.float32]
        size = size_of(trained) + FLOAT32 * sum(p.numel() for p in narrow)
        says = "a copy of the trained weights with an average in float32"
        parts.append(Part(name="itself", size=size, says=says, lower=ADAPTERS))
    return parts


def of_older_weights(outline: Outline) -> list[Part]:
    """The older weights that sample in a run with staleness."""
    sampling = outline.sampling
    own = sampling.engine is None or sampling.engine.shares_weights
    if not sampling.staleness or not own:
        return []
    size, count = size_of(outline.trained_parameters), sampling.staleness + 1
    says = f"the trained weights at the start of each of the last {count} iterations"
    return [_shared_part("lagged", count * size, says, "lower rollout.staleness")]


def narrower(outline: Outline, work: Workload) -> str:
    """The option that makes the weights smaller."""
    smaller = "choose a smaller one: model=..."
    if outline.packed_bytes:
        return smaller
    if outline.numerics.dtype == "bfloat16":
        whole = "trainer=ddp " if work.shards else ""  # quantised weights cannot be sharded
        below = "" if outline.lora is not None else " with model.lora"
        return f"set {whole}model/quantization=bnb_4bit{below}, or {smaller}"
    return f"set model.dtype=bfloat16 with model.lora, or {smaller}"


def of_gathering(outline: Outline, work: Workload) -> list[Part]:
    """Gathered weights, in addition to a rank's shards."""
    pieces = pieces_of(outline.networks)
    reference = size_of(outline.base) if outline.has_reference else 0
    return [
        Part(
            name="gathered",
            size=pieces.whole + reference + pieces.arriving,
            says="all weights of the network" + (" and the reference" if reference else ""),
            lower=narrower(outline, work),
            phase="sampling",
        ),
        Part(
            name="gathering",
            size=pieces.in_an_update,
            says="weights of blocks as they are used, and all others, with their gradients",
            lower=narrower(outline, work),
            phase="update",
        ),
    ]


def of_learning(outline: Outline, work: Workload) -> list[Part]:
    """Optimiser state and gradients of the trained weights."""
    trained = outline.trained_parameters
    state = sum(p.numel() * work.state(p.dtype) for p in trained)
    full = outline.lora is None
    each = state / max(sum(p.numel() for p in trained), 1)
    less = f"set optimizer=adamw_8bit{', or ' + ADAPTERS if full else ''}"
    says = f"{each:.3g} bytes per trained weight"
    kept = _shared_part("optimizer", state, says, f"{less}, or trainer.offload=[optimizer]")
    if "optimizer" in outline.request.offload:
        size = state + size_of(trained)
        kept = replace(kept, size=size, says=f"{says}, plus gradients", lower=less, phase="step")
    return [
        kept,
        Part(
            name="gradients",
            size=size_of(trained),
            says=count_by_dtype(trained),
            lower=ADAPTERS if full else "lower model.lora.r",
            phase="update",
            shared=True,
        ),
    ]


def of_casts(outline: Outline) -> Part:
    """bfloat16 copies of weights, kept until the backward pass, or recomputed there."""
    again = outline.numerics.gradient_checkpointing
    pieces = pieces_of(
        outline.networks, of=lambda p: outline.is_cast(p) and p not in outline.packed_bytes
    )
    return Part(
        name="casts",
        size=(pieces.block + pieces.outside if again else pieces.whole) / 2,
        says="bfloat16 copies of the float32 weights of a pass" + (", recomputed" if again else ""),
        lower="set model.dtype=bfloat16 with model.lora"
        if again
        else "set model.gradient_checkpointing=true",
        phase="update",
    )


def size_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of tensors. Of any shape [...]."""
    return sum(x.numel() * x.element_size() for x in tensors)


def count_by_dtype(tensors: list[Tensor]) -> str:
    """The number of elements by dtype, as text. Of any shape [...]."""
    numbers = {str(x.dtype).removeprefix("torch."): 0 for x in tensors}
    for x in tensors:
        numbers[str(x.dtype).removeprefix("torch.")] += x.numel()
    return " and ".join(f"{count:,} in {dtype}" for dtype, count in numbers.items())


def _shared_part(name: str, size: float, says: str, lower: str) -> Part:
    return Part(name=name, size=size, says=says, lower=lower, shared=True)
