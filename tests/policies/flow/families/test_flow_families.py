"""Every family on a random checkpoint, compared with its diffusers pipeline."""

import inspect
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch
from families import (
    EVERY,
    LEFT,
    MODULAR,
    PAGE,
    REMAINING,
    STEPS,
    by_its_pipeline,
    compare,
    flow_pipelines,
    in_two_sizes,
    missing,
    modular_folders,
)
from huggingface_hub.utils import filter_repo_objects
from policies.flow.small_flow import KEY, small
from policies.flow.tiny_families import FAMILIES
from torch.testing import assert_close

from tandem import rng
from tandem.dynamics.kernels import ode
from tandem.policies.flow.families.folders import PATTERNS
from tandem.policies.flow.families.pipelines import Pipeline
from tandem.policies.flow.families.recognition import inheriting
from tandem.policies.flow.lora import linear_layers
from tandem.policies.flow.records import FlowSampling
from tandem.policies.flow.sampling import start_noise

# Others with the same code.
SLOW = (
    "wan2_2_5b", "wan2_2_i2v_14b", "wan2_2_5b_i2v", "flux2_klein_edit", "skyreels_v2_14b",
    "wan2_2_14b", "ltx_video_0_9_1",
)  # fmt: skip
CELLS = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in EVERY]


@pytest.mark.filterwarnings("ignore:.*:FutureWarning")
@pytest.mark.parametrize("name", CELLS)
def test_it_paints_what_its_own_pipeline_paints(name, tmp_path):
    """With the folder's own noise levels, from the same noise, with and without guidance."""
    for one in compare(name, tmp_path):
        ours, theirs = one.latents
        assert theirs.std() > 0.1
        assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
        ours, theirs = one.pixels
        assert (ours - theirs.round()).abs().max() <= 1


@pytest.mark.parametrize(("name", "frames"), [("wan2_1_i2v_14b", 5), ("wan2_2_5b_i2v", 9)])
def test_a_picture_begins_a_film_of_the_size_and_frames_of_an_evaluation(name, frames, tmp_path):
    family = FAMILIES[name]
    family = replace(family, high=48, wide=64, call={**family.call, "num_frames": frames})
    torch.manual_seed(0)
    pipeline = family.pipeline()
    pipeline.set_progress_bar_config(disable=True)
    pipeline.save_pretrained(tmp_path)
    policy = small(path=str(tmp_path), adapter=family.make())
    canvas = policy.adapter.canvas((48, 64), frames)
    assert canvas.tokens > policy.adapter.tokens[0]
    levels, _ = policy.adapter.own_levels(STEPS, canvas.tokens)
    sampling = FlowSampling(
        steps=STEPS, kernel=ode, schedule=lambda *_: levels, resolution=(48, 64), frames=frames
    )
    prompt = in_two_sizes(family)[0]
    rollout = policy.sample([prompt], 1, key=KEY, slots=[0], sampling=sampling)
    start = start_noise(rng.key(KEY, torch.tensor([0]), 0), canvas.latent_shape)
    latents, pixels = by_its_pipeline(family, pipeline, prompt, start, 1.0)
    ours = rollout.sample.x0[0, :, family.held :]
    assert_close(ours, latents[:, family.held :], atol=1e-5, rtol=1e-5)
    assert (rollout.outputs[0] - pixels.round()).abs().max() <= 1


@pytest.mark.parametrize("name", ["flux2_klein", "hunyuan_video_1_5", "z_image"])
def test_every_file_of_a_pipeline_is_downloaded(name, tmp_path):
    folder = FAMILIES[name].write(tmp_path)
    files = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    assert "tokenizer/chat_template.jinja" in files
    assert sorted(filter_repo_objects(files, allow_patterns=[*PATTERNS])) == sorted(files)


def test_all_linear_layers_are_those_of_the_blocks_whatever_their_list_is_called():
    names = linear_layers(FAMILIES["z_image"].pipeline().transformer)
    assert {name.partition(".")[0] for name in names} == {
        "layers", "noise_refiner", "context_refiner",
    }  # fmt: skip


def test_an_adapter_takes_at_most_100_lines():
    adapters = (kind for kind in inheriting(Pipeline) if "family" in vars(kind))
    files = {Path(inspect.getfile(kind)) for kind in adapters}
    lines = {file.name: len(file.read_text().splitlines()) for file in files}
    assert {name: count for name, count in lines.items() if count > 100} == {}


def test_every_pipeline_of_a_flow_has_an_adapter_or_a_reason():
    """By folder; in folders of a family by class; and folders of modular pipelines alone."""
    given = {kind.family for kind in inheriting(Pipeline) if "family" in vars(kind)}
    known = {name for own in given for name in (own.pipeline, *own.siblings)}
    left = [name for names in LEFT for name in names.split()]
    folders = {name for names in REMAINING for name in names.split()}
    unnamed = {
        name
        for folder, classes in flow_pipelines().items()
        for name in classes
        if folder not in folders and f"{name}Pipeline" not in known
        if not any(fnmatch(name, one) for one in left)
    }
    assert unnamed == set()
    assert modular_folders() == {name for names in MODULAR for name in names.split()}


def test_no_reason_is_left_of_a_pipeline_that_is_gone_or_has_an_adapter():
    found = flow_pipelines()
    there = {name for classes in found.values() for name in classes}
    assert {name for names in REMAINING for name in names.split()} <= found.keys()
    left = [name for names in LEFT for name in names.split()]
    assert [one for one in left if not any(fnmatch(name, one) for name in there)] == []


def test_the_page_has_a_row_for_every_family_and_every_reason():
    page = PAGE.read_text()
    assert all(f"\n| {name} | " in page for name in FAMILIES)
    assert page.endswith("\n".join(["|---|---|", *missing(), ""]))
