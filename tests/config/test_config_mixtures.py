"""The requirements between a mixture of datasets and its rewards, one line each."""

import pytest

from tandem.config import ConfigError, check, compose

SORT = "{_target_:tandem.data.rows.jsonl,path:rows.jsonl,seed:0}"
REWARDS = ("reward=[exact_match,target_length]", "reward.target_length.function.target=3")


def check_mixture(a, b="", rewards=REWARDS):
    of = f"data.of={{a:{{data:{SORT}{a}}},b:{{data:{SORT}{b}}}}}"
    check(compose(["model=tiny_lm", "algorithm=grpo", "~recipe", "data=mixture", of, *rewards]))


WRONG = {
    (",weight:0", ""): (
        "data.of.a.weight=0.0: must be above 0; remove a dataset that is never drawn"
    ),
    (",rewards:[exact_mach]", ""): (
        "data.of.a.rewards: unknown reward 'exact_mach': did you mean 'exact_match'?"
    ),
    ("", ",rewards:[]"): (
        "data.of.b.rewards=[]: list at least one reward, each once, or null for all"
    ),
    ("", ",eval:0"): "data.of.b.eval=0: must be at least 1, or false for none, or true for all",
    (",rewards:[exact_match]", ",rewards:[exact_match]"): (
        "reward.target_length scores no dataset; list it in data.of.a.rewards, or leave it out"
    ),
    (",wieght:2", ""): "unknown key 'data.of.a.wieght': did you mean 'data.of.a.weight'?",
}


@pytest.mark.parametrize(("given", "answer"), WRONG.items(), ids=[" ".join(x) for x in WRONG])
def test_it_is_refused_with_its_reason(given, answer):
    with pytest.raises(ConfigError) as refused:
        check_mixture(*given)
    assert str(refused.value) == answer


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("", ""),
        (",rewards:[exact_match]", ",weight:.5,eval:false"),
        (",rewards:[exact_match]", ",rewards:[target_length],eval:3,max_size:5"),
    ],
)
def test_what_makes_sense_passes(a, b):
    check_mixture(a, b)


def test_datasets_may_name_the_rewards_of_a_later_run_where_nothing_is_scored():
    """As in a warm start, whose reward is the model's own."""
    of = f"data.of={{a:{{data:{SORT},rewards:[episode]}}}}"
    words = ["model=tiny_lm", "algorithm=sft", "~recipe", "data=mixture", of]
    check(compose([*words, "evaluation.every=null"]))
    with pytest.raises(ConfigError, match="unknown reward 'episode': there are exact_match"):
        check(compose(words))


def test_a_dataset_that_nothing_is_trained_on_is_refused():
    with pytest.raises(ConfigError) as refused:
        check_mixture(
            ",rewards:[target_length]", rewards=(*REWARDS, "reward.target_length.weight=0")
        )
    assert str(refused.value) == (
        "data.of.a.rewards: all have weight 0, so its samples train nothing; list another "
        "reward, or set reward.target_length.weight=1"
    )


def test_a_mixture_of_mixtures_is_refused_for_what_it_is():
    inner = f"{{_target_:tandem.data.mixture.mixture,of:{{x:{{data:{SORT}}}}},seed:0}}"
    own = f"data.of={{a:{{data:{inner}}},b:{{data:{SORT}}}}}"
    with pytest.raises(ConfigError) as refused:
        check(compose(["model=tiny_lm", "algorithm=grpo", "~recipe", "data=mixture", own]))
    assert str(refused.value) == (
        "data.of.a.data is itself a mixture; list its datasets in data.of, each with its weight"
    )


def test_a_mixture_without_datasets_says_what_is_missing():
    with pytest.raises(ConfigError, match=r"data\.of"):
        check(compose(["model=tiny_lm", "algorithm=grpo", "~recipe", "data=mixture"]))


GUESS = "{_target_:tandem.data.hilo.hilo,seed:0}"
PLAYED = "{_target_:tandem.environments.Environment,world:{_target_:tandem.environments.hilo.HiLo}}"


def check_played(environments, rewards=("[episode]", "[exact_match]")):
    one, other = rewards
    of = f"data.of={{a:{{data:{GUESS},rewards:{one}}},b:{{data:{SORT},rewards:{other}}}}}"
    chosen = ["model=tiny_lm", "~recipe", "reward=[episode,exact_match]", "environment=mixture"]
    check(compose([*chosen, "data=mixture", of, f"environment.of={{{environments}}}"]))


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        (
            (f"a:{PLAYED}",),
            "data.of.b has no environment; set environment.of.b=null for none",
        ),
        ((f"a:{PLAYED},b:null,c:null",), "environment.of.c: unknown dataset 'c': there are a, b"),
        (
            (f"a:{PLAYED},b:null", ("[episode]", "[episode,exact_match]")),
            "reward=episode sums the rewards of moves, and the environment of b gives "
            "none; list other rewards in data.of.b.rewards",
        ),
    ],
)
def test_a_mixture_of_environments_is_refused_with_its_reason(given, answer):
    with pytest.raises(ConfigError) as refused:
        check_played(*given)
    assert str(refused.value) == answer


TOOLS = (
    "{_target_:tandem.environments.Environment,world:{_target_:tandem.environments.tools.Tools,"
    "functions:{one:{_target_:tandem.environments.tools.calculator,_partial_:true}},cost:COST}}"
)


def test_a_cost_is_refused_where_no_reward_of_the_dataset_sums_it():
    dear = f"a:{PLAYED},b:{TOOLS.replace('COST', '0.1')}"
    with pytest.raises(ConfigError) as refused:
        check_played(dear)
    assert str(refused.value) == (
        "environment.of.b.world.cost=0.1 is subtracted from the rewards of moves, and none of "
        "data.of.b.rewards=['exact_match'] sums them; add episode, or set "
        "environment.of.b.world.cost=0"
    )
    check_played(dear, rewards=("[episode]", "[exact_match,episode]"))
    free = f"a:{PLAYED},b:{TOOLS.replace('COST', '0')}"
    check_played(free)
    check_played(free, rewards=("[episode]", "[exact_match,episode]"))
    with pytest.raises(ConfigError, match="the environment of b gives none; list other rewards"):
        check_played(free, rewards=("[exact_match,episode]", "[episode]"))


def test_each_dataset_may_have_an_environment_or_none():
    check_played(f"a:{PLAYED},b:null")
    with pytest.raises(ConfigError, match=r"data=sort_ladder is not a mixture; set data=mixture"):
        check(compose(["~recipe", "environment=mixture", f"environment.of={{a:{PLAYED}}}"]))
