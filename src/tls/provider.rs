//! The cryptography of all TLS connections of the gateway, from clients and to servers.

use std::sync::{Arc, LazyLock};

use rustls::crypto::{CryptoProvider, aws_lc_rs};

static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| Arc::new(aws_lc_rs::default_provider()));

/// Returns the cipher suites, key exchanges and signatures in use. The first key exchange is X25519MLKEM768, which a
/// quantum computer cannot break.
pub fn crypto_provider() -> Arc<CryptoProvider> {
    PROVIDER.clone()
}

#[cfg(test)]
mod tests {
    use rustls::NamedGroup;

    use super::*;

    #[test]
    fn the_post_quantum_key_exchange_comes_first() {
        let groups: Vec<NamedGroup> = crypto_provider().kx_groups.iter().map(|group| group.name()).collect();
        let expected = [NamedGroup::X25519MLKEM768, NamedGroup::X25519, NamedGroup::secp256r1, NamedGroup::secp384r1];
        assert_eq!(groups, expected);
    }
}
