"""Engines: what turns a prompt into tokens."""
