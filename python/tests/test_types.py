"""Stubs agree with the modules, and everything public has a docstring."""

import ast
import doctest
import inspect
import pathlib
import runpy

import pytest
import tiffin
import tiffin.aio
import tiffin.errors
import tiffin.types
from tiffin import _native

STUB = ast.parse(pathlib.Path(_native.__file__).with_name("_native.pyi").read_text())
#: Members that the interpreter adds, or that have another name in PEP 688 than in Rust.
UNSPOKEN = {"__new__", "__repr__", "__doc__", "__module__", "__buffer__", "__release_buffer__"}
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}


def functions(body):
    """The functions of a stub, each with the parameters of all its overloads together."""
    found = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            arguments = node.args
            names = found.setdefault(node.name, {})
            for argument in [*arguments.posonlyargs, *arguments.args]:
                names[argument.arg] = "positional"
            for argument in arguments.kwonlyargs:
                names[argument.arg] = "by name"
    return found


def defaults(body):
    """The defaults of a stub's functions, as they are written."""
    found = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            arguments = node.args
            pairs = zip(reversed(arguments.args), reversed(arguments.defaults), strict=False)
            pairs = [*pairs, *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
            given = {argument.arg: ast.literal_eval(value) for argument, value in pairs if value is not None}
            found.setdefault(node.name, {}).update(given)
    return found


def parameters(function):
    kinds = {inspect.Parameter.KEYWORD_ONLY: "by name"}
    signature = inspect.signature(function)
    return {name: kinds.get(it.kind, "positional") for name, it in signature.parameters.items()}


@pytest.mark.parametrize("name", ["Lease", "Prefetch", "Reservation", "Store", "View"])
def test_stub_names_every_method_and_parameter(name):
    real, stub = getattr(_native, name), CLASSES[name]
    members = {member for member in vars(real) if member not in UNSPOKEN}
    assert members == set(functions(stub.body)) - UNSPOKEN
    for method, expected in functions(stub.body).items():
        value = vars(real).get(method)
        if inspect.ismethoddescriptor(value) and not method.startswith("__"):
            assert parameters(value) == expected, method


def test_stub_gives_the_same_defaults():
    for method, expected in defaults(CLASSES["Store"].body).items():
        for name, value in expected.items():
            real = inspect.signature(vars(_native.Store)[method])
            assert real.parameters[name].default == value, (method, name)


def test_stub_of_the_twins_is_that_of_the_originals():
    written = runpy.run_path(str(pathlib.Path(__file__).parents[1] / "stubs.py"))["written"]()
    installed = pathlib.Path(tiffin.aio.__file__).with_suffix(".pyi").read_text()
    assert ast.dump(ast.parse(written)) == ast.dump(ast.parse(installed)), "run `make docs`"


def test_twins_have_all_members_of_the_originals():
    for kind in ("Store", "Lease", "Prefetch", "Reservation"):
        original, twin = getattr(tiffin, kind), getattr(tiffin.aio, f"Async{kind}")
        for name, member in vars(original).items():
            if name.startswith("_"):
                continue
            if inspect.isdatadescriptor(member):
                assert isinstance(getattr(twin, name), property)
            else:
                called = getattr(twin, name)
                assert inspect.iscoroutinefunction(called) or name in {"lease", "reserve", "scan"}, name
                assert inspect.signature(getattr(twin, name)) == inspect.signature(member)


def test_stub_names_every_function():
    stub = functions(STUB.body)
    real = {name: value for name, value in vars(_native).items() if inspect.isbuiltin(value)}
    assert set(real) == set(stub)
    for name, function in real.items():
        assert parameters(function) == stub[name]


def test_everything_is_documented():
    for module in (tiffin, tiffin.aio, tiffin.errors, tiffin.types):
        assert module.__doc__
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) or callable(value):
                assert inspect.getdoc(value), name
    twins = [getattr(tiffin.aio, f"Async{name}") for name in ("Lease", "Prefetch", "Reservation", "Store")]
    arrays = (tiffin.DeviceArray, tiffin.MappedArray, tiffin.View)
    for owner in (*arrays, tiffin.Lease, tiffin.Prefetch, tiffin.Reservation, tiffin.Store, *twins):
        for name, value in vars(owner).items():
            if not name.startswith("_"):
                assert inspect.getdoc(value), f"{owner.__name__}.{name}"


def test_prefetch_all_includes_every_key():
    for module in (tiffin, tiffin.errors, tiffin.types):
        assert sorted(module.__all__) == module.__all__
    public = {
        *tiffin.errors.__all__,
        *tiffin.types.__all__,
        "DeviceArray",
        "Lease",
        "MappedArray",
        "Prefetch",
        "QueuedGet",
        "Reservation",
        "Store",
        "View",
        "connect",
        "trace",
        "__version__",
    }
    assert set(tiffin.__all__) == public


def test_examples_are_found_with_their_position():
    """`test_docs` runs them; this checks that there are some."""
    finder = doctest.DocTestFinder()
    with_examples = {test.name for test in finder.find(tiffin) if test.examples}
    wanted = {
        "put",
        "reserve",
        "get",
        "get_into",
        "view",
        "exists",
        "prefetch",
        "info",
        "delete",
        "delete_prefix",
        "delete_regex",
        "list",
        "pin",
        "set_policy",
        "wait_usage",
        "why",
        "put_sample",
        "lease",
        "ack",
    }
    assert {f"tiffin.Store.{name}" for name in wanted} <= with_examples
    assert {"tiffin", "tiffin.Store", "tiffin.View", "tiffin.connect"} <= with_examples


def test_classes_have_their_public_names():
    for name in ("DeviceArray", "Lease", "MappedArray", "Prefetch", "Reservation", "Store", "View"):
        value = getattr(tiffin, name)
        assert (value.__module__, value.__name__) == ("tiffin", name)


def test_every_error_class_is_an_error():
    for name in tiffin.errors.__all__:
        error = getattr(tiffin, name)
        assert str(error("what")) == "what"
        # A put that is done but not confirmed is only a warning.
        if issubclass(error, Warning):
            assert (error("a").keys, error("a").nodes) == ((), ())
            continue
        assert issubclass(error, tiffin.Error)
        assert (error("a").key, error("a").results, error("a").is_retryable) == (None, None, False)
