"""Makes a book of these pages by Sphinx: `bash scripts/test.sh book` builds it into book/.

The pages are written for GitHub as well. So the index, README.md, is the only place that orders
them: its chapters become the book's.
"""

import os
import re
import shutil
import sys
import tomllib
from pathlib import Path

DOCS = Path(__file__).parent
REPO = DOCS.parent
sys.path.insert(0, str(REPO))

project = "dali_pipes"
release = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["version"]
html_title = f"{project} {release}"

extensions = ["myst_parser"]
root_doc = "README"
include_patterns = ["*.md", "tutorials/*.md"]
myst_heading_anchors = 6  # the names that GitHub gives to headings
smartquotes = False  # -- is the beginning of an option

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
