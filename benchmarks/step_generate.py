"""The sampling of transformers: `generate` on the prompts of each of Tandem's steps."""

from __future__ import annotations

import json
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from step_bare import left_pad
from transformers import AutoModelForCausalLM
from turns import Turns


def steps(connection: Connection, folder: Path) -> None:
    torch.set_num_threads(1)
    numbers = json.loads((folder / "start.json").read_text())["numbers"]
    model = AutoModelForCausalLM.from_pretrained(folder / "start").eval()
    model.generation_config.update(
        do_sample=True, temperature=1.0, top_k=0, max_new_tokens=numbers["max_new_tokens"]
    )
    turns = Turns(connection)
    for _ in range(numbers["steps"]):
        turns.wait()
        work = torch.load(folder / "step.pt")
        mask, tokens = left_pad(work["tokens"], work["prompt_length"])
        turns.start()
        written = model.generate(input_ids=tokens, attention_mask=mask)[:, tokens.shape[1] :]
        turns.stop()
        turns.finish(tokens=int((written != model.generation_config.pad_token_id).sum()))
