#!/usr/bin/env bash
# cargo-deny: licences, duplicate and banned crates and sources always; advisories where their
# database can be had.
set -euo pipefail

if ! cargo deny --version >/dev/null 2>&1; then
    echo "cargo-deny is missing: cargo install --locked cargo-deny" >&2
    echo "supply chain NOT checked" >&2
    exit 0
fi
cargo deny --log-level error check bans licenses sources
if [ -d "${CARGO_HOME:-$HOME/.cargo}/advisory-db" ] || [ -d "${CARGO_HOME:-$HOME/.cargo}/advisory-dbs" ]; then
    cargo deny --log-level error check advisories
else
    echo "advisories not checked: no advisory database on this machine (cargo deny fetch)"
fi
