"""Device memory in the native API and in `tiffin.kv`: over the stand-in for the CUDA driver, or over a GPU.

`make test-gpu` sets `TIFFIN_TEST_GPU`, which is the latter.
"""

import os
import pathlib
import subprocess
import sys

import pytest

import gpu_kv_checks
import gpu_native_checks

HERE = pathlib.Path(__file__).resolve().parent
STANDIN = HERE.parents[1] / "target" / "debug" / "libtiffin_gpu_standin.so"
IS_REAL = os.environ.get("TIFFIN_TEST_GPU") == "1"
SECONDS_MAX = 300


CHECKS = [
    (pathlib.Path(module.__file__).name, check.__name__)
    for module in (gpu_native_checks, gpu_kv_checks)
    for check in module.CHECKS
]


@pytest.mark.parametrize(("program", "name"), CHECKS)
def test_device_memory(program, name, tmp_path):
    environment = dict(os.environ, TMPDIR=str(tmp_path))
    if IS_REAL:
        if name.startswith("standin_"):
            pytest.skip("needs the stand-in")
        environment.pop("TIFFIN_CUDA_LIBRARY", None)
    else:
        assert STANDIN.exists(), "hint: run `cargo build -p tiffin-gpu-standin`"
        environment["TIFFIN_CUDA_LIBRARY"] = str(STANDIN)
    command = [sys.executable, str(HERE / program), name]
    ended = subprocess.run(
        command, env=environment, cwd=HERE, capture_output=True, text=True, timeout=SECONDS_MAX
    )
    assert ended.returncode == 0, f"{ended.stdout[-1000:]}\n{ended.stderr[-4000:]}"
    assert f"passed {name}" in ended.stdout
