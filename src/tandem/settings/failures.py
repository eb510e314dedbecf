"""Record of a failed update: its rows and their random keys, for a replay."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from tandem.experience import Experience


def save_failure(folder: Path, batch: Experience, facts: dict) -> Path:
    """Write the rows of a failed update and their random keys, for a replay."""
    place = "iteration_{iteration:06d}_update_{update}_rank_{rank}"
    folder = folder / place.format(**facts)
    folder.mkdir(parents=True, exist_ok=True)
    rollout = batch.rollout
    tensors = {
        "advantages": batch.advantages,
        "mask": rollout.mask,
        "group": rollout.group,
        "old_logp": rollout.old_logp,
        "behaviour_logp": rollout.behaviour_logp,
        "ref_logp": rollout.ref_logp,
        "old_kl_to_ref": rollout.old_kl_to_ref,
        "old_values": rollout.old_values,
        "baseline": rollout.baseline,
        "returns": batch.returns,
        **{f"statistics.{name}": found for name, found in batch.statistics.items()},
    }
    tensors |= _select_pictures(rollout.outputs)
    # A row may be there twice (dynamic_sampling), and the file refuses tensors that share memory.
    given = {name: x.detach() for name, x in tensors.items() if x is not None}
    known = {name: x.to("cpu", copy=True).contiguous() for name, x in given.items()}
    save_file(known, folder / "batch.safetensors")
    rows = [
        {"prompt_id": p.id, "slot": int(g), "score": score}
        | ({"output": output} if isinstance(output, str) else {})
        for p, g, output, score in zip(
            rollout.prompts,
            rollout.group,
            rollout.outputs,
            batch.scores.total.tolist(),
            strict=True,
        )
    ]
    (folder / "batch.json").write_text(json.dumps(facts | {"rows": rows}, indent=1))
    return folder


def _select_pictures(outputs: Sequence[str | torch.Tensor]) -> dict[str, torch.Tensor]:
    """The pictures among the outputs, by row."""
    return {
        f"output.{row}": output
        for row, output in enumerate(outputs)
        if isinstance(output, torch.Tensor)
    }
