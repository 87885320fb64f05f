"""Most tests use a replacement for torch whose tensors have a size only. One test uses the real torch, if installed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_share.lab import probe
from slurm_share.lab.probe import python_command

TORCH = {
    "torch/__init__.py": """
class Storage:
    def __init__(self, size):
        self.size = size
    def nbytes(self):
        return self.size

class Tensor:
    requires_grad = False
    def __init__(self, size, storage=None):
        self.storage_ = storage or Storage(size)
    def storage(self):
        return self.storage_
    def detach(self):
        return self
    def to(self, *args, **kwargs):
        return self
    def numpy(self):
        return "real"
    def requires_grad_(self, wanted):
        return self
    item = tolist = __float__ = __int__ = __bool__ = lambda self: 1

def zeros(size, device=None):
    if device == "cuda":
        raise RuntimeError("no GPU")
    return Tensor(size)

from . import cuda, nn, optim
""",
    "torch/cuda/__init__.py": "def is_available(): return False\n",
    "torch/nn/__init__.py": """
from .. import Tensor

def Parameter(data, requires_grad=True):
    return data

class Module:
    def __init__(self, size=0):
        self._parameters, self._buffers = {"weight": Tensor(size)}, {}
    def modules(self):
        return [self]
    def to(self, *args, **kwargs):
        return self
    def cuda(self):
        raise RuntimeError("no GPU")
""",
    "torch/optim/__init__.py": """
class Optimizer:
    def __init__(self, parameters):
        self.parameters = parameters

class SGD(Optimizer):
    def step(self):
        return "stepped"
""",
    "torch/multiprocessing/__init__.py": "",
    "torch/multiprocessing/reductions.py": """
import weakref

class StorageWeakRef:
    def __init__(self, storage):
        self.reference, self.cdata = weakref.ref(storage), id(storage)
    def expired(self):
        return self.reference() is None
""",
    "torch/_subclasses/__init__.py": "",
    "torch/_subclasses/fake_tensor.py": """
from .. import Tensor

class FakeTensor(Tensor):
    pass

class FakeTensorMode:
    def from_tensor(self, tensor):
        return FakeTensor(tensor.storage().nbytes())
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))
""",
}
MIB = 1 << 20
TRAIN = f"""
import torch
model = torch.nn.Module({10 * MIB}).to("cuda")
optimizer = torch.optim.SGD(model._parameters.values())
for step in range(100):
    batch = torch.zeros({5 * MIB}, device="cuda")
    assert optimizer.step() == "stepped"
    del batch
"""


@pytest.fixture
def program(tmp_path):
    for name, text in TORCH.items():
        file = tmp_path / "lib" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def run(text, *, limit_s=300.0, argv=None, **environment):
        (tmp_path / "train.py").write_text(text)
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "lib"), "HOME": str(tmp_path), **environment}
        words = [sys.executable, "train.py"] if argv is None else argv
        return probe.probe(words, tmp_path, env, limit_s=limit_s)

    return run


def test_the_peak_of_two_steps_is_the_answer(program):
    """10 MiB of parameters, and one batch of 5 at a time: the last one is gone when the next is counted."""
    assert program(TRAIN) == probe.ProbeResult(15)


def test_what_stays_alive_adds_up(program):
    assert program(TRAIN.replace("for step", "kept = []\nfor step").replace("del batch", "kept.append(batch)")) == (
        probe.ProbeResult(20)
    )


def test_a_shell_s_command_is_probed_as_well(program, tmp_path):
    assert program(TRAIN, argv=["/bin/sh", "-c", f"{sys.executable} train.py --lr 0.1"]).peak_mib == 15


@pytest.mark.parametrize(
    "text",
    [
        "raise SystemExit(3)",
        "import torch",
        "import torch.nn; raise ValueError",
        TRAIN.replace("range(100)", "range(1)"),
        TRAIN.replace('.to("cuda")', "").replace(', device="cuda"', ""),
        "import os; os.kill(os.getpid(), 9)",
        "syntax error",
    ],
    ids=["an exit", "no training", "an exception", "one step", "no GPU is used", "a signal", "no program"],
)
def test_a_program_that_does_not_get_there_has_no_estimate(program, text):
    found = program(text)
    assert found.peak_mib is None
    assert "no two steps" in found.why


def test_a_program_without_torch_has_no_estimate(program):
    assert program("import torch", PYTHONPATH="").peak_mib is None


def test_a_program_that_takes_too_long_is_ended_with_what_it_started(program, tmp_path):
    text = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n"
        "open('pids.new', 'w').write(f'{os.getpid()} {child.pid}')\n"
        "os.replace('pids.new', 'pids')\n"
        "time.sleep(300)\n"
    )
    for limit_s in (2.0, 20.0, 200.0):  # a busy machine takes longer to start it
        assert program(text, limit_s=limit_s).peak_mib is None
        if (tmp_path / "pids").exists():
            break
    for pid in (tmp_path / "pids").read_text().split():
        assert _is_gone(int(pid))


def _is_gone(pid):
    """Return whether a process has ended; a zombie has, and init takes it up some time."""
    for _ in range(1200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False


def test_the_program_has_no_gpu_no_terminal_the_lowest_priority_and_little_memory(program, tmp_path):
    text = (
        "import os, resource, sys\n"
        "print('x' * 1_000_000)\n"
        "seen = (os.environ['CUDA_VISIBLE_DEVICES'], os.environ['LLSUB_PROBE'], os.nice(0), sys.stdin.read(),\n"
        "        resource.getrlimit(resource.RLIMIT_AS)[0], os.getsid(0) == os.getpid(),\n"
        "        any(name.startswith('SLURM_SHARE_PROBE') for name in os.environ))\n"
        "open('seen', 'w').write(repr(seen))\n" + TRAIN
    )
    assert program(text, CUDA_VISIBLE_DEVICES="0").peak_mib == 15
    assert (tmp_path / "seen").read_text() == repr(("", "1", 19, "", 8 << 30, True, False))


def test_a_sitecustomize_of_the_users_runs_too(program, tmp_path):
    (tmp_path / "lib" / "sitecustomize.py").write_text("import os\nos.environ['THEIRS'] = '1'\n")
    assert program("import os; assert os.environ['THEIRS'] == '1'\n" + TRAIN).peak_mib == 15


def test_nothing_is_left_behind(program, tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    assert program(TRAIN, TMPDIR=str(tmp_path / "tmp")).peak_mib == 15
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("argv", "is_one"),
    [
        (["python3", "a.py"], True),
        (["/usr/bin/python3.11", "-m", "pkg"], True),
        (["sh", "-c", "python a.py --lr 0.1"], True),
        (["sh", "-c", "python a.py | tee x"], True),
        (["sh", "-c", "A=1 python a.py"], False),
        (["./solver"], False),
        (["bash", "a.sh"], False),
        (["python"], False),
        ([], False),
    ],
)
def test_only_a_plain_command_of_python_is_probed(argv, is_one):
    assert (python_command(argv) is not None) is is_one


def test_a_probe_of_another_command_says_so(tmp_path):
    assert probe.probe(["touch", str(tmp_path / "x")], tmp_path, {}).why == "not a plain command of Python"
    assert not (tmp_path / "x").exists()


REAL = """
import torch
from torch import nn
model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024, bias=False), nn.ReLU()) for _ in range(LAYERS)]).cuda()
optimizer = torch.optim.Adam(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
for step in range(5):
    x = torch.randn(4096, 1024).to("cuda", non_blocking=True)
    loss = model(x).square().mean()
    optimizer.zero_grad(set_to_none=False)  # PyTorch 2 would drop the gradients before the backward pass
    loss.backward()
    optimizer.step()
    scheduler.step()
    print(f"{loss:.3f}", loss.item())
"""


def test_real_torch_adds_weights_gradients_moments_and_activations(tmp_path):
    """A layer of 1,024 x 1,024 has 16 MiB of them, and its activations for 4,096 samples 16 MiB."""
    if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode:
        pytest.skip("NOT TESTED: this interpreter has no torch")
    found = []
    for layers in (4, 8):
        (tmp_path / "train.py").write_text(REAL.replace("LAYERS", str(layers)))
        found.append(probe.probe([sys.executable, "train.py"], tmp_path, dict(os.environ), limit_s=60.0).peak_mib)
    assert None not in found
    assert found[1] - found[0] == pytest.approx(4 * 32, abs=8)
