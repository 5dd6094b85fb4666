"""The site of the documentation: it is complete, its links work, and it loads nothing."""

import html.parser
import importlib.util
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("site_build", ROOT / "docs" / "site" / "build.py")
builder = importlib.util.module_from_spec(spec)
spec.loader.exec_module(builder)


class Reader(html.parser.HTMLParser):
    """The links, anchors and loaded files of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors, self.loads, self.tags = [], set(), [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.add(tag)
        self.anchors |= {given["id"]} if "id" in given else set()
        if tag == "a":
            self.links.append(given["href"])
        elif tag == "link":
            self.loads.append(given["href"])
        assert "src" not in given and not [it for it in given if it.startswith("on")]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    builder.build(folder)
    return {path.relative_to(folder): Reader(path.read_text()) for path in folder.rglob("*.html")}, folder


def test_every_document_has_a_page_that_is_listed(site):
    pages, _ = site
    for path in [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/[!s]*/*.md"), *ROOT.glob("docs/start/*.md")]:
        assert pathlib.Path(builder.target_of(str(path.relative_to(ROOT)))) in pages, path
    front = pages[pathlib.Path("index.html")]
    for name in ("start/trainer", "start/inference", "start/operator", "api/tiffin", "settings"):
        assert f"{name}.html" in front.links
    for name in ("migrate/mooncake", "migrate/redis", "migrate/files", "integrations/vllm"):
        assert f"{name}.html" in front.links


def test_every_link_leads_to_a_page_and_a_heading(site):
    pages, _ = site
    for name, page in pages.items():
        for link in page.links:
            if re.match("https?:", link):
                continue
            path, _, anchor = link.partition("#")
            target = pathlib.Path(*((name.parent / path).parts if path else name.parts))
            target = pathlib.Path(builder.os.path.normpath(target))
            assert target in pages, f"{name}: {link}"
            assert not anchor or anchor in pages[target].anchors, f"{name}: {link}"


def test_pages_load_only_their_style(site):
    pages, folder = site
    for name, page in pages.items():
        assert [(name.parent / load).name for load in page.loads] == ["site.css"]
        assert not page.tags & {"script", "img", "iframe", "object"}, name
    style = (folder / "site.css").read_text()
    assert "url(" not in style and "@import" not in style and "prefers-color-scheme: dark" in style


def test_reference_has_every_method_of_the_stub(site):
    _, folder = site
    text = (folder / "api" / "tiffin.html").read_text()
    for name in ("put", "get_into", "exists", "why", "drop_pins", "delete_prefix", "open_stream"):
        assert f"<code>Store.{name}</code>" in text, name
    assert "on_exists: OnExists" in text
    assert "<code>tiffin.connect</code>" in text and "shared_memory" in text
    stats = (folder / "api" / "tiffin.types.html").read_text()
    assert "class ObjectInfo(NamedTuple)" in stats and "An object that can be read." in stats


@pytest.fixture
def one(tmp_path, monkeypatch):
    """Renders a page of this text, beside another page."""
    monkeypatch.setattr(builder, "ROOT", tmp_path)
    (tmp_path / "code.rs").write_text("")

    def render(text):
        found = {
            "a.md": builder.Page("a.md", "a.html", text),
            "sub/b.md": builder.Page(
                "sub/b.md", "sub/b.html", "# B\n## A `part`, twice\n## A `part`, twice\n"
            ),
        }
        for page in found.values():
            builder.render(page, found)
        builder.check(found)
        return found["a.md"].body

    return render


def test_links_become_links_to_pages_or_text(one):
    body = one("# T\n[b](sub/b.md#a-part-twice-1) [code](code.rs) [web](https://example.org/)\n<!-- no -->\n")
    assert 'href="sub/b.html#a-part-twice-1"' in body and 'href="https://example.org/"' in body
    assert "code.rs" not in body and " code " in body and "no" not in body


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[x](missing.md)", "`missing.md` does not exist"),
        ("[x](sub/b.md#never)", "no heading `#never`"),
        ("[x](#never)", "no heading `#never`"),
    ],
)
def test_broken_links_are_errors(one, text, says):
    with pytest.raises(builder.Broken, match=re.escape(says)):
        one(f"# T\n{text}\n")


def test_markup_in_documents_is_text(one):
    assert "<script" not in one("# T\n<script>alert(1)</script>\n")
