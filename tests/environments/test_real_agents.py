"""Agents of openai, smolagents and verifiers are trained; they are installed in `build/agents`."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small_language import chat_model
from transformers import Qwen3ForCausalLM

import tandem

ROOT = Path(__file__).parents[2]
HOME = Path(os.environ.get("AGENTS_HOME", ROOT / "build/agents"))
installed = pytest.mark.skipif(
    not HOME.is_dir(), reason="no build/agents: `make build/agents/ready` installs it"
)
pytestmark = pytest.mark.slow
PYTHON = HOME / "bin/python"
OWN = Path(__file__).with_name("agents.py")
SMOL = Path(__file__).with_name("smol_agent.py")
GAME = ROOT / "experiments" / "own_agent" / "agent.py"
VERIFIERS = HOME / "verifiers" / "bin"
TASK = GAME.with_name("verifiers_task.py")
QUICK = (
    "iterations=3", "prompts_per_step=4", "group_size=4", "num_minibatches=2", "optimizer.lr=1e-3",
    "evaluation.prompts=4", "evaluation.samples=1", "evaluation.pass_at=[1]", "evaluation.every=3",
    "guards.no_signal=9", "trainer.accelerator=cpu",
)  # fmt: skip
SHOWN = "['algorithm=sft','iterations=60','prompts_per_step=32','group_size=1']"
APART = "rollout_corr/abs_logp_diff"  # nats between sampler and trainer
PAYS = ("environment=agent", "environment.world.pays=true")
TASKSET = """import verifiers.v1 as vf


class Data(vf.TaskData):
    letters: int = 0


class Word(vf.Task[Data]):
    @vf.reward()
    async def short(self, trace: vf.Trace) -> float:
        return 1 / (1 + abs(len(trace.last_reply or "") - self.data.letters))


class Words(vf.Taskset[Word]):
    def load(self):
        for letters in range(4):
            prompt = f"a word of {letters} letters"
            yield Word(Data(prompt=prompt, letters=letters), self.config.task)


__all__ = ["Words"]
"""


def train(folder, *words):
    """The metrics of the iterations, and the weights."""
    tandem.train(*words, f"run_dir={folder}")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return lines, load_file(folder / "model" / "model.safetensors")


def command(*words):
    return f"environment.world.command=[{','.join(map(str, words))}]"


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    """Number guessing without an external program."""
    folder = tmp_path_factory.mktemp("hilo") / "run"
    return train(folder, "data=hilo", *QUICK, f"warm_start={SHOWN}")


PLAYERS = {
    "plain HTTP": (sys.executable, "-I", "-S", OWN, "hilo"),
    "the openai client": (PYTHON, GAME),
}


@pytest.mark.parametrize(
    "player", ["plain HTTP", pytest.param("the openai client", marks=installed)]
)
def test_a_program_that_plays_a_game_trains_the_weights_of_the_embedded_game(
    embedded, tmp_path, player
):
    """Bit for bit, over three iterations of several turns."""
    want, weights = embedded
    words = ("data=hilo", *PAYS, command(*PLAYERS[player]), *QUICK, f"warm_start={SHOWN}")
    got, own = train(tmp_path / "run", *words)
    names = ("reward/mean", "environment/turns_mean", "optim/grad_norm")
    for name in names:
        assert [line.get(name) for line in got] == [line.get(name) for line in want], name
    assert got[0]["environment/turns_mean"] > 1.5
    assert all(torch.equal(weight, own[name]) for name, weight in weights.items())


def save_chat_model(folder):
    model, tokenizer = chat_model()
    model.config.max_position_embeddings = 16384
    Qwen3ForCausalLM(model.config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@installed
def test_an_agent_of_smolagents_is_trained_for_three_iterations(tmp_path):
    """It appends a closing tag to the policy's text; the sampled tokens are trained."""
    save_chat_model(tmp_path / "model")
    rows = [{"prompt": f"What is {a}+{b}?", "answer": str(a + b)} for a in (3, 4) for b in (5, 6)]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    lines, _ = train(
        tmp_path / "run", *QUICK, *PAYS, command(PYTHON, SMOL), "model=hf", "data=jsonl",
        f"model.path={tmp_path / 'model'}", f"data.path={tmp_path / 'sums.jsonl'}",
        "prompts_per_step=2", "group_size=2",
        "num_minibatches=1", "rollout.max_new_tokens=12", "rollout.max_prompt_tokens=null",
        "environment.max_tokens=60000",  # each call shows the whole history in other words
        "reward=target_length", "reward.target_length.function.target=5", "evaluation.prompts=1",
    )  # fmt: skip
    own = [line for line in lines if "optim/grad_norm" in line]
    assert len(own) == 3
    assert all(line["environment/lost"] == 0 for line in own)
    assert all(line["environment/turns_mean"] == 3 for line in own)
    gaps = [line[APART] for line in own if APART in line]  # if a group had a gradient
    assert gaps and max(gaps) < 1e-5


@pytest.mark.skipif(
    not VERIFIERS.is_dir(), reason="no verifiers: `make build/agents/ready` installs it"
)
def test_a_taskset_of_verifiers_is_trained_for_three_iterations(tmp_path, monkeypatch):
    """Its own chat loop calls the policy, and its own functions score the result."""
    save_chat_model(tmp_path / "model")
    (tmp_path / "short_words.py").write_text(TASKSET)
    rows = [{"prompt": f"task {i}", "taskset": "short_words", "index": i} for i in range(4)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{VERIFIERS}")  # the folder of uv
    lines, _ = train(
        tmp_path / "run", *QUICK, *PAYS, command(VERIFIERS / "python", TASK), "reward=episode",
        "environment.world.keep_env=[PYTHONPATH,SSL_CERT_FILE,UV_CACHE_DIR]", "model=hf",
        f"model.path={tmp_path / 'model'}", "data=jsonl", f"data.path={tmp_path / 'tasks.jsonl'}",
        "prompts_per_step=1", "group_size=3", "num_minibatches=1", "rollout.max_new_tokens=8",
        "evaluation.prompts=1",
    )  # fmt: skip
    own = [line for line in lines if "optim/grad_norm" in line]
    assert len(own) == 3
    assert all(line["environment/lost"] == 0 for line in own)
    assert len({line["reward/mean"] for line in own}) > 1
