"""Checks of the options that a vLLM server reports, each with the flag to start it with."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.util import find_spec

from tandem.policies.engines.transfer import SENDERS
from tandem.policies.engines.vllm_api import backend_in
from tandem.policies.language.records import Sampling
from tandem.policies.lora import Lora

log = logging.getLogger(__name__)

WHERE = "rollout.engine"
FAITHFUL = "processed_logprobs"  # of the sampled distribution, with temperature and truncation


def model_card(models: object, name: str | None) -> Mapping[str, object]:
    """The card of the model of that name, or of the first one without a name.

    Raises ValueError if the server has no such model.
    """
    if not (cards := cards_of(models)):
        raise ValueError(f"{WHERE}.url: the server there serves no model; is it vLLM?")
    if name is not None and name not in cards:
        raise ValueError(
            f"{WHERE}.model={name}: the server has no such model; it has {', '.join(cards)}"
        )
    return next(iter(cards.values())) if name is None else cards[name]


def cards_of(models: object) -> dict[str, Mapping[str, object]]:
    """The server's card of each served model by name; {} for an invalid reply."""
    data = models.get("data") if isinstance(models, Mapping) else None
    return {card["id"]: card for card in data or () if isinstance(card, Mapping) and "id" in card}


def check_room(card: Mapping[str, object], sampling: Sampling) -> None:
    """Raise ValueError if the server's context is shorter than a prompt with its answer may be."""
    prompt = 1 if sampling.max_prompt_tokens is None else sampling.max_prompt_tokens
    wanted = prompt + sampling.max_new_tokens
    match card:
        case {"max_model_len": int(room)} if wanted > room:
            raise ValueError(
                f"rollout.max_prompt_tokens and rollout.max_new_tokens need {wanted} tokens, but "
                f"the server has room for {room}; start it with --max-model-len {wanted}"
            )


def check_episodes(card: Mapping[str, object], tokens: int) -> None:
    """Warn if the server's context is shorter than an episode may be. That may be all that the
    model reads, and the limits of an environment are far above what most of its episodes need."""
    match card:
        case {"max_model_len": int(room)} if tokens > room:
            log.warning(
                "environment: an episode may have up to %d tokens with its prompt, and the server "
                "has room for %d; unless the model reads no more, a longer one ends the run: start "
                "the server with --max-model-len %d, or lower environment.max_tokens",
                tokens,
                room,
                tokens,
            )


def check_options(config: Mapping[str, object], *, sleeps: bool) -> None:
    """Check the server's options; those it does not report are not checked.

    Raises ValueError for an option that is missing.
    """
    model = config.get("model_config")
    model = model if isinstance(model, dict) else {}
    mode = model.get("logprobs_mode", FAITHFUL)
    if mode != FAITHFUL:
        raise ValueError(
            f"the server reports {mode}, not log-probabilities under its sampling distribution; "
            f"start it with --logprobs-mode {FAITHFUL}"
        )
    if sleeps and model.get("enable_sleep_mode") is False:
        raise ValueError(
            f"{WHERE}.sleeps=true: the server cannot sleep; start it with --enable-sleep-mode"
        )


def check_adapters(config: Mapping[str, object], lora: Lora | None, sampling: Sampling) -> None:
    """Check that the server takes the adapters of a run, and as many at a time as are in use.

    Raises ValueError for an option that is missing.
    """
    if lora is None:
        return
    pinned = sampling.staleness and sampling.handover_of(adapter=True) == "pinned"
    wanted = sampling.staleness + 2  # those of rows in flight, and the one that is loaded
    match config:
        case {"lora_config": None}:
            raise ValueError(
                "model.lora: the server takes no adapters; start it with --enable-lora "
                f"--max-lora-rank {lora.r} and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
            )
        case {"lora_config": {"max_lora_rank": int(most)}} if most < lora.r:
            raise ValueError(
                f"model.lora.r={lora.r}: the server takes adapters up to rank {most}; start it "
                f"with --max-lora-rank {lora.r}"
            )
        case {"lora_config": {"max_loras": int(slots)}} if pinned and slots < wanted:
            raise ValueError(
                f"rollout.staleness={sampling.staleness}: the server holds {slots} adapters at a "
                f"time, and samples need {wanted}; start it with --max-loras {wanted}, or set "
                "rollout.handover=in_flight"
            )


def check_transfer(config: Mapping[str, object] | None, lora: Lora | None) -> None:
    """Raise ValueError if vLLM's own transfer is not available."""
    if lora is not None:
        raise ValueError(
            "rollout.engine.transfer=broadcast sends whole weights, and model.lora trains "
            "adapters, which are small; set rollout.engine.transfer=files"
        )
    backend = backend_in(config)
    if backend not in SENDERS:
        raise ValueError(
            f"rollout.engine.transfer=broadcast: the server's weight transfer is {backend}; "
            "start it with VLLM_SERVER_DEV_MODE=1 and --weight-transfer-config "
            """'{"backend": "nccl"}', or set rollout.engine.transfer=files"""
        )
    if backend != "gloo" and find_spec("vllm") is None:
        raise ValueError(
            f"rollout.engine.transfer=broadcast by {backend} needs vLLM in the trainer's "
            "environment too: pip install vllm, or set rollout.engine.transfer=files"
        )
