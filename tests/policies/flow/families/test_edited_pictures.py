"""Input images of prompts for families that edit."""

from dataclasses import replace

import pytest
import torch
from small_flow import make_prompts, small

from tandem.data.images import show
from tandem.policies.flow.embeddings import input_of
from tandem.policies.flow.families.flux import Flux, FluxKontext
from tandem.policies.flow.families.flux2 import Flux2Klein
from tandem.policies.flow.families.images import fit_picture
from tandem.types import IMAGE


def test_a_picture_of_the_right_size_is_shown_to_the_pixel():
    picture = torch.randint(0, 256, (4, 6, 3), dtype=torch.uint8)
    assert torch.equal(fit_picture(picture, (4, 6)), picture)


def test_of_another_shape_the_middle_is_shown():
    picture = torch.zeros(8, 4, 3, dtype=torch.uint8)
    picture[2:6] = 200
    assert (fit_picture(picture, (4, 4)) == 200).all()
    assert (fit_picture(picture.transpose(0, 1), (2, 2)) == 200).all()
    assert fit_picture(picture, (16, 24)).shape == (16, 24, 3)
    assert (fit_picture(picture[:1, :1] + 200, (2, 512)) == 200).all()


def test_what_is_encoded_is_known_by_its_text_and_all_of_its_pictures():
    (plain,) = make_prompts(["make it red"])
    first, second = (show(torch.full((2, 2, 3), x, dtype=torch.uint8)) for x in (1, 2))
    shown = replace(plain, text=IMAGE + plain.text, images=(first,))
    inputs = [input_of(plain), input_of(shown), input_of(replace(shown, images=(second,)))]
    assert [one.text for one in inputs] == ["make it red"] * 3
    assert len({one.name for one in inputs}) == 3
    assert input_of(shown).name == input_of(shown).name


def test_prompts_show_as_many_pictures_as_the_model_looks_at():
    policy = small()
    picture = show(torch.zeros(2, 2, 3, dtype=torch.uint8))
    (one,) = make_prompts(["red circle"])
    kept, ((_, reason),) = policy.admit([one, replace(one, images=(picture,))])
    assert kept == [one]
    assert reason == "has 1 input images, but the model takes 0; list them as `images`"


def test_how_many_a_family_looks_at_is_a_fact_on_it():
    assert (Flux().images, FluxKontext().images, Flux2Klein().images) == (0, 1, 0)
    assert Flux2Klein(images=3).images == 3
    for kind, count in ((Flux, 1), (FluxKontext, 2), (FluxKontext, 0), (Flux2Klein, 11)):
        with pytest.raises(ValueError, match=f"model.adapter.images={count}: this family accepts"):
            kind(images=count)
