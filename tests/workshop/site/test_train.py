""" "Train it here": gradients are the package's for every choice, and the stored film is a run."""

import json
import shutil
import subprocess
from dataclasses import replace
from functools import partial

import nbformat
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rlbook.objectives import METHODS, policy_loss
from rlbook.objectives import advantages as estimators
from rlbook.objectives.estimators import compute_advantages
from rlbook.objectives.specs import read
from rlbook.paths import ROOT, data_dir
from rlbook.policy import load_policy
from workshop.site import film, train
from workshop.site.build import weight
from workshop.site.weights import as_rows, rounded, write_weights

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
STATIC = ROOT / "workshop/site/static"
LIMIT = 64
PROMPTS = ("34--6-9", "5+5*8", "50-8+9")
GROUP = 4
RIGHT = (1, 0, 0, 0, 1, 1, 0, 1, 0, 0, 0, 0)  # the last group has no spread
GRADIENTS = """
import { readFileSync, writeFileSync } from "node:fs";
import { backward, forward } from "./backprop.js";
import { batchAdvantages, slopesOf } from "./learner.js";
import { Policy } from "./model.js";
const job = JSON.parse(readFileSync(0)), bytes = readFileSync(`models/${job.model}.bin`);
const shape = JSON.parse(readFileSync(`models/${job.model}.json`));
const buffer = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
const policy = new Policy(shape, buffer), pass = forward(policy, job.groups);
const silenced = [];
job.methods.forEach((method, place) => {
  const groups = job.groups.map((group) => ({ ...group, right: group.right.map(Boolean) }));
  const advantages = batchAdvantages(method, groups);
  let at = 0;
  groups.forEach((group, g) => {
    group.advantages = advantages[g];
    group.logps = group.answers.map(() => pass.logps[at++]);
  });
  const told = slopesOf(method, groups, job.limit), all = backward(policy, pass, told.slopes);
  silenced.push(told.silenced);
  const flat = Float64Array.from(shape.tensors.flatMap(([name]) => [...all.get(name)]));
  writeFileSync(`${place}.f64`, new Uint8Array(flat.buffer));
});
console.log(JSON.stringify({ logps: pass.logps, silenced, names: shape.tensors.map(([n]) => n) }));
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The scripts of the page with the model, as the site has them."""
    folder = tmp_path_factory.mktemp("scripts")
    for script in STATIC.glob("*.js"):
        shutil.copy(script, folder)
    (folder / "package.json").write_text('{"type": "module"}')
    train.write_scripts(folder)
    write_weights(data_dir() / train.MODEL, folder / "models")
    return folder


def choices():
    """Every row, and every advantage, mask and aggregation by itself on one row."""
    told = train.methods()
    rows = {key: row | told["masks"][row["mask"]] for key, row in told["rows"].items()}
    base = rows["grpo"] | {"advantage": "leave_one_out", "aggregation": "prompt_mean"}
    more = {f"advantage {name}": base | {"advantage": name} for name in told["advantages"]}
    more |= {f"mask {name}": base | mask for name, mask in told["masks"].items()}
    more |= {f"mean {name}": base | {"aggregation": name} for name in told["aggregations"]}
    return rows | more


def expected(choice, logp, old, mask, groups, rewards):
    """The package's loss of a choice; a row's own columns are asserted to be what the page has."""
    estimator = getattr(estimators, choice["advantage"].removesuffix("_raw"))
    if choice["advantage"].endswith("_raw"):
        estimator = partial(estimator, population="raw")
    method = replace(
        METHODS["rloo"], kl=None, advantage=estimator, ratio=choice["ratio"],
        trust_region=read("trust_region", choice["region"]), aggregation=choice["aggregation"],
        constant=LIMIT if choice["aggregation"] == "constant" else None,
    )  # fmt: skip
    low, high = choice["rewards"]
    given = {"rewards": low + (high - low) * rewards, "groups": groups, "lengths": mask.sum(1)}
    advantages = compute_advantages(estimator, **{k: given[k] for k in method.needs})
    return policy_loss(method, logp, old, advantages, mask, groups)


def test_gradients_are_the_packages_for_every_choice(folder):
    """Of all 86,464 weights, with old policies far enough away that masks silence tokens."""
    model, tokenizer = load_policy(train.MODEL)
    model = model.double()
    with torch.no_grad():  # the page's weights: integers times the scale of their row
        for name, tensor in load_file(data_dir() / train.MODEL / "model.safetensors").items():
            scales, integers = rounded(as_rows(tensor.numpy()), 2**15 - 1)
            seen = scales[:, None].astype(float) * integers
            model.get_parameter(name).copy_(torch.tensor(seen).view_as(tensor))
    prompts = [tokenizer(f"{text}=?").input_ids for text in PROMPTS]
    asked = [prompt for prompt in prompts for _ in range(GROUP)]
    chance = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, 14, (len(asked),), generator=chance)
    size = model.config.vocab_size
    answers = [torch.randint(3, size, (int(n),), generator=chance).tolist() for n in lengths]
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    logp = torch.zeros(mask.shape, dtype=torch.float64)
    for n, (prompt, answer) in enumerate(zip(asked, answers, strict=True)):
        every = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        mine = every.log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0]
        logp = logp.index_put((torch.tensor(n), torch.arange(len(answer))), mine)
    noise = 0.5 * torch.randn(mask.shape, generator=torch.Generator().manual_seed(0))
    old = torch.where(mask, (logp.detach() + noise).clamp(max=-1e-3), 0.0).double()
    ids = torch.arange(len(PROMPTS)).repeat_interleave(GROUP)
    told = choices()
    job = {
        "model": train.MODEL,
        "limit": LIMIT,
        "methods": list(told.values()),
        "groups": [
            {
                "prompt": prompt,
                "answers": answers[GROUP * g : GROUP * (g + 1)],
                "lengths": lengths[GROUP * g : GROUP * (g + 1)].tolist(),
                "old": [old[n, : lengths[n]].tolist() for n in range(GROUP * g, GROUP * (g + 1))],
                "right": RIGHT[GROUP * g : GROUP * (g + 1)],
            }
            for g, prompt in enumerate(prompts)
        ],
    }
    (folder / "gradients.js").write_text(GRADIENTS)
    done = subprocess.run(
        ["node", "gradients.js"], cwd=folder, input=json.dumps(job), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    flat = [each for answer in found["logps"] for each in answer]
    assert flat == pytest.approx(logp[mask].tolist(), abs=1e-4)  # angles are float32 in torch
    rewards = torch.tensor(RIGHT, dtype=torch.float64)
    weights = [model.get_parameter(name) for name in found["names"]]
    for place, (name, choice) in enumerate(told.items()):
        loss = expected(choice, logp, old, mask, ids, rewards)
        gradients = torch.autograd.grad(loss.loss, weights, retain_graph=True)
        wanted = torch.cat([gradient.flatten() for gradient in gradients])
        got = torch.from_numpy(np.fromfile(folder / f"{place}.f64"))
        error = torch.linalg.norm(got - wanted) / torch.linalg.norm(wanted)
        assert error < 1e-5, (name, float(error))
        assert float(torch.linalg.norm(wanted)) > 0, name
        assert found["silenced"][place] == int(loss.sums["masked_tokens"]), name
    silent = dict(zip(told, found["silenced"], strict=True))
    assert silent["mask none"] == 0
    assert all(silent[f"mask {name}"] > 0 for name in ("ppo", "dapo", "gspo"))


def test_a_row_is_what_the_table_has(folder):
    """Ratio, region, rewards and aggregation of each, and no row of the table is forgotten."""
    told = train.methods()
    for key, row in told["rows"].items():
        mask, method = told["masks"][row["mask"]], METHODS[key]
        assert read("trust_region", mask["region"]) == method.trust_region
        assert (mask["ratio"], row["aggregation"]) == (method.ratio, method.aggregation)
        assert tuple(row["rewards"]) == method.reward_values
    left = METHODS.keys() - told["rows"].keys()
    assert left == {
        "reinforce_ema", "ppo", "remax", "reinforce_plus_plus", "gmpo", "sapo", "opd"
    }  # fmt: skip
    given = json.loads((folder / "train.json").read_text())["problems"]
    assert not {*given["train"]} & {*given["held"], train.SHOWN} and len(given["train"]) > 300


def test_the_film_is_what_the_scripts_do():
    """Before training, where another CPU cannot part a run from the one that was stored."""
    stored = json.loads(film.FILM.read_text())
    pairs = [rows for rows, _ in train.PLACES.values()]
    assert {row for pair in pairs for row in pair} == stored.keys()
    (first,) = film.recorded("grpo", [0])
    for frames in stored.values():
        assert [frame["step"] for frame in frames] == list(film.FRAMES)
        assert frames[0]["accuracy"] == pytest.approx(first["accuracy"], abs=0.03)
        assert frames[-1]["accuracy"] > first["accuracy"]  # it learns
    shown = film.strip(pairs[0])
    assert shown.count("<circle") == 2 * 8 * len(film.FRAMES) and "after 80 steps" in shown


def test_it_stands_before_the_section_that_is_named():
    for place in train.PLACES.keys() - {"index"}:
        notebook = nbformat.read(ROOT / f"chapters/{place}.ipynb", as_version=4)
        count = len(notebook.cells)
        made = film.with_training(notebook, place)
        assert len(made.cells) == count + 1 and "data-train" in str(made.cells)
    with pytest.raises(ValueError, match="05_grpo: no section"):
        film.with_training(nbformat.v4.new_notebook(), "05_grpo")


def test_the_scripts_are_light(folder):
    """All that "Train it here" asks for besides the weights, compressed: at most 60 kB."""
    names = ("train.js", "train-worker.js", "learner.js", "backprop.js", "model.js", "verdict.js")
    assert sum(weight(folder / name) for name in (*names, "numbers.js", "train.json")) < 60_000
