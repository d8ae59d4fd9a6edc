//! The Prometheus metrics: their list, from which docs/counters.md is made (`make
//! generate`), and their page.

use std::sync::Arc;
use std::time::Duration;

use daemon::metrics::{Labelled, Page, SharedPage, http};
use tokio::net::TcpListener;

use crate::messages::{Exchange, Exchanges, RESULTS};
use crate::outcome::{Counts, Kind, OUTCOMES};
use crate::program::Counters;
use crate::redirects::{EVENTS, Shared, State};
use crate::responses::{CLASSES, Sockets, end_of};
use crate::timestamps;

/// Serves the counters, for ever; does nothing without a listener.
pub async fn serve(
    listener: Option<TcpListener>,
    counters: Arc<Counters>,
    exchanges: Exchanges,
    rules: Shared,
) {
    let Some(listener) = listener else { return std::future::pending().await };
    let render = move || page(&counters, &exchanges.read(), &rules.read());
    http::serve(listener, SharedPage::cheap(render)).await;
}

daemon::define_metrics! {
    PASSED "guideway_agent_pass_packets_total" Counter ["reason"]
        "Packets left to the kernel as they were."
    DECAPSULATED "guideway_agent_decapsulated_packets_total" Counter ["encap"]
        "Packets taken out of their tunnel."
    FORWARDED "guideway_agent_forwarded_packets_total" Counter ["reason"]
        "Packets sent to the next agent that they name, by what is missing here."
    DROPPED "guideway_agent_drop_packets_total" Counter ["reason"]
        "Packets from our load balancers and agents that were dropped."
    TIMESTAMPS "guideway_agent_timestamps_total" Counter ["outcome"]
        "Segments of services with Multipath TCP, by what became of their timestamps."
    MULTIPATH_EVENTS "guideway_agent_multipath_events_total" Counter ["event"]
        "Segments of services with Multipath TCP, by what was done with them."
    SYN_COOKIES "guideway_agent_syn_cookies_seconds_total" Counter []
        "Seconds that SYN cookies were switched on for handshakes of Multipath TCP."
    RESPONSES "guideway_agent_response_seconds" Histogram ["service"]
        "From the first byte of a request to the first byte of its answer (docs/agent.md)."
    SAMPLING "guideway_agent_response_measured_one_in" Gauge []
        "One in so many flows is measured: fewer while more than some 1,000 answers a second are."
    RESETS "guideway_agent_resets_total" Counter ["service"]
        "RSTs that the server sent to clients."
    SERVICE_CONNECTIONS "guideway_agent_service_connections" Gauge ["service"]
        "Established connections, by the kernel's list."
    ACCEPT_QUEUE "guideway_agent_accept_queue" Gauge ["service"]
        "Connections that the server has not accepted yet."
    ACCEPT_QUEUE_MAX "guideway_agent_accept_queue_max" Gauge ["service"]
        "With more of them the kernel drops new ones."
    REDIRECTS "guideway_agent_redirects_total" Counter ["event"]
        "What was done about redirect rules (docs/agent.md)."
    STATES_SENT "guideway_agent_states_sent_total" Counter ["controller"]
        "States sent to the controller."
    ANSWERED "guideway_agent_answered_timestamp_seconds" Gauge ["controller"]
        "When the controller last answered a state; absent where it never did."
    CONNECTIONS "guideway_agent_connections" Gauge ["controller"]
        "Connections of stateless services in the latest state sent to the controller."
    ANSWERS "guideway_agent_answers_total" Counter ["result"]
        "Datagrams received from controllers, by what became of them."
}

/// The page, of what could be read.
fn page(counters: &Counters, exchanges: &[Exchange], rules: &State) -> String {
    let mut page = Page::default();
    match counters.read() {
        Ok(counts) => outcomes(&mut page, &counts),
        Err(problem) => tracing::warn!("cannot read counters for metrics: {problem}"),
    }
    classifiers(&mut page, counters);
    services(&mut page, counters);
    let count = |name: &&'static str| (*name, rules.events.get(*name).copied().unwrap_or_default());
    family(&mut page, &REDIRECTS, EVENTS.iter().map(count));
    messages(&mut page, exchanges);
    page.into_text()
}

/// One metric for each kind of outcome.
fn outcomes(page: &mut Page, counts: &Counts) {
    for (kind, metric) in [
        (Kind::Passed, &PASSED),
        (Kind::Decapsulated, &DECAPSULATED),
        (Kind::Forwarded, &FORWARDED),
        (Kind::Dropped, &DROPPED),
    ] {
        let of_kind = OUTCOMES.iter().zip(counts).filter(|(outcome, _)| outcome.kind == kind);
        family(page, metric, of_kind.map(|(outcome, count)| (outcome.name, *count)));
    }
}

/// What the programs at ingress and egress did. What cannot be read is left out.
fn classifiers(page: &mut Page, counters: &Counters) {
    let timestamps = counters.timestamps.read().unwrap_or_default();
    family(page, &TIMESTAMPS, timestamps::OUTCOMES.into_iter().zip(timestamps));
    family(page, &MULTIPATH_EVENTS, counters.multipath.events().unwrap_or_default());
    page.metric(&SYN_COOKIES).sample(&[], counters.multipath.cookies_on().as_secs_f64());
}

/// How services answer; nothing where that is not measured.
fn services(page: &mut Page, counters: &Counters) {
    let responses = &counters.responses;
    let (one_in, counted) = (responses.one_in(), responses.read().unwrap_or_default());
    if one_in == 0 {
        return;
    }
    page.metric(&SAMPLING).value(one_in);
    let mut metric = page.metric(&RESPONSES);
    for (service, counted) in &counted {
        let ends = (0..CLASSES).map(|class| end_of(class).map(|end| end.as_secs_f64()));
        let sum = Duration::from_nanos(counted.nanoseconds).as_secs_f64();
        metric.buckets(&[&service.to_string()], ends.zip(counted.classes), sum);
    }
    let mut metric = page.metric(&RESETS);
    for (service, counted) in &counted {
        metric.sample(&[&service.to_string()], counted.resets);
    }
    let sockets = responses.sockets();
    let mut by_service = |metric, value: fn(&Sockets) -> u64| {
        let mut metric = page.metric(metric);
        for (service, sockets) in &sockets {
            metric.sample(&[&service.to_string()], value(sockets));
        }
    };
    by_service(&SERVICE_CONNECTIONS, |sockets| sockets.connections);
    by_service(&ACCEPT_QUEUE, |sockets| sockets.accept_queue);
    by_service(&ACCEPT_QUEUE_MAX, |sockets| sockets.accept_queue_max);
}

/// Counters of one name, by the values of its label.
fn family(
    page: &mut Page,
    metric: &'static Labelled<1>,
    counts: impl IntoIterator<Item = (&'static str, u64)>,
) {
    let mut metric = page.metric(metric);
    counts.into_iter().for_each(|(value, count)| metric.sample(&[value], count));
}

/// What is sent to controllers and received from them; nothing where there are none.
fn messages(page: &mut Page, exchanges: &[Exchange]) {
    if exchanges.is_empty() {
        return;
    }
    let mut by_controller = |metric, value: fn(&Exchange) -> Option<f64>| {
        let mut metric = page.metric(metric);
        for one in exchanges {
            if let Some(value) = value(one) {
                metric.sample(&[&one.controller.to_string()], value);
            }
        }
    };
    by_controller(&STATES_SENT, |one| Some(one.states_sent as f64));
    by_controller(&ANSWERED, |one| one.answered_at);
    by_controller(&CONNECTIONS, |one| Some(one.connections as f64));
    let answers = |at: usize| exchanges.iter().map(|one| one.answers[at]).sum();
    family(
        page,
        &ANSWERS,
        RESULTS.into_iter().enumerate().map(|(at, result)| (result, answers(at))),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_is_on_the_page_once() {
        let counts: Counts = std::array::from_fn(|index| index as u64 + 100);
        let mut page = Page::default();
        outcomes(&mut page, &counts);
        let page = page.into_text();
        for (index, outcome) in OUTCOMES.iter().enumerate() {
            let ending = format!("\"{}\"}} {}\n", outcome.name, index + 100);
            assert_eq!(page.matches(&ending).count(), 1, "{ending}");
        }
    }
}
