"""Whole runs whose samples come from a real vLLM on the CPU: `make engines` installs and runs it.

Embeddings are untied: vLLM packs a tied head for the CPU and does not update it at a reload.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import torch
from gloo_transfer import write_entry_point
from hub_language_models import write_qwen3
from real_vllm import serving
from small_language import questions
from torch.testing import assert_close

from tandem.losses.divergence import forward_kl
from tandem.policies.engines.vllm_api import INVALID
from tandem.policies.engines.vllm_server import VllmServer
from tandem.policies.language.policy import LanguagePolicy
from tandem.policies.language.records import Answers, Endings, Sampling
from tandem.policies.language.sampling import before, pack
from tandem.policies.language.teacher_server import TeacherServer
from tandem.policies.language.teachers import TokenTeachers
from tandem.policies.request import Request

ROOT = Path(__file__).parents[3]
HOME = Path(os.environ.get("VLLM_HOME", ROOT / "build/vllm"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HOME.is_dir(), reason="no build/vllm: `make engines` installs it"),
]
EXACT, BFLOAT16 = 1e-5, 1e-2  # nats between engine and trainer
QUICK = (
    "model=hf", "data=sort_letters", "rollout=vllm_server", "rollout.max_new_tokens=6",
    "rollout.max_prompt_tokens=20", "iterations=3", "prompts_per_step=4", "group_size=4",
    "num_minibatches=2", "evaluation.prompts=4", "evaluation.samples=2", "evaluation.pass_at=[1]",
    "evaluation.every=1", "guards.no_signal=9", "optimizer.lr=1e-2", "checkpoints.every=1",
    "algorithm.kl.coef=0", "reward=target_length", "reward.target_length.function.target=5",
    "trainer.accelerator=cpu",
)  # fmt: skip
PROMPTS, KEYS = [[5, 6, 7] * 8, [8, 9]], torch.arange(8).view(2, 4)
LORA = "model.lora={r: 4, alpha: 8, target_modules: all-linear}"
RANKS = ("trainer=ddp", "trainer.devices=2")
PARTS = ("trainer=fsdp2", "trainer.devices=2")
RUNS = {
    "an adapter": (LORA,),
    "an adapter, two ranks": (LORA, *RANKS),
    "an adapter, bfloat16": (LORA, "model.dtype=bfloat16"),
    "whole weights": (),
    "whole weights, two ranks": RANKS,
    "whole weights, stop strings": ("rollout.stop=[a,b]",),
    "an adapter in place": (LORA, "rollout.handover=in_flight", "rollout.order=ready"),
    "an adapter, parts on two ranks": (LORA, *PARTS),
    "whole weights, parts on two ranks": PARTS,
    "whole weights, broadcast": ("rollout.engine.transfer=broadcast",),
    "whole weights, broadcast, parts on two ranks": ("rollout.engine.transfer=broadcast", *PARTS),
}
OF_BASE = [kind for kind in RUNS if kind.startswith("an adapter")]  # before the base moves


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_qwen3(tmp_path_factory.mktemp("qwen3"), tied=False, head_dim=32)


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("vllm") / "log"
    options = ("--enable-lora", "--max-lora-rank", "8", "--max-loras", "4", "--enable-scale-out")
    transfer = ("--weight-transfer-config", '{"backend": "gloo"}')
    plugins = tmp_path_factory.mktemp("plugins")
    write_entry_point(plugins)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{plugins}:{Path(__file__).parent}")
        serves = serving(HOME, folder, log, *options, *transfer)
        url = serves.__enter__()
    yield url
    serves.__exit__(None, None, None)


@pytest.fixture(scope="module")
def teacher(folder, tmp_path_factory) -> Iterator[str]:
    """A server without adapters: with them vLLM 0.32 crashes on `prompt_logprobs`."""
    with serving(HOME, folder, tmp_path_factory.mktemp("teacher") / "log") as url:
        yield url


@pytest.mark.parametrize("needs", ["teacher_logp", "divergence"])
def test_a_real_server_teaches_as_the_same_weights_here_do(teacher, folder, needs):
    asked = frozenset({needs})
    options = {"divergence": forward_kl, "top_k": 5} if needs == "divergence" else {}

    def said(teacher: str) -> torch.Tensor:
        policy = LanguagePolicy(path=str(folder))
        asking = TeacherServer(patience=300.0)
        teachers = TokenTeachers(folders={"others": teacher}, server=asking, **options)
        sampling = Sampling(max_new_tokens=6)
        policy.load(Request(sampling=sampling, needs=asked, teachers=teachers))
        torch.manual_seed(1)
        for parameter in policy.trainable().values():
            parameter.data.add_(0.05 * torch.randn_like(parameter))
        rows = policy.sample(questions()[:3], 2, key=5, slots=range(3))
        rows = policy.complete(rows, asked)
        return policy.evidence(rows, asked).divergence if options else rows.teacher_logp

    assert_close(said(teacher), said(str(folder)), atol=EXACT, rtol=1e-3)


def train(folder: Path, url: str, run_dir: Path, *options: str) -> list[dict]:
    """The lines of the iterations, in a separate process: the command starts the ranks."""
    places = (f"model.path={folder}", f"rollout.engine.url={url}", f"run_dir={run_dir}")
    subprocess.run(
        [sys.executable, ROOT / "train.py", *QUICK, *places, *options], check=True, timeout=600
    )
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()][:-1]


def post(url: str, path: str, **payload: object) -> httpx.Response:
    return httpx.post(url + path, json=payload, timeout=120)


def test_every_endpoint_answers_as_the_client_reads_it(server):
    """First in the file: it ends with one adapter less and the initial weights."""
    assert httpx.get(f"{server}/health").status_code == 200
    (card,) = httpx.get(f"{server}/v1/models").json()["data"]
    assert card["max_model_len"] == 256
    info = httpx.get(f"{server}/server_info?config_format=json", timeout=120).json()["vllm_config"]
    assert info["model_config"]["logprobs_mode"] == "processed_logprobs"
    assert info["lora_config"]["max_lora_rank"] == 8
    assert httpx.get(f"{server}/weight_info").json()["weight_version"] == "default"
    assert post(server, "/update_weight_version", new_version="a-1").status_code == 200
    assert httpx.get(f"{server}/weight_info").json()["weight_version"] == "a-1"
    assert post(server, "/reset_prefix_cache").json()["success"] is True
    reply = post(
        server, "/v1/completions", model=card["id"], prompt=[1, 2, 3], max_tokens=4, seed=2**63 - 1,
        logprobs=0, top_k=0, return_token_ids=True, return_tokens_as_token_ids=True,
        add_special_tokens=False,
    )  # fmt: skip
    (choice,) = reply.json()["choices"]
    assert choice["prompt_token_ids"] == [1, 2, 3]
    named = [f"token_id:{token}" for token in choice["token_ids"]]
    assert choice["logprobs"]["tokens"] == named
    assert len(choice["logprobs"]["token_logprobs"]) == len(named) == 4
    unknown = post(server, "/v1/completions", model="nobody", prompt=[1], max_tokens=1)
    assert unknown.status_code == 404
    assert post(server, "/inference/v1/generate").status_code in INVALID
    asked = {"max_tokens": 4, "seed": 2**63 - 1, "logprobs": 0, "top_k": 0, "detokenize": False}
    reply = post(
        server, "/inference/v1/generate", model=card["id"], token_ids=[1, 2, 3],
        sampling_params=asked, return_token_ids=True,
    )  # fmt: skip
    assert reply.json()["prompt_token_ids"] == [1, 2, 3]
    (generated,) = reply.json()["choices"]
    assert generated["token_ids"] == choice["token_ids"]
    said = [each["logprob"] for each in generated["logprobs"]["content"]]
    assert said == choice["logprobs"]["token_logprobs"]
    assert generated["weight_versions"] == [{"version": "a-1", "start": 0, "end": 4}]
    assert info["lora_config"]["max_loras"] == 4
    assert info["weight_transfer_config"]["backend"] == "gloo"
    assert httpx.get(f"{server}/get_world_size").json()["world_size"] == 1
    assert post(server, "/pause?mode=keep").json()["status"] == "paused"
    assert httpx.get(f"{server}/is_paused").json()["is_paused"] is True
    assert post(server, "/resume").json()["status"] == "resumed"
    nobody = {"model": "nobody", "token_ids": [1], "sampling_params": asked}
    assert post(server, "/inference/v1/generate", **nobody).status_code == 404
    assert post(server, "/v1/unload_lora_adapter", lora_name="nobody").status_code == 404


@pytest.mark.parametrize("kind", [*OF_BASE, *(kind for kind in RUNS if kind not in OF_BASE)])
def test_a_run_trains_on_the_samples_of_a_real_vllm(server, folder, tmp_path, kind):
    iterations = train(folder, server, tmp_path / "run", *RUNS[kind])
    apart = [line["rollout_corr/abs_logp_diff"] for line in iterations]
    print(f"{kind}: |dlogp| " + " ".join(f"{value:.1e}" for value in apart))
    assert len(apart) == 3
    assert max(apart) < (BFLOAT16 if "bfloat16" in kind else EXACT)


def sampled_tokens(server):
    """The tokens that the server has sampled since it was started."""
    lines = httpx.get(f"{server}/metrics").text.splitlines()
    counts = (line for line in lines if line.startswith("vllm:generation_tokens_total{"))
    return sum(float(line.rpartition(" ")[2]) for line in counts)


@pytest.mark.parametrize("transfer", ["files", "broadcast"])
@pytest.mark.parametrize("handover", ["drain", "in_flight"])
def test_weights_that_are_published_arrive_while_rows_are_under_way(
    server, folder, tmp_path, handover, transfer
):
    policy = LanguagePolicy(path=str(folder))
    engine = VllmServer(url=server, folder=str(tmp_path), transfer=transfer)
    sampling = Sampling(max_new_tokens=150, engine=engine, handover=handover, staleness=1)
    policy.load(Request(sampling=sampling))
    supply = policy.supply

    def begun() -> Answers:
        endings = Endings(tokens=policy.ends, strings=(), decode=policy.chat.decode_all)
        with supply.under_way() as rows:
            return rows.answer(PROMPTS, KEYS, sampling=sampling, endings=endings)

    def apart(answers: Answers) -> torch.Tensor:
        prompts = [prompt for prompt in PROMPTS for _ in KEYS[0]]
        mask = before(answers.length, answers.tokens.shape[1])
        sample = pack(prompts, answers.tokens, answers.length, 1.0)
        return (policy.scorer.in_parts(sample, mask).logp - answers.logp).abs()

    supply.publish()
    supply.journey.end()
    with ThreadPoolExecutor(1) as pool, torch.no_grad():
        before_it = sampled_tokens(server)
        rows = pool.submit(begun)
        while sampled_tokens(server) == before_it and not rows.done():
            time.sleep(0.02)
        older = {name: p.clone() for name, p in policy.trainable().items()}
        for parameter in policy.trainable().values():
            parameter.add_(0.01 * torch.randn_like(parameter))
        supply.publish()
        supply.journey.end()
        under_way, after = rows.result(), begun()
        assert apart(after).max() < EXACT
        assert after.version.max() == 2
        policy.load_weights(older)
        assert apart(under_way)[under_way.version == 1].max() < EXACT
        if handover == "drain":
            assert under_way.version.max() == 1


def test_an_adapter_on_the_weights_of_another_run_is_refused(server, folder, tmp_path):
    """Last in the file: the server has the whole weights of the previous run."""
    with pytest.raises(subprocess.CalledProcessError):
        train(folder, server, tmp_path / "run", LORA)


def test_a_run_goes_on_with_a_server_that_was_started_again(folder, tmp_path):
    run_dir = tmp_path / "run"
    with serving(HOME, folder, tmp_path / "first") as url:
        train(folder, url, run_dir, "iterations=1")
    with serving(HOME, folder, tmp_path / "second") as url:
        subprocess.run(
            [sys.executable, ROOT / "train.py", f"resume={run_dir}", "iterations=3",
             f"rollout.engine.url={url}"], check=True, timeout=600,
        )  # fmt: skip
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == [0, 1, 2, 3]
    assert all(row["rollout_corr/abs_logp_diff"] < EXACT for row in rows[:3])
