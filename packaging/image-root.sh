#!/usr/bin/env bash
# Makes the root of the container image in a directory that does not exist: the program, the shared libraries that it
# names, and nothing else to run. Called in the Dockerfile and by packaging/release/build.sh, on a Debian or one of its
# kind, whose libraries it takes.
#
#   packaging/image-root.sh PROGRAM DIRECTORY
set -euo pipefail
# The order of the authorities is the same on every machine.
export LC_ALL=C
program=$1
root=$2
mkdir -p "$root"/usr/{bin,lib,lib64,local/bin,share} "$root/etc/ssl/certs" "$root/var/lib/dpkg/status.d"
ln -s usr/lib "$root/lib"
ln -s usr/lib64 "$root/lib64"
install -m 0755 "$program" "$root/usr/local/bin/sluicegate"

libraries=$(ldd "$program" | tr -s ' \t' '\n' | grep '^/' | sort -u)
packages=(base-files ca-certificates libc6 tzdata)
[[ $libraries != *libgcc_s* ]] || packages+=(libgcc-s1)
for library in $libraries; do install -D -m 0755 "$library" "$root$library"; done
# The authorities of the package alone: the bundle in /etc also has those that this machine trusts besides. As there, each
# certificate ends with a line end.
authorities=(/usr/share/ca-certificates/mozilla/*.crt)
[ -e "${authorities[0]}" ] || { echo "image-root: the package ca-certificates is not installed" >&2; exit 1; }
sed --separate '$a\' "${authorities[@]}" >"$root/etc/ssl/certs/ca-certificates.crt"
cp -r /usr/share/zoneinfo "$root/usr/share/"
# Vulnerability scanners look here in an image without a package database.
for package in "${packages[@]}"; do
    dpkg --status "$package" >"$root/var/lib/dpkg/status.d/$package"
    install -D -m 0644 "/usr/share/doc/$package/copyright" "$root/usr/share/doc/$package/copyright"
done

install -D -m 0644 /etc/os-release "$root/etc/os-release"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
echo 'nonroot:x:65532:65532:nonroot:/:/sbin/nologin' >"$root/etc/passwd"
echo 'nonroot:x:65532:' >"$root/etc/group"
install -D -m 0644 conf/container/sluicegate.toml "$root/etc/sluicegate/sluicegate.toml"
