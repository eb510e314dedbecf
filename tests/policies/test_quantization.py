"""A frozen, quantized base with adapters: the same code for tokens and images, for built-in
quantizations and a plugin's."""

import copy
import re
from dataclasses import replace
from functools import partial

import pytest
import small_flow
import small_language
import torch
from hub_language_models import write_llama3
from launch.test_memory_estimate import SHARE, most_allocated, rows_of_tokens, step
from torch import nn
from torch.nn.functional import linear
from torch.testing import assert_close

from experiments.bring_your_own.quantization import FewBits
from tandem.config import ConfigError, check, compose
from tandem.launch.memory_estimate import footprint
from tandem.policies.flow.families.tiny_flow import TinyFlow
from tandem.policies.flow.policy import FlowPolicy
from tandem.policies.flow.records import FlowSampling
from tandem.policies.language.policy import LanguagePolicy, Sampling
from tandem.policies.language.tiny_lm import tiny_lm
from tandem.policies.lora import Lora
from tandem.policies.memory.estimate import Workload
from tandem.policies.quantization import (
    QuantizedLinear,
    layers_to_pack,
    packed_sizes,
    quantize,
)
from tandem.policies.quantizations import BitsAndBytes4, BitsAndBytes8, TorchAO8
from tandem.policies.request import Request

LORA = {"language": Lora(r=4, alpha=8), "flow": Lora(r=4, alpha=8, target_modules="attention")}
NOTHING = frozenset()
REFERENCE = frozenset({"ref_logp"})
LIBRARIES = {
    "bnb_4bit": BitsAndBytes4(),
    "bnb_4bit, fp4, plain scales": BitsAndBytes4(quant_type="fp4", double_quant=False),
    "bnb_8bit": BitsAndBytes8(),
    "torchao_8bit": TorchAO8(),
    "torchao_8bit, float8": TorchAO8(dtype="float8"),
}


@pytest.fixture(
    params=["few_bits", *(pytest.param(name, marks=pytest.mark.slow) for name in LIBRARIES)]
)
def how(request):
    if request.param == "few_bits":
        return FewBits()
    found = LIBRARIES[request.param]
    pytest.importorskip(found.package)
    return found


def test_experts_that_stay_as_they_are_are_said(caplog):
    LanguagePolicy(
        build=small_language.small_experts, lora=LORA["language"], quantization=FewBits()
    ).load(Request(sampling=Sampling(max_new_tokens=4)))
    assert re.search(r"packs 3\d % of the frozen weights in the blocks of Peft", caplog.text)
    caplog.clear()
    small_language.small(lora=LORA["language"], quantization=FewBits())
    assert "packs" not in caplog.text


@pytest.fixture(params=["language", "flow"])
def kind(request):
    return request.param


def policy_of(kind, how, needs=NOTHING, **options):
    options = {"lora": LORA[kind], **options}
    if kind == "language":
        return small_language.small(needs, quantization=how, **options)
    return small_flow.small(needs, quantization=how, **options)


def rows_of(kind, policy):
    if kind == "language":
        return policy.sample(small_language.questions(), 2, key=1, slots=range(8))
    return small_flow.sample_rows(policy, 2)


def network_of(kind, policy):
    return policy.network if kind == "language" else policy.model.network


def packed_layers(network):
    return {n: x for n, x in network.named_modules() if isinstance(x, QuantizedLinear)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_multiplies_with_what_its_weight_was_rounded_to(how, dtype):
    plain = nn.Linear(128, 64).requires_grad_(False).to(dtype)
    layer = QuantizedLinear(plain, how)
    rounded = layer.weight
    assert rounded.dtype == dtype and rounded.shape == (64, 128)
    assert 0 < (rounded - plain.weight).abs().max() < 0.05
    for shape in ((128,), (3, 128), (2, 3, 128)):
        ours, theirs = (torch.randn(shape, generator=torch.Generator().manual_seed(0))
                        .to(dtype).requires_grad_() for _ in range(2))  # fmt: skip
        got, want = layer(ours), linear(theirs, rounded, plain.bias)
        assert torch.equal(got, want)
        got.pow(2).sum().backward()
        want.pow(2).sum().backward()
        assert_close(ours.grad, theirs.grad)
    with torch.no_grad():
        assert torch.equal(layer(ours), want)


def test_a_pass_in_bfloat16_has_a_gradient_in_the_dtype_of_its_input(how):
    layer = QuantizedLinear(nn.Linear(64, 32).requires_grad_(False), how)
    x = torch.randn(4, 64, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(x)
    out.sum().backward()
    assert out.dtype == torch.bfloat16 and x.grad.dtype == torch.float32
    assert_close(x.grad, layer.weight.sum(0).expand(4, -1), atol=0.05, rtol=0.05)


def test_the_weights_of_the_blocks_are_packed_and_nothing_else(kind, how):
    policy, plain = policy_of(kind, how), policy_of(kind, None)
    network = network_of(kind, policy)
    packed = packed_layers(network)
    assert packed.keys() == layers_to_pack(network_of(kind, plain)).keys()
    assert not layers_to_pack(network)
    assert all(not p.requires_grad for x in packed.values() for p in x.parameters())
    left = {n for n, x in network.named_modules() if isinstance(x, nn.Linear)}
    assert left and not any("base_layer" in name for name in left)
    held = sum(p.nbytes for x in packed.values() for p in x.parameters(recurse=False))
    whole = layers_to_pack(network_of(kind, plain)).values()
    assert held < 0.5 * sum(p.nbytes for x in whole for p in x.parameters())


def test_new_adapters_change_nothing_and_the_first_ratio_is_exactly_1(kind, how):
    policy = policy_of(kind, how)
    rollout = rows_of(kind, policy)
    again = policy.evidence(rollout, NOTHING).logp
    base = policy_of(kind, None, lora=None)
    quantize(network_of(kind, base).requires_grad_(False), how)
    assert torch.equal(again, base.evidence(rollout, NOTHING).logp)
    assert torch.equal((again - policy.logp(rollout)).exp(), torch.ones_like(again))
    assert_close(again, rollout.behaviour_logp, atol=5e-6, rtol=0)
    assert policy.exact
    whole = policy_of(kind, None).evidence(rollout, NOTHING).logp
    assert not torch.equal(again, whole)


def test_an_update_moves_adapters_alone_and_the_reference_stays_the_base(kind, how):
    policy = policy_of(kind, how, REFERENCE)
    rollout = rows_of(kind, policy)
    base = policy.logp(rollout)
    kept = {n: p.clone() for n, p in network_of(kind, policy).named_parameters()}
    small_flow.step_on(policy, -policy.evidence(rollout, NOTHING).logp.sum(), lr=1e-2)
    moved = {
        name
        for name, p in network_of(kind, policy).named_parameters()
        if not torch.equal(p.float(), kept[name].float())
    }
    assert moved and all(".lora_" in name for name in moved)
    assert set(policy.weights()) == set(policy.trainable())
    assert not torch.equal(policy.logp(rollout), base)
    assert torch.equal(policy.complete(rollout, REFERENCE).ref_logp, base)


def test_what_is_saved_is_a_plain_model_that_says_the_same(kind, how, tmp_path):
    policy = policy_of(kind, how)
    rollout = rows_of(kind, policy)
    small_flow.step_on(policy, -policy.evidence(rollout, NOTHING).logp.sum(), lr=1e-2)
    want = policy.logp(rollout)
    policy.save(tmp_path)
    plain = policy_of(kind, None, lora=None, path=str(tmp_path))
    assert_close(plain.logp(rollout), want, atol=2e-5, rtol=1e-5)
    assert torch.equal(policy.logp(rollout), want)
    assert all("quantization" not in f.read_text() for f in tmp_path.rglob("config.json"))


@pytest.mark.slow
def test_an_adapter_is_put_on_the_rounded_base_by_plain_peft(tmp_path, how):
    from peft import PeftModel

    policy = policy_of("language", how)
    rollout = rows_of("language", policy)
    small_flow.step_on(policy, -policy.evidence(rollout, NOTHING).logp.sum(), lr=1e-2)
    policy.save(tmp_path)
    base = policy_of("language", None, lora=None).network.requires_grad_(False)
    quantize(base, how)
    beside = PeftModel.from_pretrained(whole(base), tmp_path / "lora").get_base_model()
    want = policy.network(input_ids=rollout.sample.tokens).logits
    assert_close(beside(input_ids=rollout.sample.tokens).logits, want, atol=2e-5, rtol=1e-5)


def whole(network):
    """The same network with its rounded weights in plain layers."""
    plain = copy.deepcopy(policy_of("language", None, lora=None).network)
    plain.load_state_dict(network.state_dict())
    return plain


@pytest.mark.slow
def test_an_adapter_is_put_on_the_rounded_base_by_plain_diffusers(tmp_path, how):
    policy = policy_of("flow", how)
    rollout = rows_of("flow", policy)
    small_flow.step_on(policy, -policy.evidence(rollout, NOTHING).logp.sum(), lr=1e-2)
    want = policy.logp(rollout)
    policy.save(tmp_path)
    plain = policy_of("flow", None, lora=None)
    network = plain.model.network
    rounded = policy_of("flow", None, lora=None).model.network.requires_grad_(False)
    quantize(rounded, how)
    network.load_state_dict(rounded.state_dict())
    file = "pytorch_lora_weights.safetensors"
    network.load_lora_adapter(tmp_path / "lora", prefix="transformer", weight_name=file)
    plain.model.field.network = plain.model.field.run = network.eval()
    assert_close(plain.logp(rollout), want, atol=1e-5, rtol=1e-5)


def test_the_size_of_a_packed_weight_is_told_from_its_shape(how):
    network = nn.ModuleDict({"blocks": nn.ModuleList([nn.Linear(256, 96), nn.Linear(96, 2048)])})
    sizes = packed_sizes([network.requires_grad_(False)], how)
    quantize(network, how)
    held = [
        sum(p.nbytes for n, p in x.named_parameters() if n != "bias") for x in network["blocks"]
    ]
    assert [*sizes.values()] == pytest.approx(held, rel=0.01)


@pytest.mark.slow
def test_recomputed_passes_and_copies_say_the_same(how):
    policy = policy_of("language", how, gradient_checkpointing=True)
    rollout = rows_of("language", policy)
    plain = policy_of("language", how)
    logp = [p.evidence(rollout, NOTHING).logp for p in (policy, plain)]
    assert torch.equal(*logp)
    found = [
        torch.autograd.grad(x.sum(), list(p.trainable().values()))
        for x, p in zip(logp, (policy, plain), strict=True)
    ]
    for one, other in zip(*found, strict=True):
        assert_close(one, other)
    copied = copy.deepcopy(policy.network)(input_ids=rollout.sample.tokens).logits
    assert torch.equal(copied, policy.network(input_ids=rollout.sample.tokens).logits)


def test_a_network_without_blocks_is_one_line():
    with pytest.raises(ValueError, match="Linear has no list of blocks with frozen linear layers"):
        quantize(nn.Linear(2, 2).requires_grad_(False), FewBits())


FEW = ("plugins=[experiments.bring_your_own.quantization]", "model/quantization=few_bits")
ADAPTED = "model.lora={r: 4, alpha: 8}"
REFUSED = {
    FEW: r"model/quantization=few_bits rounds the weights, and rounded weights cannot be "
    r"trained; set model\.lora=\{r: 32, alpha: 64\}, or leave model/quantization out",
    (*FEW, ADAPTED, "trainer=fsdp2", "trainer.devices=2"): "packs whole weights, and "
    "trainer.strategy=fsdp2 shards them; set trainer=ddp",
    (*FEW, ADAPTED, "rollout=vllm_server", "rollout.engine.url=http://127.0.0.1:8000"): "applies "
    "the adapters to the base in model.path",
    (
        "model=tiny_chain", "plugins=[experiments.bring_your_own.quantization]",
        "model/quantization@model.picture.quantization=few_bits",
    ): r"@model\.picture\.quantization=few_bits rounds the weights.*set model\.picture\.lora=",
}  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [pytest.param(words, marks=[] if words == FEW else pytest.mark.slow) for words in REFUSED],
    ids=" ".join,
)
def test_a_contradiction_is_one_line(words):
    with pytest.raises(ConfigError, match=REFUSED[words]):
        check(compose([*(() if "model=" in words[0] else ("model=tiny_lm",)), *words]))


@pytest.mark.slow
def test_a_base_that_is_rounded_again_loses_what_adapters_learnt(tmp_path):
    """The reason why `continue_from` and `warm_start` refuse it."""
    how = FewBits(most=7)
    policy = policy_of("language", how)
    rollout = rows_of("language", policy)
    start = policy.logp(rollout)
    small_flow.step_on(policy, -policy.evidence(rollout, NOTHING).logp.mean(), lr=0.1)
    learnt = policy.logp(rollout) - start
    policy.save(tmp_path)
    found = policy_of("language", how, path=str(tmp_path)).logp(rollout) - start
    assert (found * learnt).sum() < 0.3 * learnt.pow(2).sum()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["bnb_4bit", "bnb_8bit", "torchao_8bit", "torchao_8bit, float8"])
def test_weights_are_rounded_as_the_options_of_transformers_round_them(tmp_path, name, dtype):
    import transformers
    from peft.utils.integrations import dequantize_module_weight

    how = LIBRARIES[name]
    pytest.importorskip(how.package)
    folder = str(write_llama3(tmp_path / "model"))
    ours = small_language.small(path=folder, dtype=dtype, lora=LORA["language"], quantization=how)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), quantization_config=option_of(name, dtype)
    )
    packed = packed_layers(ours.network.get_base_model())
    assert len(packed) == 14
    for place, layer in packed.items():
        own = theirs.get_submodule(place.removesuffix(".base_layer"))
        assert torch.equal(layer.weight, dequantize_module_weight(own).to(layer.weight.dtype))
    tokens = torch.arange(24)[None]
    # Without a gradient bitsandbytes uses other kernels, with additional rounding.
    got, want = ours.network(input_ids=tokens).logits, theirs(input_ids=tokens).logits
    far = 2e-2 if dtype == "bfloat16" or name == "bnb_8bit" else 2e-5
    assert_close(got.float(), want.float(), atol=far, rtol=far)


def option_of(name, dtype):
    import transformers

    if name.startswith("bnb"):
        return transformers.BitsAndBytesConfig(
            load_in_4bit="4" in name, load_in_8bit="8" in name, bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=getattr(torch, dtype),
        )  # fmt: skip
    from torchao import quantization

    kind = "Float8" if "float8" in name else "Int8"
    return transformers.TorchAoConfig(getattr(quantization, f"{kind}WeightOnlyConfig")())


@pytest.mark.slow
def test_weights_are_rounded_as_the_options_of_diffusers_round_them(tmp_path):
    """Except bitsandbytes, which needs a GPU there."""
    torchao = pytest.importorskip("torchao.quantization")
    from diffusers import SD3Transformer2DModel, TorchAoConfig

    small_flow.small().save(tmp_path)
    ours = policy_of("flow", LIBRARIES["torchao_8bit"], path=str(tmp_path)).model.network
    theirs = SD3Transformer2DModel.from_pretrained(
        tmp_path, subfolder="transformer", torch_dtype=torch.float32,
        quantization_config=TorchAoConfig(torchao.Int8WeightOnlyConfig()),
    )  # fmt: skip
    for place, layer in packed_layers(ours).items():
        own = theirs.get_submodule(place.replace(".base_layer", ""))
        assert torch.equal(layer.weight, own.weight.dequantize())


def without_weights(kind, how):
    """A policy without weights, and its request."""
    if kind == "language":
        build = partial(tiny_lm, seed=0, hidden_size=128, num_layers=4, head_dim=32)
        policy = LanguagePolicy(build=build, lora=LORA[kind], quantization=how)
        return policy, Request(sampling=Sampling(max_new_tokens=48, max_prompt_tokens=16))
    adapter = TinyFlow(seed=0, num_layers=2)
    policy = FlowPolicy(adapter=adapter, lora=LORA[kind], quantization=how, row_budget=64)
    return policy, Request(sampling=FlowSampling(steps=5, kernel=small_flow.KERNELS["flow_sde"]))


WORK = Workload(
    samples=16, per_update=16, max_tokens=None, rows=16, narrow=False, state=lambda _: 8.0
)


def test_the_estimate_counts_the_smaller_base(kind, how):
    (policy, request), (plain, _) = without_weights(kind, how), without_weights(kind, None)
    parts, before = ({p.name: p for p in footprint(one, request, WORK)} for one in (policy, plain))
    policy.load(request)
    network = network_of(kind, policy)
    held = sum(x.nbytes for x in (*network.parameters(), *network.buffers()))
    assert parts["weights"].size + parts["adapters"].size == held
    assert parts["weights"].size < 0.5 * before["weights"].size
    assert "quantised to" in parts["weights"].says
    largest = max(x.weight.nbytes for x in packed_layers(network).values())
    assert parts["unpacked"].size == largest and "unpacked" not in before
    same = {"activations", "gradients", "optimizer", "adapters"}
    assert all(parts[name].size == before[name].size for name in same)


def test_the_estimate_names_the_flag_where_it_would_help():
    policy, request = without_weights("language", None)
    said = {}
    for dtype in ("float32", "bfloat16"):
        policy.numerics = replace(policy.numerics, dtype=dtype)
        said[dtype] = next(p.lower for p in footprint(policy, request, WORK) if p.name == "weights")
    assert said["float32"].startswith("set model.dtype=bfloat16")
    assert said["bfloat16"].startswith("set model/quantization=bnb_4bit, or choose a smaller one")


@pytest.mark.slow
def test_a_micro_batch_on_packed_weights_holds_what_was_estimated(how):
    policy, request = without_weights("language", how)
    parts = {p.name: p.size for p in footprint(policy, request, WORK)}
    policy.load(request)
    sample, mask = rows_of_tokens([64] * 16)
    step(policy, sample, mask)
    measured = most_allocated(lambda: step(policy, sample, mask))
    assert parts["activations"] + parts["unpacked"] == pytest.approx(measured, rel=SHARE)
