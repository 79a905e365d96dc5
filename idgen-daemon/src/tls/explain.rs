//! What a failed handshake means, for people.

use idgen_core::clock::UnixMs;
use idgen_core::utc::Utc;
use rustls::{AlertDescription, CertificateError};
use std::error::Error;
use std::io;

/// Says what TLS objects to, when that is among the causes of `error`, and what can be done.
pub fn explain(error: &(dyn Error + 'static)) -> Option<String> {
    let Some(cause) = cause(error) else {
        return is_cut_handshake(error).then(|| {
            "the server hung up within the TLS handshake (hint: make sure that this is its TLS port; nothing is ever \
             sent in plain text instead)"
                .to_owned()
        });
    };
    let text = match cause {
        rustls::Error::InvalidCertificate(why) => of_certificate(why),
        rustls::Error::AlertReceived(alert) => of_alert(*alert),
        rustls::Error::InvalidMessage(_) => {
            "the server does not speak TLS at this port (hint: nothing is ever sent in plain text instead; switch TLS \
             on in the server, or name its TLS port)"
                .to_owned()
        }
        other => format!("TLS: {other}"),
    };
    Some(text)
}

/// The error of TLS among an error and its causes. An `io::Error` keeps what it was made of apart from its source.
fn cause<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<rustls::Error>() {
            return Some(found);
        }
        let inner: Option<&'e (dyn Error + 'static)> = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref)
            .map(|inner| inner as _);
        next = inner.or_else(|| error.source());
    }
    None
}

/// A server without TLS takes the handshake for noise and hangs up; there is no error of TLS then.
fn is_cut_handshake(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let io = error.downcast_ref::<io::Error>();
        if io.is_some_and(|io| {
            io.kind() == io::ErrorKind::UnexpectedEof && io.to_string().contains("handshake")
        }) {
            return true;
        }
        next = error.source();
    }
    false
}

fn of_certificate(why: &CertificateError) -> String {
    match why {
        CertificateError::UnknownIssuer => {
            "the server's certificate was not issued by an authority in the configured \
             CA file (hint: put the authority that issued it there; for a time both the old and the new one)"
                .to_owned()
        }
        CertificateError::ExpiredContext { not_after, .. } => format!(
            "the server's certificate expired on {} (hint: renew it on the server; idgend notices by itself)",
            date(not_after.as_secs())
        ),
        CertificateError::NotValidYetContext { not_before, .. } => format!(
            "the server's certificate is valid from {} on (hint: compare the clocks of both hosts)",
            date(not_before.as_secs())
        ),
        CertificateError::NotValidForNameContext { expected, presented } => format!(
            "the server's certificate is not for {} but for {} (hint: connect by a name in the certificate)",
            expected.to_str(),
            presented.join(", ")
        ),
        other => format!("the server's certificate is not accepted: {other}"),
    }
}

/// Alerts come from the server, which has looked at our certificate.
fn of_alert(alert: AlertDescription) -> String {
    let why = match alert {
        AlertDescription::CertificateRequired => "it asks for a client certificate, and none is configured",
        AlertDescription::CertificateExpired => "our certificate has expired",
        AlertDescription::UnknownCA => "it does not know the authority that issued our certificate",
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateUnknown
        | AlertDescription::AccessDenied => {
            "it does not accept our certificate, or asks for one that is missing"
        }
        _ => return format!("the server ended the handshake with the alert {alert:?}"),
    };
    format!(
        "the server refuses the connection: {why} (alert {alert:?}; hint: look at the configured client certificate and \
         its key, and at the authorities that the server trusts for clients)"
    )
}

/// In RFC 3339.
pub(super) fn date(unix_s: u64) -> String {
    Utc(UnixMs(unix_s.saturating_mul(1_000))).to_string()
}
