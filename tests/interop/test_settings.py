"""Names, defaults and parsers: what the tables say of other trainers is so in their wheels."""

import dataclasses
import importlib.metadata
import importlib.util
import inspect
import re
import tomllib
from pathlib import Path

import pytest
import torch

from rlbook.interop import BESIDE, PEERS, BatchSizes, Turns, names_of, say_run, translate
from rlbook.interop.peer_files import near_name
from rlbook.logs import tables
from rlbook.objectives import FIELD, METHODS
from rlbook.paths import data_dir

SIZES = BatchSizes(prompts=32, group_size=8, minibatches=2, epochs=3, ranks=2, micro_batch=4)


def parse_trl(trl, settings):
    return trl.GRPOConfig(output_dir="none", report_to="none", bf16=False, **settings)


PARSERS = {
    "trl": parse_trl,
    "verl": lambda verl, settings: verl.parse(settings),
    "skyrl": lambda skyrl, settings: skyrl.parse(settings),
}


def found(config, name):
    """The value of a dotted name, in a typed config or Hydra's."""
    for part in name.removeprefix("+").split("."):
        config = config[part] if hasattr(config, "keys") else getattr(config, part)
    return config


@pytest.fixture(params=PARSERS)
def to(request):
    request.getfixturevalue(request.param)  # skipped where it is not installed
    return request.param


@pytest.fixture
def parse(request, to):
    return lambda settings: PARSERS[to](request.getfixturevalue(to), settings)


def test_the_installed_version_is_the_one_of_the_tables(to):
    assert importlib.metadata.version(to) == PEERS[to].VERSION


def test_defaults_are_the_librarys(to, parse):
    defaults = PEERS[to].DEFAULTS
    config = parse({})
    theirs = {name: found(config, name) for name in defaults}
    if to == "trl":
        theirs = {f.name: f.default for f in dataclasses.fields(config) if f.name in defaults}
    if to == "verl":
        theirs |= {k: v for k, v in theirs.items() if v != "null"}
    assert theirs == defaults


def test_the_limit_of_turns_is_accepted(to, parse):
    turns = Turns(5, 4, "rlbook.rewards.turns:GiGPOCredit")
    said = translate("grpo", to, turns=turns).settings
    named = {k: v for k, v in said.items() if k not in translate("grpo", to).settings}
    config = parse(SIZES.settings(to) | said)
    assert named
    assert {name: found(config, name) for name in named} == named


OF_A_RUN = {
    "steps": 7,
    "seed": 3,
    "rollout.temperature": 0.7,
    "rollout.max_new_tokens": 99,
    "rollout.stop": ["</s>"],
    "optimizer.lr": 2e-6,
    "optimizer.warmup": 12,
    "optimizer.betas": [0.8, 0.97],
    "optimizer.eps": 1e-7,
    "optimizer.weight_decay": 0.3,
    "optimizer.max_grad_norm": 0.2,
    "critic.lr": 3e-6,
    "critic.gamma": 0.98,
    "critic.lam": 0.94,
    "critic.value_clip": 0.4,
}


def test_a_runs_own_settings_are_accepted(to, parse):
    said = translate("ppo", to)
    of_the_row = said.settings.copy()
    say_run(said, OF_A_RUN, {}, (), updates=6)
    named = {k: v for k, v in said.settings.items() if of_the_row.get(k) != v}
    config = parse(SIZES.settings(to) | said.settings)
    kept = {name: found(config, name) for name in named}
    assert len(named) >= 10
    assert {name: getattr(v, "value", v) for name, v in kept.items()} == named


def plain(config):
    """Hydra's config with what it leaves for the user to fill in."""
    from omegaconf import OmegaConf

    return OmegaConf.to_container(config)


def names_in(config, prefix=""):
    """All dotted names of a typed config or of a dictionary."""
    named = vars(config) if dataclasses.is_dataclass(config) else config
    if not hasattr(named, "keys"):
        return
    for name in named:
        yield prefix + str(name)
        yield from names_in(named[name], f"{prefix}{name}.")


def test_no_name_that_there_is_is_taken_for_a_misspelt_one(to, parse):
    known, beside = names_of(to), {*BESIDE[to].split()}
    config = parse({})
    theirs = {*names_in(config if to != "verl" else plain(config))}
    assert known | beside <= theirs
    rest = theirs - known - beside
    assert {name: near for name in rest if (near := near_name(name, known))} == {}


def test_trl_refuses_a_group_of_one(trl):
    with pytest.raises(ValueError, match="at least 2 generations"):
        parse_trl(trl, {"num_generations": 1})


def test_trl_corrects_the_sampler_with_vllm_only(trl):
    source = inspect.getsource(trl.GRPOTrainer)
    uses = re.findall(r"(.*)self\.vllm_importance_sampling_correction\b(?! =)", source)
    assert uses and all("self.use_vllm and" in before or before.strip() == "and" for before in uses)


def test_verls_rate_rises_once_a_step_and_its_clip_is_the_optimizers(text_of_verl):
    assert "update_lr_scheduler=batch_idx == total_num_iterations - 1" in text_of_verl
    assert "max_norm=self.optimizer_config.clip_grad" in text_of_verl
    assert "actor.grad_clip" not in text_of_verl


@pytest.mark.parametrize("plugin", [False, True])
def test_every_rows_settings_are_accepted_and_mean_what_they_say(to, parse, plugin):
    for name in METHODS | FIELD:
        settings = translate(name, to, plugin=plugin).settings
        config = parse(SIZES.settings(to) | settings)
        kept = {name: found(config, name) for name in settings}
        assert kept == settings, name


def test_what_the_defaults_list_is_all_that_translations_use(to):
    named = {
        n for row in METHODS | FIELD for n in translate(row, to).settings if not n.startswith("+")
    }
    outside = {"max_completion_length", "generator.apply_overlong_filtering"}
    assert named - PEERS[to].DEFAULTS.keys() <= outside


def test_a_name_that_is_gone_is_refused(to, parse):
    known = next(iter(PEERS[to].DEFAULTS))
    with pytest.raises(Exception, match=r"(?i)unexpected|not in|invalid|unknown|could not"):
        parse({known + "_gone": 1})


def test_batch_sizes_count_what_the_libraries_count(trl, verl, skyrl):
    """TRL completions per device, verl and SkyRL prompts: each one's own arithmetic."""
    config = parse_trl(trl, SIZES.settings("trl"))
    assert config.generation_batch_size * SIZES.ranks == SIZES.completions  # here there is one rank
    accumulated = config.per_device_train_batch_size * config.gradient_accumulation_steps
    assert accumulated * SIZES.ranks == SIZES.per_update
    actor = verl.parse(SIZES.settings("verl")).actor_rollout_ref.actor
    assert actor.ppo_mini_batch_size * SIZES.group_size == SIZES.per_update
    trainer = skyrl.parse(SIZES.settings("skyrl")).trainer
    assert trainer.policy_mini_batch_size * SIZES.group_size == SIZES.per_update


# Losses, estimators and averages that there are: "none" in a table means "not among these".
VERL_LOSSES = "bypass_mode cispo clip_cov dppo_kl dppo_tv dro geo_mean gpg gspo kl_cov sapo vanilla"
SKYRL_LOSSES = "cispo clip_cov cross_entropy dppo dual_clip gspo importance_sampling kl_cov regular"
TRL_LOSSES = "bnpo cispo dapo dr_grpo grpo luspo sapo vespo"
VERL_ESTIMATORS = (
    "gae gdpo gpg grpo grpo_passk grpo_vectorized opo optimal_token_baseline reinforce_plus_plus "
    "reinforce_plus_plus_baseline remax rloo rloo_vectorized tir_optimal_token_baseline"
)
SKYRL_ESTIMATORS = "gae grpo maxrl reinforce++ rloo"
VERL_AVERAGES = (
    "seq-mean-token-mean seq-mean-token-sum seq-mean-token-sum-norm token-mean token-sum"
)
SKYRL_AVERAGES = "prompt_mean seq_mean_token_sum_norm sequence_mean token_mean token_mean_legacy"


def test_verl_has_these_losses_and_no_others(verl):
    assert {*verl.core.POLICY_LOSS_REGISTRY} == {*VERL_LOSSES.split()}


def test_skyrl_has_these_losses_and_no_others(skyrl):
    known = {str(loss) for loss in skyrl.core.PolicyLossType}
    assert known == {*SKYRL_LOSSES.split(), "rollout_is", "sapo"}


def test_trl_has_these_losses_and_no_others(trl):
    source = inspect.getsource(trl.GRPOTrainer._compute_loss)
    lists = re.findall(r'self\.loss_type (?:in (\[[^\]]*\])|== ("\w+"))', source)
    named = {name for pair in lists for part in pair for name in re.findall(r'"(\w+)"', part)}
    assert named == {*TRL_LOSSES.split()}


def own(registry):
    """Names that the library brings; ours may be registered already."""
    return {str(name) for name in registry} - {f"rlbook_{row}" for row in METHODS | FIELD}


def compared(function, name):
    """Words that a function's source compares this argument with."""
    source = inspect.getsource(function)
    lists = re.findall(rf'{name} (?:==|in) (\[[^\]]*\]|"[\w-]+")', source)
    return {word for part in lists for word in re.findall(r'"([\w-]+)"', part)}


def test_verl_has_these_estimators_and_no_others(verl):
    assert own(verl.core.ADV_ESTIMATOR_REGISTRY) == {*VERL_ESTIMATORS.split()}


def test_skyrl_has_these_estimators_and_no_others(skyrl):
    known = own(skyrl.core.AdvantageEstimatorRegistry.list_available())
    assert known == {*SKYRL_ESTIMATORS.split()}


def test_verl_has_these_averages_and_no_others(verl):
    assert compared(verl.core.agg_loss, "loss_agg_mode") == {*VERL_AVERAGES.split()}
    with pytest.raises(ValueError, match="Invalid loss_agg_mode"):
        verl.core.agg_loss(torch.ones(1, 1), torch.ones(1, 1), "prompt-mean")


def test_skyrl_has_these_averages_and_no_others(skyrl):
    reduce = skyrl.core.apply_loss_reduction_to_advantages_minibatch
    assert compared(reduce, "loss_reduction") == {*SKYRL_AVERAGES.split()}


def test_trl_scales_rewards_in_these_ways_and_no_others(trl):
    scored = trl.GRPOTrainer._generate_and_score_completions
    assert compared(scored, "self.scale_rewards") == {"group", "batch", "none"}
    both = {"sum_then_normalize", "normalize_then_sum"}
    assert compared(scored, "self.multi_objective_aggregation") == both


def test_verls_clip_ratio_is_read_by_nobody(verl):
    """Its two other bounds have defaults of their own, and these win."""
    actor = verl.parse({"actor_rollout_ref.actor.clip_ratio": 0.5}).actor_rollout_ref.actor
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == (0.2, 0.2)


def test_trl_has_an_entropy_bonus_and_a_target(trl):
    names = {field.name for field in dataclasses.fields(trl.GRPOConfig)}
    assert {"entropy_coef", "use_adaptive_entropy", "entropy_target"} <= names


def test_verls_distillation_descends_the_forward_kl_unless_told_otherwise(verl):
    """Its default is k3 as a loss, whose mean slope on-policy is that of KL(teacher ‖ student)."""
    said = verl.parse({}).distillation.distillation_loss
    assert (said.loss_mode, said.use_policy_gradient) == ("k3", False)
    scores = torch.tensor([0.2, -0.4, 0.9], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([1.0, 0.1, -0.5], dtype=torch.float64).log_softmax(0)
    student = scores.log_softmax(0)
    k3 = verl.core.kl_penalty(student, teacher, "k3")
    mean = (student.exp().detach() * k3).sum()
    slopes = [
        torch.autograd.grad(value, scores, retain_graph=True)[0]
        for value in (mean, (teacher.exp() * (teacher - student)).sum())
    ]
    torch.testing.assert_close(*slopes, rtol=1e-9, atol=1e-12)


def test_gkd_of_written_texts_is_a_divergence_and_no_likelihood(trl):
    """`lmbda=0`: the data set's texts, but each token teaches the teacher's whole distribution."""
    from trl.experimental.gkd import GKDConfig, GKDTrainer

    defaults = {f.name: f.default for f in dataclasses.fields(GKDConfig)}
    wanted = {"lmbda": 0.5, "beta": 0.5, "seq_kd": False}
    assert {name: defaults[name] for name in wanted} == wanted
    scores = torch.tensor([[[0.2, -0.4, 0.9]]], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([[[1.0, 0.1, -0.5]]], dtype=torch.float64)
    labels, student, q = torch.tensor([[0]]), scores.softmax(-1).detach(), teacher.softmax(-1)
    loss = GKDTrainer.generalized_jsd_loss(scores, teacher, labels, beta=0.0)
    (slope,) = torch.autograd.grad(loss, scores)
    torch.testing.assert_close(slope, student - q)  # of KL(teacher ‖ student), by hand
    written = torch.tensor([1.0, 0, 0], dtype=torch.float64)  # SFT on token 0
    assert (slope - (student - written)).abs().max() > 0.3


VERL = tomllib.loads((data_dir() / "peers.toml").read_text(encoding="utf-8"))["verl"]
EXPERIMENTAL = "async_training.staleness_threshold"


def test_verls_defaults_are_the_ones_that_the_book_states(verl):
    config = verl.parse({})
    stated = {name: value for name, value in VERL["keys"].items() if name != EXPERIMENTAL}
    theirs = {name: found(config, name) for name in stated}
    assert theirs == {name: None if v == "null" else v for name, v in stated.items()}


@pytest.fixture(scope="module")
def text_of_verl(verl):
    (folder,) = importlib.util.find_spec("verl").submodule_search_locations
    files = [p for p in Path(folder).rglob("*") if p.suffix in (".py", ".yaml")]
    return "\n".join(p.read_text(encoding="utf-8", errors="replace") for p in files)


@pytest.mark.parametrize("word", [*VERL["values"], EXPERIMENTAL.rpartition(".")[2]])
def test_verl_has_every_word_that_the_book_writes(text_of_verl, word):
    assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text_of_verl)


OLDER = {"kl", "actor/entropy_loss"}  # names of earlier versions, or of no log


def test_the_doctors_names_are_those_of_the_logs(text_of_verl):
    """Names that verl puts together from a family and a key count by their parts."""
    missing = {}
    for name in tables()["verl"].keys() - OLDER:
        family, _, key = name.partition("/")
        if name not in text_of_verl:
            missing[name] = [p for p in (family, key) if not re.search(rf"\b{p}\b", text_of_verl)]
    assert not any(missing.values()), missing


CLAIMS = tomllib.loads((data_dir() / "claims.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("claim", [name for name, one in CLAIMS.items() if "quote" in one])
def test_what_the_page_reads_out_of_a_wheel_is_there(claim):
    of, file, quote = (CLAIMS[claim][key] for key in ("of", "file", "quote"))
    name, version = of.split()
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed here: make interop")
    assert importlib.metadata.version(name) == version
    source = importlib.metadata.distribution(name).locate_file(file)
    assert quote in source.read_text(encoding="utf-8")
