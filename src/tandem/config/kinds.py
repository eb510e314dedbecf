"""Groups for another kind of model, named before interpolations are resolved: theirs would fail."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from tandem.algorithm.algorithm import ON_ERRORS
from tandem.config.names import ConfigError
from tandem.config.targets import resolve
from tandem.evaluation.settings import Answers, Pictures, WrittenPictures
from tandem.types import PICTURE

# Option of evaluation -> its class; of the classes that a target has, the first one counts.
MEASURES = {"written_pictures": WrittenPictures, "pictures": Pictures, "answers": Answers}


def refuse_foreign_steps(cfg: DictConfig) -> None:
    """Raise for dynamics, or a rollout, of another kind than the model."""
    _refuse_foreign_rollout(cfg)
    chain = PICTURE in cfg.model
    for_pictures, pictures = "kernel" in cfg.dynamics, chain or "latent_size" in cfg.model
    if for_pictures == pictures:
        if (chain or not pictures) and cfg.algorithm.get("objective") in ON_ERRORS:
            raise ConfigError(
                f"algorithm={cfg.choices.algorithm} trains on finished pictures, but "
                + (
                    f"model={cfg.choices.model} also writes tokens; set algorithm=grpo"
                    if chain
                    else f"dynamics={cfg.choices.dynamics} is for tokens"
                )
            )
        return
    kinds = "pictures", "tokens"
    asked, made = kinds if for_pictures else reversed(kinds)
    chose, typed = f"algorithm={cfg.choices.algorithm}", "".join(f" {x}" for x in cfg.overrides)
    errors = cfg.algorithm.get("objective") in ON_ERRORS
    if for_pictures and (errors or (f" {chose}" in typed and " dynamics=" not in typed)):
        what = "finished pictures" if errors else f"steps of dynamics={cfg.choices.dynamics}"
        raise ConfigError(
            f"{chose} trains on {what}, but model={cfg.choices.model} makes tokens; set another "
            "algorithm, or a model of pictures, such as model=tiny_flow"
        )
    raise ConfigError(
        f"dynamics={cfg.choices.dynamics} is for {asked}, but model={cfg.choices.model} makes "
        f"{made}; set dynamics=auto, or a model of {asked}"
    )


def _refuse_foreign_rollout(cfg: DictConfig) -> None:
    chain, pictures = PICTURE in cfg.model, "latent_size" in cfg.model
    made, sampled = ("pictures", "tokens") if pictures else ("tokens", "pictures")
    fits = ("kernel" in cfg.rollout) == pictures
    if chain or PICTURE in cfg.rollout:
        made, sampled = ("a text and a picture", "one of them") if chain else ("one", "both")
        fits = chain and PICTURE in cfg.rollout
    if not fits:
        raise ConfigError(
            f"rollout={cfg.choices.rollout} samples {sampled}, but model={cfg.choices.model} makes "
            f"{made}; leave rollout out"
        )


def refuse_foreign_evaluation(cfg: DictConfig) -> None:
    """Raise for an evaluation of another kind of samples than the model makes."""
    if not isinstance(cfg.get("evaluation"), DictConfig) or "_target_" not in cfg.evaluation:
        return  # its call is refused later
    named = OmegaConf.to_container(cfg.evaluation, resolve=False)["_target_"]
    target = resolve(named, "evaluation")
    fits = "pictures" if "latent_size" in cfg.model else "answers"
    fits = "written_pictures" if PICTURE in cfg.model else fits
    bases = target.__mro__ if isinstance(target, type) else ()
    measured = next((name for name, kind in MEASURES.items() if kind in bases), fits)
    if measured != fits:
        raise ConfigError(
            f"evaluation={cfg.choices.evaluation} does not measure the samples of "
            f"model={cfg.choices.model}; set evaluation={fits}"
        )
