"""What the tables say, without the libraries: tests/interop holds them against the wheels."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from rlbook.cli import main
from rlbook.interop import PEERS, like, likeness_text, read_peer_file, translate, translation_text
from rlbook.interop.fold import folded
from rlbook.objectives import FIELD, METHODS, KLPenalty, SamplerCorrection, policy_loss

MASK = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 0]], dtype=torch.bool)
GROUPS = torch.tensor([0, 0, 1, 1])


@pytest.mark.parametrize("to", PEERS)
@pytest.mark.parametrize("name", METHODS | FIELD)
def test_every_row_has_settings_and_says_what_is_lost(to, name):
    said = translate(name, to)
    assert said.settings.keys() & PEERS[to].DEFAULTS.keys()
    assert said.exact == (not said.lost)
    plugged = translate(name, to, plugin=True)
    assert plugged.lost.keys() <= said.lost.keys()
    assert plugged.lost.keys() | plugged.carried.keys() == said.lost.keys()


def test_rows_that_settings_alone_say():
    exact = {to: {name for name in METHODS if translate(name, to).exact} for to in PEERS}
    assert exact["trl"] >= {"grpo", "dr_grpo", "gspo", "lite_ppo"}
    assert exact["verl"] >= {"grpo", "rloo", "remax", "dapo", "dppo", "gspo", "gmpo", "opo"}
    assert exact["skyrl"] >= {"grpo", "dr_grpo", "maxrl", "dppo", "dppo_kl"}
    assert exact["prime-rl"] == {"maxrl", "opd"}


def test_verls_bounds_are_not_the_dead_one():
    said = translate("dapo", "verl").settings
    assert said["actor_rollout_ref.actor.clip_ratio_high"] == 0.28
    assert "actor_rollout_ref.actor.clip_ratio" not in said


def test_an_overlong_answer_is_punished_in_verl_only_by_more_than_a_manager():
    said = translate(replace(METHODS["dapo"], overlong_cache=300), "verl", max_new_tokens=1000)
    buffer = "+reward.reward_kwargs.overlong_buffer_cfg."
    assert said.settings["reward.reward_manager.name"] == "dapo"
    assert (said.settings[buffer + "enable"], said.settings[buffer + "len"]) == (True, 300)
    assert said.settings["+reward.reward_kwargs.max_resp_len"] == 1000
    assert said.notes["rewards"] == "the reward function has to give -1 and 1"


def test_the_cap_of_a_weight_is_absolute_in_trl_and_a_distance_in_verl():
    assert translate("cispo", "trl").settings["epsilon_high"] == 5
    assert translate("cispo", "verl").settings["actor_rollout_ref.actor.clip_ratio_high"] == 4


def test_trls_correction_is_off_unless_the_row_has_one():
    row = METHODS["grpo"]
    key = "vllm_importance_sampling_"
    assert translate(row, "trl").settings[key + "correction"] is False
    row = replace(row, sampler_correction=SamplerCorrection(5.0, "drop", low=0.5))
    said = translate(row, "trl").settings
    assert (said[key + "mode"], said[key + "clip_min"]) == ("token_mask", 0.5)


def test_a_run_with_turns_says_what_becomes_of_world_limit_and_credit(capsys):
    run = ["data.task=workshop.ch16.worlds:guess", "rollout.max_turns=5", "rollout.turn_tokens=4"]
    run += ["data.reward=rlbook.rewards.turns:GiGPOCredit", "optimizer.minibatches=1"]
    limits = {"trl": "max_tool_calling_iterations: 4", "skyrl": "generator.max_turns: 5"}
    limits |= {"verl": "multi_turn.max_assistant_turns: 5", "prime-rl": "bounds its turns itself"}
    for to in PEERS:
        main(["translate", "gigpo", "--to", to, *run])
        said = capsys.readouterr().out
        assert limits[to] in said and "lost: turn_tokens" in said and "GiGPOCredit:" in said
        main(["translate", "gigpo", "--to", to, "optimizer.minibatches=1"])
        assert "turns" not in capsys.readouterr().out.replace("returns", "")


def test_a_critic_a_greedy_answer_and_a_teacher_are_beyond_a_plugin():
    for name in ("ppo", "remax", "opd"):
        assert "advantage" in translate(name, "trl", plugin=True).lost


def test_a_kl_term_is_lost_where_the_average_is_folded():
    row = replace(METHODS["scalerl"], kl=KLPenalty("k3", 0.1, gradient="naive"))
    assert "KL" in translate(row, "verl", plugin=True).lost
    assert "KL" not in translate(replace(row, aggregation="token_mean"), "verl").lost


@pytest.mark.parametrize("base", ["token_mean", "sequence_mean", "sequence_sum"])
@pytest.mark.parametrize("name", METHODS | FIELD)
def test_a_folded_average_has_the_rows_gradient(name, base):
    bare = {"kl": None, "selection": None, "sampler_correction": None, "likelihood": 0.0}
    bare |= {"entropy_bonus": 0.0}
    row = replace((METHODS | FIELD)[name], **bare).resolved(3)
    draw = torch.Generator().manual_seed(0)
    old, logp = (-torch.rand(4, 3, generator=draw, dtype=torch.float64) - 0.1 for _ in range(2))
    advantages = torch.randn(4, generator=draw, dtype=torch.float64)
    gradients = []
    for given, how in ((advantages, row.aggregation), (None, base)):
        given = folded(row, advantages, MASK, GROUPS, base) if given is None else given
        x = logp.clone().requires_grad_()
        one = replace(row, aggregation=how)
        loss = policy_loss(one, x, old, given, MASK, groups=GROUPS).loss
        gradients.append(torch.autograd.grad(loss, x)[0])
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("to", PEERS)
def test_a_rows_own_settings_are_most_like_it(to):
    for name in METHODS | FIELD:
        said = translate(name, to)
        if {"advantage", "trust region", "aggregation"} & said.lost.keys():
            continue
        given = {k: v for k, v in said.settings.items() if k in PEERS[to].DEFAULTS}
        best = like(said.settings)[0]
        assert best.differ == {}, name
        assert best.row == name or translate(best.row, to).settings.items() >= given.items()


def test_a_file_is_named_and_its_deviations_too():
    actor = {"policy_loss": {"loss_mode": "dppo_tv"}, "clip_ratio_low": 0.15}
    actor |= {"clip_ratio_high": 0.3, "clip_ratio_c": 1e9, "loss_agg_mode": "seq-mean-token-sum"}
    given = {
        "actor_rollout_ref": {"actor": actor},
        "algorithm": {
            "adv_estimator": "grpo",
            "norm_adv_by_std_in_grpo": False,
            "rollout_correction": {"bypass_mode": True},
        },
    }
    best, *_ = found = like(given)
    assert (best.row, best.peer) == ("dppo", "verl")
    assert best.differ == {"actor_rollout_ref.actor.clip_ratio_high": (0.3, 0.15)}
    assert "clip_ratio_high: 0.3 here, 0.15 in the row" in likeness_text(found)


def test_what_is_not_given_counts_as_the_default():
    """TRL's defaults are DAPO's average with a symmetric clip; with vLLM, a correction of it."""
    given = {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28}
    assert (like(given)[0].row, like(given)[0].differ) == ("dapo", {})
    best = like(given | {"use_vllm": True})[0]
    assert best.differ == {"vllm_importance_sampling_correction": (True, False)}
    assert "correction: True by default, False in the row" in likeness_text([best])


@pytest.mark.parametrize(
    ("given", "row"),
    [
        ({"beta": 0.04, "num_generations": 8}, "grpo"),
        ({"loss_type": "dr_grpo", "scale_rewards": False}, "dr_grpo"),
        ({"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}, "gspo"),
        (
            {
                "algorithm.adv_estimator": "grpo",
                "actor_rollout_ref.actor.clip_ratio_high": 0.28,
                "actor_rollout_ref.rollout.n": 5,
            },
            "dapo",
        ),
    ],
)
def test_what_is_given_weighs_more_than_what_is_not(given, row):
    best = like(given)[0]
    assert best.row == row and best.differ.keys() == best.assumed


def test_no_bound_is_a_choice_and_no_number():
    """Clip-higher without a deviation, as many write it: DAPO, not a loss without a clip."""
    given = {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28, "scale_rewards": False}
    assert like(given)[0].row == "dapo"


def test_a_name_of_an_earlier_version_is_read():
    given = {"algorithm.filter_groups": {"enable": True, "metric": "acc"}}
    given |= {"reward_model": {"reward_manager": "dapo"}, "algorithm.adv_estimator": "grpo"}
    best = like(given)[0]
    assert best.row == "dapo" and "reward.reward_manager.name" not in best.differ


def test_a_misspelt_name_is_told_and_others_are_listed(capsys, tmp_path):
    file = tmp_path / "trl.yaml"
    file.write_text("loss_type: dapo\nepsilon_hihg: 0.28\nuse_vllm: true\nnum_generations: 8\n")
    main(["methods", "--like", str(file)])
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "# no setting epsilon_hihg in trl, did you mean epsilon_high?"
    assert last == "# not compared: use_vllm, num_generations"


def test_a_count_that_is_none_is_named():
    with pytest.raises(ValueError, match="num_generations is a count of at least 1, got 'eight'"):
        like({"beta": 0.0, "num_generations": "eight"})


def test_strangers_are_refused_by_name():
    with pytest.raises(ValueError, match="colour"):
        like({"colour": "red"})
    with pytest.raises(ValueError, match="no trainer 'openrlhf': choose from trl"):
        translate("grpo", "openrlhf")
    with pytest.raises(ValueError, match="no method"):
        translate("gropo", "trl")


def test_the_text_is_a_file_that_the_trainer_reads():
    said = translate("scalerl", "verl", plugin=True)
    text = translation_text(said, {"data.train_batch_size": 48})
    assert yaml.safe_load(text) == {"data.train_batch_size": 48} | said.settings
    assert "# lost: prompts" in text and "# carried by rlbook.interop: advantage" in text


def test_the_modules_import_no_trainer_until_they_are_asked():
    for name, module in PEERS.items():
        tree = ast.parse(Path(module.__file__).read_text())
        top = {n.module for n in tree.body if isinstance(n, ast.ImportFrom)}
        assert not any((m or "").split(".")[0] in {"trl", "verl", "skyrl"} for m in top), name


def test_the_command_writes_settings_that_yaml_reads(capsys):
    main(["translate", "dapo", "rollout.prompts=512", "minibatches=16", "--to", "verl"])
    said = yaml.safe_load(capsys.readouterr().out)
    assert said["actor_rollout_ref.actor.ppo_mini_batch_size"] == 32
    assert said["actor_rollout_ref.actor.clip_ratio_high"] == 0.28


RATES = {  # by trainer: learning rate, gradient clipping, temperature, second β
    "trl": "learning_rate max_grad_norm temperature adam_beta2",
    "verl": "actor_rollout_ref.actor.optim.lr actor_rollout_ref.actor.optim.clip_grad "
    "actor_rollout_ref.rollout.temperature actor_rollout_ref.actor.optim.betas",
    "skyrl": "trainer.policy.optimizer_config.lr trainer.policy.optimizer_config.max_grad_norm "
    "generator.sampling_params.temperature trainer.policy.optimizer_config.adam_betas",
    "prime-rl": "trainer.optim.lr trainer.optim.max_norm "
    "orchestrator.train.sampling.temperature trainer.optim.betas2",
}


@pytest.mark.parametrize("to", PEERS)
def test_a_runs_own_settings_are_written_or_lost(to, capsys):
    run = ["lr=1e-6", "max_grad_norm=0.2", "temperature=0.7", "betas=[0.9,0.99]", "minibatches=1"]
    main(["translate", "maxrl", *run, "rollout.sync_every=4", "eps=1e-9", "--to", to])
    text = capsys.readouterr().out
    said = yaml.safe_load(text)
    lr, clip, temperature, beta = (said[name] for name in RATES[to].split())
    assert (lr, clip, temperature) == (1e-6, 0.2, 0.7)
    assert beta in (0.99, [0.9, 0.99])
    assert "# lost: rollout.sync_every: not translated: 4" in text
    assert ("# lost: optimizer.eps: not translated: 1e-09" in text) == (to != "trl")


def test_steps_and_warm_up_are_counted_as_each_trainer_counts_them(capsys):
    """20 batches of 4 updates, the rate rising for 12 of them: 3 batches."""
    run = ["steps=20", "optimizer.warmup=12", "optimizer.minibatches=4"]
    said = {}
    for to in ("trl", "verl", "skyrl"):
        main(["translate", "grpo", *run, "--to", to])
        said[to] = yaml.safe_load(capsys.readouterr().out)
    assert (said["trl"]["max_steps"], said["trl"]["warmup_steps"]) == (80, 12)
    assert said["trl"]["lr_scheduler_type"] == "constant_with_warmup"
    assert said["verl"]["trainer.total_training_steps"] == 20
    assert said["verl"]["actor_rollout_ref.actor.optim.lr_warmup_steps"] == 3
    assert said["skyrl"]["trainer.max_training_steps"] == 20
    assert said["skyrl"]["trainer.policy.optimizer_config.num_warmup_steps"] == 12


def test_what_is_not_given_is_not_written_and_a_default_that_is_given_is(capsys, tmp_path):
    main(["translate", "grpo", "--to", "trl"])
    plain = yaml.safe_load(capsys.readouterr().out)
    assert not plain.keys() & {*RATES["trl"].split(), "max_steps", "seed", "weight_decay"}
    file = tmp_path / "run.yaml"
    file.write_text("method: grpo\noptimizer: {lr: 1.5e-4, weight_decay: 0}\npatience: 5\n")
    main(["translate", str(file), "seed=0", "--to", "trl"])
    text = capsys.readouterr().out
    wanted = {"learning_rate": 1.5e-4, "weight_decay": 0.0, "seed": 0}
    wanted |= {"lr_scheduler_type": "constant_with_warmup"}
    assert yaml.safe_load(text) == plain | wanted
    assert "lost" not in text


def test_a_critics_settings_are_said_where_there_is_a_critic(capsys):
    critic = ["critic.lr=2e-5", "critic.lam=0.95"]
    main(["translate", "ppo", *critic, "--to", "verl"])
    said = yaml.safe_load(capsys.readouterr().out)
    assert (said["critic.optim.lr"], said["algorithm.lam"]) == (2e-5, 0.95)
    main(["translate", "ppo", *critic, "--to", "trl"])
    assert "# lost: critic.lam: not translated: 0.95" in capsys.readouterr().out
    main(["translate", "grpo", *critic, "--to", "verl"])
    assert "critic" not in capsys.readouterr().out


def test_a_note_on_one_update_counts_those_that_are_asked_for(capsys):
    one = "one update per batch: steps_per_generation = gradient_accumulation_steps"
    main(["translate", "maxrl", "optimizer.minibatches=4", "epochs=2", "--to", "trl"])
    assert one + "; here are 8, and π/π_old counts" in capsys.readouterr().out
    main(["translate", "maxrl", "optimizer.minibatches=1", "--to", "trl"])
    text = capsys.readouterr().out
    said = yaml.safe_load(text)
    assert said["steps_per_generation"] == said["gradient_accumulation_steps"] == 128
    assert one + "\n" in text
    main(["translate", "maxrl", "optimizer.minibatches=4", "--to", "skyrl"])
    assert "train_batch_size; here are 4" in capsys.readouterr().out


def test_one_answer_to_a_prompt_is_compared_with_none(capsys):
    for words, said in {
        "grpo --to trl": "TRL compares at least 2 answers",
        "rloo --to trl": "at least 2 answers",
        "rloo minibatches=1 --to prime-rl": "leave_one_out compares answers",
    }.items():
        with pytest.raises(SystemExit):
            main(["translate", *words.split(), "group_size=1"])
        assert said in capsys.readouterr().err
    main(["translate", "reinforce", "group_size=1", "--to", "verl"])
    assert yaml.safe_load(capsys.readouterr().out)["actor_rollout_ref.rollout.n"] == 1
    with pytest.raises(ValueError, match="leave_one_out"):
        translate("rloo", "trl", group_size=1)


def test_the_command_knows_the_rows_of_the_field(capsys):
    main(["translate", "vespo", "--to", "trl"])
    assert yaml.safe_load(capsys.readouterr().out)["loss_type"] == "vespo"


def test_the_command_names_a_file(capsys, tmp_path):
    file = tmp_path / "grpo.yaml"
    file.write_text(yaml.safe_dump(translate("dr_grpo", "skyrl").settings))
    main(["methods", "--like", str(file)])
    assert capsys.readouterr().out.startswith("dr_grpo, as skyrl says it: the same")


OF_TRL, OF_VERL = "beta: 0.04\nnum_generations: 8\n", "algorithm.adv_estimator: grpo\n"
SCRIPT = """set -x
high=0.28  # clip-higher
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo +data.note='two words' \\
    actor_rollout_ref.actor.clip_ratio_high=${high} \\
    trainer.n_gpus_per_node=$GPUS $@
"""
FOREIGN = {  # a file, its trainer, and the row that it is
    "trl.yaml": (OF_TRL, "trl", "grpo"),
    "flat.yaml": (OF_VERL + "actor_rollout_ref.actor.clip_ratio_high: 0.28\n", "verl", "dapo"),
    "nested.json": ('{"trainer": {"algorithm": {"policy_loss_type": "gspo"}}}', "skyrl", "gspo"),
    "verl.sh": (SCRIPT, "verl", "dapo"),
    "flags.sh": ("trl grpo --beta 0.04 --use_vllm --num_generations=8", "trl", "grpo"),
    "run.py": ("GRPOConfig(output_dir=out(), beta=0.04, num_generations=8)", "trl", "grpo"),
    "prime.toml": ('[trainer.loss]\nkl_tau = 0.0\n[orchestrator.algo]\ntype = "max_rl"\n',
                   "prime-rl", "maxrl"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_a_trainers_file_is_pointed_to_the_verb_that_reads_it(name, capsys, tmp_path):
    text, peer, row = FOREIGN[name]
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(SystemExit):
        main(["translate", str(file), "--to", "verl"])
    said = capsys.readouterr().err
    assert f"settings of {peer}: `rlbook methods --like {file}`" in said
    main(["methods", "--like", str(file)])
    assert capsys.readouterr().out.startswith(f"{row}, as {peer} says it")


def test_a_script_gives_its_words_its_own_variables_and_no_others(tmp_path):
    file = tmp_path / "verl.sh"
    file.write_text(SCRIPT)
    said = read_peer_file(file)
    assert said["actor_rollout_ref.actor.clip_ratio_high"] == "0.28"
    assert said["data.note"] == "two words"
    assert "trainer.n_gpus_per_node" not in said


@pytest.mark.parametrize("name", ["openrlhf.sh", "train.py"])
def test_a_program_of_nobody_is_not_read_out(name, capsys, tmp_path):
    file = tmp_path / name
    file.write_text("python3 -m openrlhf --init_kl_coef 1e-3" if name[0] == "o" else "x = 1")
    for words in (["translate", str(file), "--to", "trl"], ["methods", "--like", str(file)]):
        with pytest.raises(SystemExit):
            main(words)
        assert len(capsys.readouterr().err) < 250


def test_a_run_of_the_book_is_no_trainers_file(capsys, tmp_path):
    """`temperature`, `seed` and `max_grad_norm` are words of TRL too."""
    file = tmp_path / "run.yaml"
    file.write_text("temperature: 0.7\nseed: 3\nmax_grad_norm: 0.5\n")
    main(["translate", str(file), "--to", "trl"])
    assert yaml.safe_load(capsys.readouterr().out)["temperature"] == 0.7


def test_the_command_refuses_a_method_that_there_is_not(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["translate", "method=gropo", "--to", "trl"])
    assert stopped.value.code == 2 and "gropo" in capsys.readouterr().err
