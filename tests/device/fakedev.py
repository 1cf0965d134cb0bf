"""Torch's device `fake`: the CPU, as strict as a GPU. Import it before Keras.

As a plugin, which needs g++ and builds its library once:

    KERAS_BACKEND=torch PYTHONPATH=tests/device pytest -p fakedev tests/losses

NumPy cannot read its tensors, and no operation mixes them with those of the
CPU. `torch.compile`, quantized layers and tests that start a process of their
own do not know it. `.ci/scheduled device` runs the fast tests on it.
"""

import contextlib
import os
import pathlib
import subprocess
import types

import torch
from torch.utils import cpp_extension

HERE = pathlib.Path(__file__).parent
SOURCE = HERE / "fakedev.cpp"
LIBRARY = HERE / "build" / "libfakedev.so"


def build():
    """Compile the library, where it is older than its source."""
    if LIBRARY.exists() and LIBRARY.stat().st_mtime > SOURCE.stat().st_mtime:
        return
    LIBRARY.parent.mkdir(exist_ok=True)
    command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-w"]
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={abi}"]
    command += [f"-I{path}" for path in cpp_extension.include_paths()]
    command += [str(SOURCE), "-o", str(LIBRARY)]
    command += [f"-L{path}" for path in cpp_extension.library_paths()]
    command += ["-lc10", "-ltorch_cpu"]
    subprocess.run(command, check=True)


def register():
    build()
    torch.ops.load_library(str(LIBRARY))
    torch.utils.rename_privateuse1_backend("fake")
    module = types.ModuleType("torch.fake")
    module.is_available = module.is_initialized = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.device = lambda device: contextlib.nullcontext()
    module.set_device = lambda device: None
    module.synchronize = lambda device=None: None
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    module.get_rng_state = lambda device=None: torch.get_rng_state()
    module.set_rng_state = lambda state, device=None: torch.set_rng_state(state)
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    torch._register_device_module("fake", module)
    torch.utils.generate_methods_for_privateuse1_backend()


os.environ.setdefault("KERAS_TORCH_DEVICE", "fake")
register()
