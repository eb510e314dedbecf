"""Checks of the answers of an engine: types and shapes of each, values of the first ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from tandem.contracts.outputs import WIDE, WrongOutput, place_of, wrong_value
from tandem.policies.language.records import Answers, Sampling
from tandem.policies.language.sampling import before

POSITIVE = 1e-4  # nats: no log-probability is above it, whatever its rounding


def check_answers(part: Callable, answers: Answers, keys: Tensor) -> None:
    """Raise WrongOutput for another type, dtype or shape. No number is read. keys: [P, G]."""
    if not isinstance(answers, Answers):
        raise wrong_value(part, answers, "Answers(tokens=, logp=, entropy=, length=, truncated=)")
    rows = keys.numel()
    width = answers.tokens.shape[-1] if isinstance(answers.tokens, Tensor) else "T"
    kinds = {
        "tokens": ([rows, width], (torch.int64,)),
        "logp": ([rows, width], WIDE),
        "entropy": ([rows, width], WIDE),
        "version": ([rows, width], (torch.int64,)),
        "length": ([rows], (torch.int64,)),
        "truncated": ([rows], (torch.bool,)),
    }
    for name in ("entropy", "version"):
        if getattr(answers, name) is None:  # an engine need not report it
            del kinds[name]
    check_tensors(part, "Answers", {n: (getattr(answers, n), *kind) for n, kind in kinds.items()})


def check_tensors(
    part: Callable, record: str, given: Mapping[str, tuple[object, list, Sequence[torch.dtype]]]
) -> None:
    """Raise WrongOutput for a field of a record that is not a tensor of its shape, in one of its
    dtypes. given: name -> (value, shape, dtypes). No number is read."""
    for name, (value, shape, dtypes) in given.items():
        tensor = isinstance(value, Tensor) and value.dtype in dtypes
        if not tensor or [*value.shape] != shape:
            raise wrong_value(part, value, f"{record}.{name} as {dtypes[0]} {shape}")


def check_values(part: Callable, answers: Answers, sampling: Sampling, vocabulary: int) -> None:
    """Raise WrongOutput for token ids, lengths or log-probabilities that cannot be. It waits for a
    GPU, so it is for the first answers."""
    width = min(answers.tokens.shape[1], sampling.max_new_tokens)
    tokens, logp = answers.tokens, answers.logp
    inside = before(answers.length, tokens.shape[1])
    wrong = {
        f"Answers.length must be 1 to {width} (rollout.max_new_tokens or the columns of tokens)": (
            (answers.length < 1) | (answers.length > width)
        ),
        f"Answers.tokens must be ids from 0 to {vocabulary - 1}": (
            (tokens < 0) | (tokens >= vocabulary)
        ),
        "Answers.logp must be finite and at most 0": (
            inside & ~(logp.isfinite() & (logp <= POSITIVE))
        ),
        "Answers.tokens and Answers.logp must be 0 from the end of a row on": (
            ~inside & ((tokens != 0) | (logp != 0))
        ),
    }
    counts = torch.stack([where.sum() for where in wrong.values()]).tolist()  # one wait
    for rule, count in zip(wrong, counts, strict=True):
        if count:
            raise WrongOutput(
                f"{part.__qualname__} at {place_of(part)} returned {count} wrong values: {rule}"
            )
