"""Episodes with images as observations: the laws of text episodes hold."""

import sys
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
import torch
from policies.vision.small_vision import questions
from torch.testing import assert_close

from tandem.data.images import show
from tandem.data.maze_shown import draw_maze, maze_shown
from tandem.environments import About, Environment, Said
from tandem.environments.maze import MazeShown
from tandem.policies.language.bridge import Unreadable
from tandem.policies.language.records import Sampling
from tandem.policies.request import Request
from tandem.policies.vision.policy import VisionLanguagePolicy
from tandem.policies.vision.tiny_vlm import tiny_vlm
from tandem.types import IMAGE, Prompt, take

sys.path.append(str(Path(__file__).parents[2] / "environments"))
from worlds import Faulty, make_environment, raises

SMALL = {"num_layers": 1, "hidden_size": 48, "tower_layers": 1, "max_positions": 256}
SEEING = ["language", "projector", "vision"]
DATA = maze_shown(moves=4, mazes=40, held_out=4, demonstrations=6, seed=0)


def seeing(environment, *, packing=False, **options):
    build = partial(tiny_vlm, seed=0, **SMALL)
    policy = VisionLanguagePolicy(build=build, packing=packing, **options)
    sampling = Sampling(max_new_tokens=2)
    policy.load(Request(sampling=sampling, environment=environment))
    with torch.no_grad():  # a new model hardly uses images
        for name, weight in policy.network.named_parameters():
            if "visual" in name and weight.ndim > 1:
                weight.mul_(3)
    return policy


def play(policy, prompts=DATA.train[:3], group_size=2, **options):
    return policy.sample(list(prompts), group_size, key=5, slots=range(len(prompts)), **options)


@pytest.mark.parametrize("packing", [False, "auto"])
def test_training_says_of_each_move_what_the_sampler_said(packing):
    policy = seeing(make_environment(MazeShown()), packing=packing)
    rows = play(policy)
    assert rows.turn.amax() > 1 and min(map(len, rows.sample.images)) > 1
    assert_close(
        policy.logp(rows), torch.where(rows.mask, rows.behaviour_logp, 0), atol=2e-5, rtol=1e-5
    )


def test_another_picture_changes_the_moves_behind_it_and_none_before():
    policy = seeing(make_environment(MazeShown()))
    rows = take(play(policy), torch.tensor([0]))
    black = show(torch.zeros(24, 24, 3, dtype=torch.uint8))
    (own,) = rows.sample.images
    other = replace(rows, sample=replace(rows.sample, images=((own[0], black, *own[2:]),)))
    before, behind = (rows.turn == 1) & rows.mask, (rows.turn > 1) & rows.mask
    was, now = policy.logp(rows), policy.logp(other)
    assert_close(was[before], now[before])
    assert (was - now)[behind].abs().max() > 1e-4


@pytest.mark.parametrize("frozen", [True, False])
def test_no_token_of_a_picture_is_trained_and_a_frozen_tower_gets_no_gradient(frozen):
    """Only moves are trained, and those before an image do not depend on it."""
    policy = seeing(
        make_environment(MazeShown()), **({} if frozen else {"target_components": SEEING})
    )
    rows = take(play(policy), torch.tensor([0]))
    before = int(rows.sample.prompt_length[0])
    behind = rows.sample.tokens[:, before : before + rows.mask.shape[1]]
    assert not (rows.mask & (behind == policy.scorer.inputs.image_token)).any()
    logp = policy.evidence(rows, frozenset()).logp
    logp[rows.mask].sum().backward()
    tower = [p.grad for n, p in policy.network.named_parameters() if "visual" in n]
    if frozen:
        assert all(grad is None for grad in tower)
    else:
        assert any(grad is not None and grad.abs().sum() > 0 for grad in tower)


def test_cuts_and_company_move_no_token():
    policy = seeing(make_environment(MazeShown()))
    want = play(policy, DATA.train[:4])
    small = play(policy, DATA.train[:4], sampling=replace(policy.sampling, max_rows=3))
    alone = policy.sample(list(DATA.train[2:3]), 2, key=5, slots=[2])
    assert small.outputs == want.outputs and alone.outputs == want.outputs[4:6]
    rows = torch.tensor([4, 5])
    assert_close(policy.logp(take(want, rows)), policy.logp(want)[rows], atol=1e-5, rtol=1e-5)
    assert [len(x) for x in alone.sample.images] == [len(x) for x in want.sample.images[4:6]]


def test_a_row_of_which_the_end_is_not_read_shows_the_pictures_that_are():
    policy = seeing(make_environment(MazeShown()))
    rows = play(policy)
    first = rows.mask & (rows.turn == 1)
    cut = policy.scorer(rows.sample, first).logp
    assert_close(cut, torch.where(first, policy.logp(rows), 0), atol=1e-5, rtol=1e-5)


def test_a_demonstration_has_the_ids_that_the_same_moves_would_have_read():
    policy = seeing(make_environment(MazeShown()))
    rows = play(policy, DATA.train[:1], 1)
    told = rows.prompts[0].episode["turns"]
    moves = [one["content"] for one in told if one["role"] == "assistant"]
    said = [{"role": "user", "content": f"what ?{IMAGE}"}]
    for number, move in enumerate(moves):
        said += [{"role": "user", "content": IMAGE}] if number else []
        said.append({"role": "assistant", "content": move})
    shown = Prompt(id=9, source="x", messages=tuple(said), images=rows.sample.images[0])
    again = policy.encode([shown], key=0, slots=[0])
    width = int(again.sample.prompt_length[0])
    assert torch.equal(again.sample.tokens[:, :width], rows.sample.tokens[:, :width])
    assert again.sample.images == rows.sample.images and int(again.turn.max()) == len(moves)
    assert_close(policy.logp(again).ne(0), again.mask)


TEMPLATE = (
    "{% for message in messages %}{% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}{% if part.type == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}"
    "{% endif %}{% if message.role == 'assistant' %}EOS{% endif %}{% endfor %}"
)


def test_a_picture_stands_in_a_template_as_the_family_writes_it_and_no_text_forges_one():
    policy = seeing(make_environment(MazeShown()))
    chat, bridge = policy.chat, policy.episodes.of[None].bridge
    chat.tokenizer.chat_template = TEMPLATE.replace("EOS", chat.tokenizer.eos_token)
    bridge = type(bridge)(chat, policy.ends, limit=64)
    ids = chat.tokenizer.convert_tokens_to_ids
    picture = draw_maze(*(DATA.train[0].fields[name] for name in ("doors", "start", "goal")))
    want = [ids("<|vision_start|>"), *[ids("<|image_pad|>")] * 9, ids("<|vision_end|>")]
    move = [*bridge.plain("1"), *bridge.end]
    plain = bridge.turn_ids([{"role": "user", "content": IMAGE}], move, [picture])
    assert plain == want
    said = bridge.turn_ids([{"role": "user", "content": f"red ? {IMAGE} how"}], move, [picture])
    assert said == [ids("red"), ids("?"), *want, ids("how")]
    for images, content in (([picture], f"red <|image_pad|> {IMAGE}"), ([], "<|image_pad|>")):
        with pytest.raises(Unreadable, match="contains an image token"):
            bridge.turn_ids([{"role": "user", "content": content}], move, images)


@pytest.mark.parametrize("writes_prompt", [False, True])
def test_a_special_token_and_a_mark_in_an_opening_are_read_as_text(writes_prompt):
    def begin(opening, **asked):
        class World:
            def describe(self):
                return About(writes_prompt=writes_prompt)

            def begin(self, prompt, key):
                act = lambda self, move: Said.text("on", over=True)  # noqa: E731
                close = lambda self: None  # noqa: E731
                own = {"opening": Said.text(opening), "act": act, "close": close}
                return type("E", (), own)()

        world = Environment(World(), attempts=1, timeout=None, max_tokens=None)
        asked = [Prompt(id=0, source="s", **({"text": "colour ?"} | asked))]
        rows = play(seeing(world), asked)
        assert rows.prompts[0].episode["lost"] is None
        return rows.sample.tokens[0, : int(rows.sample.prompt_length[0])].tolist()

    shown = {"text": f"{IMAGE} colour ?", "images": (draw_maze({"a": {}}, "a", "b"),)}
    for asked in ({}, shown):
        plain = begin(" red", **asked)
        for opening in (" red <eos>", f" red {IMAGE} red", f" red {IMAGE} <eos>"):
            ids = begin(opening, **asked)
            assert ids[: len(plain)] == plain and len(ids) > len(plain)


def test_what_a_world_shows_must_be_marked_and_said():
    def lost(about, said):
        class World:
            def describe(self):
                return about

            def begin(self, prompt, key):
                close = lambda self: None  # noqa: E731
                return type("E", (), {"opening": said, "act": close, "close": close})()

        rows = play(seeing(Environment(World(), attempts=1, timeout=None, max_tokens=None)))
        return rows.prompts[0].episode["lost"]

    picture = draw_maze({"a": {}}, "a", "b")
    shown = {"messages": ({"role": "user", "content": IMAGE},), "images": (picture,)}
    assert "1 pictures for 0 markers" in lost(About(shows=True), Said(images=(picture,)))
    assert "declares that it shows none" in lost(About(), Said(**shown))


def test_a_server_is_sent_each_image_of_a_prompt_with_one_mark_in_every_move():
    world = Faulty({2: raises}, turns=3, only_first=True)  # whose rows begin again, without others
    policy = seeing(make_environment(world))
    asked, answer = [], policy.engine.answer
    policy.engine.answer = lambda prompts, *a, **b: (
        asked.append(prompts) or answer(prompts, *a, **b)
    )
    rows = play(policy, questions())
    assert [row.episode["lost"] for row in rows.prompts] == [None] * 6 and len(asked) > 3
    (mark,) = policy.scorer.inputs.banned
    for prompt in (one for prompts in asked for one in prompts):
        lengths = map(policy.chat.processed.length, prompt.images)
        spread = ([one] * (next(lengths) if one == mark else 1) for one in prompt.marked)
        assert not prompt.images or [*chain(*spread)] == prompt


class Retells:
    """Replaces the prompt by an opening, shows an image, then begins a second conversation, in
    which it shows an image too if `late`."""

    def __init__(self, *, late=False):
        user = {"role": "user", "content": "red ?"}
        shown = {
            "messages": ({**user, "content": IMAGE},),
            "images": (draw_maze({"a": {}}, "a", "b"),),
        }
        self.opening = Said(messages=(user,))
        last = Said(context=1, **shown) if late else Said(over=True)
        self.answers = (Said(**shown), Said(messages=(user,), context=1), last)

    def describe(self):
        return About(writes_prompt=True, shows=True)

    def begin(self, prompt, key):
        act = lambda self, move: answers[move.number - 1]  # noqa: E731
        close, answers = lambda self: None, self.answers
        return type("E", (), {"opening": self.opening, "act": act, "close": close})()


def retold(world):
    """Rows of a prompt with an image, which the environment's opening does not have."""
    policy = seeing(Environment(world, attempts=1, timeout=None, max_tokens=None))
    picture = draw_maze({"a": {}}, "a", "b")
    asked = Prompt(id=0, source="x", text=f"{IMAGE} what ?", images=(picture,))
    return policy, play(policy, [asked], 2)


def test_pictures_of_a_prompt_are_not_of_an_opening_in_its_place_nor_of_another_conversation():
    policy, rows = retold(Retells())
    assert [row.episode["lost"] for row in rows.prompts] == [None, None]
    assert [len(images) for images in rows.sample.images] == [1, 1]
    assert int(rows.sample.context.max()) == 1 and int(rows.turn.max()) == 3
    assert_close(
        policy.logp(rows), torch.where(rows.mask, rows.behaviour_logp, 0), atol=2e-5, rtol=1e-5
    )


def test_a_picture_in_a_second_conversation_is_refused():
    _, rows = retold(Retells(late=True))
    assert "outside its first conversation" in rows.prompts[0].episode["lost"]


def test_a_maze_is_drawn_with_its_walls_where_one_is_and_its_goal():
    doors = {"a": {")": "b"}, "b": {"(": "a", "-": "d"}, "c": {}, "d": {"+": "b"}}
    pixels = draw_maze(doors, "a", "d").load()
    cells = {name: pixels[8 * (i // 2) :, 8 * (i % 2) :][:8, :8] for i, name in enumerate("abcd")}
    assert cells["a"][4, 4].tolist() == [220, 0, 0] and cells["d"][4, 4].tolist() == [0, 180, 0]
    walls = {
        name: [
            int(own[edge][1:-1].float().mean()) == 0
            for edge in ((0,), (-1,), (slice(None), 0), (slice(None), -1))
        ]
        for name, own in cells.items()
    }
    assert walls["a"] == [True, True, True, False] and walls["c"] == [True] * 4
    assert walls["b"] == [True, False, False, True] and walls["d"] == [False, True, True, True]
