"""The execution of notebooks: `python notebooks/execute.py [NAME...]` runs and keeps their outputs.

Kept are what cells print, the value of a last expression and figures. A hash of the cells is kept,
so that a test knows old outputs from new.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import ModuleType

import matplotlib
import matplotlib.pyplot as plt

FOLDER = Path(__file__).resolve().parent
DPI, COLOURS = 80, 64  # of a figure that is kept
Cells = list[dict]


def hash_cells(notebook: dict) -> str:
    """Of all that is executed."""
    sources = ["".join(cell["source"]) for cell in code_cells(notebook)]
    return hashlib.sha256("\0".join(sources).encode()).hexdigest()[:16]


def code_cells(notebook: dict) -> Cells:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def execute(notebook: dict) -> None:
    """Every cell in order, in a module that is __main__ to it; its outputs replace the old ones."""
    module = ModuleType("__main__")  # where functions of notebooks live
    sys.modules["__main__"] = module
    for number, cell in enumerate(code_cells(notebook), 1):
        cell["outputs"], cell["execution_count"] = run_cell(cell, module), number
    notebook["metadata"]["executed"] = hash_cells(notebook)


def run_cell(cell: dict, module: ModuleType) -> list[dict]:
    outputs, printed = [], io.StringIO()
    matplotlib.use("agg")
    plt.show = lambda: outputs.extend(take_figures())
    tree = ast.parse("".join(cell["source"]))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with redirect_stdout(printed), redirect_stderr(io.StringIO()):
        exec(compile(tree, "cell", "exec"), vars(module))
        value = None
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), vars(module))
    if text := without_paths(printed.getvalue()):
        outputs.insert(0, {"output_type": "stream", "name": "stdout", "text": lines(text)})
    if value is not None:
        data = {"text/plain": lines(repr(value))}
        result = {"output_type": "execute_result", "data": data, "metadata": {}}
        outputs.append(result | {"execution_count": None})
    return outputs


def take_figures() -> Iterator[dict]:
    """The open figures as small PNGs."""
    for number in plt.get_fignums():
        png = base64.b64encode(draw(plt.figure(number))).decode()
        yield {"output_type": "display_data", "data": {"image/png": png}, "metadata": {}}
    plt.close("all")


def draw(figure: plt.Figure) -> bytes:
    from PIL import Image

    large, small = io.BytesIO(), io.BytesIO()
    figure.savefig(large, dpi=DPI, facecolor="white")
    image = Image.open(large).convert("RGB").quantize(COLOURS)
    image.save(small, format="PNG", optimize=True)
    return small.getvalue()


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def without_paths(text: str) -> str:
    """What was printed, without the folders and the interpreter of this machine."""
    for folder in (Path.cwd(), FOLDER.parent):  # of the runs, and of the cache
        text = text.replace(f"{folder}/", "")
    return text.replace(sys.executable, "python")


@contextmanager
def elsewhere() -> Iterator[None]:
    """A folder of its own for runs."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            (Path(folder) / "experiments").symlink_to(FOLDER.parent / "experiments")
            yield
        finally:
            os.chdir(before)


def main(names: list[str]) -> None:
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not names or path.stem in names:
            notebook = json.loads(path.read_text())
            with elsewhere():
                execute(notebook)
            path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
            print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
