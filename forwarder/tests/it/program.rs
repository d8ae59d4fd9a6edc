//! The real program in a namespace, and a client of its socket.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use guideway_forwarder::proto::forwarder_client::ForwarderClient;
use guideway_forwarder::proto::{
    CaptureRequest, CaptureResponse, CapturedPacket, DropSample, ExplainRequest, ExplainResponse,
    FlowKey, GetConnectionsRequest, GetConnectionsResponse, GetCountersRequest,
    GetCountersResponse, GetDropSamplesRequest, GetMetricsRequest, GetStatusRequest,
    GetStatusResponse, SetPlanRequest, SetPlanResponse, WatchRequest, WatchResponse,
};
use tonic::transport::{Channel, Endpoint};

use testnet::Namespace;

/// A forwarder with directories of its own.
pub struct Forwarder {
    pub folder: tempfile::TempDir,
    child: Child,
    namespace: String,
    runtime: tokio::runtime::Runtime,
    client: ForwarderClient<Channel>,
}

impl Forwarder {
    /// Starts it and waits for its socket.
    pub fn start(namespace: &Namespace) -> Forwarder {
        let folder = tempfile::tempdir().unwrap();
        let child = spawn(&namespace.name, folder.path(), Stdio::inherit());
        Forwarder::of(namespace, folder, child)
    }

    /// The same where no TAP can be made. `ip netns exec` gives the program
    /// mounts of its own.
    pub fn start_without_tun(namespace: &Namespace) -> Forwarder {
        let folder = tempfile::tempdir().unwrap();
        let plain = command(&namespace.name, folder.path());
        let mut words = plain.get_args();
        let mut command = Command::new("ip");
        command.args(words.by_ref().take(3));
        command.args(["sh", "-c", "mount -t tmpfs none /dev/net && exec \"$0\" \"$@\""]);
        let child = command.args(words).spawn().expect("ip netns exec");
        Forwarder::of(namespace, folder, child)
    }

    /// The same with this file as the cluster's secret.
    pub fn start_with_secret(namespace: &Namespace, secret: &std::path::Path) -> Forwarder {
        let folder = tempfile::tempdir().unwrap();
        let mut command = command(&namespace.name, folder.path());
        let child = command.arg("--secret-file").arg(secret).spawn().expect("ip netns exec");
        Forwarder::of(namespace, folder, child)
    }

    fn of(namespace: &Namespace, folder: tempfile::TempDir, child: Child) -> Forwarder {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = connect(&runtime, folder.path().join("run/forwarder.sock"));
        Forwarder { folder, child, namespace: namespace.name.clone(), runtime, client }
    }

    /// SIGKILL, and a new process in its place.
    pub fn kill_and_restart(&mut self) {
        self.kill_and_restart_with(&[]);
    }

    /// The same, with these arguments besides.
    pub fn kill_and_restart_with(&mut self, arguments: &[&str]) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let mut fresh = command(&self.namespace, self.folder.path());
        self.child = fresh.args(arguments).spawn().expect("ip netns exec");
        self.reconnect();
    }

    /// To the process that has the socket, once it is there.
    pub fn reconnect(&mut self) {
        self.client = connect(&self.runtime, self.folder.path().join("run/forwarder.sock"));
    }

    /// To another socket.
    pub fn connect_to(&mut self, socket: PathBuf) {
        self.client = connect(&self.runtime, socket);
    }

    /// A successor with these arguments besides, until it serves and the predecessor has ended
    /// by itself; what that one counted, as it said last, and its metrics.
    pub fn take_over(&mut self, arguments: &[&str]) -> (GetCountersResponse, String) {
        let mut successor = command(&self.namespace, self.folder.path());
        let successor = successor.arg("--take-over").args(arguments).spawn().unwrap();
        let mut predecessor = std::mem::replace(&mut self.child, successor);
        let start = Instant::now();
        let mut last = (self.counters(), self.metrics());
        let ended = loop {
            match predecessor.try_wait().unwrap() {
                Some(ended) => break ended,
                None => last = self.told_by(predecessor.id()).unwrap_or(last),
            }
            if start.elapsed() > Duration::from_secs(60) {
                predecessor.kill().unwrap();
                panic!("the predecessor goes on");
            }
        };
        assert!(ended.success(), "the predecessor ended with {ended}");
        self.reconnect();
        last
    }

    /// Nothing if the process ends meanwhile: its successor answers then.
    fn told_by(&mut self, process: u32) -> Option<(GetCountersResponse, String)> {
        std::thread::sleep(Duration::from_millis(5));
        let Forwarder { runtime, client, .. } = self;
        let told = async {
            let counters = client.get_counters(GetCountersRequest {}).await.ok()?.into_inner();
            let metrics = client.get_metrics(GetMetricsRequest { fresh: true }).await.ok()?;
            let status = client.get_status(GetStatusRequest::default()).await.ok()?.into_inner();
            (status.pid == process).then(|| (counters, metrics.into_inner().text))
        };
        let bounded = async { tokio::time::timeout(Duration::from_millis(300), told).await };
        runtime.block_on(bounded).ok()?
    }

    /// A successor with these arguments that must not succeed: what it said.
    pub fn refused_take_over(&self, arguments: &[&str]) -> String {
        let mut successor = command(&self.namespace, self.folder.path());
        let successor = successor.arg("--take-over").args(arguments).output().unwrap();
        assert!(!successor.status.success(), "it took over");
        String::from_utf8_lossy(&successor.stderr).into_owned()
    }

    /// What is told about hand-overs.
    pub fn watch(&mut self) -> tonic::Streaming<WatchResponse> {
        self.runtime.block_on(self.client.watch(WatchRequest {})).unwrap().into_inner()
    }

    /// The next message of a stream; None: it has ended, or nothing comes.
    pub fn next<T>(&self, stream: &mut tonic::Streaming<T>) -> Option<T> {
        let bounded =
            async { tokio::time::timeout(Duration::from_secs(5), stream.message()).await };
        self.runtime.block_on(bounded).ok()?.ok()?
    }

    /// SIGTERM; the exit code.
    pub fn terminate(&mut self) -> Option<i32> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.child.wait().unwrap().code()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn set_plan(&mut self, plan: &serde_json::Value) -> Result<SetPlanResponse, tonic::Status> {
        let plan = Some(serde_json::from_value(plan.clone()).unwrap());
        let answer = self.runtime.block_on(self.client.set_plan(SetPlanRequest { plan }));
        answer.map(tonic::Response::into_inner)
    }

    pub fn status(&mut self) -> GetStatusResponse {
        self.runtime
            .block_on(self.client.get_status(GetStatusRequest::default()))
            .unwrap()
            .into_inner()
    }

    pub fn counters(&mut self) -> GetCountersResponse {
        self.runtime.block_on(self.client.get_counters(GetCountersRequest {})).unwrap().into_inner()
    }

    /// Waits until the workers have nothing in hand.
    pub fn at_rest(&mut self) -> GetCountersResponse {
        let start = Instant::now();
        loop {
            let counters = self.counters();
            if counters.unaccounted == 0 || start.elapsed() > Duration::from_secs(2) {
                return counters;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn connections(&mut self, request: GetConnectionsRequest) -> GetConnectionsResponse {
        self.runtime.block_on(self.client.get_connections(request)).unwrap().into_inner()
    }

    pub fn explain(&mut self, flow: FlowKey) -> ExplainResponse {
        let request = ExplainRequest { flow: Some(flow), ..Default::default() };
        self.runtime.block_on(self.client.explain(request)).unwrap().into_inner()
    }

    pub fn drop_samples(&mut self) -> Vec<DropSample> {
        let answer = self.runtime.block_on(self.client.get_drop_samples(GetDropSamplesRequest {}));
        answer.unwrap().into_inner().samples
    }

    /// Begins a capture.
    pub fn capture(
        &mut self,
        request: CaptureRequest,
    ) -> Result<tonic::Streaming<CaptureResponse>, tonic::Status> {
        let answer = self.runtime.block_on(self.client.capture(request));
        answer.map(tonic::Response::into_inner)
    }

    /// The next `count` packets of a capture; fewer, if they do not come in
    /// time.
    pub fn captured(
        &self,
        stream: &mut tonic::Streaming<CaptureResponse>,
        count: usize,
    ) -> Vec<CapturedPacket> {
        let mut packets = Vec::new();
        let collect = async {
            while packets.len() < count {
                let Some(message) = stream.message().await.unwrap() else { return };
                packets.extend(message.packets);
            }
        };
        let bounded = async { tokio::time::timeout(Duration::from_secs(2), collect).await };
        let _ = self.runtime.block_on(bounded);
        packets
    }

    pub fn metrics(&mut self) -> String {
        self.runtime
            .block_on(self.client.get_metrics(GetMetricsRequest { fresh: true }))
            .unwrap()
            .into_inner()
            .text
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `ip netns exec` becomes the program, so the child's id is the program's.
fn spawn(namespace: &str, folder: &std::path::Path, stderr: Stdio) -> Child {
    command(namespace, folder).stderr(stderr).spawn().expect("ip netns exec")
}

/// The program with its directories in `folder`.
pub fn command(namespace: &str, folder: &std::path::Path) -> Command {
    let mut command = Command::new("ip");
    command.args([
        "netns",
        "exec",
        namespace,
        env!("CARGO_BIN_EXE_guideway-forwarder"),
        "run",
        "--no-pin",
    ]);
    command.arg("--run-dir").arg(folder.join("run")).arg("--state-dir").arg(folder.join("state"));
    command
}

/// Where a successor comes to.
pub fn take_over_socket(folder: &std::path::Path) -> PathBuf {
    folder.join("run/take-over.sock")
}

/// Talks to whichever process has the socket.
pub struct Client {
    runtime: tokio::runtime::Runtime,
    client: ForwarderClient<Channel>,
}

impl Client {
    pub fn connect(folder: &std::path::Path) -> Client {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = connect(&runtime, folder.join("run/forwarder.sock"));
        Client { runtime, client }
    }

    pub fn set_plan(&mut self, plan: &serde_json::Value) -> Result<SetPlanResponse, tonic::Status> {
        let plan = Some(serde_json::from_value(plan.clone()).unwrap());
        let answer = self.runtime.block_on(self.client.set_plan(SetPlanRequest { plan }));
        answer.map(tonic::Response::into_inner)
    }

    pub fn counters(&mut self) -> GetCountersResponse {
        self.runtime.block_on(self.client.get_counters(GetCountersRequest {})).unwrap().into_inner()
    }

    pub fn status(&mut self) -> GetStatusResponse {
        self.runtime
            .block_on(self.client.get_status(GetStatusRequest::default()))
            .unwrap()
            .into_inner()
    }
}

/// The socket is there when the last plan is in force.
fn connect(runtime: &tokio::runtime::Runtime, socket: PathBuf) -> ForwarderClient<Channel> {
    let start = Instant::now();
    let endpoint = Endpoint::try_from(format!("unix://{}", socket.display())).unwrap();
    loop {
        match runtime.block_on(endpoint.connect()) {
            Ok(channel) => return ForwarderClient::new(channel),
            Err(error) => {
                assert!(start.elapsed() < Duration::from_secs(60), "{}: {error}", socket.display())
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
