"""What a run must not show at its end, whatever was done to it on the way."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import load_file
from torch import Tensor

from rlbook.durable import read_json
from rlbook.jsonl import read_jsonl
from rlbook.policy import Completion, load_tokenizer, set_threads
from rlbook.scale.batch_log import DamagedBatch, log_end, published, read_batch
from rlbook.scale.config import ScaleConfig
from rlbook.scale.layout import Layout
from rlbook.scale.train.learner import ShardedLearner
from rlbook.scale.train.parallel import Ranks
from rlbook.tasks import Environment, Verdict, get_task
from rlbook.training import Rollout
from rlbook.training.chat import Dialect
from rlbook.training.config import derive_seed
from rlbook.training.episodes import Limits, dialogue, written
from rlbook.training.step import full_tensor

LEFT = ("rejected", "late", "refused_requests")  # how tickets leave, but for those in batches


def broken_promises(layout: Layout, kept: Layout, config: ScaleConfig) -> Iterator[str]:
    """What is wrong with a finished run, of which `kept` has all batches; nothing if all is well.

    It ends at its last update, or where its prompts end. Every update is logged once and in order,
    so is every batch. No token is older than the bound. Every ticket is in one batch, rejected, or
    still open. The task gives every answer the verdict it has; a world that is asked again, with
    the same luck, replies as it did and gives the same verdict. Every evaluation is by one version
    of the weights. All weights are finite, and the batches make the last checkpoint again from the
    first policy, bit for bit.
    """
    updates = last_update(layout, config)
    steps = list(range(1, updates + 1))
    yield from bad_end(layout, updates)
    yield from bad_logs(layout, steps, config)
    yield from mixed_evaluations(layout)
    yield from bad_weights(layout, updates)
    missing = [step - 1 for step in steps if step - 1 not in published(kept)]
    if missing:
        yield f"batches {missing} were never seen"
    damaged = list(unreadable(kept))
    yield from damaged
    if damaged:
        return
    yield from double_tickets(kept)
    yield from false_verdicts(kept, config)
    if not missing:
        yield from lost_tickets(kept)
        yield from other_weights(layout, kept, config, updates)


def last_update(layout: Layout, config: ScaleConfig) -> int:
    """The run's last update: that of its settings, or an earlier one if the prompts ran out."""
    end = log_end(layout)
    return min(config.steps, end["version"]) if end and not end["failed"] else config.steps


def bad_end(layout: Layout, updates: int) -> Iterator[str]:
    """What is wrong with the run's last status, if anything."""
    status = read_json(layout.status, {})
    if not status.get("done") or status["version"] != updates:
        why = log_end(layout).get("reason")
        yield f"the run ends with status {status}" + (f": {why}" if why else "")


def bad_logs(layout: Layout, steps: list[int], config: ScaleConfig) -> Iterator[str]:
    """Updates that are missing, repeated or misplaced; tokens that are too old."""
    for name in ("metrics", "rollouts"):
        found = [row["step"] for row in read_jsonl(layout.log(name))]
        if found != steps:
            yield f"{name}.jsonl has the steps {found}"
    for row in read_jsonl(layout.log("metrics")):
        if row["staleness_max"] > config.generate.max_staleness:
            yield f"update {row['step']} trained tokens of staleness {row['staleness_max']}"


def mixed_evaluations(layout: Layout) -> Iterator[str]:
    """Evaluations whose answers other weights have written than those they are named after."""
    for row in read_jsonl(layout.log("eval")):
        written_by = row["version_min"], row["version_max"]
        if written_by != (row["step"], row["step"]):
            yield f"the evaluation of version {row['step']} has answers by versions {written_by}"


def bad_weights(layout: Layout, updates: int) -> Iterator[str]:
    """Tensors of the last checkpoint that are not finite; a checkpoint that is not there."""
    files = sorted((layout.checkpoints / f"step_{updates:06d}").glob("*.safetensors"))
    if not files:
        yield f"no checkpoint of step {updates}"
    for file in files:
        for name, tensor in load_file(file).items():
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                yield f"{file.name}: {name} is not finite"


def unreadable(kept: Layout) -> Iterator[str]:
    """Batches whose files have changed."""
    for step in published(kept):
        try:
            read_batch(kept, step)
        except DamagedBatch as error:
            yield str(error).partition(":")[0]


def double_tickets(kept: Layout) -> Iterator[str]:
    """Tickets that are in two batches."""
    batch_of: dict[int, int] = {}
    for step in published(kept):
        for ticket in tickets(read_batch(kept, step)[0]):
            if ticket in batch_of:
                yield f"ticket {ticket} is in batches {batch_of[ticket]} and {step}"
            batch_of[ticket] = step


def lost_tickets(kept: Layout) -> Iterator[str]:
    """Batch by batch, the ledger: whoever is no longer open is in the batch, or was counted out."""
    known, following = set(), 0
    for step in published(kept):
        rollouts, state = read_batch(kept, step)
        before = known | set(range(following, state["next_ticket"]))
        known, following = set(map(int, state["open"])), state["next_ticket"]
        gone = before - known - tickets(rollouts)
        counted = sum(state["statistics"][name] for name in LEFT)
        if len(gone) != counted:
            yield (
                f"batch {step}: tickets {sorted(gone)} are neither open nor trained, and "
                f"{counted} were counted as {', '.join(LEFT)}"
            )
        if strange := (known | tickets(rollouts)) - before:
            yield f"batch {step}: tickets {sorted(strange)} had left before, or were never drawn"


def false_verdicts(kept: Layout, config: ScaleConfig) -> Iterator[str]:
    """Answers whose verdict is not the task's; episodes that a world would not play so."""
    task = get_task(config.data.task)
    for step in published(kept):
        seats: Counter[int] = Counter()  # episodes of each group so far
        for rollout in read_batch(kept, step)[0]:
            if isinstance(task, Environment):
                tokens, own = played_again(task, config, rollout, seats[rollout.group])
                seats[rollout.group] += 1
                if tokens != rollout.token_ids:
                    yield f"batch {step}, ticket {rollout.group}: the world replies otherwise"
            else:
                own = task.verify(rollout.problem, rollout.text, not rollout.truncated)
            stored = (rollout.correct, rollout.format_ok, rollout.answer)
            if stored != (own.correct, own.format_ok, own.answer):
                yield (
                    f"batch {step}, ticket {rollout.group}: an answer to {rollout.problem.prompt!r}"
                    f" has the verdict {stored}, the task says {own}"
                )


def played_again(
    world: Environment, config: ScaleConfig, rollout: Rollout, seat: int
) -> tuple[list[int], Verdict]:
    """Tokens and verdict of an episode in which the policy says what it said."""
    tokenizer = load_tokenizer(config.model.policy)
    dialect = Dialect.of(tokenizer, world, config.model.chat)
    forced = rollout.forced or [False] * rollout.length
    turns: list[list[int]] = [[] for _ in range(rollout.turn_count)]
    for token, turn, put in zip(rollout.token_ids, rollout.turns, forced, strict=True):
        turns[turn] += [] if put else [token]
    ends = {*dialect.stop, tokenizer.eos_token_id}
    said = iter(
        Completion(ids, [0.0] * len(ids), "stop" if ids[-1] in ends else "length") for ids in turns
    )
    luck = derive_seed(config.seed, "world", rollout.group, seat)
    session, asked = world.begin(rollout.problem, luck), config.rollout
    limits = Limits(asked.max_new_tokens, asked.max_turns, asked.turn_tokens)
    episode = dialogue(rollout.problem, session, dialect, limits)
    (again,) = written(lambda asks: [next(said) for _ in asks], [episode])
    return again.token_ids, session.verdict()


def other_weights(layout: Layout, kept: Layout, config: ScaleConfig, updates: int) -> Iterator[str]:
    """Tensors of the last checkpoint that the batches do not make again.

    On one CPU rank they must; several ranks, and GPUs, add up in an order of their own.
    """
    if not replayable(config):
        return
    made = replay(kept, config, updates)
    for file in sorted((layout.checkpoints / f"step_{updates:06d}").glob("model*.safetensors")):
        for name, tensor in load_file(file).items():
            if not torch.equal(made[name], tensor):
                yield f"{name} of step {updates} is not what the batches make of the first policy"


def replayable(config: ScaleConfig) -> bool:
    """Whether the same batches must give the same bits: one process, on a CPU."""
    return config.train.processes == 1 and config.model.device == "cpu"


def replay(kept: Layout, config: ScaleConfig, updates: int) -> dict[str, Tensor]:
    """The weights that these batches make of the run's first policy."""
    threads = torch.get_num_threads()
    set_threads(1)
    with TemporaryDirectory() as empty:
        learner = ShardedLearner(config, Layout(Path(empty)), Ranks(config.model.device))
        for step in range(updates):
            learner.learn(read_batch(kept, step)[0])
    torch.set_num_threads(threads)
    return {name: full_tensor(p.detach()) for name, p in learner.policy.state_dict().items()}


def tickets(rollouts: Sequence[Rollout]) -> set[int]:
    """The groups that these rollouts are of."""
    return {rollout.group for rollout in rollouts}
