"""What Tandem reads of a command line before Hydra does."""

import re
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from tandem.config import ConfigError, compose, configuration, loading
from tandem.config.arguments import list_left_out_keys
from tandem.config.composition import conf_folder
from tandem.config.help import everything, page
from tandem.config.help_topics import find_key
from tandem.config.options_in_use import list_options_in_use
from tandem.config.plain import FILLED_IN
from tandem.config.refusals import refusals
from tandem.config.resume import find_resumed_run
from tandem.config.values import list_keys
from tandem.launch.command_line import help_of, preflight
from tandem.sweep.swept_values import TRIES, combine
from tandem.sweep.words import Sweep, parse_sweep

ROOT = Path(__file__).parents[2]


def test_a_value_is_tried_beside_each_partner_once_before_any_of_them_twice():
    swept = {"a": ["1", "2"], "b": ["3", "4", "5"], "seed": ["0", "1"]}
    first = [["a=2", f"b={b}", "seed=0"] for b in (3, 4, 5)]
    assert combine(swept, "a=2") == [tuple(row) for row in first]
    assert combine(swept, "seed=1")[:3] == [
        ("a=1", "b=3", "seed=1"), ("a=2", "b=4", "seed=1"), ("a=1", "b=5", "seed=1"),
    ]  # fmt: skip
    many = {key: [str(x) for x in range(20)] for key in "abc"}
    assert len({*combine(many, "a=7")}) == TRIES


def test_a_sweep_over_a_pattern_names_the_options():
    def values(words):
        return parse_sweep([words], multirun=True).swept["optimizer"]

    assert values("optimizer=glob(s*)") == ["sgd"]
    assert values("optimizer=glob(a*)") == ["adam", "adamw", "adamw_8bit"]
    with pytest.raises(ConfigError, match=r"^optimizer=glob\(x\*\): gives no values$"):
        values("optimizer=glob(x*)")


STARTS = (  # in any order of values
    "-m algorithm=grpo,nft model=tiny_lm,tiny_flow",
    "-m algorithm=grpo,nft model=tiny_flow,tiny_lm",
    "sweep=[clip_ratio,algorithms]",
)


@pytest.mark.parametrize("line", STARTS)
def test_a_sweep_starts_if_each_value_can_run_beside_some_other(line):
    assert isinstance(preflight(["train.py", *line.split()]), Sweep)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["-m", "algorithm=rloo,grop"], "unknown option of algorithm 'grop': did you mean 'grpo'?"),
        (["-m", "seed=0,one"], "seed: expected int, got 'one'"),
        (
            ["-m", "resume=runs/x", "seed=0,1"],
            "resume: -m starts runs; repeat the command of a sweep to continue its unfinished runs",
        ),
        (
            ["-m", "run_dir=x", "seed=0,1"],
            "run_dir: the runs of a sweep share one folder; set sweep_dir",
        ),
        (["-m", "hydra.sweep.dir=x", "seed=0,1"], "hydra.sweep.dir: set sweep_dir instead"),
        (
            ["-m", "+hydra.sweeper.params.seed='0,1'"],
            "hydra.sweeper.params.seed: write swept values as they are, e.g. seed=0,1",
        ),
        (
            ["-m", "hydra.sweeper.params={seed:'0,1'}"],
            "hydra.sweeper.params: write swept values as they are, e.g. seed=0,1",
        ),
        (
            ["-m", "sweep=seeds,group_size"],
            "sweep=seeds,group_size: write sweep=[seeds,group_size]",
        ),
        (
            ["-m", "iterations=5", "iterations=6", "seed=0,1"],
            "iterations=5 iterations=6: give each key once",
        ),
        (
            ["-m", "guards.no_signal=1", "guards={no_signal:2}", "seed=0,1"],
            "guards.no_signal=1 guards={no_signal:2}: give each key once",
        ),
        (["sweep=sedes"], "unknown option of sweep 'sedes': did you mean 'seeds'?"),
        (
            ["sweep=seeds", "group_size=4,one"],
            "group_size: expected int, got 'one'",
        ),
        (["--seed=3"], "--seed=3: write the option as seed=3, without dashes"),
        (
            ["--experimental-rerun", "x"],
            "--experimental-rerun: conf/ is the only source; see plugins=",
        ),
        (["--config-name", "x"], "--config-name: conf/ is the only source; see plugins="),
        (
            ["--cfg", "jobs"],
            "argument --cfg/-c: invalid choice: 'jobs' (choose from 'job', 'hydra', 'all')",
        ),
    ],
)
def test_a_wrong_command_line_is_refused_before_hydra(words, answer):
    with pytest.raises(ConfigError) as refused:
        preflight(["train.py", *words])
    assert str(refused.value) == answer


def test_a_refusal_is_one_line_and_exit_code_2(capsys):
    with pytest.raises(SystemExit) as left, refusals():
        preflight(["train.py", "sede=1"])
    assert left.value.code == 2
    assert capsys.readouterr() == ("", "unknown key 'sede': did you mean 'seed'?\n")


def test_a_run_is_composed_once_and_keeps_the_words_that_began_it(monkeypatch):
    composed, create = [], loading.merge_files
    monkeypatch.setattr(loading, "merge_files", lambda *given: composed.append(1) or create(*given))
    run = preflight(["train.py", "iterations=2", "hydra.verbose=false", "algorithm=rloo"])
    assert len(composed) == 1
    assert run.overrides == run.cfg.overrides == ["iterations=2", "algorithm=rloo"]
    assert (run.settings.iterations, run.cfg.choices.algorithm) == (2, "rloo")
    assert "hydra" not in run.cfg


def test_what_is_asked_of_hydra_reaches_it_as_it_is():
    words = ["train.py", "--info", "defaults", "seed=1"]
    assert preflight(words) == words


def test_the_configuration_that_is_printed_is_the_one_that_runs(capsys):
    with pytest.raises(SystemExit) as left:
        preflight(["train.py", "algorithm=dapo", "model=qwen3_8b", "--cfg", "job", "--resolve"])
    assert left.value.code == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["choices"]["algorithm"] == "dapo"
    assert printed["group_size"] == 16
    assert printed["algorithm"]["loss"]["clip_high"] == 0.28
    assert "${" not in str(printed)


@pytest.mark.parametrize(
    ("key", "text"), [("seed", "3\n"), ("checkpoints", "every: 20\nkeep: 2\n")]
)
def test_a_part_of_the_configuration_is_printed_by_its_key(capsys, key, text):
    with pytest.raises(SystemExit) as left:
        preflight(["train.py", "seed=3", "--cfg", "job", "--package", key])
    assert (left.value.code, capsys.readouterr().out) == (0, text)


def test_a_part_that_is_not_there_is_not_printed():
    with pytest.raises(ConfigError, match="unknown key 'checkpoint': did you mean 'checkpoints'"):
        preflight(["train.py", "--cfg", "job", "--package", "checkpoint"])


@pytest.fixture(scope="module")
def recorded() -> str:
    return OmegaConf.to_yaml(compose(["algorithm=rloo", "logger=wandb"]), resolve=True)


@pytest.fixture
def run_dir(tmp_path, recorded):
    folder = tmp_path / "it's a run, of=mine"
    folder.mkdir()
    (folder / "config.yaml").write_text(recorded)
    return folder


def quote(folder: Path) -> str:
    return "'" + str(folder).replace("'", "\\'") + "'"


def test_a_resumed_run_keeps_its_directory(run_dir):
    words = [f"resume={quote(run_dir)}", "iterations=9", "logger.wandb.mode=offline"]
    run = preflight(["train.py", *words])
    assert run.job.hydra.run.dir == run.cfg.run_dir == str(run_dir)
    assert (run.settings.iterations, run.cfg.logger.wandb.mode) == (9, "offline")
    rank = preflight(["train.py", *words, 'hydra.run.dir="elsewhere"', "hydra.job.name=rank_1"])
    assert rank.job.hydra.run.dir == str(run_dir)
    assert rank.overrides == words


def test_a_resumed_run_prints_its_own_configuration(run_dir, capsys):
    with pytest.raises(SystemExit):
        preflight(["train.py", f"resume={quote(run_dir)}", "--cfg", "job"])
    assert yaml.safe_load(capsys.readouterr().out)["choices"]["algorithm"] == "rloo"


def test_help_is_a_page_of_forty_lines():
    lines = page(conf_folder(), {}).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    groups = {path.name for path in conf_folder().iterdir() if path.is_dir()} - {"hydra", "recipe"}
    assert groups <= {line.split("=")[0].strip() for line in lines}


@pytest.mark.parametrize("choice", ["algorithm=mine", "algorithm=gpro", "algorithm/loss=pppo"])
def test_help_refuses_a_choice_that_does_not_exist_as_composing_does(choice):
    with pytest.raises(ConfigError) as refused:
        compose([choice])
    for topics in ([], ["all"], ["algorithm.loss"]):
        with pytest.raises(ConfigError, match=f"^{re.escape(str(refused.value))}$"):
            help_of([*topics, choice])


def test_help_beside_choices_that_exist_is_the_usual_page():
    assert help_of(["algorithm=dapo,rloo", "model=tiny_flow"]) == help_of([])  # also of a sweep


def test_the_help_of_estimate_is_its_own(capsys):
    with pytest.raises(SystemExit):
        preflight(["train.py", "estimate=true", "--help"])
    said = capsys.readouterr().out
    assert said.startswith("Print the memory that a run takes on each device: tandem estimate")
    lines = said.splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 100
    examples = [line.split()[2:] for line in lines if line.startswith("  tandem estimate")]
    keys = [
        re.split("  +", line.strip())[0].split() for line in lines if re.match("  (m|tr)", line)
    ]
    assert (len(examples), len(keys)) == (4, 6)
    for words in (*examples, *keys):
        assert compose([word for word in words if word != "tandem"])


def test_help_of_a_group_lists_its_options_and_of_a_key_what_it_takes():
    text = help_of(["algorithm.loss", "algorithm=dapo"])
    assert "\n *ppo " in text and "\n  gspo_token " in text
    row = next(row for row in text.splitlines() if "loss.clip_low=" in row)
    assert " ".join(row.split()) == (
        "algorithm.loss.clip_low=0.2 float, must lie in 0 ... 1; "
        "A bad step whose ratio is below 1 - clip_low has no gradient."
    )
    assert text == help_of(["algorithm=dapo", "algorithm/loss"])
    (own,) = (row for row in help_of(["guards"]).splitlines() if ".no_signal=" in row)
    assert own.split(maxsplit=1)[1] == (
        "int, must be positive; iterations in a row with nothing to learn, after which the run ends"
    )


def test_help_of_an_empty_word_is_refused():
    with pytest.raises(ConfigError, match="unknown group or key ''"):
        help_of([""])


def test_help_knows_a_key_that_is_at_its_default_and_a_group_that_nothing_is_chosen_of():
    assert help_of(["reward.exact_match.weight"]).startswith(
        "reward.exact_match.weight=1.0\n\nmeaning     factor in the sum of rewards; 0: measured, "
        "never trained on\ntakes       float\ndefault     1.0\nread by     tandem.rewards.Reward\n"
    )
    assert "--help recipe/tiny_lm\n" in help_of(["recipe"])
    assert help_of(["experiment"]).startswith("experiment=... has 0 options")


@pytest.mark.parametrize(("key", "default"), [("trainer.offload", "[]"), ("algorithm.ema", "{}")])
def test_help_shows_a_default_that_is_made_for_each_call(key, default):
    text = help_of([key])
    assert "factory" not in text
    assert default in text


def test_help_of_a_key_says_what_it_means_who_set_it_and_who_reads_it():
    rows = help_of(["algorithm.loss.clip_high"]).splitlines()
    assert rows[:7] == [
        "algorithm.loss.clip_high=0.28",
        "",
        "meaning     A good step whose ratio is above 1 + clip_high has no gradient.",
        "takes       float, must not be negative",
        "default     0.2",
        "set by      conf/recipe/tiny_lm/grpo.yaml: 0.28",
        "read by     algorithm/loss=ppo, tandem.losses.policy.ppo",
    ]
    assert rows[7].startswith("also in     algorithm/loss=clip_cov, ")
    assert "presets     0.28 x dynamics.clip_scale in algorithm=dance_grpo, dapo, mix_grpo;" in (
        "\n".join(rows)
    )
    assert "  PPO, GRPO, Dr. GRPO and DAPO, which differ only in advantage," in "\n".join(rows)
    assert max(map(len, rows)) <= 100 and len(rows) <= 40


@pytest.mark.parametrize(
    ("asked", "row"),
    [
        (
            "guards.no_signal",
            "meaning     iterations in a row with nothing to learn, after which the run ends",
        ),
        ("guards.no_signal", "on resume   may change"),
        (
            "reward.format.function.pattern reward=format",
            "takes       str, must be a regular expression",
        ),
        ("algorithm.loss.between algorithm=clip_cov", "takes       [float, float], must rise"),
        ("seed seed=3", "set by      the command line: 3"),
        ("seed", "on resume   keeps its value"),
        ("group_size", "set by      conf/recipe/tiny_lm/grpo.yaml: 8"),
        ("group_size ~recipe", "set by      conf/algorithm/grpo.yaml: 4"),
        # The recipe's clip is of the loss that this one replaces.
        ("algorithm.loss.clip_low algorithm/loss=gspo", "default     0.0003"),
        (
            "optimizer.eps",
            "meaning     term added to the denominator to improve numerical stability",
        ),
        # Of a file that the model's file includes at another place.
        (
            "model.picture.negative_prompt model=tiny_chain",
            "meaning     negative prompt of guidance for prompts without one; may be empty; "
            "null: none",
        ),
        # Of a record in a mapping, and of a name that the user gave.
        (
            "algorithm.segments.picture.preference_scale model=tiny_chain",
            "meaning     factor of preference temperatures",
        ),
        (
            "algorithm.segments.picture.lr model=tiny_chain",
            "takes       float or null, must be positive",
        ),
        (
            "reward.judge.function.chat.body.max_tokens reward=judge "
            "reward.judge.function.chat.url=http://127.0.0.1:8000/v1 "
            "reward.judge.function.chat.model=judge",
            "meaning     one of body: further fields of a request",
        ),
    ],
)
def test_a_row_of_the_help_of_a_key(asked, row):
    assert row in help_of(asked.split()).splitlines()


def test_a_number_of_a_replaced_part_has_no_file_that_set_it():
    assert "set by" not in help_of(["algorithm.loss.clip_low", "algorithm/loss=gspo"])


# What only goes on from another key, or leaves out what the key is.
PART = re.compile(r"(of|or|and|likewise|to|from|for|with|its|at)\b", re.IGNORECASE)
SERVED = ["model=hf", "model.path=x", "data=jsonl", "data.path=x", "rollout=vllm_server"]


@pytest.mark.parametrize("asked", [[], ["model=tiny_flow", "algorithm=flow_grpo"], SERVED])
def test_every_key_of_the_embedded_runs_and_of_a_served_one_has_a_meaning_of_its_own(asked):
    cfg = configuration(asked)
    options, conf = list_options_in_use(asked, cfg), conf_folder()
    tree = OmegaConf.to_container(cfg, resolve=True)
    names = [*list_keys(cfg), *list_left_out_keys(cfg)]
    places = [name for name in names if name.split(".")[0] not in FILLED_IN]
    keys = [find_key(name, tree, options, conf) for name in places]
    assert len(keys) > 150
    assert [key.name for key in keys if not (key.said or isinstance(key.value, dict))] == []
    assert {key.name: key.said for key in keys if PART.match(key.said)} == {}


def test_help_of_a_key_of_another_option_names_the_options_that_have_it():
    with pytest.raises(ConfigError, match=r"'data.path': it belongs to data=folder, .*jsonl or"):
        help_of(["data.path"])


@pytest.mark.parametrize(
    ("key", "bringing"),
    [
        ("algorithm.ema.decay", "algorithm/ema=copied, linear or ramp"),  # of a group, null here
        (
            "dynamics.schedule.train_steps",  # absent here
            "dynamics/schedule=diffusers_default, and this run has no dynamics.schedule",
        ),
        ("rollout.engine.page_size", "rollout=paged"),  # of a part within an option
        ("rollout.engine.url", "rollout=sglang_server, vllm_colocated or vllm_server"),  # ??? there
        ("algorithm.networks.fake.lr", "algorithm=dmd2, tdm or tdm_r1"),  # in terms of another key
    ],
)
def test_help_of_a_key_of_a_part_that_is_not_chosen_names_the_choice(key, bringing):
    with pytest.raises(ConfigError) as refused:
        help_of([key])
    assert str(refused.value) == f"unknown key '{key}': it comes with {bringing}"


@pytest.mark.parametrize(
    ("asked", "starred"),
    [
        ("reward data=maze", "episode"),  # a choice of the dataset
        ("dynamics/logp model=tiny_flow algorithm=flow_grpo", "unscaled"),  # by the recipe
        ("dynamics/logp model=tiny_flow algorithm=flow_grpo ~recipe", "gaussian"),
        ("dynamics/stochastic model=tiny_flow algorithm=dance_grpo", "random_steps"),
        ("algorithm/timestep_sampling", None),  # left out: tokens have none
    ],
)
def test_the_star_of_help_marks_the_option_that_is_used(asked, starred):
    rows = help_of(asked.split()).splitlines()
    assert [row[2:].split()[0] for row in rows if row.startswith(" *")] == [starred] * bool(starred)
    assert ("none is chosen here" in rows[0]) == (starred is None)


def test_help_of_a_key_with_keys_of_its_own_says_how_to_list_them():
    named = "its keys: --help reward.exact_match"
    assert named in help_of(["reward"])
    assert "anything" not in help_of(["reward"])
    assert named not in help_of([named.rpartition(" ")[2]])


def test_help_offers_no_key_that_the_command_line_refuses():
    """The seed of a stream is set by its caller."""
    assert "data.curriculum.floor=" in help_of(["data.curriculum", "data=sort_ladder"])
    assert ".seed=" not in help_of(["data.curriculum", "data=sort_ladder"])


def test_help_of_what_does_not_exist_names_the_nearest():
    with pytest.raises(ConfigError, match=r"did you mean 'algorithm\.loss\.clip_high'"):
        help_of(["algorithm.loss.clip_hihg"])
    with pytest.raises(ConfigError, match=r"^(?!.*(choices|_target_))"):
        help_of(["algorithm.nothing"])


def test_version_is_that_of_tandem(capsys):
    with pytest.raises(SystemExit):
        preflight(["train.py", "--version"])
    assert capsys.readouterr().out == f"Tandem {metadata.version('tandem')}\n"


def test_help_names_every_option_and_every_key():
    text = everything(conf_folder(), {})
    for path in conf_folder().rglob("*.yaml"):
        hidden = path.name.startswith("_") or path.name == "config.yaml"
        assert hidden or f"{path.stem} " in text, path
    assert " _base " not in text
    assert "\n  algorithm/ema@algorithm.ema.old\n" in text
    assert "\n  algorithm/ema@algorithm.ema.sampling (of algorithm=crd)\n" in text
    assert "\n  algorithm/ema\n" not in text
    assert all(f"\n  {key}:" in text for key in ("seed", "evaluation", "plugins", "dry_run"))
    assert text.count("  python train.py") == 5
    assert max(len(line) for line in text.splitlines()) < 160


@pytest.mark.system
def test_help_needs_no_torch(tmp_path):
    start = time.perf_counter()
    command = [sys.executable, "-X", "importtime", str(ROOT / "train.py"), "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stdout == page(conf_folder(), {})
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not imported & {"torch", "lightning", "transformers", "numpy"}
    print(f"help took {time.perf_counter() - start:.2f} s")


def test_a_run_directory_that_is_a_file_is_refused_before_hydra_makes_it(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"^run_dir=.*/file is a file; give a directory$"):
        preflight(["train.py", f"run_dir={tmp_path}/file"])


def test_a_home_is_expanded_wherever_a_folder_is_named(tmp_path, monkeypatch):
    """On a command line, which a refusal tells to quote it, and in the file of an experiment."""
    monkeypatch.setenv("HOME", str(tmp_path))
    study = tmp_path / "homely" / "conf" / "experiment"
    study.mkdir(parents=True)
    (tmp_path / "homely" / "__init__.py").touch()
    (study / "home.yaml").write_text("# @package _global_\ncache_dir: ~/cache\n")
    monkeypatch.syspath_prepend(tmp_path)
    words = ["plugins=[homely]", "experiment=home", "run_dir='~/one'", "continue_from='~/two'"]
    run = preflight(["train.py", *words])
    assert run.job.hydra.run.dir == run.cfg.run_dir == f"{tmp_path}/one"
    assert (run.cfg.cache_dir, run.cfg.continue_from) == (f"{tmp_path}/cache", f"{tmp_path}/two")
    sweep = parse_sweep(["seed=0,1", "sweep_dir='~/three'"], multirun=True)
    assert sweep.folder == tmp_path / "three"
    assert find_resumed_run(["resume='~/four'"]) == tmp_path / "four"


def test_the_cache_of_a_resumed_run_may_be_at_home(run_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    resumed = [f"resume={quote(run_dir)}", "cache_dir='~/cache'"]
    assert configuration(resumed).cache_dir == f"{tmp_path}/cache"
