"""The best of a sweep: chosen on eval, trained again, measured once on test, and reported so."""

import json
import shlex
from pathlib import Path

import pytest
from compare.written_runs import write_run, write_sweep
from PIL import Image

import tandem
from tandem.compare import __main__ as compare
from tandem.compare import selection
from tandem.compare.selection import Candidate, Fresh, Selection
from tandem.config import ConfigError, compose, trust
from tandem.config.overrides import parse
from tandem.config.resume import remember
from tandem.launch.select import exit_code, list_confirming, main, parse_arguments, select
from tandem.record.latest import point_latest
from tandem.record.reading import runs
from tandem.sweep import status
from tandem.sweep.__main__ import main as show_sweep
from tandem.sweep.best import list_shared
from tandem.sweep.selection import choose_folder, choose_seeds, count_unread

PROGRAM = Path(__file__).with_name("toy_selected.py")
HOW = {"words": [], "program": PROGRAM}
TINY = (
    "algorithm=grpo", "data=sort_letters", "data.lengths={shortest: 4, longest: 4, count: 50}",
    "data.held_out=10",
)  # fmt: skip
METRIC = "eval/accuracy"


def sweep(folder, finals):
    """Seeds from 0; a dead run has its last score."""
    return write_sweep(folder / "sweep", finals)


def test_the_best_is_the_one_with_the_best_mean_and_the_dead_count(tmp_path):
    place = sweep(tmp_path, {"grpo": [0.6, 0.6], "rloo": [0.9, 0.24], "dapo": [0.5, 0.6]})
    write_run(place / "ppo-0", [0.1], iterations=9, seed=0, algorithm="ppo")
    every = [runs.read(folder) for folder in runs.find([place])]
    ranked, silent = selection.rank(every, METRIC)
    assert [one.variant.name for one in ranked] == ["grpo", "rloo", "dapo", "ppo"]
    assert silent == []


def test_a_number_of_which_more_may_be_worse_chooses_nothing(tmp_path):
    place = sweep(tmp_path, {"grpo": [0.5], "rloo": [0.6]})
    every = [runs.read(folder) for folder in runs.find([place])]
    with pytest.raises(ValueError, match="unknown whether higher is better"):
        selection.rank(every, "actor/entropy")


def test_a_metric_that_no_test_prompt_can_give_is_refused_before_any_run(tmp_path):
    place = sweep(tmp_path, {"grpo": [0.5], "rloo": [0.6]})
    with pytest.raises(ValueError, match="not measured on test prompts") as refused:
        select(place, "reward/mean", 1, **HOW)
    assert str(refused.value) == (
        "metric=reward/mean: it is not measured on test prompts, where fresh seeds are tested; set "
        "a metric of an evaluation, such as metric=eval/reward"
    )
    assert {path.name for path in tmp_path.iterdir()} == {"sweep"}


def test_a_run_gives_its_command_line_without_what_is_its_own(tmp_path):
    typed = [
        "algorithm=grpo",
        "seed=3",
        "run_dir='a'",
        "sweep_dir='b'",
        "hydra.mode=RUN",
        "epochs=2",
    ]
    run = runs.read(write_run(tmp_path / "run", [0.1, 0.2], overrides=typed))
    assert list_shared(run) == ["algorithm=grpo", "epochs=2"]


def test_seeds_are_fresh_and_stay_the_same(tmp_path):
    place = sweep(tmp_path, {"grpo": [0.1, 0.2, 0.3]})
    assert choose_seeds(place, 3, []) == [3, 4, 5]
    assert choose_seeds(place, 4, [3, 4]) == [3, 4, 5, 6]
    assert choose_seeds(place, 1, [3, 4]) == [3, 4]
    with pytest.raises(ValueError, match="seed 2 was fresh"):
        choose_seeds(place, 2, [2])


def test_the_winners_curse_stands_in_the_table():
    found = Selection(
        metric=METRIC,
        candidates=[
            Candidate(name="b", mean=0.9, seeds=[0, 1], without=[]),
            Candidate(name="a", mean=0.7, seeds=[0, 1], without=[]),
        ],
        silent=["c"],
        overrides=[],
        fresh=[
            Fresh(seed=2, folder="", state="finished", eval=0.8, test=0.6),
            Fresh(seed=3, folder="", state="failed", eval=0.6, test=0.4),
            Fresh(seed=4, folder="", state="failed", eval=None, test=None),
            Fresh(seed=5, folder="at/5", state="running", eval=None, test=None),
        ],
    )
    table = selection.table(found)
    assert table.title == "best of k = 3 by eval/accuracy: b"
    assert [list(row[:3]) for row in table.rows] == [
        ["eval/accuracy when chosen", "2", "0.900"],
        ["eval/accuracy of fresh seeds", "2", "0.700"],
        ["test/accuracy of fresh seeds", "2", "0.500"],
    ]
    said = " ".join(table.notes)
    assert "Ahead of a by 0.200" in said and "failed: 3, 4" in said and "1 had none" in said
    assert "Seed 5 is not counted, it is running: at/5" in said


def fresh(overrides):
    """The configuration with a seed that no run had."""
    return compose([*overrides, "seed=5"])


def test_only_prompts_that_nothing_has_read_are_reported_on(tmp_path):
    said = count_unread(
        fresh(TINY), [0, 1]
    )  # of 6561 strings each seed draws twenty for eval and test
    assert said is None or "are eval prompts of seeds used for the choice" in said
    assert count_unread(fresh([*TINY, "data.seed=0"]), [0, 1]) is None
    said = count_unread(fresh(["model=tiny_flow"]), [])
    assert said.startswith("12 of 12 test prompts are also used in training or evaluation: data=sh")
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"prompt": f"p{i}", "answer": "a"}) for i in range(40)))
    of_rows = ["algorithm=grpo", "data=jsonl", f"data.path={rows}"]
    with pytest.raises(ValueError, match="data=jsonl has no test prompts to report on: set data"):
        count_unread(fresh(of_rows), [])
    with pytest.raises(ValueError, match="40 of 40 test prompts are also used in training or eval"):
        count_unread(fresh([*of_rows, f"data.test_path={rows}"]), [])


def test_test_prompts_that_differ_in_their_image_or_maze_are_others(tmp_path):
    """Their texts are equal, but no run has read what is asked."""
    of_images = []
    for split, shade in {"train": 0, "eval": 100, "test": 200}.items():
        Image.new("RGB", (16, 16), (shade,) * 3).save(tmp_path / f"{split}.png")
        row = {"prompt": "what <image>?", "images": [f"{split}.png"], "answer": split}
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(row))
        of_images.append(f"data.{split}_path={tmp_path / split}.jsonl".replace("train_", ""))
    images = ["algorithm=grpo", "model=tiny_vlm", "data=jsonl", *of_images]
    assert count_unread(fresh(images), [0]) is None
    with pytest.raises(ValueError, match="1 of 1 test prompts are also used in training or eval"):
        count_unread(fresh([*images, f"data.test_path={tmp_path}/eval.jsonl"]), [0])
    for data in ("maze", "maze_shown"):
        few = (f"data={data}", "data.mazes=50", "data.demonstrations=1", "data.seed=0")
        assert count_unread(fresh(few), [0]) is None


def test_data_without_test_prompts_is_refused_with_what_adds_some(tmp_path):
    """Also where a preset or a mixture chose the dataset."""
    rows = [json.dumps({"prompt": word, "answer": "abc"}) for word in ("cab>", "bca>")]
    (tmp_path / "train.jsonl").write_text("\n".join(rows))
    Image.new("RGB", (16, 16)).save(tmp_path / "x.png")
    (tmp_path / "x.txt").write_text("red circle")
    path, file = f"data.path={tmp_path}", f"path: {tmp_path}/train.jsonl"
    own = "{_target_: tandem.data.rows.jsonl, " + file + ", seed: 0}"
    cases = {
        ("data=folder", path): "put a test.jsonl or a test.txt into the folder",
        ("data=image_folder", path): "put folders named train and test into data.path",
        ("data=sort_letters", "data.held_out=0"): "set data.held_out above 0",
        ("data=mixture", f"data.of={{a: {{data: {own}}}}}"): "give test prompts to one of data.of",
        (
            "data=dapo_math", f"data.name={tmp_path}", "data.columns.answer=answer"
        ): "set data.split.test to the name of a split",
        ("data=riddles",): "choose other data, or give its Data a test",
    }  # fmt: skip
    for words, how in cases.items():
        with pytest.raises(ValueError, match=f"{words[0]} has no test prompts to report on: {how}"):
            count_unread(fresh(words), [])


def test_fresh_runs_are_trained_asked_once_and_what_failed_is_done_again(tmp_path, capsys):
    place = tmp_path / "sweep"
    for seed, score in enumerate((0.9, 0.7)):
        write_run(place / f"a{seed}", [0.0, score], seed=seed, overrides=[*TINY, f"seed={seed}"])
    found = select(place, None, 2, **HOW)
    assert [(run.seed, run.state, run.eval, run.test) for run in found.fresh] == [
        (2, "finished", 0.5, 0.4), (3, "failed", None, None),
    ]  # fmt: skip
    fresh = choose_folder(place, found.overrides)
    (fresh / "mended").touch()
    found = select(place, None, 2, **HOW)
    assert [run.test for run in found.fresh] == [0.4, 0.4]
    assert (fresh / "asked").read_text().split() == ["seed=2", "seed=3"]
    assert selection.read(place) == found
    capsys.readouterr()
    compare.main([str(place)])
    said = " ".join(capsys.readouterr().out.split())
    assert "best of k = 1 by eval/accuracy: grpo" in said
    assert "test/accuracy of fresh seeds 2 0.400" in said


def of_algorithm(place, algorithm, scores):
    for seed, score in enumerate(scores):
        typed = [f"algorithm={algorithm}", *TINY[1:], f"seed={seed}"]
        folder = place / f"{algorithm}-{seed}"
        write_run(folder, [0.0, score], seed=seed, algorithm=algorithm, overrides=typed)


def test_another_choice_trains_runs_of_its_own_and_leaves_those_of_the_first(tmp_path):
    place = tmp_path / "sweep"
    of_algorithm(place, "grpo", (0.9, 0.7))
    first = select(place, None, 1, **HOW)
    of_algorithm(place, "rloo", (0.9, 0.95))
    (place / selection.FILE).rename(tmp_path / "old.json")
    second = select(place, None, 1, **HOW)
    assert second.best.name == "rloo"
    trained = [Path(run.folder) for one in (first, second) for run in one.fresh]
    said = [json.loads((folder / "job.json").read_text())["overrides"][0] for folder in trained]
    assert said == ["algorithm=grpo", "algorithm=rloo"]
    assert all((folder / "evaluation_test.json").is_file() for folder in trained)


def test_numbers_of_another_run_and_of_one_that_goes_on_are_not_those_of_the_choice(tmp_path):
    place = tmp_path / "sweep"
    of_algorithm(place, "grpo", (0.9,))
    fresh = choose_folder(place, list_shared(runs.read(place / "grpo-0")))
    for seed, typed in ((1, ["algorithm=rloo"]), (2, ["algorithm=grpo", *TINY[1:], "seed=2"])):
        folder = write_run(fresh / f"seed={seed}", [0.0, 0.8], seed=seed)
        (folder / "evaluation_test.json").write_text('{"eval/accuracy": 0.8}')
        start = status.Start(
            overrides=typed, launch="a", number=1, host="a", pid=1, seconds=1.0, code=None,
            reason=None,
        )  # fmt: skip
        status.write_start(folder, start)
    with status.lock_folder(fresh / "seed=2") as lock:
        assert lock is not None
        found = select(place, None, 2, **HOW)
    assert [(run.state, run.eval, run.test) for run in found.fresh] == [
        ("taken", None, None), ("running", None, None),
    ]  # fmt: skip
    assert not found.complete
    assert len(list(fresh.glob("*/evaluation_test.json"))) == 2


def test_a_run_that_does_not_answer_is_named_and_the_exit_code_says_so(tmp_path):
    place = tmp_path / "sweep"
    of_algorithm(place, "grpo", (0.9,))
    mute = choose_folder(place, list_shared(runs.read(place / "grpo-0"))) / "mute"
    mute.parent.mkdir()
    mute.touch()
    found = select(place, None, 1, **HOW)
    log = mute.parent / "seed=1" / selection.SAID
    said = f"Seed 1 has no test score: see {log}."
    assert said in selection.table(found).notes and "out of memory" in log.read_text()
    assert [exit_code(found, count) for count in (1, 2)] == [1, 75]
    mute.unlink()
    found = select(place, None, 1, **HOW)
    assert said not in selection.table(found).notes and exit_code(found, 1) == 0


@pytest.mark.parametrize("text", ["null", "NaN"])  # NaN: written by earlier versions
def test_a_test_without_any_score_is_none_and_is_measured_again(tmp_path, text):
    place = tmp_path / "sweep"
    of_algorithm(place, "grpo", (0.9,))
    score = choose_folder(place, list_shared(runs.read(place / "grpo-0"))) / "score"
    score.parent.mkdir()
    score.write_text(text)
    found = select(place, None, 1, **HOW)
    (run,) = found.fresh
    assert run.test is None and exit_code(found, 1) == 1 and selection.read(place) == found
    said = f"Seed 1 has no test score: see {run.folder}/{selection.SAID}."
    assert said in selection.table(found).notes
    score.unlink()
    found = select(place, None, 1, **HOW)
    assert found.fresh[0].test == 0.4 and exit_code(found, 1) == 0


def test_a_value_that_the_runs_redact_is_given_again_and_stays_out_of_the_files(tmp_path):
    place, secret = tmp_path / "sweep", "sk-abc123abc123abc"
    typed = [*TINY, "++rollout.stop=[<redacted>]", "run_dir=a"]
    write_run(place / "a", [0.0, 0.9], seed=0, overrides=typed)
    with pytest.raises(ConfigError, match=r"; give rollout\.stop=\.\.\. on the command line$"):
        select(place, None, 1, **HOW)
    given = f"rollout.stop=['{secret}']"
    assert list_confirming([given, "metric=eval/reward"]) == [given]
    assert select(place, None, 1, words=[str(place), given], program=PROGRAM).complete
    texts = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert any("rollout.stop=['<redacted>']" in text for text in texts)
    assert not any(secret in text for text in texts)


def test_the_command_of_the_fresh_runs_is_the_one_that_was_given(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tandem.launch.select.conf_folder", lambda: tmp_path / "conf")
    (tmp_path / "train.py").write_text(PROGRAM.read_text())
    place = tmp_path / "a sweep"
    typed = [*TINY, "seed=2"]  # the program breaks under the next seed
    write_run(place / "a", [0.0, 0.9], seed=2, also={"eval/reward": [0.0, 0.9]}, overrides=typed)
    words = [str(place), "metric=eval/reward", "seeds=1", "plugins=[]"]
    with pytest.raises(SystemExit):
        main(words)
    (fresh,) = tmp_path.glob("a sweep-selected-*")
    capsys.readouterr()
    show_sweep([str(fresh)])
    command = capsys.readouterr().out.partition("Repeat the command to run what is missing (1):")[2]
    assert shlex.split(command) == ["tandem", "select", *words]


def test_a_choice_that_would_be_another_now_is_not_overwritten(tmp_path):
    place = sweep(tmp_path, {"grpo": [0.6, 0.5]})
    before = Selection(
        metric=METRIC,
        candidates=[Candidate(name="rloo", mean=0.6, seeds=[0], without=[])],
        silent=[],
        overrides=[],
        fresh=[],
    )
    selection.write(place, before)
    with pytest.raises(
        ValueError, match="holds rloo, chosen by eval/accuracy, but the choice would now be grpo"
    ):
        select(place, None, 1, **HOW)


@pytest.fixture
def trusting_nothing(tmp_path, monkeypatch):
    """A user who has started no run and named nothing yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.setenv("BANK_PASSWORD", "12345678")
    for name in ("VARIABLES", "KEPT", "HOSTS", "STARTS", "COMMANDS", "FOLDERS"):
        monkeypatch.setattr(trust, f"SAID_{name}", set())


ASKING = ["reward=http", "reward.http.url=http://evil.example:80"]
KEY = "reward.http.token_env=BANK_PASSWORD"
PROGRAM_WORDS = ["environment=agent", "environment.world.command=[sh,-c,id]"]
ENGINE = ["rollout=vllm_colocated", "model=qwen3_0_6b"]


FOUND = [
    "rollout=vllm_server", "model=qwen3_0_6b", "rollout.engine.url=auto",
    "rollout.engine.folder=/evil",
]  # fmt: skip


def start_of(words):
    return f"warm_start=[{','.join(map(repr, ['algorithm=grpo', *words]))}]"


@pytest.mark.usefixtures("trusting_nothing")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (ASKING, r"^reward\.http.*\.url: the run would connect to http://evil\.example, which you"),
        (ENGINE, r"^rollout\.engine\.starts: the run would start a program, "),
        ([start_of(ASKING)], r"^warm_start: reward\.http.*the run would connect to http://evil\."),
        (["cache_dir=/evil"], r"^cache_dir=/evil: the run would read this folder, which you"),
        (FOUND, r"^rollout\.engine\.folder=/evil: the run would read this folder, which you have"),
        ([start_of([*ASKING, KEY])], r"^warm_start: reward.*BANK_PASSWORD: the variable would be"),
        (
            [start_of(PROGRAM_WORDS)],
            r"^warm_start: environment.*: the run would start a program, sh",
        ),
    ],
    ids=["server", "engine", "start", "cache", "addresses", "variable", "program"],
)
def test_a_foreign_sweep_starts_and_asks_nothing_that_the_user_has_not_named(tmp_path, words, said):
    typed = [*TINY, "~recipe", *words] if "model" not in str(words) else [TINY[0], *words]
    write_run(tmp_path / "sweep" / "a", [0.0, 0.9], seed=0, overrides=typed)
    with pytest.raises(ConfigError, match=said):
        select(tmp_path / "sweep", None, 1, **HOW)
    assert {path.name for path in tmp_path.iterdir()} == {"sweep"}
    assert trust.SAID_HOSTS == trust.SAID_COMMANDS == trust.SAID_VARIABLES == set()


@pytest.mark.usefixtures("trusting_nothing")
def test_a_sweep_of_ones_own_is_selected_and_a_foreign_one_once_its_server_is_named(
    tmp_path, capsys
):
    cache = f"cache_dir={tmp_path}/cache"
    typed = [*TINY, "~recipe", *ASKING, start_of(ASKING), cache]
    for name in ("own", "foreign"):
        write_run(tmp_path / name / "a", [0.0, 0.9], seed=0, overrides=typed)
    mine = compose([*typed, "run_dir=x"])
    remember(mine)  # as the run did that this user started
    trust.SAID_HOSTS.clear()
    trust.SAID_FOLDERS.clear()
    assert select(tmp_path / "own", None, 1, **HOW).complete
    trust.place().unlink()
    with pytest.raises(SystemExit):
        main([str(tmp_path / "foreign"), "seeds=1"])
    assert "which you have not named" in capsys.readouterr().err
    named = [ASKING[1], cache]
    assert list_confirming([str(tmp_path / "foreign"), "seeds=1", "metrik=@", *named]) == named
    trust.believe(parse(named))
    assert select(tmp_path / "foreign", None, 1, **HOW).complete


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sweep", "metrik=x"], "unknown option 'metrik': did you mean 'metric'?"),
        (["sweep", "--seed", "3"], "unknown flag '--seed': did you mean seeds=...?"),
        (["sweep", "--seeds=3"], "unknown flag '--seeds': did you mean seeds=...?"),
        (["sweep", "seeds=0"], "seeds=0: give a number of seeds, at least 1"),
        (["one", "two"], "give the folder of one sweep"),
        (["sweep"], "there is no run in it"),
    ],
)
def test_a_command_line_that_cannot_be_is_one_line(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_the_link_to_the_last_sweep_is_the_sweep_that_it_points_to_now(tmp_path, monkeypatch):
    """Or the fresh runs of two sweeps would share the names beside the link."""
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "sweeps" / "first"
    place.mkdir(parents=True)
    point_latest(place, place.parent)
    assert parse_arguments(["sweeps/latest"])[0] == parse_arguments([str(place)])[0] == place


@pytest.mark.slow
def test_a_sweep_of_two_rates_is_selected_from_end_to_end(tmp_path, monkeypatch, capsys):
    few = (
        "data=sort_letters", "data.lengths={shortest: 2, longest: 4, count: 200}", "data.seed=0",
        "data.held_out=10", "iterations=2", "warm_start=null", "prompts_per_step=4",
        "evaluation.samples=1", "evaluation.pass_at=[]", "guards.no_signal=9", "threads=1",
    )  # fmt: skip
    place = tmp_path / "sweep"
    for rate in ("1e-3", "1e-5"):
        tandem.train(*few, f"optimizer.lr={rate}", f"run_dir={place}/{rate}")
    with pytest.raises(SystemExit) as ended:
        main([str(place), "seeds=1"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "best of k = 2 by eval/accuracy" in said and "test/accuracy of fresh seeds | 1 |" in said
    (fresh,) = tmp_path.glob("sweep-selected-*")
    assert (fresh / "seed=1" / "evaluation_test.json").is_file()
