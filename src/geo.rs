//! Countries of addresses, from a database in the format of MaxMind (`[geo]` of the config).

use std::fmt;
use std::net::IpAddr;

use maxminddb::{MaxMindDbError, PathElement, Reader};

/// The codes of ISO 3166-1.
const COUNTRY_CODES: &str = "AD AE AF AG AI AL AM AO AQ AR AS AT AU AW AX AZ BA BB BD BE BF BG BH BI BJ BL BM BN BO BQ BR BS BT BV BW BY \
     BZ CA CC CD CF CG CH CI CK CL CM CN CO CR CU CV CW CX CY CZ DE DJ DK DM DO DZ EC EE EG EH ER ES ET FI FJ FK \
     FM FO FR GA GB GD GE GF GG GH GI GL GM GN GP GQ GR GS GT GU GW GY HK HM HN HR HT HU ID IE IL IM IN IO IQ IR \
     IS IT JE JM JO JP KE KG KH KI KM KN KP KR KW KY KZ LA LB LC LI LK LR LS LT LU LV LY MA MC MD ME MF MG MH MK \
     ML MM MN MO MP MQ MR MS MT MU MV MW MX MY MZ NA NC NE NF NG NI NL NO NP NR NU NZ OM PA PE PF PG PH PK PL PM \
     PN PR PS PT PW PY QA RE RO RS RU RW SA SB SC SD SE SG SH SI SJ SK SL SM SN SO SR SS ST SV SX SY SZ TC TD TF \
     TG TH TJ TK TL TM TN TO TR TT TV TW TZ UA UG UM US UY UZ VA VC VE VG VI VN VU WF WS YE YT ZA ZM ZW";

/// The country of an address that the database does not list, such as a private one.
const UNKNOWN_COUNTRY: &str = "XX";

/// The fields in which databases have the code of a country: first the field of MaxMind and DB-IP, then the two forms
/// of IPinfo.
const CODE_PATHS: [&[PathElement<'static>]; 3] = [
    &[PathElement::Key("country"), PathElement::Key("iso_code")],
    &[PathElement::Key("country_code")],
    &[PathElement::Key("country")],
];

/// A database that finds the countries of addresses.
pub struct GeoDatabase {
    reader: Reader<Vec<u8>>,
}

impl GeoDatabase {
    /// Reads a database, and checks all of it.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<GeoDatabase, MaxMindDbError> {
        let reader = Reader::from_source(bytes)?;
        reader.verify()?;
        Ok(GeoDatabase { reader })
    }

    /// Returns whether the database lists countries at all, judged by its first records.
    pub fn has_countries(&self) -> bool {
        let Ok(networks) = self.reader.networks(Default::default()) else { return false };
        networks.take(1000).flatten().any(|record| CODE_PATHS.iter().any(|path| is_code(record.decode_path(path))))
    }

    /// Returns the code of the country of an address, two upper-case letters (ISO 3166-1), or [`UNKNOWN_COUNTRY`].
    pub fn find_country(&self, ip: IpAddr) -> &str {
        let Ok(record) = self.reader.lookup(ip.to_canonical()) else { return UNKNOWN_COUNTRY };
        let mut codes = CODE_PATHS.iter().filter_map(|path| record.decode_path::<&str>(path).ok()?);
        codes.find(|code| is_country_code(code)).unwrap_or(UNKNOWN_COUNTRY)
    }

    /// Returns what the file calls itself, like `GeoLite2-Country`.
    pub fn database_type(&self) -> &str {
        &self.reader.metadata().database_type
    }
}

fn is_code(value: Result<Option<&str>, MaxMindDbError>) -> bool {
    value.ok().flatten().is_some_and(is_country_code)
}

/// Returns whether the code is one of ISO 3166-1, or one that the standard leaves to its users: databases write `XK` for
/// Kosovo, and the gateway [`UNKNOWN_COUNTRY`].
pub fn is_known_country(code: &str) -> bool {
    is_country_code(code)
        && (COUNTRY_CODES.split(' ').any(|known| known == code)
            || matches!(code.as_bytes(), b"AA" | b"ZZ" | [b'Q', b'M'..=b'Z'] | [b'X', _]))
}

/// Returns whether the text has the form of a code: two upper-case letters.
fn is_country_code(text: &str) -> bool {
    text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_uppercase())
}

impl fmt::Debug for GeoDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GeoDatabase").field(&self.database_type()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &[u8] = include_bytes!("../conf/countries.mmdb");

    #[test]
    fn countries_in_every_form_of_database() {
        let database = GeoDatabase::from_bytes(EXAMPLE.to_vec()).unwrap();
        assert!(database.has_countries());
        for (ip, country) in [
            ("192.0.2.1", "DE"),
            ("::ffff:192.0.2.1", "DE"),
            // The forms of IPinfo.
            ("192.0.2.200", "AT"),
            ("198.51.100.200", "CH"),
            ("2001:db8::1", "JP"),
            // A code in lower case, and a record without a country.
            ("203.0.113.130", "XX"),
            ("203.0.113.200", "XX"),
            ("10.0.0.1", "XX"),
            ("fe80::1", "XX"),
        ] {
            assert_eq!(database.find_country(ip.parse().unwrap()), country, "{ip}");
        }
    }

    #[test]
    fn codes_of_countries_are_known() {
        for (code, is_known) in [
            ("DE", true),
            ("GB", true),
            ("UK", false),
            ("EU", false),
            ("XX", true),
            ("XK", true),
            ("QZ", true),
            ("de", false),
        ] {
            assert_eq!(is_known_country(code), is_known, "{code}");
        }
    }

    /// Each file that lacks its end, or has a byte changed, is refused or still finds something: nothing panics.
    #[test]
    fn damaged_databases() {
        for end in 0..EXAMPLE.len() {
            assert!(GeoDatabase::from_bytes(EXAMPLE[..end].to_vec()).is_err(), "the first {end} bytes");
        }
        for at in 0..EXAMPLE.len() {
            let mut bytes = EXAMPLE.to_vec();
            bytes[at] ^= 0xff;
            if let Ok(database) = GeoDatabase::from_bytes(bytes) {
                let country = database.find_country(IpAddr::from([192, 0, 2, 1]));
                assert!(is_country_code(country), "byte {at}: {country}");
            }
        }
    }
}
