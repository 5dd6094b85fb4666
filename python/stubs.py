"""Writes `tiffin/aio.pyi` from `tiffin/_native.pyi`: the same methods as coroutines. `make docs` runs it."""

import ast
import pathlib

FOLDER = pathlib.Path(__file__).parent / "tiffin"
HEAD = '''"""Types of the asyncio twins. Written by `stubs.py` from `_native.pyi`."""
# mypy: disable-error-code="overload-overlap"

'''
TWINS = {
    "Store": "AsyncStore",
    "Lease": "AsyncLease",
    "Prefetch": "AsyncPrefetch",
    "QueuedGet": "AsyncQueuedGet",
    "Reservation": "AsyncReservation",
}
OPENING = """
class _Opening(Coroutine[Any, Any, _Opened]):
    def send(self, value: Any) -> Any: ...
    def throw(self, *error: Any) -> Any: ...
    def close(self) -> None: ...
    def __await__(self) -> Generator[Any, Any, _Opened]: ...
    async def __aenter__(self) -> _Opened: ...
    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...
"""
CONNECT = """
def connect(
    address: str | None = None,
    *,
    memory: int | str | None = None,
    ssd: str | Iterable[str] = (),
    namespace: str | None = None,
    token: str | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    tls_cert: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    shared_memory: bool | None = None,
    timeout: float | None = None,
) -> _Opening[AsyncStore]: ...
"""

#: Methods that a twin has in addition.
MORE = {
    "Prefetch": "def __await__(self) -> Generator[Any, None, Outcome | list[Outcome]]: ...",
    "Store": "def __aiter__(self) -> AsyncIterator[Key]: ...",
}
#: Methods whose result can be used with `async with`, without an `await`.
OPENS = {"lease", "reserve"}
#: Names of `collections.abc` that only the twins use.
ABSTRACT = ("AsyncIterator", "Coroutine", "Generator")


class Rename(ast.NodeTransformer):
    """Gives a class and the types in it their new names."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.copy_location(ast.Name(TWINS.get(node.id, node.id), node.ctx), node)


def twin(node: ast.ClassDef) -> ast.ClassDef:
    """The class with coroutines for methods."""
    body = []
    for member in Rename().visit(node).body:
        decorators = {it.id for it in member.decorator_list if isinstance(it, ast.Name)}
        if "property" in decorators:
            body.append(member)
        elif member.name == "scan":
            member.returns.value.id = "AsyncIterator"
            body.append(member)
        elif member.name in OPENS:
            kind = "_Opening[{}]" if isinstance(member.returns, ast.Name) else "Coroutine[Any, Any, {}]"
            member.returns = ast.parse(kind.format(ast.unparse(member.returns)), mode="eval").body
            body.append(member)
        elif not member.name.startswith("_"):
            body.append(ast.AsyncFunctionDef(**dict(ast.iter_fields(member))))
        elif member.name in ("__enter__", "__exit__"):
            fields = dict(ast.iter_fields(member)) | {"name": member.name.replace("__", "__a", 1)}
            body.append(ast.AsyncFunctionDef(**fields))
    body += ast.parse(MORE.get(node.name, "")).body
    return ast.ClassDef(TWINS[node.name], node.bases, node.keywords, body, node.decorator_list)


def written() -> str:
    """The stub, not yet formatted."""
    tree = ast.parse((FOLDER / "_native.pyi").read_text())
    classes = [twin(node) for node in tree.body if isinstance(node, ast.ClassDef) and node.name in TWINS]
    connect = ast.parse(CONNECT).body
    classes[:0] = ast.parse(OPENING).body
    variables = [node for node in tree.body if isinstance(node, ast.Assign)]
    variables += ast.parse('_Opened = TypeVar("_Opened", covariant=True)').body
    used = {it.id for part in [*classes, *variables] for it in ast.walk(part) if isinstance(it, ast.Name)}
    imports = ast.parse("import os").body
    for node in tree.body:
        if isinstance(node, ast.Import):
            imports.append(node)
        elif isinstance(node, ast.ImportFrom):
            names = [it for it in node.names if it.name in used]
            if node.module == "collections.abc":
                names = [ast.alias(name) for name in sorted({*ABSTRACT, *(it.name for it in names)})]
            imports += [ast.ImportFrom(node.module, names, node.level)] if names else []
    # As ruff sorts them.
    imports.sort(key=lambda it: (1, "") if isinstance(it, ast.ImportFrom) else (0, it.names[0].name))
    ours = [node.target.id for node in tree.body if isinstance(node, ast.AnnAssign)]
    ours += [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    names = [ast.alias(name) for name in sorted(ours) if name in used]
    first = next(at for at, node in enumerate(imports) if getattr(node, "level", 0))
    imports.insert(first, ast.ImportFrom("_native", names, 1))
    body = [*imports, *variables, *classes, *connect]
    return HEAD + ast.unparse(ast.fix_missing_locations(ast.Module(body, []))) + "\n"


if __name__ == "__main__":
    (FOLDER / "aio.pyi").write_text(written())
