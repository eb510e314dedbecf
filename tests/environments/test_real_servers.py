"""Episodes sampled by a real vLLM and answered by a real OpenEnv server and by a program."""

import json
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("websockets", reason="websockets is not installed")

sys.path.append(str(Path(__file__).parents[1] / "policies" / "engines"))
import real_openenv
import real_vllm
from hub_language_models import write_qwen3

import tandem

ROOT = Path(__file__).parents[2]
VLLM = Path(os.environ.get("VLLM_HOME", ROOT / "build/vllm"))
OPENENV = Path(os.environ.get("OPENENV_HOME", ROOT / "build/openenv"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (VLLM.is_dir() and OPENENV.is_dir()),
        reason="no build/vllm and build/openenv: `make build/vllm/ready build/openenv/ready`",
    ),
]
APART, EXACT = "rollout_corr/abs_logp_diff", 1e-5  # nats between engine and trainer
RUN = (
    "model=hf", "data=sort_letters", "rollout=vllm_server", "rollout.max_new_tokens=6",
    "rollout.max_prompt_tokens=null", "iterations=3", "prompts_per_step=2", "group_size=4",
    "num_minibatches=2", "evaluation.prompts=2", "evaluation.samples=1", "evaluation.pass_at=[1]",
    "evaluation.every=3", "guards.no_signal=9", "optimizer.lr=1e-2", "algorithm.kl.coef=0",
    "reward=target_length", "reward.target_length.function.target=5", "trainer.accelerator=cpu",
)  # fmt: skip
AGENT = [sys.executable, "-I", "-S", Path(__file__).with_name("agents.py"), "counting"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_qwen3(tmp_path_factory.mktemp("qwen3"), tied=False, head_dim=32)


@pytest.fixture(scope="module")
def vllm(model, tmp_path_factory):
    with real_vllm.serving(VLLM, model, tmp_path_factory.mktemp("vllm") / "log") as url:
        yield url


@pytest.fixture(scope="module")
def openenv(tmp_path_factory):
    log = tmp_path_factory.mktemp("openenv") / "log"
    with real_openenv.serving(OPENENV, log, sessions=16) as url:
        yield (
            "environment=openenv", f"environment.world.url={url}",
            "environment.world.fields.action=text", "environment.world.fields.observation=text",
        )  # fmt: skip


@pytest.fixture(scope="module")
def agent():
    command = ",".join(map(str, AGENT))
    return "environment=agent", f"environment.world.command=[{command}]"


@pytest.mark.parametrize("world", ["openenv", "agent"])
def test_three_iterations_of_episodes_are_trained_on_the_tokens_of_a_real_vllm(
    model, vllm, world, request, tmp_path
):
    words = (f"model.path={model}", f"rollout.engine.url={vllm}", *request.getfixturevalue(world))
    tandem.train(*RUN, *words, f"run_dir={tmp_path / 'run'}")
    lines = map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
    own = [line for line in lines if "optim/grad_norm" in line]
    assert len(own) == 3
    for line in own:
        assert line["environment/over"] == 1 and line["environment/lost"] == 0
        assert line["environment/turns_mean"] == 3
    gaps = [line[APART] for line in own if APART in line]  # if a group had a gradient
    assert gaps and max(gaps) < EXACT
