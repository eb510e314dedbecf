"""Numbers of devices that no run can have, and what cannot be cut over them."""

from __future__ import annotations

from tandem.config.composed import Composed, Rule


def there_is_a_device(composed: Composed) -> str | None:
    trainer = composed.settings.trainer
    if trainer.devices == [] or (isinstance(trainer.devices, int) and trainer.devices < 1):
        return f"trainer.devices={trainer.devices}: give 1 or more, or auto"
    if trainer.num_nodes < 1:
        return f"trainer.num_nodes={trainer.num_nodes}: must be positive"
    return None


def every_rank_has_a_prompt(composed: Composed) -> str | None:
    ranks, prompts = composed.settings.trainer.ranks, composed.settings.prompts_per_step
    if ranks is None or ranks <= prompts:
        return None
    return (
        f"prompts_per_step={prompts} over {ranks} ranks (trainer.devices): each needs a prompt of "
        f"its own; set prompts_per_step={ranks} or more"
    )


def parts_need_others(composed: Composed) -> str | None:
    if composed.settings.trainer.strategy != "fsdp2" or composed.settings.trainer.ranks != 1:
        return None
    return (
        "trainer.devices=1: trainer.strategy=fsdp2 cuts every weight over ranks, and one has "
        "nobody to share with; give 2 or more, or set trainer=auto"
    )


def parts_are_not_compiled(composed: Composed) -> str | None:
    if composed.settings.trainer.strategy != "fsdp2" or not composed.number("model.torch_compile"):
        return None
    return (
        "model.torch_compile=true: trainer.strategy=fsdp2 gathers weights within the calls that "
        "would be compiled; set model.torch_compile=false or trainer=ddp"
    )


def whole_weights_are_handed_over(composed: Composed) -> str | None:
    parted = composed.settings.trainer.strategy == "fsdp2"
    if not parted or composed.within("rollout", "engine") is None:
        return None
    return (
        f"rollout={composed.settings.choices['rollout']} takes whole weights from one rank, and "
        "trainer.strategy=fsdp2 leaves a part of each on it; set rollout=local or trainer=ddp"
    )


def critics_of_pictures_are_copied(composed: Composed) -> str | None:
    """Ranks of unequal work would wait for ever: its backward recomputes two roots."""
    parted = composed.settings.trainer.strategy == "fsdp2"
    pictures = composed.within("model", "adapter") is not None
    if not (parted and pictures) or composed.number("algorithm.critic") is None:
        return None
    return (
        f"algorithm={composed.settings.choices['algorithm']} has a critic, and "
        "trainer.strategy=fsdp2 knows none of pictures yet; set trainer=ddp"
    )


def eight_bits_are_of_whole_weights(composed: Composed) -> str | None:
    """Their blocks of 256 know nothing of where a weight was cut."""
    optimizer = composed.components["optimizer"].target.__module__
    parted = composed.settings.trainer.strategy == "fsdp2"
    if not parted or not optimizer.startswith("bitsandbytes"):
        return None
    return (
        f"optimizer={composed.settings.choices['optimizer']} keeps its state in blocks of whole "
        "weights, and trainer.strategy=fsdp2 cuts them; set optimizer=adamw or trainer=ddp"
    )


DEVICE_RULES: tuple[Rule, ...] = (
    there_is_a_device,
    every_rank_has_a_prompt,
    parts_need_others,
    parts_are_not_compiled,
    whole_weights_are_handed_over,
    critics_of_pictures_are_copied,
    eight_bits_are_of_whole_weights,
)
