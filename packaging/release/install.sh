#!/bin/sh
# Installs Sluicegate from a release, if the release is genuine: SHA256SUMS has the signature of the project's key, and the
# archive has the hash in SHA256SUMS. Otherwise it installs nothing and says what is wrong.
#
#   sh install.sh [--prefix DIRECTORY] [--from URL-OR-DIRECTORY] [--key FILE]
#
# --prefix  where to install: bin, share/man and completions below it; default /usr/local
# --from    where the files of the release are; default: where this script was published
# --key     file with the public key of releases; default: the key in this script
#
# Needs curl, tar, sha256sum and ssh-keygen (OpenSSH 8.1 or later).
set -eu
# What is installed is for every user.
umask 022

# Set by packaging/release/assemble.sh.
version='@VERSION@'
from='@BASE_URL@'
key='@PUBLIC_KEY@'
oldest_glibc=2.28

main() {
    prefix=/usr/local
    while [ $# -gt 0 ]; do
        [ $# -gt 1 ] || die "$1 needs a value"
        case $1 in
        --prefix) prefix=$2 ;;
        --from) from=${2%/} ;;
        --key) key=$(cat "$2") ;;
        *) die "unknown option $1; there are --prefix, --from and --key" ;;
        esac
        shift 2
    done
    case $version in @*) die "this is the template of the script: run the one in a release" ;; esac
    needs='tar sha256sum ssh-keygen'
    case $from in https://*) needs="curl $needs" ;; esac
    for need in $needs; do
        command -v "$need" >/dev/null || die "$need is missing; without it nothing can be downloaded and verified"
    done
    name=sluicegate-$version-$(find_architecture)-linux
    check_system

    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' INT TERM HUP
    fetch SHA256SUMS
    fetch SHA256SUMS.sig
    verify_signature
    find_hash "$name.tar.gz"
    fetch "$name.tar.gz"
    verify_hash "$name.tar.gz"
    install_files
}

find_architecture() {
    case $(uname -s)-$(uname -m) in
    Linux-x86_64 | Linux-amd64) echo x86_64 ;;
    Linux-aarch64 | Linux-arm64) echo aarch64 ;;
    *) die "there is no build for $(uname -s) on $(uname -m); build from source" ;;
    esac
}

check_system() {
    glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d' ' -f2) || true
    [ -n "$glibc" ] || die "this system has no glibc; use the container image, or build from source"
    oldest=$(printf '%s\n%s\n' "$glibc" "$oldest_glibc" | sort -t. -k1,1n -k2,2n | head -1)
    [ "$oldest" = "$oldest_glibc" ] || die "this system has glibc $glibc, and the program needs $oldest_glibc or later"
}

fetch() {
    case $from in
    https://*)
        curl --proto '=https' --tlsv1.2 --fail --silent --show-error --location --retry 2 --max-time 600 \
            --output "$work/$1" "$from/$1" || die "cannot download $from/$1"
        ;;
    *://*) die "$from: only https is accepted" ;;
    *) cp "$from/$1" "$work/$1" || die "cannot read $from/$1" ;;
    esac
}

verify_signature() {
    # The key counts for these files only: git, which may use the same key, signs in another namespace.
    printf 'releases namespaces="sluicegate-release" %s\n' "$key" >"$work/signers"
    ssh-keygen -Y verify -f "$work/signers" -I releases -n sluicegate-release -s "$work/SHA256SUMS.sig" \
        <"$work/SHA256SUMS" >"$work/said" 2>&1 ||
        die "the signature of SHA256SUMS is not that of the project: $(tail -1 "$work/said")"
}

# A release of another version has other names, so an old one cannot be passed off as this one.
find_hash() {
    grep -E "^[0-9a-f]{64}  $1\$" "$work/SHA256SUMS" >"$work/expected" || die "SHA256SUMS does not name $1"
}

verify_hash() {
    (cd "$work" && sha256sum --check --strict --status expected) ||
        die "$1 is not the published file: it is incomplete or was changed"
}

# The program last, so that it is never there without the rest, and in one step.
install_files() {
    tar -x -z -f "$work/$name.tar.gz" -C "$work" --no-same-owner
    "$work/$name/sluicegate" --version >/dev/null || die "the program does not run here"
    put 644 sluicegate.1 share/man/man1/sluicegate.1
    put 644 completions/sluicegate.bash share/bash-completion/completions/sluicegate
    put 644 completions/sluicegate.fish share/fish/vendor_completions.d/sluicegate.fish
    put 644 completions/_sluicegate share/zsh/site-functions/_sluicegate
    put 644 conf/sluicegate.toml share/doc/sluicegate/sluicegate.toml
    put 755 sluicegate bin/sluicegate
    echo "Installed $("$prefix/bin/sluicegate" --version) in $prefix. Try it: $prefix/bin/sluicegate demo"
}

# put MODE FILE DESTINATION
put() {
    mkdir -p "$prefix/$(dirname "$3")"
    cp "$work/$name/$2" "$prefix/$3.new"
    chmod "$1" "$prefix/$3.new"
    mv "$prefix/$3.new" "$prefix/$3"
}

die() {
    echo "install.sh: $*; nothing was installed" >&2
    exit 1
}

# The last line, so that half a script does nothing.
main "$@"
