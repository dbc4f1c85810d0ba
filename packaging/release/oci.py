"""Packs the roots of an image, one for each architecture, as an OCI image layout with one index.

    oci.py LAYOUT VERSION REVISION SECONDS ARCHITECTURE=ROOT...      SECONDS since 1970: the time of every file
"""

import datetime
import gzip
import hashlib
import io
import json
import os
import sys
import tarfile

# The names of Linux, and those of OCI.
PLATFORMS = {"x86_64": "amd64", "aarch64": "arm64"}
PROGRAM = "/usr/local/bin/sluicegate"
CONFIG = "/etc/sluicegate/sluicegate.toml"
SECOND = 1_000_000_000


def main():
    layout, version, revision, seconds, *roots = sys.argv[1:]
    seconds = int(seconds)
    os.makedirs(f"{layout}/blobs/sha256")
    manifests = []
    for architecture, root in (root.split("=", 1) for root in sorted(roots)):
        manifests.append(pack_image(layout, version, revision, seconds, PLATFORMS[architecture], root))
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": manifests}
    described = add_blob(layout, encode(index)) | {
        "mediaType": index["mediaType"], "annotations": {"org.opencontainers.image.ref.name": version}}
    top = {"schemaVersion": 2, "mediaType": index["mediaType"], "manifests": [described]}
    write(f"{layout}/index.json", encode(top))
    write(f"{layout}/oci-layout", encode({"imageLayoutVersion": "1.0.0"}))


def pack_image(layout, version, revision, seconds, architecture, root):
    plain = pack_layer(root, seconds)
    layer = add_blob(layout, compress(plain)) | {"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip"}
    created = datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat()
    config = {
        "created": created,
        "architecture": architecture,
        "os": "linux",
        # What the Dockerfile says as well.
        "config": {
            "User": "65532:65532",
            "ExposedPorts": {"8080/tcp": {}, "9900/tcp": {}},
            "Entrypoint": [PROGRAM],
            "Cmd": ["run", "-c", CONFIG],
            "Healthcheck": {"Test": ["CMD", PROGRAM, "healthcheck", "-c", CONFIG],
                            "Interval": 5 * SECOND, "Timeout": 3 * SECOND, "StartPeriod": 10 * SECOND, "Retries": 3},
            "Labels": {"org.opencontainers.image.title": "Sluicegate",
                       "org.opencontainers.image.description": "A reverse proxy with exact, distributed throttling built in",
                       "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
                       "org.opencontainers.image.version": version,
                       "org.opencontainers.image.revision": revision},
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(plain).hexdigest()}"]},
        "history": [{"created": created, "created_by": "packaging/release/oci.py"}],
    }
    media_type = "application/vnd.oci.image.config.v1+json"
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": add_blob(layout, encode(config)) | {"mediaType": media_type},
        "layers": [layer],
    }
    return add_blob(layout, encode(manifest)) | {
        "mediaType": manifest["mediaType"], "platform": {"architecture": architecture, "os": "linux"}}


def pack_layer(root, seconds):
    """The files below `root`, all of them root's, in the order of their names."""
    def normalize(entry):
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mtime = seconds
        return entry

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for directory, subdirectories, files in os.walk(root):
            subdirectories.sort()
            for name in sorted(files + subdirectories):
                path = os.path.join(directory, name)
                tar.add(path, os.path.relpath(path, root), recursive=False, filter=normalize)
    return packed.getvalue()


def compress(data):
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=9, mtime=0, filename="") as file:
        file.write(data)
    return packed.getvalue()


def add_blob(layout, data):
    digest = hashlib.sha256(data).hexdigest()
    write(f"{layout}/blobs/sha256/{digest}", data)
    return {"digest": f"sha256:{digest}", "size": len(data)}


def encode(value):
    return json.dumps(value, indent=1).encode()


def write(path, data):
    with open(path, "wb") as file:
        file.write(data)


main()
