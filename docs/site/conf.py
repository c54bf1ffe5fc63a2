"""Settings of Sphinx for the site; `make.py` prepares the pages."""

project = "rlvr"
author = "the authors of rlvr"
project_copyright = "the authors of rlvr"
extensions = ["myst_parser"]
myst_enable_extensions = ["attrs_block"]  # a class for the tables of settings
html_theme = "furo"
html_title = "rlvr"
html_show_sphinx = False
smartquotes = False  # commands and JSON are copied from the pages
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
html_static_path = ["static"]
html_css_files = ["wide.css"]
myst_heading_anchors = 3
pygments_style = "friendly"
pygments_dark_style = "native"
