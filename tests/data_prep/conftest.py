"""Settings of hypothesis for the tests of data."""

from hypothesis import settings

# An example may meet a busy machine, or the first import of a library.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
