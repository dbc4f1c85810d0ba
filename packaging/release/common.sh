# What packaging/release/build.sh and packaging/release/assemble.sh share; they source it in the root of the project.

# shellcheck shell=bash
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
arch=$(uname -m)
triple=$arch-unknown-linux-gnu
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
revision=$(git rev-parse --short=12 HEAD)
# The time in everything that is made.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
export LC_ALL=C TZ=UTC
umask 022

say() { echo "----  $*" >&2; }

die() {
    echo "release: $*" >&2
    exit 1
}

# pack FILE.tar.gz NAME...: an archive that depends on names and contents alone.
pack() {
    local file=$1
    shift
    tar --create --format=gnu --sort=name --owner=0 --group=0 --numeric-owner --mode=u+rw,go=rX,a-s \
        --mtime="@$SOURCE_DATE_EPOCH" "$@" | gzip --no-name -9 >"$file"
}
