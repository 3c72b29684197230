"""The documentation site: `make docs` builds it into build/site, without a network."""

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_extensions"))

project = "Phalanx"
author = "Phalanx developers"
copyright = author  # noqa: A001  Sphinx's name
version = release = installed_version("phalanx")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
    "sphinx_design",
    "commands",
    "docstrings",
    "local_inventories",
    "records",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_extensions", "_static"]

# Pages
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
highlight_language = "none"
copybutton_exclude = ".linenos, .gp, .go"

# The API, from docstrings and type hints
default_role = "code"
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_preserve_defaults = True
autoclass_content = "both"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

# Look
html_theme = "furo"
html_title = "Phalanx"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "navigation_with_keys": True,
    "light_css_variables": {
        "color-brand-primary": "#0b5c8a",
        "color-brand-content": "#0b5c8a",
        "font-stack--monospace": "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace",
    },
    "dark_css_variables": {
        "color-brand-primary": "#6db8e6",
        "color-brand-content": "#6db8e6",
    },
}
