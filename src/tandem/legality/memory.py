"""Options that save memory, and what they cannot be had with."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from tandem.contracts import name_of
from tandem.legality.case import Case, Part
from tandem.types import SEGMENTS

CUT = ("reference", "optimizer")  # by trainer.strategy=fsdp2


def quantized_models(case: Case) -> Iterator[tuple[str, str, Part, type]]:
    """Of each model with a quantised base its key, the words that chose it, it, and what rounds."""
    models = {"model": case.model}
    if case.is_chain:
        models = {f"model.{name}": case.model.arguments[name] for name in SEGMENTS}
    for key, model in models.items():
        if (how := model.arguments.get("quantization")) is not None:
            place = f"@{key}.quantization" if case.is_chain else ""
            yield key, f"model/quantization{place}={name_of(how.target)}", model, how.target


def base_is_frozen(case: Case) -> Iterator[str]:
    """A quantised base learns nothing itself: adapters do."""
    for key, words, model, _ in quantized_models(case):
        if model.arguments.get("lora") is None:
            yield (
                f"{words} rounds the weights, and rounded ones cannot be trained in full; set "
                f"{key}.lora={{r: 32, alpha: 64}}, or leave {words.partition('=')[0]} out"
            )


def packer_is_there(case: Case) -> Iterator[str]:
    """The package that packs weights is installed."""
    for _, words, _, how in quantized_models(case):
        if how.package is not None and find_spec(how.package) is None:
            yield (
                f"{words} needs the package {how.package}: pip install "
                + (how.package if how.extra is None else f"'tandem[{how.extra}]'")
            )


def packed_weights_are_whole(case: Case) -> Iterator[str]:
    """Blocks of packed weights know nothing of where a weight was cut."""
    if case.plan.trainer.strategy != "fsdp2":
        return
    for _, words, _, _ in quantized_models(case):
        yield (
            f"{words} packs whole weights, and trainer.strategy=fsdp2 cuts them; set trainer=ddp, "
            f"where every rank has the packed base, or leave {words.partition('=')[0]} out"
        )


def base_is_where_samples_are(case: Case) -> Iterator[str]:
    """An engine of tokens is handed adapters alone, and its base is what the folder holds."""
    engine, chosen = case.engine, case.plan.choices
    if engine is None or engine.target.shares_weights or engine.target.samples != "tokens":
        return
    for _, words, _, _ in quantized_models(case):
        yield (
            f"rollout={chosen['rollout']} puts the adapters on the base as model.path holds it, "
            f"and {words} trains them on a rounded one; set rollout=local or rollout=paged, or "
            f"leave {words.partition('=')[0]} out"
        )


def parts_are_whole(case: Case) -> Iterator[str]:
    """A part of a weight on each rank is gathered from where it lies."""
    trainer = case.plan.trainer
    cut = [name for name in trainer.offload if name in CUT]
    if cut and trainer.strategy == "fsdp2":
        yield (
            f"trainer.offload=[{', '.join(cut)}]: trainer.strategy=fsdp2 has a part of it on each "
            "device already; set trainer=ddp, or leave it out"
        )


RULES = (
    base_is_frozen,
    packer_is_there,
    packed_weights_are_whole,
    base_is_where_samples_are,
    parts_are_whole,
)
