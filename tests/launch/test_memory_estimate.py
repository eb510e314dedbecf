"""`estimate=true` beside the memory that a small run really uses, by torch's allocator."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from gate import each
from hub_language_models import write_qwen3
from loaded import request_of
from omegaconf import OmegaConf
from policies.small_language import small_experts
from torch.profiler import ProfilerActivity, profile
from transformers import Qwen3Config, Qwen3ForCausalLM

import tandem
from tandem import launch
from tandem.config import ConfigError, build, check, compose
from tandem.environments import Environment
from tandem.environments.hilo import HiLo
from tandem.launch.memory_estimate import estimate, on_a_rank, parts_of_a_rank, state_of, work_of
from tandem.policies.language.policy import LanguagePolicy, Sampling
from tandem.policies.language.records import TokenSample
from tandem.policies.language.tiny_lm import character_tokenizer
from tandem.policies.lora import Lora
from tandem.policies.memory.estimate import Part
from tandem.policies.memory.language_estimate import footprint
from tandem.policies.memory.language_outline import LanguageOutline
from tandem.policies.request import Request

NOTHING = frozenset()
SHARE = 0.15  # tolerance of an estimate
PROMPT, NEW, ROWS = 16, 48, 16


def medium(*, hidden=128, layers=3, vocabulary=2048):
    """A few MB of weights, ten times as much in activations."""
    config = Qwen3Config(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=3 * hidden,
        num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
        head_dim=hidden // 4, max_position_embeddings=256, tie_word_embeddings=False,
        pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return Qwen3ForCausalLM(config), character_tokenizer()


SHAPES = {  # the gate takes every second, which together have all options
    "tiled": ({}, {"model.mlp_tile": 64}),
    "whole": ({}, {}),
    "packed and recomputed": (
        {"layers": 4}, {"model.packing": True, "model.gradient_checkpointing": True}
    ),
    "recomputed": ({}, {"model.gradient_checkpointing": True, "model.logit_budget": 2**20}),
    "many logits": ({"layers": 1, "vocabulary": 8192}, {"model.logit_budget": 2**21}),
    "packed": ({"layers": 2}, {"model.packing": True}),
    "bfloat16": ({"layers": 1}, {"model.dtype": "bfloat16", "model.lora": {"r": 8, "alpha": 16}}),
    "adapters": ({"hidden": 192}, {"model.lora": {"r": 8, "alpha": 16}}),
}  # fmt: skip


def compose_line(options, *words):
    cfg = compose([
        "model=tiny_lm", "rollout=local", f"rollout.max_new_tokens={NEW}",
        f"rollout.max_prompt_tokens={PROMPT}", "warm_start=null", "trainer=cpu",
        "prompts_per_step=16", "num_minibatches=1", "epochs=1", "group_size=4",
        f"max_tokens_per_microbatch={ROWS * (PROMPT + NEW - 1)}", *words,
    ])  # fmt: skip
    for key, value in options.items():
        OmegaConf.update(cfg, key, value, force_add=True)
    return cfg


@pytest.mark.parametrize("options", [{}, {"dtype": "bfloat16", "lora": Lora(r=2, alpha=4)}])
def test_experts_that_cannot_be_estimated_are_refused(options):
    request = Request(sampling=Sampling(max_new_tokens=4))
    with pytest.raises(ValueError, match="experts of Qwen3MoeForCausalLM can only be estimated in"):
        LanguageOutline(LanguagePolicy(build=small_experts, **options), request)
    plain = LanguageOutline(LanguagePolicy(build=small_experts, dtype="bfloat16"), request)
    assert plain.pass_of(2, 8) > 0


def dense_gemma4():
    from transformers import Gemma4ForCausalLM, Gemma4TextConfig

    tokenizer = character_tokenizer()
    config = Gemma4TextConfig(
        vocab_size=len(tokenizer),
        vocab_size_per_layer_input=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_kv_shared_layers=0,
        head_dim=8,
        global_head_dim=8,
        hidden_size_per_layer_input=8,
        max_position_embeddings=64,
        layer_types=["sliding_attention", "full_attention"],
    )
    return Gemma4ForCausalLM(config), tokenizer


def test_a_dense_model_of_a_family_with_experts_is_estimated():
    request = Request(sampling=Sampling(max_new_tokens=4))
    policy = LanguagePolicy(build=dense_gemma4, lora=Lora(r=2, alpha=4))
    assert LanguageOutline(policy, request).pass_of(2, 8) > 0


def rows_of_tokens(lengths):
    """Prompts of a quarter of each row, followed by answers."""
    tokens = torch.randint(2, 30, (len(lengths), max(lengths)))
    prompt = torch.tensor([length // 4 for length in lengths])
    mask = torch.arange(max(lengths)) < (torch.tensor(lengths) - prompt)[:, None]
    sample = TokenSample(tokens=tokens, prompt_length=prompt, temperature=torch.ones(len(lengths)))
    return sample, mask


def most_allocated(work):
    """Peak bytes of the allocator while `work` ran."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def step(policy, sample, mask, needs=NOTHING):
    evidence = policy.scorer(sample, mask, needs)
    evidence.logp.sum().backward()


@pytest.mark.parametrize("shape", each(2, SHAPES))
def test_a_micro_batch_holds_what_was_estimated(shape):
    sizes, options = SHAPES[shape]
    cfg = compose_line(options)
    policy = build(cfg.model)
    policy.build = partial(medium, **sizes)
    estimated = {part.name: part for part in footprint(policy, request_of(cfg), work(cfg))}
    policy.load(request_of(cfg))
    full = PROMPT + NEW
    lengths = [full] * ROWS
    if policy.packs:
        lengths = [full] * (ROWS // 2) + [full // 2] * ROWS
    sample, mask = rows_of_tokens(lengths)
    step(policy, sample, mask)  # leaves gradients, as before all micro-batches but the first
    measured = most_allocated(lambda: step(policy, sample, mask))
    assert estimated["activations"].size == pytest.approx(measured, rel=SHARE)
    assert measured > 2**21


def work(cfg):
    return work_of(cfg, check(cfg), 1)


@pytest.mark.parametrize("options", [{}, {"model.lora": {"r": 8, "alpha": 16}}], ids=str)
def test_weights_gradients_and_optimizer_are_exact(options):
    cfg = compose_line(options)
    policy = build(cfg.model)
    policy.build = medium
    request = request_of(cfg, frozenset({"ref_logp"}))
    parts = {p.name: p.size for p in footprint(policy, request, work(cfg))}
    policy.load(request)
    held = [*policy.network.parameters(), *policy.network.buffers()]
    known = parts["weights"] + parts.get("adapters", 0)
    assert known == sum(x.nbytes for x in held)
    assert ("reference" in parts) == (not options)
    assert parts.get("reference", parts["weights"]) == parts["weights"]
    step(policy, *rows_of_tokens([16] * 4))
    optimizer = build(cfg.optimizer)(list(policy.trainable().values()))
    optimizer.step()
    assert parts["gradients"] == sum(p.grad.nbytes for p in policy.trainable().values())
    state = [x for kept in optimizer.state.values() for x in kept.values() if x.numel() > 1]
    assert parts["optimizer"] == sum(x.nbytes for x in state)


@pytest.mark.parametrize("critic", ["head", "separate"])
def test_a_critic_is_counted(critic):
    cfg = compose_line({"model.critic": critic})
    policy, needs = build(cfg.model), frozenset({"values"})
    policy.build = medium
    request = request_of(cfg, needs)
    parts = {p.name: p.size for p in footprint(policy, request, work(cfg))}
    policy.load(request)
    assert parts["critic"] == sum(p.nbytes for p in policy.critic.parameters())
    sample, mask = rows_of_tokens([PROMPT + NEW] * ROWS)

    def both():
        said = policy.scorer(sample, mask, needs)
        (said.logp.sum() + said.values.sum()).backward()

    both()
    assert parts["activations"] == pytest.approx(most_allocated(both), rel=SHARE)


def test_the_cache_of_sampling_holds_what_was_estimated():
    """Keys and values of 2 of 4 heads of 32, in float32, twice 3 layers."""
    cfg = compose_line({})
    policy = build(cfg.model)
    policy.build = medium
    cache = next(p for p in footprint(policy, request_of(cfg), work(cfg)) if p.name == "cache")
    assert cache.size == 64 * (PROMPT + NEW) * 2 * 3 * 2 * 32 * 4


def test_an_optimizer_shows_what_it_remembers():
    assert state_of(partial(torch.optim.AdamW, fused=True), torch.float32) == 8
    assert state_of(torch.optim.AdamW, torch.bfloat16) == 4
    assert state_of(partial(torch.optim.SGD, momentum=0.9), torch.float32) == 4
    assert state_of(torch.optim.SGD, torch.float32) == 0


class Rotated(torch.optim.SGD):
    """Keeps a list of tensors, like Shampoo and SOAP."""

    def step(self, closure=None):
        for weight in self.param_groups[0]["params"]:
            self.state[weight]["Q"] = [torch.eye(2), torch.eye(3)]


class Described(torch.optim.SGD):
    def step(self, closure=None):
        self.param_groups[0]["kind"] = torch.float32


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Rotated, r"Rotated has self.state\[parameter\]\['Q'\] of type list, which no checkpoint"),
        (Described, r"Described has self.param_groups\['kind'\] of type dtype, which no checkpoi"),
    ],
)
def test_an_optimizer_whose_state_no_checkpoint_can_hold_is_refused_before_a_run(kind, said):
    with pytest.raises(ValueError, match=f"^{said}"):
        state_of(kind, torch.float32)


def test_eight_bits_take_a_quarter():
    pytest.importorskip("bitsandbytes")
    made = build(compose(["optimizer=adamw_8bit", "model=tiny_lm"]).optimizer)
    assert state_of(made, torch.float32) == pytest.approx(2, rel=0.03)


def test_ranks_share_what_a_strategy_shards_and_copy_the_rest():
    parts = [
        Part(name="gradients", size=8.0, says="", lower="", phase="update", shared=True),
        Part(name="activations", size=6.0, says="", lower="", phase="update"),
    ]
    assert [part.size for part in on_a_rank(parts, "fsdp2", 4)] == [2, 6]
    assert [part.size for part in on_a_rank(parts, "ddp", 4)] == [8, 6, 8]
    assert on_a_rank(parts, "fsdp2", 1) == parts


@pytest.fixture
def folder(tmp_path):
    """A configuration without weights."""
    write_qwen3(tmp_path / "whole")
    (tmp_path / "model").mkdir()
    (tmp_path / "whole" / "config.json").rename(tmp_path / "model" / "config.json")
    return tmp_path / "model"


def test_a_configuration_is_enough(folder, tmp_path, capsys):
    run_dir = tmp_path / "run"
    words = (f"model.path={folder}", "estimate=true", f"run_dir={run_dir}", "trainer=cpu")
    small = ("rollout.max_prompt_tokens=32", "rollout.max_new_tokens=32")
    assert tandem.train("model=qwen3_8b", *words, *small).metrics == {}
    said = capsys.readouterr().out
    (total,) = [line for line in said.splitlines() if line.startswith("estimate")]
    for name in ("weights", "adapters", "optimizer", "gradients", "activations", "cache", "draws"):
        assert f"\n  {name} " in said
    assert "on one device" in total and "the largest part is" in said
    assert not run_dir.exists()


def test_a_model_that_cannot_be_read_is_one_line(tmp_path):
    for path, words in ((tmp_path, "config.json"), ("Qwen/Qwen3-8B", "model.path=FOLDER")):
        with pytest.raises(ValueError, match=words) as caught:
            tandem.train("model=qwen3_8b", f"model.path={path}", "estimate=true")
        assert "\n" not in str(caught.value)


def test_teachers_are_counted_each_once_and_whole(tmp_path):
    model, tokenizer = medium(vocabulary=40)
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path)
    words = (
        "algorithm=opd",
        f"algorithm.teachers.folders={{sort: {tmp_path}, others: {tmp_path}}}",
    )
    cfg = compose_line({"algorithm.teachers.dtype": "bfloat16"}, *words)
    policy, request = build(cfg.model), build(cfg.algorithm).request(build(cfg.rollout))
    parts = footprint(policy, request, work_of(cfg, check(cfg), 1))
    (teachers,) = (part for part in parts if part.name == "teachers")
    assert teachers.size == 2 * sum(parameter.numel() for parameter in model.parameters())
    assert not teachers.shared, "every rank has them whole"


def test_a_teacher_that_is_the_policy_is_a_copy_of_what_is_trained():
    cfg = compose_line({}, "algorithm=sdpo")
    policy, request = build(cfg.model), build(cfg.algorithm).request(build(cfg.rollout))
    parts = {p.name: p for p in footprint(policy, request, work_of(cfg, check(cfg), 1))}
    assert parts["itself"].size == parts["gradients"].size
    assert "teachers" not in parts


def test_a_kind_that_says_nothing_of_its_memory_is_refused():
    with pytest.raises(ConfigError, match="the memory of NoneType is unknown; register"):
        launch.memory_estimate.footprint(None, None, None)


def test_an_episode_has_room_for_what_the_world_says():
    """Up to the environment's limit, or the model's context length."""
    cfg = compose(["data=hilo", "rollout.max_prompt_tokens=4"])
    policy = build(cfg.model)
    request = build(cfg.algorithm).request(build(cfg.rollout))
    assert LanguageOutline(policy, request).longest == 4 + 3
    for limit, longest in ((20, 24), (None, 64)):
        world = Environment(HiLo(), max_tokens=limit, timeout=None)
        played = replace(request, environment=world)
        assert LanguageOutline(policy, played).longest == longest


@pytest.mark.parametrize(
    ("algorithm", "epochs", "copies"),
    [("espo", 1, 0), ("espo", 2, 2), ("coupled_grpo", 2, 2), ("grpo", 2, 0)],
)
def test_later_epochs_of_drawn_states_keep_the_weights_of_the_first(algorithm, epochs, copies):
    cfg = compose(["model=tiny_masked", f"algorithm={algorithm}", f"epochs={epochs}"])
    parts = {part.name: part for part in parts_of_a_rank(cfg, check(cfg), ranks=1)}
    size = parts["start"].size if "start" in parts else 0
    assert size == pytest.approx(copies * parts["weights"].size, rel=0.01)


@pytest.mark.parametrize(("words", "ranks"), [((), 8), (("trainer.accelerator=cpu",), 2)])
def test_it_counts_the_ranks_of_all_nodes(words, ranks, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    cfg = compose(["trainer=ddp", "trainer.devices=auto", "trainer.num_nodes=2", *words])
    assert f"on each of {ranks} devices" in estimate(cfg, check(cfg))
