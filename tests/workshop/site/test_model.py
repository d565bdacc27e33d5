"""The model of the page: the network that torch runs, in JavaScript and from weights in 16 bits."""

import json
import shutil
import subprocess

import pytest
import torch

from rlbook.paths import ROOT, data_dir
from rlbook.policy import load_policy, sample
from rlbook.tasks import get_task
from workshop.site.weights import BASES, MODELS, write_weights

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")

# Reads a job {folder, model, texts: [[id, ...], ...], prompts: length of each prompt}; prints log π
# of every token after the prompt, and what one answer written seven times over has to say.
SCORE = """
import { readFileSync } from "node:fs";
import { Policy, draw, logSoftmax } from "MODULE";
const job = JSON.parse(readFileSync(0));
const opened = (name) => {
  const bytes = readFileSync(`${job.folder}/${name}.bin`);
  const buffer = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
  const shape = JSON.parse(readFileSync(`${job.folder}/${name}.json`));
  return new Policy(shape, buffer, shape.base && opened(shape.base));
};
const policy = opened(job.model);
const logps = job.texts.map((ids, n) => {
  const run = policy.start("", 1), found = [];
  ids.slice(1).forEach((id, t) => {
    if (t + 1 >= job.prompts[n]) found.push(run.logp(0)[id]);
    run.step([id]);
  });
  return found;
});
const run = policy.start(job.text, 7), seen = [];
for (const id of policy.encode(job.ending).slice(1)) {
  seen.push([...Array(7).keys()].map((row) => run.logp(row)[id]));
  run.step(Array(7).fill(id));
}
const fair = logSoftmax([0, Math.log(3)]);
console.log(JSON.stringify({
  logps, seen, decoded: policy.decode(policy.encode(job.text)),
  drawn: [0, 0.24, 0.26, 0.999999].map((u) => draw(fair, u)),
}));
"""


def ran(program: str, job: dict) -> dict:
    script = program.replace("MODULE", (ROOT / "workshop/site/static/model.js").as_uri())
    command = ["node", "--input-type=module", "-e", script]
    done = subprocess.run(command, input=json.dumps(job), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", MODELS)
def test_log_probabilities_are_torchs(name, tmp_path):
    """A hundred completions, token by token, within 2e-3 nats."""
    for written in filter(None, (name, BASES.get(name))):
        write_weights(data_dir() / written, tmp_path)
    model, tokenizer = load_policy(str(data_dir() / name))
    task = get_task("habits" if "habits" in name else "sums")
    problems = task.sample(seed=5, n=100)
    asked = [tokenizer(problem.prompt).input_ids for problem in problems]
    written = sample(model, asked, max_new_tokens=60, eos_id=tokenizer.eos_token_id, seed=1)
    text, ending = "4+5-3=?", "<think>4+5=9;"
    found = ran(
        SCORE,
        {
            "folder": str(tmp_path),
            "model": name,
            "texts": [ids + answer.token_ids for ids, answer in zip(asked, written, strict=True)],
            "prompts": [len(ids) for ids in asked],
            "text": text,
            "ending": ending,
        },
    )
    pairs = zip(found["logps"], (answer.logps for answer in written), strict=True)
    gaps = [abs(a - b) for got, wanted in pairs for a, b in zip(got, wanted, strict=True)]
    assert len(gaps) > 1000
    assert max(gaps) < 2e-3
    # seven answers side by side (four in one go, three after them) are one answer seven times
    assert max(max(row) - min(row) for row in found["seen"]) < 1e-4
    assert found["decoded"] == f"<bos>{text}"
    assert found["drawn"] == [0, 0, 1, 1]


# Writes what a step on some answers makes of log π of their tokens, for the answers' advantages.
LEARN = """
import { readFileSync } from "node:fs";
import { Policy } from "MODULE";
const job = JSON.parse(readFileSync(0));
const bytes = readFileSync(`${job.folder}/${job.model}.bin`);
const buffer = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
const policy = new Policy(JSON.parse(readFileSync(`${job.folder}/${job.model}.json`)), buffer);
const read = (text, from) => {
  const run = policy.start("", 1), steps = [];
  text.slice(1).forEach((id, t) => {
    if (t + 1 >= from) steps.push({ logp: run.logp(0, job.temperature), id, hidden: run.state(0) });
    run.step([id]);
  });
  return steps;
};
const told = job.texts.map((text, n) => {
  return { steps: read(text, job.from), advantage: job.advantages[n] };
});
const before = [...policy.head];
policy.learn(told, job.rate, job.temperature);
const change = [...policy.head].map((weight, at) => weight - before[at]);
policy.forget();
const back = [...policy.head].every((weight, at) => weight === before[at]);
console.log(JSON.stringify({ change, back, lessons: policy.lessons }));
"""


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_step_on_the_last_layer_is_torchs(temperature, tmp_path):
    """The change of the weights is minus the rate times autograd's gradient of REINFORCE's loss."""
    write_weights(data_dir() / "tiny-sums", tmp_path)
    model, tokenizer = load_policy(str(data_dir() / "tiny-sums"))
    prompt = tokenizer("37+8-5+9=?").input_ids
    answers = sample(model, [prompt] * 6, max_new_tokens=40, eos_id=tokenizer.eos_token_id, seed=2)
    advantages = [0.5, -0.5, 0.25, -0.25, 0.75, -0.75]
    loss = 0
    for answer, advantage in zip(answers, advantages, strict=True):
        ids = torch.tensor([prompt + answer.token_ids])
        logp = (model(ids).logits / temperature).log_softmax(-1)[0, len(prompt) - 1 : -1]
        loss -= advantage * logp.gather(-1, ids[0, len(prompt) :, None]).sum() / len(answers)
    (gradient,) = torch.autograd.grad(loss, model.lm_head.weight)
    found = ran(
        LEARN,
        {
            "folder": str(tmp_path),
            "model": "tiny-sums",
            "texts": [prompt + answer.token_ids for answer in answers],
            "from": len(prompt),
            "advantages": advantages,
            "rate": 0.02,
            "temperature": temperature,
        },
    )
    change = torch.tensor(found["change"]).view_as(gradient)
    assert torch.linalg.norm(change + 0.02 * gradient) < 1e-2 * torch.linalg.norm(change)
    assert found["back"] and found["lessons"] == 0


def test_a_model_that_the_page_cannot_run_is_refused(tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    config = json.loads((data_dir() / "tiny-sums/config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    with pytest.raises(ValueError, match="cannot run other: tie_word_embeddings=True"):
        write_weights(folder, tmp_path)
