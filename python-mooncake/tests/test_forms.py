"""The methods that are made from a table: names, arguments, documentation and stubs."""

import ast
import inspect
import pathlib

import mooncake
import pytest
from mooncake.store import MooncakeDistributedStore, ReplicateConfig

TP = "tp_rank=0, tp_size=1, split_dim=0"
FROM = "keys, buffer_ptrs, sizes"
#: The signatures in Mooncake's documentation strings; `C` is the config.
METHODS = f"""
upsert(key, value, C)
upsert_parts(key, *parts, C)
upsert_batch(keys, values, C)
upsert_from(key, buffer_ptr, size, C)
batch_upsert_from(keys, buffer_ptrs, sizes, C)
batch_get_session_start(keys)
batch_get_into_multi_buffer_ranges(keys, all_buffer_ptrs, all_sizes, all_src_offsets)
batch_get_session_end(keys)
batch_put_session_start(keys, sizes, C)
batch_put_from_multi_buffer_ranges(keys, all_buffer_ptrs, all_sizes, all_dst_offsets)
batch_put_session_end(keys)
batch_put_session_revoke(keys)
put_tensor(key, tensor)
upsert_tensor(key, tensor)
batch_put_tensor(keys, tensors_list)
batch_upsert_tensor(keys, tensors_list)
pub_tensor(key, tensor, C)
upsert_pub_tensor(key, tensor, C)
batch_pub_tensor(keys, tensors_list, C)
batch_upsert_pub_tensor(keys, tensors_list, C)
get_tensor(key)
batch_get_tensor(keys)
put_tensor_from(key, buffer_ptr, size)
upsert_tensor_from(key, buffer_ptr, size)
batch_put_tensor_from(keys, buffer_ptrs, sizes)
batch_upsert_tensor_from(keys, buffer_ptrs, sizes)
get_tensor_into(key, buffer_ptr, size)
batch_get_tensor_into(keys, buffer_ptrs, sizes)
get_tensor_into_cuda(key, tensor)
batch_get_tensor_into_cuda(keys, tensors_list)
put_tensor_with_tp(key, tensor, {TP})
batch_put_tensor_with_tp(base_keys, tensors_list, {TP})
pub_tensor_with_tp(key, tensor, C, {TP})
batch_pub_tensor_with_tp(base_keys, tensors_list, C, {TP})
get_tensor_with_tp(key, {TP})
batch_get_tensor_with_tp(base_keys, tp_rank=0, tp_size=1)
get_tensor_with_tp_into(key, buffer_ptr, size, {TP})
batch_get_tensor_with_tp_into(base_keys, buffer_ptrs, sizes, tp_rank=0, tp_size=1)
put_tensor_with_tp_from(key, buffer_ptr, size, {TP})
batch_put_tensor_with_tp_from(base_keys, buffer_ptrs, sizes, {TP})
put_tensor_with_parallelism(key, tensor, parallelism=None, C, writer_partition=None)
upsert_tensor_with_parallelism(key, tensor, parallelism=None, C, writer_partition=None)
batch_put_tensor_with_parallelism(keys, tensors_list, parallelisms=None, C, writer_partitions=None)
batch_upsert_tensor_with_parallelism(keys, tensors_list, parallelisms=None, C, writer_partitions=None)
put_tensor_with_parallelism_from(key, buffer_ptr, size, parallelism=None, C, writer_partition=None)
upsert_tensor_with_parallelism_from(key, buffer_ptr, size, parallelism=None, C, writer_partition=None)
batch_put_tensor_with_parallelism_from({FROM}, parallelisms=None, C, writer_partitions=None)
batch_upsert_tensor_with_parallelism_from({FROM}, parallelisms=None, C, writer_partitions=None)
get_tensor_with_parallelism(key, target=None)
batch_get_tensor_with_parallelism(keys, targets=None)
get_tensor_with_parallelism_into(key, buffer_ptr, size, target=None)
batch_get_tensor_with_parallelism_into(keys, buffer_ptrs, sizes, targets=None)
save_tensor_to_safetensor(key, file_name=None)
load_tensor_from_safetensor(key=None, file_name=<required>)
"""
SIGNATURES = dict(line.rstrip(")").split("(", 1) for line in METHODS.split("\n") if line)


def shown(parameter):
    star = "*" if parameter.kind is inspect.Parameter.VAR_POSITIONAL else ""
    if isinstance(parameter.default, ReplicateConfig):
        return "C"
    default = "" if parameter.default is inspect.Parameter.empty else f"={parameter.default}"
    return f"{star}{parameter.name}{default}"


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_those_of_the_original(name):
    method = getattr(MooncakeDistributedStore, name)
    parameters = list(inspect.signature(method).parameters.values())
    assert parameters[0].name == "self"
    assert ", ".join(shown(it) for it in parameters[1:]) == SIGNATURES[name]
    bound = inspect.signature(getattr(MooncakeDistributedStore(), name))
    assert list(bound.parameters.values()) == parameters[1:]
    assert (method.__name__, method.__module__) == (name, "mooncake.store")


def test_table_has_these_methods_and_no_others():
    made = {name for name in vars(MooncakeDistributedStore) if not name.startswith("_")}
    assert made == set(SIGNATURES)


def test_every_method_has_documentation_of_its_own():
    docs = {name: getattr(MooncakeDistributedStore, name).__doc__ for name in SIGNATURES}
    assert all(doc and doc.endswith(".") for doc in docs.values())
    # One form and its batch form differ, and so do the verbs.
    assert len({docs["put_tensor"], docs["batch_put_tensor"], docs["upsert_tensor"], docs["pub_tensor"]}) == 4
    assert "replaced" in docs["upsert"] and "kept" in docs["put_tensor"]


def test_stubs_have_the_same_arguments():
    tree = ast.parse(pathlib.Path(mooncake.__file__).with_name("store.pyi").read_text())
    store = next(it for it in tree.body if getattr(it, "name", "") == "MooncakeDistributedStore")
    found = {}
    for function in store.body:
        if isinstance(function, ast.FunctionDef):
            given = function.args
            rest = [given.vararg.arg] if given.vararg else []
            names = [it.arg for it in given.args] + rest + [it.arg for it in given.kwonlyargs]
            found.setdefault(function.name, names[1:])
    for name in SIGNATURES:
        method = getattr(MooncakeDistributedStore, name)
        assert found[name] == list(inspect.signature(method).parameters)[1:], name


def test_wrong_arguments_raise_as_in_the_original():
    store = MooncakeDistributedStore()
    text = r"^put_tensor\(\): incompatible function arguments\. The following argument types are supported:"
    for wrong in (
        lambda: store.put_tensor("k"),
        lambda: store.put_tensor("k", None, 1),
        lambda: store.put_tensor("k", None, tensor=None),
        lambda: store.put_tensor("k", tensors=None),
        lambda: store.put_tensor(None, None),
    ):
        with pytest.raises(TypeError, match=text):
            wrong()
    assert store.put_tensor(tensor=None, key="k") == -600


def test_store_has_no_attributes_of_its_own():
    store = MooncakeDistributedStore()
    with pytest.raises(AttributeError):
        store.nosuch = 1
