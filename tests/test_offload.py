"""Parts kept in host memory while unused; whole runs are in test_pretend_device.py."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from loaded import request_of
from torch import nn

import tandem.launch.run as run_module
from tandem.config import ConfigError, build, check, compose
from tandem.launch.memory_estimate import footprint, peak, work_of
from tandem.policies.weights import bring_when_called, lend
from tandem.record.run_record import RunRecord
from tandem.training.callbacks import OptimizerOffload, Resume
from tandem.training.offload import with_offloading

META = torch.device("meta")


class Placed(nn.Module):
    """A network that records where it was moved and where it was called."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.seen = []

    def to(self, device):
        self.seen.append(str(device))
        return super().to(device)

    def forward(self, x):
        self.seen.append("called")
        return x


def test_a_network_is_lent_to_a_device_and_stays_or_returns():
    stays, returns = Placed(), Placed()
    with lend(stays, META, returns=False):
        stays.seen.append("asked")
    # Nothing can return from torch's meta device, so tests observe the attempt.
    with pytest.raises(NotImplementedError), lend(returns, META, returns=True):
        returns.seen.append("asked")
    assert stays.seen == ["meta", "asked"] and returns.seen == ["meta", "asked", "cpu"]


def test_a_network_comes_for_each_of_its_calls():
    network = Placed()
    bring_when_called(network, META)
    with pytest.raises(NotImplementedError):
        network(torch.ones(2))
    assert network.seen == ["meta", "called", "cpu"]


def optimizers():
    for make in (torch.optim.AdamW, torch.optim.SGD):
        weights = [nn.Parameter(torch.linspace(-1, 1, 64).view(8, 8)) for _ in range(2)]
        options = {"lr": 0.1} | ({"momentum": 0.9} if make is torch.optim.SGD else {})
        yield weights, make, options


def test_an_optimizer_whose_state_is_away_takes_the_same_steps():
    for (stays, away), make, options in optimizers():
        plain = make([stays], **options)
        moved = with_offloading(partial(make, **options))([away])
        for _ in range(3):
            for weight, optimizer in ((stays, plain), (away, moved)):
                weight.grad = weight.detach().sin()
                optimizer.step()
        assert torch.equal(stays, away)
        assert plain.state_dict()["state"].keys() == moved.state_dict()["state"].keys()


class Started(Exception):
    """Raised instead of training, with the callbacks of that run."""


def test_the_state_that_a_run_goes_on_with_is_laid_in_host_memory(tmp_path, monkeypatch):
    def start(devices, callbacks):
        raise Started(callbacks)

    monkeypatch.setattr(run_module, "trainer_for", start)
    settings = check(compose(["model=tiny_lm", "trainer.offload=[optimizer]"]))
    settings, data = replace(settings, resume="it"), SimpleNamespace(eval=())
    with pytest.raises(Started) as started:
        run_module.fit(None, settings, data, RunRecord(tmp_path), ())
    (called,) = started.value.args
    kinds = [type(one) for one in called]
    lays_away = kinds.index(OptimizerOffload)
    assert kinds.index(Resume) < lays_away
    weight = nn.Parameter(torch.ones(2, device=META))
    optimizer = torch.optim.AdamW([weight])
    optimizer.state[weight] = {"step": torch.tensor(1.0), "exp_avg": torch.ones(2, device=META)}
    with pytest.raises(NotImplementedError, match="out of meta"):  # a move to the CPU was tried
        called[lays_away].on_fit_start(SimpleNamespace(optimizers=[optimizer]), None)


REFUSED = {
    ("model=tiny_lm", "algorithm.kl.coef=0.01", "trainer.offload=[vae]"): "model=tiny_lm under "
    "algorithm=grpo has no vae beside its weights; set trainer.offload to optimizer or reference",
    ("model=tiny_lm", "algorithm=grpo", "trainer.offload=[reference]"): "has no reference beside",
    (
        "model=tiny_flow",
        "algorithm.kl.coef=0.01",
        "algorithm.kl.renew_every=1",
        "trainer.offload=[reference]",
    ): "has no reference beside its weights; set trainer.offload to optimizer",
    (
        "model=tiny_lm",
        "trainer=fsdp2",
        "trainer.devices=2",
        "trainer.offload=[optimizer]",
    ): "already shards them over devices",
    ("model=tiny_flow", "model.decoding=tiled"): "TinyUNetFlow has no VAE; leave it batched",
}


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_what_is_not_there_is_one_line(words):
    with pytest.raises(ConfigError, match=REFUSED[words]):
        check(compose([*words]))


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("name", ["tokens, offloaded", "pictures, offloaded"])
def test_on_a_device_a_run_has_the_same_bits_as_without(name, tmp_path, monkeypatch):
    """Mixed devices are refused, as on a GPU; the run on a CPU is compared elsewhere."""
    import device_runs

    lines = device_runs.RUNS[name]
    stays = tuple(tuple(w for w in line if "trainer.offload" not in w) for line in lines)
    assert stays != lines
    monkeypatch.setitem(device_runs.RUNS, "stays", stays)
    world = device_runs.write_models(tmp_path)
    told = device_runs.on_the_device([name, "stays"], world, tmp_path / "runs")
    away, here = (
        {k: x for k, x in told[one]["metrics"].items() if not k.startswith(("time/", "perf/"))}
        for one in (name, "stays")
    )
    assert away == here and away["optim/grad_norm"] > 0


def test_the_estimate_counts_what_is_away_while_it_is_asked():
    cfg = compose(["model=tiny_lm", "algorithm=grpo", "trainer=cpu", "warm_start=null"])
    parts = {}
    for offload in (frozenset(), frozenset({"reference", "optimizer"})):
        request = replace(request_of(cfg, frozenset({"ref_logp"})), offload=offload)
        found = footprint(build(cfg.model), request, work_of(cfg, check(cfg), 1))
        parts[bool(offload)] = {part.name: part for part in found}
    stays, away = parts[False], parts[True]
    assert away["reference"].size == stays["reference"].size
    assert (stays["reference"].phase, away["reference"].phase) == ("always", "reference")
    assert away["optimizer"].phase == "step"
    assert away["optimizer"].size == stays["optimizer"].size + stays["gradients"].size
    assert stays["optimizer"].lower.endswith("or trainer.offload=[optimizer]")
    assert stays["reference"].lower.endswith("or trainer.offload=[reference]")
    assert peak(away.values()) < peak(stays.values())
