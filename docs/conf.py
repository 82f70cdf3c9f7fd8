"""The documentation site: `make docs` builds it, and every warning is an error."""

import re
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

import fcco

DOCS = Path(__file__).parent
logger = logging.getLogger(__name__)

project = "fcco"
author = "The fcco authors"
copyright = "The fcco authors"
version = release = fcco.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]
nitpicky = False
highlight_language = "none"  # a block says what it is; docstrings have equations in theirs

# Markdown
myst_enable_extensions = ["attrs_block", "colon_fence", "deflist"]
myst_heading_anchors = 4

# Notebooks are executed when the site is built, and again only where their code has changed.
nb_execution_mode = "cache"
nb_execution_timeout = 1800  # seconds for a cell; a busy machine takes many times what an idle one does
nb_execution_raise_on_error = True
nb_merge_streams = True

# Docstrings
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # attributes as a list: dataclasses have them as fields already
autodoc_default_options = {
    "exclude-members": "extra_repr, set_fit_request, set_score_request"
}  # torch and scikit-learn describe them
autodoc_type_aliases = {"Schedule": "Schedule"}

# What one sees
html_theme = "furo"
html_math_renderer = "mathml"
pygments_dark_style = "github-dark"
html_title = "fcco"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


# Links that leave this folder: the site has no such page, so the path is named instead.
LEAVING = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)#]+)(?:#[^)]*)?\)")


def name_paths_outside(app: Sphinx, page: str, content: list[str]) -> None:
    """Replace links to files of the repository by the path; one that is not there is a warning, hence an error."""
    if app.env.doc2path(page).suffix == ".ipynb":
        return  # its text is JSON, in which quotes would have to be escaped

    def named(link: re.Match[str]) -> str:
        text, target = link.groups()
        path = ((DOCS / page).parent / target).resolve()
        if not path.exists():
            logger.warning("no such file: %s", target, location=page)
        if path.is_relative_to(DOCS):
            return link.group()  # a page of the site after all, seen from one in a folder
        inside = path.relative_to(DOCS.parent).as_posix()
        if text.strip("`") == inside:
            return f"`{inside}`"
        return f"{text} (`{inside}`)"

    content[0] = LEAVING.sub(named, content[0])


def name_aliases(
    app: Sphinx, what: str, name: str, obj: object, options: object, arguments: str | None, returns: str | None
) -> tuple[str, str | None] | None:
    """Write an alias of a type by its name alone: a signature is long enough."""
    if arguments is None:
        return None  # an attribute
    alias = re.compile(r"TypeAliasForwardRef\('(\w+)'\)")
    if returns is not None:
        returns = alias.sub(r"\1", returns)
    return alias.sub(r"\1", arguments), returns


def write_formula(translator: HTML5Translator, node: nodes.math) -> None:
    """A formula in a line, as MathML: every browser draws it, and no script has to be fetched for it."""
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def write_formula_block(translator: HTML5Translator, node: nodes.math_block) -> None:
    """A formula of its own; several lines are aligned at their ampersands."""
    formula = node.astext()
    if "\\\\" in formula and "\\begin{" not in formula:
        formula = "\\begin{aligned}" + formula + "\\end{aligned}"
    translator.body.append('<div class="formula">' + convert(formula, display="block") + "</div>")
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    app.add_html_math_renderer("mathml", (write_formula, None), (write_formula_block, None))
    app.connect("autodoc-process-signature", name_aliases)
    app.connect("source-read", name_paths_outside)
