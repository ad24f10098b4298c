"""Hypothesis profiles: ``--hypothesis-profile=thorough`` for a long search.

No deadline in either: a test must not fail because the machine is busy.
"""

from hypothesis import settings

settings.register_profile("default", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile("default")
