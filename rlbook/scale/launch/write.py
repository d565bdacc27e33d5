"""`rlbook scale model.policy=… data.task=… --gpus N`: the file of a run, written from its plan."""

from collections.abc import Sequence
from pathlib import Path

from rlbook.durable import replace_text
from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate.vllm_adapter import gpu_memory_gb
from rlbook.scale.launch.dry_run import measure_prompts, measure_shape
from rlbook.scale.plan.budget import Budget
from rlbook.scale.plan.choose import USUAL, as_file, chosen
from rlbook.scale.plan.table import table
from rlbook.training.config import with_settings

ASKED = ("model.policy", "data.task")


def write_file(settings: Sequence[str], gpus: int) -> Path:
    """Plan a run on so many GPUs, show the plan and write its file, named as the run.

    What is given as a setting stays; the plan chooses the rest. Raises `ValueError` if a choice is
    missing, nothing fits, or the file exists.
    """
    given = {word.partition("=")[0] for word in settings}
    if missing := [name for name in ASKED if not {name, name.split(".")[1]} & given]:
        raise ValueError(f"{missing[0]} is yours to choose: write {missing[0]}=…")
    config = with_settings(ScaleConfig(**USUAL, model={"device": "cuda"}), settings)
    if "run" not in given:
        config = config.replace(run=f"runs/{Path(config.model.policy).name}-{gpus}gpu")
    if "budget.gpu_memory_gb" not in given:
        config = config.replace(budget={"gpu_memory_gb": round(gpu_memory_gb(config))})
    if (path := Path(f"{config.folder.name}.yaml")).exists():
        raise ValueError(f"{path} exists: start it with `rlbook scale {path}`, or remove it")
    budget = Budget(config, measure_shape(config), measure_prompts(config))
    plan = chosen(budget, gpus, {name.rpartition(".")[2] for name in given})
    print(table(plan))
    replace_text(path, as_file(plan, str(path), settings))
    return path
