#!/usr/bin/env bash
# Builds the container image with a real Docker Engine and uses it the way a careful operator would: read-only, no
# capabilities, not root, config mounted as a directory. Called by `make container-test`.
#
# Needs no registry for images: unless BUILD_IMAGE names one, the base images are made here with debootstrap, the
# Rust toolchain of this machine and `cargo vendor`, and the build then runs without a network. Without a reachable
# Docker daemon it starts its own, with its own socket. What is worth keeping stays in CONTAINER_CACHE (default
# target/container): the daemon's images, so that a second run compiles only what changed.
#
#   PROFILE=dev tests/container.sh      another build than release, which takes minutes less; CI uses it
#   CONTAINER_CACHE=DIR  BUILD_IMAGE=NAME  REDIS_IMAGE=NAME  tests/container.sh
set -euo pipefail

cd "$(dirname "$0")/.."
source tests/check.sh
cache=$(realpath -m "${CONTAINER_CACHE:-target/container}")
scratch=$(mktemp -d "${TMPDIR:-/tmp}/sluicegate-container.XXXXXX")
run=sluicegate-test-$$
image=sluicegate:container-test
profile=${PROFILE:-release}
revision=$(git rev-parse --short HEAD 2>/dev/null || echo container-test) # never the default: a lost one must show
hardened=(--read-only --cap-drop ALL --user 65532:65532 --security-opt no-new-privileges --label "run=$run")
passed=0
failed=0
daemon=
compose=()
is_composed=

main() {
    trap clean_up EXIT
    trap 'exit 130' INT TERM
    mkdir -p "$cache"
    install_tools
    ensure_daemon
    ensure_base_images
    build_image
    check_image_as_shipped
    check_hardened_gateway
    check_broken_files
    check_neighbours
    check_composed_services
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
}

# A gateway that hangs must fail a check, not stop the test.
curl() { command curl --max-time 20 "$@"; }

# ---- Getting ready

install_tools() {
    local missing=()
    # A client alone, on a machine whose daemon is elsewhere, or nowhere.
    if ! command -v docker >/dev/null || { ! docker info >/dev/null 2>&1 && ! command -v dockerd >/dev/null; }; then
        missing+=(docker.io)
    fi
    # The plugin of Docker's own packages, or the program of Debian's.
    docker compose version >/dev/null 2>&1 || command -v docker-compose >/dev/null || missing+=(docker-compose)
    command -v debootstrap >/dev/null || missing+=(debootstrap)
    command -v curl >/dev/null || missing+=(curl)
    command -v python3 >/dev/null || missing+=(python3)
    if [ ${#missing[@]} -gt 0 ]; then install_packages "${missing[@]}"; fi
    compose=(docker-compose)
    if docker compose version >/dev/null 2>&1; then compose=(docker compose); fi
}

install_packages() {
    local missing=("$@")
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        die "missing: ${missing[*]}. On Debian, install with: sudo apt-get install ${missing[*]}"
    fi
    say "installing ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# The daemon's own network stays off, and it changes no packet filter: containers here use the loopback of the host, none,
# or the network of compose.yaml.
ensure_daemon() {
    if docker info >/dev/null 2>&1; then
        say "using the Docker daemon that is running"
        return
    fi
    [ "$(id -u)" -eq 0 ] || die "no Docker daemon responds, and only root can start one: start Docker, or run this as root"
    command -v dockerd >/dev/null || die "no Docker daemon responds and dockerd is missing: apt-get install docker.io"
    say "starting a Docker daemon of our own, images in $cache/docker"
    dockerd --host "unix://$scratch/docker.sock" --data-root "$cache/docker" --exec-root "$scratch/exec" \
        --pidfile "$scratch/docker.pid" --bridge=none --iptables=false >"$scratch/dockerd.log" 2>&1 &
    daemon=$!
    export DOCKER_HOST=unix://$scratch/docker.sock
    within 30 docker info >/dev/null || { tail -20 "$scratch/dockerd.log" >&2; die "dockerd did not start"; }
    docker container prune --force >/dev/null # what a run that was killed left behind
}

# Debian with a C compiler, this machine's Rust and what the services of compose.yaml need, then on top the crates of
# Cargo.lock.
ensure_base_images() {
    local base crates sysroot root=$scratch/base
    base=sluicegate-base:$( (rustc --version --verbose; declare -f ensure_base_images) | sha256sum | cut -c1-12)
    crates=sluicegate-crates:$( (echo "$base"; cat Cargo.lock) | sha256sum | cut -c1-12)
    if [ -z "${BUILD_IMAGE:-}" ] || [ -z "${REDIS_IMAGE:-}" ]; then
        if ! has_image "$base"; then
            say "making $base"
            bootstrap "$root" gcc,libc6-dev,make,ca-certificates,tzdata,redis-server
            sysroot=$(rustc --print sysroot)
            cp -a "$sysroot/bin" "$sysroot/lib" "$root/usr/local/"
            tar -C "$root" -c . | docker import --change 'ENV CARGO_HOME=/usr/local/cargo' \
                --change 'ENV PATH=/usr/local/bin:/usr/bin:/bin' - "$base" >/dev/null
            rm -rf "$root"
        fi
    fi
    REDIS_IMAGE=${REDIS_IMAGE:-$base}
    [ -z "${BUILD_IMAGE:-}" ] || return 0
    BUILD_IMAGE=$crates
    has_image "$crates" && return
    say "making $crates"
    mkdir "$scratch/crates"
    cargo vendor --quiet --locked "$scratch/crates/vendor" >/dev/null
    printf '[source.crates-io]\nreplace-with = "vendored"\n[source.vendored]\ndirectory = "/usr/local/cargo/vendor"\n' \
        >"$scratch/crates/config.toml"
    printf 'FROM %s\nCOPY . /usr/local/cargo/\n' "$base" \
        | docker build --network none --tag "$crates" --file - "$scratch/crates" >"$scratch/build.log" 2>&1 \
        || { tail -20 "$scratch/build.log" >&2; die "docker build of $crates failed"; }
    rm -rf "$scratch/crates"
}

bootstrap() {
    [ "$(id -u)" -eq 0 ] || die "debootstrap needs root: run this as root, or name images in BUILD_IMAGE and REDIS_IMAGE"
    debootstrap --variant=minbase --include="$2" bookworm "$1" >"$scratch/debootstrap.log" 2>&1 \
        || { tail -20 "$scratch/debootstrap.log" >&2; die "debootstrap failed"; }
}

# The build stage gets a name of its own so that pruning spares its layers: they are the cache of the next run.
build_image() {
    local arguments=(--build-arg "BUILD_IMAGE=$BUILD_IMAGE" --build-arg "PROFILE=$profile"
        --build-arg "SLUICEGATE_REVISION=$revision")
    case $BUILD_IMAGE in sluicegate-crates:*) arguments+=(--network none) ;; esac
    say "building the image, profile $profile"
    if ! { docker build "${arguments[@]}" --target build --tag sluicegate:container-build . \
        && docker build "${arguments[@]}" --tag "$image" .; } >"$scratch/build.log" 2>&1; then
        tail -40 "$scratch/build.log" >&2
        die "docker build failed"
    fi
    [ -z "$daemon" ] || docker image prune --force >/dev/null
}

# ---- The checks

check_image_as_shipped() {
    local name=$run-default
    check "image runs as 65532:65532 by default" \
        equal "$(docker inspect --format '{{.Config.User}}' "$image")" 65532:65532
    [ "$profile" != release ] || check "image is under 64 MiB" less "$(docker inspect --format '{{.Size}}' "$image")" $((64 << 20))
    check "its own config passes check" \
        docker run --rm "${hardened[@]}" --network none "$image" check -c /etc/sluicegate/sluicegate.toml
    check "a wrong config ends with exit code 2" exits_with 2 \
        docker run --rm "${hardened[@]}" --network none "$image" run -c /etc/sluicegate/missing.toml
    docker run --detach --name "$name" "${hardened[@]}" --network none "$image" >/dev/null || true
    check "starts with no arguments and becomes healthy" within 30 healthy "$name"
    check "stops with exit code 0" stops_cleanly "$name"
}

check_hardened_gateway() {
    local name=$run-gateway
    refused=0
    start_on_host "$name"

    check "ready within 10 s, read-only and without capabilities" within 10 curl -fsS "$admin/readyz"
    check "process has uid 65532, no capability, no way to gain one" unprivileged "$name"
    check "admits the burst of 3, refuses the rest" admits 3
    check "a refusal is 429 with Retry-After in seconds" refusal_says_when
    config 5 >"$conf/sluicegate.toml"
    check "edit in place: burst of 5 is live" within 10 admits 5
    config 7 >"$conf/next" && mv "$conf/next" "$conf/sluicegate.toml"
    check "edit by rename: burst of 7 is live" within 10 admits 7
    echo 'limits = [' >"$conf/sluicegate.toml"
    check "broken edit: loudly visible in the metrics" within 10 metric_is config_last_reload_successful 0
    check "broken edit: burst of 7 stays" admits 7
    config 4 >"$conf/sluicegate.toml"
    check "repaired edit: burst of 4 is live" within 10 admits 4
    check "metrics count every refusal" metric_is rejections_total "$refused"
    check "metrics carry the revision of the build" reports_revision
    check "docker says healthy" within 30 healthy "$name"
    check "nothing was written into the container" equal "$(docker diff "$name")" ""
    slow_request >"$scratch/slow" &
    local slow=$!
    check "a slow request is under way" within 5 metric_is requests_in_flight 1
    check "docker stop: exit code 0 within its deadline" stops_cleanly "$name"
    wait "$slow" || true
    check "docker stop: the request under way was answered" equal "$(cat "$scratch/slow")" 200
}

# A save that went wrong says nothing of the gateway that runs on.
check_broken_files() {
    local name=$run-broken file good fault
    start_on_host "$name" --health-interval 1s --health-retries 1
    file=$conf/sluicegate.toml
    good=$(config 3)
    check "broken file: docker says healthy before" within 30 healthy "$name"
    for fault in "broken before [admin]" "cut off" emptied; do
        case $fault in
            broken*) printf 'limits = [\n%s\n' "$good" >"$file" ;;
            cut*) printf '%s' "${good:0:30}" >"$file" ;;
            *) : >"$file" ;;
        esac
        check "$fault: the gateway has noticed" within 10 metric_is config_last_reload_successful 0
        check "$fault: healthcheck succeeds" is_well "$name"
        check "$fault: docker's own check goes on succeeding" within 30 probed_well "$name" "$(last_probe "$name")"
        check "$fault: docker says healthy" healthy "$name"
        printf '%s\n' "$good" >"$file"
        check "$fault: mended" within 10 metric_is config_last_reload_successful 1
    done
    check "broken file: stops with exit code 0" stops_cleanly "$name"
}

# The same config path in each, the same user and one network: a broken file affects only its own container.
check_neighbours() {
    local one=$run-neighbour-1 other=$run-neighbour-2 gateway_of_one conf_of_one slow
    start_on_host "$one" --no-healthcheck
    gateway_of_one=$gateway conf_of_one=$conf
    check "neighbours: one is ready" within 10 curl -fsS "$admin/readyz"
    start_on_host "$other" --no-healthcheck
    check "neighbours: the other is ready" within 10 curl -fsS "$admin/readyz"
    mv "$conf_of_one/sluicegate.toml" "$scratch/good"
    echo '[' | tee "$conf_of_one/sluicegate.toml" >"$conf/sluicegate.toml"
    check "neighbours: one is well" is_well "$one"
    check "neighbours: the other is well" is_well "$other"
    gateway=$gateway_of_one slow_request 20 >"$scratch/slow" &
    slow=$!
    sleep 1
    docker kill --signal TERM "$one" >/dev/null
    check "neighbours: one drains and its check fails" within 4 is_unready "$one"
    check "neighbours: the other is still well" is_well "$other"
    wait "$slow" || true
    check "neighbours: one answered while it drained" equal "$(cat "$scratch/slow")" 200
    docker wait "$one" >/dev/null
    cp "$scratch/good" "$conf_of_one/sluicegate.toml"
    check "neighbours: one has ended and its check fails" exits_with 1 docker run --rm "${hardened[@]}" --network host \
        --volume "$conf_of_one:/etc/sluicegate:ro" "$image" healthcheck -c /etc/sluicegate/sluicegate.toml
    check "neighbours: the other is well yet" is_well "$other"
    check "neighbours: the other stops with exit code 0" stops_cleanly "$other"
}

# compose.yaml with the images that were made here, and on free ports. The official image of Redis serves other machines
# without being told to.
check_composed_services() {
    local ports redis=$REDIS_IMAGE codes file
    for file in conf/*/compose.yaml; do
        check "compose: $file is valid" env DOMAIN=localhost "${compose[@]}" -f "$file" config --quiet
    done
    read -r -a ports < <(free_ports)
    gateway=http://127.0.0.1:${ports[0]}
    admin=http://127.0.0.1:${ports[1]}
    sed -e "s|image: sluicegate$|image: $image|" -e "s|image: redis:.*|image: $redis|" \
        -e 's|"redis-server",|"redis-server", "--protected-mode", "no",|' \
        -e "s|\"8080:8080\"|\"127.0.0.1:${ports[0]}:8080\"|" -e "s|127.0.0.1:9900:9900|127.0.0.1:${ports[1]}:9900|" \
        compose.yaml >"$scratch/compose.yaml"
    compose+=(-f "$scratch/compose.yaml" --project-directory "$PWD" --project-name "$run")
    is_composed=yes
    check "compose: the services start, each after those it needs" "${compose[@]}" up --detach --no-build
    check "compose: gateway becomes healthy" within 30 healthy "$("${compose[@]}" ps --quiet gateway)"
    check "compose: the store responds" within 10 metric_is store_up 1
    codes=$(curl -s -o /dev/null -w '%{http_code}\n' "$gateway/[1-200]" | sort | uniq -c | xargs)
    check "compose: a burst gets 200s, then 429s ($codes)" matches "$codes" '^[0-9]+ 200 [0-9]+ 429$'
    check "compose: every key in redis expires" every_key_expires
    "${compose[@]}" stop redis >/dev/null 2>&1
    check "compose: responds without redis" within 10 curl -fsS -o /dev/null "$gateway/"
    check "compose: says that redis is down" within 10 metric_is store_up 0
    "${compose[@]}" start redis >/dev/null 2>&1
    check "compose: finds redis again" within 15 metric_is store_up 1
    check "compose: gateway stops with exit code 0" stops_cleanly "$("${compose[@]}" ps --quiet gateway)"
}

# ---- What the checks are made of

# start_on_host NAME OPTION...: a gateway with ports and a config directory of its own, as `gateway`, `admin` and `conf`.
start_on_host() {
    local name=$1 ports
    shift
    read -r -a ports < <(free_ports)
    gateway=http://127.0.0.1:${ports[0]}
    admin=http://127.0.0.1:${ports[1]}
    conf=$scratch/$name
    mkdir "$conf"
    chmod 755 "$scratch" "$conf"
    config 3 >"$conf/sluicegate.toml"
    docker run --detach --name "$name" "${hardened[@]}" "$@" --network host \
        --volume "$conf:/etc/sluicegate:ro" "$image" >/dev/null || true
}

is_well() { docker exec "$1" /usr/local/bin/sluicegate healthcheck -c /etc/sluicegate/sluicegate.toml; }

# The gateway still runs and reports that it drains; after its end it could not respond at all.
is_unready() {
    local said
    ! said=$(is_well "$1" 2>&1) && matches "$said" '^not ready: .*503'
}

# The last of the container's own health checks: when it began, how it ended.
last_probe() { docker inspect --format '{{range .State.Health.Log}}{{.Start.UnixNano}} {{.ExitCode}}{{"\n"}}{{end}}' "$1" | sed '/^$/d' | tail -1; }

# probed_well NAME PROBE: another has been made since that one, and with success.
probed_well() {
    local last
    last=$(last_probe "$1")
    matches "$last" ' 0$' && [ "$last" != "$2" ] || { echo "since $2: $last"; return 1; }
}

# within SECONDS COMMAND...: tries until it succeeds; the output of the last attempt is kept.
within() {
    local deadline=$((SECONDS + $1)) said=$scratch/attempt
    shift
    until "$@" >"$said" 2>&1; do
        [ "$SECONDS" -lt "$deadline" ] || { cat "$said"; return 1; }
        sleep 0.2
    done
    cat "$said"
}

equal() {
    [ "$1" = "$2" ] || { echo "got '$1', want '$2'"; return 1; }
}

less() {
    [ "$1" -lt "$2" ] || { echo "got $1, want less than $2"; return 1; }
}

matches() {
    [[ $1 =~ $2 ]] || { echo "'$1' does not match $2"; return 1; }
}

exits_with() {
    local want=$1 code=0
    shift
    "$@" || code=$?
    equal "exit code $code" "exit code $want"
}

healthy() {
    equal "$(docker inspect --format '{{.State.Status}} {{.State.Health.Status}}' "$1")" "running healthy" \
        || { docker logs --tail 3 "$1"; return 1; }
}

# With docker's own deadline of 10 s; a process that outlives it is killed and shows as 137.
stops_cleanly() {
    docker stop "$1"
    equal "exit code $(docker inspect --format '{{.State.ExitCode}}' "$1")" "exit code 0" \
        || { docker logs --tail 3 "$1"; return 1; }
}

unprivileged() {
    local status
    status=$(cat "/proc/$(docker inspect --format '{{.State.Pid}}' "$1")/status")
    matches "$status" $'Uid:\t65532\t65532\t65532\t65532' && matches "$status" $'CapPrm:\t0000000000000000' \
        && matches "$status" $'CapBnd:\t0000000000000000' && matches "$status" $'NoNewPrivs:\t1'
}

# A budget per client name that does not come back while the test runs: how many pass is exactly the burst.
config() {
    cat <<TOML
[server]
listen = ["${gateway#http://}"]

[admin]
listen = "${admin#http://}"

[[route]]
name = "all"
path = "/"
upstream = "echo:"
limits = ["per-client"]

[limit.per-client]
rate = "1/hour"
burst = $1
key = "header:x-client"
TOML
}

# admits N: of ten requests by a client never seen before, the first N get 200 and the rest 429.
admits() {
    local want='' codes i
    codes=$(curl -s -o /dev/null -w '%{http_code} ' -H "x-client: $RANDOM$RANDOM$RANDOM" "$gateway/[1-10]" || true)
    refused=$((refused + $(grep -o 429 <<<"$codes" | wc -l)))
    for i in {1..10}; do want+="$([ "$i" -le "$1" ] && echo 200 || echo 429) "; done
    equal "$codes" "$want"
}

refusal_says_when() {
    local response
    curl -s -o /dev/null -H "x-client: refused" "$gateway/[1-3]"
    response=$(curl -s -i -H "x-client: refused" "$gateway/")
    refused=$((refused + 1))
    matches "$response" '^HTTP/1.1 429 ' && matches "${response,,}" $'\nretry-after: [1-9][0-9]*\r'
}

# slow_request [PIECES]: ten times 1 kB with pauses, slow enough to be under way when TERM arrives, done well before the
# deadline.
slow_request() {
    for _ in $(seq "${1:-10}"); do head -c 1000 /dev/zero; sleep 0.3; done \
        | curl -s -o /dev/null -w '%{http_code}' -H "x-client: slow" -T - -X POST "$gateway/slow"
}

# metric_is NAME VALUE: the sum over all series of that family.
metric_is() { curl -fsS "$admin/metrics" | sum_of "$1" "$2"; }

sum_of() {
    local sum
    sum=$(awk -v name="sluicegate_$1" '{ split($1, part, "{") } part[1] == name { sum += $NF; seen = 1 }
        END { print seen ? sum : "nothing" }')
    equal "$1 $sum" "$1 $2"
}

reports_revision() {
    curl -fsS "$admin/metrics" | grep '^sluicegate_build_info{' | grep "revision=\"$revision\""
}

# Asked right after a burst, in one script call: a bucket's key lives only as long as the bucket takes to fill.
every_key_expires() {
    local count='local endless, keys = 0, redis.call("KEYS", "*")
        for _, key in ipairs(keys) do if redis.call("PTTL", key) < 0 then endless = endless + 1 end end
        return { #keys, endless }'
    curl -s -o /dev/null "$gateway/[1-30]"
    matches "keys, endless ones: $("${compose[@]}" exec -T redis redis-cli eval "$count" 0 | xargs)" ': [1-9][0-9]* 0$'
}

free_ports() {
    python3 -c 'import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(s.getsockname()[1] for s in sockets))'
}

has_image() { docker image inspect "$1" >/dev/null 2>&1; }

say() { echo "----  $*"; }

die() {
    echo "container test: $*" >&2
    exit 1
}

clean_up() {
    local containers
    [ -z "$is_composed" ] || "${compose[@]}" down --volumes --timeout 1 >/dev/null 2>&1 || true
    mapfile -t containers < <(docker ps --all --quiet --filter "label=run=$run" 2>/dev/null)
    [ ${#containers[@]} -eq 0 ] || docker rm --force --volumes "${containers[@]}" >/dev/null 2>&1 || true
    if [ -n "$daemon" ]; then
        kill "$daemon" 2>/dev/null || true
        wait "$daemon" || true
    else
        docker rmi "$image" >/dev/null 2>&1 || true
    fi
    # dockerd leaves a mount behind, and so does a debootstrap that is interrupted.
    awk -v under="$scratch/" 'index($5, under) == 1 { print $5 }' /proc/self/mountinfo | sort -r \
        | while read -r mount; do umount "$mount" || true; done
    rm -rf --one-file-system "$scratch"
}

main "$@"
