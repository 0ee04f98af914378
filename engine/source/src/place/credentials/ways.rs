//! How credentials are fetched that another service or a command lends.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsAuthorizer, AwsCredential};
use object_store::client::{HttpClient, HttpConnector, HttpRequest, HttpRequestBody};
use object_store::{ClientOptions, HeaderValue, RetryConfig};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use url::form_urlencoded::Serializer;

use super::answers::{self, Lent};
use super::chain::{Plan, Role, Session};
use super::process;
use crate::place::connector::Connector;
use crate::request::failure::{NoCredentials, Refused, cause};

/// The longest that a service may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Services and places that are asked.
pub(crate) struct Ways {
    /// Endpoints that the environment or the profile names.
    pub(super) sts: Option<String>,
    pub(super) sso: Option<String>,
    /// The store's region, for a role that has none.
    pub(super) region: Option<String>,
    pub(super) metadata_endpoint: Option<String>,
    /// The folder of cached logins.
    pub(super) logins: Option<PathBuf>,
    pub(super) process_limit: Duration,
}

impl Ways {
    /// Credentials of `plan` as they are now.
    pub(super) fn lent<'a>(&'a self, plan: &'a Plan) -> BoxFuture<'a, Result<Lent, NoCredentials>> {
        Box::pin(async move {
            match plan {
                Plan::Keys(keys) => Ok(Lent { keys: copied(keys), until: None }),
                Plan::Client(settings) => self.of_client(settings).await,
                Plan::Machine => self.of_client(&[]).await,
                Plan::Process(command) => self.of_process(command.clone()).await,
                Plan::Session(session) => self.of_session(session).await,
                Plan::Role(role, from) => self.of_role(role, &self.lent(from).await?.keys).await,
            }
        })
    }

    /// What the store's client finds by itself.
    async fn of_client(&self, settings: &[(&'static str, String)]) -> Result<Lent, NoCredentials> {
        let metadata = self.metadata_endpoint.iter().map(|url| ("metadata_endpoint", url.clone()));
        let sts = self.sts.iter().map(|url| ("endpoint_url_sts", url.clone()));
        let wrong = |e: object_store::Error| NoCredentials::lasting(format!("its settings make no sense ({e})"));
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name("none")
            .with_client_options(ClientOptions::new().with_timeout(ANSWER_WITHIN))
            .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
            .with_http_connector(Connector::default());
        for (key, value) in settings.iter().cloned().chain(metadata).chain(sts) {
            builder = builder.with_config(key.parse::<AmazonS3ConfigKey>().map_err(wrong)?, value);
        }
        let client = builder.build().map_err(wrong)?;
        let found = client.credentials().get_credential().await;
        let keys = found.map_err(|e| {
            NoCredentials::passing(format!("this machine's or its container's service gives none ({e})"))
        })?;
        // Its provider knows when they end, and does not tell: it is asked again before long.
        Ok(Lent { keys: copied(&keys), until: Some(DateTime::from(SystemTime::now() + Duration::from_secs(300))) })
    }

    async fn of_process(&self, command: String) -> Result<Lent, NoCredentials> {
        let limit = self.process_limit;
        let run = tokio::task::spawn_blocking(move || process::answer(&command, limit));
        let answer =
            run.await.map_err(|_| NoCredentials::lasting("the thread that runs credential_process was lost"))?;
        let answer = answer.map_err(|why| NoCredentials::lasting(format!("the profile's credential_process {why}")))?;
        answers::of_process(&answer).ok_or_else(|| {
            NoCredentials::lasting(
                "the profile's credential_process prints no credentials: a JSON object with Version 1, AccessKeyId and \
                 SecretAccessKey, and if they end SessionToken and Expiration, is what AWS asks for",
            )
        })
    }

    async fn of_role(&self, role: &Role, keys: &AwsCredential) -> Result<Lent, NoCredentials> {
        let region = role.region.as_deref().or(self.region.as_deref());
        let endpoint = self.sts.clone().unwrap_or_else(|| host("sts", region));
        let region = region.unwrap_or("us-east-1");
        let mut request = request(&endpoint, "STS", Some(form(role)))?;
        AwsAuthorizer::new(keys, "sts", region)
            .try_authorize(&mut request, None)
            .map_err(|_| NoCredentials::lasting("the request for the role could not be signed"))?;
        let what = format!("the role {} was not given by STS", role.arn);
        let answer =
            asked(&endpoint, request, &what, "check role_arn, the role's trust policy and external_id").await?;
        answers::of_role(&answer).ok_or_else(|| NoCredentials::passing(format!("{what}: its answer makes no sense")))
    }

    async fn of_session(&self, session: &Session) -> Result<Lent, NoCredentials> {
        let Session { profile, .. } = session;
        let again = format!("run: aws sso login --profile {profile}");
        let file =
            self.login_file(session).ok_or_else(|| NoCredentials::lasting("HOME is not set, where logins are kept"))?;
        let read = tokio::task::spawn_blocking(move || std::fs::read(file)).await;
        let Ok(Ok(read)) = read else {
            return Err(NoCredentials::lasting(format!("the profile {profile:?} is not logged in: {again}")));
        };
        let Some((token, until)) = answers::of_login(&read) else {
            return Err(NoCredentials::lasting(format!(
                "the login of the profile {profile:?} cannot be read: {again}"
            )));
        };
        if until <= DateTime::<Utc>::from(SystemTime::now()) {
            return Err(NoCredentials::lasting(format!(
                "the login of the profile {profile:?} ended at {until}: {again}"
            )));
        }
        let endpoint = self.sso.clone().unwrap_or_else(|| host("portal.sso", Some(&session.region)));
        let coded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let url = format!(
            "{}/federation/credentials?role_name={}&account_id={}",
            endpoint.trim_end_matches('/'),
            coded(&session.role),
            coded(&session.account)
        );
        let mut request = request(&url, "IAM Identity Center", None)?;
        let mut token = HeaderValue::try_from(token).map_err(|_| NoCredentials::lasting(again.clone()))?;
        token.set_sensitive(true);
        request.headers_mut().insert("x-amz-sso_bearer_token", token);
        let what = format!("IAM Identity Center gives the profile {profile:?} no credentials");
        let remedy = format!("{again}, or check sso_account_id and sso_role_name");
        let answer = asked(&endpoint, request, &what, &remedy).await?;
        answers::of_session(&answer).ok_or_else(|| NoCredentials::passing(format!("{what}: its answer makes no sense")))
    }

    /// Where `aws sso login` has put the token.
    fn login_file(&self, session: &Session) -> Option<PathBuf> {
        let name = digest(&SHA1_FOR_LEGACY_USE_ONLY, session.cached_as.as_bytes());
        let name: String = name.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        Some(self.logins.as_ref()?.join(format!("{name}.json")))
    }
}

pub(super) fn copied(keys: &AwsCredential) -> AwsCredential {
    let AwsCredential { key_id, secret_key, token } = keys;
    AwsCredential { key_id: key_id.clone(), secret_key: secret_key.clone(), token: token.clone() }
}

/// What is sent to STS.
fn form(role: &Role) -> String {
    let session = role.session_name.clone().unwrap_or_else(session_name);
    let mut form = Serializer::new(String::new());
    form.append_pair("Action", "AssumeRole").append_pair("Version", "2011-06-15");
    form.append_pair("RoleArn", &role.arn).append_pair("RoleSessionName", &session);
    for (name, value) in [("ExternalId", &role.external_id), ("DurationSeconds", &role.duration_s)] {
        if let Some(value) = value {
            form.append_pair(name, value);
        }
    }
    form.finish()
}

/// The usual endpoint of a service.
fn host(service: &str, region: Option<&str>) -> String {
    match region {
        Some(region) if region.starts_with("cn-") => format!("https://{service}.{region}.amazonaws.com.cn"),
        Some(region) => format!("https://{service}.{region}.amazonaws.com"),
        None => format!("https://{service}.amazonaws.com"),
    }
}

/// What AWS's logs call this session.
fn session_name() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    format!("lossfeed-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// A request, with a form if it has one.
fn request(url: &str, whose: &str, form: Option<String>) -> Result<HttpRequest, NoCredentials> {
    let wrong = || {
        NoCredentials::lasting(format!(
            "the endpoint of {whose} is no URL without user and password: check its AWS_ENDPOINT_URL"
        ))
    };
    let plain = |url: &url::Url| url.has_host() && url.username().is_empty() && url.password().is_none();
    let parsed = url::Url::parse(url).ok().filter(plain).ok_or_else(wrong)?;
    let mut request = HttpRequest::new(HttpRequestBody::empty());
    *request.uri_mut() = parsed.as_str().parse().map_err(|_| wrong())?;
    request.headers_mut().insert("accept", HeaderValue::from_static("*/*"));
    if let Some(form) = form {
        *request.method_mut() = "POST".parse().map_err(|_| wrong())?;
        let kind = "application/x-www-form-urlencoded; charset=utf-8";
        request.headers_mut().insert("content-type", HeaderValue::from_static(kind));
        *request.body_mut() = form.into_bytes().into();
    }
    Ok(request)
}

/// The body of the answer. `what` was not done if there is none, and `remedy` may help where it was refused.
async fn asked(endpoint: &str, request: HttpRequest, what: &str, remedy: &str) -> Result<Vec<u8>, NoCredentials> {
    let options =
        ClientOptions::new().with_allow_http(endpoint.trim_start().to_ascii_lowercase().starts_with("http://"));
    let client: HttpClient = Connector::default()
        .connect(&options.with_timeout(ANSWER_WITHIN))
        .map_err(|e| NoCredentials::lasting(format!("{what} ({e})")))?;
    let work = async {
        let answer = client.execute(request).await.map_err(|e| {
            let refused = cause::<Refused>(&e);
            match refused.filter(|refused| refused.status < 500 && refused.status != 429) {
                Some(refused) => NoCredentials::lasting(format!("{what} ({refused}): {remedy}")),
                None => NoCredentials::passing(format!("{what} ({e}), at {endpoint}")),
            }
        })?;
        let status = answer.status();
        let body = answer.into_body().bytes().await.map_err(|e| NoCredentials::passing(format!("{what} ({e})")))?;
        if !status.is_success() {
            let said = String::from_utf8_lossy(&body);
            return Err(NoCredentials::lasting(format!("{what} ({}: {said}): {remedy}", status.as_u16())));
        }
        if body.len() > ANSWER_BYTES_MAX {
            return Err(NoCredentials::passing(format!("{what}: an answer of {} bytes", body.len())));
        }
        Ok(body.to_vec())
    };
    let late = |_| NoCredentials::passing(format!("{what}: no answer within {ANSWER_WITHIN:?}, at {endpoint}"));
    tokio::time::timeout(ANSWER_WITHIN, work).await.map_err(late)?
}
