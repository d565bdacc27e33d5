"""Rollouts as flat tensors and JSON, for files: what one process writes and another reads."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlbook.tasks import Problem
from rlbook.training.batch import Rollout

TOKEN_FIELDS = {
    "token_ids": torch.int64,
    "logps": torch.float32,
    "versions": torch.int64,
    "forced": torch.bool,
    "turn_of": torch.int32,
}
TOKEN_REWARDS = "token_rewards."  # and the name of the part


def save_rollouts(folder: Path, rollouts: Sequence[Rollout]) -> None:
    """Write them to tokens.safetensors and rollouts.json."""
    save_file(pack_tokens(rollouts), folder / "tokens.safetensors")
    (folder / "rollouts.json").write_text(json.dumps(without_tokens(rollouts)))


def pack_tokens(rollouts: Sequence[Rollout]) -> dict[str, Tensor]:
    """Token data of all rollouts end to end; rollout i is `[offsets[i], offsets[i + 1])`.

    Log-probabilities are kept in float32, the precision they are trained with. Rewards per token
    are kept in float64, by part; 0 in rollouts that lack it.
    """
    columns: dict[str, list[list[Any]]] = {
        "token_ids": [r.token_ids for r in rollouts],
        "logps": [r.logps for r in rollouts],
        "versions": [r.versions for r in rollouts],
        "forced": [r.forced or [False] * r.length for r in rollouts],
        "turn_of": [r.turns for r in rollouts],
    }
    tensors = {
        name: torch.tensor(list(chain.from_iterable(column)), dtype=TOKEN_FIELDS[name])
        for name, column in columns.items()
    }
    for part in dict.fromkeys(name for r in rollouts for name in r.token_rewards):
        dense = [r.token_rewards.get(part) or [0.0] * r.length for r in rollouts]
        values = list(chain.from_iterable(dense))
        tensors[TOKEN_REWARDS + part] = torch.tensor(values, dtype=torch.float64)
    prompts = chain.from_iterable(r.prompt_ids for r in rollouts)
    tensors["prompt_ids"] = torch.tensor(list(prompts), dtype=torch.int64)
    tensors["offsets"] = offsets(r.length for r in rollouts)
    tensors["prompt_offsets"] = offsets(len(r.prompt_ids) for r in rollouts)
    return tensors


def offsets(lengths: Iterable[int]) -> Tensor:
    """Where each list of a flat tensor begins, and where the last one ends."""
    return torch.tensor(list(accumulate(lengths, initial=0)))


def without_tokens(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """What is not token data: problems once, the rest per rollout."""
    stored = {*TOKEN_FIELDS, "prompt_ids", "problem", "token_rewards"}
    plain = [f.name for f in fields(Rollout) if f.name not in stored]
    return {
        "problems": {r.problem.id: asdict(r.problem) for r in rollouts},
        "rollouts": [
            {
                "problem": r.problem.id,
                "token_rewards": list(r.token_rewards),
                **{name: getattr(r, name) for name in plain},
            }
            for r in rollouts
        ],
    }


def load_rollouts(folder: Path) -> list[Rollout]:
    """What `save_rollouts` has written to a folder."""
    tensors = load_file(folder / "tokens.safetensors")
    document = json.loads((folder / "rollouts.json").read_text())
    problems = {key: Problem(**value) for key, value in document["problems"].items()}
    prompts = cut(tensors["prompt_ids"], tensors["prompt_offsets"])
    columns = {name: cut(tensors[name], tensors["offsets"]) for name in TOKEN_FIELDS}
    dense = {
        name.removeprefix(TOKEN_REWARDS): cut(tensor, tensors["offsets"])
        for name, tensor in tensors.items()
        if name.startswith(TOKEN_REWARDS)
    }
    rollouts = []
    for i, row in enumerate(document["rollouts"]):
        tokens: dict[str, Any] = {name: column[i] for name, column in columns.items()}
        tokens["forced"] = tokens["forced"] if any(tokens["forced"]) else None
        tokens["turn_of"] = tokens["turn_of"] if row["places"] else None
        problem = problems[row.pop("problem")]
        row["token_rewards"] = {part: dense[part][i] for part in row["token_rewards"]}
        rollouts.append(Rollout(problem=problem, prompt_ids=prompts[i], **tokens, **row))
    return rollouts


def cut(flat: Tensor, offsets: Tensor) -> list[list[Any]]:
    """The pieces of a flat tensor, as Python lists."""
    values = flat.tolist()
    return [values[start:stop] for start, stop in pairwise(offsets.tolist())]
