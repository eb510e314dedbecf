"""What the cached conditions of a family depend on, and gradients of its encoders."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from policies.flow.tiny_families import FAMILIES

from tandem.data.images import show
from tandem.policies.flow.components import choose_trained
from tandem.policies.flow.embeddings import PromptEmbeddingCache
from tandem.policies.flow.families.flux import Flux, FluxKontext
from tandem.policies.flow.records import PromptInput
from tandem.policies.flow.velocity_model import VelocityModel
from tandem.policies.weights import FULL

CPU = torch.device("cpu")
PLUGIN = """
import torch
from tandem.policies.flow.families.flux import Flux

class Own(Flux):
    def __init__(self, *, factor=0.0, **options):
        super().__init__(**options)
        self.factor = factor

    def condition(self, pipeline, asked, device):
        found = super().condition(pipeline, asked, device)
        return found | {"states": self.factor * found["states"]}
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("readers")
    return {name: FAMILIES[name].write(place / name) for name in ("flux1_dev", "flux1_kontext")}


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A function that writes a plugin's file and returns its class `Own`."""

    def write(code):
        module = ModuleType("families_of_my_own")
        module.__file__ = str(tmp_path / "own.py")
        Path(module.__file__).write_text(code)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(code, module.__file__, "exec"), module.__dict__)
        return module.Own

    return write


def load(kind, folder, *, decoding="batched", resolution=32, **options):
    own = kind(resolution=resolution, max_sequence_length=16, embedded_guidance=2.0, **options)
    own.save_memory(frozenset(), decoding)
    own.load(str(folder), None)
    return own


def read(adapter, cache, *, name, **options):
    inputs = [PromptInput(text="a red square", **options)]
    return PromptEmbeddingCache(adapter, cache=cache, negative=None).stack(inputs, CPU)[name]


def test_a_family_never_reads_the_conditions_of_another_code_or_number(folders, plugin, tmp_path):
    folder, cache = folders["flux1_dev"], tmp_path / "cache"
    plain = read(load(Flux, folder), cache, name="states")
    own = plugin(PLUGIN)
    assert read(load(own, folder), cache, name="states").abs().sum() == 0
    halved = read(load(own, folder, factor=0.5), cache, name="states")
    assert torch.equal(halved, 0.5 * plain)
    edited = plugin(PLUGIN.replace("self.factor *", "3 + self.factor *"))
    assert (read(load(edited, folder), cache, name="states") == 3).all()
    assert load(Flux, folder).fingerprint() == load(Flux, folder).fingerprint()


def test_conditions_of_another_diffusers_are_not_read(folders, monkeypatch):
    import diffusers

    before = load(Flux, folders["flux1_dev"]).fingerprint()
    monkeypatch.setattr(diffusers, "__version__", "0.0.0")
    assert load(Flux, folders["flux1_dev"]).fingerprint() != before


def test_a_family_whose_code_is_in_no_file_is_not_cached(folders, plugin):
    own = plugin(PLUGIN)
    del sys.modules[own.__module__].__file__
    assert load(own, folders["flux1_dev"]).fingerprint() is None


def test_input_images_in_tiles_are_not_read_as_whole_ones(folders, tmp_path):
    torch.manual_seed(0)
    pictures = (show(torch.randint(0, 256, (128, 128, 3), dtype=torch.uint8)),)
    found = {}
    for decoding in ("batched", "tiled"):
        own = load(FluxKontext, folders["flux1_kontext"], decoding=decoding, resolution=128)
        found[decoding], fresh = (
            read(own, tmp_path / cache, name="shown", images=pictures)
            for cache in ("both", decoding)
        )
        assert torch.equal(found[decoding], fresh)
    assert not torch.equal(found["batched"], found["tiled"])


def test_frozen_encoders_beside_a_trained_one_get_no_gradients(tmp_path):
    family = FAMILIES["sd3_5_medium"]
    adapter = family.make()
    network = adapter.load(str(family.write(tmp_path)), None)
    network = choose_trained(network, ["text_encoder"], adapter, None)
    field = VelocityModel(network, adapter, precision=FULL)
    library = PromptEmbeddingCache(adapter, cache=None, negative=None)
    condition = library.stack([PromptInput(text="a red square")], CPU)
    x, sigma = torch.randn(1, *adapter.latent_shape), torch.tensor([0.5])
    field.predict(x, sigma, condition).sum().backward()
    moved = {
        name: any(p.grad is not None for p in adapter.pipeline.components[name].parameters())
        for name in ("text_encoder", "text_encoder_2", "text_encoder_3")
    }
    assert moved == {"text_encoder": True, "text_encoder_2": False, "text_encoder_3": False}
