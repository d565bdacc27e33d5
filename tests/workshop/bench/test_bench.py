"""Each benchmark part runs at its smallest size; its counting is checked, its speed never."""

import csv
import json
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from rlbook.paths import ROOT
from rlbook.training import RunConfig
from workshop import bench
from workshop.bench.flops import distinct_step_flops, forward_flops, step_flops
from workshop.bench.head import peak_memory
from workshop.bench.record import Skipped
from workshop.bench.rl_step import find_trl
from workshop.bench.startup import lab_answers, lab_is_warm
from workshop.bench.timing import alternate
from workshop.shared.evidence import check_table

SLOW = ("trl", "versions", "pipeline", "startup")  # start processes of their own


def without_trl() -> str | None:
    try:
        find_trl()
    except Skipped as reason:
        return str(reason)


def parts() -> list:
    return [
        pytest.param(part, marks=pytest.mark.slow if part.startswith(SLOW) else ())
        for part in bench.PARTS
    ]


@pytest.mark.parametrize("part", parts())
def test_part_writes_rows_manifest_and_figure(part, tmp_path, monkeypatch):
    monkeypatch.setenv("RLBOOK_OLDER", str(ROOT))
    if part.startswith("trl") and (reason := without_trl()):
        pytest.skip(reason)
    (path,) = bench.main([part], "smoke", tmp_path)
    assert path.with_suffix(".png").stat().st_size > 1000
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert rows and all(value != "" for row in rows for value in row.values())
    manifest = json.loads(check_table(path).read_text())
    assert manifest["part"] == part and manifest["size"] == "smoke"
    assert {"commit", "cpu", "date", "torch_threads", "versions"} <= set(manifest)
    assert manifest["seconds"] >= 0
    for arm in manifest.get("arms", {}).values():
        assert RunConfig(**arm).method.kl is None


def test_sharing_prefixes_is_as_near_to_float64_as_computing_whole_rows(tmp_path):
    (path,) = bench.main(["gaps"], "smoke", tmp_path)
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert {row["world"] for row in rows} == {"sums", "habits"}
    for row in rows:
        shared, whole = float(row["shared_gradient"]), float(row["whole_gradient"])
        assert 0 < shared < 3 * whole < 1e-3


def test_both_head_forms_give_the_same_gradients(tmp_path):
    (path,) = bench.main(["head"], "smoke", tmp_path)
    with path.open() as file:
        assert all(float(row["gradient_error"]) < 1e-5 for row in csv.DictReader(file))


def test_unknown_part_or_size_is_named(tmp_path):
    with pytest.raises(ValueError, match="unknown benchmark"):
        bench.main(["speed"], "smoke", tmp_path)
    with pytest.raises(ValueError, match="unknown size"):
        bench.main(["head"], "huge", tmp_path)


def test_part_that_cannot_run_is_named_and_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RLBOOK_TRL_PYTHON", sys.executable)
    monkeypatch.setitem(bench.PARTS, "trl", lambda size: find_trl.__wrapped__())
    assert bench.main(["trl"], "smoke", tmp_path) == []
    assert "skipped trl" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(not lab_is_warm(), reason="`make lab` would have to install something")
def test_lab_answers_and_is_ended():
    lab_answers()


def small_llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=11,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    config._attn_implementation = "eager"
    return LlamaForCausalLM(config)


def test_flops_agree_with_the_library_counter():
    model, tokens = small_llama(), 7
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(input_ids=torch.zeros(1, tokens, dtype=torch.long), use_cache=False)
    # The counter sees the rotary angles as a product, and eager attention's whole square.
    rotary = 2 * model.model.rotary_emb.inv_freq.numel() * tokens
    ours = forward_flops(model, [tokens] * tokens)
    assert counter.get_total_flops() - ours in (0, rotary)


def test_step_counts_prompts_once_and_the_head_where_tokens_are_predicted():
    model, prompt, new = small_llama(), 5, 3
    head = 2 * 16 * 11
    body = forward_flops(model, [0]) - head  # per token, without attention
    attention = forward_flops(model, [1]) - body - head  # per visible token
    update = 3 * (8 * body + 3 * head + 36 * attention)  # 36 = 1 + ... + 8
    alone = 7 * body + 3 * head + 28 * attention
    sharing = 2 * body + 2 * head + (6 + 7) * attention
    rows = [([1] * prompt, [2] * new)] * 2
    assert step_flops(model, rows, group_size=1) == 2 * (alone + update)
    assert step_flops(model, rows, group_size=2) == alone + sharing + 2 * update


def test_distinct_prefixes_are_counted_once_and_last_tokens_are_not_read():
    model = small_llama()
    head = 2 * 16 * 11
    body = forward_flops(model, [0]) - head
    attention = forward_flops(model, [1]) - body - head
    rows = [([1, 1], [2, 3, 4]), ([1, 1], [2, 3, 5]), ([1, 1], [2, 6]), ([1, 1], [2, 3, 4])]
    read = 4 * body + (1 + 2 + 3 + 4) * attention  # 1, 11, 112, 1123
    sampling = read + 3 * head  # after 11, 112, 1123
    update = 3 * (read + 5 * head)  # 112, 1123, 11234, 11235, 1126
    assert distinct_step_flops(model, rows) == sampling + update
    assert distinct_step_flops(model, rows) < step_flops(model, rows, group_size=4) / 3


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
