"""One process of `features.py`: a producer or a trainer, of our side or of the official wheel."""

import argparse
import json
import sys
import time

import numpy as np


class Ours:
    """Our feature store."""

    def __init__(self, options):
        from tiffin.features import FeatureStore

        self.features = FeatureStore("bench", address=options.address, timeout=60)
        self.handles = []

    def put(self, names, tensors):
        """Store the samples of a capture batch."""
        return [ref.to_json() for ref in self.features.put_many(dict.fromkeys(names, tensors))]

    def get(self, refs):
        """Read two samples."""
        tensors, handles = zip(*self.features.get_many(refs), strict=True)
        self.handles += handles
        return tensors

    def free(self):
        """Free the samples that were read, and wait until their bytes are free."""
        for handle in self.handles:
            self.features.release(handle)
        self.handles.clear()
        self.features.index.wait_usage(at_most=0)


class Theirs:
    """The behaviour of SpecForge's `MooncakeFeatureStore` with the official wheel."""

    def __init__(self, options):
        from mooncake.store import MooncakeDistributedStore, ReplicateConfig

        self.store = MooncakeDistributedStore()
        segment = options.segment if options.role == "producer" else 0
        status = self.store.setup(
            local_hostname="127.0.0.1",
            metadata_server="P2PHANDSHAKE",
            global_segment_size=segment,
            local_buffer_size=256 << 20,
            protocol="tcp",
            rdma_devices="",
            master_server_addr=options.address,
        )
        if status not in (None, 0):
            sys.exit(f"setup returned {status}")
        self.config = ReplicateConfig()
        self.config.replica_num = 1
        self.config.with_hard_pin = True
        self.read = []

    def put(self, names, tensors):
        """Store the samples of a capture batch, one after the other: there is no batch call."""
        return [self._put(name, tensors) for name in names]

    def _put(self, name, tensors):
        ref = {}
        for tensor, array in tensors.items():
            key, array = f"bench/{name}/g1/{tensor}", np.ascontiguousarray(array)
            self.store.register_buffer(array.ctypes.data, array.nbytes)
            status = self.store.put_from(key, array.ctypes.data, array.nbytes, self.config)
            self.store.unregister_buffer(array.ctypes.data)
            if status < 0:
                sys.exit(f"put_from returned {status}")
            ref[tensor] = (key, array.nbytes)
        return json.dumps(ref)

    def get(self, refs):
        """Read two samples."""
        return [self._get(ref) for ref in refs]

    def _get(self, ref):
        tensors = {}
        for tensor, (key, size) in json.loads(ref).items():
            if int(self.store.is_exist(key)) != 1:
                sys.exit(f"{key} does not exist")
            array = np.empty(size, np.uint8)
            self.store.register_buffer(array.ctypes.data, size)
            count = self.store.get_into(key, array.ctypes.data, size)
            self.store.unregister_buffer(array.ctypes.data)
            if count != size:
                sys.exit(f"get_into returned {count}")
            tensors[tensor] = array
            self.read.append(key)
        return tensors

    def free(self):
        """Remove the samples that were read, and retry until they are gone."""
        left = self.read
        while left:
            left = [key for key in left if self.store.remove(key) not in (None, 0, -704)]
            if left:
                time.sleep(0.02)
        self.read = []


def main():
    """Execute requests, one line of JSON each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--side", required=True)
    parser.add_argument("--role", required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--segment", type=int, required=True)
    options = parser.parse_args()
    store = Ours(options) if options.side == "tiffin" else Theirs(options)
    sources = {}
    answer({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "put":
            sizes = tuple(request["sizes"])
            if sizes not in sources:
                sources[sizes] = {f"t{i}": np.full(size, i + 1, np.uint8) for i, size in enumerate(sizes)}
            names = [f"{len(sizes)}-{sizes[0]}-{request['number']}-{i}" for i in range(request["count"])]
            begin = time.perf_counter()
            refs = store.put(names, sources[sizes])
            answer({"refs": refs, "seconds": time.perf_counter() - begin})
        elif request["do"] == "get":
            begin = time.perf_counter()
            kept = [store.get(request["refs"][at : at + 2]) for at in range(0, len(request["refs"]), 2)]
            answer({"seconds": time.perf_counter() - begin})
            del kept
        else:
            begin = time.perf_counter()
            store.free()
            answer({"seconds": time.perf_counter() - begin})


def answer(told):
    """Send an answer."""
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
