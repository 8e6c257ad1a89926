"""The servers of the store tests."""

from tests.storage.conftest import backend_of

__all__ = ["backend_of"]
