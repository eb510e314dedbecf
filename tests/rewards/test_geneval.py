"""GenEval's rules on scenes drawn in code, with a detector that is exact there, and both detectors
of transformers on random checkpoints."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from scipy import ndimage
from tiny_clip import write_clip

from tandem.config import check, compose
from tandem.rewards import Reward
from tandem.rewards.clauses import COLOURS
from tandem.rewards.colours import PUT, ColourNamer
from tandem.rewards.geneval import GenEval, Limits, correct, relaxed
from tandem.rewards.objects import Found, cut_out, direction, overlap, select
from tandem.types import Prompt

PALETTE = {"red": (230, 20, 20), "blue": (20, 20, 230), "green": (20, 200, 20)}
GROUND = (20, 20, 20)
SIDE, RADIUS = 96, 10


@dataclass(frozen=True)
class Thing:
    colour: str
    shape: str
    x: int
    y: int


def draw(*things):
    """A scene, uint8 [96, 96, 3]."""
    picture = torch.tensor(GROUND).expand(SIDE, SIDE, 3).clone()
    rows, columns = torch.arange(SIDE)[:, None], torch.arange(SIDE)[None]
    for thing in things:
        y, x = rows - thing.y, columns - thing.x
        round_, straight = y**2 + x**2 <= RADIUS**2, torch.maximum(y.abs(), x.abs()) <= RADIUS
        inside = {"circle": round_, "square": straight}[thing.shape]
        picture[inside] = torch.tensor(PALETTE[thing.colour])
    return picture.byte()


def see(pictures, names, score: Callable[[int], float] = lambda number: 0.95):
    """An exact detector: connected regions, classified by how much of their box they fill."""
    found = []
    for picture, own in zip(pictures, names, strict=True):
        marks, _ = ndimage.label((picture != torch.tensor(GROUND).byte()).any(-1).numpy())
        by_name = {name: [] for name in own}
        for number, (rows, columns) in enumerate(ndimage.find_objects(marks)):
            mask = torch.from_numpy(marks == number + 1)
            shape = "square" if mask[rows, columns].float().mean() > 0.9 else "circle"
            box = (columns.start, rows.start, columns.stop, rows.stop)
            if shape in by_name:
                by_name[shape].append(Found(score=score(number), box=box, mask=mask))
        found.append(by_name)
    return found


def name_colours(pictures, found, names):
    """The palette colour in the centre of each object."""
    inverse = {rgb: colour for colour, rgb in PALETTE.items()}
    rows = zip(pictures, ([one.centre for one in own] for own in found), strict=True)
    return [[inverse[tuple(seen[int(y), int(x)].tolist())] for x, y in own] for seen, own in rows]


def judge(scene, row, rule=relaxed, **limits):
    reward = GenEval(see, name_colours, rule=rule, limits=Limits(**limits))
    prompt = Prompt(id=0, source="s", text="a scene", fields=row)
    return reward([scene], [prompt])[0]


def both(scene, row):
    return judge(scene, row), judge(scene, row, rule=correct)


CIRCLES = {"class": "circle", "count": 2, "color": "red"}
SQUARE = {"class": "square", "count": 1, "color": "blue", "position": ["right of", 0]}
ASKED = {"tag": "position", "include": [CIRCLES, SQUARE]}  # two red circles left of a blue square
LEFT = (Thing("red", "circle", 15, 30), Thing("red", "circle", 15, 66))
RIGHT = Thing("blue", "square", 75, 48)


@pytest.mark.parametrize(
    ("things", "partial", "right"),
    [
        ((*LEFT, RIGHT), 1.0, 1.0),
        # counts 1/2 and 1, no colour, and no direction after a failed clause: 0.5 0 1 1 0
        ((LEFT[0], RIGHT), 2.5 / 5, 0.0),
        # a third circle: 0.5 0 | 1 1 0; GenEval itself asks for at least two
        ((*LEFT, Thing("red", "circle", 40, 85), RIGHT), 2.5 / 5, 1.0),
        # one circle is green: 1 0.5 | 1 1 0
        ((LEFT[0], Thing("green", "circle", 15, 66), RIGHT), 3.5 / 5, 0.0),
        # the square is red: 1 1 | 1 0
        ((*LEFT, Thing("red", "square", 75, 48)), 3 / 4, 0.0),
        # the square stands to the left: 1 1 | 1 1 0 1
        ((*(Thing("red", "circle", 75, y) for y in (30, 66)), Thing("blue", "square", 15, 48)),
         5 / 6, 0.0),
        # one of two circles is to its right: as bad
        ((LEFT[0], Thing("red", "circle", 75, 80), Thing("blue", "square", 48, 48)), 5 / 6, 0.0),
        ((), 0.0, 0.0),
    ],
)  # fmt: skip
def test_two_red_circles_left_of_a_blue_square(things, partial, right):
    assert both(draw(*things), ASKED) == (pytest.approx(partial), right)


def test_counts_of_a_counting_row_are_those_of_high_score_and_too_many_is_wrong():
    row = {
        "tag": "counting",
        "include": [{"class": "circle", "count": 2}],
        "exclude": [{"class": "circle", "count": 3}],
    }
    third = Thing("red", "circle", 75, 30)
    assert both(draw(*LEFT), row) == (1.0, 1.0)
    assert both(draw(*LEFT, third), row) == (0.5, 0.0)
    assert both(draw(LEFT[0]), row) == (0.5, 0.0)
    unsure = GenEval(lambda p, n: see(p, n, lambda number: 0.95 - 0.1 * number), name_colours,
                     rule=correct)  # fmt: skip
    asked = [
        Prompt(id=0, source="s", text="?", fields=row | {"tag": tag}) for tag in ("counting", "x")
    ]
    assert unsure([draw(*LEFT)] * 2, asked) == [0.0, 1.0]  # 0.85 is below 0.9, and above 0.3


def test_far_too_many_objects_score_below_0():
    row = {"include": [{"class": "circle", "count": 1}]}
    many = [Thing("red", "circle", x, y) for x in (15, 48, 80) for y in (30, 66)]
    assert judge(draw(*many), row) == 1 - 5
    assert judge(draw(*many), row, max_objects=3) == 1 - 2


def test_an_attribute_is_bound_to_its_object():
    row = {
        "tag": "color_attr",
        "include": [
            {"class": "circle", "count": 1, "color": "red"},
            {"class": "square", "count": 1, "color": "blue"},
        ],
    }
    right = draw(Thing("red", "circle", 20, 48), Thing("blue", "square", 70, 48))
    swapped = draw(Thing("blue", "circle", 20, 48), Thing("red", "square", 70, 48))
    assert both(right, row) == (1.0, 1.0)
    assert both(swapped, row) == (0.5, 0.0)


@pytest.mark.parametrize(
    ("x", "y", "sides"),
    [
        (-40, 0, {"left of"}),
        (40, 0, {"right of"}),
        (0, -40, {"above"}),
        (0, 40, {"below"}),
        (-40, 40, {"left of", "below"}),
        (-40, 15, {"left of"}),  # 11 of 42.7: the tangent is below 1/2
        (4, 3, set()),  # less than a tenth of both sizes
        (0, 0, set()),
    ],
)
def test_a_direction_is_where_the_offset_mostly_goes(x, y, sides):
    one = Found(score=1, box=(40 + x, 40 + y, 60 + x, 60 + y))
    assert direction(one, Found(score=1, box=(40, 40, 60, 60)), slack=0.1) == sides


def test_boxes_that_overlap_a_better_one_may_be_dropped():
    boxes = [(0, 0, 9, 9), (0, 0, 9, 9), (5, 0, 14, 9), (50, 50, 60, 60)]
    found = [Found(score=0.9 - 0.1 * i, box=box) for i, box in enumerate(boxes)]
    assert overlap(found[0], found[2]) == pytest.approx(50 / 150)
    assert select(found, least=0.3, most=16) == found
    assert select(found, least=0.3, most=16, max_overlap=0.5) == [found[0], *found[2:]]
    assert select(found[::-1], least=0.65, most=2) == found[:2]


def test_a_prompt_without_clauses_has_no_score():
    reward = GenEval(see, name_colours, rule=relaxed)
    plain = Prompt(id=0, source="s", text="?")
    asked = Prompt(id=1, source="s", text="?", fields=ASKED)
    assert reward([draw(), draw(*LEFT, RIGHT)], [plain, asked]) == [None, 1.0]
    empty = Prompt(id=2, source="s", text="?", fields={"include": None, "exclude": None})
    assert reward([draw()], [empty]) == [None]


@pytest.mark.parametrize(
    "bad",
    [
        {"class": "cat"},
        {"count": 1},
        {"class": "cat", "count": 1, "position": ["above", 0]},
        {"class": "cat", "count": 1, "position": ["over", 0]},
        {"class": "cat", "count": 1, "position": [0]},
        {"class": "cat", "count": 1, "colour": "red"},
        {"class": "cat", "count": 1, "color": "grey"},
        {"class": "cat", "count": 2.7},
        {"class": "cat", "count": 0},
        {"class": None, "count": 1},
        "cat",
    ],
)
def test_a_row_with_a_bad_clause_costs_its_own_score_alone(bad):
    reward = Reward(GenEval(see, name_colours, rule=relaxed))
    prompts = [
        Prompt(id=i, source="s", text="?", fields=row)
        for i, row in enumerate(({"include": [bad]}, ASKED))
    ]
    values, faults = reward([draw(*LEFT, RIGHT)] * 2, prompts)
    assert values == [None, 1.0]
    assert (
        "clause" in next(iter(faults))
        and "raised" not in next(iter(faults))
        and faults.total() == 1
    )


def test_a_colour_is_that_of_clip_on_what_was_cut_out(tmp_path):
    from PIL import Image
    from transformers import CLIPModel, CLIPProcessor

    folder = str(write_clip(tmp_path))
    scene = draw(*LEFT, RIGHT)
    found = see([scene], [["circle", "square"]])[0]
    objects = [*found["circle"], *found["square"]]
    model, processor = (
        CLIPModel.from_pretrained(folder).eval(),
        CLIPProcessor.from_pretrained(folder),
    )
    texts = [put.format(colour, "shape") for colour in COLOURS for put in PUT]
    wanted = []
    for one in objects:
        picture = scene.clone()
        picture[~one.mask] = 0x99
        crop = Image.fromarray(picture.numpy()).crop(one.box)
        with torch.no_grad():
            out = model(**processor(images=[crop], text=texts, padding=True, return_tensors="pt"))
        by_colour = out.text_embeds.view(len(COLOURS), len(PUT), -1).mean(1)
        near = torch.nn.functional.normalize(by_colour, dim=-1) @ out.image_embeds[0]
        wanted.append(COLOURS[near.argmax()])
    assert ColourNamer(folder)([scene], [objects], ["shape"]) == [wanted]
    apart = ColourNamer(folder)([scene] * 2, [objects[:1], objects[1:]], ["shape"] * 2)
    assert apart == [wanted[:1], wanted[1:]]


def test_the_colours_of_all_pictures_are_asked_for_at_once():
    calls = []

    def named(pictures, found, names):
        calls.append([*zip(names, map(len, found), strict=True)])
        return name_colours(pictures, found, names)

    plain = {"include": [{"class": "circle", "count": 2}]}
    prompts = [Prompt(id=0, source="s", text="?", fields=row) for row in (ASKED, plain, ASKED)]
    pictures = [draw(*LEFT, RIGHT), draw(*LEFT), draw(*LEFT)]
    reward = GenEval(see, named, rule=relaxed)
    assert reward(pictures, prompts) == [1.0, 1.0, pytest.approx(2 / 4)]
    assert calls == [[("circle", 2), ("square", 1), ("circle", 2)]]


def test_what_is_cut_out_stays_in_the_picture_and_is_never_empty():
    scene = draw(RIGHT)
    assert cut_out(scene, Found(score=1, box=(-5.0, 3.2, 12.4, 300.0))).shape == (93, 12, 3)
    assert cut_out(scene, Found(score=1, box=(40.2, 40.2, 40.3, 40.3))).shape == (1, 1, 3)


def test_both_are_composed_with_columns_of_rows():
    check(compose(["model=sd3_5_medium", "data=jsonl", "data.path=x.jsonl", "reward=geneval"]))
