"""Bytes of training state against sizes counted by hand."""

import torch
from torch import nn

from rlbook.scaling.memory import (
    StateMemory,
    count_parameters,
    frozen_memory,
    state_memory,
    trained_memory,
)


def linear(device="cpu") -> nn.Linear:
    return nn.Linear(3, 5, device=device)  # 3 · 5 weights and 5 biases


def test_parameters_are_counted_once():
    layer = linear()
    assert count_parameters(nn.ModuleList([layer, linear()])) == 40
    assert count_parameters(nn.ModuleList([layer, layer])) == 20


def test_trained_state_is_sixteen_bytes_per_parameter():
    assert trained_memory(linear()) == StateMemory(weights=80, gradients=80, optimizer=160)
    assert trained_memory(linear()).total == 16 * 20


def test_shapes_are_enough():
    huge = nn.Linear(2**18, 2**18, bias=False, device="meta")  # 275 GB of weights
    assert trained_memory(huge).total == 16 * 2**36
    assert frozen_memory(huge).total == 2 * 2**36


def test_the_count_equals_a_real_run():
    model = linear()
    optimizer = torch.optim.AdamW(model.parameters())
    before = state_memory(model.parameters(), optimizer)
    assert before == StateMemory(weights=80)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    assert state_memory(model.parameters(), optimizer) == trained_memory(model)


def test_a_model_is_left_as_it_was():
    model = linear()
    weights = model.weight.clone()
    trained_memory(model)
    assert model.weight.grad is None
    assert torch.equal(model.weight, weights)


def test_parts_add_up():
    policy, reference = StateMemory(1, 2, 3), StateMemory(4)
    assert (policy + reference).total == 10
