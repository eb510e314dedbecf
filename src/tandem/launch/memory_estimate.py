"""An estimate of the memory of a run per device, before loading anything: `estimate=true`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import singledispatch

import torch
from omegaconf import DictConfig

from tandem.config import ConfigError, build
from tandem.launch.devices import ranks_of
from tandem.policies.base import Policy
from tandem.policies.chain.keys import in_segment
from tandem.policies.chain.policy import ChainPolicy
from tandem.policies.chain.unified import UnifiedPolicy
from tandem.policies.flow.policy import FlowPolicy
from tandem.policies.language.token_policy import TokenPolicy
from tandem.policies.memory import flow_estimate, language_estimate, unified_estimate
from tandem.policies.memory import vision_estimate as estimate_of_sight
from tandem.policies.memory.estimate import Part, Workload
from tandem.policies.request import Request
from tandem.policies.vision.policy import VisionLanguagePolicy
from tandem.record.optimizer_state import refuse_unsaved
from tandem.settings.settings import Settings

GIB = 2**30
PHASES = {
    "encoding": "held while encoding prompts",
    "sampling": "held while sampling",
    "reference": "held while evaluating the reference",
    "update": "held at the peak of an update",
    "step": "held during the optimiser step",
}
LEARNT = ("gradients", "optimizer")  # parts that belong to trained weights
PROBE = 512  # side of the weight that measures optimiser state


def estimate(cfg: DictConfig, settings: Settings) -> str:
    """A table of all parts, the peak, and settings that would lower it."""
    ranks = ranks_of(settings.trainer)
    return table(parts_of_a_rank(cfg, settings, ranks), ranks)


def parts_of_a_rank(cfg: DictConfig, settings: Settings, ranks: int) -> list[Part]:
    """The parts of memory of one device."""
    request = build(cfg.algorithm).request(build(cfg.rollout))
    offload = frozenset(settings.trainer.offload)
    request = replace(
        request,
        environment=build(cfg.environment) or None,
        offload=offload,
        epochs=settings.epochs,
    )
    parts = footprint(build(cfg.model), request, work_of(cfg, settings, ranks))
    return on_a_rank(parts, settings.trainer.strategy, ranks)


@singledispatch
def footprint(policy: Policy, request: Request, work: Workload) -> list[Part]:
    """Every part of the memory of a policy; other kinds register their own function.

    Raises ConfigError for a kind that has none.
    """
    raise ConfigError(
        f"estimate=true: the memory of {type(policy).__name__} is unknown; register a function "
        "with tandem.launch.memory_estimate.footprint"
    )


footprint.register(VisionLanguagePolicy)(estimate_of_sight.footprint)
footprint.register(TokenPolicy)(language_estimate.footprint)
footprint.register(FlowPolicy)(flow_estimate.footprint)


@footprint.register
def of_chain(policy: ChainPolicy, request: Request, work: Workload) -> list[Part]:
    """The parts of both segments, held at once in an update; a frozen one has no gradients."""
    found = []
    for name, own in policy.parts.items():
        parts = footprint(own, policy.request_of(name, request), work)
        learnt = () if name not in request.frozen else LEARNT
        found += of_segment(name, [part for part in parts if part.name not in learnt])
    return found


@footprint.register
def of_unified(policy: UnifiedPolicy, request: Request, work: Workload) -> list[Part]:
    """The parts of both segments; shared parts are counted once."""
    parts = unified_estimate.footprint(policy, request, work).items()
    return [part for name, own in parts for part in of_segment(name, own)]


def of_segment(name: str, parts: Sequence[Part]) -> list[Part]:
    """Parts of one policy among several, with the keys that it has there."""
    return [
        replace(part, name=f"{name} {part.name}", lower=in_segment(name, part.lower))
        for part in parts
    ]


def work_of(cfg: DictConfig, settings: Settings, ranks: int) -> Workload:
    make = build(cfg.optimizer)
    prompts = math.ceil(settings.prompts_per_step / ranks)
    groups = math.ceil(prompts / settings.num_minibatches)
    return Workload(
        samples=prompts * settings.group_size,
        prompts=prompts,
        per_update=groups * settings.group_size,
        max_tokens=settings.max_tokens_per_microbatch,
        rows=settings.micro_batch_size,
        narrow=settings.trainer.is_mixed,
        state=lambda dtype: state_of(make, dtype),
        ranks=ranks if settings.trainer.strategy == "fsdp2" else 1,
    )


def state_of(make: Callable[..., torch.optim.Optimizer], dtype: torch.dtype) -> float:
    """Bytes of optimiser state per weight, measured on a small tensor. Raises ValueError if no
    checkpoint can hold the state."""
    weight = torch.nn.Parameter(torch.zeros(PROBE, PROBE, dtype=dtype))
    weight.grad = torch.zeros_like(weight)
    optimizer = make([{"params": [weight]}])
    optimizer.step()
    refuse_unsaved(optimizer)
    kept = optimizer.state[weight].values()
    return sum(x.nbytes for x in kept if isinstance(x, torch.Tensor) and x.numel() > PROBE) / (
        PROBE * PROBE
    )


def on_a_rank(parts: Sequence[Part], strategy: str, ranks: int) -> list[Part]:
    """The parts on one rank: replicating strategies hold gradients twice, sharding ones hold a
    share, and gathered weights are a separate part."""
    if ranks == 1:
        return list(parts)
    if strategy != "fsdp2":
        gradients = [part for part in parts if part.name.endswith("gradients")]
        says = "gradients being sent to other ranks"
        return [*parts, *(replace(part, name="buckets", says=says) for part in gradients)]
    return [
        replace(part, size=part.size / ranks, says=f"a share of {ranks}: {part.says}")
        if part.shared
        else part
        for part in parts
    ]


def table(parts: Sequence[Part], ranks: int) -> str:
    """Aligned lines: GiB of each part, then of the mutually exclusive phases."""
    held = {phase: parts_in_phase(parts, phase) for phase in PHASES}
    sizes = {phase: sum(map(_size, own)) for phase, own in held.items()}
    rows = [(part.name, part.size, part.says) for part in parts if part.size > 0]
    there = {part.phase for part in parts if part.size > 0} | {"sampling", "update"}
    rows += [(phase, sizes[phase], says) for phase, says in PHASES.items() if phase in there]
    width = max(12, *(len(name) + 1 for name, *_ in rows))
    lines = [f"  {name:<{width}}{size / GIB:>10.3f} GiB  {says}" for name, size, says in rows]
    phase = max(reversed(PHASES), key=sizes.__getitem__)
    largest = max(held[phase], key=_size)
    own = max((p for p in parts if p.phase == phase), key=_size, default=None)
    advice = f"  the largest part is {largest.name}: {lower(largest, phase)}"
    if own is not None and own is not largest:
        advice += f"; in {phase} {own.name}: {lower(own, phase)}"
    devices = "one device" if ranks == 1 else f"each of {ranks} devices"
    return "\n".join(
        [
            f"estimate    {sizes[phase] / GIB:.2f} GiB on {devices}, in {phase}; libraries "
            "and fragmentation take more",
            *lines,
            advice,
        ]
    )


def parts_in_phase(parts: Sequence[Part], phase: str) -> list[Part]:
    """The parts held in a phase."""
    return [part for part in parts if part.phase in ("always", phase)]


def peak(parts: Sequence[Part]) -> float:
    """The peak in bytes."""
    return max(sum(map(_size, parts_in_phase(parts, phase))) for phase in PHASES)


def lower(part: Part, phase: str) -> str:
    """The advice to lower a part. Sharded parts are complete on every device during sampling."""
    return f"{part.lower} {part.lower_in_update}".rstrip() if phase == "update" else part.lower


def _size(part: Part) -> float:
    return part.size
