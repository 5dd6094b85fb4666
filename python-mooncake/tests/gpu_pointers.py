"""Checks by hand, on a machine with a GPU, that device pointers are refused and pinned memory is not.

    .venv-torch/bin/python python-mooncake/tests/gpu_pointers.py

It needs torch with CUDA and the wheels `tiffin` and `tiffin-mooncake`. It ends with status 0 and prints
`skipped` where there is no CUDA device.
"""

import ctypes

import worker

MIB = 1 << 20


def check(what, found, expected):
    print(f"{'ok  ' if found == expected else 'FAIL'} {what}: {found}", flush=True)
    if found != expected:
        raise SystemExit(1)


def check_refused(store, name, pointer, size):
    """Every call that takes an address refuses this one."""
    check(f"register_buffer({name})", store.register_buffer(pointer, size), -600)
    check(f"put_from({name})", store.put_from("bad", pointer, size), -600)
    check(f"batch_put_from({name})", store.batch_put_from(["bad"], [pointer], [size]), [-600])
    multi = store.batch_put_from_multi_buffers(["bad"], [[pointer]], [[size]])
    check(f"batch_put_from_multi_buffers({name})", multi, [-600])
    check(f"get_into({name})", store.get_into("k", pointer, size), -600)
    check(f"batch_get_into({name})", store.batch_get_into(["k"], [pointer], [size]), [-600])
    multi = store.batch_get_into_multi_buffers(["k"], [[pointer]], [[size]])
    check(f"batch_get_into_multi_buffers({name})", multi, [-600])


def check_accepted(store, name, pointer, size):
    """Memory that the processor can access is used, registered or not."""
    ctypes.memset(pointer, 7, size)
    check(f"put_from({name})", store.put_from(name, pointer, size), 0)
    check(f"register_buffer({name})", store.register_buffer(pointer, size), 0)
    check(f"get_into({name})", store.get_into("k", pointer, size), size)
    check(f"bytes of {name}", ctypes.string_at(pointer, 4), b"good")
    check(f"unregister_buffer({name})", store.unregister_buffer(pointer), 0)
    check(f"get({name})", store.get(name) == b"\x07" * size, True)


def native(tensor):
    """The native API has a hint."""
    import tiffin

    store = tiffin.connect(memory=64 * MIB)
    for call in (lambda: store.put("k", tensor), lambda: store.get_into("k", tensor)):
        try:
            call()
        except TypeError as error:
            check("native API", ".cpu()" in str(error), True)
        else:
            check("native API", "no error", "TypeError")
    store.close()


def main():
    try:
        import torch
    except ImportError:
        print("skipped: there is no torch")
        return
    if not torch.cuda.is_available():
        print("skipped: there is no CUDA device")
        return
    master = worker.Master()
    check("setup", worker.connect(master.address, segment=256 * MIB, buffer=64 * MIB), 0)
    store = worker.store
    check("put", store.put("k", b"good" * (MIB // 4)), 0)
    for size in (MIB, 64 * MIB):
        tensor = torch.ones(size, dtype=torch.uint8, device="cuda")
        check_refused(store, f"device memory of {size} bytes", tensor.data_ptr(), size)
        check_refused(store, "inside of it", tensor.data_ptr() + 4096, size // 2)
    pinned = torch.empty(MIB, dtype=torch.uint8, pin_memory=True)
    check_accepted(store, "pinned memory", pinned.data_ptr(), MIB)
    plain = torch.empty(MIB, dtype=torch.uint8)
    check("cudaHostRegister", int(torch.cuda.cudart().cudaHostRegister(plain.data_ptr(), MIB, 0)), 0)
    check_accepted(store, "memory pinned later", plain.data_ptr(), MIB)
    native(tensor)
    check("close", store.close(), 0)
    master.stop()
    print("all is well")


if __name__ == "__main__":
    main()
