"""Messages for a plugin's author: one line with file and line number, and a page of its parts."""

import importlib
import re
import sys
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from tandem.config import ConfigError, build, check, compose
from tandem.config.arguments import fill_defaults
from tandem.config.composition import import_plugins
from tandem.config.help import list_plugin_options
from tandem.config.plugins import ADMITTED, list_sources
from tandem.config.targets import resolve
from tandem.launch.command_line import help_of
from tandem.launch.run import recorded_text
from tandem.types import Scores

pytestmark = pytest.mark.usefixtures("unregistered")

TAKEN = """
from tandem import register_reward

@register_reward("judge")
def mine(output, prompt): return 1.0
"""
WRONG = {
    "a syntax error": ("x = 1\ndef broken(:\n", 2, "invalid syntax"),
    "a missing import": ("\n\nimport nowhere_to_be_found\n", 3, "No module named 'nowhere_to_be"),
    "a name that is not there": ("from tandem import register_rewards\n", 1, "ImportError: cannot"),
    "an exit": ("import sys\n\nsys.exit(0)\n", 3, "SystemExit: 0"),
    "an error of its own": ("\n1 / 0\n", 2, "ZeroDivisionError: division by zero"),
    "a name that Tandem has": (TAKEN, 4, "reward=judge is an option of Tandem's"),
    "a form that no loss has": (
        "from tandem import register_policy_loss\n\n@register_policy_loss\ndef mine(x): return x\n",
        3, "own_plugin.mine(x): write it as (batch, *, numbers)",
    ),
    "a distance of two tensors": (
        "from tandem import register_kl\n\n@register_kl\ndef far(logp, ref_logp): ...\n",
        3, "own_plugin.far(logp, ref_logp): it is called with batch; write it as (batch, *, numb",
    ),
    "weights of a move that is not read": (
        "from tandem import register_weights\n\n@register_weights\ndef w(mask, turn): ...\n",
        3, "own_plugin.w(mask, turn): it is called with mask; write it as (mask, *, numbers)",
    ),
    "a reward of an output alone": (
        "from tandem import register_reward\n\n@register_reward\ndef short(output): ...\n",
        3, "own_plugin.short(output): it is called with output, prompt; write it as (output, p",
    ),
    "a comparison of too few": (
        "from tandem import register_reward\nfrom tandem.rewards import pairwise\n\n@pairwise\n"
        "@register_reward\ndef better(first, second): ...\n",
        4, "own_plugin.better(first, second): it is called with first, second, prompt; write",
    ),
    "a statistic that no loss takes": (
        "from tandem import register_policy_loss\n\n"
        "@register_policy_loss(batch_statistics=max)\ndef mine(batch): ...\n",
        3, "own_plugin.mine(batch): it is called with batch, statistics; write it as (batch, stat",
    ),
    "metrics without the statistics": (
        "from tandem import register_policy_loss\n\ndef w(batch): ...\n\ndef m(batch): ...\n\n"
        "@register_policy_loss(batch_statistics=w, metrics=m)\ndef mine(batch, statistics): ...\n",
        7, "own_plugin.m(batch): too many positional arguments; metrics= is called with batch, st",
    ),
    "a row reward of something else": (
        "from tandem import register_policy_loss\n\ndef r(batch, beta): ...\n\n"
        "@register_policy_loss(reward=r)\ndef mine(batch): ...\n",
        5, "own_plugin.r(batch, beta): missing a required argument: 'beta'; reward= is called with",
    ),
    "a statistic of a number that its loss lacks": (
        "from tandem import register_policy_loss\n\ndef w(batch, *, width, far): ...\n\n"
        "@register_policy_loss(batch_statistics=w)\ndef mine(batch, statistics, *, width=1): ...\n",
        5, "own_plugin.w(batch, *, width, far): missing a required argument: 'far'; batch_statis",
    ),
    "a class of another form": (
        "from tandem import register_policy_loss\n\n@register_policy_loss\nclass Mine:\n"
        "    def __call__(self, logp, old_logp): ...\n",
        3, "own_plugin.Mine.__call__(self, logp, old_logp): it is called with self, batch; write ",
    ),
    "a class whose method must be given a number": (
        "from tandem import register_correction\n\n@register_correction\nclass Mine:\n"
        "    def __call__(self, batch, *, width): ...\n",
        3, "(self, batch, *, width): it is called with self, batch; write it as (self, batch), nu",
    ),
    "a class that cannot be called": (
        "from tandem import register_reward\n\n@register_reward\nclass Mine:\n    scale = 1\n",
        3, "own_plugin.Mine: its class has no __call__(self, output, prompt)",
    ),
    "a module of another form": (
        "from tandem import register_adv_estimator\n"
        "from tandem.contracts.stateful import StatefulComponent\n\n"
        "@register_adv_estimator\nclass Mine(StatefulComponent):\n"
        "    def forward(self, scores): ...\n",
        4, "own_plugin.Mine.forward(self, scores): it is called with self, scores, rollout; write",
    ),
    "a world that begins without a key": (
        "from tandem import register_environment\n\n@register_environment\nclass Mine:\n"
        "    def describe(self): ...\n    def begin(self, prompt): ...\n",
        3, "own_plugin.Mine.begin(self, prompt): it is called with self, prompt, key; write it as",
    ),
    "a keyword that composing takes": (
        "from tandem import register_reward\n\n@register_reward\ndef f(a, b, *, defaults=1): ...\n",
        3, "own_plugin.f: a configuration cannot hold a keyword named defaults; rename it",
    ),
    "a fact that is no function": (
        "from tandem import register_reward\n\n@register_reward(metrics='a/b')\ndef f(a, b): ...\n",
        3, "metrics='a/b': give a function",
    ),
    "a fact that there is not": (
        "from tandem import register_reward\n\n@register_reward(read=3)\ndef f(a, b): ...\n",
        3, "fact of a component: unknown 'read'; did you mean 'reads'?",
    ),
    "a function without a name": (
        "from tandem import register_reward\n\nregister_reward('f')(lambda a, b: 1.0)\n",
        3, "own_plugin.<lambda>: only a function at the top of a module has a name",
    ),
    "numbers bound to a function": (
        "from functools import partial\nfrom tandem import register_reward\n\n"
        "register_reward('f')(partial(print))\n",
        4, "a partial is not a plain function or class; define one with def",
    ),
    "a name that is a folder": (
        "from tandem import register_reward\n\n@register_reward('a/b')\ndef f(a, b): ...\n",
        3, "reward=a/b: an option is named by letters, digits and . - _, and begins with a "
        "letter or digit",
    ),
    "a class that lacks a method": (
        "from tandem import register_rollout_engine\n"
        "from tandem.policies.engines.protocol import RolloutEngine\n\n"
        "@register_rollout_engine\nclass Own(RolloutEngine):\n    def sync(self, w, v): ...\n",
        4, "rollout=Own: its class has no answer",
    ),
    "an engine without a base class": (
        "from tandem import register_rollout_engine\n\n"
        "@register_rollout_engine\nclass Own:\n    def sync(self, w, v): ...\n",
        3, "own_plugin.Own is no rollout engine; write a class that inherits from tandem.policies",
    ),
    "a world that begins without a key or itself": (
        "from tandem import register_environment\n\n@register_environment\nclass Mine:\n"
        "    def describe(self): ...\n    @staticmethod\n    def begin(prompt): ...\n",
        3, "own_plugin.Mine.begin(prompt): it is called with prompt, key; write it as (prompt, ke",
    ),
    "two of one name": (
        f"{TAKEN.replace('judge', 'one')}\n@register_reward('one')\ndef other(output, prompt): 1\n",
        7, "reward=one is own_plugin.mine already",
    ),
}  # fmt: skip


@pytest.fixture
def written(tmp_path, monkeypatch):
    def write(text, name="own_plugin.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        return tmp_path / name

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == "own_plugin"]:
        del sys.modules[name]


@pytest.mark.parametrize("fault", WRONG)
def test_an_error_in_a_plugin_is_one_line_with_its_place(written, fault):
    text, line, said = WRONG[fault]
    path = written(text)
    with pytest.raises(ConfigError) as refused:
        compose(["plugins=[own_plugin]"])
    answer = str(refused.value)
    assert f"{path}, line {line}: " in answer
    assert said in answer and "\n" not in answer


def test_methods_of_a_world_may_be_those_of_its_class_or_static(written):
    written(
        "from tandem import register_environment\n\n@register_environment('still')\nclass World:\n"
        "    @classmethod\n    def describe(cls): ...\n"
        "    @staticmethod\n    def begin(prompt, key): ...\n"
    )
    cfg = compose(["plugins=[own_plugin]", "environment=still"])
    assert cfg.environment.world._target_ == "own_plugin.World"


KL = """
from tandem import register_kl

@register_kl(reads={{"ref_logp"}}, refused={{"pictures": "{reason}"}})
def far(batch): return batch.logp
"""


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("none", "none; set algorithm/kl=regressed, a distance between velocities"),
        ("none; set algorithm/kl=regressed", "none; set algorithm/kl=regressed"),
        (
            "none; set x=1",
            "none; set x=1, or algorithm/kl=regressed, a distance between velocities",
        ),
    ],
)
def test_a_refusal_of_a_kl_gives_its_advice_once(written, reason, said):
    written(KL.format(reason=reason))
    chosen = ["model=tiny_flow", "algorithm=nft", "algorithm/kl=far", "plugins=[own_plugin]"]
    with pytest.raises(ConfigError) as refused:
        check(compose(chosen))
    assert str(refused.value) == f"algorithm/kl=far on dynamics=ode: {said}"


def test_a_loss_that_declares_the_entropy_is_refused_on_steps_whatever_its_coefficient(written):
    written(
        "from tandem import register_policy_loss\n\n@register_policy_loss(reads={'entropy'})\n"
        "def curious(batch, *, coef: float = 0.0): return coef * batch.entropy - batch.logp\n"
    )
    chosen = ["model=tiny_flow", "algorithm=flow_grpo", "algorithm/loss=curious"]
    with pytest.raises(ConfigError) as refused:
        check(compose([*chosen, "plugins=[own_plugin]"]))
    assert str(refused.value) == (
        "algorithm/loss=curious on dynamics=flow_sde: the entropy of a Gaussian step is a constant "
        "of its noise level and not computed: the field is None, also for a term with the "
        "coefficient 0; set algorithm/loss=ppo"
    )


@pytest.mark.parametrize("name", ["''", ".mine", "mine..own"])
def test_what_names_no_module_is_said_so(name):
    with pytest.raises(ConfigError, match=r"^plugins: '.*' names no module; write plugins=\["):
        compose([f"plugins=[{name}]"])


def test_a_fault_in_what_a_plugin_imports_is_placed_there(written):
    written("from own_plugin import inside\n", "own_plugin/__init__.py")
    path = written("\n\nraise KeyError('no such thing')\n", "own_plugin/inside.py")
    with pytest.raises(ConfigError, match="KeyError: 'no such thing'") as refused:
        compose(["plugins=[own_plugin]"])
    assert f"{path}, line 3: " in str(refused.value)


def test_sources_are_found_from_the_folder_of_each_file_of_a_package(written):
    """Of files that Python refuses, such as a template, or that nothing can import, none are."""
    texts = {
        "__init__.py": "",
        "common.py": "WORDS = ('a',)\n",
        "parts/__init__.py": "from .sub import deep\n",
        "parts/sub/deep.py": "from ...common import WORDS\n",
        "parts/sub/template.py": "import {{ name }}\n",
        "parts/sub/elsewhere.py": "from .....common import WORDS\n",
    }
    for name, text in texts.items():
        written(text, f"own_plugin/{name}")
    importlib.import_module("own_plugin.parts")
    package = Path.cwd() / "own_plugin"
    found = {str(one.relative_to(package)) for one in list_sources(["own_plugin.parts.mine"])}
    assert found == {"parts", "parts/sub/deep.py", "common.py"}


def test_the_page_lists_what_plugins_register_and_what_their_files_offer(written):
    written(
        TAKEN.replace("judge", "calm").replace("return 1.0", '"""How calm."""'),
        "own_plugin/__init__.py",
    )
    written("# A schedule of mine\nlr: 1\n", "own_plugin/conf/schedule/mine.yaml")
    written("lr: 1\n", "own_plugin/conf/schedule/_shared.yaml")  # not an option, as in conf/
    found = list_plugin_options(import_plugins(["plugins=[own_plugin]"]))
    assert found == {"reward": {"calm": "How calm."}, "schedule": {"mine": "A schedule of mine"}}


LOSS = """
from typing import Annotated
from tandem import register_policy_loss
from tandem.contracts import positive

@register_policy_loss("fade")
def fading(batch, *, most: Annotated[float, positive] = 5.0):
    \"\"\"Fades out.\"\"\"
    return batch.logp
"""


def test_help_shows_what_a_plugin_brings_as_what_is_built_in(written):
    written(LOSS)
    beside = ["plugins=[own_plugin]", "algorithm/loss=fade"]
    text = help_of([*beside, "algorithm.loss"])
    assert "\n *fade " in text and " Fades out." in text
    assert "algorithm.loss.most=5.0  float, must be positive" in text
    assert "fade" not in help_of(["algorithm.kl"])
    assert "  algorithm=" in help_of(beside[:1])


BARE = """
from tandem import register_policy_loss

@register_policy_loss
def bare(batch, *, w=1, on=True, at=(1, 2.5), most: float = None, odd: any = None,
         listed: [int] = None): ...
"""


def test_a_number_without_an_annotation_has_the_type_of_its_default(written):
    written(BARE)
    words = ["plugins=[own_plugin]", "algorithm/loss=bare", "warm_start=null"]
    check(compose([*words, "algorithm.loss.w=0.5"]))
    with pytest.raises(ConfigError, match=r"algorithm.loss.w: expected float or int, got 'h'"):
        check(compose([*words, "algorithm.loss.w=h"]))
    with pytest.raises(ConfigError, match=r"algorithm.loss.on: expected bool, got 3"):
        check(compose([*words, "algorithm.loss.on=3"]))
    with pytest.raises(ConfigError, match=r"algorithm.loss.most: expected float or null, got 'x'"):
        check(compose([*words, "algorithm.loss.most=x"]))


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ([], (1, True, (1, 2.5), None, None, None)),
        (["w=0.5", "at=[3]", "most=2"], (0.5, True, (3,), 2.0, None, None)),
        (["w=2.0", "on=false"], (2.0, False, (1, 2.5), None, None, None)),
    ],
)
def test_numbers_of_a_plugin_arrive_as_they_are_written(written, words, given):
    """An index stays an integer, and a tuple a tuple, in which `x in options` and `+` work."""
    written(BARE)
    own = [f"algorithm.loss.{word}" for word in words]
    cfg = compose(["plugins=[own_plugin]", "algorithm/loss=bare", *own])
    numbers = build(cfg.algorithm).loss.keywords
    assert list(map(repr, numbers.values())) == list(map(repr, given))
    assert [*numbers] == ["w", "on", "at", "most", "odd", "listed"]


@pytest.mark.parametrize(
    ("read", "advice"),
    {
        "old_lgp": "did you mean 'old_logp'?",
        "difficulty": "read a data field through a reward of weight 0, "
        f"scores.{Scores.reward.__name__}(NAME)",
    }.items(),
)
def test_a_field_that_no_record_has_is_named(written, read, advice):
    written(BARE.replace("@register_policy_loss", f"@register_policy_loss(reads={{'{read}'}})"))
    words = ["plugins=[own_plugin]", "algorithm/loss=bare"]
    with pytest.raises(ConfigError, match=re.escape(f"no record has such a field; {advice}")):
        check(compose(words))


def test_a_file_beside_a_plugin_is_enough_to_offer_a_way_to_sample(written):
    written("", "own_plugin/__init__.py")
    written("defaults: [local]\ntemperature: 0.7\n", "own_plugin/conf/rollout/cooler.yaml")
    cfg = compose(["plugins=[own_plugin]", "rollout=cooler"])
    assert (cfg.rollout.temperature, cfg.choices.dynamics) == (0.7, "autoregressive")
    assert compose(["model=tiny_flow", "algorithm=flow_grpo"]).choices.dynamics == "flow_sde"


SOLVER = """
from tandem.contracts import register_solver
from tandem.policies.flow.solvers import unipc

@register_solver
def steady(levels, *, order: int = 1):
    \"\"\"Mine.\"\"\"
    return unipc(levels, order=order)
"""


def test_a_solver_is_an_option_of_sampling_and_of_evaluation(written):
    written(SOLVER)
    words = ["plugins=[own_plugin]", "model=tiny_flow", "algorithm=nft", "dynamics=ode"]
    words += ["dynamics/solver=steady", "evaluation/solver=steady", "evaluation.solver.order=3"]
    cfg = compose(words)
    check(cfg)
    both = cfg.dynamics.solver, cfg.evaluation.solver
    assert [(solver._target_, solver.order) for solver in both] == [
        ("own_plugin.steady", 1),
        ("own_plugin.steady", 3),
    ]
    assert "\n  steady " in help_of([words[0], words[1], "evaluation/solver"])


FOREIGN = """
from tandem import register_reward

@register_reward
def of_verl(data_source, solution_str, ground_truth, extra_info=None, scale=2.0): return scale

@register_reward
def of_trl(completions, solution=None, *, power=2.0, **columns): return [power] * len(completions)
"""


@pytest.mark.parametrize(("name", "number"), [("of_verl", "scale"), ("of_trl", "power")])
def test_the_record_of_a_foreign_reward_names_its_numbers_alone(written, name, number):
    written(FOREIGN)
    cfg = compose(["plugins=[own_plugin]", f"reward={name}"])
    node = OmegaConf.to_container(cfg.reward[name], resolve=True)
    told = fill_defaults(node)["function"]
    assert {key for key in told if key[0] != "_"} == {number}


CHOOSING = """
import enum
from tandem import register_reward

class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2

class Mode(enum.StrEnum):
    STRICT = "strict"

@register_reward
def choosing(outputs, prompts, *, level=Level.LOW, mode=Mode.STRICT): return [level] * len(outputs)
"""


def test_the_record_holds_a_default_that_is_an_enum_as_text(written):
    written(CHOOSING)
    cfg = compose(["plugins=[own_plugin]", "reward=choosing", "run_dir=x"])
    told = yaml.safe_load(recorded_text(cfg))["reward"]["choosing"]["function"]
    assert (told["level"], told["mode"]) == ("LOW", "strict")


def test_a_recorded_enum_is_the_enum_again_and_another_text_is_refused(written):
    written(CHOOSING)
    words = ["plugins=[own_plugin]", "reward=choosing", "run_dir=x"]
    cfg = OmegaConf.create(recorded_text(compose(words)))
    check(cfg)
    call = build(cfg.reward.choosing.function)
    assert call([0, 0], []) == [1, 1]
    assert [type(value).__name__ for value in call.keywords.values()] == ["Level", "Mode"]
    with pytest.raises(ConfigError, match="level: expected LOW or HIGH, got 'NONE'"):
        check(compose([*words, "reward.choosing.function.level=NONE"]))


def test_an_argument_that_a_plugin_s_file_leaves_out_is_a_key_in_a_package_too(written):
    written("", "packed/inside.py")
    written(LOSS, "packed/__init__.py")
    written("_target_: packed.fading\n_partial_: true\n", "packed/conf/algorithm/loss/short.yaml")
    try:
        cfg = compose(["plugins=[packed]", "algorithm/loss=short", "algorithm.loss.most=3.0"])
    finally:
        sys.modules.pop("packed")
    assert cfg.algorithm.loss.most == 3.0


def test_dynamics_that_change_one_number_of_others_have_a_name_of_their_own(written):
    written("", "own_plugin/__init__.py")
    faint = "defaults: [flow_sde, _self_]\nkernel: {noise_level: 0.3}\n"
    written(faint, "own_plugin/conf/dynamics/faint_sde.yaml")
    words = ["plugins=[own_plugin]", "model=tiny_flow", "algorithm=flow_grpo", "dynamics=faint_sde"]
    cfg = compose(words)
    assert (cfg.choices.dynamics, cfg.dynamics.kernel.noise_level) == ("faint_sde", 0.3)
    with pytest.raises(ConfigError, match="dynamics=faint_sde is for pictures"):
        check(compose([*words, "model=tiny_lm"]))


@pytest.mark.parametrize(
    ("own", "model", "dynamics"),
    [("denoise", "tiny_flow", "flow_sde"), ("unmask", "tiny_masked", "masked")],
)
def test_a_rollout_that_changes_one_number_of_another_has_its_dynamics(
    written, own, model, dynamics
):
    written("", "own_plugin/__init__.py")
    written(f"defaults: [{own}, _self_]\nmax_rows: 5\n", "own_plugin/conf/rollout/few.yaml")
    words = ["plugins=[own_plugin]", f"model={model}", "algorithm=grpo", "rollout=few"]
    cfg = compose(words)
    check(cfg)
    assert (cfg.choices.dynamics, cfg.rollout.max_rows) == (dynamics, 5)


SPLIT = """
from tandem import register_policy_loss

def doubled(x): return 2 * x

@register_policy_loss(reads={"old_logp"})
def mine(batch): return batch.old_logp - batch.logp

@register_policy_loss(reads={"old_logp"})
def shaped(batch, *, shape=doubled): return shape(batch.old_logp - batch.logp)
"""


def test_what_a_module_registers_that_a_plugin_imports_can_be_chosen_and_nothing_else(written):
    written(SPLIT, "own_losses.py")
    written("from own_losses import mine as ours, shaped\n")
    words = ["plugins=[own_plugin]", "warm_start=null"]
    try:
        cfg = compose([*words, "algorithm/loss=mine"])
        check(cfg)
        assert cfg.algorithm.loss._target_ == "own_losses.mine"
        assert resolve("own_plugin.ours", "here") is resolve("own_losses.mine", "here")
        said = "own_losses.doubled is not among the targets that a configuration may name; add "
        with pytest.raises(ConfigError, match=rf"shape: {said}own_losses to plugins=\[\.\.\.\]$"):
            check(compose([*words, "algorithm/loss=shaped"]))
    finally:
        sys.modules.pop("own_losses")


def test_a_private_function_of_a_plugin_is_no_target(written):
    written(SPLIT.replace("doubled", "_doubled"))
    said = r"shape: own_plugin\._doubled is not among the targets that a configuration may name$"
    with pytest.raises(ConfigError, match=said):
        check(compose(["plugins=[own_plugin]", "warm_start=null", "algorithm/loss=shaped"]))


def test_an_installed_module_that_registers_parts_is_a_plugin(written, monkeypatch):
    path = written(FOREIGN, "site-packages/own_plugin.py")
    monkeypatch.syspath_prepend(str(path.parent))
    monkeypatch.setattr("tandem.config.plugins.ADMITTED", admitted := {*ADMITTED})
    monkeypatch.setattr("tandem.config.targets.ADMITTED", admitted)
    words = ["plugins=[own_plugin]", "warm_start=null", "reward=of_verl"]
    for _ in range(2):  # another command of the same process
        check(compose(words))
    assert list_sources(["own_plugin.of_verl"]) == [path]
    written("", "site-packages/own_library.py")
    with pytest.raises(ConfigError, match="own_library is a library, which registers nothing; gi"):
        compose(["plugins=[own_library]"])
    assert "own_library" not in admitted


LOSS_FILE = "_target_: own_plugin.fading\n_partial_: true\n"


@pytest.mark.parametrize(
    "taken",
    ["algorithm/grpo", "algorithm/loss/cispo", "algorithm/dro", "recipe/tiny_lm/grpo"],
)
def test_a_file_beside_a_plugin_has_no_name_of_tandem_s(written, taken):
    """Of a preset, a loss without a file, one that makes a preset, and a recipe."""
    written("", "own_plugin/__init__.py")
    path = written(LOSS_FILE, f"own_plugin/conf/{taken}.yaml")
    with pytest.raises(ConfigError) as refused:
        compose(["plugins=[own_plugin]"])
    group, _, name = taken.rpartition("/")
    assert str(refused.value) == (
        f"{path}: {group}={name} is an option of Tandem's; give the file another name, or "
        "the plugin another folder"
    )


def test_two_plugins_have_no_file_of_one_name(written):
    first, second = (
        written("lr: 1\n", f"own_plugin/{name}/conf/schedule/mine.yaml") for name in "ab"
    )
    for name in ("a/__init__.py", "b/__init__.py", "a/more.py", "__init__.py"):
        written("", f"own_plugin/{name}")
    compose(["plugins=[own_plugin.a,own_plugin.a.more,own_plugin.a]"])  # one folder
    with pytest.raises(ConfigError) as refused:
        compose(["plugins=[own_plugin.a,own_plugin.b]"])
    assert str(refused.value) == (
        f"{second}: schedule=mine is {first} already; give the file another name, or the "
        "plugin another folder"
    )


def test_a_file_may_be_one_s_own_option_or_no_option(written):
    written(LOSS, "own_plugin/__init__.py")
    written("", "own_plugin/conf/config.yaml")  # of an application of the user's
    written(f"{LOSS_FILE}most: 3.0\n", "own_plugin/conf/algorithm/loss/fade.yaml")
    cfg = compose(["plugins=[own_plugin]", "algorithm/loss=fade"])
    assert cfg.algorithm.loss.most == 3.0
