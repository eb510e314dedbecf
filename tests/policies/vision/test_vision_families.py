"""Vision-language families on tiny random checkpoints: the token ids of each family's own
processor, and equal values packed, padded and alone, in sampling and in training."""

import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers.models.pixtral.image_processing_pil_pixtral as of_pixtral
import transformers.models.smolvlm.processing_smolvlm as of_smolvlm
from policies.vision.small_vision import NOTHING, picture
from policies.vision.vision_families import BUILT, FAMILIES
from torch.testing import assert_close

from tandem.policies.language.inputs import pad_rows
from tandem.policies.language.packing import pack_in_one_row
from tandem.policies.language.policy import LanguagePolicy
from tandem.policies.language.records import Sampling
from tandem.policies.lora import Lora
from tandem.policies.request import Request
from tandem.policies.vision.components import components_of
from tandem.policies.vision.policy import VisionLanguagePolicy
from tandem.types import IMAGE, Prompt, take

sys.path.append(str(Path(__file__).parents[2] / "environments"))
from worlds import Counting, make_environment

EVERY = ["language", "projector", "vision"]
# An image is followed by an empty line in one family, and by one of its bytes in another.
CHATS = {
    f"{IMAGE}\n\nWhich colour?": [picture(16)],
    "Why?": [],
    f"{IMAGE} or {IMAGE}": [picture(20, 1, 44), picture(24, 2)],
}


@pytest.fixture(autouse=True)
def a_word_for_numbers(monkeypatch):
    """SmolVLM's processor needs it for videos alone, to spell seconds."""
    monkeypatch.setattr(of_smolvlm, "num2words", SimpleNamespace())


@cache
def folder_of(family, root):
    torch.manual_seed(0)
    model, processor = FAMILIES[family]()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(5 if weight.dim() > 1 else 1)
            if weight.dim() > 1 and not weight.any():  # the projection of a new Gemma is 0
                weight.normal_(std=0.2)
    model.save_pretrained(root / family)
    processor.save_pretrained(root / family)
    return root / family


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("families")


def load(family, root, components=("language",), environment=None, **options):
    policy = VisionLanguagePolicy(
        path=str(folder_of(family, root)), target_components=components, **options
    )
    policy.load(Request(sampling=Sampling(max_new_tokens=4), environment=environment))
    return policy


def chats():
    return [
        Prompt(id=i, source="s", messages=({"role": "user", "content": text},), images=tuple(shown))
        for i, (text, shown) in enumerate(CHATS.items())
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_token_ids_are_those_of_the_familys_own_processor(family, root):
    policy = load(family, root)
    for prompt, ids in zip(chats(), policy.chat.encode(chats()), strict=True):
        images = [image.load().numpy() for image in prompt.images] or None
        text = policy.chat.text(prompt)
        want = policy.processor(images=images, text=text, add_special_tokens=False)["input_ids"]
        assert ids == list(want if isinstance(want[0], int) else want[0])


@pytest.mark.parametrize("family", BUILT)
def test_a_family_that_is_loaded_with_torchvision_alone(family, monkeypatch):
    """Its parts that need no torchvision are put together."""
    name = "transformers.models.pixtral.image_processing_pixtral"
    monkeypatch.setitem(sys.modules, name, of_pixtral)  # one function of it, which its twin has
    torch.manual_seed(0)
    policy = VisionLanguagePolicy(build=BUILT[family], packing=False)
    policy.load(Request(sampling=Sampling(max_new_tokens=4)))
    for prompt, ids in zip(chats(), policy.chat.encode(chats()), strict=True):
        images = [image.load().numpy() for image in prompt.images] or None
        text = policy.chat.text(prompt)
        want = policy.processor(images=images, text=text, add_special_tokens=False)["input_ids"]
        assert ids == list(want if isinstance(want[0], int) else want[0])
    rollout = policy.sample(chats(), 1, key=1, slots=[0, 1, 2])
    assert_close(rollout.behaviour_logp, policy.logp(rollout), atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_are_the_same_in_any_layout_and_in_sampling(family, root):
    policy = load(family, root, EVERY)
    policy.double()
    rollout = policy.sample(chats(), 2, key=1, slots=[0, 1, 2])
    want = policy.logp(rollout)
    assert_close(rollout.behaviour_logp.double(), want, atol=1e-5, rtol=0)
    lay = pack_in_one_row if policy.packs else pad_rows
    for other in (pad_rows, lay):
        policy.scorer.lay = other
        assert_close(policy.logp(rollout), want, atol=1e-5, rtol=0)
    for row in range(len(want)):
        alone = policy.logp(take(rollout, torch.tensor([row])))
        assert_close(alone[0], want[row], atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_model_alone_says_the_same_of_a_row_by_its_own_pixels(family, root):
    policy = load(family, root)
    policy.double()
    rollout = policy.sample(chats(), 1, key=1, slots=[0, 1, 2])
    for row, prompt in enumerate(chats()):
        images = [image.load().numpy() for image in prompt.images] or None
        given = policy.processor(
            images=images,
            text=policy.chat.text(prompt),
            return_tensors="pt",
            add_special_tokens=False,
        )
        start, length = int(rollout.sample.prompt_length[row]), int(rollout.length[row])
        ids = rollout.sample.tokens[row : row + 1, : start + length]
        own = {n: x for n, x in given.items() if n not in ("input_ids", "attention_mask")}
        for name in ("mm_token_type_ids", "token_type_ids"):
            if name in own:
                own[name] = torch.nn.functional.pad(own[name], (0, length))
        own = {n: x.double() if x.is_floating_point() else x for n, x in own.items()}
        with torch.no_grad():
            logits = policy.network(input_ids=ids, **own).logits[0, start - 1 : -1]
        logits[:, policy.scorer.inputs.image_token] = -torch.inf
        want = logits.log_softmax(-1).gather(-1, ids[0, start:, None])[:, 0]
        assert_close(policy.logp(rollout)[row, :length].double(), want, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_told_which_weights_make_tokens_of_what_the_tower_says(family, root):
    policy = load(family, root)
    names = {id(p): n for n, p in policy.network.named_parameters()}
    found = components_of(policy.network)
    assert sum(map(len, found.values())) == len(names)
    told = {names[id(p)] for p in found["projector"]}
    words = ("merger", "projector", "connector", "embed_vision")
    assert told == {n for n in names.values() if any(word in n for word in words)}


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_reach_every_component(family, root):
    policy = load(family, root, EVERY)
    rollout = policy.sample(chats(), 1, key=1, slots=[0, 1, 2])
    (policy.evidence(rollout, NOTHING).logp ** 2).sum().backward()
    for name, parameters in components_of(policy.network).items():
        assert sum(p.grad.norm() for p in parameters if p.grad is not None) > 0, name


@pytest.mark.parametrize("lora", [None, Lora(r=2, alpha=4)])
@pytest.mark.parametrize("family", ["gemma3", "gemma4"])
def test_a_text_policy_trains_what_a_text_reaches(family, lora, root):
    """Ranks wait for the gradient of every trained weight."""
    policy = LanguagePolicy(path=str(folder_of(family, root)), lora=lora)
    policy.load(Request(sampling=Sampling(max_new_tokens=4)))
    rollout = policy.sample(chats()[1:2], 2, key=1, slots=[0])
    (policy.evidence(rollout, NOTHING).logp ** 2).sum().backward()
    trained = policy.trainable()
    assert trained and all(p.grad is not None for p in trained.values())
    assert not any("vision" in name or "projector" in name for name in trained)


def test_an_estimate_counts_the_tower_and_what_it_says(root):
    from tandem.policies.memory.estimate import Workload
    from tandem.policies.memory.vision_estimate import footprint

    work = Workload(
        samples=8, prompts=4, per_update=8, max_tokens=None, rows=2, narrow=False, state=lambda _: 8
    )
    sampling = Sampling(max_new_tokens=4, max_prompt_tokens=20)

    def parts(**options):
        policy = VisionLanguagePolicy(path=str(folder_of("qwen3_vl", root)), **options)
        found = footprint(policy, Request(sampling=sampling), work)
        return {part.name: part for part in found}

    frozen, learns = parts(), parts(target_components=EVERY)
    model, _ = FAMILIES["qwen3_vl"]()
    total = 4 * sum(p.numel() for p in model.parameters())
    assert frozen["weights"].size == pytest.approx(total, rel=0.01)  # and buffers
    assert frozen["pictures"].size == 4 * 20 * 32 * 3 * 4  # and of two layers below, in float32
    assert learns["tower"].size > 0 and "tower" not in frozen
    assert learns["gradients"].size == total > frozen["gradients"].size


def test_a_tower_is_counted_by_the_width_of_its_blocks_or_says_that_it_is_unknown():
    from transformers import PretrainedConfig
    from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig

    from tandem.policies.memory.vision_estimate import of_trained_tower

    def count(vision):
        config = SimpleNamespace(vision_config=vision)
        model = SimpleNamespace(config=config, dtype=torch.float32)
        numerics = SimpleNamespace(gradient_checkpointing=True)
        return of_trained_tower(SimpleNamespace(model=model, numerics=numerics), 2, 10).size

    assert count(Qwen2VLVisionConfig(depth=3, embed_dim=32)) == 2 * 10 * 4 * 3 * 32 * 4
    with pytest.raises(ValueError, match=r"does not say how large its blocks are; set model\.targ"):
        count(PretrainedConfig())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_template_that_reads_parts_alone_is_continued_after_a_move(family, root, tmp_path):
    file = tmp_path / "template.jinja"
    own, end = load(family, root).chat.template, "{{ '<eos>' if message.role == 'assistant' }}"
    file.write_text(own.replace("{% endfor %}\n", "{% endfor %}" + end, 1))
    world = make_environment(Counting(turns=2))
    policy = load(family, root, environment=world, chat_template=str(file))
    rows = policy.sample(chats()[:1], 1, key=1, slots=[0])
    start, length = int(rows.sample.prompt_length[0]), int(rows.length[0])
    answered = rows.sample.tokens[0, start : start + length][~rows.mask[0, :length]]
    (said,) = policy.chat.decode_all([answered.tolist()])
    assert said.removeprefix("<eos>") == "[user]+[assistant]"
    assert_close(policy.logp(rows), rows.behaviour_logp, atol=1e-4, rtol=1e-4)
    literal = [{"role": "user", "content": IMAGE}]
    assert policy.chat.render(literal).count(policy.chat.mark) == IMAGE.count(policy.chat.mark)
