"""The command `tandem`: its words, its version, and a word that it does not know."""

import importlib
import subprocess
import sys
from inspect import signature

import pytest

from tandem.__main__ import COMMANDS, main


@pytest.mark.parametrize("word", COMMANDS)
def test_every_word_names_a_program_that_takes_arguments(word):
    module, first, says = COMMANDS[word]
    assert len(signature(importlib.import_module(module).main).parameters) == 1
    assert all(isinstance(text, str) for text in first) and says


def test_the_usage_lists_every_word(capsys):
    main([])
    said = capsys.readouterr().out
    assert all(f"  {word} " in said for word in COMMANDS)


def test_an_unknown_word_is_refused_with_the_nearest(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["trian"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "tandem trian: no such command; did you mean train?\n"


def test_the_version_is_that_of_the_package(capsys):
    main(["--version"])
    assert capsys.readouterr().out.startswith("Tandem 0.")


@pytest.mark.slow
@pytest.mark.system
def test_training_by_the_command_is_training_by_the_script(tmp_path):
    line = [sys.executable, "-m", "tandem", "train", "dry_run=true", f"run_dir={tmp_path / 'run'}"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert "grpo" in done.stdout
