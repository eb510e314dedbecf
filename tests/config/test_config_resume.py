"""A resumed run keeps its identity; only settings that do not define it may change."""

import os
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from tandem.config import ConfigError, check, compose, configuration, resume_config
from tandem.config.plain import to_plain
from tandem.config.recorded_words import list_confirmed
from tandem.launch.initial_weights import warm_configuration
from tandem.launch.preview import fill_in
from tandem.record.secrets import scrub_config


@pytest.fixture(scope="module")
def recorded() -> str:
    return OmegaConf.to_yaml(compose(["algorithm=rloo", "seed=3", "logger=csv"]), resolve=True)


@pytest.fixture
def run_dir(tmp_path, recorded):
    folder = tmp_path / "a run, of=mine"
    folder.mkdir()
    (folder / "config.yaml").write_text(recorded)
    return folder


def record(folder: Path, words: list[str]) -> Path:
    """The directory of a run that these words started."""
    cfg = compose(words)
    fill_in(cfg, folder, words)
    (folder / "config.yaml").write_text(yaml.safe_dump(to_plain(cfg)))
    return folder


def test_a_run_goes_on_as_it_was(run_dir):
    before, after = OmegaConf.load(run_dir / "config.yaml"), resume_config(run_dir, [])
    assert after.resume == after.run_dir == str(run_dir)
    after.resume, after.run_dir = before.resume, before.run_dir
    assert after == before


def test_typed_words_keep_their_interpolations(run_dir):
    """Other seeds of the run are made of them: `${seed}` recorded as 3 would be 3 for all."""
    words = ["data.seed=${seed}", "seed=3"]
    recorded = yaml.safe_load((record(run_dir, words) / "config.yaml").read_text())
    assert recorded["overrides"] == words and recorded["data"]["seed"] == 3
    assert to_plain(resume_config(run_dir, []))["overrides"] == words


def test_the_words_of_a_run_set_the_length_that_it_was_resumed_with(run_dir):
    """Other seeds of the run are made of them."""
    words, again = ["data.seed=${seed}", "iterations=100"], ["micro_batch_size=2", "iterations=400"]
    cfg = resume_config(record(run_dir, words), again)
    fill_in(cfg, run_dir, [f"resume={run_dir}", *again])
    assert to_plain(cfg)["overrides"] == ["data.seed=${seed}", "iterations=400"]


@pytest.mark.parametrize(
    "name",
    ["run.lock", "samples", "model/config.json", "checkpoints", "wandb", "wandb/run-1/files/a"],
)
def test_nothing_is_written_where_a_link_in_a_run_leads(run_dir, tmp_path, name):
    (run_dir / name).parent.mkdir(parents=True, exist_ok=True)
    (run_dir / name).symlink_to(tmp_path / "mine")
    with pytest.raises(ConfigError, match=rf"{name} is a link to .*/mine; replace it with a copy"):
        resume_config(run_dir, [])


def test_a_config_that_is_a_link_is_refused_unread(run_dir, tmp_path):
    (run_dir / "config.yaml").rename(tmp_path / "mine")
    (tmp_path / "mine").write_text("[no mapping")
    (run_dir / "config.yaml").symlink_to(tmp_path / "mine")
    with pytest.raises(ConfigError, match=r"config\.yaml is a link to "):
        resume_config(run_dir, [])


@pytest.mark.parametrize(
    ("name", "make"),
    [("metrics.jsonl", Path.mkdir), ("samples/a.jsonl", os.mkfifo), ("run.lock", os.mkfifo)],
)
def test_what_is_no_plain_file_is_refused_unopened(run_dir, name, make):
    (run_dir / name).parent.mkdir(exist_ok=True)
    make(run_dir / name)
    with pytest.raises(ConfigError, match=rf"\({name} is not a regular file\)"):
        resume_config(run_dir, [])


def test_a_lock_that_is_another_file_too_is_refused(run_dir, tmp_path):
    (tmp_path / "mine").write_text("dear")
    os.link(tmp_path / "mine", run_dir / "run.lock")
    with pytest.raises(ConfigError, match=r"run\.lock is a hard link to a file elsewhere; delete"):
        resume_config(run_dir, [])


def test_a_run_with_the_links_that_wandb_makes_goes_on(run_dir, tmp_path):
    logs = run_dir / "wandb" / "offline-run-1" / "logs"
    logs.mkdir(parents=True)
    (run_dir / "wandb" / "latest-run").symlink_to("offline-run-1")
    (run_dir / "wandb" / "debug.log").symlink_to("offline-run-1/logs/debug.log")
    (logs / "debug-core.log").symlink_to(tmp_path / "cache" / "core-debug.log")
    assert resume_config(run_dir, []).seed == 3


@pytest.mark.parametrize(
    "value",
    [
        "${power:9999999,9999999}",
        "${seed}",
        "<${answer}>",
        "${a b",
        "\\\\${seed}\\",
    ],
)
def test_an_interpolation_in_a_run_is_text(run_dir, value):
    """A run is recorded with its values: what looks like an interpolation was typed as text."""
    raw = yaml.safe_load((run_dir / "config.yaml").read_text()) | {"sweep_dir": value}
    (run_dir / "config.yaml").write_text(yaml.safe_dump(raw))
    assert check(resume_config(run_dir, [])).sweep_dir == value


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("model", None, "it cannot be read as a run .*model is not a mapping"),
        ("algorithm", [1], "it cannot be read as a run .*algorithm is not a mapping"),
        ("choices", {}, "it cannot be read as a run .*choices lacks model"),
        ("optimizer._target_", ["a"], r"optimizer: \['a'\] is not among the targets"),
    ],
)
def test_what_was_tampered_with_in_another_shape_is_one_line(run_dir, key, value, said):
    cfg = OmegaConf.load(run_dir / "config.yaml")
    OmegaConf.update(cfg, key, value, merge=False)
    (run_dir / "config.yaml").write_text(OmegaConf.to_yaml(cfg))
    with pytest.raises(ConfigError, match=said):
        check(resume_config(run_dir, []))


def test_what_may_change_changes(run_dir):
    overrides = ["iterations=7", "checkpoints.keep=9", "++evaluation.samples=2", "evaluate=true"]
    settings = check(resume_config(run_dir, [*overrides, "trainer=cpu", "logger=[wandb]"]))
    assert (settings.iterations, settings.checkpoints.keep, settings.evaluate) == (7, 9, True)
    assert settings.evaluation.samples == 2
    assert settings.trainer.accelerator == "cpu"
    assert settings.seed == 3


def test_a_run_ahead_of_training_may_come_closer_to_it(tmp_path):
    served = ["rollout=vllm_server", "rollout.engine.url=http://127.0.0.1:9", "model=hf"]
    ahead = ["rollout.order=ready", "rollout.staleness=2", "rollout.ahead=2", "model.path=org/m"]
    run = record(tmp_path, ["algorithm=grpo", "data=sort_letters", *served, *ahead])
    for staleness, ahead in ((1, 1), (0, "null")):
        cfg = resume_config(run, [f"rollout.staleness={staleness}", f"rollout.ahead={ahead}"])
        check(cfg)
        assert cfg.rollout.staleness == staleness
    with pytest.raises(
        ConfigError, match=r"rollout\.staleness, rollout\.ahead, and where a server"
    ):
        resume_config(run, ["rollout.order=exact"])


def test_a_run_out_of_memory_may_compute_less_at_once(tmp_path):
    run = record(tmp_path, ["algorithm=grpo", "data=sort_letters", "model=tiny_lm"])
    words = [
        "rollout.max_rows=16",
        "++model.logit_budget=64",
        "++model.gradient_checkpointing=true",
    ]
    cfg = resume_config(run, words)
    assert (cfg.rollout.max_rows, cfg.model.logit_budget) == (16, 64)
    check(cfg)
    chain = record(tmp_path, ["model=tiny_chain"])
    cfg = resume_config(chain, ["rollout.picture.max_rows=16", "model.picture.row_budget=8"])
    assert cfg.rollout.picture.max_rows == 16
    with pytest.raises(ConfigError, match="a run that is resumed keeps it"):
        resume_config(chain, ["rollout.text.max_new_tokens=3"])


def test_a_choice_of_mirrors_takes_the_place_of_the_old_one(run_dir):
    cfg = resume_config(run_dir, ["logger=wandb", "logger.wandb.mode=offline"])
    assert list(cfg.logger) == ["wandb"]
    assert cfg.logger.wandb.mode == "offline"


@pytest.mark.parametrize(
    ("words", "choice"),
    [
        (["model=qwen3_0_6b"], "evaluation=unmasked"),  # the recipe of the default pair is not used
        (
            ["model=qwen3_8b", "trainer.precision=bf16-mixed", "trainer.timeout=7200"],
            "trainer=ddp",
        ),
        (["trainer=ddp", "trainer.devices=2", "+evaluation.rows=3"], "evaluation=unmasked"),
        (["trainer=ddp", "trainer.devices=2", "trainer.offload=[optimizer]"], "trainer=fsdp2"),
        (["model=sd3_5_medium", "data.path=x", "evaluation.every=7"], "evaluation=pictures"),
        (["logger=[csv,wandb]", "logger.wandb.mode=offline"], "logger=wandb"),
        (["logger=[csv,wandb]", "~recipe"], "logger=none"),
    ],
)
def test_a_choice_has_the_numbers_of_a_new_run_with_the_same_words(tmp_path, words, choice):
    group, resumed = choice.partition("=")[0], resume_config(record(tmp_path, words), [choice])
    other = [word for word in words if word.partition("=")[0] != group]
    assert to_plain(resumed)[group] == to_plain(compose([*other, choice]))[group]


def test_a_choice_leaves_out_typed_numbers_that_belong_to_the_old_one(tmp_path):
    run_dir = record(tmp_path, ["logger=wandb", "logger.wandb.mode=offline"])
    assert list(resume_config(run_dir, ["logger=csv"]).logger) == ["csv"]


@pytest.mark.parametrize(
    ("words", "choice", "key", "value"),
    [
        (["trainer.accelerator=gpu"], "trainer=cpu", "trainer.accelerator", "cpu"),
        (["trainer=ddp", "trainer.devices=[4,5]"], "trainer=cpu", "trainer.devices", 1),
        (["trainer=ddp", "trainer.devices=[4,5]"], "trainer=fsdp2", "trainer.devices", [4, 5]),
        (["trainer.strategy=fsdp2", "trainer.devices=2"], "trainer=ddp", "trainer.strategy", "ddp"),
    ],
)
def test_a_number_typed_for_the_old_option_does_not_undo_a_choice(
    tmp_path, words, choice, key, value
):
    cfg = resume_config(record(tmp_path, words), [choice])
    assert OmegaConf.select(cfg, key) == value


@pytest.mark.parametrize("word", ["guards=null", "checkpoints=null", "logger=null"])
def test_a_group_is_not_left_out_without_a_word(tmp_path, word):
    run_dir = record(tmp_path, ["logger=[csv,wandb]"])
    with pytest.raises(ConfigError):
        check(resume_config(run_dir, [word]))


def test_a_word_that_no_longer_composes_is_named_with_what_to_do(tmp_path):
    path = record(tmp_path, []) / "config.yaml"
    raw = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(raw | {"overrides": ["experiment=gone"]}))
    check(resume_config(tmp_path, []))
    with pytest.raises(ConfigError, match=r"^trainer=ddp: .*gone.*; set single numbers instead"):
        resume_config(tmp_path, ["trainer=ddp"])
    with pytest.raises(ConfigError, match=r"^unknown option of trainer"):
        resume_config(tmp_path, ["trainer=dpp"])


def test_the_choice_that_a_run_has_changes_nothing(tmp_path):
    run_dir = record(tmp_path, ["trainer=ddp", "trainer.devices=2"])
    assert resume_config(run_dir, ["trainer=ddp"]).trainer == resume_config(run_dir, []).trainer


@pytest.mark.parametrize("word", ["trainer.timeout=${power:9999999,9999999}", "run_dir=<redacted>"])
def test_a_choice_evaluates_no_word_of_a_record(tmp_path, word):
    path = record(tmp_path, ["model=qwen3_8b"]) / "config.yaml"
    raw = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(raw | {"overrides": [*raw["overrides"], word]}))
    trainer = check(resume_config(tmp_path, ["trainer=cpu"])).trainer
    assert (trainer.timeout, trainer.float32_matmul_precision) == (1800, "high")


def test_a_choice_is_recorded(run_dir):
    """A message about it names it."""
    assert resume_config(run_dir, ["trainer=cpu"]).choices.trainer == "cpu"
    with pytest.raises(ConfigError, match=r"^evaluation=pictures does not .*; set evaluation=answ"):
        check(resume_config(run_dir, ["evaluation=pictures"]))


def test_a_number_counts_before_or_after_the_choice_that_has_it(run_dir):
    words = ["evaluation.every=7", "evaluation=answers"]
    for given in (words, words[::-1]):
        assert resume_config(run_dir, given).evaluation.every == 7


def test_one_of_several_mirrors_is_chosen(tmp_path):
    cfg = compose(["logger=[csv,wandb]"])
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(cfg, resolve=True))
    assert list(resume_config(tmp_path, ["logger=csv"]).logger) == ["csv"]
    assert list(resume_config(tmp_path, ["logger=[wandb,csv]"]).logger) == ["wandb", "csv"]


@pytest.mark.parametrize(
    "override",
    [
        "seed=4",
        "algorithm=grpo",
        "algorithm/loss=ppo",
        "evaluation/solver=euler",
        "optimizer.lr=1",
        "~recipe",
        "group_size=2",
        "model.path=x",
        "data=jsonl",
        "plugins=[x]",
        "continue_from=x",
    ],
)
def test_what_would_make_it_another_run_is_refused(run_dir, override):
    with pytest.raises(ConfigError) as refused:
        resume_config(run_dir, [override])
    assert str(refused.value).startswith(f"{override}: a run that is resumed keeps it; only iter")


@pytest.mark.parametrize(
    ("override", "answer"),
    [
        ("checkpoints.kep=1", "unknown key 'checkpoints.kep': did you mean 'checkpoints.keep'?"),
        ("prompt_per_step=3", "unknown key 'prompt_per_step': did you mean 'prompts_per_step'?"),
        ("+x=1", "unknown key 'x': "),
        ("guards.new=1", "unknown key 'guards.new': there are first_update_ratio, "),
        ("trainer=gpu", "trainer=gpu: trainer=auto takes a GPU if there is one"),
        (
            "iterations=1,2",
            "iterations=1,2: several values need -m (a sweep), and a resumed run has",
        ),
        (
            "trainer.devices=1,2",
            "trainer.devices=1,2: several values need -m (a sweep), and a resum",
        ),
    ],
)
def test_a_misspelt_change_is_named(run_dir, override, answer):
    with pytest.raises(ConfigError) as refused:
        resume_config(run_dir, [override])
    assert str(refused.value).startswith(answer)


def test_a_resumed_run_stays_in_its_folder(run_dir):
    assert resume_config(run_dir, [f"run_dir='{run_dir}'"]).run_dir == str(run_dir)
    with pytest.raises(
        ConfigError, match=r"run_dir=copy: a run that is resumed keeps it; .*; continue_from="
    ):
        resume_config(run_dir, ["run_dir=copy"])


def test_a_configuration_that_was_tampered_with_is_checked_like_any_other(run_dir):
    path = run_dir / "config.yaml"
    cfg = OmegaConf.load(path)
    cfg.data = {"_target_": "os.system", "command": "true"}
    path.write_text(OmegaConf.to_yaml(cfg))
    with pytest.raises(ConfigError, match=r"^data: os\.system is not among"):
        check(resume_config(run_dir, []))
    cfg.plugins = ["torch"]
    path.write_text(OmegaConf.to_yaml(cfg))
    with pytest.raises(ConfigError, match=r"^plugins: the run names torch, and .* is not what"):
        resume_config(run_dir, [])


def test_a_recorded_keyword_that_its_function_no_longer_takes_comes_with_the_next_step(run_dir):
    path = run_dir / "config.yaml"
    cfg = OmegaConf.load(path)
    cfg.algorithm.loss.margin = 0.1  # as a loss took it when the run was recorded
    path.write_text(OmegaConf.to_yaml(cfg))
    with pytest.raises(ConfigError) as refused:
        check(resume_config(run_dir, []))
    said = str(refused.value)
    assert said.startswith("unknown key 'algorithm.loss.margin': ") and "\n" not in said
    assert f"rename it in {path} too; if not, continue_from={run_dir} starts a new run" in said
    del cfg.algorithm.loss.margin
    path.write_text(OmegaConf.to_yaml(cfg))
    check(resume_config(run_dir, []))  # what it says to do


def test_the_command_line_decides_which_it_is(run_dir):
    assert configuration([f"resume='{run_dir}'"]).seed == 3
    assert configuration(["resume=null"]).seed == 0


def test_a_server_may_have_moved(tmp_path):
    cfg = compose(["reward=http", "reward.http.function.url=http://there:1"])
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(cfg, resolve=True))
    changed = {"url": "http://here:2", "limits.timeout": 9, "retries.count": 0}
    words = [f"reward.http.function.{key}={value}" for key, value in changed.items()]
    function = resume_config(tmp_path, words).reward.http.function
    assert changed == {key: OmegaConf.select(function, key) for key in changed}
    assert resume_config(tmp_path, ["reward.http.url=http://here:3"]).reward.http.function.url == (
        "http://here:3"  # as a new run may be told
    )
    with pytest.raises(ConfigError, match=r"a run that is resumed keeps it.* where a server is"):
        resume_config(tmp_path, ["reward.http.weight=2"])


def test_the_server_of_an_environment_may_have_moved(tmp_path):
    cfg = compose(["environment=openenv", "environment.world.url=http://there:1"])
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(cfg, resolve=True))
    moved = resume_config(tmp_path, ["environment.world.url=[http://here:2]"])
    assert moved.environment.world.url == ["http://here:2"]
    with pytest.raises(ConfigError, match=r"a run that is resumed keeps it"):
        resume_config(tmp_path, ["environment.world.fields.action=text"])


@pytest.mark.parametrize(
    ("change", "sign"),
    [
        ({"replaced": None}, "lacks replaced"),
        ({"model": {"sampling": {"max_new_tokens": 11}}}, r"has model\.sampling"),
        ({"model": {"trained": {"objective": "policy_gradient"}}}, r"has model\.trained"),
    ],
)
def test_a_run_of_an_older_version_is_refused_in_one_line(run_dir, change, sign):
    path = run_dir / "config.yaml"
    cfg = OmegaConf.merge(OmegaConf.load(path), change)
    if cfg.replaced is None:
        del cfg["replaced"]
    OmegaConf.save(cfg, path)
    with pytest.raises(ConfigError, match=rf"^resume=.*an older version .*{sign}; .*manifest"):
        resume_config(run_dir, [])


@pytest.fixture
def hiding(run_dir):
    """A run whose record hides two values of a reward."""
    own = {"token": "a", "note": "ask by sk-abc123abc123abc", "words": ["password=b", "c"]}
    path = run_dir / "config.yaml"
    cfg = OmegaConf.merge(OmegaConf.load(path), {"reward": {"own": own}})
    path.write_text(scrub_config(OmegaConf.to_yaml(cfg), {}))
    return run_dir


def test_a_value_that_the_record_hides_is_asked_for_and_never_made_up(hiding):
    keys = ["reward.own.token", "reward.own.note", "reward.own.words"]
    given = [f"{keys[0]}=a", f"{keys[1]}='ask by'", f"{keys[2]}=['password=b',c]"]
    for count in range(3):
        asked = " ".join(f"{key}=..." for key in keys[count:])
        with pytest.raises(ConfigError, match=rf"^resume=.*; give {asked} on the command line$"):
            resume_config(hiding, given[:count])
    own = resume_config(hiding, given).reward.own
    assert own == {"token": "a", "note": "ask by", "words": ["password=b", "c"]}


def test_the_warm_start_has_the_value_that_is_given_again_for_a_redacted_one(tmp_path):
    url, other = (f"rollout.engine.url=http://me:{word}@host:8000" for word in ("pw", "pw2"))
    words = ["rollout=vllm_server", url, "+reward.exact_match.password=abc", "data.held_out=9"]
    words += ["reward=exact_match", "warm_start=['algorithm=sft']"]
    path = record(tmp_path, words) / "config.yaml"
    path.write_text(scrub_config(path.read_text(), {}))
    assert "rollout.engine.url=http://<redacted>@host:8000" in path.read_text()
    cfg = resume_config(tmp_path, [other, "reward.exact_match.password=def"])
    again = ["rollout=vllm_server", "rollout.engine.url='http://me:pw2@host:8000'"]
    again += ["+reward.exact_match.password='def'", *words[3:]]
    assert to_plain(cfg)["overrides"] == again
    assert warm_configuration(cfg).rollout.engine.url == "http://me:pw2@host:8000"


def test_a_job_repeats_of_a_mapping_only_what_the_record_hides(tmp_path):
    words = ["reward=exact_match", "+reward.exact_match.own={token:abc,depth:3,of:{secret:d}}"]
    path = record(tmp_path, words) / "config.yaml"
    path.write_text(scrub_config(path.read_text(), {}))
    again = [f"reward.exact_match.own.{x}" for x in ("token='abc'", "of.secret='d'")]
    assert list_confirmed(words) == again
    assert resume_config(tmp_path, again).reward.exact_match.function.own == {
        "token": "abc", "depth": 3, "of": {"secret": "d"},
    }  # fmt: skip


def test_a_redacted_word_of_what_the_run_no_longer_has_is_left_out(tmp_path):
    words = ["trainer=ddp", "+hydra.job.env_set.A=sk-abc123abc123abc", "seed=3"]
    path = record(tmp_path, words) / "config.yaml"
    path.write_text(scrub_config(path.read_text(), {}))
    assert to_plain(resume_config(tmp_path, []))["overrides"] == ["trainer=ddp", "seed=3"]


@pytest.mark.parametrize(
    ("word", "name"),
    [("checkpoints={evry:3}", "checkpoints.evry"), ("+guards={x:1,non_finite:stop}", "guards.x")],
)
def test_a_key_in_braces_that_a_run_lacks_was_typed_and_not_recorded(run_dir, word, name):
    with pytest.raises(ConfigError, match=rf"^unknown key '{name}'"):
        resume_config(run_dir, [word])
    assert resume_config(run_dir, ["checkpoints={every:3}"]).checkpoints.every == 3


def test_what_the_record_hides_may_be_given_and_nothing_else_of_its_part(hiding):
    with pytest.raises(ConfigError, match=r"^group_size=2: a run that is resumed keeps it"):
        resume_config(hiding, ["reward.own.token=a", "group_size=2"])


def test_a_number_whose_name_only_begins_like_a_secret_goes_on_as_it_was(run_dir):
    own = {"cookie_words": "abc", "author": "x", "authentic": "y", "credential_words": "z"}
    path = run_dir / "config.yaml"
    cfg = OmegaConf.merge(OmegaConf.load(path), {"reward": {"own": own}})
    path.write_text(scrub_config(OmegaConf.to_yaml(cfg), {}))
    assert resume_config(run_dir, []).reward.own == own


def test_a_key_of_a_part_that_is_no_more_is_answered_with_its_new_name():
    with pytest.raises(ConfigError, match=r"was renamed to rollout\.temperature=1$"):
        compose(["model.sampling.temperature=1"])
