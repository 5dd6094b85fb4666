"""Code of the workers of a data loader; a spawned worker imports it from here."""

import os


class Samples:
    """A dataset for a data loader: it holds a store, and is pickled with it for the workers."""

    def __init__(self, store):
        self.store = store

    def __getitem__(self, index):
        with self.store.view(f"sample{index}") as view:
            return index, bytes(view), os.getpid()


def serve(samples, indexes, results):
    """A worker of a data loader."""
    while (index := indexes.get()) is not None:
        results.put(samples[index])
    samples.store.put(f"worker{os.getpid()}", b"done")


class Refs:
    """A dataset for a data loader of torch: refs, which its workers read through the store."""

    def __init__(self, features, refs):
        self.features, self.refs = features, refs

    def __len__(self):
        return len(self.refs)

    def __getitem__(self, at):
        tensors, _ = self.features.get(self.refs[at])
        return tensors["x"]


class Lent(Refs):
    """The same, without a copy: the collated batch is a view of the store's memory."""

    def __getitem__(self, at):
        tensors, _ = self.features.get(self.refs[at], lend=True)
        return tensors["x"]
