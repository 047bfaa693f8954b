"""Which code derives and proves: what other code found is not taken for what this code would find."""

import functools
from pathlib import Path

import xxhash


@functools.cache
def derivation_digest() -> str:
    """Digest of the package's own code, so that no one has to remember to count a version up."""
    digest = xxhash.xxh3_128()
    folder = Path(__file__).parent
    for file in sorted(folder.rglob("*.py")):
        digest.update(f"{file.relative_to(folder)}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()
