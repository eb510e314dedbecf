"""The memory estimate of a vision-language policy: of its tokens and its images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.policies.language.positions import positions
from tandem.policies.memory.estimate import Part, Workload
from tandem.policies.memory.language_estimate import of_outline, pass_of
from tandem.policies.memory.language_outline import LanguageOutline
from tandem.policies.vision.tower import KEPT

if TYPE_CHECKING:
    from tandem.policies.request import Request
    from tandem.policies.vision.policy import VisionLanguagePolicy

# Values that a block saves per patch for its backward, in widths of its states and of its MLP:
# inputs of two norms, queries, keys, values, two outputs; input and output of the activation.
OF_STATES, OF_MLP = 8, 3
MLP_RATIO = 4  # width of an MLP in widths of its states, where the configuration has neither


def footprint(policy: VisionLanguagePolicy, request: Request, work: Workload) -> list[Part]:
    """All parts of the estimate; image tokens count as prompt tokens."""
    outline = LanguageOutline(policy, request)
    return [*of_outline(outline, work), of_pictures(outline, work)]


def of_pictures(outline: LanguageOutline, work: Workload) -> Part:
    """An upper bound: as if prompts consisted of images only."""
    sampling, most = outline.sampling, positions(outline.model)
    tokens = most if sampling.max_prompt_tokens is None else sampling.max_prompt_tokens
    if outline.policy.frozen_tower:
        return of_frozen_tower(outline, work.prompts, tokens)
    forward = pass_of(outline, work)
    return of_trained_tower(outline, min(forward.rows, work.prompts), tokens)


def of_frozen_tower(outline: LanguageOutline, prompts: int, tokens: int) -> Part:
    """The outputs of the tower for all images of an iteration."""
    config = outline.model.config
    levels = 1 + len(getattr(config.vision_config, "deepstack_visual_indexes", ()))
    width = config.get_text_config().hidden_size * levels * outline.model.dtype.itemsize
    return Part(
        name="pictures",
        size=min(prompts * tokens * width, KEPT),
        says=f"outputs of the frozen tower for at most {prompts} x {tokens} image tokens",
        lower="lower rollout.max_prompt_tokens",
    )


def of_trained_tower(outline: LanguageOutline, rows: int, tokens: int) -> Part:
    """The approximate size of what its blocks save for their backward.

    Raises ValueError for a tower whose configuration does not say how large they are.
    """
    said = outline.model.config.vision_config.to_dict()
    merged = said.get("spatial_merge_size", 1) ** 2
    width = said.get("embed_dim") or said.get("hidden_size")  # of Qwen2-VL the second is the text's
    blocks = said.get("depth") or said.get("num_hidden_layers")
    if not (width and blocks):
        raise ValueError(
            "estimate=true: the configuration of this vision tower does not say how large its "
            "blocks are; set model.target_components=[language]"
        )
    inner = said.get("intermediate_size") or int(width * said.get("mlp_ratio", MLP_RATIO))
    kept = OF_STATES * width + OF_MLP * inner
    if outline.numerics.gradient_checkpointing:
        kept = width
    return Part(
        name="tower",
        size=rows * tokens * merged * blocks * kept * outline.model.dtype.itemsize,
        says=f"about what {blocks} blocks save for at most {rows} x {tokens * merged} patches",
        lower="set model.target_components=[language]",
        phase="update",
    )
