"""The dry run against numbers worked out by hand, counted elsewhere or measured."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from rlbook.paths import data_dir
from rlbook.scale.config import ScaleConfig, load_config
from rlbook.scale.launch.dry_run import check, dry_run, measure_prompts, measure_shape, problems_of
from rlbook.scale.plan.budget import Budget, Prompts
from rlbook.scale.plan.shape import model_shape, shape_of
from rlbook.tasks import Problem, dataset

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))

# Qwen3-8B, from its published config.json, layer by layer
ATTENTION = 4096 * 4096 * 2 + 4096 * 1024 * 2
MLP = 3 * 4096 * 12288
NORMS = 2 * 4096 + 2 * 128
MATRIX = 151_936 * 4096  # the embedding, and again the head
PARAMETERS = 36 * (ATTENTION + MLP + NORMS) + 4096 + 2 * MATRIX
LINEAR = 36 * (ATTENTION + MLP) + MATRIX


@pytest.fixture(scope="module")
def qwen3_8b():
    return measure_shape(load_config(CONFIGS[0].with_name("one-node-8.yaml")))


def node(**sections):
    """Four trainers and four generators of 80 GB; every completion has exactly 1000 tokens."""
    settings = {
        "steps": 100,
        "model": {"device": "cuda"},
        "rollout": {"prompts": 16, "group_size": 8, "max_new_tokens": 1000},
        "optimizer": {"minibatches": 1, "micro_batch_tokens": 8192},
        "generate": {"count": 4, "slots": 64, "dtype": "bfloat16", "max_staleness": 4},
        "train": {"processes": 4, "dtype": "bfloat16", "activation_checkpointing": True},
        "budget": {"mean_tokens": 1000, "length_sigma": 0.0, "bandwidth_tb": 3.35, "mfu": 0.4},
    }
    merged = {
        name: {**settings.get(name, {}), **value} if isinstance(value, dict) else value
        for name, value in sections.items()
    }
    return ScaleConfig(**{**settings, **merged})


def test_parameters_of_a_published_model(qwen3_8b):
    assert qwen3_8b.parameters == PARAMETERS == 8_190_735_360
    assert qwen3_8b.linear == LINEAR
    assert qwen3_8b.layer == pytest.approx(ATTENTION + MLP + NORMS, rel=1e-5)
    assert qwen3_8b.state.total == 16 * PARAMETERS
    assert qwen3_8b.cache_bytes(2) == 147_456  # 2 · 36 layers · 8 heads · 128 · 2 bytes


def test_parameters_of_the_tiny_model_are_those_in_its_file():
    with safe_open(data_dir() / "tiny-sums" / "model.safetensors", "pt") as file:
        stored = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
    assert model_shape("tiny").parameters == stored


SMALL = {
    "vocab_size": 100,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 256,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", [LlamaConfig, Qwen3Config])
def test_activations_are_those_autograd_keeps(config, dtype):
    """Of four more layers: what lies outside of layers is not part of the count."""
    four, eight = config(**SMALL), config(**SMALL | {"num_hidden_layers": 8})
    measured = kept_bytes(eight, dtype) - kept_bytes(four, dtype)
    predicted = shape_of(four).activation_bytes(dtype.itemsize, checkpointing=False)
    # Not counted: two numbers per token and norm, one per head (0.6 %), and the copies of single
    # tensors (up to 6 %) that a kernel may make to get its inputs in order.
    assert 0 < measured - predicted < 0.1 * predicted


def kept_bytes(config, dtype):
    """Bytes per token that autograd keeps of a forward pass without the head."""
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    known = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = model.base_model(torch.randint(0, 100, (2, 64)), use_cache=False)
    assert output.last_hidden_state.requires_grad
    return sum(storage.nbytes() for storage in kept.values()) / 128


def test_memory_of_a_trainer(qwen3_8b):
    budget = Budget(node(), qwen3_8b, Prompts(24, 200))
    assert budget.state_bytes == 4 * PARAMETERS  # 16 bytes over 4 ranks
    assert budget.gathered_bytes == pytest.approx(
        2 * (2 * MATRIX + 2 * (PARAMETERS - 2 * MATRIX) / 36)
    )
    inputs = 36 * 2 * 4096
    one_layer = 8 * 4096 + 2 * (4 * 4096 + 2 * 4096 + 2 * 1024 + 4 * 12288) + 6 * (4096 + 1024)
    assert budget.activation_bytes == 8192 * (inputs + one_layer)
    assert budget.head_bytes == 4 * (2 * 256 * 151_936 + 2 * MATRIX)


def test_a_micro_batch_holds_at_least_one_rollout(qwen3_8b):
    small = node(optimizer={"micro_batch_tokens": 1})
    budget = Budget(small, qwen3_8b, Prompts(24, 200))
    per_token = Budget(node(), qwen3_8b, Prompts(24, 200)).activation_bytes / 8192
    assert budget.activation_bytes == 1200 * per_token


def test_memory_of_a_generator(qwen3_8b):
    budget = Budget(node(), qwen3_8b, Prompts(24, 200))
    assert budget.generator_weight_bytes == 2 * PARAMETERS
    assert budget.mean_context == 524  # the prompt, and half of 1000 tokens
    assert budget.cache_bytes == 64 * 524 * 147_456
    halved = Budget(node(generate={"tensor_parallel": 2}), qwen3_8b, Prompts(24, 200))
    assert halved.generator_weight_bytes == PARAMETERS
    assert halved.cache_bytes == budget.cache_bytes / 2


def test_long_completions_are_seen_more_often(qwen3_8b):
    """Of 100 and 900 tokens with equal odds, 9 of 10 in flight are the long ones: mean 410."""
    budget = Budget(node(), qwen3_8b, Prompts(0, 0))
    vars(budget)["lengths_sampled"] = np.array([100.0, 900.0])
    assert budget.mean_context == 410


def test_arithmetic_of_an_update(qwen3_8b):
    budget = Budget(node(), qwen3_8b, Prompts(24, 200))
    tokens, seen = 128 * 1024, 128 * 1024 * 512
    flops = 6 * LINEAR * tokens + 3 * 4 * 36 * 32 * 128 * seen
    assert budget.flops_per_update == pytest.approx(flops)
    assert budget.update_seconds == pytest.approx(flops / (4 * 989e12 * 0.4))
    measured = Budget(node(budget={"update_seconds": 7.0}), qwen3_8b, Prompts(24, 200))
    assert measured.update_seconds == 7.0


def test_decoding_reads_weights_and_cache(qwen3_8b):
    budget = Budget(node(budget={"decode_share": 0.5}), qwen3_8b, Prompts(24, 200))
    assert budget.decode_seconds == pytest.approx(
        (2 * PARAMETERS + 64 * 524 * 147_456) / (3.35e12 * 0.5)
    )


@pytest.mark.parametrize(("update", "slower"), [(0.001, "generators"), (1000.0, "trainers")])
def test_the_slower_side_sets_the_pace(qwen3_8b, update, slower):
    """128 completions of 1000 tokens: 4 generators · 64 slots write them in 1000 / 2 steps."""
    config = node(budget={"update_seconds": update, "decode_seconds": 0.02, "push_gb": 1e6})
    budget = Budget(config, qwen3_8b, Prompts(24, 200))
    if slower == "generators":
        assert budget.step_seconds == pytest.approx(10.0, rel=0.1)
        assert budget.simulation.generator_idle < 0.05 < 0.9 < budget.simulation.trainer_idle
    else:
        assert budget.step_seconds == pytest.approx(1000.0, rel=0.01)
        assert budget.simulation.trainer_idle < 0.05 < 0.9 < budget.simulation.generator_idle
        assert budget.simulation.mean_lag == pytest.approx(4, abs=0.1)
    assert budget.gpu_hours == pytest.approx(8 * 100 * budget.step_seconds / 3600)


def test_evaluations_cost_time(qwen3_8b):
    """2 rounds of 64 · 4 completions are 512,000 tokens; 256 slots write 12,800 a second."""
    config = node(
        evaluation={"every": 50, "prompts": 64, "samples": 4}, budget={"decode_seconds": 0.02}
    )
    budget = Budget(config, qwen3_8b, Prompts(24, 200))
    assert budget.evaluation_seconds == pytest.approx(512_000 / 12_800)


def test_shared_gpus_count_once_and_go_at_half_speed(qwen3_8b):
    sharing = {"generate": {"colocated": True}, "budget": {"update_seconds": 100.0}}
    budget = Budget(node(**sharing), qwen3_8b, Prompts(24, 200))
    assert budget.gpus == 4
    assert budget.step_seconds == pytest.approx(200.0, rel=0.05)


REFUSED = {
    "context": (
        {"rollout": {"max_new_tokens": 40_900}},
        r"rollout\.max_new_tokens 40900: .*context of 40960: set 40760 at most",
    ),
    "pool": ({"data": {"pool": 10}}, r"data\.pool 10 is smaller than the 16 prompts of an update"),
    "one trainer": (
        {"train": {"processes": 1}},
        r"a trainer needs 1\d\d\.\d GB of 80\.0 GB: set train\.processes to 4",
    ),
    "long micro-batches": (
        {
            "train": {"activation_checkpointing": False},
            "optimizer": {"micro_batch_tokens": 32_768},
        },
        r"a trainer needs .*: set train\.activation_checkpointing to True or "
        r"set optimizer\.micro_batch_tokens to \d+",
    ),
    "slots": (
        {"generate": {"slots": 1000}},
        r"generate\.slots 1000 need 77\.3 GB of cache, 53\.6 GB are left: set 693 at most",
    ),
    "no cache": (
        {"generate": {"gpu_memory": 0.2}},
        r"weights \(16\.4 GB\) leave no room .*generate\.tensor_parallel",
    ),
    "shared": (
        {"generate": {"colocated": True, "gpu_memory": 0.7}},
        r"a trainer needs .* beside generators that take 56\.0 GB",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused_with_the_fix(name, qwen3_8b):
    sections, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        check(Budget(node(**sections), qwen3_8b, Prompts(24, 200)))


def test_fixes_fix(qwen3_8b):
    check(Budget(node(), qwen3_8b, Prompts(24, 200)))
    check(Budget(node(generate={"slots": 693}), qwen3_8b, Prompts(24, 200)))
    with pytest.raises(ValueError, match="generate"):
        check(Budget(node(generate={"slots": 694}), qwen3_8b, Prompts(24, 200)))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_configuration_dry_runs(path):
    text = dry_run(load_config(path))
    assert "GPU-hours" in text and "staleness" in text
    assert max(map(len, text.splitlines())) < 120


@pytest.fixture
def data_of_published_size(monkeypatch):
    """Stand-ins for the hub's data sets: as many rows, made-up questions, no network."""
    rows = {"POLARIS-Project/Polaris-Dataset-53K": 53_291}

    def read_hub(source):
        made = (
            Problem(f"{i:x}", f"What is {i} + {i}?", f"{2 * i}", 0)
            for i in range(rows[source.name])
        )
        return dataset.divide(list(made))

    monkeypatch.setattr(dataset, "read_hub", read_hub)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_configuration_finds_its_prompts(path, data_of_published_size):
    config = load_config(path)
    problems = problems_of(config)
    assert len(problems) >= 0.9 * (config.data.pool or 0)  # of the small tasks, some come twice
    assert len(problems) >= config.prompts_per_update


def test_a_pool_larger_than_the_data_is_seen_by_the_dry_run(data_of_published_size):
    (path,) = (path for path in CONFIGS if path.stem == "one-node-8")
    with pytest.raises(ValueError, match=r"training problems.*60000 are asked for"):
        dry_run(load_config(path, ["data.pool=60000"]))


def test_predicted_rewards_lie_on_the_curve(qwen3_8b):
    """At C_mid half of the way from R_0 to A is done, far beyond it all of it."""
    curve = Budget(node(budget={"curve": (0.6, 2.0, 100.0, 0.2)}), qwen3_8b, Prompts(1, 1)).curve
    assert (curve(100.0), curve(1e6)) == (pytest.approx(0.4), pytest.approx(0.6))
    config = load_config(CONFIGS[0].with_name("cpu-tiny.yaml"), ("budget.curve=[1, 2, 0.01, 0.2]",))
    assert "at 50%" in dry_run(config)
    assert "set budget.curve" in dry_run(load_config(CONFIGS[0].with_name("cpu-tiny.yaml")))


def test_prompts_are_measured():
    """`<bos>`, two digits at most per operand, a sign before each but the first, `=?`."""
    prompts = measure_prompts(ScaleConfig(data={"levels": [2], "pool": 300}))
    assert prompts.longest == 1 + 4 + 2
    assert 6 <= prompts.mean <= 7
    with pytest.raises(ValueError, match=r"data\.pool: only \d+ different prompts"):
        measure_prompts(ScaleConfig(data={"levels": [2], "pool": 4}, minibatches=1))


def test_models_that_are_not_at_hand():
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        model_shape("./nowhere")
    with pytest.raises(ValueError, match="model_type"):
        measure_shape(ScaleConfig(budget={"shape": {"hidden_size": 3}}))
    with pytest.raises(ValueError, match="model_type"):
        measure_shape(ScaleConfig(budget={"shape": {"model_type": "nonsense"}}))


def test_a_hub_name_without_a_network(monkeypatch):
    def unreachable(source):
        raise OSError("We couldn't connect to 'https://huggingface.co'\nmore")

    monkeypatch.setattr("rlbook.scale.plan.shape.AutoConfig.from_pretrained", unreachable)
    with pytest.raises(ValueError, match=r"model\.policy 'a/b': .*couldn't connect.*local folder"):
        model_shape("a/b")
    monkeypatch.setattr("rlbook.scale.launch.dry_run.AutoTokenizer.from_pretrained", unreachable)
    with pytest.raises(ValueError, match=r"budget\.prompt_tokens"):
        measure_prompts(ScaleConfig(model={"policy": "a/b"}))
