#!/usr/bin/env bash
# Boots a Debian with systemd as its process 1, installs the Debian package there and does with the service what an
# operator does; other users and other containers try to be taken for the gateway. Called by `make systemd-test`, as
# root. The Debian has namespaces of its own (mounts, processes, network, control groups) and ends with this test.
#
# Needs a cgroup2 file system that can be written to, anywhere on the machine, and overlayfs. The Debian is made with
# debootstrap once and kept in SYSTEMD_CACHE (default target/systemd, 300 MB).
#
#   PROFILE=dev SYSTEMD_CACHE=DIR SUITE=trixie tests/systemd.sh      PROFILE=dev: another build than release
set -euo pipefail

cd "$(dirname "$0")/.."
suite=${SUITE:-trixie} # the first Debian whose systemd knows notify-reload
cache=$(realpath -m "${SYSTEMD_CACHE:-target/systemd}")
base=$cache/$suite
scratch=$(mktemp -d "${TMPDIR:-/tmp}/sluicegate-systemd.XXXXXX")
config=/etc/sluicegate/sluicegate.toml
unit=sluicegate.service
url=http://127.0.0.1:8080
cgroup=
machine=
passed=0
failed=0

main() {
    [ "$(id -u)" -eq 0 ] || die "only root boots another system: run this as root"
    trap clean_up EXIT
    trap 'exit 130' INT TERM
    tests/tools.sh debootstrap:debootstrap dpkg-shlibdeps:dpkg-dev unshare:util-linux python3:python3
    say "building the package"
    package=$(packaging/deb.sh | tail -1)
    make_base
    boot
    check_installed
    check_reloads
    check_strangers
    check_squatters
    check_ends
    check_socket_and_upgrade
    check_removed
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
}

# ---- Getting ready

make_base() {
    [ ! -e "$base/made" ] || return 0
    say "making a Debian $suite with systemd"
    rm -rf --one-file-system "$base"
    mkdir -p "$base"
    debootstrap --variant=minbase --include=systemd,systemd-sysv,adduser,curl,procps,iproute2,python3 \
        "$suite" "$base/root" >"$scratch/debootstrap.log" 2>&1 \
        || { tail -20 "$scratch/debootstrap.log" >&2; die "debootstrap failed"; }
    # For the machine of this test alone: there are no kernel modules in it to be loaded.
    ln -s /dev/null "$base/root/etc/systemd/system/systemd-modules-load.service"
    touch "$base/made"
}

boot() {
    local groups
    groups=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
    cgroup=${groups:-/sys/fs/cgroup}/sluicegate-test-$$
    mkdir "$cgroup" 2>/dev/null || { cgroup=; die "systemd needs cgroup2, and there is none here that can be written to"; }
    mkdir "$scratch/upper" "$scratch/work" "$scratch/root"
    say "booting"
    # In a control group that becomes the root of what the machine sees.
    bash -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$cgroup" \
        unshare --mount --pid --fork --kill-child --uts --ipc --net --cgroup --propagation private \
        bash -ec "$(declare -f be_machine); be_machine '$base/root' '$scratch'" >"$scratch/console" 2>&1 &
    machine=$!
    within 60 inside systemctl is-system-running --wait >/dev/null \
        || { tail -20 "$scratch/console" >&2; inside systemctl --failed >&2; die "the machine did not come up"; }
    say "$(inside systemctl --version | head -1)"
    inside adduser --quiet --system --group --no-create-home mallory
}

# Mounts what systemd wants, changes into it and becomes systemd. Its mounts are gone with its last process.
be_machine() {
    local base=$1 scratch=$2 root=$2/root device
    mount -t overlay overlay -o "lowerdir=$base,upperdir=$scratch/upper,workdir=$scratch/work" "$root"
    mount -t proc proc "$root/proc"
    mount -t sysfs -o ro sysfs "$root/sys"
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
    mount -t tmpfs -o mode=755 tmpfs "$root/dev"
    for device in null zero full random urandom tty; do
        touch "$root/dev/$device"
        mount --bind "/dev/$device" "$root/dev/$device"
    done
    mkdir "$root/dev/pts" "$root/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
    ln -s pts/ptmx "$root/dev/ptmx"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    mount -t tmpfs -o mode=755 tmpfs "$root/run"
    mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
    hostname sluicegate-test
    cd "$root"
    mkdir .before
    pivot_root . .before
    umount -l .before
    exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        /lib/systemd/systemd --log-target=console --show-status=no
}

# inside COMMAND...: as root on the machine.
inside() {
    local first
    first=$(pgrep -P "$machine") || { echo "the machine has ended"; return 1; }
    nsenter --target "$first" --all env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 SYSTEMD_PAGER= "$@"
}

# as USER COMMAND...: on the machine.
as() {
    local user=$1
    shift
    inside setpriv --reuid="$user" --regid="$user" --init-groups "$@"
}

put() { inside tee "$1" >/dev/null; }

good_config() {
    printf '[server]\nlisten = ["127.0.0.1:8080"]\n%s\n[admin]\nlisten = "127.0.0.1:9911"\ntoken = "known-to-few-people"\n' "${1:-}"
    printf '[[route]]\nupstream = "echo:"\n'
}

# ---- The checks

check_installed() {
    inside tee /root/sluicegate.deb <"$package" >/dev/null
    check "it installs and starts" inside dpkg --install /root/sluicegate.deb
    check "it is active" inside systemctl is-active $unit
    [ "$failed" -eq 0 ] || die "the rest needs it running: $(inside systemctl status --no-pager $unit)"
    check "and comes with the machine" inside systemctl is-enabled $unit
    check "its status says what it does" property StatusText serving
    check "it answers" answers 502 # its config names a server that is not there
    good_config | put $config
    check "an edit is seen" within 10 answers 200
    check "it is healthy, to root" inside sluicegate healthcheck -c $config
    check "it is healthy, to its user" as sluicegate sluicegate healthcheck -c $config
    check "systemd has little to say against its sandbox" sandboxed
    check "the journal has its log" inside bash -c "journalctl -u $unit | grep -q 'INFO ready'"
}

check_reloads() {
    good_config 'max_connections = 1000' | put $config
    check "systemctl reload" inside systemctl reload $unit
    check "the status has the generation" property StatusText 'serving generation [0-9]+ of the config'
    good_config 'max_connections = "many"' | put $config
    check "systemctl reload of a bad config fails" not inside systemctl reload $unit
    check "the journal says why" inside bash -c "journalctl -u $unit | grep -q 'sluicegate.toml:3.*many\|max_connections'"
    check "the status says so" within 5 property StatusText 'the config does not load: generation [0-9]+ stays active.*'
    check "it is active all the same" within 5 inside systemctl is-active $unit
    check "and answers" answers 200
    printf '[server]\nlisten = [' | put $config
    check "a file cut off: healthy to root, who is outside of the sandbox" inside sluicegate healthcheck -c $config
    check "and to its user" as sluicegate sluicegate healthcheck -c $config
    check "sluicegate reload says what is wrong" fails_with 'not valid TOML' inside sluicegate reload -c $config
    put $config </dev/null
    check "an emptied file: healthy" inside sluicegate healthcheck -c $config
    check "sluicegate reload says that it is empty" fails_with 'is empty' inside sluicegate reload -c $config
    # As an editor of root's saves: closed to the gateway.
    inside rm $config
    good_config 'max_connections = 1001' | put $config
    inside chmod 600 $config
    check "a file that the gateway may not read: sluicegate reload says so" \
        fails_with '[Pp]ermission denied' inside sluicegate reload -c $config
    check "and it is healthy" inside sluicegate healthcheck -c $config
    inside chown root:sluicegate $config
    inside chmod 640 $config
    check "sluicegate reload, as root" inside sluicegate reload -c $config
    check "sluicegate reload, as its user" as sluicegate sluicegate reload -c $config
}

# What the gateway tells on its abstract socket is for its user and root.
check_strangers() {
    inside tee /tmp/contact.py >/dev/null <<'PYTHON'
# contact.py ask NAME            prints what is told
# contact.py squat NAME ANSWER   answers with that, or letter by letter where it is "drip"
# An admin listener that the answer may name counts its questions.
import socket, sys, threading, time
name = b"\0" + sys.argv[2].encode()
s = socket.socket(socket.AF_UNIX)
if sys.argv[1] == "ask":
    s.settimeout(5); s.connect(name)
    try: print(s.recv(4096).decode())
    except OSError: pass
    sys.exit()
def admin():
    while True:
        c, _ = fake.accept(); c.recv(4096); print("asked", flush=True)
        c.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"); c.close()
fake = socket.create_server(("127.0.0.1", 6666)); threading.Thread(target=admin, daemon=True).start()
s.bind(name); s.listen(); print("squatting", flush=True)
while True:
    c, _ = s.accept()
    try:
        if sys.argv[3] == "drip":
            for _ in range(300): c.sendall(b" "); time.sleep(.1)
        else: c.sendall(sys.argv[3].encode())
    except OSError: pass
    c.close()
PYTHON
    name=$(inside stat -c 'sluicegate/%d:%i/sluicegate.toml' /etc/sluicegate | awk -F'[/:]' '{ printf "%s/%x:%x/%s", $1, $2, $3, $4 }')
    check "it has its name" bound_by "$(inside systemctl show -P MainPID $unit)"
    check "its user is told" told sluicegate 127.0.0.1:9911
    check "root is told" told root 127.0.0.1:9911
    check "another user is told nothing" told mallory ''
    for command in healthcheck reload; do
        check "$command of another user says that it may not read the config" \
            fails_with "cannot read $config: Permission denied.*run this as root" as mallory sluicegate $command -c $config
    done
    check "healthcheck of another user needs no config with --url" \
        as mallory sluicegate healthcheck --url http://127.0.0.1:9911/readyz
}

# Who has the name before the gateway is believed by nobody, and keeps nobody waiting.
check_squatters() {
    local lie=127.0.0.1:6666
    squatted "a liar" as mallory "$lie"
    squatted "a liar in a container, of the same user" as_in_container sluicegate "$lie"
    squatted "one who never ends" as mallory drip
}

# squatted WHO RUNNER USER ANSWER
squatted() {
    local who=$1 runner=$2 user=$3 squatter
    shift 3
    inside systemctl stop $unit
    "$runner" "$user" python3 /tmp/contact.py squat "$name" "$@" >"$scratch/squatter" 2>&1 &
    squatter=$!
    check "$who has the name" within 10 grep -q squatting "$scratch/squatter"
    check "$who: the gateway starts" inside systemctl start $unit
    check "$who: it answers" answers 200
    for user in root sluicegate; do
        check "$who: healthcheck of $user" as $user timeout 5 sluicegate healthcheck -c $config
        check "$who: reload of $user" as $user timeout 5 sluicegate reload -c $config
    done
    check "$who: nobody was sent there" not grep -q asked "$scratch/squatter"
    check "$who: the journal warns" within 20 inside bash -c "journalctl -u $unit --since -1min | grep -q 'another process has the name'"
    # The first process of a container heeds no other signal.
    inside pkill -KILL -f /tmp/contact.py
    wait "$squatter" || true
    check "$who has gone: the gateway takes the name" within 10 bound_by "$(inside systemctl show -P MainPID $unit)"
}

check_ends() {
    local before
    slow_request >"$scratch/slow" &
    before=$!
    sleep 1
    check "systemctl stop" inside systemctl stop $unit
    wait "$before" || true
    check "the request under way was answered" equal "$(cat "$scratch/slow")" 200
    check "it ended well" property Result success
    check "it is gone" not inside systemctl is-active $unit
    check "systemctl start" inside systemctl start $unit
    check "systemctl restart" inside systemctl restart $unit
    # More often than systemd allows unless it is told otherwise.
    for _ in {1..7}; do
        before=$(inside systemctl show -P MainPID $unit)
        inside kill -KILL "$before"
        within 20 runs_after "$before" || break
    done
    check "killed seven times, it answers again" within 10 answers 200
    check "and systemd has counted" property NRestarts 7
    check "it tells where it is" within 10 bound_by "$(inside systemctl show -P MainPID $unit)"
}

# As docs/operating/upgrades.md says.
check_socket_and_upgrade() {
    inside mkdir -p /etc/systemd/system
    printf '[Socket]\nListenStream=127.0.0.1:8080\n\n[Install]\nWantedBy=sockets.target\n' | put /etc/systemd/system/sluicegate.socket
    inside systemctl daemon-reload
    inside systemctl stop $unit
    check "sockets of systemd's" inside systemctl enable --now sluicegate.socket
    check "the first request starts the gateway" within 20 answers 200
    check "restarts refuse nobody" undisturbed inside systemctl restart $unit
    dpkg-deb --raw-extract "$package" "$scratch/newer"
    sed -i 's/^Version: .*/&+newer/' "$scratch/newer/DEBIAN/control"
    dpkg-deb -Zgzip -z1 --build "$scratch/newer" "$scratch/newer.deb" >/dev/null
    inside tee /root/newer.deb <"$scratch/newer.deb" >/dev/null
    local before
    before=$(inside systemctl show -P MainPID $unit)
    check "a newer version installs while it runs, and refuses nobody" undisturbed inside dpkg --install /root/newer.deb
    check "it runs after that" runs_after "$before"
    check "the edited config stays" inside grep -q max_connections $config
    check "it is healthy" inside sluicegate healthcheck -c $config
    inside systemctl disable --now sluicegate.socket
    inside rm /etc/systemd/system/sluicegate.socket
    inside systemctl daemon-reload
}

check_removed() {
    inside touch /var/lib/sluicegate/kept
    inside systemctl start $unit
    check "it goes" inside dpkg --remove sluicegate
    check "it runs no longer" not inside pgrep -x sluicegate
    check "the config and the state stay" inside test -e $config -a -e /var/lib/sluicegate/kept
    check "it comes back with them" inside dpkg --install /root/newer.deb
    check "and runs" within 10 answers 200
    check "it goes for good" inside dpkg --purge sluicegate
    check "nothing is left" equal "" "$(inside bash -c 'ls -d /etc/sluicegate /var/lib/sluicegate /run/sluicegate \
        /usr/bin/sluicegate /usr/{lib,share,share/doc}/*sluicegate* {/usr/lib,/etc}/systemd/system/{,*/}sluicegate* 2>/dev/null')"
    check "systemd knows nothing of it" equal "$(inside systemctl show -P LoadState $unit)" not-found
    check "systemd has no complaint" equal "$(inside systemctl --failed --no-legend)" ""
}

# ---- What the checks are made of

answers() {
    equal "$(inside curl --max-time 10 -s -o /dev/null -w '%{http_code}' $url/)" "$1"
}

property() {
    matches "$(inside systemctl show -P "$1" $unit)" "^$2\$"
}

sandboxed() {
    local exposure
    exposure=$(inside systemd-analyze security --no-pager $unit | sed -n 's/.*exposure level for .*: \([0-9.]*\) .*/\1/p')
    matches "$exposure" '^[01]\.[0-9]$'
}

bound_by() { inside ss -xlpH | grep -F "@$name " | grep "pid=$1,"; }

runs_after() {
    local now
    now=$(inside systemctl show -P MainPID $unit)
    [ "$now" -gt 0 ] && [ "$now" != "$1" ] && inside systemctl is-active $unit
}

# told USER PART: what contact.py is told has that part; nothing is told where it is empty.
told() {
    local answer
    answer=$(as "$1" python3 /tmp/contact.py ask "$name")
    if [ -n "$2" ]; then matches "$answer" "$2"; else equal "$answer" ""; fi
}

# as_in_container USER COMMAND...: with the machine's network, and with processes and files of its own.
as_in_container() {
    local user=$1
    shift
    inside unshare --mount --pid --fork bash -ec 'mount -t tmpfs -o mode=755 tmpfs /etc/sluicegate
        user=$1; shift; exec setpriv --reuid="$user" --regid="$user" --init-groups "$@"' container "$user" "$@"
}

slow_request() {
    for _ in {1..10}; do head -c 1000 /dev/zero; sleep 0.3; done \
        | inside curl --max-time 30 -s -o /dev/null -w '%{http_code}' -T - -X POST $url/slow
}

# undisturbed COMMAND...: while requests come, each on a connection of its own, all of them answered.
undisturbed() {
    local load result=0
    inside bash -c "for _ in {1..400}; do curl --max-time 30 -s -o /dev/null -w '%{http_code} ' $url/ || echo \"curl \$?\"; done" \
        >"$scratch/load" &
    load=$!
    sleep 0.5
    "$@" || result=1
    kill -0 "$load" || { echo "the requests were over before"; result=1; }
    wait "$load" || true
    equal "$(tr ' ' '\n' <"$scratch/load" | sed '/^$/d' | sort | uniq -c | xargs)" "400 200" && return "$result"
}

fails_with() {
    local said want=$1
    shift
    ! said=$("$@" 2>&1) || { echo "it succeeded: $said"; return 1; }
    matches "$said" "$want"
}

equal() { [ "$1" = "$2" ] || { echo "got '$1', want '$2'"; return 1; }; }

matches() { [[ $1 =~ $2 ]] || { echo "'$1' does not match '$2'"; return 1; }; }

not() { ! "$@"; }

within() {
    local end=$((SECONDS + $1)) said
    shift
    until said=$("$@" 2>&1); do
        [ "$SECONDS" -lt "$end" ] || { echo "$said"; return 1; }
        sleep 0.2
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
        inside journalctl -u $unit -n 5 --no-pager 2>&1 | sed 's/^/    /' || true
    fi
}

# The end of the machine's first process is the end of all of them, and of its mounts.
clean_up() {
    if [ -n "$machine" ]; then
        kill -KILL "$machine" 2>/dev/null || true
        wait "$machine" 2>/dev/null || true
    fi
    if [ -n "$cgroup" ]; then
        within 10 find "$cgroup" -depth -type d -exec rmdir {} + || echo "left behind: $cgroup" >&2
    fi
    rm -rf --one-file-system "$scratch"
}

say() { echo "== $*"; }

die() {
    echo "error: $*" >&2
    exit 1
}

main
