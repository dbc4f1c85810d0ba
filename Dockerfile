# The container image: Sluicegate, the shared libraries it needs, and nothing else (no shell, no package manager).
# Built by `docker build .`, compose.yaml and tests/container.sh, with BuildKit and with the builder before it, so nothing
# here is for one of them alone.

# Any Debian-like image with cargo, a C compiler, dpkg, CA certificates and time zones.
ARG BUILD_IMAGE=rust:1.95-bookworm

FROM ${BUILD_IMAGE} AS build
WORKDIR /build
ENV CARGO_INCREMENTAL=0
# The Cargo profile: `dev` compiles in a third of the time, to see whether the image works.
ARG PROFILE=release

# Dependencies first: this layer lives until Cargo.toml or Cargo.lock changes. What Cargo compiles here is an empty
# library with the manifest's dependencies and profiles; sections such as [[bin]] and [[bench]] name files that are not
# here yet. The empty library goes again: the files copied below may be older than it.
COPY Cargo.toml Cargo.lock ./
RUN set -eu; \
    cp Cargo.toml whole.toml; \
    awk '/^\[/ { names_files = /^\[\[/ || /^\[lib\]/ } !names_files' whole.toml > Cargo.toml; \
    mkdir src; touch src/lib.rs; \
    cargo build --locked --profile "$PROFILE"; \
    cargo clean --package sluicegate --profile "$PROFILE"; \
    rm -r src; mv whole.toml Cargo.toml

COPY . .
ARG SLUICEGATE_REVISION=unknown
# Profile-guided where the base has the tools (benches/pgo.sh names them), else plain.
RUN set -eu; \
    export SLUICEGATE_REVISION; \
    if [ "$PROFILE" = release ]; then benches/pgo.sh --if-possible; \
    else cargo build --locked --profile "$PROFILE" --bin sluicegate; fi; \
    case $PROFILE in dev) built=target/debug ;; *) built=target/$PROFILE ;; esac; \
    if [ -x target/pgo/sluicegate ]; then built=target/pgo; fi; \
    mv "$built/sluicegate" /sluicegate

# The root of the final image: the program with the names of its functions and without the lines, which are four fifths
# of it. Its libraries are those the binary names, and the packages they come from are recorded where vulnerability
# scanners look in an image without a package database.
RUN set -eu; \
    root=/image; \
    mkdir -p "$root/usr/local/bin" "$root/usr/lib" "$root/usr/lib64" "$root/usr/share" \
        "$root/etc/ssl/certs" "$root/var/lib/dpkg/status.d"; \
    ln -s usr/lib "$root/lib"; ln -s usr/lib64 "$root/lib64"; \
    strip --strip-debug -o "$root/usr/local/bin/sluicegate" /sluicegate; \
    ldd /sluicegate | tr -s ' \t' '\n' | grep '^/' | sort -u > /tmp/libraries; \
    while read -r library; do install -D -m 0755 "$library" "$root$library"; done < /tmp/libraries; \
    cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"; \
    cp -r /usr/share/zoneinfo "$root/usr/share/"; \
    for package in base-files ca-certificates libc6 libgcc-s1 tzdata; do \
        dpkg --status "$package" > "$root/var/lib/dpkg/status.d/$package"; \
        install -D -m 0644 "/usr/share/doc/$package/copyright" "$root/usr/share/doc/$package/copyright"; \
    done; \
    install -D -m 0644 /etc/os-release "$root/etc/os-release"; \
    echo 'hosts: files dns' > "$root/etc/nsswitch.conf"; \
    echo 'nonroot:x:65532:65532:nonroot:/:/sbin/nologin' > "$root/etc/passwd"; \
    echo 'nonroot:x:65532:' > "$root/etc/group"; \
    install -D -m 0644 conf/container/sluicegate.toml "$root/etc/sluicegate/sluicegate.toml"

FROM scratch
ARG SLUICEGATE_REVISION=unknown
LABEL org.opencontainers.image.title="Sluicegate" \
      org.opencontainers.image.description="A reverse proxy and rate limit service with exact limits" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0" \
      org.opencontainers.image.revision="${SLUICEGATE_REVISION}"
COPY --from=build /image/ /

# A number, so that an orchestrator can see that it is not root. Any other works as well: nothing is written.
USER 65532:65532
EXPOSE 8080 9900
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s --retries=3 \
    CMD ["/usr/local/bin/sluicegate", "healthcheck", "-c", "/etc/sluicegate/sluicegate.toml"]

# TERM, which `docker stop` sends, drains.
ENTRYPOINT ["/usr/local/bin/sluicegate"]
CMD ["run", "-c", "/etc/sluicegate/sluicegate.toml"]
