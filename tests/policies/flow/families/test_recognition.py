"""Folders of another pipeline than the chosen family's, and of distilled models."""

import importlib
import inspect
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from tandem.policies.flow import admission
from tandem.policies.flow.families.flux import Flux, FluxKontext
from tandem.policies.flow.families.flux2 import Flux2, Flux2Klein
from tandem.policies.flow.families.folders import diffusers_class
from tandem.policies.flow.families.hunyuan_video import HunyuanVideo
from tandem.policies.flow.families.hunyuan_video_1 import HunyuanVideo1
from tandem.policies.flow.families.ltx2 import LTX2
from tandem.policies.flow.families.pipelines import Pipeline
from tandem.policies.flow.families.qwen_image import QwenImage
from tandem.policies.flow.families.qwen_image_edit import QwenImageEdit
from tandem.policies.flow.families.recognition import refuse_other_pipeline
from tandem.policies.flow.families.sana import Sana
from tandem.policies.flow.families.sd3 import SD3
from tandem.policies.flow.families.wan import Wan
from tandem.policies.flow.families.wan_image import WanImage
from tandem.policies.flow.families.z_image import ZImage

CONF = Path(__file__).parents[4] / "conf" / "model"
EVERY = (
    Flux,
    FluxKontext,
    Flux2,
    Flux2Klein,
    HunyuanVideo,
    LTX2,
    QwenImage,
    QwenImageEdit,
    Sana,
    SD3,
    Wan,
    WanImage,
    ZImage,
)
OTHERS = [
    (QwenImage, "QwenImageEditPlusPipeline", "set model=qwen_image_edit"),
    (Flux, "FluxKontextPipeline", "set model=flux1_kontext"),
    (FluxKontext, "FluxPipeline", "set model=flux1_dev"),
    (Wan, "WanImageToVideoPipeline", "set model=wan2_1_i2v_14b"),
    (Sana, "SanaSprintPipeline", "no model supports that pipeline; choose another model.path"),
]


def index(folder, **said):
    (folder / "model_index.json").write_text(json.dumps(said))
    return folder


@pytest.mark.parametrize(("adapter", "named", "wanted"), OTHERS)
def test_the_folder_of_another_pipeline_is_one_line(adapter, named, wanted, tmp_path):
    index(tmp_path, _class_name=named)
    for read in (adapter().load, adapter().outline):
        with pytest.raises(ValueError, match=f"is a {named}, but the chosen model") as refused:
            read(str(tmp_path), None)
        assert str(refused.value).endswith(wanted) and "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["MyPipeline", "SanaPipeline"])
def test_the_folder_of_a_pipeline_with_its_own_code_is_one_line(name, tmp_path):
    """diffusers then names the file and the class in it; the code may differ from the family's."""
    index(tmp_path, _class_name=["my_file", name])
    with pytest.raises(ValueError, match=rf"is a my_file\.{name}, but the chosen model") as refused:
        Sana().load(str(tmp_path), None)
    assert str(refused.value).endswith("no model supports that pipeline; choose another model.path")


@pytest.mark.parametrize("adapter", EVERY)
def test_a_family_takes_its_own_pipeline_and_those_of_the_same_parts(adapter, tmp_path):
    own = adapter.family
    parts = set(inspect.signature(diffusers_class(own.pipeline).__init__).parameters)
    for name in (own.pipeline, *own.siblings):
        refuse_other_pipeline(index(tmp_path, _class_name=name), own, Pipeline)
        theirs = set(inspect.signature(diffusers_class(name).__init__).parameters)
        assert parts - theirs <= {"image_encoder", "feature_extractor", "image_processor"}
    preset = yaml.safe_load((CONF / f"{own.model}.yaml").read_text())
    module, _, name = preset["model"]["adapter"]["_target_"].rpartition(".")
    assert getattr(importlib.import_module(module), name) is adapter


@pytest.mark.parametrize("distilled", [True, False])
def test_guidance_of_a_distilled_klein_is_refused(distilled, tmp_path):
    adapter = Flux2Klein(embedded_guidance=None)
    adapter.folder = index(tmp_path, is_distilled=distilled)
    adapter.fit(SimpleNamespace(config=SimpleNamespace(guidance_embeds=False)))
    admission.refuse_distilled(adapter, None, named="model.path=a/b")
    if not distilled:
        return admission.refuse_distilled(
            adapter, "evaluation.guidance_scale", named="model.path=a/b"
        )
    with pytest.raises(ValueError, match=r"without guidance.*set evaluation.guidance_scale=1"):
        admission.refuse_distilled(adapter, "evaluation.guidance_scale", named="model.path=a/b")


@pytest.mark.parametrize("family", [Flux, Flux2, HunyuanVideo1])
def test_a_missing_guidance_scale_is_told_as_the_preset_has_it(family, tmp_path):
    preset = yaml.safe_load((CONF / f"{family.family.model}.yaml").read_text())
    usual = preset["model"]["adapter"]["embedded_guidance"]
    adapter = family(embedded_guidance=None)
    adapter.folder = index(tmp_path)
    with pytest.raises(ValueError, match=f"needs a guidance scale; set it to {usual}$"):
        adapter.fit(SimpleNamespace(config=SimpleNamespace(guidance_embeds=True)))
