"""Ways to sample the same rows: Tandem's, transformers' own, and bare forward passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from gpu_meter import median_seconds
from gpu_runs import questions
from gpu_sizes import Answers
from gpu_table import in_one_line
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from tandem.policies.engines.paged import Paged
from tandem.policies.language.policy import LanguagePolicy
from tandem.types import Prompt

ROUNDS = 1
STEPS = 32  # tokens of an answer at most: all ways to sample must fit into the time of a section


def compare(
    policy: LanguagePolicy, size: Answers, *, rows: int
) -> Iterator[tuple[str, float | str]]:
    """Seconds for a step of all rows, by method; a failed one gives its reason. The one that
    compiles is the last."""
    size = replace(size, new=min(size.new, STEPS))
    own = replace(policy.sampling, max_rows=rows, max_new_tokens=size.new)
    texts = questions(size)[: max(rows // size.group, 1)]
    even = [" ".join(text.split()[: size.shortest]) for text in texts]
    model = policy.scorer.model
    tokens, mask = padded_rows(policy, texts, rows)
    ways: dict[str, Callable[[], object]] = {
        "tandem": lambda: ours(policy, texts, size, own),
        "tandem, without graphs": lambda: ours(
            policy, texts, size, replace(own, cuda_graphs=False)
        ),
        "tandem, prompts of one length": lambda: ours(policy, even, size, own),
        "forward passes": lambda: forwards(model, tokens, mask, size.new),
        "transformers": lambda: generate(model, tokens, mask, size.new, cache="dynamic"),
        "tandem, rollout=paged": lambda: sample_paged(policy, texts, size, own, Paged()),
        "tandem, rollout=paged with graphs": lambda: sample_paged(
            policy, texts, size, own, Paged(cuda_graphs=True)
        ),
        "transformers, static cache and graphs": lambda: generate(
            model, tokens, mask, size.new, cache="static"
        ),
    }
    for name, way in ways.items():
        yield name, seconds_per_token(way, policy.device, size.new)


def seconds_per_token(way: Callable[[], object], device: torch.device, steps: int) -> float | str:
    """Seconds per token of all rows."""
    try:
        return median_seconds(way, device, rounds=ROUNDS) / steps
    except Exception as error:  # whatever it is, it is reported as a failure of this way
        return f"failed: {in_one_line(error)}"


def ours(policy: LanguagePolicy, texts: Sequence[str], size: Answers, own: object) -> None:
    prompts = [Prompt(id=i, source="random", text=text) for i, text in enumerate(texts)]
    policy.sample(prompts, size.group, key=0, slots=range(len(prompts)), sampling=own)


def sample_paged(
    policy: LanguagePolicy, texts: Sequence[str], size: Answers, own: object, option: Paged
) -> None:
    """transformers' continuous batching over the same weights, as in `rollout=paged`."""
    before = policy.engine
    policy.engine = option.host(policy)
    try:
        ours(policy, texts, size, replace(own, engine=option))
    finally:
        policy.engine = before


def padded_rows(policy: LanguagePolicy, texts: Sequence[str], rows: int) -> tuple[Tensor, Tensor]:
    """Every prompt, once per row."""
    prompts = [Prompt(id=i, source="random", text=text) for i, text in enumerate(texts)]
    ids = [torch.tensor(own) for own in policy.chat.encode(prompts)]
    padded = partial(pad_sequence, batch_first=True, padding_side="left")
    tokens = padded(ids).to(policy.device)
    mask = padded([torch.ones_like(own) for own in ids]).to(policy.device)
    times = rows // len(texts)
    return tokens.repeat_interleave(times, 0), mask.repeat_interleave(times, 0)


@torch.no_grad()
def forwards(model: nn.Module, tokens: Tensor, mask: Tensor, steps: int) -> None:
    """Greedy decoding: no noise, no log-probabilities, no end."""
    position, cache = (mask.cumsum(1) - 1).clamp(min=0), None
    for _ in range(steps):
        out = model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=position,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache, tokens = out.past_key_values, out.logits[:, -1:].argmax(-1)
        position = position[:, -1:] + 1
        mask = nn.functional.pad(mask, (0, 1), value=1)


@torch.no_grad()
def generate(model: nn.Module, tokens: Tensor, mask: Tensor, steps: int, *, cache: str) -> None:
    """On a GPU transformers compiles the forward pass of a static cache by itself."""
    model.generate(
        input_ids=tokens,
        attention_mask=mask,
        do_sample=True,
        top_k=0,
        temperature=1.0,
        min_new_tokens=steps,
        max_new_tokens=steps,
        cache_implementation=cache,
    )
