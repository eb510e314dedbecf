"""`estimate=true` of image models beside the memory that a small policy really uses."""

import json
from dataclasses import replace
from itertools import chain

import pytest
import torch
from diffusers import AutoencoderKL
from launch.test_memory_estimate import SHARE, most_allocated
from loaded import request_of
from policies.flow.tiny_families import FAMILIES

import tandem
from tandem.config import build, check, compose
from tandem.data.images import show
from tandem.launch.memory_estimate import footprint, parts_of_a_rank, work_of
from tandem.policies.flow.components import painter_of
from tandem.policies.flow.velocity_model import VelocityModel
from tandem.policies.memory.flow_outline import FlowOutline
from tandem.policies.memory.tracker import Peak, fuse_torch_attention
from tandem.policies.weights import FULL
from tandem.types import Prompt

ROWS = 64
QUICK = ("tiny_flow", "sd3_5_medium", "flux1_dev")
MODELS = [
    pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow)
    for name in ("tiny_flow", *FAMILIES)
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return tmp_path_factory.mktemp("pipelines")


def words_of(model, folders):
    """A command line that trains a small model of that family."""
    few = ("warm_start=null", "trainer=cpu", "prompts_per_step=8", "group_size=12")
    words = [f"model={model}", "~recipe", "num_minibatches=1", "epochs=1", *few]
    words.append(f"model.row_budget={ROWS}")
    if model not in FAMILIES:
        return [*words, "algorithm=flow_grpo"]
    family = FAMILIES[model]
    if not (folders / model).exists():
        family.write(folders / model)
    (folders / "prompts.txt").write_text("a cat\na dog\n")
    return [
        *words, f"model.path={folders / model}", f"data.path={folders / 'prompts.txt'}",
        f"model.adapter.max_sequence_length={family.tokens}", "model.adapter.resolution=32",
        "model.adapter.encoder_dtype=float32", "model.dtype=float32", *family.words,
    ]  # fmt: skip


def estimate(cfg):
    policy, request = build(cfg.model), request_of(cfg)
    parts = {p.name: p for p in footprint(policy, request, work_of(cfg, check(cfg), 1))}
    policy.load(request)
    return policy, request, parts


def bytes_in_an_update(model, folders):
    """Bytes of activations as estimated, with the message, and as measured."""
    cfg = compose([*words_of(model, folders), "max_tokens_per_microbatch=1000000"])
    policy, request, parts = estimate(cfg)
    # The longest text, because some families do not pad texts.
    images = (show(torch.zeros(32, 32, 3, dtype=torch.uint8)),) * policy.adapter.images
    asked = [Prompt(id=0, source="t", text="a cat " * 40, images=images)] * ROWS
    scale = request.sampling.guidance_scale
    library = policy.library
    library.prepare(library.inputs(asked[:1], guided=scale > 1), torch.device("cpu"))
    x = torch.randn(ROWS, *policy.adapter.latent_shape)
    # All rows use one transformer, in families with two: this is the largest pass.
    sigma = 0.8 + 0.2 * torch.rand(ROWS)

    def step():
        conditioning = library.rows(asked, x.device, guided=scale > 1)
        policy.model.field(x, sigma, conditioning, scale=scale).sum().backward()

    step()  # leaves gradients, as before all micro-batches but the first
    return parts["activations"], most_allocated(step)


@pytest.mark.parametrize("model", MODELS)
def test_an_update_holds_what_was_estimated(model, folders):
    activations, measured = bytes_in_an_update(model, folders)
    assert activations.size == pytest.approx(measured, rel=SHARE)
    assert activations.says.startswith(f"forward and backward of {ROWS} points")


def test_to_train_an_encoder_the_activations_of_the_frozen_transformer_are_held(folders):
    own = ["algorithm=nft", "model.lora=null", "model.target_components=[text_encoder]"]
    cfg = compose([*words_of("sd3_5_medium", folders), *own, "max_tokens_per_microbatch=1000000"])
    policy, _, parts = estimate(cfg)
    frozen = estimate(compose(words_of("sd3_5_medium", folders)))[0]
    asked = [Prompt(id=0, source="t", text="a cat")] * ROWS
    said = frozen.library.rows(asked, torch.device("cpu"), guided=False)
    leaves = {name: x.requires_grad_() for name, x in said.prompted.items()}
    network = painter_of(policy.model.network)
    field = VelocityModel(network, policy.adapter, precision=FULL)
    x = torch.randn(ROWS, *policy.adapter.latent_shape)

    def step():
        field.predict(x, torch.rand(ROWS), leaves).sum().backward()

    step()
    assert not any(p.requires_grad for p in network.parameters())
    assert parts["activations"].size == pytest.approx(most_allocated(step), rel=SHARE)


def test_beside_a_trained_encoder_the_others_stay_and_the_reference_copies_it_alone(folders):
    own = ["algorithm=flow_grpo", "model.lora=null", "model.target_components=[text_encoder]"]
    cfg = compose([*words_of("sd3_5_medium", folders), *own])
    work = work_of(cfg, check(cfg), 1)
    policy, request = build(cfg.model), request_of(cfg, frozenset({"ref_logp"}))
    parts = {part.name: part for part in footprint(policy, request, work)}
    policy.load(request)
    components = policy.adapter.reading(torch.device("cpu")).components
    beside = (components["text_encoder_2"], components["text_encoder_3"])
    assert parts["encoders"].phase == "always"
    assert parts["encoders"].size == sum(p.nbytes for own in beside for p in own.parameters())
    trained = policy.model.network["text_encoder"]
    held = sum(x.nbytes for x in (*trained.parameters(), *trained.buffers()))
    assert parts["reference"].size == held
    moved = replace(request, offload=frozenset({"reference"}))
    away = footprint(build(cfg.model), moved, work)
    assert {p.name: p.size for p in away}["reference"] == parts["weights"].size > held


def test_a_pass_has_as_many_points_as_training_cuts_a_row_into(folders):
    """A row of nine points exceeds a budget of eight: training takes five and four."""
    words = [*words_of("tiny_flow", folders), "algorithm=flow_grpo", "rollout.steps=10"]
    cfg = compose([*words, "max_tokens_per_microbatch=1", "model.row_budget=8"])
    policy, _, parts = estimate(cfg)
    assert parts["activations"].says == "forward and backward of 5 points"
    asked, predict = [], policy.model.field.predict
    policy.model.field.predict = lambda x, *rest: (asked.append(len(x)), predict(x, *rest))[1]
    x = torch.randn(9, *policy.adapter.latent_shape)
    prompts = [Prompt(id=0, source="t", text="a red square")] * 9
    policy.forward_pass(policy.model.field, prompts, x, torch.rand(9), scale=1.0)
    assert max(asked) == 5


def test_decoding_holds_what_a_gpu_needs_for_convolutions():
    """An H100 took 2.03, 4.02 and 8.0 GiB to decode 2, 4 and 8 images of 512 x 512 with the VAE of
    Stable Diffusion 3.5, its output included."""
    with torch.device("meta"):
        vae = AutoencoderKL(
            block_out_channels=(128, 256, 512, 512), layers_per_block=2,
            down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
            latent_channels=16, use_quant_conv=False, use_post_quant_conv=False,
        ).requires_grad_(False)  # fmt: skip
    for images, gib in {2: 2.03, 4: 4.02, 8: 8.0}.items():
        latents = torch.empty(images, 16, 64, 64, device="meta")
        with fuse_torch_attention(), torch.no_grad(), Peak([*vae.parameters(), latents]) as peak:
            vae.decode(latents)
        assert peak.most / 2**30 == pytest.approx(gib, rel=0.08)


@pytest.mark.parametrize("algorithm", ["flow_grpo", "nft"])
@pytest.mark.parametrize("model", ["tiny_flow", "sd3_5_medium"])
def test_what_stays_is_exact(model, algorithm, folders):
    cfg = compose([*words_of(model, folders), f"algorithm={algorithm}", "rollout.staleness=1"])
    policy, _, parts = estimate(cfg)
    network, learnt = policy.model.network, policy.trainable().values()
    held = [*network.parameters(), *network.buffers()]
    assert parts["weights"].size + sum(
        parts[name].size for name in ("adapters",) if name in parts
    ) == sum(x.nbytes for x in held)
    assert ("reference" in parts) == (policy.model.frozen is not None)
    snapshots = policy.model.snapshots
    for _ in range(2):
        snapshots.follow("iteration")
    copies = [*snapshots.weights.values(), *chain(*snapshots.before.values())]
    assert parts["snapshots"].size == sum(x.nbytes for kept in copies for x in kept.values())
    assert parts["gradients"].size == sum(p.nbytes for p in learnt)
    assert parts["lagged"].size == 2 * sum(p.nbytes for p in learnt)
    if vae := getattr(policy.adapter, "vae", None):
        assert parts["VAE"].size == sum(p.nbytes for p in vae.parameters())


def test_the_trained_weights_are_held_aside_while_a_snapshot_is_in_their_place(folders):
    """In an update of few points this is the peak, before the pass with a gradient."""
    few = ["algorithm=nft", "max_tokens_per_microbatch=1", "model.row_budget=1"]
    cfg = compose([*words_of("tiny_flow", folders), *few])
    policy, request = build(cfg.model), build(cfg.algorithm).request(build(cfg.rollout))
    work = work_of(cfg, check(cfg), 1)
    sharded = {p.name: p for p in footprint(policy, request, replace(work, ranks=2))}
    parts = {p.name: p for p in footprint(policy, request, work)}
    policy.load(request)
    policy.model.snapshots.follow("update")  # the live weights may now differ from `old`
    asked = [Prompt(id=0, source="t", text="a red square")]
    x = torch.randn(1, *policy.adapter.latent_shape)

    def step():
        with torch.no_grad(), policy.model.snapshots.use("old"):
            policy.forward_pass(policy.model.field, asked, x, torch.rand(1), scale=1.0)

    learnt = sum(p.nbytes for p in policy.trainable().values())
    assert (parts["aside"].size, parts["aside"].phase) == (learnt, "sampling")
    assert parts["activations"].says.startswith("1 points of a snapshot")
    assert parts["activations"].size == pytest.approx(most_allocated(step), rel=SHARE)
    assert parts["activations"].size - sharded["activations"].size == learnt / 2  # of one rank


def test_the_means_that_a_kl_to_the_sampler_reads_are_counted(folders):
    """In float32, whatever the dtype of the states; tiny_flow keeps 9 of its 10 steps."""
    sizes = []
    for algorithm in ("flow_grpo", "grpo_guard"):
        words = [*words_of("tiny_flow", folders), f"algorithm={algorithm}"]
        cfg = compose([*words, "dynamics=flow_sde", "rollout.storage=bfloat16"])
        parts = {p.name: p for p in parts_of_a_rank(cfg, check(cfg), ranks=1)}
        sizes.append(parts["pictures"].size)
    assert sizes[1] - sizes[0] == 8 * 12 * 9 * 768 * 4
    assert "11 states and 9 float32 means each" in parts["pictures"].says


def test_what_is_offloaded_is_held_while_it_is_asked(folders):
    """Bytes of the VAE and of each encoder as they are loaded."""
    cfg = compose([*words_of("sd3_5_medium", folders), "algorithm=flow_grpo"])
    policy, request, stays = estimate(cfg)
    offload = frozenset({"vae", "encoders", "optimizer"})
    work = work_of(cfg, check(cfg), 1)
    parts = footprint(build(cfg.model), replace(request, offload=offload), work)
    away = {part.name: part for part in parts}
    readers = policy.adapter.reading(torch.device("cpu")).components
    encoders = [readers[name] for name in policy.adapter.readers if "tokenizer" not in name]
    sizes = [sum(p.nbytes for p in encoder.parameters()) for encoder in encoders]
    assert len(sizes) == 3
    assert (stays["encoders"].size, away["encoders"].size) == (sum(sizes), max(sizes))
    assert (stays["VAE"].phase, away["VAE"].phase) == ("always", "sampling")
    assert away["VAE"].size == sum(p.nbytes for p in policy.adapter.vae.parameters())
    assert "trainer.offload=[vae]" in stays["VAE"].lower
    step = stays["optimizer"].size + stays["gradients"].size
    assert (away["optimizer"].phase, away["optimizer"].size) == ("step", step)


def test_pictures_one_by_one_hold_less_and_tiles_are_named(folders):
    words = [*words_of("sd3_5_medium", folders), "algorithm=flow_grpo"]
    policy = build(compose(words).model)
    outline = FlowOutline(policy, request_of(compose(words)))
    assert outline.peak_of_decoding(1) < 0.2 * outline.peak_of_decoding(8)
    policy.decoding = "tiled"
    assert FlowOutline(policy, request_of(compose(words))).adapter.vae.use_tiling


def test_a_folder_of_configurations_is_enough(folders, tmp_path, capsys):
    words = words_of("sd3_5_medium", folders)
    for weights in [*folders.rglob("*.safetensors")]:
        weights.unlink()
    run_dir = tmp_path / "run"
    tandem.train(*words, "algorithm=flow_grpo", "estimate=true", f"run_dir={run_dir}")
    said = capsys.readouterr().out
    for name in ("weights", "adapters", "VAE", "encoders", "pictures", "denoising", "activations"):
        assert f"\n  {name} " in said
    assert "held while encoding prompts" in said
    assert not run_dir.exists()
    index = folders / "sd3_5_medium" / "model_index.json"
    named = json.loads(index.read_text())
    index.write_text(json.dumps(named | {"text_encoder": ["transformers", "set_seed"]}))
    with pytest.raises(
        ValueError, match="its text_encoder is a set_seed, which transformers lacks"
    ):
        tandem.train(*words, "algorithm=flow_grpo", "estimate=true", f"run_dir={run_dir}")


def test_a_critic_of_a_named_transformer_is_counted():
    own = ["model=tiny_flow", "algorithm=ppo", "model.target_components=[transformer]"]
    sizes = []
    for words in (own[:2], own):
        cfg = compose(words)
        parts = {part.name: part for part in parts_of_a_rank(cfg, check(cfg), ranks=1)}
        sizes.append(parts["critic"].size)
    assert sizes[0] == sizes[1] > 0
