"""Whole runs whose samples come from a server of this process; only the server is fake."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gate import each
from loopback import ROWS, Habits, Loopback, serving
from safetensors.torch import load_file

import tandem
from tandem.config import ConfigError
from tandem.policies.language.tiny_lm import tiny_lm
from tandem.stop import EngineUnavailable, Stop

pytestmark = pytest.mark.system
SLOW = pytest.mark.slow
ROOT = Path(__file__).parents[3]

QUICK = (
    "model=hf", "data=sort_letters", "rollout=vllm_server", "rollout.max_new_tokens=6",
    "rollout.max_prompt_tokens=20", "rollout.engine.patience=5", "rollout.engine.timeout=5",
    "iterations=2", "prompts_per_step=4", "group_size=4", "num_minibatches=2",
    "evaluation.prompts=4", "evaluation.samples=2", "evaluation.pass_at=[1]", "evaluation.every=1",
    "guards.no_signal=9", "optimizer.lr=1e-2", "checkpoints.every=1", "algorithm.kl.coef=0",
    "reward=target_length", "reward.target_length.function.target=5",
)  # fmt: skip
WARM = "warm_start=['algorithm=sft','iterations=1']"
LORA = "model.lora={r: 2, alpha: 4, target_modules: all-linear}"


@pytest.fixture
def train(folder, tmp_path):
    """A run with samples from a server with this state."""

    def run(state, *overrides, name="run"):
        with serving(state) as url:
            return tandem.train(
                *QUICK, f"model.path={folder}", f"rollout.engine.url={url}",
                f"run_dir={tmp_path / name}", f"cache_dir={tmp_path}", *overrides,
            )  # fmt: skip

    return run


def lines(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def weights_of(model):
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("adapter", each(2, [True, False]))
def test_a_run_trains_on_the_samples_of_a_server_that_follows_its_weights(train, folder, adapter):
    state = Loopback(str(folder))
    options = [LORA] if adapter else ["rollout.engine.sleeps=true"]
    result = train(state, *options)
    first, second, last = lines(result.run_dir)
    for line in (first, second):
        assert line["rollout_corr/abs_logp_diff"] < 1e-4
        assert "staleness/gap_max" not in line
    assert first["optim/updates"] == 2
    assert "eval/accuracy" in last
    # The last evaluation used the final weights of the run.
    (path,) = (result.run_dir / "model").glob("*.safetensors")
    final = load_file(path)
    if adapter:
        assert len(state.adapters) == 1
        folded = state.model.merge_and_unload()
        got = weights_of(folded)
        assert state.paths("/collective_rpc") == []
    else:
        got = weights_of(state.model)
        assert state.paths("/sleep") == ["/sleep?level=2"] * 2
    moved = weights_of(tiny_lm(seed=0, hidden_size=32, num_layers=1, head_dim=8)[0])
    for name, tensor in final.items():
        torch.testing.assert_close(got[name], tensor, atol=1e-6, rtol=0)
    assert any((final[name] - moved[name]).abs().max() > 1e-3 for name in final)


@SLOW
def test_a_run_goes_on_with_a_server_that_was_started_again(train, folder, tmp_path):
    whole = train(Loopback(str(folder)), name="whole")
    cut = train(Loopback(str(folder)), "iterations=1", name="cut")
    with serving(Loopback(str(folder))) as url:
        tandem.train(f"resume={cut.run_dir}", "iterations=2", f"rollout.engine.url={url}")
    assert lines(cut.run_dir)[1:] == lines(whole.run_dir)[1:]


@pytest.mark.parametrize("order", each(2, ["exact", "ready"]))
def test_the_manifest_says_of_a_run_that_it_cannot_be_repeated(train, folder, order):
    ahead = (f"rollout.order={order}", "rollout.staleness=1", "evaluation.every=null")
    result = train(Loopback(str(folder)), *ahead, "iterations=1")
    (start,) = json.loads((result.run_dir / "manifest.json").read_text())["starts"]
    assert start.get("reproducible", True) == (order == "exact")


@SLOW
def test_a_server_that_goes_away_costs_no_work(train, folder, tmp_path):
    state = Loopback(str(folder))

    def leave_in_the_second_iteration(path, said):
        gone = len(state.paths("/collective_rpc")) > 1
        return (503, b"") if gone and path in ROWS else None

    state.habits.spoil = leave_in_the_second_iteration
    with pytest.raises(EngineUnavailable, match="the engine gave no answer"):
        train(state, "rollout.engine.patience=2", "checkpoints.every=50", "evaluation.every=null")
    run_dir = tmp_path / "run"
    assert [path.name for path in (run_dir / "checkpoints").iterdir()] == ["step_000001"]
    state.habits.spoil = None
    with serving(state) as url:
        tandem.train(f"resume={run_dir}", f"rollout.engine.url={url}")
    assert [line["iteration"] for line in lines(run_dir)] == [0, 1, 2]


@SLOW
@pytest.mark.parametrize("adapter", [True, False])
def test_ranks_that_torchrun_started_share_one_server_and_one_warm_start(folder, tmp_path, adapter):
    state = Loopback(str(folder))
    with serving(state) as url:
        subprocess.run(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"),
                *("--standalone", str(ROOT / "train.py"), "trainer=ddp", "trainer.devices=2"),
                *("trainer.accelerator=cpu", *QUICK, f"model.path={folder}"),
                *(f"rollout.engine.url={url}", f"run_dir={tmp_path / 'run'}"),
                *(f"cache_dir={tmp_path}", "rollout.engine.patience=60"),
                *("rollout.engine.timeout=30", *([LORA] if adapter else [WARM])),
            ],
            check=True,
            cwd=tmp_path,
        )
    handed = state.paths("/v1/load_lora_adapter" if adapter else "/collective_rpc")
    assert len(handed) == 3  # before each iteration and the last evaluation, for both ranks
    assert len(list(tmp_path.glob("warm_start/*"))) == (not adapter)
    assert len(json.loads((tmp_path / "run/manifest.json").read_text())["starts"]) == 1
    first, second, _ = lines(tmp_path / "run")
    for line in (first, second):
        assert line["rollout_corr/abs_logp_diff"] < 1e-4


def test_a_server_that_is_not_there_is_refused_before_the_warm_start(folder, tmp_path, free_port):
    with pytest.raises(ConfigError, match=r"does not answer.*rollout\.engine\.url") as refused:
        tandem.train(
            *QUICK, f"model.path={folder}", f"rollout.engine.url=http://127.0.0.1:{free_port}",
            "warm_start=['algorithm=sft']", f"run_dir={tmp_path / 'run'}", f"cache_dir={tmp_path}",
        )  # fmt: skip
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


CAUSES = {
    "fit temperature 0.7, and the trainer uses 1": (Habits(temperature=0.7), ()),
    "fit temperature 1, and the trainer uses 0.5": (Habits(raw=True), ("rollout.temperature=0.5",)),
    "fit top_k=8": (Habits(top_k=8), ()),
    "fit top_p=0.6": (Habits(top_p=0.6), ()),
    "shifted by one token": (Habits(shifted=True), ()),
    "fit the previous head with the current layers: .* tie_word_embeddings=false": (
        Habits(keeps_head=True), ("optimizer.lr=0.05",),
    ),
    "fit the weights before the last update": (
        Habits(stale=True), ("optimizer.lr=0.05",),
    ),
}  # fmt: skip


QUICKLY, *SLOWLY = CAUSES


@pytest.mark.parametrize("cause", [QUICKLY, *(pytest.param(x, marks=SLOW) for x in SLOWLY)])
def test_a_server_that_lies_ends_the_run_and_the_lie_is_named(train, folder, cause):
    habits, overrides = CAUSES[cause]
    # Initial weights give nearly uniform probabilities, so no wrong report is large.
    few = ("evaluation.every=null", "guards.max_mismatch=0.003")
    with pytest.raises(Stop, match=cause):
        train(Loopback(str(folder), habits), *few, *overrides)


@SLOW
def test_an_adapter_that_a_server_leaves_out_is_named(train, folder):
    state = Loopback(str(folder))
    state.habits.bare = True
    with pytest.raises(Stop, match="fit the model without the adapter"):
        train(state, LORA, "evaluation.every=null", "guards.max_mismatch=0.003", "optimizer.lr=0.1")


@SLOW
def test_a_lower_dtype_is_spoken_of_and_a_server_in_order_is_not(train, tmp_path, caplog):
    folder, (model, tokenizer) = (
        tmp_path / "sharp",
        tiny_lm(seed=0, hidden_size=32, num_layers=1, head_dim=8),
    )
    with torch.no_grad():  # initial weights give nearly uniform probabilities, rounded or not
        for parameter in model.parameters():
            parameter.mul_(4)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    quiet = (f"model.path={folder}", "evaluation.every=null", "iterations=1")
    with caplog.at_level(logging.WARNING, logger="tandem"):
        train(Loopback(str(folder)), *quiet, name="whole")
        assert not caplog.messages
        train(Loopback(str(folder), Habits(dtype=torch.bfloat16)), *quiet, name="narrow")
    assert any("a lower dtype" in message for message in caplog.messages)
