"""Key files of the operator, which are never in the store.

A key file has one line, `<word> <id> <base64 of 32 bytes>`:

| word | key | file |
| --- | --- | --- |
| `snapline-key-v1` | key-encryption key: wraps the keys in the store (`key_records.py`) | secret |
| `snapline-signing-key-v1` | Ed25519 private key: signs refs | secret |
| `snapline-verify-key-v1` | Ed25519 public key: verifies signatures | public |

The first word prevents the use of a key for another purpose, since every kind of key is 32 bytes long. The id of a key-encryption key is a
digest of the secret. The id of any other key is a digest of the public key. A mistyped or damaged key file is therefore detected, and a
private key has the same id as its public key. Since secrets consist of 256 random bits, their ids reveal nothing about them.

A secret key file is refused if its group or other users have access to it, since they could copy the key. The permissions are read from the
opened file, so the file cannot be swapped between check and read.

Only `keys_from_environment` and `read_keys` read keys. No message and no `repr` contains a secret.
"""

import base64
import binascii
import contextlib
import errno
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from blake3 import blake3

from snapline.errors import StoreError, UsageError
from snapline.storage.keys.ciphers import KEY_BYTES, public_key_of

STORE_KEY_VARIABLE = "SNAPLINE_STORE_KEY"
SIGNING_KEY_VARIABLE = "SNAPLINE_SIGNING_KEY"
VERIFY_KEY_VARIABLE = "SNAPLINE_VERIFY_KEY"

KEY_FILES_MAX = 16
"""Largest number of keys of one kind: the current key and earlier ones. Each key is tried, and a longer list is surely a mistake."""

_FILE_BYTES_MAX = 256
"""Largest key file in bytes. A key file has about 90 bytes, and a token file about 50. The size is checked before parsing."""

TOKEN_CHARACTERS_MAX = 200
"""Largest length of a token in characters. The limit for users' tokens is the same."""

_WRAPPING_WORD = "snapline-key-v1"
_SIGNING_WORD = "snapline-signing-key-v1"
_VERIFY_WORD = "snapline-verify-key-v1"
_ID_CONTEXT = "snapline 1 id of a key file"
_ID_BYTES = 8
"""Length of a key's id in bytes, which is enough to distinguish the keys of one operator. The id detects mistakes but proves nothing."""

_LINE = re.compile(rb"([a-z0-9-]{1,40}) ([0-9a-f]{16}) ([A-Za-z0-9+/=]{44})\n?")


@dataclass(frozen=True)
class WrappingKey:
    """A key-encryption key. `secret` has 32 bytes."""

    key_id: str
    secret: bytes = field(repr=False)


@dataclass(frozen=True)
class VerifyKey:
    """An Ed25519 public key of 32 bytes."""

    key_id: str
    public: bytes


@dataclass(frozen=True)
class SigningKey:
    """An Ed25519 private key of 32 bytes, and its public half."""

    key_id: str
    secret: bytes = field(repr=False)
    public: bytes

    def verify_key(self) -> VerifyKey:
        """Return the public half of the key."""
        return VerifyKey(self.key_id, self.public)


@dataclass(frozen=True)
class Keys:
    """Keys that a process uses for one store.

    Attributes:
        wrapping: key-encryption keys, or an empty tuple if the store is not encrypted. The first key wraps new keys, and any of them can
            unwrap keys.
        signing: key that signs refs, or None if this process cannot sign.
        verifying: additional public keys. A ref must have a signature by one of them or by `signing`, unless both are absent.
    """

    wrapping: tuple[WrappingKey, ...] = ()
    signing: SigningKey | None = None
    verifying: tuple[VerifyKey, ...] = ()

    def find(self, key_id: str) -> WrappingKey | None:
        """Return the key-encryption key with this id, or None if this process does not have it."""
        return next((key for key in self.wrapping if key.key_id == key_id), None)

    def verify_keys(self) -> tuple[VerifyKey, ...]:
        """Return all public keys whose signatures are accepted."""
        return self.verifying if self.signing is None else (self.signing.verify_key(), *self.verifying)


NO_KEYS = Keys()


def keys_from_environment(environment: Mapping[str, str] | None = None) -> Keys:
    """Read the keys whose file paths are in the environment variables. The default is the environment of this process.

    `SNAPLINE_STORE_KEY` and `SNAPLINE_VERIFY_KEY` may each list several paths separated by `:`, but `SNAPLINE_SIGNING_KEY` only one.

    Raises:
        UsageError: If a variable is set but empty, or a file is invalid.
    """
    variables = os.environ if environment is None else environment
    signing = _paths(variables, SIGNING_KEY_VARIABLE)
    if len(signing) > 1:
        raise UsageError(f"{SIGNING_KEY_VARIABLE} names {len(signing)} files: one key signs, give its file alone")
    return read_keys(
        store_keys=_paths(variables, STORE_KEY_VARIABLE),
        signing_key=signing[0] if signing else None,
        verify_keys=_paths(variables, VERIFY_KEY_VARIABLE),
    )


def read_keys(
    *, store_keys: Sequence[Path] = (), signing_key: Path | None = None, verify_keys: Sequence[Path] = ()
) -> Keys:
    """Return the keys in these files. Duplicate keys are ignored.

    Raises:
        UsageError: If there are too many files, or a file is missing, damaged, accessible to other users, or contains another kind of key.
    """
    for paths in (store_keys, verify_keys):
        if len(paths) > KEY_FILES_MAX:
            raise UsageError(f"{len(paths)} key files are given, at most {KEY_FILES_MAX}: leave the oldest out")
    wrapping = {key.key_id: key for key in map(read_wrapping_key, store_keys)}
    verifying = {key.key_id: key for key in map(read_verify_key, verify_keys)}
    signing = None if signing_key is None else read_signing_key(signing_key)
    return Keys(tuple(wrapping.values()), signing, tuple(verifying.values()))


# -- one file ----------------------------------------------------------------------------------------------------------


def read_wrapping_key(path: Path) -> WrappingKey:
    """Return the key-encryption key in the file. Raise UsageError if the file contains no key-encryption key, or other users have access to
    it."""
    key_id, secret = _read(path, _WRAPPING_WORD, is_secret=True)
    return WrappingKey(_checked(path, key_id, _id_of(secret)), secret)


def read_signing_key(path: Path) -> SigningKey:
    """Return the private key in the file. Raise UsageError if the file contains no private key, or other users have access to it."""
    key_id, secret = _read(path, _SIGNING_WORD, is_secret=True)
    public = public_key_of(secret)
    return SigningKey(_checked(path, key_id, _id_of(public)), secret, public)


def read_verify_key(path: Path) -> VerifyKey:
    """Return the public key in the file. Raise UsageError if the file contains no public key."""
    key_id, public = _read(path, _VERIFY_WORD, is_secret=False)
    return VerifyKey(_checked(path, key_id, _id_of(public)), public)


def generate_wrapping_key(path: Path, *, random_bytes: Callable[[int], bytes] = os.urandom) -> WrappingKey:
    """Write a new key-encryption key durably to `path`. Raise UsageError if the file already exists."""
    key = make_wrapping_key(random_bytes(KEY_BYTES))
    _write(path, _WRAPPING_WORD, key.key_id, key.secret, mode=0o600)
    return key


def generate_signing_key(
    path: Path, public_path: Path, *, random_bytes: Callable[[int], bytes] = os.urandom
) -> SigningKey:
    """Write a new private key to `path` and its public half to `public_path`. Otherwise same as `generate_wrapping_key`."""
    key = make_signing_key(random_bytes(KEY_BYTES))
    _write(public_path, _VERIFY_WORD, key.key_id, key.public, mode=0o644)
    try:
        _write(path, _SIGNING_WORD, key.key_id, key.secret, mode=0o600)
    except BaseException:  # A public half without its private half would mislead.
        with contextlib.suppress(OSError):
            public_path.unlink()
        raise
    return key


def make_wrapping_key(secret: bytes) -> WrappingKey:
    """Create a key-encryption key from 32 random bytes."""
    return WrappingKey(_id_of(secret), secret)


def make_signing_key(secret: bytes) -> SigningKey:
    """Create a private key from 32 random bytes."""
    public = public_key_of(secret)
    return SigningKey(_id_of(public), secret, public)


def read_token_file(path: Path) -> str:
    """Return the token in a file, without surrounding whitespace. The file must not be accessible to other users.

    Raises:
        UsageError: If the file cannot be read, is accessible to other users, or contains no token.
        StoreError: If the disk failed.
    """
    token = _content(path, "token file", is_secret=True).decode(errors="replace").strip()
    if not token.isascii() or not token.isprintable() or not 0 < len(token) <= TOKEN_CHARACTERS_MAX:
        raise UsageError(
            f"the token file {path} holds no token: write one, such as the output of `openssl rand -hex 32`"
        )
    return token


# -- inside ------------------------------------------------------------------------------------------------------------


def _paths(environment: Mapping[str, str], variable: str) -> list[Path]:
    """Return the paths listed in an environment variable. An empty variable is an error, because a user who meant to set a key must not get
    an unencrypted store."""
    if variable not in environment:
        return []
    names = environment[variable].split(":")
    if not all(names):
        raise UsageError(f"{variable} is set, but names no file: give the path of a key file, or unset it")
    return [Path(name) for name in names]


def _id_of(key: bytes) -> str:
    return blake3(key, derive_key_context=_ID_CONTEXT).hexdigest(_ID_BYTES)


def _checked(path: Path, key_id: str, right_id: str) -> str:
    if key_id != right_id:
        raise UsageError(f"the key file {path} is damaged: its id and its key differ; take it from your backup")
    return key_id


def _read(path: Path, word: str, *, is_secret: bool) -> tuple[str, bytes]:
    """Read a key file that begins with `word`, and return the id and the key."""
    match = _LINE.fullmatch(_content(path, "key file", is_secret=is_secret))
    if match is None:
        raise UsageError(f"{path} is no key file: `snapline keys generate` makes one")
    if match[1].decode() != word:
        raise UsageError(f"{path} holds a {match[1].decode()}, a {word} is needed: give the other file")
    try:
        key = base64.b64decode(match[3], validate=True)
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES:
        raise UsageError(f"the key file {path} is damaged: it holds no {KEY_BYTES} bytes; take it from your backup")
    return match[2].decode(), key


def _content(path: Path, what: str, *, is_secret: bool) -> bytes:
    with _translating(path, "read", what), open(path, "rb", opener=_open_without_waiting) as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise UsageError(f"{path} is no file: give the path of a {what}")
        if is_secret and mode & 0o077:
            raise UsageError(
                f"the {what} {path} can be used by others (mode {stat.S_IMODE(mode):04o}): run chmod 600 {path}"
            )
        return file.read(_FILE_BYTES_MAX)


def _write(path: Path, word: str, key_id: str, key: bytes, *, mode: int) -> None:
    """Write a new file. Existing files are never overwritten, since a file could be the only copy of a key."""
    line = f"{word} {key_id} {base64.b64encode(key).decode()}\n".encode()
    with _translating(path, "write"):
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode)
        try:
            with open(handle, "wb") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            path.unlink()
            raise
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file in non-blocking mode, because opening a named pipe could otherwise block forever."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


@contextlib.contextmanager
def _translating(path: Path, verb: str, what: str = "key file") -> Iterator[None]:
    """Translate OSError into Snapline's errors."""
    try:
        yield
    except FileExistsError as error:
        raise UsageError(f"{path} exists already, and may be the only copy of a key: give another path") from error
    except (FileNotFoundError, NotADirectoryError, PermissionError, IsADirectoryError) as error:
        raise UsageError(f"cannot {verb} the {what} {path}: {error.strerror}; check the path") from error
    except OSError as error:
        advice = "; free space there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise StoreError(f"cannot {verb} the {what} {path}: {error.strerror or error}{advice}") from error
