//! A bucket of S3, or of a service that speaks as it does.
//!
//! One `PutObject` from memory for each object: atomic, no parts that are left behind. We send a SHA-256 of our own, and no
//! checksum that the SDK would append (other services refuse its trailers). Errors are told apart by their code, not by their
//! status: a 400 may be a timeout. An answer 412 to a conditional create may mean our own earlier try; that is found out by
//! whoever asked.

use super::{Keep, Meta, ObjectError, ObjectErrorKind, Objects, Result};
use crate::config::S3Config;
use crate::error::with_causes;
use aws_config::BehaviorVersion;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    Region, RequestChecksumCalculation, ResponseChecksumValidation, StalledStreamProtectionConfig,
};
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::operation::put_object::builders::PutObjectFluentBuilder;
use aws_sdk_s3::primitives::{ByteStream, DateTime};
use aws_sdk_s3::types::{LifecycleRule, ObjectLockMode, ServerSideEncryption};
use aws_sdk_s3::{Client, config};
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use bytes::Bytes;
use sha2::{Digest, Sha256};
use std::error::Error as StdError;
use std::time::{Duration, SystemTime};

/// Of all tries of a request, and of one. A body of 64 MiB takes 10 s at 50 Mbit/s.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(60);
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(20);
/// What all names of the archive begin with, behind the prefix that is configured.
const ARCHIVE: &str = "audit/v1/";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const ATTEMPTS: u32 = 5;

/// See the module.
#[derive(Clone)]
pub struct S3 {
    client: Client,
    config: S3Config,
}

/// What the bucket says of itself, for `idgenctl doctor`. `None`: it does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketFacts {
    /// Its key of KMS, or its kind of encryption.
    pub encryption: Option<String>,
    /// Rules that would delete objects of the archive, by the prefix of what they are for.
    pub expiring: Vec<String>,
    /// Is there one that removes parts of uploads that were broken off?
    pub aborts_uploads: Option<bool>,
    /// Uploads in parts that were begun and not ended.
    pub open_uploads: Option<usize>,
    /// Can objects be locked?
    pub object_lock: Option<bool>,
}

impl S3 {
    /// Reads credentials from where the AWS tools look for them; connects with the first request.
    pub async fn open(config: &S3Config) -> Self {
        let http = aws_smithy_http_client::Builder::new()
            .tls_provider(Provider::Rustls(CryptoMode::Ring))
            .build_https();
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .operation_timeout(OPERATION_TIMEOUT)
            .operation_attempt_timeout(ATTEMPT_TIMEOUT)
            .build();
        let mut loader = aws_config::defaults(BehaviorVersion::latest())
            .http_client(http)
            .retry_config(RetryConfig::standard().with_max_attempts(ATTEMPTS))
            .timeout_config(timeouts)
            // It takes a slow line for a dead one; the timeouts above do not.
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled());
        if let Some(region) = &config.region {
            loader = loader.region(Region::new(region.clone()));
        }
        let shared = loader.load().await;
        let mut builder = config::Builder::from(&shared)
            .force_path_style(config.force_path_style)
            .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
            .response_checksum_validation(ResponseChecksumValidation::WhenRequired);
        if let Some(endpoint) = &config.endpoint {
            builder = builder.endpoint_url(endpoint);
        }
        if shared.region().is_none() {
            builder = builder.region(Region::new("us-east-1"));
        }
        Self {
            client: Client::from_conf(builder.build()),
            config: config.clone(),
        }
    }

    fn full(&self, key: &str) -> String {
        if self.config.prefix.is_empty() {
            key.to_owned()
        } else {
            format!("{}/{key}", self.config.prefix)
        }
    }

    fn putting(&self, key: &str, body: &Bytes) -> PutObjectFluentBuilder {
        let request = self
            .client
            .put_object()
            .bucket(&self.config.bucket)
            .key(self.full(key))
            .checksum_sha256(base64(&Sha256::digest(body)))
            .body(ByteStream::from(body.clone()));
        match &self.config.kms_key_id {
            Some(id) => request
                .server_side_encryption(ServerSideEncryption::AwsKms)
                .ssekms_key_id(id)
                .bucket_key_enabled(true),
            None => request,
        }
    }

    /// What the bucket says of itself. A request that is refused leaves its fact out.
    ///
    /// # Errors
    /// The bucket is not there, or not to be reached.
    pub async fn facts(&self) -> Result<BucketFacts> {
        let bucket = &self.config.bucket;
        let there = self.client.head_bucket().bucket(bucket).send().await;
        there.map_err(|error| {
            let error = failed(bucket, &error);
            match error.kind {
                ObjectErrorKind::Missing => {
                    ObjectError::new(ObjectErrorKind::NoPlace, format!("there is no bucket {bucket}"))
                }
                _ => error,
            }
        })?;
        let mut facts = BucketFacts::default();
        if let Ok(answer) = self.client.get_bucket_encryption().bucket(bucket).send().await {
            let rules = answer
                .server_side_encryption_configuration()
                .map(|all| all.rules());
            let by_default = rules
                .and_then(|rules| rules.first())
                .and_then(|rule| rule.apply_server_side_encryption_by_default());
            facts.encryption = by_default.map(|default| {
                let kind = default.sse_algorithm().as_str().to_owned();
                default.kms_master_key_id().map_or(kind, str::to_owned)
            });
        }
        match self
            .client
            .get_bucket_lifecycle_configuration()
            .bucket(bucket)
            .send()
            .await
        {
            Ok(answer) => {
                let rules = answer.rules();
                let on = || rules.iter().filter(|rule| rule.status().as_str() == "Enabled");
                facts.aborts_uploads =
                    Some(on().any(|rule| rule.abort_incomplete_multipart_upload().is_some()));
                facts.expiring = on()
                    .filter(|rule| rule.expiration().is_some())
                    .filter(|rule| is_over(prefix_of(rule), &self.full(ARCHIVE)))
                    .map(|rule| rule.id().unwrap_or("without a name").to_owned())
                    .collect();
            }
            Err(error) if code(&error) == Some("NoSuchLifecycleConfiguration") => {
                facts.aborts_uploads = Some(false)
            }
            Err(_) => {}
        }
        let uploads = self
            .client
            .list_multipart_uploads()
            .bucket(bucket)
            .prefix(&self.config.prefix);
        facts.open_uploads = uploads.send().await.ok().map(|answer| answer.uploads().len());
        facts.object_lock = match self
            .client
            .get_object_lock_configuration()
            .bucket(bucket)
            .send()
            .await
        {
            Ok(answer) => Some(answer.object_lock_configuration().is_some()),
            Err(error) if code(&error) == Some("ObjectLockConfigurationNotFoundError") => Some(false),
            Err(_) => None,
        };
        Ok(facts)
    }
}

impl Objects for S3 {
    async fn put_if_absent(&self, key: &str, body: &Bytes, keep: Keep) -> Result<()> {
        let mut request = self.putting(key, body).if_none_match("*");
        if let Some(until) = keep.locked_until {
            request = request
                .object_lock_mode(ObjectLockMode::Governance)
                .object_lock_retain_until_date(DateTime::from(until));
        }
        request
            .send()
            .await
            .map(drop)
            .map_err(|error| failed(key, &error))
    }

    async fn put(&self, key: &str, body: &Bytes) -> Result<()> {
        let done = self.putting(key, body).send().await;
        done.map(drop).map_err(|error| failed(key, &error))
    }

    async fn get(&self, key: &str) -> Result<Bytes> {
        let request = self
            .client
            .get_object()
            .bucket(&self.config.bucket)
            .key(self.full(key));
        let answer = request.send().await.map_err(|error| failed(key, &error))?;
        let body = answer.body.collect().await;
        body.map(|body| body.into_bytes())
            .map_err(|error| ObjectError::new(ObjectErrorKind::Lost, format!("{key}: {error}")))
    }

    async fn head(&self, key: &str) -> Result<Option<Meta>> {
        let request = self
            .client
            .head_object()
            .bucket(&self.config.bucket)
            .key(self.full(key));
        match request.send().await {
            Ok(answer) => Ok(Some(Meta {
                key: key.to_owned(),
                bytes: answer
                    .content_length()
                    .and_then(|n| u64::try_from(n).ok())
                    .unwrap_or(0),
                modified: answer
                    .last_modified()
                    .and_then(|at| SystemTime::try_from(*at).ok()),
            })),
            Err(error) => {
                let error = failed(key, &error);
                match error.kind {
                    ObjectErrorKind::Missing => Ok(None),
                    _ => Err(error),
                }
            }
        }
    }

    async fn list(&self, prefix: &str, after: Option<&str>) -> Result<Vec<Meta>> {
        let mut request = self
            .client
            .list_objects_v2()
            .bucket(&self.config.bucket)
            .prefix(self.full(prefix));
        if let Some(after) = after {
            request = request.start_after(self.full(after));
        }
        let answer = request.send().await.map_err(|error| failed(prefix, &error))?;
        let ours = self.full("");
        let found = answer.contents().iter().filter_map(|object| {
            Some(Meta {
                key: object.key()?.strip_prefix(&ours)?.to_owned(),
                bytes: object.size().and_then(|n| u64::try_from(n).ok()).unwrap_or(0),
                modified: object
                    .last_modified()
                    .and_then(|at| SystemTime::try_from(*at).ok()),
            })
        });
        Ok(found.collect())
    }

    async fn delete(&self, key: &str) -> Result<()> {
        let request = self
            .client
            .delete_object()
            .bucket(&self.config.bucket)
            .key(self.full(key));
        request
            .send()
            .await
            .map(drop)
            .map_err(|error| failed(key, &error))
    }
}

fn code<E: ProvideErrorMetadata, R>(error: &SdkError<E, R>) -> Option<&str> {
    error.as_service_error().and_then(ProvideErrorMetadata::code)
}

/// By the code where there is one; answers to HEAD have no body, so no code, and only their status.
fn failed<E>(key: &str, error: &SdkError<E, aws_sdk_s3::config::http::HttpResponse>) -> ObjectError
where
    E: ProvideErrorMetadata + StdError + 'static,
{
    let SdkError::ServiceError(context) = error else {
        let kind = match error {
            SdkError::ConstructionFailure(_) => ObjectErrorKind::Other,
            _ => ObjectErrorKind::Lost,
        };
        return ObjectError::new(kind, format!("{key}: {}", with_causes(error)));
    };
    let status = context.raw().status().as_u16();
    let (code, message) = (context.err().code(), context.err().message());
    let text = format!(
        "{key}: {} (status {status}, {})",
        message.unwrap_or("no reason is given"),
        code.unwrap_or("no code")
    );
    ObjectError::new(kind_of(code, status), text)
}

pub(super) fn kind_of(code: Option<&str>, status: u16) -> ObjectErrorKind {
    match code {
        Some("PreconditionFailed") => ObjectErrorKind::Exists,
        Some("ConditionalRequestConflict" | "OperationAborted") => ObjectErrorKind::Conflict,
        Some("NoSuchKey" | "NotFound") => ObjectErrorKind::Missing,
        Some("NoSuchBucket") => ObjectErrorKind::NoPlace,
        Some("RequestTimeTooSkewed" | "RequestExpired") => ObjectErrorKind::Clock,
        Some("QuotaExceeded" | "XMinioStorageFull" | "InsufficientStorage") => ObjectErrorKind::Full,
        Some(code) if code.starts_with("KMS.") || code.starts_with("Kms") => ObjectErrorKind::KeyDenied,
        Some(
            "AccessDenied"
            | "InvalidAccessKeyId"
            | "SignatureDoesNotMatch"
            | "ExpiredToken"
            | "InvalidToken"
            | "Forbidden"
            | "AccountProblem"
            | "AllAccessDisabled",
        ) => ObjectErrorKind::Denied,
        Some("RequestTimeout" | "SlowDown" | "InternalError" | "ServiceUnavailable" | "Throttling") => {
            ObjectErrorKind::Lost
        }
        _ => match status {
            412 => ObjectErrorKind::Exists,
            409 => ObjectErrorKind::Conflict,
            404 => ObjectErrorKind::Missing,
            401 | 403 => ObjectErrorKind::Denied,
            507 => ObjectErrorKind::Full,
            500.. => ObjectErrorKind::Lost,
            _ => ObjectErrorKind::Other,
        },
    }
}

/// What the names begin with that a rule is for. Tags and sizes that it looks at as well are not ours to know.
fn prefix_of(rule: &LifecycleRule) -> &str {
    let filter = rule.filter();
    let by_filter = filter.and_then(|filter| filter.prefix().or_else(|| filter.and()?.prefix()));
    #[expect(deprecated, reason = "rules that are old have it there")]
    let prefix = by_filter.or_else(|| rule.prefix());
    prefix.unwrap_or_default()
}

/// Is a rule for names of this prefix also for some of ours?
fn is_over(prefix: &str, ours: &str) -> bool {
    ours.starts_with(prefix) || prefix.starts_with(ours)
}

/// RFC 4648, with padding.
pub(super) fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let word = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let sextet = (word >> (18 - 6 * place)) & 63;
            let letter = ALPHABET.get(sextet as usize).copied().unwrap_or(b'=');
            text.push(if place > chunk.len() {
                '='
            } else {
                char::from(letter)
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_sdk_s3::types::{ExpirationStatus, LifecycleRuleAndOperator, LifecycleRuleFilter};

    #[test]
    fn a_rule_is_a_finding_only_where_it_is_for_names_of_the_archive() {
        let rule = |filter: LifecycleRuleFilter| {
            let rule = LifecycleRule::builder().status(ExpirationStatus::Enabled);
            rule.filter(filter).build().unwrap()
        };
        let by_prefix = |prefix: &str| rule(LifecycleRuleFilter::builder().prefix(prefix).build());
        let both = LifecycleRuleAndOperator::builder().prefix("logs/").build();
        for (rule, is_ours) in [
            (by_prefix(""), true),
            (by_prefix("site/"), true),
            (by_prefix("site/audit/v1/dt=2026"), true),
            (by_prefix("site/other/"), false),
            (rule(LifecycleRuleFilter::builder().and(both).build()), false),
            (rule(LifecycleRuleFilter::builder().build()), true),
        ] {
            assert_eq!(is_over(prefix_of(&rule), "site/audit/v1/"), is_ours, "{rule:?}");
        }
    }

    /// aws-sdk-rust#1146, #1202, smithy-rs#4439, quickwit#5294: a line without a byte for some seconds was taken for dead. Of a
    /// request that hangs the timeouts take care, and they leave time for 64 MiB.
    #[tokio::test]
    async fn a44_a_slow_line_is_no_dead_one_and_a_request_that_hangs_ends() {
        let config = S3Config {
            bucket: "b".into(),
            prefix: String::new(),
            region: Some("us-east-1".into()),
            endpoint: None,
            force_path_style: false,
            kms_key_id: None,
        };
        let s3 = S3::open(&config).await;
        let config = s3.client.config();
        let stalled = config.stalled_stream_protection().unwrap();
        assert!(!stalled.is_enabled() && !stalled.upload_enabled() && !stalled.download_enabled());
        let timeouts = config.timeout_config().unwrap();
        assert!(timeouts.connect_timeout().unwrap() <= Duration::from_secs(5));
        let attempt = timeouts.operation_attempt_timeout().unwrap();
        assert!((Duration::from_secs(10)..=Duration::from_secs(30)).contains(&attempt));
        let all = timeouts.operation_timeout().unwrap();
        assert!(attempt < all && all <= Duration::from_secs(120));
    }
}
