"""Rows about images that a server samples: the requests, and the ids that it must read."""

import base64
import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from policies.vision.small_vision import picture, questions, small_vision

from tandem.config import ConfigError, check, compose
from tandem.policies.engines.replies import Completion, Generation, image_fields, refuse_pictures
from tandem.policies.language.records import Sampling

MODEL = "m"
URL = "rollout.engine.url=http://127.0.0.1:8000"


def question(prompt, kind=Generation):
    return kind(
        prompt=list(prompt),
        seed=1,
        model=MODEL,
        sampling=Sampling(max_new_tokens=4),
        ends=[1],
        vocabulary=40,
        **image_fields(prompt),
    )


def reply(prompt_ids):
    said = [{"logprob": -1.0, "token_id": token} for token in (7, 1)]
    choice = {"token_ids": [7, 1], "logprobs": {"content": said}, "finish_reason": "stop"}
    choice["weight_versions"] = None
    return {"model": MODEL, "choices": [choice], "prompt_token_ids": prompt_ids}


@pytest.fixture(scope="module")
def encoded():
    return small_vision().chat.encode(questions())


def test_a_picture_is_sent_once_for_each_mark_and_without_loss(encoded):
    sent = question(encoded[2]).payload()
    assert sent["token_ids"].count(2) == 2 and encoded[2].count(2) == 9 + 4
    for part, shown in zip(sent["content_parts"], questions()[2].images, strict=True):
        code = part["url"].removeprefix("data:image/png;base64,")
        pixels = np.array(Image.open(io.BytesIO(base64.b64decode(code))))
        assert (pixels == shown.load().numpy()).all() and part["uuid"] == f"{shown.name}-none"


def test_a_text_among_pictures_is_sent_as_it_is_and_samples_no_image_token(encoded):
    sent = question(encoded[1]).payload()
    assert sent["token_ids"] == encoded[1] and "content_parts" not in sent
    assert sent["sampling_params"]["logit_bias"] == {"2": -100.0}


def test_a_row_of_texts_alone_is_asked_as_before():
    assert "logit_bias" not in question([3, 4]).payload()["sampling_params"]


def test_a_server_that_makes_other_tokens_of_a_picture_is_refused(encoded):
    asked = question(encoded[0])
    assert asked.row(reply(list(encoded[0]))).tokens == [7, 1]
    for other in (encoded[0][1:], [2, *encoded[0]], list(encoded[0].marked)):
        with pytest.raises(ValueError, match="its processor tokenises images differently"):
            asked.row(reply(list(other)))


def test_the_endpoint_of_texts_is_given_no_pictures(encoded):
    with pytest.raises(ValueError, match="--enable-scale-out"):
        refuse_pictures(encoded)
    refuse_pictures([encoded[1], [3, 4]])
    assert "content_parts" not in question(encoded[1], Completion).payload()


@pytest.mark.parametrize("rollout", [["paged"], ["sglang_server", URL]])
def test_an_engine_that_does_not_see_is_refused(rollout):
    with pytest.raises(ConfigError, match="receives only token ids"):
        check(compose(["model=tiny_vlm", f"rollout={rollout[0]}", "warm_start=null", *rollout[1:]]))


def test_parts_of_the_tower_on_several_ranks_are_refused():
    with pytest.raises(ConfigError, match="set trainer=ddp"):
        check(compose(["model=tiny_vlm", "trainer=fsdp2", "trainer.devices=2"]))


def test_pictures_of_a_group_are_encoded_once():
    from tandem.policies.engines.replies import image_part

    assert image_part(picture(16), "run-1") is image_part(picture(16), "run-1")


def test_what_a_tower_said_under_older_weights_is_not_used(encoded):
    first, later = (replace(question(encoded[0]), version=v).payload() for v in ("run-1", "run-2"))
    assert first["content_parts"][0]["uuid"] != later["content_parts"][0]["uuid"]
