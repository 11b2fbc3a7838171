"""The dashboard: pages as HTML and SVG, rendered on the server.

`templates` has one Jinja2 template per page, and `assets` the style, the script and the logo.

May import `server/routes` and whatever that may import.
"""
