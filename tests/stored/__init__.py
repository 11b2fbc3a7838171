"""Checkpoints and savepoints as earlier versions wrote them, with the recipes that made them."""
