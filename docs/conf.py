"""Makes a book of these pages by Sphinx: `bash scripts/test.sh book` builds it into book/.

The pages are written for GitHub as well. So the index, README.md, is the only place that orders
them: its chapters become the book's.
"""

import inspect
import os
import re
import shutil
import sys
import tomllib
from dataclasses import is_dataclass
from pathlib import Path

DOCS = Path(__file__).parent
REPO = DOCS.parent
sys.path.insert(0, str(REPO))

from sphinx.util.inspect import stringify_signature  # noqa: E402

import dali_pipes  # noqa: E402
from dali_pipes.plan.sampling.base import Sampling  # noqa: E402
from dali_pipes.plan.transforms.base import RandomTransform, Transform  # noqa: E402

project = "dali_pipes"
release = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["version"]
html_title = f"{project} {release}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
include_patterns = ["*.md", "tutorials/*.md"]
myst_heading_anchors = 6  # the names that GitHub gives to headings
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
napoleon_custom_sections = [("Attributes", "params_style")]  # one list, and not an entry for each
default_role = "literal"  # `this` in a docstring is what it is in Markdown
smartquotes_action = "D"  # quotes stay as they are: many stand around code

# On GitHub the book links to the files of its commit, elsewhere to those of the checkout.
if "GITHUB_REPOSITORY" in os.environ:
    FILES = "{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}/blob/{GITHUB_SHA}".format(**os.environ)
else:
    FILES = REPO.as_uri()
myst_url_schemes = {"http": None, "https": None, "mailto": None, "repo": FILES + "/{{path}}"}

html_theme = "furo"
html_static_path = ["book.css"]
html_css_files = ["book.css"]
html_copy_source = False
html_show_copyright = False

LINK = re.compile(r"\[([^][]*)\]\((?!\w+:|#)([^()\s#]+)(?=[^()\s]*\))")
IMAGES = (".svg", ".png")


def setup(app):
    """Connects what follows with Sphinx."""
    app.connect("source-read", link_files)
    app.connect("source-read", add_chapters)
    app.connect("build-finished", name_index)
    app.connect("autodoc-process-signature", shorten_signature)
    app.connect("autodoc-process-docstring", complete_options, priority=100)  # before napoleon
    app.connect("autodoc-process-docstring", mark_up, priority=200)


def link_files(app, name, source):
    """Links to the repository where a page names a file that is none of the book."""
    folder = (DOCS / name).parent

    def replace(match):
        path = Path(os.path.normpath(folder / match[2]))
        if path in pages or path.suffix in IMAGES:
            return match[0]
        return f"[{match[1]}](repo:{path.relative_to(REPO)}"

    pages = {DOCS / f"{page}.md" for page in app.env.found_docs}
    source[0] = LINK.sub(replace, source[0])


def add_chapters(app, page, source):
    """Makes a chapter of the book of each heading of the index and the links under it.

    A page has the title of its link in the book's list of chapters.
    """
    if page != root_doc:
        return
    for part in source[0].split("\n## ")[1:]:
        title, _, text = part.partition("\n")
        pages = [f"{name.replace('`', '')} <{page}>" for name, page in LINK.findall(text)]
        lines = ["```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```"]
        source[0] += "\n" + "\n".join(lines) + "\n"


def name_index(app, failure):
    """Names the index as servers of files expect it."""
    if not failure:
        shutil.copy(Path(app.outdir, "README.html"), Path(app.outdir, "index.html"))


# classes whose options are described once, and not with each class that has them
SHARED = (Transform, RandomTransform, Sampling)
LINKED = sorted({*dali_pipes.__all__} - {"load"})  # which Manifest.load is called too
PUBLIC = re.compile(f"`({'|'.join(LINKED)})`")
CODE = re.compile(r"(`[^`]*`)")


def shorten_signature(app, kind, name, what, options, signature, returned):
    """Leaves the options that are described once out of the arguments of a class."""
    if not (isinstance(what, type) and is_dataclass(what)):
        return None
    own = inspect.signature(what, eval_str=True)
    bases = [base for base in SHARED if issubclass(what, base) and what not in SHARED]
    if bases:
        shared = {name for base in bases for name in inspect.signature(base).parameters}
        kept = [each for name, each in own.parameters.items() if name not in shared]
        others = inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD)
        own = own.replace(parameters=[*kept, others])

    text = stringify_signature(own, unqualified_typehints=True, show_return_annotation=False)
    # a dataclass has this for an empty list, and it is no Python
    return text.replace("<factory>", "..."), None


def complete_options(app, kind, name, what, options, lines):
    """Adds to the options of a class those of its bases, which have no entry of their own."""
    if not (isinstance(what, type) and is_dataclass(what)) or what in SHARED:
        return
    more = []
    for base in what.mro()[1:]:
        _, _, text = inspect.cleandoc(vars(base).get("__doc__") or "").partition("Attributes:\n")
        more += text.splitlines() if base not in SHARED else []
    if not more:
        return

    if "Attributes:" not in lines:
        lines += ["", "Attributes:", ""]
    start = lines.index("Attributes:") + 1
    ends = (at for at in range(start, len(lines)) if not lines[at].startswith(" "))
    end = next(ends, len(lines))
    lines[end:end] = more


def mark_up(app, kind, name, what, options, lines):
    """Writes in Sphinx's way what docstrings write for those who read them in the source."""
    for number, line in enumerate(lines):
        line = PUBLIC.sub(r":py:obj:`~dali_pipes.\1`", line)
        line = re.sub(r"docs/([\w-]+)\.md", r":doc:`\1`", line)
        parts = CODE.split(line)
        parts[::2] = [re.sub(r"\*|_\b", r"\\\g<0>", part) for part in parts[::2]]
        lines[number] = "".join(parts)
