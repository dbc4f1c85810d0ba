use std::borrow::Cow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair,
    RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RSA_PSS_SHA256, RSA_PSS_SHA384, RSA_PSS_SHA512, RsaEncoding,
};
use serde_json::json;

use crate::limiting::source::jwt::jwk::VerificationKey;
use crate::limiting::source::jwt::token_cache::GENERATION_MAX;
use crate::limiting::source::jwt::*;

/// The algorithms that are accepted by default.
const ALL: &[Algorithm] = &[
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];
const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn now() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap()
}

/// Encodes in URL-safe base64 without padding.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for i in 0..=chunk.len() {
            text.push(char::from(LETTERS[(bits >> (18 - 6 * i)) as usize & 63]));
        }
    }
    text
}

fn token(alg: &str, claims: &Value, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
    headed(&json!({ "typ": "JWT", "alg": alg }), claims, sign)
}

fn headed(head: &Value, claims: &Value, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
    let head = base64(head.to_string().as_bytes());
    let message = format!("{head}.{}", base64(claims.to_string().as_bytes()));
    format!("{message}.{}", base64(&sign(message.as_bytes())))
}

fn hs(algorithm: hmac::Algorithm, secret: &[u8]) -> impl Fn(&[u8]) -> Vec<u8> {
    let key = hmac::Key::new(algorithm, secret);
    move |message| hmac::sign(&key, message).as_ref().to_vec()
}

fn hs256(claims: &Value) -> String {
    token("HS256", claims, hs(hmac::HMAC_SHA256, SECRET))
}

fn jwt(algorithms: &[Algorithm]) -> TokenVerifier {
    verifier(VerificationKey::from_secret(SECRET, algorithms), algorithms)
}

fn verifier(key: VerificationKey, algorithms: &[Algorithm]) -> TokenVerifier {
    let keys = KeySource::Fixed(Arc::new(KeySet::of(key)));
    TokenVerifier::new(http::header::AUTHORIZATION, keys, algorithms, &[], &[])
}

/// A verifier with a set of these keys, for all algorithms.
fn with_set(keys: &[Value], accepted: &[Algorithm]) -> Result<TokenVerifier, String> {
    let keys = KeySet::from_jwks(json!({ "keys": keys }).to_string().as_bytes(), accepted)?;
    Ok(TokenVerifier::new(http::header::AUTHORIZATION, KeySource::Fixed(Arc::new(keys)), accepted, &[], &[]))
}

fn ask(jwt: &TokenVerifier, field: &str) -> Option<TokenClaims> {
    let mut headers = HeaderMap::new();
    headers.insert(jwt.header.clone(), field.parse().unwrap());
    jwt.verify_request(&headers, now())
}

fn sub(jwt: &TokenVerifier, token: &str) -> Option<String> {
    ask(jwt, &format!("Bearer {token}"))?.get("sub", Repeated::Refuse).unwrap().map(Cow::into_owned)
}

#[test]
fn every_mac_is_checked_and_only_those_allowed() {
    let claims = json!({ "sub": "anna", "exp": now() + 100 });
    for (alg, algorithm, mac) in [
        ("HS256", Algorithm::HS256, hmac::HMAC_SHA256),
        ("HS384", Algorithm::HS384, hmac::HMAC_SHA384),
        ("HS512", Algorithm::HS512, hmac::HMAC_SHA512),
    ] {
        let good = token(alg, &claims, hs(mac, SECRET));
        assert_eq!(sub(&jwt(&[algorithm]), &good).as_deref(), Some("anna"), "{alg}");
        assert_eq!(sub(&jwt(&[algorithm]), &token(alg, &claims, hs(mac, b"another"))), None);
        let other = if alg == "HS512" { Algorithm::HS256 } else { Algorithm::HS512 };
        assert_eq!(sub(&jwt(&[other]), &good), None, "{alg} is not on the list");
    }
}

#[test]
fn curves_are_checked_and_a_public_key_is_no_secret() {
    let random = SystemRandom::new();
    let claims = json!({ "sub": "anna" });
    let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref()).unwrap();
    let public = pair.public_key().as_ref().to_vec();
    let jwk = json!({ "kty": "EC", "crv": "P-256", "x": base64(&public[1..33]), "y": base64(&public[33..]) });
    let es = with_set(&[jwk], ALL).unwrap();
    let good = token("ES256", &claims, |message| pair.sign(&random, message).unwrap().as_ref().to_vec());
    assert_eq!(sub(&es, &good).as_deref(), Some("anna"));
    assert_eq!(sub(&es, &good[..good.len() - 4]), None);
    assert_eq!(sub(&es, &token("HS256", &claims, hs(hmac::HMAC_SHA256, &public))), None);

    let document = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
    let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap();
    let public = pair.public_key().as_ref().to_vec();
    let jwk = json!({ "kty": "OKP", "crv": "Ed25519", "x": base64(&public) });
    let ed = with_set(&[jwk], ALL).unwrap();
    let good = token("EdDSA", &claims, |message| pair.sign(message).as_ref().to_vec());
    assert_eq!(sub(&ed, &good).as_deref(), Some("anna"));
    assert_eq!(sub(&ed, &token("EdDSA", &json!({ "sub": "eve" }), |_| vec![0; 64])), None);
}

#[test]
fn a_token_without_signature_is_none() {
    let claims = json!({ "sub": "anna" });
    for alg in ["none", "None", "NONE", ""] {
        assert_eq!(sub(&jwt(&[Algorithm::HS256]), &token(alg, &claims, |_| Vec::new())), None, "{alg}");
    }
    for text in ["", ".", "..", "a.b.c", "Bearer", "Bearer ", "Bearer a", "é"] {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", http::HeaderValue::from_bytes(text.as_bytes()).unwrap());
        assert!(jwt(&[Algorithm::HS256]).verify_request(&headers, now()).is_none(), "{text}");
    }
}

#[test]
fn an_extension_that_must_be_known_is_not() {
    let sign = hs(hmac::HMAC_SHA256, SECRET);
    let head = |crit: Value| json!({ "alg": "HS256", "crit": crit, "x": 1 });
    let claims = json!({ "sub": "anna", "exp": now() + 100 });
    assert_eq!(
        sub(&jwt(&[Algorithm::HS256]), &headed(&json!({ "alg": "HS256", "x": 1 }), &claims, &sign)).as_deref(),
        Some("anna")
    );
    assert_eq!(sub(&jwt(&[Algorithm::HS256]), &headed(&head(json!(["x"])), &claims, &sign)), None);
}

#[test]
fn times_issuer_and_audience_are_checked() {
    let plain = jwt(&[Algorithm::HS256]);
    let with = |extra: Value| {
        let mut claims = json!({ "sub": "anna" });
        claims.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        hs256(&claims)
    };
    for (extra, valid) in [
        (json!({}), true),
        (json!({ "exp": now() + 5 }), true),
        (json!({ "exp": now() - 120 }), false),
        (json!({ "exp": "soon" }), false),
        (json!({ "nbf": now() - 5 }), true),
        (json!({ "nbf": now() + 120 }), false),
        (json!({ "aud": "shop", "iss": "us" }), true),
    ] {
        assert_eq!(sub(&plain, &with(extra.clone())).is_some(), valid, "{extra}");
    }
    let (issuer, audience) = (vec!["us".to_owned()], vec!["shop".to_owned(), "api".to_owned()]);
    let algorithms = &[Algorithm::HS256];
    let keys = KeySource::Fixed(Arc::new(KeySet::of(VerificationKey::from_secret(SECRET, algorithms))));
    let strict = TokenVerifier::new(http::header::AUTHORIZATION, keys, algorithms, &issuer, &audience);
    for (extra, valid) in [
        (json!({ "iss": "us", "aud": "shop" }), true),
        (json!({ "iss": "us", "aud": ["x", "api"] }), true),
        (json!({ "iss": "us" }), false),
        (json!({ "aud": "shop" }), false),
        (json!({ "iss": "them", "aud": "shop" }), false),
        (json!({ "iss": ["us"], "aud": "shop" }), false),
        (json!({ "iss": ["us", "them"], "aud": "shop" }), false),
        (json!({ "iss": "us", "aud": "blog" }), false),
    ] {
        assert_eq!(sub(&strict, &with(extra.clone())).is_some(), valid, "{extra}");
    }
}

#[test]
fn a_remembered_token_ends_at_its_time() {
    let jwt = jwt(&[Algorithm::HS256]);
    let start = now();
    let token = hs256(&json!({ "sub": "anna", "exp": start + 100 }));
    let mut headers = HeaderMap::new();
    headers.insert("authorization", format!("bearer {token}").parse().unwrap());
    assert!(jwt.verify_request(&headers, start).is_some());
    assert_eq!(jwt.lock().young.len(), 1);
    assert!(jwt.verify_request(&headers, start + 160).is_some());
    assert!(jwt.verify_request(&headers, start + 170).is_none());
}

/// Servers differ in which token they use, so several tokens are ambiguous.
#[test]
fn of_two_tokens_the_limit_says_which_counts() {
    const X_TOKEN: HeaderName = HeaderName::from_static("x-token");
    let jwt = TokenVerifier { header: X_TOKEN, ..jwt(&[Algorithm::HS256]) };
    let (anna, bert) = (hs256(&json!({ "sub": "anna" })), hs256(&json!({ "sub": "bert" })));
    for (lines, first, last) in [
        ([("x-token", anna.as_str()), ("x-token", &bert)], Some("anna"), Some("bert")),
        ([("x-token", "Basic eA=="), ("x-token", &bert)], None, Some("bert")),
        ([("x-token", &anna), ("x-token", "junk")], Some("anna"), None),
        ([("x-token", &anna), ("x_token", &bert)], Some("anna"), Some("anna")),
        ([("x.token", &anna), ("x_token", &bert)], None, None),
    ] {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(name, value.parse().unwrap());
        }
        let tokens = jwt.verify_request(&headers, now()).unwrap();
        assert_eq!(tokens.get("sub", Repeated::Refuse), Err(Ambiguous), "{lines:?}");
        assert_eq!(tokens.get("sub", Repeated::First), Ok(first.map(Cow::from)), "{lines:?}");
        assert_eq!(tokens.get("sub", Repeated::Last), Ok(last.map(Cow::from)), "{lines:?}");
    }
}

/// Whoever holds the token has its budget, in each spelling that some server accepts. A login has one spelling.
#[test]
fn a_token_has_the_same_claims_in_every_spelling() {
    let jwt = jwt(&[Algorithm::HS256]);
    let token = hs256(&json!({ "sub": "anna" }));
    for field in ["Bearer\t@", "Bearer  @", "Bearer @=", "Bearer @==", "@", "JWT @", "Any\t@"] {
        let claims = ask(&jwt, &field.replace('@', &token)).unwrap();
        assert_eq!(claims.get("sub", Repeated::Refuse), Ok(Some("anna".into())), "{field}");
    }
    for field in ["Bearer @ x", "Bearer \"@\"", "Bearer @,x", "Bearer @;x", "Any @ x"] {
        let claims = ask(&jwt, &field.replace('@', &token)).unwrap();
        for repeated in [Repeated::Refuse, Repeated::First, Repeated::Last] {
            assert_eq!(claims.get("sub", repeated), Err(Ambiguous), "{field} {repeated:?}");
        }
        assert!(claims.into_only().is_none(), "{field}");
    }
    let found = |field: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(&jwt.header, field.replace('@', &token).parse().unwrap());
        jwt.find_verified(&headers, now())
    };
    for field in ["Bearer @", "bearer  @", "@"] {
        assert!(matches!(found(field), PresentedToken::Verified(_)), "{field}");
    }
    for field in ["Bearer\t@", "Bearer @=", "\"@\""] {
        assert!(matches!(found(field), PresentedToken::Invalid), "{field}");
    }
    assert!(matches!(found("JWT @"), PresentedToken::Missing));
}

#[test]
fn claims_are_texts_integers_flags_and_arrays_of_them() {
    let jwt = jwt(&[Algorithm::HS256]);
    let claims = json!({ "sub": 7, "vip": true, "plan": "free", "half": 0.5, "nil": null, "a/b": "x",
        "realm": { "roles": ["admin", 7, {}, "user"], "none": [] }, "https://x.test/r": ["y"] });
    let claims = ask(&jwt, &hs256(&claims)).unwrap();
    for (name, refuse, first, last, list) in [
        ("sub", Ok(Some("7")), Some("7"), Some("7"), vec!["7"]),
        ("vip", Ok(Some("true")), Some("true"), Some("true"), vec!["true"]),
        ("/plan", Ok(Some("free")), Some("free"), Some("free"), vec!["free"]),
        ("/a~1b", Ok(Some("x")), Some("x"), Some("x"), vec!["x"]),
        ("half", Ok(None), None, None, vec![]),
        ("nil", Ok(None), None, None, vec![]),
        ("none", Ok(None), None, None, vec![]),
        ("realm", Ok(None), None, None, vec![]),
        ("/realm/roles", Err(Ambiguous), Some("admin"), Some("user"), vec!["admin", "7", "user"]),
        ("/realm/roles/0", Ok(Some("admin")), Some("admin"), Some("admin"), vec!["admin"]),
        ("/realm/roles/2", Ok(None), None, None, vec![]),
        ("/realm/roles/9", Ok(None), None, None, vec![]),
        ("/realm/none", Ok(None), None, None, vec![]),
        ("https://x.test/r", Err(Ambiguous), Some("y"), Some("y"), vec!["y"]),
    ] {
        let of = |repeated| claims.get(name, repeated);
        assert_eq!(of(Repeated::Refuse), refuse.map(|found| found.map(Cow::from)), "{name}");
        assert_eq!(of(Repeated::First), Ok(first.map(Cow::from)), "{name}");
        assert_eq!(of(Repeated::Last), Ok(last.map(Cow::from)), "{name}");
        assert_eq!(claims.list(name, Repeated::Refuse).unwrap(), list, "{name}");
    }
}

/// A key pair of RSA with this many bits.
fn rsa(size: rsa::KeySize) -> (rsa::KeyPair, Value) {
    let pair = rsa::KeyPair::generate(size).unwrap();
    let (n, e) = (pair.public_key().modulus(), pair.public_key().exponent());
    let jwk = json!({ "kty": "RSA", "n": base64(n.big_endian_without_leading_zero()),
        "e": base64(e.big_endian_without_leading_zero()) });
    (pair, jwk)
}

fn with(jwk: &Value, more: Value) -> Value {
    let mut jwk = jwk.clone();
    jwk.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    jwk
}

/// What a key may verify is bound to the key: no token can choose another algorithm for it.
#[test]
fn every_algorithm_verifies_with_its_own_keys_only() {
    let random = SystemRandom::new();
    let claims = json!({ "sub": "anna" });
    let (pair, rsa_jwk) = rsa(rsa::KeySize::Rsa2048);
    let rsa_signer = |encoding: &'static dyn RsaEncoding| {
        let (pair, random) = (&pair, &random);
        move |message: &[u8]| {
            let mut signature = vec![0; pair.public_modulus_len()];
            pair.sign(encoding, random, message, &mut signature).unwrap();
            signature
        }
    };
    let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P384_SHA384_FIXED_SIGNING, &random).unwrap();
    let p384 = EcdsaKeyPair::from_pkcs8(&ECDSA_P384_SHA384_FIXED_SIGNING, document.as_ref()).unwrap();
    let public = p384.public_key().as_ref().to_vec();
    let p384_jwk = json!({ "kty": "EC", "crv": "P-384", "x": base64(&public[1..49]), "y": base64(&public[49..]) });
    let tokens = [
        ("RS256", token("RS256", &claims, rsa_signer(&RSA_PKCS1_SHA256))),
        ("RS384", token("RS384", &claims, rsa_signer(&RSA_PKCS1_SHA384))),
        ("RS512", token("RS512", &claims, rsa_signer(&RSA_PKCS1_SHA512))),
        ("PS256", token("PS256", &claims, rsa_signer(&RSA_PSS_SHA256))),
        ("PS384", token("PS384", &claims, rsa_signer(&RSA_PSS_SHA384))),
        ("PS512", token("PS512", &claims, rsa_signer(&RSA_PSS_SHA512))),
        ("ES384", token("ES384", &claims, |message| p384.sign(&random, message).unwrap().as_ref().to_vec())),
    ];
    let both = with_set(&[rsa_jwk.clone(), p384_jwk], ALL).unwrap();
    for (alg, token) in &tokens {
        assert_eq!(sub(&both, token).as_deref(), Some("anna"), "{alg}");
        // `alg` of the key binds it to one of the algorithms of its type.
        let bound = with_set(&[with(&rsa_jwk, json!({ "alg": "PS256" }))], ALL).unwrap();
        assert_eq!(sub(&bound, token).is_some(), *alg == "PS256", "{alg}");
        // The algorithms of the config bind all keys.
        let accepted = with_set(std::slice::from_ref(&rsa_jwk), &[Algorithm::RS512]).unwrap();
        assert_eq!(sub(&accepted, token).is_some(), *alg == "RS512", "{alg}");
    }
    // A public key as the secret of a MAC, in each form in which somebody may have it.
    let modulus = rsa_jwk["n"].as_str().unwrap();
    for secret in [modulus.as_bytes(), rsa_jwk.to_string().as_bytes(), pair.public_key().as_ref()] {
        let forged = token("HS256", &claims, hs(hmac::HMAC_SHA256, secret));
        let all: Vec<Algorithm> = [&[Algorithm::HS256], ALL].concat();
        assert_eq!(sub(&with_set(std::slice::from_ref(&rsa_jwk), &all).unwrap(), &forged), None);
    }
}

#[test]
fn keys_that_may_not_verify_are_skipped_with_the_reason() {
    let (_, rsa_jwk) = rsa(rsa::KeySize::Rsa2048);
    let n = |bytes: usize| base64(&vec![0xff; bytes]);
    let oct = json!({ "kty": "oct", "k": base64(SECRET) });
    let all: Vec<Algorithm> = [&[Algorithm::HS256], ALL].concat();
    for (jwk, accepted, reason) in [
        (with(&rsa_jwk, json!({ "use": "enc" })), ALL, "its `use` is not `sig`"),
        (with(&rsa_jwk, json!({ "key_ops": ["sign"] })), ALL, "its `key_ops` lack `verify`"),
        (with(&rsa_jwk, json!({ "alg": "RSA-OAEP" })), ALL, "the algorithm \"RSA-OAEP\" is not among the accepted"),
        (with(&rsa_jwk, json!({ "alg": "HS256" })), &all, "the algorithm \"HS256\" is not among the accepted"),
        (with(&rsa_jwk, json!({ "alg": "none" })), ALL, "the algorithm \"none\" is not among the accepted"),
        (with(&rsa_jwk, json!({ "d": "AQAB" })), ALL, "it is a private key"),
        (with(&rsa_jwk, json!({ "n": n(128) })), ALL, "the RSA key has 1024 bits"),
        (with(&rsa_jwk, json!({ "n": n(2048) })), ALL, "the RSA key has 16384 bits"),
        (with(&rsa_jwk, json!({ "e": base64(&[1]) })), ALL, "not a valid RSA key"),
        (with(&rsa_jwk, json!({ "e": base64(&[4]) })), ALL, "not a valid RSA key"),
        (with(&rsa_jwk, json!({ "n": "!" })), ALL, "its `n` is missing or not base64url"),
        (with(&rsa_jwk, json!({ "kid": 7 })), ALL, "invalid type"),
        (json!({ "kty": "EC", "crv": "P-256", "x": n(32), "y": n(32) }), ALL, "not a valid public key"),
        (json!({ "kty": "EC", "crv": "P-256", "x": n(31), "y": n(32) }), ALL, "do not have 32 bytes"),
        (json!({ "kty": "EC", "crv": "P-521", "x": n(66), "y": n(66) }), ALL, "the curve \"P-521\" are not supported"),
        (json!({ "kty": "OKP", "crv": "Ed448", "x": n(57) }), ALL, "the curve \"Ed448\" are not supported"),
        (json!({ "kty": "OKP", "crv": "Ed25519", "x": n(31) }), ALL, "not a valid public key"),
        (oct.clone(), ALL, "\"oct\" is not among the accepted"),
        (json!({ "kty": "oct", "k": n(31) }), &all, "the secret is too short"),
        (json!({ "kty": "AKP", "pub": "AQAB" }), ALL, "keys of type \"AKP\" are not supported"),
        (json!("text"), ALL, "invalid type"),
    ] {
        let fault = with_set(std::slice::from_ref(&jwk), accepted).map(|_| ()).unwrap_err();
        assert!(fault.contains(reason), "{jwk}: {fault}");
        // Beside a good key, it is only left out.
        let both = KeySet::from_jwks(json!({ "keys": [jwk, rsa_jwk] }).to_string().as_bytes(), accepted).unwrap();
        assert!(both.len() == 1 && both.skipped[0].contains(reason), "{:?}", both.skipped);
    }
    assert!(with_set(&[oct], &all).is_ok(), "secrets were asked for");
    assert!(with_set(&vec![rsa_jwk.clone(); 1000], ALL).is_ok());
    let many = KeySet::from_jwks(json!({ "keys": vec![rsa_jwk; 1000] }).to_string().as_bytes(), ALL).unwrap();
    assert!(many.len() == 100 && many.skipped.len() <= 6, "{:?}", many.skipped);
    assert_eq!(many.skipped.last().unwrap(), "and 895 more");
    for text in ["", "{}", "[]", "{\"keys\":[]}", "{\"keys\":{}}", "<html>"] {
        assert!(KeySet::from_jwks(text.as_bytes(), ALL).is_err(), "{text}");
    }
}

#[test]
fn the_key_is_found_by_its_id() {
    let jwk = |kid: Option<&str>, secret: u8| {
        let jwk = json!({ "kty": "oct", "k": base64(&[secret; 32]) });
        kid.map_or_else(|| jwk.clone(), |kid| with(&jwk, json!({ "kid": kid })))
    };
    let set = with_set(&[jwk(Some("a"), 1), jwk(Some("b"), 2), jwk(None, 3)], &[Algorithm::HS256]).unwrap();
    for (kid, secret, is_valid) in [
        (Some("a"), 1, true),
        (Some("a"), 2, false),
        (Some("b"), 2, true),
        (Some("c"), 1, false),
        // One of the two does not say which it is.
        (Some("c"), 3, true),
        (None, 1, true),
        (None, 2, true),
        (None, 4, false),
    ] {
        let head = match kid {
            Some(kid) => json!({ "alg": "HS256", "kid": kid }),
            None => json!({ "alg": "HS256" }),
        };
        let token = headed(&head, &json!({ "sub": "anna" }), hs(hmac::HMAC_SHA256, &[secret; 32]));
        assert_eq!(sub(&set, &token).is_some(), is_valid, "{kid:?} {secret}");
    }
}

/// The issuer withdraws a key if it is in wrong hands. Tokens that it has signed must not live on in the cache.
#[test]
fn a_token_of_a_withdrawn_key_is_not_remembered() {
    let settings = remote_keys::RemoteKeySettings {
        name: "jwt".to_owned(),
        location: remote_keys::IssuerLocation::Issuer("https://id.test".to_owned()),
        ca: None,
        algorithms: vec![Algorithm::HS256],
        max_stale: Duration::from_secs(3600),
    };
    let keys = Arc::new(RemoteKeys::new(settings));
    let source = KeySource::Remote(keys.clone());
    let jwt = TokenVerifier::new(http::header::AUTHORIZATION, source, &[Algorithm::HS256], &[], &[]);
    let publish = |secret: &[u8]| {
        let set = json!({ "keys": [{ "kty": "oct", "k": base64(secret) }] }).to_string();
        let set = KeySet::from_jwks(set.as_bytes(), &[Algorithm::HS256]);
        keys.end_refresh(set, Duration::from_secs(60), (Instant::now(), now()));
    };
    let token = hs256(&json!({ "sub": "anna" }));
    assert!(sub(&jwt, &token).is_none() && !jwt.has_keys(now()), "there are no keys yet");
    publish(SECRET);
    assert_eq!([sub(&jwt, &token), sub(&jwt, &token)], [const { Some(()) }; 2].map(|_| Some("anna".to_owned())));
    publish(SECRET);
    assert_eq!(jwt.lock().young.len(), 1, "the same keys");
    publish(&[7; 32]);
    assert_eq!(sub(&jwt, &token), None);
}

#[test]
fn the_token_cache_is_bounded_and_keeps_used_tokens() {
    const KEYS: [u8; 32] = [1; 32];
    let mut cache = TokenCache::default();
    let id = |n: usize| {
        let mut id = [0; 32];
        id[..8].copy_from_slice(&n.to_le_bytes());
        id
    };
    for n in 0..10 * GENERATION_MAX {
        cache.put(&KEYS, id(n + 1), Arc::default());
        assert!(n == 0 || cache.get(&KEYS, &id(1)).is_some(), "{n}");
        assert!(cache.young.len() + cache.old.len() <= 2 * GENERATION_MAX);
    }
    assert!(cache.get(&KEYS, &id(2)).is_none());
}
