"""Teachers and the parts that use them: each refusal with its one-line message."""

import shlex

import pytest

from tandem.config import ConfigError, build, check, compose

RUN = "'algorithm.teachers.folders={others: runs/x}'"
GIVE = 'set algorithm/teachers=tokens "algorithm.teachers.folders={others: RUN}"'
LINES = {
    "algorithm=grpo algorithm/advantage=task_and_teacher": (
        f"from_teacher needs a teacher, and there is none; {GIVE}"
    ),
    "algorithm=grpo algorithm/loss=with_divergence": (
        f"with_divergence needs a teacher, and there is none; {GIVE}"
    ),
    f"algorithm=grpo algorithm/teachers=tokens {RUN}": (
        "algorithm.teachers: algorithm=grpo reads no teacher; set "
        "algorithm/advantage=task_and_teacher, or leave algorithm/teachers out"
    ),
    f"algorithm=opd algorithm/teachers=velocities {RUN}": (
        "algorithm.teachers are for pictures and cannot score tokens; set algorithm/teachers=tokens"
    ),
    f"model=tiny_flow algorithm=diffusion_opd algorithm/teachers=tokens {RUN}": (
        "algorithm.teachers are for tokens and cannot score pictures; set "
        "algorithm/teachers=velocities"
    ),
    f"model=tiny_flow algorithm=opd {RUN}": (
        "algorithm/advantage=from_teacher on dynamics=flow_sde: a teacher of flows predicts "
        "velocities, not log-probabilities of steps; set algorithm=diffusion_opd"
    ),
    f"algorithm=opd {RUN} algorithm/sampling_strategy=offline algorithm/importance_sampling=none": (
        "from_teacher estimates a KL from the policy's own samples, and here rows come from "
        "data; set algorithm/sampling_strategy=on_policy"
    ),
    "model=tiny_vlm data=shapes_asked algorithm=opd "
    "'algorithm.teachers.folders={others: \"http://127.0.0.1:1\"}'": (
        "algorithm=opd needs teacher_logp, which model=tiny_vlm does not provide"
    ),
    f"algorithm=gkd {RUN} algorithm/sampling_strategy=mixed": (
        "algorithm/importance_sampling=token_tis: some rows come from data; set "
        "algorithm/importance_sampling=none"
    ),
    f"algorithm=gkd {RUN} algorithm/sampling_strategy=mixed algorithm/importance_sampling=none "
    "rollout.temperature=0": ("rollout.temperature=0.0 makes all samples equal; set it above 0"),
    f"algorithm=opd {RUN} algorithm/loss=divergence": (
        "algorithm.teachers.divergence=null: divergence reads the divergence of each state; set "
        "algorithm/teachers/divergence=jsd, forward_kl or reverse_kl"
    ),
    f"algorithm=opd {RUN} algorithm/teachers/divergence=jsd": (
        "algorithm/teachers/divergence=jsd is not read; leave it out, or set "
        "algorithm/loss=divergence"
    ),
    f"algorithm=gkd {RUN} algorithm.teachers.divergence.beta=1.0": (
        "algorithm.teachers.divergence.beta=1.0: must be above 0, and below 1"
    ),
    "algorithm=grpo algorithm/sampling_strategy=reprompted": (
        "algorithm/sampling_strategy=reprompted writes prompts for a teacher, and no part "
        "reads one; set algorithm/sampling_strategy=on_policy, or algorithm=sdpo"
    ),
    "algorithm=grpo algorithm/advantage=none": (
        "algorithm/advantage=none: ppo learns from advantages; set "
        "algorithm/advantage=group_relative, or algorithm/loss=divergence"
    ),
    "algorithm=sdpo environment=maze data=maze": (
        "algorithm/sampling_strategy=reprompted: a teacher would not read the opening of "
        "environment=maze; set algorithm/sampling_strategy=on_policy, or environment=none"
    ),
    "algorithm=sdpo group_size=1": (
        "group_size=1: successful_peer compares the samples of a group; set group_size=2 or more"
    ),
    "algorithm=sdpo algorithm/sampling_strategy=on_policy": (
        "algorithm.teachers.folders={others: self}: a teacher with the policy's own weights reads "
        "the same prompt and has nothing to teach; set algorithm/sampling_strategy=reprompted, or "
        "give another teacher"
    ),
    "algorithm=sdpo algorithm.sampling_strategy.reprompt.template=abc": (
        "algorithm.sampling_strategy.reprompt.template=abc: must have {prompt} and {solution}"
    ),
    "algorithm=sdft 'algorithm.sampling_strategy.reprompt.template=\"{prompt} Hint\"'": (
        "algorithm.sampling_strategy.reprompt.template={prompt} Hint: must have {prompt} and "
        "{solution}"
    ),
    f"algorithm=gkd {RUN} algorithm.teachers.tail=false": (
        "algorithm.teachers.tail and support are of the top k tokens, and "
        "algorithm.teachers.top_k=null compares all; set top_k=100, or leave them out"
    ),
    f"algorithm=gkd {RUN} algorithm.teachers.support=student": (
        "algorithm.teachers.tail and support are of the top k tokens, and "
        "algorithm.teachers.top_k=null compares all; set top_k=100, or leave them out"
    ),
    "algorithm=sdpo algorithm.teachers.dtype=bfloat16": (
        "algorithm.teachers.dtype=bfloat16: no teacher is loaded from a folder; set it to null"
    ),
    "algorithm=opd algorithm.teachers.dtype=auto "
    "'algorithm.teachers.folders={others: \"http://127.0.0.1:1\"}'": (
        "algorithm.teachers.dtype=auto: no teacher is loaded from a folder; set it to null"
    ),
    f"algorithm=minillm {RUN} algorithm.loss.coef=-1": (
        "algorithm.loss.coef=-1.0: must not be negative"
    ),
    "algorithm=sdpo trainer=fsdp2": (
        "algorithm.teachers: the policy teaches itself by a copy of its weights, which "
        "trainer.strategy=fsdp2 shards; set trainer=ddp, or give a folder in "
        "algorithm.teachers.folders"
    ),
}


@pytest.mark.parametrize(("line", "answer"), LINES.items(), ids=LINES)
def test_what_no_teacher_can_do_is_said_in_one_line(line, answer):
    with pytest.raises(ConfigError) as refused:
        check(compose(shlex.split(line)))
    assert str(refused.value) == answer


def test_a_task_and_a_teacher_are_learnt_from_together():
    line = f"algorithm=grpo algorithm/advantage=task_and_teacher algorithm/teachers=tokens {RUN}"
    cfg = compose([*shlex.split(line), "algorithm.advantage.shares.teacher.coef=0.3"])
    check(cfg)
    algorithm = build(cfg.algorithm)
    assert {"teacher_logp", "old_logp"} <= algorithm.needs and algorithm.learns_from_scores


def test_whoever_learns_from_a_teacher_alone_is_not_stopped_by_groups_that_tie():
    for name in ("opd", "gkd"):
        cfg = compose(shlex.split(f"algorithm={name} {RUN}"))
        assert not build(cfg.algorithm).learns_from_scores


def test_a_share_of_zero_is_not_judged():
    """One advantage per step beside one ratio per sample, and a teacher that is not there."""
    line = "algorithm=gspo algorithm/advantage=task_and_teacher ~recipe"
    check(compose(shlex.split(f"{line} algorithm.advantage.shares.teacher.coef=0")))


def test_a_sweep_may_leave_the_divergence_beside_a_loss_out():
    check(compose(shlex.split(f"algorithm=minillm {RUN} algorithm.loss.coef=0")))


@pytest.mark.parametrize("strategy", ["offline", "mixed"])
def test_a_divergence_is_learnt_from_given_rows_and_from_a_mix(strategy):
    """As in the comment of algorithm=gkd."""
    chosen = f"algorithm/sampling_strategy={strategy} algorithm/importance_sampling=none"
    check(compose(shlex.split(f"algorithm=gkd {RUN} {chosen}")))


@pytest.mark.parametrize(("name", "value"), [("api_key_env", "KEY"), ("model", "judge")])
def test_what_is_one_servers_own_goes_to_no_second_server(name, value):
    key = f"algorithm.teachers.server.{name}"
    folders = (
        "algorithm.teachers.folders={others: 'http://127.0.0.1:1', sums: 'http://127.0.0.1:%s'}"
    )
    one, another = (["algorithm=opd", folders % port] for port in ("1/v2", "2"))
    check(compose([*one, f"{key}={value}"]))
    check(compose([*another, f"{key}={{others: {value}, sums: other}}"]))
    with pytest.raises(ConfigError) as refused:
        check(compose([*another, f"{key}={value}"]))
    assert str(refused.value).endswith(
        f"{key}={value} would go to each of http://127.0.0.1:1, http://127.0.0.1:2; set it "
        f"per source: '{key}={{others: ..., sums: ...}}'"
    )
    with pytest.raises(ConfigError, match=rf"{key}.sum: .* it has others, sums$"):
        check(compose([*another, f"{key}={{sum: {value}}}"]))
