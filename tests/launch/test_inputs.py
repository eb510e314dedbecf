"""Data, rewards and folders are checked before Lightning is imported or a directory is made."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.config import ConfigError, build, check, compose
from tandem.launch.inputs import check_places, read_inputs
from tandem.launch.preview import check_folders, preview

ROOT = Path(__file__).parents[2]


LISTING = """
import runpy, sys
_, script, *words = sys.argv
for dry_run in ("true", "false"):
    sys.argv = [script, *words, f"dry_run={dry_run}"]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        print(ended.code)
print(*sys.modules)
"""


@pytest.mark.system
def test_a_file_of_prompts_that_is_not_there_stops_a_run_before_heavy_imports(tmp_path):
    words = ["data=jsonl", "data.path=nope.jsonl", "run_dir=runs/a/b"]
    line = [sys.executable, "-c", LISTING, str(ROOT / "train.py")]
    done = subprocess.run(
        [*line, *words], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    said = f"data.path=nope.jsonl: No such file or directory: {tmp_path}/nope.jsonl\n"
    assert done.stderr == 2 * said
    *codes, imported = done.stdout.splitlines()
    assert codes == ["2", "2"]
    imported = {*imported.split()}
    assert "tandem.config" in imported
    assert not imported & {"lightning", "transformers", "peft", "diffusers", "wandb"}
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_no_folder_is_named_by_its_whole_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cfg = compose(["model=hf", "model.path=./nope"])
    with pytest.raises(ConfigError, match=rf"^model.path=./nope: there is no {tmp_path}/nope$"):
        check_places(cfg)
    (tmp_path / "nope").mkdir()
    check_places(cfg)
    check_places(compose(["model=hf", "model.path=Qwen/Qwen3-0.6B"]))  # the hub may have it


@pytest.mark.parametrize(
    "line", ["model=hf model.path='~nobody-here/x'", "data=folder data.path='~nobody-here/x'"]
)
def test_the_home_of_an_unknown_user_is_a_folder_that_is_not_there(line):
    with pytest.raises(ConfigError, match="path=~nobody-here/x: there is no "):
        read_inputs(compose(line.split()))


def test_the_package_of_a_reward_is_asked_for_early(monkeypatch):
    monkeypatch.setattr("tandem.rewards.math_verify.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="reward=math_verify needs a package: pip install"):
        read_inputs(compose(["reward=math_verify"]))


def test_a_dry_run_downloads_nothing():
    assert read_inputs(compose(["data=hub", "data.name=no/such", "dry_run=true"])) is None


@pytest.fixture
def rows(tmp_path):
    """A function that writes rows, of which the first `answered` have an answer."""

    def write(count: int, *, answered: int) -> str:
        said = [
            {"prompt": f"{i}"} | ({"answer": "a"} if i < answered else {}) for i in range(count)
        ]
        path = tmp_path / "rows.jsonl"
        path.write_text("\n".join(map(json.dumps, said)))
        return f"data.path={path}"

    return write


ROWS = ["data=jsonl", "data.held_out=0", "warm_start=null", "dry_run=true"]


def test_prompts_without_the_answer_that_their_reward_reads_are_refused_before_the_run(rows):
    words = [*ROWS, rows(10, answered=0)]
    with pytest.raises(ConfigError, match=r"^reward=exact_match reads the answer .* 10 of 10 "):
        read_inputs(compose([*words, "reward=exact_match"]))
    read_inputs(compose([*words, "reward=exact_match", "guards.max_missing_rewards=1"]))
    read_inputs(compose([*words, "reward=[exact_match,length]"]))  # which scores them all
    read_inputs(compose([*ROWS, rows(10, answered=9), "reward=exact_match"]))


def test_rows_may_name_a_reward_of_a_later_run_where_nothing_is_scored(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"prompt": "a", "answer": "b"}) + "\n")
    rows = f"{{_target_:tandem.data.rows.jsonl,path:{file},seed:0,held_out:0}}"
    of = f"data.of={{a:{{data:{rows},rewards:[episode]}}}}"
    words = [*ROWS[2:], "~recipe", "data=mixture", of, "algorithm=sft"]
    read_inputs(compose([*words, "evaluation.every=null"]))
    with pytest.raises(ConfigError, match=r"prompts for reward=episode, which is not configured"):
        read_inputs(compose(words))


def test_a_warm_start_without_a_row_to_imitate_is_refused_in_a_dry_run(rows, tmp_path):
    words = [*ROWS, rows(10, answered=0), "reward=length", "warm_start=['algorithm=sft']"]
    with pytest.raises(ConfigError, match=r"^warm_start: algorithm=sft imitates answers, but no"):
        preview(compose(words), tmp_path / "run", words)


def test_a_source_without_a_teacher_is_refused_before_the_run(rows):
    def read(folders, *more):
        words = [*ROWS, rows(10, answered=10), "algorithm=opd", *more]
        read_inputs(compose([*words, f"algorithm.teachers.folders={{{folders}}}"]))

    with pytest.raises(ConfigError) as refused:
        read("maze: x, sort: y")
    assert str(refused.value) == (
        "algorithm.teachers.folders={maze: ..., sort: ...} has no teacher for prompts of rows; add "
        "rows: RUN, or others: RUN for every other source"
    )
    read("maze: x, rows: y")
    read("maze: x, others: y")
    read("maze: x, sort: y", "evaluate=true")  # which asks no teacher


@pytest.mark.parametrize("reward", ["geneval", "geneval_zero_shot"])
def test_networks_inside_a_reward_are_not_loaded_by_the_checks(reward, monkeypatch):
    monkeypatch.setattr("tandem.rewards.detection.network", None)
    read_inputs(compose(["model=tiny_flow", f"reward={reward}", "dry_run=true"]))


def test_a_reward_from_outside_that_is_an_object_is_not_built_by_the_checks(tmp_path, monkeypatch):
    (tmp_path / "heavy_reward.py").write_text(HEAVY)
    monkeypatch.syspath_prepend(tmp_path)
    words = ["plugins=[heavy_reward]", "reward=Heavy", "data=sort_letters"]
    read_inputs(compose(words))
    part = "reward.ocr.function.reader={_target_:heavy_reward.Reader}"
    read_inputs(compose([words[0], "model=tiny_flow", "data=letters", "reward=ocr", part]))
    built = sys.modules["heavy_reward"].BUILT
    assert built == []
    build(compose(words).reward.Heavy)
    assert built == ["somewhere"]
    monkeypatch.delitem(sys.modules, "heavy_reward")


def test_the_algorithm_is_built_once_for_all_checks_of_the_data(monkeypatch, rows):
    built = []
    monkeypatch.setattr("tandem.launch.inputs.build", lambda x: built.append(x) or build(x))
    cfg = compose([*ROWS, rows(10, answered=10)])
    read_inputs(cfg)
    assert built.count(cfg.algorithm) == 1


@pytest.mark.parametrize("rollout", ["vllm_server", "sglang_server", "vllm_colocated"])
def test_a_folder_of_engines_that_cannot_be_is_refused_before_anything_is_loaded(tmp_path, rollout):
    (tmp_path / "file").touch()
    folder = f"rollout.engine.folder={tmp_path}/file/engine"
    url = [] if rollout == "vllm_colocated" else ["rollout.engine.url=http://127.0.0.1:1"]
    words = [
        "model=hf",
        "model.path=MODEL",
        "data=sort_letters",
        f"rollout={rollout}",
        folder,
        *url,
    ]
    said = f"^{folder}: {tmp_path}/file is a file; give a directory$"
    with pytest.raises(ConfigError, match=said):
        preview(compose(words), tmp_path / "run", words)
    for_another_machine = compose([*words, "estimate=true"])
    check_folders(for_another_machine, check(for_another_machine), tmp_path / "run", "train")


HEAVY = """
from tandem import register_reward
from tandem.rewards import batched

BUILT = []


@register_reward
@batched
class Heavy:
    def __init__(self, weights: str = "somewhere") -> None:
        BUILT.append(weights)

    def __call__(self, outputs, prompts):
        return [1.0 for _ in outputs]


class Reader:
    def __init__(self, detect: bool, min_score: float, threads: int) -> None:
        BUILT.append("reader")

    def __call__(self, pictures):
        return ["" for _ in pictures]
"""
GUIDED = {
    "tiny_flow": ("rollout.guidance_scale", "model.negative_prompt"),
    "tiny_chain": ("rollout.picture.guidance_scale", "model.picture.negative_prompt"),
}


@pytest.mark.parametrize("model", GUIDED)
def test_guidance_without_any_negative_prompt_is_refused_before_weights_are_loaded(model):
    scale, negative = GUIDED[model]
    words = [f"model={model}", f"{scale}=7", "dry_run=true"]
    with pytest.raises(ConfigError) as refused:
        read_inputs(compose(words))
    assert f"which {scale} above 1 needs; set {negative} (it may be empty), or {scale}=1" in str(
        refused.value
    )
    assert read_inputs(compose([*words, f"{negative}=''"])) is not None


def test_one_row_with_a_negative_prompt_is_enough_for_guidance(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": "red circle", "negative_prompt": "blurred"}, {"prompt": "blue circle"}]
    path.write_text("\n".join(map(json.dumps, rows)))
    words = ["model=tiny_flow", "data=jsonl", f"data.path={path}", f"data.eval_path={path}"]
    guided = [*words, "reward=nearest_rendering", "rollout.guidance_scale=7", "warm_start=null"]
    assert read_inputs(compose(guided)) is not None


def test_guidance_of_evaluation_alone_asks_nothing_of_the_prompts_to_train_on():
    guided = ["model=tiny_flow", "evaluation.guidance_scale=3", "evaluation.every=null"]
    assert read_inputs(compose(guided)) is not None
