"""Which runs are seeds of one another, and which pairs a design has."""

from dataclasses import replace

import pytest
from written_runs import write_run, write_sweep

from tandem.compare.comparison import Request, compare
from tandem.record.reading.runs import find, read
from tandem.record.reading.variants import (
    differences,
    find_shared_names,
    find_shared_seeds,
    group_runs,
    shorten,
)


def runs_of(folder):
    return [read(path) for path in find([folder])]


def test_seeds_of_one_configuration_are_one_variant(tmp_path):
    variants = group_runs(runs_of(write_sweep(tmp_path, {"grpo": [0.5] * 3, "rloo": [0.6] * 2})))
    assert {v.name: v.seeds for v in variants} == {
        "grpo": [0, 1, 2],
        "rloo": [0, 1],
    }


def test_what_was_typed_names_a_variant(tmp_path):
    for lr in (1e-4, 3e-4):
        typed = ["algorithm=grpo", f"optimizer.lr={lr}", "seed=0", "run_dir=somewhere"]
        write_run(tmp_path / str(lr), [0, 1], optimizer={"lr": lr}, overrides=typed)
    names = [v.name for v in group_runs(runs_of(tmp_path))]
    assert names == ["lr=0.0001", "lr=0.0003"]


def test_a_difference_that_nobody_typed_is_not_averaged_over(tmp_path):
    """A default that changed between two runs makes them two variants."""
    write_run(tmp_path / "before", [0, 1], optimizer={"lr": 1e-4}, seed=0)
    write_run(tmp_path / "after", [0, 1], optimizer={"lr": 2e-4}, seed=1)
    variants = group_runs(runs_of(tmp_path))
    assert sorted(v.name for v in variants) == ["lr=0.0001", "lr=0.0002"]


def test_a_name_says_no_more_than_it_takes(tmp_path):
    """Differences that follow from the algorithm are not part of the name."""
    for name, algorithm, lr in (("a", "grpo", 1e-4), ("b", "grpo", 2e-4), ("c", "rloo", 1e-4)):
        write_run(tmp_path / name, [0, 1], algorithm=algorithm, optimizer={"lr": lr})
    assert [v.name for v in group_runs(runs_of(tmp_path))] == [
        "grpo, lr=0.0001",
        "grpo, lr=0.0002",
        "rloo, lr=0.0001",
    ]


def test_a_part_is_named_by_its_function(tmp_path):
    for seed, function in enumerate(("tandem.losses.policy.ppo", "my_idea.loss")):
        write_run(tmp_path / function, [0, 1], seed=seed, critic={"loss": {"_target_": function}})
    names = [v.name for v in group_runs(runs_of(tmp_path))]
    assert sorted(names) == ["loss=my_idea.loss", "loss=ppo"]


def test_the_name_of_a_group_is_labelled_with_the_group(tmp_path):
    for seed, name in enumerate(("large", "small")):
        write_run(tmp_path / name, [0, 1], seed=seed, critic={"name": name})
    names = [v.name for v in group_runs(runs_of(tmp_path))]
    assert sorted(names) == ["critic.name=large", "critic.name=small"]


def test_where_a_run_lies_and_what_it_costs_is_no_difference(tmp_path):
    one = {"devices": 1, "precision": "32-true", "offload": []}
    two = {"devices": 2, "precision": "32-true", "offload": ["ref"]}
    engines = [{"engine": {"url": f"http://{host}", "folder": f"/{host}"}} for host in "ab"]
    write_run(tmp_path / "a", [0, 1], trainer=one, rollout=engines[0])
    other = {"trainer": two, "logger": {"csv": {}}, "micro_batch_size": 4}
    write_run(tmp_path / "b", [0, 1], seed=1, rollout=engines[1], **other)
    assert len(group_runs(runs_of(tmp_path))) == 1


def test_other_numbers_of_an_engine_are_another_variant(tmp_path):
    for seed, way in enumerate(("files", "broadcast")):
        write_run(tmp_path / way, [0, 1], seed=seed, rollout={"engine": {"transfer": way}})
    assert len(group_runs(runs_of(tmp_path))) == 2


def test_another_precision_is_another_variant(tmp_path):
    for seed, precision in enumerate(("32-true", "bf16-mixed")):
        write_run(tmp_path / precision, [0, 1], seed=seed, trainer={"precision": precision})
    assert len(group_runs(runs_of(tmp_path))) == 2


def write_split(folder, algorithm, split_of, seeds=(0, 1, 2)):
    """Runs whose data.seed is `split_of` their seed."""
    for seed in seeds:
        own = {"seed": split_of(seed), "path": "letters"}
        write_run(folder / f"{algorithm}{seed}", [0, 1], seed=seed, algorithm=algorithm, data=own)


def test_a_fixed_seed_of_the_data_does_not_set_the_run_with_this_seed_apart(tmp_path):
    for algorithm in ("grpo", "rloo"):
        write_split(tmp_path, algorithm, lambda seed: 0)
    for by in ([], ["algorithm"]):
        variants = group_runs(runs_of(tmp_path), by)
        assert {v.name: v.seeds for v in variants} == {"grpo": [0, 1, 2], "rloo": [0, 1, 2]}


def test_a_seed_of_the_data_that_follows_the_run_does_so_beside_a_fixed_one(tmp_path):
    write_split(tmp_path, "grpo", lambda seed: 0)
    write_split(tmp_path, "rloo", lambda seed: seed)
    seeds = [v.seeds for v in group_runs(runs_of(tmp_path), ["algorithm"])]
    assert seeds == [[0, 1, 2], [0, 1, 2]]


def test_a_run_of_one_seed_has_the_fixed_seed_of_the_others(tmp_path):
    write_split(tmp_path, "grpo", lambda seed: 0, seeds=[0])
    write_split(tmp_path, "rloo", lambda seed: 0)
    one, _, other, _ = runs_of(tmp_path)  # rloo has seed 1
    assert differences(one, other) == {"algorithm": ("grpo", "rloo")}


def test_the_same_seed_twice_is_no_replicate(tmp_path):
    write_run(tmp_path / "a", [0, 1])
    write_run(tmp_path / "b", [0, 1])
    with pytest.raises(ValueError, match="has seed 0 twice"):
        group_runs(runs_of(tmp_path))


def test_by_groups_by_what_is_named(tmp_path):
    write_run(tmp_path / "a", [0, 1], optimizer={"lr": 1e-4})
    write_run(tmp_path / "b", [0, 1], algorithm="rloo", optimizer={"lr": 2e-4}, seed=1)
    assert [v.name for v in group_runs(runs_of(tmp_path), ["algorithm"])] == ["grpo", "rloo"]
    with pytest.raises(ValueError, match="by=algoritm: no run has such a choice or key"):
        group_runs(runs_of(tmp_path), ["algoritm"])


def test_by_and_task_may_name_a_key_that_changes_the_cost_alone(tmp_path):
    """Such as the devices of a sweep over them, whose runs have the same seeds."""
    for devices in (1, 2):
        for seed in (0, 1):
            cost = {"threads": 8, "trainer": {"devices": devices}}
            write_run(tmp_path / f"{devices}-{seed}", [0, 1], seed=seed, **cost)
    runs = runs_of(tmp_path)
    variants = group_runs(runs, ["trainer.devices"])
    assert {v.name: v.seeds for v in variants} == {"devices=1": [0, 1], "devices=2": [0, 1]}
    found = compare(runs, Request(by=["trainer.devices"]))
    (table,) = [table for table in found.tables if table.name == "configuration"]
    assert table.columns == ("variant", "devices")
    assert table.rows == [("devices=1", "1"), ("devices=2", "2")] and len(found.pairs) == 1
    with pytest.raises(ValueError, match="threads=8 has seed 0 twice"):
        group_runs(runs, ["threads"])
    assert [v.task for v in group_runs(runs, task=["trainer.devices"])] == [
        "trainer.devices=1",
        "trainer.devices=2",
    ]


def test_of_many_keys_that_by_leaves_together_some_are_named_and_the_rest_counted(tmp_path):
    for shift in (0, 1):
        own = {f"k{i}": i + shift for i in range(9)}
        typed = [f"model.{key}={x}" for key, x in own.items()]
        write_run(tmp_path / str(shift), [0, 1], seed=shift, model=own, overrides=typed)
    said = r"model\.k0 \(0 and 1\), model\.k1, model\.k2, model\.k3 and 5 more; leave by= out"
    with pytest.raises(ValueError, match=said):
        group_runs(runs_of(tmp_path), ["algorithm"])
    assert len(group_runs(runs_of(tmp_path))) == 2  # without by, as it says


def test_what_by_leaves_together_is_one_configuration(tmp_path):
    """Three seeds at one rate and three at another are not six seeds of one algorithm."""
    for seed in range(6):
        lr = 1e-4 if seed < 3 else 1e-2
        typed = ["algorithm=grpo", f"optimizer.lr={lr}"]
        adam = {"lr": lr, "eps": lr / 100}
        write_run(tmp_path / str(seed), [0, 1], seed=seed, optimizer=adam, overrides=typed)
    said = (
        r"by=algorithm: runs of grpo differ in more than the seed: optimizer.lr "
        r"\(0.0001 and 0.01\); set by=algorithm,optimizer.lr"
    )
    with pytest.raises(ValueError, match=said):
        group_runs(runs_of(tmp_path), ["algorithm"])
    apart = group_runs(runs_of(tmp_path), ["algorithm", "optimizer.lr"])
    assert [v.seeds for v in apart] == [[0, 1, 2], [3, 4, 5]]


def test_differences_are_what_differs_and_nothing_else(tmp_path):
    one = read(write_run(tmp_path / "a", [0, 1], seed=0))
    other = read(write_run(tmp_path / "b", [0, 1], seed=1, optimizer={"lr": 2e-4, "eps": 1e-6}))
    assert differences(one, other) == {
        "optimizer.lr": (1e-4, 2e-4),
        "optimizer.eps": (None, 1e-6),
    }


def test_seeds_that_both_have_make_pairs_and_every_one_starts_alike(tmp_path):
    for seed in range(3):
        write_run(tmp_path / f"a{seed}", [0, 1], seed=seed)
    for seed in (1, 2, 3):
        write_run(tmp_path / f"b{seed}", [0, 1], algorithm="rloo", seed=seed)
    one, other = group_runs(runs_of(tmp_path))
    assert find_shared_seeds(one, other) == find_shared_seeds(other, one) == [1, 2]
    elsewhere = read(write_run(tmp_path / "c", [0, 1], algorithm="rloo", seed=2, warm_start=None))
    assert find_shared_seeds(one, replace(other, runs=[other.runs[0], elsewhere])) == []


def pair_of(tmp_path, **of_second):
    write_run(tmp_path / "a0", [0, 1], algorithm="grpo", seed=0)
    write_run(tmp_path / "b0", [0, 1], algorithm="rloo", **({"seed": 0} | of_second))
    return find_shared_seeds(*group_runs(runs_of(tmp_path), ["algorithm"]))


def test_the_same_seed_and_start_make_a_pair(tmp_path):
    assert pair_of(tmp_path) == [0]


def test_where_a_run_keeps_its_cache_is_no_start(tmp_path):
    """A flow model repeats cache_dir, which by default lies in the checkout."""
    model = {"path": "tiny", "seed": 0}
    for algorithm, home in (("nft", "/home/me"), ("awm", "/scratch/me")):
        own = model | {"cache_dir": f"{home}/.cache"}
        write_run(tmp_path / algorithm, [0, 1], algorithm=algorithm, model=own)
    assert find_shared_seeds(*group_runs(runs_of(tmp_path), ["algorithm"])) == [0]


@pytest.mark.parametrize(
    "apart",
    [{"seed": 1}, {"warm_start": None}, {"model": {"path": "other", "seed": 0}}],
    ids=["another seed", "another warm start", "another model"],
)
def test_another_seed_or_start_makes_none(tmp_path, apart):
    assert pair_of(tmp_path, **apart) == []


def test_a_key_is_named_without_its_group_where_no_other_group_has_that_name():
    """Whether or not runs differ in the other one."""
    kl = {"kl": {"coef": 0.1}}
    groups = {"evaluation": {"every": 5}, "checkpoints": {"every": 1}, "dynamics": {"kl": {}}}
    shared = find_shared_names([{"algorithm": {"loss": {}}} | groups, {"algorithm": kl}])
    alone = {"optimizer.lr": "lr", "algorithm.kl.coef": "kl.coef", "algorithm/loss": "loss"}
    assert {key: shorten(key, shared) for key in alone} == alone
    for key in ("evaluation.every", "algorithm/kl"):
        assert shorten(key, shared) == key


def test_a_recipe_that_was_left_out_names_the_variant(tmp_path):
    """Rather than the first number that differs."""
    for seed in (0, 1):
        write_run(tmp_path / f"with{seed}", [0.1], seed=seed)
        bare = {"algorithm": "grpo", "data": "letters", "recipe": None}
        typed = ["algorithm=grpo", "~recipe", f"seed={seed}"]
        write_run(
            tmp_path / f"bare{seed}",
            [0.1],
            seed=seed,
            choices=bare,
            overrides=typed,
            optimizer={"lr": 5e-4},
        )
    names = [one.name for one in group_runs(runs_of(tmp_path))]
    assert sorted(names) == ["no recipe", "with recipe"]
