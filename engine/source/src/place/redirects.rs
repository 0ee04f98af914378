//! The client beneath all stores, and the redirects that it is led along.
//!
//! reqwest's own way of following them tells the next server the whole address that led to it (`Referer`, with the
//! signature of a signed URL), and sends it every header that is not known for a secret (a session's token). So it
//! follows none, and another server is told what [`FOR_OTHERS`] allows.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::time::Duration;

use object_store::client::{HttpClient, HttpError, HttpErrorKind, HttpRequest, HttpResponse};
use object_store::{ClientConfigKey as Key, ClientOptions};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Client, NoProxy, Proxy, tls};
use url::Url;

/// Most redirects of one request; reqwest's own limit.
const REDIRECTS_MAX: usize = 10;
/// The headers of a request that a server gets which was not asked itself.
const FOR_OTHERS: [&str; 8] = [
    "accept",
    "content-type",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-unmodified-since",
    "range",
    "user-agent",
];

/// A client with the options of `options` that can be given by name, which follows no redirect.
///
/// # Errors
/// Options that make no client.
pub(super) fn client(options: &ClientOptions) -> object_store::Result<Client> {
    let said = |key: Key| options.get_config_value(&key).filter(|value| !value.is_empty());
    let is_on = |key: Key| said(key).is_some_and(|value| super::cloud_settings::is_on(&value));
    let failed = |e: reqwest::Error| generic(e);
    let mut builder = Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .user_agent(said(Key::UserAgent).unwrap_or_else(|| concat!("lossfeed/", env!("CARGO_PKG_VERSION")).to_owned()))
        .https_only(!is_on(Key::AllowHttp))
        .http2_keep_alive_while_idle(is_on(Key::Http2KeepAliveWhileIdle))
        .danger_accept_invalid_certs(is_on(Key::AllowInvalidCertificates))
        // What is compressed on the way has other lengths than are asked for.
        .no_gzip()
        .no_brotli()
        .no_zstd()
        .no_deflate();
    if let Some(proxy) = said(Key::ProxyUrl) {
        let certificate = said(Key::ProxyCaCertificate).map(|pem| tls::Certificate::from_pem(pem.as_bytes()));
        builder = builder.tls_certs_merge(certificate.transpose().map_err(failed)?);
        let excludes = said(Key::ProxyExcludes).and_then(|list| NoProxy::from_string(&list));
        builder = builder.proxy(Proxy::all(proxy).map_err(failed)?.no_proxy(excludes));
    }
    if is_on(Key::NoSystemCertificates) {
        builder = builder.tls_certs_only([]);
    }
    let time = |key: Key| said(key).map(|text| humantime::parse_duration(&text).map_err(generic)).transpose();
    let times: [(Key, fn(reqwest::ClientBuilder, Duration) -> reqwest::ClientBuilder); 6] = [
        (Key::Timeout, reqwest::ClientBuilder::timeout),
        (Key::ConnectTimeout, reqwest::ClientBuilder::connect_timeout),
        (Key::ReadTimeout, reqwest::ClientBuilder::read_timeout),
        (Key::PoolIdleTimeout, |builder, time| builder.pool_idle_timeout(time)),
        (Key::Http2KeepAliveInterval, |builder, time| builder.http2_keep_alive_interval(time)),
        (Key::Http2KeepAliveTimeout, reqwest::ClientBuilder::http2_keep_alive_timeout),
    ];
    for (key, with) in times {
        if let Some(time) = time(key)? {
            builder = with(builder, time);
        }
    }
    if let Some(most) = said(Key::PoolMaxIdlePerHost) {
        builder = builder.pool_max_idle_per_host(number(&most)?);
    }
    if let Some(bytes) = said(Key::Http2MaxFrameSize) {
        builder = builder.http2_max_frame_size(Some(number(&bytes)?));
    }
    if is_on(Key::Http1Only) {
        builder = builder.http1_only();
    }
    if is_on(Key::Http2Only) {
        builder = builder.http2_prior_knowledge();
    }
    if is_on(Key::RandomizeAddresses) {
        builder = builder.dns_resolver(std::sync::Arc::new(Shuffled));
    }
    builder.build().map_err(failed)
}

fn generic(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> object_store::Error {
    object_store::Error::Generic { store: "HTTP client", source: source.into() }
}

fn number<T: FromStr<Err = std::num::ParseIntError>>(text: &str) -> object_store::Result<T> {
    text.parse().map_err(generic)
}

/// Addresses of a name in an order of chance, so that connections spread over a store's servers.
struct Shuffled;

impl Resolve for Shuffled {
    fn resolve(&self, name: Name) -> Resolving {
        let found = tokio::task::spawn_blocking(move || -> Result<Addrs, Box<dyn std::error::Error + Send + Sync>> {
            let (chance, mut found) = (RandomState::new(), Vec::from_iter((name.as_str(), 0).to_socket_addrs()?));
            found.sort_by_cached_key(|address: &SocketAddr| chance.hash_one(address));
            Ok(Box::new(found.into_iter()) as Addrs)
        });
        Box::pin(async { found.await? })
    }
}

/// Sends a request, and follows where it is led.
pub(super) async fn send(client: &HttpClient, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
    let wrong = |why: String| HttpError::new(HttpErrorKind::Request, std::io::Error::other(why));
    for _ in 0..=REDIRECTS_MAX {
        let answer = client.execute(request.clone()).await?;
        let follows = match answer.status().as_u16() {
            307 | 308 => true,
            301..=303 => matches!(request.method().as_str(), "GET" | "HEAD"),
            _ => false,
        };
        let location = answer.headers().get("location").and_then(|location| location.to_str().ok());
        let Some(location) = location.filter(|_| follows) else { return Ok(answer) };
        let unread = |_| wrong("it is redirected to what is no address".to_owned());
        let from = Url::parse(&request.uri().to_string()).map_err(unread)?;
        let mut next = from.join(location).map_err(unread)?;
        if next.origin() != from.origin() {
            let kept = |name: &&str| FOR_OTHERS.contains(name);
            let all = std::mem::take(request.headers_mut());
            for (name, value) in all.iter().filter(|(name, _)| kept(&name.as_str())) {
                request.headers_mut().append(name.clone(), value.clone());
            }
        }
        next.set_fragment(None);
        *request.uri_mut() =
            next.as_str().parse().map_err(|_| wrong("it is redirected to what is no address".to_owned()))?;
    }
    Err(wrong(format!("it is redirected more than {REDIRECTS_MAX} times")))
}
