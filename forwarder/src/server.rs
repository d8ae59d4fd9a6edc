//! The gRPC service on the unix socket: words for the wire, nothing else.
//! What is asked is done by [`Control`].

use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status};

use crate::control::{Capture, Control, Refusal};
use crate::proto::forwarder_server::{Forwarder, ForwarderServer};
use crate::proto::{
    CaptureRequest, CaptureResponse, ExplainRequest, ExplainResponse, GetConnectionsRequest,
    GetConnectionsResponse, GetCountersRequest, GetCountersResponse, GetDropSamplesRequest,
    GetDropSamplesResponse, GetMetricsRequest, GetMetricsResponse, GetPlanRequest, GetPlanResponse,
    GetStatusRequest, GetStatusResponse, SetPlanRequest, SetPlanResponse, WatchRequest,
    WatchResponse,
};

/// A plan of 10,000 services and 65,000 backends with all their members takes
/// some tens of megabytes.
pub const MESSAGE_BYTES_MAX: usize = 256 << 20;

/// Captured packets wait here for a client that is slow; then in the workers'
/// rings, which drop and count.
const CAPTURE_MESSAGES: usize = 4;

/// How often a capture looks for packets where there are few.
const CAPTURE_PAUSE: Duration = Duration::from_millis(10);

/// Serves until `stop` resolves.
pub async fn serve(
    listener: UnixListener,
    control: Arc<Control>,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let service = ForwarderServer::new(Service { control })
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let server = tonic::transport::Server::builder().add_service(service);
    server.serve_with_incoming_shutdown(UnixListenerStream::new(listener), stop).await
}

struct Service {
    control: Arc<Control>,
}

impl Service {
    /// On a thread that may wait: decoding a large plan, building tables and
    /// reading large ones take longer than an async task may.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Control) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let control = Arc::clone(&self.control);
        let done = tokio::task::spawn_blocking(move || work(&control)).await;
        done.map_err(|error| Status::internal(format!("the request's thread failed: {error}")))
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Status {
        match refusal {
            Refusal::Invalid(why) => Status::invalid_argument(why),
            Refusal::Precondition(why) => Status::failed_precondition(why),
        }
    }
}

#[tonic::async_trait]
impl Forwarder for Service {
    async fn set_plan(
        &self,
        request: Request<SetPlanRequest>,
    ) -> Result<Response<SetPlanResponse>, Status> {
        let Some(plan) = request.into_inner().plan else {
            return Err(Status::invalid_argument("plan: missing"));
        };
        let accepted = self.run(move |control| control.set_plan(plan)).await??;
        Ok(Response::new(SetPlanResponse {
            generation: accepted.generation,
            warnings: accepted.warnings,
        }))
    }

    async fn get_plan(
        &self,
        _: Request<GetPlanRequest>,
    ) -> Result<Response<GetPlanResponse>, Status> {
        match self.run(|control| control.plan_message()).await? {
            Some(plan) => Ok(Response::new(GetPlanResponse { plan: Some(plan) })),
            None => Err(Status::not_found("no plan yet")),
        }
    }

    async fn get_status(
        &self,
        _: Request<GetStatusRequest>,
    ) -> Result<Response<GetStatusResponse>, Status> {
        Ok(Response::new(self.run(Control::status).await?))
    }

    async fn get_counters(
        &self,
        _: Request<GetCountersRequest>,
    ) -> Result<Response<GetCountersResponse>, Status> {
        Ok(Response::new(self.run(Control::counters).await?))
    }

    async fn get_connections(
        &self,
        request: Request<GetConnectionsRequest>,
    ) -> Result<Response<GetConnectionsResponse>, Status> {
        let lookup = request.into_inner().lookup;
        Ok(Response::new(self.run(move |control| control.connections(lookup)).await??))
    }

    async fn explain(
        &self,
        request: Request<ExplainRequest>,
    ) -> Result<Response<ExplainResponse>, Status> {
        let Some(flow) = request.into_inner().flow else {
            return Err(Status::invalid_argument("flow: missing"));
        };
        Ok(Response::new(self.run(move |control| control.explain(&flow)).await??))
    }

    async fn get_drop_samples(
        &self,
        _: Request<GetDropSamplesRequest>,
    ) -> Result<Response<GetDropSamplesResponse>, Status> {
        Ok(Response::new(self.run(Control::drop_samples).await?))
    }

    type WatchStream = ReceiverStream<Result<WatchResponse, Status>>;

    async fn watch(&self, _: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(tell(self.control.handing_over(), sender));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    type CaptureStream = ReceiverStream<Result<CaptureResponse, Status>>;

    async fn capture(
        &self,
        request: Request<CaptureRequest>,
    ) -> Result<Response<Self::CaptureStream>, Status> {
        let capture = self.control.capture(&request.into_inner())?;
        let (sender, receiver) = mpsc::channel(CAPTURE_MESSAGES);
        tokio::task::spawn_blocking(move || stream(capture, &sender));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn get_metrics(
        &self,
        _: Request<GetMetricsRequest>,
    ) -> Result<Response<GetMetricsResponse>, Status> {
        let text = self.run(Control::metrics).await?;
        Ok(Response::new(GetMetricsResponse { text }))
    }
}

/// Tells a watcher now and with every change, until it hangs up.
async fn tell(
    mut news: watch::Receiver<bool>,
    watcher: mpsc::Sender<Result<WatchResponse, Status>>,
) {
    loop {
        let handing_over = *news.borrow_and_update();
        if watcher.send(Ok(WatchResponse { handing_over })).await.is_err() {
            return;
        }
        tokio::select! {
            changed = news.changed() => if changed.is_err() { return },
            () = watcher.closed() => return,
        }
    }
}

/// Hands over what is captured until nobody listens, or nobody forwards.
fn stream(mut capture: Capture, listener: &mpsc::Sender<Result<CaptureResponse, Status>>) {
    while !listener.is_closed() {
        let Some(response) = capture.message() else { return };
        let is_full = !response.packets.is_empty();
        if (is_full || response.missed > 0) && listener.blocking_send(Ok(response)).is_err() {
            return;
        }
        if !is_full {
            std::thread::sleep(CAPTURE_PAUSE);
        }
    }
}
