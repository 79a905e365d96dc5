//! A handshake by itself, to learn why a connection failed.
//!
//! With TLS 1.3 a server looks at our certificate after the handshake has ended for us, and what it objects to comes
//! instead of the first answer. The gRPC library reports no more than "transport error" then.

use super::{Material, explain};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// What a client of HTTP/2 says first: the preface, and that it has no settings of its own.
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// What TLS objects to at `https://host:port`; `None` when it does not. Whoever asks sets a limit.
pub async fn diagnose(address: &str, material: &Material) -> Option<String> {
    let error = greet(address, material).await.err()?;
    explain(&error)
}

async fn greet(address: &str, material: &Material) -> io::Result<()> {
    let authority = address.strip_prefix("https://").unwrap_or(address);
    let (host, port) = authority.rsplit_once(':').unwrap_or((authority, "443"));
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let port = port.parse().map_err(io::Error::other)?;
    let socket = TcpStream::connect((host, port)).await?;
    let mut config = ClientConfig::clone(&material.config);
    config.alpn_protocols = vec![b"h2".to_vec()];
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, socket).await?;
    stream.write_all(HELLO).await?;
    stream.flush().await?;
    stream.read_u8().await?;
    Ok(())
}
