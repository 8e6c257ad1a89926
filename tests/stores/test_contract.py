"""Every store passes the one suite."""

from __future__ import annotations

from typing import Any

import pytest
from azure.storage.blob.aio import ContainerClient

from tests.stores.contract import StoreContract


class TestLocalDisk(StoreContract):
    backend_name = "local"
    has_real_folders = True


class TestMemory(StoreContract):
    backend_name = "memory"
    has_real_folders = True


@pytest.mark.sampled(4, of="class")
class TestS3OfMoto(StoreContract):
    backend_name = "moto"


class TestS3OfMinistack(StoreContract):
    backend_name = "ministack"


@pytest.mark.sampled(4, of="class")
class TestAzureOfAzurite(StoreContract):
    backend_name = "azurite"
    page_names = 100

    @pytest.fixture(autouse=True)
    def pages_of_few_names(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Azure answers 5,000 names at once, and Azurite takes half a minute to hold so many."""
        page = self.page_names
        walk_blobs = ContainerClient.walk_blobs

        def walk_in_pages(self: ContainerClient, *args: Any, **options: Any) -> Any:
            return walk_blobs(self, *args, **{"results_per_page": page, **options})

        monkeypatch.setattr(ContainerClient, "walk_blobs", walk_in_pages)


@pytest.mark.sampled(4, of="class")
class TestGcsDouble(StoreContract):
    backend_name = "gcs"
