"""The shell commands: settings from flags and files, nothing overwritten, nothing ignored."""

import json
import re
from dataclasses import replace

import pytest
import yaml
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlbook.cli import main
from rlbook.jsonl import read_jsonl
from rlbook.objectives import FIELD, METHODS, RatioClip, method_source
from rlbook.policy import load_policy
from rlbook.training import RunConfig, dump_config, load_config

SMALL = ["steps=2", "prompts=2", "group_size=2", "minibatches=1"]


def run(*words) -> None:
    main([str(word) for word in words])


def refusal(capsys, *words) -> str:
    """What a command that ends with an error prints."""
    with pytest.raises(SystemExit) as stopped:
        run(*words)
    assert stopped.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lr=1", "lr=2"], "optimizer.lr is given twice: 1 and 2"),
        (["lr=1", "optimizer.lr=2"], "optimizer.lr is given twice: 1 and 2"),
        (["stpes=5"], "no setting 'stpes', did you mean steps?: there are method, steps, "),
        (
            ["optimizer.lrr=1"],
            "optimizer: no setting 'lrr', did you mean lr?: there are lr, warmup",
        ),
        (["=3"], "write section.field=value"),
        (["method.trust_region.hi=0.3"], "high"),
        (["method=dappo"], "dapo"),
        (["one.yaml", "two.yaml"], "one settings file, not one.yaml, two.yaml"),
    ],
)
def test_a_word_that_cannot_be_obeyed_is_named(words, said, tmp_path, capsys):
    assert said in refusal(capsys, "train", *words, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_mistyped_setting_is_named_in_python_as_well():
    with pytest.raises(ValueError, match="no setting 'stpes', did you mean steps"):
        RunConfig(stpes=5)
    with pytest.raises(ValueError, match=r"did you mean rollout\.group_size"):
        RunConfig(group_sise=5)


def test_help_names_every_setting_with_its_default(capsys):
    with pytest.raises(SystemExit):
        run("train", "--help")
    text = capsys.readouterr().out
    assert "optimizer.lr=0.00015" in text and "method=grpo" in text
    assert "completions per prompt" in text


def test_an_ablation_from_the_shell_is_the_run_that_is_logged_and_saved(tmp_path):
    changes = ["method.trust-region.high=0.28", "method=grpo", "method.kl=null"]
    changes += ["method.aggregation=token_mean", "lr=3e-4"]
    run("train", *changes, *SMALL, "--out", tmp_path)
    config = load_config(tmp_path / "config.yaml")
    assert config.method.trust_region == RatioClip(0.2, 0.28)
    assert config.method.kl is None and config.method.aggregation == "token_mean"
    assert config.method.advantage is METHODS["grpo"].advantage
    assert config.optimizer.lr == 3e-4 and config.rollout.prompts == 2
    saved = json.loads((tmp_path / "step_000002" / "state.json").read_text())["config"]
    assert RunConfig(**saved) == config
    assert [row["step"] for row in read_jsonl(tmp_path / "metrics.jsonl")] == [1, 2]


def test_a_run_that_computes_whole_rows_says_why(tmp_path, capsys):
    tokenizer = load_policy("tiny")[1]
    run("train", *SMALL, "--out", tmp_path / "llama")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1}
    Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tokenizer), **sizes, **heads)).save_pretrained(
        tmp_path / "qwen"
    )
    tokenizer.save_pretrained(tmp_path / "qwen")
    assert "not a Llama" not in capsys.readouterr().out
    run("train", f"model.policy={tmp_path / 'qwen'}", *SMALL, "--out", tmp_path / "run")
    assert "Qwen2Model is not a Llama" in capsys.readouterr().out


def test_a_settings_file_is_the_start_and_words_change_it(tmp_path):
    settings = tmp_path / "run.yaml"
    settings.write_text(
        dump_config(RunConfig(method="maxrl", steps=1, prompts=2, group_size=2, minibatches=1))
    )
    run("train", settings, "group_size=3", "--out", tmp_path / "run")
    config = load_config(tmp_path / "run" / "config.yaml")
    assert config.method == METHODS["maxrl"] and config.rollout.group_size == 3


def test_a_file_written_by_hand_needs_no_sections(tmp_path):
    settings = tmp_path / "run.yaml"
    settings.write_text(yaml.safe_dump({"method": "rloo", "lr": 1e-4, "critic": {"lam": 0.9}}))
    config = load_config(settings)
    assert (config.optimizer.lr, config.critic.lam) == (1e-4, 0.9)


def test_a_run_is_never_overwritten(tmp_path, capsys):
    run("train", *SMALL, "--out", tmp_path)
    before = (tmp_path / "metrics.jsonl").read_text()
    message = refusal(capsys, "train", "method=rloo", *SMALL, "--out", tmp_path)
    assert "holds a run" in message and "--resume" in message
    assert (tmp_path / "metrics.jsonl").read_text() == before


def test_settings_beside_resume_are_honoured_or_refused(tmp_path, capsys):
    run("train", *SMALL, "--out", tmp_path)
    message = refusal(capsys, "train", "--resume", "lr=1e-3", "--out", tmp_path)
    assert "optimizer.lr" in message and "0.001" in message
    message = refusal(
        capsys, "train", "method.trust_region.high=0.3", "--resume", "--out", tmp_path
    )
    assert "method.trust_region.high" in message
    run("train", "--resume", "steps=3", "--out", tmp_path)
    assert [row["step"] for row in read_jsonl(tmp_path / "metrics.jsonl")] == [1, 2, 3]


def test_eval_measures_a_checkpoint_on_the_runs_own_task(tmp_path, capsys):
    run("train", *SMALL, "levels=[2,3]", "--out", tmp_path / "run")
    asked = ["evaluation.prompts=4", "samples=4", "--k", "1", "4", "--out", tmp_path / "row.json"]
    run("eval", tmp_path / "run" / "step_000002", *asked)
    row = json.loads((tmp_path / "row.json").read_text())
    assert 0 <= row["pass@1_low"] <= row["pass@1"] <= row["pass@1_high"] <= 1
    assert row["problems"] == 4 and "pass@2" not in row
    assert "pass@4" in capsys.readouterr().out


def test_methods_prints_the_table_and_a_row(capsys):
    run("methods")
    table = capsys.readouterr().out
    assert all(f"| {name} " in table for name in METHODS)
    run("methods", "--field")
    table = capsys.readouterr().out
    assert all(f"| {name} " in table for name in FIELD) and "| grpo " not in table
    run("methods", "dapo")
    assert "RatioClip(low=0.2, high=0.28)" in capsys.readouterr().out


def test_the_code_of_a_row_stands_in_the_order_of_a_step(capsys):
    run("methods", "dapo", "--source")
    code, order = capsys.readouterr().out, ["overlong_penalty", "PromptFilter", "group_normalize"]
    order += ["token_ratio", "RatioClip", "token_mean"]
    at = [re.search(rf"^(def|class) {name}\b", code, re.M).start() for name in order]
    assert at == sorted(at)
    assert all("# aggregation: " in method_source(name) for name in [*METHODS, *FIELD])
    changed = replace(METHODS["dapo"], reward_shaping="overlong_filter", entropy_bonus=0.01)
    code = method_source(changed)
    assert "def overlong_filter" in code and "def with_entropy_bonus" in code


def test_errors_name_the_thing(tmp_path, capsys):
    assert "dapo" in refusal(capsys, "methods", "dappo")
    assert "methods dapo --source" in refusal(capsys, "methods", "--source")
    bad = tmp_path / "bad.yaml"
    bad.write_text("optimizer: {lrr: 1}\n")
    message = refusal(capsys, "train", bad, "--out", tmp_path / "run")
    assert "optimizer: no setting 'lrr'" in message and "micro_batch_tokens" in message
    message = refusal(capsys, "train", "method.clip=1", "--out", tmp_path / "run")
    assert "clip" in message and "trust_region" in message
    assert not (tmp_path / "run").exists()
