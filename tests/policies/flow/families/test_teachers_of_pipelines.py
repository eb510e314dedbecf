"""Teachers whose folders differ from the student's: distilled or not, and in their encoders."""

import json
import shutil

import pytest
import torch
from policies.flow.tiny_families import FAMILIES
from safetensors.torch import load_file, save_file

from tandem.dynamics.regression import Regression
from tandem.policies.flow import admission
from tandem.policies.flow.families.flux import Flux
from tandem.policies.flow.families.flux2 import Flux2Klein
from tandem.policies.flow.records import FlowSampling
from tandem.policies.flow.teachers import LoadedVelocityTeachers, VelocityTeachers
from tandem.policies.flow.velocity_model import VelocityModel
from tandem.policies.request import Request
from tandem.policies.weights import FULL


def edit(file, **fields):
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """FLUX.1 that takes a guidance scale, and the same without."""
    place = tmp_path_factory.mktemp("teachers")
    FAMILIES["flux1_dev"].write(place / "dev")
    FAMILIES["sd3_5_medium"].write(place / "sd3")
    schnell = shutil.copytree(place / "dev", place / "schnell")
    config = schnell / "transformer" / "config.json"
    edit(config, guidance_embeds=False)
    weights = config.with_name("diffusion_pytorch_model.safetensors")
    kept = {k: x for k, x in load_file(weights).items() if "guidance_embedder" not in k}
    save_file(kept, weights, metadata={"format": "pt"})
    return place


def flux(folder, guidance):
    own = Flux(resolution=32, max_sequence_length=16, embedded_guidance=guidance)
    own.load(str(folder), None)
    return own


def teach(adapter, folder):
    teachers = VelocityTeachers(folders={"others": str(folder)})
    return teachers.load(adapter, None, FULL).fields["others"]


@pytest.mark.parametrize(
    ("student", "own", "teacher", "usual"),
    [("schnell", None, "dev", 3.5), ("dev", 2.0, "schnell", None), ("dev", 2.0, "dev", 2.0)],
)
def test_student_and_teacher_each_take_the_guidance_scale_that_they_need(
    folders, student, own, teacher, usual
):
    adapter = flux(folders / student, own)
    field = teach(adapter, folders / teacher)
    assert (adapter.embedded_guidance, field.adapter.embedded_guidance) == (own, usual)


def test_the_estimate_outlines_a_teacher_that_is_guided_in_another_way(folders):
    from tandem.policies.flow.teachers import adapter_of_teacher

    own = Flux(resolution=32, max_sequence_length=16, embedded_guidance=None)
    own.outline(str(folders / "schnell"), None)
    assert adapter_of_teacher(own).outline(str(folders / "dev"), None).config.guidance_embeds


def test_a_teacher_with_other_encoders_is_refused_in_one_line(folders, tmp_path):
    other = shutil.copytree(folders / "sd3", tmp_path / "other")
    edit(other / "text_encoder" / "config.json", _name_or_path="elsewhere")
    adapter = FAMILIES["sd3_5_medium"].make()
    adapter.load(str(folders / "sd3"), None)
    assert teach(adapter, other).adapter.folder == other  # the same weights
    weights = other / "text_encoder" / "model.safetensors"
    trained = {k: x + 0.5 if x.is_floating_point() else x for k, x in load_file(weights).items()}
    save_file(trained, weights, metadata={"format": "pt"})
    with pytest.raises(ValueError, match="its text_encoder has other weights") as refused:
        teach(adapter, other)
    assert str(refused.value).startswith("algorithm.teachers.folders.others=")
    assert "\n" not in str(refused.value)


def klein(*, distilled):
    own = Flux2Klein(embedded_guidance=None)
    own.distilled = distilled
    return own


@pytest.mark.parametrize("taught", [True, False])
def test_the_reference_scale_is_checked_against_the_teacher_and_not_the_student(taught):
    """FLUX.2-klein, in four steps, taught by the guided FLUX.2-klein-base."""
    student, base = klein(distilled=True), klein(distilled=False)
    given = FlowSampling(steps=4), (), Regression(levels=None, weighting=None, ref_guidance_scale=4)
    if not taught:
        with pytest.raises(ValueError, match=r"_scale is above 1, but model\.path=k was"):
            admission.check_guidance(student, *given, path="k", teachers=None)
        return
    fields = {"others": VelocityModel(torch.nn.Linear(1, 1), base, precision=FULL)}
    teachers = LoadedVelocityTeachers(fields)
    admission.check_guidance(student, *given, path="k", teachers=teachers)
    base.distilled = True
    with pytest.raises(ValueError, match=r"but algorithm\.teachers\.folders\.others was distilled"):
        admission.check_guidance(student, *given, path="k", teachers=teachers)


@pytest.mark.parametrize("needs", [{"old_error"}, {"ref_error"}, {"ref_logp"}])
def test_a_reference_that_nothing_reads_has_no_guidance_to_encode_for(needs):
    regression = Regression(levels=None, weighting=None, ref_guidance_scale=4)
    request = Request(sampling=FlowSampling(steps=4), needs=needs, timesteps=regression)
    read = admission.guidance_read(request).ref_guidance_scale
    assert read == (1 if needs == {"old_error"} else 4)
