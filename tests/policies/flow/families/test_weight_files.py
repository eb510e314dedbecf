"""Weights of pipeline folders in the dtype in which they were saved."""

import pytest
import torch
from policies.flow.tiny_families import FAMILIES
from safetensors.torch import save_file

from tandem.policies.flow.families.weight_files import saved_dtype

BASE = FAMILIES["sd3_5_medium"]


@pytest.fixture(scope="module", params=["500MB", "50kB"])
def folder(request, tmp_path_factory):
    """A pipeline in bfloat16, each part in one file or in shards."""
    place = tmp_path_factory.mktemp("saved")
    torch.manual_seed(0)
    BASE.pipeline().to(torch.bfloat16).save_pretrained(place, max_shard_size=request.param)
    assert (len(list((place / "transformer").glob("*.safetensors"))) > 1) == (
        request.param == "50kB"
    )
    return place


def dtypes(network):
    return {parameter.dtype for parameter in network.parameters()}


@pytest.mark.parametrize("asked", [None, torch.float32])
def test_a_transformer_and_its_outline_have_the_saved_dtype_unless_another_is_asked(folder, asked):
    for read in (BASE.make().load, BASE.make().outline):
        assert dtypes(read(str(folder), asked)) == {asked or torch.bfloat16}


def test_a_trained_encoder_and_its_outline_have_the_saved_dtype(folder):
    for read in ("load", "outline"):
        adapter = BASE.make()
        getattr(adapter, read)(str(folder), None)
        assert dtypes(adapter.component("text_encoder_3", None)) == {torch.bfloat16}


def test_the_dtype_is_that_of_the_largest_tensor_without_variants(tmp_path):
    assert saved_dtype(tmp_path) == torch.float32
    large, small = torch.zeros(8, 8, dtype=torch.float16), torch.zeros(9)
    save_file({"a": small, "b": large}, tmp_path / "model.safetensors")
    save_file({"a": torch.zeros(99)}, tmp_path / "model.fp32.safetensors")
    assert saved_dtype(tmp_path) == torch.float16
