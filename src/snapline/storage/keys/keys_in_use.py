"""Finds the keys of an encrypted store that are still in use."""

from snapline.storage.disk.local_disk import Disk
from snapline.storage.log.log_files import keys_of_batches
from snapline.storage.object_streams.segments import keys_of_object_streams
from snapline.storage.outputs.output_files import keys_of_outputs
from snapline.storage.packs import checkpoint_packs
from snapline.storage.packs.checkpoint_packs import key_of_pack
from snapline.storage.retention import epoch_retention


def keys_in_use(disk: Disk, store_id: str) -> set[str]:
    """Return the ids of the keys that packs, batches, outputs and object streams name; DamagedDataError, StoreError if a file cannot be read."""
    paths = [*epoch_retention.pack_paths(disk), *checkpoint_packs.find(disk)]
    packs = {key_of_pack(disk, path, store_id) for path in paths}
    return (
        packs
        | keys_of_batches(disk, store_id)
        | keys_of_outputs(disk, store_id)
        | keys_of_object_streams(disk, store_id)
    )
