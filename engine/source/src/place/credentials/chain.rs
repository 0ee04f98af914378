//! Where AWS's credentials come from: decided from what was asked for, the environment and the shared files. Nothing is
//! read or asked here.

use object_store::aws::AwsCredential;

use super::profiles::{Profiles, Section};
use crate::error::{Error, Result};
use crate::place::cloud_settings::is_on;

/// More roles than anyone assumes one after the other.
const ROLES_MAX: usize = 8;

/// Where credentials come from.
pub(crate) enum Plan {
    /// The store's own client finds them, in what it is given or in these settings of its own: keys, the token file of
    /// a web identity, a container's service, this machine's metadata.
    Client(Vec<(&'static str, String)>),
    /// Keys in a shared file.
    Keys(AwsCredential),
    /// A command that prints them.
    Process(String),
    /// A login of IAM Identity Center.
    Session(Session),
    /// A role, assumed with what comes from somewhere else.
    Role(Role, Box<Plan>),
    /// Nobody said: this machine's role, where it has one.
    Machine,
}

pub(crate) struct Session {
    /// What the cached token is filed under: the session's name, or the start URL.
    pub(super) cached_as: String,
    pub(super) region: String,
    pub(super) account: String,
    pub(super) role: String,
    /// For the remedy.
    pub(super) profile: String,
}

pub(crate) struct Role {
    pub(super) arn: String,
    pub(super) session_name: Option<String>,
    pub(super) external_id: Option<String>,
    pub(super) duration_s: Option<String>,
    pub(super) region: Option<String>,
}

/// What was asked for beside the shared files.
pub(crate) struct Asked<'a> {
    /// The store option `profile`.
    pub(crate) profile: Option<String>,
    /// A variable of the environment; empty ones are none.
    pub(crate) variable: &'a dyn Fn(&str) -> Option<String>,
    /// The settings of the store's client: the environment's that it knows, then the caller's.
    pub(crate) settings: &'a [(String, String)],
    /// How many of them are the environment's.
    pub(crate) of_environment: usize,
}

impl Asked<'_> {
    fn set(&self, among: &[(String, String)], names: &[&str]) -> bool {
        among.iter().any(|(key, value)| !value.is_empty() && names.contains(&key.trim_start_matches("aws_")))
    }

    /// Whether nothing is to be signed.
    fn unsigned(&self) -> bool {
        self.settings
            .iter()
            .rev()
            .find(|(key, _)| key.ends_with("skip_signature"))
            .is_some_and(|(_, value)| is_on(value))
    }

    /// The profile that was named, and whether code named it; `default` where nobody did.
    fn named(&self) -> Option<(String, bool)> {
        let variables = || ["AWS_PROFILE", "AWS_DEFAULT_PROFILE"].into_iter().find_map(|name| (self.variable)(name));
        self.profile.clone().map(|name| (name, true)).or_else(|| Some((variables()?, false)))
    }
}

/// What was decided: where credentials come from, and what else the profile says about the store.
pub(crate) struct Decision {
    pub(crate) plan: Plan,
    /// Settings of the client that nobody gave: region, endpoint.
    pub(crate) settings: Vec<(&'static str, String)>,
}

/// Decides in the order of AWS's own chain: what code says, keys of the environment, a web identity, the profile, a
/// container's service, this machine's metadata.
///
/// # Errors
/// `Settings` for a profile that was named and is not there, or says too little or what contradicts itself.
pub(crate) fn decide(asked: &Asked<'_>, files: &Profiles) -> Result<Decision> {
    let (environment, given) = asked.settings.split_at(asked.of_environment.min(asked.settings.len()));
    let named = asked.named();
    let name = named.as_ref().map_or("default", |(name, _)| name.as_str());
    let section = files.profiles.get(name);
    let keys = ["access_key_id", "secret_access_key"];
    let by_itself = asked.set(given, &keys) || asked.unsigned();
    if section.is_none() && named.is_some() && !by_itself {
        return Err(Error::settings(format!(
            "the profile {name:?} is in neither of AWS's files, ~/.aws/config and ~/.aws/credentials (or AWS_CONFIG_FILE and \
             AWS_SHARED_CREDENTIALS_FILE), whose profiles are: {}; correct AWS_PROFILE or the profile's name",
            files.names()
        )));
    }
    let settings = section.map(|section| said_of_the_store(section, files, asked)).transpose()?.unwrap_or_default();
    let by_code = named.as_ref().is_some_and(|(_, by_code)| *by_code);
    let plan = if by_itself
        || !by_code && asked.set(environment, &keys)
        || !by_code
            && asked.set(asked.settings, &["web_identity_token_file"])
            && asked.set(asked.settings, &["role_arn"])
    {
        Plan::Client(Vec::new())
    } else if let Some(plan) = of_profile(name, files, asked, &mut Vec::new())? {
        plan
    } else if asked.set(asked.settings, &["container_credentials_relative_uri", "container_credentials_full_uri"]) {
        Plan::Client(Vec::new())
    } else {
        Plan::Machine
    };
    Ok(Decision { plan, settings })
}

/// Region and endpoint that a profile sets.
fn said_of_the_store(section: &Section, files: &Profiles, asked: &Asked<'_>) -> Result<Vec<(&'static str, String)>> {
    let mut said = Vec::new();
    let region = section.get("region").filter(|value| !value.is_empty());
    if let Some(region) = region
        && !asked.set(asked.settings, &["region", "default_region"])
    {
        said.push(("region", a_region(region)?));
    }
    if let Some(endpoint) = endpoint_of("s3", section, files, asked)
        && !asked.set(asked.settings, &["endpoint_url", "endpoint", "endpoint_url_s3"])
    {
        said.push(("endpoint", endpoint));
    }
    Ok(said)
}

/// The endpoint of a service as a profile has it.
fn endpoint_of(service: &str, section: &Section, files: &Profiles, asked: &Asked<'_>) -> Option<String> {
    let ignored =
        (asked.variable)("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let services = section.get("services").and_then(|name| files.services.get(name));
    let own = services.and_then(|services| services.get(&format!("{service}.endpoint_url")));
    own.or_else(|| section.get("endpoint_url")).filter(|url| !ignored && !url.is_empty()).cloned()
}

fn of_profile(name: &str, files: &Profiles, asked: &Asked<'_>, above: &mut Vec<String>) -> Result<Option<Plan>> {
    let Some(section) = files.profiles.get(name) else { return Ok(None) };
    let profile = Profile { name, section };
    let region = profile.region()?;
    if let Some(arn) = profile.value("role_arn") {
        return profile.role(arn, region, files, asked, above).map(Some);
    }
    if profile.value("sso_session").is_some() || profile.value("sso_start_url").is_some() {
        return profile.session(files).map(Some);
    }
    if let Some(keys) = keys_of(name, section)? {
        return Ok(Some(keys));
    }
    Ok(profile.value("credential_process").map(Plan::Process))
}

/// A profile under its name.
struct Profile<'a> {
    name: &'a str,
    section: &'a Section,
}

impl Profile<'_> {
    fn value(&self, key: &str) -> Option<String> {
        self.section.get(key).filter(|value| !value.is_empty()).cloned()
    }

    fn wrong(&self, what: &str) -> Error {
        Error::settings(format!("AWS's profile {:?} {what}", self.name))
    }

    fn region(&self) -> Result<Option<String>> {
        self.value("region").map(|region| a_region(&region)).transpose()
    }

    /// The role that it takes on: with a token in a file, or by the credentials of another profile or of this machine.
    fn role(
        &self,
        arn: String,
        region: Option<String>,
        files: &Profiles,
        asked: &Asked<'_>,
        above: &mut Vec<String>,
    ) -> Result<Plan> {
        let session_name = self.value("role_session_name");
        if let Some(file) = self.value("web_identity_token_file") {
            let mut settings = vec![("web_identity_token_file", file), ("role_arn", arn)];
            settings.extend(session_name.map(|name| ("role_session_name", name)));
            settings.extend(region.map(|region| ("region", region)));
            return Ok(Plan::Client(settings));
        }
        if self.value("mfa_serial").is_some() {
            return Err(self.wrong(
                "wants a code of a device (mfa_serial), which nobody can enter here: take keys that have seen one (aws sts \
                 get-session-token), or a credential_process",
            ));
        }
        above.push(self.name.to_owned());
        let from = match (self.value("source_profile"), self.value("credential_source")) {
            (Some(source), None) if source == self.name => keys_of(self.name, self.section)?,
            (Some(source), None) if above.contains(&source) || above.len() > ROLES_MAX => {
                above.push(source);
                return Err(self.wrong(&format!("takes its credentials from itself: {}", above.join(" from "))));
            }
            (Some(source), None) => of_profile(&source, files, asked, above)?,
            (None, Some(source)) => Some(of_source(&source, asked).ok_or_else(|| {
                self.wrong(&format!(
                    "has credential_source = {source}, and there is nothing of the kind: it may be Environment (with keys \
                     there), Ec2InstanceMetadata or EcsContainer"
                ))
            })?),
            (Some(_), Some(_)) => {
                return Err(self.wrong("has both source_profile and credential_source: leave one out"));
            }
            (None, None) => {
                let words = "has a role_arn and nothing to assume it with: add source_profile or credential_source";
                return Err(self.wrong(words));
            }
        };
        let from = from.ok_or_else(|| {
            let source = self.value("source_profile").unwrap_or_default();
            self.wrong(&format!("takes its credentials from the profile {source:?}, which is not there or has none"))
        })?;
        let (external_id, duration_s) = (self.value("external_id"), self.value("duration_seconds"));
        Ok(Plan::Role(Role { arn, session_name, external_id, duration_s, region }, Box::new(from)))
    }

    /// The login by IAM Identity Center that it names.
    fn session(&self, files: &Profiles) -> Result<Plan> {
        let session = self.value("sso_session");
        let of_session = session.as_ref().map(|session| {
            files.sessions.get(session).ok_or_else(|| {
                self.wrong(&format!(
                    "names the sso_session {session:?}, which is not in AWS's config file: add [sso-session {session}]"
                ))
            })
        });
        let region = of_session.transpose()?.and_then(|session| session.get("sso_region")).cloned();
        let needed = |key: &str, value: Option<String>| {
            value.ok_or_else(|| {
                self.wrong(&format!("logs in by IAM Identity Center and has no {key}: run aws configure sso"))
            })
        };
        let own = |key: &str| needed(key, self.value(key));
        Ok(Plan::Session(Session {
            region: a_region(&needed("sso_region", region.or_else(|| self.value("sso_region")))?)?,
            cached_as: session.or_else(|| self.value("sso_start_url")).unwrap_or_default(),
            account: own("sso_account_id")?,
            role: own("sso_role_name")?,
            profile: self.name.to_owned(),
        }))
    }
}

/// The keys that a profile itself has.
fn keys_of(name: &str, section: &Section) -> Result<Option<Plan>> {
    let value = |key: &str| section.get(key).filter(|value| !value.is_empty()).cloned();
    let (key_id, secret_key) = match (value("aws_access_key_id"), value("aws_secret_access_key")) {
        (Some(id), Some(secret)) => (id, secret),
        (None, None) => return Ok(None),
        (id, _) => {
            let lacking = if id.is_some() { "aws_secret_access_key" } else { "aws_access_key_id" };
            return Err(Error::settings(format!("AWS's profile {name:?} has half of a key: {lacking} is missing")));
        }
    };
    let keys = AwsCredential { key_id, secret_key, token: value("aws_session_token") };
    sendable(&keys).map_err(|what| {
        Error::settings(format!(
            "AWS's profile {name:?} has a {what} with characters that no header takes: write it anew"
        ))
    })?;
    Ok(Some(Plan::Keys(keys)))
}

/// Whether keys can be sent: a header takes visible characters. If not, which of them cannot.
pub(crate) fn sendable(keys: &AwsCredential) -> std::result::Result<(), &'static str> {
    let visible = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
    if !visible(&keys.key_id) {
        return Err("key id");
    }
    if !visible(&keys.secret_key) {
        return Err("secret key");
    }
    if keys.token.as_deref().is_some_and(|token| !visible(token)) { Err("session token") } else { Ok(()) }
}

/// The `credential_source` of a role.
fn of_source(source: &str, asked: &Asked<'_>) -> Option<Plan> {
    let from = |names: &[(&'static str, &str)]| {
        let found: Vec<_> = names.iter().filter_map(|(key, name)| Some((*key, (asked.variable)(name)?))).collect();
        (!found.is_empty()).then_some(Plan::Client(found))
    };
    match source {
        "Environment" => from(&[
            ("access_key_id", "AWS_ACCESS_KEY_ID"),
            ("secret_access_key", "AWS_SECRET_ACCESS_KEY"),
            ("session_token", "AWS_SESSION_TOKEN"),
        ]),
        "EcsContainer" => from(&[
            ("container_credentials_relative_uri", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
            ("container_credentials_full_uri", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
            ("container_authorization_token_file", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
        ]),
        "Ec2InstanceMetadata" => Some(Plan::Client(Vec::new())),
        _ => None,
    }
}

/// A region becomes part of hosts' names and of headers.
fn a_region(text: &str) -> Result<String> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    if plain { Ok(text.to_owned()) } else { Err(Error::settings(format!("{text:?} is no region of AWS"))) }
}
