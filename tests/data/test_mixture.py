"""Mixtures of datasets: how often each is drawn, and that each stays unchanged."""

import json
import re
from collections import Counter
from dataclasses import replace

import pytest
import torch

from tandem.config import build, building, compose
from tandem.config.binding import Call
from tandem.data import Curriculum, Data, PromptStream
from tandem.data.mixture import Dataset, mixture
from tandem.data.records import groups_to_report
from tandem.data.shapes import Pictures, shapes
from tandem.data.shapes_pairs import shapes_pairs
from tandem.types import Prompt


def rows(name, count, *, split="train", source="s", **fields):
    return tuple(
        Prompt(id=i, source=source, text=f"{name} {split} {i}", answer="yes", fields=fields)
        for i in range(count)
    )


def small(name, count=40, **options):
    train = rows(name, count)
    splits = {split: rows(name, 6, split=split) for split in ("eval", "test")}
    return Data(train=train, demonstrations=train, **splits, **options)


def two(**options):
    """A set of 40 prompts, and one of 12 that is drawn three times as often."""
    many, few = (options.get(name, {}) for name in ("many", "few"))
    return mixture(
        of={
            "many": Dataset(data=small("many"), **many),
            "few": Dataset(data=small("few", 12), **{"weight": 3.0, **few}),
        },
        seed=0,
    )


def texts(prompts):
    return [prompt.text for prompt in prompts]


def owner(prompt):
    return prompt.source.split("/")[0]


@pytest.mark.parametrize("split", ["train", "demonstrations"])
def test_datasets_are_drawn_as_often_as_their_weights_say(split):
    data = two()
    make = data.curriculum if split == "train" else data.given
    stream = make(getattr(data, split), seed=3)
    drawn = Counter(owner(p) for i in range(200) for p in stream.draw(i, 16))
    assert drawn["few"] / 3200 == pytest.approx(0.75, abs=5 * (0.75 * 0.25 / 3200) ** 0.5)


def test_a_draw_is_a_function_of_seed_iteration_round_and_slot():
    data = two()
    fresh, used = (data.curriculum(data.train, seed=2) for _ in range(2))
    for iteration in (0, 3, 1):
        used.draw(iteration, 8, round=iteration)
    for round in (0, 2):
        assert texts(fresh.draw(7, 8, round=round)) == texts(used.draw(7, 8, round=round))
    assert texts(fresh.draw(7, 8)) != texts(fresh.draw(8, 8))
    assert texts(fresh.draw(7, 8)) != texts(data.curriculum(data.train, seed=5).draw(7, 8))
    assert [owner(p) for p in fresh.draw(7, 8)] != [owner(p) for p in fresh.draw(8, 8)]


def test_no_iteration_repeats_a_prompt_and_refills_bring_others():
    data = two()
    stream = data.curriculum(data.train, seed=1)
    for iteration in range(40):
        assert len(set(texts(stream.draw(iteration, 8)))) == 8
        drawn = [t for r in range(2) for t in texts(stream.draw(iteration, 4, round=r))]
        assert len(set(drawn)) == 8


def test_every_prompt_of_a_dataset_comes_as_often_as_any_other():
    data = two()
    stream = data.curriculum(data.train, seed=1)
    drawn = Counter(p.text for i in range(2000) for p in stream.draw(i, 4) if owner(p) == "few")
    assert len(drawn) == 12
    share = 6000 / 12
    assert all(abs(count - share) < 5 * share**0.5 for count in drawn.values())


def test_each_dataset_has_ids_sources_and_a_heading_of_its_own():
    data = two()
    for split in (data.train, data.eval, data.test, data.demonstrations):
        assert len({prompt.id for prompt in split}) == len(split)
        assert all(0 <= prompt.id < 1 << 62 for prompt in split)
        assert {prompt.source for prompt in split} == {"many/s", "few/s"}
        assert {prompt.fields["reported_with"] for prompt in split} == {("many",), ("few",)}
    again = two()
    assert data.train == again.train
    alone = mixture(of={"few": Dataset(data=small("few", 12))}, seed=0)
    assert alone.train == tuple(p for p in data.train if owner(p) == "few")


def test_what_a_dataset_had_reported_together_stays_together():
    inner = small("a")
    inner = replace(inner, eval=rows("a", 2, split="eval", reported_with="hard"))
    data = mixture(of={"a": Dataset(data=inner)}, seed=0)
    assert {prompt.fields["reported_with"] for prompt in data.eval} == {("a", "a/hard")}


def test_what_a_prompt_is_reported_with_is_read_the_same_however_a_row_says_it():
    said = {"hard": ("hard",), ("hard", "long"): ("hard", "long"), (): ()}
    for given, read in said.items():
        (prompt,) = rows("a", 1, reported_with=given)
        assert groups_to_report(prompt) == read
        (mixed,) = mixture(of={"a": Dataset(data=Data(train=(prompt,), eval=()))}, seed=0).train
        assert groups_to_report(mixed) == ("a", *(f"a/{heading}" for heading in read))
    assert groups_to_report(rows("a", 1)[0]) == ()
    assert {groups_to_report(p) for p in shapes(demonstrations=Pictures(count=1), seed=0).eval} == {
        ("shown",)
    }


def test_rewards_are_those_that_the_dataset_names():
    data = two(many={"rewards": ("length", "exact_match")})
    found = {owner(prompt): prompt.rewards for prompt in data.train}
    assert found == {"many": ("length", "exact_match"), "few": None}


def test_sizes_limit_what_is_trained_on_and_what_is_evaluated():
    data = two(many={"max_size": 7, "eval": 2}, few={"eval": False})
    of_many = {
        split: [p for p in getattr(data, split) if owner(p) == "many"]
        for split in ("train", "demonstrations", "eval", "test")
    }
    sizes = {split: len(prompts) for split, prompts in of_many.items()}
    assert sizes == {"train": 7, "demonstrations": 7, "eval": 2, "test": 2}
    assert texts(of_many["train"]) == texts(of_many["demonstrations"])
    assert not [p for p in (*data.eval, *data.test) if owner(p) == "few"]
    assert len([p for p in data.train if owner(p) == "few"]) == 12


def test_a_curriculum_hears_of_its_own_dataset_and_is_remembered():
    def graded(name):
        prompts = rows(name, 20, source="easy") + tuple(
            replace(p, id=p.id + 100, source="hard") for p in rows(name, 20, split="more")
        )
        return Data(train=prompts, eval=(), curriculum=Curriculum)

    data = mixture(of={n: Dataset(data=graded(n)) for n in ("a", "b")}, seed=0)
    stream = data.curriculum(data.train, seed=0)
    for _ in range(9):
        stream.observe(["a/easy", "a/hard", "b/easy"], torch.tensor([1.0, 0.3, torch.nan]))
    of_a, of_b = stream.streams
    assert of_a.success[0] > 0.8 and of_a.success[1] < 0.4
    assert of_b.success.tolist() == [0.5, 0.5]
    resumed = data.curriculum(data.train, seed=0)
    resumed.load_state_dict(stream.state_dict())
    assert texts(resumed.draw(9, 16)) == texts(stream.draw(9, 16))
    plain = data.curriculum(data.train, seed=0)
    assert texts(plain.draw(9, 16)) != texts(stream.draw(9, 16))


def test_a_dataset_that_is_drawn_evenly_is_told_of_no_success():
    graded = Data(train=rows("a", 20), eval=(), curriculum=Curriculum)
    data = mixture(of={"a": Dataset(data=graded), "b": Dataset(data=small("b"))}, seed=0)
    stream = data.curriculum(data.train, seed=0)
    of_a, of_b = stream.streams
    before = texts(of_b.draw(9, 4))
    stream.observe([prompt.source for prompt in stream.prompts], torch.ones(len(stream.prompts)))
    assert of_b.observe is None and texts(of_b.draw(9, 4)) == before
    assert of_a.success.tolist() == pytest.approx([0.6])


def test_what_one_dataset_holds_out_no_other_trains_on():
    shared = Prompt(id=99, source="s", text="shared", answer="yes")
    holder = replace(small("a"), eval=(shared,))
    asked = (*rows("b", 3), replace(shared, id=7))
    trainer = Data(train=asked, eval=(), demonstrations=asked)
    data = mixture(of={"a": Dataset(data=holder), "b": Dataset(data=trainer)}, seed=0)
    assert "shared" not in texts((*data.train, *data.demonstrations))
    assert [(row.file, row.reason) for row in data.quarantine] == [
        ("data of b/s", "is held out too")
    ]


def test_a_world_that_asks_again_holds_nothing_out_but_heeds_the_others():
    shared = Prompt(id=99, source="s", text="shared", answer="yes")
    asked = (*rows("b", 3), replace(shared, id=7))
    world = Dataset(data=Data(train=asked, eval=(shared,), asks_again=True))
    plain = Dataset(data=Data(train=asked, eval=()))
    data = mixture(of={"a": world, "b": plain}, seed=0)
    assert {p.source for p in data.train if p.text == "shared"} == {"a/s", "b/s"}
    assert data.asks_again and not data.quarantine
    strict = Dataset(data=Data(train=rows("b", 3), eval=(shared,)))
    data = mixture(of={"a": world, "b": strict}, seed=0)
    assert "shared" not in texts(data.train)
    assert "shared" in texts(data.eval)


def test_a_dataset_without_anything_to_train_on_is_named():
    bare = Data(train=rows("b", 3), eval=())
    data = mixture(of={"a": Dataset(data=small("a")), "b": Dataset(data=bare)}, seed=0)
    assert len(data.curriculum(data.train, seed=0).draw(0, 4)) == 4
    with pytest.raises(
        ValueError, match=r"data\.of\.b has no prompt that this algorithm trains on"
    ):
        data.given(data.demonstrations, seed=0)


def test_pairs_of_pictures_are_mixed_too():
    world = shapes_pairs(demonstrations=Pictures(count=90), pairs=90, seed=0)
    data = mixture(of={"a": Dataset(data=world), "b": Dataset(data=world, weight=0.2)}, seed=0)
    drawn = data.given(data.pairs, seed=0).draw(0, 32)
    assert all(prompt.is_pair for prompt in drawn)
    assert {owner(prompt) for prompt in drawn} == {"a", "b"}
    assert len({prompt.id for prompt in data.pairs}) == 180


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weight": 0.0}, r"data\.of\.many\.weight=0\.0: must be above 0"),
        ({"weight": -1.0}, r"data\.of\.many\.weight=-1\.0: must be above 0"),
        ({"weight": float("inf")}, r"data\.of\.many\.weight=inf"),
        ({"max_size": 0}, r"data\.of\.many\.max_size=0: must be at least 1"),
        ({"eval": 0}, r"data\.of\.many\.eval=0: must be at least 1"),
        ({"rewards": ()}, r"data\.of\.many\.rewards=\[\]: list at least one reward, each once"),
        (
            {"rewards": ("a", "a")},
            r"data\.of\.many\.rewards=\['a', 'a'\]: list at least one reward, each once",
        ),
    ],
)
def test_impossible_numbers_name_their_key(options, said):
    with pytest.raises(ValueError, match=said):
        two(many=options)


@pytest.mark.parametrize("name", ["", "a/b", "a.b"])
def test_a_name_that_would_not_start_a_source_is_refused(name):
    with pytest.raises(ValueError, match="name must not contain / or"):
        mixture(of={name: Dataset(data=small("a"))}, seed=0)


def test_a_mixture_of_mixtures_is_refused_for_what_it_is():
    with pytest.raises(ValueError, match=r"data\.of\.b\.data is itself a mixture; list its"):
        mixture(of={"a": Dataset(data=small("a")), "b": Dataset(data=two())}, seed=0)


def test_datasets_agree_on_how_wrong_answers_are_come_by():
    asking = small("a", tries=4)
    with pytest.raises(ValueError, match="the tries are a 4, b None"):
        mixture(of={"a": Dataset(data=asking), "b": Dataset(data=small("b"))}, seed=0)
    assert mixture(of={"a": Dataset(data=asking)}, seed=0).tries == 4
    with pytest.raises(ValueError, match=r"data\.of names no dataset"):
        mixture(of={}, seed=0)


def test_the_command_line_mixes_whole_options(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"{i}?", "answer": "x"}) for i in range(50)))
    file = f"{{_target_:tandem.data.rows.jsonl,path:{path},seed:1}}"
    lines = f"{{_target_:tandem.data.rows.jsonl,path:{path},held_out:0.5,seed:2}}"
    of = f"data.of={{a:{{data:{file},weight:2}},b:{{data:{lines},rewards:[exact_match],eval:3}}}}"
    data = build(compose(["data=mixture", of]).data, "data")
    assert {owner(prompt) for prompt in data.train} == {"a", "b"}
    assert Counter(map(owner, data.eval))["b"] == 3
    assert isinstance(data.curriculum(data.train, seed=0), PromptStream)


def test_a_yaml_mixes_options_by_name(tmp_path, monkeypatch):
    folder = tmp_path / "my_mixture" / "conf" / "data"
    folder.mkdir(parents=True)
    (tmp_path / "my_mixture" / "__init__.py").touch()
    (folder / "both.yaml").write_text(
        "# Two lengths of strings\n"
        "defaults:\n"
        "  - mixture\n"
        "  - /data@of.short.data: sort_letters\n"
        "  - /data@of.ladder.data: sort_ladder\n"
        "  - _self_\n"
        "of:\n"
        "  short: {weight: 2, data: {lengths: {count: 20}, held_out: 2}}\n"
        "  ladder: {rewards: [exact_match], data: {prompts: {count: 20}, held_out: 2}}\n"
    )
    monkeypatch.chdir(tmp_path)
    overrides = ["plugins=[my_mixture]", "data=both", "data.of.ladder.data.demonstrations.count=9"]
    data = build(compose(overrides).data, "data")
    assert {source for source in (p.source for p in data.eval) if source.startswith("short")} == {
        f"short/length_{n:02}" for n in range(4, 9)
    }
    assert len(data.demonstrations) == 5 * 20 + 5 * 9
    assert isinstance(data.curriculum(data.train, seed=0).streams[1], Curriculum)


CHATS = "_target_:tandem.data.hub.hub,name:chats,split:{subset:null},seed:0"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "columns:{prompt:turns},wording:{instruction:As JSON.}",
            "data.of.talks.data.wording.instruction='As JSON.' does not apply to questions that "
            "are chats, as those of chats; set data.of.talks.data.wording.instruction=null",
        ),
        (
            "columns:{prompt:data.path}",
            "data.of.talks.data.columns.prompt=data.path: chats has no such column, only ['turns']",
        ),
    ],
)
def test_an_error_names_the_key_within_the_mixture(tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chats").mkdir()
    row = {"turns": [{"role": "user", "content": "Hi"}]}
    (tmp_path / "chats" / "train.jsonl").write_text(json.dumps(row) + "\n")
    of = f"data.of={{talks:{{data:{{{CHATS},{words}}}}}}}"
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        build(compose(["data=mixture", of]).data)


def test_a_dataset_without_parameters_has_no_keys_to_name_in_an_error():
    def unreadable():
        raise ValueError("cannot read data.csv")

    with pytest.raises(ValueError, match=r"^cannot read data\.csv$"):
        building.make(Call(unreadable, {}, partial=False, where="data.of.mine.data"))
