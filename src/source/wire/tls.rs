//! TLS as libpq understands it: who the server must prove to be for each `sslmode`, and the
//! channel binding of SCRAM. Shared by the blocking connection and the asynchronous client.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{
    CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, InconsistentKeys, RootCertStore,
    SignatureScheme,
};
use x509_parser::prelude::{ASN1Time, FromDer, GeneralName, X509Certificate, X509Version};

use super::super::options::{ConnectOptions, TlsMode};
use crate::error::{Error, Kind, Result};

/// The client's side of TLS for these options. Reads the files each time, so that a renewed
/// certificate is picked up by the next connection.
///
/// # Errors
/// [`Kind::Config`]: a certificate or key file is missing, unreadable or readable by others.
pub(crate) fn client_config(o: &ConnectOptions) -> Result<Arc<ClientConfig>> {
    let provider = Arc::new(ring::default_provider());
    let trust = if o.tls >= TlsMode::VerifyCa { Trust::read(o)? } else { Trust::Anything };
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| Error::failed("TLS can't be set up").because(e))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(ServerCheck {
            provider: provider.clone(),
            trust,
        }));
    let mut config = match &o.tls_client {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let chain = certificates(cert)?;
            check_key_mode(key)?;
            let key = PrivateKeyDer::from_pem_file(key).map_err(|e| unreadable(key, e))?;
            let unusable = |e: rustls::Error| {
                Error::config(format!("the client certificate {} can't be used", cert.display()))
                    .because(e)
                    .next("check that sslcert and sslkey belong together")
            };
            let key = provider.key_provider.load_private_key(key).map_err(unusable)?;
            let certified = CertifiedKey::new(chain, key);
            // A certificate of version 1 can't be compared with its key; the server will tell.
            if let Err(e @ rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) =
                certified.keys_match()
            {
                return Err(unusable(e));
            }
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified)))
        }
    };
    if o.tls_direct {
        config.alpn_protocols = vec![b"postgresql".to_vec()];
    }
    Ok(Arc::new(config))
}

/// The name sent to and expected of the server.
pub(crate) fn server_name(o: &ConnectOptions, host: &str) -> Result<ServerName<'static>> {
    match ServerName::try_from(host.to_owned()) {
        Ok(name) => Ok(name),
        // A name no certificate can hold matters only where it is compared.
        Err(_) if o.tls < TlsMode::VerifyFull => {
            Ok(ServerName::from(std::net::Ipv4Addr::UNSPECIFIED).to_owned())
        }
        Err(e) => Err(Error::config(format!("{host:?} is no name a certificate can prove"))
            .because(e)
            .next("name the host as its certificate does")),
    }
}

/// The error for a handshake that failed.
pub(crate) fn handshake_error(error: std::io::Error) -> Error {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let next = match tls {
        Some(rustls::Error::InvalidCertificate(why)) => match why {
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "connect by a name the certificate holds, or lower sslmode to verify-ca"
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "renew the server's certificate, and check this machine's clock"
            }
            _ => "name the certificate authority of the server in sslrootcert (PGSSLROOTCERT)",
        },
        Some(rustls::Error::AlertReceived(_)) => {
            "see the server's log: it refused the handshake, perhaps the client certificate (sslcert, sslkey)"
        }
        Some(_) => "see the server's log; TLS 1.2 or 1.3 is needed",
        // A plain I/O error may pass.
        None => return super::error::broken("during the TLS handshake", error),
    };
    Error::new(Kind::Check, "the TLS handshake with the server failed").because(error).next(next)
}

#[derive(Debug)]
enum Trust {
    Anything,
    Roots {
        store: RootCertStore,
        /// The certificates of the root file themselves: a server may show one of them, as with
        /// a self-signed certificate that is its own root.
        pinned: Vec<CertificateDer<'static>>,
        check_name: bool,
    },
}

impl Trust {
    fn read(o: &ConnectOptions) -> Result<Trust> {
        let Some(path) = o.tls_root.as_deref() else {
            return Err(Error::config("no root certificate to verify the server by")
                .next("name one in sslrootcert, or set sslrootcert=system"));
        };
        let system = path == Path::new("system");
        let pinned = if system {
            rustls_native_certs::load_native_certs().certs
        } else {
            certificates(path)?
        };
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(pinned.iter().cloned());
        if system && store.is_empty() {
            return Err(Error::config("the operating system has no root certificates")
                .next("install them (ca-certificates), or name a file in sslrootcert"));
        }
        let pinned = if system { Vec::new() } else { pinned };
        Ok(Trust::Roots { store, pinned, check_name: o.tls == TlsMode::VerifyFull })
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let certs = CertificateDer::pem_file_iter(path)
        .and_then(|certs| certs.collect::<std::result::Result<Vec<_>, _>>())
        .map_err(|e| unreadable(path, e))?;
    if certs.is_empty() {
        return Err(Error::config(format!("{} holds no certificate", path.display()))
            .next("give a file in PEM form (-----BEGIN CERTIFICATE-----)"));
    }
    Ok(certs)
}

fn unreadable(path: &Path, e: rustls::pki_types::pem::Error) -> Error {
    Error::config(format!("{} can't be read as PEM", path.display()))
        .because(e)
        .next("check sslrootcert, sslcert and sslkey; a key must not have a passphrase")
}

/// As libpq: a key that others may read is refused; root's own may be readable by a group.
fn check_key_mode(key: &Path) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let Ok(meta) = std::fs::metadata(key) else { return Ok(()) };
    let allowed = if meta.uid() == 0 { 0o740 } else { 0o700 };
    if meta.mode() & 0o777 & !allowed != 0 {
        return Err(Error::config(format!(
            "the client key {} may be read by others",
            key.display()
        ))
        .next(format!("chmod 0600 {}", key.display())));
    }
    Ok(())
}

#[derive(Debug)]
struct ServerCheck {
    provider: Arc<CryptoProvider>,
    trust: Trust,
}

impl ServerCertVerifier for ServerCheck {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        let Trust::Roots { store, pinned, check_name } = &self.trust else {
            return Ok(ServerCertVerified::assertion());
        };
        let pinned = pinned.iter().any(|cert| cert == end_entity);
        if pinned {
            check_dates(end_entity, now)?;
            if !check_name || common_name_fits(end_entity, server_name) {
                return Ok(ServerCertVerified::assertion());
            }
        }
        let parsed = ParsedCertificate::try_from(end_entity)?;
        if !pinned {
            let algorithms = self.provider.signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(
                &parsed,
                store,
                intermediates,
                now,
                algorithms,
            )?;
        }
        if *check_name
            && let Err(error) = verify_server_name(&parsed, server_name)
            && !common_name_fits(end_entity, server_name)
        {
            return Err(error);
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        let result = verify_tls13_signature(message, cert, dss, algorithms);
        if result.is_ok() {
            return result;
        }
        // `openssl x509 -req` without extensions makes certificates of version 1, which webpki
        // does not read; the key in them proves the handshake all the same. Whether the
        // certificate is trusted was decided above.
        let Ok((_, old)) = X509Certificate::from_der(cert) else { return result };
        if old.version() == X509Version::V3 {
            return result;
        }
        let key = SubjectPublicKeyInfoDer::from(old.public_key().raw);
        verify_tls13_signature_with_raw_key(message, &key, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn check_dates(cert: &CertificateDer<'_>, now: UnixTime) -> std::result::Result<(), rustls::Error> {
    let bad = |why| rustls::Error::InvalidCertificate(why);
    let (_, cert) =
        X509Certificate::from_der(cert).map_err(|_| bad(CertificateError::BadEncoding))?;
    let now = i64::try_from(now.as_secs())
        .ok()
        .and_then(|secs| ASN1Time::from_timestamp(secs).ok())
        .ok_or(bad(CertificateError::Expired))?;
    if now < cert.validity().not_before {
        return Err(bad(CertificateError::NotValidYet));
    }
    if now > cert.validity().not_after {
        return Err(bad(CertificateError::Expired));
    }
    Ok(())
}

/// As libpq: the common name counts where the certificate has no alternative names.
fn common_name_fits(cert: &CertificateDer<'_>, name: &ServerName<'_>) -> bool {
    let Ok((_, cert)) = X509Certificate::from_der(cert) else { return false };
    let named = match cert.subject_alternative_name() {
        Ok(None) => false,
        Ok(Some(names)) => {
            let of_host = |n: &GeneralName<'_>| {
                matches!(n, GeneralName::DNSName(_) | GeneralName::IPAddress(_))
            };
            names.value.general_names.iter().any(of_host)
        }
        Err(_) => return false,
    };
    if named {
        return false;
    }
    let Some(common) = cert.subject().iter_common_name().next().and_then(|cn| cn.as_str().ok())
    else {
        return false;
    };
    let wanted = name.to_str().to_lowercase();
    let common = common.to_lowercase();
    match (common.strip_prefix("*."), name) {
        (Some(domain), ServerName::DnsName(_)) => {
            domain.contains('.') && wanted.split_once('.').is_some_and(|(_, rest)| rest == domain)
        }
        _ => common == wanted,
    }
}

/// The `tls-server-end-point` channel binding (RFC 5929) of a server's certificate: its hash, by
/// the hash function of its signature, SHA-256 in place of weaker ones. `None` where the
/// signature names no hash.
pub(crate) fn end_point(cert: &CertificateDer<'_>) -> Option<Vec<u8>> {
    use ::ring::digest::{SHA256, SHA384, SHA512, digest};
    let (_, parsed) = X509Certificate::from_der(cert).ok()?;
    let algorithm = &parsed.signature_algorithm;
    let by_hash = |oid: &str| match oid {
        // md5, sha1, sha256
        "1.2.840.113549.2.5" | "1.3.14.3.2.26" | "2.16.840.1.101.3.4.2.1" => Some(&SHA256),
        "2.16.840.1.101.3.4.2.2" => Some(&SHA384),
        "2.16.840.1.101.3.4.2.3" => Some(&SHA512),
        _ => None,
    };
    let hash = match algorithm.algorithm.to_id_string().as_str() {
        // RSA and ECDSA with md5, sha1 or sha256
        "1.2.840.113549.1.1.4"
        | "1.2.840.113549.1.1.5"
        | "1.2.840.113549.1.1.11"
        | "1.2.840.10045.4.1"
        | "1.2.840.10045.4.3.2" => &SHA256,
        "1.2.840.113549.1.1.12" | "1.2.840.10045.4.3.3" => &SHA384,
        "1.2.840.113549.1.1.13" | "1.2.840.10045.4.3.4" => &SHA512,
        // RSASSA-PSS names its hash in the parameters, SHA-1 by default.
        "1.2.840.113549.1.1.10" => {
            use x509_parser::signature_algorithm::RsaSsaPssParams;
            match algorithm.parameters.as_ref().and_then(|any| RsaSsaPssParams::try_from(any).ok())
            {
                Some(params) => by_hash(&params.hash_algorithm_oid().to_id_string())?,
                None => &SHA256,
            }
        }
        _ => return None,
    };
    Some(digest(hash, cert).as_ref().to_vec())
}
