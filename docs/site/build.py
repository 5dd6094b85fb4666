"""Builds the documentation as static files: `make site`.

The pages are our Markdown files as they are in the tree, and a reference of the Python package from its stubs
and docstrings. Nothing is loaded from elsewhere, and no page has a script.

- A link to another Markdown file becomes a link to its page. A link to a file without a page, such as source
  code, becomes text.
- A link that leads nowhere, and an anchor that does not exist, is an error.
"""

import argparse
import ast
import html
import importlib
import importlib.metadata
import inspect
import os
import pathlib
import re
import shutil
import sys

import markdown_it

ROOT = pathlib.Path(__file__).resolve().parents[2]
STYLE = pathlib.Path(__file__).with_name("site.css")

#: The list of pages: sections, and the files of each. Files that are not listed are added at the end.
SECTIONS = {
    "Start": [
        "README.md",
        "docs/start/trainer.md",
        "docs/start/inference.md",
        "docs/start/operator.md",
        "docs/tour.md",
    ],
    "Use": ["docs/python.md", "docs/features.md", "docs/kv.md", "docs/gpu.md", "docs/ssd.md"],
    "Plug in": [
        "docs/integrations/README.md",
        "docs/integrations/sglang.md",
        "docs/integrations/vllm.md",
        "docs/integrations/lmcache.md",
        "docs/integrations/transfer-queue.md",
        "docs/integrations/specforge.md",
        "docs/integrations/torchspec.md",
        "docs/mooncake-compat.md",
    ],
    "Migrate": ["docs/migrate/mooncake.md", "docs/migrate/redis.md", "docs/migrate/files.md"],
    "Run": [
        "docs/deploy.md",
        "docs/operations.md",
        "docs/security.md",
        "docs/tracing.md",
        "docs/performance.md",
    ],
    "Reference": [
        "docs/settings.md",
        "docs/kv-settings.md",
        "docs/metrics.md",
        "docs/glossary.md",
        "CHANGELOG.md",
    ],
    "Inside": [
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "STYLE.md",
        "docs/simulation.md",
        "docs/protocol.md",
        "docs/format.md",
    ],
}
#: Other folders whose Markdown files have pages.
FOLDERS = ("docs", "docs/notes", "docs/integrations", "docs/start", "docs/migrate")
OTHERS = ("python-mooncake/README.md", "examples/hidden_states/README.md")
#: Modules with a page in the reference, and the stub where the code itself has no annotations.
MODULES = {
    "tiffin": "python/tiffin/_native.pyi",
    "tiffin.aio": "python/tiffin/aio.pyi",
    "tiffin.types": "python/tiffin/types.py",
    "tiffin.errors": "python/tiffin/errors.py",
    "tiffin.features": "python/tiffin/features/store.py",
    "tiffin.kv": "python/tiffin/kv.py",
    "tiffin.integrations.sglang": "python/tiffin/integrations/sglang.py",
    "tiffin.integrations.vllm": "python/tiffin/integrations/vllm.py",
    "tiffin.integrations.vllm_tier": "python/tiffin/integrations/vllm_tier.py",
    "tiffin.integrations.lmcache": "python/tiffin/integrations/lmcache.py",
    "tiffin.integrations.transfer_queue": "python/tiffin/integrations/transfer_queue.py",
    "tiffin.integrations.specforge": "python/tiffin/integrations/specforge.py",
    "tiffin.integrations.torchspec": "python/tiffin/integrations/torchspec.py",
    "tiffin.integrations.tokenspeed": "python/tiffin/integrations/tokenspeed.py",
}


class Broken(Exception):
    """Links that lead nowhere."""


class Page:
    """A page: where it comes from, where it goes, its title and its content."""

    def __init__(self, source, target, text):
        self.source, self.target, self.text = source, target, text
        found = re.search(r"^# (.+)$", text, re.MULTILINE)
        self.title = re.sub(r"[`*]", "", found[1]) if found else source
        self.anchors, self.links, self.body = {"top"}, [], ""


def pages():
    """All pages, by source: our Markdown files and the reference."""
    listed = [name for names in SECTIONS.values() for name in names if (ROOT / name).exists()]
    more = [
        str(path.relative_to(ROOT)) for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.md"))
    ]
    found = {}
    for name in dict.fromkeys([*listed, *more, *OTHERS]):
        found[name] = Page(name, target_of(name), (ROOT / name).read_text())
    for module, stub in MODULES.items():
        name = f"api/{module}"
        found[name] = Page(name, f"api/{module}.html", reference(module, ROOT / stub))
    return found


def target_of(name):
    """The file of a page: `index.html` for the front page and for a folder's page."""
    if name == "README.md":
        return "index.html"
    path = pathlib.PurePosixPath(name)
    path = path.relative_to("docs") if path.parts[0] == "docs" else path
    return str(path.with_name("index.html") if path.name == "README.md" else path.with_suffix(".html"))


# Markdown.


def slug(text, taken):
    """The anchor of a heading, as GitHub makes it."""
    plain = re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")
    name, count = plain, 0
    while name in taken:
        count += 1
        name = f"{plain}-{count}"
    return name


def render(page, found):
    """The content of a page as HTML, its anchors, and its links to other pages."""
    parser = markdown_it.MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(re.sub(r"<!--.*?-->\n?", "", page.text, flags=re.DOTALL))
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            inline = tokens[at + 1]
            text = "".join(it.content for it in inline.children if it.type in ("text", "code_inline"))
            anchor = slug(text, page.anchors)
            page.anchors.add(anchor)
            token.attrSet("id", anchor)
            inline.children.append(markdown_it.token.Token("html_inline", "", 0))
            inline.children[-1].content = f' <a class="anchor" href="#{anchor}" aria-label="link">#</a>'
        for child in token.children or ():
            if child.type == "link_open":
                relink(page, child, found)
            elif child.type == "image":
                raise Broken(f"{page.source}: pictures are not supported")
    drop_empty_links(tokens)
    body = parser.renderer.render(tokens, parser.options, {})
    page.body = body.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")


def relink(page, token, found):
    """Turns a link to a file into one to its page. A link without a page is marked, to become text."""
    href = token.attrGet("href")
    if re.match(r"[a-z]+:", href):
        return
    path, _, anchor = href.partition("#")
    if not path:
        page.links.append((page.source, anchor))
        return
    folder = pathlib.PurePosixPath(page.source).parent
    source = os.path.normpath(str(folder / path))
    for name in (source, f"{source}/README.md"):
        if name in found:
            page.links.append((name, anchor))
            here = pathlib.PurePosixPath(page.target).parent
            token.attrSet("href", relative(found[name].target, here) + (f"#{anchor}" if anchor else ""))
            return
    if not (ROOT / source).exists():
        raise Broken(f"{page.source}: `{href}` does not exist")
    token.attrSet("href", "")


def drop_empty_links(tokens):
    """Removes links that have no page, and keeps their text."""
    for token in tokens:
        kept, open_links = [], []
        for child in token.children or ():
            if child.type == "link_open":
                open_links.append(child.attrGet("href") == "")
                if open_links[-1]:
                    continue
            elif child.type == "link_close" and open_links.pop():
                continue
            kept.append(child)
        if token.children is not None:
            token.children = kept


def relative(target, folder):
    """A path from a folder of the site to a file of it."""
    return os.path.relpath(target, str(folder))


# The reference.


def reference(module, stub):
    """The reference of a module, as Markdown."""
    lines = [f"# `{module}`"]
    try:
        living = importlib.import_module(module)
    except ImportError as error:
        raise Broken(f"{module} cannot be imported: {error}; build the wheel first") from error
    lines += [described(living.__doc__), f"From `{stub.relative_to(ROOT)}`."]
    if module == "tiffin":
        lines += module_functions(living)
    tree = ast.parse(stub.read_text())
    for node in tree.body:
        name = getattr(node, "name", "_")
        if name.startswith("_") or not isinstance(
            node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ):
            continue
        held = getattr(living, name, None)
        if isinstance(node, ast.ClassDef):
            lines += class_of(node, held)
        else:
            lines += [f"## `{name}`", code([signature(node)]), documented(node, held)]
    return "\n\n".join(line for line in lines if line) + "\n"


def module_functions(living):
    """Functions that only the code declares."""
    lines = []
    for name in ("connect",):
        held = getattr(living, name)
        told = str(inspect.signature(held)).replace("'", "")
        lines += [f"## `tiffin.{name}`", code([f"{name}{told}"]), described(held.__doc__)]
    return lines


def class_of(node, held):
    """A class: its bases, fields and methods. Overloads of a method are together."""
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    lines = [f"## `{node.name}`", code([f"class {node.name}({bases})" if bases else f"class {node.name}"])]
    lines.append(documented(node, held))
    fields = [it for it in node.body if isinstance(it, ast.AnnAssign) and not it.target.id.startswith("_")]
    if fields:
        lines.append(code([ast.unparse(field) for field in fields]))
    methods = {}
    for it in node.body:
        if isinstance(it, ast.FunctionDef | ast.AsyncFunctionDef) and is_shown(it.name):
            methods.setdefault(it.name, []).append(it)
    for name, forms in methods.items():
        lines += [f"### `{node.name}.{name}`", code([signature(form) for form in forms])]
        lines.append(documented(forms[0], getattr(held, name, None)))
    return lines


def is_shown(name):
    return not name.startswith("_") or name in ("__getitem__", "__setitem__", "__contains__", "__init__")


def signature(node):
    """The first line of a function."""
    told = ast.unparse(node.args)
    returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    mark = "@property\n" if any(ast.unparse(it) == "property" for it in node.decorator_list) else ""
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    line = f"{mark}{word} {node.name}({told}){returned}"
    return line if len(line) < 100 else line.replace(", ", ",\n    ")


def code(lines):
    return "```py\n" + "\n".join(lines) + "\n```"


def documented(node, held):
    """The docstring in the code, or else that of the living object."""
    return described(ast.get_docstring(node) or getattr(held, "__doc__", None))


def described(text):
    """A docstring as Markdown: its examples become blocks."""
    if not text:
        return ""
    lines, block = [], []
    for line in inspect.cleandoc(text).splitlines():
        is_code = line.startswith((">>>", "    ")) or (block and line.strip() != "")
        if is_code:
            block.append(line)
        else:
            if block:
                lines += ["", "```py", *block, "```", ""]
                block = []
            lines.append(re.sub(r"^#+ ", "", line))
    if block:
        lines += ["", "```py", *block, "```"]
    return "\n".join(lines).strip()


# Output.


def navigation(page, found):
    """The list of pages, as seen from one of them."""
    here = pathlib.PurePosixPath(page.target).parent
    home = relative("index.html", here)
    parts = [f'<a class="home" href="{home}">Tiffin</a>']
    sections = {title: [found[name] for name in names if name in found] for title, names in SECTIONS.items()}
    sections["Python reference"] = [found[f"api/{module}"] for module in MODULES]
    sections["Notes"] = [it for name, it in found.items() if name.startswith("docs/notes/")]
    for title, listed in sections.items():
        parts.append(f"<h2>{html.escape(title)}</h2>\n<ul>")
        for it in listed:
            current = ' aria-current="page"' if it is page else ""
            name = "Overview" if it.target == "index.html" else it.title.removeprefix("Quick start: ")
            name = name[:1].upper() + name[1:] if it.source.startswith("docs/start/") else name
            href = relative(it.target, here)
            parts.append(f'<li><a href="{href}"{current}>{html.escape(name)}</a></li>')
        parts.append("</ul>")
    return "\n".join(parts)


def document(page, found, version):
    here = pathlib.PurePosixPath(page.target).parent
    title = page.title if page.title.startswith("Tiffin") else f"{page.title} - Tiffin"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<link rel="stylesheet" href="{relative("site.css", here)}">
</head>
<body>
<nav id="pages" aria-label="pages">
{navigation(page, found)}
</nav>
<main id="top">
<a class="pages" href="#pages">All pages</a>
{page.body}
<footer>Tiffin {html.escape(version)}. Source of this page: {html.escape(page.source)}</footer>
</main>
</body>
</html>
"""


def check(found):
    """Every link leads to a page, and every anchor to a heading."""
    wrong = [
        f"{page.source}: `{name}` has no heading `#{anchor}`"
        for page in found.values()
        for name, anchor in page.links
        if anchor and anchor not in found[name].anchors
    ]
    if wrong:
        raise Broken("\n".join(wrong))


def build(output):
    """Write the site into a folder, which is emptied first; the number of pages."""
    found = pages()
    for page in found.values():
        render(page, found)
    check(found)
    shutil.rmtree(output, ignore_errors=True)
    version = importlib.metadata.version("tiffin")
    for page in found.values():
        path = output / page.target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(document(page, found, version))
    shutil.copy(STYLE, output / "site.css")
    return len(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=pathlib.Path)
    options = parser.parse_args()
    try:
        count = build(options.output)
    except Broken as error:
        sys.exit(
            f"error: the site was not built\n{error}\n\nhint: mend the links, or list the page in build.py"
        )
    print(f"wrote {count} pages; open {options.output / 'index.html'}")


if __name__ == "__main__":
    main()
