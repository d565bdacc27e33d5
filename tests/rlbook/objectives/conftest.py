import json
from pathlib import Path

import pytest
import torch

GOLDEN = Path(__file__).parents[1] / "golden"
NUMBERS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


def load_golden(name):
    """{case id: case} of one reference file; inputs and outputs as float64 tensors."""
    file = json.loads((GOLDEN / f"{name}.json").read_text())
    cases = {}
    for case in file["cases"]:
        inputs = {key: resolve(value, file["fixtures"]) for key, value in case["inputs"].items()}
        outputs = {key: to_tensor(value) for key, value in case["outputs"].items()}
        cases[case["id"]] = {**case, "inputs": inputs, "outputs": outputs}
    return cases


def resolve(value, fixtures):
    if isinstance(value, str) and value.startswith("@"):
        value = fixtures[value[1:]]
    return to_tensor(value)


def to_tensor(value):
    if isinstance(value, dict) or (
        isinstance(value, list) and value and isinstance(value[0], dict)
    ):
        return value
    return torch.tensor(numbers(value), dtype=torch.float64)


def numbers(value):
    if isinstance(value, list):
        return [numbers(item) for item in value]
    return NUMBERS[value] if isinstance(value, str) else value


@pytest.fixture(scope="session")
def golden():
    return load_golden
