"""The table of methods that store and read, as combinations of five choices.

| choice | |
|---|---|
| batch | one key or many |
| value | bytes, parts of bytes, or a tensor |
| access | a copy, into the caller's memory, or from the caller's memory |
| layout | plain, cut for tensor parallelism (`tp`), or cut along several axes (`parallelism`) |
| verb | `put` keeps an existing object, `upsert` replaces it, `pub` and `upsert_pub` do so with a config;
`get` |

A choice determines a part of the name, of the arguments and of the documentation. Each method runs one of a
few functions of `_writes` and `_reads`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

from tiffin._native import mooncake as _native

from mooncake import _arguments as arguments
from mooncake import _reads as reads
from mooncake import _writes as writes
from mooncake._arguments import Argument
from mooncake._codes import INVALID
from mooncake._tensor_format import tp_key
from mooncake._writes import Buffer, How


@dataclass(frozen=True)
class Form:
    """One row of the table."""

    batch: bool
    value: str
    access: str
    layout: str
    verb: str

    # Computed once: calls use these.
    @cached_property
    def name(self) -> str:
        verb, suffix = self.verb, "" if self.access == "copy" else f"_{self.access}"
        if self.value == "parts":
            return f"{verb}_parts"
        if self.value == "bytes":
            return f"{verb}_batch" if self.batch and not suffix else f"{'batch_' * self.batch}{verb}{suffix}"
        layout = "" if self.layout == "plain" else f"_with_{self.layout}"
        return f"{'batch_' * self.batch}{verb}_tensor{layout}{suffix}"

    @property
    def reads(self) -> bool:
        return self.verb == "get"

    @cached_property
    def replaces(self) -> bool:
        return self.verb.startswith("upsert")

    @cached_property
    def source(self) -> str:
        return "buffer" if self.access == "from" else "tensor" if self.value == "tensor" else "value"

    @property
    def has_config(self) -> bool:
        if self.layout == "parallelism" or self.value != "tensor":
            return not self.reads
        return self.verb in ("pub", "upsert_pub")


ONE, MANY = (False,), (True,)
BOTH = (False, True)
#: All rows: the combinations of these choices.
TABLE = (
    (ONE, ["parts"], ["copy"], ["plain"], ["upsert"]),
    (BOTH, ["bytes"], ["copy", "from"], ["plain"], ["upsert"]),
    (BOTH, ["tensor"], ["copy"], ["plain"], ["put", "upsert", "pub", "upsert_pub"]),
    (BOTH, ["tensor"], ["from"], ["plain"], ["put", "upsert"]),
    (BOTH, ["tensor"], ["copy", "into"], ["plain", "tp", "parallelism"], ["get"]),
    (BOTH, ["tensor"], ["copy"], ["tp"], ["put", "pub"]),
    (BOTH, ["tensor"], ["from"], ["tp"], ["put"]),
    (BOTH, ["tensor"], ["copy", "from"], ["parallelism"], ["put", "upsert"]),
)


def forms() -> Iterator[Form]:
    """All rows of the table."""
    for choices in TABLE:
        yield from (Form(*row) for row in product(*choices))


def form_arguments(form: Form) -> list[Argument]:
    """The arguments of the choices, in Mooncake's order."""
    made = [_key_argument(form), *_value_arguments(form)]
    config = [arguments.config(is_named=form.value == "parts")] if form.has_config else []
    if form.layout == "tp":
        split = [] if form.reads and form.batch else [arguments.number("split_dim", 0)]
        return made + config + [arguments.number("tp_rank", 0), arguments.number("tp_size", 1), *split]
    if form.layout == "parallelism":
        s = "s" if form.batch else ""
        kind = "list" if form.batch else "object"
        if form.reads:
            return [*made, arguments.value(f"target{s}", kind, None)]
        first = arguments.value(f"parallelism{s}", kind, None)
        return [*made, first, *config, arguments.value(f"writer_partition{s}", kind, None)]
    return made + config


def _key_argument(form: Form) -> Argument:
    if not form.batch:
        return arguments.key()
    return arguments.keys("base_keys" if form.layout == "tp" else "keys")


def _value_arguments(form: Form) -> list[Argument]:
    if form.access != "copy":
        if form.batch:
            return [arguments.sizes("buffer_ptrs"), arguments.sizes("sizes")]
        return [arguments.size("buffer_ptr"), arguments.size("size")]
    if form.reads:
        return []
    if form.value == "parts":
        return [arguments.rest("parts")]
    if form.value == "bytes":
        return [arguments.values("values") if form.batch else arguments.buffer("value")]
    return [arguments.real_list("tensors_list") if form.batch else arguments.value("tensor")]


# Documentation.

_SUBJECTS = {
    ("bytes", False): "a value, any object with the buffer protocol",
    ("bytes", True): "many values",
    ("parts", False): "the concatenation of the parts",
    ("tensor", False): "a tensor",
    ("tensor", True): "many tensors",
}
_LAYOUTS = {
    "plain": "",
    "tp": " The full tensor is cut along `split_dim` into `tp_size` shards, which are all stored.",
    "parallelism": " Parallelism selects the shard; a writer's partition selects the part of the whole.",
}
_EXISTING = {False: " An existing object is kept.", True: " An existing object is replaced."}


def form_doc(form: Form) -> str:
    """The documentation of a method, composed from its choices."""
    subject = _SUBJECTS[form.value, form.batch]
    if form.reads:
        return _reading_doc(form, subject)
    if form.access == "from":
        what = "its header and its elements" if form.value == "tensor" else "its bytes"
        subject += f", given by the address of {what}"
    each = " for each" if form.batch and form.name != "upsert_batch" else ""
    config = " The config sets the number of copies, and their segments." if form.has_config else ""
    if form.name == "upsert_batch":
        each = " or the code of the first failure; the others may have been stored"
        return f"Store {subject}.{_EXISTING[True]} Returns 0{each}."
    head = f"Store {subject}.{_LAYOUTS[form.layout]}{_EXISTING[form.replaces]}"
    return f"{head}{config} Returns 0 or a negative code{each}."


def _reading_doc(form: Form, subject: str) -> str:
    which = {
        "plain": "",
        "tp": " of a rank, stored by the calls with `tp`",
        "parallelism": ", selected by `ReadTarget`: as stored, a shard, or the whole tensor",
    }[form.layout]
    where = ""
    if form.access == "into":
        where = " The object is read to the address, and the tensor is a view of that memory."
    none = "`None` for those" if form.batch else "`None` for one"
    return f"Read {subject}{which}.{where} Returns {none} that cannot be read."


# The functions behind the methods.


def form_body(form: Form) -> Any:
    """The function behind a method. Single forms are batches of one."""
    if form.reads:
        return _reading_body(form)
    bodies = {"bytes": _bytes_body, "parts": _parts_body, "tensor": _tensor_body}
    return bodies[form.value](form)


def _how(form: Form, config: Any, groups: int) -> How:
    return How(form.name, config, groups, form.source, form.replaces)


def _parts_body(form: Form) -> Any:
    return lambda store, key, parts, config: writes.write_parts(store, _how(form, config, 1), key, parts)


def _bytes_body(form: Form) -> Any:
    def values(store: Any, keys: Any, given: Any, config: Any) -> int:
        if not form.batch:
            keys, given = [keys], [given]
        return writes.write_values(store, _how(form, config, len(keys)), keys, given)

    def buffers(store: Any, keys: Any, addresses: Any, sizes: Any, config: Any) -> Any:
        return writes.write_buffers(store, _how(form, config, len(keys)), keys, addresses, sizes)

    def buffer(store: Any, key: Any, address: Any, size: Any, config: Any) -> Any:
        if size == 0 and _native.is_open(store):
            return writes.OK
        return writes.write_buffer(store, name, config, replaces, key, address, size)

    name, replaces = form.name, form.replaces
    if form.access == "copy":
        return values
    return buffers if form.batch else buffer


def _values(form: Form, given: list[Any]) -> tuple[list[Any] | None, list[Any]]:
    """The tensors or buffers of a call, and the arguments after them; `None` if the lists differ."""
    if form.access == "copy":
        return (given[0] if form.batch else [given[0]]), given[1:]
    addresses, sizes = given[:2] if form.batch else ([given[0]], [given[1]])
    if len(addresses) != len(sizes):
        return None, given[2:]
    return [Buffer(*it) for it in zip(addresses, sizes, strict=True)], given[2:]


def _tensor_body(form: Form) -> Any:
    def body(store: Any, keys: Any, *given: Any) -> Any:
        keys = keys if form.batch else [keys]
        values, rest = _values(form, list(given))
        if not keys:
            return []
        codes = [INVALID] * len(keys)
        if values is not None and len(values) == len(keys) and _native.is_open(store):
            codes = _write_tensors(store, form, keys, values, rest)
        return codes if form.batch else codes[0]

    return body


def _write_tensors(
    store: Any, form: Form, keys: list[bytes], values: list[Any], rest: list[Any]
) -> list[int]:
    count = len(keys)
    if form.layout == "parallelism":
        return _write_parallel(store, form, keys, values, rest)
    config = rest[0] if form.has_config else arguments.DEFAULT_CONFIG
    if not writes.segments_fit(config):
        return [INVALID] * count
    if form.layout == "tp":
        _, size, split_dim = rest[-3:]
        if size > 1:
            how = _how(form, config, count if form.batch else size)
            return writes.write_tp(store, how, keys, values, size, split_dim)
    return writes.write_plain(store, _how(form, config, count), keys, values)


def _write_parallel(
    store: Any, form: Form, keys: list[bytes], values: list[Any], rest: list[Any]
) -> list[int]:
    (parallelisms, config, partitions), count = rest, len(keys)
    if not form.batch:
        parallelisms = None if parallelisms is None else [parallelisms]
        partitions = None if partitions is None else [partitions]
    layouts = parallelisms if partitions is None else partitions
    how = _how(form, config, count)
    if parallelisms is not None and partitions is not None:
        return [INVALID] * count
    if layouts is None:
        if not writes.segments_fit(config):
            return [INVALID] * count
        return writes.write_plain(store, how, keys, values)
    if not isinstance(layouts, list) or len(layouts) != count or not writes.groups_fit(config, count):
        return [INVALID] * count
    return writes.write_parallel(store, how, keys, values, layouts, partitions is not None)


def _reading_body(form: Form) -> Any:
    if form.layout == "parallelism":
        return _parallel_reading_body(form)

    def body(store: Any, keys: Any, *given: Any) -> Any:
        keys, rest = (keys if form.batch else [keys]), list(given)
        targets: list[Any] | None = []
        if form.access == "into":
            targets, rest = _values(form, rest)
        if form.batch and form.access == "into" and not _all_given(store, keys, targets):
            is_tp = form.layout == "tp" and not _native.is_open(store)
            return [None if is_tp else INVALID] * len(keys)
        if form.layout == "tp" and rest[1] > 1:
            keys = [tp_key(key, rest[0]) for key in keys]
        is_into = form.access == "into"
        found = reads.read_into(store, keys, targets or []) if is_into else reads.read_plain(store, keys)
        return found if form.batch else found[0]

    return body


def _all_given(store: Any, keys: list[bytes], targets: list[Any] | None) -> bool:
    """Whether each key of a batch has an address to read to."""
    if targets is None or len(targets) != len(keys):
        return False
    return bool(_native.is_open(store)) and all(target.address for target in targets)


def _parallel_reading_body(form: Form) -> Any:
    def body(store: Any, keys: Any, *given: Any) -> Any:
        keys, targets, rest = (keys if form.batch else [keys]), None, list(given)
        if form.access == "into":
            targets, rest = _values(form, rest)
            if targets is None or len(targets) != len(keys):
                return [None] * len(keys)
        wanted = rest[0] if form.batch else [rest[0]]
        wanted = [None] * len(keys) if wanted is None else wanted
        if not isinstance(wanted, list) or len(wanted) != len(keys):
            return [None] * len(keys)
        memory = [None] * len(keys) if targets is None else targets
        each = zip(keys, wanted, memory, strict=True)
        found = [reads.read_target(store, key, target, into) for key, target, into in each]
        return found if form.batch else found[0]

    return body


# Methods that are not a combination of the choices.


def _into_cuda(store: Any, key: bytes, tensor: Any) -> int:
    return INVALID


def _batch_into_cuda(store: Any, keys: list[bytes], tensors_list: list[Any]) -> list[int]:
    return [INVALID] * len(keys)


def _sessions() -> Iterator[tuple[str, list[Argument], str, Any]]:
    ranges = [arguments.value("all_buffer_ptrs"), arguments.value("all_sizes")]
    yield (
        "batch_get_session_start",
        [arguments.keys()],
        "Start reading objects range by range. Returns for each 0, or a negative code: -704 if there "
        "is no such object, -703 if it is being written. Takes a lease of the objects.",
        _native.get_session_start,
    )
    yield (
        "batch_get_into_multi_buffer_ranges",
        [arguments.keys(), *ranges, arguments.value("all_src_offsets")],
        "Read ranges of objects that have a get session, each range to an address. Returns the bytes "
        "of each object that were read, or a negative code: -600 without a session or if a range is "
        "outside the object, -707 if the object is gone; the session has then ended.",
        _native.get_session_ranges,
    )
    yield (
        "batch_get_session_end",
        [arguments.keys()],
        "End get sessions. Returns 0, also for keys without one.",
        _native.get_session_end,
    )
    yield (
        "batch_put_session_start",
        [arguments.keys(), arguments.sizes("sizes"), arguments.config()],
        "Reserve space for objects that are written range by range. Returns for each 0, or a negative "
        "code: -705 if the key exists, -600 if it already has a session.",
        _native.put_session_start,
    )
    yield (
        "batch_put_from_multi_buffer_ranges",
        [arguments.keys(), *ranges, arguments.value("all_dst_offsets")],
        "Write ranges of objects that have a put session, each range from an address. Returns the "
        "bytes of each object that were written, or a negative code: -600 without a session or if a "
        "range is outside the space.",
        _native.put_session_ranges,
    )
    yield (
        "batch_put_session_end",
        [arguments.keys()],
        "End put sessions: the objects can be read from now on. Bytes that were not written are "
        "zeros. Returns for each 0, or -600 if the key has no session.",
        lambda store, keys: _native.put_session_end(store, keys, True),
    )
    yield (
        "batch_put_session_revoke",
        [arguments.keys()],
        "End put sessions without storing anything. Returns for each 0, or -600 if the key has no session.",
        lambda store, keys: _native.put_session_end(store, keys, False),
    )


def _others() -> Iterator[tuple[str, list[Argument], str, Any]]:
    from mooncake import _safetensors

    yield (
        "get_tensor_into_cuda",
        [arguments.key(), arguments.value("tensor")],
        "Returns -600: only clients of a node daemon could read into device memory.",
        _into_cuda,
    )
    yield (
        "batch_get_tensor_into_cuda",
        [arguments.keys(), arguments.real_list("tensors_list")],
        "Returns -600 for each: only clients of a node daemon could read into device memory.",
        _batch_into_cuda,
    )
    yield (
        "save_tensor_to_safetensor",
        [arguments.key(), arguments.value("file_name", "str", None)],
        "Write a stored tensor to a safetensors file, by default one with the name of the key. "
        "Returns 0; -1100 if the tensor cannot be read, -600 if the file cannot be written.",
        _safetensors.save,
    )
    yield (
        "load_tensor_from_safetensor",
        [arguments.value("key", "str", None), arguments.text("file_name")],
        "Store a tensor of a safetensors file, under its key or under the name of the file. Returns "
        "the tensor, or `None` if it cannot be read or stored.",
        _safetensors.load,
    )


def methods() -> Iterator[tuple[str, Any]]:
    """All methods with their names."""
    for form in forms():
        body = form_body(form)
        yield form.name, arguments.method(form.name, form_arguments(form), form_doc(form), body)
    for name, taken, doc, body in (*_sessions(), *_others()):
        yield name, arguments.method(name, taken, doc, body)
