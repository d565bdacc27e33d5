"""Settings: files, overrides, and what is refused with which fix."""

import pytest
import yaml

from rlbook.scale.config import ScaleConfig, dump_config, load_config


def written(tmp_path, document):
    path = tmp_path / "run.yaml"
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return path


def test_what_is_dumped_reads_back_equal(tmp_path):
    config = ScaleConfig(
        rollout={"interruption": {"after": 60, "text": "</think>…", "answer_tokens": 20}},
        data={"levels": (2, 3), "retire_at": None},
        generator={"servers": ["http://127.0.0.1:8000"], "token": "s3cret"},
        budget={"curve": (0.6, 1.9, 2542.0, 0.38)},
        trainer={"lr": 5e-7},
    )
    assert load_config(written(tmp_path, dump_config(config))) == config


def test_numbers_as_yaml_writes_them(tmp_path):
    """YAML 1.1 reads 5e-7 as text; a section with nothing but comments is null."""
    config = load_config(written(tmp_path, "trainer:\n  lr: 5e-7\nmodel:\n  # policy: tiny\n"))
    assert config.trainer.lr == 5e-7
    assert config.model == ScaleConfig().model


def test_overrides_are_yaml_values(tmp_path):
    path = written(tmp_path, {"trainer": {"lr": 1e-4, "warmup": 3}, "data": None})
    overrides = ("trainer.lr=2e-5", "data.levels=[2, 3]", "data.retire_at=null", "steps=7")
    config = load_config(path, overrides)
    assert (config.trainer.lr, config.trainer.warmup) == (2e-5, 3)
    assert (config.data.levels, config.data.retire_at, config.steps) == ((2, 3), None, 7)


REFUSED = {
    "unknown field": ({"trainer": {"lrr": 1}}, r"trainer\.lrr: unknown field .*\blr\b"),
    "unknown section": ({"trainers": {}}, r"trainers: unknown field .*\btrainer\b"),
    "nested unknown": (
        {"rollout": {"interruption": {"after": 1, "text": "x", "answer_tokens": 1, "y": 1}}},
        r"rollout\.interruption\.y: unknown field",
    ),
    "range": ({"rollout": {"temperature": 0}}, r"rollout\.temperature: .*greater than 0"),
    "type": ({"steps": "many"}, "steps: .*integer"),
    "method": ({"trainer": {"method": "grppo"}}, r"trainer\.method: unknown 'grppo'.*'grpo'"),
    "critic": ({"trainer": {"method": "ppo"}}, r"trainer\.method: ppo needs a critic"),
    "open host": ({"generator": {"host": "0.0.0.0"}}, r"generator\.host 0\.0\.0\.0 .*token"),
    "open server": (
        {"generator": {"servers": ["http://node1:8000"]}},
        r"generator\.servers: http://node1:8000 is another machine: set generator\.token",
    ),
    "no URL": (
        {"generator": {"servers": ["node1:8000"], "token": "x"}},
        r"generator\.servers: 'node1:8000' is no URL",
    ),
    "no servers": ({"generator": {"count": 0}}, r"generator\.count is 0"),
    "ports": ({"generator": {"port": 65535, "count": 2}}, r"generator\.port 65535"),
    "nothing to truncate": (
        {"trainer": {"method": "scalerl", "truncate_weight": 2.0}},
        r"trainer\.truncate_weight.*leave it out",
    ),
    "GPU transport": ({"generator": {"transport": "nccl"}}, r"generator\.transport nccl .*cuda"),
    "ipc apart": (
        {"generator": {"transport": "ipc"}, "trainer": {"device": "cuda"}},
        r"generator\.transport ipc .*generator\.colocated",
    ),
    "crowded": (
        {"generator": {"colocated": True, "count": 2}, "trainer": {"device": "cuda"}},
        r"generator\.colocated: 2 servers .*lower generator\.count",
    ),
    "wide builtin": (
        {"generator": {"engine": "builtin", "tensor_parallel": 2}},
        r"generator\.tensor_parallel needs engine vllm",
    ),
    "builtin by ipc": (
        {
            "generator": {"engine": "builtin", "transport": "ipc", "colocated": True},
            "trainer": {"device": "cuda"},
        },
        r"generator\.engine builtin .*file or gloo",
    ),
    "half builtin": (
        {"generator": {"engine": "builtin", "dtype": "bfloat16"}},
        r"generator\.engine builtin .*generator\.dtype",
    ),
    "a group that fits no server": (
        {"generator": {"slots": 7}, "rollout": {"group_size": 8}},
        r"generator\.slots 7: the 8 completions .*rollout\.group_size",
    ),
    "late interruption": (
        {"rollout": {"interruption": {"after": 70, "text": "x", "answer_tokens": 20}}},
        r"rollout\.interruption: .*max_new_tokens \(80\)",
    ),
    "rendezvous": ({"trainer": {"rendezvous": "node0"}}, r"trainer\.rendezvous 'node0': .*port"),
    "not a mapping": ("- steps", "expected sections"),
    "not YAML": ("steps: [", "is not YAML"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_field_and_fix(name, tmp_path):
    document, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        load_config(written(tmp_path, document))


@pytest.mark.parametrize("override", ["steps", "=3", "trainer.lr.x=1", "steps.x=1"])
def test_overrides_that_cannot_be_written(override, tmp_path):
    with pytest.raises(ValueError, match="override"):
        load_config(written(tmp_path, {"steps": 3, "trainer": {"lr": 1}}), (override,))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no configuration .*nowhere\.yaml; examples"):
        load_config(tmp_path / "nowhere.yaml")


def test_batch_size_counts_completions():
    assert ScaleConfig(rollout={"prompts": 48, "group_size": 16}).batch_size == 768
