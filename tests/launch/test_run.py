"""Whole runs on small models, from Python and from the command line."""

import errno
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from gate import each
from ladder import FEW, few_of
from loaded import load_configured
from omegaconf import OmegaConf
from policies.small_language import chat_model
from processes import start_training
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import tandem
from tandem.config import ConfigError, check, compose
from tandem.launch import run
from tandem.launch.evaluation import whose_weights
from tandem.launch.run import Result
from tandem.launch.stops import stops
from tandem.policies.language.token_policy import TokenPolicy
from tandem.record import jsonl, room
from tandem.record.finished import completed_iterations as finished_at
from tandem.record.reading.runs import read as read_run
from tandem.stop import Stop

ROOT = Path(__file__).parents[2]
QUICK = (
    "warm_start=null", "iterations=2", "prompts_per_step=4", "group_size=4", "num_minibatches=2",
    "evaluation.prompts=4", "evaluation.pass_at=[1,4]", "evaluation.every=1", "guards.no_signal=9",
)  # fmt: skip
WARM = "warm_start=['algorithm=sft','iterations=2']"
REFERRING = "algorithm.kl.coef=0.1"  # to the weights that a run begins with
# A reward that an untrained model already varies in.
DENSE = ("reward=target_length", "reward.target_length.function.target=5")


def lines(folder: Path, name: str = "metrics.jsonl") -> list[dict]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ({}, "model=m as it is loaded"),
        ({"warm_start": ["algorithm=sft"]}, "model=m after its warm start"),
        ({"continue_from": "runs/a"}, "the weights that runs/a ended with"),
        ({"continue_from": "runs/a", "resume": "runs/b"}, "the weights after 3 iterations"),
    ],
)
def test_an_evaluation_says_whose_weights_it_was_of(start, said):
    settings = {"resume": None, "continue_from": None, "warm_start": None, "iterations": 5}
    own = {"choices": {"model": "m"}, "evaluation": SimpleNamespace(of_average=False)}
    assert whose_weights(SimpleNamespace(**settings | own | start), 3) == said


def train(folder: Path, *overrides: str) -> Result:
    return tandem.train(*QUICK, *DENSE, f"run_dir={folder}", *few_of(*overrides))


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Result:
    return train(tmp_path_factory.mktemp("straight"))


@pytest.fixture(scope="module")
def straight(finished) -> Path:
    return finished.run_dir


@pytest.fixture(scope="module")
def continued(straight, tmp_path_factory) -> Path:
    """A run that began with the weights of another."""
    return train(tmp_path_factory.mktemp("next"), f"continue_from={straight}").run_dir


@pytest.fixture(scope="module")
def warmed(tmp_path_factory) -> Path:
    """A run after a warm start, which is its reference, beside the cache of its weights."""
    folder = tmp_path_factory.mktemp("warmed")
    return train(folder / "run", WARM, f"cache_dir={folder / 'cache'}", REFERRING).run_dir


@pytest.fixture(scope="module")
def chat_folder(tmp_path_factory) -> Path:
    """A small Qwen3 in the hub's format: weights, tokenizer, chat template."""
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
    start = load_configured(compose(FEW))
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
    train(tmp_path / "other", "seed=1", "iterations=1")
    assert lines(tmp_path / "other")[0] != lines(straight)[0]


def test_the_result_has_the_last_value_of_each_metric(finished):
    *_, trained, last = lines(finished.run_dir)
    assert finished.metrics["eval/accuracy"] == last["eval/accuracy"]
    assert finished.metrics["reward/mean"] == trained["reward/mean"]


def test_a_dry_run_loads_nothing_and_writes_nothing(tmp_path, capsys):
    result = train(tmp_path / "run", "dry_run=true", "model=qwen3_8b")
    assert result.metrics == {}
    assert not (tmp_path / "run").exists()
    said = capsys.readouterr().out
    assert "4 prompts x 4 samples = 16 samples" in said
    assert str(tmp_path) not in said
    train(tmp_path / "run", "dry_run=true", "data=hub", "data.name=no/such")
    assert "prompts     not read, as a dry run downloads nothing\n" in capsys.readouterr().out


def test_a_dry_run_is_refused_an_accelerator_as_the_run_is(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    words = ["model=tiny_lm", "warm_start=null", "trainer.accelerator=gpu"]
    for preview in (["dry_run=true"], []):
        with pytest.raises(ConfigError, match=r"^trainer.accelerator=gpu: torch finds none here"):
            train(tmp_path / "run", *words, *preview)
    train(tmp_path / "run", *words, "estimate=true")  # for another machine
    assert "GiB" in capsys.readouterr().out


def test_a_rank_loads_on_its_own_gpu(tmp_path, monkeypatch):
    current = []

    @contextmanager
    def on(place):
        current.append(place)
        yield
        current.remove(place)

    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.device", on)
    monkeypatch.setenv("LOCAL_RANK", "1")
    cfg = compose(["trainer.devices=2"])
    with run.resources(cfg, check(cfg), tmp_path / "run", "train"):
        assert current == [torch.device("cuda:1")]
    assert current == []
    cpu = compose(["trainer=cpu"])
    with run.resources(cpu, check(cpu), tmp_path / "run", "train"):
        assert current == []


def test_a_run_computes_in_its_own_precision_after_a_warm_start(tmp_path, monkeypatch):
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    seen = []

    def start(cfg, train):
        run.set_float32_precision(check(compose(["trainer=auto"])).trainer)

    def assemble(*_):
        seen.append((torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32))
        raise Stop("assembled")

    monkeypatch.setattr(run, "starting_weights", start)
    monkeypatch.setattr(run, "assemble", assemble)
    with pytest.raises(Stop, match="assembled"):
        train(tmp_path / "run", "trainer.float32_matmul_precision=high")
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]
    assert seen == [("high", True)]


def test_a_run_without_a_checkpoint_is_not_evaluated_and_no_warm_start_is_trained(tmp_path):
    cfg = compose([f"run_dir={tmp_path}", f"cache_dir={tmp_path / 'cache'}"])
    OmegaConf.save(cfg, tmp_path / "config.yaml", resolve=True)
    with pytest.raises(ConfigError, match=r"resume=\S+: it has no checkpoint to evaluate"):
        tandem.train(f"resume={tmp_path}", "evaluate=true")
    assert not (tmp_path / "cache").exists()


def test_a_run_killed_before_its_first_checkpoint_is_resumed_with_more_frequent_ones(tmp_path):
    cfg = compose([f"run_dir={tmp_path}", "checkpoints.every=20"])
    OmegaConf.save(cfg, tmp_path / "config.yaml", resolve=True)
    (tmp_path / "checkpoints").mkdir()
    for iteration in range(12):
        jsonl.append(tmp_path / "metrics.jsonl", {"iteration": iteration})
    tandem.train(f"resume={tmp_path}", "checkpoints.every=5", "dry_run=true")


def test_a_run_silences_libraries_that_miss_optional_packages(tmp_path):
    said = [logging.getLogger(name) for name in ("bitsandbytes", "diffusers.quantizers.torchao")]
    for log in said:
        log.setLevel(logging.WARNING)
    tandem.train("dry_run=true", f"run_dir={tmp_path / 'run'}")
    assert not any(log.isEnabledFor(logging.WARNING) for log in said)


@pytest.mark.slow
def test_a_run_writes_to_its_directory_from_wherever_a_reward_goes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert tandem.train("dry_run=true", "run_dir=run").run_dir == tmp_path / "run"


@pytest.mark.parametrize("lora", ["null", "{r: 4, alpha: 8, target_modules: all-linear}"])
def test_dapo_trains_a_saved_chat_model_from_rows_of_a_file(tmp_path, chat_folder, questions, lora):
    result = train(
        tmp_path / "run", "algorithm=dapo", "model=hf", f"model.path={chat_folder}", "data=jsonl",
        f"data.path={questions}", f"model.lora={lora}", "rollout.max_new_tokens=6",
        "algorithm.sampling_strategy.max_rounds=2", "optimizer.lr=1e-3", "algorithm.kl.coef=0.1",
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


@pytest.mark.slow  # in the gate preflight prints it, and another command does
@pytest.mark.system
def test_the_whole_configuration_of_dapo_on_qwen3_8b_is_printed():
    asked = ("algorithm=dapo", "model=qwen3_8b", "--cfg", "job", "--resolve")
    done = subprocess.run(
        [sys.executable, "train.py", *asked],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    cfg = OmegaConf.create(done.stdout)
    assert (cfg.algorithm.loss.clip_low, cfg.algorithm.loss.clip_high) == (0.2, 0.28)
    assert cfg.model.path == "Qwen/Qwen3-8B"


def test_micro_batches_change_nothing_but_memory(tmp_path):
    """Through Lightning, on one device: several backward passes per update."""
    pattern = "reward.format.function.pattern='[^a-j].*'"
    binary = (*QUICK, *FEW, "reward=format", pattern, "iterations=1")
    whole, cut = (
        tandem.train(*binary, f"run_dir={tmp_path / str(rows)}", f"micro_batch_size={rows}",
                     "max_tokens_per_microbatch=null")
        for rows in (1000, 3)
    )  # fmt: skip
    for name in ("optim/grad_norm", "loss/policy", "actor/nll"):
        assert cut.metrics[name] == pytest.approx(whole.metrics[name], rel=1e-4)


def test_a_wrong_path_is_one_line_that_names_the_flag(tmp_path):
    with pytest.raises(ConfigError, match=r"model\.path") as refused:
        train(tmp_path / "run", "model=hf", "model.path=/nowhere", "data=sort_letters")
    assert "\n" not in str(refused.value)


def test_prompts_that_do_not_fit_are_counted_by_their_reasons(tmp_path, chat_folder, questions):
    with pytest.raises(
        ConfigError, match=r"none of the 39 prompts of train: \d+ x has \d+ tokens, more than 8"
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


def test_a_run_can_be_evaluated_alone(straight, capsys):
    result = tandem.train("evaluate=true", f"resume={straight}")
    said = capsys.readouterr().out
    assert "by the weights after 2 iterations" in said
    assert f"written     {straight}/evaluation_eval.jsonl and evaluation_eval.json" in said
    assert f"accuracy{result.metrics['eval/accuracy']:>9.3f}".split() in map(
        str.split, said.splitlines()
    )
    assert result.metrics["eval/length"] == lines(straight)[-1]["eval/length"]
    assert len(lines(straight)) == 3
    kept = json.loads((straight / "evaluation_eval.json").read_text())
    assert kept["eval/length"] == result.metrics["eval/length"]


def test_an_evaluation_in_a_job_of_slurm_needs_no_other_node(straight, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    words = [f"resume={straight}", "trainer.num_nodes=2", "iterations=9"]
    assert tandem.train(*words, "evaluate=true").metrics
    tandem.train(*words, "dry_run=true")
    with pytest.raises(ConfigError, match=r"^trainer\.num_nodes=2: in a SLURM job a task per rank"):
        tandem.train(*words)


def test_text_that_looks_like_an_interpolation_stays_in_the_record(tmp_path):
    train(tmp_path / "run", "rollout.stop=['<\\${a b}>','\\${seed}']", "iterations=1")
    tandem.train("evaluate=true", f"resume={tmp_path / 'run'}")
    recorded = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert recorded["rollout"]["stop"] == ["<${a b}>", "${seed}"]


def test_the_average_of_a_run_can_be_evaluated_alone(tmp_path):
    """With decay 0 the average equals the live weights."""
    tandem.train(
        *QUICK, "model=tiny_flow", "reward=colour_share", "~recipe", f"run_dir={tmp_path}",
        "model/ema=constant", "model.ema.decay=0.0", "rollout.steps=3", "optimizer.lr=0.01",
        "evaluation.steps=3", "evaluation.every=2",
    )  # fmt: skip
    first, *_, last = (line["eval/reward"] for line in lines(tmp_path) if "eval/reward" in line)
    result = tandem.train("evaluate=true", f"resume={tmp_path}", "evaluation.weights=ema")
    assert result.metrics["eval/reward"] == last != first


def test_guided_evaluation_of_unguided_training_needs_a_negative_prompt(tmp_path):
    asked = (
        *QUICK, "model=tiny_flow", "reward=colour_share", "~recipe", f"run_dir={tmp_path}",
        "iterations=1", "rollout.steps=3", "evaluation.steps=3", "evaluation.guidance_scale=4",
    )  # fmt: skip
    with pytest.raises(
        ConfigError, match=r"evaluation\.guidance_scale above 1 needs; set model\.neg"
    ):
        tandem.train(*asked)
    assert "eval/reward" in tandem.train(*asked, "model.negative_prompt=''").metrics


def test_the_test_split_is_measured_on_its_own_and_may_truncate(straight):
    asked = ("evaluation.split=test", "evaluation.top_k=1")
    result = tandem.train("evaluate=true", f"resume={straight}", *asked)
    assert (straight / "evaluation_test.json").exists()
    # The likeliest token alone is the greedy answer.
    assert result.metrics["eval/accuracy"] == result.metrics["eval/greedy_accuracy"]


def test_a_run_can_continue_from_the_weights_of_another(straight, continued):
    first, last = lines(continued)[0], lines(straight)[-1]
    assert first["eval/length"] == last["eval/length"]


def test_longer_resumed_runs_begin_as_shorter_ones_ended(straight, tmp_path):
    longer = shutil.copytree(straight, tmp_path / "run")
    tandem.train(f"resume={longer}", "iterations=3")
    assert [line["iteration"] for line in lines(longer)] == [0, 1, 2, 3]
    assert lines(longer)[:2] == lines(straight)[:2]
    assert finished_at(longer) == read_run(longer).config["iterations"] == 3


def test_a_longer_run_that_ends_while_its_model_is_saved_is_not_finished(
    straight, tmp_path, monkeypatch
):
    longer = shutil.copytree(straight, tmp_path / "run")
    save = TokenPolicy.save
    monkeypatch.setattr(TokenPolicy, "save", interrupt)
    with pytest.raises(KeyboardInterrupt):
        tandem.train(f"resume={longer}", "iterations=3")
    monkeypatch.setattr(TokenPolicy, "save", save)
    assert lines(longer)[-1]["iteration"] == 3
    assert finished_at(longer) is None
    tandem.train(f"resume={longer}")
    assert finished_at(longer) == 3
    before, after = (load_file(one / "model" / "model.safetensors") for one in (straight, longer))
    assert any(not torch.equal(before[name], after[name]) for name in before)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_resumed_run_has_the_reference_that_it_began_with(warmed, tmp_path):
    asked = (WARM, f"cache_dir={warmed.parent / 'cache'}", REFERRING)
    train(tmp_path / "parts", *asked, "iterations=1")
    tandem.train(f"resume={tmp_path / 'parts'}", "iterations=2")
    whole, parts = lines(warmed), lines(tmp_path / "parts")
    assert parts[1]["actor/ref_kl"] == whole[1]["actor/ref_kl"] > 0


REMEMBERING = {
    "ppo": (
        "algorithm.kl.kl_target=0.001", "algorithm.kl.horizon=100", "algorithm.critic.warmup=1",
        "algorithm.entropy.target=9", "model.critic=separate", "algorithm.target_kl=null",
    ),
    "reinforce": ("algorithm/advantage=moving_average", "num_minibatches=1"),
    "clip_cov": ("algorithm.loss.part=0.3", "algorithm.loss.between=[0.01,9]"),
}  # fmt: skip


@pytest.mark.parametrize("algorithm", each(4, REMEMBERING))
def test_what_an_algorithm_remembers_is_resumed_bit_for_bit(tmp_path, algorithm):
    asked = (
        f"algorithm={algorithm}", "~recipe", "schedule=constant", "evaluation.every=null",
        "checkpoints.every=1", "group_size=4", *REMEMBERING[algorithm],
    )  # fmt: skip
    train(tmp_path / "whole", *asked, "iterations=3")
    train(tmp_path / "parts", *asked, "iterations=2")
    tandem.train(f"resume={tmp_path / 'parts'}", "iterations=3")
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")
    parts, whole = (
        load_file(tmp_path / run / "model" / "model.safetensors") for run in ("parts", "whole")
    )
    assert all(torch.equal(parts[name], weight) for name, weight in whole.items())


def test_a_run_that_continued_from_another_can_be_resumed(continued, tmp_path):
    longer = shutil.copytree(continued, tmp_path / "next")
    tandem.train(f"resume={longer}", "iterations=3")
    assert [line["iteration"] for line in lines(longer)] == [0, 1, 2, 3]


def test_rows_of_a_file_are_part_of_what_made_a_warm_start(tmp_path, chat_folder, questions):
    data = tmp_path / "rows.jsonl"
    for text in (questions.read_text(), questions.read_text().replace("word1", "term1")):
        data.write_text(text)
        train(
            tmp_path / str(len(list(tmp_path.iterdir()))), WARM, f"cache_dir={tmp_path / 'cache'}",
            "model=hf", f"model.path={chat_folder}", "data=jsonl", f"data.path={data}",
            "rollout.max_new_tokens=6", "iterations=1",
        )  # fmt: skip
    assert len(list((tmp_path / "cache" / "warm_start").iterdir())) == 2


def test_training_rows_that_are_held_out_too_are_left_out_and_listed(
    tmp_path, chat_folder, questions
):
    held_out = tmp_path / "held_out.jsonl"
    held_out.write_text("\n".join(questions.read_text().splitlines()[:3]))
    result = train(
        tmp_path / "run", "model=hf", f"model.path={chat_folder}", "data=jsonl", "iterations=1",
        f"data.path={questions}", f"data.eval_path={held_out}", "rollout.max_new_tokens=6",
    )  # fmt: skip
    reasons = [row["reason"] for row in lines(result.run_dir, "quarantine.jsonl")]
    assert reasons.count("is held out too") == 3


def test_an_evaluation_of_all_training_questions_is_refused_with_the_reason(
    tmp_path, chat_folder, questions
):
    told = r"can use none of the \d+ prompts of train: \d+ x is held out too; .*data.held_out"
    with pytest.raises(ConfigError, match=told):
        train(
            tmp_path / "run", "model=hf", f"model.path={chat_folder}", "data=jsonl",
            f"data.path={questions}", f"data.eval_path={questions}", "rollout.max_new_tokens=6",
        )  # fmt: skip


def test_a_demonstration_longer_than_the_model_is_listed_not_fatal(tmp_path, chat_folder, capsys):
    path = tmp_path / "shown.jsonl"
    rows = [{"prompt": f"say {i}", "answer": "x" * (300 if i == 7 else 3)} for i in range(60)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    result = train(
        tmp_path / "run", "algorithm=sft", "group_size=1", "model=hf", f"model.path={chat_folder}",
        "data=jsonl", f"data.path={path}", "rollout.max_new_tokens=6", "iterations=1",
    )  # fmt: skip
    (row,) = lines(result.run_dir, "quarantine.jsonl")
    assert "tokens with its answer, more than the model's limit of 128" in row["reason"]
    assert row["text"] == "say 7" and "id" in row and "line" not in row
    said = capsys.readouterr().out
    read = int(re.search(r"^prompts +(\d+) to train on", said, re.M)[1])
    assert f"; {read - 1} left to train on\n" in said


def test_a_warm_start_is_trained_once_and_found_again(warmed, tmp_path, capsys):
    cache = shutil.copytree(warmed.parent / "cache", tmp_path / "cache")
    other = ("algorithm=rloo", "num_minibatches=1", "iterations=1")
    train(tmp_path / "other", WARM, f"cache_dir={cache}", *other)
    assert "from the cache" in capsys.readouterr().out
    assert len(list((cache / "warm_start").iterdir())) == 1
    assert lines(warmed)[0]["eval/length"] == lines(tmp_path / "other")[0]["eval/length"]


def test_a_new_seed_has_a_warm_start_of_its_own(warmed, tmp_path):
    cache = shutil.copytree(warmed.parent / "cache", tmp_path / "cache")
    train(tmp_path / "run", WARM, f"cache_dir={cache}", "seed=1", "iterations=1")
    assert len(list((cache / "warm_start").iterdir())) == 2


def command(*overrides: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "train.py", *QUICK, *DENSE, *FEW, *overrides],
        cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip


@pytest.mark.system
def test_the_command_line_writes_what_python_writes(straight, tmp_path):
    words, said = (*QUICK, *DENSE, *FEW, f"run_dir={tmp_path / 'run'}"), tmp_path / "said"
    process = start_training(*words, output=said)
    process.join(timeout=300)
    assert process.exitcode == 0, said.read_text()
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (
        straight / "metrics.jsonl"
    ).read_bytes()


@pytest.mark.slow  # tests/test_sharding.py holds the gradients of ranks; this one their launch too
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


def test_a_run_that_is_solved_ends_with_its_model_and_is_finished(tmp_path):
    easy = ("reward=length", "reward.length.range=[-1,0]")
    own = ("iterations=9", "guards.no_signal=2", f"run_dir={tmp_path / 'run'}")
    folder = tandem.train(*QUICK, *few_of(*easy, *own)).run_dir
    assert lines(folder)[-1]["guards/solved"] == finished_at(folder) == 2
    assert read_run(folder).is_finished and (folder / "model").is_dir()


@pytest.mark.slow
@pytest.mark.system
def test_ranks_that_a_guard_ends_together_save_a_checkpoint(tmp_path):
    done = command(
        f"run_dir={tmp_path / 'run'}", "trainer=ddp", "trainer.devices=2",
        "trainer.accelerator=cpu", "reward=[target_length,exact_match]",
        "reward.target_length.weight=0", "guards.no_signal=1",
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step_000001"]


def test_a_guard_ends_the_command_with_one_line_and_the_next_commands(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended, stops(tmp_path / "run"):
        train(tmp_path / "run", "reward=[target_length,exact_match]",
              "reward.target_length.weight=0", "guards.no_signal=1")  # fmt: skip
    assert ended.value.code == 3
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    assert "raise group_size or rollout.temperature" in said.err
    assert "metrics.jsonl: 1; newest checkpoint: step_000001\n" in said.out
    assert f"train resume={tmp_path / 'run'} guards.no_signal=2\n" in said.out
    assert said.out.endswith("help        docs/debugging.md#symptoms\n")


def test_a_run_that_lost_its_checkpoints_is_not_begun_again_without_a_word(straight, tmp_path):
    lost = tmp_path / "lost"
    shutil.copytree(straight, lost)
    shutil.rmtree(lost / "checkpoints")
    before = (lost / "metrics.jsonl").read_bytes()
    with pytest.raises(
        ConfigError, match=r"its logs have 3 lines, but .*checkpoints has no checkpoint"
    ):
        tandem.train(f"resume={lost}")
    assert (lost / "metrics.jsonl").read_bytes() == before


def test_a_start_after_one_without_an_iteration_is_recorded_as_it_ran(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(run, "fit", run_out_of_memory)
        with pytest.raises(MemoryError):
            train(folder, "seed=5", "optimizer.lr=1e-3", "iterations=1")
    train(folder, "seed=7", "optimizer.lr=1e-5", "iterations=1")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert (config["seed"], float(config["optimizer"]["lr"])) == (7, 1e-5)
    assert json.loads((folder / "manifest.json").read_text())["seed"] == 7


def run_out_of_memory(*_):
    raise MemoryError


def test_no_room_for_the_checkpoints_is_known_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(room.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(ConfigError, match=r"3 checkpoints of .* GiB are free; free some space"):
        train(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    cache = tmp_path / "cache"
    with pytest.raises(ConfigError, match=rf"^cache_dir={cache}: .* set checkpoints\.keep=1 in wa"):
        train(tmp_path / "run", WARM, f"cache_dir={cache}")


def test_a_disk_that_is_full_at_the_start_is_one_line(tmp_path, monkeypatch):
    def refuse(folder):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / "run.lock"))

    monkeypatch.setattr(run, "claim_folder", refuse)
    with pytest.raises(Stop, match=r"run\.lock: No space left on device; free some space"):
        tandem.train(*FEW, f"run_dir={tmp_path / 'run'}")


@pytest.mark.parametrize("where", ["record.publishing._needs_room", "record.jsonl.append"])
def test_a_disk_that_fills_in_a_warm_start_names_a_command_that_goes_on(
    tmp_path, monkeypatch, where
):
    """The folder of the warm start no longer exists."""

    def refuse(path, _):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(f"tandem.{where}", refuse)
    warm = ("warm_start=['algorithm=sft','iterations=1']", f"cache_dir={tmp_path / 'cache'}")
    with pytest.raises(Stop, match=r"No space left .*, and give the same command again$"):
        train(tmp_path / "run", *warm)


def test_the_room_that_is_asked_for_is_what_a_checkpoint_takes(straight, tmp_path, monkeypatch):
    def refuse(place, *, size, **_):
        raise Stop(str(size))

    monkeypatch.setattr("tandem.launch.run.check_room", refuse)
    with pytest.raises(Stop) as asked:
        train(tmp_path / "run")
    taken = room.measure_size(straight / "checkpoints" / "step_000002")
    assert float(str(asked.value)) == pytest.approx(taken, rel=0.05)
