//! The gRPC service on the unix sockets: converts to and from messages.
//! [`rights`](crate::api::rights) defines who may call; [`Control`] does what is requested.

use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::api::clients::{self, Client};
pub use crate::api::rights::Access;
use crate::api::rights::{Guard, user_of, view_only};
use crate::control::{Capture, Control, Refusal};
use crate::observe::metrics::SharedPage;
use crate::process::successor;
use crate::proto::forwarder_server::Forwarder;
use crate::proto::{
    CaptureRequest, CaptureResponse, ComparePlanRequest, ComparePlanResponse, ExplainRequest,
    ExplainResponse, GetConnectionsRequest, GetConnectionsResponse, GetCountersRequest,
    GetCountersResponse, GetDropSamplesRequest, GetDropSamplesResponse, GetMetricsRequest,
    GetMetricsResponse, GetPlanRequest, GetPlanResponse, GetStatusRequest, GetStatusResponse,
    SetPlanRequest, SetPlanResponse, TakeOverRequest, TakeOverResponse, WatchRequest,
    WatchResponse,
};

/// Captured packets wait here for a client that is slow; then in the workers'
/// rings, which drop and count.
const CAPTURE_MESSAGES: usize = 4;

/// How often a capture looks for packets where there are few.
const CAPTURE_PAUSE: Duration = Duration::from_millis(10);

/// Requests at a time over one connection.
const STREAMS_MAX: u32 = 32;

/// Of requests that are not read yet: over one stream, and over one connection.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;

/// Answers that are made at a time: each keeps a core busy that workers may
/// need. Plans have a call of their own.
const ANSWERS_MAX: usize = 2;

/// How long a request waits for that.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(10);

/// A client whose other end is gone is found within the sum of these.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves until `stop` resolves.
pub async fn serve(
    listener: UnixListener,
    control: Arc<Control>,
    page: SharedPage,
    access: Access,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let places = || Semaphore::new(ANSWERS_MAX);
    let (answers, states) = (places(), places());
    let successors = Semaphore::new(1);
    let service = Service { control, page, access, answers, states, successors };
    let server = tonic::transport::Server::builder()
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .add_service(Guard::new(service, access));
    server.serve_with_incoming_shutdown(clients::accept(listener), stop).await
}

struct Service {
    control: Arc<Control>,
    page: SharedPage,
    /// Places for answers to people.
    answers: Semaphore,
    /// Places for what a controller asks now and then.
    states: Semaphore,
    /// One place: of two successors one would be refused anyway.
    successors: Semaphore,
    access: Access,
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

    /// The same once there is a place for it.
    async fn queue<T: Send + 'static>(
        &self,
        places: &Semaphore,
        work: impl FnOnce(&Control) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let Ok(Ok(_place)) = timeout(QUEUE_TIMEOUT, places.acquire()).await else {
            return Err(Status::resource_exhausted(
                "too many clients ask at the same time: try again",
            ));
        };
        self.run(work).await
    }
}

/// A request that is waited for: dropped with the request, or when its client has left.
struct Asks {
    _asked: Arc<()>,
}

/// And whether it still is, for the thread that does what was asked.
fn asking() -> (Asks, impl Fn() -> bool + Send + 'static) {
    let asked = Arc::new(());
    let asks = Arc::downgrade(&asked);
    (Asks { _asked: asked }, move || asks.strong_count() > 0)
}

/// Counts an answer to the client that asked.
fn answer<Q, T: Message>(request: &Request<Q>, message: T) -> Result<Response<T>, Status> {
    if let Some(client) = request.extensions().get::<Arc<Client>>() {
        client.add(message.encoded_len())?;
    }
    Ok(Response::new(message))
}

/// The controller's user, over the socket that takes plans.
fn is_controller<T>(access: Access, request: &Request<T>) -> bool {
    let Access::Operate { controller } = access else { return false };
    user_of(request.extensions()) == Some(controller)
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Status {
        match refusal {
            Refusal::Invalid(why) => Status::invalid_argument(why),
            Refusal::Precondition(why) => Status::failed_precondition(why),
            Refusal::Later(why) => Status::aborted(why),
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
        request: Request<GetPlanRequest>,
    ) -> Result<Response<GetPlanResponse>, Status> {
        match self.queue(&self.states, |control| control.plan_message()).await? {
            Some(plan) => answer(&request, GetPlanResponse { plan: Some(plan) }),
            None => Err(Status::not_found("no plan yet")),
        }
    }

    async fn compare_plan(
        &self,
        mut request: Request<ComparePlanRequest>,
    ) -> Result<Response<ComparePlanResponse>, Status> {
        let Some(plan) = request.get_mut().plan.take() else {
            return Err(Status::invalid_argument("plan: missing"));
        };
        let (_asks, is_asked) = asking();
        let compared = self.run(move |control| control.compare_plan(plan, is_asked)).await??;
        answer(&request, compared)
    }

    async fn get_status(
        &self,
        request: Request<GetStatusRequest>,
    ) -> Result<Response<GetStatusResponse>, Status> {
        if is_controller(self.access, &request) {
            self.control.heard_controller();
        }
        answer(&request, self.queue(&self.states, Control::status).await?)
    }

    async fn get_counters(
        &self,
        request: Request<GetCountersRequest>,
    ) -> Result<Response<GetCountersResponse>, Status> {
        answer(&request, self.queue(&self.answers, Control::counters).await?)
    }

    async fn get_connections(
        &self,
        request: Request<GetConnectionsRequest>,
    ) -> Result<Response<GetConnectionsResponse>, Status> {
        let lookup = request.get_ref().lookup.clone();
        let found = self.queue(&self.answers, move |control| control.connections(lookup)).await??;
        answer(&request, found)
    }

    async fn explain(
        &self,
        request: Request<ExplainRequest>,
    ) -> Result<Response<ExplainResponse>, Status> {
        let wanted = request.get_ref().clone();
        let explained =
            self.queue(&self.answers, move |control| control.explain(&wanted)).await??;
        answer(&request, explained)
    }

    async fn get_drop_samples(
        &self,
        request: Request<GetDropSamplesRequest>,
    ) -> Result<Response<GetDropSamplesResponse>, Status> {
        answer(&request, self.queue(&self.answers, Control::drop_samples).await?)
    }

    async fn take_over(
        &self,
        _: Request<TakeOverRequest>,
    ) -> Result<Response<TakeOverResponse>, Status> {
        let Ok(_place) = self.successors.try_acquire() else {
            return Err(Status::aborted("another successor is about to take over"));
        };
        let pid = self.run(|_| successor::start()).await?;
        let pid = pid.map_err(|error| Status::aborted(error.to_string()))?;
        Ok(Response::new(TakeOverResponse { pid }))
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
        request: Request<GetMetricsRequest>,
    ) -> Result<Response<GetMetricsResponse>, Status> {
        let fresh = request.get_ref().fresh;
        if fresh && self.access == Access::View {
            return Err(view_only("fresh pages are made"));
        }
        let page = if fresh { self.page.fresh().await } else { self.page.get().await };
        if let Some(client) = request.extensions().get::<Arc<Client>>() {
            client.add(page.len())?;
        }
        Ok(Response::new(GetMetricsResponse { text: (*page).clone() }))
    }
}

/// Answers a watcher now and with every change, until it hangs up.
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

/// Hands over what is captured until the client hangs up, or forwarding ends.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_knows_when_its_request_is_dropped() {
        let (asks, is_asked) = asking();
        assert!(is_asked());
        drop(asks);
        assert!(!is_asked());
    }
}
