#!/usr/bin/env bash
# Makes a signed release of the parts that packaging/release/build.sh has left in target/release-parts, for each
# architecture there: target/release-VERSION, to be published as it is. Variables, all needed but for a snapshot:
#
#   RELEASE_KEY       private OpenSSH key without a passphrase (ed25519), which signs SHA256SUMS
#   APT_KEY           private OpenPGP key without a passphrase (armored), which signs the repository of Debian packages
#   BASE_URL          https address at which the files will be
#   IMAGE             name of the image in its registry, such as registry.example.com/sluicegate
#   SECURITY_CONTACT  where vulnerabilities are reported: mailto:ADDRESS or an https address
#   BUILDER_ID        address of what builds, for the provenance
#   ARCHITECTURES     those that the release must have; default: those that are there
#   SNAPSHOT=yes      a try: any commit, throw-away keys and example addresses where a variable is not set
set -euo pipefail
cd "$(dirname "$0")/../.."
source packaging/release/common.sh

parts=$target/release-parts
release=$target/release-$version
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

main() {
    if [ -n "${SNAPSHOT:-}" ]; then set_examples; else check_release; fi
    local name
    for name in RELEASE_KEY APT_KEY BASE_URL IMAGE SECURITY_CONTACT BUILDER_ID; do
        [ -n "${!name:-}" ] || die "$name is not set; packaging/release/assemble.sh says what it is"
    done
    # It becomes a part of a script.
    [[ $BASE_URL =~ ^https://[A-Za-z0-9._~:/%+-]+$ ]] ||
        die "BASE_URL=$BASE_URL is no https address of letters, digits and ._~:/%+-"
    find_architectures
    install_tools
    rm -rf "$release"
    mkdir -p "$release"
    copy_parts
    make_image
    make_repository
    make_chart
    make_compose
    write_texts
    make_installer
    sign
    say "$release:"
    ls -1 "$release"
}

set_examples() {
    RELEASE_KEY=${RELEASE_KEY:-$work/release-key}
    APT_KEY=${APT_KEY:-$work/apt-key}
    BASE_URL=${BASE_URL:-https://releases.example.com/sluicegate/$version}
    IMAGE=${IMAGE:-registry.example.com/sluicegate}
    SECURITY_CONTACT=${SECURITY_CONTACT:-https://example.com/security}
    BUILDER_ID=${BUILDER_ID:-https://example.com/somebody}
    if [ ! -e "$RELEASE_KEY" ]; then
        ssh-keygen -q -t ed25519 -N '' -C throw-away -f "$RELEASE_KEY"
    fi
    if [ ! -e "$APT_KEY" ]; then
        in_keyring --quick-generate-key --passphrase '' 'throw-away <nobody@example.com>' ed25519 sign never
        in_keyring --armor --export-secret-keys >"$APT_KEY"
    fi
}

# What is published is what the tag names.
check_release() {
    [ -z "$(git status --porcelain)" ] || die "the work tree has changes; SNAPSHOT=yes tries it all the same"
    [ "$(git rev-parse --verify --quiet "v$version^{commit}")" = "$(git rev-parse HEAD)" ] ||
        die "HEAD is not the tag v$version; SNAPSHOT=yes tries it all the same"
    grep -q "^## \[$version\] - 20[0-9-]*$" CHANGELOG.md || die "CHANGELOG.md has no section [$version] with a date"
}

find_architectures() {
    local there
    there=$(cd "$parts" 2>/dev/null && ls -1) || die "there are no parts: packaging/release/build.sh makes them"
    architectures=${ARCHITECTURES:-$there}
    local name
    for name in $architectures; do
        [ -e "$parts/$name/build.json" ] || die "$parts/$name is missing or incomplete: run make release-parts on such a machine"
    done
}

install_tools() {
    tests/tools.sh apt-ftparchive:apt-utils gpg:gpg gpgv:gpgv ssh-keygen:openssh-client python3:python3
}

copy_parts() {
    local name
    for name in $architectures; do
        cp "$parts/$name"/sluicegate[-_]* "$release/"
    done
}

# One archive in the layout of OCI, which skopeo, podman and docker read, and registries take as it is.
make_image() {
    local roots=() name layout=$work/image
    for name in $architectures; do roots+=("$name=$parts/$name/image"); done
    python3 packaging/release/oci.py "$layout" "$version" "$revision" "$SOURCE_DATE_EPOCH" "${roots[@]}"
    (cd "$layout" && tar --create --format=gnu --sort=name --owner=0 --group=0 --numeric-owner \
        --mtime="@$SOURCE_DATE_EPOCH" --file="$release/sluicegate-$version-oci.tar" -- *)
}

# A repository for apt, to be published as a directory; Release is what apt verifies, and it has the hashes of the rest.
make_repository() {
    local root=$work/apt/sluicegate-apt pool=pool/main/s/sluicegate deb
    mkdir -p "$root/$pool" "$root/dists/stable"
    for deb in "$release"/*.deb; do
        cp "$deb" "$root/$pool/"
        mkdir -p "$root/dists/stable/main/binary-$(dpkg-deb --field "$deb" Architecture)"
    done
    (
        cd "$root"
        for directory in dists/stable/main/binary-*; do
            apt-ftparchive --arch "${directory##*-}" packages pool >"$directory/Packages"
            gzip --no-name --keep -9 "$directory/Packages"
        done
        apt-ftparchive -o APT::FTPArchive::Release::Origin=Sluicegate -o APT::FTPArchive::Release::Suite=stable \
            -o APT::FTPArchive::Release::Codename=stable -o APT::FTPArchive::Release::Components=main \
            -o "APT::FTPArchive::Release::Architectures=$(cd dists/stable/main && ls -d binary-* | sed s/binary-// | xargs)" \
            release dists/stable >"$work/Release"
        sed "s/^Date: .*/Date: $(date --date="@$SOURCE_DATE_EPOCH" --rfc-email | sed 's/+0000/UTC/')/" "$work/Release" \
            >dists/stable/Release
    )
    [ -s "$APT_KEY" ] || die "APT_KEY=$APT_KEY is not there"
    in_keyring --import "$APT_KEY"
    in_keyring --clearsign --digest-algo SHA512 --output "$root/dists/stable/InRelease" "$root/dists/stable/Release"
    in_keyring --export >"$root/sluicegate-archive-keyring.gpg"
    gpgv --quiet --keyring "$root/sluicegate-archive-keyring.gpg" "$root/dists/stable/InRelease" 2>/dev/null ||
        die "the signature of the repository is not valid"
    (cd "$work/apt" && pack "$release/sluicegate-$version-apt.tar.gz" sluicegate-apt)
}

# A keyring of this run alone.
in_keyring() {
    mkdir -p -m 700 "$work/gnupg"
    gpg --homedir "$work/gnupg" --batch --quiet --pinentry-mode loopback "$@"
}

make_chart() {
    cp -r packaging/helm "$work/chart"
    sed -i "s|^version: .*|version: $version|; s|^appVersion: .*|appVersion: \"$version\"|" "$work/chart/sluicegate/Chart.yaml"
    sed -i "s|^  repository: sluicegate$|  repository: $IMAGE|" "$work/chart/sluicegate/values.yaml"
    grep -q "^  repository: $IMAGE$" "$work/chart/sluicegate/values.yaml" || die "values.yaml does not name the image"
    (cd "$work/chart" && pack "$release/sluicegate-chart-$version.tgz" sluicegate)
}

# compose.yaml of this repository, with the image of the release in place of a build.
make_compose() {
    local root=$work/compose/sluicegate-compose
    mkdir -p "$root/conf"
    cp -r conf/compose "$root/conf/"
    sed "/^    build: \.$/d; s|^    image: sluicegate$|    image: $IMAGE:$version|; s| --build\`|\`|" compose.yaml >"$root/compose.yaml"
    [ "$(grep -c "image: $IMAGE:$version" "$root/compose.yaml")" = 2 ] || die "compose.yaml does not name the image twice"
    (cd "$work/compose" && pack "$release/sluicegate-$version-compose.tar.gz" sluicegate-compose)
}

write_texts() {
    local notes=
    # After a release, nothing is unreleased.
    [ -z "${SNAPSHOT:-}" ] || notes=$(read_notes Unreleased)
    [ -n "$notes" ] || notes=$(read_notes "$version")
    [ -n "$notes" ] || die "CHANGELOG.md has nothing about this version"
    printf '%s\n' "$notes" >"$release/RELEASE-NOTES.md"
    {
        echo "Contact: $SECURITY_CONTACT"
        echo "Expires: $(date --date="@$((SOURCE_DATE_EPOCH + 365 * 86400))" +%Y-%m-%dT%H:%M:%SZ)"
        echo "Preferred-Languages: en"
    } >"$release/security.txt"
}

# read_notes NAME: that section of the change log; nothing if it is empty.
read_notes() {
    awk -v name="$1" '
        /^## / { inside = index($0, "## [" name "]") == 1; head = $0; next }
        inside && /[^ ]/ && head != "" { print head; print ""; head = "" }
        inside && (head == "")' CHANGELOG.md
}

make_installer() {
    local public
    [ -s "$RELEASE_KEY" ] || die "RELEASE_KEY=$RELEASE_KEY is not there"
    public=$(ssh-keygen -y -P '' -f "$RELEASE_KEY" | cut -d' ' -f1,2) || die "RELEASE_KEY has a passphrase, or is no private key"
    sed "s|^version='@VERSION@'|version='$version'|; s|^from='@BASE_URL@'|from='$BASE_URL'|; s|^key='@PUBLIC_KEY@'|key='$public'|" \
        packaging/release/install.sh >"$release/install.sh"
    ! grep -q "='@" "$release/install.sh" || die "install.sh has a variable that is not set"
    echo "$public" >"$release/release-key.pub"
}

# The provenance has the hash of every other file, and SHA256SUMS that of the provenance as well.
sign() {
    local builds=() name
    for name in $architectures; do builds+=("$parts/$name/build.json"); done
    python3 packaging/release/provenance.py "$release" "$BUILDER_ID" "$(git rev-parse HEAD)" "$SOURCE_DATE_EPOCH" \
        "${builds[@]}" >"$work/provenance"
    mv "$work/provenance" "$release/sluicegate-$version.intoto.json"
    (cd "$release" && sha256sum -- * >"$work/sums" && mv "$work/sums" SHA256SUMS)
    ssh-keygen -Y sign -q -f "$RELEASE_KEY" -n sluicegate-release "$release/SHA256SUMS" </dev/null
}

main
