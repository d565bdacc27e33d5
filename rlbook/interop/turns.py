"""What of a run in several turns each trainer has words for, in the versions of `peers.yaml`."""

from typing import NamedTuple

from rlbook.interop.translation import Translation

MULTI_TURN = "actor_rollout_ref.rollout.multi_turn."


class Turns(NamedTuple):
    """A run's episodes: the most turns, the most tokens of one, a reward that pays turns apart."""

    most: int
    tokens: int | None = None
    credit: str = ""


class Played(NamedTuple):
    """How a trainer plays: what its world is, what a turn's credit becomes, the word for a limit.

    `spare` turns are not counted by that limit; `switch` turns it on.
    """

    world: str
    credit: str
    limit: str = ""
    spare: int = 0
    switch: str = ""


PLAYED = {
    "trl": Played(
        "a class for environment_factory (reset, tools as methods, get_reward); it cannot say that "
        "an episode is over, a turn without a call ends it",
        "one number for an episode",
        "max_tool_calling_iterations",
        spare=1,  # the turn after the last call
    ),
    "verl": Played(
        "tools (multi_turn.tool_config_path) or an agent loop of your own; of a tool's reply "
        "multi_turn.max_tool_response_length characters are kept",
        "one number for an episode, unless register_adv_est has an estimator of your own",
        MULTI_TURN + "max_assistant_turns",
        switch=MULTI_TURN + "enable",
    ),
    "skyrl": Played(
        "an env of skyrl-gym (environment.env_class) with init and step",
        "turns are paid apart, and advantages of whole answers add that up",
        "generator.max_turns",
    ),
    "prime-rl": Played(
        "an environment of verifiers, which bounds its turns itself", "one number for an episode"
    ),
}


def say_turns(said: Translation, turns: Turns) -> None:
    """Add to a translation what becomes of the run's world, its limits and its credit."""
    how = PLAYED[said.peer]
    if how.limit:
        said.say({how.limit: turns.most - how.spare} | ({how.switch: True} if how.switch else {}))
    said.notes["world"] = how.world
    if turns.tokens:
        said.lost["turn_tokens"] = "no limit on a single turn"
    if turns.credit:
        said.lost["reward"] = f"{turns.credit}: {how.credit}"
