"""Other trainers' own code, in one process and without a GPU: `make interop` installs them.

They import Ray, vLLM and more at the top of their modules, which settings and losses do not need:
whatever of these is missing is stood in for by an empty module.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import types
from types import SimpleNamespace

import pytest

ABSENT = "cachetools cloudpathlib func_timeout megatron peft pylatexenc ray requests sglang"
ABSENT = {*ABSENT.split(), "tensorboard", "transfer_queue", "vllm", "wandb"}


class Nothing(types.ModuleType):
    """A module in which every name is a class whose objects are false."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda *_, **__: None, "__bool__": lambda _: False})


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Nothing(spec.name)

    def exec_module(self, module):
        pass


def needed(name):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed here: make interop")


@pytest.fixture(scope="session")
def trl():
    """TRL, which must look for vLLM before there is a stand-in."""
    needed("trl")
    from trl import GRPOConfig, GRPOTrainer

    return SimpleNamespace(GRPOConfig=GRPOConfig, GRPOTrainer=GRPOTrainer)


@pytest.fixture(scope="session")
def stand_ins(trl):
    sys.meta_path.append(Absent())  # last: what is installed is taken


@pytest.fixture(scope="session")
def verl(stand_ins):
    needed("verl")
    from hydra import compose, initialize_config_dir
    from verl.trainer.ppo import core_algos
    from verl.utils.config import omega_conf_to_dataclass

    folder = os.path.join(importlib.util.find_spec("verl").submodule_search_locations[0])

    def parse(settings):
        """A run's settings as Hydra reads them from the command line; an unknown one is refused."""
        words = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
        with initialize_config_dir(os.path.join(folder, "trainer/config"), version_base=None):
            return compose("ppo_trainer", overrides=words)

    return SimpleNamespace(core=core_algos, parse=parse, typed=omega_conf_to_dataclass)


@pytest.fixture(scope="session")
def skyrl(stand_ins):
    needed("skyrl")
    import skyrl as package

    backends = types.ModuleType("skyrl.backends")  # its own imports a server
    backends.__path__ = [os.path.join(package.__path__[0], "backends")]
    sys.modules["skyrl.backends"] = backends
    for name in ("inference_servers", "inference_servers.utils"):  # they patch vLLM
        name = f"skyrl.backends.skyrl_train.{name}"
        sys.modules[name] = Nothing(name)
    from skyrl.backends.skyrl_train.utils import ppo_utils
    from skyrl.train.config import SkyRLTrainConfig

    return SimpleNamespace(core=ppo_utils, parse=SkyRLTrainConfig.from_cli_overrides)
