"""Refusals before weights are loaded: of starting points, teachers and devices."""

from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.accelerators import MPSAccelerator

from tandem import config
from tandem.config import ConfigError, compose
from tandem.config.experiments import record_overrides
from tandem.launch.devices import check_accelerator, check_devices, device_of_rank
from tandem.launch.engine_check import check_engine
from tandem.launch.initial_weights import check_start, starting_weights
from tandem.policies.engines.vllm_server import VllmServer
from tandem.policies.language import kernels
from tandem.stop import EngineUnavailable, command_to_resume

TAUGHT = ("model=tiny_flow", "algorithm=diffusion_opd", "~recipe", "warm_start=null")
GIVE = "; give the directory of a finished run of a flow, or a folder in diffusers' layout"


def write(folder, *files):
    folder.mkdir(parents=True)
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    return folder


def check(*overrides, **folders):
    named = ",".join(f"{source}: '{folder}'" for source, folder in folders.items())
    check_start(compose([*TAUGHT, f"algorithm.teachers.folders={{{named}}}", *overrides]))


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        (None, "there is no such folder" + GIVE),
        (["notes.txt"], "there is no transformer/config.json in it" + GIVE),
        (["config.yaml", "model/config.json"], "there is no transformer/config.json in it" + GIVE),
        (
            ["config.yaml", "metrics.jsonl"],
            "there is no model/ in this run; finish it first: {}",
        ),
    ],
    ids=["nothing", "something else", "a language model", "an unfinished run"],
)
@pytest.mark.parametrize("start", [[], ["warm_start=['algorithm=sft']"]], ids=["cold", "warm"])
def test_a_teacher_that_is_not_there_is_named_before_anything_is_loaded(
    tmp_path, files, fault, start
):
    good, bad = write(tmp_path / "good", "transformer/config.json"), tmp_path / "a run"
    if files is not None:
        write(bad, *files)
    with pytest.raises(ConfigError) as refused:
        check(*start, shapes=good, others=bad)
    fault = fault.format(command_to_resume(bad))  # with the path in quotes
    assert str(refused.value) == f"algorithm.teachers.folders.others={bad}: {fault}"


def test_a_teacher_of_texts_that_is_no_folder_is_named_too(tmp_path):
    words = [f"algorithm.teachers.folders={{others: {tmp_path}/nope}}", "warm_start=null"]
    with pytest.raises(ConfigError, match=rf"^algorithm.teachers.folders.others={tmp_path}/nope: "):
        check_start(compose(["algorithm=gkd", *words]))


@pytest.mark.parametrize("word", ["evaluate=true", "dry_run=true", "resume=x", "warm_start=null"])
def test_a_warm_start_is_a_run_that_is_trained(word):
    with pytest.raises(ConfigError, match=f"^warm_start: {word}: a warm start is a separate run"):
        check_start(compose([f"warm_start=['algorithm=sft','{word}']"]))


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("algorithm=sftt", r"unknown option of algorithm 'sftt': did you mean 'sft'\?"),
        ("iterations=abc", "iterations: expected int, got 'abc'"),
    ],
)
def test_a_wrong_override_of_a_warm_start_is_named_as_one(word, said):
    with pytest.raises(ConfigError, match=f"^warm_start: {said}$"):
        check_start(compose([f"warm_start=['{word}']"]))


@pytest.mark.parametrize("start", ["warm_start=['algorithm=sft']", "warm_start=null", None])
def test_a_warm_start_is_not_typed_beside_weights_to_continue_from(tmp_path, start):
    run = write(tmp_path / "run", "config.yaml", "model/config.json")
    words = [f"continue_from={run}", *([start] if start else [])]
    cfg = compose(words)
    record_overrides(cfg, words)
    if start is None or start.endswith("null"):
        assert check_start(cfg) is None
        return
    with pytest.raises(ConfigError, match="trains weights to begin with, and continue_from="):
        check_start(cfg)
    cfg.resume = str(tmp_path)  # of an earlier version, which dropped the warm start
    assert check_start(cfg) is None


def typed(*words):
    cfg = compose([*words])
    record_overrides(cfg, words)
    return cfg


def test_weights_of_another_model_are_not_trained_with_the_numbers_of_the_embedded_one(tmp_path):
    said = (
        r"^model\.path=x: without model= .* of the embedded tiny_lm; add model=hf, or model=tiny_lm"
    )
    with pytest.raises(ConfigError, match=said):
        check_start(typed("model.path=x"))
    for words in (("model.path=x", "model=tiny_lm"), ("model.path=x", "model=hf")):
        check_start(typed(*words))
    run = write(tmp_path / "run", "model/config.json")
    (run / "config.yaml").write_text("choices: {model: hf}\n")
    with pytest.raises(
        ConfigError, match=r"takes the weights alone, .* of model=hf: repeat its wo"
    ):
        check_start(typed(f"continue_from={run}"))
    check_start(typed(f"continue_from={run}", "model=tiny_lm"))
    (run / "config.yaml").write_text("choices: {model: tiny_lm}\n")
    check_start(typed(f"continue_from={run}"))


def test_a_warm_start_of_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"^warm_start=\[\] is empty; give overrides"):
        check_start(compose(["warm_start=[]"]))


@pytest.mark.parametrize(
    ("error", "again"), [(KeyboardInterrupt, True), (EngineUnavailable, True), (ConfigError, False)]
)
def test_the_same_command_is_advised_where_it_may_go_well(tmp_path, capsys, error, again):
    def train(cfg, folder, overrides):
        folder.mkdir(parents=True)
        raise error("why")

    cfg = compose(["warm_start=['algorithm=sft']", f"cache_dir={tmp_path}"])
    with pytest.raises(error, match="why"):
        starting_weights(cfg, train)
    assert ("the same command starts it again" in capsys.readouterr().err) == again
    assert not list((tmp_path / "warm_start").iterdir())


def test_processes_of_one_name_train_one_warm_start_apart(tmp_path):
    """As in two containers with one host name, in which both are process 1."""
    cfg, kept = compose(["warm_start=['algorithm=sft']", f"cache_dir={tmp_path}"]), []

    def train(start, folder, overrides):
        folder.mkdir(parents=True)
        (folder / "weights").touch()
        kept.append(folder)
        if len(kept) == 1:
            starting_weights(cfg, train)
            assert kept[0] != kept[1] and (folder / "weights").exists()

    weights = starting_weights(cfg, train)
    assert [path.name for path in (tmp_path / "warm_start").iterdir()] == [weights.parent.name]


@pytest.mark.parametrize(
    ("run", "word", "device"),
    [
        (["trainer=cpu"], "iterations=3", ("cpu", 1)),
        (["trainer=ddp", "trainer.devices=[3,5]"], "trainer.precision=32-true", ("auto", [3])),
        (["trainer=ddp", "trainer.accelerator=gpu"], "iterations=3", ("gpu", 1)),
        (["trainer=cpu"], "trainer=auto", ("auto", 1)),
        (["trainer=cpu"], "++trainer.devices=[2]", ("auto", [2])),
    ],
)
def test_a_warm_start_is_trained_on_the_device_of_its_run(tmp_path, run, word, device):
    found = []

    def train(start, folder, overrides):
        folder.mkdir(parents=True)
        found.append((start.trainer.accelerator, start.trainer.devices))

    words = [f"warm_start=['algorithm=sft','{word}']", f"cache_dir={tmp_path}"]
    starting_weights(compose([*run, *words]), train)
    assert found == [device]
    starting_weights(compose(words), train)  # on another device: from the cache
    assert len(found) == 1


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("trainer.devices=2", "trainer.devices=2 trainer.num_nodes=1 trainer.strategy=auto: "),
        ("trainer.devices=[0,1]", r"trainer.devices=\[0, 1\] "),
        ("trainer.num_nodes=2", "trainer.devices=1 trainer.num_nodes=2 "),
        ("trainer=ddp", "trainer.devices=auto .* trainer.strategy=ddp: "),
        ("trainer.strategy=ddp", "trainer.devices=1 .* trainer.strategy=ddp: "),
    ],
)
def test_a_warm_start_of_several_ranks_is_refused(word, said):
    with pytest.raises(ConfigError, match=f"^warm_start: {said}.*or name one: trainer.strategy="):
        check_start(compose([f"warm_start=['algorithm=sft','{word}']"]))
    check_start(compose(["trainer=ddp", "warm_start=['algorithm=sft','trainer.devices=[1]']"]))


def test_devices_that_are_not_there_are_named():
    with pytest.raises(ConfigError, match=r"^trainer.accelerator=mps: torch finds none here"):
        check_accelerator(config.check(compose(["trainer.accelerator=mps"])).trainer)
    with pytest.raises(
        ConfigError, match=r"^trainer.devices=\[1\] .* CPU; give the number of proc"
    ):
        check_here("trainer.accelerator=cpu", "trainer.devices=[1]")


def test_the_gpu_of_a_mac_has_the_number_0_alone(monkeypatch):
    monkeypatch.setattr(MPSAccelerator, "is_available", lambda: True)
    check_here("trainer.accelerator=mps", "trainer.devices=[0]")
    with pytest.raises(ConfigError, match=r"^trainer.devices=\[1\]: there is no GPU 1 here"):
        check_here("trainer.accelerator=mps", "trainer.devices=[1]")


def test_an_evaluation_is_on_the_first_device_that_was_named(monkeypatch):
    words = {"trainer.devices=[1]": "cuda:1", "trainer.devices=2": "cuda:0"}
    words |= {"trainer.accelerator=cpu": "cpu", "trainer=auto": "cuda:0"}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for word, device in words.items():
        asked = config.check(compose([word])).trainer
        assert device_of_rank(asked, 0) == torch.device(device)


def test_teachers_are_finished_runs_or_folders_of_diffusers(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "home", "transformer/config.json")
    run = write(tmp_path / "run", "config.yaml", "model/transformer/config.json")
    check(shapes="~/home", others=run)
    check_start(compose(["model=tiny_lm", "algorithm=grpo", "warm_start=null"]))


KERNELS = {
    "model.liger=true": r"^model\.liger=true: .* GPU, .* model\.liger=false$",
    "model.attn_implementation=flash_attention_2": (
        r"^model\.attn_implementation=flash_attention_2: .* GPU, .*=sdpa$"
    ),
}


@pytest.mark.parametrize("asked", KERNELS)
def test_kernels_that_cannot_run_here_are_refused_before_a_warm_start(monkeypatch, asked):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    plain = ("model=tiny_lm", "algorithm=grpo")
    with pytest.raises(ConfigError, match=KERNELS[asked]):
        check_start(compose([*plain, asked]))
    with pytest.raises(ConfigError, match=KERNELS[asked]):
        check_start(compose([*plain, f"warm_start=['algorithm=sft', '{asked}']"]))
    check_start(compose([*plain, asked, "estimate=true"]))  # for another machine


def test_flash_attention_needs_one_of_its_packages_and_bfloat16(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    there = set()
    monkeypatch.setattr(kernels, "find_spec", lambda name: name in there or None)
    asked = ("model=tiny_lm", "model.attn_implementation=flash_attention_2")
    flash = compose([*asked, "trainer.precision=bf16-mixed"])
    with pytest.raises(ConfigError, match="pip install flash_attn; or set"):
        check_start(flash)
    for package in ("flash_attn", "kernels"):
        there.clear()
        there.add(package)
        check_start(flash)
    check_start(compose([*asked, "model.dtype=bfloat16"]))
    with pytest.raises(
        ConfigError, match=r"float32; set trainer\.precision=bf16-mixed, or .*=sdpa"
    ):
        check_start(compose(asked))
    check_start(compose(["model=tiny_lm", "model.attn_implementation=eager"]))


def check_here(*words):
    cfg = compose(words)
    check_devices(cfg, config.check(cfg))


def test_the_rules_of_ranks_hold_for_as_many_as_are_found(monkeypatch):
    check_here("trainer.accelerator=cpu")
    with pytest.raises(ConfigError, match=r"^trainer\.devices=auto is 1 here: .*fsdp2 shards"):
        check_here("trainer=fsdp2", "trainer.accelerator=cpu")
    check_here("trainer=fsdp2", "trainer.accelerator=cpu", "evaluate=true")  # one process
    alone = ("trainer=ddp", "prompts_per_step=1", "num_minibatches=1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    check_here(*alone)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_here(*alone, "prompts_per_step=2")
    with pytest.raises(ConfigError, match=r"^trainer\.devices=auto is 2 here: prompts_per_step=1 "):
        check_here(*alone)


ROUNDED = (
    "model=tiny_lm",
    "model.lora={r: 4, alpha: 8}",
    "plugins=[experiments.bring_your_own.quantization]",
)
FEW = "model/quantization=few_bits"


def test_a_base_that_adapters_learnt_on_is_not_rounded_again(tmp_path):
    run = write(tmp_path / "run", "model/config.json")
    (run / "config.yaml").write_text("model: {quantization: {_target_: few_bits.FewBits}}")
    words = [*ROUNDED, "warm_start=null", f"continue_from={run}"]
    with pytest.raises(ConfigError, match="would round away what its adapters learnt"):
        check_start(compose([*words, FEW]))
    check_start(compose(words))
    (run / "config.yaml").write_text("{data: {text: '${a b'}, model: {quantization: null}}")
    check_start(compose([*words, FEW]))


def test_a_warm_start_is_not_rounded_again():
    cfg = compose([*ROUNDED, FEW, "warm_start=['algorithm=sft']"])
    cfg.overrides = [*ROUNDED, FEW]
    with pytest.raises(
        ConfigError, match=r"^warm_start: its model was trained on a quantised base"
    ):
        check_start(cfg)
    cfg.warm_start = ["algorithm=sft", "~model/quantization"]
    check_start(cfg)


def test_a_server_is_asked_whether_it_has_room_for_episodes_of_several_moves(monkeypatch):
    asked = []
    monkeypatch.setattr(VllmServer, "check", lambda *_: None)
    monkeypatch.setattr(VllmServer, "check_episodes", lambda self, tokens: asked.append(tokens))
    words = [
        "model=tiny_lm", "warm_start=null", "data=hilo", "environment=hilo", "rollout=vllm_server",
        "rollout.engine.url=http://127.0.0.1:8000", "rollout.max_prompt_tokens=10",
        "rollout.max_new_tokens=5", "environment.max_observation_tokens=16",
    ]  # fmt: skip
    for turns in (4, 1):
        check_engine(
            compose([*words, f"environment.max_turns={turns}"]), SimpleNamespace(tries=None)
        )
    assert asked == [10 + 4 * (5 + 16)]
