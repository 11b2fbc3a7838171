"""Programs to learn from, one file each. See README.md in this folder."""
