"""Settings: files, overrides, what is refused with which fix, and a run that moves to scale."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import yaml
from pydantic import ValidationError

from rlbook.objectives import METHODS, DivergenceMask, RatioClip, TopEntropy
from rlbook.scale.config import NOT_HERE, ScaleConfig, dump_config, load_config
from rlbook.training import RunConfig


def written(tmp_path, document):
    path = tmp_path / "run.yaml"
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return path


def test_what_is_dumped_reads_back_equal(tmp_path):
    config = ScaleConfig(
        method={"name": "grpo", "trust_region": {"high": 0.28}, "aggregation": "token_mean"},
        data={"levels": (2, 3), "retire_at": None},
        optimizer={"lr": 5e-7},
        generate={
            "interruption": {"after": 60, "text": "</think>…", "answer_tokens": 20},
            "token": "s3cret",
        },
        budget={"prompt_tokens": (150, 2048)},
    )
    assert load_config(written(tmp_path, dump_config(config))) == config


# The same file, here and on one process

SHARED = (
    "method",
    "steps",
    "seed",
    "patience",
    "sinks",
    "model",
    "data",
    "rollout",
    "optimizer",
    "critic",
    "evaluation",
)


def test_a_run_of_a_notebook_moves_to_scale_by_copying_its_file(tmp_path):
    tuned = RunConfig(
        method={"name": "dapo", "overlong_cache": 9, "trust_region": {"high": 0.3}},
        steps=25,
        seed=4,
        data={"task": "sums", "levels": (2, 3), "reward": "my.rewards:brevity"},
        rollout={"prompts": 12, "group_size": 4, "temperature": 0.8},
        optimizer={"lr": 3e-4, "eps": 1e-6, "warmup": 7, "minibatches": 3},
        evaluation={"every": 5},
    )
    config = load_config(written(tmp_path, dump_config(tuned)))
    assert set(SHARED) == set(RunConfig.model_fields)
    assert config.shared() == tuned.to_dict()
    assert RunConfig(**config.shared()) == tuned


def test_defaults_are_those_of_any_run():
    plain = RunConfig()
    assert ScaleConfig().shared() == plain.to_dict()
    own = ScaleConfig.model_fields.keys() - RunConfig.model_fields.keys()
    assert own == {
        *("run", "generate", "train", "launch", "checkpoint", "budget"),
    }


def test_no_setting_is_declared_twice():
    """But `dtype` of weights here and there, and engines and intervals of unlike things.

    That of the model is what the trainer and then the generators follow where they say nothing.
    """
    sections = {
        name: set(field.annotation.model_fields)
        for name, field in ScaleConfig.model_fields.items()
        if hasattr(field.annotation, "model_fields")
    }
    shared = set().union(*(sections[name] for name in sections if name in SHARED))
    added = [field for name in sections if name not in SHARED for field in sections[name]]
    assert shared & set(added) == {"every", "dtype"}  # of evaluations, and of checkpoints
    assert {field for field in added if added.count(field) > 1} == {"dtype", "engine"}


def test_settings_without_their_section_are_those_of_the_first_that_has_them():
    config = ScaleConfig(lr=1e-3, max_staleness=2, dtype="bfloat16", engine="vllm", every=3)
    assert config.optimizer.lr == 1e-3 and config.critic.lr == ScaleConfig().critic.lr
    assert (config.generate.max_staleness, config.generate.engine) == (2, "vllm")
    assert {s.dtype for s in (config.model, config.train, config.generate)} == {"bfloat16"}
    apart = ScaleConfig(dtype="bfloat16", train_dtype="float32", engine="vllm")
    assert (apart.model.dtype, apart.train.dtype) == ("bfloat16", "float32")
    assert (config.evaluation.every, config.checkpoint.every) == (3, 20)
    other = ScaleConfig(train_dtype="bfloat16", checkpoint_every=4)
    assert (other.generate.dtype, other.train.dtype) == ("bfloat16", "bfloat16")
    assert other.model.dtype == ScaleConfig().model.dtype == "float32"
    assert other.checkpoint.every == 4


def test_the_method_is_the_row_with_its_changes(tmp_path):
    path = written(tmp_path, {"method": "grpo", "rollout": {"max_new_tokens": 50}})
    config = load_config(path, ["method.trust_region.high=0.28", "method.aggregation=constant"])
    row = METHODS["grpo"]
    assert config.method.trust_region == RatioClip(row.trust_region.low, 0.28)
    assert config.method.advantage is row.advantage
    assert config.resolved_method.constant == 50.0


# Files


def test_numbers_as_yaml_writes_them(tmp_path):
    """YAML 1.1 reads 5e-7 as text; a section with nothing but comments is null."""
    config = load_config(written(tmp_path, "optimizer:\n  lr: 5e-7\nmodel:\n  # policy: tiny\n"))
    assert config.optimizer.lr == 5e-7
    assert config.model == ScaleConfig().model


def test_overrides_are_yaml_values(tmp_path):
    path = written(tmp_path, {"optimizer": {"lr": 1e-4, "warmup": 3}, "data": None})
    overrides = ("optimizer.lr=2e-5", "data.levels=[2, 3]", "data.retire_at=null", "steps=7")
    config = load_config(path, overrides)
    assert (config.optimizer.lr, config.optimizer.warmup) == (2e-5, 3)
    assert (config.data.levels, config.data.retire_at, config.steps) == ((2, 3), None, 7)


CUDA = {"device": "cuda"}
REFUSED = {
    "unknown field": ({"optimizer": {"lrr": 1}}, r"optimizer: no setting 'lrr', did you mean lr\b"),
    "unknown section": ({"trainers": {}}, r"no setting 'trainers', did you mean train\b"),
    "nested unknown": (
        {"generate": {"interruption": {"after": 1, "text": "x", "answer_tokens": 1, "y": 1}}},
        r"generate\.interruption: no setting 'y'",
    ),
    "range": ({"rollout": {"temperature": 0}}, r"rollout\.temperature: .*greater than 0"),
    "type": ({"steps": "many"}, "steps: .*integer"),
    "method": ({"method": "grppo"}, r"method: no method 'grppo'.*grpo"),
    "critic": ({"method": "ppo"}, r"method: ppo needs a critic, .*`rlbook train`"),
    "top-K": (
        {"method": {"name": "dppo", "trust_region": {"top_k": 20}}},
        r"method: dppo needs the likeliest tokens of the sampler's own policy, .*`rlbook train`",
    ),
    "sync": ({"rollout": {"sync_every": 2}}, r"rollout\.sync_every 2: .*generate\.max_staleness"),
    "target beyond the bound": (
        {"generate": {"max_staleness": 2, "target_staleness": 3}},
        r"generate\.target_staleness 3 exceeds generate\.max_staleness 2",
    ),
    "one GPU by number": (
        {"model": {"device": "cuda:1"}},
        r"model\.device 'cuda:1': .*cpu or cuda",
    ),
    "no generator": ({"generate": {"count": 0}}, r"generate\.count: .*greater than or equal to 1"),
    "nothing to correct": (
        {"method": {"name": "scalerl", "sampler_correction": {"cap": 2.0}}},
        r"method: sampler_correction .*old_logprobs",
    ),
    "GPU transport": ({"generate": {"transport": "nccl"}}, r"generate\.transport nccl .*cuda"),
    "nccl on one GPU": (
        {"generate": {"transport": "nccl", "colocated": True}, "model": CUDA},
        r"generate\.colocated: NCCL .*generate\.transport to file",
    ),
    "one GPU for two on a cluster": (
        {"generate": {"colocated": True}, "launch": {"engine": "ray"}, "model": CUDA},
        r"generate\.colocated: Ray .*set launch\.engine to local",
    ),
    "crowded": (
        {"generate": {"colocated": True, "count": 2}, "model": CUDA},
        r"generate\.colocated: servers take 2 GPUs of 1: lower generate\.count",
    ),
    "wide builtin": (
        {"generate": {"engine": "builtin", "tensor_parallel": 2}},
        r"generate\.engine builtin .*generate\.tensor_parallel 1",
    ),
    "builtin by nccl": (
        {"generate": {"engine": "builtin", "transport": "nccl"}, "model": CUDA},
        r"generate\.engine builtin .*generate\.transport file",
    ),
    "half builtin": (
        {"generate": {"engine": "builtin", "dtype": "bfloat16"}},
        r"generate\.engine builtin .*generate\.dtype",
    ),
    "an option decided twice": (
        {"generate": {"vllm": {"max_num_seqs": 7, "max-model-len": 100}}},
        r"generate\.vllm: the run itself decides max-num-seqs",
    ),
    "no range": (
        {"generate": {"interruption": {"after": [50, 40], "text": "x", "answer_tokens": 20}}},
        r"generate\.interruption\.after.*low ≤ high",
    ),
    "late end of a range": (
        {"generate": {"interruption": {"after": [30, 70], "text": "x", "answer_tokens": 20}}},
        r"generate\.interruption: .*max_new_tokens \(80\)",
    ),
    "late interruption": (
        {"generate": {"interruption": {"after": 70, "text": "x", "answer_tokens": 20}}},
        r"generate\.interruption: .*max_new_tokens \(80\)",
    ),
    "not a mapping": ("- steps", "expected sections"),
    "not YAML": ("steps: [", "is not YAML"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_field_and_fix(name, tmp_path):
    document, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        load_config(written(tmp_path, document))


ROWS = {
    **METHODS,
    "80/20": replace(METHODS["dapo"], selection=TopEntropy(0.2)),
    "entropy bonus": replace(METHODS["dapo"], entropy_bonus=0.01),
    "top-K": replace(METHODS["dppo"], trust_region=DivergenceMask(top_k=20)),
    "top-K, recomputed": replace(
        METHODS["dppo"], trust_region=DivergenceMask(top_k=20), old_logprobs="recomputed"
    ),
}


def test_every_row_trains_here_but_those_with_a_critic_or_the_samplers_top_k():
    """The notebook's trainer refuses no row, the loop of chapter 02 all but the plainest."""
    refused = {name for name, method in ROWS.items() if method.requirements() & NOT_HERE.keys()}
    assert refused == {"ppo", "top-K"}
    for name, method in ROWS.items():
        with pytest.raises(ValidationError) if name in refused else nullcontext():
            ScaleConfig(method=method, minibatches=4, epochs=2)
    with pytest.raises(ValidationError, match=r"ppo needs a critic.*\(.*second sharded model"):
        ScaleConfig(method="ppo")
    with pytest.raises(ValidationError, match=r"\(generators report .* of the tokens they drew"):
        ScaleConfig(method=ROWS["top-K"])
    plain = {name for name, method in ROWS.items() if not method.lacking(())}
    assert plain == {
        *("reinforce", "reinforce_batch_mean", "maxrl", "dppo", "dppo_kl", "gpg"),
    }


@pytest.mark.parametrize("override", ["steps", "=3", "optimizer.lr.x=1", "steps.x=1"])
def test_overrides_that_cannot_be_written(override, tmp_path):
    with pytest.raises(ValueError, match=r"is no setting|has no fields"):
        load_config(written(tmp_path, {"steps": 3, "optimizer": {"lr": 1}}), (override,))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no configuration .*nowhere\.yaml; examples"):
        load_config(tmp_path / "nowhere.yaml")
