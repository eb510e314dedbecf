"""The records that travel from sampling to the optimiser; shapes are written and checked here only.

Axes: B samples, T steps of one sample (tokens, or denoising transitions).
"""

from tandem.types.batch import (
    OF_SNAPSHOTS,
    CoupledBatch,
    DecoupledBatch,
    Evidence,
    MatchingBatch,
    NetworkAnswer,
    Summary,
    Transition,
    taught_steps,
)
from tandem.types.record import (
    LossBatch,
    Record,
    Shaped,
    alike,
    check_shapes,
    concat,
    map_fields,
    pad_steps,
    take,
)
from tandem.types.sample import (
    IMAGE,
    PER_SAMPLE,
    PER_STEP,
    PICTURE,
    SEGMENTS,
    TEXT,
    WRITTEN,
    Picture,
    Prompt,
    Rollout,
    Scores,
    is_film,
)

__all__ = [
    "IMAGE",
    "OF_SNAPSHOTS",
    "PER_SAMPLE",
    "PER_STEP",
    "PICTURE",
    "SEGMENTS",
    "TEXT",
    "WRITTEN",
    "CoupledBatch",
    "DecoupledBatch",
    "Evidence",
    "LossBatch",
    "MatchingBatch",
    "NetworkAnswer",
    "Picture",
    "Prompt",
    "Record",
    "Rollout",
    "Scores",
    "Shaped",
    "Summary",
    "Transition",
    "alike",
    "check_shapes",
    "concat",
    "is_film",
    "map_fields",
    "pad_steps",
    "take",
    "taught_steps",
]
