"""The Parrot server: a scheduler of LLM programs in front of an engine."""
