"""Replace PyTorch's CUDA tensors by fake ones inside the probed program, and add up their sizes.

`probe_child.py` puts a folder in front of PYTHONPATH whose `sitecustomize.py` runs this file. It imports nothing of
slurm-share, and works with Python 3.8 and newer. After torch is imported, `Module.to("cuda")` and `Tensor.to("cuda")`
return fake tensors, which have a shape but no memory. Every tensor computed from a fake one is fake as well; all others
are real, so data is read and prepared as usual. After two steps of an optimiser, the largest sum of fake storages is
written to the descriptor in SLURM_SHARE_PROBE_FD, and the process ends.

For PyTorch the fake tensors are on the CPU: a build without a GPU cannot differentiate through a CUDA device. Tested
with CPU builds of PyTorch 1.13.1 and 2.13.0. Not tested: builds with CUDA, autocast, torch.compile.
"""

# It patches a package that is not here, in interpreters that may be older than ours:
# mypy: ignore-errors

import functools
import importlib.machinery
import os
import sys

STEPS = 2
"""The first step creates the state of the optimiser; the second step has it together with the activations."""
FACTORIES = (
    "arange", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn", "randperm", "tensor", "zeros",
)  # fmt: skip


class Finder:
    """An import finder that patches torch after it is loaded."""

    def __init__(self, descriptor):
        self.descriptor = descriptor

    def find_spec(self, name, path=None, target=None):
        """Return torch's spec with a loader that patches; None for all other modules."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            Probe(module, self.descriptor).patch()

        spec.loader.exec_module = exec_module
        return spec


class Probe:
    """Patches torch, and counts fake storages and steps."""

    def __init__(self, torch, descriptor):
        self.torch = torch
        self.descriptor = descriptor
        self.steps = 0
        self.peak = 0
        self.live = {}
        """Identity of a storage -> (a reference that does not keep it, its bytes)."""
        self.total = 0
        self.mode = None

    # ---- Fake tensors ----

    def enter(self):
        """Start the fake tensor mode, and count the results of operations. Raises ImportError before PyTorch 1.13."""
        from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
        from torch.multiprocessing.reductions import StorageWeakRef

        self.fake_tensor, self.weak_reference = FakeTensor, StorageWeakRef
        try:
            self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        except TypeError:  # PyTorch 1.13
            self.mode = FakeTensorMode()
        dispatch = FakeTensorMode.__torch_dispatch__

        @functools.wraps(dispatch)
        def counting(mode, func, types, args=(), kwargs=None):
            # A real tensor next to a fake one was created on the fake one's device, which is reported as the CPU.
            made = dispatch(mode, func, types, self.all_fake(args), self.all_fake(kwargs or {}))
            self.count(made)
            return made

        FakeTensorMode.__torch_dispatch__ = counting

    def all_fake(self, what):
        """Return the arguments of an operation with all tensors replaced by fake ones."""
        if isinstance(what, self.torch.Tensor):
            return what if isinstance(what, self.fake_tensor) else self.mode.from_tensor(what.detach())
        if isinstance(what, (tuple, list)):
            return type(what)(self.all_fake(one) for one in what)
        if isinstance(what, dict):
            return {name: self.all_fake(one) for name, one in what.items()}
        return what

    def fake(self, tensor):
        """Return a fake tensor for a real one; a fake one is returned unchanged."""
        if self.mode is None:
            self.enter()
        if isinstance(tensor, self.fake_tensor):
            return tensor
        made = self.mode.from_tensor(tensor.detach())
        self.count(made)
        return made

    def count(self, made):
        """Add the storages of an operation's result."""
        if isinstance(made, (tuple, list)):
            for one in made:
                self.count(one)
        elif isinstance(made, self.fake_tensor):
            storage = made.untyped_storage() if hasattr(made, "untyped_storage") else made.storage()
            reference = self.weak_reference(storage)
            known = self.live.get(reference.cdata)
            if known is not None:
                return
            size = storage.nbytes()
            self.live[reference.cdata] = (reference, size)
            self.total += size
            if self.total > self.peak:
                self.sweep()
                self.peak = max(self.peak, self.total)

    def sweep(self):
        """Remove freed storages. This is slow with many storages, so it is done only before a new peak."""
        gone = [key for key, (reference, _) in self.live.items() if reference.expired()]
        for key in gone:
            self.total -= self.live.pop(key)[1]

    # ---- Patches ----

    def patch(self):
        """Replace the functions that move tensors to a GPU, create them there, or query GPUs."""
        torch = self.torch
        self.patch_modules(torch.nn.Module)
        self.patch_tensors(torch.Tensor)
        for name in FACTORIES:
            if hasattr(torch, name):
                setattr(torch, name, self.factory(getattr(torch, name)))
        cuda = torch.cuda
        cuda.is_available = lambda: True
        cuda.device_count = lambda: 1
        cuda.current_device = lambda: 0
        for name in ("synchronize", "empty_cache", "set_device", "manual_seed", "manual_seed_all", "_lazy_init"):
            setattr(cuda, name, lambda *args, **kwargs: None)
        for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
            setattr(cuda, name, lambda *args, **kwargs: 0)
        self.patch_optimisers()

    def patch_modules(self, module_class):
        """Make Module.to and Module.cuda replace parameters and buffers by fake ones."""
        move, torch = module_class.to, self.torch

        def to(module, *args, **kwargs):
            found, args, kwargs = without_cuda(args, kwargs)
            if not found:
                return move(module, *args, **kwargs)
            for part in module.modules():
                for name, parameter in part._parameters.items():
                    if parameter is not None:
                        made = torch.nn.Parameter(self.fake(parameter), requires_grad=parameter.requires_grad)
                        part._parameters[name] = made
                for name, buffer in part._buffers.items():
                    if buffer is not None:
                        part._buffers[name] = self.fake(buffer)
                if hasattr(part, "_flat_weights_names"):  # recurrent networks keep a second list of their parameters
                    part._flat_weights = [getattr(part, name, None) for name in part._flat_weights_names]
            return move(module, *args, **kwargs) if args or kwargs else module

        module_class.to = to
        module_class.cuda = lambda module, device=None: to(module, "cuda")

    def patch_tensors(self, tensor_class):
        """Make Tensor.to and Tensor.cuda return fake tensors, and reads of a fake tensor's value return zeros."""
        move, probe, torch = tensor_class.to, self, self.torch

        def to(tensor, *args, **kwargs):
            if args and isinstance(args[0], torch.Tensor) and probe.is_fake(args[0]):
                return move(probe.fake(tensor), args[0].dtype)
            found, args, kwargs = without_cuda(args, kwargs)
            tensor = probe.fake(tensor) if found else tensor
            return move(tensor, *args, **kwargs) if args or kwargs else tensor

        tensor_class.to = to
        tensor_class.cuda = lambda tensor, *args, **kwargs: probe.fake(tensor)
        for name, value in (("item", lambda t: 0.0 if t.is_floating_point() else 0), ("tolist", self.as_zeros)):
            setattr(tensor_class, name, self.for_fakes(getattr(tensor_class, name), value))
        for name, value in (("__float__", lambda t: 0.0), ("__int__", lambda t: 0), ("__bool__", lambda t: False)):
            setattr(tensor_class, name, self.for_fakes(getattr(tensor_class, name), value))
        show = tensor_class.__format__
        tensor_class.__format__ = lambda t, spec: format(0.0, spec) if probe.is_fake(t) else show(t, spec)
        as_array = self.for_fakes(tensor_class.numpy, lambda t: torch.zeros(t.shape, dtype=t.dtype).numpy())
        tensor_class.numpy = as_array

    def for_fakes(self, method, value):
        """Return a method that returns `value(tensor)` for a fake tensor."""

        @functools.wraps(method)
        def chosen(tensor, *args, **kwargs):
            return value(tensor) if self.is_fake(tensor) else method(tensor, *args, **kwargs)

        return chosen

    def is_fake(self, tensor):
        return self.mode is not None and isinstance(tensor, self.fake_tensor)

    def as_zeros(self, tensor):
        return self.torch.zeros(tensor.shape).tolist()

    def factory(self, make):
        """Return a tensor factory that creates a fake tensor if the device is a GPU."""

        @functools.wraps(make)
        def made(*args, **kwargs):
            found = is_cuda(kwargs.get("device"))
            if found:
                kwargs.pop("device")
            tensor = make(*args, **kwargs)
            return self.fake(tensor).requires_grad_(tensor.requires_grad) if found else tensor

        return made

    def patch_optimisers(self):
        """Count the steps of all optimisers, and answer after STEPS. Gradient scalers are disabled."""
        scaler = getattr(getattr(self.torch.cuda, "amp", None), "GradScaler", None)
        if scaler is not None:
            prepare = scaler.__init__

            def disabled(one, *args, **kwargs):
                kwargs["enabled"] = False
                prepare(one, *args[:4], **kwargs)

            scaler.__init__ = disabled
        optimiser, probe = self.torch.optim.Optimizer, self
        prepare_optimiser = optimiser.__init__

        def prepared(one, *args, **kwargs):
            prepare_optimiser(one, *args, **kwargs)
            kind = type(one)
            # The class's method, not the object's: schedulers of the learning rate want a bound method.
            if not hasattr(kind.step, "slurm_share_counts"):
                kind.step = probe.counted(kind.step)

        optimiser.__init__ = prepared

    def counted(self, step):

        @functools.wraps(step)
        def step_and_count(*args, **kwargs):
            answer = step(*args, **kwargs)
            self.steps += 1
            if self.steps >= STEPS and self.mode is not None:
                self.answer()
            return answer

        step_and_count.slurm_share_counts = True
        return step_and_count

    def answer(self):
        """Write the peak, and end the process without its exit handlers."""
        os.write(self.descriptor, b"%d %d\n" % (self.peak, self.steps))
        os._exit(0)


def is_cuda(device):
    if isinstance(device, str):
        return device.split(":")[0] == "cuda"
    return getattr(device, "type", None) == "cuda"


def without_cuda(args, kwargs):
    """Return whether the arguments of `to` name a GPU, and the arguments without it."""
    found = any(is_cuda(one) for one in args) or is_cuda(kwargs.get("device"))
    if found:
        args = tuple(one for one in args if not is_cuda(one))
        kwargs = {name: value for name, value in kwargs.items() if name not in ("device", "non_blocking")}
        args = tuple(one for one in args if not isinstance(one, bool))
    return found, args, kwargs


def run_shadowed(folder):
    """Run the `sitecustomize` that the probe's own one hides."""
    path = [one for one in sys.path if one != folder]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def main():
    """Install the finder in the started process, but not in its child processes."""
    folder = os.environ.pop("SLURM_SHARE_PROBE_FOLDER", "")
    descriptor = os.environ.pop("SLURM_SHARE_PROBE_FD", "")
    if descriptor.isascii() and descriptor.isdecimal() and len(descriptor) < 10:
        sys.meta_path.insert(0, Finder(int(descriptor)))
    if folder:
        import importlib.util  # noqa: F401 - run_shadowed

        run_shadowed(folder)


main()
