"""The folder's own scheduler compared with the chosen schedule."""

import json
import warnings
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.testing import assert_close

from tandem.dynamics import schedules
from tandem.dynamics.kernels import ode
from tandem.policies.flow.adapter import Canvas
from tandem.policies.flow.admission import warn_of_evaluation, warn_of_schedule
from tandem.policies.flow.families.scheduler import (
    flags_of,
    interpolated_shift,
    pipeline_levels,
    schedule_of,
)
from tandem.policies.flow.families.z_image import ZImage
from tandem.policies.flow.records import FlowSampling
from tandem.policies.flow.solvers import dpm_solver

STEPS, TOKENS = 6, 1024
DYNAMIC = {"use_dynamic_shifting": True, "base_shift": 0.5, "max_shift": 0.9}
CONFIGS = [
    ({"shift": 3.0}, False),
    ({"shift": 3.0}, True),
    ({"shift": 1.0}, True),
    ({**DYNAMIC, "max_image_seq_len": 8192, "shift_terminal": 0.02}, True),
    ({**DYNAMIC, "time_shift_type": "linear"}, True),
]
UNNAMED = [  # levels that no schedule has
    (DYNAMIC, False),
    ({"shift": 3.0, "use_karras_sigmas": True}, True),
    ({"shift": 3.0, "use_beta_sigmas": True}, False),
    ({**DYNAMIC, "time_shift_type": "linear", "shift_terminal": 0.02}, True),
]


def write(folder, config, kind="FlowMatchEulerDiscreteScheduler"):
    (folder / "scheduler").mkdir(exist_ok=True)
    (folder / "scheduler" / "scheduler_config.json").write_text(json.dumps(config))
    (folder / "model_index.json").write_text(json.dumps({"scheduler": ["diffusers", kind]}))
    return folder


def build(flags):
    """The schedule that a command line chooses."""
    first, *rest = flags.split()
    numbers = dict(word.removeprefix("dynamics.schedule.").split("=") for word in rest)
    function = getattr(schedules, first.removeprefix("dynamics/schedule="))
    return function(STEPS, TOKENS, **{name: float(x) for name, x in numbers.items()})


@pytest.mark.parametrize(("config", "even"), CONFIGS)
def test_the_flags_that_are_named_give_the_levels_of_the_scheduler(config, even, tmp_path):
    folder = write(tmp_path, config)
    mu = interpolated_shift(config, TOKENS)
    levels = pipeline_levels(folder, STEPS, even=even, mu=mu)
    flags = flags_of(schedule_of(config, even=even), levels, TOKENS)
    assert_close(build(flags), levels, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("config", "even"), UNNAMED)
def test_no_flags_are_named_for_levels_that_no_schedule_gives(config, even, tmp_path):
    levels = pipeline_levels(write(tmp_path, config), STEPS, even=even, mu=0.7)
    assert flags_of(schedule_of(config, even=even), levels, TOKENS) is None


def test_a_scheduler_of_second_order_is_named_by_its_shift(tmp_path):
    config = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 5.0}
    folder = write(tmp_path, config, "UniPCMultistepScheduler")
    levels = pipeline_levels(folder, STEPS, even=False, mu=1.0)
    flags = flags_of(schedule_of(config, even=False), levels, TOKENS)
    assert_close(build(flags), levels, atol=2e-3, rtol=0)


@pytest.mark.parametrize("tokens", [64, 4300, 4301])
def test_the_schedule_of_flux2_is_that_of_its_pipeline(tokens):
    from diffusers.pipelines.flux2.pipeline_flux2 import compute_empirical_mu

    for steps in (4, 10, 50, 200):
        want = compute_empirical_mu(image_seq_len=tokens, num_steps=steps)
        assert schedules.flux2_shift(steps, tokens) == pytest.approx(want, rel=1e-12)


def asking(folder, *, others=None, **options):
    """The warnings for a Z-Image in that folder; `others`: the solvers of an evaluation."""
    adapter = ZImage()
    adapter.folder = folder
    adapter.canvas = lambda resolution: Canvas(latent_shape=(16, 64, 64), tokens=TOKENS)
    own = FlowSampling(steps=4, **options)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", category=UserWarning)
        if others is None:
            warn_of_schedule(adapter, own, path="a/b")
        else:
            evaluated = [replace(own, kernel=ode, solver=one) for one in others]
            warn_of_evaluation(adapter, own, evaluated, path="a/b")
    return [str(one.message) for one in said]


def test_a_folder_that_is_sampled_at_other_levels_than_its_own_is_told(tmp_path):
    folder = write(tmp_path, {"shift": 6.0})
    (said,) = asking(folder)
    assert "model.path=a/b: its scheduler takes 4 steps at noise levels 1 0.947" in said
    assert said.endswith("set dynamics/schedule=linear_shift dynamics.schedule.shift=6")
    assert not asking(write(tmp_path, {"shift": 3.0}))
    assert not asking(write(tmp_path, {"shift": 3.001}))
    (folder / "scheduler" / "scheduler_config.json").unlink()
    assert not asking(folder)


def test_a_solver_of_levels_of_its_own_is_compared_too(tmp_path):
    by_dpm = {"kernel": ode, "solver": partial(dpm_solver, shift=3.0)}
    (said,) = asking(write(tmp_path, {"shift": 6.0}), **by_dpm)
    assert "but dynamics.solver at 1 0.9 " in said
    assert said.endswith("dynamics.schedule.shift=6 dynamics.solver.shift=null")
    assert not asking(write(tmp_path, {"shift": 3.0}), **by_dpm)
    (said,) = asking(write(tmp_path, {"shift": 6.0, "use_beta_sigmas": True}), **by_dpm)
    assert said.endswith("; no dynamics/schedule reproduces the scheduler's levels")


def test_a_solver_of_evaluation_is_compared_as_that_of_training_is(tmp_path):
    solver, folder = partial(dpm_solver, shift=3.0), write(tmp_path, {"shift": 6.0})
    (said,) = asking(folder, others=[solver])
    assert "but evaluation.solver at 1 0.9 " in said
    assert said.endswith("dynamics.schedule.shift=6 evaluation.solver.shift=null")
    assert not asking(folder, others=[None])  # levels that were checked at load
    assert not asking(folder, kernel=ode, solver=solver, others=[partial(dpm_solver, shift=3.0)])
    assert not asking(write(tmp_path, {"shift": 3.0}), others=[solver])


def test_a_solver_of_equal_distances_may_stand_for_a_pipeline_of_others(tmp_path, monkeypatch):
    """DiffusionNFT's solver, published for SD 3.5, whose own levels are shifted twice."""
    monkeypatch.setattr(ZImage, "even", False)
    by_dpm = {"kernel": ode, "solver": partial(dpm_solver, shift=3.0)}
    folder = write(tmp_path, {"shift": 3.0})
    assert not asking(folder, **by_dpm)
    follows = {"kernel": ode, "solver": dpm_solver}
    assert not asking(folder, schedule=schedules.diffusers_default, **follows)


def test_a_schedule_of_other_levels_is_heard_of_before_a_step_is_taken(tmp_path):
    schedule = lambda steps, tokens: torch.linspace(1, 0, steps + 1)  # noqa: E731
    folder = write(tmp_path, {"shift": 1.0})
    assert not asking(folder, schedule=schedule)
    (said,) = asking(write(tmp_path, DYNAMIC), schedule=schedule)
    assert "exponential_dynamic_shift dynamics.schedule.base_shift=0.5" in said
