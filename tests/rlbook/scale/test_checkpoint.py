"""Sharded checkpoints, written by one rank; by several in test_ranks."""

import json
import signal
import subprocess
import sys
import threading
from copy import deepcopy

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from rlbook.durable import checksums, write_json
from rlbook.paths import data_dir
from rlbook.policy import load_policy, load_tokenizer
from rlbook.scale.config import TrainConfig
from rlbook.scale.layout import Layout
from rlbook.scale.train import checkpoint
from rlbook.scale.train.checkpoint import OFFSETS, PLACES, Checkpoints
from rlbook.scale.train.parallel import Ranks, shard
from rlbook.training import RunConfig, Trainer
from rlbook.training.checkpoint import export, step_folders

TINY = LlamaConfig.from_pretrained(data_dir() / "tiny-sums")


@pytest.fixture(scope="module")
def ranks():
    yield Ranks("cpu")
    dist.destroy_process_group()


class Training:
    """A sharded policy with AdamW; `step` makes an arbitrary update."""

    def __init__(self, ranks, seed=0, model=None):
        torch.manual_seed(seed)
        self.policy = (model or LlamaForCausalLM(TINY)).eval()
        kind, config = type(self.policy), self.policy.config
        self.fresh = lambda: kind(config).eval()
        shard(self.policy, ranks.mesh, TrainConfig())
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=1e-2)

    def step(self):
        for i, parameter in enumerate(self.policy.parameters()):
            parameter.grad = (parameter + i).detach()
        self.optimizer.step()

    def tensors(self):
        found = {}
        for name, parameter in self.policy.named_parameters():
            found[name] = parameter.full_tensor().detach().clone()
            for kind, value in self.optimizer.state.get(parameter, {}).items():
                full = value.full_tensor() if hasattr(value, "full_tensor") else value
                found[f"{kind} of {name}"] = full.clone()
        return found


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


@pytest.fixture
def training(ranks):
    return Training(ranks)


@pytest.fixture
def checkpoints(ranks, tmp_path):
    return Checkpoints(Layout(tmp_path), ranks)


def save(checkpoints, training, step, **orchestrator):
    policy = (training.policy, load_tokenizer())
    state = {"step": step, "estimator": {"mean": 0.5}, "dtype": "bfloat16"}
    checkpoints.begin(policy, training.optimizer, state, {"step": step - 1, **orchestrator})
    return checkpoints.settle()


def test_what_was_saved_comes_back_bit_for_bit(checkpoints, training, ranks):
    training.step()
    training.step()
    assert save(checkpoints, training, 2, tickets=7)
    expected = training.tensors()
    training.step()
    other = Training(ranks, seed=5)
    state = checkpoints.load(other.policy, other.optimizer)
    assert state == {"step": 2, "estimator": {"mean": 0.5}, "dtype": "bfloat16", "ranks": 1}
    assert same(other.tensors(), expected)
    assert len(expected) == 4 * len(list(training.policy.parameters()))
    other.step()
    assert same(other.tensors(), training.tensors())


def test_there_is_nothing_but_safetensors_and_json(checkpoints, training, tmp_path):
    """And the weights are there once."""
    training.step()
    save(checkpoints, training, 12, tickets=7)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step_000012"]
    folder = tmp_path / "step_000012"
    files = {p.name for p in folder.iterdir()}
    assert {"orchestrator.json", "rank_00000.safetensors", "state.json", "config.json"} < files
    assert {p.suffix for p in folder.iterdir()} == {".json", ".safetensors"}
    assert json.loads((folder / "orchestrator.json").read_text())["tickets"] == 7
    weights, own = (load_file(folder / f"{f}.safetensors") for f in ("model", "rank_00000"))
    names = [name for name, _ in training.policy.named_parameters()]
    assert sorted(weights) == sorted(names)
    kinds = ("exp_avg", "exp_avg_sq", "step")
    assert own.keys() == {f"{kind}.{name}" for kind in kinds for name in names}


def test_a_run_without_checkpoints_starts_anew(checkpoints, training):
    assert checkpoints.load(training.policy, training.optimizer) is None


def split(folder, parts, places=True):
    """What `parts` ranks would have written, by torch's own chunking."""
    whole = load_file(folder / "rank_00000.safetensors")
    for rank in range(parts):
        own, where = {}, {}
        for name, tensor in whole.items():
            chunks = tensor.chunk(parts) if tensor.ndim else [tensor]
            if rank < len(chunks):
                first = rank * len(chunks[0]) if tensor.ndim else 0
                own[name] = chunks[rank].clone()
                where[name] = {OFFSETS: [first, *[0] * (tensor.ndim - 1)][: tensor.ndim]}
        metadata = {PLACES: json.dumps(where)} if places else None
        save_file(own, folder / f"rank_{rank:05d}.safetensors", metadata)
    state = json.loads((folder / "state.json").read_text())
    write_json(folder / "state.json", state | {"ranks": parts})
    write_json(folder / checkpoint.CHECKSUMS, checksums(folder))


@pytest.mark.parametrize("parts", [2, 3, 7])
def test_another_number_of_ranks_reads_the_same(parts, checkpoints, training, ranks, tmp_path):
    training.step()
    save(checkpoints, training, 1)
    split(tmp_path / "step_000001", parts)
    other = Training(ranks, seed=5)
    checkpoints.load(other.policy, other.optimizer)
    assert same(other.tensors(), training.tensors())


def test_the_format_before_is_read_or_refused(checkpoints, training, ranks, tmp_path):
    """One rank's files said everything; several ranks' did not say where their rows begin."""
    training.step()
    save(checkpoints, training, 1)
    folder, other = tmp_path / "step_000001", Training(ranks, seed=5)
    split(folder, 1, places=False)
    file = folder / "rank_00000.safetensors"
    save_file(load_file(file) | {"rng": torch.get_rng_state()}, file)  # nobody has a use for it
    write_json(folder / checkpoint.CHECKSUMS, checksums(folder))
    checkpoints.load(other.policy, other.optimizer)
    assert same(other.tensors(), training.tensors())
    split(folder, 2, places=False)
    with pytest.raises(ValueError, match=r"another model: Size mismatch .* for exp_avg"):
        checkpoints.load(other.policy, other.optimizer)


def test_a_checkpoint_of_before_the_first_update_has_no_moments(checkpoints, training, ranks):
    save(checkpoints, training, 0)
    other = Training(ranks, seed=5)
    assert checkpoints.load(other.policy, other.optimizer)["step"] == 0
    assert not other.optimizer.state and same(other.tensors(), training.tensors())
    other.step()
    training.step()
    assert same(other.tensors(), training.tensors())


WRITERS = ["save_file", "save_torch_state_dict", "write_json", "point_latest"]


@pytest.mark.parametrize("broken", [*WRITERS, "sync_to_disk", "publish_folder"])
def test_a_full_disk_leaves_the_checkpoint_before(
    broken, checkpoints, training, ranks, tmp_path, monkeypatch
):
    training.step()
    save(checkpoints, training, 1)
    expected = training.tensors()
    training.step()

    def full(*arguments, **named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, broken, full)
    with pytest.warns(RuntimeWarning, match="checkpoint 2 is not written.*No space left"):
        assert not save(checkpoints, training, 2)
    monkeypatch.undo()
    assert not list(tmp_path.glob(".*"))
    other = Training(ranks, seed=5)
    assert checkpoints.load(other.policy, other.optimizer)["step"] == 1
    assert same(other.tensors(), expected)
    assert save(checkpoints, training, 3)
    assert checkpoints.load(other.policy, other.optimizer)["step"] == 3


@pytest.mark.parametrize("broken", WRITERS)
def test_a_process_killed_while_saving_leaves_the_checkpoint_before(
    broken, checkpoints, training, tmp_path, monkeypatch
):
    class Killed(BaseException):
        pass

    def kill(*arguments, **named):
        raise Killed

    save(checkpoints, training, 1)
    monkeypatch.setattr(checkpoint, broken, kill)
    with pytest.raises(Killed):
        save(checkpoints, training, 2)
    monkeypatch.undo()
    successor = Checkpoints(Layout(tmp_path), checkpoints.ranks)
    assert successor.load(training.policy, training.optimizer)["step"] == 1
    assert save(successor, training, 2)
    assert successor.load(training.policy, training.optimizer)["step"] == 2


def test_the_newest_are_kept(ranks, training, tmp_path):
    checkpoints = Checkpoints(Layout(tmp_path), ranks, keep=2)
    for step in (5, 10, 15, 20):
        save(checkpoints, training, step)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["latest", "step_000015", "step_000020"]


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("harm", [truncate, flip, lambda path: path.unlink()])
@pytest.mark.parametrize(
    "name", ["model.safetensors", "rank_00000.safetensors", "state.json", "orchestrator.json"]
)
def test_a_damaged_checkpoint_is_set_aside_for_the_one_before(
    checkpoints, training, ranks, tmp_path, harm, name
):
    save(checkpoints, training, 1)
    before = training.tensors()
    training.step()
    save(checkpoints, training, 2)
    harm(tmp_path / "step_000002" / name)
    later = Training(ranks, seed=1)
    with pytest.warns(RuntimeWarning, match=rf"step_000002 is damaged .*{name}.* set aside"):
        assert checkpoints.load(later.policy, later.optimizer)["step"] == 1
    found = {key: value for key, value in later.tensors().items() if key in before}
    assert same(found, before)
    assert (tmp_path / "latest").read_text() == "step_000001\n"
    assert step_folders(tmp_path) == [tmp_path / "step_000001"]
    save(checkpoints, training, 2)
    assert checkpoints.load(later.policy, later.optimizer)["step"] == 2


@pytest.mark.parametrize("harm", [truncate, flip, lambda path: path.unlink()])
def test_a_damaged_share_of_another_rank_is_named_and_set_aside(
    checkpoints, training, ranks, tmp_path, harm
):
    """Two ranks wrote; whoever goes on looks at both shares, though it has no need of one's RNG."""
    for step in (1, 2):
        training.step()
        save(checkpoints, training, step)
        split(tmp_path / f"step_00000{step}", 2)
        if step == 1:
            before = training.tensors()
    harm(tmp_path / "step_000002" / "rank_00001.safetensors")
    later = Training(ranks, seed=1)
    with pytest.warns(RuntimeWarning) as warned:
        assert checkpoints.load(later.policy, later.optimizer)["step"] == 1
    (said,) = [str(warning.message) for warning in warned]
    assert "step_000002 is damaged (changed or missing: rank_00001.safetensors) and set" in said
    assert same(later.tensors(), before)
    assert (tmp_path / "step_000002.damaged").is_dir()
    assert step_folders(tmp_path) == [tmp_path / "step_000001"]


def test_without_an_intact_checkpoint_nothing_is_started_over(checkpoints, training, tmp_path):
    for step in (1, 2):
        save(checkpoints, training, step)
        truncate(tmp_path / f"step_00000{step}" / "model.safetensors")
    with (
        pytest.warns(RuntimeWarning, match="damaged"),
        pytest.raises(ValueError, match=r"no checkpoint is intact \(step_000002: .*step_000001: "),
    ):
        checkpoints.load(training.policy, training.optimizer)
    with pytest.raises(ValueError, match=r"no checkpoint is intact \(.* set aside as \.damaged"):
        checkpoints.load(training.policy, training.optimizer)  # when it is started once more


def test_a_checkpoint_of_another_model_is_named(checkpoints, training, ranks):
    save(checkpoints, training, 1)
    config = deepcopy(TINY)
    config.hidden_size = 64
    other = Training(ranks, model=LlamaForCausalLM(config))
    with pytest.raises(ValueError, match=r"of another model: Size mismatch .* for \S+\.weight"):
        checkpoints.load(other.policy, other.optimizer)
    config.num_hidden_layers, config.hidden_size = 4, 128
    other = Training(ranks, model=LlamaForCausalLM(config))
    with pytest.raises(ValueError, match=r"of another model: Missing key .*model\.layers\.3\."):
        checkpoints.load(other.policy, other.optimizer)


# As policies


@pytest.fixture
def tied(ranks):
    torch.manual_seed(0)
    shape = TINY.to_dict() | {"tie_word_embeddings": True}
    return Training(ranks, model=LlamaForCausalLM(LlamaConfig(**shape)))


@pytest.mark.parametrize("kind", ["training", "tied"])
@pytest.mark.parametrize("limit", [checkpoint.FILE_BYTES, 300_000])
def test_a_checkpoint_is_a_policy(kind, limit, request, checkpoints, ranks, tmp_path, monkeypatch):
    """In one file of weights or in many; a tied head is stored once."""
    monkeypatch.setattr(checkpoint, "FILE_BYTES", limit)
    training = request.getfixturevalue(kind)
    training.step()
    save(checkpoints, training, 1)
    trained = training.tensors()
    files = list((tmp_path / "step_000001").glob("model*.safetensors"))
    assert (len(files) > 3) == (limit == 300_000)
    stored = [name for file in files for name in load_file(file)]
    assert sorted(stored) == sorted(name for name, _ in training.policy.named_parameters())
    for folder in (tmp_path, tmp_path / "step_000001"):
        model, tokenizer = load_policy(str(folder))
        assert model.config.tie_word_embeddings is (kind == "tied")
        assert model.config.architectures == ["LlamaForCausalLM"]
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, trained[name])
        assert tokenizer("1+2=?").input_ids == load_tokenizer()("1+2=?").input_ids
    other = Training(ranks, model=training.fresh())
    checkpoints.load(other.policy, other.optimizer)
    assert same(other.tensors(), trained)


def begin(checkpoints, training, step):
    state = {"step": step, "estimator": {}, "dtype": "float32"}
    checkpoints.begin((training.policy, load_tokenizer()), training.optimizer, state, {})


def test_training_goes_on_while_a_checkpoint_is_written(
    checkpoints, training, ranks, tmp_path, monkeypatch
):
    """What is written are the weights of its step, not those of the update meanwhile."""
    training.step()
    save(checkpoints, training, 1)
    training.step()
    expected, original, free = training.tensors(), checkpoint.save_file, threading.Event()

    def slow(*arguments):
        assert free.wait(120)
        original(*arguments)

    monkeypatch.setattr(checkpoint, "save_file", slow)
    begin(checkpoints, training, 2)
    assert not checkpoints.written.done()
    training.step()
    assert (tmp_path / "latest").read_text() == "step_000001\n"
    with monkeypatch.context() as patch:  # state_dict() would scatter what an update has gathered
        patch.setattr(training.policy, "state_dict", None)
        free.set()
        assert checkpoints.settle()
    assert (tmp_path / "latest").read_text() == "step_000002\n"
    other = Training(ranks, seed=5)
    assert checkpoints.load(other.policy, other.optimizer)["step"] == 2
    assert same(other.tensors(), expected)


def test_whoever_waits_for_a_slow_disk_is_alive(checkpoints, training, monkeypatch):
    original, free, beats = checkpoint.save_file, threading.Event(), []

    def slow(*arguments):
        assert free.wait(120)
        original(*arguments)

    def alive():
        beats.append("")
        if len(beats) == 3:
            free.set()

    monkeypatch.setattr(checkpoint, "save_file", slow)
    begin(checkpoints, training, 1)
    monkeypatch.setattr(checkpoints.ranks, "alive", alive)
    assert checkpoints.settle() and len(beats) >= 3


KILLED = """
import copy
import os, sys
from pathlib import Path
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from rlbook.paths import data_dir
from rlbook.policy import load_tokenizer
from rlbook.scale.config import TrainConfig
from rlbook.scale.layout import Layout
from rlbook.scale.train import checkpoint
from rlbook.scale.train.parallel import Ranks, shard

TINY = LlamaConfig.from_pretrained(data_dir() / "tiny-sums")
original = checkpoint.save_file
ranks, policy = Ranks(), LlamaForCausalLM(TINY).eval()
shard(policy, ranks.mesh, TrainConfig())
optimizer = torch.optim.AdamW(policy.parameters())
checkpoints = checkpoint.Checkpoints(Layout(Path(sys.argv[1])), ranks)
checkpoints.begin((policy, load_tokenizer()), optimizer, {"step": 1}, {})
assert checkpoints.settle()

def die_halfway(tensors, file, *rest):
    original(tensors, file, *rest)
    os.truncate(file, file.stat().st_size // 2)
    os.kill(os.getpid(), 9)

checkpoint.save_file = die_halfway
checkpoints.begin((policy, load_tokenizer()), optimizer, {"step": 2}, {})
checkpoints.settle()
"""


@pytest.mark.slow
def test_a_kill_in_the_middle_of_writing_leaves_the_checkpoint_before(
    tmp_path, checkpoints, training
):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], timeout=300)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / ".step_000002.partial").is_dir()
    assert checkpoints.load(training.policy, training.optimizer)["step"] == 1
    assert save(checkpoints, training, 2) and not list(tmp_path.glob(".*"))


def test_a_run_is_exported_without_its_state(checkpoints, training, tmp_path):
    run, target = tmp_path, tmp_path / "exported"
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        export(run, target)
    training.step()
    save(checkpoints, training, 1)
    assert export(run, target) == target
    assert not [file for file in target.iterdir() if file.name.startswith(("rank", "state"))]
    exported = AutoModelForCausalLM.from_pretrained(target)
    assert exported.dtype == torch.bfloat16  # as it was trained, says the checkpoint
    for name, parameter in exported.named_parameters():
        assert torch.equal(parameter, training.tensors()[name].bfloat16())
    assert load_tokenizer(str(target))("1+2=?").input_ids == load_tokenizer()("1+2=?").input_ids
    with pytest.raises(FileExistsError, match="nothing is overwritten"):
        export(run, target)
    export(run / "step_000001", tmp_path / "exact", torch.float32)
    exact = AutoModelForCausalLM.from_pretrained(tmp_path / "exact")
    assert all(torch.equal(p, training.tensors()[n]) for n, p in exact.named_parameters())


def test_a_run_on_one_process_is_exported_too(tmp_path):
    torch.manual_seed(0)
    policy = (LlamaForCausalLM(TINY).eval(), load_tokenizer())
    trainer = Trainer(RunConfig(steps=1, minibatches=1, prompts=2, group_size=2), policy=policy)
    trainer.save(tmp_path / "run")
    export(tmp_path / "run", tmp_path / "exported")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    assert exported.dtype == torch.float32
    for name, parameter in exported.named_parameters():
        assert torch.equal(parameter, policy[0].get_parameter(name))
