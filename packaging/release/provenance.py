"""Prints how a release was made, as an in-toto statement with the provenance of SLSA 1.0.

    provenance.py RELEASE BUILDER REVISION SECONDS BUILD...      BUILD: what build.sh wrote for an architecture
"""

import datetime
import hashlib
import json
import os
import sys


def main():
    release, builder, revision, seconds, *builds = sys.argv[1:]
    time = datetime.datetime.fromtimestamp(int(seconds), datetime.UTC).isoformat()
    parameters = [json.load(open(build, encoding="utf-8")) for build in builds]
    print(json.dumps({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": hash_of(os.path.join(release, name))}} for name in files(release)],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:sluicegate:make-release:1",
                "externalParameters": {"builds": parameters},
                "internalParameters": {"SOURCE_DATE_EPOCH": int(seconds)},
                "resolvedDependencies": [
                    {"name": "source", "digest": {"gitCommit": revision}},
                    *({"name": file, "digest": {"sha256": hash_of(file)}}
                      for file in ["Cargo.lock", "packaging/release/requirements.txt", "rust-toolchain.toml"]),
                ],
            },
            "runDetails": {"builder": {"id": builder}, "metadata": {"startedOn": time}},
        },
    }, indent=2))


def files(release):
    paths = (os.path.join(folder, name) for folder, _, names in os.walk(release) for name in names)
    return sorted(os.path.relpath(path, release) for path in paths)


def hash_of(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


main()
