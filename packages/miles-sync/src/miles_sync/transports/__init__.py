"""Ways to put weights where engines can read them; a new one is a file here and a line in `open_transport`."""

from miles_sync.config import DiskConfig, SharedMemoryConfig, TransportConfig, WeightsConfig
from miles_sync.parcel import Transport
from miles_sync.transports.disk import DiskTransport
from miles_sync.transports.shared_memory import SharedMemoryTransport

__all__ = ["DiskConfig", "SharedMemoryConfig", "TransportConfig", "WeightsConfig", "open_transport"]


def open_transport(config: TransportConfig) -> Transport:
    """The transport that the settings ask for."""
    if isinstance(config, SharedMemoryConfig):
        return SharedMemoryTransport(config)
    return DiskTransport(config)
