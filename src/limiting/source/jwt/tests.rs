use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use serde_json::json;

use crate::limiting::source::jwt::*;

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
    TokenVerifier::new(http::header::AUTHORIZATION, DecodingKey::from_secret(SECRET), SECRET, algorithms, &[], &[])
}

fn ask(jwt: &TokenVerifier, field: &str) -> Option<TokenClaims> {
    let mut headers = HeaderMap::new();
    headers.insert(jwt.header.clone(), field.parse().unwrap());
    jwt.verify_request(&headers, now())
}

fn sub(jwt: &TokenVerifier, token: &str) -> Option<String> {
    ask(jwt, &format!("Bearer {token}"))?.get("sub", Repeated::Refuse).unwrap().map(str::to_owned)
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
    let key = DecodingKey::from_ec_der(&public);
    let es = TokenVerifier::new(http::header::AUTHORIZATION, key, &public, &[Algorithm::ES256], &[], &[]);
    let good = token("ES256", &claims, |message| pair.sign(&random, message).unwrap().as_ref().to_vec());
    assert_eq!(sub(&es, &good).as_deref(), Some("anna"));
    assert_eq!(sub(&es, &good[..good.len() - 4]), None);
    assert_eq!(sub(&es, &token("HS256", &claims, hs(hmac::HMAC_SHA256, &public))), None);

    let document = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
    let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap();
    let public = pair.public_key().as_ref().to_vec();
    let key = DecodingKey::from_ed_der(&public);
    let ed = TokenVerifier::new(http::header::AUTHORIZATION, key, &public, &[Algorithm::EdDSA], &[], &[]);
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
    let key = DecodingKey::from_secret(SECRET);
    let strict = TokenVerifier::new(http::header::AUTHORIZATION, key, SECRET, &[Algorithm::HS256], &issuer, &audience);
    for (extra, valid) in [
        (json!({ "iss": "us", "aud": "shop" }), true),
        (json!({ "iss": "us", "aud": ["x", "api"] }), true),
        (json!({ "iss": "us" }), false),
        (json!({ "aud": "shop" }), false),
        (json!({ "iss": "them", "aud": "shop" }), false),
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
        assert_eq!(tokens.get("sub", Repeated::First), Ok(first), "{lines:?}");
        assert_eq!(tokens.get("sub", Repeated::Last), Ok(last), "{lines:?}");
    }
}

#[test]
fn claims_are_texts_integers_and_flags() {
    let jwt = jwt(&[Algorithm::HS256]);
    let claims = json!({ "sub": 7, "vip": true, "plan": "free", "half": 0.5, "list": [1], "nil": null });
    let claims = ask(&jwt, &hs256(&claims)).unwrap();
    let get = |name| claims.get(name, Repeated::Refuse).unwrap();
    assert_eq!((get("sub"), get("vip"), get("plan")), (Some("7"), Some("true"), Some("free")));
    assert_eq!((get("half"), get("list"), get("nil"), get("none")), (None, None, None, None));
}

#[test]
fn the_token_cache_is_bounded_and_keeps_used_tokens() {
    let mut cache = TokenCache::default();
    let id = |n: usize| {
        let mut id = [0; 32];
        id[..8].copy_from_slice(&n.to_le_bytes());
        id
    };
    for n in 0..10 * GENERATION_MAX {
        cache.put(id(n + 1), Arc::default());
        assert!(n == 0 || cache.get(&id(1)).is_some(), "{n}");
        assert!(cache.young.len() + cache.old.len() <= 2 * GENERATION_MAX);
    }
    assert!(cache.get(&id(2)).is_none());
}
