"""Whole runs on small models, from Python and from the command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from policies.small_language import chat_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import tandem
from tandem.config import ConfigError, build, compose
from tandem.run import Result

ROOT = Path(__file__).parents[1]
QUICK = (
    "warm_start=null", "iterations=2", "prompts_per_step=4", "group_size=4", "num_minibatches=2",
    "evaluation.prompts=4", "evaluation.pass_at=[1,4]", "evaluation.every=1", "guards.no_signal=9",
)  # fmt: skip
WARM = "warm_start=['algorithm=sft','iterations=2']"
# A reward that an untrained model already varies in.
DENSE = ("reward=target_length", "reward.target_length.function.target=5")


def lines(folder: Path, name: str = "metrics.jsonl") -> list[dict]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def train(folder: Path, *overrides: str) -> Result:
    return tandem.train(*QUICK, *DENSE, f"run_dir={folder}", *overrides)


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("straight")
    train(folder)
    return folder


@pytest.fixture(scope="module")
def chat_folder(tmp_path_factory) -> Path:
    """A small Qwen3 as the hub has them: weights, tokenizer, chat template."""
    folder = tmp_path_factory.mktemp("qwen3")
    for part in chat_model():
        part.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def questions(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "questions.jsonl"
    rows = [
        {"messages": [{"role": "user", "content": f"say {word}"}], "answer": word}
        for word in (f"word{i}" for i in range(40))
    ]
    path.write_text("\n".join(json.dumps(row) for row in [*rows, {"answer": "no prompt"}]))
    return path


def test_a_run_leaves_what_the_architecture_says(straight):
    names = {path.name for path in straight.iterdir()}
    assert {"config.yaml", "manifest.json", "metrics.jsonl", "timing.jsonl", "samples"} <= names
    assert {"checkpoints", "model", "curves.png"} <= names
    assert [line["iteration"] for line in lines(straight)] == [0, 1, 2]
    assert [line["iteration"] for line in lines(straight, "timing.jsonl")] == [0, 1, 2]


def test_the_weights_have_moved_and_load_anywhere(straight):
    model = AutoModelForCausalLM.from_pretrained(straight / "model")
    start = build(compose().model)
    start.load(frozenset())
    moved = [
        (a - b).abs().max()
        for a, b in zip(model.parameters(), start.network.parameters(), strict=True)
    ]
    assert min(moved) > 0


def test_the_same_command_twice_writes_the_same_bytes(straight, tmp_path):
    train(tmp_path / "again")
    assert (tmp_path / "again" / "metrics.jsonl").read_bytes() == (
        straight / "metrics.jsonl"
    ).read_bytes()


def test_another_seed_is_another_run(straight, tmp_path):
    train(tmp_path / "other", "seed=1")
    assert lines(tmp_path / "other")[0] != lines(straight)[0]


def test_the_result_has_the_last_value_of_each_metric(tmp_path):
    result = train(tmp_path / "run")
    assert result.run_dir == tmp_path / "run"
    assert result.metrics["eval/accuracy"] == lines(result.run_dir)[-1]["eval/accuracy"]
    assert result.metrics["reward/mean"] == lines(result.run_dir)[-2]["reward/mean"]


def test_a_dry_run_loads_nothing_and_writes_nothing(tmp_path, capsys):
    result = train(tmp_path / "run", "dry_run=true", "model=qwen3_8b")
    assert result.metrics == {}
    assert not (tmp_path / "run").exists()
    assert "4 prompts x 4 samples = 16 samples" in capsys.readouterr().out


@pytest.mark.parametrize("lora", ["null", "{r: 4, alpha: 8, target_modules: all-linear}"])
def test_dapo_trains_a_saved_chat_model_from_rows_of_a_file(tmp_path, chat_folder, questions, lora):
    result = train(
        tmp_path / "run", "algorithm=dapo", "model=hf", f"model.path={chat_folder}", "data=jsonl",
        f"data.path={questions}", f"model.lora={lora}", "rollout.max_new_tokens=6",
        "algorithm.collect.max_rounds=2", "optimizer.lr=1e-3", "algorithm.kl.coef=0.1",
    )  # fmt: skip
    reread = AutoModelForCausalLM.from_pretrained(result.run_dir / "model")
    assert AutoTokenizer.from_pretrained(result.run_dir / "model").chat_template
    before = dict(chat_model()[0].named_parameters())
    moved = {n for n, p in reread.named_parameters() if not torch.equal(p, before[n])}
    assert any("q_proj" in name for name in moved)
    assert result.metrics["actor/ref_kl"] >= 0
    assert "dynamic_sampling/acceptance" in result.metrics
    assert (result.run_dir / "model" / "lora").exists() == (lora != "null")
    (bad,) = lines(result.run_dir, "quarantine.jsonl")
    assert bad["line"] == 41


def test_two_clip_numbers_and_lora_are_what_dapo_prints_for_qwen3_8b():
    cfg = compose(["algorithm=dapo", "model=qwen3_8b"])
    assert (cfg.algorithm.loss.clip_low, cfg.algorithm.loss.clip_high) == (0.2, 0.28)
    assert cfg.model.path == "Qwen/Qwen3-8B"


@pytest.mark.parametrize("algorithm", ["grpo", "dr_grpo", "dapo", "rloo", "sft"])
def test_every_algorithm_takes_two_iterations_of_the_embedded_model(tmp_path, algorithm):
    group = 1 if algorithm == "sft" else 4
    result = train(tmp_path / "run", f"algorithm={algorithm}", f"group_size={group}", "~recipe")
    assert result.metrics["optim/grad_norm"] > 0


def test_a_wrong_path_is_one_line_that_names_the_flag(tmp_path):
    with pytest.raises(ConfigError, match=r"model\.path") as refused:
        train(tmp_path / "run", "model=hf", "model.path=/nowhere", "data=sort_letters")
    assert "\n" not in str(refused.value)


def test_prompts_that_do_not_fit_are_counted_by_their_reasons(tmp_path, chat_folder, questions):
    with pytest.raises(
        ConfigError, match=r"left out all 39 prompts: \d+ x has \d+ tokens, more than 8"
    ):
        train(
            tmp_path / "run", "model=hf", f"model.path={chat_folder}", "data=jsonl",
            f"data.path={questions}", "rollout.max_new_tokens=120",
        )  # fmt: skip


def test_an_algorithm_that_imitates_needs_rows_with_answers(tmp_path, chat_folder):
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"say {i}"}) for i in range(40)))
    with pytest.raises(ConfigError, match="algorithm=sft imitates answers, but no row"):
        train(
            tmp_path / "run", "algorithm=sft", "model=hf", f"model.path={chat_folder}",
            "data=jsonl", f"data.path={path}", "group_size=1", "rollout.max_new_tokens=6",
        )  # fmt: skip


def test_a_run_can_be_evaluated_alone(straight):
    result = tandem.train("evaluate=true", f"resume={straight}")
    assert result.metrics["eval/accuracy"] == lines(straight)[-1]["eval/accuracy"]
    assert len(lines(straight)) == 3


def test_a_run_can_continue_from_the_weights_of_another(straight, tmp_path):
    train(tmp_path / "next", f"continue_from={straight}")
    first, last = lines(tmp_path / "next")[0], lines(straight)[-1]
    assert first["eval/length"] == last["eval/length"]


def test_longer_resumed_runs_begin_as_shorter_ones_ended(straight, tmp_path):
    train(tmp_path / "run")
    tandem.train(f"resume={tmp_path / 'run'}", "iterations=3")
    assert [line["iteration"] for line in lines(tmp_path / "run")] == [0, 1, 2, 3]
    assert lines(tmp_path / "run")[:2] == lines(straight)[:2]


def test_a_warm_start_is_trained_once_and_found_again(tmp_path, capsys):
    warm = (WARM, f"cache_dir={tmp_path / 'cache'}")
    train(tmp_path / "first", *warm)
    train(tmp_path / "second", *warm, "algorithm=rloo", "iterations=1")
    assert "there already" in capsys.readouterr().out
    assert len(list((tmp_path / "cache" / "warm_start").iterdir())) == 1
    first, second = (lines(tmp_path / name)[0] for name in ("first", "second"))
    assert first["eval/length"] == second["eval/length"]


def test_a_new_seed_has_a_warm_start_of_its_own(tmp_path):
    for seed in (0, 1):
        warm = (WARM, f"cache_dir={tmp_path / 'cache'}")
        train(tmp_path / f"run{seed}", *warm, f"seed={seed}", "iterations=1")
    assert len(list((tmp_path / "cache" / "warm_start").iterdir())) == 2


def command(*overrides: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "train.py", *QUICK, *DENSE, *overrides],
        cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip


@pytest.mark.system
def test_the_command_line_writes_what_python_writes(straight, tmp_path):
    done = command(f"run_dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (
        straight / "metrics.jsonl"
    ).read_bytes()


@pytest.mark.system
def test_two_ranks_learn_what_one_learns(straight, tmp_path):
    done = command(
        f"run_dir={tmp_path / 'run'}", "trainer=ddp", "trainer.devices=2", "trainer.accelerator=cpu"
    )
    assert done.returncode == 0, done.stderr
    for got, want in zip(lines(tmp_path / "run"), lines(straight), strict=True):
        assert got == pytest.approx(want, rel=1e-4, abs=1e-6)
    got, want = (load_file(f / "model" / "model.safetensors") for f in (tmp_path / "run", straight))
    assert max((got[name] - want[name]).abs().max() for name in want) < 1e-5


@pytest.mark.system
def test_a_sweep_leaves_a_finished_run_for_every_combination(tmp_path):
    done = command("-m", "algorithm=grpo,rloo", "seed=0,1", f"hydra.sweep.dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    runs = [path.parent for path in tmp_path.rglob("metrics.jsonl")]
    assert len(runs) == 4
    assert all((run / "model" / "model.safetensors").exists() for run in runs)


@pytest.mark.system
def test_a_guard_ends_the_command_with_one_line(tmp_path):
    done = command(f"run_dir={tmp_path / 'run'}", "reward=[target_length,exact_match]",
                   "reward.target_length.weight=0", "guards.no_signal=1")  # fmt: skip
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert "raise group_size or rollout.temperature" in done.stderr
