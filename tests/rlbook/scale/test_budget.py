"""The dry run against numbers worked out by hand, counted elsewhere or measured."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from rlbook.cli import VERBS
from rlbook.paths import data_dir
from rlbook.scale.config import ScaleConfig, load_config
from rlbook.scale.generate import vllm_adapter
from rlbook.scale.launch.dry_run import (
    check_start,
    dry_run,
    measure_prompts,
    measure_shape,
    problems_of,
)
from rlbook.scale.plan.budget import Budget, Prompts
from rlbook.scale.plan.fit import check, fastest_split, fixes, impossible, splits, too_large
from rlbook.scale.plan.table import SLOWER, table
from rlbook.scale.rollout.evaluate import named_set
from rlbook.scaling.shape import described_shape, model_shape, shape_of
from rlbook.tasks import dataset
from rlbook.tasks.audit import audit, record
from rlbook.training.config import changed as changed_by_words
from rlbook.training.config import load_config as training_config

FILES = sorted((Path(__file__).parents[3] / "configs").glob("*.yaml"))
CONFIGS = [path for path in FILES if "\ngenerate:" in path.read_text()]

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
        "method": "scalerl",
        "steps": 100,
        "model": {"device": "cuda"},
        "rollout": {"prompts": 16, "group_size": 8, "max_new_tokens": 1000},
        "optimizer": {"minibatches": 1, "micro_batch_tokens": 8192},
        "generate": {"count": 4, "slots": 64, "max_staleness": 4, "target_staleness": 4},
        "train": {"processes": 4, "dtype": "bfloat16", "activation_checkpointing": True},
        "budget": {"mean_tokens": 1000, "length_sigma": 0.0, "decode_share": 0.5, "mfu": 0.4},
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


TINY = shape_of(LlamaConfig(**SMALL))


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
        # From 64 tokens on, PyTorch repacks bfloat16 keys, which fails on a CPU with AVX-512 whose
        # kernels are set to AVX2.
        output = model.base_model(torch.randint(0, 100, (2, 48)), use_cache=False)
    assert output.last_hidden_state.requires_grad
    return sum(storage.nbytes() for storage in kept.values()) / (2 * 48)


def test_memory_of_a_trainer(qwen3_8b):
    budget = Budget(node(), qwen3_8b, Prompts(24, 200))
    inputs = 36 * 2 * 4096
    one_layer = 8 * 4096 + 2 * (4 * 4096 + 2 * 4096 + 2 * 1024 + 4 * 12288) + 6 * (4096 + 1024)
    memory = budget.trainer_memory
    assert memory["weights, gradients, AdamW"] == 4 * PARAMETERS  # 16 bytes over 4 ranks
    assert memory["gathered parameters"] == pytest.approx(
        2 * (2 * MATRIX + 2 * (PARAMETERS - 2 * MATRIX) / 36)
    )
    layer = (PARAMETERS - 2 * MATRIX) // 36
    assert memory["gradients on their way"] == 4 * layer * (1 + 1 / 4)
    assert memory["activations"] == 8192 * (inputs + one_layer)
    assert memory["head"] >= 4 * MATRIX  # its gradient, and the logits of some rows
    assert memory["reference"] == 0
    penalised = Budget(node(method="grpo"), qwen3_8b, Prompts(24, 200))
    assert penalised.trainer_bytes == budget.trainer_bytes + PARAMETERS  # 4 bytes over 4 ranks
    summed = Budget(node(train={"accumulate": True}), qwen3_8b, Prompts(24, 200))
    assert summed.trainer_bytes == budget.trainer_bytes + 4 * PARAMETERS
    assert "set train.accumulate to False" in fixes(summed).split(" or ")


def test_memory_and_traffic_of_two_copies_of_the_weights(qwen3_8b):
    """Two ranks a copy. A ring of n sends n − 1 parts of n in a gather, as many again in a sum."""
    whole = Budget(node(), qwen3_8b, Prompts(24, 200))
    copies = Budget(node(train={"shard": 2}), qwen3_8b, Prompts(24, 200))
    assert copies.trainer_memory["weights, gradients, AdamW"] == 16 * PARAMETERS / 2
    assert copies.host_memory - whole.host_memory == 8 * PARAMETERS * (1 / 2 - 1 / 4)

    def ring(n, size):
        return sum(size / n for _ in range(n - 1))

    batch = whole.config.batch_size * (24 + whole.lengths.expected)
    rounds = batch / whole.config.optimizer.minibatches / 4 / 8192
    assert rounds > 1
    assert whole.traffic == pytest.approx((rounds * ring(4, (2 + 2 + 4) * PARAMETERS), 0))
    within, between = copies.traffic
    assert within == pytest.approx(rounds * ring(2, (2 + 2 + 4) * PARAMETERS))
    assert between == pytest.approx(rounds * 2 * ring(2, 4 * PARAMETERS / 2))
    once = Budget(node(train={"shard": 2, "accumulate": True}), qwen3_8b, Prompts(24, 200))
    assert once.traffic == pytest.approx((within, between / rounds))
    assert once.trainer_memory["summed gradients"] == 4 * PARAMETERS / 2
    assert "among 2, " in table(copies) and "between 2 copies" in table(copies)


def test_a_plan_divides_gpus_into_whole_copies(qwen3_8b):
    copies = Budget(node(train={"shard": 2}), qwen3_8b, Prompts(24, 200))
    assert {one["processes"] % 2 for one in splits(copies)} == {0}
    with pytest.raises(ValueError, match=r"train\.processes 3: .* multiple of train\.shard \(2\)"):
        node(train={"processes": 3, "shard": 2})


def test_a_plan_says_what_is_compiled_and_that_its_gain_is_not_known(qwen3_8b):
    for changes, said in (({}, "nothing; "), ({"compile_head": True}, "compile_head; ")):
        budget = Budget(node(train=changes), qwen3_8b, Prompts(24, 200))
        assert re.search(rf"^  compiled +{said}.* not measured", table(budget), re.M)


QWEN2_7B = {  # published config.json of Qwen2.5-7B
    **{"model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584},
    **{"intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28},
    **{"num_key_value_heads": 4, "max_position_embeddings": 32768, "tie_word_embeddings": False},
}


def test_memory_of_7b_with_an_adapter_and_without():
    """peft prints 40,370,176 trainable of 7,655,986,688 parameters for rank 16 on all layers. The
    independent count holds every tensor of such a model on `meta` with its gradient and moments."""
    shape = described_shape(QWEN2_7B)
    base = 7_655_986_688 - 40_370_176
    assert (shape.parameters, shape.adapter(16)) == (base, 40_370_176)
    assert shape.adapter(16, ["q_proj"]) == 16 * 28 * 2 * 3584
    plain = Budget(node(train={"processes": 1}), shape, Prompts(100, 400))
    run = node(train={"processes": 1}, model={"lora": {"rank": 16}})
    lora = Budget(run, shape, Prompts(100, 400))
    assert plain.trainer_memory["weights, gradients, AdamW"] == 16 * base
    memory = lora.trainer_memory
    assert memory["frozen base"] == 2 * base
    assert memory["weights, gradients, AdamW"] == 16 * 40_370_176
    assert plain.trainer_bytes - lora.trainer_bytes > 105e9
    assert lora.disk["checkpoints"] == 3 * 12 * 40_370_176
    assert lora.push_seconds < plain.push_seconds / 180
    assert 0.6 < lora.update_seconds / plain.update_seconds < 0.8  # no gradients of weights

    import peft
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**QWEN2_7B))
        model = peft.get_peft_model(
            model.to(torch.bfloat16), peft.LoraConfig(r=16, target_modules="all-linear")
        )
    learn = [p for p in model.parameters() if p.requires_grad]
    assert sum(p.numel() for p in learn) == lora.adapter
    held = sum(p.nbytes for p in model.parameters() if not p.requires_grad)
    held += sum(p.numel() * (4 + 4 + 8) for p in learn)
    assert memory["frozen base"] + memory["weights, gradients, AdamW"] == held


def test_a_push_takes_the_place_of_an_update(qwen3_8b):
    """Three buffers of 1 GiB and the embedding each by NCCL; by files a tensor and the rows."""

    def budget(transport, **optimizer):
        config = node(generate={"transport": transport}, optimizer=optimizer)
        return Budget(config, qwen3_8b, Prompts(24, 200))

    assert budget("file").push_memory == 2 * MATRIX * (1 + 1 / 4)
    assert budget("nccl").push_memory == 3 * (2**30 + 2 * MATRIX)
    assert budget("nccl").trainer_memory["push beyond these"] == 0
    small = budget("nccl", micro_batch_tokens=1).trainer_memory
    parts = ("gathered parameters", "gradients on their way", "activations", "head")
    working = sum(small[name] for name in parts)
    beyond = max(0.0, 3 * (2**30 + 2 * MATRIX) - working)
    assert small["push beyond these"] == pytest.approx(beyond)


def test_a_push_has_three_legs_or_one_however_many_generators_there_are(qwen3_8b):
    seconds = {
        transport: Budget(
            node(generate={"transport": transport, "count": 4}, budget={"push_gb": 2.0}),
            qwen3_8b,
            Prompts(24, 200),
        ).push_seconds
        for transport in ("file", "nccl")
    }
    assert seconds["file"] == pytest.approx(3 * PARAMETERS * 2 / 2e9)
    assert seconds["nccl"] == pytest.approx(PARAMETERS * 2 / 2e9)


def test_a_micro_batch_holds_at_least_one_rollout(qwen3_8b):
    small = node(optimizer={"micro_batch_tokens": 1})
    budget, usual = (Budget(c, qwen3_8b, Prompts(24, 200)) for c in (small, node()))
    per_token = usual.trainer_memory["activations"] / 8192
    assert budget.trainer_memory["activations"] == 1200 * per_token


def test_memory_of_a_generator(qwen3_8b):
    memory = Budget(node(), qwen3_8b, Prompts(24, 200)).generator_memory
    assert memory["weights"] == 2 * PARAMETERS
    assert memory["keys and values"] == 64 * 524 * 147_456  # the prompt, and half of 1000 tokens
    halved = Budget(node(generate={"tensor_parallel": 2}), qwen3_8b, Prompts(24, 200))
    assert halved.generator_memory["weights"] == PARAMETERS
    assert halved.generator_memory["keys and values"] == memory["keys and values"] / 2


def test_only_the_first_rank_holds_the_model_in_the_hosts_memory(qwen3_8b):
    """33 GB of weights while it saves them, a fourth of the moments, and an interpreter."""
    memory = Budget(node(), qwen3_8b, Prompts(24, 200)).host_memory
    assert memory == 4 * PARAMETERS + 2 * PARAMETERS + 3e9


def test_disk(qwen3_8b):
    """Two checkpoints and a third being written, of weights and two moments in float32."""
    config = node(checkpoint={"keep": 2, "every": 10}, generate={"transport": "file"})
    disk = Budget(config, qwen3_8b, Prompts(24, 200)).disk
    assert disk["checkpoints"] == 3 * 12 * PARAMETERS
    assert disk["weights"] == 2 * 2 * PARAMETERS
    assert disk["batches"] == pytest.approx(30 * 128_000 * 21)
    pushed = Budget(node(generate={"transport": "nccl"}), qwen3_8b, Prompts(24, 200)).disk
    assert pushed["weights"] == 0


def test_long_completions_are_seen_more_often(qwen3_8b):
    """Of 100 and 900 tokens with equal odds, 9 of 10 in flight are the long ones: mean 410."""
    budget = Budget(node(), qwen3_8b, Prompts(0, 0))
    vars(budget)["lengths_sampled"] = np.array([100.0, 900.0])
    assert budget.mean_context == 410


def test_arithmetic_of_an_update(qwen3_8b):
    """Layers at 40 % of the peak; the head's four products too, and its logits move at 50 %."""
    budget = Budget(node(), qwen3_8b, Prompts(24, 200))
    tokens, seen = 128 * 1024, 128 * 1024 * 512
    flops = 6 * LINEAR * tokens + 3 * 4 * 36 * 32 * 128 * seen
    assert budget.flops_per_update == pytest.approx(flops)
    layers = (flops - 6 * MATRIX * tokens) / (4 * 989e12 * 0.4)
    products = 8 * MATRIX * 128_000 / (4 * 989e12 * 0.4)
    logits = 90 * 151_936 * 128_000 / (4 * 3.35e12 * 0.5)
    assert budget.update_seconds == pytest.approx(layers + products + logits + 1)
    penalised = Budget(node(method="grpo"), qwen3_8b, Prompts(24, 200)).update_seconds
    assert penalised == pytest.approx(layers * 4 / 3 + (products + logits) * 5 / 4 + 1)
    measured = Budget(node(budget={"update_seconds": 7.0}), qwen3_8b, Prompts(24, 200))
    assert measured.update_seconds == measured.cluster.update_time(128_000) == 7.0


def test_the_peak_is_reached_by_large_models_only(qwen3_8b):
    free = {"budget": {"mfu": None}}
    small, large = (Budget(node(**free), shape, Prompts(24, 200)) for shape in (TINY, qwen3_8b))
    assert (small.mfu, large.mfu) == (0.26, 0.35)


def test_decoding_reads_weights_and_cache(qwen3_8b):
    budget = Budget(node(), qwen3_8b, Prompts(24, 200))
    read = (2 * PARAMETERS + 64 * 524 * 147_456) / (3.35e12 * 0.5)
    assert budget.decode_seconds == pytest.approx(2e-3 + 64 * 5e-5 + read)
    measured = Budget(node(budget={"decode_seconds": 0.1}), qwen3_8b, Prompts(24, 200))
    assert measured.decode_seconds == pytest.approx(0.1)
    assert measured.cluster.decode_time(64) == pytest.approx(0.1)


def test_a_tiny_model_does_not_decode_for_nothing():
    """256 answers at a time: no engine makes a thousand steps a second of them."""
    config = node(generate={"slots": 256, "tensor_parallel": 1})
    assert Budget(config, TINY, Prompts(24, 200)).decode_seconds > 0.01


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
        assert budget.simulation.mean_staleness == pytest.approx(4, abs=0.1)
    assert budget.gpu_hours == pytest.approx(8 * 100 * budget.step_seconds / 3600)


def test_without_a_target_it_is_the_smallest_that_costs_nothing(qwen3_8b):
    """1000 tokens in 20 s, updates of 15 s: while one batch is written, one to two are trained."""
    settings = {"update_seconds": 15.0, "decode_seconds": 0.02, "push_gb": 1e6}
    found, set_to_four = (
        Budget(node(budget=settings, generate=generate), qwen3_8b, Prompts(24, 200))
        for generate in ({"target_staleness": None, "max_staleness": 6}, {})
    )
    assert found.simulation.schedule.ahead == 2
    assert found.simulation.mean_staleness < 2.1 < 3.7 < set_to_four.simulation.mean_staleness
    assert found.step_seconds == pytest.approx(set_to_four.step_seconds, rel=0.02)


def test_evaluations_cost_time(qwen3_8b):
    """2 rounds of 64 · 4 completions are 512,000 tokens; 256 slots write 12,800 a second."""
    config = node(
        evaluation={"every": 50, "prompts": 64, "samples": 4}, budget={"decode_seconds": 0.02}
    )
    budget = Budget(config, qwen3_8b, Prompts(24, 200))
    assert budget.evaluation_seconds == pytest.approx(512_000 / 12_800)
    sets = {"short": {"task": "sums", "prompts": 32, "samples": 2, "max_new_tokens": 1}}
    sets["usual"] = {"task": "sums", "prompts": 32}
    more = Budget(changed(config, sets), qwen3_8b, Prompts(24, 200)).evaluation_seconds
    assert more == pytest.approx((512_000 + 2 * (32 * 2 + 32 * 4 * 1000)) / 12_800)


def changed(config, sets):
    evaluation = config.evaluation.model_dump() | {"sets": sets}
    return config.replace(evaluation=evaluation)


def test_what_waits_for_each_other_does_not_share_a_gpu(qwen3_8b):
    """On-policy they take turns: each has the GPU for itself."""
    sharing = {"generate": {"colocated": True, "max_staleness": 0, "target_staleness": 0}}
    known = {"budget": {"update_seconds": 100.0, "decode_seconds": 0.1}}
    budget = Budget(node(**sharing, **known), qwen3_8b, Prompts(24, 200))
    written = 1000 * budget.cluster.decode_time(32)
    assert budget.step_seconds == pytest.approx(100 + written + budget.push_seconds, rel=0.01)


def test_shared_gpus_count_once_and_go_at_half_speed(qwen3_8b):
    known = {"update_seconds": 100.0, "push_gb": 1e6}
    sharing = {"generate": {"colocated": True}, "budget": known}
    budget = Budget(node(**sharing), qwen3_8b, Prompts(24, 200))
    assert budget.config.gpus == 4
    assert budget.step_seconds == pytest.approx(200.0, rel=0.05)


REFUSED = {
    "context": (
        {"rollout": {"max_new_tokens": 40_900}},
        r"rollout\.max_new_tokens 40900: .*context of 40960: set 40760 at most",
    ),
    "one trainer": (
        {"train": {"processes": 1}},
        r"a trainer needs 1\d\d\.\d GB of 80\.0 GB, 5% of which stay free: "
        r"set generate\.count to 2 and train\.processes to 3",
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
        r"generate\.slots 1000 need 77\.3 GB .* 52\.6 GB are left .*: set generate\.slots to 680",
    ),
    "no cache": (
        {"generate": {"gpu_memory": 0.2}},
        r"0\.0 GB are left beside a generator's weights: set generate\.gpu_memory to 0\.9",
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


def applied(budget, fix):
    """The budget after `set a to 1 and b to 2`."""
    words = re.findall(r"([\w.]+) to (\S+)", fix)
    config = changed_by_words(budget.config.to_dict(), [f"{n}={v}" for n, v in words], ScaleConfig)
    return Budget(ScaleConfig(**config), budget.shape, budget.prompts)


@pytest.mark.parametrize(
    "sections",
    [
        {"train": {"processes": 1}},
        {
            "train": {"activation_checkpointing": False},
            "optimizer": {"micro_batch_tokens": 32_768},
        },
        {"generate": {"colocated": True, "gpu_memory": 0.7}},
        {"budget": {"gpu_memory_gb": 48}},
        {"generate": {"slots": 1000}},
        {"generate": {"gpu_memory": 0.2}},
        {"train": {"dtype": "float32", "activation_checkpointing": False}},
    ],
)
def test_whatever_is_advised_fits_and_takes_no_more_gpus(sections, qwen3_8b):
    budget = Budget(node(**sections), qwen3_8b, Prompts(24, 200))
    assert any(too_large(budget))
    for fix in fixes(budget).split(" or "):
        found = applied(budget, fix)
        assert not any(too_large(found)) and found.config.gpus <= budget.config.gpus, fix
        check(found)


def test_where_one_change_does_not_help_two_are_tried():
    """The file for one GPU of 80 GB, on one of 24: a smaller generator and shorter rows."""
    path = CONFIGS[0].with_name("one-gpu.yaml")
    for size, wanted in ((24, "and optimizer.micro_batch_tokens"), (48, "generate.gpu_memory")):
        config = load_config(path, [f"budget.gpu_memory_gb={size}"])
        budget = Budget(config, measure_shape(config), Prompts(110, 350))
        advice = fixes(budget)
        assert wanted in advice or "optimizer.micro_batch_tokens" in advice
        assert "train.processes" not in advice
        assert not any(any(too_large(applied(budget, fix))) for fix in advice.split(" or "))


def test_a_width_that_does_not_divide_the_heads_is_refused(qwen3_8b):
    for width, well in ((2, True), (8, True), (16, True), (3, False), (12, False)):
        config = node(generate={"tensor_parallel": width, "count": 1})
        text = "; ".join(impossible(Budget(config, qwen3_8b, Prompts(24, 200))))
        assert ("generate.tensor_parallel" not in text) == well, text


def test_fixes_fix(qwen3_8b):
    check(Budget(node(), qwen3_8b, Prompts(24, 200)))
    check(Budget(node(generate={"slots": 680}), qwen3_8b, Prompts(24, 200)))
    with pytest.raises(ValueError, match="generate"):
        check(Budget(node(generate={"slots": 681}), qwen3_8b, Prompts(24, 200)))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_configuration_dry_runs(path):
    config = load_config(path)
    text = dry_run(config)
    assert "GPU-hours" in text and "staleness" in text
    assert ("cost" in text) == (config.budget.gpu_hour_price is not None)
    assert "\non this machine\n" in text and "host as it saves" in text
    assert max(map(len, text.splitlines())) < 120


@pytest.mark.parametrize("path", [p for p in FILES if p not in CONFIGS], ids=lambda path: path.stem)
def test_a_file_without_generators_is_a_run_of_one_process(path):
    run = training_config(path)
    assert run.to_dict() == load_config(path).shared()
    bare = run.model.model_dump()
    assert load_config(path, ["model.policy=tiny"]).model.model_dump() == bare | {"policy": "tiny"}


@pytest.fixture
def data_of_published_size(monkeypatch):
    """Stand-ins for the hub's data sets: as many rows, made-up questions, no network."""
    rows = {"POLARIS-Project/Polaris-Dataset-53K": (53_291, 0), "openai/gsm8k": (7_473, 1_319)}

    def hub_rows(source):
        def made(start, count):
            for i in range(start, start + count):
                yield f"row {i}", {"question": f"What is {i} + {i}?", "answer": f"{2 * i}"}

        train, test = rows[source.name]
        return {"train": made(0, train)} | ({"held out": made(train, test)} if test else {})

    monkeypatch.setattr(dataset, "hub_rows", hub_rows)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_configuration_finds_its_prompts(path, data_of_published_size):
    config = load_config(path)
    problems = problems_of(config)
    assert len(problems) >= 0.9 * (config.data.pool or 0)  # of the small tasks, some come twice
    assert len(problems) >= config.rollout.prompts


GPU_CONFIGS = [path for path in CONFIGS if "device: cuda" in path.read_text()]


BY_HAND = [path for path in GPU_CONFIGS if "#         --gpus" not in path.read_text()]


@pytest.mark.parametrize("path", BY_HAND, ids=lambda path: path.stem)
def test_what_a_file_says_of_itself_is_its_plan(path):
    """Commands that exist, of this file; hours, cost and tokens per second as planned, to 3 %."""
    text, config = path.read_text(), load_config(path)
    budget = Budget(config, measure_shape(config), Prompts(*config.budget.prompt_tokens))
    header = text[: text.index("\nrun:")].replace("\n#", "").replace(",", "")
    commands = re.findall(r"\.venv-gpu/bin/rlbook (\w+) (\S+)", header)
    assert {verb for verb, _ in commands} == {"scale", "rehearse"} <= VERBS.keys()
    assert {file for _, file in commands} == {f"configs/{path.name}"}
    assert f"{config.run}/eval.jsonl" in header and "pip install" not in header
    planned = float(re.search(r"Planned ([\d.]+) (?:GPU-)?hours", header)[1])
    assert planned == pytest.approx(budget.gpu_hours, rel=0.03)
    low, high = map(float, re.search(r"([\d.]+) to ([\d.]+) +in all", header).groups())
    price = config.budget.gpu_hour_price
    assert (low, high) == pytest.approx((price * planned, SLOWER * price * planned), rel=0.05)
    tokens = float(re.search(r"to ([\d.]+) +`tokens_per_second`", header)[1])
    assert tokens == pytest.approx(budget.simulation.tokens_per_second, rel=0.03)
    assert f"{config.budget.gpu_memory_gb:g} GB" in header


@pytest.mark.parametrize("path", GPU_CONFIGS, ids=lambda path: path.stem)
def test_a_server_of_every_configuration_has_room_for_the_longest_answer(path, monkeypatch):
    """vLLM does not start otherwise. What the server is told is what the plan has counted with."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    config = load_config(path)
    shape, prompts = measure_shape(config), Prompts(*config.budget.prompt_tokens)
    monkeypatch.setattr(vllm_adapter, "model_shape", lambda policy: shape)
    budget = Budget(config, shape, prompts)
    context = prompts.longest + config.rollout.max_new_tokens
    told = vllm_adapter.cache_bytes(config)
    assert told == int(budget.cache_room)
    assert context * shape.cache_bytes(2) / config.generate.tensor_parallel <= told


def test_a_server_is_told_how_long_the_longest_answer_can_be():
    """The held-out prompts count as well, and a text that is forced on an answer."""
    data = {"levels": [2], "pool": 300}
    run = ScaleConfig(data=data, rollout={"max_new_tokens": 40}, evaluation={"every": 0})
    longest = measure_prompts(run).longest
    assert check_start(run) == longest + 40
    cut = {"after": 20, "text": "</think>", "answer_tokens": 10}
    assert check_start(run.replace(generate={"interruption": cut})) == longest + 40 + 8
    long = {"long": {"task": "sums", "levels": [4], "prompts": 20, "max_new_tokens": 90}}
    asked = run.replace(evaluation={"every": 5, "prompts": 4, "sets": long})
    problems = named_set("long", asked.evaluation.sets["long"], asked).problems
    assert check_start(asked) == 1 + max(len(problem.prompt) for problem in problems) + 90


def test_a_mixture_of_experts_is_refused_by_name():
    sizes = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    shape = {"model_type": "qwen3_moe", **SMALL, **sizes}
    config = ScaleConfig(budget={"shape": shape})
    budget = Budget(config, measure_shape(config), Prompts(24, 200))
    assert any("a mixture of 4 experts" in text for text in impossible(budget))
    assert (
        measure_shape(ScaleConfig(budget={"shape": {"model_type": "qwen3", **SMALL}})).experts == 0
    )


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_configuration_is_the_planners_own_best_split(path, data_of_published_size):
    config = load_config(path)
    budget = Budget(config, measure_shape(config), measure_prompts(config))
    check(budget)
    best = fastest_split(budget)
    assert config.generate.colocated if best is None else best == budget


def test_the_fastest_split_fits(qwen3_8b):
    """Two trainers and six generators would be faster still, but 66 GB of state is too much."""
    config = node(rollout={"max_new_tokens": 14_336}, budget={"mean_tokens": 6000})
    budget = Budget(config, qwen3_8b, Prompts(150, 2048))
    best = fastest_split(budget)
    assert (best.ranks, best.config.generate.count) == (3, 5)
    assert best.step_seconds < budget.step_seconds
    check(best)


def test_a_pool_larger_than_the_data_is_seen_by_the_dry_run(data_of_published_size):
    (path,) = (path for path in CONFIGS if path.stem == "one-node-8")
    with pytest.raises(ValueError, match=r"training problems.*60000 are asked for"):
        dry_run(load_config(path, ["data.pool=60000"]))


def test_the_dry_run_says_whether_the_data_were_audited(tmp_path, monkeypatch):
    monkeypatch.setenv("RLBOOK_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "rows.jsonl"
    rows = [{"question": f"What is {i} + 1?", "answer": str(i + 1)} for i in range(900)]
    data.write_text("\n".join(map(json.dumps, rows)))
    (path,) = (path for path in CONFIGS if path.stem == "cpu-tiny")
    config = load_config(path, [f"data.task=dataset:{data}", "data.levels=null", "data.pool=100"])
    assert dry_run(config).endswith(f"the data were not audited: rlbook audit {data}")
    record(audit(str(data)))
    assert dry_run(config).endswith("the data were audited: 0 findings")


def test_prompts_are_measured():
    """`<bos>`, two digits at most per operand, a sign before each but the first, `=?`."""
    prompts = measure_prompts(ScaleConfig(data={"levels": [2], "pool": 300}))
    assert prompts.longest == 1 + 4 + 2
    assert 6 <= prompts.mean <= 7
    with pytest.raises(ValueError, match=r"data\.pool: only \d+ different prompts"):
        measure_prompts(ScaleConfig(data={"levels": [2], "pool": 4}, minibatches=1))


def test_models_that_are_not_at_hand():
    with pytest.raises(FileNotFoundError, match="no such folder: nowhere; check the path"):
        model_shape("./nowhere")
    with pytest.raises(ValueError, match="model_type"):
        measure_shape(ScaleConfig(budget={"shape": {"hidden_size": 3}}))
    with pytest.raises(ValueError, match="model_type"):
        measure_shape(ScaleConfig(budget={"shape": {"model_type": "nonsense"}}))


def test_a_hub_name_without_a_network(monkeypatch):
    def unreachable(source, **how):
        raise OSError("We couldn't connect to 'https://huggingface.co'\nmore")

    monkeypatch.setattr("rlbook.scaling.shape.AutoConfig.from_pretrained", unreachable)
    with pytest.raises(ValueError, match=r"model\.policy 'a/b': .*couldn't connect.*local folder"):
        model_shape("a/b")
    monkeypatch.setattr("rlbook.policy.loading.AutoTokenizer.from_pretrained", unreachable)
    with pytest.raises(ValueError, match=r"budget\.prompt_tokens"):
        measure_prompts(ScaleConfig(model={"policy": "a/b"}))
