import inspect
from dataclasses import replace

import pytest
import yaml
from pydantic import ValidationError

from rlbook.objectives import METHODS, Method, RatioClip, no_baseline
from rlbook.training import RunConfig, dump_config, load_config
from rlbook.training.config import explain


@pytest.mark.wrong_on_purpose
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": -1.0}, r"optimizer\.lr\n.*greater than 0"),
        ({"steps": 0}, "steps"),
        ({"temperature": 0}, r"rollout\.temperature"),
        ({"lr": float("inf")}, r"optimizer\.lr\n.*finite"),
        ({"retire_at": 0.9}, r"data\.retire_at needs a finite pool: set data\.pool"),
        ({"learning_rate": 1e-4}, "no setting 'learning_rate'"),
        ({"optimizer": {"learning_rate": 1e-4}}, r"optimizer\n.*no setting 'learning_rate'"),
        (
            {"minibatches": 32},
            r"optimizer\.minibatches \(32\) cannot exceed rollout\.prompts \(16\)",
        ),
        ({"lr": 1e-3, "optimizer": {"lr": 1e-4}}, r"optimizer\.lr is given twice, as lr too"),
        ({"critic_lr": 1e-3, "critic": {"lr": 1e-4}}, r"critic\.lr is given twice, as critic_lr"),
        ({"method": "gpro"}, r"no method 'gpro' .*'grpo'\?\): choose from reinforce, .*grpo"),
        (
            {"method": {"name": "grpo", "old_logprobs": "old"}},
            r"old_logprobs: .*'recomputed' or 'sampler'",
        ),
    ],
)
def test_bad_settings_name_the_field(settings, message):
    with pytest.raises(ValidationError, match=message):
        RunConfig(**settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rate: 1.0e-4", r"run\.yaml: no setting 'learning_rate'.*: there are method, "),
        (
            "optimizer: {learning_rate: 1.0e-4}",
            r"optimizer: no setting 'learning_rate'.*: there are lr, warmup, betas",
        ),
        ("rollout: {prompts: 3}\nminibatches: 8", r"optimizer\.minibatches \(8\) cannot exceed"),
        ("- 1", "expected sections"),
        ("lr: [", "is not YAML"),
        ("lr: 3e-4x", r"optimizer\.lr: Input should be a valid number"),
    ],
)
def test_a_bad_file_is_named_with_the_field_and_what_there_is(text, message, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        load_config(path)
    assert str(path) in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no configuration .*absent\.yaml"):
        load_config(tmp_path / "absent.yaml")


def test_a_setting_without_its_section_goes_there():
    flat = RunConfig(method="rloo", lr=3e-4, prompts=32, pool=64, every=5, policy="smollm2-135m")
    assert flat == RunConfig(
        method=METHODS["rloo"],
        optimizer={"lr": 3e-4},
        rollout={"prompts": 32},
        data={"pool": 64},
        evaluation={"every": 5},
        model={"policy": "smollm2-135m"},
    )
    assert flat != RunConfig()


def test_of_two_settings_with_one_name_the_first_section_has_the_plain_one():
    config = RunConfig(
        lr=1e-3, critic_lr=2e-3, prompts=20, evaluation_prompts=30, rollout_temperature=0.5
    )
    assert (config.optimizer.lr, config.critic.lr) == (1e-3, 2e-3)
    assert (config.rollout.prompts, config.evaluation.prompts) == (20, 30)
    assert config.rollout.temperature == 0.5


def test_a_flat_setting_joins_its_section():
    config = RunConfig(optimizer={"warmup": 7}, lr=1e-3)
    assert (config.optimizer.warmup, config.optimizer.lr) == (7, 1e-3)


def test_replace_changes_what_is_named_and_nothing_else():
    config = RunConfig(method="ppo", lr=1e-3, warmup=5, group_size=3)
    changed = config.replace(lr=2e-3, rollout={"prompts": 5}, method="grpo")
    assert (changed.optimizer.lr, changed.optimizer.warmup) == (2e-3, 5)
    assert (changed.rollout.prompts, changed.rollout.group_size) == (5, 3)
    assert changed.method == METHODS["grpo"]
    assert config.optimizer.lr == 1e-3
    assert config.replace() == config


def test_replace_is_checked_as_a_whole():
    with pytest.raises(ValidationError, match=r"optimizer\.minibatches \(4\) cannot exceed"):
        RunConfig().replace(prompts=2)


def test_settings_cannot_be_changed_in_place():
    with pytest.raises(ValidationError, match="frozen"):
        RunConfig().optimizer.lr = 1.0


def test_overrides_reach_into_sections_and_methods(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("method: grpo\noptimizer:\n  warmup: 3\n")
    config = load_config(
        path,
        [
            "method.trust_region.high=0.28",
            "method.kl=null",
            "optimizer.betas=[0.8, 0.9]",
            "rollout.group-size=5",
            "seed=4",
            "lr=0.002",
        ],
    )
    assert config.method == replace(METHODS["grpo"], trust_region=RatioClip(0.2, 0.28), kl=None)
    assert config.optimizer.betas == (0.8, 0.9)
    assert (config.optimizer.warmup, config.optimizer.lr) == (3, 0.002)
    assert (config.rollout.group_size, config.seed) == (5, 4)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.lr", r"write section\.field=value"),
        ("steps.lr=3", "steps is 5, which has no fields"),
        ("optimizer.rate=3", r"optimizer: no setting 'rate'.*: there are lr, "),
        ("method.trust_region.hi=0.3", r"method: .*has no 'hi' .*: it has low, high, dual"),
    ],
)
def test_a_bad_override_is_named(override, message, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("method: grpo\nsteps: 5\n")
    with pytest.raises(ValueError, match=message):
        load_config(path, [override])


@pytest.mark.parametrize("name", METHODS)
def test_a_dumped_run_is_loaded_as_itself(name, tmp_path):
    config = RunConfig(method=name, levels=(2, 3), pool=40, retire_at=0.5, value_clip=None)
    path = tmp_path / "run.yaml"
    path.write_text(dump_config(config))
    assert load_config(path) == config
    assert RunConfig(**config.to_dict()) == config
    document = yaml.safe_load(path.read_text())
    assert document["data"] == {
        "task": "sums",
        "reward": None,
        "levels": [2, 3],
        "pool": 40,
        "retire_at": 0.5,
        "mixture": None,
        "rewards": {},
    }
    assert document["method"]["name"] == name


def test_a_changed_row_is_dumped_with_its_change(tmp_path):
    method = replace(METHODS["grpo"], advantage=no_baseline, trust_region=RatioClip(0.1, 0.5))
    path = tmp_path / "run.yaml"
    path.write_text(dump_config(RunConfig(method=method)))
    loaded = load_config(path).method
    assert loaded == method != METHODS["grpo"]
    assert isinstance(loaded, Method)


def test_the_limit_of_a_run_is_the_constant_of_a_row_without_one():
    config = RunConfig(method="dr_grpo", max_new_tokens=40)
    assert config.resolved_method.constant == 40
    own = replace(METHODS["dr_grpo"], constant=1000.0)
    assert config.replace(method=own).resolved_method.constant == 1000
    assert config.method.constant is None


def test_every_setting_says_what_it_is():
    for section in (field.annotation for field in RunConfig.model_fields.values()):
        if inspect.isclass(section) and hasattr(section, "model_fields"):
            missing = [n for n, f in section.model_fields.items() if not f.description]
            assert missing in ([], ["weight_decay"])


def test_several_faults_are_told_in_one_line():
    with pytest.raises(ValidationError) as error:
        RunConfig(lr=-1, prompts=0)
    faults = explain(error.value).split("; ")
    assert sorted(faults) == [
        "optimizer.lr: Input should be greater than 0",
        "rollout.prompts: Input should be greater than or equal to 1",
    ]


def test_the_folder_of_a_run_stands_for_its_file(tmp_path):
    (tmp_path / "config.yaml").write_text(dump_config(RunConfig(steps=7)))
    assert load_config(tmp_path, ["seed=3"]) == RunConfig(steps=7, seed=3)
    with pytest.raises(ValueError, match=r"no configuration .*empty/config\.yaml"):
        (tmp_path / "empty").mkdir()
        load_config(tmp_path / "empty")
