"""Contradictions about options that save memory."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from tandem.contracts import name_of, need_extra
from tandem.legality.case import Case, Part
from tandem.types import SEGMENTS

CUT = ("reference", "optimizer")  # by trainer.strategy=fsdp2


def one_budget_of_memory(case: Case) -> Iterator[str]:
    if None not in (case.plan.micro_batch_size, case.plan.max_tokens_per_microbatch):
        yield ("micro_batch_size and max_tokens_per_microbatch exclude each other; set one to null")


def quantized_models(case: Case) -> Iterator[tuple[str, str, Part, type]]:
    """(key, override, model, quantiser) of each model with a quantised base."""
    models = {"model": case.model}
    if case.is_chain:
        models = {f"model.{name}": case.model.arguments[name] for name in SEGMENTS}
    for key, model in models.items():
        if (how := model.arguments.get("quantization")) is not None:
            place = f"@{key}.quantization" if case.is_chain else ""
            yield key, f"model/quantization{place}={name_of(how.target)}", model, how.target


def base_is_frozen(case: Case) -> Iterator[str]:
    """A quantised base is frozen and needs adapters."""
    for key, words, model, _ in quantized_models(case):
        if model.arguments.get("lora") is None:
            yield (
                f"{words} rounds the weights, and rounded weights cannot be trained; set "
                f"{key}.lora={{r: 32, alpha: 64}}, or leave {words.partition('=')[0]} out"
            )


def packer_is_there(case: Case) -> Iterator[str]:
    """The package that packs weights is installed."""
    for _, words, _, how in quantized_models(case):
        if how.package is not None and find_spec(how.package) is None:
            if how.extra is not None:
                yield need_extra(words, how.extra)
            else:
                yield f"{words} needs a package: pip install {how.package}"


def packed_weights_are_whole(case: Case) -> Iterator[str]:
    """Packed weights cannot be sharded."""
    if case.plan.trainer.strategy != "fsdp2":
        return
    for _, words, _, _ in quantized_models(case):
        yield (
            f"{words} packs whole weights, and trainer.strategy=fsdp2 shards them; set "
            f"trainer=ddp, which packs them on every rank, or leave {words.partition('=')[0]} out"
        )


def base_is_where_samples_are(case: Case) -> Iterator[str]:
    """An engine receives only the adapters and applies them to the unquantised base."""
    engine, chosen = case.engine, case.plan.choices
    if engine is None or engine.target.shares_weights or engine.target.samples != "tokens":
        return
    for _, words, _, _ in quantized_models(case):
        yield (
            f"rollout={chosen['rollout']} applies the adapters to the base in model.path, "
            f"and {words} trains them on a rounded base; set rollout=local or rollout=paged, or "
            f"leave {words.partition('=')[0]} out"
        )


def parts_are_whole(case: Case) -> Iterator[str]:
    """Sharded weights cannot be offloaded."""
    trainer = case.plan.trainer
    cut = [name for name in trainer.offload if name in CUT]
    if cut and trainer.strategy == "fsdp2":
        yield (
            f"trainer.offload=[{', '.join(cut)}]: trainer.strategy=fsdp2 already shards them over "
            "devices; set trainer=ddp, or leave it out"
        )


RULES = (
    one_budget_of_memory,
    base_is_frozen,
    packer_is_there,
    packed_weights_are_whole,
    base_is_where_samples_are,
    parts_are_whole,
)
