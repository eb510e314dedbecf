"""An untrusted run directory runs no code and sends none of the user's data anywhere."""

import json
import subprocess
import sys
from functools import partial
from importlib.machinery import PathFinder

import pytest
from omegaconf import OmegaConf

from tandem.config import ConfigError, check, compose, configuration, resume_config, trust
from tandem.config.overrides import parse
from tandem.config.plugins import ADMITTED, IMPORTED, hash_modules, load_plugins
from tandem.config.recorded_words import list_confirmed
from tandem.config.resume import remember
from tandem.config.servers import list_elsewhere
from tandem.config.targets import resolve
from tandem.launch import answers
from tandem.launch.initial_weights import check_start, warm_configuration
from tandem.launch.run import admit_address
from tandem.policies.engines.addresses import AddressFile, check_addresses, find_urls

LOUD = "import os\nos.mkdir('canary')\n"
KEY = "reward.judge.function.chat.api_key_env"
URL = "reward.judge.function.chat.url"
JUDGE = ["reward=judge", f"{URL}=https://evil.example/v1", "reward.judge.function.chat.model=m"]
PLAIN = OmegaConf.to_yaml(compose(["algorithm=rloo"]), resolve=True)
JUDGED = OmegaConf.to_yaml(compose(JUDGE), resolve=True)


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    """An empty working directory in which nothing was printed before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(trust, "SAID_VARIABLES", set())
    monkeypatch.setattr(trust, "SAID_KEPT", set())
    monkeypatch.setattr(trust, "SAID_HOSTS", set())
    monkeypatch.setattr(trust, "SAID_STARTS", set())
    monkeypatch.setattr(trust, "SAID_COMMANDS", set())
    yield
    for name in ("loud", "loud.inner"):
        sys.modules.pop(name, None)
        ADMITTED.discard(name)


def run_of(folder, text=PLAIN, **changed):
    """A run directory with this configuration."""
    folder.mkdir(exist_ok=True)
    cfg = OmegaConf.merge(OmegaConf.create(text), changed)
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(cfg))
    (folder / "manifest.json").write_text("{}")
    return folder


def forget_module():
    sys.modules.pop("loud", None)
    ADMITTED.discard("loud")


def serve_from(folder, monkeypatch):
    """A finder for `loud` in a folder, as `pip install -e` makes one."""

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            return PathFinder.find_spec(name, [str(folder)]) if name == "loud" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])


def test_a_foreign_run_imports_nothing(tmp_path):
    run = run_of(tmp_path / "run", plugins=["loud"])
    (tmp_path / "loud.py").write_text(LOUD)
    (run / "model").mkdir()
    (run / "model" / "config.json").write_text("{}")
    said = (
        f"plugins: the run names loud, and {tmp_path}/loud.py is not what you have run before; "
        "read it, and give plugins=[loud] on the command line if it may run"
    )
    asks = [
        lambda: configuration([f"resume={run}"]),
        lambda: configuration([f"resume={run}", "evaluate=true"]),
        lambda: answers.configuration(run),
    ]
    for ask in asks:
        with pytest.raises(ConfigError) as refused:
            ask()
        assert str(refused.value) == said
    assert not (tmp_path / "canary").exists()


def test_the_command_line_confirms_what_a_run_names(tmp_path):
    run = run_of(tmp_path / "run", plugins=["loud"])
    (tmp_path / "loud.py").write_text("")
    assert configuration([f"resume={run}", "plugins=[loud]"]).plugins == ["loud"]
    with pytest.raises(ConfigError, match=r"^plugins=\[other\]: a run that is resumed keeps it"):
        configuration([f"resume={run}", "plugins=[other]"])


def test_a_run_of_ones_own_goes_on_until_its_plugin_changes(tmp_path):
    run = run_of(tmp_path / "run", plugins=["loud"])
    (tmp_path / "loud.py").write_text("x = 1\n")
    remember(compose(["plugins=[loud]"]))
    forget_module()
    assert configuration([f"resume={run}"]).plugins == ["loud"]
    forget_module()
    (tmp_path / "loud.py").write_text("x = 2\n")
    with pytest.raises(ConfigError, match="is not what you have run before"):
        configuration([f"resume={run}"])


def test_the_version_of_a_plugin_is_that_of_the_files_that_were_imported(tmp_path):
    """An edit during a long start, or between two runs of one process, is not what ran."""
    file = tmp_path / "loud.py"
    file.write_text("x = 1\n")
    load_plugins(["loud"])
    first = IMPORTED["loud"]
    file.write_text("x = 22\n")
    load_plugins(["loud"])
    assert IMPORTED["loud"] == first
    forget_module()
    load_plugins(["loud"])
    assert IMPORTED["loud"] not in ("", first)


def test_a_plugin_that_another_finder_knows_has_the_version_of_its_files(tmp_path, monkeypatch):
    """As one installed with `pip install -e`, used from another folder."""
    (tmp_path / "far" / "loud").mkdir(parents=True)
    inner = tmp_path / "far" / "loud" / "inner.py"
    (tmp_path / "far" / "loud" / "__init__.py").write_text("x = 1\n")

    serve_from(tmp_path / "far", monkeypatch)
    found = []
    for text in ("y = 1\n", "y = 22\n"):
        inner.write_text(text)
        forget_module()
        load_plugins(["loud"])
        found.append(IMPORTED["loud"])
    assert len({*found, trust.digest([])}) == 3


def test_a_plugin_that_another_finder_knows_is_asked_about_and_not_called_missing(
    tmp_path, monkeypatch
):
    run = run_of(tmp_path / "run", plugins=["loud"])
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "loud.py").write_text(LOUD)
    serve_from(tmp_path / "far", monkeypatch)
    with pytest.raises(ConfigError) as refused:
        configuration([f"resume={run}"])
    assert str(refused.value) == (
        "plugins: the run names loud, which is installed elsewhere; give plugins=[loud] on the "
        "command line if it may run"
    )
    assert not (tmp_path / "canary").exists()
    assert configuration([f"resume={run}", "plugins=[loud]"]).plugins == ["loud"]
    (tmp_path / "loud").mkdir()  # a package here, without this module
    run_of(tmp_path / "run", plugins=["loud.inner"])
    with pytest.raises(ConfigError, match=r"^plugins: there is no module loud.inner in "):
        configuration([f"resume={run}"])


def test_a_resumed_run_may_choose_an_option_of_its_plugin(tmp_path):
    run, options = run_of(tmp_path / "run", plugins=["loud"]), tmp_path / "loud" / "conf" / "logger"
    options.mkdir(parents=True)
    (tmp_path / "loud" / "__init__.py").write_text("")
    (options / "mine.yaml").write_text("mine: {_target_: loud.Mine}\n")
    cfg = configuration([f"resume={run}", "plugins=[loud]", "logger=mine"])
    assert (list(cfg.logger), cfg.choices.logger) == (["mine"], "mine")


def test_a_package_has_changed_when_one_of_its_modules_has(tmp_path):
    run = run_of(tmp_path / "run", plugins=["loud.inner"])
    (tmp_path / "loud" / "inner").mkdir(parents=True)
    for name in ("__init__.py", "inner/__init__.py", "inner/deep.py"):
        (tmp_path / "loud" / name).write_text("")
    remember(compose(["plugins=[loud.inner]"]))
    for name in ("inner/deep.py", "__init__.py"):
        forget_module()
        ADMITTED.discard("loud.inner")
        (tmp_path / "loud" / name).write_text("x = 2\n")
        with pytest.raises(ConfigError, match="is not what you have run before"):
            configuration([f"resume={run}"])
        (tmp_path / "loud" / name).write_text("")
    assert configuration([f"resume={run}"]).plugins == ["loud.inner"]


@pytest.mark.parametrize("inside", ["", "code"])
def test_nothing_inside_a_run_directory_is_imported(tmp_path, monkeypatch, inside):
    run = run_of(tmp_path / "run", plugins=["loud"])
    (run / inside).mkdir(exist_ok=True)
    (run / inside / "loud.py").write_text(LOUD)
    monkeypatch.chdir(run)
    monkeypatch.syspath_prepend(str(run / inside))
    for ask in (lambda: configuration(["resume=."]), lambda: compose(["plugins=[loud]"])):
        with pytest.raises(ConfigError) as refused:
            ask()
        assert str(refused.value) == (
            f"plugins: loud is in the run directory {run}, from which nothing is imported; read "
            "it, and move it elsewhere to allow it"
        )
    assert not (run / "canary").exists()


OF_A_RUN = {"config.yaml": "choices: {}", "manifest.json": '{"starts": []}'}


@pytest.mark.parametrize("file", OF_A_RUN)
def test_one_file_of_a_run_is_enough_to_be_one(tmp_path, monkeypatch, file):
    (tmp_path / file).write_text(OF_A_RUN[file])
    (tmp_path / "loud.py").write_text(LOUD)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="loud is in the run directory"):
        load_plugins(["loud"])
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("text", ["{}", "defaults: [db]", "a: &a [1]\nb: *a", "- 1", "\x00"])
def test_a_project_may_have_a_configuration_and_a_manifest_of_its_own(tmp_path, monkeypatch, text):
    for file in OF_A_RUN:
        (tmp_path / file).write_text(text)
    (tmp_path / "loud.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    load_plugins(["loud"])
    assert sys.modules["loud"].__file__ == str(tmp_path / "loud.py")


def test_a_run_that_names_a_plugin_puts_no_folder_among_those_of_modules(tmp_path, monkeypatch):
    run = run_of(tmp_path / "run", plugins=["loud"])
    (run / "manifest.json").unlink()
    (run / "torch.py").write_text(LOUD)
    monkeypatch.chdir(run)
    before = [*sys.path]
    with pytest.raises(ConfigError, match="there is no module loud"):
        configuration(["resume=.", "dry_run=true"])
    assert sys.path == before


def test_a_confirmed_plugin_elsewhere_opens_no_other_folder(tmp_path, monkeypatch):
    home, foreign = tmp_path / "home", tmp_path / "foreign"
    home.mkdir()
    foreign.mkdir()
    (home / "loud.py").write_text("")
    monkeypatch.syspath_prepend(str(home))
    remember(compose(["plugins=[loud]"]))
    forget_module()
    monkeypatch.chdir(foreign)
    load_plugins(["loud"], recorded=True)
    assert str(foreign) not in sys.path


@pytest.mark.parametrize("recorded", [False, True])
def test_no_file_beside_a_plugin_stands_in_for_a_library(tmp_path, recorded):
    (tmp_path / "loud.py").write_text("import tabnanny\n")
    (tmp_path / "tabnanny.py").write_text(LOUD)
    sys.modules.pop("tabnanny", None)
    if recorded:
        trust.remember({}, hash_modules(["loud"]))
    load_plugins(["loud"], recorded=recorded)
    assert not (tmp_path / "canary").exists()
    assert sys.path[-1] == str(tmp_path)


def test_a_run_directory_is_not_searched_for_modules(tmp_path, monkeypatch):
    run = run_of(tmp_path / "run")
    (tmp_path / "loud.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(run)
    load_plugins(["loud"])
    assert str(run) not in sys.path


def test_python_m_finds_no_module_in_the_run_directory_that_it_is_started_in(tmp_path):
    run = run_of(tmp_path / "run")
    (run / "omegaconf.py").write_text(LOUD)
    command = [sys.executable, "-m", "tandem.config.help"]
    done = subprocess.run(command, cwd=run, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not (run / "canary").exists()


@pytest.mark.parametrize("changed", [
    {"overrides": ["plugins=[loud]"], "warm_start": ["algorithm=sft"]},
    {"inherited": ["plugins=[loud]"], "warm_start": ["algorithm=sft"]},
    {"warm_start": ["plugins=[loud]", "algorithm=sft"]},
])  # fmt: skip
def test_a_warm_start_names_no_plugin_that_its_run_does_not(tmp_path, changed):
    (tmp_path / "loud.py").write_text(LOUD)
    cfg = configuration([f"resume={run_of(tmp_path / 'run', **changed)}"])
    with pytest.raises(ConfigError, match="is not what you have run before"):
        warm_configuration(cfg)
    assert not (tmp_path / "canary").exists()


WARM = ["algorithm=grpo", "reward=http", "reward.http.url=http://evil.example:8080"]
TYPED = f"warm_start=[{','.join(repr(word) for word in WARM)}]"


def test_the_warm_start_of_a_foreign_run_asks_no_host_that_the_user_has_not_named(tmp_path):
    run = run_of(tmp_path / "run", warm_start=WARM)
    said = (
        r"^warm_start: reward\.http\.function\.url: the run would connect to http://evil\.example"
    )
    for words in ([], ["evaluate=true"]):
        cfg = configuration([f"resume={run}", *words])
        check(cfg)
        with pytest.raises(ConfigError, match=said):
            check_start(cfg)


def test_the_warm_start_of_ones_own_run_goes_on_and_another_is_confirmed_as_a_whole(tmp_path):
    run = run_of(tmp_path / "run", warm_start=WARM)
    remember(warm_configuration(compose([TYPED])))
    trust.SAID_HOSTS.clear()
    check_start(configuration([f"resume={run}"]))
    trust.place().unlink()
    check_start(configuration([f"resume={run}", TYPED]))
    with pytest.raises(ConfigError, match="a run that is resumed keeps it"):
        configuration([f"resume={run}", TYPED.replace("8080", "8081")])


def test_a_target_among_experiments_needs_a_plugin(tmp_path):
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "loud.py").write_text(LOUD + "def f(): ...\n")
    with pytest.raises(ConfigError, match=r"experiments\.loud\.f is not among the targets"):
        resolve("experiments.loud.f", "data")


def test_a_run_sends_no_variable_that_the_user_has_not_named(tmp_path, monkeypatch):
    monkeypatch.setenv("BANK_PASSWORD", "12345678")
    chat = {"judge": {"function": {"chat": {"api_key_env": "BANK_PASSWORD"}}}}
    run = run_of(tmp_path / "run", JUDGED, reward=chat)
    with pytest.raises(ConfigError) as refused:
        check(configuration([f"resume={run}"]))
    assert str(refused.value) == (
        f"{KEY}=BANK_PASSWORD: the variable would be sent to https://evil.example, and you named "
        f"neither; give {KEY}=BANK_PASSWORD on the command line if that is right"
    )
    check(configuration([f"resume={run}", f"{KEY}=BANK_PASSWORD"]))


def test_a_run_asks_no_host_that_the_user_has_not_named(tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    run = run_of(tmp_path / "run", JUDGED)
    with pytest.raises(
        ConfigError, match=rf"^{URL}: the run would connect to https://evil\.example, which you"
    ):
        check(configuration([f"resume={run}"]))
    check(configuration([f"resume={run}", f"{URL}=https://mine.example/v1"]))


ENTITY = "logger.wandb.entity"


def test_a_run_is_copied_to_no_account_that_the_user_has_not_named(tmp_path):
    words = ["algorithm=rloo", "logger=wandb"]
    run = run_of(
        tmp_path / "run", OmegaConf.to_yaml(compose([*words, f"{ENTITY}=x"]), resolve=True)
    )
    for given in ([], ["logger=wandb"]):
        trust.SAID_HOSTS.clear()
        with pytest.raises(ConfigError) as refused:
            check(configuration([f"resume={run}", *given]))
        assert str(refused.value) == (
            f"{ENTITY}: the run would connect to wandb:x, which you have not named; give "
            f"{ENTITY}=... on the command line if that is right"
        )
    for given in (f"{ENTITY}=x", f"{ENTITY}=y", f"{ENTITY}=null", "logger.wandb.mode=offline"):
        trust.SAID_HOSTS.clear()
        check(configuration([f"resume={run}", given]))
    trust.SAID_HOSTS.clear()
    remember(compose([*words, f"{ENTITY}=x"]))  # as a run of this user did
    check(configuration([f"resume={run}"]))
    assert list_confirmed([*words, f"{ENTITY}=x"]) == [f"{ENTITY}=x"]


def test_what_a_run_sent_it_sends_when_it_goes_on_and_to_nobody_else(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-12345678")
    cfg = compose(JUDGE)
    check(cfg)
    remember(cfg)
    trust.SAID_HOSTS.clear()
    run = run_of(tmp_path / "run", JUDGED)
    check(resume_config(run, []))
    text = JUDGED.replace("evil.example", "other.example")
    with pytest.raises(ConfigError, match=r"would be sent to https://other\.example"):
        check(resume_config(run_of(tmp_path / "run", text), []))


def test_a_recipe_sends_no_variable_either(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-12345678")
    folder = tmp_path / "loud" / "conf" / "experiment"
    folder.mkdir(parents=True)
    (tmp_path / "loud" / "__init__.py").write_text("")
    chat = "{url: 'https://evil.example/v1', model: m}"
    (folder / "odd.yaml").write_text(
        "# @package _global_\ndefaults: [override /reward: judge]\n"
        f"reward: {{judge: {{function: {{chat: {chat}}}}}}}\n"
    )
    with pytest.raises(
        ConfigError, match=r"OPENAI_API_KEY: the variable would be sent to https://evil"
    ):
        check(compose(["plugins=[loud]", "experiment=odd"]))


def test_this_machine_is_asked_without_a_word_but_sent_no_variable(tmp_path, monkeypatch):
    """The author of a run directory may have a listener on this machine."""
    text = JUDGED.replace("https://evil.example", "http://127.0.0.1:8000")
    run = run_of(tmp_path / "run", text)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    check(resume_config(run, []))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-12345678")
    with pytest.raises(ConfigError, match=r"would be sent to http://127\.0\.0\.1:8000, and you"):
        check(resume_config(run, []))


@pytest.mark.parametrize("other", ["http://mine.example", "https://mine.example:8443"])
def test_another_port_or_scheme_is_another_server(tmp_path, monkeypatch, other):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    cfg = compose([JUDGE[0], f"{URL}=https://mine.example/v1", JUDGE[2]])
    check(cfg)
    remember(cfg)
    trust.SAID_HOSTS.clear()
    mine = JUDGED.replace("https://evil.example", "https://mine.example:443")
    check(resume_config(run_of(tmp_path / "mine", mine), []))
    text = JUDGED.replace("https://evil.example", other)
    with pytest.raises(ConfigError, match="which you have not named"):
        check(resume_config(run_of(tmp_path / "other", text), []))


@pytest.mark.parametrize("named", [(), ("https://mine.example",)])
def test_every_address_of_a_list_is_asked_about(tmp_path, monkeypatch, named):
    monkeypatch.delenv("VLLM_KEY", raising=False)
    servers = "rollout.engine.url=[https://mine.example,https://evil.example/v1]"
    words = ["model=qwen3_0_6b", "rollout=vllm_server", "rollout.engine.api_key_env=VLLM_KEY"]
    run = run_of(tmp_path / "run", OmegaConf.to_yaml(compose([*words, servers]), resolve=True))
    monkeypatch.setattr(trust, "SAID_HOSTS", set(named))
    missed = "evil" if named else "mine"
    with pytest.raises(
        ConfigError, match=rf"url: the run would connect to https://{missed}\.example, "
    ):
        check(resume_config(run, []))
    check(configuration([f"resume={run}", servers]))


def test_what_is_kept_is_for_the_user_alone_to_read_and_mend(tmp_path):
    (tmp_path / "loud.py").write_text("")
    remember(compose(["plugins=[loud]"]))
    assert json.loads(trust.place().read_bytes())["plugins"].keys() == {f"{tmp_path}/loud.py"}
    assert trust.place().parent.stat().st_mode & 0o077 == 0
    trust.place().write_text("[")
    with pytest.raises(ConfigError, match=r"trusted\.json cannot be read .*; remove it$"):
        trust.read_trusted()


@pytest.mark.parametrize("word", ["optimizer=glob(a*)", "optimizer.lr=interval(1,2)"])
def test_what_is_swept_is_still_refused_in_one_line(word):
    with pytest.raises(ConfigError, match="several values need -m"):
        compose([word])


def test_a_job_of_a_sweep_that_goes_on_says_what_its_command_line_said():
    words = ["plugins=[mine]", "seed=3", "reward=judge", f"{URL}=http://x", f"{KEY}=NAME"]
    words += ["environment.world.url=http://y", "environment.world.token_env=NAME"]
    words += ["environment.world.command=[python,agent.py]", "environment.world.keep_env=[NAME]"]
    words += ["reward.judge.api_key=abc", "reward.judge.note=sk-abc123abc123abc"]  # redacted
    assert list_confirmed(words) == [words[0], *words[3:]]


OWN_ENGINE = ["model=qwen3_0_6b", "rollout=vllm_colocated"]


def test_a_foreign_run_starts_no_engine_that_is_not_confirmed(tmp_path):
    text = OmegaConf.to_yaml(compose([*OWN_ENGINE, "run_dir=x"]), resolve=True)
    run = run_of(tmp_path / "run", text)
    for words in ([], ["evaluate=true"]):
        with pytest.raises(ConfigError, match=r"give rollout\.engine\.starts=true on the command"):
            check(configuration([f"resume={run}", *words]))
    check(configuration([f"resume={run}", "rollout.engine.starts=true"]))


def test_an_engine_that_a_run_of_ones_own_started_is_started_again_with_its_model(tmp_path):
    cfg = compose([*OWN_ENGINE, f"run_dir={tmp_path}"])
    remember(cfg)
    run = run_of(tmp_path / "run", OmegaConf.to_yaml(cfg, resolve=True))
    check(configuration([f"resume={run}"]))
    other = run_of(tmp_path / "other", OmegaConf.to_yaml(cfg, resolve=True), model={"path": "evil"})
    with pytest.raises(ConfigError, match="VllmServer of evil, which no run of yours"):
        check(configuration([f"resume={other}"]))


def admit(folder, *, cfg):
    """The servers that a run of this configuration finds and may ask."""
    with check_addresses(partial(admit_address, cfg)):
        return find_urls(folder, patience=0)


def test_an_address_that_a_foreign_run_finds_in_its_folder_is_not_believed(tmp_path):
    words = ["model=qwen3_0_6b", "rollout=vllm_server", "rollout.engine.url=auto"]
    cfg = compose(words)
    run = run_of(tmp_path / "run", OmegaConf.to_yaml(cfg, resolve=True))
    resumed = configuration([f"resume={run}"])
    check(resumed)
    url = "http://evil.example:80"
    AddressFile(folder=run, urls=["http://127.0.0.1:8000"]).write(ready=True)
    assert admit(run, cfg=resumed) == ["http://127.0.0.1:8000"]
    AddressFile(folder=run, urls=["http://127.0.0.1:8000", url]).write(ready=True)
    with pytest.raises(
        ConfigError, match=r"the run would connect to http://evil\.example, which you"
    ):
        admit(run, cfg=resumed)
    assert admit(run, cfg=cfg)[1] == url  # a run started by the user, which is remembered
    assert admit(run, cfg=resumed)[1] == url


def test_an_address_is_believed_in_a_folder_that_the_command_line_names(tmp_path):
    cfg = compose(["model=qwen3_0_6b", "rollout=vllm_server", "rollout.engine.url=auto"])
    run = run_of(tmp_path / "run", OmegaConf.to_yaml(cfg, resolve=True))
    AddressFile(folder=tmp_path, urls=["http://node7.example:80"]).write(ready=True)
    with pytest.raises(ConfigError, match=r"the run would connect to http://node7\.example"):
        admit(tmp_path, cfg=configuration([f"resume={run}"]))
    resumed = configuration([f"resume={run}", f"rollout.engine.folder={tmp_path}"])
    assert admit(tmp_path, cfg=resumed) == ["http://node7.example:80"]


def test_a_variable_for_servers_that_are_still_to_be_found_is_named_each_time(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("VLLM_KEY", "sk-12345678")
    key = "rollout.engine.api_key_env=VLLM_KEY"
    cfg = compose(["model=qwen3_0_6b", "rollout=vllm_server", "rollout.engine.url=auto", key])
    remember(cfg)
    assert trust.read_trusted().hosts == {}
    trust.SAID_VARIABLES.clear()
    run = run_of(tmp_path / "run", OmegaConf.to_yaml(cfg, resolve=True))
    with pytest.raises(ConfigError, match=r"VLLM_KEY: the variable would be sent to a server"):
        check(configuration([f"resume={run}"]))
    check(configuration([f"resume={run}", key]))


PROGRAM = "environment.world.command=[python,agent.py]"
JUDGES = ["environment=agent", "environment.world.pays=true", "reward=episode", "~recipe"]


def test_a_foreign_run_starts_no_program_that_is_not_confirmed(tmp_path):
    cfg = compose([*JUDGES, PROGRAM])
    trust.SAID_COMMANDS.clear()
    run = run_of(tmp_path / "run", OmegaConf.to_yaml(cfg, resolve=True))
    said = r"environment\.world\.command: the run would start a program, python agent\.py, which no"
    for words in ([], ["evaluate=true"]):
        with pytest.raises(ConfigError, match=said):
            check(configuration([f"resume={run}", *words]))
    check(configuration([f"resume={run}", PROGRAM]))


def test_a_program_that_a_run_of_ones_own_started_is_started_again_and_no_other(tmp_path):
    cfg = compose([*JUDGES, PROGRAM])
    remember(cfg)
    trust.SAID_COMMANDS.clear()
    text = OmegaConf.to_yaml(cfg, resolve=True)
    check(configuration([f"resume={run_of(tmp_path / 'run', text)}"]))
    evil = {"environment": {"world": {"command": ["sh", "-c", "rm it"]}}}
    other = run_of(tmp_path / "other", text, **evil)
    with pytest.raises(ConfigError, match="start a program, sh -c 'rm it', which no run of yours"):
        check(configuration([f"resume={other}"]))


def test_a_program_is_another_one_in_another_folder(tmp_path, monkeypatch):
    """`python agent.py` in a cloned repository is not the user's own program."""
    config = {"environment": {"world": {"command": ["python", "agent.py"]}}}
    trust.remember(config, {})
    trust.refuse_unsaid(config, recorded=True)
    (tmp_path / "cloned").mkdir()
    monkeypatch.chdir(tmp_path / "cloned")
    with pytest.raises(ConfigError, match=r"start a program, python agent\.py, which no run"):
        trust.refuse_unsaid(config, recorded=True)


@pytest.mark.parametrize("recorded", [False, True])
def test_a_program_gets_no_variable_that_the_user_has_not_named(monkeypatch, recorded):
    monkeypatch.setenv("BANK_PASSWORD", "12345678")
    key = "environment.world.keep_env"
    world = {"command": ["python", "agent.py"], "keep_env": ["PLAIN_THING", "BANK_PASSWORD"]}
    config = {"environment": {"world": world}}
    trust.believe(parse([PROGRAM]))
    said = f"{key}: the run would give BANK_PASSWORD to a program, python agent.py, which no run"
    with pytest.raises(ConfigError, match=f"^{said}"):
        trust.refuse_unsaid(config, recorded=recorded)
    trust.believe(parse([f"{key}=[BANK_PASSWORD]"]))
    trust.refuse_unsaid(config, recorded=recorded)
    trust.remember(config, {})
    trust.SAID_KEPT.clear()
    trust.refuse_unsaid(config, recorded=recorded)


CHAT = {"reward": {"chat": {"url": "http://evil.example", "token_env": "BANK_PASSWORD"}}}
AGENT = {"environment": {"world": {"command": ["a"], "keep_env": ["BANK_PASSWORD"]}}}


@pytest.mark.parametrize(("word", "config"), [
    ("environment.world.keep_env=[BANK_PASSWORD]", CHAT),
    ("reward.chat.token_env=BANK_PASSWORD", AGENT),
])  # fmt: skip
def test_a_variable_of_a_program_goes_to_no_server_and_that_of_a_server_to_no_program(
    monkeypatch, word, config
):
    monkeypatch.setenv("BANK_PASSWORD", "12345678")
    trust.believe(parse(["environment.world.command=[a]", word]))
    with pytest.raises(ConfigError, match="BANK_PASSWORD"):
        trust.refuse_unsaid(config, recorded=False)


FOLDERS = "algorithm.teachers.folders"
TEACHER_KEY = "algorithm.teachers.server.api_key_env"


def taught(*addresses, variable=None):
    """A configuration with teachers at these addresses."""
    folders = dict(zip(("others", "sums"), addresses, strict=False))
    return {"algorithm": {"teachers": {"folders": folders, "server": {"api_key_env": variable}}}}


@pytest.mark.parametrize("word", [f"{FOLDERS}.others=%s", f"{FOLDERS}={{others: '%s'}}"])
def test_a_run_asks_no_teacher_at_an_address_that_the_user_has_not_named(word):
    url = "http://evil.example:8001"
    said = f"{FOLDERS}.others: the run would connect to {url}, which you have not named"
    for config in (taught(url), {"algorithm": {"teachers": {"folders": {"others": url}}}}):
        with pytest.raises(ConfigError, match=f"^{said}"):
            trust.refuse_unsaid(config, recorded=True)
    trust.refuse_unsaid(taught("runs/teacher", "http://127.0.0.1:1"), recorded=True)
    trust.believe(parse([word % url]))
    trust.refuse_unsaid(taught(url), recorded=True)


def test_the_key_of_a_teacher_is_sent_again_to_its_server_and_to_no_other(monkeypatch):
    monkeypatch.setenv("TEACHER_KEY", "sk-12345678")
    mine = taught("http://mine.example:8001", variable="TEACHER_KEY")
    trust.remember(mine, {})
    trust.refuse_unsaid(mine, recorded=True)
    said = rf"^{TEACHER_KEY}=TEACHER_KEY: the variable would be sent to http://evil\.example, and"
    for recorded in (True, False):
        with pytest.raises(ConfigError, match=said):
            trust.refuse_unsaid(
                taught("http://evil.example", variable="TEACHER_KEY"), recorded=recorded
            )


def test_each_server_of_a_teacher_is_sent_the_key_of_its_source_alone(monkeypatch):
    monkeypatch.setenv("TEACHER_KEY", "sk-12345678")
    monkeypatch.setenv("BANK_PASSWORD", "12345678")
    hosts = ("http://a.example", "http://b.example")
    own = taught(*hosts, variable={"others": "TEACHER_KEY", "sums": "BANK_PASSWORD"})
    sent = {(one.host, one.variable) for one in list_elsewhere(own)}
    assert sent == {*zip(hosts, ("TEACHER_KEY", "BANK_PASSWORD"), strict=True)}


def test_a_run_with_a_teacher_on_a_server_that_moved_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("TEACHER_KEY", "sk-12345678")
    words = ["algorithm=opd", f"{FOLDERS}={{others: 'http://a.example:1', sums: runs/x}}"]
    text = OmegaConf.to_yaml(compose([*words, f"{TEACHER_KEY}=TEACHER_KEY"]), resolve=True)
    run = run_of(tmp_path / "run", text)
    moved = [f"{FOLDERS}.others=http://b.example:1", f"{TEACHER_KEY}=TEACHER_KEY"]
    teachers = resume_config(run, [*moved, "algorithm.teachers.server.patience=9"])
    teachers = teachers.algorithm.teachers
    assert (teachers.folders.others, teachers.server.patience) == ("http://b.example:1", 9)
    assert list_confirmed([*words, *moved]) == [words[1], *moved]
    resume_config(run, [words[1]])
    for other in (f"{FOLDERS}.others=runs/x", f"{FOLDERS}={{sums: 'http://b.example:1'}}"):
        with pytest.raises(ConfigError, match="a run that is resumed keeps it"):
            resume_config(run, [other])


def test_what_a_newer_tandem_keeps_is_kept_and_nothing_empty_is_written():
    trust.remember({}, {"a.py": "12"})
    assert json.loads(trust.place().read_bytes()) == {"plugins": {"a.py": "12"}}
    trust.place().write_text('{"kernels": ["x"], "hosts": {"http://x": []}}')
    trust.remember({}, {"a.py": "12"})
    assert json.loads(trust.place().read_bytes()) == {
        "plugins": {"a.py": "12"},
        "hosts": {"http://x": []},
        "kernels": ["x"],
    }


@pytest.mark.parametrize("text", ["7", '{"hosts": 7}', '{"hosts": {"x": 7}}', '{"engines": "x"}'])
def test_a_list_of_another_shape_is_refused_in_one_line(text):
    trust.place().parent.mkdir(parents=True)
    trust.place().write_text(text)
    with pytest.raises(ConfigError, match=r"trusted\.json cannot be read .*; remove it$"):
        trust.read_trusted()


def test_a_file_starts_no_program_that_the_command_line_does_not_name(tmp_path):
    (tmp_path / "conf" / "environment").mkdir(parents=True)
    text = "defaults: [agent]\nworld: {command: [sh, -c, rm it]}\n"
    (tmp_path / "conf" / "environment" / "mine.yaml").write_text(text)
    (tmp_path / "a_program.py").write_text("")
    words = ["plugins=[a_program]", "environment=mine", "reward=episode", "~recipe"]
    with pytest.raises(ConfigError, match="start a program, sh -c 'rm it', which no run of yours"):
        check(compose(words))


def test_a_foreign_run_reads_and_writes_no_cache_but_the_users_own(tmp_path):
    flow = OmegaConf.to_yaml(compose(["model=tiny_flow", "cache_dir=/evil"]), resolve=True)
    run, own = run_of(tmp_path / "run", flow), compose([]).cache_dir
    found = resume_config(run, [])
    assert (found.cache_dir, found.model.cache_dir) == (own, own)
    found = resume_config(run, ["cache_dir=/said"])
    assert (found.cache_dir, found.model.cache_dir) == ("/said", "/said")
    remember(resume_config(run, ["cache_dir=/evil"]))  # by a run started by the user
    found = resume_config(run, [])
    assert (found.cache_dir, found.model.cache_dir) == ("/evil", "/evil")


@pytest.mark.parametrize("name", ["run_dir", "sweep_dir", "cache_dir"])
def test_an_empty_name_is_no_folder(name):
    with pytest.raises(ConfigError, match=f"^{name}='': give a folder; {name}=. is the one"):
        check(compose([f"{name}=''"]))
