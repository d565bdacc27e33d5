"""Each benchmark part runs at its smallest size; its counting is checked, its speed never."""

import csv
import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from rlbook import bench
from rlbook.bench.flops import forward_flops
from rlbook.bench.head import peak_memory
from rlbook.bench.timing import alternate


@pytest.mark.parametrize("part", list(bench.PARTS))
def test_part_writes_rows_and_manifest(part, tmp_path):
    (path,) = bench.main([part], "smoke", tmp_path)
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert rows and all(value != "" for row in rows for value in row.values())
    manifest = json.loads(path.with_suffix(".json").read_text())
    assert manifest["part"] == part and manifest["size"] == "smoke"
    assert {"commit", "cpu", "torch_threads", "versions"} <= set(manifest)


def test_both_head_forms_give_the_same_gradients(tmp_path):
    (path,) = bench.main(["head"], "smoke", tmp_path)
    with path.open() as file:
        assert all(float(row["gradient_error"]) < 1e-5 for row in csv.DictReader(file))


def test_unknown_part_or_size_is_named(tmp_path):
    with pytest.raises(ValueError, match="unknown benchmark"):
        bench.main(["speed"], "smoke", tmp_path)
    with pytest.raises(ValueError, match="unknown size"):
        bench.main(["head"], "huge", tmp_path)


def test_flops_agree_with_the_library_counter():
    config = LlamaConfig(
        vocab_size=11,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    config._attn_implementation = "eager"
    model, tokens = LlamaForCausalLM(config), 7
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(input_ids=torch.zeros(1, tokens, dtype=torch.long), use_cache=False)
    # The counter sees the rotary angles as a product, and eager attention's whole square.
    rotary = 2 * model.model.rotary_emb.inv_freq.numel() * tokens
    ours = forward_flops(model, [tokens] * tokens)
    assert counter.get_total_flops() - ours in (0, rotary)


def test_alternating_runs_take_turns():
    order = []
    seconds = alternate({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 3)
    assert order == ["a", "b"] * 4
    assert [len(times) for times in seconds.values()] == [3, 3]


def test_peak_memory_counts_what_is_held_at_once():
    def run():
        for _ in range(3):
            a = torch.zeros(1000)
            b = a + 1
            del a, b
        return torch.zeros(500)

    assert 8000 <= peak_memory(run) < 9000
