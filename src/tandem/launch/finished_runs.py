"""Finished runs whose weights another run begins with."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from tandem.config import ConfigError
from tandem.config.overrides import parse
from tandem.policies.flow.teachers import TRANSFORMER
from tandem.record.foreign import UNREADABLE, read_config, reason_of
from tandem.registry.nodes import as_text
from tandem.stop import command_to_resume

CONFIGS = ("config.json", TRANSFORMER, "text/config.json")  # of a language model, a flow, a chain


def finished_model(run_dir: Path) -> Path:
    """The folder of the final model of a run."""
    if not has_model(run_dir):
        begun = (run_dir / "config.yaml").is_file()
        finish = f", or finish it first: {command_to_resume(run_dir)}" if begun else ""
        raise ConfigError(
            f"continue_from={run_dir} has no model/; give the directory of a finished run{finish}"
        )
    return run_dir / "model"


def read_run(run_dir: Path) -> DictConfig:
    """The configuration of another run. Raises ConfigError for a record that cannot be read."""
    try:
        return OmegaConf.create(as_text(read_config(run_dir / "config.yaml")))
    except UNREADABLE as error:
        raise ConfigError(f"{run_dir}/config.yaml: {reason_of(error)}") from None


def has_model(run_dir: Path) -> bool:
    return any((run_dir / "model" / name).is_file() for name in CONFIGS)


def refuse_two_starts(cfg: DictConfig) -> None:
    """Refuse a warm start that was typed beside `continue_from`, which takes the place of a
    preset's own."""
    typed = [part.input_line for part in parse(cfg.overrides) if part.key_or_group == "warm_start"]
    if typed and cfg.warm_start is not None:
        raise ConfigError(
            f"{typed[-1]} trains weights to begin with, and continue_from={cfg.continue_from} has "
            "them; leave one of the two out"
        )


def refuse_untyped_model(cfg: DictConfig) -> None:
    """Refuse weights of another model in the default one, whose numbers are made for its size."""
    typed = {part.key_or_group: part.input_line for part in parse(cfg.overrides)}
    chosen = cfg.choices.model
    if "model" in typed or "build" not in cfg.model:  # or an experiment chose another
        return
    if "model.path" in typed:
        raise ConfigError(
            f"{typed['model.path']}: without model= these weights would be trained with the "
            f"numbers of the embedded {chosen}; add model=hf, or model={chosen}"
        )
    if "continue_from" in typed:
        finished_model(Path(cfg.continue_from))
        before = read_run(Path(cfg.continue_from)).get("choices", {}).get("model", chosen)
        if before != chosen:
            raise ConfigError(
                f"{typed['continue_from']} takes the weights alone, and the run was of "
                f"model={before}: repeat its words ({cfg.continue_from}/config.yaml has them as "
                f"overrides), or add model={chosen}"
            )
