"""The documentation site: ``make docs`` builds it from this folder, without network.

Pages are Markdown that GitHub shows, too: links are relative paths, and anchors are those of GitHub.
"""

from __future__ import annotations

import json
from inspect import isfunction
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

from scripts.pages.stored_values import json_schema
from smp_advisor import __version__

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment
    from sphinx.writers.html5 import HTML5Translator

project = "smp_advisor"
author = "The smp_advisor developers"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
nitpicky = True
keep_warnings = True
show_warning_types = True

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 6
myst_dmath_double_inline = True

autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
add_module_names = False
toc_object_entries_show_parents = "hide"
maximum_signature_line_length = 88
napoleon_google_docstring = False
default_role = "py:obj"
nitpick_ignore_regex = [("py:.*", ".*")]

html_theme = "furo"
html_title = "smp_advisor"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sphinx = False
copybutton_prompt_text = r">>> |\.\.\. |\$ |In \[\d*\]: "
copybutton_prompt_is_regexp = True


def visit_math(self: HTML5Translator, node: nodes.math) -> None:
    """Write a formula as MathML, which browsers show without a script from another host."""
    self.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def visit_displayed_math(self: HTML5Translator, node: nodes.math_block) -> None:
    """Write a displayed formula, which scrolls where it is wider than the page."""
    self.body.append(f'<div class="formula">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def leave_checks_out_of_the_navigation(_app: Sphinx, env: BuildEnvironment) -> None:
    """Let the pages of checks be in no table of contents: checks.md and the search lead to them."""
    for name in env.found_docs:
        if name.startswith("checks/"):
            env.metadata[name]["orphan"] = True


def show_the_written_signature(_app: Sphinx, value: object, _bound: bool) -> None:  # noqa: FBT001 (Sphinx' call)
    """Drop the signatures with every setting of every library, which are for completion in notebooks."""
    if isfunction(value):
        vars(value).pop("__signature__", None)


def write_the_schema(app: Sphinx, error: Exception | None) -> None:
    """Write the JSON Schema of stored values next to the pages."""
    if error is None:
        Path(app.outdir, "stored_values.json").write_text(json.dumps(json_schema(), indent=1) + "\n", "utf-8")


def setup(app: Sphinx) -> None:
    """Register the renderer of formulas: Sphinx' own one loads MathJax from the network."""
    app.connect("autodoc-before-process-signature", show_the_written_signature)
    app.connect("build-finished", write_the_schema)
    app.connect("env-updated", leave_checks_out_of_the_navigation)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_displayed_math, None))
