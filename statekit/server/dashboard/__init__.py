"""The pages of the dashboard as HTML and SVG. The routes that read the data are beside it.

`templates` has one Jinja2 template per page, and `assets` the style, the script and the logo.

May import nothing of the package.
"""
