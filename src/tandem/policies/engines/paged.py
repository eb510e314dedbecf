"""Paged sampling: transformers' continuous batching on the trained weights themselves.

Rows share one pool of cache pages, a finished row makes room for a waiting one, and the prompt of a
group is read once. Tokens are drawn by `sampling.draw`, so they are those of `rollout=local` up to
ties within rounding.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import transformers
from torch import Tensor
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel
from transformers.generation.continuous_batching import ContinuousBatchingManager
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchProcessor
from transformers.generation.continuous_batching.utils import WorkloadHints

from tandem.policies.engines.paged_rows import PagedRows
from tandem.policies.engines.protocol import Engine, EngineOption, Hostable
from tandem.policies.language.records import Answers, Endings, Sampling
from tandem.policies.lora import Lora
from tandem.policies.weights import Precision

log = logging.getLogger(__name__)

WHERE = "rollout.engine"
OLDEST = (5, 17)  # of transformers: before it a request does not have its position
FLASH_PAGE, FLASH_TOKENS = 256, 8192  # of flash attention's kernel; of one pass
MASKED_PAGE, MASKED_TOKENS = 16, 256  # without it a pass has a mask of tokens x all cached tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Paged(EngineOption):
    """Continuous batching by transformers; `rollout.max_rows` is the number of rows in flight."""

    # Tokens per page of the cache; null: 256 with flash attention, 16 without.
    page_size: int | None = None
    # Largest number of tokens per pass; null: 8192 with flash attention, 256 without.
    batch_tokens: int | None = None
    share_prompts: bool = True  # the rows of a group share the pages of their prompt
    memory: float = 0.8  # largest share of the free memory that the cache may take
    # true: records passes and replays them; null: if attention takes no mask.
    cuda_graphs: bool | None = None

    shares_weights = True
    reports_entropy = True
    samples_mixed = False

    def __post_init__(self) -> None:
        if not 0 < self.memory <= 1:
            raise ValueError(f"{WHERE}.memory={self.memory}: must be above 0 and at most 1")
        limits = ("page_size", self.page_size, 4), ("batch_tokens", self.batch_tokens, 1)
        for name, value, least in limits:
            if value is not None and value < least:
                raise ValueError(f"{WHERE}.{name}={value}: must be at least {least}, or null")

    def check(self, sampling: Sampling, lora: Lora | None) -> None:
        version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
        if version < OLDEST:
            raise ValueError(
                f"rollout=paged needs transformers {OLDEST[0]}.{OLDEST[1]} or later, and "
                f"{transformers.__version__} is installed; upgrade it, or set rollout=local"
            )

    def host(self, policy: Hostable) -> Engine:
        if not isinstance(policy.model, PreTrainedModel):
            raise ValueError(
                f"rollout=paged needs a transformers model, and {type(policy.model).__name__} "
                "is not one; set rollout=local"
            )
        return PagedSampler(policy.model, policy.precision, self)


class PagedSampler:
    """An engine on the trained weights; its cache exists only during a call."""

    def __init__(self, model: PreTrainedModel, precision: Precision, option: Paged) -> None:
        self.model, self.precision, self.option = model, precision, option

    @torch.no_grad()
    def answer(
        self, prompts: Sequence[list[int]], keys: Tensor, *, sampling: Sampling, endings: Endings
    ) -> Answers:
        """See `Engine.answer`. keys: [P, G] int64."""
        rows = PagedRows(prompts, keys, sampling, endings)
        in_flight = min(keys.numel(), sampling.max_rows)
        with self.precision.on(keys.device), own_attention(self.model):
            processor = self._processor(rows, in_flight)
            processor.model_runner._sample = rows.draw
            processor.warmup(self.model)  # captures the CUDA graphs, if there are any
            rows.sample(processor, self.model, shared=self.option.share_prompts)
        return rows.answers()

    def _processor(self, rows: PagedRows, in_flight: int) -> ContinuousBatchProcessor:
        """A processor with a cache for all rows in flight at full length. If memory is short, the
        cache is smaller, and rows are evicted and read again later."""
        option = self.option
        manager = ContinuousBatchingManager(
            self.model,
            GenerationConfig(do_sample=False, eos_token_id=-1),  # each row has its own
            ContinuousBatchingConfig(
                max_requests_per_batch=in_flight,
                max_memory_percent=option.memory,
                allow_block_sharing=option.share_prompts,
                use_async_batching=False,
                use_cuda_graph=option.cuda_graphs,
            ),
            WorkloadHints(rows.longest_prompt, rows.sampling.max_new_tokens, len(rows.keys)),
        )
        resolved = manager.continuous_batching_config
        flash = self._attends_by_flash()
        page, tokens = (FLASH_PAGE, FLASH_TOKENS) if flash else (MASKED_PAGE, MASKED_TOKENS)
        size = option.page_size or page
        resolved.page_size = resolved.block_size = size  # its name until transformers 5.17
        resolved.max_batch_tokens = max(option.batch_tokens or tokens, in_flight)
        longest = rows.longest_prompt + rows.sampling.max_new_tokens
        resolved.num_blocks = in_flight * math.ceil(longest / size)
        try:
            return manager._create_batch_processor()
        except MemoryError:
            resolved.num_blocks = None  # as many as fit
            return manager._create_batch_processor()

    def _attends_by_flash(self) -> bool:
        """Whether transformers uses flash attention, as it does if that is installed. Raises
        ValueError for float32 weights, which it does not support."""
        flash = "flash" in self.model.config._attn_implementation
        if flash and self.model.dtype == torch.float32:
            raise ValueError(
                "rollout=paged uses flash attention here, which does not support float32; set "
                "model.dtype=bfloat16, or rollout=local"
            )
        if not flash and self.model.device.type == "cuda":
            log.warning(
                "rollout=paged without flash attention: each row attends to the pages of all rows, "
                "which is slower than rollout=local; install flash-attn or kernels"
            )
        return flash


@contextmanager
def own_attention(model: PreTrainedModel) -> Iterator[None]:
    """A context that restores the model's attention: the paged kernel cannot train."""
    before = model.config._attn_implementation
    try:
        yield
    finally:
        if model.config._attn_implementation != before:
            model.set_attn_implementation(before)
