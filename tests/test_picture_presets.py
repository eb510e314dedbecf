"""The presets of pipelines on tiny random checkpoints in the hub's layout: they load, sample, train
and save what plain diffusers loads."""

import json
from itertools import product

import pytest
import torch
from policies.flow.tiny_families import FAMILIES, FILMS
from rewards.tiny_clip import write_clip
from torch.testing import assert_close

import tandem
from tandem.config import build, check, compose
from tandem.record import pictures

SMALL = (
    "iterations=2", "prompts_per_step=2", "group_size=4", "rollout.steps=5", "data.max_size=6",
    "evaluation.every=null", "checkpoints.every=2", "optimizer.lr=1e-2", "model.dtype=float32",
    "model.adapter.resolution=32", "model.adapter.encoder_dtype=float32", "reward=coin",
    "plugins=[coin]",
)  # fmt: skip
QUICK = (("sd3_5_medium", "nft"), ("qwen_image", "flow_grpo"))
PAIRS = [
    pytest.param(*pair, marks=[] if pair in QUICK else pytest.mark.slow)
    for pair in product(FAMILIES, ("flow_grpo", "nft"))
]
OTHERS = {*FILMS} - {"wan2_1_1_3b"}  # these repeat the same code
TYPED = [
    pytest.param(*pair, marks=[pytest.mark.slow] * (pair[0] in OTHERS))
    for pair in product((*FAMILIES, "z_image_turbo", "wan2_1_14b"), ("flow_grpo", "nft"))
]
OF_EDITS = ("data=jsonl", "data.held_out=0.25")
ADAPTERS = "pytorch_lora_weights.safetensors"
SIZE = {"height": 32, "width": 32}
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:FutureWarning"),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return write(tmp_path_factory.mktemp("presets"))


def write(world):
    """A folder of prompts, a judge, and checkpoints that are written on demand."""
    write_clip(world / "pickscore")
    (world / "prompts").mkdir()
    lines = [f"a {colour} {thing}" for colour in ("red", "green", "blue") for thing in "abcdefgh"]
    (world / "prompts" / "train.txt").write_text("\n".join(lines))
    rows = [{"prompt": "a star", "id": 7}, {"prompt": "a moon"}]
    (world / "prompts" / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pictures.save(torch.randint(0, 256, (40, 48, 3), dtype=torch.uint8), world / "shown.png")
    return world


def edits(world, count):
    """Write prompts that show that many images."""
    rows = [{"prompt": f"make it {x}", "images": ["shown.png"] * count} for x in "abcdefgh"]
    (world / "edits.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return (*OF_EDITS, f"data.path={world / 'edits.jsonl'}")


def two_sizes(world, count):
    """A prompt for a wide image and one for a high one; every batch has both."""
    sizes = {"a": (64, 96), "b": (96, 64)}
    rows = [
        {"prompt": f"make it {x}", "height": high, "width": wide, "images": ["shown.png"] * count}
        for x, (high, wide) in sizes.items()
    ]
    (world / "two_sizes.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return "data=jsonl", "data.held_out=0", f"data.path={world / 'two_sizes.jsonl'}"


def train(world, model, algorithm, folder, *own, data=None):
    """The metrics of two iterations of the preset, with its recipe if there is one."""
    if not (world / model).exists():
        FAMILIES[model].write(world / model)
    if data is None:
        prompts = "data=folder", f"data.path={world / 'prompts'}"
        data = edits(world, FAMILIES[model].shows) if FAMILIES[model].shows else prompts
    tandem.train(
        f"model={model}",
        f"algorithm={algorithm}",
        *data,
        f"model.path={world / model}",
        f"model.adapter.max_sequence_length={FAMILIES[model].tokens}",
        *FAMILIES[model].words,
        f"cache_dir={world / 'cache'}",
        f"run_dir={folder}",
        *SMALL,
        *own,
    )
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "optim/grad_norm" in row]


def paint(model, folder, lora=None):
    """The latents of a prompt from a plain pipeline of diffusers."""
    from diffusers import DiffusionPipeline

    family = FAMILIES[model]
    pipeline = DiffusionPipeline.from_pretrained(folder, **family.parts(folder))
    pipeline.set_progress_bar_config(disable=True)
    if lora is not None:
        if family.loads:
            pipeline.load_lora_weights(lora)
        else:
            pipeline.transformer.load_lora_adapter(lora, weight_name=ADAPTERS)
        if family.second:
            own = lora / "transformer_2"
            pipeline.load_lora_weights(own, load_into_transformer_2=True)
    starts = torch.randn(1, *family.latent, generator=torch.Generator().manual_seed(0))
    shown = [[torch.full((32, 32, 3), 99, dtype=torch.uint8)] * family.shows]
    own = {"scale": 1.0, "steps": 3, "size": SIZE, "images": shown}
    return family.painted(pipeline, ["a red a"], starts, **own)[0]


@pytest.mark.parametrize(("model", "algorithm"), PAIRS)
def test_a_preset_trains_an_adapter_that_plain_diffusers_loads(model, algorithm, world, tmp_path):
    first, second = train(world, model, algorithm, tmp_path / "run")
    assert first["optim/grad_norm"] > 0 and second["optim/grad_norm"] > 0
    merged = paint(model, tmp_path / "run" / "model")
    assert (merged - paint(model, world / model)).abs().max() > 1e-3
    beside = paint(model, world / model, tmp_path / "run" / "model" / "lora")
    assert_close(beside, merged, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "algorithm"),
    [("ltx_2", "flow_grpo"), ("ltx_2", "nft"), ("wan2_1_i2v_14b", "flow_grpo")],
)
def test_a_wide_and_a_high_film_are_trained_in_one_batch(model, algorithm, world, tmp_path):
    data = two_sizes(world, FAMILIES[model].shows)
    judges = "reward=[coin,height]", "reward.height.weight=0"
    rows = train(world, model, algorithm, tmp_path / "run", *judges, data=data)
    assert len(rows) == 2 and all(row["optim/grad_norm"] > 0 for row in rows)
    assert [row["reward/height/mean"] for row in rows] == [(64 + 96) / 2] * 2


@pytest.mark.slow
def test_a_folder_of_prompts_gives_flux_what_it_trains_on_and_what_it_is_tested_on(world, tmp_path):
    chosen = ["algorithm=flow_grpo", "model=flux1_dev", "reward=pickscore"]
    chosen += ["data=folder", f"data.path={world / 'prompts'}", "rollout.steps=28"]
    cfg = compose([*chosen, "data.max_size=6"])
    assert check(cfg).prompts_per_step == 48  # from the published recipe
    assert cfg.rollout.steps == 28 and cfg.dynamics.kernel.noise_level == 0.9
    data = build(cfg.data)
    assert len(data.train) == 6
    own = (
        "rollout.steps=28", "evaluation.every=2", "evaluation.prompts=1", "evaluation.samples=1",
        "evaluation.columns=1", "evaluation.steps=2", chosen[2],
        f"reward.pickscore.function.path={world / 'pickscore'}",
    )  # fmt: skip
    run = tmp_path / "run"
    rows = train(world, "flux1_dev", "flow_grpo", run, *own)
    assert all(row["reward/pickscore/std"] > 0 for row in rows)
    asked = {row["prompt"] for row in lines(run / "samples/iteration_000000.jsonl", "best")}
    assert asked and asked <= {prompt.text for prompt in data.train}
    tandem.train(f"resume={run}", "evaluate=true", "evaluation.split=test")
    (tested,) = lines(run / "evaluation_test.jsonl", "eval")
    assert tested["prompt"] in {prompt.text for prompt in data.test} == {"a star", "a moon"}


@pytest.mark.parametrize("model", ["qwen_image", "qwen_image_edit"])
def test_the_recipe_of_qwen_image_adapts_all_layers_of_a_block_that_do_not_read_time(model):
    cfg = compose([f"model={model}", "algorithm=flow_grpo", "data.path=prompts.txt"])
    assert (cfg.model.lora.r, cfg.model.lora.alpha) == (64, 128)
    block = FAMILIES[model].pipeline().transformer.transformer_blocks[0]
    linear = {name for name, x in block.named_modules() if isinstance(x, torch.nn.Linear)}
    assert {*cfg.model.lora.target_modules} == {name for name in linear if "_mod." not in name}


def lines(file, kind):
    """Images of that kind in a table of samples."""
    rows = map(json.loads, file.read_text().splitlines())
    return [row for row in rows if row["kind"] == kind]


@pytest.mark.parametrize(("model", "algorithm"), TYPED)
def test_a_pair_that_is_typed_and_nothing_else_can_learn(model, algorithm):
    """Adapters use three hundred times the rate of a whole language model; DiffusionNFT is sampled
    and trained without guidance, and its weight average is evaluated."""
    cfg = compose([f"model={model}", f"algorithm={algorithm}", "data.path=prompts.txt"])
    assert (cfg.optimizer.lr, cfg.iterations) == (3e-4, 1000)
    own = cfg.model.adapter
    film = own.get("frames", 1) * own.resolution * (own.width or own.resolution) * 3
    assert cfg.prompts_per_step * cfg.group_size * film < 12e9  # bytes of an iteration's images
    if algorithm == "nft":
        assert cfg.rollout.guidance_scale == cfg.evaluation.guidance_scale == 1.0
        few = cfg.rollout.steps <= 8  # of a distilled model, at its own noise levels
        assert few or cfg.dynamics.solver._target_.endswith("dpm_solver")
        assert few or cfg.dynamics.solver.shift is None
        assert cfg.evaluation.weights == "ema"
