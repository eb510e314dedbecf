"""A flow policy as training uses it: admission, learning, state and saving."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gate import each
from small_flow import KERNELS, KEY, NOTHING, make_prompts, sample_rows, small, step_on
from torch.testing import assert_close

from tandem import rng
from tandem.data.images import show
from tandem.dynamics.kernels import ode
from tandem.policies.flow.families.tiny_flow import TinyFlow, read
from tandem.policies.request import BY_ITSELF
from tandem.progress import PROGRESS
from tandem.settings.guards import Guards
from tandem.stop import Stop
from tandem.types import Prompt

SRC = Path(__file__).parents[3] / "src" / "tandem"
OF_ENGINES = {"ask", "chat"}
REFERENCE = frozenset({"ref_logp"})


def squares(count=8, **changes):
    """Bright squares of several sizes on black."""
    examples = []
    for i in range(count):
        picture = torch.zeros(16, 16, 3, dtype=torch.uint8)
        picture[4 : 6 + i, 4 : 6 + i, 0] = 250
        prompt = Prompt(id=i, source="shapes", text="red square", media=show(picture))
        examples.append(replace(prompt, **changes))
    return examples


def test_the_embedded_model_has_the_size_it_is_known_for():
    network = TinyFlow(seed=0).load(None, torch.float32)
    assert sum(p.numel() for p in network.parameters()) == 446_384


def test_a_model_is_a_function_of_its_seed_and_touches_no_generator():
    before = torch.random.get_rng_state()
    one, same, other = (small(adapter=TinyFlow(seed=seed, num_layers=1)) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    for name, weight in one.weights().items():
        assert torch.equal(weight, same.weights()[name])
    assert any(not torch.equal(w, other.weights()[name]) for name, w in one.weights().items())


def test_words_mean_the_same_at_every_place_but_for_the_place():
    there, back = read("red blue")["states"], read("Blue red")["states"]
    assert_close(there[0] - back[1], back[0] - there[1])  # the remaining red, and blue
    assert (there[0] - back[1]).abs().max() > 0.1
    assert torch.equal(read("red")["pooled"], read("red")["states"].flatten())


def test_it_has_what_the_trainer_asks_of_any_policy():
    rooms = [file for room in ("training", "evaluation") for file in (SRC / room).rglob("*.py")]
    asked = {n for file in rooms for n in re.findall(r"\bpolicy\.([a-z]\w+)", file.read_text())}
    assert {"complete", "sample", "row_cost"} < asked
    assert not small().samples_ahead  # only engines of texts support it
    assert asked - {*dir(small())} == OF_ENGINES


def test_what_it_provides_depends_on_its_dynamics_and_needs_no_weights():
    policy = small()
    assert policy.describe(policy.request).kind == "flow"
    assert {"behaviour_logp", "transition", "kl_to_ref"} <= policy.describe(policy.request).provides
    of_pictures = {"key", "old_logp", "ref_logp", "old_error", "ref_error", "fast_error"}
    of_pictures |= {"new_reference"}
    policy = small(sampling={"kernel": ode})
    assert policy.describe(policy.request).provides == of_pictures


def test_prompts_that_cannot_be_painted_are_named_with_the_reason():
    policy = small()
    chat = Prompt(id=9, source="chat", messages=({"role": "user", "content": "red"},))
    long = Prompt(id=8, source="long", text="a red circle on a green square")
    kept, dropped = policy.admit([*make_prompts(), chat, long])
    assert kept == make_prompts()
    assert [prompt.id for prompt, _ in dropped] == [9, 8]
    assert "a chat" in dropped[0][1] and "7 words" in dropped[1][1]
    with pytest.raises(ValueError, match="is a chat, but this model needs a text"):
        policy.sample([chat], 1, key=0, slots=[0])


def test_demonstrations_need_a_picture_of_the_models_size():
    policy = small()
    wide = replace(squares(1)[0], media=show(torch.zeros(16, 20, 3).byte()), id=5)
    kept, dropped = policy.admit_answered([*squares(2), *make_prompts()[:1], wide])
    assert [example.id for example in kept] == [0, 1]
    assert dropped[0][1] == "has no picture; set data.pictures=true if rows name files"
    assert "16x20x3" in dropped[1][1] and "16x16x3" in dropped[1][1]
    with pytest.raises(ValueError, match="demonstration 0 of shapes has no picture"):
        policy.encode(make_prompts()[:1], key=0, slots=[0])


def test_a_demonstration_is_one_step_and_the_pair_of_a_slot_shares_its_noise():
    policy = small()
    examples = squares(4)
    rollout = policy.encode([*examples, *examples], key=0, slots=[0, 1, 2, 3] * 2)
    assert rollout.mask.tolist() == 8 * [[True]]
    assert torch.equal(rollout.sample.key[:4], rollout.sample.key[4:])
    assert torch.equal(rollout.outputs[2], examples[2].media.load())
    logp = policy.evidence(rollout, NOTHING).logp
    assert torch.equal(logp[:4], logp[4:])
    policy.iteration = 1
    again = policy.encode(examples, key=0, slots=range(4))
    assert torch.equal(again.sample.key, rollout.sample.key[:4])
    later = policy.encode(examples, key=1, slots=range(4))
    assert not torch.equal(later.sample.key, rollout.sample.key[:4])
    assert torch.equal(policy.adapter.decode(later.sample.x0)[1], examples[1].media.load())


def test_imitation_learns_and_its_samples_come_to_look_like_it():
    policy = small(adapter=TinyFlow(seed=0, num_layers=2))
    optimizer = torch.optim.AdamW(policy.trainable().values(), lr=3e-3)
    examples, losses = squares(16, media=squares(8)[5].media), []
    for iteration in range(60):
        policy.iteration = iteration
        rollout = policy.encode(examples, key=iteration, slots=range(16))
        loss = -policy.evidence(rollout, NOTHING).logp.mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
    painted = sample_rows(
        policy, 8, texts=["red square"], sampling=replace(policy.sampling, kernel=ode)
    )
    picture = torch.stack(painted.outputs).float().mean(0)
    inside, outside = picture[5:10, 5:10, 0].mean(), picture[12:, 12:, 0].mean()
    assert inside > outside + 100


@pytest.mark.parametrize("kernel", each(2, KERNELS))
def test_a_few_updates_on_ratios_raise_what_they_are_paid_for(kernel):
    policy = small(sampling={"kernel": KERNELS[kernel]})
    optimizer = torch.optim.Adam(policy.trainable().values(), lr=1e-3)
    brightness = []
    for iteration in range(8):
        rollout = policy.sample(make_prompts(), 8, key=rng.key(0, iteration), slots=range(4))
        reward = torch.stack(rollout.outputs).float().mean((1, 2, 3))
        brightness.append(reward.mean().item())
        advantage = ((reward - reward.mean()) / reward.std())[:, None]
        old = policy.complete(rollout, frozenset({"old_logp"})).old_logp
        for _ in range(2):
            ratio = (policy.evidence(rollout, NOTHING).logp - old).exp()
            (-(advantage * ratio).mean() * 768).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert brightness[-1] > brightness[0] + 5


def test_weights_travel_into_the_tensors_that_an_optimiser_holds():
    policy, other = small(), small(adapter=TinyFlow(seed=4, num_layers=1))
    before = {name: p.data_ptr() for name, p in policy.trainable().items()}
    policy.load_weights(other.weights())
    for name, parameter in policy.trainable().items():
        assert parameter.data_ptr() == before[name]
        assert torch.equal(parameter, other.weights()[name])
    with pytest.raises(ValueError, match="names do not match"):
        policy.load_weights({"x": torch.zeros(1)})


def test_a_reference_is_made_only_where_it_is_needed_and_stays():
    plain, policy = small(), small(REFERENCE)
    assert plain.model.frozen is None
    assert policy.trainable().keys() == plain.trainable().keys()
    assert policy.state_dict().keys() == plain.state_dict().keys()
    assert not any(p.requires_grad for p in policy.model.frozen.network.parameters())


def test_nothing_puts_the_network_into_train_mode():
    policy = small()
    policy.train()
    assert policy.training and not policy.model.network.training


def test_what_is_saved_is_a_diffusers_transformer_and_can_be_gone_on_with(tmp_path):
    from diffusers import SD3Transformer2DModel

    policy = small()
    rollout = sample_rows(policy)
    step_on(policy, policy.evidence(rollout, NOTHING).logp.sum(), lr=1e-2)
    policy.save(tmp_path)
    plain = SD3Transformer2DModel.from_pretrained(tmp_path, subfolder="transformer")
    for name, weight in plain.state_dict().items():
        assert torch.equal(weight, policy.model.network.state_dict()[name])
    again = small(path=str(tmp_path))
    assert torch.equal(
        again.evidence(rollout, NOTHING).logp, policy.evidence(rollout, NOTHING).logp
    )
    with pytest.raises(ValueError, match=r"has no transformer/config\.json"):
        small(path=str(tmp_path / "transformer"))


def test_narrow_weights_are_neither_exact_nor_reused():
    with pytest.warns(UserWarning, match="bfloat16 weights are trained"):
        policy = small(dtype="bfloat16")
    assert not policy.exact and small().exact
    rollout = sample_rows(policy)
    assert policy.complete(rollout, frozenset({"old_logp"})).old_logp is not rollout.behaviour_logp
    assert rollout.behaviour_logp.dtype == torch.float32


def test_a_budget_below_one_is_refused_by_its_name():
    with pytest.raises(ValueError, match=r"model\.row_budget is 0; it must be at least 1"):
        small(row_budget=0)


def test_recomputed_activations_change_no_gradient():
    found = []
    for recompute in (False, True):
        policy = small(gradient_checkpointing=recompute)
        rollout = sample_rows(policy)
        found.append(step_on(policy, policy.evidence(rollout, NOTHING).logp.sum()))
    for name, gradient in found[0].items():
        assert_close(found[1][name], gradient, atol=1e-4, rtol=1e-4)


def test_parts_hold_the_memory_of_one_of_them():
    policy = small()
    rollout = sample_rows(policy, 8)

    def kept(rows):
        policy.forward_pass.max_rows, sizes = rows, []

        def pack(x):
            sizes.append(x.numel())
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            policy.evidence(rollout, NOTHING)
        return sum(sizes)

    assert kept(16) < 0.2 * kept(128)


def test_the_cost_of_a_row_is_what_its_forward_passes_read():
    assert small().row_cost(sample_rows(small(), 1)).tolist() == 4 * [4 * (16 + 5)]
    guided = small(sampling={"guidance_scale": 2.0}, negative_prompt="")
    assert guided.row_cost(sample_rows(guided, 1)).tolist() == 4 * [2 * 4 * (16 + 5)]
    for objective in ("any", "denoising"):  # one step or three, at three noise levels
        policy = small(objective=objective, timesteps=replace(BY_ITSELF, count=3))
        pictures = policy.encode(squares(2), key=0, slots=range(2))
        assert policy.row_cost(pictures).tolist() == 2 * [3 * (16 + 5)]


def test_every_step_of_denoising_is_progress(monkeypatch):
    reports = []
    monkeypatch.setattr(PROGRESS, "report", lambda: reports.append("report"))
    sample_rows(small(steps=5))
    assert len(reports) == 5


def test_the_key_of_a_rollout_is_what_moves_it():
    policy = small()
    other = policy.sample(make_prompts(), 4, key=KEY + 1, slots=range(4))
    assert (sample_rows(policy).sample.x0 != other.sample.x0).flatten(1).any(1).all()
    assert len(torch.cat([sample_rows(policy).key, other.key]).unique()) == 32


@pytest.mark.parametrize(
    ("kernel", "more"),
    [(KERNELS["cps"], "group_size or dynamics.kernel.noise_level"), (ode, "group_size")],
)
def test_iterations_without_signal_ask_for_more_noise_where_there_is_some(kernel, more):
    with pytest.raises(Stop, match=f"nothing can be learnt: raise {more}, use easier or harder"):
        Guards().check_signal(5, small(sampling={"kernel": kernel}))
