"""Forge: the module is still there, with nothing in it."""
