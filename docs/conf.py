"""How `make docs` builds the site: Sphinx, Markdown pages, the theme of JAX's own site.

Its source is the repository, so that links between pages are those of a code host.  The sidebar is
what `docs/index.md` links to, in its order.
"""

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from jaxpr_opt.version import __version__  # noqa: E402

project = "jaxpr-opt"
project_copyright = "the developers of jaxpr-opt, Apache-2.0"
version = release = __version__
root_doc = "docs/index"
include_patterns = ["docs/**", "examples/README.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md"]
exclude_patterns = [".*", "build", "**/__pycache__"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
html_theme = "sphinx_book_theme"
html_title = "jaxpr-opt"
html_theme_options = {"show_toc_level": 2, "use_download_button": False}
myst_heading_anchors = 4
autodoc_typehints = "none"
autodoc_member_order = "bysource"
default_role = "code"

LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+\.(?:md|rst))\)")


def setup(app: Any) -> None:
    """Put what the index links to into the sidebar, and the index where browsers look for it."""
    app.connect("source-read", _with_sidebar)
    app.connect("build-finished", _with_front_door)


def _with_sidebar(_: Any, page: str, source: list[str]) -> None:
    if page == root_doc:
        listed = "\n".join(dict.fromkeys(LINK.findall(source[0])))
        source[0] += f"\n```{{toctree}}\n:hidden:\n\n{listed}\n```\n"


def _with_front_door(app: Any, error: Exception | None) -> None:
    if error is None:
        door = f'<!doctype html><meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
        (Path(app.outdir) / "index.html").write_text(door)
