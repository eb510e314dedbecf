"""The benchmark for GPUs at toy sizes on the CPU: it measures, and its formulas are right."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))  # its files are not in a package

import gpu
import gpu_flops
import gpu_models
from gpu_runs import Place
from gpu_sections import MEASURES
from gpu_sizes import REAL, TINY

pytestmark = pytest.mark.filterwarnings("ignore:.*:FutureWarning")


def find(name, folder):
    """The measurements of the section of that name."""
    section = next(s for s in TINY.sections if s.name == name)
    place = Place(device=torch.device("cpu"), folder=folder, matrix=TINY.matrix)
    return MEASURES[section.measure](section, place)


def test_real_and_toy_sizes_have_the_same_sections_and_every_measure_exists():
    names = [s.name for s in REAL.sections]
    assert names == [s.name for s in TINY.sections] and len(set(names)) == len(names)
    assert {s.measure for s in REAL.sections} == set(MEASURES)


@pytest.mark.parametrize(("shape", "billions"), [("0.6b", 0.596), ("8b", 8.19)])
def test_a_shape_is_as_large_as_its_model_card_says_and_all_matrices_are_counted(shape, billions):
    from transformers import AutoModelForCausalLM

    config = gpu_models.qwen3_config(shape)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert model.num_parameters() / 1e9 == pytest.approx(billions, rel=1e-3)
    matrices = [p.numel() for p in model.model.layers.parameters() if p.ndim == 2]
    assert gpu_flops.layer_weights(config) == sum(matrices)
    assert gpu_flops.head_weights(config) == model.get_output_embeddings().weight.numel()


def test_a_forward_pass_needs_the_operations_that_torch_counts():
    """torch counts the whole square of attention, the formula its causal half."""
    from transformers import AutoModelForCausalLM

    config = gpu_models.qwen3_config("tiny")
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    rows = torch.zeros(3, 16, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=rows, logits_to_keep=5, use_cache=False)
    width = config.num_hidden_layers * config.num_attention_heads * config.head_dim
    upper_half = 2 * width * 3 * 16**2
    rotary = config.head_dim * 16  # a product of positions and frequencies
    counted = counter.get_total_flops() - upper_half
    needed = gpu_flops.language_forward(config, torch.full((3,), 16), trained=15)
    assert abs(counted - needed) <= 3 * rotary


def test_the_flow_has_the_size_and_the_tokens_of_stable_diffusion_3_5_medium():
    own = REAL.painted
    adapter = gpu_models.RandomSD3(
        shape=own.shape,
        device="meta",
        resolution=own.resolution,
        max_sequence_length=own.text_tokens,
        encoder_dtype="bfloat16",
    )
    network = adapter.load(None, torch.bfloat16)
    held = [*network.parameters(), *network.buffers()]
    assert sum(x.numel() for x in held) == pytest.approx(2.47e9, rel=2e-3)  # its file has 4.94 GB
    assert adapter.latent_shape == (16, 64, 64) and adapter.tokens == (1024, 77 + 256)


def test_a_run_of_tokens_is_measured_in_all_its_phases(tmp_path):
    report = find("qwen3-8b lora", tmp_path)
    assert report["iterations"] == 2
    assert set(report["seconds"]) == {"sample", "reward", "complete", "train", "step"}
    assert sum(report["seconds"].values()) < 2.5 * report["seconds"]["step"]
    size = TINY.large
    sampled = report["sampled_tokens_per_second"] * report["seconds"]["sample"]
    assert 0 < sampled <= size.prompts * size.group * size.new
    read = report["trained_tokens_per_second"] * report["seconds"]["train"]
    assert read <= size.prompts * size.group * (size.longest + size.new)
    assert report["memory"]["update_estimate"] > 0
    assert "rollout_corr/abs_logp_diff" in report["reported"]


def test_a_run_of_pictures_counts_every_row_of_its_network(tmp_path):
    report = find("sd3.5-m flow_grpo, full", tmp_path)
    size, seconds = TINY.painted, report["seconds"]
    pictures = size.prompts * size.group
    assert report["pictures_per_second"] * seconds["sample"] == pytest.approx(pictures)
    random_steps = size.steps - 1
    trained = report["trained_rows_per_second"] * seconds["train"]
    assert trained == pytest.approx(2 * pictures * random_steps)  # guided: two rows of a step
    # Sampling takes one forward pass of a row, an update three, and one of the reference.
    sampled = report["sampling_flops_per_second"] * seconds["sample"]
    updated = report["update_flops_per_second"] * seconds["train"]
    held = report["memory"]
    assert 0 < held["sampling_estimate"] < held["update_estimate"]  # Adam's state and gradients
    of_a_row = sampled / (2 * pictures * size.steps)
    assert updated / of_a_row == pytest.approx(4 * trained)


@pytest.mark.slow  # so is every section; the quick tests measure a run of tokens and one of images
def test_ways_to_sample_are_compared_and_a_checkpoint_is_loaded(tmp_path):
    ways = find("qwen3-0.6b sampling", tmp_path)["ways"][4]
    assert len(ways) == 8 and all(isinstance(seconds, float) for seconds in ways.values())
    (tmp_path / "again").mkdir()
    assert find("qwen3-8b loading", tmp_path / "again")["loaded_seconds"] > 0


def test_a_section_that_fails_is_reported_and_costs_no_other(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    file = tmp_path / "gpu.json"
    known = {"took_seconds": 1.0, "loaded_seconds": 1, "written_seconds": 2, "moved_seconds": 3}
    file.write_text(json.dumps({"commit": "abc", "sections": {"qwen3-8b loading": known}}))
    own = ["--out", str(file), "--commit", "abc"]
    assert gpu.main([*own, "--only", "ceilings", "loading"]) == 1
    text = file.with_suffix(".md").read_text()
    assert "FAILED ceilings: torch sees no GPU" in text and "loaded in 1.0 s" in text
    assert gpu.main([*own, "--only", "loading"]) == 1  # a failure stays one
    with pytest.raises(SystemExit, match="is of commit abc, this is other"):
        gpu.main([*own[:2], "--commit", "other"])


def test_a_section_that_is_stopped_keeps_what_it_measured(tmp_path, monkeypatch):
    section = next(s for s in TINY.sections if s.name == "qwen3-0.6b sampling")
    monkeypatch.setattr(gpu, "TINY", replace(TINY))
    object.__setattr__(gpu.TINY, "sections", (replace(section, limit=1),))
    halfway = "import pathlib, sys, time; pathlib.Path(sys.argv[4]).write_text(%r); time.sleep(60)"
    report = json.dumps({"least_bytes_of_a_step": 8, "ways": {"4": {"tandem": 0.5}}})
    monkeypatch.setattr(gpu, "__file__", str(tmp_path / "halfway.py"))
    (tmp_path / "halfway.py").write_text(halfway % report)
    file = tmp_path / "gpu.json"
    assert gpu.main(["--tiny", "--out", str(file), "--commit", "abc"]) == 0
    text = file.with_suffix(".md").read_text()
    assert "INCOMPLETE qwen3-0.6b sampling: it was stopped after 1 s" in text
    assert "| qwen3-0.6b sampling | 4 | tandem | 500.00 ms, 8 tokens/s |" in text


@pytest.mark.slow
def test_every_section_is_measured_in_a_process_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")  # compiling takes minutes on a CPU
    own = ["--tiny", "--minutes", "15", "--out", str(tmp_path / "gpu.json")]
    assert gpu.main(own) == 0
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert list(report["sections"]) == [s.name for s in TINY.sections]


def test_what_there_is_no_time_for_is_named(tmp_path, capsys):
    own = ["--tiny", "--out", str(tmp_path / "gpu.json"), "--minutes", "0.1", "--only", "waits"]
    assert gpu.main(own) == 0
    assert "not run for lack of time: qwen3-0.6b waits" in capsys.readouterr().out
