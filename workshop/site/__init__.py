"""The web edition: notebooks as they are stored, prepared, set by Sphinx, searched by Pagefind.

Nothing is executed: what a page shows is what its notebook holds. `python -m workshop site` builds
it, `make site` in an environment of its own; neither needs a network, and nor has a reader's
browser to ask any other machine for anything.
"""
