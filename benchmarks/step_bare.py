"""The minimal computation of GRPO: no reward, no record, no checks.

A step repeats the work of Tandem's last one: the same prompts, answers of the same lengths, the
same trained rows, so its weights follow Tandem's.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, DynamicCache
from turns import Turns

Work = dict[str, Any]  # `step_tandem.work_of`


def steps(connection: Connection, folder: Path) -> None:
    torch.set_num_threads(1)
    numbers = json.loads((folder / "start.json").read_text())["numbers"]
    model = AutoModelForCausalLM.from_pretrained(folder / "start").eval()
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()  # files are mapped at addresses BLAS dislikes
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=numbers["lr"],
        betas=numbers["betas"],
        weight_decay=numbers["weight_decay"],
        fused=True,
    )
    turns, first = Turns(connection), True  # the first turn is a warm-up
    for _ in range(numbers["steps"]):
        turns.wait()
        work = torch.load(folder / "step.pt")
        counted = FlopCounterMode(display=False) if first else nullcontext()
        turns.start()
        with counted:
            sample(model, work, group_size=numbers["group_size"])
            train(model, optimizer, work, numbers)
        turns.stop()
        flops = counted.get_total_flops() if first else 0
        turns.finish(tokens=int(work["length"].sum()), flops=flops)
        first = False
    torch.save(dict(model.named_parameters()), folder / "bare_end.pt")


@torch.no_grad()
def sample(model: nn.Module, work: Work, *, group_size: int) -> None:
    """One prefill per group, then cached decoding of the unfinished rows."""
    first = slice(None, None, group_size)
    mask, tokens = left_pad(work["tokens"][first], work["prompt_length"][first])
    position = (mask.cumsum(1) - 1).clamp(min=0)
    cache = DynamicCache(config=model.config)
    logits = forward(model, tokens, mask, position, cache)
    cache.batch_repeat_interleave(group_size)
    mask, position, logits = (
        x.repeat_interleave(group_size, 0) for x in (mask, position[:, -1:], logits)
    )
    left = work["length"]
    while True:
        logp = logits.log_softmax(-1)
        token = torch.multinomial(logp.exp(), 1)
        logp.gather(1, token)  # the ratio's denominator
        left = left - 1
        alive = left > 0
        if not alive.any():
            return
        if not alive.all():
            rows = alive.nonzero()[:, 0]
            cache.batch_select_indices(rows)
            token, mask, position, left = (x[rows] for x in (token, mask, position, left))
        mask, position = nn.functional.pad(mask, (0, 1), value=1), position + 1
        logits = forward(model, token, mask, position, cache)


def forward(
    model: nn.Module, tokens: Tensor, mask: Tensor, position: Tensor, cache: DynamicCache
) -> Tensor:
    return model(
        input_ids=tokens,
        attention_mask=mask,
        position_ids=position,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    ).logits[:, -1]


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, work: Work, numbers: dict[str, Any]
) -> None:
    """Per minibatch: one forward and backward of the rows with signal, and one optimiser step."""
    for group in optimizer.param_groups:
        group["lr"] = work["lr"]
    for update in work["updates"]:
        rows = update[work["advantage"][update] != 0]
        if len(rows):
            loss = surrogate(model, work, rows, numbers).sum() / len(update)
            loss.backward()
        else:  # all groups tie: only momentum changes the weights
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
        nn.utils.clip_grad_norm_(model.parameters(), numbers["max_grad_norm"])
        optimizer.step()
        optimizer.zero_grad()


def surrogate(model: nn.Module, work: Work, rows: Tensor, numbers: dict[str, Any]) -> Tensor:
    """Each row's clipped surrogate, averaged over its answer: [N]."""
    prompt, length = work["prompt_length"][rows], work["length"][rows]
    tokens = work["tokens"][rows, : int((prompt + length).max())]
    steps = torch.arange(int(length.max()))
    mask = steps < length[:, None]
    row, step = mask.nonzero(as_tuple=True)
    column = prompt[row] + step
    states = model.model(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state
    logits = model.lm_head(states[row, column - 1])
    logp = logits.log_softmax(-1).gather(1, tokens[row, column][:, None])[:, 0]
    ratio = (logp - work["old_logp"][rows][row, step]).exp()
    clipped = ratio.clamp(1 - numbers["clip_low"], 1 + numbers["clip_high"])
    advantage = work["advantage"][rows][row]
    per_token = -torch.minimum(ratio * advantage, clipped * advantage)
    return torch.zeros(len(rows)).index_add(0, row, per_token) / length


def left_pad(tokens: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """Mask and ids of prompts that began in column 0, now ending in the last: [P, longest]."""
    longest = int(length.max())
    column = torch.arange(longest) - (longest - length[:, None])
    mask = (column >= 0).long()
    return mask, tokens.gather(1, column.clamp(min=0)) * mask
