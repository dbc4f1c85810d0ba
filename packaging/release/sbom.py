"""Prints the components of the program as a CycloneDX 1.6 document: each crate that is compiled into it, by Cargo.lock.

    sbom.py TARGET VERSION SECONDS      SECONDS since 1970: the time in the document
"""

import datetime
import json
import subprocess
import sys
import tomllib
import uuid


def main():
    target, version, seconds = sys.argv[1:]
    metadata = json.loads(subprocess.check_output(
        ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]))
    packages = {package["id"]: package for package in metadata["packages"]}
    root = metadata["resolve"]["root"]
    edges = find_edges(metadata, root)
    checksums = read_checksums()
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.datetime.fromtimestamp(int(seconds), datetime.UTC).isoformat(),
            "component": describe(packages[root], checksums) | {"type": "application", "version": version},
            "properties": [{"name": "sluicegate:target", "value": target}],
        },
        "components": [describe(packages[id], checksums) for id in sorted(edges, key=purl_of(packages)) if id != root],
        "dependencies": [
            {"ref": purl_of(packages)(id), "dependsOn": sorted(purl_of(packages)(other) for other in needed)}
            for id, needed in sorted(edges.items(), key=lambda edge: purl_of(packages)(edge[0]))
        ],
    }
    # The same components have the same number.
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(document, sort_keys=True))
    document["serialNumber"] = f"urn:uuid:{number}"
    print(json.dumps(document, indent=2))


def find_edges(metadata, root):
    """The packages that `root` is made of, each with those it needs: no development dependencies."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    edges, rest = {}, [root]
    while rest:
        id = rest.pop()
        if id in edges:
            continue
        needed = [dep["pkg"] for dep in nodes[id]["deps"] if any(kind["kind"] != "dev" for kind in dep["dep_kinds"])]
        edges[id] = sorted(set(needed))
        rest += needed
    return edges


def read_checksums():
    with open("Cargo.lock", "rb") as file:
        packages = tomllib.load(file)["package"]
    return {(package["name"], package["version"]): package.get("checksum") for package in packages}


def purl_of(packages):
    return lambda id: f"pkg:cargo/{packages[id]['name']}@{packages[id]['version']}"


def describe(package, checksums):
    purl = f"pkg:cargo/{package['name']}@{package['version']}"
    component = {"type": "library", "bom-ref": purl, "name": package["name"], "version": package["version"], "purl": purl}
    if package["description"]:
        component["description"] = " ".join(package["description"].split())
    if package["license"]:
        # Old manifests write a slash for OR.
        component["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    checksum = checksums[package["name"], package["version"]]
    if checksum:
        component["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package["repository"]:
        component["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return component


main()
