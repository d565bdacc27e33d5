"""Run by an interpreter that has TRL: prints the names and defaults it has, as one line of JSON."""

import ast
import dataclasses
import inspect
import json
from importlib.metadata import version
from pathlib import Path

import trl
import trl.rewards
from trl import DistillationConfig, DPOConfig, GRPOConfig, GRPOTrainer, RewardConfig, RLOOConfig
from trl.experimental import gkd
from trl.experimental.async_grpo import AsyncGRPOConfig


def defaults(config: type) -> dict[str, object]:
    """Field by field; what JSON cannot hold is left out."""
    plain = (bool, int, float, str, type(None))
    return {
        f.name: f.default if isinstance(f.default, plain) else None
        for f in dataclasses.fields(config)
    }


def fields(*configs: type) -> dict[str, object]:
    """The defaults of several configurations; of two with one name the later one's."""
    return {name: value for config in configs for name, value in defaults(config).items()}


def words(folder: Path) -> set[str]:
    """String literals in TRL's trainers and their configurations: the values they know."""
    found = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return {word for word in found if len(word) < 60}


def main() -> None:
    """Print what TRL has; run where it is installed."""
    root = Path(trl.__file__).parent
    experimental = [p.name for p in (root / "experimental").iterdir() if p.is_dir()]
    distilling = fields(gkd.GKDConfig, DistillationConfig)
    found = {
        "version": version("trl"),
        "fields": distilling
        | fields(RewardConfig, DPOConfig, AsyncGRPOConfig, RLOOConfig, GRPOConfig),
        "names": [
            *(*dir(trl), *dir(trl.rewards), *dir(gkd), *inspect.signature(GRPOTrainer).parameters),
            *(f"experimental.{name}" for name in experimental),
        ],
        "words": sorted(words(root / "trainer")),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
