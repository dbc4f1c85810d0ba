# /// script
# [tool.apps]
# application = "docker-registry"
# version = "debian:docker-registry"
# client = "skopeo"
# debian = { docker-registry = "docker-registry", skopeo = "skopeo" }
# ///
"""The registry of Debian, and skopeo, which pushes and pulls an image with a layer of 40 MB."""

import gzip
import hashlib
import io
import json
import os
import tarfile

from harness import DIR, HTTP, Gateway, run, start

IMAGE = f"docker://registry.example.com:{HTTP}/team/app:1"
OCI = "application/vnd.oci.image"


def save(blobs, content):
    """Stores a part of the image by its digest."""
    digest = hashlib.sha256(content).hexdigest()
    (blobs / digest).write_bytes(content)
    return {"digest": f"sha256:{digest}", "size": len(content)}


def make_image(directory):
    """An image of one layer, as a directory in the layout of OCI. Returns the content of its one file."""
    blobs = directory / "blobs/sha256"
    blobs.mkdir(parents=True)
    content = os.urandom(40_000_000)
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        file = tarfile.TarInfo("data")
        file.size = len(content)
        tar.addfile(file, io.BytesIO(content))
    parts = save(blobs, layer.getvalue())
    rootfs = {"type": "layers", "diff_ids": [parts["digest"]]}
    config = save(blobs, json.dumps({"architecture": "amd64", "os": "linux", "rootfs": rootfs}).encode())
    manifest = {"schemaVersion": 2, "mediaType": f"{OCI}.manifest.v1+json",
                "config": config | {"mediaType": f"{OCI}.config.v1+json"},
                "layers": [parts | {"mediaType": f"{OCI}.layer.v1.tar"}]}
    entry = save(blobs, json.dumps(manifest).encode()) | {"mediaType": manifest["mediaType"]}
    entry["annotations"] = {"org.opencontainers.image.ref.name": "1"}
    (directory / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return parts["digest"]


def content_of(directory):
    """The digest of the one layer of a pulled image. skopeo has compressed it."""
    manifest = json.loads((directory / "manifest.json").read_text())
    layer = directory / manifest["layers"][0]["digest"].removeprefix("sha256:")
    return f"sha256:{hashlib.sha256(gzip.decompress(layer.read_bytes())).hexdigest()}"


def skopeo(*arguments):
    return run(["skopeo", "--debug", "--insecure-policy", *arguments])


def main():
    gateway = Gateway("registries.md", "Container registry")
    (DIR / "registry.yml").write_text(f"""
version: 0.1
storage:
  filesystem: {{ rootdirectory: {DIR}/images }}
http: {{ addr: "127.0.0.1:{gateway.app_port}" }}
""")
    start(["docker-registry", "serve", DIR / "registry.yml"], gateway.app_port)

    layer = make_image(DIR / "image")
    skopeo("copy", "--dest-tls-verify=false", f"oci:{DIR}/image:1", IMAGE)
    assert max(line["bytes_in"] for line in gateway.log(route="registry")) > 40_000_000, "the layer is one request"

    skopeo("copy", "--src-tls-verify=false", IMAGE, f"dir:{DIR}/pulled")
    assert content_of(DIR / "pulled") == layer

    # skopeo waits for as long as it is told to, and then gets its image.
    with gateway.flooded("skopeo/", "/v2/team/app/manifests/1"):
        report = skopeo("copy", "--src-tls-verify=false", IMAGE, f"dir:{DIR}/again")
    assert "Detected 'Retry-After' header" in report, report
    assert content_of(DIR / "again") == layer


main()
