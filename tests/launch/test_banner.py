"""The banner of a run and its choices."""

from pathlib import Path

from tandem.config import check, compose
from tandem.launch.banner import banner

QUICKSTART = Path(__file__).parents[2] / "docs" / "quickstart.md"


def test_the_parts_that_a_command_line_chose_stand_beside_the_presets():
    parts = ["algorithm/loss=cispo", "algorithm/weights=token_mean"]
    typed = ["algorithm=dr_grpo", parts[0], "run_dir=a/b", parts[1]]
    cfg = compose(typed)
    cfg.overrides = typed
    said = dict(line.split(maxsplit=1) for line in banner(check(cfg), cfg.reward).splitlines())
    assert said["chosen"].endswith(", ".join(["recipe=tiny_lm/dr_grpo", *parts]))


def test_updates_of_different_sizes_are_said():
    sizes = ["prompts_per_step=8", "group_size=4", "num_minibatches=3"]
    cfg = compose(["~recipe", *sizes])
    assert "3 an iteration, 8 or 12 samples each" in banner(check(cfg), cfg.reward)


def test_several_rewards_stand_among_the_choices():
    cfg = compose(["reward=[exact_match,length]"])
    assert "reward=exact_match+length, data=" in banner(check(cfg), cfg.reward)


def test_the_quickstart_shows_the_plan_of_the_default_run():
    cfg = compose([])
    assert f"\n{banner(check(cfg), cfg.reward)}\n" in QUICKSTART.read_text()
