# The container image: Sluicegate, the shared libraries it needs, and nothing else (no shell, no package manager).
# Built by `docker build .`, compose.yaml and tests/container.sh, with BuildKit and with the builder before it, so nothing
# here is for one of them alone.

# Any Debian-like image with cargo, a C compiler, dpkg, CA certificates and time zones.
ARG BUILD_IMAGE=rust:1.95-bookworm

FROM ${BUILD_IMAGE} AS build
WORKDIR /build
ENV CARGO_INCREMENTAL=0
# The Cargo profile: `dist` is what releases have, and takes much longer; `dev` is to see whether the image works.
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
# With `dist`, profile-guided where the base has the tools (benches/pgo.sh names them), else plain.
RUN set -eu; \
    export SLUICEGATE_REVISION; \
    if [ "$PROFILE" = dist ]; then benches/pgo.sh --if-possible; \
    else cargo build --locked --profile "$PROFILE" --bin sluicegate; fi; \
    case $PROFILE in dev) built=target/debug ;; *) built=target/$PROFILE ;; esac; \
    if [ -x target/pgo/sluicegate ]; then built=target/pgo; fi; \
    mv "$built/sluicegate" /sluicegate

# The program with the names of its functions and without the lines, which are four fifths of it.
RUN strip --strip-debug /sluicegate && packaging/image-root.sh /sluicegate /image

FROM scratch
ARG SLUICEGATE_REVISION=unknown
LABEL org.opencontainers.image.title="Sluicegate" \
      org.opencontainers.image.description="A reverse proxy and rate limit service with exact limits" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0" \
      org.opencontainers.image.revision="${SLUICEGATE_REVISION}"
COPY --from=build /image/ /

# A number, so that an orchestrator can see that it is not root. Any other works as well: nothing is written.
USER 65532:65532
# 8443 is for HTTPS, and for HTTP/3 over UDP, if the config has them.
EXPOSE 8080 8443 8443/udp 9900
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s --retries=3 \
    CMD ["/usr/local/bin/sluicegate", "healthcheck", "-c", "/etc/sluicegate/sluicegate.toml"]

# TERM, which `docker stop` sends, drains.
ENTRYPOINT ["/usr/local/bin/sluicegate"]
CMD ["run", "-c", "/etc/sluicegate/sluicegate.toml"]
