"""The servers of the store tests."""

from tests.stores.conftest import backend_of

__all__ = ["backend_of"]
