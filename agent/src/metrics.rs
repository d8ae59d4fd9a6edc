//! The counters for Prometheus: a server of one page.

use std::fmt::Write;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::messages::{Exchange, Exchanges, RESULTS};
use crate::mss::FAMILIES;
use crate::outcome::{Counts, Kind, OUTCOMES};
use crate::program::Counters;
use crate::redirects::{EVENTS, Shared, State};
use crate::timestamps;

/// The longest request that is read; a scraper's has some 200 bytes.
const REQUEST_BYTES_MAX: usize = 8192;

/// One request after the other; a slow client has this long.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves the counters, for ever; does nothing without a listener.
pub async fn serve(
    listener: Option<TcpListener>,
    counters: &Counters,
    exchanges: &Exchanges,
    rules: &Shared,
) {
    let Some(listener) = listener else { return std::future::pending().await };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // A client that is slow or gone is its own loss.
                let _ = timeout(REQUEST_TIMEOUT, answer(stream, counters, exchanges, rules)).await;
            }
            Err(error) => {
                tracing::warn!("cannot accept a request for metrics: {error}");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn answer(
    mut stream: TcpStream,
    counters: &Counters,
    exchanges: &Exchanges,
    rules: &Shared,
) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|window| window == b"\r\n\r\n")
        && request.len() < REQUEST_BYTES_MAX
    {
        if stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let (status, body) = match path(&request) {
        Some("/metrics") => match counters.read() {
            Ok(counts) => (
                "200 OK",
                page(&counts)
                    + &classifier_page(counters)
                    + &rules_page(&rules.read())
                    + &message_page(&exchanges.read()),
            ),
            Err(problem) => ("500 Internal Server Error", problem),
        },
        Some("/healthz") => ("200 OK", "ok\n".to_string()),
        _ => ("404 Not Found", "only /metrics and /healthz are here\n".to_string()),
    };
    let len = body.len();
    let response = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{body}"
    );
    stream.write_all(response.as_bytes()).await
}

/// The path that a GET names, without its query.
fn path(request: &[u8]) -> Option<&str> {
    let line = std::str::from_utf8(request.split(|&byte| byte == b'\r').next()?).ok()?;
    let target = line.strip_prefix("GET ")?.split(' ').next()?;
    target.split('?').next()
}

/// The exposition format: one family for each kind of outcome.
fn page(counts: &Counts) -> String {
    let families = [
        (
            Kind::Passed,
            "guideway_agent_pass_packets_total",
            "reason",
            "Packets left to the kernel as they were.",
        ),
        (
            Kind::Decapsulated,
            "guideway_agent_decapsulated_packets_total",
            "encap",
            "Packets taken out of their tunnel.",
        ),
        (
            Kind::Forwarded,
            "guideway_agent_forwarded_packets_total",
            "reason",
            "Packets sent to the next agent that they name, by what is missing here.",
        ),
        (
            Kind::Dropped,
            "guideway_agent_drop_packets_total",
            "reason",
            "Packets from our load balancers and agents that were dropped.",
        ),
    ];
    let of_kind = |kind| {
        let counted = OUTCOMES.iter().zip(counts).filter(move |(outcome, _)| outcome.kind == kind);
        counted.map(|(outcome, count)| (outcome.name, *count))
    };
    families
        .into_iter()
        .map(|(kind, name, label, help)| family(name, label, help, of_kind(kind)))
        .collect()
}

/// What the programs at ingress and egress did. What cannot be read is left out.
fn classifier_page(counters: &Counters) -> String {
    let clamped = counters.clamped.read().unwrap_or_default();
    let timestamps = counters.timestamps.read().unwrap_or_default();
    family(
        "guideway_agent_mss_clamped_packets_total",
        "family",
        "SYN/ACKs from VIPs whose MSS was lowered to what fits into tunnels.",
        FAMILIES.into_iter().zip(clamped),
    ) + &family(
        "guideway_agent_timestamps_total",
        "outcome",
        "Segments of services with Multipath TCP, by what became of their timestamps.",
        timestamps::OUTCOMES.into_iter().zip(timestamps),
    ) + &family(
        "guideway_agent_multipath_events_total",
        "event",
        "Segments of services with Multipath TCP, by what was done with them.",
        counters.multipath.events().unwrap_or_default(),
    )
}

/// Redirect rules between agents.
fn rules_page(state: &State) -> String {
    let count = |name: &&'static str| (*name, state.events.get(*name).copied().unwrap_or_default());
    family(
        "guideway_agent_redirects_total",
        "event",
        "What was done about redirect rules (docs/agent.md).",
        EVENTS.iter().map(count),
    )
}

/// Counters of one name, by the values of a label.
fn family(
    name: &str,
    label: &str,
    help: &str,
    counts: impl IntoIterator<Item = (&'static str, u64)>,
) -> String {
    let mut page = format!("# HELP {name} {help}\n# TYPE {name} counter\n");
    for (value, count) in counts {
        // Writing to a String cannot fail.
        let _ = writeln!(page, "{name}{{{label}=\"{value}\"}} {count}");
    }
    page
}

/// What is said to controllers; empty where there are none.
fn message_page(exchanges: &[Exchange]) -> String {
    let mut page = String::new();
    let mut family = |name: &str, label: &str, help: &str, samples: Vec<(String, f64)>| {
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        if !samples.is_empty() {
            // Writing to a String cannot fail.
            let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
        }
        for (value, sample) in samples {
            let _ = writeln!(page, "{name}{{{label}=\"{value}\"}} {sample}");
        }
    };
    let by_controller = |value: fn(&Exchange) -> Option<f64>| {
        let sample = |one: &Exchange| Some((one.controller.to_string(), value(one)?));
        exchanges.iter().filter_map(sample).collect()
    };
    family(
        "guideway_agent_states_sent_total",
        "controller",
        "States sent to the controller.",
        by_controller(|one| Some(one.states_sent as f64)),
    );
    family(
        "guideway_agent_answered_timestamp_seconds",
        "controller",
        "When the controller last answered a state; absent where it never did.",
        by_controller(|one| one.answered_at),
    );
    family(
        "guideway_agent_connections",
        "controller",
        "Connections of stateless services in the latest state sent to the controller.",
        by_controller(|one| Some(one.connections as f64)),
    );
    let answers = RESULTS.iter().enumerate().filter(|_| !exchanges.is_empty());
    family(
        "guideway_agent_answers_total",
        "result",
        "Datagrams received from controllers, by what became of them.",
        answers
            .map(|(at, result)| {
                let count: u64 = exchanges.iter().map(|one| one.answers[at]).sum();
                (result.to_string(), count as f64)
            })
            .collect(),
    );
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_is_on_the_page_once() {
        let counts: Counts = std::array::from_fn(|index| index as u64 + 100);
        let page = page(&counts);
        for (index, outcome) in OUTCOMES.iter().enumerate() {
            let ending = format!("\"{}\"}} {}\n", outcome.name, index + 100);
            assert_eq!(page.matches(&ending).count(), 1, "{ending}");
        }
    }

    #[test]
    fn only_gets_have_a_path() {
        assert_eq!(path(b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n"), Some("/metrics"));
        assert_eq!(path(b"POST /metrics HTTP/1.1\r\n\r\n"), None);
        assert_eq!(path(b"\xff\r\n\r\n"), None);
        assert_eq!(path(b""), None);
    }
}
