"""`snapline keys …` creates key files, and rotates and shows the keys with which a store is encrypted (docs/protection.md).

None of these commands prints a secret.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import Display, command
from snapline.cli.output import Document, DocumentTables, count, document, rows_of, text
from snapline.errors import DamagedDataError, StoreMissingError, UsageError

if TYPE_CHECKING:
    from snapline.storage.disk.local_disk import Disk

PUBLIC_SUFFIX = ".pub"

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)

_STORE = typer.Option("--store", metavar="STORE", help="Store, as path or URL.")


@app.command("generate")
@command
def generate(
    display: Display,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write; must not exist.")],
    signing: Annotated[
        bool, typer.Option("--signing", help="Make a key pair for signatures, with the public key in FILE.pub.")
    ] = False,
) -> None:
    """Make a key file that only you can read.

    Data that was encrypted with the key cannot be read without it: keep a copy in a safe place.
    """
    from snapline.storage.keys.key_files import generate_signing_key, generate_wrapping_key

    if signing:
        public = file.with_name(file.name + PUBLIC_SUFFIX)
        key_id = generate_signing_key(file, public).key_id
        key = {"key": key_id, "purpose": "signing", "file": str(file), "public_file": str(public)}
    else:
        key = {"key": generate_wrapping_key(file).key_id, "purpose": "encryption", "file": str(file)}
    display.printer().result(document("KeyGenerated", **key), _show_generated)


@app.command("rotate")
@command
def rotate(
    display: Display,
    store: Annotated[str, _STORE],
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="File of the new key.")],
) -> None:
    """Encrypt all keys of a store with a new key.

    The variable SNAPLINE_STORE_KEY names the files of the old keys. No pack is rewritten. The command may be repeated.
    """
    from snapline.storage.disk import store_files
    from snapline.storage.keys import key_records
    from snapline.storage.keys.key_files import STORE_KEY_VARIABLE, keys_from_environment, read_keys
    from snapline.storage.keys.key_records import list_keys

    new, old = read_keys(store_keys=[to]), keys_from_environment()
    disk = _open_disk(store)
    if not list_keys(disk):
        raise UsageError(
            f"the store {disk.location} has no keys to rotate: it is not encrypted, or nothing is in it yet"
        )
    rewrapped = key_records.rotate(disk, store_files.read_identity(disk), old, new)
    result = document(
        "KeysRotated",
        store=disk.location,
        key=new.wrapping[0].key_id,
        rewrapped=rewrapped,
        next_step=f"give {STORE_KEY_VARIABLE}={to} to every process; then the old key file is needed no more",
    )
    display.printer().result(result, _show_rotated)


@app.command("show")
@command
def show(display: Display, store: Annotated[str, _STORE]) -> None:
    """List the keys of a store: their generations, and which key file opens them.

    Prints no secrets, and needs no key file. Exit code 6: a record is damaged.
    """
    from snapline.storage.disk import store_files

    disk = _open_disk(store)
    rows = _rows(disk, store_files.read_identity(disk))
    printer = display.printer()
    printer.result(document("KeyList", store=disk.location, keys=rows), _show_list)
    damaged = [row for row in rows if "damage" in row]
    for row in damaged:
        printer.warning(text(row["damage"]))
    if damaged:
        raise typer.Exit(DamagedDataError.exit_code)


# -- documents --------------------------------------------------------------------------------------------------------


def _rows(disk: "Disk", store_id: str) -> list[dict[str, object]]:
    from snapline.storage.keys.key_records import key_path, list_keys, read_record

    rows: list[dict[str, object]] = []
    for key_id, generations in list_keys(disk).items():
        for generation in generations:
            row: dict[str, object] = {"key": key_id, "generation": generation}
            try:
                record = read_record(disk, key_path(key_id, generation), store_id)
                row |= {"wrapped_by": record.wrapper, "writer": record.writer or None}
            except DamagedDataError as error:
                row["damage"] = str(error)
            rows.append(row)
    return rows


def _open_disk(location: str) -> "Disk":
    """Open only the disk of a store, because opening the store itself would require the keys that are to be changed."""
    from snapline.storage.disk import layout
    from snapline.storage.disk.object_disk import open_disk

    disk = open_disk(location)
    try:
        disk.size(layout.IDENTITY)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreMissingError(
            f"there is no store at {disk.location}: check the path and whether it is mounted"
        ) from error
    return disk


# -- tables -----------------------------------------------------------------------------------------------------------


def _show_generated(result: Document, tables: DocumentTables) -> None:
    tables.fields((name, result.get(name)) for name in ("key", "purpose", "file", "public_file"))


def _show_rotated(result: Document, tables: DocumentTables) -> None:
    rewrapped = result.get("rewrapped")
    tables.line(f"{count(rewrapped if isinstance(rewrapped, int) else 0, 'key')} wrapped with {result.get('key')}")
    tables.line(f"next: {result.get('next_step')}")


def _show_list(result: Document, tables: DocumentTables) -> None:
    rows = rows_of(result, "keys")
    if not rows:
        tables.line("no keys: the store is not encrypted, or nothing is in it yet")
        return
    tables.table(
        ("KEY", "GENERATION", "WRAPPED BY", "WRITER", ""),
        [
            (
                row.get("key"),
                row.get("generation"),
                row.get("wrapped_by"),
                row.get("writer"),
                "damaged" if "damage" in row else "",
            )
            for row in rows
        ],
    )
