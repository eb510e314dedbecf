"""A policy with vision: equal values packed, padded and alone, in sampling and in training."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
from policies.vision.small_vision import (
    NOTHING,
    answer,
    make_prompt,
    picture,
    questions,
    small_vision,
)
from torch.testing import assert_close

from tandem.policies.language.inputs import TokenIndex, pad_rows
from tandem.policies.language.layout_probes import keeps_rows_apart
from tandem.policies.language.message_frames import end_answers
from tandem.policies.language.packing import pack_in_one_row, pack_rows
from tandem.policies.language.records import Sampling
from tandem.policies.lora import Lora
from tandem.policies.vision.components import COMPONENTS, components_of
from tandem.policies.vision.tiny_vlm import tiny_vlm
from tandem.types import IMAGE, Prompt, concat, take

EVERY = ["language", "projector", "vision"]


def logp_and_gradients(policy, rollout, lay):
    policy.scorer.lay = lay
    policy.zero_grad()
    logp = policy.evidence(rollout, NOTHING).logp
    (logp * torch.arange(1, logp.numel() + 1).view(logp.shape)).sum().backward()
    return logp.detach(), {n: p.grad.clone() for n, p in policy.trainable().items()}


def test_packed_rows_with_pictures_are_the_padded_ones_and_the_rows_alone():
    policy = small_vision(target_components=EVERY)
    policy.double()
    rollout = answer(policy)
    assert policy.packs
    want, gradients = logp_and_gradients(policy, rollout, pad_rows)
    assert gradients["model.visual.patch_embed.proj.weight"].norm() > 0
    for lay in (pack_rows, pack_in_one_row):
        got, others = logp_and_gradients(policy, rollout, lay)
        assert_close(got, want, atol=1e-5, rtol=0)
        for name, gradient in gradients.items():
            assert_close(others[name], gradient, atol=1e-5, rtol=1e-5, msg=name)
    for row in range(len(want)):
        alone = policy.logp(take(rollout, torch.tensor([row])))
        assert_close(alone[0], want[row], atol=1e-5, rtol=0)


def three_rows(layout):
    """Without the row's own position ids, which separate packed rows."""
    return replace(layout, position=layout.position[1:])


def test_three_rows_of_position_ids_let_packed_rows_see_one_another():
    policy = small_vision()
    rollout = answer(policy)
    places = TokenIndex.of(rollout.sample, rollout.mask)
    read = places.read(len(rollout.mask))

    def states(lay, change):
        layout = policy.scorer.inputs.lay(lay(rollout.sample.tokens, read), rollout.sample, read)
        with torch.no_grad():
            return places.gather(policy.scorer.forward(change(layout)), layout.start)

    want = states(pad_rows, lambda layout: layout)
    assert_close(states(pack_in_one_row, lambda layout: layout), want, atol=1e-4, rtol=1e-4)
    assert (states(pack_in_one_row, three_rows) - want).abs().max() > 0.1


def test_the_probe_of_packing_sees_a_leak_through_three_rows():
    policy = small_vision()
    weights = policy.network.get_input_embeddings().weight
    probe = policy.scorer.inputs.probe(len(weights), weights.device)
    forward = policy.scorer.forward
    assert keeps_rows_apart(forward, probe, weights)

    def leaking(layout):
        return forward(layout if layout.position is None else three_rows(layout))

    assert not keeps_rows_apart(leaking, probe, weights)


@pytest.mark.parametrize("max_rows", [512, 2])
def test_what_sampling_says_is_what_training_says(max_rows):
    policy = small_vision(sampling=Sampling(max_new_tokens=4, max_rows=max_rows))
    rollout = answer(policy, size=3)
    assert_close(policy.logp(rollout), rollout.behaviour_logp, atol=1e-5, rtol=0)
    assert (rollout.length < 4).any()  # rows that ended were left out of later passes


def test_a_picture_is_seen_and_so_is_which_one():
    policy = small_vision()
    rollout = answer(policy, size=1)
    others = tuple(
        tuple(picture(p.height, 9, p.width) for p in row) for row in rollout.sample.images
    )
    swapped = replace(rollout, sample=replace(rollout.sample, images=others))
    differ = (policy.logp(swapped) - policy.logp(rollout)).abs().sum(1) > 1e-3
    assert differ.tolist() == [True, False, True]


def test_image_tokens_have_no_probability_in_sampling_or_training():
    policy = small_vision(sampling=Sampling(max_new_tokens=8))
    image = policy.scorer.inputs.image_token
    with torch.no_grad():  # otherwise it would be the most likely token everywhere
        policy.network.get_input_embeddings().weight[image] += 5
    rollout = answer(policy, size=8)
    shown = rollout.sample.prompt_length[:, None] + torch.arange(rollout.mask.shape[1])
    shown = shown.clamp(max=rollout.sample.tokens.shape[1] - 1)
    assert not (rollout.sample.tokens.gather(1, shown)[rollout.mask] == image).any()
    assert_close(policy.logp(rollout), rollout.behaviour_logp, atol=1e-5, rtol=0)
    evidence = policy.evidence(rollout, frozenset({"entropy"}))
    assert evidence.entropy.isfinite().all()


def test_rows_are_cut_and_joined_with_their_pictures():
    policy = small_vision()
    rollout = answer(policy)
    parts = [take(rollout, torch.tensor(rows)) for rows in ([3, 1], [0, 2, 4, 5])]
    logp, order = policy.logp(concat(parts)), [3, 1, 0, 2, 4, 5]
    assert_close(logp, policy.logp(rollout)[order], atol=1e-5, rtol=0)


def test_a_frozen_tower_looks_at_a_picture_once_in_an_iteration():
    policy = small_vision()
    looked = []
    tower = policy.network.get_encoder(modality="image")
    tower.register_forward_hook(lambda module, given, out: looked.append(len(given[0])))
    rollout = answer(policy)
    for _ in range(2):
        policy.evidence(rollout, NOTHING)
    assert sum(looked) == (16 * 16 + 24 * 24 + 16 * 16) // 16  # patches of three pictures
    policy.notify("iteration")
    policy.evidence(rollout, NOTHING)
    assert len(looked) == 2


def test_a_reference_forgets_what_it_saw_as_the_policy_does():
    policy = small_vision(frozenset({"ref_logp"}))
    policy.complete(answer(policy), frozenset({"ref_logp"}))
    sides = policy.scorer.inputs, policy.reference.inputs
    assert all(len(side.kept) >= 3 for side in sides)
    policy.notify("iteration")
    assert [len(side.kept) + len(side.places) for side in sides] == [0, 0]


def test_what_a_frozen_tower_said_is_kept_up_to_a_size(monkeypatch):
    policy = small_vision()
    rollout = answer(policy)
    want = policy.logp(rollout)
    most = max(one.nbytes for one in policy.scorer.inputs.kept.values())
    policy.notify("iteration")
    monkeypatch.setattr("tandem.policies.vision.tower.KEPT", most)
    assert_close(policy.logp(rollout), want, atol=1e-5, rtol=0)
    assert 0 < sum(one.nbytes for one in policy.scorer.inputs.kept.values()) <= most


def test_many_pictures_are_looked_at_in_parts(monkeypatch):
    policy = small_vision()
    want = policy.logp(rollout := answer(policy))
    policy.notify("iteration")
    monkeypatch.setattr("tandem.policies.vision.tower.ROOM", 1)
    looked = []
    tower = policy.network.get_encoder(modality="image")
    tower.register_forward_hook(lambda module, given, out: looked.append(len(given[0])))
    assert_close(policy.logp(rollout), want, atol=1e-5, rtol=0)
    assert len(looked) == 3


def test_a_tower_that_learns_is_asked_again_after_an_update():
    policy = small_vision(target_components=EVERY)
    rollout = answer(policy, size=1)
    before = policy.logp(rollout)
    with torch.no_grad():
        policy.network.model.visual.patch_embed.proj.weight.mul_(-1)
    assert ((policy.logp(rollout) - before).abs().sum(1) > 1e-4).tolist() == [True, False, True]


def test_every_weight_belongs_to_one_component():
    policy = small_vision()
    found = components_of(policy.network)
    ids = [id(p) for parameters in found.values() for p in parameters]
    assert list(found) == list(COMPONENTS) and len(ids) == len({*ids})
    assert {*ids} == {id(p) for p in policy.network.parameters()}
    names = {id(p): n for n, p in policy.network.named_parameters()}
    assert {names[id(p)].split(".")[2] for p in found["projector"]} == {
        "merger",
        "deepstack_merger_list",
    }


@pytest.mark.parametrize("component", COMPONENTS)
def test_only_chosen_components_learn(component):
    policy = small_vision(target_components=[component])
    want = {id(p) for p in components_of(policy.network)[component]}
    assert {id(p) for p in policy.trainable().values()} == want
    policy.evidence(answer(policy), NOTHING).logp.sum().backward()
    for name, weight in policy.network.named_parameters():
        assert (weight.grad is not None) == (id(weight) in want), name


def test_adapters_are_in_the_language_layers_alone(caplog):
    policy = small_vision(lora=Lora(r=2, alpha=4))
    assert policy.trainable() and all(".language_model." in name for name in policy.trainable())
    assert "model.language_model.layers.*.self_attn.q_proj" in caplog.text
    assert "visual" not in caplog.text
    before = {n: p.clone() for n, p in policy.network.named_parameters() if "visual" in n}
    rollout = answer(policy)
    optimizer = torch.optim.Adam(policy.trainable().values(), lr=0.1)
    policy.evidence(rollout, NOTHING).logp.sum().backward()
    optimizer.step()
    after = dict(policy.network.named_parameters())
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target_components": []}, "choose from language, projector, vision"),
        ({"target_components": ["vision"], "lora": Lora(r=2, alpha=4)}, "set model.lora=null"),
        ({"critic": "separate"}, "set model.critic=head"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        small_vision(**options)


def test_a_model_that_takes_no_features_of_images_is_refused():
    from transformers import GitConfig, GitForCausalLM

    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    tower = {**size, "num_attention_heads": 2, "image_size": 16, "patch_size": 8}
    config = GitConfig(vocab_size=300, num_attention_heads=2, vision_config=tower, **size)
    _, processor = tiny_vlm(seed=0, num_layers=2, tower_layers=1)
    with pytest.raises(ValueError, match="GitForCausalLM takes no features of images"):
        small_vision(build=lambda: (GitForCausalLM(config), processor))


# Prompts.


def templated(template):
    """The tiny model, whose processor has a chat template."""
    model, processor = tiny_vlm(seed=0, num_layers=2, tower_layers=1)
    processor.chat_template = template
    return model, processor


def test_named_templates_may_be_those_of_the_processor():
    named = {"default": "{{ messages[0].content[0].text }} !", "other": ""}
    policy = small_vision(build=partial(templated, named))
    spoken = Prompt(id=0, source="s", messages=({"role": "user", "content": "what ?"},))
    assert policy.chat.text(spoken) == "what ? !"


def test_answers_end_as_a_template_of_parts_ends_a_turn():
    spelt = "{% for message in messages %}{% for part in message.content %}{{ part.text }}"
    policy = small_vision(
        build=partial(templated, spelt + "{% endfor %}<|vision_end|>{% endfor %}")
    )
    end = policy.chat.tokenizer.convert_tokens_to_ids("<|vision_end|>")
    end_answers(policy.chat, [end, *policy.ends])
    assert policy.chat.turn_end == end not in policy.ends


def test_a_chat_template_from_a_file_is_saved_in_place_of_the_processors(tmp_path):
    (file := tmp_path / "new.jinja").write_text("new")
    policy = small_vision(build=partial(templated, "old"), chat_template=str(file))
    policy.chat.save(tmp_path)
    assert (tmp_path / "chat_template.jinja").read_text() == "new" == policy.chat.template


def test_a_mark_becomes_as_many_tokens_as_its_picture_has():
    policy = small_vision()
    image = policy.scorer.inputs.image_token
    counts = [ids.count(image) for ids in policy.chat.encode(questions())]
    assert counts == [4, 0, 9 + 4]  # 16 x 16 and 24 x 24 pixels, 8 x 8 of them a token
    rollout = answer(policy, size=1)
    assert policy.row_cost(rollout).tolist() == [
        len(ids) + length
        for ids, length in zip(
            policy.chat.encode(questions()), rollout.length.tolist(), strict=True
        )
    ]


@pytest.mark.parametrize("size", [(1, 1), (1, 60), (64, 3), (200, 8)])
def test_pictures_of_any_size_are_read(size):
    policy = small_vision()
    prompts = [make_prompt(0, f"{IMAGE} what ?", picture(size[0], 0, size[1]))]
    rollout = policy.sample(prompts, 2, key=0, slots=[0])
    assert_close(policy.logp(rollout), rollout.behaviour_logp, atol=1e-5, rtol=0)


@pytest.mark.parametrize("text", [f"{IMAGE} {IMAGE} what ?", "what ?", f"{IMAGE} <|image_pad|> ?"])
def test_a_prompt_with_another_number_of_marks_is_left_out(text):
    policy = small_vision()
    wrong, right = make_prompt(0, text, picture()), make_prompt(1, f"{IMAGE} what ?", picture())
    kept, left_out = policy.admit([wrong, right])
    assert kept == [right] and left_out[0][0] == wrong
    assert "has 1 images" in left_out[0][1]


def test_a_picture_that_the_processor_refuses_is_left_out_with_its_reason():
    policy = small_vision()
    thin, fine = (
        make_prompt(0, f"{IMAGE} what ?", picture(1, width=300)),
        make_prompt(1, f"{IMAGE} what ?", picture()),
    )
    kept, ((left_out, reason),) = policy.admit([thin, fine])
    assert kept == [fine] and left_out == thin and "aspect ratio" in reason


@pytest.mark.parametrize("nested", [False, True])
def test_settings_of_films_are_saved_as_they_came(tmp_path, nested):
    small_vision().save(tmp_path / "a")
    if nested:
        file = tmp_path / "a" / "processor_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "video_processor": {"fps": 3}}))
    else:
        (tmp_path / "a" / "video_preprocessor_config.json").write_text('{"fps": 3}')
    small_vision(build=None, path=str(tmp_path / "a")).save(tmp_path / "b")
    saved = json.loads((tmp_path / "b" / "video_preprocessor_config.json").read_text())
    assert saved == {"fps": 3}


def test_it_is_saved_with_its_processor_and_loaded_again(tmp_path):
    policy = small_vision()
    policy.save(tmp_path)
    again = small_vision(build=None, path=str(tmp_path))
    with torch.no_grad():
        for weight, old in zip(
            again.network.parameters(), policy.network.parameters(), strict=True
        ):
            weight.copy_(old)
    assert again.chat.encode(questions()) == policy.chat.encode(questions())
    rollout = answer(policy)
    assert_close(again.logp(rollout), policy.logp(rollout), atol=1e-6, rtol=0)
