"""Parts that a file beside a plugin names: rates, callbacks and the order of prompts; and data."""

import pytest
from written_plugin import words_of

import tandem
from tandem.config import ConfigError, check, compose
from tandem.record.finished import completed_iterations
from tandem.record.reading.runs import read

pytestmark = pytest.mark.usefixtures("unregistered")

SCHEDULES = """
import itertools

calls = itertools.count()

def ascending(iteration, iterations):
    return -1.0

def worded(iteration, iterations):
    return "half"

def by_epoch(epoch):
    return 1.0

def restless(iteration, iterations):
    return 1.0 / (1 + next(calls))

def late(iteration, iterations):
    return float("nan") if iteration == 1 else 1.0
"""
WRONG_SCHEDULES = {
    "ascending": "schedule=ascending returned -1.0; return a finite factor on optimizer.lr, 0 or",
    "worded": "schedule=worded returned a str; return a float, a factor on optimizer.lr",
    "by_epoch": "schedule=by_epoch: by_epoch() takes 1 positional argument but 2 were given",
    "restless": "schedule=restless returned 1 and then 0.5 for iteration 0; keep no state",
}


@pytest.mark.parametrize(("name", "fault"), WRONG_SCHEDULES.items())
def test_a_schedule_of_the_learning_rate_is_tried_before_anything_is_loaded(plugin, name, fault):
    node = f"_target_: wrong.{name}\n_partial_: true\n"
    words = plugin(SCHEDULES, **{f"schedule__{name}": node})
    with pytest.raises(ConfigError) as refused:
        check(compose([*words, f"schedule={name}"]))
    assert str(refused.value).startswith(fault)


WRONG_KLS = {
    "unlike": "algorithm/kl/schedule=unlike: unlike() missing 1 required positional argument",
    "worded": "algorithm/kl/schedule=worded returned a str; return a float, a factor on",
    "below": "algorithm/kl/schedule=below returned -1; return a finite factor on algorithm.kl.coef",
}
OF_KLS = """
def unlike(iteration, iterations): return 1.0
def worded(iteration): return "half"
def below(iteration): return -1
"""


@pytest.mark.parametrize(("name", "fault"), WRONG_KLS.items())
def test_a_schedule_of_the_kl_is_tried_as_well(plugin, name, fault):
    node = f"_target_: wrong.{name}\n_partial_: true\n"
    words = plugin(OF_KLS, **{f"algorithm__kl__schedule__{name}": node})
    chosen = ["algorithm/kl=k3", "algorithm.kl.coef=0.1", f"algorithm/kl/schedule={name}"]
    with pytest.raises(ConfigError) as refused:
        check(compose([*words, *chosen]))
    assert str(refused.value).startswith(fault)


def test_a_factor_of_a_later_iteration_that_is_none_ends_the_run(plugin):
    words = plugin(SCHEDULES, schedule__late="_target_: wrong.late\n_partial_: true\n")
    said = words_of(words, "schedule=late", "iterations=3")
    assert said.startswith("iteration 1: schedule=late returned nan; return a finite factor")


CALLBACKS = """
from lightning.pytorch import Callback

class Shift(Callback):
    def __init__(self):
        self.steps = 0

    def on_train_batch_end(self, trainer, module, *_):
        self.steps += 1
        next(module.policy.parameters()).data.add_(1e-2 * self.steps)

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]

class Opaque(Shift):
    def state_dict(self):
        return {"steps": {1, 2}}

class Failing(Shift):
    def on_train_batch_end(self, trainer, module, *_):
        raise OSError("no route to the dashboard")

class Saving(Shift):
    def on_save_checkpoint(self, trainer, module, checkpoint):
        checkpoint["steps"] = self.steps

class Early(Shift):
    def on_train_batch_end(self, trainer, module, *_):
        trainer.should_stop = True

class Plain:
    pass
"""


def call_plugin(plugin, name):
    return [*plugin(CALLBACKS, **{f"callbacks__{name}": f"own: {{_target_: wrong.{name}}}"}),
            f"callbacks={name}"]  # fmt: skip


def test_the_state_of_a_callback_is_in_the_checkpoint(plugin, tmp_path):
    words = [*call_plugin(plugin, "Shift"), "schedule=constant"]
    tandem.train(*words, "iterations=4")
    whole = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    other = [f"run_dir={tmp_path}/two" if "run_dir" in word else word for word in words]
    tandem.train(*other)
    tandem.train(f"resume={tmp_path}/two", "iterations=4")
    assert (tmp_path / "two" / "metrics.jsonl").read_bytes() == whole


def test_what_is_no_callback_or_has_a_state_that_no_checkpoint_holds(plugin):
    said = words_of(call_plugin(plugin, "Plain"))
    assert said == "callbacks.own made a Plain; make a lightning.pytorch.Callback"
    assert words_of(call_plugin(plugin, "Opaque")).startswith(
        "callbacks: Opaque: the state_dict() of a"
    )


def test_what_is_no_mirror_is_refused_before_anything_is_loaded(plugin):
    node = "own: {_target_: wrong.Plain}"
    said = words_of([*plugin(CALLBACKS, logger__mine=node), "logger=mine"])
    assert said == "logger.own made a Plain; give it open, write, samples and close"
    node = "own: {_target_: lightning.pytorch.loggers.CSVLogger, save_dir: x}"
    with pytest.raises(ConfigError, match=r"CSVLogger is not among the targets"):
        check(compose([*plugin(CALLBACKS, logger__mine=node), "logger=mine"]))


def test_a_callback_with_a_state_that_only_lightning_would_save_is_refused(plugin):
    said = words_of(call_plugin(plugin, "Saving"))
    want = "callbacks.own: on_save_checkpoint of Saving is never called; return its state by"
    assert said.startswith(want)


def test_a_callback_that_raises_does_not_cost_its_iteration(plugin, tmp_path, caplog):
    with pytest.raises(OSError, match="no route"):
        tandem.train(*call_plugin(plugin, "Failing"), "checkpoints.every=9")
    assert [one.name for one in (tmp_path / "run" / "checkpoints").iterdir()] == ["step_000001"]
    assert "a callback raised at the end of iteration 1" in caplog.text


def test_a_run_that_a_callback_ends_is_finished_and_may_go_on(plugin, tmp_path):
    tandem.train(*call_plugin(plugin, "Early"), "iterations=3")
    assert completed_iterations(tmp_path / "run") == 1
    assert read(tmp_path / "run").state == "finished"
    tandem.train(f"resume={tmp_path / 'run'}", "iterations=4")
    assert completed_iterations(tmp_path / "run") == 2


STREAMS = """
import os

import torch
from tandem import register_dataset
from tandem.data.records import Data
from tandem.data.stream import Curriculum, PromptStream
from tandem.types import Prompt

class Counting(PromptStream):
    def __init__(self, prompts, *, seed):
        super().__init__(prompts, seed=seed)
        self.calls = 0

    def places(self, iteration, count, round):
        self.calls += 1
        return torch.arange(count) + 10 * self.calls

class Buffered(Counting):
    def __init__(self, prompts, *, seed):
        super().__init__(prompts, seed=seed)
        del self.calls
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def places(self, iteration, count, round):
        return torch.arange(count) + 10 * int(self.calls)

    def observe(self, sources, success):
        self.calls += 1

class Outside(PromptStream):
    def places(self, iteration, count, round):
        return torch.arange(count) - 1

class Plain:
    def __init__(self, prompts, *, seed):
        self.prompts = prompts

def asked(letter):
    words = [f"{letter}{a}{b}" for a in "abcdefgh" for b in "abcdefgh"]
    of = os.environ.get("SOURCES", "words").split()
    return tuple(
        Prompt(id=i, source=of[i % len(of)], text=f"{w}>", answer=w) for i, w in enumerate(words)
    )

@register_dataset
def drawn(*, seed: int):
    return Data(train=asked(os.environ["LETTER"]), eval=asked(os.environ.get("HELD_OUT", "j")))

@register_dataset
def by_success(*, seed: int):
    return Data(train=asked(os.environ["LETTER"]), eval=asked("j"), curriculum=Curriculum)
"""


def order(plugin, name):
    node = f"_target_: wrong.{name}\n_partial_: true\n"
    return [*plugin(STREAMS, **{f"data__curriculum__{name}": node}), f"data/curriculum={name}"]


def test_prompts_are_drawn_alike_in_a_resumed_run(plugin):
    said = words_of(order(plugin, "Counting"))
    assert said.startswith("Counting draws other prompts in a resumed run; keep its state in buff")


def test_an_order_of_prompts_may_keep_its_state_in_buffers(plugin):
    tandem.train(*order(plugin, "Buffered"), "iterations=3")


def test_what_draws_no_prompts_of_the_data_is_named(plugin):
    said = words_of(order(plugin, "Outside"))
    assert said == "Outside.places gave -1, and there are 356 prompts; give indices from 0"
    said = words_of(order(plugin, "Plain"))
    assert said == "data/curriculum made a Plain; make a tandem.data.stream.PromptStream"


def test_a_resumed_run_says_that_its_data_are_others(plugin, tmp_path, monkeypatch, caplog):
    words = [word for word in plugin(STREAMS) if not word.startswith("data.")]
    monkeypatch.setenv("LETTER", "a")
    tandem.train(*words, "data=drawn", "schedule=constant")
    tandem.train(f"resume={tmp_path}/run", "iterations=3")
    assert "has changed" not in caplog.text
    monkeypatch.setenv("LETTER", "b")
    tandem.train(f"resume={tmp_path}/run", "iterations=4")
    assert (
        "data=drawn has changed: the resumed run may differ from one without a break" in caplog.text
    )


def test_a_resumed_run_says_that_its_code_its_evaluation_and_its_precision_are_others(
    plugin, tmp_path, monkeypatch, caplog
):
    words = [word for word in plugin(STREAMS) if not word.startswith("data.")]
    monkeypatch.setenv("LETTER", "a")
    tandem.train(*words, "data=drawn", "schedule=constant")
    tandem.train(f"resume={tmp_path}/run", "iterations=3")
    assert "has changed" not in caplog.text
    monkeypatch.setenv("HELD_OUT", "c")
    plugin(f"{STREAMS}\nEDITED = True\n")
    tandem.train(f"resume={tmp_path}/run", "iterations=4", "trainer.precision=bf16-mixed")
    changed = ("plugins: wrong.py", "data=drawn of the evaluation", "trainer.precision")
    assert [name for name in changed if f"{name} has changed: the resumed" not in caplog.text] == []


def test_a_run_is_not_resumed_with_other_sources_than_its_curriculum_knows(
    plugin, tmp_path, monkeypatch, caplog
):
    words = [word for word in plugin(STREAMS) if not word.startswith("data.")]
    monkeypatch.setenv("LETTER", "a")
    tandem.train(*words, "data=by_success", "schedule=constant")
    monkeypatch.setenv("LETTER", "b")
    monkeypatch.setenv("SOURCES", "words more")
    said = words_of([f"resume={tmp_path}/run", "iterations=3"])
    assert said.startswith("the state of Curriculum does not fit these prompts: size mismatch for")
    assert said.endswith(
        "([2]); restore the data of the checkpoint, or start a new run from its weights by "
        "continue_from=RUN"
    )
    assert "data=by_success has changed" in caplog.text
    left = sorted(one.name for one in (tmp_path / "run" / "checkpoints").iterdir())
    assert left == ["step_000001", "step_000002"]


OPTIMIZERS = """
class Plain:
    def __init__(self, params, lr: float = 1e-3):
        self.param_groups = params

def nothing(params, *, lr: float = 1e-3):
    return None
"""


@pytest.mark.parametrize(("name", "kind"), [("Plain", "Plain"), ("nothing", "NoneType")])
def test_what_is_no_optimizer_is_named_before_anything_is_loaded(plugin, name, kind):
    node = f"_target_: wrong.{name}\n_partial_: true\nlr: 1.0e-3\n"
    words = [*plugin(OPTIMIZERS, **{f"optimizer__{name}": node}), f"optimizer={name}"]
    with pytest.raises(ConfigError) as refused:
        check(compose(words))
    assert str(refused.value) == f"optimizer={name} made a {kind}; make a torch.optim.Optimizer"
