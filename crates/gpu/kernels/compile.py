"""Compiles `copy.cu` to `copy.ptx` with NVRTC, which needs no GPU.

Run it with a Python that has the package `nvidia-cuda-nvrtc-cu11` (11.8): `make kernels`. An old NVRTC writes
an old version of PTX, which all newer drivers compile for their devices.
"""

import ctypes
import pathlib
import sys
from importlib import metadata

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = "nvidia-cuda-nvrtc-cu11"
# This NVRTC has no attribute for the number of registers.
MOVE_BOUNDS = ".maxntid 32, 1, 1\n"
MOVE_REGISTERS = ".maxnreg 32\n"
OPTIONS = (b"--gpu-architecture=compute_75", b"--std=c++14", b"--restrict")


def main() -> int:
    files = metadata.files(PACKAGE) or []
    library = next(it for it in files if it.name.startswith("libnvrtc.so"))
    # NVRTC finds its second library, the builtins, only if that is loaded already.
    builtins = next(it for it in files if it.name.startswith("libnvrtc-builtins.so"))
    ctypes.CDLL(str(builtins.locate()), mode=ctypes.RTLD_GLOBAL)
    nvrtc = ctypes.CDLL(str(library.locate()))
    program = ctypes.c_void_p()
    source = (HERE / "copy.cu").read_bytes()
    check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"copy.cu", 0, None, None))
    options = (ctypes.c_char_p * len(OPTIONS))(*OPTIONS)
    status = nvrtc.nvrtcCompileProgram(program, len(OPTIONS), options)
    sys.stderr.write(text(nvrtc, "ProgramLog", program))
    check(status)
    ptx = text(nvrtc, "PTX", program)
    assert ptx.count(MOVE_BOUNDS) == 1, "the bounds of tiffin_move"
    ptx = ptx.replace(MOVE_BOUNDS, MOVE_BOUNDS + MOVE_REGISTERS)
    (HERE / "copy.ptx").write_text(ptx)
    return 0


def text(nvrtc: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    check(getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    check(getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer.value.decode()


def check(status: int) -> None:
    if status != 0:
        raise SystemExit(f"NVRTC failed with status {status}")


if __name__ == "__main__":
    sys.exit(main())
