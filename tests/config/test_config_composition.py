"""Precedence: the command line, then the recipe, the model, the algorithm, the defaults."""

import sys
from pathlib import Path

import matrix
import pytest
from gate import each
from omegaconf import OmegaConf

from tandem.config import ConfigError, build, check, compose
from tandem.config.arguments import list_left_out_keys
from tandem.config.composition import conf_folder, make_loader
from tandem.config.help import places
from tandem.config.help_topics import find_key
from tandem.config.options_in_use import list_options_in_use
from tandem.config.overrides import list_options
from tandem.config.plain import FILLED_IN, target_of, to_plain
from tandem.config.plugins import ADMITTED
from tandem.config.values import list_keys
from tandem.settings.settings import COMPONENTS, Settings

# The overrides that an option requires from the user, or that its error message
# asks for: images, pairs, a critic. Options that work alone are not here.
UNCORRECTED = ["algorithm/importance_sampling=none"]
PAIRS, PAIRED = ["data=sort_pairs"], ["algorithm=dpo", "data=sort_pairs"]
COMPARING = (
    "apo_zero dpo dpo_hinge dpo_norm dpo_reference_free dpo_robust exo ipo nca orpo simpo sppo_hard"
)
OF_FLOWS = "dance_grpo flow_dppo flow_grpo gardo grpo_guard mix_grpo tempflow_grpo"
OF_PICTURES = (
    "colour_share crisp_rendering jpeg_compressibility jpeg_incompressibility nearest_rendering"
)
OF_NETWORKS = (
    "pickscore clip_score ocr ocr_line geneval geneval_zero_shot geneval2 "
    "dino_similarity dino_diversity"
)
JUDGES = "judge judge_pairs judge_groups unified_reward"
PIPELINES = (
    "sd3_5_medium sd3_5_large flux1_dev qwen_image qwen_image_2512 sana_1_6b "
    "flux1_kontext qwen_image_edit "
    "z_image z_image_turbo flux2_dev flux2_klein "
    "wan2_1_1_3b wan2_1_14b wan2_2_5b wan2_2_14b wan2_1_i2v_14b wan2_2_i2v_14b "
    "wan2_2_5b_i2v hunyuan_video hunyuan_video_1_5 ltx_2 ltx_video skyreels_v2_14b "
    "qwen3_writes_sd3_5"
)
FLOW = ["model=tiny_flow"]
RANDOM = [*FLOW, "algorithm=tempflow_grpo"]
NFT, CRD, OPD = (
    ["model=tiny_flow", f"algorithm={name}"] for name in ("nft", "crd", "diffusion_opd")
)
TAUGHT = [*OPD, "algorithm.teachers.folders={others:teacher}"]
OF_PICTURES_AS_A_WHOLE = "awm crd dgpo fpo nft dmd2 tdm tdm_r1"
BY_TOKENS = ["algorithm/teachers=tokens", TAUGHT[-1]]
BY_STATE = [*BY_TOKENS, "algorithm/teachers/divergence=jsd"]
JUDGED = "from_teacher g_opd minillm_long task_and_teacher"
BY_ODE = [*FLOW, "algorithm=sft", "dynamics=ode"]
AMONG = "/among@algorithm.timestep_sampling.levels.among"
SAMPLING = "algorithm/ema@algorithm.ema.sampling"
MASKED = ["model=tiny_masked"]
ROWS = "{_target_:tandem.data.rows.jsonl,path:rows.jsonl,seed:0}"
EPISODES = ["data=hilo"]
BESIDE = {
    "algorithm/kl/gate=most_uncertain": [],
    "algorithm/likelihood=path": [],
    **{f"dynamics={name}": FLOW for name in ("flow_sde", "dance_sde", "cps")},
    **{f"algorithm={name}": FLOW for name in f"{OF_FLOWS} {OF_PICTURES_AS_A_WHOLE}".split()},
    "algorithm=diffusion_opd": TAUGHT[::2],
    **{f"algorithm={name}": TAUGHT[2:] for name in ("opd", "gkd", "minillm")},
    **{f"algorithm/loss={name}": BY_STATE for name in ("divergence", "with_divergence")},
    "algorithm/loss=sampled_divergence": BY_TOKENS,
    "algorithm/advantage=none": ["algorithm=gkd", TAUGHT[-1]],
    "algorithm/sampling_strategy=reprompted": ["algorithm=sdpo"],
    "algorithm/teachers=self": ["algorithm=sdpo"],
    **{f"algorithm/advantage={name}": BY_TOKENS for name in JUDGED.split()},
    "algorithm/teachers=velocities": TAUGHT,
    "algorithm/teachers=tokens": ["algorithm=opd", *TAUGHT[2:]],
    # CRD's numbers for its own ramp are dropped with the ramp.
    **{f"{SAMPLING}={name}": CRD for name in ("copied", "linear")},
    "algorithm/loss=nft": NFT,
    **{f"algorithm/loss={name}": CRD for name in ("crd", "dgpo", "dgpo_fast")},
    "algorithm/loss=distillation": TAUGHT,
    **{f"algorithm/loss={name}": [*FLOW, "algorithm=tdm"] for name in ("dmd2", "tdm")},
    "algorithm/loss=tdm_r1": [*FLOW, "algorithm=tdm_r1"],
    **{
        f"algorithm/kl={name}": [*NFT, "algorithm.kl.coef=0.1"]
        for name in ("regressed", "regressed_elbo", "reward_adaptive")
    },
    "algorithm/advantage=by_distance": RANDOM,
    **{f"algorithm/loss={k}": RANDOM for k in ("flow_dppo", "grpo_guard", "weighted_ppo")},
    "dynamics=ode": BY_ODE,
    "dynamics=masked": MASKED,
    **{
        f"algorithm={name}": MASKED
        for name in ("coupled_grpo", "diffu_grpo", "espo", "spg", "trace_rl", "wd1")
    },
    "algorithm/kl=k2_sequence": [*MASKED, "algorithm=espo"],
    "algorithm/loss=spg": [*MASKED, "algorithm=spg"],
    "rollout=unmask": MASKED,
    "rollout=denoise": FLOW,
    **{
        f"algorithm/kl={k}": RANDOM
        for k in ("gaussian", "mean_distance", "velocity_distance", "timeless")
    },
    **{f"algorithm={name}": PAIRS for name in ("dpo", "ipo", "simpo", "orpo", "kto")},
    **{f"algorithm/loss={name}": PAIRED for name in COMPARING.split()},
    **{
        f"algorithm/loss={name}": UNCORRECTED
        for name in ("dppo", "dppo_kl", "dppo_pulled", "drpo", "topr")
    },
    "algorithm/advantage=gae": ["algorithm=ppo"],
    "algorithm/advantage=remax": ["algorithm/sampling_strategy=remax"],
    "algorithm/sampling_strategy=remax": ["algorithm=remax"],
    "algorithm/sampling_strategy=kto_kl": ["algorithm=kto", *PAIRS],
    "algorithm/sampling_strategy=tree": RANDOM,
    "algorithm/sampling_strategy=offline": ["algorithm=sft"],
    "algorithm/sampling_strategy=mixed": ["algorithm=sft"],
    "algorithm/sampling_strategy=preference_pairs": PAIRED,
    "algorithm/loss=kto": ["algorithm=kto", *PAIRS],
    "algorithm/old_logprobs=rollout": UNCORRECTED,
    "algorithm/old_logprobs=current": ["algorithm/loss=reinforce"],
    **{f"algorithm={name}": EPISODES for name in ("group_in_group", "turn_to_go")},
    **{f"algorithm/advantage={name}": EPISODES for name in ("group_in_group", "turn_to_go")},
    "reward=episode": EPISODES,
    **{f"data={name}": ["data.path=prompts"] for name in ("folder", "image_folder")},
    **{f"data={name}": FLOW for name in ("letters", "shapes", "shapes_pairs")},
    "data=jsonl": ["data.path=prompts.jsonl"],
    "data=mixture": [f"data.of={{shown:{{data:{ROWS}}}}}"],
    "data=text": ["data.path=prompts.txt", "warm_start=null"],
    "data=reasoning_gym": ["data.task=leg_counting"],
    "dynamics/stochastic=one_step": [*RANDOM, "dynamics.stochastic.step=1"],
    "evaluation=pictures": ["model=tiny_flow", "algorithm=sft"],
    "model=chain": [
        "data.path=prompts.txt",
        "model.text.path=models/writer",
        "model.picture.path=models/painter",
        "model.picture.adapter={_target_:tandem.policies.flow.families.tiny_flow.TinyFlow}",
        "model.picture.latent_size=768",
    ],
    "model=hf": ["model.path=models/mine", "data.path=prompts.jsonl"],
    "reward=asked": [*FLOW, "reward.asked.function.path=runs/mine/model"],
    "reward=aesthetic": [*FLOW, "reward.aesthetic.function.head=head.safetensors"],
    "reward=image_reward": [*FLOW, "reward.image_reward.function.weights=blip.safetensors"],
    "reward=hpsv3": [*FLOW, "reward.hpsv3.function.weights=hpsv3.safetensors"],
    "reward=hpsv2": [*FLOW, "reward.hpsv2.function.weights=hps.safetensors"],
    "data=letters": FLOW,
    "model=vlm": ["model.path=models/mine", "data.path=prompts.jsonl"],
    **{f"model={name}": ["data.path=prompts.txt"] for name in PIPELINES.split()},
    **{
        option: ["model=tiny_chain"]
        for option in (*("algorithm=unigrpo", "rollout=chain", "evaluation=written_pictures"),)
    },
    **{f"reward={name}": FLOW for name in f"{OF_PICTURES} {OF_NETWORKS}".split()},
    "reward=video_align": [
        *("model=wan2_1_1_3b", "data.path=prompts.txt"),
        "reward.video_align.function.weights=video_reward.safetensors",
        "reward.video_align.function.settings=model_config.json",
    ],
    "reward=motion_smoothness": ["model=wan2_1_1_3b", "data.path=prompts.txt"],
    **{
        f"reward={name}": [
            f"reward.{name}.function.chat.url=http://127.0.0.1:8000/v1",
            f"reward.{name}.function.chat.model=judge",
        ]
        for name in JUDGES.split()
    },
    "reward=written_match": ["model=tiny_chain", "reward.written_match.weight=1"],  # logged alone
    "reward=reward_model": ["reward.reward_model.function.path=models/reward"],
    "reward=http": ["reward.http.function.url=http://127.0.0.1:9000"],
    "rollout=vllm_server": ["rollout.engine.url=http://127.0.0.1:8000"],
    "rollout=sglang_server": ["rollout.engine.url=http://127.0.0.1:30000"],
    "reward=target_length": ["reward.target_length.function.target=100"],
    "environment=openenv": ["environment.world.url=http://127.0.0.1:8000"],
    "environment=agent": ["environment.world.command=[python,agent.py]"],
    "environment=gymnasium": ["environment.world.id=Blackjack-v1"],
    "environment=gymnasium_drawn": ["environment.world.id=FrozenLake-v1"],
    "environment=maze_shown": ["model=tiny_vlm"],
    "data=maze_shown": ["model=tiny_vlm"],
    "environment=python": ["environment.world.command=[bwrap,python3]"],
    "environment=mixture": [
        "data=mixture",
        "data.of={sums:{data:{_target_:tandem.data.rows.jsonl,path:rows.jsonl,seed:0}}}",
        "environment.of={sums:null}",
    ],
}
PACKAGES = {  # of optional dependencies
    "environment=openenv": "websockets",
    "environment=gymnasium": "gymnasium",
    "environment=gymnasium_drawn": "gymnasium",
}
FITTING = {  # of all options of a group
    "algorithm/likelihood": [
        *MASKED,
        "algorithm.entropy.coef=0",
        "algorithm.kl.coef=0",
        *UNCORRECTED,
    ],
    "algorithm/teachers/divergence": ["algorithm=sdpo"],
    "algorithm/sampling_strategy/reprompt": ["algorithm=sdpo"],
    "algorithm/loss/distance": [*FLOW, "algorithm=flow_dppo"],
    **{f"algorithm/loss/{part}": CRD for part in ("centre", "fit", "tilt")},
    "algorithm/loss/target": TAUGHT,
    "algorithm/query": [*FLOW, "algorithm=tdm"],
    f"algorithm/timestep_sampling{AMONG}": NFT,
    SAMPLING: CRD,
    "algorithm/kl/gate": ["algorithm.kl.coef=0.1"],
    "algorithm/loss/weight": [*FLOW, "algorithm=grpo_guard"],
    "dynamics/logp": RANDOM,
    "dynamics/schedule": FLOW,
    "model/ema": FLOW,
    "model/quantization": ["model.lora={r: 4, alpha: 8}"],
    "model/quantization@model.text.quantization": [
        "model=tiny_chain",
        "model.text.lora={r: 4, alpha: 8}",
    ],
    "model/quantization@model.picture.quantization": [
        "model=tiny_chain",
        "model.picture.lora={r: 4, alpha: 8}",
    ],
    "model/ema@model.picture.ema": ["model=tiny_chain"],
    "algorithm/loss/weight@algorithm.loss.picture.weight": [
        "model=tiny_chain",
        "algorithm=unigrpo",
    ],
    "dynamics/solver": BY_ODE,
    "evaluation/solver": FLOW,
    "dynamics/stochastic": RANDOM,
    "dynamics/stochastic/stay": [*RANDOM, "dynamics/stochastic=sliding_window"],
}
MENU = list_options(make_loader())
PLACES = places(conf_folder())  # as in --help
OPTIONS = [
    f"{spelling.partition(' ')[0]}={option}"
    for group, options in MENU.items()
    for spelling in PLACES.get(group, [group])
    for option in options
    if not group.startswith("recipe")
]
RECIPES = [  # without those of papers, which tests/test_published.py covers
    path.relative_to(conf_folder() / "recipe")
    for path in sorted(conf_folder().rglob("recipe/**/*.yaml"))
    if path.parent.name != "papers" and not path.name.startswith("_")
]


def company(option):
    """The other choices that an option is checked with."""
    return BESIDE.get(option, FITTING.get(option.split("=")[0], []))


@pytest.mark.parametrize("option", each(10, OPTIONS))
def test_every_option_composes_and_binds(option):
    if option in PACKAGES:
        pytest.importorskip(PACKAGES[option])
    if "quantization" in option:
        pytest.importorskip({"bnb": "bitsandbytes"}.get(option.split("=")[1][:3], "torchao"))
    check(compose([option, "~recipe", *company(option)]))


@pytest.fixture(scope="module")
def seen():
    """Keys that an earlier option has, with the functions that read them."""
    return set()


@pytest.mark.parametrize("option", each(32, OPTIONS))
def test_help_has_a_meaning_for_every_key_of_every_option(option, seen):
    words = [option, "~recipe", *company(option)]
    cfg = compose(words)
    chosen, tree = list_options_in_use(words, cfg), OmegaConf.to_container(cfg, resolve=True)
    names = (*list_keys(cfg), *list_left_out_keys(cfg))
    read_by = {name: (name, reader_of(name, cfg)) for name in names}
    new = {name for name, both in read_by.items() if both not in seen}
    seen.update(read_by.values())
    keys = [
        find_key(name, tree, chosen, conf_folder())
        for name in sorted(new)
        if name.partition(".")[0] not in FILLED_IN
    ]
    assert [key.name for key in keys if not (key.said or isinstance(key.value, dict))] == []


def reader_of(key, cfg):
    """The function that reads a key, if it has one."""
    return target_of(OmegaConf.select(cfg, key.rpartition(".")[0], default=cfg))


@pytest.mark.slow
@pytest.mark.parametrize("option", [one for one in OPTIONS if company(one)])
def test_no_option_is_given_company_that_it_does_not_need(option):
    with pytest.raises(ConfigError):
        check(compose([option, "~recipe"]))


@pytest.mark.parametrize("name", ["old", "sampling"])
def test_a_group_that_stands_elsewhere_is_chosen_where_it_stands(name):
    cfg = compose([*CRD, "~recipe", f"algorithm/ema@algorithm.ema.{name}=ramp"])
    assert cfg.algorithm.ema[name].decay["_target_"].endswith("piecewise_linear")


def test_a_snapshot_of_ones_own_is_added_by_its_name():
    cfg = compose([*NFT, "~recipe", f"+{SAMPLING}=linear", "algorithm.rollout_weights=sampling"])
    assert "sampling" in cfg.algorithm.ema
    check(cfg)


def beside(algorithm, model):
    """The choices that a recipe's pair leaves to the user, besides the model."""
    if algorithm.removeprefix("algorithm=") in matrix.OF_PAIRS:
        return [f"data={matrix.PAIRS[model]}"]
    asked = [*BESIDE.get(algorithm, []), *BESIDE.get(f"model={model}", [])]
    return [part for part in asked if not part.startswith("model=")]


@pytest.mark.parametrize("recipe", each(10, RECIPES), ids=str)
def test_every_recipe_binds_and_is_used(recipe):
    model, algorithm = recipe.parent.name, recipe.stem
    chosen, above = f"algorithm={algorithm}", recipe.parts[:-2]  # for some data only
    data = [f"data={name}" for name in above]
    cfg = compose([f"model={model}", chosen, *beside(chosen, model), *data])
    check(cfg)
    assert cfg.choices.recipe == "/".join((*above, model, algorithm))


def test_every_option_says_what_it_is():
    for path in conf_folder().rglob("*.yaml"):
        lines = [line for line in path.read_text().splitlines() if "@package" not in line]
        assert lines[0].startswith("# "), path


def test_the_top_level_is_the_typed_one():
    assert {*compose()} == {*Settings.__dataclass_fields__} | {*COMPONENTS}


def test_only_the_project_root_is_read_from_the_environment():
    for path in conf_folder().rglob("*.yaml"):
        assert "oc.env" not in path.read_text().replace("${oc.env:PROJECT_ROOT}", ""), path


def test_the_command_line_beats_the_recipe_and_the_recipe_the_algorithm():
    published = check(compose(["model=tiny_lm", "algorithm=grpo", "~recipe"]))
    tuned = check(compose(["model=tiny_lm", "algorithm=grpo"]))
    asked = check(compose(["model=tiny_lm", "algorithm=grpo", "group_size=3", "epochs=2"]))
    assert (published.group_size, tuned.group_size, asked.group_size) == (4, 8, 3)
    assert (published.choices["recipe"], tuned.choices["recipe"]) == (None, "tiny_lm/grpo")
    assert (tuned.epochs, asked.epochs) == (1, 2)


def test_an_algorithms_batch_numbers_are_the_runs():
    settings = check(compose(["algorithm=dapo", "~recipe"]))
    assert (settings.group_size, settings.num_minibatches) == (16, 16)
    assert not {"group_size", "num_minibatches", "epochs"} & compose().algorithm.keys()
    with pytest.raises(ConfigError, match=r"^algorithm.epochs=2 was renamed to epochs=2$"):
        compose(["algorithm.epochs=2"])


def test_a_model_chooses_and_the_command_line_chooses_again():
    assert compose(["model=hf"]).choices.data == "jsonl"
    assert compose(["model=hf", "data=sort_letters"]).choices.data == "sort_letters"


def test_mirrors_and_rewards_merge():
    cfg = compose(["logger=[wandb,csv]", "reward=[exact_match,length]"])
    assert list(cfg.logger) == ["wandb", "csv"]
    assert list(cfg.reward) == ["exact_match", "length"]
    check(cfg)


def test_the_choice_of_dynamics_is_the_one_that_was_made():
    assert compose().choices.dynamics == "autoregressive"


def test_runs_are_named_by_what_they_are():
    folder = to_plain(compose(["algorithm=rloo", "seed=7"]))["run_dir"]
    date, name = Path(folder).parts[1:]
    assert Path(folder).parts[0] == "runs"
    assert date.count("-") == 2
    assert "-tiny_lm-rloo-seed7-" in name


def test_a_misspelt_choice_inside_a_file_is_named_with_the_file(plugin):
    (plugin / "conf" / "experiment").mkdir(parents=True)
    study = plugin / "conf" / "experiment" / "study.yaml"
    study.write_text("# @package _global_\ndefaults:\n  - override /optimizer: adm\n")
    with pytest.raises(ConfigError) as refused:
        compose(["plugins=[my_idea]", "experiment=study"])
    assert "unknown option of optimizer 'adm': did you mean 'adam'?" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """The package `my_idea` in the working directory, removed afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_idea").mkdir()
    (tmp_path / "my_idea" / "__init__.py").write_text(
        "def halved(rewards, rollout, *, by: float = 2.0):\n    return rewards / by\n"
    )
    yield tmp_path / "my_idea"
    sys.modules.pop("my_idea", None)
    ADMITTED.discard("my_idea")


@pytest.mark.parametrize(
    ("option", "lines", "key", "mended"),
    [
        (
            "model=mine",
            "defaults: [tiny_lm, _self_]\nmodel: {path: x}",
            "model.model",
            "# @package _global_\ndefaults: [tiny_lm, _self_]\nmodel: {path: x}",
        ),
        (
            "algorithm/loss=mine",
            "defaults: [ppo, _self_]\nalgorithm: {loss: {clip_low: 0.1}}",
            "algorithm.loss.algorithm",
            "defaults: [ppo, _self_]\nclip_low: 0.1",
        ),
    ],
)
def test_a_key_that_a_file_nests_in_its_own_group_is_explained(plugin, option, lines, key, mended):
    group, _, name = option.partition("=")
    file = plugin / "conf" / group / f"{name}.yaml"
    file.parent.mkdir(parents=True)
    words = ["plugins=[my_idea]", option, "algorithm=grpo"]
    file.write_text(lines)
    with pytest.raises(ConfigError) as refused:
        check(compose(words))
    where = key.rpartition(".")[0]
    assert str(refused.value) == (
        f"unknown key '{key}': keys of a file are below {where} unless it begins with "
        "'# @package _global_'"
    )
    file.write_text(mended)
    check(compose(words))


def test_a_plugin_brings_targets_and_options_of_its_own(plugin):
    folder = plugin / "conf" / "algorithm" / "advantage"
    folder.mkdir(parents=True)
    (folder / "halved.yaml").write_text("_target_: my_idea.halved\n_partial_: true\nby: 4.0\n")
    with pytest.raises(ConfigError, match="unknown option of algorithm/advantage 'halved'"):
        compose(["algorithm/advantage=halved"])
    cfg = compose(["plugins=[my_idea]", "algorithm/advantage=halved"])
    check(cfg)
    assert build(cfg.algorithm).advantage(8.0, None) == 2.0


def test_a_plugins_study_is_an_experiment(plugin):
    (plugin / "conf" / "experiment").mkdir(parents=True)
    study = plugin / "conf" / "experiment" / "study.yaml"
    study.write_text("# @package _global_\ndefaults:\n  - override /algorithm: rloo\nseed: 5\n")
    cfg = compose(["plugins=[my_idea]", "experiment=study"])
    assert (cfg.choices.algorithm, cfg.seed) == ("rloo", 5)
    assert compose(["plugins=[my_idea]", "experiment=study", "seed=6"]).seed == 6


def test_a_plugin_that_is_not_there_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^plugins: there is no module no_such_idea in /.*$"):
        compose(["plugins=[no_such_idea]"])


def test_a_folder_without_a_module_is_no_plugin(plugin):
    (plugin / "__init__.py").unlink()
    with pytest.raises(ConfigError, match=r"my_idea is a folder without an __init__\.py"):
        compose(["plugins=[my_idea]"])


def test_a_plugin_that_lacks_a_package_says_so_itself(plugin):
    (plugin / "__init__.py").write_text("import no_such_package\n")
    with pytest.raises(ConfigError, match=r"__init__\.py, line 1: .*no_such_package"):
        compose(["plugins=[my_idea]"])


def test_what_the_policy_cannot_say_is_refused_before_any_weight(monkeypatch):
    provided = frozenset({"old_logp", "behaviour_logp"})
    monkeypatch.setattr("tandem.policies.language.policy.PROVIDES", provided)
    said = "algorithm=grpo needs entropy, ref_logp, which model=tiny_lm does not provide"
    with pytest.raises(ConfigError, match=said):
        check(compose(["~recipe"]))


def test_a_number_of_a_reward_needs_no_word_for_its_wrapper():
    cfg = compose(["reward=length", "reward.length.limit=7", "reward.length.weight=2"])
    assert (cfg.reward.length.function.limit, cfg.reward.length.weight) == (7, 2)
    with pytest.raises(
        ConfigError, match=r"^unknown key 'reward\.length\.limt': .*length\.function\.limit'"
    ):
        compose(["reward=length", "reward.length.limt=7"])


def test_a_null_from_which_another_value_is_computed_is_named():
    words = ["model=sd3_5_medium", "model.path=x", "data.path=x", "model.latent_size=null"]
    with pytest.raises(ConfigError, match=r"^model\.latent_size=null: \S+ is computed from it; "):
        to_plain(compose(words))
    words[-1] = "model.adapter.resolution=abc"  # beside model.adapter.width=null, which is right
    with pytest.raises(ConfigError, match="mul takes numbers, got abc"):
        to_plain(compose(words))
