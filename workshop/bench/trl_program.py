"""A workload as TRL does it: `GRPOTrainer` on the CPU, with the settings that make it fastest."""

import os
import tempfile
from collections.abc import Callable

from rlbook.objectives import Method, RatioClip, group_center, group_normalize
from rlbook.paths import ROOT
from rlbook.policy import load_policy
from rlbook.tasks import get_task
from workshop.bench.workload import Workload

MICRO_ROWS = 128  # larger slices only cost memory
LOSSES = {"sequence_mean": "grpo", "token_mean": "dapo"}  # TRL's loss_type by our aggregation
SCALES = {group_normalize: "group", group_center: "none"}  # its scale_rewards by our advantage
WITHOUT = (
    *("kl", "sampler_correction", "selection", "entropy_bonus", "likelihood", "format_bonus"),
    *("reward_shaping", "prompt_filter"),
)


def trl_python() -> str | None:
    """Interpreter that has TRL: RLBOOK_TRL_PYTHON, else the one `make trl` made, else None."""
    if given := os.environ.get("RLBOOK_TRL_PYTHON"):
        return given
    made = ROOT / ".venv-trl/bin/python"
    return str(made) if made.is_file() else None


def grpo_settings(workload: Workload) -> dict:
    """Arguments of `GRPOConfig`: the workload, and nothing that costs time beside it.

    float32 like ours, no recomputation, no logs, no checkpoints. Raises `ValueError` for a method
    that TRL's trainer cannot be given as settings.
    """
    config = workload.config
    rows = workload.completions // workload.updates
    slices = -(-rows // MICRO_ROWS)
    return dict(
        per_device_train_batch_size=rows // slices,
        steps_per_generation=workload.updates * slices,
        gradient_accumulation_steps=slices,
        num_generations=workload.group_size,
        max_steps=workload.steps * workload.updates,
        max_completion_length=workload.max_new_tokens,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        **method_settings(workload.row),
        learning_rate=workload.lr,
        lr_scheduler_type="constant",
        adam_beta1=config.optimizer.betas[0],
        adam_beta2=config.optimizer.betas[1],
        adam_epsilon=config.optimizer.eps,
        weight_decay=config.optimizer.weight_decay,
        max_grad_norm=config.optimizer.max_grad_norm,
        seed=workload.seed,
        shuffle_dataset=False,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def method_settings(method: Method) -> dict:
    """The loss of a method in TRL's words; `ValueError` naming the first choice not translated."""
    region, scale = method.trust_region, SCALES.get(method.advantage)
    plain = Method("", "", method.advantage)
    untranslated = {
        "advantage": scale is None,
        "ratio": method.ratio != "token",
        "trust_region": not isinstance(region, RatioClip),
        "aggregation": method.aggregation not in LOSSES,
    } | {name: getattr(method, name) != getattr(plain, name) for name in WITHOUT}
    if wrong := [name for name, is_wrong in untranslated.items() if is_wrong]:
        choice = method.to_dict()[wrong[0]]
        raise ValueError(
            f"method {method.name!r} cannot be given to TRL here: {wrong[0]} {choice!r} is not "
            "translated; grpo, dapo and their kin are (workshop/bench/trl_program.py)"
        )
    return {
        "loss_type": LOSSES[method.aggregation],
        "epsilon": region.low,
        "epsilon_high": region.high,
        "scale_rewards": scale,
        "beta": 0.0,
    }


def grpo_trainer(workload: Workload, policy, reward: Callable, folder: str, callbacks=()):
    """TRL's trainer for a (model, tokenizer) pair on the workload's prompts.

    `reward` gets the columns `completions`, `completion_ids` and `number`, the place of each one's
    prompt in the run.
    """
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    prompts = [problem.prompt for problem in workload.all_problems()]
    columns = {"prompt": prompts, "number": list(range(len(prompts)))}
    model, tokenizer = policy
    return GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=GRPOConfig(output_dir=folder, **grpo_settings(workload)),
        train_dataset=Dataset.from_dict(columns),
        processing_class=tokenizer,
        callbacks=list(callbacks),
    )


def run_trl(workload: Workload, turns) -> None:
    """Do the workload, one step every time `turns` asks for it."""
    from transformers import TrainerCallback

    policy, task, judged = load_policy(workload.policy), get_task("sums"), {}
    _, tokenizer = policy
    problems = workload.all_problems()
    wrong, right = workload.row.reward_values

    def reward(completions, completion_ids, number, **_) -> list[float]:
        ended = [ids[-1] == tokenizer.eos_token_id for ids in completion_ids]
        correct = [
            task.verify(problems[n], text, end).correct
            for n, text, end in zip(number, completions, ended, strict=True)
        ]
        prompts = [tokenizer(problems[n].prompt).input_ids for n in number]
        judged["sequences"] = list(zip(prompts, completion_ids, strict=True))
        judged["accuracy"] = sum(correct) / len(correct)
        return [right if c else wrong for c in correct]

    class TakeTurns(TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            if state.global_step % workload.updates == 0:
                turns.begin()

        def on_step_end(self, args, state, control, **_):
            if state.global_step % workload.updates == 0:
                turns.end(**judged)

    with tempfile.TemporaryDirectory() as folder:
        grpo_trainer(workload, policy, reward, folder, [TakeTurns()]).train()
