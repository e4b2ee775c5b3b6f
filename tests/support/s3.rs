//! A real S3 server on this machine (SeaweedFS), one per test binary, with a bucket for each test.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, ObjectStoreExt};

use super::{folder, top, wait_until};

const KEY: &str = "tidegate";
const SECRET: &str = "tidegate-secret";
const REGION: &str = "us-east-1";
const CONFIG: &str = r#"{"identities": [{"name": "tests",
  "credentials": [{"accessKey": "tidegate", "secretKey": "tidegate-secret"}],
  "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}"#;

/// The server. It ends with its guardian, which ends with this process.
pub struct S3Server {
    port: u16,
    place: PathBuf,
    _guardian: Child,
}

/// A lake in a bucket of its own.
pub struct Bucket {
    name: String,
    endpoint: String,
}

/// The server of this test binary.
pub fn server() -> &'static S3Server {
    static SERVER: OnceLock<S3Server> = OnceLock::new();
    SERVER.get_or_init(S3Server::start)
}

/// Ports of this machine that were free a moment ago.
fn free_ports<const N: usize>() -> [u16; N] {
    let held = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    held.map(|listener| listener.local_addr().unwrap().port())
}

impl S3Server {
    fn start() -> S3Server {
        let found = Command::new("python3")
            .arg(top().join("scripts/bring-seaweedfs"))
            .stderr(Stdio::inherit())
            .output()
            .unwrap_or_else(|e| panic!("python3 can't be run: {e}"));
        assert!(found.status.success(), "scripts/bring-seaweedfs failed; its report is above");
        let weed = String::from_utf8(found.stdout).unwrap().trim().to_owned();
        // The guardian removes the folder: a static is never dropped.
        let place = folder("s3").keep();
        std::fs::create_dir(place.join("data")).unwrap();
        std::fs::write(place.join("s3.json"), CONFIG).unwrap();
        let [master, master_rpc, volume, volume_rpc, filer, filer_rpc, port, s3_rpc] =
            free_ports::<8>();
        let report = std::fs::File::create(place.join("report")).unwrap();
        let arguments = [
            "-logtostderr".to_owned(),
            "server".to_owned(),
            "-ip=127.0.0.1".to_owned(),
            "-ip.bind=127.0.0.1".to_owned(),
            format!("-dir={}", place.join("data").display()),
            format!("-master.port={master}"),
            format!("-master.port.grpc={master_rpc}"),
            "-master.telemetry=false".to_owned(),
            "-master.volumeSizeLimitMB=64".to_owned(),
            format!("-volume.port={volume}"),
            format!("-volume.port.grpc={volume_rpc}"),
            // A bucket takes seven or more, and a long test has many buckets.
            "-volume.max=10000".to_owned(),
            "-volume.minFreeSpace=0".to_owned(),
            "-filer".to_owned(),
            format!("-filer.port={filer}"),
            format!("-filer.port.grpc={filer_rpc}"),
            "-s3".to_owned(),
            format!("-s3.port={port}"),
            format!("-s3.port.grpc={s3_rpc}"),
            "-s3.port.iceberg=0".to_owned(),
            "-s3.port.lance=0".to_owned(),
            format!("-s3.config={}", place.join("s3.json").display()),
        ];
        // The shell's `read` ends when this process does, however it ends: it holds the pipe.
        let guardian = Command::new("/bin/sh")
            .arg("-c")
            .arg(
                r#"place=$1; shift; "$@" & server=$!; read -r _; kill "$server"; wait "$server"
                   rm -rf "$place""#,
            )
            .args(["guardian".as_ref(), place.as_os_str(), weed.as_ref()])
            .args(&arguments)
            .current_dir(&place)
            .stdin(Stdio::piped())
            .stdout(report.try_clone().unwrap())
            .stderr(report)
            .spawn()
            .unwrap_or_else(|e| panic!("can't start {weed}: {e}"));
        S3Server { port, place, _guardian: guardian }
    }

    /// A new bucket; the server makes it for the first object in it.
    pub fn bucket(&self, name: &str) -> Bucket {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let plain = name.replace('_', "-");
        let bucket = Bucket {
            name: format!("{plain}-{number}"),
            endpoint: format!("http://127.0.0.1:{}", self.port),
        };
        let store = bucket.whole();
        let at = object_store::path::Path::from("made");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        wait_until("the S3 server", Duration::from_secs(90), || {
            runtime.block_on(store.put(&at, "x".into())).is_ok()
        });
        bucket
    }

    /// The server's own report, for messages.
    pub fn report(&self) -> String {
        std::fs::read_to_string(self.place.join("report")).unwrap_or_default()
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Bucket {
    /// The lake's URL.
    pub fn url(&self) -> String {
        format!("s3://{}/lake", self.name)
    }

    /// The same bucket through another address, such as a proxy's.
    pub fn through(&self, address: &str) -> Bucket {
        Bucket { name: self.name.clone(), endpoint: format!("http://{address}") }
    }

    /// What the program needs in its environment to have its lake here.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
            ("AWS_ENDPOINT_URL", self.endpoint.clone()),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_REGION", REGION.to_owned()),
            ("TIDEGATE_LAKE", self.url()),
        ]
    }

    /// The same for a judge.
    pub fn for_judges(&self) -> serde_json::Value {
        serde_json::json!({
            "endpoint": self.endpoint, "key": KEY, "secret": SECRET, "region": REGION,
        })
    }

    /// The lake as a store.
    pub fn store(&self) -> Arc<dyn ObjectStore> {
        Arc::new(PrefixStore::new(self.whole(), "lake"))
    }

    fn whole(&self) -> AmazonS3 {
        AmazonS3Builder::new()
            .with_bucket_name(&self.name)
            .with_access_key_id(KEY)
            .with_secret_access_key(SECRET)
            .with_endpoint(&self.endpoint)
            .with_allow_http(true)
            .with_region(REGION)
            .build()
            .unwrap()
    }
}
