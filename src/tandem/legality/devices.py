"""Numbers of devices that no run can have, and what cannot be cut over them."""

from __future__ import annotations

from collections.abc import Iterator

from tandem.contracts import facts_of
from tandem.legality.case import Case
from tandem.policies.base import Policy


def there_is_a_device(case: Case) -> Iterator[str]:
    """trainer.devices is 1 or more."""
    devices = case.plan.trainer.devices
    if devices == [] or (isinstance(devices, int) and devices < 1):
        yield f"trainer.devices={devices}: give 1 or more, or auto"
    elif isinstance(devices, list) and (len({*devices}) < len(devices) or min(devices) < 0):
        yield f"trainer.devices={devices}: name each GPU once, from 0 on"


def every_rank_has_a_prompt(case: Case) -> Iterator[str]:
    """An iteration has a prompt for every rank."""
    ranks, prompts = case.plan.trainer.ranks, case.plan.prompts_per_step
    if ranks is not None and ranks > prompts:
        yield (
            f"prompts_per_step={prompts} over {ranks} ranks (trainer.devices): each needs a prompt "
            f"of its own; set prompts_per_step={ranks} or more"
        )


def parts_fit(case: Case) -> Iterator[str]:
    """Options that cannot be had where every weight is cut over ranks."""
    if case.plan.trainer.strategy != "fsdp2":
        return
    chosen, given = case.plan.choices, case.model.arguments
    if case.plan.trainer.ranks == 1:
        yield (
            "trainer.devices=1: trainer.strategy=fsdp2 cuts every weight over ranks, and needs 2 "
            "devices at least; give 2 or more, or set trainer=auto"
        )
    if given.get("torch_compile"):
        yield (
            "model.torch_compile=true: trainer.strategy=fsdp2 gathers weights within the calls "
            "that would be compiled; set model.torch_compile=false or trainer=ddp"
        )
    # Ranks of unequal work would wait for ever: the backward of a critic recomputes two roots.
    if not case.is_of_texts and case.algorithm.critic is not None:
        yield (
            f"algorithm={chosen['algorithm']} has a critic, and trainer.strategy=fsdp2 knows none "
            "of pictures yet; set trainer=ddp"
        )
    # Blocks of 256 know nothing of where a weight was cut.
    if case.optimizer.target.__module__.startswith("bitsandbytes"):
        yield (
            f"optimizer={chosen['optimizer']} keeps its state in blocks of whole weights, and "
            "trainer.strategy=fsdp2 cuts them; set optimizer=adamw or trainer=ddp"
        )


def weights_can_be_cut(case: Case) -> Iterator[str]:
    """Some policies have weights that only a whole copy serves."""
    if case.plan.trainer.strategy == "fsdp2" and case.model.target.shard is Policy.shard:
        yield (
            f"model={case.plan.choices['model']} cannot be cut over ranks, as "
            "trainer.strategy=fsdp2 does; set trainer=ddp"
        )


def engine_computes_as_trained(case: Case) -> Iterator[str]:
    """An engine on the weights themselves keeps a cache in their dtype."""
    mixed, engine = case.plan.trainer.mixed, case.engine
    if mixed and engine is not None and not engine.target.samples_mixed:
        yield (
            f"trainer.precision=bf16-mixed: rollout={case.plan.choices['rollout']} caches keys in "
            "the dtype of the weights, which autocast does not compute in; set "
            "model.dtype=bfloat16 with trainer.precision=32-true, or rollout=local"
        )


def engine_sees(case: Case) -> Iterator[str]:
    """A model that reads pictures is sampled by an engine that is given them."""
    engine, chosen = case.engine, case.plan.choices
    if engine is None or engine.target.sees:
        return
    model = f"model={chosen['model']} reads pictures"
    if case.model.target.sees:
        yield (
            f"rollout={chosen['rollout']} is given token ids alone, and {model}; set "
            "rollout=local, or rollout=vllm_server"
        )
    elif _edits(case):
        yield (
            f"rollout={chosen['rollout']} is given texts alone (sees=False), and {model}; set "
            "rollout=denoise"
        )


def _edits(case: Case) -> bool:
    """Whether the prompts of a flow show pictures."""
    adapter = None if case.is_of_texts else case.painter[1].arguments.get("adapter")
    if adapter is None:
        return False
    given = adapter.arguments.get("images")
    return (facts_of(adapter.target).shows[0] if given is None else given) > 0


def tower_is_whole(case: Case) -> Iterator[str]:
    """A rank whose rows show no picture would not ask the tower that others gather."""
    if case.model.target.sees and case.plan.trainer.strategy == "fsdp2":
        yield (
            f"trainer.strategy=fsdp2 cuts the tower of model={case.plan.choices['model']}, which a "
            "rank without a picture does not ask; set trainer=ddp, with model.lora for a large one"
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
