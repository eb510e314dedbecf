"""Checks of the answers of an engine: types and shapes of each, values of the first ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from tandem.contracts.outputs import WIDE
from tandem.contracts.parts import place_of
from tandem.contracts.wrong_output import WrongOutput, wrong_value
from tandem.policies.engines.protocol import Engine
from tandem.policies.language.records import Answers, Endings, Sampling
from tandem.policies.language.sampling import before

POSITIVE = 1e-4  # nats: no log-probability is above it, whatever its rounding


class AnswerChecks:
    """The checks of one engine."""

    def __init__(self, vocabulary: int) -> None:
        """vocabulary: token ids are below it."""
        self.vocabulary, self.begun = vocabulary, False

    def __call__(
        self, part: Callable, answers: Answers, keys: Tensor, sampling: Sampling
    ) -> Answers:
        """The answers of a method of the engine. keys: [P, G]. Raises WrongOutput if they are
        invalid."""
        check_answers(part, answers, keys)
        if not self.begun:
            check_values(part, answers, sampling, self.vocabulary)
            self.begun = True
        return answers


def skip_checks(part: Callable, answers: Answers, keys: Tensor, sampling: Sampling) -> Answers:
    """The answers as they are, for an engine whose vocabulary is unknown. keys: [P, G]."""
    return answers


class CheckedEngine(Engine):
    """An engine that samples from the trained weights themselves, with its answers checked."""

    def __init__(self, engine: Engine, vocabulary: int) -> None:
        self.engine, self.checked = engine, AnswerChecks(vocabulary)

    def answer(
        self, prompts: Sequence[list[int]], keys: Tensor, *, sampling: Sampling, endings: Endings
    ) -> Answers:
        """See `Engine.answer`. keys: [P, G] int64."""
        answers = self.engine.answer(prompts, keys, sampling=sampling, endings=endings)
        return self.checked(self.engine.answer, answers, keys, sampling)


def check_answers(part: Callable, answers: Answers, keys: Tensor) -> None:
    """Raise WrongOutput for another type, dtype, shape or device. No number is read.

    keys: [P, G].
    """
    if not isinstance(answers, Answers):
        raise wrong_value(part, answers, "Answers(tokens=, logp=, entropy=, length=, truncated=)")
    rows = keys.numel()
    width = answers.tokens.shape[-1] if isinstance(answers.tokens, Tensor) else "T"
    given = {
        "Answers.tokens": (answers.tokens, [rows, width], (torch.int64,)),
        "Answers.logp": (answers.logp, [rows, width], WIDE),
        "Answers.length": (answers.length, [rows], (torch.int64,)),
        "Answers.truncated": (answers.truncated, [rows], (torch.bool,)),
    }
    if answers.entropy is not None:  # an engine need not report it
        given["Answers.entropy"] = answers.entropy, [rows, width], WIDE
    if answers.version is not None:
        given["Answers.version"] = answers.version, [rows, width], (torch.int64,)
    check_tensors(part, given, keys.device)


def check_tensors(
    part: Callable,
    given: Mapping[str, tuple[object, list, Sequence[torch.dtype]]],
    device: torch.device,
) -> None:
    """Raise WrongOutput for a result that is not a tensor of its shape, in one of its dtypes, on
    this device. given: name -> (value, shape, dtypes). No number is read."""
    for name, (value, shape, dtypes) in given.items():
        tensor = isinstance(value, Tensor) and value.dtype in dtypes
        want = f"{name} as {dtypes[0]} {shape}"
        if not tensor or [*value.shape] != shape:
            raise wrong_value(part, value, want)
        if value.device != device:
            raise wrong_value(part, value, f"{want} on {device}, not on {value.device}")


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
