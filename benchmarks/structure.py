"""Code metrics: `python benchmarks/structure.py [--roots DIR ...] [--save]`.

The code that a reader opens to follow one training step, the compositions per command, the keys
that a user sees, and the loss swaps that fail on a key that was not typed. `--roots` measures
several checkouts, each in its own column.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # run as a script, it finds its neighbour

from benchmarks.docstrings import publics, share  # noqa: E402

RESULTS = HERE / "results"
# Rewards that differ between the samples of random weights: without advantages nothing is learnt.
STEPS = {
    "one GRPO step (tiny_lm, 2 updates)": (
        "model=tiny_lm", "algorithm=grpo", "num_minibatches=2", "reward=format",
        "reward.format.pattern='.*[a-m]'",
    ),
    "one flow_grpo step (tiny_flow, 2 updates)": (
        "model=tiny_flow", "algorithm=flow_grpo", "reward=colour_share",
    ),
}  # fmt: skip
SHORT = ("iterations=2", "warm_start=null", "evaluation.every=null", "trainer=cpu")
LANGUAGE_PRESETS = ("grpo", "dapo", "dr_grpo", "rloo", "reinforce_pp")
PROBES = {"isinstance", "hasattr", "getattr"}
FILLED_IN = ("choices", "inherited", "overrides", "replaced")  # keys that the run fills in
IRREGULAR = re.compile(
    "begun|bound|built|chosen|drawn|found|given|gone|held|kept|known|lost|made|met|said|seen|sent|"
    "shown|spoken|taken|taught|told|won|written"
)
# After a participle they make no noun of it: `taken_in`, `said_by`.
PARTICLES = {"apart", "as", "at", "by", "from", "if", "in", "into", "of", "out", "to", "with"}
# Modules of the functions that a configuration may choose: facts on a function replace
# lists of their names.
PARTS = ("advantages", "losses", "dynamics", "data", "kl", "corrections", "weights", "collect")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--roots", type=Path, nargs="+", default=[HERE.parent], help="checkouts")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results")
    parser.add_argument("--part", choices=sorted(MEASURED), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.part is not None:
        print(json.dumps(MEASURED[chosen.part]()))
        return
    text = as_text({commit(root): measure(root.resolve()) for root in chosen.roots})
    print(text)
    if chosen.save:
        (RESULTS / "structure.md").write_text(text)


def measure(root: Path) -> dict[str, object]:
    rows = of_tree(root)
    for part in MEASURED:
        rows |= apart(root, part)
    return rows


def apart(root: Path, part: str) -> dict[str, object]:
    """One measurement in its own process, on the sources of that checkout."""
    path = os.pathsep.join([str(root / "src"), str(root)])
    threads = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--part", part],
        env=os.environ | threads | {"PYTHONPATH": path}, cwd=root, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{part}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def of_tree(root: Path) -> dict[str, object]:
    """Figures of the sources and YAML files, without running them."""
    package = root / "src" / "tandem"
    files = sorted(package.rglob("*.py"))
    trees = {path: ast.parse(path.read_text()) for path in files}
    lines = {path: path.read_text().count("\n") for path in files}
    bodies = [
        n for tree in trees.values() for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)
    ]
    config = [path for path in files if path.is_relative_to(package / "config")]
    probes = sum(count_probes(tree) for tree in trees.values())
    names = {
        node.name
        for path, tree in trees.items()
        if path.relative_to(package).parts[0].removesuffix(".py") in PARTS
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }
    lists = [entry for path in config for entry in name_lists(path, trees[path], names)]
    return {
        "modules at the top of the package": sum(p.parent == package for p in files) - 1,
        "files of Python": len(files),
        "lines of Python": sum(lines.values()),
        "files over 250 lines": sum(count > 250 for count in lines.values()),
        "functions": len(bodies),
        "lines of config/": sum(lines[path] for path in config),
        "lists of function names in config/": f"{len(lists)} ({', '.join(lists) or 'none'})",
        "isinstance, hasattr, getattr per 1,000 lines": round(
            1000 * probes / sum(lines.values()), 1
        ),
        "deepest nesting of a function": max(nesting(body) for body in bodies),
        "functions named by a participle": sum(1 for tree in trees.values() for _ in flags(tree)),
        "public docstrings that say all they must, percent": round(share(publics(package)), 1),
        "YAML files in conf/": sum(1 for _ in (root / "conf").rglob("*.yaml")),
    }


def count_probes(tree: ast.Module) -> int:
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return sum(isinstance(call, ast.Name) and call.id in PROBES for call in calls)


def name_lists(path: Path, tree: ast.Module, names: set[str]) -> Iterator[str]:
    """Module constants whose words are mostly names of selectable functions."""
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        texts = [n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant)]
        words = [word for text in texts if isinstance(text, str) for word in text.split()]
        if words and 2 * sum(word in names for word in words) > len(words):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            yield f"{path.stem}.{ast.unparse(target)}"


def flags(tree: ast.AST) -> Iterator[str]:
    """Functions named by a participle, which reads like a flag; options of a configuration, whose
    names users write, do not count."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            head, *rest = node.name.strip("_").split("_")
            regular = head.endswith("ed") and not head.endswith("eed") and head != "embed"
            is_option = any("register_" in ast.unparse(one) for one in node.decorator_list)
            participle = (regular or IRREGULAR.fullmatch(head)) and not is_option
            if participle and (not rest or rest[0] in PARTICLES):
                yield node.name


def nesting(function: ast.FunctionDef) -> int:
    """The depth of blocks around the innermost statement."""
    blocks = (ast.If, ast.For, ast.While, ast.With, ast.Try)

    def depth(node: ast.AST) -> int:
        below = [depth(child) for child in ast.iter_child_nodes(node)]
        return max(below, default=0) + isinstance(node, blocks)

    return max((depth(node) for node in function.body), default=0)


def of_steps() -> dict[str, object]:
    """Files and functions of the package that one training step enters."""
    return {
        f"{title}: files, functions, calls": ", ".join(
            str(count) for count in count_entered(overrides)
        )
        for title, overrides in STEPS.items()
    }


def count_entered(overrides: Sequence[str]) -> tuple[int, int, int]:
    """Files and functions of the package that the second step of a run enters, and its calls.

    The first step also makes the checks that are made once. Raises ValueError for a step without
    advantages, which would train nothing.
    """
    import threading

    import tandem

    try:
        from tandem.training.module import PostTraining
    except ModuleNotFoundError:  # a checkout from before the package had subpackages
        from tandem.module import PostTraining

    package, calls = str(Path(tandem.__file__).parent), Counter()
    plain = PostTraining.training_step

    def note(frame, event, _) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(package):
            calls[frame.f_code] += 1

    def trace(self, *given):
        if self.iteration == 0:
            return plain(self, *given)
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            return plain(self, *given)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    PostTraining.training_step = trace
    try:
        with tempfile.TemporaryDirectory() as folder:
            run_dir = Path(folder) / "run"
            tandem.train(*overrides, *SHORT, f"run_dir={run_dir}")
            _, second, *_ = (run_dir / "metrics.jsonl").read_text().splitlines()
            if not json.loads(second)["actor/adv_std"]:
                raise ValueError(f"all advantages are 0: {' '.join(overrides)}")
    finally:
        PostTraining.training_step = plain
    functions = [code for code in calls if code.co_name[0] != "<"]
    return len({code.co_filename for code in calls}), len(functions), calls.total()


def of_command() -> dict[str, object]:
    """Compositions per command, and the keys of a composed run of tokens."""
    import runpy

    from tandem.config import compose

    keys = user_keys(compose(["model=tiny_lm", "algorithm=grpo"]))
    flow = user_keys(compose(["model=tiny_flow"]))
    made, (module, merge) = [], of_composition()

    def count(*given):
        made.append(1)
        return merge(*given)

    setattr(module, merge.__name__, count)
    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["train.py", "dry_run=true", f"run_dir={folder}/run"]
        runpy.run_path("train.py", run_name="__main__")
    return {
        "compositions of `python train.py dry_run=true`": len(made),
        "keys of a run of tokens": len(keys),
        "keys of a run of pictures": len(flow),
    }


def user_keys(cfg: Any) -> list[str]:
    """The keys that a user may set: no targets, and none that the run fills in."""
    from tandem.config import plain

    leaves = first_of(plain, "iterate_leaves", "leaves")
    keys = [key.split(".") for key, _ in leaves(cfg)]
    private = [any(name.startswith("_") for name in names) for names in keys]
    return [
        ".".join(names)
        for names, hidden in zip(keys, private, strict=True)
        if not hidden and names[0] not in FILLED_IN
    ]


def of_composition() -> tuple[ModuleType, Callable]:
    """The module and function that every composition goes through once."""
    try:
        from tandem.config import loading
    except ImportError:  # a checkout from before files were merged by Tandem's own loader
        from tandem.config import composition

        return composition, composition._composed
    return loading, first_of(loading, "merge_files", "merged")


def first_of(module: ModuleType, *names: str) -> Callable:
    """The function by the first name that the checkout has; older ones used others."""
    return next(getattr(module, name) for name in names if hasattr(module, name))


def of_swaps() -> dict[str, object]:
    """Losses put in place of a preset's own, as a user would type it."""
    from tandem.config import ConfigError, check, compose, composition, overrides

    list_options = first_of(overrides, "list_options", "menu")
    losses = list_options(first_of(composition, "make_loader", "loader")())["algorithm/loss"]
    failed, refused, tried = [], 0, 0
    for preset in LANGUAGE_PRESETS:
        for loss in losses:
            tried += 1
            try:
                check(compose([f"algorithm={preset}", f"algorithm/loss={loss}"]))
            except ConfigError as error:
                unknown = "unknown key" in str(error)
                failed += [f"{preset}+{loss}"] if unknown else []
                refused += not unknown
    return {
        f"loss swaps of {', '.join(LANGUAGE_PRESETS)} that fail on a key nobody typed": (
            f"{len(failed)} of {tried} ({refused} refused for a reason)"
        )
    }


MEASURED = {"steps": of_steps, "command": of_command, "swaps": of_swaps}


def commit(root: Path) -> str:
    line = ["git", "-C", str(root), "log", "-1", "--format=%h, %cs"]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()


def as_text(columns: dict[str, dict[str, object]]) -> str:
    """A table with one column per commit."""
    lines = [f"| | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    for name in dict.fromkeys(name for rows in columns.values() for name in rows):
        cells = (str(rows.get(name, "")) for rows in columns.values())
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
