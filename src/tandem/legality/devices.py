"""Contradictions about devices: invalid counts, and parts that cannot be sharded."""

from __future__ import annotations

from collections.abc import Iterator

from tandem.contracts import facts_of
from tandem.legality.case import Case
from tandem.policies.base import Policy


def there_is_a_device(case: Case) -> Iterator[str]:
    """trainer.devices is 1 or more."""
    devices = case.plan.trainer.devices
    if devices == [] or (isinstance(devices, int) and devices < 1):
        yield f"trainer.devices={devices}: set 1 or more, or auto"
    elif isinstance(devices, list) and (len({*devices}) < len(devices) or min(devices) < 0):
        yield f"trainer.devices={devices}: list each GPU once, counting from 0"


def every_rank_has_a_prompt(case: Case) -> Iterator[str]:
    """An iteration has a prompt for every rank."""
    ranks, prompts = case.plan.trainer.ranks, case.plan.prompts_per_step
    if ranks is not None and ranks > prompts:
        yield (
            f"prompts_per_step={prompts} over {ranks} ranks (trainer.devices): each rank needs at "
            f"least one prompt; set prompts_per_step={ranks} or more"
        )


def parts_fit(case: Case) -> Iterator[str]:
    """Options that sharding every weight over ranks excludes."""
    if case.plan.trainer.strategy != "fsdp2":
        return
    chosen, given = case.plan.choices, case.model.arguments
    if case.plan.trainer.ranks == 1:
        yield (
            "trainer.devices=1: trainer.strategy=fsdp2 shards weights over at least 2 devices; set "
            "trainer.devices=2 or more, or trainer=auto"
        )
    if given.get("torch_compile"):
        yield (
            "model.torch_compile=true: trainer.strategy=fsdp2 gathers weights inside the calls "
            "to compile; set model.torch_compile=false or trainer=ddp"
        )
    # Ranks with unequal work would deadlock: the backward of a critic recomputes two roots.
    if not case.is_of_texts and case.algorithm.critic is not None:
        yield (
            f"algorithm={chosen['algorithm']} has a critic, which trainer.strategy=fsdp2 does not "
            "support for pictures; set trainer=ddp"
        )
    # Its state is kept in blocks of 256, whatever the boundaries of a shard.
    if case.optimizer.target.__module__.startswith("bitsandbytes"):
        yield (
            f"optimizer={chosen['optimizer']} keeps its state in blocks of whole weights, which "
            "trainer.strategy=fsdp2 shards; set optimizer=adamw or trainer=ddp"
        )


def weights_can_be_cut(case: Case) -> Iterator[str]:
    """Some policies do not support sharding, and no image engine with a copy of the weights."""
    if case.plan.trainer.strategy != "fsdp2":
        return
    if case.model.target.shard is Policy.shard:
        yield (
            f"model={case.plan.choices['model']} does not support trainer.strategy=fsdp2; "
            "set trainer=ddp"
        )
    engine = None if case.engine is None else case.engine.target
    if engine is not None and engine.samples == "flow" and not engine.shares_weights:
        yield (
            f"rollout={case.plan.choices['rollout']} receives whole weights from one rank, and "
            "trainer.strategy=fsdp2 shards them; set trainer=ddp or rollout=denoise"
        )


def engine_computes_as_trained(case: Case) -> Iterator[str]:
    """An engine that shares the weights keeps its cache in their dtype."""
    mixed, engine = case.plan.trainer.is_mixed, case.engine
    if mixed and engine is not None and not engine.target.samples_mixed:
        yield (
            f"trainer.precision=bf16-mixed: rollout={case.plan.choices['rollout']} caches keys in "
            "the dtype of the weights, and autocast computes in another; set "
            "model.dtype=bfloat16 with trainer.precision=32-true, or rollout=local"
        )


def engine_sees(case: Case) -> Iterator[str]:
    """A model that reads pictures needs an engine that receives them."""
    engine, chosen = case.engine, case.plan.choices
    if engine is None or engine.target.sees:
        return
    model = f"model={chosen['model']} reads pictures"
    if case.model.target.sees:
        yield (
            f"rollout={chosen['rollout']} receives only token ids, and {model}; set "
            "rollout=local, or rollout=vllm_server"
        )
    elif _edits(case):
        yield (
            f"rollout={chosen['rollout']} receives only texts (sees=False), and {model}; set "
            "rollout=denoise"
        )


def _edits(case: Case) -> bool:
    """Whether the prompts of a flow model contain pictures."""
    adapter = None if case.is_of_texts else case.painter[1].arguments.get("adapter")
    if adapter is None:
        return False
    given = adapter.arguments.get("images")
    return (facts_of(adapter.target).shows[0] if given is None else given) > 0


def tower_is_whole(case: Case) -> Iterator[str]:
    """A rank without pictures would skip the vision tower, and the others would wait for it."""
    if case.model.target.sees and case.plan.trainer.strategy == "fsdp2":
        yield (
            "trainer.strategy=fsdp2 shards the vision tower of "
            f"model={case.plan.choices['model']}, which a rank without pictures skips; set "
            "trainer=ddp, with model.lora if it is large"
        )


RULES = (
    there_is_a_device,
    every_rank_has_a_prompt,
    parts_fit,
    weights_can_be_cut,
    engine_computes_as_trained,
    engine_sees,
    tower_is_whole,
)
