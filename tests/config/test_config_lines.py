"""Misspelt and contradictory command lines, each with its one-line message."""

import functools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from gate import each

from tandem.config import ConfigError, check, compose, configuration
from tandem.config.arguments import list_left_out_keys
from tandem.config.names import ALIASES, unknown
from tandem.config.values import list_keys
from tandem.record.run_record import RunRecord

ROOT = Path(__file__).parents[2]

K1 = (
    "algorithm/kl=k1: as a term of the loss k1 has a gradient of mean 0, so it is noise; set "
    "algorithm/kl=auto, or algorithm/kl=in_reward, which takes k1 from the reward"
)

NO_KL = "a coefficient of 0 leaves the KL out; set algorithm.kl.coef=0"

# Detected from the keys and options of the YAML files, without torch.
MISSPELT = {
    "model=tiny_chain rollout.picture.solver=null": (
        "rollout.picture.solver=null: rollout.picture.solver repeats dynamics.solver, which other "
        "parts read; set that"
    ),
    "overrides=[x]": "overrides=[x]: a run fills it in by itself; leave it out",
    "+choices.model=x": "+choices.model=x: a run fills it in by itself; leave it out",
    "algorithm=loss/ppo": "algorithm=loss/ppo: write algorithm/loss=ppo",
    "evaluation=solver/euler": "evaluation=solver/euler: write evaluation/solver=euler",
    "sede=1": "unknown key 'sede': did you mean 'seed'?",
    "+sed=1": "unknown key 'sed': did you mean 'seed'?",
    "++iteration=9": "unknown key 'iteration': did you mean 'iterations'?",
    "+seed=1": "+seed=1: seed already exists; write seed=1",
    "Sede=1": "unknown key 'Sede': did you mean 'seed'?",
    "data.columns.answer=x": (
        "unknown key 'data.columns.answer': data.columns belongs to data=dapo_math, "
        "geometry3k, hub or image_folder, not to the chosen option"
    ),
    "loss=ppo": "unknown key 'loss': write algorithm/loss=ppo",
    "recipe=tiny_flow/nft": (
        "recipe=tiny_flow/nft was tuned for model=tiny_flow, and model=tiny_lm is of another "
        "kind; set model=tiny_flow, or leave recipe out"
    ),
    "model=tiny_flow algorithm=grpo recipe=tiny_flow/nft": (
        "recipe=tiny_flow/nft sets algorithm.advantage.of.scale, which does not exist with "
        "algorithm=grpo; set algorithm=nft, or leave recipe out"
    ),
    "algorithm=grpo recipe=tiny_lm/ppo": (
        "recipe=tiny_lm/ppo sets algorithm.critic.coef, which does not exist with "
        "algorithm=grpo; set algorithm=ppo, or leave recipe out"
    ),
    "model=tiny_flow algorithm=nft recipe=tiny_flow/cispo": (
        "recipe=tiny_flow/cispo sets dynamics.logp, which does not exist with algorithm=nft; "
        "set algorithm=cispo, or leave recipe out"
    ),
    "model=tiny_flow algorithm=gspo_token recipe=tiny_flow/passk": (
        "recipe=tiny_flow/passk puts pkpo_centred at algorithm.advantage, which does not take "
        "its scale with algorithm=gspo_token; set algorithm=passk, or leave recipe out"
    ),
    "model=tiny_flow algorithm=rloo recipe=tiny_flow/passk": (
        "recipe=tiny_flow/passk puts pkpo_centred at algorithm.advantage, which needs a k that "
        "is missing with algorithm=rloo; set algorithm=passk, or leave recipe out"
    ),
    "algorithm/loss=mine": (
        "unknown option of algorithm/loss 'mine': see `python -m tandem train --help "
        "algorithm.loss`; your own options need plugins=[MODULE]"
    ),
    "~sede": "unknown key 'sede': did you mean 'seed'?",
    **{
        f"~{group}": f"{group} is missing: choose one of the options of conf/{group}"
        for group in ("data", "model", "algorithm", "rollout", "dynamics", "evaluation", "schedule")
    },
    "algoritm=dapo": "unknown key 'algoritm': did you mean 'algorithm'?",
    "algorithm=grop": "unknown option of algorithm 'grop': did you mean 'grpo'?",
    "model=qwen_8b": "unknown option of model 'qwen_8b': did you mean 'qwen3_8b'?",
    "reward=accuracy": (
        "reward=accuracy: a right answer scores 1 by reward=exact_match (the same text), "
        "reward=regex_answer (the last match of a pattern) or reward=math_verify (mathematically "
        "equal)"
    ),
    "reward=[exact_match,lenght]": "unknown option of reward 'lenght': did you mean 'length'?",
    "algorithm/los=ppo": "unknown group 'algorithm/los': did you mean 'algorithm/loss'?",
    "algorithm/loss=gspq": "unknown option of algorithm/loss 'gspq': did you mean 'gspo'?",
    "algorithm/truncation_handling=zzz": (
        "unknown option of algorithm/truncation_handling 'zzz': there are mask, overlong, "
        "penalise, train"
    ),
    "recipe=tiny_lm/grop": "unknown option of recipe 'tiny_lm/grop': did you mean 'tiny_lm/grpo'?",
    "experiment=nope": "unknown option of experiment 'nope': there are none",
    "algorithm.loss.clip_lo=.1": (
        "unknown key 'algorithm.loss.clip_lo': did you mean 'algorithm.loss.clip_low'?"
    ),
    "algorithm=rloo algorithm.loss.clip_low=.1": (
        "unknown key 'algorithm.loss.clip_low': it belongs to algorithm/loss=clip_cov, dgpo, "
        "dgpo_fast, fipo, gmpo, grpo_guard, gspo, gspo_token, ppo or weighted_ppo, not to reinforce"
    ),
    "algorithm=rloo algorithm.advantage.decay=.9": (
        "unknown key 'algorithm.advantage.decay': it belongs to "
        "algorithm/advantage=moving_average, not to leave_one_out"
    ),
    "reward.exact_match.wieght=2": (
        "unknown key 'reward.exact_match.wieght': did you mean 'reward.exact_match.weight'?"
    ),
    "clip_high=.28": "unknown key 'clip_high': did you mean 'algorithm.loss.clip_high'?",
    "clip_ratio=.2": (
        "unknown key 'clip_ratio': here it is algorithm.loss.clip_low and algorithm.loss.clip_high"
    ),
    "algorithm.beta=.04": "unknown key 'algorithm.beta': here it is algorithm.kl.coef",
    "target_kl=.1": "unknown key 'target_kl': did you mean 'algorithm.target_kl'?",
    "algorithm.loss.baseline_decay=.9": (
        "unknown key 'algorithm.loss.baseline_decay': here it is "
        "algorithm/advantage=moving_average and algorithm.advantage.decay"
    ),
    "algorithm/kl=k1": K1,
    "algorithm.kl=k1": K1,
    "batch_size=64": "unknown key 'batch_size': here it is prompts_per_step",
    "max_steps=10": "unknown key 'max_steps': here it is iterations",
    "lr=1e-6": "unknown key 'lr': here it is optimizer.lr",
    "checkpoints={evry:5}": "unknown key 'checkpoints.evry': did you mean 'checkpoints.every'?",
    "algorithm=mix_grpo": (
        "algorithm=mix_grpo sets dynamics/stochastic, which is for steps of pictures, but the "
        "model makes tokens; set another algorithm, or a model of pictures, such as "
        "model=tiny_flow"
    ),
    "algorithm=mix_grpo model=hf dynamics=auto": (
        "algorithm=mix_grpo sets dynamics/stochastic, which is for steps of pictures, but "
        "model=hf makes tokens; set another algorithm, or a model of pictures, such as "
        "model=tiny_flow"
    ),
    "algorithm=mix_grpo model=tiny_flow dynamics=ode": (
        "algorithm=mix_grpo sets dynamics/stochastic, which dynamics=ode does not have; set "
        "dynamics=cps, dance_sde or flow_sde"
    ),
    "model=tiny_flow dynamics=autoregressive": (
        "model=tiny_flow sets dynamics/schedule, which dynamics=autoregressive does not have; "
        "set dynamics=cps, dance_sde, flow_sde or ode"
    ),
    "model=tiny_flow dynamics=ode dynamics/stochastic=every_step": (
        "dynamics/stochastic belongs to dynamics=cps, dance_sde or flow_sde, not to the chosen "
        "option"
    ),
    "model=tiny_flow algorithm=nft algorithm/timestep_sampling/among=time": (
        "algorithm/timestep_sampling/among=time: write "
        "algorithm/timestep_sampling/among@algorithm.timestep_sampling.levels.among=time"
    ),
    "model=tiny_flow algorithm=nft algorithm/ema=ramp": (
        "algorithm/ema=ramp: ambiguous; write "
        "algorithm/ema@algorithm.ema.fast=ramp or "
        "algorithm/ema@algorithm.ema.old=ramp"
    ),
    "algorithm.loss=ppo": (
        "algorithm.loss=ppo: an option is chosen with a slash; write algorithm/loss=ppo"
    ),
    "logger.wandb.mode=offline": "unknown key 'logger.wandb.mode': it comes with logger=wandb",
    "model.lora.r=8": ("model.lora.r: model.lora is null; give it as a whole, model.lora={r:...}"),
    "model=tiny_flow evaluation.solver=heun": (
        "evaluation.solver=heun: an option is chosen with a slash; write evaluation/solver=heun"
    ),
    "algorithm=[grpo,dapo]": "algorithm=[grpo,dapo]: algorithm takes one option",
    "data.path=x.jsonl": (
        "unknown key 'data.path': it belongs to data=folder, image_folder, jsonl or text, not to "
        "the chosen option"
    ),
    "rollout.steps=20": (
        "unknown key 'rollout.steps': it belongs to rollout=denoise, not to the chosen option"
    ),
    "reward=[length,length]": "reward=[length,length]: length is given 2 times",
    "algorithm=null": "algorithm is missing: choose one of the options of conf/algorithm",
    "algorithm/loss=null": (
        "algorithm/loss=null: choose one of its options; ~algorithm/loss leaves out an optional one"
    ),
    "algorithm/kl=null": f"algorithm/kl=null: {NO_KL}",
    "algorithm/kl=none": f"algorithm/kl=none: {NO_KL}",
    "~algorithm/kl": f"~algorithm/kl: {NO_KL}",
    "algorithm=grpo,dapo": "algorithm=grpo,dapo: several values need -m (a sweep)",
    "reward=length,exact_match": (
        "reward=length,exact_match: several values need -m (a sweep), or reward=[a,b] (together)"
    ),
    "epochs=1,2": "epochs=1,2: several values need -m (a sweep)",
    "evaluation.pass_at=1,2": (
        "evaluation.pass_at=1,2: several values need -m (a sweep), or evaluation.pass_at=[a,b]"
    ),
    "gpus=2": "unknown key 'gpus': here it is trainer.devices",
    "wandb=true": "unknown key 'wandb': here it is logger=wandb",
    "seed": "cannot read 'seed': it has no value; write seed=..., or --help for help",
    "dapo": "cannot read 'dapo': it has no value; write algorithm=dapo, or --help for help",
    "warm_start=[algorithm=sft]": (
        "cannot read 'warm_start=[algorithm=sft]': quote the elements of a list that hold =, "
        "e.g. \"warm_start=['algorithm=sft']\""
    ),
    "plugins=my_rewards": "plugins: expected a list of modules, such as plugins=[my_rewards]",
    "plugins=[rewards/my.py]": (
        "plugins: rewards/my.py is a file; give its module: plugins=[rewards.my]"
    ),
    "plugins=[./my_rewards.py]": (
        "plugins: ./my_rewards.py is a file; give its module: plugins=[my_rewards]"
    ),
    "resume=nowhere": "resume=nowhere: there is no such directory; give a run directory",
    "resume=/dev/shm": "resume=/dev/shm: there is no config.yaml in it; give a run directory",
    "iterations 5": "cannot read 'iterations': it has no value; write iterations=..., or --help "
    "for help",
    "trainer=gpu": "trainer=gpu: trainer=auto takes a GPU if there is one, trainer=ddp or fsdp2 "
    "all of them",
}

# Detected when every call is bound to its signature and every rule is checked.
ENGINE = "rollout=vllm_server rollout.engine.url=http://127.0.0.1:9"
ADAPTED = (
    "starts at coef and changes by step up to most, so 0 <= coef <= most and step > 0; set them "
    "so, or algorithm.entropy.target=null"
)
WRONG = {
    # Kinds come before values that are missing.
    "reward=aesthetic": (
        "reward.aesthetic reads pictures, but model=tiny_lm makes texts; choose a reward of texts"
    ),
    "reward=reward_model model=tiny_flow": (
        "reward.reward_model reads texts, but model=tiny_flow makes pictures; choose a reward of "
        "pictures"
    ),
    "algorithm=opd model=tiny_flow": (
        "algorithm/advantage=from_teacher on dynamics=flow_sde: a teacher of flows predicts "
        "velocities, not log-probabilities of steps; set algorithm=diffusion_opd"
    ),
    "reward=format \"reward.format.pattern='[a-'\"": (
        "reward.format.function.pattern=[a-: is no regular expression: unterminated character set "
        "at position 0"
    ),
    "reward=judge": (
        "reward.judge.function.chat.url and reward.judge.function.chat.model are not set: add "
        "reward.judge.function.chat.url=... reward.judge.function.chat.model=..."
    ),
    "algorithm=gkd": ("algorithm.teachers.folders is not set: add algorithm.teachers.folders=..."),
    "model.lora=16": (
        "model.lora: expected {r: ..., alpha: ..., target_modules: ...} or null, got 16"
    ),
    "rollout=vllm_server": "rollout.engine.url is not set: add rollout.engine.url=...",
    f"{ENGINE} rollout.engine.url=ftp://x": (
        "rollout.engine.url=ftp://x: expected http://host:port or https://..."
    ),
    f"{ENGINE} rollout.engine.concurrency=0": "rollout.engine.concurrency=0: must be positive",
    f"{ENGINE} algorithm.entropy.target=0.5": (
        "algorithm.entropy.target needs the entropy of the sampler, which rollout=vllm_server "
        "does not report; set it to null, or rollout=local"
    ),
    f"model=tiny_flow {ENGINE}": (
        "rollout=vllm_server samples tokens, but model=tiny_flow makes pictures; leave rollout out"
    ),
    "rollout=denoise": (
        "rollout=denoise samples pictures, but model=tiny_lm makes tokens; leave rollout out"
    ),
    "model=tiny_flow data=sort_letters": (
        "data=sort_letters asks for texts, but model=tiny_flow makes pictures; set "
        "data=shapes, or your own prompts: data=jsonl data.path=FILE"
    ),
    "algorithm=passk group_size=4": (
        "k=4 of pass_at_k: a set is the whole group of group_size=4; set k to 3 or less"
    ),
    "evaluation.metric=exact_mach": (
        "evaluation.metric: unknown reward 'exact_mach': did you mean 'exact_match'?"
    ),
    "algorithm=dapo algorithm.sampling_strategy.metric=foo": (
        "algorithm.sampling_strategy.metric: unknown reward 'foo': there are exact_match"
    ),
    "optimizer.lr=-1": "optimizer.lr=-1.0: must not be negative",
    "algorithm=dapo algorithm.truncation_handling.limit=null": (
        "algorithm.truncation_handling.limit: expected int, got null; set one, or leave the key out"
    ),
    "optimizer.lr=inf": "optimizer.lr=inf: must be finite",
    "optimizer.lr=nan": "optimizer.lr=nan: set a number",
    "optimizer.betas=[0.9,1.0]": "optimizer=adamw: Invalid beta parameter at index 1: 1.0",
    "guards.no_signal=0": "guards.no_signal=0: must be positive",
    "guards.max_missing_rewards=2": "guards.max_missing_rewards=2.0: must lie in 0 ... 1",
    "model.lora={r:4,alpha:-1}": "model.lora.alpha=-1.0: must be positive",
    "algorithm.kl.coef=-1": "algorithm.kl.coef=-1.0: must not be negative",
    "trainer.devices=0": "trainer.devices=0: set 1 or more, or auto",
    "seed=18446744073709551616": ("seed=18446744073709551616: must be 9.22337e+18 at most"),
    "guards.stalled_after=inf": "guards.stalled_after=inf: must be above 0, and 1e+09 at most",
    "guards.stalled_after=0": "guards.stalled_after=0.0: must be above 0, and 1e+09 at most",
    "trainer.timeout=inf": "trainer.timeout=inf: must be above 0, and 1e+09 at most",
    "rollout.temperature=inf": "rollout.temperature is inf; it must be 0 (greedy) or more",
    "trainer.devices=[0,0]": "trainer.devices=[0, 0]: list each GPU once, counting from 0",
    "trainer.devices=[-1]": "trainer.devices=[-1]: list each GPU once, counting from 0",
    "trainer.devices=-1": "trainer.devices=-1: set 1 or more, or auto",
    "trainer.devices=2 trainer.num_nodes=0": "trainer.num_nodes=0: must be positive",
    "trainer=ddp trainer.devices=3 prompts_per_step=2": (
        "prompts_per_step=2 over 3 ranks (trainer.devices): each rank needs at least one "
        "prompt; set prompts_per_step=3 or more"
    ),
    "trainer=ddp trainer.devices=2 prompts_per_step=1": (
        "prompts_per_step=1 over 2 ranks (trainer.devices): each rank needs at least one "
        "prompt; set prompts_per_step=2 or more"
    ),
    "trainer=fsdp2 trainer.devices=1": (
        "trainer.devices=1: trainer.strategy=fsdp2 shards weights over at least 2 devices; set "
        "trainer.devices=2 or more, or trainer=auto"
    ),
    "trainer=fsdp2 model=tiny_unified": (
        "model=tiny_unified does not support trainer.strategy=fsdp2; set trainer=ddp"
    ),
    "trainer=fsdp2 model=tiny_flow algorithm=ppo": (
        "algorithm=ppo has a critic, which trainer.strategy=fsdp2 does not support for "
        "pictures; set trainer=ddp"
    ),
    "trainer=fsdp2 optimizer=adamw_8bit": (
        "optimizer=adamw_8bit keeps its state in blocks of whole weights, which "
        "trainer.strategy=fsdp2 shards; set optimizer=adamw or trainer=ddp"
    ),
    "trainer=fsdp2 model.torch_compile=true": (
        "model.torch_compile=true: trainer.strategy=fsdp2 gathers weights inside the calls to "
        "compile; set model.torch_compile=false or trainer=ddp"
    ),
    "epochs=two": "epochs: expected int, got 'two'",
    "seed=true": "seed: expected int, got true",
    # The evaluation repeats these values, and the message names the key that sets them.
    "model=tiny_flow rollout.steps=2.5": "rollout.steps: expected int, got 2.5",
    "model=tiny_flow rollout.steps=-3": "rollout.steps=-3: must be at least 1",
    "model=tiny_flow algorithm=flow_grpo rollout.steps=0": "rollout.steps=0: must be at least 1",
    "model=tiny_flow algorithm=flow_grpo rollout.steps=-1": "rollout.steps=-1: must be at least 1",
    "model=tiny_chain rollout.picture.steps=0": "rollout.picture.steps=0: must be at least 1",
    "model=tiny_flow rollout.max_rows=0": "rollout.max_rows=0: must be at least 1",
    "model=tiny_chain rollout.picture.guidance_scale=0.5": (
        "rollout.picture.guidance_scale=0.5: must be at least 1"
    ),
    # Each part of a chain writes its messages as if it were alone.
    "model=tiny_chain rollout.text.temperature=-1": (
        "rollout.text.temperature is -1.0; it must be 0 (greedy) or more"
    ),
    "model=tiny_chain +model.picture.decoding=tiled": (
        "model.picture.decoding=tiled: TinyFlow has no VAE; leave it batched"
    ),
    "model=qwen3_writes_sd3_5 data.path=prompts.txt +model.picture.adapter.images=3": (
        "model.picture.adapter.images=3: this family accepts 0 to 0 input images per prompt"
    ),
    "model=tiny_chain rollout.picture.max_rows=0": "rollout.picture.max_rows=0: must be at least 1",
    "model=tiny_flow model.latent_size=x": "model.latent_size: expected int or null, got 'x'",
    "seed=-1": "seed=-1: must not be negative",
    "iterations=0": "iterations=0: must be positive",
    "checkpoints.keep=0": "checkpoints.keep=0: must be positive",
    "evaluation.pass_at=[0,8]": "evaluation.pass_at=[0, 8]: must be positive",
    "evaluation.temperatures=1.0": ("evaluation.temperatures: expected a list of float, got 1.0"),
    "model=tiny_flow evaluation.weights=ema": (
        "evaluation.weights=ema: no average is kept; set model/ema=constant or another one"
    ),
    "dynamics=cps": (
        "dynamics=cps is for pictures, but model=tiny_lm makes tokens; set dynamics=auto, or a "
        "model of pictures"
    ),
    "model=tiny_flow algorithm=sft evaluation=answers": (
        "evaluation=answers does not measure the samples of model=tiny_flow; set "
        "evaluation=pictures"
    ),
    "evaluation=pictures": (
        "evaluation=pictures does not measure the samples of model=tiny_lm; set evaluation=answers"
    ),
    "model=tiny_masked evaluation=written_pictures": (
        "evaluation=written_pictures does not measure the samples of model=tiny_masked; set "
        "evaluation=answers"
    ),
    "model=tiny_chain evaluation=pictures": (
        "evaluation=pictures does not measure the samples of model=tiny_chain; set "
        "evaluation=written_pictures"
    ),
    "model=tiny_flow algorithm=sft evaluation.steps=0": ("evaluation.steps=0: must be at least 1"),
    "evaluation.temperatures=[0.0]": (
        "evaluation.temperatures=[0.0]: give finite numbers above 0; greedy answers are "
        "always measured"
    ),
    "evaluation.temperatures=[1.0,inf]": (
        "evaluation.temperatures=[1.0, inf]: give finite numbers above 0; greedy answers are "
        "always measured"
    ),
    "evaluation.top_p=95": "evaluation.top_p=95.0: must be above 0, and 1 at most",
    "evaluation.top_k=-1": "evaluation.top_k=-1: must not be negative",
    "reward=colour_share": (
        "reward.colour_share reads pictures, but model=tiny_lm makes texts; choose a reward of "
        "texts"
    ),
    "evaluation.threshold=null": ("evaluation.threshold=null: accuracy of text needs a number"),
    "guards.non_finite=sop": "guards.non_finite is stop or skip:k (skip:3), not 'sop'",
    "trainer.accelerator=cuda": (
        "trainer.accelerator: expected 'auto' or 'cpu' or 'gpu' or 'mps', got 'cuda'"
    ),
    "optimizer.lr=fast": "optimizer.lr: expected float, got 'fast'",
    "optimizer.betas=[0.9]": "optimizer.betas: expected [float, float], got [0.9]",
    "~recipe optimizer=sgd +optimizer.nesterof=true": (
        "unknown key 'optimizer.nesterof': did you mean 'optimizer.nesterov'?"
    ),
    "algorithm/loss=reinforce": (
        "num_minibatches=2 epochs=1: reinforce has no ratio for samples of older weights; set "
        "both to 1, or algorithm/old_logprobs=current with an algorithm/importance_sampling"
    ),
    "+algorithm.loss.clip_hgih=.3": (
        "unknown key 'algorithm.loss.clip_hgih': did you mean 'algorithm.loss.clip_high'?"
    ),
    "~algorithm.loss": "algorithm.loss is missing: Algorithm needs it",
    "~cache_dir": "cache_dir is missing: Settings needs it",
    "seed=${sed}": "seed: interpolation key 'sed' not found",
    "data=jsonl": "data.path is not set: add data.path=...",
    "model=hf": ("data.path and model.path are not set: add data.path=... model.path=..."),
    "micro_batch_size=8": (
        "micro_batch_size and max_tokens_per_microbatch exclude each other; set one to null"
    ),
    "num_minibatches=65": (
        "num_minibatches=65 needs as many groups, but prompts_per_step=64; "
        "raise prompts_per_step or set num_minibatches=64 or less"
    ),
    "group_size=1": (
        "group_size=1: group_relative compares the samples of a group; set group_size=2 or more"
    ),
    "algorithm=reinforce_pp_baseline group_size=1": (
        "group_size=1: group_relative compares the samples of a group; set group_size=2 or more"
    ),
    "algorithm=reinforce_pp ~recipe algorithm/sampling_strategy=dynamic_sampling": (
        "group_size=1: dynamic_sampling compares the samples of a group; set group_size=2 or more"
    ),
    "algorithm/advantage=preferred group_size=1": (
        "group_size=1: preferred compares the samples of a group; set group_size=2 or more"
    ),
    "algorithm/advantage=combined group_size=1": (
        "group_size=1: group_relative compares the samples of a group; set group_size=2 or more"
    ),
    "algorithm=passk group_size=3": (
        "k=4 of pass_at_k: a group of group_size=3 has no set of 4 samples; set k to 1 ... 3"
    ),
    "algorithm/advantage=pkpo algorithm.advantage.k=0": (
        "k=0 of pkpo: a group of group_size=8 has no set of 0 samples; set k to 1 ... 8"
    ),
    "algorithm=passk algorithm/advantage=pkpo_centred algorithm.advantage.k=1": (
        "algorithm.advantage.k=1: must be at least 2"
    ),
    "algorithm=dapo algorithm.truncation_handling.buffer=4096": (
        "algorithm.truncation_handling.buffer=4096 algorithm.truncation_handling.limit=11: the "
        "first must not be above the second"
    ),
    "algorithm=dapo algorithm.truncation_handling.buffer=0": (
        "algorithm.truncation_handling.buffer=0: must be positive"
    ),
    "algorithm=gdpo algorithm/truncation_handling=overlong": (
        "algorithm/truncation_handling=overlong lowers the sum of the rewards, which gdpo does not "
        "read; "
        "set algorithm/truncation_handling=train or mask and algorithm/kl=auto"
    ),
    "algorithm=gdpo algorithm/kl=in_reward algorithm.kl.coef=0.1": (
        "algorithm/kl=in_reward lowers the sum of the rewards, which gdpo does not read; "
        "set algorithm/truncation_handling=train or mask and algorithm/kl=auto"
    ),
    "algorithm=gdpo reward=[exact_match,length]": (
        "reward.length.weight=0.1: gdpo compares each reward separately and ignores weights of "
        "the sum; set it to 1, and algorithm.advantage.weights={length:0.1,...}"
    ),
    "algorithm=gdpo reward=[exact_match,length] reward.length.weight=0 "
    "algorithm.advantage.weights={exact_match:1,length:1}": (
        "algorithm.advantage.weights: reward.length.weight=0 keeps length out of training; "
        "drop it from the weights, or set reward.length.weight=1"
    ),
    "algorithm=gdpo reward=[exact_match,length] "
    "algorithm.advantage.weights={exact_match:1,lenght:0.1}": (
        "algorithm.advantage.weights: unknown reward 'lenght': did you mean 'length'?"
    ),
    "algorithm=gdpo reward=[exact_match,length] algorithm.advantage.weights={exact_match:1}": (
        "algorithm.advantage.weights: length is trained and has no weight; add length:1, or set "
        "reward.length.weight=0"
    ),
    "algorithm=gdpo algorithm.advantage.weights={exact_match:0}": (
        "algorithm.advantage.weights: all are 0, so nothing is trained; set "
        "algorithm.advantage.weights.exact_match=1"
    ),
    "algorithm/advantage=combined algorithm.advantage.shares.group.coef=0 "
    "algorithm.advantage.shares.batch.coef=0": (
        "algorithm.advantage.shares.group.coef=0, like that of all shares, trains nothing; set "
        "algorithm.advantage.shares.group.coef=1"
    ),
    "reward.exact_match.weight=0 guards.hacking=null": (
        "every reward has weight 0, so nothing is trained; set a weight, for example "
        "reward.exact_match.weight=1"
    ),
    "guards.hacking=stop": (
        "guards.hacking=stop needs a judge, and there is none; list a reward of weight 0 "
        "(higher is better) in guards.judges=[...], or set guards.hacking=warn"
    ),
    "guards.judges=[exact_match]": (
        "guards.judges: exact_match is trained; set reward.exact_match.weight=0, or leave it out"
    ),
    "algorithm=passk algorithm/truncation_handling=penalise": (
        "algorithm/truncation_handling=penalise makes scores negative, and pass_at_k needs "
        "rewards of at least 0; leave it out, or set algorithm/advantage=group_relative"
    ),
    "algorithm=maxrl reward.exact_match.range=[0,1]": (
        "reward.exact_match.range makes scores negative, and maxrl needs rewards of at least "
        "0; leave it out, or set algorithm/advantage=group_relative"
    ),
    "algorithm=dpo data=sort_pairs algorithm/kl=in_reward algorithm.kl.coef=0.1": (
        "algorithm/kl=in_reward lowers scores after preference_pairs has chosen the better "
        "answer of a pair; set algorithm/truncation_handling=train and algorithm/kl=auto"
    ),
    "algorithm=dpo_online algorithm/truncation_handling=overlong": (
        "algorithm/truncation_handling=overlong lowers scores after best_and_worst has chosen "
        "the better answer of a pair; set algorithm/truncation_handling=train and "
        "algorithm/kl=auto"
    ),
    "algorithm=dpo_online algorithm/truncation_handling=mask": (
        "algorithm/truncation_handling=mask: best_and_worst chooses a pair from all samples, and a "
        "row of it that is not trained on leaves the other without its rival; set "
        "algorithm/truncation_handling=train"
    ),
    "algorithm/advantage=preferred algorithm/truncation_handling=mask": (
        "algorithm/truncation_handling=mask: preferred chooses a pair from all samples, and a "
        "row of it that is not trained on leaves the other without its rival; set "
        "algorithm/truncation_handling=train"
    ),
    "algorithm=sft algorithm.normalize_advantages=true": (
        "algorithm.normalize_advantages=true turns the equal advantages of rows of data into "
        "0; set it to false"
    ),
    "algorithm=sft algorithm/advantage=moving_average": (
        "algorithm/advantage=moving_average compares scores, and those of demonstrations are "
        "equal, so nothing would be trained; set algorithm/advantage=given"
    ),
    "algorithm=dpo data=sort_pairs algorithm.kl.coef=0.1": (
        "algorithm.kl.coef: a KL is estimated from the policy's own samples, and here rows "
        "come from data; set it to 0"
    ),
    "algorithm=sft algorithm.entropy.target=0.3": (
        "algorithm.entropy.target needs samples, and here rows come from data; set it to null"
    ),
    "algorithm.entropy.coef=0.1 algorithm.entropy.target=0.2 algorithm.entropy.step=0": (
        "algorithm.entropy.coef=0.1 algorithm.entropy.step=0.0 algorithm.entropy.most=1.0: a "
        f"coefficient with a target {ADAPTED}"
    ),
    "algorithm.entropy.coef=2 algorithm.entropy.target=0.2": (
        "algorithm.entropy.coef=2.0 algorithm.entropy.step=0.005 algorithm.entropy.most=1.0: a "
        f"coefficient with a target {ADAPTED}"
    ),
    "algorithm=sft algorithm/loss=dppo": (
        "algorithm=sft needs behaviour_logp, which rows of data=sort_ladder does not provide"
    ),
    "algorithm=grpo algorithm.target_kl=0.02 num_minibatches=1": (
        "algorithm.target_kl stops the updates of an iteration early, and there is only one; "
        "set it to null, or num_minibatches or epochs above 1"
    ),
    "algorithm.target_kl=-1": "algorithm.target_kl=-1.0: must be positive",
    "algorithm=opo num_minibatches=4": (
        "num_minibatches=4 epochs=1: reinforce has no ratio for samples of older weights; set "
        "both to 1, or algorithm/old_logprobs=current with an algorithm/importance_sampling"
    ),
    "algorithm=grpo algorithm/loss=nll num_minibatches=4 epochs=2": (
        "num_minibatches=4 epochs=2: nll has no ratio for samples of older weights; set "
        "both to 1, or algorithm/old_logprobs=current with an algorithm/importance_sampling"
    ),
    "algorithm.loss.clip_low=1.5": "algorithm.loss.clip_low=1.5: must lie in 0 ... 1",
    "algorithm=clip_cov algorithm.loss.between=[5,1]": (
        "algorithm.loss.between=[5.0, 1.0]: give the lower bound and then the upper"
    ),
    "algorithm/importance_sampling=icepop algorithm.importance_sampling.low=6": (
        "algorithm.importance_sampling.low=6.0 algorithm.importance_sampling.high=5.0: the "
        "first must be below the second"
    ),
    "algorithm=ppo algorithm.critic.loss.clip=-1": (
        "algorithm.critic.loss.clip=-1.0: must not be negative"
    ),
    "algorithm=ppo algorithm.critic.coef=0": (
        "algorithm.critic.coef=0.0 does not train the critic; set it above 0, or choose "
        "an algorithm without a critic"
    ),
    "algorithm=ppo algorithm.critic.warmup=200": (
        "algorithm.critic.warmup=200 of iterations=120 never trains the policy; set it lower"
    ),
    "algorithm=ppo algorithm.critic=null": (
        "algorithm.critic=null: gae reads the values of a critic; use the one of "
        "algorithm=ppo, or another algorithm/advantage"
    ),
    "algorithm=ppo algorithm/advantage=group_relative group_size=4": (
        "algorithm.critic learns values that no advantage reads; set algorithm.critic=null or "
        "algorithm/advantage=gae"
    ),
    "algorithm=gspo algorithm/weights=token_mean": (
        "algorithm/weights=token_mean: gspo has one ratio per sample; set "
        "algorithm/weights=sequence_mean or sequence_sum"
    ),
    "algorithm=gmpo algorithm/weights=constant_length": (
        "algorithm/weights=constant_length: gmpo has one ratio per sample; set "
        "algorithm/weights=sequence_mean or sequence_sum"
    ),
    "algorithm=gspo algorithm/advantage=otb": (
        "otb gives an advantage per step, and gspo has one ratio per sample; set "
        "algorithm/loss=gspo_token, or an advantage per sample such as "
        "algorithm/advantage=batch_relative"
    ),
    "evaluation.split=test": (
        "evaluation.split=test is for evaluate=true, and training is measured on the eval prompts; "
        "leave it out, and measure the run afterwards with resume=RUN evaluate=true "
        "evaluation.split=test"
    ),
    "~recipe algorithm/loss=group_preference algorithm/weights=token_mean": (
        "algorithm/weights=token_mean: group_preference has one value for all steps of a row; set "
        "algorithm/weights=sequence_mean"
    ),
    "algorithm.loss.ratio_max=1.2": (
        "algorithm.loss.ratio_max=1.2 caps ratios that clip_high=0.28 lets through; "
        "set it above 1.28, or to null"
    ),
    "~recipe algorithm/loss=opsm +algorithm.loss.loss.ratio_max=1": (
        "algorithm.loss.loss.ratio_max=1.0 caps ratios that clip_high=0.2 lets through; "
        "set it above 1.2, or to null"
    ),
    "algorithm=sft group_size=4": (
        "group_size=4: there is one demonstration per prompt; set group_size=1"
    ),
    "rollout.top_p=.9": (
        "rollout.top_p=0.9 samples from another distribution than the trained one; set "
        "rollout.top_p=1"
    ),
    "rollout.top_k=50": (
        "rollout.top_k=50 samples from another distribution than the trained one; set "
        "rollout.top_k=0"
    ),
    "rollout.temperature=0": ("rollout.temperature=0.0 makes all samples equal; set it above 0"),
    "~reward.exact_match": "reward is missing: choose one of the options of conf/reward",
    "logger=wandb logger.wandb.entity=${oc.env:HOME}": (
        "logger.wandb.entity: only PROJECT_ROOT may be read from the environment"
    ),
}


@pytest.mark.parametrize(("line", "answer"), each(2, MISSPELT.items()))
def test_a_misspelt_line_is_answered_when_composing(line, answer):
    with pytest.raises(ConfigError) as refused:
        configuration(shlex.split(line))
    assert str(refused.value) == answer


@pytest.mark.parametrize(("line", "answer"), each(3, WRONG.items()))
def test_a_contradictory_line_is_answered_by_the_check(line, answer):
    cfg = compose(shlex.split(line))
    with pytest.raises(ConfigError) as refused:
        check(cfg)
    assert str(refused.value) == answer


def test_two_runs_do_not_share_a_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cfg = compose(["run_dir=mine"])
    check(cfg)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "metrics.jsonl").touch()
    with pytest.raises(ConfigError, match=r"^run_dir=mine already holds a run; set another, or"):
        check(cfg)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        (
            "config.yaml",
            "iterations: 7 # important\nfoo: [1, 2]\n",
            "has a config.yaml that no run",
        ),
        (
            "config.yaml",
            "foo: [1, 2",
            "has a config.yaml that no run wrote; set another, or move it",
        ),
        ("manifest.json", '{"name": "app"}', "has a manifest.json that no run wrote; set another"),
        ("manifest.json", "[]", "has a manifest.json that no run wrote; set another"),
        ("checkpoints/step_000000/state.json", "{}", "already holds a run; set another, or resume"),
    ],
)
def test_a_run_replaces_no_file_that_no_run_wrote_and_no_checkpoint(
    tmp_path, monkeypatch, name, text, reason
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / name).parent.mkdir(parents=True)
    (tmp_path / "mine" / name).write_text(text)
    with pytest.raises(ConfigError, match=rf"^run_dir=mine {reason}"):
        check(compose(["run_dir=mine"]))


def test_a_run_replaces_the_record_of_a_start_without_an_iteration(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    RunRecord(tmp_path / "mine").begin("choices: {}\n", seed=0, command=["train.py"])
    check(compose(["run_dir=mine"]))


@pytest.mark.parametrize(
    "spelling", ["${oc.env:A}", "${ oc.env:A}", "x${oc.env:A,b}", "${oc.${a}:A}"]
)
def test_the_environment_stays_out_of_the_record(spelling, monkeypatch):
    monkeypatch.setenv("A", "secret")
    cfg = compose(["logger=wandb"])
    cfg.logger.wandb.tags = ["a", spelling]
    with pytest.raises(ConfigError, match=r"^logger\.wandb\.tags\.1: only PROJECT_ROOT may be"):
        check(cfg)


@pytest.mark.parametrize(
    "line",
    [
        "seed=3",
        "~recipe",
        "algorithm/loss=ppo",
        "algorithm.loss.ratio_max=3",
        "~recipe algorithm/loss=opsm",
        "algorithm=luspo",
        "~recipe algorithm=nll algorithm/advantage=given epochs=4",
        "~recipe algorithm=nll algorithm/advantage=combined epochs=4 "
        "~algorithm.advantage.shares.group ~algorithm.advantage.shares.batch "
        "+algorithm.advantage.shares.own={of:{_target_:tandem.advantages.group.given,"
        "_partial_:true}}",
        "epochs=2",
        "resume=null",
        "model.lora={r:8,alpha:16}",
        "algorithm=sft reward.exact_match.weight=0",
        "algorithm=gdpo reward=[exact_match,length] "
        "algorithm.advantage.weights={exact_match:1,length:0}",
        "algorithm=gdpo reward=[exact_match,length] algorithm.advantage.weights={exact_match:1} "
        "evaluate=true",
    ],
)
def test_a_right_line_is_composed_and_passes(line):
    check(compose(shlex.split(line)))


def leads(text: str) -> list[str]:
    """The keys and choices that an alias names."""
    return re.split(r" and | or ", text)


@functools.cache
def keys_beside(*choices: str) -> list[str]:
    cfg = compose([*choices, "~recipe"])
    check(cfg)
    return [*list_keys(cfg), *list_left_out_keys(cfg)]


def test_what_other_libraries_call_it_leads_to_something_that_composes():
    for alias, elsewhere in ALIASES.items():
        assert alias not in keys_beside(), alias
        for ways in elsewhere.split(" or "):
            together = leads(ways)
            choices = [lead for lead in together if "=" in lead]
            of_flows = re.match(r"model/ema|rollout\.(steps|guid)", ways) is not None
            beside = ["model=tiny_flow"] if of_flows else []
            if "model=hf" in choices:
                beside += ["model.path=x", "data=jsonl", "data.path=x"]
            keys = keys_beside(*choices, *beside)
            assert all(lead in keys for lead in together if "=" not in lead), alias


NAMED_ELSEWHERE = (
    "clip_ratio clip_ratio_low clip_ratio_high clip_range kl_penalty target_kl beta entropy_coef "
    "normalize_by_std normalize_advantages baseline baseline_decay dynamic_sampling "
    "token_level_loss advantage_estimator"
)


@pytest.mark.parametrize("place", ["", "algorithm.", "algorithm.loss.", "algorithm.advantage."])
def test_a_name_from_elsewhere_leads_to_its_place_wherever_it_is_typed(place):
    keys = keys_beside()
    for name in NAMED_ELSEWHERE.split():
        if f"{place}{name}" in keys:
            assert f"{place}{name}" in leads(ALIASES[name])
            continue
        own = f"algorithm.{name}"  # the same name in its right place
        means = f"did you mean {own!r}?" if own in keys else f"here it is {ALIASES[name]}"
        assert unknown("key", f"{place}{name}", keys).endswith(means)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("reward.length.target", "there are weight, limit"),
        ("reward.length.limt", "did you mean 'reward.length.limit'?"),
        ("reward.size.target", "did you mean 'entropy.target'?"),  # no part of that name
        ("entropy.seed", "did you mean 'seed'?"),
        ("limit", "did you mean 'reward.length.limit'?"),
        ("ema_decay", "here it is model/ema=constant and model.ema.decay"),
    ],
)
def test_a_key_is_looked_for_where_it_was_typed(name, answer):
    keys = ["seed", "entropy", "entropy.target", "reward", "reward.length", "data.decay"]
    keys += ["reward.length.weight", "reward.length.limit"]
    assert unknown("key", name, keys) == f"unknown key {name!r}: {answer}"


def test_a_count_may_be_written_as_1e3():
    cfg = compose(["iterations=1e3", "max_tokens_per_microbatch=1E4", "optimizer.lr=1e-3"])
    assert (cfg.iterations, cfg.max_tokens_per_microbatch) == (1000, 10000)
    assert isinstance(cfg.iterations, int)
    assert cfg.optimizer.lr == 0.001
    with pytest.raises(ConfigError, match=r"^iterations: expected int, got 1000\.5"):
        check(compose(["iterations=1000.5"]))


def test_the_algorithms_own_name_is_nearer_than_what_it_is_called_elsewhere():
    with pytest.raises(ConfigError, match=r"did you mean 'algorithm\.loss\.beta'"):
        compose(["algorithm/loss=dro", "~recipe", "beta=1"])


def run_line(folder: Path, line: str, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *words, str(ROOT / "train.py"), *shlex.split(line)],
        cwd=folder, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.system
@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("sede=1", MISSPELT["sede=1"]),
        ("--seed 3", "--seed: write the option as seed=..., without dashes"),
    ],
)
def test_the_command_answers_in_one_line_and_exits_with_2(line, answer, tmp_path):
    done = run_line(tmp_path, line)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{answer}\n")
    assert not list(tmp_path.iterdir())


ONE_BY_ONE = """
import runpy, shlex, sys
_, script, *lines = sys.argv
for line in lines:
    sys.argv = [script, *shlex.split(line)]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        print(ended.code)
"""


@pytest.mark.system
def test_the_command_answers_a_wrong_value_and_a_sweep_as_shortly(tmp_path):
    """In one process: both import torch before they know."""
    told = {"epochs=two": WRONG["epochs=two"], "-m algorithm=rloo,grop": MISSPELT["algorithm=grop"]}
    done = run_line(tmp_path, shlex.join(told), "-c", ONE_BY_ONE)
    assert (done.stdout, done.stderr) == ("2\n2\n", "".join(f"{x}\n" for x in told.values()))
    assert not list(tmp_path.iterdir())


@pytest.mark.system
def test_composing_and_misspelling_import_no_heavy_library():
    code = (
        "import sys\n"
        "from tandem.config import ConfigError, compose\n"
        "compose(['algorithm=dapo'])\n"
        "try: compose(['sede=1'])\n"
        "except ConfigError: print(sorted({'torch', 'lightning', 'transformers'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.system
def test_a_dry_run_imports_no_trainer_no_model_library_and_no_compiler(tmp_path):
    code = (
        "import sys\n"
        "from tandem.launch.train import main\n"
        f"main(['dry_run=true', 'run_dir={tmp_path}/run'])\n"
        "print(sorted({'lightning', 'transformers', 'scipy', 'torch._dynamo'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr


@pytest.mark.system
def test_a_warning_of_a_run_reaches_the_errors_as_it_is(tmp_path):
    code = (
        "import logging, hydra\n"
        f"@hydra.main(version_base='1.3', config_path='{ROOT}/conf', config_name='config')\n"
        "def main(_): logging.getLogger('tandem.settings.guards').warning('40 samples tie')\n"
        "from tandem.config import compose\n"  # registers the resolvers of config.yaml
        "compose()\n"
        "main()\n"
    )
    command = [sys.executable, "-c", code, f"run_dir={tmp_path}"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60,
        env=os.environ | {"PROJECT_ROOT": str(ROOT)},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("", "40 samples tie\n")
