"""Prompts with images require a policy that sees them: no run trains without them."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from tandem.config import ConfigError
from tandem.data import Data
from tandem.data.images import show
from tandem.environments import About, Environment, Mixture
from tandem.launch.admission import admit_data
from tandem.launch.assembly import check_openings, check_sight
from tandem.types import Prompt

SETTINGS = SimpleNamespace(choices={"data": "own", "model": "vlm"})
PICTURE = show(torch.zeros(4, 4, 3).byte())


def data(**options):
    prompt = Prompt(id=0, source="s", text="which ?", **options)
    return Data(train=(prompt,), eval=())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("images", ["a.png"]),
        ("image", Image.new("RGB", (4, 4))),
        ("pages", [Image.new("L", (4, 4))]),
        ("kept", [PICTURE]),
    ],
)
def test_pictures_that_stay_in_fields_are_refused_where_the_model_sees(name, value):
    own = data(fields={name: value, "level": 3})
    with pytest.raises(
        ConfigError, match=f"data=own has images in the prompt fields {name}, which"
    ):
        check_sight(SimpleNamespace(sees=True), own, SETTINGS)
    check_sight(SimpleNamespace(sees=False), own, SETTINGS)


def test_pictures_that_are_shown_need_a_model_that_sees():
    own = data(images=(PICTURE,), fields={"level": [3], "named": []})
    check_sight(SimpleNamespace(sees=True), own, SETTINGS)
    with pytest.raises(ConfigError, match="reads only text"):
        check_sight(SimpleNamespace(sees=False), own, SETTINGS)


@dataclass
class World:
    writes_prompt: bool
    shows: bool = False

    def describe(self):
        return About(writes_prompt=self.writes_prompt, shows=self.shows)


@pytest.mark.parametrize(
    ("world", "shown"),
    [(World(True), False), (World(True, shows=True), True), (World(False), True)],
    ids=["writes the prompt", "and shows pictures", "follows the prompt"],
)
def test_pictures_reach_a_policy_through_a_world_that_writes_its_prompt_or_are_refused(
    world, shown
):
    settings = SimpleNamespace(choices={**SETTINGS.choices, "environment": "agent"})
    for environment in (Environment(world), Mixture({"s": Environment(world)})):
        check_openings(environment, data(), settings)
        if shown:
            check_openings(environment, data(images=(PICTURE,)), settings)
            continue
        with pytest.raises(ConfigError, match="environment=agent replaces the prompts of data=own"):
            check_openings(environment, data(images=(PICTURE,)), settings)


@pytest.mark.parametrize("paints", [True, False])
def test_only_what_paints_is_asked_for_sizes(paints):
    own = data(size=(16, 24))
    settings = SimpleNamespace(
        evaluation=SimpleNamespace(passes=lambda own, full: (), every=None), evaluate=0
    )
    policy = SimpleNamespace(
        paints=paints, sampling=None, admit=lambda prompts, samplings: ([*prompts], [])
    )
    (prompt,) = admit_data(policy, own, "train", settings).train
    assert prompt.size == ((16, 24) if paints else None)
