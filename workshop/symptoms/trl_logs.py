"""Logs that TRL writes of the tiny model, healthy and with two faults: what the doctor must read.

.venv-trl/bin/python -m workshop.symptoms.trl_logs tests/rlbook/logs

Each run leaves `trl_NAME.json`, the `log_history` of its `trainer_state.json`, and what it
printed in `trl_NAME.txt`.
"""

import json
import sys
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from rlbook.policy import load_policy, set_threads
from rlbook.tasks import get_task
from workshop.bench.trl_program import grpo_settings
from workshop.bench.workload import Workload

STEPS = 6
FAULTS = {"healthy": {}, "cut": {"max_completion_length": 4}, "paid": {}}


def write_log(name: str, folder: Path) -> None:
    """Train with one of `FAULTS` ("paid": whatever was answered) and keep what TRL logged."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    task, work = get_task("sums"), Workload(completions=64, steps=STEPS, updates=2, lr=2e-4)
    model, tokenizer = load_policy(work.policy)
    problems = work.all_problems()

    def right(completions, completion_ids, number, **_) -> list[float]:
        ended = [ids[-1] == tokenizer.eos_token_id for ids in completion_ids]
        verdicts = (
            task.verify(problems[n], text, end)
            for n, text, end in zip(number, completions, ended, strict=True)
        )
        return [float(name == "paid" or verdict.correct) for verdict in verdicts]

    printed = StringIO()
    with tempfile.TemporaryDirectory() as output, redirect_stdout(printed):
        logged = {"logging_strategy": "steps", "logging_steps": 1, "logging_first_step": True}
        settings = grpo_settings(work) | logged | FAULTS[name]
        columns = {"prompt": [p.prompt for p in problems], "number": list(range(len(problems)))}
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=right,
            args=GRPOConfig(output_dir=output, **settings),
            train_dataset=Dataset.from_dict(columns),
            processing_class=tokenizer,
        )
        trainer.train()
        trainer.save_state()
        state = json.loads((Path(output) / "trainer_state.json").read_text())
    history = json.dumps({"log_history": state["log_history"]}, indent=0)
    (folder / f"trl_{name}.json").write_text(history + "\n")
    (folder / f"trl_{name}.txt").write_text(printed.getvalue())


if __name__ == "__main__":
    set_threads(1)
    for fault in FAULTS:
        write_log(fault, Path(sys.argv[1]))
