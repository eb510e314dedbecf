"""A number, a name or a shape that its function cannot take is refused before any call."""

import functools
from pathlib import Path

import config_parts as parts
import pytest
from omegaconf import OmegaConf

from tandem.config import ConfigError, build
from tandem.config.plugins import load_plugins

load_plugins(["config_parts"])


def node(name: str, **arguments) -> dict:
    return {"_target_": f"config_parts.{name}", **arguments}


FITTING = {
    "whole": [(3, 3), (-1, -1)],
    "real": [(3, 3.0), (1e-6, 1e-6)],
    "flag": [(True, True)],
    "word": [("3", "3")],
    "maybe": [(None, None), (3, 3)],
    "mode": [("exact", "exact")],
    "numbers": [([1, 2.5], [1.0, 2.5]), ([], [])],
    "pair": [([1, 2], (1.0, 2.0))],
    "words": [(["a", "b"], ("a", "b"))],
    "table": [({"a": 1}, {"a": 1})],
    "folder": [("runs/x", Path("runs/x"))],
    "pattern": [(None, None), ("a+", "a+")],
    "size": [
        ({"rows": 3}, parts.Size(rows=3)),
        (node("Size", rows=3, columns=2), parts.Size(rows=3, columns=2)),
        (node("a_size"), parts.Size(rows=2)),
    ],
    "anything": [({"deep": [1, {"er": "x"}]}, {"deep": [1, {"er": "x"}]})],
    "unknown": [(3, 3)],
}


@pytest.mark.parametrize(
    ("name", "given", "want"), [(n, *case) for n, cases in FITTING.items() for case in cases]
)
def test_a_value_arrives_as_its_annotation_says(name, given, want):
    got = build(node("everything", **{name: given}))[name]
    assert got == want
    assert type(got) is type(want)


REFUSED = {
    "whole": ["two", 1.5, True, None, [1], {"a": 1}],
    "real": ["1e-6", False, None, [1.0], float("nan")],
    "flag": [1, 0, "true", None],
    "word": [3, True, None, ["a"]],
    "maybe": ["null", True, 2.5],
    "mode": ["fastest", 1, None],
    "numbers": ["12", 1.0, [1, "2"], [True], [1.0, float("nan")]],
    "pair": [[1], [1, 2, 3], 1.0],
    "words": ["ab", [1]],
    "table": [[1], {"a": "1"}, {1: 1}],
    "folder": [3, ["runs"]],
    "pattern": ["[a", 3],
    "size": [3, {"columns": 1}, {"rows": 1, "cols": 2}, {"rows": "1"}, node("Square")],
    "square": [node("a_size"), node("Size", rows=1), {"side": 1.0}, 1.0],
    "call": [node("a_size"), node("Square"), "weigh", 1, {"by": 1}],
}


@pytest.mark.parametrize(("name", "given"), [(n, v) for n, vs in REFUSED.items() for v in vs])
def test_a_value_that_does_not_fit_names_its_key(name, given):
    with pytest.raises(ConfigError, match=rf"(?s)^(unknown key ')?part\.{name}") as refused:
        build(node("everything", **{name: given}), "part")
    assert "\n" not in str(refused.value)


def test_a_function_is_a_partial_or_an_object_that_can_be_called():
    bound = build(node("everything", call=node("weigh", _partial_=True, factor=2.0)))["call"]
    assert bound([1.0, 3.0]) == [2.0, 6.0]
    assert build(node("everything", call=node("Scale", by=2.0)))["call"](3.0) == 6.0


def test_a_partial_is_told_its_seed_by_whoever_calls_it_and_nothing_else():
    assert build(node("draw", _partial_=True, floor=0.1))(["a", "b"], seed=1) == ["b"]
    with pytest.raises(ConfigError, match=r"^curriculum\.floor is missing: draw needs it$"):
        build(node("draw", _partial_=True, seed=1), "curriculum")


def test_a_partial_is_pythons_own():
    bound = build(node("weigh", _partial_=True, factor=2.0))
    assert type(bound) is functools.partial
    assert bound.func is parts.weigh


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            node("weigh", _partial_=True, factr=2.0),
            "unknown key 'loss.factr': did you mean 'loss.factor'?",
        ),
        (node("weigh", _partial_=True), "loss.factor is missing: weigh needs it"),
        (node("weigh", factor=2.0), "loss.values is missing: weigh needs it"),
        (
            node("everything", size={"row": 1}),
            "unknown key 'loss.size.row': did you mean 'loss.size.rows'?",
        ),
        (
            node("weigh", _partial_="yes", factor=1.0),
            "loss._partial_: expected bool, got 'yes'",
        ),
        (
            node("weigh", _args_=[1]),
            "loss: _args_ is not supported; write _target_ and _partial_ only",
        ),
        (
            node("weigh", _convert_="all"),
            "loss: _convert_ is not supported; write _target_ and _partial_ only",
        ),
        (
            node("everything", mode="fastest"),
            "loss.mode: expected 'fast' or 'exact', got 'fastest'",
        ),
        (
            node("everything", size=node("Square")),
            "loss.size: expected {rows: ..., columns: ...} or null, got 'config_parts.Square'",
        ),
    ],
)
def test_messages_say_what_was_wanted(given, message):
    with pytest.raises(ConfigError) as refused:
        build(given, "loss")
    assert str(refused.value) == message


def test_constructors_see_plain_values_only():
    cfg = OmegaConf.create(
        {"side": 2, "part": node("everything", anything={"a": ["${side}", {"b": 1}]})}
    )
    got = build(cfg.part)["anything"]
    assert got == {"a": [2, {"b": 1}]}
    assert [type(got), type(got["a"]), type(got["a"][1])] == [dict, list, dict]


def test_nodes_are_built_wherever_they_stand():
    got = build({"list": [node("a_square", side=2)], "map": {"x": node("a_size")}})
    assert got["list"][0].side == 2.0
    assert got["map"]["x"] == parts.Size(rows=2)


def test_what_the_user_must_give_is_named():
    cfg = OmegaConf.create({"model": node("everything", word="???")})
    with pytest.raises(ConfigError, match=r"^model\.word is not set: add model\.word=\.\.\.$"):
        build(cfg.model)


def test_a_part_of_a_configuration_knows_its_key():
    cfg = OmegaConf.create({"model": {"inner": node("weigh", factor="x")}})
    with pytest.raises(ConfigError, match=r"^model\.inner\.values is missing"):
        build(cfg.model.inner)
