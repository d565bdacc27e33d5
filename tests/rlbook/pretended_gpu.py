"""A GPU that is not there: tensors are marked as being on `cuda:0`, their numbers stay where they
are, and what a GPU would refuse is refused.

Asked for `.device`, a marked tensor answers `cuda:0`; an operation on tensors of both places is an
error. Sharded tensors are looked into, FSDP gets streams that do nothing, and fused optimizers read
all of their lists on the device, scalars too: a step count on the CPU, where a GPU would follow a
host's address, is an error here. `Marks.peak` is the memory that is alive there at once.

What cannot be seen this way: streams, kernels' own numbers, what waits in NCCL, fragmentation.
"""

import sys
import time
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from unittest.mock import patch

import torch
import torch.distributed.fsdp
import torch.utils.checkpoint
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.utils import clip_grad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

DEVICE, HOST = torch.device("cuda", 0), torch.device("cpu")
aten = torch.ops.aten
MOVES = {aten._to_copy.default, aten.copy_.default}
# An index into a tensor of a GPU may lie on the CPU.
INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}
INDEXED |= {aten._index_put_impl_.default}
TRAFFIC = {"c10d", "_c10d_functional"}
FUSED = ("aten::_fused_adam", "aten::_fused_sgd")
# Products with operands of lower precision and float32 results: CUDA alone has kernels for them.
EMULATED = {
    aten.mm.dtype_out: lambda a, b, dtype, *, out: out.copy_(a.to(dtype) @ b.to(dtype)),
    aten.addmm.dtype_out: lambda c, a, b, dtype, *, out: out.copy_(c + a.to(dtype) @ b.to(dtype)),
}
FSDP = "torch.distributed.fsdp._fully_shard."


def tensors_in(tree):
    """The plain tensors in nested containers; of a sharded one, the part that is here."""
    if isinstance(tree, Tensor):
        if not is_traceable_wrapper_subclass(tree):
            return [tree]
        tree = [getattr(tree, name) for name in tree.__tensor_flatten__()[0]]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, tuple | list):
        return []
    return [tensor for branch in tree for tensor in tensors_in(branch)]


class Marks:
    """The storages that are on the pretended device.

    They are referred to weakly: the address of one that is freed is not given to another, but its
    bytes no longer count.
    """

    def __init__(self):
        self.storages, self.peak, self.metered, self.sent = {}, 0, False, False

    def has(self, tensor):
        return any(one.untyped_storage()._cdata in self.storages for one in tensors_in(tensor))

    def put(self, result):
        """Mark what an operation has made there, or what has been copied there."""
        for tensor in tensors_in(result):
            storage = tensor.untyped_storage()
            if storage._cdata not in self.storages:
                self.storages[storage._cdata] = StorageWeakRef(storage)
        if self.metered and (held := self.bytes()) > self.peak:
            self.peak = max(self.peak, self.settled() if self.sent else held)
        return result

    def take(self, result):
        """Unmark what has been copied away."""
        for tensor in tensors_in(result):
            self.storages.pop(tensor.untyped_storage()._cdata, None)
        return result

    def bytes(self):
        """Alive on the device; storages that were resized to nothing hold none.

        Whoever is gone is forgotten, and only now may another have its address.
        """
        held = 0
        for address, reference in list(self.storages.items()):
            storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
            if storage is None:
                self.storages.pop(address)
            else:
                held += storage.nbytes()
        return held

    def settled(self):
        """Bytes, once gloo's thread has had the time to let go of what it sent: it does so last."""
        self.sent = False
        deadline = time.monotonic() + 0.1
        while (held := self.bytes()) > self.peak and time.monotonic() < deadline:
            time.sleep(0.002)
        return held

    @contextmanager
    def meter(self):
        """Inside, `peak` follows the bytes alive."""
        self.peak, self.metered = self.bytes(), True
        yield self
        self.metered = False


def is_there(device):
    return device is not None and torch.device(device).type == DEVICE.type


class Calls(TorchFunctionMode):
    """What Python asks: on which device a tensor is, and to make or to move one there."""

    def __init__(self, marks):
        super().__init__()
        self.marks = marks

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function == Tensor.device.__get__:
            return DEVICE if self.marks.has(args[0]) else function(*args)
        if function == Tensor.is_cuda.__get__:
            return self.marks.has(args[0])
        if function in (Tensor.to, Tensor.cpu, Tensor.cuda):
            return self.moved(function, args, kwargs)
        if function is Tensor.numpy and self.marks.has(args[0]):
            raise TypeError("can't convert a cuda:0 tensor to numpy")
        if function is Tensor.__deepcopy__:
            copied = function(*args, **kwargs)
            return self.marks.put(copied) if self.marks.has(args[0]) else copied
        if is_there(kwargs.get("device")):
            return self.marks.put(function(*args, **kwargs | {"device": HOST}))
        return function(*args, **kwargs)

    def moved(self, function, args, kwargs):
        tensor, *how = args
        there = self.marks.has(tensor)
        target = DEVICE if there else HOST
        if function is not Tensor.to:
            target, how = (HOST if function is Tensor.cpu else DEVICE), []
        rest = {k: v for k, v in kwargs.items() if k not in ("device", "other", "non_blocking")}
        for asked in (*how, kwargs.get("device"), kwargs.get("other")):
            if isinstance(asked, Tensor):
                target = DEVICE if self.marks.has(asked) else HOST
                rest["dtype"] = asked.dtype
            elif isinstance(asked, torch.dtype):
                rest["dtype"] = asked
            elif isinstance(asked, str | torch.device):
                target = torch.device(asked)
        if target.type == "meta":
            return function(*args, **kwargs)
        result = tensor.to(**rest) if rest else tensor
        if is_there(target) == there:
            return self.marks.put(result) if there else result
        if is_there(target):
            return self.marks.put(result.clone() if result is tensor else result)
        if is_traceable_wrapper_subclass(result):
            return self.marks.take(result.clone())
        with torch._C._DisableTorchDispatch():
            return result.clone()


class Operations(TorchDispatchMode):
    """What is computed: the result is where the arguments are, and they are in one place."""

    def __init__(self, marks):
        super().__init__()
        self.marks = marks

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # its own dispatch comes back with the part that is here
        kwargs = kwargs or {}
        self.marks.sent |= function.namespace in TRAFFIC
        fused = function._schema.name.startswith(FUSED)
        indexed = function in INDEXED and self.marks.has(args[0])
        given = tensors_in((args, kwargs))
        there = [tensor for tensor in given if self.marks.has(tensor)]
        judged = tensors_in(args[2:]) if indexed else given
        here = [t for t in judged if not self.marks.has(t) and (fused or t.ndim > 0)]
        if there and here and function not in MOVES:
            raise RuntimeError(
                f"{function}: tensors on cuda:0 and cpu, {[tuple(t.shape) for t in here]} of these"
            )
        result = EMULATED.get(function, function)(*args, **kwargs)
        return self.marks.put(result) if there and function is not aten.copy_.default else result


def without_streams(stack):
    """FSDP takes its streams and events from the CPU, where they do nothing."""
    handle = torch.distributed.device_mesh._get_device_handle
    for name, module in list(sys.modules.items()):
        if name.startswith(FSDP) and hasattr(module, "_get_device_handle"):
            on_cpu = patch.object(module, "_get_device_handle", lambda *device: handle("cpu"))
            stack.enter_context(on_cpu)
    main = sys.modules[FSDP + "_fully_shard"]
    stack.enter_context(patch.object(main, "_get_device_from_mesh", lambda mesh: DEVICE))
    stream = SimpleNamespace(synchronize=lambda: None)
    for name in ("default_stream", "current_stream"):
        stack.enter_context(patch.object(torch.cuda, name, lambda *device: stream))
    stack.enter_context(patch.object(torch.cuda, "stream", lambda stream: nullcontext()))
    stack.enter_context(patch.object(Tensor, "record_stream", lambda tensor, stream: None))
    for name in ("synchronize", "set_device"):
        stack.enter_context(patch.object(torch.cuda, name, lambda *device: None))


@contextmanager
def pretended_gpu(marks=None):
    """Everything inside believes in `cuda:0`. A thread does not inherit it: enter it there too."""
    marks = marks or Marks()
    calls, engine = Calls(marks), torch.autograd._engine_run_backward
    grouped = clip_grad._group_tensors_by_device_and_dtype

    def backward(*args, **kwargs):
        with calls:  # a mode is not active inside its own call, and FSDP's hooks make tensors
            return engine(*args, **kwargs)

    def by_place(tensors):  # C++ asks the tensors themselves
        where = DEVICE if marks.has(tensors[0]) else HOST
        return {(where, dtype): found for (_, dtype), found in grouped(tensors).items()}

    # What autograd packs is seen in C++, where nobody pretends: no place can be compared there.
    shapes = {"default": lambda tensor: (tensor.shape, tensor.dtype)}
    checks = torch.utils.checkpoint._allowed_determinism_checks_to_fns
    with ExitStack() as stack:
        without_streams(stack)
        stack.enter_context(patch.object(torch.autograd, "_engine_run_backward", backward))
        stack.enter_context(patch.object(clip_grad, "_group_tensors_by_device_and_dtype", by_place))
        stack.enter_context(patch.dict(checks, shapes))
        stack.enter_context(Operations(marks))
        stack.enter_context(calls)
        yield marks
