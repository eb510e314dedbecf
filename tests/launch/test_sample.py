import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from loaded import load_configured
from omegaconf import OmegaConf
from PIL import Image

from tandem import rng
from tandem.config import ConfigError, check, compose
from tandem.dynamics.kernels import ode
from tandem.launch import answers, sample
from tandem.policies.flow.records import FlowSampling
from tandem.record.pictures import enlarge, lay_out_grid, load
from tandem.stop import command_to_resume
from tandem.types import Prompt


def untrained(folder, *overrides):
    """A run directory with an untrained model."""
    cfg = compose(overrides)
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(cfg, resolve=True))
    policy = load_configured(cfg)
    policy.save(folder / "model")
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return untrained(tmp_path_factory.mktemp("finished"), "model=tiny_lm")


@pytest.fixture(scope="module")
def painter(tmp_path_factory):
    small = ("model.adapter.channels=[16]", "rollout.steps=2")
    return untrained(tmp_path_factory.mktemp("painter"), "model=tiny_flow", *small)


def output_of(capsys, *arguments) -> list[str]:
    sample.main([str(a) for a in arguments])
    return capsys.readouterr().out.splitlines()


def refusal_of(capsys, *arguments) -> str:
    with pytest.raises(SystemExit) as ended:
        sample.main([str(a) for a in arguments])
    assert ended.value.code not in (0, None)
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return err.splitlines()[-1]  # after the bar of a loaded model


def test_kernels_of_the_machine_that_trained_are_not_needed(finished, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    cfg = OmegaConf.load(folder / "config.yaml")
    cfg.model.update({"attn_implementation": "flash_attention_2", "liger": True})
    OmegaConf.save(cfg, folder / "config.yaml")
    assert output_of(capsys, folder, "dbca>") == output_of(capsys, finished, "dbca>")


def test_the_same_seed_answers_the_same(finished, capsys):
    first = output_of(capsys, finished, "dbca>", "--n", 4)
    assert len(first) == 4
    assert output_of(capsys, finished, "dbca>", "--n", 4) == first
    assert output_of(capsys, finished, "dbca>", "--n", 4, "--seed", 1) != first


def test_a_run_that_an_engine_sampled_for_is_asked_without_it(finished, tmp_path, capsys):
    """Nor with what only an engine does: to return rows as they finish, and to change weights."""
    words = (
        "rollout=vllm_server", "rollout.engine.url=http://127.0.0.1:9", "rollout.order=ready",
        "rollout.staleness=1", "rollout.handover=in_flight",
        "algorithm/importance_sampling=token_tis",
    )  # fmt: skip
    run = shutil.copytree(finished, tmp_path / "run")
    cfg = compose(["model=tiny_lm", *words])
    check(cfg)
    (run / "config.yaml").write_text(OmegaConf.to_yaml(cfg, resolve=True))
    assert output_of(capsys, run, "dbca>") == output_of(capsys, finished, "dbca>")


def test_greedy_answers_are_all_alike_and_as_short_as_told(finished, capsys):
    answers = output_of(
        capsys, finished, "dbca>", "--n", 3, "--temperature", 0, "--max-new-tokens", 2
    )
    assert len(set(answers)) == 1
    assert len(answers[0]) <= 2


def test_pictures_go_into_a_file_and_are_those_of_the_seed(painter, tmp_path, capsys):
    files = [tmp_path / name for name in ("first.png", "again.png", "other.png", "longer.png")]
    others = ((), (), ("--seed", 1), ("--steps", 3))
    for file, given in zip(files, others, strict=True):
        asked = (painter, "red circle", "--n", 3, "--out", file, *given)
        assert output_of(capsys, *asked) == [str(file)]
    first, again, other, longer = (load(file) for file in files)
    assert first.shape == (6 * 18, 6 * 52, 3)  # 16 pixels are shown as 96
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, longer)


def test_pictures_without_a_file_of_their_own_replace_none(painter, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("sample.png", "sample-2.png", "sample-3.png")):
        assert output_of(capsys, painter, "red circle", "--seed", number) == [name]
    assert not torch.equal(load(tmp_path / "sample.png"), load(tmp_path / "sample-2.png"))
    named = ("--seed", 2, "--out", "sample.png")  # a named file is the user's to replace
    assert output_of(capsys, painter, "red circle", *named) == ["sample.png"]
    assert torch.equal(load(tmp_path / "sample.png"), load(tmp_path / "sample-3.png"))


def test_the_folder_of_the_pictures_is_made_or_refused_before_the_model_loads(
    painter, finished, tmp_path, capsys, monkeypatch
):
    made = tmp_path / "not" / "there" / "grid.png"
    assert output_of(capsys, painter, "red circle", "--out", made) == [str(made)]
    assert load(made).shape[2] == 3
    file = tmp_path / "file"
    file.touch()
    assert output_of(capsys, finished, "dbca>", "--out", file / "unused.png")  # texts need none
    monkeypatch.setattr(answers, "load_policy", None)
    assert refusal_of(capsys, painter, "red circle", "--out", file / "grid.png") == (
        f"--out={file}: {file} is a file; give a directory"
    )


@pytest.mark.parametrize("weights", ["live", "ema"])
def test_pictures_are_of_the_weights_that_were_evaluated(weights, tmp_path, capsys):
    """Whatever weights sampled in training."""
    own = (
        "model=tiny_flow", "algorithm=nft", "model.adapter.channels=[16]", "rollout.steps=2",
        "model/ema=constant", "model.ema.decay=1.0", f"evaluation.weights={weights}",
    )  # fmt: skip
    cfg = compose(own)
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(cfg, resolve=True))
    policy = load_configured(cfg)
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter += 0.02
    policy.notify("update")
    policy.save(tmp_path / "model")
    by = replace(policy.sampling, kernel=ode, weights=weights)
    key = rng.key(0, "sample")
    want = policy.sample([Prompt(id=0, source="you", text="red circle")], 2, key=key, slots=[0],
                         sampling=by).outputs  # fmt: skip
    output_of(capsys, tmp_path, "red circle", "--n", 2, "--out", tmp_path / "two.png")
    assert torch.equal(load(tmp_path / "two.png"), enlarge(lay_out_grid(want, 2), 6))  # 16 to 96


def test_flags_of_the_other_kind_are_one_line(finished, painter, capsys):
    hot = refusal_of(capsys, painter, "red circle", "--temperature", 1)
    assert hot == "--temperature is for models of texts, but this model makes pictures"
    led = refusal_of(capsys, finished, "dbca>", "--guidance-scale", 2)
    assert led == "--guidance-scale is for models of pictures, but this model makes texts"
    guided = refusal_of(capsys, painter, "red circle", "--guidance-scale", 2)
    assert "encode a negative prompt" in guided
    weak = refusal_of(capsys, painter, "red circle", "--guidance-scale", 0.5)
    assert weak.startswith("argument --guidance-scale: 0.5 is less than 1;")


def test_a_directory_that_is_no_finished_run_is_one_line(tmp_path, capsys):
    assert "has no config.yaml; give the directory" in refusal_of(capsys, tmp_path, "dbca>")
    (tmp_path / "config.yaml").write_text("seed: 0")
    said = refusal_of(capsys, tmp_path, "dbca>")
    assert "has no model; give" in said and said.endswith(command_to_resume(tmp_path))


def test_prompts_and_numbers_that_do_not_fit_are_one_line(finished, capsys):
    assert "characters that the tokenizer does not know" in refusal_of(capsys, finished, "ÄÖ")
    assert "temperature" in refusal_of(capsys, finished, "a>", "--temperature", -1)
    assert "positions of the model" in refusal_of(capsys, finished, "a>", "--max-new-tokens", 999)


@pytest.mark.parametrize(
    ("data", "chat", "want"),
    [
        ({}, False, "how?"),
        ({}, True, [("user", "how?")]),
        ({"wording": {"chat": False, "instruction": "Think."}}, False, "how?\n\nThink."),
        (
            {"wording": {"chat": False, "instruction": "Think."}},
            True,
            [("user", "how?\n\nThink.")],
        ),
        ({"wording": {"chat": True, "instruction": None}}, False, [("user", "how?")]),
    ],
)
def test_a_prompt_is_put_as_the_data_put_theirs(data, chat, want):
    prompt = answers.make_prompt("how?", OmegaConf.create({"data": data}), chat=chat)
    turns = [(m["role"], m["content"]) for m in prompt.messages or ()]
    assert (turns or prompt.text) == want


def test_pictures_of_a_question_are_read_or_refused_in_one_line(finished, tmp_path, capsys):
    file = tmp_path / "red.png"
    Image.new("RGB", (16, 16), (255, 0, 0)).save(file)
    (picture,) = answers.make_prompt(
        "a?", answers.configuration(finished), chat=False, images=[file]
    ).images
    assert (picture.height, picture.width) == (16, 16)
    config = finished / "config.yaml"
    assert (
        refusal_of(capsys, finished, "a>", "--image", config) == f"--image {config} is no picture"
    )
    assert "reads only text" in refusal_of(capsys, finished, "a>", "--image", file)


@pytest.mark.slow
def test_a_model_that_sees_is_asked_about_pictures(tmp_path, capsys):
    watcher = untrained(tmp_path, "model=tiny_vlm", "rollout.max_new_tokens=3")
    files = [tmp_path / f"{name}.png" for name in ("red", "blue")]
    for file, colour in zip(files, ((255, 0, 0), (0, 0, 255)), strict=True):
        Image.new("RGB", (16, 16), colour).save(file)
    asked = (watcher, "colour ?", "--n", 8)
    red, again, blue = (output_of(capsys, *asked, "--image", files[i]) for i in (0, 0, 1))
    assert red == again != blue
    twice = ("--image", files[0], "--image", files[1])
    assert "pictures" in refusal_of(capsys, watcher, "<image> colour ?", *twice)


def test_frames_of_a_film_stand_side_by_side(painter, tmp_path, capsys, monkeypatch):
    film = torch.arange(3 * 4 * 5 * 3, dtype=torch.uint8).view(3, 4, 5, 3)
    monkeypatch.setattr(answers, "ask", lambda *_, **__: ((film, film), ()))
    (file,) = output_of(capsys, painter, "red circle", "--out", tmp_path / "film.png")
    assert load(file).shape == (24 * (4 + 2), 24 * (2 * (3 * 5 + 1) + 1), 3)  # 4 pixels to 96


def test_one_answer_is_the_likeliest_and_several_are_samples(finished, capsys):
    alone = output_of(capsys, finished, "dbca>")
    assert alone == output_of(capsys, finished, "dbca>", "--temperature", 0)
    assert alone == output_of(capsys, finished, "dbca>", "--seed", 5)
    assert len(set(output_of(capsys, finished, "dbca>", "--n", 8))) > 1


def test_steps_that_a_schedule_of_fixed_levels_lacks_are_refused():
    def fixed(steps: int, tokens: int) -> torch.Tensor:
        return {2: torch.tensor([1.0, 0.5, 0.0])}[steps]

    evaluation = check(compose(["model=tiny_flow", "algorithm=flow_grpo"])).evaluation
    policy = SimpleNamespace(sampling=FlowSampling(steps=2, schedule=fixed))
    assert answers.sampling_of(policy, evaluation, {"steps": 2}).steps == 2
    with pytest.raises(ConfigError, match=r"^dynamics\.schedule of --steps=3: KeyError: 3"):
        answers.sampling_of(policy, evaluation, {"steps": 3})


def test_a_missing_prompt_is_named_alone(finished, capsys):
    assert refusal_of(capsys, finished) == (
        "the following arguments are required: prompt; for example: python -m tandem sample "
        "runs/latest 'dbca>'"
    )


def test_a_file_of_another_format_is_refused(finished, capsys):
    assert refusal_of(capsys, finished, "dbca>", "--out", "grid.jpg") == (
        "argument --out: grid.jpg is no PNG file; end its name in .png; for example: "
        "python -m tandem sample runs/latest 'dbca>'"
    )


def test_overrides_are_read_after_a_flag_as_before_it(finished, capsys):
    flags, override = ("--max-new-tokens", 2), "guards.no_signal=5"
    want = output_of(capsys, finished, "dbca>", override, *flags)
    assert output_of(capsys, finished, "dbca>", *flags, override) == want
    wrong = refusal_of(capsys, finished, "dbca>", "plugins=[absent]")
    assert "absent" in wrong
    assert refusal_of(capsys, finished, "dbca>", *flags, "plugins=[absent]") == wrong
