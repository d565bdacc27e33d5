"""The asynchronous pipeline in one file: everything but what to do when something dies.

    a generator, in a process of its own      this process
    ────────────────────────────────────      ────────────────────────────────────────────────────
    writes tokens without a pause       ◄──   asks for groups, as many as staleness allows  (ask)
    sends each with its log-prob and    ──►   verifies, rewards and filters a group         (group)
    the version of its weights                waits for a batch, makes its updates          (train)
    goes on in the middle of a word     ◄──   with the new weights, between two tokens      (push)

    rlbook scale --nano configs/cpu-tiny.yaml steps=30 generate.engine=builtin

A batch makes the same weights as at full scale; nobody evaluates, logs or saves. Chapter 18.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count, pairwise

import aiohttp
from safetensors.torch import save_file
from torch import Tensor

from rlbook import training
from rlbook.policy import Completion, set_threads
from rlbook.policy.adapters import plain_weights
from rlbook.scale.config import ScaleConfig
from rlbook.scale.generate.protocol import reload_request, sampling_params
from rlbook.scale.launch import commands
from rlbook.scale.launch.processes import start_here
from rlbook.scale.layout import Layout
from rlbook.scale.process import published
from rlbook.scale.rollout.staleness import Pacing
from rlbook.tasks import Environment, Problem, Task, get_task, held_out_problems
from rlbook.tasks.environment import final_verdict, sessions_of
from rlbook.training import Rollout
from rlbook.training.chat import Dialect, encode
from rlbook.training.checkpoint import save_policy
from rlbook.training.config import derive_seed
from rlbook.training.episodes import Ask, Episode, Limits, Turns, asked, dialogue
from rlbook.training.filter import select_groups
from rlbook.training.judge import judged, rollouts_of, rollouts_of_turns, stop_of, take_verdict
from rlbook.training.metrics import rollout_metrics
from rlbook.training.parallel import as_policy
from rlbook.training.pool import training_pool
from rlbook.training.rewards import give_rewards, rewards_of
from rlbook.training.trainer import cut_once, policy_of

PHASES = "wait_seconds", "train_seconds", "push_seconds"  # of an update
Report = Callable[[list[Rollout], dict[str, float]], None]  # told of every batch and its row
ONLY = {  # settings of which nano knows one value
    "generate.count": 1,
    "generate.transport": "file",
    "generate.late": "wait",
    "train.processes": 1,
    "train.dtype": "float32",
    "launch.engine": "local",
}


# ── 1 · The generator: the book's own sampler or vLLM, behind the same routes ─────────────────────


@asynccontextmanager
async def server(config: ScaleConfig) -> AsyncIterator[aiohttp.ClientSession]:
    """A session with a generator's process, which lives for as long as the block lasts."""
    layout = Layout(config.folder.resolve())
    entry, log = layout.server("generator0"), layout.logs / "generator0.log"
    entry.unlink(missing_ok=True)  # where it will say its URL
    served = config.replace(model={"lora": None})  # whose weights come merged
    (process,) = start_here(commands.generator(served, layout, 0), [log])
    try:
        while True:
            with suppress(aiohttp.ClientError):
                async with aiohttp.request("GET", f"{published(entry)}/health"):
                    break
            if process.poll() is not None:
                raise RuntimeError(f"the generator does not start: see {log}")
            await asyncio.sleep(0.1)
        async with aiohttp.ClientSession(
            published(entry),
            connector=aiohttp.TCPConnector(limit=0, force_close=True),  # a push waits for no answer
            timeout=aiohttp.ClientTimeout(None),
            raise_for_status=True,
        ) as session:
            yield session
    finally:
        process.send_signal(signal.SIGKILL)


class Generator:
    """What is asked of it; `version` is the number of batches that its weights have learned."""

    def __init__(self, config: ScaleConfig, session: aiohttp.ClientSession):
        self.config, self.session, self.version = config, session, -1  # as it was started
        self.folder = Layout(config.folder.resolve()).weights
        self.folder.mkdir(parents=True, exist_ok=True)

    async def post(self, route: str, body: dict | None = None) -> dict:
        """Ask a route of the server; its answer as JSON."""
        async with self.session.post(route, json=body or {}) as reply:
            return await reply.json()

    async def complete(
        self, prompt: list[int], n: int, room: int | None = None, stop: Sequence[int] = ()
    ) -> list[Completion]:
        """`n` completions of a prompt: tokens, their log-probs, and which weights wrote each."""
        rollout, salt = self.config.rollout, str(self.version)  # no prompt is read by two versions
        limit = room or rollout.max_new_tokens
        asked = sampling_params(n, limit, rollout.temperature, stop)
        body = {"token_ids": prompt, "sampling_params": asked, "cache_salt": salt}
        reply = await self.post("/inference/v1/generate", body)
        return [
            Completion(
                token_ids=choice["token_ids"],
                logps=[token["logprob"] for token in choice["logprobs"]["content"]],
                finish_reason=choice["finish_reason"],
                versions=[
                    int(span["version"])
                    for span in choice["weight_versions"]
                    for _ in range(span["start"], span["end"])
                ],
            )
            for choice in reply["choices"]
        ]

    async def go_on(self, ask: Ask) -> Completion:
        """An episode's next turn."""
        return (await self.complete(ask.token_ids, 1, ask.room, ask.stop))[0]

    async def push(self, weights: dict[str, Tensor], version: int) -> None:
        """New weights between two tokens: what is being written is neither lost nor begun again.

        With `kv: keep` the keys and values of its past stay as the old weights made them. The next
        token is drawn from this mixture and its log-prob is reported as it was drawn, so that a
        ratio to it is a true one. `clear` has the past read again, by the new weights.
        """
        clear = str(self.config.generate.kv == "clear").lower()
        save_file(weights, self.folder / "model.safetensors")
        await self.post(f"/pause?mode=keep&clear_cache={clear}")
        await self.post("/collective_rpc", reload_request(str(self.folder)))
        await self.post("/update_weight_version", {"new_version": str(version)})
        await self.post("/resume")
        self.version = version


# ── 2 · The learner: the one of every chapter ────────────────────────────────────────────────────


class Learner(training.Learner):
    """Learns batches that older weights may have written; `step` counts them.

    A token's staleness decides nothing: the loss takes its ratio to the log-prob that its writer
    reported, whoever that was.
    """

    measures_staleness = True

    def __init__(self, config: ScaleConfig):
        model, self.tokenizer = policy_of(config)
        super().__init__(config, model)

    def weights(self) -> dict[str, Tensor]:
        """Copies by name, adapters merged; a head that is tied to the embedding has its own."""
        tensors = plain_weights(as_policy(self.model))
        return {name: w.detach().cpu().clone() for name, w in tensors}


# ── 3 · The pipeline: three things at once, and one rule between them ─────────────────────────────


class Pipeline:
    """Groups are asked for, come back and are trained, all at the same time.

    `Pacing` is the rule. With B groups to a batch, one at place i (from 0) of those that are
    started and not yet trained may start on weights of version v if  batch + i // B ≤ v + K.
    Trained oldest first, no token is then older than K batches. Who is rejected leaves his place.
    """

    def __init__(self, config: ScaleConfig, generator: Generator, learner: Learner):
        self.config, self.generator, self.learner = config, generator, learner
        self.method, self.task = learner.method, get_task(config.data.task)
        held_out = held_out_problems(self.task, config.evaluation.prompts, config.data.levels)
        self.pool, self.rewards = training_pool(self.task, config, held_out), rewards_of(config)
        self.pacing = Pacing(
            config.rollout.prompts,
            config.generate.max_staleness,
            batches=config.steps,
            target=config.generate.target_staleness,
        )
        self.finished: dict[int, list[Rollout]] = {}  # by ticket: they wait for their batch
        self.unreported: list[Rollout] = []  # trained or thrown away since the last row
        self.news = asyncio.Condition()  # something has changed: look again

    async def run(self, report: Report) -> None:
        """Until `steps` batches are trained; an error anywhere ends it: this is nano."""
        await self.push()
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(self.ask(tasks))
            await self.train(report)
            asking.cancel()

    async def ask(self, tasks: asyncio.TaskGroup) -> None:
        """Start groups for as long as they would be trained in time."""
        for ticket in count():
            async with self.news:
                await self.news.wait_for(lambda: self.pacing.may_start(self.generator.version))
            self.pacing.start(ticket, self.generator.version)
            tasks.create_task(self.group(ticket, *self.pool.draw(1)))

    async def group(self, ticket: int, problem: Problem) -> None:
        """One prompt: have it answered, judge the answers, keep them or give the place back."""
        if isinstance(self.task, Environment):
            rollouts = await self.played(self.task, ticket, problem)
        else:
            rollouts = await self.answered(self.task, ticket, problem)
        give_rewards(rollouts, self.rewards)
        if self.method.resamples and not select_groups(rollouts, self.method):
            self.pacing.release(ticket)  # nothing to learn: another is asked in its place
            self.leave(rollouts)
        else:
            self.pacing.finish(ticket, min(v for rollout in rollouts for v in rollout.versions))
            self.finished[ticket] = rollouts
        await self.look_again()

    async def answered(self, task: Task, ticket: int, problem: Problem) -> list[Rollout]:
        """A group of answers with the task's verdicts."""
        tokenizer, n = self.learner.tokenizer, self.config.rollout.group_size
        prompt = encode(tokenizer, problem, self.config.model.chat)
        if cut := self.config.generate.interruption:
            luck = derive_seed(self.config.seed, "interruption", ticket)
            turns = await self.together(cut.episodes(tokenizer, prompt, n, luck))
            written = [one.completion() for one in turns]
        else:
            written = await self.generator.complete(prompt, n)
        stop = stop_of(tokenizer, task, self.config.rollout.stop)
        given = [problem], [prompt], written, n
        rollouts = rollouts_of(tokenizer, *given, first_group=ticket, stop=stop)
        return judged(rollouts, task, ())

    async def played(self, world: Environment, ticket: int, problem: Problem) -> list[Rollout]:
        """A group of episodes, side by side; their world answers in threads."""
        rollout, tokenizer = self.config.rollout, self.learner.tokenizer
        limits = Limits(rollout.max_new_tokens, rollout.max_turns, rollout.turn_tokens)
        dialect = Dialect.of(tokenizer, world, self.config.model.chat)
        n = rollout.group_size
        luck = [derive_seed(self.config.seed, "world", ticket, i) for i in range(n)]
        with sessions_of(world, ((problem, seed) for seed in luck)) as sessions:
            episodes = [dialogue(problem, session, dialect, limits) for session in sessions]
            turns = await self.together(episodes)
            rollouts = rollouts_of_turns(
                tokenizer, world.name, [problem], turns, n, first_group=ticket
            )
            for one, session in zip(rollouts, sessions, strict=True):
                take_verdict(one, final_verdict(session))
        return rollouts

    async def together(self, episodes: Iterable[Episode]) -> list[Turns]:
        """Episodes to their ends, side by side."""
        return await asyncio.gather(*(asked(self.generator.go_on, one) for one in episodes))

    async def train(self, report: Report) -> None:
        """Wait for a batch, learn it, push; the generator goes on writing through all three."""
        while self.learner.step < self.config.steps:
            clock = [time.perf_counter()]
            rollouts = await self.batch()
            clock.append(time.perf_counter())
            row, self.unreported = rollout_metrics(self.unreported, self.learner.step), []
            row |= await asyncio.to_thread(self.learner.learn, rollouts)
            clock.append(time.perf_counter())
            await self.push()
            clock.append(time.perf_counter())
            row |= {name: b - a for name, (a, b) in zip(PHASES, pairwise(clock), strict=True)}
            row |= {"step": self.learner.step, "target_staleness": self.pacing.target}
            report(rollouts, row)

    async def batch(self) -> list[Rollout]:
        """The oldest groups, as soon as there are enough of them to learn from."""
        while True:
            async with self.news:
                tickets = await self.news.wait_for(self.pacing.next_batch)
            groups = [rollout for ticket in tickets for rollout in self.finished.pop(ticket)]
            self.leave(groups)
            if used := select_groups(groups, self.method):
                self.pacing.close_batch(tickets)
                return used
            for ticket in tickets:
                self.pacing.release(ticket)
            await self.look_again()

    async def push(self) -> None:
        """Bring the learner's weights to the generator; then more may start."""
        await self.generator.push(self.learner.weights(), self.learner.step)
        self.pacing.keep_pace(self.learner.step)
        await self.look_again()

    def leave(self, rollouts: list[Rollout]) -> None:
        """A group is trained or thrown away: only now does it count in its prompt's pass rate."""
        self.unreported += rollouts
        self.pool.record(rollouts)

    async def look_again(self) -> None:
        """Wake whoever waits for news."""
        async with self.news:
            self.news.notify_all()


# ── 4 · A run ────────────────────────────────────────────────────────────────────────────────────


def check(config: ScaleConfig) -> None:
    """Raises `ValueError` for what only the rooms can do."""
    for name, value in ONLY.items():
        section, field = name.split(".")
        if (given := getattr(getattr(config, section), field)) != value:
            raise ValueError(f"{name} {given}: nano knows only {value}; run `rlbook scale`")
    if "greedy" in config.method.requirements():
        raise ValueError(f"{config.method.name} compares with a greedy answer: run `rlbook scale`")


def print_row(rollouts: list[Rollout], row: dict[str, float]) -> None:
    """A line on an update."""
    mixed = sum(len(set(rollout.versions)) > 1 for rollout in rollouts)
    print(
        f"{row['step']:>4}  accuracy {row['accuracy']:.3f}  mismatch {row['mismatch_fresh']:.0e}",
        f" staleness {row['staleness_mean']:.2f}, at most {row['staleness_max']:.0f}",
        f" {mixed} of {len(rollouts)} answers by several versions",
        *(f" {name.removesuffix('_seconds')} {row[name]:.2f} s" for name in PHASES),
        flush=True,
    )


async def run(config: ScaleConfig, report: Report = print_row) -> Learner:
    """Train as `config` says; returns the learner with the last weights."""
    check(config := cut_once(config))
    learner = Learner(config)
    async with server(config) as session:
        await Pipeline(config, Generator(config, session), learner).run(report)
    return learner


def main(config: ScaleConfig) -> None:
    """A run from the shell; leaves a Hugging Face folder."""
    set_threads()
    learner = asyncio.run(run(config))
    (config.folder / "model").mkdir(exist_ok=True)
    save_policy(config.folder / "model", as_policy(learner.model), learner.tokenizer)
