"""Data between a run and a reward server arrives unchanged, or is reported as invalid."""

import json
import random
import re
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save

from tandem.data.images import show
from tandem.rewards.http import HttpReward
from tandem.rewards.result import Missing
from tandem.rewards.serialization import (
    METADATA,
    PICTURES,
    TEXTS,
    decode,
    decode_numbers,
    encode,
    encode_numbers,
    row_of,
)
from tandem.types import Prompt

ODD = ["", "a", "é\u202e\U0001f4a5", "\ud800", "\x00\n\t", "{answer}", '"}]', "x" * 5000]


def prompts(seed, count):
    """Prompts of every kind, with all types of row values."""
    draw = random.Random(seed)
    for i in range(count):
        text = draw.choice(ODD)
        chat = None if draw.random() < 0.5 else ({"role": "user", "content": text},)
        yield Prompt(
            id=draw.randrange(-(2**63), 2**63),
            source=draw.choice(ODD),
            text=text if chat is None else None,
            messages=chat,
            answer=draw.choice([None, *ODD]),
            fields={draw.choice(ODD): [i, draw.random(), None, {"deep": [True, text]}]},
        )


@pytest.mark.parametrize("seed", range(20))
def test_texts_arrive_as_they_were_sent(seed):
    given = list(prompts(seed, 8))
    outputs = [random.Random(seed + i).choice(ODD) for i in range(8)]
    rows = [row_of(i, outputs[i], prompt) for i, prompt in enumerate(given)]
    kind, body = encode(rows)
    assert kind == TEXTS
    assert decode(kind, body) == rows


def test_the_page_and_the_reward_name_every_part_of_a_prompt_that_leaves_the_machine():
    one = Prompt(id=0, source="s", text="t", fields={"x": 1}, episode={"turns": [], "end": "won"})
    _, body = encode([row_of(0, "a", one)])
    (sample,) = json.loads(body)["samples"]
    assert "episode" in sample["prompt"]
    page = Path(__file__).parents[2] / "docs" / "remote_rewards.md"
    (line,) = [line for line in page.read_text().splitlines() if line.startswith("* `prompt` has")]
    assert set(re.findall("`([a-z]+)`", line)) - {"prompt"} == sample["prompt"].keys()
    sentence = HttpReward.__doc__.partition("Of a prompt only ")[2].partition("are sent.")[0]
    assert sample["prompt"].keys() <= set(re.findall("[a-z]+", sentence))


@pytest.mark.parametrize("seed", range(5))
def test_pictures_arrive_as_they_were_sent(seed):
    draw = torch.Generator().manual_seed(seed)
    shapes = [(8, 8, 3), (1, 5, 3), (16, 4, 3)]
    outputs = [torch.randint(256, s, generator=draw, dtype=torch.uint8) for s in shapes]
    outputs.append(outputs[0].transpose(0, 1))  # not in the order of memory
    outputs += torch.stack([outputs[0]] * 2).unbind()  # sharing memory
    rows = [row_of(i, outputs[i], prompt) for i, prompt in enumerate(prompts(seed, 6))]
    kind, body = encode(rows)
    assert kind == PICTURES
    arrived = decode(kind, body)
    for row, sent, output in zip(arrived, rows, outputs, strict=True):
        assert (row.id, row.prompt) == (sent.id, sent.prompt)
        assert torch.equal(row.output, output)


def test_of_a_prompt_travels_what_rewards_read_and_nothing_else():
    picture = show(torch.zeros(2, 2, 3, dtype=torch.uint8))
    prompt = Prompt(
        id=7, source="s", text="t", answer="a", fields={"k": 1}, chosen="canary",
        rejected="canary", media=picture, chosen_media=picture, rewards=("canary",),
    )  # fmt: skip
    _, body = encode([row_of(0, "out", prompt)])
    [sample] = json.loads(body)["samples"]
    expected = {
        "id": 7, "source": "s", "text": "t", "messages": None, "answer": "a", "fields": {"k": 1}
    }  # fmt: skip
    assert sample["prompt"] == expected
    assert sample.keys() == {"id", "output", "prompt"}
    assert b"canary" not in body


def test_the_pictures_and_files_of_a_row_stay_here_and_its_other_fields_travel():
    picture = show(torch.zeros(2, 2, 3, dtype=torch.uint8))
    files = {"one": picture, "some": ["a", picture], "raw": b"x", "stored": {"bytes": b"x"}}
    files["decoded"] = [Image.new("RGB", (2, 2))]  # as a plugin may keep it
    row = row_of(0, "out", Prompt(id=7, source="s", text="t", fields={"level": [1], **files}))
    [sample] = json.loads(encode([row])[1])["samples"]
    assert sample["prompt"]["fields"] == {"level": [1]}


@pytest.mark.parametrize("seed", range(20))
def test_numbers_arrive_bit_for_bit(seed):
    draw = random.Random(seed)
    numbers = [draw.uniform(-1, 1) * 10 ** draw.randrange(-300, 18) for _ in range(50)]
    numbers += [None, 0.0, -0.0, 5e-324, 3]
    ids = [str(i) for i in range(len(numbers))]
    said = json.loads(encode_numbers(ids, numbers))
    draw.shuffle(said["scores"])
    arrived = decode_numbers(said, ids)
    assert arrived == numbers
    assert [str(x) for x in arrived] == [str(x) for x in numbers]  # the sign of 0 too


def test_a_reason_arrives_as_the_servers_own():
    [fault] = decode_numbers(json.loads(encode_numbers(["a"], [Missing("no\nidea")])), ["a"])
    assert str(fault) == "the server says: no idea"


FAULTS = {  # scores -> the result for row "a"; row "b" keeps its 2
    "nothing": ([], "the reply has no score for it"),
    "another id": ([{"id": "c", "score": 1}], "the reply has no score for it"),
    "two": ([{"id": "a", "score": 1}, {"id": "a", "score": 1}], "the reply has two scores for it"),
    "text": ([{"id": "a", "score": "1"}], "gave str, not a number"),
    "truth": ([{"id": "a", "score": True}], "gave bool, not a number"),
    "a list": ([{"id": "a", "score": [1]}], "gave list, not a number"),
    "no object": ([["a", 1]], "the reply has no score for it"),
    "a number as id": ([{"id": 0, "score": 1}], "the reply has no score for it"),
}


@pytest.mark.parametrize(("scores", "said"), FAULTS.values(), ids=FAULTS)
def test_a_wrong_row_of_a_reply_is_that_rows_fault(scores, said):
    fault, right = decode_numbers({"scores": [{"id": "b", "score": 2}, *scores]}, ["a", "b"])
    assert (str(fault), right) == (said, 2)


@pytest.mark.parametrize(
    "reply", [None, [], {}, {"scores": 3}, {"scores": []}, {"scores": [{"id": "c", "score": 1}]}]
)
def test_a_reply_about_nobody_is_a_fault_of_the_server(reply):
    with pytest.raises(ValueError, match=r"^the reply has (no list of scores|none of the 1 ids)"):
        decode_numbers(reply, ["a"])


def test_the_same_sample_in_another_place_or_with_another_text_has_another_id():
    prompt = Prompt(id=1, source="s", text="t")
    other = Prompt(id=1, source="s", text="u")
    ids = [row_of(0, "a", prompt), row_of(1, "a", prompt), row_of(0, "b", prompt)]
    ids.append(row_of(0, "a", other))
    assert len({row.id for row in ids}) == 4
    assert row_of(0, "a", prompt).id == ids[0].id


@pytest.mark.parametrize("value", [torch.zeros(1), float("nan"), {1, 2}])
def test_what_cannot_travel_is_refused_by_itself(value):
    with pytest.raises((TypeError, ValueError)):
        row_of(0, "a", Prompt(id=1, source="s", text="t", fields={"k": value}))


GOOD = {"id": "a", "output": "o", "prompt": {"id": 1, "source": "s", "text": "t"}}
WRONG = {
    "no JSON": b"{",
    "a constant": b'{"version": 1, "samples": [NaN]}',
    "deep": b"[" * 50_000,
    "a list": [],
    "no version": {"samples": [GOOD]},
    "another version": {"version": 2, "samples": [GOOD]},
    "no samples": {"version": 1},
    "none": {"version": 1, "samples": []},
    "twice": {"version": 1, "samples": [GOOD, GOOD]},
    "more": {"version": 1, "samples": [GOOD | {"media": 1}]},
    "no output": {"version": 1, "samples": [{"id": "a", "prompt": GOOD["prompt"]}]},
    "id": {"version": 1, "samples": [GOOD | {"id": 3}]},
    "output": {"version": 1, "samples": [GOOD | {"output": 3}]},
    "prompt": {"version": 1, "samples": [GOOD | {"prompt": "t"}]},
    "prompt id": {"version": 1, "samples": [GOOD | {"prompt": {"id": True, "text": "t"}}]},
    "neither": {"version": 1, "samples": [GOOD | {"prompt": {"id": 1}}]},
    "rewards": {"version": 1, "samples": [GOOD | {"prompt": {"id": 1, "rewards": []}}]},
    "answer": {"version": 1, "samples": [GOOD | {"prompt": {"id": 1, "text": "", "answer": 3}}]},
    "fields": {"version": 1, "samples": [GOOD | {"prompt": {"id": 1, "text": "", "fields": []}}]},
    "chat": {"version": 1, "samples": [GOOD | {"prompt": {"id": 1, "messages": ["hi"]}}]},
}


@pytest.mark.parametrize("request_", WRONG.values(), ids=WRONG)
def test_a_request_that_is_none_is_refused_in_one_line(request_):
    body = request_ if isinstance(request_, bytes) else json.dumps(request_).encode()
    with pytest.raises(ValueError, match=r".") as raised:
        decode(TEXTS, body)
    assert "\n" not in str(raised.value)


def picture_request(pictures, samples, **metadata):
    request = json.dumps({"version": 1, "samples": samples})
    return save(pictures, {METADATA: request} | metadata)


PICTURE = torch.zeros(2, 2, 3, dtype=torch.uint8)
SAMPLE = {"id": "a", "prompt": GOOD["prompt"]}
NO_PICTURES = {
    "no file": b"PK\x03\x04",
    "empty": b"",
    "a long header": (1 << 62).to_bytes(8, "little") + b"{}",
    "no request": save({"a": PICTURE}),
    "another request": save({"a": PICTURE}, {METADATA: "[1]"}),
    "a tensor too many": picture_request({"a": PICTURE, "b": PICTURE + 1}, [SAMPLE]),
    "a tensor too few": picture_request({"b": PICTURE + 1}, [SAMPLE]),
    "floats": picture_request({"a": PICTURE.float()}, [SAMPLE]),
    "a batch": picture_request({"a": PICTURE[None]}, [SAMPLE]),
    "an output": picture_request({"a": PICTURE}, [GOOD]),
}


@pytest.mark.parametrize("body", NO_PICTURES.values(), ids=NO_PICTURES)
def test_a_request_of_pictures_that_is_none_is_refused_in_one_line(body):
    with pytest.raises(ValueError, match=r".") as raised:
        decode(PICTURES, body)
    assert "\n" not in str(raised.value)
