#!/usr/bin/env bash
# Builds the parts of a release for the architecture of this machine, in target/release-parts/ARCHITECTURE: the program for
# glibc 2.28 and later, its debug symbols, the Debian package, the root of the image and the list of components. The
# second step, packaging/release/assemble.sh, makes a signed release of the parts of all architectures.
#
#   PROFILE=dev       another build than `dist`, for a quick try
#
# Installs its own cargo-zigbuild and zig, of the versions in requirements.txt, into target/tools. Everything it makes
# depends on the commit, on PROFILE and on the versions of those tools and of Rust; the image also on the machine's glibc.
set -euo pipefail
cd "$(dirname "$0")/../.."
source packaging/release/common.sh

# The oldest glibc that has to be there: that of Debian 10, Ubuntu 20.04 and RHEL 8.
glibc=2.28

main() {
    profile=${PROFILE:-dist}
    parts=$target/release-parts/$arch
    rm -rf "$parts"
    mkdir -p "$parts"
    install_tools
    build_program
    check_program
    split_symbols
    say "$parts: the archive of the program"
    pack_archive
    say "$parts: the Debian package"
    BINARY=$parts/sluicegate packaging/deb.sh "$parts"
    say "$parts: the root of the image"
    packaging/image-root.sh "$parts/sluicegate" "$parts/image"
    say "$parts: the list of components"
    python3 packaging/release/sbom.py "$triple" "$version" "$SOURCE_DATE_EPOCH" \
        >"$parts/sluicegate-$version-$arch-linux.cdx.json"
    describe_build >"$parts/build.json"
    rm "$parts/sluicegate"
    ls -1 "$parts"
}

# Checks of the hashes, so that nobody but the authors of the tools decides what compiles a release.
install_tools() {
    local home=$target/tools/release
    export PATH=$home/bin:$PATH
    [ "$(cat "$home/ready" 2>/dev/null)" != "$(cat packaging/release/requirements.txt)" ] || return 0
    say "installing cargo-zigbuild and zig into $home"
    rm -rf "$home"
    python3 -m venv "$home"
    "$home/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: --require-hashes --no-deps \
        --requirement packaging/release/requirements.txt
    cp packaging/release/requirements.txt "$home/ready"
}

build_program() {
    local cargo_home=${CARGO_HOME:-$HOME/.cargo} built=$target/shipped
    local flags="--remap-path-prefix=$PWD=/sluicegate --remap-path-prefix=$built=/target --remap-path-prefix=$cargo_home=/cargo"
    # A hash of the program with its symbols would depend on the directory: zig's start files name theirs in the symbols.
    flags+=" -Clink-arg=-Wl,--build-id=0x$(sha1sum <<<"$(git rev-parse HEAD) $triple $profile" | cut -d' ' -f1)"
    say "building $triple with the profile $profile and glibc $glibc"
    export SLUICEGATE_REVISION=$revision
    # C sources have the time in them, which is that of the commit: what was compiled for another commit is of no use.
    [ "$profile" = dev ] || rm -rf "$built"
    export ZIG_GLOBAL_CACHE_DIR=$built/zig ZIG_LOCAL_CACHE_DIR=$built/zig
    # The paths of C sources are in assertions. Incremental builds are not reproducible.
    RUSTFLAGS=$flags CARGO_INCREMENTAL=0 CFLAGS="-ffile-prefix-map=$cargo_home=/cargo -ffile-prefix-map=$built=/target" \
        cargo zigbuild --quiet --locked --bin sluicegate --profile "$profile" --target "$triple.$glibc" --target-dir "$built"
    case $profile in dev) profile_dir=debug ;; *) profile_dir=$profile ;; esac
    cp "$built/$triple/$profile_dir/sluicegate" "$parts/sluicegate"
}

# What the program needs of the system, read from the program itself.
check_program() {
    local needed
    needed=$(objdump -T "$parts/sluicegate" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -uV | tail -1)
    [ "$(printf '%s\n' "$needed" "$glibc" | sort -V | tail -1)" = "$glibc" ] || die "the program needs glibc $needed"
    "$parts/sluicegate" --version >/dev/null
}

# The program without symbols, which debuggers find by the build ID. The program does not name the file that has them: its
# checksum depends on the directory.
split_symbols() {
    (
        cd "$parts"
        objcopy --only-keep-debug --compress-debug-sections=zlib sluicegate sluicegate.debug
        strip --strip-all sluicegate
        pack "sluicegate-$version-$arch-linux-debug.tar.gz" sluicegate.debug
        rm sluicegate.debug
    )
}

pack_archive() {
    local name=sluicegate-$version-$arch-linux root
    root=$(mktemp -d)
    mkdir -p "$root/$name/completions" "$root/$name/conf"
    cp "$parts/sluicegate" README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT "$root/$name/"
    cp conf/sluicegate.toml conf/full.toml conf/schema.json packaging/debian/sluicegate.service "$root/$name/conf/"
    "$parts/sluicegate" man >"$root/$name/sluicegate.1"
    "$parts/sluicegate" completions bash >"$root/$name/completions/sluicegate.bash"
    "$parts/sluicegate" completions fish >"$root/$name/completions/sluicegate.fish"
    "$parts/sluicegate" completions zsh >"$root/$name/completions/_sluicegate"
    (cd "$root" && pack "$name.tar.gz" "$name")
    mv "$root/$name.tar.gz" "$parts/"
    rm -rf "$root"
}

describe_build() {
    python3 - "$triple" "$profile" "$glibc" "$(rustc --version)" "$(cargo-zigbuild --version)" "$(python-zig version)" \
        <<'PYTHON'
import json, sys
names = ["target", "profile", "glibc", "rustc", "cargo_zigbuild", "zig"]
print(json.dumps(dict(zip(names, sys.argv[1:], strict=True)), indent=2))
PYTHON
}

main
