#!/usr/bin/env bash
# Makes a release with throw-away keys, looks at all of it as its users will, and changes it as an attacker would. Called
# by `make release-test`, as root: apt's verification runs as a user of its own.
#
#   PROFILE=dev tests/release.sh       another build than `dist`, which takes minutes less
#   REPRODUCE=yes tests/release.sh     also builds it again in another directory, and compares
set -euo pipefail

cd "$(dirname "$0")/.."
source packaging/release/common.sh
source tests/check.sh
scratch=$(mktemp -d "${TMPDIR:-/tmp}/sluicegate-release.XXXXXX")
chmod 755 "$scratch"
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
release=$target/release-$version
archive=sluicegate-$version-$arch-linux.tar.gz
passed=0
failed=0

main() {
    tests/tools.sh apt-ftparchive:apt-utils gpg:gpg ssh-keygen:openssh-client dpkg-shlibdeps:dpkg-dev curl:curl \
        python3:python3-venv skopeo:skopeo
    tests/interop/install.sh python
    say "building"
    packaging/release/build.sh
    check_refusals_to_release
    ssh-keygen -q -t ed25519 -N '' -C test -f "$scratch/key"
    SNAPSHOT=yes RELEASE_KEY=$scratch/key packaging/release/assemble.sh
    check_contents
    check_program
    check_documents
    check_installer
    check_apt
    check_image
    [ -z "${REPRODUCE:-}" ] || check_reproduction
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
}

# Without SNAPSHOT, on a commit without a tag or a tree with changes.
check_refusals_to_release() {
    # A copy, which has no tag even if this commit has one.
    git clone --quiet --no-tags . "$scratch/untagged"
    check "no release of what has no tag" refuses "is not the tag" \
        env -u SNAPSHOT CARGO_TARGET_DIR="$target" RELEASE_KEY=x "$scratch/untagged/packaging/release/assemble.sh"
    check "no release at an address that a script could not have" refuses "BASE_URL=" \
        env SNAPSHOT=yes BASE_URL="https://example.com/'\$(id)" packaging/release/assemble.sh
    check "no release at an address without TLS" refuses "BASE_URL=" \
        env SNAPSHOT=yes BASE_URL=http://example.com packaging/release/assemble.sh
    check "no release without an architecture that it must have" refuses "make release-parts" \
        env SNAPSHOT=yes ARCHITECTURES="$arch riscv64" packaging/release/assemble.sh
    ssh-keygen -q -t ed25519 -N secret -C test -f "$scratch/locked"
    check "no release with a key that needs a passphrase" refuses "passphrase" \
        env SNAPSHOT=yes RELEASE_KEY="$scratch/locked" packaging/release/assemble.sh
}

check_contents() {
    local file
    for file in "$archive" "sluicegate-$version-$arch-linux-debug.tar.gz" "sluicegate-$version-$arch-linux.cdx.json" \
        "sluicegate-$version-oci.tar" "sluicegate-$version-apt.tar.gz" "sluicegate-chart-$version.tgz" \
        "sluicegate-$version-compose.tar.gz" "sluicegate-$version.intoto.json" install.sh RELEASE-NOTES.md security.txt \
        SHA256SUMS SHA256SUMS.sig release-key.pub; do
        check "the release has $file" test -s "$release/$file"
    done
    check "it has a Debian package" test -s "$(echo "$release"/sluicegate_*.deb)"
    check "SHA256SUMS names every other file, and each hash is right" sums_are_complete
    check "no file but the debug symbols names a directory of this machine" names_no_directory
    check "the notes are those of the change log" grep -q '^### ' "$release/RELEASE-NOTES.md"
}

sums_are_complete() {
    (cd "$release" && sha256sum --check --strict --status SHA256SUMS) || return 1
    equal "$(ls "$release" | grep -vxE 'SHA256SUMS(.sig)?')" "$(cut -c67- "$release/SHA256SUMS" | sort)"
}

names_no_directory() {
    mkdir -p "$scratch/all"
    local file
    for file in "$release"/*.tar.gz "$release"/*.tgz "$release"/*.tar; do tar -xf "$file" -C "$scratch/all"; done
    local names=(-e "${CARGO_HOME:-$HOME/.cargo}/registry")
    # Not $PWD alone: where that is /src or /app, every program has it.
    names+=(-e "$PWD/src/" -e "$PWD/Cargo.toml" -e "$target/shipped/")
    # The debug symbols name that of zig's start files.
    ! grep -rlaF --exclude=sluicegate.debug "${names[@]}" "$scratch/all" "$release"
}

check_program() {
    local program=$scratch/all/sluicegate-$version-$arch-linux/sluicegate needed
    needed=$(objdump -T "$program" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -uV | tail -1)
    check "the program needs glibc 2.28 at most ($needed)" equal "$(printf '%s\n2.28\n' "$needed" | sort -V | tail -1)" 2.28
    check "it needs no library but those of glibc" not grep -vE '\[(lib(c|m|dl|rt|util|pthread)\.so\.[0-9]+|ld-linux.*)\]' \
        <<<"$(readelf -d "$program" | grep NEEDED)"
    check "it is stripped" equal "$(readelf --sections --wide "$program" | grep -c '\.symtab\|\.debug_info')" 0
    cp "$program" "$scratch/all/here"
    check "its debug symbols are those of this build" equal "$(build_id "$program")" "$(build_id "$scratch/all/sluicegate.debug")"
    check "they name functions and lines" grep -q 'src/cli/mod.rs' \
        <<<"$(objdump --dwarf=decodedline "$scratch/all/sluicegate.debug" 2>/dev/null | grep -m1 'src/cli/mod.rs')"
    check "it checks a config" "$program" check "$scratch/all/sluicegate-compose/conf/compose/app.toml"
    check "its manual page is there" grep -q '^\.TH sluicegate' "$scratch/all/sluicegate-$version-$arch-linux/sluicegate.1"
}

build_id() { readelf --notes "$1" | sed -n 's/.*Build ID: //p'; }

check_documents() {
    local python=target/apps-venv/bin/python
    check "the list of components fits the schema of CycloneDX" "$python" -c '
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
sys.exit(JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read()))
' "$release/sluicegate-$version-$arch-linux.cdx.json"
    check "it has what Cargo.lock has, and no tools of the tests" "$python" -c '
import json, sys, tomllib
bom = json.load(open(sys.argv[1]))
locked = {(p["name"], p["version"]): p.get("checksum") for p in tomllib.load(open("Cargo.lock", "rb"))["package"]}
for component in bom["components"]:
    assert component["hashes"][0]["content"] == locked[component["name"], component["version"]], component
names = {component["name"] for component in bom["components"]}
assert {"rustls", "tokio", "hyper"} <= names and not names & {"mlua", "proptest", "divan"}, names
assert len(bom["dependencies"]) == len(bom["components"]) + 1
' "$release/sluicegate-$version-$arch-linux.cdx.json"
    check "the provenance has the commit and the hash of every file" "$python" -c '
import hashlib, json, sys
release, commit, provenance = sys.argv[1:]
statement = json.load(open(f"{release}/{provenance}"))
assert statement["_type"] == "https://in-toto.io/Statement/v1"
assert statement["predicate"]["buildDefinition"]["resolvedDependencies"][0]["digest"]["gitCommit"] == commit
sums = dict(line.split()[::-1] for line in open(f"{release}/SHA256SUMS"))
assert {it["name"]: it["digest"]["sha256"] for it in statement["subject"]} == {
    name: hash for name, hash in sums.items() if name != provenance}
' "$release" "$(git rev-parse HEAD)" "sluicegate-$version.intoto.json"
    check "Helm reads the chart, with the image of the release" grep -q "registry.example.com/sluicegate:$version" \
        <<<"$("$python" tests/manifests/render.py "$release/sluicegate-chart-$version.tgz" '{}')"
    check "the Compose file builds nothing" not grep -E 'build:|--build' "$scratch/all/sluicegate-compose/compose.yaml"
}

# ---- The install script

check_installer() {
    local copy=$scratch/copy
    check "it installs" installs "$release"
    check "what it has installed runs" grep -q "^sluicegate $version" <<<"$("$scratch/prefix/bin/sluicegate" --version)"
    check "and has its manual page" test -s "$scratch/prefix/share/man/man1/sluicegate.1"
    check "it installs over what is there" installs "$release"

    copy_release && flip "$copy/$archive" 5000
    check "a flipped byte in the archive is refused" refuses_to_install "was changed"
    copy_release && truncate --size=-1 "$copy/$archive"
    check "an archive without its last byte is refused" refuses_to_install "incomplete"
    copy_release && : >"$copy/$archive"
    check "an empty archive is refused" refuses_to_install "incomplete"
    copy_release && rm "$copy/$archive"
    check "an archive that is not there is an error" refuses_to_install "cannot read"
    copy_release && flip "$copy/SHA256SUMS" 3
    check "a flipped byte in SHA256SUMS is refused" refuses_to_install "signature of SHA256SUMS"
    copy_release && truncate --size=-20 "$copy/SHA256SUMS"
    check "a cut SHA256SUMS is refused" refuses_to_install "signature of SHA256SUMS"
    copy_release && truncate --size=-20 "$copy/SHA256SUMS.sig"
    check "a cut signature is refused" refuses_to_install "signature of SHA256SUMS"
    copy_release && rm "$copy/SHA256SUMS.sig"
    check "a release without a signature is refused" refuses_to_install "cannot read"

    # Everything is consistent, but signed by somebody else, or for something else.
    ssh-keygen -q -t ed25519 -N '' -C attacker -f "$scratch/attacker"
    copy_release && flip "$copy/$archive" 5000 && resign "$scratch/attacker" sluicegate-release
    check "another key is refused" refuses_to_install "signature of SHA256SUMS"
    copy_release && resign "$scratch/key" git
    check "what the key has signed for git is refused" refuses_to_install "signature of SHA256SUMS"
    # A genuine release of another version under this one's address.
    copy_release && (cd "$copy" && mv "$archive" "${archive/$version/0.0.1}" && sed -i "s/$archive/${archive/$version/0.0.1}/" SHA256SUMS)
    sign_again
    check "a genuine release of another version is refused" refuses_to_install "does not name $archive"

    check "an address without TLS is refused" refuses "only https" \
        sh "$release/install.sh" --prefix "$scratch/none" --from "http://127.0.0.1:1"
    check "the template of the script is refused" refuses "template" sh packaging/release/install.sh
    head -c "$(($(stat -c %s "$release/install.sh") - 12))" "$release/install.sh" >"$scratch/half.sh"
    check "half of the script does nothing" equal "$(cd "$scratch" && sh half.sh --prefix "$scratch/none" 2>&1; ls "$scratch/none" 2>&1)" \
        "ls: cannot access '$scratch/none': No such file or directory"
}

installs() { sh "$release/install.sh" --prefix "$scratch/prefix" --from "$1"; }

# refuses_to_install TEXT: it says so, and there is nothing afterwards, not even of its own work.
refuses_to_install() {
    rm -rf "$scratch/none" "$scratch/tmp"
    mkdir "$scratch/tmp"
    refuses "$1" env TMPDIR="$scratch/tmp" sh "$release/install.sh" --prefix "$scratch/none" --from "$scratch/copy" || return 1
    [ ! -e "$scratch/none" ] || { echo "something was installed"; return 1; }
    equal "$(ls "$scratch/tmp")" ""
}

copy_release() {
    rm -rf "$scratch/copy"
    cp -r "$release" "$scratch/copy"
}

# flip FILE OFFSET: another byte there.
flip() {
    python3 - "$1" "$2" <<'PYTHON'
import sys
with open(sys.argv[1], "r+b") as file:
    file.seek(int(sys.argv[2]))
    byte = file.read(1)[0]
    file.seek(int(sys.argv[2]))
    file.write(bytes([byte ^ 1]))
PYTHON
}

# resign KEY NAMESPACE: new hashes of the copy, signed.
resign() {
    (cd "$scratch/copy" && rm -f SHA256SUMS SHA256SUMS.sig && sha256sum -- * >"$scratch/sums" && mv "$scratch/sums" SHA256SUMS)
    ssh-keygen -Y sign -q -f "$1" -n "$2" "$scratch/copy/SHA256SUMS" </dev/null
}

sign_again() {
    rm -f "$scratch/copy/SHA256SUMS.sig"
    ssh-keygen -Y sign -q -f "$scratch/key" -n sluicegate-release "$scratch/copy/SHA256SUMS" </dev/null
}

# ---- The repository of Debian packages, with an apt that has nothing but it

check_apt() {
    local root=$scratch/all/sluicegate-apt
    cp -r "$root" "$scratch/apt"
    check "apt accepts the repository" asks_apt "$scratch/apt" "$root/sluicegate-archive-keyring.gpg"
    check "apt knows the package of this version" grep -q "Candidate: $version" <<<"$(in_apt apt-cache policy sluicegate)"
    check "apt downloads and verifies it" in_apt_download
    gpg --homedir "$(mktemp -d -p "$scratch")" --batch --quiet --pinentry-mode loopback --passphrase '' \
        --quick-generate-key 'somebody else' ed25519 sign never 2>/dev/null
    printf '' >"$scratch/empty.gpg"
    check "apt refuses it with another keyring" not asks_apt "$scratch/apt" "$scratch/empty.gpg"
    flip "$scratch/apt/dists/stable/main/binary-$(dpkg --print-architecture)/Packages" 20
    rm "$scratch/apt/dists/stable/main/binary-$(dpkg --print-architecture)/Packages.gz"
    check "apt refuses a changed list of packages" not asks_apt "$scratch/apt" "$root/sluicegate-archive-keyring.gpg"
    rm -rf "$scratch/apt" && cp -r "$root" "$scratch/apt"
    asks_apt "$scratch/apt" "$root/sluicegate-archive-keyring.gpg" >/dev/null 2>&1
    flip "$(echo "$scratch"/apt/pool/main/s/sluicegate/*.deb)" 5000
    check "apt refuses a changed package" not in_apt_download
}

# asks_apt REPOSITORY KEYRING: apt-get update with that repository alone.
asks_apt() {
    rm -rf "$scratch/apt-state"
    mkdir -p "$scratch"/apt-state/{lists/partial,cache/archives/partial,etc/preferences.d}
    : >"$scratch/apt-state/status"
    echo "deb [signed-by=$2] file:$1 stable main" >"$scratch/apt-state/sources.list"
    in_apt apt-get update --error-on=any
}

in_apt() {
    local program=$1
    shift
    "$program" -o Dir::State="$scratch/apt-state" -o Dir::State::status="$scratch/apt-state/status" \
        -o Dir::Cache="$scratch/apt-state/cache" -o Dir::Etc::sourcelist="$scratch/apt-state/sources.list" \
        -o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::preferencesparts=/dev/null -o APT::Sandbox::User=root "$@"
}

in_apt_download() {
    rm -rf "$scratch/downloaded" && mkdir "$scratch/downloaded"
    (cd "$scratch/downloaded" && in_apt apt-get download sluicegate && ls sluicegate_*.deb)
}

# ---- The image

check_image() {
    local layout=$scratch/image root=$scratch/root size
    mkdir "$layout" "$root"
    tar -xf "$release/sluicegate-$version-oci.tar" -C "$layout"
    check "another program reads the image" skopeo inspect "oci:$layout:$version"
    check "its user is not root" grep -q '"User": "65532:65532"' <<<"$(skopeo inspect --config "oci:$layout:$version")"
    # skopeo verifies every digest on the way.
    check "its layer unpacks" skopeo copy --quiet "oci:$layout:$version" "dir:$scratch/unpacked"
    local layer
    for layer in $(python3 -c 'import json, sys
print(*(layer["digest"].split(":")[1] for layer in json.load(open(sys.argv[1]))["layers"]))' "$scratch/unpacked/manifest.json"); do
        tar -xzf "$scratch/unpacked/$layer" -C "$root"
    done
    check "its program runs with nothing but the image" grep -q "^sluicegate $version" \
        <<<"$(chroot --userspec=65532:65532 "$root" /usr/local/bin/sluicegate --version)"
    check "and checks its config" chroot --userspec=65532:65532 "$root" /usr/local/bin/sluicegate check /etc/sluicegate/sluicegate.toml
    check "it trusts the authorities of Debian" test -s "$root/etc/ssl/certs/ca-certificates.crt"
    check "and none that this machine trusts besides" trusts_no_authority_of_this_machine "$root/etc/ssl/certs/ca-certificates.crt"
    check "there is no shell in it" equal "$(find "$root" -name sh -o -name bash -o -name busybox)" ""
    size=$(du -s --apparent-size --block-size=1000 "$root" | cut -f1)
    # The limit is for what is shipped: a build of another profile is larger.
    [ "${PROFILE:-dist}" != dist ] || check "it has at most 40 MB ($size kB)" less "$size" 40000
    flip "$(find "$layout/blobs" -size +1M | head -1)" 5000
    check "a flipped byte in its layer is refused" not skopeo copy --quiet "oci:$layout:$version" "dir:$scratch/changed"
}

# trusts_no_authority_of_this_machine BUNDLE
trusts_no_authority_of_this_machine() {
    python3 - "$1" <<'PYTHON'
import pathlib, re, sys

def certificates(path):
    found = re.findall(r"-----BEGIN CERTIFICATE-----(.*?)-----END", pathlib.Path(path).read_text(errors="replace"), re.DOTALL)
    return {"".join(text.split()) for text in found}

shipped = certificates(sys.argv[1])
debian = set().union(*map(certificates, pathlib.Path("/usr/share/ca-certificates/mozilla").glob("*.crt")))
own = set().union(*map(certificates, pathlib.Path("/usr/local/share/ca-certificates").rglob("*.crt")))
assert shipped == debian, f"{len(shipped)} are shipped, and Debian has {len(debian)}"
assert not shipped & (own - debian)
PYTHON
}

# ---- Once more, elsewhere

check_reproduction() {
    local copy=$scratch/another/place file
    mkdir -p "$copy"
    git ls-files -z | xargs -0 cp --parents -t "$copy"
    cp -r .git "$copy/.git" 2>/dev/null || true
    say "building once more, in $copy"
    (cd "$copy" && CARGO_TARGET_DIR=$copy/built packaging/release/build.sh)
    for file in "$target/release-parts/$arch"/sluicegate*; do
        [[ $file != *-debug.tar.gz ]] || continue
        check "the same again: ${file##*/}" cmp "$file" "$copy/built/release-parts/$arch/${file##*/}"
    done
    check "the same again: the image" diff -r --no-dereference "$target/release-parts/$arch/image" "$copy/built/release-parts/$arch/image"
}

# ---- What the checks are made of

# refuses TEXT COMMAND...: it fails, and says TEXT.
refuses() {
    local text=$1 said
    shift
    if said=$("$@" 2>&1); then
        echo "it succeeded: $said"
        return 1
    fi
    [[ $said == *"$text"* ]] || { echo "got '$said', want '$text'"; return 1; }
}

not() { ! "$@"; }

equal() { [ "$1" = "$2" ] || { echo "got '$1', want '$2'"; return 1; }; }

less() { [ "$1" -lt "$2" ] || { echo "got $1, want less than $2"; return 1; }; }

main
