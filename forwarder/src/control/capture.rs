//! Captured packets with names: service and backend.

use std::net::IpAddr;
use std::sync::Arc;

use datapath::decapsulate::decapsulate;
use datapath::{DropReason, Verdict, View};
use plan::{Found, Plan};
use wire::{FlowKey, Frame, headers};

use crate::control::{Control, Refusal, ShownDevice};
use crate::dataplane::capture::{Captured, Filter, destination};
use crate::dataplane::engine::Session;
use crate::proto;

/// Packets in one message.
const MESSAGE_PACKETS: usize = 256;

/// The names of verdicts that packets end with.
const VERDICTS: [&str; 6] = ["sent", "passed", "replied", "redirected", "held", "dropped"];

/// A capture under way; dropping it ends it.
pub struct Capture {
    control: Arc<Control>,
    session: Session,
    /// Empty: all.
    service: String,
}

impl Control {
    /// Begins to capture what the request selects.
    pub fn capture(
        self: &Arc<Control>,
        request: &proto::CaptureRequest,
    ) -> Result<Capture, Refusal> {
        let filter = filter(request).map_err(Refusal::Invalid)?;
        let shown = self.shown.load_full();
        let Some(running) = &shown.running else {
            return Err(Refusal::Precondition("no plan yet: nothing is forwarded".to_owned()));
        };
        let mut services = running.view.plan.services();
        if !request.service.is_empty() && !services.any(|known| known.name == request.service) {
            let why = format!("service: the plan has no service `{}`", request.service);
            return Err(Refusal::Invalid(why));
        }
        let session = running.engine.capture(filter).ok_or_else(|| {
            Refusal::Precondition("another capture is under way: end that one first".to_owned())
        })?;
        Ok(Capture { control: Arc::clone(self), session, service: request.service.clone() })
    }
}

impl Capture {
    /// What was captured since the last call; None: the forwarder stops.
    pub fn message(&mut self) -> Option<proto::CaptureResponse> {
        let shown = self.control.shown.load_full();
        let running = shown.running.as_ref()?;
        let (view, devices) = (&running.view, &running.devices);
        let mut response = proto::CaptureResponse::default();
        for (worker, source) in (0..).zip(&mut self.session.sources) {
            response.missed += source.missed();
            while response.packets.len() < MESSAGE_PACKETS {
                let Some(captured) = source.next() else { break };
                let packet = named(captured, worker, view, devices);
                if self.service.is_empty() || packet.service == self.service {
                    response.packets.push(packet);
                }
            }
        }
        response.packets.sort_by_key(|packet| packet.time_ns);
        Some(response)
    }
}

fn filter(request: &proto::CaptureRequest) -> Result<Filter, String> {
    let client = match request.client.as_str() {
        "" => None,
        text => Some(text.parse().map_err(|error| format!("client: `{text}`: {error}"))?),
    };
    if let Some(unknown) = request.verdicts.iter().find(|name| !VERDICTS.contains(&name.as_str())) {
        return Err(format!("verdicts: `{unknown}` is none of {}", VERDICTS.join(", ")));
    }
    let reason = |name: &String| {
        let found = DropReason::ALL.iter().find(|reason| reason.name() == name);
        found.copied().ok_or_else(|| {
            let known: Vec<&str> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
            format!("reasons: `{name}` is none of {}", known.join(", "))
        })
    };
    let reasons = request.reasons.iter().map(reason).collect::<Result<_, _>>()?;
    Ok(Filter { client, verdicts: request.verdicts.clone(), reasons, sample: request.sample })
}

fn named(
    captured: Captured,
    worker: u32,
    view: &View,
    devices: &[ShownDevice],
) -> proto::CapturedPacket {
    let key = match captured.as_left && !captured.sent.is_empty() {
        true => None,
        false => flow(&captured.frame, view),
    };
    let reason = match captured.verdict {
        Verdict::Drop(reason) => reason.name(),
        _ => "",
    };
    let to = destination(&captured.sent);
    proto::CapturedPacket {
        time_ns: captured.time_ns,
        worker,
        interface: devices
            .get(captured.device)
            .map_or_else(String::new, |device| device.interface.clone()),
        verdict: captured.verdict.name().to_owned(),
        reason: reason.to_owned(),
        service: key.and_then(|key| service(&view.plan, &key)).unwrap_or_default(),
        backend: to.and_then(|to| receiver(&view.plan, to)).unwrap_or_default(),
        frame: captured.frame.to_vec(),
        as_left: captured.as_left,
    }
}

/// The five-tuple, of the inner packet where one came in a tunnel.
fn flow(bytes: &[u8], view: &View) -> Option<FlowKey> {
    let mut bytes = bytes.to_vec();
    let len = bytes.len();
    let mut frame = Frame::new(&mut bytes, 0, len);
    let mut headers = headers::parse(frame.bytes()).ok()??;
    if view.takes_tunnel(&headers.key) {
        headers = decapsulate(&mut frame, &headers, &view.plan.ingress).ok()?.0;
    }
    Some(headers.key)
}

fn service(plan: &Plan, key: &FlowKey) -> Option<String> {
    let Found::Service(matched) = plan.vips.find(&key.target()) else { return None };
    Some(plan.service_of(&matched).name.clone())
}

/// The backend or peer at that address; else the address.
fn receiver(plan: &Plan, to: IpAddr) -> Option<String> {
    if let Some(backend) = plan.backends().find(|backend| backend.address == to) {
        return Some(backend.name.clone());
    }
    let peer = plan.peers.iter().find(|peer| peer.addresses.contains(&to));
    Some(peer.map_or_else(|| to.to_string(), |peer| peer.name.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_filter_cannot_mean_is_refused_by_name() {
        let refused = |request: proto::CaptureRequest| filter(&request).unwrap_err();
        let one = |name: &str| vec![name.to_owned()];
        let reasons = proto::CaptureRequest { reasons: one("no_servce"), ..Default::default() };
        assert!(refused(reasons).starts_with("reasons: `no_servce` is none of truncated, "));
        let verdicts = proto::CaptureRequest { verdicts: one("drop"), ..Default::default() };
        assert!(refused(verdicts).starts_with("verdicts: `drop` is none of sent, "));
        let client =
            proto::CaptureRequest { client: "192.0.2.1/24".to_owned(), ..Default::default() };
        assert!(refused(client).starts_with("client: `192.0.2.1/24`: "));
        assert!(filter(&proto::CaptureRequest::default()).is_ok());
    }
}
