//! The rights that each call requires, and the only place that defines them. They are checked
//! before the first byte of the call's message is read, so a client without the right costs no
//! memory.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Context, Poll, Service, http};
use tonic::server::NamedService;

use crate::api::clients::Client;
use crate::control::PLAN_BYTES_MAX;
use crate::proto::forwarder_server::{Forwarder, ForwarderServer};

/// The longest message but for plans has a connection's addresses.
pub const REQUEST_BYTES_MAX: usize = 64 << 10;

/// How long a plan waits for the one before it.
const PLAN_TIMEOUT: Duration = Duration::from_secs(10);

/// What a socket's clients may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Look.
    View,
    /// Look and capture; and the user with this id may set the plan.
    Operate {
        /// The controller's.
        controller: u32,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needs {
    /// Either socket.
    View,
    /// `forwarder.sock`.
    Operate,
    /// There, the controller's user.
    Controller,
}

/// A call, what it needs, and what it is called where it is refused.
type Right = (&'static str, Needs, &'static str);

/// A call without a line is not served.
const RIGHTS: [Right; 12] = [
    ("GetPlan", Needs::View, ""),
    ("GetStatus", Needs::View, ""),
    ("GetCounters", Needs::View, ""),
    ("GetConnections", Needs::View, ""),
    ("GetDropSamples", Needs::View, ""),
    // A fresh page is for operators: see the call.
    ("GetMetrics", Needs::View, ""),
    ("Explain", Needs::View, ""),
    ("Watch", Needs::View, ""),
    // Packets are people's letters.
    ("Capture", Needs::Operate, "captures are made"),
    ("SetPlan", Needs::Controller, "plans"),
    ("ComparePlan", Needs::Controller, "plans"),
    ("TakeOver", Needs::Controller, "requests to take over"),
];

/// Why a client may not call; the user id is the kernel's word.
fn permit(call: &str, access: Access, user: Option<u32>) -> Result<(), Status> {
    let Some((_, needs, what)) = RIGHTS.iter().find(|(name, ..)| *name == call) else {
        return Err(Status::unimplemented(format!("there is no call {call:?}")));
    };
    match (needs, access) {
        (Needs::View, _) | (Needs::Operate, Access::Operate { .. }) => Ok(()),
        (Needs::Operate, Access::View) => Err(view_only(what)),
        (Needs::Controller, Access::View) => Err(view_only(&format!("{what} come"))),
        (Needs::Controller, Access::Operate { controller }) if user == Some(controller) => Ok(()),
        (Needs::Controller, Access::Operate { controller }) => {
            let uid = user.map_or_else(|| "unknown".to_owned(), |uid| uid.to_string());
            Err(Status::permission_denied(format!(
                "{what} come from the controller alone, which runs with user id {controller}, not {uid}: \
                 run it as that user, or start the forwarder with another --controller-user"
            )))
        }
    }
}

/// What a client of the socket to look hears.
pub fn view_only(what: &str) -> Status {
    Status::permission_denied(format!(
        "this socket is for looking only; {what} at forwarder.sock, which takes group guideway-operate"
    ))
}

/// The user that made the request's connection.
pub fn user_of(extensions: &http::Extensions) -> Option<u32> {
    extensions.get::<Arc<Client>>().map(|client| client.user())
}

/// Stands before the service of a socket.
#[derive(Debug)]
pub struct Guard<S: Forwarder> {
    access: Access,
    /// Reads short messages.
    service: ForwarderServer<S>,
    /// Reads plans.
    plans: ForwarderServer<S>,
    /// Each has one place: a plan is read into memory whole, and a comparison reads
    /// all connections besides.
    setting: Arc<Semaphore>,
    comparing: Arc<Semaphore>,
}

impl<S: Forwarder> Guard<S> {
    /// Before what the clients of a socket ask.
    pub fn new(service: S, access: Access) -> Guard<S> {
        let service = Arc::new(service);
        let reading = |bytes| {
            ForwarderServer::from_arc(Arc::clone(&service))
                .max_decoding_message_size(bytes)
                .max_encoding_message_size(PLAN_BYTES_MAX)
        };
        let place = || Arc::new(Semaphore::new(1));
        let (service, plans) = (reading(REQUEST_BYTES_MAX), reading(PLAN_BYTES_MAX));
        Guard { access, service, plans, setting: place(), comparing: place() }
    }
}

// Derived, it would ask for a service that can be cloned.
impl<S: Forwarder> Clone for Guard<S> {
    fn clone(&self) -> Guard<S> {
        Guard {
            access: self.access,
            service: self.service.clone(),
            plans: self.plans.clone(),
            setting: Arc::clone(&self.setting),
            comparing: Arc::clone(&self.comparing),
        }
    }
}

impl<S: Forwarder> NamedService for Guard<S> {
    const NAME: &'static str = ForwarderServer::<S>::NAME;
}

impl<S: Forwarder> Service<http::Request<Body>> for Guard<S> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let call = request.uri().path().rsplit('/').next().unwrap_or_default();
        if let Err(refusal) = permit(call, self.access, user_of(request.extensions())) {
            return Box::pin(async move { Ok(refusal.into_http()) });
        }
        let places = match call {
            "SetPlan" => Arc::clone(&self.setting),
            "ComparePlan" => Arc::clone(&self.comparing),
            _ => return self.service.call(request),
        };
        let mut plans = self.plans.clone();
        Box::pin(async move {
            match place(places).await {
                Ok(_place) => plans.call(request).await,
                Err(refusal) => Ok(refusal.into_http()),
            }
        })
    }
}

async fn place(places: Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Status> {
    match timeout(PLAN_TIMEOUT, places.acquire_owned()).await {
        Ok(Ok(place)) => Ok(place),
        _ => Err(Status::aborted("another plan is being read: try again")),
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn every_call_of_the_service_has_a_right() {
        let contract = include_str!("../../../proto/guideway/forwarder/v1/forwarder.proto");
        let mut calls: Vec<&str> = contract
            .lines()
            .filter_map(|line| line.trim().strip_prefix("rpc ")?.split('(').next())
            .collect();
        let mut rights: Vec<&str> = RIGHTS.iter().map(|(name, ..)| *name).collect();
        calls.sort_unstable();
        rights.sort_unstable();
        assert_eq!(rights, calls);
    }

    #[test]
    fn each_right_is_held_at_each_socket() {
        let controller = 998;
        let operate = Access::Operate { controller };
        for (call, needs, _) in RIGHTS {
            let may = |access, user| permit(call, access, user).is_ok();
            assert_eq!(may(Access::View, Some(controller)), needs == Needs::View, "{call}");
            assert_eq!(may(operate, Some(1000)), needs != Needs::Controller, "{call}");
            assert_eq!(may(operate, Some(0)), needs != Needs::Controller, "{call}");
            assert_eq!(may(operate, None), needs != Needs::Controller, "{call}");
            assert!(may(operate, Some(controller)), "{call}");
        }
        let unknown = permit("Shutdown", operate, Some(controller)).unwrap_err();
        assert_eq!(unknown.code(), Code::Unimplemented);
    }
}
