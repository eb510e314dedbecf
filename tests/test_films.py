"""A family of videos from prompts to the record, on a tiny random checkpoint of Wan 2.1."""

import json

import pytest
from policies.flow.tiny_families import FAMILIES, SIDE

import tandem
from tandem.record import pictures

FRAMES, LONGER, LARGER = 5, 9, 48
WAN = "wan2_1_1_3b"
SMALL = (
    "iterations=2", "prompts_per_step=2", "group_size=3", "rollout.steps=3", "rollout.max_rows=8",
    "evaluation.every=1", "evaluation.prompts=2", "evaluation.steps=2", "optimizer.lr=1e-2",
    f"evaluation.frames={LONGER}", f"evaluation.resolution={LARGER}", "checkpoints.every=2",
    "reward=[motion_smoothness,jpeg_compressibility]", "reward.jpeg_compressibility.frames=2",
    "model.dtype=float32", f"model.adapter.resolution={SIDE}",
    "model.adapter.encoder_dtype=float32", "model.adapter.max_sequence_length=16",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:FutureWarning")
def test_films_are_sampled_judged_by_frame_trained_and_shown(tmp_path):
    """Trained on few frames, evaluated on more and larger ones."""
    (tmp_path / "prompts.txt").write_text("a cat\na dog runs\nrain\nsnow\n")
    FAMILIES[WAN].write(tmp_path / "wan")
    run = tmp_path / "run"
    tandem.train(
        f"model={WAN}",
        "algorithm=flow_grpo",
        f"model.path={tmp_path / 'wan'}",
        f"data.path={tmp_path / 'prompts.txt'}",
        f"cache_dir={tmp_path / 'cache'}",
        f"run_dir={run}",
        *SMALL,
        *FAMILIES[WAN].words,
    )
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if "optim/grad_norm" in row]
    assert len(trained) == 2 and all(row["optim/grad_norm"] > 0 for row in trained)
    assert all(-1 <= row["reward/motion_smoothness/mean"] <= 1 for row in trained)
    assert all(row["reward/jpeg_compressibility/std"] > 0 for row in trained)
    (looked,) = [row for row in rows if "eval/reward" in row][-1:]
    assert looked["eval/diversity"] > 0 and looked["eval/distance_to_start"] > 0
    table = max((run / "samples").glob("iteration_*.jsonl"))
    shown = [json.loads(line)["output"] for line in table.read_text().splitlines()]
    sizes = {tuple(one["size"]) for one in shown}
    assert sizes == {(SIDE, SIDE * FRAMES), (LARGER, LARGER * 8)}  # eight frames of nine are shown
    grid = pictures.load(table.parent / shown[0]["file"])
    assert grid.float().std() > 1
    assert table.with_suffix(".png").is_file()
