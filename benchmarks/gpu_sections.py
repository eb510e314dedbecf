"""The measurements of `gpu.py`: real runs of Tandem, and bare passes for comparison."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

import torch
from gpu_flops import PASSES, decoded_bytes, flow_forward, language_forward
from gpu_meter import Meter, median_seconds, synchronize, waits
from gpu_models import qwen3_config
from gpu_runs import Place, fit, memory, start
from gpu_sampling import compare
from gpu_sizes import Section

from tandem.config import build
from tandem.policies.flow.policy import FlowPolicy
from tandem.policies.language.inputs import TokenIndex
from tandem.policies.language.logprob import token_logp

Report = dict[str, object]
NOTED = ("rollout_corr/abs_logp_diff", "rollout_corr/k3", "actor/log_ratio_max", "optim/grad_norm")
BUDGETS = (2**24, 2**26, 2**28)  # logits of a chunk of the head
COPIED = {"cuda": 2**31, "cpu": 2**16}  # bytes of the tensor that measures the speed of memory


def ceilings(section: Section, place: Place) -> Report:
    """The limits of this device: a product of random matrices, and a copy."""
    side, device = place.matrix, place.device
    report: Report = {}
    for name, dtype in {"bfloat16": torch.bfloat16, "float32": torch.float32}.items():
        left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
        seconds = median_seconds(lambda a=left, b=right: a @ b, device, rounds=10)
        report[f"{name}_flops_per_second"] = 2 * side**3 / seconds
    here = torch.empty(COPIED[device.type], dtype=torch.uint8, device=device)
    there = here.clone()
    seconds = median_seconds(lambda: there.copy_(here), device, rounds=10)
    return report | {"copied_bytes_per_second": 2 * here.numel() / seconds}


def tokens(section: Section, place: Place) -> Report:
    """A run of GRPO: sampling and updates of a language model."""
    size, run = section.size, start(section, place)
    meter = Meter()
    fit(run, meter)
    config, lap = qwen3_config(size.shape), meter.counted_laps[-1]
    forward = language_forward(config, lap.read, lap.sampled)
    kind = "full" if run.module.policy.lora is None else "lora"
    update = PASSES[kind] * forward / meter.seconds("train")
    return common(meter) | {
        "sampled_tokens_per_second": lap.sampled / meter.seconds("sample"),
        "trained_tokens_per_second": int(lap.read.sum()) / meter.seconds("train"),
        "update_flops_per_second": update,
        "memory": memory(run, meter, place),
    }


def pictures(section: Section, place: Place) -> Report:
    """A run of a flow model: sampling and training of images."""
    run = start(section, place)
    policy, meter = run.module.policy, Meter()
    policy.adapter.asked = meter.count
    fit(run, meter)
    lap, per_row = meter.counted_laps[-1], of_a_row(policy)
    rows = int(lap.read.sum()) // sum(policy.adapter.tokens)
    kind = "full" if policy.model.lora is None else "lora"
    update = PASSES[kind] * rows + lap.asked.get("train", 0)
    return common(meter) | {
        "pictures_per_second": lap.samples / meter.seconds("sample"),
        "sampling_flops_per_second": per_row * lap.asked.get("sample", 0) / meter.seconds("sample"),
        "trained_rows_per_second": rows / meter.seconds("train"),
        "update_flops_per_second": per_row * update / meter.seconds("train"),
        "memory": memory(run, meter, place),
    }


def of_a_row(policy: FlowPolicy) -> float:
    """Operations of the transformer for one latent and one text."""
    adapter, text = policy.adapter, next(iter(policy.library.recent.values()))

    def call(network: torch.nn.Module) -> object:
        one = {name: torch.empty(1, *x.shape) for name, x in text.items()}
        x = torch.empty(1, *adapter.latent_shape)
        return adapter.velocity(network, x, torch.empty(1), one)

    return flow_forward(policy.model.network, call)


def sampling(section: Section, place: Place) -> Report:
    """Tandem's loop beside transformers' `generate` and bare forward passes."""
    run, size = start(section, place), section.size
    run.module.policy.to(place.device)
    read = decoded_bytes(qwen3_config(size.shape), size=2)
    ways: dict[int, dict[str, float | str]] = {rows: {} for rows in size.compared}
    report = {"least_bytes_of_a_step": read, "ways": ways}
    for rows in size.compared:
        for way, seconds in compare(run.module.policy, size, rows=rows):
            ways[rows][way] = seconds
            place.note(report)
    return report


def heads(section: Section, place: Place) -> Report:
    """The head and the log-softmax of an iteration's answers, forward and back, by the size of the
    chunks that `model.logit_budget` sets."""
    config, device, size = qwen3_config(section.size.shape), place.device, section.size
    count = size.prompts * size.group * size.new
    head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False, device=device)
    states = torch.randn(count, config.hidden_size, device=device, requires_grad=True)
    place_of = torch.arange(count, device=device)
    token = torch.randint(config.vocab_size, (count,), device=device)
    warm = torch.ones(count, device=device)
    index = TokenIndex(row=place_of, step=place_of, column=place_of, token=token, temperature=warm)

    def passes(budget: int) -> None:
        with torch.autocast(device.type, torch.bfloat16):
            numbers = token_logp(
                states, head, index, vocabulary=config.vocab_size, logit_budget=budget, also=()
            )
        numbers["logp"].sum().backward()

    report = {
        budget: median_seconds(partial(passes, budget), device, rounds=2) for budget in BUDGETS
    }
    return {"steps": count, "seconds_by_logit_budget": report}


def waiting(section: Section, place: Place) -> Report:
    """How often one iteration waits for the device, and where."""
    run = start(section, place)
    meter = Meter()
    with waits(place.device) as found:
        fit(run, meter)
    return {"waits": sum(found.values()), "where": dict(found.most_common(15))}


def loading(section: Section, place: Place) -> Report:
    """A checkpoint from disk to the device, by the usual loading code."""
    run, folder = start(section, place), place.folder / "checkpoint"
    began = time.perf_counter()
    run.module.policy.save(folder)
    written = time.perf_counter()
    cfg = run.cfg
    del run
    cfg.model.build, cfg.model.path = None, str(folder)
    policy = build(cfg.model)
    policy.load(build(cfg.algorithm).request(build(cfg.rollout)))
    loaded = time.perf_counter()
    policy.to(place.device)
    synchronize(place.device)
    moved = time.perf_counter()
    return {
        "written_seconds": written - began,
        "loaded_seconds": loaded - written,
        "moved_seconds": moved - loaded,
    }


def common(meter: Meter) -> Report:
    """Seconds of each phase of an iteration, and the run's own metrics."""
    names = dict.fromkeys(name for lap in meter.counted_laps for name in lap.seconds)
    last = meter.counted_laps[-1].report
    return {
        "iterations": len(meter.counted_laps),
        "first_iteration_seconds": meter.laps[0].seconds,
        "seconds": {name: meter.seconds(name) for name in names},
        "reported": {name: last[name] for name in NOTED if name in last},
    }


MEASURES: Mapping[str, Callable[[Section, Place], Report]] = {
    "ceilings": ceilings,
    "tokens": tokens,
    "pictures": pictures,
    "sampling": sampling,
    "heads": heads,
    "waiting": waiting,
    "loading": loading,
}
