"""The pure core: events and a time in, actions out."""
