"""The model gateway: the one way out of an agent's container, to the model of its config.

It listens on a unix socket of the host that is bound into the container. A request passes if its
path and every field of its body are in the table of its dialect (``responses``, ``chat``,
``messages``, ``gemini``: one file each); the key is added here, and the reply is passed on byte
for byte while a copy of it is read for its usage and its words. See docs/models.md.
"""
