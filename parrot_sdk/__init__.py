"""The Parrot client SDK."""
