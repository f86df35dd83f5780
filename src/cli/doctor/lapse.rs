//! When a certificate lapses.

use std::time::Duration;

/// A certificate that lapses within so many days is due.
pub(super) const SOON: i64 = 21;

/// Whole days from `now`, counted from 1970, until the certificate with these bytes (DER) lapses; negative once it has.
///
/// # Errors
/// It is no certificate.
pub(super) fn days_left(certificate: &[u8], now: Duration) -> Result<i64, String> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).map_err(|error| error.to_string())?;
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    Ok((parsed.validity().not_after.timestamp() - now).div_euclid(24 * 60 * 60))
}
