#!/usr/bin/env bash
# Builds the Debian package, installs it, runs it as the user that it makes, installs it once more over an edited
# config, and removes it. Called by `make package-test`, as root, where Sluicegate is not installed.
#
#   PROFILE=dev tests/package.sh      packs another build than release, which takes minutes less
set -euo pipefail

cd "$(dirname "$0")/.."
scratch=$(mktemp -d "${TMPDIR:-/tmp}/sluicegate-package.XXXXXX")
config=/etc/sluicegate/sluicegate.toml
service="--reuid=sluicegate --regid=sluicegate --init-groups"
# There while this test has something installed: a run that was killed is cleaned up by the next.
mark=/var/lib/sluicegate-package-test
passed=0
failed=0
gateway=
installed=

main() {
    [ "$(id -u)" -eq 0 ] || die "only root installs packages: run this as root"
    command -v dpkg >/dev/null || die "dpkg is missing: this test needs Debian or one of its kind"
    [ ! -e $mark ] || { say "removing what a run that was killed has left"; remove_package; }
    ! dpkg -s sluicegate >/dev/null 2>&1 || die "sluicegate is installed here, and this test would remove it"
    [ ! -e /etc/sluicegate ] || die "/etc/sluicegate is there already, and this test would remove it"
    trap clean_up EXIT
    trap 'exit 130' INT TERM
    install_tools
    say "building the package"
    package=$(packaging/deb.sh | tail -1)
    check_contents
    check_installed
    check_running
    check_upgraded
    check_removed
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
}

install_tools() {
    tests/tools.sh dpkg-shlibdeps:dpkg-dev adduser:adduser curl:curl setpriv:util-linux python3:python3 systemd-analyze:systemd
}

check_contents() {
    local listed
    listed=$(dpkg-deb --contents "$package" | awk '{ print $NF }')
    for file in usr/bin/sluicegate etc/sluicegate/sluicegate.toml usr/share/man/man1/sluicegate.1.gz \
        usr/share/bash-completion/completions/sluicegate usr/share/fish/vendor_completions.d/sluicegate.fish \
        usr/share/zsh/vendor-completions/_sluicegate usr/share/doc/sluicegate/full.toml \
        usr/share/sluicegate/schema.json usr/share/doc/sluicegate/LICENSE-MIT; do
        check "the package has $file" grep -qxF "./$file" <<<"$listed"
    done
    check "and the systemd unit" grep -qE '^\./(usr/)?lib/systemd/system/sluicegate\.service$' <<<"$listed"
    check "its config is a conffile" test "$(dpkg-deb --info "$package" conffiles)" = "$config"
}

check_installed() {
    installed=yes
    touch $mark
    check "it installs" dpkg --install "$package"
    check "the program runs" grep -q '^sluicegate [0-9]' <<<"$(sluicegate --version)"
    check "its user is there, without a shell" grep -q ':/usr/sbin/nologin$' <<<"$(getent passwd sluicegate)"
    check "that user and no other reads the config" test "$(stat -c '%U:%G %a' $config)" = "root:sluicegate 640"
    check "the config as shipped is good, to that user" as_service sluicegate check $config
    check "the config is closed to others" not setpriv --reuid=nobody --regid=nogroup --clear-groups cat $config
    # Before version 253 it does not know notify-reload, which the unit allows for.
    check "systemd reads the unit" not grep -vE 'notify-reload|^$' \
        <<<"$(systemd-analyze verify --man=no "$(dpkg -L sluicegate | grep 'sluicegate.service$')" 2>&1)"
}

# As the unit would: its user and its command, and what it tells systemd.
check_running() {
    local ports line
    ports=$(python3 -c 'import socket
s = [socket.socket() for _ in range(2)]
for x in s: x.bind(("127.0.0.1", 0))
print(*(x.getsockname()[1] for x in s))')
    read -r port admin <<<"$ports"
    printf '[server]\nlisten = ["127.0.0.1:%s"]\n[admin]\nlisten = "127.0.0.1:%s"\n[[route]]\nupstream = "echo:"\n' \
        "$port" "$admin" >$config
    python3 - "$scratch" <<'PYTHON' &
import os, socket, sys
systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
systemd.bind(sys.argv[1] + "/notify")
os.chmod(sys.argv[1], 0o755); os.chmod(sys.argv[1] + "/notify", 0o777)
with open(sys.argv[1] + "/told", "w") as told:
    while True:
        message = systemd.recv(4096).decode()
        print(message, file=told, flush=True)
        if "STOPPING=1" in message:
            break
PYTHON
    within 5 test -S "$scratch/notify"
    line=$(sed -n 's/^ExecStart=//p' "$(dpkg -L sluicegate | grep 'sluicegate.service$')")
    # shellcheck disable=SC2086 # a command line, as systemd takes it apart
    NOTIFY_SOCKET=$scratch/notify setpriv $service $line 2>"$scratch/log" &
    gateway=$!
    check "the gateway starts as its user and says so" within 10 grep -q READY=1 "$scratch/told"
    check "it serves" curl -fsS --max-time 5 -o /dev/null "http://127.0.0.1:$port/"
    check "it is healthy" as_service sluicegate healthcheck -c $config
    echo '# edited' >>$config
    line=$(sed -n 's/^ExecReload=//p' "$(dpkg -L sluicegate | grep 'sluicegate.service$')")
    # shellcheck disable=SC2086
    check "it reloads" as_service $line
    echo 'nonsense = 1' >>$config
    # shellcheck disable=SC2086
    check "a reload of a bad config fails" not as_service $line
    sed -i '/^nonsense/d' $config
    kill -TERM "$gateway"
    line=0
    wait "$gateway" || line=$?
    check "it ends well when told to" test "$line" -eq 0
    gateway=
    check "and says so" grep -q STOPPING=1 "$scratch/told"
}

check_upgraded() {
    check "it installs over itself" dpkg --install "$package"
    check "the edited config stays" grep -q '^# edited' $config
    check "and its owner" test "$(stat -c '%U:%G %a' $config)" = "root:sluicegate 640"
}

check_removed() {
    check "it goes" dpkg --remove sluicegate
    check "the program is gone" not test -e /usr/bin/sluicegate
    check "the config stays" test -e $config
    check "it goes for good" dpkg --purge sluicegate
    check "the config is gone" not test -e /etc/sluicegate
}

# shellcheck disable=SC2086 # several options
as_service() { setpriv $service "$@"; }

not() { ! "$@"; }

within() {
    local end=$((SECONDS + $1))
    shift
    until "$@" 2>/dev/null; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.1
    done
}

check() {
    local what=$1 output
    shift
    if output=$("$@" 2>&1); then
        passed=$((passed + 1))
        echo "ok: $what"
    else
        failed=$((failed + 1))
        printf 'FAILED: %s\n%s\n' "$what" "$output"
        [ ! -s "$scratch/log" ] || tail -5 "$scratch/log"
    fi
}

clean_up() {
    [ -z "$gateway" ] || kill "$gateway" 2>/dev/null || true
    [ -z "$installed" ] || remove_package
    local jobs
    jobs=$(jobs -p)
    # shellcheck disable=SC2086 # one word each
    [ -z "$jobs" ] || kill $jobs 2>/dev/null || true
    rm -rf "$scratch"
}

remove_package() {
    dpkg --purge sluicegate >/dev/null 2>&1 || true
    rm -rf /etc/sluicegate
    ! getent passwd sluicegate >/dev/null || userdel sluicegate >/dev/null 2>&1 || true
    rm -f $mark
}

say() { echo "== $*"; }

die() {
    echo "error: $*" >&2
    exit 1
}

main
