"""Ways to put weights where engines can read them; a new one is a file here and a line in `open_transport`."""

from typing import Annotated

from pydantic import Field

from miles_sync.parcel import Transport
from miles_sync.transports.disk import DiskConfig, DiskTransport
from miles_sync.transports.shared_memory import SharedMemoryConfig, SharedMemoryTransport

TransportConfig = SharedMemoryConfig | DiskConfig
"""Any transport's settings."""

WeightsConfig = Annotated[TransportConfig, Field(discriminator="type")]
"""Any transport's settings as a field of a configuration, chosen by `type`."""


def open_transport(config: TransportConfig) -> Transport:
    """The transport that the settings ask for."""
    if isinstance(config, SharedMemoryConfig):
        return SharedMemoryTransport(config)
    return DiskTransport(config)
